//! The admin listener: what operators and monitoring read. It shows policy names and key prefixes, so it is not the decision
//! listener.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Json};
use axum::routing::{get, post};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use quota_runtime::Quota;
use quota_runtime::clock::UnixMillis;
use quota_runtime::reload::PolicyFile;
use quota_runtime::status::Status;
use serde::Serialize;

use crate::lifecycle::Phase;
use crate::reloads::{LastReload, Reloads};

/// What the admin listener shows.
#[derive(Debug)]
pub(crate) struct Admin {
    /// The engine.
    pub(crate) quota: Quota,
    /// The policy file and the engine that follows it.
    pub(crate) file: Arc<PolicyFile>,
    /// When the daemon started.
    pub(crate) started_at: UnixMillis,
    /// What became of the file.
    pub(crate) reloads: Reloads,
    /// Whether the daemon takes requests.
    pub(crate) phase: Arc<Phase>,
}

/// The routes of the admin listener.
pub(crate) fn router(admin: Arc<Admin>) -> Router {
    Router::new()
        .route("/admin/runtime", get(runtime))
        .route("/admin/reload", post(reload))
        .route("/metrics", get(metrics))
        .route("/livez", get(alive))
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .fallback(unknown_path)
        .with_state(admin)
}

#[derive(Serialize)]
struct Runtime {
    quota: Status,
    daemon: Daemon,
}

#[derive(Serialize)]
struct Daemon {
    version: &'static str,
    policy_file: String,
    started_at_unix_ms: u64,
    draining: bool,
    last_reload: LastReload,
}

async fn runtime(State(admin): State<Arc<Admin>>) -> Response<Body> {
    let mut response = Json(Runtime {
        quota: admin.quota.status(),
        daemon: Daemon {
            version: env!("CARGO_PKG_VERSION"),
            policy_file: admin.file.path().display().to_string(),
            started_at_unix_ms: admin.started_at.0,
            draining: admin.phase.is_draining(),
            last_reload: admin.reloads.last(),
        },
    })
    .into_response();
    never_store(&mut response);
    response
}

/// Reads the policy file again: 200 with what is in force now, or 422 with why the former program stays.
async fn reload(State(admin): State<Arc<Admin>>) -> Response<Body> {
    let file = Arc::clone(&admin.file);
    // It compiles, and may wait for a backend.
    let reload = tokio::task::spawn_blocking(move || LastReload::of(&file.reload_now())).await;
    let mut response = match reload {
        Ok(reload) => {
            let status = if reload.successful {
                StatusCode::OK
            } else {
                StatusCode::UNPROCESSABLE_ENTITY
            };
            (status, Json(reload)).into_response()
        }
        Err(_panicked) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    };
    never_store(&mut response);
    response
}

fn never_store(response: &mut Response<Body>) {
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

async fn metrics(State(admin): State<Arc<Admin>>) -> Response<Body> {
    let text = admin.quota.render_metrics();
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(CONTENT_TYPE, content_type)], text).into_response()
}

/// The process answers; nothing else is asked.
async fn alive() -> &'static str {
    "ok\n"
}

/// Ready: a program is in force, the listeners are bound and the daemon is not draining. A backend that is down does not
/// count: taking every daemon out of service would turn degraded quotas into refused or unlimited traffic. Nor does a refused
/// change of the policy file, since the former one is in force; it is told all the same.
async fn ready(State(admin): State<Arc<Admin>>, RawQuery(query): RawQuery) -> Response<Body> {
    let checks = [
        ("policy file in force", true),
        ("listeners bound", admin.phase.is_bound()),
        ("not draining", !admin.phase.is_draining()),
    ];
    let is_ready = checks.iter().all(|(_, holds)| *holds);
    let verbose = query.is_some_and(|query| {
        query
            .split('&')
            .any(|pair| pair == "verbose" || pair.starts_with("verbose="))
    });
    let mut text = String::new();
    for (check, holds) in checks {
        if verbose || !holds {
            let mark = if holds { "[+]" } else { "[-]" };
            text.push_str(&format!("{mark} {check}\n"));
        }
    }
    if !admin.reloads.last().successful {
        text.push_str("[!] the policy file as last read is refused, see /admin/runtime\n");
    }
    text.push_str(if is_ready { "ready\n" } else { "not ready\n" });
    let status = if is_ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, text).into_response()
}

async fn unknown_path() -> Response<Body> {
    let text = "no such path; there are GET /admin/runtime, /metrics, /livez, /readyz and /healthz, and POST /admin/reload\n";
    (StatusCode::NOT_FOUND, text).into_response()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use http::{Method, Request};
    use http_body_util::BodyExt as _;
    use quota_runtime::clock::ManualClock;
    use quota_runtime::request::{ClientAddress, Request as QuotaRequest};
    use serde_json::{Value, json};
    use tempfile::TempDir;
    use tower::ServiceExt as _;

    use super::*;

    const STARTED_AT: UnixMillis = UnixMillis(1_800_000_000_500);

    const POLICIES: &str = "
enabled: true
policies:
  - name: per-tenant
    route_allowlist: [login]
    selector: { tenant: { key: 'Header:X-Tenant' } }
    burst: { requests: 1, window_secs: 60 }
";

    struct Daemon {
        router: Router,
        quota: Quota,
        phase: Arc<Phase>,
        clock: Arc<ManualClock>,
        folder: TempDir,
    }

    fn start() -> Daemon {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policies.yaml");
        fs::write(&path, POLICIES).unwrap();
        let clock = Arc::new(ManualClock::new(STARTED_AT));
        let quota = Quota::builder()
            .clock(Arc::<ManualClock>::clone(&clock))
            .open_file(&path)
            .unwrap();
        let checked = quota.checked();
        let reloads = Reloads::register(quota.registry(), STARTED_AT, &checked).unwrap();
        let file = PolicyFile::new(quota.clone(), path, {
            let reloads = reloads.clone();
            move |reload| reloads.note(reload)
        });
        let phase = Arc::new(Phase::default());
        let admin = Admin {
            quota: quota.clone(),
            file,
            started_at: STARTED_AT,
            reloads,
            phase: Arc::clone(&phase),
        };
        Daemon {
            router: router(Arc::new(admin)),
            quota,
            phase,
            clock,
            folder,
        }
    }

    impl Daemon {
        async fn ask(&self, method: Method, uri: &str) -> (u16, String) {
            let request = Request::builder().method(method).uri(uri);
            let request = request.body(Body::empty()).unwrap();
            let response = self.router.clone().oneshot(request).await.unwrap();
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            (status, String::from_utf8(body.to_vec()).unwrap())
        }

        async fn get(&self, uri: &str) -> (u16, String) {
            self.ask(Method::GET, uri).await
        }

        async fn runtime(&self) -> Value {
            let (status, body) = self.get("/admin/runtime").await;
            assert_eq!(status, 200);
            serde_json::from_str(&body).unwrap()
        }

        /// The value of a series without labels, or with exactly these.
        async fn metric(&self, series: &str) -> String {
            let (status, text) = self.get("/metrics").await;
            assert_eq!(status, 200);
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("{series} is not in {text}"))
                .to_owned()
        }

        fn write(&self, text: &str) {
            fs::write(self.folder.path().join("policies.yaml"), text).unwrap();
        }

        async fn reload(&self) -> (u16, Value) {
            let (status, body) = self.ask(Method::POST, "/admin/reload").await;
            (status, serde_json::from_str(&body).unwrap())
        }
    }

    #[tokio::test]
    async fn runtime_shows_the_quota_object_and_the_daemon() {
        let daemon = start();
        let runtime = daemon.runtime().await;
        let quota = &runtime["quota"];
        assert_eq!(quota["enabled"], true);
        assert_eq!(quota["enforcement"], "enforce");
        assert_eq!(quota["backend_failure_policy"], "fail_closed");
        assert_eq!(quota["active_backend"], "in_memory");
        assert_eq!(
            quota["backend_status"],
            json!({"availability": "unknown", "degraded": false, "recent_errors": []})
        );
        assert_eq!(
            quota["policies"],
            json!([{
                "name": "per-tenant",
                "route_allowlist": ["login"],
                "selector": {"route": false, "tenant": "header:x-tenant"},
                "burst": {"requests": 1, "window_secs": 60},
            }])
        );
        assert_eq!(quota["generation"], 1);
        assert_eq!(
            runtime["daemon"],
            json!({
                "version": env!("CARGO_PKG_VERSION"),
                "policy_file": daemon.folder.path().join("policies.yaml"),
                "started_at_unix_ms": STARTED_AT.0,
                "draining": false,
                "last_reload": {
                    "at_unix_ms": STARTED_AT.0,
                    "successful": true,
                    "generation": 1,
                    "diagnostics": [],
                },
            })
        );
    }

    #[tokio::test]
    async fn a_reload_that_is_asked_for_tells_what_came_of_it() {
        let daemon = start();
        daemon.write(&POLICIES.replace("requests: 1", "requests: 2"));
        daemon.clock.advance(1_000);
        let (status, answer) = daemon.reload().await;
        assert_eq!(status, 200);
        let in_force = json!({
            "at_unix_ms": STARTED_AT.0 + 1_000,
            "successful": true,
            "generation": 2,
            "diagnostics": [],
        });
        assert_eq!(answer, in_force);
        assert_eq!(daemon.runtime().await["daemon"]["last_reload"], in_force);
        let timestamp = "quotad_config_last_reload_success_timestamp_seconds";
        assert_eq!(daemon.metric(timestamp).await, "1800000001.5");

        daemon.write(&POLICIES.replace("requests: 1", "requests: 0"));
        daemon.clock.advance(1_000);
        let (status, answer) = daemon.reload().await;
        assert_eq!(status, 422);
        assert_eq!(answer["successful"], false);
        assert_eq!(answer["at_unix_ms"], STARTED_AT.0 + 2_000);
        let error = answer["error"].as_str().unwrap();
        assert!(
            error.contains("policies.yaml:7:24: error[Q0503]: "),
            "{error}"
        );
        assert!(error.contains("; help: "), "{error}");
        let diagnostic = &answer["diagnostics"][0];
        assert_eq!(diagnostic["code"], "Q0503");
        assert_eq!(diagnostic["field"], "policies[0].burst.requests");
        assert_eq!(
            (&diagnostic["line"], &diagnostic["column"]),
            (&json!(7), &json!(24))
        );

        let runtime = daemon.runtime().await;
        assert_eq!(runtime["daemon"]["last_reload"], answer);
        assert_eq!(runtime["quota"]["generation"], 2);
        assert_eq!(runtime["quota"]["policies"][0]["burst"]["requests"], 2);
        assert_eq!(
            daemon.metric("quotad_config_last_reload_successful").await,
            "0"
        );
        assert_eq!(daemon.metric(timestamp).await, "1800000001.5");
        let total = |result| format!("quotad_config_reloads_total{{result=\"{result}\"}}");
        assert_eq!(daemon.metric(&total("success")).await, "1");
        assert_eq!(daemon.metric(&total("failure")).await, "1");
        // Ready all the same, with a word about it.
        daemon.phase.bind();
        let ready = "[!] the policy file as last read is refused, see /admin/runtime\nready\n";
        assert_eq!(daemon.get("/readyz").await, (200, ready.to_owned()));
    }

    #[tokio::test]
    async fn a_file_that_is_gone_is_a_refusal_without_diagnostics() {
        let daemon = start();
        fs::remove_file(daemon.folder.path().join("policies.yaml")).unwrap();
        let (status, answer) = daemon.reload().await;
        assert_eq!(status, 422);
        assert!(
            answer["error"]
                .as_str()
                .unwrap()
                .starts_with("cannot read ")
        );
        assert_eq!(answer["diagnostics"], json!([]));
    }

    #[tokio::test]
    async fn metrics_show_every_family_before_its_first_sample() {
        let daemon = start();
        let (_, text) = daemon.get("/metrics").await;
        for family in [
            "impulse_quota_policy_outcomes_total",
            "impulse_quota_backend_health_total",
            "quotad_config_last_reload_successful",
            "quotad_config_last_reload_success_timestamp_seconds",
            "quotad_config_reloads_total",
        ] {
            assert!(text.contains(&format!("# HELP {family} ")), "{family}");
            assert!(text.contains(&format!("# TYPE {family} ")), "{family}");
        }
    }

    #[tokio::test]
    async fn ready_is_bound_and_not_draining_whatever_the_backend_does() {
        let daemon = start();
        let unready = |missing: &str| (503, format!("[-] {missing}\nnot ready\n"));
        assert_eq!(daemon.get("/readyz").await, unready("listeners bound"));
        daemon.phase.bind();
        assert_eq!(daemon.get("/readyz").await, (200, "ready\n".to_owned()));
        assert_eq!(
            daemon.get("/readyz?verbose").await,
            (
                200,
                "[+] policy file in force\n[+] listeners bound\n[+] not draining\nready\n"
                    .to_owned()
            )
        );
        daemon.phase.drain();
        assert_eq!(daemon.get("/readyz").await, unready("not draining"));
        assert_eq!(daemon.runtime().await["daemon"]["draining"], true);
        for alive in ["/livez", "/healthz"] {
            assert_eq!(daemon.get(alive).await, (200, "ok\n".to_owned()));
        }
    }

    #[tokio::test]
    async fn an_identity_shows_nowhere() {
        let daemon = start();
        let headers = [("x-tenant", "acme-corporation")];
        let request = QuotaRequest {
            route: Some("login"),
            client: ClientAddress::Unknown,
            query: None,
            headers: &headers,
        };
        assert_eq!(daemon.quota.decide(&request).await.status, 200);
        assert_eq!(daemon.quota.decide(&request).await.status, 429);
        for uri in ["/admin/runtime", "/metrics"] {
            let (_, text) = daemon.get(uri).await;
            assert!(!text.contains("acme-corporation"), "{text}");
        }
    }

    #[tokio::test]
    async fn unknown_paths_are_told_which_there_are() {
        let daemon = start();
        for uri in ["/", "/v1/decide", "/admin"] {
            let (status, text) = daemon.get(uri).await;
            assert_eq!(status, 404);
            assert!(text.contains("/admin/runtime"), "{text}");
        }
        assert_eq!(daemon.ask(Method::GET, "/admin/reload").await.0, 405);
        assert_eq!(daemon.ask(Method::POST, "/admin/runtime").await.0, 405);
    }
}

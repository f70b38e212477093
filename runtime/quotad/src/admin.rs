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
    pub(crate) reloads: Arc<Reloads>,
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
/// count: taking every daemon out of service would turn degraded quotas into refused or unlimited traffic.
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

//! The decision listener: protocol in, `Request`; outcome out, protocol. No rule of the contract lives here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::IntoResponse;
use axum::routing::{any, post};
use axum::{Extension, Router};
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use prometheus::{IntCounter, Registry};
use quota_runtime::client_address::{Peer, TrustedProxies};
use quota_runtime::request::{ClientAddress, HeaderLines, Request as QuotaRequest};
use quota_runtime::{Decided, Quota};
use serde::Deserialize;
use serde_json::error::Category;

use crate::answer::{self, DenialBody, Flavour};
use crate::protection::{Protection, Rejection};

/// The largest body of `/v1/decide`, in bytes.
const MAX_DECIDE_BODY: usize = 256 << 10;
/// How long a client may take to send that body.
const DECIDE_BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// What every decision request needs.
#[derive(Debug)]
pub(crate) struct Decisions {
    /// The engine.
    pub(crate) quota: Quota,
    /// Whose forwarded headers count.
    pub(crate) trusted: TrustedProxies,
    /// Whether answers name the deciding policy and reason in headers.
    pub(crate) expose_details: bool,
    /// Counts what our bounds refuse.
    pub(crate) protection: Protection,
    /// Takes note of forwarded headers that do not count.
    pub(crate) ignored_forwarding: IgnoredForwarding,
}

impl Decisions {
    async fn decide(&self, request: &QuotaRequest<'_>) -> Decided {
        let decided = self.quota.decide(request).await;
        tracing::debug!(
            route = request.route,
            policy = answer::deciding_policy_name(&decided),
            decision = decided.decision.as_str(),
            reason = decided.reason.as_str(),
            "decided"
        );
        decided
    }
}

/// Takes note of forwarded headers from peers that are not trusted: forgeries, or a proxy that was not named as one. Then
/// all of its clients count as one, which nobody would notice otherwise.
#[derive(Debug)]
pub(crate) struct IgnoredForwarding {
    requests: IntCounter,
    warned: AtomicBool,
}

impl IgnoredForwarding {
    /// Counts in `registry`.
    ///
    /// # Errors
    ///
    /// The registry has such a family already.
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let requests = IntCounter::new(
            "quotad_untrusted_forwarding_total",
            "Requests whose forwarded headers were ignored because the peer is not a trusted proxy.",
        )?;
        registry.register(Box::new(requests.clone()))?;
        Ok(Self {
            requests,
            warned: AtomicBool::new(false),
        })
    }

    fn note(&self) {
        self.requests.inc();
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a peer that is no trusted proxy sends forwarded headers, which are ignored; if it is a proxy, name it with --trusted-proxy"
            );
        }
    }
}

/// The routes of the decision listener.
pub(crate) fn router(decisions: Arc<Decisions>) -> Router {
    Router::new()
        .route("/v1/decide", post(decide).fallback(only_post))
        .route("/v1/forward-auth/{route}", any(forward_auth))
        .route("/v1/auth-request/{route}", any(auth_request))
        .fallback(unknown_path)
        .with_state(decisions)
}

/// The header a surface reads the original URI from. It reads one, never whichever is there: a client's own `X-Forwarded-Uri`
/// may arrive beside the proxy's `X-Original-URI`.
const fn uri_header(flavour: Flavour) -> &'static str {
    match flavour {
        Flavour::ForwardAuth { .. } => "x-forwarded-uri",
        Flavour::AuthRequest => "x-original-uri",
    }
}

async fn forward_auth(
    State(decisions): State<Arc<Decisions>>,
    route: Result<Path<String>, PathRejection>,
    Extension(peer): Extension<Peer>,
    request: Request<Body>,
) -> Response<Body> {
    let headers = request.headers();
    let body = DenialBody::wanted(headers);
    let flavour = Flavour::ForwardAuth { body };
    proxied(&decisions, route, peer, headers, flavour).await
}

async fn auth_request(
    State(decisions): State<Arc<Decisions>>,
    route: Result<Path<String>, PathRejection>,
    Extension(peer): Extension<Peer>,
    request: Request<Body>,
) -> Response<Body> {
    let headers = request.headers();
    proxied(&decisions, route, peer, headers, Flavour::AuthRequest).await
}

/// Decides for a proxy. The body is never read: it belongs to the backend.
async fn proxied(
    decisions: &Decisions,
    route: Result<Path<String>, PathRejection>,
    peer: Peer,
    headers: &HeaderMap,
    flavour: Flavour,
) -> Response<Body> {
    let Ok(Path(route)) = route else {
        decisions.protection.count(Rejection::BadRequest);
        return refuse(
            StatusCode::BAD_REQUEST,
            "the route in the path is not UTF-8",
        );
    };
    let trusted = decisions.trusted.trusts(peer);
    if !trusted && headers.keys().any(|name| is_forwarded(name.as_str())) {
        decisions.ignored_forwarding.note();
    }
    let client = decisions.trusted.client(peer, headers);
    let query = if trusted {
        forwarded_query(headers, uri_header(flavour))
    } else {
        None
    };
    let visible = VisibleHeaders { headers, trusted };
    let request = QuotaRequest {
        route: Some(&route),
        client,
        query,
        headers: &visible,
    };
    let decided = decisions.decide(&request).await;
    answer::to_proxy(&decided, flavour, decisions.expose_details)
}

/// The query string of the forwarded URI: `None` where the proxy sent no URI, or several that differ (then it is not known
/// which one is the request's).
fn forwarded_query<'a>(headers: &'a HeaderMap, uri_header: &str) -> Option<&'a [u8]> {
    let mut lines = headers.get_all(uri_header).iter();
    let first = lines.next()?;
    if lines.any(|other| other != first) {
        return None;
    }
    Some(query_of(first.as_bytes()))
}

/// What follows the first `?` of `uri`, up to a fragment; empty without one.
fn query_of(uri: &[u8]) -> &[u8] {
    let end = uri
        .iter()
        .position(|byte| *byte == b'#')
        .unwrap_or(uri.len());
    let uri = uri.get(..end).unwrap_or(uri);
    uri.iter()
        .position(|byte| *byte == b'?')
        .and_then(|at| uri.get(at + 1..))
        .unwrap_or(&[])
}

/// The request's headers as identity sources may see them: from a peer that is not trusted, forwarded headers are not there.
struct VisibleHeaders<'a> {
    headers: &'a HeaderMap,
    trusted: bool,
}

impl HeaderLines for VisibleHeaders<'_> {
    fn each<'a>(&'a self, name: &str, visit: &mut dyn FnMut(&'a [u8])) {
        if self.trusted || !is_forwarded(name) {
            self.headers.each(name, visit);
        }
    }
}

/// Whether a header speaks of the request that a proxy received, and is only worth what that proxy is.
fn is_forwarded(name: &str) -> bool {
    name.starts_with("x-forwarded-")
        || name.starts_with("x-original-")
        || name == "x-real-ip"
        || name == "forwarded"
}

/// The body of `/v1/decide`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DecideRequest {
    #[serde(default)]
    route: Option<String>,
    #[serde(default)]
    client_ip: Option<String>,
    /// Part of what a caller knows of a request; no source reads it.
    #[serde(default, rename = "method")]
    _method: Option<String>,
    #[serde(default)]
    uri: Option<String>,
    #[serde(default)]
    headers: Vec<(String, String)>,
}

impl DecideRequest {
    /// Reads a body, or says what is wrong with it. The messages of the JSON library may quote a value, which may be an
    /// identity; so only the place is told.
    fn read(body: &[u8]) -> Result<Self, String> {
        // The library would also take a list of the values alone.
        if !body.trim_ascii_start().starts_with(b"{") {
            return Err("the body is not a JSON object".to_owned());
        }
        let mut json = serde_json::Deserializer::from_slice(body);
        let (field, error) = match serde_path_to_error::deserialize(&mut json) {
            Ok(asked) => match json.end() {
                Ok(()) => return Ok(asked),
                Err(error) => (None, error),
            },
            Err(error) => {
                let is_whole_body = error.path().iter().len() == 0;
                let field = (!is_whole_body).then(|| error.path().to_string());
                (field, error.into_inner())
            }
        };
        let place = format!("line {}, column {}", error.line(), error.column());
        let fault = match (error.classify(), field) {
            (Category::Data, Some(field)) => {
                format!("`{field}` is not a field or has a value of the wrong type")
            }
            (Category::Data, None) => "a field is given twice".to_owned(),
            (Category::Syntax | Category::Eof | Category::Io, _) => {
                return Err(format!("the body is not JSON ({place})"));
            }
        };
        Err(format!(
            "{fault} ({place}); there are `route`, `client_ip`, `method` and `uri`, all strings, and `headers`, a list of [name, value] pairs"
        ))
    }
}

async fn decide(
    State(decisions): State<Arc<Decisions>>,
    Extension(peer): Extension<Peer>,
    request: Request<Body>,
) -> Response<Body> {
    if !decisions.trusted.trusts(peer) {
        // Whoever may name a client address and headers freely spends anybody's budget.
        return refuse(
            StatusCode::FORBIDDEN,
            "only trusted peers may ask for decisions; see --trusted-proxy",
        );
    }
    let limited = Limited::new(request.into_body(), MAX_DECIDE_BODY);
    let body = match tokio::time::timeout(DECIDE_BODY_TIMEOUT, limited.collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            decisions.protection.count(Rejection::BodyTooLarge);
            return refuse(
                StatusCode::PAYLOAD_TOO_LARGE,
                "the body is larger than 256 KiB",
            );
        }
        Ok(Err(error)) => {
            decisions.protection.count(Rejection::BadRequest);
            return refuse(
                StatusCode::BAD_REQUEST,
                &format!("the body could not be read: {error}"),
            );
        }
        Err(_elapsed) => {
            decisions.protection.count(Rejection::SlowClient);
            return refuse(StatusCode::REQUEST_TIMEOUT, "the body took longer than 5 s");
        }
    };
    let asked = match DecideRequest::read(&body) {
        Ok(asked) => asked,
        Err(why) => {
            decisions.protection.count(Rejection::BadRequest);
            return refuse(StatusCode::BAD_REQUEST, &why);
        }
    };
    let client = asked
        .client_ip
        .as_deref()
        .map_or(ClientAddress::Unknown, ClientAddress::parse);
    let query = asked.uri.as_deref().map(|uri| query_of(uri.as_bytes()));
    let request = QuotaRequest {
        route: asked.route.as_deref(),
        client,
        query,
        headers: &asked.headers,
    };
    let decided = decisions.decide(&request).await;
    answer::to_service(&decided, decisions.expose_details)
}

async fn only_post() -> Response<Body> {
    let mut response = refuse(StatusCode::METHOD_NOT_ALLOWED, "use POST");
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static("POST"));
    response
}

async fn unknown_path() -> Response<Body> {
    refuse(
        StatusCode::NOT_FOUND,
        "no such path; decisions are at POST /v1/decide, /v1/forward-auth/{route} and /v1/auth-request/{route}",
    )
}

/// An answer that is no verdict: it carries no `X-Quota-*` header (contract §8).
fn refuse(status: StatusCode, why: &str) -> Response<Body> {
    let mut response = (status, format!("{why}\n")).into_response();
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::net::IpAddr;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http::Method;
    use hyper::body::{Bytes, Frame};
    use quota_runtime::clock::{ManualClock, UnixMillis};
    use serde_json::{Value, json};
    use tower::ServiceExt as _;

    use super::*;

    /// Ten minutes and a half into an hour.
    const NOW: UnixMillis = UnixMillis(1_800_000_630_000);

    const PER_TENANT: &str = "
enabled: true
policies:
  - name: per-tenant
    route_allowlist: [login]
    selector: { tenant: { key: 'header:x-tenant' } }
    burst: { requests: 1, window_secs: 60 }
    sustained: { requests: 9, window_secs: 3600 }
";

    /// Counts each client; `query:` and a forwarded header as identities show what an untrusted peer can reach.
    const PER_CLIENT: &str = "
enabled: true
policies:
  - name: per-client
    route_allowlist: [client]
    selector: { client: { key: client_ip } }
    burst: { requests: 1, window_secs: 60 }
  - name: per-query
    route_allowlist: [query]
    selector: { tenant: { key: 'query:org' } }
    burst: { requests: 1, window_secs: 60 }
  - name: per-forwarded
    route_allowlist: [forwarded]
    selector: { tenant: { key: 'header:x-forwarded-user' } }
    burst: { requests: 1, window_secs: 60 }
";

    /// No room for a second identity: what the backend says of it depends on nothing else.
    const FULL: &str = "
enabled: true
backend: { kind: in_memory, max_entries: 1 }
policies:
  - name: per-tenant
    selector: { tenant: { key: 'header:x-tenant' } }
    burst: { requests: 9, window_secs: 60 }
";

    /// A body of which nothing ever comes.
    struct Endless;

    impl hyper::body::Body for Endless {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Pending
        }
    }

    struct Daemon {
        router: Router,
        quota: Quota,
    }

    struct Answer {
        status: u16,
        headers: HeaderMap,
        body: String,
    }

    impl Answer {
        #[track_caller]
        fn header(&self, name: &str) -> Option<&str> {
            let mut lines = self.headers.get_all(name).iter();
            let first = lines.next()?;
            assert!(lines.next().is_none(), "{name} occurs twice");
            Some(first.to_str().unwrap())
        }

        #[track_caller]
        fn json(&self) -> Value {
            serde_json::from_str(&self.body).unwrap()
        }

        /// It is no verdict: nothing a proxy could take for one.
        #[track_caller]
        fn assert_no_verdict(&self) {
            for name in self.headers.keys() {
                let name = name.as_str();
                assert!(!name.starts_with("x-quota-"), "{name}");
                assert!(!name.starts_with("ratelimit"), "{name}");
                assert_ne!(name, "retry-after");
            }
        }
    }

    fn start(policies: &str) -> Daemon {
        start_with(policies, false)
    }

    fn start_with(policies: &str, expose_details: bool) -> Daemon {
        let quota = Quota::builder()
            .clock(Arc::new(ManualClock::new(NOW)))
            .open_text("policies.yaml", policies.as_bytes())
            .unwrap();
        let decisions = Decisions {
            quota: quota.clone(),
            trusted: TrustedProxies::default(),
            expose_details,
            protection: Protection::register(quota.registry(), "decision").unwrap(),
            ignored_forwarding: IgnoredForwarding::register(quota.registry()).unwrap(),
        };
        Daemon {
            router: router(Arc::new(decisions)),
            quota,
        }
    }

    impl Daemon {
        async fn send(&self, peer: &str, request: Request<Body>) -> Answer {
            let peer = match peer {
                "unix" => Peer::Unix,
                address => Peer::Ip(address.parse::<IpAddr>().unwrap()),
            };
            let mut request = request;
            request.extensions_mut().insert(peer);
            let response = self.router.clone().oneshot(request).await.unwrap();
            let (head, body) = response.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            Answer {
                status: head.status.as_u16(),
                headers: head.headers,
                body: String::from_utf8(body.to_vec()).unwrap(),
            }
        }

        async fn get(&self, uri: &str, headers: &[(&str, &str)]) -> Answer {
            self.get_from("127.0.0.1", uri, headers).await
        }

        async fn get_from(&self, peer: &str, uri: &str, headers: &[(&str, &str)]) -> Answer {
            self.ask(peer, Method::GET, uri, headers).await
        }

        async fn ask(
            &self,
            peer: &str,
            method: Method,
            uri: &str,
            headers: &[(&str, &str)],
        ) -> Answer {
            let mut request = Request::builder().method(method).uri(uri);
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            self.send(peer, request.body(Body::empty()).unwrap()).await
        }

        async fn decide(&self, body: &str) -> Answer {
            let request = Request::post("/v1/decide").body(Body::from(body.to_owned()));
            self.send("127.0.0.1", request.unwrap()).await
        }
    }

    #[tokio::test]
    async fn forward_auth_admits_with_an_empty_200_and_denies_with_a_problem() {
        let daemon = start(PER_TENANT);
        let tenant = [("x-tenant", "acme")];
        let admitted = daemon.get("/v1/forward-auth/login", &tenant).await;
        assert_eq!(admitted.status, 200);
        assert_eq!(admitted.body, "");
        assert_eq!(admitted.header("content-length"), Some("0"));
        assert_eq!(admitted.header("cache-control"), Some("no-store"));
        assert_eq!(admitted.header("x-quota-decision"), Some("allowed"));
        assert_eq!(admitted.header("retry-after"), None);
        assert_eq!(
            admitted.header("ratelimit"),
            Some(r#""per-tenant-burst";r=0;t=30, "per-tenant-sustained";r=8;t=2970"#)
        );
        assert_eq!(
            admitted.header("ratelimit-policy"),
            Some(r#""per-tenant-burst";q=1;w=60, "per-tenant-sustained";q=9;w=3600"#)
        );

        let denied = daemon.get("/v1/forward-auth/login", &tenant).await;
        assert_eq!(denied.status, 429);
        assert_eq!(denied.header("cache-control"), Some("no-store"));
        assert_eq!(denied.header("x-quota-decision"), Some("denied"));
        assert_eq!(denied.header("retry-after"), Some("30"));
        assert_eq!(
            denied.header("ratelimit"),
            Some(r#""per-tenant-burst";r=0;t=30, "per-tenant-sustained";r=8;t=2970"#)
        );
        assert_eq!(denied.header("x-quota-policy"), None);
        assert_eq!(denied.header("x-quota-reason"), None);
        assert_eq!(
            denied.header("content-type"),
            Some("application/problem+json")
        );
        assert_eq!(
            denied.json(),
            json!({
                "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "title": "Quota exceeded",
                "status": 429,
                "detail": "The burst quota is used up; retry after the time in Retry-After.",
                "reason": "burst_quota_exhausted",
                "retry_after": 30,
                "violated-policies": ["per-tenant"],
            })
        );
    }

    #[tokio::test]
    async fn auth_request_denies_with_an_empty_403_and_the_status_beside_it() {
        let daemon = start(PER_TENANT);
        let tenant = [("x-tenant", "acme")];
        let admitted = daemon.get("/v1/auth-request/login", &tenant).await;
        assert_eq!(admitted.status, 200);
        assert_eq!(admitted.header("x-quota-status"), Some("200"));
        assert_eq!(admitted.header("x-quota-decision"), Some("allowed"));
        assert!(admitted.header("ratelimit").is_some());

        let denied = daemon.get("/v1/auth-request/login", &tenant).await;
        assert_eq!(denied.status, 403);
        assert_eq!(denied.body, "");
        assert_eq!(denied.header("content-length"), Some("0"));
        assert_eq!(denied.header("content-type"), None);
        assert_eq!(denied.header("x-quota-status"), Some("429"));
        assert_eq!(denied.header("x-quota-decision"), Some("denied"));
        assert_eq!(denied.header("retry-after"), Some("30"));
        assert_eq!(denied.header("cache-control"), Some("no-store"));
    }

    #[tokio::test]
    async fn a_missing_identity_has_no_retry_after_and_no_count() {
        let daemon = start(PER_TENANT);
        let denied = daemon.get("/v1/forward-auth/login", &[]).await;
        assert_eq!(denied.status, 429);
        assert_eq!(denied.header("retry-after"), None);
        assert_eq!(denied.header("ratelimit"), None);
        assert_eq!(
            denied.header("ratelimit-policy"),
            Some(r#""per-tenant-burst";q=1;w=60, "per-tenant-sustained";q=9;w=3600"#)
        );
        assert_eq!(denied.json()["reason"], "selector_identity_missing");
        assert_eq!(denied.json()["type"], "urn:quota:problem:identity");
    }

    #[tokio::test]
    async fn a_header_that_is_not_utf_8_is_an_invalid_identity() {
        let daemon = start(PER_TENANT);
        let request = Request::get("/v1/forward-auth/login")
            .header("x-tenant", HeaderValue::from_bytes(b"acm\xe9").unwrap())
            .body(Body::empty());
        let denied = daemon.send("127.0.0.1", request.unwrap()).await;
        assert_eq!(denied.status, 429);
        assert_eq!(denied.json()["reason"], "selector_identity_invalid");
    }

    #[tokio::test]
    async fn repeated_header_lines_arrive_one_by_one() {
        let daemon = start(PER_TENANT);
        let same = [("x-tenant", "acme"), ("x-tenant", " acme")];
        let admitted = daemon.get("/v1/forward-auth/login", &same).await;
        assert_eq!(admitted.status, 200);
        let different = [("x-tenant", "acme"), ("x-tenant", "other")];
        let denied = daemon.get("/v1/forward-auth/login", &different).await;
        assert_eq!(denied.json()["reason"], "selector_identity_invalid");
    }

    #[tokio::test]
    async fn a_failed_backend_is_503_without_retry_after_or_admits() {
        for (failure_policy, status, decision) in [
            ("fail_closed", 503, "failed_closed"),
            ("fail_open", 200, "failed_open"),
        ] {
            let policies = format!("backend_failure_policy: {failure_policy}\n{FULL}");
            let daemon = start(&policies);
            daemon
                .get("/v1/forward-auth/login", &[("x-tenant", "one")])
                .await;
            let two = [("x-tenant", "two")];
            let failed = daemon.get("/v1/forward-auth/login", &two).await;
            assert_eq!(failed.status, status);
            assert_eq!(failed.header("x-quota-decision"), Some(decision));
            assert_eq!(failed.header("retry-after"), None);
            assert_eq!(failed.header("ratelimit"), None);
            assert_eq!(failed.header("ratelimit-policy"), None);
            if status == 503 {
                assert_eq!(failed.json()["reason"], "backend_unavailable");
                assert_eq!(failed.json()["type"], "urn:quota:problem:backend-failure");
            } else {
                assert_eq!(failed.body, "");
            }
            let nginx = daemon.get("/v1/auth-request/login", &two).await;
            assert_eq!(nginx.status, if status == 503 { 403 } else { 200 });
            assert_eq!(nginx.headers["x-quota-status"], status.to_string());
        }
    }

    #[tokio::test]
    async fn shadow_admits_and_shows_no_limits() {
        let daemon = start(&format!("enforcement: shadow\n{PER_TENANT}"));
        let tenant = [("x-tenant", "acme")];
        for decision in ["allowed", "shadow_denied"] {
            let admitted = daemon.get("/v1/forward-auth/login", &tenant).await;
            assert_eq!(admitted.status, 200);
            assert_eq!(admitted.header("x-quota-decision"), Some(decision));
            assert_eq!(admitted.header("ratelimit"), None);
            assert_eq!(admitted.header("ratelimit-policy"), None);
            assert_eq!(admitted.header("retry-after"), None);
        }
    }

    #[tokio::test]
    async fn a_route_no_policy_names_is_admitted() {
        let daemon = start(PER_TENANT);
        for uri in ["/v1/forward-auth/other", "/v1/auth-request/other"] {
            let admitted = daemon.get(uri, &[]).await;
            assert_eq!(admitted.status, 200);
            assert_eq!(admitted.header("x-quota-decision"), Some("not_applied"));
            assert_eq!(admitted.header("ratelimit"), None);
        }
    }

    #[tokio::test]
    async fn the_route_is_decoded_and_trimmed_once_and_our_query_is_not_read() {
        let policies = "
enabled: true
policies:
  - name: odd-route
    route_allowlist: ['a/b %20']
    selector: { tenant: { key: 'query:org' } }
    burst: { requests: 1, window_secs: 60 }
";
        let daemon = start(policies);
        let asked = daemon
            .get(
                "/v1/forward-auth/%20a%2Fb%20%2520?org=ours&route=other",
                &[],
            )
            .await;
        assert_eq!(asked.json()["reason"], "selector_identity_missing");
        let other = daemon.get("/v1/forward-auth/a%2Fb%20%20", &[]).await;
        assert_eq!(other.header("x-quota-decision"), Some("not_applied"));
    }

    #[tokio::test]
    async fn a_route_that_is_not_utf_8_is_no_verdict() {
        let daemon = start(PER_TENANT);
        for uri in ["/v1/forward-auth/%ff", "/v1/auth-request/%ff"] {
            let refused = daemon.get(uri, &[]).await;
            assert_eq!(refused.status, 400);
            refused.assert_no_verdict();
        }
    }

    #[tokio::test]
    async fn each_surface_reads_its_own_uri_header() {
        let daemon = start(PER_CLIENT);
        let both = [
            ("x-forwarded-uri", "/?org=forwarded"),
            ("x-original-uri", "/?org=original"),
        ];
        let forward_auth = "/v1/forward-auth/query";
        let auth_request = "/v1/auth-request/query";
        assert_eq!(daemon.get(forward_auth, &both).await.status, 200);
        // Another tenant's budget.
        assert_eq!(daemon.get(auth_request, &both).await.status, 200);
        assert_eq!(daemon.get(forward_auth, &both[..1]).await.status, 429);
        assert_eq!(daemon.get(auth_request, &both[1..]).await.status, 403);
        let missing = daemon.get(forward_auth, &both[1..]).await;
        assert_eq!(missing.json()["reason"], "selector_identity_missing");
        let twice = [both[0], ("x-forwarded-uri", "/?org=another")];
        let missing = daemon.get(forward_auth, &twice).await;
        assert_eq!(missing.json()["reason"], "selector_identity_missing");
    }

    #[tokio::test]
    async fn a_trusted_peer_names_the_client_and_never_is_it() {
        let daemon = start(PER_CLIENT);
        let client = |address| [("x-forwarded-for", address)];
        let uri = "/v1/forward-auth/client";
        assert_eq!(daemon.get(uri, &client("192.0.2.1")).await.status, 200);
        assert_eq!(daemon.get(uri, &client("192.0.2.2")).await.status, 200);
        let denied = daemon.get_from("unix", uri, &client("192.0.2.1")).await;
        assert_eq!(denied.status, 429);
        let unnamed = daemon.get(uri, &[]).await;
        assert_eq!(unnamed.json()["reason"], "selector_identity_missing");
        let malformed = daemon.get(uri, &client("192.0.2.1, me")).await;
        assert_eq!(malformed.json()["reason"], "selector_identity_invalid");
    }

    #[tokio::test]
    async fn forwarded_headers_of_an_untrusted_peer_are_not_there() {
        let daemon = start(PER_CLIENT);
        let forged = [
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-uri", "/?org=acme"),
            ("x-original-uri", "/?org=acme"),
            ("x-forwarded-user", "acme"),
        ];
        let client = "/v1/forward-auth/client";
        let peer = "198.51.100.7";
        assert_eq!(daemon.get_from(peer, client, &forged).await.status, 200);
        // The peer itself was counted, whatever it says.
        assert_eq!(daemon.get_from(peer, client, &[]).await.status, 429);
        for uri in [
            "/v1/forward-auth/query",
            "/v1/auth-request/query",
            "/v1/forward-auth/forwarded",
        ] {
            let details = start_with(PER_CLIENT, true);
            let reason = async |peer: &str| {
                let answer = details.get_from(peer, uri, &forged).await;
                answer.header("x-quota-reason").unwrap().to_owned()
            };
            assert_eq!(reason("127.0.0.1").await, "allowed", "{uri}");
            assert_eq!(reason(peer).await, "selector_identity_missing", "{uri}");
        }
        let metrics = daemon.quota.render_metrics();
        assert!(
            metrics.contains("\nquotad_untrusted_forwarding_total 1\n"),
            "{metrics}"
        );
    }

    #[tokio::test]
    async fn any_method_is_asked_with_and_a_head_gets_the_head_alone() {
        let daemon = start(PER_TENANT);
        let tenant = [("x-tenant", "acme")];
        let uri = "/v1/forward-auth/login";
        let post = daemon.ask("127.0.0.1", Method::POST, uri, &tenant).await;
        assert_eq!(post.status, 200);
        let brew = Method::from_bytes(b"BREW").unwrap();
        let denied = daemon.ask("127.0.0.1", brew, uri, &tenant).await;
        assert_eq!(denied.status, 429);
        let head = daemon.ask("127.0.0.1", Method::HEAD, uri, &tenant).await;
        assert_eq!(head.status, 429);
        assert_eq!(head.body, "");
        assert_eq!(
            head.header("content-length"),
            denied.header("content-length")
        );
        assert_eq!(head.header("x-quota-decision"), Some("denied"));
    }

    #[tokio::test]
    async fn a_client_that_wants_text_gets_text() {
        let daemon = start(PER_TENANT);
        #[track_caller]
        fn check(denied: &Answer, expected: &str) {
            assert_eq!(denied.status, 429);
            assert_eq!(denied.header("content-type"), Some(expected));
        }
        let problem = "application/problem+json";
        for (accept, expected) in [
            ("text/plain", "text/plain; charset=utf-8"),
            ("text/html, Text/Plain;q=0.5", "text/plain; charset=utf-8"),
            ("application/json, text/plain, */*", problem),
            ("*/*", problem),
            ("text/html", problem),
        ] {
            let accept = [("accept", accept)];
            let denied = daemon.get("/v1/forward-auth/login", &accept).await;
            check(&denied, expected);
        }
    }

    #[tokio::test]
    async fn details_are_told_on_demand_only() {
        let daemon = start_with(PER_TENANT, true);
        let tenant = [("x-tenant", "acme")];
        for (reason, status) in [("allowed", 200), ("burst_quota_exhausted", 429)] {
            let answer = daemon.get("/v1/forward-auth/login", &tenant).await;
            assert_eq!(answer.status, status);
            assert_eq!(answer.header("x-quota-policy"), Some("per-tenant"));
            assert_eq!(answer.header("x-quota-reason"), Some(reason));
        }
        let other = daemon.get("/v1/forward-auth/other", &[]).await;
        assert_eq!(other.header("x-quota-policy"), None);
        assert_eq!(other.header("x-quota-reason"), Some("not_applied"));
    }

    #[tokio::test]
    async fn policy_names_cannot_inject_anything_into_headers() {
        let policies = r#"
enabled: true
policies:
  - name: "a\r\nx-evil: \"1\", b\\;%\u00fc"
    selector: { route: true }
    burst: { requests: 1, window_secs: 60 }
"#;
        let daemon = start_with(policies, true);
        let name = "a%0D%0Ax-evil: %221%22, b%5C;%25%C3%BC";
        let admitted = daemon.get("/v1/forward-auth/x", &[]).await;
        assert_eq!(admitted.header("x-quota-policy"), Some(name));
        assert_eq!(
            admitted.header("ratelimit"),
            Some(format!("\"{name}-burst\";r=0;t=30").as_str())
        );
        assert_eq!(admitted.header("x-evil"), None);
        let denied = daemon.get("/v1/forward-auth/x", &[]).await;
        assert_eq!(
            denied.json()["violated-policies"],
            json!(["a\r\nx-evil: \"1\", b\\;%ü"])
        );
    }

    #[tokio::test]
    async fn fields_of_many_policies_stay_small_and_agree() {
        let mut policies = String::from("enabled: true\npolicies:\n");
        for index in 0..100 {
            policies.push_str(&format!(
                "  - {{name: policy-{index}, selector: {{route: true}}, burst: {{requests: {}, window_secs: 60}}}}\n",
                index + 1
            ));
        }
        let endless = "x".repeat(2000);
        policies.push_str(&format!(
            "  - {{name: {endless}, selector: {{route: true}}, burst: {{requests: 999, window_secs: 60}}}}\n"
        ));
        let daemon = start_with(&policies, true);
        let admitted = daemon.get("/v1/forward-auth/x", &[]).await;
        let names = |field: &str| -> Vec<String> {
            let value = admitted.header(field).unwrap();
            assert!(value.len() <= 1024, "{field} has {} bytes", value.len());
            let items = value.split(", ");
            items
                .map(|item| item.split(';').next().unwrap().to_owned())
                .collect()
        };
        assert_eq!(names("ratelimit"), names("ratelimit-policy"));
        assert!(names("ratelimit").len() > 20);
        assert_eq!(names("ratelimit")[0], r#""policy-0-burst""#);
    }

    #[tokio::test]
    async fn decide_tells_every_policy() {
        let policies = format!(
            "{PER_TENANT}
  - name: per-client
    selector: {{ client: {{ key: client_ip }} }}
    sustained: {{ requests: 5, window_secs: 600 }}
"
        );
        let daemon = start(&policies);
        let body = r#"{"route": " login ", "client_ip": "192.0.2.1", "method": "GET", "uri": "/", "headers": [["X-Tenant", "acme"]]}"#;
        let admitted = daemon.decide(body).await;
        assert_eq!(admitted.status, 200);
        assert_eq!(admitted.header("content-type"), Some("application/json"));
        assert_eq!(admitted.header("cache-control"), Some("no-store"));
        assert_eq!(admitted.header("x-quota-decision"), Some("allowed"));
        let window = |limit: u64, remaining: u64, window_secs: u64, reset_after: u64| {
            json!({
                "limit": limit,
                "remaining": remaining,
                "window_secs": window_secs,
                "reset_unix_ms": NOW.0 + reset_after * 1000,
                "reset_after": reset_after,
            })
        };
        assert_eq!(
            admitted.json(),
            json!({
                "decision": "allowed",
                "reason": "allowed",
                "status": 200,
                "policies": [
                    {
                        "policy": "per-tenant",
                        "decision": "allowed",
                        "reason": "allowed",
                        "backend_mode": "in_memory",
                        "burst": window(1, 0, 60, 30),
                        "sustained": window(9, 8, 3600, 2970),
                    },
                    {
                        "policy": "per-client",
                        "decision": "allowed",
                        "reason": "allowed",
                        "backend_mode": "in_memory",
                        "sustained": window(5, 4, 600, 570),
                    },
                ],
            })
        );

        let denied = daemon.decide(body).await;
        assert_eq!(denied.status, 200);
        assert_eq!(denied.header("x-quota-decision"), Some("denied"));
        assert_eq!(denied.header("retry-after"), Some("30"));
        assert_eq!(
            denied.json(),
            json!({
                "decision": "denied",
                "reason": "burst_quota_exhausted",
                "status": 429,
                "retry_after": 30,
                "policies": [{
                    "policy": "per-tenant",
                    "decision": "denied",
                    "reason": "burst_quota_exhausted",
                    "backend_mode": "in_memory",
                    "burst": window(1, 0, 60, 30),
                    "sustained": window(9, 8, 3600, 2970),
                }],
            })
        );
    }

    #[tokio::test]
    async fn decide_takes_every_field_or_none() {
        let daemon = start(PER_CLIENT);
        let reason = async |body: &str| {
            let answer = daemon.decide(body).await;
            answer.json()["reason"].as_str().unwrap().to_owned()
        };
        assert_eq!(reason("{}").await, "not_applied");
        let missing = "selector_identity_missing";
        assert_eq!(reason(r#"{"route": "client"}"#).await, missing);
        assert_eq!(
            reason(r#"{"route": "client", "client_ip": null}"#).await,
            missing
        );
        assert_eq!(
            reason(r#"{"route": "client", "client_ip": "192.0.2.1:80"}"#).await,
            "selector_identity_invalid"
        );
        assert_eq!(reason(r#"{"route": "query"}"#).await, missing);
        // The body is a trusted peer's own word: headers of the connection and their rules play no part.
        for (body, expected) in [
            (r#"{"route": "query", "uri": "/a?org=b"}"#, "allowed"),
            (
                r#"{"route": "forwarded", "headers": [["X-Forwarded-User", "b"]]}"#,
                "allowed",
            ),
        ] {
            assert_eq!(reason(body).await, expected, "{body}");
        }
    }

    #[tokio::test]
    async fn a_body_that_is_no_decision_request_is_told_where_and_never_quoted() {
        let daemon = start(PER_TENANT);
        for (body, place) in [
            ("", "the body is not a JSON object"),
            ("[\"secret\"]", "the body is not a JSON object"),
            ("{\"route\": \"secret", "the body is not JSON (line 1, "),
            ("{} {}", "the body is not JSON (line 1, column 4)"),
            (r#"{"rout": "secret"}"#, "`rout` is not a field"),
            (
                r#"{"route": "a", "route": "secret"}"#,
                "given twice (line 1, ",
            ),
            (r#"{"headers": {"x-tenant": "secret"}}"#, "`headers` is not"),
            (
                r#"{"headers": [["x-tenant", "a"], ["x-tenant"]]}"#,
                "`headers[1]` is not",
            ),
            (r#"{"client_ip": {"secret": 1}}"#, "`client_ip` is not"),
        ] {
            let refused = daemon.decide(body).await;
            assert_eq!(refused.status, 400, "{body}");
            assert!(refused.body.contains(place), "{body}: {}", refused.body);
            assert!(!refused.body.contains("secret"), "{}", refused.body);
            refused.assert_no_verdict();
        }
    }

    #[tokio::test]
    async fn a_body_too_large_is_refused() {
        let daemon = start(PER_TENANT);
        let large = format!(r#"{{"route": "{}"}}"#, "a".repeat(MAX_DECIDE_BODY));
        let refused = daemon.decide(&large).await;
        assert_eq!(refused.status, 413);
        refused.assert_no_verdict();
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_given_up() {
        let daemon = start(PER_TENANT);
        let request = Request::post("/v1/decide").body(Body::new(Endless));
        let refused = daemon.send("127.0.0.1", request.unwrap()).await;
        assert_eq!(refused.status, 408);
        refused.assert_no_verdict();
    }

    #[tokio::test]
    async fn decide_is_for_trusted_peers_and_posts() {
        let daemon = start(PER_TENANT);
        let request = || Request::post("/v1/decide").body(Body::from("{}")).unwrap();
        let refused = daemon.send("198.51.100.7", request()).await;
        assert_eq!(refused.status, 403);
        refused.assert_no_verdict();
        assert_eq!(daemon.send("unix", request()).await.status, 200);
        let get = daemon.get("/v1/decide", &[]).await;
        assert_eq!(get.status, 405);
        assert_eq!(get.header("allow"), Some("POST"));
        get.assert_no_verdict();
    }

    #[tokio::test]
    async fn unknown_paths_are_no_verdict() {
        let daemon = start(PER_TENANT);
        for uri in ["/", "/v1/forward-auth/", "/v1/forward-auth/a/b", "/metrics"] {
            let refused = daemon.get(uri, &[]).await;
            assert_eq!(refused.status, 404, "{uri}");
            assert!(refused.body.contains("/v1/decide"));
            refused.assert_no_verdict();
        }
    }

    #[test]
    fn a_query_is_what_follows_the_first_question_mark() {
        #[track_caller]
        fn check(uri: &str, expected: &str) {
            assert_eq!(query_of(uri.as_bytes()), expected.as_bytes());
        }
        check("/a?b=c", "b=c");
        check("/a?b=c?d", "b=c?d");
        check("/a?b=c#d?e", "b=c");
        check("/a#d?e", "");
        check("/a", "");
        check("", "");
    }
}

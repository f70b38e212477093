//! The decision listener: protocol in, `Request`; outcome out, protocol. No rule of the contract lives here.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::IntoResponse;
use axum::routing::{any, post};
use axum::{Extension, Router};
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use quota_runtime::Quota;
use quota_runtime::client_address::{Peer, TrustedProxies};
use quota_runtime::request::{ClientAddress, HeaderLines, Request as QuotaRequest};
use serde::Deserialize;

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
    pub(crate) protection: Arc<Protection>,
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

/// A header family a surface reads. A surface reads one, never whichever is there: a client's own `X-Forwarded-Uri` may arrive
/// beside the proxy's `X-Original-URI`.
#[derive(Clone, Copy, Debug)]
enum Family {
    Forwarded,
    Original,
}

impl Family {
    const fn uri_header(self) -> &'static str {
        match self {
            Self::Forwarded => "x-forwarded-uri",
            Self::Original => "x-original-uri",
        }
    }
}

async fn forward_auth(
    State(decisions): State<Arc<Decisions>>,
    Path(route): Path<String>,
    Extension(peer): Extension<Peer>,
    request: Request<Body>,
) -> Response<Body> {
    let body = DenialBody::wanted(request.method() == Method::HEAD, request.headers());
    proxied(
        &decisions,
        &route,
        peer,
        request.headers(),
        Family::Forwarded,
        Flavour::ForwardAuth { body },
    )
    .await
}

async fn auth_request(
    State(decisions): State<Arc<Decisions>>,
    Path(route): Path<String>,
    Extension(peer): Extension<Peer>,
    request: Request<Body>,
) -> Response<Body> {
    proxied(
        &decisions,
        &route,
        peer,
        request.headers(),
        Family::Original,
        Flavour::AuthRequest,
    )
    .await
}

/// Decides for a proxy. The body is never read: it belongs to the backend.
async fn proxied(
    decisions: &Decisions,
    route: &str,
    peer: Peer,
    headers: &HeaderMap,
    family: Family,
    flavour: Flavour,
) -> Response<Body> {
    let trusted = decisions.trusted.trusts(peer);
    let client = decisions.trusted.client(peer, headers);
    let query = if trusted {
        forwarded_query(headers, family)
    } else {
        None
    };
    let visible = VisibleHeaders { headers, trusted };
    let request = QuotaRequest {
        route: Some(route),
        client,
        query,
        headers: &visible,
    };
    let decided = decisions.quota.decide(&request).await;
    answer::to_proxy(&decided, flavour, decisions.expose_details)
}

/// The query string of the forwarded URI: `None` where the proxy sent no URI, or several that differ (then it is not known
/// which one is the request's).
fn forwarded_query(headers: &HeaderMap, family: Family) -> Option<&[u8]> {
    let mut lines = headers.get_all(family.uri_header()).iter();
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
        let forwarded = name.starts_with("x-forwarded-")
            || name.starts_with("x-original-")
            || name == "x-real-ip"
            || name == "forwarded";
        if self.trusted || !forwarded {
            self.headers.each(name, visit);
        }
    }
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
    let asked: DecideRequest = match serde_json::from_slice(&body) {
        Ok(asked) => asked,
        Err(error) => {
            decisions.protection.count(Rejection::BadRequest);
            // serde_json's messages may quote a value of the body, which may be an identity: only the place is told.
            let (line, column) = (error.line(), error.column());
            let what = match error.classify() {
                serde_json::error::Category::Data => "has a field of the wrong name or type",
                serde_json::error::Category::Syntax
                | serde_json::error::Category::Eof
                | serde_json::error::Category::Io => "is not JSON",
            };
            return refuse(
                StatusCode::BAD_REQUEST,
                &format!(
                    "the body {what} (line {line}, column {column}); expected an object with route, client_ip, method, uri and headers, a list of name and value pairs"
                ),
            );
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
    let decided = decisions.quota.decide(&request).await;
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
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn differing_forwarded_uris_are_no_uri() {
        let mut headers = HeaderMap::new();
        assert_eq!(forwarded_query(&headers, Family::Original), None);
        headers.append("x-original-uri", HeaderValue::from_static("/?a=1"));
        assert_eq!(
            forwarded_query(&headers, Family::Original),
            Some(b"a=1".as_slice())
        );
        assert_eq!(forwarded_query(&headers, Family::Forwarded), None);
        headers.append("x-original-uri", HeaderValue::from_static("/?a=2"));
        assert_eq!(forwarded_query(&headers, Family::Original), None);
    }

    #[test]
    fn forwarded_headers_of_an_untrusted_peer_are_not_there() {
        let mut headers = HeaderMap::new();
        headers.append("x-forwarded-for", HeaderValue::from_static("198.18.0.1"));
        headers.append("x-tenant-id", HeaderValue::from_static("kite"));
        for trusted in [true, false] {
            let visible = VisibleHeaders {
                headers: &headers,
                trusted,
            };
            let seen = |name: &str| {
                let mut seen = 0;
                visible.each(name, &mut |_| seen += 1);
                seen
            };
            assert_eq!(seen("x-forwarded-for"), usize::from(trusted));
            assert_eq!(seen("x-tenant-id"), 1);
        }
    }
}

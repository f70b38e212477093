//! Outcomes as HTTP answers: status, `Retry-After`, `RateLimit` fields, problem documents, and the JSON of `/v1/decide`.
//!
//! Policy names may be any text, so they are quoted and percent-encoded wherever they enter a header.

use axum::body::Body;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use quota_compiler::program::{PolicyRow, WindowOperand};
use quota_compiler::terms::{Enforcement, WindowKind};
use quota_runtime::Decided;
use quota_runtime::outcome::{Decision, PolicyOutcome, Reason, WindowState};
use serde::Serialize;

/// On every verdict, so that a proxy can tell one from an answer somebody else made up (its own 503, say).
pub(crate) const DECISION: HeaderName = HeaderName::from_static("x-quota-decision");
/// The verdict's status, where the answer's own cannot be it (nginx flavour).
pub(crate) const STATUS: HeaderName = HeaderName::from_static("x-quota-status");
const POLICY: HeaderName = HeaderName::from_static("x-quota-policy");
const REASON: HeaderName = HeaderName::from_static("x-quota-reason");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The largest integer a structured field can hold (RFC 8941 §3.3.1): larger limits are shown as this one.
const LARGEST_FIELD_INTEGER: u64 = 999_999_999_999_999;

/// The most bytes of a header value that tells of policies. Some proxies take answers whose head fits 4 KiB, and turn larger
/// ones into errors of their own.
const LARGEST_FIELD: usize = 1024;

/// How a denial is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// The status is the verdict; a denial carries a body.
    ForwardAuth {
        /// What the denied client would rather read.
        body: DenialBody,
    },
    /// nginx's `auth_request` knows 2xx, 401 and 403 only, and loses its kept-alive connection on a body: a denial is an
    /// empty 403 with the verdict's status beside it.
    AuthRequest,
}

/// The body of a denial, by the request's `Accept`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DenialBody {
    /// `application/problem+json` (RFC 9457).
    Problem,
    /// One line of plain text.
    Text,
}

impl DenialBody {
    /// The body for a request with `headers`: text for a client that lists `text/plain` and no JSON type, the problem document
    /// for everyone else.
    pub(crate) fn wanted(headers: &HeaderMap) -> Self {
        let (mut json, mut text) = (false, false);
        for line in headers.get_all(http::header::ACCEPT) {
            for range in line.to_str().unwrap_or("").split(',') {
                let kind = range.split(';').next().unwrap_or("").trim();
                let is = |other: &str| kind.eq_ignore_ascii_case(other);
                json |= is("application/problem+json") || is("application/json");
                text |= is("text/plain");
            }
        }
        if text && !json {
            Self::Text
        } else {
            Self::Problem
        }
    }
}

/// The answer to a proxy. `details` adds the deciding policy and the reason as headers, which many proxies copy to the client.
pub(crate) fn to_proxy(decided: &Decided, flavour: Flavour, details: bool) -> Response<Body> {
    let denied = decided.status != 200;
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    set_verdict_headers(headers, decided, details);
    let body = match flavour {
        Flavour::ForwardAuth { body } if denied => denial_body(headers, decided, body),
        Flavour::ForwardAuth { .. } => String::new(),
        Flavour::AuthRequest => {
            headers.insert(STATUS, HeaderValue::from(decided.status));
            String::new()
        }
    };
    let verdict = StatusCode::from_u16(decided.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let status = match flavour {
        Flavour::AuthRequest if denied => StatusCode::FORBIDDEN,
        Flavour::AuthRequest | Flavour::ForwardAuth { .. } => verdict,
    };
    headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    *response.status_mut() = status;
    *response.body_mut() = Body::from(body);
    response
}

/// The answer to `/v1/decide`: always 200, the verdict is in the body and in the headers.
pub(crate) fn to_service(decided: &Decided, details: bool) -> Response<Body> {
    let body = serde_json::to_vec(&DecideAnswer::of(decided)).unwrap_or_default();
    let mut response = Response::new(Body::empty());
    set_verdict_headers(response.headers_mut(), decided, details);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
        .headers_mut()
        .insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    *response.body_mut() = Body::from(body);
    response
}

fn set_verdict_headers(headers: &mut HeaderMap, decided: &Decided, details: bool) {
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        DECISION,
        HeaderValue::from_static(decided.decision.as_str()),
    );
    if let Some(seconds) = decided.retry_after_secs {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    let fields = RateLimitFields::of(decided);
    insert_text(headers, RATE_LIMIT, fields.limits);
    insert_text(headers, RATE_LIMIT_POLICY, fields.policies);
    if details {
        headers.insert(REASON, HeaderValue::from_static(decided.reason.as_str()));
        let name = deciding_policy_name(decided).map(printable);
        insert_text(headers, POLICY, name.unwrap_or_default());
    }
}

/// Adds a header, unless its value is empty or too large.
fn insert_text(headers: &mut HeaderMap, name: HeaderName, value: String) {
    if (1..=LARGEST_FIELD).contains(&value.len())
        && let Ok(value) = HeaderValue::try_from(value)
    {
        headers.insert(name, value);
    }
}

/// The name of the policy whose outcome became the request's own.
pub(crate) fn deciding_policy_name(decided: &Decided) -> Option<&str> {
    let policy = decided.deciding_policy()?.policy;
    let row = decided.program().policy(policy)?;
    Some(&row.name)
}

/// The values of `RateLimit` and `RateLimit-Policy`.
#[derive(Debug, Default)]
struct RateLimitFields {
    limits: String,
    policies: String,
}

impl RateLimitFields {
    /// Every window of every policy that let the request pass, or those of the policy that refused it, as far as they fit.
    /// Nothing under shadow (a client would back off from a limit nobody enforces) and nothing of a policy whose backend
    /// failed (no counter was read); an identity denial names the limit but no count.
    fn of(decided: &Decided) -> Self {
        let mut fields = Self::default();
        if decided.program().enforcement() == Enforcement::Shadow {
            return fields;
        }
        let shown = match decided.stopped_by {
            Some(index) => decided.policies.get(index..=index).unwrap_or_default(),
            None => &decided.policies,
        };
        for outcome in shown {
            match outcome.decision {
                Decision::FailedOpen | Decision::FailedClosed => continue,
                Decision::Allowed
                | Decision::Denied
                | Decision::ShadowDenied
                | Decision::NotApplied => {}
            }
            let Some(row) = decided.program().policy(outcome.policy) else {
                continue;
            };
            for (kind, window) in windows_of(row) {
                let left = state_of(outcome, kind)
                    .map(|state| (state.remaining, seconds_until_reset(decided, state)));
                fields.add(&row.name, kind, window, left);
            }
        }
        fields
    }

    /// Adds one window: its limit, and what is `left` of it until when.
    fn add(
        &mut self,
        policy: &str,
        kind: WindowKind,
        window: WindowOperand,
        left: Option<(u64, u64)>,
    ) {
        let name = format!("\"{}-{}\"", printable(policy), kind.as_str());
        let requests = window.requests.get().min(LARGEST_FIELD_INTEGER);
        let secs = window.length_ms.get() / 1000;
        let policy = format!("{name};q={requests};w={secs}");
        let limit = left.map_or_else(String::new, |(remaining, reset)| {
            let remaining = remaining.min(LARGEST_FIELD_INTEGER);
            format!("{name};r={remaining};t={reset}")
        });
        // Both or neither: a client looks a limit's policy up by its name.
        if fits(&self.policies, &policy) && fits(&self.limits, &limit) {
            append(&mut self.policies, &policy);
            append(&mut self.limits, &limit);
        }
    }
}

const LIST_SEPARATOR: &str = ", ";

const fn fits(list: &str, item: &str) -> bool {
    list.len() + LIST_SEPARATOR.len() + item.len() <= LARGEST_FIELD
}

fn append(list: &mut String, item: &str) {
    if !list.is_empty() && !item.is_empty() {
        list.push_str(LIST_SEPARATOR);
    }
    list.push_str(item);
}

fn windows_of(row: &PolicyRow) -> impl Iterator<Item = (WindowKind, WindowOperand)> {
    let burst = row.burst.map(|window| (WindowKind::Burst, window));
    burst
        .into_iter()
        .chain(row.sustained.map(|window| (WindowKind::Sustained, window)))
}

fn state_of(outcome: &PolicyOutcome, kind: WindowKind) -> Option<&WindowState> {
    match kind {
        WindowKind::Burst => outcome.burst.as_ref(),
        WindowKind::Sustained => outcome.sustained.as_ref(),
    }
}

/// Whole seconds until the window turns, rounded up as `Retry-After` is.
fn seconds_until_reset(decided: &Decided, state: &WindowState) -> u64 {
    state.reset.0.saturating_sub(decided.now.0).div_ceil(1000)
}

/// `name` as it may stand between the quotes of a structured-field string and in any header: printable ASCII without `"`, `\`
/// and `%`; every other byte is percent-encoded.
fn printable(name: &str) -> String {
    const KEPT_OUT: &percent_encoding::AsciiSet =
        &percent_encoding::CONTROLS.add(b'"').add(b'\\').add(b'%');
    percent_encoding::utf8_percent_encode(name, KEPT_OUT).to_string()
}

fn denial_body(headers: &mut HeaderMap, decided: &Decided, body: DenialBody) -> String {
    let detail = detail(decided.reason);
    match body {
        DenialBody::Text => {
            headers.insert(
                CONTENT_TYPE,
                HeaderValue::from_static("text/plain; charset=utf-8"),
            );
            format!("{detail}\n")
        }
        DenialBody::Problem => {
            headers.insert(
                CONTENT_TYPE,
                HeaderValue::from_static("application/problem+json"),
            );
            let problem = Problem {
                kind: problem_type(decided.reason),
                title: title(decided.reason),
                status: decided.status,
                detail,
                reason: decided.reason.as_str(),
                retry_after: decided.retry_after_secs,
                violated_policies: deciding_policy_name(decided).into_iter().collect(),
            };
            serde_json::to_string(&problem).unwrap_or_default()
        }
    }
}

/// RFC 9457, with the members of the `RateLimit` draft and our own.
#[derive(Serialize)]
struct Problem<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    detail: &'static str,
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u32>,
    #[serde(rename = "violated-policies")]
    violated_policies: Vec<&'a str>,
}

/// Exhaustion has a registered type. A backend failure must not borrow the one for reduced capacity, which means overload.
const fn problem_type(reason: Reason) -> &'static str {
    match reason {
        Reason::BurstQuotaExhausted | Reason::SustainedQuotaExhausted => {
            "https://iana.org/assignments/http-problem-types#quota-exceeded"
        }
        Reason::SelectorIdentityMissing | Reason::SelectorIdentityInvalid => {
            "urn:quota:problem:identity"
        }
        Reason::BackendTimeout | Reason::BackendUnavailable | Reason::BackendError => {
            "urn:quota:problem:backend-failure"
        }
        Reason::Allowed | Reason::NotApplied => "about:blank",
    }
}

const fn title(reason: Reason) -> &'static str {
    match reason {
        Reason::BurstQuotaExhausted | Reason::SustainedQuotaExhausted => "Quota exceeded",
        Reason::SelectorIdentityMissing | Reason::SelectorIdentityInvalid => {
            "Request identity required"
        }
        Reason::BackendTimeout | Reason::BackendUnavailable | Reason::BackendError => {
            "Quota backend failure"
        }
        Reason::Allowed | Reason::NotApplied => "Admitted",
    }
}

const fn detail(reason: Reason) -> &'static str {
    match reason {
        Reason::BurstQuotaExhausted => {
            "The burst quota is used up; retry after the time in Retry-After."
        }
        Reason::SustainedQuotaExhausted => {
            "The sustained quota is used up; retry after the time in Retry-After."
        }
        Reason::SelectorIdentityMissing => {
            "The request lacks the identity its quota is counted by."
        }
        Reason::SelectorIdentityInvalid => {
            "The identity the request's quota is counted by is malformed."
        }
        Reason::BackendTimeout => "The quota backend did not answer in time.",
        Reason::BackendUnavailable => "The quota backend cannot be reached.",
        Reason::BackendError => "The quota backend failed.",
        Reason::Allowed | Reason::NotApplied => "The request is admitted.",
    }
}

/// The body of `/v1/decide`.
#[derive(Serialize)]
struct DecideAnswer<'a> {
    decision: &'static str,
    reason: &'static str,
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u32>,
    policies: Vec<PolicyAnswer<'a>>,
}

/// One evaluated policy.
#[derive(Serialize)]
struct PolicyAnswer<'a> {
    policy: &'a str,
    decision: &'static str,
    reason: &'static str,
    backend_mode: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<WindowAnswer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sustained: Option<WindowAnswer>,
}

/// One counted window.
#[derive(Serialize)]
struct WindowAnswer {
    limit: u64,
    remaining: u64,
    window_secs: u64,
    /// When the window turns, in Unix milliseconds.
    reset_unix_ms: u64,
    /// Whole seconds until then, rounded up.
    reset_after: u64,
}

impl<'a> DecideAnswer<'a> {
    fn of(decided: &'a Decided) -> Self {
        let window = |state: &WindowState| WindowAnswer {
            limit: state.limit,
            remaining: state.remaining,
            window_secs: state.length_ms / 1000,
            reset_unix_ms: state.reset.0,
            reset_after: seconds_until_reset(decided, state),
        };
        Self {
            decision: decided.decision.as_str(),
            reason: decided.reason.as_str(),
            status: decided.status,
            retry_after: decided.retry_after_secs,
            policies: decided
                .policies
                .iter()
                .enumerate()
                .map(|(index, outcome)| PolicyAnswer {
                    policy: decided.policy_name(index).unwrap_or(""),
                    decision: outcome.decision.as_str(),
                    reason: outcome.reason.as_str(),
                    backend_mode: decided.backend_mode_label(index).unwrap_or(""),
                    burst: outcome.burst.as_ref().map(window),
                    sustained: outcome.sustained.as_ref().map(window),
                })
                .collect(),
        }
    }
}

//! A decision whose counter exists allocates nothing, allowed, denied or not applied, whoever asks and however it holds its
//! headers.
#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something is not as expected"
)]

use http::{HeaderMap, HeaderValue};
use quota_runtime::Quota;
use quota_runtime::clock::UnixMillis;
use quota_runtime::outcome::{Decision, Reason};
use quota_runtime::request::{ClientAddress, HeaderLines, Request};

const POLICIES: &str = "
enabled: true
policies:
  - name: per-tenant
    selector: { route: true, tenant: { key: 'header:x-tenant-id' }, client: { key: client_ip } }
    burst: { requests: 3, window_secs: 10 }
    sustained: { requests: 100, window_secs: 3600 }
  - name: per-token
    selector: { token: { key: bearer_token } }
    burst: { requests: 1000, window_secs: 10 }
  - name: per-cookie
    route_allowlist: [checkout]
    selector: { route: true, tenant: { key: 'cookie:session' }, token: { key: 'query:key' }, client: { key: peer_ip } }
    burst: { requests: 1000, window_secs: 10 }
    sustained: { requests: 1000, window_secs: 60 }
";

const LINES: [(&str, &str); 3] = [
    ("x-tenant-id", "acme"),
    ("authorization", "Bearer abc"),
    ("cookie", "a=b; session=s1"),
];

fn open(text: &str) -> Quota {
    Quota::builder()
        .open_text("policies.yaml", text.as_bytes())
        .unwrap()
}

fn request<'a>(headers: &'a dyn HeaderLines) -> Request<'a> {
    Request {
        route: Some("checkout"),
        client: ClientAddress::parse("192.0.2.7"),
        query: Some(b"key=k%201"),
        headers,
    }
}

/// What is said of a request: decision, reason and the number of policies that were evaluated.
type Said = (Decision, Reason, usize);

/// Asserts that decisions after a first one, by every way to decide inside the call, say `expected` and allocate nothing.
#[track_caller]
fn check(quota: &Quota, request: &Request<'_>, expected: &[Said]) {
    let now = UnixMillis(5_000);
    let visit = || {
        quota
            .decide_inline_with(request, now, |_, outcome| {
                (outcome.decision, outcome.reason, outcome.policies.len())
            })
            .unwrap()
    };
    let share = || {
        let decided = quota.decide_inline(request, now).unwrap();
        (decided.decision, decided.reason, decided.policies.len())
    };
    let block = || {
        let decided = quota.decide_blocking(request, now);
        (decided.decision, decided.reason, decided.policies.len())
    };
    // The first decision makes the counter.
    assert_eq!(visit(), expected[0]);
    let mut said = Vec::with_capacity(expected.len());
    let ways: [&dyn Fn() -> Said; 3] = [&visit, &share, &block];
    let allocations = allocation_counter::measure(|| {
        for index in 1..expected.len() {
            said.push(ways[index % ways.len()]());
        }
    });
    assert_eq!(said, expected[1..]);
    assert_eq!(allocations.count_total, 0);
}

const ALLOWED: Said = (Decision::Allowed, Reason::Allowed, 3);
const DENIED: Said = (Decision::Denied, Reason::BurstQuotaExhausted, 1);

#[test]
fn a_decision_with_known_keys_allocates_nothing() {
    let expected = [ALLOWED, ALLOWED, ALLOWED, DENIED, DENIED, DENIED];
    check(&open(POLICIES), &request(&LINES), &expected);
    let mut map = HeaderMap::new();
    for (name, value) in LINES {
        map.append(name, HeaderValue::from_static(value));
    }
    check(&open(POLICIES), &request(&map), &expected);
}

#[test]
fn a_denial_in_shadow_allocates_nothing() {
    let quota = open(&format!("enforcement: shadow\n{POLICIES}"));
    let denied = (Decision::ShadowDenied, Reason::BurstQuotaExhausted, 3);
    let expected = [ALLOWED, ALLOWED, ALLOWED, denied, denied, denied];
    check(&quota, &request(&LINES), &expected);
}

#[test]
fn a_missing_or_invalid_identity_allocates_nothing() {
    let quota = open(POLICIES);
    let missing = (Decision::Denied, Reason::SelectorIdentityMissing, 1);
    check(&quota, &request(&LINES[1..].to_vec()), &[missing; 4]);
    let twice = [("x-tenant-id", "acme"), ("X-Tenant-Id", "other")];
    let invalid = (Decision::Denied, Reason::SelectorIdentityInvalid, 1);
    check(&quota, &request(&twice), &[invalid; 4]);
}

#[test]
fn a_request_no_policy_applies_to_allocates_nothing() {
    let quota = open(
        "enabled: true\npolicies: [{name: a, route_allowlist: [login], selector: {route: true}, burst: {requests: 1, window_secs: 1}}]",
    );
    let not_applied = (Decision::NotApplied, Reason::NotApplied, 0);
    check(&quota, &request(&LINES), &[not_applied; 4]);
}

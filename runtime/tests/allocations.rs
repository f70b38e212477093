//! A decision whose counter exists allocates nothing, allowed or denied (STYLE: decision path).

use quota_runtime::Quota;
use quota_runtime::clock::UnixMillis;
use quota_runtime::outcome::Decision;
use quota_runtime::request::{ClientAddress, Request};

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
    selector: { tenant: { key: 'cookie:session' }, token: { key: 'query:key' } }
    burst: { requests: 1000, window_secs: 10 }
";

#[test]
fn a_decision_with_known_keys_allocates_nothing() {
    let quota = Quota::builder()
        .open_text("policies.yaml", POLICIES.as_bytes())
        .unwrap();
    let headers = [
        ("x-tenant-id", "acme"),
        ("authorization", "Bearer abc"),
        ("cookie", "a=b; session=s1"),
    ];
    let request = Request {
        route: Some("checkout"),
        client: ClientAddress::parse("192.0.2.7"),
        query: Some(b"key=k%201"),
        headers: &headers,
    };
    let decide = || {
        quota
            .decide_inline_with(&request, UnixMillis(5_000), |_, outcome| {
                (outcome.decision, outcome.policies.len())
            })
            .unwrap()
    };
    assert_eq!(decide(), (Decision::Allowed, 3));
    let mut decided = [(Decision::NotApplied, 0); 4];
    let allocations = allocation_counter::measure(|| decided = std::array::from_fn(|_| decide()));
    assert_eq!(
        decided,
        [
            (Decision::Allowed, 3),
            (Decision::Allowed, 3),
            (Decision::Denied, 1),
            (Decision::Denied, 1),
        ]
    );
    assert_eq!(allocations.count_total, 0);
}

#[test]
fn a_request_no_policy_applies_to_allocates_nothing() {
    let quota = Quota::builder()
        .open_text(
            "policies.yaml",
            b"enabled: true\npolicies: [{name: a, route_allowlist: [login], selector: {route: true}, burst: {requests: 1, window_secs: 1}}]",
        )
        .unwrap();
    let headers: [(&str, &str); 0] = [];
    let request = Request {
        route: Some("other"),
        client: ClientAddress::Unknown,
        query: None,
        headers: &headers,
    };
    let decide = || {
        quota
            .decide_inline_with(&request, UnixMillis(5_000), |_, outcome| outcome.decision)
            .unwrap()
    };
    assert_eq!(decide(), Decision::NotApplied);
    let allocations = allocation_counter::measure(|| assert_eq!(decide(), Decision::NotApplied));
    assert_eq!(allocations.count_total, 0);
}

//! The decision listener: what goes in, what comes out, and whose word about the client is taken.

use std::net::{IpAddr, Ipv4Addr};

use http::Method;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use quota_test_support::client::{Answer, Connection, request};
use quota_test_support::services::Quotad;
use serde_json::{Value, json};

use crate::policy_file::{CENTURY, PolicyFile, per_tenant};

const KITE: [(&str, &str); 1] = [("x-tenant-id", "kite")];

/// One policy per client address.
fn per_client(requests: u64) -> String {
    format!(
        "\
enabled: true
policies:
  - name: per-client
    selector: {{client: {{key: client_ip}}}}
    sustained: {{requests: {requests}, window_secs: {CENTURY}}}
"
    )
}

fn start(policies: &str) -> (Quotad, PolicyFile) {
    let file = PolicyFile::new(policies);
    (Quotad::start(file.path()), file)
}

fn from_loopback(last: u8, quotad: &Quotad) -> Connection {
    Connection::open_from(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)), quotad.address())
}

/// An answer of the daemon itself, which no proxy may take for a verdict.
#[track_caller]
fn assert_no_verdict(answer: &Answer, status: u16) {
    assert_eq!(answer.status, status, "{answer:?}");
    for name in answer.headers.keys() {
        let name = name.as_str();
        assert!(
            !name.starts_with("x-quota-")
                && !name.starts_with("ratelimit")
                && name != "retry-after",
            "{answer:?}"
        );
    }
}

#[track_caller]
fn assert_verdict(answer: &Answer, status: u16, decision: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(answer.header("x-quota-decision"), Some(decision));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
}

#[test]
fn decide_tells_every_policy_with_its_windows() {
    let (quotad, _file) = start(&format!(
        "\
enabled: true
policies:
  - name: elsewhere
    route_allowlist: [search]
    selector: {{route: true}}
    burst: {{requests: 1, window_secs: 60}}
  - name: per-tenant
    selector: {{tenant: {{key: header:x-tenant-id}}}}
    burst: {{requests: 2, window_secs: {half}}}
    sustained: {{requests: 5, window_secs: {CENTURY}}}
  - name: per-key
    route_allowlist: [orders]
    selector: {{token: {{key: query:key}}, client: {{key: client_ip}}}}
    sustained: {{requests: 100, window_secs: {CENTURY}}}
",
        half = CENTURY / 2
    ));
    let asked = json!({
        "route": "orders",
        "client_ip": "192.0.2.1",
        "method": "POST",
        "uri": "/orders?key=k-1",
        "headers": [["X-Tenant-Id", "kite"], ["Accept", "*/*"]],
    });
    let mut client = quotad.connect();
    // Both windows turn at the same moment; half a century divides the years since 1970 as a whole one does, but once more.
    let window = |limit: u64, remaining: u64, window_secs: u64, reset_after: &Value| {
        json!({
            "limit": limit,
            "remaining": remaining,
            "window_secs": window_secs,
            "reset_unix_ms": 3_153_600_000_000_u64,
            "reset_after": reset_after,
        })
    };
    for left in [1, 0] {
        let answer = client.post_json("/v1/decide", &asked);
        assert_verdict(&answer, 200, "allowed");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.header("retry-after"), None);
        let told = answer.json();
        let reset_after = &told["policies"][0]["burst"]["reset_after"];
        let seconds = reset_after.as_u64().unwrap();
        assert!((1..=CENTURY / 2).contains(&seconds), "{seconds}");
        assert_eq!(
            told,
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
                        "burst": window(2, left, CENTURY / 2, reset_after),
                        "sustained": window(5, left + 3, CENTURY, reset_after),
                    },
                    {
                        "policy": "per-key",
                        "decision": "allowed",
                        "reason": "allowed",
                        "backend_mode": "in_memory",
                        "sustained": window(100, left + 98, CENTURY, reset_after),
                    },
                ],
            })
        );
    }

    let answer = client.post_json("/v1/decide", &asked);
    assert_verdict(&answer, 200, "denied");
    let told = answer.json();
    let retry_after = &told["retry_after"];
    assert_eq!(
        answer.header("retry-after"),
        Some(retry_after.to_string().as_str())
    );
    assert_eq!(
        told,
        json!({
            "decision": "denied",
            "reason": "burst_quota_exhausted",
            "status": 429,
            "retry_after": retry_after,
            "policies": [{
                "policy": "per-tenant",
                "decision": "denied",
                "reason": "burst_quota_exhausted",
                "backend_mode": "in_memory",
                "burst": window(2, 0, CENTURY / 2, retry_after),
                "sustained": window(5, 3, CENTURY, retry_after),
            }],
        })
    );
}

#[test]
fn decide_needs_no_field() {
    let (quotad, _file) = start(&per_tenant(1));
    let mut client = quotad.connect();
    let missing = client.post_json("/v1/decide", &json!({}));
    assert_verdict(&missing, 200, "denied");
    assert_eq!(
        missing.json(),
        json!({
            "decision": "denied",
            "reason": "selector_identity_missing",
            "status": 429,
            "policies": [{
                "policy": "per-tenant",
                "decision": "denied",
                "reason": "selector_identity_missing",
                "backend_mode": "in_memory",
            }],
        })
    );
}

#[test]
fn decide_judges_repeated_lines_and_addresses_as_any_surface() {
    let (quotad, _file) = start(&format!(
        "{}  - name: per-client
    selector: {{client: {{key: client_ip}}}}
    sustained: {{requests: 3, window_secs: {CENTURY}}}
",
        per_tenant(100)
    ));
    let mut client = quotad.connect();
    let mut reason = |asked: Value| {
        client.post_json("/v1/decide", &asked).json()["reason"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let kite = ["x-tenant-id", "kite"];
    let ask = |address: &str| json!({"headers": [kite], "client_ip": address});
    assert_eq!(
        reason(json!({"headers": [kite, ["X-TENANT-ID", "heron"]], "client_ip": "::1"})),
        "selector_identity_invalid"
    );
    assert_eq!(
        reason(json!({"headers": [kite, kite]})),
        "selector_identity_missing"
    );
    assert_eq!(reason(ask("192.0.2.1:80")), "selector_identity_invalid");
    // Three spellings of one client.
    assert_eq!(reason(ask("192.0.2.1")), "allowed");
    assert_eq!(reason(ask("::ffff:192.0.2.1")), "allowed");
    assert_eq!(reason(ask("::ffff:c000:201")), "allowed");
    assert_eq!(reason(ask("192.0.2.1")), "sustained_quota_exhausted");
}

#[test]
fn a_request_no_policy_speaks_of_is_admitted_without_outcomes() {
    let not_applied = json!({
        "decision": "not_applied",
        "reason": "not_applied",
        "status": 200,
        "policies": [],
    });
    let elsewhere = format!(
        "\
enabled: true
policies:
  - name: elsewhere
    route_allowlist: [search]
    selector: {{tenant: {{key: header:x-tenant-id}}}}
    sustained: {{requests: 1, window_secs: {CENTURY}}}
"
    );
    for policies in [elsewhere.as_str(), "enabled: false\n"] {
        let (quotad, _file) = start(policies);
        let mut client = quotad.connect();
        let answer = client.post_json("/v1/decide", &json!({"route": "orders"}));
        assert_verdict(&answer, 200, "not_applied");
        assert_eq!(answer.json(), not_applied);
        let answer = client.get("/v1/forward-auth/orders", &[]);
        assert_verdict(&answer, 200, "not_applied");
        assert_eq!(answer.header("ratelimit"), None);
    }
}

#[test]
fn what_is_no_request_to_decide_is_no_verdict() {
    let (quotad, _file) = start(&per_tenant(1));
    let mut client = quotad.connect();
    for body in [
        "",
        "{",
        "[]",
        "\"text\"",
        r#"{"route": 1}"#,
        r#"{"rout": "orders"}"#,
        r#"{"headers": {"x-tenant-id": "kite"}}"#,
        r#"{"headers": [["x-tenant-id"]]}"#,
        "{} {}",
    ] {
        let answer = client.send(request(Method::POST, "/v1/decide", &[], body.to_owned()));
        assert_no_verdict(&answer, 400);
    }
    // An identity in a broken body is not told to whoever reads the answer.
    let body = r#"{"headers": [["x-tenant-id", "kite-0815"], 5]}"#.to_owned();
    let answer = client.send(request(Method::POST, "/v1/decide", &[], body));
    assert_no_verdict(&answer, 400);
    assert!(!answer.body.contains("kite"), "{answer:?}");
    assert!(answer.body.contains("line 1, column"), "{answer:?}");

    let answer = client.get("/v1/decide", &[]);
    assert_no_verdict(&answer, 405);
    assert_eq!(answer.header("allow"), Some("POST"));
    for uri in [
        "/",
        "/v1",
        "/v2/decide",
        "/v1/forward-auth",
        "/v1/forward-auth/",
        "/v1/forward-auth/a/b",
        "/v1/auth-request/",
        "/metrics",
        "/admin/runtime",
    ] {
        assert_no_verdict(&client.get(uri, &KITE), 404);
    }
    assert_eq!(
        quotad
            .metrics()
            .sum("impulse_quota_policy_outcomes_total", &[]),
        Some(0.0)
    );
}

#[test]
fn forward_auth_answers_any_method_with_the_verdict_as_its_status() {
    let (quotad, _file) = start(&per_tenant(9));
    let mut client = quotad.connect();
    let methods = [
        "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND", "BREW",
    ];
    for (method, left) in methods.iter().zip((0..9).rev()) {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let answer = client.request(method, "/v1/forward-auth/orders", &KITE);
        assert_verdict(&answer, 200, "allowed");
        assert_eq!(answer.body, "");
        assert_eq!(answer.header("content-length"), Some("0"));
        assert_eq!(answer.header("retry-after"), None);
        let limits = answer.header("ratelimit").unwrap();
        assert!(
            limits.starts_with(&format!("\"per-tenant-sustained\";r={left};t=")),
            "{limits}"
        );
        assert_eq!(
            answer.header("ratelimit-policy"),
            Some(format!("\"per-tenant-sustained\";q=9;w={CENTURY}").as_str())
        );
    }

    let refused = client.get("/v1/forward-auth/orders", &KITE);
    assert_verdict(&refused, 429, "denied");
    let retry_after = refused.header("retry-after").unwrap();
    assert_eq!(
        refused.header("ratelimit"),
        Some(format!("\"per-tenant-sustained\";r=0;t={retry_after}").as_str())
    );
    assert_eq!(
        refused.header("content-type"),
        Some("application/problem+json")
    );
    let problem = refused.json();
    assert_eq!(
        problem["type"],
        "https://iana.org/assignments/http-problem-types#quota-exceeded"
    );
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["reason"], "sustained_quota_exhausted");
    assert_eq!(problem["retry_after"].to_string(), retry_after);
    assert_eq!(problem["violated-policies"], json!(["per-tenant"]));

    let head = client.request(Method::HEAD, "/v1/forward-auth/orders", &KITE);
    assert_verdict(&head, 429, "denied");
    assert_eq!(head.body, "");
    let text = [KITE[0], ("accept", "text/plain, */*;q=0.1")];
    let refused = client.get("/v1/forward-auth/orders", &text);
    assert_verdict(&refused, 429, "denied");
    assert_eq!(
        refused.header("content-type"),
        Some("text/plain; charset=utf-8")
    );
    assert!(refused.body.ends_with('\n'), "{refused:?}");
}

#[test]
fn auth_request_refuses_as_nginx_can_take_it() {
    let (quotad, _file) = start(&per_tenant(1));
    let mut client = quotad.connect();
    let allowed = client.get("/v1/auth-request/orders", &KITE);
    assert_verdict(&allowed, 200, "allowed");
    assert_eq!(allowed.header("x-quota-status"), Some("200"));
    assert_eq!(allowed.body, "");
    assert!(allowed.header("ratelimit").is_some());

    let refused = client.get("/v1/auth-request/orders", &KITE);
    assert_verdict(&refused, 403, "denied");
    assert_eq!(refused.header("x-quota-status"), Some("429"));
    assert_eq!(refused.body, "");
    assert_eq!(refused.header("content-length"), Some("0"));
    assert!(refused.header("retry-after").is_some());

    let nobody = client.get("/v1/auth-request/orders", &[]);
    assert_verdict(&nobody, 403, "denied");
    assert_eq!(nobody.header("x-quota-status"), Some("429"));
    assert_eq!(nobody.header("retry-after"), None);
    assert_eq!(nobody.header("ratelimit"), None);
    assert!(nobody.header("ratelimit-policy").is_some());
}

#[test]
fn a_backend_failure_is_503_without_counts_or_admitted_without_counts() {
    let full = |failure_policy: &str| {
        format!(
            "backend_failure_policy: {failure_policy}\nbackend: {{kind: in_memory, max_entries: 1}}\n{}",
            per_tenant(5)
        )
    };
    for (failure_policy, status, decision) in [
        ("fail_closed", 503, "failed_closed"),
        ("fail_open", 200, "failed_open"),
    ] {
        let (quotad, _file) = start(&full(failure_policy));
        let mut client = quotad.connect();
        assert_verdict(&client.get("/v1/forward-auth/a", &KITE), 200, "allowed");
        let heron = [("x-tenant-id", "heron")];
        let failed = client.get("/v1/forward-auth/a", &heron);
        assert_verdict(&failed, status, decision);
        for name in ["retry-after", "ratelimit", "ratelimit-policy"] {
            assert_eq!(failed.header(name), None);
        }
        if status == 503 {
            let problem = failed.json();
            assert_eq!(problem["type"], "urn:quota:problem:backend-failure");
            assert_eq!(problem["reason"], "backend_unavailable");
        }
        let told = client
            .post_json(
                "/v1/decide",
                &json!({"headers": [["x-tenant-id", "heron"]]}),
            )
            .json();
        assert_eq!(
            told,
            json!({
                "decision": decision,
                "reason": "backend_unavailable",
                "status": status,
                "policies": [{
                    "policy": "per-tenant",
                    "decision": decision,
                    "reason": "backend_unavailable",
                    "backend_mode": "in_memory",
                }],
            })
        );
        // Missing identity is a denial even while the backend fails.
        assert_verdict(&client.get("/v1/forward-auth/a", &[]), 429, "denied");
    }
}

#[test]
fn shadow_denials_are_told_to_the_proxy_and_not_to_the_client() {
    let (quotad, _file) = start(&format!("enforcement: shadow\n{}", per_tenant(1)));
    let mut client = quotad.connect();
    for (headers, decision) in [
        (&KITE[..], "allowed"),
        (&KITE[..], "shadow_denied"),
        (&[], "shadow_denied"),
    ] {
        let answer = client.get("/v1/forward-auth/a", headers);
        assert_verdict(&answer, 200, decision);
        for name in ["retry-after", "ratelimit", "ratelimit-policy"] {
            assert_eq!(answer.header(name), None);
        }
    }
}

#[test]
fn each_surface_reads_its_own_header_family() {
    let policies = format!(
        "\
enabled: true
policies:
  - name: per-key
    selector: {{token: {{key: query:key}}}}
    sustained: {{requests: 1, window_secs: {CENTURY}}}
"
    );
    let (quotad, _file) = start(&policies);
    let mut client = quotad.connect();
    let mut status = |uri: &str, headers: &[(&str, &str)]| client.get(uri, headers).status;
    let forward_auth = "/v1/forward-auth/a?key=of-the-question-itself";
    let auth_request = "/v1/auth-request/a?key=of-the-question-itself";

    let forwarded = ("x-forwarded-uri", "/orders?key=forwarded");
    let original = ("x-original-uri", "/orders?key=original");
    assert_eq!(status(forward_auth, &[forwarded, original]), 200);
    assert_eq!(status(auth_request, &[forwarded, original]), 200);
    assert_eq!(status(forward_auth, &[forwarded]), 429);
    assert_eq!(status(auth_request, &[original]), 403);
    // Without the URI its query is missing: an identity that is missing, not an error, and not the question's own.
    for (uri, headers) in [
        (forward_auth, &[original][..]),
        (auth_request, &[forwarded]),
        (forward_auth, &[]),
        (auth_request, &[]),
        (forward_auth, &[("x-forwarded-uri", "/orders")]),
    ] {
        let answer = client.get(uri, headers);
        assert_eq!(answer.header("x-quota-decision"), Some("denied"));
        assert_eq!(answer.header("retry-after"), None, "{headers:?}");
    }
}

#[test]
fn the_route_is_the_decoded_segment() {
    let (quotad, _file) = start(&format!(
        "\
enabled: true
policies:
  - name: one
    route_allowlist: ['a b/ü']
    selector: {{route: true}}
    sustained: {{requests: 1, window_secs: {CENTURY}}}
"
    ));
    let mut client = quotad.connect();
    assert_verdict(
        &client.get("/v1/forward-auth/a%20b%2F%C3%BC", &[]),
        200,
        "allowed",
    );
    assert_verdict(
        &client.get("/v1/forward-auth/%20a%20b%2f%c3%bc%20?route=other", &[]),
        429,
        "denied",
    );
    assert_verdict(&client.get("/v1/forward-auth/a", &[]), 200, "not_applied");
    // A blank segment is a request without a route.
    assert_verdict(&client.get("/v1/forward-auth/%20", &[]), 200, "not_applied");
    assert_no_verdict(&client.get("/v1/forward-auth/%FF", &[]), 400);
}

#[test]
fn policy_names_cannot_break_out_of_headers() {
    let name = "a\\\"b;c,d\\r\\nX-Injected: 1 % ü";
    let file = PolicyFile::new(&format!(
        "\
enabled: true
policies:
  - name: \"{name}\"
    selector: {{tenant: {{key: header:x-tenant-id}}}}
    sustained: {{requests: 1, window_secs: {CENTURY}}}
"
    ));
    let quotad = Quotad::start_with(file.path(), &["--expose-details"]);
    let mut client = quotad.connect();
    let shown = "a%22b;c,d%0D%0AX-Injected: 1 %25 %C3%BC";
    for (status, decision) in [(200, "allowed"), (429, "denied")] {
        let answer = client.get("/v1/forward-auth/a", &KITE);
        assert_verdict(&answer, status, decision);
        assert_eq!(answer.header("x-injected"), None);
        assert_eq!(answer.header("x-quota-policy"), Some(shown));
        assert_eq!(
            answer.header("ratelimit-policy"),
            Some(format!("\"{shown}-sustained\";q=1;w={CENTURY}").as_str())
        );
    }
}

#[test]
fn details_are_told_only_if_asked_for() {
    let file = PolicyFile::new(&per_tenant(1));
    for (args, policy, reason) in [
        (&[][..], None, None),
        (
            &["--expose-details"],
            Some("per-tenant"),
            Some("selector_identity_missing"),
        ),
    ] {
        let quotad = Quotad::start_with(file.path(), args);
        let mut client = quotad.connect();
        for uri in ["/v1/forward-auth/a", "/v1/auth-request/a"] {
            let refused = client.get(uri, &[]);
            assert_eq!(refused.header("x-quota-policy"), policy);
            assert_eq!(refused.header("x-quota-reason"), reason);
        }
    }
}

#[test]
fn a_trusted_peer_names_the_client_and_never_is_it() {
    let (quotad, _file) = start(&per_client(2));
    let mut client = quotad.connect();
    let mut ask = |lines: &[&str]| {
        let headers: Vec<_> = lines
            .iter()
            .map(|line| ("x-forwarded-for", *line))
            .collect();
        let answer = client.get("/v1/forward-auth/a", &headers);
        let retry = answer.header("retry-after").is_some();
        (answer.status, retry)
    };
    const ALLOWED: (u16, bool) = (200, false);
    const EXHAUSTED: (u16, bool) = (429, true);
    const NO_IDENTITY: (u16, bool) = (429, false);
    for nobody in [&[][..], &[""], &[" ", ""]] {
        assert_eq!(ask(nobody), NO_IDENTITY, "{nobody:?}");
    }
    // The right end is what the proxy wrote; what stands left of it is the client's word.
    assert_eq!(ask(&["192.0.2.1"]), ALLOWED);
    assert_eq!(ask(&["198.51.100.1, 192.0.2.1:4711"]), ALLOWED);
    assert_eq!(ask(&["198.51.100.2", "192.0.2.1"]), EXHAUSTED);
    assert_eq!(ask(&["nonsense, ::ffff:192.0.2.1"]), EXHAUSTED);
    // Trusted addresses are passed over on the way to the left; a malformed one ends the walk.
    assert_eq!(ask(&["192.0.2.1, 127.0.0.9"]), EXHAUSTED);
    assert_eq!(ask(&["192.0.2.1, nonsense"]), NO_IDENTITY);
    assert_eq!(ask(&["192.0.2.1, nonsense, 127.0.0.9"]), NO_IDENTITY);
    assert_eq!(ask(&["[2001:db8::1]:80"]), ALLOWED);
    assert_eq!(ask(&["2001:DB8:0::1"]), ALLOWED);
    assert_eq!(ask(&["2001:db8::1"]), EXHAUSTED);
}

#[test]
fn an_untrusted_peer_is_the_client_whatever_it_forwards() {
    let file = PolicyFile::new(&format!(
        "{}  - name: per-key
    route_allowlist: [by-key]
    selector: {{token: {{key: query:key}}}}
    sustained: {{requests: 100, window_secs: {CENTURY}}}
",
        per_client(2)
    ));
    let quotad = Quotad::start_with(file.path(), &["--trusted-proxy", "127.0.0.1/32"]);
    let mut proxy = from_loopback(1, &quotad);
    let mut stranger = from_loopback(2, &quotad);
    let forged = [
        ("x-forwarded-for", "192.0.2.1"),
        ("x-real-ip", "192.0.2.2"),
        ("forwarded", "for=192.0.2.3"),
        ("x-forwarded-uri", "/?key=k"),
        ("x-original-uri", "/?key=k"),
    ];
    assert_verdict(&stranger.get("/v1/forward-auth/a", &forged), 200, "allowed");
    assert_verdict(&stranger.get("/v1/auth-request/a", &[]), 200, "allowed");
    assert_verdict(&stranger.get("/v1/forward-auth/a", &forged), 429, "denied");
    // The same client, as a proxy names it.
    let named = [("x-forwarded-for", "127.0.0.2")];
    assert_verdict(&proxy.get("/v1/forward-auth/a", &named), 429, "denied");
    assert_verdict(&proxy.get("/v1/forward-auth/a", &forged), 200, "allowed");

    // Its forwarded URI is not read either.
    let mut third = from_loopback(3, &quotad);
    for uri in ["/v1/forward-auth/by-key", "/v1/auth-request/by-key"] {
        let refused = third.get(uri, &forged);
        assert_eq!(refused.header("x-quota-decision"), Some("denied"));
        assert_eq!(refused.header("retry-after"), None);
    }
    // The daemon's operators hear of it.
    assert_eq!(
        quotad
            .metrics()
            .sum("quotad_untrusted_forwarding_total", &[]),
        Some(4.0)
    );
    let warnings = quotad.events();
    let warnings = warnings.iter().filter(|event| event["level"] == "WARN");
    assert_eq!(warnings.count(), 1);
    // Nor may it ask for others.
    let asked = json!({"client_ip": "192.0.2.9"});
    assert_no_verdict(&third.post_json("/v1/decide", &asked), 403);
    assert_verdict(&proxy.post_json("/v1/decide", &asked), 200, "allowed");
}

#[test]
fn nobody_is_trusted_if_asked_so() {
    let file = PolicyFile::new(&per_client(1));
    let socket = file.folder().join("decide.sock");
    let unix = format!("unix:{}", socket.display());
    let args = [
        "--trusted-proxy",
        "none",
        "--listen",
        "127.0.0.1:0",
        "--listen",
        &unix,
    ];
    let quotad = Quotad::start_with(file.path(), &args);
    let tcp = quotad.listening()[0].parse().unwrap();
    let named = [("x-forwarded-for", "192.0.2.1")];
    let mut client = Connection::open(tcp);
    assert_verdict(&client.get("/v1/forward-auth/a", &named), 200, "allowed");
    assert_verdict(&client.get("/v1/forward-auth/a", &[]), 429, "denied");
    // A peer without an address whose word is not taken is nobody.
    let mut client = Connection::open_unix(&socket);
    let refused = client.get("/v1/forward-auth/a", &named);
    assert_verdict(&refused, 429, "denied");
    assert_eq!(refused.header("retry-after"), None);
}

#[test]
fn peers_on_unix_sockets_are_trusted() {
    let file = PolicyFile::new(&per_client(1));
    let socket = file.folder().join("decide.sock");
    let unix = format!("unix:{}", socket.display());
    let args = ["--trusted-proxy", "192.0.2.0/24", "--listen", &unix];
    let quotad = Quotad::start_with(file.path(), &args);
    let mut client = Connection::open_unix(&socket);
    let named = [("x-forwarded-for", "198.51.100.1, 192.0.2.1")];
    assert_verdict(&client.get("/v1/forward-auth/a", &named), 200, "allowed");
    let named = [("x-forwarded-for", "198.51.100.1")];
    assert_verdict(&client.get("/v1/forward-auth/a", &named), 429, "denied");
    drop(quotad);
}

#[test]
fn earlier_policies_stay_charged_when_a_later_one_denies() {
    let (quotad, _file) = start(&format!(
        "\
enabled: true
policies:
  - name: all
    selector: {{route: true}}
    sustained: {{requests: 10, window_secs: {CENTURY}}}
  - name: each
    selector: {{tenant: {{key: header:x-tenant-id}}}}
    sustained: {{requests: 1, window_secs: {CENTURY}}}
"
    ));
    let mut client = quotad.connect();
    let left = |answer: &Answer| {
        let limits = answer.header("ratelimit").unwrap().to_owned();
        limits.split(";t=").next().unwrap().to_owned()
    };
    let allowed = client.get("/v1/forward-auth/a", &KITE);
    assert_eq!(left(&allowed), "\"all-sustained\";r=9");
    // The fields speak of the policy that refused.
    let refused = client.get("/v1/forward-auth/a", &KITE);
    assert_eq!(refused.status, 429);
    assert_eq!(left(&refused), "\"each-sustained\";r=0");
    let heron = client.get("/v1/forward-auth/a", &[("x-tenant-id", "heron")]);
    assert_eq!(left(&heron), "\"all-sustained\";r=7");
}

#[test]
fn http_2_without_tls_is_spoken_too() {
    let (quotad, _file) = start(&per_tenant(20));
    let address = quotad.address();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let statuses = runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .unwrap();
        tokio::spawn(connection);
        // Many at once on one connection.
        let mut asked = tokio::task::JoinSet::new();
        for _ in 0..30 {
            let mut sender = sender.clone();
            let request = http::Request::builder()
                .uri(format!("http://{address}/v1/forward-auth/a"))
                .header(KITE[0].0, KITE[0].1)
                .body(Empty::<Bytes>::new())
                .unwrap();
            asked.spawn(async move {
                let answer = sender.send_request(request).await.unwrap();
                let (parts, body) = answer.into_parts();
                body.collect().await.unwrap();
                parts.status.as_u16()
            });
        }
        asked.join_all().await
    });
    let count = |of| statuses.iter().filter(|status| **status == of).count();
    assert_eq!((count(200), count(429)), (20, 10));
}

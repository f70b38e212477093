//! nginx with the recipe of `examples/proxies/nginx` in front of an echo backend, quotad deciding.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use http::Method;
use quota_test_support::client::{Answer, Connection, request};
use quota_test_support::services::{
    Echo, Nginx, Quotad, Relay, ReservedAddress, find_or_skip, wait_for,
};

use crate::policy_file::{CENTURY, PolicyFile, per_tenant};

const TENANT: &str = "x-tenant-id";

/// The recipe as users copy it.
struct Recipe {
    quota: String,
}

impl Recipe {
    fn shipped() -> Self {
        Self {
            quota: example("quota.conf"),
        }
    }

    /// Timeouts no busy machine runs into: those of the recipe let a request pass, which is right but not what most tests ask.
    fn patient() -> Self {
        Self::shipped()
            .with("proxy_connect_timeout 50ms;", "proxy_connect_timeout 30s;")
            .with("proxy_read_timeout    150ms;", "proxy_read_timeout    30s;")
    }

    #[track_caller]
    fn with(mut self, from: &str, to: &str) -> Self {
        assert_eq!(
            self.quota.matches(from).count(),
            1,
            "the recipe says `{from}` once"
        );
        self.quota = self.quota.replace(from, to);
        self
    }

    fn start(self, program: &Path, quotad: SocketAddr, backend: SocketAddr) -> Nginx {
        let address = ReservedAddress::reserve();
        let recipe = self
            .with("server 127.0.0.1:9100;", &format!("server {quotad};"))
            .with("server 127.0.0.1:9200;", &format!("server {backend};"))
            .with(
                "listen 127.0.0.1:8080;",
                &format!("listen {};", address.get()),
            );
        let main = example("nginx.conf");
        let files = [("nginx.conf", &*main), ("quota.conf", &*recipe.quota)];
        Nginx::start(program, &files, address)
    }
}

fn example(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/proxies/nginx");
    fs::read_to_string(folder.join(name)).unwrap()
}

/// nginx, quotad on `policies`, and the backend.
struct Stack {
    nginx: Nginx,
    quotad: Quotad,
    _echo: Echo,
    policies: PolicyFile,
}

impl Stack {
    #[track_caller]
    fn start(policies: &str) -> Option<Self> {
        Self::start_with(policies, &[], Recipe::patient())
    }

    #[track_caller]
    fn start_with(policies: &str, args: &[&str], recipe: Recipe) -> Option<Self> {
        let program = find_or_skip("nginx")?;
        let policies = PolicyFile::new(policies);
        let quotad = Quotad::start_with(policies.path(), args);
        let echo = Echo::start();
        let nginx = recipe.start(&program, quotad.address(), echo.address);
        Some(Self {
            nginx,
            quotad,
            _echo: echo,
            policies,
        })
    }

    #[track_caller]
    fn get(&self, uri: &str, headers: &[(&str, &str)]) -> Answer {
        self.nginx.connect().get(uri, headers)
    }
}

/// What reached the backend.
#[track_caller]
fn backend_saw(answer: &Answer, field: &str) -> String {
    assert_eq!(
        answer.header("content-type"),
        Some("application/json"),
        "{answer:?}"
    );
    answer.json()[field].as_str().unwrap().to_owned()
}

#[track_caller]
fn assert_passed(answer: &Answer) {
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(backend_saw(answer, "method"), "GET");
}

#[test]
fn allowed_requests_reach_the_backend_and_exhausted_ones_get_429() {
    let Some(stack) = Stack::start(&per_tenant(2)) else {
        return;
    };
    let kite = [(TENANT, "kite")];
    for remaining in [1, 0] {
        let answer = stack.get("/api/orders", &kite);
        assert_passed(&answer);
        assert_eq!(backend_saw(&answer, "uri"), "/api/orders");
        let limits = answer.header("ratelimit").unwrap();
        assert!(
            limits.starts_with(&format!("\"per-tenant-sustained\";r={remaining};t=")),
            "{limits}"
        );
        assert_eq!(
            answer.header("ratelimit-policy"),
            Some(format!("\"per-tenant-sustained\";q=2;w={CENTURY}").as_str())
        );
        assert_eq!(answer.header("retry-after"), None);
    }

    let refused = stack.get("/api/orders", &kite);
    assert_eq!(refused.status, 429);
    let retry_after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=CENTURY).contains(&retry_after), "{retry_after}");
    assert_eq!(
        refused.header("ratelimit"),
        Some(format!("\"per-tenant-sustained\";r=0;t={retry_after}").as_str())
    );
    assert_eq!(
        refused.header("ratelimit-policy"),
        Some(format!("\"per-tenant-sustained\";q=2;w={CENTURY}").as_str())
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
    assert_eq!(problem["decision"], "denied");

    assert_passed(&stack.get("/api/orders", &[(TENANT, "heron")]));
    assert_eq!(stack.nginx.log(), "");
}

#[test]
fn a_request_without_identity_gets_429_and_no_retry_after() {
    let Some(stack) = Stack::start(&per_tenant(2)) else {
        return;
    };
    let oversized = "a".repeat(257);
    let nobody: &[(&str, &str)] = &[];
    for headers in [
        nobody,
        &[(TENANT, " ")],
        &[(TENANT, &oversized)],
        &[(TENANT, "kite"), (TENANT, "heron")],
    ] {
        let refused = stack.get("/api/orders", headers);
        assert_eq!(refused.status, 429, "{headers:?}");
        assert_eq!(refused.header("retry-after"), None);
        assert_eq!(refused.header("ratelimit"), None);
        assert_eq!(
            refused.header("ratelimit-policy"),
            Some(format!("\"per-tenant-sustained\";q=2;w={CENTURY}").as_str())
        );
        assert_eq!(refused.json()["type"], "urn:quota:problem:identity");
    }
}

#[test]
fn refusals_of_the_backend_itself_pass_untouched() {
    let Some(stack) = Stack::start(&per_tenant(100)) else {
        return;
    };
    for status in [401, 403, 404, 429, 500, 503] {
        let uri = format!("/api/status/{status}");
        let answer = stack.get(&uri, &[(TENANT, "kite")]);
        assert_eq!(answer.status, status);
        assert_eq!(backend_saw(&answer, "uri"), uri);
        assert_eq!(answer.header("retry-after"), None);
        assert!(answer.header("ratelimit").is_some());
    }
}

#[test]
fn a_refusal_of_nginx_itself_stays_what_it_is() {
    let recipe = Recipe::patient().with(
        "    location /api/ {",
        "    location /private/ { deny all; }\n    location /api/ {",
    );
    let Some(stack) = Stack::start_with(&per_tenant(100), &[], recipe) else {
        return;
    };
    let refused = stack.get("/private/", &[(TENANT, "kite")]);
    assert_eq!(refused.status, 403);
    assert_eq!(refused.header("retry-after"), None);
    assert_eq!(refused.header("ratelimit"), None);
}

#[test]
fn head_is_decided_and_answered_without_a_body() {
    let Some(stack) = Stack::start(&per_tenant(1)) else {
        return;
    };
    let mut client = stack.nginx.connect();
    let kite = [(TENANT, "kite")];
    let allowed = client.request(Method::HEAD, "/api/", &kite);
    assert_eq!((allowed.status, allowed.body.as_str()), (200, ""));
    let refused = client.request(Method::HEAD, "/api/", &kite);
    assert_eq!((refused.status, refused.body.as_str()), (429, ""));
    assert!(refused.header("retry-after").is_some());
}

#[test]
fn bodies_reach_the_backend() {
    let Some(stack) = Stack::start(&per_tenant(3)) else {
        return;
    };
    let mut client = stack.nginx.connect();
    // The larger one does not fit nginx's buffer in memory.
    for length in [5, 200_000] {
        let body = "b".repeat(length);
        let headers = [(TENANT, "kite")];
        let answer = client.send(request(Method::POST, "/api/", &headers, body.clone()));
        assert_eq!(answer.status, 200);
        assert_eq!(backend_saw(&answer, "method"), "POST");
        assert!(backend_saw(&answer, "body") == body);
    }
}

#[test]
fn the_path_reaches_the_backend_as_it_was_sent() {
    let Some(stack) = Stack::start(&per_tenant(10)) else {
        return;
    };
    for uri in ["/api/a%2Fb/c%20d?e=f%2Fg&h", "/api/a//b/../c?x=1+2"] {
        let answer = stack.get(uri, &[(TENANT, "kite")]);
        assert_eq!(backend_saw(&answer, "uri"), uri);
    }
}

#[test]
fn identities_in_the_query_are_those_of_the_request() {
    let Some(stack) = Stack::start(&format!(
        "\
enabled: true
policies:
  - name: per-key
    selector: {{token: {{key: query:api_key}}}}
    sustained: {{requests: 1, window_secs: {CENTURY}}}
"
    )) else {
        return;
    };
    let forged = [("x-original-uri", "/api/?api_key=other")];
    assert_passed(&stack.get("/api/?api_key=a%2Fb", &[]));
    assert_eq!(stack.get("/api/?x=1&api_key=a/b", &forged).status, 429);
    assert_passed(&stack.get("/api/?api_key=c", &forged));
    let missing = stack.get("/api/", &forged);
    assert_eq!(missing.status, 429);
    assert_eq!(missing.header("retry-after"), None);
}

#[test]
fn a_client_cannot_name_another_client_route_or_request() {
    let policies = format!(
        "\
enabled: true
policies:
  - name: per-client
    route_allowlist: [api]
    selector: {{route: true, client: {{key: client_ip}}}}
    sustained: {{requests: 2, window_secs: {CENTURY}}}
"
    );
    let Some(stack) = Stack::start_with(
        &policies,
        &["--trusted-proxy", "127.0.0.1/32"],
        Recipe::patient(),
    ) else {
        return;
    };
    let from = |last| {
        let address = IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
        Connection::open_from(address, stack.nginx.address())
    };
    let forgeries: [&[(&str, &str)]; 7] = [
        &[("x-forwarded-for", "198.51.100.1")],
        &[
            ("x-forwarded-for", "198.51.100.2"),
            ("x-forwarded-for", "198.51.100.3"),
        ],
        &[
            ("x-real-ip", "198.51.100.4"),
            ("forwarded", "for=198.51.100.4"),
        ],
        &[
            ("x-forwarded-uri", "/v1/auth-request/other"),
            ("x-forwarded-method", "BREW"),
        ],
        &[("x-original-uri", "/other"), ("x-original-method", "BREW")],
        &[("x-quota-status", "200"), ("x-quota-decision", "allowed")],
        &[("x-forwarded-for", "nonsense")],
    ];
    let mut second = from(2);
    assert_eq!(second.get("/api/", &[]).status, 200);
    assert_eq!(second.get("/api/", &[]).status, 200);
    for forgery in forgeries {
        assert_eq!(second.get("/api/", forgery).status, 429, "{forgery:?}");
    }
    // The route stands in nginx's configuration and cannot be chosen; the place where it is asked for cannot be called.
    assert_eq!(second.get("/api/?route=other", &[]).status, 429);
    assert_eq!(second.get("/_quota/other", &[]).status, 404);

    let mut third = from(3);
    for forgery in [forgeries[0], forgeries[6]] {
        assert_eq!(third.get("/api/", forgery).status, 200, "{forgery:?}");
    }
    assert_eq!(third.get("/api/", &[]).status, 429);
}

#[test]
fn many_questions_share_one_connection() {
    let Some(program) = find_or_skip("nginx") else {
        return;
    };
    let policies = PolicyFile::new(&per_tenant(5));
    let quotad = Quotad::start(policies.path());
    let echo = Echo::start();
    let relay = Relay::start(quotad.address());
    let nginx = Recipe::patient().start(&program, relay.address, echo.address);

    let mut client = nginx.connect();
    let statuses = |client: &mut Connection, headers: &[(&str, &str)], count: usize| {
        (0..count)
            .map(|_| client.get("/api/", headers).status)
            .collect::<Vec<_>>()
    };
    assert_eq!(statuses(&mut client, &[(TENANT, "kite")], 5), [200; 5]);
    assert_eq!(statuses(&mut client, &[(TENANT, "kite")], 40), [429; 40]);
    assert_eq!(statuses(&mut client, &[], 40), [429; 40]);
    assert_eq!(relay.accepted(), 1);
    assert_eq!(nginx.log(), "");
}

#[test]
fn requests_pass_while_quotad_is_down_and_are_decided_again_when_it_is_back() {
    let Some(mut stack) = Stack::start_with(&per_tenant(1), &[], Recipe::shipped()) else {
        return;
    };
    let kite = [(TENANT, "kite")];
    let address = stack.quotad.address();
    stack.quotad.process().kill();
    for _ in 0..3 {
        let since = Instant::now();
        let answer = stack.get("/api/", &kite);
        assert_passed(&answer);
        assert_eq!(answer.header("ratelimit"), None);
        assert!(since.elapsed() < Duration::from_secs(1));
    }

    let listen = address.to_string();
    stack.quotad = Quotad::start_with(stack.policies.path(), &["--listen", &listen]);
    wait_for("a decision after the restart", || {
        (stack.get("/api/", &kite).status == 429).then_some(())
    });
}

#[test]
fn requests_pass_while_quotad_does_not_answer() {
    let Some(mut stack) = Stack::start_with(&per_tenant(1), &[], Recipe::shipped()) else {
        return;
    };
    // Connections are still accepted: only the time limit helps.
    stack.quotad.process().stop();
    let since = Instant::now();
    assert_passed(&stack.get("/api/", &[]));
    assert!(since.elapsed() < Duration::from_secs(1));
}

#[test]
fn without_the_line_that_lets_them_pass_requests_are_refused_while_quotad_is_down() {
    let recipe = Recipe::shipped().with("error_page 502 504 = @quota_unreachable;", "");
    let Some(mut stack) = Stack::start_with(&per_tenant(1), &[], recipe) else {
        return;
    };
    stack.quotad.process().kill();
    let since = Instant::now();
    let refused = stack.get("/api/", &[(TENANT, "kite")]);
    assert_eq!(refused.status, 500);
    assert_eq!(refused.header("retry-after"), None);
    assert!(since.elapsed() < Duration::from_secs(1));
}

/// A store of one bucket: the second tenant finds it full.
fn full_store(settings: &str) -> String {
    format!(
        "{settings}\nbackend: {{kind: in_memory, max_entries: 1}}\n{}",
        per_tenant(2)
    )
}

#[test]
fn a_failure_of_the_counter_backend_is_503_under_fail_closed() {
    let Some(stack) = Stack::start(&full_store("backend_failure_policy: fail_closed")) else {
        return;
    };
    assert_passed(&stack.get("/api/", &[(TENANT, "kite")]));
    let refused = stack.get("/api/", &[(TENANT, "heron")]);
    assert_eq!(refused.status, 503);
    for header in ["retry-after", "ratelimit", "ratelimit-policy"] {
        assert_eq!(refused.header(header), None);
    }
    let problem = refused.json();
    assert_eq!(problem["type"], "urn:quota:problem:backend-failure");
    assert_eq!(problem["decision"], "failed_closed");
    // The key that is known goes on.
    assert_passed(&stack.get("/api/", &[(TENANT, "kite")]));
}

#[test]
fn a_failure_of_the_counter_backend_admits_under_fail_open() {
    let Some(stack) = Stack::start(&full_store("backend_failure_policy: fail_open")) else {
        return;
    };
    for tenant in ["kite", "heron", "heron", "heron"] {
        assert_passed(&stack.get("/api/", &[(TENANT, tenant)]));
    }
}

#[test]
fn shadow_mode_never_rejects() {
    let Some(stack) = Stack::start(&full_store("enforcement: shadow")) else {
        return;
    };
    let denials: [&[(&str, &str)]; 5] = [
        &[(TENANT, "kite")],
        &[(TENANT, "kite")],
        &[(TENANT, "kite")],
        &[(TENANT, "heron")],
        &[],
    ];
    for headers in denials {
        let answer = stack.get("/api/", headers);
        assert_passed(&answer);
        assert_eq!(answer.header("ratelimit"), None);
        assert_eq!(answer.header("retry-after"), None);
    }
    let metrics = stack.quotad.metrics();
    let count = |decision, reason| {
        metrics.sum(
            "impulse_quota_policy_outcomes_total",
            &[("decision", decision), ("reason", reason)],
        )
    };
    assert_eq!(count("allowed", "allowed"), Some(2.0));
    assert_eq!(
        count("shadow_denied", "sustained_quota_exhausted"),
        Some(1.0)
    );
    assert_eq!(
        count("shadow_denied", "selector_identity_missing"),
        Some(1.0)
    );
    assert_eq!(count("failed_open", "backend_unavailable"), Some(1.0));
}

//! The admin listener: what operators and their monitoring read.

use std::process::Command;

use http::Method;
use quota_test_support::client::Connection;
use quota_test_support::commands::built;
use quota_test_support::services::{Process, Quotad};
use serde_json::{Value, json};

use crate::policy_file::{CENTURY, PolicyFile, per_tenant};

const OUTCOMES: &str = "impulse_quota_policy_outcomes_total";
const HEALTH: &str = "impulse_quota_backend_health_total";

/// A store of one bucket.
fn full_store() -> String {
    format!(
        "backend: {{kind: in_memory, max_entries: 1}}\n{}",
        per_tenant(100)
    )
}

fn status_of(client: &mut Connection, tenant: &str) -> u16 {
    client
        .get("/v1/forward-auth/orders", &[("x-tenant-id", tenant)])
        .status
}

#[test]
fn the_runtime_view_has_the_whole_quota_object() {
    let file = PolicyFile::new(
        "\
enabled: true
enforcement: shadow
backend_failure_policy: fail_open
backend: {kind: in_memory, max_entries: 7, key_prefix: ' ours '}
policies:
  - name: ' per-tenant '
    route_allowlist: [search, ' orders', search]
    selector:
      route: true
      tenant: {key: 'Header: X-Tenant-Id '}
      client: {key: peer_ip}
    burst: {requests: 5, window_secs: 1}
    sustained: {requests: 100, window_secs: 60}
  - name: per-token
    selector: {token: {key: Bearer_Token}}
    burst: {requests: 3, window_secs: 60}
",
    );
    let quotad = Quotad::start(file.path());
    let answer = quotad.admin("/admin/runtime");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let runtime = answer.json();

    let mut quotac = Command::new(&built().quotac);
    quotac.args(["check", "--format", "json"]).arg(file.path());
    let checked = Process::run("quotac", &mut quotac).stdout;
    let checked: Value = serde_json::from_str(&checked).unwrap();
    let digest = &checked["files"][0]["program_digest"];
    assert_eq!(digest.as_str().unwrap().len(), 64);

    assert_eq!(
        runtime["quota"],
        json!({
            "enabled": true,
            "enforcement": "shadow",
            "backend_failure_policy": "fail_open",
            "active_backend": "in_memory",
            "backend_status": {
                "availability": "unknown",
                "degraded": false,
                "recent_errors": [],
            },
            "policies": [
                {
                    "name": "per-tenant",
                    "route_allowlist": ["orders", "search"],
                    "selector": {
                        "route": true,
                        "tenant": "header:x-tenant-id",
                        "client": "client_ip",
                    },
                    "burst": {"requests": 5, "window_secs": 1},
                    "sustained": {"requests": 100, "window_secs": 60},
                },
                {
                    "name": "per-token",
                    "route_allowlist": [],
                    "selector": {"route": false, "token": "bearer_token"},
                    "burst": {"requests": 3, "window_secs": 60},
                },
            ],
            "key_prefix": "ours",
            "plugin": {
                "name": "In memory",
                "version": env!("CARGO_PKG_VERSION"),
                "abi": runtime["quota"]["plugin"]["abi"],
            },
            "program_digest": digest,
            "generation": 1,
        })
    );
    let daemon = &runtime["daemon"];
    assert_eq!(daemon["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(
        daemon["policy_file"].as_str(),
        Some(file.path().to_str().unwrap())
    );
    assert_eq!(daemon["draining"], false);
    assert_eq!(daemon["last_reload"]["successful"], true);
    assert_eq!(daemon["last_reload"]["generation"], 1);
    assert_eq!(daemon["last_reload"]["diagnostics"], json!([]));
}

#[test]
fn health_follows_the_backend_and_recent_errors_stay() {
    let file = PolicyFile::new(&full_store());
    let quotad = Quotad::start(file.path());
    let mut client = quotad.connect();
    let status = || quotad.runtime()["quota"]["backend_status"].clone();

    assert_eq!(status_of(&mut client, "kite"), 200);
    let available = status();
    assert_eq!(available["availability"], "available");
    assert_eq!(available["degraded"], false);
    assert_eq!(available["health_reason"], "available");
    assert!(available["last_observed_at_unix_ms"].is_u64());
    assert_eq!(available["recent_errors"], json!([]));

    for heron in 0..10 {
        assert_eq!(status_of(&mut client, &format!("heron-{heron}")), 503);
    }
    let degraded = status();
    assert_eq!(degraded["availability"], "degraded");
    assert_eq!(degraded["degraded"], true);
    assert_eq!(degraded["health_reason"], "unavailable");
    let errors = degraded["recent_errors"].as_array().unwrap();
    assert_eq!(errors.len(), 8);
    for error in errors {
        assert_eq!(error["policy_name"], "per-tenant");
        assert_eq!(error["reason"], "unavailable");
    }
    let times: Vec<_> = errors
        .iter()
        .map(|error| error["observed_at_unix_ms"].as_u64().unwrap())
        .collect();
    assert!(
        times.is_sorted_by(|newer, older| newer >= older),
        "{times:?}"
    );

    // An identity denial says nothing of the backend; a healthy decision clears the state and keeps the errors.
    let missing = client.get("/v1/forward-auth/orders", &[]);
    assert_eq!(missing.status, 429);
    assert_eq!(status(), degraded);
    assert_eq!(status_of(&mut client, "kite"), 200);
    let well = status();
    assert_eq!(well["availability"], "available");
    assert_eq!(well["degraded"], false);
    assert_eq!(well["recent_errors"], degraded["recent_errors"]);
}

#[test]
fn a_disabled_file_shows_its_policies_and_counts_nothing() {
    let file = PolicyFile::new(&per_tenant(1).replace("enabled: true", "enabled: false"));
    let quotad = Quotad::start(file.path());
    let mut client = quotad.connect();
    for _ in 0..3 {
        assert_eq!(status_of(&mut client, "kite"), 200);
    }
    let quota = &quotad.runtime()["quota"];
    assert_eq!(quota["enabled"], false);
    assert_eq!(quota["policies"][0]["name"], "per-tenant");
    assert_eq!(
        quota["backend_status"],
        json!({"availability": "disabled", "degraded": false, "recent_errors": []})
    );
    let metrics = quotad.metrics();
    for family in [OUTCOMES, HEALTH] {
        assert!(metrics.sum(family, &[]).unwrap_or(0.0) == 0.0);
        assert_family(metrics.text(), family, "counter");
    }
}

/// The family is described, whether it has a sample or not.
#[track_caller]
fn assert_family(text: &str, family: &str, kind: &str) {
    let help = format!("# HELP {family} ");
    let described = text.lines().filter(|line| line.starts_with(&help)).count();
    let typed = format!("# TYPE {family} {kind}");
    let kinds = text.lines().filter(|line| *line == typed).count();
    assert_eq!((described, kinds), (1, 1), "{family}: {text}");
}

#[test]
fn every_family_is_described_before_its_first_sample() {
    let file = PolicyFile::new("enabled: false\n");
    let quotad = Quotad::start(file.path());
    let answer = quotad.admin("/metrics");
    assert_eq!(answer.status, 200);
    let content_type = answer.header("content-type").unwrap();
    assert!(
        content_type.starts_with("text/plain; version=0.0.4"),
        "{content_type}"
    );
    for (family, kind) in [
        (OUTCOMES, "counter"),
        (HEALTH, "counter"),
        ("quotad_http_rejections_total", "counter"),
        ("quotad_config_reloads_total", "counter"),
        ("quotad_config_last_reload_successful", "gauge"),
        (
            "quotad_config_last_reload_success_timestamp_seconds",
            "gauge",
        ),
        ("quotad_untrusted_forwarding_total", "counter"),
        ("quotad_build_info", "gauge"),
    ] {
        assert_family(&answer.body, family, kind);
    }
}

#[test]
fn outcomes_and_health_are_counted_with_their_labels() {
    let file = PolicyFile::new(&format!(
        "\
enabled: true
backend: {{kind: in_memory, max_entries: 1}}
policies:
  - name: 'one, \"two\"'
    route_allowlist: [orders]
    selector: {{route: true, tenant: {{key: header:x-tenant-id}}}}
    burst: {{requests: 2, window_secs: {CENTURY}}}
"
    ));
    let quotad = Quotad::start(file.path());
    let mut client = quotad.connect();
    let statuses = ["kite", "kite", "kite", "heron", " "].map(|name| status_of(&mut client, name));
    assert_eq!(statuses, [200, 200, 429, 503, 429]);
    let oversized = "k".repeat(257);
    assert_eq!(status_of(&mut client, &oversized), 429);
    assert_eq!(client.get("/v1/forward-auth/search", &[]).status, 200);

    let metrics = quotad.metrics();
    let counted = |family: &str, labels: [&str; 5]| -> Vec<(Vec<String>, f64)> {
        let mut counted: Vec<_> = metrics
            .labelled(family)
            .filter(|(_, value)| *value != 0.0)
            .map(|(of, value)| {
                let names = labels.iter().filter(|label| !label.is_empty());
                assert_eq!(of.len(), names.clone().count(), "{of:?}");
                (
                    names.map(|label| of[*label].clone()).collect::<Vec<_>>(),
                    value,
                )
            })
            .collect();
        counted.sort_by(|(a, _), (b, _)| a.cmp(b));
        counted
    };
    let row = |labels: &[&str], value: f64| {
        let labels = labels.iter().map(ToString::to_string).collect::<Vec<_>>();
        (labels, value)
    };
    let (policy, dimensions, kind) = ("one, \"two\"", "route+tenant", "in_memory");
    assert_eq!(
        counted(
            OUTCOMES,
            [
                "policy",
                "decision",
                "reason",
                "selector_dimensions",
                "backend_mode"
            ]
        ),
        [
            row(&["", "not_applied", "not_applied", "none", kind], 1.0),
            row(&[policy, "allowed", "allowed", dimensions, kind], 2.0),
            row(
                &[policy, "denied", "burst_quota_exhausted", dimensions, kind],
                1.0
            ),
            row(
                &[
                    policy,
                    "denied",
                    "selector_identity_invalid",
                    dimensions,
                    kind
                ],
                1.0
            ),
            row(
                &[
                    policy,
                    "denied",
                    "selector_identity_missing",
                    dimensions,
                    kind
                ],
                1.0
            ),
            row(
                &[
                    policy,
                    "failed_closed",
                    "backend_unavailable",
                    dimensions,
                    kind
                ],
                1.0
            ),
        ]
    );
    assert_eq!(
        counted(HEALTH, ["backend_mode", "reason", "", "", ""]),
        [
            row(&[kind, "available"], 3.0),
            row(&[kind, "unavailable"], 1.0)
        ]
    );
}

#[test]
fn probes_tell_alive_from_ready() {
    let file = PolicyFile::new(&full_store());
    let quotad = Quotad::start(file.path());
    let mut client = quotad.connect();
    assert_eq!(status_of(&mut client, "kite"), 200);
    assert_eq!(status_of(&mut client, "heron"), 503);
    // A backend in trouble takes no daemon out of service.
    for uri in ["/livez", "/healthz", "/readyz"] {
        assert_eq!(quotad.admin(uri).status, 200, "{uri}");
    }
    let verbose = quotad.admin("/readyz?verbose");
    assert_eq!(verbose.status, 200);
    assert_eq!(verbose.body.lines().count(), 4, "{verbose:?}");
    for check in [
        "[+] policy file in force",
        "[+] listeners bound",
        "[+] not draining",
    ] {
        assert!(verbose.body.contains(check), "{verbose:?}");
    }
}

#[test]
fn it_decides_nothing_and_changes_nothing() {
    let file = PolicyFile::new(&per_tenant(1));
    let quotad = Quotad::start(file.path());
    let mut admin = Connection::open(quotad.admin_address());
    for uri in ["/v1/decide", "/v1/forward-auth/a", "/nothing"] {
        let answer = admin.get(uri, &[("x-tenant-id", "kite")]);
        assert_eq!(answer.status, 404, "{uri}");
        assert_eq!(answer.header("x-quota-decision"), None);
    }
    for uri in ["/admin/runtime", "/metrics", "/readyz"] {
        assert_eq!(admin.request(Method::POST, uri, &[]).status, 405, "{uri}");
        let head = admin.request(Method::HEAD, uri, &[]);
        assert_eq!((head.status, head.body.as_str()), (200, ""), "{uri}");
    }
}

#[test]
fn no_identity_is_told_anywhere() {
    let file = PolicyFile::new(&format!(
        "{}  - name: per-token
    selector: {{token: {{key: bearer_token}}, client: {{key: client_ip}}}}
    sustained: {{requests: 1, window_secs: {CENTURY}}}
",
        per_tenant(100)
    ));
    let quotad = Quotad::start(file.path());
    let mut client = quotad.connect();
    let identities = [
        ("x-tenant-id", "tenant-kite-0815"),
        ("authorization", "Bearer token-kite-0816"),
        ("x-forwarded-for", "198.51.100.17"),
    ];
    let mut told = String::new();
    let malformed = ("authorization", "Basic token-kite-0816");
    for (expected, headers) in [
        (200, identities),
        (429, identities),
        (429, [identities[0], malformed, identities[2]]),
    ] {
        let answer = client.get("/v1/forward-auth/orders", &headers);
        assert_eq!(answer.status, expected);
        told += &format!("{answer:?}");
    }
    told += &quotad.admin("/metrics").body;
    told += &quotad.admin("/admin/runtime").body;
    told += &format!("{:?}", quotad.events());
    for secret in ["kite", "0815", "0816", "198.51.100.17"] {
        assert!(!told.contains(secret), "{secret}: {told}");
    }
}

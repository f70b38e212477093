//! What a scrape shows: the two families of contract §9, from before the first sample to after a reload.
#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something is not as expected"
)]

use quota_runtime::Quota;
use quota_runtime::clock::UnixMillis;
use quota_runtime::outcome::Decision;
use quota_runtime::request::{ClientAddress, Request};

const NOW: UnixMillis = UnixMillis(1_000_000);

fn open(text: &str) -> Quota {
    Quota::builder()
        .open_text("policies.yaml", text.as_bytes())
        .unwrap()
}

fn replace(quota: &Quota, text: &str) {
    quota
        .replace_text("policies.yaml", text.as_bytes())
        .unwrap();
}

/// Decides a request for `route` by `tenant`.
fn decide(quota: &Quota, route: Option<&str>, tenant: &str) -> Decision {
    let headers = [("x-tenant-id", tenant)];
    let request = Request {
        route,
        client: ClientAddress::Unknown,
        query: None,
        headers: &headers,
    };
    quota.decide_inline(&request, NOW).unwrap().decision
}

/// The samples that are not 0, sorted, each as it stands in the text.
fn counted(quota: &Quota) -> Vec<String> {
    let text = quota.render_metrics();
    let mut counted: Vec<_> = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.ends_with(" 0"))
        .map(str::to_owned)
        .collect();
    counted.sort();
    counted
}

/// A sample of the outcome family.
fn outcome(policy: &str, decision: &str, reason: &str, dimensions: &str, count: u64) -> String {
    format!(
        "impulse_quota_policy_outcomes_total{{backend_mode=\"in_memory\",decision=\"{decision}\",policy=\"{policy}\",reason=\"{reason}\",selector_dimensions=\"{dimensions}\"}} {count}"
    )
}

/// A sample of the health family.
fn health(reason: &str, count: u64) -> String {
    format!(
        "impulse_quota_backend_health_total{{backend_mode=\"in_memory\",reason=\"{reason}\"}} {count}"
    )
}

const PER_TENANT: &str = "
enabled: true
policies:
  - name: per-tenant
    route_allowlist: [login]
    selector: {route: true, tenant: {key: 'header:x-tenant-id'}}
    burst: {requests: 2, window_secs: 10}
";

#[test]
fn the_whole_text_before_the_first_request() {
    assert_eq!(
        open(PER_TENANT).render_metrics(),
        r#"# HELP impulse_quota_backend_health_total Backend evaluations by how the primary backend answered.
# TYPE impulse_quota_backend_health_total counter
impulse_quota_backend_health_total{backend_mode="in_memory",reason="available"} 0
impulse_quota_backend_health_total{backend_mode="in_memory",reason="unavailable"} 0
# HELP impulse_quota_policy_outcomes_total Evaluated policies by decision and reason.
# TYPE impulse_quota_policy_outcomes_total counter
impulse_quota_policy_outcomes_total{backend_mode="in_memory",decision="allowed",policy="per-tenant",reason="allowed",selector_dimensions="route+tenant"} 0
impulse_quota_policy_outcomes_total{backend_mode="in_memory",decision="denied",policy="per-tenant",reason="burst_quota_exhausted",selector_dimensions="route+tenant"} 0
impulse_quota_policy_outcomes_total{backend_mode="in_memory",decision="denied",policy="per-tenant",reason="selector_identity_invalid",selector_dimensions="route+tenant"} 0
impulse_quota_policy_outcomes_total{backend_mode="in_memory",decision="denied",policy="per-tenant",reason="selector_identity_missing",selector_dimensions="route+tenant"} 0
impulse_quota_policy_outcomes_total{backend_mode="in_memory",decision="failed_closed",policy="per-tenant",reason="backend_unavailable",selector_dimensions="route+tenant"} 0
impulse_quota_policy_outcomes_total{backend_mode="in_memory",decision="not_applied",policy="",reason="not_applied",selector_dimensions="none"} 0
"#
    );
}

#[test]
fn a_disabled_file_counts_nothing_and_shows_its_families_all_the_same() {
    let quota = open(&PER_TENANT.replace("enabled: true", "enabled: false"));
    assert_eq!(decide(&quota, Some("login"), "a"), Decision::NotApplied);
    assert_eq!(
        quota.render_metrics(),
        "# HELP impulse_quota_backend_health_total Backend evaluations by how the primary backend answered.
# TYPE impulse_quota_backend_health_total counter
# HELP impulse_quota_policy_outcomes_total Evaluated policies by decision and reason.
# TYPE impulse_quota_policy_outcomes_total counter
"
    );
}

#[test]
fn every_evaluated_policy_counts_once_and_only_backend_evaluations_count_as_health() {
    let quota = open(PER_TENANT);
    for expected in [Decision::Allowed, Decision::Allowed, Decision::Denied] {
        assert_eq!(decide(&quota, Some("login"), "a"), expected);
    }
    // No identity: denied, and no backend was asked.
    assert_eq!(decide(&quota, Some("login"), " "), Decision::Denied);
    let long = "v".repeat(257);
    assert_eq!(decide(&quota, Some("login"), &long), Decision::Denied);
    let burst = "burst_quota_exhausted";
    assert_eq!(
        counted(&quota),
        [
            health("available", 3),
            outcome("per-tenant", "allowed", "allowed", "route+tenant", 2),
            outcome("per-tenant", "denied", burst, "route+tenant", 1),
            outcome(
                "per-tenant",
                "denied",
                "selector_identity_invalid",
                "route+tenant",
                1
            ),
            outcome(
                "per-tenant",
                "denied",
                "selector_identity_missing",
                "route+tenant",
                1
            ),
        ]
    );
}

#[test]
fn a_request_no_policy_applies_to_counts_once_without_a_policy() {
    let quota = open(PER_TENANT);
    assert_eq!(decide(&quota, Some("pay"), "a"), Decision::NotApplied);
    assert_eq!(decide(&quota, None, "a"), Decision::NotApplied);
    let not_applied = outcome("", "not_applied", "not_applied", "none", 2);
    assert_eq!(counted(&quota), [not_applied]);
}

#[test]
fn every_policy_of_a_request_counts_those_after_a_denial_excepted() {
    let policy = |name: &str, requests| {
        format!(
            "  - {{name: {name}, selector: {{route: true}}, burst: {{requests: {requests}, window_secs: 10}}}}\n"
        )
    };
    let text = |settings: &str| {
        format!(
            "enabled: true\n{settings}\npolicies:\n{}{}{}",
            policy("a", 9),
            policy("b", 1),
            policy("c", 8)
        )
    };
    let quota = open(&text(""));
    for expected in [Decision::Allowed, Decision::Denied] {
        assert_eq!(decide(&quota, Some("login"), ""), expected);
    }
    let burst = "burst_quota_exhausted";
    let enforced = [
        health("available", 5),
        outcome("a", "allowed", "allowed", "route", 2),
        outcome("b", "allowed", "allowed", "route", 1),
        outcome("c", "allowed", "allowed", "route", 1),
        outcome("b", "denied", burst, "route", 1),
    ];
    assert_eq!(counted(&quota), enforced);

    // Under shadow the same policies count under other decisions; what was counted before stays.
    replace(&quota, &text("enforcement: shadow"));
    assert_eq!(decide(&quota, Some("login"), ""), Decision::ShadowDenied);
    assert_eq!(
        counted(&quota),
        [
            health("available", 8),
            outcome("a", "allowed", "allowed", "route", 3),
            outcome("b", "allowed", "allowed", "route", 1),
            outcome("c", "allowed", "allowed", "route", 2),
            outcome("b", "denied", burst, "route", 1),
            outcome("b", "shadow_denied", burst, "route", 1),
        ]
    );
}

#[test]
fn a_reload_keeps_the_counts_of_policies_it_keeps_and_drops_the_others() {
    let renamed = PER_TENANT.replace("name: per-tenant", "name: other");
    let both = format!(
        "{PER_TENANT}  - {{name: second, selector: {{route: true}}, burst: {{requests: 9, window_secs: 10}}}}\n"
    );
    let quota = open(&both);
    decide(&quota, Some("login"), "a");
    let first = |count| outcome("per-tenant", "allowed", "allowed", "route+tenant", count);
    let second = outcome("second", "allowed", "allowed", "route", 1);
    assert_eq!(counted(&quota), [health("available", 2), first(1), second]);

    replace(&quota, PER_TENANT);
    assert!(!quota.render_metrics().contains("second"));
    decide(&quota, Some("login"), "b");
    assert_eq!(counted(&quota), [health("available", 3), first(2)]);

    // One that comes back begins at 0.
    replace(&quota, &both);
    assert_eq!(counted(&quota), [health("available", 3), first(2)]);
    replace(&quota, &renamed);
    assert_eq!(counted(&quota), [health("available", 3)]);
    assert!(!quota.render_metrics().contains("per-tenant"));
}

#[test]
fn another_selector_begins_new_series() {
    let quota = open(PER_TENANT);
    decide(&quota, Some("login"), "a");
    replace(
        &quota,
        &PER_TENANT.replace("{route: true, tenant", "{tenant"),
    );
    assert!(!quota.render_metrics().contains("route+tenant"));
    decide(&quota, Some("login"), "a");
    let tenant = outcome("per-tenant", "allowed", "allowed", "tenant", 1);
    assert_eq!(counted(&quota), [health("available", 2), tenant]);
}

#[test]
fn dimensions_are_joined_in_their_order_and_names_are_escaped() {
    let quota = open(
        r#"
enabled: true
policies:
  - name: "say \"hi\\there\"\nfriend"
    selector: {client: {key: 'header:x-c'}, token: {key: 'header:x-k'}, tenant: {key: 'header:x-t'}, route: true}
    burst: {requests: 2, window_secs: 10}
"#,
    );
    let metrics = quota.render_metrics();
    let labels = r#"policy="say \"hi\\there\"\nfriend",reason="allowed",selector_dimensions="route+tenant+token+client"} 0"#;
    assert!(metrics.contains(labels), "{metrics}");
}

#[test]
fn a_file_of_very_many_policies_shows_only_what_was_counted() {
    let mut text = "enabled: true\npolicies:\n".to_owned();
    for index in 0..=quota_runtime::metrics::PRECREATED_POLICIES {
        text.push_str(&format!(
            "  - {{name: p{index}, route_allowlist: [r{index}], selector: {{route: true}}, burst: {{requests: 1, window_secs: 1}}}}\n"
        ));
    }
    let quota = open(&text);
    assert!(!quota.render_metrics().contains("policy=\"p"));
    assert_eq!(decide(&quota, Some("r7"), ""), Decision::Allowed);
    let sample = outcome("p7", "allowed", "allowed", "route", 1);
    assert_eq!(counted(&quota), [health("available", 1), sample]);
}

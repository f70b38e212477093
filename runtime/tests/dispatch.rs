//! Decisions over a remote backend: batches, failures, fallback, deadlines, places, health and metrics.
//!
//! The backend is linked in and says what each test scripted; a key prefix of its own gives each test a script of its own.
#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something is not as expected"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quota_runtime::backend::{BackendChange, BackendError};
use quota_runtime::clock::{Clock, ManualClock, UnixMillis};
use quota_runtime::health::Availability;
use quota_runtime::host::{SearchPath, zombies};
use quota_runtime::outcome::{Decision, Reason};
use quota_runtime::reload::PolicyFile;
use quota_runtime::request::{ClientAddress, Request};
use quota_runtime::{Decided, NotInline, OpenError, Quota};

use crate::support::{Say, Script};

const NOW: UnixMillis = UnixMillis(1_000_000);
/// Far longer than anything that is waited for takes.
const SURELY: Duration = Duration::from_secs(20);
const TENANT: [(&str, &str); 1] = [("x-tenant-id", "acme")];
const NO_HEADERS: [(&str, &str); 0] = [];

/// Three policies per tenant, `a`, `b` and `c`, that all apply.
const THREE: &str = "
policies:
  - name: a
    selector: {tenant: {key: 'header:x-tenant-id'}}
    burst: {requests: 10, window_secs: 1}
  - name: b
    selector: {tenant: {key: 'header:x-tenant-id'}}
    burst: {requests: 10, window_secs: 2}
  - name: c
    selector: {tenant: {key: 'header:x-tenant-id'}}
    burst: {requests: 10, window_secs: 3}
";

/// A file with these lines before its policies, on the scripted backend; its command timeout is long.
fn text(script: &Script, backend: &str, head: &str, policies: &str) -> String {
    let backend = if backend.is_empty() {
        "max_inflight: 8"
    } else {
        backend
    };
    format!(
        "enabled: true\nbackend: {{kind: scripted, key_prefix: '{}', command_timeout_ms: 60000, {backend}}}\n{head}{policies}",
        script.prefix()
    )
}

fn open(text: &str) -> Quota {
    Quota::builder()
        .register(&support::TOGETHER)
        .register(&support::SINGLE)
        .clock(Arc::new(ManualClock::new(NOW)))
        .ready_within(Duration::ZERO)
        .open_text("policies.yaml", text.as_bytes())
        .unwrap()
}

fn request<'a>(headers: &'a [(&'a str, &'a str); 1]) -> Request<'a> {
    Request {
        route: None,
        client: ClientAddress::Unknown,
        query: None,
        headers,
    }
}

fn decide(quota: &Quota) -> Decided {
    quota.decide_blocking(&request(&TENANT), quota.now())
}

/// Name, decision, reason and mode of every outcome.
fn outcomes(decided: &Decided) -> Vec<(&str, Decision, Reason, &str)> {
    let policies = decided.policies.iter().enumerate();
    policies
        .map(|(index, policy)| {
            (
                decided.policy_name(index).unwrap(),
                policy.decision,
                policy.reason,
                decided.backend_mode_label(index).unwrap(),
            )
        })
        .collect()
}

/// The samples of a family that are not 0, as `{labels} count`.
fn samples(quota: &Quota, family: &str) -> Vec<String> {
    let metrics = quota.render_metrics();
    let lines = metrics
        .lines()
        .filter_map(|line| line.strip_prefix(family))
        .filter(|line| !line.ends_with(" 0"));
    lines.map(str::to_owned).collect()
}

fn health(quota: &Quota) -> Vec<String> {
    samples(quota, "impulse_quota_backend_health_total")
}

#[test]
fn a_full_store_says_so_to_operators() {
    let text = "
enabled: true
backend: { kind: in_memory, max_entries: 1 }
policies:
  - { name: a, selector: { client: { key: client_ip } }, burst: { requests: 1, window_secs: 10 } }
";
    let quota = Quota::builder()
        .open_text("policies.yaml", text.as_bytes())
        .unwrap();
    let headers: [(&str, &str); 0] = [];
    let decide = |client| {
        let request = Request {
            route: None,
            client: ClientAddress::parse(client),
            query: None,
            headers: &headers,
        };
        let decided = quota.decide_inline(&request, UnixMillis(1_000)).unwrap();
        decided.status
    };
    assert_eq!((decide("198.18.0.1"), decide("198.18.0.2")), (200, 503));
    let status = quota.status().backend_status;
    assert_eq!(
        status.recent_errors[0].detail.as_deref(),
        Some("at capacity: every bucket is active, so new keys are refused")
    );
}

#[test]
fn every_check_of_a_request_is_asked() {
    let script = Script::new("together");
    let quota = open(&text(&script, "", "", THREE));
    let decided = decide(&quota);
    assert_eq!(decided.decision, Decision::Allowed);
    assert_eq!(decided.policies.len(), 3);
    assert_eq!(decided.policies[0].burst.unwrap().remaining, 9);
    assert_eq!(script.decided(), 3);
    assert_eq!(
        health(&quota),
        ["{backend_mode=\"scripted\",reason=\"available\"} 3"]
    );
}

#[test]
fn an_enforced_denial_leaves_later_policies_uncharged() {
    let script = Script::new("denial");
    let quota = open(&text(&script, "", "", THREE));
    script.say([Say::Allow, Say::Deny]);
    let decided = decide(&quota);
    assert_eq!((decided.status, decided.retry_after_secs), (429, Some(2)));
    assert_eq!(
        outcomes(&decided),
        [
            ("a", Decision::Allowed, Reason::Allowed, "scripted"),
            (
                "b",
                Decision::Denied,
                Reason::BurstQuotaExhausted,
                "scripted"
            ),
        ]
    );
    assert_eq!(script.decided(), 2);
}

#[test]
fn shadow_asks_for_every_policy_and_rejects_nothing() {
    let script = Script::new("shadow");
    let quota = open(&text(&script, "", "enforcement: shadow\n", THREE));
    script.say([Say::Deny, Say::Fail, Say::Allow]);
    let decided = decide(&quota);
    assert_eq!(decided.status, 200);
    assert_eq!(
        outcomes(&decided),
        [
            (
                "a",
                Decision::ShadowDenied,
                Reason::BurstQuotaExhausted,
                "scripted"
            ),
            ("b", Decision::FailedOpen, Reason::BackendError, "scripted"),
            ("c", Decision::Allowed, Reason::Allowed, "scripted"),
        ]
    );
    assert_eq!(script.decided(), 3);
}

#[test]
fn failing_closed_ends_the_request_and_degrades_until_the_next_decision() {
    let script = Script::new("closed");
    let quota = open(&text(&script, "", "", THREE));
    assert_eq!(
        quota.status().backend_status.availability,
        Availability::Unknown
    );
    script.say([Say::Allow, Say::Unavailable]);
    let decided = decide(&quota);
    assert_eq!((decided.status, decided.retry_after_secs), (503, None));
    assert_eq!(
        outcomes(&decided),
        [
            ("a", Decision::Allowed, Reason::Allowed, "scripted"),
            (
                "b",
                Decision::FailedClosed,
                Reason::BackendUnavailable,
                "scripted"
            ),
        ]
    );
    assert_eq!(script.decided(), 2);
    let status = quota.status().backend_status;
    assert_eq!(status.availability, Availability::Degraded);
    assert_eq!(status.health_reason, Some("unavailable"));
    assert_eq!(status.recent_errors[0].policy_name.as_deref(), Some("b"));
    assert_eq!(status.recent_errors[0].reason, "unavailable");
    assert_eq!(
        status.recent_errors[0].detail.as_deref(),
        Some("told to say Unavailable")
    );

    assert_eq!(decide(&quota).status, 200);
    let status = quota.status().backend_status;
    assert_eq!(status.availability, Availability::Available);
    assert!(!status.degraded);
    assert_eq!(status.last_observed_at_unix_ms, Some(NOW.0));
    assert_eq!(status.recent_errors.len(), 1);
    assert_eq!(
        health(&quota),
        [
            "{backend_mode=\"scripted\",reason=\"available\"} 4",
            "{backend_mode=\"scripted\",reason=\"unavailable\"} 1",
        ]
    );
}

#[test]
fn failing_open_admits_and_goes_on() {
    let script = Script::new("open");
    let head = "backend_failure_policy: fail_open\n";
    let quota = open(&text(&script, "", head, THREE));
    script.say([Say::Unavailable, Say::Allow, Say::Fail]);
    let decided = decide(&quota);
    assert_eq!((decided.status, decided.decision), (200, Decision::Allowed));
    assert_eq!(
        outcomes(&decided),
        [
            (
                "a",
                Decision::FailedOpen,
                Reason::BackendUnavailable,
                "scripted"
            ),
            ("b", Decision::Allowed, Reason::Allowed, "scripted"),
            ("c", Decision::FailedOpen, Reason::BackendError, "scripted"),
        ]
    );
    assert_eq!(script.decided(), 3);
    script.say([Say::Deny]);
    assert_eq!(decide(&quota).status, 429);
}

const FALLBACK: &str = "local_fallback: {max_entries: 100}\n";

#[test]
fn a_fallback_decides_after_unavailability_and_the_rest_is_asked_again() {
    let script = Script::new("fallback");
    let quota = open(&text(&script, "", FALLBACK, THREE));
    script.say([Say::Unavailable]);
    let decided = decide(&quota);
    let fallback = "scripted_local_fallback_backend_unavailable";
    assert_eq!(
        outcomes(&decided),
        [
            ("a", Decision::Allowed, Reason::Allowed, fallback),
            ("b", Decision::Allowed, Reason::Allowed, "scripted"),
            ("c", Decision::Allowed, Reason::Allowed, "scripted"),
        ]
    );
    assert_eq!(script.decided(), 3);
    assert_eq!(
        health(&quota),
        [
            "{backend_mode=\"scripted\",reason=\"available\"} 2",
            "{backend_mode=\"scripted_local_fallback_backend_unavailable\",reason=\"unavailable\"} 1",
        ]
    );
}

#[test]
fn a_fallback_counts_and_denies_on_its_own_and_survives_a_reload() {
    let script = Script::new("fallback-counts");
    let one = |limit: u64, entries: u64| {
        text(
            &script,
            "",
            &format!("local_fallback: {{max_entries: {entries}}}\n"),
            &format!(
                "policies: [{{name: a, selector: {{tenant: {{key: 'header:x-tenant-id'}}}}, burst: {{requests: {limit}, window_secs: 9}}}}]\n"
            ),
        )
    };
    let quota = open(&one(2, 100));
    script.always(Say::Unavailable);
    assert_eq!(decide(&quota).decision, Decision::Allowed);
    assert_eq!(decide(&quota).decision, Decision::Allowed);
    let denied = decide(&quota);
    assert_eq!(denied.status, 429);
    assert_eq!(
        denied.backend_mode_label(0),
        Some("scripted_local_fallback_backend_unavailable")
    );
    assert!(quota.status().backend_status.degraded);

    let replaced = quota
        .replace_text("policies.yaml", one(3, 50).as_bytes())
        .unwrap();
    assert_eq!(replaced.backend, BackendChange::Kept);
    assert_eq!(decide(&quota).decision, Decision::Allowed);
    assert_eq!(decide(&quota).decision, Decision::Denied);
}

#[test]
fn a_full_fallback_leaves_it_to_the_failure_policy() {
    let script = Script::new("fallback-full");
    let quota = open(&text(
        &script,
        "",
        "local_fallback: {max_entries: 1}\n",
        THREE,
    ));
    script.always(Say::Timeout);
    let decided = decide(&quota);
    assert_eq!(
        outcomes(&decided),
        [
            (
                "a",
                Decision::Allowed,
                Reason::Allowed,
                "scripted_local_fallback_backend_timeout"
            ),
            (
                "b",
                Decision::FailedClosed,
                Reason::BackendUnavailable,
                "scripted"
            ),
        ]
    );
    assert_eq!(
        health(&quota),
        [
            "{backend_mode=\"scripted\",reason=\"timeout\"} 1",
            "{backend_mode=\"scripted_local_fallback_backend_timeout\",reason=\"timeout\"} 1",
        ]
    );
}

#[test]
fn an_error_never_enters_the_fallback() {
    let script = Script::new("error");
    let quota = open(&text(&script, "", FALLBACK, THREE));
    script.say([Say::Fail]);
    let decided = decide(&quota);
    assert_eq!(
        outcomes(&decided),
        [(
            "a",
            Decision::FailedClosed,
            Reason::BackendError,
            "scripted"
        )]
    );
    assert_eq!(
        health(&quota),
        ["{backend_mode=\"scripted\",reason=\"error\"} 1"]
    );
}

#[tokio::test]
async fn checks_that_travel_together_time_out_together_and_late_answers_do_nothing() {
    let script = Script::new("silent");
    let text = text(&script, "", FALLBACK, THREE).replace("60000", "200");
    let quota = open(&text);
    script.say([Say::Allow, Say::Silence]);
    let decided = quota.decide(&request(&TENANT)).await;
    let fallback = "scripted_local_fallback_backend_timeout";
    // The fate of all three is unknown: each goes its own way.
    assert_eq!(
        outcomes(&decided),
        [
            ("a", Decision::Allowed, Reason::Allowed, fallback),
            ("b", Decision::Allowed, Reason::Allowed, fallback),
            ("c", Decision::Allowed, Reason::Allowed, fallback),
        ]
    );
    assert_eq!(script.decided(), 2);
    let before = health(&quota);
    script.release();
    script.until(|| script.silent() == 0);
    assert_eq!(health(&quota), before);
    assert_eq!(decide(&quota).decision, Decision::Allowed);
}

#[test]
fn checks_that_travel_alone_time_out_alone() {
    let script = Script::new("single");
    let text = text(&script, "", FALLBACK, THREE)
        .replace("60000", "200")
        .replace("kind: scripted", "kind: scripted_single");
    let quota = open(&text);
    script.say([Say::Allow, Say::Silence]);
    let decided = decide(&quota);
    let fallback = "scripted_single_local_fallback_backend_timeout";
    assert_eq!(
        outcomes(&decided),
        [
            ("a", Decision::Allowed, Reason::Allowed, "scripted_single"),
            ("b", Decision::Allowed, Reason::Allowed, fallback),
            ("c", Decision::Allowed, Reason::Allowed, "scripted_single"),
        ]
    );
    script.release();
}

#[test]
fn a_silent_backend_times_out_for_a_blocked_thread_too() {
    let script = Script::new("silent-blocking");
    let text = text(&script, "", "", THREE).replace("60000", "200");
    let quota = open(&text);
    script.say([Say::Silence]);
    let decided = decide(&quota);
    assert_eq!(
        outcomes(&decided),
        [(
            "a",
            Decision::FailedClosed,
            Reason::BackendTimeout,
            "scripted"
        )]
    );
    script.release();
}

#[tokio::test]
async fn requests_beyond_max_inflight_are_refused_at_once() {
    let script = Script::new("inflight");
    let quota = open(&text(&script, "max_inflight: 2", "", THREE));
    script.say([Say::Silence, Say::Silence]);
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let quota = quota.clone();
            tokio::spawn(async move { quota.decide(&request(&TENANT)).await.status })
        })
        .collect();
    while script.silent() < 2 {
        tokio::task::yield_now().await;
    }
    let decided = quota.decide(&request(&TENANT)).await;
    assert_eq!(
        outcomes(&decided),
        [(
            "a",
            Decision::FailedClosed,
            Reason::BackendUnavailable,
            "scripted"
        )]
    );
    let errors = quota.status().backend_status.recent_errors;
    assert_eq!(
        errors[0].detail.as_deref(),
        Some("as many requests are being evaluated as `max_inflight` allows: 2")
    );
    // One without an identity asks nothing and needs no place.
    let nobody = Request {
        headers: &NO_HEADERS,
        ..request(&TENANT)
    };
    assert_eq!(
        quota.decide(&nobody).await.reason,
        Reason::SelectorIdentityMissing
    );
    script.release();
    for task in waiting {
        assert_eq!(task.await.unwrap(), 200);
    }
    // Their places are free again.
    assert_eq!(quota.decide(&request(&TENANT)).await.status, 200);
    assert_eq!(script.decided(), 9);
}

#[tokio::test]
async fn a_decision_that_is_dropped_gives_its_place_back() {
    let script = Script::new("dropped");
    let quota = open(&text(&script, "max_inflight: 1", "", THREE));
    script.say([Say::Silence]);
    let task = {
        let quota = quota.clone();
        tokio::spawn(async move { quota.decide(&request(&TENANT)).await.status })
    };
    while script.silent() < 1 {
        tokio::task::yield_now().await;
    }
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    script.release();
    script.until(|| script.silent() == 0);
    assert_eq!(quota.decide(&request(&TENANT)).await.status, 200);
}

#[test]
fn an_identity_denial_asks_nothing_and_ends_the_request() {
    let script = Script::new("identity");
    let policies = format!(
        "{THREE}  - name: d\n    selector: {{token: {{key: bearer_token}}}}\n    burst: {{requests: 1, window_secs: 4}}\n  - name: e\n    selector: {{tenant: {{key: 'header:x-tenant-id'}}}}\n    burst: {{requests: 1, window_secs: 5}}\n"
    );
    let quota = open(&text(&script, "", "", &policies));
    let decided = decide(&quota);
    assert_eq!((decided.status, decided.retry_after_secs), (429, None));
    assert_eq!(decided.reason, Reason::SelectorIdentityMissing);
    assert_eq!(decided.policies.len(), 4);
    assert_eq!(script.decided(), 3);
    assert_eq!(
        health(&quota),
        ["{backend_mode=\"scripted\",reason=\"available\"} 3"]
    );

    let shadow = text(&script, "", "enforcement: shadow\n", &policies);
    quota
        .replace_text("policies.yaml", shadow.as_bytes())
        .unwrap();
    let decided = decide(&quota);
    assert_eq!(decided.decision, Decision::ShadowDenied);
    assert_eq!(decided.policies.len(), 5);
    assert_eq!(script.decided(), 3 + 4);
}

#[test]
fn a_repeated_denial_moves_no_health() {
    let script = Script::new("local");
    let quota = open(&text(&script, "", "", THREE));
    script.say([Say::Unavailable, Say::DenyLocally]);
    assert_eq!(decide(&quota).status, 503);
    let before = health(&quota);
    assert_eq!(decide(&quota).status, 429);
    assert!(quota.status().backend_status.degraded);
    assert_eq!(health(&quota), before);
    let outcomes = samples(&quota, "impulse_quota_policy_outcomes_total");
    assert!(outcomes.contains(
        &"{backend_mode=\"scripted\",decision=\"denied\",policy=\"a\",reason=\"burst_quota_exhausted\",selector_dimensions=\"tenant\"} 1".to_owned()
    ), "{outcomes:?}");
}

#[test]
fn a_remote_backend_is_not_inline() {
    let script = Script::new("not-inline");
    let quota = open(&text(&script, "", "", THREE));
    assert!(!quota.is_inline());
    assert_eq!(
        quota.decide_inline(&request(&TENANT), NOW).map(|_| ()),
        Err(NotInline)
    );
}

#[test]
fn series_a_file_can_reach_start_at_zero() {
    let script = Script::new("zero");
    let quota = open(&text(&script, "", FALLBACK, THREE));
    let metrics = quota.render_metrics();
    for sample in [
        "# TYPE impulse_quota_policy_outcomes_total counter",
        "# TYPE impulse_quota_backend_health_total counter",
        "impulse_quota_backend_health_total{backend_mode=\"scripted\",reason=\"timeout\"} 0",
        "impulse_quota_backend_health_total{backend_mode=\"scripted_local_fallback_backend_timeout\",reason=\"timeout\"} 0",
        "impulse_quota_policy_outcomes_total{backend_mode=\"scripted\",decision=\"denied\",policy=\"a\",reason=\"burst_quota_exhausted\",selector_dimensions=\"tenant\"} 0",
        "impulse_quota_policy_outcomes_total{backend_mode=\"scripted\",decision=\"failed_closed\",policy=\"a\",reason=\"backend_timeout\",selector_dimensions=\"tenant\"} 0",
        "impulse_quota_policy_outcomes_total{backend_mode=\"scripted\",decision=\"not_applied\",policy=\"\",reason=\"not_applied\",selector_dimensions=\"none\"} 0",
    ] {
        assert!(
            metrics.lines().any(|line| line == sample),
            "{sample}\n{metrics}"
        );
    }
    assert!(!metrics.contains("sustained_quota_exhausted"));
}

#[test]
fn a_disabled_file_shows_its_families_without_a_sample_and_counts_nothing() {
    let script = Script::new("disabled");
    let quota = open(&text(&script, "", "", THREE).replace("enabled: true", "enabled: false"));
    assert_eq!(decide(&quota).decision, Decision::NotApplied);
    let metrics = quota.render_metrics();
    for family in [
        "impulse_quota_policy_outcomes_total",
        "impulse_quota_backend_health_total",
    ] {
        assert!(metrics.contains(&format!("# HELP {family} ")));
        assert!(metrics.contains(&format!("# TYPE {family} counter\n")));
        assert!(!metrics.contains(&format!("{family}{{")));
    }
    let status = quota.status();
    assert_eq!(status.backend_status.availability, Availability::Disabled);
    assert_eq!(status.plugin, None);
    assert_eq!(script.instances(), 0);
}

#[test]
fn the_status_names_everything_but_credentials() {
    let script = Script::new("status");
    let quota = open(&text(
        &script,
        "max_inflight: 8, url: 'redis://user:hunter2@h:1/0'",
        FALLBACK,
        THREE,
    ));
    let status = serde_json::to_value(quota.status()).unwrap();
    assert_eq!(status["active_backend"], "scripted");
    assert_eq!(status["key_prefix"], "status");
    assert_eq!(
        status["local_fallback"]["key_prefix"],
        "impulse:quota:fallback"
    );
    assert_eq!(status["plugin"]["abi"], "1.0");
    assert_eq!(status["generation"], 1);
    assert_eq!(status["program_digest"].as_str().unwrap().len(), 64);
    assert_eq!(
        status["policies"][0]["selector"]["tenant"],
        "header:x-tenant-id"
    );
    assert_eq!(status["policies"][0]["burst"]["window_secs"], 1);
    assert!(status["policies"][0].get("sustained").is_none());
    let everything = format!(
        "{status} {quota:?} {:?} {:?} {}",
        decide(&quota),
        quota.program(),
        quota.render_metrics()
    );
    assert!(!everything.contains("hunter2") && !everything.contains("acme"));
}

#[test]
fn another_backend_starts_its_health_afresh_and_the_former_one_ends() {
    let (first, second) = (Script::new("first"), Script::new("second"));
    let quota = open(&text(&first, "", "", THREE));
    first.say([Say::Unavailable]);
    decide(&quota);
    assert!(quota.status().backend_status.degraded);
    let replaced = quota
        .replace_text("policies.yaml", text(&second, "", "", THREE).as_bytes())
        .unwrap();
    assert_eq!(replaced.backend, BackendChange::Created);
    let status = quota.status().backend_status;
    assert_eq!(status.availability, Availability::Unknown);
    assert!(status.recent_errors.is_empty());
    first.until(|| first.instances() == 0);
    assert_eq!(decide(&quota).status, 200);
    assert_eq!(second.decided(), 3);
}

#[test]
fn a_new_backend_that_is_not_available_is_not_taken() {
    let (first, second) = (Script::new("well"), Script::new("ill"));
    let quota = open(&text(&first, "", "", THREE));
    second.set_unavailable(true);
    let error = quota
        .replace_text("policies.yaml", text(&second, "", "", THREE).as_bytes())
        .unwrap_err();
    assert!(matches!(
        error,
        OpenError::Backend(BackendError::NotReady { .. })
    ));
    assert_eq!(quota.status().generation, 1);
    assert_eq!(decide(&quota).status, 200);
    assert_eq!(first.decided(), 3);
    second.until(|| second.instances() == 0);
    // At the start there is nothing to keep: it serves, and degrades.
    open(&text(&second, "", "", THREE));
}

#[test]
fn a_new_backend_is_waited_for_while_the_former_one_decides() {
    let (first, second) = (Script::new("former"), Script::new("coming"));
    let quota = Quota::builder()
        .register(&support::TOGETHER)
        .clock(Arc::new(ManualClock::new(NOW)))
        .ready_within(SURELY)
        .open_text("policies.yaml", text(&first, "", "", THREE).as_bytes())
        .unwrap();
    second.set_unavailable(true);
    std::thread::scope(|scope| {
        let replacing = scope.spawn(|| {
            quota
                .replace_text("policies.yaml", text(&second, "", "", THREE).as_bytes())
                .unwrap()
        });
        second.until(|| second.instances() == 1);
        assert_eq!(decide(&quota).status, 200);
        assert_eq!((first.decided(), second.decided()), (3, 0));
        assert_eq!(quota.status().generation, 1);
        second.set_unavailable(false);
        assert_eq!(replacing.join().unwrap().backend, BackendChange::Created);
    });
    assert_eq!(quota.status().generation, 2);
    assert_eq!(decide(&quota).status, 200);
    assert_eq!((first.decided(), second.decided()), (3, 3));
    first.until(|| first.instances() == 0);
}

#[tokio::test]
async fn a_decision_in_flight_ends_on_the_program_and_the_backend_it_began_with() {
    let (first, second) = (Script::new("began"), Script::new("goes-on"));
    let quota = open(&text(&first, "", "", THREE));
    first.say([Say::Silence]);
    let deciding = {
        let quota = quota.clone();
        tokio::spawn(async move { quota.decide(&request(&TENANT)).await })
    };
    while first.silent() < 1 {
        tokio::task::yield_now().await;
    }
    let other = THREE.replace("name: a", "name: z");
    let other = text(&second, "", "enforcement: shadow\n", &other);
    quota
        .replace_text("policies.yaml", other.as_bytes())
        .unwrap();
    // New decisions go to the new backend meanwhile; the former one waits for its last.
    let decided = quota.decide(&request(&TENANT)).await;
    assert_eq!(decided.policy_name(0), Some("z"));
    assert_eq!((second.decided(), first.instances()), (3, 1));
    first.say([Say::Deny]);
    first.release();
    let decided = deciding.await.unwrap();
    assert_eq!(
        outcomes(&decided),
        [
            ("a", Decision::Allowed, Reason::Allowed, "scripted"),
            (
                "b",
                Decision::Denied,
                Reason::BurstQuotaExhausted,
                "scripted"
            ),
        ]
    );
    assert_eq!(second.decided(), 3);
    drop(decided);
    first.until(|| first.instances() == 0);
}

/// A clock that counts how often it is read.
#[derive(Debug, Default)]
struct Counting(AtomicU64);

impl Clock for Counting {
    fn now(&self) -> UnixMillis {
        UnixMillis(NOW.0 + self.0.fetch_add(1, Ordering::Relaxed))
    }
}

#[tokio::test]
async fn the_clock_is_read_once_however_many_trips_a_request_makes() {
    let script = Script::new("clock");
    let clock = Arc::new(Counting::default());
    let single =
        text(&script, "", FALLBACK, THREE).replace("kind: scripted", "kind: scripted_single");
    let quota = Quota::builder()
        .register(&support::SINGLE)
        .clock(Arc::clone(&clock) as Arc<dyn Clock>)
        .open_text("policies.yaml", single.as_bytes())
        .unwrap();
    script.say([Say::Allow, Say::Unavailable]);
    let before = clock.0.load(Ordering::Relaxed);
    let decided = quota.decide(&request(&TENANT)).await;
    assert_eq!(decided.policies.len(), 3);
    assert_eq!(clock.0.load(Ordering::Relaxed), before + 1);
    assert_eq!(decided.now, UnixMillis(NOW.0 + before));
    for policy in &decided.policies {
        let burst = policy.burst.unwrap();
        assert!((NOW.0..=NOW.0 + 6_000).contains(&burst.reset.0));
    }
}

#[test]
fn what_the_fallback_counted_never_reaches_the_backend_and_another_prefix_starts_it_afresh() {
    let script = Script::new("flows");
    let file = |prefix: &str| {
        text(
            &script,
            "",
            &format!("local_fallback: {{max_entries: 100, key_prefix: {prefix}}}\n"),
            "policies: [{name: a, selector: {tenant: {key: 'header:x-tenant-id'}}, burst: {requests: 1, window_secs: 9}}]\n",
        )
    };
    let quota = open(&file("one"));
    script.say([Say::Timeout, Say::Timeout, Say::Allow]);
    assert_eq!(decide(&quota).decision, Decision::Allowed);
    assert_eq!(decide(&quota).decision, Decision::Denied);
    // The backend is well again and decides by its own count.
    assert_eq!(decide(&quota).decision, Decision::Allowed);
    assert!(!quota.status().backend_status.degraded);
    assert_eq!(script.decided(), 3);
    script.always(Say::Unavailable);
    assert_eq!(decide(&quota).decision, Decision::Denied);
    quota
        .replace_text("policies.yaml", file("other").as_bytes())
        .unwrap();
    assert_eq!(decide(&quota).decision, Decision::Allowed);
    assert_eq!(script.created(), 1);
}

#[test]
fn a_fallback_decides_by_both_windows_and_their_retry_after() {
    let script = Script::new("fallback-windows");
    let quota = open(&text(
        &script,
        "",
        FALLBACK,
        "policies: [{name: a, selector: {tenant: {key: 'header:x-tenant-id'}}, burst: {requests: 1, window_secs: 9}, sustained: {requests: 1, window_secs: 7200}}]\n",
    ));
    script.always(Say::Unavailable);
    assert_eq!(decide(&quota).decision, Decision::Allowed);
    let denied = decide(&quota);
    assert_eq!(denied.reason, Reason::BurstQuotaExhausted);
    // The latest reset of both: 1,000 s into the first window of two hours.
    assert_eq!(denied.retry_after_secs, Some(6_200));
    assert_eq!(denied.policies[0].sustained.unwrap().remaining, 0);
}

#[test]
fn a_file_whose_backend_is_not_available_is_tried_again_and_told_of_once() {
    let (first, second) = (Script::new("up"), Script::new("down"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policies.yaml");
    std::fs::write(&path, text(&second, "", "", THREE)).unwrap();
    let quota = open(&text(&first, "", "", THREE));
    second.set_unavailable(true);
    let (tell, told) = std::sync::mpsc::channel();
    let file = PolicyFile::new(quota.clone(), &path, move |reload| {
        // The receiver is gone once the test ends.
        drop(tell.send(reload.result.clone()));
    });
    let refused = file.reload_now();
    let _watch = file.watch().unwrap();
    assert!(refused.result.is_err());
    assert!(told.recv_timeout(SURELY).unwrap().is_err());
    second.until(|| second.created() == 2);
    second.set_unavailable(false);
    let replaced = told.recv_timeout(SURELY).unwrap().unwrap();
    assert_eq!(replaced.backend, BackendChange::Created);
    assert_eq!(decide(&quota).status, 200);
    assert_eq!(second.decided(), 3);
}

#[test]
fn closing_waits_for_the_backend_to_end() {
    let script = Script::new("close");
    let quota = open(&text(&script, "", "", THREE));
    decide(&quota);
    let other = quota.clone();
    assert!(!other.close(Duration::ZERO));
    assert!(quota.close(Duration::from_secs(20)));
    assert_eq!(script.instances(), 0);
}

/// It is given its time to drain, then left behind with the thread that is inside it.
#[test]
fn closing_does_not_wait_for_ever_for_a_backend_that_is_stuck() {
    let script = Script::new("stuck");
    let quota = open(&text(&script, "", "", THREE).replace("60000", "500"));
    script.say([Say::Silence]);
    assert_eq!(decide(&quota).reason, Reason::BackendTimeout);
    let before = zombies();
    assert!(quota.close(SURELY));
    assert!(zombies() > before);
    assert_eq!((script.silent(), script.instances()), (1, 1));
    // What it says in the end reaches nobody.
    script.release();
    script.until(|| script.silent() == 0);
}

#[test]
fn a_kind_without_a_plugin_names_the_folders_searched() {
    let folder = tempfile::tempdir().unwrap();
    let text = "enabled: true\nbackend: {kind: redis, url: 'redis://127.0.0.1:1'}\npolicies: [{name: a, selector: {route: true}, burst: {requests: 1, window_secs: 1}}]\n";
    let error = Quota::builder()
        .plugins(SearchPath::only(vec![folder.path().to_owned()]))
        .open_text("policies.yaml", text.as_bytes())
        .unwrap_err();
    assert!(matches!(
        error,
        OpenError::Backend(BackendError::NotLoaded { .. })
    ));
    let shown = error.full_text();
    assert!(shown.contains("`redis`"), "{shown}");
    assert!(
        shown.contains(&folder.path().display().to_string()),
        "{shown}"
    );
}

#[test]
fn a_decision_can_be_awaited_on_any_thread() {
    fn is_send(_: impl Send) {}
    let script = Script::new("send");
    let quota = open(&text(&script, "", "", THREE));
    is_send(quota.decide(&request(&TENANT)));
}

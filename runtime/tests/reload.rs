//! A policy file that changes under a running quota: every way files are replaced, counters over a reload, and decisions
//! while programs are swapped.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends where something is not as expected"
)]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use quota_runtime::backend::BackendChange;
use quota_runtime::clock::UnixMillis;
use quota_runtime::outcome::{Decision, Reason, WindowState};
use quota_runtime::reload::{PolicyFile, Reload, Watch};
use quota_runtime::request::{ClientAddress, Request};
use quota_runtime::{Decided, OpenError, Quota};

const NOW: UnixMillis = UnixMillis(1_000_000);

/// A reload is heard of within the slow tick, whatever the events did; this is far beyond it.
const SURELY: Duration = Duration::from_secs(20);

/// One policy per tenant with this limit.
fn policies(limit: u64) -> String {
    format!(
        "enabled: true\npolicies:\n  - name: per-tenant\n    selector: {{tenant: {{key: 'header:x-tenant-id'}}}}\n    burst: {{requests: {limit}, window_secs: 3600}}\n"
    )
}

fn decide(quota: &Quota) -> Decision {
    let headers = [("x-tenant-id", "acme")];
    let request = Request {
        route: None,
        client: ClientAddress::Unknown,
        query: None,
        headers: &headers,
    };
    quota.decide_inline(&request, NOW).unwrap().decision
}

fn limit(quota: &Quota) -> u64 {
    quota.status().policies[0].burst.unwrap().requests
}

/// A watched policy file and what was heard of it.
struct Watched {
    quota: Quota,
    heard: Receiver<Reload>,
    _watch: Watch,
}

fn watch(path: &Path) -> Watched {
    let quota = Quota::builder().open_file(path).unwrap();
    let (tell, heard) = channel();
    let file = PolicyFile::new(quota.clone(), path, move |reload| {
        // The receiver is gone once a test ends.
        drop(tell.send(reload.clone()));
    });
    let watch = file.watch().unwrap();
    Watched {
        quota,
        heard,
        _watch: watch,
    }
}

impl Watched {
    /// Waits for the limit to be in force. A reading in the middle of a change may be refused, and heard of first.
    #[track_caller]
    fn expect_limit(&self, expected: u64) {
        while limit(&self.quota) != expected {
            self.heard
                .recv_timeout(SURELY)
                .expect("a reload is heard of");
        }
    }

    /// Waits for a refusal that says `text`.
    #[track_caller]
    fn expect_refusal(&self, text: &str) -> Arc<OpenError> {
        loop {
            let reload = self
                .heard
                .recv_timeout(SURELY)
                .expect("a reload is heard of");
            if let Err(error) = reload.result
                && error.full_text().contains(text)
            {
                return error;
            }
        }
    }
}

#[test]
fn a_file_written_in_place_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policies.yaml");
    fs::write(&path, policies(1)).unwrap();
    let watched = watch(&path);
    for expected in [2, 3] {
        fs::write(&path, policies(expected)).unwrap();
        watched.expect_limit(expected);
    }
}

#[test]
fn a_file_renamed_over_is_followed_every_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policies.yaml");
    fs::write(&path, policies(1)).unwrap();
    let watched = watch(&path);
    for expected in [2, 3, 4] {
        let next = folder.path().join("policies.yaml.tmp");
        fs::write(&next, policies(expected)).unwrap();
        fs::rename(&next, &path).unwrap();
        watched.expect_limit(expected);
    }
}

#[test]
fn a_file_deleted_keeps_its_program_and_is_followed_when_it_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policies.yaml");
    fs::write(&path, policies(1)).unwrap();
    let watched = watch(&path);
    fs::remove_file(&path).unwrap();
    let error = watched.expect_refusal("cannot read");
    assert!(matches!(*error, OpenError::Unreadable { .. }));
    assert_eq!(limit(&watched.quota), 1);
    fs::write(&path, policies(2)).unwrap();
    watched.expect_limit(2);
}

#[test]
#[cfg(unix)]
fn a_config_map_swap_is_followed_every_time() {
    use std::os::unix::fs::symlink;

    let folder = tempfile::tempdir().unwrap();
    let version = |number: u64| {
        let name = format!("..v{number}");
        fs::create_dir(folder.path().join(&name)).unwrap();
        fs::write(
            folder.path().join(&name).join("policies.yaml"),
            policies(number),
        )
        .unwrap();
        let link = folder.path().join("..data_tmp");
        symlink(&name, &link).unwrap();
        fs::rename(&link, folder.path().join("..data")).unwrap();
    };
    version(1);
    let path = folder.path().join("policies.yaml");
    symlink("..data/policies.yaml", &path).unwrap();
    let watched = watch(&path);
    for number in [2, 3] {
        version(number);
        fs::remove_dir_all(folder.path().join(format!("..v{}", number - 1))).unwrap();
        watched.expect_limit(number);
    }
}

#[test]
#[cfg(unix)]
fn a_retargeted_link_and_its_target_are_followed() {
    use std::os::unix::fs::symlink;

    let folder = tempfile::tempdir().unwrap();
    let targets = tempfile::tempdir().unwrap();
    let (one, two) = (
        targets.path().join("one.yaml"),
        targets.path().join("two.yaml"),
    );
    fs::write(&one, policies(1)).unwrap();
    fs::write(&two, policies(2)).unwrap();
    let path = folder.path().join("policies.yaml");
    symlink(&one, &path).unwrap();
    let watched = watch(&path);
    // What `ln -sfn` does.
    let link = folder.path().join("link");
    symlink(&two, &link).unwrap();
    fs::rename(&link, &path).unwrap();
    watched.expect_limit(2);
    fs::write(&two, policies(3)).unwrap();
    watched.expect_limit(3);
}

#[test]
fn a_folder_replaced_by_another_is_followed() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("config");
    fs::create_dir(&folder).unwrap();
    let path = folder.join("policies.yaml");
    fs::write(&path, policies(1)).unwrap();
    let watched = watch(&path);
    fs::rename(&folder, parent.path().join("old")).unwrap();
    fs::create_dir(&folder).unwrap();
    fs::write(&path, policies(2)).unwrap();
    watched.expect_limit(2);
    // The new folder is the watched one now.
    fs::write(&path, policies(3)).unwrap();
    watched.expect_limit(3);
}

#[test]
fn a_refused_file_is_heard_of_once_and_keeps_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policies.yaml");
    fs::write(&path, policies(1)).unwrap();
    let watched = watch(&path);
    let bad = policies(1).replace("selector", "selektor");
    fs::write(&path, &bad).unwrap();
    let error = watched.expect_refusal("selektor");
    assert!(matches!(*error, OpenError::Refused(_)));
    // The same bytes again are no change; the next attempt heard of is the repaired file.
    fs::write(&path, &bad).unwrap();
    fs::write(&path, policies(2)).unwrap();
    watched.expect_limit(2);
    assert_eq!(watched.quota.status().generation, 2);
}

#[test]
fn the_former_content_written_back_is_heard_of_as_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policies.yaml");
    fs::write(&path, policies(1)).unwrap();
    let watched = watch(&path);
    fs::write(&path, "enabled: maybe\n").unwrap();
    watched.expect_refusal("maybe");
    fs::write(&path, policies(1)).unwrap();
    let reload = loop {
        let reload = watched.heard.recv_timeout(SURELY).unwrap();
        if reload.result.is_ok() {
            break reload;
        }
    };
    let replaced = reload.result.unwrap();
    assert!(!replaced.changed);
    assert_eq!(replaced.generation, 1);
}

#[test]
fn a_reload_that_is_asked_for_needs_no_change() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policies.yaml");
    fs::write(&path, policies(1)).unwrap();
    // Nobody watches, so that nobody else reads the change first.
    let quota = Quota::builder().open_file(&path).unwrap();
    let file = PolicyFile::new(quota.clone(), &path, |_reload| {});
    let replaced = file.reload_now().result.unwrap();
    assert_eq!(replaced.backend, BackendChange::Kept);
    assert!(!replaced.changed);
    fs::write(&path, policies(2)).unwrap();
    assert!(file.reload_now().result.unwrap().changed);
    assert_eq!(limit(&quota), 2);
}

#[test]
fn a_file_without_a_quota_object_keeps_the_program() {
    let quota = open(&policies(1));
    for text in ["", "\n", "server: {port: 1}\n"] {
        assert!(matches!(
            quota.replace_text("policies.yaml", text.as_bytes()),
            Err(OpenError::Refused(_))
        ));
    }
    assert_eq!(limit(&quota), 1);
    assert_eq!(quota.status().generation, 1);
}

fn open(text: &str) -> Quota {
    Quota::builder()
        .open_text("policies.yaml", text.as_bytes())
        .unwrap()
}

#[track_caller]
fn replace(quota: &Quota, text: &str) -> BackendChange {
    quota
        .replace_text("policies.yaml", text.as_bytes())
        .unwrap()
        .backend
}

#[test]
fn a_limit_raised_or_lowered_keeps_what_is_used() {
    let quota = open(&policies(2));
    assert_eq!(decide(&quota), Decision::Allowed);
    assert_eq!(decide(&quota), Decision::Allowed);
    assert_eq!(decide(&quota), Decision::Denied);
    assert_eq!(replace(&quota, &policies(3)), BackendChange::Kept);
    assert_eq!(decide(&quota), Decision::Allowed);
    assert_eq!(decide(&quota), Decision::Denied);
    assert_eq!(replace(&quota, &policies(1)), BackendChange::Kept);
    assert_eq!(decide(&quota), Decision::Denied);
    assert_eq!(replace(&quota, &policies(4)), BackendChange::Kept);
    assert_eq!(decide(&quota), Decision::Allowed);
    assert_eq!(decide(&quota), Decision::Denied);
}

/// One request per minute and a hundred per hour for each tenant, on two routes.
const BASE: &str = "
enabled: true
policies:
  - name: per-tenant
    route_allowlist: [login, checkout]
    selector: {tenant: {key: 'header:x-tenant-id'}}
    burst: {requests: 1, window_secs: 60}
    sustained: {requests: 100, window_secs: 3600}
";

/// Decides a request of one tenant, who is named wherever a source may look.
fn decide_base(quota: &Quota) -> Decided {
    let headers = [("x-tenant-id", "acme"), ("cookie", "tenant=acme")];
    let request = Request {
        route: Some("login"),
        client: ClientAddress::Unknown,
        query: Some(b"tenant=acme"),
        headers: &headers,
    };
    quota.decide_inline(&request, NOW).unwrap()
}

/// Uses the burst window up under [`BASE`], then changes `from` to `to` in it. The decision and reason of the counted policy
/// after that, and what is left of its two windows.
#[track_caller]
fn after_change(from: &str, to: &str) -> (Decision, Reason, [Option<u64>; 2]) {
    assert_eq!(BASE.matches(from).count(), 1, "{from}");
    let quota = open(BASE);
    assert_eq!(decide_base(&quota).decision, Decision::Allowed);
    replace(&quota, &BASE.replace(from, to));
    let decided = decide_base(&quota);
    let index = (0..decided.policies.len())
        .find(|index| decided.policy_name(*index) != Some("other"))
        .expect("it applies");
    let policy = decided.policies[index];
    let left = |window: Option<WindowState>| window.map(|window| window.remaining);
    let left = [left(policy.burst), left(policy.sustained)];
    (policy.decision, policy.reason, left)
}

#[test]
fn what_is_no_part_of_a_counter_changes_without_touching_it() {
    #[track_caller]
    fn check(from: &str, to: &str, left: [Option<u64>; 2]) {
        let exhausted = Reason::BurstQuotaExhausted;
        assert_eq!(after_change(from, to), (Decision::Denied, exhausted, left));
    }
    let same = [Some(0), Some(99)];
    check("enabled", "# a comment\nenabled", same);
    // The allowlist, and with it how the route is known.
    check("[login, checkout]", "[login]", same);
    check("[login, checkout]", "[checkout, login, pay]", same);
    check("[login, checkout]", "[]", same);
    // A source, where it gives the same value.
    check("header:x-tenant-id", "HEADER: X-Tenant-Id", same);
    check("header:x-tenant-id", "cookie:tenant", same);
    check("header:x-tenant-id", "query:tenant", same);
    // The other window: its limit, its length, whether there is one.
    check("requests: 100,", "requests: 50,", [Some(0), Some(49)]);
    check(
        "window_secs: 3600",
        "window_secs: 7200",
        [Some(0), Some(100)],
    );
    check(
        "    sustained: {requests: 100, window_secs: 3600}\n",
        "",
        [Some(0), None],
    );
    // Settings of the file.
    check(
        "policies:",
        "backend_failure_policy: fail_open\npolicies:",
        same,
    );
    check(
        "policies:",
        "backend: {kind: in_memory, max_entries: 7}\npolicies:",
        same,
    );
    // Order and other policies.
    let other =
        "  - {name: other, selector: {route: true}, burst: {requests: 9, window_secs: 9}}\n";
    check("policies:\n", &format!("policies:\n{other}"), same);
    check(
        "window_secs: 3600}\n",
        &format!("window_secs: 3600}}\n{other}"),
        same,
    );
}

#[test]
fn shadow_goes_on_with_what_was_used() {
    let (decision, reason, left) = after_change("policies:", "enforcement: shadow\npolicies:");
    assert_eq!(decision, Decision::ShadowDenied);
    assert_eq!(reason, Reason::BurstQuotaExhausted);
    assert_eq!(left, [Some(0), Some(99)]);
}

#[test]
fn a_file_in_the_form_of_impulse_goes_on_with_what_was_used() {
    let quota = open(BASE);
    assert_eq!(decide_base(&quota).decision, Decision::Allowed);
    let nested = BASE.replace('\n', "\n    ");
    let change = replace(&quota, &format!("resilience:\n  quota:{nested}\n"));
    assert_eq!(change, BackendChange::Kept);
    assert_eq!(decide_base(&quota).decision, Decision::Denied);
}

#[test]
fn what_is_part_of_a_counter_starts_it_afresh() {
    #[track_caller]
    fn check(from: &str, to: &str, left: [Option<u64>; 2]) {
        let fresh = (Decision::Allowed, Reason::Allowed, left);
        assert_eq!(after_change(from, to), fresh);
    }
    // Another length starts that window afresh, and only that one.
    check("window_secs: 60}", "window_secs: 30}", [Some(0), Some(98)]);
    let all = [Some(0), Some(99)];
    check("name: per-tenant", "name: Per-Tenant", all);
    check("{tenant: {key", "{token: {key", all);
    check("{tenant: {key", "{route: true, tenant: {key", all);
    check(
        "policies:",
        "backend: {kind: in_memory, key_prefix: other}\npolicies:",
        all,
    );
}

#[test]
fn a_window_gets_its_count_back_with_its_length() {
    let quota = open(BASE);
    assert_eq!(decide_base(&quota).decision, Decision::Allowed);
    replace(
        &quota,
        &BASE.replace("window_secs: 60}", "window_secs: 30}"),
    );
    assert_eq!(decide_base(&quota).decision, Decision::Allowed);
    assert_eq!(decide_base(&quota).decision, Decision::Denied);
    replace(&quota, BASE);
    assert_eq!(decide_base(&quota).decision, Decision::Denied);
}

#[test]
fn a_limit_lowered_below_what_is_used_leaves_nothing() {
    let quota = open(&policies(3));
    for _ in 0..3 {
        assert_eq!(decide(&quota), Decision::Allowed);
    }
    replace(&quota, &policies(2));
    let headers = [("x-tenant-id", "acme")];
    let request = Request {
        route: None,
        client: ClientAddress::Unknown,
        query: None,
        headers: &headers,
    };
    let decided = quota.decide_inline(&request, NOW).unwrap();
    let burst = decided.policies[0].burst.unwrap();
    assert_eq!(decided.decision, Decision::Denied);
    assert_eq!((burst.limit, burst.remaining), (2, 0));
}

#[test]
fn disabling_and_enabling_keeps_what_is_used() {
    let quota = open(&policies(1));
    assert_eq!(decide(&quota), Decision::Allowed);
    replace(&quota, &policies(1).replace("true", "false"));
    assert_eq!(decide(&quota), Decision::NotApplied);
    replace(&quota, &policies(1));
    assert_eq!(decide(&quota), Decision::Denied);
}

#[test]
fn another_key_prefix_starts_afresh() {
    let quota = open(&policies(1));
    assert_eq!(decide(&quota), Decision::Allowed);
    let other = format!(
        "backend: {{kind: in_memory, key_prefix: other}}\n{}",
        policies(1)
    );
    assert_eq!(replace(&quota, &other), BackendChange::Created);
    assert_eq!(decide(&quota), Decision::Allowed);
    assert_eq!(decide(&quota), Decision::Denied);
}

#[test]
fn a_smaller_capacity_takes_effect_without_evicting() {
    let quota = open(&policies(9));
    assert_eq!(decide(&quota), Decision::Allowed);
    let small = format!(
        "backend: {{kind: in_memory, max_entries: 1}}\n{}",
        policies(9)
    );
    assert_eq!(replace(&quota, &small), BackendChange::Kept);
    assert_eq!(decide(&quota), Decision::Allowed);
    let headers = [("x-tenant-id", "another")];
    let request = Request {
        route: None,
        client: ClientAddress::Unknown,
        query: None,
        headers: &headers,
    };
    let refused = quota.decide_inline(&request, NOW).unwrap();
    assert_eq!(refused.decision, Decision::FailedClosed);
}

/// Decisions that began under one length go on while the file changes to another and back: neither resets the other's count.
#[test]
fn eight_threads_through_changes_of_a_length_admit_exactly_the_limit_of_each() {
    const LIMIT: u64 = 20_000;
    const THREADS: usize = 8;
    let text = |length: u64| {
        policies(LIMIT).replace("window_secs: 3600", &format!("window_secs: {length}"))
    };
    let lengths = [3600, 1800, 60];
    let quota = open(&text(lengths[0]));
    let admitted = AtomicU64::new(0);
    let decide = || {
        let decision = decide(&quota);
        admitted.fetch_add(u64::from(decision == Decision::Allowed), Ordering::Relaxed);
        decision
    };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    decide();
                }
            });
        }
        // Until every length has admitted all it may.
        let mut exhausted = [false; 3];
        while exhausted != [true; 3] {
            for (length, exhausted) in lengths.iter().zip(&mut exhausted) {
                replace(&quota, &text(*length));
                *exhausted |= decide() == Decision::Denied;
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(admitted.load(Ordering::Relaxed), 3 * LIMIT);
}

#[test]
fn eight_threads_through_two_hundred_reloads_admit_exactly_the_limit() {
    const STEP: u64 = 100;
    const RELOADS: u64 = 200;
    const THREADS: usize = 8;
    // With every reload the limit rises by a step, another policy comes and goes, and the counted one changes its place.
    let text = |reload: u64| {
        let counted = policies(STEP * (reload + 1));
        let (head, policy) = counted.split_once("policies:\n").unwrap();
        let other = format!(
            "  - name: other-{}\n    selector: {{route: true}}\n    route_allowlist: [r{reload}]\n    burst: {{requests: 9, window_secs: 9}}\n",
            reload % 3
        );
        if reload.is_multiple_of(2) {
            format!("{head}policies:\n{policy}{other}")
        } else {
            format!("{head}policies:\n{other}{policy}")
        }
    };
    let quota = open(&text(0));
    let admitted = AtomicU64::new(0);
    let denied = AtomicU64::new(0);
    let reloading = AtomicBool::new(true);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                // Each thread goes on until a decision begun after the last reload is a denial.
                loop {
                    let over = !reloading.load(Ordering::SeqCst);
                    match decide(&quota) {
                        Decision::Allowed => {
                            admitted.fetch_add(1, Ordering::Relaxed);
                        }
                        Decision::Denied => {
                            denied.fetch_add(1, Ordering::Relaxed);
                            if over {
                                break;
                            }
                        }
                        other @ (Decision::ShadowDenied
                        | Decision::FailedOpen
                        | Decision::FailedClosed
                        | Decision::NotApplied) => panic!("{other:?}"),
                    }
                }
            });
        }
        for reload in 1..=RELOADS {
            assert_eq!(replace(&quota, &text(reload)), BackendChange::Kept);
        }
        reloading.store(false, Ordering::SeqCst);
    });
    let limit = STEP * (RELOADS + 1);
    assert_eq!(admitted.load(Ordering::Relaxed), limit);
    let metrics = quota.render_metrics();
    let count = |decision: &str| {
        metrics
            .lines()
            .filter(|line| line.contains("policy=\"per-tenant\"") && line.contains(decision))
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum::<u64>()
    };
    assert_eq!(count("decision=\"allowed\""), limit);
    assert_eq!(count("decision=\"denied\""), denied.load(Ordering::Relaxed));
    // Only the other policy of the file in force is left.
    assert!(metrics.contains("policy=\"other-2\""));
    assert!(!metrics.contains("policy=\"other-1\""));
}

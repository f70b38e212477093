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
use quota_runtime::outcome::Decision;
use quota_runtime::reload::{PolicyFile, Reload, Watch};
use quota_runtime::request::{ClientAddress, Request};
use quota_runtime::{OpenError, Quota};

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

#[test]
fn order_other_policies_and_capacity_keep_what_is_used() {
    let other = "  - name: other\n    selector: {route: true}\n    route_allowlist: [login]\n    burst: {requests: 9, window_secs: 9}\n";
    let one = policies(2);
    let (head, policy) = one.split_once("policies:\n").unwrap();
    let quota = open(&format!("{head}policies:\n{policy}{other}"));
    assert_eq!(decide(&quota), Decision::Allowed);
    replace(&quota, &format!("{head}policies:\n{other}{policy}"));
    assert_eq!(decide(&quota), Decision::Allowed);
    let change = replace(
        &quota,
        &format!("{head}backend: {{kind: in_memory, max_entries: 7}}\npolicies:\n{policy}"),
    );
    assert_eq!(change, BackendChange::Kept);
    assert_eq!(decide(&quota), Decision::Denied);
}

/// A policy on all routes or some, of a tenant's header, with these windows.
fn policy(name: &str, routes: &str, header: &str, windows: &str) -> String {
    format!(
        "enabled: true\npolicies:\n  - name: {name}\n    route_allowlist: [{routes}]\n    selector: {{tenant: {{key: 'header:{header}'}}}}\n{windows}"
    )
}

const BURST: &str = "    burst: {requests: 2, window_secs: 10}\n";
const SUSTAINED: &str = "    sustained: {requests: 3, window_secs: 3600}\n";

/// A request of route `login` whose tenant stands in two headers.
fn remaining(quota: &Quota) -> (Option<u64>, Option<u64>) {
    let headers = [("x-tenant-id", "acme"), ("x-org", "acme")];
    let request = Request {
        route: Some("login"),
        client: ClientAddress::Unknown,
        query: None,
        headers: &headers,
    };
    let decided = quota.decide_inline(&request, NOW).unwrap();
    let policy = &decided.policies[0];
    let left = |window: Option<_>| {
        window.map(|window: quota_runtime::outcome::WindowState| window.remaining)
    };
    (left(policy.burst), left(policy.sustained))
}

#[test]
fn the_allowlist_the_source_and_the_other_window_keep_what_is_used() {
    let both = [BURST, SUSTAINED].concat();
    let quota = open(&policy("a", "", "x-tenant-id", &both));
    assert_eq!(remaining(&quota), (Some(1), Some(2)));
    // The same value from another source is the same identity.
    replace(&quota, &policy("a", "login, pay", "x-org", &both));
    assert_eq!(remaining(&quota), (Some(0), Some(1)));
    replace(&quota, &policy("a", "login", "x-org", SUSTAINED));
    assert_eq!(remaining(&quota), (None, Some(0)));
    // The burst window was not charged while the policy had none.
    let roomier = SUSTAINED.replace("requests: 3", "requests: 9");
    let burst = BURST.replace("requests: 2", "requests: 3");
    replace(
        &quota,
        &policy("a", "login", "x-org", &[&*burst, &roomier].concat()),
    );
    assert_eq!(remaining(&quota), (Some(0), Some(5)));
}

#[test]
fn another_length_starts_that_window_afresh_and_no_other() {
    let quota = open(&policy("a", "", "x-org", &[BURST, SUSTAINED].concat()));
    assert_eq!(remaining(&quota), (Some(1), Some(2)));
    let longer = BURST.replace("window_secs: 10", "window_secs: 20");
    replace(
        &quota,
        &policy("a", "", "x-org", &[&*longer, SUSTAINED].concat()),
    );
    assert_eq!(remaining(&quota), (Some(1), Some(1)));
    // The former length is counted on: its window has not ended.
    replace(
        &quota,
        &policy("a", "", "x-org", &[BURST, SUSTAINED].concat()),
    );
    assert_eq!(remaining(&quota), (Some(0), Some(0)));
}

#[test]
fn another_name_is_another_policy_and_the_former_series_are_dropped() {
    let quota = open(&policy("former", "", "x-org", BURST));
    assert_eq!(remaining(&quota), (Some(1), None));
    assert!(quota.render_metrics().contains("policy=\"former\""));
    replace(&quota, &policy("later", "", "x-org", BURST));
    let metrics = quota.render_metrics();
    assert!(!metrics.contains("policy=\"former\""), "{metrics}");
    assert!(metrics.contains("policy=\"later\""), "{metrics}");
    assert_eq!(remaining(&quota), (Some(1), None));
}

#[test]
fn counts_of_a_policy_that_stays_go_on_over_a_reload() {
    let quota = open(&policy("a", "", "x-org", BURST));
    assert_eq!(remaining(&quota), (Some(1), None));
    replace(&quota, &policy("a", "", "x-org", SUSTAINED));
    assert_eq!(remaining(&quota), (None, Some(2)));
    let metrics = quota.render_metrics();
    let allowed = metrics
        .lines()
        .find(|line| line.contains("policy=\"a\"") && line.contains("decision=\"allowed\""));
    assert!(allowed.unwrap().ends_with(" 2"), "{metrics}");
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

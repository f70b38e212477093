//! Backends that block: the host's own threads, deadlines that hold without them.

use std::time::{Duration, Instant};

use quota_plugin_host::{BackendFailure, End, Settings, Verdict, zombies};
use serde_json::json;

use crate::zoo::{BLOCKING, Gate, instance, item, plugin, settings, window};

const ALLOWED: Verdict = Verdict::Allowed { used: [1, 0] };
const TIMEOUT: Verdict = Verdict::Failed(BackendFailure::Timeout);
const UNAVAILABLE: Verdict = Verdict::Failed(BackendFailure::Unavailable);

#[test]
fn a_blocking_check_does_not_block_the_caller() {
    let zoo = instance(BLOCKING, "gate", "block");
    let windows = [window(10)];
    let batch = zoo.check_batch(&[item(b"a", &windows)], true, true, 1, None);
    let gate = Gate::of("block");
    gate.wait_for(1);
    gate.open();
    assert_eq!(batch.wait_until(None), [ALLOWED]);
}

#[test]
fn a_deadline_is_kept_while_the_plugin_blocks() {
    let zoo = instance(BLOCKING, "gate", "deadline");
    let windows = [window(10)];
    let deadline = Instant::now() + Duration::from_millis(20);
    let batch = zoo.check_batch(&[item(b"a", &windows)], true, true, 1, Some(deadline));
    assert_eq!(batch.wait_until(None), [TIMEOUT]);
    Gate::of("deadline").open();
}

#[test]
fn queued_work_nobody_waits_for_is_not_begun() {
    let settings = Settings {
        max_inflight: 1,
        ..settings("queue")
    };
    let zoo = plugin(BLOCKING)
        .create(&settings, &json!({"mode": "gate"}))
        .unwrap();
    let windows = [window(10)];
    let gate = Gate::of("queue");
    let first = zoo.check_batch(&[item(b"a", &windows)], true, true, 1, None);
    gate.wait_for(1);
    let excess = zoo.check_batch(&[item(b"a", &windows)], true, true, 1, None);
    assert_eq!(excess.wait_until(None), [UNAVAILABLE]);
    // Given up, the first makes room for a second, which is queued behind it and given up too.
    drop(first);
    drop(zoo.check_batch(&[item(b"a", &windows)], true, true, 1, None));
    gate.open();
    assert_eq!(
        zoo.drain_and_destroy(Instant::now() + Duration::from_secs(10)),
        End::Destroyed
    );
    assert_eq!(gate.arrived(), 1);
}

#[test]
fn an_instance_with_a_thread_inside_is_left_behind() {
    let zoo = instance(BLOCKING, "gate", "stuck");
    let windows = [window(10)];
    let batch = zoo.check_batch(&[item(b"a", &windows)], true, true, 1, None);
    Gate::of("stuck").wait_for(1);
    let before = zombies();
    assert_eq!(zoo.drain_and_destroy(Instant::now()), End::LeftBehind);
    assert!(zombies() > before);
    assert_eq!(batch.wait_until(None), [UNAVAILABLE]);
    Gate::of("stuck").open();
}

#[test]
fn a_bound_is_needed() {
    let settings = Settings {
        max_inflight: 0,
        ..settings("unbounded")
    };
    let error = plugin(BLOCKING).create(&settings, &json!({})).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`max_inflight` must be at least 1 for this backend"
    );
}

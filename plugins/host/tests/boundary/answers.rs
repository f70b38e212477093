//! What a plugin answers, and what becomes of it: ready, pending, late, double, made up.
#![expect(clippy::panic, reason = "helpers of tests")]

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use quota_plugin_abi::{
    QUOTA_ALLOWED, QUOTA_COMPLETE_LATE, QUOTA_COMPLETE_NONSENSE, QUOTA_COMPLETE_TAKEN,
};
use quota_plugin_host::{
    BackendFailure, Batch, End, HealthState, Instance, PendingBatch, Verdict,
    callbacks_after_destroy,
};

use crate::zoo::{ASYNC, Held, INLINE, instance, item, returned, window};

const ERROR: Verdict = Verdict::Failed(BackendFailure::Error);
const TIMEOUT: Verdict = Verdict::Failed(BackendFailure::Timeout);
const UNAVAILABLE: Verdict = Verdict::Failed(BackendFailure::Unavailable);
const ALLOWED: Verdict = Verdict::Allowed { used: [0, 0] };

/// Sends two items.
fn send(instance: &Instance) -> Batch {
    let windows = [window(10)];
    let items = [item(b"a", &windows), item(b"b", &windows)];
    instance.check_batch(&items, true, true, 1, None)
}

fn pending(batch: Batch) -> PendingBatch {
    match batch {
        Batch::Pending(pending) => pending,
        Batch::Ready(verdicts) => panic!("ready: {verdicts:?}"),
    }
}

fn answer(mode: &str) -> Vec<Verdict> {
    send(&instance(ASYNC, mode, mode)).wait_until(Some(Instant::now() + Duration::from_secs(10)))
}

#[test]
fn ready_results_are_taken() {
    assert_eq!(answer("honest"), [Verdict::Allowed { used: [1, 0] }; 2]);
}

#[test]
fn a_completion_before_check_returns_is_taken() {
    assert_eq!(answer("now"), [ALLOWED; 2]);
    assert_eq!(returned("now"), [QUOTA_COMPLETE_TAKEN]);
}

#[test]
fn a_completion_from_another_thread_wakes_the_waiting_one() {
    let zoo = instance(ASYNC, "never", "waits");
    let batch = send(&zoo);
    let held = Held::take("waits")[0];
    let completer = std::thread::spawn(move || held.complete(held.ticket, QUOTA_ALLOWED, 2));
    assert_eq!(batch.wait_until(None), [ALLOWED; 2]);
    assert_eq!(completer.join().unwrap(), QUOTA_COMPLETE_TAKEN);
}

#[test]
fn a_completion_wakes_the_future() {
    struct Flag(std::sync::atomic::AtomicBool);
    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }
    let zoo = instance(ASYNC, "never", "future");
    let mut batch = Box::pin(pending(send(&zoo)));
    let flag = Arc::new(Flag(false.into()));
    let waker = Waker::from(Arc::clone(&flag));
    let mut context = Context::from_waker(&waker);
    assert_eq!(batch.as_mut().poll(&mut context), Poll::Pending);
    assert!(!flag.0.load(std::sync::atomic::Ordering::SeqCst));
    let held = Held::take("future")[0];
    held.complete(held.ticket, QUOTA_ALLOWED, 2);
    assert!(flag.0.load(std::sync::atomic::Ordering::SeqCst));
    assert_eq!(
        batch.as_mut().poll(&mut context),
        Poll::Ready(vec![ALLOWED; 2])
    );
}

#[test]
fn a_second_completion_changes_nothing() {
    assert_eq!(answer("twice"), [ALLOWED; 2]);
    assert_eq!(
        returned("twice"),
        [QUOTA_COMPLETE_TAKEN, QUOTA_COMPLETE_LATE]
    );
}

#[test]
fn made_up_tickets_change_nothing_and_are_counted() {
    let zoo = instance(ASYNC, "garbage_ticket", "garbage");
    let batch = send(&zoo);
    assert_eq!(returned("garbage"), [QUOTA_COMPLETE_NONSENSE; 4]);
    assert_eq!(zoo.faults().nonsense, 4);
    assert_eq!(zoo.health().state, HealthState::Degraded);
    let held = Held::take("garbage")[0];
    assert_eq!(
        held.complete(held.ticket, QUOTA_ALLOWED, 2),
        QUOTA_COMPLETE_TAKEN
    );
    assert_eq!(batch.wait_until(None), [ALLOWED; 2]);
}

#[test]
fn a_wrong_count_and_missing_results_are_errors() {
    for mode in ["wrong_count", "null_results"] {
        assert_eq!(answer(mode), [ERROR; 2], "{mode}");
        assert_eq!(returned(mode), [QUOTA_COMPLETE_NONSENSE], "{mode}");
    }
}

#[test]
fn ready_after_completing_is_an_error() {
    let zoo = instance(ASYNC, "ready_and_complete", "both");
    assert_eq!(send(&zoo).wait_until(None), [ERROR; 2]);
    assert_eq!(zoo.health().inflight, 0);
    assert!(zoo.faults().meaningless > 0);
}

#[test]
fn unknown_codes_and_holes_are_errors_and_counted() {
    for mode in ["returns_77", "result_77", "hole"] {
        let zoo = instance(ASYNC, mode, mode);
        assert_eq!(send(&zoo).wait_until(None), [ERROR; 2], "{mode}");
        assert!(zoo.faults().meaningless > 0, "{mode}");
        assert_eq!(zoo.health().state, HealthState::Degraded, "{mode}");
    }
}

#[test]
fn a_negative_return_is_the_answer_to_every_item() {
    let zoo = instance(ASYNC, "unavailable", "negative");
    assert_eq!(send(&zoo).wait_until(None), [UNAVAILABLE; 2]);
    let health = zoo.health();
    assert_eq!(health.last_error.as_deref(), Some("the zoo\\nis closed"));
    assert_eq!(health.last_failure, Some(BackendFailure::Unavailable));
}

#[test]
fn a_backend_that_never_answers_times_out_and_late_answers_do_nothing() {
    let zoo = instance(ASYNC, "never", "never");
    let batch = send(&zoo);
    assert_eq!(batch.wait_until(Some(Instant::now())), [TIMEOUT; 2]);
    assert_eq!(zoo.health().inflight, 0);
    // The slot is used again: the late answer must not reach its new user.
    let next = pending(send(&zoo));
    let held = Held::take("never");
    assert_eq!(
        held[0].complete(held[0].ticket, QUOTA_ALLOWED, 2),
        QUOTA_COMPLETE_LATE
    );
    assert_eq!(next.abandon(), [TIMEOUT; 2]);
    assert_eq!(
        held[1].complete(held[1].ticket, QUOTA_ALLOWED, 2),
        QUOTA_COMPLETE_LATE
    );
    assert_eq!(zoo.faults().late, 2);
    assert_eq!(zoo.faults().nonsense, 0);
}

#[test]
fn abandoning_takes_an_answer_that_is_there() {
    let zoo = instance(ASYNC, "now", "there");
    assert_eq!(pending(send(&zoo)).abandon(), [ALLOWED; 2]);
}

#[test]
fn dropping_a_pending_batch_gives_it_up() {
    let zoo = instance(ASYNC, "never", "dropped");
    drop(send(&zoo));
    assert_eq!(zoo.health().inflight, 0);
    let held = Held::take("dropped")[0];
    assert_eq!(
        held.complete(held.ticket, QUOTA_ALLOWED, 2),
        QUOTA_COMPLETE_LATE
    );
}

#[test]
fn more_than_max_inflight_is_unavailable_at_once() {
    let settings = quota_plugin_host::Settings {
        max_inflight: 2,
        ..crate::zoo::settings("bounded")
    };
    let options = serde_json::json!({"mode": "never"});
    let zoo = crate::zoo::plugin(ASYNC)
        .create(&settings, &options)
        .unwrap();
    let first = send(&zoo);
    let _second = send(&zoo);
    assert!(matches!(send(&zoo), Batch::Ready(verdicts) if verdicts == [UNAVAILABLE; 2]));
    assert_eq!(Held::take("bounded").len(), 2);
    drop(first);
    assert!(matches!(send(&zoo), Batch::Pending(_)));
}

#[test]
fn destroy_answers_what_is_pending() {
    for (mode, returns) in [("later", vec![QUOTA_COMPLETE_TAKEN]), ("never", vec![])] {
        let prefix = format!("destroy {mode}");
        let zoo = instance(ASYNC, mode, &prefix);
        let batch = send(&zoo);
        assert_eq!(zoo.drain_and_destroy(Instant::now()), End::Destroyed);
        assert_eq!(batch.wait_until(None), [UNAVAILABLE; 2], "{mode}");
        assert_eq!(returned(&prefix), returns, "{mode}");
    }
}

#[test]
fn callbacks_after_destroy_do_nothing_and_are_counted() {
    let zoo = instance(ASYNC, "never", "after");
    drop(send(&zoo));
    drop(zoo);
    let before = callbacks_after_destroy();
    let held = Held::take("after")[0];
    assert_eq!(
        held.complete(held.ticket, QUOTA_ALLOWED, 2),
        QUOTA_COMPLETE_LATE
    );
    assert!(callbacks_after_destroy() > before);
}

#[test]
fn items_beyond_max_batch_come_back_to_be_sent_again() {
    let table = quota_plugin_abi::quota_plugin {
        max_batch: 1,
        ..ASYNC
    };
    let zoo = instance(table, "honest", "one");
    let sent = send(&zoo).wait_until(None);
    assert_eq!(
        sent,
        [Verdict::Allowed { used: [1, 0] }, Verdict::NotEvaluated]
    );
}

#[test]
fn inline_answers_that_mean_nothing_are_errors() {
    let windows = [window(10)];
    for (mode, expected) in [
        ("returns_77", ERROR),
        ("pending", ERROR),
        ("hole", ERROR),
        ("unavailable", UNAVAILABLE),
    ] {
        let zoo = instance(INLINE, mode, mode);
        assert_eq!(zoo.check_one(&item(b"a", &windows), 1), expected, "{mode}");
        assert_eq!(
            zoo.faults().meaningless,
            u64::from(expected == ERROR),
            "{mode}"
        );
    }
}

#[test]
fn what_the_host_is_asked_wrongly_is_an_error_and_never_sent() {
    let windows = [window(10)];
    let three = [window(10); 3];
    let long = [0; 513];
    let bad = [item(&long, &windows), item(b"a", &[]), item(b"a", &three)];
    let [inline, other] = [INLINE, ASYNC].map(|table| instance(table, "honest", "asked wrongly"));
    for bad in &bad {
        assert_eq!(inline.check_one(bad, 1), ERROR);
        assert_eq!(
            other
                .check_batch(&[*bad], true, true, 1, None)
                .wait_until(None),
            [ERROR]
        );
        assert_eq!(other.check_one(bad, 1), ERROR);
    }
    assert_eq!(inline.faults(), quota_plugin_host::Faults::default());
}

#[test]
fn an_inline_check_allocates_nothing() {
    let windows = [window(10), window(10)];
    let zoo = instance(INLINE, "constant", "allocations");
    let item = item(b"a key of some length", &windows);
    let counted = allocation_counter::measure(|| {
        for _ in 0..100 {
            assert_eq!(zoo.check_one(&item, 1), ALLOWED);
        }
    });
    assert_eq!(counted.count_total, 0);
}

#[test]
fn what_a_plugin_says_of_its_health_is_read_with_care() {
    let health = |mode| instance(INLINE, mode, "health").health();
    assert_eq!(health("honest").state, HealthState::Available);
    assert_eq!(health("honest").last_error, None);
    // A return value that means nothing leaves it unknown, and so does an unknown state.
    assert_eq!(health("health_77").state, HealthState::Unknown);
    let own = health("health_of_its_own");
    assert_eq!(own.state, HealthState::Unknown);
    assert_eq!(own.last_error.as_deref(), Some("slow\\ntoday"));
    assert_eq!(own.last_failure, Some(BackendFailure::Timeout));
    assert_eq!(own.since_unix_ms, Some(5));
    // A length beyond the buffer is cut to it: its zero bytes come out escaped.
    let text = health("health_too_long").last_error.unwrap();
    assert_eq!(text, "\\u{0}".repeat(1024));
}

#[test]
fn a_new_capacity_reaches_the_plugin() {
    let zoo = instance(INLINE, "honest", "resize");
    assert_eq!(zoo.resize(7), Ok(true));
    assert_eq!(zoo.health().capacity, Some(7));
    assert_eq!(
        zoo.resize(13).unwrap_err().code,
        quota_plugin_abi::QUOTA_ERROR
    );
    assert_eq!(instance(INLINE, "no_resize", "resize").resize(7), Ok(false));
}

//! Backends of the SDK through the host, over a table in this process: those that answer later, and every way to forget to.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test ends where something is not as expected"
)]

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quota_plugin_sdk::testing::host::{
    BackendFailure, Batch as Sent, End, Faults, HealthState, Instance, Item as Asked, Settings,
    Verdict, Window as AskedWindow, WindowKind as AskedKind,
};
use quota_plugin_sdk::{
    Answer, Async, AsyncBackend, Backend, Batch, Capabilities, Context, Decision, Diagnostics,
    Failure, Health, Item, OwnedBatch, Ticket, WindowKind, testing,
};
use serde_json::json;
use tokio::sync::Notify;

const SCHEMA: &str = r#"{"type": "object", "properties": {"way": {"type": "string"}}, "additionalProperties": false}"#;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    #[serde(default)]
    way: Way,
}

/// How a backend behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Way {
    #[default]
    Honest,
    Panic,
    /// Decides when the test says so.
    Wait,
    /// Decides only the first item.
    TooFew,
    /// Decides everything, whatever the stop rules say.
    TooMany,
    /// Is to answer later, and takes no ticket.
    NoTicket,
    /// Takes the ticket and answers at once all the same.
    TicketAndAnswer,
    /// Takes the ticket twice, and drops it.
    DropTicket,
}

/// Key, kind, length and start: a shared store counts every window instance for itself.
type Counter = (Vec<u8>, WindowKind, u64, u64);

/// Requests of each counter.
#[derive(Default)]
struct Counters(Mutex<BTreeMap<Counter, u64>>);

impl Counters {
    fn decide(&self, item: &Item<'_>) -> Decision {
        let mut counters = self.0.lock().unwrap();
        let mut used = [0; 2];
        let mut exhausted = 0;
        let name = |window: &quota_plugin_sdk::Window| {
            let key = item.key().to_vec();
            (key, window.kind(), window.length_ms(), window.start_ms())
        };
        for (index, window) in item.windows().iter().enumerate() {
            used[index] = counters.get(&name(window)).copied().unwrap_or(0);
            exhausted |= u32::from(used[index] >= window.limit()) << index;
        }
        if exhausted != 0 {
            return Decision::Denied {
                exhausted,
                used,
                local: false,
            };
        }
        for (used, window) in used.iter_mut().zip(item.windows()) {
            *used += 1;
            counters.insert(name(window), *used);
        }
        Decision::Allowed { used }
    }

    /// Decides in order and ends where the batch ends.
    fn decide_all<'a>(
        &self,
        items: impl Iterator<Item = Item<'a>>,
        stops_at_denial: bool,
    ) -> Vec<Decision> {
        let mut decisions = Vec::new();
        for item in items {
            decisions.push(self.decide(&item));
            if stops_at_denial && matches!(decisions.last(), Some(Decision::Denied { .. })) {
                break;
            }
        }
        decisions
    }
}

/// What a test and the backends with its key prefix share.
#[derive(Default)]
struct Watch {
    begun: AtomicUsize,
    /// Decisions that were dropped half-way.
    dropped: AtomicUsize,
    /// Backends that were dropped.
    ended: AtomicUsize,
    drained: AtomicUsize,
    go_on: Notify,
}

static WATCHES: Mutex<BTreeMap<String, Arc<Watch>>> = Mutex::new(BTreeMap::new());

impl Watch {
    fn of(prefix: &str) -> Arc<Self> {
        let mut watches = WATCHES.lock().unwrap();
        Arc::clone(watches.entry(prefix.to_owned()).or_default())
    }

    /// Waits until so many decisions have begun.
    fn until_begun(&self, number: usize) {
        while self.begun.load(Ordering::SeqCst) < number {
            std::thread::yield_now();
        }
    }
}

/// Counts that it is dropped.
struct CountDrop<'a>(&'a AtomicUsize);

impl Drop for CountDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Decides in `async` code.
struct Later {
    way: Way,
    counters: Counters,
    watch: Arc<Watch>,
}

impl AsyncBackend for Later {
    const KIND: &'static str = "later";
    const NAME: &'static str = "Later";
    const VERSION: &'static str = "1";
    const VENDOR: &'static str = "Tests";
    const CAPABILITIES: Capabilities = Capabilities::ASYNC.native_batch().shared();
    const MAX_BATCH: u32 = 100;
    const OPTIONS_SCHEMA: &'static str = SCHEMA;
    type Options = Options;

    fn create(context: Context<'_, Options>) -> Result<Self, Diagnostics> {
        // The instance's runtime is there.
        drop(tokio::spawn(async {}));
        Ok(Self {
            way: context.options.way,
            counters: Counters::default(),
            watch: Watch::of(context.key_prefix),
        })
    }

    async fn check(&self, batch: OwnedBatch) -> Vec<Decision> {
        self.watch.begun.fetch_add(1, Ordering::SeqCst);
        match self.way {
            Way::Panic => panic!("no"),
            Way::Wait => {
                let half_way = CountDrop(&self.watch.dropped);
                self.watch.go_on.notified().await;
                std::mem::forget(half_way);
            }
            Way::NoTicket => pending().await,
            Way::Honest | Way::TooFew | Way::TooMany | Way::TicketAndAnswer | Way::DropTicket => {
                tokio::task::yield_now().await
            }
        }
        let stops = batch.stops_at_denial() && self.way != Way::TooMany;
        let mut decisions = self.counters.decide_all(batch.items(), stops);
        if self.way == Way::TooFew {
            decisions.truncate(1);
        }
        decisions
    }

    fn health(&self) -> Health {
        Health {
            state: quota_plugin_sdk::HealthState::Available,
            ..Health::default()
        }
    }

    async fn drain(&self) {
        self.watch.drained.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        self.watch.ended.fetch_add(1, Ordering::SeqCst);
    }
}

/// Takes tickets itself, or decides a batch inside the call.
struct ByHand {
    way: Way,
    counters: Arc<Counters>,
}

impl Backend for ByHand {
    const KIND: &'static str = "by_hand";
    const NAME: &'static str = "By hand";
    const VERSION: &'static str = "1";
    const VENDOR: &'static str = "Tests";
    const CAPABILITIES: Capabilities = Capabilities::ASYNC.native_batch().shared();
    const OPTIONS_SCHEMA: &'static str = SCHEMA;
    type Options = Options;

    fn create(context: Context<'_, Options>) -> Result<Self, Diagnostics> {
        Ok(Self {
            way: context.options.way,
            counters: Arc::default(),
        })
    }

    fn check(&self, item: &Item<'_>, _now_unix_ms: u64) -> Decision {
        self.counters.decide(item)
    }

    fn check_batch(&self, batch: &Batch<'_>) -> Answer {
        let answer_elsewhere = |(batch, ticket): (OwnedBatch, Ticket)| {
            let counters = Arc::clone(&self.counters);
            std::thread::spawn(move || {
                let decisions = counters.decide_all(batch.items(), batch.stops_at_denial());
                ticket.complete(&decisions);
            });
            Answer::Pending
        };
        match self.way {
            // Out of time: not decided, not charged.
            Way::Honest if batch.time_left() == Some(Duration::ZERO) => {
                Answer::Ready(vec![Decision::Failed(Failure::Timeout); batch.len()])
            }
            // Every other batch is decided inside the call.
            Way::Honest if batch.now_unix_ms().is_multiple_of(2) => Answer::Ready(
                self.counters
                    .decide_all(batch.items(), batch.stops_at_denial()),
            ),
            Way::Honest | Way::Wait => answer_elsewhere(batch.take().unwrap()),
            Way::Panic => {
                let _ticket = batch.take();
                panic!("no");
            }
            Way::TooFew => Answer::Ready(Vec::new()),
            Way::TooMany => Answer::Ready(vec![Decision::Allowed { used: [1, 0] }; 9]),
            Way::NoTicket => Answer::Pending,
            Way::TicketAndAnswer => {
                let _answered_by_the_ticket = answer_elsewhere(batch.take().unwrap());
                Answer::Ready(vec![Decision::Failed(Failure::Error); batch.len()])
            }
            Way::DropTicket => {
                let first = batch.take();
                assert!(first.is_some() && batch.take().is_none());
                Answer::Pending
            }
        }
    }

    fn health(&self) -> Health {
        Health {
            state: quota_plugin_sdk::HealthState::Available,
            ..Health::default()
        }
    }
}

/// Makes an instance of one of the two.
type Make = fn(&str, &Settings) -> Instance;

const LATER: Make =
    |way, settings| testing::instance::<Async<Later>>(&json!({ "way": way }), settings);
const BY_HAND: Make = |way, settings| testing::instance::<ByHand>(&json!({ "way": way }), settings);

fn settings(prefix: &str) -> Settings {
    Settings {
        key_prefix: prefix.to_owned(),
        ..Settings::default()
    }
}

fn instance(make: Make, way: &str, prefix: &str) -> Instance {
    make(way, &settings(prefix))
}

const WINDOWS: [AskedWindow; 1] = [AskedWindow {
    kind: AskedKind::Burst,
    limit: 1,
    length_ms: 60_000,
    start_ms: 0,
    reset_ms: 60_000,
}];

const fn item(key: &[u8]) -> Asked<'_> {
    Asked {
        key,
        key_hash: 7,
        windows: &WINDOWS,
    }
}

/// Sends three items, the second of which is denied.
fn send(instance: &Instance, stop_at_denial: bool, deadline: Option<Instant>) -> Sent {
    let items = [item(b"a"), item(b"a"), item(b"b")];
    instance.check_batch(&items, stop_at_denial, true, 1, deadline)
}

const ALLOWED: Verdict = Verdict::Allowed { used: [1, 0] };
const DENIED: Verdict = Verdict::Denied {
    exhausted: [true, false],
    used: [1, 0],
    local: false,
};
const ERROR: Verdict = Verdict::Failed(BackendFailure::Error);
const TIMEOUT: Verdict = Verdict::Failed(BackendFailure::Timeout);
const UNAVAILABLE: Verdict = Verdict::Failed(BackendFailure::Unavailable);

/// A first verdict that ends the batch.
const fn only_first(verdict: Verdict) -> [Verdict; 3] {
    [verdict, Verdict::NotEvaluated, Verdict::NotEvaluated]
}

/// What `instance` answers.
fn answer(instance: &Instance, stop_at_denial: bool) -> Vec<Verdict> {
    send(instance, stop_at_denial, None).wait_until(None)
}

#[test]
fn backends_that_answer_later_do_what_every_backend_must() {
    testing::passes_the_suite::<Async<Later>>(&json!({}));
    testing::passes_the_suite::<ByHand>(&json!({}));
}

#[test]
fn a_batch_ends_where_it_is_told() {
    for make in [LATER, BY_HAND] {
        let zoo = instance(make, "honest", "ends");
        assert_eq!(answer(&zoo, true), [ALLOWED, DENIED, Verdict::NotEvaluated]);
        let again = answer(&zoo, false);
        assert_eq!(again, [DENIED, DENIED, ALLOWED]);
        assert_eq!(zoo.faults(), Faults::default());
    }
}

#[test]
fn a_missing_decision_is_an_error_and_a_surplus_one_is_not_read() {
    let few = instance(LATER, "too_few", "few");
    assert_eq!(answer(&few, false), [ALLOWED, ERROR, Verdict::NotEvaluated]);
    let many = instance(LATER, "too_many", "many");
    assert_eq!(
        answer(&many, true),
        [ALLOWED, DENIED, Verdict::NotEvaluated]
    );
    let none = instance(BY_HAND, "too_few", "none");
    assert_eq!(answer(&none, false), only_first(ERROR));
    let nine = instance(BY_HAND, "too_many", "nine");
    assert_eq!(answer(&nine, false), [ALLOWED; 3]);
}

#[test]
fn a_panic_costs_its_batch() {
    for make in [LATER, BY_HAND] {
        let zoo = instance(make, "panic", "panic");
        for _ in 0..3 {
            assert_eq!(answer(&zoo, true), [ERROR; 3]);
        }
        assert_eq!(zoo.health().state, HealthState::Available);
        assert_eq!(zoo.health().inflight, 0);
    }
}

#[test]
fn a_ticket_answers_whatever_becomes_of_it() {
    let dropped = instance(BY_HAND, "drop_ticket", "drop");
    assert_eq!(answer(&dropped, true), [UNAVAILABLE; 3]);
    let forgotten = instance(BY_HAND, "no_ticket", "forgotten");
    assert_eq!(answer(&forgotten, true), [ERROR; 3]);
    assert_eq!(
        forgotten.health().last_error.as_deref(),
        Some("a batch was to be answered later, and nobody took its ticket")
    );
    let both = instance(BY_HAND, "ticket_and_answer", "both");
    let expected = [ALLOWED, DENIED, Verdict::NotEvaluated];
    assert_eq!(answer(&both, true), expected);
}

#[test]
fn at_the_deadline_what_is_being_decided_is_dropped() {
    let watch = Watch::of("deadline");
    let zoo = instance(LATER, "wait", "deadline");
    let deadline = Instant::now() + Duration::from_millis(500);
    let batch = send(&zoo, true, Some(deadline));
    assert_eq!(batch.wait_until(None), [TIMEOUT; 3]);
    while watch.dropped.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(zoo.health().inflight, 0);
    // What is out of time already does not begin.
    let late = send(&zoo, true, Some(Instant::now()));
    assert_eq!(late.wait_until(None), only_first(TIMEOUT));
    assert_eq!(watch.begun.load(Ordering::SeqCst), 1);
}

#[test]
fn no_more_is_decided_at_once_than_the_host_allows() {
    let watch = Watch::of("places");
    let one = Settings {
        max_inflight: 1,
        ..settings("places")
    };
    let zoo = LATER("wait", &one);
    let first = send(&zoo, true, None);
    watch.until_begun(1);
    // The host waits no longer, the backend goes on: its place is still taken.
    drop(first);
    assert_eq!(answer(&zoo, true), only_first(UNAVAILABLE));
    let health = zoo.health();
    assert_eq!(health.last_failure, Some(BackendFailure::Unavailable));
    assert_eq!(
        health.last_error.as_deref(),
        Some("as many requests as may be are being decided")
    );
    watch.go_on.notify_one();
    // The place is free as soon as that decision is over.
    loop {
        let batch = send(&zoo, true, None);
        if let Sent::Pending(_) = batch {
            watch.until_begun(2);
            watch.go_on.notify_one();
            assert_eq!(batch.wait_until(None), only_first(DENIED));
            break;
        }
        std::thread::yield_now();
    }
}

#[test]
fn draining_waits_for_what_is_being_decided() {
    let watch = Watch::of("drain");
    let zoo = instance(LATER, "wait", "drain");
    let batch = send(&zoo, true, None);
    watch.until_begun(1);
    let end =
        std::thread::spawn(move || zoo.drain_and_destroy(Instant::now() + Duration::from_secs(20)));
    watch.go_on.notify_one();
    assert_eq!(
        batch.wait_until(None),
        [ALLOWED, DENIED, Verdict::NotEvaluated]
    );
    assert_eq!(end.join().unwrap(), End::Destroyed);
    assert_eq!(watch.drained.load(Ordering::SeqCst), 1);
    assert_eq!(watch.dropped.load(Ordering::SeqCst), 0);
    assert_eq!(watch.ended.load(Ordering::SeqCst), 1);
}

#[test]
fn what_is_not_over_at_the_end_is_dropped_and_answered() {
    let watch = Watch::of("end");
    let zoo = instance(LATER, "wait", "end");
    let batch = send(&zoo, true, None);
    watch.until_begun(1);
    assert_eq!(zoo.drain_and_destroy(Instant::now()), End::Destroyed);
    assert_eq!(batch.wait_until(None), [UNAVAILABLE; 3]);
    assert_eq!(watch.dropped.load(Ordering::SeqCst), 1);
    // Not drained, and ended all the same: the value is gone when `destroy` returns.
    assert_eq!(watch.drained.load(Ordering::SeqCst), 0);
    assert_eq!(watch.ended.load(Ordering::SeqCst), 1);
}

//! Carries the engine's checks to the backend and its answers back: batches, deadlines, places among the requests being
//! evaluated, the local fallback, health. It judges nothing: what an answer means is the engine's business.

use std::fmt;
use std::time::Instant;

use quota_compiler::program::Program;
use quota_compiler::terms::{Enforcement, FailurePolicy, WindowKind};
use quota_plugin_host::{self as host, Batch, Instance, Item, PendingBatch, Verdict};
use smallvec::SmallVec;

use crate::backend::{Place, Primary, Stores};
use crate::clock::UnixMillis;
use crate::engine::{Answer, Check, Evaluation, Flow, Prepared};
use crate::metrics::ProgramCells;
use crate::outcome::{BackendFailure, BackendMode, Outcome};
use crate::request::Request;
use crate::window::CheckWindow;

/// Everything a decision needs, swapped as one.
pub(crate) struct Active {
    pub(crate) program: Program,
    pub(crate) stores: Stores,
    cells: ProgramCells,
    /// 1 for the first program, one more for each that differs from its predecessor.
    pub(crate) generation: u64,
    /// The metric labels of the backend modes, in their order.
    mode_labels: [Box<str>; 3],
}

impl fmt::Debug for Active {
    /// Without the settings of the backend, which may hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Active")
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

impl Active {
    pub(crate) fn new(
        program: Program,
        stores: Stores,
        cells: ProgramCells,
        generation: u64,
    ) -> Self {
        let label = |mode: BackendMode| mode.label(&program.backend().kind).into();
        let mode_labels = [
            label(BackendMode::Primary),
            label(BackendMode::FallbackAfterTimeout),
            label(BackendMode::FallbackAfterUnavailable),
        ];
        Self {
            program,
            stores,
            cells,
            generation,
            mode_labels,
        }
    }

    pub(crate) const fn mode_label(&self, mode: BackendMode) -> &str {
        let [primary, after_timeout, after_unavailable] = &self.mode_labels;
        match mode {
            BackendMode::Primary => primary,
            BackendMode::FallbackAfterTimeout => after_timeout,
            BackendMode::FallbackAfterUnavailable => after_unavailable,
        }
    }

    /// The primary, unless quota is disabled and nothing is to be asked.
    fn primary(&self) -> Option<&Primary> {
        self.stores
            .primary
            .as_deref()
            .filter(|_| self.program.enabled())
    }

    pub(crate) fn is_inline(&self) -> bool {
        self.primary()
            .and_then(Primary::instance)
            .is_none_or(Instance::is_inline)
    }

    /// Ends an evaluation and counts its outcomes.
    #[inline]
    fn finish(&self, evaluation: Evaluation<'_>) -> Outcome {
        let outcome = evaluation.finish();
        if self.program.enabled() {
            self.cells.count(&outcome);
        }
        outcome
    }
}

/// Decides inside the call: no waiting, and no allocation once the counters exist. Only for an active program that
/// [is inline](Active::is_inline).
#[inline]
pub(crate) fn decide_inline(active: &Active, request: &Request<'_>, now: UnixMillis) -> Outcome {
    let mut evaluation = Evaluation::start(&active.program, request, now);
    for index in 0..evaluation.len() {
        // Looked at in place: a check is some hundred bytes.
        let prepared = evaluation.prepare(index);
        let answer = match &prepared {
            Prepared::Identity(fault) => Answer::Identity(*fault),
            Prepared::Check(check) => {
                let primary = active.primary();
                let verdict = primary
                    .and_then(Primary::instance)
                    .map_or(NO_INSTANCE, |instance| ask(instance, check, now));
                answer(active, primary, &evaluation, index, check, verdict, now)
            }
        };
        if evaluation.settle(index, answer) == Flow::Stop {
            break;
        }
    }
    active.finish(evaluation)
}

/// What a check gets where there is no instance. An enabled program always has one, so nobody sees it.
const NO_INSTANCE: Verdict = Verdict::Failed(host::BackendFailure::Error);

/// Decides and lets the caller's task wait for the backend.
pub(crate) async fn decide(active: &Active, request: &Request<'_>, now: UnixMillis) -> Outcome {
    if active.is_inline() {
        return decide_inline(active, request, now);
    }
    let mut course = Course::start(active, request, now);
    while let Some(trip) = course.next_trip() {
        let verdicts = match course.send(&trip) {
            Sent::Answered(verdicts) => verdicts,
            Sent::Pending(pending, deadline) => wait(pending, deadline).await,
        };
        course.absorb(&trip, &verdicts);
    }
    course.finish()
}

/// Decides and blocks the calling thread while it waits for the backend.
pub(crate) fn decide_blocking(active: &Active, request: &Request<'_>, now: UnixMillis) -> Outcome {
    if active.is_inline() {
        return decide_inline(active, request, now);
    }
    let mut course = Course::start(active, request, now);
    while let Some(trip) = course.next_trip() {
        let verdicts = match course.send(&trip) {
            Sent::Answered(verdicts) => verdicts,
            Sent::Pending(pending, deadline) => pending.wait_until(deadline),
        };
        course.absorb(&trip, &verdicts);
    }
    course.finish()
}

/// Waits for a trip until its deadline; then every item has timed out, and what comes later does nothing.
async fn wait(mut pending: PendingBatch, deadline: Option<Instant>) -> Vec<Verdict> {
    let Some(deadline) = deadline else {
        return pending.await;
    };
    match tokio::time::timeout_at(deadline.into(), &mut pending).await {
        Ok(verdicts) => verdicts,
        Err(_) => pending.abandon(),
    }
}

/// The checks of one request that travel together, each with its index in the evaluation.
type Trip = SmallVec<[(usize, Check); 2]>;

/// What became of a trip.
enum Sent {
    Answered(Vec<Verdict>),
    Pending(PendingBatch, Option<Instant>),
}

/// The evaluation of one request by a backend that is waited for.
struct Course<'a> {
    active: &'a Active,
    evaluation: Evaluation<'a>,
    now: UnixMillis,
    /// The next evaluation to settle.
    index: usize,
    stopped: bool,
    /// Held from the first trip to the end; the inner `None`: all places were taken.
    place: Option<Option<Place<'a>>>,
}

impl<'a> Course<'a> {
    fn start(active: &'a Active, request: &'a Request<'a>, now: UnixMillis) -> Self {
        Self {
            active,
            evaluation: Evaluation::start(&active.program, request, now),
            now,
            index: 0,
            stopped: false,
            place: None,
        }
    }

    fn enforces(&self) -> bool {
        self.active.program.enforcement() == Enforcement::Enforce
    }

    /// Settles what needs no backend and gathers the next checks that may travel together; `None` when the evaluation is
    /// over.
    fn next_trip(&mut self) -> Option<Trip> {
        let mut trip = Trip::new();
        let most = self.most_per_trip();
        let mut index = self.index;
        while !self.stopped && index < self.evaluation.len() && trip.len() < most {
            match self.evaluation.prepare(index) {
                Prepared::Check(check) => trip.push((index, check)),
                Prepared::Identity(_) if trip.is_empty() => {
                    self.settle_identities_before(index + 1)
                }
                // Later policies are only asked for once it is certain that this one is reached and stops nothing.
                Prepared::Identity(_) if self.enforces() => break,
                Prepared::Identity(_) => {}
            }
            index += 1;
        }
        if trip.is_empty() { None } else { Some(trip) }
    }

    /// How many checks one trip may carry.
    fn most_per_trip(&self) -> usize {
        let plugin = self
            .active
            .primary()
            .and_then(Primary::instance)
            .map(Instance::plugin);
        match plugin {
            Some(plugin) if plugin.capabilities().native_batch() => plugin
                .max_batch()
                .and_then(|most| usize::try_from(most).ok())
                .unwrap_or(usize::MAX),
            Some(_) | None => 1,
        }
    }

    /// Sends a trip off. The request takes its place with the first one and keeps it.
    fn send(&mut self, trip: &Trip) -> Sent {
        let all = |failure| Sent::Answered(vec![Verdict::Failed(failure); trip.len()]);
        let Some(primary) = self.active.primary() else {
            return all(host::BackendFailure::Error);
        };
        let Some(instance) = primary.instance() else {
            return all(host::BackendFailure::Error);
        };
        if self.place.get_or_insert_with(|| primary.enter()).is_none() {
            return all(host::BackendFailure::Unavailable);
        }
        let windows: SmallVec<[Windows; 4]> =
            trip.iter().map(|(_, check)| windows(check)).collect();
        let items: SmallVec<[Item<'_>; 4]> = trip
            .iter()
            .zip(&windows)
            .map(|((_, check), windows)| Item {
                key: check.key(),
                key_hash: check.key_hash(),
                windows: windows.as_slice(),
            })
            .collect();
        let deadline = primary
            .command_timeout
            .and_then(|time| Instant::now().checked_add(time));
        let program = &self.active.program;
        let stop_at_denial = self.enforces();
        let stop_at_failure = stop_at_denial
            && (program.failure_policy() == FailurePolicy::FailClosed
                || program.fallback().is_some());
        match instance.check_batch(
            &items,
            stop_at_denial,
            stop_at_failure,
            self.now.0,
            deadline,
        ) {
            Batch::Ready(verdicts) => Sent::Answered(verdicts),
            Batch::Pending(pending) => Sent::Pending(pending, deadline),
        }
    }

    /// Settles what a trip brought back, in order. What the backend passed over stays to be asked again.
    fn absorb(&mut self, trip: &Trip, verdicts: &[Verdict]) {
        for (position, (index, check)) in trip.iter().enumerate() {
            let verdict = match verdicts.get(position) {
                Some(Verdict::NotEvaluated) if position > 0 => return,
                // The first check of a trip is always answered, by the rules of the host.
                Some(Verdict::NotEvaluated) | None => NO_INSTANCE,
                Some(verdict) => *verdict,
            };
            self.settle_identities_before(*index);
            let primary = self.active.primary();
            let answer = answer(
                self.active,
                primary,
                &self.evaluation,
                *index,
                check,
                verdict,
                self.now,
            );
            self.settle(*index, answer);
            if self.stopped {
                return;
            }
        }
    }

    fn settle_identities_before(&mut self, end: usize) {
        while self.index < end && !self.stopped {
            if let Prepared::Identity(reason) = self.evaluation.prepare(self.index) {
                self.settle(self.index, Answer::Identity(reason));
            } else {
                return;
            }
        }
    }

    fn settle(&mut self, index: usize, answer: Answer) {
        self.stopped = self.evaluation.settle(index, answer) == Flow::Stop;
        self.index = index + 1;
    }

    fn finish(self) -> Outcome {
        self.active.finish(self.evaluation)
    }
}

/// The engine's answer for what the primary said of one check: notes its health, and asks the fallback where the contract
/// wants it asked.
fn answer(
    active: &Active,
    primary: Option<&Primary>,
    evaluation: &Evaluation<'_>,
    index: usize,
    check: &Check,
    verdict: Verdict,
    now: UnixMillis,
) -> Answer {
    let failure = match counted(verdict, BackendMode::Primary) {
        Ok(answer) => {
            if !is_local(verdict) {
                active.cells.count_health(None, false);
                if let Some(primary) = primary {
                    primary.health.decided(now);
                }
            }
            return answer;
        }
        Err(failure) => failure,
    };
    if let Some(primary) = primary {
        let policy = evaluation.policy(index);
        let name = policy.map_or("", |row| &*row.name);
        let detail = || primary.failure_detail(failure);
        primary.health.failed(failure, now, name, detail);
    }
    let mode = match failure {
        BackendFailure::Timeout => BackendMode::FallbackAfterTimeout,
        BackendFailure::Unavailable => BackendMode::FallbackAfterUnavailable,
        BackendFailure::Error => BackendMode::Primary,
    };
    let fallback = active
        .stores
        .fallback
        .as_deref()
        .filter(|_| mode != BackendMode::Primary)
        .and_then(|fallback| fallback.instance());
    let (answer, fallback_decided) = match fallback {
        None => (Err(failure), false),
        Some(instance) => match counted(ask(instance, check, now), mode) {
            Ok(answer) => (Ok(answer), true),
            // Full, most often: that goes to the failure policy, under the primary's mode.
            Err(failure) => (Err(failure), false),
        },
    };
    active.cells.count_health(Some(failure), fallback_decided);
    answer.unwrap_or_else(Answer::Failed)
}

/// A verdict as the engine's answer, or why there is none.
fn counted(verdict: Verdict, mode: BackendMode) -> Result<Answer, BackendFailure> {
    match verdict {
        Verdict::Allowed { used } => Ok(Answer::Counted {
            exhausted: [false; 2],
            used,
            mode,
        }),
        Verdict::Denied {
            exhausted, used, ..
        } => Ok(Answer::Counted {
            exhausted,
            used,
            mode,
        }),
        Verdict::Failed(failure) => Err(failure.into()),
        // Passed over without a reason, which the host makes an error already.
        Verdict::NotEvaluated => Err(BackendFailure::Error),
    }
}

impl From<host::BackendFailure> for BackendFailure {
    fn from(failure: host::BackendFailure) -> Self {
        match failure {
            host::BackendFailure::Timeout => Self::Timeout,
            host::BackendFailure::Unavailable => Self::Unavailable,
            host::BackendFailure::Error => Self::Error,
        }
    }
}

const fn is_local(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Denied { local: true, .. })
}

/// Asks an inline instance.
fn ask(instance: &Instance, check: &Check, now: UnixMillis) -> Verdict {
    let windows = windows(check);
    let item = Item {
        key: check.key(),
        key_hash: check.key_hash(),
        windows: windows.as_slice(),
    };
    instance.check_one(&item, now.0)
}

/// The windows of a check as the host takes them.
enum Windows {
    One([host::Window; 1]),
    Two([host::Window; 2]),
}

impl Windows {
    const fn as_slice(&self) -> &[host::Window] {
        match self {
            Self::One(windows) => windows,
            Self::Two(windows) => windows,
        }
    }
}

fn windows(check: &Check) -> Windows {
    match check.windows() {
        [one, two, ..] => Windows::Two([window(one), window(two)]),
        // INVARIANT: a policy has a window (contract §2); the host refuses one without a limit.
        windows => Windows::One([window(windows.first().unwrap_or(&NO_WINDOW))]),
    }
}

const NO_WINDOW: CheckWindow = CheckWindow {
    kind: WindowKind::Burst,
    limit: 0,
    length_ms: 0,
    start_ms: 0,
    reset_ms: 0,
};

const fn window(window: &CheckWindow) -> host::Window {
    host::Window {
        kind: match window.kind {
            WindowKind::Burst => host::WindowKind::Burst,
            WindowKind::Sustained => host::WindowKind::Sustained,
        },
        limit: window.limit,
        length_ms: window.length_ms,
        start_ms: window.start_ms,
        reset_ms: window.reset_ms,
    }
}

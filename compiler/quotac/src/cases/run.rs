//! Cases on an executor, which is whatever decides requests by a policy file.

use quota_compiler::diagnostic::Diagnostic;
use quota_compiler::span::PolicyText;
use quota_runtime::clock::UnixMillis;
use quota_runtime::outcome::{BackendFailure, Decision, Reason};

use super::{Case, CaseRequest, Expect, ExpectedOutcome, Step};

/// Decides requests by a policy text.
pub trait Executor {
    /// What has been opened.
    type Open: Decides;

    /// Starts afresh on the policy text `bytes`, called `name`.
    ///
    /// # Errors
    ///
    /// The text has faults, or this executor cannot run it.
    fn open(&self, name: &str, bytes: &[u8]) -> Result<Self::Open, NotOpened>;
}

/// An executor that was opened on some policies.
pub trait Decides {
    /// Decides `request` at `now`; `fault` is what the primary backend does instead of counting.
    ///
    /// # Errors
    ///
    /// A fault is asked of a backend that cannot have it.
    fn decide(
        &mut self,
        request: &CaseRequest,
        now: UnixMillis,
        fault: Option<BackendFailure>,
    ) -> Result<Actual, String>;
}

/// Why an executor could not be opened.
#[derive(Clone, Debug)]
pub enum NotOpened {
    /// The policy text has faults.
    Refused {
        /// The text.
        text: PolicyText,
        /// Its faults.
        diagnostics: Vec<Diagnostic>,
    },
    /// Anything else, in words.
    Other(String),
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actual {
    /// The status.
    pub status: u16,
    /// Seconds of `Retry-After`.
    pub retry_after: Option<u32>,
    /// Every evaluated policy, in order.
    pub outcomes: Vec<ActualOutcome>,
}

/// What one policy said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActualOutcome {
    /// The name of the policy.
    pub policy: String,
    /// Its decision.
    pub decision: Decision,
    /// Its reason.
    pub reason: Reason,
    /// Whose counters it was decided by, as metrics show it.
    pub backend_mode: String,
}

/// How a case went.
#[derive(Clone, Debug)]
pub enum CaseResult {
    /// Every repetition of every step met what is expected.
    Passed,
    /// A step did not; later ones were not run, since they stand on it.
    Failed(Box<StepFailure>),
    /// It could not be run.
    NotRun(NotOpened),
}

/// The first step of a case that went wrong.
#[derive(Clone, Debug)]
pub struct StepFailure {
    /// Its index.
    pub step: usize,
    /// Which repetition of it, from 1.
    pub repetition: u32,
    /// What happened, or why nothing could.
    pub actual: Result<Actual, String>,
}

/// Runs `case`, whose policies are the text `bytes` called `name`.
pub fn run<E: Executor>(executor: &E, case: &Case, name: &str, bytes: &[u8]) -> CaseResult {
    let mut open = match executor.open(name, bytes) {
        Ok(open) => open,
        Err(error) => return CaseResult::NotRun(error),
    };
    for (index, step) in case.steps.iter().enumerate() {
        for repetition in 1..=step.repeat {
            let actual = decide(&mut open, case, step);
            let met = actual
                .as_ref()
                .is_ok_and(|actual| meets(&step.expect, actual));
            if !met {
                return CaseResult::Failed(Box::new(StepFailure {
                    step: index,
                    repetition,
                    actual,
                }));
            }
        }
    }
    CaseResult::Passed
}

fn decide(open: &mut impl Decides, case: &Case, step: &Step) -> Result<Actual, String> {
    let now = case
        .start_unix_ms
        .checked_add_signed(step.at_ms)
        .ok_or("the time of this step lies before 1970 or beyond all clocks")?;
    open.decide(&step.request, UnixMillis(now), step.fault)
}

/// Whether everything that is expected holds.
#[must_use]
pub fn meets(expect: &Expect, actual: &Actual) -> bool {
    let outcomes = |expected: &Vec<ExpectedOutcome>| {
        expected.len() == actual.outcomes.len()
            && expected
                .iter()
                .zip(&actual.outcomes)
                .all(|(expected, actual)| outcome_meets(expected, actual))
    };
    expect.status.is_none_or(|status| status == actual.status)
        && expect
            .retry_after
            .is_none_or(|seconds| seconds == actual.retry_after)
        && expect.outcomes.as_ref().is_none_or(outcomes)
}

fn outcome_meets(expected: &ExpectedOutcome, actual: &ActualOutcome) -> bool {
    expected.policy.trim() == actual.policy
        && expected
            .decision
            .is_none_or(|decision| decision == actual.decision)
        && expected.reason.is_none_or(|reason| reason == actual.reason)
        && expected
            .backend_mode
            .as_ref()
            .is_none_or(|mode| *mode == actual.backend_mode)
}

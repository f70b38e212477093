//! Executes a program for one request: asks for counter checks, is handed the answers, says what becomes of the request.
//! Pure: no I/O, no clock, no waiting (contract §3, §4, §6, §8).
//!
//! ```
//! use quota_runtime::engine::{Answer, Evaluation, Flow, Prepared};
//! # use quota_runtime::clock::UnixMillis;
//! # use quota_runtime::compiler::{Limits, backend_kind::KnownKinds, compile};
//! # use quota_runtime::outcome::{BackendMode, Decision};
//! # use quota_runtime::request::{ClientAddress, Request};
//! # let text = b"
//! # enabled: true
//! # policies:
//! #   - name: per-route
//! #     selector: { route: true }
//! #     burst: { requests: 5, window_secs: 10 }
//! # ";
//! # let program = compile("policies.yaml", text, Limits::default(), &KnownKinds).program.unwrap();
//! # let request = Request { route: Some("login"), client: ClientAddress::Unknown, query: None, headers: &[("a", "b")] };
//! let mut evaluation = Evaluation::start(&program, &request, UnixMillis(12_000));
//! for index in 0..evaluation.len() {
//!     let answer = match evaluation.prepare(index) {
//!         Prepared::Identity(fault) => Answer::Identity(fault),
//!         // Here a backend is asked about `check.key()` and `check.windows()`; this one has counted 3 before.
//!         Prepared::Check(check) => Answer::Counted {
//!             exhausted: [false; 2],
//!             used: [4, 0],
//!             mode: BackendMode::Primary,
//!         },
//!     };
//!     if evaluation.settle(index, answer) == Flow::Stop {
//!         break;
//!     }
//! }
//! let outcome = evaluation.finish();
//! assert_eq!(outcome.decision, Decision::Allowed);
//! assert_eq!(outcome.policies[0].burst.unwrap().remaining, 1);
//! ```

use std::fmt;

use quota_compiler::program::{Instruction, PolicyRow, Program, RouteOperand, SlotId, SourceId};
use quota_compiler::terms::{Dimension, Enforcement, FailurePolicy, WindowKind};
use smallvec::{SmallVec, smallvec};

use crate::clock::UnixMillis;
use crate::extract::{Extracted, extract};
use crate::key::Key;
use crate::outcome::{
    BackendFailure, BackendMode, Decision, IdentityFault, Outcome, PolicyOutcome, Reason,
    WindowState,
};
use crate::request::Request;
use crate::window::{WindowList, retry_after_secs};

pub use crate::window::CheckWindow;

/// The dimensions of an instruction's slots, in their order.
const SLOT_DIMENSIONS: [Dimension; 3] = [Dimension::Tenant, Dimension::Token, Dimension::Client];

/// What is to be done for one policy.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "boxing the check would allocate in every decision"
)]
pub enum Prepared {
    /// Ask a counter.
    Check(Check),
    /// No counter is asked: the request has no identity under this policy.
    Identity(IdentityFault),
}

/// One counter check: all windows of one policy and key, to be decided as one.
#[derive(Clone, Debug)]
pub struct Check {
    key: Key,
    windows: WindowList,
}

impl Check {
    /// The composite key, without the key prefix (contract §5).
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// A hash of the key, keyed per process: it spreads keys over a table and never tells them apart.
    #[must_use]
    pub fn key_hash(&self) -> u64 {
        self.key.spread()
    }

    /// One or two windows, burst before sustained.
    #[must_use]
    pub fn windows(&self) -> &[CheckWindow] {
        &self.windows
    }
}

/// What is known of one policy. Arrays are in the order of the check's windows; a place without a window is not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// What [`Evaluation::prepare`] said.
    Identity(IdentityFault),
    /// A counter decided: allowed and charged, unless a window was exhausted.
    Counted {
        /// The windows that had no room; nothing was charged if there is one.
        exhausted: [bool; 2],
        /// Requests counted in each window, after the decision.
        used: [u64; 2],
        /// Whose counter it was.
        mode: BackendMode,
    },
    /// Neither the backend nor a fallback could decide.
    Failed(BackendFailure),
}

/// Whether evaluation goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Flow {
    /// With the next policy.
    Continue,
    /// Not: the request is rejected, later policies stay uncharged.
    Stop,
}

/// The evaluation of one request by one program.
///
/// Policies are [prepared](Self::prepare), asked about, and [settled](Self::settle) in order. Preparing ahead of settling is
/// legal, as checks that travel together need it, and so is preparing again: it has no effect but to remember what was read
/// from the request.
pub struct Evaluation<'a> {
    program: &'a Program,
    request: &'a Request<'a>,
    now: UnixMillis,
    /// Trimmed, not empty.
    route: Option<&'a str>,
    code: &'a [Instruction],
    sources: &'a [SourceId],
    /// What was read of each of `sources`; `None`: not needed yet.
    memo: SmallVec<[Option<Extracted>; 8]>,
    policies: SmallVec<[PolicyOutcome; 4]>,
    stopped_by: Option<usize>,
    retry_after_secs: Option<u32>,
    instructions_read: usize,
    sources_read: usize,
}

impl<'a> Evaluation<'a> {
    /// Begins to evaluate `request` at `now`, the one clock reading it gets.
    #[must_use]
    pub fn start(program: &'a Program, request: &'a Request<'a>, now: UnixMillis) -> Self {
        let route = request
            .route
            .map(str::trim)
            .filter(|route| !route.is_empty());
        let (code, sources) = if program.enabled() {
            let slice = program.slice_for(route);
            (program.instructions(slice), program.sources_of(slice))
        } else {
            (&[][..], &[][..])
        };
        Self {
            program,
            request,
            now,
            route,
            code,
            sources,
            memo: smallvec![None; sources.len()],
            policies: SmallVec::new(),
            stopped_by: None,
            retry_after_secs: None,
            instructions_read: 0,
            sources_read: 0,
        }
    }

    /// How many policies apply to the request. None where quota is not enabled.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.code.len()
    }

    /// Whether no policy applies.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.code.is_empty()
    }

    /// The policy at `index`; `None` beyond the last.
    #[must_use]
    pub fn policy(&self, index: usize) -> Option<&'a PolicyRow> {
        self.program.policy(self.code.get(index)?.policy)
    }

    /// How many instructions of the program were read so far: two for each policy that was prepared once and settled,
    /// however many policies the file has.
    #[must_use]
    pub const fn instructions_read(&self) -> usize {
        self.instructions_read
    }

    /// How many sources were read from the request so far: each that an applicable policy needed, once.
    #[must_use]
    pub const fn sources_read(&self) -> usize {
        self.sources_read
    }

    /// What to ask for the policy at `index`. A place beyond the last policy has no identity.
    pub fn prepare(&mut self, index: usize) -> Prepared {
        let Some((instruction, policy)) = self.read(index) else {
            debug_assert!(false, "policy {index} of {} is prepared", self.len());
            return Prepared::Identity(IdentityFault::Missing);
        };
        match self.key(instruction) {
            Ok(key) => Prepared::Check(Check {
                key,
                windows: WindowList::of(policy, self.now),
            }),
            Err(fault) => Prepared::Identity(fault),
        }
    }

    /// Takes what is known of the policy at `index`: the one after the last settled. Once evaluation has stopped nothing more
    /// is taken.
    pub fn settle(&mut self, index: usize, answer: Answer) -> Flow {
        debug_assert_eq!(index, self.policies.len(), "policies are settled in order");
        debug_assert_eq!(self.stopped_by, None, "evaluation has stopped");
        if self.stopped_by.is_some() {
            return Flow::Stop;
        }
        let Some((instruction, policy)) = self.read(index) else {
            return Flow::Stop;
        };
        let mut outcome = PolicyOutcome {
            policy: instruction.policy,
            decision: Decision::Allowed,
            reason: Reason::Allowed,
            mode: BackendMode::Primary,
            burst: None,
            sustained: None,
        };
        match answer {
            Answer::Identity(fault) => {
                outcome.decision = self.denial();
                outcome.reason = fault.into();
            }
            Answer::Failed(failure) => {
                outcome.decision = self.failure();
                outcome.reason = failure.into();
            }
            Answer::Counted {
                exhausted,
                used,
                mode,
            } => {
                outcome.mode = mode;
                self.judge_windows(&mut outcome, policy, exhausted, used);
            }
        }
        self.policies.push(outcome);
        if outcome.decision.is_admitted() {
            Flow::Continue
        } else {
            self.stopped_by = Some(index);
            Flow::Stop
        }
    }

    /// What becomes of the request.
    #[must_use]
    pub fn finish(self) -> Outcome {
        Outcome::of(
            self.policies,
            self.stopped_by,
            self.retry_after_secs,
            self.now,
        )
    }

    fn read(&mut self, index: usize) -> Option<(&'a Instruction, &'a PolicyRow)> {
        self.instructions_read += 1;
        let instruction = self.code.get(index)?;
        Some((instruction, self.program.policy(instruction.policy)?))
    }

    /// The composite key. Dimensions resolve in its order; the first that does not is the fault (contract §4).
    fn key(&mut self, instruction: &Instruction) -> Result<Key, IdentityFault> {
        let mut key = Key::begin(self.program.template(instruction.template));
        match instruction.route {
            RouteOperand::Absent | RouteOperand::InTemplate => {}
            RouteOperand::FromRequest => {
                key.push_route(self.route.ok_or(IdentityFault::Missing)?);
            }
        }
        for (dimension, slot) in SLOT_DIMENSIONS.into_iter().zip(instruction.slots) {
            if slot != SlotId::NONE {
                key.push_digest(dimension, self.value(slot).digest()?);
            }
        }
        Ok(key)
    }

    /// What the request holds of the source in `slot`, read from it at most once.
    fn value(&mut self, slot: SlotId) -> &Extracted {
        let place = usize::from(slot.0);
        // The verifier has seen that every slot is one of the slice's sources.
        let (Some(id), Some(value)) = (self.sources.get(place), self.memo.get_mut(place)) else {
            return &Extracted::Missing;
        };
        value.get_or_insert_with(|| {
            self.sources_read += 1;
            self.program
                .source(*id)
                .map_or(Extracted::Missing, |source| extract(source, self.request))
        })
    }

    /// Contract §6: the reason is the first exhausted window, `Retry-After` the latest reset of them.
    fn judge_windows(
        &mut self,
        outcome: &mut PolicyOutcome,
        policy: &PolicyRow,
        exhausted: [bool; 2],
        used: [u64; 2],
    ) {
        let windows = WindowList::of(policy, self.now);
        let mut latest_reset = None;
        for ((window, exhausted), used) in windows.iter().zip(exhausted).zip(used) {
            let state = Some(WindowState {
                kind: window.kind,
                limit: window.limit,
                remaining: window.limit.saturating_sub(used),
                reset: UnixMillis(window.reset_ms),
                length_ms: window.length_ms,
            });
            match window.kind {
                WindowKind::Burst => outcome.burst = state,
                WindowKind::Sustained => outcome.sustained = state,
            }
            if exhausted {
                if latest_reset.is_none() {
                    outcome.decision = self.denial();
                    outcome.reason = Reason::exhausted(window.kind);
                }
                latest_reset = latest_reset.max(Some(window.reset_ms));
            }
        }
        if let Some(reset_ms) = latest_reset
            && !outcome.decision.is_admitted()
        {
            self.retry_after_secs = Some(retry_after_secs(reset_ms, self.now));
        }
    }

    const fn denial(&self) -> Decision {
        match self.program.enforcement() {
            Enforcement::Enforce => Decision::Denied,
            Enforcement::Shadow => Decision::ShadowDenied,
        }
    }

    /// Contract §8: under shadow the request was admitted, whatever the failure policy.
    const fn failure(&self) -> Decision {
        match (self.program.enforcement(), self.program.failure_policy()) {
            (Enforcement::Enforce, FailurePolicy::FailClosed) => Decision::FailedClosed,
            (Enforcement::Shadow, _) | (Enforcement::Enforce, FailurePolicy::FailOpen) => {
                Decision::FailedOpen
            }
        }
    }
}

impl fmt::Debug for Evaluation<'_> {
    /// Without what was read from the request.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Evaluation")
            .field("now", &self.now)
            .field("applicable", &self.len())
            .field("policies", &self.policies)
            .field("stopped_by", &self.stopped_by)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use quota_compiler::backend_kind::KnownKinds;
    use quota_compiler::{Limits, compile};

    use super::*;
    use crate::request::{ClientAddress, HeaderLines};

    const NO_HEADERS: &[(&str, &str)] = &[];
    /// 3.5 s into a burst window of 10 s, 1203.5 s into a sustained one of an hour.
    const NOW: UnixMillis = UnixMillis(1_796_001_603_500);

    fn program(text: &str) -> Program {
        let compiled = compile(
            "policies.yaml",
            text.as_bytes(),
            Limits::default(),
            &KnownKinds,
        );
        compiled
            .program
            .unwrap_or_else(|| panic!("{:?}", compiled.checked.diagnostics))
    }

    fn request<'a>(route: Option<&'a str>, headers: &'a dyn HeaderLines) -> Request<'a> {
        Request {
            route,
            client: ClientAddress::Unknown,
            query: None,
            headers,
        }
    }

    /// Evaluates with these answers of counters, one for each check made.
    fn evaluate(program: &Program, request: &Request<'_>, answers: &[Answer]) -> Outcome {
        let mut answers = answers.iter();
        let mut evaluation = Evaluation::start(program, request, NOW);
        for index in 0..evaluation.len() {
            let answer = match evaluation.prepare(index) {
                Prepared::Identity(fault) => Answer::Identity(fault),
                Prepared::Check(_) => *answers.next().unwrap(),
            };
            if evaluation.settle(index, answer) == Flow::Stop {
                break;
            }
        }
        assert_eq!(answers.next(), None, "a counter was not asked");
        evaluation.finish()
    }

    const ALLOWED: Answer = Answer::Counted {
        exhausted: [false; 2],
        used: [1, 1],
        mode: BackendMode::Primary,
    };

    const fn exhausted(exhausted: [bool; 2]) -> Answer {
        Answer::Counted {
            exhausted,
            used: [10, 100],
            mode: BackendMode::Primary,
        }
    }

    const BURST: Answer = exhausted([true, false]);
    const SUSTAINED: Answer = exhausted([false, true]);
    const BOTH: Answer = exhausted([true, true]);

    /// Three policies with both windows; the third needs a header.
    fn three(settings: &str) -> Program {
        let windows = "burst: { requests: 10, window_secs: 10 }
    sustained: { requests: 100, window_secs: 3600 }";
        program(&format!(
            "
enabled: true
{settings}
policies:
  - name: a
    selector: {{ route: true }}
    {windows}
  - name: b
    selector: {{ route: true }}
    route_allowlist: [login]
    {windows}
  - name: c
    selector: {{ route: true, tenant: {{ key: 'header:x-tenant' }} }}
    {windows}
"
        ))
    }

    /// What a row expects: each policy's decision and reason, and the request's.
    type Said = (Decision, Reason);

    /// Evaluates three policies for route `login`, tenant `acme`.
    #[track_caller]
    fn check(
        settings: &str,
        answers: &[Answer],
        expected: &[Said],
        (request_said, status, retry_after_secs): (Said, u16, Option<u32>),
    ) {
        let headers = [("x-tenant", "acme")];
        let outcome = evaluate(&three(settings), &request(Some("login"), &headers), answers);
        let said: Vec<_> = outcome
            .policies
            .iter()
            .map(|policy| (policy.decision, policy.reason))
            .collect();
        assert_eq!(said, expected);
        assert_eq!((outcome.decision, outcome.reason), request_said);
        assert_eq!(outcome.status, status);
        assert_eq!(outcome.retry_after_secs, retry_after_secs);
        assert_eq!(outcome.now, NOW);
        let stopped = (status != 200).then(|| expected.len() - 1);
        assert_eq!(outcome.stopped_by, stopped);
    }

    const OK: Said = (Decision::Allowed, Reason::Allowed);
    const TIMEOUT: Answer = Answer::Failed(BackendFailure::Timeout);
    const UNAVAILABLE: Answer = Answer::Failed(BackendFailure::Unavailable);
    const ERROR: Answer = Answer::Failed(BackendFailure::Error);

    #[test]
    fn a_request_passes_when_every_policy_allows() {
        check("", &[ALLOWED; 3], &[OK; 3], (OK, 200, None));
    }

    #[test]
    fn an_exhausted_window_denies_and_stops() {
        let burst = (Decision::Denied, Reason::BurstQuotaExhausted);
        let sustained = (Decision::Denied, Reason::SustainedQuotaExhausted);
        check("", &[BURST], &[burst], (burst, 429, Some(7)));
        check("", &[SUSTAINED], &[sustained], (sustained, 429, Some(2397)));
        check("", &[ALLOWED, BURST], &[OK, burst], (burst, 429, Some(7)));
        check(
            "",
            &[ALLOWED, ALLOWED, SUSTAINED],
            &[OK, OK, sustained],
            (sustained, 429, Some(2397)),
        );
    }

    #[test]
    fn when_both_are_exhausted_burst_is_the_reason_and_the_later_reset_counts() {
        let burst = (Decision::Denied, Reason::BurstQuotaExhausted);
        check("", &[BOTH], &[burst], (burst, 429, Some(2397)));
    }

    #[test]
    fn shadow_denies_nothing_and_goes_on() {
        let shadow = "enforcement: shadow";
        let burst = (Decision::ShadowDenied, Reason::BurstQuotaExhausted);
        let sustained = (Decision::ShadowDenied, Reason::SustainedQuotaExhausted);
        check(
            shadow,
            &[BURST, ALLOWED, SUSTAINED],
            &[burst, OK, sustained],
            (burst, 200, None),
        );
        check(
            shadow,
            &[ALLOWED, ALLOWED, BOTH],
            &[OK, OK, burst],
            (burst, 200, None),
        );
    }

    #[test]
    fn failures_follow_the_failure_policy() {
        let closed = |reason| (Decision::FailedClosed, reason);
        let open = |reason| (Decision::FailedOpen, reason);
        let (timeout, unavailable, error) = (
            Reason::BackendTimeout,
            Reason::BackendUnavailable,
            Reason::BackendError,
        );
        check(
            "",
            &[TIMEOUT],
            &[closed(timeout)],
            (closed(timeout), 503, None),
        );
        check("", &[ERROR], &[closed(error)], (closed(error), 503, None));
        check(
            "backend_failure_policy: fail_closed",
            &[ALLOWED, UNAVAILABLE],
            &[OK, closed(unavailable)],
            (closed(unavailable), 503, None),
        );
        let fail_open = "backend_failure_policy: fail_open";
        check(
            fail_open,
            &[TIMEOUT, UNAVAILABLE, ERROR],
            &[open(timeout), open(unavailable), open(error)],
            (open(timeout), 200, None),
        );
        check(
            fail_open,
            &[TIMEOUT, ALLOWED, ERROR],
            &[open(timeout), OK, open(error)],
            (OK, 200, None),
        );
        let burst = (Decision::Denied, Reason::BurstQuotaExhausted);
        check(
            fail_open,
            &[TIMEOUT, BURST],
            &[open(timeout), burst],
            (burst, 429, Some(7)),
        );
    }

    #[test]
    fn under_shadow_a_failure_admits_whatever_the_failure_policy() {
        for failure_policy in FailurePolicy::ALL {
            let settings = format!(
                "enforcement: shadow\nbackend_failure_policy: {}",
                failure_policy.as_str()
            );
            let error = (Decision::FailedOpen, Reason::BackendError);
            let burst = (Decision::ShadowDenied, Reason::BurstQuotaExhausted);
            check(
                &settings,
                &[ERROR, ALLOWED, BURST],
                &[error, OK, burst],
                (burst, 200, None),
            );
            check(&settings, &[ERROR; 3], &[error; 3], (error, 200, None));
        }
    }

    /// Evaluates a policy with every dimension; what the request says of its identity.
    #[track_caller]
    fn check_identity(
        enforcement: &str,
        route: Option<&str>,
        client: ClientAddress,
        headers: &[(&str, &str)],
        expected: Result<(), (Decision, Reason)>,
    ) {
        let program = program(&format!(
            "
enabled: true
enforcement: {enforcement}
policies:
  - name: a
    selector:
      route: true
      tenant: {{ key: 'header:x-tenant' }}
      token: {{ key: bearer_token }}
      client: {{ key: client_ip }}
    burst: {{ requests: 10, window_secs: 10 }}
"
        ));
        let request = Request {
            route,
            client,
            query: None,
            headers: &headers,
        };
        let answers: &[Answer] = if expected.is_ok() { &[ALLOWED] } else { &[] };
        let outcome = evaluate(&program, &request, answers);
        let expected = expected.err().unwrap_or(OK);
        assert_eq!((outcome.decision, outcome.reason), expected);
        assert_eq!(outcome.policies.len(), 1);
        assert_eq!(outcome.retry_after_secs, None);
        assert_eq!(outcome.policies[0].burst.is_some(), expected == OK);
        let status = if expected.0 == Decision::Denied {
            429
        } else {
            200
        };
        assert_eq!(outcome.status, status);
    }

    #[test]
    fn dimensions_resolve_in_order_and_the_first_fault_is_the_reason() {
        let known = ClientAddress::parse("192.0.2.7");
        let (bad, unknown) = (ClientAddress::Unparsable, ClientAddress::Unknown);
        let missing = Err((Decision::Denied, Reason::SelectorIdentityMissing));
        let invalid = Err((Decision::Denied, Reason::SelectorIdentityInvalid));
        let tenant = ("x-tenant", "acme");
        let token = ("authorization", "Bearer abc");
        let basic = ("authorization", "Basic abc");
        let check = |route, client, headers: &[_], expected| {
            check_identity("enforce", route, client, headers, expected);
        };
        let login = Some("login");
        check(login, known, &[tenant, token], Ok(()));
        check(None, known, &[tenant, token], missing);
        check(Some(" "), known, &[tenant, token], missing);
        check(None, bad, &[tenant, basic], missing);
        check(login, bad, &[token], missing);
        check(login, known, &[tenant, ("x-tenant", "b"), token], invalid);
        check(login, unknown, &[tenant, basic], invalid);
        check(login, bad, &[tenant], missing);
        check(login, bad, &[tenant, token], invalid);
        check(login, unknown, &[tenant, token], missing);
        // A route is a value without a length limit.
        check(Some(&"r".repeat(10_000)), known, &[tenant, token], Ok(()));
    }

    #[test]
    fn under_shadow_a_missing_identity_is_recorded_only() {
        let missing = (Decision::ShadowDenied, Reason::SelectorIdentityMissing);
        let unknown = ClientAddress::Unknown;
        check_identity("shadow", Some("login"), unknown, &[], Err(missing));
    }

    #[test]
    fn windows_say_what_is_left() {
        let answer = Answer::Counted {
            exhausted: [false, false],
            used: [3, 250],
            mode: BackendMode::FallbackAfterTimeout,
        };
        let outcome = evaluate(&three(""), &request(Some("other"), &NO_HEADERS), &[answer]);
        let policy = outcome.policies[0];
        assert_eq!(policy.policy.0, 0);
        assert_eq!(policy.mode, BackendMode::FallbackAfterTimeout);
        let expected = WindowState {
            kind: WindowKind::Burst,
            limit: 10,
            remaining: 7,
            reset: UnixMillis(1_796_001_610_000),
            length_ms: 10_000,
        };
        assert_eq!(policy.burst, Some(expected));
        // A limit lowered below what is used leaves nothing, not less than nothing.
        let expected = WindowState {
            kind: WindowKind::Sustained,
            limit: 100,
            remaining: 0,
            reset: UnixMillis(1_796_004_000_000),
            length_ms: 3_600_000,
        };
        assert_eq!(policy.sustained, Some(expected));
        // The second applicable policy had no tenant.
        assert_eq!(outcome.policies[1].policy.0, 2);
        assert_eq!(outcome.policies[1].mode, BackendMode::Primary);
        assert_eq!(outcome.policies[1].burst, None);
    }

    #[test]
    fn failed_policies_show_no_windows_and_the_primary_s_mode() {
        let program = three("backend_failure_policy: fail_open");
        let headers = [("x-tenant", "acme")];
        let outcome = evaluate(&program, &request(Some("login"), &headers), &[ERROR; 3]);
        for policy in &outcome.policies {
            assert_eq!((policy.burst, policy.sustained), (None, None));
            assert_eq!(policy.mode, BackendMode::Primary);
        }
    }

    #[test]
    fn policies_apply_by_their_allowlist_and_in_file_order() {
        let windows = "burst: { requests: 10, window_secs: 10 }";
        let program = program(&format!(
            "
enabled: true
policies:
  - {{ name: listed, selector: {{ route: true }}, route_allowlist: [login, ' Login '], {windows} }}
  - {{ name: every, selector: {{ client: {{ key: client_ip }} }}, {windows} }}
  - {{ name: other, selector: {{ route: true }}, route_allowlist: [pay, login], {windows} }}
"
        ));
        #[track_caller]
        fn check(program: &Program, route: Option<&str>, expected: &[&str]) {
            let request = request(route, &NO_HEADERS);
            let evaluation = Evaluation::start(program, &request, NOW);
            let names: Vec<_> = (0..evaluation.len())
                .filter_map(|index| Some(&*evaluation.policy(index)?.name))
                .collect();
            assert_eq!(names, expected);
            assert_eq!(evaluation.is_empty(), expected.is_empty());
        }
        check(&program, Some("login"), &["listed", "every", "other"]);
        check(
            &program,
            Some("\u{a0}login\t"),
            &["listed", "every", "other"],
        );
        check(&program, Some("Login"), &["listed", "every"]);
        check(&program, Some("LOGIN"), &["every"]);
        check(&program, Some("pay"), &["every", "other"]);
        check(&program, Some("pay "), &["every", "other"]);
        check(&program, Some("payments"), &["every"]);
        check(&program, Some(""), &["every"]);
        check(&program, Some("  "), &["every"]);
        check(&program, None, &["every"]);
    }

    #[test]
    fn nothing_applies_where_quota_is_not_enabled_or_no_policy_matches() {
        let policy = "{ name: a, selector: { route: true }, route_allowlist: [pay], burst: { requests: 1, window_secs: 1 } }";
        for enabled in [true, false] {
            let program = program(&format!("enabled: {enabled}\npolicies: [{policy}]"));
            let route = if enabled { "login" } else { "pay" };
            let outcome = evaluate(&program, &request(Some(route), &NO_HEADERS), &[]);
            assert_eq!(outcome, Outcome::not_applied(NOW));
            assert_eq!(outcome.decision, Decision::NotApplied);
            assert_eq!(outcome.status, 200);
        }
    }

    /// Headers that note which name was looked up.
    struct Noting(Mutex<Vec<String>>);

    impl HeaderLines for Noting {
        fn each<'a>(&'a self, name: &str, visit: &mut dyn FnMut(&'a [u8])) {
            self.0.lock().unwrap().push(name.to_owned());
            if name != "x-absent" {
                visit(b"acme");
            }
        }
    }

    #[test]
    fn each_source_is_read_when_first_needed_and_never_again() {
        let windows = "burst: { requests: 10, window_secs: 10 }";
        let program = program(&format!(
            "
enabled: true
enforcement: shadow
policies:
  - {{ name: a, selector: {{ tenant: {{ key: 'header:x-absent' }}, token: {{ key: 'header:x-late' }} }}, {windows} }}
  - {{ name: b, selector: {{ tenant: {{ key: 'header:x-tenant' }} }}, {windows} }}
  - {{ name: c, selector: {{ client: {{ key: 'header:X-Tenant' }} }}, {windows} }}
  - {{ name: d, selector: {{ token: {{ key: 'header:x-absent' }} }}, {windows} }}
  - {{ name: e, selector: {{ token: {{ key: 'header:x-late' }} }}, {windows} }}
"
        ));
        let headers = Noting(Mutex::default());
        let request = request(None, &headers);
        let mut evaluation = Evaluation::start(&program, &request, NOW);
        assert_eq!(evaluation.len(), 5);
        for index in [0, 0, 1, 2, 3, 2] {
            let prepared = evaluation.prepare(index);
            assert_eq!(
                matches!(prepared, Prepared::Identity(IdentityFault::Missing)),
                [0, 3].contains(&index)
            );
        }
        assert_eq!(*headers.0.lock().unwrap(), ["x-absent", "x-tenant"]);
        assert_eq!(evaluation.sources_read(), 2);
        assert!(matches!(evaluation.prepare(4), Prepared::Check(_)));
        assert_eq!(
            *headers.0.lock().unwrap(),
            ["x-absent", "x-tenant", "x-late"]
        );
        assert_eq!(evaluation.sources_read(), 3);
    }

    /// The key and windows of the policy at `index`.
    #[track_caller]
    fn prepared(program: &Program, request: &Request<'_>, index: usize) -> Check {
        match Evaluation::start(program, request, NOW).prepare(index) {
            Prepared::Check(check) => check,
            Prepared::Identity(fault) => panic!("{fault:?}"),
        }
    }

    #[test]
    fn preparing_again_asks_the_same() {
        let program = three("");
        let headers = [("x-tenant", "acme")];
        let request = request(Some("login"), &headers);
        let mut evaluation = Evaluation::start(&program, &request, NOW);
        for index in [2, 1, 0, 2] {
            let Prepared::Check(check) = evaluation.prepare(index) else {
                panic!("policy {index} has an identity");
            };
            let alone = prepared(&program, &request, index);
            assert_eq!(check.key(), alone.key());
            assert_eq!(check.key_hash(), alone.key_hash());
            assert_eq!(check.windows(), alone.windows());
        }
    }

    #[test]
    fn a_key_depends_on_policy_and_identity_only() {
        let text = |allowlist: &str, selector: &str, requests: u64, more: &str| {
            format!(
                "
enabled: true
policies:
  {more}
  - name: a
    route_allowlist: {allowlist}
    selector: {selector}
    burst: {{ requests: {requests}, window_secs: 10 }}
"
            )
        };
        let key = |text: &str, index| {
            let headers = [("x-a", "acme"), ("x-b", "acme")];
            prepared(&program(text), &request(Some("login"), &headers), index)
                .key()
                .to_vec()
        };
        let by_a = "{ route: true, tenant: { key: 'header:x-a' } }";
        let first = key(&text("[]", by_a, 1, ""), 0);
        // The allowlist, so that the route is known at compile time; the limit; the source; the place in the file.
        assert_eq!(first, key(&text("[login]", by_a, 1, ""), 0));
        assert_eq!(first, key(&text("[login, pay]", by_a, 9, ""), 0));
        let by_b = "{ route: true, tenant: { key: 'header:x-b' } }";
        assert_eq!(first, key(&text("[]", by_b, 1, ""), 0));
        let other =
            "- { name: b, selector: { route: true }, burst: { requests: 1, window_secs: 1 } }";
        assert_eq!(first, key(&text("[]", by_a, 1, other), 1));
        // The same value in another dimension is another identity, and so is another policy's.
        let as_token = "{ route: true, token: { key: 'header:x-a' } }";
        assert_ne!(first, key(&text("[]", as_token, 1, ""), 0));
        let renamed = text("[]", by_a, 1, "").replace("name: a", "name: A");
        assert_ne!(first, key(&renamed, 0));
    }

    #[test]
    fn a_long_route_has_the_same_key_in_the_template_and_from_the_request() {
        for length in [127, 128, 129, 1_000] {
            let route = "r".repeat(length);
            let key = |allowlist: &str| {
                let program = program(&format!(
                    "
enabled: true
policies:
  - name: a
    route_allowlist: [{allowlist}]
    selector: {{ route: true }}
    burst: {{ requests: 1, window_secs: 10 }}
"
                ));
                prepared(&program, &request(Some(&route), &NO_HEADERS), 0)
                    .key()
                    .to_vec()
            };
            assert_eq!(key(""), key(&route), "{length} bytes");
        }
    }
}

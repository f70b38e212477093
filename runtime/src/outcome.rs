//! What a decision says, and the spellings of its words. The vocabularies are closed: a new word is a change of the contract.

use std::fmt;

use quota_compiler::program::PolicyId;
use quota_compiler::terms::WindowKind;
use smallvec::SmallVec;

use crate::clock::UnixMillis;

/// What happened to a request, or to one policy's evaluation (contract §1, §8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Decision {
    /// Every window had room; one request was charged.
    Allowed,
    /// Rejected: a window was exhausted, or an identity missing or invalid.
    Denied,
    /// Would have been denied, but enforcement is `shadow`.
    ShadowDenied,
    /// Admitted without a counter having been asked.
    FailedOpen,
    /// Rejected because no counter could be asked.
    FailedClosed,
    /// No policy applied, or quota is not enabled.
    NotApplied,
}

impl Decision {
    /// Every decision.
    pub const ALL: [Self; 6] = [
        Self::Allowed,
        Self::Denied,
        Self::ShadowDenied,
        Self::FailedOpen,
        Self::FailedClosed,
        Self::NotApplied,
    ];

    /// The word of metrics, logs and answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::ShadowDenied => "shadow_denied",
            Self::FailedOpen => "failed_open",
            Self::FailedClosed => "failed_closed",
            Self::NotApplied => "not_applied",
        }
    }

    /// Whether the request is admitted.
    #[must_use]
    pub const fn is_admitted(self) -> bool {
        match self {
            Self::Allowed | Self::ShadowDenied | Self::FailedOpen | Self::NotApplied => true,
            Self::Denied | Self::FailedClosed => false,
        }
    }

    /// The HTTP status of a request decided so (contract §8): 200, 429 or 503.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::Allowed | Self::ShadowDenied | Self::FailedOpen | Self::NotApplied => 200,
            Self::Denied => 429,
            Self::FailedClosed => 503,
        }
    }
}

/// Why (contract §1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Every window had room.
    Allowed,
    /// No policy applied, or quota is not enabled.
    NotApplied,
    /// The burst window was exhausted, perhaps the sustained one too.
    BurstQuotaExhausted,
    /// Only the sustained window was exhausted.
    SustainedQuotaExhausted,
    /// A selected dimension has no value.
    SelectorIdentityMissing,
    /// A selected dimension has a value that is malformed, oversized or not one value.
    SelectorIdentityInvalid,
    /// A timer of the backend ran out.
    BackendTimeout,
    /// The backend could not be reached, refused for now, or is full.
    BackendUnavailable,
    /// The backend failed in any other way.
    BackendError,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 9] = [
        Self::Allowed,
        Self::NotApplied,
        Self::BurstQuotaExhausted,
        Self::SustainedQuotaExhausted,
        Self::SelectorIdentityMissing,
        Self::SelectorIdentityInvalid,
        Self::BackendTimeout,
        Self::BackendUnavailable,
        Self::BackendError,
    ];

    /// The word of metrics, logs and answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::NotApplied => "not_applied",
            Self::BurstQuotaExhausted => "burst_quota_exhausted",
            Self::SustainedQuotaExhausted => "sustained_quota_exhausted",
            Self::SelectorIdentityMissing => "selector_identity_missing",
            Self::SelectorIdentityInvalid => "selector_identity_invalid",
            Self::BackendTimeout => "backend_timeout",
            Self::BackendUnavailable => "backend_unavailable",
            Self::BackendError => "backend_error",
        }
    }

    /// The reason of a denial by this window.
    #[must_use]
    pub const fn exhausted(window: WindowKind) -> Self {
        match window {
            WindowKind::Burst => Self::BurstQuotaExhausted,
            WindowKind::Sustained => Self::SustainedQuotaExhausted,
        }
    }
}

impl From<BackendFailure> for Reason {
    fn from(failure: BackendFailure) -> Self {
        match failure {
            BackendFailure::Timeout => Self::BackendTimeout,
            BackendFailure::Unavailable => Self::BackendUnavailable,
            BackendFailure::Error => Self::BackendError,
        }
    }
}

impl From<IdentityFault> for Reason {
    fn from(fault: IdentityFault) -> Self {
        match fault {
            IdentityFault::Missing => Self::SelectorIdentityMissing,
            IdentityFault::Invalid => Self::SelectorIdentityInvalid,
        }
    }
}

/// Why a selector has no identity in a request (contract §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IdentityFault {
    /// A selected dimension has no value.
    Missing,
    /// A selected dimension has a value that is malformed, oversized or not one value.
    Invalid,
}

/// Why a backend could not decide (contract §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BackendFailure {
    /// A timer ran out; the check may have been charged.
    Timeout,
    /// Not reachable, refusing for now, or full.
    Unavailable,
    /// Anything else; never enters a fallback.
    Error,
}

impl BackendFailure {
    /// Every failure.
    pub const ALL: [Self; 3] = [Self::Timeout, Self::Unavailable, Self::Error];

    /// The `reason` of the backend health metric (contract §9).
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Unavailable => "unavailable",
            Self::Error => "error",
        }
    }
}

/// Which counters a decision stands on (contract §9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BackendMode {
    /// The configured backend, or none at all.
    Primary,
    /// The local fallback decided, the backend having timed out.
    FallbackAfterTimeout,
    /// The local fallback decided, the backend having been unavailable.
    FallbackAfterUnavailable,
}

impl BackendMode {
    /// Every mode.
    pub const ALL: [Self; 3] = [
        Self::Primary,
        Self::FallbackAfterTimeout,
        Self::FallbackAfterUnavailable,
    ];

    /// What follows the kind in the label.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Primary => "",
            Self::FallbackAfterTimeout => "_local_fallback_backend_timeout",
            Self::FallbackAfterUnavailable => "_local_fallback_backend_unavailable",
        }
    }

    /// The `backend_mode` label of a backend of this kind.
    #[must_use]
    pub fn label(self, kind: &str) -> String {
        format!("{kind}{}", self.suffix())
    }

    /// Writes [`label`](Self::label) without a string of its own.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn write(self, kind: &str, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_str(kind)?;
        out.write_str(self.suffix())
    }
}

/// One window of one policy, as its counter stood after the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowState {
    /// Burst or sustained.
    pub kind: WindowKind,
    /// Requests the window admits.
    pub limit: u64,
    /// Requests left; 0 where the limit was lowered below what is used.
    pub remaining: u64,
    /// When the window ends, by the clock reading of the decision.
    pub reset: UnixMillis,
    /// Its length in milliseconds.
    pub length_ms: u64,
}

/// What one policy said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyOutcome {
    /// The policy, of the program that was executed.
    pub policy: PolicyId,
    /// What it decided.
    pub decision: Decision,
    /// Why.
    pub reason: Reason,
    /// Whose counters it decided by.
    pub mode: BackendMode,
    /// The burst window; `None` where the policy has none or no counter decided.
    pub burst: Option<WindowState>,
    /// The sustained window; `None` where the policy has none or no counter decided.
    pub sustained: Option<WindowState>,
}

/// What all applicable policies together said about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The request's own decision (contract §3).
    pub decision: Decision,
    /// Its reason.
    pub reason: Reason,
    /// 200 where the request is admitted, 429 where it is denied, 503 where it failed closed.
    pub status: u16,
    /// Seconds until a retry can succeed; only where exhausted windows denied the request.
    pub retry_after_secs: Option<u32>,
    /// The evaluated policies, in file order; empty where none applied.
    pub policies: SmallVec<[PolicyOutcome; 4]>,
    /// Index in `policies` of the one that stopped evaluation.
    pub stopped_by: Option<usize>,
    /// The clock reading the request was decided by.
    pub now: UnixMillis,
}

impl Outcome {
    /// The outcome of a request that no policy applied to.
    #[must_use]
    pub fn not_applied(now: UnixMillis) -> Self {
        Self::of(SmallVec::new(), None, None, now)
    }

    /// The policy whose decision and reason are the request's own; `None` where no policy applied.
    #[must_use]
    pub fn deciding_policy(&self) -> Option<&PolicyOutcome> {
        deciding(&self.policies, self.stopped_by)
    }

    /// The outcome of a request these policies were evaluated for.
    pub(crate) fn of(
        policies: SmallVec<[PolicyOutcome; 4]>,
        stopped_by: Option<usize>,
        retry_after_secs: Option<u32>,
        now: UnixMillis,
    ) -> Self {
        let (decision, reason) = deciding(&policies, stopped_by)
            .map_or((Decision::NotApplied, Reason::NotApplied), |policy| {
                (policy.decision, policy.reason)
            });
        Self {
            decision,
            reason,
            status: decision.status(),
            retry_after_secs,
            policies,
            stopped_by,
            now,
        }
    }
}

/// Contract §3: the policy that stopped evaluation; else the first one denied in shadow; else the first that allowed; else the
/// first that failed open.
fn deciding(policies: &[PolicyOutcome], stopped_by: Option<usize>) -> Option<&PolicyOutcome> {
    if let Some(index) = stopped_by {
        return policies.get(index);
    }
    [
        Decision::ShadowDenied,
        Decision::Allowed,
        Decision::FailedOpen,
    ]
    .into_iter()
    .find_map(|decision| policies.iter().find(|policy| policy.decision == decision))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_words_of_a_vocabulary_are_spelled_alike() {
        let decisions: BTreeSet<_> = Decision::ALL.map(Decision::as_str).into();
        assert_eq!(decisions.len(), Decision::ALL.len());
        let reasons: BTreeSet<_> = Reason::ALL.map(Reason::as_str).into();
        assert_eq!(reasons.len(), Reason::ALL.len());
        let failures: BTreeSet<_> = BackendFailure::ALL.map(BackendFailure::as_str).into();
        assert_eq!(failures.len(), BackendFailure::ALL.len());
    }

    #[test]
    fn reasons_of_failures_name_them() {
        for failure in BackendFailure::ALL {
            let reason = Reason::from(failure).as_str();
            assert_eq!(reason.strip_prefix("backend_"), Some(failure.as_str()));
        }
    }

    #[test]
    fn a_mode_label_is_the_kind_and_what_it_fell_back_from() {
        #[track_caller]
        fn check(mode: BackendMode, expected: &str) {
            assert_eq!(mode.label("redis"), expected);
            let mut written = String::new();
            mode.write("redis", &mut written).unwrap();
            assert_eq!(written, expected);
        }
        check(BackendMode::Primary, "redis");
        check(
            BackendMode::FallbackAfterTimeout,
            "redis_local_fallback_backend_timeout",
        );
        check(
            BackendMode::FallbackAfterUnavailable,
            "redis_local_fallback_backend_unavailable",
        );
    }

    #[test]
    fn admitted_decisions_have_status_200_and_no_other_has() {
        for decision in Decision::ALL {
            assert_eq!(decision.is_admitted(), decision.status() == 200);
        }
        assert_eq!(Decision::Denied.status(), 429);
        assert_eq!(Decision::FailedClosed.status(), 503);
    }

    /// The request's own decision and reason after these policies; `stopped` by the last one.
    #[track_caller]
    fn check(policies: &[(Decision, Reason)], stopped: bool, expected: (Decision, Reason)) {
        let policies: SmallVec<_> = policies
            .iter()
            .zip(0..)
            .map(|(&(decision, reason), id)| PolicyOutcome {
                policy: PolicyId(id),
                decision,
                reason,
                mode: BackendMode::Primary,
                burst: None,
                sustained: None,
            })
            .collect();
        let stopped_by = stopped.then(|| policies.len() - 1);
        let outcome = Outcome::of(policies, stopped_by, None, UnixMillis(0));
        assert_eq!((outcome.decision, outcome.reason), expected);
    }

    #[test]
    fn the_request_takes_the_decision_of_the_policy_that_matters_most() {
        let allowed = (Decision::Allowed, Reason::Allowed);
        let open = |reason| (Decision::FailedOpen, reason);
        let shadow = |reason| (Decision::ShadowDenied, reason);
        let (timeout, error) = (Reason::BackendTimeout, Reason::BackendError);
        let (burst, missing) = (Reason::BurstQuotaExhausted, Reason::SelectorIdentityMissing);
        check(&[], false, (Decision::NotApplied, Reason::NotApplied));
        check(&[allowed], false, allowed);
        check(&[allowed, open(timeout)], false, allowed);
        check(&[open(timeout), allowed], false, allowed);
        check(&[open(timeout), open(error)], false, open(timeout));
        check(
            &[allowed, shadow(burst), shadow(missing)],
            false,
            shadow(burst),
        );
        check(
            &[open(error), shadow(missing), allowed],
            false,
            shadow(missing),
        );
        let denied = (Decision::Denied, Reason::SustainedQuotaExhausted);
        check(&[allowed, denied], true, denied);
        check(&[open(timeout), denied], true, denied);
        let closed = (Decision::FailedClosed, error);
        check(&[allowed, closed], true, closed);
    }
}

//! What is asked of a backend and what it answers: items, windows, verdicts.

use quota_plugin_abi::{
    QUOTA_ALLOWED, QUOTA_DENIED, QUOTA_ERROR, QUOTA_NOT_EVALUATED, QUOTA_RESULT_LOCAL,
    QUOTA_TIMEOUT, QUOTA_UNAVAILABLE, QUOTA_WINDOW_BURST, QUOTA_WINDOW_SUSTAINED, quota_result,
    quota_window,
};

/// Which of the two windows of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowKind {
    /// The short one.
    Burst,
    /// The long one.
    Sustained,
}

/// One fixed window at the moment of the decision (contract §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Burst or sustained.
    pub kind: WindowKind,
    /// Requests the window admits; at least 1.
    pub limit: u64,
    /// Length in milliseconds; at least 1.
    pub length_ms: u64,
    /// First millisecond, Unix time.
    pub start_ms: u64,
    /// First millisecond that is no longer in it, Unix time.
    pub reset_ms: u64,
}

/// One counter check.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// The composite key, without the key prefix (contract §5).
    pub key: &'a [u8],
    /// Hash of the key, keyed per process; only spreads keys, never tells them apart.
    pub key_hash: u64,
    /// One or two windows, burst before sustained.
    pub windows: &'a [Window],
}

/// Why a backend could not decide (contract §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackendFailure {
    /// A timer ran out; the check may have been charged.
    Timeout,
    /// Not reachable, refusing for now, or full.
    Unavailable,
    /// Anything else, a misbehaving plugin included; never enters a fallback.
    Error,
}

/// The answer to one item. Arrays are in the order of the item's windows; a place without a window is 0 or `false`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every window had room and was charged 1.
    Allowed {
        /// Count of each window after the decision.
        used: [u64; 2],
    },
    /// At least one window was exhausted; nothing was charged.
    Denied {
        /// Which windows were exhausted.
        exhausted: [bool; 2],
        /// Count of each window.
        used: [u64; 2],
        /// A denial already known, repeated without asking the store: moves no health (contract §7).
        local: bool,
    },
    /// An earlier item ended the batch; nothing was charged.
    NotEvaluated,
    /// The backend could not decide.
    Failed(BackendFailure),
}

impl Window {
    const fn to_abi(self) -> quota_window {
        quota_window {
            kind: match self.kind {
                WindowKind::Burst => QUOTA_WINDOW_BURST,
                WindowKind::Sustained => QUOTA_WINDOW_SUSTAINED,
            },
            flags: 0,
            limit: self.limit,
            length_ms: self.length_ms,
            start_ms: self.start_ms,
            reset_ms: self.reset_ms,
        }
    }
}

/// The windows as the ABI carries them and how many they are; `None` unless they are one or two.
#[inline]
pub(crate) const fn windows_to_abi(windows: &[Window]) -> Option<(u32, [quota_window; 2])> {
    const NO_WINDOW: quota_window = quota_window {
        kind: 0,
        flags: 0,
        limit: 0,
        length_ms: 0,
        start_ms: 0,
        reset_ms: 0,
    };
    match windows {
        [one] => Some((1, [one.to_abi(), NO_WINDOW])),
        [one, two] => Some((2, [one.to_abi(), two.to_abi()])),
        _ => None,
    }
}

/// The failure a negative code stands for; `None` for every other value.
#[inline]
pub(crate) const fn failure(code: i32) -> Option<BackendFailure> {
    match code {
        QUOTA_TIMEOUT => Some(BackendFailure::Timeout),
        QUOTA_UNAVAILABLE => Some(BackendFailure::Unavailable),
        QUOTA_ERROR => Some(BackendFailure::Error),
        _ => None,
    }
}

/// What a result says of an item with `window_count` windows; `None` if it says nothing that can be true.
#[inline]
pub(crate) const fn verdict(result: &quota_result, window_count: u32) -> Option<Verdict> {
    match result.code {
        QUOTA_ALLOWED => Some(Verdict::Allowed { used: result.used }),
        QUOTA_DENIED => {
            let possible = if window_count == 1 { 0b01 } else { 0b11 };
            if result.exhausted == 0 || result.exhausted & !possible != 0 {
                return None;
            }
            Some(Verdict::Denied {
                exhausted: [result.exhausted & 0b01 != 0, result.exhausted & 0b10 != 0],
                used: result.used,
                local: result.flags & QUOTA_RESULT_LOCAL != 0,
            })
        }
        QUOTA_NOT_EVALUATED => Some(Verdict::NotEvaluated),
        code => match failure(code) {
            Some(failure) => Some(Verdict::Failed(failure)),
            None => None,
        },
    }
}

/// The verdicts of a batch and how many of them had to be made up because the plugin's made no sense. Holes, unknown
/// codes and items passed over without a reason are errors.
pub(crate) fn verdicts(
    results: &[quota_result],
    window_counts: &[u32],
    stop_at_denial: bool,
    stop_at_failure: bool,
) -> (Vec<Verdict>, u64) {
    let mut faults = 0;
    let mut stopped = false;
    let verdicts = results
        .iter()
        .zip(window_counts)
        .map(|(result, &window_count)| {
            let verdict =
                verdict(result, window_count).filter(|v| *v != Verdict::NotEvaluated || stopped);
            let verdict = verdict.unwrap_or_else(|| {
                faults += 1;
                Verdict::Failed(BackendFailure::Error)
            });
            stopped |= match verdict {
                Verdict::Denied { .. } => stop_at_denial,
                Verdict::Failed(_) => stop_at_failure,
                Verdict::Allowed { .. } | Verdict::NotEvaluated => false,
            };
            verdict
        })
        .collect();
    (verdicts, faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(result: quota_result, window_count: u32, expected: Option<Verdict>) {
        assert_eq!(verdict(&result, window_count), expected);
    }

    fn result(code: i32, exhausted: u32) -> quota_result {
        quota_result {
            code,
            exhausted,
            ..quota_result::default()
        }
    }

    #[test]
    fn a_result_means_what_its_code_says_or_nothing() {
        check(result(1, 0), 2, Some(Verdict::Allowed { used: [0, 0] }));
        check(result(3, 0), 2, Some(Verdict::NotEvaluated));
        check(
            result(-1, 0),
            1,
            Some(Verdict::Failed(BackendFailure::Timeout)),
        );
        check(
            result(-2, 0),
            1,
            Some(Verdict::Failed(BackendFailure::Unavailable)),
        );
        check(
            result(-3, 0),
            1,
            Some(Verdict::Failed(BackendFailure::Error)),
        );
        for code in [0, 4, 77, -4, i32::MIN, i32::MAX] {
            check(result(code, 0), 1, None);
        }
    }

    #[test]
    fn a_denial_names_windows_that_exist() {
        let denied = |exhausted| Verdict::Denied {
            exhausted,
            used: [0, 0],
            local: false,
        };
        check(result(2, 1), 1, Some(denied([true, false])));
        check(result(2, 3), 2, Some(denied([true, true])));
        check(result(2, 2), 2, Some(denied([false, true])));
        check(result(2, 0), 2, None);
        check(result(2, 2), 1, None);
        check(result(2, 4), 2, None);
    }

    #[test]
    fn an_item_may_be_passed_over_only_after_a_stop() {
        let results = [result(2, 1), result(3, 0)];
        let passed_over = |denial| verdicts(&results, &[1, 1], denial, false);
        assert_eq!(passed_over(true).0[1], Verdict::NotEvaluated);
        assert_eq!(passed_over(true).1, 0);
        assert_eq!(
            passed_over(false).0[1],
            Verdict::Failed(BackendFailure::Error)
        );
        assert_eq!(passed_over(false).1, 1);
    }
}

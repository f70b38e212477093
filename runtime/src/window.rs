//! Fixed windows at the moment of a decision: start, reset, `Retry-After` (contract §6).

use std::ops::Deref;

use quota_compiler::program::{PolicyRow, WindowOperand};
use quota_compiler::terms::WindowKind;

use crate::clock::UnixMillis;

/// One window instance a counter is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckWindow {
    /// Burst or sustained.
    pub kind: WindowKind,
    /// Requests the window admits.
    pub limit: u64,
    /// Its length in milliseconds.
    pub length_ms: u64,
    /// First millisecond, Unix time.
    pub start_ms: u64,
    /// First millisecond that is no longer in it, Unix time.
    pub reset_ms: u64,
}

impl CheckWindow {
    /// The instance of `window` that `now` lies in.
    #[must_use]
    pub const fn at(kind: WindowKind, window: WindowOperand, now: UnixMillis) -> Self {
        let length_ms = window.length_ms.get();
        let start_ms = now.0 - now.0 % length_ms;
        Self {
            kind,
            limit: window.requests.get(),
            length_ms,
            start_ms,
            reset_ms: start_ms.saturating_add(length_ms),
        }
    }
}

/// The windows of one policy, burst before sustained; reads as a slice.
#[derive(Clone, Copy, Debug)]
pub struct WindowList {
    /// INVARIANT: the first `len` are the windows; a place beyond is [`WindowList::NONE`].
    places: [CheckWindow; 2],
    len: usize,
}

impl WindowList {
    /// What stands in a place without a window.
    const NONE: CheckWindow = CheckWindow {
        kind: WindowKind::Burst,
        limit: 0,
        length_ms: 0,
        start_ms: 0,
        reset_ms: 0,
    };

    /// The windows of a policy that `now` lies in.
    #[must_use]
    pub fn of(policy: &PolicyRow, now: UnixMillis) -> Self {
        let burst = policy
            .burst
            .map(|window| CheckWindow::at(WindowKind::Burst, window, now));
        let sustained = policy
            .sustained
            .map(|window| CheckWindow::at(WindowKind::Sustained, window, now));
        match (burst, sustained) {
            (Some(burst), Some(sustained)) => Self {
                places: [burst, sustained],
                len: 2,
            },
            (Some(only), None) | (None, Some(only)) => Self {
                places: [only, Self::NONE],
                len: 1,
            },
            (None, None) => Self {
                places: [Self::NONE; 2],
                len: 0,
            },
        }
    }
}

impl Deref for WindowList {
    type Target = [CheckWindow];

    fn deref(&self) -> &[CheckWindow] {
        self.places.get(..self.len).unwrap_or_default()
    }
}

/// `Retry-After` for a window that ends at `reset_ms`: whole seconds from `now`, rounded up, at least 1 and at most 2³² − 1.
#[must_use]
pub fn retry_after_secs(reset_ms: u64, now: UnixMillis) -> u32 {
    let seconds = reset_ms.saturating_sub(now.0).div_ceil(1000);
    u32::try_from(seconds).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    fn operand(requests: u64, length_ms: u64) -> WindowOperand {
        WindowOperand {
            requests: NonZeroU64::new(requests).unwrap(),
            length_ms: NonZeroU64::new(length_ms).unwrap(),
        }
    }

    const CENTURY_MS: u64 = 3_153_600_000_000;

    #[test]
    fn a_window_starts_at_a_multiple_of_its_length_and_holds_now() {
        #[track_caller]
        fn check(length_ms: u64, now: u64, (start_ms, reset_ms): (u64, u64)) {
            let window = CheckWindow::at(
                WindowKind::Sustained,
                operand(7, length_ms),
                UnixMillis(now),
            );
            assert_eq!((window.start_ms, window.reset_ms), (start_ms, reset_ms));
            assert_eq!((window.limit, window.length_ms), (7, length_ms));
            assert_eq!(window.kind, WindowKind::Sustained);
            assert!(window.start_ms <= now && window.reset_ms >= now);
        }
        check(1_000, 0, (0, 1_000));
        check(1_000, 999, (0, 1_000));
        check(1_000, 1_000, (1_000, 2_000));
        check(1_000, 1_001, (1_000, 2_000));
        check(60_000, 119_999, (60_000, 120_000));
        check(60_000, 120_000, (120_000, 180_000));
        check(
            10_000,
            1_796_000_123_456,
            (1_796_000_120_000, 1_796_000_130_000),
        );
        check(7_000, 15_000, (14_000, 21_000));
        check(CENTURY_MS, 1_796_000_123_456, (0, CENTURY_MS));
        check(CENTURY_MS, CENTURY_MS, (CENTURY_MS, 2 * CENTURY_MS));
        // The last window of time: it ends where the number does.
        check(1_000, u64::MAX, (u64::MAX - u64::MAX % 1_000, u64::MAX));
        check(
            CENTURY_MS,
            u64::MAX,
            (u64::MAX - u64::MAX % CENTURY_MS, u64::MAX),
        );
        check(1, 5, (5, 6));
    }

    #[test]
    fn retry_after_is_whole_seconds_rounded_up() {
        #[track_caller]
        fn check(reset_ms: u64, now: u64, expected: u32) {
            assert_eq!(retry_after_secs(reset_ms, UnixMillis(now)), expected);
        }
        check(10_000, 0, 10);
        check(10_000, 1, 10);
        check(10_000, 1_000, 9);
        check(10_000, 1_001, 9);
        check(10_000, 8_999, 2);
        check(10_000, 9_000, 1);
        check(10_000, 9_999, 1);
        check(10_000, 10_000, 1);
        check(10_000, 11_000, 1);
        check(0, 0, 1);
        check(CENTURY_MS, 0, 3_153_600_000);
        check(u64::MAX, 0, u32::MAX);
        check(u64::from(u32::MAX) * 1_000, 0, u32::MAX);
        check(u64::from(u32::MAX) * 1_000 - 1_000, 0, u32::MAX - 1);
    }

    #[test]
    fn retry_after_never_exceeds_the_window() {
        for length_ms in [1_000, 7_000, 60_000, 86_400_000, CENTURY_MS] {
            for now in [
                0,
                1,
                999,
                1_000,
                59_999,
                1_796_000_123_456,
                u64::MAX - 1,
                u64::MAX,
            ] {
                let now = UnixMillis(now);
                let window = CheckWindow::at(WindowKind::Burst, operand(1, length_ms), now);
                let retry_after = u64::from(retry_after_secs(window.reset_ms, now));
                assert!((1..=length_ms / 1_000).contains(&retry_after));
            }
        }
    }

    #[test]
    fn a_list_holds_the_windows_there_are_burst_first() {
        let row = |burst, sustained| PolicyRow {
            name: "a".into(),
            selector_dimensions: "route".into(),
            view: quota_compiler::program::PolicyView {
                route_allowlist: Box::default(),
                route: true,
                tenant: None,
                token: None,
                client: None,
            },
            burst,
            sustained,
            line: 1,
        };
        #[track_caller]
        fn check(row: &PolicyRow, expected: &[(WindowKind, u64, u64)]) {
            let windows = WindowList::of(row, UnixMillis(12_345));
            let windows: Vec<_> = windows
                .iter()
                .map(|window| (window.kind, window.limit, window.start_ms))
                .collect();
            assert_eq!(windows, expected);
        }
        let (short, long) = (operand(2, 1_000), operand(9, 10_000));
        let burst = (WindowKind::Burst, 2, 12_000);
        let sustained = (WindowKind::Sustained, 9, 10_000);
        check(&row(Some(short), Some(long)), &[burst, sustained]);
        check(&row(Some(short), None), &[burst]);
        check(&row(None, Some(long)), &[sustained]);
    }
}

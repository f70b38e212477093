//! Wall-clock time. The only file that reads it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixMillis(pub u64);

/// Where the time of a decision comes from; read once per request (contract §6).
pub trait Clock: fmt::Debug + Send + Sync {
    /// The wall-clock time. It may step back.
    fn now(&self) -> UnixMillis;
}

/// The clock of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    /// A reading before 1970 counts as 1970.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place where the wall clock is read"
    )]
    fn now(&self) -> UnixMillis {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        UnixMillis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
    }
}

/// A clock that stands still until it is set, for tests and simulations.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that shows `now`.
    #[must_use]
    pub const fn new(now: UnixMillis) -> Self {
        Self(AtomicU64::new(now.0))
    }

    /// Sets the time, forwards or backwards.
    pub fn set(&self, now: UnixMillis) {
        self.0.store(now.0, Ordering::SeqCst);
    }

    /// Moves on by `millis`, at most to the end of time.
    pub fn advance(&self, millis: u64) {
        self.update(|now| now.saturating_add(millis));
    }

    /// Steps back by `millis`, at most to 1970.
    pub fn step_back(&self, millis: u64) {
        self.update(|now| now.saturating_sub(millis));
    }

    fn update(&self, change: impl Fn(u64) -> u64) {
        let mut now = self.0.load(Ordering::SeqCst);
        while let Err(other) =
            self.0
                .compare_exchange_weak(now, change(now), Ordering::SeqCst, Ordering::SeqCst)
        {
            now = other;
        }
    }
}

impl Clock for ManualClock {
    fn now(&self) -> UnixMillis {
        UnixMillis(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_is_past_2020() {
        assert!(SystemClock.now() > UnixMillis(1_577_836_800_000));
    }

    #[test]
    fn a_manual_clock_moves_only_when_told() {
        let clock = ManualClock::new(UnixMillis(1_000));
        assert_eq!(clock.now(), UnixMillis(1_000));
        clock.advance(500);
        assert_eq!(clock.now(), UnixMillis(1_500));
        clock.step_back(1_400);
        assert_eq!(clock.now(), UnixMillis(100));
        clock.step_back(1_000);
        assert_eq!(clock.now(), UnixMillis(0));
        clock.set(UnixMillis(u64::MAX));
        clock.advance(1);
        assert_eq!(clock.now(), UnixMillis(u64::MAX));
    }
}

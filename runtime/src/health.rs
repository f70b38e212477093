//! How the primary backend is doing, as its decisions show: availability, degraded, recent errors (contract §9).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::Serialize;

use crate::clock::UnixMillis;
use crate::metrics::{AVAILABLE, shard_count, thread_number};
use crate::outcome::BackendFailure;

/// The most recent errors kept.
pub const RECENT_ERRORS: usize = 8;

/// Never observed.
const NEVER: u64 = u64::MAX;

/// What is known of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Availability {
    /// Quota is disabled; nobody asks the backend.
    Disabled,
    /// Nothing has been asked yet.
    Unknown,
    /// The last answer was a decision.
    Available,
    /// The last answer was a failure, or a fallback decides.
    Degraded,
}

/// `quota.backend_status` of the admin view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BackendStatus {
    /// What is known of the backend.
    pub availability: Availability,
    /// Whether the last answer was a failure; clears with the next decision of the primary.
    pub degraded: bool,
    /// How the primary last answered: `available`, `timeout`, `unavailable` or `error`; `None` before the first answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_reason: Option<&'static str>,
    /// The clock reading of the last request the backend was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_observed_at_unix_ms: Option<u64>,
    /// At most [`RECENT_ERRORS`], newest first; they stay when the backend is well again.
    pub recent_errors: Vec<RecentError>,
}

impl BackendStatus {
    /// The status while quota is disabled.
    #[must_use]
    pub const fn disabled() -> Self {
        Self {
            availability: Availability::Disabled,
            degraded: false,
            health_reason: None,
            last_observed_at_unix_ms: None,
            recent_errors: Vec::new(),
        }
    }
}

/// One failure of the backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecentError {
    /// The clock reading of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_at_unix_ms: Option<u64>,
    /// The policy that was being evaluated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_name: Option<Box<str>>,
    /// `timeout`, `unavailable` or `error`.
    pub reason: &'static str,
    /// What the backend said about it, without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// When a backend was last asked, by threads of one shard.
#[derive(Debug)]
#[repr(align(128))]
struct LastObserved(AtomicU64);

/// Health of one primary backend instance; another instance starts another one.
#[derive(Debug)]
pub(crate) struct Health {
    kind: Box<str>,
    degraded: AtomicBool,
    last_observed: Box<[LastObserved]>,
    errors: Mutex<Errors>,
}

#[derive(Debug, Default)]
struct Errors {
    /// The failure that made it degraded; `None` while it is well.
    reason: Option<BackendFailure>,
    /// Newest first.
    recent: VecDeque<RecentError>,
}

impl Errors {
    /// What the backend said of a failure like this one in the same second.
    fn known_detail(&self, failure: BackendFailure, now: UnixMillis) -> Option<Option<String>> {
        let newest = self.recent.front()?;
        let second = |millis: u64| millis / 1000;
        let same = self.reason == Some(failure)
            && newest.observed_at_unix_ms.map(second) == Some(second(now.0));
        same.then(|| newest.detail.clone())
    }
}

impl Health {
    pub(crate) fn new(kind: &str) -> Self {
        Self {
            kind: kind.into(),
            degraded: AtomicBool::new(false),
            last_observed: (0..shard_count())
                .map(|_| LastObserved(AtomicU64::new(NEVER)))
                .collect(),
            errors: Mutex::default(),
        }
    }

    /// The primary decided. Writes nothing another thread reads but the thread's own cell, unless it was degraded.
    pub(crate) fn decided(&self, now: UnixMillis) {
        self.observe(now);
        if self.degraded.load(Ordering::Relaxed) {
            self.recover();
        }
    }

    #[cold]
    fn recover(&self) {
        let mut errors = self.errors.lock();
        // Under the lock, so that of a failure and a decision at the same moment one is the later for both fields.
        self.degraded.store(false, Ordering::Relaxed);
        if errors.reason.take().is_some() {
            drop(errors);
            tracing::info!(
                backend = &*self.kind,
                "the quota backend is available again"
            );
        }
    }

    /// The primary failed while `policy` was being evaluated. `detail` asks it what it says about that, which happens once
    /// a second at most: a dead backend must not be kept busy with explaining itself.
    #[cold]
    pub(crate) fn failed(
        &self,
        failure: BackendFailure,
        now: UnixMillis,
        policy: &str,
        detail: impl FnOnce() -> Option<String>,
    ) {
        self.observe(now);
        let known = self.errors.lock().known_detail(failure, now);
        let detail = known.unwrap_or_else(detail);
        let error = RecentError {
            observed_at_unix_ms: Some(now.0),
            policy_name: Some(policy.into()),
            reason: failure.as_str(),
            detail: detail.clone(),
        };
        let mut errors = self.errors.lock();
        self.degraded.store(true, Ordering::Relaxed);
        let was_well = errors.reason.replace(failure).is_none();
        errors.recent.truncate(RECENT_ERRORS - 1);
        errors.recent.push_front(error);
        drop(errors);
        if was_well {
            tracing::warn!(
                backend = &*self.kind,
                policy,
                reason = failure.as_str(),
                detail,
                "the quota backend fails"
            );
        }
    }

    fn observe(&self, now: UnixMillis) {
        let shard = thread_number() & self.last_observed.len().wrapping_sub(1);
        if let Some(cell) = self.last_observed.get(shard)
            && cell.0.load(Ordering::Relaxed) != now.0
        {
            cell.0.store(now.0, Ordering::Relaxed);
        }
    }

    /// Whether the last answer was a failure.
    pub(crate) fn is_degraded(&self) -> bool {
        self.degraded.load(Ordering::Relaxed)
    }

    pub(crate) fn status(&self) -> BackendStatus {
        let last_observed = self
            .last_observed
            .iter()
            .map(|cell| cell.0.load(Ordering::Relaxed))
            .filter(|at| *at != NEVER)
            .max();
        let errors = self.errors.lock();
        let degraded = self.is_degraded();
        let availability = match (degraded, last_observed) {
            (true, _) => Availability::Degraded,
            (false, Some(_)) => Availability::Available,
            (false, None) => Availability::Unknown,
        };
        BackendStatus {
            availability,
            degraded,
            health_reason: match errors.reason {
                Some(failure) => Some(failure.as_str()),
                None => last_observed.map(|_| AVAILABLE),
            },
            last_observed_at_unix_ms: last_observed,
            recent_errors: errors.recent.iter().cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_known_before_the_first_answer() {
        let status = Health::new("redis").status();
        assert_eq!(status.availability, Availability::Unknown);
        assert_eq!(status.health_reason, None);
        assert_eq!(status.last_observed_at_unix_ms, None);
    }

    #[test]
    fn a_failure_degrades_until_the_next_decision_and_stays_listed() {
        let health = Health::new("redis");
        health.failed(BackendFailure::Timeout, UnixMillis(5), "a", || {
            Some("slow".to_owned())
        });
        let status = health.status();
        assert_eq!(status.availability, Availability::Degraded);
        assert!(status.degraded);
        assert_eq!(status.health_reason, Some("timeout"));
        assert_eq!(status.last_observed_at_unix_ms, Some(5));

        health.decided(UnixMillis(9));
        let status = health.status();
        assert_eq!(status.availability, Availability::Available);
        assert!(!status.degraded);
        assert_eq!(status.health_reason, Some("available"));
        assert_eq!(status.last_observed_at_unix_ms, Some(9));
        assert_eq!(status.recent_errors.len(), 1);
        assert_eq!(status.recent_errors[0].reason, "timeout");
        assert_eq!(status.recent_errors[0].policy_name.as_deref(), Some("a"));
        assert_eq!(status.recent_errors[0].detail.as_deref(), Some("slow"));
    }

    #[test]
    fn the_newest_eight_errors_are_kept_newest_first() {
        let health = Health::new("redis");
        for at in 0..20 {
            health.failed(BackendFailure::Error, UnixMillis(at), "a", || None);
        }
        let times: Vec<_> = health
            .status()
            .recent_errors
            .iter()
            .map(|error| error.observed_at_unix_ms)
            .collect();
        assert_eq!(times, (12..20).rev().map(Some).collect::<Vec<_>>());
    }
}

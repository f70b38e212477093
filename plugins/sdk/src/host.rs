//! What the host offers an instance: a log, a place to explain failures, a clock.
#![expect(unsafe_code, reason = "calls the functions of the host's table")]

use quota_plugin_abi::{
    QUOTA_HOST_SIZE_1_0, QUOTA_LOG_DEBUG, QUOTA_LOG_ERROR, QUOTA_LOG_INFO, QUOTA_LOG_TRACE,
    QUOTA_LOG_WARN, QUOTA_RESULT_SIZE_1_0, quota_host, quota_result, quota_str,
};

use crate::Failure;
use crate::export::declared_size;

/// How important a log line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Someone should act.
    Warn,
    /// Worth knowing.
    Info,
    /// For debugging.
    Debug,
    /// For tracing.
    Trace,
}

impl LogLevel {
    const fn to_abi(self) -> u32 {
        match self {
            Self::Error => QUOTA_LOG_ERROR,
            Self::Warn => QUOTA_LOG_WARN,
            Self::Info => QUOTA_LOG_INFO,
            Self::Debug => QUOTA_LOG_DEBUG,
            Self::Trace => QUOTA_LOG_TRACE,
        }
    }
}

/// The host of one instance. Cheap to clone, usable from any thread; no function blocks or calls back.
#[derive(Clone, Copy, Debug)]
pub struct Host(&'static quota_host);

impl Host {
    /// The host behind a pointer; `None` if it is null or smaller than version 1.0.
    ///
    /// # Safety
    /// `host` is null or points to a host's table that is constant for the life of the process.
    pub(crate) unsafe fn from_raw(host: *const quota_host) -> Option<Self> {
        // SAFETY: null or a table (this function's contract), which begins with its size.
        if unsafe { declared_size(host) } < QUOTA_HOST_SIZE_1_0 {
            return None;
        }
        // SAFETY: not null and at least as large as the type, which has the size of 1.0, by the line above; constant for
        // the life of the process.
        let host: &'static quota_host = unsafe { &*host };
        Some(Self(host))
    }

    /// Whether lines of `level` are kept: saves formatting those that are not.
    #[must_use]
    pub const fn keeps(self, level: LogLevel) -> bool {
        level.to_abi() <= self.0.max_level
    }

    /// Logs one line of at most 4 KiB under `target`; 100 lines a second are kept.
    pub fn log(self, level: LogLevel, target: &str, text: &str) {
        if let Some(log) = self.0.log
            && self.keeps(level)
        {
            // SAFETY: a function of the host's table with its own context; the texts outlive the call.
            unsafe {
                log(
                    self.0.ctx,
                    level.to_abi(),
                    quota_str::new(target),
                    quota_str::new(text),
                );
            }
        }
    }

    /// Explains recent failures; the last text is shown to operators, so no secrets and no keys.
    pub fn report_error(self, failure: Failure, text: &str) {
        if let Some(report_error) = self.0.report_error {
            // SAFETY: as in `log`.
            unsafe { report_error(self.0.ctx, failure.class(), quota_str::new(text)) };
        }
    }

    /// Answers a pending batch. What the host says to it changes nothing any more.
    pub(crate) fn complete(self, ticket: u64, results: &[quota_result]) {
        if let (Some(complete), Ok(count)) = (self.0.complete, u32::try_from(results.len())) {
            // SAFETY: a function of the host's table with its own context; there are `count` results, which outlive the call,
            // as far apart as an array has them.
            let _taken_late_or_nonsense = unsafe {
                complete(
                    self.0.ctx,
                    ticket,
                    results.as_ptr(),
                    count,
                    QUOTA_RESULT_SIZE_1_0,
                )
            };
        }
    }

    /// The monotonic clock of deadlines, in nanoseconds; 0 if the host has none.
    #[must_use]
    pub fn now_mono_ns(self) -> u64 {
        self.0.now_mono_ns.map_or(0, |now_mono_ns| {
            // SAFETY: a function of the host's table with its own context.
            unsafe { now_mono_ns(self.0.ctx) }
        })
    }
}

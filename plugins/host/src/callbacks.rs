//! What a plugin calls back: completions, logs, error texts, the clock.
//!
//! The context a plugin holds is a number, never an address: it is looked up among the living instances, and numbers are
//! not used twice. A callback that comes after `destroy` finds nothing and is counted. Host tables (some hundred bytes
//! each) are leaked on purpose: a plugin may keep one as long as the process lives.
#![expect(unsafe_code, reason = "functions a plugin calls with raw pointers")]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use quota_plugin_abi::{
    QUOTA_ABI_MAJOR, QUOTA_ABI_MINOR, QUOTA_COMPLETE_LATE, QUOTA_COMPLETE_NONSENSE,
    QUOTA_COMPLETE_TAKEN, QUOTA_HOST_SIZE_1_0, QUOTA_LOG_DEBUG, QUOTA_LOG_ERROR, QUOTA_LOG_INFO,
    QUOTA_LOG_TRACE, QUOTA_LOG_WARN, QUOTA_RESULT_SIZE_1_0, quota_host, quota_result, quota_str,
};

use crate::decision::BackendFailure;
use crate::ticket::{Answer, Tickets};

const LOG_LINE_MAX: usize = 4096;
const ERROR_TEXT_MAX: usize = 1024;
const LINES_PER_SECOND: u32 = 100;
const SECOND: Duration = Duration::from_secs(1);

/// How important a log line of a plugin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Someone should look.
    Warn,
    /// Worth knowing.
    Info,
    /// For finding faults.
    Debug,
    /// Everything.
    Trace,
}

/// The process has a logger already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log of the plugins goes to another logger already")]
pub struct LoggerAlreadySet;

/// Answers of a plugin that broke the rules of the ABI; none of them did harm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Completions that came after the host gave up, or a second time. After a deadline that is no fault of the plugin.
    pub late: u64,
    /// Completions with an unknown ticket, without results or with a wrong number of them.
    pub nonsense: u64,
    /// Results and return values that mean nothing, counted as errors.
    pub meaningless: u64,
}

type Logger = Box<dyn Fn(LogLevel, &str, &str, &str) + Send + Sync>;

static LOGGER: OnceLock<(LogLevel, Logger)> = OnceLock::new();
static INSTANCES: RwLock<BTreeMap<u64, Arc<Shared>>> = RwLock::new(BTreeMap::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);
static AFTER_DESTROY: AtomicU64 = AtomicU64::new(0);

/// Sends what plugins log to `logger(level, kind, target, text)`, for the whole process. Lines above `max_level` are
/// dropped; instances made before keep the level there was. The logger is called on threads of plugins and must neither
/// block nor panic.
///
/// # Errors
/// There is a logger already.
pub fn set_logger(
    max_level: LogLevel,
    logger: impl Fn(LogLevel, &str, &str, &str) + Send + Sync + 'static,
) -> Result<(), LoggerAlreadySet> {
    LOGGER
        .set((max_level, Box::new(logger)))
        .map_err(|_| LoggerAlreadySet)
}

/// How often a plugin called back for an instance that was destroyed before.
#[must_use]
pub fn callbacks_after_destroy() -> u64 {
    AFTER_DESTROY.load(Ordering::Relaxed)
}

fn log_line(level: LogLevel, kind: &str, target: &str, text: &str) {
    if let Some((max_level, logger)) = LOGGER.get()
        && level <= *max_level
    {
        logger(level, kind, target, text);
    }
}

/// Admits a number of lines a second and remembers how many it refused.
#[derive(Debug, Default)]
struct RateLimit {
    since: Duration,
    lines: u32,
    dropped: u64,
}

impl RateLimit {
    /// Whether a line may pass, and how many were dropped in a second that is over.
    fn admit(&mut self, now: Duration) -> (bool, u64) {
        let mut dropped = 0;
        if now.saturating_sub(self.since) >= SECOND {
            dropped = std::mem::take(&mut self.dropped);
            self.since = now;
            self.lines = 0;
        }
        let admitted = self.lines < LINES_PER_SECOND;
        if admitted {
            self.lines += 1;
        } else {
            self.dropped += 1;
        }
        (admitted, dropped)
    }
}

/// What a plugin last said of its failures.
#[derive(Debug, Default)]
struct Reported {
    limit: RateLimit,
    /// Class and text.
    last: Option<(Option<BackendFailure>, String)>,
}

/// What an instance's callbacks work on; outlives the instance as long as an answer is awaited.
#[derive(Debug)]
pub(crate) struct Shared {
    id: u64,
    kind: Box<str>,
    pub(crate) tickets: Tickets,
    log_limit: Mutex<RateLimit>,
    error: Mutex<Reported>,
    late: AtomicU64,
    nonsense: AtomicU64,
    meaningless: AtomicU64,
    told_of_faults: AtomicBool,
}

impl Shared {
    /// Registers a new instance of `kind`.
    pub(crate) fn register(kind: &str, max_inflight: u64) -> Arc<Self> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::new(Self {
            id,
            kind: kind.into(),
            tickets: Tickets::new(max_inflight),
            log_limit: Mutex::default(),
            error: Mutex::default(),
            late: AtomicU64::new(0),
            nonsense: AtomicU64::new(0),
            meaningless: AtomicU64::new(0),
            told_of_faults: AtomicBool::new(false),
        });
        INSTANCES.write().insert(id, Arc::clone(&shared));
        shared
    }

    /// Ends the callbacks of this instance.
    pub(crate) fn unregister(&self) {
        INSTANCES.write().remove(&self.id);
        let dropped = std::mem::take(&mut self.log_limit.lock().dropped);
        self.tell_dropped(dropped);
    }

    /// The table given to the plugin; lives as long as the process.
    pub(crate) fn host_table(&self) -> &'static quota_host {
        let id = usize::try_from(self.id).unwrap_or(0);
        Box::leak(Box::new(quota_host {
            struct_size: QUOTA_HOST_SIZE_1_0,
            reserved: 0,
            abi_major: QUOTA_ABI_MAJOR,
            abi_minor: QUOTA_ABI_MINOR,
            reserved1: 0,
            ctx: ptr::without_provenance_mut(id),
            host_name: quota_str::new(env!("CARGO_PKG_NAME")),
            host_version: quota_str::new(env!("CARGO_PKG_VERSION")),
            max_level: LOGGER.get().map_or(0, |(level, _)| match level {
                LogLevel::Error => QUOTA_LOG_ERROR,
                LogLevel::Warn => QUOTA_LOG_WARN,
                LogLevel::Info => QUOTA_LOG_INFO,
                LogLevel::Debug => QUOTA_LOG_DEBUG,
                LogLevel::Trace => QUOTA_LOG_TRACE,
            }),
            reserved2: 0,
            complete: Some(complete),
            log: Some(log),
            report_error: Some(report_error),
            now_mono_ns: Some(now_mono_ns),
            get_extension: Some(get_extension),
        }))
    }

    pub(crate) fn faults(&self) -> Faults {
        Faults {
            late: self.late.load(Ordering::Relaxed),
            nonsense: self.nonsense.load(Ordering::Relaxed),
            meaningless: self.meaningless.load(Ordering::Relaxed),
        }
    }

    /// Counts results or return values that mean nothing.
    #[cold]
    pub(crate) fn count_meaningless(&self, number: u64) {
        self.meaningless.fetch_add(number, Ordering::Relaxed);
        self.tell_of_faults(
            "a check was answered with a result that means nothing; it counts as an error",
        );
    }

    /// The failure last reported: its class and text.
    pub(crate) fn last_error(&self) -> Option<(Option<BackendFailure>, String)> {
        self.error.lock().last.clone()
    }

    /// Answers a ticket on behalf of the plugin; counts what makes no sense.
    pub(crate) fn answer(
        &self,
        ticket: u64,
        count: u32,
        copy: impl FnOnce(&mut Vec<quota_result>),
    ) -> Answer {
        let answer = self.tickets.answer(ticket, count, copy);
        match answer {
            Answer::Taken => {}
            Answer::Late => {
                self.late.fetch_add(1, Ordering::Relaxed);
            }
            Answer::Nonsense => self.count_nonsense(),
        }
        answer
    }

    #[cold]
    fn count_nonsense(&self) {
        self.nonsense.fetch_add(1, Ordering::Relaxed);
        self.tell_of_faults(
            "a completion named an unknown ticket, no results or a wrong number of them",
        );
    }

    /// One warning per instance, however often it misbehaves.
    fn tell_of_faults(&self, what: &str) {
        if !self.told_of_faults.swap(true, Ordering::Relaxed) {
            log_line(LogLevel::Warn, &self.kind, "quota_plugin_host", what);
        }
    }

    fn tell_dropped(&self, dropped: u64) {
        if dropped > 0 {
            let text = format!("{dropped} log lines dropped");
            log_line(LogLevel::Warn, &self.kind, "quota_plugin_host", &text);
        }
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub(crate) fn mono_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid timespec to write to; CLOCK_MONOTONIC exists on every system this builds for.
    let _always_zero = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// A deadline on the clock of plugins; 0 for none, and never 0 for one.
pub(crate) fn deadline_ns(deadline: Option<Instant>) -> u64 {
    deadline.map_or(0, |deadline| {
        let left = deadline
            .saturating_duration_since(Instant::now())
            .as_nanos();
        mono_ns()
            .saturating_add(u64::try_from(left).unwrap_or(u64::MAX))
            .max(1)
    })
}

/// Text of a plugin made harmless: at most `max` bytes, UTF-8, control characters escaped.
///
/// # Safety
/// The bytes of `text` can be read.
pub(crate) unsafe fn harmless(text: quota_str, max: usize) -> String {
    let cut = quota_str {
        ptr: text.ptr,
        len: text.len.min(max),
    };
    // SAFETY: a prefix of what this function's caller says can be read; it is copied before returning.
    let bytes = unsafe { cut.as_bytes() };
    harmless_bytes(bytes, text.len > max)
}

/// As [`harmless`]; `cut` says that the text goes on, so that a character may be cut in two at the end.
pub(crate) fn harmless_bytes(bytes: &[u8], cut: bool) -> String {
    let mut harmless = String::with_capacity(bytes.len());
    let mut chunks = bytes.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        for character in chunk.valid().chars() {
            if character.is_control() {
                harmless.extend(character.escape_default());
            } else {
                harmless.push(character);
            }
        }
        let is_cut_character = cut && chunks.peek().is_none();
        if !chunk.invalid().is_empty() && !is_cut_character {
            harmless.push(char::REPLACEMENT_CHARACTER);
        }
    }
    harmless
}

fn instance(ctx: *mut c_void) -> Option<Arc<Shared>> {
    let id = u64::try_from(ctx.addr()).unwrap_or(0);
    let found = INSTANCES.read().get(&id).map(Arc::clone);
    if found.is_none() {
        AFTER_DESTROY.fetch_add(1, Ordering::Relaxed);
    }
    found
}

unsafe extern "C" fn complete(
    ctx: *mut c_void,
    ticket: u64,
    results: *const quota_result,
    count: u32,
    result_stride: u32,
) -> i32 {
    let Some(instance) = instance(ctx) else {
        return QUOTA_COMPLETE_LATE;
    };
    if results.is_null() || result_stride < QUOTA_RESULT_SIZE_1_0 {
        // No answer can be read; the batch still gets one, as a wrong count does.
        let _nonsense_too = instance.tickets.answer(ticket, u32::MAX, |_| {});
        instance.count_nonsense();
        return QUOTA_COMPLETE_NONSENSE;
    }
    let answer = instance.answer(ticket, count, |into| {
        let stride = usize::try_from(result_stride).unwrap_or(usize::MAX);
        into.extend((0..usize::try_from(count).unwrap_or(0)).map(|index| {
            let result = results.wrapping_byte_add(index.wrapping_mul(stride));
            // SAFETY: the plugin passes `count` results `result_stride` bytes apart (the ABI of `complete`), and `count`
            // is the one it was given, or this is not called. Unaligned, since a stride may be any number.
            unsafe { result.read_unaligned() }
        }));
    });
    match answer {
        Answer::Taken => QUOTA_COMPLETE_TAKEN,
        Answer::Late => QUOTA_COMPLETE_LATE,
        Answer::Nonsense => QUOTA_COMPLETE_NONSENSE,
    }
}

unsafe extern "C" fn log(ctx: *mut c_void, level: u32, target: quota_str, text: quota_str) {
    let Some(instance) = instance(ctx) else {
        return;
    };
    let level = match level {
        QUOTA_LOG_ERROR => LogLevel::Error,
        QUOTA_LOG_WARN => LogLevel::Warn,
        QUOTA_LOG_DEBUG => LogLevel::Debug,
        QUOTA_LOG_TRACE => LogLevel::Trace,
        _ => LogLevel::Info,
    };
    if LOGGER.get().is_none_or(|(max_level, _)| level > *max_level) {
        return;
    }
    let (admitted, dropped) = instance
        .log_limit
        .lock()
        .admit(Duration::from_nanos(mono_ns()));
    instance.tell_dropped(dropped);
    if !admitted {
        return;
    }
    // SAFETY: the plugin passes text that can be read during the call (the ABI of `log`).
    let target = unsafe { harmless(target, 256) };
    // SAFETY: as for the target.
    let text = unsafe { harmless(text, LOG_LINE_MAX) };
    log_line(level, &instance.kind, &target, &text);
}

/// Keeps what was reported last, for operators: what becomes of a check is told by its result.
unsafe extern "C" fn report_error(ctx: *mut c_void, error_class: u32, text: quota_str) {
    let Some(instance) = instance(ctx) else {
        return;
    };
    let mut error = instance.error.lock();
    let (admitted, _) = error.limit.admit(Duration::from_nanos(mono_ns()));
    if admitted {
        // SAFETY: the plugin passes text that can be read during the call (the ABI of `report_error`).
        let text = unsafe { harmless(text, ERROR_TEXT_MAX) };
        error.last = Some((class(error_class), text));
    }
}

unsafe extern "C" fn now_mono_ns(_ctx: *mut c_void) -> u64 {
    mono_ns()
}

/// Version 1.0 of the host offers no extension.
unsafe extern "C" fn get_extension(_ctx: *mut c_void, _id: quota_str) -> *const c_void {
    ptr::null()
}

/// The failure a class names; `None` for no class.
pub(crate) fn class(error_class: u32) -> Option<BackendFailure> {
    use quota_plugin_abi::{QUOTA_CLASS_NONE, QUOTA_CLASS_TIMEOUT, QUOTA_CLASS_UNAVAILABLE};
    match error_class {
        QUOTA_CLASS_NONE => None,
        QUOTA_CLASS_TIMEOUT => Some(BackendFailure::Timeout),
        QUOTA_CLASS_UNAVAILABLE => Some(BackendFailure::Unavailable),
        _ => Some(BackendFailure::Error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_lines_a_second_pass_and_the_rest_is_counted() {
        let mut limit = RateLimit::default();
        let start = Duration::from_secs(100);
        let passed = (0..250).filter(|_| limit.admit(start).0).count();
        assert_eq!(passed, 100);
        assert_eq!(limit.admit(start + Duration::from_millis(999)), (false, 0));
        assert_eq!(limit.admit(start + SECOND), (true, 151));
        assert_eq!(limit.admit(start + SECOND), (true, 0));
    }

    #[track_caller]
    fn check(bytes: &[u8], cut: bool, expected: &str) {
        assert_eq!(harmless_bytes(bytes, cut), expected);
    }

    #[test]
    fn text_of_a_plugin_is_made_harmless() {
        check(b"", false, "");
        check(b"plain", false, "plain");
        check(b"two\nlines\x1b[31m", false, "two\\nlines\\u{1b}[31m");
        check(b"broken \xff byte", false, "broken \u{fffd} byte");
        check(b"end \xc3", false, "end \u{fffd}");
        check(b"end \xc3", true, "end ");
    }
}

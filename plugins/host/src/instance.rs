//! A living backend: checks, health, resizing, its end.
#![expect(unsafe_code, reason = "calls the functions of a plugin")]

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use quota_plugin_abi::{
    QUOTA_BATCH_SIZE_1_0, QUOTA_BATCH_STOP_AT_DENIAL, QUOTA_BATCH_STOP_AT_FAILURE, QUOTA_ERROR,
    QUOTA_EXT_RESIZE_1, QUOTA_HEALTH_AVAILABLE, QUOTA_HEALTH_DEGRADED, QUOTA_HEALTH_SIZE_1_0,
    QUOTA_HEALTH_UNAVAILABLE, QUOTA_ITEM_SIZE_1_0, QUOTA_OK, QUOTA_PENDING, QUOTA_READY,
    QUOTA_RESIZE_SIZE_1_0, QUOTA_RESULT_SIZE_1_0, QUOTA_TIMEOUT, QUOTA_UNAVAILABLE,
    QUOTA_WINDOWS_SIZE_1_0, quota_batch, quota_check_fn, quota_check_one_fn, quota_health,
    quota_instance, quota_item, quota_resize, quota_result, quota_str, quota_window, quota_windows,
};
use sha2::{Digest as _, Sha256};

use crate::callbacks::{Faults, Shared, class, deadline_ns, harmless_bytes};
use crate::decision::{BackendFailure, Item, Verdict, failure, verdict, verdicts, windows_to_abi};
use crate::options::OptionDiagnostic;
use crate::plugin::Plugin;
use crate::pool::Pool;

/// How long an instance that is simply dropped may take to drain.
const DROP_GRACE: Duration = Duration::from_secs(5);
const ERROR_TEXT_MAX: usize = 1024;

static ZOMBIES: AtomicU64 = AtomicU64::new(0);

/// How many instances could not be destroyed, because a thread was still inside their plugin.
#[must_use]
pub fn zombies() -> u64 {
    ZOMBIES.load(Ordering::Relaxed)
}

/// Counts an instance that nobody will destroy.
pub(crate) fn count_zombie() {
    ZOMBIES.fetch_add(1, Ordering::Relaxed);
}

/// The keys of the `backend` section that belong to the host (contract §2). The default is that of a policy file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Namespace of every stored key; not blank.
    pub key_prefix: String,
    /// Longest attempt to connect.
    pub connect_timeout_ms: u64,
    /// Longest wait for one trip.
    pub command_timeout_ms: u64,
    /// Most batches in the instance at once, the excess is unavailable; an inline backend has no such bound.
    pub max_inflight: u64,
    /// Most active buckets of a bounded store; 0 for no bound.
    pub max_entries: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            key_prefix: "impulse:quota".to_owned(),
            connect_timeout_ms: 250,
            command_timeout_ms: 100,
            max_inflight: 1024,
            max_entries: 4096,
        }
    }
}

/// Why there is no instance.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// `key_prefix` is blank.
    #[error("the key prefix is blank")]
    BlankPrefix,
    /// `max_inflight` is 0 for a backend that needs a bound.
    #[error("`max_inflight` must be at least 1 for this backend")]
    NoInflight,
    /// The options are wrong; at least one finding is an error.
    #[error("the options are refused: {}", first_error(.0))]
    Options(Vec<OptionDiagnostic>),
    /// The plugin took the options and still made no instance; at least one finding is an error.
    #[error("the plugin made no instance: {}", first_error(.0))]
    Failed(Vec<OptionDiagnostic>),
    /// The plugin claims success and made nothing.
    #[error("the plugin reported success and made no instance")]
    NoInstance,
    /// The plugin took longer than it may. What it still makes is left as it is, for ever; counted in [`zombies`].
    #[error("the plugin made no instance within {} ms", limit.as_millis())]
    TooSlow {
        /// The longest it may take.
        limit: Duration,
    },
    /// A thread for the backend could not be started.
    #[error("cannot start a thread for the backend")]
    Threads(#[source] io::Error),
}

fn first_error(found: &[OptionDiagnostic]) -> String {
    let errors = found
        .iter()
        .filter(|d| d.severity == crate::options::Severity::Error);
    errors
        .map(|d| format!("{} (at `{}`)", d.message, d.pointer))
        .next()
        .unwrap_or_default()
}

/// Why a living instance did not take a new capacity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the plugin did not take the new capacity (code {code})")]
pub struct ResizeError {
    /// What its function returned.
    pub code: i32,
}

/// What makes two instances the same one: kind, content of the library, options, and every setting but `max_entries`.
/// After a reload an equal instance goes on, with its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity([u8; 32]);

impl Identity {
    pub(crate) fn of(
        kind: &str,
        content: Option<[u8; 32]>,
        settings: &Settings,
        canonical_options: &str,
    ) -> Self {
        let mut hash = Sha256::new();
        for text in [kind, settings.key_prefix.as_str(), canonical_options] {
            hash.update(u64::try_from(text.len()).unwrap_or(u64::MAX).to_le_bytes());
            hash.update(text);
        }
        for number in [
            settings.connect_timeout_ms,
            settings.command_timeout_ms,
            settings.max_inflight,
        ] {
            hash.update(number.to_le_bytes());
        }
        hash.update(content.map_or([0; 32], |content| content));
        Self(hash.finalize().into())
    }
}

/// How a backend is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HealthState {
    /// Nothing has been observed yet.
    Unknown,
    /// Checks are being answered.
    Available,
    /// Checks are being answered, some fail, or the plugin broke a rule of the ABI.
    Degraded,
    /// Checks cannot be answered now.
    Unavailable,
}

/// What a plugin says of an instance, and what the host saw of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// How it is.
    pub state: HealthState,
    /// Why it is not available.
    pub reason: Option<BackendFailure>,
    /// Batches not yet answered.
    pub inflight: u64,
    /// Active buckets in this process.
    pub entries: u64,
    /// Most active buckets; `None` for no bound.
    pub capacity: Option<u64>,
    /// Since when the state holds, Unix milliseconds.
    pub since_unix_ms: Option<u64>,
    /// Text of the last failure, without secrets.
    pub last_error: Option<String>,
    /// Which failure that text is about, where the plugin says so.
    pub last_failure: Option<BackendFailure>,
    /// Rules of the ABI the plugin broke.
    pub faults: Faults,
}

/// How an instance ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Everything was given back.
    Destroyed,
    /// A thread is still inside the plugin, so the instance was left as it is, for ever; counted in [`zombies`].
    LeftBehind,
}

/// A living backend. Any thread may check; dropping it drains and destroys it.
#[derive(Debug)]
pub struct Instance {
    raw: Raw,
    check_one: Option<quota_check_one_fn>,
    max_key_len: usize,
    shared: Arc<Shared>,
    pool: Option<Pool>,
    plugin: Plugin,
    identity: Identity,
    found: Vec<OptionDiagnostic>,
    over: bool,
}

/// The plugin's pointer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw(NonNull<quota_instance>);

// SAFETY: a plugin allows `check`, `check_one`, `health` and extensions from any thread at once, and `drain` and `destroy`
// from another thread than `create` (the ABI); nothing else is done with the pointer.
unsafe impl Send for Raw {}
// SAFETY: as for Send.
unsafe impl Sync for Raw {}

impl Raw {
    /// What a plugin's `create` made.
    pub(crate) const fn made(instance: NonNull<quota_instance>) -> Self {
        Self(instance)
    }
}

impl Instance {
    pub(crate) fn new(
        plugin: Plugin,
        raw: Raw,
        shared: Arc<Shared>,
        pool: Option<Pool>,
        identity: Identity,
        found: Vec<OptionDiagnostic>,
    ) -> Self {
        let inline = plugin.capabilities().inline();
        Self {
            raw,
            check_one: plugin.table().check_one.filter(|_| inline),
            max_key_len: usize::try_from(plugin.max_key_len()).unwrap_or(usize::MAX),
            shared,
            pool,
            plugin,
            identity,
            found,
            over: false,
        }
    }

    /// The backend it is an instance of.
    #[must_use]
    pub const fn plugin(&self) -> &Plugin {
        &self.plugin
    }

    /// What makes it the same instance after a reload.
    #[must_use]
    pub const fn identity(&self) -> Identity {
        self.identity
    }

    /// What the plugin found questionable about the options when it was made.
    #[must_use]
    pub fn diagnostics(&self) -> &[OptionDiagnostic] {
        &self.found
    }

    /// Whether [`check_one`](Self::check_one) may be used.
    #[must_use]
    pub const fn is_inline(&self) -> bool {
        self.check_one.is_some()
    }

    /// Decides one item inside the call, without allocating; for inline backends. Anything else, a key longer than the
    /// plugin takes and a wrong number of windows give [`BackendFailure::Error`].
    #[inline]
    #[must_use]
    pub fn check_one(&self, item: &Item<'_>, now_unix_ms: u64) -> Verdict {
        let (Some(check_one), Some((count, windows))) =
            (self.check_one, windows_to_abi(item.windows))
        else {
            return Verdict::Failed(BackendFailure::Error);
        };
        if item.key.len() > self.max_key_len {
            return Verdict::Failed(BackendFailure::Error);
        }
        let windows = quota_windows {
            struct_size: QUOTA_WINDOWS_SIZE_1_0,
            count,
            now_unix_ms,
            windows,
        };
        let mut result = quota_result::default();
        let (key, key_len) = (item.key.as_ptr(), item.key.len());
        // SAFETY: `check_one` is a function of the plugin that made the instance, which lives as long as `self`; key,
        // windows and result outlive the call.
        let code = unsafe {
            check_one(
                self.raw.0.as_ptr(),
                key,
                key_len,
                item.key_hash,
                &raw const windows,
                &raw mut result,
            )
        };
        if code == QUOTA_OK
            && let Some(verdict) = verdict(&result, count)
            && verdict != Verdict::NotEvaluated
        {
            return verdict;
        }
        if let Some(failure) = failure(code) {
            return Verdict::Failed(failure);
        }
        self.shared.count_meaningless(1);
        Verdict::Failed(BackendFailure::Error)
    }

    /// Asks for the items of one request, in order. After a denial (`stop_at_denial`) or a failure (`stop_at_failure`)
    /// the rest is [`Verdict::NotEvaluated`], and so are the items beyond [`Plugin::max_batch`]: send those again.
    /// More than `max_inflight` batches at once are [`BackendFailure::Unavailable`] without being sent.
    #[must_use]
    pub fn check_batch(
        &self,
        items: &[Item<'_>],
        stop_at_denial: bool,
        stop_at_failure: bool,
        now_unix_ms: u64,
        deadline: Option<Instant>,
    ) -> Batch {
        if self.is_inline() {
            return Batch::Ready(self.one_by_one(
                items,
                stop_at_denial,
                stop_at_failure,
                now_unix_ms,
            ));
        }
        let most = self
            .plugin
            .max_batch()
            .and_then(|most| usize::try_from(most).ok());
        let (sent, rest) = items.split_at(most.unwrap_or(usize::MAX).min(items.len()));
        let all = |failure| Batch::Ready(vec![Verdict::Failed(failure); items.len()]);
        if sent.is_empty() {
            return Batch::Ready(Vec::new());
        }
        let (Some(owned), Ok(count), Some(check)) = (
            Items::copy(sent, self.max_key_len),
            u32::try_from(sent.len()),
            self.plugin.table().check,
        ) else {
            return all(BackendFailure::Error);
        };
        let Some(ticket) = self.shared.tickets.open(count) else {
            return all(BackendFailure::Unavailable);
        };
        let mut pending = PendingBatch {
            shared: Arc::clone(&self.shared),
            ticket: Some(ticket),
            window_counts: owned.window_counts(),
            rest: rest.len(),
            stop_at_denial,
            stop_at_failure,
            deadline,
        };
        let call = Call {
            raw: self.raw,
            check,
            items: owned,
            count,
            flags: if stop_at_denial {
                QUOTA_BATCH_STOP_AT_DENIAL
            } else {
                0
            } | if stop_at_failure {
                QUOTA_BATCH_STOP_AT_FAILURE
            } else {
                0
            },
            ticket,
            now_unix_ms,
            deadline_mono_ns: deadline_ns(deadline),
        };
        if let Some(pool) = &self.pool {
            let shared = Arc::clone(&self.shared);
            pool.run(move || call.run_blocking(&shared, deadline));
            return Batch::Pending(pending);
        }
        let (code, results) = call.run();
        if code == QUOTA_PENDING {
            return Batch::Pending(pending);
        }
        // Ready, or failed: nothing may have been completed, and nothing will be taken from here on.
        pending.ticket = None;
        let untouched = self.shared.tickets.close(ticket);
        if untouched && code == QUOTA_READY {
            return Batch::Ready(pending.judge(&results));
        }
        let failure = failure(code).filter(|_| untouched);
        Batch::Ready(pending.all(failure.unwrap_or_else(|| {
            self.shared.count_meaningless(u64::from(count));
            BackendFailure::Error
        })))
    }

    fn one_by_one(
        &self,
        items: &[Item<'_>],
        stop_at_denial: bool,
        stop_at_failure: bool,
        now: u64,
    ) -> Vec<Verdict> {
        let mut stopped = false;
        let decide = |item| {
            if stopped {
                return Verdict::NotEvaluated;
            }
            let verdict = self.check_one(item, now);
            stopped = match verdict {
                Verdict::Denied { .. } => stop_at_denial,
                Verdict::Failed(_) => stop_at_failure,
                Verdict::Allowed { .. } | Verdict::NotEvaluated => false,
            };
            verdict
        };
        items.iter().map(decide).collect()
    }

    /// How it is, by the plugin's word and the host's own eyes. No I/O.
    #[must_use]
    pub fn health(&self) -> Health {
        let mut text = [0_u8; ERROR_TEXT_MAX];
        let mut health = quota_health {
            struct_size: QUOTA_HEALTH_SIZE_1_0,
            state: 0,
            reason: 0,
            reserved: 0,
            inflight: 0,
            entries: 0,
            capacity: 0,
            since_unix_ms: 0,
            error_text: text.as_mut_ptr(),
            error_capacity: text.len(),
            error_len: 0,
        };
        let code = self.plugin.table().health.map_or(QUOTA_ERROR, |function| {
            // SAFETY: `function` is of the plugin that made the instance, which lives as long as `self`; the struct and
            // the buffer outlive the call.
            unsafe { function(self.raw.0.as_ptr(), &raw mut health) }
        });
        let faults = self.shared.faults();
        let misbehaved = faults.nonsense > 0 || faults.meaningless > 0;
        let state = match (code, health.state) {
            (QUOTA_OK, QUOTA_HEALTH_AVAILABLE) if misbehaved => HealthState::Degraded,
            (QUOTA_OK, QUOTA_HEALTH_AVAILABLE) => HealthState::Available,
            (QUOTA_OK, QUOTA_HEALTH_DEGRADED) => HealthState::Degraded,
            (QUOTA_OK, QUOTA_HEALTH_UNAVAILABLE) => HealthState::Unavailable,
            _ => HealthState::Unknown,
        };
        let reported = text.get(..health.error_len).unwrap_or(&text);
        let reported = harmless_bytes(reported, false);
        let reason = class(health.reason);
        let (last_failure, last_error) = if reported.is_empty() {
            self.shared
                .last_error()
                .map_or((None, None), |(class, text)| (class, Some(text)))
        } else {
            (reason, Some(reported))
        };
        Health {
            state,
            reason,
            inflight: if self.is_inline() {
                health.inflight
            } else {
                self.shared.tickets.inflight()
            },
            entries: health.entries,
            capacity: Some(health.capacity).filter(|&capacity| capacity > 0),
            since_unix_ms: Some(health.since_unix_ms).filter(|&since| since > 0),
            last_error,
            last_failure,
            faults,
        }
    }

    /// Rules of the ABI the plugin broke so far.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.shared.faults()
    }

    /// Changes the most active buckets at once (`quota.resize/1`): counters are kept, shrinking evicts nothing.
    /// `false` if the backend has no such thing.
    ///
    /// # Errors
    /// The plugin did not take it.
    pub fn resize(&self, max_entries: u64) -> Result<bool, ResizeError> {
        let Some(table) = self
            .extension(QUOTA_EXT_RESIZE_1)
            .map(|table| table.cast::<quota_resize>())
        else {
            return Ok(false);
        };
        // SAFETY: the table of an extension begins with its size and is constant (the ABI of `get_extension`).
        let size = unsafe { table.cast::<u32>().read() };
        if size < QUOTA_RESIZE_SIZE_1_0 {
            return Err(ResizeError { code: QUOTA_ERROR });
        }
        // SAFETY: at least as large as revision 1 by the line above.
        let table = unsafe { table.read() };
        let Some(set_max_entries) = table.set_max_entries else {
            return Err(ResizeError { code: QUOTA_ERROR });
        };
        // SAFETY: a function of the plugin that made the instance, which lives as long as `self`.
        match unsafe { set_max_entries(self.raw.0.as_ptr(), max_entries) } {
            QUOTA_OK => Ok(true),
            code => Err(ResizeError { code }),
        }
    }

    /// The table of an extension, if the plugin has it.
    pub(crate) fn extension(&self, id: &str) -> Option<NonNull<std::ffi::c_void>> {
        let get_extension = self.plugin.table().get_extension?;
        // SAFETY: a function of the plugin that made the instance, which lives as long as `self`; the id outlives the
        // call.
        let table = unsafe { get_extension(self.raw.0.as_ptr(), quota_str::new(id)) };
        NonNull::new(table.cast_mut())
    }

    /// Ends it: finishes what is pending until the deadline, then destroys. What is still unanswered afterwards is
    /// [`BackendFailure::Unavailable`]. For the control thread.
    pub fn drain_and_destroy(mut self, deadline: Instant) -> End {
        self.end(deadline)
    }

    fn end(&mut self, deadline: Instant) -> End {
        self.over = true;
        if let Some(pool) = &self.pool {
            pool.close();
        }
        if let Some(drain) = self.plugin.table().drain {
            // SAFETY: a function of the plugin that made the instance; `&mut self`: no check is being begun, and the
            // instance has not been destroyed, which happens below only.
            let _what_is_left_ends_in_destroy =
                unsafe { drain(self.raw.0.as_ptr(), deadline_ns(Some(deadline))) };
        }
        let quiet = self.pool.take().is_none_or(|pool| pool.end(deadline));
        if quiet && let Some(destroy) = self.plugin.table().destroy {
            // SAFETY: as for drain, and no thread of the pool is inside the plugin; `over` keeps this from happening
            // twice.
            unsafe { destroy(self.raw.0.as_ptr()) };
        }
        self.shared.tickets.answer_all(QUOTA_UNAVAILABLE);
        self.shared.unregister();
        if quiet {
            End::Destroyed
        } else {
            count_zombie();
            End::LeftBehind
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if !self.over {
            self.end(Instant::now() + DROP_GRACE);
        }
    }
}

/// Items of a batch with their keys, so that they can go to another thread.
struct Items {
    keys: Vec<u8>,
    items: Vec<OwnedItem>,
}

struct OwnedItem {
    key: Range<usize>,
    key_hash: u64,
    window_count: u32,
    windows: [quota_window; 2],
}

impl Items {
    /// `None` if a key is longer than the plugin takes, or an item has no window or more than two.
    fn copy(items: &[Item<'_>], max_key_len: usize) -> Option<Self> {
        let mut copy = Self {
            keys: Vec::with_capacity(items.iter().map(|item| item.key.len()).sum()),
            items: Vec::with_capacity(items.len()),
        };
        for item in items {
            if item.key.len() > max_key_len {
                return None;
            }
            let (window_count, windows) = windows_to_abi(item.windows)?;
            let start = copy.keys.len();
            copy.keys.extend_from_slice(item.key);
            copy.items.push(OwnedItem {
                key: start..copy.keys.len(),
                key_hash: item.key_hash,
                window_count,
                windows,
            });
        }
        Some(copy)
    }

    fn window_counts(&self) -> Vec<u32> {
        self.items.iter().map(|item| item.window_count).collect()
    }

    /// As the ABI carries them; valid as long as `self`.
    fn to_abi(&self) -> Vec<quota_item> {
        let item = |item: &OwnedItem| quota_item {
            key: quota_str::from_bytes(self.keys.get(item.key.clone()).unwrap_or_default()),
            key_hash: item.key_hash,
            window_count: item.window_count,
            flags: 0,
            windows: item.windows,
        };
        self.items.iter().map(item).collect()
    }
}

/// One call of `check`.
struct Call {
    raw: Raw,
    check: quota_check_fn,
    items: Items,
    count: u32,
    flags: u32,
    ticket: u64,
    now_unix_ms: u64,
    deadline_mono_ns: u64,
}

impl Call {
    /// What `check` returned, and the results it wrote.
    fn run(&self) -> (i32, Vec<quota_result>) {
        let items = self.items.to_abi();
        let mut results = vec![quota_result::default(); items.len()];
        let batch = quota_batch {
            struct_size: QUOTA_BATCH_SIZE_1_0,
            flags: self.flags,
            ticket: self.ticket,
            now_unix_ms: self.now_unix_ms,
            deadline_mono_ns: self.deadline_mono_ns,
            items: items.as_ptr(),
            results: results.as_mut_ptr(),
            count: self.count,
            item_stride: QUOTA_ITEM_SIZE_1_0,
            result_stride: QUOTA_RESULT_SIZE_1_0,
            reserved: 0,
        };
        // SAFETY: `check` is a function of the plugin that made the instance, which is not destroyed while a check is
        // being called (`check_batch` borrows it; the pool is joined first); batch, items, keys and results outlive the
        // call, and there are `count` of them.
        let code = unsafe { (self.check)(self.raw.0.as_ptr(), &raw const batch) };
        (code, results)
    }

    /// On a thread of the pool: calls unless nobody waits any more, and answers the ticket with what came out.
    fn run_blocking(&self, shared: &Shared, deadline: Option<Instant>) {
        if !shared.tickets.is_open(self.ticket) {
            return;
        }
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            self.answer_all(shared, QUOTA_TIMEOUT);
            return;
        }
        let (code, results) = self.run();
        if code == QUOTA_READY {
            shared.answer(self.ticket, self.count, |into| {
                into.extend_from_slice(&results)
            });
        } else if code != QUOTA_PENDING {
            if failure(code).is_none() {
                shared.count_meaningless(u64::from(self.count));
            }
            self.answer_all(shared, failure(code).map_or(QUOTA_ERROR, |_| code));
        }
    }

    fn answer_all(&self, shared: &Shared, code: i32) {
        let result = quota_result {
            code,
            ..quota_result::default()
        };
        let count = self.items.items.len();
        shared.answer(self.ticket, self.count, |into| into.resize(count, result));
    }
}

/// The answer to a batch, or the promise of one.
#[derive(Debug)]
pub enum Batch {
    /// One verdict per item.
    Ready(Vec<Verdict>),
    /// To be awaited.
    Pending(PendingBatch),
}

impl Batch {
    /// Blocks until it is answered, at most until the earlier of `deadline` and the one of the batch.
    #[must_use]
    pub fn wait_until(self, deadline: Option<Instant>) -> Vec<Verdict> {
        match self {
            Self::Ready(verdicts) => verdicts,
            Self::Pending(pending) => pending.wait_until(deadline),
        }
    }
}

/// A batch the backend has not answered yet: a future of one verdict per item, for any runtime. It has no timer: at the
/// deadline call [`abandon`](Self::abandon). Dropping it gives up; what comes later is counted and does nothing.
#[derive(Debug)]
#[must_use = "a pending batch that is dropped is given up"]
pub struct PendingBatch {
    shared: Arc<Shared>,
    /// `None` once it is over.
    ticket: Option<u64>,
    window_counts: Vec<u32>,
    rest: usize,
    stop_at_denial: bool,
    stop_at_failure: bool,
    deadline: Option<Instant>,
}

impl PendingBatch {
    /// When the backend was told to be done.
    #[must_use]
    pub const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The answer if it is there by now; otherwise gives up, and every item is [`BackendFailure::Timeout`].
    #[must_use]
    pub fn abandon(mut self) -> Vec<Verdict> {
        match self.take(Waker::noop()) {
            Poll::Ready(verdicts) => verdicts,
            Poll::Pending => self.give_up(),
        }
    }

    /// Blocks until it is answered, at most until the earlier of `deadline` and the batch's own.
    #[must_use]
    pub fn wait_until(mut self, deadline: Option<Instant>) -> Vec<Verdict> {
        let deadline = [deadline, self.deadline].into_iter().flatten().min();
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        loop {
            if let Poll::Ready(verdicts) = self.take(&waker) {
                return verdicts;
            }
            match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return self.give_up(),
                Some(left) => std::thread::park_timeout(left),
                None => std::thread::park(),
            }
        }
    }

    fn take(&mut self, waker: &Waker) -> Poll<Vec<Verdict>> {
        let Some(ticket) = self.ticket else {
            return Poll::Ready(self.all(BackendFailure::Timeout));
        };
        self.shared.tickets.poll(ticket, waker).map(|results| {
            self.ticket = None;
            self.judge(&results)
        })
    }

    fn give_up(&mut self) -> Vec<Verdict> {
        if let Some(ticket) = self.ticket.take() {
            self.shared.tickets.close(ticket);
        }
        self.all(BackendFailure::Timeout)
    }

    fn judge(&self, results: &[quota_result]) -> Vec<Verdict> {
        let (mut verdicts, faults) = verdicts(
            results,
            &self.window_counts,
            self.stop_at_denial,
            self.stop_at_failure,
        );
        if faults > 0 {
            self.shared.count_meaningless(faults);
        }
        verdicts.extend(std::iter::repeat_n(Verdict::NotEvaluated, self.rest));
        verdicts
    }

    fn all(&self, failure: BackendFailure) -> Vec<Verdict> {
        let mut verdicts = vec![Verdict::Failed(failure); self.window_counts.len()];
        verdicts.extend(std::iter::repeat_n(Verdict::NotEvaluated, self.rest));
        verdicts
    }
}

impl Future for PendingBatch {
    type Output = Vec<Verdict>;

    /// Ready with timeouts also if it is polled after the deadline, or again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(verdicts) = self.take(context.waker()) {
            return Poll::Ready(verdicts);
        }
        if self
            .deadline
            .is_some_and(|deadline| deadline <= Instant::now())
        {
            return Poll::Ready(self.give_up());
        }
        Poll::Pending
    }
}

impl Drop for PendingBatch {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.shared.tickets.close(ticket);
        }
    }
}

/// Wakes a thread that waits for an answer.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

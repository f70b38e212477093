//! The checks of one request that travel together, and the ticket that answers them later.
#![expect(unsafe_code, reason = "reads the items of a host's batch")]

use std::cell::Cell;
use std::ops::Range;
use std::time::Duration;

use quota_plugin_abi::{
    QUOTA_BATCH_STOP_AT_DENIAL, QUOTA_BATCH_STOP_AT_FAILURE, QUOTA_DENIED,
    QUOTA_FLAGS_MUST_UNDERSTAND, QUOTA_ITEM_SIZE_1_0, QUOTA_NOT_EVALUATED, QUOTA_RESULT_SIZE_1_0,
    quota_batch, quota_item, quota_result, quota_window,
};

use crate::decision::{are_windows, windows_from_abi};
use crate::{Decision, Failure, Host, Item, Window};

/// How a backend answers a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// By [`Backend::check`](crate::Backend::check), one item after another, under the stop rules of the batch.
    OneByOne,
    /// One decision for each item, in order. After a decision that ends the batch nothing was charged and nothing follows.
    Ready(Vec<Decision>),
    /// Later, by the [`Ticket`] that was taken.
    Pending,
}

/// The checks of one request that travel together. Valid during the call it is passed to.
#[derive(Debug)]
pub struct Batch<'a> {
    /// INVARIANT: strides and arrays are those [`Batch::of`] found possible.
    raw: &'a quota_batch,
    host: Host,
    ticket_taken: Cell<bool>,
}

impl<'a> Batch<'a> {
    /// A batch of the host; `None` if it asks for something this SDK does not know, or cannot be read.
    ///
    /// # Safety
    /// The batch is one of the ABI: `count` items stand `item_stride` bytes apart behind `items`, as many results
    /// `result_stride` bytes apart behind `results`. Items and keys can be read and stay unchanged during `'a`, and nobody
    /// else uses the results.
    pub(crate) unsafe fn of(raw: &'a quota_batch, host: Host) -> Option<Self> {
        let known = QUOTA_BATCH_STOP_AT_DENIAL | QUOTA_BATCH_STOP_AT_FAILURE;
        let strides = raw.item_stride >= QUOTA_ITEM_SIZE_1_0
            && raw.result_stride >= QUOTA_RESULT_SIZE_1_0
            && raw.item_stride.is_multiple_of(8)
            && raw.result_stride.is_multiple_of(8);
        let arrays = raw.count == 0 || !(raw.items.is_null() || raw.results.is_null());
        let understood = raw.flags & QUOTA_FLAGS_MUST_UNDERSTAND & !known == 0;
        (strides && arrays && understood).then_some(Self {
            raw,
            host,
            ticket_taken: Cell::new(false),
        })
    }

    /// How many items there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.raw.count as usize
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.raw.count == 0
    }

    /// The one clock reading of the request, Unix milliseconds.
    #[must_use]
    pub const fn now_unix_ms(&self) -> u64 {
        self.raw.now_unix_ms
    }

    /// Whether nothing after a denied item is to be decided.
    #[must_use]
    pub const fn stops_at_denial(&self) -> bool {
        self.raw.flags & QUOTA_BATCH_STOP_AT_DENIAL != 0
    }

    /// Whether nothing after an item that failed is to be decided.
    #[must_use]
    pub const fn stops_at_failure(&self) -> bool {
        self.raw.flags & QUOTA_BATCH_STOP_AT_FAILURE != 0
    }

    /// How long the host goes on waiting; `None`: for ever. Zero: an item that has not been sent is a
    /// [`Failure::Timeout`] and uncharged.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        time_left(self.host, self.raw.deadline_mono_ns)
    }

    /// The items, in order.
    pub fn items(&self) -> impl Iterator<Item = Item<'_>> {
        (0..self.len()).map(|index| {
            let (key, key_hash, windows) = self.parts(index);
            // INVARIANT: a backend sees a batch only if `is_allowed`, so these are windows.
            let windows = windows_from_abi(windows, u64::MAX).unwrap_or_default();
            Item {
                key,
                key_hash,
                windows,
            }
        })
    }

    /// Takes the items and the right, which is a duty, to answer them later: the backend then answers the call with
    /// [`Answer::Pending`]. `None` if it was taken before.
    pub fn take(&self) -> Option<(OwnedBatch, Ticket)> {
        if self.ticket_taken.replace(true) {
            return None;
        }
        let mut owned = OwnedBatch {
            keys: Vec::new(),
            items: Vec::with_capacity(self.len()),
            now_unix_ms: self.now_unix_ms(),
            deadline_mono_ns: self.raw.deadline_mono_ns,
            flags: self.raw.flags,
            host: self.host,
        };
        for item in self.items() {
            let start = owned.keys.len();
            owned.keys.extend_from_slice(item.key);
            owned.items.push(OwnedItem {
                key: start..owned.keys.len(),
                key_hash: item.key_hash,
                windows: item.windows.to_vec(),
            });
        }
        let ticket = Ticket {
            host: self.host,
            ticket: self.raw.ticket,
            count: self.raw.count,
            flags: self.raw.flags,
        };
        Some((owned, ticket))
    }

    pub(crate) const fn ticket_was_taken(&self) -> bool {
        self.ticket_taken.get()
    }

    pub(crate) const fn flags(&self) -> u32 {
        self.raw.flags
    }

    /// Whether every item has a key and windows a backend with these bounds takes.
    pub(crate) fn is_allowed(&self, max_key_len: u32, max_limit: u64) -> bool {
        (0..self.len()).all(|index| {
            let (key, _, windows) = self.parts(index);
            is_key(key, max_key_len) && are_windows(windows, max_limit)
        })
    }

    /// Key, hash and windows of the item at `index`, not judged; empty ones beyond the last.
    pub(crate) fn parts(&self, index: usize) -> (&[u8], u64, &[quota_window]) {
        if index >= self.len() {
            return (&[], 0, &[]);
        }
        let offset = index * self.raw.item_stride as usize;
        // SAFETY: `index` is below `count` by the lines above; items stand `item_stride` bytes apart in one array (the
        // contract of `of`).
        let item = unsafe { self.raw.items.byte_add(offset) };
        // SAFETY: in the array; aligned, since the array is and the stride is a multiple of 8 (`of`).
        let item: &quota_item = unsafe { &*item };
        // SAFETY: keys can be read during 'a (the contract of `of`).
        let key = unsafe { item.key.as_bytes() };
        let windows = item.windows.get(..item.window_count as usize);
        (key, item.key_hash, windows.unwrap_or_default())
    }

    /// Writes the results, one for each item, into the host's array.
    pub(crate) fn write(&self, results: impl Iterator<Item = quota_result>) {
        for (index, result) in results.take(self.len()).enumerate() {
            let offset = index * self.raw.result_stride as usize;
            // SAFETY: `index` is below `count` by `take`; results stand `result_stride` bytes apart in one array (the
            // contract of `of`).
            let place = unsafe { self.raw.results.byte_add(offset) };
            // SAFETY: in the array, which nobody else uses (the contract of `of`); aligned, since the array is and the
            // stride is a multiple of 8 (`of`).
            unsafe { place.write(result) };
        }
    }
}

/// Whether a key is one a backend with this bound takes.
#[inline]
pub(crate) fn is_key(key: &[u8], max_key_len: u32) -> bool {
    u32::try_from(key.len()).is_ok_and(|len| len <= max_key_len)
}

fn time_left(host: Host, deadline_mono_ns: u64) -> Option<Duration> {
    (deadline_mono_ns != 0)
        .then(|| Duration::from_nanos(deadline_mono_ns.saturating_sub(host.now_mono_ns())))
}

/// Whether a batch with these flags ends with this result.
pub(crate) const fn ends_batch(result: &quota_result, flags: u32) -> bool {
    match result.code {
        QUOTA_DENIED => flags & QUOTA_BATCH_STOP_AT_DENIAL != 0,
        code => code < 0 && flags & QUOTA_BATCH_STOP_AT_FAILURE != 0,
    }
}

pub(crate) const NOT_EVALUATED: quota_result = quota_result {
    code: QUOTA_NOT_EVALUATED,
    exhausted: 0,
    used: [0; 2],
    error_class: 0,
    flags: 0,
};

/// The results of `count` items: the decisions, and after one that ends the batch nothing more. A decision that is missing is
/// an error.
pub(crate) fn results(
    decisions: &[Decision],
    count: usize,
    flags: u32,
) -> impl Iterator<Item = quota_result> {
    let mut ended = false;
    (0..count).map(move |index| {
        if ended {
            return NOT_EVALUATED;
        }
        let missing = Decision::Failed(Failure::Error);
        let result = decisions.get(index).copied().unwrap_or(missing).to_abi();
        ended = ends_batch(&result, flags);
        result
    })
}

/// A batch that outlives the call it came with.
#[derive(Clone, Debug)]
pub struct OwnedBatch {
    keys: Vec<u8>,
    items: Vec<OwnedItem>,
    now_unix_ms: u64,
    deadline_mono_ns: u64,
    flags: u32,
    host: Host,
}

#[derive(Clone, Debug)]
struct OwnedItem {
    key: Range<usize>,
    key_hash: u64,
    windows: Vec<Window>,
}

impl OwnedBatch {
    /// How many items there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The items, in order.
    pub fn items(&self) -> impl Iterator<Item = Item<'_>> {
        self.items.iter().map(|item| Item {
            key: self.keys.get(item.key.clone()).unwrap_or_default(),
            key_hash: item.key_hash,
            windows: &item.windows,
        })
    }

    /// The one clock reading of the request, Unix milliseconds.
    #[must_use]
    pub const fn now_unix_ms(&self) -> u64 {
        self.now_unix_ms
    }

    /// Whether nothing after a denied item is to be decided.
    #[must_use]
    pub const fn stops_at_denial(&self) -> bool {
        self.flags & QUOTA_BATCH_STOP_AT_DENIAL != 0
    }

    /// Whether nothing after an item that failed is to be decided.
    #[must_use]
    pub const fn stops_at_failure(&self) -> bool {
        self.flags & QUOTA_BATCH_STOP_AT_FAILURE != 0
    }

    /// How long the host goes on waiting; `None`: for ever. Zero: an item that has not been sent is a
    /// [`Failure::Timeout`] and uncharged.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        time_left(self.host, self.deadline_mono_ns)
    }
}

/// The duty to answer a batch once, from any thread. Dropped without an answer it says [`Failure::Unavailable`], or
/// [`Failure::Error`] if a panic drops it.
#[derive(Debug)]
#[must_use = "a ticket that is dropped answers that the backend is unavailable"]
pub struct Ticket {
    host: Host,
    ticket: u64,
    count: u32,
    flags: u32,
}

impl Ticket {
    /// Answers with one decision for each item, in order; after one that ends the batch nothing follows.
    pub fn complete(self, decisions: &[Decision]) {
        self.answer(decisions);
        std::mem::forget(self);
    }

    /// Answers every item with a failure.
    pub fn fail(self, failure: Failure) {
        self.answer_all(failure);
        std::mem::forget(self);
    }

    fn answer(&self, decisions: &[Decision]) {
        let results: Vec<_> = results(decisions, self.count as usize, self.flags).collect();
        self.host.complete(self.ticket, &results);
    }

    fn answer_all(&self, failure: Failure) {
        let results = vec![Decision::Failed(failure).to_abi(); self.count as usize];
        self.host.complete(self.ticket, &results);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.answer_all(if std::thread::panicking() {
            Failure::Error
        } else {
            Failure::Unavailable
        });
    }
}

//! The counter store: bounded, sharded, exact.
//!
//! A bucket is what is counted for one key: one counter for each window kind, and those of former window lengths until
//! their windows end. Buckets live in shards, each behind its own lock, so one check locks one shard and is atomic over
//! both windows. A key is compared in full; the hash that comes with it only says where to look.
//!
//! The capacity is one number for all shards. A new key takes a place under the `capacity` lock, so no more than
//! `max_entries` buckets are ever held; buckets whose windows have all ended are given up when a new key finds no place
//! left. So that a flood of new keys on a full store does not search it each time, the store knows bounds of when the
//! next bucket can end: as long as the reading lies inside, a refusal costs one look.
//!
//! Locks are taken in the order `sweep`, shard, `capacity`, and never two shards at once.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use quota_plugin_sdk::Window;

use crate::bucket::{Bucket, STEP_BACK_MS, Span, exhausted};
use crate::table::Table;

/// The longest key, in bytes.
pub const MAX_KEY_LEN: usize = 512;

/// Buckets a shard should hold before there are more shards, and how many shards there may be, powers of two.
const BUCKETS_PER_SHARD: u64 = 64;
const LEAST_SHARDS: u64 = 64;
const MOST_SHARDS: u64 = 256;

/// An odd constant with well-mixed bits (2^64 divided by the golden ratio).
const MIX: u64 = 0x9E37_79B9_7F4A_7C15;

/// The answer to one check. `used` is in the order of the windows; zero for one that was not asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every window had room, and each was charged 1.
    Allowed {
        /// Counts after the decision.
        used: [u64; 2],
    },
    /// A window was exhausted; nothing was written.
    Denied {
        /// Bit `i` for every exhausted window `i`.
        exhausted: u32,
        /// Counts, unchanged.
        used: [u64; 2],
    },
    /// The key is new, and every bucket that may be held is active.
    Full,
    /// The key is longer than [`MAX_KEY_LEN`].
    KeyTooLong,
}

/// Counters of many keys, at most a given number of them active at once (contract §5 to §7).
#[derive(Debug)]
pub struct Store {
    /// INVARIANT: as many as a hash shifted right by `shard_shift` has values.
    shards: Box<[Padded<Mutex<Shard>>]>,
    shard_shift: u32,
    capacity: Padded<Mutex<Capacity>>,
    /// Held by the one thread that searches all shards for ended buckets.
    sweep: Mutex<()>,
    /// Whether more buckets are held than the capacity was shrunk to: an ended one must not come back to life then.
    shrunk: AtomicBool,
}

/// Keeps what different cores write on different cache lines, pairs of them because they are fetched in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Padded<T>(T);

impl Store {
    /// An empty store for at most `max_entries` active buckets; 0 is no bound. Nothing is allocated for them yet.
    #[must_use]
    pub fn new(max_entries: u64) -> Self {
        let shards = bound(max_entries)
            .div_ceil(BUCKETS_PER_SHARD)
            .clamp(LEAST_SHARDS, MOST_SHARDS)
            .next_power_of_two();
        Self {
            shards: (0..shards)
                .map(|_| Padded(Mutex::new(Shard::default())))
                .collect(),
            shard_shift: u64::BITS - shards.ilog2(),
            capacity: Padded(Mutex::new(Capacity {
                held: 0,
                max: bound(max_entries),
                bounds: Bounds::EMPTY,
                sweeping: false,
            })),
            sweep: Mutex::new(()),
            shrunk: AtomicBool::new(false),
        }
    }

    /// Decides one check of `key` at the reading `now_unix_ms`: if all `windows` have room it charges 1 to each, else
    /// it writes nothing. `key_hash` is a hash of the key and never proof of equality. `windows` are one window, or two
    /// of different kinds.
    #[inline]
    pub fn check(
        &self,
        key: &[u8],
        key_hash: u64,
        windows: &[Window],
        now_unix_ms: u64,
    ) -> Verdict {
        let hash = mixed(key_hash);
        let mut shard = self.shard(hash);
        let Shard { buckets, bounds } = &mut *shard;
        if let Some(bucket) = buckets.find_mut(short(hash), key)
            && (!self.shrunk.load(Ordering::Relaxed) || bucket.runs_at(now_unix_ms))
        {
            return self.decide(bucket, bounds, windows, now_unix_ms);
        }
        self.check_new(shard, hash, key, windows, now_unix_ms)
    }

    /// Sets the most active buckets, at once; 0 is no bound. Counters are kept; shrinking evicts nothing.
    pub fn set_max_entries(&self, max_entries: u64) {
        let mut capacity = self.capacity.0.lock();
        capacity.max = bound(max_entries);
        self.note_shrunk(&capacity);
    }

    /// The most active buckets; 0 for no bound.
    #[must_use]
    pub fn max_entries(&self) -> u64 {
        let max = self.capacity.0.lock().max;
        if max == u64::MAX { 0 } else { max }
    }

    /// Buckets held: the active ones, and ended ones whose place nobody has needed yet.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.capacity.0.lock().held
    }

    #[inline]
    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        // Never 64 bits or more, since there are several shards.
        let index = usize::try_from(hash >> self.shard_shift).unwrap_or(0);
        // In bounds by the invariant of `shards`.
        self.shards[index].0.lock()
    }

    #[inline]
    fn decide(
        &self,
        bucket: &mut Bucket<[u8]>,
        bounds: &mut Bounds,
        windows: &[Window],
        now: u64,
    ) -> Verdict {
        let (verdict, turned) = bucket.decide(windows, now);
        if turned {
            self.note(bounds, bucket.span(now));
        }
        verdict
    }

    /// A check of a key that has no bucket, or an ended one that may not come back just so.
    #[cold]
    #[inline(never)]
    fn check_new<'a>(
        &'a self,
        mut shard: MutexGuard<'a, Shard>,
        hash: u64,
        key: &[u8],
        windows: &[Window],
        now: u64,
    ) -> Verdict {
        if key.len() > MAX_KEY_LEN {
            return Verdict::KeyTooLong;
        }
        let exhausted = exhausted(windows, [0; 2]);
        if exhausted != 0 {
            let used = [0; 2];
            return Verdict::Denied { exhausted, used };
        }
        if self.shrunk.load(Ordering::Relaxed) {
            // The key's own bucket, if it has one, has ended: it takes a new place or none.
            self.give_back(shard.reclaim(now, |bucket| !bucket.runs_at(now)));
        }
        let reserved = self.capacity.0.lock().reserve(now);
        match reserved {
            Reserved::Yes => {}
            Reserved::No => return Verdict::Full,
            Reserved::Perhaps => {
                drop(shard);
                if !self.sweep_and_reserve(now) {
                    return Verdict::Full;
                }
                shard = self.shard(hash);
                let Shard { buckets, bounds } = &mut *shard;
                // Another thread may have brought the key meanwhile.
                if let Some(bucket) = buckets.find_mut(short(hash), key) {
                    self.give_back(1);
                    return self.decide(bucket, bounds, windows, now);
                }
            }
        }
        self.give_back(shard.make_room(now));
        let Shard { buckets, bounds } = &mut *shard;
        let Some(bucket) = buckets.insert(short(hash), key) else {
            self.give_back(1);
            return Verdict::Full;
        };
        self.decide(bucket, bounds, windows, now)
    }

    /// Searches all shards for buckets that have ended at `now`, gives them up, and takes a place if there is one then.
    ///
    /// While it searches, the store's bounds are not complete; whoever would refuse a key for them waits for its end
    /// instead. What others add or turn meanwhile they enter into the bounds themselves.
    fn sweep_and_reserve(&self, now: u64) -> bool {
        let _one_at_a_time = self.sweep.lock();
        {
            let mut capacity = self.capacity.0.lock();
            match capacity.reserve(now) {
                Reserved::Yes => return true,
                Reserved::No => return false,
                Reserved::Perhaps => {}
            }
            capacity.bounds = Bounds::EMPTY;
            capacity.sweeping = true;
        }
        let mut given_up = 0;
        let mut bounds = Bounds::EMPTY;
        for shard in &self.shards {
            let mut shard = shard.0.lock();
            if shard.bounds.may_be_left_at(now) {
                given_up += shard.reclaim(now, |bucket| !bucket.runs_at(now));
            }
            bounds.include(shard.bounds.as_span());
        }
        let mut capacity = self.capacity.0.lock();
        capacity.bounds.include(bounds.as_span());
        capacity.sweeping = false;
        capacity.held -= given_up;
        self.note_shrunk(&capacity);
        if capacity.held < capacity.max {
            capacity.held += 1;
            return true;
        }
        false
    }

    /// Enters a changed bucket into the bounds of its shard and, if that moves them, of the store.
    fn note(&self, shard: &mut Bounds, span: Span) {
        if !shard.cover(span) {
            shard.include(span);
            self.capacity.0.lock().bounds.include(span);
        }
    }

    fn give_back(&self, places: u64) {
        if places > 0 {
            let mut capacity = self.capacity.0.lock();
            capacity.held -= places;
            self.note_shrunk(&capacity);
        }
    }

    fn note_shrunk(&self, capacity: &Capacity) {
        self.shrunk
            .store(capacity.held > capacity.max, Ordering::Relaxed);
    }
}

const fn bound(max_entries: u64) -> u64 {
    if max_entries == 0 {
        u64::MAX
    } else {
        max_entries
    }
}

/// How many buckets are held, and when the first of them can end.
#[derive(Debug)]
struct Capacity {
    /// Buckets in all shards, and places taken for ones about to be inserted.
    held: u64,
    /// The most.
    max: u64,
    /// INVARIANT: covers the bounds of every shard, unless `sweeping`.
    bounds: Bounds,
    /// A thread is searching all shards.
    sweeping: bool,
}

/// Whether a new key got a place.
enum Reserved {
    Yes,
    /// No, and every bucket is active.
    No,
    /// No, but some bucket may have ended.
    Perhaps,
}

impl Capacity {
    fn reserve(&mut self, now: u64) -> Reserved {
        if self.held < self.max {
            self.held += 1;
            Reserved::Yes
        } else if self.sweeping || self.bounds.may_be_left_at(now) {
            Reserved::Perhaps
        } else {
            Reserved::No
        }
    }
}

/// A hash whose every bit depends on all bits of the host's, so that a poor one still spreads its keys.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "folds the two halves of a product"
)]
const fn mixed(key_hash: u64) -> u64 {
    let product = (key_hash as u128) * (MIX as u128);
    (product as u64) ^ ((product >> 64) as u64)
}

/// The part of a hash that is used within a shard; the shard is chosen by the other end.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the lower half is what is wanted"
)]
const fn short(hash: u64) -> u32 {
    hash as u32
}

#[derive(Debug, Default)]
struct Shard {
    buckets: Table,
    /// INVARIANT: covers the span of every bucket here.
    bounds: Bounds,
}

impl Shard {
    /// Makes room for one more bucket. Before the table grows it gives up what is long over; how many buckets.
    fn make_room(&mut self, now: u64) -> u64 {
        if !self.buckets.is_full() {
            return 0;
        }
        let mut given_up = 0;
        if now.saturating_sub(STEP_BACK_MS) >= self.bounds.earliest_end {
            given_up = self.reclaim(now, |bucket| bucket.is_over(now));
        }
        // Grow after a meagre yield too, lest the next bucket searches the table again for as little.
        if given_up < count(self.buckets.len() / 4) || self.buckets.is_full() {
            self.buckets.grow();
        }
        given_up
    }

    /// Gives up buckets and finds the bounds of the rest, at `now`; how many buckets.
    fn reclaim(&mut self, now: u64, give_up: impl Fn(&Bucket<[u8]>) -> bool) -> u64 {
        let mut given_up = 0;
        let mut bounds = Bounds::EMPTY;
        self.buckets.for_each(|bucket| {
            if give_up(bucket) {
                given_up += 1;
            } else {
                bounds.include(bucket.span(now));
            }
        });
        self.bounds = bounds;
        if given_up > 0 {
            self.buckets.retain(|bucket| !give_up(bucket));
        }
        given_up
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Readings at which each of several buckets is surely active: from `latest_from` to before `earliest_end`.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    latest_from: u64,
    earliest_end: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Bounds {
    /// The bounds of no buckets.
    const EMPTY: Self = Self {
        latest_from: 0,
        earliest_end: u64::MAX,
    };

    const fn cover(&self, span: Span) -> bool {
        span.from <= self.latest_from && span.end >= self.earliest_end
    }

    fn include(&mut self, span: Span) {
        self.latest_from = self.latest_from.max(span.from);
        self.earliest_end = self.earliest_end.min(span.end);
    }

    const fn as_span(self) -> Span {
        Span {
            from: self.latest_from,
            end: self.earliest_end,
        }
    }

    /// Whether some bucket may not be active at `now`.
    const fn may_be_left_at(&self, now: u64) -> bool {
        now < self.latest_from || now >= self.earliest_end
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::hash::{DefaultHasher, Hash, Hasher};
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU64;
    use std::thread;

    use quota_plugin_sdk::WindowKind;

    use super::*;

    const T: u64 = 1_760_000_000_000;
    const MINUTE: u64 = 60_000;

    fn hash(key: &[u8]) -> u64 {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        hasher.finish()
    }

    fn window(kind: WindowKind, limit: u64, length_ms: u64, now: u64) -> Window {
        Window::new(kind, limit, length_ms, now - now % length_ms)
    }

    fn burst(limit: u64, length_ms: u64, now: u64) -> Window {
        window(WindowKind::Burst, limit, length_ms, now)
    }

    fn sustained(limit: u64, length_ms: u64, now: u64) -> Window {
        window(WindowKind::Sustained, limit, length_ms, now)
    }

    fn both(b: (u64, u64), s: (u64, u64), now: u64) -> [Window; 2] {
        [burst(b.0, b.1, now), sustained(s.0, s.1, now)]
    }

    fn check(store: &Store, key: impl AsRef<[u8]>, windows: &[Window], now: u64) -> Verdict {
        let key = key.as_ref();
        store.check(key, hash(key), windows, now)
    }

    const fn allowed(burst: u64, sustained: u64) -> Verdict {
        let used = [burst, sustained];
        Verdict::Allowed { used }
    }

    const fn denied(exhausted: u32, burst: u64, sustained: u64) -> Verdict {
        let used = [burst, sustained];
        Verdict::Denied { exhausted, used }
    }

    #[test]
    fn a_limit_is_exact_and_a_denial_writes_nothing() {
        let store = Store::new(10);
        let roomy = both((3, 10_000), (5, 3_600_000), T);
        for n in 1..=3 {
            assert_eq!(check(&store, "k", &roomy, T), allowed(n, n));
        }
        for _ in 0..3 {
            assert_eq!(check(&store, "k", &roomy, T), denied(1, 3, 3));
        }
        let next = T + 10_000;
        let roomy = both((3, 10_000), (5, 3_600_000), next);
        assert_eq!(check(&store, "k", &roomy, next), allowed(1, 4));
        assert_eq!(check(&store, "k", &roomy, next), allowed(2, 5));
        for _ in 0..3 {
            assert_eq!(check(&store, "k", &roomy, next), denied(2, 2, 5));
        }
        let both_gone = both((2, 10_000), (5, 3_600_000), next);
        assert_eq!(check(&store, "k", &both_gone, next), denied(3, 2, 5));
    }

    #[test]
    fn one_window_alone_of_each_kind() {
        for kind in [WindowKind::Burst, WindowKind::Sustained] {
            let store = Store::new(10);
            let only = [window(kind, 2, 1_000, T)];
            assert_eq!(check(&store, "k", &only, T), allowed(1, 0));
            assert_eq!(check(&store, "k", &only, T), allowed(2, 0));
            assert_eq!(check(&store, "k", &only, T), denied(1, 2, 0));
        }
    }

    #[test]
    fn the_kinds_of_one_length_are_counted_apart() {
        let store = Store::new(10);
        assert_eq!(check(&store, "k", &[burst(1, 1_000, T)], T), allowed(1, 0));
        assert_eq!(
            check(&store, "k", &[sustained(1, 1_000, T)], T),
            allowed(1, 0)
        );
        assert_eq!(
            check(&store, "k", &[burst(1, 1_000, T)], T),
            denied(1, 1, 0)
        );
    }

    #[test]
    fn a_window_turns_at_its_exact_millisecond() {
        let start = T - T % MINUTE;
        let reset = start + MINUTE;
        let at = |store: &Store, now| check(store, "k", &[burst(1, MINUTE, now)], now);
        let store = Store::new(10);
        assert_eq!(at(&store, start - 1), allowed(1, 0));
        assert_eq!(at(&store, start - 1), denied(1, 1, 0));
        assert_eq!(at(&store, start), allowed(1, 0));
        assert_eq!(at(&store, reset - 1), denied(1, 1, 0));
        assert_eq!(at(&store, reset), allowed(1, 0));
        assert_eq!(at(&store, reset), denied(1, 1, 0));
    }

    #[test]
    fn a_small_step_back_counts_in_the_stored_window() {
        for (length, back, counts) in [
            (1_000, 1, true),
            (1_000, 59_999, true),
            (1_000, 60_000, false),
            (1_000, 3_600_000, false),
            (120_000, 60_000, true),
            (120_000, 119_999, true),
            (120_000, 120_000, false),
        ] {
            let store = Store::new(10);
            let start = T - T % length;
            let now = start - back;
            assert_eq!(
                check(&store, "k", &[burst(1, length, start)], start),
                allowed(1, 0)
            );
            let answer = check(&store, "k", &[burst(1, length, now)], now);
            let expected = if counts {
                denied(1, 1, 0)
            } else {
                allowed(1, 0)
            };
            assert_eq!(answer, expected, "length {length}, back {back}");
        }
    }

    #[test]
    fn a_late_decision_does_not_bring_the_old_window_back() {
        let store = Store::new(10);
        let start = T - T % 10_000;
        let at = |now| check(&store, "k", &[burst(3, 10_000, now)], now);
        assert_eq!(at(start), allowed(1, 0));
        assert_eq!(at(start - 5), allowed(2, 0));
        assert_eq!(at(start + 5), allowed(3, 0));
        assert_eq!(at(start - 5), denied(1, 3, 0));
    }

    #[test]
    fn another_length_starts_fresh_and_leaves_the_former_alone() {
        let store = Store::new(10);
        let now = T - T % 840_000;
        let of = |length, limit| check(&store, "k", &[burst(limit, length, now)], now);
        assert_eq!(of(60_000, 2), allowed(1, 0));
        assert_eq!(of(60_000, 2), allowed(2, 0));
        assert_eq!(of(70_000, 3), allowed(1, 0));
        assert_eq!(of(60_000, 2), denied(1, 2, 0));
        assert_eq!(of(70_000, 3), allowed(2, 0));
        assert_eq!(of(60_000, 3), allowed(3, 0));
        assert_eq!(of(40_000, 1), allowed(1, 0));
        assert_eq!(of(70_000, 3), allowed(3, 0));
        for (length, used) in [(40_000, 1), (60_000, 3), (70_000, 3)] {
            assert_eq!(of(length, used), denied(1, used, 0), "{length}");
        }
        assert_eq!(store.entries(), 1);
    }

    #[test]
    fn changing_one_window_keeps_the_other() {
        let store = Store::new(10);
        let now = T - T % 3_600_000;
        let of = |b, s| check(&store, "k", &both((9, b), (9, s), now), now);
        assert_eq!(of(1_000, 3_600_000), allowed(1, 1));
        assert_eq!(of(2_000, 3_600_000), allowed(1, 2));
        assert_eq!(of(2_000, 1_800_000), allowed(2, 1));
        assert_eq!(of(1_000, 3_600_000), allowed(2, 3));
    }

    #[test]
    fn counters_of_former_lengths_are_given_up_when_they_are_over() {
        let store = Store::new(10);
        let of = |length, now| check(&store, "k", &[burst(9, length, now)], now);
        let start = T - T % 420_000;
        for length in [1_000, 2_000, 3_000] {
            assert_eq!(of(length, start), allowed(1, 0));
        }
        let later = start + 420_000;
        assert_eq!(of(7_000, later), allowed(1, 0));
        let hash = mixed(hash(b"k"));
        let mut shard = store.shard(hash);
        let bucket = shard.buckets.find_mut(short(hash), b"k").unwrap();
        assert!(!bucket.holds_others());
    }

    #[test]
    fn a_limit_changes_in_the_middle_of_a_window() {
        let store = Store::new(10);
        let of = |limit| check(&store, "k", &[burst(limit, 10_000, T)], T);
        assert_eq!(of(3), allowed(1, 0));
        assert_eq!(of(3), allowed(2, 0));
        assert_eq!(of(1), denied(1, 2, 0));
        assert_eq!(of(2), denied(1, 2, 0));
        assert_eq!(of(3), allowed(3, 0));
        assert_eq!(of(u64::MAX), allowed(4, 0));
    }

    #[test]
    fn a_full_store_refuses_new_keys_only() {
        let store = Store::new(2);
        let windows = [burst(9, 10_000, T)];
        assert_eq!(check(&store, "a", &windows, T), allowed(1, 0));
        assert_eq!(check(&store, "b", &windows, T), allowed(1, 0));
        assert_eq!(check(&store, "c", &windows, T), Verdict::Full);
        assert_eq!(check(&store, "a", &windows, T), allowed(2, 0));
        assert_eq!(check(&store, "b", &windows, T), allowed(2, 0));
        assert_eq!(store.entries(), 2);
    }

    #[test]
    fn a_place_is_free_at_the_exact_millisecond_its_last_window_ends() {
        let start = T - T % MINUTE;
        let store = Store::new(1);
        let windows = |now| both((9, 1_000), (9, MINUTE), now);
        assert_eq!(check(&store, "a", &windows(start), start), allowed(1, 1));
        for now in [start, start + 1_000, start + MINUTE - 1] {
            assert_eq!(check(&store, "b", &windows(now), now), Verdict::Full);
        }
        let end = start + MINUTE;
        assert_eq!(check(&store, "b", &windows(end), end), allowed(1, 1));
        assert_eq!(check(&store, "a", &windows(end), end), Verdict::Full);
    }

    #[test]
    fn a_former_length_keeps_its_bucket_active() {
        let start = T - T % MINUTE;
        let store = Store::new(1);
        check(&store, "a", &[burst(9, MINUTE, start)], start);
        check(&store, "a", &[burst(9, 1_000, start)], start);
        let late = start + MINUTE - 1;
        let new = [burst(9, 1_000, late)];
        assert_eq!(check(&store, "b", &new, late), Verdict::Full);
        assert_eq!(check(&store, "b", &new, late + 1), allowed(1, 0));
    }

    #[test]
    fn windows_far_ahead_of_a_corrected_clock_hold_no_place() {
        let day = 86_400_000;
        let store = Store::new(2);
        let ahead = T + 3_650 * day;
        check(&store, "a", &[burst(9, day, ahead)], ahead);
        check(&store, "b", &[burst(9, day, ahead)], ahead);
        assert_eq!(
            check(&store, "c", &[burst(9, day, ahead)], ahead),
            Verdict::Full
        );
        assert_eq!(check(&store, "c", &[burst(9, day, T)], T), allowed(1, 0));
        assert_eq!(check(&store, "a", &[burst(9, day, T)], T), allowed(1, 0));
        assert_eq!(check(&store, "b", &[burst(9, day, T)], T), Verdict::Full);
    }

    #[test]
    fn shrinking_evicts_nothing_and_an_ended_bucket_does_not_come_back_over_it() {
        let store = Store::new(4);
        let now = T - T % MINUTE;
        let long = |now| [burst(9, MINUTE, now)];
        let short = |now| [burst(9, 1_000, now)];
        for key in ["a", "b"] {
            check(&store, key, &long(now), now);
        }
        for key in ["c", "d"] {
            check(&store, key, &short(now), now);
        }
        store.set_max_entries(2);
        for key in ["a", "b"] {
            assert_eq!(check(&store, key, &long(now), now), allowed(2, 0));
        }
        for key in ["c", "d"] {
            assert_eq!(check(&store, key, &short(now), now), allowed(2, 0));
        }
        let later = now + 1_000;
        assert_eq!(
            check(&store, "c", &short(later), later),
            Verdict::Full,
            "two others are active"
        );
        assert_eq!(check(&store, "a", &long(later), later), allowed(3, 0));
        assert_eq!(store.entries(), 2);
        store.set_max_entries(3);
        assert_eq!(check(&store, "c", &short(later), later), allowed(1, 0));
        assert_eq!(check(&store, "d", &short(later), later), Verdict::Full);
        assert_eq!(store.max_entries(), 3);
    }

    #[test]
    fn no_bound_is_no_bound() {
        let store = Store::new(0);
        let windows = [burst(9, MINUTE, T)];
        for key in 0..10_000_u32 {
            assert_eq!(check(&store, key.to_le_bytes(), &windows, T), allowed(1, 0));
        }
        assert_eq!((store.entries(), store.max_entries()), (10_000, 0));
    }

    #[test]
    fn ended_buckets_do_not_pile_up_below_the_bound() {
        let store = Store::new(0);
        let mut most = 0;
        for round in 0..300_u64 {
            let now = T + round * MINUTE;
            for key in 0..1_000_u64 {
                let key = (round, key);
                let key = [key.0.to_le_bytes(), key.1.to_le_bytes()].concat();
                assert_eq!(
                    check(&store, key, &[burst(1, 1_000, now)], now),
                    allowed(1, 0)
                );
            }
            most = most.max(store.entries());
        }
        assert!(most < 20_000, "{most} buckets held, 1,000 active");
    }

    #[test]
    fn a_late_decision_finds_what_an_ended_window_counted() {
        let store = Store::new(0);
        let start = T - T % 10_000;
        assert_eq!(
            check(&store, "late", &[burst(1, 10_000, start)], start),
            allowed(1, 0)
        );
        let after = start + 10_001;
        for key in 0..10_000_u32 {
            check(&store, key.to_le_bytes(), &[burst(1, 10_000, after)], after);
        }
        assert_eq!(
            check(&store, "late", &[burst(1, 10_000, start)], start + 9_999),
            denied(1, 1, 0)
        );
    }

    #[test]
    fn keys_are_bytes_compared_in_full() {
        let store = Store::new(0);
        let windows = [burst(1, 10_000, T)];
        let mut keys: BTreeSet<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        for len in 0..=MAX_KEY_LEN {
            keys.insert(vec![0; len]);
            keys.insert([vec![b'x'; len.saturating_sub(1)], vec![0]].concat());
        }
        // One hash for all, twice: nothing may rest on it.
        for constant in [0, u64::MAX] {
            let store = Store::new(0);
            for key in &keys {
                let first = store.check(key, constant, &windows, T);
                assert_eq!(first, allowed(1, 0), "{key:?}");
            }
            for key in &keys {
                let second = store.check(key, constant, &windows, T);
                assert_eq!(second, denied(1, 1, 0), "{key:?}");
            }
        }
        for key in &keys {
            assert_eq!(check(&store, key, &windows, T), allowed(1, 0));
        }
    }

    #[test]
    fn a_key_too_long_is_refused_whole() {
        let store = Store::new(1);
        let windows = [burst(9, 10_000, T)];
        let key = [7; MAX_KEY_LEN + 1];
        assert_eq!(check(&store, key, &windows, T), Verdict::KeyTooLong);
        assert_eq!(store.entries(), 0);
        assert_eq!(check(&store, &key[1..], &windows, T), allowed(1, 0));
    }

    #[test]
    fn extreme_numbers_do_no_harm() {
        let numbers = [
            0,
            1,
            59_999,
            60_000,
            T,
            1 << 53,
            u64::MAX - 60_000,
            u64::MAX - 1,
            u64::MAX,
        ];
        let store = Store::new(3);
        for now in numbers {
            for length in &numbers[1..] {
                for limit in numbers {
                    for start in [now - now % length, 0, u64::MAX] {
                        let windows = [
                            Window::new(WindowKind::Burst, limit, *length, start),
                            Window::new(WindowKind::Sustained, u64::MAX, *length, start),
                        ];
                        check(&store, limit.to_le_bytes(), &windows, now);
                        check(&store, start.to_le_bytes(), &windows[..1], now);
                    }
                }
            }
        }
        assert!(store.entries() <= 3);
        let store = Store::new(1);
        let huge = [burst(u64::MAX, u64::MAX, T)];
        assert_eq!(check(&store, "k", &huge, 0), allowed(1, 0));
        assert_eq!(check(&store, "k", &huge, T), allowed(2, 0));
        assert_eq!(check(&store, "new", &huge, T), Verdict::Full);
    }

    #[test]
    fn a_limit_of_zero_denies_without_a_bucket() {
        let store = Store::new(1);
        let windows = both((0, 1_000), (1, 10_000), T);
        assert_eq!(check(&store, "k", &windows, T), denied(1, 0, 0));
        assert_eq!(store.entries(), 0);
    }

    #[test]
    fn threads_on_one_key_are_admitted_exactly_to_the_limit() {
        let store = Store::new(1);
        let windows = both((1_000, 10_000), (1_500, 3_600_000), T);
        let admitted = AtomicU64::new(0);
        let start = Barrier::new(64);
        thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..100 {
                        if matches!(check(&store, "k", &windows, T), Verdict::Allowed { .. }) {
                            admitted.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(admitted.into_inner(), 1_000);
        assert_eq!(check(&store, "k", &windows, T), denied(1, 1_000, 1_000));
    }

    /// In each round all buckets of the one before have ended: every place must be found, and not one more.
    #[test]
    fn threads_with_new_keys_fill_a_store_exactly_again_and_again() {
        const PLACES: u64 = 300;
        let store = Store::new(PLACES);
        let admitted = AtomicU64::new(0);
        let round_over = Barrier::new(8);
        thread::scope(|scope| {
            for thread in 0..8_u64 {
                let (store, admitted, round_over) = (&store, &admitted, &round_over);
                scope.spawn(move || {
                    for round in 0..50_u64 {
                        let now = T + round * 1_000;
                        round_over.wait();
                        for key in 0..100_u64 {
                            let key = [round, thread, key].map(u64::to_le_bytes).concat();
                            let verdict = check(store, key, &[burst(1, 1_000, now)], now);
                            if verdict == allowed(1, 0) {
                                admitted.fetch_add(1, Ordering::Relaxed);
                            } else {
                                assert_eq!(verdict, Verdict::Full);
                            }
                        }
                        if round_over.wait().is_leader() {
                            assert_eq!(admitted.swap(0, Ordering::Relaxed), PLACES);
                        }
                    }
                });
            }
        });
        assert_eq!(store.entries(), PLACES);
    }

    /// A small generator, so that a failing run repeats itself.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % bound
        }

        fn windows(&mut self, now: u64) -> Vec<Window> {
            let lengths = [1_000, 3_000, 7_000, 60_000, 300_000];
            let mut of = |kind| {
                let length = lengths[usize::try_from(self.below(5)).unwrap()];
                window(kind, 1 + self.below(6), length, now)
            };
            let (burst, sustained) = (of(WindowKind::Burst), of(WindowKind::Sustained));
            match self.below(4) {
                0 => vec![burst],
                1 => vec![sustained],
                _ => vec![burst, sustained],
            }
        }
    }

    type Counts = BTreeMap<(u64, WindowKind, u64), (u64, u64)>;

    /// The contract over a plain map that forgets nothing: (key, kind, length) → (start, used).
    fn model(counts: &mut Counts, key: u64, windows: &[Window], now: u64) -> Verdict {
        let mut used = [0; 2];
        let mut exhausted = 0;
        let mut starts = [0; 2];
        for (i, w) in windows.iter().enumerate() {
            starts[i] = w.start_ms();
            if let Some(&(start, count)) = counts.get(&(key, w.kind(), w.length_ms())) {
                let late = start > now && start - now < w.length_ms().max(MINUTE);
                if start == w.start_ms() || late {
                    (starts[i], used[i]) = (start, count);
                }
            }
            if used[i] >= w.limit() {
                exhausted |= 1 << i;
            }
        }
        if exhausted != 0 {
            return Verdict::Denied { exhausted, used };
        }
        for (i, w) in windows.iter().enumerate() {
            used[i] += 1;
            counts.insert((key, w.kind(), w.length_ms()), (starts[i], used[i]));
        }
        Verdict::Allowed { used }
    }

    #[test]
    fn random_checks_agree_with_the_model_late_readings_included() {
        let mut random = Random(0x51AB_5EED);
        let store = Store::new(0);
        let mut counts = Counts::new();
        let mut latest = T;
        for step in 0..100_000 {
            latest += random.below(100);
            let late = random.below(20) == 0;
            let now = latest - if late { random.below(MINUTE) } else { 0 };
            let key = random.below(40);
            let windows = random.windows(now);
            assert_eq!(
                check(&store, key.to_le_bytes(), &windows, now),
                model(&mut counts, key, &windows, now),
                "step {step}, key {key}, {windows:?} at {now}"
            );
        }
    }

    #[test]
    fn random_checks_of_a_bounded_store_agree_with_the_model() {
        let mut random = Random(0xB0B_5EED);
        let mut bound = 20;
        let store = Store::new(bound);
        let mut counts = Counts::new();
        let (mut now, mut full) = (T, 0);
        for step in 0..100_000 {
            now += random.below(30);
            if random.below(1_000) == 0 {
                bound = 5 + random.below(30);
                store.set_max_entries(bound);
            }
            let key = random.below(100);
            let windows = random.windows(now);
            counts.retain(|(_, _, length), (start, _)| *start + *length > now);
            let active: BTreeSet<u64> = counts.keys().map(|(key, _, _)| *key).collect();
            let active_now = u64::try_from(active.len()).unwrap();
            let expected = if active.contains(&key) || active_now < bound {
                model(&mut counts, key, &windows, now)
            } else {
                full += 1;
                Verdict::Full
            };
            assert_eq!(
                check(&store, key.to_le_bytes(), &windows, now),
                expected,
                "step {step}, key {key}, {windows:?} at {now}, {active_now} of {bound} active"
            );
        }
        assert!(full > 1_000, "only {full} steps met a full store");
    }
}

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

use hashbrown::HashTable;
use parking_lot::{Mutex, MutexGuard};
use quota_plugin_sdk::{Window, WindowKind};

/// The longest key, in bytes.
pub const MAX_KEY_LEN: usize = 512;

/// Shards are chosen by the top bits of a hash, so their number is a power of two.
const SHARD_BITS: u32 = 8;

/// A reading older than a window by less than this, or the window's length if that is more, is a late decision or a
/// small correction of the clock; a larger step back takes the clock's word (contract §6). Counters are kept this long
/// past their end, unless a new key needs their place, so that a late decision finds what was counted.
const STEP_BACK_MS: u64 = 60_000;

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
    shards: Box<[Padded<Mutex<Shard>>]>,
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
        let shard = || Padded(Mutex::new(Shard::default()));
        Self {
            shards: std::iter::repeat_with(shard)
                .take(1 << SHARD_BITS)
                .collect(),
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
        let place = Place::of(key_hash);
        let mut shard = self.shard(place);
        let Shard { buckets, bounds } = &mut *shard;
        if let Some(bucket) = buckets.find_mut(place.hash, |bucket| bucket.is_of(place, key))
            && (!self.shrunk.load(Ordering::Relaxed) || bucket.runs_at(now_unix_ms))
        {
            let (verdict, turned) = bucket.decide(windows, now_unix_ms);
            if turned {
                self.note(bounds, bucket.span(now_unix_ms));
            }
            return verdict;
        }
        self.check_new(shard, place, key, windows, now_unix_ms)
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
    fn shard(&self, place: Place) -> MutexGuard<'_, Shard> {
        // In bounds: the index has SHARD_BITS bits, and there are 2^SHARD_BITS shards.
        self.shards[place.shard].0.lock()
    }

    /// A check of a key that has no bucket, or an ended one that may not come back just so.
    #[cold]
    #[inline(never)]
    fn check_new<'a>(
        &'a self,
        mut shard: MutexGuard<'a, Shard>,
        place: Place,
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
        if shard.remove(place, key) {
            self.give_back(1);
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
                shard = self.shard(place);
                let Shard { buckets, bounds } = &mut *shard;
                // Another thread may have brought the key meanwhile.
                if let Some(bucket) = buckets.find_mut(place.hash, |other| other.is_of(place, key))
                {
                    self.give_back(1);
                    let (verdict, turned) = bucket.decide(windows, now);
                    if turned {
                        self.note(bounds, bucket.span(now));
                    }
                    return verdict;
                }
            }
        }
        let Some(mut bucket) = bucket_of(place, key) else {
            self.give_back(1);
            return Verdict::KeyTooLong;
        };
        let (verdict, _) = bucket.decide(windows, now);
        self.note(&mut shard.bounds, bucket.span(now));
        let given_up = shard.make_room(now);
        self.give_back(given_up);
        shard
            .buckets
            .insert_unique(place.hash, bucket, |bucket| table_hash(bucket.hash));
        verdict
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

/// Where the hash of a key leads.
#[derive(Clone, Copy)]
struct Place {
    shard: usize,
    /// What a bucket remembers of the hash.
    short: u32,
    /// The hash inside the shard's table.
    hash: u64,
}

impl Place {
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the shard number has SHARD_BITS bits; of the other bits, 32 are wanted"
    )]
    const fn of(key_hash: u64) -> Self {
        // Mixed, so that a host with a poor hash still spreads its keys.
        let mixed = key_hash.wrapping_mul(MIX);
        let short = (mixed >> (32 - SHARD_BITS)) as u32;
        Self {
            shard: (mixed >> (u64::BITS - SHARD_BITS)) as usize,
            short,
            hash: table_hash(short),
        }
    }
}

/// The table looks at the lowest and the highest bits of a hash.
#[inline]
const fn table_hash(short: u32) -> u64 {
    (short as u64).wrapping_mul(MIX)
}

#[derive(Debug, Default)]
struct Shard {
    buckets: HashTable<Box<Bucket<[u8]>>>,
    /// INVARIANT: covers the span of every bucket here.
    bounds: Bounds,
}

impl Shard {
    /// Removes the bucket of a key; whether there was one.
    fn remove(&mut self, place: Place, key: &[u8]) -> bool {
        self.buckets
            .find_entry(place.hash, |bucket| bucket.is_of(place, key))
            .map(|found| found.remove())
            .is_ok()
    }

    /// Makes room for one more bucket. Before the table grows it gives up what is long over; how many buckets.
    fn make_room(&mut self, now: u64) -> u64 {
        let len = self.buckets.len();
        let nothing_over = now.saturating_sub(STEP_BACK_MS) < self.bounds.earliest_end;
        if len < self.buckets.capacity() || nothing_over {
            return 0;
        }
        self.reclaim(now, |bucket| bucket.is_over(now));
        let given_up = len - self.buckets.len();
        if given_up < len / 4 {
            // Grow all the same, lest the next bucket searches the table again for as little.
            self.buckets
                .reserve(len + 1, |bucket| table_hash(bucket.hash));
        }
        count(given_up)
    }

    /// Gives up buckets and finds the bounds of the rest, at `now`; how many buckets.
    fn reclaim(&mut self, now: u64, give_up: impl Fn(&Bucket<[u8]>) -> bool) -> u64 {
        let before = self.buckets.len();
        let mut bounds = Bounds::EMPTY;
        self.buckets.retain(|bucket| {
            let keep = !give_up(bucket);
            if keep {
                bounds.include(bucket.span(now));
            }
            keep
        });
        self.bounds = bounds;
        let len = self.buckets.len();
        if len < self.buckets.capacity() / 4 {
            self.buckets
                .shrink_to(len * 2, |bucket| table_hash(bucket.hash));
        }
        count(before - len)
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// The readings, `from` to before `end`, at which something is active.
#[derive(Clone, Copy, Debug)]
struct Span {
    from: u64,
    end: u64,
}

impl Span {
    /// At no reading.
    const NEVER: Self = Self {
        from: u64::MAX,
        end: 0,
    };
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

/// What is counted for one key. `K` is the key: an array while the bucket is made, then a slice.
#[derive(Debug)]
struct Bucket<K: ?Sized> {
    /// Burst and sustained, of the lengths charged last.
    counters: [Counter; 2],
    /// Counters of other lengths whose windows may still run: decisions in flight on a former program charge them.
    others: Option<Box<Others>>,
    /// Remembered for when the table grows.
    hash: u32,
    key_len: u16,
    /// The key, then padding.
    key: K,
}

/// Counters beyond the usual two.
#[derive(Debug, Default)]
struct Others(Vec<(WindowKind, Counter)>);

/// How often a window was charged.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    /// 0 in a counter that was never charged.
    length_ms: u64,
    start_ms: u64,
    /// At least 1 in a counter that was charged.
    used: u64,
}

impl Counter {
    /// What counts for `window` at `now`; `None` if the stored window is another one, so that nothing does.
    #[inline]
    fn used_for(&self, window: &Window, now: u64) -> Option<u64> {
        let same = self.start_ms == window.start_ms();
        let earlier = self.start_ms > window.start_ms()
            && self.start_ms.saturating_sub(now) < self.step_back_ms();
        (same || earlier).then_some(self.used)
    }

    /// How much older than the window a reading must be to be believed.
    #[inline]
    fn step_back_ms(&self) -> u64 {
        self.length_ms.max(STEP_BACK_MS)
    }

    /// The readings at which the window runs: its own, and the earlier ones that count in it.
    #[inline]
    fn span(&self) -> Span {
        Span {
            from: self.start_ms.saturating_sub(self.step_back_ms() - 1),
            end: self.start_ms.saturating_add(self.length_ms),
        }
    }

    #[inline]
    fn runs_at(&self, now: u64) -> bool {
        let span = self.span();
        span.from <= now && now < span.end && self.used > 0
    }

    /// Whether the window ended so long before `now` that no late decision counts in it any more.
    fn is_over(&self, now: u64) -> bool {
        now.saturating_sub(STEP_BACK_MS) >= self.span().end || self.used == 0
    }
}

impl<K: ?Sized> Bucket<K> {
    fn counters(&self) -> impl Iterator<Item = &Counter> {
        let others = self.others.iter().flat_map(|others| &others.0);
        self.counters
            .iter()
            .chain(others.map(|(_, counter)| counter))
    }

    /// Whether it is active: one of its windows runs.
    fn runs_at(&self, now: u64) -> bool {
        self.counters().any(|counter| counter.runs_at(now))
    }

    fn is_over(&self, now: u64) -> bool {
        self.counters().all(|counter| counter.is_over(now))
    }

    /// Readings around `now` at which it is active without a gap.
    fn span(&self, now: u64) -> Span {
        self.counters()
            .filter(|counter| counter.runs_at(now))
            .map(Counter::span)
            // Spans that have `now` in common leave no gap between them.
            .reduce(|a, b| Span {
                from: a.from.min(b.from),
                end: a.end.max(b.end),
            })
            .unwrap_or(Span::NEVER)
    }

    /// Decides and, if every window has room, charges; whether a window turned by that.
    #[inline]
    fn decide(&mut self, windows: &[Window], now: u64) -> (Verdict, bool) {
        let mut used = [0; 2];
        for (window, used) in windows.iter().zip(&mut used) {
            *used = self.used_for(window, now);
        }
        let exhausted = exhausted(windows, used);
        if exhausted != 0 {
            return (Verdict::Denied { exhausted, used }, false);
        }
        let mut turned = false;
        for (window, used) in windows.iter().zip(&mut used) {
            let counter = self.counter_mut(window, now);
            if *used == 0 {
                counter.start_ms = window.start_ms();
                turned = true;
            }
            // Cannot overflow: it was below the limit.
            *used += 1;
            counter.used = *used;
        }
        (Verdict::Allowed { used }, turned)
    }

    /// What counts for `window` so far.
    #[inline]
    fn used_for(&self, window: &Window, now: u64) -> u64 {
        let counter = &self.counters[window.kind() as usize];
        let counter = if counter.length_ms == window.length_ms() {
            Some(counter)
        } else {
            self.other(window)
        };
        counter
            .and_then(|counter| counter.used_for(window, now))
            .unwrap_or(0)
    }

    #[cold]
    fn other(&self, window: &Window) -> Option<&Counter> {
        let others = self.others.as_ref()?;
        others
            .0
            .iter()
            .find(|(kind, counter)| is_for(*kind, counter, window))
            .map(|(_, counter)| counter)
    }

    /// The counter of the window's kind and length, in the first place for its kind.
    #[inline]
    fn counter_mut(&mut self, window: &Window, now: u64) -> &mut Counter {
        if self.counters[window.kind() as usize].length_ms != window.length_ms() {
            self.change_length(window, now);
        }
        &mut self.counters[window.kind() as usize]
    }

    /// Puts the counter of the window's length into the first place; the one there goes to the others, which are
    /// cleared of those that are over.
    #[cold]
    fn change_length(&mut self, window: &Window, now: u64) {
        let mut others = self.others.take().unwrap_or_default();
        let mut counter = Counter {
            length_ms: window.length_ms(),
            ..Counter::default()
        };
        others.0.retain(|(kind, other)| {
            let wanted = is_for(*kind, other, window);
            if wanted {
                counter = *other;
            }
            !wanted && !other.is_over(now)
        });
        let first = &mut self.counters[window.kind() as usize];
        std::mem::swap(first, &mut counter);
        if !counter.is_over(now) {
            others.0.push((window.kind(), counter));
        }
        self.others = (!others.0.is_empty()).then_some(others);
    }
}

/// Bit `i` for every window `i` without room.
#[inline]
fn exhausted(windows: &[Window], used: [u64; 2]) -> u32 {
    windows
        .iter()
        .zip(used)
        .zip([1, 2])
        .filter(|((window, used), _)| *used >= window.limit())
        .fold(0, |exhausted, (_, bit)| exhausted | bit)
}

fn is_for(kind: WindowKind, counter: &Counter, window: &Window) -> bool {
    kind == window.kind() && counter.length_ms == window.length_ms()
}

impl Bucket<[u8]> {
    #[inline]
    fn is_of(&self, place: Place, key: &[u8]) -> bool {
        self.hash == place.short && self.key.get(..usize::from(self.key_len)) == Some(key)
    }
}

/// An empty bucket of a key, with its key in the same allocation; `None` if the key is too long.
///
/// The room for the key grows in steps that fill what allocators hand out, multiples of 16 bytes with 8 of their own.
fn bucket_of(place: Place, key: &[u8]) -> Option<Box<Bucket<[u8]>>> {
    fn sized<const N: usize>(place: Place, key: &[u8]) -> Option<Box<Bucket<[u8]>>> {
        let mut padded = [0; N];
        padded.get_mut(..key.len())?.copy_from_slice(key);
        Some(Box::new(Bucket {
            counters: [Counter::default(); 2],
            others: None,
            hash: place.short,
            key_len: u16::try_from(key.len()).ok()?,
            key: padded,
        }))
    }
    match key.len() {
        0..=42 => sized::<42>(place, key),
        43..=58 => sized::<58>(place, key),
        59..=74 => sized::<74>(place, key),
        75..=90 => sized::<90>(place, key),
        91..=106 => sized::<106>(place, key),
        107..=122 => sized::<122>(place, key),
        123..=138 => sized::<138>(place, key),
        139..=154 => sized::<154>(place, key),
        155..=186 => sized::<186>(place, key),
        187..=218 => sized::<218>(place, key),
        219..=282 => sized::<282>(place, key),
        283..=346 => sized::<346>(place, key),
        347..=426 => sized::<426>(place, key),
        427..=MAX_KEY_LEN => sized::<MAX_KEY_LEN>(place, key),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::hash::{DefaultHasher, Hash, Hasher};
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU64;
    use std::thread;

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
        let place = Place::of(hash(b"k"));
        let shard = store.shard(place);
        let bucket = shard
            .buckets
            .find(place.hash, |bucket| bucket.is_of(place, b"k"))
            .unwrap();
        assert!(bucket.others.is_none());
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

    #[test]
    fn a_bucket_fills_what_an_allocator_hands_out() {
        assert_eq!(size_of::<Counter>(), 24);
        assert_eq!(size_of::<Bucket<[u8; 42]>>(), 6 * 16 + 8);
        assert_eq!(size_of::<Bucket<[u8; 58]>>(), 7 * 16 + 8);
        assert_eq!(size_of::<Bucket<[u8; 138]>>(), 12 * 16 + 8);
        assert!(size_of::<Padded<Mutex<Shard>>>() == 128);
    }
}

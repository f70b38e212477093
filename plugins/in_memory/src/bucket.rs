//! What is counted for one key, and when that is active.

use quota_plugin_sdk::{Window, WindowKind};

use crate::store::Verdict;

/// A reading older than a window by less than this, or the window's length if that is more, is a late decision or a
/// small correction of the clock; a larger step back takes the clock's word (contract §6). Counters are kept this long
/// past their end, unless a new key needs their place, so that a late decision finds what was counted.
pub(crate) const STEP_BACK_MS: u64 = 60_000;

/// The readings, `from` to before `end`, at which something is active.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) from: u64,
    pub(crate) end: u64,
}

impl Span {
    /// At no reading.
    pub(crate) const NEVER: Self = Self {
        from: u64::MAX,
        end: 0,
    };
}

/// What is counted for one key, with room for keys of up to `K`'s length; as `Bucket<[u8]>`, of any.
///
/// It begins a cache line, so that the usual check reads two lines which lie side by side.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Bucket<K: ?Sized> {
    /// Burst and sustained, of the lengths charged last.
    counters: [Counter; 2],
    /// Counters of other lengths whose windows may still run: decisions in flight on a former program charge them.
    others: Option<Box<Others>>,
    /// The key's hash in its table.
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
    pub(crate) fn runs_at(&self, now: u64) -> bool {
        self.counters().any(|counter| counter.runs_at(now))
    }

    pub(crate) fn is_over(&self, now: u64) -> bool {
        self.counters().all(|counter| counter.is_over(now))
    }

    /// Readings around `now` at which it is active without a gap.
    pub(crate) fn span(&self, now: u64) -> Span {
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
    pub(crate) fn decide(&mut self, windows: &[Window], now: u64) -> (Verdict, bool) {
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
pub(crate) fn exhausted(windows: &[Window], used: [u64; 2]) -> u32 {
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

impl<const N: usize> Bucket<[u8; N]> {
    /// An empty bucket; `None` if the key has more than `N` bytes.
    pub(crate) fn new(hash: u32, key: &[u8]) -> Option<Self> {
        let mut padded = [0; N];
        padded.get_mut(..key.len())?.copy_from_slice(key);
        Some(Self {
            counters: [Counter::default(); 2],
            others: None,
            hash,
            key_len: u16::try_from(key.len()).ok()?,
            key: padded,
        })
    }

    pub(crate) const fn hash(&self) -> u32 {
        self.hash
    }
}

impl Bucket<[u8]> {
    #[inline]
    pub(crate) fn is_of(&self, key: &[u8]) -> bool {
        self.key.get(..usize::from(self.key_len)) == Some(key)
    }

    /// Whether it holds counters of other lengths.
    #[cfg(test)]
    pub(crate) const fn holds_others(&self) -> bool {
        self.others.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_fill_cache_lines() {
        assert_eq!(size_of::<Counter>(), 24);
        assert_eq!(size_of::<Bucket<[u8; 66]>>(), 2 * 64);
        assert_eq!(size_of::<Bucket<[u8; 130]>>(), 3 * 64);
        assert_eq!(size_of::<Bucket<[u8; 194]>>(), 4 * 64);
        assert_eq!(size_of::<Bucket<[u8; 514]>>(), 9 * 64);
    }
}

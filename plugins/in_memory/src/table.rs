//! The buckets of one shard, found by key.
//!
//! Open addressing over small slots: a slot holds the hash and says where the bucket is, so looking a key up reads one
//! cache line of slots and then the bucket, and growing reads no bucket at all. Buckets are kept in chunks by the size
//! of their key: a chunk never moves, and adding one costs no copy, so a table takes little more than its buckets.

use crate::bucket::Bucket;

/// Buckets of a chunk.
const CHUNK: usize = 16;

/// Slots of the smallest table.
const LEAST_SLOTS: usize = 8;

/// Buckets by key. Nothing is allocated while it is empty.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// INVARIANT: none, or a power of two of them, at least a quarter empty; every bucket's slot is reached from its
    /// hash without meeting an empty one.
    slots: Box<[Slot]>,
    len: usize,
    small: Chunks<66>,
    medium: Chunks<130>,
    large: Chunks<194>,
    huge: Chunks<514>,
}

/// The hash of a key and where its bucket is.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    hash: u32,
    place: Place,
}

/// Where a bucket is: its number in the chunks of its size, plus 1, times 4, plus the size; 0 is nowhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place(u32);

impl Place {
    const NOWHERE: Self = Self(0);

    fn new(number: usize, size: u32) -> Option<Self> {
        let number = u32::try_from(number).ok()?.checked_add(1)?;
        Some(Self(number.checked_mul(4)? | size))
    }

    /// Only of a place that is somewhere.
    const fn number(self) -> usize {
        (self.0 >> 2) as usize - 1
    }
}

impl Table {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Whether it must [`grow`](Self::grow) before it takes another bucket.
    pub(crate) const fn is_full(&self) -> bool {
        self.len >= self.slots.len() / 4 * 3
    }

    /// The bucket of a key.
    #[inline]
    pub(crate) fn find_mut(&mut self, hash: u32, key: &[u8]) -> Option<&mut Bucket<[u8]>> {
        let place = self.find(hash, key)?;
        self.bucket_mut(place)
    }

    #[inline]
    fn find(&self, hash: u32, key: &[u8]) -> Option<Place> {
        let mask = self.slots.len().checked_sub(1)?;
        let mut at = hash as usize & mask;
        loop {
            // In bounds: masked. Ends: some slot is empty.
            let slot = self.slots[at];
            if slot.place == Place::NOWHERE {
                return None;
            }
            if slot.hash == hash && self.bucket(slot.place)?.is_of(key) {
                return Some(slot.place);
            }
            at = (at + 1) & mask;
        }
    }

    /// Adds an empty bucket for a key that has none; `None`, and nothing is added, if the key is too long.
    pub(crate) fn insert(&mut self, hash: u32, key: &[u8]) -> Option<&mut Bucket<[u8]>> {
        if self.is_full() {
            self.grow();
        }
        let place = match key.len() {
            0..=66 => Place::new(self.small.push(Bucket::new(hash, key)?), 0),
            67..=130 => Place::new(self.medium.push(Bucket::new(hash, key)?), 1),
            131..=194 => Place::new(self.large.push(Bucket::new(hash, key)?), 2),
            _ => Place::new(self.huge.push(Bucket::new(hash, key)?), 3),
        }?;
        self.len += 1;
        link(&mut self.slots, Slot { hash, place });
        self.bucket_mut(place)
    }

    /// Doubles the slots.
    pub(crate) fn grow(&mut self) {
        let number = (self.slots.len() * 2).max(LEAST_SLOTS);
        let old = std::mem::replace(&mut self.slots, empty_slots(number));
        for slot in old {
            if slot.place != Place::NOWHERE {
                link(&mut self.slots, slot);
            }
        }
    }

    /// Looks at every bucket.
    pub(crate) fn for_each(&self, mut look: impl FnMut(&Bucket<[u8]>)) {
        self.small.iter().for_each(|bucket| look(bucket));
        self.medium.iter().for_each(|bucket| look(bucket));
        self.large.iter().for_each(|bucket| look(bucket));
        self.huge.iter().for_each(|bucket| look(bucket));
    }

    /// Drops every bucket but those to `keep`, and returns the memory of the rest.
    pub(crate) fn retain(&mut self, keep: impl Fn(&Bucket<[u8]>) -> bool) {
        let old = std::mem::take(self);
        self.small = old.small.retain(|bucket| keep(bucket));
        self.medium = old.medium.retain(|bucket| keep(bucket));
        self.large = old.large.retain(|bucket| keep(bucket));
        self.huge = old.huge.retain(|bucket| keep(bucket));
        self.len = self.small.len() + self.medium.len() + self.large.len() + self.huge.len();
        if self.len == 0 {
            return;
        }
        self.slots = empty_slots(
            (self.len + self.len / 2)
                .next_power_of_two()
                .max(LEAST_SLOTS),
        );
        let slots = &mut self.slots;
        self.small.link_all(slots, 0);
        self.medium.link_all(slots, 1);
        self.large.link_all(slots, 2);
        self.huge.link_all(slots, 3);
    }

    #[inline]
    fn bucket(&self, place: Place) -> Option<&Bucket<[u8]>> {
        let number = place.number();
        Some(match place.0 & 3 {
            0 => self.small.get(number)?,
            1 => self.medium.get(number)?,
            2 => self.large.get(number)?,
            _ => self.huge.get(number)?,
        })
    }

    #[inline]
    fn bucket_mut(&mut self, place: Place) -> Option<&mut Bucket<[u8]>> {
        let number = place.number();
        Some(match place.0 & 3 {
            0 => self.small.get_mut(number)?,
            1 => self.medium.get_mut(number)?,
            2 => self.large.get_mut(number)?,
            _ => self.huge.get_mut(number)?,
        })
    }
}

fn empty_slots(number: usize) -> Box<[Slot]> {
    vec![Slot::default(); number].into_boxed_slice()
}

/// Puts a slot into the first empty one from its hash on. There must be one.
fn link(slots: &mut [Slot], slot: Slot) {
    let home = slot.hash as usize & slots.len().saturating_sub(1);
    let (before, from_home) = slots.split_at_mut(home);
    let empty = from_home
        .iter_mut()
        .chain(before)
        .find(|other| other.place == Place::NOWHERE);
    if let Some(empty) = empty {
        *empty = slot;
    }
}

/// Buckets with room for keys of `N` bytes, numbered from 0.
#[derive(Debug)]
struct Chunks<const N: usize>(
    /// INVARIANT: all but the last hold [`CHUNK`] buckets.
    Vec<Vec<Bucket<[u8; N]>>>,
);

impl<const N: usize> Default for Chunks<N> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<const N: usize> Chunks<N> {
    fn len(&self) -> usize {
        let last = self.0.last().map_or(0, Vec::len);
        self.0.len().saturating_sub(1) * CHUNK + last
    }

    /// Adds a bucket; its number.
    fn push(&mut self, bucket: Bucket<[u8; N]>) -> usize {
        let number = self.len();
        match self.0.last_mut().filter(|last| last.len() < CHUNK) {
            Some(last) => last.push(bucket),
            None => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(bucket);
                self.0.push(chunk);
            }
        }
        number
    }

    #[inline]
    fn get(&self, number: usize) -> Option<&Bucket<[u8; N]>> {
        self.0.get(number / CHUNK)?.get(number % CHUNK)
    }

    #[inline]
    fn get_mut(&mut self, number: usize) -> Option<&mut Bucket<[u8; N]>> {
        self.0.get_mut(number / CHUNK)?.get_mut(number % CHUNK)
    }

    fn iter(&self) -> impl Iterator<Item = &Bucket<[u8; N]>> {
        self.0.iter().flatten()
    }

    /// The buckets to `keep`, numbered anew.
    fn retain(self, keep: impl Fn(&Bucket<[u8; N]>) -> bool) -> Self {
        let mut kept = Self::default();
        for bucket in self.0.into_iter().flatten() {
            if keep(&bucket) {
                kept.push(bucket);
            }
        }
        kept
    }

    fn link_all(&self, slots: &mut [Slot], size: u32) {
        for (number, bucket) in self.iter().enumerate() {
            if let Some(place) = Place::new(number, size) {
                let hash = bucket.hash();
                link(slots, Slot { hash, place });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> Vec<u8> {
        // All sizes of buckets, on both sides of their bounds.
        let lens = [4, 66, 67, 130, 131, 194, 195, 512];
        let mut key = number.to_le_bytes().to_vec();
        key.resize(lens[number as usize % lens.len()], 7);
        key
    }

    /// Few hashes for many keys.
    const fn hash(number: u32) -> u32 {
        (number / 3).wrapping_mul(0x0101_0101)
    }

    #[test]
    fn what_was_added_is_found_until_it_is_given_up() {
        let mut table = Table::default();
        for number in 0..1_000 {
            assert!(table.find_mut(hash(number), &key(number)).is_none());
            assert!(table.insert(hash(number), &key(number)).is_some());
        }
        assert_eq!(table.len(), 1_000);
        let is_kept = |number: u32| !number.is_multiple_of(5);
        let given_up: Vec<_> = (0..1_000).filter(|n| !is_kept(*n)).map(key).collect();
        table.retain(|bucket| !given_up.iter().any(|key| bucket.is_of(key)));
        assert_eq!(table.len(), 800);
        let mut seen = 0;
        table.for_each(|_| seen += 1);
        assert_eq!(seen, 800);
        for number in 0..1_000 {
            let found = table.find_mut(hash(number), &key(number));
            assert_eq!(
                found.map(|bucket| bucket.is_of(&key(number))),
                is_kept(number).then_some(true),
                "{number}"
            );
        }
        table.retain(|_| false);
        assert_eq!(table.len(), 0);
        assert!(table.slots.is_empty(), "no memory for nothing");
    }

    #[test]
    fn some_slots_stay_empty() {
        let mut table = Table::default();
        for number in 0..500 {
            table.insert(hash(number), &key(number));
            assert!(table.len() * 4 <= table.slots.len() * 3);
            if number % 50 == 0 {
                table.retain(|_| true);
                assert!(table.len() * 4 <= table.slots.len() * 3);
            }
        }
    }

    #[test]
    fn a_key_too_long_for_any_bucket_is_not_added() {
        let mut table = Table::default();
        assert!(table.insert(1, &[0; 515]).is_none());
        assert_eq!(table.len(), 0);
        assert!(table.find_mut(1, &[0; 515]).is_none());
    }
}

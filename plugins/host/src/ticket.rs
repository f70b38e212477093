//! Pending answers: a slot per batch, named by a ticket that is good once.
//!
//! A ticket is a slot's index and the slot's generation. Each use of a slot raises its generation, so a completion that
//! is late, doubled or made up finds another generation, or a phase that is no longer open, and changes nothing. Slots
//! are never freed while the instance lives. The lock of a slot is held for a copy and never while anything else is
//! called.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};

use parking_lot::Mutex;
use quota_plugin_abi::{QUOTA_ERROR, quota_result};

const INDEX_BITS: u32 = 20;
/// The most batches one instance can have in flight, whatever `max_inflight` says.
const MOST_SLOTS: u64 = 1 << INDEX_BITS;
const CHUNK: usize = 1024;

/// What became of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Taken,
    Late,
    Nonsense,
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Phase {
    Free,
    Open,
    Answered,
}

#[derive(Debug)]
struct Slot {
    generation: u64,
    phase: Phase,
    count: u32,
    results: Vec<quota_result>,
    waker: Option<Waker>,
}

/// A slot by itself on its cache lines, so that neighbours do not slow each other.
#[derive(Debug)]
#[repr(align(64))]
struct Aligned(Mutex<Slot>);

#[derive(Debug, Default)]
struct Free {
    indices: Vec<u32>,
    fresh: u32,
}

/// The slots of one instance.
#[derive(Debug)]
pub(crate) struct Tickets {
    chunks: Box<[OnceLock<Box<[Aligned]>>]>,
    free: Mutex<Free>,
    open: AtomicU64,
    limit: u64,
}

impl Tickets {
    /// At most `limit` batches at once.
    pub(crate) fn new(limit: u64) -> Self {
        let limit = limit.min(MOST_SLOTS);
        let chunks = usize::try_from(limit).unwrap_or(0).div_ceil(CHUNK);
        Self {
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            free: Mutex::default(),
            open: AtomicU64::new(0),
            limit,
        }
    }

    /// Batches in flight.
    pub(crate) fn inflight(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// A ticket for a batch of `count` items; `None` if as many are in flight as may be.
    pub(crate) fn open(&self, count: u32) -> Option<u64> {
        let took = self
            .open
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| {
                (open < self.limit).then_some(open + 1)
            });
        took.ok()?;
        let index = {
            let mut free = self.free.lock();
            free.indices.pop().unwrap_or_else(|| {
                let fresh = free.fresh;
                free.fresh += 1;
                fresh
            })
        };
        let Some(slot) = self.slot_or_make(index) else {
            self.open.fetch_sub(1, Ordering::Relaxed);
            return None;
        };
        let mut slot = slot.lock();
        slot.generation += 1;
        slot.phase = Phase::Open;
        slot.count = count;
        Some(slot.generation << INDEX_BITS | u64::from(index))
    }

    /// Answers a ticket with `count` results, which `copy` appends. A wrong count answers every item with an error.
    pub(crate) fn answer(
        &self,
        ticket: u64,
        count: u32,
        copy: impl FnOnce(&mut Vec<quota_result>),
    ) -> Answer {
        let Some((slot, generation)) = self.find(ticket) else {
            return Answer::Nonsense;
        };
        let mut slot = slot.lock();
        if generation == 0 || generation > slot.generation {
            return Answer::Nonsense;
        }
        if generation < slot.generation || slot.phase != Phase::Open {
            return Answer::Late;
        }
        let right = count == slot.count;
        slot.results.clear();
        if right {
            copy(&mut slot.results);
        }
        let expected = usize::try_from(slot.count).unwrap_or(usize::MAX);
        let right = right && slot.results.len() == expected;
        if !right {
            let error = quota_result {
                code: QUOTA_ERROR,
                ..quota_result::default()
            };
            slot.results.clear();
            slot.results.resize(expected, error);
        }
        // The answer is in place before the waker is taken: a poll that comes later finds it and needs no waking.
        slot.phase = Phase::Answered;
        let waker = slot.waker.take();
        drop(slot);
        if let Some(waker) = waker {
            waker.wake();
        }
        if right {
            Answer::Taken
        } else {
            Answer::Nonsense
        }
    }

    /// The answer, once; until it is there, `waker` is woken when it comes. A ticket that is over is never answered.
    pub(crate) fn poll(&self, ticket: u64, waker: &Waker) -> Poll<Vec<quota_result>> {
        let Some((slot, generation)) = self.find(ticket) else {
            return Poll::Pending;
        };
        let mut slot = slot.lock();
        if slot.generation != generation {
            return Poll::Pending;
        }
        match slot.phase {
            Phase::Answered => {
                let results = std::mem::take(&mut slot.results);
                slot.phase = Phase::Free;
                drop(slot);
                self.put_back(ticket);
                Poll::Ready(results)
            }
            Phase::Open => {
                slot.waker = Some(waker.clone());
                Poll::Pending
            }
            Phase::Free => Poll::Pending,
        }
    }

    /// Ends a ticket without taking an answer; whether it was still waiting for one.
    pub(crate) fn close(&self, ticket: u64) -> bool {
        let Some((slot, generation)) = self.find(ticket) else {
            return false;
        };
        let mut slot = slot.lock();
        if slot.generation != generation || slot.phase == Phase::Free {
            return false;
        }
        let waiting = slot.phase == Phase::Open;
        slot.phase = Phase::Free;
        slot.results.clear();
        slot.waker = None;
        drop(slot);
        self.put_back(ticket);
        waiting
    }

    /// Whether a ticket still waits for its answer.
    pub(crate) fn is_open(&self, ticket: u64) -> bool {
        self.find(ticket).is_some_and(|(slot, generation)| {
            let slot = slot.lock();
            slot.generation == generation && slot.phase == Phase::Open
        })
    }

    /// Answers everything that is still open with `code`.
    pub(crate) fn answer_all(&self, code: i32) {
        let result = quota_result {
            code,
            ..quota_result::default()
        };
        for slot in self.chunks.iter().filter_map(OnceLock::get).flatten() {
            let mut slot = slot.0.lock();
            if slot.phase == Phase::Open {
                let count = usize::try_from(slot.count).unwrap_or(0);
                slot.results.clear();
                slot.results.resize(count, result);
                slot.phase = Phase::Answered;
                let waker = slot.waker.take();
                drop(slot);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        }
    }

    fn put_back(&self, ticket: u64) {
        if let Ok(index) = u32::try_from(ticket % MOST_SLOTS) {
            self.free.lock().indices.push(index);
        }
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    fn find(&self, ticket: u64) -> Option<(&Mutex<Slot>, u64)> {
        let index = usize::try_from(ticket % MOST_SLOTS).ok()?;
        let slot = self.chunks.get(index / CHUNK)?.get()?.get(index % CHUNK)?;
        Some((&slot.0, ticket >> INDEX_BITS))
    }

    fn slot_or_make(&self, index: u32) -> Option<&Mutex<Slot>> {
        let index = usize::try_from(index).ok()?;
        let chunk = self.chunks.get(index / CHUNK)?.get_or_init(|| {
            let slot = || Slot {
                generation: 0,
                phase: Phase::Free,
                count: 0,
                results: Vec::new(),
                waker: None,
            };
            (0..CHUNK).map(|_| Aligned(Mutex::new(slot()))).collect()
        });
        Some(&chunk.get(index % CHUNK)?.0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use quota_plugin_abi::QUOTA_ALLOWED;

    use super::*;

    fn allowed(results: &mut Vec<quota_result>) {
        results.push(quota_result {
            code: QUOTA_ALLOWED,
            ..quota_result::default()
        });
    }

    #[test]
    fn a_ticket_is_good_once() {
        let tickets = Tickets::new(4);
        let ticket = tickets.open(1).unwrap();
        assert_eq!(tickets.answer(ticket, 1, allowed), Answer::Taken);
        assert_eq!(tickets.answer(ticket, 1, allowed), Answer::Late);
        assert!(tickets.poll(ticket, Waker::noop()).is_ready());
        assert_eq!(tickets.answer(ticket, 1, allowed), Answer::Late);
        assert_eq!(tickets.inflight(), 0);
    }

    #[test]
    fn a_late_answer_does_not_reach_the_next_user_of_the_slot() {
        let tickets = Tickets::new(1);
        let first = tickets.open(1).unwrap();
        assert!(tickets.close(first));
        let second = tickets.open(1).unwrap();
        assert_eq!(tickets.answer(first, 1, allowed), Answer::Late);
        assert!(tickets.is_open(second));
        assert!(tickets.poll(second, Waker::noop()).is_pending());
    }

    #[test]
    fn made_up_tickets_are_nonsense() {
        let tickets = Tickets::new(4);
        let ticket = tickets.open(1).unwrap();
        for made_up in [0, 3, u64::MAX, ticket + (1 << INDEX_BITS), ticket + 1] {
            assert_eq!(
                tickets.answer(made_up, 1, allowed),
                Answer::Nonsense,
                "{made_up:#x}"
            );
        }
        assert!(tickets.is_open(ticket));
    }

    #[test]
    fn a_wrong_count_answers_every_item_with_an_error() {
        let tickets = Tickets::new(4);
        let ticket = tickets.open(3).unwrap();
        assert_eq!(tickets.answer(ticket, 2, allowed), Answer::Nonsense);
        let Poll::Ready(results) = tickets.poll(ticket, Waker::noop()) else {
            panic!("not answered")
        };
        assert!(results.len() == 3 && results.iter().all(|r| r.code == QUOTA_ERROR));
    }

    #[test]
    fn no_more_than_the_limit_is_in_flight() {
        let tickets = Tickets::new(2);
        let first = tickets.open(1).unwrap();
        tickets.open(1).unwrap();
        assert_eq!(tickets.open(1), None);
        tickets.close(first);
        assert!(tickets.open(1).is_some());
    }

    #[test]
    fn racing_completions_and_deadlines_leave_every_slot_free() {
        const LIMIT: u64 = 32;
        let tickets = Arc::new(Tickets::new(LIMIT));
        let (send, receive) = std::sync::mpsc::channel::<u64>();
        let completer = {
            let tickets = Arc::clone(&tickets);
            std::thread::spawn(move || {
                let mut taken = 0_u64;
                for ticket in receive {
                    for _ in 0..2 {
                        taken += u64::from(tickets.answer(ticket, 1, allowed) == Answer::Taken);
                    }
                }
                taken
            })
        };
        let callers: Vec<_> = (0..4)
            .map(|caller| {
                let tickets = Arc::clone(&tickets);
                let send = send.clone();
                std::thread::spawn(move || {
                    let mut ended = [0_u64; 2];
                    for round in 0..2_000 {
                        let Some(ticket) = tickets.open(1) else {
                            continue;
                        };
                        send.send(ticket).unwrap();
                        // Half of them give up at once, as a deadline does; the others wait.
                        if (round + caller) % 2 == 0 {
                            ended[usize::from(!tickets.close(ticket))] += 1;
                        } else {
                            while tickets.poll(ticket, Waker::noop()).is_pending() {
                                std::thread::yield_now();
                            }
                            ended[1] += 1;
                        }
                    }
                    ended
                })
            })
            .collect();
        drop(send);
        let answered: u64 = callers
            .into_iter()
            .map(|caller| caller.join().unwrap()[1])
            .sum();
        assert_eq!(completer.join().unwrap(), answered);
        assert_eq!(tickets.inflight(), 0);
    }
}

//! Threads of the host for plugins that block in `check`: started with the instance, never on demand.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// More threads than this are not started, whatever `max_inflight` says: the rest waits its turn.
pub(crate) const MOST_THREADS: u64 = 64;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    running: usize,
    closed: bool,
}

#[derive(Default)]
struct State {
    queue: Mutex<Queue>,
    work: Condvar,
    quiet: Condvar,
}

/// The threads of one instance. The queue is bounded by the tickets: there is no job without one.
pub(crate) struct Pool {
    state: Arc<State>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("threads", &self.threads.len())
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// Starts `max_inflight` threads, at most [`MOST_THREADS`].
    pub(crate) fn start(kind: &str, max_inflight: u64) -> io::Result<Self> {
        let mut pool = Self {
            state: Arc::default(),
            threads: Vec::new(),
        };
        for _ in 0..max_inflight.clamp(1, MOST_THREADS) {
            let state = Arc::clone(&pool.state);
            let thread = std::thread::Builder::new().name(format!("quota-{kind}"));
            match thread.spawn(move || state.work()) {
                Ok(thread) => pool.threads.push(thread),
                Err(error) => return Err(error),
            }
        }
        Ok(pool)
    }

    /// Hands a job to the next idle thread.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.state.queue.lock().jobs.push_back(Box::new(job));
        self.state.work.notify_one();
    }

    /// Closes the queue and waits for the jobs that have begun; whether they ended in time. If not, a thread is still
    /// inside the plugin.
    pub(crate) fn end(mut self, deadline: Instant) -> bool {
        self.close();
        {
            let mut queue = self.state.queue.lock();
            while queue.running > 0 {
                if self
                    .state
                    .quiet
                    .wait_until(&mut queue, deadline)
                    .timed_out()
                    && queue.running > 0
                {
                    return false;
                }
            }
        }
        self.join();
        true
    }

    /// Begins no job any more; those not begun are dropped.
    pub(crate) fn close(&self) {
        let dropped = {
            let mut queue = self.state.queue.lock();
            queue.closed = true;
            std::mem::take(&mut queue.jobs)
        };
        drop(dropped);
        self.state.work.notify_all();
    }

    fn join(&mut self) {
        for thread in self.threads.drain(..) {
            // A job calls C code and answers a ticket; it cannot panic, and if it did there is nothing left to do.
            let _ended = thread.join();
        }
    }
}

/// Threads nobody waited for end by themselves.
impl Drop for Pool {
    fn drop(&mut self) {
        self.close();
    }
}

impl State {
    fn work(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                queue.running += 1;
                drop(queue);
                job();
                queue = self.queue.lock();
                queue.running -= 1;
                if queue.running == 0 {
                    self.quiet.notify_all();
                }
            } else if queue.closed {
                return;
            } else {
                self.work.wait(&mut queue);
            }
        }
    }
}

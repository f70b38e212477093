//! Whether the daemon takes requests, and the signals that say so: reload on SIGHUP, drain on SIGTERM or SIGINT, end at once
//! on a second one.

use std::io;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quota_runtime::reload::PolicyFile;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Whether the daemon takes requests.
#[derive(Debug, Default)]
pub(crate) struct Phase {
    bound: AtomicBool,
    draining: AtomicBool,
}

impl Phase {
    /// The listeners are bound.
    pub(crate) fn bind(&self) {
        self.bound.store(true, Ordering::Release);
    }

    /// Whether they are.
    pub(crate) fn is_bound(&self) -> bool {
        self.bound.load(Ordering::Acquire)
    }

    /// The daemon is about to end.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Whether it is.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }
}

/// The signals a daemon listens to. Made before it says that it is ready, so that none is lost.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    /// Takes over SIGTERM, SIGINT and SIGHUP.
    ///
    /// # Errors
    ///
    /// The system does not let it.
    pub(crate) fn take_over() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for SIGTERM or SIGINT; reloads `file` on every SIGHUP meanwhile.
    pub(crate) async fn until_end(&mut self, file: &Arc<PolicyFile>) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hang_up.recv() => {
                    let file = Arc::clone(file);
                    // It compiles, and may wait for a backend. What came of it, it logs.
                    drop(tokio::task::spawn_blocking(move || file.reload_now()));
                }
            }
        }
    }

    /// What comes of `ending`; the next SIGTERM or SIGINT ends the process at once instead.
    pub(crate) async fn or_at_once<T>(mut self, ending: impl Future<Output = T>) -> T {
        tokio::select! {
            ended = ending => ended,
            _ = self.terminate.recv() => end_at_once(SignalKind::terminate()),
            _ = self.interrupt.recv() => end_at_once(SignalKind::interrupt()),
        }
    }
}

fn end_at_once(signal: SignalKind) -> ! {
    tracing::warn!("second signal: ending at once");
    process::exit(128 + signal.as_raw_value())
}

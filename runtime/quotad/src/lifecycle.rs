//! From the first signal to the last request: reload on SIGHUP, drain on SIGTERM or SIGINT, end at once on a second one.

use std::io;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quota_runtime::reload::PolicyFile;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long requests in flight may take to end once nothing new is accepted.
const IN_FLIGHT_DEADLINE: Duration = Duration::from_secs(10);

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

    fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Whether the daemon is about to end.
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
                    let reload = tokio::task::spawn_blocking(move || file.reload_now());
                    if reload.await.is_err() {
                        tracing::error!("the reload asked for by SIGHUP panicked");
                    }
                }
            }
        }
    }

    /// Ends the process on the next SIGTERM or SIGINT.
    async fn end_at_once(&mut self) {
        let number = tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
        };
        tracing::warn!("second signal: ending at once");
        process::exit(128 + number);
    }
}

/// Ends the service: says so to whoever asks, keeps answering for `delay` (until balancers have noticed), stops accepting,
/// and lets what is in flight end. The admin listener goes on until then.
pub(crate) async fn drain(
    signals: &mut Signals,
    phase: &Phase,
    delay: Duration,
    stop_decisions: &watch::Sender<bool>,
    decisions: &mut JoinSet<()>,
) {
    phase.drain();
    tracing::info!(delay_secs = delay.as_secs(), "draining");
    let ended = async {
        tokio::time::sleep(delay).await;
        stop_decisions.send_replace(true);
        let all = async { while decisions.join_next().await.is_some() {} };
        tokio::time::timeout(IN_FLIGHT_DEADLINE, all).await.is_ok()
    };
    tokio::select! {
        in_time = ended => if !in_time {
            tracing::warn!("requests were still in flight at the deadline");
        },
        () = signals.end_at_once() => {}
    }
}

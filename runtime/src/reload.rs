//! Watch → settle → compile → swap: keeps a running [`Quota`] in step with its policy file. Any failure keeps the old
//! program.
//!
//! Events of the file system are only wake-ups; the truth is the bytes of the file. So renames over it, ConfigMap swaps,
//! retargeted links and deletions followed by creations all come down to: wake up, wait for quiet, read, compare.
//! A slow tick does the same without an event and renews the watches, for replaced folders, network file systems and lost
//! events; where nothing can be watched the tick is all there is.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, EventKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use crate::clock::UnixMillis;
use crate::{OpenError, Quota, Replaced};

/// A file is read once nothing has happened around it for this long: editors and `kubectl` write in several steps.
const QUIET: Duration = Duration::from_millis(200);
/// A folder that is never quiet delays a reading no longer than this.
const MOST_UNREST: Duration = Duration::from_secs(2);
/// How often the file is read without an event.
const TICK: Duration = Duration::from_secs(2);
/// The same where nothing could be watched.
const POLL: Duration = Duration::from_millis(500);
/// How long after a backend could not serve an unchanged file is tried again, at least.
const RETRY: Duration = Duration::from_secs(1);

/// One attempt to bring a changed file into force, or one that was asked for.
#[derive(Clone, Debug)]
pub struct Reload {
    /// When.
    pub at: UnixMillis,
    /// SHA-256 of the bytes that were read; `None` if the file could not be read.
    pub sha256: Option<[u8; 32]>,
    /// What is in force now, or why the former program stayed.
    pub result: Result<Replaced, Arc<OpenError>>,
}

/// What a policy file last held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Bytes([u8; 32]),
    Unreadable(io::ErrorKind),
}

/// What is known of a policy file.
#[derive(Debug)]
struct Known {
    seen: Seen,
    /// The file is in order and not in force: its backend could not serve.
    waiting: Option<Waiting>,
}

/// A backend that could not serve: since when, and what was said of it.
#[derive(Debug)]
struct Waiting {
    since: Instant,
    refusal: String,
}

type OnReload = Box<dyn Fn(&Reload) + Send + Sync>;

/// A policy file and the running [`Quota`] that follows it.
pub struct PolicyFile {
    quota: Quota,
    path: PathBuf,
    on_reload: OnReload,
    /// Locked while a reload runs, so that two never overlap.
    known: Mutex<Known>,
}

impl std::fmt::Debug for PolicyFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolicyFile")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl PolicyFile {
    /// Lets `quota` follow the file at `path`, whose content `quota` was opened with. `on_reload` is told of each attempt,
    /// on the thread that makes it, but not of one that only repeats what the former said: a file in order whose backend
    /// cannot serve is tried again and again.
    pub fn new(
        quota: Quota,
        path: impl Into<PathBuf>,
        on_reload: impl Fn(&Reload) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let known = Known {
            seen: Seen::Bytes(quota.text_sha256()),
            waiting: None,
        };
        Arc::new(Self {
            quota,
            path: path.into(),
            on_reload: Box::new(on_reload),
            known: Mutex::new(known),
        })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file and brings it into force even if its bytes are the former ones: a plugin may have changed, or a
    /// backend that could not be created may be there now. Blocks while it compiles; an asynchronous caller moves it to a
    /// blocking thread.
    pub fn reload_now(&self) -> Reload {
        let mut known = self.known.lock();
        let read = self.read();
        let reload = self.apply(&mut known, read);
        self.tell(&reload);
        reload
    }

    /// Watches the file on a thread of its own until the [`Watch`] is dropped.
    ///
    /// # Errors
    ///
    /// The thread could not be started. That nothing can be watched is no error: then the file is polled.
    pub fn watch(self: &Arc<Self>) -> io::Result<Watch> {
        let (wake, woken) = sync_channel(1);
        let stop = Arc::new(AtomicBool::new(false));
        let folders = Folders::new(&self.path, wake.clone());
        let file = Arc::clone(self);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("quota-reload".to_owned())
            .spawn(move || file.follow(folders, &woken, &stopped))?;
        Ok(Watch {
            stop,
            wake,
            thread: Some(thread),
        })
    }

    fn follow(&self, mut folders: Folders, woken: &Receiver<()>, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            // In this order, so that a change between the two is either seen or wakes us.
            folders.watch_again();
            self.reload_if_changed();
            match woken.recv_timeout(folders.tick()) {
                Ok(()) => wait_for_quiet(woken, stop),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn reload_if_changed(&self) {
        let mut known = self.known.lock();
        let read = self.read();
        let found = match &read {
            Ok((_, sha256)) => Seen::Bytes(*sha256),
            Err(error) => Seen::Unreadable(error.kind()),
        };
        let former = known.waiting.take();
        if known.seen == found {
            let Some(former) = former else { return };
            if former.since.elapsed() < RETRY {
                known.waiting = Some(former);
                return;
            }
            let reload = self.apply(&mut known, read);
            let repeats = |again: &Waiting| again.refusal == former.refusal;
            if !known.waiting.as_ref().is_some_and(repeats) {
                self.tell(&reload);
            }
        } else {
            let reload = self.apply(&mut known, read);
            self.tell(&reload);
        }
    }

    fn read(&self) -> io::Result<(Vec<u8>, [u8; 32])> {
        let bytes = read_policy_file(&self.path, self.quota.limits().max_bytes)?;
        let sha256 = Sha256::digest(&bytes).into();
        Ok((bytes, sha256))
    }

    fn apply(&self, known: &mut Known, read: io::Result<(Vec<u8>, [u8; 32])>) -> Reload {
        let name = self.path.display().to_string();
        let (seen, sha256, result) = match read {
            Ok((bytes, sha256)) => {
                let result = self.quota.replace_text(&name, &bytes);
                (Seen::Bytes(sha256), Some(sha256), result)
            }
            Err(source) => (
                Seen::Unreadable(source.kind()),
                None,
                Err(OpenError::Unreadable { name, source }),
            ),
        };
        let waiting = match &result {
            Err(error @ OpenError::Backend(_)) => Some(Waiting {
                since: Instant::now(),
                refusal: error.full_text(),
            }),
            Ok(_) | Err(_) => None,
        };
        *known = Known { seen, waiting };
        Reload {
            at: self.quota.now(),
            sha256,
            result: result.map_err(Arc::new),
        }
    }

    fn tell(&self, reload: &Reload) {
        // First, so that whoever reads the log finds it true.
        (self.on_reload)(reload);
        match &reload.result {
            Ok(replaced) => tracing::info!(
                file = %self.path.display(),
                generation = replaced.generation,
                backend = replaced.backend.as_str(),
                "the policy file is in force"
            ),
            Err(error) => tracing::error!(
                file = %self.path.display(),
                error = %error.full_text(),
                "the policy file is refused, the former program stays"
            ),
        }
    }
}

/// Ends the watching of a policy file when dropped.
#[derive(Debug)]
pub struct Watch {
    stop: Arc<AtomicBool>,
    wake: SyncSender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _a_full_channel_wakes_as_well = self.wake.try_send(());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that watched the policy file had panicked");
        }
    }
}

fn wait_for_quiet(woken: &Receiver<()>, stop: &AtomicBool) {
    let since = Instant::now();
    while !stop.load(Ordering::Acquire)
        && since.elapsed() < MOST_UNREST
        && woken.recv_timeout(QUIET).is_ok()
    {}
}

/// The folders that tell of changes: the one the path names, and the one the file behind its links lies in.
struct Folders {
    path: PathBuf,
    watcher: Option<RecommendedWatcher>,
    watched: Vec<PathBuf>,
    /// Whether the last failure to watch was reported.
    reported: bool,
}

impl Folders {
    fn new(path: &Path, wake: SyncSender<()>) -> Self {
        let handler = move |event: notify::Result<notify::Event>| {
            // Our own reading is an event too: waking on it would never end.
            let own = matches!(
                &event,
                Ok(notify::Event {
                    kind: EventKind::Access(
                        AccessKind::Open(_)
                            | AccessKind::Read
                            | AccessKind::Close(AccessMode::Read)
                    ),
                    ..
                })
            );
            if !own {
                let _a_full_channel_wakes_as_well = wake.try_send(());
            }
        };
        let watcher = notify::recommended_watcher(handler)
            .inspect_err(|error| {
                tracing::warn!(%error, "cannot watch the policy file, it is read regularly instead");
            })
            .ok();
        Self {
            path: path.to_owned(),
            watcher,
            watched: Vec::new(),
            reported: false,
        }
    }

    /// Renews every watch: a folder that was replaced by another of the same name is only heard of that way.
    fn watch_again(&mut self) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        for folder in self.watched.drain(..) {
            // Gone with the folder, most often.
            drop(watcher.unwatch(&folder));
        }
        let mut folders = vec![folder_of(&self.path)];
        if let Ok(target) = self.path.canonicalize() {
            folders.push(folder_of(&target));
        }
        folders.dedup();
        for folder in folders {
            match watcher.watch(&folder, RecursiveMode::NonRecursive) {
                Ok(()) => self.watched.push(folder),
                Err(error) if !self.reported => {
                    self.reported = true;
                    tracing::warn!(
                        folder = %folder.display(),
                        %error,
                        "cannot watch a folder of the policy file, it is read regularly instead"
                    );
                }
                Err(_) => {}
            }
        }
        if !self.watched.is_empty() {
            self.reported = false;
        }
    }

    /// How long to wait for an event.
    const fn tick(&self) -> Duration {
        if self.watched.is_empty() { POLL } else { TICK }
    }
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The bytes of the file at `path`, one more than `max_bytes` at most: enough for the compiler to call it too large.
///
/// # Errors
///
/// It cannot be read or is no regular file: a pipe would be waited for, and could not be read again.
pub(crate) fn read_policy_file(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    if !path.metadata()?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a regular file",
        ));
    }
    let mut bytes = Vec::new();
    File::open(path)?
        .take(max_bytes.saturating_add(1))
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

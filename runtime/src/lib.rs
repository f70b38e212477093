//! The embeddable runtime: decides requests by a compiled quota program.
//!
//! A [`Quota`] holds one policy file in force: its program, its counter backend and its metrics. It is cheap to clone and
//! to share between threads. Requests are handed in as a borrowed [`Request`]; what comes back is an
//! [`Outcome`]: admit or not, with which status, and what every applicable policy said.
//!
//! ```
//! use quota_runtime::Quota;
//! use quota_runtime::clock::UnixMillis;
//! use quota_runtime::outcome::Decision;
//! use quota_runtime::request::{ClientAddress, Request};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let policies = "
//! enabled: true
//! policies:
//!   - name: per-tenant
//!     selector: { tenant: { key: 'header:x-tenant-id' } }
//!     burst: { requests: 1, window_secs: 10 }
//! ";
//! let quota = Quota::builder().open_text("policies.yaml", policies.as_bytes())?;
//!
//! let headers = [("x-tenant-id", "acme")];
//! let request = Request {
//!     route: Some("login"),
//!     client: ClientAddress::Unknown,
//!     query: None,
//!     headers: &headers,
//! };
//! // The time is a parameter here; `Quota::decide` reads the clock.
//! let now = UnixMillis(1_000);
//! assert_eq!(quota.decide_inline(&request, now)?.decision, Decision::Allowed);
//!
//! let denied = quota.decide_inline(&request, now)?;
//! assert_eq!(denied.status, 429);
//! assert_eq!(denied.retry_after_secs, Some(9));
//! assert_eq!(denied.policy_name(0), Some("per-tenant"));
//! # Ok(())
//! # }
//! ```
//!
//! Counters in this process are asked inside the call ([`Quota::decide_inline`]); a remote backend is waited for
//! ([`Quota::decide`], or [`Quota::decide_blocking`] outside of an asynchronous runtime).
//!
//! # Map
//!
//! | module | what it is about |
//! | --- | --- |
//! | [`request`], [`outcome`] | what is decided, and the answer |
//! | [`client_address`] | the client behind trusted proxies |
//! | [`clock`] | the one reading of the time a request gets |
//! | [`engine`] | executes a program: pure, no I/O; with [`extract`], [`key`] and [`window`] |
//! | `dispatch` | carries the engine's checks to the backend and its fallback |
//! | [`backend`] | backend kinds, linked in or loaded, and what becomes of an instance over a reload |
//! | [`health`], [`status`], [`metrics`] | what operators see |
//! | [`reload`] | follows a policy file |
#![forbid(unsafe_code)]

pub mod backend;
pub mod client_address;
pub mod clock;
mod dispatch;
pub mod engine;
pub mod extract;
pub mod health;
pub mod key;
pub mod metrics;
pub mod outcome;
pub mod reload;
pub mod request;
pub mod status;
pub mod window;

use std::fmt;
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use prometheus::Registry;
use quota_compiler::program::Program;
use quota_compiler::{Checked, Limits};
use quota_plugin_abi::quota_plugin;
use quota_plugin_host::{LoadError, LogLevel, SearchPath};
use sha2::{Digest as _, Sha256};

use crate::backend::{BackendChange, BackendError, Living, PluginKinds, Stores, full_text};
use crate::clock::{Clock, SystemClock, UnixMillis};
use crate::dispatch::Active;
use crate::health::BackendStatus;
use crate::metrics::Metrics;
use crate::outcome::Outcome;
use crate::request::Request;
use crate::status::Status;

pub use quota_compiler as compiler;
pub use quota_plugin_host as host;

/// How long a new remote backend may take to become available before a reload is given up, where the embedder says nothing.
pub const DEFAULT_READY_WITHIN: Duration = Duration::from_secs(2);

/// Why a policy file could not be brought into force.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file could not be read.
    #[error("cannot read {name}")]
    Unreadable {
        /// The file.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// The file has faults; `Display` lists the errors, one a line.
    #[error("{}", Faults(.0))]
    Refused(Box<Checked>),
    /// The file is in order, its backend cannot serve.
    #[error("the backend cannot serve")]
    Backend(#[from] BackendError),
    /// A backend that is linked into this program breaks a rule of the ABI.
    #[error("a linked-in backend is refused")]
    LinkedIn(#[source] LoadError),
    /// The metric families could not be registered.
    #[error("the metric families could not be registered")]
    Metrics(#[from] prometheus::Error),
}

impl fmt::Debug for OpenError {
    /// What [`OpenError::full_text`] says: the text of the file, which may hold credentials, is left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full_text())
    }
}

impl OpenError {
    /// The error and everything behind it.
    #[must_use]
    pub fn full_text(&self) -> String {
        full_text(self)
    }
}

/// The errors of a file as `name:line:column: error[code]: message; what stands elsewhere: line:column; help: what to do`.
struct Faults<'a>(&'a Checked);

impl fmt::Display for Faults<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0.text.name();
        let errors = self.0.diagnostics.iter().filter(|found| found.is_error());
        for (index, error) in errors.enumerate() {
            let place = self.0.text.place(error.span.start);
            let separator = if index == 0 { "" } else { "\n" };
            write!(
                f,
                "{separator}{name}:{}:{}: {}[{}]: {}",
                place.line,
                place.column,
                error.severity.as_str(),
                error.code.id,
                error.message
            )?;
            for related in &error.related {
                let place = self.0.text.place(related.span.start);
                write!(f, "; {}: {}:{}", related.message, place.line, place.column)?;
            }
            if let Some(help) = &error.help {
                write!(f, "; help: {help}")?;
            }
        }
        Ok(())
    }
}

/// The primary backend is remote: the decision has to be waited for ([`Quota::decide`], [`Quota::decide_blocking`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the backend does not answer inside the call")]
pub struct NotInline;

/// How a [`Quota`] is opened.
#[derive(Clone, Debug)]
pub struct Builder {
    limits: Limits,
    search: Option<SearchPath>,
    clock: Arc<dyn Clock>,
    linked_in: Vec<&'static quota_plugin>,
    stand_ins: Vec<&'static quota_plugin>,
    ready_within: Duration,
}

impl Builder {
    /// Bounds on policy files.
    #[must_use]
    pub const fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Where plugins are looked for. Without it none is loaded: only linked-in backends can be used.
    #[must_use]
    pub fn plugins(mut self, search: SearchPath) -> Self {
        self.search = Some(search);
        self
    }

    /// Where the time comes from; the system's clock where nothing is said.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Adds a backend that is linked into the program.
    #[must_use]
    pub fn register(mut self, table: &'static quota_plugin) -> Self {
        self.linked_in.push(table);
        self
    }

    /// Adds a backend that is linked into the program and answers for its kind even where the policy file names a library:
    /// for tests of policies, whose servers are not there.
    #[must_use]
    pub fn stand_in(mut self, table: &'static quota_plugin) -> Self {
        self.stand_ins.push(table);
        self
    }

    /// How long a new remote backend may take to become available before a reload is given up. Opening never waits: a
    /// process can start while its backend is down.
    #[must_use]
    pub const fn ready_within(mut self, time: Duration) -> Self {
        self.ready_within = time;
        self
    }

    /// Opens the policy file at `path`.
    ///
    /// # Errors
    ///
    /// It cannot be read or has faults, or its backend cannot serve.
    pub fn open_file(self, path: impl AsRef<Path>) -> Result<Quota, OpenError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        match reload::read_policy_file(path, self.limits.max_bytes) {
            Ok(bytes) => self.open_text(&name, &bytes),
            Err(source) => Err(OpenError::Unreadable { name, source }),
        }
    }

    /// Opens the policy text `bytes`, called `name` in messages.
    ///
    /// # Errors
    ///
    /// It has faults, or its backend cannot serve.
    pub fn open_text(self, name: &str, bytes: &[u8]) -> Result<Quota, OpenError> {
        log_plugins_to_tracing();
        let mut kinds = PluginKinds::new(self.search).map_err(OpenError::LinkedIn)?;
        for table in self.linked_in {
            kinds.register(table).map_err(OpenError::LinkedIn)?;
        }
        for table in self.stand_ins {
            kinds.stand_in(table).map_err(OpenError::LinkedIn)?;
        }
        let (program, checked) = compile(name, bytes, self.limits, &kinds)?;
        let metrics = Metrics::new()?;
        let living = Arc::new(Living::default());
        let (stores, _) = Stores::default().next(&program, &kinds, None, &living)?;
        let cells = metrics.publish(&program);
        let generation = 1;
        let active = Active::new(program, stores, cells, generation);
        Ok(Quota {
            inner: Arc::new(Inner {
                active: ArcSwap::from_pointee(active),
                clock: self.clock,
                metrics,
                limits: self.limits,
                ready_within: self.ready_within,
                living,
                control: Mutex::new(Control {
                    kinds,
                    text_sha256: Sha256::digest(bytes).into(),
                    checked: Arc::new(checked),
                }),
            }),
        })
    }
}

fn compile(
    name: &str,
    bytes: &[u8],
    limits: Limits,
    kinds: &PluginKinds,
) -> Result<(Program, Checked), OpenError> {
    let compiled = quota_compiler::compile(name, bytes, limits, kinds);
    match compiled.program {
        Some(program) => Ok((program, compiled.checked)),
        None => Err(OpenError::Refused(Box::new(compiled.checked))),
    }
}

/// Sends what plugins log to `tracing`, unless the embedder has chosen another place.
fn log_plugins_to_tracing() {
    let logger = |level: LogLevel, kind: &str, target: &str, text: &str| match level {
        LogLevel::Error => tracing::error!(backend = kind, from = target, text, "plugin log"),
        LogLevel::Warn => tracing::warn!(backend = kind, from = target, text, "plugin log"),
        LogLevel::Info => tracing::info!(backend = kind, from = target, text, "plugin log"),
        LogLevel::Debug => tracing::debug!(backend = kind, from = target, text, "plugin log"),
        LogLevel::Trace => tracing::trace!(backend = kind, from = target, text, "plugin log"),
    };
    let _another_logger_stays = quota_plugin_host::set_logger(LogLevel::Debug, logger);
}

/// One policy file in force. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Quota {
    inner: Arc<Inner>,
}

struct Inner {
    /// Program, backend and metric cells, swapped as one: a decision ends on what it began with.
    active: ArcSwap<Active>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    limits: Limits,
    ready_within: Duration,
    living: Arc<Living>,
    /// Locked while a program is brought into force, one at a time.
    control: Mutex<Control>,
}

struct Control {
    kinds: PluginKinds,
    /// Of the text in force.
    text_sha256: [u8; 32],
    checked: Arc<Checked>,
}

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let active = self.inner.active.load();
        f.debug_struct("Quota")
            .field("generation", &active.generation)
            .field("policies", &active.program.policies().len())
            .finish_non_exhaustive()
    }
}

/// A policy text that was brought into force.
#[derive(Clone)]
pub struct Replaced {
    /// Of the program now in force; the former one's where `changed` is `false`.
    pub generation: u64,
    /// Whether anything is different: the program, or the backend behind it.
    pub changed: bool,
    /// What became of the primary backend.
    pub backend: BackendChange,
    /// What the compiler says of the text: no errors, but perhaps warnings and notes.
    pub checked: Arc<Checked>,
}

impl fmt::Debug for Replaced {
    /// Without the text, which may hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replaced")
            .field("generation", &self.generation)
            .field("changed", &self.changed)
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}

impl Quota {
    /// How to open a policy file: the default limits, no plugins, the system's clock.
    #[must_use]
    pub fn builder() -> Builder {
        Builder {
            limits: Limits::default(),
            search: None,
            clock: Arc::new(SystemClock),
            linked_in: Vec::new(),
            stand_ins: Vec::new(),
            ready_within: DEFAULT_READY_WITHIN,
        }
    }

    /// A reading of the clock decisions are made by.
    #[must_use]
    pub fn now(&self) -> UnixMillis {
        self.inner.clock.now()
    }

    /// Decides `request` at the clock's time. With a remote backend it must be polled inside a tokio runtime whose timer is
    /// enabled; with one in this process it never waits.
    ///
    /// A request whose decision is dropped half-way may have been charged; it is counted in no metric.
    pub async fn decide(&self, request: &Request<'_>) -> Decided {
        self.decide_at(request, self.now()).await
    }

    /// Decides `request` at `now`, as [`Quota::decide`] does.
    pub async fn decide_at(&self, request: &Request<'_>, now: UnixMillis) -> Decided {
        let active = self.inner.active.load_full();
        let outcome = dispatch::decide(&active, request, now).await;
        Decided { active, outcome }
    }

    /// Decides `request` at `now` and blocks the thread while a remote backend is waited for.
    #[must_use]
    pub fn decide_blocking(&self, request: &Request<'_>, now: UnixMillis) -> Decided {
        let active = self.inner.active.load_full();
        let outcome = dispatch::decide_blocking(&active, request, now);
        Decided { active, outcome }
    }

    /// Decides `request` at `now` inside the call.
    ///
    /// # Errors
    ///
    /// The backend of the program in force is remote.
    pub fn decide_inline(
        &self,
        request: &Request<'_>,
        now: UnixMillis,
    ) -> Result<Decided, NotInline> {
        let active = self.inner.active.load_full();
        if !active.is_inline() {
            return Err(NotInline);
        }
        let outcome = dispatch::decide_inline(&active, request, now);
        Ok(Decided { active, outcome })
    }

    /// Decides `request` at `now` inside the call and shows `visit` the outcome and the program that made it: the cheapest
    /// form, which shares nothing between threads. With four applicable policies over eight sources at most it allocates
    /// nothing once their counters exist.
    ///
    /// # Errors
    ///
    /// The backend of the program in force is remote.
    pub fn decide_inline_with<R>(
        &self,
        request: &Request<'_>,
        now: UnixMillis,
        visit: impl FnOnce(&Program, &Outcome) -> R,
    ) -> Result<R, NotInline> {
        let active = self.inner.active.load();
        if !active.is_inline() {
            return Err(NotInline);
        }
        let outcome = dispatch::decide_inline(&active, request, now);
        Ok(visit(&active.program, &outcome))
    }

    /// Whether decisions are made inside the call, by the program now in force.
    #[must_use]
    pub fn is_inline(&self) -> bool {
        self.inner.active.load().is_inline()
    }

    /// The program now in force.
    #[must_use]
    pub fn program(&self) -> ProgramInForce {
        ProgramInForce(self.inner.active.load_full())
    }

    /// Brings the policy text `bytes`, called `name` in messages, into force. Decisions go on meanwhile, and end on the
    /// program they began with. Counters go on wherever contract §5 says so. Blocks while it compiles and, for a new remote
    /// backend, until that is ready.
    ///
    /// # Errors
    ///
    /// The text has faults, or its backend cannot serve; the former program stays in force.
    pub fn replace_text(&self, name: &str, bytes: &[u8]) -> Result<Replaced, OpenError> {
        let inner = &*self.inner;
        let mut control = inner.control.lock();
        let (program, checked) = compile(name, bytes, inner.limits, &control.kinds)?;
        let former = inner.active.load_full();
        let (stores, backend) = former.stores.next(
            &program,
            &control.kinds,
            Some(inner.ready_within),
            &inner.living,
        )?;
        let changed = backend == BackendChange::Created
            || former.program.digest() != program.digest()
            || former.program.backend() != program.backend();
        let generation = former.generation + u64::from(changed);
        let cells = inner.metrics.publish(&program);
        inner
            .active
            .store(Arc::new(Active::new(program, stores, cells, generation)));
        control.text_sha256 = Sha256::digest(bytes).into();
        control.checked = Arc::new(checked);
        Ok(Replaced {
            generation,
            changed,
            backend,
            checked: Arc::clone(&control.checked),
        })
    }

    /// What the compiler says of the text in force: no errors, but perhaps warnings and notes.
    #[must_use]
    pub fn checked(&self) -> Arc<Checked> {
        Arc::clone(&self.inner.control.lock().checked)
    }

    /// SHA-256 of the text in force.
    #[must_use]
    pub fn text_sha256(&self) -> [u8; 32] {
        self.inner.control.lock().text_sha256
    }

    /// Bounds on policy files.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.inner.limits
    }

    /// The `quota` object of the admin view (contract §9).
    #[must_use]
    pub fn status(&self) -> Status {
        let active = self.inner.active.load_full();
        let primary = active.stores.primary.as_ref();
        let backend_status = match primary {
            Some(primary) if active.program.enabled() => primary.health.status(),
            Some(_) | None => BackendStatus::disabled(),
        };
        let plugin = primary.and_then(|primary| primary.plugin_status());
        Status::of(&active.program, backend_status, plugin, active.generation)
    }

    /// Every metric family of [`Quota::registry`] in the Prometheus text format.
    #[must_use]
    pub fn render_metrics(&self) -> String {
        self.inner.metrics.render()
    }

    /// The registry with our families, for the families of whoever embeds this.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        self.inner.metrics.registry()
    }

    /// Gives up this handle and, if it is the last one, waits until every backend has finished what it owes and ended.
    /// Whether that happened within `time`.
    #[must_use]
    pub fn close(self, time: Duration) -> bool {
        let living = Arc::clone(&self.inner.living);
        drop(self);
        living.wait_for_none(time)
    }
}

/// The program in force at one moment; it stays readable when another one replaces it.
#[derive(Clone, Debug)]
pub struct ProgramInForce(Arc<Active>);

impl Deref for ProgramInForce {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.0.program
    }
}

/// The outcome of one request, with the program it was decided by.
#[derive(Clone, Debug)]
pub struct Decided {
    active: Arc<Active>,
    outcome: Outcome,
}

impl Deref for Decided {
    type Target = Outcome;

    fn deref(&self) -> &Outcome {
        &self.outcome
    }
}

impl Decided {
    /// The program that decided.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.active.program
    }

    /// The name of the policy of outcome `index`; `None` beyond the last.
    #[must_use]
    pub fn policy_name(&self, index: usize) -> Option<&str> {
        let outcome = self.outcome.policies.get(index)?;
        let row = self
            .active
            .program
            .policies()
            .get(outcome.policy.0 as usize)?;
        Some(&row.name)
    }

    /// The `backend_mode` of outcome `index` as metrics show it (contract §9); `None` beyond the last.
    #[must_use]
    pub fn backend_mode_label(&self, index: usize) -> Option<&str> {
        let outcome = self.outcome.policies.get(index)?;
        Some(self.active.mode_label(outcome.mode))
    }
}

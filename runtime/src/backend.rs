//! The active backend, resolved by kind: linked in or loaded. Decides when an instance goes on over a reload and when
//! another one takes its place (ABI.md §1.8).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use quota_compiler::backend_kind::{
    BackendKind, BackendKinds, KnownKinds, OptionCheck, OptionFault, Unresolved,
};
use quota_compiler::diagnostic;
use quota_compiler::program::Program;
use quota_compiler::settings::{BackendPlace, BackendSettings, FallbackSettings, IN_MEMORY, REDIS};
use quota_plugin_abi::quota_plugin;
use quota_plugin_host::{
    CreateError, HealthState, Instance, LoadError, LoadRequest, OptionDiagnostic, Plugin,
    ResizeError, SearchPath, Settings, Severity,
};
use serde_json::{Map, Value};

use crate::health::Health;
use crate::outcome::BackendFailure;
use crate::status::PluginStatus;

/// How long an instance that was replaced may take to finish what it owes.
const DRAIN: Duration = Duration::from_secs(5);
/// How often a new backend is asked whether it is ready.
const READY_POLL: Duration = Duration::from_millis(10);

/// The backend kinds of this process: those linked in, and those there is a plugin for.
///
/// It resolves kinds for the compiler, so that the options of a plugin are checked by that plugin, and hands the same
/// library to whoever makes an instance of it.
#[derive(Debug)]
pub struct PluginKinds {
    linked_in: Vec<Plugin>,
    /// Answer for their kinds even where the policy file names a library.
    stand_ins: Vec<Plugin>,
    /// `None`: no plugin is ever loaded.
    search: Option<SearchPath>,
    /// The library the last file was checked with, so that its instance comes from the same content.
    resolved: Mutex<Option<Plugin>>,
}

impl PluginKinds {
    /// The kinds of this process: `in_memory`, and those with a library in `search`; with `None` no library is loaded, and
    /// the options of other kinds stay unchecked.
    ///
    /// # Errors
    ///
    /// The backend that is linked in breaks a rule of the ABI.
    pub fn new(search: Option<SearchPath>) -> Result<Self, LoadError> {
        Ok(Self {
            linked_in: vec![Plugin::builtin(quota_backend_in_memory::plugin())?],
            stand_ins: Vec::new(),
            search,
            resolved: Mutex::new(None),
        })
    }

    /// Adds a backend that is linked into this program; its kind then needs no library. A later one of the same kind takes
    /// precedence.
    ///
    /// # Errors
    ///
    /// Its table breaks a rule of the ABI.
    pub fn register(&mut self, table: &'static quota_plugin) -> Result<(), LoadError> {
        self.linked_in.insert(0, Plugin::builtin(table)?);
        Ok(())
    }

    /// Lets a linked-in backend answer for its kind even where the policy file names a library: for tests of policies, whose
    /// servers are not there.
    ///
    /// # Errors
    ///
    /// Its table breaks a rule of the ABI.
    pub fn stand_in(&mut self, table: &'static quota_plugin) -> Result<(), LoadError> {
        self.stand_ins.insert(0, Plugin::builtin(table)?);
        Ok(())
    }

    /// The library that answers for `kind`.
    fn find(
        &self,
        kind: &str,
        plugin: Option<&str>,
        sha256: Option<[u8; 32]>,
    ) -> Result<Plugin, Missing> {
        let stand_in = self.stand_ins.iter().find(|plugin| plugin.kind() == kind);
        if let Some(stand_in) = stand_in {
            return Ok(stand_in.clone());
        }
        // A file replaces what is linked in only where the policy file names it.
        let linked_in = self.linked_in.iter().find(|linked| linked.kind() == kind);
        if let (None, Some(linked)) = (plugin, linked_in) {
            return Ok(linked.clone());
        }
        let search = self.search.as_ref().ok_or(Missing::NotAsked)?;
        let pin = sha256.map(|digest| digest.map(|byte| format!("{byte:02x}")).concat());
        let request = LoadRequest {
            search,
            plugin,
            sha256: pin.as_deref(),
        };
        Plugin::load(kind, &request).map_err(Missing::NotLoaded)
    }

    /// The library a file of these settings was checked with, or the one there is now.
    fn for_settings(&self, settings: &BackendSettings) -> Result<Plugin, Missing> {
        let resolved = self.resolved.lock().take();
        let wanted = resolved.filter(|plugin| {
            let is_pinned = settings
                .plugin_sha256
                .is_none_or(|pin| plugin.sha256() == Some(pin));
            plugin.kind() == &*settings.kind && (is_pinned || plugin.file().is_none())
        });
        match wanted {
            Some(plugin) => Ok(plugin),
            None => self.find(
                &settings.kind,
                settings.plugin.as_deref(),
                settings.plugin_sha256,
            ),
        }
    }

    fn searched(&self) -> Vec<String> {
        let folders = self.search.iter().flat_map(SearchPath::folders);
        folders
            .map(|folder: &PathBuf| folder.display().to_string())
            .collect()
    }

    fn known(&self) -> Vec<String> {
        let linked_in = self.linked_in.iter().map(|plugin| plugin.kind().to_owned());
        let found = self.search.iter().flat_map(SearchPath::kinds);
        // The compiler knows `redis` without its plugin.
        let redis = [REDIS.to_owned()];
        let mut known: Vec<_> = linked_in.chain(found).chain(redis).collect();
        known.sort();
        known.dedup();
        known
    }
}

/// Why there is no library for a kind.
enum Missing {
    /// Plugins are not to be loaded.
    NotAsked,
    /// None was found, or it was refused.
    NotLoaded(LoadError),
}

impl BackendKinds for PluginKinds {
    fn resolve(
        &self,
        kind: &str,
        plugin: Option<&str>,
        sha256: Option<&[u8; 32]>,
    ) -> Result<BackendKind, Unresolved> {
        *self.resolved.lock() = None;
        match self.find(kind, plugin, sha256.copied()) {
            Ok(found) => {
                *self.resolved.lock() = Some(found.clone());
                // Its one option belongs to the contract, and the compiler checks it.
                if kind == IN_MEMORY && found.file().is_none() {
                    return Ok(KnownKinds::in_memory());
                }
                Ok(BackendKind {
                    name: found.kind().into(),
                    remote: found.capabilities().remote(),
                    max_requests: found.max_limit(),
                    options: Some(Box::new(PluginOptions(found))),
                    unchecked_reason: None,
                })
            }
            Err(Missing::NotAsked) if kind == REDIS => {
                Ok(KnownKinds::redis("plugins are not loaded"))
            }
            Err(Missing::NotAsked) => Err(Unresolved::NotAsked),
            Err(Missing::NotLoaded(LoadError::NotFound { .. })) if kind == REDIS => {
                Ok(KnownKinds::redis(format!(
                    "no plugin for `{kind}` was found in {}",
                    self.searched().join(", ")
                )))
            }
            // A library that the file names and nobody has is a matter of the library, whatever the kind.
            Err(Missing::NotLoaded(error @ LoadError::NotFound { .. })) if plugin.is_some() => {
                Err(Unresolved::Refused {
                    reason: full_text(&error),
                })
            }
            Err(Missing::NotLoaded(LoadError::NotFound { .. })) => Err(Unresolved::Unknown {
                known: self.known(),
                searched: self.searched(),
            }),
            Err(Missing::NotLoaded(error)) => Err(Unresolved::Refused {
                reason: full_text(&error),
            }),
        }
    }
}

/// The options of a kind, judged by its plugin.
struct PluginOptions(Plugin);

impl OptionCheck for PluginOptions {
    fn check(&self, options: &Value) -> Vec<OptionFault> {
        let found = self.0.validate(options).into_iter();
        found.map(option_fault).collect()
    }
}

fn option_fault(found: OptionDiagnostic) -> OptionFault {
    OptionFault {
        pointer: found.pointer,
        severity: match found.severity {
            Severity::Error => diagnostic::Severity::Error,
            Severity::Warning => diagnostic::Severity::Warning,
            Severity::Note => diagnostic::Severity::Note,
        },
        code: found.code,
        message: found.message,
        help: found.help,
    }
}

/// Why the backend of a policy file cannot serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// No plugin answers for the kind, or the one that does is refused.
    #[error("there is no backend for kind `{kind}`")]
    NotLoaded {
        /// The kind.
        kind: Box<str>,
        /// Why; names every folder searched.
        source: LoadError,
    },
    /// The kind needs a plugin, and plugins are not to be loaded.
    #[error("kind `{kind}` needs a plugin, and plugins are not loaded here")]
    NotAsked {
        /// The kind.
        kind: Box<str>,
    },
    /// The plugin made no instance.
    #[error("the backend of kind `{kind}` could not be created")]
    NotCreated {
        /// The kind.
        kind: Box<str>,
        /// Why.
        source: CreateError,
    },
    /// A new remote backend was not ready in time, so the former one stays.
    #[error("the new backend of kind `{kind}` is not available{}", detail.as_ref().map_or(String::new(), |detail| format!(": {detail}")))]
    NotReady {
        /// The kind.
        kind: Box<str>,
        /// What the plugin says about it, without secrets.
        detail: Option<String>,
    },
    /// The capacity of a living store could not be changed.
    #[error("`max_entries` of the {store} could not be changed")]
    NotResized {
        /// Which one: the backend or the local fallback.
        store: &'static str,
        /// Why.
        source: ResizeError,
    },
}

/// An error and everything behind it, in one line.
pub(crate) fn full_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

/// An instance that drains and ends when the last decision that began with it is over.
#[derive(Debug)]
pub(crate) struct Store {
    /// `None` only while it is being dropped.
    instance: Option<Instance>,
    /// Most active buckets; 0 for a backend that is not bounded here.
    max_entries: AtomicU64,
    living: Arc<Living>,
}

impl Store {
    fn new(instance: Instance, max_entries: u64, living: &Arc<Living>) -> Self {
        living.enter();
        Self {
            instance: Some(instance),
            max_entries: AtomicU64::new(max_entries),
            living: Arc::clone(living),
        }
    }

    /// The instance; `None` is never seen by a caller, who holds the store.
    pub(crate) const fn instance(&self) -> Option<&Instance> {
        self.instance.as_ref()
    }

    /// Gives the living instance this capacity; counters stay, shrinking evicts nothing. `false` if it cannot be changed.
    fn resize(&self, max_entries: u64) -> Result<bool, ResizeError> {
        if self.max_entries.load(Ordering::Relaxed) == max_entries {
            return Ok(true);
        }
        let Some(instance) = &self.instance else {
            return Ok(false);
        };
        let resized = instance.resize(max_entries)?;
        if resized {
            self.max_entries.store(max_entries, Ordering::Relaxed);
        }
        Ok(resized)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let Some(instance) = self.instance.take() else {
            return;
        };
        let living = Arc::clone(&self.living);
        let end = move || {
            let kind = instance.plugin().kind().to_owned();
            let end = instance.drain_and_destroy(Instant::now() + DRAIN);
            tracing::debug!(backend = kind, ?end, "a quota backend ended");
            living.leave();
        };
        // The last holder may be a decision: it must not wait for sockets to close.
        if let Err(error) = std::thread::Builder::new()
            .name("quota-drain".to_owned())
            .spawn(end)
        {
            // The closure is gone, and the instance with it: `Instance` ends itself when dropped.
            tracing::warn!(%error, "a quota backend ended without draining");
            self.living.leave();
        }
    }
}

/// Counts the instances that have not ended yet.
#[derive(Debug, Default)]
pub(crate) struct Living {
    count: Mutex<usize>,
    ended: Condvar,
}

impl Living {
    fn enter(&self) {
        *self.count.lock() += 1;
    }

    fn leave(&self) {
        let mut count = self.count.lock();
        *count = count.saturating_sub(1);
        self.ended.notify_all();
    }

    /// Whether every instance ends within `time`.
    pub(crate) fn wait_for_none(&self, time: Duration) -> bool {
        let mut count = self.count.lock();
        let result = self
            .ended
            .wait_while_for(&mut count, |count| *count > 0, time);
        !result.timed_out()
    }
}

/// The primary backend of a published program.
#[derive(Debug)]
pub(crate) struct Primary {
    store: Store,
    pub(crate) health: Health,
    /// Requests being evaluated.
    inflight: AtomicU64,
    /// The most of them; `None` for a backend in this process.
    max_inflight: Option<u64>,
    /// The longest a request waits for one trip; `None` for a backend in this process.
    pub(crate) command_timeout: Option<Duration>,
}

/// A request's place among those being evaluated.
#[derive(Debug)]
pub(crate) struct Place<'a>(&'a Primary);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.0.max_inflight.is_some() {
            self.0.inflight.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Primary {
    pub(crate) const fn instance(&self) -> Option<&Instance> {
        self.store.instance()
    }

    /// A place for one request until it is dropped; `None` if all are taken (contract §7).
    pub(crate) fn enter(&self) -> Option<Place<'_>> {
        if let Some(most) = self.max_inflight {
            let taken = self.inflight.fetch_add(1, Ordering::Relaxed);
            if taken >= most {
                self.inflight.fetch_sub(1, Ordering::Relaxed);
                return None;
            }
        }
        Some(Place(self))
    }

    /// What there is to say of a failure: that every place is taken, or what the plugin says of its last failure, if that was
    /// one of this kind.
    pub(crate) fn failure_detail(&self, failure: BackendFailure) -> Option<String> {
        if failure == BackendFailure::Unavailable
            && let Some(most) = self.max_inflight
            && self.inflight.load(Ordering::Relaxed) >= most
        {
            return Some(format!(
                "as many requests are being evaluated as `max_inflight` allows: {most}"
            ));
        }
        let health = self.instance()?.health();
        let same = health.last_failure.map(BackendFailure::from) == Some(failure);
        health.last_error.filter(|_| same)
    }

    pub(crate) fn plugin_status(&self) -> Option<PluginStatus> {
        let plugin = self.instance()?.plugin();
        let (major, minor) = plugin.abi();
        Some(PluginStatus {
            name: plugin.name().to_owned(),
            version: plugin.version().to_owned(),
            file: plugin.file().map(|file| file.display().to_string()),
            abi: format!("{major}.{minor}"),
        })
    }
}

/// Both stores of a published program. Disabled quota has none it did not have before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stores {
    pub(crate) primary: Option<Arc<Primary>>,
    pub(crate) fallback: Option<Arc<Fallback>>,
}

/// The local fallback of a published program.
#[derive(Debug)]
pub(crate) struct Fallback {
    key_prefix: Box<str>,
    store: Store,
}

impl Fallback {
    pub(crate) const fn instance(&self) -> Option<&Instance> {
        self.store.instance()
    }
}

/// What became of the primary backend when a program was brought into force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendChange {
    /// The same instance goes on, with its counters.
    Kept,
    /// A new instance; what the former one counted in this process starts afresh.
    Created,
    /// Quota is disabled, no backend is needed.
    NotNeeded,
}

impl BackendChange {
    /// The word of log lines and admin answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Created => "created",
            Self::NotNeeded => "not_needed",
        }
    }
}

impl Stores {
    /// The stores of `program`: those of the former program where they are still the right ones, new ones otherwise.
    /// Nothing of the former program is touched unless this succeeds. `ready_within`: how long a new remote backend may
    /// take to become available; `None` at the start, where a dead server must not keep the process from serving.
    pub(crate) fn next(
        &self,
        program: &Program,
        kinds: &PluginKinds,
        ready_within: Option<Duration>,
        living: &Arc<Living>,
    ) -> Result<(Self, BackendChange), BackendError> {
        let settings = program.backend();
        let (primary, change) = if program.enabled() || self.primary.is_some() {
            self.next_primary(program.enabled(), settings, kinds, ready_within, living)?
        } else {
            (None, BackendChange::NotNeeded)
        };
        let fallback = match program.fallback() {
            Some(fallback) if primary.is_some() => Some(self.next_fallback(fallback, living)?),
            Some(_) | None => None,
        };
        Ok((Self { primary, fallback }, change))
    }

    fn next_primary(
        &self,
        enabled: bool,
        settings: &BackendSettings,
        kinds: &PluginKinds,
        ready_within: Option<Duration>,
        living: &Arc<Living>,
    ) -> Result<(Option<Arc<Primary>>, BackendChange), BackendError> {
        let not_loaded = |missing| match missing {
            Missing::NotAsked => BackendError::NotAsked {
                kind: settings.kind.clone(),
            },
            Missing::NotLoaded(source) => BackendError::NotLoaded {
                kind: settings.kind.clone(),
                source,
            },
        };
        let plugin = match kinds.for_settings(settings) {
            Ok(plugin) => plugin,
            Err(_) if !enabled => return Ok((None, BackendChange::NotNeeded)),
            Err(missing) => return Err(not_loaded(missing)),
        };
        let host_settings = host_settings(settings);
        let options = Value::Object(settings.options.clone());
        let identity = plugin.identity(&host_settings, &options);
        if let Some(former) = &self.primary
            && let Some(instance) = former.instance()
            && instance.identity() == identity
            // A backend with a capacity is local and has no fallback: nothing below can fail once it has changed.
            && former
                .store
                .resize(host_settings.max_entries)
                .map_err(|source| BackendError::NotResized {
                    store: "backend",
                    source,
                })?
        {
            return Ok((Some(Arc::clone(former)), BackendChange::Kept));
        }
        if !enabled {
            return Ok((None, BackendChange::NotNeeded));
        }
        let instance =
            plugin
                .create(&host_settings, &options)
                .map_err(|source| BackendError::NotCreated {
                    kind: settings.kind.clone(),
                    source,
                })?;
        tell_doubts(&instance);
        let (command_timeout, max_inflight) = match settings.place {
            BackendPlace::Local { .. } => (None, None),
            BackendPlace::Remote {
                command_timeout_ms,
                max_inflight,
                ..
            } => (
                Some(Duration::from_millis(command_timeout_ms.get())),
                Some(max_inflight.get()),
            ),
        };
        let store = Store::new(instance, host_settings.max_entries, living);
        if let (Some(time), true) = (ready_within, settings.is_remote()) {
            wait_until_ready(&store, &settings.kind, time)?;
        }
        let primary = Primary {
            store,
            health: Health::new(&settings.kind),
            inflight: AtomicU64::new(0),
            max_inflight,
            command_timeout,
        };
        Ok((Some(Arc::new(primary)), BackendChange::Created))
    }

    fn next_fallback(
        &self,
        settings: &FallbackSettings,
        living: &Arc<Living>,
    ) -> Result<Arc<Fallback>, BackendError> {
        if let Some(former) = &self.fallback
            && former.key_prefix == settings.key_prefix
            && former
                .store
                .resize(settings.max_entries.get())
                .map_err(|source| BackendError::NotResized {
                    store: "local fallback",
                    source,
                })?
        {
            return Ok(Arc::clone(former));
        }
        let plugin = Plugin::builtin(quota_backend_in_memory::plugin()).map_err(|source| {
            BackendError::NotLoaded {
                kind: IN_MEMORY.into(),
                source,
            }
        })?;
        let host_settings = Settings {
            key_prefix: settings.key_prefix.to_string(),
            max_entries: settings.max_entries.get(),
            ..Settings::default()
        };
        let instance = plugin
            .create(&host_settings, &Value::Object(Map::new()))
            .map_err(|source| BackendError::NotCreated {
                kind: IN_MEMORY.into(),
                source,
            })?;
        Ok(Arc::new(Fallback {
            key_prefix: settings.key_prefix.clone(),
            store: Store::new(instance, settings.max_entries.get(), living),
        }))
    }
}

/// Logs what is questionable about a new backend and no reason to refuse it.
fn tell_doubts(instance: &Instance) {
    let plugin = instance.plugin();
    for doubt in plugin.warnings() {
        tracing::warn!(
            backend = plugin.kind(),
            doubt,
            "somebody else could change the plugin library"
        );
    }
    for found in instance.diagnostics() {
        let (option, code, text) = (&found.pointer, &found.code, &found.message);
        match found.severity {
            Severity::Error | Severity::Warning => {
                tracing::warn!(
                    backend = plugin.kind(),
                    option,
                    code,
                    text,
                    "plugin warning"
                );
            }
            Severity::Note => {
                tracing::info!(backend = plugin.kind(), option, code, text, "plugin note");
            }
        }
    }
}

/// The fields of the contract as `create` is told them.
fn host_settings(settings: &BackendSettings) -> Settings {
    let key_prefix = settings.key_prefix.to_string();
    match settings.place {
        BackendPlace::Local { max_entries } => Settings {
            key_prefix,
            max_entries: max_entries.get(),
            ..Settings::default()
        },
        BackendPlace::Remote {
            connect_timeout_ms,
            command_timeout_ms,
            max_inflight,
        } => Settings {
            key_prefix,
            connect_timeout_ms: connect_timeout_ms.get(),
            command_timeout_ms: command_timeout_ms.get(),
            max_inflight: max_inflight.get(),
            max_entries: 0,
        },
    }
}

fn wait_until_ready(store: &Store, kind: &str, time: Duration) -> Result<(), BackendError> {
    let since = Instant::now();
    while let Some(instance) = store.instance() {
        let health = instance.health();
        if health.state != HealthState::Unavailable {
            break;
        }
        if since.elapsed() >= time {
            return Err(BackendError::NotReady {
                kind: kind.into(),
                detail: health.last_error,
            });
        }
        std::thread::sleep(READY_POLL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A search path without any library.
    fn nowhere() -> PluginKinds {
        let search = SearchPath::only(vec![PathBuf::from("/nonexistent")]);
        PluginKinds::new(Some(search)).unwrap()
    }

    #[test]
    fn a_kind_without_a_library_is_unknown_and_redis_is_not() {
        let Err(Unresolved::Unknown { known, searched }) = nowhere().resolve("acme", None, None)
        else {
            panic!("nobody answers for `acme`");
        };
        assert_eq!(known, ["in_memory", "redis"]);
        assert_eq!(searched, ["/nonexistent"]);
        let redis = nowhere().resolve("redis", None, None).unwrap();
        assert!(redis.remote && redis.options.is_none());
        assert_eq!(
            redis.unchecked_reason.unwrap(),
            "no plugin for `redis` was found in /nonexistent"
        );
    }

    #[test]
    fn a_library_that_is_named_and_not_there_is_what_is_wrong() {
        for kind in ["in_memory", "acme"] {
            let Err(Unresolved::Refused { reason }) =
                nowhere().resolve(kind, Some("nope.so"), None)
            else {
                panic!("there is no `nope.so`");
            };
            assert!(
                reason.starts_with("no `nope.so` in /nonexistent"),
                "{reason}"
            );
        }
    }
}

//! What the compiler must know of a backend kind. It never loads a plugin: whoever calls it resolves kinds.

use std::fmt;

use serde_json::Value;

use crate::diagnostic::Severity;
use crate::settings::{IN_MEMORY, REDIS};

/// The largest limit Redis can count: it counts in doubles (contract §2).
pub const REDIS_MAX_REQUESTS: u64 = (1 << 53) - 1;

/// The [`OptionFault::code`] of an option that a plugin does not have: then its name is at fault, not its value.
pub const UNKNOWN_OPTION: &str = "unknown-option";

/// A backend kind as the compiler sees it.
pub struct BackendKind {
    /// The word after `kind:`.
    pub name: Box<str>,
    /// Whether counters lie behind a connection: then timeouts, `max_inflight` and a local fallback are legal, and
    /// `max_entries` is not.
    pub remote: bool,
    /// The largest limit it can count.
    pub max_requests: u64,
    /// Judges the plugin's own options; `None`: they stay unchecked, which a note says.
    pub options: Option<Box<dyn OptionCheck>>,
    /// Why the options stay unchecked, for that note; such as "no plugin for `redis` was found".
    pub unchecked_reason: Option<String>,
}

impl fmt::Debug for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendKind")
            .field("name", &self.name)
            .field("remote", &self.remote)
            .field("max_requests", &self.max_requests)
            .field("options_checked", &self.options.is_some())
            .finish_non_exhaustive()
    }
}

/// Judges the options of a backend that the contract leaves to its plugin.
pub trait OptionCheck {
    /// Every fault of `options` (one JSON object, without the fields of the contract).
    fn check(&self, options: &Value) -> Vec<OptionFault>;
}

/// A fault of a plugin's own option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionFault {
    /// RFC 6901 pointer into the options; a missing key names its parent.
    pub pointer: String,
    /// How much it weighs.
    pub severity: Severity,
    /// The plugin's own code, shown in the message.
    pub code: String,
    /// What is wrong, without secrets.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
}

/// Why a kind could not be resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// No such kind: an error. `known` lists the kinds there are, `searched` where plugins were looked for.
    Unknown {
        /// Kinds that could be used.
        known: Vec<String>,
        /// Folders searched, in order.
        searched: Vec<String>,
    },
    /// A plugin was found and refused: an error that says why.
    Refused {
        /// The reason, naming the file.
        reason: String,
    },
    /// Plugins are not to be loaded: the kind is taken on trust and its options stay unchecked, which a note says.
    NotAsked,
}

/// Resolves the kinds a file names.
pub trait BackendKinds {
    /// The kind called `kind`, whose file names the library `plugin` and pins its content to `sha256`, where it does.
    ///
    /// # Errors
    ///
    /// The kind is unknown, its plugin was refused, or plugins are not to be loaded.
    fn resolve(
        &self,
        kind: &str,
        plugin: Option<&str>,
        sha256: Option<&[u8; 32]>,
    ) -> Result<BackendKind, Unresolved>;
}

/// The kinds known without any plugin: `in_memory`, and `redis` with its own options unchecked. For `quotac` without
/// plugins, embedders and tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct KnownKinds;

impl KnownKinds {
    /// `in_memory`, the kind that is linked into every runtime and has no options of its own.
    #[must_use]
    pub fn in_memory() -> BackendKind {
        BackendKind {
            name: IN_MEMORY.into(),
            remote: false,
            max_requests: u64::MAX,
            options: Some(Box::new(NoOptions)),
            unchecked_reason: None,
        }
    }

    /// `redis` without its plugin: the fields of the contract are checked, the plugin's own are not.
    #[must_use]
    pub fn redis(unchecked_reason: impl Into<String>) -> BackendKind {
        BackendKind {
            name: REDIS.into(),
            remote: true,
            max_requests: REDIS_MAX_REQUESTS,
            options: None,
            unchecked_reason: Some(unchecked_reason.into()),
        }
    }
}

impl BackendKinds for KnownKinds {
    fn resolve(
        &self,
        kind: &str,
        _plugin: Option<&str>,
        _sha256: Option<&[u8; 32]>,
    ) -> Result<BackendKind, Unresolved> {
        match kind {
            IN_MEMORY => Ok(Self::in_memory()),
            REDIS => Ok(Self::redis("no plugin was asked")),
            _ => Err(Unresolved::Unknown {
                known: vec![IN_MEMORY.to_owned(), REDIS.to_owned()],
                searched: Vec::new(),
            }),
        }
    }
}

/// The check of a kind without options of its own: every one is unknown.
struct NoOptions;

impl OptionCheck for NoOptions {
    fn check(&self, options: &Value) -> Vec<OptionFault> {
        let names = options
            .as_object()
            .into_iter()
            .flat_map(|fields| fields.keys());
        names
            .map(|name| OptionFault {
                pointer: format!("/{}", name.replace('~', "~0").replace('/', "~1")),
                severity: Severity::Error,
                code: UNKNOWN_OPTION.to_owned(),
                message: format!("unknown field `{name}`"),
                help: None,
            })
            .collect()
    }
}

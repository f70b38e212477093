//! The trait a backend implements, and what it is told and tells besides decisions.

use quota_plugin_abi::{
    QUOTA_CAP_BLOCKING, QUOTA_CAP_INLINE, QUOTA_CAP_NATIVE_BATCH, QUOTA_CAP_PERSISTENT,
    QUOTA_CAP_REMOTE, QUOTA_CAP_SHARED, QUOTA_HEALTH_AVAILABLE, QUOTA_HEALTH_DEGRADED,
    QUOTA_HEALTH_UNAVAILABLE, QUOTA_HEALTH_UNKNOWN,
};
use serde::de::DeserializeOwned;

use crate::{Answer, Batch, Decision, Diagnostics, Failure, Host, Item};

/// What a backend says it can do. Start from [`INLINE`](Self::INLINE), [`BLOCKING`](Self::BLOCKING) or
/// [`ASYNC`](Self::ASYNC).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// It decides inside the call, without I/O, in well under a millisecond.
    pub const INLINE: Self = Self(QUOTA_CAP_INLINE);
    /// It may block while it decides: the host calls it on threads of its own, as many as `max_inflight` and at most 64, which
    /// costs some 10 µs a decision.
    pub const BLOCKING: Self = Self(QUOTA_CAP_BLOCKING);

    /// It takes the ticket of a batch and answers later: an `AsyncBackend` (feature `tokio`), or a backend with a
    /// [`check_batch`](Backend::check_batch) of its own that returns promptly.
    pub const ASYNC: Self = Self(0);

    /// The checks of one request cost one trip together; otherwise the host may send them singly.
    #[must_use]
    pub const fn native_batch(self) -> Self {
        Self(self.0 | QUOTA_CAP_NATIVE_BATCH)
    }

    /// The counters live in another process: timeouts and a local fallback make sense.
    #[must_use]
    pub const fn remote(self) -> Self {
        Self(self.0 | QUOTA_CAP_REMOTE)
    }

    /// Other processes see the same counters.
    #[must_use]
    pub const fn shared(self) -> Self {
        Self(self.0 | QUOTA_CAP_SHARED)
    }

    /// Counters survive a restart of this process.
    #[must_use]
    pub const fn persistent(self) -> Self {
        Self(self.0 | QUOTA_CAP_PERSISTENT)
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    pub(crate) const fn is_inline(self) -> bool {
        self.0 & QUOTA_CAP_INLINE != 0
    }
}

/// A counter backend. One value is one instance: several of one library live side by side, so keep no global state.
///
/// [`export_backend!`](crate::export_backend) makes the C table of it. A panic in [`check`](Self::check) costs that one
/// item, which becomes an error; no panic crosses the boundary.
pub trait Backend: Sized + Send + Sync + 'static {
    /// The kind policy files name: `[a-z][a-z0-9_]{0,31}`, equal to the one in the file name
    /// `libquota_backend_<kind>.so`. Kinds of a vendor carry a prefix, as `acme_dynamo`.
    const KIND: &'static str;
    /// Name for people.
    const NAME: &'static str;
    /// Version for people; usually `env!("CARGO_PKG_VERSION")`.
    const VERSION: &'static str;
    /// Who made it.
    const VENDOR: &'static str;
    /// Where to read more; may be empty.
    const HOMEPAGE: &'static str = "";
    /// Names the build; may be empty.
    const BUILD_ID: &'static str = "";
    /// What it can do.
    const CAPABILITIES: Capabilities;
    /// The greatest limit it counts exactly; at least 2^53 − 1.
    const MAX_LIMIT: u64 = u64::MAX;
    /// The longest key it takes, in bytes; at least 512. A longer one is an error and never reaches it.
    const MAX_KEY_LEN: u32 = 512;
    /// The most items of a batch; 0 for any number.
    const MAX_BATCH: u32 = 0;
    /// JSON Schema of the options, in the subset the host checks without running the plugin: `type`, `properties`,
    /// `required`, `enum`, `const`, `minimum`, `maximum`, `minLength`, `maxLength`, `pattern`, `items`, `default`,
    /// `title`, `description`, `additionalProperties`, `writeOnly` (a secret), `deprecated`.
    const OPTIONS_SCHEMA: &'static str;
    /// Changes the most active buckets of a living instance (extension `quota.resize/1`): at once, counters kept,
    /// nothing evicted; 0 is no bound. `None` if the backend has no such bound.
    const SET_MAX_ENTRIES: Option<fn(backend: &Self, max_entries: u64)> = None;

    /// The options, read from JSON. Let it refuse unknown fields (`#[serde(deny_unknown_fields)]`).
    type Options: DeserializeOwned;

    /// Judges options that could be read. Pure: no I/O, no threads, no clock. Not repeating a value keeps secrets out
    /// of the findings.
    fn validate(options: &Self::Options, diagnostics: &mut Diagnostics) {
        let _ = (options, diagnostics);
    }

    /// Makes an instance; does not wait for a server and takes at most a second.
    ///
    /// # Errors
    /// What is wrong with the options or the system; nothing is left behind.
    fn create(context: Context<'_, Self::Options>) -> Result<Self, Diagnostics>;

    /// Decides one item, atomically over its windows and against every other check of its key: charges 1 to each
    /// window if all have room, else charges nothing. `now_unix_ms` is the one clock reading of the request. Called
    /// from many threads at once.
    fn check(&self, item: &Item<'_>, now_unix_ms: u64) -> Decision;

    /// Decides the checks of one request that travel together. Unless it is overridden, or an item is not allowed, items are
    /// [checked](Self::check) one by one. Not called of an inline backend.
    fn check_batch(&self, batch: &Batch<'_>) -> Answer {
        let _ = batch;
        Answer::OneByOne
    }

    /// How the instance is: no I/O, below a millisecond, true within a second of a change.
    fn health(&self) -> Health;

    /// No new checks will come: finish what is pending before the deadline, on the clock of
    /// [`Host::now_mono_ns`]. Dropping the value afterwards joins every thread.
    fn drain(&self, deadline_mono_ns: u64) {
        let _ = deadline_mono_ns;
    }
}

/// What an instance is made from.
#[derive(Clone, Debug)]
pub struct Context<'a, O> {
    /// The options, read and judged.
    pub options: O,
    /// The namespace of every stored key.
    pub key_prefix: &'a str,
    /// Longest attempt to connect, in milliseconds.
    pub connect_timeout_ms: u64,
    /// Longest wait for one trip, in milliseconds.
    pub command_timeout_ms: u64,
    /// The host never has more checks than this in the instance at once; 0 for no bound.
    pub max_inflight: u64,
    /// Most active buckets of a bounded store; 0 for no bound.
    pub max_entries: u64,
    /// The host, for as long as the instance lives.
    pub host: Host,
}

/// Whether checks are being answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HealthState {
    /// Nothing has been observed yet.
    #[default]
    Unknown,
    /// They are.
    Available,
    /// They are, but some fail.
    Degraded,
    /// They cannot be answered now.
    Unavailable,
}

impl HealthState {
    pub(crate) const fn to_abi(self) -> u32 {
        match self {
            Self::Unknown => QUOTA_HEALTH_UNKNOWN,
            Self::Available => QUOTA_HEALTH_AVAILABLE,
            Self::Degraded => QUOTA_HEALTH_DEGRADED,
            Self::Unavailable => QUOTA_HEALTH_UNAVAILABLE,
        }
    }
}

/// How an instance is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Whether checks are being answered.
    pub state: HealthState,
    /// Why the state is not available.
    pub reason: Option<Failure>,
    /// Checks not yet answered.
    pub inflight: u64,
    /// Buckets held in this process; 0 when the store is elsewhere.
    pub entries: u64,
    /// Most active buckets; 0 for no bound.
    pub capacity: u64,
    /// Since when the state holds, Unix milliseconds; 0 when unknown.
    pub since_unix_ms: u64,
    /// Text of the last error, free of secrets; may be empty.
    pub error: String,
}

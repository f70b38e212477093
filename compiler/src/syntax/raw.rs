//! The raw quota object: what a file says, field by field, with the place of everything. Nothing is judged but shape and
//! type, and a value whose shape was already reported is [`Given::Faulty`], so that no later check reports it again.

use serde_json::{Map, Value};

use crate::span::Span;
use crate::terms::{Enforcement, FailurePolicy};

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Spanned<T> {
    /// What the file says, as `serde_yaml` reads it.
    pub value: T,
    /// The value's place: where it is used, also through an alias.
    pub span: Span,
    /// Where the anchored value itself stands, when `span` is an alias.
    pub defined: Option<Span>,
}

/// A field of an object.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum Given<T> {
    /// Left out, or null where null means left out.
    #[default]
    Absent,
    /// Given, and already reported: treat it as neither right nor missing.
    Faulty,
    /// Given.
    Value {
        /// The field's name.
        key: Span,
        /// Its value.
        value: Spanned<T>,
    },
}

impl<T> Given<T> {
    /// The value, when there is a sound one.
    pub const fn value(&self) -> Option<&Spanned<T>> {
        match self {
            Self::Value { value, .. } => Some(value),
            Self::Absent | Self::Faulty => None,
        }
    }

    /// Whether the field was left out.
    pub const fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    /// Whether the field was given and reported.
    pub const fn is_faulty(&self) -> bool {
        matches!(self, Self::Faulty)
    }
}

/// The quota object.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct RawQuota {
    /// The whole object (empty for an empty file).
    pub span: Span,
    /// Path of the object in the file: empty, or `resilience.quota`.
    pub path: &'static str,
    /// Whether quota applies at all.
    pub enabled: Given<bool>,
    /// Whether decisions reject requests.
    pub enforcement: Given<Enforcement>,
    /// What happens to a request when no counter could be asked.
    pub backend_failure_policy: Given<FailurePolicy>,
    /// Where counters live.
    pub backend: Given<RawBackend>,
    /// Counters for when the backend does not answer; null is as good as left out.
    pub local_fallback: Given<RawFallback>,
    /// One entry for each item of the list; `None`: not an object, already reported.
    pub policies: Given<Vec<Option<Spanned<RawPolicy>>>>,
}

/// `backend`. Which fields are legal depends on the kind, so fields other than `kind` are kept in file order.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct RawBackend {
    /// The kind of backend; any word.
    pub kind: Given<String>,
    /// The namespace of its counters, not trimmed.
    pub key_prefix: Given<String>,
    /// File name or path of the library.
    pub plugin: Given<String>,
    /// The only content of the library accepted.
    pub plugin_sha256: Given<String>,
    /// Where the backend is reached; may hold a password.
    pub url: Given<String>,
    /// The most active buckets.
    pub max_entries: Given<u64>,
    /// Milliseconds one attempt to connect may take.
    pub connect_timeout_ms: Given<u64>,
    /// Milliseconds a request waits for one trip.
    pub command_timeout_ms: Given<u64>,
    /// Requests being evaluated at once.
    pub max_inflight: Given<u64>,
    /// Every other field with its name; the plugin's own options.
    pub other: Vec<RawOption>,
}

/// A field of `backend` the contract does not name.
#[derive(Clone, Debug, PartialEq)]
pub struct RawOption {
    /// The field's name.
    pub name: String,
    /// The name's place.
    pub key: Span,
    /// The value as JSON, read as `serde_yaml` reads an untyped value.
    pub value: Spanned<Value>,
    /// Places of the value's parts, by RFC 6901 pointer relative to the value (`""` is the value itself).
    pub places: Vec<(String, Span)>,
}

impl RawBackend {
    /// The other fields as one JSON object.
    pub fn options(&self) -> Map<String, Value> {
        self.other
            .iter()
            .map(|option| (option.name.clone(), option.value.value.clone()))
            .collect()
    }
}

/// `local_fallback`.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct RawFallback {
    /// The namespace of its counters, not trimmed.
    pub key_prefix: Given<String>,
    /// The most active buckets.
    pub max_entries: Given<u64>,
}

/// An entry of `policies`.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct RawPolicy {
    /// Its name, not trimmed.
    pub name: Given<String>,
    /// `None` entries are already reported.
    pub route_allowlist: Given<Vec<Option<Spanned<String>>>>,
    /// What identity it counts by.
    pub selector: Given<RawSelector>,
    /// The shorter window; null is as good as left out.
    pub burst: Given<RawWindow>,
    /// The longer window; null is as good as left out.
    pub sustained: Given<RawWindow>,
}

/// `policies[].selector`.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct RawSelector {
    /// Whether the route is part of the identity.
    pub route: Given<bool>,
    /// Source of the tenant; null is as good as left out.
    pub tenant: Given<RawSource>,
    /// Source of the token; null is as good as left out.
    pub token: Given<RawSource>,
    /// Source of the client; null is as good as left out.
    pub client: Given<RawSource>,
}

/// `{key: source}`.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct RawSource {
    /// The source as written; see `source_key`.
    pub key: Given<String>,
}

/// `{requests, window_secs}`.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct RawWindow {
    /// The limit, in requests.
    pub requests: Given<u64>,
    /// The length, in seconds.
    pub window_secs: Given<u64>,
}

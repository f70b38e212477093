//! The raw quota object: what a file says, field by field, with the place of everything. Nothing is judged but shape and
//! type, and a value whose shape was already reported is [`Given::Faulty`], so that no later check reports it again.

use serde_json::{Map, Value};

use crate::span::Span;
use crate::terms::{Enforcement, FailurePolicy};

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Spanned<T> {
    /// What the file says, as serde_yaml reads it.
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
    pub enabled: Given<bool>,
    pub enforcement: Given<Enforcement>,
    pub backend_failure_policy: Given<FailurePolicy>,
    pub backend: Given<RawBackend>,
    pub local_fallback: Given<RawFallback>,
    /// One entry for each item of the list; `None`: not an object, already reported.
    pub policies: Given<Vec<Option<Spanned<RawPolicy>>>>,
}

/// `backend`. Which fields are legal depends on the kind, so fields other than `kind` are kept in file order.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct RawBackend {
    pub kind: Given<String>,
    pub key_prefix: Given<String>,
    pub plugin: Given<String>,
    pub plugin_sha256: Given<String>,
    pub url: Given<String>,
    pub max_entries: Given<u64>,
    pub connect_timeout_ms: Given<u64>,
    pub command_timeout_ms: Given<u64>,
    pub max_inflight: Given<u64>,
    /// Every other field with its name; the plugin's own options.
    pub other: Vec<RawOption>,
}

/// A field of `backend` the contract does not name.
#[derive(Clone, Debug, PartialEq)]
pub struct RawOption {
    pub name: String,
    pub key: Span,
    /// The value as JSON, read as serde_yaml reads an untyped value.
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
    pub key_prefix: Given<String>,
    pub max_entries: Given<u64>,
}

/// An entry of `policies`.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct RawPolicy {
    pub name: Given<String>,
    /// `None` entries are already reported.
    pub route_allowlist: Given<Vec<Option<Spanned<String>>>>,
    pub selector: Given<RawSelector>,
    pub burst: Given<RawWindow>,
    pub sustained: Given<RawWindow>,
}

/// `policies[].selector`.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct RawSelector {
    pub route: Given<bool>,
    pub tenant: Given<RawSource>,
    pub token: Given<RawSource>,
    pub client: Given<RawSource>,
}

/// `{key: source}`.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct RawSource {
    pub key: Given<String>,
}

/// `{requests, window_secs}`.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct RawWindow {
    pub requests: Given<u64>,
    pub window_secs: Given<u64>,
}

//! Backend and fallback settings: the same in the checked IR and in the program, which only carry them to the runtime.

use std::fmt;
use std::num::NonZeroU64;

use serde_json::{Map, Value};

/// The kind linked into every runtime.
pub const IN_MEMORY: &str = "in_memory";
/// The kind that shares counters through Redis.
pub const REDIS: &str = "redis";

/// `backend.key_prefix` where the file names none.
pub const DEFAULT_KEY_PREFIX: &str = "impulse:quota";
/// `local_fallback.key_prefix` where the file names none.
pub const DEFAULT_FALLBACK_KEY_PREFIX: &str = "impulse:quota:fallback";
/// `backend.max_entries` where the file names none, in active buckets.
pub const DEFAULT_MAX_ENTRIES: NonZeroU64 = NonZeroU64::new(4096).unwrap();
/// `backend.connect_timeout_ms` where the file names none.
pub const DEFAULT_CONNECT_TIMEOUT_MS: NonZeroU64 = NonZeroU64::new(250).unwrap();
/// `backend.command_timeout_ms` where the file names none.
pub const DEFAULT_COMMAND_TIMEOUT_MS: NonZeroU64 = NonZeroU64::new(100).unwrap();
/// `backend.max_inflight` where the file names none, in requests.
pub const DEFAULT_MAX_INFLIGHT: NonZeroU64 = NonZeroU64::new(1024).unwrap();

/// What stands in the place of a secret.
pub const HIDDEN: &str = "***";

/// The primary backend of a policy file (contract §2).
#[derive(Clone, PartialEq)]
pub struct BackendSettings {
    /// `in_memory`, `redis` or a third party's kind.
    pub kind: Box<str>,
    /// The namespace of its counters; trimmed, never blank.
    pub key_prefix: Box<str>,
    /// What depends on where the counters live.
    pub place: BackendPlace,
    /// `backend.plugin`: file name or absolute path of the library.
    pub plugin: Option<Box<str>>,
    /// `backend.plugin_sha256`: the only content of the library accepted.
    pub plugin_sha256: Option<[u8; 32]>,
    /// The plugin's own options, those of the file's `backend` mapping that are not listed above (`url` included).
    /// May hold credentials: never shown, and kept out of the program digest as [`BackendSettings::public_options`] says.
    pub options: Map<String, Value>,
}

/// Where a backend keeps its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendPlace {
    /// In this process.
    Local {
        /// The most active buckets (contract §7).
        max_entries: NonZeroU64,
    },
    /// Behind a connection.
    Remote {
        /// Milliseconds one attempt to connect may take.
        connect_timeout_ms: NonZeroU64,
        /// Milliseconds a request waits for one trip.
        command_timeout_ms: NonZeroU64,
        /// Requests being evaluated at once.
        max_inflight: NonZeroU64,
    },
}

impl Default for BackendSettings {
    /// The backend of a file that names none: `{kind: in_memory}`.
    fn default() -> Self {
        Self {
            kind: IN_MEMORY.into(),
            key_prefix: DEFAULT_KEY_PREFIX.into(),
            place: BackendPlace::Local {
                max_entries: DEFAULT_MAX_ENTRIES,
            },
            plugin: None,
            plugin_sha256: None,
            options: Map::new(),
        }
    }
}

impl fmt::Debug for BackendSettings {
    /// Without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendSettings")
            .field("kind", &self.kind)
            .field("key_prefix", &self.key_prefix)
            .field("place", &self.place)
            .field("plugin", &self.plugin)
            .field("plugin_sha256", &self.plugin_sha256)
            .field("options", &self.public_options())
            .finish()
    }
}

impl BackendSettings {
    /// Whether the backend lies behind a connection, so that it may have a local fallback.
    #[must_use]
    pub const fn is_remote(&self) -> bool {
        matches!(self.place, BackendPlace::Remote { .. })
    }

    /// The plugin's own options as they may be shown, at any depth: no user names and passwords in URLs, [`HIDDEN`] for what
    /// has a secret's name; fields sorted, whatever their order in the file.
    #[must_use]
    pub fn public_options(&self) -> Map<String, Value> {
        public_fields(&self.options)
    }
}

fn public_fields(fields: &Map<String, Value>) -> Map<String, Value> {
    let mut public: Map<_, _> = fields
        .iter()
        .map(|(name, value)| {
            let value = if is_secret_name(name) {
                HIDDEN.into()
            } else {
                public_value(value)
            };
            (name.clone(), value)
        })
        .collect();
    public.sort_keys();
    public
}

fn public_value(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(url_without_credentials(text)),
        Value::Array(items) => items.iter().map(public_value).collect(),
        Value::Object(fields) => Value::Object(public_fields(fields)),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// Parts of option names whose values are never shown.
const SECRET_NAMES: &[&str] = &["pass", "secret", "token", "credential", "private_key"];

/// Whether the value of the backend option `name` is a secret as a whole.
pub(crate) fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_NAMES.iter().any(|part| name.contains(part))
}

/// `text` without the user name, password and query password of the URL it may be; any other text as it is.
///
/// Everything between `://` and the last `@` before the path goes, even where the URL does not parse: a mistyped URL must
/// not show its password either.
#[must_use]
pub fn url_without_credentials(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    let authority_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    // A password that holds an unescaped `/` still ends at an `@`: take the last one of the whole text then.
    let (before, after) = rest.split_at(authority_end);
    let bare = match (before.rfind('@'), after.rfind('@')) {
        (_, Some(at)) if !scheme.contains("unix") && !after.contains('?') => {
            after.get(at + 1..).unwrap_or("").to_owned()
        }
        (Some(at), _) => format!("{}{after}", before.get(at + 1..).unwrap_or("")),
        (None, _) => rest.to_owned(),
    };
    let (path, query) = bare
        .split_once('?')
        .map_or((bare.as_str(), None), |(path, query)| (path, Some(query)));
    let query = query.map(|query| {
        query
            .split('&')
            .filter(|pair| {
                let name = pair.split('=').next().unwrap_or("");
                !name.eq_ignore_ascii_case("pass")
                    && !name.eq_ignore_ascii_case("password")
                    && !name.eq_ignore_ascii_case("user")
            })
            .collect::<Vec<_>>()
            .join("&")
    });
    match query {
        Some(query) if !query.is_empty() => format!("{scheme}://{path}?{query}"),
        _ => format!("{scheme}://{path}"),
    }
}

/// `local_fallback` of a policy file: bounded counters of this process, for when a remote backend times out or cannot be
/// reached (contract §7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FallbackSettings {
    /// The namespace of its counters; trimmed, never blank.
    pub key_prefix: Box<str>,
    /// The most active buckets.
    pub max_entries: NonZeroU64,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(url: &str, expected: &str) {
        assert_eq!(url_without_credentials(url), expected);
    }

    #[test]
    fn credentials_leave_urls() {
        check("redis://h:6379/1", "redis://h:6379/1");
        check("redis://user:pass@h:6379/1", "redis://h:6379/1");
        check("rediss://:p@ss@h", "rediss://h");
        check("redis://:a/b@h/0", "redis://h/0");
        check(
            "redis+unix:///run/r.sock?db=1&pass=x&user=y",
            "redis+unix:///run/r.sock?db=1",
        );
        check("not a url", "not a url");
    }

    #[test]
    fn public_options_are_sorted_and_hold_no_secret() {
        let options = json!({
            "url": "redis://user:pass@h/0",
            "tls": { "private_key_pem": "-----BEGIN", "ca": "ca.pem" },
            "Password": ["a"],
            "nodes": ["redis://:p@a", { "b": 1, "a": "x" }],
        });
        let Value::Object(options) = options else {
            unreachable!("it is written as an object")
        };
        let settings = BackendSettings {
            options,
            ..BackendSettings::default()
        };
        assert_eq!(
            Value::Object(settings.public_options()).to_string(),
            r#"{"Password":"***","nodes":["redis://a",{"a":"x","b":1}],"tls":{"ca":"ca.pem","private_key_pem":"***"},"url":"redis://h/0"}"#
        );
        let debug = format!("{settings:?}");
        assert!(
            !debug.contains("pass@") && !debug.contains("BEGIN"),
            "{debug}"
        );
    }
}

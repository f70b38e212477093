//! The second reader: `serde_yaml` itself, into structs that mirror the quota object attribute by attribute. It runs on every
//! file that comes as far, and both must agree: what we accept, `serde_yaml` accepts with the same values, and what it accepts
//! we refuse only on purpose.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::document::IMPULSE_PATH;
use super::raw::{
    Given, RawBackend, RawFallback, RawPolicy, RawQuota, RawSelector, RawSource, RawWindow, Spanned,
};
use crate::codes::{self, Code};
use crate::diagnostic::Diagnostic;
use crate::span::{PolicyText, Span};
use crate::terms::{Enforcement, FailurePolicy};

/// A code of ours for a file that `serde_yaml` accepts.
#[derive(Clone, Copy, Debug)]
pub struct Stricter {
    /// The code.
    pub code: &'static Code,
    /// Why the file is refused.
    pub reason: &'static str,
}

/// Where we are stricter than `serde_yaml` on purpose. Nothing else is refused that `serde_yaml` accepts.
pub static STRICTER: &[Stricter] = &[
    Stricter {
        code: &codes::TEXT_TOO_LARGE,
        reason: "a policy file has no use for megabytes, and places are 32 bits",
    },
    Stricter {
        code: &codes::CONTROL_CHARACTER,
        reason: "a byte order mark inside a text is invisible and becomes part of a name",
    },
    Stricter {
        code: &codes::NESTED_TOO_DEEP,
        reason: "serde_yaml limits the depth of what it keeps; we limit that of every list and mapping, before reading on",
    },
    Stricter {
        code: &codes::TOO_MANY_EVENTS,
        reason: "bounds time and memory",
    },
    Stricter {
        code: &codes::TOO_MANY_DIRECTIVES,
        reason: "the scanner takes quadratic time over `%TAG` lines",
    },
    Stricter {
        code: &codes::TWO_QUOTA_OBJECTS,
        reason: "serde_yaml would read one of the two and never mention the other",
    },
    Stricter {
        code: &codes::NO_QUOTA_OBJECT,
        reason: "a file without a quota object would read as quota switched off",
    },
    Stricter {
        code: &codes::MERGE_KEY,
        reason: "serde_yaml does not merge: the fields behind `<<` would be lost",
    },
    Stricter {
        code: &codes::READERS_DISAGREE,
        reason: "where an anchor is given twice, serde_yaml takes some aliases for another anchor's value",
    },
    Stricter {
        code: &codes::UNEXPANDED_VARIABLE,
        reason: "nobody means the characters `${…}` themselves",
    },
];

/// Holds what we read of `text` against what `serde_yaml` reads: the fault to add, if they disagree.
pub(super) fn disagreement(
    text: &PolicyText,
    raw: &RawQuota,
    found: &[Diagnostic],
) -> Option<Diagnostic> {
    let theirs = if raw.path == IMPULSE_PATH {
        read::<File>(text.as_str()).map(|file| file.resilience.quota)
    } else {
        read::<Quota>(text.as_str())
    };
    let mut errors = found.iter().filter(|fault| fault.is_error()).peekable();
    match theirs {
        Ok(theirs) if errors.peek().is_none() => (Quota::of(raw) != theirs).then(|| {
            disagree(
                raw.span,
                "both readers accept the file, with different values",
            )
        }),
        Ok(_) => errors
            .find(|error| !STRICTER.iter().any(|stricter| stricter.code == error.code))
            .map(|error| {
                let message = format!("serde_yaml accepts what {} refuses", error.code.id);
                disagree(error.span, message)
            }),
        Err(_) if errors.peek().is_some() => None,
        Err(error) => {
            let at = error
                .location()
                .and_then(|location| u32::try_from(location.index()).ok())
                .unwrap_or(raw.span.start);
            // serde_yaml's words may quote any value.
            let message = if text.shown() == text.as_str() {
                format!("serde_yaml refuses the file: {error}")
            } else {
                "serde_yaml refuses the file".to_owned()
            };
            Some(disagree(Span::at(at), message))
        }
    }
}

fn disagree(place: Span, message: impl Into<String>) -> Diagnostic {
    Diagnostic::new(&codes::READERS_DISAGREE, "", place, message).with_help(
        "write this part in another way; please report the file as a fault of the compiler",
    )
}

fn read<T: DeserializeOwned>(text: &str) -> Result<T, serde_yaml::Error> {
    serde_yaml::from_str(text)
}

/// An Impulse configuration, as far as it concerns us.
#[derive(Deserialize)]
struct File {
    resilience: Resilience,
}

#[derive(Deserialize)]
struct Resilience {
    quota: Quota,
}

/// Every field is `None` when it is left out, whatever its default, so that presence is compared too. `present` keeps null
/// from being as good as absent.
#[derive(Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Quota {
    #[serde(default, deserialize_with = "present")]
    enabled: Option<bool>,
    #[serde(default, deserialize_with = "present")]
    enforcement: Option<EnforcementWord>,
    #[serde(default, deserialize_with = "present")]
    backend_failure_policy: Option<FailurePolicyWord>,
    #[serde(default, deserialize_with = "present")]
    backend: Option<Backend>,
    local_fallback: Option<Fallback>,
    #[serde(default, deserialize_with = "present")]
    policies: Option<Vec<Policy>>,
}

#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum EnforcementWord {
    Enforce,
    Shadow,
}

#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum FailurePolicyWord {
    FailOpen,
    FailClosed,
}

#[derive(Default, PartialEq)]
struct Backend {
    strings: BTreeMap<&'static str, String>,
    integers: BTreeMap<&'static str, u64>,
    other: BTreeMap<String, Value>,
}

#[derive(Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Fallback {
    #[serde(default, deserialize_with = "present")]
    key_prefix: Option<String>,
    max_entries: u64,
}

#[derive(Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Policy {
    name: String,
    #[serde(default, deserialize_with = "present")]
    route_allowlist: Option<Vec<String>>,
    #[serde(default, deserialize_with = "present")]
    selector: Option<Selector>,
    burst: Option<Window>,
    sustained: Option<Window>,
}

#[derive(Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Selector {
    #[serde(default, deserialize_with = "present")]
    route: Option<bool>,
    tenant: Option<Source>,
    token: Option<Source>,
    client: Option<Source>,
}

#[derive(Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Source {
    key: String,
}

#[derive(Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Window {
    requests: u64,
    window_secs: u64,
}

fn present<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

/// Fields of `backend` that are strings and integers whatever the kind.
const BACKEND_STRINGS: &[&str] = &["kind", "key_prefix", "plugin", "plugin_sha256", "url"];
const BACKEND_INTEGERS: &[&str] = &[
    "max_entries",
    "connect_timeout_ms",
    "command_timeout_ms",
    "max_inflight",
];

// By hand: with `flatten` or a tag, serde would read every field untyped first, and integers as strings would differ.
impl<'de> Deserialize<'de> for Backend {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BackendVisitor;

        impl<'de> Visitor<'de> for BackendVisitor {
            type Value = Backend;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Backend, A::Error> {
                let known = |names: &[&'static str], name: &str| {
                    names.iter().copied().find(|known| *known == name)
                };
                let mut backend = Backend::default();
                while let Some(name) = map.next_key::<String>()? {
                    let given_twice = if let Some(known) = known(BACKEND_STRINGS, &name) {
                        backend.strings.insert(known, map.next_value()?).is_some()
                    } else if let Some(known) = known(BACKEND_INTEGERS, &name) {
                        backend.integers.insert(known, map.next_value()?).is_some()
                    } else {
                        let AnyValue(value) = map.next_value()?;
                        backend.other.insert(name, value).is_some()
                    };
                    if given_twice {
                        return Err(de::Error::custom("duplicate field"));
                    }
                }
                Ok(backend)
            }
        }

        deserializer.deserialize_map(BackendVisitor)
    }
}

/// A value of any type, as JSON. What JSON cannot say is refused, and so are fields given twice.
pub(super) struct AnyValue(pub(super) Value);

impl<'de> Deserialize<'de> for AnyValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyVisitor;

        impl<'de> Visitor<'de> for AnyVisitor {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value that JSON can express")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
                Ok(value.into())
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
                Ok(value.into())
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
                Ok(value.into())
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
                Number::from_f64(value)
                    .map(Value::Number)
                    .ok_or_else(|| E::custom("not a finite number"))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
                Ok(value.into())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
                let mut items = Vec::new();
                while let Some(AnyValue(item)) = list.next_element()? {
                    items.push(item);
                }
                Ok(Value::Array(items))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
                let mut fields = Map::new();
                while let Some(name) = map.next_key::<String>()? {
                    let AnyValue(value) = map.next_value()?;
                    if fields.insert(name, value).is_some() {
                        return Err(de::Error::custom("duplicate field"));
                    }
                }
                Ok(Value::Object(fields))
            }
        }

        deserializer.deserialize_any(AnyVisitor).map(Self)
    }
}

// What we read, in the shape of what serde_yaml reads. Only objects without a fault come here, so a faulty or missing part
// can stand for anything: it is left out, and a required one makes the whole object be left out, which differs.
impl Quota {
    fn of(raw: &RawQuota) -> Self {
        Self {
            enabled: value(&raw.enabled),
            enforcement: value(&raw.enforcement).map(|word| match word {
                Enforcement::Enforce => EnforcementWord::Enforce,
                Enforcement::Shadow => EnforcementWord::Shadow,
            }),
            backend_failure_policy: value(&raw.backend_failure_policy).map(|word| match word {
                FailurePolicy::FailOpen => FailurePolicyWord::FailOpen,
                FailurePolicy::FailClosed => FailurePolicyWord::FailClosed,
            }),
            backend: raw
                .backend
                .value()
                .map(|backend| Backend::of(&backend.value)),
            local_fallback: raw
                .local_fallback
                .value()
                .and_then(|fallback| Fallback::of(&fallback.value)),
            policies: raw
                .policies
                .value()
                .map(|policies| items(&policies.value, Policy::of)),
        }
    }
}

impl Backend {
    fn of(raw: &RawBackend) -> Self {
        let strings = [
            &raw.kind,
            &raw.key_prefix,
            &raw.plugin,
            &raw.plugin_sha256,
            &raw.url,
        ];
        let integers = [
            &raw.max_entries,
            &raw.connect_timeout_ms,
            &raw.command_timeout_ms,
            &raw.max_inflight,
        ];
        Self {
            strings: given(BACKEND_STRINGS, &strings),
            integers: given(BACKEND_INTEGERS, &integers),
            other: raw.options().into_iter().collect(),
        }
    }
}

impl Fallback {
    fn of(raw: &RawFallback) -> Option<Self> {
        Some(Self {
            key_prefix: value(&raw.key_prefix),
            max_entries: value(&raw.max_entries)?,
        })
    }
}

impl Policy {
    fn of(raw: &RawPolicy) -> Option<Self> {
        Some(Self {
            name: value(&raw.name)?,
            route_allowlist: raw
                .route_allowlist
                .value()
                .map(|routes| items(&routes.value, |route| Some(route.clone()))),
            selector: raw
                .selector
                .value()
                .map(|selector| Selector::of(&selector.value)),
            burst: raw
                .burst
                .value()
                .and_then(|window| Window::of(&window.value)),
            sustained: raw
                .sustained
                .value()
                .and_then(|window| Window::of(&window.value)),
        })
    }
}

impl Selector {
    fn of(raw: &RawSelector) -> Self {
        let source = |source: &Given<RawSource>| {
            let key = value(&source.value()?.value.key)?;
            Some(Source { key })
        };
        Self {
            route: value(&raw.route),
            tenant: source(&raw.tenant),
            token: source(&raw.token),
            client: source(&raw.client),
        }
    }
}

impl Window {
    fn of(raw: &RawWindow) -> Option<Self> {
        Some(Self {
            requests: value(&raw.requests)?,
            window_secs: value(&raw.window_secs)?,
        })
    }
}

fn value<T: Clone>(given: &Given<T>) -> Option<T> {
    given.value().map(|spanned| spanned.value.clone())
}

fn given<T: Clone>(names: &[&'static str], fields: &[&Given<T>]) -> BTreeMap<&'static str, T> {
    names
        .iter()
        .zip(fields)
        .filter_map(|(name, field)| Some((*name, value(field)?)))
        .collect()
}

fn items<T, U>(raw: &[Option<Spanned<T>>], of: impl Fn(&T) -> Option<U>) -> Vec<U> {
    raw.iter()
        .filter_map(|item| of(&item.as_ref()?.value))
        .collect()
}

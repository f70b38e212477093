//! Tree → raw quota object. Driven by tables of fields, never stops, and reads scalars as `scalar` says `serde_yaml` does.
//!
//! A required field that is missing is reported here, but for `backend.kind` and `backend.url`: which fields a backend needs
//! is a matter of its kind, and has codes of its own.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::events::MAX_DEPTH;
use super::misfit::{Expected, NotInteger, Unit, describe};
use super::nearest::nearest;
use super::quote::{listed, listed_or, quote, visible};
use super::raw::{
    Given, RawBackend, RawFallback, RawOption, RawPolicy, RawQuota, RawSelector, RawSource,
    RawWindow, Spanned,
};
use super::scalar::{self, Presence, Scalar, Untyped};
use super::secret;
use super::yaml::{Edge, Node, NodeId, NodeKind, Tree, Via};
use crate::codes::{self, Code};
use crate::diagnostic::{Diagnostic, Related};
use crate::settings::{is_secret_name, url_without_credentials};
use crate::span::{PolicyText, Span};
use crate::terms::{Enforcement, FailurePolicy};

/// How many aliases `serde_yaml` follows at most, for each event of the document.
const ALIASES_PER_EVENT: usize = 100;

/// Where a quota object stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Root {
    /// The object.
    pub(super) edge: Edge,
    /// Its path in the file: empty, or `resilience.quota`.
    pub(super) path: &'static str,
    /// Events of its document.
    pub(super) events: usize,
    /// Aliases followed on the way to it.
    pub(super) aliases: usize,
    /// Mappings around it.
    pub(super) depth: usize,
}

/// A field of an object that becomes a `T`.
struct Field<T> {
    name: &'static str,
    /// The field as one may write it, where it is required.
    required: Option<&'static str>,
    /// Sets the field to what was found, or to [`Given::Faulty`] for `None`.
    set: fn(&mut Decoder<'_>, &mut T, Option<Found<'_>>),
}

const QUOTA: &[Field<RawQuota>] = &[
    optional("enabled", |d, quota, found| {
        quota.enabled = d.given(found, Decoder::bool)
    }),
    optional("enforcement", |d, quota, found| {
        quota.enforcement = d.given(found, |d, found| {
            d.word(found, &Enforcement::ALL, Enforcement::as_str)
        });
    }),
    optional("backend_failure_policy", |d, quota, found| {
        quota.backend_failure_policy = d.given(found, |d, found| {
            d.word(found, &FailurePolicy::ALL, FailurePolicy::as_str)
        });
    }),
    optional("backend", |d, quota, found| {
        quota.backend = d.given(found, Decoder::backend)
    }),
    optional("local_fallback", |d, quota, found| {
        quota.local_fallback = d.given_or_null(found, |d, found| d.object(found, FALLBACK));
    }),
    optional("policies", |d, quota, found| {
        quota.policies = d.given(found, |d, found| {
            d.list(found, |d, item| d.object(item, POLICY))
        });
    }),
];

/// Every field of `backend` but those of the plugin's own.
const BACKEND: &[Field<RawBackend>] = &[
    optional("kind", |d, backend, found| {
        backend.kind = d.given(found, Decoder::string)
    }),
    optional("key_prefix", |d, backend, found| {
        backend.key_prefix = d.given(found, Decoder::string)
    }),
    optional("plugin", |d, backend, found| {
        backend.plugin = d.given(found, Decoder::string)
    }),
    optional("plugin_sha256", |d, backend, found| {
        backend.plugin_sha256 = d.given(found, Decoder::string)
    }),
    optional("url", |d, backend, found| {
        backend.url = d.given(found, Decoder::string)
    }),
    optional("max_entries", |d, backend, found| {
        backend.max_entries = d.given(found, Decoder::integer)
    }),
    optional("connect_timeout_ms", |d, backend, found| {
        backend.connect_timeout_ms = d.given(found, Decoder::integer);
    }),
    optional("command_timeout_ms", |d, backend, found| {
        backend.command_timeout_ms = d.given(found, Decoder::integer);
    }),
    optional("max_inflight", |d, backend, found| {
        backend.max_inflight = d.given(found, Decoder::integer)
    }),
];

const FALLBACK: &[Field<RawFallback>] = &[
    optional("key_prefix", |d, fallback, found| {
        fallback.key_prefix = d.given(found, Decoder::string)
    }),
    required("max_entries", "max_entries: 4096", |d, fallback, found| {
        fallback.max_entries = d.given(found, Decoder::integer)
    }),
];

const POLICY: &[Field<RawPolicy>] = &[
    required("name", "name: per-tenant", |d, policy, found| {
        policy.name = d.given(found, Decoder::string)
    }),
    optional("route_allowlist", |d, policy, found| {
        policy.route_allowlist = d.given(found, |d, found| d.list(found, Decoder::string));
    }),
    optional("selector", |d, policy, found| {
        policy.selector = d.given(found, Decoder::selector);
    }),
    optional("burst", |d, policy, found| {
        policy.burst = d.given_or_null(found, |d, found| d.object(found, WINDOW));
    }),
    optional("sustained", |d, policy, found| {
        policy.sustained = d.given_or_null(found, |d, found| d.object(found, WINDOW));
    }),
];

const SELECTOR: &[Field<RawSelector>] = &[
    optional("route", |d, selector, found| {
        selector.route = d.given(found, Decoder::bool)
    }),
    optional("tenant", |d, selector, found| {
        selector.tenant = d.source(found)
    }),
    optional("token", |d, selector, found| {
        selector.token = d.source(found)
    }),
    optional("client", |d, selector, found| {
        selector.client = d.source(found)
    }),
];

const SOURCE: &[Field<RawSource>] = &[required(
    "key",
    "key: \"header:x-tenant-id\"",
    |d, source, found| source.key = d.given(found, Decoder::string),
)];

const WINDOW: &[Field<RawWindow>] = &[
    required("requests", "requests: 10", |d, window, found| {
        window.requests = d.given(found, Decoder::integer)
    }),
    required("window_secs", "window_secs: 60", |d, window, found| {
        window.window_secs = d.given(found, Decoder::integer)
    }),
];

const fn optional<T>(
    name: &'static str,
    set: fn(&mut Decoder<'_>, &mut T, Option<Found<'_>>),
) -> Field<T> {
    Field {
        name,
        required: None,
        set,
    }
}

const fn required<T>(
    name: &'static str,
    example: &'static str,
    set: fn(&mut Decoder<'_>, &mut T, Option<Found<'_>>),
) -> Field<T> {
    Field {
        name,
        required: Some(example),
        set,
    }
}

/// The names of the quota object's own fields.
pub(super) fn quota_fields() -> impl Iterator<Item = &'static str> + Clone {
    names(QUOTA)
}

/// The names of `backend`'s fields that the contract lists, whatever the kind.
pub fn backend_fields() -> impl Iterator<Item = &'static str> + Clone {
    names(BACKEND)
}

fn names<T>(fields: &'static [Field<T>]) -> impl Iterator<Item = &'static str> + Clone {
    fields.iter().map(|field| field.name)
}

/// The quota object at `root`. List items inside `skipped` were taken out of the text and are reported already.
pub(super) fn decode(
    tree: &Tree,
    text: &mut PolicyText,
    root: Root,
    skipped: &[Span],
    diagnostics: &mut Vec<Diagnostic>,
) -> RawQuota {
    let mut decoder = Decoder {
        tree,
        text,
        skipped,
        diagnostics,
        prefix: root.path,
        path: Vec::new(),
        through: Vec::new(),
        reported: BTreeSet::new(),
        aliases: root.aliases,
        max_aliases: root.events * ALIASES_PER_EVENT,
        depth: root.depth,
        too_deep: false,
    };
    let quota = decoder.follow(root.edge, |d, found| {
        d.object(found, QUOTA).map(|quota| (quota, found.span))
    });
    match quota {
        Some((quota, span)) => RawQuota {
            span,
            path: root.path,
            ..quota
        },
        // Not an object: whatever it was to hold is faulty.
        None => {
            let mut quota = RawQuota {
                span: root.edge.span,
                path: root.path,
                ..RawQuota::default()
            };
            for field in QUOTA {
                (field.set)(&mut decoder, &mut quota, None);
            }
            quota
        }
    }
}

/// A value, its aliases followed.
#[derive(Clone, Copy)]
struct Found<'t> {
    id: NodeId,
    node: &'t Node,
    /// The name of the field it is the value of; empty for a list item.
    key: Span,
    /// Where it is used.
    span: Span,
    /// Where it stands, when it is used through an alias.
    defined: Option<Span>,
}

/// A step of a field path.
enum Step {
    Field(String),
    Item(usize),
}

impl Step {
    fn name(&self) -> Option<&str> {
        match self {
            Self::Field(name) => Some(name),
            Self::Item(_) => None,
        }
    }
}

struct Decoder<'a> {
    tree: &'a Tree,
    text: &'a mut PolicyText,
    skipped: &'a [Span],
    diagnostics: &'a mut Vec<Diagnostic>,
    prefix: &'static str,
    path: Vec<Step>,
    /// The aliases being followed.
    through: Vec<Span>,
    /// What was said about which node, so that a node used twice is reported once.
    reported: BTreeSet<(&'static str, NodeId, String)>,
    aliases: usize,
    max_aliases: usize,
    depth: usize,
    /// Whether nesting too deep was reported.
    too_deep: bool,
}

impl<'a> Decoder<'a> {
    /// A field whose value `read` makes.
    fn given<T>(
        &mut self,
        found: Option<Found<'_>>,
        read: impl FnOnce(&mut Self, Found<'_>) -> Option<T>,
    ) -> Given<T> {
        let Some(found) = found else {
            return Given::Faulty;
        };
        read(self, found).map_or(Given::Faulty, |value| Given::Value {
            key: found.key,
            value: Spanned {
                value,
                span: found.span,
                defined: found.defined,
            },
        })
    }

    /// As [`Decoder::given`], but null is as good as leaving the field out.
    fn given_or_null<T>(
        &mut self,
        found: Option<Found<'_>>,
        read: impl FnOnce(&mut Self, Found<'_>) -> Option<T>,
    ) -> Given<T> {
        match found.map(|found| (found, scalar::scalar(found.node).map(Scalar::presence))) {
            Some((_, Some(Presence::Null))) => Given::Absent,
            Some((found, Some(Presence::NotNull))) => {
                let written = describe(found.node);
                self.report(
                    &codes::WRONG_TYPE,
                    found,
                    format!("the tag `!!null` stands on {written}"),
                )
                .help(TAG_HELP);
                Given::Faulty
            }
            Some((found, Some(Presence::Present) | None)) => self.given(Some(found), read),
            None => Given::Faulty,
        }
    }

    fn source(&mut self, found: Option<Found<'_>>) -> Given<RawSource> {
        self.given_or_null(found, |d, found| d.object(found, SOURCE))
    }

    /// An object with the fields of a table.
    fn object<T: Default>(&mut self, found: Found<'_>, fields: &'static [Field<T>]) -> Option<T> {
        self.object_with(found, fields, |d, _, name, key, _| {
            Vec::from_iter(d.unknown_field(name, key, fields))
        })
    }

    fn selector(&mut self, found: Found<'_>) -> Option<RawSelector> {
        self.object_with(found, SELECTOR, |d, _, name, key, _| {
            let meant = d.unknown_field(name, key, SELECTOR);
            // Every field of a selector is a dimension, so one of them was meant.
            meant.map_or_else(|| names(SELECTOR).collect(), |meant| vec![meant])
        })
    }

    /// An object with the fields of a table; `other` is handed every field that is not in it, and says which ones it has
    /// reported it to be meant as.
    fn object_with<T: Default>(
        &mut self,
        found: Found<'_>,
        fields: &'static [Field<T>],
        mut other: impl FnMut(&mut Self, &mut T, &str, Found<'a>, Edge) -> Vec<&'static str>,
    ) -> Option<T> {
        let pairs = self.pairs(found, fields)?;
        let mut object = T::default();
        let mut seen: Vec<Option<Span>> = vec![None; fields.len()];
        // Fields that some unknown one was surely meant to be.
        let mut meant: Vec<&str> = Vec::new();
        // Whatever is not given may have been meant to come from there.
        let mut has_merge_key = false;
        for (key, value) in pairs {
            let Some((name, key)) = self.key(*key) else {
                continue;
            };
            if self.is_merge_key(name, key) {
                has_merge_key = true;
                continue;
            }
            let known = fields
                .iter()
                .zip(&mut seen)
                .find(|(field, _)| field.name == name);
            self.path.push(Step::Field(name.to_owned()));
            if let Some((field, seen)) = known {
                if let Some(first) = *seen {
                    self.duplicate(name, key, first);
                    // Its faults count too, but the first one is the field.
                    let mut second = T::default();
                    self.follow_field(key.span, *value, &mut second, field);
                } else {
                    *seen = Some(key.span);
                    self.follow_field(key.span, *value, &mut object, field);
                }
            } else {
                meant.extend(other(self, &mut object, name, key, *value));
            }
            self.path.pop();
        }
        for (field, seen) in fields.iter().zip(seen) {
            if seen.is_some() {
                continue;
            }
            let excused = found.node.truncated || has_merge_key || meant.contains(&field.name);
            match field.required {
                Some(example) if !excused => self.missing(found, field.name, example),
                Some(_) | None => {}
            }
            if field.required.is_some() || excused {
                (field.set)(self, &mut object, None);
            }
        }
        self.depth -= 1;
        Some(object)
    }

    /// Sets `field` of `object` to the value of `edge`.
    fn follow_field<T>(&mut self, key: Span, edge: Edge, object: &mut T, field: &Field<T>) {
        let done = self.follow(edge, |d, found| {
            (field.set)(d, object, Some(Found { key, ..found }));
            Some(())
        });
        if done.is_none() {
            (field.set)(self, object, None);
        }
    }

    /// The pairs of a mapping, one level deeper. Nothing at all is an empty mapping, as `serde_yaml` has it.
    fn pairs<T>(
        &mut self,
        found: Found<'_>,
        fields: &'static [Field<T>],
    ) -> Option<&'a [(Edge, Edge)]> {
        let tree = self.tree;
        let pairs: &[(Edge, Edge)] = match &tree.node(found.id).kind {
            NodeKind::Mapping(pairs) => pairs,
            NodeKind::Scalar { .. } if found.node.is_nothing() => &[],
            NodeKind::Scalar { .. } | NodeKind::Sequence(_) => {
                self.wrong_type(found, &Expected::Mapping(names(fields).collect()));
                return None;
            }
        };
        self.enter(found).then_some(pairs)
    }

    /// Goes one level deeper, unless that is too deep. The caller leaves by counting `depth` down.
    fn enter(&mut self, found: Found<'_>) -> bool {
        if self.depth >= MAX_DEPTH {
            // Aliases make one nest of many, each with a deepest place of its own.
            if !self.too_deep {
                self.too_deep = true;
                self.report(&codes::NESTED_TOO_DEEP, found, nested_too_deep())
                    .help(NESTED_TOO_DEEP_HELP);
            }
            return false;
        }
        self.depth += 1;
        true
    }

    /// The name of a field, and the key as a value to point at.
    fn key(&mut self, edge: Edge) -> Option<(&'a str, Found<'a>)> {
        let found = self.resolve(edge)?;
        if let Some(scalar) = scalar::scalar(found.node) {
            return Some((scalar.value, found));
        }
        let written = describe(found.node);
        self.report(
            &codes::WRONG_TYPE,
            found,
            format!("the name of a field must be a word, not {written}"),
        )
        .help(FIELD_NAME_HELP);
        None
    }

    /// Reports the merge key.
    fn is_merge_key(&mut self, name: &str, key: Found<'_>) -> bool {
        if name == "<<" {
            self.path.push(Step::Field(name.to_owned()));
            self.report(&codes::MERGE_KEY, key, MERGE_KEY_MESSAGE)
                .help(MERGE_KEY_HELP);
            self.path.pop();
        }
        name == "<<"
    }

    fn duplicate(&mut self, name: &str, key: Found<'_>, first: Span) {
        self.report(
            &codes::DUPLICATE_FIELD,
            key,
            format!("the field {} is given twice", quote(name)),
        )
        .related(first, "first given here")
        .help("keep one of them");
    }

    /// Reports a field that is not in the table, and says which one it was meant to be.
    fn unknown_field<T>(
        &mut self,
        name: &str,
        key: Found<'_>,
        fields: &'static [Field<T>],
    ) -> Option<&'static str> {
        let meant = nearest(name, names(fields));
        let message = format!("there is no field {} here", quote(name));
        let help = match meant {
            Some(meant) => format!("did you mean `{meant}`?"),
            None if quota_fields().any(|field| field == name) => {
                format!("`{name}` stands in the quota object itself, and holds for all of it")
            }
            None => format!("the fields are {}", listed(names(fields))),
        };
        self.report(&codes::UNKNOWN_FIELD, key, message).help(help);
        meant
    }

    fn missing(&mut self, found: Found<'_>, name: &'static str, example: &str) {
        self.path.push(Step::Field(name.to_owned()));
        let place = first_line(self.text, found.span);
        let found = Found {
            span: place,
            ..found
        };
        self.report(
            &codes::MISSING_FIELD,
            found,
            format!("the field `{name}` is missing"),
        )
        .help(format!("add it, such as `{example}`"));
        self.path.pop();
    }

    /// A list whose items `read` makes.
    fn list<T>(
        &mut self,
        found: Found<'_>,
        mut read: impl FnMut(&mut Self, Found<'_>) -> Option<T>,
    ) -> Option<Vec<Option<Spanned<T>>>> {
        let tree = self.tree;
        let items: &[Edge] = match &tree.node(found.id).kind {
            NodeKind::Sequence(items) => items,
            NodeKind::Scalar { .. } if found.node.is_nothing() => &[],
            NodeKind::Scalar { .. } | NodeKind::Mapping(_) => {
                self.wrong_type(found, &Expected::List);
                return None;
            }
        };
        if !self.enter(found) {
            return None;
        }
        let mut list = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            if self
                .skipped
                .iter()
                .any(|skipped| skipped.contains(item.span))
            {
                list.push(None);
                continue;
            }
            self.path.push(Step::Item(index));
            list.push(self.follow(*item, |d, found| {
                read(d, found).map(|value| Spanned {
                    value,
                    span: found.span,
                    defined: found.defined,
                })
            }));
            self.path.pop();
        }
        if found.node.truncated {
            // The items that were not read.
            list.push(None);
        }
        self.depth -= 1;
        Some(list)
    }

    fn string(&mut self, found: Found<'_>) -> Option<String> {
        let Some(scalar) = scalar::scalar(found.node) else {
            self.wrong_type(found, &Expected::String);
            return None;
        };
        (!self.is_variable(found, scalar.value)).then(|| scalar.value.to_owned())
    }

    fn bool(&mut self, found: Found<'_>) -> Option<bool> {
        let value = scalar::scalar(found.node).and_then(Scalar::as_bool);
        if value.is_none() {
            self.wrong_type(found, &Expected::Bool);
        }
        value
    }

    fn integer(&mut self, found: Found<'_>) -> Option<u64> {
        let scalar = scalar::scalar(found.node);
        let value = scalar.and_then(Scalar::as_u64);
        if value.is_none() {
            let unit = Unit::of(self.path.last().and_then(Step::name));
            match scalar.and_then(|scalar| NotInteger::of(scalar, unit)) {
                Some(fault) if !has_variable(fault.text) => {
                    let message = format!("{} is {}", quote(fault.text), fault.what);
                    self.report(&codes::NOT_AN_INTEGER, found, message)
                        .help(fault.help);
                }
                Some(_) | None => self.wrong_type(found, &Expected::Integer(unit)),
            }
        }
        value
    }

    fn word<T: Copy + Default>(
        &mut self,
        found: Found<'_>,
        words: &[T],
        as_str: fn(T) -> &'static str,
    ) -> Option<T> {
        let spellings = words.iter().map(|word| as_str(*word));
        let all = listed_or(spellings.clone());
        let Some(scalar) = scalar::scalar(found.node) else {
            self.wrong_type(found, &Expected::Word(all));
            return None;
        };
        if self.is_variable(found, scalar.value) {
            return None;
        }
        let written = scalar.as_word();
        let value = words
            .iter()
            .copied()
            .find(|word| Some(as_str(*word)) == written);
        if value.is_some() {
            return value;
        }
        let message = match written {
            Some("") => format!("a word is missing here; it must be {all}"),
            Some(word) => format!("{} is not {all}", quote(word)),
            None => format!(
                "the tag {} stands before {}, and can be a word only where nothing follows",
                quote(&format!("!{}", scalar.local_tag().unwrap_or_default())),
                describe(found.node)
            ),
        };
        let meant = written
            .or_else(|| scalar.local_tag())
            .and_then(|word| nearest(word, spellings));
        let help = match meant {
            Some(meant) if written.is_some() => format!("did you mean `{meant}`?"),
            Some(meant) => format!("write `{meant}`"),
            None => format!(
                "write {all}, or leave the field out for `{}`",
                as_str(T::default())
            ),
        };
        self.report(&codes::UNKNOWN_WORD, found, message).help(help);
        None
    }

    fn backend(&mut self, found: Found<'_>) -> Option<RawBackend> {
        let edge = Edge {
            node: found.id,
            span: found.span,
            via: Via::Itself,
        };
        secret::hide_in_backend(self.text, self.tree, edge);
        let mut seen: BTreeMap<String, Span> = BTreeMap::new();
        self.object_with(
            found,
            BACKEND,
            |d, backend: &mut RawBackend, name, key, value| {
                if let Some(first) = seen.get(name) {
                    d.duplicate(name, key, *first);
                    return Vec::new();
                }
                seen.insert(name.to_owned(), key.span);
                let mut places = Vec::new();
                let option = d.follow(value, |d, found| {
                    let value = d.any(found, "", &mut places)?;
                    Some(RawOption {
                        name: name.to_owned(),
                        key: key.span,
                        value: Spanned {
                            value,
                            span: found.span,
                            defined: found.defined,
                        },
                        places: Vec::new(),
                    })
                });
                backend
                    .other
                    .extend(option.map(|option| RawOption { places, ..option }));
                // Whether it is an option of the plugin's or a slip is for the checks to say.
                Vec::new()
            },
        )
    }

    /// A value of any type, at the RFC 6901 `pointer` of an option.
    fn any(
        &mut self,
        found: Found<'_>,
        pointer: &str,
        places: &mut Vec<(String, Span)>,
    ) -> Option<Value> {
        places.push((pointer.to_owned(), found.span));
        let tree = self.tree;
        let node = tree.node(found.id);
        if let Some(scalar) = scalar::scalar(node) {
            return self.any_scalar(found, scalar);
        }
        if let Some(tag) = scalar::local_tag(node.tag.as_deref()) {
            let message = format!("the tag {} has no meaning here", quote(&format!("!{tag}")));
            self.report(&codes::WRONG_TYPE, found, message)
                .help(TAG_HELP);
            return None;
        }
        if !self.enter(found) {
            return None;
        }
        let value = match &node.kind {
            NodeKind::Sequence(items) => self.any_list(items, pointer, places),
            NodeKind::Mapping(pairs) => self.any_mapping(pairs, pointer, places),
            NodeKind::Scalar { .. } => None,
        };
        self.depth -= 1;
        value
    }

    fn any_list(
        &mut self,
        items: &[Edge],
        pointer: &str,
        places: &mut Vec<(String, Span)>,
    ) -> Option<Value> {
        let mut values = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            self.path.push(Step::Item(index));
            let pointer = format!("{pointer}/{index}");
            values.push(self.follow(*item, |d, found| d.any(found, &pointer, places)));
            self.path.pop();
        }
        values
            .into_iter()
            .collect::<Option<Vec<Value>>>()
            .map(Value::Array)
    }

    fn any_mapping(
        &mut self,
        pairs: &'a [(Edge, Edge)],
        pointer: &str,
        places: &mut Vec<(String, Span)>,
    ) -> Option<Value> {
        let mut fields = Map::new();
        let mut keys: BTreeMap<&str, Span> = BTreeMap::new();
        let mut sound = true;
        for (key, value) in pairs {
            let Some((name, key)) = self.key(*key) else {
                sound = false;
                continue;
            };
            if self.is_merge_key(name, key) {
                sound = false;
                continue;
            }
            self.path.push(Step::Field(name.to_owned()));
            if let Some(first) = keys.get(name) {
                self.duplicate(name, key, *first);
                sound = false;
            } else {
                keys.insert(name, key.span);
                let escaped = name.replace('~', "~0").replace('/', "~1");
                let pointer = format!("{pointer}/{escaped}");
                match self.follow(*value, |d, found| d.any(found, &pointer, places)) {
                    Some(value) => {
                        fields.insert(name.to_owned(), value);
                    }
                    None => sound = false,
                }
            }
            self.path.pop();
        }
        sound.then_some(Value::Object(fields))
    }

    fn any_scalar(&mut self, found: Found<'_>, scalar: Scalar<'_>) -> Option<Value> {
        if self.is_variable(found, scalar.value) {
            return None;
        }
        let (message, help) = match scalar.as_any() {
            Ok(value) => return Some(value),
            Err(Untyped::LocalTag) => {
                let tag = quote(&format!("!{}", scalar.local_tag().unwrap_or("")));
                (format!("the tag {tag} has no meaning here"), TAG_HELP)
            }
            // The value may be a secret.
            Err(Untyped::NotOfTag(tag)) => {
                (format!("the tag `{tag}` stands on another value"), TAG_HELP)
            }
            Err(Untyped::TooLarge) => (
                "the number is beyond 64 bits".to_owned(),
                "quote it where it is a string",
            ),
            Err(Untyped::NotFinite) => (
                "options take finite numbers only".to_owned(),
                "quote it where it is a string",
            ),
        };
        self.report(&codes::WRONG_TYPE, found, message).help(help);
        None
    }

    /// Reports a value that is not `expected`.
    fn wrong_type(&mut self, found: Found<'_>, expected: &Expected) {
        let scalar = scalar::scalar(found.node);
        if scalar.is_some_and(|scalar| self.is_variable(found, scalar.value)) {
            return;
        }
        let message = if found.node.is_nothing() {
            format!("a value is missing here; it must be {expected}")
        } else {
            format!("this must be {expected}, not {}", describe(found.node))
        };
        let span = first_line(self.text, found.span);
        self.report(&codes::WRONG_TYPE, Found { span, ..found }, message)
            .help(expected.help(found.node));
    }

    /// Reports `${…}` in `value`.
    fn is_variable(&mut self, found: Found<'_>, value: &str) -> bool {
        let Some(variable) = variable(value) else {
            return false;
        };
        let within_secret = self
            .path
            .iter()
            .any(|step| matches!(step, Step::Field(name) if is_secret_name(name)));
        // Braces may also be part of a password. `token` is a selector's dimension, where nothing is lost.
        let shown = if within_secret || !url_without_credentials(value).contains(variable) {
            "`${…}`".to_owned()
        } else {
            quote(variable)
        };
        self.report(
            &codes::UNEXPANDED_VARIABLE,
            found,
            format!("{shown} is not expanded"),
        )
        .help(VARIABLE_HELP);
        true
    }

    /// Follows `edge` and has `read` make something of the value.
    fn follow<T>(
        &mut self,
        edge: Edge,
        read: impl FnOnce(&mut Self, Found<'a>) -> Option<T>,
    ) -> Option<T> {
        let found = self.resolve(edge)?;
        let through = self.through.len();
        if found.defined.is_some() {
            self.through.push(found.span);
        }
        let value = read(self, found);
        self.through.truncate(through);
        value
    }

    /// The value at the end of `edge`; `None`, and reported, where there is none to be had.
    fn resolve(&mut self, edge: Edge) -> Option<Found<'a>> {
        let tree = self.tree;
        let node = tree.node(edge.node);
        let found = Found {
            id: edge.node,
            node,
            key: Span::at(edge.span.start),
            span: edge.span,
            defined: (edge.via != Via::Itself).then_some(node.span),
        };
        match edge.via {
            Via::Itself => Some(found),
            Via::Unknown => None,
            Via::Alias => {
                self.aliases += 1;
                if self.aliases <= self.max_aliases {
                    return Some(found);
                }
                if self.aliases == self.max_aliases + 1 {
                    let message = format!(
                        "the aliases of this file stand for more than {} values",
                        self.max_aliases
                    );
                    self.report(&codes::ALIAS_EXPANSION, found, message)
                        .help("write out what the aliases of aliases stand for, or use fewer");
                }
                None
            }
            Via::Cycle => {
                self.report(
                    &codes::ALIAS_EXPANSION,
                    found,
                    "the alias stands inside the value it refers to",
                )
                .help("an alias can only repeat a value that has ended before it");
                None
            }
            Via::Misread => {
                self.report(
                    &codes::READERS_DISAGREE,
                    found,
                    "serde_yaml takes this alias for another anchor's value",
                )
                .help("two anchors of the file have one name; give each its own");
                None
            }
        }
    }

    /// Reports a fault of `found`, unless it was reported before.
    fn report(
        &mut self,
        code: &'static Code,
        found: Found<'_>,
        message: impl Into<String>,
    ) -> Report<'_> {
        let field = self.field();
        // A missing field is a fault of its object, which may miss others too.
        let what = if code == &codes::MISSING_FIELD {
            field.rsplit('.').next().unwrap_or_default().to_owned()
        } else {
            String::new()
        };
        if !self.reported.insert((code.id, found.id, what)) {
            return Report(None);
        }
        let mut diagnostic = Diagnostic::new(code, field, found.span, message);
        if let Some(defined) = found.defined {
            diagnostic = diagnostic.with_related(defined, "defined here");
        } else if let Some(through) = self.through.last() {
            diagnostic = diagnostic.with_related(*through, "used here");
        }
        self.diagnostics.push(diagnostic);
        Report(self.diagnostics.last_mut())
    }

    /// The path of the field being read.
    fn field(&self) -> String {
        let mut field = self.prefix.to_owned();
        for step in &self.path {
            match step {
                Step::Field(name) => {
                    if !field.is_empty() {
                        field.push('.');
                    }
                    field.push_str(&visible(name));
                }
                Step::Item(index) => field.push_str(&format!("[{index}]")),
            }
        }
        field
    }
}

pub(super) const VARIABLE_HELP: &str =
    "policy files are read as they are; fill in values before the file is read";
pub(super) const NESTED_TOO_DEEP_HELP: &str =
    "no policy needs this; look for a bracket or brace too many, or an alias of an alias";
pub(super) const FIELD_NAME_HELP: &str = "write `field: value`";
const TAG_HELP: &str = "remove the tag; quote a value that begins with `!`";
pub(super) const MERGE_KEY_MESSAGE: &str = "`<<` merges nothing here";
pub(super) const MERGE_KEY_HELP: &str =
    "write the fields out; an anchor and alias can repeat a whole value, such as `burst: *burst`";

pub(super) fn nested_too_deep() -> String {
    format!("lists and mappings nest deeper than {MAX_DEPTH} levels here")
}

/// A diagnostic just reported, to be added to; `None`: it was reported before.
struct Report<'d>(Option<&'d mut Diagnostic>);

impl Report<'_> {
    fn related(mut self, span: Span, message: &str) -> Self {
        if let Some(diagnostic) = &mut self.0 {
            diagnostic.related.push(Related {
                message: message.to_owned(),
                span,
            });
        }
        self
    }

    fn help(self, help: impl Into<String>) {
        if let Some(diagnostic) = self.0 {
            diagnostic.help = Some(help.into());
        }
    }
}

/// The first `${…}` of `value`.
pub(super) fn variable(value: &str) -> Option<&str> {
    let start = value.find("${")?;
    let rest = value.get(start..)?;
    let end = rest.find('}')?;
    rest.get(..=end)
}

fn has_variable(value: &str) -> bool {
    variable(value).is_some()
}

/// The first line of `span`.
fn first_line(text: &PolicyText, span: Span) -> Span {
    let length = text.slice(span).find(['\n', '\r']);
    match length.and_then(|length| u32::try_from(length).ok()) {
        Some(length) => Span::new(span.start, span.start + length),
        None => span,
    }
}

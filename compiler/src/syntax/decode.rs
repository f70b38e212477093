//! Tree → raw quota object. Driven by tables of fields, never stops, and reads scalars as `scalar` says `serde_yaml` does.
//!
//! A required field that is missing is reported here, but for `backend.kind` and `backend.url`: which fields a backend needs
//! is a matter of its kind, and has codes of its own.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::events::{MAX_DEPTH, Style};
use super::nearest::nearest;
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
    required: bool,
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
    required("max_entries", |d, fallback, found| {
        fallback.max_entries = d.given(found, Decoder::integer)
    }),
];

const POLICY: &[Field<RawPolicy>] = &[
    required("name", |d, policy, found| {
        policy.name = d.given(found, Decoder::string)
    }),
    optional("route_allowlist", |d, policy, found| {
        policy.route_allowlist = d.given(found, |d, found| d.list(found, Decoder::string));
    }),
    optional("selector", |d, policy, found| {
        policy.selector = d.given(found, |d, found| d.object(found, SELECTOR));
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

const SOURCE: &[Field<RawSource>] = &[required("key", |d, source, found| {
    source.key = d.given(found, Decoder::string)
})];

const WINDOW: &[Field<RawWindow>] = &[
    required("requests", |d, window, found| {
        window.requests = d.given(found, Decoder::integer)
    }),
    required("window_secs", |d, window, found| {
        window.window_secs = d.given(found, Decoder::integer)
    }),
];

const fn optional<T>(
    name: &'static str,
    set: fn(&mut Decoder<'_>, &mut T, Option<Found<'_>>),
) -> Field<T> {
    Field {
        name,
        required: false,
        set,
    }
}

const fn required<T>(
    name: &'static str,
    set: fn(&mut Decoder<'_>, &mut T, Option<Found<'_>>),
) -> Field<T> {
    Field {
        name,
        required: true,
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
                );
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
            d.unknown_field(name, key, fields)
        })
    }

    /// An object with the fields of a table; `other` is handed every field that is not in it, and says which one it has
    /// reported it to be meant as.
    fn object_with<T: Default>(
        &mut self,
        found: Found<'_>,
        fields: &'static [Field<T>],
        mut other: impl FnMut(&mut Self, &mut T, &str, Found<'a>, Edge) -> Option<&'static str>,
    ) -> Option<T> {
        let pairs = self.pairs(found)?;
        let mut object = T::default();
        let mut seen: Vec<Option<Span>> = vec![None; fields.len()];
        // Fields that some unknown one was surely meant to be.
        let mut meant: Vec<&str> = Vec::new();
        for (key, value) in pairs {
            let Some((name, key)) = self.key(*key) else {
                continue;
            };
            if self.is_merge_key(name, key) {
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
            let excused = found.node.truncated || meant.contains(&field.name);
            if field.required && !excused {
                self.missing(found, field.name);
            }
            if field.required || excused {
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
    fn pairs(&mut self, found: Found<'_>) -> Option<&'a [(Edge, Edge)]> {
        let tree = self.tree;
        let pairs: &[(Edge, Edge)] = match &tree.node(found.id).kind {
            NodeKind::Mapping(pairs) => pairs,
            NodeKind::Scalar { .. } if found.node.is_nothing() => &[],
            NodeKind::Scalar { .. } | NodeKind::Sequence(_) => {
                self.wrong_type(found, "a mapping");
                return None;
            }
        };
        self.enter(found).then_some(pairs)
    }

    /// Goes one level deeper, unless that is too deep. The caller leaves by counting `depth` down.
    fn enter(&mut self, found: Found<'_>) -> bool {
        if self.depth >= MAX_DEPTH {
            self.report(
                &codes::NESTED_TOO_DEEP,
                found,
                format!("lists and mappings nest deeper than {MAX_DEPTH} levels here"),
            );
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
        );
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
            None => format!("the fields are {}", listed(names(fields))),
        };
        self.report(&codes::UNKNOWN_FIELD, key, message).help(help);
        meant
    }

    fn missing(&mut self, found: Found<'_>, name: &'static str) {
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
        );
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
                self.wrong_type(found, "a list");
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
        self.depth -= 1;
        Some(list)
    }

    fn string(&mut self, found: Found<'_>) -> Option<String> {
        let Some(scalar) = scalar::scalar(found.node) else {
            self.wrong_type(found, "a string");
            return None;
        };
        (!self.is_variable(found, scalar.value)).then(|| scalar.value.to_owned())
    }

    fn bool(&mut self, found: Found<'_>) -> Option<bool> {
        let value = scalar::scalar(found.node).and_then(Scalar::as_bool);
        if value.is_none() {
            self.wrong_type(found, "`true` or `false`");
        }
        value
    }

    fn integer(&mut self, found: Found<'_>) -> Option<u64> {
        let scalar = scalar::scalar(found.node);
        let value = scalar.and_then(Scalar::as_u64);
        if value.is_none() {
            match scalar.and_then(NotInteger::of) {
                Some(fault) if !has_variable(fault.text) => {
                    let message = format!("{} is {}, not a whole number", fault.quoted, fault.what);
                    let report = self.report(&codes::NOT_AN_INTEGER, found, message);
                    if let Some(help) = fault.help {
                        report.help(help);
                    }
                }
                Some(_) | None => self.wrong_type(found, "a whole number"),
            }
        }
        value
    }

    fn word<T: Copy>(
        &mut self,
        found: Found<'_>,
        words: &[T],
        as_str: fn(T) -> &'static str,
    ) -> Option<T> {
        let Some(scalar) = scalar::scalar(found.node) else {
            self.wrong_type(found, &listed_or(words.iter().map(|word| as_str(*word))));
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
        if value.is_none() {
            let spellings = words.iter().map(|word| as_str(*word));
            let all = listed_or(spellings.clone());
            let message = match written {
                Some("") => format!("a word is missing; it must be {all}"),
                Some(word) => format!("{} is not {all}", quote(word)),
                None => format!(
                    "a tag that is the word stands alone, before {}",
                    describe(found.node)
                ),
            };
            let meant = written.and_then(|word| nearest(word, spellings));
            let report = self.report(&codes::UNKNOWN_WORD, found, message);
            if let Some(meant) = meant {
                report.help(format!("did you mean `{meant}`?"));
            }
        }
        value
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
                    return None;
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
                None
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
            self.report(&codes::WRONG_TYPE, found, message);
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
        let message = match scalar.as_any() {
            Ok(value) => return Some(value),
            Err(Untyped::LocalTag) => {
                let tag = scalar.local_tag().unwrap_or("");
                format!("the tag {} has no meaning here", quote(&format!("!{tag}")))
            }
            Err(Untyped::NotOfTag(tag)) => format!("the tag `{tag}` stands on another value"),
            Err(Untyped::TooLarge) => "the number is beyond 64 bits".to_owned(),
            Err(Untyped::NotFinite) => "options take finite numbers only".to_owned(),
        };
        self.report(&codes::WRONG_TYPE, found, message);
        None
    }

    /// Reports a value that is not `expected`.
    fn wrong_type(&mut self, found: Found<'_>, expected: &str) {
        let scalar = scalar::scalar(found.node);
        if scalar.is_some_and(|scalar| self.is_variable(found, scalar.value)) {
            return;
        }
        let help = wrong_type_help(found.node, expected);
        let message = format!("this must be {expected}, not {}", describe(found.node));
        let span = first_line(self.text, found.span);
        let report = self.report(&codes::WRONG_TYPE, Found { span, ..found }, message);
        if let Some(help) = help {
            report.help(help);
        }
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
        let shown = if within_secret {
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
                    self.report(&codes::ALIAS_EXPANSION, found, message);
                }
                None
            }
            Via::Cycle => {
                self.report(
                    &codes::ALIAS_EXPANSION,
                    found,
                    "the alias stands inside the value it refers to",
                );
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
                    field.push_str(&plain(&url_without_credentials(name)));
                }
                Step::Item(index) => field.push_str(&format!("[{index}]")),
            }
        }
        field
    }
}

pub(super) const VARIABLE_HELP: &str =
    "policy files are read as they are; fill in values before the file is read";
pub(super) const MERGE_KEY_MESSAGE: &str = "`<<` merges nothing here";
pub(super) const MERGE_KEY_HELP: &str =
    "write the fields out; an anchor and alias can repeat a whole value, such as `burst: *burst`";

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

/// A scalar that nearly is an integer.
struct NotInteger<'t> {
    text: &'t str,
    quoted: String,
    what: &'static str,
    help: Option<String>,
}

impl<'t> NotInteger<'t> {
    /// What keeps `scalar` from being an integer; `None` when it is something else altogether.
    fn of(scalar: Scalar<'t>) -> Option<Self> {
        let text = scalar.value;
        let instead = |what, number: Option<String>| {
            Some(Self {
                text,
                quoted: quote(text),
                what,
                help: number.map(|number| format!("write `{number}`")),
            })
        };
        if scalar.style != Style::Plain {
            let number = scalar::unsigned(text.trim(), u64::from_str_radix)?;
            return instead("a quoted string", Some(number.to_string()));
        }
        if scalar::is_digits_but_no_number(text) {
            let digits = text.trim_start_matches(['+', '-']).trim_start_matches('0');
            let number = if digits.is_empty() { "0" } else { digits };
            return instead(
                "a string, since it has zeros in front",
                Some(number.to_owned()),
            );
        }
        if text.starts_with('-')
            && (text.len() > 1
                && text
                    .trim_start_matches('-')
                    .starts_with(|c: char| c.is_ascii_digit()))
        {
            return instead("negative", None);
        }
        if scalar::unsigned(text, u128::from_str_radix).is_some() || is_many_digits(text) {
            return instead("larger than 18446744073709551615", None);
        }
        if let Some(float) = scalar::float(text) {
            return instead("a float", whole(float));
        }
        let grouped = text.replace(['_', ','], "");
        if grouped.len() < text.len() && scalar::unsigned(&grouped, u64::from_str_radix).is_some() {
            return instead("a string, since numbers take no separators", Some(grouped));
        }
        let seconds = with_unit(text)?;
        instead(
            "a string, since numbers take no units",
            seconds.map(|seconds| seconds.to_string()),
        )
    }
}

/// The float as the integer it is, when it is one.
fn whole(float: f64) -> Option<String> {
    // Above 2^53 a float may be another number than the one written.
    (float.fract() == 0.0 && (0.0..9_007_199_254_740_992.0).contains(&float))
        .then(|| format!("{float:.0}"))
}

/// Whether `text` is a decimal integer of any length.
fn is_many_digits(text: &str) -> bool {
    let digits = text.strip_prefix('+').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// A number with a unit of time, such as `5m`: in seconds, where they are whole.
fn with_unit(text: &str) -> Option<Option<u64>> {
    let unit = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, unit) = text.split_at_checked(unit)?;
    let number: u64 = number.parse().ok()?;
    let seconds: u64 = match unit.trim() {
        "ms" => return Some(None),
        "s" | "sec" | "secs" | "second" | "seconds" => 1,
        "m" | "min" | "mins" | "minute" | "minutes" => 60,
        "h" | "hour" | "hours" => 3_600,
        "d" | "day" | "days" => 86_400,
        _ => return None,
    };
    Some(number.checked_mul(seconds))
}

/// What to write instead of a value of the wrong type.
fn wrong_type_help(node: &Node, expected: &str) -> Option<String> {
    let Some(scalar) = scalar::scalar(node) else {
        let is_items = expected == "a list" && matches!(node.kind, NodeKind::Mapping(_));
        return is_items.then(|| "begin each item of the list with `- `".to_owned());
    };
    let text = scalar.value;
    if expected == "`true` or `false`" {
        let lower = text.to_ascii_lowercase();
        return match lower.as_str() {
            "yes" | "y" | "on" | "1" | "true" => Some("write `true`".to_owned()),
            "no" | "n" | "off" | "0" | "false" => Some("write `false`".to_owned()),
            _ => None,
        };
    }
    let null = scalar.presence() == Presence::Null;
    match expected {
        _ if null => Some("leave the field out, or give it a value".to_owned()),
        "a list" => Some(format!("write `[{}]`", shortened(text)))
            .filter(|_| !text.contains(['[', ',', ':'])),
        _ => None,
    }
}

/// `node` as a reader would call it.
pub(super) fn describe(node: &Node) -> String {
    let Some(scalar) = scalar::scalar(node) else {
        return match &node.kind {
            NodeKind::Sequence(_) => "a list",
            NodeKind::Mapping(_) | NodeKind::Scalar { .. } => "a mapping",
        }
        .to_owned();
    };
    let text = quote(scalar.value);
    match scalar.as_any() {
        _ if scalar.style != Style::Plain => format!("the quoted string {text}"),
        Ok(Value::Null) if scalar.value.is_empty() => "nothing".to_owned(),
        Ok(Value::Null) => "null".to_owned(),
        Ok(Value::Bool(_)) => format!("the bool {text}"),
        Ok(Value::Number(number)) if number.is_f64() => format!("the float {text}"),
        Ok(Value::Number(_)) => format!("the number {text}"),
        Ok(Value::String(_) | Value::Array(_) | Value::Object(_)) | Err(_) => {
            format!("the string {text}")
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

/// `text` in backticks as a message may show it: short, on one line, no credentials of a URL.
pub(super) fn quote(text: &str) -> String {
    format!("`{}`", shortened(text))
}

fn shortened(text: &str) -> String {
    let bare = url_without_credentials(text);
    let plain = plain(&bare);
    if plain.chars().count() <= 48 {
        return plain;
    }
    let start: String = plain.chars().take(45).collect();
    format!("{start}…")
}

/// `text` with its control characters escaped.
fn plain(text: &str) -> String {
    text.chars()
        .flat_map(|character| {
            let escaped = character.is_control().then(|| character.escape_default());
            let itself = escaped.is_none().then_some(character);
            escaped.into_iter().flatten().chain(itself)
        })
        .collect()
}

/// `a`, `b` and `c`, each in backticks.
fn listed<'n>(names: impl Iterator<Item = &'n str>) -> String {
    joined(names, "and")
}

fn listed_or<'n>(names: impl Iterator<Item = &'n str>) -> String {
    joined(names, "or")
}

fn joined<'n>(names: impl Iterator<Item = &'n str>, word: &str) -> String {
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, first)) => format!("{} {word} {last}", first.join(", ")),
        None => String::new(),
    }
}

/// The first line of `span`.
fn first_line(text: &PolicyText, span: Span) -> Span {
    let length = text.slice(span).find(['\n', '\r']);
    match length.and_then(|length| u32::try_from(length).ok()) {
        Some(length) => Span::new(span.start, span.start + length),
        None => span,
    }
}

//! Policies → text, in one of the many ways a file may say the same: order of fields and allowlists, flow and block style,
//! quotes, comments, white space, case of sources, defaults spelled out or left out, credentials of URLs.

use serde_json::Value;

use crate::ir::{Policy, Quota, Routes, Window};
use crate::settings::{
    BackendPlace, BackendSettings, DEFAULT_COMMAND_TIMEOUT_MS, DEFAULT_CONNECT_TIMEOUT_MS,
    DEFAULT_FALLBACK_KEY_PREFIX, DEFAULT_KEY_PREFIX, DEFAULT_MAX_ENTRIES, DEFAULT_MAX_INFLIGHT,
    FallbackSettings, IN_MEMORY,
};
use crate::terms::{Dimension, Enforcement, FailurePolicy, Source};

/// A text of `quota`; which one depends on `seed`.
pub(super) fn text(quota: &Quota, seed: u64) -> String {
    // Spread, since small seeds begin alike; and never zero, where the generator would stay.
    let mut writer = Writer {
        random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        text: String::new(),
    };
    let mut node = writer.quota(quota);
    if writer.chance(3) {
        let quota = Node::Map(vec![("quota".to_owned(), node)]);
        node = Node::Map(vec![
            ("unrelated".to_owned(), Node::Plain("17".to_owned())),
            ("resilience".to_owned(), quota),
        ]);
    }
    writer.comment(0);
    writer.block(&node, 0);
    writer.text
}

enum Node {
    /// Written as it is.
    Plain(String),
    /// Written in quotes.
    Text(String),
    List(Vec<Self>),
    Map(Vec<(String, Self)>),
}

type Fields = Vec<(String, Node)>;

struct Writer {
    random: u64,
    text: String,
}

impl Writer {
    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random >> 32).expect("it is half as long") % bound
    }

    /// True once in `times`.
    fn chance(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            let other = self.below(at + 1);
            items.swap(at, other);
        }
    }

    fn quota(&mut self, quota: &Quota) -> Node {
        let mut fields = Fields::new();
        let bool = |value: bool| Node::Plain(value.to_string());
        let word = |word: &str| Node::Plain(word.to_owned());
        self.field(&mut fields, "enabled", !quota.enabled, |_| {
            bool(quota.enabled)
        });
        let enforcement = quota.enforcement;
        let default = enforcement == Enforcement::default();
        self.field(&mut fields, "enforcement", default, |_| {
            word(enforcement.as_str())
        });
        let policy = quota.failure_policy;
        let default = policy == FailurePolicy::default();
        self.field(&mut fields, "backend_failure_policy", default, |_| {
            word(policy.as_str())
        });
        let default = quota.backend == BackendSettings::default();
        self.field(&mut fields, "backend", default, |writer| {
            writer.backend(&quota.backend)
        });
        let fallback = quota.fallback.as_ref();
        self.field(
            &mut fields,
            "local_fallback",
            fallback.is_none(),
            |writer| fallback.map_or_else(null, |fallback| writer.fallback(fallback)),
        );
        // Written out always, so that there is a quota object.
        let policies = quota.policies.iter().map(|policy| self.policy(policy));
        let policies = Node::List(policies.collect());
        fields.push(("policies".to_owned(), policies));
        self.map(fields)
    }

    /// Adds a field, which may be left out where it `is_default`.
    fn field(
        &mut self,
        fields: &mut Fields,
        name: &str,
        is_default: bool,
        value: impl FnOnce(&mut Self) -> Node,
    ) {
        if !is_default || self.chance(2) {
            let value = value(self);
            fields.push((name.to_owned(), value));
        }
    }

    fn map(&mut self, mut fields: Fields) -> Node {
        self.shuffle(&mut fields);
        Node::Map(fields)
    }

    fn backend(&mut self, backend: &BackendSettings) -> Node {
        let mut fields = vec![("kind".to_owned(), Node::Plain(backend.kind.to_string()))];
        let prefix = &*backend.key_prefix;
        let default = prefix == DEFAULT_KEY_PREFIX;
        self.field(&mut fields, "key_prefix", default, |writer| {
            writer.padded(prefix)
        });
        let numbers = match backend.place {
            BackendPlace::Local { max_entries } => {
                assert_eq!(&*backend.kind, IN_MEMORY);
                vec![("max_entries", max_entries, DEFAULT_MAX_ENTRIES)]
            }
            BackendPlace::Remote {
                connect_timeout_ms,
                command_timeout_ms,
                max_inflight,
            } => vec![
                (
                    "connect_timeout_ms",
                    connect_timeout_ms,
                    DEFAULT_CONNECT_TIMEOUT_MS,
                ),
                (
                    "command_timeout_ms",
                    command_timeout_ms,
                    DEFAULT_COMMAND_TIMEOUT_MS,
                ),
                ("max_inflight", max_inflight, DEFAULT_MAX_INFLIGHT),
            ],
        };
        for (name, number, default) in numbers {
            self.field(&mut fields, name, number == default, |writer| {
                writer.number(number.get())
            });
        }
        if let Some(plugin) = &backend.plugin {
            let plugin = self.padded(plugin);
            fields.push(("plugin".to_owned(), plugin));
        }
        if let Some(sha256) = &backend.plugin_sha256 {
            let digits = crate::program::hex(sha256);
            let digits = self.any_case(&digits);
            let digits = self.padded(&digits);
            fields.push(("plugin_sha256".to_owned(), digits));
        }
        for (name, value) in &backend.options {
            let value = match (&**name, value) {
                ("url", Value::String(url)) => self.url(url),
                _ => self.json(value),
            };
            fields.push((name.clone(), value));
        }
        self.map(fields)
    }

    /// `url` with credentials.
    fn url(&mut self, url: &str) -> Node {
        let credentials = ["", "user@", ":hunter2@", "user:hunter2@", "u:p%40ss@"];
        let credentials = credentials[self.below(credentials.len())];
        let url = url.replacen("://", &format!("://{credentials}"), 1);
        self.padded(&url)
    }

    fn json(&mut self, value: &Value) -> Node {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => Node::Plain(value.to_string()),
            Value::String(text) => Node::Text(text.clone()),
            Value::Array(items) => Node::List(items.iter().map(|item| self.json(item)).collect()),
            Value::Object(fields) => {
                let fields = fields.iter();
                let fields = fields.map(|(name, value)| (name.clone(), self.json(value)));
                let fields = fields.collect();
                self.map(fields)
            }
        }
    }

    fn fallback(&mut self, fallback: &FallbackSettings) -> Node {
        let max_entries = self.number(fallback.max_entries.get());
        let mut fields = vec![("max_entries".to_owned(), max_entries)];
        let prefix = &*fallback.key_prefix;
        let default = prefix == DEFAULT_FALLBACK_KEY_PREFIX;
        self.field(&mut fields, "key_prefix", default, |writer| {
            writer.padded(prefix)
        });
        self.map(fields)
    }

    fn policy(&mut self, policy: &Policy) -> Node {
        let name = self.padded(&policy.name);
        let mut fields = vec![("name".to_owned(), name)];
        let every = policy.routes == Routes::Every;
        self.field(&mut fields, "route_allowlist", every, |writer| {
            let mut routes: Vec<&str> = match &policy.routes {
                Routes::Every => Vec::new(),
                Routes::Listed(routes) => routes.iter().map(|route| &**route).collect(),
            };
            // It is a set.
            if !routes.is_empty() && writer.chance(3) {
                routes.push(routes[0]);
            }
            writer.shuffle(&mut routes);
            Node::List(routes.iter().map(|route| writer.padded(route)).collect())
        });
        let mut selector = Fields::new();
        let route = policy.selector.has_route();
        self.field(&mut selector, "route", !route, |_| {
            Node::Plain(route.to_string())
        });
        for dimension in [Dimension::Tenant, Dimension::Token, Dimension::Client] {
            let source = policy.selector.source(dimension);
            self.field(
                &mut selector,
                dimension.as_str(),
                source.is_none(),
                |writer| source.map_or_else(null, |source| writer.source(source)),
            );
        }
        let selector = self.map(selector);
        fields.push(("selector".to_owned(), selector));
        for (name, window) in [
            ("burst", policy.windows.burst()),
            ("sustained", policy.windows.sustained()),
        ] {
            self.field(&mut fields, name, window.is_none(), |writer| {
                window.map_or_else(null, |window| writer.window(window))
            });
        }
        self.map(fields)
    }

    fn source(&mut self, source: &Source) -> Node {
        let text = match source {
            Source::ClientIp => ["client_ip", "peer_ip"][self.below(2)].to_owned(),
            Source::Header(name) => format!("header:{}{name}", self.space()),
            Source::Cookie(name) => format!("cookie:{}{name}", self.space()),
            Source::Query(name) => format!("query:{}{name}", self.space()),
            Source::BearerToken => source.to_string(),
        };
        let text = self.any_case(&text);
        let key = self.padded(&text);
        Node::Map(vec![("key".to_owned(), key)])
    }

    fn window(&mut self, window: Window) -> Node {
        let requests = self.number(window.requests.get());
        let secs = self.number(window.length_secs.get().into());
        self.map(vec![
            ("requests".to_owned(), requests),
            ("window_secs".to_owned(), secs),
        ])
    }

    fn number(&mut self, number: u64) -> Node {
        Node::Plain(match self.below(4) {
            0 => format!("{number:#x}"),
            1 => format!("+{number}"),
            _ => number.to_string(),
        })
    }

    /// `text` in letters of any case.
    fn any_case(&mut self, text: &str) -> String {
        let letters = text.chars().map(|letter| {
            if self.chance(2) {
                letter.to_ascii_uppercase()
            } else {
                letter
            }
        });
        letters.collect()
    }

    fn space(&mut self) -> &'static str {
        ["", "", "", " ", "\t", "\u{a0}\u{2003}", "\u{85}"][self.below(7)]
    }

    fn padded(&mut self, text: &str) -> Node {
        Node::Text(format!("{}{text}{}", self.space(), self.space()))
    }

    /// `node` from the beginning of a line, each line of it with `indent` spaces before it.
    fn block(&mut self, node: &Node, indent: usize) {
        match node {
            Node::Map(fields) if !fields.is_empty() => {
                for (name, value) in fields {
                    self.comment(indent);
                    self.spaces(indent);
                    self.text.push_str(name);
                    self.text.push(':');
                    self.block_value(value, indent);
                }
            }
            Node::List(items) if !items.is_empty() => {
                for item in items {
                    self.comment(indent);
                    self.spaces(indent);
                    self.text.push('-');
                    self.block_value(item, indent);
                }
            }
            Node::Plain(_) | Node::Text(_) | Node::List(_) | Node::Map(_) => {
                self.spaces(indent);
                self.flow(node, indent);
                self.text.push('\n');
            }
        }
    }

    /// `node` after `name:` or `-`.
    fn block_value(&mut self, node: &Node, indent: usize) {
        let in_lines = match node {
            Node::Map(fields) => !fields.is_empty(),
            Node::List(items) => !items.is_empty(),
            Node::Plain(_) | Node::Text(_) => false,
        };
        if in_lines && !self.chance(3) {
            self.end_line();
            let deeper = indent + 1 + self.below(3);
            self.block(node, deeper);
        } else {
            self.text.push(' ');
            self.flow(node, indent + 1);
            self.end_line();
        }
    }

    /// `node` where a line may go on, which it then does at `indent`.
    fn flow(&mut self, node: &Node, indent: usize) {
        match node {
            Node::Plain(text) => self.text.push_str(text),
            Node::Text(text) => self.quoted(text),
            Node::List(items) => {
                self.text.push('[');
                for item in items {
                    self.gap(indent);
                    self.flow(item, indent);
                    self.text.push(',');
                }
                self.gap(indent);
                self.text.push(']');
            }
            Node::Map(fields) => {
                self.text.push('{');
                for (name, value) in fields {
                    self.gap(indent);
                    self.text.push_str(name);
                    self.text.push_str(": ");
                    self.flow(value, indent);
                    self.text.push(',');
                }
                self.gap(indent);
                self.text.push('}');
            }
        }
    }

    fn quoted(&mut self, text: &str) {
        if text.chars().all(|letter| matches!(letter, ' '..='~')) && self.chance(2) {
            self.text.push('\'');
            self.text.push_str(&text.replace('\'', "''"));
            self.text.push('\'');
            return;
        }
        self.text.push('"');
        for letter in text.chars() {
            match letter {
                '"' | '\\' => self.text.extend(['\\', letter]),
                ' '..='~' => self.text.push(letter),
                _ if letter.is_alphanumeric() && self.chance(2) => self.text.push(letter),
                _ => self.text.push_str(&format!("\\U{:08x}", u32::from(letter))),
            }
        }
        self.text.push('"');
    }

    /// White space between tokens.
    fn gap(&mut self, indent: usize) {
        if self.chance(4) {
            self.end_line();
            self.spaces(indent);
        } else if self.chance(2) {
            self.text.push(' ');
        }
    }

    fn end_line(&mut self) {
        let end = [" # 'a \"comment\": {", "  ", "", ""][self.below(4)];
        self.text.push_str(end);
        self.text.push('\n');
    }

    fn comment(&mut self, indent: usize) {
        if self.chance(4) {
            self.spaces(indent);
            self.text.push_str("# - name: no policy\n");
        }
        if self.chance(6) {
            self.text.push('\n');
        }
    }

    fn spaces(&mut self, count: usize) {
        self.text.extend(std::iter::repeat_n(' ', count));
    }
}

fn null() -> Node {
    Node::Plain("null".to_owned())
}

//! `quotac schema`: a schema that editors can use, which refuses no file that the check accepts.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::sample::{Index, select};
use quota_compiler::{Limits, codes};
use quotac::check::check_text;
use quotac::kinds::PluginOptions;
use quotac::schema::schema;
use serde_json::{Map, Value, json};

use crate::golden::Goldens;
use crate::pages;

#[test]
fn the_schema_is_the_expected_one() {
    let mut printed = Vec::new();
    quotac::schema::run(&mut printed).expect("memory takes everything");
    let printed = String::from_utf8(printed).expect("it is text");
    let mut goldens = Goldens::default();
    goldens.check(Path::new("ui/schema.json"), &printed);
    goldens.finish();
}

/// The part of JSON Schema that the schema is written in. A word it does not know ends the test.
struct Validator {
    schema: Value,
}

impl Validator {
    fn new() -> Self {
        Self { schema: schema() }
    }

    fn accepts(&self, file: &Value) -> bool {
        self.fits(&self.schema, file)
    }

    fn fits(&self, schema: &Value, value: &Value) -> bool {
        if let Value::Bool(verdict) = schema {
            return *verdict;
        }
        let words = schema.as_object().expect("a schema is an object");
        let mut rules = words.iter();
        rules.all(|(word, rule)| !self.broken(words, word, rule, value))
    }

    /// Whether `value` breaks the rule of one word of a schema.
    fn broken(&self, words: &Map<String, Value>, word: &str, rule: &Value, value: &Value) -> bool {
        let fields = value.as_object();
        let rules = || rule.as_array().expect("a list");
        let names = |list: &Value| -> Vec<String> {
            serde_json::from_value(list.clone()).expect("a list of names")
        };
        match word {
            "$schema" | "$comment" | "$defs" | "title" | "description" | "default" | "examples"
            | "then" | "else" => false,
            "$ref" => {
                let pointer = rule.as_str().and_then(|rule| rule.strip_prefix('#'));
                let target = pointer.and_then(|pointer| self.schema.pointer(pointer));
                !self.fits(target.expect("a definition"), value)
            }
            "type" => {
                let types = rule
                    .as_array()
                    .map_or(std::slice::from_ref(rule), |types| types);
                !types.iter().any(|name| is_of_type(value, name))
            }
            "const" => value != rule,
            "enum" => !rules().contains(value),
            "minimum" => value.as_f64() < rule.as_f64() && value.is_number(),
            "maximum" => value.as_f64() > rule.as_f64() && value.is_number(),
            "pattern" => {
                let pattern = rule.as_str().map(regex_lite::Regex::new);
                let pattern = pattern.expect("a text").expect("a pattern");
                value.as_str().is_some_and(|text| !pattern.is_match(text))
            }
            "required" => fields
                .is_some_and(|fields| names(rule).iter().any(|name| !fields.contains_key(name))),
            "minProperties" => fields
                .is_some_and(|fields| (fields.len() as u64) < rule.as_u64().expect("a number")),
            "properties" => fields.into_iter().flatten().any(|(name, value)| {
                let schema = rule.get(name);
                schema.is_some_and(|schema| !self.fits(schema, value))
            }),
            "additionalProperties" => {
                assert_eq!(*rule, Value::Bool(false));
                let known = words.get("properties");
                fields.is_some_and(|fields| {
                    let mut names = fields.keys();
                    names.any(|name| known.and_then(|known| known.get(name)).is_none())
                })
            }
            "propertyNames" => fields.is_some_and(|fields| {
                let mut names = fields.keys();
                names.any(|name| !self.fits(rule, &Value::from(name.as_str())))
            }),
            "minItems" => value
                .as_array()
                .is_some_and(|items| (items.len() as u64) < rule.as_u64().expect("a number")),
            "items" => {
                let mut items = value.as_array().into_iter().flatten();
                items.any(|item| !self.fits(rule, item))
            }
            "anyOf" => !rules().iter().any(|schema| self.fits(schema, value)),
            "allOf" => !rules().iter().all(|schema| self.fits(schema, value)),
            "not" => self.fits(rule, value),
            "if" => {
                let branch = if self.fits(rule, value) {
                    "then"
                } else {
                    "else"
                };
                words
                    .get(branch)
                    .is_some_and(|schema| !self.fits(schema, value))
            }
            _ => panic!("`{word}` is not read here"),
        }
    }
}

fn is_of_type(value: &Value, name: &Value) -> bool {
    match name.as_str().expect("a name") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        name => panic!("`{name}` is no type"),
    }
}

/// `text` as an editor sees it. `None`: it is no YAML of one document, or holds what JSON has not (tags).
fn as_json(text: &[u8]) -> Option<Value> {
    to_json(serde_yaml::from_slice(text).ok()?)
}

fn to_json(value: serde_yaml::Value) -> Option<Value> {
    use serde_yaml::Value as Yaml;
    Some(match value {
        Yaml::Null => Value::Null,
        Yaml::Bool(flag) => flag.into(),
        // JSON has neither infinity nor NaN; any number stands for them.
        Yaml::Number(number) => serde_json::to_value(number)
            .ok()
            .filter(Value::is_number)
            .unwrap_or_else(|| json!(0.5)),
        Yaml::String(text) => text.into(),
        Yaml::Sequence(items) => items.into_iter().map(to_json).collect::<Option<_>>()?,
        Yaml::Mapping(fields) => fields
            .into_iter()
            .map(|(name, value)| Some((name.as_str()?.to_owned(), to_json(value)?)))
            .collect::<Option<Map<_, _>>>()?
            .into(),
        Yaml::Tagged(_) => return None,
    })
}

/// Whether the check, which loads no plugins here and leaves their options alone, finds no error in `text`.
fn is_accepted(text: &[u8]) -> bool {
    let kinds = PluginOptions {
        none: true,
        ..PluginOptions::default()
    };
    let kinds = kinds.kinds().expect("the linked-in backend is sound");
    let report = check_text("policies.yaml", text, Limits::default(), &kinds, false);
    report.ok
}

/// Policy files of the tree: examples, cases, and what pages show.
fn policy_files() -> Vec<(String, Vec<u8>)> {
    let folders = [
        "../examples/quickstart",
        "../examples/embed",
        "ui/diagnostics",
        "ui/programs",
    ];
    let mut paths: Vec<PathBuf> = folders
        .iter()
        .flat_map(|folder| fs::read_dir(folder).expect("the folder can be read"))
        .map(|entry| entry.expect("the folder can be read").path())
        .filter(|path| {
            let name = path.to_string_lossy();
            name.ends_with(".yaml") && !name.ends_with("_test.yaml")
        })
        .collect();
    paths.sort();
    let files = paths.into_iter().map(|path| {
        let text = fs::read(&path).expect("the file can be read");
        (path.display().to_string(), text)
    });
    let pages = codes::ALL
        .iter()
        .filter_map(|row| {
            let text = pages::yaml_block(row.page, "Passes").ok()??;
            Some((row.id.to_owned(), text.as_bytes().to_vec()))
        })
        .filter(|(id, _)| !id.starts_with("Q07"));
    files.chain(pages).collect()
}

/// Policies that stand in for those a text does not bother to write.
const POLICIES: &str =
    "policies: [{ name: a, selector: { route: true }, burst: { requests: 1, window_secs: 1 } }]";

/// Texts the check accepts, at the edges of what it accepts.
fn odd_texts() -> Vec<String> {
    let policy = |fields: &str| format!("policies: [{{ {fields} }}]");
    let selecting = |selector: &str| {
        policy(&format!(
            "name: a, selector: {{ {selector} }}, burst: {{ requests: 1, window_secs: 1 }}"
        ))
    };
    let source = |source: &str| selecting(&format!("tenant: {{ key: {source} }}"));
    let named = |name: &str| {
        policy(&format!(
            "name: {name}, route_allowlist: [{name}], selector: {{ route: true }}, burst: {{ requests: 1, window_secs: 1 }}"
        ))
    };
    let windows =
        |windows: &str| policy(&format!("name: a, selector: {{ route: true }}, {windows}"));
    let beside = |fields: &str| format!("{fields}\n{POLICIES}");
    vec![
        "policies:".to_owned(),
        "enabled: False".to_owned(),
        "\"enabled\": false\n'policies': []".to_owned(),
        "resilience: { quota: }".to_owned(),
        "resilience: { quota: {}, retries: 1 }\nupstreams: [1]".to_owned(),
        "resilience:\n  quota:\n    enabled: true\n    ".to_owned() + POLICIES,
        beside("enabled: true"),
        beside("enforcement: shadow\nbackend_failure_policy: fail_open"),
        beside("local_fallback:"),
        beside("backend: { kind: in_memory, max_entries: 0x10, key_prefix: ~ }"),
        beside("backend: { kind: in_memory, key_prefix: \"\\uFEFF\" }"),
        beside("backend: { kind: redis, url: ' redis://u:p@h/0 ', max_inflight: +5 }"),
        beside("backend: { kind: redis, url: redis+unix:///r.sock, tls: { ca: 5 }, nodes: [] }"),
        beside("backend: { kind: redis, url: 'redis://h' }\nlocal_fallback: { max_entries: 1 }"),
        beside(
            "backend: { kind: redis, url: 'redis://h' }\nlocal_fallback: { max_entries: 1, key_prefix: null }",
        ),
        beside(&format!(
            "backend: {{ kind: in_memory, plugin_sha256: {} }}",
            "01".repeat(32)
        )),
        beside(&format!(
            "backend: {{ kind: in_memory, plugin: 5, plugin_sha256: '\u{2003}{} ' }}",
            "aB".repeat(32)
        )),
        beside("backend: { kind: acme, region: north, shards: 2, plugin: acme.so }"),
        beside("backend: { kind: acme, region: north }\nlocal_fallback: { max_entries: 7 }"),
        named("12"),
        named("1.5"),
        named("true"),
        named("null"),
        named(".inf"),
        named("\"\\ufeff\""),
        named("\"\\u200b\""),
        named("2001-01-01"),
        policy(
            "name: a, route_allowlist: , selector: { route: true }, burst: { requests: 1, window_secs: 1 }",
        ),
        selecting("route: true, tenant: , token: ~, client: null"),
        selecting("client: { key: PEER_IP }"),
        selecting("client: { key: ' Client_IP' }, token: { key: 'Bearer_Token\u{a0}' }"),
        source("'\u{3000}HEADER:\t\u{2003}X-Tenant\u{1680} '"),
        source("\"header:\\u0085x\\u2029\""),
        source("\"header:!#$%&'*+-.^_`|~09\""),
        source("cookie:Session"),
        source("'query: a b=c & '"),
        source("\"query:a\\nb\""),
        source("\"query:\\ufeff\""),
        source("'query:query:'"),
        windows("burst: { requests: 18446744073709551615, window_secs: 3153600000 }"),
        windows("burst: { requests: 0b1, window_secs: 0o7 }, sustained:"),
        windows("burst: ~, sustained: { window_secs: 2, requests: 2 }"),
    ]
}

#[test]
fn no_file_that_is_accepted_is_refused() {
    let validator = Validator::new();
    let mut accepted = 0;
    let odd = odd_texts()
        .into_iter()
        .map(|text| (text.clone(), text.into_bytes()));
    for (name, text) in policy_files().into_iter().chain(odd) {
        if let (true, Some(file)) = (is_accepted(&text), as_json(&text)) {
            accepted += 1;
            assert!(validator.accepts(&file), "{name}");
        }
    }
    assert!(accepted > 60, "only {accepted} files are accepted at all");
}

#[test]
fn odd_texts_are_accepted() {
    for text in odd_texts() {
        assert!(is_accepted(text.as_bytes()), "{text}");
        assert!(as_json(text.as_bytes()).is_some(), "{text}");
    }
}

/// What somebody might write in the place of anything.
const WORDS: &[&str] = &[
    "",
    "~",
    "null",
    "true",
    "False",
    "0",
    "1",
    "2",
    "-1",
    "0x1F",
    "1.0",
    "1e3",
    "''",
    "' '",
    "' a '",
    "a",
    "[]",
    "[a]",
    "[1, 2]",
    "{}",
    "{ key: query:a }",
    "{ key: null }",
    "{ max_entries: 5 }",
    "{ requests: 1, window_secs: 1 }",
    "in_memory",
    "redis",
    "acme",
    "redis://h",
    "north",
    "shadow",
    "fail_open",
    "client_ip",
    "HEADER:a",
    "cookie: b",
    "'query:\u{a0}'",
    "bearer_token",
    "header:",
    "route",
    "quota",
    "name",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// Words of accepted files are replaced; where the check still accepts, so does the schema.
    #[test]
    fn no_changed_file_that_is_accepted_is_refused(
        file in select(accepted_texts()),
        changes in prop::collection::vec((any::<Index>(), select(WORDS)), 1..3),
    ) {
        let mut text = file;
        for (at, word) in changes {
            let words = words_of(&text);
            if !words.is_empty() {
                text.replace_range(words[at.index(words.len())].clone(), word);
            }
        }
        if let (true, Some(json)) = (is_accepted(text.as_bytes()), as_json(text.as_bytes())) {
            prop_assert!(Validator::new().accepts(&json), "{}", text);
        }
    }
}

fn accepted_texts() -> Vec<String> {
    let files = policy_files().into_iter().map(|(_, text)| text);
    files
        .chain(odd_texts().into_iter().map(String::into_bytes))
        .filter(|text| text.len() < 2_000 && is_accepted(text))
        .filter_map(|text| String::from_utf8(text).ok())
        .collect()
}

/// Places of runs between blanks and brackets.
fn words_of(text: &str) -> Vec<std::ops::Range<usize>> {
    let is_word = |letter: char| !letter.is_whitespace() && !"{}[],".contains(letter);
    let mut words = Vec::new();
    let mut start = None;
    for (at, letter) in text.char_indices().chain([(text.len(), ' ')]) {
        match (start, is_word(letter)) {
            (None, true) => start = Some(at),
            (Some(begin), false) => {
                words.push(begin..at);
                start = None;
            }
            (None, false) | (Some(_), true) => {}
        }
    }
    words
}

/// An editor says so at once where somebody writes one of these.
#[test]
fn what_an_editor_can_see_is_refused() {
    let validator = Validator::new();
    let sound: Value = json!({
        "enabled": true,
        "backend": { "kind": "redis", "url": "redis://h" },
        "local_fallback": { "max_entries": 5 },
        "policies": [{
            "name": "p",
            "route_allowlist": ["r"],
            "selector": { "tenant": { "key": "header:x" }, "client": { "key": "client_ip" } },
            "burst": { "requests": 1, "window_secs": 1 }
        }]
    });
    assert!(validator.accepts(&sound));

    #[track_caller]
    fn check(validator: &Validator, sound: &Value, pointer: &str, value: Value) {
        let mut file = sound.clone();
        let (parent, field) = pointer.rsplit_once('/').expect("it is a pointer");
        let parent = file.pointer_mut(parent).expect("it points somewhere");
        let left_out = value == json!("left out");
        if let Some(fields) = parent.as_object_mut() {
            fields.insert(field.to_owned(), value);
            if left_out {
                fields.remove(field);
            }
        } else {
            parent[field.parse::<usize>().expect("it is a place")] = value;
        }
        assert!(!validator.accepts(&file), "{pointer}: {file}");
    }
    for (pointer, value) in [
        ("/polices", json!([])),
        ("/enabled", json!("true")),
        ("/enforcement", json!("Shadow")),
        ("/backend_failure_policy", json!("open")),
        ("/policies", json!([])),
        ("/policies", json!("left out")),
        ("/resilience", json!({ "quota": {} })),
        ("/backend", json!({})),
        ("/backend", json!({ "kind": "redis" })),
        ("/backend", json!("left out")),
        ("/backend/kind", json!("in_memory")),
        ("/backend/max_entries", json!(5)),
        ("/backend/key_prefix", json!(" \u{85}")),
        ("/backend/command_timeout_ms", json!(0)),
        ("/backend/plugin_sha256", json!("12")),
        ("/local_fallback", json!({})),
        ("/local_fallback/max_entries", json!(0)),
        ("/local_fallback/size", json!(1)),
        ("/policies/0/nme", json!("a")),
        ("/policies/0/name", json!("")),
        ("/policies/0/name", json!("left out")),
        ("/policies/0/route_allowlist/0", json!("\u{2003}")),
        ("/policies/0/route_allowlist", json!("r")),
        ("/policies/0/selector", json!({})),
        ("/policies/0/selector", json!("left out")),
        ("/policies/0/selector/user", json!({ "key": "header:x" })),
        ("/policies/0/selector/tenant/key", json!("client_ip")),
        ("/policies/0/selector/tenant/key", json!("header:")),
        ("/policies/0/selector/tenant/key", json!("header:a b")),
        ("/policies/0/selector/tenant/key", json!("query: ")),
        ("/policies/0/selector/tenant/key", json!("path")),
        ("/policies/0/selector/tenant/name", json!("x")),
        ("/policies/0/selector/client/key", json!("bearer_token")),
        ("/policies/0/burst", json!(null)),
        ("/policies/0/burst/requests", json!(0)),
        ("/policies/0/burst/requests", json!(1.5)),
        ("/policies/0/burst/requests", json!("1")),
        ("/policies/0/burst/window_secs", json!(3_153_600_001_u64)),
        ("/policies/0/burst/window_secs", json!("left out")),
        ("/policies/0/burst/window", json!(1)),
    ] {
        check(&validator, &sound, pointer, value);
    }
}

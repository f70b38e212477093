//! Options of a backend: checked against the schema its plugin declares, then by the plugin itself.
//!
//! The schema is JSON Schema 2020-12, the subset `type`, `properties`, `required`, `enum`, `const`, `minimum`, `maximum`,
//! `minLength`, `maxLength`, `pattern`, `items`, `additionalProperties`, and the annotations `default`, `title`,
//! `description`, `deprecated`, `writeOnly`, `$schema`. Anything else is a fault of the plugin, found before a user's
//! text is looked at. No message repeats a value: it may be a secret.

use std::fmt::Write as _;

use quota_plugin_abi::{QUOTA_SEVERITY_NOTE, QUOTA_SEVERITY_WARNING};
use regex_lite::Regex;
use serde_json::{Map, Value};

/// Longest options and longest schema, as JSON text.
pub(crate) const TEXT_MAX: usize = 1 << 20;
const DIAGNOSTICS_MAX: usize = 100;
const DEPTH_MAX: usize = 32;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The options are refused.
    Error,
    /// Accepted, but surely not meant.
    Warning,
    /// Worth knowing.
    Note,
}

/// One finding about the options of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionDiagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// Stable name of the finding, at most 32 bytes.
    pub code: String,
    /// JSON pointer (RFC 6901) to an existing place of the options; a missing key names its parent.
    pub pointer: String,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
}

impl OptionDiagnostic {
    pub(crate) fn error(code: &str, pointer: &str, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            code: code.to_owned(),
            pointer: pointer.to_owned(),
            message: message.into(),
            help: None,
        }
    }

    fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

impl Severity {
    /// The severity a number of the ABI stands for; an unknown one is an error, to be safe.
    pub(crate) const fn from_abi(severity: u32) -> Self {
        match severity {
            QUOTA_SEVERITY_WARNING => Self::Warning,
            QUOTA_SEVERITY_NOTE => Self::Note,
            _ => Self::Error,
        }
    }
}

/// Whether one of them refuses the options.
pub(crate) fn has_error(diagnostics: &[OptionDiagnostic]) -> bool {
    diagnostics.iter().any(|d| d.severity == Severity::Error)
}

/// Findings of one call, bounded, with pointers that exist.
#[derive(Debug)]
pub(crate) struct Collector<'a> {
    options: &'a Value,
    found: Vec<OptionDiagnostic>,
    saw_error: bool,
}

impl<'a> Collector<'a> {
    pub(crate) const fn new(options: &'a Value) -> Self {
        Self {
            options,
            found: Vec::new(),
            saw_error: false,
        }
    }

    /// Keeps the first findings. A pointer that leads nowhere is shortened to where it still led, with a note.
    pub(crate) fn report(&mut self, mut diagnostic: OptionDiagnostic) {
        self.saw_error |= diagnostic.severity == Severity::Error;
        if self.found.len() >= DIAGNOSTICS_MAX {
            return;
        }
        let existing = nearest_existing(self.options, &diagnostic.pointer);
        let note = (existing != diagnostic.pointer).then(|| OptionDiagnostic {
            severity: Severity::Note,
            code: "bad-pointer".to_owned(),
            pointer: existing.to_owned(),
            message: format!(
                "the plugin pointed at `{}`, which does not exist",
                diagnostic.pointer
            ),
            help: None,
        });
        diagnostic.pointer = existing.to_owned();
        self.found.push(diagnostic);
        self.found.extend(note);
    }

    /// The findings of a call that ended with `ok`; a refusal without a reason is a finding itself.
    pub(crate) fn finish(mut self, ok: bool) -> Vec<OptionDiagnostic> {
        if !ok && !self.saw_error {
            self.found.push(OptionDiagnostic::error(
                "refused-without-reason",
                "",
                "the plugin refused the options and gave no reason",
            ));
        } else if self.saw_error && !has_error(&self.found) {
            self.found.push(OptionDiagnostic::error(
                "too-many",
                "",
                format!("errors follow after {DIAGNOSTICS_MAX} other findings"),
            ));
        }
        self.found
    }
}

/// The longest beginning of a pointer that leads to a value.
fn nearest_existing<'p>(options: &Value, pointer: &'p str) -> &'p str {
    let mut pointer = pointer;
    while options.pointer(pointer).is_none() {
        pointer = pointer.rsplit_once('/').map_or("", |(parent, _)| parent);
    }
    pointer
}

/// The plugin's own findings that add something: none about a place the schema already found fault with.
pub(crate) fn add_new(found: &mut Vec<OptionDiagnostic>, more: Vec<OptionDiagnostic>) {
    let reported: Vec<String> = found.iter().map(|d| d.pointer.clone()).collect();
    let under = |inner: &str, outer: &str| {
        inner
            .strip_prefix(outer)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    found.extend(more.into_iter().filter(|d| {
        !reported
            .iter()
            .any(|seen| under(&d.pointer, seen) || under(seen, &d.pointer))
    }));
}

/// A schema inside the subset, ready to check with.
#[derive(Debug)]
pub(crate) struct Schema {
    json: Value,
}

impl Schema {
    /// Reads a plugin's schema; what is wrong with it otherwise.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let json: Value =
            serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))?;
        judge_schema(&json, "", 0)?;
        if json.get("type").and_then(Value::as_str) != Some("object") {
            return Err("the outermost `type` is not `object`".to_owned());
        }
        Ok(Self { json })
    }

    pub(crate) const fn json(&self) -> &Value {
        &self.json
    }

    /// Holds options against the schema.
    pub(crate) fn check(&self, options: &Value) -> Vec<OptionDiagnostic> {
        let mut found = Vec::new();
        check_value(&self.json, options, "", &mut found);
        found.truncate(DIAGNOSTICS_MAX);
        found
    }
}

const TYPES: [&str; 7] = [
    "object", "array", "string", "integer", "number", "boolean", "null",
];

fn judge_schema(schema: &Value, at: &str, depth: usize) -> Result<(), String> {
    let Some(schema) = schema.as_object() else {
        return Err(format!("`{at}` is not an object"));
    };
    if depth > DEPTH_MAX {
        return Err(format!("nested deeper than {DEPTH_MAX}"));
    }
    for (keyword, value) in schema {
        let right = match keyword.as_str() {
            "type" => {
                let known = |name: &Value| name.as_str().is_some_and(|name| TYPES.contains(&name));
                known(value)
                    || value
                        .as_array()
                        .is_some_and(|names| !names.is_empty() && names.iter().all(known))
            }
            "properties" => {
                let Some(properties) = value.as_object() else {
                    return Err(format!("`{at}/properties` is not an object"));
                };
                for (name, property) in properties {
                    judge_schema(
                        property,
                        &format!("{at}/properties/{}", escape(name)),
                        depth + 1,
                    )?;
                }
                true
            }
            "items" => {
                judge_schema(value, &format!("{at}/items"), depth + 1)?;
                true
            }
            "required" => value
                .as_array()
                .is_some_and(|names| names.iter().all(Value::is_string)),
            "enum" => value.as_array().is_some_and(|values| !values.is_empty()),
            "minimum" | "maximum" => value.is_number(),
            "minLength" | "maxLength" => value.is_u64(),
            "pattern" => value
                .as_str()
                .is_some_and(|pattern| Regex::new(pattern).is_ok()),
            "additionalProperties" | "writeOnly" | "deprecated" => value.is_boolean(),
            "title" | "description" | "$schema" => value.is_string(),
            "const" | "default" => true,
            _ => {
                return Err(format!(
                    "`{at}/{}` is not a keyword of the subset",
                    escape(keyword)
                ));
            }
        };
        if !right {
            return Err(format!(
                "`{at}/{}` has a value that is not allowed there",
                escape(keyword)
            ));
        }
    }
    if let Some(default) = schema.get("default") {
        let mut found = Vec::new();
        check_keywords(schema, default, "", &mut found);
        if has_error(&found) {
            return Err(format!("`{at}/default` breaks the schema it stands in"));
        }
    }
    Ok(())
}

fn check_value(schema: &Value, value: &Value, pointer: &str, found: &mut Vec<OptionDiagnostic>) {
    if let Some(schema) = schema.as_object() {
        check_keywords(schema, value, pointer, found);
    }
}

fn check_keywords(
    schema: &Map<String, Value>,
    value: &Value,
    pointer: &str,
    found: &mut Vec<OptionDiagnostic>,
) {
    let fault = |code: &str, message: String| OptionDiagnostic::error(code, pointer, message);
    if schema.get("deprecated") == Some(&Value::Bool(true)) {
        found.push(OptionDiagnostic {
            severity: Severity::Warning,
            ..fault("deprecated", "this option is deprecated".to_owned())
        });
    }
    if let Some(types) = schema.get("type") {
        let names: Vec<&str> = match types.as_array() {
            Some(names) => names.iter().filter_map(Value::as_str).collect(),
            None => types.as_str().into_iter().collect(),
        };
        if !names.iter().any(|name| is_of_type(value, name)) {
            let expected = names.join(" or ");
            found.push(
                fault(
                    "wrong-type",
                    format!("expected {expected}, found {}", type_of(value)),
                )
                .with_help(format!("give a value of type {expected}")),
            );
            return;
        }
    }
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
        && !allowed.contains(value)
    {
        let allowed = list(allowed.iter().map(ToString::to_string));
        found.push(
            fault(
                "not-allowed",
                "not one of the values allowed here".to_owned(),
            )
            .with_help(format!("use one of {allowed}")),
        );
    }
    if let Some(only) = schema.get("const")
        && only != value
    {
        found.push(
            fault("not-allowed", "not the value allowed here".to_owned())
                .with_help(format!("use `{only}`")),
        );
    }
    if value.is_number() {
        if let Some(least) = schema.get("minimum")
            && is_less(value, least)
        {
            found.push(
                fault("too-small", format!("less than {least}"))
                    .with_help(format!("give a number of at least {least}")),
            );
        }
        if let Some(most) = schema.get("maximum")
            && is_less(most, value)
        {
            found.push(
                fault("too-large", format!("more than {most}"))
                    .with_help(format!("give a number of at most {most}")),
            );
        }
    }
    if let Some(text) = value.as_str() {
        let length = u64::try_from(text.chars().count()).unwrap_or(u64::MAX);
        if let Some(least) = schema.get("minLength").and_then(Value::as_u64)
            && length < least
        {
            found.push(
                fault("too-short", format!("shorter than {least} characters"))
                    .with_help(format!("give at least {least} characters")),
            );
        }
        if let Some(most) = schema.get("maxLength").and_then(Value::as_u64)
            && length > most
        {
            found.push(
                fault("too-long", format!("longer than {most} characters"))
                    .with_help(format!("give at most {most} characters")),
            );
        }
        if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
            && !Regex::new(pattern).is_ok_and(|regex| regex.is_match(text))
        {
            found.push(
                fault("pattern", format!("does not match the pattern `{pattern}`"))
                    .with_help("give a text of that form"),
            );
        }
    }
    if let Some(members) = value.as_object() {
        check_members(schema, members, pointer, found);
    }
    if let (Some(elements), Some(items)) = (value.as_array(), schema.get("items")) {
        for (index, element) in elements.iter().enumerate() {
            check_value(items, element, &format!("{pointer}/{index}"), found);
        }
    }
}

fn check_members(
    schema: &Map<String, Value>,
    members: &Map<String, Value>,
    pointer: &str,
    found: &mut Vec<OptionDiagnostic>,
) {
    let properties = schema.get("properties").and_then(Value::as_object);
    let closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
    for (name, member) in members {
        let inner = format!("{pointer}/{}", escape(name));
        if let Some(property) = properties.and_then(|properties| properties.get(name)) {
            check_value(property, member, &inner, found);
        } else if closed {
            let known = list(
                properties
                    .into_iter()
                    .flat_map(Map::keys)
                    .map(|name| format!("`{name}`")),
            );
            let help = if known.is_empty() {
                "there are no options here".to_owned()
            } else {
                format!("known here: {known}")
            };
            let unknown = OptionDiagnostic::error(
                "unknown-option",
                &inner,
                format!("unknown option `{name}`"),
            );
            found.push(unknown.with_help(help));
        }
    }
    let required = schema.get("required").and_then(Value::as_array);
    for name in required.into_iter().flatten().filter_map(Value::as_str) {
        if !members.contains_key(name) {
            let missing = OptionDiagnostic::error(
                "missing-option",
                pointer,
                format!("option `{name}` is required"),
            );
            found.push(missing.with_help(format!("add `{name}`")));
        }
    }
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        _ => type_of(value) == name,
    }
}

const fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Exact for integers, as near as a double for the rest.
fn is_less(left: &Value, right: &Value) -> bool {
    let integer = |value: &Value| {
        value
            .as_i64()
            .map(i128::from)
            .or_else(|| value.as_u64().map(i128::from))
    };
    if let (Some(left), Some(right)) = (integer(left), integer(right)) {
        return left < right;
    }
    match (left.as_f64(), right.as_f64()) {
        (Some(left), Some(right)) => left < right,
        _ => false,
    }
}

fn list(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

/// One part of a JSON pointer (RFC 6901).
pub(crate) fn escape(part: &str) -> String {
    part.replace('~', "~0").replace('/', "~1")
}

/// JSON with sorted keys and without white space: equal options give equal text.
pub(crate) fn canonical(value: &Value) -> String {
    let mut out = String::new();
    write_canonical(value, &mut out);
    out
}

fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_unstable_by_key(|(name, _)| name.as_str());
            for (index, (name, member)) in members.into_iter().enumerate() {
                out.push(if index == 0 { '{' } else { ',' });
                write_leaf(&Value::String(name.clone()), out);
                out.push(':');
                write_canonical(member, out);
            }
            out.push_str(if value.as_object().is_some_and(Map::is_empty) {
                "{}"
            } else {
                "}"
            });
        }
        Value::Array(elements) => {
            out.push('[');
            for (index, element) in elements.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_canonical(element, out);
            }
            out.push(']');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            write_leaf(value, out)
        }
    }
}

fn write_leaf(value: &Value, out: &mut String) {
    // Writing into a String cannot fail.
    let _ok = write!(out, "{value}");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Schema {
        let text = json!({
            "type": "object",
            "additionalProperties": false,
            "required": ["url"],
            "properties": {
                "url": {"type": "string", "minLength": 3, "writeOnly": true, "pattern": "^[a-z]+:"},
                "size": {"type": "integer", "minimum": 1, "maximum": u64::MAX},
                "mode": {"enum": ["one", "two"], "default": "one"},
                "nodes": {"type": "array", "items": {"type": "object", "properties": {"a/b": {"type": ["string", "null"]}}}},
                "old": {"type": "boolean", "deprecated": true}
            }
        });
        Schema::parse(&text.to_string()).unwrap()
    }

    #[track_caller]
    fn check(options: &Value, expected: &[(&str, &str)]) {
        let found = schema().check(options);
        for fault in &found {
            assert!(
                fault.severity != Severity::Error || fault.help.is_some(),
                "{fault:?}"
            );
        }
        let found: Vec<_> = found
            .iter()
            .map(|d| (d.code.as_str(), d.pointer.as_str()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn every_keyword_points_at_its_fault() {
        check(&json!({"url": "redis:x"}), &[]);
        check(
            &json!({"url": "redis:x", "size": u64::MAX, "mode": "two"}),
            &[],
        );
        check(&json!({}), &[("missing-option", "")]);
        check(&json!({"url": 7}), &[("wrong-type", "/url")]);
        check(&json!({"url": null}), &[("wrong-type", "/url")]);
        check(
            &json!({"url": "::"}),
            &[("too-short", "/url"), ("pattern", "/url")],
        );
        check(&json!({"url": "a:b", "size": 0}), &[("too-small", "/size")]);
        check(
            &json!({"url": "a:b", "size": 1.0}),
            &[("wrong-type", "/size")],
        );
        check(
            &json!({"url": "a:b", "mode": "three"}),
            &[("not-allowed", "/mode")],
        );
        check(
            &json!({"url": "a:b", "more": 1}),
            &[("unknown-option", "/more")],
        );
        check(
            &json!({"url": "a:b", "nodes": [{"a/b": null}, {"a/b": 5}]}),
            &[("wrong-type", "/nodes/1/a~1b")],
        );
        check(
            &json!({"url": "a:b", "old": true}),
            &[("deprecated", "/old")],
        );
    }

    #[test]
    fn all_faults_are_found_in_one_run() {
        check(
            &json!({"size": "big", "x": 1}),
            &[
                ("wrong-type", "/size"),
                ("unknown-option", "/x"),
                ("missing-option", ""),
            ],
        );
    }

    #[test]
    fn no_message_repeats_a_value() {
        let found = schema().check(&json!({"url": "sesame", "size": "sesame", "mode": "sesame"}));
        assert_eq!(found.len(), 3);
        assert!(!format!("{found:?}").contains("sesame"));
    }

    #[test]
    fn a_broken_schema_is_refused_whatever_the_options() {
        for text in [
            "",
            "[]",
            "{}",
            r#"{"type": "string"}"#,
            r#"{"type": "object", "oneOf": []}"#,
            r#"{"type": "object", "properties": {"a": {"type": "text"}}}"#,
            r#"{"type": "object", "properties": {"a": {"pattern": "("}}}"#,
            r#"{"type": "object", "properties": {"a": {"type": "integer", "default": "x"}}}"#,
            r#"{"type": "object", "required": "a"}"#,
        ] {
            assert!(Schema::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_pointer_to_nowhere_is_shortened_and_noted() {
        let options = json!({"a": {"b": 1}});
        let mut collector = Collector::new(&options);
        for pointer in ["/a/b", "/a/x/y", "no pointer"] {
            collector.report(OptionDiagnostic::error("c", pointer, "m"));
        }
        let pointers: Vec<_> = collector
            .finish(false)
            .into_iter()
            .map(|d| (d.severity, d.pointer))
            .collect();
        assert_eq!(
            pointers,
            [
                (Severity::Error, "/a/b".to_owned()),
                (Severity::Error, "/a".to_owned()),
                (Severity::Note, "/a".to_owned()),
                (Severity::Error, String::new()),
                (Severity::Note, String::new()),
            ]
        );
    }

    #[test]
    fn a_refusal_without_a_reason_is_a_finding() {
        let options = json!({});
        assert_eq!(
            Collector::new(&options).finish(false)[0].code,
            "refused-without-reason"
        );
        assert!(Collector::new(&options).finish(true).is_empty());
    }

    #[test]
    fn the_plugin_repeats_nothing_the_schema_found() {
        let at = |pointer: &str| OptionDiagnostic::error("c", pointer, "m");
        let mut found = vec![at("/a/b")];
        add_new(
            &mut found,
            vec![at("/a/b"), at("/a"), at("/a/b/c"), at("/a/bc"), at("/d")],
        );
        let pointers: Vec<_> = found.iter().map(|d| d.pointer.as_str()).collect();
        assert_eq!(pointers, ["/a/b", "/a/bc", "/d"]);
    }

    #[test]
    fn equal_options_have_equal_text() {
        let one = json!({"b": [1, {"y": null, "x": "\u{e9}\""}], "a": {}});
        let other = json!({"a": {}, "b": [1, {"x": "\u{e9}\"", "y": null}]});
        assert_eq!(canonical(&one), canonical(&other));
        assert_eq!(
            serde_json::from_str::<Value>(&canonical(&one)).unwrap(),
            one
        );
    }
}

//! A value that does not fit its field: what it is, as its author would call it, and what to write instead.

use std::fmt;

use serde_json::Value;

use super::events::Style;
use super::quote::{listed, quote, shortened};
use super::scalar::{self, Presence, Scalar};
use super::yaml::{Node, NodeKind};

/// What a field takes.
pub(super) enum Expected {
    Bool,
    Integer(Unit),
    String,
    List,
    /// A mapping with these fields.
    Mapping(Vec<&'static str>),
    /// One of these words.
    Word(String),
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bool => "`true` or `false`",
            Self::Integer(_) => "a whole number",
            Self::String => "a string",
            Self::List => "a list",
            Self::Mapping(_) => "a mapping",
            Self::Word(words) => words,
        })
    }
}

impl Expected {
    /// What to write instead of `node`.
    pub(super) fn help(&self, node: &Node) -> String {
        let scalar = scalar::scalar(node);
        if scalar.is_some_and(|scalar| scalar.presence() == Presence::Null) {
            return "give it a value, or leave the field out where it is not required".to_owned();
        }
        let text = scalar.map(|scalar| scalar.value);
        match self {
            Self::Bool => match text.map(str::to_ascii_lowercase).as_deref() {
                Some("yes" | "y" | "on" | "1" | "true") => "write `true`".to_owned(),
                Some("no" | "n" | "off" | "0" | "false") => "write `false`".to_owned(),
                _ => format!("write {self}"),
            },
            Self::Integer(unit) => unit.help().to_owned(),
            Self::String => "write one string here".to_owned(),
            Self::List => match text.filter(|text| !text.contains(['[', ',', ':'])) {
                Some(text) => format!("write `[{}]`", shortened(text)),
                None => "begin each item of the list with `- `".to_owned(),
            },
            Self::Mapping(fields) => {
                // A lone word where the mapping has one field for it.
                let field = fields
                    .iter()
                    .find(|field| matches!(**field, "key" | "kind"));
                match (field, text.filter(|text| !text.contains(['"', '\\']))) {
                    (Some(field), Some(text)) => {
                        format!("write `{{ {field}: \"{}\" }}`", shortened(text))
                    }
                    _ => format!("its fields are {}", listed(fields.iter().copied())),
                }
            }
            Self::Word(words) => format!("write {words}"),
        }
    }
}

/// What a number counts, which the field's name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Things,
    Seconds,
    Milliseconds,
}

impl Unit {
    /// The unit of the field called `name`.
    pub(super) fn of(name: Option<&str>) -> Self {
        match name {
            Some(name) if name.ends_with("_secs") => Self::Seconds,
            Some(name) if name.ends_with("_ms") => Self::Milliseconds,
            Some(_) | None => Self::Things,
        }
    }

    const fn help(self) -> &'static str {
        match self {
            Self::Things => "write a whole number",
            Self::Seconds => "write a whole number of seconds",
            Self::Milliseconds => "write a whole number of milliseconds",
        }
    }

    /// So many milliseconds in this unit, where they are a whole number of it.
    fn count_of(self, milliseconds: u64) -> Option<u64> {
        match self {
            Self::Things => None,
            Self::Seconds => milliseconds
                .is_multiple_of(1_000)
                .then_some(milliseconds / 1_000),
            Self::Milliseconds => Some(milliseconds),
        }
    }
}

/// A scalar that nearly is an integer.
pub(super) struct NotInteger<'t> {
    pub(super) text: &'t str,
    pub(super) what: &'static str,
    pub(super) help: String,
}

impl<'t> NotInteger<'t> {
    /// What keeps `scalar` from being an integer; `None` when it is something else altogether.
    pub(super) fn of(scalar: Scalar<'t>, unit: Unit) -> Option<Self> {
        let text = scalar.value;
        let with_help = |what, help: String| Some(Self { text, what, help });
        let instead = |what, number: Option<String>| {
            let help = number.map_or_else(
                || unit.help().to_owned(),
                |number| format!("write `{number}`"),
            );
            with_help(what, help)
        };
        if scalar.style != Style::Plain {
            let number = scalar::unsigned(text.trim(), u64::from_str_radix)?;
            return instead(
                "a quoted string, not a whole number",
                Some(number.to_string()),
            );
        }
        if scalar::is_digits_but_no_number(text) {
            let digits = text.trim_start_matches(['+', '-']).trim_start_matches('0');
            let number = if digits.is_empty() { "0" } else { digits };
            return instead(
                "a string, since it has zeros in front, not a whole number",
                Some(number.to_owned()),
            );
        }
        if text.starts_with('-')
            && (text.len() > 1
                && text
                    .trim_start_matches('-')
                    .starts_with(|c: char| c.is_ascii_digit()))
        {
            return with_help("negative", "write a number of at least 1".to_owned());
        }
        if scalar::unsigned(text, u128::from_str_radix).is_some() || is_many_digits(text) {
            return with_help(
                "larger than any number a policy file takes",
                format!("write a number of at most {}", u64::MAX),
            );
        }
        if let Some(float) = scalar::float(text) {
            return instead("a float, not a whole number", whole(float));
        }
        let grouped = text.replace(['_', ','], "");
        if grouped.len() < text.len() && scalar::unsigned(&grouped, u64::from_str_radix).is_some() {
            return instead(
                "a string, since numbers take no separators, not a whole number",
                Some(grouped),
            );
        }
        let milliseconds = with_unit(text)?;
        instead(
            "a string, since numbers take no units, not a whole number",
            milliseconds
                .and_then(|milliseconds| unit.count_of(milliseconds))
                .map(|number| number.to_string()),
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

/// A number with a unit of time, such as `5m`: in milliseconds, where they are not too many.
fn with_unit(text: &str) -> Option<Option<u64>> {
    let unit = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, unit) = text.split_at_checked(unit)?;
    let number: u64 = number.parse().ok()?;
    let milliseconds: u64 = match unit.trim() {
        "ms" => 1,
        "s" | "sec" | "secs" | "second" | "seconds" => 1_000,
        "m" | "min" | "mins" | "minute" | "minutes" => 60_000,
        "h" | "hour" | "hours" => 3_600_000,
        "d" | "day" | "days" => 86_400_000,
        _ => return None,
    };
    Some(number.checked_mul(milliseconds))
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

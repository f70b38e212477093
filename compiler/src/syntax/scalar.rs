//! What scalars mean: the rules of `serde_yaml` 0.9's typed reader, function by function.

use serde_json::{Number, Value};

use super::events::Style;
use super::yaml::{Node, NodeKind};

const NULL_TAG: &[u8] = b"tag:yaml.org,2002:null";
const BOOL_TAG: &[u8] = b"tag:yaml.org,2002:bool";
const INT_TAG: &[u8] = b"tag:yaml.org,2002:int";
const FLOAT_TAG: &[u8] = b"tag:yaml.org,2002:float";

/// A scalar node, taken apart.
#[derive(Clone, Copy)]
pub(super) struct Scalar<'t> {
    pub(super) value: &'t str,
    pub(super) style: Style,
    tag: Option<&'t [u8]>,
}

/// What a scalar gives where null means left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Null,
    Present,
    /// Tagged `!!null`, and no null.
    NotNull,
}

/// What keeps a scalar from being a value of any type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Untyped {
    /// A tag of its own, such as `!foo`.
    LocalTag,
    /// `!!bool`, `!!int`, `!!float` or `!!null` on something else; the word of the tag.
    NotOfTag(&'static str),
    /// An integer beyond 64 bits.
    TooLarge,
    /// Infinity or not a number.
    NotFinite,
}

/// `node` as a scalar.
pub(super) fn scalar(node: &Node) -> Option<Scalar<'_>> {
    match &node.kind {
        NodeKind::Scalar { value, style } => Some(Scalar {
            value,
            style: *style,
            tag: node.tag.as_deref(),
        }),
        NodeKind::Sequence(_) | NodeKind::Mapping(_) => None,
    }
}

/// The name of a local tag: `foo` of `!foo`.
pub(super) fn local_tag(tag: Option<&[u8]>) -> Option<&str> {
    let (mark, rest) = tag?.split_first()?;
    if *mark != b'!' {
        return None;
    }
    std::str::from_utf8(if rest.is_empty() { b"!" } else { rest }).ok()
}

impl<'t> Scalar<'t> {
    /// The name of the scalar's local tag.
    pub(super) fn local_tag(self) -> Option<&'t str> {
        local_tag(self.tag)
    }

    /// As a bool: plain, whatever its tag, or a literal block tagged `!!bool`.
    pub(super) fn as_bool(self) -> Option<bool> {
        self.plain_or_literal(BOOL_TAG)
            .then(|| parse_bool(self.value))?
    }

    /// As an integer: plain, whatever its tag, or a literal block tagged `!!int`.
    pub(super) fn as_u64(self) -> Option<u64> {
        self.plain_or_literal(INT_TAG)
            .then(|| unsigned(self.value, u64::from_str_radix))?
    }

    /// Whether it is null where null means left out. The empty text is null only without a tag.
    pub(super) fn presence(self) -> Presence {
        match self.tag {
            _ if self.style != Style::Plain => Presence::Present,
            Some(NULL_TAG) if is_null(self.value) => Presence::Null,
            Some(NULL_TAG) => Presence::NotNull,
            None if self.value.is_empty() || is_null(self.value) => Presence::Null,
            Some(_) | None => Presence::Present,
        }
    }

    /// As the word of an enum: the tag's name over nothing or null, or else the text.
    pub(super) fn as_word(self) -> Option<&'t str> {
        match self.local_tag() {
            Some(word) => {
                let null =
                    self.style == Style::Plain && (self.value.is_empty() || is_null(self.value));
                null.then_some(word)
            }
            None => Some(self.value),
        }
    }

    /// As a value of whatever type it looks like.
    pub(super) fn as_any(self) -> Result<Value, Untyped> {
        if self.local_tag().is_some() {
            return Err(Untyped::LocalTag);
        }
        match self.tag {
            Some(BOOL_TAG) => parse_bool(self.value)
                .map(Value::Bool)
                .ok_or(Untyped::NotOfTag("!!bool")),
            Some(INT_TAG) => integer(self.value).unwrap_or(Err(Untyped::NotOfTag("!!int"))),
            Some(FLOAT_TAG) => match float(self.value) {
                Some(float) => finite(float),
                None => Err(Untyped::NotOfTag("!!float")),
            },
            Some(NULL_TAG) if is_null(self.value) => Ok(Value::Null),
            Some(NULL_TAG) => Err(Untyped::NotOfTag("!!null")),
            // A tag whose name is not UTF-8 is no local tag, and changes nothing.
            Some(tag) if !tag.starts_with(b"!") => Ok(self.value.into()),
            Some(_) | None if self.style == Style::Plain => self.untagged(),
            Some(_) | None => Ok(self.value.into()),
        }
    }

    /// As the value a plain text without a tag looks like.
    fn untagged(self) -> Result<Value, Untyped> {
        if self.value.is_empty() || is_null(self.value) {
            return Ok(Value::Null);
        }
        if let Some(word) = parse_bool(self.value) {
            return Ok(Value::Bool(word));
        }
        if let Some(integer) = integer(self.value) {
            return integer;
        }
        match float(self.value) {
            Some(float) if !is_digits_but_no_number(self.value) => finite(float),
            _ => Ok(self.value.into()),
        }
    }

    fn plain_or_literal(self, tag: &[u8]) -> bool {
        match self.style {
            Style::Plain => true,
            Style::Literal => self.tag == Some(tag),
            Style::Other => false,
        }
    }
}

/// Whether `text` is one of the words for null.
pub(super) fn is_null(text: &str) -> bool {
    matches!(text, "null" | "Null" | "NULL" | "~")
}

/// `text` as one of the words for a bool.
pub(super) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" => Some(true),
        "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

/// `text` as a float of YAML.
pub(super) fn float(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    if unsigned.len() < text.len() && unsigned.starts_with(['+', '-']) {
        return None;
    }
    match (unsigned, text) {
        (".inf" | ".Inf" | ".INF", _) => Some(f64::INFINITY),
        (_, "-.inf" | "-.Inf" | "-.INF") => Some(f64::NEG_INFINITY),
        (_, ".nan" | ".NaN" | ".NAN") => Some(f64::NAN),
        _ => unsigned
            .parse()
            .ok()
            .filter(|float: &f64| float.is_finite()),
    }
}

/// Whether `text` is a decimal integer but for zeros in front, which make it a string.
pub(super) fn is_digits_but_no_number(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit())
}

fn finite(float: f64) -> Result<Value, Untyped> {
    Number::from_f64(float)
        .map(Value::Number)
        .ok_or(Untyped::NotFinite)
}

/// `text` as an integer, `None` when it is no integer, `TooLarge` beyond 64 bits.
fn integer(text: &str) -> Option<Result<Value, Untyped>> {
    if let Some(integer) = unsigned(text, u64::from_str_radix) {
        return Some(Ok(integer.into()));
    }
    if let Some(integer) = negative(text, i64::from_str_radix) {
        return Some(Ok(integer.into()));
    }
    let beyond = unsigned(text, u128::from_str_radix).is_some()
        || negative(text, i128::from_str_radix).is_some();
    beyond.then_some(Err(Untyped::TooLarge))
}

type Radix<T> = fn(&str, u32) -> Result<T, std::num::ParseIntError>;

/// A non-negative integer: decimal, `0x`, `0o`, `0b`, one `+` in front.
pub(super) fn unsigned<T>(text: &str, from_str_radix: Radix<T>) -> Option<T> {
    let positive = text.strip_prefix('+').unwrap_or(text);
    for (prefix, radix) in [("0x", 16), ("0o", 8), ("0b", 2)] {
        if let Some(digits) = positive.strip_prefix(prefix) {
            if digits.starts_with(['+', '-']) {
                return None;
            }
            if let Ok(integer) = from_str_radix(digits, radix) {
                return Some(integer);
            }
        }
    }
    if positive.starts_with(['+', '-']) || is_digits_but_no_number(text) {
        return None;
    }
    from_str_radix(positive, 10).ok()
}

/// An integer with `-` in front.
fn negative<T>(text: &str, from_str_radix: Radix<T>) -> Option<T> {
    for (prefix, radix) in [("-0x", 16), ("-0o", 8), ("-0b", 2)] {
        if let Some(digits) = text.strip_prefix(prefix)
            && let Ok(integer) = from_str_radix(&format!("-{digits}"), radix)
        {
            return Some(integer);
        }
    }
    if is_digits_but_no_number(text) {
        return None;
    }
    from_str_radix(text, 10).ok()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::syntax::serde_reader::AnyValue;
    use crate::syntax::yaml;

    /// Texts of one scalar each that read differently from what one would think, or nearly.
    const TEXTS: &[&str] = &[
        "5",
        "+5",
        "-5",
        "0x1F",
        "0X1F",
        "0o17",
        "0b11",
        "017",
        "007",
        "0",
        "-0",
        "1_000",
        "1e3",
        "5.0",
        "\"5\"",
        "'5'",
        "++5",
        "+-5",
        "0x+5",
        "0x-5",
        "0x",
        "-0x1F",
        "+0x1F",
        "--5",
        "18446744073709551615",
        "18446744073709551616",
        "-9223372036854775808",
        "-9223372036854775809",
        "340282366920938463463374607431768211456",
        "00",
        "-00",
        "+00",
        "true",
        "True",
        "TRUE",
        "tRUE",
        "\"true\"",
        "yes",
        "on",
        "y",
        "no",
        "off",
        "false",
        "FALSE",
        "null",
        "Null",
        "NULL",
        "nUll",
        "~",
        "\"null\"",
        "\"\"",
        "''",
        "---",
        ".inf",
        "-.inf",
        "+.inf",
        ".nan",
        "-.nan",
        "1.5",
        ".5",
        "5.",
        "+1.5",
        "1e400",
        "0x1p3",
        "inf",
        "nan",
        "infinity",
        "!!int 5",
        "!!int \"5\"",
        "!!int x",
        "!!float 5",
        "!!float x",
        "!!bool true",
        "!!bool yes",
        "!!bool \"true\"",
        "!!null ~",
        "!!null x",
        "!!null ''",
        "!!str 5",
        "!!str",
        "!!null",
        "!foo",
        "!foo bar",
        "!foo ~",
        "!foo \"\"",
        "!foo 5",
        "! 5",
        "! \"5\"",
        "!enforce",
        "!enforce ~",
        "enforce",
        "\"enforce\"",
        "!!str enforce",
        "Enforce",
        "|\n  5",
        "|-\n  5",
        "!!int |-\n  5",
        "!!bool |-\n  true",
        "!!bool >-\n  true",
        "!!str |-\n  5",
        ">-\n  5",
        "!<tag:yaml.org,2002:int> 5",
        "!<x> 5",
        "!%C0%80 5",
        "!%C0%80 '5'",
        "- 5",
        "a: 5",
        "!foo [5]",
        "!!seq []",
        "!!map {}",
        "!foo {}",
        "08",
        "09.5",
        "1__0",
        "1,000",
        "5 ",
        "# 5",
        "0x8000000000000000",
        "٣",
        "é",
    ];

    /// Checks our reading of every text against `serde_yaml`'s, as `T`.
    #[track_caller]
    fn check_all<T>(ours: impl Fn(Option<Scalar<'_>>) -> Option<T>)
    where
        T: PartialEq + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        for text in TEXTS {
            let (tree, failure) = yaml::parse(text, 100);
            assert_eq!(failure, None, "{text}");
            let root = tree.documents.first().and_then(|document| document.root);
            let Some(root) = root else { continue };
            assert_eq!(
                ours(scalar(tree.node(root.node))),
                serde_yaml::from_str::<T>(text).ok(),
                "{text}"
            );
        }
    }

    #[test]
    fn scalars_mean_what_serde_yaml_makes_of_them() {
        check_all(|scalar| scalar?.as_bool());
        check_all(|scalar| scalar?.as_u64());
        check_all(|scalar| scalar.map(|scalar| scalar.value.to_owned()));
        check_all(|scalar| {
            let scalar = scalar?;
            match scalar.presence() {
                Presence::Null => Some(None),
                Presence::Present => Some(Some(scalar.value.to_owned())),
                Presence::NotNull => None,
            }
        });
    }

    #[test]
    fn words_are_read_as_serde_yaml_reads_enums() {
        #[derive(Debug, PartialEq, Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Word {
            Enforce,
            Foo,
        }
        check_all(|scalar| match scalar?.as_word()? {
            "enforce" => Some(Word::Enforce),
            "foo" => Some(Word::Foo),
            _ => None,
        });
    }

    #[test]
    fn values_of_any_type_are_read_as_serde_yaml_reads_them() {
        for text in TEXTS {
            let (tree, _) = yaml::parse(text, 100);
            let Some(root) = tree.documents.first().and_then(|document| document.root) else {
                continue;
            };
            // Lists and mappings are not for this module.
            let Some(scalar) = scalar(tree.node(root.node)) else {
                continue;
            };
            let theirs = serde_yaml::from_str::<AnyValue>(text).ok();
            assert_eq!(scalar.as_any().ok(), theirs.map(|any| any.0), "{text}");
        }
    }
}

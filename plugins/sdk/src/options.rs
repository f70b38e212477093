//! Options: read from JSON, with findings that point at the place and never repeat a value.

use std::fmt;
use std::io;

use quota_plugin_abi::{QUOTA_SEVERITY_ERROR, QUOTA_SEVERITY_NOTE, QUOTA_SEVERITY_WARNING};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use serde_path_to_error::Segment;

/// A schema for backends without options.
pub const NO_OPTIONS_SCHEMA: &str =
    r#"{"type":"object","properties":{},"additionalProperties":false}"#;

/// Options of a backend that has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoOptions {}

/// A text that prints as `***`: passwords, tokens, URLs with credentials. Mark the option `writeOnly` in the schema too.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text itself. Nothing made of it may reach a log, a finding or a health report.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The secret this text stands for, so that none has to stand in a policy file: `file:PATH` is the content of a file
    /// without the line end it closes with, `env:NAME` an environment variable, any other text itself. It reads, so it is for
    /// [`create`](crate::Backend::create), never for `validate`.
    ///
    /// # Errors
    /// The file cannot be read or is not UTF-8, or there is no such variable.
    pub fn resolve(&self) -> Result<Self, SecretError> {
        if let Some(path) = self.0.strip_prefix("file:") {
            let text = std::fs::read_to_string(path).map_err(|source| SecretError::File {
                path: path.to_owned(),
                source,
            })?;
            let line = text.strip_suffix('\n').unwrap_or(&text);
            Ok(Self(line.strip_suffix('\r').unwrap_or(line).to_owned()))
        } else if let Some(name) = self.0.strip_prefix("env:") {
            match std::env::var(name) {
                Ok(text) => Ok(Self(text)),
                Err(_) => Err(SecretError::Variable(name.to_owned())),
            }
        } else {
            Ok(self.clone())
        }
    }
}

/// Why a secret is not there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The file of `file:PATH` cannot be read, or is not UTF-8.
    #[error("cannot read the secret in `{path}`")]
    File {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The variable of `env:NAME` is not set, or is not UTF-8.
    #[error("the environment variable `{0}` holds no secret")]
    Variable(String),
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

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

impl Severity {
    pub(crate) const fn to_abi(self) -> u32 {
        match self {
            Self::Error => QUOTA_SEVERITY_ERROR,
            Self::Warning => QUOTA_SEVERITY_WARNING,
            Self::Note => QUOTA_SEVERITY_NOTE,
        }
    }
}

/// One finding about the options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// Stable name of the finding, at most 32 bytes.
    pub code: String,
    /// JSON pointer (RFC 6901) into the options; a missing key names its parent, `""` is the whole.
    pub pointer: String,
    /// What is wrong, without repeating the value.
    pub message: String,
    /// What to do; may be empty.
    pub help: String,
}

/// Findings about the options, in the order they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics(Vec<Diagnostic>);

impl Diagnostics {
    /// No findings.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds an error: the options are refused.
    pub fn error(&mut self, code: &str, pointer: &str, message: impl Into<String>) {
        self.push(Severity::Error, code, pointer, message.into());
    }

    /// Adds a warning: accepted, but surely not meant.
    pub fn warning(&mut self, code: &str, pointer: &str, message: impl Into<String>) {
        self.push(Severity::Warning, code, pointer, message.into());
    }

    /// Adds a note.
    pub fn note(&mut self, code: &str, pointer: &str, message: impl Into<String>) {
        self.push(Severity::Note, code, pointer, message.into());
    }

    /// Says what to do about the last finding.
    pub fn help(&mut self, help: impl Into<String>) {
        if let Some(last) = self.0.last_mut() {
            last.help = help.into();
        }
    }

    /// Whether one of them refuses the options.
    #[must_use]
    pub fn has_error(&self) -> bool {
        self.0.iter().any(|d| d.severity == Severity::Error)
    }

    /// The findings.
    #[must_use]
    pub fn as_slice(&self) -> &[Diagnostic] {
        &self.0
    }

    fn push(&mut self, severity: Severity, code: &str, pointer: &str, message: String) {
        self.0.push(Diagnostic {
            severity,
            code: code.to_owned(),
            pointer: pointer.to_owned(),
            message,
            help: String::new(),
        });
    }
}

/// Reads options; the one finding otherwise.
pub(crate) fn parse<O: DeserializeOwned>(text: &[u8]) -> Result<O, Diagnostics> {
    let mut found = Diagnostics::new();
    // serde's derived structs take an array of their fields as well.
    if text.trim_ascii_start().first() != Some(&b'{') {
        found.error("wrong-type", "", "the options are not a JSON object");
        return Err(found);
    }
    let mut json = serde_json::Deserializer::from_slice(text);
    let options = match serde_path_to_error::deserialize(&mut json) {
        Ok(options) => options,
        Err(error) => {
            match error.inner().classify() {
                Category::Data => {
                    let (code, message) = without_value(&error.inner().to_string());
                    found.error(code, &pointer(error.path()), message);
                }
                Category::Syntax | Category::Eof | Category::Io => {
                    found.error(
                        "not-json",
                        "",
                        format!("the options are not JSON: {}", error.inner()),
                    );
                }
            }
            return Err(found);
        }
    };
    match json.end() {
        Ok(()) => Ok(options),
        Err(error) => {
            found.error("not-json", "", format!("the options are not JSON: {error}"));
            Err(found)
        }
    }
}

/// The JSON pointer of a path.
fn pointer(path: &serde_path_to_error::Path) -> String {
    let mut pointer = String::new();
    for segment in path {
        match segment {
            Segment::Map { key } => {
                pointer.push('/');
                pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
            }
            Segment::Seq { index } => {
                pointer.push('/');
                pointer.push_str(&index.to_string());
            }
            // Not a step in the JSON text, or one whose name is unknown: the place so far is the nearest known.
            Segment::Enum { .. } => {}
            Segment::Unknown => break,
        }
    }
    pointer
}

/// Code and message of what serde says, with the value cut out: it may be a secret.
fn without_value(text: &str) -> (&'static str, String) {
    let text = text
        .rsplit_once(" at line ")
        .map_or(text, |(message, _)| message);
    if text.starts_with("missing field ") {
        return ("missing", text.to_owned());
    }
    if text.starts_with("unknown field ") {
        return ("unknown-field", text.to_owned());
    }
    if text.starts_with("duplicate field ") {
        return ("duplicate-field", text.to_owned());
    }
    let (code, fault) = if text.starts_with("invalid type: ") {
        ("wrong-type", "wrong type")
    } else if text.starts_with("unknown variant ") {
        ("not-allowed", "not one of the values allowed here")
    } else {
        ("invalid-value", "not a value this option takes")
    };
    // The value comes first, so what follows the last `expected` is the type's own words.
    let message = match text.rsplit_once(", expected ") {
        Some((_, expected)) => format!("{fault}: expected {expected}"),
        None => fault.to_owned(),
    };
    (code, message)
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only the reading is tested")]
    struct Options {
        url: Secret,
        #[serde(default)]
        nodes: Vec<Node>,
        #[serde(default)]
        mode: Mode,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only the reading is tested")]
    struct Node {
        #[serde(rename = "a/b~c")]
        port: u16,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Mode {
        #[default]
        Single,
        Cluster,
    }

    #[track_caller]
    fn check(text: &str, code: &str, pointer: &str, message: &str) {
        let found = parse::<Options>(text.as_bytes()).unwrap_err();
        let [only] = found.as_slice() else {
            panic!("one finding, not {found:?}");
        };
        assert_eq!(
            (&*only.code, &*only.pointer, &*only.message),
            (code, pointer, message)
        );
        assert!(found.has_error());
        assert!(!format!("{found:?}").contains("hunter2"));
    }

    #[test]
    fn findings_point_at_the_place_and_keep_values_to_themselves() {
        let node = r#"{"url":"u","nodes":[{"a/b~c":1},{"a/b~c":"hunter2"}]}"#;
        check(
            node,
            "wrong-type",
            "/nodes/1/a~1b~0c",
            "wrong type: expected u16",
        );
        check(
            r#"{"url":["hunter2"]}"#,
            "wrong-type",
            "/url",
            "wrong type: expected a string",
        );
        check(
            r#"{"url":"u","nodes":[{"a/b~c":70000}]}"#,
            "invalid-value",
            "/nodes/0/a~1b~0c",
            "not a value this option takes: expected u16",
        );
        check(
            r#"{"url":"u","mode":"hunter2, expected x"}"#,
            "not-allowed",
            "/mode",
            "not one of the values allowed here: expected `single` or `cluster`",
        );
    }

    #[test]
    fn a_missing_option_names_its_parent() {
        check("{}", "missing", "", "missing field `url`");
        check(
            r#"{"url":"u","nodes":[{}]}"#,
            "missing",
            "/nodes/0",
            "missing field `a/b~c`",
        );
    }

    #[test]
    fn an_unknown_option_is_refused() {
        let found = parse::<NoOptions>(br#"{"hosts":1}"#).unwrap_err();
        let [only] = found.as_slice() else {
            panic!("one finding, not {found:?}");
        };
        assert_eq!((&*only.code, &*only.pointer), ("unknown-field", "/hosts"));
    }

    #[test]
    fn what_is_not_a_json_object_is_refused() {
        let deep = r#"{"nodes":"#.repeat(100_000);
        for (text, code) in [
            ("", "wrong-type"),
            (r#"["u"]"#, "wrong-type"),
            ("{", "not-json"),
            (r#"{"url":"u"} {}"#, "not-json"),
            (r#"{"url":"\ud800"}"#, "not-json"),
            (&deep, "wrong-type"),
        ] {
            let found = parse::<Options>(text.as_bytes()).unwrap_err();
            assert!(found.has_error(), "{text:.20}");
            assert_eq!(found.as_slice()[0].code, code, "{text:.20}");
        }
        assert!(parse::<Options>(b" {\"url\":\"u\"}\n").is_ok());
    }

    #[test]
    fn a_secret_stands_in_a_file_a_variable_or_the_option_itself() {
        let resolve = |text: &str| Secret::from(text.to_owned()).resolve();
        let revealed = |text: &str| resolve(text).unwrap().reveal().to_owned();
        assert_eq!(revealed("hunter2"), "hunter2");
        let folder = std::env::temp_dir().join(format!("quota-sdk-secret-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("secret");
        let by_file = format!("file:{}", file.display());
        for (content, expected) in [
            ("hunter2\n", "hunter2"),
            ("hunter2\r\n", "hunter2"),
            (" hunter2 \n\n", " hunter2 \n"),
            ("hunter2", "hunter2"),
            ("", ""),
        ] {
            std::fs::write(&file, content).unwrap();
            assert_eq!(revealed(&by_file), expected);
        }
        std::fs::write(&file, b"\xff").unwrap();
        assert!(resolve(&by_file).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
        let error = resolve(&by_file).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("cannot read the secret in `{}`", file.display())
        );
        assert!(error.source().is_some());
        assert_eq!(revealed("env:PATH"), std::env::var("PATH").unwrap());
        let error = resolve("env:QUOTA_SDK_NO_SUCH_VARIABLE").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the environment variable `QUOTA_SDK_NO_SUCH_VARIABLE` holds no secret"
        );
    }

    #[test]
    fn a_secret_prints_as_stars() {
        let secret = Secret::from("hunter2".to_owned());
        assert_eq!(format!("{secret} {secret:?}"), "*** ***");
        assert_eq!(secret.reveal(), "hunter2");
    }
}

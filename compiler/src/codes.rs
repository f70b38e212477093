//! The catalogue of diagnostic codes: one row each. A code is never reused or given a second meaning.

use crate::diagnostic::Severity;

/// A row of the catalogue.
#[derive(Debug, PartialEq, Eq)]
pub struct Code {
    /// `Q` and four digits; the first two name the block.
    pub id: &'static str,
    /// The fault in kebab case, never the cure.
    pub name: &'static str,
    /// How much it weighs.
    pub severity: Severity,
    /// One line.
    pub summary: &'static str,
    /// The page `quotac explain --code` prints, Markdown: what it means, a file that fails, a file that passes.
    pub page: &'static str,
}

/// The row called `code`, by id or by name, ignoring ASCII case.
#[must_use]
pub fn find(code: &str) -> Option<&'static Code> {
    ALL.iter()
        .copied()
        .find(|row| row.id.eq_ignore_ascii_case(code) || row.name.eq_ignore_ascii_case(code))
}

/// Q0101: the file is larger than the limit.
pub static TEXT_TOO_LARGE: Code = Code {
    id: "Q0101",
    name: "text-too-large",
    severity: Severity::Error,
    summary: "the file is larger than the limit",
    page: include_str!("../explain/Q0101.md"),
};

/// Q0102: the file holds bytes that are not UTF-8.
pub static NOT_UTF8: Code = Code {
    id: "Q0102",
    name: "not-utf8",
    severity: Severity::Error,
    summary: "the file holds bytes that are not UTF-8",
    page: include_str!("../explain/Q0102.md"),
};

/// Q0103: the file holds a character YAML forbids.
pub static CONTROL_CHARACTER: Code = Code {
    id: "Q0103",
    name: "control-character",
    severity: Severity::Error,
    summary: "the file holds a character YAML forbids",
    page: include_str!("../explain/Q0103.md"),
};

/// Q0104: the file is not YAML.
pub static YAML_SYNTAX: Code = Code {
    id: "Q0104",
    name: "yaml-syntax",
    severity: Severity::Error,
    summary: "the file is not YAML",
    page: include_str!("../explain/Q0104.md"),
};

/// Q0105: the file nests deeper than the limit.
pub static NESTED_TOO_DEEP: Code = Code {
    id: "Q0105",
    name: "nested-too-deep",
    severity: Severity::Error,
    summary: "the file nests deeper than the limit",
    page: include_str!("../explain/Q0105.md"),
};

/// Q0106: the file holds more YAML nodes than the limit.
pub static TOO_MANY_EVENTS: Code = Code {
    id: "Q0106",
    name: "too-many-events",
    severity: Severity::Error,
    summary: "the file holds more YAML nodes than the limit",
    page: include_str!("../explain/Q0106.md"),
};

/// Q0107: aliases refer to themselves or expand too far.
pub static ALIAS_EXPANSION: Code = Code {
    id: "Q0107",
    name: "alias-expansion",
    severity: Severity::Error,
    summary: "aliases refer to themselves or expand too far",
    page: include_str!("../explain/Q0107.md"),
};

/// Q0108: the file holds more than one YAML document.
pub static SEVERAL_DOCUMENTS: Code = Code {
    id: "Q0108",
    name: "several-documents",
    severity: Severity::Error,
    summary: "the file holds more than one YAML document",
    page: include_str!("../explain/Q0108.md"),
};

/// Q0109: the file holds no quota object.
pub static NO_QUOTA_OBJECT: Code = Code {
    id: "Q0109",
    name: "no-quota-object",
    severity: Severity::Error,
    summary: "the file holds no quota object",
    page: include_str!("../explain/Q0109.md"),
};

/// Q0110: the file holds a quota object at the top level and at `resilience.quota`.
pub static TWO_QUOTA_OBJECTS: Code = Code {
    id: "Q0110",
    name: "two-quota-objects",
    severity: Severity::Error,
    summary: "the file holds a quota object at the top level and at `resilience.quota`",
    page: include_str!("../explain/Q0110.md"),
};

/// Q0111: the file uses a merge key, which is not merged.
pub static MERGE_KEY: Code = Code {
    id: "Q0111",
    name: "merge-key",
    severity: Severity::Error,
    summary: "the file uses a merge key, which is not merged",
    page: include_str!("../explain/Q0111.md"),
};

/// Q0112: the two readers of the file disagree.
pub static READERS_DISAGREE: Code = Code {
    id: "Q0112",
    name: "readers-disagree",
    severity: Severity::Error,
    summary: "the two readers of the file disagree",
    page: include_str!("../explain/Q0112.md"),
};

/// Q0113: the file holds more YAML directives than the limit.
pub static TOO_MANY_DIRECTIVES: Code = Code {
    id: "Q0113",
    name: "too-many-directives",
    severity: Severity::Error,
    summary: "the file holds more YAML directives than the limit",
    page: include_str!("../explain/Q0113.md"),
};

/// Q0114: an alias names an anchor that does not exist.
pub static UNKNOWN_ANCHOR: Code = Code {
    id: "Q0114",
    name: "unknown-anchor",
    severity: Severity::Error,
    summary: "an alias names an anchor that does not exist",
    page: include_str!("../explain/Q0114.md"),
};

/// Q0201: a field is not part of the policy file.
pub static UNKNOWN_FIELD: Code = Code {
    id: "Q0201",
    name: "unknown-field",
    severity: Severity::Error,
    summary: "a field is not part of the policy file",
    page: include_str!("../explain/Q0201.md"),
};

/// Q0202: a field is given twice.
pub static DUPLICATE_FIELD: Code = Code {
    id: "Q0202",
    name: "duplicate-field",
    severity: Severity::Error,
    summary: "a field is given twice",
    page: include_str!("../explain/Q0202.md"),
};

/// Q0203: a value is of the wrong type.
pub static WRONG_TYPE: Code = Code {
    id: "Q0203",
    name: "wrong-type",
    severity: Severity::Error,
    summary: "a value is of the wrong type",
    page: include_str!("../explain/Q0203.md"),
};

/// Q0204: a required field is missing.
pub static MISSING_FIELD: Code = Code {
    id: "Q0204",
    name: "missing-field",
    severity: Severity::Error,
    summary: "a required field is missing",
    page: include_str!("../explain/Q0204.md"),
};

/// Q0205: a word is not one of those a field takes.
pub static UNKNOWN_WORD: Code = Code {
    id: "Q0205",
    name: "unknown-word",
    severity: Severity::Error,
    summary: "a word is not one of those a field takes",
    page: include_str!("../explain/Q0205.md"),
};

/// Q0206: a number is not a non-negative integer.
pub static NOT_AN_INTEGER: Code = Code {
    id: "Q0206",
    name: "not-an-integer",
    severity: Severity::Error,
    summary: "a number is not a non-negative integer",
    page: include_str!("../explain/Q0206.md"),
};

/// Q0207: a value holds `${…}`, which is not expanded.
pub static UNEXPANDED_VARIABLE: Code = Code {
    id: "Q0207",
    name: "unexpanded-variable",
    severity: Severity::Error,
    summary: "a value holds `${…}`, which is not expanded",
    page: include_str!("../explain/Q0207.md"),
};

/// Q0301: a policy name is blank.
pub static BLANK_POLICY_NAME: Code = Code {
    id: "Q0301",
    name: "blank-policy-name",
    severity: Severity::Error,
    summary: "a policy name is blank",
    page: include_str!("../explain/Q0301.md"),
};

/// Q0302: two policies have one name.
pub static DUPLICATE_POLICY_NAME: Code = Code {
    id: "Q0302",
    name: "duplicate-policy-name",
    severity: Severity::Error,
    summary: "two policies have one name",
    page: include_str!("../explain/Q0302.md"),
};

/// Q0303: two policies have the same contract.
pub static DUPLICATE_CONTRACT: Code = Code {
    id: "Q0303",
    name: "duplicate-contract",
    severity: Severity::Error,
    summary: "two policies have the same contract",
    page: include_str!("../explain/Q0303.md"),
};

/// Q0304: an allowlist entry is blank.
pub static BLANK_ROUTE: Code = Code {
    id: "Q0304",
    name: "blank-route",
    severity: Severity::Error,
    summary: "an allowlist entry is blank",
    page: include_str!("../explain/Q0304.md"),
};

/// Q0305: quota is enabled without a policy.
pub static ENABLED_WITHOUT_POLICY: Code = Code {
    id: "Q0305",
    name: "enabled-without-policy",
    severity: Severity::Error,
    summary: "quota is enabled without a policy",
    page: include_str!("../explain/Q0305.md"),
};

/// Q0306: the program of the policies would be too large.
pub static PROGRAM_TOO_LARGE: Code = Code {
    id: "Q0306",
    name: "program-too-large",
    severity: Severity::Error,
    summary: "the program of the policies would be too large",
    page: include_str!("../explain/Q0306.md"),
};

/// Q0401: a selector has no dimension.
pub static EMPTY_SELECTOR: Code = Code {
    id: "Q0401",
    name: "empty-selector",
    severity: Severity::Error,
    summary: "a selector has no dimension",
    page: include_str!("../explain/Q0401.md"),
};

/// Q0402: a source is not one of those there are.
pub static UNKNOWN_SOURCE: Code = Code {
    id: "Q0402",
    name: "unknown-source",
    severity: Severity::Error,
    summary: "a source is not one of those there are",
    page: include_str!("../explain/Q0402.md"),
};

/// Q0403: a source is not legal for its dimension.
pub static SOURCE_NOT_FOR_DIMENSION: Code = Code {
    id: "Q0403",
    name: "source-not-for-dimension",
    severity: Severity::Error,
    summary: "a source is not legal for its dimension",
    page: include_str!("../explain/Q0403.md"),
};

/// Q0404: one source fills two dimensions of a selector.
pub static SOURCE_REUSED: Code = Code {
    id: "Q0404",
    name: "source-reused",
    severity: Severity::Error,
    summary: "one source fills two dimensions of a selector",
    page: include_str!("../explain/Q0404.md"),
};

/// Q0405: a known word is no identity source.
pub static SOURCE_NEVER_IDENTITY: Code = Code {
    id: "Q0405",
    name: "source-never-identity",
    severity: Severity::Error,
    summary: "a known word is no identity source",
    page: include_str!("../explain/Q0405.md"),
};

/// Q0406: a source names nothing after its colon.
pub static BLANK_SOURCE_NAME: Code = Code {
    id: "Q0406",
    name: "blank-source-name",
    severity: Severity::Error,
    summary: "a source names nothing after its colon",
    page: include_str!("../explain/Q0406.md"),
};

/// Q0407: a header name is not an RFC 9110 token.
pub static BAD_HEADER_NAME: Code = Code {
    id: "Q0407",
    name: "bad-header-name",
    severity: Severity::Error,
    summary: "a header name is not an RFC 9110 token",
    page: include_str!("../explain/Q0407.md"),
};

/// Q0408: a cookie name is not an RFC 6265 token.
pub static BAD_COOKIE_NAME: Code = Code {
    id: "Q0408",
    name: "bad-cookie-name",
    severity: Severity::Error,
    summary: "a cookie name is not an RFC 6265 token",
    page: include_str!("../explain/Q0408.md"),
};

/// Q0409: a source is blank.
pub static BLANK_SOURCE: Code = Code {
    id: "Q0409",
    name: "blank-source",
    severity: Severity::Error,
    summary: "a source is blank",
    page: include_str!("../explain/Q0409.md"),
};

/// Q0501: a burst window is not shorter than the sustained one.
pub static BURST_NOT_SHORTER: Code = Code {
    id: "Q0501",
    name: "burst-not-shorter",
    severity: Severity::Error,
    summary: "a burst window is not shorter than the sustained one",
    page: include_str!("../explain/Q0501.md"),
};

/// Q0502: a policy has neither window.
pub static NO_WINDOW: Code = Code {
    id: "Q0502",
    name: "no-window",
    severity: Severity::Error,
    summary: "a policy has neither window",
    page: include_str!("../explain/Q0502.md"),
};

/// Q0503: a limit is zero.
pub static ZERO_REQUESTS: Code = Code {
    id: "Q0503",
    name: "zero-requests",
    severity: Severity::Error,
    summary: "a limit is zero",
    page: include_str!("../explain/Q0503.md"),
};

/// Q0504: a window length is zero.
pub static ZERO_WINDOW: Code = Code {
    id: "Q0504",
    name: "zero-window",
    severity: Severity::Error,
    summary: "a window length is zero",
    page: include_str!("../explain/Q0504.md"),
};

/// Q0505: a window is longer than 100 years.
pub static WINDOW_TOO_LONG: Code = Code {
    id: "Q0505",
    name: "window-too-long",
    severity: Severity::Error,
    summary: "a window is longer than 100 years",
    page: include_str!("../explain/Q0505.md"),
};

/// Q0506: a limit is larger than the backend can count.
pub static LIMIT_BEYOND_BACKEND: Code = Code {
    id: "Q0506",
    name: "limit-beyond-backend",
    severity: Severity::Error,
    summary: "a limit is larger than the backend can count",
    page: include_str!("../explain/Q0506.md"),
};

/// Q0601: a backend kind does not exist.
pub static UNKNOWN_BACKEND_KIND: Code = Code {
    id: "Q0601",
    name: "unknown-backend-kind",
    severity: Severity::Error,
    summary: "a backend kind does not exist",
    page: include_str!("../explain/Q0601.md"),
};

/// Q0602: a backend names no kind.
pub static BACKEND_WITHOUT_KIND: Code = Code {
    id: "Q0602",
    name: "backend-without-kind",
    severity: Severity::Error,
    summary: "a backend names no kind",
    page: include_str!("../explain/Q0602.md"),
};

/// Q0603: a backend's key prefix is blank.
pub static BLANK_KEY_PREFIX: Code = Code {
    id: "Q0603",
    name: "blank-key-prefix",
    severity: Severity::Error,
    summary: "a backend's key prefix is blank",
    page: include_str!("../explain/Q0603.md"),
};

/// Q0604: a backend holds no buckets.
pub static ZERO_MAX_ENTRIES: Code = Code {
    id: "Q0604",
    name: "zero-max-entries",
    severity: Severity::Error,
    summary: "a backend holds no buckets",
    page: include_str!("../explain/Q0604.md"),
};

/// Q0605: a redis backend has no URL.
pub static URL_MISSING: Code = Code {
    id: "Q0605",
    name: "url-missing",
    severity: Severity::Error,
    summary: "a redis backend has no URL",
    page: include_str!("../explain/Q0605.md"),
};

/// Q0606: a backend URL is blank.
pub static BLANK_URL: Code = Code {
    id: "Q0606",
    name: "blank-url",
    severity: Severity::Error,
    summary: "a backend URL is blank",
    page: include_str!("../explain/Q0606.md"),
};

/// Q0607: a backend URL is not a Redis URL.
pub static INVALID_URL: Code = Code {
    id: "Q0607",
    name: "invalid-url",
    severity: Severity::Error,
    summary: "a backend URL is not a Redis URL",
    page: include_str!("../explain/Q0607.md"),
};

/// Q0608: a connect timeout is zero.
pub static ZERO_CONNECT_TIMEOUT: Code = Code {
    id: "Q0608",
    name: "zero-connect-timeout",
    severity: Severity::Error,
    summary: "a connect timeout is zero",
    page: include_str!("../explain/Q0608.md"),
};

/// Q0609: a command timeout is zero.
pub static ZERO_COMMAND_TIMEOUT: Code = Code {
    id: "Q0609",
    name: "zero-command-timeout",
    severity: Severity::Error,
    summary: "a command timeout is zero",
    page: include_str!("../explain/Q0609.md"),
};

/// Q0610: a backend lets no request in.
pub static ZERO_MAX_INFLIGHT: Code = Code {
    id: "Q0610",
    name: "zero-max-inflight",
    severity: Severity::Error,
    summary: "a backend lets no request in",
    page: include_str!("../explain/Q0610.md"),
};

/// Q0611: a local fallback stands beside a backend that is not remote.
pub static FALLBACK_WITHOUT_REMOTE: Code = Code {
    id: "Q0611",
    name: "fallback-without-remote",
    severity: Severity::Error,
    summary: "a local fallback stands beside a backend that is not remote",
    page: include_str!("../explain/Q0611.md"),
};

/// Q0612: a fallback's key prefix is blank.
pub static BLANK_FALLBACK_PREFIX: Code = Code {
    id: "Q0612",
    name: "blank-fallback-prefix",
    severity: Severity::Error,
    summary: "a fallback's key prefix is blank",
    page: include_str!("../explain/Q0612.md"),
};

/// Q0613: a fallback holds no buckets.
pub static ZERO_FALLBACK_ENTRIES: Code = Code {
    id: "Q0613",
    name: "zero-fallback-entries",
    severity: Severity::Error,
    summary: "a fallback holds no buckets",
    page: include_str!("../explain/Q0613.md"),
};

/// Q0614: fallback and backend share one key prefix.
pub static FALLBACK_PREFIX_SHARED: Code = Code {
    id: "Q0614",
    name: "fallback-prefix-shared",
    severity: Severity::Warning,
    summary: "fallback and backend share one key prefix",
    page: include_str!("../explain/Q0614.md"),
};

/// Q0615: a plugin was found and refused.
pub static PLUGIN_REFUSED: Code = Code {
    id: "Q0615",
    name: "plugin-refused",
    severity: Severity::Error,
    summary: "a plugin was found and refused",
    page: include_str!("../explain/Q0615.md"),
};

/// Q0616: a plugin is neither a file name nor an absolute path.
pub static INVALID_PLUGIN: Code = Code {
    id: "Q0616",
    name: "invalid-plugin",
    severity: Severity::Error,
    summary: "a plugin is neither a file name nor an absolute path",
    page: include_str!("../explain/Q0616.md"),
};

/// Q0617: a plugin pin is not a SHA-256.
pub static INVALID_PLUGIN_SHA256: Code = Code {
    id: "Q0617",
    name: "invalid-plugin-sha256",
    severity: Severity::Error,
    summary: "a plugin pin is not a SHA-256",
    page: include_str!("../explain/Q0617.md"),
};

/// Q0618: a plugin refuses one of its options.
pub static PLUGIN_OPTION: Code = Code {
    id: "Q0618",
    name: "plugin-option",
    severity: Severity::Error,
    summary: "a plugin refuses one of its options",
    page: include_str!("../explain/Q0618.md"),
};

/// Q0619: a plugin's own options were not checked.
pub static OPTIONS_UNCHECKED: Code = Code {
    id: "Q0619",
    name: "options-unchecked",
    severity: Severity::Note,
    summary: "a plugin's own options were not checked",
    page: include_str!("../explain/Q0619.md"),
};

/// Q0701: a file of policy test cases is not in order.
pub static INVALID_TEST_CASE: Code = Code {
    id: "Q0701",
    name: "invalid-test-case",
    severity: Severity::Error,
    summary: "a file of policy test cases is not in order",
    page: include_str!("../explain/Q0701.md"),
};

/// Q0901: the compiler is at fault, not the file.
pub static COMPILER_FAULT: Code = Code {
    id: "Q0901",
    name: "compiler-fault",
    severity: Severity::Error,
    summary: "the compiler is at fault, not the file",
    page: include_str!("../explain/Q0901.md"),
};

/// Every row, by id.
pub static ALL: &[&Code] = &[
    &TEXT_TOO_LARGE,
    &NOT_UTF8,
    &CONTROL_CHARACTER,
    &YAML_SYNTAX,
    &NESTED_TOO_DEEP,
    &TOO_MANY_EVENTS,
    &ALIAS_EXPANSION,
    &SEVERAL_DOCUMENTS,
    &NO_QUOTA_OBJECT,
    &TWO_QUOTA_OBJECTS,
    &MERGE_KEY,
    &READERS_DISAGREE,
    &TOO_MANY_DIRECTIVES,
    &UNKNOWN_ANCHOR,
    &UNKNOWN_FIELD,
    &DUPLICATE_FIELD,
    &WRONG_TYPE,
    &MISSING_FIELD,
    &UNKNOWN_WORD,
    &NOT_AN_INTEGER,
    &UNEXPANDED_VARIABLE,
    &BLANK_POLICY_NAME,
    &DUPLICATE_POLICY_NAME,
    &DUPLICATE_CONTRACT,
    &BLANK_ROUTE,
    &ENABLED_WITHOUT_POLICY,
    &PROGRAM_TOO_LARGE,
    &EMPTY_SELECTOR,
    &UNKNOWN_SOURCE,
    &SOURCE_NOT_FOR_DIMENSION,
    &SOURCE_REUSED,
    &SOURCE_NEVER_IDENTITY,
    &BLANK_SOURCE_NAME,
    &BAD_HEADER_NAME,
    &BAD_COOKIE_NAME,
    &BLANK_SOURCE,
    &BURST_NOT_SHORTER,
    &NO_WINDOW,
    &ZERO_REQUESTS,
    &ZERO_WINDOW,
    &WINDOW_TOO_LONG,
    &LIMIT_BEYOND_BACKEND,
    &UNKNOWN_BACKEND_KIND,
    &BACKEND_WITHOUT_KIND,
    &BLANK_KEY_PREFIX,
    &ZERO_MAX_ENTRIES,
    &URL_MISSING,
    &BLANK_URL,
    &INVALID_URL,
    &ZERO_CONNECT_TIMEOUT,
    &ZERO_COMMAND_TIMEOUT,
    &ZERO_MAX_INFLIGHT,
    &FALLBACK_WITHOUT_REMOTE,
    &BLANK_FALLBACK_PREFIX,
    &ZERO_FALLBACK_ENTRIES,
    &FALLBACK_PREFIX_SHARED,
    &PLUGIN_REFUSED,
    &INVALID_PLUGIN,
    &INVALID_PLUGIN_SHA256,
    &PLUGIN_OPTION,
    &OPTIONS_UNCHECKED,
    &INVALID_TEST_CASE,
    &COMPILER_FAULT,
];

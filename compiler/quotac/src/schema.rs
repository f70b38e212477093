//! `quotac schema`: a JSON Schema (2020-12) of the policy file, for editors.
//!
//! A schema cannot say everything the compiler checks (strict order of windows, two policies with one contract), so it is the
//! weaker of the two: it never refuses a file that `quotac check` accepts.

use std::io::{self, Write};

use quota_compiler::settings::{
    DEFAULT_COMMAND_TIMEOUT_MS, DEFAULT_CONNECT_TIMEOUT_MS, DEFAULT_FALLBACK_KEY_PREFIX,
    DEFAULT_KEY_PREFIX, DEFAULT_MAX_ENTRIES, DEFAULT_MAX_INFLIGHT, IN_MEMORY, REDIS,
};
use quota_compiler::terms::{Enforcement, FailurePolicy, MAX_WINDOW_SECS};
use serde_json::{Value, json};

use crate::Status;

/// White space as the compiler trims it: U+0085 is not in the `\s` of JSON Schema's patterns.
const SPACE: &str = r"[\s\u0085]*";

/// Writes the schema to `out`.
///
/// # Errors
///
/// Writing failed.
pub fn run(out: &mut dyn Write) -> io::Result<Status> {
    serde_json::to_writer_pretty(&mut *out, &schema())?;
    writeln!(out)?;
    Ok(Status::Clean)
}

/// The schema of a policy file: the quota object at the top level, or at `resilience.quota` of a larger file.
#[must_use]
pub fn schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Quota policies",
        "description": "A quota policy file: the quota object itself, or a configuration that holds it at `resilience.quota`.",
        "type": "object",
        "if": {
            "required": ["resilience"],
            "properties": { "resilience": { "type": "object", "required": ["quota"] } }
        },
        "then": {
            "properties": { "resilience": { "properties": { "quota": { "$ref": "#/$defs/quota" } } } }
        },
        "else": { "$ref": "#/$defs/quota" },
        "$defs": {
            "quota": quota(),
            "policy": policy(),
            "window": window(),
            "source": source(),
            "backend": backend(),
            "fallback": fallback(),
            "positive": { "type": "integer", "minimum": 1 },
            "text": { "type": "string", "pattern": r"[^\s\u0085]" }
        }
    })
}

fn described(mut schema: Value, description: &str) -> Value {
    if let Some(fields) = schema.as_object_mut() {
        fields.insert("description".to_owned(), description.into());
    }
    schema
}

fn quota() -> Value {
    let failure_policy_help = "What happens to a request when no counter could be asked: reject it with 503, or admit it.";
    json!({
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "enabled": { "type": "boolean", "default": false,
                "description": "Whether requests are evaluated at all. The file is checked either way." },
            "enforcement": { "enum": Enforcement::ALL.map(Enforcement::as_str), "default": Enforcement::default().as_str(),
                "description": "`enforce` rejects; `shadow` decides, counts and records the same, and admits every request." },
            "backend_failure_policy": { "enum": FailurePolicy::ALL.map(FailurePolicy::as_str),
                "default": FailurePolicy::default().as_str(), "description": failure_policy_help },
            "backend": { "$ref": "#/$defs/backend" },
            "local_fallback": { "anyOf": [{ "$ref": "#/$defs/fallback" }, { "type": "null" }] },
            "policies": { "type": "array", "items": { "$ref": "#/$defs/policy" }, "default": [],
                "description": "Evaluated in this order; all that apply to a request constrain it together." }
        },
        "if": { "required": ["enabled"], "properties": { "enabled": { "const": true } } },
        "then": { "required": ["policies"], "properties": { "policies": { "minItems": 1 } } }
    })
}

fn policy() -> Value {
    let dimension = |description: &str| json!({ "anyOf": [{ "$ref": "#/$defs/source" }, { "type": "null" }], "default": null, "description": description });
    json!({
        "type": "object",
        "description": "A named contract: where it applies, whose requests share a counter, how many pass.",
        "additionalProperties": false,
        "required": ["name", "selector"],
        "anyOf": [
            { "required": ["burst"], "properties": { "burst": { "type": "object" } } },
            { "required": ["sustained"], "properties": { "sustained": { "type": "object" } } }
        ],
        "properties": {
            "name": described(json!({ "$ref": "#/$defs/text" }), "Unique in the file; part of every counter's identity."),
            "route_allowlist": { "type": "array", "items": { "$ref": "#/$defs/text" }, "default": [],
                "description": "The routes it applies to, compared exactly; left out or empty: every request." },
            "selector": {
                "type": "object",
                "description": "The dimensions whose values together name one counter; at least one.",
                "additionalProperties": false,
                "minProperties": 1,
                "properties": {
                    "route": { "type": "boolean", "default": false, "description": "Whether the route takes part." },
                    "tenant": dimension("Where the tenant comes from."),
                    "token": dimension("Where the token comes from."),
                    "client": dimension("Where the client comes from.")
                }
            },
            "burst": { "anyOf": [{ "$ref": "#/$defs/window" }, { "type": "null" }], "default": null,
                "description": "The shorter window, for spikes; strictly shorter than `sustained`." },
            "sustained": { "anyOf": [{ "$ref": "#/$defs/window" }, { "type": "null" }], "default": null,
                "description": "The longer window, for fairness or a contract." }
        }
    })
}

fn window() -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["requests", "window_secs"],
        "properties": {
            "requests": described(json!({ "$ref": "#/$defs/positive" }), "How many requests pass in one window."),
            "window_secs": { "type": "integer", "minimum": 1, "maximum": MAX_WINDOW_SECS,
                "description": "The length in seconds. Windows are fixed: they start at multiples of it since the Unix epoch." }
        }
    })
}

/// Case of the words does not matter, and the spelling of a pattern has no flag to say so.
fn any_case(word: &str) -> String {
    word.chars()
        .map(|letter| {
            if letter.is_ascii_alphabetic() {
                format!(
                    "[{}{}]",
                    letter.to_ascii_lowercase(),
                    letter.to_ascii_uppercase()
                )
            } else {
                letter.to_string()
            }
        })
        .collect()
}

fn source() -> Value {
    let [header, cookie, query, bearer, client, peer] = [
        "header",
        "cookie",
        "query",
        "bearer_token",
        "client_ip",
        "peer_ip",
    ]
    .map(any_case);
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["key"],
        "properties": {
            "key": {
                "type": "string",
                "pattern": format!(
                    r"^{SPACE}((({header})|({cookie})|({query})):[\s\S]*[^\s\u0085][\s\S]*|({bearer})|({client})|({peer})){SPACE}$"
                ),
                "examples": ["header:x-tenant-id", "cookie:session", "query:team", "bearer_token", "client_ip"],
                "description": "`header:<name>`, `cookie:<name>` or `query:<name>` in any dimension; `bearer_token` for tenant or token; `client_ip` for client."
            }
        }
    })
}

fn backend() -> Value {
    let milliseconds = |default: u64, description: &str| json!({ "type": "integer", "minimum": 1, "default": default, "description": description });
    json!({
        "type": "object",
        "description": "Where counters live.",
        "required": ["kind"],
        "properties": {
            "kind": { "type": "string", "examples": [IN_MEMORY, REDIS],
                "description": "`in_memory`, `redis`, or the kind of a third party's plugin." },
            "key_prefix": { "$ref": "#/$defs/text", "default": DEFAULT_KEY_PREFIX,
                "description": "The namespace of the counters; changing it starts afresh." },
            "plugin": { "$ref": "#/$defs/text", "description": "File name or absolute path of the library." },
            "plugin_sha256": { "type": "string", "pattern": format!("^{SPACE}[0-9a-fA-F]{{64}}{SPACE}$"),
                "description": "The only content of the library that is accepted." },
            "max_entries": { "type": "integer", "minimum": 1, "default": DEFAULT_MAX_ENTRIES.get(),
                "description": "The most active buckets; `in_memory` only." },
            "url": { "$ref": "#/$defs/text", "description": "Where the server is, such as `redis://host:6379/0`." },
            "connect_timeout_ms": milliseconds(DEFAULT_CONNECT_TIMEOUT_MS.get(), "The longest an attempt to connect takes."),
            "command_timeout_ms": milliseconds(DEFAULT_COMMAND_TIMEOUT_MS.get(), "The longest a request waits for one trip."),
            "max_inflight": { "type": "integer", "minimum": 1, "default": DEFAULT_MAX_INFLIGHT.get(),
                "description": "Requests being evaluated at once; the excess is answered at once as unavailable." }
        },
        "if": { "properties": { "kind": { "const": IN_MEMORY } } },
        "then": {
            "propertyNames": { "enum": ["kind", "key_prefix", "plugin", "plugin_sha256", "max_entries"] }
        },
        "else": {
            "if": { "properties": { "kind": { "const": REDIS } } },
            "then": { "required": ["url"], "properties": { "max_entries": false } }
        }
    })
}

fn fallback() -> Value {
    json!({
        "type": "object",
        "description": "Counters of each process for while a remote backend times out or is unavailable.",
        "additionalProperties": false,
        "required": ["max_entries"],
        "properties": {
            "key_prefix": { "$ref": "#/$defs/text", "default": DEFAULT_FALLBACK_KEY_PREFIX,
                "description": "The namespace of its counters." },
            "max_entries": described(json!({ "$ref": "#/$defs/positive" }), "The most active buckets.")
        }
    })
}

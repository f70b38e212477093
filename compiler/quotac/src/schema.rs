//! `quotac schema`: a JSON Schema (2020-12) of the policy file, for editors.
//!
//! A schema cannot say everything the compiler checks (a burst window shorter than the sustained one, two policies with one
//! contract), so it is the weaker of the two: it never refuses a file that `quotac check` accepts. That is why texts may be
//! written without quotes even where they look like numbers, and lists may be left empty, as `serde_yaml` reads them.

use std::io::{self, Write};

use quota_compiler::settings::{
    DEFAULT_COMMAND_TIMEOUT_MS, DEFAULT_CONNECT_TIMEOUT_MS, DEFAULT_FALLBACK_KEY_PREFIX,
    DEFAULT_KEY_PREFIX, DEFAULT_MAX_ENTRIES, DEFAULT_MAX_INFLIGHT, IN_MEMORY, REDIS,
};
use quota_compiler::terms::{Enforcement, FailurePolicy, MAX_WINDOW_SECS};
use serde_json::{Value, json};

use crate::Status;

/// White space as the compiler trims it (Unicode's `White_Space`), for a class of a pattern. `\s` of ECMA-262 is another set.
const SPACE: &str =
    r"\u0009-\u000d\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000";

/// Characters of an RFC 9110 token, for a class of a pattern.
const TOKEN: &str = r"!#$%&'*+\-.^_`|~0-9A-Za-z";

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
            "properties": {
                "resilience": {
                    "properties": {
                        "quota": { "anyOf": [{ "$ref": "#/$defs/quota" }, { "type": "null" }] }
                    }
                }
            },
            "not": {
                "$comment": "one file holds one quota object",
                "anyOf": quota_fields().map(|field| json!({ "required": [field] }))
            }
        },
        "else": { "$ref": "#/$defs/quota" },
        "$defs": {
            "quota": quota(),
            "backend": backend(),
            "fallback": fallback(),
            "policy": policy(),
            "selector": selector(),
            "tenant_or_token": source("tenant_or_token", "bearer_token"),
            "client": source("client", "client_ip|peer_ip"),
            "window": window(),
            "any_text": {
                "$comment": "what is no string in YAML is read as the text it is written as",
                "type": ["string", "number", "boolean", "null"]
            },
            "text": { "$ref": "#/$defs/any_text", "pattern": format!("[^{SPACE}]") },
            "positive": { "type": "integer", "minimum": 1 }
        }
    })
}

const fn quota_fields() -> [&'static str; 6] {
    [
        "enabled",
        "enforcement",
        "backend_failure_policy",
        "backend",
        "local_fallback",
        "policies",
    ]
}

fn quota() -> Value {
    json!({
        "title": "Quota object",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "enabled": {
                "description": "Whether requests are evaluated at all. The file is checked either way. `true` needs at least one policy.",
                "type": "boolean",
                "default": false
            },
            "enforcement": {
                "description": "`enforce`: decisions reject requests. `shadow`: the same is decided, charged and recorded, and every request is admitted.",
                "enum": Enforcement::ALL.map(Enforcement::as_str),
                "default": Enforcement::default().as_str()
            },
            "backend_failure_policy": {
                "description": "What becomes of a request when no counter could be asked. `fail_closed`: it is rejected with 503. `fail_open`: it is admitted, and later policies are evaluated.",
                "enum": FailurePolicy::ALL.map(FailurePolicy::as_str),
                "default": FailurePolicy::default().as_str()
            },
            "backend": { "$ref": "#/$defs/backend", "default": { "kind": IN_MEMORY } },
            "local_fallback": {
                "anyOf": [{ "$ref": "#/$defs/fallback" }, { "type": "null" }],
                "default": null
            },
            "policies": {
                "description": "Every policy that applies to a request is evaluated, in this order; they constrain it together.",
                "type": ["array", "null"],
                "items": { "$ref": "#/$defs/policy" },
                "default": []
            }
        },
        "allOf": [
            {
                "$comment": "what is enabled has a policy",
                "if": { "required": ["enabled"], "properties": { "enabled": { "const": true } } },
                "then": { "required": ["policies"], "properties": { "policies": { "type": "array", "minItems": 1 } } }
            },
            {
                "$comment": "a fallback stands beside a remote backend",
                "if": {
                    "anyOf": [
                        { "not": { "required": ["backend"] } },
                        { "properties": { "backend": linked_in() } }
                    ]
                },
                "then": { "properties": { "local_fallback": { "type": "null" } } }
            }
        ]
    })
}

fn backend() -> Value {
    json!({
        "title": "Backend",
        "description": "Where counters live. What stands beside `kind` depends on it; options that are not listed here are the plugin's own.",
        "type": "object",
        "required": ["kind"],
        "properties": {
            "kind": {
                "anyOf": [
                    { "const": IN_MEMORY, "description": "Counters of this process." },
                    { "const": REDIS, "description": "Counters that several processes share through Redis." },
                    { "$ref": "#/$defs/text", "description": "The kind of a third party's plugin." }
                ]
            },
            "key_prefix": {
                "$ref": "#/$defs/text",
                "description": "The namespace of the counters: another one starts afresh.",
                "default": DEFAULT_KEY_PREFIX
            },
            "max_entries": {
                "$ref": "#/$defs/positive",
                "description": "The most active buckets of a backend in this process.",
                "default": DEFAULT_MAX_ENTRIES.get()
            },
            "url": {
                "$ref": "#/$defs/any_text",
                "description": "Where the server is.",
                "examples": ["redis://localhost:6379/0", "rediss://localhost:6380/0", "redis+unix:///run/redis.sock"]
            },
            "connect_timeout_ms": {
                "$ref": "#/$defs/positive",
                "description": "How long an attempt to connect to a remote backend may take. Requests do not wait for it.",
                "default": DEFAULT_CONNECT_TIMEOUT_MS.get()
            },
            "command_timeout_ms": {
                "$ref": "#/$defs/positive",
                "description": "The longest a request waits for one trip to a remote backend, waiting for a connection included.",
                "default": DEFAULT_COMMAND_TIMEOUT_MS.get()
            },
            "max_inflight": {
                "$ref": "#/$defs/positive",
                "description": "The most requests that a remote backend evaluates at once.",
                "default": DEFAULT_MAX_INFLIGHT.get()
            },
            "plugin": {
                "$ref": "#/$defs/text",
                "description": "File name or absolute path of the plugin's library. By default it is found by the kind."
            },
            "plugin_sha256": {
                "description": "SHA-256 of the only library that is accepted, in hexadecimal.",
                "type": ["string", "number"],
                "pattern": format!("^[{SPACE}]*[0-9a-fA-F]{{64}}[{SPACE}]*$")
            }
        },
        "allOf": [
            {
                "if": linked_in(),
                "then": { "propertyNames": { "enum": ["kind", "key_prefix", "max_entries"] } }
            },
            {
                "if": { "properties": { "kind": { "const": REDIS } } },
                "then": {
                    "required": ["url"],
                    "properties": { "url": { "$ref": "#/$defs/text" }, "max_entries": false }
                }
            }
        ]
    })
}

/// The backend that is part of every runtime. A library of the same kind may have options of its own.
fn linked_in() -> Value {
    json!({
        "properties": { "kind": { "const": IN_MEMORY }, "plugin": false, "plugin_sha256": false }
    })
}

fn fallback() -> Value {
    json!({
        "title": "Local fallback",
        "description": "Counters of this process, which decide while a remote backend times out or cannot be reached.",
        "type": "object",
        "additionalProperties": false,
        "required": ["max_entries"],
        "properties": {
            "key_prefix": {
                "$ref": "#/$defs/text",
                "description": "The namespace of its counters; another one than the backend's.",
                "default": DEFAULT_FALLBACK_KEY_PREFIX
            },
            "max_entries": { "$ref": "#/$defs/positive", "description": "The most active buckets." }
        }
    })
}

fn policy() -> Value {
    json!({
        "title": "Policy",
        "description": "A named contract: where it applies, whose requests share a counter, and how many of them pass.",
        "type": "object",
        "additionalProperties": false,
        "required": ["name", "selector"],
        "anyOf": [
            { "required": ["burst"], "properties": { "burst": { "type": "object" } } },
            { "required": ["sustained"], "properties": { "sustained": { "type": "object" } } }
        ],
        "properties": {
            "name": {
                "$ref": "#/$defs/text",
                "description": "Unique in the file. It is shown in metrics and logs, and is part of every counter's identity."
            },
            "route_allowlist": {
                "description": "The routes it applies to, compared exactly. Left out or empty: every request.",
                "type": ["array", "null"],
                "items": { "$ref": "#/$defs/text" },
                "default": []
            },
            "selector": { "$ref": "#/$defs/selector" },
            "burst": {
                "description": "The shorter window, which stops spikes. With both, it must be strictly shorter than `sustained`.",
                "anyOf": [{ "$ref": "#/$defs/window" }, { "type": "null" }],
                "default": null
            },
            "sustained": {
                "description": "The longer window, which keeps to a contract over time. Both windows count the same identity.",
                "anyOf": [{ "$ref": "#/$defs/window" }, { "type": "null" }],
                "default": null
            }
        }
    })
}

fn selector() -> Value {
    json!({
        "title": "Selector",
        "description": "The dimensions whose values, taken together, are one counter identity. At least one; no source fills two.",
        "type": "object",
        "additionalProperties": false,
        "minProperties": 1,
        "properties": {
            "route": {
                "description": "Whether each route has counters of its own.",
                "type": "boolean",
                "default": false
            },
            "tenant": dimension("Where the tenant comes from.", "tenant_or_token"),
            "token": dimension("Where the token comes from.", "tenant_or_token"),
            "client": dimension("Where the client comes from.", "client")
        }
    })
}

fn dimension(description: &str, definition: &str) -> Value {
    json!({
        "description": description,
        "anyOf": [{ "$ref": format!("#/$defs/{definition}") }, { "type": "null" }],
        "default": null
    })
}

/// The sources of some dimensions: those with a name, and the given `words`.
fn source(definition: &str, words: &str) -> Value {
    let [header, cookie, query, words] = ["header", "cookie", "query", words].map(any_case);
    let examples = if definition == "client" {
        ["client_ip", "header:x-device-id", "cookie:session"]
    } else {
        ["header:x-tenant-id", "bearer_token", "query:team"]
    };
    json!({
        "title": "Source",
        "type": "object",
        "additionalProperties": false,
        "required": ["key"],
        "properties": {
            "key": {
                "description": "`header:<name>`, `cookie:<name>` and `query:<name>` in any dimension, `bearer_token` for tenant or token, `client_ip` (or `peer_ip`) for client. Case does not matter.",
                "type": "string",
                "pattern": format!(
                    r"^[{SPACE}]*(({header}|{cookie}):[{SPACE}]*[{TOKEN}]+|{query}:[\s\S]*[^{SPACE}][\s\S]*|{words})[{SPACE}]*$"
                ),
                "examples": examples
            }
        }
    })
}

/// A pattern of `words` in upper or lower case: the patterns of JSON Schema have no flag for it.
fn any_case(words: &str) -> String {
    words
        .chars()
        .map(|letter| {
            if letter.is_ascii_alphabetic() {
                format!("[{letter}{}]", letter.to_ascii_uppercase())
            } else {
                letter.to_string()
            }
        })
        .collect()
}

fn window() -> Value {
    json!({
        "title": "Window",
        "description": "A fixed window: it begins at each multiple of its length since the Unix epoch.",
        "type": "object",
        "additionalProperties": false,
        "required": ["requests", "window_secs"],
        "properties": {
            "requests": {
                "$ref": "#/$defs/positive",
                "description": "The limit: how many requests pass in one window."
            },
            "window_secs": {
                "$ref": "#/$defs/positive",
                "description": "The length in seconds.",
                "maximum": MAX_WINDOW_SECS
            }
        }
    })
}

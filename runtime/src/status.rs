//! The `quota` object of the admin view, `GET /admin/runtime` (contract §9). It never holds credentials.

use quota_compiler::program::{PolicyRow, Program, WindowOperand};
use quota_compiler::settings::FallbackSettings;
use serde::Serialize;

use crate::health::BackendStatus;

/// What the runtime is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Whether requests are evaluated.
    pub enabled: bool,
    /// `enforce` or `shadow`.
    pub enforcement: &'static str,
    /// `fail_open` or `fail_closed`.
    pub backend_failure_policy: &'static str,
    /// The kind of the primary backend.
    pub active_backend: Box<str>,
    /// How it is doing.
    pub backend_status: BackendStatus,
    /// In file order.
    pub policies: Vec<PolicyStatus>,
    /// The namespace of the primary's counters.
    pub key_prefix: Box<str>,
    /// The fallback, where one is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_fallback: Option<FallbackStatus>,
    /// The library that answers for the primary; `None` while quota is disabled and none was needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin: Option<PluginStatus>,
    /// SHA-256 of the program, in hexadecimal: equal policies give equal digests.
    pub program_digest: String,
    /// 1 for the program the process started with, one more for each that replaced it.
    pub generation: u64,
}

/// One policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PolicyStatus {
    /// Its name.
    pub name: Box<str>,
    /// Sorted; empty: every route.
    pub route_allowlist: Box<[Box<str>]>,
    /// Its dimensions.
    pub selector: SelectorStatus,
    /// The short window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<WindowStatus>,
    /// The long window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sustained: Option<WindowStatus>,
}

/// The dimensions of a policy, with their normalized sources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SelectorStatus {
    /// Whether the route takes part.
    pub route: bool,
    /// Where the tenant comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Where the token comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Where the client comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
}

/// One window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WindowStatus {
    /// The limit.
    pub requests: u64,
    /// The length in seconds.
    pub window_secs: u64,
}

/// The local fallback.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FallbackStatus {
    /// The namespace of its counters.
    pub key_prefix: Box<str>,
    /// The most active buckets.
    pub max_entries: u64,
}

/// The library behind a backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PluginStatus {
    /// Its name, for people.
    pub name: String,
    /// Its own version.
    pub version: String,
    /// The file it was loaded from; `None` for one linked into this program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The version of the plugin ABI it was built for, such as `1.0`.
    pub abi: String,
}

impl Status {
    /// The view of `program` while its backend does as `backend_status` says.
    pub(crate) fn of(
        program: &Program,
        backend_status: BackendStatus,
        plugin: Option<PluginStatus>,
        generation: u64,
    ) -> Self {
        Self {
            enabled: program.enabled(),
            enforcement: program.enforcement().as_str(),
            backend_failure_policy: program.failure_policy().as_str(),
            active_backend: program.backend().kind.clone(),
            backend_status,
            policies: program
                .policies()
                .iter()
                .map(|row| policy(program, row))
                .collect(),
            key_prefix: program.backend().key_prefix.clone(),
            local_fallback: program.fallback().map(fallback),
            plugin,
            program_digest: program.digest_hex(),
            generation,
        }
    }
}

fn policy(program: &Program, row: &PolicyRow) -> PolicyStatus {
    let source = |id| {
        let source = program.source(id)?;
        Some(source.to_string())
    };
    PolicyStatus {
        name: row.name.clone(),
        route_allowlist: row.view.route_allowlist.clone(),
        selector: SelectorStatus {
            route: row.view.route,
            tenant: row.view.tenant.and_then(source),
            token: row.view.token.and_then(source),
            client: row.view.client.and_then(source),
        },
        burst: row.burst.map(window),
        sustained: row.sustained.map(window),
    }
}

const fn window(window: WindowOperand) -> WindowStatus {
    WindowStatus {
        requests: window.requests.get(),
        // INVARIANT: lengths are whole seconds in the policy file (contract §2).
        window_secs: window.length_ms.get() / 1000,
    }
}

fn fallback(settings: &FallbackSettings) -> FallbackStatus {
    FallbackStatus {
        key_prefix: settings.key_prefix.clone(),
        max_entries: settings.max_entries.get(),
    }
}

//! The executor of `quotac test`: the real engine, dispatch and in-memory store, on the clock of the case. A remote backend is
//! stood in for by counters of this process, whose faults the case scripts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quota_compiler::settings::IN_MEMORY;
use quota_compiler::{Limits, compile};
use quota_plugin_sdk::abi::{
    QUOTA_CAP_BLOCKING, QUOTA_CAP_NATIVE_BATCH, QUOTA_CAP_REMOTE, quota_plugin, quota_str,
};
use quota_plugin_sdk::{
    Backend, Capabilities, Context, Decision, Diagnostics, Exported, Failure, Health, HealthState,
    Item, WindowKind,
};
use quota_runtime::clock::UnixMillis;
use quota_runtime::outcome::BackendFailure;
use quota_runtime::request::Request;
use quota_runtime::{Decided, OpenError, Quota};
use serde_json::{Map, Value};

use super::CaseRequest;
use super::run::{Actual, ActualOutcome, Decides, Executor, NotOpened};
use crate::kinds::PluginOptions;

/// Runs policies on the engine.
#[derive(Clone, Debug, Default)]
pub struct Engine {
    /// Where plugins come from.
    pub plugins: PluginOptions,
    /// Bounds on policy files.
    pub limits: Limits,
    /// Whether checks of a remote backend travel together and are waited for, as over a network: decided alike, but by the
    /// deadlines of the policy file, which are real time.
    pub waiting: bool,
}

/// Policies that run on the engine.
#[derive(Debug)]
pub struct OpenEngine {
    quota: Quota,
    /// What the stand-in is to do; `None` where the backend lies in this process.
    script: Option<Arc<Script>>,
}

impl Executor for Engine {
    type Open = OpenEngine;

    fn open(&self, name: &str, bytes: &[u8]) -> Result<OpenEngine, NotOpened> {
        let other = |error: &dyn std::fmt::Display| NotOpened::Other(error.to_string());
        // By the real kinds first: a stand-in accepts whatever options a file has.
        let kinds = self.plugins.kinds().map_err(|error| other(&error))?;
        let compiled = compile(name, bytes, self.limits, &kinds);
        let Some(program) = compiled.program else {
            return Err(NotOpened::Refused {
                text: compiled.checked.text,
                diagnostics: compiled.checked.diagnostics,
            });
        };
        let mut builder = Quota::builder().limits(self.limits);
        if let Some(search) = self.plugins.search_path() {
            builder = builder.plugins(search);
        }
        let backend = program.backend();
        let opened = if backend.is_remote() {
            open_on_stand_in(builder, table_of(&backend.kind, self.waiting), name, bytes)
        } else if &*backend.kind != IN_MEMORY && self.plugins.none {
            return Err(NotOpened::Other(format!(
                "the backend kind `{}` needs its plugin, and plugins are not to be loaded",
                backend.kind.escape_debug()
            )));
        } else {
            builder.open_text(name, bytes).map(|quota| (quota, None))
        };
        let (quota, script) = opened.map_err(|error| other(&error.full_text()))?;
        Ok(OpenEngine { quota, script })
    }
}

impl Decides for OpenEngine {
    fn decide(
        &mut self,
        request: &CaseRequest,
        now: UnixMillis,
        fault: Option<BackendFailure>,
    ) -> Result<Actual, String> {
        match (&self.script, fault) {
            (None, None) => {}
            (Some(script), fault) => script.set(fault),
            (None, Some(_)) => {
                return Err(
                    "`backend` scripts a fault, and the backend of these policies is in this process: only a remote one can \
                     fail so"
                        .to_owned(),
                );
            }
        }
        let request = Request {
            route: request.route.as_deref(),
            client: request.client,
            query: Some(request.query()),
            headers: &request.headers,
        };
        // Inside the call, unless the backend is one that is waited for.
        Ok(actual(&self.quota.decide_blocking(&request, now)))
    }
}

/// What `decided` says, in the words of cases.
#[must_use]
pub fn actual(decided: &Decided) -> Actual {
    let outcomes = decided.policies.iter().enumerate();
    Actual {
        status: decided.status,
        retry_after: decided.retry_after_secs,
        outcomes: outcomes
            .map(|(index, outcome)| ActualOutcome {
                policy: decided.policy_name(index).unwrap_or_default().to_owned(),
                decision: outcome.decision,
                reason: outcome.reason,
                backend_mode: decided
                    .backend_mode_label(index)
                    .unwrap_or_default()
                    .to_owned(),
            })
            .collect(),
    }
}

/// What a stand-in does instead of counting.
#[derive(Debug, Default)]
struct Script(Mutex<Option<Failure>>);

impl Script {
    fn set(&self, fault: Option<BackendFailure>) {
        *lock(&self.0) = fault.map(|fault| match fault {
            BackendFailure::Timeout => Failure::Timeout,
            BackendFailure::Unavailable => Failure::Unavailable,
            BackendFailure::Error => Failure::Error,
        });
    }
}

/// Nothing of ours panics while it holds one of these locks; if it did, what they guard would still be whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The script of the instance that is being made; held by whoever makes one, so that nobody gets another's.
static SCRIPT_OF_NEXT: Mutex<Option<Arc<Script>>> = Mutex::new(None);
static MAKING_ONE: Mutex<()> = Mutex::new(());

fn open_on_stand_in(
    builder: quota_runtime::Builder,
    table: &'static quota_plugin,
    name: &str,
    bytes: &[u8],
) -> Result<(Quota, Option<Arc<Script>>), OpenError> {
    let script = Arc::new(Script::default());
    let one_at_a_time = lock(&MAKING_ONE);
    *lock(&SCRIPT_OF_NEXT) = Some(Arc::clone(&script));
    let quota = builder.stand_in(table).open_text(name, bytes);
    *lock(&SCRIPT_OF_NEXT) = None;
    drop(one_at_a_time);
    Ok((quota?, Some(script)))
}

/// The stand-in's table under the name `kind`. Tables live as long as the process; there are two for each kind.
fn table_of(kind: &str, waiting: bool) -> &'static quota_plugin {
    static TABLES: Mutex<Vec<(&str, bool, &quota_plugin)>> = Mutex::new(Vec::new());
    let mut tables = lock(&TABLES);
    let known = tables
        .iter()
        .find(|(known, known_waiting, _)| (*known, *known_waiting) == (kind, waiting));
    if let Some((.., table)) = known {
        return table;
    }
    let name: &'static str = String::from(kind).leak();
    let inline = Exported::<StandIn>::TABLE;
    let table = Box::leak(Box::new(quota_plugin {
        kind: quota_str::new(name),
        capabilities: if waiting {
            QUOTA_CAP_BLOCKING | QUOTA_CAP_REMOTE | QUOTA_CAP_NATIVE_BATCH
        } else {
            inline.capabilities
        },
        ..inline
    }));
    tables.push((name, waiting, table));
    table
}

/// Counters of this process in place of a shared backend: each window instance has its own (contract §6), and nothing is
/// ever full.
struct StandIn {
    script: Arc<Script>,
    counters: Mutex<HashMap<Counter, u64>>,
}

/// Key, kind, length and start of one window instance.
type Counter = (Box<[u8]>, WindowKind, u64, u64);

impl Backend for StandIn {
    const KIND: &'static str = "stand_in";
    const NAME: &'static str = "Stand-in for a remote backend";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const VENDOR: &'static str = "The quota engine authors";
    // Decides inside the call where nothing else is asked for: the deadlines of a policy file are real time, and cases have none.
    const CAPABILITIES: Capabilities = Capabilities::INLINE.remote();
    const OPTIONS_SCHEMA: &'static str = r#"{"type":"object"}"#;

    type Options = Map<String, Value>;

    fn create(_context: Context<'_, Self::Options>) -> Result<Self, Diagnostics> {
        Ok(Self {
            script: lock(&SCRIPT_OF_NEXT).clone().unwrap_or_default(),
            counters: Mutex::default(),
        })
    }

    fn check(&self, item: &Item<'_>, _now_unix_ms: u64) -> Decision {
        if let Some(failure) = *lock(&self.script.0) {
            return Decision::Failed(failure);
        }
        let mut counters = lock(&self.counters);
        let names: Vec<Counter> = item
            .windows()
            .iter()
            .map(|window| {
                (
                    item.key().into(),
                    window.kind(),
                    window.length_ms(),
                    window.start_ms(),
                )
            })
            .collect();
        let mut used = [0; 2];
        let mut exhausted = 0;
        for (index, (name, window)) in names.iter().zip(item.windows()).enumerate() {
            used[index] = counters.get(name).copied().unwrap_or(0);
            if used[index] >= window.limit() {
                exhausted |= 1 << index;
            }
        }
        if exhausted != 0 {
            return Decision::Denied {
                exhausted,
                used,
                local: false,
            };
        }
        for (name, used) in names.into_iter().zip(&mut used) {
            *used += 1;
            counters.insert(name, *used);
        }
        Decision::Allowed { used }
    }

    fn health(&self) -> Health {
        Health {
            state: HealthState::Available,
            ..Health::default()
        }
    }
}

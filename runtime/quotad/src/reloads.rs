//! What the daemon remembers of its policy file: the last attempt to bring it into force, and the metrics about all of them.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::{Gauge, IntCounterVec, IntGauge, Opts, Registry};
use quota_compiler::Checked;
use quota_compiler::diagnostic::Severity;
use quota_runtime::OpenError;
use quota_runtime::clock::UnixMillis;
use quota_runtime::reload::Reload;
use quotac::render::json;
use serde::Serialize;
use serde_json::Value;

/// The last attempt, as the admin view shows it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LastReload {
    at_unix_ms: u64,
    /// Whether what was read is in force.
    pub(crate) successful: bool,
    /// Of the program in force since then.
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<u64>,
    /// Why the former program stayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// What the compiler says of the file that was read, as `quotac check --format json` lists it.
    diagnostics: Value,
}

impl LastReload {
    /// The start of a daemon at `at`, on a file of which the compiler says `checked`.
    fn start(at: UnixMillis, checked: &Checked) -> Self {
        Self {
            at_unix_ms: at.0,
            successful: true,
            generation: Some(1),
            error: None,
            diagnostics: diagnostics(checked),
        }
    }

    /// What came of `reload`.
    pub(crate) fn of(reload: &Reload) -> Self {
        let at_unix_ms = reload.at.0;
        match &reload.result {
            Ok(replaced) => Self {
                at_unix_ms,
                successful: true,
                generation: Some(replaced.generation),
                error: None,
                diagnostics: diagnostics(&replaced.checked),
            },
            Err(error) => Self {
                at_unix_ms,
                successful: false,
                generation: None,
                error: Some(error.full_text()),
                diagnostics: if let OpenError::Refused(checked) = &**error {
                    diagnostics(checked)
                } else {
                    Value::Array(Vec::new())
                },
            },
        }
    }
}

/// Remembers and counts attempts to bring the policy file into force. The start of the daemon is the first. Clones share
/// everything.
#[derive(Clone, Debug)]
pub(crate) struct Reloads {
    last: Arc<Mutex<LastReload>>,
    successful: IntGauge,
    success_timestamp: Gauge,
    total: IntCounterVec,
}

const SUCCESS: &str = "success";
const FAILURE: &str = "failure";

impl Reloads {
    /// The memory of a daemon that started at `at` on a file of which the compiler says `checked`; it counts in `registry`.
    ///
    /// # Errors
    ///
    /// The registry has such families already.
    pub(crate) fn register(
        registry: &Registry,
        at: UnixMillis,
        checked: &Checked,
    ) -> prometheus::Result<Self> {
        let reloads = Self {
            last: Arc::new(Mutex::new(LastReload::start(at, checked))),
            successful: IntGauge::new(
                "quotad_config_last_reload_successful",
                "Whether the policy file as last read is in force (1) or was refused (0).",
            )?,
            success_timestamp: Gauge::new(
                "quotad_config_last_reload_success_timestamp_seconds",
                "When a policy file was last brought into force, in Unix seconds.",
            )?,
            total: IntCounterVec::new(
                Opts::new(
                    "quotad_config_reloads_total",
                    "Attempts to bring a changed policy file into force since the start.",
                ),
                &["result"],
            )?,
        };
        for result in [SUCCESS, FAILURE] {
            reloads.total.with_label_values(&[result]).inc_by(0);
        }
        reloads.successful.set(1);
        reloads.success_timestamp.set(seconds(at));
        registry.register(Box::new(reloads.successful.clone()))?;
        registry.register(Box::new(reloads.success_timestamp.clone()))?;
        registry.register(Box::new(reloads.total.clone()))?;
        log_findings(checked);
        Ok(reloads)
    }

    /// Takes note of an attempt.
    pub(crate) fn note(&self, reload: &Reload) {
        match &reload.result {
            Ok(replaced) => {
                self.successful.set(1);
                self.success_timestamp.set(seconds(reload.at));
                self.total.with_label_values(&[SUCCESS]).inc();
                log_findings(&replaced.checked);
            }
            Err(_) => {
                self.successful.set(0);
                self.total.with_label_values(&[FAILURE]).inc();
            }
        }
        *self.last.lock() = LastReload::of(reload);
    }

    /// The last attempt.
    pub(crate) fn last(&self) -> LastReload {
        self.last.lock().clone()
    }
}

fn diagnostics(checked: &Checked) -> Value {
    json::diagnostics(&checked.text, &checked.diagnostics)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "milliseconds since 1970 stay below 2^53 for 285,000 years"
)]
fn seconds(at: UnixMillis) -> f64 {
    at.0 as f64 / 1000.0
}

/// Logs the warnings and notes of a file that is in force.
fn log_findings(checked: &Checked) {
    let file = checked.text.name();
    for found in &checked.diagnostics {
        let place = checked.text.place(found.span.start);
        let (line, column, code) = (place.line, place.column, found.code.id);
        let (message, help) = (found.message.as_str(), found.help.as_deref());
        match found.severity {
            Severity::Error | Severity::Warning => {
                tracing::warn!(
                    code,
                    file,
                    line,
                    column,
                    message,
                    help,
                    "policy file warning"
                );
            }
            Severity::Note => {
                tracing::info!(code, file, line, column, message, help, "policy file note");
            }
        }
    }
}

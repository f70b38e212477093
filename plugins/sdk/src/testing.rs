//! Tests of a backend in its own crate, without a library: the host over a table in this process.
//!
//! ```
//! # use quota_plugin_sdk::{Backend, Capabilities, Context, Decision, Diagnostics, Health, Item, NO_OPTIONS_SCHEMA, NoOptions};
//! # struct Mine;
//! # impl Backend for Mine {
//! #     const KIND: &'static str = "mine";
//! #     const NAME: &'static str = "Mine";
//! #     const VERSION: &'static str = "1";
//! #     const VENDOR: &'static str = "Me";
//! #     const CAPABILITIES: Capabilities = Capabilities::INLINE;
//! #     const OPTIONS_SCHEMA: &'static str = NO_OPTIONS_SCHEMA;
//! #     type Options = NoOptions;
//! #     fn create(_: Context<'_, NoOptions>) -> Result<Self, Diagnostics> { Ok(Self) }
//! #     fn check(&self, _: &Item<'_>, _: u64) -> Decision { Decision::Allowed { used: [1, 0] } }
//! #     fn health(&self) -> Health { Health::default() }
//! # }
//! use quota_plugin_sdk::testing;
//! use serde_json::json;
//!
//! // All there is to a test that a backend does what every backend must:
//! let passes = || testing::passes_the_suite::<Mine>(&json!({}));
//! # assert!(std::panic::catch_unwind(passes).is_err(), "it admits everything");
//!
//! // Or ask an instance. Time is a parameter of every check, so there is no clock to fake.
//! let instance = testing::instance::<Mine>(&json!({}), &testing::host::Settings::default());
//! assert!(instance.is_inline());
//! ```

pub use quota_plugin_host as host;

use quota_plugin_host::suite::{self, Subject};
use quota_plugin_host::{Instance, Plugin, Settings};
use serde_json::Value;

use crate::{Backend, Exported};

/// A reading the suite decides around: 15 January 2027.
const NOW_UNIX_MS: u64 = 1_800_000_123_456;

/// The backend as the host sees one that is linked in.
///
/// # Panics
/// Its description breaks a rule.
#[must_use]
pub fn plugin<T: Backend>() -> Plugin {
    let table = Box::leak(Box::new(Exported::<T>::TABLE));
    match Plugin::builtin(table) {
        Ok(plugin) => plugin,
        Err(error) => fail(&format!(
            "{error}: {}",
            error.refusal().map(ToString::to_string).unwrap_or_default()
        )),
    }
}

/// An instance of the backend.
///
/// # Panics
/// It is not made.
#[must_use]
pub fn instance<T: Backend>(options: &Value, settings: &Settings) -> Instance {
    match plugin::<T>().create(settings, options) {
        Ok(instance) => instance,
        Err(error) => fail(&error.to_string()),
    }
}

/// Asserts that the backend does what every backend must: [`suite`].
///
/// # Panics
/// A check fails; the message names each that did and what happened instead.
pub fn passes_the_suite<T: Backend>(options: &Value) {
    let subject = Subject {
        plugin: plugin::<T>(),
        options: options.clone(),
        settings: Settings {
            key_prefix: format!("suite of {}", T::KIND),
            ..Settings::default()
        },
        now_unix_ms: NOW_UNIX_MS,
    };
    let failed: Vec<String> = suite::run(&subject)
        .iter()
        .filter(|report| report.failed())
        .map(ToString::to_string)
        .collect();
    if !failed.is_empty() {
        fail(&failed.join("\n"));
    }
}

#[expect(clippy::panic, reason = "a panic is how a test is told of a failure")]
fn fail(what: &str) -> ! {
    panic!("{what}")
}

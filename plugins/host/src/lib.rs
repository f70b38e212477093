//! Loads quota counter backends and calls them safely.
//!
//! A backend is a table of C functions (`quota_plugin_abi`), linked in or exported by a shared library. This crate finds
//! the library, judges it, loads a private copy, checks options against the schema it declares, makes instances and
//! carries counter checks across, so that a late, double, missing or nonsensical answer of a plugin does no harm. It
//! knows no policy: keys are bytes, windows and limits come with every check.
//!
//! ```no_run
//! use quota_plugin_host::{Item, LoadRequest, Plugin, SearchPath, Settings, Verdict, Window, WindowKind};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let search = SearchPath::new(vec!["/opt/quota/plugins".into()]);
//! let plugin = Plugin::load("acme_dynamo", &LoadRequest { search: &search, plugin: None, sha256: None })?;
//! let instance = plugin.create(&Settings::default(), &serde_json::json!({"table": "quota"}))?;
//! let windows = [Window { kind: WindowKind::Burst, limit: 10, length_ms: 1_000, start_ms: 0, reset_ms: 1_000 }];
//! let item = Item { key: b"\x01p\x04demo", key_hash: 7, windows: &windows };
//! let verdicts = instance.check_batch(&[item], true, true, 17, None).wait_until(None);
//! assert!(matches!(verdicts[0], Verdict::Allowed { .. }));
//! # Ok(())
//! # }
//! ```
//!
//! | Module | What it is about |
//! | --- | --- |
//! | `plugin` | the safe handle of a backend: description, options, `create` |
//! | `builtin`, `load`, `search` | where a backend comes from: linked in, or a library found and loaded |
//! | `options` | options against the declared schema; diagnostics |
//! | `instance`, `pool`, `ticket`, `callbacks` | a living backend: checks, blocking threads, pending answers, what it calls back |
//! | `decision` | items, windows, verdicts |
//! | [`suite`] | what every backend must do |

mod builtin;
mod callbacks;
mod decision;
mod instance;
mod load;
mod options;
mod plugin;
mod pool;
mod search;
pub mod suite;
mod ticket;

pub use callbacks::{Faults, LogLevel, LoggerAlreadySet, callbacks_after_destroy, set_logger};
pub use decision::{BackendFailure, Item, Verdict, Window, WindowKind};
pub use instance::{
    Batch, CreateError, End, Health, HealthState, Identity, Instance, PendingBatch, ResizeError,
    Settings, zombies,
};
pub use load::{LoadError, LoadRequest, MAX_GENERATIONS, generations};
pub use options::{OptionDiagnostic, Severity};
pub use plugin::{Capabilities, Plugin, Refusal};
pub use search::SearchPath;

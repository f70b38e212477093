//! Write a quota counter backend in Rust.
//!
//! A backend decides one question: has this key room left in these windows? Implement [`Backend`], export it with
//! [`export_backend!`], build the crate as a `cdylib`, name the file `libquota_backend_<kind>.so`. The macro makes the C
//! table of the plugin ABI (`quota_plugin.h`), one guarded function per entry, and the note that describes the library
//! without running it. It supplies the order of a batch, its stop rules, bounds, and the rule that no panic crosses.
//!
//! A backend sees keys (bytes), windows and limits, never a policy, a header or a raw identity. The host computes the
//! windows and sends them with every check, so a changed policy needs no new instance.
//!
//! ```
//! use std::collections::HashMap;
//! use std::sync::{Mutex, PoisonError};
//!
//! use quota_plugin_sdk::{
//!     Backend, Capabilities, Context, Decision, Diagnostics, Health, HealthState, Item, WindowKind, export_backend,
//! };
//!
//! /// Counts every window instance in one map. Correct, and neither bounded nor fast.
//! struct Plain {
//!     counts: Mutex<HashMap<Counter, u64>>,
//!     extra: u64,
//! }
//!
//! /// Key, kind, length and start: a counter per window instance.
//! type Counter = (Box<[u8]>, WindowKind, u64, u64);
//!
//! #[derive(serde::Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Options {
//!     /// Requests admitted beyond every limit.
//!     #[serde(default)]
//!     extra: u64,
//! }
//!
//! impl Backend for Plain {
//!     const KIND: &'static str = "example_plain";
//!     const NAME: &'static str = "Plain example";
//!     const VERSION: &'static str = "1.0.0";
//!     const VENDOR: &'static str = "Example";
//!     const CAPABILITIES: Capabilities = Capabilities::INLINE;
//!     const OPTIONS_SCHEMA: &'static str = r#"{
//!         "type": "object",
//!         "properties": {"extra": {"type": "integer", "minimum": 0, "default": 0}},
//!         "additionalProperties": false
//!     }"#;
//!     type Options = Options;
//!
//!     fn validate(options: &Options, diagnostics: &mut Diagnostics) {
//!         if options.extra > 1_000_000 {
//!             diagnostics.warning("large-extra", "/extra", "so many requests beyond the limit make it pointless");
//!         }
//!     }
//!
//!     fn create(context: Context<'_, Options>) -> Result<Self, Diagnostics> {
//!         Ok(Self { counts: Mutex::default(), extra: context.options.extra })
//!     }
//!
//!     fn check(&self, item: &Item<'_>, _now_unix_ms: u64) -> Decision {
//!         let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
//!         let counters: Vec<Counter> = item
//!             .windows()
//!             .iter()
//!             .map(|window| (item.key().into(), window.kind(), window.length_ms(), window.start_ms()))
//!             .collect();
//!         let mut used = [0; 2];
//!         let mut exhausted = 0;
//!         for (index, (counter, window)) in counters.iter().zip(item.windows()).enumerate() {
//!             used[index] = counts.get(counter).copied().unwrap_or(0);
//!             if used[index] >= window.limit().saturating_add(self.extra) {
//!                 exhausted |= 1 << index;
//!             }
//!         }
//!         if exhausted != 0 {
//!             return Decision::Denied { exhausted, used, local: false };
//!         }
//!         for (counter, used) in counters.into_iter().zip(&mut used) {
//!             *used += 1;
//!             counts.insert(counter, *used);
//!         }
//!         Decision::Allowed { used }
//!     }
//!
//!     fn health(&self) -> Health {
//!         Health { state: HealthState::Available, ..Health::default() }
//!     }
//! }
//!
//! export_backend!(Plain);
//! # fn main() { assert_eq!(plugin().max_key_len, 512); }
//! ```
//!
//! | Module | What it is about |
//! | --- | --- |
//! | `backend` | [`Backend`], what an instance is made from, its health |
//! | `decision` | [`Item`], [`Window`], [`Decision`], [`Failure`] |
//! | `asynchronous` | with the feature `tokio`: `AsyncBackend`, for counters behind a network |
//! | `batch` | [`Batch`], [`OwnedBatch`], [`Ticket`]: the checks of one request, and answering them later |
//! | `options` | findings about options, secrets |
//! | `host` | log, failure texts, clock |
//! | `forward` | with the features `log` and `tracing`: what a library records goes to the host |
//! | `testing` | with that feature: the conformance suite as one line of a test |
//! | `export`, `note`, `guard` | the C table, the note in the file, the panic guard |

#[cfg(feature = "tokio")]
mod asynchronous;
mod backend;
mod batch;
mod decision;
mod export;
#[cfg(any(feature = "log", feature = "tracing"))]
mod forward;
mod guard;
mod host;
mod note;
mod options;
#[cfg(feature = "testing")]
pub mod testing;

#[cfg(feature = "tokio")]
pub use asynchronous::{Async, AsyncBackend};
pub use backend::{Backend, Capabilities, Context, Health, HealthState};
pub use batch::{Answer, Batch, OwnedBatch, Ticket};
pub use decision::{Decision, Failure, Item, Window, WindowKind};
pub use export::Exported;
#[cfg(any(feature = "log", feature = "tracing"))]
pub use forward::Records;
pub use host::{Host, LogLevel};
pub use note::{Note, padded_len};
pub use options::{
    Diagnostic, Diagnostics, NO_OPTIONS_SCHEMA, NoOptions, Secret, SecretError, Severity,
};
pub use quota_plugin_abi as abi;

/// Exports a [`Backend`]: the function `quota_plugin_entry`, the note in the library file, and `pub fn plugin()`, the
/// same table for a program that links the backend in.
///
/// Once per library. A program links at most one crate that uses it: two would define the same symbol.
#[macro_export]
macro_rules! export_backend {
    ($backend:ty) => {
        #[cfg(panic = "abort")]
        compile_error!(
            "build a quota backend with panic = \"unwind\": a panic must end as one failed check"
        );

        static QUOTA_PLUGIN: $crate::abi::quota_plugin = $crate::Exported::<$backend>::TABLE;

        /// The table of this backend, for a program that links it in.
        #[must_use]
        pub fn plugin() -> &'static $crate::abi::quota_plugin {
            &QUOTA_PLUGIN
        }

        const _: () = {
            #[unsafe(no_mangle)]
            extern "C" fn quota_plugin_entry() -> *const $crate::abi::quota_plugin {
                &raw const QUOTA_PLUGIN
            }

            const SCHEMA: &str = <$backend as $crate::Backend>::OPTIONS_SCHEMA;

            #[used]
            #[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__quota"))]
            #[cfg_attr(
                not(any(target_vendor = "apple", windows)),
                unsafe(link_section = ".note.quota")
            )]
            static NOTE: $crate::Note<{ $crate::padded_len(SCHEMA) }> =
                $crate::Note::new(<$backend as $crate::Backend>::KIND, SCHEMA);
        };
    };
}

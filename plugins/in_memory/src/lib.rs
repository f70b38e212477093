//! The process-local counter backend.
//!
//! Counters live in this process, bounded by `max_entries`, and end with it. It is linked into the runtime and answers
//! through the same C table as any plugin; built as a library it can also be loaded. It has no options of its own.
//!
//! ```
//! use quota_backend_in_memory::{Store, Verdict};
//! use quota_plugin_sdk::{Window, WindowKind};
//!
//! let store = Store::new(4096);
//! let window = [Window::new(WindowKind::Burst, 1, 10_000, 1_760_000_000_000)];
//! let check = || store.check(b"\x01p\x04demo", 7, &window, 1_760_000_000_500);
//! assert_eq!(check(), Verdict::Allowed { used: [1, 0] });
//! assert_eq!(check(), Verdict::Denied { exhausted: 1, used: [1, 0] });
//! ```
//!
//! | Module | What it is about |
//! | --- | --- |
//! | `store` | [`Store`]: shards and capacity |
//! | `table` | the buckets of one shard, found by key |
//! | `bucket` | what is counted for one key |
//! | here | the [`Backend`] around it, and [`plugin()`], its table |

mod bucket;
mod store;
mod table;

use quota_plugin_sdk::{
    Backend, Capabilities, Context, Decision, Diagnostics, Failure, Health, HealthState, Host,
    Item, NO_OPTIONS_SCHEMA, NoOptions, export_backend,
};

pub use store::{MAX_KEY_LEN, Store, Verdict};

const FULL: &str = "at capacity: every bucket is active, so new keys are refused";

/// One instance. Its store belongs to it alone, so the key prefix, a namespace in shared stores, needs no storing.
#[derive(Debug)]
pub struct InMemory {
    store: Store,
    host: Host,
}

impl Backend for InMemory {
    const KIND: &'static str = "in_memory";
    const NAME: &'static str = "In memory";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const VENDOR: &'static str = "The quota engine authors";
    const CAPABILITIES: Capabilities = Capabilities::INLINE;
    const OPTIONS_SCHEMA: &'static str = NO_OPTIONS_SCHEMA;
    const SET_MAX_ENTRIES: Option<fn(&Self, u64)> = Some(|backend, max_entries| {
        backend.store.set_max_entries(max_entries);
    });

    type Options = NoOptions;

    fn create(context: Context<'_, NoOptions>) -> Result<Self, Diagnostics> {
        Ok(Self {
            store: Store::new(context.max_entries),
            host: context.host,
        })
    }

    #[inline]
    fn check(&self, item: &Item<'_>, now_unix_ms: u64) -> Decision {
        let verdict = self
            .store
            .check(item.key(), item.key_hash(), item.windows(), now_unix_ms);
        match verdict {
            Verdict::Allowed { used } => Decision::Allowed { used },
            Verdict::Denied { exhausted, used } => Decision::Denied {
                exhausted,
                used,
                local: false,
            },
            Verdict::Full => self.fail(Failure::Unavailable, FULL),
            Verdict::KeyTooLong => self.fail(Failure::Error, "a key is longer than 512 bytes"),
        }
    }

    /// Always available: being full is no fault of the store. `entries` counts the buckets held, an ended one until its
    /// place is needed.
    fn health(&self) -> Health {
        let (entries, capacity) = (self.store.entries(), self.store.max_entries());
        Health {
            state: HealthState::Available,
            entries,
            capacity,
            ..Health::default()
        }
    }
}

impl InMemory {
    #[cold]
    fn fail(&self, failure: Failure, text: &str) -> Decision {
        self.host.report_error(failure, text);
        Decision::Failed(failure)
    }
}

export_backend!(InMemory);

#[cfg(test)]
mod tests {
    use quota_plugin_sdk::testing;
    use quota_plugin_sdk::testing::host::{
        BackendFailure, HealthState, Instance, Item, Plugin, Settings, Verdict, Window, WindowKind,
    };
    use serde_json::json;

    use super::*;

    const T: u64 = 1_760_000_000_000;

    #[test]
    fn it_does_what_every_backend_must() {
        testing::passes_the_suite::<InMemory>(&json!({}));
    }

    fn instance(max_entries: u64) -> Instance {
        let settings = Settings {
            max_entries,
            ..Settings::default()
        };
        testing::instance::<InMemory>(&json!({}), &settings)
    }

    fn windows(burst: u64, sustained: u64) -> [Window; 2] {
        let window = |kind, limit, length_ms: u64| Window {
            kind,
            limit,
            length_ms,
            start_ms: T - T % length_ms,
            reset_ms: T - T % length_ms + length_ms,
        };
        [
            window(WindowKind::Burst, burst, 10_000),
            window(WindowKind::Sustained, sustained, 3_600_000),
        ]
    }

    fn item<'a>(key: &'a str, windows: &'a [Window]) -> Item<'a> {
        Item {
            key: key.as_bytes(),
            key_hash: 7,
            windows,
        }
    }

    #[test]
    fn the_table_describes_this_backend() {
        let plugin = Plugin::builtin(plugin()).expect("a table that keeps the rules");
        assert_eq!(plugin.kind(), "in_memory");
        assert!(plugin.capabilities().inline());
        assert!(!plugin.capabilities().remote());
        assert_eq!(plugin.max_limit(), u64::MAX);
        assert!(
            plugin
                .create(&Settings::default(), &json!({"url": "x"}))
                .is_err()
        );
    }

    #[test]
    fn one_by_one_and_as_a_batch_are_the_same() {
        let (single, batch) = (instance(3), instance(3));
        let (roomy, tight) = (windows(5, 5), windows(2, 1));
        let items = [
            item("a", &roomy),
            item("b", &tight),
            item("a", &roomy),
            item("b", &tight),
            item("c", &roomy[1..]),
            item("d", &roomy),
            item("a", &roomy),
        ];
        let singles: Vec<Verdict> = items.iter().map(|item| single.check_one(item, T)).collect();
        let many = batch
            .check_batch(&items, false, false, T, None)
            .wait_until(None);
        assert_eq!(many, singles);
        assert!(matches!(singles[0], Verdict::Allowed { used: [1, 1], .. }));
        assert!(matches!(singles[3], Verdict::Denied { .. }));
        assert_eq!(singles[5], Verdict::Failed(BackendFailure::Unavailable));
        assert!(matches!(singles[6], Verdict::Allowed { used: [3, 3], .. }));
    }

    #[test]
    fn instances_share_nothing() {
        let (one, other) = (instance(3), instance(3));
        let windows = windows(1, 1);
        for instance in [&one, &other] {
            let verdict = instance.check_one(&item("a", &windows), T);
            assert!(matches!(verdict, Verdict::Allowed { .. }));
        }
    }

    #[test]
    fn capacity_is_reported_and_changed_in_place() {
        let instance = instance(1);
        let windows = windows(9, 9);
        let check = |key| instance.check_one(&item(key, &windows), T);
        assert!(matches!(check("a"), Verdict::Allowed { .. }));
        assert_eq!(check("b"), Verdict::Failed(BackendFailure::Unavailable));
        let health = instance.health();
        assert_eq!(health.state, HealthState::Available);
        assert_eq!((health.entries, health.capacity), (1, Some(1)));
        assert!(matches!(instance.resize(2), Ok(true)));
        assert!(matches!(check("b"), Verdict::Allowed { .. }));
        assert!(matches!(check("a"), Verdict::Allowed { used: [2, 2], .. }));
        assert_eq!(instance.health().capacity, Some(2));
    }
}

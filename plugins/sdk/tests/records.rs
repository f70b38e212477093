//! What a backend records through `log` and `tracing` reaches the log of the host, and that of the instance it belongs to.
#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something is not as expected"
)]

use std::sync::Mutex;

use quota_plugin_sdk::testing::host::{Instance, LogLevel, Settings, set_logger};
use quota_plugin_sdk::{
    Backend, Capabilities, Context, Decision, Diagnostics, Health, Item, NO_OPTIONS_SCHEMA,
    NoOptions, Records, testing,
};
use serde_json::json;

/// Takes the records of this program.
struct Talker {
    _records: Records,
}

impl Backend for Talker {
    const KIND: &'static str = "talker";
    const NAME: &'static str = "Talker";
    const VERSION: &'static str = "1";
    const VENDOR: &'static str = "Tests";
    const CAPABILITIES: Capabilities = Capabilities::INLINE;
    const OPTIONS_SCHEMA: &'static str = NO_OPTIONS_SCHEMA;
    type Options = NoOptions;

    fn create(context: Context<'_, NoOptions>) -> Result<Self, Diagnostics> {
        Ok(Self {
            _records: context.host.take_records(),
        })
    }

    fn check(&self, _item: &Item<'_>, _now_unix_ms: u64) -> Decision {
        Decision::Allowed { used: [1, 0] }
    }

    fn health(&self) -> Health {
        Health::default()
    }
}

type Line = (LogLevel, String, String, String);

static LINES: Mutex<Vec<Line>> = Mutex::new(Vec::new());

/// The lines since the last call.
fn lines() -> Vec<Line> {
    std::mem::take(&mut *LINES.lock().unwrap())
}

fn talker() -> Instance {
    testing::instance::<Talker>(&json!({}), &Settings::default())
}

#[test]
fn records_reach_the_host_as_long_as_an_instance_takes_them() {
    set_logger(LogLevel::Info, |level, kind, target, text| {
        let line = (level, kind.to_owned(), target.to_owned(), text.to_owned());
        LINES.lock().unwrap().push(line);
    })
    .unwrap();
    let line = |level, target: &str, text: &str| {
        (
            level,
            "talker".to_owned(),
            target.to_owned(),
            text.to_owned(),
        )
    };

    let first = talker();
    log::warn!(target: "store", "{} of {}", 1, 2);
    log::debug!(target: "store", "not kept by the host");
    assert_eq!(lines(), [line(LogLevel::Warn, "store", "1 of 2")]);

    tracing::info!(target: "net", host = "h", port = 1, "connected\nat last");
    tracing::error!(target: "net", reason = %"none");
    tracing::trace!(target: "net", "not kept by the host");
    let span = tracing::error_span!("a span is no line");
    span.in_scope(|| tracing::info!(target: "net", "inside"));
    assert_eq!(
        lines(),
        [
            line(
                LogLevel::Info,
                "net",
                "connected\\nat last host=\"h\" port=1"
            ),
            line(LogLevel::Error, "net", " reason=none"),
            line(LogLevel::Info, "net", "inside"),
        ]
    );

    // The latest instance has them, and when it goes, the one before.
    let second = talker();
    drop(first);
    log::info!(target: "store", "to the second");
    let third = talker();
    drop(third);
    log::info!(target: "store", "to the second again");
    assert_eq!(
        lines(),
        [
            line(LogLevel::Info, "store", "to the second"),
            line(LogLevel::Info, "store", "to the second again"),
        ]
    );
    drop(second);
    log::error!(target: "store", "to nobody");
    tracing::error!(target: "store", "to nobody");
    assert_eq!(lines(), []);
}

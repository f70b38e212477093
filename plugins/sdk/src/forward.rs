//! Sends what `log` and `tracing` record in this library to the host.
//!
//! A library has a logger of its own for each of them, which knows nothing of the host's; and the host's log belongs to an
//! instance. So the records of a library go to the instance that took them last and is still there.

use std::fmt::{self, Write as _};
use std::sync::{Mutex, PoisonError};

use crate::{Host, LogLevel};

/// The instances that take records, by number, the latest last.
static RECEIVERS: Mutex<Vec<(u64, Host)>> = Mutex::new(Vec::new());

/// Lets an instance take the records of its library for as long as it is kept. See [`Host::take_records`].
#[derive(Debug)]
#[must_use = "records are taken for as long as this is kept"]
pub struct Records {
    number: u64,
}

impl Host {
    /// Takes what this library records through `log` (feature `log`) and `tracing` (feature `tracing`) into the host's log,
    /// until the result is dropped; keep it in the backend. Several instances of a library share its records: the latest has
    /// them. In a program that the backend is linked into, whoever set a logger first has them.
    pub fn take_records(self) -> Records {
        let number = {
            let mut receivers = RECEIVERS.lock().unwrap_or_else(PoisonError::into_inner);
            let number = receivers.last().map_or(1, |(number, _)| number + 1);
            receivers.push((number, self));
            number
        };
        #[cfg(feature = "log")]
        of_log::install();
        #[cfg(feature = "tracing")]
        of_tracing::install();
        Records { number }
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        let mut receivers = RECEIVERS.lock().unwrap_or_else(PoisonError::into_inner);
        receivers.retain(|(number, _)| *number != self.number);
    }
}

fn receiver() -> Option<Host> {
    let receivers = RECEIVERS.lock().unwrap_or_else(PoisonError::into_inner);
    receivers.last().map(|(_, host)| *host)
}

/// Whether anybody keeps lines of `level`.
fn keeps(level: LogLevel) -> bool {
    receiver().is_some_and(|host| host.keeps(level))
}

fn send(level: LogLevel, target: &str, text: &impl fmt::Display) {
    if let Some(host) = receiver().filter(|host| host.keeps(level)) {
        let mut line = String::new();
        // A value that cannot be shown ends the line early.
        let _shown_so_far = write!(line, "{text}");
        host.log(level, target, &line);
    }
}

#[cfg(feature = "log")]
mod of_log {
    use log::{Level, LevelFilter, Log, Metadata, Record};

    use super::LogLevel;

    struct Forward;

    pub(super) fn install() {
        if log::set_logger(&Forward).is_ok() {
            // Each line is held against the level of whoever takes it.
            log::set_max_level(LevelFilter::Trace);
        }
    }

    const fn level(level: Level) -> LogLevel {
        match level {
            Level::Error => LogLevel::Error,
            Level::Warn => LogLevel::Warn,
            Level::Info => LogLevel::Info,
            Level::Debug => LogLevel::Debug,
            Level::Trace => LogLevel::Trace,
        }
    }

    impl Log for Forward {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            super::keeps(level(metadata.level()))
        }

        fn log(&self, record: &Record<'_>) {
            super::send(level(record.level()), record.target(), record.args());
        }

        fn flush(&self) {}
    }
}

#[cfg(feature = "tracing")]
mod of_tracing {
    use std::fmt::{self, Write as _};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::subscriber::{Interest, Subscriber, set_global_default};
    use tracing::{Event, Level, Metadata};

    use super::LogLevel;

    /// Forwards events; spans are not followed.
    struct Forward;

    pub(super) fn install() {
        let _the_first_one_stays = set_global_default(Forward);
    }

    const fn level(level: Level) -> LogLevel {
        match level {
            Level::ERROR => LogLevel::Error,
            Level::WARN => LogLevel::Warn,
            Level::INFO => LogLevel::Info,
            Level::DEBUG => LogLevel::Debug,
            Level::TRACE => LogLevel::Trace,
        }
    }

    /// An event as one line: its message, then ` name=value` of each field.
    #[derive(Default)]
    struct Line {
        message: String,
        fields: String,
    }

    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            // A value that cannot be shown ends the line early.
            let _shown_so_far = if field.name() == "message" {
                write!(self.message, "{value:?}")
            } else {
                write!(self.fields, " {}={value:?}", field.name())
            };
        }
    }

    impl fmt::Display for Line {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{}{}", self.message, self.fields)
        }
    }

    impl Subscriber for Forward {
        fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
            // Who takes the records, and up to which level, changes.
            Interest::sometimes()
        }

        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.is_event() && super::keeps(level(*metadata.level()))
        }

        fn event(&self, event: &Event<'_>) {
            let mut line = Line::default();
            event.record(&mut line);
            let metadata = event.metadata();
            super::send(level(*metadata.level()), metadata.target(), &line);
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }
}

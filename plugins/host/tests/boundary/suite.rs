//! The suite passes honest backends and finds planted faults.

use quota_plugin_abi::quota_plugin;
use quota_plugin_host::suite::{self, Outcome, Subject};
use serde_json::json;

use crate::zoo::{ASYNC, BLOCKING, INLINE, plugin, settings};

fn subject(table: quota_plugin, mode: &str) -> Subject {
    Subject {
        plugin: plugin(table),
        options: json!({"mode": mode}),
        settings: settings(&format!("suite {mode}")),
        now_unix_ms: 1_800_000_123_456,
    }
}

#[track_caller]
fn passes(table: quota_plugin, mode: &str) {
    let reports = suite::run(&subject(table, mode));
    let failed: Vec<String> = reports
        .iter()
        .filter(|r| r.failed())
        .map(ToString::to_string)
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(
        reports
            .iter()
            .filter(|r| r.outcome == Outcome::Passed)
            .count()
            > 20
    );
}

#[track_caller]
fn is_caught(table: quota_plugin, mode: &str, by: &[&str]) {
    for report in suite::run(&subject(table, mode)) {
        let id = report.check.id;
        assert!(
            report.failed() || !by.contains(&id),
            "{mode} is not caught by {id}"
        );
    }
}

#[test]
fn honest_backends_pass() {
    passes(INLINE, "honest");
    passes(ASYNC, "honest");
    passes(ASYNC, "threaded");
    passes(BLOCKING, "honest");
}

#[test]
fn planted_faults_are_caught() {
    is_caught(INLINE, "off_by_one", &["E1", "E2", "E4", "E6", "E16"]);
    is_caught(INLINE, "charges_denials", &["E3", "E16"]);
    is_caught(INLINE, "constant", &["E1", "E5", "E17"]);
    is_caught(ASYNC, "ignores_stop", &["F2"]);
    is_caught(ASYNC, "now", &["G3"]);
    is_caught(INLINE, "no_resize", &["I6"]);
}

#[test]
fn ids_are_unique_and_sorted_within_their_letter() {
    let ids: Vec<(&str, u32)> = suite::checks()
        .iter()
        .map(|check| {
            let (letter, number) = check.id.split_at(1);
            (letter, number.parse().unwrap())
        })
        .collect();
    assert!(ids.is_sorted_by(|one, other| one < other), "{ids:?}");
}

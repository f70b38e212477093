//! Backends that are loaded do what every backend must; those linked in have this test beside their code.

use quota_plugin_host::suite::{self, Outcome, Subject};
use quota_plugin_host::{LoadRequest, Plugin, SearchPath, Settings};
use quota_test_support::commands::built;
use serde_json::json;

#[test]
fn in_memory_loaded_does_what_every_backend_must() {
    let search = SearchPath::only(vec![built().plugin_dir().to_owned()]);
    let request = LoadRequest {
        search: &search,
        plugin: None,
        sha256: None,
    };
    let plugin = Plugin::load("in_memory", &request).expect("the workspace built it");
    assert_eq!(plugin.file(), Some(built().in_memory.as_path()));
    let subject = Subject {
        plugin,
        options: json!({}),
        settings: Settings {
            key_prefix: "suite".to_owned(),
            ..Settings::default()
        },
        now_unix_ms: 1_800_000_123_456,
    };
    let reports = suite::run(&subject);
    let failed: Vec<_> = reports.iter().filter(|report| report.failed()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let passed = reports
        .iter()
        .filter(|report| report.outcome == Outcome::Passed);
    assert!(passed.count() > 20, "{reports:#?}");
}

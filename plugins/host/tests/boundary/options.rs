//! Options, findings, creation, identity and logs.

use std::sync::Mutex;

use quota_plugin_host::{
    CreateError, LogLevel, OptionDiagnostic, Settings, Severity, callbacks_after_destroy,
    set_logger, zombies,
};
use serde_json::{Value, json};

use crate::zoo::{Gate, INLINE, instance, plugin, settings};

#[track_caller]
fn check(options: &Value, expected: &[(Severity, &str, &str)]) {
    let found = plugin(INLINE).validate(options);
    let found: Vec<_> = found
        .iter()
        .map(|d| (d.severity, d.code.as_str(), d.pointer.as_str()))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn the_schema_speaks_first_and_the_plugin_adds_what_is_new() {
    check(&json!({}), &[]);
    check(&json!({"mode": "honest", "size": 1}), &[]);
    check(&json!([]), &[(Severity::Error, "wrong-type", "")]);
    check(
        &json!({"size": 0}),
        &[(Severity::Error, "too-small", "/size")],
    );
    check(
        &json!({"mode": "refuses", "other": 1}),
        &[
            (Severity::Error, "unknown-option", "/other"),
            (Severity::Warning, "zoo-warning", "/mode"),
            (Severity::Error, "zoo-closed", "/mode"),
            (Severity::Note, "bad-pointer", "/mode"),
        ],
    );
    check(
        &json!({"mode": "refuses_silently"}),
        &[(Severity::Error, "refused-without-reason", "")],
    );
}

#[test]
fn findings_are_bounded_and_harmless() {
    let found = plugin(INLINE).validate(&json!({"mode": "floods"}));
    assert_eq!(found.len(), 100);
    assert!(found.iter().all(|d| d.message.len() == 1024));
    let found = plugin(INLINE).validate(&json!({"mode": "refuses"}));
    assert_eq!(found[0].message, "it \\u{7} bites");
    assert_eq!(found[0].help.as_deref(), Some("ask the keeper"));
}

#[test]
fn options_that_are_too_long_are_not_shown_to_the_plugin() {
    let found = plugin(INLINE).validate(&json!({"secret": "x".repeat(1 << 20)}));
    assert_eq!(
        found.iter().map(|d| d.code.as_str()).collect::<Vec<_>>(),
        ["too-large"]
    );
}

#[test]
fn wrong_options_make_no_instance() {
    let create = |options| {
        plugin(INLINE)
            .create(&settings("create"), &options)
            .unwrap_err()
    };
    let error = create(json!({"size": "big"}));
    assert_eq!(
        error.to_string(),
        "the options are refused: expected integer, found string (at `/size`)"
    );
    assert!(matches!(
        create(json!({"mode": "makes_nothing"})),
        CreateError::NoInstance
    ));
    let CreateError::Failed(found) = create(json!({"mode": "fails_to_create"})) else {
        panic!("another error");
    };
    assert!(
        found
            .iter()
            .any(|d: &OptionDiagnostic| d.code == "zoo-closed")
    );
    let blank = plugin(INLINE)
        .create(&settings(" "), &json!({}))
        .unwrap_err();
    assert!(matches!(blank, CreateError::BlankPrefix));
}

/// What comes of it later reaches nobody, and its host table stays good.
#[test]
fn a_plugin_that_takes_too_long_to_create_is_refused_and_left_behind() {
    let before = zombies();
    let error = plugin(INLINE)
        .create(&settings("slow"), &json!({"mode": "slow_to_create"}))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the plugin made no instance within 1000 ms"
    );
    assert!(zombies() > before);
    let late = callbacks_after_destroy();
    let gate = Gate::of("slow");
    gate.wait_for(1);
    gate.open();
    // The instance that is made in the end says so to a host that does not know it any more.
    while callbacks_after_destroy() == late {
        std::thread::yield_now();
    }
}

#[test]
fn an_identity_is_all_but_the_capacity() {
    let zoo = plugin(INLINE);
    let options = json!({"mode": "honest", "size": 1});
    let identity = |change: fn(&mut Settings)| {
        let mut settings = settings("identity");
        change(&mut settings);
        zoo.identity(&settings, &options)
    };
    let same = identity(|_| {});
    assert_eq!(identity(|settings| settings.max_entries = 1), same);
    assert_eq!(
        zoo.identity(&settings("identity"), &json!({"size": 1, "mode": "honest"})),
        same
    );
    for other in [
        identity(|settings| settings.key_prefix.push('x')),
        identity(|settings| settings.connect_timeout_ms += 1),
        identity(|settings| settings.command_timeout_ms += 1),
        identity(|settings| settings.max_inflight += 1),
        zoo.identity(&settings("identity"), &json!({"mode": "honest"})),
    ] {
        assert_ne!(other, same);
    }
    let made = zoo.create(&settings("identity"), &options).unwrap();
    assert_eq!(made.identity(), same);
}

#[test]
fn logs_go_to_the_logger_bounded_and_on_one_line() {
    static LINES: Mutex<Vec<(LogLevel, String, String)>> = Mutex::new(Vec::new());
    static DROPPED: Mutex<u64> = Mutex::new(0);
    set_logger(LogLevel::Debug, |level, kind, target, text| {
        if target == "zoo" {
            LINES
                .lock()
                .unwrap()
                .push((level, kind.to_owned(), text.to_owned()));
        } else if let Some(number) = text.strip_suffix(" log lines dropped") {
            *DROPPED.lock().unwrap() += number.parse::<u64>().unwrap();
        }
    })
    .unwrap();
    assert!(set_logger(LogLevel::Info, |_, _, _, _| {}).is_err());
    drop(instance(INLINE, "talks", "talks"));
    let lines = LINES.lock().unwrap();
    assert!(lines.len() >= 100);
    assert_eq!(
        u64::try_from(lines.len()).unwrap() + *DROPPED.lock().unwrap(),
        150
    );
    assert_eq!(
        lines[0],
        (
            LogLevel::Info,
            "zoo".to_owned(),
            "line 0\\nof many".to_owned()
        )
    );
    assert!(lines.iter().all(|(level, _, _)| *level == LogLevel::Info));
}

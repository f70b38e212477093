//! Backends that are loaded do what every backend must; those linked in have this test beside their code.

use std::process::Command;
use std::sync::Barrier;
use std::thread;

use quota_plugin_host::suite::{self, Outcome, Subject};
use quota_plugin_host::{
    Instance, Item, LoadRequest, Plugin, SearchPath, Settings, Verdict, Window, WindowKind,
};
use quota_test_support::commands::built;
use serde_json::{Value, json};

fn in_memory() -> Plugin {
    let search = SearchPath::only(vec![built().plugin_dir().to_owned()]);
    let request = LoadRequest {
        search: &search,
        plugin: None,
        sha256: None,
    };
    Plugin::load("in_memory", &request).expect("the workspace built it")
}

#[test]
fn in_memory_loaded_does_what_every_backend_must() {
    let plugin = in_memory();
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

/// Instances of one library come, decide and go on several threads at once while others decide: none touches another's
/// counters, and each admits exactly its limit.
#[test]
fn instances_of_a_loaded_library_live_and_end_side_by_side() {
    const THREADS: usize = 4;
    const LIMIT: u64 = 500;
    let plugin = in_memory();
    let windows = [Window {
        kind: WindowKind::Burst,
        limit: LIMIT,
        length_ms: 60_000,
        start_ms: 0,
        reset_ms: 60_000,
    }];
    let item = Item {
        key: b"a key",
        key_hash: 7,
        windows: &windows,
    };
    let create = || {
        plugin
            .create(&Settings::default(), &json!({}))
            .expect("it has no options")
    };
    let admitted = |instance: &Instance| {
        (0..LIMIT)
            .filter(|_| matches!(instance.check_one(&item, 1), Verdict::Allowed { .. }))
            .count()
    };
    let shared = create();
    let start = Barrier::new(THREADS);
    let of_shared: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..20 {
                        let own = create();
                        assert_eq!(admitted(&own), 500);
                        drop(own);
                    }
                    admitted(&shared)
                })
            })
            .collect();
        let counts = threads.into_iter().map(|thread| thread.join());
        counts.map(|count| count.expect("it passes")).sum()
    });
    assert_eq!(of_shared, 500);
}

/// The note describes the library without running it (`readelf -n` shows it), and agrees with what the table says.
#[test]
fn the_note_in_the_library_agrees_with_its_description() {
    let plugin = in_memory();
    let bytes = std::fs::read(&built().in_memory).expect("the workspace built it");
    let beginning = b"QUOTA\0\0\0QUOTAPLG";
    let places: Vec<usize> = bytes
        .windows(beginning.len())
        .enumerate()
        .filter_map(|(place, window)| (window == beginning).then_some(place))
        .collect();
    let [name] = places[..] else {
        panic!("{} notes", places.len());
    };
    let number = |place: usize| {
        let four = bytes[place..].first_chunk().expect("the file goes on");
        usize::try_from(u32::from_le_bytes(*four)).expect("it fits")
    };
    let text = |place: usize, len: usize| {
        std::str::from_utf8(&bytes[place..place + len]).expect("it is text")
    };
    assert_eq!((number(name - 12), number(name - 4)), (6, 1));
    let description = name + 8;
    let end = description + number(name - 8);
    let (major, minor) = plugin.abi();
    let version = number(description + 8);
    assert_eq!(version, usize::from(major) | usize::from(minor) << 16);
    let (kind_len, schema_len) = (number(description + 12), number(description + 16));
    assert_eq!(text(description + 20, kind_len), plugin.kind());
    let schema = text(description + 52, schema_len);
    assert_eq!(description + 52 + schema_len, end);
    let schema: Value = serde_json::from_str(schema).expect("it is JSON");
    assert_eq!(&schema, plugin.options_schema());
}

#[test]
fn the_library_exports_its_entry_and_nothing_else() {
    let output = Command::new("nm")
        .args(["-D", "--defined-only", "--format=posix"])
        .arg(&built().in_memory)
        .output();
    let Ok(output) = output else {
        println!("skipped: nm is not installed");
        return;
    };
    let shown = String::from_utf8_lossy(&output.stdout);
    let names: Vec<_> = shown
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(names, ["quota_plugin_entry"]);
}

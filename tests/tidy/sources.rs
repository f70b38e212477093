//! What stands in which source file.

use std::path::Path;

use super::{files, none, text};

/// The lines of Rust code of `path`: comments left out.
fn code_lines(path: &str) -> Vec<(usize, String)> {
    text(path)
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
        .map(|(index, line)| (index + 1, line.to_owned()))
        .collect()
}

/// Every place outside of `allowed` (files, or folders with a `/` behind) where Rust code holds `word`.
fn outside(word: &str, allowed: &[&str]) -> Vec<String> {
    let mut faults = Vec::new();
    for path in files("", ".rs") {
        let is_allowed = allowed.iter().any(|allowed| {
            path == *allowed || (allowed.ends_with('/') && path.starts_with(allowed))
        });
        // This file names what it looks for.
        if is_allowed || path == "tests/tidy/sources.rs" {
            continue;
        }
        for (number, line) in code_lines(&path) {
            if line.contains(word) {
                faults.push(format!("{path}:{number}: `{word}` does not belong here"));
            }
        }
    }
    faults
}

#[test]
fn every_file_says_what_it_is_about() {
    let faults: Vec<_> = files("", ".rs")
        .into_iter()
        .filter(|path| !text(path).starts_with("//!"))
        .map(|path| format!("{path}: does not begin with a `//!` line"))
        .collect();
    none(&faults);
}

#[test]
fn no_file_is_called_after_nothing() {
    let nothing = [
        "utils", "util", "common", "helpers", "helper", "types", "misc",
    ];
    let faults: Vec<_> = files("", ".rs")
        .into_iter()
        .filter(|path| {
            Path::new(path).components().any(|part| {
                nothing
                    .iter()
                    .any(|name| part.as_os_str().to_string_lossy().trim_end_matches(".rs") == *name)
            })
        })
        .collect();
    none(&faults);
}

#[test]
fn yaml_libraries_are_named_by_the_reader_only() {
    none(&outside(
        "unsafe_libyaml",
        &["compiler/src/syntax/events.rs"],
    ));
    let readers = ["compiler/src/syntax/", "tests/"];
    none(&outside("serde_yaml::", &readers));
}

#[test]
fn libraries_are_loaded_in_one_place() {
    none(&outside("libloading::", &["plugins/host/src/load.rs"]));
}

#[test]
fn redis_is_named_by_its_plugin_only() {
    none(&outside("redis::", &["plugins/redis/"]));
}

#[test]
fn the_wall_clock_is_read_in_one_place() {
    none(&outside("SystemTime::now", &["runtime/src/clock.rs"]));
    none(&outside("UNIX_EPOCH.elapsed", &[]));
}

#[test]
fn unsafe_code_stands_at_the_plugin_boundary_and_in_the_scanner() {
    let allowed = [
        "compiler/src/syntax/events.rs",
        "plugins/abi/",
        "plugins/sdk/",
        "plugins/host/",
    ];
    let mut faults = Vec::new();
    for word in [
        "unsafe {",
        "unsafe fn",
        "unsafe impl",
        "unsafe extern",
        "unsafe(no_mangle)",
    ] {
        faults.extend(outside(word, &allowed));
    }
    none(&faults);
    assert!(text("runtime/src/lib.rs").contains("#![forbid(unsafe_code)]"));
}

/// Every place in the code of `paths` that names one of `strangers`.
fn named(paths: &[String], strangers: &[&str]) -> Vec<String> {
    let mut faults = Vec::new();
    for path in paths {
        for (number, line) in code_lines(path) {
            let found = strangers
                .iter()
                .filter(|stranger| line.contains(**stranger));
            faults.extend(found.map(|stranger| format!("{path}:{number}: {stranger}")));
        }
    }
    faults
}

#[test]
fn the_engine_knows_no_server_and_no_backend() {
    let pure = [
        "engine", "extract", "key", "window", "outcome", "request", "clock",
    ];
    let strangers = [
        "tokio",
        "prometheus",
        "quota_plugin_host",
        "quota_plugin_sdk",
        "crate::dispatch",
        "crate::backend",
        "crate::metrics",
    ];
    none(&named(
        &pure.map(|module| format!("runtime/src/{module}.rs")),
        &strangers,
    ));
}

#[test]
fn programs_and_the_ir_know_nothing_of_the_front_end() {
    let strangers = [
        "crate::syntax",
        "crate::span",
        "crate::diagnostic",
        "crate::check",
        "crate::codes",
    ];
    let mut paths = files("compiler/src/program", ".rs");
    paths.extend(["ir", "terms", "settings"].map(|module| format!("compiler/src/{module}.rs")));
    none(&named(&paths, &strangers));
}

#[test]
fn no_test_is_switched_off() {
    let mut faults = Vec::new();
    for word in [
        "#[ignore",
        "#[should_panic",
        "todo!(",
        "unimplemented!(",
        "dbg!(",
    ] {
        faults.extend(outside(word, &[]));
    }
    none(&faults);
}

#[test]
fn nothing_names_the_machine_it_was_written_on() {
    let mut faults = Vec::new();
    for suffix in [".rs", ".md", ".toml", ".yaml", ".conf", ".h", "/run"] {
        let paths = if suffix == "/run" {
            vec!["tests/run".to_owned(), ".ci/run".to_owned()]
        } else {
            files("", suffix)
        };
        for path in paths {
            // The words are put together here, so that this file does not hold them.
            let text = String::from_utf8_lossy(
                &std::fs::read(super::root().join(&path)).expect("it can be read"),
            )
            .into_owned();
            for word in [
                concat!("/wo", "rk/"),
                concat!("/ho", "me/"),
                concat!("/tmp/bash", "_jobs"),
                concat!("artifac", "tory"),
            ] {
                if text.contains(word) {
                    faults.push(format!("{path}: {word}"));
                }
            }
        }
    }
    none(&faults);
}

#[test]
fn every_package_says_who_it_is() {
    let mut faults = Vec::new();
    for path in files("", "Cargo.toml") {
        if path == "Cargo.toml" {
            continue;
        }
        let manifest = text(&path);
        for field in [
            "version",
            "edition",
            "rust-version",
            "license",
            "authors",
            "repository",
            "keywords",
            "categories",
        ] {
            if !manifest.contains(&format!("{field}.workspace = true")) {
                faults.push(format!("{path}: {field} is not the workspace's"));
            }
        }
        for field in ["description = \"", "[lints]\nworkspace = true"] {
            if !manifest.contains(field) {
                faults.push(format!("{path}: {field} is missing"));
            }
        }
    }
    none(&faults);
}

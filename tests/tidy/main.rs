//! The rules of the code base that a program can check: where things may stand, and that code, pages, cases and book agree.
#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "it serves tests, where a panic is how a failure is told"
)]

mod catalogue;
mod docs;
mod sources;

use std::fs;
use std::path::{Path, PathBuf};

/// The root of the repository.
fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests
        .parent()
        .expect("the package lies in the repository")
        .to_owned()
}

/// The text of the file at `path`, below the root.
fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every file below `folder` whose name ends in `suffix`, by its path below the root, sorted. Build results and hidden folders
/// are passed over.
fn files(folder: &str, suffix: &str) -> Vec<String> {
    fn walk(root: &Path, folder: &Path, suffix: &str, found: &mut Vec<String>) {
        let entries =
            fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for entry in entries {
            let path = entry.expect("the folder can be read").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    walk(root, &path, suffix, found);
                }
            } else if name.ends_with(suffix) {
                let below = path.strip_prefix(root).expect("it lies below the root");
                found.push(below.display().to_string());
            }
        }
    }
    let mut found = Vec::new();
    let root = root();
    walk(&root, &root.join(folder), suffix, &mut found);
    found.sort();
    assert!(!found.is_empty(), "no file in {folder} ends in {suffix}");
    found
}

/// Fails with every one of `faults`, if there are any.
#[track_caller]
fn none(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

//! Expected outputs in files.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Compares outputs with the files that hold the expected ones, and tells of all that differ at once.
#[derive(Default)]
pub(crate) struct Goldens {
    failures: String,
}

impl Goldens {
    /// Compares `actual` with the content of `file`, or writes it there when `UPDATE_EXPECT` is set.
    pub(crate) fn check(&mut self, file: &Path, actual: &str) {
        let expected = fs::read_to_string(file).ok();
        if expected.as_deref() == Some(actual) {
            return;
        }
        if env::var_os("UPDATE_EXPECT").is_some() {
            fs::write(file, actual).expect("an expected output can be written");
            return;
        }
        let name = file.display();
        match expected {
            None => self.fail(format_args!("{name} is missing; it would be:\n{actual}")),
            Some(expected) => self.fail(format_args!("{name}: {}", difference(&expected, actual))),
        }
    }

    /// Fails for every file of `folder` with this extension that belongs to no YAML file.
    pub(crate) fn no_strays(&mut self, folder: &str, extension: &str) {
        for file in files(folder, extension) {
            if !file.with_extension("yaml").is_file() {
                self.fail(format_args!("{} belongs to no YAML file", file.display()));
            }
        }
    }

    /// Notes another failure.
    pub(crate) fn fail(&mut self, message: impl std::fmt::Display) {
        writeln!(self.failures, "{message}\n").expect("a string takes everything");
    }

    /// Ends the test that made the comparisons.
    #[track_caller]
    pub(crate) fn finish(self) {
        assert!(
            self.failures.is_empty(),
            "\n{}UPDATE_EXPECT=1 rewrites expected outputs",
            self.failures
        );
    }
}

/// The files of `folder` with this extension, sorted.
pub(crate) fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder is part of the suite");
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("the folder can be read").path())
        .filter(|file| file.extension().is_some_and(|found| found == extension))
        .collect();
    files.sort();
    files
}

/// The name of `file` without its folder.
pub(crate) fn file_name(file: &Path) -> &str {
    let name = file.file_name().and_then(|name| name.to_str());
    name.expect("files of the suite have plain names")
}

/// The first line that differs.
fn difference(expected: &str, actual: &str) -> String {
    let line = expected
        .lines()
        .zip(actual.lines())
        .take_while(|(expected, actual)| expected == actual)
        .count();
    let of = |text: &str| text.lines().nth(line).unwrap_or("<nothing>").to_owned();
    format!(
        "line {} differs\n  expected: {}\n  actual:   {}",
        line + 1,
        of(expected),
        of(actual)
    )
}

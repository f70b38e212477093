//! Expected outputs in files.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

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

/// The first line that differs, with all that follows it being left to the reader's own tools.
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

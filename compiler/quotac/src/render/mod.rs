//! Reports, one module per format. All are made from the same values, so that no format knows more than another.

pub mod human;
pub mod json;

use quota_compiler::diagnostic::{Diagnostic, Severity};
use quota_compiler::span::PolicyText;

/// What was found in one file.
#[derive(Clone, Debug)]
pub struct FileReport {
    /// Whether the file passes: no error, and no warning where warnings are denied.
    pub ok: bool,
    /// SHA-256 of its program, lower-case hexadecimal, when it compiled.
    pub program_digest: Option<String>,
    /// Its text, with its name.
    pub text: PolicyText,
    /// Everything found, sorted.
    pub diagnostics: Vec<Diagnostic>,
}

/// How many of each were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Files checked.
    pub files: usize,
    /// Errors in them.
    pub errors: usize,
    /// Warnings in them.
    pub warnings: usize,
    /// Notes in them.
    pub notes: usize,
}

impl Counts {
    /// The counts over `reports`.
    #[must_use]
    pub fn of(reports: &[FileReport]) -> Self {
        let mut counts = Self {
            files: reports.len(),
            ..Self::default()
        };
        for diagnostic in reports.iter().flat_map(|report| &report.diagnostics) {
            match diagnostic.severity {
                Severity::Error => counts.errors += 1,
                Severity::Warning => counts.warnings += 1,
                Severity::Note => counts.notes += 1,
            }
        }
        counts
    }
}

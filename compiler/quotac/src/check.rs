//! `quotac check`: everything a daemon would refuse a policy file for, and everything else worth saying about it.

use std::io::{self, Read, Write};
use std::path::PathBuf;

use quota_compiler::backend_kind::BackendKinds;
use quota_compiler::diagnostic::Severity;
use quota_compiler::{Compiled, Limits, compile};

use crate::Status;
use crate::input::{self, Inputs};
use crate::kinds::PluginOptions;
use crate::render::{Counts, FileReport, human, json};

/// The form of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Human,
    /// For programs.
    Json,
}

/// What is checked, and how.
#[derive(Clone, Debug, Default)]
pub struct CheckOptions {
    /// Files, directories, or `-`.
    pub paths: Vec<PathBuf>,
    /// The form of the report.
    pub format: Format,
    /// Whether a warning fails a file.
    pub deny_warnings: bool,
    /// Where plugins come from.
    pub plugins: PluginOptions,
    /// Bounds on each file.
    pub limits: Limits,
}

/// Checks the files that `options` names: the report goes to `out`, a summary line and what could not be read to `err`.
///
/// # Errors
///
/// The report could not be written.
pub fn run(
    options: &CheckOptions,
    stdin: &mut dyn Read,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<Status> {
    let kinds = match options.plugins.kinds() {
        Ok(kinds) => kinds,
        Err(error) => {
            writeln!(err, "error: {error}")?;
            return Ok(Status::CouldNotRun);
        }
    };
    let found = Inputs::find(&options.paths);
    let mut passed_over = found.passed_over;
    let mut unreadable = found.errors;
    let mut reports = Vec::new();
    for input in &found.inputs {
        let bytes = match input::read(input, options.limits.max_bytes, stdin) {
            Ok(bytes) => bytes,
            Err(error) => {
                unreadable.push(error);
                continue;
            }
        };
        let compiled = compile(&input.name(), &bytes, options.limits, &kinds);
        if compiled.checked.holds_quota || input.is_named() {
            reports.push(report(compiled, options.deny_warnings));
        } else {
            passed_over += 1;
        }
    }

    match options.format {
        Format::Human => out.write_all(human::render(&reports).as_bytes())?,
        Format::Json => out.write_all(json::render(&reports)?.as_bytes())?,
    }
    out.flush()?;
    for error in &unreadable {
        writeln!(err, "error: {error}: {}", error.source)?;
    }
    let aside = aside(passed_over, unreadable.len());
    if reports.is_empty() && unreadable.is_empty() {
        writeln!(
            err,
            "error: nothing to check: no policy file was found{aside}"
        )?;
    } else {
        writeln!(err, "{}{aside}", summary(&reports))?;
    }
    Ok(status(&reports, unreadable.is_empty()))
}

/// Checks one text and reports on it.
#[must_use]
pub fn check_text(
    name: &str,
    bytes: &[u8],
    limits: Limits,
    kinds: &dyn BackendKinds,
    deny_warnings: bool,
) -> FileReport {
    report(compile(name, bytes, limits, kinds), deny_warnings)
}

fn report(compiled: Compiled, deny_warnings: bool) -> FileReport {
    let fails = |severity| match severity {
        Severity::Error => true,
        Severity::Warning => deny_warnings,
        Severity::Note => false,
    };
    let checked = compiled.checked;
    FileReport {
        ok: !checked
            .diagnostics
            .iter()
            .any(|diagnostic| fails(diagnostic.severity)),
        program_digest: compiled.program.map(|program| program.digest_hex()),
        text: checked.text,
        diagnostics: checked.diagnostics,
    }
}

fn status(reports: &[FileReport], all_read: bool) -> Status {
    if reports.is_empty() || !all_read {
        Status::CouldNotRun
    } else if reports.iter().all(|report| report.ok) {
        Status::Clean
    } else {
        Status::Problems
    }
}

/// One line about everything that was checked.
fn summary(reports: &[FileReport]) -> String {
    let Counts {
        files,
        errors,
        warnings,
        notes,
    } = Counts::of(reports);
    format!(
        "checked {}: {}, {}, {}",
        counted(files, "file"),
        counted(errors, "error"),
        counted(warnings, "warning"),
        counted(notes, "note"),
    )
}

/// What was not checked, for the end of that line.
fn aside(passed_over: usize, unreadable: usize) -> String {
    let mut aside = String::new();
    if passed_over > 0 {
        let files = counted(passed_over, "file");
        aside.push_str(&format!(
            " ({files} passed over: test cases, or no quota object)"
        ));
    }
    if unreadable > 0 {
        aside.push_str(&format!(
            " ({} could not be read)",
            counted(unreadable, "path")
        ));
    }
    aside
}

fn counted(count: usize, word: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {word}{plural}")
}

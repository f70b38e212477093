//! `quotac test`: runs files of policy test cases.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use quota_compiler::Limits;

use crate::Status;
use crate::cases::engine::Engine;
use crate::cases::run::{CaseResult, NotOpened, run as run_case};
use crate::cases::{CaseFile, CasePolicies, read, report};
use crate::input::{self, CaseFiles, Input, InputError};
use crate::kinds::PluginOptions;
use crate::render::human;

/// What is run, and how.
#[derive(Clone, Debug, Default)]
pub struct TestOptions {
    /// Case files, and directories with `*_test.yaml` files.
    pub paths: Vec<PathBuf>,
    /// Where plugins come from.
    pub plugins: PluginOptions,
    /// Bounds on each file.
    pub limits: Limits,
}

#[derive(Default)]
struct Counts {
    files: usize,
    passed: usize,
    failed: usize,
    not_run: usize,
}

/// Runs the cases that `options` names: what failed goes to `out`, a summary line and what could not be run to `err`.
///
/// # Errors
///
/// Writing failed.
pub fn run(options: &TestOptions, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<Status> {
    let found = CaseFiles::find(&options.paths);
    let engine = Engine {
        plugins: options.plugins.clone(),
        limits: options.limits,
        waiting: false,
    };
    let mut counts = Counts::default();
    let mut could_not_run = !found.errors.is_empty();
    for error in &found.errors {
        writeln!(err, "error: {error}: {}", error.source)?;
    }
    for path in &found.files {
        counts.files += 1;
        let bytes = match read_file(path, options.limits) {
            Ok(bytes) => bytes,
            Err(error) => {
                could_not_run = true;
                writeln!(err, "error: {error}: {}", error.source)?;
                continue;
            }
        };
        match read::read(&path.display().to_string(), &bytes, options.limits) {
            Ok(file) => run_file(&file, path, &engine, &mut counts, out)?,
            Err(unreadable) => {
                could_not_run = true;
                let shown = human::diagnostics(&unreadable.text, &unreadable.diagnostics);
                write!(out, "{shown}")?;
            }
        }
    }
    out.flush()?;
    if counts.files == 0 && !could_not_run {
        writeln!(err, "error: nothing to test: no *_test.yaml file was found")?;
        return Ok(Status::CouldNotRun);
    }
    writeln!(
        err,
        "ran {} of {}: {} passed, {} failed, {} could not be run",
        counted(counts.passed + counts.failed + counts.not_run, "case"),
        counted(counts.files, "file"),
        counts.passed,
        counts.failed,
        counts.not_run
    )?;
    Ok(if could_not_run || counts.not_run > 0 {
        Status::CouldNotRun
    } else if counts.failed > 0 {
        Status::Problems
    } else {
        Status::Clean
    })
}

fn counted(count: usize, word: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {word}{plural}")
}

fn read_file(path: &Path, limits: Limits) -> Result<Vec<u8>, InputError> {
    let input = Input::File {
        path: path.to_owned(),
        named: true,
    };
    input::read(&input, limits.max_bytes, &mut io::empty())
}

fn run_file(
    file: &CaseFile,
    path: &Path,
    engine: &Engine,
    counts: &mut Counts,
    out: &mut dyn Write,
) -> io::Result<()> {
    let name = file.text.name();
    // Many cases name one policy file; what is wrong with it is said once.
    let mut policy_files: HashMap<PathBuf, Result<Vec<u8>, String>> = HashMap::new();
    let mut refused: Vec<String> = Vec::new();
    for case in &file.cases {
        let (policies_name, bytes) = match &case.policies {
            CasePolicies::Inline(text) => (name.to_owned(), Ok(text.as_bytes())),
            CasePolicies::File(relative) => {
                let policy_path = path.parent().unwrap_or(Path::new("")).join(relative);
                let policies_name = policy_path.display().to_string();
                let read = policy_files
                    .entry(policy_path)
                    .or_insert_with_key(|policy_path| {
                        read_file(policy_path, engine.limits)
                            .map_err(|error| format!("{error}: {}", error.source))
                    });
                (policies_name, read.as_deref().map_err(String::as_str))
            }
        };
        let result = match bytes {
            Ok(bytes) => run_case(engine, case, &policies_name, bytes),
            Err(why) => CaseResult::NotRun(NotOpened::Other(why.to_owned())),
        };
        let place = format!("{name}:{}: case `{}`", case.line, case.name.escape_debug());
        match result {
            CaseResult::Passed => counts.passed += 1,
            CaseResult::Failed(failure) => {
                counts.failed += 1;
                writeln!(out, "{}", report::failure(name, case, &failure))?;
            }
            CaseResult::NotRun(NotOpened::Other(why)) => {
                counts.not_run += 1;
                writeln!(out, "{place} could not be run: {why}\n")?;
            }
            CaseResult::NotRun(NotOpened::Refused { text, diagnostics }) => {
                counts.not_run += 1;
                writeln!(out, "{place} could not be run: its policies are refused\n")?;
                let shown = human::diagnostics(&text, &diagnostics);
                if !refused.contains(&shown) {
                    write!(out, "{shown}")?;
                    refused.push(shown);
                }
            }
        }
    }
    Ok(())
}

//! `quotac print`: the flat program of a policy file as text.

use std::io::{self, Read, Write};
use std::path::Path;

use quota_compiler::{Limits, compile};

use crate::Status;
use crate::input::{self, Input, STDIN};
use crate::kinds::PluginOptions;
use crate::render::human;

/// Writes the program of the policy file at `path` (`-`: standard input) to `out`; what the compiler says of the file goes to
/// `err`.
///
/// # Errors
///
/// Writing failed.
pub fn run(
    path: &Path,
    plugins: &PluginOptions,
    limits: Limits,
    stdin: &mut dyn Read,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<Status> {
    let kinds = match plugins.kinds() {
        Ok(kinds) => kinds,
        Err(error) => {
            writeln!(err, "error: {error}")?;
            return Ok(Status::CouldNotRun);
        }
    };
    let input = if path.as_os_str() == STDIN {
        Input::Stdin
    } else {
        Input::File {
            path: path.to_owned(),
            named: true,
        }
    };
    let bytes = match input::read(&input, limits.max_bytes, stdin) {
        Ok(bytes) => bytes,
        Err(error) => {
            writeln!(err, "error: {error}: {}", error.source)?;
            return Ok(Status::CouldNotRun);
        }
    };
    let compiled = compile(&input.name(), &bytes, limits, &kinds);
    let checked = &compiled.checked;
    write!(
        err,
        "{}",
        human::diagnostics(&checked.text, &checked.diagnostics)
    )?;
    match compiled.program {
        Some(program) => {
            write!(out, "{program}")?;
            Ok(Status::Clean)
        }
        None => Ok(Status::Problems),
    }
}

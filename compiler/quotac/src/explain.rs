//! `quotac explain`: what a diagnostic code means, with a file that fails and a file that passes.

use std::io::{self, Write};

use quota_compiler::codes::{self, Code};

use crate::Status;

/// Writes the page of `code` (an id such as `Q0501`, or a name such as `burst-not-shorter`) to `out`.
///
/// # Errors
///
/// Writing failed.
pub fn run(code: &str, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<Status> {
    let code = code.trim();
    if let Some(row) = codes::find(code) {
        let page = row.page.trim_end();
        writeln!(out, "{page}")?;
        return Ok(Status::Clean);
    }
    write!(
        err,
        "error: there is no diagnostic code `{}`",
        code.escape_debug()
    )?;
    match nearest(code) {
        Some(row) => writeln!(err, "; did you mean `{}` ({})?", row.id, row.name)?,
        None => writeln!(err, "; `quotac explain --list` shows them all")?,
    }
    Ok(Status::CouldNotRun)
}

/// Writes one line for each code to `out`.
///
/// # Errors
///
/// Writing failed.
pub fn list(out: &mut dyn Write) -> io::Result<Status> {
    for row in codes::ALL {
        writeln!(
            out,
            "{}  {:<8} {:<32} {}",
            row.id,
            row.severity.as_str(),
            row.name,
            row.summary
        )?;
    }
    Ok(Status::Clean)
}

/// The row whose name is most like `word`.
fn nearest(word: &str) -> Option<&'static Code> {
    let names = codes::ALL.iter().map(|row| row.name);
    let name = quota_compiler::syntax::nearest_by_spelling(word, names)?;
    codes::find(name)
}

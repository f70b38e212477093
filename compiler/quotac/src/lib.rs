//! The quota policy compiler as a command: what each subcommand does, apart from reading its arguments.
//!
//! # Map
//!
//! | module | subcommand or part |
//! | --- | --- |
//! | [`mod@check`] | `quotac check`: every diagnostic of the files named |
//! | [`explain`] | `quotac explain`: the page of a diagnostic code |
//! | [`input`] | which files a command reads, and how |
//! | [`print`](mod@print) | `quotac print`: the flat program as text |
//! | [`schema`] | `quotac schema`: a JSON Schema of the policy file |
//! | [`test`](mod@test), [`cases`] | `quotac test`: policy test cases |
//! | [`kinds`] | what the compiler is told of backend kinds |
//! | [`render`] | reports, one module per format |
//! | [`output`] | standard output whose reader may go away |

pub mod cases;
pub mod check;
pub mod explain;
pub mod input;
pub mod kinds;
pub mod output;
pub mod print;
pub mod render;
pub mod schema;
pub mod test;

use std::process::ExitCode;

/// How a command ended; the larger one of several counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// It ran and found nothing that fails.
    Clean,
    /// It ran and found problems.
    Problems,
    /// It could not run, or not on everything it was given.
    CouldNotRun,
}

impl Status {
    /// The exit code: 0, 1 or 2.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Clean => 0,
            Self::Problems => 1,
            Self::CouldNotRun => 2,
        }
    }
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        Self::from(status.code())
    }
}

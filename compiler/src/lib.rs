//! Compiles YAML quota policies into a checked IR and a flat decision program.
//!
//! ```
//! use quota_compiler::backend_kind::KnownKinds;
//! use quota_compiler::{Limits, compile};
//!
//! let text = b"
//! enabled: true
//! policies:
//!   - name: per-tenant
//!     selector: { tenant: { key: header:x-tenant-id } }
//!     burst: { requests: 10, window_secs: 1 }
//!   - name: login
//!     route_allowlist: [login]
//!     selector: { client: { key: client_ip } }
//!     burst: { requests: 5, window_secs: 60 }
//! ";
//! let compiled = compile("policies.yaml", text, Limits::default(), &KnownKinds);
//! let program = compiled.program.expect("the policies have no fault");
//! let login = program.slice_for(Some("login"));
//! assert_eq!(program.instructions(login).len(), 2);
//! assert_eq!(program.instructions(program.slice_for(Some("search"))).len(), 1);
//!
//! // Every fault is found in one run.
//! let faulty = b"policies: [{ name: a, selector: {}, burst: { requests: 0, window_secs: 60 } }]";
//! let compiled = compile("policies.yaml", faulty, Limits::default(), &KnownKinds);
//! let codes = compiled.checked.diagnostics.iter().map(|found| found.code.name);
//! assert_eq!(codes.collect::<Vec<_>>(), ["empty-selector", "zero-requests"]);
//! ```
//!
//! # Map
//!
//! | module | step |
//! | --- | --- |
//! | [`syntax`] | text → raw quota object, every part with its place; nothing judged but shape |
//! | [`check`](mod@check) | raw quota object → checked [`ir`]; every rule of contract §2, all faults in one run |
//! | [`lower`] | IR → [`program`]; decides nothing a user could notice |
//! | [`program`] | the flat program, its verifier, text form and digest |
//!
//! [`check_text`] and [`compile`] are the two entry points; both never stop at the first fault.

pub mod backend_kind;
pub mod check;
pub mod codes;
pub mod diagnostic;
pub mod ir;
pub mod lower;
pub mod program;
pub mod settings;
pub mod span;
pub mod syntax;
pub mod terms;

use std::error::Error as _;
use std::iter::successors;

use crate::backend_kind::BackendKinds;
use crate::diagnostic::Diagnostic;
use crate::ir::Quota;
use crate::lower::LowerError;
use crate::program::Program;
use crate::span::{PolicyText, Span};

/// Bounds on what is read at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest file, in bytes.
    pub max_bytes: u64,
    /// The most YAML events (nodes, and ends of lists and mappings).
    pub max_events: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_bytes: 4 << 20,
            max_events: 1_000_000,
        }
    }
}

/// What `check_text` found.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The text as read, with its secrets marked.
    pub text: PolicyText,
    /// What the file means; `None` when an error refuses it.
    pub quota: Option<Quota>,
    /// Line of each policy's first byte, in file order; as long as `quota.policies`.
    pub policy_lines: Vec<u32>,
    /// Everything found, sorted.
    pub diagnostics: Vec<Diagnostic>,
    /// Whether the file holds a quota object, or a near miss of one. Where not, the only diagnostic is
    /// [`codes::NO_QUOTA_OBJECT`], which a directory walk passes over.
    pub holds_quota: bool,
}

/// What `compile` made.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The program; `None` when an error refuses the file.
    pub program: Option<Program>,
    /// What checking found, and why there is no program for checked policies.
    pub checked: Checked,
}

/// Reads and checks one policy file of name `name`; the library's `quotac check`.
#[must_use]
pub fn check_text(name: &str, bytes: &[u8], limits: Limits, kinds: &dyn BackendKinds) -> Checked {
    check::check_text(name, bytes, limits, kinds)
}

/// Reads, checks and lowers one policy file of name `name`: everything a runtime may refuse a file for, but for what its
/// backend says.
#[must_use]
pub fn compile(name: &str, bytes: &[u8], limits: Limits, kinds: &dyn BackendKinds) -> Compiled {
    let mut checked = check_text(name, bytes, limits, kinds);
    let lowered = checked
        .quota
        .as_ref()
        .map(|quota| lower::lower(quota, &checked.policy_lines));
    let program = match lowered {
        Some(Ok(program)) => Some(program),
        None => None,
        Some(Err(error)) => {
            checked.quota = None;
            checked.policy_lines = Vec::new();
            checked.diagnostics.push(not_lowered(&error));
            diagnostic::sort(&mut checked.diagnostics);
            None
        }
    };
    Compiled { program, checked }
}

fn not_lowered(error: &LowerError) -> Diagnostic {
    let file = Span::new(0, 0);
    if let LowerError::TooLarge { .. } = error {
        return Diagnostic::new(&codes::PROGRAM_TOO_LARGE, "", file, error.to_string()).with_help(
            "the policies for every route stand once in the code of each set of routes: let fewer policies apply to every \
             route, or give routes the same policies",
        );
    }
    let causes = successors(error.source(), |cause| (*cause).source());
    let message = causes.fold(error.to_string(), |message, cause| {
        format!("{message}: {cause}")
    });
    Diagnostic::new(&codes::COMPILER_FAULT, "", file, message)
        .with_help("the policies are not at fault: please report this with the file")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::verify::{Fault, Place, VerifyError};

    #[test]
    fn a_fault_of_the_compiler_says_all_it_knows_and_whom_to_tell() {
        let diagnostic = not_lowered(&LowerError::Refused(VerifyError {
            place: Place::Instruction(3),
            fault: Fault::WrongTemplate,
        }));
        assert_eq!(diagnostic.code, &codes::COMPILER_FAULT);
        assert!(diagnostic.is_error());
        assert_eq!(
            diagnostic.message,
            "the compiler made a program that its verifier refuses: instruction 3: the template is not that of the policy"
        );
        let help = diagnostic.help.unwrap_or_default();
        assert!(help.contains("please report this"), "{help}");
    }

    #[test]
    fn a_program_too_large_comes_with_a_way_out() {
        let diagnostic = not_lowered(&LowerError::TooLarge {
            what: "instructions",
            max: 7,
        });
        assert_eq!(diagnostic.code, &codes::PROGRAM_TOO_LARGE);
        assert_eq!(
            diagnostic.message,
            "the program needs more than 7 instructions"
        );
        assert!(diagnostic.help.is_some());
    }
}

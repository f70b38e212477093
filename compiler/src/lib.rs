//! Compiles YAML quota policies into a checked IR and a flat decision program.
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

use crate::backend_kind::BackendKinds;
use crate::diagnostic::Diagnostic;
use crate::ir::Quota;
use crate::program::Program;
use crate::span::PolicyText;

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
    /// What checking found.
    pub checked: Checked,
}

/// Reads and checks one policy file of name `name`; the library's `quotac check`.
#[must_use]
pub fn check_text(name: &str, bytes: &[u8], limits: Limits, kinds: &dyn BackendKinds) -> Checked {
    check::check_text(name, bytes, limits, kinds)
}

/// Reads, checks and lowers one policy file of name `name`.
#[must_use]
pub fn compile(name: &str, bytes: &[u8], limits: Limits, kinds: &dyn BackendKinds) -> Compiled {
    let checked = check_text(name, bytes, limits, kinds);
    let program = checked
        .quota
        .as_ref()
        .map(|quota| lower::lower(quota, &checked.policy_lines));
    Compiled { program, checked }
}

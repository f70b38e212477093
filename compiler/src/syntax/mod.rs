//! Text → raw quota object.

mod events;
mod gate;
mod nearest;
pub mod raw;
pub mod source_key;
mod yaml;

pub use nearest::{nearest, nearest_by_spelling};

use self::raw::RawQuota;
use crate::Limits;
use crate::diagnostic::Diagnostic;
use crate::span::PolicyText;

/// What was read of one policy file.
#[derive(Clone, Debug)]
pub struct Read {
    /// The text as read, its secrets marked.
    pub text: PolicyText,
    /// The quota object; `None` when there is none, or the file cannot be read as far as that. Parts at fault are
    /// [`raw::Given::Faulty`], and are then reported.
    pub raw: Option<RawQuota>,
    /// Everything found.
    pub diagnostics: Vec<Diagnostic>,
    /// Whether the file holds a quota object or a near miss of one, as [`crate::Checked::holds_quota`].
    pub holds_quota: bool,
}

/// Reads the policy file `bytes` called `name`.
#[must_use]
pub fn read(name: &str, bytes: &[u8], limits: Limits) -> Read {
    let _ = limits;
    Read {
        text: PolicyText::new(name, String::from_utf8_lossy(bytes)),
        raw: None,
        diagnostics: Vec::new(),
        holds_quota: false,
    }
}

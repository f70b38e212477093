//! Text → raw quota object.
//!
//! | module | step |
//! | --- | --- |
//! | `gate` | bytes → text: size, UTF-8, characters |
//! | `events`, `yaml`, `broken` | text → tree with places, on the scanner inside `serde_yaml` |
//! | `document` | finds the quota object in the tree |
//! | `decode`, `scalar`, `misfit` | tree → [`raw`], every fault of shape and type |
//! | `quote` | how messages show the file's words |
//! | `serde_reader` | the same text through `serde_yaml` itself; both must agree |
//! | [`source_key`] | the grammar of sources, for the checks |
//! | [`plain`] | the same scanner for files that are no policy files |
//!
//! Nothing but shape and type is judged. Where the two readers differ on purpose stands in [`STRICTER`].

mod broken;
mod decode;
mod document;
mod events;
mod gate;
mod misfit;
mod nearest;
pub mod plain;
pub(crate) mod quote;
pub mod raw;
mod scalar;
mod secret;
mod serde_reader;
pub mod source_key;
mod yaml;

pub use decode::backend_fields;
pub use nearest::{nearest, nearest_by_spelling};
pub use serde_reader::{STRICTER, Stricter};

use self::document::Located;
use self::raw::RawQuota;
use crate::Limits;
use crate::codes;
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
    let gated = gate::pass(bytes, limits);
    let mut read = Read {
        text: PolicyText::new(name, gated.text),
        raw: None,
        diagnostics: gated.faults,
        // A file that cannot be read may well hold one.
        holds_quota: true,
    };
    secret::hide_in_text(&mut read.text);
    if read.diagnostics.is_empty() {
        read_text(&mut read, limits);
        explain_byte_order_mark(&mut read);
    }
    read
}

/// Reads on behind the gate.
fn read_text(read: &mut Read, limits: Limits) {
    let parsed = broken::parse(read.text.as_str(), limits.max_events);
    let sound = parsed.faults.is_empty();
    read.diagnostics.extend(parsed.faults);
    let located = document::locate(&parsed.tree, parsed.truncated, &mut read.diagnostics);
    let root = match located {
        Located::Object(root) => root,
        Located::NearMiss => return,
        Located::Nothing => {
            // What is no policy file is not for us to judge.
            read.holds_quota = !sound;
            return;
        }
    };
    // An anchor may have been taken out with a policy, and is reported then.
    if parsed.skipped.is_empty() {
        unknown_anchors(&parsed.tree, &mut read.diagnostics);
    }
    let raw = decode::decode(
        &parsed.tree,
        &mut read.text,
        root,
        &parsed.skipped,
        &mut read.diagnostics,
    );
    if sound {
        let disagreement = serde_reader::disagreement(&read.text, &raw, &read.diagnostics);
        read.diagnostics.extend(disagreement);
    }
    read.raw = Some(raw);
}

fn unknown_anchors(tree: &yaml::Tree, diagnostics: &mut Vec<Diagnostic>) {
    for (place, name) in &tree.unknown_anchors {
        let name = quote::quote(name);
        diagnostics.push(
            Diagnostic::new(
                &codes::UNKNOWN_ANCHOR,
                "",
                *place,
                format!("there is no anchor {name} before this alias"),
            )
            .with_help("anchors stand before their aliases; quote a value that begins with `*`"),
        );
    }
}

/// `serde_yaml` counts a byte order mark as a column, so that the first field stands one to the right of the others.
fn explain_byte_order_mark(read: &mut Read) {
    if !read.text.as_str().starts_with('\u{feff}') {
        return;
    }
    for diagnostic in &mut read.diagnostics {
        if diagnostic.message == broken::OUTSIDE {
            diagnostic.help = Some(
                "the file begins with a byte order mark, which counts as a column of its first line: save it without"
                    .to_owned(),
            );
        }
    }
}

#[cfg(test)]
mod tests;

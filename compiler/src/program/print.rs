//! The text form of a program: what a reviewer reads to see which policies a request of some route meets, in which order.
//! Its words are those of the policy file; what the file may choose freely stands in quotes, with nothing invisible in it.
//!
//! ```text
//! program 4c3e…                                    the digest
//! enabled true
//! enforcement enforce
//! backend_failure_policy fail_closed
//! backend kind "in_memory" key_prefix "impulse:quota" max_entries 4096
//!
//! route "login" -> slice 1
//! any other request -> slice 0
//!
//! slice 0:
//!   0000 check "per-tenant"; key policy, tenant s0 "header:x-tenant"; burst 5/1s, sustained 100/60s; line 6
//!
//! slice 1:
//!   0001 check "per-tenant"; key policy, tenant s0 "header:x-tenant"; burst 5/1s, sustained 100/60s; line 6
//!   0002 check "login-guard"; key policy, route "login", client s1 "client_ip"; burst 2/10s; line 10
//! ```
//!
//! An instruction names the parts of its composite key: those known at compile time (the policy, a route of its own), and
//! those a request adds (`route of request`; the value in a slot, with the source it is read from at most once).

use std::fmt::{self, Formatter, Write as _};

use super::key::{self, KeyName, ParsedKey};
use super::{Instruction, PolicyRow, Program, RouteOperand, SliceId, SlotId, WindowOperand, hex};
use crate::settings::{BackendPlace, BackendSettings};
use crate::terms::{Dimension, WindowKind};

impl fmt::Display for Program {
    /// One line for each setting, route and instruction, with the line of the policy file an instruction comes from. No
    /// credentials.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "program {}", self.digest_hex())?;
        writeln!(f, "enabled {}", self.enabled)?;
        writeln!(f, "enforcement {}", self.enforcement.as_str())?;
        writeln!(f, "backend_failure_policy {}", self.failure_policy.as_str())?;
        backend(f, &self.backend)?;
        if let Some(fallback) = &self.fallback {
            writeln!(
                f,
                "local_fallback key_prefix {:?} max_entries {}",
                fallback.key_prefix, fallback.max_entries
            )?;
        }
        writeln!(f)?;
        for (name, slice) in self.routes() {
            writeln!(f, "route {name:?} -> slice {}", slice.0)?;
        }
        writeln!(f, "any other request -> slice {}", self.any_route.0)?;
        let mut addresses = 0_usize..;
        for slice in (0..).map(SliceId).take(self.slices.len()) {
            writeln!(f, "\nslice {}:", slice.0)?;
            let instructions = self.instructions(slice);
            if instructions.is_empty() {
                writeln!(f, "  (no policy applies)")?;
            }
            for (instruction, address) in instructions.iter().zip(&mut addresses) {
                write!(f, "  {address:04} ")?;
                check(f, self, slice, instruction)?;
            }
        }
        Ok(())
    }
}

fn backend(f: &mut Formatter<'_>, backend: &BackendSettings) -> fmt::Result {
    write!(
        f,
        "backend kind {:?} key_prefix {:?}",
        backend.kind, backend.key_prefix
    )?;
    match backend.place {
        BackendPlace::Local { max_entries } => write!(f, " max_entries {max_entries}")?,
        BackendPlace::Remote {
            connect_timeout_ms,
            command_timeout_ms,
            max_inflight,
        } => write!(
            f,
            " connect_timeout_ms {connect_timeout_ms} command_timeout_ms {command_timeout_ms} max_inflight {max_inflight}"
        )?,
    }
    if let Some(plugin) = &backend.plugin {
        write!(f, " plugin {plugin:?}")?;
    }
    if let Some(sha256) = &backend.plugin_sha256 {
        write!(f, " plugin_sha256 {}", hex(sha256))?;
    }
    for (name, value) in &backend.public_options() {
        write!(f, " {name:?} ")?;
        // JSON escapes quotes and line ends, but not all that a terminal obeys or nobody can see.
        for character in value.to_string().chars() {
            match character {
                '"' | '\'' | '\\' => f.write_char(character)?,
                _ => write!(f, "{}", character.escape_debug())?,
            }
        }
    }
    writeln!(f)
}

/// One line for an instruction.
fn check(
    f: &mut Formatter<'_>,
    program: &Program,
    slice: SliceId,
    instruction: &Instruction,
) -> fmt::Result {
    let template = program.template(instruction.template);
    let (Some(row), Some(known)) = (program.policy(instruction.policy), key::parse(template))
    else {
        // Only a program that no verifier has seen.
        return writeln!(f, "check policy {} (unreadable)", instruction.policy.0);
    };
    write!(f, "check {:?}; key ", row.name)?;
    key_parts(f, program, slice, instruction, row, &known)?;
    let mut separator = "; ";
    for (kind, window) in [
        (WindowKind::Burst, row.burst),
        (WindowKind::Sustained, row.sustained),
    ] {
        if let Some(WindowOperand {
            requests,
            length_ms,
        }) = window
        {
            let secs = length_ms.get() / 1000;
            write!(f, "{separator}{} {requests}/{secs}s", kind.as_str())?;
            separator = ", ";
        }
    }
    if row.line > 0 {
        write!(f, "; line {}", row.line)?;
    }
    writeln!(f)
}

fn key_parts(
    f: &mut Formatter<'_>,
    program: &Program,
    slice: SliceId,
    instruction: &Instruction,
    row: &PolicyRow,
    known: &ParsedKey<'_>,
) -> fmt::Result {
    f.write_str(match known.policy {
        KeyName::Readable(_) => "policy",
        KeyName::Hashed(_) => "sha256 of policy",
    })?;
    match (instruction.route, known.route) {
        (RouteOperand::Absent, _) => {}
        (RouteOperand::FromRequest, _) => write!(f, ", route of request")?,
        (RouteOperand::InTemplate, Some(KeyName::Readable(route))) => {
            write!(f, ", route {route:?}")?
        }
        (RouteOperand::InTemplate, Some(KeyName::Hashed(_)) | None) => {
            let route = row.view.route_allowlist.first();
            write!(f, ", sha256 of route {:?}", route.map_or("", |route| route))?;
        }
    }
    let dimensions = [Dimension::Tenant, Dimension::Token, Dimension::Client];
    for (dimension, slot) in dimensions.into_iter().zip(instruction.slots) {
        if slot != SlotId::NONE {
            let id = program.sources_of(slice).get(usize::from(slot.0));
            let source = id.and_then(|id| program.source(*id));
            let source = source.map(ToString::to_string).unwrap_or_default();
            write!(f, ", {} s{} {source:?}", dimension.as_str(), slot.0)?;
        }
    }
    Ok(())
}

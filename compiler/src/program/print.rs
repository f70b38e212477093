//! The text form of a program: what a reviewer reads to see which policies a request of some route meets, in which order.
//! The same program gives the same text.

use std::fmt;

use super::{Instruction, PolicyRow, Program, RouteOperand, SliceId, SlotId, WindowOperand};
use crate::settings::BackendPlace;
use crate::terms::Dimension;

impl fmt::Display for Program {
    /// One line for each setting, route and instruction, with the line of the policy file an instruction comes from. No
    /// credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "program {}", self.digest_hex())?;
        writeln!(f, "enabled {}", self.enabled)?;
        writeln!(f, "enforcement {}", self.enforcement.as_str())?;
        writeln!(f, "failure policy {}", self.failure_policy.as_str())?;
        backend(f, self)?;
        writeln!(f)?;
        for (name, slice) in self.routes() {
            writeln!(f, "route {name:?} -> slice {}", slice.0)?;
        }
        writeln!(f, "any other route -> slice {}", self.any_route.0)?;
        let mut address = 0_u32;
        for slice in (0..).map(SliceId).take(self.slices.len()) {
            let instructions = self.instructions(slice);
            writeln!(f)?;
            writeln!(f, "slice {}:", slice.0)?;
            if instructions.is_empty() {
                writeln!(f, "  (no policy applies)")?;
            }
            for instruction in instructions {
                self::instruction(f, self, slice, address, instruction)?;
                address = address.saturating_add(1);
            }
        }
        Ok(())
    }
}

fn backend(f: &mut fmt::Formatter<'_>, program: &Program) -> fmt::Result {
    let backend = &program.backend;
    write!(
        f,
        "backend {:?} prefix {:?}",
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
            " connect_timeout {connect_timeout_ms}ms command_timeout {command_timeout_ms}ms max_inflight {max_inflight}"
        )?,
    }
    if let Some(plugin) = &backend.plugin {
        write!(f, " plugin {plugin:?}")?;
    }
    if let Some(digest) = &backend.plugin_sha256 {
        write!(f, " plugin_sha256 {}", super::hex(digest))?;
    }
    let options = backend.public_options();
    if !options.is_empty() {
        // Its order is that of the file; sorted, equal options print alike.
        let sorted: std::collections::BTreeMap<_, _> = options.iter().collect();
        write!(f, " options")?;
        for (name, value) in sorted {
            write!(f, " {name:?}={value}")?;
        }
    }
    writeln!(f)?;
    if let Some(fallback) = &program.fallback {
        writeln!(
            f,
            "fallback prefix {:?} max_entries {}",
            fallback.key_prefix, fallback.max_entries
        )?;
    }
    Ok(())
}

fn instruction(
    f: &mut fmt::Formatter<'_>,
    program: &Program,
    slice: SliceId,
    address: u32,
    instruction: &Instruction,
) -> fmt::Result {
    write!(f, "  {address:04} check ")?;
    let Some(row) = program.policy(instruction.policy) else {
        return writeln!(f, "policy {} (not there)", instruction.policy.0);
    };
    write!(f, "{:?}", row.name)?;
    match instruction.route {
        RouteOperand::Absent => {}
        RouteOperand::InTemplate => write!(f, " route={:?}", only_route(row))?,
        RouteOperand::FromRequest => write!(f, " route=(the request's)")?,
    }
    let dimensions = [Dimension::Tenant, Dimension::Token, Dimension::Client];
    for (dimension, slot) in dimensions.into_iter().zip(instruction.slots) {
        if slot == SlotId::NONE {
            continue;
        }
        write!(f, " {}=", dimension.as_str())?;
        let id = program.sources_of(slice).get(usize::from(slot.0));
        match id.and_then(|id| program.source(*id)) {
            Some(source) => write!(f, "{}", source.to_string().escape_debug())?,
            None => write!(f, "(slot {} is not there)", slot.0)?,
        }
    }
    for (word, window) in [("burst", row.burst), ("sustained", row.sustained)] {
        if let Some(WindowOperand {
            requests,
            length_ms,
        }) = window
        {
            write!(f, " {word}={requests}/{}s", length_ms.get() / 1000)?;
        }
    }
    if row.line > 0 {
        write!(f, " ; line {}", row.line)?;
    }
    writeln!(f)
}

fn only_route(row: &PolicyRow) -> &str {
    row.view.route_allowlist.first().map_or("", |route| route)
}

#[cfg(test)]
mod tests {
    use crate::backend_kind::KnownKinds;
    use crate::{Limits, compile};

    #[test]
    fn every_setting_route_and_instruction_has_its_line() {
        let text = "\
enabled: true
backend_failure_policy: fail_open
backend: { kind: redis, url: 'redis://user:secret@db:6379/1' }
local_fallback: { max_entries: 10 }
policies:
  - name: per-tenant
    selector: { tenant: { key: ' Header:X-Tenant ' } }
    burst: { requests: 5, window_secs: 1 }
    sustained: { requests: 100, window_secs: 60 }
  - name: \"login\\nguard\"
    route_allowlist: [login]
    selector: { route: true, client: { key: peer_ip } }
    burst: { requests: 2, window_secs: 10 }
";
        let compiled = compile("p.yaml", text.as_bytes(), Limits::default(), &KnownKinds);
        let program = compiled.program.expect("the policies are legal");
        let digest = program.digest_hex();
        let expected = format!(
            r#"program {digest}
enabled true
enforcement enforce
failure policy fail_open
backend "redis" prefix "impulse:quota" connect_timeout 250ms command_timeout 100ms max_inflight 1024 options "url"="redis://db:6379/1"
fallback prefix "impulse:quota:fallback" max_entries 10

route "login" -> slice 1
any other route -> slice 0

slice 0:
  0000 check "per-tenant" tenant=header:x-tenant burst=5/1s sustained=100/60s ; line 6

slice 1:
  0001 check "per-tenant" tenant=header:x-tenant burst=5/1s sustained=100/60s ; line 6
  0002 check "login\nguard" route="login" client=client_ip burst=2/10s ; line 10
"#
        );
        assert_eq!(program.to_string(), expected);
    }

    #[test]
    fn a_program_without_policies_says_so() {
        let compiled = compile("p.yaml", b"enabled: false", Limits::default(), &KnownKinds);
        let text = compiled.program.expect("it is legal").to_string();
        assert!(
            text.ends_with("any other route -> slice 0\n\nslice 0:\n  (no policy applies)\n"),
            "{text}"
        );
    }
}

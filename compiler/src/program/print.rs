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

#[cfg(test)]
mod tests {
    use crate::backend_kind::KnownKinds;
    use crate::program::Program;
    use crate::{Limits, compile};

    fn program(text: &str) -> Program {
        let compiled = compile("p.yaml", text.as_bytes(), Limits::default(), &KnownKinds);
        compiled
            .program
            .unwrap_or_else(|| panic!("{:#?}", compiled.checked.diagnostics))
    }

    /// The text after the line of the digest.
    fn printed(text: &str) -> String {
        let text = program(text).to_string();
        text.split_once('\n').expect("it has lines").1.to_owned()
    }

    #[test]
    fn every_setting_route_and_instruction_has_its_line() {
        let text = "\
enabled: true
enforcement: shadow
backend_failure_policy: fail_open
backend:
  kind: redis
  url: 'redis://user:hunter2@db:6379/1'
  plugin: my_redis.so
  plugin_sha256: 00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF
  sentinel: { password: hunter2, nodes: [\"a\\u202e\\u0085\\e\", 'rediss://:hunter2@b'] }
local_fallback: { max_entries: 10 }
policies:
  - name: per-tenant
    selector: { tenant: { key: ' Header:X-Tenant ' } }
    burst: { requests: 5, window_secs: 1 }
    sustained: { requests: 100, window_secs: 60 }
  - name: guard
    route_allowlist: [login, admin]
    selector: { route: true, token: { key: bearer_token }, client: { key: peer_ip } }
    sustained: { requests: 9007199254740991, window_secs: 3153600000 }
  - name: login-only
    route_allowlist: [login]
    selector: { route: true, tenant: { key: 'query:a b' }, client: { key: peer_ip } }
    burst: { requests: 2, window_secs: 10 }
";
        let expected = r#"enabled true
enforcement shadow
backend_failure_policy fail_open
backend kind "redis" key_prefix "impulse:quota" connect_timeout_ms 250 command_timeout_ms 100 max_inflight 1024 plugin "my_redis.so" plugin_sha256 00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff "sentinel" {"nodes":["a\u{202e}\u{85}\u001b","rediss://b"],"password":"***"} "url" "redis://db:6379/1"
local_fallback key_prefix "impulse:quota:fallback" max_entries 10

route "admin" -> slice 1
route "login" -> slice 2
any other request -> slice 0

slice 0:
  0000 check "per-tenant"; key policy, tenant s0 "header:x-tenant"; burst 5/1s, sustained 100/60s; line 12

slice 1:
  0001 check "per-tenant"; key policy, tenant s0 "header:x-tenant"; burst 5/1s, sustained 100/60s; line 12
  0002 check "guard"; key policy, route of request, token s1 "bearer_token", client s2 "client_ip"; sustained 9007199254740991/3153600000s; line 16

slice 2:
  0003 check "per-tenant"; key policy, tenant s0 "header:x-tenant"; burst 5/1s, sustained 100/60s; line 12
  0004 check "guard"; key policy, route of request, token s1 "bearer_token", client s2 "client_ip"; sustained 9007199254740991/3153600000s; line 16
  0005 check "login-only"; key policy, route "login", tenant s3 "query:a b", client s2 "client_ip"; burst 2/10s; line 20
"#;
        assert_eq!(printed(text), expected);
    }

    #[test]
    fn the_first_line_is_the_digest() {
        let program = program("enabled: false");
        let text = program.to_string();
        let first = text.lines().next();
        assert_eq!(first, Some(&*format!("program {}", program.digest_hex())));
    }

    #[test]
    fn a_program_without_policies_says_so() {
        assert_eq!(
            printed("enabled: false"),
            r#"enabled false
enforcement enforce
backend_failure_policy fail_closed
backend kind "in_memory" key_prefix "impulse:quota" max_entries 4096

any other request -> slice 0

slice 0:
  (no policy applies)
"#
        );
    }

    #[test]
    fn names_cannot_pass_for_other_lines() {
        let text = printed(
            r#"
policies:
  - name: "a\n  0007 check \"b\"\u2028\u202e\e[1m"
    route_allowlist: ["x\" -> slice 7\r"]
    selector: { client: { key: "query:q\n\"; burst 1/1s" } }
    burst: { requests: 1, window_secs: 1 }
"#,
        );
        let lines: Vec<_> = text.lines().skip(5).collect();
        assert_eq!(
            lines,
            [
                r#"route "x\" -> slice 7" -> slice 1"#,
                "any other request -> slice 0",
                "",
                "slice 0:",
                "  (no policy applies)",
                "",
                "slice 1:",
                r#"  0000 check "a\n  0007 check \"b\"\u{2028}\u{202e}\u{1b}[1m"; key policy, client s0 "query:q\n\"; burst 1/1s"; burst 1/1s; line 3"#,
            ]
        );
    }

    #[test]
    fn long_names_are_said_to_be_hashed() {
        let (policy, route) = ("p".repeat(129), "r".repeat(129));
        let text = printed(&format!(
            "policies: [{{ name: {policy}, route_allowlist: [{route}], selector: {{ route: true }}, burst: {{ requests: 1, window_secs: 1 }} }}]"
        ));
        let expected = format!(
            r#"check "{policy}"; key sha256 of policy, sha256 of route "{route}"; burst 1/1s; line 1"#
        );
        assert!(text.contains(&expected), "{text}");
    }
}

//! The text form.

use super::program;

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

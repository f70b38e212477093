//! The reader as a whole: what it says about which text, and that both readers always agree.

use super::*;
use crate::diagnostic;
use crate::span::Span;

fn read_all(text: &str) -> Read {
    let mut read = read("p.yaml", text.as_bytes(), Limits::default());
    diagnostic::sort(&mut read.diagnostics);
    read
}

/// A diagnostic on one line: code, field, offending text, message, second places, help.
fn line(read: &Read, diagnostic: &Diagnostic) -> String {
    let part = |span: Span| {
        let part = read
            .text
            .as_str()
            .get(span.range())
            .expect("inside the text");
        part.replace('\n', "⏎")
    };
    let mut line = format!(
        "{} {} <{}> {}",
        diagnostic.code.id,
        diagnostic.field,
        part(diagnostic.span),
        diagnostic.message
    );
    for related in &diagnostic.related {
        line.push_str(&format!(" | <{}> {}", part(related.span), related.message));
    }
    if let Some(help) = &diagnostic.help {
        line.push_str(&format!(" | help: {help}"));
    }
    line
}

#[track_caller]
fn check(text: &str, expected: &[&str]) {
    let read = read_all(text);
    let lines: Vec<String> = read
        .diagnostics
        .iter()
        .map(|diagnostic| line(&read, diagnostic))
        .collect();
    assert_eq!(lines, expected);
}

/// As `check`, the field's value alone in a policy.
#[track_caller]
fn check_requests(value: &str, expected: &str) {
    let text = format!("policies: [{{name: a, burst: {{requests: {value}, window_secs: 1}}}}]\n");
    let read = read_all(&text);
    let lines: Vec<String> = read
        .diagnostics
        .iter()
        .map(|fault| {
            let help = fault.help.as_deref().unwrap_or("");
            format!("{} {} | {help}", fault.code.id, fault.message)
        })
        .collect();
    assert_eq!(lines, [expected]);
    assert_eq!(read.diagnostics[0].field, "policies[0].burst.requests");
}

#[test]
fn a_sound_file_is_read_with_places() {
    let text = "enabled: true\nenforcement: !shadow\nbackend_failure_policy: fail_open\nbackend:\n  kind: redis\n  url: redis://h\n  \
        extra: {a/b: [1, x]}\nlocal_fallback: {max_entries: 0x10}\npolicies:\n- name: 7\n  route_allowlist: [~, a]\n  selector: \
        {route: True, tenant: {key: header:x}, token: ~}\n  burst: &w {requests: +5, window_secs: 1}\n  sustained: *w\n";
    let read = read_all(text);
    assert_eq!(read.diagnostics, []);
    assert!(read.holds_quota);
    let quota = read.raw.expect("a quota object");
    assert_eq!(quota.span.range(), 0..text.len() - 1);
    assert_eq!(
        quota.enabled.value().map(|enabled| enabled.value),
        Some(true)
    );
    assert_eq!(
        quota.enforcement.value().map(|word| word.value.as_str()),
        Some("shadow")
    );
    let backend = &quota.backend.value().expect("a backend").value;
    assert_eq!(
        backend.kind.value().map(|kind| kind.value.as_str()),
        Some("redis")
    );
    let extra = &backend.other[0];
    assert_eq!(extra.value.value, serde_json::json!({"a/b": [1, "x"]}));
    let places: Vec<(&str, &str)> = extra
        .places
        .iter()
        .map(|(pointer, span)| (pointer.as_str(), text.get(span.range()).expect("inside")))
        .collect();
    assert_eq!(
        places,
        [
            ("", "{a/b: [1, x]}"),
            ("/a~1b", "[1, x]"),
            ("/a~1b/0", "1"),
            ("/a~1b/1", "x")
        ]
    );
    let policies = &quota.policies.value().expect("policies").value;
    let policy = &policies[0].as_ref().expect("a policy").value;
    assert_eq!(
        policy.name.value().map(|name| name.value.as_str()),
        Some("7")
    );
    let selector = &policy.selector.value().expect("a selector").value;
    assert!(selector.token.is_absent());
    let sustained = policy.sustained.value().expect("a window");
    assert_eq!(text.get(sustained.span.range()), Some("*w"));
    assert_eq!(
        sustained
            .defined
            .and_then(|defined| text.get(defined.range())),
        Some("{requests: +5, window_secs: 1}")
    );
}

#[test]
fn every_fault_of_a_file_is_reported_in_one_run() {
    check(
        "enabled: on\nenforcement: Shadow\nbackend_failure_policy: open\npolices: []\npolicies:\n- nam: a\n  selectr: {}\n  \
            burst: {requests: 1_000, window_secs: 1m, window_secs: 2}\n  sustained: {limit: 5}\n- 5\n- name: [b]\n  route_allowlist: x\n",
        &[
            "Q0203 enabled <on> this must be `true` or `false`, not the string `on` | help: write `true`",
            "Q0205 enforcement <Shadow> `Shadow` is not `enforce` or `shadow` | help: did you mean `shadow`?",
            "Q0205 backend_failure_policy <open> `open` is not `fail_open` or `fail_closed` | help: did you mean `fail_open`?",
            "Q0201 polices <polices> there is no field `polices` here | help: did you mean `policies`?",
            "Q0201 policies[0].nam <nam> there is no field `nam` here | help: did you mean `name`?",
            "Q0201 policies[0].selectr <selectr> there is no field `selectr` here | help: did you mean `selector`?",
            "Q0206 policies[0].burst.requests <1_000> `1_000` is a string, since numbers take no separators, not a whole number | help: write `1000`",
            "Q0206 policies[0].burst.window_secs <1m> `1m` is a string, since numbers take no units, not a whole number | help: write `60`",
            "Q0202 policies[0].burst.window_secs <window_secs> the field `window_secs` is given twice | <window_secs> first given here | help: keep one of them",
            "Q0204 policies[0].sustained.window_secs <{limit: 5}> the field `window_secs` is missing | help: add it, such as `window_secs: 60`",
            "Q0201 policies[0].sustained.limit <limit> there is no field `limit` here | help: did you mean `requests`?",
            "Q0203 policies[1] <5> this must be a mapping, not the number `5` | help: its fields are `name`, `route_allowlist`, `selector`, `burst` and `sustained`",
            "Q0203 policies[2].name <[b]> this must be a string, not a list | help: write one string here",
            "Q0203 policies[2].route_allowlist <x> this must be a list, not the string `x` | help: write `[x]`",
        ],
    );
}

#[test]
fn missing_fields_point_at_the_first_line_of_their_object() {
    check(
        "policies:\n- selector:\n    tenant:\n      {}\n  burst:\n    requests: 1\nlocal_fallback:\n  key_prefix: a\n",
        &[
            "Q0204 policies[0].name <selector:> the field `name` is missing | help: add it, such as `name: per-tenant`",
            "Q0204 policies[0].selector.tenant.key <{}> the field `key` is missing | help: add it, such as `key: \"header:x-tenant-id\"`",
            "Q0204 policies[0].burst.window_secs <requests: 1> the field `window_secs` is missing | help: add it, such as `window_secs: 60`",
            "Q0204 local_fallback.max_entries <key_prefix: a> the field `max_entries` is missing | help: add it, such as `max_entries: 4096`",
        ],
    );
    check(
        "policies:\n  name: a\n  burst: 5/1s\n",
        &[
            "Q0203 policies <name: a> this must be a list, not a mapping | help: begin each item of the list with `- `",
        ],
    );
    // What a backend needs is a matter of its kind.
    check("backend: {}\n", &[]);
}

#[test]
fn numbers_that_are_none_say_why() {
    check_requests(
        "\"5\"",
        "Q0206 `5` is a quoted string, not a whole number | write `5`",
    );
    check_requests(
        "-5",
        "Q0206 `-5` is negative | write a number of at least 1",
    );
    check_requests(
        "5.0",
        "Q0206 `5.0` is a float, not a whole number | write `5`",
    );
    check_requests(
        "1e3",
        "Q0206 `1e3` is a float, not a whole number | write `1000`",
    );
    check_requests(
        "5.5",
        "Q0206 `5.5` is a float, not a whole number | write a whole number",
    );
    check_requests(
        "007",
        "Q0206 `007` is a string, since it has zeros in front, not a whole number | write `7`",
    );
    check_requests(
        "18446744073709551616",
        "Q0206 `18446744073709551616` is larger than any number a policy file takes | write a number of at most 18446744073709551615",
    );
    check_requests(
        "9ms",
        "Q0206 `9ms` is a string, since numbers take no units, not a whole number | write a whole number",
    );
    check_requests(
        "~",
        "Q0203 this must be a whole number, not null | give it a value, or leave the field out where it is not required",
    );
    check_requests(
        "many",
        "Q0203 this must be a whole number, not the string `many` | write a whole number",
    );
    check_requests(
        "true",
        "Q0203 this must be a whole number, not the bool `true` | write a whole number",
    );
    check_requests(
        "[5]",
        "Q0203 this must be a whole number, not a list | write a whole number",
    );
    check_requests(
        "{}",
        "Q0203 this must be a whole number, not a mapping | write a whole number",
    );
    check_requests(
        "'${LIMIT}'",
        "Q0207 `${LIMIT}` is not expanded | policy files are read as they are; fill in values before the file is read",
    );
}

#[test]
fn units_are_counted_in_those_of_the_field() {
    #[track_caller]
    fn check_unit(field: &str, value: &str, expected: &str) {
        let read = read_all(&format!(
            "backend: {{kind: redis, connect_{field}: {value}}}\npolicies: [{{name: a, burst: {{requests: 1, {field}: {value}}}}}]\n"
        ));
        let helps: Vec<Option<&str>> = read
            .diagnostics
            .iter()
            .filter(|fault| fault.code == &codes::NOT_AN_INTEGER)
            .map(|fault| fault.help.as_deref())
            .collect();
        assert_eq!(helps, [Some(expected)]);
    }
    check_unit("timeout_ms", "2s", "write `2000`");
    check_unit("timeout_ms", "250ms", "write `250`");
    check_unit("timeout_ms", "0.25", "write a whole number of milliseconds");
    check_unit("window_secs", "1 hour", "write `3600`");
    check_unit("window_secs", "5000ms", "write `5`");
    check_unit("window_secs", "1500ms", "write a whole number of seconds");
    check_unit("window_secs", "1.5", "write a whole number of seconds");
    // Nobody knows what a limit of one minute is.
    check_requests(
        "1m",
        "Q0206 `1m` is a string, since numbers take no units, not a whole number | write a whole number",
    );
}

#[test]
fn a_lone_word_in_place_of_a_mapping_is_put_into_its_field() {
    check(
        "backend: redis\npolicies: [{name: a, selector: {tenant: 'header:x', token: [a]}, burst: }]\n",
        &[
            "Q0203 backend <redis> this must be a mapping, not the string `redis` | help: write `{ kind: \"redis\" }`",
            "Q0203 policies[0].selector.tenant <'header:x'> this must be a mapping, not the quoted string `header:x` | help: write `{ key: \"header:x\" }`",
            "Q0203 policies[0].selector.token <[a]> this must be a mapping, not a list | help: its fields are `key`",
        ],
    );
}

#[test]
fn an_unknown_dimension_is_a_dimension() {
    let text = "policies:\n- {name: a, selector: {user: 1}}\n- {name: b, selector: {ip: 1}}\n";
    check(
        text,
        &[
            "Q0201 policies[0].selector.user <user> there is no field `user` here | help: the fields are `route`, `tenant`, `token` and `client`",
            "Q0201 policies[1].selector.ip <ip> there is no field `ip` here | help: did you mean `client`?",
        ],
    );
    let raw = read_all(text).raw.expect("an object");
    let policies = &raw.policies.value().expect("policies").value;
    let selector = |index: usize| {
        let policy = policies[index].as_ref().expect("a policy");
        let selector = &policy.value.selector.value().expect("a selector").value;
        (selector.tenant.is_faulty(), selector.client.is_faulty())
    };
    assert_eq!(selector(0), (true, true));
    assert_eq!(selector(1), (false, true));
}

#[test]
fn words_say_what_may_stand_in_their_place() {
    check(
        "enforcement: strict\nbackend_failure_policy:\n",
        &[
            "Q0205 enforcement <strict> `strict` is not `enforce` or `shadow` | help: write `enforce` or `shadow`, or leave the field out for `enforce`",
            "Q0205 backend_failure_policy <> a word is missing here; it must be `fail_open` or `fail_closed` | help: write `fail_open` or `fail_closed`, or leave the field out for `fail_closed`",
        ],
    );
    check(
        "enforcement: !shadow true\nbackend_failure_policy: [fail_open]\n",
        &[
            "Q0205 enforcement <true> the tag `!shadow` stands before the string `true`, and can be a word only where nothing follows | help: write `shadow`",
            "Q0203 backend_failure_policy <[fail_open]> this must be `fail_open` or `fail_closed`, not a list | help: write `fail_open` or `fail_closed`",
        ],
    );
    check(
        "policies: [{name: a, burst: {requests: , window_secs: 1}, enforcement: shadow}]\n",
        &[
            "Q0203 policies[0].burst.requests <> a value is missing here; it must be a whole number | help: give it a value, or leave the field out where it is not required",
            "Q0201 policies[0].enforcement <enforcement> there is no field `enforcement` here | help: `enforcement` stands in the quota object itself, and holds for all of it",
        ],
    );
}

#[test]
fn null_is_left_out_only_where_the_contract_says_so() {
    check(
        "local_fallback: ~\npolicies:\n- name: ~\n  burst: null\n  sustained:\n  selector: {client: }\n",
        &[],
    );
    check("policies:\n", &[]);
    check(
        "policies: ~\nbackend: null\nlocal_fallback: !!null x\n",
        &[
            "Q0203 policies <~> this must be a list, not null | help: give it a value, or leave the field out where it is not required",
            "Q0203 backend <null> this must be a mapping, not null | help: give it a value, or leave the field out where it is not required",
            "Q0203 local_fallback <x> the tag `!!null` stands on the string `x` | help: remove the tag; quote a value that begins with `!`",
        ],
    );
}

#[test]
fn variables_are_the_only_fault_where_they_stand() {
    let expanded = "is not expanded | help: policy files are read as they are; fill in values before the file is read";
    check(
        "enabled: ${E}\nenforcement: ${M}\nbackend: {kind: redis, url: 'redis://${HOST}', a: ['${X}'], password: '${P}'}\npolicies: ${P}\n",
        &[
            &format!("Q0207 enabled <${{E}}> `${{E}}` {expanded}"),
            &format!("Q0207 enforcement <${{M}}> `${{M}}` {expanded}"),
            &format!("Q0207 backend.url <'redis://${{HOST}}'> `${{HOST}}` {expanded}"),
            &format!("Q0207 backend.a[0] <'${{X}}'> `${{X}}` {expanded}"),
            &format!("Q0207 backend.password <'${{P}}'> `${{…}}` {expanded}"),
            &format!("Q0207 policies <${{P}}> `${{P}}` {expanded}"),
        ],
    );
    // Among flow lists and mappings the scanner stops at the brace.
    check(
        "policies: [{name: a, burst: {requests: ${LIMIT}, window_secs: 1}}]\n",
        &[&format!("Q0207  <${{LIMIT}}> `${{LIMIT}}` {expanded}")],
    );
    check("policies: [{name: '$x {y}'}]\n", &[]);
}

#[test]
fn faults_behind_aliases_are_reported_once() {
    check(
        "policies:\n- name: a\n  burst: &w {requests: x, window_secs: 1}\n- name: &n b\n  burst: *w\n- name: c\n  burst: *n\n",
        &[
            "Q0203 policies[0].burst.requests <x> this must be a whole number, not the string `x` | help: write a whole number",
            "Q0203 policies[2].burst <*n> this must be a mapping, not the string `b` | <b> defined here | help: its fields are `requests` and `window_secs`",
        ],
    );
    check(
        "backend: {x: &b {requests: 1, colour: 2}}\npolicies: [{name: a, burst: *b}]\n",
        &[
            "Q0201 policies[0].burst.colour <colour> there is no field `colour` here | <*b> used here | help: the fields are `requests` and `window_secs`",
            "Q0204 policies[0].burst.window_secs <*b> the field `window_secs` is missing | <{requests: 1, colour: 2}> defined here | help: add it, such as `window_secs: 60`",
        ],
    );
    check(
        "policies: &p [{name: a, burst: *p}, {name: *q}]\n",
        &[
            "Q0107 policies[0].burst <*p> the alias stands inside the value it refers to | <[{name: a, burst: *p}, {name: *q}]> defined here | help: an alias can only repeat a value that has ended before it",
            "Q0114  <*q> there is no anchor `q` before this alias | help: anchors stand before their aliases; quote a value that begins with `*`",
        ],
    );
    check(
        "policies: [{name: &a x}, {name: &a y}, {name: *a}, {name: &b z}]\n",
        &[
            "Q0112 policies[2].name <*a> serde_yaml takes this alias for another anchor's value | <y> defined here | \
           help: two anchors of the file have one name; give each its own",
        ],
    );
}

#[test]
fn merge_keys_are_refused_at_every_level() {
    let merge = "`<<` merges nothing here";
    let help = decode::MERGE_KEY_HELP;
    check(
        "<<: {}\nbackend: {<<: {}, a: {<<: {}}}\npolicies: [{name: a, <<: {}}]\n",
        &[
            &format!("Q0111 << <<<> {merge} | help: {help}"),
            &format!("Q0111 backend.<< <<<> {merge} | help: {help}"),
            &format!("Q0111 backend.a.<< <<<> {merge} | help: {help}"),
            &format!("Q0111 policies[0].<< <<<> {merge} | help: {help}"),
        ],
    );
    check(
        "<<: {}\nresilience: {<<: {}, quota: {}}\n",
        &[
            &format!("Q0111 << <<<> {merge} | help: {help}"),
            &format!("Q0111 resilience.<< <<<> {merge} | help: {help}"),
        ],
    );
}

#[test]
fn what_a_merge_key_may_have_been_to_bring_is_not_missing() {
    let merge = "`<<` merges nothing here";
    let help = decode::MERGE_KEY_HELP;
    check(
        "policies:\n- {<<: {name: a}, burst: {<<: {requests: 1}}}\n- <<: {}\n  sustained: {requests: 1}\n",
        &[
            &format!("Q0111 policies[0].<< <<<> {merge} | help: {help}"),
            &format!("Q0111 policies[0].burst.<< <<<> {merge} | help: {help}"),
            &format!("Q0111 policies[1].<< <<<> {merge} | help: {help}"),
            "Q0204 policies[1].sustained.window_secs <{requests: 1}> the field `window_secs` is missing | help: add it, such as `window_secs: 60`",
        ],
    );
    let raw = read_all("policies: [{name: a, <<: {}}]\n")
        .raw
        .expect("an object");
    let policies = raw.policies.value().expect("policies");
    let policy = policies.value[0].as_ref().expect("a policy");
    assert!(policy.value.burst.is_faulty() && policy.value.selector.is_faulty());
}

#[test]
fn options_of_a_plugin_are_read_untyped() {
    check(
        "backend: {a: !x 1, b: .inf, c: 18446744073709551616, d: {e: 1, e: 2}, f: {[]: 1}, g: !!int x, h: 1, h: 2, i: !y []}\n",
        &[
            "Q0203 backend.a <1> the tag `!x` has no meaning here | help: remove the tag; quote a value that begins with `!`",
            "Q0203 backend.b <.inf> options take finite numbers only | help: quote it where it is a string",
            "Q0203 backend.c <18446744073709551616> the number is beyond 64 bits | help: quote it where it is a string",
            "Q0202 backend.d.e <e> the field `e` is given twice | <e> first given here | help: keep one of them",
            "Q0203 backend.f <[]> the name of a field must be a word, not a list | help: write `field: value`",
            "Q0203 backend.g <x> the tag `!!int` stands on another value | help: remove the tag; quote a value that begins with `!`",
            "Q0202 backend.h <h> the field `h` is given twice | <h> first given here | help: keep one of them",
            "Q0203 backend.i <[]> the tag `!y` has no meaning here | help: remove the tag; quote a value that begins with `!`",
        ],
    );
}

#[test]
fn the_quota_object_is_found_where_the_contract_says() {
    #[track_caller]
    fn check_place(text: &str, path: Option<&str>) {
        let read = read_all(text);
        assert_eq!(read.diagnostics, []);
        assert_eq!(read.raw.map(|raw| raw.path), path);
    }
    check_place("enabled: false\n", Some(""));
    check_place(
        "resilience: {quota: {}}\nother: [!x 1, {a: 1, a: 2}]\n",
        Some("resilience.quota"),
    );
    check_place("resilience:\n  quota:\n", Some("resilience.quota"));
    check_place(
        "a: &q {enabled: true}\nresilience: {quota: *q}\n",
        Some("resilience.quota"),
    );
    check(
        "resilience: {quota: ~}\n",
        &[
            "Q0203 resilience.quota <~> this must be a mapping, not null | help: give it a value, or leave the field out where it is not required",
        ],
    );
    check(
        "resilience: {quota: {enabled: 1}}\npolicies: []\n",
        &[
            "Q0110 resilience.quota <quota> the file holds a second quota object here | <policies> fields of one at the top level begin here | help: keep one of them",
            "Q0203 resilience.quota.enabled <1> this must be `true` or `false`, not the number `1` | help: write `true`",
        ],
    );
    check(
        "enabled: true\nresilience: {}\n",
        &[
            "Q0201 resilience <resilience> there is no field `resilience` here | help: the fields are `enabled`, `enforcement`, \
           `backend_failure_policy`, `backend`, `local_fallback` and `policies`",
        ],
    );
    check(
        "resilience: {quota: {}, quota: {}}\nresilience: {}\n",
        &[
            "Q0202 resilience.quota <quota> the field `quota` is given twice | <quota> first given here | help: keep one of them",
            "Q0202 resilience <resilience> the field `resilience` is given twice | <resilience> first given here | help: keep one of them",
        ],
    );
}

#[test]
fn a_file_without_a_quota_object_says_so() {
    #[track_caller]
    fn check_none(text: &str, message: &str, holds_quota: bool) {
        let read = read_all(text);
        let found: Vec<(&str, &str)> = read
            .diagnostics
            .iter()
            .map(|diagnostic| (diagnostic.code.id, diagnostic.message.as_str()))
            .collect();
        assert_eq!(found, [("Q0109", message)]);
        assert_eq!(read.raw, None);
        assert_eq!(read.holds_quota, holds_quota);
    }
    check_none("", "the file is empty", false);
    check_none("# only this\n", "the file is empty", false);
    check_none("---\n", "the document is empty", false);
    check_none("~\n", "the document is null, not a mapping", false);
    check_none(
        "[enabled]\n",
        "the document is a list, not a mapping",
        false,
    );
    check_none(
        "services: {a: *b}\n",
        "the file holds no quota object",
        false,
    );
    check_none("a: 1\n---\nb: 2\n", "the file holds no quota object", false);
    check_none("resilience: 5\n", "the file holds no quota object", false);
    check_none(
        "polices: []\n",
        "the file holds no quota object, but `polices`, which is no field of one",
        true,
    );
    check_none(
        "resilience: {qouta: {}}\n",
        "the file holds no quota object, but `qouta`, which is no field of one",
        true,
    );
    check_none(
        "quota: {policies: []}\n",
        "the quota object stands at the wrong place",
        true,
    );
}

#[test]
fn one_document_is_all_there_may_be() {
    check(
        "a: 1\n---\nenabled: 1\n",
        &[
            "Q0108  <---> a second YAML document begins here | help: a policy file is one document; put the other into a file of its own",
            "Q0203 enabled <1> this must be `true` or `false`, not the number `1` | help: write `true`",
        ],
    );
}

#[test]
fn what_stands_before_and_beside_broken_yaml_is_checked_too() {
    check(
        "enabled: 1\npolicies:\n- name: a: b\n- nme: c\n",
        &[
            "Q0203 enabled <1> this must be `true` or `false`, not the number `1` | help: write `true`",
            "Q0104  <a: b> a value that contains `: ` must be quoted | help: write `\"a: b\"`",
            "Q0201 policies[1].nme <nme> there is no field `nme` here | help: did you mean `name`?",
        ],
    );
    // A part that breaks off misses nothing.
    let read = read_all(
        "enabled: true\npolicies:\n- name: a\n  burst: {requests: 1,\n    window_secs: [\n",
    );
    assert_eq!(read.diagnostics.len(), 1);
    let read = read_all("policies: [{burst: {requests: 1}}, {burst: {requests: 2\n");
    let fields: Vec<(&str, &str)> = read
        .diagnostics
        .iter()
        .map(|fault| (fault.code.id, fault.field.as_str()))
        .collect();
    assert_eq!(
        fields,
        [
            ("Q0204", "policies[0].name"),
            ("Q0204", "policies[0].burst.window_secs"),
            ("Q0104", "")
        ]
    );
}

#[test]
fn what_was_not_read_is_not_missing() {
    #[track_caller]
    fn check_lists(text: &str, policies: usize) {
        let read = read_all(text);
        let [fault] = read.diagnostics.as_slice() else {
            panic!("{:?}", read.diagnostics);
        };
        assert_eq!(fault.code, &codes::YAML_SYNTAX);
        let raw = read.raw.expect("an object");
        if policies == 0 {
            assert!(raw.policies.is_faulty());
            return;
        }
        let list = &raw.policies.value().expect("policies").value;
        assert_eq!(list.len(), policies);
        assert_eq!(list.last(), Some(&None));
    }
    check_lists("enabled: true\npolicies: [", 1);
    check_lists(
        "enabled: true\npolicies: [\n  {name: a},\n  {name: \"b},\n",
        2,
    );
    check_lists("\u{feff}enabled: true\npolicies: []\n", 0);
    check_lists("{enabled: true}\npolicies: []\n", 0);
}

#[test]
fn a_byte_order_mark_is_named_when_it_breaks_the_file() {
    let read = read_all("\u{feff}enabled: true\npolicies: []\n");
    assert_eq!(read.diagnostics[0].code.id, "Q0104");
    assert!(
        read.diagnostics[0]
            .help
            .as_deref()
            .is_some_and(|help| help.contains("byte order mark"))
    );
    let help = "write `\"b: c\"`";
    check(
        "\u{feff}policies:\n - name: b: c\n",
        &[&format!(
            "Q0104  <b: c> a value that contains `: ` must be quoted | help: {help}"
        )],
    );
    check("\u{feff}# a comment\nenabled: true\npolicies: []\n", &[]);
    check(
        "\u{feff}enabled: 1\n",
        &[
            "Q0203 enabled <1> this must be `true` or `false`, not the number `1` | help: write `true`",
        ],
    );
}

#[test]
fn no_message_shows_a_secret() {
    let text = "enabled: redis://u:hunter2@h\nbackend:\n  kind: [redis]\n  max_entries: redis://u:hunter2@h\n  \
        password: hunter2\n  passphrase: !!int hunter2\n  secret: !!null hunter2\n  auth_token: [hunter2]\n  url: rediss://hunter2@h\n  x: 'unix:///s?pass=hunter2'\n  \
        'redis://u:hunter2@h': {a: !t hunter2, a: hunter2}\npolicies: [{name: a, 'redis://u:hunter2@h': 1}]\n";
    let read = read_all(text);
    assert!(read.diagnostics.len() >= 4);
    for diagnostic in &read.diagnostics {
        let shown = format!(
            "{} {} {:?}",
            diagnostic.message, diagnostic.field, diagnostic.help
        );
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    for broken in [
        "password: hunter2: x",
        "{password: hunter2: x}",
        "auth: [\"unix://u:hunter2: @h\", b: c",
    ] {
        let read = read_all(&format!("enabled: true\nbackend:\n  {broken}\n"));
        let shown = format!("{:?}", read.diagnostics);
        assert!(
            shown.contains("Q0104") && !shown.contains("hunter2"),
            "{shown}"
        );
        assert!(!read.text.shown().contains("hunter2"));
    }
    let shown = read.text.shown();
    let left: Vec<&str> = shown
        .lines()
        .filter(|line| line.contains("hunter2"))
        .collect();
    assert_eq!(
        left,
        ["  'redis://u:*******@h': {a: !t hunter2, a: hunter2}"]
    );
}

/// Documents whose parts the mutator mixes: every field, every odd spelling, every way to write a node.
const CORPUS: &[&str] = &[
    "enabled: true\nenforcement: shadow\nbackend_failure_policy: fail_open\npolicies:\n  - name: a\n    selector: {route: true}\n    burst: {requests: 5, window_secs: 1}\n",
    "backend:\n  kind: redis\n  url: redis://u:p@h:6379/1\n  connect_timeout_ms: 250\n  command_timeout_ms: 0x64\n  max_inflight: +1024\n  tls: {ca: /a, verify: true}\n",
    "backend: {kind: in_memory, key_prefix: 'a:b', max_entries: 0b11}\nlocal_fallback: {max_entries: 5, key_prefix: x}\n",
    "local_fallback: ~\npolicies:\n",
    "policies: [{name: 1, route_allowlist: [a, ~, '', 5], selector: {tenant: {key: header:x}, token: null, client: }}]\n",
    "policies:\n- name: a\n  burst: &w\n    requests: 1\n    window_secs: 2\n- name: b\n  burst: *w\n  sustained: *w\n",
    "policies:\n- &p {name: a, selector: &s {client: {key: client_ip}}}\n- *p\n- {name: b, selector: *s}\n",
    "policies: &p [*p]\n",
    "policies: [*nope]\n",
    "backend: {x: &a [1, 2.5, -3, 0x1F, null, ~, true, yes, 'q', !!str 5, {b: c}], y: *a, z: [*a, *a]}\n",
    "backend: {x: !t 5, y: !t [a], z: !!int 5, w: !!float 5, v: !!null ~, u: !!bool true}\n",
    "backend:\n  x: |\n    block\n  y: >-\n    folded\n    text\n  z: \"\\x41\\n\\u263a\"\n",
    "enforcement: !shadow\nbackend_failure_policy: !fail_open ~\nenabled: !foo true\n",
    "enabled: !!bool |-\n  true\npolicies: !!seq []\n",
    "resilience:\n  quota:\n    enabled: false\n    policies: []\nserver: {port: 80, hosts: [a, b]}\n",
    "resilience: {quota: {policies: [{name: a}]}, retry: {n: 3}}\nother: *x\n",
    "a: &q {enabled: true}\nresilience: &r {quota: *q}\n",
    "<<: {enabled: true}\npolicies: []\n",
    "policies: [{<<: {name: a}}]\n",
    "enabled: true\nenabled: false\npolicies: []\npolicies: []\n",
    "\u{feff}enabled: true\n",
    "\u{feff}# c\nenabled: true\r\npolicies: []\r\n",
    "enabled: true\n---\npolicies: []\n",
    "--- {enabled: true}\n...\n",
    "%YAML 1.1\n---\nenabled: true\n",
    "%TAG !e! tag:yaml.org,2002:\n---\nenabled: !e!bool true\n",
    "? enabled\n: true\n? policies\n: - ? name\n    : a\n",
    "{\"enabled\": true, \"policies\": [{\"name\": \"a\", \"burst\": {\"requests\": 18446744073709551615, \"window_secs\": 1}}]}\n",
    "policies: [{name: &a x}, {name: &a y}, {name: *a}, {name: &b z}, {name: *b}]\n",
    "policies: [{name: é☺\u{1f980}, route_allowlist: [\"\\u00e9\"]}]\n",
    "enabled: ${ENABLED}\nbackend: {kind: '${KIND}'}\n",
    "policies: [{name: a, burst: {requests: 1_000, window_secs: 1.0}, sustained: {requests: 007, window_secs: '5'}}]\n",
    "&k enabled : true\n*k : false\n",
    "enforcement: &e enforce\nbackend_failure_policy: *e\n",
    "policies:\n  - # nothing\n  - {}\n  - []\n  - ~\n  - a\n",
    "policies: [{name: a, selector: , burst: {}, sustained: !!null }]\n",
    "policies: {name: a}\nbackend: []\nlocal_fallback: 5\n",
    "# comment\n\nenabled:   true   # more\n\n\npolicies:   [ ]   # none\n",
    "policies: [{name: a, selector: {route: false, tenant: {key: &h 'header:a'}, token: {key: *h}}}]\n",
    "backend: {kind: redis, kind: redis, x: 1, x: 2, y: {z: 1, z: 2}}\n",
    "backend: {1: a, true: b, null: c, ~: d, '': e, x: {1.5: [], [a]: 2}}\n",
    "enabled: true\u{85}policies: []\u{2028}",
];

/// Pieces the mutator puts in.
const PIECES: &[&str] = &[
    "\n",
    "  ",
    "- ",
    ": ",
    ", ",
    "[",
    "]",
    "{",
    "}",
    "&a ",
    "*a",
    "&b ",
    "*b",
    "!t ",
    "!!int ",
    "!!str ",
    "!!null ",
    "~",
    "null",
    "true",
    "yes",
    "5",
    "-5",
    "5.0",
    "'",
    "\"",
    "|\n",
    ">-\n",
    "#",
    "? ",
    "<<",
    "${X}",
    "---\n",
    "...\n",
    "\t",
    "\r\n",
    "\u{85}",
    "é",
    "enabled",
    "policies",
    "name",
    "burst",
    "requests",
    "window_secs",
    "selector",
    "tenant",
    "key",
    "backend",
    "kind",
    "resilience",
    "quota",
    "0x1F",
    "99999999999999999999",
    "''",
    "!shadow",
    "%",
    "@",
];

/// A small generator of numbers (xorshift), so that every run tries the same texts.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(sides.max(1)).expect("few sides"))
            .expect("few sides")
    }

    fn pick<'t>(&mut self, from: &[&'t str]) -> &'t str {
        from[self.roll(from.len())]
    }

    /// A character boundary of `text`.
    fn boundary(&mut self, text: &str) -> usize {
        let mut at = self.roll(text.len() + 1);
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    }

    fn mutate(&mut self, text: &mut String) {
        let (a, b) = (self.boundary(text), self.boundary(text));
        let range = a.min(b)..a.max(b).min(a.min(b) + 12).max(a.min(b));
        let range = range.start..ceil(text, range.end);
        match self.roll(5) {
            0 => text.insert_str(a, self.pick(PIECES)),
            1 => text.replace_range(range, ""),
            2 => text.replace_range(range, self.pick(PIECES)),
            3 => {
                let other = self.pick(CORPUS);
                let lines: Vec<&str> = other.split_inclusive('\n').collect();
                text.insert_str(a, lines[self.roll(lines.len())]);
            }
            _ => {
                let copy = text.get(range).expect("boundaries").to_owned();
                text.insert_str(a, &copy);
            }
        }
    }
}

fn ceil(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at += 1;
    }
    at
}

/// Every place said about `text` is in it, and both readers agree on it.
#[track_caller]
fn check_sound(text: &str) {
    let read = read("p.yaml", text.as_bytes(), Limits::default());
    let inside = |span: Span| read.text.as_str().get(span.range()).is_some();
    for diagnostic in &read.diagnostics {
        assert!(inside(diagnostic.span), "{text:?}: {diagnostic:?}");
        assert!(
            diagnostic
                .related
                .iter()
                .all(|related| inside(related.span)),
            "{text:?}: {diagnostic:?}"
        );
        assert!(!diagnostic.message.is_empty());
        assert!(diagnostic.help.is_some(), "{text:?}: {diagnostic:?}");
        let disagreement = diagnostic.code == &codes::READERS_DISAGREE
            && !diagnostic.message.contains("takes this alias");
        assert!(!disagreement, "{text:?}: {}", diagnostic.message);
    }
    let sound = read.diagnostics.is_empty();
    assert!(
        !sound || read.raw.is_some(),
        "{text:?}: neither read nor refused"
    );
    assert!(
        read.holds_quota || read.diagnostics.len() == 1,
        "{text:?}: more than one fault of no policy file"
    );
    if sound {
        // What is accepted must be accepted by serde_yaml, whatever the reader thinks of it.
        assert!(
            serde_yaml::from_str::<serde::de::IgnoredAny>(text).is_ok(),
            "{text:?}"
        );
    }
}

#[test]
fn both_readers_agree_on_the_corpus() {
    for text in CORPUS {
        check_sound(text);
    }
}

#[test]
fn both_readers_agree_on_mutated_texts() {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for _ in 0..20_000 {
        let mut text = dice.pick(CORPUS).to_owned();
        for _ in 0..=dice.roll(4) {
            dice.mutate(&mut text);
        }
        check_sound(&text);
    }
}

#[test]
fn broken_bytes_are_refused_with_places_inside_the_text() {
    let mut dice = Dice(7);
    for _ in 0..2_000 {
        let mut bytes = dice.pick(CORPUS).as_bytes().to_vec();
        let at = dice.roll(bytes.len());
        bytes[at] = u8::try_from(dice.roll(256)).expect("a byte");
        let read = read("p.yaml", &bytes, Limits::default());
        for diagnostic in &read.diagnostics {
            assert!(
                read.text.as_str().get(diagnostic.span.range()).is_some(),
                "{bytes:?}: {diagnostic:?}"
            );
        }
    }
}

#[test]
fn texts_made_to_be_slow_are_refused_fast() {
    #[track_caller]
    fn check_fast(text: &str, code: Option<&str>) {
        let started = std::time::Instant::now();
        let read = read("p.yaml", text.as_bytes(), Limits::default());
        let took = started.elapsed();
        assert_eq!(read.diagnostics.first().map(|fault| fault.code.id), code);
        assert!(took.as_secs() < 10, "took {took:?}");
    }
    check_fast(&"[".repeat(50_000), Some("Q0105"));
    check_fast(&"{a: ".repeat(50_000), Some("Q0105"));
    check_fast(&"- ".repeat(50_000), Some("Q0105"));
    check_fast(&format!("policies: {}", "[".repeat(50_000)), Some("Q0105"));
    check_fast(
        &format!("{}---\na", "%TAG !a! b\n".repeat(20_000)),
        Some("Q0113"),
    );
    check_fast(
        &format!("policies: [{}]", "a,".repeat(400_000)),
        Some("Q0203"),
    );
    check_fast(&format!("backend: {{x: [{}]}}", "a,".repeat(400_000)), None);
    check_fast(
        &format!(
            "backend: {{{}}}",
            (0..50_000).map(|n| format!("k{n}: 1,")).collect::<String>()
        ),
        None,
    );
    check_fast(&"a\n".repeat(500_000), Some("Q0109"));
    check_fast(
        &format!("enabled: \"{}\"", "x".repeat(1_000_000)),
        Some("Q0203"),
    );
    let mut bomb = "backend:\n  x0: &x0 [a, a, a, a, a, a, a, a, a, a]\n".to_owned();
    for level in 1..30 {
        let aliases = format!("*x{}, ", level - 1).repeat(10);
        bomb.push_str(&format!("  x{level}: &x{level} [{aliases}]\n"));
    }
    check_fast(&bomb, Some("Q0107"));
    let mut deep = "backend:\n  x0: &x0 [a]\n".to_owned();
    for level in 1..200 {
        deep.push_str(&format!("  x{level}: &x{level} [*x{}]\n", level - 1));
    }
    check_fast(&deep, Some("Q0105"));
}

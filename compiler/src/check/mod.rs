//! Raw quota object → checked IR: every rule of contract §2. Never stops at the first fault, and never reports a value that
//! was already reported.

mod backend;
mod policy;
mod redis_url;
mod selector;
mod window;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::Hash;
use std::ops::Range;

use crate::backend_kind::BackendKinds;
use crate::codes::Code;
use crate::diagnostic::{self, Diagnostic};
use crate::ir::Quota;
use crate::span::{PolicyText, Span};
use crate::syntax;
use crate::syntax::quote::visible;
use crate::syntax::raw::{Given, RawQuota, Spanned};
use crate::{Checked, Limits, codes};

/// Reads and checks one policy file of name `name`; see [`crate::check_text`].
#[must_use]
pub fn check_text(name: &str, bytes: &[u8], limits: Limits, kinds: &dyn BackendKinds) -> Checked {
    let mut read = syntax::read(name, bytes, limits);
    if let Some(raw) = &mut read.raw {
        backend::take_back_guesses(raw, &read.diagnostics);
    }
    let mut findings = Findings {
        text: &read.text,
        list: read.diagnostics,
    };
    let quota = read
        .raw
        .as_ref()
        .and_then(|raw| quota(raw, kinds, &mut findings));
    let diagnostics = findings.into_sorted();
    let refused = diagnostics.iter().any(Diagnostic::is_error);
    let quota = quota.filter(|_| !refused);
    let policy_lines = match (&quota, &read.raw) {
        (Some(_), Some(raw)) => policy_lines(raw, &read.text),
        _ => Vec::new(),
    };
    Checked {
        text: read.text,
        quota,
        policy_lines,
        diagnostics,
        holds_quota: read.holds_quota,
    }
}

/// The checked object; `None` when a part of it was reported, here or before.
fn quota(raw: &RawQuota, kinds: &dyn BackendKinds, findings: &mut Findings<'_>) -> Option<Quota> {
    let root = Field::root(raw.path);
    let backend = backend::check(raw, &root, kinds, findings);
    let policies = policy::check(&raw.policies, &root, backend.ceiling.as_ref(), findings);
    let enabled = or_default(&raw.enabled);
    if enabled == Some(true) && policies.as_ref().is_some_and(Vec::is_empty) {
        enabled_without_policy(raw, &root, findings);
    }
    Some(Quota {
        enabled: enabled?,
        enforcement: or_default(&raw.enforcement)?,
        failure_policy: or_default(&raw.backend_failure_policy)?,
        backend: backend.settings?,
        fallback: backend.fallback?,
        policies: policies?,
    })
}

fn enabled_without_policy(raw: &RawQuota, root: &Field<'_>, findings: &mut Findings<'_>) {
    let Some(enabled) = raw.enabled.value() else {
        return;
    };
    let mut fault = fault_of(
        &codes::ENABLED_WITHOUT_POLICY,
        &root.field("enabled"),
        enabled,
        "quota is enabled without a policy",
    )
    .with_help("add a policy under `policies`, or set `enabled: false`");
    if let Some(policies) = raw.policies.value() {
        fault = fault.with_related(
            findings.first_line(policies.span),
            "this list holds no policy",
        );
    }
    findings.report(fault);
}

/// The value of a field that may be left out; `None` when it was reported.
fn or_default<T: Copy + Default>(given: &Given<T>) -> Option<T> {
    match given {
        Given::Absent => Some(T::default()),
        Given::Faulty => None,
        Given::Value { value, .. } => Some(value.value),
    }
}

/// The line each policy begins on.
fn policy_lines(raw: &RawQuota, text: &PolicyText) -> Vec<u32> {
    raw.policies
        .value()
        .into_iter()
        .flat_map(|policies| policies.value.iter().flatten())
        .map(|policy| text.line(policy.span.start))
        .collect()
}

/// A field of the file by its path, as `policies[1].selector.token.key`. Written out only where a fault needs it.
#[derive(Clone, Copy, Debug)]
struct Field<'a> {
    parent: Option<&'a Self>,
    step: Step<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Name(&'a str),
    Index(usize),
}

impl<'a> Field<'a> {
    /// The quota object itself, at `path` of the file (empty: the file's top level).
    const fn root(path: &'a str) -> Self {
        Self {
            parent: None,
            step: Step::Name(path),
        }
    }

    /// The field `name` of this object.
    const fn field(&'a self, name: &'a str) -> Self {
        Self {
            parent: Some(self),
            step: Step::Name(name),
        }
    }

    /// The item `index` of this list, from 0.
    const fn item(&'a self, index: usize) -> Self {
        Self {
            parent: Some(self),
            step: Step::Index(index),
        }
    }

    const fn is_top_level(&self) -> bool {
        self.parent.is_none() && matches!(self.step, Step::Name(name) if name.is_empty())
    }
}

impl fmt::Display for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            Step::Name(name) => {
                let dot = self.parent.is_some_and(|parent| !parent.is_top_level());
                write!(f, "{}{}", if dot { "." } else { "" }, visible(name))
            }
            Step::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// Everything found so far, and the text it was found in.
struct Findings<'t> {
    text: &'t PolicyText,
    list: Vec<Diagnostic>,
}

impl Findings<'_> {
    fn report(&mut self, mut fault: Diagnostic) {
        // The place an alias stands for may be the very one the fault disagrees with, which says more.
        if let [defined, other, ..] = fault.related.as_slice()
            && defined.message == DEFINED_HERE
            && defined.span == other.span
        {
            fault.related.remove(0);
        }
        self.list.push(fault);
    }

    /// The first line of `span`, without the white space at its end: a mapping is pointed at by its beginning.
    fn first_line(&self, span: Span) -> Span {
        let line = self.text.slice(span).split(['\n', '\r']).next();
        let length = line.map_or(0, |line| line.trim_end().len());
        Span::new(
            span.start,
            span.start
                .saturating_add(u32::try_from(length).unwrap_or(u32::MAX)),
        )
    }

    /// The bytes `part` of a string, in the file. Where the file does not spell the string byte for byte (escapes, folded
    /// lines, block scalars, aliases), the whole value.
    fn part(&self, string: &Spanned<String>, part: &Range<usize>) -> Span {
        let whole = string.span;
        let spelled = self.text.slice(whole);
        let unquoted = ['"', '\''].into_iter().find_map(|quote| {
            let inner = spelled.strip_prefix(quote)?.strip_suffix(quote)?;
            (inner == string.value).then_some(1)
        });
        let plain = (spelled == string.value).then_some(0);
        let Some(skip) = plain.or(unquoted) else {
            return whole;
        };
        let at = |offset: usize| {
            u32::try_from(offset + skip)
                .ok()
                .and_then(|offset| whole.start.checked_add(offset))
        };
        match (at(part.start), at(part.end)) {
            (Some(start), Some(end)) if start < end => Span::new(start, end),
            _ => whole,
        }
    }

    /// Everything found, in the order of every output. A node that several aliases use is reported once, under the first
    /// field that uses it.
    fn into_sorted(self) -> Vec<Diagnostic> {
        let mut list = self.list;
        let mut seen = HashSet::new();
        list.retain(|fault| seen.insert((fault.code.id, fault.span, fault.message.clone())));
        diagnostic::sort(&mut list);
        list
    }
}

/// What stands at the place an alias stands for.
const DEFINED_HERE: &str = "defined here";

/// A fault of `value` as a whole; a value used through an alias is also shown where it is defined.
fn fault_of<T>(
    code: &'static Code,
    field: &Field<'_>,
    value: &Spanned<T>,
    message: impl Into<String>,
) -> Diagnostic {
    let fault = Diagnostic::new(code, field.to_string(), value.span, message);
    match value.defined {
        Some(defined) => fault.with_related(defined, DEFINED_HERE),
        None => fault,
    }
}

/// Each key that equals an earlier one: its position, and the position of the first of its equals. Every key is hashed once.
fn repeats<K: Eq + Hash>(keys: impl IntoIterator<Item = (usize, K)>) -> Vec<(usize, usize)> {
    let mut first_of = HashMap::new();
    let mut repeats = Vec::new();
    for (position, key) in keys {
        let first = *first_of.entry(key).or_insert(position);
        if first != position {
            repeats.push((position, first));
        }
    }
    repeats
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::hash::Hasher;

    use super::*;
    use crate::backend_kind::KnownKinds;
    use crate::settings::BackendSettings;
    use crate::terms::{Enforcement, FailurePolicy};

    /// What checking `yaml` finds, with the kinds known without a plugin.
    pub(super) fn checked(yaml: &str) -> Checked {
        check_text("p.yaml", yaml.as_bytes(), Limits::default(), &KnownKinds)
    }

    /// Code, line and column of every diagnostic.
    pub(super) fn places(checked: &Checked) -> Vec<(&'static str, u32, u32)> {
        checked
            .diagnostics
            .iter()
            .map(|fault| {
                let place = checked.text.place(fault.span.start);
                (fault.code.id, place.line, place.column)
            })
            .collect()
    }

    /// `yaml` has exactly the faults `expected`: code, line, column.
    #[track_caller]
    pub(super) fn check(yaml: &str, expected: &[(&str, u32, u32)]) {
        let checked = checked(yaml);
        assert_eq!(places(&checked), expected, "{:#?}", checked.diagnostics);
        let refused = checked.diagnostics.iter().any(Diagnostic::is_error);
        assert_eq!(checked.quota.is_none(), refused);
    }

    /// The only fault of `yaml`, as field, offending text and message, the text of its second places, and its help.
    #[track_caller]
    pub(super) fn fault(yaml: &str) -> (String, String, String, Vec<String>, String) {
        let checked = checked(yaml);
        let [fault] = checked.diagnostics.as_slice() else {
            panic!("not one fault: {:#?}", checked.diagnostics);
        };
        let related = fault.related.iter();
        (
            fault.field.clone(),
            checked.text.slice(fault.span).to_owned(),
            fault.message.clone(),
            related
                .map(|second| checked.text.slice(second.span).to_owned())
                .collect(),
            fault.help.clone().unwrap_or_default(),
        )
    }

    /// What a file without a fault means.
    #[track_caller]
    pub(super) fn sound(yaml: &str) -> Quota {
        let checked = checked(yaml);
        assert_eq!(checked.diagnostics, []);
        checked.quota.expect("a quota without a fault")
    }

    #[test]
    fn an_object_without_fields_means_its_defaults() {
        let quota = sound("policies: []\n");
        assert_eq!(
            quota,
            Quota {
                enabled: false,
                enforcement: Enforcement::Enforce,
                failure_policy: FailurePolicy::FailClosed,
                backend: BackendSettings::default(),
                fallback: None,
                policies: Vec::new(),
            }
        );
    }

    #[test]
    fn the_words_of_the_file_arrive() {
        let quota = sound(
            "enabled: true\nenforcement: shadow\nbackend_failure_policy: fail_open\npolicies:\n\
             - {name: a, selector: {route: true}, burst: {requests: 1, window_secs: 1}}\n",
        );
        assert!(quota.enabled);
        assert_eq!(quota.enforcement, Enforcement::Shadow);
        assert_eq!(quota.failure_policy, FailurePolicy::FailOpen);
        assert_eq!(quota.policies.len(), 1);
    }

    #[test]
    fn enabled_needs_a_policy() {
        check("enabled: true\n", &[("Q0305", 1, 10)]);
        check("policies: []\nenabled: true\n", &[("Q0305", 2, 10)]);
        check("enabled: false\npolicies: []\n", &[]);
    }

    #[test]
    fn enabled_with_a_faulty_policy_is_not_enabled_without_one() {
        check("enabled: true\npolicies: [7]\n", &[("Q0203", 2, 12)]);
        check("enabled: true\npolicies: 7\n", &[("Q0203", 2, 11)]);
    }

    #[test]
    fn a_disabled_file_is_checked_all_the_same() {
        check(
            "enabled: false\npolicies:\n- name: a\n  selector: {}\n  burst: {requests: 0, window_secs: 1}\n",
            &[("Q0401", 4, 13), ("Q0503", 5, 21)],
        );
    }

    #[test]
    fn fields_are_named_from_the_top_of_the_file() {
        let (field, text, ..) = fault(
            "resilience:\n  quota:\n    policies:\n    - name: ' '\n      selector: {route: true}\n      burst: {requests: 1, window_secs: 1}\n",
        );
        assert_eq!(field, "resilience.quota.policies[0].name");
        assert_eq!(text, "' '");
    }

    /// A file with a fault on nearly every line.
    const FAULTS: &str = "\
enabled: true
backend:
  kind: redis
  url: http://h
  key_prefix: ''
  max_entries: 10
  connect_timeout_ms: 0
  command_timeout_ms: 0
  max_inflight: 0
local_fallback:
  key_prefix: ' '
  max_entries: 0
policies:
- name: ''
  route_allowlist: ['', api]
  selector: {}
- name: tenants
  selector:
    tenant: {key: 'header:'}
    token: {key: client_ip}
    client: {key: method}
  burst: {requests: 0, window_secs: 0}
  sustained: {requests: 9007199254740992, window_secs: 3153600001}
- name: tenants
  selector:
    tenant: {key: header:X-Id}
    token: {key: ' HEADER:x-id'}
  burst: {requests: 1, window_secs: 60}
  sustained: {requests: 1, window_secs: 60}
- name: bearer
  selector: {token: {key: bearer_token}}
  burst: {requests: 1, window_secs: 1}
- name: bearer again
  selector: {token: {key: Bearer_Token}}
  burst: {requests: 1, window_secs: 1}
";

    /// A file without a fault that uses every field.
    const SOUND: &str = "\
enabled: true
enforcement: shadow
backend_failure_policy: fail_open
backend:
  kind: redis
  url: redis://h
  key_prefix: p
  plugin: libr.so
  connect_timeout_ms: 1
  command_timeout_ms: 2
  max_inflight: 3
  tls: {ca: [x]}
local_fallback:
  key_prefix: f
  max_entries: 4
policies:
- name: a
  route_allowlist: [api, web]
  selector:
    route: true
    tenant: {key: bearer_token}
    token: {key: cookie:t}
    client:
      key: client_ip
  burst: {requests: 1, window_secs: 1}
  sustained:
    requests: 2
    window_secs: 2
- name: b
  selector: {route: true}
  burst: {requests: 1, window_secs: 1}
";

    #[test]
    fn a_file_is_refused_with_an_error_and_only_then() {
        #[track_caller]
        fn check_refusal(yaml: &str) {
            let checked = checked(yaml);
            let refused = checked.diagnostics.iter().any(Diagnostic::is_error);
            assert_eq!(checked.quota.is_none(), refused, "{yaml}");
            let policies = checked.quota.map_or(0, |quota| quota.policies.len());
            assert_eq!(checked.policy_lines.len(), policies, "{yaml}");
            for fault in &checked.diagnostics {
                assert!(fault.span.end as usize <= yaml.len(), "{yaml}");
                assert_eq!(checked.text.clamp(fault.span), fault.span, "{yaml}");
                assert!(fault.help.is_some(), "{yaml}: {fault:?}");
            }
        }
        for yaml in [FAULTS, SOUND] {
            check_refusal(yaml);
            let lines: Vec<&str> = yaml.split_inclusive('\n').collect();
            for (index, line) in lines.iter().enumerate() {
                let before = lines.get(..index).map(<[_]>::concat).unwrap_or_default();
                let after = lines
                    .get(index + 1..)
                    .map(<[_]>::concat)
                    .unwrap_or_default();
                check_refusal(&format!("{before}{after}"));
                let (key, value) = line.trim_end().split_once(':').unwrap_or((line, ""));
                for other in [
                    "", " ~", " {}", " []", " 0", " ''", " x", " &a x", " *a", " !t 1",
                ] {
                    check_refusal(&format!("{before}{key}:{other}\n{after}"));
                }
                check_refusal(&format!("{before}{key}x:{value}\n{after}"));
                check_refusal(&format!("{before}{line}{line}{after}"));
            }
        }
    }

    #[test]
    fn every_fault_of_a_file_is_found_in_one_run() {
        check(
            FAULTS,
            &[
                ("Q0607", 4, 8),
                ("Q0603", 5, 15),
                ("Q0201", 6, 3),
                ("Q0608", 7, 23),
                ("Q0609", 8, 23),
                ("Q0610", 9, 17),
                ("Q0612", 11, 15),
                ("Q0613", 12, 16),
                ("Q0502", 14, 3),
                ("Q0301", 14, 9),
                ("Q0304", 15, 21),
                ("Q0401", 16, 13),
                ("Q0406", 19, 20),
                ("Q0403", 20, 18),
                ("Q0405", 21, 19),
                ("Q0503", 22, 21),
                ("Q0504", 22, 37),
                ("Q0506", 23, 25),
                ("Q0505", 23, 56),
                ("Q0302", 24, 9),
                ("Q0404", 27, 18),
                ("Q0501", 28, 37),
                ("Q0303", 33, 3),
            ],
        );
    }

    #[test]
    fn a_node_used_twice_is_reported_once() {
        check(
            "policies:\n\
             - {name: a, selector: {route: true}, burst: &w {requests: 0, window_secs: 1}}\n\
             - {name: b, selector: {route: true}, burst: *w}\n",
            &[("Q0503", 2, 59)],
        );
    }

    #[test]
    fn a_value_used_through_an_alias_shows_where_it_is_defined() {
        let (_, text, _, related, _) = fault(
            "backend: {kind: redis, url: redis://h, key_prefix: &blank ' '}\nlocal_fallback: {max_entries: 1}\n",
        );
        assert_eq!((text.as_str(), related.len()), ("' '", 0));
        let checked = checked(
            "backend: {kind: in_memory, key_prefix: &blank ' '}\n\
             policies:\n- {name: *blank, selector: {route: true}, burst: {requests: 1, window_secs: 1}}\n",
        );
        let name = checked.diagnostics.last().expect("a fault");
        assert_eq!(name.code.id, "Q0301");
        assert_eq!(checked.text.slice(name.span), "*blank");
        let defined: Vec<_> = name
            .related
            .iter()
            .map(|second| checked.text.slice(second.span))
            .collect();
        assert_eq!(defined, ["' '"]);
    }

    #[test]
    fn policies_know_their_lines() {
        let checked = checked(
            "policies:\r\n- name: a\r\n  selector: {route: true}\r\n  burst: {requests: 1, window_secs: 1}\r\n\r\n\
             - name: b\r\n  selector: {route: true}\r\n  burst: {requests: 2, window_secs: 1}\r\n",
        );
        assert_eq!(checked.policy_lines, [2, 6]);
    }

    #[test]
    fn parts_of_a_string_are_placed_only_where_the_file_spells_it() {
        // Plain, and both ways to quote.
        for spelled in ["header:a b", "'header:a b'", "\"header:a b\""] {
            let yaml = format!(
                "policies:\n- name: a\n  selector:\n    tenant:\n      key: {spelled}\n  burst: {{requests: 1, window_secs: 1}}\n"
            );
            assert_eq!(fault(&yaml).1, "a b");
        }
        // An escape moves every byte after it.
        let yaml = "policies:\n- {name: a, selector: {tenant: {key: \"header:\\x61 b\"}}, burst: {requests: 1, window_secs: 1}}\n";
        assert_eq!(fault(yaml).1, "\"header:\\x61 b\"");
    }

    #[test]
    fn no_message_shows_the_password_of_a_url() {
        let url = "redis://quota:hunter2@h";
        for yaml in [
            format!("backend: {{kind: '{url}'}}\n"),
            format!("backend: {{kind: in_memory, '{url}': 1}}\n"),
            format!("backend: {{kind: in_memory, plugin: '{url}', plugin_sha256: '{url}'}}\n"),
            format!(
                "policies:\n- {{name: '{url}', selector: {{tenant: {{key: '{url}'}}}}, burst: {{requests: 1, window_secs: 1}}}}\n"
            ),
        ] {
            let checked = checked(&yaml);
            assert!(!checked.diagnostics.is_empty(), "{yaml}");
            let said = format!("{:?}", checked.diagnostics);
            assert!(!said.contains("hunter2"), "{said}");
        }
    }

    /// A key that counts how often one is compared with another.
    #[derive(Clone, Copy)]
    struct Counted<'c>(u32, &'c Cell<u64>);

    impl PartialEq for Counted<'_> {
        fn eq(&self, other: &Self) -> bool {
            self.1.set(self.1.get() + 1);
            self.0 == other.0
        }
    }

    impl Eq for Counted<'_> {}

    impl Hash for Counted<'_> {
        fn hash<H: Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }

    #[test]
    fn comparing_policies_costs_one_comparison_each() {
        let count = Cell::new(0);
        let keys = |key: fn(u32) -> u32| {
            (0..10_000_u32).map(move |position| (position as usize, key(position)))
        };
        let distinct = keys(|position| position).map(|(at, key)| (at, Counted(key, &count)));
        assert_eq!(repeats(distinct), []);
        let equal = keys(|_| 0).map(|(at, key)| (at, Counted(key, &count)));
        assert_eq!(repeats(equal).len(), 9_999);
        // A table compares full keys only where a few bits of their hashes are equal.
        assert!(count.get() < 30_000, "{}", count.get());
    }

    #[test]
    fn many_policies_are_told_apart() {
        let mut yaml = String::from("policies:\n");
        for index in 0..10_000 {
            yaml.push_str(&format!(
                "- {{name: p{index}, route_allowlist: [r{index}], selector: {{route: true}}, burst: {{requests: 1, window_secs: 1}}}}\n"
            ));
        }
        assert_eq!(sound(&yaml).policies.len(), 10_000);
        yaml.push_str("- {name: p9999, route_allowlist: [r0], selector: {route: true}, burst: {requests: 1, window_secs: 1}}\n");
        check(&yaml, &[("Q0303", 10_002, 3), ("Q0302", 10_002, 10)]);
    }
}

//! Policies: names, allowlists, and what no two policies of a file may share.

use std::collections::BTreeSet;

use super::backend::Ceiling;
use super::{Field, Findings, fault_of, repeats, selector, window};
use crate::codes;
use crate::diagnostic::Diagnostic;
use crate::ir::{Policy, Routes, Selector, Windows};
use crate::span::Span;
use crate::syntax::quote::quote;
use crate::syntax::raw::{Given, RawPolicy, Spanned};
use crate::terms::{Dimension, Source};

/// The policies of the file, in order; `None` when a part of them was reported.
pub(super) fn check(
    given: &Given<Vec<Option<Spanned<RawPolicy>>>>,
    root: &Field<'_>,
    ceiling: Option<&Ceiling<'_>>,
    findings: &mut Findings<'_>,
) -> Option<Vec<Policy>> {
    let list = match given {
        Given::Absent => return Some(Vec::new()),
        Given::Faulty => return None,
        Given::Value { value, .. } => &value.value,
    };
    let field = root.field("policies");
    let checked: Vec<Option<Checked<'_>>> = list
        .iter()
        .enumerate()
        .map(|(index, policy)| {
            let policy = policy.as_ref()?;
            Some(check_policy(policy, &field.item(index), ceiling, findings))
        })
        .collect();
    report_repeated_names(&checked, &field, findings);
    report_repeated_contracts(&checked, &field, findings);
    checked
        .into_iter()
        .map(|policy| policy.and_then(Checked::built))
        .collect()
}

/// The sound parts of one policy; a part is `None` when it was reported.
struct Checked<'a> {
    raw: &'a Spanned<RawPolicy>,
    name: Option<&'a str>,
    routes: Option<Routes>,
    selector: Option<Selector>,
    windows: Option<Windows>,
}

impl Checked<'_> {
    fn built(self) -> Option<Policy> {
        Some(Policy {
            name: self.name?.into(),
            routes: self.routes?,
            selector: self.selector?,
            windows: self.windows?,
        })
    }

    /// How messages call the policy.
    fn called(&self) -> String {
        self.name.map_or_else(
            || "a policy".to_owned(),
            |name| format!("policy {}", quote(name)),
        )
    }

    /// `part` of the policy, or the alias the policy is used through: two uses of one anchored policy share every part.
    fn place(&self, part: Span) -> Span {
        if self.raw.defined.is_some() {
            self.raw.span
        } else {
            part
        }
    }

    /// What makes two policies the same contract (contract §2, rule 4); the name does not count.
    fn contract(&self) -> Option<Contract<'_>> {
        let selector = self.selector.as_ref()?;
        Some(Contract {
            routes: match self.routes.as_ref()? {
                Routes::Every => None,
                Routes::Listed(routes) => Some(routes),
            },
            route: selector.has_route(),
            sources: Dimension::ALL.map(|dimension| selector.source(dimension)),
            windows: self.windows?,
        })
    }
}

#[derive(PartialEq, Eq, Hash)]
struct Contract<'a> {
    routes: Option<&'a BTreeSet<Box<str>>>,
    route: bool,
    sources: [Option<&'a Source>; 4],
    windows: Windows,
}

fn check_policy<'a>(
    raw: &'a Spanned<RawPolicy>,
    field: &Field<'_>,
    ceiling: Option<&Ceiling<'_>>,
    findings: &mut Findings<'_>,
) -> Checked<'a> {
    Checked {
        raw,
        name: check_name(&raw.value, field, findings),
        routes: check_routes(&raw.value, field, findings),
        selector: selector::check(raw, field, findings),
        windows: window::check(raw, field, ceiling, findings),
    }
}

fn check_name<'a>(
    policy: &'a RawPolicy,
    field: &Field<'_>,
    findings: &mut Findings<'_>,
) -> Option<&'a str> {
    let given = policy.name.value()?;
    let name = given.value.trim();
    if name.is_empty() {
        let fault = fault_of(
            &codes::BLANK_POLICY_NAME,
            &field.field("name"),
            given,
            "policy name is blank",
        );
        findings.report(fault.with_help("give the policy a name; metrics and logs show it"));
        return None;
    }
    Some(name)
}

fn check_routes(
    policy: &RawPolicy,
    field: &Field<'_>,
    findings: &mut Findings<'_>,
) -> Option<Routes> {
    let entries = match &policy.route_allowlist {
        Given::Absent => return Some(Routes::Every),
        Given::Faulty => return None,
        Given::Value { value, .. } => &value.value,
    };
    let field = field.field("route_allowlist");
    let mut routes = Some(BTreeSet::new());
    for (index, entry) in entries.iter().enumerate() {
        let route = entry.as_ref().map(|entry| (entry, entry.value.trim()));
        match route {
            Some((_, route)) if !route.is_empty() => {
                if let Some(routes) = &mut routes {
                    routes.insert(route.into());
                }
            }
            None => routes = None,
            Some((entry, _)) => {
                let fault = fault_of(
                    &codes::BLANK_ROUTE,
                    &field.item(index),
                    entry,
                    "allowlist entry is blank",
                );
                findings.report(
                    fault.with_help("name a route; for every route leave `route_allowlist` out"),
                );
                routes = None;
            }
        }
    }
    routes.map(Routes::from_allowlist)
}

fn report_repeated_names(
    policies: &[Option<Checked<'_>>],
    list: &Field<'_>,
    findings: &mut Findings<'_>,
) {
    let names = sound(policies, |policy| policy.name);
    for (index, first) in repeats(names) {
        let (Some(policy), Some(earlier)) = (at(policies, index), at(policies, first)) else {
            continue;
        };
        let (Some(name), Some(given)) = (policy.name, policy.raw.value.name.value()) else {
            continue;
        };
        let Some(first_given) = earlier.raw.value.name.value() else {
            continue;
        };
        let policy_field = list.item(index);
        let mut fault = fault_of(
            &codes::DUPLICATE_POLICY_NAME,
            &policy_field.field("name"),
            given,
            format!("two policies are called {}", quote(name)),
        );
        fault.span = policy.place(given.span);
        findings.report(
            fault
                .with_related(earlier.place(first_given.span), "first used here")
                .with_help("give each policy a name of its own"),
        );
    }
}

fn report_repeated_contracts(
    policies: &[Option<Checked<'_>>],
    list: &Field<'_>,
    findings: &mut Findings<'_>,
) {
    let contracts = sound(policies, Checked::contract);
    for (index, first) in repeats(contracts) {
        let (Some(policy), Some(earlier)) = (at(policies, index), at(policies, first)) else {
            continue;
        };
        let place = findings.first_line(policy.raw.span);
        let first_place = findings.first_line(earlier.raw.span);
        findings.report(
            Diagnostic::new(
                &codes::DUPLICATE_CONTRACT,
                list.item(index).to_string(),
                place,
                format!(
                    "{} is the same contract as {}: equal routes, selector and windows",
                    policy.called(),
                    earlier.called()
                ),
            )
            .with_related(first_place, "the same contract stands here first")
            .with_help("remove one of the two, or change its routes, selector or windows"),
        );
    }
}

/// What `part` finds sound of each policy, with the policy's index.
fn sound<'a, 'b: 'a, T>(
    policies: &'a [Option<Checked<'b>>],
    part: impl Fn(&'a Checked<'b>) -> Option<T>,
) -> impl Iterator<Item = (usize, T)> {
    policies
        .iter()
        .enumerate()
        .filter_map(move |(index, policy)| Some((index, part(policy.as_ref()?)?)))
}

fn at<'a, 'b>(policies: &'a [Option<Checked<'b>>], index: usize) -> Option<&'a Checked<'b>> {
    policies.get(index)?.as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{check, fault, sound};

    const REST: &str = "selector: {route: true}, burst: {requests: 1, window_secs: 1}";

    /// A file of policies that differ in their limit, each with the fields `fields`.
    fn policies(fields: &[&str]) -> String {
        let mut yaml = String::from("policies:\n");
        for (index, fields) in fields.iter().enumerate() {
            yaml.push_str(&format!(
                "- {{{fields}, selector: {{route: true}}, burst: {{requests: {}, window_secs: 1}}}}\n",
                index + 1
            ));
        }
        yaml
    }

    /// A file of two policies `a` and `b`, each with the fields `first` and `second`.
    fn two(first: &str, second: &str) -> String {
        format!("policies:\n- {{name: a, {first}}}\n- {{name: b, {second}}}\n")
    }

    #[test]
    fn a_name_is_not_blank() {
        check(&policies(&["name: ''"]), &[("Q0301", 2, 10)]);
        check(&policies(&["name: \" \\t\""]), &[("Q0301", 2, 10)]);
        check(&policies(&["route_allowlist: []"]), &[("Q0204", 2, 3)]);
    }

    #[test]
    fn names_are_unique_after_trimming_and_case_sensitive() {
        check(&policies(&["name: a", "name: A", "name: b"]), &[]);
        check(
            &policies(&["name: a", "name: b", "name: ' a '", "name: a"]),
            &[("Q0302", 4, 10), ("Q0302", 5, 10)],
        );
        let (field, text, message, related, _) = fault(&policies(&["name: ab", "name: ' ab'"]));
        assert_eq!(field, "policies[1].name");
        assert_eq!(text, "' ab'");
        assert_eq!(message, "two policies are called `ab`");
        assert_eq!(related, ["ab"]);
    }

    #[test]
    fn a_name_repeated_through_an_alias_is_shown_once_where_it_stands() {
        let (_, text, _, related, _) = fault(&policies(&["name: &n ab", "name: *n"]));
        assert_eq!(text, "*n");
        assert_eq!(related, ["ab"]);
    }

    #[test]
    fn a_policy_at_fault_elsewhere_still_holds_its_name() {
        check(
            &format!(
                "policies:\n- {{name: a, {REST}}}\n- {{name: a, selector: {{route: true}}}}\n"
            ),
            &[("Q0502", 3, 3), ("Q0302", 3, 10)],
        );
    }

    #[test]
    fn allowlist_entries_are_not_blank() {
        check(
            &policies(&["name: a, route_allowlist: ['', api, ' ']"]),
            &[("Q0304", 2, 31), ("Q0304", 2, 40)],
        );
        let (field, ..) = fault(&policies(&["name: a, route_allowlist: [api, '']"]));
        assert_eq!(field, "policies[0].route_allowlist[1]");
    }

    #[test]
    fn allowlists_are_sets_of_trimmed_routes() {
        let quota = sound(&policies(&[
            "name: a, route_allowlist: [b, ' a ', b]",
            "name: b, route_allowlist: []",
            "name: c",
        ]));
        let routes: Vec<_> = quota.policies.iter().map(|policy| &policy.routes).collect();
        let listed = Routes::Listed(BTreeSet::from(["a".into(), "b".into()]));
        assert_eq!(routes, [&listed, &Routes::Every, &Routes::Every]);
    }

    #[test]
    fn two_policies_are_not_the_same_contract() {
        let (field, text, message, related, _) = fault(&two(REST, REST));
        assert_eq!(field, "policies[1]");
        assert_eq!(text, format!("{{name: b, {REST}}}"));
        assert_eq!(
            message,
            "policy `b` is the same contract as policy `a`: equal routes, selector and windows"
        );
        assert_eq!(related, [format!("{{name: a, {REST}}}")]);
    }

    #[test]
    fn contracts_are_compared_by_what_they_mean() {
        let windows = "burst: {requests: 1, window_secs: 1}";
        let same = [("Q0303", 3, 3)];
        let selector =
            |source: &str| format!("selector: {{client: {{key: '{source}'}}}}, {windows}");
        check(&two(&selector("peer_ip"), &selector(" CLIENT_IP")), &same);
        check(&two(&selector("header:a"), &selector("cookie:a")), &[]);
        let routes = |routes: &str| format!("route_allowlist: [{routes}], {REST}");
        check(&two(&routes("a, b"), &routes("b, ' a', b")), &same);
        check(&two(&routes("a"), &routes("a, b")), &[]);
        check(&two(&routes("a"), &routes("A")), &[]);
        check(&two(REST, &routes("")), &same);
        check(&two(REST, &routes("a")), &[]);
        check(
            &two(
                REST,
                "selector: {route: true}, sustained: {requests: 1, window_secs: 1}",
            ),
            &[],
        );
        check(
            &two(
                &selector("peer_ip"),
                &format!("selector: {{route: true, client: {{key: peer_ip}}}}, {windows}"),
            ),
            &[],
        );
    }

    #[test]
    fn a_contract_with_a_part_at_fault_is_not_compared() {
        let routes = "route_allowlist: [''], ";
        check(
            &two(&format!("{routes}{REST}"), &format!("{routes}{REST}")),
            &[("Q0304", 2, 31), ("Q0304", 3, 31)],
        );
        let zero = "selector: {route: true}, burst: {requests: 0, window_secs: 1}";
        check(&two(zero, zero), &[("Q0503", 2, 56), ("Q0503", 3, 56)]);
    }

    #[test]
    fn a_policy_used_twice_is_pointed_at_where_it_is_used() {
        let checked =
            crate::check::tests::checked(&format!("policies:\n- &p {{name: a, {REST}}}\n- *p\n"));
        let found: Vec<_> = checked
            .diagnostics
            .iter()
            .map(|fault| (fault.code.id, checked.text.slice(fault.span)))
            .collect();
        assert_eq!(found, [("Q0302", "*p"), ("Q0303", "*p")]);
    }

    #[test]
    fn policies_keep_the_order_of_the_file() {
        let quota = sound(&policies(&["name: z", "name: ' a '", "name: m"]));
        let names: Vec<_> = quota.policies.iter().map(|policy| &*policy.name).collect();
        assert_eq!(names, ["z", "a", "m"]);
    }
}

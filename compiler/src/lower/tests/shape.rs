//! Slices, slots, operands and templates of programs small enough to read.

use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroU64};

use super::{policies, program, quota};
use crate::codes;
use crate::ir::{Policy, Quota, Routes, Selector, Window, Windows};
use crate::lower::{LowerError, MAX_INSTRUCTIONS, MAX_SLICE_SOURCES, lower, translate};
use crate::program::{RouteOperand, SlotId, key};
use crate::settings::BackendSettings;
use crate::terms::{Enforcement, FailurePolicy, Source};
use crate::{Limits, backend_kind::KnownKinds, compile};

/// Policies with the given names and allowlists; what they select is of no matter.
fn named(policies: &[(&str, &str)]) -> String {
    let policies = policies.iter().map(|(name, routes)| {
        format!(
            "  - name: {name}\n    route_allowlist: [{routes}]\n    selector: {{ tenant: {{ key: 'header:{name}' }} }}\n    burst: {{ requests: 1, window_secs: 1 }}\n"
        )
    });
    format!("policies:\n{}", policies.collect::<String>())
}

/// Policies that each select `selector`, under names `p0`, `p1`, …
fn selecting(routes: &str, selectors: &[&str]) -> String {
    let policies = selectors.iter().enumerate().map(|(at, selector)| {
        format!(
            "  - {{ name: p{at}, route_allowlist: [{routes}], selector: {{ {selector} }}, burst: {{ requests: {}, window_secs: 1 }} }}\n",
            at + 1
        )
    });
    format!("policies:\n{}", policies.collect::<String>())
}

#[test]
fn policies_for_every_route_are_merged_in_file_order() {
    let program = program(&named(&[
        ("a", ""),
        ("b", "x"),
        ("c", ""),
        ("d", "y, x"),
        ("e", ""),
    ]));
    assert_eq!(policies(&program, Some("x")), ["a", "b", "c", "d", "e"]);
    assert_eq!(policies(&program, Some("y")), ["a", "c", "d", "e"]);
    assert_eq!(policies(&program, Some("z")), ["a", "c", "e"]);
    assert_eq!(policies(&program, None), ["a", "c", "e"]);
}

#[test]
fn routes_match_exactly() {
    let program = program(&named(&[("a", "api, ' padded '")]));
    assert_eq!(policies(&program, Some("api")), ["a"]);
    assert_eq!(policies(&program, Some("padded")), ["a"]);
    for other in ["Api", "api/", "ap", ""] {
        assert_eq!(policies(&program, Some(other)), [""; 0], "{other}");
    }
}

#[test]
fn routes_with_the_same_policies_share_a_slice() {
    let program = program(&named(&[
        ("every", ""),
        ("a", "r1, r2, r3"),
        ("b", "r3, r1, r4"),
        ("c", "r4, r5"),
        ("d", "r5"),
    ]));
    let slice = |route| program.slice_for(Some(route)).0;
    assert_eq!(
        ["r1", "r2", "r3", "r4", "r5", "other"].map(slice),
        [1, 2, 1, 3, 4, 0]
    );
    assert_eq!(program.slices.len(), 5);
    assert_eq!(program.code.len(), 1 + 3 + 2 + 3 + 3);
}

#[test]
fn a_listed_policy_alone_leaves_other_requests_free() {
    let program = program(&named(&[("a", "x")]));
    assert_eq!(policies(&program, None), [""; 0]);
    assert_eq!(policies(&program, Some("x")), ["a"]);
}

#[test]
fn sources_are_interned_after_normalization() {
    let program = program(&selecting(
        "",
        &[
            "tenant: { key: ' Header:X-A' }, client: { key: peer_ip }",
            "token: { key: 'header: x-a' }, client: { key: CLIENT_IP }",
            "tenant: { key: 'cookie:x-a' }, token: { key: 'header:x-b' }",
        ],
    ));
    let sources: Vec<_> = program.sources().iter().map(ToString::to_string).collect();
    assert_eq!(
        sources,
        ["header:x-a", "client_ip", "cookie:x-a", "header:x-b"]
    );
}

#[test]
fn slots_are_places_among_the_sources_of_their_slice() {
    let text = "
policies:
  - { name: a, route_allowlist: [x], selector: { tenant: { key: 'header:a' } }, burst: { requests: 1, window_secs: 1 } }
  - { name: b, route_allowlist: [y], selector: { tenant: { key: 'header:b' }, client: { key: 'header:a' } }, burst: { requests: 1, window_secs: 1 } }
  - { name: c, selector: { token: { key: 'header:b' } }, burst: { requests: 1, window_secs: 1 } }
";
    let program = program(text);
    let none = SlotId::NONE.0;
    let slots = |route| {
        let slice = program.slice_for(Some(route));
        let sources = program.sources_of(slice).iter().map(|id| id.0);
        let code = program.instructions(slice).iter();
        (
            sources.collect::<Vec<_>>(),
            code.map(|one| one.slots.map(|slot| slot.0))
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(slots("other"), (vec![1], vec![[none, 0, none]]));
    assert_eq!(
        slots("x"),
        (vec![0, 1], vec![[0, none, none], [none, 1, none]])
    );
    assert_eq!(
        slots("y"),
        (vec![1, 0], vec![[0, none, 1], [none, 0, none]])
    );
}

#[test]
fn a_policy_of_one_route_has_it_in_its_template() {
    #[track_caller]
    fn check(routes: &str, selector: &str, operand: RouteOperand, known: Option<&str>) {
        let program = program(&selecting(routes, &[selector]));
        let instruction = program.code[0];
        assert_eq!(instruction.route, operand);
        let mut template = Vec::new();
        key::push_policy(&mut template, "p0");
        if let Some(route) = known {
            key::push_route(&mut template, route);
        }
        assert_eq!(program.template(instruction.template), template);
    }
    let client = "client: { key: client_ip }";
    let both = "route: true, client: { key: client_ip }";
    check("", client, RouteOperand::Absent, None);
    check("api", client, RouteOperand::Absent, None);
    check("api", both, RouteOperand::InTemplate, Some("api"));
    check("api, ' api'", both, RouteOperand::InTemplate, Some("api"));
    check("api, web", both, RouteOperand::FromRequest, None);
    check("", both, RouteOperand::FromRequest, None);
}

#[test]
fn rows_hold_what_an_executor_shows() {
    let program = program(
        "# A comment
policies:
  - name: ' both '
    selector: { client: { key: client_ip }, route: true, token: { key: bearer_token }, tenant: { key: 'query:t' } }
    sustained: { requests: 18446744073709551615, window_secs: 3153600000 }
    burst: { requests: 1, window_secs: 2 }

  - { name: one, route_allowlist: [b, a], selector: { route: true }, sustained: { requests: 3, window_secs: 4 } }
",
    );
    let [both, one] = program.policies() else {
        panic!("there are two")
    };
    assert_eq!((&*both.name, both.line), ("both", 3));
    assert_eq!(&*both.selector_dimensions, "route+tenant+token+client");
    let window = |window: Option<crate::program::WindowOperand>| {
        window.map(|window| (window.requests.get(), window.length_ms.get()))
    };
    assert_eq!(window(both.burst), Some((1, 2_000)));
    assert_eq!(window(both.sustained), Some((u64::MAX, 3_153_600_000_000)));
    assert_eq!((&*one.name, one.line), ("one", 8));
    assert_eq!(&*one.selector_dimensions, "route");
    assert_eq!(one.view.route_allowlist, ["a".into(), "b".into()].into());
    assert_eq!(
        (window(one.burst), window(one.sustained)),
        (None, Some((3, 4_000)))
    );
}

#[test]
fn settings_arrive_as_they_are() {
    let text = "
enabled: true
enforcement: shadow
backend_failure_policy: fail_open
backend: { kind: redis, url: 'redis://u:p@h', key_prefix: a }
local_fallback: { key_prefix: b, max_entries: 7 }
policies: [{ name: p, selector: { route: true }, burst: { requests: 1, window_secs: 1 } }]
";
    let (quota, program) = (quota(text), program(text));
    assert!(program.enabled());
    assert_eq!(program.enforcement(), Enforcement::Shadow);
    assert_eq!(program.failure_policy(), FailurePolicy::FailOpen);
    assert_eq!(*program.backend(), quota.backend);
    assert_eq!(program.backend().options["url"], "redis://u:p@h");
    assert_eq!(program.fallback(), quota.fallback.as_ref());
}

#[test]
fn a_disabled_file_is_lowered_all_the_same() {
    let program = program(&format!("enabled: false\n{}", named(&[("a", "x")])));
    assert!(!program.enabled());
    assert_eq!(policies(&program, Some("x")), ["a"]);
}

#[test]
fn a_policy_without_a_line_has_line_0() {
    let quota = quota(&named(&[("a", ""), ("b", "")]));
    let program = lower(&quota, &[5]).expect("it lowers");
    let lines: Vec<_> = program.policies().iter().map(|row| row.line).collect();
    assert_eq!(lines, [5, 0]);
}

/// A policy for every route that selects `sources`.
fn wide(name: usize, [tenant, token, client]: [usize; 3]) -> Policy {
    let source = |number: usize| Some(Source::Header(format!("h{number}").into()));
    Policy {
        name: format!("p{name}").into(),
        routes: Routes::Every,
        selector: Selector::new(false, source(tenant), source(token), source(client))
            .expect("it is legal"),
        windows: once_a_second(),
    }
}

fn once_a_second() -> Windows {
    let window = Window {
        requests: NonZeroU64::MIN,
        length_secs: NonZeroU32::MIN,
    };
    Windows::new(Some(window), None).expect("it is legal")
}

fn file(policies: Vec<Policy>) -> Quota {
    Quota {
        enabled: true,
        enforcement: Enforcement::Enforce,
        failure_policy: FailurePolicy::FailClosed,
        backend: BackendSettings::default(),
        fallback: None,
        policies,
    }
}

#[test]
fn a_slice_has_a_slot_for_65535_sources_and_no_more() {
    let policies = usize::from(MAX_SLICE_SOURCES) / 3;
    let mut policies: Vec<_> = (0..policies)
        .map(|at| wide(at, [3 * at, 3 * at + 1, 3 * at + 2]))
        .collect();
    let program = lower(&file(policies.clone()), &[]).expect("the sources have slots");
    let last = program.code.last().expect("there is code").slots[2];
    assert_eq!(last, SlotId(MAX_SLICE_SOURCES - 1));

    let count = policies.len();
    policies.push(wide(count, [0, 1, 3 * count]));
    assert_eq!(
        lower(&file(policies), &[]).err(),
        Some(LowerError::TooLarge {
            what: "distinct sources for one route",
            max: 65_535
        })
    );
}

#[test]
fn instructions_are_bounded() {
    let listed = |at: usize| Policy {
        name: format!("listed{at}").into(),
        routes: Routes::Listed(BTreeSet::from([format!("r{at}").into()])),
        ..wide(at, [0, 1, 2])
    };
    // Three for every route, in the slices of two routes and in that of all others; and the two that are listed.
    let policies = (0..3).map(|at| wide(at, [0, 1, 2]));
    let quota = file(policies.chain((0..2).map(listed)).collect());
    assert!(translate(&quota, &[], 11).is_ok());
    assert_eq!(
        translate(&quota, &[], 10).err(),
        Some(LowerError::TooLarge {
            what: "instructions",
            max: 10
        })
    );
}

#[test]
fn a_file_whose_program_is_too_large_is_refused() {
    let half = 4_096;
    assert!(half * (half + 2) > MAX_INSTRUCTIONS as usize);
    let mut text = "policies:\n".to_owned();
    for at in 0..half {
        for (name, routes) in [("e", String::new()), ("l", format!("r{at}"))] {
            text.push_str(&format!(
                "- {{name: {name}{at}, route_allowlist: [{routes}], selector: {{route: true}}, burst: {{requests: {}, window_secs: 1}}}}\n",
                at + 1
            ));
        }
    }
    let compiled = compile("p.yaml", text.as_bytes(), Limits::default(), &KnownKinds);
    assert!(compiled.program.is_none());
    assert!(compiled.checked.quota.is_none());
    let [diagnostic] = &*compiled.checked.diagnostics else {
        panic!("{:#?}", compiled.checked.diagnostics)
    };
    assert_eq!(diagnostic.code, &codes::PROGRAM_TOO_LARGE);
    assert_eq!(
        diagnostic.message,
        "the program needs more than 16777216 instructions"
    );
}

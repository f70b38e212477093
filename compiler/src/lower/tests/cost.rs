//! What a request costs does not depend on policies that do not apply to it: counted, never timed.

use std::collections::BTreeSet;

use super::quota;
use crate::ir::{Policy, Quota, Routes, Selector};
use crate::lower::lower;
use crate::program::{Instruction, Program, SliceId};
use crate::terms::Source;

const UNRELATED: [u32; 3] = [10, 1_000, 100_000];

fn related() -> Quota {
    quota(
        "
policies:
  - { name: every, selector: { tenant: { key: 'header:t' } }, burst: { requests: 1, window_secs: 1 } }
  - { name: api, route_allowlist: [api], selector: { route: true, token: { key: bearer_token } }, burst: { requests: 1, window_secs: 1 } }
  - { name: both, route_allowlist: [api, web], selector: { route: true, client: { key: client_ip } }, burst: { requests: 1, window_secs: 1 } }
  - { name: last, selector: { tenant: { key: 'header:t' }, token: { key: 'cookie:c' } }, burst: { requests: 1, window_secs: 1 } }
",
    )
}

/// The related policies, in their order, among `count` others, each for the routes `routes_of` gives it and with a source of
/// its own.
fn among(count: u32, routes_of: impl Fn(u32) -> String) -> Program {
    let mut quota = related();
    let windows = quota.policies[0].windows;
    let others: Vec<_> = (0..count)
        .map(|number| Policy {
            name: format!("other{number}").into(),
            routes: Routes::Listed(BTreeSet::from([routes_of(number).into()])),
            selector: Selector::new(
                false,
                Some(Source::Header(format!("h{number}").into())),
                None,
                None,
            )
            .expect("it is legal"),
            windows,
        })
        .collect();
    let half = others.len() / 2;
    let mut others = others.into_iter();
    let mut policies: Vec<_> = others.by_ref().take(half).collect();
    policies.insert(half / 2, quota.policies.remove(0));
    policies.append(&mut quota.policies);
    policies.extend(others);
    quota.policies = policies;
    lower(&quota, &[]).expect("it lowers")
}

/// All that an executor looks at for a request of `route`: each instruction with what its operands stand for. Places in
/// tables differ with what else there is; nothing else may.
fn touched(program: &Program, route: Option<&str>) -> Vec<String> {
    let slice = program.slice_for(route);
    let code = program.instructions(slice);
    code.iter()
        .map(|one| resolved(program, slice, one))
        .collect()
}

fn resolved(program: &Program, slice: SliceId, instruction: &Instruction) -> String {
    let row = program.policy(instruction.policy).expect("it is there");
    let sources = program.sources_of(slice).iter();
    let sources: Vec<_> = sources.map(|id| program.source(*id)).collect();
    format!(
        "{} {:?} {:?} {:?} {sources:?} {} {:?}",
        row.name,
        program.template(instruction.template).escape_ascii(),
        instruction.route,
        instruction.slots,
        row.selector_dimensions,
        row.burst,
    )
}

#[track_caller]
fn check_touched(routes_of: impl Fn(u32) -> String + Copy) {
    let alone = lower(&related(), &[]).expect("it lowers");
    let routes = [Some("api"), Some("web"), Some("nowhere"), None];
    let counts = routes.map(|route| touched(&alone, route).len());
    assert_eq!(counts, [4, 3, 2, 2]);
    for unrelated in UNRELATED {
        let program = among(unrelated, routes_of);
        for route in routes {
            assert_eq!(
                touched(&program, route),
                touched(&alone, route),
                "{route:?} among {unrelated}"
            );
        }
    }
}

#[test]
fn policies_of_other_routes_cost_a_request_nothing() {
    check_touched(|number| format!("r{number}"));
}

#[test]
fn policies_of_one_other_route_cost_a_request_nothing() {
    // As many as a slice has slots for their sources.
    check_touched(|number| format!("r{}", number / 50_000));
}

/// Twice the policies, twice the program.
#[test]
fn a_program_grows_with_its_policies() {
    for unrelated in [10, 1_000, 10_000] {
        let program = among(unrelated, |number| format!("r{number}"));
        let unrelated = usize::try_from(unrelated).expect("it fits");
        assert_eq!(program.policies.len(), unrelated + 4);
        assert_eq!(program.routes.len(), unrelated + 2);
        // One for each route, and that of every other request.
        assert_eq!(program.slices.len(), unrelated + 2 + 1);
        // The policy of each route, and the two for every route in each slice.
        assert_eq!(program.code.len(), 3 * unrelated + 4 + 3 + 2);
        assert_eq!(program.slice_sources.len(), 3 * unrelated + 4 + 3 + 2);
    }
}

/// A policy that names many routes, and many that name the same, are written down once.
#[test]
fn routes_that_share_policies_share_their_code() {
    let routes: BTreeSet<Box<str>> = (0..10_000).map(|n| format!("r{n}").into()).collect();
    let mut quota = related();
    for policy in &mut quota.policies {
        policy.routes = Routes::Listed(routes.clone());
    }
    let program = lower(&quota, &[]).expect("it lowers");
    assert_eq!(program.routes.len(), 10_000);
    assert_eq!((program.slices.len(), program.code.len()), (2, 4));
}

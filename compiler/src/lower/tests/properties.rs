//! Every legal policy set lowers to a program that executes exactly it.

use proptest::prelude::*;

use super::arbitrary::{OTHER_ROUTE, named_routes, quotas};
use super::{checked, layout};
use crate::ir::{Policy, Quota, Routes};
use crate::lower::{decompile, lower};
use crate::program::verify::verify;
use crate::program::{Program, RouteOperand, SlotId, key};
use crate::terms::Dimension;

proptest! {
    #[test]
    fn every_program_verifies_and_reads_back(quota in quotas()) {
        let program = lower(&quota, &[]).expect("it lowers");
        prop_assert_eq!(verify(&program), Ok(()));
        prop_assert_eq!(decompile(&program), Ok(quota));
    }

    /// The definition of what applies, without slices, slots or interning, held against the code of each route.
    #[test]
    fn every_route_executes_the_policies_that_apply(quota in quotas()) {
        let program = lower(&quota, &[]).expect("it lowers");
        for route in named_routes(&quota) {
            check(&quota, &program, Some(route))?;
        }
        check(&quota, &program, Some(OTHER_ROUTE))?;
        check(&quota, &program, None)?;
    }

    #[test]
    fn every_text_means_the_policies_it_was_written_from(quota in quotas(), seed: u64) {
        let text = layout::text(&quota, seed);
        let mut found = checked(&text).quota.expect("it is legal");
        // The writer gives URLs credentials.
        found.backend.options = found.backend.public_options();
        let mut expected = quota;
        expected.backend.options = expected.backend.public_options();
        prop_assert_eq!(found, expected, "{}", text);
    }
}

fn check(quota: &Quota, program: &Program, route: Option<&str>) -> Result<(), TestCaseError> {
    let applies = |policy: &&Policy| match &policy.routes {
        Routes::Every => true,
        Routes::Listed(routes) => route.is_some_and(|route| routes.contains(route)),
    };
    let expected: Vec<_> = quota.policies.iter().filter(applies).collect();
    let slice = program.slice_for(route);
    let code = program.instructions(slice);
    prop_assert_eq!(code.len(), expected.len());
    for (instruction, policy) in code.iter().zip(expected) {
        let row = program.policy(instruction.policy).expect("it is there");
        prop_assert_eq!(&row.name, &policy.name);

        // The key a request of this route would get: the template and what is appended to it.
        let mut expected_key = Vec::new();
        key::push_policy(&mut expected_key, &policy.name);
        let mut key = program.template(instruction.template).to_vec();
        match (instruction.route, route) {
            (RouteOperand::FromRequest, Some(route)) => key::push_route(&mut key, route),
            (RouteOperand::FromRequest, None) => {
                prop_assert!(policy.selector.has_route());
            }
            (RouteOperand::Absent | RouteOperand::InTemplate, _) => {}
        }
        if let (true, Some(route)) = (policy.selector.has_route(), route) {
            key::push_route(&mut expected_key, route);
        }
        prop_assert_eq!(key, expected_key);

        let dimensions = [Dimension::Tenant, Dimension::Token, Dimension::Client];
        for (dimension, slot) in dimensions.into_iter().zip(instruction.slots) {
            let id = program.sources_of(slice).get(usize::from(slot.0));
            let source = id.and_then(|id| program.source(*id));
            prop_assert_eq!(source, policy.selector.source(dimension));
            prop_assert_eq!(source.is_none(), slot == SlotId::NONE);
        }
    }
    Ok(())
}

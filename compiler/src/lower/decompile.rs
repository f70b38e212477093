//! Program → IR: what a program means, read from what an executor executes. Every program is read back and compared with the
//! policies it was made from before it is used, so that a fault of lowering cannot reach a request.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use crate::ir::{Policy, Quota, Routes, Selector, SelectorError, Window, Windows, WindowsError};
use crate::program::{Instruction, Program, RouteOperand, SliceId, SlotId, WindowOperand, index};
use crate::terms::Source;

/// Why a program does not read back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecompileError {
    /// No slice holds the policy.
    #[error("policy {0} is in no slice")]
    Unreachable(u32),
    /// Slices differ in what they evaluate for the policy.
    #[error("slices evaluate policy {0} differently")]
    Inconsistent(u32),
    /// The policy is in the slice of every other request, and not in all the rest.
    #[error("policy {0} applies to every route but some")]
    NotEveryRoute(u32),
    /// An instruction refers to something that is not there.
    #[error("policy {0} refers to what is not there")]
    Dangling(u32),
    /// What an instruction extracts is no selector.
    #[error("policy {0} has no legal selector")]
    Selector(u32, #[source] SelectorError),
    /// Its windows are none.
    #[error("policy {0} has no legal windows")]
    Windows(u32, #[source] WindowsError),
}

/// The policies that `program` executes.
///
/// # Errors
///
/// The program does not execute any legal policies.
pub fn decompile(program: &Program) -> Result<Quota, DecompileError> {
    let mut found: Vec<Option<Found<'_>>> = vec![None; program.policies.len()];
    let mut routes_of_slice: Vec<Vec<&str>> = vec![Vec::new(); program.slices.len()];
    for (route, _) in program.routes() {
        let slice = program.slice_for(Some(route));
        if let Some(routes) = routes_of_slice.get_mut(index(slice.0)) {
            routes.push(route);
        }
    }
    for (slice, routes) in (0..).map(SliceId).zip(&routes_of_slice) {
        for instruction in program.instructions(slice) {
            let id = instruction.policy.0;
            let reading = Found::read(program, slice, instruction)?;
            let place = found
                .get_mut(index(id))
                .ok_or(DecompileError::Dangling(id))?;
            let known = place.get_or_insert_with(|| reading.clone());
            if (known.route, known.sources) != (reading.route, reading.sources) {
                return Err(DecompileError::Inconsistent(id));
            }
            known.slices += 1;
            known.in_any_route |= slice == program.any_route;
            if !known.in_any_route {
                known.routes.extend(routes.iter().copied().map(Box::from));
            }
        }
    }
    let policies = (0..)
        .zip(found)
        .map(|(id, found)| policy(program, id, found.ok_or(DecompileError::Unreachable(id))?))
        .collect::<Result<_, _>>()?;
    Ok(Quota {
        enabled: program.enabled,
        enforcement: program.enforcement,
        failure_policy: program.failure_policy,
        backend: program.backend.clone(),
        fallback: program.fallback.clone(),
        policies,
    })
}

/// What the code holds of one policy.
#[derive(Clone)]
struct Found<'p> {
    route: bool,
    sources: [Option<&'p Source>; 3],
    slices: usize,
    in_any_route: bool,
    /// The routes of its slices, until one of them is that of every other request.
    routes: BTreeSet<Box<str>>,
}

impl<'p> Found<'p> {
    fn read(
        program: &'p Program,
        slice: SliceId,
        instruction: &Instruction,
    ) -> Result<Self, DecompileError> {
        let mut sources = [None; 3];
        for (source, slot) in sources.iter_mut().zip(instruction.slots) {
            if slot != SlotId::NONE {
                let id = program.sources_of(slice).get(usize::from(slot.0));
                let found = id.and_then(|id| program.source(*id));
                let id = instruction.policy.0;
                *source = Some(found.ok_or(DecompileError::Dangling(id))?);
            }
        }
        Ok(Self {
            route: instruction.route != RouteOperand::Absent,
            sources,
            slices: 0,
            in_any_route: false,
            routes: BTreeSet::new(),
        })
    }
}

fn policy(program: &Program, id: u32, found: Found<'_>) -> Result<Policy, DecompileError> {
    let row = program
        .policies
        .get(index(id))
        .ok_or(DecompileError::Dangling(id))?;
    let routes = if !found.in_any_route {
        Routes::Listed(found.routes)
    } else if found.slices == program.slices.len() {
        Routes::Every
    } else {
        return Err(DecompileError::NotEveryRoute(id));
    };
    let [tenant, token, client] = found.sources.map(Option::<&Source>::cloned);
    let selector = Selector::new(found.route, tenant, token, client);
    let window = |operand: Option<WindowOperand>| {
        operand
            .map(|operand| {
                // A length that is no whole number of seconds, or of too many, is no window of the file.
                let length_ms = operand.length_ms.get();
                let secs = u32::try_from(length_ms / 1000).ok();
                let secs = secs.filter(|_| length_ms.is_multiple_of(1000));
                Ok(Window {
                    requests: operand.requests,
                    length_secs: secs
                        .and_then(NonZeroU32::new)
                        .ok_or(WindowsError::TooLong)?,
                })
            })
            .transpose()
    };
    let windows = window(row.burst)
        .and_then(|burst| Ok((burst, window(row.sustained)?)))
        .and_then(|(burst, sustained)| Windows::new(burst, sustained));
    Ok(Policy {
        name: row.name.clone(),
        routes,
        selector: selector.map_err(|error| DecompileError::Selector(id, error))?,
        windows: windows.map_err(|error| DecompileError::Windows(id, error))?,
    })
}

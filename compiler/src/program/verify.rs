//! Everything an executor may rely on. Each [`Fault`] is one invariant; a program for which [`verify`](fn@verify) returns `Ok`
//! has none of them:
//!
//! - **Code.** Slices lie end to end and cover the code and the slice sources exactly. In a slice policies ascend, each with
//!   the template, route operand and sources of its row; a slot is an index into the sources of its slice, or none. A slice's
//!   sources are distinct and in the order of first use.
//! - **Routes.** Sorted, distinct, trimmed and not blank; each is found by name and has the slice of exactly the policies that
//!   name it and those for every route. Every other request has the first slice. Slices are distinct, in the order of their
//!   first route.
//! - **Policies.** Names are distinct, trimmed and not blank; allowlists sorted; labels, sources and windows those of a legal
//!   selector and legal windows (contract §2).
//! - **Templates.** One for each policy: its name, and its route where it names exactly one.
//! - **Settings.** A fallback stands beside a remote backend only; prefixes are not blank; what is enabled has a policy.
//! - **Digest.** That of everything else.
//!
//! Nothing is assumed of the program, so this cannot panic on any.

use std::collections::{BTreeMap, HashSet};

use super::{
    Instruction, PolicyId, PolicyRow, Program, Slice, SliceId, SlotId, SourceId, canonical, index,
    key,
};
use crate::terms::{Dimension, MAX_WINDOW_SECS, Source};

/// What is wrong with a program, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {fault}")]
pub struct VerifyError {
    /// Where.
    pub place: Place,
    /// What.
    pub fault: Fault,
}

/// A part of a program: a table and a place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Place {
    /// The program as a whole.
    #[error("program")]
    Program,
    /// A slice.
    #[error("slice {0}")]
    Slice(u32),
    /// An instruction, from the beginning of the code.
    #[error("instruction {0}")]
    Instruction(u32),
    /// A route.
    #[error("route {0}")]
    Route(u32),
    /// A source.
    #[error("source {0}")]
    Source(u32),
    /// A policy.
    #[error("policy {0}")]
    Policy(u32),
    /// A template.
    #[error("template {0}")]
    Template(u32),
}

/// A broken invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A table has more entries than its ids can name.
    #[error("a table is larger than its ids reach")]
    TooLarge,
    /// A slice does not begin where the one before it ends, or slices leave an end of a table over.
    #[error("slices do not lie end to end")]
    SlicesNotEndToEnd,
    /// A slice that no route has, or that is out of the order of first routes.
    #[error("slices are not in the order of their first routes")]
    SlicesOutOfOrder,
    /// Two slices evaluate the same policies.
    #[error("another slice has the same policies")]
    SlicesEqual,
    /// A slice's sources are not those of its instructions, each once, in the order of first use.
    #[error("the sources are not those used, once each, in the order of first use")]
    SlotsOutOfOrder,
    /// An id is beyond its table.
    #[error("an id is beyond its table")]
    OutOfBounds,
    /// Policies of a slice do not ascend.
    #[error("policies do not ascend")]
    PoliciesNotAscending,
    /// A template that is not the policy's.
    #[error("the template is not that of the policy")]
    WrongTemplate,
    /// A route operand that is not the policy's.
    #[error("the route operand is not that of the policy")]
    WrongRouteOperand,
    /// A source that is not the policy's.
    #[error("a slot is not that of the policy's source")]
    WrongSlot,
    /// Reserved bytes that are not zero.
    #[error("reserved bytes are not zero")]
    ReservedNotZero,
    /// A name is blank or has white space around it.
    #[error("a name is blank or not trimmed")]
    NameNotTrimmed,
    /// Entries of a sorted table that do not ascend.
    #[error("entries do not ascend")]
    NotSorted,
    /// A route is not found by its name, or found with another slice.
    #[error("the route is not found by its name")]
    RouteNotFound,
    /// A slice holds other policies than those that apply to its route.
    #[error("the slice is not that of the policies that apply")]
    WrongPolicies,
    /// Every other request does not have the first slice.
    #[error("every other request does not have the first slice")]
    WrongAnyRoute,
    /// An entry that an earlier one equals.
    #[error("an earlier entry is equal")]
    NotDistinct,
    /// A source's name is not normalized.
    #[error("the name is not in normal form")]
    NotNormalized,
    /// A source that is not legal for its dimension, one that fills two, or no dimension at all.
    #[error("the selector is not legal")]
    IllegalSelector,
    /// A label that is not the selector's.
    #[error("the label is not that of the selector")]
    WrongLabel,
    /// No window, a length that is not whole seconds within bounds, or a burst window that is not shorter.
    #[error("the windows are not legal")]
    IllegalWindows,
    /// A template that does not read back as the policy's name and the one route it may know.
    #[error("the template does not read back")]
    TemplateUnreadable,
    /// Settings the contract does not allow together.
    #[error("the settings are not legal")]
    IllegalSettings,
    /// The digest is not that of the canonical bytes.
    #[error("the digest is not that of the program")]
    WrongDigest,
}

/// Checks every invariant above.
///
/// # Errors
///
/// The first one broken.
pub fn verify(program: &Program) -> Result<(), VerifyError> {
    settings(program)?;
    sizes(program)?;
    sources(program)?;
    policies(program)?;
    templates(program)?;
    slices(program)?;
    routes(program)?;
    ensure(
        canonical::digest(program) == program.digest,
        Place::Program,
        Fault::WrongDigest,
    )
}

fn ensure(holds: bool, place: Place, fault: Fault) -> Result<(), VerifyError> {
    if holds {
        Ok(())
    } else {
        Err(VerifyError { place, fault })
    }
}

fn settings(program: &Program) -> Result<(), VerifyError> {
    let (backend, fallback) = (&program.backend, &program.fallback);
    let legal = is_name(&backend.kind)
        && is_name(&backend.key_prefix)
        && fallback
            .as_ref()
            .is_none_or(|fallback| backend.is_remote() && is_name(&fallback.key_prefix))
        && !(program.enabled && program.policies.is_empty());
    ensure(legal, Place::Program, Fault::IllegalSettings)
}

/// Trimmed and not blank.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.trim() == name
}

/// Ids of every table fit a `u32`; the walks below count on it.
fn sizes(program: &Program) -> Result<(), VerifyError> {
    let sizes = [
        program.routes.len(),
        program.slices.len(),
        program.slice_sources.len(),
        program.code.len(),
        program.sources.len(),
        program.policies.len(),
        program.templates.len(),
    ];
    ensure(fit(&sizes), Place::Program, Fault::TooLarge)
}

fn fit(sizes: &[usize]) -> bool {
    sizes.iter().all(|size| u32::try_from(*size).is_ok())
}

/// Sources are normalized, distinct, and in the order in which policies first use them.
fn sources(program: &Program) -> Result<(), VerifyError> {
    let mut seen = HashSet::new();
    for (at, source) in (0..).zip(&program.sources) {
        let place = Place::Source(at);
        ensure(is_normal(source), place, Fault::NotNormalized)?;
        ensure(seen.insert(source), place, Fault::NotDistinct)?;
    }
    let mut first_uses = FirstUses::new(program.sources.len());
    for (at, row) in (0..).zip(&program.policies) {
        for id in row_sources(row).into_iter().flatten() {
            let place = Place::Policy(at);
            let known = index(id.0) < program.sources.len();
            ensure(known, place, Fault::OutOfBounds)?;
            ensure(first_uses.see(id.0), place, Fault::SlotsOutOfOrder)?;
        }
    }
    let used = first_uses.count == program.sources.len();
    ensure(used, Place::Program, Fault::SlotsOutOfOrder)
}

fn is_normal(source: &Source) -> bool {
    match source {
        Source::Header(name) | Source::Cookie(name) | Source::Query(name) => {
            is_name(name) && !name.bytes().any(|byte| byte.is_ascii_uppercase())
        }
        Source::BearerToken | Source::ClientIp => true,
    }
}

/// Whether ids of the whole table first occur in the order 0, 1, 2, …
struct FirstUses {
    size: usize,
    count: usize,
}

impl FirstUses {
    const fn new(size: usize) -> Self {
        Self { size, count: 0 }
    }

    /// Whether `id` was seen, or is the next new one.
    fn see(&mut self, id: u32) -> bool {
        let place = index(id);
        if place == self.count {
            self.count += 1;
        }
        place < self.count && place < self.size
    }
}

const fn row_sources(row: &PolicyRow) -> [Option<SourceId>; 3] {
    [row.view.tenant, row.view.token, row.view.client]
}

fn policies(program: &Program) -> Result<(), VerifyError> {
    let mut names = HashSet::new();
    for (at, row) in (0..).zip(&program.policies) {
        let place = Place::Policy(at);
        ensure(is_name(&row.name), place, Fault::NameNotTrimmed)?;
        ensure(names.insert(&row.name), place, Fault::NotDistinct)?;
        let allowlist = &row.view.route_allowlist;
        let named = allowlist.iter().all(|route| is_name(route));
        ensure(named, place, Fault::NameNotTrimmed)?;
        let sorted = allowlist.is_sorted_by(|a, b| a < b);
        ensure(sorted, place, Fault::NotSorted)?;
        selector(program, row, place)?;
        ensure(windows_are_legal(row), place, Fault::IllegalWindows)?;
    }
    Ok(())
}

fn selector(program: &Program, row: &PolicyRow, place: Place) -> Result<(), VerifyError> {
    let mut label = Vec::new();
    if row.view.route {
        label.push(Dimension::Route.as_str());
    }
    let dimensions = [Dimension::Tenant, Dimension::Token, Dimension::Client];
    let ids = row_sources(row);
    for (dimension, id) in dimensions.into_iter().zip(ids) {
        if let Some(id) = id {
            let source = program.source(id);
            let legal = source.is_some_and(|source| source.is_legal_for(dimension));
            ensure(legal, place, Fault::IllegalSelector)?;
            label.push(dimension.as_str());
        }
    }
    let [tenant, token, client] = ids;
    let shared = |a: Option<SourceId>, b| a.is_some() && a == b;
    let is_shared = shared(tenant, token) || shared(tenant, client) || shared(token, client);
    let legal = !label.is_empty() && !is_shared;
    ensure(legal, place, Fault::IllegalSelector)?;
    let labelled = *row.selector_dimensions == *label.join("+");
    ensure(labelled, place, Fault::WrongLabel)
}

fn windows_are_legal(row: &PolicyRow) -> bool {
    let lengths = [row.burst, row.sustained].map(|window| Some(window?.length_ms.get()));
    let in_bounds = lengths.into_iter().flatten().all(|length_ms| {
        length_ms.is_multiple_of(1000) && length_ms / 1000 <= u64::from(MAX_WINDOW_SECS)
    });
    let in_order = match lengths {
        [None, None] => false,
        [Some(burst), Some(sustained)] => burst < sustained,
        [Some(_), None] | [None, Some(_)] => true,
    };
    in_bounds && in_order
}

/// One template for each policy, in their order.
fn templates(program: &Program) -> Result<(), VerifyError> {
    let one_each = program.templates.len() == program.policies.len();
    ensure(one_each, Place::Program, Fault::WrongTemplate)?;
    for ((at, template), row) in (0..).zip(&program.templates).zip(&program.policies) {
        let route = match &*row.view.route_allowlist {
            [route] if row.view.route => Some(route),
            _ => None,
        };
        let reads_back = key::parse(template).is_some_and(|parsed| {
            parsed.policy.is(&row.name)
                && match (parsed.route, route) {
                    (Some(parsed), Some(route)) => parsed.is(route),
                    (None, None) => true,
                    (Some(_), None) | (None, Some(_)) => false,
                }
                && parsed.digests == [None; 3]
        });
        ensure(reads_back, Place::Template(at), Fault::TemplateUnreadable)?;
    }
    Ok(())
}

fn slices(program: &Program) -> Result<(), VerifyError> {
    let (mut code_end, mut sources_end) = (0, 0);
    for (at, slice) in (0..).zip(&program.slices) {
        let place = Place::Slice(at);
        let follows = slice.code_start == code_end && slice.sources_start == sources_end;
        ensure(follows, place, Fault::SlicesNotEndToEnd)?;
        let ends = (
            code_end.checked_add(slice.code_len),
            sources_end.checked_add(slice.sources_len.into()),
        );
        let (Some(code), Some(sources)) = ends else {
            return ensure(false, place, Fault::SlicesNotEndToEnd);
        };
        let inside =
            index(code) <= program.code.len() && index(sources) <= program.slice_sources.len();
        ensure(inside, place, Fault::SlicesNotEndToEnd)?;
        (code_end, sources_end) = (code, sources);
        self::slice(program, SliceId(at), *slice)?;
    }
    let covered =
        index(code_end) == program.code.len() && index(sources_end) == program.slice_sources.len();
    ensure(covered, Place::Program, Fault::SlicesNotEndToEnd)
}

/// The instructions of one slice, and the order of its sources.
fn slice(program: &Program, id: SliceId, slice: Slice) -> Result<(), VerifyError> {
    let place = Place::Slice(id.0);
    let ids = program.sources_of(id);
    let mut seen = HashSet::with_capacity(ids.len());
    for source in ids {
        let known = index(source.0) < program.sources.len();
        ensure(known, place, Fault::OutOfBounds)?;
        ensure(seen.insert(source), place, Fault::NotDistinct)?;
    }
    let mut first_uses = FirstUses::new(ids.len());
    let mut last = None;
    for (at, instruction) in (slice.code_start..).zip(program.instructions(id)) {
        let place = Place::Instruction(at);
        let ascends = last.is_none_or(|last| last < instruction.policy);
        ensure(ascends, place, Fault::PoliciesNotAscending)?;
        last = Some(instruction.policy);
        self::instruction(program, ids, instruction, place)?;
        for slot in instruction.slots {
            if slot != SlotId::NONE {
                let in_order = first_uses.see(slot.0.into());
                ensure(in_order, place, Fault::SlotsOutOfOrder)?;
            }
        }
    }
    ensure(first_uses.count == ids.len(), place, Fault::SlotsOutOfOrder)
}

fn instruction(
    program: &Program,
    ids: &[SourceId],
    instruction: &Instruction,
    place: Place,
) -> Result<(), VerifyError> {
    let Some(row) = program.policy(instruction.policy) else {
        return ensure(false, place, Fault::OutOfBounds);
    };
    let own_template = instruction.template.0 == instruction.policy.0;
    ensure(own_template, place, Fault::WrongTemplate)?;
    let own_route = instruction.route == row.route_operand();
    ensure(own_route, place, Fault::WrongRouteOperand)?;
    for (slot, expected) in instruction.slots.into_iter().zip(row_sources(row)) {
        let found = ids.get(usize::from(slot.0)).copied();
        let own_slot = match expected {
            None => slot == SlotId::NONE,
            Some(_) => slot != SlotId::NONE && found == expected,
        };
        ensure(own_slot, place, Fault::WrongSlot)?;
    }
    ensure(instruction.reserved == 0, place, Fault::ReservedNotZero)
}

fn routes(program: &Program) -> Result<(), VerifyError> {
    let first = program.any_route == SliceId(0) && !program.slices.is_empty();
    ensure(first, Place::Program, Fault::WrongAnyRoute)?;

    let mut every_route = Vec::new();
    let mut listed: BTreeMap<&str, Vec<PolicyId>> = BTreeMap::new();
    for (id, row) in (0..).map(PolicyId).zip(&program.policies) {
        if row.view.route_allowlist.is_empty() {
            every_route.push(id);
        }
        for route in &row.view.route_allowlist {
            listed.entry(route).or_default().push(id);
        }
    }
    let naming_of_slice = naming_of_slices(program, &every_route)?;

    let mut slices = 1;
    ensure(
        program.routes.len() == listed.len(),
        Place::Program,
        Fault::WrongPolicies,
    )?;
    for ((at, (name, slice)), (route, naming)) in (0..).zip(&program.routes).zip(&listed) {
        let place = Place::Route(at);
        ensure(**name == **route, place, Fault::NotSorted)?;
        ensure(
            program.slice_for(Some(name)) == *slice,
            place,
            Fault::RouteNotFound,
        )?;
        let found = naming_of_slice.get(index(slice.0));
        ensure(found == Some(naming), place, Fault::WrongPolicies)?;
        ensure(slice.0 <= slices, place, Fault::SlicesOutOfOrder)?;
        if slice.0 == slices {
            slices += 1;
        }
    }
    let all_used = index(slices) == program.slices.len();
    ensure(all_used, Place::Program, Fault::SlicesOutOfOrder)
}

/// For each slice the policies that name its routes: what it holds beyond the policies for every route, which are in each.
fn naming_of_slices(
    program: &Program,
    every_route: &[PolicyId],
) -> Result<Vec<Vec<PolicyId>>, VerifyError> {
    let mut naming_of_slice = Vec::with_capacity(program.slices.len());
    let mut seen = HashSet::new();
    for slice in (0..).map(SliceId).take(program.slices.len()) {
        let place = Place::Slice(slice.0);
        let (every, naming): (Vec<_>, Vec<_>) = program
            .instructions(slice)
            .iter()
            .map(|instruction| instruction.policy)
            .partition(|id| {
                let row = program.policy(*id);
                row.is_some_and(|row| row.view.route_allowlist.is_empty())
            });
        ensure(every == every_route, place, Fault::WrongPolicies)?;
        let named = (slice == program.any_route) == naming.is_empty();
        ensure(named, place, Fault::WrongPolicies)?;
        ensure(seen.insert(naming.clone()), place, Fault::SlicesEqual)?;
        naming_of_slice.push(naming);
    }
    Ok(naming_of_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The one fault nobody can make in a test: the others are made in programs, beside `lower`.
    #[test]
    fn tables_are_as_large_as_ids_reach() {
        let largest = index(u32::MAX);
        assert!(fit(&[0, largest]));
        assert!(largest.checked_add(1).is_none_or(|size| !fit(&[0, size])));
    }
}

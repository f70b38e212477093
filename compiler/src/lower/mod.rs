//! IR → program. Decides nothing a user could notice.
//!
//! Which policies apply to a route is known here, so each route gets its own slice of the code: the policies that name it and
//! those for every route, merged in file order. Routes with the same policies share a slice, so that the code is as long as
//! the *distinct* slices together, and what a request costs does not depend on policies that do not apply to it.
//!
//! Nothing here is trusted: every program is [verified](mod@crate::program::verify), and read back and compared with the
//! policies it was made from, before anyone gets it.

mod decompile;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::collections::hash_map::{Entry, HashMap};
use std::num::NonZeroU64;

use crate::ir::{Policy, Quota, Routes, Window};
use crate::program::verify::{VerifyError, verify};
use crate::program::{
    Instruction, PolicyId, PolicyRow, PolicyView, Program, RouteIndex, RouteOperand, Slice,
    SliceId, SlotId, SourceId, TemplateId, WindowOperand, canonical, index, key,
};
use crate::terms::{Dimension, Source};

pub use decompile::{DecompileError, decompile};

/// The most instructions of a program: 256 MiB of code. Only a file in which very many routes each have a slice of their own
/// and very many policies apply to every route comes near.
pub const MAX_INSTRUCTIONS: u32 = 1 << 24;

/// The most distinct sources of the policies that apply to one route.
pub const MAX_SLICE_SOURCES: u16 = SlotId::NONE.0;

/// Why there is no program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LowerError {
    /// The policies are legal and their program is too large.
    #[error("the program needs more than {max} {what}")]
    TooLarge {
        /// What there is too much of, in the plural.
        what: &'static str,
        /// How much fits.
        max: u32,
    },
    /// The compiler is at fault: its verifier refuses the program it made.
    #[error("the compiler made a program that its verifier refuses")]
    Refused(#[source] VerifyError),
    /// The compiler is at fault: the program does not read back at all.
    #[error("the compiler made a program that does not read back")]
    Unreadable(#[source] DecompileError),
    /// The compiler is at fault: the program means something else than the policies.
    #[error("the compiler made a program that means something else than the policies")]
    Mistranslated,
}

/// Lowers checked policies, whose lines in the file are `policy_lines`; a policy without one gets line 0.
///
/// # Errors
///
/// The program would be too large; or, a fault of the compiler, it does not verify or does not mean what `quota` says.
pub fn lower(quota: &Quota, policy_lines: &[u32]) -> Result<Program, LowerError> {
    let program = translate(quota, policy_lines, MAX_INSTRUCTIONS)?;
    verify(&program).map_err(LowerError::Refused)?;
    let meaning = decompile(&program).map_err(LowerError::Unreadable)?;
    if meaning == *quota {
        Ok(program)
    } else {
        Err(LowerError::Mistranslated)
    }
}

/// The program, unverified.
fn translate(
    quota: &Quota,
    policy_lines: &[u32],
    max_instructions: u32,
) -> Result<Program, LowerError> {
    fit("policies", quota.policies.len(), u32::MAX)?;
    let mut sources = SourceTable::default();
    let mut policies = Vec::with_capacity(quota.policies.len());
    let mut operands = Vec::with_capacity(quota.policies.len());
    let mut templates = Vec::with_capacity(quota.policies.len());
    for (place, policy) in quota.policies.iter().enumerate() {
        let line = policy_lines.get(place).copied().unwrap_or(0);
        let row = row(policy, line, &mut sources)?;
        operands.push(Operands::of(&row));
        templates.push(template(&row));
        policies.push(row);
    }

    let mut every_route = Vec::new();
    let mut listed: BTreeMap<&str, Vec<PolicyId>> = BTreeMap::new();
    for (id, policy) in (0..).map(PolicyId).zip(&quota.policies) {
        match &policy.routes {
            Routes::Every => every_route.push(id),
            Routes::Listed(routes) => {
                for route in routes {
                    listed.entry(route).or_default().push(id);
                }
            }
        }
    }
    fit("routes", listed.len(), u32::MAX)?;

    // Slices differ in the policies that name their routes only, so those alone tell them apart: hashing them costs as much
    // as the allowlists are long, and never a merged slice.
    let mut interned: HashMap<&[PolicyId], SliceId> = HashMap::new();
    let mut naming_of_slice: Vec<&[PolicyId]> = vec![&[]];
    let mut routes = Vec::with_capacity(listed.len());
    for (route, naming) in &listed {
        let slice = match interned.entry(naming) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let id = SliceId(fit("slices", naming_of_slice.len(), u32::MAX)?);
                naming_of_slice.push(naming);
                *new.insert(id)
            }
        };
        routes.push((Box::from(*route), slice));
    }

    let instructions = naming_of_slice.iter().fold(0, |sum: usize, naming| {
        sum.saturating_add(naming.len())
            .saturating_add(every_route.len())
    });
    fit("instructions", instructions, max_instructions)?;
    let mut code = CodeBuilder::new(&operands, sources.list.len(), instructions);
    for (id, naming) in (0..).map(SliceId).zip(naming_of_slice) {
        code.slice(id, merge(naming, &every_route))?;
    }

    let mut program = Program {
        enabled: quota.enabled,
        enforcement: quota.enforcement,
        failure_policy: quota.failure_policy,
        backend: quota.backend.clone(),
        fallback: quota.fallback.clone(),
        route_index: RouteIndex::of(&routes),
        routes: routes.into(),
        any_route: SliceId(0),
        slices: code.slices.into(),
        slice_sources: code.slice_sources.into(),
        code: code.code.into(),
        sources: sources.list.into(),
        policies: policies.into(),
        templates: templates.into(),
        digest: [0; 32],
    };
    program.digest = canonical::digest(&program);
    Ok(program)
}

/// `Ok` where `count` things of a kind are at most `max`.
fn fit(what: &'static str, count: usize, max: u32) -> Result<u32, LowerError> {
    u32::try_from(count)
        .ok()
        .filter(|count| *count <= max)
        .ok_or(LowerError::TooLarge { what, max })
}

fn row(policy: &Policy, line: u32, sources: &mut SourceTable) -> Result<PolicyRow, LowerError> {
    let [tenant, token, client] =
        [Dimension::Tenant, Dimension::Token, Dimension::Client].map(|dimension| {
            policy
                .selector
                .source(dimension)
                .map(|source| sources.intern(source))
                .transpose()
        });
    Ok(PolicyRow {
        name: policy.name.clone(),
        selector_dimensions: policy.selector.label().into(),
        view: PolicyView {
            route_allowlist: match &policy.routes {
                Routes::Every => Box::default(),
                Routes::Listed(routes) => routes.iter().cloned().collect(),
            },
            route: policy.selector.has_route(),
            tenant: tenant?,
            token: token?,
            client: client?,
        },
        burst: policy.windows.burst().map(operand),
        sustained: policy.windows.sustained().map(operand),
        line,
    })
}

fn operand(window: Window) -> WindowOperand {
    // The product of a length in seconds and 1000 is not zero, and far below the largest u64.
    const MS_PER_SECOND: NonZeroU64 = NonZeroU64::new(1000).unwrap();
    WindowOperand {
        requests: window.requests,
        length_ms: NonZeroU64::from(window.length_secs).saturating_mul(MS_PER_SECOND),
    }
}

/// The known bytes of a policy's composite key.
fn template(row: &PolicyRow) -> Box<[u8]> {
    let mut bytes = Vec::new();
    key::push_policy(&mut bytes, &row.name);
    if let (RouteOperand::InTemplate, [route]) = (row.route_operand(), &*row.view.route_allowlist) {
        key::push_route(&mut bytes, route);
    }
    bytes.into()
}

/// Every distinct source, in the order of first use.
#[derive(Default)]
struct SourceTable {
    list: Vec<Source>,
    ids: HashMap<Source, SourceId>,
}

impl SourceTable {
    fn intern(&mut self, source: &Source) -> Result<SourceId, LowerError> {
        if let Some(id) = self.ids.get(source) {
            return Ok(*id);
        }
        let id = SourceId(fit("sources", self.list.len(), u32::MAX)?);
        self.list.push(source.clone());
        self.ids.insert(source.clone(), id);
        Ok(id)
    }
}

/// What an instruction of a policy holds, whichever slice it stands in.
struct Operands {
    route: RouteOperand,
    sources: [Option<SourceId>; 3],
}

impl Operands {
    fn of(row: &PolicyRow) -> Self {
        Self {
            route: row.route_operand(),
            sources: [row.view.tenant, row.view.token, row.view.client],
        }
    }
}

/// Appends slices to the code. The code fits [`MAX_INSTRUCTIONS`], so its places, and three sources for each instruction,
/// fit a `u32`.
struct CodeBuilder<'a> {
    operands: &'a [Operands],
    code: Vec<Instruction>,
    slices: Vec<Slice>,
    slice_sources: Vec<SourceId>,
    /// Per source, the last slice it was given a slot in, and that slot.
    slot_of: Vec<(Option<SliceId>, SlotId)>,
}

impl<'a> CodeBuilder<'a> {
    fn new(operands: &'a [Operands], sources: usize, instructions: usize) -> Self {
        Self {
            operands,
            code: Vec::with_capacity(instructions),
            slices: Vec::new(),
            slice_sources: Vec::new(),
            slot_of: vec![(None, SlotId::NONE); sources],
        }
    }

    /// Appends the slice `id`, of the policies `ids`, which ascend.
    fn slice(
        &mut self,
        id: SliceId,
        ids: impl Iterator<Item = PolicyId>,
    ) -> Result<(), LowerError> {
        let code_start = self.code.len();
        let sources_start = self.slice_sources.len();
        for policy in ids {
            let Some(operands) = self.operands.get(index(policy.0)) else {
                debug_assert!(false, "{policy:?} is none of the file");
                continue;
            };
            let mut slots = [SlotId::NONE; 3];
            for (slot, source) in slots.iter_mut().zip(operands.sources) {
                if let Some(source) = source {
                    *slot = self.slot(id, source, sources_start)?;
                }
            }
            self.code.push(Instruction {
                policy,
                template: TemplateId(policy.0),
                slots,
                route: operands.route,
                reserved: 0,
            });
        }
        self.slices.push(Slice {
            code_start: fit("instructions", code_start, u32::MAX)?,
            code_len: fit("instructions", self.code.len() - code_start, u32::MAX)?,
            sources_start: fit("slots", sources_start, u32::MAX)?,
            sources_len: slots_that_fit(self.slice_sources.len() - sources_start)?,
        });
        Ok(())
    }

    /// The slot of `source` in the slice `id`, whose sources begin at `sources_start`.
    fn slot(
        &mut self,
        id: SliceId,
        source: SourceId,
        sources_start: usize,
    ) -> Result<SlotId, LowerError> {
        let next = SlotId(slots_that_fit(self.slice_sources.len() - sources_start)?);
        let Some((slice, slot)) = self.slot_of.get_mut(index(source.0)) else {
            debug_assert!(false, "{source:?} is none of the file");
            return Ok(SlotId::NONE);
        };
        if *slice != Some(id) {
            (*slice, *slot) = (Some(id), next);
            self.slice_sources.push(source);
        }
        Ok(*slot)
    }
}

/// `count` sources of a slice; as many as a `u16` counts have slots below [`SlotId::NONE`].
fn slots_that_fit(count: usize) -> Result<u16, LowerError> {
    u16::try_from(count).map_err(|_| LowerError::TooLarge {
        what: "distinct sources for one route",
        max: MAX_SLICE_SOURCES.into(),
    })
}

/// Two ascending lists with nothing in common, as one.
fn merge<'a>(left: &'a [PolicyId], right: &'a [PolicyId]) -> impl Iterator<Item = PolicyId> + 'a {
    let (mut left, mut right) = (
        left.iter().copied().peekable(),
        right.iter().copied().peekable(),
    );
    std::iter::from_fn(move || match (left.peek(), right.peek()) {
        (Some(a), Some(b)) if a < b => left.next(),
        (Some(_), None) => left.next(),
        (_, Some(_)) => right.next(),
        (None, None) => None,
    })
}

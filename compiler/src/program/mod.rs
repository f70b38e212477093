//! The flat decision program: one array of fixed-size instructions and the tables their operands point into.
//!
//! A request's route selects one slice of instructions, contiguous and in file order; nothing outside it is touched. The
//! program is canonical: equal policies give equal bytes on every machine, whatever the file's layout, and its digest names
//! them.
//!
//! | module | part |
//! | --- | --- |
//! | [`key`] | the bytes of composite keys, in templates and at run time |
//! | [`verify`](mod@verify) | everything an executor may rely on |
//! | [`print`](mod@print) | the text form |
//!
//! The canonical bytes, and so the digest, leave out what changes no decision: the places of policies in the file, and
//! secrets of the backend's options.

pub(crate) mod canonical;
pub mod key;
pub mod print;
pub mod verify;

use std::fmt;
use std::hash::BuildHasher as _;
use std::num::NonZeroU64;
use std::ops::Range;

use hashbrown::HashTable;

use crate::settings::{BackendSettings, FallbackSettings};
use crate::terms::{Enforcement, FailurePolicy, Source};

/// A policy, by its place in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyId(pub u32);

/// A distinct source of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u32);

/// A slice of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceId(pub u32);

/// A place in a request's memo of extracted values: an index into the sources of its slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u16);

impl SlotId {
    /// The operand of a dimension that is not selected.
    pub const NONE: Self = Self(u16::MAX);
}

/// A key template: the bytes of a composite key that are known at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TemplateId(pub u32);

/// How the route enters the composite key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RouteOperand {
    /// The selector has no route dimension.
    Absent = 0,
    /// The route is known at compile time and stands in the key template.
    InTemplate = 1,
    /// The request's route is appended to the key template; a request without one fails as missing.
    FromRequest = 2,
}

/// One check: evaluate one policy. 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Instruction {
    /// The policy to evaluate.
    pub policy: PolicyId,
    /// The known bytes of its composite key.
    pub template: TemplateId,
    /// Slots of tenant, token and client, in this order; [`SlotId::NONE`] where not selected.
    pub slots: [SlotId; 3],
    /// How the route enters the key.
    pub route: RouteOperand,
    /// Always zero.
    pub reserved: u8,
}

/// The instructions of one or several routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    /// First instruction in the code, see [`Program::instructions`].
    pub code_start: u32,
    /// Number of instructions.
    pub code_len: u32,
    /// First of its sources in the sources of all slices, see [`Program::sources_of`]; a [`SlotId`] counts from here.
    pub sources_start: u32,
    /// Number of its distinct sources.
    pub sources_len: u16,
}

/// A window as executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowOperand {
    /// The limit.
    pub requests: NonZeroU64,
    /// The length in milliseconds.
    pub length_ms: NonZeroU64,
}

/// What evaluations of a policy share, wherever they stand in the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRow {
    /// Its name.
    pub name: Box<str>,
    /// The metric label of its selector (contract §9).
    pub selector_dimensions: Box<str>,
    /// The normalized selector and allowlist, for the admin view.
    pub view: PolicyView,
    /// The burst window.
    pub burst: Option<WindowOperand>,
    /// The sustained window.
    pub sustained: Option<WindowOperand>,
    /// Line in the file, from 1; 0 where it was not told. Not part of the digest.
    pub line: u32,
}

impl PolicyRow {
    /// How the route enters its composite key. Only a policy that names one route knows which it is: instructions of the
    /// others would differ between their routes, which could then not share a slice.
    pub(crate) fn route_operand(&self) -> RouteOperand {
        match (self.view.route, &*self.view.route_allowlist) {
            (false, _) => RouteOperand::Absent,
            (true, [_]) => RouteOperand::InTemplate,
            (true, _) => RouteOperand::FromRequest,
        }
    }
}

/// What the admin view shows of a policy beyond its windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyView {
    /// Sorted; empty: every route.
    pub route_allowlist: Box<[Box<str>]>,
    /// Whether the route takes part.
    pub route: bool,
    /// The tenant's source.
    pub tenant: Option<SourceId>,
    /// The token's source.
    pub token: Option<SourceId>,
    /// The client's source.
    pub client: Option<SourceId>,
}

/// A flat decision program. Built by [`lower`](crate::lower::lower) and verified there; an executor may rely on everything
/// [`verify`](mod@verify) lists.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) enabled: bool,
    pub(crate) enforcement: Enforcement,
    pub(crate) failure_policy: FailurePolicy,
    pub(crate) backend: BackendSettings,
    pub(crate) fallback: Option<FallbackSettings>,
    /// Sorted by name; each with its slice.
    pub(crate) routes: Box<[(Box<str>, SliceId)]>,
    /// Finds a route in `routes` by name.
    pub(crate) route_index: RouteIndex,
    /// The slice of every other request, one without a route included.
    pub(crate) any_route: SliceId,
    pub(crate) slices: Box<[Slice]>,
    pub(crate) slice_sources: Box<[SourceId]>,
    pub(crate) code: Box<[Instruction]>,
    pub(crate) sources: Box<[Source]>,
    pub(crate) policies: Box<[PolicyRow]>,
    pub(crate) templates: Box<[Box<[u8]>]>,
    pub(crate) digest: [u8; 32],
}

impl Program {
    /// `false`: nothing is evaluated and nothing counted, whatever the slices hold.
    #[must_use]
    pub const fn enabled(&self) -> bool {
        self.enabled
    }

    /// Whether decisions reject.
    #[must_use]
    pub const fn enforcement(&self) -> Enforcement {
        self.enforcement
    }

    /// What happens when no counter could be asked.
    #[must_use]
    pub const fn failure_policy(&self) -> FailurePolicy {
        self.failure_policy
    }

    /// Where counters live.
    #[must_use]
    pub const fn backend(&self) -> &BackendSettings {
        &self.backend
    }

    /// Tried when the backend times out or cannot be reached.
    #[must_use]
    pub const fn fallback(&self) -> Option<&FallbackSettings> {
        self.fallback.as_ref()
    }

    /// Every policy, in file order: the row at `index` is that of [`PolicyId`]`(index)`.
    #[must_use]
    pub const fn policies(&self) -> &[PolicyRow] {
        &self.policies
    }

    /// The row of a policy; `None` for an id that is not of this program.
    #[must_use]
    pub fn policy(&self, id: PolicyId) -> Option<&PolicyRow> {
        self.policies.get(index(id.0))
    }

    /// Every distinct source, in the order of its first use.
    #[must_use]
    pub const fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// A source; `None` for an id that is not of this program.
    #[must_use]
    pub fn source(&self, id: SourceId) -> Option<&Source> {
        self.sources.get(index(id.0))
    }

    /// The known bytes of a composite key; empty for an id that is not of this program.
    #[must_use]
    pub fn template(&self, id: TemplateId) -> &[u8] {
        self.templates
            .get(index(id.0))
            .map_or(&[], |template| template)
    }

    /// The slice of a request with the trimmed route `route`: one hash lookup, whatever else the program holds.
    #[must_use]
    pub fn slice_for(&self, route: Option<&str>) -> SliceId {
        route
            .and_then(|route| self.route_index.find(&self.routes, route))
            .unwrap_or(self.any_route)
    }

    /// The instructions of a slice, in file order; empty for an id that is not of this program.
    #[must_use]
    pub fn instructions(&self, id: SliceId) -> &[Instruction] {
        self.slices
            .get(index(id.0))
            .and_then(|slice| self.code.get(range(slice.code_start, slice.code_len)))
            .unwrap_or(&[])
    }

    /// The sources of a slice, each once, in the order of first use: a [`SlotId`] is an index into them. Empty for an id that
    /// is not of this program.
    #[must_use]
    pub fn sources_of(&self, id: SliceId) -> &[SourceId] {
        self.slices
            .get(index(id.0))
            .and_then(|slice| {
                self.slice_sources
                    .get(range(slice.sources_start, slice.sources_len.into()))
            })
            .unwrap_or(&[])
    }

    /// The routes that any policy names, sorted, each with its slice.
    pub fn routes(&self) -> impl ExactSizeIterator<Item = (&str, SliceId)> {
        self.routes.iter().map(|(name, slice)| (&**name, *slice))
    }

    /// SHA-256 of the canonical bytes: equal for equal policies, on every machine. The file's layout, comments, allowlist
    /// order and secrets do not enter.
    #[must_use]
    pub const fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// [`digest`](Self::digest) in lower-case hexadecimal.
    #[must_use]
    pub fn digest_hex(&self) -> String {
        hex(&self.digest)
    }
}

/// Finds a route by name: places in the sorted route table, by hash of the name.
///
/// The hash is not keyed: the names stored are those of the policy file, so a request cannot make them collide.
#[derive(Clone)]
pub(crate) struct RouteIndex(HashTable<u32>);

impl RouteIndex {
    /// An index of `routes`, whose number fits a `u32`.
    pub(crate) fn of(routes: &[(Box<str>, SliceId)]) -> Self {
        let hash_at = |place: &u32| {
            routes
                .get(index(*place))
                .map_or(0, |(name, _)| Self::hash(name))
        };
        let mut places = HashTable::with_capacity(routes.len());
        for (place, (name, _)) in (0..).zip(routes) {
            places.insert_unique(Self::hash(name), place, hash_at);
        }
        Self(places)
    }

    pub(crate) fn find(&self, routes: &[(Box<str>, SliceId)], name: &str) -> Option<SliceId> {
        let at = |place: &u32| routes.get(index(*place));
        let is_it = |place: &u32| at(place).is_some_and(|(other, _)| **other == *name);
        let place = self.0.find(Self::hash(name), is_it)?;
        at(place).map(|(_, slice)| *slice)
    }

    fn hash(name: &str) -> u64 {
        foldhash::fast::FixedState::with_seed(0).hash_one(name)
    }
}

impl fmt::Debug for RouteIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteIndex")
            .field("len", &self.0.len())
            .finish_non_exhaustive()
    }
}

/// The place an id stands for. An id beyond the address space of a small machine names no place there is.
pub(crate) fn index(id: u32) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}

fn range(start: u32, len: u32) -> Range<usize> {
    let start = index(start);
    start..start.saturating_add(index(len))
}

/// `bytes` in lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looking a route up compares its name with about one other, however many there are: counted, never timed.
    #[test]
    fn a_route_is_found_in_one_probe() {
        for count in [10, 1_000, 100_000_u32] {
            let routes: Vec<_> = (0..count)
                .map(|number| (Box::from(format!("route-{number}")), SliceId(number)))
                .collect();
            let index_of_routes = RouteIndex::of(&routes);
            let mut compared = 0_u32;
            for (name, slice) in &routes {
                let found = index_of_routes.0.find(RouteIndex::hash(name), |place| {
                    compared += 1;
                    routes[index(*place)].0 == *name
                });
                assert_eq!(found, Some(&slice.0));
                assert_eq!(index_of_routes.find(&routes, name), Some(*slice));
            }
            // Two names of which 7 bits of the hash agree are compared in vain, now and then.
            assert!(compared <= count + count / 10, "{compared} for {count}");
        }
    }

    #[test]
    fn a_route_that_nobody_names_is_not_found() {
        let routes = [(Box::from("a"), SliceId(1))];
        let index_of_routes = RouteIndex::of(&routes);
        assert_eq!(index_of_routes.find(&routes, "b"), None);
        assert_eq!(RouteIndex::of(&[]).find(&[], "a"), None);
    }
}

//! The flat decision program: one array of fixed-size instructions and the tables their operands point into.
//!
//! A request's route selects one slice of instructions, contiguous and in file order; nothing outside it is touched. The
//! program is canonical: equal policies give equal bytes on every machine, whatever the file's layout, and its digest names
//! them.

pub mod print;
pub mod verify;

use std::num::NonZeroU64;

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
    /// First instruction in [`Program::code`].
    pub code_start: u32,
    /// Number of instructions.
    pub code_len: u32,
    /// First of its sources in [`Program::slice_sources`]; a [`SlotId`] counts from here.
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
    /// Line in the file, from 1; not part of the digest.
    pub line: u32,
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
/// [`verify`](verify::verify) lists.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) enabled: bool,
    pub(crate) enforcement: Enforcement,
    pub(crate) failure_policy: FailurePolicy,
    pub(crate) backend: BackendSettings,
    pub(crate) fallback: Option<FallbackSettings>,
    /// Sorted by name; each with its slice.
    pub(crate) routes: Box<[(Box<str>, SliceId)]>,
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

//! The checked IR: what the policies mean. No spans, nothing left to parse, no illegal policy can be expressed.
//!
//! What holds of every [`Quota`]: policy names are unique and not blank; a selector has at least one dimension, each source
//! is legal for its dimension and none fills two; a burst window is strictly shorter than the sustained one; limits and
//! lengths are positive; a fallback stands only beside a remote backend (contract §2).

use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroU64};

use crate::settings::{BackendSettings, FallbackSettings};
use crate::terms::{Dimension, Enforcement, FailurePolicy, Source, WindowKind};

pub use crate::terms::MAX_WINDOW_SECS;

/// One policy file.
#[derive(Clone, Debug, PartialEq)]
pub struct Quota {
    /// `false`: nothing is evaluated and nothing counted.
    pub enabled: bool,
    /// Whether decisions reject.
    pub enforcement: Enforcement,
    /// What happens when no counter could be asked.
    pub failure_policy: FailurePolicy,
    /// Where counters live.
    pub backend: BackendSettings,
    /// Tried when the backend times out or cannot be reached.
    pub fallback: Option<FallbackSettings>,
    /// In file order.
    pub policies: Vec<Policy>,
}

/// One named contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Trimmed, not blank, unique in the file, case-sensitive.
    pub name: Box<str>,
    /// Where it applies.
    pub routes: Routes,
    /// Whose requests share a counter.
    pub selector: Selector,
    /// How many requests pass.
    pub windows: Windows,
}

/// The routes a policy applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Routes {
    /// Every request, one without a route included.
    Every,
    /// Requests with one of these routes; never empty, entries trimmed and not blank.
    Listed(BTreeSet<Box<str>>),
}

impl Routes {
    /// The routes of an allowlist; an empty one means every route.
    #[must_use]
    pub fn from_allowlist(entries: BTreeSet<Box<str>>) -> Self {
        if entries.is_empty() {
            Self::Every
        } else {
            Self::Listed(entries)
        }
    }
}

/// The composite identity of a policy: one counter for each distinct tuple of values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    route: bool,
    tenant: Option<Source>,
    token: Option<Source>,
    client: Option<Source>,
}

/// Why a selector cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// No dimension is selected.
    #[error("a selector needs at least one dimension")]
    Empty,
    /// A source stands in a dimension it is not legal for.
    #[error("the source of {} is not legal there", .0.as_str())]
    Illegal(Dimension),
    /// One source fills two dimensions.
    #[error("{} and {} have one source", .0.as_str(), .1.as_str())]
    Shared(Dimension, Dimension),
}

impl Selector {
    /// A selector of the given dimensions.
    ///
    /// # Errors
    ///
    /// No dimension at all, a source illegal for its dimension, one source in two dimensions (contract §2).
    pub fn new(
        route: bool,
        tenant: Option<Source>,
        token: Option<Source>,
        client: Option<Source>,
    ) -> Result<Self, SelectorError> {
        let selector = Self {
            route,
            tenant,
            token,
            client,
        };
        let sources: Vec<_> = selector.sources().collect();
        if !route && sources.is_empty() {
            return Err(SelectorError::Empty);
        }
        for (index, (dimension, source)) in sources.iter().enumerate() {
            if !source.is_legal_for(*dimension) {
                return Err(SelectorError::Illegal(*dimension));
            }
            if let Some((other, _)) = sources
                .iter()
                .take(index)
                .find(|(_, earlier)| earlier == source)
            {
                return Err(SelectorError::Shared(*other, *dimension));
            }
        }
        Ok(selector)
    }

    /// Whether the route takes part.
    #[must_use]
    pub const fn has_route(&self) -> bool {
        self.route
    }

    /// The source of `dimension`; `None` where it is not selected, and always for the route.
    #[must_use]
    pub const fn source(&self, dimension: Dimension) -> Option<&Source> {
        match dimension {
            Dimension::Route => None,
            Dimension::Tenant => self.tenant.as_ref(),
            Dimension::Token => self.token.as_ref(),
            Dimension::Client => self.client.as_ref(),
        }
    }

    /// The selected dimensions with a source, in the order of the composite key.
    pub fn sources(&self) -> impl Iterator<Item = (Dimension, &Source)> {
        Dimension::ALL
            .into_iter()
            .filter_map(|dimension| Some((dimension, self.source(dimension)?)))
    }

    /// The selected dimensions, the route included, in the order of the composite key.
    pub fn dimensions(&self) -> impl Iterator<Item = Dimension> {
        Dimension::ALL
            .into_iter()
            .filter(|dimension| match dimension {
                Dimension::Route => self.route,
                Dimension::Tenant | Dimension::Token | Dimension::Client => {
                    self.source(*dimension).is_some()
                }
            })
    }

    /// The metric label: the selected dimensions joined with `+` (contract §9).
    #[must_use]
    pub fn label(&self) -> String {
        self.dimensions()
            .map(Dimension::as_str)
            .collect::<Vec<_>>()
            .join("+")
    }
}

/// A fixed window: at most `requests` in each span of `length_secs`, counted from the Unix epoch (contract §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// The limit.
    pub requests: NonZeroU64,
    /// The length in seconds, at most [`MAX_WINDOW_SECS`].
    pub length_secs: NonZeroU32,
}

impl Window {
    /// The length in milliseconds.
    #[must_use]
    pub const fn length_ms(self) -> u64 {
        self.length_secs.get() as u64 * 1000
    }
}

/// The windows of a policy: at least one, and a burst window strictly shorter than the sustained one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Windows {
    burst: Option<Window>,
    sustained: Option<Window>,
}

/// Why windows do not go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowsError {
    /// Neither window is given.
    #[error("a policy needs a burst or a sustained window")]
    Empty,
    /// The burst window is as long as the sustained one, or longer.
    #[error("the burst window is not shorter than the sustained one")]
    BurstNotShorter,
    /// A window is longer than 100 years.
    #[error("a window is longer than 100 years")]
    TooLong,
}

impl Windows {
    /// The windows of a policy.
    ///
    /// # Errors
    ///
    /// Neither is given; the burst window is not strictly shorter; one is longer than [`MAX_WINDOW_SECS`] (contract §2).
    pub fn new(burst: Option<Window>, sustained: Option<Window>) -> Result<Self, WindowsError> {
        let windows = Self { burst, sustained };
        if windows.iter().next().is_none() {
            return Err(WindowsError::Empty);
        }
        if windows
            .iter()
            .any(|(_, window)| window.length_secs.get() > MAX_WINDOW_SECS)
        {
            return Err(WindowsError::TooLong);
        }
        if let (Some(burst), Some(sustained)) = (burst, sustained)
            && burst.length_secs >= sustained.length_secs
        {
            return Err(WindowsError::BurstNotShorter);
        }
        Ok(windows)
    }

    /// The burst window.
    #[must_use]
    pub const fn burst(&self) -> Option<Window> {
        self.burst
    }

    /// The sustained window.
    #[must_use]
    pub const fn sustained(&self) -> Option<Window> {
        self.sustained
    }

    /// The windows there are, burst first.
    pub fn iter(&self) -> impl Iterator<Item = (WindowKind, Window)> {
        let burst = self.burst.map(|window| (WindowKind::Burst, window));
        let sustained = self.sustained.map(|window| (WindowKind::Sustained, window));
        burst.into_iter().chain(sustained)
    }
}

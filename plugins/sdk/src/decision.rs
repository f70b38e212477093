//! What a backend is asked and what it answers.
#![expect(
    unsafe_code,
    reason = "windows of the host are looked at as a backend's"
)]

use std::slice;

use quota_plugin_abi::{
    QUOTA_ALLOWED, QUOTA_CLASS_ERROR, QUOTA_CLASS_NONE, QUOTA_CLASS_TIMEOUT,
    QUOTA_CLASS_UNAVAILABLE, QUOTA_DENIED, QUOTA_ERROR, QUOTA_RESULT_LOCAL, QUOTA_TIMEOUT,
    QUOTA_UNAVAILABLE, QUOTA_WINDOW_BURST, QUOTA_WINDOW_SUSTAINED, quota_result, quota_window,
};

/// Which of the two windows of a policy (contract §10: there are no others).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WindowKind {
    /// The short window.
    Burst,
    /// The long window.
    Sustained,
}

impl WindowKind {
    const fn to_abi(self) -> u32 {
        match self {
            Self::Burst => QUOTA_WINDOW_BURST,
            Self::Sustained => QUOTA_WINDOW_SUSTAINED,
        }
    }
}

/// One fixed window of a counter check, computed by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Window(quota_window);

impl Window {
    /// The window of `kind` and `length_ms` that starts at `start_ms` and admits `limit` requests; times are Unix
    /// milliseconds.
    #[must_use]
    pub const fn new(kind: WindowKind, limit: u64, length_ms: u64, start_ms: u64) -> Self {
        Self(quota_window {
            kind: kind.to_abi(),
            flags: 0,
            limit,
            length_ms,
            start_ms,
            reset_ms: start_ms.saturating_add(length_ms),
        })
    }

    /// Burst or sustained.
    #[inline]
    #[must_use]
    pub const fn kind(&self) -> WindowKind {
        // INVARIANT: one of the two; `new` writes no other, `are_windows` lets no other through.
        match self.0.kind {
            QUOTA_WINDOW_BURST => WindowKind::Burst,
            _ => WindowKind::Sustained,
        }
    }

    /// Requests the window admits; not part of the counter's identity.
    #[inline]
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Length in milliseconds, at least 1; part of the counter's identity.
    #[inline]
    #[must_use]
    pub const fn length_ms(&self) -> u64 {
        self.0.length_ms
    }

    /// First millisecond of the window, Unix time.
    #[inline]
    #[must_use]
    pub const fn start_ms(&self) -> u64 {
        self.0.start_ms
    }

    /// First millisecond after the window, Unix time.
    #[inline]
    #[must_use]
    pub const fn reset_ms(&self) -> u64 {
        self.0.reset_ms
    }
}

/// Whether these are the windows of an item: one, or a burst and then a sustained one, of a length and with a limit
/// that can be counted.
#[inline]
pub(crate) fn are_windows(windows: &[quota_window], max_limit: u64) -> bool {
    let kinds = match windows {
        [one] => matches!(one.kind, QUOTA_WINDOW_BURST | QUOTA_WINDOW_SUSTAINED),
        [first, second] => {
            first.kind == QUOTA_WINDOW_BURST && second.kind == QUOTA_WINDOW_SUSTAINED
        }
        _ => false,
    };
    kinds
        && windows
            .iter()
            .all(|window| window.length_ms >= 1 && window.limit <= max_limit)
}

/// These windows as a backend sees them; `None` if they are not [those of an item](are_windows).
#[inline]
pub(crate) fn windows_from_abi(windows: &[quota_window], max_limit: u64) -> Option<&[Window]> {
    if !are_windows(windows, max_limit) {
        return None;
    }
    let (data, len) = (windows.as_ptr().cast::<Window>(), windows.len());
    // SAFETY: Window is repr(transparent) over quota_window, so this is the same slice; `are_windows` above established what a
    // Window promises.
    Some(unsafe { slice::from_raw_parts(data, len) })
}

/// One counter check: has this key room left in these windows?
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) key_hash: u64,
    pub(crate) windows: &'a [Window],
}

impl<'a> Item<'a> {
    /// The composite key, without the key prefix: any bytes, at most [`Backend::MAX_KEY_LEN`](crate::Backend::MAX_KEY_LEN).
    #[inline]
    #[must_use]
    pub const fn key(&self) -> &'a [u8] {
        self.key
    }

    /// Hash of the key, keyed per process: for hash tables. Equal hashes do not mean equal keys.
    #[inline]
    #[must_use]
    pub const fn key_hash(&self) -> u64 {
        self.key_hash
    }

    /// One window, or a burst and then a sustained one.
    #[inline]
    #[must_use]
    pub const fn windows(&self) -> &'a [Window] {
        self.windows
    }
}

/// Why an item could not be decided (contract §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// Time ran out; whether the item was charged is unknown.
    Timeout,
    /// The store cannot be reached, refuses for now, or is full.
    Unavailable,
    /// Anything else that went wrong; never answered by a local fallback.
    Error,
}

impl Failure {
    pub(crate) const fn code(self) -> i32 {
        match self {
            Self::Timeout => QUOTA_TIMEOUT,
            Self::Unavailable => QUOTA_UNAVAILABLE,
            Self::Error => QUOTA_ERROR,
        }
    }

    pub(crate) const fn class(self) -> u32 {
        match self {
            Self::Timeout => QUOTA_CLASS_TIMEOUT,
            Self::Unavailable => QUOTA_CLASS_UNAVAILABLE,
            Self::Error => QUOTA_CLASS_ERROR,
        }
    }
}

/// The answer to one item. `used` holds the count of each window after the decision, in the order of the windows; zero
/// for a window the item does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Every window had room, and each was charged 1.
    Allowed {
        /// Counts after the decision.
        used: [u64; 2],
    },
    /// A window was exhausted; nothing was charged.
    Denied {
        /// Bit `i` for every exhausted window `i`, all of them.
        exhausted: u32,
        /// Counts, unchanged.
        used: [u64; 2],
        /// A denial already known, repeated without asking the store.
        local: bool,
    },
    /// It could not be decided. Explain it with [`Host::report_error`](crate::Host::report_error).
    Failed(Failure),
}

impl Decision {
    #[inline]
    pub(crate) const fn to_abi(self) -> quota_result {
        match self {
            Self::Allowed { used } => quota_result {
                code: QUOTA_ALLOWED,
                exhausted: 0,
                used,
                error_class: QUOTA_CLASS_NONE,
                flags: 0,
            },
            Self::Denied {
                exhausted,
                used,
                local,
            } => quota_result {
                code: QUOTA_DENIED,
                exhausted,
                used,
                error_class: QUOTA_CLASS_NONE,
                flags: if local { QUOTA_RESULT_LOCAL } else { 0 },
            },
            Self::Failed(failure) => quota_result {
                code: failure.code(),
                exhausted: 0,
                used: [0; 2],
                error_class: failure.class(),
                flags: 0,
            },
        }
    }
}

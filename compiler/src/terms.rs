//! The words of the policy file and their spellings. Each vocabulary has one spelling table, `as_str`.

use std::fmt;

/// The longest window, in seconds: 100 years (contract §2).
pub const MAX_WINDOW_SECS: u32 = 3_153_600_000;

/// What a selector may be made of, in the order of the composite key (contract §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dimension {
    /// The route the proxy selected; stays readable.
    Route,
    /// The tenant; hashed before it leaves the engine.
    Tenant,
    /// The token; hashed before it leaves the engine.
    Token,
    /// The client; hashed before it leaves the engine.
    Client,
}

impl Dimension {
    /// Every dimension, in the order of the composite key.
    pub const ALL: [Self; 4] = [Self::Route, Self::Tenant, Self::Token, Self::Client];

    /// The word of the policy file and of metric labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Route => "route",
            Self::Tenant => "tenant",
            Self::Token => "token",
            Self::Client => "client",
        }
    }
}

/// Which of the two windows of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WindowKind {
    /// The shorter window, for spikes.
    Burst,
    /// The longer window, for fairness or a contract.
    Sustained,
}

impl WindowKind {
    /// The word of the policy file.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Burst => "burst",
            Self::Sustained => "sustained",
        }
    }
}

/// Whether decisions reject requests or are only recorded (contract §8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Enforcement {
    /// Decisions apply.
    #[default]
    Enforce,
    /// Decisions are counted and recorded; nothing is rejected.
    Shadow,
}

impl Enforcement {
    /// Every word, in the order help texts list them.
    pub const ALL: [Self; 2] = [Self::Enforce, Self::Shadow];

    /// The word of the policy file.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
        }
    }
}

/// What happens to a request when no counter could be asked (contract §7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FailurePolicy {
    /// Admit the request, record `failed_open`, go on with later policies.
    FailOpen,
    /// Reject the request with 503.
    #[default]
    FailClosed,
}

impl FailurePolicy {
    /// Every word, in the order help texts list them.
    pub const ALL: [Self; 2] = [Self::FailOpen, Self::FailClosed];

    /// The word of the policy file.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FailOpen => "fail_open",
            Self::FailClosed => "fail_closed",
        }
    }
}

/// Where a dimension's value comes from, normalized (contract §2): trimmed, ASCII lower case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// A request header, by lower-case name (an RFC 9110 token).
    Header(Box<str>),
    /// A cookie, by lower-case name (an RFC 6265 token).
    Cookie(Box<str>),
    /// A parameter of the request's query string, by name; ASCII case does not matter.
    Query(Box<str>),
    /// The token of an `Authorization: Bearer` header.
    BearerToken,
    /// The client address; spelled `client_ip` or `peer_ip`.
    ClientIp,
}

impl Source {
    /// Whether the matrix of contract §2 lets this source fill `dimension`. The route dimension takes no source.
    #[must_use]
    pub const fn is_legal_for(&self, dimension: Dimension) -> bool {
        match self {
            Self::Header(_) | Self::Cookie(_) | Self::Query(_) => {
                !matches!(dimension, Dimension::Route)
            }
            Self::BearerToken => matches!(dimension, Dimension::Tenant | Dimension::Token),
            Self::ClientIp => matches!(dimension, Dimension::Client),
        }
    }
}

impl fmt::Display for Source {
    /// The normalized spelling, as the admin view and `quotac print` show it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
            Self::BearerToken => f.write_str("bearer_token"),
            Self::ClientIp => f.write_str("client_ip"),
        }
    }
}

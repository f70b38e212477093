//! Policy test cases: requests at given times, and what the policies are expected to say of them.
//!
//! | module | part |
//! | --- | --- |
//! | [`read`](mod@read) | YAML → cases; every fault with its place |
//! | [`run`](mod@run) | cases on an executor, which is whatever decides requests by a policy file |
//! | [`engine`] | the executor of `quotac test`: the real engine on a virtual clock |
//! | [`report`] | what failed, expected and actual side by side |

pub mod engine;
pub mod read;
pub mod report;
pub mod run;

use std::path::PathBuf;

use quota_compiler::span::PolicyText;
use quota_runtime::outcome::{BackendFailure, Decision, Reason};
use quota_runtime::request::ClientAddress;

/// A file of cases.
#[derive(Clone, Debug)]
pub struct CaseFile {
    /// Its text, for reports.
    pub text: PolicyText,
    /// In file order.
    pub cases: Vec<Case>,
}

/// One case: a fresh start on some policies, and steps in order.
#[derive(Clone, Debug)]
pub struct Case {
    /// What it shows.
    pub name: String,
    /// Line of the file it begins at.
    pub line: u32,
    /// The policies it runs on.
    pub policies: CasePolicies,
    /// Unix milliseconds its steps count from.
    pub start_unix_ms: u64,
    /// In order.
    pub steps: Vec<Step>,
}

/// The policies of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CasePolicies {
    /// A file of their own, relative to the folder of the case file unless absolute.
    File(PathBuf),
    /// Inline: the case file with everything but the quota object blanked, so that places are those of the file.
    Inline(String),
}

/// One step: a request, perhaps several times, and what is expected of each.
#[derive(Clone, Debug)]
pub struct Step {
    /// Line of the file it begins at.
    pub line: u32,
    /// Milliseconds after the start; may be less than the step before's, and less than 0.
    pub at_ms: i64,
    /// How often the request is made, at least once.
    pub repeat: u32,
    /// The request.
    pub request: CaseRequest,
    /// What the primary backend does instead of counting.
    pub fault: Option<BackendFailure>,
    /// What is expected.
    pub expect: Expect,
}

/// A request.
#[derive(Clone, Debug)]
pub struct CaseRequest {
    /// As the proxy chose it.
    pub route: Option<String>,
    /// The client.
    pub client: ClientAddress,
    /// Path and query.
    pub uri: String,
    /// In order, repetition kept.
    pub headers: Vec<(String, Vec<u8>)>,
}

impl CaseRequest {
    /// What follows the first `?` of the URI, up to a fragment; empty without one.
    #[must_use]
    pub fn query(&self) -> &[u8] {
        let uri = self.uri.split('#').next().unwrap_or_default();
        uri.split_once('?')
            .map_or("", |(_, query)| query)
            .as_bytes()
    }
}

/// What is expected of a step; `None`: not checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expect {
    /// The status; 200 is admitted.
    pub status: Option<u16>,
    /// Seconds of `Retry-After`; the inner `None`: there must be none.
    pub retry_after: Option<Option<u32>>,
    /// Every evaluated policy, in order.
    pub outcomes: Option<Vec<ExpectedOutcome>>,
}

/// What is expected of one evaluated policy; `None`: not checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedOutcome {
    /// The name of the policy.
    pub policy: String,
    /// Its decision.
    pub decision: Option<Decision>,
    /// Its reason.
    pub reason: Option<Reason>,
    /// Whose counters it was decided by, as metrics show it.
    pub backend_mode: Option<String>,
}

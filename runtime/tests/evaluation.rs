//! What an evaluation costs: no allocation, and nothing of a policy that does not apply.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test ends where something is not as expected"
)]

use std::sync::Mutex;

use quota_runtime::clock::UnixMillis;
use quota_runtime::compiler::backend_kind::KnownKinds;
use quota_runtime::compiler::program::Program;
use quota_runtime::compiler::{Limits, compile};
use quota_runtime::engine::{Answer, Evaluation, Flow, Prepared};
use quota_runtime::outcome::{BackendFailure, BackendMode, Decision, Outcome, Reason};
use quota_runtime::request::{ClientAddress, HeaderLines, Request};

fn program(text: &str) -> Program {
    let limits = Limits {
        max_bytes: 1 << 30,
        max_events: 1 << 30,
    };
    let compiled = compile("policies.yaml", text.as_bytes(), limits, &KnownKinds);
    compiled
        .program
        .unwrap_or_else(|| panic!("{:?}", compiled.checked.diagnostics))
}

/// What an evaluation read.
struct Cost {
    instructions: usize,
    sources: usize,
}

/// Evaluates `request`, every counter giving the same answer.
fn evaluate(program: &Program, request: &Request<'_>, answer: Answer) -> (Outcome, Cost) {
    let mut evaluation = Evaluation::start(program, request, UnixMillis(1_796_000_403_500));
    for index in 0..evaluation.len() {
        let answer = match evaluation.prepare(index) {
            Prepared::Identity(fault) => Answer::Identity(fault),
            Prepared::Check(check) => {
                std::hint::black_box((check.key(), check.key_hash(), check.windows()));
                answer
            }
        };
        if evaluation.settle(index, answer) == Flow::Stop {
            break;
        }
    }
    let cost = Cost {
        instructions: evaluation.instructions_read(),
        sources: evaluation.sources_read(),
    };
    (evaluation.finish(), cost)
}

const ALLOWED: Answer = Answer::Counted {
    exhausted: [false; 2],
    used: [1; 2],
    mode: BackendMode::Primary,
};
const EXHAUSTED: Answer = Answer::Counted {
    exhausted: [true; 2],
    used: [5; 2],
    mode: BackendMode::Primary,
};
const FAILED: Answer = Answer::Failed(BackendFailure::Unavailable);

/// Four policies over eight sources, three dimensions at most.
const FOUR_POLICIES: &str = "
policies:
  - name: a
    selector: { route: true, tenant: { key: 'header:x-1' }, token: { key: bearer_token }, client: { key: client_ip } }
    burst: { requests: 5, window_secs: 10 }
    sustained: { requests: 5, window_secs: 3600 }
  - name: b
    route_allowlist: [checkout]
    selector: { route: true, tenant: { key: 'cookie:session' }, token: { key: 'query:key' } }
    burst: { requests: 5, window_secs: 10 }
  - name: c
    selector: { tenant: { key: 'header:x-2' }, token: { key: 'query:other' } }
    sustained: { requests: 5, window_secs: 3600 }
  - name: d
    selector: { client: { key: 'header:x-3' }, tenant: { key: bearer_token } }
    burst: { requests: 5, window_secs: 10 }
";

/// Asserts that no evaluation of four policies allocates, whose counters all answer the same.
#[track_caller]
fn check_allocations(
    settings: &str,
    headers: &[(&str, &str)],
    answer: Answer,
    expected: (Decision, Reason, usize),
) {
    let program = program(&format!("enabled: true\n{settings}\n{FOUR_POLICIES}"));
    let long = "v".repeat(256);
    let query = format!("key=k%C3%B6+1&key=k%C3%B6%201&other={long}");
    let request = Request {
        route: Some(" checkout "),
        client: ClientAddress::parse("2001:db8::7"),
        query: Some(query.as_bytes()),
        headers: &headers,
    };
    // The seed of the key hash is made with the first key of the process.
    let _first = evaluate(&program, &request, answer);
    let mut found = None;
    let allocations = allocation_counter::measure(|| {
        let (outcome, _) = evaluate(&program, &request, answer);
        found = Some((outcome.decision, outcome.reason, outcome.policies.len()));
    });
    assert_eq!(found, Some(expected));
    assert_eq!(allocations.count_total, 0);
}

#[test]
fn evaluating_four_policies_over_eight_sources_allocates_nothing() {
    let headers = [
        ("X-1", " acme "),
        ("x-1", "acme"),
        ("x-2", "größe"),
        ("x-3", "192.0.2.7"),
        ("authorization", "Bearer abc"),
        ("cookie", "a=1; session=\"s-1\""),
    ];
    let burst = Reason::BurstQuotaExhausted;
    let unavailable = Reason::BackendUnavailable;
    let missing = Reason::SelectorIdentityMissing;
    let shadow = "enforcement: shadow";
    let fail_open = "backend_failure_policy: fail_open";
    let check = check_allocations;
    check(
        "",
        &headers,
        ALLOWED,
        (Decision::Allowed, Reason::Allowed, 4),
    );
    check("", &headers, EXHAUSTED, (Decision::Denied, burst, 1));
    check(
        shadow,
        &headers,
        EXHAUSTED,
        (Decision::ShadowDenied, burst, 4),
    );
    check(
        "",
        &headers,
        FAILED,
        (Decision::FailedClosed, unavailable, 1),
    );
    check(
        fail_open,
        &headers,
        FAILED,
        (Decision::FailedOpen, unavailable, 4),
    );
    check("", &[], ALLOWED, (Decision::Denied, missing, 1));
    check(shadow, &[], ALLOWED, (Decision::ShadowDenied, missing, 4));
}

/// What the evaluation of one request touched.
#[derive(Debug, PartialEq, Eq)]
struct Touched {
    policies: usize,
    instructions: usize,
    sources: usize,
    /// The header names looked up.
    headers: Vec<String>,
}

/// Headers that note which names are looked up; every name has one line.
#[derive(Default)]
struct Noting(Mutex<Vec<String>>);

impl HeaderLines for Noting {
    fn each<'a>(&'a self, name: &str, visit: &mut dyn FnMut(&'a [u8])) {
        self.0.lock().unwrap().push(name.to_owned());
        visit(b"acme");
    }
}

/// Two policies for route `login` and one for every route among `unrelated` ones, each for a route of its own and with a
/// source of its own.
fn among(unrelated: usize) -> Program {
    use std::fmt::Write as _;
    let mut text = String::from("enabled: true\npolicies:\n");
    for index in 0..unrelated {
        if index == unrelated / 2 {
            text.push_str(
                "- {name: first, route_allowlist: [login], selector: {route: true, tenant: {key: 'header:x-tenant'}}, burst: {requests: 1, window_secs: 9}}\n\
                 - {name: every, selector: {tenant: {key: 'header:x-tenant'}, client: {key: client_ip}}, burst: {requests: 2, window_secs: 9}}\n",
            );
        }
        writeln!(
            text,
            "- {{name: p{index}, route_allowlist: [r{index}], selector: {{tenant: {{key: 'header:x-{index}'}}}}, burst: {{requests: 3, window_secs: 9}}}}"
        )
        .unwrap();
    }
    text.push_str("- {name: second, route_allowlist: [login], selector: {token: {key: 'header:x-token'}}, burst: {requests: 4, window_secs: 9}}\n");
    program(&text)
}

fn touched(program: &Program, route: Option<&str>) -> Touched {
    let headers = Noting::default();
    let request = Request {
        route,
        client: ClientAddress::parse("192.0.2.7"),
        query: None,
        headers: &headers,
    };
    let (outcome, cost) = evaluate(program, &request, ALLOWED);
    assert_eq!(outcome.status, 200);
    Touched {
        policies: outcome.policies.len(),
        instructions: cost.instructions,
        sources: cost.sources,
        headers: headers.0.into_inner().unwrap(),
    }
}

#[test]
fn a_request_costs_the_same_among_10_1_000_and_100_000_unrelated_policies() {
    for unrelated in [10, 1_000, 100_000] {
        let program = among(unrelated);
        let check = |route, policies, sources, headers: &[&str]| {
            let expected = Touched {
                policies,
                instructions: 2 * policies,
                sources,
                headers: headers.iter().map(|name| (*name).to_owned()).collect(),
            };
            assert_eq!(
                touched(&program, route),
                expected,
                "{route:?} among {unrelated}"
            );
        };
        check(Some("login"), 3, 3, &["x-tenant", "x-token"]);
        check(Some("r3"), 2, 3, &["x-3", "x-tenant"]);
        check(Some("nowhere"), 1, 2, &["x-tenant"]);
        check(None, 1, 2, &["x-tenant"]);
    }
}

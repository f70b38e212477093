//! What one case cannot show: the engine against the model on random policies, requests, clocks and faults, and what holds of all
//! of them. `PROPTEST_CASES` says how many are tried.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use proptest::prelude::*;
use proptest::sample::select;
use quota_runtime::Quota;
use quota_runtime::clock::UnixMillis;
use quota_runtime::outcome::{BackendFailure, Decision};
use quota_runtime::request::{ClientAddress, Request};
use quota_test_support::model::{Model, OpenModel};
use quotac::cases::CaseRequest;
use quotac::cases::engine::Engine;
use quotac::cases::run::{Decides as _, Executor as _};
use serde_json::{Map, Value, json};

const START: i64 = 1_800_000_000_000;

/// Values that collide, differ in case and space, are empty, too long, quoted, or no text at all.
fn values() -> impl Strategy<Value = Vec<u8>> {
    select(vec![
        b"a".to_vec(),
        b" a ".to_vec(),
        b"A".to_vec(),
        b"b".to_vec(),
        b"".to_vec(),
        b"  ".to_vec(),
        b"\"a\"".to_vec(),
        b"\" a\"".to_vec(),
        b"\"".to_vec(),
        "é\u{a0}".as_bytes().to_vec(),
        b"\xff".to_vec(),
        b"a,b".to_vec(),
        b"a=b".to_vec(),
        b"a;b".to_vec(),
        b"%61".to_vec(),
        b"a%".to_vec(),
        b"a+b".to_vec(),
        b"%ff".to_vec(),
        vec![b'x'; 256],
        vec![b'x'; 257],
    ])
}

fn headers() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    let plain = (select(vec!["x-a", "X-A", "x-b", "x-c"]), values())
        .prop_map(|(name, value)| (name.to_owned(), value));
    let cookie = proptest::collection::vec(
        (
            select(vec!["a", "A", " a ", "b", "c"]),
            values(),
            any::<bool>(),
        ),
        1..3,
    )
    .prop_map(|pairs| {
        let parts: Vec<Vec<u8>> = pairs
            .into_iter()
            .map(|(name, value, equals)| {
                let mut part = name.as_bytes().to_vec();
                if equals {
                    part.push(b'=');
                    part.extend(value);
                }
                part
            })
            .collect();
        ("cookie".to_owned(), parts.join(&b';'))
    });
    let bearer = (
        select(vec![
            "Bearer ", "bearer  ", "Bearer", "Basic ", "", "BEARER\t",
        ]),
        values(),
    )
        .prop_map(|(scheme, value)| {
            let line = [scheme.as_bytes(), &value].concat();
            ("Authorization".to_owned(), line)
        });
    proptest::collection::vec(prop_oneof![3 => plain, 1 => cookie, 1 => bearer], 0..4)
}

fn uris() -> impl Strategy<Value = String> {
    let pair = (
        select(vec!["a", "A", "%61", "b", "a%", ""]),
        values(),
        any::<bool>(),
    )
        .prop_map(|(name, value, equals)| {
            let value = String::from_utf8_lossy(&value).into_owned();
            if equals {
                format!("{name}={value}")
            } else {
                name.to_owned()
            }
        });
    proptest::collection::vec(pair, 0..3).prop_map(|pairs| {
        if pairs.is_empty() {
            "/v".to_owned()
        } else {
            format!("/v?{}", pairs.join("&"))
        }
    })
}

fn requests() -> impl Strategy<Value = CaseRequest> {
    let route = select(vec![
        None,
        Some("r"),
        Some(" r "),
        Some("s"),
        Some("t"),
        Some(""),
        Some("R"),
    ]);
    let client = select(vec![
        "",
        "198.18.0.1",
        "198.18.0.2",
        "::ffff:198.18.0.1",
        "2001:db8::1",
        "nowhere",
    ]);
    (route, client, uris(), headers()).prop_map(|(route, client, uri, headers)| CaseRequest {
        route: route.map(str::to_owned),
        client: ClientAddress::parse(client),
        uri,
        headers,
    })
}

fn windows() -> impl Strategy<Value = (Option<Value>, Option<Value>)> {
    let requests = || select(vec![1_u64, 1, 2, 3]);
    let window = |requests: u64, secs: u64| json!({ "requests": requests, "window_secs": secs });
    (
        requests(),
        requests(),
        select(vec![1_u64, 2, 7]),
        select(vec![10_u64, 60, 3600]),
        0..3,
    )
        .prop_map(move |(burst, sustained, short, long, which)| match which {
            0 => (Some(window(burst, short)), None),
            1 => (None, Some(window(sustained, long))),
            _ => (Some(window(burst, short)), Some(window(sustained, long))),
        })
}

fn selectors() -> impl Strategy<Value = Value> {
    let any_source = vec![
        "header:x-a",
        "header:x-b",
        "cookie:a",
        "cookie:b",
        "query:a",
        "query:b",
    ];
    let token = [any_source.clone(), vec!["bearer_token"]].concat();
    let client = [any_source.clone(), vec!["client_ip"]].concat();
    let optional = |sources: Vec<&'static str>| proptest::option::of(select(sources));
    (any::<bool>(), optional(token.clone()), optional(token), optional(client)).prop_filter_map(
        "a selector has a dimension, and no source twice",
        |(route, tenant, token, client)| {
            let sources: Vec<_> = [tenant, token, client].into_iter().flatten().collect();
            let twice = (1..sources.len()).any(|index| sources[..index].contains(&sources[index]));
            if twice || (sources.is_empty() && !route) {
                return None;
            }
            let source = |source: Option<&str>| source.map_or(Value::Null, |key| json!({ "key": key }));
            Some(json!({ "route": route, "tenant": source(tenant), "token": source(token), "client": source(client) }))
        },
    )
}

fn policies() -> impl Strategy<Value = Vec<Value>> {
    let allowlist = proptest::sample::subsequence(vec!["r", "s", "R"], 0..3);
    let policy = (allowlist, selectors(), windows());
    proptest::collection::vec(policy, 1..5).prop_map(|policies| {
        let mut contracts = Vec::new();
        for (allowlist, selector, (burst, sustained)) in policies {
            let contract = json!({
                "route_allowlist": allowlist,
                "selector": selector,
                "burst": burst,
                "sustained": sustained,
            });
            // No two policies of a file have one contract.
            if !contracts.contains(&contract) {
                contracts.push(contract);
            }
        }
        for (index, contract) in contracts.iter_mut().enumerate() {
            contract["name"] = json!(format!("p{index}"));
        }
        contracts
    })
}

/// A quota object, and whether its backend is remote.
fn quotas() -> impl Strategy<Value = (Value, bool)> {
    let enforcement = select(vec!["enforce", "enforce", "shadow"]);
    let failure_policy = select(vec!["fail_open", "fail_closed"]);
    let capacity = select(vec![1_u64, 2, 3, 1000]);
    let fallback = proptest::option::of(select(vec![1_u64, 2, 1000]));
    (any::<bool>(), enforcement, failure_policy, capacity, fallback, policies()).prop_map(
        |(remote, enforcement, failure_policy, capacity, fallback, policies)| {
            let mut quota = Map::new();
            quota.insert("enabled".to_owned(), json!(true));
            quota.insert("enforcement".to_owned(), json!(enforcement));
            quota.insert("backend_failure_policy".to_owned(), json!(failure_policy));
            if remote {
                // Deadlines are real time: far away, so that a busy machine does not make one run out.
                let backend = json!({ "kind": "redis", "url": "redis://stand-in.invalid", "command_timeout_ms": 600_000 });
                quota.insert("backend".to_owned(), backend);
                if let Some(max_entries) = fallback {
                    quota.insert("local_fallback".to_owned(), json!({ "max_entries": max_entries }));
                }
            } else {
                quota.insert("backend".to_owned(), json!({ "kind": "in_memory", "max_entries": capacity }));
            }
            quota.insert("policies".to_owned(), policies.into());
            (quota.into(), remote)
        },
    )
}

/// How the clock moves between two requests: around the boundaries of the windows, and back.
fn clock_steps() -> impl Strategy<Value = ClockStep> {
    prop_oneof![
        4 => Just(ClockStep::By(0)),
        3 => select(vec![1, 999, 1000, 1500, 5000, 61_000]).prop_map(ClockStep::By),
        3 => (select(vec![1000_i64, 2000, 7000, 10_000, 60_000, 3_600_000]), -1_i64..=1)
            .prop_map(|(length, offset)| ClockStep::ToBoundary(length, offset)),
        2 => select(vec![-1, -1000, -9_999, -59_999, -60_000, -60_001, -3_599_999, -3_600_001]).prop_map(ClockStep::By),
    ]
}

#[derive(Clone, Copy, Debug)]
enum ClockStep {
    By(i64),
    /// To the next multiple of so many milliseconds, and this far off.
    ToBoundary(i64, i64),
}

impl ClockStep {
    fn after(self, now: i64) -> i64 {
        match self {
            Self::By(millis) => now + millis,
            Self::ToBoundary(length, offset) => (now / length + 1) * length + offset,
        }
    }
}

fn faults() -> impl Strategy<Value = Option<BackendFailure>> {
    prop_oneof![
        3 => Just(None),
        1 => select(vec![BackendFailure::Timeout, BackendFailure::Unavailable, BackendFailure::Error]).prop_map(Some),
    ]
}

type Step = (CaseRequest, ClockStep, Option<BackendFailure>);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec((requests(), clock_steps(), faults()), 1..25)
}

fn unix(now: i64) -> UnixMillis {
    UnixMillis(u64::try_from(now).expect("clocks stay behind 1970"))
}

/// Steps on the engine and on the model, side by side.
fn agree(quota: &Value, remote: bool, waiting: bool, steps: &[Step]) -> Result<(), TestCaseError> {
    let text = quota.to_string();
    let engine = Engine {
        waiting,
        ..Engine::default()
    };
    let mut engine = engine
        .open("random.yaml", text.as_bytes())
        .expect("the policies are legal");
    let mut model = Model
        .open("random.yaml", text.as_bytes())
        .expect("the policies are legal");
    let mut now = START;
    for (index, (request, clock, fault)) in steps.iter().enumerate() {
        now = clock.after(now);
        let fault = fault.filter(|_| remote);
        let before = model.counted();
        let expected = model
            .decide(request, unix(now), fault)
            .expect("faults are asked of remote backends only");
        let found = engine
            .decide(request, unix(now), fault)
            .expect("faults are asked of remote backends only");
        prop_assert_eq!(&found, &expected, "step {} at {}\n{}", index, now, text);
        if expected
            .outcomes
            .iter()
            .all(|outcome| outcome.decision != Decision::Allowed)
        {
            prop_assert_eq!(
                before,
                model.counted(),
                "what is not allowed is not charged"
            );
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_engine_decides_as_the_model_does((quota, remote) in quotas(), steps in steps()) {
        agree(&quota, remote, false, &steps)?;
    }

    #[test]
    fn so_it_does_where_checks_travel_together((quota, remote) in quotas(), steps in steps()) {
        agree(&quota, remote, true, &steps)?;
    }

    /// Two requests share a counter exactly where the model says they have one identity.
    #[test]
    fn identities_never_share_a_counter(selector in selectors(), first in requests(), second in requests()) {
        let quota = json!({
            "enabled": true,
            "policies": [{ "name": "p", "selector": selector, "burst": { "requests": 1, "window_secs": 10 } }],
        });
        let still = |request: &CaseRequest| (request.clone(), ClockStep::By(0), None);
        agree(&quota, false, false, &[still(&first), still(&second), still(&first), still(&second)])?;
    }
}

/// A denial changes no counter: the model's are whole before and after, and the engine agrees with the model on what is left.
#[test]
fn a_denial_is_not_charged() {
    let text = r#"{"enabled": true, "policies": [{"name": "p", "selector": {"client": {"key": "client_ip"}},
        "burst": {"requests": 1, "window_secs": 1}, "sustained": {"requests": 3, "window_secs": 60}}]}"#;
    let mut model: OpenModel = Model
        .open("p.yaml", text.as_bytes())
        .expect("the policies are legal");
    let request = CaseRequest {
        route: None,
        client: ClientAddress::parse("198.18.0.1"),
        uri: "/".to_owned(),
        headers: Vec::new(),
    };
    let mut decide = |now| {
        let before = model.counted();
        let actual = model
            .decide(&request, unix(now), None)
            .expect("there is no fault");
        (actual.status, before == model.counted())
    };
    assert_eq!(decide(START), (200, false));
    assert_eq!(decide(START), (429, true));
    assert_eq!(decide(START + 1000), (200, false));
}

#[test]
fn threads_together_are_admitted_exactly_the_limit() {
    const LIMIT: u64 = 500;
    let text = format!(
        r#"{{"enabled": true, "policies": [{{"name": "p", "selector": {{"client": {{"key": "client_ip"}}}},
        "burst": {{"requests": {LIMIT}, "window_secs": 10}}, "sustained": {{"requests": 1200, "window_secs": 60}}}}]}}"#
    );
    let quota = Quota::builder()
        .open_text("p.yaml", text.as_bytes())
        .expect("the policies are legal");
    let headers: [(&str, &str); 0] = [];
    // Three burst windows of one sustained one: 500, 500, and the 200 that are left of 1200.
    let mut admitted_in = Vec::new();
    for turn in 0..4 {
        let admitted = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for offset in 0..200 {
                        let request = Request {
                            route: None,
                            client: ClientAddress::parse("198.18.0.1"),
                            query: None,
                            headers: &headers,
                        };
                        let now = unix(START + turn * 10_000 + offset);
                        let decided = quota
                            .decide_inline(&request, now)
                            .expect("counters are in this process");
                        if decided.status == 200 {
                            admitted.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        admitted_in.push(admitted.into_inner());
    }
    assert_eq!(admitted_in, [LIMIT, LIMIT, 200, 0]);
}

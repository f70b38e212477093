//! What compiling a policy file costs, step by step. `cargo bench -p quota-compiler`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use quota_compiler::backend_kind::KnownKinds;
use quota_compiler::lower::lower;
use quota_compiler::{Limits, check_text};

const ROUNDS: usize = 9;

/// Files of any length: what is measured is the time, not what bounds it.
const LIMITS: Limits = Limits {
    max_bytes: u64::MAX,
    max_events: u64::MAX,
};

fn main() {
    // `cargo test` runs benches too, to see that they work.
    let quick = !std::env::args().any(|arg| arg == "--bench");
    let sizes: &[usize] = if quick {
        &[10]
    } else {
        &[10, 1_000, 10_000, 100_000]
    };
    report("policies      KiB   check ms   lower ms   ns/policy");
    for &policies in sizes {
        let text = file(policies);
        let (checked, lowered) = measure(&text, if quick { 1 } else { ROUNDS });
        let total = (checked + lowered).as_nanos() / policies as u128;
        let kib = text.len().div_ceil(1024);
        let [checked, lowered] = [checked, lowered].map(|time| time.as_secs_f64() * 1e3);
        report(&format!(
            "{policies:<8}{kib:>9}{checked:>11.3}{lowered:>11.3}{total:>12}"
        ));
    }
}

/// Median times of check and lower.
#[expect(clippy::expect_used, reason = "without a program there is no bench")]
fn measure(text: &str, rounds: usize) -> (Duration, Duration) {
    let rounds = (0..rounds).map(|_| {
        let start = Instant::now();
        let checked = check_text("p.yaml", black_box(text.as_bytes()), LIMITS, &KnownKinds);
        let check = start.elapsed();
        let quota = checked.quota.as_ref().expect("the file is legal");
        let start = Instant::now();
        let program = lower(black_box(quota), &checked.policy_lines).expect("it lowers");
        let lower = start.elapsed();
        assert_eq!(program.policies().len(), quota.policies.len());
        (check, lower)
    });
    let (mut checks, mut lowers): (Vec<_>, Vec<_>) = rounds.unzip();
    (median(&mut checks), median(&mut lowers))
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// A file as a large team may have it: two policies for every route, the rest for one to three of as many routes as there
/// are policies, with 64 different headers.
fn file(policies: usize) -> String {
    let mut text = "enabled: true\npolicies:\n".to_owned();
    for number in 0..policies {
        let routes = match number {
            0 | 1 => "[]".to_owned(),
            _ if number % 3 == 0 => format!("[route-{number}, route-{}, shared]", number + 1),
            _ => format!("[route-{number}]"),
        };
        text.push_str(&format!(
            "  - name: policy-{number}
    route_allowlist: {routes}
    selector:
      tenant: {{ key: header:x-tenant-{} }}
      client: {{ key: client_ip }}
    burst: {{ requests: {}, window_secs: 1 }}
    sustained: {{ requests: 10000, window_secs: 3600 }}
",
            number % 64,
            number + 1
        ));
    }
    text
}

#[expect(clippy::print_stdout, reason = "the result of the bench")]
fn report(line: &str) {
    println!("{line}");
}

//! Nanoseconds per decision on the whole path in memory: route, header extraction, hashing, both windows through the plugin
//! table, outcome and metrics. Run with `cargo bench -p quota-runtime`, or with `-- 1 1000` for some populations only.
//!
//! Absolute numbers mean little; compare rows of one run.

use std::hint::black_box;
use std::io::{self, Write};
use std::sync::LazyLock;
use std::time::Instant;

use quota_runtime::Quota;
use quota_runtime::clock::UnixMillis;
use quota_runtime::outcome::Decision;
use quota_runtime::request::{ClientAddress, Request};

const POLICIES: &str = "
enabled: true
backend: { kind: in_memory, max_entries: 1000000 }
policies:
  - name: per-tenant
    selector: { tenant: { key: 'header:x-tenant-id' } }
    burst: { requests: 1000000000, window_secs: 10 }
    sustained: { requests: 100000000000, window_secs: 3600 }
";

const ROUNDS: usize = 5;
const NOW: UnixMillis = UnixMillis(1_000_000_000);

fn main() -> io::Result<()> {
    // `cargo test` runs benches too, without this argument: then one small round shows that they work.
    let full = std::env::args().any(|argument| argument == "--bench");
    let decisions: usize = if full { 1_000_000 } else { 1_000 };
    let mut out = io::stdout().lock();
    writeln!(out, "{:>8}  {:>10}  {:>10}", "keys", "ns median", "ns best")?;
    let asked: Vec<usize> = std::env::args()
        .filter_map(|argument| argument.parse().ok())
        .collect();
    let populations = if asked.is_empty() {
        vec![1, 1_000, 100_000]
    } else {
        asked
    };
    for population in populations {
        let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| round(population, decisions)).collect();
        rounds.sort_by(f64::total_cmp);
        let (median, best) = (rounds[ROUNDS / 2], rounds[0]);
        writeln!(out, "{population:>8}  {median:>10.1}  {best:>10.1}")?;
    }
    Ok(())
}

/// Nanoseconds per decision, keys drawn uniformly.
#[expect(clippy::expect_used, reason = "without its policies there is no bench")]
fn round(population: usize, decisions: usize) -> f64 {
    let quota = Quota::builder()
        .open_text("bench.yaml", POLICIES.as_bytes())
        .expect("the policies are valid");
    let tenants: Vec<String> = (0..population)
        .map(|number| format!("tenant-{number:013}"))
        .collect();
    let order = shuffled(population, decisions);
    let decide = |tenant: &str| {
        let headers = [("host", "api.example.com"), ("x-tenant-id", tenant)];
        let request = Request {
            route: Some("checkout"),
            client: ClientAddress::Unknown,
            query: None,
            headers: &headers,
        };
        let decision =
            quota.decide_inline_with(black_box(&request), NOW, |_, outcome| outcome.decision);
        assert_eq!(decision, Ok(Decision::Allowed));
    };
    // Every key exists before the clock starts.
    tenants.iter().for_each(|tenant| decide(tenant));
    let start = cpu_nanos();
    for index in &order {
        decide(&tenants[*index]);
    }
    let nanos = cpu_nanos() - start;
    let counted = population + decisions;
    let series = format!(
        "decision=\"allowed\",policy=\"per-tenant\",reason=\"allowed\",selector_dimensions=\"tenant\"}} {counted}\n"
    );
    let metrics = quota.render_metrics();
    assert!(metrics.contains(&series), "{series} is not in {metrics}");
    #[expect(clippy::cast_precision_loss, reason = "a few digits are enough")]
    let each = nanos as f64 / decisions as f64;
    each
}

/// Nanoseconds this thread has run, so that other work on the machine does not count; the wall clock where the system does
/// not say.
fn cpu_nanos() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let running = schedstat.as_deref().and_then(|text| text.split(' ').next());
    running
        .and_then(|nanos| nanos.parse().ok())
        .unwrap_or_else(|| u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// Indices below `population`, drawn by a xorshift generator from a fixed seed.
fn shuffled(population: usize, count: usize) -> Vec<usize> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 33).unwrap_or(0) % population
    };
    (0..count).map(|_| next()).collect()
}

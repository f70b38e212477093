//! What one check of the store costs, and what one bucket weighs. `cargo bench -p quota-backend-in-memory`, or with
//! `-- 1 1000` for some populations only.

use std::hint::black_box;
use std::time::Instant;

use quota_backend_in_memory::{Store, Verdict};
use quota_plugin_sdk::{Window, WindowKind};

const NOW: u64 = 1_760_000_000_000;
const ROUNDS: usize = 7;

fn main() {
    // `cargo test` runs benches too, to see that they work.
    let quick = !std::env::args().any(|arg| arg == "--bench");
    let asked: Vec<u32> = std::env::args()
        .filter_map(|argument| argument.parse().ok())
        .collect();
    let populations: &[u32] = match (quick, &asked[..]) {
        (true, _) => &[1, 64],
        (false, []) => &[1, 1_000, 100_000, 1_000_000],
        (false, asked) => asked,
    };
    let checks: u32 = if quick { 1_000 } else { 2_000_000 };
    report("keys    path     ns/check   bytes/bucket (keys of 49 bytes, two windows)");
    for &keys in populations {
        for (path, limit) in [
            (Path::Allowed, u64::MAX),
            (Path::Denied, 1),
            (Path::Full, u64::MAX),
        ] {
            let (ns, bytes) = measure(keys, path, limit, checks);
            report(&format!("{keys:<8}{path:<8?}{ns:>9.1}{bytes:>13.0}"));
        }
    }
}

/// What the measured checks meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Allowed,
    Denied,
    /// New keys, while every bucket is active.
    Full,
}

/// Median time of a check over uniformly drawn keys, and the growth of the process by the store's buckets.
fn measure(keys: u32, path: Path, limit: u64, checks: u32) -> (f64, f64) {
    let windows = [
        Window::new(WindowKind::Burst, limit, 10_000, NOW - NOW % 10_000),
        Window::new(
            WindowKind::Sustained,
            limit,
            3_600_000,
            NOW - NOW % 3_600_000,
        ),
    ];
    let before = resident();
    let store = Store::new(keys.into());
    for number in 0..u64::from(keys) {
        let verdict = store.check(&key(number), hash(number), &windows, NOW);
        assert_eq!(verdict, Verdict::Allowed { used: [1, 1] });
    }
    let bytes = (resident() - before) / f64::from(keys);
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let mut random = 88_172_645_463_325_252_u64;
            let first = if path == Path::Full { 1 << 40 } else { 0 };
            let mut met = 0;
            let start = Instant::now();
            for _ in 0..checks {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let number = first + random % u64::from(keys);
                let verdict = store.check(&key(number), hash(number), black_box(&windows), NOW);
                met += u32::from(match verdict {
                    Verdict::Allowed { .. } => path == Path::Allowed,
                    Verdict::Denied { .. } => path == Path::Denied,
                    Verdict::Full => path == Path::Full,
                    Verdict::KeyTooLong => false,
                });
            }
            let time = start.elapsed().as_secs_f64();
            assert_eq!(met, checks, "a check that went another way");
            time * 1e9 / f64::from(checks)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[ROUNDS / 2], bytes)
}

/// As long as a key of one policy and one identity.
fn key(number: u64) -> [u8; 49] {
    let mut key = *b"\x01p\x0bpolicy-name t\x20................................";
    key[17..25].copy_from_slice(&number.to_le_bytes());
    key
}

/// Stands for the host's hash.
fn hash(number: u64) -> u64 {
    let mixed = (number ^ 0x1234_5678_9ABC_DEF0).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    (mixed ^ (mixed >> 32)).wrapping_mul(0xC4CE_B9FE_1A85_EC53)
}

/// Resident memory of this process in bytes; 0 where the system does not say.
fn resident() -> f64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse::<u32>().ok());
    f64::from(pages.unwrap_or(0)) * 4096.0
}

#[expect(clippy::print_stdout, reason = "the result of the bench")]
fn report(line: &str) {
    println!("{line}");
}

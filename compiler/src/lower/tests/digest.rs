//! What the digest depends on, and what not.

use proptest::prelude::*;
use proptest::sample::Index;

use super::arbitrary::{legal, quotas};
use super::{checked, layout, program};
use crate::ir::{Policy, Quota};
use crate::lower::lower;

fn digest(quota: &Quota) -> String {
    lower(quota, &[]).expect("it lowers").digest_hex()
}

/// The whole contract in one file; its digest is what any machine computes.
const GOLDEN: &str = "
enabled: true
enforcement: shadow
backend_failure_policy: fail_open
backend:
  kind: redis
  url: redis://user:password@db.example:6379/3
  key_prefix: shop
  plugin_sha256: 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
  cluster: { nodes: [a, b], retries: 3, ratio: 0.5, fast: true, extra: null }
local_fallback: { max_entries: 512 }
policies:
  - name: tenant
    selector: { tenant: { key: header:x-tenant-id } }
    burst: { requests: 10, window_secs: 1 }
    sustained: { requests: 600, window_secs: 3600 }
  - name: login
    route_allowlist: [login, reset]
    selector: { route: true, client: { key: client_ip } }
    burst: { requests: 5, window_secs: 60 }
  - name: upload
    route_allowlist: [upload]
    selector: { route: true, token: { key: bearer_token }, tenant: { key: query:team }, client: { key: cookie:session } }
    sustained: { requests: 100, window_secs: 86400 }
";

/// A change of these digests is a change of what the canonical bytes hold: it goes with another version of them.
#[test]
fn the_digest_is_the_same_everywhere() {
    assert_eq!(
        program(GOLDEN).digest_hex(),
        "edfe6ff0d15c313b684774f40c78797aaaacfeb81bc12d4f9d7f76e5f3f304e4"
    );
    assert_eq!(
        program("enabled: false").digest_hex(),
        "156d34e1d936bf7425023623b57ccfedbe176f3ecc559174509d404d3d817d34"
    );
}

#[test]
fn each_setting_of_the_golden_file_matters() {
    #[track_caller]
    fn check(from: &str, to: &str) {
        assert_eq!(GOLDEN.matches(from).count(), 1, "{from}");
        let changed = GOLDEN.replace(from, to);
        assert_ne!(
            program(&changed).digest(),
            program(GOLDEN).digest(),
            "{from} -> {to}"
        );
    }
    check("enabled: true", "enabled: false");
    check("shadow", "enforce");
    check("fail_open", "fail_closed");
    check("db.example", "db2.example");
    check("6379/3", "6379/4");
    check("key_prefix: shop", "key_prefix: shop2");
    check("1e1f", "1e1e");
    check("kind: redis", "kind: redis\n  plugin: own.so");
    check("kind: redis", "kind: redis\n  connect_timeout_ms: 251");
    check("kind: redis", "kind: redis\n  command_timeout_ms: 101");
    check("kind: redis", "kind: redis\n  max_inflight: 1025");
    check("[a, b]", "[b, a]");
    check("retries: 3", "retries: 3.0");
    check("ratio: 0.5", "ratio: 0.25");
    check("fast: true", "fast: 'true'");
    check("extra: null", "extra: ''");
    check("extra: null", "extra2: null");
    check("max_entries: 512", "max_entries: 513");
    check("max_entries: 512", "max_entries: 512, key_prefix: f");
    check(
        "local_fallback: { max_entries: 512 }",
        "local_fallback: null",
    );
    check("name: tenant", "name: tenants");
    check("x-tenant-id", "x-tenant");
    check("requests: 10,", "requests: 11,");
    check("window_secs: 3600 ", "window_secs: 3601 ");
    check("[login, reset]", "[login]");
    check("[upload]", "[upload, download]");
    check("[upload]", "[]");
    check("route: true, client", "client");
    check("query:team", "cookie:team");
    check(
        "    sustained: { requests: 100",
        "    burst: { requests: 100",
    );
}

#[test]
fn what_does_not_matter_to_the_golden_file() {
    #[track_caller]
    fn check(from: &str, to: &str) {
        assert!(GOLDEN.contains(from), "{from}");
        let changed = GOLDEN.replace(from, to);
        assert_eq!(
            program(&changed).digest(),
            program(GOLDEN).digest(),
            "{from} -> {to}"
        );
    }
    check("user:password@", "");
    check("user:password@", "user:other@");
    check("password", "p%40ss");
    check("[login, reset]", "[reset, login, ' reset ']");
    check("x-tenant-id", "X-Tenant-ID");
    check("client_ip", "peer_ip");
    check("name: login", "name: ' login '");
    check("requests: 10,", "requests: 0xA,");
    check("\n  - name", "\n\n  # The next\n  - name");
    check(
        "{ nodes: [a, b], retries: 3,",
        "{ retries: 3, nodes: [a, b],",
    );
    check(
        "local_fallback: {",
        "local_fallback: { key_prefix: 'impulse:quota:fallback',",
    );
}

proptest! {
    #[test]
    fn every_text_of_the_same_policies_has_the_same_digest(
        quota in quotas(),
        seeds: [u64; 2],
        lines: Vec<u32>,
    ) {
        let [one, other] = seeds.map(|seed| {
            let checked = checked(&layout::text(&quota, seed));
            lower(&checked.quota.expect("it is legal"), &checked.policy_lines).expect("it lowers")
        });
        prop_assert_eq!(one.digest(), other.digest());
        let elsewhere = lower(&quota, &lines).expect("it lowers");
        prop_assert_eq!(one.digest(), elsewhere.digest());
    }

    /// One part of a file is put in the place of the same part of another file: the digest changes if and only if the part
    /// does.
    #[test]
    fn every_change_that_matters_changes_the_digest(
        quota in quotas(),
        other in quotas(),
        part in 0_usize..17,
        at: [Index; 2],
    ) {
        let changed = legal(splice(quota.clone(), &other, part, at));
        prop_assert_eq!(digest(&quota) == digest(&changed), quota == changed);
    }
}

/// `quota` with one part of `other`.
fn splice(mut quota: Quota, other: &Quota, part: usize, [at, from]: [Index; 2]) -> Quota {
    match part {
        0 => quota.enabled = other.enabled,
        1 => quota.enforcement = other.enforcement,
        2 => quota.failure_policy = other.failure_policy,
        3 => quota.backend = other.backend.clone(),
        4 => quota.backend.key_prefix = other.backend.key_prefix.clone(),
        5 => quota.backend.plugin = other.backend.plugin.clone(),
        6 => quota.backend.plugin_sha256 = other.backend.plugin_sha256,
        7 => quota.backend.options = other.backend.options.clone(),
        8 => quota.fallback = other.fallback.clone(),
        9 => quota.policies = other.policies.clone(),
        10 => quota
            .policies
            .extend(other.policies.iter().take(1).cloned()),
        11 if !quota.policies.is_empty() => {
            quota.policies.remove(at.index(quota.policies.len()));
        }
        12 if !quota.policies.is_empty() => {
            let count = quota.policies.len();
            quota.policies.swap(at.index(count), from.index(count));
        }
        _ if !quota.policies.is_empty() && !other.policies.is_empty() => {
            let at = at.index(quota.policies.len());
            let policy = &mut quota.policies[at];
            let other = &other.policies[from.index(other.policies.len())];
            splice_policy(policy, other, part);
        }
        _ => {}
    }
    quota
}

fn splice_policy(policy: &mut Policy, other: &Policy, part: usize) {
    match part {
        13 => policy.name = other.name.clone(),
        14 => policy.routes = other.routes.clone(),
        15 => policy.selector = other.selector.clone(),
        _ => policy.windows = other.windows,
    }
}

//! Random legal policies: few names, routes and sources, so that they meet; some of them odd.

use std::collections::{BTreeSet, HashSet};
use std::num::{NonZeroU32, NonZeroU64};

use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

use crate::ir::{MAX_WINDOW_SECS, Policy, Quota, Routes, Selector, Window, Windows};
use crate::settings::{BackendPlace, BackendSettings, FallbackSettings, IN_MEMORY, REDIS};
use crate::terms::{Enforcement, FailurePolicy, Source};

/// Legal policies with up to eight policies.
pub(super) fn quotas() -> impl Strategy<Value = Quota> {
    (
        any::<bool>(),
        select(&Enforcement::ALL[..]),
        select(&FailurePolicy::ALL[..]),
        backends(),
        option::of(fallbacks()),
        vec(policies(), 0..8),
    )
        .prop_map(
            |(enabled, enforcement, failure_policy, backend, fallback, policies)| {
                legal(Quota {
                    enabled,
                    enforcement,
                    failure_policy,
                    backend,
                    fallback,
                    policies,
                })
            },
        )
}

/// `quota` without what the contract forbids across fields: a name or a contract used twice, a fallback of a local backend,
/// `enabled` without a policy.
pub(super) fn legal(mut quota: Quota) -> Quota {
    let (mut names, mut contracts) = (HashSet::new(), HashSet::new());
    quota.policies.retain(|policy| {
        let contract = format!("{:?}", (&policy.routes, &policy.selector, &policy.windows));
        names.insert(policy.name.clone()) && contracts.insert(contract)
    });
    quota.enabled &= !quota.policies.is_empty();
    quota.fallback = quota.fallback.filter(|_| quota.backend.is_remote());
    quota
}

/// A name of a policy, a route or a prefix: trimmed, not blank.
fn names() -> impl Strategy<Value = Box<str>> {
    // Lengths around the longest readable name of a key; characters that only escapes can write.
    let text = prop_oneof![4 => "[a-c]{1,2}", 1 => "[é€]{40,65}", 1 => "\\PC{1,6}", 1 => "(?s)[a\n\0\u{85}\u{202e}\" '|]{1,6}"];
    text.prop_filter_map("a blank name", |text| {
        // A `$` may begin a variable, which no file may hold.
        let text = text.replace('$', "_");
        let text = text.trim();
        (!text.is_empty()).then(|| text.into())
    })
}

fn routes() -> impl Strategy<Value = Routes> {
    let names =
        prop_oneof![4 => select(&["a", "b", "c", "d"][..]).prop_map(Box::from), 1 => names()];
    btree_set(names, 0..4).prop_map(Routes::from_allowlist)
}

fn policies() -> impl Strategy<Value = Policy> {
    (names(), routes(), selectors(), windows()).prop_map(|(name, routes, selector, windows)| {
        Policy {
            name,
            routes,
            selector,
            windows,
        }
    })
}

fn sources() -> impl Strategy<Value = Source> {
    let header = select(&["x-a", "x-b", "!#$%&'*+-.^_`|~0"][..]);
    let query = select(&["x-a", "a b", "é:\"", "header:x-a"][..]);
    prop_oneof![
        3 => header.prop_map(|name| Source::Header(name.into())),
        1 => Just(Source::Cookie("x-a".into())),
        2 => query.prop_map(|name| Source::Query(name.into())),
        1 => Just(Source::BearerToken),
        1 => Just(Source::ClientIp),
    ]
}

fn selectors() -> impl Strategy<Value = Selector> {
    let source = || option::of(sources());
    (any::<bool>(), source(), source(), source())
        .prop_filter_map("an illegal selector", |(route, tenant, token, client)| {
            Selector::new(route, tenant, token, client).ok()
        })
}

fn windows() -> impl Strategy<Value = Windows> {
    let requests = prop_oneof![4 => 1_u64..5, 1 => Just(9_007_199_254_740_991)];
    let length = prop_oneof![4 => 1_u32..5, 1 => Just(MAX_WINDOW_SECS)];
    let window = (requests, length).prop_map(|(requests, secs)| Window {
        requests: NonZeroU64::new(requests).expect("it is positive"),
        length_secs: NonZeroU32::new(secs).expect("it is positive"),
    });
    (option::of(window.clone()), option::of(window))
        .prop_filter_map("illegal windows", |(burst, sustained)| {
            Windows::new(burst, sustained).ok()
        })
}

fn positive() -> impl Strategy<Value = NonZeroU64> {
    (1_u64..1_000).prop_map(|number| NonZeroU64::new(number).expect("it is positive"))
}

fn backends() -> impl Strategy<Value = BackendSettings> {
    let kind = prop_oneof![
        positive().prop_map(|max_entries| {
            let place = BackendPlace::Local { max_entries };
            (IN_MEMORY, place, Map::new())
        }),
        (positive(), positive(), positive(), redis_options()).prop_map(
            |(connect_timeout_ms, command_timeout_ms, max_inflight, options)| {
                let place = BackendPlace::Remote {
                    connect_timeout_ms,
                    command_timeout_ms,
                    max_inflight,
                };
                (REDIS, place, options)
            }
        ),
    ];
    let plugin = option::of(select(&["a.so", "b b.so", "/x/é.so"][..]).prop_map(Box::from));
    (kind, names(), plugin, option::of(any::<[u8; 32]>())).prop_map(
        |((kind, place, options), key_prefix, plugin, plugin_sha256)| BackendSettings {
            kind: kind.into(),
            key_prefix,
            place,
            plugin,
            plugin_sha256,
            options,
        },
    )
}

/// A URL without credentials, and options that nobody checks.
fn redis_options() -> impl Strategy<Value = Map<String, Value>> {
    let url = select(
        &[
            "redis://h/0",
            "redis://h/1",
            "rediss://h:7/0",
            "redis://h/0?a=b",
        ][..],
    );
    let values = [
        json!(null),
        json!(true),
        json!(-1),
        json!(0.5),
        json!(u64::MAX),
        json!("x\"\u{202e}"),
        json!([]),
        json!([1, ["a"], {}]),
        json!({ "z": 1, "a": { "c": [], "b": null } }),
    ];
    (url, option::of(select(Vec::from(values)))).prop_map(|(url, value)| {
        let other = value.map(|value| ("other".to_owned(), value));
        [("url".to_owned(), url.into())]
            .into_iter()
            .chain(other)
            .collect()
    })
}

fn fallbacks() -> impl Strategy<Value = FallbackSettings> {
    (names(), positive()).prop_map(|(key_prefix, max_entries)| FallbackSettings {
        key_prefix,
        max_entries,
    })
}

/// A route no generated policy names.
pub(super) const OTHER_ROUTE: &str = "zzz";

/// Every route that `quota` names.
pub(super) fn named_routes(quota: &Quota) -> BTreeSet<&str> {
    let lists = quota.policies.iter().map(|policy| match &policy.routes {
        Routes::Every => None,
        Routes::Listed(routes) => Some(routes),
    });
    lists.flatten().flatten().map(|route| &**route).collect()
}

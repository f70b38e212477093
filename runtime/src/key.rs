//! Composite keys: one counter identity as bytes (contract §5).
//!
//! A key is the template of the program, which holds the policy and a route known at compile time, then the request's route
//! where the template could not know it, then the SHA-256 of tenant, token and client. The format, under which no two tuples
//! of values share a key, is [`quota_compiler::program::key`]'s.

use std::fmt;
use std::hash::BuildHasher as _;
use std::ops::Deref;
use std::sync::LazyLock;

use quota_compiler::program::key::{self, MAX_KEY_BYTES};
use quota_compiler::terms::Dimension;
use smallvec::SmallVec;

use crate::extract::ValueDigest;

/// A composite key without the key prefix; reads as bytes. Lives on the stack, where the longest one fits.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(SmallVec<[u8; MAX_KEY_BYTES]>);

impl Key {
    /// A key that begins with the components of a template.
    #[must_use]
    pub(crate) fn begin(template: &[u8]) -> Self {
        Self(SmallVec::from_slice(template))
    }

    /// Appends the route of a request.
    pub(crate) fn push_route(&mut self, route: &str) {
        key::push_route(&mut self.0, route);
    }

    /// Appends the digest of a tenant, token or client.
    pub(crate) fn push_digest(&mut self, dimension: Dimension, digest: &ValueDigest) {
        key::push_digest(&mut self.0, dimension, digest);
    }

    /// A hash of the key, keyed per process: it spreads keys over a table and never tells them apart.
    #[must_use]
    pub fn spread(&self) -> u64 {
        static SPREAD: LazyLock<foldhash::fast::RandomState> = LazyLock::new(Default::default);
        SPREAD.hash_one(&self[..])
    }
}

impl Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    /// The bytes as an escaped string: policy and route are readable, identities are digests already.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sha2::{Digest as _, Sha256};

    use super::*;

    /// A policy name and the values of route, tenant, token and client.
    type Identity<'a> = (&'a str, [Option<&'a str>; 4]);

    fn key((policy, [route, tenant, token, client]): Identity<'_>) -> Key {
        let mut template = Vec::new();
        key::push_policy(&mut template, policy);
        let mut key = Key::begin(&template);
        if let Some(route) = route {
            key.push_route(route);
        }
        let values = [
            (Dimension::Tenant, tenant),
            (Dimension::Token, token),
            (Dimension::Client, client),
        ];
        for (dimension, value) in values {
            if let Some(value) = value {
                key.push_digest(dimension, &Sha256::digest(value).into());
            }
        }
        key
    }

    #[test]
    fn a_key_reads_back_to_its_identity() {
        #[track_caller]
        fn check(identity: Identity<'_>) {
            let (policy, [route, values @ ..]) = identity;
            let key = key(identity);
            assert!(key.len() <= MAX_KEY_BYTES);
            assert!(!key.0.spilled(), "the key is on the stack");
            let parsed = key::parse(&key).unwrap();
            assert!(parsed.policy.is(policy));
            assert_eq!(parsed.route.is_some(), route.is_some());
            if let (Some(found), Some(route)) = (parsed.route, route) {
                assert!(found.is(route));
            }
            let digests = values.map(|value| value.map(|value| Sha256::digest(value).into()));
            assert_eq!(parsed.digests.map(|digest| digest.copied()), digests);
        }
        let (short, long) = ("n".repeat(128), "n".repeat(129));
        let huge = "n".repeat(100_000);
        check(("a", [None, None, None, Some("192.0.2.7")]));
        check(("a", [Some("login"), None, None, None]));
        check(("a", [Some("login"), Some("t"), Some("k"), Some("c")]));
        check(("a", [None, Some("t"), None, Some("c")]));
        check((&short, [Some(&short), Some("t"), Some("k"), Some("c")]));
        check((&long, [Some(&long), Some("t"), Some("k"), Some("c")]));
        check((&huge, [Some(&huge), Some(&huge), None, None]));
        check(("größe", [Some("r\u{1}t"), Some(""), None, None]));
    }

    #[test]
    fn no_two_identities_share_a_key() {
        let digest_text = "\u{1}p\u{1}a";
        let identities: &[Identity<'_>] = &[
            ("a", [Some("b"), None, None, None]),
            ("ab", [Some(""), None, None, None]),
            ("a", [Some("br"), None, None, None]),
            ("ar", [Some("b"), None, None, None]),
            ("ar\u{1}b", [Some("c"), None, None, None]),
            ("a", [Some("br\u{1}c"), None, None, None]),
            ("ar\u{1}br\u{1}c", [None, Some("x"), None, None]),
            ("a", [Some("b|token=1:b"), None, None, None]),
            ("a", [Some("b"), Some("a|token=1:b"), None, None]),
            ("a", [Some("b"), Some("a"), Some("b"), None]),
            ("a", [Some("b"), Some("a"), None, Some("b")]),
            ("a", [Some("b"), None, Some("a"), Some("b")]),
            ("a", [Some("b"), Some("b"), Some("a"), None]),
            ("a", [None, Some("b"), None, None]),
            ("a", [None, None, Some("b"), None]),
            ("a", [None, None, None, Some("b")]),
            ("a", [None, Some("B"), None, None]),
            ("A", [None, Some("b"), None, None]),
            ("a", [Some(digest_text), None, None, None]),
            (digest_text, [Some("a"), None, None, None]),
            ("a|route=b", [Some("c"), None, None, None]),
            ("a", [Some("route=b|c"), None, None, None]),
            ("a", [Some("b\0"), None, None, None]),
            ("a\0", [Some("b"), None, None, None]),
        ];
        let mut seen = BTreeMap::new();
        for identity in identities {
            if let Some(other) = seen.insert(key(*identity).to_vec(), identity) {
                panic!("{identity:?} and {other:?} share a key");
            }
        }
        // A long name enters as its digest under a tag of its own: the digest's bytes as a name are another policy.
        let long = "n".repeat(129);
        let hashed = key((&long, [Some("b"), None, None, None]));
        let hash: [u8; 32] = Sha256::digest(&long).into();
        let mut template = vec![key::FORMAT, b'p', 32];
        template.extend(hash);
        let mut named = Key::begin(&template);
        named.push_route("b");
        assert_ne!(hashed, named);
    }

    #[test]
    fn equal_keys_spread_alike_and_others_apart() {
        let (one, other) = (
            key(("a", [Some("b"), None, None, None])),
            key(("a", [Some("c"), None, None, None])),
        );
        let same = key(("a", [Some("b"), None, None, None]));
        assert_eq!(one.spread(), same.spread());
        assert_ne!(one.spread(), other.spread());
    }
}

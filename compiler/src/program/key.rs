//! The bytes of composite keys (contract §5): the one encoder, for key templates and for the parts a request adds, and the
//! parser the verifier and the text form read templates with.
//!
//! A key is the byte [`FORMAT`], then one component for each part of the identity, in the order policy, route, tenant, token,
//! client; parts that are not selected are left out. A component is a tag byte, a length byte and that many bytes:
//!
//! | tag | part | bytes |
//! | --- | --- | --- |
//! | `p` | policy name | as written |
//! | `P` | policy name longer than [`MAX_READABLE`] bytes | its SHA-256 |
//! | `r` | route | as given |
//! | `R` | route longer than [`MAX_READABLE`] bytes | its SHA-256 |
//! | `t`, `k`, `c` | tenant, token, client | SHA-256 of the value |
//!
//! Tags ascend in that order and lengths are explicit, so a key reads back in one way only: no two identities share one. The
//! format is stable, since counters are stored under it.

use sha2::{Digest as _, Sha256};

use crate::terms::Dimension;

/// The first byte of every key: the version of this format.
pub const FORMAT: u8 = 1;

/// The longest policy name or route that stands in a key as it is, in bytes; a longer one enters as its SHA-256.
pub const MAX_READABLE: usize = 128;

/// The longest key, in bytes: format, policy, route and three digests.
pub const MAX_KEY_BYTES: usize = 1 + 2 * (2 + MAX_READABLE) + 3 * (2 + DIGEST_BYTES);

const DIGEST_BYTES: usize = 32;

/// What key bytes are appended to.
pub trait KeySink {
    /// Appends `bytes`.
    fn push_bytes(&mut self, bytes: &[u8]);
}

impl KeySink for Vec<u8> {
    fn push_bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl<const N: usize> KeySink for smallvec::SmallVec<[u8; N]> {
    fn push_bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Begins a key: format and policy.
pub fn push_policy(key: &mut impl KeySink, name: &str) {
    key.push_bytes(&[FORMAT]);
    push_name(key, b'p', name);
}

/// Appends the route.
pub fn push_route(key: &mut impl KeySink, route: &str) {
    push_name(key, b'r', route);
}

/// Appends the SHA-256 of the value of `dimension`. The route has none: for it this appends nothing.
pub fn push_digest(key: &mut impl KeySink, dimension: Dimension, digest: &[u8; DIGEST_BYTES]) {
    let tag = match dimension {
        Dimension::Route => return debug_assert!(false, "a route stands in a key as it is"),
        Dimension::Tenant => b't',
        Dimension::Token => b'k',
        Dimension::Client => b'c',
    };
    key.push_bytes(&[tag, 32]);
    key.push_bytes(digest);
}

fn push_name(key: &mut impl KeySink, tag: u8, name: &str) {
    match u8::try_from(name.len()) {
        Ok(length) if name.len() <= MAX_READABLE => {
            key.push_bytes(&[tag, length]);
            key.push_bytes(name.as_bytes());
        }
        _ => {
            key.push_bytes(&[tag.to_ascii_uppercase(), 32]);
            key.push_bytes(&Sha256::digest(name));
        }
    }
}

/// A policy name or a route as a key holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyName<'k> {
    /// As written.
    Readable(&'k str),
    /// The SHA-256 of a longer one.
    Hashed(&'k [u8; DIGEST_BYTES]),
}

impl KeyName<'_> {
    /// Whether this stands for `name`.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        match *self {
            Self::Readable(readable) => name.len() <= MAX_READABLE && readable == name,
            Self::Hashed(digest) => {
                name.len() > MAX_READABLE && Sha256::digest(name).as_slice() == digest
            }
        }
    }
}

/// A key, or the beginning of one, read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsedKey<'k> {
    /// The policy.
    pub policy: KeyName<'k>,
    /// The route.
    pub route: Option<KeyName<'k>>,
    /// Tenant, token and client.
    pub digests: [Option<&'k [u8; DIGEST_BYTES]>; 3],
}

/// Reads `key` back. `None`: no key begins like this, or it ends inside a component.
#[must_use]
pub fn parse(key: &[u8]) -> Option<ParsedKey<'_>> {
    let rest = key.strip_prefix(&[FORMAT])?;
    let (policy, rest) = parse_name(rest, b'p')?;
    let (policy, mut rest) = (policy?, rest);
    let route;
    (route, rest) = parse_name(rest, b'r')?;
    let mut digests = [None; 3];
    for (digest, tag) in digests.iter_mut().zip(*b"tkc") {
        if let Some(after) = rest.strip_prefix(&[tag]) {
            let found;
            (found, rest) = parse_digest(after)?;
            *digest = Some(found);
        }
    }
    rest.is_empty().then_some(ParsedKey {
        policy,
        route,
        digests,
    })
}

/// The component called `tag`, or none where another one stands, and what follows it.
fn parse_name(bytes: &[u8], tag: u8) -> Option<(Option<KeyName<'_>>, &[u8])> {
    match bytes.split_first() {
        Some((found, rest)) if *found == tag => {
            let (length, rest) = rest.split_first()?;
            let (name, rest) = rest.split_at_checked(usize::from(*length))?;
            let name = str::from_utf8(name).ok()?;
            (name.len() <= MAX_READABLE).then_some((Some(KeyName::Readable(name)), rest))
        }
        Some((found, rest)) if *found == tag.to_ascii_uppercase() => {
            let (digest, rest) = parse_digest(rest)?;
            Some((Some(KeyName::Hashed(digest)), rest))
        }
        _ => Some((None, bytes)),
    }
}

/// Length and bytes of a digest, and what follows.
fn parse_digest(bytes: &[u8]) -> Option<(&[u8; DIGEST_BYTES], &[u8])> {
    bytes.strip_prefix(&[32])?.split_first_chunk()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(policy: &str, route: Option<&str>, digests: [Option<[u8; 32]>; 3]) -> Vec<u8> {
        let mut key = Vec::new();
        push_policy(&mut key, policy);
        if let Some(route) = route {
            push_route(&mut key, route);
        }
        let dimensions = [Dimension::Tenant, Dimension::Token, Dimension::Client];
        for (dimension, digest) in dimensions.into_iter().zip(digests) {
            if let Some(digest) = digest {
                push_digest(&mut key, dimension, &digest);
            }
        }
        key
    }

    #[test]
    fn components_are_tagged_and_length_prefixed() {
        let digest = |byte| Some([byte; 32]);
        let mut expected = b"\x01p\x02ip".to_vec();
        assert_eq!(key("ip", None, [None; 3]), expected);
        expected.extend(b"r\x03api");
        assert_eq!(key("ip", Some("api"), [None; 3]), expected);
        for (tag, byte) in [(b't', 7), (b'k', 8), (b'c', 9)] {
            expected.extend([tag, 32]);
            expected.extend([byte; 32]);
        }
        assert_eq!(
            key("ip", Some("api"), [digest(7), digest(8), digest(9)]),
            expected
        );
    }

    #[test]
    fn names_longer_than_128_bytes_enter_as_their_sha256() {
        let (longest, longer) = ("é".repeat(64), format!("{}x", "é".repeat(64)));
        let readable = key(&longest, Some(&longest), [None; 3]);
        assert_eq!(readable.len(), 1 + 2 * (2 + 128));
        let hashed = key(&longer, Some(&longer), [None; 3]);
        let digest = Sha256::digest(&longer);
        let mut expected = b"\x01P\x20".to_vec();
        expected.extend(digest);
        expected.extend(b"R\x20");
        expected.extend(digest);
        assert_eq!(hashed, expected);
        let parsed = parse(&hashed).expect("it is a key");
        assert!(parsed.policy.is(&longer));
        assert!(!parsed.policy.is(&longest));
    }

    #[test]
    fn the_longest_key_has_max_key_bytes() {
        let name = "n".repeat(MAX_READABLE);
        let longest = key(&name, Some(&name), [Some([0; 32]); 3]);
        assert_eq!(longest.len(), MAX_KEY_BYTES);
    }

    #[test]
    fn what_is_no_key_does_not_parse() {
        #[track_caller]
        fn check(bytes: &[u8]) {
            assert_eq!(parse(bytes), None, "{}", bytes.escape_ascii());
        }
        check(b"");
        check(b"\x01");
        check(b"\x02p\x01a");
        check(b"\x01r\x01a");
        check(b"\x01p\x02a");
        check(b"\x01p\x01\xff");
        check(b"\x01p\x01ax");
        check(b"\x01p\x01ar\x01br\x01b");
        check(b"\x01P\x01a");
        check(b"\x01p\x01at\x01b");
        check(&[&b"\x01p\x81"[..], &[b'a'; 129]].concat());
        let (tenant, token) = ([b't', 32], [b'k', 32]);
        check(&[b"\x01p\x01a", &token[..], &[0; 32], &tenant, &[0; 32]].concat());
    }

    proptest! {
        /// The parser is not the encoder run backwards by hand for one key: reading back any key gives its parts.
        #[test]
        fn a_key_reads_back(
            policy in "(?s).{0,200}",
            route in proptest::option::of("(?s).{0,200}"),
            digests: [Option<[u8; 32]>; 3],
        ) {
            let key = key(&policy, route.as_deref(), digests);
            prop_assert!(key.len() <= MAX_KEY_BYTES);
            let parsed = parse(&key).expect("it is a key");
            prop_assert!(parsed.policy.is(&policy));
            prop_assert_eq!(parsed.route.is_some(), route.is_some());
            if let (Some(found), Some(route)) = (parsed.route, route) {
                prop_assert!(found.is(&route));
            }
            prop_assert_eq!(parsed.digests.map(|digest| digest.copied()), digests);
        }

        #[test]
        fn any_bytes_parse_or_not_without_a_panic(bytes: Vec<u8>) {
            std::hint::black_box(parse(&bytes));
        }
    }
}

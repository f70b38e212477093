//! Identity values: a source and a request → found, missing or invalid (contract §4).
//!
//! Only the SHA-256 of a value leaves this file.

use std::fmt;

use quota_compiler::terms::Source;
use sha2::{Digest as _, Sha256};
use smallvec::SmallVec;

use crate::outcome::IdentityFault;
use crate::request::{ClientAddress, Request};

/// The longest value, in bytes, trimmed (contract §4).
pub const MAX_VALUE_BYTES: usize = 256;

/// The SHA-256 of an identity value.
pub type ValueDigest = [u8; 32];

/// What a request holds of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extracted {
    /// One value.
    Found(ValueDigest),
    /// None, or an empty one.
    Missing,
    /// Malformed, oversized, or several that differ.
    Invalid,
}

impl Extracted {
    /// The digest of the value, or why there is none.
    ///
    /// # Errors
    ///
    /// The value is missing or invalid.
    pub const fn digest(&self) -> Result<&ValueDigest, IdentityFault> {
        match self {
            Self::Found(digest) => Ok(digest),
            Self::Missing => Err(IdentityFault::Missing),
            Self::Invalid => Err(IdentityFault::Invalid),
        }
    }
}

/// Reads `source` from `request`.
#[must_use]
pub fn extract(source: &Source, request: &Request<'_>) -> Extracted {
    match source {
        Source::Header(name) => header(name, request),
        Source::Cookie(name) => cookie(name, request),
        Source::Query(name) => query(name, request),
        Source::BearerToken => bearer_token(request),
        Source::ClientIp => client_ip(request.client),
    }
}

fn header(name: &str, request: &Request<'_>) -> Extracted {
    let mut seen = Occurrences::None;
    request
        .headers
        .each(name, &mut |line| seen.add(trimmed(line)));
    seen.extracted()
}

fn cookie(name: &str, request: &Request<'_>) -> Extracted {
    let mut seen = Occurrences::None;
    request.headers.each("cookie", &mut |line| {
        for part in line.split(|byte| *byte == b';') {
            let Some((own, value)) = split_once(part, b'=') else {
                continue;
            };
            if trimmed(own).is_some_and(|own| own.eq_ignore_ascii_case(name)) {
                seen.add(trimmed(value).map(unquoted));
            }
        }
    });
    seen.extracted()
}

/// A cookie value without the quotes RFC 6265 allows around it.
fn unquoted(value: &str) -> &str {
    value
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .map_or(value, str::trim)
}

fn query(name: &str, request: &Request<'_>) -> Extracted {
    let mut first: Option<FormText<'_>> = None;
    let pairs = request.query.unwrap_or_default();
    for pair in pairs.split(|byte| *byte == b'&') {
        let (own, value) = split_once(pair, b'=').unwrap_or((pair, b""));
        if !is_form_name(own, name) {
            continue;
        }
        let Some(value) = FormText::decode(value) else {
            return Extracted::Invalid;
        };
        match (&first, value.trimmed()) {
            (_, None) => return Extracted::Invalid,
            (None, Some(_)) => first = Some(value),
            (Some(first), other) if first.trimmed() == other => {}
            (Some(_), Some(_)) => return Extracted::Invalid,
        }
    }
    let mut seen = Occurrences::None;
    if let Some(value) = &first {
        seen.add(value.trimmed());
    }
    seen.extracted()
}

fn bearer_token(request: &Request<'_>) -> Extracted {
    let mut seen = Occurrences::None;
    request.headers.each("authorization", &mut |line| {
        seen.add(trimmed(line).and_then(token_of_credentials));
    });
    seen.extracted()
}

/// The token of trimmed credentials; empty for empty ones; `None` where they are not `Bearer` and one word.
fn token_of_credentials(credentials: &str) -> Option<&str> {
    if credentials.is_empty() {
        return Some("");
    }
    let (scheme, rest) = credentials.split_once(char::is_whitespace)?;
    let token = rest.trim_start();
    let is_one_word = token.len() <= MAX_VALUE_BYTES && !token.contains(char::is_whitespace);
    (scheme.eq_ignore_ascii_case("bearer") && is_one_word).then_some(token)
}

fn client_ip(client: ClientAddress) -> Extracted {
    match client {
        ClientAddress::Known(address) => {
            let mut text = Hashed(Sha256::new());
            match fmt::write(&mut text, format_args!("{}", address.to_canonical())) {
                Ok(()) => Extracted::Found(text.0.finalize().into()),
                Err(fmt::Error) => Extracted::Invalid,
            }
        }
        ClientAddress::Unknown => Extracted::Missing,
        ClientAddress::Unparsable => Extracted::Invalid,
    }
}

/// Text that is hashed while it is written.
struct Hashed(Sha256);

impl fmt::Write for Hashed {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text);
        Ok(())
    }
}

/// The occurrences of one name so far: all equal are one, and two that differ are nobody's value, since a client must not
/// choose between budgets. Empty ones take part.
enum Occurrences<'a> {
    None,
    One(&'a str),
    Invalid,
}

impl<'a> Occurrences<'a> {
    /// Takes one more trimmed value into account; `None`: a malformed one.
    fn add(&mut self, value: Option<&'a str>) {
        *self = match (&*self, value) {
            (Self::None, Some(value)) => Self::One(value),
            (Self::One(first), Some(value)) if *first == value => Self::One(first),
            (Self::None | Self::One(_) | Self::Invalid, _) => Self::Invalid,
        };
    }

    fn extracted(&self) -> Extracted {
        match self {
            Self::None | Self::One("") => Extracted::Missing,
            Self::One(value) if value.len() <= MAX_VALUE_BYTES => {
                Extracted::Found(Sha256::digest(value).into())
            }
            Self::One(_) | Self::Invalid => Extracted::Invalid,
        }
    }
}

/// The text without the white space around it; `None` where it is not UTF-8.
fn trimmed(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().map(str::trim)
}

/// What stands before and after the first `separator`.
fn split_once(bytes: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|byte| *byte == separator)?;
    Some((bytes.get(..at)?, bytes.get(at + 1..)?))
}

/// A form-decoded value; most are as they were sent.
#[expect(
    clippy::large_enum_variant,
    reason = "boxing the decoded value would allocate in every decision"
)]
enum FormText<'a> {
    AsSent(&'a [u8]),
    Decoded(SmallVec<[u8; MAX_VALUE_BYTES]>),
}

impl<'a> FormText<'a> {
    /// `None` where an escape is broken.
    fn decode(value: &'a [u8]) -> Option<Self> {
        if value.iter().any(|byte| matches!(byte, b'%' | b'+')) {
            FormBytes(value).collect::<Option<_>>().map(Self::Decoded)
        } else {
            Some(Self::AsSent(value))
        }
    }

    fn trimmed(&self) -> Option<&str> {
        trimmed(match self {
            Self::AsSent(bytes) => bytes,
            Self::Decoded(bytes) => bytes,
        })
    }
}

/// Whether form-encoded bytes spell `name`, whatever the ASCII case. Those with a broken escape spell no name.
fn is_form_name(encoded: &[u8], name: &str) -> bool {
    let mut expected = name.bytes();
    let mut equal = true;
    for byte in FormBytes(encoded) {
        match byte {
            Some(byte) => {
                equal &= expected
                    .next()
                    .is_some_and(|other| other.eq_ignore_ascii_case(&byte));
            }
            None => return false,
        }
    }
    equal && expected.next().is_none()
}

/// The bytes that form-encoded ones stand for; `None` for a broken escape.
struct FormBytes<'a>(&'a [u8]);

impl Iterator for FormBytes<'_> {
    type Item = Option<u8>;

    fn next(&mut self) -> Option<Option<u8>> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(match first {
            b'+' => Some(b' '),
            b'%' => self.escaped(),
            other => Some(*other),
        })
    }
}

impl FormBytes<'_> {
    fn escaped(&mut self) -> Option<u8> {
        let ([high, low], rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(hex_digit(*high)? << 4 | hex_digit(*low)?)
    }
}

const fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    /// The value a row expects.
    enum Expected<'a> {
        Value(&'a str),
        Missing,
        Invalid,
    }
    use Expected::{Invalid, Missing, Value};

    #[track_caller]
    fn check_request(source: &Source, request: &Request<'_>, expected: &Expected<'_>) {
        let expected = match expected {
            Value(value) => Extracted::Found(Sha256::digest(value).into()),
            Missing => Extracted::Missing,
            Invalid => Extracted::Invalid,
        };
        assert_eq!(extract(source, request), expected);
    }

    #[track_caller]
    fn check_lines(source: &Source, name: &str, lines: &[&[u8]], expected: &Expected<'_>) {
        let mut headers: Vec<(&str, &[u8])> = vec![("X-Other", b"other")];
        headers.extend(lines.iter().map(|line| (name, *line)));
        let request = Request {
            route: None,
            client: ClientAddress::Unknown,
            query: None,
            headers: &headers,
        };
        check_request(source, &request, expected);
    }

    /// Lines of text as bytes.
    fn bytes<'a>(lines: &[&'a str]) -> Vec<&'a [u8]> {
        lines.iter().map(|line| line.as_bytes()).collect()
    }

    fn long(bytes: usize) -> String {
        "v".repeat(bytes)
    }

    mod header {
        use super::*;

        #[track_caller]
        fn check(lines: &[&str], expected: &Expected<'_>) {
            let source = Source::Header("x-tenant".into());
            check_lines(&source, "X-Tenant", &bytes(lines), expected);
        }

        #[track_caller]
        fn check_bytes(lines: &[&[u8]], expected: &Expected<'_>) {
            check_lines(
                &Source::Header("x-tenant".into()),
                "x-tenant",
                lines,
                expected,
            );
        }

        #[test]
        fn one_line_is_its_trimmed_value() {
            check(&["acme"], &Value("acme"));
            check(&["  acme\t"], &Value("acme"));
            check(&["\u{2003}acme\u{a0}"], &Value("acme"));
            check(&["Acme Ltd"], &Value("Acme Ltd"));
            check(&["\"acme\""], &Value("\"acme\""));
            check(&["a,b"], &Value("a,b"));
            check(&["a=b;c"], &Value("a=b;c"));
            check(&["a%20b+c"], &Value("a%20b+c"));
            check(&["größe"], &Value("größe"));
            check(&["a|token=1:b"], &Value("a|token=1:b"));
            check(&["a\0b"], &Value("a\0b"));
        }

        #[test]
        fn no_line_and_a_blank_one_are_missing() {
            check(&[], &Missing);
            check(&[""], &Missing);
            check(&["  \t "], &Missing);
            check(&["\u{3000}"], &Missing);
            check(&["", " "], &Missing);
        }

        #[test]
        fn the_trimmed_value_has_at_most_256_bytes() {
            check(&[&long(255)], &Value(&long(255)));
            check(&[&long(256)], &Value(&long(256)));
            check(&[&long(257)], &Invalid);
            check(&[&format!(" {} ", long(256))], &Value(&long(256)));
            check(&[&format!("{}v", " ".repeat(9_000))], &Value("v"));
            check(&[&"ö".repeat(128)], &Value(&"ö".repeat(128)));
            check(&[&"ö".repeat(129)], &Invalid);
            check(&[&long(100_000)], &Invalid);
        }

        #[test]
        fn bytes_that_are_not_utf8_are_invalid() {
            check_bytes(&[b"\xff"], &Invalid);
            check_bytes(&[b"ac\xc3me"], &Invalid);
            check_bytes(&[b"\xed\xa0\x80"], &Invalid);
            check_bytes(&[b"\xff", b"\xff"], &Invalid);
            check_bytes(&[b"acme", b"\xff"], &Invalid);
            check_bytes(&[b"", b"\xff"], &Invalid);
        }

        #[test]
        fn equal_lines_are_one_and_different_ones_nobody_s() {
            check(&["acme", "acme"], &Value("acme"));
            check(&["acme", " acme ", "acme\t"], &Value("acme"));
            check(&["acme", "other"], &Invalid);
            check(&["acme", "other", "acme"], &Invalid);
            check(&["acme", "Acme"], &Invalid);
            check(&["acme", ""], &Invalid);
            check(&["", "acme"], &Invalid);
            check(&[" ", "acme", "acme"], &Invalid);
            check(&[&long(257), &long(257)], &Invalid);
            check(&["acme", &long(257)], &Invalid);
            check(&["", &long(257)], &Invalid);
        }
    }

    mod cookie {
        use super::*;

        #[track_caller]
        fn check(lines: &[&str], expected: &Expected<'_>) {
            check_lines(
                &Source::Cookie("sid".into()),
                "cookie",
                &bytes(lines),
                expected,
            );
        }

        #[track_caller]
        fn check_bytes(lines: &[&[u8]], expected: &Expected<'_>) {
            check_lines(&Source::Cookie("sid".into()), "Cookie", lines, expected);
        }

        #[test]
        fn a_cookie_is_found_by_name_on_any_line() {
            check(&["sid=abc"], &Value("abc"));
            check(&["a=1; sid=abc; b=2"], &Value("abc"));
            check(&["a=1;sid=abc"], &Value("abc"));
            check(&["a=1", "sid=abc"], &Value("abc"));
            check(&["SID=Abc"], &Value("Abc"));
            check(&["\u{a0}Sid = abc "], &Value("abc"));
            check(&["sid=a=b=="], &Value("a=b=="));
            check(&["sid=a%20b"], &Value("a%20b"));
            check(&[";; sid=abc;"], &Value("abc"));
            check(&["sid=a b"], &Value("a b"));
        }

        #[test]
        fn other_names_and_parts_without_a_value_are_no_occurrence() {
            check(&[], &Missing);
            check(&["xsid=abc"], &Missing);
            check(&["sid2=abc"], &Missing);
            check(&["sid"], &Missing);
            check(&["abc"], &Missing);
            check(&["=abc"], &Missing);
            check(&["sid; sid=abc"], &Value("abc"));
            check(&["a=sid=abc"], &Missing);
            check(&["s id=abc"], &Missing);
            check_lines(
                &Source::Cookie("sid".into()),
                "x-cookie",
                &[b"sid=abc"],
                &Missing,
            );
        }

        #[test]
        fn one_pair_of_quotes_is_no_part_of_the_value() {
            check(&["sid=\"abc\""], &Value("abc"));
            check(&["sid= \" abc \" "], &Value("abc"));
            check(&["sid=\"\"abc\"\""], &Value("\"abc\""));
            check(&["sid=\"abc"], &Value("\"abc"));
            check(&["sid=abc\""], &Value("abc\""));
            check(&["sid=a\"b\"c"], &Value("a\"b\"c"));
            check(&["sid=\""], &Value("\""));
            check(&["sid=\"\""], &Missing);
            check(&["sid=\" \""], &Missing);
            // The `;` inside quotes separates all the same: the value is the half before it, quote included.
            check(&["sid=\"a;b\""], &Value("\"a"));
            check(&["sid=abc; sid=\"abc\""], &Value("abc"));
        }

        #[test]
        fn an_empty_cookie_is_missing() {
            check(&["sid="], &Missing);
            check(&["sid= ; a=1"], &Missing);
            check(&["sid=; sid=\"\"", "sid="], &Missing);
        }

        #[test]
        fn equal_cookies_are_one_and_different_ones_nobody_s() {
            check(&["sid=abc; sid=abc"], &Value("abc"));
            check(&["sid=abc", "SID= abc"], &Value("abc"));
            check(&["sid=abc; sid=abd"], &Invalid);
            check(&["sid=abc", "sid=abd"], &Invalid);
            check(&["sid=abc; sid="], &Invalid);
            check(&["sid=; sid=abc"], &Invalid);
        }

        #[test]
        fn long_and_malformed_cookies_are_invalid() {
            check(&[&format!("sid={}", long(256))], &Value(&long(256)));
            check(&[&format!("sid=\"{}\"", long(256))], &Value(&long(256)));
            check(&[&format!("sid={}", long(257))], &Invalid);
            check_bytes(&[b"sid=\xff"], &Invalid);
            check_bytes(&[b"sid=abc; sid=\xff"], &Invalid);
            check_bytes(&[b"a=\xff; sid=abc"], &Value("abc"));
            check_bytes(&[b"\xff=1; sid=abc"], &Value("abc"));
            check_bytes(&[b"sid\xff=1"], &Missing);
        }
    }

    mod query {
        use super::*;

        #[track_caller]
        fn check_name(name: &str, query: Option<&[u8]>, expected: &Expected<'_>) {
            let headers: [(&str, &str); 0] = [];
            let request = Request {
                route: None,
                client: ClientAddress::Unknown,
                query,
                headers: &headers,
            };
            check_request(&Source::Query(name.into()), &request, expected);
        }

        #[track_caller]
        fn check(query: &str, expected: &Expected<'_>) {
            check_name("key", Some(query.as_bytes()), expected);
        }

        #[test]
        fn names_and_values_are_form_decoded() {
            check("key=abc", &Value("abc"));
            check("a=1&key=abc&b=2", &Value("abc"));
            check("KEY=Abc", &Value("Abc"));
            check("%6bey=abc", &Value("abc"));
            check("%4B%45%59=abc", &Value("abc"));
            check("key=a%20b", &Value("a b"));
            check("key=a+b", &Value("a b"));
            check("key=a%2Bb", &Value("a+b"));
            check("key=a%2bb%26c%3Dd", &Value("a+b&c=d"));
            check("key=%C3%B6", &Value("ö"));
            check("key=ö", &Value("ö"));
            check("key=a=b", &Value("a=b"));
            check("key=+abc%20", &Value("abc"));
            check("key=%E2%80%83abc", &Value("abc"));
            check("key=%2525", &Value("%25"));
            check("key=\"abc\"", &Value("\"abc\""));
            check("key=a;key=b", &Value("a;key=b"));
            check("&&key=abc&", &Value("abc"));
            check("key=a?b", &Value("a?b"));
            check_name("api key", Some(b"api+key=abc"), &Value("abc"));
            check_name("api key", Some(b"API%20Key=abc"), &Value("abc"));
            check_name(
                "größe",
                Some("gr%C3%B6%c3%9fe=abc".as_bytes()),
                &Value("abc"),
            );
            check_name("größe", Some("GRößE=abc".as_bytes()), &Value("abc"));
            // Only ASCII case is ignored.
            check_name("größe", Some("GRÖßE=abc".as_bytes()), &Missing);
        }

        #[test]
        fn absent_and_empty_parameters_are_missing() {
            check("", &Missing);
            check("a=1", &Missing);
            check("keys=abc", &Missing);
            check("ke=abc", &Missing);
            check("+key=abc", &Missing);
            check("=key", &Missing);
            check("key", &Missing);
            check("key=", &Missing);
            check("key=+%20%09", &Missing);
            check("key&key=&KEY=+", &Missing);
            check_name("key", None, &Missing);
        }

        #[test]
        fn a_broken_escape_spoils_the_value() {
            check("key=%", &Invalid);
            check("key=abc%2", &Invalid);
            check("key=%zz", &Invalid);
            check("key=%+1", &Invalid);
            check("key=%2g", &Invalid);
            check("key=100%&a=1", &Invalid);
            check("key=abc&key=%zz", &Invalid);
            check("key=%zz&key=%zz", &Invalid);
            check("key=&key=%zz", &Invalid);
            check("a=%zz&key=abc", &Value("abc"));
        }

        #[test]
        fn a_broken_escape_in_a_name_is_no_match() {
            check("key%=abc", &Missing);
            check("%zzkey=abc", &Missing);
            check("key%6=abc", &Missing);
            check("key%zz=1&key=abc", &Value("abc"));
            check("%=1&%f=2&key=abc", &Value("abc"));
        }

        #[test]
        fn bytes_that_are_not_utf8_are_invalid() {
            check("key=%ff", &Invalid);
            check("key=%C3", &Invalid);
            check("key=%ff&key=%ff", &Invalid);
            check("key=abc&key=%ff", &Invalid);
            check_name("key", Some(b"key=\xff"), &Invalid);
            check_name("key", Some(b"\xff=1&key=abc"), &Value("abc"));
            check_name("key", Some(b"key\xff=abc"), &Missing);
        }

        #[test]
        fn equal_parameters_are_one_and_different_ones_nobody_s() {
            check("key=abc&key=abc", &Value("abc"));
            check("key=abc&KEY=%61bc&key=+abc", &Value("abc"));
            check("key=abc&key=abd", &Invalid);
            check("key=abc&key", &Invalid);
            check("key&key=abc", &Invalid);
            check("key=abc&key=", &Invalid);
            check("key=%20&key=abc", &Invalid);
            check("key=abc&key=abd&key=abc", &Invalid);
        }

        #[test]
        fn the_decoded_and_trimmed_value_has_at_most_256_bytes() {
            check(&format!("key={}", long(256)), &Value(&long(256)));
            check(&format!("key={}", long(257)), &Invalid);
            check(&format!("key={}", "%76".repeat(256)), &Value(&long(256)));
            check(&format!("key={}", "%76".repeat(257)), &Invalid);
            check(&format!("key={}%76", "+".repeat(9_000)), &Value("v"));
            let twice = format!("key={0}&key={0}", "%76".repeat(257));
            check(&twice, &Invalid);
        }
    }

    mod bearer_token {
        use super::*;

        #[track_caller]
        fn check(lines: &[&str], expected: &Expected<'_>) {
            check_lines(
                &Source::BearerToken,
                "Authorization",
                &bytes(lines),
                expected,
            );
        }

        #[test]
        fn the_token_is_what_follows_the_scheme() {
            check(&["Bearer abc"], &Value("abc"));
            check(&["bearer abc"], &Value("abc"));
            check(&["BEARER Abc"], &Value("Abc"));
            check(&[" Bearer \t  abc  "], &Value("abc"));
            check(&["Bearer\tabc"], &Value("abc"));
            check(&["Bearer\u{a0}abc"], &Value("abc"));
            check(&["Bearer a.b-c_d~e+f/g=="], &Value("a.b-c_d~e+f/g=="));
            check(&["Bearer \"abc\""], &Value("\"abc\""));
            check(&["Bearer Bearer"], &Value("Bearer"));
            check(&["Bearer abc,"], &Value("abc,"));
        }

        #[test]
        fn no_header_and_an_empty_one_are_missing() {
            check(&[], &Missing);
            check(&[""], &Missing);
            check(&["  "], &Missing);
            check(&["", "\t"], &Missing);
        }

        #[test]
        fn anything_but_bearer_and_one_word_is_invalid() {
            check(&["Basic abc"], &Invalid);
            check(&["Bearer"], &Invalid);
            check(&["Bearer  "], &Invalid);
            check(&["abc"], &Invalid);
            check(&["Bearerabc"], &Invalid);
            check(&["Bearer: abc"], &Invalid);
            check(&["Bearer abc def"], &Invalid);
            check(&["Bearer abc\u{2003}def"], &Invalid);
            check(&["Bearer abc, Bearer abc"], &Invalid);
            check_lines(
                &Source::BearerToken,
                "authorization",
                &[b"Bearer \xff"],
                &Invalid,
            );
            check_lines(&Source::BearerToken, "authorization", &[b"\xff"], &Invalid);
        }

        #[test]
        fn the_token_has_at_most_256_bytes() {
            check(&[&format!("Bearer {}", long(256))], &Value(&long(256)));
            check(&[&format!("Bearer {}", long(257))], &Invalid);
            let line = format!("Bearer {}", long(257));
            check(&[&line, &line], &Invalid);
        }

        #[test]
        fn each_line_is_read_to_its_token_and_then_compared() {
            check(&["Bearer abc", "bearer   abc"], &Value("abc"));
            check(&["Bearer abc", "Bearer abd"], &Invalid);
            check(&["Bearer abc", "Bearer Abc"], &Invalid);
            check(&["Bearer abc", "Basic abc"], &Invalid);
            check(&["Basic abc", "Basic abc"], &Invalid);
            check(&["Bearer abc", ""], &Invalid);
            check(&["", "Bearer abc"], &Invalid);
            check(&["", "Basic abc"], &Invalid);
            check(&["Bearer", "Bearer abc"], &Invalid);
        }
    }

    mod client_ip {
        use super::*;

        #[track_caller]
        fn check(client: ClientAddress, expected: &Expected<'_>) {
            let headers = [("x-forwarded-for", "198.51.100.9")];
            let request = Request {
                route: None,
                client,
                query: None,
                headers: &headers,
            };
            check_request(&Source::ClientIp, &request, expected);
        }

        fn known(address: &str) -> ClientAddress {
            ClientAddress::Known(address.parse::<IpAddr>().unwrap())
        }

        #[test]
        fn an_address_is_its_canonical_text() {
            check(known("192.0.2.7"), &Value("192.0.2.7"));
            check(known("2001:DB8:0:0::1"), &Value("2001:db8::1"));
            check(known("::1"), &Value("::1"));
            check(known("::"), &Value("::"));
            check(
                known("2001:db8:1:2:3:4:5:6"),
                &Value("2001:db8:1:2:3:4:5:6"),
            );
        }

        #[test]
        fn a_mapped_address_is_the_ipv4_address() {
            check(known("::ffff:192.0.2.7"), &Value("192.0.2.7"));
            check(known("::ffff:c000:207"), &Value("192.0.2.7"));
        }

        #[test]
        fn unknown_is_missing_and_unparsable_invalid() {
            check(ClientAddress::Unknown, &Missing);
            check(ClientAddress::Unparsable, &Invalid);
        }
    }
}

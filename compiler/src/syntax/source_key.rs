//! The grammar of sources: `header:<name>`, `bearer_token` and the others of contract §2's table.

use std::ops::Range;

use nom::branch::alt;
use nom::bytes::complete::{tag, take_while};
use nom::character::complete::char as character;
use nom::combinator::{all_consuming, rest, value};
use nom::sequence::separated_pair;
use nom::{IResult, Parser};

use super::nearest::nearest;
use crate::terms::Source;

/// Why a source is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFault {
    /// What is wrong.
    pub kind: SourceFaultKind,
    /// The wrong part, in bytes of the value.
    pub range: Range<usize>,
}

/// What is wrong with a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceFaultKind {
    /// Nothing but white space.
    Blank,
    /// No source of the table.
    Unknown {
        /// The source that was most likely meant.
        nearest: Option<String>,
    },
    /// A known word that never identifies anybody, such as `path`.
    NeverIdentity(&'static str),
    /// `header:`, `cookie:` or `query:` without a name; the word before the colon.
    BlankName(&'static str),
    /// The name after `header:` is not an RFC 9110 token.
    BadHeaderName,
    /// The name after `cookie:` is not an RFC 6265 token.
    BadCookieName,
}

const HEADER: &str = "header";
const COOKIE: &str = "cookie";
const QUERY: &str = "query";
const BEARER_TOKEN: &str = "bearer_token";
const CLIENT_IP: &str = "client_ip";
const PEER_IP: &str = "peer_ip";

/// Words of the proxy's world that are no identity, in any dimension.
const NEVER_IDENTITY: &[&str] = &["path", "authority", "method", "cid", "sticky-cid"];

/// A source as written, before its name is looked at.
enum Shape<'a> {
    Named(&'static str, &'a str),
    Word(Source),
    Never(&'static str),
}

/// The source `value` names. It is trimmed and read in lower case as a whole (contract §2).
///
/// # Errors
/// Each [`SourceFaultKind`], with the place inside `value`.
pub fn parse(value: &str) -> Result<Source, SourceFault> {
    let trimmed = value.trim();
    let start = value.len() - value.trim_start().len();
    let whole = start..start + trimmed.len();
    if trimmed.is_empty() {
        return Err(SourceFault {
            kind: SourceFaultKind::Blank,
            range: 0..value.len(),
        });
    }
    // ASCII lower case keeps every byte where it is, so places in `lower` are places in `trimmed`.
    let lower = trimmed.to_ascii_lowercase();
    match all_consuming(shape).parse(&lower) {
        Ok((_, Shape::Word(source))) => Ok(source),
        Ok((_, Shape::Never(word))) => Err(SourceFault {
            kind: SourceFaultKind::NeverIdentity(word),
            range: whole,
        }),
        Ok((_, Shape::Named(kind, name))) => named(kind, name, whole.end),
        Err(_) => Err(SourceFault {
            kind: SourceFaultKind::Unknown {
                nearest: nearest_source(&lower),
            },
            range: whole,
        }),
    }
}

/// `kind ":" name`, a word, or a word that never identifies.
fn shape(input: &str) -> IResult<&str, Shape<'_>> {
    let kind = alt((
        value(HEADER, tag(HEADER)),
        value(COOKIE, tag(COOKIE)),
        value(QUERY, tag(QUERY)),
    ));
    alt((
        separated_pair(kind, character(':'), rest).map(|(kind, name)| Shape::Named(kind, name)),
        word,
    ))
    .parse(input)
}

/// A source of one word, the whole input.
fn word(input: &str) -> IResult<&str, Shape<'_>> {
    let (after, word) = take_while(|_| true).parse(input)?;
    let shape = match word {
        BEARER_TOKEN => Some(Shape::Word(Source::BearerToken)),
        CLIENT_IP | PEER_IP => Some(Shape::Word(Source::ClientIp)),
        _ => NEVER_IDENTITY
            .iter()
            .find(|never| **never == word)
            .map(|never| Shape::Never(never)),
    };
    shape.map_or_else(
        || {
            Err(nom::Err::Error(nom::error::Error::new(
                input,
                nom::error::ErrorKind::Alt,
            )))
        },
        |shape| Ok((after, shape)),
    )
}

/// The source `kind:name`; `end` is where the name ends in the value.
fn named(kind: &'static str, name: &str, end: usize) -> Result<Source, SourceFault> {
    let trimmed = name.trim();
    let fault = |kind, range| Err(SourceFault { kind, range });
    if trimmed.is_empty() {
        // The colon is the last byte before the name.
        let colon = end - name.len();
        return fault(
            SourceFaultKind::BlankName(kind),
            colon - kind.len() - 1..end,
        );
    }
    let start = end - name.trim_start().len();
    match kind {
        QUERY => Ok(Source::Query(trimmed.into())),
        _ if trimmed.bytes().all(is_token_byte) => Ok(if kind == HEADER {
            Source::Header(trimmed.into())
        } else {
            Source::Cookie(trimmed.into())
        }),
        HEADER => fault(SourceFaultKind::BadHeaderName, start..start + trimmed.len()),
        _ => fault(SourceFaultKind::BadCookieName, start..start + trimmed.len()),
    }
}

/// A byte of a token: `tchar` of RFC 9110 §5.6.2, which is also what RFC 6265 §4.1.1 takes from RFC 2616.
const fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

/// The source that was most likely meant by `lower`, which is none.
fn nearest_source(lower: &str) -> Option<String> {
    if let Some((kind, name)) = lower.split_once([':', '=']) {
        let kind = nearest(
            kind,
            [HEADER, COOKIE, QUERY, BEARER_TOKEN, CLIENT_IP, PEER_IP],
        )?;
        return Some(if matches!(kind, HEADER | COOKIE | QUERY) {
            format!("{kind}:{}", name.trim())
        } else {
            kind.to_owned()
        });
    }
    if let Some(word) = nearest(lower, [BEARER_TOKEN, CLIENT_IP, PEER_IP]) {
        return Some(word.to_owned());
    }
    // A bare name such as `x-tenant-id` is surely a header's.
    let looks_like_a_header = lower.contains('-') && lower.bytes().all(is_token_byte);
    looks_like_a_header.then(|| format!("{HEADER}:{lower}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(value: &str, expected: Source) {
        assert_eq!(parse(value), Ok(expected));
    }

    #[track_caller]
    fn check_fault(value: &str, kind: SourceFaultKind, part: &str) {
        let fault = parse(value).expect_err("a fault");
        assert_eq!((fault.kind, value.get(fault.range)), (kind, Some(part)));
    }

    fn unknown(nearest: Option<&str>) -> SourceFaultKind {
        SourceFaultKind::Unknown {
            nearest: nearest.map(str::to_owned),
        }
    }

    #[test]
    fn sources_are_trimmed_and_lower_cased_as_a_whole() {
        check("header:x-tenant-id", Source::Header("x-tenant-id".into()));
        check(" Header:X-Tenant ", Source::Header("x-tenant".into()));
        check("header: x-a", Source::Header("x-a".into()));
        check("header:!#$%&'*+-.^_`|~0a", {
            Source::Header("!#$%&'*+-.^_`|~0a".into())
        });
        check("COOKIE:\u{a0}Sid", Source::Cookie("sid".into()));
        check("query:Api Key", Source::Query("api key".into()));
        check("query:a:b", Source::Query("a:b".into()));
        check("query:É", Source::Query("É".into()));
        check("Bearer_Token", Source::BearerToken);
        check("client_ip", Source::ClientIp);
        check("\tpeer_IP\n", Source::ClientIp);
    }

    #[test]
    fn faults_point_at_the_wrong_part() {
        check_fault("", SourceFaultKind::Blank, "");
        check_fault(" \u{2003}", SourceFaultKind::Blank, " \u{2003}");
        check_fault("header:", SourceFaultKind::BlankName("header"), "header:");
        check_fault(" query: ", SourceFaultKind::BlankName("query"), "query:");
        check_fault(
            "cookie:\u{a0}",
            SourceFaultKind::BlankName("cookie"),
            "cookie:",
        );
        check_fault("header:x y", SourceFaultKind::BadHeaderName, "x y");
        check_fault("header: a:b ", SourceFaultKind::BadHeaderName, "a:b");
        check_fault("header:é", SourceFaultKind::BadHeaderName, "é");
        check_fault("cookie:a=b", SourceFaultKind::BadCookieName, "a=b");
        for word in NEVER_IDENTITY {
            check_fault(word, SourceFaultKind::NeverIdentity(word), word);
        }
    }

    #[test]
    fn unknown_sources_come_with_what_was_meant() {
        check_fault("headr:x-a", unknown(Some("header:x-a")), "headr:x-a");
        check_fault("header =x", unknown(Some("header:x")), "header =x");
        check_fault("cookies:sid", unknown(Some("cookie:sid")), "cookies:sid");
        check_fault(
            "bearer_token:x",
            unknown(Some("bearer_token")),
            "bearer_token:x",
        );
        check_fault("ip", unknown(Some("client_ip")), "ip");
        check_fault("client-ip", unknown(Some("client_ip")), "client-ip");
        check_fault(
            " Authorization ",
            unknown(Some("bearer_token")),
            "Authorization",
        );
        check_fault(
            "x-tenant-id",
            unknown(Some("header:x-tenant-id")),
            "x-tenant-id",
        );
        check_fault("header", unknown(None), "header");
        check_fault("🦀", unknown(None), "🦀");
    }
}

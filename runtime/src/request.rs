//! What the engine sees of a request: a borrowed view that any server or embedder can give.

use std::fmt;
use std::net::IpAddr;

use http::HeaderMap;

/// One request to decide.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The route the proxy selected. `None` and a blank one are a request without a route.
    pub route: Option<&'a str>,
    /// The client, as the caller established it.
    pub client: ClientAddress,
    /// The query string as sent, without the `?`. `None`: not known, every parameter counts as missing.
    pub query: Option<&'a [u8]>,
    /// The request's header lines.
    pub headers: &'a dyn HeaderLines,
}

impl fmt::Debug for Request<'_> {
    /// Route only: client, query and headers hold identities, which appear in no text (contract §4).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("route", &self.route)
            .finish_non_exhaustive()
    }
}

/// The address of a client, without a port.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClientAddress {
    /// An address. An IPv4-mapped IPv6 address counts as the IPv4 address it is.
    Known(IpAddr),
    /// Nobody told: a missing identity.
    Unknown,
    /// What was told is not an address: an invalid identity.
    Unparsable,
}

impl ClientAddress {
    /// The client of an address without port, brackets or zone; unknown where `text` is blank.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let text = text.trim();
        if text.is_empty() {
            return Self::Unknown;
        }
        text.parse().map_or(Self::Unparsable, |address: IpAddr| {
            Self::Known(address.to_canonical())
        })
    }
}

impl fmt::Debug for ClientAddress {
    /// Without the address, which is an identity (contract §4).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Known(IpAddr::V4(_)) => "Known(IPv4)",
            Self::Known(IpAddr::V6(_)) => "Known(IPv6)",
            Self::Unknown => "Unknown",
            Self::Unparsable => "Unparsable",
        })
    }
}

/// Header lines that can be looked up by name. `Sync`, so that a decision may be awaited on any thread.
pub trait HeaderLines: Sync {
    /// Shows `visit` the value of every line called `name`, in order, neither joined nor trimmed. `name` is in lower case; the
    /// names of lines ignore case.
    fn each<'a>(&'a self, name: &str, visit: &mut dyn FnMut(&'a [u8]));
}

impl HeaderLines for HeaderMap {
    fn each<'a>(&'a self, name: &str, visit: &mut dyn FnMut(&'a [u8])) {
        for value in self.get_all(name) {
            visit(value.as_bytes());
        }
    }
}

impl<N: AsRef<[u8]> + Sync, V: AsRef<[u8]> + Sync> HeaderLines for [(N, V)] {
    fn each<'a>(&'a self, name: &str, visit: &mut dyn FnMut(&'a [u8])) {
        for (own, value) in self {
            if own.as_ref().eq_ignore_ascii_case(name.as_bytes()) {
                visit(value.as_ref());
            }
        }
    }
}

impl<N: AsRef<[u8]> + Sync, V: AsRef<[u8]> + Sync, const COUNT: usize> HeaderLines
    for [(N, V); COUNT]
{
    fn each<'a>(&'a self, name: &str, visit: &mut dyn FnMut(&'a [u8])) {
        self.as_slice().each(name, visit);
    }
}

impl<N: AsRef<[u8]> + Sync, V: AsRef<[u8]> + Sync> HeaderLines for Vec<(N, V)> {
    fn each<'a>(&'a self, name: &str, visit: &mut dyn FnMut(&'a [u8])) {
        self.as_slice().each(name, visit);
    }
}

impl<H: HeaderLines + ?Sized> HeaderLines for &H {
    fn each<'a>(&'a self, name: &str, visit: &mut dyn FnMut(&'a [u8])) {
        (**self).each(name, visit);
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[track_caller]
    fn check(headers: &dyn HeaderLines, name: &str, expected: &[&str]) {
        let mut values = Vec::new();
        headers.each(name, &mut |value| {
            values.push(std::str::from_utf8(value).unwrap());
        });
        assert_eq!(values, expected);
    }

    #[test]
    fn every_line_of_a_name_is_seen_in_order() {
        let pairs = [("X-A", "1"), ("x-b", "2"), ("x-a", " 3 ")];
        check(&pairs, "x-a", &["1", " 3 "]);
        check(&pairs, "x-b", &["2"]);
        check(&pairs, "x-c", &[]);
        check(&&pairs[..2], "x-a", &["1"]);
        check(&pairs.to_vec(), "x-a", &["1", " 3 "]);
        let mut map = HeaderMap::new();
        map.append("x-a", HeaderValue::from_static("1"));
        map.append("x-b", HeaderValue::from_static("2"));
        map.append("x-a", HeaderValue::from_static("3"));
        check(&map, "x-a", &["1", "3"]);
        check(&map, "x-c", &[]);
    }

    #[test]
    fn an_address_is_parsed_to_its_canonical_form() {
        #[track_caller]
        fn check(text: &str, expected: ClientAddress) {
            assert!(ClientAddress::parse(text) == expected, "{text}");
        }
        let known = |text: &str| ClientAddress::Known(text.parse().unwrap());
        check("192.0.2.7", known("192.0.2.7"));
        check(" 192.0.2.7\t", known("192.0.2.7"));
        check("::ffff:192.0.2.7", known("192.0.2.7"));
        check("2001:DB8:0::1", known("2001:db8::1"));
        check("", ClientAddress::Unknown);
        check("  ", ClientAddress::Unknown);
        check("192.0.2.7:80", ClientAddress::Unparsable);
        check("[2001:db8::1]", ClientAddress::Unparsable);
        check("192.0.2.256", ClientAddress::Unparsable);
        check("unknown", ClientAddress::Unparsable);
    }

    #[test]
    fn debug_output_holds_no_identity() {
        let headers = [("authorization", "Bearer secret")];
        let request = Request {
            route: Some("checkout"),
            client: ClientAddress::parse("192.0.2.7"),
            query: Some(b"key=secret"),
            headers: &headers,
        };
        let shown = format!("{request:?} {:?}", request.client);
        assert!(shown.contains("checkout"));
        assert!(!shown.contains("secret") && !shown.contains("192.0.2"));
    }
}

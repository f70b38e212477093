//! The client behind trusted proxies: which address of a connection and its `X-Forwarded-For` lines may be believed.
//!
//! Only a trusted peer may name a client. From any other peer every forwarded header is ignored and the client is the peer
//! itself; a trusted peer that names no client leaves it unknown, and never becomes the client (contract §4).

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use smallvec::SmallVec;

use crate::request::{ClientAddress, HeaderLines};

/// The header a proxy names its clients in; each proxy appends the address it was called from.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// The word that trusts nobody.
const NONE: &str = "none";

/// Who called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A TCP peer.
    Ip(IpAddr),
    /// A peer on a unix socket: it has no address.
    Unix,
}

/// The peers whose word about the client is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedProxies {
    nets: Vec<IpNet>,
    unix: bool,
}

impl Default for TrustedProxies {
    /// Loopback addresses and unix sockets.
    fn default() -> Self {
        Self {
            nets: vec![
                IpNet::V4(Ipv4Net::new_assert(
                    std::net::Ipv4Addr::new(127, 0, 0, 0),
                    8,
                )),
                IpNet::V6(Ipv6Net::new_assert(std::net::Ipv6Addr::LOCALHOST, 128)),
            ],
            unix: true,
        }
    }
}

/// Why a list of trusted proxies was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TrustedProxiesError {
    /// An entry is neither an address nor a network.
    #[error(
        "`{0}` is neither an IP address nor a network such as `10.0.0.0/8`, nor the word `none`"
    )]
    Malformed(String),
    /// `none` stands beside an entry.
    #[error("`none` trusts nobody and cannot stand beside `{0}`")]
    NoneAmongOthers(String),
}

impl TrustedProxies {
    /// Trusts nobody, peers on unix sockets included: every TCP peer is its own client.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            nets: Vec::new(),
            unix: false,
        }
    }

    /// Trusts these networks, and peers on unix sockets.
    #[must_use]
    pub fn of(nets: impl IntoIterator<Item = IpNet>) -> Self {
        Self {
            nets: nets.into_iter().map(canonical_net).collect(),
            unix: true,
        }
    }

    /// Reads the entries of a command line: addresses and networks, or the one word `none`. No entry at all gives the
    /// default.
    ///
    /// # Errors
    ///
    /// An entry is malformed, or `none` stands beside others.
    pub fn parse<S: AsRef<str>>(entries: &[S]) -> Result<Self, TrustedProxiesError> {
        let words = || entries.iter().map(|entry| entry.as_ref().trim());
        if words().next().is_none() {
            return Ok(Self::default());
        }
        if words().any(|word| word.eq_ignore_ascii_case(NONE)) {
            return match words().find(|word| !word.eq_ignore_ascii_case(NONE)) {
                Some(other) => Err(TrustedProxiesError::NoneAmongOthers(other.to_owned())),
                None => Ok(Self::none()),
            };
        }
        let nets = words().map(|word| {
            word.parse::<IpNet>()
                .or_else(|_| word.parse::<IpAddr>().map(IpNet::from))
                .map_err(|_| TrustedProxiesError::Malformed(word.to_owned()))
        });
        Ok(Self::of(nets.collect::<Result<Vec<_>, _>>()?))
    }

    /// Whether the word of `peer` is taken.
    #[must_use]
    pub fn trusts(&self, peer: Peer) -> bool {
        match peer {
            Peer::Unix => self.unix,
            Peer::Ip(address) => self.contains(address.to_canonical()),
        }
    }

    /// The client of a request that came from `peer` with these headers.
    ///
    /// The `X-Forwarded-For` lines are joined in order and walked from the right: trusted addresses are skipped, the first
    /// other one is the client. A malformed element met on that walk makes the client unparsable, since what stands left of
    /// it is anybody's word. Where every address is trusted, the leftmost is the client.
    #[must_use]
    pub fn client(&self, peer: Peer, headers: &dyn HeaderLines) -> ClientAddress {
        if !self.trusts(peer) {
            return match peer {
                Peer::Ip(address) => ClientAddress::Known(address.to_canonical()),
                Peer::Unix => ClientAddress::Unknown,
            };
        }
        let mut lines = SmallVec::<[&[u8]; 4]>::new();
        headers.each(FORWARDED_FOR, &mut |line| lines.push(line));
        if lines.iter().all(|line| line.trim_ascii().is_empty()) {
            return ClientAddress::Unknown;
        }
        let elements = lines
            .iter()
            .rev()
            .flat_map(|line| line.rsplit(|byte| *byte == b','));
        let mut leftmost = ClientAddress::Unknown;
        for element in elements {
            let Some(address) = parse_element(element) else {
                return ClientAddress::Unparsable;
            };
            leftmost = ClientAddress::Known(address);
            if !self.contains(address) {
                break;
            }
        }
        leftmost
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.nets.iter().any(|net| net.contains(&address))
    }
}

/// A network of IPv4-mapped IPv6 addresses as the IPv4 network it is, since addresses are compared in that form.
fn canonical_net(net: IpNet) -> IpNet {
    if let IpNet::V6(v6) = net
        && let Some(mapped) = v6.addr().to_ipv4_mapped()
        && let Some(prefix) = v6.prefix_len().checked_sub(96)
        && let Ok(v4) = Ipv4Net::new(mapped, prefix)
    {
        return IpNet::V4(v4);
    }
    net
}

/// The address of one `X-Forwarded-For` element, without port, brackets and zone id; an IPv4-mapped one as IPv4.
fn parse_element(element: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(element).ok()?.trim();
    let address = if let Some(rest) = text.strip_prefix('[') {
        let (inside, after) = rest.split_once(']')?;
        if let Some(port) = after.strip_prefix(':') {
            parse_port(port)?;
        } else if !after.is_empty() {
            return None;
        }
        parse_v6(inside)?
    } else {
        match text.split_once(':') {
            // More than one colon: an IPv6 address, which takes a port in brackets only.
            Some((_, rest)) if rest.contains(':') => parse_v6(text)?,
            Some((address, port)) => {
                parse_port(port)?;
                IpAddr::V4(address.parse().ok()?)
            }
            None => IpAddr::V4(text.parse().ok()?),
        }
    };
    Some(address.to_canonical())
}

fn parse_v6(text: &str) -> Option<IpAddr> {
    let address = match text.split_once('%') {
        Some((_, "")) => return None,
        Some((address, _zone)) => address,
        None => text,
    };
    Some(IpAddr::V6(address.parse().ok()?))
}

fn parse_port(text: &str) -> Option<u16> {
    // `parse` alone would take a sign.
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        text.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn known(text: &str) -> ClientAddress {
        ClientAddress::Known(ip(text))
    }

    /// Peer 10.0.0.1, trusting `10.0.0.0/8` and `2001:db8:ffff::/48`.
    #[track_caller]
    fn check(lines: &[&str], expected: &ClientAddress) {
        let proxies = TrustedProxies::parse(&["10.0.0.0/8", "2001:db8:ffff::/48"]).unwrap();
        let headers: Vec<_> = lines
            .iter()
            .map(|line| ("X-Forwarded-For", *line))
            .collect();
        assert_eq!(
            &proxies.client(Peer::Ip(ip("10.0.0.1")), &headers),
            expected,
            "{lines:?}"
        );
    }

    #[test]
    fn the_rightmost_untrusted_address_is_the_client() {
        check(&["192.0.2.7"], &known("192.0.2.7"));
        check(&["9.9.9.9, 192.0.2.7"], &known("192.0.2.7"));
        check(&["9.9.9.9", "192.0.2.7"], &known("192.0.2.7"));
        check(&["9.9.9.9, 192.0.2.7, 10.1.1.1"], &known("192.0.2.7"));
        check(
            &["9.9.9.9, 192.0.2.7", "10.1.1.1, 10.2.2.2"],
            &known("192.0.2.7"),
        );
    }

    #[test]
    fn where_all_are_trusted_the_leftmost_is_the_client() {
        check(&["10.9.9.9, 10.1.1.1"], &known("10.9.9.9"));
        check(&["10.9.9.9", "10.1.1.1"], &known("10.9.9.9"));
    }

    #[test]
    fn a_trusted_peer_that_names_nobody_leaves_the_client_unknown() {
        check(&[], &ClientAddress::Unknown);
        check(&[""], &ClientAddress::Unknown);
        check(&[" ", ""], &ClientAddress::Unknown);
    }

    #[test]
    fn a_malformed_element_on_the_walk_is_unparsable() {
        check(&["192.0.2.7, unknown"], &ClientAddress::Unparsable);
        check(&["192.0.2.7,"], &ClientAddress::Unparsable);
        check(&["192.0.2.7", ""], &ClientAddress::Unparsable);
        check(&["192.0.2.7, 10.1.1.1, x"], &ClientAddress::Unparsable);
        check(&["192.0.2.256"], &ClientAddress::Unparsable);
        check(&["192.0.2.7:"], &ClientAddress::Unparsable);
        check(&["192.0.2.7:+1"], &ClientAddress::Unparsable);
        check(&["192.0.2.7:70000"], &ClientAddress::Unparsable);
        check(&["[2001:db8::1"], &ClientAddress::Unparsable);
        check(&["[2001:db8::1]x"], &ClientAddress::Unparsable);
        check(&["[192.0.2.7]"], &ClientAddress::Unparsable);
        check(&["fe80::1%"], &ClientAddress::Unparsable);
    }

    #[test]
    fn what_stands_left_of_the_client_is_not_read() {
        check(&["rubbish, 192.0.2.7"], &known("192.0.2.7"));
        check(&["rubbish", "192.0.2.7, 10.1.1.1"], &known("192.0.2.7"));
    }

    #[test]
    fn ports_brackets_zones_and_mapped_addresses_are_normalised() {
        check(&["192.0.2.7:4711"], &known("192.0.2.7"));
        check(&["2001:db8::1"], &known("2001:db8::1"));
        check(&["[2001:db8::1]"], &known("2001:db8::1"));
        check(&["[2001:db8::1]:4711"], &known("2001:db8::1"));
        check(&["fe80::1%eth0"], &known("fe80::1"));
        check(&["[fe80::1%25eth0]:1"], &known("fe80::1"));
        check(&["::ffff:192.0.2.7"], &known("192.0.2.7"));
        check(&["192.0.2.7, ::ffff:10.1.1.1"], &known("192.0.2.7"));
        check(&["192.0.2.7, 2001:db8:ffff::1"], &known("192.0.2.7"));
    }

    #[test]
    fn headers_from_an_untrusted_peer_are_ignored() {
        let proxies = TrustedProxies::default();
        let headers = [("x-forwarded-for", "9.9.9.9")];
        let client = |peer| proxies.client(Peer::Ip(ip(peer)), &headers);
        assert_eq!(client("192.0.2.7"), known("192.0.2.7"));
        assert_eq!(client("::ffff:192.0.2.7"), known("192.0.2.7"));
        assert_eq!(client("127.0.0.1"), known("9.9.9.9"));
        assert_eq!(client("::ffff:127.0.0.1"), known("9.9.9.9"));
        assert_eq!(client("::1"), known("9.9.9.9"));
    }

    #[test]
    fn unix_peers_are_trusted_unless_nobody_is() {
        let headers = [("x-forwarded-for", "9.9.9.9")];
        let client = |proxies: &TrustedProxies| proxies.client(Peer::Unix, &headers);
        assert_eq!(client(&TrustedProxies::default()), known("9.9.9.9"));
        assert_eq!(client(&TrustedProxies::none()), ClientAddress::Unknown);
        let one = TrustedProxies::parse(&["192.0.2.1"]).unwrap();
        assert_eq!(client(&one), known("9.9.9.9"));
    }

    #[test]
    fn entries_are_networks_addresses_or_none() {
        assert_eq!(
            TrustedProxies::parse::<&str>(&[]),
            Ok(TrustedProxies::default())
        );
        assert_eq!(TrustedProxies::parse(&["none"]), Ok(TrustedProxies::none()));
        assert_eq!(
            TrustedProxies::parse(&["none", "10.0.0.0/8"]),
            Err(TrustedProxiesError::NoneAmongOthers(
                "10.0.0.0/8".to_owned()
            ))
        );
        assert_eq!(
            TrustedProxies::parse(&["10.0.0.0/33"]),
            Err(TrustedProxiesError::Malformed("10.0.0.0/33".to_owned()))
        );
        let mapped = TrustedProxies::parse(&["::ffff:10.0.0.0/104"]).unwrap();
        assert!(mapped.trusts(Peer::Ip(ip("10.2.3.4"))));
        assert!(!mapped.trusts(Peer::Ip(ip("11.2.3.4"))));
    }
}

//! Redis URLs, as the `redis` crate reads them. No fault shows any part of the URL: it may hold a password, also in a place
//! where none belongs.

use percent_encoding::percent_decode_str;
use url::{Host, Url};

/// Why a URL is no Redis URL, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UrlFault {
    pub(super) message: String,
    pub(super) help: &'static str,
}

const FORMS: &str =
    "write `redis://host:port/db`, `rediss://host:port/db` for TLS or `redis+unix:///path?db=0`";
/// A password that holds such a character ends the part of the URL it stands in, so that what follows is read as another.
const ENCODE: &str = "write `redis://host:port/db`; percent-encode `@`, `:`, `/`, `?` and `#` in a user name or password";

fn found(message: impl Into<String>, help: &'static str) -> Option<UrlFault> {
    let message = message.into();
    Some(UrlFault { message, help })
}

/// Why `url` is no Redis URL; `None` where it is one.
pub(super) fn fault(url: &str) -> Option<UrlFault> {
    let parsed = match Url::parse(url) {
        Ok(parsed) => parsed,
        Err(url::ParseError::RelativeUrlWithoutBase) => return found("URL has no scheme", FORMS),
        Err(url::ParseError::EmptyHost) => return found("URL names no host", FORMS),
        Err(error) => return found(format!("URL cannot be read: {error}"), ENCODE),
    };
    match parsed.scheme() {
        "redis" | "valkey" => tcp_fault(&parsed),
        "rediss" | "valkeys" => tcp_fault(&parsed).or_else(|| fragment_fault(&parsed)),
        "unix" | "redis+unix" | "valkey+unix" => unix_fault(&parsed),
        _ => found("URL scheme is not one of a Redis server", FORMS),
    }
    .or_else(|| protocol_fault(&parsed))
}

fn tcp_fault(url: &Url) -> Option<UrlFault> {
    let host = match url.host() {
        None => String::new(),
        Some(Host::Domain(name)) => name.to_owned(),
        Some(Host::Ipv4(address)) => address.to_string(),
        Some(Host::Ipv6(address)) => address.to_string(),
    };
    if host.is_empty() {
        return found("URL names no host", FORMS);
    }
    if matches!(host.as_str(), "0.0.0.0" | "::") {
        return found(
            "URL names the wildcard address, which is no server",
            "name the server, such as `redis://127.0.0.1:6379`",
        );
    }
    let database = url.path().trim_matches('/');
    if !database.is_empty() && !is_database(database) {
        return found("database in the URL's path is not a number", ENCODE);
    }
    let is_text = |part: &str| percent_decode_str(part).decode_utf8().is_ok();
    if !is_text(url.username()) || !url.password().is_none_or(is_text) {
        return found(
            "user name or password in the URL is not UTF-8",
            "percent-encode the bytes of its UTF-8",
        );
    }
    None
}

fn fragment_fault(url: &Url) -> Option<UrlFault> {
    match url.fragment() {
        None | Some("insecure") => None,
        Some(_) => found(
            "URL has a fragment other than `#insecure`",
            "remove it; percent-encode `#` in a user name or password as `%23`",
        ),
    }
}

fn unix_fault(url: &Url) -> Option<UrlFault> {
    let path_is_absolute = !url.cannot_be_a_base() && url.path().len() > 1;
    if !path_is_absolute || !matches!(url.host_str(), None | Some("" | "localhost")) {
        return found(
            "URL names no socket path",
            "write `redis+unix:///path/to/the.sock`",
        );
    }
    let databases = url.query_pairs().filter(|(name, _)| name == "db");
    if databases.last().is_some_and(|(_, db)| !is_database(&db)) {
        return found(
            "database in the URL's query is not a number",
            "write a number, such as `?db=0`",
        );
    }
    None
}

fn protocol_fault(url: &Url) -> Option<UrlFault> {
    let last = url
        .query_pairs()
        .filter(|(name, _)| name == "protocol")
        .last();
    let (_, protocol) = last?;
    if matches!(protocol.as_ref(), "2" | "resp2" | "3" | "resp3") {
        return None;
    }
    found(
        "protocol in the URL's query is neither `resp2` nor `resp3`",
        "write one of the two, or leave `protocol` out",
    )
}

/// Redis numbers its databases from 0.
fn is_database(text: &str) -> bool {
    text.parse::<i64>().is_ok_and(|number| number >= 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(url: &str, expected: Option<&str>) {
        let message = fault(url).map(|fault| fault.message);
        assert_eq!(message.as_deref(), expected);
    }

    #[test]
    fn what_the_redis_crate_accepts_is_accepted() {
        for url in [
            "redis://localhost",
            "redis://127.0.0.1:6379",
            "redis://h:6379/",
            "redis://h/15",
            "redis://[::1]:6379/1",
            "redis://user:p%40ss@h:6379/1?protocol=resp3",
            "redis://:secret@h",
            "REDIS://h",
            "rediss://h:6380",
            "rediss://h/0#insecure",
            "valkey://h",
            "valkeys://h",
            "unix:///run/redis.sock",
            "redis+unix:///run/redis.sock?db=1&user=u&pass=p",
            "valkey+unix:///run/valkey.sock",
            "redis+unix://localhost/run/redis.sock",
        ] {
            check(url, None);
        }
    }

    #[test]
    fn what_is_no_redis_url_says_why() {
        check("localhost", Some("URL has no scheme"));
        check("/run/redis.sock", Some("URL has no scheme"));
        check("http://h", Some("URL scheme is not one of a Redis server"));
        check(
            "localhost:6379",
            Some("URL scheme is not one of a Redis server"),
        );
        check("redis:h", Some("URL names no host"));
        check("redis://", Some("URL names no host"));
        check("redis:///1", Some("URL names no host"));
        check("redis://:6379", Some("URL names no host"));
        check("redis://u:p@", Some("URL names no host"));
        check(
            "redis://h:70000",
            Some("URL cannot be read: invalid port number"),
        );
        check(
            "redis://0.0.0.0:6379",
            Some("URL names the wildcard address, which is no server"),
        );
        check(
            "redis://[::]",
            Some("URL names the wildcard address, which is no server"),
        );
        check(
            "redis://h/one",
            Some("database in the URL's path is not a number"),
        );
        check(
            "redis://h/-1",
            Some("database in the URL's path is not a number"),
        );
        check(
            "redis://u:%ff@h",
            Some("user name or password in the URL is not UTF-8"),
        );
        check(
            "rediss://h#secure",
            Some("URL has a fragment other than `#insecure`"),
        );
        check("redis+unix://", Some("URL names no socket path"));
        check("unix:run.sock", Some("URL names no socket path"));
        check("unix://h/run.sock", Some("URL names no socket path"));
        check(
            "unix:///run.sock?db=x",
            Some("database in the URL's query is not a number"),
        );
        check(
            "redis://h?protocol=4",
            Some("protocol in the URL's query is neither `resp2` nor `resp3`"),
        );
    }

    #[test]
    fn a_fault_never_shows_a_password() {
        for url in [
            "redis://u:pa55word/more@h/0",
            "redis://u:123/pa55word@h/0",
            "redis://u:pa55word#@h",
            "redis://u:pa55word@h:99999",
            "pa55word:x@h",
            "redis:u:pa55word@h",
            "redis://h?protocol=pa55word",
        ] {
            let message = fault(url).expect("a fault").message;
            assert!(!message.contains("pa55"), "{message}");
        }
    }
}

//! The daemon's own bounds: slow clients, oversized requests and floods are turned away, decisions go on, and nothing of it
//! looks like a quota outcome (contract §8).

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use quota_test_support::client::Connection;
use quota_test_support::services::{PATIENCE, Quotad, wait_for};

use crate::policy_file::{PolicyFile, per_tenant};

const KITE: [(&str, &str); 1] = [("x-tenant-id", "kite")];

/// A client that writes what it likes.
fn raw(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// What the server says until it closes the connection. A reset is an end too: it is what a server's close becomes when
/// there was more to read.
#[track_caller]
fn read_to_end(stream: &mut TcpStream) -> String {
    let mut said = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(length) => said.extend_from_slice(&chunk[..length]),
            Err(error) => {
                assert_eq!(
                    error.kind(),
                    ErrorKind::ConnectionReset,
                    "the server keeps the connection open"
                );
                break;
            }
        }
    }
    String::from_utf8(said).unwrap()
}

/// Sends as much of `request` as the server takes and reads what it says until it closes the connection.
#[track_caller]
fn say(to: SocketAddr, request: &[u8]) -> String {
    let mut stream = raw(to);
    let _cut_off_while_sending = stream.write_all(request);
    read_to_end(&mut stream)
}

#[track_caller]
fn assert_no_verdict(said: &str, status: &str) {
    assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{said}");
    let said = said.to_ascii_lowercase();
    for word in ["x-quota-", "ratelimit", "retry-after"] {
        assert!(!said.contains(word), "{said}");
    }
}

/// How often the decision listener turned something away for `reason`.
#[track_caller]
fn rejections(quotad: &Quotad, reason: &str) -> f64 {
    quotad
        .metrics()
        .sum(
            "quotad_http_rejections_total",
            &[("listener", "decision"), ("reason", reason)],
        )
        .unwrap()
}

#[track_caller]
fn wait_for_rejections(quotad: &Quotad, reason: &str, count: f64) {
    let what = format!("{count} rejections for {reason}");
    wait_for(&what, || {
        (rejections(quotad, reason) >= count).then_some(())
    });
    assert_eq!(rejections(quotad, reason), count);
}

fn all_rejections(quotad: &Quotad) -> f64 {
    let metrics = quotad.metrics();
    metrics.sum("quotad_http_rejections_total", &[]).unwrap()
}

/// Policy outcomes counted so far.
fn outcomes(quotad: &Quotad) -> f64 {
    let metrics = quotad.metrics();
    metrics
        .sum("impulse_quota_policy_outcomes_total", &[])
        .unwrap()
}

#[test]
fn slow_heads_are_cut_off() {
    let file = PolicyFile::new(&per_tenant(100));
    let quotad = Quotad::start_with(file.path(), &["--client-timeout", "1"]);
    let address = quotad.address();

    let mut silent = raw(address);
    let mut halting = raw(address);
    halting.write_all(b"GET /v1/forward-auth/a HTTP").unwrap();
    let dripping = raw(address);
    let mut writer = dripping.try_clone().unwrap();
    let drip = thread::spawn(move || {
        let mut line = b"GET /v1/forward-auth/a HTTP/1.1\r\n".as_slice();
        // Each line comes in time; together they never end.
        while writer.write_all(line).is_ok() {
            line = b"X: y\r\n";
            thread::sleep(Duration::from_millis(20));
        }
    });
    // The second request of a connection is no slower allowed than the first.
    let mut second = raw(address);
    second
        .write_all(b"GET /v1/forward-auth/a HTTP/1.1\r\nHost: a\r\n\r\nGET /v1/forward-auth/a HT")
        .unwrap();

    for stream in [&mut silent, &mut halting, &mut { dripping }] {
        let said = read_to_end(stream);
        assert!(
            said.is_empty() || said.starts_with("HTTP/1.1 408 "),
            "{said}"
        );
    }
    let said = read_to_end(&mut second);
    assert!(said.starts_with("HTTP/1.1 429 "), "{said}");
    assert_eq!(said.matches("HTTP/1.1 429 ").count(), 1, "{said}");
    drip.join().unwrap();
    // The second head ended as a kept-alive connection does that nobody uses: closed, and no rejection.
    wait_for_rejections(&quotad, "slow_client", 3.0);
    assert_eq!(outcomes(&quotad), 1.0);
}

#[test]
fn clients_that_never_read_are_cut_off() {
    let file = PolicyFile::new(&per_tenant(100));
    let quotad = Quotad::start_with(file.path(), &["--client-timeout", "1"]);
    let mut stream = raw(quotad.address());
    let requests = "GET /v1/forward-auth/a HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1000);
    // Answers pile up until the system takes no more of them; from then on the daemon waits for this client.
    let cut_off = (0..100_000)
        .find_map(|_| stream.write_all(requests.as_bytes()).err())
        .unwrap();
    assert!(
        matches!(
            cut_off.kind(),
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
        ),
        "{cut_off}"
    );
    assert_eq!(
        quotad.connect().get("/v1/forward-auth/a", &KITE).status,
        200
    );
}

#[test]
fn a_connection_nobody_uses_is_closed_and_no_rejection() {
    let file = PolicyFile::new(&per_tenant(100));
    let quotad = Quotad::start_with(file.path(), &["--client-timeout", "1"]);
    let mut idle = raw(quotad.address());
    idle.write_all(b"GET /v1/forward-auth/a HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    let said = read_to_end(&mut idle);
    assert!(said.starts_with("HTTP/1.1 429 "), "{said}");
    assert_eq!(all_rejections(&quotad), 0.0);
}

#[test]
fn slow_bodies_are_cut_off() {
    let file = PolicyFile::new(&per_tenant(100));
    let quotad = Quotad::start(file.path());
    let said = say(
        quotad.address(),
        b"POST /v1/decide HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{\"route\": ",
    );
    assert_no_verdict(&said, "408");
    assert_eq!(rejections(&quotad, "slow_client"), 1.0);
    assert_eq!(outcomes(&quotad), 0.0);
}

#[test]
fn oversized_heads_are_refused() {
    let file = PolicyFile::new(&per_tenant(100));
    let quotad = Quotad::start(file.path());
    let long_line = format!(
        "GET /v1/forward-auth/a HTTP/1.1\r\nHost: a\r\nX-Tenant-Id: {}\r\n\r\n",
        "k".repeat(100_000)
    );
    let many_lines = format!(
        "GET /v1/forward-auth/a HTTP/1.1\r\nHost: a\r\n{}\r\n",
        "X-Tenant-Id: kite\r\n".repeat(1000)
    );
    for head in [long_line, many_lines] {
        assert_no_verdict(&say(quotad.address(), head.as_bytes()), "431");
    }
    wait_for_rejections(&quotad, "head_too_large", 2.0);
    assert_eq!(outcomes(&quotad), 0.0);
}

#[test]
fn a_head_of_ordinary_size_is_not() {
    let file = PolicyFile::new(&per_tenant(100));
    let quotad = Quotad::start(file.path());
    // What nginx passes on at most by default: large_client_header_buffers 4 8k.
    let cookie = "c".repeat(8000);
    let headers = [
        KITE[0],
        ("cookie", cookie.as_str()),
        ("cookie", cookie.as_str()),
        ("cookie", cookie.as_str()),
        ("cookie", cookie.as_str()),
    ];
    let answer = quotad.connect().get("/v1/forward-auth/a", &headers);
    assert_eq!(answer.status, 200);
}

#[test]
fn oversized_bodies_are_refused_where_they_are_read() {
    let file = PolicyFile::new(&per_tenant(100));
    let quotad = Quotad::start(file.path());
    let body = format!("{{\"uri\": \"/{}\"}}", "a".repeat(300_000));
    let request = format!(
        "POST /v1/decide HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    assert_no_verdict(&say(quotad.address(), request.as_bytes()), "413");
    assert_eq!(rejections(&quotad, "body_too_large"), 1.0);
    assert_eq!(outcomes(&quotad), 0.0);
}

#[test]
fn bodies_of_forwarded_requests_are_never_waited_for() {
    let file = PolicyFile::new(&per_tenant(100));
    let quotad = Quotad::start(file.path());
    let head = |framing: &str| {
        format!(
            "POST /v1/forward-auth/a HTTP/1.1\r\nHost: a\r\nX-Tenant-Id: kite\r\n{framing}\r\n\r\n"
        )
    };
    // The verdict comes before the body, and the connection does not wait for the rest.
    let mut stream = raw(quotad.address());
    let framing = format!("Content-Length: {}", 1_u64 << 40);
    stream.write_all(head(&framing).as_bytes()).unwrap();
    let said = read_to_end(&mut stream);
    assert!(said.starts_with("HTTP/1.1 200 OK\r\n"), "{said}");

    // A body without end is cut off.
    let mut stream = raw(quotad.address());
    stream
        .write_all(head("Transfer-Encoding: chunked").as_bytes())
        .unwrap();
    let chunk = format!("10000\r\n{}\r\n", "b".repeat(0x10000));
    let taken = (0..10_000)
        .take_while(|_| stream.write_all(chunk.as_bytes()).is_ok())
        .count();
    assert!(taken < 10_000, "{taken} chunks");

    // A small one costs nothing: the connection is kept.
    let mut stream = raw(quotad.address());
    let whole = format!("{}hello", head("Content-Length: 5"));
    stream.write_all(whole.as_bytes()).unwrap();
    let mut first = [0; "HTTP/1.1 200 OK\r\n".len()];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK\r\n");
    stream
        .write_all(head("Content-Length: 0\r\nConnection: close").as_bytes())
        .unwrap();
    let rest = read_to_end(&mut stream);
    assert_eq!(rest.matches("HTTP/1.1 200 OK\r\n").count(), 1, "{rest}");
    assert_eq!(outcomes(&quotad), 4.0);
}

#[test]
fn what_is_not_http_is_refused() {
    let file = PolicyFile::new(&per_tenant(100));
    let quotad = Quotad::start(file.path());
    let tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".as_slice();
    let smuggled = b"GET /v1/forward-auth/a HTTP/1.1\r\nHost: a\r\nX Y: z\r\n\r\n".as_slice();
    let framed_twice =
        b"POST /v1/decide HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"
            .as_slice();
    for garbage in [tls, smuggled, framed_twice] {
        assert_no_verdict(&say(quotad.address(), garbage), "400");
    }
    wait_for_rejections(&quotad, "bad_request", 3.0);
    assert_eq!(outcomes(&quotad), 0.0);
}

#[test]
fn a_flood_of_connections_is_bounded_while_decisions_go_on() {
    // The quota backend is of no use meanwhile: nothing of this depends on it.
    let file = PolicyFile::new(&format!(
        "backend: {{kind: in_memory, max_entries: 1}}\n{}",
        per_tenant(1000)
    ));
    let quotad = Quotad::start_with(file.path(), &["--max-connections", "8"]);
    let mut open: Vec<Connection> = (0..8).map(|_| quotad.connect()).collect();
    let decide = |client: &mut Connection| {
        let known = client.get("/v1/forward-auth/a", &KITE);
        assert_eq!(known.status, 200);
        let failed = client.get("/v1/forward-auth/a", &[("x-tenant-id", "heron")]);
        assert_eq!(failed.status, 503);
    };
    open.iter_mut().for_each(decide);

    let flood = 200;
    let mut turned_away: Vec<_> = (0..flood).map(|_| raw(quotad.address())).collect();
    open.iter_mut().for_each(decide);
    for stream in &mut turned_away {
        assert_eq!(read_to_end(stream), "");
    }
    open.iter_mut().for_each(decide);
    wait_for_rejections(&quotad, "too_many_connections", f64::from(flood));
    assert_eq!(outcomes(&quotad), 48.0);
    // The admin listener has places of its own.
    assert_eq!(quotad.admin("/readyz").status, 200);

    // A place that becomes free is given to the next.
    drop(open.pop());
    wait_for("a place to become free", || {
        let mut client = quotad.connect();
        let asked = quota_test_support::client::request(
            http::Method::GET,
            "/v1/forward-auth/a",
            &KITE,
            String::new(),
        );
        client.try_send(asked).ok()
    });
}

//! The command: arguments, listeners, signals, and what it says when it cannot start.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use quota_test_support::client::Connection;
use quota_test_support::commands::built;
use quota_test_support::services::{Ended, PATIENCE, Process, Quotad, Signal, wait_for};
use serde_json::json;

use crate::policy_file::{PolicyFile, per_tenant};

const KITE: [(&str, &str); 1] = [("x-tenant-id", "kite")];

/// Every fault of this file is on a line of its own, in this order.
const FAULTY: &str = "\
enabled: maybe
enforcment: shadow
policies:
  - name: ' '
    selector: {tenant: {key: peer_ip}}
    burst: {requests: 0, window_secs: 60}
    sustained:
      requests: 10
      window_secs: 60
";

/// Runs `quotad` to its end.
#[track_caller]
fn run(args: &[&str], policy_file: &Path) -> Ended {
    let mut command = Command::new(&built().quotad);
    Process::run("quotad", command.args(args).arg(policy_file))
}

/// One line that says what is wrong, and nothing else.
#[track_caller]
fn assert_one_line(ended: &Ended, code: i32, says: &[&str]) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    assert_eq!(ended.stdout, "");
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    assert!(
        ended.stderr.starts_with("quotad: error: "),
        "{}",
        ended.stderr
    );
    for part in says {
        assert!(ended.stderr.contains(part), "{}", ended.stderr);
    }
}

/// A request to decide whose head has arrived and whose body has not.
struct InFlight {
    stream: TcpStream,
    body: String,
}

impl InFlight {
    #[track_caller]
    fn start(to: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let body = json!({"headers": [["x-tenant-id", "kite"]]}).to_string();
        // The server says `100 Continue` once somebody waits for the body: from then on the request is in flight.
        write!(
            stream,
            "POST /v1/decide HTTP/1.1\r\nHost: quotad\r\nContent-Length: {}\r\nExpect: 100-continue\r\n\r\n",
            body.len()
        )
        .unwrap();
        let mut go_on = [0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
        stream.read_exact(&mut go_on).unwrap();
        assert!(go_on.starts_with(b"HTTP/1.1 100 "));
        Self { stream, body }
    }

    /// Sends the body and reads until the server closes the connection.
    #[track_caller]
    fn finish(mut self) -> String {
        self.stream.write_all(self.body.as_bytes()).unwrap();
        let mut answer = String::new();
        self.stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

#[track_caller]
fn assert_closed(address: SocketAddr) {
    let refused = TcpStream::connect(address).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn the_help_names_the_defaults_and_every_argument() {
    let mut command = Command::new(&built().quotad);
    let help = Process::run("quotad", command.arg("--help"));
    assert_eq!(help.code, Some(0));
    for part in [
        "POLICY_FILE",
        "--listen <ADDR>",
        "[default: 127.0.0.1:9100]",
        "--admin-listen <ADDR>",
        "[default: 127.0.0.1:9101]",
        "--trusted-proxy <CIDR|none>",
        "--plugin-dir <DIR>",
        "--log-format <LOG_FORMAT>",
        "--check",
        "--max-bytes",
        "--max-events",
    ] {
        assert!(help.stdout.contains(part), "{part}: {}", help.stdout);
    }
    let mut command = Command::new(&built().quotad);
    let version = Process::run("quotad", command.arg("--version"));
    assert_eq!(version.code, Some(0));
    assert_eq!(
        version.stdout,
        format!("quotad {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn a_bad_file_at_the_start_is_refused_with_everything_that_is_wrong_with_it() {
    let file = PolicyFile::new(FAULTY);
    let ended = run(&["--listen", "127.0.0.1:0"], file.path());
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(ended.stdout, "");
    let places: Vec<String> = ended
        .stderr
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("--> "))
        .map(|place| place.rsplit_once('/').unwrap().1.to_owned())
        .collect();
    assert_eq!(
        places,
        [
            "policies.yaml:1:10",
            "policies.yaml:2:1",
            "policies.yaml:4:11",
            "policies.yaml:5:30",
            "policies.yaml:6:23",
            "policies.yaml:6:39",
        ],
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.contains("did you mean `enforcement`?"));
    let last = ended.stderr.lines().last().unwrap();
    assert!(last.starts_with("quotad: error: ") && last.ends_with(" has 6 errors"));
    assert!(!ended.stderr.contains('\x1b'), "no colours into a file");
}

#[test]
fn a_file_that_is_not_there_is_one_line() {
    let file = PolicyFile::new("");
    let missing = file.folder().join("missing.yaml");
    assert_one_line(
        &run(&[], &missing),
        1,
        &["missing.yaml", "No such file or directory"],
    );
    assert_one_line(&run(&[], file.folder()), 1, &["it is not a regular file"]);
}

#[test]
fn an_address_in_use_is_one_line() {
    let file = PolicyFile::new(&per_tenant(1));
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap().to_string();
    let says = [taken.as_str(), "Address already in use"];
    assert_one_line(
        &run(
            &["--listen", &taken, "--admin-listen", "127.0.0.1:0"],
            file.path(),
        ),
        1,
        &says,
    );
    assert_one_line(
        &run(
            &["--listen", "127.0.0.1:0", "--admin-listen", &taken],
            file.path(),
        ),
        1,
        &says,
    );
}

#[test]
fn bad_usage_is_2() {
    let file = PolicyFile::new(&per_tenant(1));
    for args in [
        &["--listen", "localhost"][..],
        &["--listen", "unix:relative.sock"],
        &["--trusted-proxy", "10.0.0.0/40"],
        &["--trusted-proxy", "none", "--trusted-proxy", "127.0.0.1"],
        &["--log-format", "xml"],
        &["--no-such-flag"],
    ] {
        let ended = run(args, file.path());
        assert_eq!(ended.code, Some(2), "{args:?}: {ended:?}");
        assert_eq!(ended.stdout, "");
        assert!(ended.stderr.contains("error: "), "{}", ended.stderr);
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    }
}

#[test]
fn check_says_and_ends_as_quotac_check_does() {
    let good = PolicyFile::new(&per_tenant(1));
    let bad = PolicyFile::new(FAULTY);
    let missing = good.folder().join("missing.yaml");
    for (path, code) in [(good.path(), 0), (bad.path(), 1), (&missing, 2)] {
        let by_daemon = run(&["--check"], path);
        let mut quotac = Command::new(&built().quotac);
        let by_compiler = Process::run("quotac", quotac.arg("check").arg(path));
        assert_eq!(by_daemon, by_compiler);
        assert_eq!(by_daemon.code, Some(code));
    }
}

#[test]
fn check_opens_no_listener() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap().to_string();
    let file = PolicyFile::new(&per_tenant(1));
    let ended = run(&["--check", "--listen", &taken], file.path());
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn sigterm_lets_the_request_in_flight_end() {
    let file = PolicyFile::new(&per_tenant(1));
    let mut quotad = Quotad::start(file.path());
    let address = quotad.address();
    // Connections nothing is in flight on hold nothing up: one that waits for a next request, one that never asked.
    let mut idle = quotad.connect();
    assert_eq!(idle.get("/v1/forward-auth/a", &[]).status, 429);
    let silent = TcpStream::connect(address).unwrap();
    let mut idle_admin = Connection::open(quotad.admin_address());
    assert_eq!(idle_admin.get("/readyz", &[]).status, 200);

    let in_flight = InFlight::start(address);
    quotad.signal(Signal::TERM);
    wait_for("the listener to close", || {
        TcpStream::connect(address).err()
    });
    assert_closed(address);
    let ready = quotad.admin("/readyz");
    assert_eq!(ready.status, 503);
    assert!(ready.body.contains("not draining"), "{ready:?}");
    assert_eq!(quotad.admin("/livez").status, 200);
    assert_eq!(quotad.runtime()["daemon"]["draining"], true);

    let answer = in_flight.finish();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("\"decision\":\"allowed\""), "{answer}");
    assert_eq!(quotad.process().wait().code(), Some(0));
    drop((idle, silent, idle_admin));
}

#[test]
fn sigint_ends_as_sigterm_does() {
    let file = PolicyFile::new(&per_tenant(1));
    let mut quotad = Quotad::start(file.path());
    quotad.signal(Signal::INT);
    assert_eq!(quotad.process().wait().code(), Some(0));
    let messages: Vec<_> = quotad
        .events()
        .iter()
        .map(|event| event["message"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(messages, ["ready", "draining", "ended"]);
}

#[test]
fn a_second_sigterm_ends_at_once() {
    let file = PolicyFile::new(&per_tenant(1));
    let mut quotad = Quotad::start(file.path());
    let _in_flight = InFlight::start(quotad.address());
    quotad.signal(Signal::TERM);
    quotad.wait_for_event("draining");
    quotad.signal(Signal::TERM);
    assert_eq!(
        quotad.process().wait().code(),
        Some(128 + Signal::TERM.as_raw())
    );
}

#[test]
fn the_drain_delay_goes_on_deciding_while_it_is_not_ready() {
    let file = PolicyFile::new(&per_tenant(2));
    let mut quotad = Quotad::start_with(file.path(), &["--drain-delay", "3600"]);
    let mut before = quotad.connect();
    assert_eq!(before.get("/v1/forward-auth/a", &KITE).status, 200);
    quotad.signal(Signal::TERM);
    quotad.wait_for_event("draining");
    assert_eq!(quotad.admin("/readyz").status, 503);
    assert_eq!(before.get("/v1/forward-auth/a", &KITE).status, 200);
    assert_eq!(
        quotad.connect().get("/v1/forward-auth/a", &KITE).status,
        429
    );
    quotad.signal(Signal::TERM);
    assert_eq!(
        quotad.process().wait().code(),
        Some(128 + Signal::TERM.as_raw())
    );
}

#[test]
fn it_listens_on_several_addresses_and_unix_sockets() {
    let file = PolicyFile::new(&per_tenant(3));
    let socket = file.folder().join("decide.sock");
    let unix = format!("unix:{}", socket.display());
    let args = [
        "--listen",
        "127.0.0.1:0",
        "--listen",
        unix.as_str(),
        "--listen",
        "[::1]:0",
    ];
    let mut quotad = Quotad::start_with(file.path(), &args);
    let listening: Vec<String> = quotad
        .listening()
        .into_iter()
        .map(ToOwned::to_owned)
        .collect();
    assert_eq!(listening.len(), 3);
    assert_eq!(listening[1], unix);
    let tcp = [&listening[0], &listening[2]].map(|address| address.parse::<SocketAddr>().unwrap());

    // One engine behind all of them: the counters are shared.
    for address in tcp {
        let answer = Connection::open(address).get("/v1/forward-auth/a", &KITE);
        assert_eq!(answer.status, 200);
    }
    let mut over_unix = Connection::open_unix(&socket);
    assert_eq!(over_unix.get("/v1/forward-auth/a", &KITE).status, 200);
    assert_eq!(over_unix.get("/v1/forward-auth/a", &KITE).status, 429);

    quotad.signal(Signal::TERM);
    assert_eq!(quotad.process().wait().code(), Some(0));
    assert!(!socket.exists(), "the socket file goes with the daemon");
}

#[test]
fn the_socket_file_of_a_daemon_that_was_killed_is_replaced() {
    let file = PolicyFile::new(&per_tenant(1));
    let socket = file.folder().join("decide.sock");
    let unix = format!("unix:{}", socket.display());
    let mut killed = Quotad::start_with(file.path(), &["--listen", &unix]);
    killed.process().kill();
    assert!(socket.exists());

    let running = Quotad::start_with(file.path(), &["--listen", &unix]);
    let answer = Connection::open_unix(&socket).get("/v1/forward-auth/a", &KITE);
    assert_eq!(answer.status, 200);

    // That of a running one is not.
    let third = run(
        &["--listen", &unix, "--admin-listen", "127.0.0.1:0"],
        file.path(),
    );
    assert_one_line(&third, 1, &[&unix, "Address already in use"]);
    let answer = Connection::open_unix(&socket).get("/v1/forward-auth/a", &KITE);
    assert_eq!(answer.status, 429);
    drop(running);
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let file = PolicyFile::new(&per_tenant(1));
    let unix = format!("unix:{}", file.path().display());
    let ended = run(
        &["--listen", &unix, "--admin-listen", "127.0.0.1:0"],
        file.path(),
    );
    assert_one_line(&ended, 1, &[&unix, "Address already in use"]);
    assert_eq!(fs::read_to_string(file.path()).unwrap(), per_tenant(1));
}

#[test]
fn text_logs_are_lines_without_colours_in_a_file() {
    let file = PolicyFile::new(&per_tenant(1));
    let mut command = Command::new(&built().quotad);
    command
        .args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
        .arg(file.path());
    let mut quotad = Process::start("quotad", &mut command);
    let ready = quotad.wait_for("quotad to be ready", |process| {
        let log = process.stderr();
        log.ends_with('\n').then_some(log)
    });
    assert_eq!(ready.lines().count(), 1);
    assert!(ready.contains(" INFO quotad: ready listen=\"127.0.0.1:"));
    assert!(!ready.contains('\x1b'));
}

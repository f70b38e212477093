//! Real servers: started on ports of the system's choice, awaited by condition, ended with their whole process group.
//!
//! A server that is not installed makes a test skip itself by name ([`find_or_skip`]); with `QUOTA_TESTS_REQUIRE_SERVERS=1`
//! it fails instead.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub use rustix::process::Signal;
use rustix::process::{Pid, WaitOptions, kill_process, kill_process_group, waitpid};
use serde_json::Value;
use tempfile::{NamedTempFile, TempDir};
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;

use crate::client::{self, Connection};
use crate::commands::built;

/// How long a condition may take to come true before a test gives up: far longer than it takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Waits until `probe` finds what it looks for.
#[track_caller]
pub fn wait_for<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(since.elapsed() < PATIENCE, "still waiting for {what}");
        thread::sleep(LOOK_EVERY);
    }
}

/// The program `server`, or `None` after a line on standard error that names the test as skipped.
///
/// # Panics
///
/// If the program is missing while `QUOTA_TESTS_REQUIRE_SERVERS=1` says it must not be.
#[must_use]
#[track_caller]
pub fn find_or_skip(server: &str) -> Option<PathBuf> {
    let found = find(server);
    if found.is_none() {
        let required = env::var_os("QUOTA_TESTS_REQUIRE_SERVERS").is_some_and(|set| set == "1");
        assert!(
            !required,
            "QUOTA_TESTS_REQUIRE_SERVERS=1, but there is no {server} on PATH"
        );
        // The test harness names threads after tests, unless it was asked to use one thread only.
        let caller = Location::caller();
        let thread = thread::current();
        let test = match thread.name() {
            Some(name) if name != "main" => name.to_owned(),
            _ => caller.to_string(),
        };
        // Past the harness, which keeps what a test that passes prints to itself.
        let line = format!("skipped: {test} (no {server} on PATH)\n");
        io::stderr()
            .write_all(line.as_bytes())
            .expect("standard error can be written");
    }
    found
}

/// Servers stand in the folders for administrators, which the PATH of other users may lack.
fn find(server: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let administrators = ["/usr/local/sbin", "/usr/sbin"].map(PathBuf::from);
    env::split_paths(&path)
        .chain(administrators)
        .map(|folder| folder.join(server))
        .find(|program| program.is_file())
}

/// An address of 127.0.0.1 for a server that cannot tell which port the system gave it.
///
/// It is held by a socket that is bound and does not listen: the system gives the port to nobody who asks for any, yet a
/// server may bind it, since all of them set `SO_REUSEADDR`.
#[derive(Debug)]
pub struct ReservedAddress(TcpSocket);

impl ReservedAddress {
    /// Reserves one until it is dropped.
    #[must_use]
    pub fn reserve() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket can be made");
        socket
            .set_reuseaddr(true)
            .expect("a new socket can be set up");
        socket
            .bind((Ipv4Addr::LOCALHOST, 0).into())
            .expect("a port is free");
        Self(socket)
    }

    /// The address.
    #[must_use]
    pub fn get(&self) -> SocketAddr {
        self.0.local_addr().expect("a bound socket has an address")
    }
}

/// What came of a program that ran to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it logged.
    pub stderr: String,
}

/// A running program and what it printed. Dropping it kills its process group, and shows the output if the test failed.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    stdout: NamedTempFile,
    stderr: NamedTempFile,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts `command` in a process group of its own.
    #[track_caller]
    pub fn start(name: &str, command: &mut Command) -> Self {
        let file = || NamedTempFile::new().expect("a temporary file can be made");
        let (stdout, stderr) = (file(), file());
        let handle = |file: &NamedTempFile| file.reopen().expect("the file is still there");
        let child = command
            .stdin(Stdio::null())
            .stdout(handle(&stdout))
            .stderr(handle(&stderr))
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        Self {
            name: name.to_owned(),
            child,
            stdout,
            stderr,
            ended: None,
        }
    }

    /// What it has printed so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        read(self.stdout.path())
    }

    /// What it has logged so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        read(self.stderr.path())
    }

    /// How it ended; `None` while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self
                .child
                .try_wait()
                .expect("a child of ours can be waited for");
        }
        self.ended
    }

    /// Waits until it ends by itself.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let what = format!("{} to end", self.name);
        wait_for(&what, || self.ended())
    }

    /// Runs `command` to its end.
    #[track_caller]
    pub fn run(name: &str, command: &mut Command) -> Ended {
        let mut process = Self::start(name, command);
        Ended {
            code: process.wait().code(),
            stdout: process.stdout(),
            stderr: process.stderr(),
        }
    }

    /// Waits until `probe` finds something; a process that ends meanwhile is a failure.
    #[track_caller]
    pub fn wait_for<T>(&mut self, what: &str, mut probe: impl FnMut(&Self) -> Option<T>) -> T {
        wait_for(what, || {
            let found = probe(self);
            if found.is_none()
                && let Some(status) = self.ended()
            {
                panic!("{} ended with {status} before {what}", self.name);
            }
            found
        })
    }

    /// Sends a signal to the process itself.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        assert!(self.ended.is_none(), "{} has ended", self.name);
        kill_process(self.pid(), signal).expect("a child of ours can be signalled");
    }

    /// Stops it, so that the system still accepts connections for it and nobody answers.
    #[track_caller]
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let (_, status) = waitpid(Some(self.pid()), WaitOptions::UNTRACED)
            .expect("a child of ours can be waited for")
            .expect("it was waited for");
        assert!(status.stopped(), "{}: {status:?}", self.name);
    }

    /// Ends the whole group at once.
    pub fn kill(&mut self) {
        if self.ended().is_none() {
            kill_process_group(self.pid(), Signal::KILL).expect("a group of ours can be killed");
            let status = self
                .child
                .wait()
                .expect("a child of ours can be waited for");
            self.ended = Some(status);
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Process {
    #[expect(
        clippy::print_stdout,
        reason = "the test harness shows what the macros printed beside the test that failed"
    )]
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            let (name, status) = (&self.name, self.ended);
            for (stream, text) in [("stdout", self.stdout()), ("stderr", self.stderr())] {
                println!("---- {stream} of {name} ({status:?}) ----\n{text}");
            }
        }
    }
}

fn read(path: &Path) -> String {
    let bytes = fs::read(path).expect("a file of ours can be read");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A running `quotad` that answers.
#[derive(Debug)]
pub struct Quotad {
    process: Process,
    listen: String,
    admin: SocketAddr,
}

impl Quotad {
    /// Starts it on `policy_file` and waits until it is ready.
    #[must_use]
    #[track_caller]
    pub fn start(policy_file: &Path) -> Self {
        Self::start_with(policy_file, &[])
    }

    /// The same with further arguments; `--listen` among them replaces the port of the system's choice.
    #[must_use]
    #[track_caller]
    pub fn start_with(policy_file: &Path, args: &[&str]) -> Self {
        let mut command = Command::new(&built().quotad);
        command
            .args(["--log-format", "json", "--admin-listen", "127.0.0.1:0"])
            .args(args)
            .arg(policy_file);
        if !args.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        let mut process = Process::start("quotad", &mut command);
        let ready = process.wait_for("quotad to be ready", |process| {
            events(process)
                .into_iter()
                .find(|event| event["message"] == "ready")
        });
        let text = |field: &str| {
            let text = ready[field].as_str();
            text.unwrap_or_else(|| panic!("the ready line names {field}: {ready}"))
                .to_owned()
        };
        Self {
            process,
            listen: text("listen"),
            admin: text("admin_listen").parse().expect("an address"),
        }
    }

    /// Where it decides.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listen.parse().expect("one TCP address")
    }

    /// Every address it listens on for decisions, as it tells them.
    #[must_use]
    pub fn listening(&self) -> Vec<&str> {
        self.listen.split(',').collect()
    }

    /// Where operators look.
    #[must_use]
    pub const fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    /// A connection to where it decides.
    #[must_use]
    pub fn connect(&self) -> Connection {
        Connection::open(self.address())
    }

    /// An answer of the admin listener.
    #[must_use]
    #[track_caller]
    pub fn admin(&self, uri: &str) -> client::Answer {
        client::get(self.admin, uri, &[])
    }

    /// The admin view.
    #[must_use]
    #[track_caller]
    pub fn runtime(&self) -> Value {
        self.admin("/admin/runtime").json()
    }

    /// How many programs it has run, the present one included.
    #[must_use]
    #[track_caller]
    pub fn generation(&self) -> u64 {
        let runtime = self.runtime();
        let generation = &runtime["quota"]["generation"];
        generation
            .as_u64()
            .unwrap_or_else(|| panic!("no generation: {runtime}"))
    }

    /// What it counts.
    #[must_use]
    #[track_caller]
    pub fn metrics(&self) -> Metrics {
        Metrics::parse(&self.admin("/metrics").body)
    }

    /// Its log lines, parsed.
    #[must_use]
    pub fn events(&self) -> Vec<Value> {
        events(&self.process)
    }

    /// Waits for a log line with this message.
    #[track_caller]
    pub fn wait_for_event(&mut self, message: &str) -> Value {
        let what = format!("the log line `{message}`");
        self.process.wait_for(&what, |process| {
            events(process)
                .into_iter()
                .find(|event| event["message"] == message)
        })
    }

    /// The process.
    pub const fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Sends a signal.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }
}

fn events(process: &Process) -> Vec<Value> {
    // A line may be half written.
    let log = process.stderr();
    let complete = log.rsplit_once('\n').map_or("", |(lines, _)| lines);
    complete
        .lines()
        .map(|line| {
            serde_json::from_str(line)
                .unwrap_or_else(|error| panic!("a log line is no JSON ({error}): {line}"))
        })
        .collect()
}

/// A scrape of `/metrics`.
#[derive(Clone, Debug)]
pub struct Metrics {
    text: String,
    samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

impl Metrics {
    /// Reads the text format of Prometheus.
    #[must_use]
    #[track_caller]
    pub fn parse(text: &str) -> Self {
        let samples = text
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty())
            .map(|line| sample(line).unwrap_or_else(|| panic!("no sample: {line}")))
            .collect();
        Self {
            text: text.to_owned(),
            samples,
        }
    }

    /// The text itself.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The sum of the samples of `name` that carry all of `labels`; `None` if there is no such sample.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        self.labelled(name)
            .filter(|(of, _)| {
                labels
                    .iter()
                    .all(|(label, value)| of.get(*label).is_some_and(|has| has == value))
            })
            .map(|(_, value)| value)
            .reduce(|sum, value| sum + value)
    }

    /// The samples of `name`: labels and value.
    pub fn labelled(&self, name: &str) -> impl Iterator<Item = (&BTreeMap<String, String>, f64)> {
        self.samples
            .iter()
            .filter(move |(of, _, _)| of == name)
            .map(|(_, labels, value)| (labels, *value))
    }
}

/// `name{label="value",…} 1`.
fn sample(line: &str) -> Option<(String, BTreeMap<String, String>, f64)> {
    let (series, value) = line.rsplit_once(' ')?;
    let (name, mut rest) = series.split_once('{').unwrap_or((series, "}"));
    let mut labels = BTreeMap::new();
    while rest != "}" {
        let (label, quoted) = rest.trim_start_matches(',').split_once("=\"")?;
        let mut text = String::new();
        let mut chars = quoted.chars();
        loop {
            match chars.next()? {
                '"' => break,
                '\\' => text.push(match chars.next()? {
                    'n' => '\n',
                    other => other,
                }),
                other => text.push(other),
            }
        }
        labels.insert(label.to_owned(), text);
        rest = chars.as_str();
    }
    Some((name.to_owned(), labels, value.parse().ok()?))
}

/// A backend behind a proxy that tells what reached it: the command `echo-backend` of this package.
#[derive(Debug)]
pub struct Echo {
    /// Where it listens.
    pub address: SocketAddr,
    _process: Process,
}

impl Echo {
    /// Starts it.
    #[must_use]
    #[track_caller]
    pub fn start() -> Self {
        let mut command = Command::new(built().command("echo-backend"));
        let mut process = Process::start("echo-backend", &mut command);
        let address = process.wait_for("the backend to listen", |process| {
            process.stdout().strip_suffix('\n')?.parse().ok()
        });
        Self {
            address,
            _process: process,
        }
    }
}

/// A running nginx.
#[derive(Debug)]
pub struct Nginx {
    process: Process,
    address: ReservedAddress,
    _folder: TempDir,
}

impl Nginx {
    /// Starts `program` with `files`, of which `nginx.conf` is the main one, in a folder of its own and waits until
    /// `address` accepts.
    #[must_use]
    #[track_caller]
    pub fn start(program: &Path, files: &[(&str, &str)], address: ReservedAddress) -> Self {
        // Workers change their user if nginx is started by root, and must still reach the folder.
        let folder = {
            use std::os::unix::fs::PermissionsExt as _;
            let mut builder = tempfile::Builder::new();
            builder.permissions(fs::Permissions::from_mode(0o755));
            builder.tempdir().expect("a temporary folder can be made")
        };
        for (name, text) in files {
            fs::write(folder.path().join(name), text).expect("the folder can be written");
        }
        let mut command = Command::new(program);
        command
            .args([
                "-e",
                "stderr",
                "-c",
                "nginx.conf",
                "-g",
                "daemon off;",
                "-p",
            ])
            .arg(folder.path());
        let mut process = Process::start("nginx", &mut command);
        process.wait_for("nginx to accept", |_| {
            TcpStream::connect(address.get()).ok()
        });
        Self {
            process,
            address,
            _folder: folder,
        }
    }

    /// A connection to it.
    #[must_use]
    pub fn connect(&self) -> Connection {
        Connection::open(self.address())
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address.get()
    }

    /// Its error log.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.stderr()
    }
}

/// Passes connections on to a server and counts them.
#[derive(Debug)]
pub struct Relay {
    /// Where it listens.
    pub address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    _runtime: Runtime,
}

impl Relay {
    /// Passes connections on to `server`.
    #[must_use]
    pub fn start(server: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime can be made");
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
            .expect("a port is free");
        let address = listener
            .local_addr()
            .expect("a bound socket has an address");
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&accepted);
        runtime.spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    let mut server = tokio::net::TcpStream::connect(server).await?;
                    tokio::io::copy_bidirectional(&mut client, &mut server).await
                });
            }
        });
        Self {
            address,
            accepted,
            _runtime: runtime,
        }
    }

    /// How many connections were made.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

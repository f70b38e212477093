//! One listener: where it is bound, how it accepts, and the bounds that protect the daemon whoever connects.
//!
//! The bounds are the daemon's own (contract §8): they have their own metric family and reasons, answer without any
//! `X-Quota-*` header and hold while the quota backend is down.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse as _;
use http::{Request, StatusCode, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use quota_runtime::client_address::Peer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower::ServiceExt as _;

use crate::protection::{Protection, Rejection};

/// The largest request head, in bytes. Larger ones are answered with 431.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// The most header lines, answered in the same way. For HTTP/1 it is the library's default.
const MAX_HEADER_LINES: usize = 100;
/// How long to wait after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often to warn that none can be.
const ACCEPT_WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListenAddress {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A unix socket: `unix:/run/quotad/decide.sock`.
    Unix(PathBuf),
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix:") {
            if !path.starts_with('/') {
                return Err(
                    "a unix socket needs an absolute path, as in unix:/run/quotad/decide.sock"
                        .to_owned(),
                );
            }
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        text.parse().map(Self::Tcp).map_err(|_| {
            "expected an IP address and a port (127.0.0.1:9100, [::1]:9100) or unix:/path"
                .to_owned()
        })
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A bound listener.
#[derive(Debug)]
pub(crate) enum Listener {
    /// A TCP socket.
    Tcp(TcpListener),
    /// The file of a unix socket and the socket. The file goes first, so that whoever binds the path meanwhile keeps theirs.
    Unix(SocketFile, UnixListener),
}

/// A socket file of ours.
#[derive(Debug)]
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "could not remove the socket file");
        }
    }
}

impl Listener {
    /// Binds `address`. The socket file of a daemon that is gone (nobody accepts on it) is replaced.
    ///
    /// # Errors
    ///
    /// The address is taken, not ours, or not permitted.
    pub(crate) async fn bind(address: &ListenAddress) -> io::Result<Self> {
        match address {
            ListenAddress::Tcp(address) => Ok(Self::Tcp(TcpListener::bind(address).await?)),
            ListenAddress::Unix(path) => {
                use std::os::unix::fs::FileTypeExt as _;
                let stale = std::fs::symlink_metadata(path)
                    .is_ok_and(|meta| meta.file_type().is_socket())
                    && tokio::net::UnixStream::connect(path)
                        .await
                        .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
                if stale {
                    std::fs::remove_file(path)?;
                }
                let socket = UnixListener::bind(path)?;
                Ok(Self::Unix(SocketFile(path.clone()), socket))
            }
        }
    }

    /// The address bound, with the port the system chose where 0 was asked for.
    pub(crate) fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|error| error.to_string(), |address| address.to_string()),
            Self::Unix(file, _) => format!("unix:{}", file.0.display()),
        }
    }

    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Peer)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                // Answers are small and complete: waiting to fill a segment would only add latency.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "could not set TCP_NODELAY");
                }
                Ok((Box::new(stream), Peer::Ip(address.ip().to_canonical())))
            }
            Self::Unix(_, listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((Box::new(stream), Peer::Unix))
            }
        }
    }
}

/// A connection, whatever carries it.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// What protects a listener.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    /// Most connections open at once; further ones are closed at once.
    pub(crate) max_connections: u32,
    /// How long a client may take to send a request head, and how long a connection may stay without a request.
    pub(crate) client_timeout: Duration,
    /// Counts what the bounds refused.
    pub(crate) protection: Protection,
}

/// Listeners that end together. Dropping it cuts off every connection.
#[derive(Debug)]
pub(crate) struct Listeners {
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Listeners {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self {
            stop: watch::Sender::new(false),
            tasks: JoinSet::new(),
        }
    }

    /// Serves what comes in on `listener`.
    pub(crate) fn start(&mut self, listener: Listener, router: Router, bounds: Bounds) {
        let stop = self.stop.subscribe();
        self.tasks.spawn(serve(listener, router, bounds, stop));
    }

    /// Stops to accept and lets the requests in flight end; what is left after `deadline` is cut off. Whether nothing was.
    pub(crate) async fn end(mut self, deadline: Duration) -> bool {
        self.stop.send_replace(true);
        let all = async { while self.tasks.join_next().await.is_some() {} };
        let in_time = tokio::time::timeout(deadline, all).await.is_ok();
        self.tasks.shutdown().await;
        in_time
    }
}

/// Accepts until `stop` turns true, then lets the requests in flight end. Returns when all connections are closed.
async fn serve(
    listener: Listener,
    router: Router,
    bounds: Bounds,
    mut stop: watch::Receiver<bool>,
) {
    let max_connections = usize::try_from(bounds.max_connections).unwrap_or(usize::MAX);
    let mut connections = JoinSet::new();
    let mut warned_at: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                while connections.try_join_next().is_some() {}
                if connections.len() < max_connections {
                    let (router, bounds, stop) = (router.clone(), bounds.clone(), stop.clone());
                    connections.spawn(serve_connection(stream, peer, router, bounds, stop));
                } else {
                    bounds.protection.count(Rejection::TooManyConnections);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                // Out of descriptors, most likely: the next accept would fail at once too.
                if warned_at.is_none_or(|at| at.elapsed() >= ACCEPT_WARNING_INTERVAL) {
                    warned_at = Some(Instant::now());
                    tracing::warn!(%error, "cannot accept connections");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Serves one connection until it ends, is silent for too long, or `stop` turns true and what it asked is answered.
async fn serve_connection(
    stream: Box<dyn Stream>,
    peer: Peer,
    router: Router,
    bounds: Bounds,
    mut stop: watch::Receiver<bool>,
) {
    let activity = Arc::new(Activity::default());
    let service = service_fn(|request: Request<Incoming>| {
        let in_flight = InFlight::begin(Arc::clone(&activity));
        let router = router.clone();
        let protection = bounds.protection.clone();
        async move {
            let _until_answered = in_flight;
            if is_head_too_large(&request) {
                protection.count(Rejection::HeadTooLarge);
                return Ok(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE.into_response());
            }
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(peer);
            router.oneshot(request).await
        }
    });
    let builder = connection_builder(&bounds);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut silence = pin!(activity.silence(bounds.client_timeout));
    let mut stopping = false;
    let rejection = loop {
        tokio::select! {
            ended = connection.as_mut() => {
                break ended.err().and_then(|error| Rejection::of_connection(error.as_ref()));
            }
            () = silence.as_mut() => break Some(Rejection::SlowClient),
            _ = stop.wait_for(|stop| *stop), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    };
    match rejection {
        // A kept-alive connection that nobody uses any more: no client was refused anything.
        Some(Rejection::SlowClient) if activity.has_asked() => {}
        Some(rejection) => bounds.protection.count(rejection),
        None => {}
    }
}

/// Whether an HTTP/2 head is larger than the library lets an HTTP/1 head be. Its own bound for HTTP/2 answers 431 and resets
/// the stream, and clients act on whichever they see first: it is a second line.
fn is_head_too_large(request: &Request<Incoming>) -> bool {
    if request.version() != Version::HTTP_2 {
        return false;
    }
    let target = request.uri().path_and_query();
    let target = target.map_or(0, |target| target.as_str().len());
    let lines = request.headers().iter();
    let bytes: usize = lines
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum();
    request.headers().len() > MAX_HEADER_LINES || target + bytes > MAX_HEAD_BYTES
}

/// What was asked on a connection.
#[derive(Debug, Default)]
struct Activity {
    begun: AtomicU64,
    answered: AtomicU64,
}

impl Activity {
    fn has_asked(&self) -> bool {
        self.begun.load(Ordering::Relaxed) > 0
    }

    /// Ends once `time` has passed without a request, after twice that at the latest. HTTP/1 has a timer of its own for
    /// heads after the first byte; this one also covers silence before it, and idle HTTP/2 connections, whose peers may
    /// answer pings for ever.
    async fn silence(&self, time: Duration) {
        let mut seen = 0;
        loop {
            tokio::time::sleep(time).await;
            let answered = self.answered.load(Ordering::Relaxed);
            let begun = self.begun.load(Ordering::Relaxed);
            if begun == seen && begun == answered {
                return;
            }
            seen = begun;
        }
    }
}

/// A request that is being answered.
#[derive(Debug)]
struct InFlight(Arc<Activity>);

impl InFlight {
    fn begin(activity: Arc<Activity>) -> Self {
        activity.begun.fetch_add(1, Ordering::Relaxed);
        Self(activity)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.answered.fetch_add(1, Ordering::Relaxed);
    }
}

fn connection_builder(bounds: &Bounds) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.client_timeout)
        .max_buf_size(MAX_HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(2 * MAX_HEAD_BYTES).unwrap_or(u32::MAX));
    builder
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use hyper::client::conn::http2;
    use hyper_util::rt::TokioExecutor;
    use prometheus::Registry;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpStream, UnixStream};
    use tokio::sync::Notify;

    use super::*;

    /// Far longer than anything that is waited for takes.
    const SURELY: Duration = Duration::from_secs(20);
    /// No bound a test runs into unless it says so.
    const PATIENT: Duration = Duration::from_secs(600);

    /// A listener that answers `GET /` at once, and `GET /slow` when it is told to.
    struct Served {
        address: SocketAddr,
        protection: Protection,
        listeners: Listeners,
        /// A slow request has begun.
        begun: Arc<Notify>,
        /// Slow requests may end.
        go_on: Arc<Notify>,
    }

    async fn serve_with(max_connections: u32, client_timeout: Duration) -> Served {
        let any_port = ListenAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
        let listener = Listener::bind(&any_port).await.unwrap();
        let address = listener.address().parse().unwrap();
        let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let router = Router::new().route("/", get(|| async { "ok" })).route(
            "/slow",
            get({
                let (begun, go_on) = (Arc::clone(&begun), Arc::clone(&go_on));
                || async move {
                    begun.notify_one();
                    go_on.notified().await;
                    "slow"
                }
            }),
        );
        let protection = Protection::register(&Registry::new(), "test").unwrap();
        let bounds = Bounds {
            max_connections,
            client_timeout,
            protection: protection.clone(),
        };
        let mut listeners = Listeners::new();
        listeners.start(listener, router, bounds);
        Served {
            address,
            protection,
            listeners,
            begun,
            go_on,
        }
    }

    impl Served {
        async fn connect(&self) -> TcpStream {
            TcpStream::connect(self.address).await.unwrap()
        }

        /// Waits for a rejection to have been counted so often: the client may see its end first.
        async fn until_counted(&self, rejection: Rejection, expected: u64) {
            let counted = async {
                while self.protection.counted(rejection) != expected {
                    tokio::task::yield_now().await;
                }
            };
            let in_time = tokio::time::timeout(SURELY, counted).await;
            in_time.expect("the rejection is counted");
        }
    }

    /// What the server sends until it closes the connection.
    async fn rest(stream: &mut TcpStream) -> String {
        let mut bytes = Vec::new();
        let read = tokio::time::timeout(SURELY, stream.read_to_end(&mut bytes));
        match read.await.expect("the server closes the connection") {
            Ok(_) => {}
            // Closed with something unread.
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
        }
        String::from_utf8(bytes).unwrap()
    }

    /// Asks on a connection that stays open, and reads the answer up to `body`.
    async fn ask(stream: &mut TcpStream, path: &str, body: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        while !answer.ends_with(body) {
            let mut bytes = [0; 1024];
            let read = tokio::time::timeout(SURELY, stream.read(&mut bytes));
            let read = read.await.expect("an answer comes").unwrap();
            assert_ne!(read, 0, "the server closed the connection: {answer}");
            answer.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
        }
        answer
    }

    async fn http_2(stream: TcpStream) -> http2::SendRequest<Body> {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(async move { drop(connection.await) });
        sender
    }

    #[tokio::test]
    async fn one_connection_serves_request_after_request() {
        let served = serve_with(1, PATIENT).await;
        let mut stream = served.connect().await;
        for _ in 0..3 {
            let answer = ask(&mut stream, "/", "ok").await;
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        }
    }

    #[tokio::test]
    async fn http_2_is_spoken_without_an_upgrade() {
        let served = serve_with(1, PATIENT).await;
        let mut sender = http_2(served.connect().await).await;
        for _ in 0..3 {
            let request = Request::get("http://test/").body(Body::empty()).unwrap();
            let response = sender.send_request(request).await.unwrap();
            assert_eq!(response.status(), 200);
            assert_eq!(response.version(), Version::HTTP_2);
        }
    }

    #[tokio::test]
    async fn a_head_too_large_or_of_too_many_lines_is_431() {
        let served = serve_with(9, PATIENT).await;
        let large = format!("x-large: {}\r\n", "a".repeat(MAX_HEAD_BYTES));
        let many = "x-many: a\r\n".repeat(101);
        for (lines, counted) in [(large, 1), (many, 2)] {
            let mut stream = served.connect().await;
            let head = format!("GET / HTTP/1.1\r\nhost: test\r\n{lines}\r\n");
            // It may be refused before all of it is sent.
            drop(stream.write_all(head.as_bytes()).await);
            let answer = rest(&mut stream).await;
            assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
            assert!(!answer.contains("x-quota-"), "{answer}");
            served.until_counted(Rejection::HeadTooLarge, counted).await;
        }
    }

    #[tokio::test]
    async fn the_same_holds_for_http_2() {
        let served = serve_with(9, PATIENT).await;
        let mut sender = http_2(served.connect().await).await;
        let request = |lines: usize, bytes: usize| {
            let mut request = Request::get("http://test/");
            for _ in 0..lines {
                request = request.header("x-many", "a".repeat(bytes));
            }
            request.body(Body::empty()).unwrap()
        };
        for (lines, bytes, status) in [(100, 1, 200), (101, 1, 431), (9, 8 << 10, 431)] {
            let response = sender.send_request(request(lines, bytes)).await.unwrap();
            assert_eq!(response.status(), status);
        }
        served.until_counted(Rejection::HeadTooLarge, 2).await;
    }

    #[tokio::test]
    async fn what_is_not_http_is_400() {
        let served = serve_with(9, PATIENT).await;
        let mut stream = served.connect().await;
        stream.write_all(b"what is this?\r\n\r\n").await.unwrap();
        let answer = rest(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        served.until_counted(Rejection::BadRequest, 1).await;
    }

    #[tokio::test]
    async fn clients_that_send_no_request_in_time_are_cut_off() {
        let served = serve_with(9, Duration::from_millis(50)).await;
        // Nothing at all, part of a head, and the first bytes of HTTP/2.
        for (start, counted) in [("", 1), ("GET / HTTP/1.1\r\nhost:", 2), ("PRI * HT", 3)] {
            let mut stream = served.connect().await;
            stream.write_all(start.as_bytes()).await.unwrap();
            assert_eq!(rest(&mut stream).await, "");
            served.until_counted(Rejection::SlowClient, counted).await;
        }
    }

    #[tokio::test]
    async fn idle_connections_end_and_are_no_rejections() {
        let served = serve_with(9, Duration::from_millis(50)).await;
        let mut stream = served.connect().await;
        ask(&mut stream, "/", "ok").await;
        assert_eq!(rest(&mut stream).await, "");

        let mut sender = http_2(served.connect().await).await;
        let request = Request::get("http://test/").body(Body::empty()).unwrap();
        assert_eq!(sender.send_request(request).await.unwrap().status(), 200);
        let ended = async {
            while sender.ready().await.is_ok() {
                tokio::task::yield_now().await
            }
        };
        let in_time = tokio::time::timeout(SURELY, ended).await;
        in_time.expect("the server closes the connection");
        assert_eq!(served.protection.counted(Rejection::SlowClient), 0);
    }

    #[tokio::test]
    async fn a_request_in_flight_is_no_silence() {
        let served = serve_with(9, Duration::from_millis(20)).await;
        let mut stream = served.connect().await;
        let watched = serve_with(9, Duration::from_millis(20)).await;
        let asked = ask(&mut stream, "/slow", "slow");
        let release = async {
            served.begun.notified().await;
            // Three silent connections were cut off one after another since.
            for _ in 0..3 {
                assert_eq!(rest(&mut watched.connect().await).await, "");
            }
            served.go_on.notify_one();
        };
        tokio::join!(asked, release);
    }

    #[tokio::test]
    async fn connections_beyond_the_most_are_closed_at_once() {
        let served = serve_with(1, PATIENT).await;
        let mut first = served.connect().await;
        ask(&mut first, "/", "ok").await;
        let mut second = served.connect().await;
        assert_eq!(rest(&mut second).await, "");
        served.until_counted(Rejection::TooManyConnections, 1).await;
        ask(&mut first, "/", "ok").await;
    }

    #[tokio::test]
    async fn stopping_answers_what_is_in_flight_and_closes_what_is_idle() {
        let served = serve_with(9, PATIENT).await;
        let mut idle = served.connect().await;
        ask(&mut idle, "/", "ok").await;
        let mut busy = served.connect().await;
        let asked = async {
            let answer = ask(&mut busy, "/slow", "slow").await;
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            assert_eq!(rest(&mut busy).await, "");
        };
        let meanwhile = async {
            served.begun.notified().await;
            let ending = tokio::spawn(served.listeners.end(SURELY));
            assert_eq!(rest(&mut idle).await, "");
            let refused = TcpStream::connect(served.address).await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
            assert!(!ending.is_finished());
            served.go_on.notify_one();
            assert!(ending.await.unwrap(), "nothing was cut off");
        };
        tokio::join!(asked, meanwhile);
    }

    #[tokio::test]
    async fn what_is_in_flight_at_the_deadline_is_cut_off() {
        let served = serve_with(9, PATIENT).await;
        let mut busy = served.connect().await;
        busy.write_all(b"GET /slow HTTP/1.1\r\nhost: test\r\n\r\n")
            .await
            .unwrap();
        served.begun.notified().await;
        assert!(!served.listeners.end(Duration::ZERO).await);
        assert_eq!(rest(&mut busy).await, "");
    }

    #[tokio::test]
    async fn a_socket_file_left_behind_is_replaced_and_one_in_use_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decide.sock");
        let address = ListenAddress::Unix(path.clone());
        // As a process that was killed leaves it.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let listener = Listener::bind(&address).await.unwrap();
        assert_eq!(listener.address(), format!("unix:{}", path.display()));
        let (connected, accepted) = tokio::join!(UnixStream::connect(&path), listener.accept());
        connected.unwrap();
        assert_eq!(accepted.unwrap().1, Peer::Unix);
        let taken = Listener::bind(&address).await.unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decide.sock");
        std::fs::write(&path, "precious").unwrap();
        let refused = Listener::bind(&ListenAddress::Unix(path.clone())).await;
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn addresses_are_tcp_or_an_absolute_socket_path() {
        assert_eq!(
            "127.0.0.1:9100".parse(),
            Ok(ListenAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], 9100))))
        );
        assert_eq!(
            "unix:/run/q.sock".parse(),
            Ok(ListenAddress::Unix(PathBuf::from("/run/q.sock")))
        );
        assert!("unix:q.sock".parse::<ListenAddress>().is_err());
        assert!("localhost".parse::<ListenAddress>().is_err());
    }
}

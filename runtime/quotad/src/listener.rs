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
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use quota_runtime::client_address::Peer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};
use tower::ServiceExt as _;

use crate::protection::{Protection, Rejection};

/// The largest request head, in bytes. Larger ones are answered with 431.
const MAX_HEAD_BYTES: usize = 64 << 10;
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
    pub(crate) protection: Arc<Protection>,
}

/// Accepts until `stop` turns true, then lets the requests in flight end. Returns when all connections are closed.
pub(crate) async fn serve(
    listener: Listener,
    router: Router,
    bounds: Bounds,
    mut stop: watch::Receiver<bool>,
) {
    let max_connections = usize::try_from(bounds.max_connections).unwrap_or(usize::MAX);
    let connections = Arc::new(Semaphore::new(max_connections));
    let mut warned_at: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(error) => {
                // Out of descriptors, most likely: the next accept would fail at once too.
                if warned_at.is_none_or(|at| at.elapsed() >= ACCEPT_WARNING_INTERVAL) {
                    warned_at = Some(Instant::now());
                    tracing::warn!(%error, "cannot accept connections");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&connections).try_acquire_owned() else {
            bounds.protection.count(Rejection::TooManyConnections);
            continue;
        };
        let connection =
            serve_connection(stream, peer, router.clone(), bounds.clone(), stop.clone());
        tokio::spawn(async move {
            let _held_while_open = permit;
            connection.await;
        });
    }
    drop(listener);
    // Every connection holds one. The semaphore is never closed, which is the only error.
    drop(connections.acquire_many(bounds.max_connections).await);
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
        async move {
            let _until_answered = in_flight;
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
    // More than 100 header lines are answered with 431 too: the library's default.
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.client_timeout)
        .max_buf_size(MAX_HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(MAX_HEAD_BYTES).unwrap_or(u32::MAX));
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

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

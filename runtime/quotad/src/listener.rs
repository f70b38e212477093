//! One listener: where it is bound, how it accepts, and the bounds that protect the daemon whoever connects.
//!
//! The bounds are the daemon's own (contract §8): they have their own metric family and reasons, answer without any
//! `X-Quota-*` header and hold while the quota backend is down.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use quota_runtime::client_address::Peer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};
use tower::ServiceExt as _;

use crate::protection::{Protection, Rejection};

/// The largest request head, in bytes. Larger ones are answered with 431.
const MAX_HEAD_BYTES: usize = 64 << 10;

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
    /// A unix socket and its file, which is removed when the listener goes.
    Unix(UnixListener, SocketFile),
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
                Ok(Self::Unix(
                    UnixListener::bind(path)?,
                    SocketFile(path.clone()),
                ))
            }
        }
    }

    /// The address bound, with the port the system chose where 0 was asked for.
    pub(crate) fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|error| error.to_string(), |address| address.to_string()),
            Self::Unix(_, file) => format!("unix:{}", file.0.display()),
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
            Self::Unix(listener, _) => {
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
    pub(crate) max_connections: usize,
    /// How long a client may take to send a request head, idle time of a kept-alive connection included.
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
    let connections = Arc::new(Semaphore::new(bounds.max_connections));
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, most likely: the next accept would fail at once too.
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&connections).try_acquire_owned() else {
            bounds.protection.count(Rejection::TooManyConnections);
            continue;
        };
        let router = router.clone();
        let asked = Arc::new(AtomicBool::new(false));
        let has_asked = Arc::clone(&asked);
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            has_asked.store(true, Ordering::Relaxed);
            let router = router.clone();
            async move {
                let mut request = request.map(Body::new);
                request.extensions_mut().insert(peer);
                Ok::<_, Infallible>(
                    router
                        .oneshot(request)
                        .await
                        .unwrap_or_else(|never| match never {}),
                )
            }
        });
        let connection = connection_builder(&bounds)
            .serve_connection(TokioIo::new(stream), service)
            .into_owned();
        let connection = graceful.watch(connection);
        let protection = Arc::clone(&bounds.protection);
        let client_timeout = bounds.client_timeout;
        tokio::spawn(async move {
            let _held_while_open = permit;
            let rejection = tokio::select! {
                ended = connection => {
                    ended.err().and_then(|error| Rejection::of_connection(error.as_ref()))
                }
                () = silence(client_timeout, &asked) => Some(Rejection::SlowClient),
            };
            if let Some(rejection) = rejection {
                protection.count(rejection);
            }
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

/// Ends after `time` on a connection that has not asked anything until then. Later requests have a timer of the HTTP
/// library; before the first it does not run yet, while the library waits to see which version of HTTP is spoken.
async fn silence(time: Duration, asked: &AtomicBool) {
    tokio::time::sleep(time).await;
    if asked.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
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
        .max_header_list_size(u32::try_from(MAX_HEAD_BYTES).unwrap_or(u32::MAX))
        .max_concurrent_streams(1024)
        .keep_alive_interval(bounds.client_timeout)
        .keep_alive_timeout(bounds.client_timeout);
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

//! A blocking HTTP client that keeps its connection in sight: which address it comes from, what it is bound to, when it closes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, UnixStream};
use tokio::runtime::Runtime;

use crate::services::PATIENCE;

/// One HTTP/1.1 connection, kept alive for as long as the server does.
#[derive(Debug)]
pub struct Connection {
    runtime: Runtime,
    sender: http1::SendRequest<Full<Bytes>>,
    host: String,
}

/// A complete answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The header lines.
    pub headers: HeaderMap,
    /// The body, which has to be UTF-8.
    pub body: String,
}

impl Answer {
    /// The value of a header that occurs once or not at all.
    #[must_use]
    #[track_caller]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.headers.get_all(name).iter();
        let first = lines.next()?;
        assert!(lines.next().is_none(), "{name} occurs twice: {self:?}");
        Some(first.to_str().expect("header values are ASCII"))
    }

    /// The body as JSON.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body)
            .unwrap_or_else(|error| panic!("the body is no JSON ({error}): {self:?}"))
    }
}

impl Connection {
    /// Connects from an address of the system's choice.
    #[must_use]
    pub fn open(to: SocketAddr) -> Self {
        Self::open_from(IpAddr::V4(Ipv4Addr::UNSPECIFIED), to)
    }

    /// Connects from `from`; on Linux all of 127.0.0.0/8 is there.
    #[must_use]
    pub fn open_from(from: IpAddr, to: SocketAddr) -> Self {
        Self::over(to.to_string(), async move {
            let socket = if to.is_ipv4() {
                let socket = TcpSocket::new_v4().expect("a socket can be made");
                socket
                    .bind(SocketAddr::new(from, 0))
                    .expect("the local address can be bound");
                socket
            } else {
                TcpSocket::new_v6().expect("a socket can be made")
            };
            socket.connect(to).await.expect("the server accepts")
        })
    }

    /// Connects to a unix socket.
    #[must_use]
    pub fn open_unix(path: &Path) -> Self {
        let path = path.to_owned();
        Self::over("localhost".to_owned(), async move {
            UnixStream::connect(path).await.expect("the server accepts")
        })
    }

    fn over<S>(host: String, stream: impl Future<Output = S>) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be made");
        let sender = runtime.block_on(async {
            let (sender, connection) = http1::handshake(TokioIo::new(stream.await))
                .await
                .expect("HTTP/1.1 needs no handshake");
            // How it ends is seen by the request that is on it.
            tokio::spawn(async move { drop(connection.await) });
            sender
        });
        Self {
            runtime,
            sender,
            host,
        }
    }

    /// Sends `request`, with a Host line unless it has one, and waits for the whole answer.
    ///
    /// # Errors
    ///
    /// The server closed the connection instead of answering.
    pub fn try_send(&mut self, mut request: Request<String>) -> Result<Answer, hyper::Error> {
        let host = self.host.parse().expect("an address is a legal Host");
        request.headers_mut().entry("host").or_insert(host);
        let request = request.map(|body| Full::new(Bytes::from(body)));
        let Self {
            runtime, sender, ..
        } = self;
        runtime.block_on(async {
            let answer = tokio::time::timeout(PATIENCE, async {
                sender.ready().await?;
                collect(sender.send_request(request).await?).await
            });
            answer.await.expect("the server answers in time")
        })
    }

    /// Sends `request`, with a Host line unless it has one, and waits for the whole answer.
    #[track_caller]
    pub fn send(&mut self, request: Request<String>) -> Answer {
        match self.try_send(request) {
            Ok(answer) => answer,
            Err(error) => panic!("the server closed the connection: {error:?}"),
        }
    }

    /// Sends a request without a body.
    #[track_caller]
    pub fn request(&mut self, method: Method, uri: &str, headers: &[(&str, &str)]) -> Answer {
        self.send(request(method, uri, headers, String::new()))
    }

    /// Sends a GET.
    #[track_caller]
    pub fn get(&mut self, uri: &str, headers: &[(&str, &str)]) -> Answer {
        self.request(Method::GET, uri, headers)
    }

    /// Posts a JSON document.
    #[track_caller]
    pub fn post_json(&mut self, uri: &str, body: &Value) -> Answer {
        let json = [("content-type", "application/json")];
        self.send(request(Method::POST, uri, &json, body.to_string()))
    }
}

async fn collect(response: Response<Incoming>) -> Result<Answer, hyper::Error> {
    let (parts, body) = response.into_parts();
    let body = body.collect().await?.to_bytes();
    Ok(Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: String::from_utf8(body.into()).expect("bodies are UTF-8"),
    })
}

/// A request for [`Connection::send`].
#[must_use]
#[track_caller]
pub fn request(
    method: Method,
    uri: &str,
    headers: &[(&str, &str)],
    body: String,
) -> Request<String> {
    let mut builder = Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(body).expect("the request is legal")
}

/// A GET on a connection of its own.
#[must_use]
#[track_caller]
pub fn get(to: SocketAddr, uri: &str, headers: &[(&str, &str)]) -> Answer {
    Connection::open(to).get(uri, headers)
}

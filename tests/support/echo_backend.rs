//! The backend behind a proxy under test: a process of its own that tells what reached it.
//!
//! It answers every request with a JSON object of method, URI, header lines and body, and prints the address it listens on as
//! its first line. `/…/status/NNN` is answered with that status, so that a test can see the backend's own refusals pass.

use std::error::Error;
use std::io::{self, Write as _};

use axum::Router;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use http::{StatusCode, header};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// The largest body that is echoed.
const MAX_BODY: usize = 1 << 20;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    writeln!(io::stdout(), "{}", listener.local_addr()?)?;
    axum::serve(listener, Router::new().fallback(echo)).await?;
    Ok(())
}

async fn echo(request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, MAX_BODY).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let headers: Vec<Value> = parts
        .headers
        .iter()
        .map(|(name, value)| json!([name.as_str(), String::from_utf8_lossy(value.as_bytes())]))
        .collect();
    let seen = json!({
        "method": parts.method.as_str(),
        "uri": parts.uri.to_string(),
        "headers": headers,
        "body": String::from_utf8_lossy(&body),
    });
    let status = parts
        .uri
        .path()
        .rsplit_once("/status/")
        .and_then(|(_, code)| code.parse().ok())
        .unwrap_or(StatusCode::OK);
    let json_type = [
        (header::CONTENT_TYPE, "application/json"),
        (header::SERVER, "echo-backend"),
    ];
    (status, json_type, seen.to_string()).into_response()
}

//! Decides requests inside a Rust service.
//!
//! `cargo run -p quota-example-embed [POLICY_FILE]` opens a policy file, follows it for as long as it runs, decides some
//! requests inside the call and then as an asynchronous server would, and shows what operators would see.

use std::error::Error;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::PathBuf;

use quota_runtime::client_address::{Peer, TrustedProxies};
use quota_runtime::outcome::Outcome;
use quota_runtime::reload::PolicyFile;
use quota_runtime::request::Request;
use quota_runtime::{Decided, Quota};

/// What a service knows of a request when it asks.
struct Call {
    peer: IpAddr,
    route: &'static str,
    headers: Vec<(&'static str, &'static str)>,
}

impl Call {
    /// The view the engine reads: borrowed, nothing is copied.
    fn request(&self, proxies: &TrustedProxies) -> Request<'_> {
        Request {
            route: Some(self.route),
            client: proxies.client(Peer::Ip(self.peer), &self.headers),
            query: None,
            headers: &self.headers,
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/policies.yaml")),
        PathBuf::from,
    );
    let quota = Quota::builder().open_file(&path)?;

    // From here on, edits of the file come into force by themselves; a bad one is refused and the program stays.
    let file = PolicyFile::new(quota.clone(), path, |_reload| {});
    let _watch = file.watch()?;

    let proxies = TrustedProxies::default();
    let call = Call {
        peer: "127.0.0.1".parse()?,
        route: "login",
        headers: vec![("x-forwarded-for", "192.0.2.7"), ("x-tenant-id", "acme")],
    };
    let mut out = io::stdout().lock();

    writeln!(out, "inside the call, as with counters in this process:")?;
    for _ in 0..3 {
        let request = call.request(&proxies);
        let line =
            quota.decide_inline_with(&request, quota.now(), |_program, outcome| answer(outcome))?;
        writeln!(out, "  {line}")?;
    }

    writeln!(out, "asynchronously, as with any backend:")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    let decided = runtime.block_on(quota.decide(&call.request(&proxies)));
    writeln!(out, "  {}", answer(&decided))?;
    for line in explain(&decided) {
        writeln!(out, "    {line}")?;
    }

    writeln!(out, "metrics:")?;
    let metrics = quota.render_metrics();
    for line in metrics.lines().filter(|line| !line.ends_with(" 0")) {
        writeln!(out, "  {line}")?;
    }
    Ok(())
}

/// What the service would answer its client.
fn answer(outcome: &Outcome) -> String {
    match outcome.retry_after_secs {
        Some(seconds) => format!("{} Retry-After: {seconds}", outcome.status),
        None => outcome.status.to_string(),
    }
}

/// What each applicable policy said.
fn explain(decided: &Decided) -> Vec<String> {
    let policies = decided.policies.iter().enumerate();
    policies
        .map(|(index, policy)| {
            format!(
                "{}: {} ({}), counted by {}",
                decided.policy_name(index).unwrap_or_default(),
                policy.decision.as_str(),
                policy.reason.as_str(),
                decided.backend_mode_label(index).unwrap_or_default(),
            )
        })
        .collect()
}

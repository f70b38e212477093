//! The quota daemon: answers proxies, watches its policy file and never dies of a bad one.

mod admin;
mod answer;
mod http;
mod lifecycle;
mod listener;
mod protection;
mod reloads;

use std::fmt;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use prometheus::{IntGauge, Opts, Registry};
use quota_compiler::Limits;
use quota_plugin_host::SearchPath;
use quota_runtime::client_address::TrustedProxies;
use quota_runtime::reload::PolicyFile;
use quota_runtime::{OpenError, Quota};
use quotac::check::{self, CheckOptions};
use quotac::kinds::PluginOptions;
use quotac::render::human;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use crate::admin::Admin;
use crate::http::{Decisions, IgnoredForwarding};
use crate::lifecycle::{Phase, Signals};
use crate::listener::{Bounds, ListenAddress, Listener, Listeners};
use crate::protection::Protection;
use crate::reloads::Reloads;

/// Connections of the admin listener.
const MAX_ADMIN_CONNECTIONS: u32 = 64;
/// How long requests in flight may take to end once nothing new is accepted.
const IN_FLIGHT_DEADLINE: Duration = Duration::from_secs(10);
/// The same on the admin listener, where nothing waits for anything.
const ADMIN_DEADLINE: Duration = Duration::from_secs(1);
/// How long backends may take to end with the daemon.
const CLOSE_TIME: Duration = Duration::from_secs(5);

/// Decides on quotas for proxies and services by a policy file, which it follows as it changes
#[derive(Debug, Parser)]
#[command(name = "quotad", version)]
struct Cli {
    /// The policy file
    #[arg(value_name = "POLICY_FILE")]
    policy_file: PathBuf,
    /// Where proxies ask for decisions: an IP address and port, or `unix:/path`; may be repeated
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9100")]
    listen: Vec<ListenAddress>,
    /// Where operators look: /admin/runtime, /metrics, /livez, /readyz, /healthz, and POST /admin/reload
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9101")]
    admin_listen: ListenAddress,
    /// A peer whose forwarded headers count: an address, a network, or the word none; may be repeated [default: loopback addresses and unix sockets]
    #[arg(long = "trusted-proxy", value_name = "CIDR|none")]
    trusted_proxies: Vec<String>,
    /// A folder to look for backend plugins in, before the usual ones; may be repeated
    #[arg(long = "plugin-dir", value_name = "DIR")]
    plugin_dirs: Vec<PathBuf>,
    /// The form of log lines, which go to standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    /// What is logged, as in `debug` or `warn,quota_runtime=debug`
    #[arg(
        long,
        env = "QUOTAD_LOG",
        value_name = "FILTER",
        default_value = "info"
    )]
    log_filter: String,
    /// Check the policy file as `quotac check` does, and end
    #[arg(long)]
    check: bool,
    /// Name the deciding policy and the reason in X-Quota-Policy and X-Quota-Reason; many proxies pass these on to the client
    #[arg(long)]
    expose_details: bool,
    /// Seconds to go on serving after SIGTERM while /readyz already says no
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    drain_delay: u32,
    /// Seconds a client may take to send a request head, time between requests included
    #[arg(long, value_name = "SECONDS", default_value_t = 75, value_parser = clap::value_parser!(u32).range(1..))]
    client_timeout: u32,
    /// The most connections open at once on each decision listener
    #[arg(long, value_name = "COUNT", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_connections: u32,
    /// The largest policy file, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().max_bytes)]
    max_bytes: u64,
    /// The most YAML events (nodes, and ends of lists and mappings) of the policy file
    #[arg(long, value_name = "COUNT", default_value_t = Limits::default().max_events)]
    max_events: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let trusted = match TrustedProxies::parse(&cli.trusted_proxies) {
        Ok(trusted) => trusted,
        Err(error) => return fail(2, &error),
    };
    if cli.check {
        return check(&cli);
    }
    if let Err(error) = log_to_stderr(cli.log_format, &cli.log_filter) {
        return fail(
            2,
            &format_args!("the log filter is not understood: {error}"),
        );
    }
    let quota = match open(&cli) {
        Ok(quota) => quota,
        Err(error) => return refuse(&error),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let served = match runtime {
        Ok(runtime) => runtime.block_on(serve(&cli, quota, trusted)),
        Err(error) => Err(ServeError::Threads(error)),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(1, &error),
    }
}

impl Cli {
    const fn limits(&self) -> Limits {
        Limits {
            max_bytes: self.max_bytes,
            max_events: self.max_events,
        }
    }
}

/// One line on standard error, and the exit code.
fn fail(code: u8, error: &dyn fmt::Display) -> ExitCode {
    drop(writeln!(anstream::stderr(), "quotad: error: {error}"));
    ExitCode::from(code)
}

fn check(cli: &Cli) -> ExitCode {
    let options = CheckOptions {
        paths: vec![cli.policy_file.clone()],
        plugins: PluginOptions {
            none: false,
            directories: cli.plugin_dirs.clone(),
        },
        limits: cli.limits(),
        ..CheckOptions::default()
    };
    let (mut stdin, mut out, mut err) = (io::stdin(), anstream::stdout(), anstream::stderr());
    match check::run(&options, &mut stdin, &mut out, &mut err) {
        Ok(status) => status.into(),
        Err(error) => fail(2, &format_args!("cannot write the report: {error}")),
    }
}

fn log_to_stderr(format: LogFormat, filter: &str) -> Result<(), ParseError> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_new(filter)?)
        // They would be printed to standard error, which panics where nobody reads it any more.
        .log_internal_errors(false)
        .with_writer(io::stderr);
    let is_terminal = io::IsTerminal::is_terminal(&io::stderr());
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    match format {
        LogFormat::Text => builder.with_ansi(is_terminal && !no_color).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    Ok(())
}

fn open(cli: &Cli) -> Result<Quota, OpenError> {
    Quota::builder()
        .limits(cli.limits())
        .plugins(SearchPath::new(cli.plugin_dirs.clone()))
        .open_file(&cli.policy_file)
}

/// Says why there is nothing to start with: everything that is wrong with the file, or one line.
fn refuse(error: &OpenError) -> ExitCode {
    let OpenError::Refused(checked) = error else {
        return fail(1, &error.full_text());
    };
    let report = human::diagnostics(&checked.text, &checked.diagnostics);
    let errors = checked
        .diagnostics
        .iter()
        .filter(|diagnostic| diagnostic.is_error())
        .count();
    drop(write!(anstream::stderr(), "{report}"));
    let plural = if errors == 1 { "" } else { "s" };
    fail(
        1,
        &format_args!("{} has {errors} error{plural}", checked.text.name()),
    )
}

/// Why the daemon could not serve.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("cannot start the worker threads: {0}")]
    Threads(io::Error),
    #[error("cannot listen to signals: {0}")]
    Signals(io::Error),
    #[error("cannot register the metric families: {0}")]
    Metrics(#[from] prometheus::Error),
    #[error("cannot listen on {address}: {error}")]
    Bind {
        address: ListenAddress,
        error: io::Error,
    },
    #[error("cannot start to watch the policy file: {0}")]
    Watch(io::Error),
}

/// Serves until a signal ends it.
async fn serve(cli: &Cli, quota: Quota, trusted: TrustedProxies) -> Result<(), ServeError> {
    let mut signals = Signals::take_over().map_err(ServeError::Signals)?;
    let started_at = quota.now();
    let registry = quota.registry();
    let reloads = Reloads::register(registry, started_at, &quota.checked())?;
    let decision_protection = Protection::register(registry, "decision")?;
    let admin_protection = Protection::register(registry, "admin")?;
    let ignored_forwarding = IgnoredForwarding::register(registry)?;
    register_build_info(registry)?;

    let mut decision_listeners = Vec::with_capacity(cli.listen.len());
    for address in &cli.listen {
        decision_listeners.push(bind(address).await?);
    }
    let admin_listener = bind(&cli.admin_listen).await?;
    let listen: Vec<_> = decision_listeners.iter().map(Listener::address).collect();
    let admin_listen = admin_listener.address();

    let file = PolicyFile::new(quota.clone(), &cli.policy_file, {
        let reloads = reloads.clone();
        move |reload| reloads.note(reload)
    });
    let watch = file.watch().map_err(ServeError::Watch)?;

    let client_timeout = Duration::from_secs(cli.client_timeout.into());
    let router = http::router(Arc::new(Decisions {
        quota: quota.clone(),
        trusted,
        expose_details: cli.expose_details,
        protection: decision_protection.clone(),
        ignored_forwarding,
    }));
    let bounds = Bounds {
        max_connections: cli.max_connections,
        client_timeout,
        protection: decision_protection,
    };
    let mut decisions = Listeners::new();
    for listener in decision_listeners {
        decisions.start(listener, router.clone(), bounds.clone());
    }
    drop(router);

    let phase = Arc::new(Phase::default());
    let router = admin::router(Arc::new(Admin {
        quota: quota.clone(),
        file: Arc::clone(&file),
        started_at,
        reloads,
        phase: Arc::clone(&phase),
    }));
    let bounds = Bounds {
        max_connections: MAX_ADMIN_CONNECTIONS,
        client_timeout,
        protection: admin_protection,
    };
    let mut admin = Listeners::new();
    admin.start(admin_listener, router, bounds);
    phase.bind();
    tracing::info!(
        listen = listen.join(","),
        admin_listen,
        policy_file = %cli.policy_file.display(),
        policies = quota.program().policies().len(),
        "ready"
    );

    signals.until_end(&file).await;
    phase.drain();
    let delay = Duration::from_secs(cli.drain_delay.into());
    let ending = async {
        tracing::info!(delay_secs = delay.as_secs(), "draining");
        // Balancers need a while to hear of it.
        tokio::time::sleep(delay).await;
        if !decisions.end(IN_FLIGHT_DEADLINE).await {
            tracing::warn!("requests were still in flight at the deadline");
        }
        // Until here it showed how the draining went. A scraper that is slow must not hold up the end.
        admin.end(ADMIN_DEADLINE).await;
        drop(file);
        let close = move || {
            drop(watch);
            quota.close(CLOSE_TIME)
        };
        if !tokio::task::spawn_blocking(close).await.unwrap_or(false) {
            tracing::warn!("a backend was still busy at the end");
        }
        tracing::info!("ended");
    };
    signals.or_at_once(ending).await;
    Ok(())
}

async fn bind(address: &ListenAddress) -> Result<Listener, ServeError> {
    Listener::bind(address)
        .await
        .map_err(|error| ServeError::Bind {
            address: address.clone(),
            error,
        })
}

fn register_build_info(registry: &Registry) -> prometheus::Result<()> {
    let build_info = IntGauge::with_opts(
        Opts::new(
            "quotad_build_info",
            "1, labelled with the version of the daemon.",
        )
        .const_label("version", env!("CARGO_PKG_VERSION")),
    )?;
    build_info.set(1);
    registry.register(Box::new(build_info))
}

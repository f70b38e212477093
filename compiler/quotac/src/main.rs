//! The quota policy compiler: check, test, explain and print quota policies.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anstream::{AutoStream, ColorChoice};
use clap::{Args, Parser, Subcommand, ValueEnum};
use quota_compiler::Limits;
use quotac::Status;
use quotac::check::{self, CheckOptions, Format};
use quotac::kinds::PluginOptions;
use quotac::output::Forgiving;
use quotac::test::{self, TestOptions};
use quotac::{explain, print, schema};

#[derive(Debug, Parser)]
#[command(name = "quotac", version, about = "Checks, tests, explains and prints quota policies", long_about = None)]
struct Cli {
    /// When to use colours; `NO_COLOR` in the environment is obeyed
    #[arg(long, value_enum, default_value_t = Color::Auto, global = true)]
    color: Color,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Color {
    Auto,
    Always,
    Never,
}

impl From<Color> for ColorChoice {
    fn from(color: Color) -> Self {
        match color {
            Color::Auto => Self::Auto,
            Color::Always => Self::Always,
            Color::Never => Self::Never,
        }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Report everything that is wrong with policy files
    ///
    /// Exit code: 0 no problem, 1 problems found, 2 could not run (bad usage, an unreadable file, nothing to check).
    Check {
        /// Files, directories (every *.yaml and *.yml below; *_test.yaml and files without a quota object are passed over), or - for standard input
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
        /// The form of the report
        #[arg(long, value_enum, default_value_t = ReportFormat::Human)]
        format: ReportFormat,
        /// Let a warning fail a file as an error does
        #[arg(long)]
        deny_warnings: bool,
        #[command(flatten)]
        reading: Reading,
    },
    /// Show what a diagnostic code means
    Explain {
        /// The code or its name, such as Q0501 or burst-not-shorter
        #[arg(long, required_unless_present = "list")]
        code: Option<String>,
        /// List every code instead
        #[arg(long, conflicts_with = "code")]
        list: bool,
    },
    /// Print the flat program of a policy file, one line for each instruction
    Print {
        /// The policy file, or - for standard input
        file: PathBuf,
        #[command(flatten)]
        reading: Reading,
    },
    /// Run files of policy test cases on the engine, with a clock of their own and no server
    ///
    /// Exit code: 0 all passed, 1 some failed, 2 could not run.
    Test {
        /// Case files, or directories (every *_test.yaml and *_test.yml below)
        #[arg(required = true, value_name = "FILE")]
        paths: Vec<PathBuf>,
        #[command(flatten)]
        reading: Reading,
    },
    /// Print a JSON Schema (2020-12) of the policy file, for editors
    Schema,
}

#[derive(Debug, Args)]
struct Reading {
    /// A folder to look for backend plugins in, before the usual ones; may be repeated
    #[arg(long = "plugin-dir", value_name = "DIR")]
    plugin_dirs: Vec<PathBuf>,
    /// Load no plugin: a plugin's own options stay unchecked, which a note says
    #[arg(long)]
    no_plugins: bool,
    /// The largest file, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().max_bytes)]
    max_bytes: u64,
    /// The most YAML events (nodes, and ends of lists and mappings) of a file
    #[arg(long, value_name = "COUNT", default_value_t = Limits::default().max_events)]
    max_events: u64,
}

impl Reading {
    fn plugins(&self) -> PluginOptions {
        PluginOptions {
            none: self.no_plugins,
            directories: self.plugin_dirs.clone(),
        }
    }

    const fn limits(&self) -> Limits {
        Limits {
            max_bytes: self.max_bytes,
            max_events: self.max_events,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ReportFormat {
    Human,
    Json,
}

impl From<ReportFormat> for Format {
    fn from(format: ReportFormat) -> Self {
        match format {
            ReportFormat::Human => Self::Human,
            ReportFormat::Json => Self::Json,
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let color = cli.color.into();
    let mut out = Forgiving::new(AutoStream::new(io::stdout(), color));
    let mut err = Forgiving::new(AutoStream::new(io::stderr(), color));
    let result = run(cli.command, &mut out, &mut err);
    let flushed = out.flush();
    match result.and_then(|status| flushed.map(|()| status)) {
        Ok(status) => status.into(),
        Err(error) => {
            // Where standard error is gone too there is nobody left to tell.
            drop(writeln!(err, "error: cannot write the report: {error}"));
            Status::CouldNotRun.into()
        }
    }
}

fn run(command: Command, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<Status> {
    let mut stdin = io::stdin();
    match command {
        Command::Check {
            paths,
            format,
            deny_warnings,
            reading,
        } => {
            let options = CheckOptions {
                paths,
                format: format.into(),
                deny_warnings,
                plugins: reading.plugins(),
                limits: reading.limits(),
            };
            check::run(&options, &mut stdin, out, err)
        }
        Command::Explain { code, list: _ } => match code {
            Some(code) => explain::run(&code, out, err),
            None => explain::list(out),
        },
        Command::Print { file, reading } => print::run(
            &file,
            &reading.plugins(),
            reading.limits(),
            &mut stdin,
            out,
            err,
        ),
        Command::Test { paths, reading } => {
            let options = TestOptions {
                paths,
                plugins: reading.plugins(),
                limits: reading.limits(),
            };
            test::run(&options, out, err)
        }
        Command::Schema => schema::run(out),
    }
}

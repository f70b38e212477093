//! The command itself, as it is built: exit codes, streams, arguments.

mod check;
mod pages;
mod plugins;
mod streams;

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use quota_test_support::commands::built;
use tempfile::TempDir;

/// A policy file without fault.
const GOOD: &str = "\
policies:
  - name: per-tenant
    selector: { tenant: { key: \"header:x-tenant-id\" } }
    burst: { requests: 10, window_secs: 1 }
";

/// One with an error.
const BAD: &str = "\
policies:
  - name: per-tenant
    selector: { tenant: { key: \"header:x-tenant-id\" } }
    burst: { requests: 0, window_secs: 1 }
";

/// One with a warning.
const DOUBTFUL: &str = "\
backend: { kind: redis, url: \"redis://localhost\", key_prefix: shared }
local_fallback: { key_prefix: shared, max_entries: 100 }
";

/// A folder with files, and the command run in it.
struct Folder(TempDir);

impl Folder {
    fn new<const N: usize>(files: [(&str, &str); N]) -> Self {
        let folder = Self(TempDir::new().expect("a temporary folder"));
        for (name, content) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, content).expect("a file");
        }
        folder
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// The command with nothing of the environment that it obeys, and no standard input.
    fn command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&built().quotac);
        command
            .current_dir(self.path())
            .args(arguments)
            .stdin(Stdio::null());
        for variable in [
            "NO_COLOR",
            "CLICOLOR",
            "CLICOLOR_FORCE",
            "CI",
            "QUOTA_PLUGIN_PATH",
        ] {
            command.env_remove(variable);
        }
        command
    }

    fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Run {
        Run::of(self.command(arguments).output().expect("the command runs"))
    }

    fn run_with_input<const N: usize>(&self, arguments: [&str; N], input: &[u8]) -> Run {
        let mut command = self.command(arguments);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the command runs");
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(input).expect("the command reads");
        drop(stdin);
        Run::of(child.wait_with_output().expect("the command ends"))
    }
}

/// How a run of the command ended.
#[derive(Debug)]
struct Run {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Run {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }

    /// Checks how it ended and what it said at last.
    #[track_caller]
    fn ended(&self, code: i32, stderr: &str) {
        assert_eq!(
            (self.code, &*self.stderr),
            (Some(code), stderr),
            "{}",
            self.stdout
        );
    }
}

//! The commands and plugin libraries of the workspace, built for the tests that run them.
//!
//! `cargo test` builds a package's own commands only. The first test of a process that asks builds the whole workspace, with the
//! profile of the test itself, into a folder of its own in the target directory; Cargo's own lock lets the builds of several test processes take
//! turns, and all but the first find nothing to do.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use serde_json::Value;

/// What the workspace builds, by the path of each file.
#[derive(Debug)]
pub struct Built {
    /// The compiler's command.
    pub quotac: PathBuf,
    /// The daemon.
    pub quotad: PathBuf,
    /// The in-memory backend as a plugin, `libquota_backend_in_memory.so`.
    pub in_memory: PathBuf,
    /// Every other command, by name.
    commands: BTreeMap<String, PathBuf>,
}

impl Built {
    /// The command called `name`, which some package of the workspace has.
    #[must_use]
    pub fn command(&self, name: &str) -> &Path {
        self.commands
            .get(name)
            .unwrap_or_else(|| panic!("the workspace has no command `{name}`"))
    }

    /// The folder of the plugin libraries, for `--plugin-dir`.
    #[must_use]
    pub fn plugin_dir(&self) -> &Path {
        self.in_memory.parent().expect("a file lies in a folder")
    }
}

/// The commands and libraries of the workspace; built on the first call.
///
/// # Panics
///
/// The build failed; what Cargo says of it is on standard error.
#[must_use]
pub fn built() -> &'static Built {
    static BUILT: LazyLock<Built> = LazyLock::new(build);
    &BUILT
}

fn build() -> Built {
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args([
            "build",
            "--workspace",
            "--message-format",
            "json-render-diagnostics",
        ])
        .args(like_this_test())
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(Stdio::inherit())
        .output()
        .expect("Cargo runs");
    assert!(output.status.success(), "the workspace does not build");

    let mut commands = BTreeMap::new();
    let mut libraries = BTreeMap::new();
    for line in output
        .stdout
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
    {
        let message: Value = serde_json::from_slice(line).expect("Cargo writes JSON");
        let Some(name) = message["target"]["name"].as_str() else {
            continue;
        };
        if let Some(executable) = message["executable"].as_str() {
            commands.insert(name.to_owned(), PathBuf::from(executable));
        }
        let files = message["filenames"].as_array().into_iter().flatten();
        for file in files.filter_map(Value::as_str).map(PathBuf::from) {
            if file
                .extension()
                .is_some_and(|extension| extension == env::consts::DLL_EXTENSION)
            {
                libraries.insert(name.to_owned(), file);
            }
        }
    }
    let command = |name: &str| {
        commands
            .get(name)
            .cloned()
            .expect("the workspace has this command")
    };
    Built {
        quotac: command("quotac"),
        quotad: command("quotad"),
        in_memory: libraries
            .remove("quota_backend_in_memory")
            .expect("the workspace has this library"),
        commands,
    }
}

/// The arguments that make Cargo build as this test was built, into a folder of its own: a library that is built as a plugin too has
/// one file name whatever its dependencies' features are, and those of tests have more. In one folder this build would
/// replace what `cargo test` is about to link.
/// A test lies in `<target>[/<triple>]/<profile>/deps/`, and the
/// target directory is the one Cargo put its tag into.
fn like_this_test() -> Vec<OsString> {
    let test = env::current_exe().expect("a test knows its own file");
    let profile_dir = test
        .parent()
        .and_then(Path::parent)
        .expect("a test lies in `deps`");
    let target_dir = profile_dir
        .ancestors()
        .find(|folder| folder.join("CACHEDIR.TAG").is_file())
        .expect("Cargo tags its target directory");
    let profile = match profile_dir.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let mut arguments: Vec<OsString> = vec![
        "--profile".into(),
        profile.into(),
        "--target-dir".into(),
        target_dir.join("commands").into(),
    ];
    let triple = profile_dir.parent().filter(|folder| *folder != target_dir);
    if let Some(triple) = triple.and_then(Path::file_name) {
        arguments.extend(["--target".into(), triple.into()]);
    }
    arguments
}

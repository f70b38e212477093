//! Policy files for the daemon to follow.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// The longest window there is, 100 years: it began in 1970 and turns in 2069, so that no test sees it turn.
pub(crate) const CENTURY: u64 = 3_153_600_000;

/// `policies.yaml` in a folder of its own.
#[derive(Debug)]
pub(crate) struct PolicyFile {
    folder: TempDir,
    path: PathBuf,
}

impl PolicyFile {
    pub(crate) fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policies.yaml");
        fs::write(&path, text).unwrap();
        Self { folder, path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Replaces the file as most editors and tools do: another one is written beside it and renamed over it.
    pub(crate) fn replace(&self, text: &str) {
        let beside = self.folder().join("policies.yaml.new");
        fs::write(&beside, text).unwrap();
        fs::rename(&beside, &self.path).unwrap();
    }
}

/// A file that gives each tenant `requests` that are never given again.
pub(crate) fn per_tenant(requests: u64) -> String {
    format!(
        "\
enabled: true
policies:
  - name: per-tenant
    selector:
      tenant: {{key: header:x-tenant-id}}
    sustained: {{requests: {requests}, window_secs: {CENTURY}}}
"
    )
}

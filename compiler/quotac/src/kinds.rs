//! What the compiler is told of backend kinds: the runtime's own answer, so that a file is checked here exactly as a daemon
//! would check it.

use std::path::PathBuf;

use quota_plugin_host::{LoadError, SearchPath};
use quota_runtime::backend::PluginKinds;

/// Where plugins come from.
#[derive(Clone, Debug, Default)]
pub struct PluginOptions {
    /// Load none: kinds are taken on trust and their own options stay unchecked.
    pub none: bool,
    /// Folders to search first, in order.
    pub directories: Vec<PathBuf>,
}

impl PluginOptions {
    /// The folders searched; `None` where no plugin is to be loaded.
    #[must_use]
    pub fn search_path(&self) -> Option<SearchPath> {
        (!self.none).then(|| SearchPath::new(self.directories.clone()))
    }

    /// The kinds policy files may name.
    ///
    /// # Errors
    ///
    /// The backend that is linked in breaks a rule of the plugin ABI, which would be a fault of this program.
    pub fn kinds(&self) -> Result<PluginKinds, LoadError> {
        PluginKinds::new(self.search_path())
    }
}

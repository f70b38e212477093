//! Where plugin libraries are looked for, and in which order.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const PREFIX: &str = "libquota_backend_";
const SUFFIX: &str = if cfg!(target_os = "macos") {
    ".dylib"
} else {
    ".so"
};

/// Folders in the order they are searched; the first file found is the one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchPath {
    folders: Vec<PathBuf>,
}

impl SearchPath {
    /// The given folders, then those of `QUOTA_PLUGIN_PATH` (ignored in a set-user-id program), the folder of the
    /// executable, `../lib/quota/plugins` beside it, `/usr/local/lib/quota/plugins` and `/usr/lib/quota/plugins`.
    #[must_use]
    pub fn new(folders: Vec<PathBuf>) -> Self {
        let mut folders = folders;
        if !crate::load::runs_with_raised_rights()
            && let Some(list) = std::env::var_os("QUOTA_PLUGIN_PATH")
        {
            folders.extend(
                std::env::split_paths(&list).filter(|folder| !folder.as_os_str().is_empty()),
            );
        }
        if let Ok(executable) = std::env::current_exe()
            && let Some(beside) = executable.parent()
        {
            folders.push(beside.to_path_buf());
            folders.push(beside.join("../lib/quota/plugins"));
        }
        folders.push("/usr/local/lib/quota/plugins".into());
        folders.push("/usr/lib/quota/plugins".into());
        Self { folders }
    }

    /// Only the given folders.
    #[must_use]
    pub const fn only(folders: Vec<PathBuf>) -> Self {
        Self { folders }
    }

    /// The folders, in the order they are searched.
    #[must_use]
    pub fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// Every file of that name, the one that counts first, the ones it hides after it.
    #[must_use]
    pub fn find(&self, file_name: &str) -> Vec<PathBuf> {
        let files = self.folders.iter().map(|folder| folder.join(file_name));
        files
            .filter(|file| file.symlink_metadata().is_ok())
            .collect()
    }

    /// The kinds there is a library for, sorted. Nothing is opened.
    #[must_use]
    pub fn kinds(&self) -> Vec<String> {
        let mut kinds = BTreeSet::new();
        for folder in &self.folders {
            let Ok(entries) = folder.read_dir() else {
                continue;
            };
            kinds.extend(
                entries
                    .flatten()
                    .filter_map(|entry| kind_of(Path::new(&entry.file_name()))),
            );
        }
        kinds.into_iter().collect()
    }
}

/// The name of the library of a kind.
pub(crate) fn library_name(kind: &str) -> String {
    format!("{PREFIX}{kind}{SUFFIX}")
}

/// The kind the name of a library's file says.
pub(crate) fn kind_of(file: &Path) -> Option<String> {
    let kind = file.to_str()?.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    is_kind(kind).then(|| kind.to_owned())
}

/// `[a-z][a-z0-9_]{0,31}`.
pub(crate) fn is_kind(kind: &str) -> bool {
    kind.len() <= quota_plugin_abi::QUOTA_KIND_MAX
        && kind.starts_with(|c: char| c.is_ascii_lowercase())
        && kind
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_short_lower_case_names() {
        let longest = format!("a{}", "b".repeat(31));
        for kind in ["redis", "in_memory", "a", "acme_dynamo2", &longest] {
            assert!(is_kind(kind), "{kind}");
        }
        for kind in [
            "",
            "Redis",
            "2fast",
            "_a",
            "a-b",
            "a/b",
            "é",
            &format!("{longest}c"),
        ] {
            assert!(!is_kind(kind), "{kind}");
        }
    }

    #[test]
    fn given_folders_come_before_the_fixed_ones() {
        let path = SearchPath::new(vec!["/first".into(), "/second".into()]);
        assert_eq!(
            path.folders()[..2],
            [PathBuf::from("/first"), PathBuf::from("/second")]
        );
        assert_eq!(
            path.folders().last().unwrap(),
            Path::new("/usr/lib/quota/plugins")
        );
    }
}

//! Which files a command reads, and how: files, directories and standard input; regular files only, never more than a
//! bound.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The path that stands for standard input.
pub const STDIN: &str = "-";

/// A text to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Standard input.
    Stdin,
    /// A file, by the path reports show.
    File {
        /// The path as given, or below a directory given.
        path: PathBuf,
        /// Whether the path itself was given, so that the file must hold a quota object.
        named: bool,
    },
}

impl Input {
    /// The name reports show.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Stdin => "<stdin>".to_owned(),
            Self::File { path, .. } => path.display().to_string(),
        }
    }

    /// Whether it was given by name, rather than found in a directory.
    #[must_use]
    pub const fn is_named(&self) -> bool {
        match self {
            Self::Stdin => true,
            Self::File { named, .. } => *named,
        }
    }
}

/// A path that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read `{}`", path.display())]
pub struct InputError {
    /// The path.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub source: io::Error,
}

/// What stands behind the paths of a command line.
#[derive(Debug, Default)]
pub struct Inputs {
    /// What to read, in the order given; each file once.
    pub inputs: Vec<Input>,
    /// Case files (`*_test.yaml`, `*_test.yml`) that a directory walk passed over.
    pub passed_over: usize,
    /// Paths that could not be looked into.
    pub errors: Vec<InputError>,
    /// Where each file stands in `inputs`, by canonical path.
    files: HashMap<PathBuf, usize>,
    /// Canonical paths of the directories walked, so that a symbolic link cannot send the walk round in circles.
    directories: HashSet<PathBuf>,
}

impl Inputs {
    /// Finds what `paths` name: a file, a directory (every `*.yaml` and `*.yml` below it, sorted, hidden ones and case
    /// files passed over), or `-` for standard input. A file named twice is read once.
    #[must_use]
    pub fn find(paths: &[PathBuf]) -> Self {
        let mut found = Self::default();
        for path in paths {
            if path.as_os_str() == STDIN {
                if !found.inputs.contains(&Input::Stdin) {
                    found.inputs.push(Input::Stdin);
                }
            } else if let Err(source) = found.add(path, true) {
                found.errors.push(InputError {
                    path: path.clone(),
                    source,
                });
            }
        }
        found
    }

    fn add(&mut self, path: &Path, named: bool) -> io::Result<()> {
        let canonical = fs::canonicalize(path)?;
        if fs::metadata(path)?.is_dir() {
            if self.directories.insert(canonical) {
                self.walk(path)?;
            }
            return Ok(());
        }
        if !named {
            if is_case_file(path) {
                self.passed_over += 1;
                return Ok(());
            }
            if !is_yaml(path) {
                return Ok(());
            }
        }
        let known = self.files.get(&canonical).copied();
        if let Some(Input::File { named: earlier, .. }) =
            known.and_then(|index| self.inputs.get_mut(index))
        {
            *earlier |= named;
        } else {
            self.files.insert(canonical, self.inputs.len());
            self.inputs.push(Input::File {
                path: path.to_owned(),
                named,
            });
        }
        Ok(())
    }

    fn walk(&mut self, directory: &Path) -> io::Result<()> {
        for name in sorted_names(directory)? {
            let path = directory.join(name);
            if let Err(source) = self.add(&path, false) {
                self.errors.push(InputError { path, source });
            }
        }
        Ok(())
    }
}

/// Files of policy test cases.
#[derive(Debug, Default)]
pub struct CaseFiles {
    /// In the order given; each file once.
    pub files: Vec<PathBuf>,
    /// Paths that could not be looked into.
    pub errors: Vec<InputError>,
    seen: HashSet<PathBuf>,
}

impl CaseFiles {
    /// Finds what `paths` name: a file, whatever it is called, or a directory (every `*_test.yaml` and `*_test.yml` below it,
    /// sorted, hidden ones passed over).
    #[must_use]
    pub fn find(paths: &[PathBuf]) -> Self {
        let mut found = Self::default();
        for path in paths {
            found.add(path, true);
        }
        found
    }

    fn add(&mut self, path: &Path, named: bool) {
        if let Err(source) = self.try_add(path, named) {
            self.errors.push(InputError {
                path: path.to_owned(),
                source,
            });
        }
    }

    fn try_add(&mut self, path: &Path, named: bool) -> io::Result<()> {
        let is_directory = fs::metadata(path)?.is_dir();
        if !is_directory && !named && !is_case_file(path) {
            return Ok(());
        }
        if !self.seen.insert(fs::canonicalize(path)?) {
            return Ok(());
        }
        if !is_directory {
            self.files.push(path.to_owned());
            return Ok(());
        }
        for name in sorted_names(path)? {
            self.add(&path.join(name), false);
        }
        Ok(())
    }
}

/// The names in `directory`, sorted, without hidden ones.
fn sorted_names(directory: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        if !name.as_encoded_bytes().starts_with(b".") {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn is_yaml(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == "yaml" || extension == "yml")
}

fn is_case_file(path: &Path) -> bool {
    is_yaml(path)
        && path
            .file_stem()
            .is_some_and(|stem| stem.as_encoded_bytes().ends_with(b"_test"))
}

/// Reads `input`, at most one byte more than `max_bytes`: enough for the compiler to see that it is too large.
///
/// # Errors
///
/// The file cannot be opened or read, or is no regular file: a FIFO would never end, a device not at all.
pub fn read(input: &Input, max_bytes: u64, stdin: &mut dyn Read) -> Result<Vec<u8>, InputError> {
    match input {
        Input::Stdin => read_bounded(stdin, max_bytes).map_err(|source| InputError {
            path: PathBuf::from(STDIN),
            source,
        }),
        Input::File { path, .. } => read_file(path, max_bytes).map_err(|source| InputError {
            path: path.clone(),
            source,
        }),
    }
}

fn read_file(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    // Before opening: opening a FIFO waits for its writer.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    read_bounded(&mut File::open(path)?, max_bytes)
}

fn read_bounded(reader: &mut dyn Read, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader
        .take(max_bytes.saturating_add(1))
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

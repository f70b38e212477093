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
#[error("cannot read `{}`", shown(path))]
pub struct InputError {
    /// The path.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub source: io::Error,
}

/// `path` for a terminal, which would obey control characters in it.
fn shown(path: &Path) -> String {
    let mut shown = String::new();
    for character in path.display().to_string().chars() {
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// What the paths given to `quotac check` stand for.
#[derive(Debug, Default)]
pub struct Inputs {
    /// What to read, in the order given; each file once.
    pub inputs: Vec<Input>,
    /// Case files that directories hold.
    pub passed_over: usize,
    /// Paths that could not be looked into.
    pub errors: Vec<InputError>,
}

impl Inputs {
    /// Finds what `paths` name: a file, a directory (every `*.yaml` and `*.yml` below it but for case files, sorted, hidden
    /// ones passed over), or `-` for standard input. A file named twice is read once.
    #[must_use]
    pub fn find(paths: &[PathBuf]) -> Self {
        let mut search = Search::new(is_yaml);
        for path in paths {
            if path.as_os_str() != STDIN {
                search.add(path, true);
            } else if !search.inputs.contains(&Input::Stdin) {
                search.inputs.push(Input::Stdin);
            }
        }
        let (cases, inputs): (Vec<_>, Vec<_>) = search.inputs.into_iter().partition(
            |input| matches!(input, Input::File { path, named: false } if is_case_file(path)),
        );
        Self {
            inputs,
            passed_over: cases.len(),
            errors: search.errors,
        }
    }
}

/// What the paths given to `quotac test` stand for.
#[derive(Debug, Default)]
pub struct CaseFiles {
    /// In the order given; each file once.
    pub files: Vec<PathBuf>,
    /// Paths that could not be looked into.
    pub errors: Vec<InputError>,
}

impl CaseFiles {
    /// Finds what `paths` name: a file, whatever it is called, or a directory (every `*_test.yaml` and `*_test.yml` below it,
    /// sorted, hidden ones passed over).
    #[must_use]
    pub fn find(paths: &[PathBuf]) -> Self {
        let mut search = Search::new(is_case_file);
        for path in paths {
            search.add(path, true);
        }
        let files = search.inputs.into_iter().filter_map(|input| match input {
            Input::File { path, .. } => Some(path),
            Input::Stdin => None,
        });
        Self {
            files: files.collect(),
            errors: search.errors,
        }
    }
}

/// A walk over files and directories that meets each of them once.
struct Search {
    /// Whether a file is looked for that is found in a directory.
    wanted: fn(&Path) -> bool,
    inputs: Vec<Input>,
    errors: Vec<InputError>,
    /// Where each file stands in `inputs`, by canonical path.
    files: HashMap<PathBuf, usize>,
    /// Canonical paths of the directories walked, so that a symbolic link cannot send the walk round in circles.
    directories: HashSet<PathBuf>,
}

impl Search {
    fn new(wanted: fn(&Path) -> bool) -> Self {
        Self {
            wanted,
            inputs: Vec::new(),
            errors: Vec::new(),
            files: HashMap::new(),
            directories: HashSet::new(),
        }
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
        let wanted = named || (self.wanted)(path);
        let is_directory = match fs::metadata(path) {
            Ok(metadata) => metadata.is_dir(),
            // A link that leads nowhere, which nobody asked for.
            Err(_) if !wanted => return Ok(()),
            Err(error) => return Err(error),
        };
        if !is_directory && !wanted {
            return Ok(());
        }
        let canonical = fs::canonicalize(path)?;
        if is_directory {
            if self.directories.insert(canonical) {
                for name in sorted_names(path)? {
                    self.add(&path.join(name), false);
                }
            }
            return Ok(());
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
            "not a regular file; what a pipe brings can be read with `-`",
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    fn folder(files: &[&str]) -> TempDir {
        let folder = TempDir::new().expect("a temporary folder");
        for file in files {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, "").expect("a file");
        }
        folder
    }

    /// The paths found below `folder`, those named in upper case.
    fn found(folder: &TempDir, paths: &[&str]) -> Vec<String> {
        let paths: Vec<PathBuf> = paths.iter().map(|path| folder.path().join(path)).collect();
        let found = Inputs::find(&paths);
        assert!(found.errors.is_empty(), "{:?}", found.errors);
        let inputs = found.inputs.iter().map(|input| {
            let name = input.name();
            let name = name
                .trim_start_matches(&*folder.path().to_string_lossy())
                .trim_start_matches('/');
            if input.is_named() {
                name.to_uppercase()
            } else {
                name.to_owned()
            }
        });
        inputs.collect()
    }

    #[test]
    fn a_directory_stands_for_its_yaml_files_in_order() {
        let folder = folder(&[
            "b.yml",
            "a.yaml",
            "c/d.yaml",
            "c.txt",
            "a_test.yaml",
            "x_test.yml",
            ".hidden/e.yaml",
            ".f.yaml",
        ]);
        assert_eq!(found(&folder, &[""]), ["a.yaml", "b.yml", "c/d.yaml"]);
        assert_eq!(Inputs::find(&[folder.path().to_owned()]).passed_over, 2);
    }

    #[test]
    fn a_file_given_by_name_is_read_whatever_it_is_called_and_only_once() {
        let folder = folder(&["a.yaml", "a_test.yaml", "policies.conf"]);
        assert_eq!(
            found(&folder, &["policies.conf", "a_test.yaml"]),
            ["POLICIES.CONF", "A_TEST.YAML"]
        );
        assert_eq!(
            found(&folder, &["", "a_test.yaml", "a.yaml"]),
            ["A.YAML", "A_TEST.YAML"]
        );
        let stdin = [STDIN, STDIN].map(PathBuf::from);
        assert_eq!(Inputs::find(&stdin).inputs, [Input::Stdin]);
    }

    #[test]
    fn links_are_followed_once() {
        let folder = folder(&["..data/p.yaml"]);
        let at = |name: &str| folder.path().join(name);
        symlink("..data/p.yaml", at("p.yaml")).expect("a link");
        symlink("p.yaml", at("q.yaml")).expect("a link");
        symlink(".", at("loop")).expect("a link");
        symlink("nowhere", at("lock")).expect("a link");
        assert_eq!(found(&folder, &[""]), ["p.yaml"]);
        symlink("nowhere", at("lost.yaml")).expect("a link");
        let lost = Inputs::find(&[folder.path().to_owned()]).errors;
        assert_eq!(lost.len(), 1);
        assert!(lost[0].path.ends_with("lost.yaml"));
    }

    #[test]
    fn case_files_are_found_by_their_names() {
        let folder = folder(&["a.yaml", "c/a_test.yaml", "cases.yaml", "b_test.yml"]);
        let found = CaseFiles::find(&[folder.path().to_owned(), folder.path().join("cases.yaml")]);
        let names: Vec<_> = found
            .files
            .iter()
            .map(|file| file.strip_prefix(folder.path()).expect("below"))
            .collect();
        assert_eq!(
            names,
            ["b_test.yml", "c/a_test.yaml", "cases.yaml"].map(Path::new)
        );
    }

    #[test]
    fn no_more_is_read_than_shows_that_it_is_too_much() {
        let bytes = read(&Input::Stdin, 3, &mut io::repeat(b'x')).expect("readable");
        assert_eq!(bytes, b"xxxx");
    }

    #[test]
    fn what_is_no_regular_file_is_not_waited_for() {
        let input = Input::File {
            path: "/dev/zero".into(),
            named: true,
        };
        let error = read(&input, 3, &mut io::empty()).expect_err("a device");
        assert_eq!(error.source.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn names_of_files_do_not_reach_the_terminal_as_commands() {
        let error = InputError {
            path: "a\u{1b}[31m\n.yaml".into(),
            source: io::ErrorKind::NotFound.into(),
        };
        assert_eq!(error.to_string(), "cannot read `a\\u{1b}[31m\\n.yaml`");
    }
}

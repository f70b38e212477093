//! Finds, judges and loads a plugin library: a private, sealed copy of it, for ever.
//!
//! The file is read once its content has settled, and only the copy is mapped: an overwritten file cannot change running
//! code, and a new content under an old name is new code. Equal content is loaded once. Nothing is ever unloaded: threads
//! and thread-local destructors of a plugin may outlive every instance.
#![expect(unsafe_code, reason = "loading a library runs its code")]

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{OsString, c_void};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use libloading::os::unix::Library;
use parking_lot::Mutex;
use quota_plugin_abi::{QUOTA_ENTRY_SYMBOL, quota_plugin_entry};
use sha2::{Digest as _, Sha256};

use crate::plugin::{Description, Loaded, Plugin, Refusal};
use crate::search::{SearchPath, is_kind, kind_of, library_name};

/// The most distinct library contents one process loads; every one stays mapped.
pub const MAX_GENERATIONS: usize = 64;

const LIBRARY_MAX: u64 = 256 << 20;
const SETTLE: Duration = Duration::from_millis(50);
const SETTLE_READINGS: usize = 10;

/// Which library to load.
#[derive(Clone, Copy, Debug)]
pub struct LoadRequest<'a> {
    /// Where to look.
    pub search: &'a SearchPath,
    /// `backend.plugin`: a file name to look for, or an absolute path; `None` for the name that follows from the kind.
    pub plugin: Option<&'a str>,
    /// `backend.plugin_sha256`: the only content accepted, 64 hexadecimal digits.
    pub sha256: Option<&'a str>,
}

/// Why there is no plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The kind cannot be one.
    #[error("`{0}` cannot be a backend kind: it must be of the form [a-z][a-z0-9_]{{0,31}}")]
    Kind(String),
    /// The `plugin` setting is neither a file name nor an absolute path.
    #[error("`{0}` is neither a file name nor an absolute path")]
    PluginSetting(String),
    /// The pin is no digest.
    #[error("`{0}` is no SHA-256: 64 hexadecimal digits are needed")]
    PinSetting(String),
    /// No such file in any folder.
    #[error(
        "no `{file_name}` in {}; kinds found there: {}",
        searched.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", "),
        if kinds.is_empty() { "none".to_owned() } else { kinds.join(", ") }
    )]
    NotFound {
        /// The file looked for.
        file_name: String,
        /// The folders, in order.
        searched: Vec<PathBuf>,
        /// The kinds there is a library for.
        kinds: Vec<String>,
    },
    /// A library was found and refused; no other is looked for.
    #[error("plugin {} is refused", file.as_ref().map_or("linked in".to_owned(), |file| format!("`{}`", file.display())))]
    Refused {
        /// The library's file; `None` if it is linked in.
        file: Option<PathBuf>,
        /// Why.
        #[source]
        reason: Refusal,
    },
}

impl LoadError {
    /// Why a found library was refused.
    #[must_use]
    pub const fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused { reason, .. } => Some(reason),
            Self::Kind(_)
            | Self::PluginSetting(_)
            | Self::PinSetting(_)
            | Self::NotFound { .. } => None,
        }
    }
}

/// A content that was mapped, and what it turned out to be.
struct Generation {
    number: usize,
    outcome: Result<Arc<Description>, Refusal>,
}

/// Everything this process ever mapped, by content. INVARIANT: never shrinks, holds at most `MAX_GENERATIONS`.
static GENERATIONS: LazyLock<Mutex<HashMap<[u8; 32], Generation>>> = LazyLock::new(Mutex::default);

/// How many distinct library contents this process has loaded, refused ones included.
#[must_use]
pub fn generations() -> usize {
    GENERATIONS.lock().len()
}

impl Plugin {
    /// Loads the library of a kind. The first file found is the one: if it is refused, no other is tried. The same
    /// content is loaded once and shared. Takes at least 50 ms for a content not seen before. Never on a runtime thread:
    /// it runs constructors and holds the loader's lock.
    ///
    /// # Errors
    /// No library was found, or it is refused; the error says what to do about it.
    pub fn load(kind: &str, request: &LoadRequest<'_>) -> Result<Self, LoadError> {
        if !is_kind(kind) {
            return Err(LoadError::Kind(kind.to_owned()));
        }
        let pin = request.sha256.map(parse_digest).transpose()?;
        let found = locate(kind, request)?;
        let refused = |reason| LoadError::Refused {
            file: Some(found.clone()),
            reason,
        };
        let named = found
            .file_name()
            .and_then(|name| kind_of(Path::new(name)))
            .filter(|named| named != kind);
        if let Some(named) = named {
            return Err(refused(Refusal::Kind {
                expected: kind.to_owned(),
                found: named,
            }));
        }
        load_file(kind, &found, pin).map_err(refused)
    }
}

fn parse_digest(text: &str) -> Result<[u8; 32], LoadError> {
    let wrong = || LoadError::PinSetting(text.to_owned());
    let text = text.trim();
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    let mut digest = [0; 32];
    for (byte, digits) in digest.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digits = std::str::from_utf8(digits).map_err(|_| wrong())?;
        *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
    }
    Ok(digest)
}

fn hex(digest: &[u8; 32]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn locate(kind: &str, request: &LoadRequest<'_>) -> Result<PathBuf, LoadError> {
    let file_name = match request.plugin {
        Some(path) if Path::new(path).is_absolute() => return Ok(path.into()),
        Some(name) if name.is_empty() || name.contains('/') => {
            return Err(LoadError::PluginSetting(name.to_owned()));
        }
        Some(name) => name.to_owned(),
        None => library_name(kind),
    };
    let first = request.search.find(&file_name).into_iter().next();
    first.ok_or_else(|| LoadError::NotFound {
        file_name,
        searched: request.search.folders().to_vec(),
        kinds: request.search.kinds(),
    })
}

fn load_file(kind: &str, found: &Path, pin: Option<[u8; 32]>) -> Result<Plugin, Refusal> {
    let file = found
        .canonicalize()
        .map_err(|error| io_refusal("find it", &error))?;
    let warnings = judge_path(&file)?;
    // One at a time: two loads of one content must meet, and the limit must hold.
    let mut generations = GENERATIONS.lock();
    let (content, sha256) = read_settled(&file, |sha256| {
        generations.contains_key(sha256) || pin == Some(*sha256)
    })?;
    if let Some(expected) = pin
        && expected != sha256
    {
        return Err(Refusal::Pin {
            expected: hex(&expected),
            found: hex(&sha256),
        });
    }
    let number = generations.len() + 1;
    let generation = match generations.entry(sha256) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(_) if number > MAX_GENERATIONS => {
            return Err(Refusal::TooManyGenerations {
                limit: MAX_GENERATIONS,
            });
        }
        Entry::Vacant(new) => {
            let library = Mapped::of(&content)?;
            let outcome = library.describe().map(Arc::new);
            new.insert(Generation { number, outcome })
        }
    };
    let description = generation.outcome.clone()?;
    description.expect_kind(kind)?;
    let loaded = Loaded {
        file: file.into(),
        sha256,
        generation: generation.number,
        warnings,
    };
    Ok(Plugin::from_library(description, loaded))
}

fn io_refusal(action: &'static str, error: &io::Error) -> Refusal {
    Refusal::Io {
        action,
        message: error.to_string(),
    }
}

/// Whether the program runs with more rights than the user who started it, so that the environment is not to be trusted.
pub(crate) fn runs_with_raised_rights() -> bool {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: reads a number the kernel gave the process; no precondition.
        unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
    }
    #[cfg(not(target_os = "linux"))]
    {
        // SAFETY: reads a flag of the process; no precondition.
        unsafe { libc::issetugid() != 0 }
    }
}

/// Refuses a resolved path somebody else could change; what is merely unusual about it.
fn judge_path(file: &Path) -> Result<Vec<String>, Refusal> {
    // SAFETY: reads the user id of the process; no precondition.
    let us = unsafe { libc::geteuid() };
    let mut warnings = Vec::new();
    for component in file.ancestors() {
        let metadata = component
            .symlink_metadata()
            .map_err(|error| io_refusal("read the permissions of its path", &error))?;
        let mode = metadata.mode() & 0o7777;
        // In a sticky folder only the owner of a file can replace it.
        let sticky = metadata.is_dir() && mode & 0o1000 != 0;
        let writers = if sticky { 0 } else { mode & 0o022 };
        if writers & 0o002 != 0 {
            return Err(Refusal::Writable {
                component: component.display().to_string(),
                mode,
            });
        }
        if writers != 0 {
            warnings.push(format!(
                "`{}` can be written by its group (mode {mode:04o})",
                component.display()
            ));
        }
        if is_stranger(metadata.uid(), us) {
            warnings.push(format!(
                "`{}` belongs to another user (id {})",
                component.display(),
                metadata.uid()
            ));
        }
    }
    Ok(warnings)
}

/// Whether a file of `owner` is one of neither root nor `us`.
const fn is_stranger(owner: u32, us: u32) -> bool {
    owner != 0 && owner != us
}

/// The content of a file that no longer changes: equal in two readings 50 ms apart, or known already.
fn read_settled(
    file: &Path,
    is_known: impl Fn(&[u8; 32]) -> bool,
) -> Result<(Vec<u8>, [u8; 32]), Refusal> {
    let mut last = None;
    for _ in 0..SETTLE_READINGS {
        let content = read(file)?;
        let sha256: [u8; 32] = Sha256::digest(&content).into();
        if last == Some(sha256) || is_known(&sha256) {
            return Ok((content, sha256));
        }
        last = Some(sha256);
        std::thread::sleep(SETTLE);
    }
    Err(Refusal::Unsettled)
}

fn read(path: &Path) -> Result<Vec<u8>, Refusal> {
    // The last component was resolved before, so a link here was put in since; a pipe must not make us wait.
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = opened.map_err(|error| io_refusal("open it", &error))?;
    let metadata: Metadata = file
        .metadata()
        .map_err(|error| io_refusal("examine it", &error))?;
    if !metadata.is_file() {
        return Err(Refusal::NotRegular);
    }
    if metadata.len() > LIBRARY_MAX {
        return Err(Refusal::TooLarge { limit: LIBRARY_MAX });
    }
    // Judged again on what was opened: the path may lead elsewhere by now.
    if metadata.mode() & 0o002 != 0 {
        return Err(Refusal::Writable {
            component: path.display().to_string(),
            mode: metadata.mode() & 0o7777,
        });
    }
    let mut content = Vec::new();
    let copied = file.take(LIBRARY_MAX + 1).read_to_end(&mut content);
    copied.map_err(|error| io_refusal("read it", &error))?;
    // It may have grown meanwhile.
    if u64::try_from(content.len()).unwrap_or(u64::MAX) > LIBRARY_MAX {
        return Err(Refusal::TooLarge { limit: LIBRARY_MAX });
    }
    Ok(content)
}

/// A library in this process, for ever.
struct Mapped {
    entry: Option<quota_plugin_entry>,
}

impl Mapped {
    fn of(content: &[u8]) -> Result<Self, Refusal> {
        let copy = PrivateCopy::of(content)
            .map_err(|error| io_refusal("make a private copy of it", &error))?;
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
        // SAFETY: runs the constructors of code the operator chose to trust by putting it on the plugin path; the content
        // cannot change any more, being a private copy.
        let library = unsafe { Library::open(Some(copy.path()), flags) };
        let library = match library {
            Ok(library) => library,
            Err(error) => {
                let mut message = describe_loader_error(&error, &copy.path());
                if let PrivateCopy::Folder { folder, .. } = &copy
                    && forbids_execution(folder)
                {
                    message.push_str(&format!(
                        "; `{}` is mounted with `noexec`, let TMPDIR name a folder that is not",
                        folder.parent().unwrap_or(folder).display()
                    ));
                }
                copy.discard();
                return Err(Refusal::NotLoadable { message });
            }
        };
        copy.keep();
        // SAFETY: the only meaning of the symbol of this name is the entry function of the ABI; the pointer stays valid,
        // since the library is never unloaded.
        let entry = unsafe { library.get::<quota_plugin_entry>(QUOTA_ENTRY_SYMBOL) };
        let entry = entry.ok().map(|symbol| *symbol);
        let _never_closed = library.into_raw();
        Ok(Self { entry })
    }

    fn describe(&self) -> Result<Description, Refusal> {
        let entry = self.entry.ok_or(Refusal::NoEntry)?;
        // SAFETY: the entry function of the ABI: no arguments, no precondition, any thread.
        let table = unsafe { entry() };
        let home = library_base(entry as *const c_void);
        let is_own_code = |function| home.is_some() && library_base(function) == home;
        // SAFETY: a table of the ABI as its entry function returns it: constant, and as large as it says.
        unsafe { Description::read(table, is_own_code) }
    }
}

/// What the loader says, without the name of our copy.
fn describe_loader_error(error: &libloading::Error, copy: &Path) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = cause.to_string();
        source = cause.source();
    }
    text.replace(&format!("{}: ", copy.display()), "")
}

/// Whether the file system of `folder` is mounted with `noexec`, where that can be told.
#[cfg(target_os = "linux")]
fn forbids_execution(folder: &Path) -> bool {
    use std::ffi::CString;
    use std::mem::MaybeUninit;

    let Ok(path) = CString::new(folder.as_os_str().as_bytes()) else {
        return false;
    };
    let mut about = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends with a zero byte, and `about` is the place of such a struct.
    if unsafe { libc::statvfs(path.as_ptr(), about.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: filled in by the call above, which succeeded.
    let about = unsafe { about.assume_init() };
    about.f_flag & libc::ST_NOEXEC != 0
}

#[cfg(not(target_os = "linux"))]
const fn forbids_execution(_folder: &Path) -> bool {
    false
}

/// Where the library begins that an address lies in.
fn library_base(address: *const c_void) -> Option<*mut c_void> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: `info` can be written; any address may be asked about.
    let found = unsafe { libc::dladdr(address, &raw mut info) };
    (found != 0 && !info.dli_fbase.is_null()).then_some(info.dli_fbase)
}

/// A copy nobody else can reach or change.
enum PrivateCopy {
    /// Sealed memory. The descriptor stays open for ever: its number is the name the loader remembers.
    #[cfg(target_os = "linux")]
    Memory(File),
    /// A file in a folder of our own, where there is no such memory; removed once it is mapped.
    Folder { folder: PathBuf, file: PathBuf },
}

impl PrivateCopy {
    fn of(content: &[u8]) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        if let Ok(file) = memory_file() {
            return Self::in_memory(file, content);
        }
        Self::in_folder(&std::env::temp_dir(), content)
    }

    #[cfg(target_os = "linux")]
    fn in_memory(mut file: File, content: &[u8]) -> io::Result<Self> {
        use std::os::fd::AsRawFd as _;

        file.write_all(content)?;
        let seals =
            libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: the descriptor is open, being that of `file`.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self::Memory(file))
    }

    /// In a folder below `base` that only we can enter.
    fn in_folder(base: &Path, content: &[u8]) -> io::Result<Self> {
        let mut template: Vec<u8> = base
            .join("quota-plugin-XXXXXX")
            .as_os_str()
            .as_bytes()
            .into();
        template.push(0);
        // SAFETY: the template ends with a zero byte and is ours to write to.
        if unsafe { libc::mkdtemp(template.as_mut_ptr().cast()) }.is_null() {
            return Err(io::Error::last_os_error());
        }
        template.pop();
        let folder = PathBuf::from(<OsString as std::os::unix::ffi::OsStringExt>::from_vec(
            template,
        ));
        let copy = Self::Folder {
            file: folder.join("plugin"),
            folder,
        };
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o500)
            .open(copy.path());
        match made.and_then(|mut file| file.write_all(content)) {
            Ok(()) => Ok(copy),
            Err(error) => {
                copy.discard();
                Err(error)
            }
        }
    }

    /// The name the loader is given.
    fn path(&self) -> PathBuf {
        match self {
            #[cfg(target_os = "linux")]
            Self::Memory(file) => {
                use std::os::fd::AsRawFd as _;
                format!("/proc/self/fd/{}", file.as_raw_fd()).into()
            }
            Self::Folder { file, .. } => file.clone(),
        }
    }

    /// After it was mapped: the loader goes on knowing a descriptor by its number, a file it needs no more.
    fn keep(self) {
        match self {
            #[cfg(target_os = "linux")]
            Self::Memory(file) => {
                use std::os::fd::IntoRawFd as _;
                let _open_for_ever = file.into_raw_fd();
            }
            Self::Folder { .. } => self.discard(),
        }
    }

    /// After it was not mapped.
    fn discard(self) {
        match self {
            #[cfg(target_os = "linux")]
            Self::Memory(_) => {}
            Self::Folder { folder, .. } => {
                // What cannot be removed from a temporary folder of our own is left to whoever clears that.
                let _removed = std::fs::remove_dir_all(folder);
            }
        }
    }
}

/// An empty file in memory that can be sealed.
#[cfg(target_os = "linux")]
fn memory_file() -> io::Result<File> {
    use std::os::fd::FromRawFd as _;

    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name ends with a zero byte.
    let descriptor = unsafe { libc::memfd_create(c"quota-plugin".as_ptr(), flags) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor, owned by nobody else.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn root_and_we_are_no_strangers() {
        assert!(!is_stranger(0, 7));
        assert!(!is_stranger(7, 7));
        assert!(!is_stranger(0, 0));
        assert!(is_stranger(8, 7));
        assert!(is_stranger(7, 0));
    }

    #[test]
    fn a_file_is_taken_once_two_readings_of_it_are_equal() {
        let folder = folder();
        let file = folder.path().join("library");
        std::fs::write(&file, "0").unwrap();
        // Somebody writes after each of the first readings.
        let written = std::cell::Cell::new(0);
        let write_until = |end: u32| {
            written.set(0);
            let file = &file;
            let written = &written;
            move |_: &[u8; 32]| {
                if written.get() < end {
                    written.set(written.get() + 1);
                    std::fs::write(file, written.get().to_string()).unwrap();
                }
                false
            }
        };
        let (content, sha256) = read_settled(&file, write_until(3)).unwrap();
        assert_eq!(content, b"3");
        assert_eq!(sha256[..], Sha256::digest("3")[..]);
        let unsettled = read_settled(&file, write_until(u32::MAX)).unwrap_err();
        assert_eq!(unsettled, Refusal::Unsettled);
        // What is known needs no second reading.
        let (content, _) = read_settled(&file, |_| true).unwrap();
        assert_eq!(content, SETTLE_READINGS.to_string().into_bytes());
    }

    #[test]
    fn a_file_that_is_too_large_is_not_read() {
        let folder = folder();
        let file = folder.path().join("library");
        File::create(&file)
            .unwrap()
            .set_len(LIBRARY_MAX + 1)
            .unwrap();
        let expected = Refusal::TooLarge { limit: LIBRARY_MAX };
        assert_eq!(read(&file).unwrap_err(), expected);
    }

    #[test]
    fn a_link_that_was_put_in_place_of_a_judged_file_is_not_followed() {
        let folder = folder();
        let file = folder.path().join("library");
        std::fs::write(folder.path().join("other"), "other").unwrap();
        std::os::unix::fs::symlink("other", &file).unwrap();
        let refusal = read(&file).unwrap_err();
        assert!(matches!(
            refusal,
            Refusal::Io {
                action: "open it",
                ..
            }
        ));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_copy_in_memory_cannot_be_changed() {
        let copy = PrivateCopy::in_memory(memory_file().unwrap(), b"content").unwrap();
        let path = copy.path();
        assert_eq!(std::fs::read(&path).unwrap(), b"content");
        let opened = OpenOptions::new().write(true).open(&path).unwrap();
        assert!((&opened).write_all(b"other").is_err());
        assert!(opened.set_len(0).is_err());
        assert!(opened.set_len(100).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"content");
    }

    #[test]
    fn where_there_is_no_such_memory_the_copy_lies_in_a_folder_of_our_own() {
        let base = folder();
        let copy = PrivateCopy::in_folder(base.path(), b"content").unwrap();
        let file = copy.path();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(file.parent().unwrap()), 0o700);
        assert_eq!(mode(&file), 0o500);
        assert_eq!(std::fs::read(&file).unwrap(), b"content");
        assert!(PrivateCopy::in_folder(base.path(), b"again").is_ok());
        copy.keep();
        assert!(!file.exists() && !file.parent().unwrap().exists());
        assert!(PrivateCopy::in_folder(&base.path().join("missing"), b"").is_err());
    }

    /// Held against the kernel's own list, whatever this machine has mounted.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_file_system_without_execution_is_told_from_others() {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let mut told = 0;
        for folder in ["/", "/proc", "/sys", "/dev", "/dev/shm", "/run", "/tmp"] {
            // The last line of a place is the one that is seen.
            let line = mounts
                .lines()
                .rfind(|line| line.split(' ').nth(1) == Some(folder));
            if let Some(options) = line.and_then(|line| line.split(' ').nth(3)) {
                let expected = options.split(',').any(|option| option == "noexec");
                assert_eq!(forbids_execution(Path::new(folder)), expected, "{folder}");
                told += 1;
            }
        }
        assert!(told > 0, "{mounts}");
        assert!(!forbids_execution(Path::new("/nonexistent")));
    }
}

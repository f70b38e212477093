//! The safe handle of a backend: what it says of itself, its options, how an instance is made.
#![expect(unsafe_code, reason = "reads the table of a plugin and calls it")]

use std::ffi::c_void;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use quota_plugin_abi::{
    QUOTA_ABI_MAJOR, QUOTA_ABI_MINOR, QUOTA_CAP_BLOCKING, QUOTA_CAP_INLINE, QUOTA_CAP_NATIVE_BATCH,
    QUOTA_CAP_PERSISTENT, QUOTA_CAP_REMOTE, QUOTA_CAP_SHARED, QUOTA_CREATE_SIZE_1_0,
    QUOTA_DIAGNOSTIC_SINK_SIZE_1_0, QUOTA_DIAGNOSTIC_SIZE_1_0, QUOTA_KEY_MAX, QUOTA_MAGIC,
    QUOTA_OK, QUOTA_PLUGIN_SIZE_1_0, quota_create, quota_create_fn, quota_diagnostic,
    quota_diagnostic_sink, quota_host, quota_instance, quota_plugin, quota_str,
};
use serde_json::Value;

use crate::callbacks::{Shared, harmless};
use crate::instance::{CreateError, Identity, Instance, Raw, Settings, count_zombie};
use crate::options::{
    Collector, OptionDiagnostic, Schema, Severity, TEXT_MAX, add_new, canonical, has_error,
};
use crate::pool::Pool;
use crate::search::is_kind;

const NAME_MAX: usize = 256;
const DIAGNOSTIC_TEXT_MAX: usize = 1024;
const DIAGNOSTIC_CODE_MAX: usize = 32;
/// The longest a plugin may take to make an instance: it waits for no server.
const CREATE_LIMIT: Duration = Duration::from_secs(1);
/// The least `max_limit` a backend may declare: what a double counts exactly.
const LEAST_MAX_LIMIT: u64 = (1 << 53) - 1;

/// Why a plugin is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A component of the path can be written by everyone.
    #[error(
        "`{component}` can be written by everyone (mode {mode:04o}); fix it with `chmod o-w {component}`"
    )]
    Writable {
        /// The file or folder.
        component: String,
        /// Its permission bits.
        mode: u32,
    },
    /// Not a regular file.
    #[error("it is not a regular file")]
    NotRegular,
    /// Larger than a library may be.
    #[error("it is larger than {limit} bytes")]
    TooLarge {
        /// The most bytes a library may have.
        limit: u64,
    },
    /// The file could not be read or copied.
    #[error("cannot {action}: {message}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// What the system says.
        message: String,
    },
    /// The file went on changing while it was read.
    #[error("it is still being written: its content changed between readings")]
    Unsettled,
    /// The content is not the pinned one.
    #[error("its SHA-256 is {found}, but {expected} is pinned")]
    Pin {
        /// The pinned digest, hexadecimal.
        expected: String,
        /// The digest of the file, hexadecimal.
        found: String,
    },
    /// The system's loader does not take it.
    #[error("it is no shared library this system can load: {message}")]
    NotLoadable {
        /// What the loader says.
        message: String,
    },
    /// It does not export the entry function.
    #[error("it does not export `quota_plugin_entry`: it is no quota plugin")]
    NoEntry,
    /// The entry function returned null.
    #[error("`quota_plugin_entry` returned null")]
    NullTable,
    /// The table does not begin with the magic number.
    #[error("its table does not begin with `QUOTAPLG` (found {found:#018x})")]
    Magic {
        /// What stands there.
        found: u64,
    },
    /// It was built for another major version.
    #[error(
        "it speaks plugin ABI {plugin_major}.{plugin_minor}, this program {host_major}.{host_minor}: rebuild it with quota-plugin-sdk {sdk}",
        host_major = QUOTA_ABI_MAJOR,
        host_minor = QUOTA_ABI_MINOR,
        sdk = env!("CARGO_PKG_VERSION")
    )]
    Version {
        /// Major version of the plugin.
        plugin_major: u16,
        /// Minor version of the plugin.
        plugin_minor: u16,
    },
    /// Its table is smaller than version 1.0 says.
    #[error("its table has {size} bytes, version 1.0 of the ABI {least}")]
    Size {
        /// The size it claims.
        size: u32,
        /// The size of version 1.0.
        least: u32,
    },
    /// A required function is null.
    #[error("its function `{name}` is required and null")]
    MissingFunction {
        /// The field of the table.
        name: &'static str,
    },
    /// A function is not code of the library.
    #[error("its function `{name}` is not inside the library")]
    ForeignFunction {
        /// The field of the table.
        name: &'static str,
    },
    /// The kind is not the expected one.
    #[error("it describes itself as kind `{found}`, not `{expected}`")]
    Kind {
        /// The kind that was asked for.
        expected: String,
        /// The kind it says.
        found: String,
    },
    /// Something else in the description breaks a rule.
    #[error("its description is wrong: {what}")]
    Description {
        /// What.
        what: String,
    },
    /// The schema of its options is broken: the plugin's fault, whatever the options.
    #[error("the schema of its options is broken, a fault of the plugin: {what}")]
    Schema {
        /// What.
        what: String,
    },
    /// As many distinct libraries as may be are loaded.
    #[error(
        "{limit} different libraries are loaded, and none is ever unloaded: restart to load more"
    )]
    TooManyGenerations {
        /// The most distinct contents of one process.
        limit: usize,
    },
}

/// What a backend says it can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// It decides inside the call, without I/O: [`Instance::check_one`] may be used.
    #[must_use]
    pub const fn inline(self) -> bool {
        self.0 & QUOTA_CAP_INLINE != 0
    }

    /// It blocks while it decides; the host runs it on threads of its own.
    #[must_use]
    pub const fn blocking(self) -> bool {
        self.0 & QUOTA_CAP_BLOCKING != 0
    }

    /// Its counters live in another process.
    #[must_use]
    pub const fn remote(self) -> bool {
        self.0 & QUOTA_CAP_REMOTE != 0
    }

    /// Other processes see the same counters.
    #[must_use]
    pub const fn shared(self) -> bool {
        self.0 & QUOTA_CAP_SHARED != 0
    }

    /// Its counters survive a restart of this process.
    #[must_use]
    pub const fn persistent(self) -> bool {
        self.0 & QUOTA_CAP_PERSISTENT != 0
    }

    /// A batch costs one trip.
    #[must_use]
    pub const fn native_batch(self) -> bool {
        self.0 & QUOTA_CAP_NATIVE_BATCH != 0
    }
}

/// A plugin's table, judged and copied.
#[derive(Debug)]
pub(crate) struct Description {
    pub(crate) table: quota_plugin,
    kind: Box<str>,
    name: Box<str>,
    version: Box<str>,
    vendor: Box<str>,
    homepage: Box<str>,
    build_id: Box<str>,
    schema: Schema,
}

/// The part of the table every version begins with.
#[repr(C)]
struct Prefix {
    magic: u64,
    abi_major: u16,
    abi_minor: u16,
    struct_size: u32,
}

impl Description {
    pub(crate) fn of_builtin(table: &'static quota_plugin) -> Result<Self, Refusal> {
        // SAFETY: a reference to a whole table of this version; what it points to is constant for the life of the
        // process (the ABI of `quota_plugin`).
        unsafe { Self::read(table, |_| true) }
    }

    /// Judges and copies a table, in the order of the ABI: pointer, magic, major, size, functions, the rest.
    ///
    /// # Safety
    /// `table` is null or points to a plugin's table: at least a [`Prefix`] can be read, and if that names this major
    /// version, as many bytes as its size says, all of it constant for the life of the process.
    pub(crate) unsafe fn read(
        table: *const quota_plugin,
        is_own_code: impl Fn(*const c_void) -> bool,
    ) -> Result<Self, Refusal> {
        if table.is_null() {
            return Err(Refusal::NullTable);
        }
        // SAFETY: not null by the line above, so a prefix can be read (this function's contract).
        let prefix = unsafe { table.cast::<Prefix>().read() };
        if prefix.magic != QUOTA_MAGIC {
            return Err(Refusal::Magic {
                found: prefix.magic,
            });
        }
        if prefix.abi_major != QUOTA_ABI_MAJOR {
            return Err(Refusal::Version {
                plugin_major: prefix.abi_major,
                plugin_minor: prefix.abi_minor,
            });
        }
        if prefix.struct_size < QUOTA_PLUGIN_SIZE_1_0 {
            return Err(Refusal::Size {
                size: prefix.struct_size,
                least: QUOTA_PLUGIN_SIZE_1_0,
            });
        }
        // SAFETY: the table is of this major version and at least as large as the type, which has the size of 1.0.
        let table = unsafe { table.read() };
        judge_functions(&table, is_own_code)?;
        judge_numbers(&table)?;
        let kind = text("kind", table.kind, NAME_MAX)?;
        if !is_kind(&kind) {
            let what = format!(
                "kind `{}` is not of the form [a-z][a-z0-9_]{{0,31}}",
                kind.escape_default()
            );
            return Err(Refusal::Description { what });
        }
        let name = text("name", table.name, NAME_MAX)?;
        let version = text("version", table.version, NAME_MAX)?;
        let vendor = text("vendor", table.vendor, NAME_MAX)?;
        let homepage = text("homepage", table.homepage, NAME_MAX)?;
        let build_id = text("build_id", table.build_id, NAME_MAX)?;
        let schema = text("options_schema", table.options_schema, TEXT_MAX)?;
        let schema = Schema::parse(&schema).map_err(|what| Refusal::Schema { what })?;
        Ok(Self {
            table,
            kind,
            name,
            version,
            vendor,
            homepage,
            build_id,
            schema,
        })
    }

    pub(crate) fn expect_kind(&self, expected: &str) -> Result<(), Refusal> {
        if *self.kind == *expected {
            return Ok(());
        }
        Err(Refusal::Kind {
            expected: expected.to_owned(),
            found: self.kind.to_string(),
        })
    }
}

fn judge_functions(
    table: &quota_plugin,
    is_own_code: impl Fn(*const c_void) -> bool,
) -> Result<(), Refusal> {
    let inline = table.capabilities & QUOTA_CAP_INLINE != 0;
    let functions = [
        ("validate", table.validate.map(|f| f as *const c_void), true),
        ("create", table.create.map(|f| f as *const c_void), true),
        ("check", table.check.map(|f| f as *const c_void), !inline),
        ("health", table.health.map(|f| f as *const c_void), true),
        ("drain", table.drain.map(|f| f as *const c_void), true),
        ("destroy", table.destroy.map(|f| f as *const c_void), true),
        (
            "get_extension",
            table.get_extension.map(|f| f as *const c_void),
            true,
        ),
        (
            "check_one",
            table.check_one.map(|f| f as *const c_void),
            inline,
        ),
    ];
    for (name, function, required) in functions {
        match function {
            None if required => return Err(Refusal::MissingFunction { name }),
            Some(function) if !is_own_code(function) => {
                return Err(Refusal::ForeignFunction { name });
            }
            None | Some(_) => {}
        }
    }
    Ok(())
}

fn judge_numbers(table: &quota_plugin) -> Result<(), Refusal> {
    let capabilities = Capabilities(table.capabilities);
    let key_max = u32::try_from(QUOTA_KEY_MAX).unwrap_or(u32::MAX);
    let what = if capabilities.inline() && capabilities.blocking() {
        "it is both INLINE and BLOCKING".to_owned()
    } else if table.max_limit < LEAST_MAX_LIMIT {
        format!(
            "max_limit is {}, at least {LEAST_MAX_LIMIT} is needed",
            table.max_limit
        )
    } else if table.max_key_len < key_max {
        format!(
            "max_key_len is {}, at least {key_max} is needed",
            table.max_key_len
        )
    } else {
        return Ok(());
    };
    Err(Refusal::Description { what })
}

fn text(field: &str, text: quota_str, max: usize) -> Result<Box<str>, Refusal> {
    let wrong = |what: &str| Refusal::Description {
        what: format!("{field} {what}"),
    };
    if text.len > max {
        return Err(wrong("is too long"));
    }
    if text.ptr.is_null() && text.len > 0 {
        return Err(wrong("is null, with a length"));
    }
    // SAFETY: texts of a table are constant for the life of the process; null was ruled out above.
    let bytes = unsafe { text.as_bytes() };
    let text = std::str::from_utf8(bytes).map_err(|_| wrong("is not UTF-8"))?;
    Ok(text.into())
}

/// A backend: linked in, or a loaded library. Cheap to clone; the library stays loaded for the life of the process.
#[derive(Clone, Debug)]
pub struct Plugin {
    description: Arc<Description>,
    loaded: Option<Arc<Loaded>>,
}

/// Where a loaded plugin came from.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) file: Box<Path>,
    pub(crate) sha256: [u8; 32],
    pub(crate) generation: usize,
    pub(crate) warnings: Vec<String>,
}

impl Plugin {
    pub(crate) fn linked_in(description: Description) -> Self {
        Self {
            description: Arc::new(description),
            loaded: None,
        }
    }

    pub(crate) fn from_library(description: Arc<Description>, loaded: Loaded) -> Self {
        Self {
            description,
            loaded: Some(Arc::new(loaded)),
        }
    }

    /// The kind, as policy files name it.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.description.kind
    }

    /// The name, for people.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.description.name
    }

    /// The version, for people.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.description.version
    }

    /// Who made it.
    #[must_use]
    pub fn vendor(&self) -> &str {
        &self.description.vendor
    }

    /// Where to read more; may be empty.
    #[must_use]
    pub fn homepage(&self) -> &str {
        &self.description.homepage
    }

    /// Names the build; may be empty.
    #[must_use]
    pub fn build_id(&self) -> &str {
        &self.description.build_id
    }

    /// Major and minor version of the ABI it was built for.
    #[must_use]
    pub fn abi(&self) -> (u16, u16) {
        (
            self.description.table.abi_major,
            self.description.table.abi_minor,
        )
    }

    /// The library's file, links resolved; `None` if it is linked in.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.loaded.as_ref().map(|loaded| &*loaded.file)
    }

    /// The digest of the library's content; `None` if it is linked in.
    #[must_use]
    pub fn sha256(&self) -> Option<[u8; 32]> {
        self.loaded.as_ref().map(|loaded| loaded.sha256)
    }

    /// Counts the distinct contents loaded by this process, from 1; `None` if it is linked in.
    #[must_use]
    pub fn generation(&self) -> Option<usize> {
        self.loaded.as_ref().map(|loaded| loaded.generation)
    }

    /// What is questionable about the file but no reason to refuse it.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        self.loaded.as_ref().map_or(&[], |loaded| &loaded.warnings)
    }

    /// What it can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        Capabilities(self.description.table.capabilities)
    }

    /// The greatest limit it counts exactly.
    #[must_use]
    pub fn max_limit(&self) -> u64 {
        self.description.table.max_limit
    }

    /// The longest key it takes, in bytes.
    #[must_use]
    pub fn max_key_len(&self) -> u32 {
        self.description.table.max_key_len
    }

    /// The most items it takes at once; `None` for any number.
    #[must_use]
    pub fn max_batch(&self) -> Option<u32> {
        Some(self.description.table.max_batch).filter(|&most| most > 0)
    }

    /// The JSON Schema of its options.
    #[must_use]
    pub fn options_schema(&self) -> &Value {
        self.description.schema.json()
    }

    /// Everything wrong with options: what the schema says, then what the plugin itself adds. No I/O happens.
    #[must_use]
    pub fn validate(&self, options: &Value) -> Vec<OptionDiagnostic> {
        if !options.is_object() {
            return vec![OptionDiagnostic::error(
                "wrong-type",
                "",
                "the options are not an object",
            )];
        }
        let text = options.to_string();
        if text.len() > TEXT_MAX {
            let message = format!("the options have more than {TEXT_MAX} bytes as JSON");
            return vec![OptionDiagnostic::error("too-large", "", message)];
        }
        let mut found = self.description.schema.check(options);
        let more = self.validate_text(&text, options);
        add_new(&mut found, more);
        found
    }

    /// The plugin's own word on a text that need not be JSON; pointers are held against `options`.
    pub(crate) fn validate_text(&self, text: &str, options: &Value) -> Vec<OptionDiagnostic> {
        let Some(validate) = self.description.table.validate else {
            return Vec::new();
        };
        with_sink(options, |sink| {
            // SAFETY: `validate` is a function of the plugin, checked non-null; text and sink outlive the call.
            unsafe { validate(quota_str::new(text), sink) }
        })
        .1
    }

    /// What an instance with these settings and options would be; equal to an instance's own means it can go on.
    #[must_use]
    pub fn identity(&self, settings: &Settings, options: &Value) -> Identity {
        Identity::of(self.kind(), self.sha256(), settings, &canonical(options))
    }

    /// Makes an instance. Options are validated first; no server is waited for, and the plugin for a second at most. Blocks;
    /// not for a thread that decides requests.
    ///
    /// # Errors
    /// The options are refused (all findings are in the error), the settings cannot be met, or the plugin failed or took too
    /// long.
    pub fn create(&self, settings: &Settings, options: &Value) -> Result<Instance, CreateError> {
        let capabilities = self.capabilities();
        if settings.key_prefix.trim().is_empty() {
            return Err(CreateError::BlankPrefix);
        }
        if settings.max_inflight == 0 && !capabilities.inline() {
            return Err(CreateError::NoInflight);
        }
        let found = self.validate(options);
        if has_error(&found) {
            return Err(CreateError::Options(found));
        }
        let Some(create) = self.description.table.create else {
            return Err(CreateError::Failed(Vec::new()));
        };
        let max_inflight = if capabilities.inline() {
            0
        } else {
            settings.max_inflight
        };
        let pool = capabilities
            .blocking()
            .then(|| Pool::start(self.kind(), settings.max_inflight))
            .transpose()
            .map_err(CreateError::Threads)?;
        let shared = Shared::register(self.kind(), max_inflight);
        let creation = Creation {
            create,
            host: shared.host_table(),
            settings: settings.clone(),
            text: options.to_string(),
            options: options.clone(),
        };
        match creation.run_for(CREATE_LIMIT, self.kind()) {
            Ok((raw, found)) => {
                let identity = self.identity(settings, options);
                Ok(Instance::new(
                    self.clone(),
                    raw,
                    shared,
                    pool,
                    identity,
                    found,
                ))
            }
            Err(error) => {
                shared.unregister();
                Err(error)
            }
        }
    }

    pub(crate) fn table(&self) -> &quota_plugin {
        &self.description.table
    }
}

/// One call of `create`, with everything it is told.
struct Creation {
    create: quota_create_fn,
    host: &'static quota_host,
    settings: Settings,
    text: String,
    options: Value,
}

/// The plugin's instance and what it found questionable.
type Made = Result<(Raw, Vec<OptionDiagnostic>), CreateError>;

impl Creation {
    /// Calls it on a thread of its own and waits for at most `limit`: a plugin that hangs must not hang whoever reloads.
    fn run_for(self, limit: Duration, kind: &str) -> Made {
        let (send, receive) = sync_channel(1);
        let thread = std::thread::Builder::new().name(format!("quota-create-{kind}"));
        let run = move || {
            // Nobody receives what comes too late. The instance is then left as it is: it cannot be told whether the plugin
            // would end any sooner than it began.
            let _too_late = send.send(self.run());
        };
        thread.spawn(run).map_err(CreateError::Threads)?;
        receive.recv_timeout(limit).unwrap_or_else(|_| {
            count_zombie();
            Err(CreateError::TooSlow { limit })
        })
    }

    fn run(&self) -> Made {
        let context = quota_create {
            struct_size: QUOTA_CREATE_SIZE_1_0,
            reserved: 0,
            key_prefix: quota_str::new(&self.settings.key_prefix),
            connect_timeout_ms: self.settings.connect_timeout_ms,
            command_timeout_ms: self.settings.command_timeout_ms,
            max_inflight: self.settings.max_inflight,
            max_entries: self.settings.max_entries,
        };
        let mut made: *mut quota_instance = ptr::null_mut();
        let (ok, found) = with_sink(&self.options, |sink| {
            // SAFETY: `create` is the function of a plugin's table, whose library is never unloaded; context, text, sink and
            // `made` outlive the call, the host table the process.
            unsafe {
                (self.create)(
                    &raw const context,
                    quota_str::new(&self.text),
                    self.host,
                    sink,
                    &raw mut made,
                )
            }
        });
        match NonNull::new(made) {
            Some(made) if ok => Ok((Raw::made(made), found)),
            _ if ok => Err(CreateError::NoInstance),
            _ => Err(CreateError::Failed(found)),
        }
    }
}

/// Calls a function of a plugin with a sink for findings; whether it returned OK, and the findings.
fn with_sink(
    options: &Value,
    call: impl FnOnce(*const quota_diagnostic_sink) -> i32,
) -> (bool, Vec<OptionDiagnostic>) {
    let mut collector = Collector::new(options);
    let sink = quota_diagnostic_sink {
        struct_size: QUOTA_DIAGNOSTIC_SINK_SIZE_1_0,
        reserved: 0,
        ctx: (&raw mut collector).cast(),
        report: Some(report),
    };
    let ok = call(&raw const sink) == QUOTA_OK;
    (ok, collector.finish(ok))
}

unsafe extern "C" fn report(ctx: *mut c_void, diagnostic: *const quota_diagnostic) {
    // SAFETY: `ctx` is the collector of `with_sink`, alive and not otherwise used during the call the sink was passed
    // to, on whose thread alone a plugin may report (the ABI of the sink).
    let Some(collector) = (unsafe { ctx.cast::<Collector<'_>>().as_mut() }) else {
        return;
    };
    if diagnostic.is_null() {
        return;
    }
    // SAFETY: not null; the size stands first in every version.
    let size = unsafe { diagnostic.cast::<u32>().read() };
    if size < QUOTA_DIAGNOSTIC_SIZE_1_0 {
        let message =
            format!("the plugin reported a finding of {size} bytes, which cannot be read");
        collector.report(OptionDiagnostic::error("unreadable-finding", "", message));
        return;
    }
    // SAFETY: at least as large as version 1.0, whose size the type has.
    let diagnostic = unsafe { diagnostic.read() };
    // SAFETY: texts of a finding can be read during the call (the ABI of the sink).
    let code = unsafe { harmless(diagnostic.code, DIAGNOSTIC_CODE_MAX) };
    // SAFETY: as for the code.
    let pointer = unsafe { harmless(diagnostic.pointer, DIAGNOSTIC_TEXT_MAX) };
    // SAFETY: as for the code.
    let message = unsafe { harmless(diagnostic.message, DIAGNOSTIC_TEXT_MAX) };
    // SAFETY: as for the code.
    let help = unsafe { harmless(diagnostic.help, DIAGNOSTIC_TEXT_MAX) };
    collector.report(OptionDiagnostic {
        severity: Severity::from_abi(diagnostic.severity),
        code,
        pointer,
        message,
        help: Some(help).filter(|help| !help.is_empty()),
    });
}

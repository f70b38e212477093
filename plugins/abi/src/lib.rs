//! The stable C ABI of quota counter backends, version 1.
//!
//! The same declarations as `include/quota_plugin.h`, which is the specification: who owns each pointer, how long it
//! lives and on which thread it is used is written there. `tests/layout.rs` compiles the header and proves every size
//! and offset equal to the ones here.
//!
//! Nothing here is a Rust enum, `bool` or `String`: codes are `i32` and `u32` constants, so an unknown value is data
//! that can be refused, never undefined behaviour.
//!
//! | Part | Items |
//! | --- | --- |
//! | description of a backend | [`quota_plugin`], [`quota_plugin_entry`], the `QUOTA_CAP_*` bits |
//! | checks | [`quota_batch`], [`quota_item`], [`quota_window`], [`quota_windows`], [`quota_result`] |
//! | life of an instance | [`quota_create`], [`quota_host`], [`quota_health`] |
//! | options | [`quota_diagnostic`], [`quota_diagnostic_sink`] |
//! | extensions | [`quota_resize`] and the reserved ids |
//! | the note in the library file | [`quota_note`] |
//! | the composite key | the `QUOTA_KEY_*` constants |
#![no_std]
#![expect(
    non_camel_case_types,
    reason = "types carry the names of the C header, so that both read alike"
)]
#![expect(
    unsafe_code,
    reason = "the declarations of a C boundary, and the two views of a quota_str"
)]

use core::ffi::c_void;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("version 1 of the quota plugin ABI is defined for 64-bit targets only");

/// First field of [`quota_plugin`]: the bytes `QUOTAPLG`, read as a little-endian integer.
pub const QUOTA_MAGIC: u64 = 0x474C_5041_544F_5551;
/// Major version of this ABI; another major is refused.
pub const QUOTA_ABI_MAJOR: u16 = 1;
/// Minor version of this ABI; a newer minor only appends.
pub const QUOTA_ABI_MINOR: u16 = 0;
/// Name of the one exported function, without a terminating zero.
pub const QUOTA_ENTRY_SYMBOL: &str = "quota_plugin_entry";
/// The longest `kind`, in bytes: `[a-z][a-z0-9_]{0,31}`.
pub const QUOTA_KIND_MAX: usize = 32;

/// Size of [`quota_plugin`] in version 1.0; frozen.
pub const QUOTA_PLUGIN_SIZE_1_0: u32 = 216;
/// Size of [`quota_host`] in version 1.0; frozen.
pub const QUOTA_HOST_SIZE_1_0: u32 = 104;
/// Size of [`quota_batch`] in version 1.0; frozen.
pub const QUOTA_BATCH_SIZE_1_0: u32 = 64;
/// Size of [`quota_item`] in version 1.0; frozen.
pub const QUOTA_ITEM_SIZE_1_0: u32 = 112;
/// Size of [`quota_windows`] in version 1.0; frozen.
pub const QUOTA_WINDOWS_SIZE_1_0: u32 = 96;
/// Size of [`quota_result`] in version 1.0; frozen.
pub const QUOTA_RESULT_SIZE_1_0: u32 = 32;
/// Size of [`quota_create`] in version 1.0; frozen.
pub const QUOTA_CREATE_SIZE_1_0: u32 = 56;
/// Size of [`quota_health`] in version 1.0; frozen.
pub const QUOTA_HEALTH_SIZE_1_0: u32 = 72;
/// Size of [`quota_diagnostic`] in version 1.0; frozen.
pub const QUOTA_DIAGNOSTIC_SIZE_1_0: u32 = 72;
/// Size of [`quota_diagnostic_sink`] in version 1.0; frozen.
pub const QUOTA_DIAGNOSTIC_SINK_SIZE_1_0: u32 = 24;
/// Size of [`quota_resize`] in version 1.0; frozen.
pub const QUOTA_RESIZE_SIZE_1_0: u32 = 16;

/// The backend answers inside the call, without I/O: [`quota_plugin::check_one`] is used.
pub const QUOTA_CAP_INLINE: u64 = 1;
/// The backend blocks inside `check`: the host calls it on threads of its own.
pub const QUOTA_CAP_BLOCKING: u64 = 2;
/// The counters live in another process: timeouts and a local fallback make sense.
pub const QUOTA_CAP_REMOTE: u64 = 4;
/// Other processes see the same counters.
pub const QUOTA_CAP_SHARED: u64 = 8;
/// Counters survive a restart of this process.
pub const QUOTA_CAP_PERSISTENT: u64 = 16;
/// A batch costs one trip; otherwise the host may send items singly.
pub const QUOTA_CAP_NATIVE_BATCH: u64 = 32;

/// Function result: done.
pub const QUOTA_OK: i32 = 0;
/// Result of `check`: every result is filled. The same value as [`QUOTA_OK`].
pub const QUOTA_READY: i32 = 0;
/// Result of `check`: the plugin now owes one `complete` for the ticket.
pub const QUOTA_PENDING: i32 = 1;

/// Item code: every window had room and was charged 1.
pub const QUOTA_ALLOWED: i32 = 1;
/// Item code: at least one window was exhausted; nothing was charged.
pub const QUOTA_DENIED: i32 = 2;
/// Item code: an earlier item ended the batch; nothing was charged.
pub const QUOTA_NOT_EVALUATED: i32 = 3;
/// Item code or function result: time ran out; whether the item was charged is unknown.
pub const QUOTA_TIMEOUT: i32 = -1;
/// Item code or function result: the store cannot be reached, refuses for now, or is full.
pub const QUOTA_UNAVAILABLE: i32 = -2;
/// Item code or function result: anything else that went wrong.
pub const QUOTA_ERROR: i32 = -3;

/// Result of `complete`: the results were taken.
pub const QUOTA_COMPLETE_TAKEN: i32 = 0;
/// Result of `complete`: too late, or completed before.
pub const QUOTA_COMPLETE_LATE: i32 = 1;
/// Result of `complete`: unknown ticket, null results or a wrong count.
pub const QUOTA_COMPLETE_NONSENSE: i32 = 2;

/// Batch flag: after a denied item the rest is [`QUOTA_NOT_EVALUATED`].
pub const QUOTA_BATCH_STOP_AT_DENIAL: u32 = 1;
/// Batch flag: after an item with a negative code the rest is [`QUOTA_NOT_EVALUATED`].
pub const QUOTA_BATCH_STOP_AT_FAILURE: u32 = 2;
/// The batch flags a plugin must understand: it answers [`QUOTA_ERROR`] to an unknown one of these.
pub const QUOTA_FLAGS_MUST_UNDERSTAND: u32 = 0xFFFF_0000;

/// Window kind: the short window.
pub const QUOTA_WINDOW_BURST: u32 = 1;
/// Window kind: the long window.
pub const QUOTA_WINDOW_SUSTAINED: u32 = 2;

/// Result flag: a known denial, repeated without asking the store.
pub const QUOTA_RESULT_LOCAL: u32 = 1;

/// Failure class: none.
pub const QUOTA_CLASS_NONE: u32 = 0;
/// Failure class: a timer ran out.
pub const QUOTA_CLASS_TIMEOUT: u32 = 1;
/// Failure class: not reachable, refusing for now, or full.
pub const QUOTA_CLASS_UNAVAILABLE: u32 = 2;
/// Failure class: protocol, authentication, script and the rest.
pub const QUOTA_CLASS_ERROR: u32 = 3;

/// Health state: nothing has been observed yet.
pub const QUOTA_HEALTH_UNKNOWN: u32 = 0;
/// Health state: checks are being answered.
pub const QUOTA_HEALTH_AVAILABLE: u32 = 1;
/// Health state: checks are being answered, some fail.
pub const QUOTA_HEALTH_DEGRADED: u32 = 2;
/// Health state: checks cannot be answered now.
pub const QUOTA_HEALTH_UNAVAILABLE: u32 = 3;

/// Diagnostic severity: the options are refused.
pub const QUOTA_SEVERITY_ERROR: u32 = 1;
/// Diagnostic severity: accepted, surely not meant.
pub const QUOTA_SEVERITY_WARNING: u32 = 2;
/// Diagnostic severity: worth knowing.
pub const QUOTA_SEVERITY_NOTE: u32 = 3;

/// Log level: error.
pub const QUOTA_LOG_ERROR: u32 = 1;
/// Log level: warning.
pub const QUOTA_LOG_WARN: u32 = 2;
/// Log level: information.
pub const QUOTA_LOG_INFO: u32 = 3;
/// Log level: debugging.
pub const QUOTA_LOG_DEBUG: u32 = 4;
/// Log level: tracing.
pub const QUOTA_LOG_TRACE: u32 = 5;

/// Extension: change the capacity of a living instance, [`quota_resize`].
pub const QUOTA_EXT_RESIZE_1: &str = "quota.resize/1";
/// Reserved extension id: read counters without charging.
pub const QUOTA_EXT_PEEK_1: &str = "quota.peek/1";
/// Reserved extension id: forget the counters of one key.
pub const QUOTA_EXT_RESET_1: &str = "quota.reset/1";
/// Reserved extension id: the plugin's own metrics.
pub const QUOTA_EXT_STATS_1: &str = "quota.stats/1";
/// Reserved extension id: hand counters from one instance to the next.
pub const QUOTA_EXT_HANDOVER_1: &str = "quota.handover/1";

/// ELF section of the note, [`quota_note`] followed by the options schema.
pub const QUOTA_NOTE_SECTION: &str = ".note.quota";
/// Mach-O section of the note.
pub const QUOTA_NOTE_SECTION_MACHO: &str = "__DATA,__quota";
/// Owner name of the note with its zero byte, padded to a multiple of four.
pub const QUOTA_NOTE_NAME: [u8; 8] = *b"QUOTA\0\0\0";
/// Length of the owner name with its one zero byte, without the padding.
pub const QUOTA_NOTE_NAME_LEN: u32 = 6;
/// Type of the note.
pub const QUOTA_NOTE_TYPE: u32 = 1;
/// First bytes of the note's description.
pub const QUOTA_NOTE_MAGIC: [u8; 8] = *b"QUOTAPLG";
/// Size of [`quota_note`] up to and with its name; `descsz` counts what follows.
pub const QUOTA_NOTE_HEADER_SIZE: u32 = 20;

/// First byte of a composite key: the version of its format.
pub const QUOTA_KEY_FORMAT: u8 = 0x01;
/// Tag of a policy name as it is written.
pub const QUOTA_KEY_POLICY: u8 = b'p';
/// Tag of a policy name longer than [`QUOTA_KEY_NAME_MAX`], as its SHA-256.
pub const QUOTA_KEY_POLICY_SHA256: u8 = b'P';
/// Tag of a route as it is written.
pub const QUOTA_KEY_ROUTE: u8 = b'r';
/// Tag of a route longer than [`QUOTA_KEY_NAME_MAX`], as its SHA-256.
pub const QUOTA_KEY_ROUTE_SHA256: u8 = b'R';
/// Tag of the SHA-256 of a tenant.
pub const QUOTA_KEY_TENANT: u8 = b't';
/// Tag of the SHA-256 of a token.
pub const QUOTA_KEY_TOKEN: u8 = b'k';
/// Tag of the SHA-256 of a client.
pub const QUOTA_KEY_CLIENT: u8 = b'c';
/// The longest policy name or route that enters a key as it is written, in bytes.
pub const QUOTA_KEY_NAME_MAX: usize = 128;
/// The longest composite key, in bytes.
pub const QUOTA_KEY_MAX: usize = 512;

/// UTF-8 text or bytes: not zero-terminated; `ptr` may be null only if `len` is 0.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct quota_str {
    /// First byte.
    pub ptr: *const u8,
    /// Number of bytes.
    pub len: usize,
}

// SAFETY: a quota_str is an address and a length; reading through it is the unsafe `as_bytes`, whose caller answers for
// the thread.
unsafe impl Send for quota_str {}
// SAFETY: as for Send: sharing the address reads nothing.
unsafe impl Sync for quota_str {}

impl quota_str {
    /// No bytes.
    pub const EMPTY: Self = Self {
        ptr: core::ptr::null(),
        len: 0,
    };

    /// The bytes of `text`; valid as long as they are.
    #[must_use]
    pub const fn new(text: &str) -> Self {
        Self::from_bytes(text.as_bytes())
    }

    /// These bytes; valid as long as they are.
    #[must_use]
    pub const fn from_bytes(bytes: &[u8]) -> Self {
        Self {
            ptr: bytes.as_ptr(),
            len: bytes.len(),
        }
    }

    /// The bytes behind the pointer; none if it is null.
    ///
    /// # Safety
    /// `ptr` is null, or `len` bytes behind it can be read and stay unchanged for `'a`.
    #[must_use]
    pub const unsafe fn as_bytes<'a>(self) -> &'a [u8] {
        if self.ptr.is_null() {
            return &[];
        }
        // SAFETY: not null by the line above; readable and unchanged for 'a by this function's own contract.
        unsafe { core::slice::from_raw_parts(self.ptr, self.len) }
    }
}

/// One instance of a backend: opaque, made by `create`, ended by `destroy`.
#[derive(Debug)]
#[repr(C)]
pub struct quota_instance {
    opaque: [u8; 0],
    not_send_sync_unpin: core::marker::PhantomData<(*mut u8, core::marker::PhantomPinned)>,
}

/// One window of one item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct quota_window {
    /// [`QUOTA_WINDOW_BURST`] or [`QUOTA_WINDOW_SUSTAINED`].
    pub kind: u32,
    /// Zero in version 1.0.
    pub flags: u32,
    /// Requests the window admits; at least 1, at most `max_limit` of the plugin.
    pub limit: u64,
    /// Length in milliseconds; part of the counter's identity.
    pub length_ms: u64,
    /// First millisecond of the window, Unix time.
    pub start_ms: u64,
    /// First millisecond after the window, Unix time: `start_ms + length_ms`.
    pub reset_ms: u64,
}

/// The windows of one item, for [`quota_plugin::check_one`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct quota_windows {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// How many of `windows` are in use: 1 or 2.
    pub count: u32,
    /// The one clock reading of the request, Unix milliseconds.
    pub now_unix_ms: u64,
    /// The windows; a burst comes before a sustained one.
    pub windows: [quota_window; 2],
}

/// One counter check of a batch.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct quota_item {
    /// The composite key, without the key prefix.
    pub key: quota_str,
    /// Hash of `key`, keyed per process: for hash tables, never proof of equality.
    pub key_hash: u64,
    /// How many of `windows` are in use: 1 or 2.
    pub window_count: u32,
    /// Zero in version 1.0.
    pub flags: u32,
    /// The windows; a burst comes before a sustained one.
    pub windows: [quota_window; 2],
}

/// The answer to one item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct quota_result {
    /// `QUOTA_ALLOWED`, `_DENIED`, `_NOT_EVALUATED`, or a negative code; 0 or anything else counts as an error.
    pub code: i32,
    /// Bit `i` set: window `i` of the item was exhausted. Zero unless denied.
    pub exhausted: u32,
    /// Count of each window after the decision; zero for an unused window or an unknown count.
    pub used: [u64; 2],
    /// `QUOTA_CLASS_*`: why a negative code came about.
    pub error_class: u32,
    /// [`QUOTA_RESULT_LOCAL`].
    pub flags: u32,
}

/// The checks of one request that travel together.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct quota_batch {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// `QUOTA_BATCH_*`.
    pub flags: u32,
    /// Names this batch in `complete`; never 0 for a plugin that may answer `QUOTA_PENDING`.
    pub ticket: u64,
    /// The one clock reading of the request, Unix milliseconds.
    pub now_unix_ms: u64,
    /// When the host stops waiting, on the clock of `now_mono_ns`; 0 for never.
    pub deadline_mono_ns: u64,
    /// First item; the next one stands `item_stride` bytes on.
    pub items: *const quota_item,
    /// First result; the next one stands `result_stride` bytes on. Written only during the call.
    pub results: *mut quota_result,
    /// Number of items and of results.
    pub count: u32,
    /// Distance of two items, in bytes.
    pub item_stride: u32,
    /// Distance of two results, in bytes.
    pub result_stride: u32,
    /// Zero in version 1.0.
    pub reserved: u32,
}

/// What `create` is told besides the options: the keys that belong to the host.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct quota_create {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// Zero in version 1.0.
    pub reserved: u32,
    /// The namespace of every stored key.
    pub key_prefix: quota_str,
    /// Longest attempt to connect, in milliseconds.
    pub connect_timeout_ms: u64,
    /// Longest wait for one trip, in milliseconds.
    pub command_timeout_ms: u64,
    /// The host never has more batches than this in the instance at once; 0 for no bound.
    pub max_inflight: u64,
    /// Most active buckets of a bounded store; 0 for no bound.
    pub max_entries: u64,
}

/// How an instance is, filled by the plugin.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct quota_health {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// `QUOTA_HEALTH_*`.
    pub state: u32,
    /// `QUOTA_CLASS_*`: why the state is not available.
    pub reason: u32,
    /// Zero in version 1.0.
    pub reserved: u32,
    /// Batches not yet answered.
    pub inflight: u64,
    /// Active buckets held in this process; 0 when the store is elsewhere.
    pub entries: u64,
    /// Most active buckets; 0 for no bound.
    pub capacity: u64,
    /// Since when the state holds, Unix milliseconds; 0 when unknown.
    pub since_unix_ms: u64,
    /// Buffer of the host for the text of the last error, UTF-8; may be null.
    pub error_text: *mut u8,
    /// Size of the buffer in bytes.
    pub error_capacity: usize,
    /// Bytes the plugin wrote; at most `error_capacity`.
    pub error_len: usize,
}

/// One finding about the options.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct quota_diagnostic {
    /// Size of this struct as the plugin knows it.
    pub struct_size: u32,
    /// `QUOTA_SEVERITY_*`.
    pub severity: u32,
    /// Stable name of the finding, at most 32 bytes.
    pub code: quota_str,
    /// JSON pointer (RFC 6901) into the options; a missing key names its parent.
    pub pointer: quota_str,
    /// What is wrong.
    pub message: quota_str,
    /// What to do; may be empty.
    pub help: quota_str,
}

/// Where a plugin reports findings; valid during the call it is passed to.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct quota_diagnostic_sink {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// Zero in version 1.0.
    pub reserved: u32,
    /// First argument of `report`.
    pub ctx: *mut c_void,
    /// Takes one finding; copies it during the call. Only from the thread of the call that was given the sink.
    pub report: Option<unsafe extern "C" fn(ctx: *mut c_void, diagnostic: *const quota_diagnostic)>,
}

/// What the host offers an instance; valid for the life of the process.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct quota_host {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// Zero in version 1.0.
    pub reserved: u32,
    /// Major version the host speaks.
    pub abi_major: u16,
    /// Minor version the host speaks.
    pub abi_minor: u16,
    /// Zero in version 1.0.
    pub reserved1: u32,
    /// First argument of every function here; names the instance.
    pub ctx: *mut c_void,
    /// Name of the program.
    pub host_name: quota_str,
    /// Version of the program.
    pub host_version: quota_str,
    /// The most verbose log level the host keeps: saves formatting the rest.
    pub max_level: u32,
    /// Zero in version 1.0.
    pub reserved2: u32,
    /// Answers a pending batch, once, from any thread, also before `check` has returned: `count` results,
    /// `result_stride` bytes apart, copied during the call. Returns `QUOTA_COMPLETE_*`.
    pub complete: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            ticket: u64,
            results: *const quota_result,
            count: u32,
            result_stride: u32,
        ) -> i32,
    >,
    /// Logs one line of UTF-8, at most 4 KiB; `level` is `QUOTA_LOG_*`. Any thread, never blocks.
    pub log: Option<
        unsafe extern "C" fn(ctx: *mut c_void, level: u32, target: quota_str, text: quota_str),
    >,
    /// Keeps the text that explains recent negative codes; `error_class` is `QUOTA_CLASS_*`. Any thread, never blocks.
    pub report_error:
        Option<unsafe extern "C" fn(ctx: *mut c_void, error_class: u32, text: quota_str)>,
    /// Reads the clock of `deadline_mono_ns`, in nanoseconds. Any thread.
    pub now_mono_ns: Option<unsafe extern "C" fn(ctx: *mut c_void) -> u64>,
    /// Finds an optional table of the host by id; null if there is none. Any thread.
    pub get_extension:
        Option<unsafe extern "C" fn(ctx: *mut c_void, id: quota_str) -> *const c_void>,
}

// SAFETY: the table is constant for the life of the process and every function in it may be called from any thread.
unsafe impl Send for quota_host {}
// SAFETY: as for Send.
unsafe impl Sync for quota_host {}

/// `validate(options, sink)`: judges options, one JSON object as text. Pure: no I/O, threads or clock.
pub type quota_validate_fn =
    unsafe extern "C" fn(options: quota_str, sink: *const quota_diagnostic_sink) -> i32;
/// `create(ctx, options, host, sink, out)`: makes an instance; does not wait for a server.
pub type quota_create_fn = unsafe extern "C" fn(
    ctx: *const quota_create,
    options: quota_str,
    host: *const quota_host,
    sink: *const quota_diagnostic_sink,
    out: *mut *mut quota_instance,
) -> i32;
/// `check(instance, batch)`: decides a batch now, or promises to complete it.
pub type quota_check_fn =
    unsafe extern "C" fn(instance: *mut quota_instance, batch: *const quota_batch) -> i32;
/// `health(instance, out)`: fills the health.
pub type quota_health_fn =
    unsafe extern "C" fn(instance: *mut quota_instance, out: *mut quota_health) -> i32;
/// `drain(instance, deadline_mono_ns)`: no new checks will come; finishes what is pending.
pub type quota_drain_fn =
    unsafe extern "C" fn(instance: *mut quota_instance, deadline_mono_ns: u64) -> i32;
/// `destroy(instance)`: completes the rest, joins every thread, frees.
pub type quota_destroy_fn = unsafe extern "C" fn(instance: *mut quota_instance);
/// `get_extension(instance, id)`: an optional table by id; null if there is none.
pub type quota_get_extension_fn =
    unsafe extern "C" fn(instance: *mut quota_instance, id: quota_str) -> *const c_void;
/// `check_one(instance, key, key_len, key_hash, windows, result)`: decides one item inside the call.
pub type quota_check_one_fn = unsafe extern "C" fn(
    instance: *mut quota_instance,
    key: *const u8,
    key_len: usize,
    key_hash: u64,
    windows: *const quota_windows,
    result: *mut quota_result,
) -> i32;
/// The one exported function of a library: its table, always the same pointer, from any thread.
pub type quota_plugin_entry = unsafe extern "C" fn() -> *const quota_plugin;

/// The table that describes a backend: constant data, valid for the life of the process.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct quota_plugin {
    /// [`QUOTA_MAGIC`].
    pub magic: u64,
    /// Major version the plugin was built for.
    pub abi_major: u16,
    /// Minor version the plugin was built for.
    pub abi_minor: u16,
    /// Size of this struct as the plugin knows it.
    pub struct_size: u32,
    /// `[a-z][a-z0-9_]{0,31}`, equal to the one in the file name.
    pub kind: quota_str,
    /// Name for people.
    pub name: quota_str,
    /// Version for people.
    pub version: quota_str,
    /// Who made it.
    pub vendor: quota_str,
    /// Where to read more; may be empty.
    pub homepage: quota_str,
    /// Names the build; may be empty.
    pub build_id: quota_str,
    /// `QUOTA_CAP_*`.
    pub capabilities: u64,
    /// The greatest limit it counts exactly; at least 2^53 − 1.
    pub max_limit: u64,
    /// The longest key it takes, in bytes; at least [`QUOTA_KEY_MAX`].
    pub max_key_len: u32,
    /// The most items of a batch; 0 for any number.
    pub max_batch: u32,
    /// JSON Schema of the options.
    pub options_schema: quota_str,
    /// Required.
    pub validate: Option<quota_validate_fn>,
    /// Required.
    pub create: Option<quota_create_fn>,
    /// Required unless [`QUOTA_CAP_INLINE`] is set.
    pub check: Option<quota_check_fn>,
    /// Required.
    pub health: Option<quota_health_fn>,
    /// Required.
    pub drain: Option<quota_drain_fn>,
    /// Required.
    pub destroy: Option<quota_destroy_fn>,
    /// Required.
    pub get_extension: Option<quota_get_extension_fn>,
    /// Required if [`QUOTA_CAP_INLINE`] is set; otherwise not called.
    pub check_one: Option<quota_check_one_fn>,
}

// SAFETY: the table is constant data for the life of the process, and so is everything it points to.
unsafe impl Send for quota_plugin {}
// SAFETY: as for Send.
unsafe impl Sync for quota_plugin {}

/// The table of `quota.resize/1`: constant data of the plugin.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct quota_resize {
    /// Size of this struct as the plugin knows it.
    pub struct_size: u32,
    /// Zero in version 1.0.
    pub reserved: u32,
    /// Sets the most active buckets, at once; counters are kept and shrinking evicts nothing. Any thread.
    pub set_max_entries:
        Option<unsafe extern "C" fn(instance: *mut quota_instance, max_entries: u64) -> i32>,
}

/// The fixed part of the note in section `.note.quota`; the options schema follows, padded with spaces to a multiple of
/// four bytes, with nothing after it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct quota_note {
    /// [`QUOTA_NOTE_NAME_LEN`].
    pub namesz: u32,
    /// Bytes from `magic` to the end of the schema.
    pub descsz: u32,
    /// [`QUOTA_NOTE_TYPE`].
    pub note_type: u32,
    /// [`QUOTA_NOTE_NAME`].
    pub name: [u8; 8],
    /// [`QUOTA_NOTE_MAGIC`].
    pub magic: [u8; 8],
    /// Major version the plugin was built for.
    pub abi_major: u16,
    /// Minor version the plugin was built for.
    pub abi_minor: u16,
    /// Length of `kind` in bytes.
    pub kind_len: u32,
    /// Length of the schema in bytes, with its padding spaces.
    pub schema_len: u32,
    /// The kind, zero-padded.
    pub kind: [u8; QUOTA_KIND_MAX],
}

const _: () = {
    assert!(size_of::<quota_plugin>() == QUOTA_PLUGIN_SIZE_1_0 as usize);
    assert!(size_of::<quota_host>() == QUOTA_HOST_SIZE_1_0 as usize);
    assert!(size_of::<quota_batch>() == QUOTA_BATCH_SIZE_1_0 as usize);
    assert!(size_of::<quota_item>() == QUOTA_ITEM_SIZE_1_0 as usize);
    assert!(size_of::<quota_windows>() == QUOTA_WINDOWS_SIZE_1_0 as usize);
    assert!(size_of::<quota_result>() == QUOTA_RESULT_SIZE_1_0 as usize);
    assert!(size_of::<quota_create>() == QUOTA_CREATE_SIZE_1_0 as usize);
    assert!(size_of::<quota_health>() == QUOTA_HEALTH_SIZE_1_0 as usize);
    assert!(size_of::<quota_diagnostic>() == QUOTA_DIAGNOSTIC_SIZE_1_0 as usize);
    assert!(size_of::<quota_diagnostic_sink>() == QUOTA_DIAGNOSTIC_SINK_SIZE_1_0 as usize);
    assert!(size_of::<quota_resize>() == QUOTA_RESIZE_SIZE_1_0 as usize);
    assert!(core::mem::offset_of!(quota_note, magic) == QUOTA_NOTE_HEADER_SIZE as usize);
};

//! From a [`Backend`] to the C table: one thunk per function, each behind a panic guard.
//!
//! Every thunk relies on the same two facts, established by the ABI: an instance handed in is one that this table's
//! `create` made and `destroy` has not ended yet, and every other pointer is valid, for its declared size, until the
//! call returns.
#![expect(unsafe_code, reason = "the functions a host calls through the C table")]

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr;

use quota_plugin_abi::{
    QUOTA_ABI_MAJOR, QUOTA_ABI_MINOR, QUOTA_BATCH_SIZE_1_0, QUOTA_CREATE_SIZE_1_0,
    QUOTA_DIAGNOSTIC_SINK_SIZE_1_0, QUOTA_DIAGNOSTIC_SIZE_1_0, QUOTA_ERROR, QUOTA_EXT_RESIZE_1,
    QUOTA_HEALTH_SIZE_1_0, QUOTA_MAGIC, QUOTA_OK, QUOTA_PENDING, QUOTA_PLUGIN_SIZE_1_0,
    QUOTA_READY, QUOTA_RESIZE_SIZE_1_0, QUOTA_WINDOWS_SIZE_1_0, quota_batch, quota_create,
    quota_diagnostic, quota_diagnostic_sink, quota_health, quota_host, quota_instance,
    quota_plugin, quota_resize, quota_result, quota_str, quota_window, quota_windows,
};

use crate::batch::{Batch, NOT_EVALUATED, ends_batch, is_key, results};
use crate::decision::windows_from_abi;
use crate::guard::guarded;
use crate::options::parse;
use crate::{Answer, Backend, Context, Decision, Diagnostics, Failure, Host, Item};

/// The C table of a backend; used by [`export_backend!`](crate::export_backend).
#[derive(Debug)]
pub struct Exported<T>(PhantomData<T>);

impl<T: Backend> Exported<T> {
    /// The table.
    pub const TABLE: quota_plugin = quota_plugin {
        magic: QUOTA_MAGIC,
        abi_major: QUOTA_ABI_MAJOR,
        abi_minor: QUOTA_ABI_MINOR,
        struct_size: QUOTA_PLUGIN_SIZE_1_0,
        kind: quota_str::new(T::KIND),
        name: quota_str::new(T::NAME),
        version: quota_str::new(T::VERSION),
        vendor: quota_str::new(T::VENDOR),
        homepage: quota_str::new(T::HOMEPAGE),
        build_id: quota_str::new(T::BUILD_ID),
        capabilities: T::CAPABILITIES.bits(),
        max_limit: T::MAX_LIMIT,
        max_key_len: T::MAX_KEY_LEN,
        max_batch: T::MAX_BATCH,
        options_schema: quota_str::new(T::OPTIONS_SCHEMA),
        validate: Some(validate::<T>),
        create: Some(create::<T>),
        check: Some(check::<T>),
        health: Some(health::<T>),
        drain: Some(drain::<T>),
        destroy: Some(destroy::<T>),
        get_extension: Some(get_extension::<T>),
        check_one: if T::CAPABILITIES.is_inline() {
            Some(check_one::<T>)
        } else {
            None
        },
    };

    const RESIZE: &'static quota_resize = &quota_resize {
        struct_size: QUOTA_RESIZE_SIZE_1_0,
        reserved: 0,
        set_max_entries: Some(set_max_entries::<T>),
    };
}

/// What a `quota_instance` of this table points to.
struct Instance<T> {
    backend: T,
    host: Host,
}

impl<T: Backend> Instance<T> {
    /// The instance behind a handle.
    ///
    /// # Safety
    /// `raw` is null, or `create` of this table made it and `destroy` does not end it during `'a`.
    #[inline]
    unsafe fn from_raw<'a>(raw: *mut quota_instance) -> Option<&'a Self> {
        // SAFETY: null, or a pointer `create` got from `Box::into_raw` for this very type, alive for 'a and only ever
        // shared (this function's contract).
        unsafe { raw.cast::<Self>().cast_const().as_ref() }
    }

    /// Decides one item whose windows the caller has not judged yet.
    #[inline]
    fn decide(
        &self,
        key: &[u8],
        key_hash: u64,
        windows: &[quota_window],
        now_unix_ms: u64,
    ) -> quota_result {
        let windows = windows_from_abi(windows, T::MAX_LIMIT);
        let (Some(windows), true) = (windows, is_key(key, T::MAX_KEY_LEN)) else {
            return self.refuse("a check with a key or windows that are not allowed");
        };
        let item = Item {
            key,
            key_hash,
            windows,
        };
        match guarded(|| self.backend.check(&item, now_unix_ms)) {
            Ok(decision) => decision.to_abi(),
            Err(panic) => self.refuse(&panic),
        }
    }

    /// The results of a batch, item by item, under its stop rules.
    fn one_by_one(&self, batch: &Batch<'_>) -> impl Iterator<Item = quota_result> {
        let mut ended = false;
        (0..batch.len()).map(move |index| {
            if ended {
                return NOT_EVALUATED;
            }
            let (key, key_hash, windows) = batch.parts(index);
            let result = self.decide(key, key_hash, windows, batch.now_unix_ms());
            ended = ends_batch(&result, batch.flags());
            result
        })
    }

    #[cold]
    fn refuse(&self, text: &str) -> quota_result {
        self.host.report_error(Failure::Error, text);
        Decision::Failed(Failure::Error).to_abi()
    }
}

unsafe extern "C" fn validate<T: Backend>(
    options: quota_str,
    sink: *const quota_diagnostic_sink,
) -> i32 {
    // SAFETY: the ABI of `validate`: readable until the call returns.
    let options = unsafe { options.as_bytes() };
    let found = guarded(|| match parse::<T::Options>(options) {
        Ok(options) => {
            let mut found = Diagnostics::new();
            T::validate(&options, &mut found);
            found
        }
        Err(found) => found,
    });
    let found = found.unwrap_or_else(|panic| panicked(&panic));
    // SAFETY: the ABI of `validate`: null or a sink valid until the call returns.
    unsafe { report(sink, &found) };
    if found.has_error() {
        QUOTA_ERROR
    } else {
        QUOTA_OK
    }
}

unsafe extern "C" fn create<T: Backend>(
    ctx: *const quota_create,
    options: quota_str,
    host: *const quota_host,
    sink: *const quota_diagnostic_sink,
    out: *mut *mut quota_instance,
) -> i32 {
    // SAFETY: the ABI of `create`: the host's table is constant for the life of the process.
    let host = unsafe { Host::from_raw(host) };
    // SAFETY: the ABI of `create`: null or valid until the call returns, and begins with its size.
    let size = unsafe { declared_size(ctx) };
    let (Some(host), false) = (host, out.is_null()) else {
        return QUOTA_ERROR;
    };
    if size < QUOTA_CREATE_SIZE_1_0 {
        return QUOTA_ERROR;
    }
    // SAFETY: not null and of the size of 1.0 by the lines above.
    let ctx = unsafe { ctx.read() };
    // SAFETY: the ABI of `create`: readable until the call returns.
    let key_prefix = unsafe { ctx.key_prefix.as_bytes() };
    // SAFETY: as for the key prefix.
    let options = unsafe { options.as_bytes() };
    let made = guarded(|| {
        let Ok(key_prefix) = str::from_utf8(key_prefix) else {
            let mut found = Diagnostics::new();
            found.error("key-prefix", "", "the key prefix is not UTF-8");
            return Err(found);
        };
        T::create(Context {
            options: parse::<T::Options>(options)?,
            key_prefix,
            connect_timeout_ms: ctx.connect_timeout_ms,
            command_timeout_ms: ctx.command_timeout_ms,
            max_inflight: ctx.max_inflight,
            max_entries: ctx.max_entries,
            host,
        })
    });
    match made.unwrap_or_else(|panic| Err(panicked(&panic))) {
        Ok(backend) => {
            let instance = Box::into_raw(Box::new(Instance { backend, host }));
            // SAFETY: not null (checked above); the ABI of `create`: host memory for one pointer.
            unsafe { out.write(instance.cast()) };
            QUOTA_OK
        }
        Err(found) => {
            // SAFETY: the ABI of `create`: null or a sink valid until the call returns.
            unsafe { report(sink, &found) };
            QUOTA_ERROR
        }
    }
}

unsafe extern "C" fn check<T: Backend>(
    instance: *mut quota_instance,
    batch: *const quota_batch,
) -> i32 {
    // SAFETY: see the module.
    let instance = unsafe { Instance::<T>::from_raw(instance) };
    // SAFETY: the ABI of `check`: null or valid until the call returns, and begins with its size.
    let size = unsafe { declared_size(batch) };
    let Some(instance) = instance else {
        return QUOTA_ERROR;
    };
    if size < QUOTA_BATCH_SIZE_1_0 {
        return QUOTA_ERROR;
    }
    // SAFETY: not null and of the size of 1.0 by the lines above; unchanged until the call returns (the ABI of `check`).
    let batch: &quota_batch = unsafe { &*batch };
    // SAFETY: the ABI of `quota_batch`, until the call returns.
    let Some(batch) = (unsafe { Batch::of(batch, instance.host) }) else {
        return QUOTA_ERROR;
    };
    let answer = if batch.is_allowed(T::MAX_KEY_LEN, T::MAX_LIMIT) {
        guarded(|| instance.backend.check_batch(&batch))
    } else {
        Ok(Answer::OneByOne)
    };
    if batch.ticket_was_taken() {
        // Whatever else it says: the ticket answers, by its destructor in the end.
        return QUOTA_PENDING;
    }
    match answer {
        Ok(Answer::OneByOne) => batch.write(instance.one_by_one(&batch)),
        Ok(Answer::Ready(decisions)) => {
            batch.write(results(&decisions, batch.len(), batch.flags()));
        }
        Ok(Answer::Pending) => {
            return instance
                .refuse("a batch was to be answered later, and nobody took its ticket")
                .code;
        }
        Err(panic) => return instance.refuse(&panic).code,
    }
    QUOTA_READY
}

unsafe extern "C" fn check_one<T: Backend>(
    instance: *mut quota_instance,
    key: *const u8,
    key_len: usize,
    key_hash: u64,
    windows: *const quota_windows,
    result: *mut quota_result,
) -> i32 {
    // SAFETY: see the module.
    let instance = unsafe { Instance::<T>::from_raw(instance) };
    // SAFETY: the ABI of `check_one`: null or valid until the call returns, and begins with its size.
    let size = unsafe { declared_size(windows) };
    let (Some(instance), false) = (instance, result.is_null()) else {
        return QUOTA_ERROR;
    };
    if size < QUOTA_WINDOWS_SIZE_1_0 {
        return QUOTA_ERROR;
    }
    // SAFETY: not null and at least of the size of 1.0 by the lines above.
    let windows: &quota_windows = unsafe { &*windows };
    let key = quota_str {
        ptr: key,
        len: key_len,
    };
    // SAFETY: the ABI of `check_one`: readable until the call returns.
    let key = unsafe { key.as_bytes() };
    let in_use = in_use(&windows.windows, windows.count);
    let decided = instance.decide(key, key_hash, in_use, windows.now_unix_ms);
    // SAFETY: not null (checked above); the ABI of `check_one`: host memory for one result.
    unsafe { result.write(decided) };
    QUOTA_OK
}

unsafe extern "C" fn health<T: Backend>(
    instance: *mut quota_instance,
    out: *mut quota_health,
) -> i32 {
    // SAFETY: see the module.
    let instance = unsafe { Instance::<T>::from_raw(instance) };
    // SAFETY: the ABI of `health`: null or valid until the call returns, and begins with its size.
    let size = unsafe { declared_size(out) };
    let Some(instance) = instance else {
        return QUOTA_ERROR;
    };
    if size < QUOTA_HEALTH_SIZE_1_0 {
        return QUOTA_ERROR;
    }
    let Ok(health) = guarded(|| instance.backend.health()) else {
        return QUOTA_ERROR;
    };
    // SAFETY: not null and at least of the size of 1.0 by the lines above; nobody else uses it during the call.
    let out: &mut quota_health = unsafe { &mut *out };
    out.state = health.state.to_abi();
    out.reason = health.reason.map_or(0, Failure::class);
    out.inflight = health.inflight;
    out.entries = health.entries;
    out.capacity = health.capacity;
    out.since_unix_ms = health.since_unix_ms;
    out.error_len = 0;
    if !out.error_text.is_null() {
        let len = health.error.floor_char_boundary(out.error_capacity);
        // SAFETY: the ABI of `quota_health`: the host's buffer has room for `error_capacity` bytes, `len` is at most
        // that and at most the text's length, and a buffer of the host does not overlap a string of ours.
        unsafe { ptr::copy_nonoverlapping(health.error.as_ptr(), out.error_text, len) };
        out.error_len = len;
    }
    QUOTA_OK
}

unsafe extern "C" fn drain<T: Backend>(
    instance: *mut quota_instance,
    deadline_mono_ns: u64,
) -> i32 {
    // SAFETY: see the module.
    let Some(instance) = (unsafe { Instance::<T>::from_raw(instance) }) else {
        return QUOTA_ERROR;
    };
    match guarded(|| instance.backend.drain(deadline_mono_ns)) {
        Ok(()) => QUOTA_OK,
        Err(panic) => instance.refuse(&panic).code,
    }
}

unsafe extern "C" fn destroy<T: Backend>(instance: *mut quota_instance) {
    if instance.is_null() {
        return;
    }
    // SAFETY: not null; `create` got it from `Box::into_raw` for this type, and `destroy` is called once (see the
    // module).
    let instance = unsafe { Box::from_raw(instance.cast::<Instance<T>>()) };
    let host = instance.host;
    // A destructor that panics leaves the rest of the instance behind: nothing of it is used again.
    let instance = ManuallyDrop::new(instance);
    if let Err(panic) = guarded(|| drop(ManuallyDrop::into_inner(instance))) {
        host.report_error(Failure::Error, &panic);
    }
}

unsafe extern "C" fn get_extension<T: Backend>(
    _instance: *mut quota_instance,
    id: quota_str,
) -> *const std::ffi::c_void {
    // SAFETY: the ABI of `get_extension`: readable until the call returns.
    let id = unsafe { id.as_bytes() };
    if id == QUOTA_EXT_RESIZE_1.as_bytes() && T::SET_MAX_ENTRIES.is_some() {
        return ptr::from_ref(Exported::<T>::RESIZE).cast();
    }
    ptr::null()
}

unsafe extern "C" fn set_max_entries<T: Backend>(
    instance: *mut quota_instance,
    max_entries: u64,
) -> i32 {
    // SAFETY: see the module.
    let instance = unsafe { Instance::<T>::from_raw(instance) };
    let (Some(instance), Some(set)) = (instance, T::SET_MAX_ENTRIES) else {
        return QUOTA_ERROR;
    };
    match guarded(|| set(&instance.backend, max_entries)) {
        Ok(()) => QUOTA_OK,
        Err(panic) => instance.refuse(&panic).code,
    }
}

/// The size a struct of the host declares; 0 if there is none.
///
/// # Safety
/// `host_struct` is null or points to a readable struct that begins with its size, a `u32`.
#[inline]
pub(crate) unsafe fn declared_size<S>(host_struct: *const S) -> u32 {
    // SAFETY: null, or readable and of that type (this function's contract).
    unsafe { host_struct.cast::<u32>().as_ref() }
        .copied()
        .unwrap_or(0)
}

/// The windows in use; none if the number makes no sense.
#[inline]
fn in_use(windows: &[quota_window; 2], count: u32) -> &[quota_window] {
    windows.get(..count as usize).unwrap_or_default()
}

fn panicked(text: &str) -> Diagnostics {
    let mut found = Diagnostics::new();
    found.error("panicked", "", text);
    found
}

/// Hands the findings to the host.
///
/// # Safety
/// `sink` is null or points to a sink that is valid until the current call of the host returns.
unsafe fn report(sink: *const quota_diagnostic_sink, found: &Diagnostics) {
    // SAFETY: null or valid (this function's contract), and begins with its size.
    if unsafe { declared_size(sink) } < QUOTA_DIAGNOSTIC_SINK_SIZE_1_0 {
        return;
    }
    // SAFETY: not null and at least of the size of 1.0 by the lines above.
    let sink = unsafe { sink.read() };
    let Some(report) = sink.report else {
        return;
    };
    for diagnostic in found.as_slice() {
        let diagnostic = quota_diagnostic {
            struct_size: QUOTA_DIAGNOSTIC_SIZE_1_0,
            severity: diagnostic.severity.to_abi(),
            code: quota_str::new(&diagnostic.code),
            pointer: quota_str::new(&diagnostic.pointer),
            message: quota_str::new(&diagnostic.message),
            help: quota_str::new(&diagnostic.help),
        };
        // SAFETY: the sink's own function and context, on the thread of the call; the texts outlive it.
        unsafe { report(sink.ctx, &raw const diagnostic) };
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::panic::panic_any;
    use std::sync::atomic::{AtomicU64, Ordering};

    use quota_plugin_abi::{
        QUOTA_ALLOWED, QUOTA_BATCH_STOP_AT_DENIAL, QUOTA_BATCH_STOP_AT_FAILURE, QUOTA_CLASS_ERROR,
        QUOTA_CLASS_UNAVAILABLE, QUOTA_DENIED, QUOTA_HEALTH_DEGRADED, QUOTA_HOST_SIZE_1_0,
        QUOTA_UNAVAILABLE, QUOTA_WINDOW_BURST, QUOTA_WINDOW_SUSTAINED, quota_item,
    };

    use super::*;
    use crate::{Capabilities, Health, HealthState, Window};

    /// Does what the first byte of a key says; counts the checks that reach it.
    struct Toy {
        checks: AtomicU64,
        max_entries: AtomicU64,
        falls_on_its_way_out: bool,
    }

    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Options {
        #[serde(default)]
        way: Way,
    }

    #[derive(Default, serde::Deserialize, PartialEq, Eq)]
    enum Way {
        #[default]
        Good,
        PanicInValidate,
        PanicInCreate,
        PanicInDrop,
        Warn,
    }

    /// A panic payload that panics when dropped.
    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("again");
        }
    }

    impl Backend for Toy {
        const KIND: &'static str = "toy";
        const NAME: &'static str = "Toy";
        const VERSION: &'static str = "1";
        const VENDOR: &'static str = "Tests";
        const CAPABILITIES: Capabilities = Capabilities::INLINE;
        const MAX_LIMIT: u64 = 1 << 60;
        const OPTIONS_SCHEMA: &'static str = r#"{"type":"object"}"#;
        const SET_MAX_ENTRIES: Option<fn(&Self, u64)> =
            Some(|toy, max| toy.max_entries.store(max, Ordering::Relaxed));
        type Options = Options;

        fn validate(options: &Options, diagnostics: &mut Diagnostics) {
            assert!(options.way != Way::PanicInValidate, "no");
            if options.way == Way::Warn {
                diagnostics.warning("odd", "/way", "surely not meant");
                diagnostics.help("leave it out");
            }
        }

        fn create(context: Context<'_, Options>) -> Result<Self, Diagnostics> {
            assert!(context.options.way != Way::PanicInCreate, "no");
            assert_eq!(context.key_prefix, "prefix");
            Ok(Self {
                checks: AtomicU64::new(0),
                max_entries: AtomicU64::new(context.max_entries),
                falls_on_its_way_out: context.options.way == Way::PanicInDrop,
            })
        }

        fn check(&self, item: &Item<'_>, now_unix_ms: u64) -> Decision {
            let n = 1 + self.checks.fetch_add(1, Ordering::Relaxed);
            let limits = item.windows().iter().map(Window::limit).sum();
            match item.key().first() {
                Some(b'd') => Decision::Denied {
                    exhausted: 2,
                    used: [now_unix_ms, limits],
                    local: true,
                },
                Some(b'f') => Decision::Failed(Failure::Unavailable),
                Some(b'p') => panic!("no"),
                Some(b'b') => panic_any(Bomb),
                _ => Decision::Allowed {
                    used: [n, item.key_hash()],
                },
            }
        }

        fn health(&self) -> Health {
            Health {
                state: HealthState::Degraded,
                reason: Some(Failure::Unavailable),
                inflight: 1,
                entries: self.checks.load(Ordering::Relaxed),
                capacity: self.max_entries.load(Ordering::Relaxed),
                since_unix_ms: 4,
                error: "gr\u{fc}n".to_owned(),
            }
        }
    }

    impl Drop for Toy {
        fn drop(&mut self) {
            assert!(!self.falls_on_its_way_out, "no");
        }
    }

    static TABLE: quota_plugin = Exported::<Toy>::TABLE;
    static HOST: quota_host = quota_host {
        struct_size: QUOTA_HOST_SIZE_1_0,
        reserved: 0,
        abi_major: QUOTA_ABI_MAJOR,
        abi_minor: QUOTA_ABI_MINOR,
        reserved1: 0,
        ctx: ptr::null_mut(),
        host_name: quota_str::EMPTY,
        host_version: quota_str::EMPTY,
        max_level: 0,
        reserved2: 0,
        complete: None,
        log: None,
        report_error: None,
        now_mono_ns: None,
        get_extension: None,
    };

    type Found = Vec<(u32, String, String, String)>;

    unsafe extern "C" fn collect(ctx: *mut c_void, diagnostic: *const quota_diagnostic) {
        // SAFETY: `sink` below passes a vector that outlives the call, and nobody else uses it meanwhile.
        let found = unsafe { &mut *ctx.cast::<Found>() };
        // SAFETY: the ABI of `report`: valid during the call.
        let diagnostic = unsafe { diagnostic.read() };
        let text = |text: quota_str| {
            // SAFETY: the ABI of `report`: readable during the call.
            let bytes = unsafe { text.as_bytes() };
            String::from_utf8(bytes.to_vec()).unwrap()
        };
        found.push((
            diagnostic.severity,
            text(diagnostic.code),
            text(diagnostic.pointer),
            text(diagnostic.help),
        ));
    }

    fn sink(found: &mut Found) -> quota_diagnostic_sink {
        quota_diagnostic_sink {
            struct_size: QUOTA_DIAGNOSTIC_SINK_SIZE_1_0,
            reserved: 0,
            ctx: ptr::from_mut(found).cast(),
            report: Some(collect),
        }
    }

    fn validated(options: &str) -> (i32, Found) {
        let mut found = Found::new();
        let sink = sink(&mut found);
        let validate = TABLE.validate.unwrap();
        // SAFETY: a function of the table, called as the ABI says.
        let code = unsafe { validate(quota_str::new(options), &raw const sink) };
        (code, found)
    }

    fn created(options: &str) -> (Option<*mut quota_instance>, Found) {
        let mut found = Found::new();
        let sink = sink(&mut found);
        let context = quota_create {
            struct_size: QUOTA_CREATE_SIZE_1_0,
            reserved: 0,
            key_prefix: quota_str::new("prefix"),
            connect_timeout_ms: 0,
            command_timeout_ms: 0,
            max_inflight: 0,
            max_entries: 9,
        };
        let mut instance = ptr::null_mut();
        let create = TABLE.create.unwrap();
        // SAFETY: a function of the table, called as the ABI says.
        let code = unsafe {
            create(
                &raw const context,
                quota_str::new(options),
                &raw const HOST,
                &raw const sink,
                &raw mut instance,
            )
        };
        ((code == QUOTA_OK).then_some(instance), found)
    }

    fn toy() -> *mut quota_instance {
        created("{}").0.unwrap()
    }

    fn destroy(instance: *mut quota_instance) {
        let destroy = TABLE.destroy.unwrap();
        // SAFETY: a function of the table; the instance is one of `toy`, ended once.
        unsafe { destroy(instance) };
    }

    fn windows() -> [quota_window; 2] {
        let window = |kind, limit| quota_window {
            kind,
            flags: 0,
            limit,
            length_ms: 1_000,
            start_ms: 5_000,
            reset_ms: 6_000,
        };
        [
            window(QUOTA_WINDOW_BURST, 20),
            window(QUOTA_WINDOW_SUSTAINED, 30),
        ]
    }

    fn one(
        instance: *mut quota_instance,
        key: &[u8],
        count: u32,
        windows: [quota_window; 2],
    ) -> quota_result {
        let windows = quota_windows {
            struct_size: QUOTA_WINDOWS_SIZE_1_0,
            count,
            now_unix_ms: 5_500,
            windows,
        };
        let mut result = quota_result::default();
        let check_one = TABLE.check_one.unwrap();
        // SAFETY: a function of the table, called as the ABI says.
        let code = unsafe {
            check_one(
                instance,
                key.as_ptr(),
                key.len(),
                77,
                &raw const windows,
                &raw mut result,
            )
        };
        assert_eq!(code, QUOTA_OK);
        result
    }

    /// An item and a result of a later version: larger than the SDK knows.
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Later<T> {
        known: T,
        guard: [u64; 3],
    }

    const GUARD: [u64; 3] = [0xDEAD_BEEF; 3];

    fn many(
        instance: *mut quota_instance,
        flags: u32,
        keys: &[&str],
    ) -> Result<Vec<quota_result>, i32> {
        let items: Vec<_> = keys
            .iter()
            .map(|key| Later {
                known: quota_item {
                    key: quota_str::new(key),
                    key_hash: 77,
                    window_count: 2,
                    flags: 0,
                    windows: windows(),
                },
                guard: GUARD,
            })
            .collect();
        let mut results = vec![
            Later {
                known: quota_result::default(),
                guard: GUARD
            };
            keys.len()
        ];
        let batch = quota_batch {
            struct_size: QUOTA_BATCH_SIZE_1_0,
            flags,
            ticket: 1,
            now_unix_ms: 5_500,
            deadline_mono_ns: 0,
            items: items.as_ptr().cast(),
            results: results.as_mut_ptr().cast(),
            count: u32::try_from(keys.len()).unwrap(),
            item_stride: u32::try_from(size_of::<Later<quota_item>>()).unwrap(),
            result_stride: u32::try_from(size_of::<Later<quota_result>>()).unwrap(),
            reserved: 0,
        };
        let check = TABLE.check.unwrap();
        // SAFETY: a function of the table, called as the ABI says.
        let code = unsafe { check(instance, &raw const batch) };
        assert!(results.iter().all(|result| result.guard == GUARD));
        if code != QUOTA_READY {
            return Err(code);
        }
        Ok(results.into_iter().map(|result| result.known).collect())
    }

    fn codes(instance: *mut quota_instance, flags: u32, keys: &[&str]) -> Vec<i32> {
        many(instance, flags, keys)
            .unwrap()
            .iter()
            .map(|result| result.code)
            .collect()
    }

    #[test]
    fn the_table_says_what_the_trait_says() {
        assert_eq!(TABLE.magic, QUOTA_MAGIC);
        assert_eq!(TABLE.struct_size as usize, size_of::<quota_plugin>());
        assert_eq!((TABLE.max_limit, TABLE.max_key_len), (1 << 60, 512));
        // SAFETY: constant for the life of the process.
        assert_eq!(unsafe { TABLE.kind.as_bytes() }, b"toy");
    }

    #[test]
    fn one_by_one_and_as_a_batch_are_the_same() {
        let (single, batch) = (toy(), toy());
        let keys = ["a", "d", "f", "p", "b", ""];
        let singles: Vec<_> = keys
            .iter()
            .map(|key| one(single, key.as_bytes(), 2, windows()))
            .collect();
        assert_eq!(many(batch, 0, &keys), Ok(singles.clone()));
        let expected = |code, exhausted, used, error_class, flags| quota_result {
            code,
            exhausted,
            used,
            error_class,
            flags,
        };
        assert_eq!(
            singles,
            [
                expected(QUOTA_ALLOWED, 0, [1, 77], 0, 0),
                expected(QUOTA_DENIED, 2, [5_500, 50], 0, 1),
                expected(QUOTA_UNAVAILABLE, 0, [0; 2], QUOTA_CLASS_UNAVAILABLE, 0),
                expected(QUOTA_ERROR, 0, [0; 2], QUOTA_CLASS_ERROR, 0),
                expected(QUOTA_ERROR, 0, [0; 2], QUOTA_CLASS_ERROR, 0),
                expected(QUOTA_ALLOWED, 0, [6, 77], 0, 0),
            ]
        );
        destroy(single);
        destroy(batch);
    }

    #[test]
    fn a_batch_stops_where_it_is_told() {
        let toy = toy();
        let (denial, failure) = (QUOTA_BATCH_STOP_AT_DENIAL, QUOTA_BATCH_STOP_AT_FAILURE);
        let keys = ["a", "f", "d", "p", "a"];
        assert_eq!(codes(toy, 0, &keys), [1, -2, 2, -3, 1]);
        assert_eq!(codes(toy, denial, &keys), [1, -2, 2, 3, 3]);
        assert_eq!(codes(toy, failure, &keys), [1, -2, 3, 3, 3]);
        assert_eq!(codes(toy, failure, &["d", "p", "a"]), [2, -3, 3]);
        assert_eq!(codes(toy, denial | failure, &["d", "f"]), [2, 3]);
        assert_eq!(codes(toy, denial | failure, &[]), [0; 0]);
        let reached = one(toy, b"a", 2, windows()).used[0] - 1;
        assert_eq!(reached, 5 + 3 + 2 + 2 + 1, "the rest was not evaluated");
        destroy(toy);
    }

    #[test]
    fn what_must_be_understood_and_is_not_is_an_error() {
        let toy = toy();
        assert_eq!(many(toy, 1 << 16, &["a"]), Err(QUOTA_ERROR));
        assert_eq!(codes(toy, 1 << 15, &["a"]), [QUOTA_ALLOWED]);
        destroy(toy);
    }

    #[test]
    fn items_that_are_not_allowed_never_reach_the_backend() {
        let toy = toy();
        let good = windows();
        let with = |change: fn(&mut [quota_window; 2])| {
            let mut windows = good;
            change(&mut windows);
            windows
        };
        let bad = [
            (0, good),
            (3, good),
            (u32::MAX, good),
            (2, with(|w| w.swap(0, 1))),
            (2, with(|w| w[1].kind = QUOTA_WINDOW_BURST)),
            (1, with(|w| w[0].kind = 3)),
            (1, with(|w| w[0].kind = 0)),
            (1, with(|w| w[0].length_ms = 0)),
            (2, with(|w| w[1].limit = (1 << 60) + 1)),
        ];
        for (count, windows) in bad {
            assert_eq!(one(toy, b"a", count, windows).code, QUOTA_ERROR);
        }
        assert_eq!(one(toy, &[0; 513], 2, good).code, QUOTA_ERROR);
        assert_eq!(one(toy, &[0; 512], 2, good).used, [1, 77]);
        assert_eq!(one(toy, b"a", 1, with(|w| w.swap(0, 1))).used, [2, 77]);
        destroy(toy);
    }

    #[test]
    fn options_are_judged_with_pointers() {
        assert_eq!(validated("{}"), (QUOTA_OK, Vec::new()));
        let warning = (2, "odd".into(), "/way".into(), "leave it out".into());
        assert_eq!(validated(r#"{"way":"Warn"}"#), (QUOTA_OK, vec![warning]));
        let refused = |options, code: &str, pointer: &str| {
            let found = vec![(1, code.into(), pointer.into(), String::new())];
            assert_eq!(validated(options), (QUOTA_ERROR, found));
        };
        refused(r#"{"way":"Other"}"#, "not-allowed", "/way");
        refused(r#"{"other":1}"#, "unknown-field", "/other");
        refused("[]", "wrong-type", "");
        refused(r#"{"way":"PanicInValidate"}"#, "panicked", "");
    }

    #[test]
    fn a_panic_in_create_or_destroy_goes_no_further() {
        let (instance, found) = created(r#"{"way":"PanicInCreate"}"#);
        assert!(instance.is_none());
        assert_eq!(found[0].1, "panicked");
        let (instance, found) = created(r#"{"way":"PanicInDrop"}"#);
        assert!(found.is_empty());
        destroy(instance.unwrap());
        destroy(ptr::null_mut());
    }

    #[test]
    fn health_fits_the_buffer_and_resize_is_offered() {
        let toy = toy();
        let id = |id: &str| {
            let get_extension = TABLE.get_extension.unwrap();
            // SAFETY: a function of the table, called as the ABI says.
            unsafe { get_extension(toy, quota_str::new(id)) }
        };
        assert!(id("quota.resize/2").is_null());
        let resize = id(QUOTA_EXT_RESIZE_1).cast::<quota_resize>();
        // SAFETY: the table of that extension, constant for the life of the process.
        let set = unsafe { resize.read() }.set_max_entries.unwrap();
        // SAFETY: its function, called as the ABI says.
        assert_eq!(unsafe { set(toy, 12) }, QUOTA_OK);
        // The third byte would be half of a character.
        for (capacity, text) in [(64, "gr\u{fc}n"), (3, "gr"), (0, "")] {
            let mut buffer = [b'#'; 64];
            let mut out = quota_health {
                struct_size: QUOTA_HEALTH_SIZE_1_0,
                state: 0,
                reason: 0,
                reserved: 0,
                inflight: 0,
                entries: 7,
                capacity: 0,
                since_unix_ms: 0,
                error_text: buffer.as_mut_ptr(),
                error_capacity: capacity,
                error_len: 9,
            };
            let health = TABLE.health.unwrap();
            // SAFETY: a function of the table, called as the ABI says.
            assert_eq!(unsafe { health(toy, &raw mut out) }, QUOTA_OK);
            assert_eq!(
                (out.state, out.reason, out.inflight),
                (QUOTA_HEALTH_DEGRADED, QUOTA_CLASS_UNAVAILABLE, 1)
            );
            assert_eq!((out.entries, out.capacity, out.since_unix_ms), (0, 12, 4));
            assert_eq!(&buffer[..out.error_len], text.as_bytes());
            assert!(buffer[out.error_len..].iter().all(|byte| *byte == b'#'));
        }
        destroy(toy);
    }
}

//! Hand-written backends: an honest store and every way to misbehave, chosen by the option `mode`.
#![expect(unsafe_code, reason = "plays the plugin's side of a C boundary")]
#![expect(
    clippy::unwrap_used,
    clippy::multiple_unsafe_ops_per_block,
    reason = "helpers of tests"
)]

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Condvar, LazyLock, Mutex};

use quota_plugin_abi::*;
use quota_plugin_host::{Instance, Item, Plugin, Settings, Window, WindowKind};
use serde_json::json;

/// What it says about its options.
pub(crate) const SCHEMA: &str = r#"{
    "type": "object",
    "additionalProperties": false,
    "properties": {
        "mode": {"type": "string", "default": "honest"},
        "size": {"type": "integer", "minimum": 1},
        "secret": {"type": "string", "writeOnly": true}
    }
}"#;

/// A correct table of an inline backend.
pub(crate) const INLINE: quota_plugin = quota_plugin {
    magic: QUOTA_MAGIC,
    abi_major: QUOTA_ABI_MAJOR,
    abi_minor: QUOTA_ABI_MINOR,
    struct_size: QUOTA_PLUGIN_SIZE_1_0,
    kind: quota_str::new("zoo"),
    name: quota_str::new("Zoo"),
    version: quota_str::new("1.2.3"),
    vendor: quota_str::new("tests"),
    homepage: quota_str::EMPTY,
    build_id: quota_str::EMPTY,
    capabilities: QUOTA_CAP_INLINE,
    max_limit: u64::MAX,
    max_key_len: 512,
    max_batch: 0,
    options_schema: quota_str::new(SCHEMA),
    validate: Some(validate),
    create: Some(create),
    check: None,
    health: Some(health),
    drain: Some(drain),
    destroy: Some(destroy),
    get_extension: Some(get_extension),
    check_one: Some(check_one),
};

/// The same, asynchronous.
pub(crate) const ASYNC: quota_plugin = quota_plugin {
    capabilities: QUOTA_CAP_NATIVE_BATCH,
    check: Some(check),
    check_one: None,
    ..INLINE
};

/// The same, blocking.
pub(crate) const BLOCKING: quota_plugin = quota_plugin {
    capabilities: QUOTA_CAP_BLOCKING,
    ..ASYNC
};

/// A plugin of such a table.
pub(crate) fn plugin(table: quota_plugin) -> Plugin {
    Plugin::builtin(Box::leak(Box::new(table))).unwrap()
}

/// Settings with a prefix of one test's own, by which [`Held`] finds its batches.
pub(crate) fn settings(prefix: &str) -> Settings {
    Settings {
        key_prefix: prefix.to_owned(),
        ..Settings::default()
    }
}

/// An instance that behaves as `mode` says.
pub(crate) fn instance(table: quota_plugin, mode: &str, prefix: &str) -> Instance {
    plugin(table)
        .create(&settings(prefix), &json!({"mode": mode}))
        .unwrap()
}

/// A window that does not end.
pub(crate) const fn window(limit: u64) -> Window {
    Window {
        kind: WindowKind::Burst,
        limit,
        length_ms: 60_000,
        start_ms: 0,
        reset_ms: 60_000,
    }
}

/// An item with this key.
pub(crate) const fn item<'a>(key: &'a [u8], windows: &'a [Window]) -> Item<'a> {
    Item {
        key,
        key_hash: 1,
        windows,
    }
}

/// A batch that waits for the test to complete it.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    pub(crate) host: &'static quota_host,
    pub(crate) ticket: u64,
    pub(crate) count: u32,
}

static HELD: LazyLock<Mutex<HashMap<String, Vec<Held>>>> = LazyLock::new(Mutex::default);
static RETURNED: LazyLock<Mutex<HashMap<String, Vec<i32>>>> = LazyLock::new(Mutex::default);

impl Held {
    /// The batches an instance with this prefix holds back.
    pub(crate) fn take(prefix: &str) -> Vec<Self> {
        HELD.lock().unwrap().remove(prefix).unwrap_or_default()
    }

    /// Completes it with `count` times `code`.
    pub(crate) fn complete(self, ticket: u64, code: i32, count: u32) -> i32 {
        let result = quota_result {
            code,
            ..quota_result::default()
        };
        let results = vec![result; usize::try_from(count).unwrap()];
        // SAFETY: the table is the host's, and there are `count` results.
        unsafe { self.host.complete.unwrap()(self.host.ctx, ticket, results.as_ptr(), count, 32) }
    }

    /// Completes it without results.
    fn complete_with_null(self) -> i32 {
        // SAFETY: the table is the host's; null is what the host must withstand.
        unsafe {
            self.host.complete.unwrap()(self.host.ctx, self.ticket, ptr::null(), self.count, 32)
        }
    }
}

/// What `complete` returned to an instance with this prefix.
pub(crate) fn returned(prefix: &str) -> Vec<i32> {
    RETURNED.lock().unwrap().remove(prefix).unwrap_or_default()
}

/// Holds the checks of blocking instances until it is opened.
pub(crate) struct Gate {
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

static GATES: LazyLock<Mutex<HashMap<String, Arc<Gate>>>> = LazyLock::new(Mutex::default);

impl Gate {
    /// The gate of instances with this prefix.
    pub(crate) fn of(prefix: &str) -> Arc<Self> {
        let new = || {
            Arc::new(Self {
                state: Mutex::new((false, 0)),
                changed: Condvar::new(),
            })
        };
        Arc::clone(
            GATES
                .lock()
                .unwrap()
                .entry(prefix.to_owned())
                .or_insert_with(new),
        )
    }

    /// Lets everyone through, now and later.
    pub(crate) fn open(&self) {
        self.state.lock().unwrap().0 = true;
        self.changed.notify_all();
    }

    /// Waits until `number` checks have arrived.
    pub(crate) fn wait_for(&self, number: usize) {
        let state = self.state.lock().unwrap();
        drop(
            self.changed
                .wait_while(state, |(_, arrived)| *arrived < number)
                .unwrap(),
        );
    }

    /// How many checks have arrived.
    pub(crate) fn arrived(&self) -> usize {
        self.state.lock().unwrap().1
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |(open, _)| !*open).unwrap());
    }
}

type Counters = HashMap<(Vec<u8>, u32, u64), (u64, u64)>;

/// One instance.
struct Zoo {
    mode: String,
    prefix: String,
    host: &'static quota_host,
    counters: Mutex<Counters>,
    max_entries: Mutex<u64>,
}

impl Zoo {
    /// # Safety
    /// `instance` is what `create` made and not destroyed.
    unsafe fn of<'a>(instance: *mut quota_instance) -> &'a Self {
        // SAFETY: by the contract of this function.
        unsafe { &*instance.cast::<Self>() }
    }

    fn decide(&self, key: &[u8], windows: &[quota_window], now: u64) -> quota_result {
        let mut counters = self.counters.lock().unwrap();
        let mut result = quota_result::default();
        let mut starts = [0; 2];
        for (index, window) in windows.iter().enumerate() {
            let stored = counters.get(&(key.to_vec(), window.kind, window.length_ms));
            let stored = stored.copied().unwrap_or((window.start_ms, 0));
            let a_little_back = window.start_ms < stored.0
                && stored.0.saturating_sub(now) < window.length_ms.max(60_000);
            let (start, used) = if stored.0 == window.start_ms || a_little_back {
                stored
            } else {
                (window.start_ms, 0)
            };
            starts[index] = start;
            result.used[index] = used;
            let full = if self.mode == "off_by_one" {
                used > window.limit
            } else {
                used >= window.limit
            };
            result.exhausted |= u32::from(full) << index;
        }
        if self.mode == "charges_denials" || result.exhausted == 0 {
            let known = windows.iter().any(|w| {
                let stored = counters.get(&(key.to_vec(), w.kind, w.length_ms));
                stored.is_some_and(|(start, _)| now < start + w.length_ms)
            });
            let active = counters
                .iter()
                .filter(|((_, _, length), (start, _))| now < start + length);
            let buckets: std::collections::HashSet<_> =
                active.map(|((key, _, _), _)| key).collect();
            let most = *self.max_entries.lock().unwrap();
            if !known && most > 0 && u64::try_from(buckets.len()).unwrap() >= most {
                return quota_result {
                    code: QUOTA_UNAVAILABLE,
                    ..quota_result::default()
                };
            }
            for (index, window) in windows.iter().enumerate() {
                let used = result.used[index] + 1;
                if result.exhausted == 0 {
                    result.used[index] = used;
                }
                counters.insert(
                    (key.to_vec(), window.kind, window.length_ms),
                    (starts[index], used),
                );
            }
        }
        result.code = if result.exhausted == 0 {
            QUOTA_ALLOWED
        } else {
            QUOTA_DENIED
        };
        result
    }

    /// # Safety
    /// `batch` is a batch of the host, during the call it was passed to.
    unsafe fn decide_batch(&self, batch: &quota_batch) -> Vec<quota_result> {
        let mut stopped = false;
        (0..batch.count)
            .map(|index| {
                let offset = usize::try_from(index * batch.item_stride).unwrap();
                // SAFETY: items stand `item_stride` bytes apart.
                let item = unsafe { &*batch.items.byte_add(offset) };
                // SAFETY: the key lives as long as the call.
                let key = unsafe { item.key.as_bytes() };
                let windows = &item.windows[..usize::try_from(item.window_count).unwrap()];
                if stopped {
                    return quota_result {
                        code: QUOTA_NOT_EVALUATED,
                        ..quota_result::default()
                    };
                }
                // SAFETY: the clock of the host's table.
                let mono = unsafe { self.host.now_mono_ns.unwrap()(self.host.ctx) };
                if batch.deadline_mono_ns != 0 && batch.deadline_mono_ns <= mono {
                    return quota_result {
                        code: QUOTA_TIMEOUT,
                        ..quota_result::default()
                    };
                }
                let result = self.decide(key, windows, batch.now_unix_ms);
                stopped = self.mode != "ignores_stop"
                    && (result.code == QUOTA_DENIED
                        && batch.flags & QUOTA_BATCH_STOP_AT_DENIAL != 0
                        || result.code < 0 && batch.flags & QUOTA_BATCH_STOP_AT_FAILURE != 0);
                result
            })
            .collect()
    }

    fn say(&self, level: u32, text: &str) {
        // SAFETY: the table is the host's; the text outlives the call.
        unsafe {
            self.host.log.unwrap()(
                self.host.ctx,
                level,
                quota_str::new("zoo"),
                quota_str::new(text),
            )
        }
    }

    fn note_returned(&self, code: i32) {
        RETURNED
            .lock()
            .unwrap()
            .entry(self.prefix.clone())
            .or_default()
            .push(code);
    }
}

unsafe extern "C" fn validate(options: quota_str, sink: *const quota_diagnostic_sink) -> i32 {
    // SAFETY: the options outlive the call.
    let text = unsafe { options.as_bytes() };
    let value: serde_json::Value = serde_json::from_slice(text).unwrap_or_default();
    let mode = value
        .get("mode")
        .and_then(|mode| mode.as_str())
        .unwrap_or_default();
    let report = |severity, code: &str, pointer: &str, message: &str| {
        let diagnostic = quota_diagnostic {
            struct_size: QUOTA_DIAGNOSTIC_SIZE_1_0,
            severity,
            code: quota_str::new(code),
            pointer: quota_str::new(pointer),
            message: quota_str::new(message),
            help: quota_str::new("ask the keeper"),
        };
        // SAFETY: the sink is the host's, on the thread of the call; the finding outlives it.
        unsafe { (*sink).report.unwrap()((*sink).ctx, &raw const diagnostic) }
    };
    let Some(members) = value.as_object() else {
        report(QUOTA_SEVERITY_ERROR, "not-options", "", "not a JSON object");
        return QUOTA_ERROR;
    };
    let mut ok = QUOTA_OK;
    for (name, member) in members {
        let right = match name.as_str() {
            "mode" | "secret" => member.is_string(),
            "size" => member.as_u64().is_some_and(|size| size > 0),
            _ => false,
        };
        if !right {
            report(
                QUOTA_SEVERITY_ERROR,
                "zoo-option",
                &format!("/{name}"),
                "not for the zoo",
            );
            ok = QUOTA_ERROR;
        }
    }
    match mode {
        "refuses" => {
            report(
                QUOTA_SEVERITY_WARNING,
                "zoo-warning",
                "/mode",
                "it \u{7} bites",
            );
            report(
                QUOTA_SEVERITY_ERROR,
                "zoo-closed",
                "/mode/of/nowhere",
                "closed",
            );
            return QUOTA_ERROR;
        }
        "refuses_silently" => return QUOTA_ERROR,
        "floods" => {
            for _ in 0..1_000 {
                report(
                    QUOTA_SEVERITY_ERROR,
                    "zoo-flood",
                    "/mode",
                    &"x".repeat(5_000),
                );
            }
            return QUOTA_ERROR;
        }
        _ => {}
    }
    ok
}

unsafe extern "C" fn create(
    context: *const quota_create,
    options: quota_str,
    host: *const quota_host,
    sink: *const quota_diagnostic_sink,
    out: *mut *mut quota_instance,
) -> i32 {
    // SAFETY: options and context outlive the call, the host table the process.
    let (text, context, host) = unsafe { (options.as_bytes(), &*context, &*host) };
    let value: serde_json::Value = serde_json::from_slice(text).unwrap();
    let mode = value
        .get("mode")
        .and_then(|mode| mode.as_str())
        .unwrap_or("honest");
    match mode {
        "makes_nothing" => return QUOTA_OK,
        "slow_to_create" => {
            // SAFETY: the prefix outlives the call.
            let prefix = unsafe { context.key_prefix.as_bytes() };
            Gate::of(std::str::from_utf8(prefix).unwrap()).pass();
        }
        "fails_to_create" => {
            // SAFETY: as in `validate`: the same sink, the same options.
            let _refused = unsafe { validate(quota_str::new(r#"{"mode": "refuses"}"#), sink) };
            return QUOTA_ERROR;
        }
        _ => {}
    }
    // SAFETY: the prefix outlives the call.
    let prefix = unsafe { context.key_prefix.as_bytes() };
    let zoo = Zoo {
        mode: mode.to_owned(),
        prefix: String::from_utf8(prefix.to_vec()).unwrap(),
        host,
        counters: Mutex::default(),
        max_entries: Mutex::new(context.max_entries),
    };
    if mode == "slow_to_create" {
        zoo.say(QUOTA_LOG_INFO, "here at last");
    }
    if mode == "talks" {
        for line in 0..150 {
            zoo.say(QUOTA_LOG_INFO, &format!("line {line}\nof many"));
        }
        zoo.say(QUOTA_LOG_TRACE, "a trace nobody wants");
    }
    // SAFETY: `out` is the host's place for the instance.
    unsafe { *out = Box::into_raw(Box::new(zoo)).cast() };
    QUOTA_OK
}

unsafe extern "C" fn check(instance: *mut quota_instance, batch: *const quota_batch) -> i32 {
    // SAFETY: the host passes a living instance and a batch that outlives the call.
    let (zoo, batch) = unsafe { (Zoo::of(instance), &*batch) };
    let held = Held {
        host: zoo.host,
        ticket: batch.ticket,
        count: batch.count,
    };
    let hold = || {
        HELD.lock()
            .unwrap()
            .entry(zoo.prefix.clone())
            .or_default()
            .push(held)
    };
    let fill = |results: &[quota_result]| {
        for (index, result) in results.iter().enumerate() {
            let offset = index * usize::try_from(batch.result_stride).unwrap();
            // SAFETY: results stand `result_stride` bytes apart.
            unsafe { *batch.results.byte_add(offset) = *result };
        }
    };
    match zoo.mode.as_str() {
        "later" | "never" => {
            hold();
            QUOTA_PENDING
        }
        "now" => {
            zoo.note_returned(held.complete(held.ticket, QUOTA_ALLOWED, held.count));
            QUOTA_PENDING
        }
        "twice" => {
            zoo.note_returned(held.complete(held.ticket, QUOTA_ALLOWED, held.count));
            zoo.note_returned(held.complete(held.ticket, QUOTA_DENIED, held.count));
            QUOTA_PENDING
        }
        "garbage_ticket" => {
            for ticket in [0, u64::MAX, held.ticket ^ 1, held.ticket + (1 << 40)] {
                zoo.note_returned(held.complete(ticket, QUOTA_ALLOWED, held.count));
            }
            hold();
            QUOTA_PENDING
        }
        "wrong_count" => {
            zoo.note_returned(held.complete(held.ticket, QUOTA_ALLOWED, held.count + 1));
            QUOTA_PENDING
        }
        "null_results" => {
            zoo.note_returned(held.complete_with_null());
            QUOTA_PENDING
        }
        "ready_and_complete" => {
            zoo.note_returned(held.complete(held.ticket, QUOTA_ALLOWED, held.count));
            // SAFETY: a batch of the host, during its call.
            fill(&unsafe { zoo.decide_batch(batch) });
            QUOTA_READY
        }
        "returns_77" => 77,
        "result_77" => {
            let odd = quota_result {
                code: 77,
                ..quota_result::default()
            };
            fill(&vec![odd; usize::try_from(batch.count).unwrap()]);
            QUOTA_READY
        }
        "hole" => QUOTA_READY,
        "unavailable" => {
            let text = quota_str::new("the zoo\nis closed");
            // SAFETY: the table is the host's; the text outlives the call.
            unsafe { zoo.host.report_error.unwrap()(zoo.host.ctx, QUOTA_CLASS_UNAVAILABLE, text) };
            QUOTA_UNAVAILABLE
        }
        "gate" => {
            Gate::of(&zoo.prefix).pass();
            // SAFETY: a batch of the host, during its call.
            fill(&unsafe { zoo.decide_batch(batch) });
            QUOTA_READY
        }
        "threaded" => {
            // SAFETY: a batch of the host, during its call.
            let results = unsafe { zoo.decide_batch(batch) };
            std::thread::spawn(move || {
                let count = u32::try_from(results.len()).unwrap();
                // SAFETY: the table is the host's, and there are `count` results.
                unsafe {
                    held.host.complete.unwrap()(
                        held.host.ctx,
                        held.ticket,
                        results.as_ptr(),
                        count,
                        32,
                    )
                }
            });
            QUOTA_PENDING
        }
        _ => {
            // SAFETY: a batch of the host, during its call.
            fill(&unsafe { zoo.decide_batch(batch) });
            QUOTA_READY
        }
    }
}

unsafe extern "C" fn check_one(
    instance: *mut quota_instance,
    key: *const u8,
    key_len: usize,
    _key_hash: u64,
    windows: *const quota_windows,
    result: *mut quota_result,
) -> i32 {
    // SAFETY: the host passes a living instance, and the rest outlives the call.
    let (zoo, windows) = unsafe { (Zoo::of(instance), &*windows) };
    match zoo.mode.as_str() {
        "returns_77" => return 77,
        "pending" => return QUOTA_PENDING,
        "unavailable" => return QUOTA_UNAVAILABLE,
        "hole" => return QUOTA_OK,
        "constant" => {
            // SAFETY: the host's place for the result.
            unsafe { (*result).code = QUOTA_ALLOWED };
            return QUOTA_OK;
        }
        _ => {}
    }
    // SAFETY: `key_len` bytes, for the call.
    let key = unsafe { std::slice::from_raw_parts(key, key_len) };
    let used = usize::try_from(windows.count).unwrap();
    let decided = zoo.decide(key, &windows.windows[..used], windows.now_unix_ms);
    // SAFETY: the host's place for the result.
    unsafe { *result = decided };
    QUOTA_OK
}

unsafe extern "C" fn health(instance: *mut quota_instance, out: *mut quota_health) -> i32 {
    // SAFETY: the host passes a living instance and a struct to fill.
    let (zoo, out) = unsafe { (Zoo::of(instance), &mut *out) };
    out.state = QUOTA_HEALTH_AVAILABLE;
    out.capacity = *zoo.max_entries.lock().unwrap();
    match zoo.mode.as_str() {
        "health_77" => return 77,
        "health_of_its_own" => {
            out.state = 77;
            out.reason = QUOTA_CLASS_TIMEOUT;
            out.since_unix_ms = 5;
            let text = b"slow\ntoday";
            // SAFETY: the host's buffer, whose size is `error_capacity`.
            unsafe { ptr::copy_nonoverlapping(text.as_ptr(), out.error_text, text.len()) };
            out.error_len = text.len();
        }
        "health_too_long" => out.error_len = usize::MAX,
        _ => {}
    }
    QUOTA_OK
}

unsafe extern "C" fn drain(_instance: *mut quota_instance, _deadline_mono_ns: u64) -> i32 {
    QUOTA_OK
}

unsafe extern "C" fn destroy(instance: *mut quota_instance) {
    // SAFETY: what `create` made, destroyed once.
    let zoo = unsafe { Box::from_raw(instance.cast::<Zoo>()) };
    if zoo.mode == "later" {
        for held in Held::take(&zoo.prefix) {
            zoo.note_returned(held.complete(held.ticket, QUOTA_UNAVAILABLE, held.count));
        }
    }
}

unsafe extern "C" fn set_max_entries(instance: *mut quota_instance, max_entries: u64) -> i32 {
    // SAFETY: the host passes a living instance.
    let zoo = unsafe { Zoo::of(instance) };
    if max_entries == 13 {
        return QUOTA_ERROR;
    }
    *zoo.max_entries.lock().unwrap() = max_entries;
    QUOTA_OK
}

static RESIZE: quota_resize = quota_resize {
    struct_size: QUOTA_RESIZE_SIZE_1_0,
    reserved: 0,
    set_max_entries: Some(set_max_entries),
};

unsafe extern "C" fn get_extension(instance: *mut quota_instance, id: quota_str) -> *const c_void {
    // SAFETY: the id outlives the call; the instance lives.
    let (id, zoo) = unsafe { (id.as_bytes(), Zoo::of(instance)) };
    if id == QUOTA_EXT_RESIZE_1.as_bytes() && zoo.mode != "no_resize" {
        return (&raw const RESIZE).cast();
    }
    ptr::null()
}

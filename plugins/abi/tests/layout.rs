//! Proves the C header and the Rust declarations equal: the compilers assert every size, alignment, offset and constant.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of the tests in this file"
)]

use std::fmt::Write as _;
use std::mem::{align_of, offset_of, size_of};
use std::path::Path;
use std::process::Command;

use quota_plugin_abi::*;

/// Asserts the size and alignment of a struct and the offset and size of each field named.
macro_rules! layout {
    ($out:ident, $type:ident { $($field:ident),+ $(,)? }) => {
        writeln!($out, "ASSERT(sizeof({0}) == {1}, \"size of {0}\");", stringify!($type), size_of::<$type>()).unwrap();
        writeln!($out, "ASSERT(ALIGNOF({0}) == {1}, \"alignment of {0}\");", stringify!($type), align_of::<$type>()).unwrap();
        $(
            writeln!(
                $out,
                "ASSERT(offsetof({0}, {1}) == {2}, \"offset of {0}.{1}\");",
                stringify!($type), stringify!($field), offset_of!($type, $field)
            ).unwrap();
            writeln!(
                $out,
                "ASSERT(sizeof((({0} *)0)->{1}) == {2}, \"size of {0}.{1}\");",
                stringify!($type), stringify!($field), size_of_field(|s: &$type| &raw const s.$field)
            ).unwrap();
        )+
        // No field may be missing above: together they fill the struct, since version 1 has no implicit padding.
        assert_eq!(
            size_of::<$type>(),
            0 $(+ size_of_field(|s: &$type| &raw const s.$field))+,
            concat!(stringify!($type), ": a field is missing from the list, or there is padding")
        );
    };
}

/// Size of the field an accessor points at, without a value of the struct.
fn size_of_field<S, F>(_: fn(&S) -> *const F) -> usize {
    size_of::<F>()
}

/// Asserts that integer constants have the same value.
macro_rules! constants {
    ($out:ident, $($name:ident),+ $(,)?) => {
        $(writeln!($out, "ASSERT({0} == {1}, \"value of {0}\");", stringify!($name), c_integer($name.into())).unwrap();)+
    };
}

/// An integer as C reads it in full width.
fn c_integer(value: i128) -> String {
    if value > i128::from(i64::MAX) {
        format!("{value}ull")
    } else {
        format!("{value}ll")
    }
}

fn assertions() -> String {
    let mut out = String::from(
        "#include \"quota_plugin.h\"\n\
         #ifdef __cplusplus\n#define ASSERT static_assert\n#define ALIGNOF alignof\n\
         #else\n#define ASSERT _Static_assert\n#define ALIGNOF _Alignof\n#endif\n",
    );
    layout!(out, quota_str { ptr, len });
    layout!(
        out,
        quota_window {
            kind,
            flags,
            limit,
            length_ms,
            start_ms,
            reset_ms
        }
    );
    layout!(
        out,
        quota_windows {
            struct_size,
            count,
            now_unix_ms,
            windows
        }
    );
    layout!(
        out,
        quota_item {
            key,
            key_hash,
            window_count,
            flags,
            windows
        }
    );
    layout!(
        out,
        quota_result {
            code,
            exhausted,
            used,
            error_class,
            flags
        }
    );
    layout!(
        out,
        quota_batch {
            struct_size,
            flags,
            ticket,
            now_unix_ms,
            deadline_mono_ns,
            items,
            results,
            count,
            item_stride,
            result_stride,
            reserved,
        }
    );
    layout!(
        out,
        quota_create {
            struct_size,
            reserved,
            key_prefix,
            connect_timeout_ms,
            command_timeout_ms,
            max_inflight,
            max_entries,
        }
    );
    layout!(
        out,
        quota_health {
            struct_size,
            state,
            reason,
            reserved,
            inflight,
            entries,
            capacity,
            since_unix_ms,
            error_text,
            error_capacity,
            error_len,
        }
    );
    layout!(
        out,
        quota_diagnostic {
            struct_size,
            severity,
            code,
            pointer,
            message,
            help
        }
    );
    layout!(
        out,
        quota_diagnostic_sink {
            struct_size,
            reserved,
            ctx,
            report
        }
    );
    layout!(
        out,
        quota_host {
            struct_size,
            reserved,
            abi_major,
            abi_minor,
            reserved1,
            ctx,
            host_name,
            host_version,
            max_level,
            reserved2,
            complete,
            log,
            report_error,
            now_mono_ns,
            get_extension,
        }
    );
    layout!(
        out,
        quota_plugin {
            magic,
            abi_major,
            abi_minor,
            struct_size,
            kind,
            name,
            version,
            vendor,
            homepage,
            build_id,
            capabilities,
            max_limit,
            max_key_len,
            max_batch,
            options_schema,
            validate,
            create,
            check,
            health,
            drain,
            destroy,
            get_extension,
            check_one,
        }
    );
    layout!(
        out,
        quota_resize {
            struct_size,
            reserved,
            set_max_entries
        }
    );
    layout!(
        out,
        quota_note {
            namesz,
            descsz,
            note_type,
            name,
            magic,
            abi_major,
            abi_minor,
            kind_len,
            schema_len,
            kind,
        }
    );
    constants!(
        out,
        QUOTA_MAGIC,
        QUOTA_ABI_MAJOR,
        QUOTA_ABI_MINOR,
        QUOTA_PLUGIN_SIZE_1_0,
        QUOTA_HOST_SIZE_1_0,
        QUOTA_BATCH_SIZE_1_0,
        QUOTA_ITEM_SIZE_1_0,
        QUOTA_WINDOWS_SIZE_1_0,
        QUOTA_RESULT_SIZE_1_0,
        QUOTA_CREATE_SIZE_1_0,
        QUOTA_HEALTH_SIZE_1_0,
        QUOTA_DIAGNOSTIC_SIZE_1_0,
        QUOTA_DIAGNOSTIC_SINK_SIZE_1_0,
        QUOTA_RESIZE_SIZE_1_0,
        QUOTA_OK,
        QUOTA_READY,
        QUOTA_PENDING,
        QUOTA_ALLOWED,
        QUOTA_DENIED,
        QUOTA_NOT_EVALUATED,
        QUOTA_TIMEOUT,
        QUOTA_UNAVAILABLE,
        QUOTA_ERROR,
        QUOTA_COMPLETE_TAKEN,
        QUOTA_COMPLETE_LATE,
        QUOTA_COMPLETE_NONSENSE,
        QUOTA_CAP_INLINE,
        QUOTA_CAP_BLOCKING,
        QUOTA_CAP_REMOTE,
        QUOTA_CAP_SHARED,
        QUOTA_CAP_PERSISTENT,
        QUOTA_CAP_NATIVE_BATCH,
        QUOTA_BATCH_STOP_AT_DENIAL,
        QUOTA_BATCH_STOP_AT_FAILURE,
        QUOTA_FLAGS_MUST_UNDERSTAND,
        QUOTA_WINDOW_BURST,
        QUOTA_WINDOW_SUSTAINED,
        QUOTA_RESULT_LOCAL,
        QUOTA_CLASS_NONE,
        QUOTA_CLASS_TIMEOUT,
        QUOTA_CLASS_UNAVAILABLE,
        QUOTA_CLASS_ERROR,
        QUOTA_HEALTH_UNKNOWN,
        QUOTA_HEALTH_AVAILABLE,
        QUOTA_HEALTH_DEGRADED,
        QUOTA_HEALTH_UNAVAILABLE,
        QUOTA_SEVERITY_ERROR,
        QUOTA_SEVERITY_WARNING,
        QUOTA_SEVERITY_NOTE,
        QUOTA_LOG_ERROR,
        QUOTA_LOG_WARN,
        QUOTA_LOG_INFO,
        QUOTA_LOG_DEBUG,
        QUOTA_LOG_TRACE,
        QUOTA_NOTE_NAME_LEN,
        QUOTA_NOTE_TYPE,
        QUOTA_NOTE_HEADER_SIZE,
        QUOTA_KEY_FORMAT,
        QUOTA_KEY_POLICY,
        QUOTA_KEY_POLICY_SHA256,
        QUOTA_KEY_ROUTE,
        QUOTA_KEY_ROUTE_SHA256,
        QUOTA_KEY_TENANT,
        QUOTA_KEY_TOKEN,
        QUOTA_KEY_CLIENT,
    );
    for (name, value) in [
        ("QUOTA_KIND_MAX", QUOTA_KIND_MAX),
        ("QUOTA_KEY_NAME_MAX", QUOTA_KEY_NAME_MAX),
        ("QUOTA_KEY_MAX", QUOTA_KEY_MAX),
    ] {
        writeln!(out, "ASSERT({name} == {value}, \"value of {name}\");").unwrap();
    }
    out
}

/// Whether `compiler` can be started.
fn is_present(compiler: &str) -> bool {
    Command::new(compiler)
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Where the header is, and where the copy of its version 1.0, which never changes. Both hold the same as long as that is the
/// newest version; a field that is appended then is asserted of the first only.
const HEADERS: [&str; 2] = ["include", "tests/v1_0"];

/// Compiles the assertions with each header.
#[track_caller]
fn compile(compiler: &str, standard: &str, language: &str) {
    for (header, number) in HEADERS.into_iter().zip(0..) {
        compile_with(header, number, compiler, standard, language);
    }
}

/// Compiles the assertions and shows what the compiler said if one fails.
#[track_caller]
fn compile_with(header: &str, number: u32, compiler: &str, standard: &str, language: &str) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = folder.join(format!("layout-{number}-{compiler}.{language}"));
    std::fs::write(&source, assertions()).unwrap();
    let output = Command::new(compiler)
        .arg(format!("-std={standard}"))
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"])
        .arg("-I")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(header))
        .arg(&source)
        .output()
        .unwrap_or_else(|error| panic!("{compiler} is needed to prove the header: {error}"));
    assert!(
        output.status.success(),
        "{compiler} {standard} with {header}:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn gcc_agrees_in_c11() {
    compile("gcc", "c11", "c");
}

#[test]
fn gcc_agrees_in_cpp17() {
    compile("g++", "c++17", "cpp");
}

#[test]
fn clang_agrees_where_it_is_installed() {
    for (compiler, standard, language) in [("clang", "c11", "c"), ("clang++", "c++17", "cpp")] {
        if is_present(compiler) {
            compile(compiler, standard, language);
        } else {
            println!("skipped: {compiler} is not installed");
        }
    }
}

/// The text constants of the header, which no static assertion can compare in C11.
#[test]
fn text_constants_are_those_of_the_header() {
    let headers = [
        include_str!("../include/quota_plugin.h"),
        include_str!("v1_0/quota_plugin.h"),
    ];
    for (name, value) in [
        ("QUOTA_ENTRY_SYMBOL", QUOTA_ENTRY_SYMBOL),
        ("QUOTA_EXT_RESIZE_1", QUOTA_EXT_RESIZE_1),
        ("QUOTA_EXT_PEEK_1", QUOTA_EXT_PEEK_1),
        ("QUOTA_EXT_RESET_1", QUOTA_EXT_RESET_1),
        ("QUOTA_EXT_STATS_1", QUOTA_EXT_STATS_1),
        ("QUOTA_EXT_HANDOVER_1", QUOTA_EXT_HANDOVER_1),
        ("QUOTA_NOTE_SECTION", QUOTA_NOTE_SECTION),
        ("QUOTA_NOTE_SECTION_MACHO", QUOTA_NOTE_SECTION_MACHO),
    ] {
        let line = format!("#define {name} \"{value}\"");
        for header in headers {
            assert!(header.lines().any(|l| l == line), "no line {line}");
        }
    }
}

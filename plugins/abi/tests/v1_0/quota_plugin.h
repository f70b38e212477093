/*
 * Version 1.0 of quota_plugin.h as it was published, without its comments. It never changes: what was built with it must
 * go on working.
 */
#ifndef QUOTA_PLUGIN_H
#define QUOTA_PLUGIN_H
#include <stddef.h>
#include <stdint.h>
#if UINTPTR_MAX != UINT64_MAX
#error "version 1 of the quota plugin ABI is defined for 64-bit targets only"
#endif
#ifdef __cplusplus
extern "C" {
#endif
#define QUOTA_MAGIC UINT64_C(0x474C5041544F5551)
#define QUOTA_ABI_MAJOR 1
#define QUOTA_ABI_MINOR 0
#define QUOTA_ENTRY_SYMBOL "quota_plugin_entry"
#define QUOTA_KIND_MAX 32
#define QUOTA_PLUGIN_SIZE_1_0 216
#define QUOTA_HOST_SIZE_1_0 104
#define QUOTA_BATCH_SIZE_1_0 64
#define QUOTA_ITEM_SIZE_1_0 112
#define QUOTA_WINDOWS_SIZE_1_0 96
#define QUOTA_RESULT_SIZE_1_0 32
#define QUOTA_CREATE_SIZE_1_0 56
#define QUOTA_HEALTH_SIZE_1_0 72
#define QUOTA_DIAGNOSTIC_SIZE_1_0 72
#define QUOTA_DIAGNOSTIC_SINK_SIZE_1_0 24
#define QUOTA_RESIZE_SIZE_1_0 16
#define QUOTA_OK 0
#define QUOTA_READY 0
#define QUOTA_PENDING 1
#define QUOTA_ALLOWED 1
#define QUOTA_DENIED 2
#define QUOTA_NOT_EVALUATED 3
#define QUOTA_TIMEOUT (-1)
#define QUOTA_UNAVAILABLE (-2)
#define QUOTA_ERROR (-3)
#define QUOTA_COMPLETE_TAKEN 0
#define QUOTA_COMPLETE_LATE 1
#define QUOTA_COMPLETE_NONSENSE 2
#define QUOTA_CAP_INLINE UINT64_C(1)
#define QUOTA_CAP_BLOCKING UINT64_C(2)
#define QUOTA_CAP_REMOTE UINT64_C(4)
#define QUOTA_CAP_SHARED UINT64_C(8)
#define QUOTA_CAP_PERSISTENT UINT64_C(16)
#define QUOTA_CAP_NATIVE_BATCH UINT64_C(32)
#define QUOTA_BATCH_STOP_AT_DENIAL UINT32_C(1)
#define QUOTA_BATCH_STOP_AT_FAILURE UINT32_C(2)
#define QUOTA_FLAGS_MUST_UNDERSTAND UINT32_C(0xFFFF0000)
#define QUOTA_WINDOW_BURST UINT32_C(1)
#define QUOTA_WINDOW_SUSTAINED UINT32_C(2)
#define QUOTA_RESULT_LOCAL UINT32_C(1)
#define QUOTA_CLASS_NONE UINT32_C(0)
#define QUOTA_CLASS_TIMEOUT UINT32_C(1)
#define QUOTA_CLASS_UNAVAILABLE UINT32_C(2)
#define QUOTA_CLASS_ERROR UINT32_C(3)
#define QUOTA_HEALTH_UNKNOWN UINT32_C(0)
#define QUOTA_HEALTH_AVAILABLE UINT32_C(1)
#define QUOTA_HEALTH_DEGRADED UINT32_C(2)
#define QUOTA_HEALTH_UNAVAILABLE UINT32_C(3)
#define QUOTA_SEVERITY_ERROR UINT32_C(1)
#define QUOTA_SEVERITY_WARNING UINT32_C(2)
#define QUOTA_SEVERITY_NOTE UINT32_C(3)
#define QUOTA_LOG_ERROR UINT32_C(1)
#define QUOTA_LOG_WARN UINT32_C(2)
#define QUOTA_LOG_INFO UINT32_C(3)
#define QUOTA_LOG_DEBUG UINT32_C(4)
#define QUOTA_LOG_TRACE UINT32_C(5)
#define QUOTA_EXT_RESIZE_1 "quota.resize/1"
#define QUOTA_EXT_PEEK_1 "quota.peek/1"
#define QUOTA_EXT_RESET_1 "quota.reset/1"
#define QUOTA_EXT_STATS_1 "quota.stats/1"
#define QUOTA_EXT_HANDOVER_1 "quota.handover/1"
#define QUOTA_KEY_FORMAT 0x01
#define QUOTA_KEY_POLICY 'p'
#define QUOTA_KEY_POLICY_SHA256 'P'
#define QUOTA_KEY_ROUTE 'r'
#define QUOTA_KEY_ROUTE_SHA256 'R'
#define QUOTA_KEY_TENANT 't'
#define QUOTA_KEY_TOKEN 'k'
#define QUOTA_KEY_CLIENT 'c'
#define QUOTA_KEY_NAME_MAX 128
#define QUOTA_KEY_MAX 512
typedef struct quota_str {
    const uint8_t *ptr;
    size_t len;
} quota_str;
typedef struct quota_instance quota_instance;
typedef struct quota_window {
    uint32_t kind;
    uint32_t flags;
    uint64_t limit;
    uint64_t length_ms;
    uint64_t start_ms;
    uint64_t reset_ms;
} quota_window;
typedef struct quota_windows {
    uint32_t struct_size;
    uint32_t count;
    uint64_t now_unix_ms;
    quota_window windows[2];
} quota_windows;
typedef struct quota_item {
    quota_str key;
    uint64_t key_hash;
    uint32_t window_count;
    uint32_t flags;
    quota_window windows[2];
} quota_item;
typedef struct quota_result {
    int32_t code;
    uint32_t exhausted;
    uint64_t used[2];
    uint32_t error_class;
    uint32_t flags;
} quota_result;
typedef struct quota_batch {
    uint32_t struct_size;
    uint32_t flags;
    uint64_t ticket;
    uint64_t now_unix_ms;
    uint64_t deadline_mono_ns;
    const quota_item *items;
    quota_result *results;
    uint32_t count;
    uint32_t item_stride;
    uint32_t result_stride;
    uint32_t reserved;
} quota_batch;
typedef struct quota_create {
    uint32_t struct_size;
    uint32_t reserved;
    quota_str key_prefix;
    uint64_t connect_timeout_ms;
    uint64_t command_timeout_ms;
    uint64_t max_inflight;
    uint64_t max_entries;
} quota_create;
typedef struct quota_health {
    uint32_t struct_size;
    uint32_t state;
    uint32_t reason;
    uint32_t reserved;
    uint64_t inflight;
    uint64_t entries;
    uint64_t capacity;
    uint64_t since_unix_ms;
    uint8_t *error_text;
    size_t error_capacity;
    size_t error_len;
} quota_health;
typedef struct quota_diagnostic {
    uint32_t struct_size;
    uint32_t severity;
    quota_str code;
    quota_str pointer;
    quota_str message;
    quota_str help;
} quota_diagnostic;
typedef struct quota_diagnostic_sink {
    uint32_t struct_size;
    uint32_t reserved;
    void *ctx;
    void (*report)(void *ctx, const quota_diagnostic *diagnostic);
} quota_diagnostic_sink;
typedef struct quota_host {
    uint32_t struct_size;
    uint32_t reserved;
    uint16_t abi_major;
    uint16_t abi_minor;
    uint32_t reserved1;
    void *ctx;
    quota_str host_name;
    quota_str host_version;
    uint32_t max_level;
    uint32_t reserved2;
    int32_t (*complete)(void *ctx, uint64_t ticket, const quota_result *results, uint32_t count,
                        uint32_t result_stride);
    void (*log)(void *ctx, uint32_t level, quota_str target, quota_str text);
    void (*report_error)(void *ctx, uint32_t error_class, quota_str text);
    uint64_t (*now_mono_ns)(void *ctx);
    const void *(*get_extension)(void *ctx, quota_str id);
} quota_host;
typedef struct quota_plugin {
    uint64_t magic;
    uint16_t abi_major;
    uint16_t abi_minor;
    uint32_t struct_size;
    quota_str kind;
    quota_str name;
    quota_str version;
    quota_str vendor;
    quota_str homepage;
    quota_str build_id;
    uint64_t capabilities;
    uint64_t max_limit;
    uint32_t max_key_len;
    uint32_t max_batch;
    quota_str options_schema;
    int32_t (*validate)(quota_str options, const quota_diagnostic_sink *sink);
    int32_t (*create)(const quota_create *ctx, quota_str options, const quota_host *host,
                      const quota_diagnostic_sink *sink, quota_instance **out);
    int32_t (*check)(quota_instance *instance, const quota_batch *batch);
    int32_t (*health)(quota_instance *instance, quota_health *out);
    int32_t (*drain)(quota_instance *instance, uint64_t deadline_mono_ns);
    void (*destroy)(quota_instance *instance);
    const void *(*get_extension)(quota_instance *instance, quota_str id);
    int32_t (*check_one)(quota_instance *instance, const uint8_t *key, size_t key_len, uint64_t key_hash,
                         const quota_windows *windows, quota_result *result);
} quota_plugin;
typedef struct quota_resize {
    uint32_t struct_size;
    uint32_t reserved;
    int32_t (*set_max_entries)(quota_instance *instance, uint64_t max_entries);
} quota_resize;
#define QUOTA_NOTE_SECTION ".note.quota"
#define QUOTA_NOTE_SECTION_MACHO "__DATA,__quota"
#define QUOTA_NOTE_NAME_LEN 6
#define QUOTA_NOTE_TYPE 1
#define QUOTA_NOTE_HEADER_SIZE 20
typedef struct quota_note {
    uint32_t namesz;
    uint32_t descsz;
    uint32_t note_type;
    uint8_t name[8];
    uint8_t magic[8];
    uint16_t abi_major;
    uint16_t abi_minor;
    uint32_t kind_len;
    uint32_t schema_len;
    uint8_t kind[QUOTA_KIND_MAX];
} quota_note;
#if defined(_WIN32)
#define QUOTA_PLUGIN_EXPORT __declspec(dllexport)
#elif defined(__GNUC__)
#define QUOTA_PLUGIN_EXPORT __attribute__((visibility("default")))
#else
#define QUOTA_PLUGIN_EXPORT
#endif
QUOTA_PLUGIN_EXPORT const quota_plugin *quota_plugin_entry(void);
#ifdef __cplusplus
}
#endif
#endif

/*
 * quota_plugin.h: the C ABI of quota counter backends, version 1.0. This file is the specification.
 *
 * A backend decides one question: has this key room left in these windows? It is a shared library named
 * libquota_backend_<kind>.so (.dylib; quota_backend_<kind>.dll) that exports exactly one function, quota_plugin_entry.
 * <kind> is [a-z][a-z0-9_]{0,31} and is the same in the file name, in the note and in the description. Kinds of a
 * vendor carry a prefix (acme_dynamo); in_memory, redis and names that start with quota are taken.
 *
 * RULES THAT HOLD EVERYWHERE
 *
 *  - Growth. Fields are only ever appended. A table or struct that is passed singly starts with its size as its owner
 *    knows it; the other side reads nothing beyond that size, and nothing beyond the size it knows itself. Arrays come
 *    with a stride from their owner. Reserved fields are zero and are not checked. The host refuses another major
 *    version. With a newer minor it uses what it knows.
 *  - Flags. Unknown bits are ignored, except that a plugin answers QUOTA_ERROR to an unknown bit among
 *    QUOTA_FLAGS_MUST_UNDERSTAND of a batch.
 *  - Memory. Nobody frees the other side's memory, and no owned buffer crosses. Unless a comment says otherwise, a
 *    pointer passed to a function belongs to the caller and ends when the function returns: copy what must outlive it.
 *  - Text is UTF-8, has a length and no terminating zero.
 *  - Unwinding. No exception, panic, longjmp or thread exit may cross, in either direction.
 *  - Threads. "Control thread" is a thread of the host that decides no requests, not always the same one; never two of
 *    validate, create, drain and destroy run at once for one instance. "Any thread" means several at once too. No function
 *    of the host calls back into the plugin, so plugin locks may be held while calling it.
 *  - The library is never unloaded. Several instances of one library at once are normal: keep no global state.
 *  - 64-bit targets only.
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

/* ---- Versions and sizes ------------------------------------------------------------------------------------------ */

/* The bytes QUOTAPLG, read as a little-endian integer. */
#define QUOTA_MAGIC UINT64_C(0x474C5041544F5551)
#define QUOTA_ABI_MAJOR 1
#define QUOTA_ABI_MINOR 0
#define QUOTA_ENTRY_SYMBOL "quota_plugin_entry"
/* The longest kind, in bytes. */
#define QUOTA_KIND_MAX 32

/* Sizes in version 1.0. They never change, whatever is appended later. */
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

/* ---- Codes ------------------------------------------------------------------------------------------------------- */

/* Function results. A negative code (below) says why it failed. */
#define QUOTA_OK 0
#define QUOTA_READY 0   /* check only: every result is filled */
#define QUOTA_PENDING 1 /* check only: complete() follows, exactly once */

/* Codes of an item. 0 (a hole) and every unknown value count as QUOTA_ERROR. */
#define QUOTA_ALLOWED 1       /* every window had room and was charged 1 */
#define QUOTA_DENIED 2        /* a window was exhausted; nothing was charged */
#define QUOTA_NOT_EVALUATED 3 /* an earlier item ended the batch; nothing was charged */
#define QUOTA_TIMEOUT (-1)     /* time ran out; whether it was charged is unknown; nobody repeats it */
#define QUOTA_UNAVAILABLE (-2) /* store unreachable, refusing for now, or full (own queue bound included) */
#define QUOTA_ERROR (-3)       /* protocol, authentication, script, anything else; never enters a fallback */

/* Results of complete(). */
#define QUOTA_COMPLETE_TAKEN 0
#define QUOTA_COMPLETE_LATE 1     /* after the deadline, or completed before */
#define QUOTA_COMPLETE_NONSENSE 2 /* unknown ticket, null results, wrong count */

/* Capabilities. Neither INLINE nor BLOCKING: asynchronous. Both: refused. */
#define QUOTA_CAP_INLINE UINT64_C(1)        /* decides inside the call without I/O; check_one is required */
#define QUOTA_CAP_BLOCKING UINT64_C(2)      /* check may block; the host calls it on threads of its own */
#define QUOTA_CAP_REMOTE UINT64_C(4)        /* the counters live in another process */
#define QUOTA_CAP_SHARED UINT64_C(8)        /* other processes see the same counters */
#define QUOTA_CAP_PERSISTENT UINT64_C(16)   /* counters survive a restart of this process */
#define QUOTA_CAP_NATIVE_BATCH UINT64_C(32) /* a batch costs one trip; else items may be sent singly */

/* Flags of a batch. */
#define QUOTA_BATCH_STOP_AT_DENIAL UINT32_C(1)  /* after a denied item the rest is NOT_EVALUATED, uncharged */
#define QUOTA_BATCH_STOP_AT_FAILURE UINT32_C(2) /* after a negative code the rest is NOT_EVALUATED, uncharged */
#define QUOTA_FLAGS_MUST_UNDERSTAND UINT32_C(0xFFFF0000)

/* Kinds of a window. Another one would be another major version. */
#define QUOTA_WINDOW_BURST UINT32_C(1)
#define QUOTA_WINDOW_SUSTAINED UINT32_C(2)

/* Flags of a result. LOCAL: a denial already known, repeated without asking the store. */
#define QUOTA_RESULT_LOCAL UINT32_C(1)

/* Why something failed, for people and counters. */
#define QUOTA_CLASS_NONE UINT32_C(0)
#define QUOTA_CLASS_TIMEOUT UINT32_C(1)
#define QUOTA_CLASS_UNAVAILABLE UINT32_C(2)
#define QUOTA_CLASS_ERROR UINT32_C(3)

/* States of an instance. */
#define QUOTA_HEALTH_UNKNOWN UINT32_C(0)
#define QUOTA_HEALTH_AVAILABLE UINT32_C(1)
#define QUOTA_HEALTH_DEGRADED UINT32_C(2)
#define QUOTA_HEALTH_UNAVAILABLE UINT32_C(3)

/* Severities of a diagnostic. */
#define QUOTA_SEVERITY_ERROR UINT32_C(1)
#define QUOTA_SEVERITY_WARNING UINT32_C(2)
#define QUOTA_SEVERITY_NOTE UINT32_C(3)

/* Levels of log(). */
#define QUOTA_LOG_ERROR UINT32_C(1)
#define QUOTA_LOG_WARN UINT32_C(2)
#define QUOTA_LOG_INFO UINT32_C(3)
#define QUOTA_LOG_DEBUG UINT32_C(4)
#define QUOTA_LOG_TRACE UINT32_C(5)

/*
 * Extensions of this version. An id is quota.<name>/<revision>, a vendor's <reverse-domain>.<name>/<revision>; a
 * revision never changes. Only quota.resize/1 is defined here; the other ids are reserved.
 */
#define QUOTA_EXT_RESIZE_1 "quota.resize/1"
#define QUOTA_EXT_PEEK_1 "quota.peek/1"
#define QUOTA_EXT_RESET_1 "quota.reset/1"
#define QUOTA_EXT_STATS_1 "quota.stats/1"
#define QUOTA_EXT_HANDOVER_1 "quota.handover/1"

/* ---- The composite key ------------------------------------------------------------------------------------------- */

/*
 * What a counter counts, as bytes. Stable: a plugin whose store people read may take it apart.
 *
 *   byte 0x01 (QUOTA_KEY_FORMAT), then components in the order policy, route, tenant, token, client, absent ones left
 *   out. A component is one tag byte, one length byte, and that many bytes:
 *
 *     'p'  policy name as written, at most 128 bytes        'P'  SHA-256 of a longer policy name, 32 bytes
 *     'r'  route as written, at most 128 bytes              'R'  SHA-256 of a longer route, 32 bytes
 *     't'  SHA-256 of the tenant, 32 bytes
 *     'k'  SHA-256 of the token, 32 bytes
 *     'c'  SHA-256 of the client, 32 bytes
 *
 * The policy is always there; at most 512 bytes in all. The key prefix is not part of it: create() is given that.
 * Different tuples never give the same bytes. A plugin must treat a key as bytes with a length and must accept any, up
 * to its max_key_len; a longer one is QUOTA_ERROR, never cut.
 */
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

/* ---- Types ------------------------------------------------------------------------------------------------------- */

/* Text or bytes. Not terminated by zero. ptr may be null only if len is 0. */
typedef struct quota_str {
    const uint8_t *ptr;
    size_t len;
} quota_str;

/* One instance of a backend. The plugin defines the struct; it owns the memory from create() to destroy(). */
typedef struct quota_instance quota_instance;

/*
 * One fixed window. The host computes all of it on every call, so that a changed policy never needs a new instance.
 * A counter belongs to (prefix, key, kind, length_ms): a call with one length never reads, resets or evicts another's.
 * Within one (kind, length_ms), a start_ms later than the stored one is a new window. An earlier start_ms, less than
 * max(length_ms, 60 s) before the stored one by the reading now_unix_ms, counts in the stored window; a larger step
 * back takes the clock's word. A shared store counts every (kind, length_ms, start_ms) for itself instead.
 */
typedef struct quota_window {
    uint32_t kind;      /* QUOTA_WINDOW_* */
    uint32_t flags;     /* zero */
    uint64_t limit;     /* requests it admits; 1 to max_limit of the plugin; not part of the counter's identity */
    uint64_t length_ms; /* at least 1 */
    uint64_t start_ms;  /* first millisecond, Unix time */
    uint64_t reset_ms;  /* start_ms + length_ms: the first millisecond that is not in it */
} quota_window;

/* The windows of one item, for check_one. Owner: host. Ends with the call. */
typedef struct quota_windows {
    uint32_t struct_size;
    uint32_t count; /* windows in use: 1 or 2 */
    uint64_t now_unix_ms;
    quota_window windows[2]; /* burst before sustained */
} quota_windows;

/* One check of a batch. Owner: host. Ends, with its key, when check() returns, even if that returned QUOTA_PENDING. */
typedef struct quota_item {
    quota_str key;         /* the composite key */
    uint64_t key_hash;     /* keyed per process, for hash tables; equal hashes do not mean equal keys */
    uint32_t window_count; /* windows in use: 1 or 2 */
    uint32_t flags;        /* zero */
    quota_window windows[2];
} quota_item;

/* The answer to one item. */
typedef struct quota_result {
    int32_t code;         /* QUOTA_ALLOWED ... QUOTA_ERROR */
    uint32_t exhausted;   /* QUOTA_DENIED: bit i for every exhausted window i, all of them; else zero */
    uint64_t used[2];     /* count of each window after the decision; zero where unused or unknown */
    uint32_t error_class; /* QUOTA_CLASS_* of a negative code; the text goes to host->report_error */
    uint32_t flags;       /* QUOTA_RESULT_* */
} quota_result;

/* The checks of one request that travel together. Owner: host. Ends when check() returns. */
typedef struct quota_batch {
    uint32_t struct_size;
    uint32_t flags;            /* QUOTA_BATCH_* */
    uint64_t ticket;           /* names the batch in complete() */
    uint64_t now_unix_ms;      /* the one reading of the wall clock */
    uint64_t deadline_mono_ns; /* when the host stops waiting, clock of now_mono_ns; 0 for never */
    const quota_item *items;   /* item i stands i * item_stride bytes on */
    quota_result *results;     /* zeroed by the host; written only during the call and only with QUOTA_READY */
    uint32_t count;            /* items, and results */
    uint32_t item_stride;      /* at least QUOTA_ITEM_SIZE_1_0; use this, not sizeof */
    uint32_t result_stride;    /* at least QUOTA_RESULT_SIZE_1_0; use this, not sizeof */
    uint32_t reserved;
} quota_batch;

/* What create() is told besides the options: the keys of the backend section that belong to the host. Owner: host. */
typedef struct quota_create {
    uint32_t struct_size;
    uint32_t reserved;
    quota_str key_prefix; /* namespace of every stored key; not blank */
    uint64_t connect_timeout_ms;
    uint64_t command_timeout_ms;
    uint64_t max_inflight; /* the host never has more batches than this in the instance; bound the queue by it; 0: none */
    uint64_t max_entries;  /* most active buckets of a bounded store; 0: no bound */
} quota_create;

/* How an instance is. The struct and the buffer belong to the host and end with the call. */
typedef struct quota_health {
    uint32_t struct_size; /* set by the host */
    uint32_t state;       /* QUOTA_HEALTH_* */
    uint32_t reason;      /* QUOTA_CLASS_* */
    uint32_t reserved;
    uint64_t inflight;      /* batches not yet answered */
    uint64_t entries;       /* active buckets in this process; 0 when the store is elsewhere */
    uint64_t capacity;      /* most active buckets; 0: no bound */
    uint64_t since_unix_ms; /* since when the state holds; 0: unknown */
    uint8_t *error_text;    /* set by the host, may be null: where the text of the last error goes, free of secrets */
    size_t error_capacity;  /* set by the host: size of that buffer */
    size_t error_len;       /* bytes written */
} quota_health;

/*
 * One finding about the options. Owner: plugin; copied during report(). The host keeps the first 100 of a call, 1 KiB
 * of each text. pointer is RFC 6901 into the options; a missing key names its parent.
 */
typedef struct quota_diagnostic {
    uint32_t struct_size; /* set by the plugin */
    uint32_t severity;    /* QUOTA_SEVERITY_* */
    quota_str code;       /* stable name, at most 32 bytes */
    quota_str pointer;
    quota_str message;
    quota_str help; /* what to do; may be empty */
} quota_diagnostic;

/* Where findings go. Owner: host. Ends with the call it was passed to; used only on the thread of that call. */
typedef struct quota_diagnostic_sink {
    uint32_t struct_size;
    uint32_t reserved;
    void *ctx; /* first argument of report; owner: host */
    void (*report)(void *ctx, const quota_diagnostic *diagnostic);
} quota_diagnostic_sink;

/*
 * What the host offers an instance. Owner: host; lives as long as the process, so it may be kept and used from any
 * thread. After destroy() returned, nothing of that instance may call it; a late call is counted and does nothing.
 */
typedef struct quota_host {
    uint32_t struct_size;
    uint32_t reserved;
    uint16_t abi_major;
    uint16_t abi_minor;
    uint32_t reserved1;
    void *ctx; /* first argument of every function here; names the instance */
    quota_str host_name;
    quota_str host_version;
    uint32_t max_level; /* the most verbose QUOTA_LOG_* that is kept */
    uint32_t reserved2;

    /*
     * Answers a batch for which check() returns, or is about to return, QUOTA_PENDING: exactly once, from any thread.
     * results: count of them, result_stride bytes apart; owner: plugin; copied during the call. count is that of the
     * batch. Never blocks. Returns QUOTA_COMPLETE_*; whatever it returns, the ticket is dead afterwards.
     */
    int32_t (*complete)(void *ctx, uint64_t ticket, const quota_result *results, uint32_t count,
                        uint32_t result_stride);

    /* One line of log, 4 KiB at most, 100 a second and instance; the rest is dropped and counted. Never blocks. */
    void (*log)(void *ctx, uint32_t level, quota_str target, quota_str text);

    /* Explains recent negative codes. Bounded; the last text is kept for the health report. Never blocks. */
    void (*report_error)(void *ctx, uint32_t error_class, quota_str text);

    /* The clock of deadline_mono_ns (CLOCK_MONOTONIC), nanoseconds. */
    uint64_t (*now_mono_ns)(void *ctx);

    /* An optional table of the host; null if it has none of that id. Owner: host; lives as long as the process. */
    const void *(*get_extension)(void *ctx, quota_str id);
} quota_host;

/*
 * The description of a backend. Owner: plugin; constant, with everything it points to, for the life of the process.
 * Every function must be code of the library itself.
 */
typedef struct quota_plugin {
    uint64_t magic;     /* QUOTA_MAGIC */
    uint16_t abi_major; /* QUOTA_ABI_MAJOR */
    uint16_t abi_minor; /* QUOTA_ABI_MINOR */
    uint32_t struct_size;
    quota_str kind;
    quota_str name;     /* for people, as the next four */
    quota_str version;
    quota_str vendor;
    quota_str homepage; /* may be empty */
    quota_str build_id; /* may be empty */
    uint64_t capabilities;    /* QUOTA_CAP_* */
    uint64_t max_limit;       /* greatest limit it counts exactly; at least 2^53 - 1 */
    uint32_t max_key_len;     /* at least QUOTA_KEY_MAX */
    uint32_t max_batch;       /* most items of a batch; 0: any number */
    quota_str options_schema; /* JSON Schema 2020-12, the subset the documentation names; the host checks it */

    /*
     * Required. Judges options: one JSON object as text, at most 1 MiB, {} for none, host keys not in it. No I/O, no
     * threads, no clock: the same answer each time. Control thread. Returns QUOTA_OK, or
     * QUOTA_ERROR after reporting at least one error.
     */
    int32_t (*validate)(quota_str options, const quota_diagnostic_sink *sink);

    /*
     * Required. Makes an instance and stores it in *out (host memory). Does not wait for a server. After 1 s the host
     * refuses it and leaves behind whatever comes of it. Returns QUOTA_OK, or a negative code after reporting an error;
     * then *out is ignored and nothing is left behind. host outlives the instance; ctx, options and sink end with the
     * call. Control thread.
     */
    int32_t (*create)(const quota_create *ctx, quota_str options, const quota_host *host,
                      const quota_diagnostic_sink *sink, quota_instance **out);

    /*
     * Required unless INLINE. Decides a batch, items in order. For each item, atomically over its windows and against
     * every check of that key: all windows have room -> charge 1 to each, ALLOWED; else charge none, DENIED. The batch
     * as a whole is not atomic. Any thread; an asynchronous plugin returns promptly whatever its server does.
     * Returns QUOTA_READY with every result written; QUOTA_PENDING, and then owes complete(); or a negative code, which
     * is then the code of every item. After the deadline an item not yet sent is TIMEOUT and uncharged.
     */
    int32_t (*check)(quota_instance *instance, const quota_batch *batch);

    /* Required. Fills *out. No I/O, below 1 ms, true within 1 s of a change. Any thread. */
    int32_t (*health)(quota_instance *instance, quota_health *out);

    /* Required. No new checks will come: complete what is pending, until the deadline; close sockets. Control thread. */
    int32_t (*drain)(quota_instance *instance, uint64_t deadline_mono_ns);

    /*
     * Required. Completes what is left with QUOTA_UNAVAILABLE, joins every thread, frees the instance. Afterwards no
     * callback of the instance may run. Control thread, not necessarily the one of create().
     */
    void (*destroy)(quota_instance *instance);

    /* Required. An optional table by id, null for an unknown id. Owner: plugin; constant as this table. Any thread. */
    const void *(*get_extension)(quota_instance *instance, quota_str id);

    /*
     * Required if INLINE, null otherwise. As check() for one item, inside the call. key (key_len bytes), windows and
     * result belong to the host and end with the call; *result comes zeroed. Returns QUOTA_OK with *result written, or
     * a negative code, which is then the item's. Any thread.
     */
    int32_t (*check_one)(quota_instance *instance, const uint8_t *key, size_t key_len, uint64_t key_hash,
                         const quota_windows *windows, quota_result *result);
} quota_plugin;

/* quota.resize/1: changes the capacity of a living instance. Owner: plugin; constant. */
typedef struct quota_resize {
    uint32_t struct_size;
    uint32_t reserved;
    /* At once; counters are kept, shrinking evicts nothing. 0: no bound. Any thread. Returns QUOTA_OK or a code. */
    int32_t (*set_max_entries)(quota_instance *instance, uint64_t max_entries);
} quota_resize;

/* ---- The note ---------------------------------------------------------------------------------------------------- */

/*
 * Describes the library without running it: an ELF note in section .note.quota (Mach-O: __DATA,__quota), a quota_note
 * and then the options schema, padded with spaces to a multiple of four bytes. Nothing follows the schema. Every field
 * is 4-byte aligned. It must agree with the description. A library made by hand may do without.
 */
#define QUOTA_NOTE_SECTION ".note.quota"
#define QUOTA_NOTE_SECTION_MACHO "__DATA,__quota"
#define QUOTA_NOTE_NAME_LEN 6
#define QUOTA_NOTE_TYPE 1
#define QUOTA_NOTE_HEADER_SIZE 20

typedef struct quota_note {
    uint32_t namesz;    /* QUOTA_NOTE_NAME_LEN */
    uint32_t descsz;    /* bytes from magic to the end of the schema */
    uint32_t note_type; /* QUOTA_NOTE_TYPE */
    uint8_t name[8];    /* "QUOTA", zero-padded */
    uint8_t magic[8];   /* "QUOTAPLG" */
    uint16_t abi_major;
    uint16_t abi_minor;
    uint32_t kind_len;
    uint32_t schema_len; /* with its padding spaces */
    uint8_t kind[QUOTA_KIND_MAX]; /* zero-padded */
} quota_note;

/* ---- The entry --------------------------------------------------------------------------------------------------- */

#if defined(_WIN32)
#define QUOTA_PLUGIN_EXPORT __declspec(dllexport)
#elif defined(__GNUC__)
#define QUOTA_PLUGIN_EXPORT __attribute__((visibility("default")))
#else
#define QUOTA_PLUGIN_EXPORT
#endif

/* The one exported function. No side effects, the same pointer every time, any thread. */
QUOTA_PLUGIN_EXPORT const quota_plugin *quota_plugin_entry(void);

#ifdef __cplusplus
}
#endif

#endif

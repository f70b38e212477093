/* A backend that admits everything, and the ways a library can be wrong: chosen when it is compiled. */
#include <stdlib.h>
#include <string.h>

#include "quota_plugin.h"

#ifndef KIND
#define KIND "demo"
#endif
#ifndef MAJOR
#define MAJOR QUOTA_ABI_MAJOR
#endif
#ifndef SALT
#define SALT "1"
#endif

struct quota_instance {
    int unused;
};

static int32_t validate(quota_str options, const quota_diagnostic_sink *sink) {
    (void)options;
    (void)sink;
    return QUOTA_OK;
}

static int32_t create(const quota_create *ctx, quota_str options, const quota_host *host,
                      const quota_diagnostic_sink *sink, quota_instance **out) {
    (void)ctx;
    (void)options;
    (void)host;
    (void)sink;
    *out = calloc(1, sizeof(quota_instance));
    return *out ? QUOTA_OK : QUOTA_ERROR;
}

static int32_t health(quota_instance *instance, quota_health *out) {
    (void)instance;
    out->state = QUOTA_HEALTH_AVAILABLE;
    return QUOTA_OK;
}

static int32_t drain(quota_instance *instance, uint64_t deadline_mono_ns) {
    (void)instance;
    (void)deadline_mono_ns;
    return QUOTA_OK;
}

static void destroy(quota_instance *instance) {
    free(instance);
}

static const void *get_extension(quota_instance *instance, quota_str id) {
    (void)instance;
    (void)id;
    return NULL;
}

static int32_t check_one(quota_instance *instance, const uint8_t *key, size_t key_len, uint64_t key_hash,
                         const quota_windows *windows, quota_result *result) {
    (void)instance;
    (void)key;
    (void)key_len;
    (void)key_hash;
    result->code = QUOTA_ALLOWED;
    result->used[0] = windows->now_unix_ms;
    return QUOTA_OK;
}

#define TEXT(literal) {(const uint8_t *)(literal), sizeof(literal) - 1}

static quota_plugin table = {
    .magic = QUOTA_MAGIC,
    .abi_major = MAJOR,
    .abi_minor = QUOTA_ABI_MINOR,
    .struct_size = sizeof(quota_plugin),
    .kind = TEXT(KIND),
    .name = TEXT("Demo"),
    .version = TEXT(SALT),
    .vendor = TEXT("tests"),
    .capabilities = QUOTA_CAP_INLINE,
    .max_limit = UINT64_MAX,
    .max_key_len = QUOTA_KEY_MAX,
    .options_schema = TEXT("{\"type\": \"object\", \"additionalProperties\": false}"),
    .validate = validate,
    .create = create,
    .health = health,
    .drain = drain,
    .destroy = destroy,
    .get_extension = get_extension,
    .check_one = check_one,
};

const quota_plugin *
#ifdef NO_ENTRY
another_name(void);
const quota_plugin *another_name(void)
#else
quota_plugin_entry(void)
#endif
{
#ifdef FOREIGN
    /* A function of the C library, as a table that claims to be larger than it is might name one. */
    table.destroy = (void (*)(quota_instance *))free;
#endif
    const quota_plugin *found = &table;
#ifdef NULL_TABLE
    found = NULL;
#endif
    return found;
}

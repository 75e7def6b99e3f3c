/* base: what every other room stands on. The compiler block, the status table, the failure path,
 * the log, host memory, and growing text.
 *
 * A `base` travels with everything that can fail or allocate. It belongs to one thread at a time:
 * a background thread takes its own copy (base_fork) and hands its message back when joined. */

/* ---- compiler: the only place with extensions --------------------------------------------------- */
#if defined(__GNUC__) || defined(__clang__)
#define BASE_PRINTF(text, first) __attribute__((format(printf, text, first)))
#define BASE_UNUSED __attribute__((unused))
#define BASE_INLINE static inline __attribute__((always_inline, unused))
#define BASE_TARGET(features) __attribute__((target(features)))
#define BASE_LIKELY(x) __builtin_expect(!!(x), 1)
#else
#define BASE_PRINTF(text, first)
#define BASE_UNUSED
#define BASE_INLINE static inline
#define BASE_TARGET(features)
#define BASE_LIKELY(x) (x)
#endif
/* Rooms between the two run once a start, a call or a file, never once a value: built for size. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__)
#define BASE_SMALL_BEGIN _Pragma("GCC push_options") _Pragma("GCC optimize(\"Os\")")
#define BASE_SMALL_END _Pragma("GCC pop_options")
#else
#define BASE_SMALL_BEGIN
#define BASE_SMALL_END
#endif
#if (defined(__GNUC__) || defined(__clang__)) && (defined(__x86_64__) || defined(_M_X64))
#define BASE_X86 1
#include <cpuid.h>
#include <immintrin.h>
#else
#define BASE_X86 0
#endif
#if defined(__ARM_NEON) && (defined(__GNUC__) || defined(__clang__))
#define BASE_NEON 1
#else
#define BASE_NEON 0
#endif

/* Loops with a constant count whose arrays should live in registers. */
#if defined(__clang__)
#define BASE_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define BASE_UNROLL _Pragma("GCC unroll 32")
#else
#define BASE_UNROLL
#endif
/* GCC for Windows does not align the stack for vectors: its AVX code may fault. */
#if BASE_X86 && !(defined(_WIN32) && !defined(__clang__))
#define BASE_VECTORS 1
#else
#define BASE_VECTORS 0
#endif
#if BASE_X86
#define BASE_PAUSE() __builtin_ia32_pause()
#define BASE_PREFETCH(address) __builtin_prefetch(address)
#define BASE_CPU_HAS(feature) __builtin_cpu_supports(feature) /* by the processor and the system */
#else
#define BASE_PAUSE() ((void)0)
#define BASE_PREFETCH(address) ((void)(address))
#endif

#define BASE_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- status ------------------------------------------------------------------------------------ */

typedef struct base_status_row { const char *name, *meaning, *hint; } base_status_row;

static const base_status_row base_status_rows[] = {
#define BASE_STATUS_ROW(name, code, meaning, hint) {"CAIRN_" #name, meaning, hint},
    CAIRN_STATUS_TABLE(BASE_STATUS_ROW)
#undef BASE_STATUS_ROW
};

static const base_status_row *base_status(cairn_status status) {
    static const base_status_row unknown = {"CAIRN_UNKNOWN", "no such status", ""};
    size_t row = (size_t)status;
    return row < BASE_COUNT(base_status_rows) ? &base_status_rows[row] : &unknown;
}

const char *cairn_status_name(cairn_status status) { return base_status(status)->name; }
const char *cairn_status_meaning(cairn_status status) { return base_status(status)->meaning; }
const char *cairn_status_hint(cairn_status status) { return base_status(status)->hint; }
int cairn_version(void) { return CAIRN_VERSION; }

#include "utf8.c"

/* ---- base -------------------------------------------------------------------------------------- */

#define BASE_ERROR_BYTES 1024

typedef struct base {
    cairn_allocator allocator;
    cairn_log_callback log; /* NULL: silent */
    void *log_user;
    cairn_log_level log_level;
    cairn_status status;           /* of the last failure */
    char error[BASE_ERROR_BYTES];  /* its message; reporting never allocates */
} base;

static void *base_default_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    (void)user;
    (void)old_bytes;
    if (new_bytes) return realloc(memory, new_bytes);
    free(memory);
    return NULL;
}

/* allocator NULL or without a function: the C library's. */
static void base_init(base *b, const cairn_allocator *allocator, cairn_log_callback log,
                      void *log_user, cairn_log_level level) {
    memset(b, 0, sizeof *b);
    if (allocator && allocator->realloc) b->allocator = *allocator;
    else b->allocator.realloc = base_default_realloc;
    b->log = log;
    b->log_user = log_user;
    b->log_level = level;
}

/* A copy for another thread: the same allocator and log, an error text of its own. */
BASE_UNUSED static void base_fork(const base *from, base *to) {
    base_init(to, &from->allocator, from->log, from->log_user, from->log_level);
}

void cairn_log_stderr(void *user, cairn_log_level level, const char *text) {
    (void)user;
    (void)level;
    fprintf(stderr, "cairn: %s\n", text);
}

BASE_PRINTF(3, 4)
BASE_UNUSED static void base_log(base *b, cairn_log_level level, const char *format, ...) {
    char text[2048], shown[sizeof text];
    va_list args;
    if (!b->log || level > b->log_level) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    base_show(text, shown, sizeof shown);
    b->log(b->log_user, level, shown);
}

/* Keeps the message and returns the status: `return base_fail(b, CAIRN_POOL_FULL, "...", ...);`
 * The message says what, where and why; the hint of the status is appended. */
BASE_PRINTF(3, 4)
static cairn_status base_fail(base *b, cairn_status status, const char *format, ...) {
    char text[BASE_ERROR_BYTES];
    va_list args;
    const char *hint = cairn_status_hint(status);
    size_t used;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    base_show(text, b->error, sizeof b->error);
    used = strlen(b->error);
    b->status = status;
    if (*hint)
        snprintf(b->error + used, sizeof b->error - used, " (%s: %s)", cairn_status_name(status),
                 hint);
    return status;
}

/* ---- host memory --------------------------------------------------------------------------------*/

BASE_UNUSED static void *base_realloc(base *b, void *memory, size_t old_bytes, size_t new_bytes) {
    return b->allocator.realloc(b->allocator.user, memory, old_bytes, new_bytes);
}

/* count * size bytes, zeroed; NULL when memory is short or the product overflows. */
BASE_UNUSED static void *base_new(base *b, size_t count, size_t size) {
    void *memory;
    if (count == 0 || size == 0) count = size = 1;
    if (count > SIZE_MAX / size) return NULL;
    memory = b->allocator.realloc(b->allocator.user, NULL, 0, count * size);
    if (memory) memset(memory, 0, count * size);
    return memory;
}

/* count and size as given to base_new. NULL is ignored. */
BASE_UNUSED static void base_delete(base *b, void *memory, size_t count, size_t size) {
    if (count == 0 || size == 0) count = size = 1;
    if (memory) b->allocator.realloc(b->allocator.user, memory, count * size, 0);
}

BASE_UNUSED static cairn_status base_no_memory(base *b, const char *what, size_t bytes) {
    return base_fail(b, CAIRN_OUT_OF_MEMORY, "%s: cannot allocate %llu bytes", what,
                     (unsigned long long)bytes);
}

/* ---- growing bytes ------------------------------------------------------------------------------*/

/* Bytes that grow; always followed by a NUL that `size` does not count. Starts as all zero. */
typedef struct base_text { char *data; size_t size, capacity; } base_text;

BASE_UNUSED static bool base_text_reserve(base *b, base_text *text, size_t more) {
    size_t capacity = text->capacity ? text->capacity : 64;
    char *data;
    if (more > SIZE_MAX / 2 - text->size - 1) return false;
    while (capacity < text->size + more + 1) capacity *= 2;
    if (capacity == text->capacity) return true;
    data = (char *)base_realloc(b, text->data, text->capacity, capacity);
    if (!data) return false;
    text->data = data;
    text->capacity = capacity;
    return true;
}

BASE_UNUSED static bool base_text_add(base *b, base_text *text, const void *bytes, size_t count) {
    if (!base_text_reserve(b, text, count)) return false;
    if (count) memcpy(text->data + text->size, bytes, count);
    text->size += count;
    text->data[text->size] = '\0';
    return true;
}

BASE_PRINTF(3, 4)
BASE_UNUSED static bool base_text_print(base *b, base_text *text, const char *format, ...) {
    va_list args, again;
    int need;
    va_start(args, format);
    va_copy(again, args);
    need = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (need >= 0 && base_text_reserve(b, text, (size_t)need)) {
        vsnprintf(text->data + text->size, (size_t)need + 1, format, again);
        text->size += (size_t)need;
    } else {
        need = -1;
    }
    va_end(again);
    return need >= 0;
}

BASE_UNUSED static void base_text_free(base *b, base_text *text) {
    if (text->data) base_realloc(b, text->data, text->capacity, 0);
    memset(text, 0, sizeof *text);
}

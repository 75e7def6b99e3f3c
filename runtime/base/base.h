/* base: what every other room stands on: compilers, statuses, failures, log, host memory, text, characters.
 *
 * A `base` travels with everything that can fail or allocate. It belongs to one thread at a time:
 * a background thread takes its own copy (base_fork) and hands its message back when joined. */

/* ---- compiler: the only place with extensions ------------------------------------------------ */
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
/* Between the two a * b + c is a product and a sum, each rounded: `cc -O2` in GNU mode would fuse them, to
 * other numbers than were tested. (clang heeds it but for -ffp-contract=fast and -ffast-math.) */
#if defined(__clang__)
#define BASE_EXACT_BEGIN _Pragma("STDC FP_CONTRACT OFF")
#define BASE_EXACT_END _Pragma("STDC FP_CONTRACT DEFAULT")
#elif defined(__GNUC__)
#define BASE_EXACT_BEGIN _Pragma("GCC push_options") _Pragma("GCC optimize(\"fp-contract=off\")")
#define BASE_EXACT_END _Pragma("GCC pop_options")
#else
#define BASE_EXACT_BEGIN
#define BASE_EXACT_END
#endif
/* Vector code needs gcc or clang; CAIRN_NO_SIMD leaves it out. */
#if defined(CAIRN_NO_SIMD) || !(defined(__GNUC__) || defined(__clang__))
#define BASE_X86 0
#define BASE_NEON 0
#elif defined(__x86_64__) || defined(_M_X64)
#define BASE_X86 1
#include <cpuid.h>
#include <immintrin.h>
#define BASE_NEON 0
#elif defined(__ARM_NEON)
#define BASE_X86 0
#define BASE_NEON 1
#else
#define BASE_X86 0
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
/* Win64 aligns the stack to 16 bytes, yet GCC moves vectors there as if to 32 or 64 (its bug 54412). The
 * assembler takes each such move for the one of the same speed that asks no alignment. */
#if BASE_X86 && defined(_WIN32) && !defined(__clang__)
#define BASE_UNALIGNED(aligned, any) ".macro " aligned " args:vararg\n" any " \\args\n.endm\n"
__asm__(BASE_UNALIGNED("vmovaps", "vmovups") BASE_UNALIGNED("vmovapd", "vmovupd")
        BASE_UNALIGNED("vmovdqa", "vmovdqu") BASE_UNALIGNED("vmovdqa32", "vmovdqu32")
        BASE_UNALIGNED("vmovdqa64", "vmovdqu64"));
#endif
#if BASE_X86
#define BASE_PAUSE() __builtin_ia32_pause()
#define BASE_PREFETCH(address) __builtin_prefetch(address, 0, 2) /* the first cache takes too few at once */
#else
#define BASE_PAUSE() ((void)0)
#define BASE_PREFETCH(address) ((void)(address))
#endif
#define BASE_COUNT(array) (sizeof(array) / sizeof((array)[0]))
/* A little-endian number of up to 8 bytes at any address. All hosts are little-endian. */
BASE_INLINE uint64_t base_load(const void *at, int bytes) { uint64_t v = 0; return memcpy(&v, at, (size_t)bytes), v; }

/* ---- the room's state ------------------------------------------------------------------------ */

#define BASE_ERROR_BYTES 1024

typedef struct base {
    cairn_allocator allocator;
    cairn_log_callback log; /* NULL: silent */
    void *log_user, *progress_user;
    cairn_log_level log_level;
    cairn_progress_callback progress; /* of what takes long; NULL: none. A fork has none */
    const struct base *root;       /* of which it is a fork; or NULL */
    cairn_status status;           /* of the last failure */
    char error[BASE_ERROR_BYTES];  /* its message; reporting never allocates */
} base;

/* Bytes that grow; always followed by a NUL that `size` does not count. Starts as all zero. */
typedef struct base_text { char *data; size_t size, capacity; } base_text;

/* Starts from nothing. An allocator that is NULL or without a function means the C library's. */
static void base_init(base *b, const cairn_allocator *allocator, cairn_log_callback log,
                      void *log_user, cairn_log_level level);
/* A copy for another thread: the same allocator and log, an error text of its own. */
static void base_fork(const base *from, base *to);

/* ---- reporting ------------------------------------------------------------------------------- */

/* Copies a text, cut to out_bytes; bytes that would command a terminal become \xNN, and line breaks unless `lines`. */
static void base_show(const char *text, bool lines, char *out, size_t out_bytes);
/* Keeps the message and returns the status: `return base_fail(b, CAIRN_POOL_FULL, "...", ...);`
 * It says what, where and why; the status's hint is appended; base_show escapes it, lines being the format's. */
BASE_PRINTF(3, 4)
static cairn_status base_fail(base *b, cairn_status status, const char *format, ...);
/* One line for the host program's log, without a newline; nothing is formatted below its level. */
BASE_PRINTF(3, 4)
static void base_log(base *b, cairn_log_level level, const char *format, ...);
static cairn_status base_no_memory(base *b, const char *what, size_t bytes); /* for `what` */
/* Tells the host's callback; CANCELLED when that says so. */
static cairn_status base_progress(base *b, const char *what, uint64_t done, uint64_t all);

/* ---- host memory ----------------------------------------------------------------------------- */

/* count * size bytes, zeroed; NULL when memory is short or the product overflows. */
static void *base_new(base *b, size_t count, size_t size);
/* Frees what base_new gave for the same count and size. NULL is ignored. */
static void base_delete(base *b, void *memory, size_t count, size_t size);
/* The host program's allocator as it is: old_bytes are those given before. */
static void *base_realloc(base *b, void *memory, size_t old_bytes, size_t new_bytes);

/* ---- growing text ---------------------------------------------------------------------------- */

/* Each returns false when memory is short; the text then stands as it was. */
static bool base_text_reserve(base *b, base_text *text, size_t more);
static bool base_text_add(base *b, base_text *text, const void *bytes, size_t count);
static void base_decimal_point(char *digits); /* in place of what printf wrote as the locale's */
BASE_PRINTF(3, 4)
static bool base_text_print(base *b, base_text *text, const char *format, ...);
static void base_text_free(base *b, base_text *text); /* leaves an empty text that can grow again */

/* ---- characters of UTF-8 text ---------------------------------------------------------------- */

/* Bytes of the sequence that a lead byte begins; 0: not a lead byte. */
static int base_utf8_length(unsigned lead);
/* How many of the next `bytes` (at least 1) bytes belong together, the largest part of one
 * well-formed character, at least 1; *whole tells whether they are a whole one. */
static size_t base_utf8_part(const char *text, size_t bytes, bool *whole);
static uint32_t base_utf8_point(const char *text, size_t bytes); /* of a whole character */
/* The offset of the first byte that does not begin a whole character; `bytes` when all is well. */
static size_t base_utf8_fault(const char *text, size_t bytes);

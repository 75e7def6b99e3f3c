/* os: the operating system behind one replaceable table. Types and names for files, maps, threads,
 * locks, clocks and dynamic libraries; os_posix.c and os_win32.c fill them in, file.c builds
 * whole-file reads and atomic writes on top.
 *
 * Paths are UTF-8. A raw call returns a value >= 0, or a negative errno code on every system, so
 * that callers and tests speak of ENOSPC alike everywhere. Tests put faults into `os_calls`; no one
 * else writes to it. */
#if defined(__STDC_NO_ATOMICS__) || (defined(_MSC_VER) && !defined(__clang__))
#define OS_STDATOMIC 0
#else
#define OS_STDATOMIC 1
#include <stdatomic.h>
#endif

#define OS_PATH_BYTES 1024

typedef struct os_file_info {
    int64_t size;
    int64_t mtime_us;  /* since 1970 */
    uint64_t identity; /* tells two files of one name apart; 0 where unknown */
    bool regular, directory;
} os_file_info;

/* A file mapped read-only; the bytes after `size` may not be read. */
typedef struct os_map { const uint8_t *data; size_t size; void *address; } os_map;

typedef void (*os_function)(void);
typedef bool (*os_list_entry)(void *user, const char *name); /* false ends the listing */

/* To create is for writing; the file must not exist, and nobody's remove_unused takes it while it is
 * open. A private file is for its owner alone, where the system knows owners. */
enum { OS_OPEN_READ, OS_OPEN_CREATE, OS_OPEN_PRIVATE };

typedef struct os_call_table {
    int64_t (*open)(const char *path, int mode); /* a handle */
    int64_t (*read)(int64_t file, void *data, size_t bytes);
    int64_t (*write)(int64_t file, const void *data, size_t bytes);
    int (*sync)(int64_t file);
    int (*close)(int64_t file);
    int (*info)(const char *path, os_file_info *out);
    int (*file_info)(int64_t file, os_file_info *out);
    int (*rename)(const char *from, const char *to); /* replaces `to` */
    int (*remove)(const char *path);                 /* a file */
    int (*remove_unused)(const char *path); /* unless a process has it open that created it */
    int (*sync_directory)(const char *path); /* names in it to the disk; 0 where it cannot be asked */
    int (*make_directory)(const char *path);
    int (*touch)(const char *path); /* sets the modification time to now */
    int (*list)(const char *directory, os_list_entry entry, void *user);
    void *(*map)(int64_t file, size_t bytes); /* NULL: cannot */
    void (*unmap)(void *address, size_t bytes);
    void *(*library_open)(const char *path, bool loaded_only, char *why, size_t why_bytes);
    os_function (*library_symbol)(void *library, const char *name);
    void (*library_close)(void *library);
    int (*thread_start)(void *thread, size_t stack_bytes, void (*run)(void *), void *context);
} os_call_table;

static const char *os_error_text(int code) {
    static const struct { int code; const char *text; } rows[] = {
        {ENOENT, "no such file or directory"}, {EACCES, "permission denied"},
        {EPERM, "operation not permitted"},    {EEXIST, "it exists already"},
        {ENOTDIR, "not a directory"},          {EISDIR, "it is a directory"},
        {ENOSPC, "no space left on the disk"}, {EROFS, "the file system is read-only"},
        {EIO, "input or output error"},        {EINTR, "interrupted"},
        {EMFILE, "too many open files"},       {ENAMETOOLONG, "the name is too long"},
        {ENOMEM, "memory is short"},           {EINVAL, "invalid argument"},
        {EBUSY, "in use by another program"},  {EFBIG, "the file is too large"},
        {EAGAIN, "resources are short"},       {ENOTEMPTY, "the directory is not empty"},
        {EXDEV, "on another file system"},     {ELOOP, "too many symbolic links"},
        {ENXIO, "it is a device, a pipe or a socket; a file is expected"},
    };
    size_t i;
    if (code < 0) code = -code;
    for (i = 0; i < BASE_COUNT(rows); i++)
        if (rows[i].code == code) return rows[i].text;
    return "the system refused";
}

/* ---- 32-bit atomics, sequentially consistent ------------------------------------------------- */

#if OS_STDATOMIC
typedef atomic_int os_atomic;
BASE_INLINE int32_t os_atomic_load(os_atomic *a) { return (int32_t)atomic_load(a); }
BASE_INLINE void os_atomic_store(os_atomic *a, int32_t value) { atomic_store(a, value); }
/* Returns the value before. */
BASE_INLINE int32_t os_atomic_add(os_atomic *a, int32_t value) {
    return (int32_t)atomic_fetch_add(a, value);
}
/* Sets to `to` if it is `from`; returns whether it did. */
BASE_INLINE bool os_atomic_swap_if(os_atomic *a, int32_t from, int32_t to) {
    int expected = from;
    return atomic_compare_exchange_strong(a, &expected, to);
}
#else
typedef volatile long os_atomic;
long _InterlockedExchange(long volatile *, long);
long _InterlockedExchangeAdd(long volatile *, long);
long _InterlockedCompareExchange(long volatile *, long, long);
BASE_INLINE int32_t os_atomic_load(os_atomic *a) { return _InterlockedExchangeAdd(a, 0); }
BASE_INLINE void os_atomic_store(os_atomic *a, int32_t value) { _InterlockedExchange(a, value); }
BASE_INLINE int32_t os_atomic_add(os_atomic *a, int32_t value) {
    return _InterlockedExchangeAdd(a, value);
}
BASE_INLINE bool os_atomic_swap_if(os_atomic *a, int32_t from, int32_t to) {
    return _InterlockedCompareExchange(a, to, from) == from;
}
#endif

/* os: the operating system behind one replaceable table. Types and names for files, maps,
 * threads, locks, clocks and dynamic libraries; os_posix.c and os_win32.c fill them in, file.c
 * builds whole-file reads and atomic writes on top. calls.h has the table, system.h the system's
 * own types, atomic.h the atomics, pool.h the threads that share work. Paths are UTF-8. Calls
 * base. */

/* The words for an errno code of either sign. */
static const char *os_error_text(int code);
/* FILE_NOT_FOUND or FILE_ERROR with "PATH: cannot VERB: ...", for a negative errno code. */
static cairn_status os_fail(base *b, int error, const char *verb, const char *path);

/* ---- files ---- */
/* Every file that is read is a regular one; a pipe or a device is not even opened. */
/* A handle for os_calls, or a negative errno code. */
static int64_t os_open_regular(const char *path, os_file_info *info);
/* Appends the whole file to `out`; on failure `out` holds what it held before. */
static cairn_status os_read_file(base *b, const char *path, base_text *out);
/* The same, which tells the file's size. */
static int64_t os_open_sized(const char *path, size_t *size);
/* Reads `size` bytes from byte `at` on; 0 or a negative errno code, EIO when the file ends before.
 * Any number of threads may. [blocks] */
static int os_read_at(int64_t file, uint64_t at, void *data, size_t size);
/* Maps the file read-only; an empty file maps to zero bytes. */
static cairn_status os_map_open(base *b, const char *path, os_map *out);
/* Leaves an empty map. */
static void os_map_close(os_map *map);
/* `path` holds all bytes or what it held before, whatever fails and whoever else writes it: the
 * bytes go to a temporary file in the same directory, which is renamed, and the directory goes to
 * the disk. What a crash leaves the next write removes. A directory, a device, a pipe or a socket is
 * refused: EISDIR, ENXIO. 0 or a negative errno. */
static int os_replace_file(const char *path, const void *data, size_t bytes);
/* The same with a status. */
static cairn_status os_write_file(base *b, const char *path, const void *data, size_t bytes);
/* The same for what only its owner may read. */
static cairn_status os_write_private(base *b, const char *path, const void *data, size_t bytes);
/* Makes the directory and those above it that are missing. 0 or a negative errno code. */
static int os_make_path(const char *path);
/* Modification time in microseconds since 1970; -1 when there is no such file. */
static int64_t os_mtime(const char *path);
/* Whether the character stands between the names of a path. */
static bool os_is_separator(char c);
/* Puts the directory part of `path` before its last separator into `out`, "." if there is none. */
static bool os_directory_of(const char *path, char *out, size_t out_bytes);

/* ---- libraries ---- */
/* NULL when it cannot be opened; `why` then holds the system's reason. */
static void *os_library_open(const char *path, char *why, size_t why_bytes);
/* NULL when the library has no such name. */
static os_function os_library_symbol(void *library, const char *name);
/* NULL is ignored. */
static void os_library_close(void *library);
/* The file that holds `function`; false where unknown. */
static bool os_library_path(os_function function, char *path, size_t path_bytes);

/* ---- threads; locks and conditions are the system's, without errors ---- */
/* Runs run(context) on a thread of its own; stack_bytes 0 is the system's default. `thread` stays
 * where it is until os_thread_join. */
static bool os_thread_start(os_thread *thread, size_t stack_bytes, void (*run)(void *),
                            void *context);
/* Returns when the thread has ended. Once a thread. */
static void os_thread_join(os_thread *thread);
/* Lets other threads run. */
static void os_thread_yield(void);
/* May take OS_SLEEP_LATE_US longer. */
static void os_sleep_us(int64_t us);
/* From now on the calling thread goes after others, where the system knows such of one thread. */
static void os_thread_lower(void);
/* Whether the caller is that thread. */
static bool os_thread_is_self(const os_thread *thread);

/* A mutex is not recursive; OS_MUTEX_INITIAL stands for os_mutex_init. */
static void os_mutex_init(os_mutex *m);
static void os_mutex_lock(os_mutex *m);
static void os_mutex_unlock(os_mutex *m);
static void os_mutex_destroy(os_mutex *m);

/* Waits by the monotonic clock, so that a corrected wall clock neither hangs nor hurries it. */
static void os_cond_init(os_cond *c);
/* Releases the mutex while it waits; may wake early. */
static void os_cond_wait(os_cond *c, os_mutex *m);
/* At most so long; like os_cond_wait it may also wake early. */
static void os_cond_wait_us(os_cond *c, os_mutex *m, int64_t us);
/* Wakes all that wait. */
static void os_cond_broadcast(os_cond *c);
static void os_cond_destroy(os_cond *c);

/* ---- clocks, processors, process ---- */
/* Monotonic, from an arbitrary start. */
static int64_t os_now_us(void);
/* Since 1970, as files' times are; may jump. */
static int64_t os_wall_us(void);
/* What this thread took of a processor: other threads, sleep and a stop in a debugger do not count. */
static int64_t os_thread_us(void);
/* Processors this process may run on, at least 1. */
static int os_cpu_count(void);
/* Host memory that can still be had: what the system has available, or less where the process or
 * its container has a limit. INT64_MAX where unknown. */
static int64_t os_memory_bytes(void);
/* NULL when unset or empty. */
static const char *os_env(const char *name);
/* The running program's own file; false where unknown. */
static bool os_executable_path(char *path, size_t path_bytes);
/* Has `run` called when the process exits by exit() on the main thread, or by its return from main,
 * before every atexit handler, whenever those were registered. glibc runs the destructors of that
 * thread's variables first; elsewhere, and on other threads, this returns false. Once a program. */
static bool os_before_exit(void (*run)(void));

/* os_calls: the raw calls of the system in one replaceable table. A call returns a value >= 0, or a
 * negative errno code on every system, so that callers and tests speak of ENOSPC alike everywhere.
 * Tests put faults into `os_calls`; no one else writes to it. */
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

/* To create is for writing; the file must not exist, and nobody's remove_unused takes it while
 * it is open. A private file is for its owner alone, where the system knows owners. */
enum { OS_OPEN_READ, OS_OPEN_CREATE, OS_OPEN_PRIVATE };

typedef struct os_call_table {
    int64_t (*open)(const char *path, int mode); /* a handle */
    int64_t (*read)(int64_t file, void *data, size_t bytes);
    int64_t (*read_at)(int64_t file, void *data, size_t bytes, uint64_t at); /* any thread's */
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

/* static os_call_table os_calls: the raw calls of this system, defined by os_posix.c or os_win32.c.
 * C++ knows no declaration of a static variable but its definition, so this line stands for it. */

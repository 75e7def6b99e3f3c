/* os_file: whole files, maps, atomic writes, libraries and threads, over the table of raw calls.
 * The same on every system. Interrupted and short reads and writes are gone on with here, so that
 * no other room meets them. */

static cairn_status os_fail(base *b, int error, const char *verb, const char *path) {
    cairn_status status = error == -ENOENT || error == -ENOTDIR ? CAIRN_FILE_NOT_FOUND
                                                                : CAIRN_FILE_ERROR;
    return base_fail(b, status, "%s: cannot %s: %s (%d)", path, verb, os_error_text(error), -error);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Appends up to the end of the file; 0 or a negative errno code. */
static int os_read_rest(base *b, int64_t file, base_text *out) {
    for (;;) {
        int64_t got;
        size_t room = out->capacity - out->size;
        if (room < 4096 + 1) {
            if (!base_text_reserve(b, out, out->size < 65536 ? 65536 : out->size)) return -ENOMEM;
            room = out->capacity - out->size;
        }
        got = os_calls.read(file, out->data + out->size, room - 1);
        if (got == -EINTR) continue;
        if (got <= 0) { out->data[out->size] = '\0'; return (int)got; }
        out->size += (size_t)got;
    }
}

static cairn_status os_read_file(base *b, const char *path, base_text *out) {
    size_t before = out->size;
    os_file_info info = {0, 0, 0, false, false};
    int64_t file = os_calls.open(path, OS_OPEN_READ);
    int error = 0;
    if (file < 0) return os_fail(b, (int)file, "open", path);
    if (os_calls.file_info(file, &info) == 0 && info.regular && info.size > 0 &&
        (info.size > PTRDIFF_MAX - 8192 || !base_text_reserve(b, out, (size_t)info.size + 4096)))
        error = -ENOMEM;
    if (!error) error = os_read_rest(b, file, out);
    os_calls.close(file);
    if (!error) return CAIRN_OK;
    out->size = before;
    if (out->data) out->data[before] = '\0';
    if (error == -ENOMEM) return base_no_memory(b, path, (size_t)info.size);
    return os_fail(b, error, "read", path);
}

/* The size of a regular file, or a negative errno code. */
static int os_regular_size(int64_t file, size_t *size) {
    os_file_info info;
    int error = os_calls.file_info(file, &info);
    if (error) return error;
    if (!info.regular) return info.directory ? -EISDIR : -EINVAL;
    if ((uint64_t)info.size > SIZE_MAX / 2) return -EFBIG;
    *size = (size_t)info.size;
    return 0;
}

/* Reads `size` bytes; 0 or a negative errno code, EIO when the file ends before. */
static int os_read_exact(int64_t file, uint8_t *to, size_t size) {
    const size_t most = (size_t)1 << 30; /* of one call: systems have limits near 2 GiB */
    while (size) {
        int64_t got = os_calls.read(file, to, size < most ? size : most);
        if (got == -EINTR) continue;
        if (got <= 0) return got ? (int)got : -EIO;
        to += got;
        size -= (size_t)got;
    }
    return 0;
}

static cairn_status os_copy_file(base *b, const char *path, size_t alignment, void **memory,
                                 uint8_t **data, size_t *size) {
    int64_t file = os_calls.open(path, OS_OPEN_READ);
    int error;
    if (file < 0) return os_fail(b, (int)file, "open", path);
    error = os_regular_size(file, size);
    *memory = error ? NULL : base_realloc(b, NULL, 0, *size + alignment);
    if (!error && *memory) {
        *data = (uint8_t *)*memory + (alignment - (uintptr_t)*memory % alignment) % alignment;
        error = os_read_exact(file, *data, *size);
    }
    os_calls.close(file);
    if (!error && *memory) return CAIRN_OK;
    if (!error) return base_no_memory(b, path, *size + alignment);
    if (*memory) base_delete(b, *memory, *size + alignment, 1);
    return os_fail(b, error, "read", path);
}

static cairn_status os_map_open(base *b, const char *path, os_map *out) {
    int64_t file = os_calls.open(path, OS_OPEN_READ);
    size_t size = 0;
    int error;
    memset(out, 0, sizeof *out);
    if (file < 0) return os_fail(b, (int)file, "open", path);
    error = os_regular_size(file, &size);
    if (!error && size > 0) {
        out->address = os_calls.map(file, size);
        if (!out->address) error = -ENOMEM;
    }
    os_calls.close(file);
    if (error) return os_fail(b, error, "map", path);
    out->data = out->address ? (const uint8_t *)out->address : (const uint8_t *)"";
    out->size = size;
    return CAIRN_OK;
}

static void os_map_close(os_map *map) {
    if (map->address) os_calls.unmap(map->address, map->size);
    memset(map, 0, sizeof *map);
}

/* ---- writing --------------------------------------------------------------------------------- */

static int os_write_all(int64_t file, const void *data, size_t bytes) {
    const uint8_t *at = (const uint8_t *)data;
    while (bytes > 0) {
        int64_t put = os_calls.write(file, at, bytes);
        if (put == -EINTR) continue;
        if (put < 0) return (int)put;
        if (put == 0) return -ENOSPC;
        at += put;
        bytes -= (size_t)put;
    }
    return 0;
}

/* Writes a new file whole and to the disk; removes it again when that fails. */
static int os_write_new(const char *path, const void *data, size_t bytes) {
    int64_t file = os_calls.open(path, OS_OPEN_CREATE);
    int error, closed;
    if (file < 0) return (int)file;
    error = os_write_all(file, data, bytes);
    if (!error) error = os_calls.sync(file);
    closed = os_calls.close(file);
    if (!error) error = closed;
    if (error) os_calls.remove(path);
    return error;
}

static int os_replace_file(const char *path, const void *data, size_t bytes) {
    static os_atomic serial;
    char temporary[OS_PATH_BYTES];
    int error, size = snprintf(temporary, sizeof temporary, "%s.%d.%d.tmp", path, os_process_id(),
                               (int)os_atomic_add(&serial, 1));
    if (size < 0 || (size_t)size >= sizeof temporary) return -ENAMETOOLONG;
    error = os_write_new(temporary, data, bytes);
    if (error) return error;
    error = os_calls.rename(temporary, path);
    if (error) os_calls.remove(temporary);
    return error;
}

static cairn_status os_write_file(base *b, const char *path, const void *data, size_t bytes) {
    int error = os_replace_file(path, data, bytes);
    return error ? os_fail(b, error, "write", path) : CAIRN_OK;
}

static bool os_is_separator(char c) { return c == '/' || c == OS_SEPARATOR; }

static int os_make_path(const char *path) {
    char part[OS_PATH_BYTES];
    os_file_info info;
    size_t i, size = strlen(path);
    if (size == 0 || size >= sizeof part) return -ENAMETOOLONG;
    for (i = 1; i <= size; i++) {
        if (i < size && !os_is_separator(path[i])) continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (os_calls.info(part, &info) == 0) continue;
        {
            int error = os_calls.make_directory(part);
            if (error && error != -EEXIST && i == size) return error;
        }
    }
    if (os_calls.info(path, &info)) return -ENOENT;
    return info.directory ? 0 : -ENOTDIR;
}

static int64_t os_mtime(const char *path) {
    os_file_info info;
    return os_calls.info(path, &info) ? -1 : info.mtime_us;
}

static bool os_directory_of(const char *path, char *out, size_t out_bytes) {
    size_t size = strlen(path);
    while (size > 0 && !os_is_separator(path[size - 1])) size--;
    if (size > 1) size--;
    if (size == 0) { path = "."; size = 1; }
    if (size >= out_bytes) return false;
    memcpy(out, path, size);
    out[size] = '\0';
    return true;
}

/* ---- libraries and threads ------------------------------------------------------------------- */

static void *os_library_open(const char *path, char *why, size_t why_bytes) {
    return os_calls.library_open(path, false, why, why_bytes);
}

/* Only if the process has it already; to be closed as well. */
BASE_UNUSED static void *os_library_loaded(const char *path) {
    return os_calls.library_open(path, true, NULL, 0);
}

static os_function os_library_symbol(void *library, const char *name) {
    return os_calls.library_symbol(library, name);
}

static void os_library_close(void *library) {
    if (library) os_calls.library_close(library);
}

static bool os_thread_start(os_thread *thread, size_t stack_bytes, void (*run)(void *),
                            void *context) {
    return os_calls.thread_start(thread, stack_bytes, run, context) == 0;
}

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

static int64_t os_open_regular(const char *path, os_file_info *info) {
    int64_t file = -1;
    int error = os_calls.info(path, info);
    if (error || info->regular) {
        file = os_calls.open(path, OS_OPEN_READ);
        if (file < 0) return file;
        error = os_calls.file_info(file, info); /* of what was opened */
    }
    if (!error && info->regular) return file;
    if (file >= 0) os_calls.close(file);
    return error ? error : info->directory ? -EISDIR : -ENXIO;
}

static cairn_status os_read_file(base *b, const char *path, base_text *out) {
    size_t before = out->size;
    os_file_info info = {0, 0, 0, false, false};
    int64_t file = os_open_regular(path, &info);
    int error = 0;
    if (file < 0) return os_fail(b, (int)file, "open", path);
    if (info.size > 0 &&
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

static int64_t os_open_sized(const char *path, size_t *size) {
    os_file_info info;
    int64_t file = os_open_regular(path, &info);
    if (file < 0) return file;
    if ((uint64_t)info.size > SIZE_MAX / 2) {
        os_calls.close(file);
        return -EFBIG;
    }
    *size = (size_t)info.size;
    return file;
}

static int os_read_at(int64_t file, uint64_t at, void *data, size_t size) {
    const size_t most = (size_t)1 << 30; /* of one call: systems have limits near 2 GiB */
    uint8_t *to = (uint8_t *)data;
    while (size) {
        int64_t got = os_calls.read_at(file, to, size < most ? size : most, at);
        if (got == -EINTR) continue;
        if (got <= 0) return got ? (int)got : -EIO;
        to += got;
        at += (uint64_t)got;
        size -= (size_t)got;
    }
    return 0;
}

static cairn_status os_map_open(base *b, const char *path, os_map *out) {
    size_t size = 0;
    int64_t file = os_open_sized(path, &size);
    int error = 0;
    memset(out, 0, sizeof *out);
    if (file < 0) return os_fail(b, (int)file, "open", path);
    if (size > 0) {
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

static bool os_is_separator(char c) { return c == '/' || c == OS_SEPARATOR; }

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

/* Writes a new file whole and to the disk; removes it again when that fails. */
static int os_write_new(const char *path, int mode, const void *data, size_t bytes) {
    int64_t file = os_calls.open(path, mode);
    int error, closed;
    if (file < 0) return (int)file;
    error = os_write_all(file, data, bytes);
    if (!error) error = os_calls.sync(file);
    closed = os_calls.close(file);
    if (!error) error = closed;
    if (error) os_calls.remove(path);
    return error;
}

/* A temporary file beside PATH is called PATH.HEX.tmp, with OS_TEMPORARY_DIGITS digits. */
enum { OS_TEMPORARY_DIGITS = 16 };

typedef struct os_stale { const char *directory, *name; size_t name_bytes; } os_stale;

/* An os_list_entry: removes the temporary file of a process that is no more. */
static bool os_remove_stale_entry(void *user, const char *name) {
    const os_stale *stale = (const os_stale *)user;
    const char *digits = name + stale->name_bytes + 1;
    char path[OS_PATH_BYTES];
    int size;
    if (strlen(name) != stale->name_bytes + 1 + OS_TEMPORARY_DIGITS + 4 ||
        memcmp(name, stale->name, stale->name_bytes) || digits[-1] != '.' ||
        strspn(digits, "0123456789abcdef") != OS_TEMPORARY_DIGITS ||
        strcmp(digits + OS_TEMPORARY_DIGITS, ".tmp"))
        return true;
    size = snprintf(path, sizeof path, "%s/%s", stale->directory, name);
    if (size > 0 && (size_t)size < sizeof path) os_calls.remove_unused(path);
    return true;
}

/* What processes that ended while they wrote `path` left beside it. */
static void os_remove_stale(const char *path, const char *directory) {
    os_stale stale;
    stale.directory = directory;
    stale.name = path + strlen(path);
    while (stale.name > path && !os_is_separator(stale.name[-1])) stale.name--;
    stale.name_bytes = strlen(stale.name);
    os_calls.list(directory, os_remove_stale_entry, &stale);
}

/* Digits that differ from process to process and from call to call; a collision is not an error. */
static uint64_t os_temporary_number(void) {
    static os_atomic serial;
    uint64_t x = (uint64_t)os_wall_us() ^ (uint64_t)os_now_us() << 20 ^
                 (uint64_t)os_process_id() << 40 ^ (uint64_t)(uintptr_t)&x ^
                 (uint64_t)(uint32_t)os_atomic_add(&serial, 1) << 8;
    x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
    x = (x ^ x >> 27) * 0x81dadef4bc2dd44du;
    return x ^ x >> 33;
}

/* One try with a name of its own; -EEXIST: the name, or then the file, was another's. */
static int os_try_replace(const char *path, int mode, const void *data, size_t bytes) {
    char temporary[OS_PATH_BYTES];
    int error, size = snprintf(temporary, sizeof temporary, "%s.%016llx.tmp", path,
                               (unsigned long long)os_temporary_number());
    if (size < 0 || (size_t)size >= sizeof temporary) return -ENAMETOOLONG;
    error = os_write_new(temporary, mode, data, bytes);
    if (error) return error;
    error = os_calls.rename(temporary, path);
    if (error) os_calls.remove(temporary);
    return error == -ENOENT ? -EEXIST : error; /* closed, it was taken for one left behind */
}

/* Renaming over it would take a device, a pipe or a socket away from the whole system. */
static int os_replace(const char *path, int mode, const void *data, size_t bytes) {
    char directory[OS_PATH_BYTES];
    os_file_info info;
    int error = -EEXIST;
    if (!*path) return -ENOENT;
    if (!os_calls.info(path, &info) && !info.regular) return info.directory ? -EISDIR : -ENXIO;
    if (!os_directory_of(path, directory, sizeof directory)) return -ENAMETOOLONG;
    os_remove_stale(path, directory);
    for (int i = 0; i < 16 && error == -EEXIST; i++)
        error = os_try_replace(path, mode, data, bytes);
    return error ? error : os_calls.sync_directory(directory);
}

static int os_replace_file(const char *path, const void *data, size_t bytes) {
    return os_replace(path, OS_OPEN_CREATE, data, bytes);
}

static cairn_status os_write_file(base *b, const char *path, const void *data, size_t bytes) {
    int error = os_replace(path, OS_OPEN_CREATE, data, bytes);
    return error ? os_fail(b, error, "write", path) : CAIRN_OK;
}

static cairn_status os_write_private(base *b, const char *path, const void *data,
                                                 size_t bytes) {
    int error = os_replace(path, OS_OPEN_PRIVATE, data, bytes);
    return error ? os_fail(b, error, "write", path) : CAIRN_OK;
}

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

/* ---- libraries and threads ------------------------------------------------------------------- */

static void *os_library_open(const char *path, char *why, size_t why_bytes) {
    return os_calls.library_open(path, false, why, why_bytes);
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

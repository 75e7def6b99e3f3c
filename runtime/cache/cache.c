/* cache: the folder and its entries.
 *
 * An entry, little-endian:
 *     0 "CAIRNKB1"   8 u32 header bytes (256)   12 u32 zero   16 u64 payload bytes
 *    24 u32 compile time in us   28 u32 zero   32 key [32]   64 arch [16]   80 name [48]
 *   128 compiler [96]   224 checksum [32] of bytes 0 to 223 and the payload   256 payload */

#define CACHE_HEADER_BYTES 256
#define CACHE_CHECKED_BYTES 224
#define CACHE_LARGEST_ENTRY (64 << 20)
#define CACHE_SUFFIX ".kernel"
#define CACHE_DEFAULT_LIMIT ((int64_t)256 << 20)
#define CACHE_HOUR_US ((int64_t)3600 * 1000000)

typedef struct cache_item { struct cache_item *next; cache_key key; base_text file; } cache_item;

/* ---- entries --------------------------------------------------------------------------------- */

static void cache_store32(uint8_t *p, uint32_t v) {
    int i;
    for (i = 0; i < 4; i++) p[i] = (uint8_t)(v >> (8 * i));
}

static cache_key cache_checksum(const uint8_t *header, const uint8_t *payload, size_t bytes) {
    cache_hash hash;
    cache_hash_begin(&hash, "cairn entry");
    cache_hash_add(&hash, header, CACHE_CHECKED_BYTES);
    cache_hash_add(&hash, payload, bytes);
    return cache_hash_end(&hash);
}

static void cache_entry_free(base *b, cache_entry *entry) {
    base_text_free(b, &entry->file);
    memset(entry, 0, sizeof *entry);
}

static void cache_copy_text(char *to, const uint8_t *from, size_t bytes) {
    memcpy(to, from, bytes);
    to[bytes - 1] = '\0';
}

/* Fills all of `entry` but its file from the file's bytes; false when anything is amiss. */
static bool cache_parse(const cache_key *key, const uint8_t *bytes, size_t size,
                        cache_entry *entry) {
    cache_key sum;
    if (size < CACHE_HEADER_BYTES || memcmp(bytes, "CAIRNKB1", 8) ||
        base_load(bytes + 8, 4) != CACHE_HEADER_BYTES || memcmp(bytes + 32, key, sizeof *key) ||
        base_load(bytes + 16, 8) != size - CACHE_HEADER_BYTES || size == CACHE_HEADER_BYTES)
        return false;
    entry->data = bytes + CACHE_HEADER_BYTES;
    entry->size = size - CACHE_HEADER_BYTES;
    sum = cache_checksum(bytes, entry->data, entry->size);
    if (memcmp(bytes + CACHE_CHECKED_BYTES, &sum, sizeof sum)) return false;
    entry->compile_us = (uint32_t)base_load(bytes + 24, 4);
    cache_copy_text(entry->arch, bytes + 64, sizeof entry->arch);
    cache_copy_text(entry->name, bytes + 80, sizeof entry->name);
    cache_copy_text(entry->compiler, bytes + 128, sizeof entry->compiler);
    return true;
}

/* Puts a header before `data`: `file` becomes what is stored. */
static bool cache_format(base *b, const cache_key *key, const cache_entry *entry, base_text *file) {
    uint8_t header[CACHE_HEADER_BYTES] = {0};
    cache_key sum;
    memcpy(header, "CAIRNKB1", 8);
    cache_store32(header + 8, CACHE_HEADER_BYTES);
    cache_store64(header + 16, entry->size);
    cache_store32(header + 24, entry->compile_us);
    memcpy(header + 32, key, sizeof *key);
    memcpy(header + 64, entry->arch, sizeof entry->arch);
    memcpy(header + 80, entry->name, sizeof entry->name);
    memcpy(header + 128, entry->compiler, sizeof entry->compiler);
    sum = cache_checksum(header, entry->data, entry->size);
    memcpy(header + CACHE_CHECKED_BYTES, &sum, sizeof sum);
    return base_text_reserve(b, file, sizeof header + entry->size) &&
           base_text_add(b, file, header, sizeof header) &&
           base_text_add(b, file, entry->data, entry->size);
}

static void cache_path(const cache *c, const cache_key *key, char *path /* [OS_PATH_BYTES] */) {
    char name[2 * sizeof *key + 1];
    size_t i;
    for (i = 0; i < sizeof *key; i++) snprintf(name + 2 * i, 3, "%02x", key->bytes[i]);
    snprintf(path, OS_PATH_BYTES, "%s%c%s" CACHE_SUFFIX, c->directory, OS_SEPARATOR, name);
}

/* ---- open ------------------------------------------------------------------------------------ */

static bool cache_join(char *out, size_t bytes, const char *root, const char *part) {
    int size = root ? snprintf(out, bytes, "%s%s", root, part) : -1;
    return size > 0 && (size_t)size < bytes;
}

static bool cache_place(const char *asked, char *out, size_t bytes) {
    if (asked && *asked && strcmp(asked, "auto")) return cache_join(out, bytes, asked, "");
    if (os_env("CAIRN_CACHE_DIR")) return cache_join(out, bytes, os_env("CAIRN_CACHE_DIR"), "");
#ifdef _WIN32
    return cache_join(out, bytes, os_env("LOCALAPPDATA"), "\\cairn\\cache");
#else
    return cache_join(out, bytes, os_env("XDG_CACHE_HOME"), "/cairn") ||
           cache_join(out, bytes, os_env("HOME"), "/.cache/cairn");
#endif
}

static void cache_open(base *b, const cache_options *options, cache *c) {
    memset(c, 0, sizeof *c);
    c->owner = b;
    c->mode = options->mode;
    c->limit_bytes = options->limit_bytes > 0 ? options->limit_bytes : CACHE_DEFAULT_LIMIT;
    os_mutex_init(&c->lock);
    if (c->mode == CACHE_OFF || c->mode == CACHE_MEMORY) return;
    if (cache_place(options->directory, c->directory, sizeof c->directory)) return;
    base_log(b, CAIRN_LOG_WARN, "no folder for compiled kernels: set jit.cache_dir, "
             "CAIRN_CACHE_DIR or HOME; kernels are compiled at every start");
    c->mode = CACHE_OFF;
}

static void cache_close(cache *c) {
    while (c->items) {
        cache_item *item = c->items;
        c->items = item->next;
        base_text_free(c->owner, &item->file);
        base_delete(c->owner, item, 1, sizeof *item);
    }
    if (c->owner) os_mutex_destroy(&c->lock);
    c->owner = NULL;
}

/* ---- get ------------------------------------------------------------------------------------- */

static bool cache_get_memory(cache *c, base *b, const cache_key *key, cache_entry *out) {
    cache_item *item;
    bool copied = false;
    os_mutex_lock(&c->lock);
    for (item = c->items; item && memcmp(&item->key, key, sizeof *key); item = item->next) {}
    if (item) copied = base_text_add(b, &out->file, item->file.data, item->file.size);
    os_mutex_unlock(&c->lock);
    return copied && cache_parse(key, (const uint8_t *)out->file.data, out->file.size, out);
}

/* Removes a damaged file, unless another process has replaced it since it was read. */
static void cache_drop(cache *c, base *b, const char *path, const os_file_info *seen) {
    os_file_info now;
    os_atomic_add(&c->damaged, 1);
    base_log(b, CAIRN_LOG_WARN, "%s is damaged and will be compiled again", path);
    if (c->mode != CACHE_READ_WRITE || os_calls.info(path, &now)) return;
    if (now.identity == seen->identity && now.size == seen->size && now.mtime_us == seen->mtime_us)
        os_calls.remove(path);
}

static bool cache_get_file(cache *c, base *b, const cache_key *key, cache_entry *out) {
    char path[OS_PATH_BYTES];
    os_file_info info;
    cache_path(c, key, path);
    if (os_calls.info(path, &info) || !info.regular) return false;
    if (info.size <= CACHE_LARGEST_ENTRY && os_read_file(b, path, &out->file)) return false;
    if (info.size > CACHE_LARGEST_ENTRY ||
        !cache_parse(key, (const uint8_t *)out->file.data, out->file.size, out)) {
        cache_drop(c, b, path, &info);
        return false;
    }
    if (c->mode == CACHE_READ_WRITE && os_wall_us() - info.mtime_us > 24 * CACHE_HOUR_US)
        os_calls.touch(path); /* pruning goes by last use */
    return true;
}

static bool cache_get(cache *c, base *b, const cache_key *key, cache_entry *out) {
    bool found = false;
    memset(out, 0, sizeof *out);
    if (c->mode == CACHE_MEMORY) found = cache_get_memory(c, b, key, out);
    else if (c->mode != CACHE_OFF) found = cache_get_file(c, b, key, out);
    if (!found) cache_entry_free(b, out);
    os_atomic_add(found ? &c->hits : &c->misses, 1);
    return found;
}

/* ---- prune ----------------------------------------------------------------------------------- */

typedef struct cache_file { char name[80]; int64_t size, used_us; } cache_file;
typedef struct cache_listing { cache *c; base *b; base_text files; int64_t bytes; } cache_listing;

static bool cache_ends_with(const char *text, const char *end) {
    size_t size = strlen(text), tail = strlen(end);
    return size >= tail && !strcmp(text + size - tail, end);
}

/* Ends the listing at the first one. */
static bool cache_see_entry(void *user, const char *name) {
    *(bool *)user = cache_ends_with(name, CACHE_SUFFIX);
    return !*(bool *)user;
}

static bool cache_is_empty(cache *c) {
    bool any = false;
    if (c->mode == CACHE_MEMORY) any = c->items != NULL;
    else if (c->mode != CACHE_OFF) os_calls.list(c->directory, cache_see_entry, &any);
    return !any;
}

static bool cache_list_entry(void *user, const char *name) {
    cache_listing *list = (cache_listing *)user;
    char path[OS_PATH_BYTES];
    os_file_info info;
    cache_file file;
    bool temporary = cache_ends_with(name, ".tmp") && strstr(name, CACHE_SUFFIX);
    if (!temporary && !cache_ends_with(name, CACHE_SUFFIX)) return true;
    snprintf(path, sizeof path, "%s%c%.120s", list->c->directory, OS_SEPARATOR, name);
    if (os_calls.info(path, &info) || !info.regular) return true;
    if (temporary) { /* left by a process that died in the middle */
        if (os_wall_us() - info.mtime_us > CACHE_HOUR_US) os_calls.remove(path);
        return true;
    }
    if (strlen(name) >= sizeof file.name) return true;
    memset(&file, 0, sizeof file);
    memcpy(file.name, name, strlen(name));
    file.size = info.size;
    file.used_us = info.mtime_us;
    list->bytes += info.size;
    return base_text_add(list->b, &list->files, &file, sizeof file);
}

static int cache_compare_use(const void *left, const void *right) {
    int64_t a = ((const cache_file *)left)->used_us, b = ((const cache_file *)right)->used_us;
    return (a > b) - (a < b);
}

static void cache_prune_now(cache *c, base *b) {
    cache_listing list;
    cache_file *files;
    size_t i, count;
    char path[OS_PATH_BYTES];
    memset(&list, 0, sizeof list);
    list.c = c;
    list.b = b;
    os_calls.list(c->directory, cache_list_entry, &list);
    files = (cache_file *)(void *)list.files.data;
    count = list.files.size / sizeof *files;
    if (list.bytes > c->limit_bytes) {
        qsort(files, count, sizeof *files, cache_compare_use);
        for (i = 0; i < count && list.bytes > c->limit_bytes / 5 * 4; i++) {
            snprintf(path, sizeof path, "%s%c%s", c->directory, OS_SEPARATOR, files[i].name);
            if (os_calls.remove(path) == 0) list.bytes -= files[i].size;
        }
    }
    base_text_free(b, &list.files);
}

/* At most once an hour over all processes, by the age of a stamp file. */
static void cache_prune(cache *c, base *b) {
    char stamp[OS_PATH_BYTES];
    bool due;
    os_mutex_lock(&c->lock);
    due = os_now_us() >= c->next_prune_us;
    if (due) c->next_prune_us = os_now_us() + CACHE_HOUR_US;
    os_mutex_unlock(&c->lock);
    if (!due) return;
    snprintf(stamp, sizeof stamp, "%s%cpruned", c->directory, OS_SEPARATOR);
    if (os_wall_us() - os_mtime(stamp) < CACHE_HOUR_US) return;
    if (os_replace_file(stamp, "", 0) == 0) cache_prune_now(c, b);
}

/* ---- put ------------------------------------------------------------------------------------- */

static void cache_put_memory(cache *c, base *b, const cache_key *key, base_text *file) {
    cache_item *item = (cache_item *)base_new(b, 1, sizeof *item);
    if (!item) return;
    item->key = *key;
    item->file = *file;
    memset(file, 0, sizeof *file);
    os_mutex_lock(&c->lock);
    item->next = c->items;
    c->items = item;
    os_mutex_unlock(&c->lock);
}

/* A folder that cannot be written stays so: said once, and not tried again in this run. */
static void cache_write_failed(cache *c, base *b, int error) {
    bool lasting = error == -EACCES || error == -EPERM || error == -EROFS || error == -ENOSPC;
    if (lasting && os_atomic_add(&c->no_writes, 1) == 0)
        base_log(b, CAIRN_LOG_WARN, "%s: %s; compiled kernels are not kept", c->directory,
                 os_error_text(error));
}

static void cache_put_file(cache *c, base *b, const cache_key *key, const base_text *file) {
    char path[OS_PATH_BYTES];
    int error = os_atomic_load(&c->no_writes) ? 0 : os_make_path(c->directory);
    if (os_atomic_load(&c->no_writes)) return;
    cache_path(c, key, path);
    if (!error) error = os_replace_file(path, file->data, file->size);
    if (error) cache_write_failed(c, b, error);
    else cache_prune(c, b);
}

static void cache_put(cache *c, base *b, const cache_key *key, const cache_entry *entry) {
    base_text file = {0};
    if (c->mode == CACHE_OFF || c->mode == CACHE_READ_ONLY) return;
    if (entry->size == 0 || entry->size > CACHE_LARGEST_ENTRY - CACHE_HEADER_BYTES) return;
    if (cache_format(b, key, entry, &file)) {
        if (c->mode == CACHE_MEMORY) cache_put_memory(c, b, key, &file);
        else cache_put_file(c, b, key, &file);
    }
    base_text_free(b, &file);
}

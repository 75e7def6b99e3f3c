/* shards: the files, and the space that their tensors share (see shards.h). */

static cairn_status shards_open_file(base *b, shards *s, const char *path, bool map, int *file) {
    shards_file *f;
    cairn_status status = CAIRN_OK;
    if (!s->files) s->files = (shards_file *)base_new(b, SHARDS_FILES, sizeof *s->files);
    if (!s->files) return base_no_memory(b, path, SHARDS_FILES * sizeof *s->files);
    if (s->file_count == SHARDS_FILES)
        return base_fail(b, CAIRN_UNSUPPORTED, "%s: the weights lie in more than %d files", path,
                         SHARDS_FILES);
    f = &s->files[s->file_count];
    if (map) {
        if ((status = os_map_open(b, path, &f->map))) return status;
        f->size = f->map.size;
    } else {
        f->handle = os_open_sized(path, &f->size);
        if (f->handle < 0) return os_fail(b, (int)f->handle, "open", path);
    }
    f->open = true;
    *file = s->file_count++;
    return base_text_add(b, &f->path, path, strlen(path)) ? CAIRN_OK
                                                          : base_no_memory(b, path, strlen(path));
}

static const uint8_t *shards_read(const shards *s, int file, uint64_t at, size_t bytes,
                                  void *buffer) {
    const shards_file *f = &s->files[file];
    if (f->map.data) return f->map.data + at;
    return os_read_at(f->handle, at, buffer, bytes) ? NULL : (const uint8_t *)buffer;
}

static shards_tensor *shards_add(base *b, shards *s) {
    if (s->count == s->room) {
        size_t room = s->room ? 2 * s->room : 256, size = sizeof *s->tensors;
        shards_tensor *more = (shards_tensor *)base_realloc(b, s->tensors, s->room * size,
                                                            room * size);
        if (!more) {
            base_no_memory(b, "the names of tensors", room * size);
            return NULL;
        }
        s->tensors = more, s->room = room;
    }
    memset(&s->tensors[s->count], 0, sizeof *s->tensors);
    s->tensors[s->count].part = -1;
    return &s->tensors[s->count++];
}

static int shards_name_order(const void *left, const void *right) {
    return strcmp(((const shards_tensor *)left)->name, ((const shards_tensor *)right)->name);
}

static int shards_place_order(const void *left, const void *right) {
    const shards_tensor *a = (const shards_tensor *)left, *c = (const shards_tensor *)right;
    return (a->to > c->to) - (a->to < c->to);
}

static cairn_status shards_sort(base *b, shards *s) {
    if (s->count) qsort(s->tensors, s->count, sizeof *s->tensors, shards_name_order);
    for (size_t i = 1; i < s->count; i++)
        if (!strcmp(s->tensors[i - 1].name, s->tensors[i].name))
            return base_fail(b, CAIRN_BAD_FILE, "%s: the tensor '%s' stands twice",
                             s->files[s->tensors[i].file].path.data, s->tensors[i].name);
    return CAIRN_OK;
}

static shards_tensor *shards_find(const shards *s, const char *name) {
    size_t low = 0, high = s->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, s->tensors[middle].name);
        if (order == 0) return &s->tensors[middle];
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

static void shards_seal(shards *s) {
    if (s->count) qsort(s->tensors, s->count, sizeof *s->tensors, shards_place_order);
}

/* The last tensor that begins at `at` or before; the first without one. */
static size_t shards_place(const shards *s, uint64_t at) {
    size_t low = 0, high = s->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (s->tensors[middle].to <= at) low = middle;
        else high = middle;
    }
    return low;
}

static bool shards_gather(const shards *s, uint64_t at, size_t bytes, uint8_t *buffer) {
    for (size_t i = shards_place(s, at), part; bytes; at += part, buffer += part, bytes -= part) {
        const shards_tensor *t;
        const uint8_t *data;
        while (i < s->count && at >= s->tensors[i].to + s->tensors[i].bytes) i++;
        t = i < s->count ? &s->tensors[i] : NULL;
        part = bytes;
        if (!t || at < t->to) {
            if (t && t->to - at < part) part = (size_t)(t->to - at);
            memset(buffer, 0, part);
            continue;
        }
        if (t->to + t->bytes - at < part) part = (size_t)(t->to + t->bytes - at);
        data = shards_read(s, t->file, t->from + (at - t->to), part, buffer);
        if (!data) return false;
        if (data != buffer) memcpy(buffer, data, part);
    }
    return true;
}

static const uint8_t *shards_fetch(const shards *s, uint64_t at, size_t bytes, void *buffer) {
    const shards_tensor *t = &s->tensors[shards_place(s, at)];
    if (s->count && at >= t->to && at + bytes <= t->to + t->bytes)
        return shards_read(s, t->file, t->from + (at - t->to), bytes, buffer);
    return shards_gather(s, at, bytes, (uint8_t *)buffer) ? (const uint8_t *)buffer : NULL;
}

static void shards_close(base *b, shards *s) {
    for (int i = 0; i < s->file_count; i++) {
        shards_file *f = &s->files[i];
        if (f->open && f->map.data) os_map_close(&f->map);
        else if (f->open) os_calls.close(f->handle);
        base_text_free(b, &f->path);
    }
    base_delete(b, s->files, SHARDS_FILES, sizeof *s->files);
    if (s->room) base_realloc(b, s->tensors, s->room * sizeof *s->tensors, 0);
    memset(s, 0, sizeof *s);
}

/* safetensors: the list of such a file's tensors. A file is u64 bytes of a header, the header,
 * which is JSON: {"NAME": {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": ..}, and the
 * data, which the tensors fill without a gap and without lying on each other. */

enum { SAFETENSORS_MOST_HEADER = 100 << 20 };

typedef struct safetensors_reader {
    base *b;
    shards *s;
    int file;
    jdoc header;
    const char *path;
    const char *name; /* of the tensor that is read */
} safetensors_reader;

static cairn_status safetensors_fault(safetensors_reader *r, cairn_status status, const char *why) {
    return base_fail(r->b, status, "%s: tensor '%.100s': %s", r->path, r->name, why);
}

/* The block type of a dtype, as GGUF numbers it; -1: none has the number. */
static int safetensors_type(const jdoc *j, uint32_t dtype, int *bytes) {
    static const struct { const char *name; int type, bytes; } types[] = {
        {"F32", BLOCK_F32, 4}, {"F16", BLOCK_F16, 2}, {"BF16", BLOCK_BF16, 2}, {"I8", 24, 1},
        {"I16", 25, 2}, {"I32", 26, 4}, {"I64", 27, 8}, {"F64", 28, 8}};
    for (size_t i = 0; i < BASE_COUNT(types); i++)
        if (jdoc_says(j, dtype, types[i].name)) return *bytes = types[i].bytes, types[i].type;
    return -1;
}

/* The shape, and the bytes that it comes to. */
static cairn_status safetensors_shape(safetensors_reader *r, uint32_t shape, uint64_t bytes,
                                      shards_tensor *t) {
    const jdoc *j = &r->header;
    if (!jdoc_is(j, shape, JDOC_ARRAY) || j->nodes[shape].count > 4)
        return safetensors_fault(r, CAIRN_BAD_FILE, "a shape of up to 4 numbers is expected");
    t->ndim = (int)j->nodes[shape].count;
    for (int i = 0; i < t->ndim; i++) {
        uint64_t extent;
        if (!jdoc_whole(j, shape + 1 + (uint32_t)i, INT64_MAX, &extent) ||
            (extent && bytes > (uint64_t)INT64_MAX / extent))
            return safetensors_fault(r, CAIRN_BAD_FILE, "its shape is no shape");
        t->shape[i] = (int64_t)extent;
        bytes *= extent;
    }
    t->bytes = bytes;
    return CAIRN_OK;
}

static cairn_status safetensors_tensor(safetensors_reader *r, uint32_t name, uint64_t start) {
    const jdoc *j = &r->header;
    const uint32_t at = name + 1, place = jdoc_get(j, at, "data_offsets");
    const uint64_t size = r->s->files[r->file].size - start;
    const size_t name_bytes = j->nodes[name].bytes;
    const uint32_t dtype = jdoc_get(j, at, "dtype");
    shards_tensor *t;
    uint64_t begin, end;
    int bytes = 0;
    cairn_status status;
    if (name_bytes == 0 || name_bytes >= SHARDS_NAME_BYTES || strlen(r->name) < name_bytes)
        return safetensors_fault(r, CAIRN_BAD_FILE, "not a name of 1 to 127 bytes without NUL");
    if (!jdoc_is(j, place, JDOC_ARRAY) || j->nodes[place].count != 2 ||
        !jdoc_whole(j, place + 1, size, &begin) || !jdoc_whole(j, place + 2, size, &end))
        return safetensors_fault(r, CAIRN_BAD_FILE, "its data_offsets do not lie in the file");
    if (!(t = shards_add(r->b, r->s))) return r->b->status;
    memcpy(t->name, r->name, name_bytes);
    t->file = r->file;
    if (!dtype || (t->type = safetensors_type(j, dtype, &bytes)) < 0)
        return safetensors_fault(r, CAIRN_UNSUPPORTED, "its dtype is not supported; F32, F16 and "
                                 "BF16 are");
    if ((status = safetensors_shape(r, jdoc_get(j, at, "shape"), (uint64_t)bytes, t)))
        return status;
    if (end < begin || end - begin != t->bytes)
        return safetensors_fault(r, CAIRN_BAD_FILE, "its data_offsets do not hold its shape");
    t->from = start + begin;
    return CAIRN_OK;
}

static int safetensors_order(const void *left, const void *right) {
    const shards_tensor *a = (const shards_tensor *)left, *c = (const shards_tensor *)right;
    return a->from != c->from ? (a->from > c->from ? 1 : -1) : (a->bytes > c->bytes) -
                                                              (a->bytes < c->bytes);
}

/* Whether the tensors from `first` on fill the file. */
static cairn_status safetensors_check_places(safetensors_reader *r, size_t first, uint64_t at) {
    shards *s = r->s;
    if (s->count > first)
        qsort(s->tensors + first, s->count - first, sizeof *s->tensors, safetensors_order);
    for (size_t i = first; i < s->count; i++) {
        r->name = s->tensors[i].name;
        if (s->tensors[i].from != at)
            return safetensors_fault(r, CAIRN_BAD_FILE, s->tensors[i].from < at
                                     ? "its data lie on another's" : "a gap lies before its data");
        at += s->tensors[i].bytes;
    }
    if (at == s->files[r->file].size) return CAIRN_OK;
    return base_fail(r->b, CAIRN_BAD_FILE, "%s: the tensors end at byte %llu, the file at %llu",
                     r->path, (unsigned long long)at,
                     (unsigned long long)s->files[r->file].size);
}

/* Reads the header to `text`, with a NUL behind it. */
static cairn_status safetensors_header(safetensors_reader *r, base_text *text) {
    const uint64_t size = r->s->files[r->file].size;
    uint8_t head[8];
    const uint8_t *data = size < 8 ? NULL : shards_read(r->s, r->file, 0, 8, head);
    const uint64_t bytes = data ? base_load(data, 8) : 0;
    if (size < 8 || bytes > size - 8 || bytes > SAFETENSORS_MOST_HEADER)
        return base_fail(r->b, CAIRN_BAD_FILE, "%s: byte 0: a header of %llu bytes in a file of "
                         "%llu: not a safetensors file, or cut short", r->path,
                         (unsigned long long)bytes, (unsigned long long)size);
    if (!base_text_reserve(r->b, text, (size_t)bytes))
        return base_no_memory(r->b, r->path, (size_t)bytes);
    data = data ? shards_read(r->s, r->file, 8, (size_t)bytes, text->data) : NULL;
    if (!data) return os_fail(r->b, -EIO, "read", r->path);
    if (data != (const uint8_t *)text->data) memcpy(text->data, data, (size_t)bytes);
    text->size = (size_t)bytes;
    text->data[bytes] = '\0';
    return CAIRN_OK;
}

static cairn_status safetensors_read(safetensors_reader *r, base_text *text) {
    const jdoc *j = &r->header;
    const size_t first = r->s->count;
    cairn_status status = safetensors_header(r, text);
    if (!status) status = jdoc_parse(r->b, r->path, text->data, text->size, &r->header);
    if (!status && j->nodes->kind != JDOC_OBJECT)
        status = base_fail(r->b, CAIRN_BAD_FILE, "%s: the header is no object", r->path);
    for (uint32_t at = 1; !status && at < j->nodes->end; at = j->nodes[at + 1].end) {
        if (jdoc_says(j, at, "__metadata__")) continue;
        j->text[j->nodes[at].at + j->nodes[at].bytes] = '\0'; /* the quote behind it, or before */
        r->name = j->text + j->nodes[at].at;
        status = safetensors_tensor(r, at, 8 + text->size);
    }
    return status ? status : safetensors_check_places(r, first, 8 + text->size);
}

static cairn_status safetensors_list(base *b, shards *s) {
    const int file = s->file_count - 1;
    safetensors_reader r = {b, s, file, {NULL, NULL, NULL, {NULL, 0, 0}}, s->files[file].path.data,
                            ""};
    base_text text = {NULL, 0, 0};
    cairn_status status = safetensors_read(&r, &text);
    jdoc_close(b, &r.header);
    base_text_free(b, &text);
    return status;
}

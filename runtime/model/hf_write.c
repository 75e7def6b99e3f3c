/* hf: reading a folder's files, and writing what they say as GGUF has it (see hf.h). */

/* ---- files ----------------------------------------------------------------------------------- */

/* Reads a file of the folder, as JSON where its name says so; one that may be missing stays empty. */
static cairn_status hf_read_file(hf_folder *h, const char *name, int64_t most, bool optional,
                                 hf_file *f) {
    const char *dot = strrchr(name, '.');
    os_file_info info;
    cairn_status status;
    if (!base_text_print(h->b, &f->path, "%s/%s", h->path, name))
        return base_no_memory(h->b, name, strlen(h->path));
    if (optional && os_calls.info(f->path.data, &info) == -ENOENT) return CAIRN_OK;
    if (!os_calls.info(f->path.data, &info) && info.size > most)
        return base_fail(h->b, CAIRN_BAD_FILE, "%s: %lld bytes; at most %lld are sensible",
                         f->path.data, (long long)info.size, (long long)most);
    if ((status = os_read_file(h->b, f->path.data, &f->text))) return status;
    f->there = true;
    if (strcmp(dot, ".json")) return CAIRN_OK;
    if ((status = jdoc_parse(h->b, f->path.data, f->text.data ? f->text.data : (char *)"",
                             f->text.size, &f->doc)))
        return status;
    return f->doc.nodes->kind == JDOC_OBJECT
               ? CAIRN_OK : base_fail(h->b, CAIRN_BAD_FILE, "%s: no JSON object", f->path.data);
}

static void hf_close_file(base *b, hf_file *f) {
    jdoc_close(b, &f->doc);
    base_text_free(b, &f->path);
    base_text_free(b, &f->text);
}

static cairn_status hf_wrong(hf_folder *h, const hf_file *f, const char *key, const char *wanted) {
    return base_fail(h->b, CAIRN_BAD_FILE, "%s: '%s': %s is expected", f->path.data, key, wanted);
}

/* Of a part of the config that has no code, or is not certain to mean the same. */
static cairn_status hf_refuse(hf_folder *h, const char *key, const char *supported) {
    return base_fail(h->b, CAIRN_UNSUPPORTED, "%s: '%s' is not supported so; %s is",
                     h->config.path.data, key, supported);
}

/* ---- writing GGUF ---------------------------------------------------------------------------- */

static void hf_put(hf_folder *h, base_text *to, const void *bytes, size_t count) {
    if (!base_text_add(h->b, to, bytes, count)) h->full = true;
}

static void hf_put_number(hf_folder *h, base_text *to, uint64_t value, int bytes) {
    uint8_t each[8];
    for (int i = 0; i < bytes; i++) each[i] = (uint8_t)(value >> 8 * i);
    hf_put(h, to, each, (size_t)bytes);
}

static void hf_put_string(hf_folder *h, base_text *to, const char *text, size_t bytes) {
    hf_put_number(h, to, bytes, 8);
    hf_put(h, to, text, bytes);
}

/* The head of a key; "NAME" or, with a dot in front, "ARCHITECTURE.NAME". */
static void hf_key(hf_folder *h, const char *name, uint32_t type) {
    char whole[96];
    snprintf(whole, sizeof whole, "%s%s", *name == '.' ? h->family->architecture : "", name);
    hf_put_string(h, &h->keys, whole, strlen(whole));
    hf_put_number(h, &h->keys, type, 4);
    h->key_count++;
}

static void hf_key_u32(hf_folder *h, const char *name, uint64_t value) {
    hf_key(h, name, GGUF_U32);
    hf_put_number(h, &h->keys, value, 4);
}

static void hf_key_f32(hf_folder *h, const char *name, double value) {
    float rounded = (float)value;
    uint32_t bits;
    memcpy(&bits, &rounded, 4);
    hf_key(h, name, GGUF_F32);
    hf_put_number(h, &h->keys, bits, 4);
}

static void hf_key_bool(hf_folder *h, const char *name, bool value) {
    hf_key(h, name, GGUF_BOOL);
    hf_put_number(h, &h->keys, value, 1);
}

static void hf_key_text(hf_folder *h, const char *name, const char *text, size_t bytes) {
    hf_key(h, name, GGUF_STRING);
    hf_put_string(h, &h->keys, text, bytes);
}

/* The head of an array, its elements follow. */
static void hf_key_array(hf_folder *h, const char *name, uint32_t element, uint64_t count) {
    hf_key(h, name, GGUF_ARRAY);
    hf_put_number(h, &h->keys, element, 4);
    hf_put_number(h, &h->keys, count, 8);
}

/* A tensor's description; its data lie at the next place, which is returned. */
static uint64_t hf_describe(hf_folder *h, const char *name, int type, int ndim,
                            const int64_t *shape, uint64_t bytes) {
    const uint64_t at = h->next;
    hf_put_string(h, &h->tensors, name, strlen(name));
    hf_put_number(h, &h->tensors, (uint64_t)ndim, 4);
    for (int i = ndim; i-- > 0;) hf_put_number(h, &h->tensors, (uint64_t)shape[i], 8);
    hf_put_number(h, &h->tensors, (uint64_t)type, 4);
    hf_put_number(h, &h->tensors, at, 8);
    h->tensor_count++;
    h->next = (at + bytes + HF_ALIGNMENT - 1) / HF_ALIGNMENT * HF_ALIGNMENT;
    return at;
}

/* A tensor of f32 whose data are made here, before any other. */
static void hf_make_vector(hf_folder *h, const char *name, const double *values, int count) {
    const int64_t shape = count;
    hf_describe(h, name, BLOCK_F32, 1, &shape, 4 * (uint64_t)count);
    for (int i = 0; i < count; i++) {
        float value = (float)values[i];
        hf_put(h, &h->made, &value, 4); /* as the plan reads it: all hosts are little-endian */
    }
    while (h->made.size % HF_ALIGNMENT && !h->full) hf_put(h, &h->made, "", 1);
}

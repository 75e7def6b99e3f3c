/* gguf: the reader.
 *
 * File: "GGUF", u32 version, u64 tensors, u64 keys; keys as {string, u32 type, value}; tensors as
 * {string, u32 dims, u64 shape[dims], u32 block type, u64 offset}; padding; data. A string is
 * {u64 bytes, bytes}; an array is {u32 type, u64 count, values}. All little-endian. */

#define GGUF_MAX_COUNT (1 << 20) /* keys, and tensors, in a file */
#define GGUF_MAX_DEPTH 4         /* of arrays inside arrays */
static size_t gguf_first_bytes = (size_t)16 << 20; /* in which most headers end; tests: few */

/* ---- reading --------------------------------------------------------------------------------- */

/* What is left to read. The first fault sticks in `status`; reads after it give zeros. */
typedef struct gguf_reader {
    base *b;
    const char *path;
    const uint8_t *data;
    size_t held, size, at; /* data [held] of the file's `size` bytes */
    bool more;             /* what is held is too little */
    const char *what; /* what is being read, for messages */
    const char *name; /* the key or tensor it belongs to, not terminated */
    size_t name_bytes;
    cairn_status status;
    bool any_type; /* a block type that is not supported is no fault */
} gguf_reader;

/* Records the first fault, found at byte `at` of the file. A name is shown in printable ASCII. */
static cairn_status gguf_fault(gguf_reader *r, size_t at, cairn_status status, const char *why) {
    char shown[80] = "";
    size_t i;
    if (r->status) return r->status;
    for (i = 0; r->name && i < r->name_bytes && i + 1 < sizeof shown; i++)
        shown[i] = r->name[i] >= ' ' && r->name[i] <= '~' ? r->name[i] : '?';
    shown[i] = '\0';
    return r->status = base_fail(r->b, status, "%s: byte %llu, %s%s%s%s: %s", r->path,
                                 (unsigned long long)at, r->what, *shown ? " '" : "", shown,
                                 *shown ? "'" : "", why);
}

/* The next `bytes` bytes, or NULL when the file has not as many. */
static const uint8_t *gguf_take(gguf_reader *r, uint64_t bytes) {
    const uint8_t *data = r->data + r->at;
    if (r->status) return NULL;
    if (bytes > r->size - r->at) {
        char why[96];
        snprintf(why, sizeof why, "%llu bytes needed, the file has %llu more",
                 (unsigned long long)bytes, (unsigned long long)(r->size - r->at));
        gguf_fault(r, r->at, CAIRN_BAD_FILE, why);
        return NULL;
    }
    if (bytes > r->held - r->at) {
        r->more = true;
        r->status = CAIRN_BUSY;
        return NULL;
    }
    r->at += (size_t)bytes;
    return data;
}

static uint32_t gguf_read_u32(gguf_reader *r) {
    const uint8_t *at = gguf_take(r, 4);
    return at ? (uint32_t)base_load(at, 4) : 0;
}

static uint64_t gguf_read_u64(gguf_reader *r) {
    const uint8_t *at = gguf_take(r, 8);
    return at ? base_load(at, 8) : 0;
}

static const char *gguf_read_string(gguf_reader *r, uint64_t *bytes) {
    *bytes = gguf_read_u64(r);
    return (const char *)gguf_take(r, *bytes);
}

/* Bytes of a value of a fixed size; 0 for strings, arrays and what is no type. */
static int gguf_type_bytes(uint32_t type) {
    static const uint8_t bytes[GGUF_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < GGUF_TYPES ? bytes[type] : 0;
}

static const char *gguf_type_name(uint32_t type) {
    static const char *const names[GGUF_TYPES] = {"u8", "i8", "u16", "i16", "u32", "i32", "f32",
                                                  "bool", "string", "array", "u64", "i64", "f64"};
    return type < GGUF_TYPES ? names[type] : "unknown";
}

/* ---- metadata -------------------------------------------------------------------------------- */

/* Walks the elements of an array whose head was read; the file's size bounds the work. */
static void gguf_skip_elements(gguf_reader *r, uint32_t type, uint64_t count, int depth) {
    int bytes = gguf_type_bytes(type);
    uint64_t length;
    if (type >= GGUF_TYPES) {
        gguf_fault(r, r->at, CAIRN_BAD_FILE, "an array of an unknown type");
    } else if (bytes) {
        if (count > (r->size - r->at) / (uint64_t)bytes)
            gguf_fault(r, r->at, CAIRN_BAD_FILE, "the array is longer than the file");
        else
            gguf_take(r, count * (uint64_t)bytes);
    } else if (type == GGUF_ARRAY && depth == 0) {
        gguf_fault(r, r->at, CAIRN_BAD_FILE, "arrays are nested too deep");
    } else {
        for (uint64_t i = 0; i < count && !r->status; i++) {
            uint32_t inner = type == GGUF_ARRAY ? gguf_read_u32(r) : 0;
            if (type == GGUF_STRING) gguf_read_string(r, &length);
            else if (length = gguf_read_u64(r), !r->status)
                gguf_skip_elements(r, inner, length, depth - 1);
        }
    }
}

static void gguf_read_value(gguf_reader *r, gguf_key *key) {
    key->type = gguf_read_u32(r);
    key->offset = r->at;
    if (r->status) return;
    if (key->type >= GGUF_TYPES) {
        gguf_fault(r, r->at - 4, CAIRN_BAD_FILE, "the value has an unknown type");
    } else if (key->type == GGUF_STRING) {
        key->value = (const uint8_t *)gguf_read_string(r, &key->count);
    } else if (key->type == GGUF_ARRAY) {
        key->element = gguf_read_u32(r);
        key->count = gguf_read_u64(r);
        key->value = r->data + r->at;
        if (!r->status) gguf_skip_elements(r, key->element, key->count, GGUF_MAX_DEPTH);
    } else {
        key->value = gguf_take(r, (uint64_t)gguf_type_bytes(key->type));
        if (key->value && key->type == GGUF_BOOL && *key->value > 1)
            gguf_fault(r, r->at - 1, CAIRN_BAD_FILE, "a bool that is neither 0 nor 1");
    }
}

static void gguf_read_key(gguf_reader *r, gguf_key *key) {
    uint64_t bytes;
    size_t at = r->at;
    r->what = "key";
    r->name = NULL;
    r->name_bytes = 0;
    key->name = gguf_read_string(r, &bytes);
    if (r->status) return;
    key->name_bytes = (size_t)bytes;
    r->name = key->name;
    r->name_bytes = key->name_bytes;
    if (bytes == 0 || bytes > 65535 || memchr(key->name, 0, key->name_bytes))
        gguf_fault(r, at, CAIRN_BAD_FILE, "not a name of 1 to 65535 bytes without NUL");
    gguf_read_value(r, key);
}

static int gguf_compare(const char *a, size_t a_bytes, const char *c, size_t c_bytes) {
    size_t shared = a_bytes < c_bytes ? a_bytes : c_bytes;
    int order = shared ? memcmp(a, c, shared) : 0;
    return order ? order : (a_bytes > c_bytes) - (a_bytes < c_bytes);
}

static int gguf_key_order(const void *left, const void *right) {
    const gguf_key *a = (const gguf_key *)left, *c = (const gguf_key *)right;
    return gguf_compare(a->name, a->name_bytes, c->name, c->name_bytes);
}

static void gguf_read_keys(gguf_reader *r, gguf *g) {
    for (size_t i = 0; i < g->key_count && !r->status; i++) gguf_read_key(r, &g->keys[i]);
    if (r->status) return;
    qsort(g->keys, g->key_count, sizeof *g->keys, gguf_key_order);
    for (size_t i = 1; i < g->key_count && !r->status; i++)
        if (gguf_key_order(&g->keys[i - 1], &g->keys[i]) == 0) {
            r->name = g->keys[i].name;
            r->name_bytes = g->keys[i].name_bytes;
            gguf_fault(r, (size_t)g->keys[i].offset, CAIRN_BAD_FILE, "the key stands twice");
        }
}

static const gguf_key *gguf_key_find(const gguf *g, const char *name) {
    size_t low = 0, high = g->key_count, bytes = strlen(name);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const gguf_key *key = &g->keys[middle];
        int order = gguf_compare(name, bytes, key->name, key->name_bytes);
        if (order == 0) return key;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

static bool gguf_has(const gguf *g, const char *name) { return gguf_key_find(g, name) != NULL; }

/* ---- getters --------------------------------------------------------------------------------- */
/* Each takes `found`: NULL when the key is required (absent: CAIRN_BAD_FILE); otherwise told
 * whether the key is there, and an absent key leaves *out as it was. A key of the wrong kind, or a
 * number that does not fit, is CAIRN_BAD_FILE in both cases. */

static cairn_status gguf_wrong(base *b, const gguf *g, const gguf_key *key, const char *wanted) {
    return base_fail(b, CAIRN_BAD_FILE, "%s: byte %llu, key '%.*s': %s expected, it is %s",
                     g->path, (unsigned long long)key->offset, (int)key->name_bytes, key->name,
                     wanted, gguf_type_name(key->type));
}

static cairn_status gguf_get(base *b, const gguf *g, const char *name, bool *found,
                             const gguf_key **key) {
    *key = gguf_key_find(g, name);
    if (found) *found = *key != NULL;
    if (*key || found) return CAIRN_OK;
    return base_fail(b, CAIRN_BAD_FILE, "%s: the key '%s' is missing", g->path, name);
}

/* The value of an integer of any width as u64; negative or not an integer: false. */
static bool gguf_integer(uint32_t type, const uint8_t *value, uint64_t *out) {
    int bytes = gguf_type_bytes(type);
    bool is_signed = type == GGUF_I8 || type == GGUF_I16 || type == GGUF_I32 || type == GGUF_I64;
    if (!bytes || type == GGUF_F32 || type == GGUF_F64 || type == GGUF_BOOL) return false;
    *out = base_load(value, bytes);
    return !is_signed || !(*out >> (8 * bytes - 1));
}

static cairn_status gguf_u32(base *b, const gguf *g, const char *name, bool *found, uint32_t *out) {
    const gguf_key *key;
    uint64_t value;
    cairn_status status = gguf_get(b, g, name, found, &key);
    if (status || !key) return status;
    if (!gguf_integer(key->type, key->value, &value) || value > UINT32_MAX)
        return gguf_wrong(b, g, key, "an integer from 0 to 4294967295");
    *out = (uint32_t)value;
    return CAIRN_OK;
}

static cairn_status gguf_f32(base *b, const gguf *g, const char *name, bool *found, float *out) {
    const gguf_key *key;
    uint64_t bits;
    double wide;
    cairn_status status = gguf_get(b, g, name, found, &key);
    if (status || !key) return status;
    if (key->type != GGUF_F32 && key->type != GGUF_F64)
        return gguf_wrong(b, g, key, "a floating-point number");
    if (key->type == GGUF_F32) {
        *out = block_f32_of_bits((uint32_t)base_load(key->value, 4));
        return CAIRN_OK;
    }
    bits = base_load(key->value, 8);
    memcpy(&wide, &bits, sizeof wide);
    *out = (float)wide;
    return CAIRN_OK;
}

static cairn_status gguf_bool(base *b, const gguf *g, const char *name, bool *found, bool *out) {
    const gguf_key *key;
    cairn_status status = gguf_get(b, g, name, found, &key);
    if (status || !key) return status;
    if (key->type != GGUF_BOOL) return gguf_wrong(b, g, key, "a bool");
    *out = *key->value != 0;
    return CAIRN_OK;
}

static cairn_status gguf_string(base *b, const gguf *g, const char *name, bool *found,
                                const char **out, size_t *bytes) {
    const gguf_key *key;
    cairn_status status = gguf_get(b, g, name, found, &key);
    if (status || !key) return status;
    if (key->type != GGUF_STRING) return gguf_wrong(b, g, key, "a string");
    *out = (const char *)key->value;
    *bytes = (size_t)key->count;
    return CAIRN_OK;
}

static cairn_status gguf_array(base *b, const gguf *g, const char *name, bool *found,
                               uint32_t element, gguf_list *out) {
    const gguf_key *key;
    char wanted[48];
    cairn_status status = gguf_get(b, g, name, found, &key);
    if (status || !key) return status;
    snprintf(wanted, sizeof wanted, "an array of %s", gguf_type_name(element));
    if (key->type != GGUF_ARRAY) return gguf_wrong(b, g, key, wanted);
    if (key->element != element && !(element == GGUF_I32 && key->element == GGUF_U32))
        return base_fail(b, CAIRN_BAD_FILE, "%s: byte %llu, key '%s': %s expected, it is one of %s",
                         g->path, (unsigned long long)key->offset, name, wanted,
                         gguf_type_name(key->element));
    out->type = key->element;
    out->count = key->count;
    out->data = key->value;
    return CAIRN_OK;
}

static const char *gguf_next_string(gguf_list *list, size_t *bytes) {
    const char *string = (const char *)list->data + 8;
    *bytes = (size_t)base_load(list->data, 8);
    list->data += 8 + *bytes;
    return string;
}

static uint32_t gguf_next_u32(gguf_list *list) {
    uint32_t value = (uint32_t)base_load(list->data, 4);
    list->data += 4;
    return value;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static int gguf_tensor_order(const void *left, const void *right) {
    return strcmp(((const gguf_tensor *)left)->name, ((const gguf_tensor *)right)->name);
}

static void gguf_read_name(gguf_reader *r, gguf_tensor *tensor) {
    uint64_t bytes;
    size_t at = r->at;
    const char *name;
    r->what = "tensor";
    r->name = NULL;
    r->name_bytes = 0;
    name = gguf_read_string(r, &bytes);
    if (r->status) return;
    r->name = name;
    r->name_bytes = (size_t)bytes;
    if (bytes == 0 || bytes >= GGUF_NAME_BYTES || memchr(name, 0, (size_t)bytes))
        gguf_fault(r, at, CAIRN_BAD_FILE, "not a name of 1 to 127 bytes without NUL");
    else
        memcpy(tensor->name, name, (size_t)bytes); /* the table was zeroed */
}

static void gguf_read_shape(gguf_reader *r, gguf_tensor *tensor) {
    size_t at = r->at;
    uint32_t ndim = gguf_read_u32(r);
    if (!r->status && (ndim < 1 || ndim > 4))
        gguf_fault(r, at, CAIRN_BAD_FILE, "a tensor has 1 to 4 dimensions");
    for (uint32_t i = 0; i < 4; i++) tensor->shape[i] = 1;
    for (uint32_t i = 0; i < ndim && !r->status; i++) {
        uint64_t extent;
        at = r->at;
        extent = gguf_read_u64(r);
        if (!r->status && (extent == 0 || extent > INT64_MAX))
            gguf_fault(r, at, CAIRN_BAD_FILE, "a dimension is zero or too large");
        tensor->shape[i] = (int64_t)extent;
    }
    tensor->ndim = (int)ndim;
}

/* Sets tensor->bytes; every product is checked against `limit`, the size of the data section. */
static void gguf_size_tensor(gguf_reader *r, gguf_tensor *tensor, size_t at, uint64_t limit) {
    const block_type *type = block_find(tensor->type);
    char why[128];
    uint64_t bytes;
    if (!type && r->any_type) return;
    if (!type) {
        snprintf(why, sizeof why, "block type %s (%d) is not supported; supported: %s",
                 block_name(tensor->type), tensor->type, BLOCK_SUPPORTED);
        gguf_fault(r, at, CAIRN_UNSUPPORTED, why);
        return;
    }
    if (tensor->shape[0] % type->values) {
        snprintf(why, sizeof why, "its first dimension %lld is not a multiple of %s's block of %d",
                 (long long)tensor->shape[0], type->name, type->values);
        gguf_fault(r, at, CAIRN_BAD_FILE, why);
        return;
    }
    bytes = (uint64_t)type->bytes;
    for (int i = 0; i < 4; i++) {
        uint64_t extent = (uint64_t)(i ? tensor->shape[i] : tensor->shape[0] / type->values);
        if (extent > limit / bytes) {
            gguf_fault(r, at, CAIRN_BAD_FILE, "the tensor is larger than the file");
            return;
        }
        bytes *= extent;
    }
    tensor->bytes = (size_t)bytes;
}

/* Reads a description up to the offset of its data. */
static void gguf_read_tensor(gguf_reader *r, gguf_tensor *tensor) {
    uint32_t type;
    size_t at;
    tensor->offset = r->at;
    gguf_read_name(r, tensor);
    if (!r->status) gguf_read_shape(r, tensor);
    at = r->at;
    type = gguf_read_u32(r);
    tensor->type = type <= INT32_MAX ? (int)type : -1;
    if (!r->status) gguf_size_tensor(r, tensor, at, r->size);
}

/* Checks where the data lies, once the start of the data section is known. */
static void gguf_place(gguf_reader *r, const gguf *g, gguf_tensor *tensor, uint64_t offset,
                       size_t start) {
    char why[128];
    r->name = tensor->name;
    r->name_bytes = strlen(tensor->name);
    if (offset % g->alignment) {
        snprintf(why, sizeof why, "its data offset %llu is not a multiple of %u",
                 (unsigned long long)offset, g->alignment);
        gguf_fault(r, (size_t)tensor->offset, CAIRN_BAD_FILE, why);
    } else if (start > r->size || offset > r->size - start ||
               tensor->bytes > r->size - start - offset) {
        snprintf(why, sizeof why, "its %llu bytes at %llu reach past the end of the file, %llu",
                 (unsigned long long)tensor->bytes, (unsigned long long)start + offset,
                 (unsigned long long)r->size);
        gguf_fault(r, (size_t)tensor->offset, CAIRN_BAD_FILE, why);
    } else {
        tensor->at = start + offset;
        if (r->held == r->size) tensor->data = r->data + tensor->at;
    }
}

static void gguf_read_tensors(gguf_reader *r, gguf *g) {
    size_t start, again = r->at;
    for (size_t i = 0; i < g->tensor_count && !r->status; i++) {
        gguf_read_tensor(r, &g->tensors[i]);
        gguf_read_u64(r); /* the offset, read again below */
    }
    if (r->status) return;
    start = (r->at + (g->alignment - 1)) & ~((size_t)g->alignment - 1);
    if (start <= r->size) gguf_take(r, start - r->at); /* at hand, too */
    if (r->status) return;
    r->at = again;
    for (size_t i = 0; i < g->tensor_count && !r->status; i++) {
        gguf_tensor *tensor = &g->tensors[i];
        gguf_take(r, 8 + strlen(tensor->name) + 4 + 8 * (uint64_t)tensor->ndim + 4);
        gguf_place(r, g, tensor, gguf_read_u64(r), start);
    }
    if (r->status) return;
    qsort(g->tensors, g->tensor_count, sizeof *g->tensors, gguf_tensor_order);
    for (size_t i = 1; i < g->tensor_count && !r->status; i++)
        if (!strcmp(g->tensors[i - 1].name, g->tensors[i].name)) {
            r->name = g->tensors[i].name;
            r->name_bytes = strlen(r->name);
            gguf_fault(r, (size_t)g->tensors[i].offset, CAIRN_BAD_FILE, "the tensor stands twice");
        }
}

static const gguf_tensor *gguf_tensor_find(const gguf *g, const char *name) {
    size_t low = 0, high = g->tensor_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, g->tensors[middle].name);
        if (order == 0) return &g->tensors[middle];
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

/* ---- open ------------------------------------------------------------------------------------ */

static void gguf_read_magic(gguf_reader *r, gguf *g) {
    const uint8_t *magic = gguf_take(r, 4);
    char why[80];
    if (magic && memcmp(magic, "GGUF", 4) != 0)
        gguf_fault(r, 0, CAIRN_BAD_FILE, "not a GGUF file: it does not begin with \"GGUF\"");
    g->version = gguf_read_u32(r);
    if (r->status || g->version == 2 || g->version == 3) return;
    if (g->version >> 24 && !(g->version & 0xffff))
        snprintf(why, sizeof why, "a big-endian file; little-endian is supported");
    else
        snprintf(why, sizeof why, "version %u; 2 and 3 are supported", g->version);
    gguf_fault(r, 4, CAIRN_UNSUPPORTED, why);
}

/* A count from the file, bounded by what could stand there, each taking `least` bytes. */
static size_t gguf_read_count(gguf_reader *r, uint64_t least, const char *what) {
    size_t at = r->at;
    uint64_t count = gguf_read_u64(r);
    char why[96];
    if (r->status || (count <= GGUF_MAX_COUNT && count <= (r->size - r->at) / least))
        return r->status ? 0 : (size_t)count;
    snprintf(why, sizeof why, "%llu %s do not fit a file of %llu bytes", (unsigned long long)count,
             what, (unsigned long long)r->size);
    gguf_fault(r, at, CAIRN_BAD_FILE, why);
    return 0;
}

static void gguf_read_alignment(gguf_reader *r, gguf *g) {
    const gguf_key *key = gguf_key_find(g, "general.alignment");
    uint64_t value = 32;
    if (key && (!gguf_integer(key->type, key->value, &value) || value < 8 || value > 1 << 20 ||
                (value & (value - 1)) != 0)) {
        r->name = key->name;
        r->name_bytes = key->name_bytes;
        gguf_fault(r, (size_t)key->offset, CAIRN_BAD_FILE, "not a power of two from 8 to 1048576");
    }
    g->alignment = (uint32_t)value;
}

static void gguf_close(base *b, gguf *g) {
    base_delete(b, g->keys, g->key_count, sizeof *g->keys);
    base_delete(b, g->tensors, g->tensor_count, sizeof *g->tensors);
    if (g->map.data) os_map_close(&g->map);
    if (g->shards) {
        shards_close(b, g->shards);
        base_delete(b, g->shards, 1, sizeof *g->shards);
    } else if (g->held < g->size) {
        os_calls.close(g->file);
    }
    base_delete(b, g->copy, g->copied, 1);
    memset(g, 0, sizeof *g);
}

static void gguf_keep_path(gguf *g, const char *path) {
    size_t bytes = strlen(path), kept = bytes < sizeof g->path ? bytes : sizeof g->path - 1;
    memcpy(g->path, path + bytes - kept, kept);
}

static cairn_status gguf_read_all(gguf_reader *r, gguf *g) {
    gguf_read_magic(r, g);
    g->tensor_count = gguf_read_count(r, 8 + 1 + 4 + 8 + 4 + 8, "tensors");
    g->key_count = gguf_read_count(r, 8 + 1 + 4 + 1, "keys");
    if (r->status) return r->status;
    g->keys = (gguf_key *)base_new(r->b, g->key_count, sizeof *g->keys);
    if (!g->keys) return base_no_memory(r->b, g->path, g->key_count * sizeof *g->keys);
    g->tensors = (gguf_tensor *)base_new(r->b, g->tensor_count, sizeof *g->tensors);
    if (!g->tensors) return base_no_memory(r->b, g->path, g->tensor_count * sizeof *g->tensors);
    gguf_read_keys(r, g);
    if (!r->status) gguf_read_alignment(r, g);
    if (!r->status) gguf_read_tensors(r, g);
    return r->status;
}

/* As gguf_parse, of a file of which `held` bytes are at hand; *more: they are too few. */
static cairn_status gguf_parse_part(base *b, const char *path, const uint8_t *data, size_t held,
                                    size_t size, bool any_type, bool *more, gguf *out) {
    gguf_reader r = {b, NULL, data, held, size, 0, false, "header", NULL, 0, CAIRN_OK, any_type};
    cairn_status status;
    memset(out, 0, sizeof *out);
    gguf_keep_path(out, path);
    out->data = data;
    out->held = out->size = size; /* a part is its caller's until it is a whole */
    r.path = out->path;
    if (!size) return base_fail(b, CAIRN_BAD_FILE, "%s: byte 0: the file is empty", path);
    status = gguf_read_all(&r, out);
    *more = r.more;
    if (status) gguf_close(b, out);
    return status;
}

/* Reads a file that lies in memory, aligned to 16 bytes, which must outlive *out; `path` names it
 * in messages. On failure *out is empty. */
static cairn_status gguf_parse(base *b, const char *path, const uint8_t *data, size_t size,
                               gguf *out) {
    bool more;
    return gguf_parse_part(b, path, data, size, size, false, &more, out);
}

static cairn_status gguf_open(base *b, const char *path, gguf *out) {
    os_map map;
    cairn_status status = os_map_open(b, path, &map);
    if (status) return status;
    status = gguf_parse(b, path, map.data, map.size, out);
    if (status) os_map_close(&map);
    else out->map = map;
    return status;
}

enum { GGUF_PIECE = 1 << 18 }; /* of a part: bytes for which a thread is worth waking */

typedef struct gguf_part {
    gguf_read_at read;
    const void *from;
    uint64_t at;
    uint8_t *to;
    size_t bytes;
    os_atomic error; /* of a piece that cannot be read */
} gguf_part;

/* A pool_task. */
static void gguf_read_piece(void *context, int index) {
    gguf_part *p = (gguf_part *)context;
    const size_t from = (size_t)index * GGUF_PIECE, left = p->bytes - from;
    const int error = p->read(p->from, p->at + from, p->to + from, left < GGUF_PIECE ? left : GGUF_PIECE);
    if (error) os_atomic_store(&p->error, error);
}

static cairn_status gguf_tell(base *b, const char *name, uint64_t at, uint64_t size) {
    return base_progress(b, name, at >> 20, ((size - 1) >> 20) + 1);
}

static size_t gguf_part_bytes(uint64_t at, uint64_t end) {
    return end - at < GGUF_PART ? (size_t)(end - at) : GGUF_PART;
}

/* One thread alone takes longer to copy what the system holds of a file than a disk to read it. */
static cairn_status gguf_read_parts(base *b, struct pool *threads, const char *name, gguf_read_at read,
                                    const void *from, gguf_extent which, uint8_t *data) {
    gguf_part part = {.read = read, .from = from};
    for (uint64_t at = which.begin; at < which.end; at += GGUF_PART) {
        cairn_status status = gguf_tell(b, name, at, which.size);
        int error;
        if (status) return status;
        part.at = at, part.to = data + at, part.bytes = gguf_part_bytes(at, which.end);
        pool_run(threads, (int)((part.bytes + GGUF_PIECE - 1) / GGUF_PIECE), gguf_read_piece, &part);
        if ((error = os_atomic_load(&part.error))) return os_fail(b, error, "read", name);
    }
    return CAIRN_OK;
}

static int gguf_read_of_file(const void *file, uint64_t at, void *to, size_t bytes) {
    return os_read_at(*(const int64_t *)file, at, to, bytes);
}

/* Reads the header from the first `room` bytes, of which an eighth is read before twice as many; of a file that is no
 * larger all. */
static cairn_status gguf_read_head(base *b, struct pool *threads, const char *path, int64_t file, size_t room,
                                   size_t size, bool any_type, bool *more, gguf *out) {
    const size_t bytes = room + GGUF_ALIGNMENT;
    void *copy = base_realloc(b, NULL, 0, bytes);
    uint8_t *data = (uint8_t *)copy;
    cairn_status status;
    size_t before = 0, held = room < size ? room / 8 : room;
    if (!copy) return base_no_memory(b, path, bytes);
    data += (GGUF_ALIGNMENT - (uintptr_t)copy % GGUF_ALIGNMENT) % GGUF_ALIGNMENT;
    for (;;) {
        *more = false;
        status = gguf_read_parts(b, threads, path, gguf_read_of_file, &file, (gguf_extent){before, held, size}, data);
        if (!status) status = gguf_parse_part(b, path, data, held, size, any_type, more, out);
        if (!*more || held == room) break;
        before = held, held = held < room / 2 ? held * 2 : room;
    }
    if (status) base_delete(b, copy, bytes, 1);
    else out->copy = copy, out->copied = bytes, out->held = held, out->file = file;
    return status;
}

/* Reads a part, and larger ones until the header is in them. */
static cairn_status gguf_read_file(base *b, struct pool *threads, const char *path, size_t room, bool any_type,
                                   gguf *out) {
    size_t size = 0;
    bool more = false;
    cairn_status status;
    int64_t file = os_open_sized(path, &size);
    memset(out, 0, sizeof *out);
    if (file < 0) return os_fail(b, (int)file, "open", path);
    do {
        if (room > size) room = size;
        status = gguf_read_head(b, threads, path, file, room, size, any_type, &more, out);
        room = room < size / 4 ? room * 4 : size;
    } while (more);
    if (status || out->held == size) os_calls.close(file);
    return status;
}

static cairn_status gguf_copy(base *b, struct pool *threads, const char *path, gguf *out) {
    return gguf_read_file(b, threads, path, SIZE_MAX, false, out);
}

static cairn_status gguf_scan(base *b, struct pool *threads, const char *path, gguf *out) {
    return gguf_read_file(b, threads, path, gguf_first_bytes, false, out);
}

static cairn_status gguf_survey(base *b, const char *path, gguf *out) {
    return gguf_read_file(b, NULL, path, gguf_first_bytes, true, out);
}

static const uint8_t *gguf_fetch(const gguf *g, uint64_t at, size_t bytes, void *buffer) {
    const size_t mine = at < g->held ? g->held - (size_t)at : 0;
    if (bytes <= mine) return g->data + at;
    if (g->shards && !mine) return shards_fetch(g->shards, at, bytes, buffer);
    if (g->shards) {
        memcpy(buffer, g->data + at, mine);
        return shards_gather(g->shards, at + mine, bytes - mine, (uint8_t *)buffer + mine)
                   ? (const uint8_t *)buffer : NULL;
    }
    return os_read_at(g->file, at, buffer, bytes) ? NULL : (const uint8_t *)buffer;
}

static cairn_status gguf_lost(base *b, const gguf *g) {
    return base_fail(b, CAIRN_FILE_ERROR,
                     "%s: cannot be read any more; it was cut short while it was loaded", g->path);
}

/* The callback is not trusted to know its file. */
static cairn_status gguf_read_of_source(base *b, const char *name, const cairn_model_source *s, uint64_t at,
                                        uint8_t *to, size_t *bytes) {
    base_callback within;
    size_t got;
    if (s->data) return memcpy(to, (const uint8_t *)s->data + at, *bytes), CAIRN_OK;
    base_begin_callback(b, &within);
    got = s->read(s->user, at, to, *bytes);
    base_end_callback(&within);
    if (got == 0 || got > *bytes)
        return base_fail(b, CAIRN_FILE_ERROR, "%s: byte %llu of %llu: %llu bytes were asked for, read "
                         "returned %llu", name, (unsigned long long)at, (unsigned long long)s->bytes,
                         (unsigned long long)*bytes, (unsigned long long)got);
    return *bytes = got, CAIRN_OK;
}

/* On the caller's thread, which the callback may rely on. */
static cairn_status gguf_read_source(base *b, const char *name, const cairn_model_source *s, uint8_t *data) {
    for (uint64_t at = 0; at < s->bytes;) {
        size_t bytes = gguf_part_bytes(at, s->bytes);
        cairn_status status = gguf_tell(b, name, at, s->bytes);
        if (!status) status = gguf_read_of_source(b, name, s, at, data + at, &bytes);
        if (status) return status;
        at += bytes;
    }
    return CAIRN_OK;
}

static cairn_status gguf_from(base *b, const cairn_model_source *source, bool in_place, gguf *out) {
    const char *name = source->name ? source->name : "model source";
    void *copy;
    uint8_t *data;
    cairn_status status;
    memset(out, 0, sizeof *out);
    if (source->bytes > SIZE_MAX / 2)
        return base_no_memory(b, name, SIZE_MAX);
    if (source->data && in_place && (uintptr_t)source->data % GGUF_ALIGNMENT == 0)
        return gguf_parse(b, name, (const uint8_t *)source->data, (size_t)source->bytes, out);
    copy = base_realloc(b, NULL, 0, (size_t)source->bytes + GGUF_ALIGNMENT);
    if (!copy) return base_no_memory(b, name, (size_t)source->bytes + GGUF_ALIGNMENT);
    data = (uint8_t *)copy + (GGUF_ALIGNMENT - (uintptr_t)copy % GGUF_ALIGNMENT) % GGUF_ALIGNMENT;
    status = gguf_read_source(b, name, source, data);
    if (!status) status = gguf_parse(b, name, data, (size_t)source->bytes, out);
    if (status) base_delete(b, copy, (size_t)source->bytes + GGUF_ALIGNMENT, 1);
    else out->copy = copy, out->copied = (size_t)source->bytes + GGUF_ALIGNMENT, out->held = (size_t)source->bytes;
    return status;
}

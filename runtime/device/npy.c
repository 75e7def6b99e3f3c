/* npy: tensors as NumPy's .npy files. One header dictionary, then the elements in C order.
 * bf16 and e4m3, which NumPy does not know, are opaque elements of 2 and 1 bytes. */

enum { NPY_MAX_HEADER = 65536, NPY_ALIGN = 64, NPY_PART = 1 << 20 /* bytes read at a time */ };

typedef struct npy_header {
    cairn_type type;
    int rank;
    int64_t shape[CAIRN_MAX_RANK];
    size_t data_offset;
} npy_header;

/* The text behind 'key': in the dictionary, spaces skipped; NULL when it is not there. */
static const char *npy_value(const char *dictionary, const char *key) {
    char quoted[32];
    const char *at;
    snprintf(quoted, sizeof quoted, "'%s'", key);
    at = strstr(dictionary, quoted);
    if (!at) return NULL;
    at += strlen(quoted);
    while (*at == ' ') at++;
    if (*at++ != ':') return NULL;
    while (*at == ' ') at++;
    return at;
}

static bool npy_parse_shape(const char *at, npy_header *header) {
    if (*at++ != '(') return false;
    for (;;) {
        char *end;
        while (*at == ' ' || *at == ',') at++;
        if (*at == ')') return true;
        if (*at < '0' || *at > '9' || header->rank == CAIRN_MAX_RANK) return false;
        errno = 0;
        header->shape[header->rank] = strtoll(at, &end, 10);
        if (errno || end == at) return false;
        header->rank++;
        at = end;
    }
}

/* Opaque elements have no byte order: NumPy itself writes |V2, others <V2. */
static cairn_type npy_parse_type(const char *at) {
    size_t row;
    if (at[0] != '\'') return CAIRN_TYPE_NONE;
    for (row = 1; row < BASE_COUNT(tensor_types); row++) {
        const char *name = tensor_types[row].npy;
        size_t n = strlen(name);
        bool order = at[1] == name[0] || (name[1] == 'V' && (at[1] == '<' || at[1] == '|'));
        if (order && strncmp(at + 2, name + 1, n - 1) == 0 && at[n + 1] == '\'')
            return (cairn_type)row;
    }
    return CAIRN_TYPE_NONE;
}

static cairn_status npy_parse_dictionary(base *b, const char *path, const char *text,
                                         npy_header *header) {
    const char *type = npy_value(text, "descr"), *order = npy_value(text, "fortran_order");
    const char *shape = npy_value(text, "shape");
    if (!type || !order || !shape || !npy_parse_shape(shape, header))
        return base_fail(b, CAIRN_BAD_FILE, "%s: the .npy header is not understood: %.100s", path,
                         text);
    header->type = npy_parse_type(type);
    if (header->type == CAIRN_TYPE_NONE)
        return base_fail(b, CAIRN_UNSUPPORTED,
                         "%s: element type %.*s; <f4 <f2 <V2 |V1 <i4 <i8 |u1 are read", path,
                         (int)strcspn(type, ",}"), type);
    if (strncmp(order, "True", 4) == 0 && header->rank > 1)
        return base_fail(b, CAIRN_UNSUPPORTED, "%s: Fortran order; save it in C order", path);
    return CAIRN_OK;
}

static cairn_status npy_parse(base *b, const char *path, const uint8_t *data, size_t size,
                              npy_header *header) {
    size_t length, start;
    char *text;
    cairn_status status;
    memset(header, 0, sizeof *header);
    if (size < 12 || memcmp(data, "\x93NUMPY", 6) != 0 || data[6] < 1 || data[6] > 3)
        return base_fail(b, CAIRN_BAD_FILE, "%s: not a .npy file of version 1 to 3", path);
    start = data[6] == 1 ? 10 : 12;
    length = (size_t)base_load(data + 8, (int)start - 8);
    if (length > NPY_MAX_HEADER || length > size - start)
        return base_fail(b, CAIRN_BAD_FILE, "%s: the .npy header is cut off at byte %llu", path,
                         (unsigned long long)size);
    text = (char *)base_new(b, length + 1, 1);
    if (!text) return base_no_memory(b, path, length + 1);
    memcpy(text, data + start, length);
    header->data_offset = start + length;
    status = npy_parse_dictionary(b, path, text, header);
    base_delete(b, text, length + 1, 1);
    return status;
}

/* What the open file's header says; `part` [NPY_PART] is memory to read into. */
static cairn_status npy_read_header(base *b, const char *path, int64_t file, size_t size,
                                    uint8_t *part, npy_header *header) {
    const size_t held = size < NPY_PART ? size : NPY_PART; /* a header ends in it */
    cairn_tensor view = {0};
    cairn_status status;
    int error = os_read_at(file, 0, part, held);
    if (error) return os_fail(b, error, "read", path);
    if ((status = npy_parse(b, path, part, held, header))) return status;
    view.ndim = header->rank;
    view.shape = header->shape;
    if (tensor_elements(&view) < 0 ||
        (size_t)tensor_elements(&view) * cairn_type_bytes(header->type) !=
            size - header->data_offset)
        return base_fail(b, CAIRN_BAD_FILE,
                         "%s: %llu bytes of elements do not fit the shape in its header", path,
                         (unsigned long long)(size - header->data_offset));
    return CAIRN_OK;
}

static cairn_status npy_read_elements(device *dev, const char *path, int64_t file, size_t from,
                                      uint8_t *part, const tensor_owned *t) {
    cairn_status status = CAIRN_OK;
    for (size_t at = 0; at < t->bytes && !status; at += NPY_PART) {
        const size_t bytes = t->bytes - at < NPY_PART ? t->bytes - at : NPY_PART;
        int error = os_read_at(file, from + at, part, bytes);
        if (error) return os_fail(dev->base, error, "read", path);
        status = device_upload(dev, (uint8_t *)t->view.data + at, part, bytes);
        if (!status) status = device_sync(dev); /* the part is filled again */
    }
    return status;
}

/* Loads the file into a new tensor of the list. It is read and not mapped: what is cut off meanwhile
 * is a status. */
static cairn_status npy_load(device *dev, tensor_owned **list, const char *path,
                             tensor_owned **out) {
    npy_header header;
    tensor_owned *t;
    uint8_t *part;
    cairn_status status;
    size_t size = 0;
    int64_t file = os_open_sized(path, &size);
    if (file < 0) return os_fail(dev->base, (int)file, "open", path);
    part = (uint8_t *)base_realloc(dev->base, NULL, 0, NPY_PART);
    status = part ? npy_read_header(dev->base, path, file, size, part, &header)
                  : base_no_memory(dev->base, path, NPY_PART);
    if (!status) status = tensor_new(dev, list, header.type, header.rank, header.shape, &t);
    if (!status) {
        status = npy_read_elements(dev, path, file, header.data_offset, part, t);
        if (status) tensor_free(dev, t);
        else *out = t;
    }
    base_delete(dev->base, part, NPY_PART, 1);
    os_calls.close(file);
    return status;
}

static bool npy_write_header(base *b, const cairn_tensor *t, base_text *text) {
    base_text shape = {0};
    bool fine = true;
    size_t length;
    uint8_t head[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, 0, 0};
    int d;
    for (d = 0; fine && d < t->ndim; d++)
        fine = base_text_print(b, &shape, "%lld,%s", (long long)t->shape[d],
                               d + 1 < t->ndim ? " " : "");
    fine = fine && base_text_add(b, text, head, sizeof head) &&
           base_text_print(b, text, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }",
                           tensor_types[cairn_tensor_type(t)].npy, shape.data ? shape.data : "");
    while (fine && (text->size + 1) % NPY_ALIGN) fine = base_text_add(b, text, " ", 1);
    fine = fine && base_text_add(b, text, "\n", 1);
    if (fine) {
        length = text->size - sizeof head;
        text->data[8] = (char)(length & 255);
        text->data[9] = (char)(length >> 8);
    }
    base_text_free(b, &shape);
    return fine;
}

static cairn_status npy_save(device *dev, const cairn_tensor *t, const char *path) {
    size_t bytes = (size_t)tensor_elements(t) * cairn_type_bytes(cairn_tensor_type(t));
    base_text text = {0};
    cairn_status status = CAIRN_OK;
    if (!npy_write_header(dev->base, t, &text) || !base_text_reserve(dev->base, &text, bytes))
        status = base_no_memory(dev->base, path, bytes);
    if (!status) {
        status = device_download(dev, text.data + text.size, tensor_data(t), bytes);
        text.size += bytes;
    }
    if (!status) status = os_write_file(dev->base, path, text.data, text.size);
    base_text_free(dev->base, &text);
    return status;
}

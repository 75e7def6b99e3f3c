/* ops: checks, launches and faults, for every op's entry. */

static void ops_want_as(ops_check *c, const cairn_tensor *t, const char *name, unsigned types,
                        bool optional, int rank, const int64_t *extents) {
    tensor_want want;
    int d;
    if (c->status) return;
    memset(&want, 0, sizeof want);
    want.op = c->op;
    want.name = name;
    want.types = types;
    want.rank = rank;
    want.optional = optional;
    for (d = 0; d < rank; d++) want.shape[d] = extents[d];
    c->status = tensor_check(c->dev, t, &want);
}

static void ops_want1(ops_check *c, const cairn_tensor *t, const char *name, unsigned types,
                      int64_t a) {
    ops_want_as(c, t, name, types, false, 1, &a);
}

static void ops_want2(ops_check *c, const cairn_tensor *t, const char *name, unsigned types,
                      int64_t a, int64_t b) {
    int64_t extents[2];
    extents[0] = a, extents[1] = b;
    ops_want_as(c, t, name, types, false, 2, extents);
}

static void ops_want3(ops_check *c, const cairn_tensor *t, const char *name, unsigned types,
                      int64_t a, int64_t b, int64_t d) {
    int64_t extents[3];
    extents[0] = a, extents[1] = b, extents[2] = d;
    ops_want_as(c, t, name, types, false, 3, extents);
}

static void ops_want_apart(ops_check *c, const cairn_tensor *out, const char *out_name,
                           const cairn_tensor *in, const char *in_name, bool in_place) {
    if (c->status || !out || !in) return;
    if (in_place && tensor_data(out) == tensor_data(in)) return;
    c->status = tensor_check_apart(c->dev->base, c->op, out, out_name, in, in_name);
}

static void ops_refuse(ops_check *c, bool wrong, const char *format, ...) {
    char text[256];
    va_list args;
    if (c->status || !wrong) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    c->status = base_fail(c->dev->base, CAIRN_INVALID_ARGUMENT, "%s: %s", c->op, text);
}

static device *ops_device(cairn_runtime *rt) { return rt ? &rt->device : NULL; }

static bool ops_same_kernel(const ops_kernel *a, const ops_kernel *b) {
    int i;
    if (strcmp(a->source, b->source) || strcmp(a->entry, b->entry) ||
        a->constant_count != b->constant_count)
        return false;
    for (i = 0; i < a->constant_count; i++)
        if (a->constants[i].value != b->constants[i].value) return false;
    return true;
}

/* Compiles the program, unless it is in the cache, and finds the entry. */
static cairn_status ops_make_kernel(cairn_runtime *rt, ops_kernel *k) {
    jit_request request;
    jit_program *program;
    cairn_status status;
    memset(&request, 0, sizeof request);
    request.source = k->source;
    request.constants = k->constants;
    request.constant_count = k->constant_count;
    if ((status = jit_get(rt->jit, &request, &program))) return status;
    return jit_function(rt->jit, program, k->entry, k->shared_bytes, &k->kernel);
}

static cairn_status ops_find_kernel(cairn_runtime *rt, const ops_kernel *want,
                                    const jit_kernel **out) {
    ops_kernel *k = rt->kernels;
    cairn_status status;
    while (k && !ops_same_kernel(k, want)) k = k->next;
    if (!k) {
        k = (ops_kernel *)base_new(&rt->base, 1, sizeof *k);
        if (!k) return base_no_memory(&rt->base, want->entry, sizeof *k);
        *k = *want;
        if ((status = ops_make_kernel(rt, k))) {
            base_delete(&rt->base, k, 1, sizeof *k);
            return status;
        }
        k->next = rt->kernels;
        rt->kernels = k;
    } else if (k->shared_bytes < want->shared_bytes) {
        ops_kernel larger = *k; /* the limit of a function only rises */
        larger.shared_bytes = want->shared_bytes;
        if ((status = ops_make_kernel(rt, &larger))) return status;
        *k = larger;
    }
    *out = &k->kernel;
    return CAIRN_OK;
}

static void ops_free_kernels(cairn_runtime *rt) {
    while (rt->kernels) {
        ops_kernel *next = rt->kernels->next;
        base_delete(&rt->base, rt->kernels, 1, sizeof *rt->kernels);
        rt->kernels = next;
    }
}

static cairn_status ops_launch_as(cairn_runtime *rt, ops_kernel *want, const device_dims *dims,
                                  const void *params) {
    const jit_kernel *kernel = NULL;
    cairn_status status = handles_enter(rt);
    if (status) return status;
    want->shared_bytes = (int)dims->shared_bytes;
    status = ops_find_kernel(rt, want, &kernel);
    if (!status) status = device_launch(&rt->device, kernel, dims, params);
    return handles_leave(rt, status);
}

static cairn_status ops_launch(cairn_runtime *rt, const char *source, const char *entry,
                               const device_dims *dims, const void *params) {
    ops_kernel want;
    memset(&want, 0, sizeof want);
    want.source = source;
    want.entry = entry;
    return ops_launch_as(rt, &want, dims, params);
}

static cairn_error_word *ops_error_word(device *dev, const char *op) {
    return (cairn_error_word *)(void *)device_error_word(dev, op);
}

static void ops_bad_row(device *dev, const char *op, int64_t row, const char *cause, int64_t value,
                        cairn_status *status) {
    if (!*status)
        *status = base_fail(dev->base, CAIRN_BAD_DATA, "%s: row %lld: %s (%lld)", op,
                            (long long)row, cause, (long long)value);
}

/* ---- weights in blocks ---------------------------------------------------------------------------*/

static int ops_block_type(const cairn_tensor *t, int32_t block) {
    if (block != CAIRN_BLOCK_NONE) return block;
    switch (cairn_tensor_type(t)) {
    case CAIRN_F16: return BLOCK_F16;
    case CAIRN_BF16: return BLOCK_BF16;
    default: return BLOCK_F32;
    }
}

static void ops_want_weight(ops_check *c, const cairn_tensor *t, const char *name, int32_t block,
                            ops_weight *out) {
    const block_type *type;
    unsigned types = block == CAIRN_BLOCK_NONE ? OPS_F32 | OPS_F16 | TENSOR_BIT(CAIRN_BF16)
                                               : TENSOR_BIT(CAIRN_U8);
    ops_refuse(c, block != CAIRN_BLOCK_NONE && (block < 2 || !block_find(block)),
               "block = %d is no block type; see cairn_block", (int)block);
    ops_want2(c, t, name, types, -1, -1);
    if (c->status) return;
    type = block_find(ops_block_type(t, block));
    out->type = type->type;
    out->outs = t->shape[0];
    out->data = tensor_data(t);
    out->ins = t->shape[1];
    out->row_bytes = out->ins * (int64_t)cairn_type_bytes(cairn_tensor_type(t));
    if (block == CAIRN_BLOCK_NONE) return;
    ops_refuse(c, t->shape[1] % type->bytes != 0, "rows of %s have %lld bytes, no multiple of %d",
               name, (long long)t->shape[1], type->bytes);
    out->ins = t->shape[1] / type->bytes * type->values;
}

/* ---- rows of a paged cache ----------------------------------------------------------------------*/

static void ops_want_paged_of(ops_check *c, const cairn_pages *pages, unsigned types, int64_t rows,
                              ops_paged *out) {
    static const int64_t any[5] = {-1, 2, -1, -1, -1};
    memset(out, 0, sizeof *out);
    ops_want_as(c, pages->cache, "pages.cache", types, false, 5, any);
    ops_want2(c, pages->page_table, "pages.page_table", OPS_I32, -1, -1);
    ops_want1(c, pages->positions, "pages.positions", OPS_I32, rows);
    if (c->status) return;
    rows = pages->positions->shape[0];
    ops_want_as(c, pages->sequences, "pages.sequences", OPS_I32, true, 1, &rows);
    ops_refuse(c, !pages->sequences && rows > pages->page_table->shape[0],
               "pages.sequences is NULL, but there are %lld rows and %lld sequences",
               (long long)rows, (long long)pages->page_table->shape[0]);
    ops_refuse(c, pages->cache->shape[3] < 1 || pages->cache->shape[4] < 1 ||
                      pages->cache->shape[4] % 16 || pages->cache->shape[4] > 256,
               "pages.cache has head_dim %lld; a multiple of 16 up to 256 is expected",
               (long long)pages->cache->shape[4]);
    if (c->status) return;
    out->rows = rows;
    out->at.cache = (uint16_t *)tensor_data(pages->cache);
    out->at.page_table = (const int32_t *)tensor_data(pages->page_table);
    out->at.sequences =
        pages->sequences ? (const int32_t *)tensor_data(pages->sequences) : NULL;
    out->at.positions = (const int32_t *)tensor_data(pages->positions);
    out->at.error = ops_error_word(c->dev, c->op);
    out->at.pages = (int32_t)pages->cache->shape[0];
    out->at.kv_heads = (int32_t)pages->cache->shape[2];
    out->at.page_size = (int32_t)pages->cache->shape[3];
    out->at.head_dim = (int32_t)pages->cache->shape[4];
    out->at.sequence_count = (int32_t)pages->page_table->shape[0];
    out->at.max_pages = (int32_t)pages->page_table->shape[1];
}

static void ops_want_paged(ops_check *c, const cairn_pages *pages, int64_t rows, ops_paged *out) {
    ops_want_paged_of(c, pages, OPS_F16, rows, out);
}

static bool ops_find_row(device *dev, const char *op, const paged_rows *at, int64_t r,
                         const int32_t **table, int32_t *position, cairn_status *status) {
    int32_t sequence = at->sequences ? at->sequences[r] : (int32_t)r;
    *position = at->positions[r];
    if (sequence < 0 || sequence >= at->sequence_count) {
        ops_bad_row(dev, op, r, "sequence out of range", sequence, status);
        return false;
    }
    if (*position < 0 || *position / at->page_size >= at->max_pages) {
        ops_bad_row(dev, op, r, "position out of range", *position, status);
        return false;
    }
    *table = at->page_table + (int64_t)sequence * at->max_pages;
    return true;
}

static uint16_t *ops_slots(const paged_rows *at, int32_t page, int k_or_v, int head) {
    return at->cache + (((int64_t)page * 2 + k_or_v) * at->kv_heads + head) * at->page_size *
                           at->head_dim;
}

/* paged: weights and cache rows of checked calls. */

/* ---- weights in blocks ----------------------------------------------------------------------- */

static int ops_block_of(cairn_type type) {
    switch (type) {
    case CAIRN_F16: return BLOCK_F16;
    case CAIRN_BF16: return BLOCK_BF16;
    default: return BLOCK_F32;
    }
}

static ops_weight ops_weight_of(const spec_call *s, const cairn_tensor *t, int32_t block,
                                spec_symbol outs, spec_symbol ins) {
    ops_weight w;
    w.type = block != CAIRN_BLOCK_NONE ? block : ops_block_of(cairn_tensor_type(t));
    w.outs = s->n[outs];
    w.ins = s->n[ins];
    w.row_bytes = t->shape[1] * (int64_t)cairn_type_bytes(cairn_tensor_type(t));
    w.data = tensor_data(t);
    return w;
}

/* ---- rows of a paged cache ------------------------------------------------------------------- */

static void ops_want_paged(spec_call *s, const cairn_pages *pages, ops_paged *out) {
    const int64_t rows = s->n[SPEC_ROWS], sequences = s->n[SPEC_SEQUENCES];
    memset(out, 0, sizeof *out);
    ops_refuse(&s->c, !pages->sequences && sequences < 0,
               "pages.page_table is NULL, and so are page_indptr and pages.sequences");
    ops_refuse(&s->c, !pages->sequences && rows > sequences,
               "pages.sequences is NULL, but there are %lld rows and %lld sequences",
               (long long)rows, (long long)sequences);
    if (s->c.status) return;
    out->rows = rows;
    out->at.cache = (uint16_t *)tensor_data(pages->cache);
    if (pages->page_table)
        out->at.page_table = (const int32_t *)tensor_data(pages->page_table);
    out->at.sequences = pages->sequences ? (const int32_t *)tensor_data(pages->sequences) : NULL;
    if (pages->positions) out->at.positions = (const int32_t *)tensor_data(pages->positions);
    out->at.error = ops_error_word(s->c.dev, s->c.op);
    out->at.pages = (int32_t)s->n[SPEC_PAGES];
    out->at.kv_heads = (int32_t)s->n[SPEC_KV_HEADS];
    out->at.page_size = (int32_t)s->n[SPEC_PAGE_SIZE];
    out->at.head_dim = (int32_t)s->n[SPEC_HEAD_DIM];
    out->at.sequence_count = (int32_t)sequences;
    out->at.max_pages = (int32_t)s->n[SPEC_MAX_PAGES];
}

static void ops_want_table(spec_call *s, const cairn_pages *pages, const cairn_pages_more *more,
                           ops_paged *out) {
    const bool rows = more->page_indptr != NULL;
    ops_refuse(&s->c, !pages->positions, "pages.positions is NULL");
    ops_refuse(&s->c, rows != (more->page_indices != NULL),
               "page_indptr and page_indices are to be given together");
    ops_refuse(&s->c, rows == (pages->page_table != NULL),
               rows ? "pages.page_table and page_indptr are given; one is expected"
                    : "pages.page_table is NULL, and so is page_indptr");
    ops_refuse(&s->c, !rows && more->last_page_len, "last_page_len is given without page_indptr");
    if (s->c.status || !rows) return;
    out->at.page_table = (const int32_t *)tensor_data(more->page_indices);
    out->at.indptr = (const int32_t *)tensor_data(more->page_indptr);
    if (more->last_page_len)
        out->at.last_page_len = (const int32_t *)tensor_data(more->last_page_len);
    out->at.max_pages = (int32_t)s->n[SPEC_ENTRIES];
}

static void ops_want_latent(spec_call *s, const cairn_tensor *kept, const cairn_tensor *latent,
                            int keys, int values) {
    const int64_t dim = s->n[SPEC_HEAD_DIM], of = s->n[SPEC_VALUES], heads = s->n[SPEC_KV_HEADS];
    ops_refuse(&s->c, !kept == !latent, latent ? "cache and latent are given; one is expected"
                                               : "cache is NULL, and so is latent");
    if (s->c.status) return;
    if (latent) {
        const int64_t width = latent->shape[2];
        const int want = cairn_tensor_type(latent) == CAIRN_U8 ? LATENT_BYTES : LATENT_KEYS;
        ops_refuse(&s->c, width != want, "latent has %lld values a slot; %d are expected",
                   (long long)width, want);
        ops_refuse(&s->c, dim != keys || of != values || heads > 1,
                   "latent is given, but there are %lld KV heads of %lld and %lld values; 1 of %d and "
                   "%d is expected", (long long)heads, (long long)dim, (long long)of, keys, values);
    } else {
        ops_refuse(&s->c, dim > 256, "cache has %lld values in a head; 256 at most are expected",
                   (long long)dim);
        ops_refuse(&s->c, of != dim, "v and out have %lld values in a head; %lld are expected, as the "
                   "cache has", (long long)of, (long long)dim);
    }
    s->n[SPEC_KV_HEADS] = heads > 0 ? heads : 1;
}

/* A value's bits are those of an f16 2^8 times smaller, seven places on; so are the subnormal ones'. */
static void ops_read_e4m3(const simd_kernels *simd, const uint8_t *from, int n, float scale,
                          float *out) {
    uint16_t half[64];
    for (int at = 0; at < n; at += 64) {
        const int count = n - at < 64 ? n - at : 64;
        for (int i = 0; i < count; i++) {
            const uint32_t v = from[at + i], size = v & 127;
            half[i] = (uint16_t)((v & 128) << 8 | (size == 127 ? 0x7e00u : size << 7));
        }
        simd->of_half(half, out + at, count);
        for (int i = at; i < at + count; i++) out[i] *= 256.0f * scale;
    }
}

static void ops_read_values(const simd_kernels *simd, cairn_type type, const void *from, int64_t at,
                            int n, float scale, float *out) {
    const uint8_t *bytes = (const uint8_t *)from + at * (int64_t)cairn_type_bytes(type);
    if (type != CAIRN_E4M3) simd->dequantize(ops_block_of(type), bytes, out, n);
    else ops_read_e4m3(simd, bytes, n, scale, out);
}

static int32_t ops_clamp_tokens(int32_t tokens, const paged_rows *at) {
    const int64_t all = (int64_t)at->max_pages * at->page_size, most = INT32_MAX - 256;
    const int64_t room = all < most ? all : most;
    return tokens < room ? tokens : (int32_t)room;
}

static bool ops_row_holds(const paged_rows *at, int32_t sequence, int64_t position,
                          const int32_t **table) {
    int32_t from, to, kept;
    *table = at->page_table + (int64_t)sequence * at->max_pages;
    if (!at->indptr) return position / at->page_size < at->max_pages;
    from = at->indptr[sequence], to = at->indptr[sequence + 1];
    if (from < 0 || to > at->max_pages || from >= to) return false;
    kept = at->last_page_len ? at->last_page_len[sequence] : at->page_size;
    kept = kept < 0 ? 0 : kept < at->page_size ? kept : at->page_size;
    *table = at->page_table + from;
    return position < (int64_t)(to - from - 1) * at->page_size + kept;
}

static bool ops_find_row(device *dev, const char *op, const paged_rows *at, int64_t r,
                         const int32_t **table, int32_t *position, cairn_status *status) {
    int32_t sequence = at->sequences ? at->sequences[r] : (int32_t)r;
    *position = at->positions[r];
    if (sequence < 0 || sequence >= at->sequence_count) {
        ops_bad_row(dev, op, r, "sequence out of range", sequence, status);
        return false;
    }
    if (*position < 0 || !ops_row_holds(at, sequence, *position, table)) {
        ops_bad_row(dev, op, r, "position out of range", *position, status);
        return false;
    }
    return true;
}

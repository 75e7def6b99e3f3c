/* index: index_logits and index_logits_paged. On both backends a group of rows that share their keys
 * is scored at a time, as kernels_src/index/logits.cu says. */

enum {
    INDEX_GROUP = 4,    /* rows of a group at most */
    INDEX_KEYS = SIMD_DOT_KEYS, /* that the CPU widens at a time */
    INDEX_SHARED = 96 * 1024
};

/* ---- CPU ------------------------------------------------------------------------------------- */

typedef struct index_job {
    device *dev;
    const simd_kernels *simd;
    const index_logits_params *p;
    bool paged;
    const float *values;  /* [256] of e4m3 */
    float *scratch;       /* a part for each worker */
    size_t scratch_floats;
    os_atomic bad_row;    /* some row + 1 with a page that is missing; 0: none */
} index_job;

/* What a worker has of a piece. */
typedef struct index_piece {
    float *q;    /* [count, heads, 128] */
    float *keys; /* [128, INDEX_KEYS] */
    float scales[INDEX_KEYS];
    bool missing[INDEX_KEYS];
    int64_t first, request;
    int count;
} index_piece;

typedef struct index_range { int64_t from, to; } index_range;

static index_range index_window(const index_logits_params *p, bool paged, int64_t r, bool *fine) {
    const int64_t room = paged ? (int64_t)p->max_pages * p->page_size : p->n;
    const int64_t most = room < p->n ? room : p->n;
    const int64_t start = p->row_starts ? p->row_starts[r] : 0;
    index_range window;
    int64_t length;
    window.from = start < 0 ? 0 : start > most ? most : start;
    length = p->lengths ? p->lengths[r] : most - window.from;
    window.to = window.from;
    if (length > 0) window.to = length < most - window.from ? window.from + length : most;
    *fine = start == window.from && length == window.to - window.from;
    return window;
}

/* The same, empty for a row that is left out. */
static index_range index_scored(const index_job *job, int64_t r) {
    bool fine;
    index_range window = index_window(job->p, job->paged, r, &fine);
    if (window.to - window.from <= job->p->least) window.from = window.to = 0;
    return window;
}

/* What counts for 128 bytes of which one is NaN: a dot product with them is none. */
static const uint8_t index_nothing[CAIRN_INDEX_DIM] = {0};

static const uint8_t *index_checked(const uint8_t *bytes) {
    uint64_t any = 0, word;
    for (int i = 0; i < CAIRN_INDEX_DIM; i += 8) {
        memcpy(&word, bytes + i, 8);
        any |= (word & UINT64_C(0x7f7f7f7f7f7f7f7f)) + UINT64_C(0x0101010101010101);
    }
    return any & UINT64_C(0x8080808080808080) ? index_nothing : bytes;
}

/* Where key j of the piece's request stands; NULL: on no page. Its scale goes to *scale. */
static const uint8_t *index_find_key(const index_job *job, const index_piece *w, int64_t j,
                                     float *scale) {
    const index_logits_params *p = job->p;
    const uint8_t *page;
    int32_t id;
    if (!job->paged) {
        *scale = p->key_scales[j];
        return p->keys + j * CAIRN_INDEX_DIM;
    }
    id = p->page_table[w->request * p->max_pages + j / p->page_size];
    if (id < 0 || id >= p->pages) return NULL;
    page = p->keys + (int64_t)id * p->page_size * CAIRN_INDEX_BYTES;
    memcpy(scale, page + (int64_t)p->page_size * CAIRN_INDEX_DIM + j % p->page_size * 4, 4);
    return page + j % p->page_size * CAIRN_INDEX_DIM;
}

/* The keys [from, to) of the piece's request, the values of a dimension side by side. */
static void index_load(index_job *job, index_piece *w, int64_t from, int64_t to) {
    const uint8_t *keys[INDEX_KEYS];
    for (int i = 0; i < INDEX_KEYS; i++) {
        const uint8_t *key = NULL;
        if (i < to - from) key = index_find_key(job, w, from + i, &w->scales[i]);
        w->missing[i] = !key;
        if (!key && i < to - from) os_atomic_swap_if(&job->bad_row, 0, (int32_t)w->first + 1);
        keys[i] = key ? index_checked(key) : index_nothing;
    }
    for (int d = 0; d < CAIRN_INDEX_DIM; d++)
        for (int i = 0; i < INDEX_KEYS; i++) w->keys[d * INDEX_KEYS + i] = job->values[keys[i][d]];
}

/* The queries of the piece's rows. */
static void index_load_rows(const index_job *job, const index_piece *w) {
    const int64_t heads = job->p->heads;
    const uint8_t *q = job->p->q + w->first * heads * CAIRN_INDEX_DIM;
    for (int64_t h = 0; h < w->count * heads; h++) {
        const uint8_t *head = index_checked(q + h * CAIRN_INDEX_DIM);
        for (int d = 0; d < CAIRN_INDEX_DIM; d++)
            w->q[h * CAIRN_INDEX_DIM + d] = job->values[head[d]];
    }
}

/* Row i of the piece with those of the loaded keys [from, ..) that are in `window`. */
static void index_score_row(const index_job *job, const index_piece *w, int i, int64_t from,
                            index_range window) {
    const index_logits_params *p = job->p;
    float *out = p->out + (w->first + i) * p->stride, sums[INDEX_KEYS];
    job->simd->relu_dots(w->keys, w->q + (int64_t)i * p->heads * CAIRN_INDEX_DIM,
                         p->weights + (w->first + i) * p->heads, p->heads, sums);
    for (int64_t j = window.from; j < window.to; j++)
        out[j] = w->missing[j - from] ? -INFINITY : sums[j - from] * w->scales[j - from];
}

static index_range index_meet(index_range a, index_range b) {
    index_range both = {a.from > b.from ? a.from : b.from, a.to < b.to ? a.to : b.to};
    return both;
}

static void index_clean(const index_job *job, const index_piece *w, index_range columns) {
    bool fine;
    for (int i = 0; i < w->count; i++) {
        const index_range window = index_window(job->p, job->paged, w->first + i, &fine);
        float *out = job->p->out + (w->first + i) * job->p->stride;
        for (int64_t j = columns.from; j < columns.to; j++)
            if (j < window.from || j >= window.to) out[j] = -INFINITY;
    }
}

/* -inf for the keys of rows that belong to no request. */
static void index_score_nothing(const index_job *job, const index_piece *w, index_range columns) {
    for (int i = 0; i < w->count; i++) {
        const index_range seen = index_meet(columns, index_scored(job, w->first + i));
        for (int64_t j = seen.from; j < seen.to; j++)
            job->p->out[(w->first + i) * job->p->stride + j] = -INFINITY;
    }
}

/* The columns of a group's piece, as far as a row of it sees them. */
static void index_score_piece(index_job *job, index_piece *w, index_range columns) {
    const index_logits_params *p = job->p;
    index_range all = {INT64_MAX, 0};
    if (p->clean) index_clean(job, w, columns);
    for (int i = 0; i < w->count; i++) {
        const index_range window = index_scored(job, w->first + i);
        if (window.from == window.to) continue;
        if (window.from < all.from) all.from = window.from;
        if (window.to > all.to) all.to = window.to;
    }
    all = index_meet(all, columns);
    if (all.from >= all.to) return;
    if (job->paged && (w->request < 0 || w->request >= p->requests)) {
        index_score_nothing(job, w, all);
        return;
    }
    index_load_rows(job, w);
    for (int64_t from = all.from; from < all.to; from += INDEX_KEYS) {
        index_range tile = {from, from + INDEX_KEYS < all.to ? from + INDEX_KEYS : all.to};
        index_load(job, w, tile.from, tile.to);
        for (int i = 0; i < w->count; i++) {
            const index_range seen = index_meet(tile, index_scored(job, w->first + i));
            if (seen.from < seen.to) index_score_row(job, w, i, from, seen);
        }
    }
}

static int64_t index_groups(const index_logits_params *p) {
    const int64_t each = (p->rows_each + p->group - 1) / p->group;
    return (p->rows + p->rows_each - 1) / p->rows_each * each;
}

static void index_score_task(void *context, int worker) {
    index_job *job = (index_job *)context;
    const index_logits_params *p = job->p;
    const int64_t each = (p->rows_each + p->group - 1) / p->group;
    const int64_t runs = (p->n + INDEX_RUN - 1) / INDEX_RUN, units = index_groups(p) * runs;
    index_piece w;
    w.q = job->scratch + (size_t)worker * job->scratch_floats;
    w.keys = w.q + (int64_t)p->group * p->heads * CAIRN_INDEX_DIM;
    for (int64_t u = worker; u < units; u += pool_threads(job->dev->pool)) {
        const int64_t group = u / runs, within = group % each * p->group;
        index_range columns = {u % runs * INDEX_RUN, (u % runs + 1) * INDEX_RUN};
        if (columns.to > p->n) columns.to = p->n;
        w.first = group / each * p->rows_each + within;
        w.count = (int)(p->rows_each - within < p->group ? p->rows_each - within : p->group);
        if (w.count > p->rows - w.first) w.count = (int)(p->rows - w.first);
        w.request = p->row_requests ? p->row_requests[w.first] : w.first / p->rows_each;
        index_score_piece(job, &w, columns);
    }
}

/* Whether (row, split) is a boundary: in a row, at one of its splits or behind the last. */
static bool index_is_work(const index_logits_params *p, const int32_t *at) {
    bool fine;
    int64_t end;
    if (at[0] < 0 || at[0] > p->rows || at[1] < 0) return false;
    if (at[1] == 0) return true;
    if (at[0] == p->rows) return false;
    end = index_window(p, true, at[0], &fine).to;
    return at[1] <= (end + p->split - 1) / p->split;
}

/* What the schedule of a GPU must hold, though threads do not go by it. */
static void index_check_schedule(device *dev, const char *op, const index_logits_params *p,
                                 cairn_status *status) {
    for (int w = 0; w < p->workers && !*status; w++) {
        const int32_t *from = p->schedule + 2 * w, *to = from + 2;
        bool fine = index_is_work(p, from) && index_is_work(p, to), whole;
        fine = fine && (from[0] < to[0] || (from[0] == to[0] && from[1] <= to[1]));
        fine = fine && (w < p->workers - 1 || to[1] == 0) && (w > 0 || from[1] == 0);
        for (int64_t r = 0; w == 0 && fine && r < from[0]; r++)
            fine = index_window(p, true, r, &whole).to == 0;
        if (!fine)
            ops_bad_row(dev, op, p->first_row + from[0], "the schedule does not fit", from[1],
                        status);
    }
}

/* The first row that is wrong, in the words of the GPU. */
static cairn_status index_report(index_job *job, const char *op) {
    const index_logits_params *p = job->p;
    const int32_t bad = os_atomic_load(&job->bad_row);
    cairn_status status = CAIRN_OK;
    for (int64_t r = 0; r < p->rows && !status; r++) {
        bool fine;
        const index_range window = index_window(p, job->paged, r, &fine);
        const int64_t row = p->first_row + r;
        if (p->row_starts && p->row_starts[r] != window.from)
            ops_bad_row(job->dev, op, row, "row start out of range", p->row_starts[r], &status);
        else if (!fine)
            ops_bad_row(job->dev, op, row, "length out of range", p->lengths[r], &status);
        else if (p->row_requests && (p->row_requests[r] < 0 || p->row_requests[r] >= p->requests))
            ops_bad_row(job->dev, op, row, "id out of range", p->row_requests[r], &status);
    }
    if (bad)
        ops_bad_row(job->dev, op, p->first_row + bad - 1, "page missing from the table", -1,
                    &status);
    if (p->schedule) index_check_schedule(job->dev, op, p, &status);
    return status;
}

static cairn_status index_score_cpu(cairn_runtime *rt, const char *op, bool paged,
                                    const index_logits_params *p) {
    const int threads = pool_threads(rt->pool);
    index_job job;
    void *memory;
    cairn_status status;
    memset(&job, 0, sizeof job);
    job.dev = &rt->device;
    job.simd = simd_for(CAIRN_INDEX_DIM);
    job.p = p;
    job.paged = paged;
    job.scratch_floats =
        ((size_t)p->group * (size_t)p->heads + INDEX_KEYS) * CAIRN_INDEX_DIM;
    status = device_scratch(&rt->device, (256 + job.scratch_floats * (size_t)threads) * 4, op,
                            &memory);
    if (status) return status;
    fp8_values((float *)memory);
    job.values = (const float *)memory;
    job.scratch = (float *)memory + 256;
    pool_run(rt->pool, threads, index_score_task, &job);
    return index_report(&job, op);
}

/* ---- CUDA ------------------------------------------------------------------------------------ */

/* The tiles of a block with which the last blocks end soonest: a block costs two tiles beside its
 * own, and as many as fit run at a time. */
static int index_tiles(const device *dev, bool paged, const index_logits_params *p, int shared_bytes) {
    const int64_t tiles = (p->n + CAIRN_INDEX_TILE - 1) / CAIRN_INDEX_TILE, groups = index_groups(p);
    const int most = CAIRN_INDEX_BLOCKS(dev->arch, paged), room = dev->max_shared_bytes / shared_bytes;
    const int64_t resident = (int64_t)dev->sm_count * (room < 1 ? 1 : room < most ? room : most);
    int64_t least = INT64_MAX;
    int best = 1;
    for (int each = 1; each <= 64 && each <= tiles; each++) {
        const int64_t blocks = (tiles + each - 1) / each * groups;
        const int64_t time = (blocks + resident - 1) / resident * (each + 2);
        if (time < least) least = time, best = each;
    }
    return best;
}

static cairn_status index_score_cuda(cairn_runtime *rt, bool paged, index_logits_params *p) {
    const int columns = p->heads % (2 * CAIRN_INDEX_COLUMNS) ? 1 : 2; /* of a product */
    const int heads = (p->heads + CAIRN_INDEX_COLUMNS - 1) & -CAIRN_INDEX_COLUMNS;
    const int row_bytes = heads * (CAIRN_INDEX_PITCH(rt->device.arch) + 4) + 8;
    const int tile_bytes = 1024 + CAIRN_INDEX_STAGES * CAIRN_INDEX_STAGE;
    device_dims dims = {{0, 1, 1}, 128, 0, 0, ops_is_dependent(&rt->device, p->rows)};
    ops_kernel want;
    while (p->group > 1 && p->group * row_bytes > INDEX_SHARED - tile_bytes) p->group--;
    dims.shared_bytes = (unsigned)(p->group * row_bytes + tile_bytes);
    p->tiles = index_tiles(&rt->device, paged, p, (int)dims.shared_bytes);
    memset(&want, 0, sizeof want);
    want.source = "index/logits.cu";
    want.entry = "index_logits";
    want.constants[0].name = "PAGE_SIZE", want.constants[0].value = paged ? p->page_size : 0;
    want.constants[1].name = "COLUMNS", want.constants[1].value = columns * CAIRN_INDEX_COLUMNS;
    want.constant_count = 2;
    dims.grid[0] = (unsigned)index_groups(p);
    dims.grid[1] = (unsigned)((p->n + p->tiles * CAIRN_INDEX_TILE - 1) /
                              (p->tiles * CAIRN_INDEX_TILE));
    if (p->schedule) dims.grid[0] = (unsigned)p->workers, dims.grid[1] = 1;
    return ops_launch_as(rt, &want, &dims, p);
}

/* ---- entries --------------------------------------------------------------------------------- */

/* Scores all rows of p on the runtime's backend. */
static cairn_status index_score(cairn_runtime *rt, const char *op, bool paged,
                                index_logits_params *p) {
    if (!p->rows || !p->n) return CAIRN_OK;
    p->group = p->row_requests || p->schedule ? 1 : INDEX_GROUP;
    if (p->row_requests) p->rows_each = 1;
    if (p->group > p->rows_each) p->group = p->rows_each;
    if (!rt->device.cuda) return index_score_cpu(rt, op, paged, p);
    p->error = ops_error_word(&rt->device, op);
    return index_score_cuda(rt, paged, p);
}

static const int32_t *index_ints(const cairn_tensor *t) {
    return t ? (const int32_t *)tensor_data(t) : NULL;
}

/* What both entries, and index_topk, have; the rest of p is zero. */
static void index_rows_of(const spec_call *s, const cairn_tensor *q, const cairn_tensor *weights,
                          index_logits_params *p) {
    memset(p, 0, sizeof *p);
    p->q = (const uint8_t *)tensor_data(q);
    p->weights = (const float *)tensor_data(weights);
    p->rows = (int32_t)s->n[SPEC_ROWS];
    p->heads = (int32_t)s->n[SPEC_HEADS];
    p->rows_each = p->rows > 0 ? p->rows : 1;
}

/* Refuses rows that do not divide among the requests of a page table. */
static void index_want_requests(spec_call *s, const cairn_tensor *requests) {
    const int64_t rows = s->n[SPEC_ROWS], count = s->n[SPEC_REQUESTS];
    ops_refuse(&s->c, !requests && rows && (count < 1 || rows % count != 0),
               "%lld rows for %lld requests of page_table: a multiple, or requests, is expected",
               (long long)rows, (long long)count);
}

/* Where the rows of a paged call find their keys. */
static void index_pages_of(spec_call *s, const cairn_tensor *paged, const cairn_tensor *page_table,
                           const cairn_tensor *requests, index_logits_params *p) {
    const int64_t rows = s->n[SPEC_ROWS], count = s->n[SPEC_REQUESTS];
    index_want_requests(s, requests);
    if (s->c.status) return;
    p->keys = (const uint8_t *)tensor_data(paged);
    p->page_table = index_ints(page_table);
    p->row_requests = index_ints(requests);
    p->pages = (int32_t)s->n[SPEC_PAGES];
    p->page_size = (int32_t)s->n[SPEC_PAGE_SIZE];
    p->requests = (int32_t)count;
    p->max_pages = (int32_t)s->n[SPEC_MAX_PAGES];
    p->rows_each = count > 0 && rows >= count ? (int32_t)(rows / count) : 1;
}

cairn_status cairn_index_logits(cairn_runtime *rt, const cairn_index_logits_args *args) {
    cairn_index_logits_args a;
    index_logits_params p;
    spec_call s;
    if (spec_take(rt, SPEC_OF(index_logits), &a, args, &s)) return s.c.status;
    index_rows_of(&s, a.q, a.weights, &p);
    p.keys = (const uint8_t *)tensor_data(a.keys);
    p.key_scales = (const float *)tensor_data(a.key_scales);
    p.row_starts = index_ints(a.row_starts);
    p.lengths = index_ints(a.lengths);
    p.out = (float *)tensor_data(a.out);
    p.stride = tensor_stride(a.out, 0);
    p.n = (int32_t)s.n[SPEC_N];
    p.clean = a.clean != 0;
    return spec_end(rt, index_score(rt, s.c.op, false, &p));
}

cairn_status cairn_index_logits_paged(cairn_runtime *rt,
                                      const cairn_index_logits_paged_args *args) {
    cairn_index_logits_paged_args a;
    index_logits_params p;
    spec_call s;
    if (spec_take(rt, SPEC_OF(index_logits_paged), &a, args, &s)) return s.c.status;
    index_rows_of(&s, a.q, a.weights, &p);
    index_pages_of(&s, a.cache, a.page_table, a.requests, &p);
    p.split = a.split ? a.split : 256;
    ops_refuse(&s.c, p.split % 16, "split = %d; a multiple of 16 is expected", (int)p.split);
    if (s.c.status) return s.c.status;
    p.lengths = index_ints(a.lengths);
    p.schedule = index_ints(a.schedule);
    p.workers = a.schedule ? (int32_t)a.schedule->shape[0] - 1 : 0;
    p.out = (float *)tensor_data(a.out);
    p.stride = tensor_stride(a.out, 0);
    p.n = (int32_t)s.n[SPEC_N];
    p.clean = a.clean != 0;
    return spec_end(rt, index_score(rt, s.c.op, true, &p));
}

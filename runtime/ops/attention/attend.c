/* attend: the entries attend, attend_pages and attend_tokens, and their launch. See attention.h. */

/* A checked call: what the kernels get, and what of it is not plain. */
typedef struct ops_attend_call {
    spec_call s;
    ops_paged paged;
    attend_params p;
    cairn_type query, stored;
    int abilities;
    bool latent, packed; /* the rows share keys */
} ops_attend_call;

/* Pages in the longest list that a row may have. */
static int ops_attend_most_pages(const attend_params *p) {
    const int size = p->at.page_size;
    int64_t near = p->window > 0 ? (int64_t)p->window / size + 2 : p->sparse ? 1 : p->at.max_pages;
    int64_t all = near + (p->selected ? p->topk : 0) + layout_sink_pages(p->sinks, size);
    return all < p->at.max_pages ? (int)all : p->at.max_pages;
}

/* units: of rows x KV heads x tiles of so many queries. */
static cairn_status ops_attend_workspace(device *dev, attend_params *p, int64_t units, int queries,
                                         int runs) {
    size_t parts = (size_t)units * (size_t)runs * (size_t)queries * (size_t)p->at.head_dim * 4;
    size_t sums = (size_t)units * (size_t)runs * (size_t)queries * 8;
    void *memory, *flags;
    cairn_status status = device_scratch(dev, parts + sums, "attend", &memory);
    if (!status) status = device_flags(dev, (size_t)units * 4, "attend", &flags);
    if (status) return status;
    p->arrived = (uint32_t *)flags;
    p->partial = (float *)memory;
    p->sums = memory ? p->partial + parts / 4 : NULL;
    return CAIRN_OK;
}

/* The chunks that a row of the call may have at most, and its runs. */
typedef struct ops_attend_grid { int run, runs, chain, blocks, way; } ops_attend_grid;

/* Blocks for a row whose runs are chained up to `chain` chunks: as many as any length up to the
 * longest takes. */
static int ops_attend_blocks(int chunks, int chain, int kv_heads) {
    const int most = layout_most_runs(kv_heads), longest = layout_run(chunks, kv_heads);
    int blocks = 1;
    for (int run = 1; run <= longest; run++) {
        const int runs = (chunks + run - 1) / run, each = layout_chained(chain, run);
        const int here = ((runs < most ? runs : most) + each - 1) / each;
        if (here > blocks) blocks = here;
    }
    return blocks;
}

/* How many chunks a block is to take, up to `most`: what ends first where so many blocks run at a time, a
 * block's start costing about one and a half chunks. Rows may be shorter than `chunks`: one that is much
 * longer than the others is never one block's. */
static void ops_attend_chain(ops_attend_grid *grid, int chunks, int kv_heads, int64_t units,
                             int64_t slots, int most) {
    const int whole = chunks + grid->run - 1, longest = whole < most ? whole : most;
    double best = 0;
    for (int chain = grid->run; chain <= longest; chain += grid->run) {
        const int blocks = ops_attend_blocks(chunks, chain, kv_heads);
        const int64_t waves = (units * blocks + slots - 1) / slots;
        const double cost = (double)waves * (chain + 1.5);
        if (chain > grid->run && cost >= best) continue;
        best = cost;
        grid->chain = chain > grid->run ? chain : 0;
        grid->blocks = chain > grid->run ? blocks : grid->runs;
    }
}

/* The longest chain, in chunks. Where rows attend all, long runs of whole values have blocks that wait for memory
 * alone, and would end too unevenly; those of bytes are bound by instructions, of which a block's start has many. */
static int ops_attend_longest(const attend_params *p, int abilities, int run) {
    if (p->selected || abilities & ATTEND_TOKENS) return 24;
    return run < 4 || (abilities & ATTEND_CACHE) == ATTEND_CACHE_E4M3 ? 16 : 0;
}

/* units: of rows x KV heads x tiles of queries. */
static ops_attend_grid ops_attend_plan(const cairn_runtime *rt, const attend_params *p, int abilities,
                                       int64_t units) {
    const int dim = p->at.head_dim, heads = p->at.kv_heads, chunk = layout_chunk(dim);
    const int chunks = abilities & ATTEND_TOKENS
                           ? (int)(((int64_t)p->token_width + chunk - 1) / chunk)
                           : layout_chunks(ops_attend_most_pages(p), p->at.page_size, dim);
    const int most = layout_most_runs(heads);
    ops_attend_grid grid;
    grid.run = layout_run(chunks, heads);
    grid.runs = grid.blocks = chunks < 1 ? 1 : chunks < most ? chunks : most;
    grid.chain = grid.way = 0;
    if (p->heads / heads <= LAYOUT_CHAIN_ROWS)
        ops_attend_chain(&grid, chunks, heads, units, (int64_t)rt->device.sm_count * 2,
                         ops_attend_longest(p, abilities, grid.run));
    return grid;
}

/* How runs are merged, grid->way, and the memory for it; few rows as the engine's (forward/cuda_chain.c). Up to
 * LAYOUT_ATTEND_CLUSTER runs by a cluster, where each block has a multiprocessor to itself (an H200 has room for 15
 * clusters so). More by relay, where all blocks find room at once, those that merge beside those that they wait for;
 * its memory, zeros, is not made within a capture. Else by the last block. */
static cairn_status ops_attend_merge(cairn_runtime *rt, attend_params *p, ops_attend_grid *grid, int64_t units) {
    device *dev = &rt->device;
    const int group = p->heads / p->at.kv_heads, queries = group < 16 ? group : 16;
    const int64_t most = dev->sm_count / 4 / units, places = 2 * (int64_t)dev->sm_count;
    const bool few = grid->runs > 1 && units * grid->runs <= places;
    void *flags = NULL;
    cairn_status status = CAIRN_OK;
    size_t bytes;
    p->runs = grid->runs, p->mergers = most < 1 ? 1 : most > 4 ? 4 : (int32_t)most;
    bytes = (size_t)(units * grid->runs * queries * (p->at.head_dim * 4 + p->mergers * 8));
    if (few && grid->runs <= LAYOUT_ATTEND_CLUSTER && device_has_clusters(dev) &&
        units * (LAYOUT_ATTEND_CLUSTER * 22) <= places * 10)
        grid->way = ATTEND_CLUSTER, grid->blocks = LAYOUT_ATTEND_CLUSTER;
    else if (few && !(rt->capturing && bytes > dev->flags_bytes)) grid->way = ATTEND_RELAY, grid->blocks = grid->runs;
    else if (grid->chain) grid->way = ATTEND_CHAINED;
    if (grid->way != ATTEND_CHAINED) grid->chain = 0;
    p->chain = grid->chain;
    if (grid->way != ATTEND_CLUSTER && grid->way != ATTEND_RELAY)
        return ops_attend_workspace(dev, p, units, queries, grid->runs);
    if (grid->way == ATTEND_RELAY) status = device_flags(dev, bytes, "attend", &flags);
    p->arrived = (uint32_t *)flags;
    return status;
}

static ops_kernel ops_attend_kernel(const char *source, const char *entry, const attend_params *p,
                                    int abilities) {
    ops_kernel want;
    memset(&want, 0, sizeof want);
    want.source = source;
    want.entry = entry;
    want.constants[0].name = "HEAD_DIM", want.constants[0].value = p->at.head_dim;
    want.constants[1].name = "PAGE_SIZE", want.constants[1].value = p->at.page_size;
    want.constants[2].name = "ABILITIES", want.constants[2].value = abilities;
    want.constant_count = abilities ? 3 : 2;
    if (abilities & ATTEND_TOKENS) want.constants[1].value = 16; /* the kernel asks at.page_size */
    return want;
}

/* Rows that share keys, in tiles of `most` queries. The keys of a step's rows are cut into parts of
 * ATTEND_PACKED_KEYS, tiles of `keys`. */
enum { ATTEND_PACKED_KEYS = 2048 };
static cairn_status ops_attend_tiles(cairn_runtime *rt, attend_params *p, int64_t rows, int abilities,
                                     int most, int keys, device_dims *dims) {
    const int group = p->heads / p->at.kv_heads;
    const bool step = (abilities & ATTEND_MASK) != 0;
    const int64_t tokens = (int64_t)p->at.max_pages * p->at.page_size;
    const int64_t parts = step ? (tokens + ATTEND_PACKED_KEYS - 1) / ATTEND_PACKED_KEYS : 1;
    int64_t tiles;
    cairn_status status = handles_enter(rt);
    if (status) return status;
    p->tokens_each = step && p->mask_rows < most / group ? p->mask_rows : most / group;
    p->rows = (int32_t)rows;
    p->chain = step ? ATTEND_PACKED_KEYS / keys : 0;
    tiles = (rows + p->tokens_each - 1) / p->tokens_each;
    status = ops_attend_workspace(&rt->device, p, tiles * p->at.kv_heads, parts > 1 ? most : 0,
                                  (int)parts);
    dims->grid[0] = (unsigned)parts;
    dims->grid[1] = (unsigned)p->at.kv_heads;
    dims->grid[2] = (unsigned)tiles;
    return handles_leave(rt, status);
}

static cairn_status ops_attend_packed_cuda(cairn_runtime *rt, attend_params *p, int64_t rows,
                                           int abilities) {
    const int dim = p->at.head_dim;
    device_dims dims = {{0, 0, 0}, 128, 0, 0, false};
    ops_kernel want = ops_attend_kernel("attention/packed.cu", "attend_packed", p, abilities);
    cairn_status status = ops_attend_tiles(rt, p, rows, abilities, layout_packed_rows(dim),
                                           layout_packed_keys(dim), &dims);
    dims.shared_bytes = (unsigned)layout_packed_bytes(dim);
    return status ? status : ops_launch_as(rt, &want, &dims, p);
}

/* Whether attention/prompt.cu does it: by wgmma, of two values of one type. */
static bool ops_attend_is_prompt(const device *dev, const attend_params *p, int abilities) {
    const int kept = abilities & ATTEND_CACHE, dim = p->at.head_dim;
    return dev->arch == 90 && layout_has_many(dim) && !(abilities & ATTEND_SOFTCAP) &&
           p->heads / p->at.kv_heads <= LAYOUT_MANY_ROWS &&
           (kept == ATTEND_CACHE_F16 ||
            (kept == ATTEND_CACHE_BF16 && (abilities & ATTEND_QUERY_BF16))) &&
           dev->max_shared_bytes >= layout_many_bytes(dim);
}

static cairn_status ops_attend_prompt_cuda(cairn_runtime *rt, attend_params *p, int64_t rows,
                                           int abilities) {
    device_dims dims = {{0, 0, 0}, LAYOUT_MANY_THREADS, 0, 0, false};
    ops_kernel want = ops_attend_kernel("attention/prompt.cu", "attend_prompt", p, abilities);
    cairn_status status = ops_attend_tiles(rt, p, rows, abilities, LAYOUT_MANY_ROWS, LAYOUT_MANY_KEYS, &dims);
    dims.shared_bytes = (unsigned)layout_many_bytes(p->at.head_dim);
    return status ? status : ops_launch_as(rt, &want, &dims, p);
}

static cairn_status ops_attend_cuda(cairn_runtime *rt, attend_params *p, int64_t rows,
                                    int abilities) {
    const int group = p->heads / p->at.kv_heads, size = p->at.page_size, dim = p->at.head_dim;
    const int64_t units = (int64_t)p->at.kv_heads * ((group + 15) / 16);
    ops_attend_grid grid = ops_attend_plan(rt, p, abilities, units * rows);
    device_dims dims = {{0, 0, 0}, 0, 0, 0, false};
    ops_kernel want;
    bool relay;
    int run_pages, span;
    cairn_status status = handles_enter(rt);
    if (status) return status;
    if ((status = handles_leave(rt, ops_attend_merge(rt, p, &grid, units * rows)))) return status;
    abilities |= grid.way;
    want = ops_attend_kernel("attention/attention.cu", "attend", p, abilities);
    span = grid.chain > grid.run ? grid.chain : grid.run;
    run_pages = abilities & ATTEND_TOKENS ? 0 : span * layout_chunk(dim) / size + 2;
    relay = grid.way == ATTEND_RELAY;
    dims.grid[0] = (unsigned)(relay ? units : grid.blocks);
    dims.grid[1] = (unsigned)(relay ? rows : units);
    dims.grid[2] = (unsigned)(relay ? grid.blocks : rows);
    dims.block = (unsigned)layout_warps(dim) * 32;
    dims.shared_bytes = (unsigned)layout_attend_bytes(dim);
    if ((abilities & ATTEND_CACHE) == ATTEND_CACHE_E4M3)
        dims.shared_bytes += (unsigned)layout_scale_bytes(dim);
    if (grid.chain) dims.shared_bytes += (unsigned)layout_chain_bytes(dim);
    if (grid.way == ATTEND_CLUSTER)
        dims.shared_bytes += (unsigned)layout_cluster_bytes(dim), dims.cluster = LAYOUT_ATTEND_CLUSTER;
    if (!(abilities & ATTEND_TOKENS))
        dims.shared_bytes += (unsigned)layout_list_bytes(p->at.max_pages, run_pages);
    if (abilities & ATTEND_TWO_LEVEL) dims.shared_bytes += (unsigned)layout_bias_bytes(run_pages, dim);
    return ops_launch_as(rt, &want, &dims, p);
}

/* The kernel for so many heads; parts of a row's list; tiles of its heads, of which the workspace has room
 * for `most` each. */
typedef struct ops_attend_latents {
    const char *source, *entry;
    unsigned threads, shared_bytes;
    int64_t runs, units;
    int most;
} ops_attend_latents;

static ops_attend_latents ops_attend_latents_of(const device *dev, const attend_params *p,
                                                int abilities) {
    const bool few = p->heads <= 16 || (abilities & ATTEND_CACHE) == ATTEND_CACHE_F32 ||
                     dev->max_shared_bytes < layout_latent_wide_bytes();
    const bool many = !few && dev->arch == 90 && dev->max_shared_bytes >= layout_latent_many_bytes();
    const int tiles = many ? LATENT_MANY_RUN : LATENT_WIDE_RUN, most = few ? 16 : LATENT_WIDE_HEADS;
    const int keys = few ? LATENT_CHUNK * LATENT_RUN : LATENT_WIDE_KEYS * tiles;
    const int64_t runs = ((int64_t)p->token_width + keys - 1) / keys;
    ops_attend_latents shape = {"attention/latent.cu", "attend_latent", 128, 0, runs ? runs : 1,
                                (p->heads + most - 1) / most, p->heads < most ? p->heads : most};
    shape.shared_bytes = (unsigned)(many  ? layout_latent_many_bytes()
                                    : few ? layout_latent_bytes() : layout_latent_wide_bytes());
    if (few) return shape;
    shape.source = many ? "attention/latent_many.cu" : "attention/latent_wide.cu";
    shape.entry = many ? "attend_latent_many" : "attend_latent_wide";
    shape.threads = many ? LAYOUT_MANY_THREADS : 256;
    if (many) shape.most = most; /* all that its threads hold */
    return shape;
}

static void attention_latent_room(const device *dev, const attend_params *p, size_t *bytes,
                                  size_t *flags) {
    const ops_attend_latents shape = ops_attend_latents_of(dev, p, ATTEND_CACHE_F16);
    *flags = (size_t)shape.units * 4;
    *bytes = (size_t)(shape.units * shape.runs * shape.most) * (LATENT_VALUES * 4 + 8);
}

static cairn_status ops_attend_latent_cuda(cairn_runtime *rt, attend_params *p, int64_t rows,
                                           int abilities) {
    const ops_attend_latents shape = ops_attend_latents_of(&rt->device, p, abilities);
    device_dims dims = {{0, 0, 0}, shape.threads, 0, shape.shared_bytes, false};
    ops_kernel want;
    cairn_status status = handles_enter(rt);
    if (status) return status;
    p->at.head_dim = LATENT_VALUES; /* of the workspace, too */
    dims.grid[0] = (unsigned)shape.runs;
    dims.grid[1] = (unsigned)shape.units;
    dims.grid[2] = (unsigned)rows;
    if (!p->partial)
        status = ops_attend_workspace(&rt->device, p, shape.units * rows, shape.most, (int)shape.runs);
    if ((status = handles_leave(rt, status))) return status;
    memset(&want, 0, sizeof want);
    want.source = shape.source;
    want.entry = shape.entry;
    want.constants[0].name = "ABILITIES";
    want.constants[0].value = abilities & ~ATTEND_TOKENS;
    want.constant_count = 1;
    return ops_launch_as(rt, &want, &dims, p);
}

static cairn_status attention_latent_rows(cairn_runtime *rt, attend_params *p, int64_t rows) {
    p->at.error = ops_error_word(&rt->device, "attend_tokens");
    return ops_attend_latent_cuda(rt, p, rows, ATTEND_CACHE_F16 | ATTEND_TOKENS);
}

/* ---- entries --------------------------------------------------------------------------------- */

/* What all three fill in from a checked call. */
static void ops_attend_want(ops_attend_call *c, const cairn_tensor *q, const cairn_tensor *kept,
                            const cairn_tensor *scales, float softcap, cairn_tensor *out,
                            cairn_tensor *lse) {
    attend_params *p = &c->p;
    c->query = cairn_tensor_type(q), c->stored = cairn_tensor_type(kept);
    ops_refuse(&c->s.c, (c->stored == CAIRN_E4M3) != (scales != NULL),
               scales ? "scales are given, but the cache is not e4m3"
                      : "scales is NULL, but the cache is e4m3");
    if (c->s.c.status) return;
    c->abilities = c->stored == CAIRN_BF16   ? ATTEND_CACHE_BF16
                   : c->stored == CAIRN_F32  ? ATTEND_CACHE_F32
                   : c->stored == CAIRN_E4M3 ? ATTEND_CACHE_E4M3
                                             : 0;
    if (c->query == CAIRN_F16) c->abilities |= ATTEND_QUERY_F16;
    if (c->query == CAIRN_BF16) c->abilities |= ATTEND_QUERY_BF16;
    if (softcap > 0.0f) c->abilities |= ATTEND_SOFTCAP;
    if (c->paged.at.indptr) c->abilities |= ATTEND_CSR;
    p->at = c->paged.at;
    p->q = tensor_data(q);
    p->out = (float *)tensor_data(out);
    p->lse = lse ? (float *)tensor_data(lse) : NULL;
    p->scales = scales ? (const float *)tensor_data(scales) : NULL;
    p->softcap = softcap;
    p->heads = (int32_t)c->s.n[SPEC_HEADS];
}

static cairn_status ops_attend_run(cairn_runtime *rt, ops_attend_call *c, float scale,
                                   int32_t window, int32_t sinks) {
    attend_params *p = &c->p;
    if (c->s.c.status || !c->paged.rows) return c->s.c.status;
    p->scale = scale > 0.0f ? scale : (float)(1.0 / sqrt((double)p->at.head_dim));
    p->window = ops_clamp_tokens(window, &p->at);
    p->sinks = ops_clamp_tokens(sinks, &p->at);
    if (!rt->device.cuda)
        return ops_attend_cpu(rt, c->s.c.op, p, &c->paged, c->abilities, c->query, c->stored,
                              c->latent);
    if (c->latent) return ops_attend_latent_cuda(rt, p, c->paged.rows, c->abilities);
    if (c->packed && ops_attend_is_prompt(&rt->device, p, c->abilities))
        return ops_attend_prompt_cuda(rt, p, c->paged.rows, c->abilities);
    if (c->packed && p->heads / p->at.kv_heads <= layout_packed_rows(p->at.head_dim))
        return ops_attend_packed_cuda(rt, p, c->paged.rows, c->abilities);
    return ops_attend_cuda(rt, p, c->paged.rows, c->abilities);
}

/* The rows are those of a step with a mask. */
static void ops_attend_masked(ops_attend_call *c, const cairn_attend_args *a) {
    const int side = a->draft_length + 1, rows = a->mask ? a->step_rows : side * side;
    const int64_t bytes = a->mask ? a->mask->shape[1] : 0;
    ops_refuse(&c->s.c, a->mask && !a->bases, "mask is given without bases");
    ops_refuse(&c->s.c, a->mask && !rows, "mask is given, but step_rows is 0");
    ops_refuse(&c->s.c, a->mask && a->draft_length,
               "mask and draft_length are given; one is expected");
    ops_refuse(&c->s.c, a->bases && a->window > 0, "window = %d with bases; 0 is expected",
               (int)a->window);
    ops_refuse(&c->s.c, a->mask && bytes < ((int64_t)rows * rows + 7) / 8,
               "mask has %lld bytes a sequence; %lld are expected for %d rows", (long long)bytes,
               (long long)(((int64_t)rows * rows + 7) / 8), rows);
    if (c->s.c.status || !a->bases) return;
    c->abilities |= ATTEND_MASK;
    c->packed = true;
    c->p.bases = (const int32_t *)tensor_data(a->bases);
    c->p.mask = a->mask ? (const uint8_t *)tensor_data(a->mask) : NULL;
    c->p.mask_bytes = (int32_t)bytes;
    c->p.mask_rows = rows, c->p.mask_side = side;
}

/* The rows see a request's slots. */
static void ops_attend_chunk(ops_attend_call *c, const cairn_attend_args *a) {
    ops_refuse(&c->s.c, !a->kv_indices != !a->cu_lens,
               "kv_indices and cu_lens are to be given together");
    ops_refuse(&c->s.c, a->kv_indices && a->prompt, "prompt is set with kv_indices; 0 is expected");
    ops_refuse(&c->s.c, a->kv_indices && (a->pages.page_table || a->more.page_indptr ||
                                          a->pages.positions || a->bases || a->window > 0),
               "kv_indices are given: page tables, positions, bases and window are not to be");
    if (c->s.c.status || !a->kv_indices) return;
    c->abilities |= ATTEND_TOKENS;
    c->p.tokens = (const int32_t *)tensor_data(a->kv_indices);
    c->p.cu_lens = (const int32_t *)tensor_data(a->cu_lens);
    c->p.token_width = (int32_t)c->s.n[SPEC_TOKENS];
    c->p.topk = 0;
}

cairn_status cairn_attend(cairn_runtime *rt, const cairn_attend_args *args) {
    cairn_attend_args a;
    ops_attend_call c;
    memset(&c, 0, sizeof c);
    if (spec_take(rt, SPEC_OF(attend), &a, args, &c.s)) return c.s.c.status;
    ops_want_paged(&c.s, &a.pages, &c.paged);
    if (!a.kv_indices) ops_want_table(&c.s, &a.pages, &a.more, &c.paged);
    ops_attend_want(&c, a.q, a.pages.cache, a.more.scales, a.more.softcap, a.out, a.lse);
    c.packed = a.prompt != 0;
    ops_attend_masked(&c, &a);
    ops_attend_chunk(&c, &a);
    return spec_end(rt, ops_attend_run(rt, &c, a.scale, a.window, a.sinks));
}

/* Weights of pages, and which part is attended. */
static void ops_attend_weigh(ops_attend_call *c, const cairn_attend_pages_args *a) {
    const bool two_level = a->form == CAIRN_FORM_TWO_LEVEL;
    const int64_t heads = a->weights ? a->weights->shape[1] : 0;
    ops_refuse(&c->s.c, two_level && !a->weights, "form is two_level, but weights is NULL");
    ops_refuse(&c->s.c, !two_level && a->weights, "weights are given, but form is flat");
    ops_refuse(&c->s.c, a->weights && heads != c->s.n[SPEC_HEADS] && heads != c->s.n[SPEC_KV_HEADS],
               "weights has %lld heads; %lld or %lld are expected", (long long)heads,
               (long long)c->s.n[SPEC_KV_HEADS], (long long)c->s.n[SPEC_HEADS]);
    if (c->s.c.status) return;
    c->p.sparse = 1;
    c->p.part = a->part;
    if (a->part != CAIRN_PART_FUSED) c->abilities |= ATTEND_PARTS;
    if (a->landmarks) c->abilities |= ATTEND_LANDMARKS;
    if (a->part == CAIRN_PART_WINDOW) return;
    c->p.selected = (const int32_t *)tensor_data(a->selected);
    c->p.topk = (int32_t)c->s.n[SPEC_TOPK];
    if (!two_level) return;
    c->abilities |= ATTEND_TWO_LEVEL;
    c->p.weights = (const float *)tensor_data(a->weights);
    c->p.weight_heads = (int32_t)heads;
}

cairn_status cairn_attend_pages(cairn_runtime *rt, const cairn_attend_pages_args *args) {
    cairn_attend_pages_args a;
    ops_attend_call c;
    memset(&c, 0, sizeof c);
    if (spec_take(rt, SPEC_OF(attend_pages), &a, args, &c.s)) return c.s.c.status;
    ops_want_paged(&c.s, &a.pages, &c.paged);
    ops_want_table(&c.s, &a.pages, &a.more, &c.paged);
    ops_attend_want(&c, a.q, a.pages.cache, a.more.scales, a.more.softcap, a.out, a.lse);
    ops_attend_weigh(&c, &a);
    return spec_end(rt, ops_attend_run(rt, &c, a.scale, a.window, a.sinks));
}

cairn_status cairn_attend_tokens(cairn_runtime *rt, const cairn_attend_tokens_args *args) {
    cairn_attend_tokens_args a;
    ops_attend_call c;
    cairn_pages pages;
    const cairn_tensor *kept;
    memset(&c, 0, sizeof c);
    memset(&pages, 0, sizeof pages);
    if (spec_take(rt, SPEC_OF(attend_tokens), &a, args, &c.s)) return c.s.c.status;
    ops_want_latent(&c.s, a.cache, a.latent, LATENT_KEYS, LATENT_VALUES);
    ops_refuse(&c.s.c, a.space == CAIRN_SPACE_FLAT && c.s.n[SPEC_PAGE_SIZE] != 1,
               "space is flat, but cache has %lld slots a page; 1 is expected",
               (long long)c.s.n[SPEC_PAGE_SIZE]);
    c.s.n[SPEC_SEQUENCES] = c.s.n[SPEC_ROWS];
    kept = a.latent ? a.latent : a.cache;
    pages.cache = (cairn_tensor *)(uintptr_t)kept;
    ops_want_paged(&c.s, &pages, &c.paged);
    ops_attend_want(&c, a.q, kept, a.scales, a.softcap, a.out, a.lse);
    if (c.s.c.status) return c.s.c.status;
    c.latent = a.latent != NULL;
    if (c.stored == CAIRN_U8) c.abilities |= ATTEND_CACHE_E4M3;
    c.abilities |= ATTEND_TOKENS;
    c.p.tokens = (const int32_t *)tensor_data(a.tokens);
    c.p.token_width = (int32_t)c.s.n[SPEC_TOKENS];
    return spec_end(rt, ops_attend_run(rt, &c, a.scale, 0, 0));
}

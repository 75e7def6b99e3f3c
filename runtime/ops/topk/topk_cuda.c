/* topk on the GPU: picks the route from rows, capacity n and k alone, so that a captured graph stays
 * valid while lengths change, and launches it. */

enum {
    TOPK_SET_MAX = 4096,   /* k at most, but for the radix passes */
    TOPK_STREAM_BYTES = 92160, /* STREAM_BYTES of topk/stream.cuh */
    TOPK_SPLIT_MAX = 512,      /* rows, and blocks of a row, at most: a block's threads */
    TOPK_RADIX_BYTES = (2048 + 64) * 4
};

typedef struct topk_plan {
    const char *source, *entry;
    int threads, items, cluster, stages, capacity, listed, room; /* constants; 0: the source has none */
    unsigned blocks;             /* of the grid's x */
    unsigned rows;               /* of its y */
    unsigned shared_bytes;
    size_t scratch_bytes, flag_bytes; /* device_scratch, device_flags */
} topk_plan;

/* Rows that topk/short.cu takes: up to 8192 scores, and longer ones if each has an SM to itself: up
 * to 16384 and, for so few that a bound leaves little else, 32768. */
static bool topk_is_short(const device *dev, const topk_params *p) {
    if (p->n <= 8192) return true;
    return p->rows <= dev->sm_count && p->n <= (p->k <= 32 ? 32768 : 16384);
}

/* A row that fits registers stays there, in as small a block as holds it, so that many are under way
 * on each SM; few rows take twice the threads where that was faster on an H200. */
static void topk_plan_short(const device *dev, const topk_params *p, topk_plan *plan) {
    const bool few = p->n <= 2048 ? p->rows <= 2 * dev->sm_count
                                  : p->n <= 4096 && p->k <= 32 && p->rows <= dev->sm_count / 2;
    unsigned bytes;
    plan->source = "topk/short.cu";
    plan->entry = "topk_short";
    plan->items = p->n <= 16384 ? 16 : 32;
    for (plan->threads = 64; plan->threads * plan->items < p->n;) plan->threads *= 2;
    if (few) {
        plan->threads *= 2;
        plan->items = 8;
    }
    bytes = plan->threads < 512 ? (unsigned)plan->threads * 16 : 8192; /* its SHORT_BYTES */
    bytes += plan->items > 16 ? 5120 : 4096;
    plan->shared_bytes = bytes + (unsigned)(p->sort_size ? p->sort_size * 8 : p->k * 4);
}

/* A longer one streams through, in tiles that leave room for k in the set. */
static bool topk_plan_block(const device *dev, const topk_params *p, topk_plan *plan) {
    if (p->k > TOPK_SET_MAX) return false;
    plan->blocks = (unsigned)p->rows;
    if (topk_is_short(dev, p)) {
        topk_plan_short(dev, p, plan);
        return true;
    }
    plan->source = "topk/stream.cu";
    plan->entry = "topk_stream";
    plan->threads = 512;
    plan->items = p->k <= 2048 ? 16 : 8;
    plan->shared_bytes = TOPK_STREAM_BYTES;
    return true;
}

static bool topk_plan_small(const device *dev, const topk_params *p, topk_plan *plan) {
    (void)dev;
    if (p->k > 32 || p->n > 1024) return false;
    plan->source = "topk/small.cu";
    plan->entry = "topk_small";
    plan->threads = 256;
    plan->items = p->n <= 256 ? 8 : p->n <= 512 ? 16 : 32;
    plan->blocks = ((unsigned)p->rows + 7) / 8;
    plan->shared_bytes = 8 * 128 * 4;
    return true;
}

enum { STAGED_CAPACITY = 5120, STAGED_LISTED = 3072 }; /* where a second tile lies in shared memory */

/* The keys of topk/cluster.cu: one block may have most of what the first can select from, for rows that change slowly
 * have their best in one place, and there are gaps between the blocks'; without room for that each has its part. No
 * more than that, for shared memory is taken from loads on their way: with a stage it stays within 195 KiB, one step
 * of it. Sets plan->shared_bytes, too. */
static void topk_plan_keys(const device *dev, const topk_params *p, topk_plan *plan) {
    const int sorted = plan->capacity > 4096 ? plan->capacity : 4096;
    const int other = 16384 + 8192 / plan->cluster + plan->capacity / 8 + 2624 +
                      (plan->stages ? plan->threads * plan->items * 4 : 0) + (p->sort_size ? sorted * 4 : 0);
    int keys;
    plan->listed = plan->stages ? STAGED_LISTED : plan->capacity / 16 * 13;
    plan->room = plan->capacity + (plan->stages ? 48 : 80) * plan->cluster;
    keys = plan->room > 4096 ? plan->room : 4096;
    if (keys * 4 + plan->listed * 8 + other > dev->max_shared_bytes) {
        plan->listed = plan->capacity / plan->cluster, plan->room = plan->capacity;
        keys = sorted;
    }
    plan->shared_bytes = (unsigned)(keys * 4 + plan->listed * 8 + other);
}

/* The tiles of topk/cluster.cu: one is held in registers, a second may lie in shared memory, where
 * there is room for it beside the kernel's own, which grows with k. */
static void topk_plan_tiles(const device *dev, const topk_params *p, topk_plan *plan) {
    const int64_t slice = p->n / plan->cluster;
    const bool large = dev->arch / 10 != 12 && p->k <= 2048;
    plan->threads = slice <= 16384 ? 512 : 1024;
    plan->items = slice <= 8192 ? 16 : 32;
    plan->stages = slice > 32768 && large;
    plan->capacity = p->k > 2048                       ? 8192
                     : plan->stages                    ? STAGED_CAPACITY
                     : p->k > 512 || plan->cluster > 2 ? 4096
                                                       : 2048;
    topk_plan_keys(dev, p, plan);
}

/* All clusters at once, if their slices then stay on the chip. An H200 holds 7 clusters of 16, 15
 * of 8, 30 of 4 or 66 of 2, at one block an SM. Longer rows take the largest cluster. */
static int topk_cluster_blocks(const device *dev, const topk_params *p) {
    int blocks = dev->arch / 10 == 12 ? 8 : 16; /* larger ones are not portable */
    while (blocks > 2 && p->n <= 65536 * (int64_t)(blocks / 2) &&
           ((int64_t)blocks * p->rows * 10 > 9 * dev->sm_count || (int64_t)blocks * 2048 > p->n))
        blocks /= 2;
    return blocks;
}

static bool topk_plan_cluster(const device *dev, const topk_params *p, topk_plan *plan) {
    if (dev->arch < 90 || p->k > TOPK_SET_MAX) return false;
    plan->source = "topk/cluster.cu";
    plan->entry = "topk_cluster";
    plan->cluster = topk_cluster_blocks(dev, p);
    topk_plan_tiles(dev, p, plan);
    plan->blocks = (unsigned)(plan->cluster * p->rows);
    return (int)plan->shared_bytes <= dev->max_shared_bytes; /* sm_120 has no room to sort by score */
}

/* Slices of at least a tile, as many as fit at once; where lengths differ, topk/split.cu hands out
 * the blocks of all rows anew. */
static bool topk_plan_split(const device *dev, const topk_params *p, topk_plan *plan) {
    int64_t blocks = (p->n + 8191) / 8192, most = 2 * dev->sm_count / p->rows;
    if (p->k > TOPK_SET_MAX || p->rows > TOPK_SPLIT_MAX) return false;
    if (blocks > most) blocks = most;
    if (blocks > TOPK_SPLIT_MAX) blocks = TOPK_SPLIT_MAX;
    if (blocks < 2) blocks = 2;
    plan->source = "topk/split.cu";
    plan->entry = "topk_split";
    plan->threads = TOPK_SPLIT_MAX;
    plan->items = p->k <= 2048 ? 16 : 8;
    plan->shared_bytes = TOPK_STREAM_BYTES;
    plan->blocks = (unsigned)blocks;
    plan->rows = (unsigned)p->rows;
    plan->flag_bytes = (size_t)p->rows * 4;
    plan->scratch_bytes = (size_t)p->rows * (size_t)blocks * (1 + (size_t)p->k) * 8;
    return true;
}

static bool topk_plan_radix(const device *dev, const topk_params *p, topk_plan *plan) {
    (void)dev;
    plan->source = "topk/radix.cu";
    plan->entry = "topk_radix";
    plan->threads = 0;
    plan->blocks = (unsigned)p->rows;
    plan->shared_bytes = TOPK_RADIX_BYTES;
    if (plan->shared_bytes < (unsigned)p->sort_size * 8 && p->sort_size <= CAIRN_TOPK_SORT_SHARED)
        plan->shared_bytes = (unsigned)p->sort_size * 8;
    return true;
}

/* ---- routes by name, and which one a shape takes --------------------------------------------- */

typedef struct topk_route {
    const char *name;
    bool (*plan)(const device *dev, const topk_params *p, topk_plan *plan); /* false: not for it */
} topk_route;

static const topk_route topk_routes[] = {
    {"small", topk_plan_small}, {"block", topk_plan_block}, {"cluster", topk_plan_cluster},
    {"split", topk_plan_split}, {"radix", topk_plan_radix}};

static const topk_route *topk_find_route(const char *name) {
    size_t i;
    for (i = 0; i < BASE_COUNT(topk_routes); i++)
        if (!strcmp(topk_routes[i].name, name)) return &topk_routes[i];
    return NULL;
}

/* Measured on an H200: clusters win from 32768 scores a row on, where all find room at once and
 * their slices stay on the chip; where not, split does: 93 us, not 423, for 16 rows of 4194304. */
static const char *topk_choose_few(const device *dev, const topk_params *p) {
    topk_plan plan; /* by clusters */
    int64_t on_chip;
    memset(&plan, 0, sizeof plan);
    if (!topk_plan_cluster(dev, p, &plan)) return p->n > 65536 ? "split" : "block";
    if (p->n < 32768 || topk_is_short(dev, p)) return "block";
    on_chip = (int64_t)plan.cluster * plan.threads * plan.items * (1 + plan.stages);
    if (p->n > on_chip) return "split";
    if ((int64_t)plan.blocks * 10 <= 9 * dev->sm_count) return "cluster";
    return plan.cluster == 2 && (int64_t)plan.blocks <= dev->sm_count ? "cluster" : "split";
}

static const char *topk_choose(const device *dev, const topk_params *p) {
    if (p->k > TOPK_SET_MAX) return "radix";
    if (p->k <= 32 && p->n <= 1024) return "small";
    if (p->rows <= dev->sm_count / (dev->arch < 90 ? 1 : 2)) return topk_choose_few(dev, p);
    return "block";
}

static cairn_status topk_plan_for(cairn_runtime *rt, const char *op, const topk_params *p,
                                  const char *route, topk_plan *plan) {
    memset(plan, 0, sizeof *plan);
    if (!route) route = rt->config.routes.topk;
    if (!strcmp(route, "auto")) route = topk_choose(&rt->device, p);
    if (topk_find_route(route)->plan(&rt->device, p, plan)) return CAIRN_OK;
    return base_fail(&rt->base, CAIRN_UNSUPPORTED,
                     "%s: route \"%s\" does not take %d rows of %d with k = %d on this device; "
                     "route \"auto\" does", op, route, (int)p->rows, (int)p->n, (int)p->k);
}

static cairn_status topk_scratch(cairn_runtime *rt, const topk_plan *plan, topk_params *p) {
    void *scratch = NULL, *flags = NULL;
    cairn_status status = handles_enter(rt);
    if (status) return status;
    status = device_scratch(&rt->device, plan->scratch_bytes, "topk", &scratch);
    if (!status) status = device_flags(&rt->device, plan->flag_bytes, "topk", &flags);
    p->scratch = (uint32_t *)scratch;
    p->arrived = (uint32_t *)flags;
    return handles_leave(rt, status);
}

static void topk_own_scratch(cairn_runtime *rt, int64_t rows, int64_t n, int32_t k, size_t *scratch,
                             size_t *flags) {
    topk_plan plan;
    topk_params p;
    memset(&p, 0, sizeof p);
    memset(&plan, 0, sizeof plan);
    p.rows = (int32_t)rows, p.n = (int32_t)n, p.k = k;
    topk_plan_for(rt, "topk", &p, "auto", &plan);
    *scratch = plan.scratch_bytes, *flags = plan.flag_bytes;
}

/* 0: the source has none of it. */
static void topk_add_constant(ops_kernel *want, const char *name, int value) {
    if (!value) return;
    want->constants[want->constant_count].name = name;
    want->constants[want->constant_count++].value = value;
}

static cairn_status topk_launch(cairn_runtime *rt, topk_params *p, const topk_shape *shape,
                                cairn_type type, const char *route) {
    device_dims dims = {{0, 1, 1}, 1024, 0, 0, false};
    ops_kernel want;
    topk_plan plan;
    cairn_status status;
    p->error = ops_error_word(&rt->device, shape->op);
    p->stride = shape->stride;
    p->n = (int32_t)shape->n;
    p->rows = (int32_t)shape->rows;
    if ((status = topk_plan_for(rt, shape->op, p, route, &plan))) return status;
    if (plan.scratch_bytes && !p->scratch && (status = topk_scratch(rt, &plan, p))) return status;
    memset(&want, 0, sizeof want);
    want.source = plan.source;
    want.entry = plan.entry;
    topk_add_constant(&want, "SCORE_TYPE", (int)type);
    topk_add_constant(&want, "ITEMS", plan.items);
    topk_add_constant(&want, "THREADS", plan.threads);
    topk_add_constant(&want, "CLUSTER", plan.cluster);
    if (plan.capacity) {
        topk_add_constant(&want, "CAPACITY", plan.capacity);
        topk_add_constant(&want, "LISTED", plan.listed);
        topk_add_constant(&want, "ROOM", plan.room);
        want.constants[want.constant_count].name = "STAGES";
        want.constants[want.constant_count++].value = plan.stages;
    }
    dims.dependent = ops_is_dependent(&rt->device, p->rows);
    if (plan.threads) dims.block = (unsigned)plan.threads;
    if (plan.cluster > 1) dims.cluster = (unsigned)plan.cluster;
    dims.shared_bytes = plan.shared_bytes;
    dims.grid[0] = plan.blocks;
    if (plan.rows) dims.grid[1] = plan.rows;
    return ops_launch_as(rt, &want, &dims, p);
}

/* map: its fields of what becomes of a position; the others are filled in here. */
static cairn_status topk_run_cuda(cairn_runtime *rt, const cairn_topk_args *a,
                                  const topk_shape *shape, const topk_params *map) {
    topk_params p = *map;
    if (a->order == CAIRN_ORDER_SCORE)
        for (p.sort_size = 2; p.sort_size < a->k && p.sort_size < shape->n;) p.sort_size *= 2;
    p.scores = tensor_data(a->scores);
    p.lengths = a->lengths ? (const int32_t *)tensor_data(a->lengths) : NULL;
    p.row_starts = a->row_starts ? (const int32_t *)tensor_data(a->row_starts) : NULL;
    p.indices = (int32_t *)tensor_data(a->indices);
    p.values = a->values ? (float *)tensor_data(a->values) : NULL;
    p.k = a->k;
    /* A table of no pages may have no address; kernels tell by it that there is a table. */
    if (p.form == CAIRN_INDEX_SLOT && !p.page_table) p.page_table = p.indices;
    return topk_launch(rt, &p, shape, cairn_tensor_type(a->scores), a->route);
}

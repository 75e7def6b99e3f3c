/* topk: the k best of each row, exactly, with ties to the lowest position, in a dense prefix.
 *
 * topk_cpu.c scans a row once; topk_cuda.c picks a route from rows, capacity and k alone, so that a
 * captured graph stays valid while lengths change; topk.c has the entries topk and topk_transform,
 * rows.c topk_rows, whose scores memory does not hold at once. A result depends on its row alone,
 * not on the route, the threads, nor how rows are cut. */

typedef struct topk_shape {
    const char *op; /* in messages, as is first_row, added to the number of a row */
    int64_t rows, n, stride, first_row;
} topk_shape;

/* What the table does not say of a route, and of topk_transform's own arguments for so many rows;
 * fills its part of the kernels' parameters. */
static void topk_want_route(ops_check *c, const char *route);
static void topk_want_map(ops_check *c, int config_page_size, const cairn_topk_transform_args *a,
                          int64_t rows, topk_params *map);
/* What becomes of row r's positions on the CPU, those below 0 left as they are; false when one has
 * no place or the row no request, and *wrong is that place or request. */
static bool topk_place_row(const topk_params *map, int64_t r, int32_t k, int32_t *indices,
                           int64_t *wrong);
/* What rows by route "auto" need of p->scratch and, zero before, of p->arrived, in bytes. */
static void topk_own_scratch(cairn_runtime *rt, int64_t rows, int64_t n, int32_t k, size_t *scratch,
                             size_t *flags);
/* p holds what concerns the op, and scratch of the caller's or NULL; rows, stride and the rest are
 * filled in here. route: NULL for the config's. */
static cairn_status topk_launch(cairn_runtime *rt, topk_params *p, const topk_shape *shape,
                                cairn_type type, const char *route);
/* A row by one worker, without the pool: the k best of scores [length], at most n, as the op gives them
 * by position, padded with -1; workspace: topk_alone_bytes(n, k), aligned to 8. */
static size_t topk_alone_bytes(int64_t n, int32_t k);
static void topk_alone(const float *scores, int64_t n, int32_t length, int32_t k, void *workspace,
                       int32_t *indices);

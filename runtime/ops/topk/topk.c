/* topk: the entries. Checks the arguments, then the CPU's rows or a kernel's launch. */

/* Outputs share no byte with each other or with what is read. */
static void topk_check_outputs(ops_check *c, const cairn_topk_args *a, int64_t rows) {
    const cairn_tensor *inputs[3];
    static const char *const names[3] = {"scores", "lengths", "row_starts"};
    int64_t extents[2];
    int i;
    inputs[0] = a->scores, inputs[1] = a->lengths, inputs[2] = a->row_starts;
    extents[0] = rows, extents[1] = a->k;
    ops_want_as(c, a->indices, "indices", OPS_I32, false, 2, extents);
    ops_want_as(c, a->values, "values", OPS_F32, true, 2, extents);
    ops_want_apart(c, a->values, "values", a->indices, "indices", false);
    for (i = 0; i < 3; i++) {
        ops_want_apart(c, a->indices, "indices", inputs[i], names[i], false);
        ops_want_apart(c, a->values, "values", inputs[i], names[i], false);
    }
}

static cairn_status topk_check_options(device *dev, const char *op, int32_t k, int32_t order,
                                       const char *route) {
    if (route && strcmp(route, "auto") != 0 && !topk_find_route(route))
        return base_fail(dev->base, CAIRN_INVALID_ARGUMENT,
                         "%s: route \"%.40s\" is unknown; auto, small, block, cluster, split, "
                         "radix", op, route);
    if (k < 1)
        return base_fail(dev->base, CAIRN_INVALID_ARGUMENT, "%s: k = %d; 1 or more is expected",
                         op, (int)k);
    if (order != CAIRN_ORDER_POSITION && order != CAIRN_ORDER_SCORE)
        return base_fail(dev->base, CAIRN_INVALID_ARGUMENT,
                         "%s: order = %d; 0 (position) or 1 (score) is expected", op, (int)order);
    return CAIRN_OK;
}

/* Rows that are whole in the output, in position order and without values, have no score read. */
static bool topk_reads_nothing(const cairn_topk_args *a) {
    const cairn_tensor *t = a->scores;
    return t && t->ndim == 2 && t->shape && t->shape[1] <= a->k && !a->values &&
           a->order == CAIRN_ORDER_POSITION;
}

static cairn_status topk_check_scores(device *dev, const cairn_topk_args *a, topk_shape *shape) {
    tensor_want want = {NULL, "scores",
                        TENSOR_BIT(CAIRN_F32) | TENSOR_BIT(CAIRN_F16) | TENSOR_BIT(CAIRN_BF16), 2,
                        {-1, -1}, false, true};
    const cairn_tensor *scores = a->scores;
    cairn_tensor unread;
    cairn_status status;
    if (topk_reads_nothing(a) && !scores->data) {
        unread = *scores;
        unread.data = &unread, unread.byte_offset = 0; /* for the check alone */
        scores = &unread;
    }
    want.op = shape->op;
    if ((status = tensor_check(dev, scores, &want))) return status;
    shape->rows = scores->shape[0];
    shape->n = scores->shape[1];
    shape->stride = tensor_stride(scores, 0);
    if (shape->n <= 1 << 22) return CAIRN_OK;
    return base_fail(dev->base, CAIRN_INVALID_ARGUMENT,
                     "%s: scores has %lld columns; at most 4194304 are allowed", shape->op,
                     (long long)shape->n);
}

static cairn_status topk_check(device *dev, const cairn_topk_args *a, topk_shape *shape) {
    ops_check c = {NULL, NULL, CAIRN_OK};
    c.dev = dev, c.op = shape->op;
    if ((c.status = topk_check_options(dev, c.op, a->k, a->order, a->route)) ||
        (c.status = topk_check_scores(dev, a, shape)))
        return c.status;
    ops_want_as(&c, a->lengths, "lengths", OPS_I32, true, 1, &shape->rows);
    ops_want_as(&c, a->row_starts, "row_starts", OPS_I32, true, 1, &shape->rows);
    topk_check_outputs(&c, a, shape->rows);
    return c.status;
}

/* Names the first row whose start or length is out of range, in the words of the GPU. */
static cairn_status topk_report(device *dev, const topk_shape *shape, const topk_cpu_call *call) {
    cairn_status status = CAIRN_OK;
    int64_t r, start, length;
    for (r = 0; r < call->rows && !status; r++) {
        if (topk_bounds(call, r, &start, &length)) continue;
        if (call->starts && call->starts[r] != start)
            ops_bad_row(dev, shape->op, shape->first_row + r, "row start out of range",
                        call->starts[r], &status);
        else
            ops_bad_row(dev, shape->op, shape->first_row + r, "length out of range",
                        call->lengths[r], &status);
    }
    return status;
}

static cairn_status topk_run_cpu(device *dev, const cairn_topk_args *a, const topk_shape *shape) {
    topk_cpu_call call;
    cairn_status status;
    memset(&call, 0, sizeof call);
    call.scores = (const char *)tensor_data(a->scores);
    call.type = cairn_tensor_type(a->scores);
    call.rows = shape->rows;
    call.n = shape->n;
    call.stride = shape->stride;
    call.lengths = a->lengths ? (const int32_t *)tensor_data(a->lengths) : NULL;
    call.starts = a->row_starts ? (const int32_t *)tensor_data(a->row_starts) : NULL;
    call.k = a->k;
    call.by_score = a->order == CAIRN_ORDER_SCORE;
    call.indices = (int32_t *)tensor_data(a->indices);
    call.values = a->values ? (float *)tensor_data(a->values) : NULL;
    status = topk_cpu(dev, &call);
    return status ? status : topk_report(dev, shape, &call);
}

/* ---- transform ---------------------------------------------------------------------------------- */

/* What a gather takes for a position of row r, which no index may hold; -1: it is on no page. */
static int64_t topk_place(const topk_params *map, int64_t r, const int32_t *pages,
                          int32_t position) {
    int32_t page = position / map->page_size, id;
    if (map->form == CAIRN_INDEX_FLAT) return (int64_t)position + map->offsets[r];
    id = pages && page < map->table_stride ? pages[page] : -1;
    return id < 0 ? -1 : (int64_t)id * map->page_size + position % map->page_size;
}

/* What becomes of a row's positions on the CPU; false when one has no place or it no request, and
 * *wrong is that place or request. */
static bool topk_place_row(const topk_params *map, int64_t r, int32_t k, int32_t *indices,
                           int64_t *wrong) {
    const int32_t *pages = NULL;
    bool fine = true;
    int32_t i;
    if (map->form == CAIRN_INDEX_SLOT) {
        int64_t request = map->requests ? map->requests[r] : r / map->rows_each;
        fine = request >= 0 && request < map->table_rows;
        if (fine) pages = map->page_table + request * map->table_stride;
        else *wrong = request;
    }
    for (i = 0; i < k && indices[i] >= 0; i++) {
        int64_t place = topk_place(map, r, pages, indices[i]);
        bool holds = place >= 0 && place <= INT32_MAX;
        if (fine && !holds) *wrong = place;
        fine = fine && holds;
        indices[i] = holds ? (int32_t)place : -1;
    }
    return fine;
}

static cairn_status topk_place_cpu(device *dev, const cairn_topk_args *a, const topk_shape *shape,
                                   const topk_params *map, cairn_status status) {
    int64_t r, wrong = 0;
    for (r = 0; map->form != CAIRN_INDEX_POS && r < shape->rows; r++)
        if (!topk_place_row(map, r, a->k, (int32_t *)tensor_data(a->indices) + r * a->k, &wrong))
            ops_bad_row(dev, shape->op, shape->first_row + r, "id out of range", wrong, &status);
    return status;
}

/* Arguments are checked. */
static cairn_status topk_run_checked(cairn_runtime *rt, const cairn_topk_args *a,
                                     const topk_shape *shape, const topk_params *map) {
    cairn_status status;
    if (shape->rows == 0) return CAIRN_OK;
    if (rt->device.cuda) return topk_run_cuda(rt, a, shape, map);
    status = topk_run_cpu(&rt->device, a, shape);
    if (status && status != CAIRN_BAD_DATA) return status;
    return topk_place_cpu(&rt->device, a, shape, map, status);
}

/* op and first_row: for messages; the latter is added to the number of a row. */
static cairn_status topk_run(cairn_runtime *rt, const char *op, const cairn_topk_args *a,
                             const topk_params *map, int64_t first_row) {
    topk_shape shape = {NULL, 0, 0, 0, 0};
    cairn_status status;
    shape.op = op;
    shape.first_row = first_row;
    status = topk_check(&rt->device, a, &shape);
    return status ? status : topk_run_checked(rt, a, &shape, map);
}

const char *cairn_topk_route(const cairn_runtime *rt, int64_t rows, int64_t n, int32_t k) {
    const char *route;
    topk_params p;
    if (!rt || !rt->device.cuda) return "cpu";
    route = rt->config.routes.topk;
    memset(&p, 0, sizeof p);
    p.rows = (int32_t)rows, p.n = (int32_t)n, p.k = k;
    return strcmp(route, "auto") ? route : topk_choose(&rt->device, &p);
}

cairn_status cairn_topk(cairn_runtime *rt, const cairn_topk_args *args) {
    cairn_topk_args a;
    topk_params map;
    cairn_status status = OPS_TAKE(rt, "topk", a, args);
    if (status) return status;
    memset(&map, 0, sizeof map);
    return topk_run(rt, "topk", &a, &map, 0);
}

/* An output shares no byte with what the transform reads besides. */
static void topk_check_apart(ops_check *c, const cairn_tensor *out, const char *name,
                             const cairn_topk_transform_args *a) {
    ops_want_apart(c, out, name, a->page_table, "page_table", false);
    ops_want_apart(c, out, name, a->offsets, "offsets", false);
    ops_want_apart(c, out, name, a->requests, "requests", false);
}

/* Checks the transform's own arguments, after those of topk (or without outputs), and fills its part
 * of the kernel's parameters. */
static cairn_status topk_check_map(cairn_runtime *rt, const char *op,
                                   const cairn_topk_transform_args *a, int64_t rows,
                                   topk_params *map) {
    ops_check c = {NULL, op, CAIRN_OK};
    int64_t requests = 0;
    c.dev = &rt->device;
    map->page_size = a->page_size ? a->page_size : rt->config.page_size;
    ops_refuse(&c, !a->page_table == !a->offsets,
               "page_table or offsets is expected, one of the two");
    ops_refuse(&c, map->page_size < 1, "page_size = %d; 1 or more is expected", (int)a->page_size);
    if (a->page_table) ops_want2(&c, a->page_table, "page_table", OPS_I32, -1, -1);
    if (a->offsets) ops_want1(&c, a->offsets, "offsets", OPS_I32, rows);
    if (a->requests) ops_want1(&c, a->requests, "requests", OPS_I32, rows);
    ops_refuse(&c, a->requests && !a->page_table, "requests without page_table");
    topk_check_apart(&c, a->indices, "indices", a);
    topk_check_apart(&c, a->values, "values", a);
    if (c.status) return c.status;
    if (a->offsets) {
        map->form = CAIRN_INDEX_FLAT;
        map->offsets = (const int32_t *)tensor_data(a->offsets);
        return CAIRN_OK;
    }
    requests = a->page_table->shape[0];
    ops_refuse(&c, !a->requests && rows && (requests < 1 || rows % requests != 0),
               "%lld rows for %lld requests: a multiple, or requests, is expected",
               (long long)rows, (long long)requests);
    map->form = CAIRN_INDEX_SLOT;
    map->page_table = (const int32_t *)tensor_data(a->page_table);
    map->requests = a->requests ? (const int32_t *)tensor_data(a->requests) : NULL;
    map->table_rows = (int32_t)requests;
    map->table_stride = (int32_t)a->page_table->shape[1];
    map->rows_each = requests > 0 && rows >= requests ? (int32_t)(rows / requests) : 1;
    return c.status;
}

cairn_status cairn_topk_transform(cairn_runtime *rt, const cairn_topk_transform_args *args) {
    cairn_topk_transform_args a;
    cairn_topk_args top;
    topk_params map;
    topk_shape shape = {"topk_transform", 0, 0, 0, 0};
    cairn_status status = OPS_TAKE(rt, shape.op, a, args);
    if (status) return status;
    memset(&map, 0, sizeof map);
    memset(&top, 0, sizeof top);
    top.k = a.k, top.scores = a.scores, top.lengths = a.lengths, top.row_starts = a.row_starts;
    top.indices = a.indices, top.values = a.values, top.order = a.order, top.route = a.route;
    if ((status = topk_check(&rt->device, &top, &shape)) ||
        (status = topk_check_map(rt, shape.op, &a, shape.rows, &map)))
        return status;
    return topk_run_checked(rt, &top, &shape, &map);
}

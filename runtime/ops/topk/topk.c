/* topk: the entries. Each checks what the table does not say, then the CPU's rows or a launch. */

static void topk_want_route(ops_check *c, const char *route) {
    ops_refuse(c, route && strcmp(route, "auto") != 0 && !topk_find_route(route),
               "route \"%.40s\" is unknown; auto, small, block, cluster, split, radix", route);
}

/* Rows that are whole in the output, in position order and without values, have no score read. */
static bool topk_reads_nothing(const cairn_topk_args *a) {
    return a->scores->shape[1] <= a->k && !a->values && a->order == CAIRN_ORDER_POSITION;
}

/* The shape of a call that the table holds right. */
static void topk_want(spec_call *s, const cairn_topk_args *a, topk_shape *shape) {
    topk_want_route(&s->c, a->route);
    ops_refuse(&s->c, !s->c.status && !a->scores->data && tensor_elements(a->scores) > 0 &&
                          !topk_reads_nothing(a), "the data of scores is NULL");
    if (s->c.status) return;
    shape->op = s->c.op;
    shape->first_row = 0;
    shape->rows = s->n[SPEC_ROWS];
    shape->n = s->n[SPEC_N];
    shape->stride = tensor_stride(a->scores, 0);
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

/* ---- transform ------------------------------------------------------------------------------- */

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
    for (i = 0; i < k; i++) {
        int64_t place;
        bool holds;
        if (indices[i] < 0) continue;
        place = topk_place(map, r, pages, indices[i]);
        holds = place >= 0 && place <= INT32_MAX;
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
    topk_shape shape;
    spec_call s;
    if (spec_take(rt, SPEC_OF(topk), &a, args, &s)) return s.c.status;
    topk_want(&s, &a, &shape);
    if (s.c.status) return s.c.status;
    memset(&map, 0, sizeof map);
    return spec_end(rt, topk_run_checked(rt, &a, &shape, &map));
}

/* What the table does not say of the transform's own arguments; fills its part of the kernel's
 * parameters. */
static void topk_want_map(ops_check *c, int config_page_size, const cairn_topk_transform_args *a,
                          int64_t rows, topk_params *map) {
    int64_t requests;
    map->page_size = a->page_size ? a->page_size : config_page_size;
    ops_refuse(c, !a->page_table == !a->offsets,
               "page_table or offsets is expected, one of the two");
    ops_refuse(c, a->requests && !a->page_table, "requests without page_table");
    if (c->status) return;
    if (a->offsets) {
        map->form = CAIRN_INDEX_FLAT;
        map->offsets = (const int32_t *)tensor_data(a->offsets);
        return;
    }
    requests = a->page_table->shape[0];
    ops_refuse(c, !a->requests && rows && (requests < 1 || rows % requests != 0),
               "%lld rows for %lld requests: a multiple, or requests, is expected",
               (long long)rows, (long long)requests);
    map->form = CAIRN_INDEX_SLOT;
    map->page_table = (const int32_t *)tensor_data(a->page_table);
    map->requests = a->requests ? (const int32_t *)tensor_data(a->requests) : NULL;
    map->table_rows = (int32_t)requests;
    map->table_stride = (int32_t)a->page_table->shape[1];
    map->rows_each = requests > 0 && rows >= requests ? (int32_t)(rows / requests) : 1;
}

cairn_status cairn_topk_transform(cairn_runtime *rt, const cairn_topk_transform_args *args) {
    cairn_topk_transform_args a;
    cairn_topk_args top;
    topk_params map;
    topk_shape shape;
    spec_call s;
    if (spec_take(rt, SPEC_OF(topk_transform), &a, args, &s)) return s.c.status;
    memset(&map, 0, sizeof map);
    memset(&top, 0, sizeof top);
    top.k = a.k, top.scores = a.scores, top.lengths = a.lengths, top.row_starts = a.row_starts;
    top.indices = a.indices, top.values = a.values, top.order = a.order, top.route = a.route;
    topk_want(&s, &top, &shape);
    if (!s.c.status) topk_want_map(&s.c, rt->config.page_size, &a, shape.rows, &map);
    return s.c.status ? s.c.status : spec_end(rt, topk_run_checked(rt, &top, &shape, &map));
}

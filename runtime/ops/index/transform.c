/* index: index_transform, by topk's own code for what becomes of a position. */

static cairn_status index_transform_cpu(device *dev, const topk_params *map,
                                        const int32_t *positions) {
    cairn_status status = CAIRN_OK;
    for (int64_t r = 0; r < map->rows; r++) {
        int32_t *to = map->indices + r * map->k;
        int64_t wrong = 0;
        for (int i = 0; i < map->k; i++) {
            const int32_t position = positions[r * map->k + i];
            if (position < -1)
                ops_bad_row(dev, "index_transform", r, "position out of range", position, &status);
            to[i] = position < 0 ? -1 : position;
        }
        if (!topk_place_row(map, r, map->k, to, &wrong))
            ops_bad_row(dev, "index_transform", r, "id out of range", wrong, &status);
    }
    return status;
}

static cairn_status index_transform_cuda(cairn_runtime *rt, const topk_params *p) {
    device_dims dims = {{0, 0, 1}, 256, 0, 0, false};
    dims.grid[0] = (unsigned)p->rows;
    dims.grid[1] = ((unsigned)p->k + 255) / 256;
    return ops_launch(rt, "index/transform.cu", "index_transform", &dims, p);
}

cairn_status cairn_index_transform(cairn_runtime *rt, const cairn_index_transform_args *args) {
    cairn_index_transform_args a;
    cairn_topk_transform_args t;
    topk_params p;
    spec_call s;
    if (spec_take(rt, SPEC_OF(index_transform), &a, args, &s)) return s.c.status;
    memset(&t, 0, sizeof t);
    memset(&p, 0, sizeof p);
    t.page_table = a.page_table, t.offsets = a.offsets, t.requests = a.requests;
    t.page_size = a.page_size;
    topk_want_map(&s.c, rt->config.page_size, &t, s.n[SPEC_ROWS], &p);
    p.rows = (int32_t)s.n[SPEC_ROWS];
    p.k = (int32_t)s.n[SPEC_K];
    if (s.c.status || !p.rows || !p.k) return s.c.status;
    p.scores = tensor_data(a.positions);
    p.indices = (int32_t *)tensor_data(a.indices);
    if (!rt->device.cuda)
        return spec_end(rt, index_transform_cpu(&rt->device, &p, (const int32_t *)p.scores));
    p.error = ops_error_word(&rt->device, s.c.op);
    if (p.form == CAIRN_INDEX_SLOT && !p.page_table) p.page_table = p.indices; /* of no pages */
    return spec_end(rt, index_transform_cuda(rt, &p));
}

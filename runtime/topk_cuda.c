/* topk on the GPU: picks the route from rows and capacity alone, so that a captured graph stays
 * valid while lengths change, and launches it. */

enum { TOPK_SHARED_BYTES = (2048 + 64) * 4, TOPK_BLOCK = 1024, TOPK_SORT_MAX = 8192 };

/* p holds what concerns the op; rows, stride and the rest are filled in here. */
static cairn_status topk_launch(cairn_runtime *rt, topk_params *p, const topk_shape *shape,
                                cairn_type type) {
    dev_dims dims = {{0, 1, 1}, TOPK_BLOCK, 0, TOPK_SHARED_BYTES, false};
    ops_kernel want;
    memset(&want, 0, sizeof want);
    if (dims.shared_bytes < (unsigned)p->sort_size * 8)
        dims.shared_bytes = (unsigned)p->sort_size * 8;
    want.source = "topk.cu";
    want.entry = "topk_block";
    want.constants[0].name = "SCORE_TYPE";
    want.constants[0].value = (int64_t)type;
    want.constant_count = 1;
    p->error = ops_error_word(&rt->device);
    p->stride = shape->stride;
    p->n = (int32_t)shape->n;
    dims.grid[0] = (unsigned)shape->rows;
    return ops_launch_as(rt, &want, &dims, p);
}

static cairn_status topk_run_cuda(cairn_runtime *rt, const cairn_topk_args *a,
                                  const topk_shape *shape) {
    topk_params p;
    memset(&p, 0, sizeof p);
    if (a->order == CAIRN_ORDER_SCORE) {
        for (p.sort_size = 2; p.sort_size < a->k; p.sort_size *= 2) {}
        if (p.sort_size > TOPK_SORT_MAX)
            return base_fail(&rt->base, CAIRN_UNSUPPORTED,
                             "topk: order by score with k = %d; at most %d on the GPU", (int)a->k,
                             TOPK_SORT_MAX);
    }
    p.scores = tensor_data(a->scores);
    p.lengths = a->lengths ? (const int32_t *)tensor_data(a->lengths) : NULL;
    p.row_starts = a->row_starts ? (const int32_t *)tensor_data(a->row_starts) : NULL;
    p.indices = (int32_t *)tensor_data(a->indices);
    p.values = a->values ? (float *)tensor_data(a->values) : NULL;
    p.k = a->k;
    return topk_launch(rt, &p, shape, cairn_tensor_type(a->scores));
}

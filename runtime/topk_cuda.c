/* topk on the GPU: picks the route from rows and capacity alone, so that a captured graph stays
 * valid while lengths change, and launches it. */

enum { TOPK_SHARED_BYTES = (2048 + 64) * 4, TOPK_BLOCK = 1024, TOPK_SORT_MAX = 8192 };

static cairn_status topk_run_cuda(device *dev, const cairn_topk_args *a, const topk_shape *shape) {
    jit_constant constant;
    jit_request request;
    jit_program *program;
    jit_kernel kernel;
    dev_dims dims = {{0, 1, 1}, TOPK_BLOCK, 0, TOPK_SHARED_BYTES, false};
    topk_params p;
    cairn_status status;
    constant.name = "CAIRN_SCORE_TYPE";
    constant.value = (int64_t)cairn_tensor_type(a->scores);
    request.source = "topk.cu";
    request.constants = &constant;
    request.constant_count = 1;
    memset(&p, 0, sizeof p);
    if (a->order == CAIRN_ORDER_SCORE) {
        for (p.sort_size = 2; p.sort_size < a->k; p.sort_size *= 2) {}
        if (p.sort_size > TOPK_SORT_MAX)
            return base_fail(dev->base, CAIRN_UNSUPPORTED,
                             "topk: order by score with k = %d; at most %d on the GPU", (int)a->k,
                             TOPK_SORT_MAX);
        if (dims.shared_bytes < (unsigned)p.sort_size * 8)
            dims.shared_bytes = (unsigned)p.sort_size * 8;
    }
    if ((status = jit_get(dev->jit, &request, &program)) ||
        (status = jit_function(dev->jit, program, "topk_block", (int)dims.shared_bytes, &kernel)))
        return status;
    p.scores = tensor_data(a->scores);
    p.lengths = a->lengths ? (const int32_t *)tensor_data(a->lengths) : NULL;
    p.row_starts = a->row_starts ? (const int32_t *)tensor_data(a->row_starts) : NULL;
    p.indices = (int32_t *)tensor_data(a->indices);
    p.values = a->values ? (float *)tensor_data(a->values) : NULL;
    p.error = (cairn_error_word *)(void *)dev->error_word;
    p.stride = shape->stride;
    p.n = (int32_t)shape->n;
    p.k = a->k;
    dims.grid[0] = (unsigned)shape->rows;
    return dev_launch(dev, &kernel, &dims, &p);
}

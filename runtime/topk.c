/* topk: the op's entry. Checks the arguments, then the CPU's rows or a kernel's launch. */

static cairn_status topk_check_vector(device *dev, const char *name, const cairn_tensor *t,
                                      int64_t rows) {
    tensor_want want = {"topk", NULL, TENSOR_BIT(CAIRN_I32), 1, {0}, true, false};
    want.name = name;
    want.shape[0] = rows;
    return tensor_check(dev, t, &want);
}

static cairn_status topk_check_outputs(device *dev, const cairn_topk_args *a, int64_t rows) {
    tensor_want indices = {"topk", "indices", TENSOR_BIT(CAIRN_I32), 2, {0}, false, false};
    tensor_want values = {"topk", "values", TENSOR_BIT(CAIRN_F32), 2, {0}, true, false};
    const cairn_tensor *inputs[3];
    static const char *const names[3] = {"scores", "lengths", "row_starts"};
    cairn_status status;
    int i;
    inputs[0] = a->scores, inputs[1] = a->lengths, inputs[2] = a->row_starts;
    indices.shape[0] = values.shape[0] = rows;
    indices.shape[1] = values.shape[1] = a->k;
    if ((status = tensor_check(dev, a->indices, &indices)) ||
        (status = tensor_check(dev, a->values, &values)) ||
        (status = tensor_check_apart(dev->base, "topk", a->values, "values", a->indices, "indices")))
        return status;
    for (i = 0; i < 3; i++)
        if ((status = tensor_check_apart(dev->base, "topk", a->indices, "indices", inputs[i],
                                         names[i])) ||
            (status = tensor_check_apart(dev->base, "topk", a->values, "values", inputs[i],
                                         names[i])))
            return status;
    return CAIRN_OK;
}

static cairn_status topk_check(device *dev, const cairn_topk_args *a, topk_shape *shape) {
    tensor_want scores = {"topk", "scores",
                          TENSOR_BIT(CAIRN_F32) | TENSOR_BIT(CAIRN_F16) | TENSOR_BIT(CAIRN_BF16), 2,
                          {-1, -1}, false, true};
    cairn_status status;
    if (a->route && strcmp(a->route, "auto") != 0 && !topk_find_route(a->route))
        return base_fail(dev->base, CAIRN_INVALID_ARGUMENT,
                         "topk: route \"%.40s\" is unknown; auto, small, block, cluster, split, "
                         "radix", a->route);
    if (a->k < 1)
        return base_fail(dev->base, CAIRN_INVALID_ARGUMENT, "topk: k = %d; 1 or more is expected",
                         (int)a->k);
    if (a->order != CAIRN_ORDER_POSITION && a->order != CAIRN_ORDER_SCORE)
        return base_fail(dev->base, CAIRN_INVALID_ARGUMENT, "topk: order = %d is unknown",
                         (int)a->order);
    if ((status = tensor_check(dev, a->scores, &scores))) return status;
    shape->rows = a->scores->shape[0];
    shape->n = a->scores->shape[1];
    shape->stride = tensor_stride(a->scores, 0);
    if (shape->n > 1 << 22)
        return base_fail(dev->base, CAIRN_INVALID_ARGUMENT,
                         "topk: scores has %lld columns; at most 4194304 are allowed",
                         (long long)shape->n);
    if ((status = topk_check_vector(dev, "lengths", a->lengths, shape->rows)) ||
        (status = topk_check_vector(dev, "row_starts", a->row_starts, shape->rows)))
        return status;
    return topk_check_outputs(dev, a, shape->rows);
}

static cairn_status topk_run_cpu(device *dev, const cairn_topk_args *a, const topk_shape *shape) {
    topk_cpu_call call;
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
    return topk_cpu(dev, &call);
}

cairn_status cairn_topk(cairn_runtime *rt, const cairn_topk_args *args) {
    cairn_topk_args a;
    topk_shape shape = {0};
    cairn_status status = args_take(&rt->base, "topk", &a, sizeof a, args);
    if (status || (status = topk_check(&rt->device, &a, &shape))) return status;
    if (shape.rows == 0) return CAIRN_OK;
    if (!rt->device.cuda) return topk_run_cpu(&rt->device, &a, &shape);
    return topk_run_cuda(rt, &a, &shape);
}

/* topk: a row as one worker of a forward takes it. See topk.h. */

static topk_cpu_call topk_alone_call(int64_t n, int32_t k) {
    topk_cpu_call call;
    memset(&call, 0, sizeof call);
    call.type = CAIRN_F32;
    call.n = n;
    call.rows = 1;
    call.k = k;
    call.capacity = topk_capacity(n, k, 1);
    call.workspace_bytes = topk_workspace_bytes(&call);
    return call;
}

static size_t topk_alone_bytes(int64_t n, int32_t k) {
    return topk_alone_call(n, k).workspace_bytes;
}

static void topk_alone(const float *scores, int64_t n, int32_t length, int32_t k, void *workspace,
                       int32_t *indices) {
    topk_cpu_call call = topk_alone_call(n, k);
    topk_list list;
    call.scores = (const char *)scores;
    call.lengths = &length;
    call.indices = indices;
    call.simd = simd_of_level(pool_simd());
    call.workspace = (char *)workspace;
    list = topk_list_of(&call, 0);
    topk_row_alone(&call, 0, &list);
}

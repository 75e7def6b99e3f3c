/* index: what one worker of a forward does of index_qk and index_logits_paged. See index.h. */

static void index_alone_finish(float *v, bool power_of_two, uint8_t *out, float *scale) {
    index_hadamard(v);
    *scale = fp8_of_block(v, CAIRN_INDEX_DIM, power_of_two, out);
}

static void index_alone_norm(const float *weight, const float *bias, float *v) {
    index_qk_params p;
    p.norm_weight = weight;
    p.norm_bias = bias;
    p.epsilon = 1e-6f;
    index_normalize(&p, v);
}

static size_t index_alone_floats(int rows, int heads) {
    return ((size_t)rows * (size_t)heads + INDEX_KEYS) * CAIRN_INDEX_DIM;
}

static void index_alone_score(const float *values, const index_logits_params *p, int first,
                              int count, int64_t from, int64_t to, float *scratch) {
    const index_range columns = {from, to};
    index_job job;
    index_piece w;
    memset(&job, 0, sizeof job);
    job.simd = simd_for(CAIRN_INDEX_DIM);
    job.p = p;
    job.paged = true;
    job.values = values;
    w.q = scratch;
    w.keys = scratch + (size_t)count * (size_t)p->heads * CAIRN_INDEX_DIM;
    w.first = first;
    w.count = count;
    w.request = p->row_requests[first];
    index_score_piece(&job, &w, columns);
}

/* ops_sample: the entries sample and verify_greedy. */

enum { OPS_SAMPLE_BINS = 2048, OPS_SAMPLE_BLOCK = 1024 };
/* sample_few: greedy, or top_k first and at most so many. */
enum { OPS_FEW_TOP_K = 128, OPS_FEW_BLOCK = 512, OPS_FEW_TILE = 8192, OPS_FEW_PARTS = 32,
       OPS_FEW_SHARED = 41616, OPS_FEW_LIST = 4096 };

static void ops_sample_params(const cairn_sample_args *a, sample_params *p) {
    memset(p, 0, sizeof *p);
    p->temperature = a->temperature;
    p->top_k = a->top_k;
    p->top_p = a->top_p;
    p->min_p = a->min_p;
    p->top_p_first = a->order == CAIRN_ORDER_TOP_P_FIRST;
    p->repetition_penalty = a->repetition_penalty;
}

static cairn_status ops_sample_cpu(device *dev, const cairn_sample_args *a) {
    const int64_t rows = a->logits->shape[0], vocab = a->logits->shape[1];
    const int64_t history = a->history ? a->history->shape[1] : 0;
    const size_t row_bytes = (size_t)vocab * sizeof(float), seen_bytes = ((size_t)vocab + 63) / 8;
    int32_t *tokens = (int32_t *)tensor_data(a->tokens);
    sample_params p;
    void *memory;
    float *row;
    cairn_status status = device_scratch(
        dev, row_bytes + sample_scratch_bytes((int)vocab) + seen_bytes, "sample", &memory);
    if (status) return status;
    row = (float *)memory;
    ops_sample_params(a, &p);
    for (int64_t r = 0; r < rows; r++) {
        char *scratch = (char *)memory + row_bytes;
        int64_t position = a->positions ? ((const int32_t *)tensor_data(a->positions))[r] : 0;
        memcpy(row, (const float *)tensor_data(a->logits) + r * vocab, row_bytes);
        if (a->history)
            sample_penalize(row, (int)vocab, (const int32_t *)tensor_data(a->history) + r * history,
                            history, a->repetition_penalty,
                            (uint8_t *)scratch + sample_scratch_bytes((int)vocab));
        p.seed = a->seeds ? (uint64_t)((const int64_t *)tensor_data(a->seeds))[r] : 0;
        tokens[r] = sample_token(&p, row, (int)vocab, position, scratch);
    }
    return CAIRN_OK;
}

static bool ops_sample_is_few(const sample_params *p, int64_t vocab) {
    if (p->temperature <= 0.0f) return true;
    return p->top_k > 0 && p->top_k <= OPS_FEW_TOP_K && p->top_k < vocab && !p->top_p_first;
}

/* A row's blocks meet in a flag; what they hand on lies in the workspace. */
static cairn_status ops_sample_few(cairn_runtime *rt, sample_kernel_params *p, unsigned seen_bytes,
                                   int64_t rows) {
    device_dims dims = {{0, 0, 1}, OPS_FEW_BLOCK, 0, 0, false};
    unsigned parts = ((unsigned)p->vocab + OPS_FEW_TILE - 1) / OPS_FEW_TILE;
    unsigned most = (unsigned)p->top_k * 3 / 2 + 16; /* of a part's candidates, as a rule */
    void *flags = NULL, *memory = NULL;
    cairn_status status = handles_enter(rt);
    if (status) return status;
    if ((int64_t)parts * rows > 2 * rt->device.sm_count) /* as many blocks as run at once */
        parts = (unsigned)(2 * rt->device.sm_count / rows);
    if (parts > OPS_FEW_PARTS) parts = OPS_FEW_PARTS;
    if (p->temperature > 0.0f && parts * most > OPS_FEW_LIST) parts = OPS_FEW_LIST / most;
    if (parts < 1) parts = 1;
    status = device_flags(&rt->device, (size_t)rows * 4, "sample", &flags);
    if (!status)
        status = device_scratch(&rt->device, (size_t)rows * parts * sizeof(sample_part), "sample",
                             &memory);
    if ((status = handles_leave(rt, status))) return status;
    p->arrived = (uint32_t *)flags;
    p->parts = (sample_part *)memory;
    dims.grid[0] = parts;
    dims.grid[1] = (unsigned)rows;
    dims.shared_bytes = OPS_FEW_SHARED + seen_bytes;
    return ops_launch(rt, "sample/few.cu", "sample_few", &dims, p);
}

static cairn_status ops_sample_device(cairn_runtime *rt, const sample_params *rule,
                                      const float *logits, int rows, int vocab, int32_t first,
                                      int32_t *tokens) {
    sample_kernel_params p;
    memset(&p, 0, sizeof p);
    p.logits = logits;
    p.tokens = tokens;
    p.seed = (int64_t)rule->seed;
    p.vocab = vocab;
    p.top_k = rule->top_k;
    p.temperature = rule->temperature;
    p.top_p = rule->top_p;
    p.min_p = rule->min_p;
    p.repetition_penalty = 1.0f;
    p.position_first = first, p.position_step = 1;
    return ops_sample_few(rt, &p, 0, rows);
}

static cairn_status ops_sample_cuda(cairn_runtime *rt, const cairn_sample_args *a) {
    device_dims dims = {{0, 1, 1}, OPS_SAMPLE_BLOCK, 0, 0, false};
    sample_params rule;
    sample_kernel_params p;
    memset(&p, 0, sizeof p);
    p.logits = (const float *)tensor_data(a->logits);
    p.seeds = a->seeds ? (const int64_t *)tensor_data(a->seeds) : NULL;
    p.positions = a->positions ? (const int32_t *)tensor_data(a->positions) : NULL;
    p.history = a->history ? (const int32_t *)tensor_data(a->history) : NULL;
    p.tokens = (int32_t *)tensor_data(a->tokens);
    p.vocab = (int32_t)a->logits->shape[1];
    p.history_count = a->history ? (int32_t)a->history->shape[1] : 0;
    p.top_k = a->top_k;
    p.top_p_first = a->order == CAIRN_ORDER_TOP_P_FIRST;
    p.temperature = a->temperature;
    p.top_p = a->top_p;
    p.min_p = a->min_p;
    p.repetition_penalty = a->repetition_penalty;
    if (p.history) dims.shared_bytes = (unsigned)((p.vocab + 31) / 32 * 4);
    ops_sample_params(a, &rule);
    if (ops_sample_is_few(&rule, p.vocab))
        return ops_sample_few(rt, &p, dims.shared_bytes, a->logits->shape[0]);
    dims.grid[0] = (unsigned)a->logits->shape[0];
    dims.shared_bytes += (OPS_SAMPLE_BINS + 64) * 8;
    return ops_launch(rt, "sample/sample.cu", "sample", &dims, &p);
}

cairn_status cairn_sample(cairn_runtime *rt, const cairn_sample_args *args) {
    cairn_sample_args a;
    spec_call s;
    if (spec_take(rt, SPEC_OF(sample), &a, args, &s) || !s.n[SPEC_ROWS]) return s.c.status;
    if (a.top_p == 0.0f) a.top_p = 1.0f;
    if (a.repetition_penalty == 0.0f) a.repetition_penalty = 1.0f;
    return rt->device.cuda ? ops_sample_cuda(rt, &a) : ops_sample_cpu(&rt->device, &a);
}

static void ops_sample_verify(const cairn_verify_greedy_args *a) {
    const int64_t sequences = a->logits->shape[0], rows = a->logits->shape[1];
    const int64_t vocab = a->logits->shape[2];
    for (int64_t s = 0; s < sequences; s++) {
        const int32_t *drafts = (const int32_t *)tensor_data(a->drafts) + s * (rows - 1);
        for (int64_t j = 0; j < rows; j++) {
            const float *row = (const float *)tensor_data(a->logits) + (s * rows + j) * vocab;
            int32_t token = sample_argmax(row, (int)vocab);
            if (j < rows - 1 && drafts[j] == token) continue;
            ((int32_t *)tensor_data(a->accepted))[s] = (int32_t)j;
            ((int32_t *)tensor_data(a->bonus))[s] = token;
            break;
        }
    }
}

cairn_status cairn_verify_greedy(cairn_runtime *rt, const cairn_verify_greedy_args *args) {
    cairn_verify_greedy_args a;
    spec_call s;
    if (spec_take(rt, SPEC_OF(verify_greedy), &a, args, &s) || !s.n[SPEC_SEQUENCES])
        return s.c.status;
    if (rt->device.cuda) {
        device_dims dims = {{0, 1, 1}, OPS_SAMPLE_BLOCK, 0, 512, false};
        verify_greedy_params p;
        memset(&p, 0, sizeof p);
        p.logits = (const float *)tensor_data(a.logits);
        p.drafts = (const int32_t *)tensor_data(a.drafts);
        p.accepted = (int32_t *)tensor_data(a.accepted);
        p.bonus = (int32_t *)tensor_data(a.bonus);
        p.drafts_count = (int32_t)a.logits->shape[1] - 1;
        p.vocab = (int32_t)a.logits->shape[2];
        dims.grid[0] = (unsigned)a.logits->shape[0];
        return ops_launch(rt, "sample/sample.cu", "verify_greedy", &dims, &p);
    }
    ops_sample_verify(&a);
    return CAIRN_OK;
}

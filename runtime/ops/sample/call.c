/* ops_sample: the entries sample and verify_greedy. */

static void ops_sample_params(const cairn_sample_args *a, sample_params *p) {
    memset(p, 0, sizeof *p);
    p->temperature = a->temperature;
    p->top_k = a->top_k;
    p->top_p = a->top_p;
    p->min_p = a->min_p;
    p->top_p_first = a->order == CAIRN_ORDER_TOP_P_FIRST;
    p->repetition_penalty = a->repetition_penalty;
}

/* Whether rows have parameters of their own. */
static bool ops_sample_by_row(const cairn_sample_args *a) {
    return a->temperatures || a->top_ps || a->min_ps || a->penalties || a->top_ks;
}

static float ops_sample_float(const cairn_tensor *of_rows, int64_t r, float otherwise, float off) {
    float value = of_rows ? ((const float *)tensor_data(of_rows))[r] : otherwise;
    return value > 0.0f ? value : off;
}

/* Those of row r: what is out of range is off. */
static void ops_sample_row_params(const cairn_sample_args *a, int64_t r, sample_params *p) {
    p->temperature = ops_sample_float(a->temperatures, r, p->temperature, 0.0f);
    p->top_p = ops_sample_float(a->top_ps, r, p->top_p, 1.0f);
    p->min_p = ops_sample_float(a->min_ps, r, p->min_p, 0.0f);
    p->repetition_penalty = ops_sample_float(a->penalties, r, p->repetition_penalty, 1.0f);
    if (a->top_ks) p->top_k = ((const int32_t *)tensor_data(a->top_ks))[r];
}

/* Row r as it is asked for, on the CPU. */
static sample_ask ops_sample_ask(const cairn_sample_args *a, int64_t r) {
    sample_ask ask;
    memset(&ask, 0, sizeof ask);
    ops_sample_params(a, &ask.params);
    ops_sample_row_params(a, r, &ask.params);
    ask.params.seed = a->seeds ? (uint64_t)((const int64_t *)tensor_data(a->seeds))[r] : 0;
    if (a->mask)
        ask.mask = (const uint32_t *)tensor_data(a->mask) +
                   (size_t)r * sample_mask_words((int)a->logits->shape[1]);
    ask.position = a->positions ? ((const int32_t *)tensor_data(a->positions))[r] : 0;
    if (!a->history) return ask;
    ask.history_count = a->history->shape[1];
    ask.history = (const int32_t *)tensor_data(a->history) + r * ask.history_count;
    return ask;
}

/* Row r's, at most 32 of the best. */
static void ops_sample_logprobs(const cairn_sample_args *a, int64_t r) {
    const int vocab = (int)a->logits->shape[1], best = a->best ? (int)a->best->shape[1] : 0;
    cairn_logprob all[33];
    sample_logprobs_row((const float *)tensor_data(a->logits) + r * vocab, vocab,
                        ((const int32_t *)tensor_data(a->tokens))[r], best, all);
    for (int n = 0; n <= best; n++) {
        ((float *)tensor_data(a->logprobs))[r * (1 + best) + n] = all[n].logprob;
        if (n) ((int32_t *)tensor_data(a->best))[r * best + n - 1] = all[n].id;
    }
}

static cairn_status ops_sample_logprobs_cuda(cairn_runtime *rt, const cairn_sample_args *a) {
    device_dims dims = {{0, 1, 1}, OPS_SAMPLE_BLOCK, 0, 512, false};
    sample_logprobs_params p;
    memset(&p, 0, sizeof p);
    p.logits = (const float *)tensor_data(a->logits);
    p.tokens = (const int32_t *)tensor_data(a->tokens);
    p.logprobs = (float *)tensor_data(a->logprobs);
    p.best = a->best ? (int32_t *)tensor_data(a->best) : NULL;
    p.vocab = (int32_t)a->logits->shape[1];
    p.count = a->best ? (int32_t)a->best->shape[1] : 0;
    dims.grid[0] = (unsigned)a->logits->shape[0];
    return ops_launch(rt, "sample/sample.cu", "sample_logprobs", &dims, &p);
}

/* The ops' token of a row: of one without a number it is the lowest that may be drawn. */
static int32_t ops_sample_row(sample_space *x, const sample_ask *ask, const float *logits) {
    int32_t token;
    sample_row_host(x, logits, &ask, 0, &token);
    return token < 0 ? sample_first(ask->mask, x->vocab) : token;
}

static cairn_status ops_sample_cpu(device *dev, const cairn_sample_args *a) {
    const int64_t rows = a->logits->shape[0], vocab = a->logits->shape[1];
    sample_space space;
    void *memory;
    cairn_status status = device_scratch(dev, sample_space_bytes((int)vocab), "sample", &memory);
    if (status) return status;
    sample_space_place(memory, (int)vocab, &space);
    for (int64_t r = 0; r < rows; r++) {
        const sample_ask ask = ops_sample_ask(a, r);
        ((int32_t *)tensor_data(a->tokens))[r] =
            ops_sample_row(&space, &ask, (const float *)tensor_data(a->logits) + r * vocab);
        if (a->logprobs) ops_sample_logprobs(a, r);
    }
    return CAIRN_OK;
}

/* The kernel's parameters, those of rows among them. */
static void ops_sample_put(const cairn_sample_args *a, sample_kernel_params *p) {
    p->logits = (const float *)tensor_data(a->logits);
    p->seeds = a->seeds ? (const int64_t *)tensor_data(a->seeds) : NULL;
    p->positions = a->positions ? (const int32_t *)tensor_data(a->positions) : NULL;
    p->history = a->history ? (const int32_t *)tensor_data(a->history) : NULL;
    p->masks = a->mask ? (const uint32_t *)tensor_data(a->mask) : NULL;
    p->vocab = (int32_t)a->logits->shape[1];
    p->history_count = a->history ? (int32_t)a->history->shape[1] : 0;
    p->top_k = a->top_k;
    p->top_p_first = a->order == CAIRN_ORDER_TOP_P_FIRST;
    p->temperature = a->temperature;
    p->top_p = a->top_p;
    p->min_p = a->min_p;
    p->repetition_penalty = a->repetition_penalty;
    if (a->temperatures) p->temperatures = (const float *)tensor_data(a->temperatures);
    if (a->top_ps) p->top_ps = (const float *)tensor_data(a->top_ps);
    if (a->min_ps) p->min_ps = (const float *)tensor_data(a->min_ps);
    if (a->penalties) p->penalties = (const float *)tensor_data(a->penalties);
    if (a->top_ks) p->top_ks = (const int32_t *)tensor_data(a->top_ks);
}

static unsigned ops_sample_seen(const sample_kernel_params *p) {
    return p->history ? (unsigned)((p->vocab + 31) / 32 * 4) : 0;
}

/* Shared memory of the kernels that pass over a row. */
static unsigned ops_sample_shared(const sample_kernel_params *p) {
    return (OPS_SAMPLE_BINS + 64) * 8 + ops_sample_seen(p);
}

static cairn_status ops_sample_cuda(cairn_runtime *rt, const cairn_sample_args *a) {
    sample_params rule;
    sample_kernel_params p;
    memset(&p, 0, sizeof p);
    ops_sample_put(a, &p);
    p.tokens = (int32_t *)tensor_data(a->tokens);
    ops_sample_params(a, &rule);
    if (sample_is_few(&rule, p.vocab) && !ops_sample_by_row(a))
        return sample_launch_few(rt, &p, a->temperature > 0.0f, ops_sample_seen(&p),
                                 a->logits->shape[0]);
    return sample_launch_wide(rt, &p, p.masks || ops_sample_by_row(a), a->logits->shape[0]);
}

static void ops_sample_refuse(spec_call *s, const cairn_sample_args *a) {
    const int64_t best = a->best ? a->best->shape[1] : 0;
    ops_refuse(&s->c, a->mask && a->mask->shape[1] != (s->n[SPEC_VOCAB] + 31) / 32,
               "mask: [rows, (vocab + 31) / 32] is expected");
    ops_refuse(&s->c, a->best && (!a->logprobs || best > 32 || best > s->n[SPEC_VOCAB]),
               "best: [rows, n] with n up to 32 and to the vocabulary, beside logprobs");
    ops_refuse(&s->c, a->logprobs && a->logprobs->shape[1] != 1 + best,
               "logprobs: [rows, 1 + n] is expected, n as best has");
}

cairn_status cairn_sample(cairn_runtime *rt, const cairn_sample_args *args) {
    cairn_sample_args a;
    spec_call s;
    if (spec_take(rt, SPEC_OF(sample), &a, args, &s)) return s.c.status;
    ops_sample_refuse(&s, &a);
    if (s.c.status || !s.n[SPEC_ROWS]) return s.c.status;
    if (a.top_p == 0.0f) a.top_p = 1.0f;
    if (a.repetition_penalty == 0.0f) a.repetition_penalty = 1.0f;
    if (!rt->device.cuda) return spec_end(rt, ops_sample_cpu(&rt->device, &a));
    s.c.status = ops_sample_cuda(rt, &a);
    return spec_end(rt, s.c.status || !a.logprobs ? s.c.status : ops_sample_logprobs_cuda(rt, &a));
}

/* Rows of a sequence, the best token of each, up to the first that is not the draft. */
static void ops_sample_verify(const cairn_verify_greedy_args *a) {
    const int64_t sequences = a->logits->shape[0], rows = a->logits->shape[1];
    const int64_t vocab = a->logits->shape[2];
    for (int64_t s = 0; s < sequences; s++) {
        const int32_t *drafts = (const int32_t *)tensor_data(a->drafts) + s * (rows - 1);
        const float *logits = (const float *)tensor_data(a->logits) + s * rows * vocab;
        sample_space space;
        sample_ask ask;
        int32_t token = -1;
        int64_t j = -1;
        memset(&space, 0, sizeof space);
        memset(&ask, 0, sizeof ask);
        space.vocab = (int)vocab;
        do token = ops_sample_row(&space, &ask, logits + ++j * vocab);
        while (j < rows - 1 && drafts[j] == token);
        ((int32_t *)tensor_data(a->accepted))[s] = (int32_t)j;
        ((int32_t *)tensor_data(a->bonus))[s] = token;
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
        return spec_end(rt, ops_launch(rt, "sample/sample.cu", "verify_greedy", &dims, &p));
    }
    ops_sample_verify(&a);
    return spec_end(rt, CAIRN_OK);
}

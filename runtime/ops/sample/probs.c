/* ops_probs: the entries sample_probs and verify_chain. On the CPU they count as their kernels do, in
 * whole numbers of 2^-40, so that both backends accept and draw the same. */

/* The fields that are sample's, as sample takes them. */
static void ops_probs_rows(const cairn_sample_probs_args *a, cairn_sample_args *rows) {
    memset(rows, 0, sizeof *rows);
    rows->temperature = a->temperature, rows->min_p = a->min_p, rows->top_k = a->top_k;
    rows->top_p = a->top_p == 0.0f ? 1.0f : a->top_p;
    rows->repetition_penalty = a->repetition_penalty == 0.0f ? 1.0f : a->repetition_penalty;
    rows->order = a->order, rows->logits = a->logits, rows->history = a->history;
    rows->mask = a->mask, rows->temperatures = a->temperatures, rows->top_ps = a->top_ps;
    rows->min_ps = a->min_ps, rows->penalties = a->penalties, rows->top_ks = a->top_ks;
}

static void ops_probs_row(sample_space *x, const sample_ask *ask, const float *logits, float *out) {
    const float *scores;
    double total = 0.0;
    float least;
    int32_t best;
    logits = sample_adjust(x, ask, logits);
    scores = sample_scores(&ask->params, logits, x->vocab, x->scratch, &best, &least);
    if (!scores && !sample_may(ask->mask, best)) best = sample_first(ask->mask, x->vocab);
    for (int i = 0; i < x->vocab; i++) {
        out[i] = !scores ? (float)(i == best) : scores[i] >= least ? expf(scores[i]) : 0.0f;
        total += (double)out[i];
    }
    for (int i = 0; i < x->vocab; i++) out[i] = (float)((double)out[i] / total);
}

static cairn_status ops_probs_cpu(device *dev, const cairn_sample_args *a, float *probs) {
    const int64_t rows = a->logits->shape[0], vocab = a->logits->shape[1];
    sample_space space;
    void *memory;
    cairn_status status = device_scratch(dev, sample_space_bytes((int)vocab), "sample_probs", &memory);
    if (status) return status;
    sample_space_place(memory, (int)vocab, &space);
    for (int64_t r = 0; r < rows; r++) {
        const sample_ask ask = ops_sample_ask(a, r);
        ops_probs_row(&space, &ask, (const float *)tensor_data(a->logits) + r * vocab,
                      probs + r * vocab);
    }
    return CAIRN_OK;
}

static cairn_status ops_probs_cuda(cairn_runtime *rt, const cairn_sample_args *a, float *probs) {
    device_dims dims = {{0, 1, 1}, OPS_SAMPLE_BLOCK, 0, 0, false};
    sample_probs_params p;
    memset(&p, 0, sizeof p);
    ops_sample_put(a, &p.rows);
    p.probs = probs;
    dims.grid[0] = (unsigned)a->logits->shape[0];
    dims.shared_bytes = ops_sample_shared(&p.rows);
    return ops_launch(rt, "sample/probs.cu", "sample_probs", &dims, &p);
}

cairn_status cairn_sample_probs(cairn_runtime *rt, const cairn_sample_probs_args *args) {
    cairn_sample_probs_args a;
    cairn_sample_args rows;
    spec_call s;
    float *probs;
    if (spec_take(rt, SPEC_OF(sample_probs), &a, args, &s)) return s.c.status;
    ops_probs_rows(&a, &rows);
    ops_sample_refuse(&s, &rows);
    if (s.c.status || !s.n[SPEC_ROWS]) return s.c.status;
    probs = (float *)tensor_data(a.probs);
    return spec_end(rt, rt->device.cuda ? ops_probs_cuda(rt, &rows, probs)
                                        : ops_probs_cpu(&rt->device, &rows, probs));
}

/* ---- verify_chain ---------------------------------------------------------------------------- */

/* What the target's probability is above the drafter's; q NULL: that of `draft` is 1. */
static uint64_t ops_probs_residual(const float *target, const float *q, int draft, int i) {
    const float mine = q ? q[i] : i == draft ? 1.0f : 0.0f;
    const float over = target[i] - (mine > 0.0f ? mine : 0.0f);
    if (!(over > 0.0f)) return 0;
    return (uint64_t)((over < 1.0f ? over : 1.0f) * 1099511627776.0f); /* 2^40 */
}

/* The first id whose cumulative residual exceeds u of them all. */
static int32_t ops_probs_draw(const verify_chain_params *p, const float *target, const float *q,
                              int draft, float u) {
    uint64_t total = 0, sum = 0, goal;
    for (int i = 0; i < p->vocab; i++) total += ops_probs_residual(target, q, draft, i);
    goal = (uint64_t)((double)u * (double)total);
    for (int i = 0; i < p->vocab; i++)
        if ((sum += ops_probs_residual(target, q, draft, i)) > goal) return i;
    return sample_argmax(target, p->vocab);
}

static int32_t ops_probs_guess(sample_space *x, const sample_ask *ask, const float *logits,
                               float *out) {
    verify_chain_params p;
    float draw, keep;
    memset(&p, 0, sizeof p);
    p.vocab = x->vocab;
    ops_probs_row(x, ask, logits, out);
    sample_uniforms(~ask->params.seed, ask->position, &draw, &keep);
    return ops_probs_draw(&p, out, NULL, -1, draw);
}

static bool ops_probs_chain(const verify_chain_params *p, int64_t s, int64_t *wrong) {
    const int count = p->drafts_count;
    const int32_t *drafts = p->drafts + s * count;
    const float *target = p->target + s * (count + 1) * p->vocab, *q = NULL;
    int32_t *tokens = p->tokens + s * (count + 1);
    int at = 0, draft = -1;
    bool good = true;
    float draw, keep;
    for (;; at++, target += p->vocab) {
        sample_uniforms(p->seeds ? (uint64_t)p->seeds[s] : 0,
                        (int64_t)(p->positions ? p->positions[s] : 0) + at, &draw, &keep);
        q = NULL, draft = -1;
        if (at == count) break;
        good = drafts[at] >= 0 && drafts[at] < p->vocab;
        if (!good) *wrong = drafts[at];
        if (!good) break;
        draft = drafts[at];
        if (p->draft_probs) q = p->draft_probs + (s * count + at) * p->vocab;
        if (!(keep * (q ? q[draft] : 1.0f) < target[draft])) break;
    }
    for (int i = 0; i <= count; i++) tokens[i] = i < at ? drafts[i] : -1;
    tokens[at] = p->bonus[s] = ops_probs_draw(p, target, q, draft, draw);
    p->accepted[s] = at;
    return good;
}

cairn_status cairn_verify_chain(cairn_runtime *rt, const cairn_verify_chain_args *args) {
    device_dims dims = {{0, 1, 1}, OPS_SAMPLE_BLOCK, 0, 512, false};
    cairn_verify_chain_args a;
    verify_chain_params p;
    spec_call s;
    int64_t wrong = 0;
    if (spec_take(rt, SPEC_OF(verify_chain), &a, args, &s) || !s.n[SPEC_SEQUENCES]) return s.c.status;
    memset(&p, 0, sizeof p);
    p.target = (const float *)tensor_data(a.target);
    p.drafts = (const int32_t *)tensor_data(a.drafts);
    if (a.draft_probs) p.draft_probs = (const float *)tensor_data(a.draft_probs);
    if (a.seeds) p.seeds = (const int64_t *)tensor_data(a.seeds);
    if (a.positions) p.positions = (const int32_t *)tensor_data(a.positions);
    p.tokens = (int32_t *)tensor_data(a.tokens);
    p.accepted = (int32_t *)tensor_data(a.accepted);
    p.bonus = (int32_t *)tensor_data(a.bonus);
    p.drafts_count = (int32_t)s.n[SPEC_DRAFTS], p.vocab = (int32_t)s.n[SPEC_VOCAB];
    dims.grid[0] = (unsigned)s.n[SPEC_SEQUENCES];
    if (rt->device.cuda) {
        p.error = ops_error_word(&rt->device, s.c.op);
        return spec_end(rt, ops_launch(rt, "sample/probs.cu", "verify_chain", &dims, &p));
    }
    for (int64_t r = 0; r < s.n[SPEC_SEQUENCES]; r++)
        if (!ops_probs_chain(&p, r, &wrong))
            ops_bad_row(&rt->device, s.c.op, r, "id out of range", wrong, &s.c.status);
    return spec_end(rt, s.c.status);
}

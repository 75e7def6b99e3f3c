/* forward_cpu_draft: the sampler head of a gated adapter (model/adapter.h) on the CPU. Its blocks are
 * small, and one thread's; the model's head is shared out. */

typedef struct forward_draft {
    forward_cpu_state *f;
    const float *x; /* [hidden] */
    float *logits;  /* [vocab] */
} forward_draft;

static void forward_draft_head(void *context, int worker) {
    forward_draft *d = (forward_draft *)context;
    forward_cpu_state *f = d->f;
    const model_weight *w = &f->model->plan.head;
    const int pieces = forward_pieces(f);
    linear_job job;
    memset(&job, 0, sizeof job);
    job.type = w->type, job.w = w->data, job.out = (int)w->rows, job.in = (int)w->columns;
    job.x = d->x, job.x_stride = w->columns, job.rows = 1;
    job.y = d->logits, job.y_stride = w->rows, job.eight = f->eight;
    for (int i = pool_next(f->threads_pool, worker); i < pieces;
         i = pool_next(f->threads_pool, worker)) {
        const int first = i * FORWARD_PIECE, end = first + FORWARD_PIECE;
        linear_range(f->simd, &job, first, end < job.out ? end : job.out, f->workers[worker].panel);
    }
    pool_meet(f->threads_pool, worker);
}

/* y [hidden] = norm(silu(W x)), x [in]; ones [hidden]. */
static void forward_draft_block(const forward_cpu_state *f, const float *w, const float *norm,
                                const float *x, int in, float *ones, float *y) {
    const int hidden = f->model->shape.hidden;
    f->simd->panel(w, hidden, x, in, 1, in, y, hidden, false);
    for (int i = 0; i < hidden; i++) ones[i] = 1.0f;
    f->simd->swiglu(y, ones, hidden);
    f->simd->rmsnorm(y, norm, f->model->shape.norm_eps, hidden, y);
}

/* What the head reads, to f->gate: from the token before and a hidden row. */
static const float *forward_draft_row(forward_cpu_state *f, const cairn_adapter *a,
                                      const float *hidden, int32_t token) {
    const model_weight *table = &f->model->plan.embed;
    const int n = f->model->shape.hidden;
    const float scale = f->model->plan.embed_scale;
    float *x = f->draft_rows, *ones = x + 2 * n, *y = ones + n, *more = y + n;
    f->simd->dequantize(table->type, table->data + (size_t)token *
                                                       block_row_bytes(block_find(table->type), n),
                        x, n);
    for (int i = 0; i < n && scale > 0.0f; i++) x[i] *= scale;
    memcpy(x + n, hidden, (size_t)n * sizeof *x);
    forward_draft_block(f, a->parts[ADAPTER_FIRST], a->parts[ADAPTER_FIRST_NORM], x, 2 * n, ones, y);
    forward_draft_block(f, a->parts[ADAPTER_SECOND], a->parts[ADAPTER_SECOND_NORM], y, n, ones,
                        more);
    for (int i = 0; i < n; i++) y[i] += more[i];
    return y;
}

static cairn_status forward_cpu_draft(cairn_model *model, const cairn_adapter *adapter,
                                      const float *hidden, int32_t token, int count,
                                      const sample_ask *ask, float *probs, int32_t *out) {
    forward_cpu_state *f = (forward_cpu_state *)model->state;
    const int vocab = model->shape.vocab;
    forward_draft d = {f, NULL, f->logits};
    for (int j = 0; j < count; j++, hidden += model->shape.hidden) {
        d.x = forward_draft_row(f, adapter, hidden, token);
        pool_each(f->threads_pool, f->threads, forward_draft_head, &d);
        if (!ask) {
            token = out[j] = sample_argmax(d.logits, vocab);
        } else {
            sample_ask one = *ask;
            one.position += j;
            token = out[j] = ops_probs_guess(&f->space, &one, d.logits,
                                             probs + (size_t)j * (size_t)vocab);
        }
    }
    return CAIRN_OK;
}

/* forward_cpu_layer: a whole layer on the CPU, embedding and logits, and the walk through all of them
 * in parts. */

/* gate = gelu(gate) * up, gelu by tanh: x sigmoid(t) with t = x s and s below, which is silu(t) / s.
 */
static void forward_geglu(const forward_cpu_state *f, float *gate, float *up, int n) {
    for (int i = 0; i < n; i++) {
        float s = 1.59576912f + 0.0713548163f * gate[i] * gate[i]; /* (8 / pi)^0.5, its 0.044715 */
        gate[i] *= s;
        up[i] /= s;
    }
    f->simd->swiglu(gate, up, n);
}

/* gate = silu(gate) * up, or gelu */
static void forward_gate_up(forward_walk *walk) {
    forward_cpu_state *f = walk->f;
    const plan_layer *layer = &f->model->plan.layers[walk->layer];
    const int ffn = f->model->shape.ffn, share = forward_share(f, ffn, 6);
    const float *x = forward_norm_low(walk, layer->parts[PLAN_FFN_NORM].values, PLAN_GATE, 2);
    const linear_job gate = forward_job(f, &layer->weights[PLAN_GATE], x, f->gate, false);
    const linear_job up = forward_job(f, &layer->weights[PLAN_UP], x, f->up, false);
    for (int i = forward_take(walk); i < (ffn + share - 1) / share; i = forward_take(walk)) {
        int first = i * share, last = first + share < ffn ? first + share : ffn;
        linear_range(f->simd, &gate, first, last, walk->own->panel);
        linear_range(f->simd, &up, first, last, walk->own->panel);
        forward_lift(walk, PLAN_GATE, 0, f->gate, ffn, first, last);
        forward_lift(walk, PLAN_UP, 1, f->up, ffn, first, last);
        for (int r = 0; r < f->batch->row_count; r++) {
            float *gated = f->gate + (int64_t)r * ffn + first, *by = f->up + (int64_t)r * ffn + first;
            if (layer->ffn == PLAN_GEGLU) forward_geglu(f, gated, by, last - first);
            else f->simd->swiglu(gated, by, last - first);
        }
    }
    forward_meet(walk);
}

static void forward_attention(forward_walk *walk) {
    forward_cpu_state *f = walk->f;
    const plan_layer *layer = &f->model->plan.layers[walk->layer];
    forward_qkv(walk);
    forward_attend(walk);
    forward_add(walk, PLAN_O, f->attended, &layer->parts[PLAN_MIXER_POST]);
}

static void forward_layer(forward_walk *walk) {
    forward_cpu_state *f = walk->f;
    const plan_layer *layer = &f->model->plan.layers[walk->layer];
    if (layer->mixer == PLAN_SHORT_CONV) forward_short_conv(walk);
    else if (layer->mixer == PLAN_LATENT) forward_by_latents(walk);
    else forward_attention(walk);
    if (f->model->shape.experts) {
        forward_experts(walk);
        return;
    }
    forward_gate_up(walk);
    forward_add(walk, PLAN_DOWN, f->gate, &layer->parts[PLAN_FFN_POST]);
}

/* ---- embedding and logits -------------------------------------------------------------------- */

static void forward_embed(forward_walk *walk) {
    forward_cpu_state *f = walk->f;
    const model_weight *table = &f->model->plan.embed;
    const int hidden = f->model->shape.hidden;
    const size_t row_bytes = block_row_bytes(block_find(table->type), hidden);
    const float scale = f->model->plan.embed_scale;
    for (int r = forward_take(walk); r < f->batch->row_count; r = forward_take(walk)) {
        float *h = f->h + (int64_t)r * hidden;
        const float *own = f->batch->rows[r].embedding;
        if (own) memcpy(h, own, (size_t)hidden * sizeof *h);
        else f->simd->dequantize(table->type, table->data +
                                     (size_t)f->batch->rows[r].token * row_bytes, h, hidden);
        for (int i = 0; i < hidden && scale > 0.0f; i++) h[i] *= scale;
    }
    forward_meet(walk);
}

/* Wanted rows from i on whose logits go to one place, one behind the other: to the caller, or to
 * f->logits. */
static int forward_head_rows(const forward_cpu_state *f, int i) {
    const forward_row *rows = f->batch->rows;
    bool logits = rows[f->wanted[i]].logits;
    int end = i + 1;
    while (end < f->wanted_count && end - i < FORWARD_HEAD &&
           rows[f->wanted[end]].logits == logits)
        end++;
    return end - i;
}

/* Draws the wanted rows of [first, first + count) that are to be sampled: one worker does. */
static void forward_draw(forward_walk *walk, int first, int count, const float *logits) {
    forward_cpu_state *f = walk->f;
    int asked = 0;
    if (forward_take(walk) != 0) return;
    for (int i = 0; i < first + count; i++) {
        if (!f->batch->rows[f->wanted[i]].sample) continue;
        if (i >= first)
            sample_row_host(&f->space, logits + (int64_t)(i - first) * f->model->shape.vocab,
                            f->asks, asked, f->batch->sampled);
        asked++;
    }
}

/* Outputs [from, to) of the logits of `count` wanted rows from i on, which lie at y. */
static void forward_head(forward_walk *walk, int i, int count, float *y, int from, int to) {
    forward_cpu_state *f = walk->f;
    linear_job head = forward_job(f, &f->model->plan.head, NULL, y, false);
    head.rows = count;
    head.x = forward_norm(walk, f->model->plan.output_norm.values, f->wanted + i, count);
    forward_outputs(walk, &head, -1, from, to, 16);
}

/* Logits of all wanted rows, and the tokens that are drawn from them. */
static void forward_logits(forward_walk *walk) {
    forward_cpu_state *f = walk->f;
    float *out = f->batch->logits;
    for (int i = 0, count; i < f->wanted_count; i += count) {
        bool logits = f->batch->rows[f->wanted[i]].logits;
        float *y = logits ? out : f->logits;
        count = forward_head_rows(f, i);
        forward_head(walk, i, count, y, 0, f->model->shape.vocab);
        forward_draw(walk, i, count, y);
        if (logits) out += (int64_t)count * f->model->shape.vocab;
        if (i + count < f->wanted_count) forward_meet(walk); /* f->logits may be written again */
    }
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* Whether all wanted rows are only sampled, and their logits made together. */
static bool forward_is_cut(const forward_cpu_state *f) {
    return f->wanted_count && !f->batch->rows[f->wanted[0]].logits &&
           forward_head_rows(f, 0) == f->wanted_count;
}

static int forward_pieces(const forward_cpu_state *f) {
    return (f->model->shape.vocab + FORWARD_PIECE - 1) / FORWARD_PIECE;
}

static int forward_count_parts(const forward_cpu_state *f) {
    const int layers = f->model->shape.layers;
    if (!f->wanted_count) return layers;
    return forward_is_cut(f) ? layers + forward_pieces(f) + f->wanted_count : layers + 1;
}

/* Parts [from, to) behind the layers: pieces of the head, then draws. */
static void forward_run_head(forward_walk *walk, int from, int to) {
    forward_cpu_state *f = walk->f;
    const int pieces = forward_pieces(f), vocab = f->model->shape.vocab;
    int end = to < pieces ? to * FORWARD_PIECE : vocab;
    if (from < pieces)
        forward_head(walk, 0, f->wanted_count, f->logits, from * FORWARD_PIECE,
                     end < vocab ? end : vocab);
    from = from > pieces ? from - pieces : 0;
    if (to > pieces)
        forward_draw(walk, from, to - pieces - from, f->logits + (int64_t)from * vocab);
}

/* What each worker does: parts [f->part, f->part_end) of the forward. They are its layers, the
 * embedding with the first; then the head in pieces and each row's draw, or all of both as one. */
static void forward_run_parts(void *context, int worker) {
    forward_walk walk;
    forward_cpu_state *f = (forward_cpu_state *)context;
    const int layers = f->model->shape.layers, end = f->part_end;
    walk.f = f;
    walk.own = &f->workers[worker];
    walk.worker = worker;
    walk.layer = f->part;
    if (!walk.layer) forward_embed(&walk);
    for (; walk.layer < layers && walk.layer < end; walk.layer++) forward_layer(&walk);
    if (end <= layers) return;
    if (!forward_is_cut(f)) forward_logits(&walk);
    else forward_run_head(&walk, f->part > layers ? f->part - layers : 0, end - layers);
}

/* forward_cpu_experts: a ffn of experts on the CPU. The router scores all of them for a row, the best
 * few take it, and what they give is summed by their shares, which are a softmax over the few.
 *
 * Rows that chose the same expert lie side by side in slots, so that an expert's weights are read
 * once for all of them. Sums are in the order of a row's choices: they depend on the row alone. */

/* The best experts of a row, the highest score first, of equal ones the lowest number; shares. */
static void forward_choose_experts(const forward_cpu_state *f, int r) {
    const int experts = f->model->shape.experts, used = f->model->shape.experts_used;
    const float *scores = f->routes + (int64_t)r * experts;
    int32_t *chosen = f->chosen_experts + (int64_t)r * used;
    float *shares = f->shares + (int64_t)r * used, total = 0.0f;
    for (int k = 0; k < used; k++) {
        int best = -1, last = k ? chosen[k - 1] : -1;
        for (int e = 0; e < experts; e++) {
            bool left = !k || scores[e] < scores[last] || (scores[e] == scores[last] && e > last);
            if (left && (best < 0 || scores[e] > scores[best])) best = e;
        }
        chosen[k] = best < 0 ? 0 : best; /* there is no best among numbers that are none */
        shares[k] = scores[chosen[k]] - scores[chosen[0]];
    }
    f->simd->exp_row(shares, shares, used);
    for (int k = 0; k < used; k++) total += shares[k];
    for (int k = 0; k < used; k++) shares[k] /= total;
}

/* Slots in the order of experts, and in each of rows. */
static void forward_fill_slots(forward_cpu_state *f) {
    const int experts = f->model->shape.experts;
    const int count = f->batch->row_count * f->model->shape.experts_used;
    int32_t *first = f->first_slots;
    memset(first, 0, (size_t)(experts + 1) * sizeof *first);
    for (int i = 0; i < count; i++) first[f->chosen_experts[i] + 1]++;
    f->busy_count = 0;
    for (int e = 0; e < experts; e++) {
        if (first[e + 1]) f->busy_experts[f->busy_count++] = e;
        first[e + 1] += first[e];
    }
    for (int i = 0; i < count; i++) {
        f->slots[i] = first[f->chosen_experts[i]]++;
        f->slot_rows[f->slots[i]] = i / f->model->shape.experts_used;
    }
    for (int e = experts; e > 0; e--) first[e] = first[e - 1];
    first[0] = 0;
}

/* Which expert and outputs an item of a product of `outs` outputs is; false: there are no more. */
static bool forward_expert_item(const forward_cpu_state *f, int item, int outs, int share,
                                int *expert, int *first, int *last) {
    const int pieces = (outs + share - 1) / share;
    if (item == INT_MAX || item >= f->busy_count * pieces) return false;
    *expert = f->busy_experts[item / pieces];
    *first = item % pieces * share;
    *last = *first + share < outs ? *first + share : outs;
    return true;
}

/* The product of one expert's part of a weight with its slots. */
static linear_job forward_expert_job(const forward_cpu_state *f, const model_weight *w, int expert,
                                     const float *x, float *y) {
    const int64_t first = f->first_slots[expert];
    const int64_t outs = w->rows / f->model->shape.experts;
    const size_t row_bytes = block_row_bytes(block_find(w->type), w->columns);
    linear_job job = forward_job(f, w, x + first * w->columns, y + first * outs, false);
    job.w = w->data + (size_t)expert * (size_t)outs * row_bytes;
    job.out = (int)outs;
    job.y_stride = outs;
    job.rows = f->first_slots[expert + 1] - (int)first;
    return job;
}

/* Outputs first .. last - 1 of an expert's product gain what the adapters of its slots' rows add. */
static void forward_lift_slots(const forward_walk *walk, int role, int which, const linear_job *job,
                               int expert, int first, int last) {
    const forward_cpu_state *f = walk->f;
    for (int i = 0; f->adapts && i < job->rows; i++) {
        const int slot = f->first_slots[expert] + i;
        forward_lift_row(walk, role, f->slot_rows[slot], slot, which, (int64_t)expert * job->out,
                         job->y + (int64_t)i * job->out, first, last);
    }
}

/* Inner values of choice i, of row i / used, for `roles` products of its expert whose inputs lie by slots
 * of `width` values at x. */
static void forward_low_slot(const forward_walk *walk, int role, int roles, const float *x, int width,
                             int i) {
    const forward_cpu_state *f = walk->f;
    if (f->adapts)
        forward_low_of(walk, role, roles, x + (int64_t)f->slots[i] * width,
                       i / f->model->shape.experts_used, f->chosen_experts[i], f->slots[i]);
}

/* A stage: gate and up of all slots, gated. */
static void forward_experts_up(forward_walk *walk, const plan_layer *layer) {
    forward_cpu_state *f = walk->f;
    const int ffn = f->model->shape.ffn, share = forward_share(f, ffn, 1);
    int e, first, last;
    while (forward_expert_item(f, forward_take(walk), ffn, share, &e, &first, &last)) {
        const linear_job gate = forward_expert_job(f, &layer->weights[PLAN_GATE], e, f->routed,
                                                   f->gate);
        const linear_job up = forward_expert_job(f, &layer->weights[PLAN_UP], e, f->routed, f->up);
        linear_range(f->simd, &gate, first, last, walk->own->panel);
        linear_range(f->simd, &up, first, last, walk->own->panel);
        forward_lift_slots(walk, PLAN_GATE, 0, &gate, e, first, last);
        forward_lift_slots(walk, PLAN_UP, 1, &up, e, first, last);
        for (int r = 0; r < gate.rows; r++)
            f->simd->swiglu(gate.y + (int64_t)r * ffn + first, up.y + (int64_t)r * ffn + first,
                            last - first);
    }
    forward_meet(walk);
}

/* Two stages, a third with adapters: what the slots come to, and their sums. */
static void forward_experts_down(forward_walk *walk, const plan_layer *layer) {
    forward_cpu_state *f = walk->f;
    const int hidden = f->model->shape.hidden, used = f->model->shape.experts_used;
    const int share = forward_share(f, hidden, 1), choices = f->batch->row_count * used;
    int e, first, last;
    if (f->adapts) {
        for (int i = forward_take(walk); i < choices; i = forward_take(walk))
            forward_low_slot(walk, PLAN_DOWN, 1, f->gate, f->model->shape.ffn, i);
        forward_meet(walk);
    }
    while (forward_expert_item(f, forward_take(walk), hidden, share, &e, &first, &last)) {
        const linear_job down = forward_expert_job(f, &layer->weights[PLAN_DOWN], e, f->gate,
                                                   f->routed);
        linear_range(f->simd, &down, first, last, walk->own->panel);
        forward_lift_slots(walk, PLAN_DOWN, 0, &down, e, first, last);
    }
    forward_meet(walk);
    for (int r = forward_take(walk); r < f->batch->row_count; r = forward_take(walk))
        for (int i = r * used; i < (r + 1) * used; i++)
            for (int c = 0; c < hidden; c++)
                f->h[(int64_t)r * hidden + c] +=
                    f->shares[i] * f->routed[(int64_t)f->slots[i] * hidden + c];
    forward_meet(walk);
}

static void forward_experts(forward_walk *walk) {
    forward_cpu_state *f = walk->f;
    const plan_layer *layer = &f->model->plan.layers[walk->layer];
    const int rows = f->batch->row_count, used = f->model->shape.experts_used;
    const int hidden = f->model->shape.hidden;
    const float *norm = layer->parts[PLAN_FFN_NORM].values;
    const float *x = forward_norm(walk, norm, NULL, rows);
    const linear_job router = forward_job(f, &layer->weights[PLAN_ROUTER], x, f->routes, false);
    forward_product(walk, &router, 1);
    for (int r = forward_take(walk); r < rows; r = forward_take(walk)) forward_choose_experts(f, r);
    forward_meet(walk);
    if (forward_take(walk) == 0) forward_fill_slots(f);
    forward_meet(walk);
    for (int i = forward_take(walk); i < rows * used; i = forward_take(walk)) {
        f->simd->rmsnorm(f->h + (int64_t)(i / used) * hidden, norm, f->model->shape.norm_eps, hidden,
                         f->routed + (int64_t)f->slots[i] * hidden);
        forward_low_slot(walk, PLAN_GATE, 2, f->routed, hidden, i);
    }
    forward_meet(walk);
    forward_experts_up(walk, layer);
    forward_experts_down(walk, layer);
}

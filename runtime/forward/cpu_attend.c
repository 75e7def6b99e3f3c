/* forward_cpu_attend: attention of a layer on the CPU: what each block of rows sees, the pages that it
 * chooses, and who computes it. */

/* Whether some of this layer's rows choose pages. A layer with a window of its own attends that. */
static bool forward_selects(const forward_walk *walk) {
    return !walk->f->model->plan.layers[walk->layer].window &&
           walk->f->selecting[walk->layer / 64] >> (walk->layer % 64) & 1;
}

/* The block of rows and its KV head, before pages are chosen; q is the worker's. */
static attention_block forward_block_of(const forward_walk *walk, const forward_block *rows,
                                        int head) {
    const forward_cpu_state *f = walk->f;
    const model_shape *s = &f->model->shape;
    const int width = f->group * s->head_dim;
    const float own = f->model->plan.attention_scale;
    const float scale = own > 0.0f ? own : 1.0f / sqrtf((float)s->head_dim);
    attention_block a;
    memset(&a, 0, sizeof a);
    a.simd = f->simd;
    a.cache = f->kv->pages[forward_state(walk)];
    a.type = f->kv->type;
    a.scales = pages_scales(f->kv, forward_state(walk));
    a.table = forward_table(walk, &f->batch->sequences[rows->sequence]);
    a.positions = f->positions + rows->first;
    a.rows = rows->rows;
    a.kv_heads = s->kv_heads;
    a.head = head;
    a.group = f->group;
    a.dim = s->head_dim;
    a.page_size = f->kv->page_size;
    a.window = f->model->plan.layers[walk->layer].window;
    a.landmarks = !a.window && f->batch->sequences[rows->sequence].landmarks &&
                  forward_rule_selects(f->batch->sequences[rows->sequence].rule, walk->layer);
    a.staged = walk->own->staged;
    a.q = walk->own->q;
    for (int r = 0; r < rows->rows; r++) {
        const float *from =
            f->q + (int64_t)(rows->first + r) * s->heads * s->head_dim + head * width;
        for (int i = 0; i < width; i++) walk->own->q[r * width + i] = from[i] * scale;
    }
    return a;
}

/* Whether the rule is more than one softmax over chosen pages; it may be NULL. */
static bool forward_rule_weighs(const forward_rule *rule) {
    return rule && (rule->two_level || rule->apart || rule->select.soft);
}

/* The lse of what the row attends besides chosen pages, of each query. */
static void forward_window_lse(const forward_walk *walk, const attention_block *a,
                               const forward_rule *rule, int candidates) {
    const attention_sum *total = &walk->own->total;
    attention_block window = *a;
    window.candidates = candidates;
    window.sinks = rule->select.sinks;
    attention_sum_clear(total, a->group, a->dim);
    attention_gather(&window, total, &walk->own->piece);
    for (int g = 0; g < a->group; g++)
        walk->own->window_lse[g] = total->l[g] > 0.0f ? total->m[g] + logf(total->l[g]) : -INFINITY;
}

/* Scores of the candidates: the KV head's, and each query head's own where pages weigh by them. */
static void forward_score(const forward_walk *walk, const attention_block *a,
                          const select_pages *pages, const forward_rule *rule, int candidates) {
    const forward_worker *own = walk->own;
    const int most = walk->f->max_pages;
    const bool heads = rule->select.soft || (rule->two_level && rule->select.head);
    for (int g = 0; g < a->group && heads; g++)
        select_score(a->simd, pages, &rule->select, a->q + g * a->dim, 1, candidates, own->vectors,
                     own->head_scores + (int64_t)g * most);
    if (!rule->select.soft) {
        select_score(a->simd, pages, &rule->select, a->q, a->group, candidates, own->vectors,
                     own->scores);
        return;
    }
    forward_window_lse(walk, a, rule, candidates);
    select_soften(own->head_scores, a->group, most, candidates, own->window_lse, own->scores);
}

/* The chosen pages' weights: of the KV head, or of each query head where the strategy tells them
 * apart. */
static void forward_weigh(const forward_walk *walk, attention_block *a, const forward_rule *rule) {
    const int most = walk->f->max_pages;
    const bool heads = rule->select.soft || rule->select.head;
    float *weights = heads ? walk->own->head_scores : walk->own->scores;
    for (int g = 0; g < (heads ? a->group : 1); g++)
        for (int i = 0; i < a->chosen_count; i++) /* they ascend: none is overwritten too early */
            weights[g * (int64_t)most + i] = weights[g * (int64_t)most + a->chosen[i]];
    a->weights = weights;
    a->weight_step = heads ? most : 0;
    a->page = &walk->own->page;
}

/* Chooses pages for a block into `chosen`; leaves it attending all if it does not choose here, or
 * all would be chosen anyway and weigh nothing. */
static void forward_choose(const forward_walk *walk, attention_block *a, const forward_block *rows,
                           int32_t *chosen) {
    const select_rule *rule;
    select_pages pages;
    int candidates;
    if (!forward_rule_selects(rows->rule, walk->layer)) return;
    rule = &rows->rule->select;
    candidates = select_candidates(rule, a->positions[0]);
    if (candidates <= (rows->rule->two_level || rows->rule->apart ? 0 : rule->topk)) return;
    pages = forward_pages(walk, rows->sequence, a->head);
    forward_score(walk, a, &pages, rows->rule, candidates);
    a->chosen_count = select_top(walk->own->scores, candidates, rule->topk, walk->own->keys,
                                 chosen);
    a->chosen = chosen;
    a->candidates = candidates;
    a->sinks = rule->sinks;
    if (rows->rule->two_level) forward_weigh(walk, a, rows->rule);
}

/* Hands out what the sequence's first row chose, if somebody wants it. */
static void forward_note(const forward_walk *walk, const attention_block *a,
                         const forward_block *rows) {
    const forward_sequence *s = &walk->f->batch->sequences[rows->sequence];
    int32_t *to;
    if (!s->chosen || rows->first != s->first || rows->prompt || !a->candidates) return;
    to = s->chosen + ((int64_t)walk->layer * a->kv_heads + a->head) * s->chosen_step;
    *to = a->chosen_count;
    memcpy(to + 1, a->chosen, (size_t)a->chosen_count * sizeof *to);
}

/* Counts the distinct pages that a block of step rows attends. Of a sequence with several rows in
 * this forward a page counts once: the first to lay the layer's epoch on it counts it. */
static void forward_count(const forward_walk *walk, const attention_block *a,
                          const forward_block *rows) {
    forward_cpu_state *f = walk->f;
    const int sequence = rows->sequence, last = attention_last_page(a);
    const int sink_pages = a->candidates ? (a->sinks + a->page_size - 1) / a->page_size : 0;
    const int32_t epoch = f->epoch + walk->layer;
    os_atomic *seen = f->seen + ((int64_t)sequence * a->kv_heads + a->head) * f->max_pages;
    int chosen = 0;
    if (rows->prompt) return;
    for (int page = attention_from(a, 0) / a->page_size; page <= last; page++) {
        bool read = page >= a->candidates || page < sink_pages;
        if (chosen < a->chosen_count && a->chosen[chosen] == page) {
            read = true;
            chosen++;
        }
        int32_t was = read ? os_atomic_load(&seen[page]) : epoch;
        if (was == epoch || !os_atomic_swap_if(&seen[page], was, epoch)) continue;
        walk->own->pages_read[sequence]++;
        if (f->batch->heat) os_atomic_add(&f->batch->heat[walk->layer * a->kv_heads + a->head], 1);
    }
}

/* Of a row's own rows the next that it sees, from *at on, which goes behind them; how many. */
static int forward_next_own(const forward_row *row, int *at) {
    int count = 0;
    while (row->mask && *at < row->own && !(row->mask[*at / 8] >> *at % 8 & 1)) ++*at;
    for (; *at < row->own && (!row->mask || row->mask[*at / 8] >> *at % 8 & 1); ++*at) count++;
    return count;
}

/* A row that drafts: the tokens that it sees, then of its own rows those that it does. */
static void forward_attend_draft(const forward_walk *walk, const attention_block *a,
                                 const forward_block *rows) {
    const attention_sum *total = &walk->own->total, *piece = &walk->own->piece;
    const forward_row *row = &walk->f->batch->rows[rows->first];
    attention_block own = *a;
    int32_t last;
    int at = 0;
    own.positions = &last;
    attention_sum_clear(total, a->group, a->dim);
    if (row->seen) attention_gather(a, total, piece);
    while ((own.window = forward_next_own(row, &at))) {
        last = row->position - row->own + at;
        attention_gather(&own, total, piece);
    }
}

/* A row whose chosen pages are an attention of their own, added to that of all else. */
static void forward_attend_apart(const forward_walk *walk, const attention_block *a, float *out) {
    const attention_sum *total = &walk->own->total;
    attention_block part = *a;
    part.chosen_count = 0;
    attention_all(&part, total, &walk->own->piece, out, 0);
    part = *a;
    part.sinks = 0, part.only_chosen = true;
    attention_sum_clear(total, a->group, a->dim);
    attention_gather(&part, total, &walk->own->piece);
    out += a->head * a->group * a->dim;
    for (int g = 0; g < a->group; g++)
        for (int d = 0; d < a->dim && total->l[g] > 0.0f; d++)
            out[g * a->dim + d] += total->out[g * a->dim + d] / total->l[g];
}

/* The block's rows of f->attended. */
static void forward_attend_block(const forward_walk *walk, const attention_block *a,
                                 const forward_block *rows) {
    const int64_t stride = (int64_t)walk->f->model->shape.heads * a->dim;
    float *out = walk->f->attended + rows->first * stride;
    if (a->candidates && rows->rule->apart) {
        forward_attend_apart(walk, a, out);
        return;
    }
    if (!rows->own) {
        attention_all(a, &walk->own->total, &walk->own->piece, out, stride);
        return;
    }
    forward_attend_draft(walk, a, rows);
    attention_put(a, &walk->own->total, out, stride);
}

/* Many blocks: each with one KV head is an item. */
static void forward_attend_whole(forward_walk *walk, const forward_block *blocks, int count,
                                 bool selects) {
    forward_cpu_state *f = walk->f;
    const model_shape *s = &f->model->shape;
    for (int i = forward_take(walk); i < count * s->kv_heads; i = forward_take(walk)) {
        /* the last rows see most: they come first */
        const forward_block *rows = &blocks[count - 1 - i / s->kv_heads];
        attention_block a = forward_block_of(walk, rows, i % s->kv_heads);
        if (selects) {
            forward_choose(walk, &a, rows, walk->own->chosen);
            forward_note(walk, &a, rows);
        }
        forward_count(walk, &a, rows);
        forward_attend_block(walk, &a, rows);
    }
    forward_meet(walk);
}

/* Few blocks: their pieces are shared out too, in runs, and whoever finishes a block's last run
 * folds its pieces. A unit is one row of a block with one KV head; f->units bounds them. */
static bool forward_splits(const forward_cpu_state *f, int count) {
    const int kv_heads = f->model->shape.kv_heads;
    return f->batch->row_count * kv_heads <= f->units && count * kv_heads < 4 * f->threads;
}

/* The first of the units of a block with a KV head; there are rows->rows of them. */
static int forward_unit(const forward_cpu_state *f, const forward_block *rows, int head) {
    return rows->first * f->model->shape.kv_heads + head * rows->rows;
}

static attention_sum forward_unit_sum(const forward_cpu_state *f, const forward_block *rows,
                                      int head, int piece) {
    const int64_t floats = (int64_t)attention_sum_floats(f->group, f->kv->head_dim);
    const int64_t at = (int64_t)forward_unit(f, rows, head) * f->max_pieces + piece * rows->rows;
    return attention_sum_at(f->unit_sums + at * floats, rows->rows * f->group);
}

/* A stage: chooses the pages of every unit. */
static void forward_choose_units(forward_walk *walk, const forward_block *blocks, int count) {
    forward_cpu_state *f = walk->f;
    const int kv_heads = f->model->shape.kv_heads;
    for (int i = forward_take(walk); i < count * kv_heads; i = forward_take(walk)) {
        const forward_block *rows = &blocks[i / kv_heads];
        attention_block a = forward_block_of(walk, rows, i % kv_heads);
        int unit = forward_unit(f, rows, i % kv_heads);
        forward_choose(walk, &a, rows, f->unit_chosen + (int64_t)unit * f->max_pages);
        f->unit_chosen_count[unit] = a.candidates ? a.chosen_count : -1;
        forward_note(walk, &a, rows);
    }
    forward_meet(walk);
}

/* The choice that forward_choose_units made. */
static void forward_recall(const forward_cpu_state *f, attention_block *a,
                           const forward_block *rows, int unit) {
    if (f->unit_chosen_count[unit] < 0) return;
    a->chosen = f->unit_chosen + (int64_t)unit * f->max_pages;
    a->chosen_count = f->unit_chosen_count[unit];
    a->candidates = select_candidates(&rows->rule->select, a->positions[0]);
    a->sinks = rows->rule->select.sinks;
}

static void forward_fold_unit(const forward_walk *walk, const attention_block *a,
                              const forward_block *rows) {
    forward_cpu_state *f = walk->f;
    const model_shape *s = &f->model->shape;
    const int pieces = attention_pieces(a);
    attention_sum_clear(&walk->own->total, a->rows * a->group, a->dim);
    for (int i = attention_first_piece(a); i < pieces; i++) {
        attention_sum piece = forward_unit_sum(f, rows, a->head, i);
        attention_fold(f->simd, &walk->own->total, &piece, a->rows * a->group, a->dim);
    }
    attention_put(a, &walk->own->total,
                  f->attended + (int64_t)rows->first * s->heads * s->head_dim,
                  (int64_t)s->heads * s->head_dim);
}

static void forward_attend_split(forward_walk *walk, const forward_block *blocks, int count,
                                 bool selects) {
    forward_cpu_state *f = walk->f;
    const int kv_heads = f->model->shape.kv_heads, pairs = count * kv_heads;
    const int runs = (4 * f->threads + pairs - 1) / pairs;
    if (selects) forward_choose_units(walk, blocks, count);
    for (int i = forward_take(walk); i < pairs * runs; i = forward_take(walk)) {
        const int run = i % runs, pair = i / runs;
        const forward_block *rows = &blocks[pair / kv_heads];
        attention_block a = forward_block_of(walk, rows, pair % kv_heads);
        const int unit = forward_unit(f, rows, a.head), from = attention_first_piece(&a);
        const int pieces = attention_pieces(&a) - from;
        if (selects) forward_recall(f, &a, rows, unit);
        if (run == 0) forward_count(walk, &a, rows);
        for (int piece = run * pieces / runs; piece < (run + 1) * pieces / runs; piece++) {
            attention_sum sum = forward_unit_sum(f, rows, a.head, from + piece);
            attention_piece(&a, from + piece, &sum);
        }
        if (os_atomic_add(&f->unit_done[unit], 1) == runs - 1) {
            os_atomic_store(&f->unit_done[unit], 0);
            forward_fold_unit(walk, &a, rows);
        }
    }
    forward_meet(walk);
}

static void forward_attend(forward_walk *walk) {
    forward_cpu_state *f = walk->f;
    const bool selects = forward_selects(walk);
    const forward_block *blocks = selects ? f->split : f->whole;
    const int count = selects ? f->split_count : f->whole_count;
    if (!f->drafts && !f->weighs && forward_splits(f, count))
        forward_attend_split(walk, blocks, count, selects);
    else forward_attend_whole(walk, blocks, count, selects);
}

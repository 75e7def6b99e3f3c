/* forward_cpu_work: the stages of a decoder layer on the CPU, as the workers run them.
 *
 * One pool_each spans a whole forward: every worker walks through the same stages, takes items of
 * a stage until none is left, and meets the others who took some. One that comes late walks past what
 * the others have done (pool.h): what it made of its own in a stage it has for that stage alone. What an
 * item computes depends on the item alone, so results do not depend on who takes what.
 * Calls simd, linear, select, attention, pool. */

enum {
    FORWARD_FEW = 32,  /* rows up to which each worker normalises all of them for itself */
    FORWARD_HEAD = 64, /* rows whose logits are made together, at most */
    FORWARD_PIECE = 4096, /* outputs of the head that are one part of a forward */
    FORWARD_OUTPUTS = 16 /* outputs are handed out in multiples of this */
};

/* Scratch of one worker. */
typedef struct forward_worker {
    float *panel;          /* linear_panel_floats of the widest input */
    float *normed;         /* [FORWARD_FEW, hidden] */
    float *q;              /* [ATTENTION_ROWS * group, dim], scaled */
    float *vectors;        /* [2, group, dim]: queries as pages are scored */
    float *staged;         /* [2, page_size, dim] */
    attention_sum total, piece; /* of ATTENTION_ROWS * group queries */
    attention_sum page;    /* of group queries */
    float *scores;         /* [max_pages] */
    float *head_scores;    /* [group, max_pages]: each query head's own, then of the chosen pages */
    float *window_lse;     /* [group] */
    uint32_t *keys;        /* [max_pages] */
    int32_t *chosen;       /* [max_pages] */
    int64_t *pages_read;   /* [sequences] */
} forward_worker;

/* Rows first .. first + rows - 1 of one sequence and kind, attended together. */
typedef struct forward_block {
    int first, rows, sequence;
    bool prompt;
    int own; /* of a single row that drafts, see forward_row; else 0 */
    const forward_rule *rule; /* of a single row that chooses pages where the rule says so; or NULL */
} forward_block;

/* The backend's state of a model, and the forward that runs. */
typedef struct forward_cpu_state {
    const simd_kernels *simd;
    int max_rows, page_size, max_pages, max_pieces, max_sequences, group, threads;
    int units; /* see forward_splits */
    bool eight; /* activations are rounded to 8 bits */
    forward_worker *workers;  /* [threads] */
    void *memory; /* of the device, all that follows */
    size_t memory_bytes;
    float *h;                 /* [max_rows, hidden]: the residual stream */
    float *normed;            /* [max_rows, hidden], for more than FORWARD_FEW rows */
    float *q, *k, *v;         /* [max_rows, heads * dim], [max_rows, kv_heads * dim] */
    float *attended;          /* as q */
    float *gate, *up;         /* [max_rows, ffn] */
    /* of experts, see cpu_experts.c; a slot is a row with one of its experts, [max_rows * used] */
    float *routes;            /* [max_rows, experts]: the router's scores */
    float *shares;            /* [max_rows, used] */
    float *routed;            /* [slots, hidden]: what goes in, then what comes out */
    int32_t *chosen_experts;  /* [max_rows, used] */
    int32_t *slots;           /* [max_rows, used]: where a row's expert stands in `routed` */
    int32_t *first_slots;     /* [experts + 1] */
    int32_t *busy_experts;    /* [experts]: those with slots */
    int busy_count;
    float *added;             /* [max_rows, hidden]: what is normed before it is added, see
                                 forward_add */
    float *cosine, *sine;     /* [ropes, max_rows, dim]: of the value itself, and of its pair's other
                                 one */
    int ropes;                /* that layers turn by */
    bool norms_added;         /* some layer norms what it adds */
    float *low;               /* [max_rows, 3, low_rank]: A x of a row's adapter, of the products that
                                 are computed together */
    size_t low_bytes;         /* apart from `memory` */
    int low_rank;
    float *draft_rows;        /* [5, hidden], see cpu_draft.c */
    bool adapts;              /* some row of the forward has an adapter */
    bool drafts;              /* and some row drafts */
    bool weighs;              /* some row's rule is more than one softmax over chosen pages */
    int32_t *slots_of;        /* [max_rows]: where a row's key lies; positions: what it sees */
    struct forward_latent *latent; /* of attention by latents, see cpu_latent.c; or NULL */
    float *mixed, *taps, *zeros; /* of convolutions, see cpu_conv.c; zeros [hidden] */
    forward_block *whole, *split; /* [max_rows]: as few as can be; and with rows that may choose pages
                                     each by itself, for the layers in which some do */
    int whole_count, split_count;
    uint64_t selecting[CAIRN_MAX_LAYERS / 64]; /* layers in which some row chooses pages */
    int32_t *positions;       /* [max_rows] */
    int32_t *wanted;          /* [max_rows] rows whose logits or samples are wanted, ascending */
    int wanted_count;
    const sample_ask **asks;  /* [max_rows] of those to be sampled, in their order */
    sample_space space;
    float *logits;            /* [FORWARD_HEAD, vocab] of rows that are only sampled */
    size_t zero_bytes;        /* of the memory: what lies behind is written before it is read */
    int32_t *unit_chosen;     /* [units, max_pages] */
    int32_t *unit_chosen_count; /* [units]; -1: attends all */
    float *unit_sums;         /* [units, max_pieces] sums of `group` queries */
    os_atomic *unit_done;     /* [units]: runs that are finished */
    os_atomic *seen;          /* [max_sequences, kv_heads, max_pages]: the epoch that saw a page */
    int32_t epoch;            /* of this forward's first layer; each layer is one further */
    /* the forward that runs */
    int part, part_end, parts; /* see forward_run_parts */
    cairn_model *model;
    kv_cache *kv;
    forward_batch *batch;
    pool *threads_pool;
} forward_cpu_state;

/* A worker's walk, and the layer it is in. */
typedef struct forward_walk {
    forward_cpu_state *f;
    forward_worker *own;
    int worker, layer;
} forward_walk;

/* The next item of the stage; INT_MAX for a worker that comes too late for it. */
static int forward_take(const forward_walk *walk) {
    return pool_next(walk->f->threads_pool, walk->worker);
}

/* Ends a stage. */
static void forward_meet(const forward_walk *walk) {
    pool_meet(walk->f->threads_pool, walk->worker);
}

/* Which of the cache's layers, or of the rings', is this layer's. */
static int forward_state(const forward_walk *walk) {
    return walk->f->model->plan.layers[walk->layer].state;
}

/* How `outs` outputs are handed out: in multiples of FORWARD_OUTPUTS, a few items for each worker. */
static int forward_share(const forward_cpu_state *f, int outs, int items_per_worker) {
    int share = outs / (f->threads * items_per_worker) / FORWARD_OUTPUTS * FORWARD_OUTPUTS;
    return share < FORWARD_OUTPUTS ? FORWARD_OUTPUTS : share;
}

/* ---- norms ----------------------------------------------------------------------------------- */

static void forward_norm_rows(forward_cpu_state *f, const float *weight, int first, int last,
                              const int32_t *picked, float *out) {
    const int hidden = f->model->shape.hidden;
    for (int r = first; r < last; r++)
        f->simd->rmsnorm(f->h + (int64_t)(picked ? picked[r] : r) * hidden, weight,
                         f->model->shape.norm_eps, hidden, out + (int64_t)r * hidden);
}

/* Normalises `rows` rows of h, those that are picked or else the first; returns where they are: few
 * rows each worker normalises for itself and this stage, many are shared out, which takes one. */
static const float *forward_norm(forward_walk *walk, const float *weight, const int32_t *picked,
                                 int rows) {
    forward_cpu_state *f = walk->f;
    const int some = 8, items = (rows + some - 1) / some;
    if (rows <= FORWARD_FEW) {
        if (pool_takes_part(f->threads_pool, walk->worker))
            forward_norm_rows(f, weight, 0, rows, picked, walk->own->normed);
        return walk->own->normed;
    }
    for (int i = forward_take(walk); i < items; i = forward_take(walk))
        forward_norm_rows(f, weight, i * some, i * some + some < rows ? i * some + some : rows,
                          picked, f->normed);
    forward_meet(walk);
    return f->normed;
}

/* ---- adapters -------------------------------------------------------------------------------- */

static float *forward_low_at(const forward_cpu_state *f, int r, int which) {
    return f->low + ((int64_t)r * 3 + which) * f->low_rank;
}

/* Row r's inner values of `roles` products from `role` on, whose input is x. */
static void forward_low_row(const forward_walk *walk, int role, int roles, const float *x, int r) {
    const forward_cpu_state *f = walk->f;
    for (int i = 0; i < roles; i++) {
        const adapter_pair *pair = adapter_of(f->batch->rows[r].adapter, walk->layer, role + i);
        const int in = (int)f->model->plan.layers[walk->layer].weights[role + i].columns;
        if (pair)
            f->simd->panel(pair->a, pair->rank, x, in, 1, in, forward_low_at(f, r, i), pair->rank,
                           false);
    }
}

/* A stage, where some row has an adapter: the same of all rows of x, as wide as the products' input. */
static void forward_low(forward_walk *walk, int role, const float *x) {
    forward_cpu_state *f = walk->f;
    const int64_t width = f->model->plan.layers[walk->layer].weights[role].columns;
    if (!f->adapts) return;
    for (int r = forward_take(walk); r < f->batch->row_count; r = forward_take(walk))
        forward_low_row(walk, role, 1, x + r * width, r);
    forward_meet(walk);
}

/* What goes into `roles` products from `role` on: forward_norm's rows, and their inner values. */
static const float *forward_norm_low(forward_walk *walk, const float *weight, int role, int roles) {
    forward_cpu_state *f = walk->f;
    if (!f->adapts) return forward_norm(walk, weight, NULL, f->batch->row_count);
    for (int r = forward_take(walk); r < f->batch->row_count; r = forward_take(walk)) {
        forward_norm_rows(f, weight, r, r + 1, NULL, f->normed);
        forward_low_row(walk, role, roles, f->normed + (int64_t)r * f->model->shape.hidden, r);
    }
    forward_meet(walk);
    return f->normed;
}

/* Outputs first .. last - 1 of the product gain what the rows' adapters add; which: as the inner values
 * lie. */
static void forward_lift(const forward_walk *walk, int role, int which, float *y, int width,
                         int first, int last) {
    const forward_cpu_state *f = walk->f;
    for (int r = 0; f->adapts && r < f->batch->row_count; r++) {
        const adapter_pair *pair = adapter_of(f->batch->rows[r].adapter, walk->layer, role);
        if (pair)
            f->simd->panel(pair->b + (int64_t)first * pair->rank, last - first,
                           forward_low_at(f, r, which), pair->rank, 1, pair->rank,
                           y + (int64_t)r * width + first, width, true);
    }
}

/* ---- products -------------------------------------------------------------------------------- */

static linear_job forward_job(const forward_cpu_state *f, const model_weight *w, const float *x,
                              float *y, bool add) {
    linear_job job;
    job.type = w->type;
    job.w = w->data;
    job.out = (int)w->rows;
    job.in = (int)w->columns;
    job.x = x;
    job.x_stride = w->columns;
    job.rows = f->batch->row_count;
    job.y = y;
    job.y_stride = w->rows;
    job.add = add;
    job.eight = f->eight;
    return job;
}

/* A stage: y = or += x . w^T, outputs [from, to); `from` is a multiple of FORWARD_OUTPUTS. role: to
 * whose product the rows' adapters add; -1: to none. */
static void forward_outputs(forward_walk *walk, const linear_job *job, int role, int from, int to,
                            int items_per_worker) {
    const int share = forward_share(walk->f, to - from, items_per_worker);
    const int items = (to - from + share - 1) / share;
    for (int i = forward_take(walk); i < items; i = forward_take(walk)) {
        int first = from + i * share, last = first + share < to ? first + share : to;
        linear_range(walk->f->simd, job, first, last, walk->own->panel);
        if (role >= 0) forward_lift(walk, role, 0, job->y, job->out, first, last);
    }
    forward_meet(walk);
}

/* The same of all outputs, without adapters. */
static void forward_product(forward_walk *walk, const linear_job *job, int items_per_worker) {
    forward_outputs(walk, job, -1, 0, job->out, items_per_worker);
}

/* ---- queries, keys and values ---------------------------------------------------------------- */

/* NULL: the layer's heads do not turn. */
static const plan_rope *forward_rope_of(const forward_cpu_state *f, const plan_layer *layer) {
    return layer->rope < 0 ? NULL : &f->model->plan.ropes[layer->rope];
}

/* Whether a layer's queries and keys are worked on by whole heads. */
static bool forward_by_head(const forward_cpu_state *f, const plan_layer *layer) {
    const plan_rope *rope = forward_rope_of(f, layer);
    return layer->parts[PLAN_Q_NORM].values || (rope && rope->pairing == PLAN_PAIRS_HALVES);
}

/* Where row r of a layer's cosines or sines begins. */
static const float *forward_turns(const forward_cpu_state *f, const plan_layer *layer,
                                  const float *table, int r) {
    return table + ((int64_t)layer->rope * f->max_rows + r) * f->model->shape.head_dim;
}

/* x [dim] turns: value i with that half of dim away. */
static void forward_turn_halves(float *x, const float *cosine, const float *sine, int dim) {
    for (int i = 0, j = dim / 2; j < dim; i++, j++) {
        float low = x[i], high = x[j];
        x[i] = low * cosine[i] + high * sine[i];
        x[j] = high * cosine[j] + low * sine[j];
    }
}

/* Turns outputs first .. last - 1 of row r [width] of heads. */
static void forward_rope(const forward_cpu_state *f, const plan_layer *layer, float *x, int r,
                          int first, int last) {
    const int dim = f->model->shape.head_dim;
    const plan_rope *rope = forward_rope_of(f, layer);
    const float *cosine, *sine;
    if (!rope) return;
    cosine = forward_turns(f, layer, f->cosine, r);
    sine = forward_turns(f, layer, f->sine, r);
    for (int at = first; at < last;) {
        int within = at % dim, count = dim - within < last - at ? dim - within : last - at;
        if (rope->pairing == PLAN_PAIRS_HALVES)
            forward_turn_halves(x + at, cosine, sine, rope->dims);
        else f->simd->rope(x + at, cosine + within, sine + within, count);
        at += count;
    }
}

/* Biases, norms and turns outputs first .. last - 1 of rows [rows, width]; whole heads where
 * forward_by_head says so. part: 0 queries, 1 keys, 2 values. */
static void forward_heads(const forward_cpu_state *f, const plan_layer *layer, int part, float *x,
                          int width, int first, int last) {
    const int dim = f->model->shape.head_dim;
    const float *bias = layer->parts[PLAN_Q_BIAS + part].values;
    const float *norm = part < 2 ? layer->parts[PLAN_Q_NORM + part].values : NULL;
    for (int r = 0; r < f->batch->row_count; r++, x += width) {
        for (int i = first; i < last && bias; i++) x[i] += bias[i];
        for (int at = first; at < last && norm; at += dim)
            f->simd->rmsnorm(x + at, norm, f->model->shape.norm_eps, dim, x + at);
        if (part < 2) forward_rope(f, layer, x, r, first, last);
        }
}

/* The pages of a sequence in this layer. */
static const int32_t *forward_table(const forward_walk *walk, const forward_sequence *s) {
    return tables_row(model_tables(walk->f->model, walk->f->batch->tables, walk->layer), s->table);
}

/* Writes outputs first .. last - 1 of rows [rows, kv_heads * dim] to their slots; part 0 keys, 1
 * values. */
static void forward_append(const forward_walk *walk, const float *x, int part, int first,
                           int last) {
    const forward_cpu_state *f = walk->f;
    const kv_cache *kv = f->kv;
    const int dim = kv->head_dim, size = kv->page_size, width = kv->kv_heads * dim;
    uint16_t *pages = (uint16_t *)kv->pages[forward_state(walk)];
    const forward_sequence *s = f->batch->sequences;
    for (int r = 0; r < f->batch->row_count; r++) {
        int position = f->batch->rows[r].position;
        const int32_t *table;
        while (r >= s->first + s->rows) s++;
        table = forward_table(walk, s);
        size_t page = (size_t)table[position / size];
        for (int at = first; at < last;) {
            int head = at / dim, within = at % dim;
            int count = dim - within < last - at ? dim - within : last - at;
            size_t row = ((page * 2 + (size_t)part) * (size_t)kv->kv_heads + (size_t)head) *
                             (size_t)size + (size_t)(position % size);
            f->simd->to_half(x + (int64_t)r * width + at, pages + row * (size_t)dim + within,
                             count);
            at += count;
        }
    }
}

static select_pages forward_pages(const forward_walk *walk, int sequence, int head) {
    const forward_cpu_state *f = walk->f;
    select_pages pages;
    pages.table = forward_table(walk, &f->batch->sequences[sequence]);
    pages.cache = (const uint16_t *)f->kv->pages[forward_state(walk)];
    pages.bounds = (const uint16_t *)f->kv->bounds[forward_state(walk)];
    pages.kv_heads = f->kv->kv_heads;
    pages.head = head;
    pages.dim = f->kv->head_dim;
    pages.stored = f->batch->sequences[sequence].stored;
    return pages;
}

/* Stores the bounds of one sequence's pages that were completed since, where the layer has bounds. */
static void forward_store_bounds(const forward_walk *walk, int sequence) {
    const forward_cpu_state *f = walk->f;
    const forward_sequence *s = &f->batch->sequences[sequence];
    if (!s->rule || s->rule->select.landmark || !f->kv->bounds[forward_state(walk)]) return;
    for (int page = s->bounded; page < s->stored; page++)
        for (int head = 0; head < f->kv->kv_heads; head++) {
            select_pages pages = forward_pages(walk, sequence, head);
            uint16_t *low =
                (uint16_t *)f->kv->bounds[forward_state(walk)] + select_bounds_at(&pages, page);
            select_bounds(f->simd, &pages, &s->rule->select, page, low, low + pages.dim);
        }
}

/* Outputs first .. last - 1 of q, k and v side by side. */
static void forward_qkv_range(const forward_walk *walk, const float *x, int first, int last) {
    forward_cpu_state *f = walk->f;
    const plan_layer *layer = &f->model->plan.layers[walk->layer];
    const model_weight *weights = &layer->weights[PLAN_Q]; /* Q, K and V follow one another */
    float *to[3];
    to[0] = f->q;
    to[1] = f->k;
    to[2] = f->v;
    for (int i = 0; i < 3 && first < last; i++) {
        const int width = (int)weights[i].rows, end = last < width ? last : width;
        if (first < end) {
            linear_job job = forward_job(f, &weights[i], x, to[i], false);
            linear_range(f->simd, &job, first, end, walk->own->panel);
            forward_lift(walk, PLAN_Q + i, i, to[i], width, first, end);
            forward_heads(f, layer, i, to[i], width, first, end);
            if (i > 0) forward_append(walk, to[i], i - 1, first, end);
        }
        first = first > width ? first - width : 0;
        last -= width;
    }
}

static void forward_qkv(forward_walk *walk) {
    forward_cpu_state *f = walk->f;
    const plan_layer *layer = &f->model->plan.layers[walk->layer];
    const int outs = (int)(layer->weights[PLAN_Q].rows + 2 * layer->weights[PLAN_K].rows);
    const int dim = f->model->shape.head_dim, even = forward_share(f, outs, 5);
    const int share = forward_by_head(f, layer) ? (even + dim - 1) / dim * dim : even;
    const int items = (outs + share - 1) / share;
    const float *x = forward_norm_low(walk, layer->parts[PLAN_MIXER_NORM].values, PLAN_Q, 3);
    for (int i = forward_take(walk); i < items + f->batch->sequence_count; i = forward_take(walk)) {
        int first = i * share;
        if (i >= items) forward_store_bounds(walk, i - items);
        else forward_qkv_range(walk, x, first, first + share < outs ? first + share : outs);
    }
    forward_meet(walk);
}

/* ---- attention ------------------------------------------------------------------------------- */

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
    a.cache = (const uint16_t *)f->kv->pages[forward_state(walk)];
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

static void forward_short_conv(forward_walk *walk); /* cpu_conv.c */
static void forward_experts(forward_walk *walk);    /* cpu_experts.c */
static void forward_by_latents(forward_walk *walk); /* cpu_latent.c */

/* ---- the rest of a layer --------------------------------------------------------------------- */

/* h += the layer's product of a role with x; where a norm stands between, h += norm(product), which
 * takes a stage more. */
static void forward_add(forward_walk *walk, plan_role role, const float *x,
                        const model_vector *norm) {
    forward_cpu_state *f = walk->f;
    const int hidden = f->model->shape.hidden;
    const model_weight *w = &f->model->plan.layers[walk->layer].weights[role];
    const linear_job job = forward_job(f, w, x, norm->values ? f->added : f->h, !norm->values);
    forward_low(walk, (int)role, x);
    forward_outputs(walk, &job, (int)role, 0, job.out, 4);
    if (!norm->values) return;
    for (int r = forward_take(walk); r < f->batch->row_count; r = forward_take(walk)) {
        float *added = f->added + (int64_t)r * hidden, *h = f->h + (int64_t)r * hidden;
        f->simd->rmsnorm(added, norm->values, f->model->shape.norm_eps, hidden, added);
        for (int i = 0; i < hidden; i++) h[i] += added[i];
    }
    forward_meet(walk);
}

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

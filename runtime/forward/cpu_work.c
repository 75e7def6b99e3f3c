/* forward_cpu_work: a decoder layer on the CPU as the workers run it, and the stages that others are made
 * of: norms, adapters, products. Queries, keys and values are in cpu_heads.c, attention in
 * cpu_attend.c, mixers and experts in files of their own, the whole layer and forward in cpu_layer.c.
 *
 * One pool_each spans a whole forward: every worker walks through the same stages, takes items of
 * a stage until none is left, and meets the others who took some. One that comes late walks past what
 * the others have done (pool.h): what it made of its own in a stage it has for that stage alone. What an
 * item computes depends on the item alone, so results do not depend on who takes what.
 * Calls simd, linear, pool. */

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
    int32_t *slot_rows;       /* [slots]: the row of each */
    int32_t *first_slots;     /* [experts + 1] */
    int32_t *busy_experts;    /* [experts]: those with slots */
    int busy_count;
    float *added;             /* [max_rows, hidden]: what is normed before it is added, see
                                 forward_add */
    float *cosine, *sine;     /* [ropes, max_rows, dim]: of the value itself, and of its pair's other
                                 one */
    int ropes;                /* that layers turn by */
    bool norms_added;         /* some layer norms what it adds */
    float *low;               /* [max_rows or slots, 3, low_rank]: A x of a row's adapter, of the
                                 products that are computed together */
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

/* Row r's inner values of `roles` products from `role` on, whose input is x, in place `to`; expert: whose
 * products they are, or 0. */
static void forward_low_of(const forward_walk *walk, int role, int roles, const float *x, int r,
                           int expert, int to) {
    const forward_cpu_state *f = walk->f;
    for (int i = 0; i < roles; i++) {
        const adapter_pair *pair = adapter_of(f->batch->rows[r].adapter, walk->layer, role + i);
        const int in = (int)f->model->plan.layers[walk->layer].weights[role + i].columns;
        if (pair)
            f->simd->panel(pair->a + (int64_t)expert * pair->rank * in, pair->rank, x, in, 1, in,
                           forward_low_at(f, to, i), pair->rank, false);
    }
}

static void forward_low_row(const forward_walk *walk, int role, int roles, const float *x, int r) {
    forward_low_of(walk, role, roles, x, r, 0, r);
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

/* Outputs first .. last - 1 of row r's product, at y, gain what its adapter adds; at, which: as the inner
 * values lie; before: rows of B that are other experts'. */
static void forward_lift_row(const forward_walk *walk, int role, int r, int at, int which,
                             int64_t before, float *y, int first, int last) {
    const forward_cpu_state *f = walk->f;
    const adapter_pair *pair = adapter_of(f->batch->rows[r].adapter, walk->layer, role);
    if (pair)
        f->simd->panel(pair->b + (before + first) * pair->rank, last - first,
                       forward_low_at(f, at, which), pair->rank, 1, pair->rank, y + first,
                       last - first, true);
}

/* The same of all rows. */
static void forward_lift(const forward_walk *walk, int role, int which, float *y, int width,
                         int first, int last) {
    const forward_cpu_state *f = walk->f;
    for (int r = 0; f->adapts && r < f->batch->row_count; r++)
        forward_lift_row(walk, role, r, r, which, 0, y + (int64_t)r * width, first, last);
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

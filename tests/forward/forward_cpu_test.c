/* forward_cpu: a small random decoder against tests/ref/llama_ref.h, and what the forward promises
 * to the bit: however a sequence is cut into forwards, whichever rows ride along, at any number of
 * threads, with drafts that were rejected in between, a row's logits are the same.
 * clang: undefined, turn 0 */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "ref/block_ref.h"
#include "ref/llama_ref.h"
#include "tap.h"

enum { TOKENS = 100, PAGES = 40, VOCAB = 70, LAYERS = 2, MAX_ROWS = 64, MAX_DIM = 64 };

static uint64_t state;
static int compared, walked; /* rows that were held against the reference, of how many */
static int between(int low, int high) {
    return low + (int)(random_next(&state) % (uint64_t)(high - low + 1));
}
static float uniform(void) { return (float)(random_next(&state) >> 40) / 8388608.0f - 1.0f; }

/* ---- a model, twice -------------------------------------------------------------------------- */

typedef struct rig {
    cairn_runtime *rt;
    cairn_model model;
    plan_layer layers[LAYERS];
    llama_ref ref;
    void *owned[64];
    int owned_count, page_size, which; /* the sequence walked last */
    double *theirs[2]; /* keys and values [layer][position][kv_head][dim] that the cache holds */
    uint8_t *head;
    forward_rule rule;
    int bounded[2];
    int64_t pages_read[2];
} rig;

static void *own(rig *g, void *memory) { return g->owned[g->owned_count++] = memory; }

/* A random matrix in blocks, and its values. */
static model_weight weight(rig *g, int type_number, int out, int in, llama_ref_matrix *ref) {
    const block_type *type = block_find(type_number);
    size_t row = block_row_bytes(type, in);
    uint8_t *data = (uint8_t *)own(g, aligned_alloc(64, ((size_t)out * row + 63) / 64 * 64));
    model_weight w;
    memset(&w, 0, sizeof w);
    w.type = type_number, w.rows = out, w.columns = in, w.data = data;
    for (size_t i = 0; i < (size_t)out * row; i++) data[i] = (uint8_t)random_next(&state);
    for (uint8_t *at = data; at < data + (size_t)out * row; at += type->bytes) {
        int head = ref_to_f16(0.02 + 0.01 * (double)uniform());
        at[0] = (uint8_t)head, at[1] = (uint8_t)(head >> 8);
        if (type_number == BLOCK_Q8_0) head = ref_to_f16(0.002), at[0] = (uint8_t)head;
        if (type_number == BLOCK_Q8_0) at[1] = (uint8_t)(head >> 8);
        if (type_number == BLOCK_F16) at[1] = (uint8_t)(0x20 | (random_next(&state) & 0x8f));
        if (type_number == BLOCK_Q4_1) head = ref_to_f16(-0.15), at[2] = (uint8_t)head;
        if (type_number == BLOCK_Q4_1) at[3] = (uint8_t)(head >> 8);
    }
    ref->out = out, ref->in = in;
    ref->w = (double *)own(g, malloc((size_t)out * (size_t)in * sizeof(double)));
    for (int o = 0; o < out; o++)
        for (int i = 0; i < in; i++)
            ref->w[o * in + i] = block_ref_value(type_number, data + (size_t)o * row, i);
    return w;
}

static model_vector norm(rig *g, int n, double **ref) {
    model_vector v = {NULL, n};
    float *w = (float *)own(g, malloc((size_t)n * sizeof *w));
    *ref = (double *)own(g, malloc((size_t)n * sizeof **ref));
    for (int i = 0; i < n; i++) (*ref)[i] = (double)(w[i] = 1.0f + 0.3f * uniform());
    return v.values = w, v;
}

static void make_layer(rig *g, int l) {
    static const int types[] = {BLOCK_Q4_1, BLOCK_Q4_0, BLOCK_Q8_0, BLOCK_F16};
    const model_shape *s = &g->model.shape;
    const int q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim, t = between(0, 3);
    plan_layer *to = &g->layers[l];
    to->state = l;
    to->parts[PLAN_MIXER_NORM] = norm(g, s->hidden, &g->ref.layer[l].attn_norm);
    to->parts[PLAN_FFN_NORM] = norm(g, s->hidden, &g->ref.layer[l].ffn_norm);
    to->weights[PLAN_Q] = weight(g, types[t], q, s->hidden, &g->ref.layer[l].q);
    to->weights[PLAN_K] = weight(g, types[(t + 1) % 4], kv, s->hidden, &g->ref.layer[l].k);
    to->weights[PLAN_V] = weight(g, types[(t + 2) % 4], kv, s->hidden, &g->ref.layer[l].v);
    to->weights[PLAN_O] = weight(g, types[t], s->hidden, q, &g->ref.layer[l].o);
    to->weights[PLAN_GATE] = weight(g, types[t], s->ffn, s->hidden, &g->ref.layer[l].gate);
    to->weights[PLAN_UP] = weight(g, types[(t + 3) % 4], s->ffn, s->hidden, &g->ref.layer[l].up);
    to->weights[PLAN_DOWN] = weight(g, types[t], s->hidden, s->ffn, &g->ref.layer[l].down);
}

static void make_ref(rig *g) {
    const model_shape *s = &g->model.shape;
    llama_ref *r = &g->ref;
    size_t kept = (size_t)(LAYERS * TOKENS * s->kv_heads * s->head_dim);
    r->layers = s->layers, r->hidden = s->hidden, r->heads = s->heads, r->kv_heads = s->kv_heads;
    r->dim = s->head_dim, r->ffn = s->ffn, r->vocab = s->vocab, r->capacity = TOKENS;
    r->eps = (double)s->norm_eps, r->base = 10000.0, r->size = g->page_size;
    r->keys = (double *)own(g, calloc(kept, sizeof(double)));
    r->values = (double *)own(g, calloc(kept, sizeof(double)));
    for (int i = 0; i < 2; i++) g->theirs[i] = (double *)own(g, calloc(kept, sizeof(double)));
}

/* Pages in a shuffled order for both sequences, every slot and bound poisoned. */
static void clear_cache(rig *g) {
    kv_cache *kv = &g->model.kv;
    page_tables *t = &g->model.tables;
    for (int i = 0; i < 2 * PAGES; i++) t->ids[i] = i;
    for (int i = 2 * PAGES - 1; i > 0; i--) {
        int32_t *a = &t->ids[i], *b = &t->ids[between(0, i)], was = *a;
        *a = *b, *b = was;
    }
    for (int r = 0; r < 2; r++)
        t->pages[r] = PAGES, tables_touch(t, r, 0), tables_touch(t, r, PAGES - 1);
    for (int i = 0; i < kv->planes; i++)
        memset(kv->pages[i], 0xff, (size_t)kv->pool.pages * pages_plane_bytes(kv, i));
    for (int l = 0; l < LAYERS; l++) {
        memset(kv->bounds[l], 0xff, (size_t)kv->pool.pages * kv->bound_bytes);
    }
    g->bounded[0] = g->bounded[1] = 0;
    g->pages_read[0] = g->pages_read[1] = 0;
}

static bool eight; /* rows are rounded to 8 bits before they meet weights */

static cairn_kv_dtype kept; /* what the cache holds */

static bool open_rig(rig *g, int threads, int page_size) {
    cairn_config config;
    model_shape *s = &g->model.shape;
    char error[512];
    memset(g, 0, sizeof *g);
    cairn_config_default(&config);
    config.backend = CAIRN_BACKEND_CPU, config.threads = threads, config.page_size = page_size;
    config.max_batch = 2, config.log = CAIRN_LOG_OFF;
    config.kv_dtype = kept, g->ref.stored = (int)kept;
    config.activations = eight ? CAIRN_ACTIVATIONS_Q8 : CAIRN_ACTIVATIONS_F32;
    if (cairn_open(&config, &g->rt, error, sizeof error)) return printf("# %s\n", error), false;
    g->page_size = page_size;
    g->model.runtime = g->rt, g->model.plan.layers = g->layers;
    g->model.plan.layer_count = s->kv_layers = LAYERS;
    s->layers = LAYERS, s->kv_heads = between(1, 2), s->heads = s->kv_heads * between(1, 5);
    s->head_dim = 32 * between(1, 2), s->hidden = 32 * between(1, 4), s->ffn = 32 * between(1, 6);
    s->vocab = VOCAB, s->norm_eps = 1e-5f, s->context = PAGES * page_size;
    g->model.max_seq_len = PAGES * page_size;
    g->model.plan.ropes[0].dims = s->head_dim, g->model.plan.ropes[0].magnitude = 1.0f;
    for (int j = 0; j < s->head_dim / 2; j++)
        g->model.plan.ropes[0].frequency[j] = pow(10000.0, -2.0 * j / s->head_dim);
    g->model.plan.embed = weight(g, BLOCK_Q8_0, VOCAB, s->hidden, &g->ref.embed);
    g->model.plan.head = weight(g, BLOCK_F32, VOCAB, s->hidden, &g->ref.head);
    g->head = (uint8_t *)g->owned[g->owned_count - 2]; /* its blocks, then its values */
    g->model.plan.output_norm = norm(g, s->hidden, &g->ref.output_norm);
    for (int i = 0; i < VOCAB * s->hidden; i++) { /* F32 blocks of random bits are no weights */
        float v = uniform();
        memcpy(g->head + i * 4, &v, 4);
        g->ref.head.w[i] = (double)v;
    }
    for (int l = 0; l < LAYERS; l++) make_layer(g, l);
    make_ref(g);
    return pages_groups_open(&g->rt->device, LAYERS, s->kv_heads, s->head_dim, page_size, model_kv_type(&g->model), 2 * PAGES, NULL,
                             &g->model.kv) == CAIRN_OK &&
           tables_open(&g->rt->base, &g->model.kv.pool, 2, page_size, PAGES, &g->model.tables) ==
               CAIRN_OK &&
           forward_cpu_open(&g->model, MAX_ROWS) == CAIRN_OK;
}

static void close_rig(rig *g) {
    forward_cpu_close(&g->model);
    tables_close(&g->rt->base, &g->model.tables);
    pages_kv_close(&g->model.kv);
    cairn_close(g->rt);
    for (int i = 0; i < g->owned_count; i++) free(g->owned[i]);
}

/* ---- forwards -------------------------------------------------------------------------------- */

static bool as_prompt; /* dense rows are a prompt's: the CPU computes them alike */

/* Rows [from, from + rows) of sequence `which`, and with `other` rows of the other sequence behind
 * them; logits [rows + other, VOCAB]. */
static cairn_status forward(rig *g, int which, const int32_t *tokens, int from, int rows, int other,
                            const int32_t *other_tokens, bool dense, float *logits) {
    forward_row r[MAX_ROWS];
    forward_sequence s[2];
    forward_batch b;
    cairn_status status;
    memset(&b, 0, sizeof b), memset(s, 0, sizeof s), memset(r, 0, sizeof r);
    for (int i = 0; i < rows + other; i++) {
        r[i].token = i < rows ? tokens[from + i] : other_tokens[i - rows];
        r[i].position = r[i].rope = i < rows ? from + i : i - rows;
        r[i].kind = dense && as_prompt ? FORWARD_PROMPT : FORWARD_STEP;
        r[i].logits = true;
    }
    for (int i = 0; i < 2; i++) {
        s[i].table = i ? !which : which;
        s[i].first = i ? rows : 0, s[i].rows = i ? other : rows;
        s[i].rule = dense ? NULL : &g->rule;
    }
    s[0].bounded = g->bounded[which], s[0].stored = from / g->page_size;
    if (s[0].bounded > s[0].stored) s[0].bounded = s[0].stored;
    b.tables = &g->model.tables, b.sequences = s, b.sequence_count = other ? 2 : 1;
    b.rows = r, b.row_count = rows + other, b.logits = logits;
    status = forward_cpu(&g->model, &g->model.kv, &b);
    if (!dense && s[0].stored > g->bounded[which]) g->bounded[which] = s[0].stored;
    g->pages_read[which] += s[0].pages_read, g->pages_read[!which] += s[1].pages_read;
    if (status) printf("# %s\n", g->rt->base.error);
    return status;
}

enum { CUT_SINGLE, CUT_RANDOM, CUT_DRAFTS, CUT_BATCH, CUT_COUNT };
static const char *const cut_names[] = {"one by one", "in random parts", "with rejected drafts",
                                        "beside another sequence"};

/* The whole sequence, cut in some way; logits [TOKENS, VOCAB]. */
static bool walk(rig *g, const int32_t *tokens, int cut, bool dense, float *logits) {
    float spare[MAX_ROWS * VOCAB];
    int32_t wrong[TOKENS];
    const int which = g->which = between(0, 1);
    clear_cache(g);
    as_prompt = cut != CUT_SINGLE && between(0, 1);
    for (int i = 0; i < TOKENS; i++) wrong[i] = (tokens[i] + 1) % VOCAB;
    for (int at = 0, rows; at < TOKENS; at += rows) {
        int most = TOKENS - at, other = cut == CUT_BATCH ? between(0, 9) : 0;
        rows = cut == CUT_SINGLE ? 1 : between(1, cut == CUT_RANDOM ? 50 : 7);
        if (rows > most) rows = most;
        if (cut == CUT_DRAFTS && /* these are seen by nobody later: the right rows replace them */
            forward(g, which, wrong, at, most < 9 ? most : 9, 0, NULL, dense, spare))
            return false;
        if (forward(g, which, tokens, at, rows, other, wrong, dense, spare)) return false;
        memcpy(logits + at * VOCAB, spare, (size_t)(rows * VOCAB) * sizeof *logits);
    }
    return true;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static void set_rule(rig *g, int topk, int window, int sinks, bool mean, bool head) {
    select_rule *rule = &g->rule.select;
    rule->page_size = g->page_size;
    rule->topk = g->ref.topk = topk;
    rule->window = g->ref.window = window;
    rule->sinks = g->ref.sinks = sinks;
    rule->mean = mean, rule->head = head;
    memset(g->rule.layers, 0xff, sizeof g->rule.layers);
    g->ref.mean = mean, g->ref.by_head = head;
}

/* What the cache holds of the sequence walked last, to g->theirs. */
static void read_cache(rig *g) {
    const kv_cache *kv = &g->model.kv;
    const int dim = kv->head_dim, size = g->page_size, count = LAYERS * TOKENS * kv->kv_heads;
    float values[MAX_DIM];
    for (int part = 0; part < 2; part++)
        for (int i = 0; i < count; i++) {
            const int head = i % kv->kv_heads, t = i / kv->kv_heads % TOKENS, l = i / kv->kv_heads / TOKENS;
            const int64_t page = tables_row(&g->model.tables, g->which)[t / size];
            const int64_t row = ((page * 2 + part) * kv->kv_heads + head) * size + t % size;
            const float *scales = pages_scales(kv, l);
            ops_read_values(simd_for(0), kv->type, kv->pages[l], row * dim, dim, scales ? scales[row] : 1.0f,
                            values);
            for (int d = 0; d < dim; d++) g->theirs[part][i * dim + d] = (double)values[d];
        }
}

/* Rows up to the first choice between pages that is too close to call. Rows of 8 bits are too far off for
 * what the cache holds to be the reference's, too. */
static int check_ref(rig *g, const int32_t *tokens, bool dense, const float *logits, double *worst,
                     long *strayed) {
    double want[VOCAB];
    read_cache(g);
    g->ref.dense = dense, g->ref.closest = INFINITY, g->ref.pages_read = 0, g->ref.strayed = 0;
    for (int i = 0; i < 2; i++) g->ref.theirs[i] = eight ? NULL : g->theirs[i];
    for (int t = 0; t < TOKENS; t++) {
        llama_ref_step(&g->ref, tokens[t], t, want);
        if (g->ref.closest < 1e-3) return t;
        *strayed = g->ref.strayed;
        for (int i = 0; i < VOCAB; i++) {
            double off = fabs((double)logits[t * VOCAB + i] - want[i]) / (1 + fabs(want[i]));
            if (!(off <= *worst)) *worst = off;
        }
    }
    return TOKENS;
}

static void test_rule(rig *g, const int32_t *tokens, bool dense, const char *what) {
    float *first = (float *)malloc(TOKENS * VOCAB * sizeof *first);
    float *again = (float *)malloc(TOKENS * VOCAB * sizeof *again);
    double worst = 0;
    long strayed = 0;
    int rows, kv_heads = g->model.shape.kv_heads;
    bool ran = walk(g, tokens, CUT_SINGLE, dense, first);
    int64_t pages_read = g->pages_read[0] + g->pages_read[1];
    tap_ok(ran, "%s: runs", what);
    rows = check_ref(g, tokens, dense, first, &worst, &strayed);
    tap_ok(worst < (eight ? 1.0 : 1e-4) && (!eight || worst > 1e-3), "%s: %d rows within %.1e of the reference",
           what, rows, worst);
    tap_ok(!strayed, "%s: %ld keys and values are not held as the nearest that can be", what, strayed);
    compared += rows, walked += TOKENS;
    tap_ok(rows < TOKENS || pages_read == g->ref.pages_read,
           "%s: reads %lld pages, the reference %ld (%d heads)", what, (long long)pages_read,
           g->ref.pages_read, kv_heads);
    for (int cut = CUT_SINGLE + 1; cut < CUT_COUNT; cut++) {
        ran = walk(g, tokens, cut, dense, again);
        tap_ok(ran && !memcmp(first, again, TOKENS * VOCAB * sizeof *first),
               "%s: %s, to the bit", what, cut_names[cut]);
    }
    free(first), free(again);
}

static void test_model(int threads, int page_size) {
    rig g;
    int32_t tokens[TOKENS];
    float *dense = (float *)malloc(TOKENS * VOCAB * sizeof *dense);
    float *sparse = (float *)malloc(TOKENS * VOCAB * sizeof *sparse);
    if (!tap_ok(open_rig(&g, threads, page_size), "a model for %d threads opens", threads)) return;
    tap_note("%d heads, %d KV heads of %d, hidden %d, ffn %d, pages of %d", g.model.shape.heads,
             g.model.shape.kv_heads, g.model.shape.head_dim, g.model.shape.hidden,
             g.model.shape.ffn, page_size);
    for (int i = 0; i < TOKENS; i++) tokens[i] = between(0, VOCAB - 1);
    test_rule(&g, tokens, true, "dense");
    for (int mode = 0; mode < 4; mode++) {
        char what[64];
        set_rule(&g, between(1, 3), mode & 1 ? between(1, 40) : 0, between(0, 20), mode > 1,
                 mode & 1);
        snprintf(what, sizeof what, "topk %d window %d sinks %d%s%s", g.ref.topk, g.ref.window,
                 g.ref.sinks, mode > 1 ? " mean" : "", mode & 1 ? " head" : "");
        test_rule(&g, tokens, false, what);
    }
    set_rule(&g, TOKENS, 0, 0, false, false);
    walk(&g, tokens, CUT_RANDOM, true, dense);
    walk(&g, tokens, CUT_RANDOM, false, sparse);
    tap_ok(!memcmp(dense, sparse, TOKENS * VOCAB * sizeof *dense),
           "topk of all pages is dense, to the bit");
    set_rule(&g, 1, 0, 0, false, false);
    memset(g.rule.layers, 0, sizeof g.rule.layers);
    walk(&g, tokens, CUT_RANDOM, false, sparse);
    tap_ok(!memcmp(dense, sparse, TOKENS * VOCAB * sizeof *dense), "no layer selects: dense");
    close_rig(&g);
    free(dense), free(sparse);
}

/* Rounding costs what 8 bits cost, and every cut of a sequence still gives the same bits. */
static void test_eight(void) {
    rig g;
    int32_t tokens[TOKENS];
    eight = true;
    if (tap_ok(open_rig(&g, 3, 16), "a model with activations of 8 bits opens")) {
        for (int i = 0; i < TOKENS; i++) tokens[i] = between(0, VOCAB - 1);
        test_rule(&g, tokens, true, "8 bits");
        close_rig(&g);
    }
    eight = false;
}

/* A cache of other values: what is attended and chosen is what it holds. */
static void test_kept(cairn_kv_dtype type, const char *name) {
    rig g;
    int32_t tokens[TOKENS];
    kept = type;
    if (tap_ok(open_rig(&g, 2, 16), "a model with a cache of %s opens", name)) {
        for (int i = 0; i < TOKENS; i++) tokens[i] = between(0, VOCAB - 1);
        test_rule(&g, tokens, true, name);
        for (int mode = 0; mode < 2; mode++) {
            char what[64];
            set_rule(&g, between(1, 3), between(0, 40), between(0, 20), mode > 0, mode == 0);
            snprintf(what, sizeof what, "%s, topk %d", name, g.ref.topk);
            test_rule(&g, tokens, false, what);
        }
        close_rig(&g);
    }
    kept = CAIRN_KV_F16;
}

/* Nothing may change: the same forward before and after gives the same bits. */
static void test_bad_arguments(void) {
    rig g;
    int32_t tokens[4] = {1, 2, 3, 4}, bad[4] = {1, VOCAB, 3, 4}, was, *first;
    float before[4 * VOCAB], after[4 * VOCAB];
    static const int32_t many[PAGES * 16 + 1] = {0};
    if (!tap_ok(open_rig(&g, 1, 16), "a model opens")) return;
    clear_cache(&g);
    forward(&g, 0, tokens, 0, 4, 0, NULL, true, before);
    tap_ok(forward(&g, 0, bad, 0, 4, 0, NULL, true, after) == CAIRN_INVALID_ARGUMENT &&
           strstr(g.rt->base.error, "row 1: token 70"), "a token outside the vocabulary");
    first = tables_row(&g.model.tables, 0);
    was = *first, *first = 2 * PAGES;
    tables_touch(&g.model.tables, 0, 0);
    tap_ok(forward(&g, 0, tokens, 0, 4, 0, NULL, true, after) == CAIRN_INVALID_ARGUMENT &&
           strstr(g.rt->base.error, "page 80 of 80"), "a page outside the cache");
    *first = was;
    tap_ok(forward(&g, 0, many, PAGES * 16, 1, 0, NULL, true, after) ==
           CAIRN_INVALID_ARGUMENT, "a position outside the table");
    g.model.tables.pages[0] = 3;
    tap_ok(forward(&g, 0, many, 48, 1, 0, NULL, true, after) == CAIRN_INVALID_ARGUMENT &&
           strstr(g.rt->base.error, "past its 3 pages"), "a position past the pages");
    g.model.tables.pages[0] = PAGES;
    forward(&g, 0, tokens, 0, 4, 0, NULL, true, after);
    tap_ok(!memcmp(before, after, sizeof before), "mistakes change nothing");
    close_rig(&g);
}

int main(void) {
    state = random_seed();
    test_model(1, 16);
    test_model(2, 32);
    test_model(3, 16);
    test_kept(CAIRN_KV_BF16, "bf16"), test_kept(CAIRN_KV_F32, "f32"), test_kept(CAIRN_KV_E4M3, "e4m3");
    setenv("CAIRN_SIMD", "avx2", 1);
    test_model(2, 16);
    setenv("CAIRN_SIMD", "scalar", 1);
    test_model(2, 64);
    unsetenv("CAIRN_SIMD");
    test_eight();
    test_bad_arguments();
    tap_ok(compared > walked * 2 / 3, "%d rows of %d were compared", compared, walked);
    return tap_done();
}

/* prompts: prompts of several sequences in one forward on the GPU (or the emulated one), beside each
 * other and beside steps and drafts, give every row the bits that it gets alone, however they are cut and
 * whichever rows are wanted; what they leave in the cache is what a step after them reads. Alone they
 * are what the CPU backend says. Spans of keys (step/prompt_spans.cu) are short here: prompts have several.
 * emulated: asan race, alone
 * build: -DCAIRN_SPAN=128 */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "gguf_build.h"
#include "random.h"
#include "ref/block_ref.h"
#include "ref/f16_ref.h"
#include "ref/llama_ref.h"
#include "tap.h"
#include "family.h"
#include "family_zoo.h"

static uint64_t state;
static family made; /* the model under test */

enum {
    PAGE = 16, MOST = 512, PAGES = MOST / PAGE, PROMPTS = 9, STEPS = 2, TABLES = PROMPTS + STEPS, LONGEST = 440,
    MOST_ROWS = 128, WIDE = 112
};

/* The rows of a sequence's prompt; then, of those that step, what stands before and the steps. */
static const int lengths[TABLES] = {1, 2, 15, 16, 17, 63, 64, 65, LONGEST, 20, 90};
static const int steps[STEPS] = {1, 5};

typedef struct rig {
    cairn_runtime *rt;
    cairn_model *model;
    forward_rule rule;
    int limit, most; /* rows of a forward; prompts, the first of all */
} rig;

static int32_t text[TABLES][MOST];
static float alone[TABLES][LONGEST + 8][WIDE]; /* logits of every row, run alone */
static int vocab;

/* Other pages than those of the run before, for all sequences. */
static void place(rig *g, int run) {
    page_tables *t = &g->model->tables;
    for (int s = 0; s < TABLES; s++) {
        for (int c = 0; c < t->pages[s]; c++)
            tables_row(t, s)[c] = ((s * t->pages[0] + c) * 7 + 5 + 31 * run) % (TABLES * t->pages[0]);
        tables_touch(t, s, 0), tables_touch(t, s, t->pages[s] - 1);
    }
}

static void close_rig(rig *g) {
    for (int s = 0; s < TABLES && g->model; s++) g->model->tables.pages[s] = 0; /* not the sessions' */
    cairn_close(g->rt);
}

static bool open_rig(rig *g, cairn_backend backend, const char *path, int chunk, int context) {
    cairn_config config;
    char error[1024];
    memset(g, 0, sizeof *g);
    cairn_config_default(&config);
    config.backend = backend, config.page_size = PAGE, config.topk = 2, config.threads = 1;
    config.max_batch = TABLES, config.max_seq_len = context, config.log = CAIRN_LOG_OFF;
    config.selection.window = 24, config.selection.sinks = 3, config.prefill_chunk = chunk;
    if (cairn_open(&config, &g->rt, error, sizeof error)) return tap_note("%s", error), false;
    if (cairn_load_model(g->rt, path, &g->model)) {
        tap_ok(false, "load: %s", cairn_last_error(g->rt));
        return cairn_close(g->rt), false;
    }
    for (int s = 0; s < TABLES; s++) { /* each has a row of the tables, which this test fills */
        cairn_session *session;
        if (cairn_session_open(g->model, &session)) return close_rig(g), false;
    }
    for (int s = 0; s < TABLES; s++) g->model->tables.pages[s] = context / PAGE;
    g->rule.select.page_size = PAGE, g->rule.select.topk = 2;
    g->rule.select.window = 24, g->rule.select.sinks = 3;
    memset(g->rule.layers, 0xff, sizeof g->rule.layers);
    g->limit = chunk < MOST_ROWS ? chunk : MOST_ROWS;
    vocab = g->model->shape.vocab;
    place(g, 0);
    return true;
}

/* Rows of one sequence in a forward. */
typedef struct lot { int table, at, rows; forward_kind kind; } lot;

static bool wants[MOST_ROWS], samples[MOST_ROWS];
static float logits[MOST_ROWS * WIDE];
static int32_t drawn[MOST_ROWS];

/* One forward; of its rows those in `wants` give logits, those in `samples` the likeliest token. */
static bool forward(rig *g, const lot *lots, int count) {
    static forward_row r[MOST_ROWS];
    static sample_ask ask;
    forward_sequence sequences[TABLES];
    forward_batch b;
    cairn_status status;
    memset(&b, 0, sizeof b), memset(sequences, 0, sizeof sequences), memset(r, 0, sizeof r);
    memset(&ask, 0, sizeof ask), ask.params.repetition_penalty = 1.0f, ask.expected = -1;
    b.tables = &g->model->tables, b.rows = r, b.sequences = sequences, b.logits = logits;
    b.sampled = drawn;
    for (int i = 0; i < count; i++) {
        const lot *l = &lots[i];
        forward_sequence *q = &sequences[b.sequence_count++];
        q->table = l->table, q->first = b.row_count, q->rows = l->rows, q->rule = &g->rule;
        q->stored = l->at / PAGE;
        for (int k = 0; k < l->rows; k++, b.row_count++) {
            forward_row *row = &r[b.row_count];
            row->token = text[l->table][l->at + k], row->position = row->rope = l->at + k;
            row->kind = l->kind;
            row->logits = wants[b.row_count];
            if (samples[b.row_count]) row->sample = &ask;
        }
    }
    if (device_enter(&g->rt->device)) return false;
    status = g->model->backend->forward(g->model, &g->model->kv, &b);
    device_leave(&g->rt->device);
    if (status) tap_note("forward: %s", cairn_last_error(g->rt));
    return !status;
}

/* The row of the greatest value, the first of those that are equal. */
static int likeliest(const float *x) {
    int best = 0;
    for (int i = 1; i < vocab; i++) best = x[i] > x[best] ? i : best;
    return best;
}

/* How many of a forward's results are those of its rows alone; -1: all. */
static int wrong_row(const lot *lots, int count) {
    const float *next = logits;
    const int32_t *token = drawn;
    for (int i = 0, r = 0; i < count; i++)
        for (int k = 0; k < lots[i].rows; k++, r++) {
            const float *right = alone[lots[i].table][lots[i].at + k];
            if (wants[r] && memcmp(next, right, (size_t)vocab * sizeof *next)) return r;
            if (samples[r] && *token++ != likeliest(right)) return r;
            if (wants[r]) next += vocab;
        }
    return -1;
}

static int length_of(const rig *g, int s) { /* of models with a shorter context */
    const int most = g->model->tables.pages[0] * PAGE - 16;
    return lengths[s] < most ? lengths[s] : most;
}

/* Each sequence by itself, in parts of up to `limit` rows, with the logits of all rows to `alone`: the
 * prompt, then one step after it, or the steps. */
static bool run_alone(rig *g, float *out, int last) {
    bool fine = true;
    memset(samples, 0, sizeof samples);
    for (int s = 0; s < TABLES && fine; s++) {
        if (s >= g->most && s < PROMPTS) continue;
        const int length = length_of(g, s), end = length + (s < PROMPTS ? 1 : steps[s - PROMPTS]);
        for (int at = 0, rows; at < end && fine; at += rows) {
            lot l = {s, at, at < length ? length - at : end - at, FORWARD_PROMPT};
            if (at >= length) l.kind = FORWARD_STEP;
            if (l.rows > g->limit) l.rows = g->limit;
            rows = l.rows;
            for (int r = 0; r < rows; r++) wants[r] = !last || (at + rows == end && r == rows - 1);
            fine = forward(g, &l, 1);
            for (int r = 0; r < rows && !last; r++)
                memcpy(alone[s][at + r], logits + r * vocab, (size_t)vocab * sizeof *logits);
            if (last && at + rows == end)
                memcpy(out + s * WIDE, logits, (size_t)vocab * sizeof *logits);
        }
    }
    return fine;
}

/* What stands before the steps, alone. */
static bool run_before(rig *g) {
    bool fine = true;
    memset(wants, 0, sizeof wants), memset(samples, 0, sizeof samples);
    for (int s = PROMPTS; s < TABLES; s++)
        for (int at = 0; at < length_of(g, s) && fine; at += g->limit) {
            lot l = {s, at, length_of(g, s) - at, FORWARD_PROMPT};
            if (l.rows > g->limit) l.rows = g->limit;
            fine = forward(g, &l, 1);
        }
    return fine;
}

/* The first so many prompts beside each other, cut at random, in random order, with steps beside them;
 * then a step after each. The first row that went otherwise, or -1; joined: forwards with several prompts
 * in one part, negative if any had them apart. */
static int run_together(rig *g, int most, int *joined) {
    int at[PROMPTS] = {0}, wrong = -1, left = most, forwards = 0;
    const forward_cuda_state *f = (const forward_cuda_state *)g->model->state;
    bool fine = run_before(g);
    *joined = 0;
    while (left > 0 && fine && wrong < 0) {
        lot lots[TABLES];
        int count = 0, rows = 0, prompts = 0;
        const int begin = (int)(random_next(&state) % TABLES), often = random_next(&state) % 2 ? 1 : 8;
        for (int i = 0; i < TABLES; i++) {
            const int s = (begin + i) % TABLES, room = g->limit - rows;
            lot l = {s, s < PROMPTS ? at[s] : length_of(g, s), 0, s < PROMPTS ? FORWARD_PROMPT : FORWARD_STEP};
            l.rows = s < PROMPTS ? length_of(g, s) - at[s] : steps[s - PROMPTS];
            if (s < PROMPTS && l.rows > 17 && random_next(&state) % 4 == 0) l.rows = 1 + (int)(random_next(&state) % (uint64_t)l.rows);
            if (s < PROMPTS && l.rows > room) l.rows = room;
            if (l.rows < 1 || l.rows > room || (s >= most && s < PROMPTS)) continue;
            if (s < PROMPTS) at[s] += l.rows, left -= at[s] == length_of(g, s), prompts++;
            lots[count++] = l, rows += l.rows;
        }
        for (int r = 0; r < MOST_ROWS; r++) {
            wants[r] = random_next(&state) % (uint64_t)often == 0;
            samples[r] = random_next(&state) % (uint64_t)(2 * often) == 0;
        }
        fine = forward(g, lots, count);
        if (fine && prompts > 1) forwards++, *joined += f->joined;
        wrong = fine ? wrong_row(lots, count) : 0;
    }
    if (fine && wrong < 0) {
        lot lots[TABLES];
        for (int s = 0; s < most; s++) lots[s] = (lot){s, length_of(g, s), 1, FORWARD_STEP};
        memset(samples, 0, sizeof samples);
        for (int r = 0; r < most; r++) wants[r] = true;
        wrong = forward(g, lots, most) ? wrong_row(lots, most) : 0;
    }
    if (wrong >= 0) tap_note("row %d of a forward is another", wrong);
    *joined = *joined == forwards && forwards > 0 ? forwards : -*joined;
    return wrong;
}

static double distance(const float *a, const float *b, int count) {
    double worst = 0.0, top = 0.0;
    for (int i = 0; i < count; i++) {
        top = fmax(top, fabs((double)b[i]));
        worst = a[i] == a[i] ? fmax(worst, fabs((double)a[i] - (double)b[i])) : 1e9;
    }
    return worst / top;
}

/* Whether the steps behind a sequence's prompt choose pages too close to call: then two backends may choose
 * otherwise, and both are right. */
static bool is_close_call(const rig *g, int s) {
    double row[WIDE];
    const int length = length_of(g, s), end = length + (s < PROMPTS ? 1 : steps[s - PROMPTS]);
    llama_ref r = zoo_ref(&made);
    r.size = PAGE, r.topk = g->rule.select.topk;
    r.window = g->rule.select.window, r.sinks = g->rule.select.sinks;
    for (int i = 0; i < end; i++) {
        if (i == length) r.dense = 0, r.closest = INFINITY;
        llama_ref_step(&r, text[s][i], i, row);
    }
    zoo_ref_free(&r);
    return r.closest < 4e-3;
}

static void test_cpu(rig *g, const char *path, const char *name, int chunk, int context) {
    static float ends[TABLES * WIDE];
    double far = 0.0;
    rig cpu;
    bool fine = open_rig(&cpu, CAIRN_BACKEND_CPU, path, chunk, context);
    cpu.most = g->most;
    fine = fine && run_alone(&cpu, ends, true);
    for (int s = 0; s < TABLES && fine; s++) {
        if (s >= g->most && s < PROMPTS) continue;
        const int end = length_of(g, s) + (s < PROMPTS ? 0 : steps[s - PROMPTS] - 1);
        const double off = distance(alone[s][end], ends + s * WIDE, vocab);
        if (off < 2e-2 || !is_close_call(g, s)) far = fmax(far, off);
    }
    tap_ok(fine && far < 2e-2, "cuda, %s: alone they are what the CPU says: %.1e", name, far);
    close_rig(&cpu);
}

static void test_model(const char *path, const char *name, int chunk, int context, int most) {
    const prompt_tiles few = {1, 32, 1, 2 * LAYOUT_SPAN + 1};
    forward_cuda_state *f;
    rig g;
    int joined, wrong;
    for (int i = 0; i < TABLES * MOST; i++)
        text[i / MOST][i % MOST] = 1 + (int32_t)(random_next(&state) % 95);
    if (!open_rig(&g, CAIRN_BACKEND_CUDA, path, chunk, context)) {
        tap_skip("%s on cuda", name);
        return;
    }
    g.most = most, f = (forward_cuda_state *)g.model->state;
    f->later_state = STEP_FLOW_FAILED; /* by the kernels of all rows, which walk all keys */
    tap_ok(run_alone(&g, NULL, false), "cuda, %s: prompts alone", name);
    f->later_state = STEP_FLOW_WAITS;
    test_cpu(&g, path, name, chunk, context);
    place(&g, 1);
    wrong = run_together(&g, 3, &joined);
    tap_ok(wrong < 0, "cuda, %s: together, before there are kernels for it: the same bits", name);
    tap_ok(!cairn_model_wait(g.model) &&
               f->joined_state == STEP_FLOW_READY && f->later_state == STEP_FLOW_READY,
           "cuda, %s: they are there after a wait", name);
    tap_ok(!cuda_attends_many(f) || cuda_pays_spans(f, &few, 0), "cuda, %s: few rows attend by spans", name);
    tap_ok(f->dev->arch != 90 || (cuda_pays_few(f, f->few_blocks + 1, 64, 2 * STEP_FEW_ROWS) &&
                                  !cuda_pays_few(f, f->few_blocks + 1, 64, 1 << 20)),
           "cuda, %s: products of some rows are by blocks of few tokens, of many not", name);
    place(&g, 2);
    wrong = run_together(&g, most, &joined);
    tap_ok(wrong < 0 && joined > 0, "cuda, %s: in %d joined forwards, beside steps: the same bits", name,
           joined);
    close_rig(&g);
}

static const int types[] = {BLOCK_F16};

static void write_llama(const char *path) {
    made = zoo_llama(&state), made.vocab = 96, made.context = MOST;
    family_make(&made, types, 1, &state);
    tap_ok(family_write(&made, path), "a small model is written");
}

/* Heads that are normed and turned over halves, norms behind products, a layer with a window. */
static void write_gemma(const char *path) {
    made = (family){.architecture = "gemma3", .layers = 2, .hidden = 64, .heads = 2, .kv_heads = 1,
                .dim = 256, .ffn = 64, .vocab = 100, .context = 256, .head_norms = true,
                .post_norms = true, .halves = true, .gelu = true, .window = 21, .period = 2, .embed_scale = 8};
    family_make(&made, types, 1, &state);
    family_put(&made, "attention.sliding_window_pattern", 4, 2, NULL);
    family_put(&made, "rope.freq_base", 6, 1000000, NULL);
    zoo_turns(&made, 0, 1000000), zoo_turns(&made, 1, 10000);
    tap_ok(family_write(&made, path), "a model of another family is written");
}

/* Heads of 64 that attend by wgmma, a tile of 32 rows; the second layer sees a window that begins amid a span. */
static void write_spans(const char *path) {
    made = (family){.architecture = "gemma3", .layers = 2, .hidden = 128, .heads = 4, .kv_heads = 1,
                .dim = 64, .ffn = 512, .vocab = 100, .context = MOST, .head_norms = true,
                .post_norms = true, .halves = true, .gelu = true, .window = 141, .period = 2, .embed_scale = 8};
    family_make(&made, types, 1, &state);
    family_put(&made, "attention.sliding_window_pattern", 4, 2, NULL);
    family_put(&made, "rope.freq_base", 6, 1000000, NULL);
    zoo_turns(&made, 0, 1000000), zoo_turns(&made, 1, 10000);
    tap_ok(family_write(&made, path), "a model with small heads and a window is written");
}

int main(void) {
    char path[] = "/tmp/prompts_XXXXXX";
    int file = mkstemp(path);
    state = random_seed();
    if (file < 0) tap_note("%s cannot be made", path);
    write_llama(path);
    test_model(path, "llama", 128, MOST, PROMPTS);
    family_free(&made);
    write_gemma(path);
    test_model(path, "gemma3", 64, 256, 6);
    family_free(&made);
    write_spans(path);
    test_model(path, "spans", 128, MOST, PROMPTS);
    family_free(&made);
    remove(path);
    return tap_done();
}

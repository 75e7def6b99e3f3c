/* forward_cuda: a small random decoder on the GPU (or the emulated one) against the CPU backend,
 * and what the forward promises to the bit: whichever rows ride along and whichever kernels serve
 * them, a row's logits are the same; so are the pages counted.
 * emulated: asan race, alone
 * build: -include tests/forward/own_block.h */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "small_model.h"
#include "ref/block_ref.h"
#include "tap.h"
#include "family.h"

enum {
    MANY = 24, MOST = 512, PAGES = MOST / PAGE, SEQUENCES = 3, MOST_ROWS = 160
};

/* ---- forwards -------------------------------------------------------------------------------- */

typedef struct rig {
    cairn_runtime *rt;
    cairn_model *model;
    int32_t bounded[SEQUENCES];
    forward_rule rule;
    int64_t pages_read[SEQUENCES];
    os_atomic heat[LAYERS * KV_HEADS]; /* pages_read of all sequences, by layer and KV head */
} rig;

static int32_t text[SEQUENCES][MOST]; /* what every sequence says */

static int select_layers = 0xff; /* each byte of the config's bits */

static bool open_rig(rig *g, cairn_backend backend, const char *path, int topk) {
    cairn_config config;
    char error[1024];
    memset(g, 0, sizeof *g);
    cairn_config_default(&config);
    config.backend = backend, config.page_size = PAGE, config.topk = topk;
    config.max_batch = SEQUENCES, config.max_seq_len = MOST, config.log = CAIRN_LOG_OFF;
    memset(config.selection.layers, select_layers, sizeof config.selection.layers);
    config.selection.window = 24, config.selection.sinks = 3, config.prefill_chunk = 128;
    if (cairn_open(&config, &g->rt, error, sizeof error)) {
        tap_note("%s", error);
        return false;
    }
    if (cairn_load_model(g->rt, path, &g->model)) {
        tap_ok(false, "load: %s", cairn_last_error(g->rt));
        cairn_close(g->rt);
        g->rt = NULL;
        return false;
    }
    for (int s = 0; s < SEQUENCES; s++) {
        page_tables *t = &g->model->tables;
        for (int c = 0; c < PAGES; c++)
            tables_row(t, s)[c] = ((s * PAGES + c) * 7 + 5) % g->model->kv.pool.pages;
        t->pages[s] = PAGES;
        t->taken[s] = true;
        tables_touch(t, s, 0), tables_touch(t, s, PAGES - 1);
    }
    g->rule.select.page_size = PAGE, g->rule.select.topk = topk;
    g->rule.select.window = config.selection.window, g->rule.select.sinks = config.selection.sinks;
    memset(g->rule.layers, 0xff, sizeof g->rule.layers);
    return true;
}

static const sample_params *draw; /* where it is set, the tokens after the rows are drawn by it */
static int32_t drawn[MOST_ROWS];

enum { PROMPT = -1, DENSE, SPARSE }; /* how rows run: as prompt, as step with no rule, with one */

static int spread; /* tokens that each sequence is behind the one before it */

/* One forward of `rows` rows of each of the sequences [first, end), from position `at` of the first of all on; logits
 * [rows of them all, VOCAB] or only the last `wanted`. */
static bool forward(rig *g, int first, int end, int at, int rows, int how, int wanted,
                    float *logits) {
    static forward_row r[MOST_ROWS];
    static sample_ask asks[MOST_ROWS];
    forward_sequence sequences[SEQUENCES];
    forward_batch b;
    cairn_status status;
    memset(&b, 0, sizeof b), memset(sequences, 0, sizeof sequences), memset(r, 0, sizeof r);
    memset(g->pages_read, 0, sizeof g->pages_read), memset(g->heat, 0, sizeof g->heat);
    b.heat = g->heat;
    b.tables = &g->model->tables, b.rows = r, b.sequences = sequences, b.logits = logits;
    b.sampled = drawn;
    for (int s = first; s < end; s++) {
        forward_sequence *q = &sequences[b.sequence_count++];
        const int position = at - s * spread;
        q->table = s, q->first = b.row_count, q->rows = rows;
        q->rule = how == DENSE ? NULL : &g->rule;
        q->stored = position / PAGE;
        if (g->bounded[s] > q->stored) g->bounded[s] = q->stored;
        q->bounded = g->bounded[s];
        for (int i = 0; i < rows; i++, b.row_count++) {
            forward_row *row = &r[b.row_count];
            row->token = text[s][position + i];
            row->position = row->rope = position + i;
            row->kind = how == PROMPT ? FORWARD_PROMPT : FORWARD_STEP;
        }
    }
    for (int i = b.row_count - wanted; i < b.row_count; i++) {
        sample_ask *ask = &asks[i];
        r[i].logits = draw == NULL;
        if (!draw) continue;
        memset(ask, 0, sizeof *ask);
        ask->params = *draw, ask->position = r[i].position + 1, ask->expected = -1;
        r[i].sample = ask;
    }
    if (device_enter(&g->rt->device)) return false;
    status = g->model->backend->forward(g->model, &g->model->kv, &b);
    device_leave(&g->rt->device);
    for (int s = first; s < end; s++) {
        if (sequences[s - first].rule) g->bounded[s] = sequences[s - first].stored;
        g->pages_read[s] = sequences[s - first].pages_read;
    }
    if (status) tap_note("forward: %s", cairn_last_error(g->rt));
    return !status;
}

/* The largest difference relative to the largest value. */
static double distance(const float *a, const float *b, int count) {
    double worst = 0.0, top = 0.0;
    for (int i = 0; i < count; i++) {
        top = fmax(top, fabs((double)b[i]));
        worst = a[i] == a[i] ? fmax(worst, fabs((double)a[i] - (double)b[i])) : 1e9;
    }
    return worst / top;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static float logits[MOST_ROWS * VOCAB], other[MOST_ROWS * VOCAB];

/* Prompts of all sequences up to `length`, in unequal chunks. */
static bool prompts(rig *g, int length) {
    bool fine = true;
    for (int s = 0; s < SEQUENCES; s++)
        for (int at = 0, rows; at < length && fine; at += rows) {
            rows = length - at < 70 + 20 * s ? length - at : 70 + 20 * s;
            fine = forward(g, s, s + 1, at, rows, PROMPT, 0, NULL);
        }
    return fine;
}

/* Steps as they are while the flow kernels are not compiled yet, and after. */
static void test_background(rig *gpu, int at) {
    const int rows = 3, count = rows * VOCAB;
    forward_cuda_state *f = (forward_cuda_state *)gpu->model->state;
    int64_t read;
    os_atomic heat[LAYERS * KV_HEADS];
    bool fine;
    f->flow_states[STEP_K_FLOW] = f->flow_states[STEP_K_SPARSE_FLOW] = STEP_FLOW_FAILED;
    fine = forward(gpu, 0, 1, at, rows, DENSE, rows, other) &&
           forward(gpu, 0, 1, at, rows, SPARSE, rows, other + count);
    read = gpu->pages_read[0];
    memcpy(heat, gpu->heat, sizeof heat);
    tap_ok(fine && !cairn_model_wait(gpu->model) && f->flow_states[0] == STEP_FLOW_READY &&
               f->flow_states[1] == STEP_FLOW_READY, "cuda, every kernel is there after a wait");
    fine = forward(gpu, 0, 1, at, rows, DENSE, rows, logits) &&
           forward(gpu, 0, 1, at, rows, SPARSE, rows, logits + count);
    tap_ok(fine && !memcmp(logits, other, 2 * (size_t)count * sizeof *logits) &&
               read == gpu->pages_read[0] && read > 0 && !memcmp(heat, gpu->heat, sizeof heat),
           "cuda, the same bits before and after, and %d pages read, by layer and head: %d %d %d %d", (int)read,
           heat[0], heat[1], heat[2], heat[3]);
}

/* Rows of one sequence in groups of as many as the kernel of the start takes, and of as many as the larger one does,
 * which a load that drafts begins to compile and does not wait for. */
static void test_groups(rig *gpu, int at, int how) {
    forward_cuda_state *s = (forward_cuda_state *)gpu->model->state;
    step_single *large = &s->singles[STEP_SINGLE_GROUPS];
    const int32_t *groups = &s->stage.words[STEP_GROUPS];
    const device_graph *graph = how == DENSE ? &s->dense_graphs[0][MANY] : &s->stage_graphs[0][MANY];
    const int all = MANY * VOCAB, few = 6 * VOCAB;
    const uint64_t held = gpu->rule.layers[0];
    int before;
    bool fine = !cairn_model_wait(gpu->model) && large->asked && large->state == STEP_FLOW_READY;
    tap_ok(fine, "cuda, large groups: their kernel is there after a wait");
    gpu->rule.layers[0] = 1; /* of the layers one attends all */
    cuda_free_sparse_graphs(s), cuda_free_graphs(s, s->dense_graphs);
    large->state = STEP_FLOW_FAILED;
    fine = forward(gpu, 0, 1, at, MANY, how, MANY, other) && forward(gpu, 0, 1, at, MANY, how, 6, other + all);
    before = *groups;
    large->state = STEP_FLOW_WAITS;
    tap_ok(fine && graph->exec && cuda_has_single(s, STEP_SINGLE_GROUPS, false) && !graph->exec,
           "cuda, large groups: graphs of small ones are dropped when it comes");
    fine = forward(gpu, 0, 1, at, MANY, how, MANY, logits) && forward(gpu, 0, 1, at, MANY, how, 6, logits + all);
    tap_ok(fine && graph->exec && before > *groups && !memcmp(logits, other, (size_t)(all + few) * sizeof *logits),
           "cuda, %d rows in %d groups and in %d: the same bits", MANY, before, *groups);
    gpu->rule.layers[0] = held;
}

static bool selects(const rig *g) { return cairn_config_of(g->rt)->selection.layers[0] != 0; }

static bool reload(rig *g, int layers) {
    cairn_config next = *cairn_config_of(g->rt);
    memset(next.selection.layers, layers, sizeof next.selection.layers);
    return !cairn_reload(g->rt, &next);
}

/* A model that was opened to select in no layer has no flow kernel that selects: a reload that wants
 * it has it compiled, and is in force when it is there. */
static void test_reload(const char *path, int at) {
    const int rows = 3;
    rig g;
    forward_cuda_state *f;
    bool fine;
    select_layers = 0;
    fine = open_rig(&g, CAIRN_BACKEND_CUDA, path, 2);
    select_layers = 0xff;
    if (!tap_ok(fine && prompts(&g, at), "cuda, opened with layers = none")) return;
    f = (forward_cuda_state *)g.model->state;
    fine = forward(&g, 0, 1, at, rows, SPARSE, rows, other);
    tap_ok(fine && !cairn_model_wait(g.model) && f->flow_states[0] == STEP_FLOW_READY &&
               f->flow_states[1] == STEP_FLOW_FAILED, "cuda, nothing is compiled to select");
    tap_ok(reload(&g, 0xff) && cairn_reload_waits(g.rt) && !selects(&g),
           "cuda, layers = all waits for its kernel");
    tap_ok(reload(&g, 0) && !cairn_reload_waits(g.rt) && reload(&g, 0xff),
           "cuda, it is called off and asked for again");
    fine = forward(&g, 1, 2, at, rows, DENSE, rows, logits) && !cairn_model_wait(g.model);
    if (!device_enter(&g.rt->device)) reload_poll(g.rt), device_leave(&g.rt->device);
    tap_ok(fine && !cairn_reload_waits(g.rt) && selects(&g) &&
               f->flow_states[1] == STEP_FLOW_READY, "cuda, and is in force when it is there");
    fine = forward(&g, 0, 1, at, rows, SPARSE, rows, logits);
    tap_ok(fine && !memcmp(logits, other, (size_t)rows * VOCAB * sizeof *logits),
           "cuda, the bits are those of the stage kernels");
    tap_ok(reload(&g, 0) && !selects(&g) && reload(&g, 0xff) && selects(&g),
           "cuda, there and back it waits no more");
    f->flow_states[1] = STEP_FLOW_FAILED;
    tap_ok(reload(&g, 0) && reload(&g, 0xff) && selects(&g),
           "cuda, where it cannot be compiled the other kernels serve");
    cairn_close(g.rt);
}

static void test_dense(rig *gpu, rig *cpu, int at) {
    bool fine = forward(gpu, 0, 1, at, 1, DENSE, 1, logits) &&
                forward(cpu, 0, 1, at, 1, DENSE, 1, other);
    double far = distance(logits, other, VOCAB);
    tap_ok(fine && far < 2e-2, "cuda, one row after a prompt: %.1e from the CPU", far);
    fine = forward(gpu, 0, 1, at, 6, DENSE, 6, logits) && forward(cpu, 0, 1, at, 6, DENSE, 6, other);
    far = distance(logits, other, 6 * VOCAB);
    tap_ok(fine && far < 2e-2, "cuda, six rows: %.1e", far);
}

/* Rows one by one, and then together in forwards of every kind. What they see is selected, which
 * before the window fills is all. */
static void test_rows(rig *gpu, const char *what, int at) {
    static const int counts[] = {2, 5, 8, 9, MANY};
    const int dense = SPARSE;
    int64_t read[SEQUENCES];
    bool fine = true;
    for (int r = 0; r < MANY && fine; r++)
        fine = forward(gpu, 0, 1, at + r, 1, dense, 1, other + r * VOCAB);
    tap_ok(fine, "cuda, %s: rows one by one", what);
    for (size_t i = 0; i < BASE_COUNT(counts); i++) {
        int n = counts[i];
        fine = forward(gpu, 0, 1, at, n, dense, n, logits);
        tap_ok(fine && !memcmp(logits, other, (size_t)(n * VOCAB) * sizeof *logits),
               "cuda, %s: %d rows give the same bits", what, n);
    }
    fine = forward(gpu, 0, 1, at, 8, dense, 8, logits);
    memcpy(read, gpu->pages_read, sizeof read);
    fine = fine && forward(gpu, 0, 1, at, 8, dense, 7, logits);
    tap_ok(fine && !memcmp(logits, other + VOCAB, 7 * VOCAB * sizeof *logits) &&
               read[0] == gpu->pages_read[0] && read[0] > 0,
           "cuda, %s: by the stage kernels too, and %d pages read", what, (int)read[0]);
}

/* Sequences side by side give what each gives alone. */
static void test_batch(rig *gpu, int at, int rows, int how) {
    int64_t read[SEQUENCES];
    int all = SEQUENCES * rows, heat[LAYERS * KV_HEADS] = {0}, total = 0;
    bool fine = true;
    for (int s = 0; s < SEQUENCES && fine; s++) {
        fine = forward(gpu, s, s + 1, at, rows, how, rows, other + s * rows * VOCAB);
        read[s] = gpu->pages_read[s];
        for (int p = 0; p < LAYERS * KV_HEADS; p++) heat[p] += gpu->heat[p], total += gpu->heat[p];
        total -= (int)read[s];
    }
    fine = fine && forward(gpu, 0, SEQUENCES, at, rows, how, all, logits);
    for (int p = 0; p < LAYERS * KV_HEADS; p++) fine = fine && heat[p] == gpu->heat[p];
    tap_ok(fine && !memcmp(logits, other, (size_t)(all * VOCAB) * sizeof *logits) &&
               !memcmp(read, gpu->pages_read, sizeof read) && total == 0,
           "cuda, %s: %d rows of %d sequences as alone", how == DENSE ? "dense" : "sparse", all,
           SEQUENCES);
}

/* Tokens drawn on the device, or on the host when they are of many, are those of the CPU's sampler
 * on the same logits. */
static void test_draws(rig *gpu, int at, int first, int end, int rows, int top_k) {
    static char scratch[VOCAB * 16];
    const int all = rows * (end - first);
    sample_params p;
    int same = 0;
    bool fine = forward(gpu, first, end, at, rows, SPARSE, all, logits);
    memset(&p, 0, sizeof p);
    p.temperature = 0.8f, p.top_k = top_k, p.top_p = 0.9f, p.seed = state >> 20;
    p.repetition_penalty = 1.0f;
    draw = &p;
    fine = fine && forward(gpu, first, end, at, rows, SPARSE, all, logits);
    draw = NULL;
    for (int r = 0; r < all && fine; r++)
        same += drawn[r] == sample_token(&p, logits + r * VOCAB, VOCAB, at + r % rows + 1, scratch);
    tap_ok(fine && same == all, "%d of %d tokens drawn as the CPU draws them, top_k %d", same, all,
           top_k);
}

/* Two prompts in one forward, with logits of the end of the first and of the whole second. */
static void test_prompts(rig *gpu, int at) {
    const int rows = 40, wanted = rows + 3;
    bool fine = forward(gpu, 0, 1, at, rows, PROMPT, 3, other) &&
                forward(gpu, 1, 2, at, rows, PROMPT, rows, other + 3 * VOCAB) &&
                forward(gpu, 0, 2, at, rows, PROMPT, wanted, logits);
    tap_ok(fine && !memcmp(logits, other, (size_t)(wanted * VOCAB) * sizeof *logits),
           "cuda, two prompts in one forward");
}

/* ---- sessions -------------------------------------------------------------------------------- */

/* What a session of a rig says after `prompt` ids of text 0, in one go or, cut after `cut` tokens,
 * saved and loaded in a runtime opened anew, whose first forward is then a step. */
static int say(const char *path, int prompt, int cut, int tokens, int32_t *ids) {
    rig g;
    cairn_session *s = NULL;
    cairn_generate_options options = {.struct_size = sizeof options, .max_tokens = cut,
                                      .stop_count = -1};
    void *memory = NULL;
    size_t bytes = 0;
    int count = 0;
    const int32_t *held = NULL;
    bool fine = open_rig(&g, CAIRN_BACKEND_CUDA, path, 2) && !cairn_session_open(g.model, &s) &&
                !cairn_append_ids(s, text[0], prompt) &&
                !cairn_generate_with(s, NULL, &options, NULL, NULL);
    if (fine && cut < tokens) {
        fine = !cairn_session_save_memory(s, NULL, 0, &bytes) && (memory = malloc(bytes)) &&
               !cairn_session_save_memory(s, memory, bytes, NULL);
        cairn_close(g.rt);
        options.max_tokens = tokens - cut;
        fine = fine && open_rig(&g, CAIRN_BACKEND_CUDA, path, 2) &&
               !cairn_session_open(g.model, &s) && !cairn_session_load_memory(s, memory, bytes) &&
               (held = cairn_session_ids(s, &count)) != NULL;
        if (fine && held[count - 1] != END) /* it may have said all before the cut */
            fine = !cairn_generate_with(s, NULL, &options, NULL, NULL);
        free(memory);
    }
    held = fine ? cairn_session_ids(s, &count) : NULL;
    if (held) memcpy(ids, held, (size_t)count * sizeof *ids);
    cairn_close(g.rt);
    return held ? count : -1;
}

static void test_loaded(const char *path) {
    static int32_t whole[MOST], parts[MOST];
    int same = 0, runs = getenv("CAIRN_SIMT_KERNELS") ? 1 : 3; /* emulated: half of the test */
    for (int i = 0; i < runs; i++) {
        int prompt = 90 + (int)(random_next(&state) % 40), tokens = 30;
        int count = say(path, prompt, tokens, tokens, whole);
        same += count > prompt && count == say(path, prompt, tokens / 2, tokens, parts) &&
                !memcmp(whole, parts, (size_t)count * sizeof *whole);
    }
    tap_ok(same == runs, "cuda, saved, and loaded in a new runtime, a session goes on: %d of %d", same,
           runs);
}

/* ---- a format more ------------------------------------------------------------------------- */

void read_own(const uint8_t *blocks, float *out, int64_t values) {
    for (int64_t i = 0; i < values; i++) {
        float scale;
        memcpy(&scale, blocks + i / 32 * 36, 4);
        out[i] = (float)(int8_t)blocks[i / 32 * 36 + 4 + i % 32] * scale;
    }
}

/* A tensor of random values, in that format, or as f32. */
static void fill_own(family_tensor *t, bool own, uint64_t seed) {
    const int values = t->rows * t->columns;
    const float scale = 1.0f / 512;
    t->type = own ? OWN_TYPE : BLOCK_F32, t->bytes = (size_t)values * (own ? 36 : 128) / 32;
    t->data = (uint8_t *)realloc(t->data, t->bytes);
    for (int i = 0; i < values; i++) {
        const int8_t n = (int8_t)(random_next(&seed) % 128 - 64);
        const float value = (float)n * scale;
        if (!own) memcpy(t->data + 4 * i, &value, 4);
        else memcpy(t->data + i / 32 * 36, &scale, 4), t->data[i / 32 * 36 + 4 + i % 32] = (uint8_t)n;
    }
}

/* ---- weights that stream --------------------------------------------------------------------- */

/* With what one layer projects in the format that runtime and kernels know nothing more of. */
static bool write_own(family *f, const char *path, bool own) {
    for (int i = 0; i < f->count; i++)
        if (!strcmp(f->tensors[i].name, "blk.1.attn_output.weight"))
            fill_own(&f->tensors[i], own, 7);
    return family_write(f, path);
}

/* A file whose formats differ by layer and weight, as those of quantised files do: q, k and v in two
 * and in three, gate and up in two. */
static bool write_mixed(const char *path, family *f) {
    static const struct { const char *name; int types[2]; } all[] = {
        {"attn_q", {BLOCK_Q4_K, BLOCK_Q5_0}}, {"attn_k", {BLOCK_Q4_K, BLOCK_Q5_1}},
        {"attn_v", {BLOCK_Q6_K, BLOCK_Q8_0}}, {"attn_output", {BLOCK_Q5_K, BLOCK_Q4_1}},
        {"ffn_gate", {BLOCK_Q4_K, BLOCK_Q4_0}}, {"ffn_up", {BLOCK_Q5_K, BLOCK_Q5_0}},
        {"ffn_down", {BLOCK_Q4_K, BLOCK_Q6_K}}};
    uint64_t seed = random_next(&state);
    *f = (family){.architecture = "llama", .layers = 2, .hidden = 256, .heads = HEADS,
                  .kv_heads = KV_HEADS, .dim = DIM, .ffn = 256, .vocab = VOCAB, .context = MOST,
                  .own_head = true};
    family_make_keys(f);
    family_add(f, "token_embd.weight", BLOCK_BF16, VOCAB, f->hidden, &seed);
    family_add(f, "output.weight", BLOCK_Q6_K, VOCAB, f->hidden, &seed);
    family_add(f, "output_norm.weight", BLOCK_F32, 0, f->hidden, &seed);
    for (int l = 0; l < f->layers; l++) {
        const int first = f->count, none = BLOCK_F16;
        family_layer(f, l, &none, 1, &seed);
        for (int i = first; i < f->count; i++) {
            family_tensor t = f->tensors[i];
            for (size_t j = 0; j < BASE_COUNT(all); j++) {
                if (!strstr(t.name, all[j].name) || !t.rows) continue;
                free(t.data), free(t.values);
                f->count = i;
                family_add(f, t.name, all[j].types[l], t.rows, t.columns, &seed);
            }
            f->count = first + 9;
        }
    }
    return write_own(f, path, true);
}

/* Every weight at its size: of the formats the file has, and of what its rows share with others. */
static void test_mixed_sizes(const rig *gpu) {
    const forward_cuda_state *s = (const forward_cuda_state *)gpu->model->state;
    const double q = 256 * 256, kv = 128 * 256, unit = 512;
    const double bytes[] = {q * 296 + kv * 296 + kv * 424, q * 352 + kv * 384 + kv * 544,
                            q * 360 + q * 1024, 2 * q * (360 + 352), q * (296 + 424),
                            VOCAB * 256 * (1024 + 424)};
    double total = 5.0 * 256 * 4;
    for (size_t i = 0; i < BASE_COUNT(bytes); i++) total += bytes[i] / unit;
    tap_ok(s->streamed && s->format_counts[STEP_P_QKV] == 2 && s->format_counts[STEP_P_DOWN] == 2 &&
               fabs((double)s->weights_bytes - total) < 0.001 * total,
           "cuda, mixed: %llu bytes of weights for %.0f", (unsigned long long)s->weights_bytes, total);
}

/* What is likeliest after some rows is what the CPU says, where that is no draw. */
static void test_likeliest(rig *gpu, rig *cpu, int at) {
    const int rows = 24;
    int same = 0, clear = 0;
    bool fine = forward(gpu, 0, 1, at, rows, DENSE, rows, logits) &&
                forward(cpu, 0, 1, at, rows, DENSE, rows, other);
    for (int r = 0; r < rows && fine; r++) {
        const float *a = logits + r * VOCAB, *b = other + r * VOCAB;
        int best = 0, best_gpu = 0, second = -1;
        for (int i = 1; i < VOCAB; i++) best = b[i] > b[best] ? i : best;
        for (int i = 1; i < VOCAB; i++) best_gpu = a[i] > a[best_gpu] ? i : best_gpu;
        for (int i = 0; i < VOCAB; i++)
            if (i != best && (second < 0 || b[i] > b[second])) second = i;
        if (b[best] - b[second] < 5e-3f * fabsf(b[best])) continue;
        clear++, same += best == best_gpu;
        if (best != best_gpu)
            tap_note("row %d: %d and %d are %g and %g by the CPU, %g and %g by the GPU", r, best, best_gpu, b[best],
                     b[best_gpu], a[best], a[best_gpu]);
    }
    tap_ok(clear > rows / 2 && same == clear, "cuda, mixed: %d of %d tokens as the CPU's", same,
           clear);
}

/* Rows side by side, each behind several runs: blocks of attention that take one run each, and once their
 * kernel is there blocks that take several. */
static void test_chains(rig *gpu, int at) {
    forward_cuda_state *s = (forward_cuda_state *)gpu->model->state;
    const step_graph_size *held = &s->graph_sizes[0][SEQUENCES];
    const step_flow_state *comes = &s->singles[STEP_SINGLE_CHAIN].state;
    const bool more = prompts(gpu, at);
    test_batch(gpu, at, 1, DENSE);
    for (int i = 0; i < 1200 && !cuda_has_single(s, STEP_SINGLE_CHAIN, false) && *comes == STEP_FLOW_WAITS; i++)
        os_sleep_us(100000);
    tap_ok(more && *comes == STEP_FLOW_READY, "cuda, chains: their kernel is asked for, and comes");
    test_batch(gpu, at, 1, DENSE);
    tap_ok(s->dev->sm_count > 4 || held->chain.chunks == 2, "cuda, chains: of %d chunks", held->chain.chunks);
}

/* Products that take two bands of rows at a time, once their kernels are there: the same bits. */
static void test_bands(rig *gpu, int at) {
    forward_cuda_state *s = (forward_cuda_state *)gpu->model->state;
    const bool can = cuda_spreads(s);
    s->bands_from = 0, s->bands_state[0] = STEP_FLOW_WAITS, s->bands_asked[0] = false;
    for (int i = 0; i < 1200 && can && !cuda_has_bands(s, false, false) && s->bands_state[0] == STEP_FLOW_WAITS; i++)
        os_sleep_us(100000);
    tap_ok(!can || s->bands_state[0] == STEP_FLOW_READY, "cuda, bands: their kernels are asked for, and come");
    test_rows(gpu, "in bands", at);
    tap_ok(forward(gpu, 0, 1, at, MANY, DENSE, MANY, logits) && s->banded == can, "cuda, bands: they serve");
}

/* A row alone that selects, by one launch once its kernel is there: the bits and the pages of the two launches before,
 * and of rows together. */
static void test_joint(rig *gpu, int at) {
    forward_cuda_state *s = (forward_cuda_state *)gpu->model->state;
    const bool can = s->dev->arch >= 90 && s->dev->arch < 120;
    const step_single *joint = &s->singles[STEP_SINGLE_JOINT];
    const int room = s->dev->max_shared_bytes;
    bool fine;
    s->dev->max_shared_bytes = (int)cuda_joint_bytes(s) - 1;
    fine = !cuda_has_joint(s) && !joint->asked;
    s->dev->max_shared_bytes = room;
    tap_ok(fine, "cuda, selection in one launch: a GPU whose blocks lack a byte for it has two");
    fine = !joint->asked && forward(gpu, 1, 2, at, 1, SPARSE, 1, logits) && !s->joint;
    const int64_t read = gpu->pages_read[0];
    for (int i = 0; i < 1200 && can && !cuda_has_joint(s) && joint->state == STEP_FLOW_WAITS; i++)
        os_sleep_us(100000);
    tap_ok(fine && joint->state == (can ? STEP_FLOW_READY : STEP_FLOW_WAITS),
           "cuda, selection in one launch: its kernel is asked for, and comes");
    fine = forward(gpu, 1, 2, at, 1, SPARSE, 1, other) && s->joint == can;
    tap_ok(fine && !memcmp(logits, other, VOCAB * sizeof *logits) && read == gpu->pages_read[0],
           "cuda, selection in one launch: the same bits and pages");
    test_batch(gpu, at, 1, SPARSE);
    test_batch(gpu, 30, 1, SPARSE); /* where all pages are kept */
}

/* Rows of several sequences, as long as each other and not, by a cluster each, on a GPU of many multiprocessors. */
static void test_clusters(rig *gpu, int at, bool expected) {
    forward_cuda_state *s = (forward_cuda_state *)gpu->model->state;
    const int places = s->row_places;
    const step_flow_state chains = s->singles[STEP_SINGLE_CHAIN].state;
    s->row_places = 132, s->singles[STEP_SINGLE_CHAIN].state = STEP_FLOW_FAILED;
    for (spread = 0; spread <= 120; spread += 120) {
        test_batch(gpu, at, 1, DENSE);
        tap_ok(s->row_ways.clusters == expected && !s->row_ways.relays,
               "cuda, rows by clusters of %d blocks, %d tokens apart",
               cuda_row_cluster(SEQUENCES, cuda_row_runs(s, NULL, at)), spread);
    }
    s->row_places = places, s->singles[STEP_SINGLE_CHAIN].state = chains, spread = 0;
}

/* A row alone that sees all in some layer, by relay and by a cluster of blocks once their kernels are there: the bits of
 * blocks that are counted, alone and among others. */
static void test_row(rig *gpu, int at, int how) {
    forward_cuda_state *s = (forward_cuda_state *)gpu->model->state;
    const bool may_relay = s->may_relay, can = may_relay && device_has_clusters(s->dev);
    const int runs = cuda_row_runs(s, NULL, at), most = s->row_most;
    const char *kind = how == DENSE ? "dense" : "one layer sparse";
    bool fine;
    for (int clusters = 0; clusters < 2; clusters++) {
        const step_flow_state *comes = &s->singles[clusters ? STEP_SINGLE_ROW : STEP_SINGLE_RELAY].state;
        const char *way = clusters ? "a cluster" : "relay";
        const bool expected = clusters ? can : may_relay;
        s->may_relay = false, s->row_most = 0;
        fine = forward(gpu, 1, 2, at, 1, how, 1, logits) && !s->row_ways.clusters && !s->row_ways.relays;
        s->may_relay = may_relay && !clusters;
        s->row_most = can && clusters ? 2 * STEP_ROW_CLUSTER : 0; /* of few multiprocessors it would be none */
        for (int i = 0; i < 1200 && expected && *comes == STEP_FLOW_WAITS; i++)
            cuda_get_row_ways(s, runs), os_sleep_us(100000);
        tap_ok(*comes == (expected ? STEP_FLOW_READY : STEP_FLOW_WAITS), "cuda, a row by %s: its kernel comes", way);
        fine = fine && forward(gpu, 1, 2, at, 1, how, 1, other);
        tap_ok(fine && (clusters ? s->row_ways.clusters : s->row_ways.relays) == expected &&
                   !memcmp(logits, other, VOCAB * sizeof *logits), "cuda, %s, %d runs of a row by %s: the same bits",
               kind, runs, way);
        test_batch(gpu, at, 1, how);
        test_batch(gpu, 3, 1, how);
        if (clusters && how == DENSE) test_clusters(gpu, at, expected);
    }
    s->may_relay = may_relay, s->row_most = most;
}

/* The same where one layer selects and one does not; where both do nothing is launched otherwise. */
static void test_sparse_row(rig *gpu, int at) {
    const forward_cuda_state *s = (const forward_cuda_state *)gpu->model->state;
    const uint64_t held = gpu->rule.layers[0];
    const bool fine = forward(gpu, 1, 2, at, 1, SPARSE, 1, logits) && !s->row_ways.clusters && !s->row_ways.relays;
    tap_ok(fine, "cuda, where all layers select no row goes by relay or a cluster");
    gpu->rule.layers[0] = 1;
    test_row(gpu, at, SPARSE);
    gpu->rule.layers[0] = held;
}

/* The same promises where weights stream (dense/product.cuh), which larger models' do, and those of
 * formats of their own. */
static void test_streamed(const char *path, int at) {
    rig gpu, cpu;
    family f;
    bool fine = write_mixed(path, &f) && open_rig(&gpu, CAIRN_BACKEND_CUDA, path, 2);
    tap_ok(fine, "cuda, a model of mixed formats, one of them this test's own");
    if (fine && tap_ok(write_own(&f, path, false) && open_rig(&cpu, CAIRN_BACKEND_CPU, path, 2) &&
                           prompts(&gpu, at) && prompts(&cpu, at), "cuda, streamed: prompts")) {
        test_mixed_sizes(&gpu);
        test_joint(&gpu, at);
        test_dense(&gpu, &cpu, at);
        test_likeliest(&gpu, &cpu, at);
        test_rows(&gpu, "streamed", at);
        test_batch(&gpu, at, 2, true);
        test_chains(&gpu, 300);
        test_row(&gpu, 300, DENSE);
        test_sparse_row(&gpu, 300);
        test_bands(&gpu, at);
        test_prompts(&gpu, at);
    }
    cairn_close(cpu.rt);
    cairn_close(gpu.rt);
    family_free(&f);
}

int main(void) {
    char path[] = "/tmp/forward_cuda_XXXXXX";
    int file = mkstemp(path), at = 220;
    rig gpu, cpu;
    gguf_first_bytes = 4096; /* weights are read one by one, as of large models */
    state = random_seed();
    for (int i = 0; i < SEQUENCES * MOST; i++)
        text[i / MOST][i % MOST] = 1 + (int32_t)(random_next(&state) % (VOCAB - 1));
    if (!tap_ok(file >= 0 && write_model(path), "a small model is written")) return tap_done();
    if (!open_rig(&gpu, CAIRN_BACKEND_CUDA, path, 2)) {
        tap_skip("forward on cuda");
    } else if (tap_ok(open_rig(&cpu, CAIRN_BACKEND_CPU, path, 2), "the CPU's model")) {
        tap_ok(prompts(&gpu, at) && prompts(&cpu, at), "cuda, prompts");
        test_background(&gpu, at);
        test_dense(&gpu, &cpu, at);
        cairn_close(cpu.rt);
        test_groups(&gpu, at, DENSE);
        test_groups(&gpu, at, SPARSE);
        test_rows(&gpu, "whole", 24);
        test_rows(&gpu, "sparse", at);
        test_batch(&gpu, at, 2, DENSE);
        test_batch(&gpu, at, 2, SPARSE);
        test_batch(&gpu, at, 25, SPARSE);
        test_prompts(&gpu, at);
        test_draws(&gpu, at, 0, 1, 1, 40);
        test_draws(&gpu, at, 0, 1, 5, 7);
        test_draws(&gpu, at, 0, 1, MANY, 40);
        test_draws(&gpu, at, 0, 2, 2, 40);
        test_draws(&gpu, at, 0, 1, 3, 0);
        cairn_close(gpu.rt);
        test_reload(path, at);
        test_loaded(path);
        test_streamed(path, at);
    }
    remove(path);
    return tap_done();
}

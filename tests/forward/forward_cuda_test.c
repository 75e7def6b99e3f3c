/* forward_cuda: a small random decoder on the GPU (or the emulated one) against the CPU backend,
 * and what the forward promises to the bit: whichever rows ride along and whichever kernels serve
 * them, a row's logits are the same; so are the pages counted.
 * emulated: asan race */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "gguf_build.h"
#include "random.h"
#include "ref/f16_ref.h"
#include "tap.h"

enum {
    MANY = 24, VOCAB = 96, LAYERS = 2, HIDDEN = 128, HEADS = 4, KV_HEADS = 2, DIM = 64, FFN = 96,
    PAGE = 16, MOST = 512, PAGES = MOST / PAGE, SEQUENCES = 3, MOST_ROWS = 160, END = 0
};

static uint64_t state;
static float uniform(void) { return (float)(random_next(&state) >> 40) / 8388608.0f - 1.0f; }

/* ---- the model ------------------------------------------------------------------------------- */

typedef struct part { char name[64]; int rows, columns; } part;

static int list_parts(part *parts) {
    static const part each[] = {
        {"attn_norm", 0, HIDDEN}, {"ffn_norm", 0, HIDDEN}, {"attn_q", HEADS * DIM, HIDDEN},
        {"attn_k", KV_HEADS * DIM, HIDDEN}, {"attn_v", KV_HEADS * DIM, HIDDEN},
        {"attn_output", HIDDEN, HEADS * DIM}, {"ffn_gate", FFN, HIDDEN}, {"ffn_up", FFN, HIDDEN},
        {"ffn_down", HIDDEN, FFN}};
    int count = 2;
    parts[0] = (part){"token_embd.weight", VOCAB, HIDDEN};
    parts[1] = (part){"output_norm.weight", 0, HIDDEN};
    for (int l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < BASE_COUNT(each); i++, count++) {
            parts[count] = each[i];
            snprintf(parts[count].name, sizeof parts->name, "blk.%d.%.40s.weight", l, each[i].name);
        }
    return count;
}

static void build_keys(gguf_build *f) {
    static const struct { const char *name; uint32_t value; } numbers[] = {
        {"llama.block_count", LAYERS}, {"llama.embedding_length", HIDDEN},
        {"llama.feed_forward_length", FFN}, {"llama.context_length", MOST},
        {"llama.attention.head_count", HEADS}, {"llama.attention.head_count_kv", KV_HEADS},
        {"llama.attention.key_length", DIM}, {"llama.rope.dimension_count", DIM},
        {"tokenizer.ggml.eos_token_id", END}};
    for (size_t i = 0; i < BASE_COUNT(numbers); i++)
        build_key_u32(f, numbers[i].name, numbers[i].value);
    build_key_string(f, "general.architecture", "llama");
    build_key_string(f, "tokenizer.ggml.model", "gpt2");
    build_key_string(f, "tokenizer.ggml.pre", "gpt-2");
    build_key_f32(f, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    build_key_array(f, "tokenizer.ggml.tokens", 8, VOCAB);
    for (int i = 0; i < VOCAB; i++) {
        char name = (char)(i < 94 ? '!' + i : 0);
        if (name) build_string(f, &name, 1);
        else build_string(f, i == 94 ? "aa" : "ab", 2);
    }
    build_key_array(f, "tokenizer.ggml.token_type", 5, VOCAB);
    for (int i = 0; i < VOCAB; i++) build_number(f, i ? 1 : 3, 4);
    build_key_array(f, "tokenizer.ggml.merges", 8, 1);
    build_string(f, "a a", 3);
}

static bool write_model(const char *path) {
    part parts[2 + 9 * LAYERS];
    gguf_build f = {0};
    int count = list_parts(parts);
    FILE *file = fopen(path, "wb");
    bool fine;
    build_begin(&f, 3, (uint64_t)count, 16);
    build_keys(&f);
    for (int i = 0; i < count; i++) {
        uint64_t shape[2] = {(uint64_t)parts[i].columns, (uint64_t)parts[i].rows};
        int rows = parts[i].rows;
        build_tensor(&f, parts[i].name, rows ? BLOCK_F16 : BLOCK_F32, rows ? 2 : 1, shape,
                     (uint64_t)(rows ? rows * 2 : 4) * shape[0], 32);
    }
    build_align(&f, 32);
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < (parts[i].rows ? parts[i].rows : 1) * parts[i].columns; j++) {
            float v = parts[i].rows ? 0.15f * uniform() : 1.0f + 0.3f * uniform();
            uint32_t bits;
            memcpy(&bits, &v, 4);
            if (parts[i].rows) build_number(&f, (uint64_t)ref_to_f16((double)v), 2);
            else build_number(&f, bits, 4);
        }
        build_align(&f, 32);
    }
    fine = file && fwrite(f.data, 1, f.size, file) == f.size;
    if (file) fclose(file);
    free(f.data);
    return fine;
}

/* ---- forwards -------------------------------------------------------------------------------- */

typedef struct rig {
    cairn_runtime *rt;
    cairn_model *model;
    int32_t table[SEQUENCES][PAGES];
    int32_t bounded[SEQUENCES], stored[SEQUENCES];
    int64_t pages_read[SEQUENCES];
} rig;

static int32_t text[SEQUENCES][MOST]; /* what every sequence says */

static bool open_rig(rig *g, cairn_backend backend, const char *path, int topk) {
    cairn_config config;
    char error[1024];
    memset(g, 0, sizeof *g);
    cairn_config_default(&config);
    config.backend = backend, config.page_size = PAGE, config.topk = topk;
    config.max_batch = SEQUENCES, config.max_seq_len = MOST, config.log = CAIRN_LOG_OFF;
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
    for (int i = 0; i < SEQUENCES * PAGES; i++)
        g->table[i / PAGES][i % PAGES] = (i * 7 + 5) % g->model->kv.pool.pages;
    return true;
}

static const sample_params *rule; /* where it is set, the tokens after the rows are drawn by it */
static int32_t drawn[MOST_ROWS];

/* One forward of `rows` rows of each of the sequences [first, end), from `position` on; logits
 * [rows of them all, VOCAB] or only the last `wanted`. */
static bool forward(rig *g, int first, int end, int position, int rows, bool dense, int wanted,
                    float *logits) {
    int32_t tokens[MOST_ROWS], positions[MOST_ROWS], sequences[MOST_ROWS];
    static uint64_t version = 1;
    forward_args a;
    cairn_status status;
    memset(&a, 0, sizeof a);
    memset(g->pages_read, 0, sizeof g->pages_read);
    for (int s = first; s < end; s++) {
        for (int r = 0; r < rows; r++, a.rows++) {
            tokens[a.rows] = text[s][position + r];
            positions[a.rows] = position + r, sequences[a.rows] = s;
        }
        g->stored[s] = position / PAGE;
        if (g->bounded[s] > g->stored[s]) g->bounded[s] = g->stored[s];
    }
    a.tokens = tokens, a.positions = positions, a.sequences = sequences;
    a.page_table = g->table[0], a.table_rows = SEQUENCES, a.table_stride = PAGES;
    a.table_version = version++, a.bounded_pages = g->bounded, a.stored_pages = g->stored;
    a.dense = dense, a.logit_first = a.rows - wanted, a.logit_count = wanted, a.logits = logits;
    a.pages_read = g->pages_read;
    if (rule) a.logits = NULL, a.sample = rule, a.sampled = drawn;
    if (device_enter(&g->rt->device)) return false;
    status = g->model->backend->forward(g->model, &g->model->kv, &a);
    device_leave(&g->rt->device);
    for (int s = first; s < end; s++) g->bounded[s] = g->stored[s];
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
            fine = forward(g, s, s + 1, at, rows, true, 0, NULL);
        }
    return fine;
}

/* Steps as they are while the flow kernels are not compiled yet, and after. */
static void test_background(rig *gpu, int at) {
    const int rows = 3, count = rows * VOCAB;
    forward_cuda_state *f = (forward_cuda_state *)gpu->model->state;
    int64_t read;
    bool fine;
    f->flow_states[STEP_K_FLOW] = f->flow_states[STEP_K_SPARSE_FLOW] = STEP_FLOW_FAILED;
    fine = forward(gpu, 0, 1, at, rows, true, rows, other) &&
           forward(gpu, 0, 1, at, rows, false, rows, other + count);
    read = gpu->pages_read[0];
    tap_ok(fine && !cairn_model_wait(gpu->model) && f->flow_states[0] == STEP_FLOW_READY &&
               f->flow_states[1] == STEP_FLOW_READY, "cuda, every kernel is there after a wait");
    fine = forward(gpu, 0, 1, at, rows, true, rows, logits) &&
           forward(gpu, 0, 1, at, rows, false, rows, logits + count);
    tap_ok(fine && !memcmp(logits, other, 2 * (size_t)count * sizeof *logits) &&
               read == gpu->pages_read[0] && read > 0,
           "cuda, the same bits before and after, and %d pages read", (int)read);
}

static void test_dense(rig *gpu, rig *cpu, int at) {
    bool fine = forward(gpu, 0, 1, at, 1, true, 1, logits) &&
                forward(cpu, 0, 1, at, 1, true, 1, other);
    double far = distance(logits, other, VOCAB);
    tap_ok(fine && far < 2e-2, "cuda, one row after a prompt: %.1e from the CPU", far);
    fine = forward(gpu, 0, 1, at, 6, true, 6, logits) && forward(cpu, 0, 1, at, 6, true, 6, other);
    far = distance(logits, other, 6 * VOCAB);
    tap_ok(fine && far < 2e-2, "cuda, six rows: %.1e", far);
}

/* Rows one by one, and then together in forwards of every kind. What they see is selected, which
 * before the window fills is all. */
static void test_rows(rig *gpu, const char *what, int at) {
    static const int counts[] = {2, 5, 8, 9, MANY};
    const bool dense = false;
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
static void test_batch(rig *gpu, int at, int rows, bool dense) {
    int64_t read[SEQUENCES];
    int all = SEQUENCES * rows;
    bool fine = true;
    for (int s = 0; s < SEQUENCES && fine; s++) {
        fine = forward(gpu, s, s + 1, at, rows, dense, rows, other + s * rows * VOCAB);
        read[s] = gpu->pages_read[s];
    }
    fine = fine && forward(gpu, 0, SEQUENCES, at, rows, dense, all, logits);
    tap_ok(fine && !memcmp(logits, other, (size_t)(all * VOCAB) * sizeof *logits) &&
               !memcmp(read, gpu->pages_read, sizeof read),
           "cuda, %s: %d rows of %d sequences as alone", dense ? "dense" : "sparse", all,
           SEQUENCES);
}

/* Tokens drawn on the device, or on the host when they are of many, are those of the CPU's sampler
 * on the same logits. */
static void test_draws(rig *gpu, int at, int first, int end, int rows, int top_k) {
    static char scratch[VOCAB * 16];
    const int all = rows * (end - first);
    sample_params p;
    int same = 0;
    bool fine = forward(gpu, first, end, at, rows, false, all, logits);
    memset(&p, 0, sizeof p);
    p.temperature = 0.8f, p.top_k = top_k, p.top_p = 0.9f, p.seed = state >> 20;
    p.repetition_penalty = 1.0f;
    rule = &p;
    fine = fine && forward(gpu, first, end, at, rows, false, all, logits);
    rule = NULL;
    for (int r = 0; r < all && fine; r++)
        same += drawn[r] == sample_token(&p, logits + r * VOCAB, VOCAB, at + r % rows + 1, scratch);
    tap_ok(fine && same == all, "%d of %d tokens drawn as the CPU draws them, top_k %d", same, all,
           top_k);
}

/* Two prompts in one forward, with logits of the end of the first and of the whole second. */
static void test_prompts(rig *gpu, int at) {
    const int rows = 40, wanted = rows + 3;
    bool fine = forward(gpu, 0, 1, at, rows, true, 3, other) &&
                forward(gpu, 1, 2, at, rows, true, rows, other + 3 * VOCAB) &&
                forward(gpu, 0, 2, at, rows, true, wanted, logits);
    tap_ok(fine && !memcmp(logits, other, (size_t)(wanted * VOCAB) * sizeof *logits),
           "cuda, two prompts in one forward");
}

/* ---- sessions -------------------------------------------------------------------------------- */

/* What a session of a rig says after `prompt` ids of text 0, in one go or, cut after `cut` tokens,
 * saved and loaded in a runtime opened anew, whose first forward is then a step. */
static int say(const char *path, int prompt, int cut, int tokens, int32_t *ids) {
    rig g;
    cairn_session *s = NULL;
    cairn_generate_options options = {sizeof options, cut, NULL, NULL, -1, 0, 0};
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

/* The same promises where weights stream (dense/product.cuh), which larger models do. */
static void test_streamed(const char *path, int at) {
    rig gpu, cpu;
    step_stream_from = 32;
    if (tap_ok(open_rig(&gpu, CAIRN_BACKEND_CUDA, path, 2) &&
                   open_rig(&cpu, CAIRN_BACKEND_CPU, path, 2) && prompts(&gpu, at) &&
                   prompts(&cpu, at), "cuda, streamed: prompts")) {
        test_dense(&gpu, &cpu, at);
        test_rows(&gpu, "streamed", at);
        test_batch(&gpu, at, 2, true);
        test_prompts(&gpu, at);
    }
    cairn_close(cpu.rt);
    cairn_close(gpu.rt);
    step_stream_from = 1024;
}

int main(void) {
    char path[] = "/tmp/forward_cuda_XXXXXX";
    int file = mkstemp(path), at = 220;
    rig gpu, cpu;
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
        test_rows(&gpu, "whole", 24);
        test_rows(&gpu, "sparse", at);
        test_batch(&gpu, at, 2, true);
        test_batch(&gpu, at, 2, false);
        test_batch(&gpu, at, 25, false);
        test_prompts(&gpu, at);
        test_draws(&gpu, at, 0, 1, 1, 40);
        test_draws(&gpu, at, 0, 1, 5, 7);
        test_draws(&gpu, at, 0, 1, MANY, 40);
        test_draws(&gpu, at, 0, 2, 2, 40);
        test_draws(&gpu, at, 0, 1, 3, 0);
        cairn_close(gpu.rt);
        test_streamed(path, at);
        test_loaded(path);
    }
    remove(path);
    return tap_done();
}

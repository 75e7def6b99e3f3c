/* forward_faults: calls of the driver fail once in the forwards of models of every kind of layer, on tests/fake's
 * GPU (fake/fault_walk.h says what holds): prompts, steps and their graphs, pages that a fork shares, rules
 * that select in a form of their own, what was selected, adapters. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "gguf_build.h"
#include "random.h"
#include "ref/block_ref.h"
#include "ref/f16_ref.h"
#include "ref/llama_ref.h"
#include "model_shapes.h"
#include "tap.h"
#include "family.h"
#define ZOO_TYPES BLOCK_F16
#include "family_zoo.h"
#include "low.h"
#include "fake/fake_compiler.h"
#include "fake/fault_walk.h"

static char path[64], low_path[64];

static cairn_config config_for(void) {
    cairn_config c;
    cairn_config_default(&c);
    c.backend = CAIRN_BACKEND_CUDA, c.log = CAIRN_LOG_OFF, c.threads = c.jit.threads = 1;
    c.jit.cache = CAIRN_CACHE_MEMORY;
    c.page_size = 16, c.max_batch = 4, c.prefill_chunk = 32;
    c.topk = 2, c.selection.window = 16, c.draft_length = 3;
    return c;
}

/* An adapter for all products, gated where it drafts. */
static void write_low(const family *f, bool gated, uint64_t *seed) {
    low l = make_low(f, 3, 6, true, seed);
    gguf_build file;
    l.hidden = f->hidden;
    if (gated) low_gate(&l, f->hidden, seed);
    file = gguf_low(&l, f->architecture, false);
    tap_ok(save(low_path, &file), "an adapter is written");
    free(file.data), free_low(&l);
}

static void test_family(family f, const char *name, cairn_config c, const char *adapter,
                        int each) {
    f.end = 1; /* zeros say 0 */
    tap_ok(family_write(&f, path), "%s is written", name);
    walk_faults(&c, path, adapter, name, each);
    family_free(&f);
}

static void test_small(void) {
    const cairn_config c = config_for();
    tap_ok(shape_write(path, &shape_small), "a small llama is written");
    walk_faults(&c, path, NULL, "a small llama", 1);
}

/* Products of so many inputs that several rows share them among clusters: each launch is of whole ones. */
static void test_clusters(void) {
    static const shape_file wide = {"wide", 1, 1024, 8, 2, 128, 12288, 96, 96 * 16, true, 2, 8, 0};
    const cairn_config c = config_for();
    int refused = 0;
    bool failed;
    walk w;
    tap_ok(shape_write(path, &wide), "a wide llama is written");
    if (!walk_begin(&w, &c, path, NULL, "a wide llama")) return;
    const bool fine = walk_run(&w, 0, &refused, &failed) && !refused;
    tap_ok(fine && fake.clusters > 0, "%d launches of whole clusters", fake.clusters);
    cairn_close(w.rt);
    tap_ok(!fake.live && !fake.device_live && !fake.opened, "and nothing is left");
}

/* ---- what cannot be had ---------------------------------------------------------------------------- */

enum { ROWS = 8, LONG_PROMPT = 600, MADE = 60 };

static int slower[2]; /* warnings: of steps of many rows, of prompts beside each other */
static void hear(void *user, cairn_log_level level, const char *text) {
    (void)user, (void)level;
    slower[0] += strstr(text, "steps go on by slower kernels: step/attend.cu") != NULL;
    slower[1] += strstr(text, "prompts go on one after the other: step/") != NULL;
}

/* Long prompts beside each other, then steps of as many rows; what was said of them to out. */
static cairn_status batch(cairn_model *m, int32_t *out) {
    static int32_t ids[ROWS * LONG_PROMPT], lengths[ROWS], limits[ROWS], made[ROWS], totals[ROWS];
    cairn_batch_args a;
    memset(&a, 0, sizeof a);
    for (int i = 0; i < ROWS * LONG_PROMPT; i++) ids[i] = 2 + i % 9;
    for (int i = 0; i < ROWS; i++) lengths[i] = LONG_PROMPT - i, limits[i] = MADE;
    a.struct_size = sizeof a, a.rows = ROWS, a.stride = LONG_PROMPT, a.capacity = LONG_PROMPT + MADE;
    a.ids = ids, a.lengths = lengths, a.limits = limits, a.output = out, a.generated = made, a.total = totals;
    return cairn_generate_batch(m, &a);
}

/* Kernels that are asked for when they are first of use; without: the compiler fails from then on. What was said
 * to out. */
static void run_batches(bool without, int32_t *out) {
    cairn_config c = config_for();
    cairn_runtime *rt;
    cairn_model *m;
    forward_cuda_state *f;
    const step_flow_state *chain;
    char error[512] = "";
    c.max_batch = ROWS, c.prefill_chunk = 256, c.draft_length = 0;
    memset(c.selection.layers, 0, sizeof c.selection.layers);
    c.log = CAIRN_LOG_WARN, c.log_callback = hear;
    memset(slower, 0, sizeof slower);
    fake_install();
    fake.memory_bytes = (size_t)1 << 30;
    if (!tap_ok(!cairn_open(&c, &rt, error, sizeof error) && !cairn_load_model(rt, path, &m) && !cairn_model_wait(m),
                "a small llama for batches %s", error)) return;
    f = (forward_cuda_state *)m->state, chain = &f->singles[STEP_SINGLE_CHAIN].state;
    tap_ok(*chain == STEP_FLOW_WAITS && f->joined_state == STEP_FLOW_WAITS, "not asked for by a wait");
    fake.compile_result = without ? NVRTC_ERROR_COMPILATION : 0;
    fake.compile_log = "it fails here";
    for (int i = 0; i < 100; i++) {
        if (batch(m, out)) {
            tap_ok(false, "%s", cairn_last_error(rt));
            break;
        }
        if (*chain != STEP_FLOW_WAITS && f->joined_state != STEP_FLOW_WAITS) break;
        os_sleep_us(1000);
    }
    tap_ok(*chain == (without ? STEP_FLOW_FAILED : STEP_FLOW_READY) && f->joined_state == *chain &&
           slower[0] == without && slower[1] == without && !batch(m, out) && slower[0] == without &&
           slower[1] == without && !cairn_model_wait(m),
           without ? "without them it is said once, and all goes on" : "they come while steps go on");
    cairn_close(rt);
    tap_ok(!fake.live && !fake.device_live && !fake.opened, "nothing is left");
}

static void test_batches(void) {
    static int32_t with[ROWS * (LONG_PROMPT + MADE)], without[ROWS * (LONG_PROMPT + MADE)];
    run_batches(false, with);
    run_batches(true, without);
    tap_ok(!memcmp(with, without, sizeof with), "the same is said without them");
}

static bool goes_on(void *user, const char *what, int index, int count) {
    (void)index, (void)count;
    return *(bool *)user || !strstr(what, ".cu");
}

/* What was to be compiled later for a model is cancelled with another one's load: it is asked for anew. */
static void test_cancelled(void) {
    static const shape_file more = {"more", 2, 128, 2, 1, 64, 64, 96, 96 * 16, true, 2, 8, 0};
    cairn_config c = config_for();
    cairn_runtime *rt;
    cairn_model *m, *other = NULL;
    cairn_session *s;
    forward_cuda_state *f;
    char error[512] = "";
    int32_t ids[WALK_PROMPT];
    bool on = true;
    c.progress_callback = goes_on, c.progress_user = &on;
    fake_install();
    fake.memory_bytes = (size_t)1 << 30, fake.compile_us = 30000;
    if (!tap_ok(!cairn_open(&c, &rt, error, sizeof error) && !cairn_load_model(rt, path, &m) &&
                !cairn_session_open(m, &s), "a small llama %s", error)) return;
    f = (forward_cuda_state *)m->state;
    tap_ok(f->later_state == STEP_FLOW_WAITS && shape_write(low_path, &more), "it waits for kernels of few rows");
    on = false;
    tap_ok(cairn_load_model(rt, low_path, &other) == CAIRN_CANCELLED && !other, "another's load is cancelled: %s",
           cairn_last_error(rt));
    on = true;
    os_sleep_us(50000); /* what was running has ended, too */
    for (int i = 0; i < WALK_PROMPT; i++) ids[i] = 2 + i % 7;
    tap_ok(!cairn_append_ids(s, ids, WALK_PROMPT) && f->later_state == STEP_FLOW_WAITS, "a prompt goes on without");
    tap_ok(!cairn_model_wait(m) && f->later_state == STEP_FLOW_READY, "and a wait has them");
    cairn_close(rt);
    tap_ok(!fake.live && !fake.device_live && !fake.opened, "nothing is left");
}

/* Steps until a config that waits is taken over or dropped. */
static void step_through(cairn_runtime *rt, cairn_session *s) {
    int32_t ids[2] = {3, 4};
    for (int i = 0; i < 60 && cairn_reload_waits(rt); i++) {
        if (cairn_append_ids(s, ids, 2)) tap_note("%s", cairn_last_error(rt));
        os_sleep_us(10000);
    }
}

/* Kernels of a rule that were short of memory once are compiled when they are asked for once more: by a load,
 * by a reload. */
static void test_once_more(void) {
    cairn_config c = config_for(), plain = c;
    cairn_runtime *rt;
    cairn_model *m;
    cairn_session *s;
    cairn_status first;
    const int32_t ids[2] = {3, 4};
    char error[512] = "";
    c.selection.strategy = CAIRN_STRATEGY_SOFTMAX_HEAD;
    fake_install();
    fake.memory_bytes = (size_t)1 << 30;
    if (!tap_ok(!cairn_open(&c, &rt, error, sizeof error), "a GPU %s", error)) return;
    fake.compile_result = NVRTC_ERROR_OUT_OF_MEMORY, fake.compile_fails = "step/forms.cu";
    first = cairn_load_model(rt, path, &m);
    tap_ok(first == CAIRN_OUT_OF_MEMORY, "a load whose forms cannot be compiled: %s", cairn_last_error(rt));
    fake.compile_result = 0;
    tap_ok(!cairn_load_model(rt, path, &m), "and once more %s", cairn_last_error(rt));
    cairn_close(rt);
    if (!tap_ok(!cairn_open(&plain, &rt, error, sizeof error) && !cairn_load_model(rt, path, &m) &&
                !cairn_session_open(m, &s), "without such a rule %s", error)) return;
    fake.compile_result = NVRTC_ERROR_OUT_OF_MEMORY;
    fake.compile_us = 20000000;
    tap_ok(!cairn_reload(rt, &c) && cairn_reload_waits(rt), "a reload for it waits");
    tap_ok(!cairn_append_ids(s, ids, 2) && cairn_reload_waits(rt), "a step looks at it %s", cairn_last_error(rt));
    os_atomic_store(&fake.let_go, 1); /* having looked is not to have asked for it once more */
    step_through(rt, s);
    tap_ok(rt->config.selection.strategy == plain.selection.strategy && !cairn_reload_waits(rt), "and fails");
    fake.compile_result = 0;
    tap_ok(!cairn_reload(rt, &c), "once more %s", cairn_last_error(rt));
    step_through(rt, s);
    tap_ok(rt->config.selection.strategy == c.selection.strategy, "it is taken over");
    cairn_close(rt);
    tap_ok(!fake.live && !fake.device_live && !fake.opened, "nothing is left");
}

/* ---- runs ------------------------------------------------------------------------------------------ */

/* The most runs of a row in any layer: where all is walked by long runs, a window has more, of a chunk each. */
static void test_runs(uint64_t *seed) {
    enum { WINDOW = 700, CHUNK = 64 /* of such heads */ };
    family made = {.architecture = "gemma3", .layers = 2, .hidden = 64, .heads = 16, .kv_heads = 16,
                   .dim = 256, .ffn = 64, .vocab = 100, .context = 2048, .head_norms = true, .post_norms = true,
                   .halves = true, .gelu = true, .window = WINDOW, .period = 2, .embed_scale = 8};
    const cairn_config c = config_for();
    cairn_runtime *rt;
    cairn_model *m;
    const forward_cuda_state *f;
    char error[512] = "";
    int bad = 0, more = 0;
    family_make(&made, zoo_types, (int)BASE_COUNT(zoo_types), seed);
    family_put(&made, "attention.sliding_window_pattern", 4, 2, NULL);
    zoo_turns(&made, 0, 1000000), zoo_turns(&made, 1, 10000);
    tap_ok(family_write(&made, path), "large heads with a window are written");
    family_free(&made);
    fake_install();
    fake.memory_bytes = (size_t)1 << 30;
    if (!tap_ok(!cairn_open(&c, &rt, error, sizeof error), "a GPU %s", error)) return;
    if (!tap_ok(!cairn_load_model(rt, path, &m), "load %s", cairn_last_error(rt))) return;
    f = (const forward_cuda_state *)m->state;
    tap_ok(f->chunk == CHUNK, "chunks of %d", f->chunk);
    for (int position = 0; position < 2048; position++) {
        const int first = position < WINDOW ? 0 : position - WINDOW + 1, whole = cuda_row_runs(f, NULL, position);
        const int seen = position / CHUNK - first / CHUNK + 1, most = cuda_most_runs(f, NULL, position);
        bad += most < seen || most < whole || most > position / CHUNK + 1;
        more += most > whole;
    }
    tap_ok(!bad && more > 500, "room for the runs of every layer, at %d positions for more than where all is walked",
           more);
    cairn_close(rt);
}

int main(void) {
    uint64_t seed = 5;
    cairn_config c = config_for();
    family f;
    snprintf(path, sizeof path, "/tmp/cairn_faults_%d.gguf", os_process_id());
    snprintf(low_path, sizeof low_path, "/tmp/cairn_faults_%d.low", os_process_id());
    test_small();
    test_batches();
    test_cancelled();
    test_once_more();
    test_clusters();
    test_runs(&seed);
    test_family(zoo_lfm2(&seed), "layers of short convolutions", c, NULL, 1);
    test_family(zoo_qwen3moe(&seed), "experts", c, NULL, 1);
    c.selection.strategy = CAIRN_STRATEGY_SOFTMAX_HEAD;
    f = zoo_llama(&seed);
    zoo_fill(&f, &seed);
    test_family(f, "pages chosen by head", c, NULL, 11);
    c = config_for();
    f = zoo_llama(&seed);
    zoo_fill(&f, &seed);
    write_low(&f, false, &seed);
    test_family(f, "an adapter", c, low_path, 1);
    f = zoo_llama(&seed);
    zoo_fill(&f, &seed);
    write_low(&f, true, &seed);
    c.drafter = CAIRN_DRAFTER_MTP;
    test_family(f, "an adapter that drafts", c, low_path, 1);
    remove(path), remove(low_path);
    return tap_done();
}

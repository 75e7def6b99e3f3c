/* families: small random models of each family, written to GGUF files and loaded as a host loads
 * them, against tests/ref/llama_ref.h on their weights: every logit, greedy text after prompts cut
 * in any way, drafts, rewinds, forks, snapshots. What becomes of a model whose file changes.
 * emulated: asan */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "gguf_build.h"
#include "random.h"
#include "ref/block_ref.h"
#include "ref/f16_ref.h"
#include "ref/llama_ref.h"
#include "tap.h"
#include "turns.h"
#include "backends.h"
#include "texts.h"
#include "family.h"
#include "family_zoo.h"

static uint64_t state;

static family a_llama(void) {
    family f = {.architecture = "llama", .layers = 2, .hidden = 128, .heads = 4, .kv_heads = 2,
                .dim = 64, .ffn = 96, .vocab = 120, .context = 256};
    f.own_head = random_next(&state) % 2;
    family_make(&f, zoo_types, (int)BASE_COUNT(zoo_types), &state);
    return f;
}

/* Every format there is, by weight. */
static family a_mixed_llama(void) {
    static const int all[] = {BLOCK_F16, BLOCK_Q4_0, BLOCK_Q4_1, BLOCK_Q5_0, BLOCK_Q5_1, BLOCK_Q8_0,
                              BLOCK_Q4_K, BLOCK_Q5_K, BLOCK_Q6_K, BLOCK_Q4_K, BLOCK_Q5_K,
                              BLOCK_Q6_K};
    family f = {.architecture = "llama", .layers = 3, .hidden = 256, .heads = 4, .kv_heads = 2,
                .dim = 64, .ffn = 256, .vocab = 120, .context = 256, .own_head = true};
    family_make(&f, all, (int)BASE_COUNT(all), &state);
    return f;
}

static family a_lfm2(void) {
    family f = {.architecture = "lfm2", .layers = 5, .hidden = 96, .heads = 4, .kv_heads = 2,
                .dim = 32, .ffn = 96, .vocab = 120, .context = 256, .taps = 3, .head_norms = true};
    f.own_head = random_next(&state) % 2;
    f.taps = 2 + (int)(random_next(&state) % 7);
    f.conv[0] = f.conv[1] = f.conv[3] = true;
    family_make(&f, zoo_types, (int)BASE_COUNT(zoo_types), &state);
    return f;
}

static cairn_config small_config(cairn_backend backend) {
    cairn_config c;
    cairn_config_default(&c);
    c.backend = backend, c.log = CAIRN_LOG_OFF;
    c.threads = 2, c.page_size = 16, c.max_batch = 1, c.max_seq_len = 200, c.prefill_chunk = 16;
    return c;
}

static cairn_model *load(cairn_runtime *rt, const char *path) {
    cairn_model *m = NULL;
    if (cairn_load_model(rt, path, &m)) tap_note("%s", cairn_last_error(rt));
    return m;
}

/* ---- logits and text ------------------------------------------------------------------------- */

enum { LENGTH = 90, GIVEN = 41, MORE = 40 }; /* a text; a prompt, and what follows it */

static void random_ids(const family *f, int32_t *ids, int count) {
    for (int i = 0; i < count; i++) /* some of it repeats, so that there is something to draft */
        ids[i] = i > 6 && random_next(&state) % 3 ? ids[i - 5]
                                                  : 1 + (int32_t)(random_next(&state) %
                                                                  (uint64_t)(f->vocab - 1));
}

/* The most that a logit of these tokens moves, by 1 and its own size, in six texts whose embeddings move by
 * `shake`: a value that lies between two of the cache's goes to the other, and one row in some thousands
 * has an attention in which that shows. */
static double moved_by(llama_ref *r, const int32_t *ids, int rows, double shake) {
    const int vocab = r->head.out;
    double *want = (double *)malloc(sizeof *want * (size_t)(vocab * (rows + 1))), worst = 0;
    for (int draw = 0; draw < 7; draw++) {
        r->shake = draw ? shake : 0;
        for (int row = 0; row < rows; row++) {
            double *still = want + row * vocab, *got = draw ? want + rows * vocab : still;
            llama_ref_step(r, ids[row], row, got);
            for (int i = 0; i < vocab; i++)
                worst = fmax(worst, fabs(got[i] - still[i]) / (1 + fabs(still[i])));
        }
    }
    r->shake = 0;
    free(want);
    return worst;
}

/* Every logit at every position, as decode steps see it, dense or sparse, within what the reference itself
 * moves by where that is more than is usual. What stages hand on is f32, on a GPU f16. */
static void check_logits(const family *f, cairn_model *m, llama_ref *r, const char *what) {
    int32_t ids[LENGTH], *top_ids = (int32_t *)malloc(sizeof *top_ids * LENGTH * (size_t)f->vocab);
    float *logits = (float *)malloc(sizeof *logits * LENGTH * (size_t)f->vocab);
    double *want = (double *)malloc(sizeof *want * (size_t)f->vocab), worst = 0, squares = 0, most = 0, nll;
    const bool cuda = m->runtime->config.backend == CAIRN_BACKEND_CUDA;
    cairn_eval_args a;
    int rows = 0;
    random_ids(f, ids, LENGTH);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.ids = ids, a.count = LENGTH, a.top = f->vocab;
    a.top_ids = top_ids, a.top_logits = logits;
    if (!tap_ok(!cairn_eval(m, &a, &nll), "%s: eval runs", what))
        tap_note("%s", cairn_last_error(m->runtime));
    r->closest = r->nearest = INFINITY;
    for (; rows < LENGTH; rows++) {
        llama_ref_step(r, ids[rows], rows, want);
        if (r->closest < (cuda ? 4e-3 : 1e-3)) break; /* two pages too close to call */
        if (r->nearest < (cuda ? 3e-3 : 1e-5)) break; /* or two experts: the noise decides */
        for (int i = 0; i < f->vocab; i++) {
            double w = want[top_ids[rows * f->vocab + i]];
            double off = fabs((double)logits[rows * f->vocab + i] - w) / (1 + fabs(w));
            if (!(off <= worst)) worst = off;
            squares += off * off;
        }
    }
    squares = rows ? sqrt(squares / rows / f->vocab) : 0;
    if (worst > (cuda ? 9e-3 : 5e-3)) most = 3 * moved_by(r, ids, rows, cuda ? 1e-3 : 1e-6);
    tap_ok(worst < fmax(cuda ? 9e-3 : 5e-3, most) && squares < 1.5e-3,
           "%s: all logits of %d tokens within %.1e of the reference (%.1e), deviation %.1e", what, rows,
           worst, most, squares);
    free(top_ids), free(logits), free(want);
}

/* The ids that the reference says after a prompt, up to the first call closer than 0.02. */
static int ref_text(llama_ref *r, const family *f, int32_t *ids, int given, int count) {
    double *logits = (double *)malloc(sizeof *logits * (size_t)f->vocab);
    int at = 0;
    for (; at < count; at++) {
        int best = 0, second = -1;
        llama_ref_step(r, ids[at], at, logits);
        if (at + 1 < given) continue;
        for (int i = 1; i < f->vocab; i++) {
            if (logits[i] > logits[best]) second = best, best = i;
            else if (second < 0 || logits[i] > logits[second]) second = i;
        }
        if (logits[best] - logits[second] < 0.02 || at + 1 == count) break;
        ids[at + 1] = best;
        if (best == 0) { at++; break; } /* the end */
    }
    free(logits);
    return at + 1 < count ? at + 1 : count;
}

/* The same text whatever way a session comes to it. */
static void check_text(const family *f, cairn_config c, llama_ref *r, const char *path,
                       const char *what, int ways) {
    int32_t want[GIVEN + MORE], got[256];
    int count = 0;
    static const int chunks[] = {16, 32, 64, 16, 128};
    random_ids(f, want, GIVEN);
    count = ref_text(r, f, want, GIVEN, GIVEN + MORE);
    for (int way = 0; way < ways; way++) {
        cairn_runtime *rt;
        cairn_session *s, *other = NULL;
        char error[256];
        size_t bytes;
        uint8_t *saved;
        int n, at = 1 + (int)(random_next(&state) % (GIVEN - 1));
        c.prefill_chunk = chunks[way];
        c.drafter = way % 2 ? CAIRN_DRAFTER_NGRAM : CAIRN_DRAFTER_NONE;
        if (cairn_open(&c, &rt, error, sizeof error)) { tap_ok(false, "%s", error); return; }
        s = session_of(load(rt, path));
        if (!s) { tap_ok(false, "%s: no session", what); cairn_close(rt); return; }
        for (int i = 0; i < GIVEN; i += at) /* in parts */
            cairn_append_ids(s, want + i, GIVEN - i < at ? GIVEN - i : at);
        n = go_on(s, MORE, got);
        tap_ok(n >= count && !memcmp(got, want, (size_t)count * sizeof *want),
               "%s: %d tokens after the prompt as the reference's, in parts of %d, chunks of %d%s",
               what, count - GIVEN, at, chunks[way], way % 2 ? ", drafted" : "");
        for (int turn = 0; turn < 4; turn++) { /* from anywhere in it, on again */
            int32_t again[256];
            int to = GIVEN + (int)(random_next(&state) % (uint64_t)(n - GIVEN)), m;
            if (turn == 3) to = 3; /* and from far back: the rest is said again by appending */
            if (turn == 1) {
                cairn_session_fork(s, &other);
            } else if (turn == 2) {
                other = session_of(s->model);
                cairn_session_save_memory(s, NULL, 0, &bytes);
                saved = (uint8_t *)malloc(bytes);
                if (cairn_session_save_memory(s, saved, bytes, &bytes) ||
                    cairn_session_load_memory(other, saved, bytes))
                    tap_note("%s", cairn_last_error(rt));
                free(saved);
            } else {
                other = s;
            }
            cairn_session_rewind(other, to);
            if (turn == 3) cairn_append_ids(other, want + 3, GIVEN - 3);
            if (turn == 3) to = GIVEN;
            m = go_on(other, n - to, again);
            tap_ok(m == n && !memcmp(again, got, (size_t)n * sizeof *got),
                   "%s: %s and on from %d of %d: the same", what,
                   turn == 1 ? "forked, rewound" : turn == 2 ? "saved, loaded, rewound"
                                                             : "rewound", to, n);
            if (other != s) cairn_session_close(other);
        }
        cairn_close(rt);
    }
}

/* What each of the modes of test_family runs. */
static cairn_config mode_config(cairn_backend backend, int mode) {
    cairn_config c = small_config(backend);
    c.threads = mode + 1;
    c.topk = mode == 1 ? 1 : 32;
    c.selection.window = mode == 1 ? 5 : 0, c.selection.sinks = 2;
    if (mode == 2) c.memory.prefix_cache = true;
    return c;
}

static cairn_backend tested = CAIRN_BACKEND_CPU; /* of test_family */

/* ways: in which a text is made, of five. */
static void test_family(family f, const char *name, int ways) {
    llama_ref r = zoo_ref(&f);
    char path[64];
    snprintf(path, sizeof path, "build/families_%s.gguf", name);
    tap_ok(family_write(&f, path), "%s: written, %d tensors", name, f.count);
    for (int mode = 0; mode < 3; mode++) {
        cairn_config c = mode_config(tested, mode);
        cairn_runtime *rt;
        cairn_model *m;
        char what[64], error[256];
        r.dense = mode != 1, r.topk = 1, r.window = 5, r.sinks = 2;
        snprintf(what, sizeof what, "%s%s %s", tested == CAIRN_BACKEND_CUDA ? "cuda " : "", name,
                 mode == 1 ? "sparse" : "dense");
        if (!tap_ok(!cairn_open(&c, &rt, error, sizeof error), "a runtime opens")) return;
        m = load(rt, path);
        if (tap_ok(m != NULL, "%s: loads", what)) check_logits(&f, m, &r, what);
        cairn_close(rt);
        /* a prompt is dense, so the reference's text is the engine's only where all is */
        if (m && mode != 1) check_text(&f, c, &r, path, what, ways);
        if (mode == 1 && is_emulated(tested)) break; /* dense and sparse, and one text */
    }
    zoo_ref_free(&r);
    family_free(&f);
    remove(path);
}

/* Contexts of several pieces (ATTENTION_PIECE), with windows of more than one: steps and prompts on
 * one thread and on some, whose pieces are shared out. */
enum { FAR = 640, FAR_GIVEN = 600 };

static void check_far(const family *f, const char *path, llama_ref *r, const int32_t *ids,
                      const double *want, int threads) {
    cairn_config c = small_config(CAIRN_BACKEND_CPU);
    int32_t *top = (int32_t *)malloc(sizeof *top * (size_t)(FAR * f->vocab)), said[FAR], got[FAR];
    float *logits = (float *)malloc(sizeof *logits * (size_t)(FAR * f->vocab));
    cairn_runtime *rt = NULL;
    cairn_model *m;
    cairn_session *s;
    cairn_eval_args a;
    double worst = 0, nll;
    char error[256];
    int count, n;
    c.threads = threads, c.max_seq_len = 0, c.prefill_chunk = 128;
    if (cairn_open(&c, &rt, error, sizeof error)) { tap_ok(false, "%s", error); return; }
    m = load(rt, path);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.ids = ids, a.count = FAR, a.top = f->vocab;
    a.top_ids = top, a.top_logits = logits;
    if (!m || cairn_eval(m, &a, &nll)) { tap_ok(false, "%s", cairn_last_error(rt)); return; }
    for (int i = 0; i < FAR * f->vocab; i++) {
        double w = want[i / f->vocab * f->vocab + top[i]];
        worst = fmax(worst, fabs((double)logits[i] - w) / (1 + fabs(w)));
    }
    tap_ok(worst < 5e-3, "far, %d threads: all logits of %d tokens within %.1e", threads, FAR, worst);
    memcpy(said, ids, sizeof said);
    count = ref_text(r, f, said, FAR_GIVEN, FAR);
    s = session_of(m);
    cairn_append_ids(s, ids, FAR_GIVEN);
    n = go_on(s, FAR - FAR_GIVEN, got);
    tap_ok(n >= count && !memcmp(got, said, (size_t)count * sizeof *got),
           "far, %d threads: %d tokens after a prompt of %d as the reference's", threads,
           count - FAR_GIVEN, FAR_GIVEN);
    cairn_close(rt);
    free(top), free(logits);
}

static void test_far(void) {
    const char *path = "build/families_far.gguf";
    family f = {.architecture = "gemma3", .layers = 3, .hidden = 32, .heads = 2, .kv_heads = 1,
                .dim = 32, .ffn = 32, .vocab = 60, .context = 704, .head_norms = true,
                .post_norms = true, .halves = true, .gelu = true, .window = 270, .period = 3};
    double *want = (double *)malloc(sizeof *want * (size_t)(FAR * f.vocab));
    int32_t ids[FAR];
    llama_ref r;
    f.embed_scale = sqrt(32);
    zoo_turns(&f, 0, 10000), zoo_turns(&f, 1, 10000);
    zoo_fill(&f, &state);
    family_put(&f, "attention.sliding_window_pattern", 4, 3, NULL);
    family_write(&f, path);
    r = zoo_ref(&f);
    for (int i = 0; i < FAR; i++)
        ids[i] = 1 + (int32_t)(random_next(&state) % (uint64_t)(f.vocab - 1));
    for (int i = 0; i < FAR; i++) llama_ref_step(&r, ids[i], i, want + i * f.vocab);
    for (int threads = 1; threads < 4; threads += 2)
        check_far(&f, path, &r, ids, want, threads);
    zoo_ref_free(&r), family_free(&f), free(want);
    remove(path);
}

/* ---- files that change ----------------------------------------------------------------------- */

typedef struct said { int32_t ids[64]; int count; uint8_t *saved; size_t bytes; } said;

/* A prompt, then twelve ids, in a session of its own; and the session saved. */
static said say(cairn_model *m) {
    static const int32_t prompt[] = {7, 8, 9, 30, 31, 7, 8, 9, 44, 3, 2, 1, 7, 8, 9, 5, 4, 9, 10};
    cairn_session *s = NULL;
    const int32_t *ids;
    said what = {{0}, 0, NULL, 0};
    if (!m || cairn_session_open(m, &s) || cairn_append_ids(s, prompt, 19) ||
        cairn_generate(s, "", 12, NULL, NULL))
        return what;
    ids = cairn_session_ids(s, &what.count);
    memcpy(what.ids, ids, (size_t)what.count * sizeof *ids);
    if (!cairn_session_save_memory(s, NULL, 0, &what.bytes)) {
        what.saved = (uint8_t *)malloc(what.bytes);
        if (cairn_session_save_memory(s, what.saved, what.bytes, &what.bytes)) what.bytes = 0;
    }
    cairn_session_close(s);
    return what;
}

static bool same(const said *a, const said *b) {
    return a->count > 19 && a->count == b->count && a->bytes && a->bytes == b->bytes &&
           !memcmp(a->ids, b->ids, (size_t)a->count * sizeof *a->ids) &&
           !memcmp(a->saved, b->saved, a->bytes);
}

/* Overwrites the file's second half in place, or cuts the file down to 100 bytes. */
static bool spoil(const char *path, bool cut) {
    FILE *file = fopen(path, cut ? "wb" : "r+b");
    long size;
    if (!file) return false;
    if (cut) {
        for (int i = 0; i < 100; i++) fputc('x', file);
    } else {
        fseek(file, 0, SEEK_END);
        size = ftell(file);
        fseek(file, size / 2, SEEK_SET);
        for (long i = size / 2; i < size; i++) fputc((int)(i * 7 % 60), file);
    }
    return fclose(file) == 0;
}

static void test_spoiled(cairn_backend backend) {
    const char *where = backend == CAIRN_BACKEND_CUDA ? "cuda" : "cpu";
    const char *path = "build/families_spoiled.gguf";
    cairn_config c = small_config(backend);
    cairn_runtime *rt = open_runtime_on(&c, "a file that changes");
    family f;
    if (!rt) return;
    f = a_llama();
    for (int cut = 0; cut < 2; cut++) {
        cairn_model *m = NULL;
        said before, after;
        tap_ok(family_write(&f, path) && (m = load(rt, path)) != NULL, "%s: a model loads", where);
        before = say(m); /* the same file, not yet changed */
        cairn_model_free(m);
        m = load(rt, path);
        spoil(path, cut);
        after = say(m);
        tap_ok(same(&before, &after), "%s: a file %s after the load changes neither text nor what "
               "is saved", where, cut ? "cut short" : "overwritten");
        cairn_model_free(m);
        free(before.saved), free(after.saved);
    }
    cairn_close(rt);
    family_free(&f);
    remove(path);
}

/* memory.map = "file" reads in place, and the runtime allocates no copy. */
static size_t most_bytes, live_bytes;
static void *counting_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    (void)user;
    live_bytes += new_bytes - old_bytes;
    if (live_bytes > most_bytes) most_bytes = live_bytes;
    if (new_bytes) return realloc(memory, new_bytes);
    free(memory);
    return NULL;
}

static void test_maps(void) {
    const char *path = "build/families_mapped.gguf";
    size_t bytes[2] = {0, 0}, file = 0;
    said what[2];
    family f = a_llama();
    family_write(&f, path);
    for (int i = 0; i < f.count; i++) file += f.tensors[i].bytes;
    for (int map = 0; map < 2; map++) {
        cairn_config c = small_config(CAIRN_BACKEND_CPU);
        cairn_runtime *rt;
        char error[256];
        c.memory.map = map ? CAIRN_MAP_FILE : CAIRN_MAP_COPY;
        c.allocator.realloc = counting_realloc;
        most_bytes = live_bytes = 0;
        if (!tap_ok(!cairn_open(&c, &rt, error, sizeof error), "a runtime opens")) return;
        what[map] = say(load(rt, path));
        bytes[map] = most_bytes;
        cairn_close(rt);
    }
    tap_ok(same(&what[0], &what[1]), "a copy and the mapped file give the same text");
    tap_ok(bytes[0] > bytes[1] + file && bytes[0] < bytes[1] + file + file / 4,
           "the copy costs the file's size once: %llu bytes more for %llu of weights",
           (unsigned long long)(bytes[0] - bytes[1]), (unsigned long long)file);
    free(what[0].saved), free(what[1].saved);
    family_free(&f);
    remove(path);
}

/* Activations of 8 bits are the CPU's alone; "auto" that finds a GPU says so too. */
static void test_activations(void) {
    static const cairn_backend backends[] = {CAIRN_BACKEND_CUDA, CAIRN_BACKEND_AUTO};
    for (int i = 0; i < 2; i++) {
        cairn_config c = small_config(backends[i]);
        cairn_runtime *rt = NULL;
        char error[1024] = "";
        cairn_status status;
        c.activations = CAIRN_ACTIVATIONS_Q8;
        status = cairn_open(&c, &rt, error, sizeof error);
        if (getenv("CAIRN_SIMT_KERNELS"))
            tap_ok(status == CAIRN_INVALID_CONFIG && !rt && strstr(error, "activations"),
                   "q8 is refused on a GPU: %s", error);
        else tap_skip("no emulated GPU: q8 is refused there");
        if (rt) cairn_close(rt);
    }
}

/* The families that run on the GPU, there; emulated, as family_files has them, whose kernels need
 * no compiler again. */
/* Experts of a prompt of many rows, which a GPU multiplies by its larger blocks, as the reference has them. */
static void test_wide_experts(void) {
    const char *path = "build/families_wide.gguf";
    uint64_t same = 77;
    family f = {.architecture = "qwen3moe", .layers = 2, .hidden = 256, .heads = 2, .kv_heads = 1, .dim = 64,
                .ffn = 64, .vocab = 120, .context = 256, .head_norms = true, .halves = true, .experts = 5, .used = 2};
    static const int types[] = {BLOCK_F16};
    cairn_config c = small_config(tested);
    cairn_runtime *rt;
    cairn_model *m;
    cairn_session *s;
    int32_t want[GIVEN + MORE], got[256];
    char error[256];
    llama_ref r;
    int n = 0, count = 0;
    family_make(&f, types, 1, &same);
    family_write(&f, path);
    r = zoo_ref(&f);
    for (int i = 0; i < GIVEN; i++) want[i] = 1 + (int32_t)(random_next(&same) % (uint64_t)(f.vocab - 1));
    count = ref_text(&r, &f, want, GIVEN, GIVEN + 12);
    c.prefill_chunk = 192;
    if (!cairn_open(&c, &rt, error, sizeof error) && (m = load(rt, path)) && (s = session_of(m))) {
        const step_block *block = &((const forward_cuda_state *)m->state)->prompt_block;
        tap_ok(!cairn_append_ids(s, want, GIVEN) && (n = go_on(s, 12, got)) >= count && count > GIVEN + 3 &&
               !memcmp(got, want, (size_t)count * sizeof *want),
               "cuda, experts by blocks of %d tokens: %d tokens after a prompt as the reference's", block->tokens,
               count - GIVEN);
        tap_ok(!is_emulated(tested) || (block->warps == 8 && block->tokens == 64), "the blocks are the larger ones");
    } else {
        tap_ok(false, "experts on cuda: %s", error);
    }
    cairn_close(rt);
    zoo_ref_free(&r), family_free(&f);
    remove(path);
}

static void test_on_cuda(void) {
    cairn_config c = small_config(CAIRN_BACKEND_CUDA);
    cairn_runtime *rt = open_runtime_on(&c, "families");
    if (!rt) return;
    cairn_close(rt);
    tested = CAIRN_BACKEND_CUDA;
    for (size_t i = 0; i < BASE_COUNT(zoo); i++) {
        static const char *const few[] = {"qwen2", "lfm2", "multi_query"}; /* emulated, a minute each */
        uint64_t same = 1000 + i;
        const bool emulated = is_emulated(tested);
        bool wanted = !emulated;
        for (int k = 0; k < 3; k++)
            wanted = wanted || (!strcmp(zoo[i].name, few[k]) && (turn_of(3) < 0 || turn_of(3) == k));
        if (wanted) test_family(zoo[i].make(&same), zoo[i].name, emulated ? 1 : 2);
    }
    test_wide_experts();
    tested = CAIRN_BACKEND_CPU;
}

int main(void) {
    const int turn = turn_of(2);
    state = random_seed();
    os_make_path("build");
    test_on_cuda();
    test_spoiled(CAIRN_BACKEND_CPU);
    test_spoiled(CAIRN_BACKEND_CUDA);
    test_maps();
    test_activations();
    test_family(a_llama(), "llama", turn == 1 ? 2 : 5);
    test_family(a_mixed_llama(), "mixed", turn == 0 ? 2 : 5);
    for (int i = 0; i < (turn < 0 ? 3 : 1); i++) test_family(a_lfm2(), "lfm2", 5); /* random, so others each time */
    test_far();
    for (size_t i = 0; i < BASE_COUNT(zoo); i++) test_family(zoo[i].make(&state), zoo[i].name, 2);
    return tap_done();
}

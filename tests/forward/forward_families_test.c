/* forward_families: layers with windows on the GPU (or the emulated one) against the CPU backend:
 * where a row's window begins in another run of chunks than that of the row before it, rows give the
 * same bits one by one and together; prompts, however they are cut; pages are counted alike, and by layer
 * and KV head as a walk in double precision (llama_ref.h) reads them. The same of heads of odd sizes in large
 * groups. Where pages are chosen, the walk says which row's choice is too close for two roundings to agree
 * on.
 * emulated: asan */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "gguf_build.h"
#include "random.h"
#include "ref/block_ref.h"
#include "ref/f16_ref.h"
#include "ref/llama_ref.h"
#include "tap.h"
#include "family.h"
#define ZOO_TYPES BLOCK_F16
#include "family_zoo.h"

enum { EACH = 16, TEXT = 208, MOST = 16, WIDE = 128, PLACES = 4 };

typedef struct rig { cairn_runtime *rt; cairn_model *model; forward_rule rule; } rig;

static uint64_t state;
static int32_t text[TEXT];
static int64_t pages_read;
static os_atomic heat[PLACES]; /* of the last forward, by layer and KV head */

static bool open_rig(rig *g, cairn_backend backend, const char *path) {
    cairn_config c;
    char error[1024];
    memset(g, 0, sizeof *g);
    cairn_config_default(&c);
    c.backend = backend, c.log = CAIRN_LOG_OFF, c.threads = 1, c.page_size = EACH;
    c.max_batch = 1, c.prefill_chunk = MOST;
    if (cairn_open(&c, &g->rt, error, sizeof error)) return tap_note("%s", error), false;
    if (cairn_load_model(g->rt, path, &g->model)) {
        tap_ok(false, "load: %s", cairn_last_error(g->rt));
        return cairn_close(g->rt), false;
    }
    for (int i = 0; i < TEXT / EACH; i++)
        tables_row(&g->model->tables, 0)[i] = (i * 5 + 3) % g->model->kv.pool.pages;
    g->model->tables.pages[0] = TEXT / EACH, g->model->tables.taken[0] = true;
    tables_touch(&g->model->tables, 0, 0), tables_touch(&g->model->tables, 0, TEXT / EACH - 1);
    g->rule.select.page_size = EACH, g->rule.select.topk = 2;
    g->rule.select.window = 24, g->rule.select.sinks = 3;
    memset(g->rule.layers, 0xff, sizeof g->rule.layers);
    return true;
}

/* Rows [at, at + rows) of the text, and the logits of the last `wanted`. Bounds are stored anew. */
static bool forward(rig *g, int at, int rows, forward_kind kind, bool sparse, int wanted,
                    float *logits) {
    forward_row r[MOST];
    forward_sequence s;
    forward_batch b;
    cairn_status status;
    memset(&b, 0, sizeof b), memset(&s, 0, sizeof s), memset(r, 0, sizeof r);
    b.tables = &g->model->tables, b.sequences = &s, b.rows = r, b.logits = logits;
    b.sequence_count = 1, b.row_count = s.rows = rows, b.heat = heat;
    memset(heat, 0, sizeof heat);
    s.rule = sparse ? &g->rule : NULL, s.stored = at / EACH;
    for (int i = 0; i < rows; i++) {
        r[i].token = text[at + i], r[i].position = r[i].rope = at + i, r[i].kind = kind;
        r[i].logits = i >= rows - wanted;
    }
    if (device_enter(&g->rt->device)) return false;
    status = g->model->backend->forward(g->model, &g->model->kv, &b);
    device_leave(&g->rt->device);
    pages_read = s.pages_read;
    if (status) tap_note("forward: %s", cairn_last_error(g->rt));
    return !status;
}

static bool prompt(rig *g, int end, int chunk, float *logits) {
    bool fine = true;
    for (int at = 0; at < end && fine; at += chunk) {
        int rows = end - at < chunk ? end - at : chunk;
        fine = forward(g, at, rows, FORWARD_PROMPT, false, at + rows == end, logits);
    }
    return fine;
}

static double distance(const float *a, const float *b, int count) {
    double worst = 0, top = 0;
    for (int i = 0; i < count; i++) {
        top = fmax(top, fabs((double)b[i]));
        worst = a[i] == a[i] ? fmax(worst, fabs((double)a[i] - (double)b[i])) : 1e9;
    }
    return worst / top;
}

/* What the walk reads in each row from `at` on, by layer and KV head, a bit a page, and how near a choice of
 * pages came in the rows up to each. Where two runs part behind a choice too close to call, both are right. */
typedef struct walked { double closest[MOST]; unsigned long long read[MOST][PLACES]; } walked;

static void find_walked(const family *f, const forward_rule *rule, int at, bool sparse, walked *w) {
    double logits[WIDE];
    llama_ref r = zoo_ref(f);
    r.size = EACH, r.topk = rule->select.topk;
    r.window = rule->select.window, r.sinks = rule->select.sinks;
    for (int i = 0; i < at; i++) llama_ref_step(&r, text[i], i, logits);
    r.dense = !sparse, r.closest = INFINITY, r.by_head = rule->select.head;
    for (int i = 0; i < MOST; i++) {
        memset(r.read, 0, sizeof r.read);
        llama_ref_step(&r, text[at + i], at + i, logits);
        w->closest[i] = r.closest;
        for (int p = 0; p < PLACES; p++)
            w->read[i][p] = p < f->layers * f->kv_heads ? r.read[p / f->kv_heads][p % f->kv_heads] : 0;
    }
    zoo_ref_free(&r);
}

/* The rows that agree, up to where two runs part behind a choice too close to call; -1: they part
 * elsewhere. Their greatest distance to *worst. */
static int rows_alike(const float *a, const float *b, int vocab, const double *closest,
                      double *worst) {
    *worst = 0;
    for (int i = 0; i < MOST; i++) {
        const double off = distance(a + i * vocab, b + i * vocab, vocab);
        if (!(off < 2e-2)) return closest[i] < 4e-3 ? i : -1;
        *worst = fmax(*worst, off);
    }
    return MOST;
}

/* Whether a forward of rows [first, end) read what the walk reads in them, and counted nothing else. */
static bool reads_as(const walked *w, int first, int end) {
    int64_t all = 0;
    bool fine = true;
    for (int p = 0; p < PLACES; p++) {
        unsigned long long pages = 0;
        int count = 0;
        for (int i = first; i < end; i++) pages |= w->read[i][p];
        for (; pages; pages &= pages - 1) count++;
        fine = fine && (w->closest[end - 1] < 4e-3 || heat[p] == count);
        all += heat[p];
    }
    return fine && all == pages_read;
}

/* Rows from `at` on, one by one on both, then several together. */
static void test_rows(const char *name, const family *f, rig *gpu, rig *cpu, int at, bool sparse) {
    static float one[MOST * WIDE], other[MOST * WIDE];
    const int vocab = gpu->model->shape.vocab;
    const char *how = sparse ? "sparse" : "dense";
    walked w;
    double worst;
    int64_t off = 0;
    int counted = 0;
    bool fine = true;
    find_walked(f, &cpu->rule, at, sparse, &w);
    for (int i = 0; i < MOST && fine; i++) {
        const bool tied = w.closest[i] < 4e-3; /* from here on each may keep other pages */
        fine = forward(gpu, at + i, 1, FORWARD_STEP, sparse, 1, one + i * vocab);
        off += tied ? 0 : pages_read;
        counted += reads_as(&w, i, i + 1);
        fine = fine && forward(cpu, at + i, 1, FORWARD_STEP, sparse, 1, other + i * vocab);
        off -= tied ? 0 : pages_read;
        counted += reads_as(&w, i, i + 1);
    }
    const int alike = rows_alike(one, other, vocab, w.closest, &worst);
    tap_ok(fine && off == 0 && alike >= 0,
           "cuda, %s %s: %d rows from %d on, one by one: %d are %.1e from the CPU, the same pages",
           name, how, MOST, at, alike, worst);
    tap_ok(counted == 2 * MOST, "cuda, %s %s: read by layer and head as by the walk: %d of %d rows (%.1e)", name,
           how, counted, 2 * MOST, w.closest[MOST - 1]);
    for (int n = 3; n <= MOST; n += 13) {
        fine = forward(gpu, at, n, FORWARD_STEP, sparse, n, other);
        off = pages_read;
        fine = fine && reads_as(&w, 0, n);
        tap_ok(fine && !memcmp(one, other, (size_t)(n * vocab) * sizeof *one),
               "cuda, %s %s: %d together give the same bits, and read as the walk", name, how, n);
        tap_ok(forward(cpu, at, n, FORWARD_STEP, sparse, n, other) && reads_as(&w, 0, n) &&
                   (sparse || off == pages_read),
               "cuda, %s %s: and read %d pages", name, how, (int)off);
    }
}

/* One layer with a window and one without; one format, so that few kernels are compiled. */
static family a_gemma3(uint64_t *seed) {
    static const int types[] = {BLOCK_F16};
    family f = {.architecture = "gemma3", .layers = 2, .hidden = 64, .heads = 2, .kv_heads = 1,
                .dim = 256, .ffn = 64, .vocab = 100, .context = 256, .head_norms = true,
                .post_norms = true, .halves = true, .gelu = true, .window = 21, .period = 2};
    f.embed_scale = 8;
    zoo_turns(&f, 0, 1000000), zoo_turns(&f, 1, 10000);
    family_make(&f, types, 1, seed);
    family_put(&f, "attention.sliding_window_pattern", 4, 2, NULL);
    family_put(&f, "rope.freq_base", 6, 1000000, NULL);
    return f;
}

/* Heads of 48 values, 17 of them to a KV head. */
static family a_llama(uint64_t *seed) {
    static const int types[] = {BLOCK_F16};
    family f = {.architecture = "llama", .layers = 1, .hidden = 64, .heads = 34, .kv_heads = 2,
                .dim = 48, .ffn = 64, .vocab = 100, .context = 256};
    family_make(&f, types, 1, seed);
    return f;
}

/* All 71 heads of a layer at one KV head, as falcon-7b has them: more than a page's scores take at a time. */
static family a_falcon(uint64_t *seed) {
    static const int types[] = {BLOCK_F16};
    family f = {.architecture = "llama", .layers = 1, .hidden = 64, .heads = 71, .kv_heads = 1,
                .dim = 64, .ffn = 64, .vocab = 100, .context = 256};
    family_make(&f, types, 1, seed);
    return f;
}

/* by_head: pages are chosen by the best head of a group, else by their sum. */
static void test_family(family f, const char *name, bool by_head) {
    static float one[WIDE], other[WIDE];
    const char *path = "build/forward_families.gguf";
    rig gpu, cpu;
    for (int i = 0; i < TEXT; i++)
        text[i] = 1 + (int32_t)(random_next(&state) % (uint64_t)(f.vocab - 1));
    if (!tap_ok(family_write(&f, path), "%s is written", name)) return;
    if (!open_rig(&gpu, CAIRN_BACKEND_CUDA, path)) {
        tap_skip("%s on cuda", name);
    } else if (tap_ok(open_rig(&cpu, CAIRN_BACKEND_CPU, path), "the CPU's model")) {
        bool fine;
        gpu.rule.select.head = cpu.rule.select.head = by_head;
        fine = prompt(&gpu, 170, 7, other) && prompt(&gpu, 170, MOST, one);
        tap_ok(fine && !memcmp(one, other, (size_t)f.vocab * sizeof *one),
               "cuda, %s: a prompt in any parts gives the same bits", name);
        fine = prompt(&cpu, 170, MOST, other);
        tap_ok(fine && distance(one, other, f.vocab) < 2e-2, "cuda, %s: %.1e from the CPU", name,
               distance(one, other, f.vocab));
        test_rows(name, &f, &gpu, &cpu, 141, false); /* its runs change at 148 */
        test_rows(name, &f, &gpu, &cpu, 76, true);   /* and at 84 */
        cairn_close(cpu.rt);
        cairn_close(gpu.rt);
    }
    family_free(&f);
    remove(path);
}

int main(void) {
    state = random_seed();
    os_make_path("build");
    test_family(a_gemma3(&state), "gemma3", false);
    test_family(a_llama(&state), "groups of heads of 48", false);
    test_family(a_falcon(&state), "71 heads at one KV head", true);
    return tap_done();
}

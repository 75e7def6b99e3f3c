/* kept: caches of bf16, f32 and e4m3 on the GPU (or the emulated one): every logit of decode steps that
 * choose pages against tests/ref/llama_ref.h, which rounds keys and values as the cache does; what prompts
 * leave in the cache against the CPU's; snapshots from one backend to the other.
 * emulated: asan */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "gguf_build.h"
#include "random.h"
#include "ref/block_ref.h"
#include "ref/f16_ref.h"
#include "ref/llama_ref.h"
#include "tap.h"
#include "backends.h"
#include "family.h"
#define ZOO_TYPES BLOCK_F16
#include "family_zoo.h"

/* The last token of a text is in the cache once something follows it. */
enum { LENGTH = 75, STORED = LENGTH - 1, EACH = 16, MOST_VOCAB = 64 };

static char path[] = "/tmp/kept_XXXXXX";
static const char *const names[] = {"f16", "bf16", "f32", "e4m3"};
static uint64_t state;
static cairn_kv_dtype kept;
static bool two_level, apart;
static int32_t ids[LENGTH];

static int below(int n) { return (int)(random_next(&state) % (uint64_t)n); }

/* A model with what it holds after the text, in a session. */
typedef struct rig { cairn_runtime *rt; cairn_model *model; cairn_session *s; } rig;

static bool open_rig(rig *g, cairn_backend backend) {
    cairn_config c;
    char error[512];
    memset(g, 0, sizeof *g);
    cairn_config_default(&c);
    c.backend = backend, c.log = CAIRN_LOG_OFF, c.threads = 1, c.page_size = EACH, c.max_batch = 2;
    c.prefill_chunk = 16 + 16 * below(4), c.kv_dtype = kept;
    c.topk = 1, c.selection.window = 5, c.selection.sinks = 2, c.drafter = CAIRN_DRAFTER_NONE;
    c.selection.form = two_level ? CAIRN_FORM_TWO_LEVEL : CAIRN_FORM_FLAT;
    c.selection.fused = !apart;
    if (cairn_open(&c, &g->rt, error, sizeof error)) return tap_note("%s", error), false;
    if (cairn_load_model(g->rt, path, &g->model) || cairn_session_open(g->model, &g->s) ||
        cairn_append_ids(g->s, ids, LENGTH) ||
        cairn_generate(g->s, "", 1, NULL, NULL)) /* an append leaves its last rows to what comes next */
        return tap_note("%s", cairn_last_error(g->rt)), false;
    return true;
}

/* On a GPU what stages hand on is f16, so that logits have noise, and now and then a value of e4m3 is the
 * neighbour of the walk's. */
static void check_logits(const rig *g, const family *f) {
    static int32_t top[LENGTH * MOST_VOCAB];
    static float logits[LENGTH * MOST_VOCAB];
    llama_ref r = zoo_ref(f);
    cairn_eval_args a = {.struct_size = sizeof a, .ids = ids, .count = LENGTH, .top = f->vocab,
                         .top_ids = top, .top_logits = logits};
    const double factor = kept == CAIRN_KV_E4M3 ? 8 : kept == CAIRN_KV_BF16 ? 2 : 1;
    double want[MOST_VOCAB], worst = 0, squares = 0, nll;
    int rows = 0;
    const bool fine = !cairn_eval(g->model, &a, &nll);
    r.dense = 0, r.topk = 1, r.window = 5, r.sinks = 2, r.stored = (int)kept;
    r.two_level = two_level, r.apart = apart;
    r.closest = INFINITY;
    for (; rows < LENGTH && fine; rows++) {
        llama_ref_step(&r, ids[rows], rows, want);
        if (r.closest < 1e-3 * factor) break; /* two pages too close to call */
        for (int i = 0; i < f->vocab; i++) {
            const double w = want[top[rows * f->vocab + i]];
            const double off = fabs((double)logits[rows * f->vocab + i] - w) / (1 + fabs(w));
            worst = off <= worst ? worst : off;
            squares += off * off;
        }
    }
    if (!fine) tap_note("%s", cairn_last_error(g->rt));
    squares = rows ? sqrt(squares / rows / f->vocab) : 1;
    tap_ok(fine && worst < 9e-3 * factor && squares < 1.5e-3 * factor,
           "cuda, %s%s%s, heads of %d: all logits of %d tokens within %.1e, deviation %.1e", names[kept],
           two_level ? ", two levels" : "", apart ? ", apart" : "", f->dim, rows, worst, squares);
    zoo_ref_free(&r);
}

/* Keys and values [2, kv_heads, slots of all pages, dim] of a layer, as f32. */
static float *held_by(const rig *g, int layer, int *largest) {
    const kv_cache *kv = &g->model->kv;
    const int pages = (LENGTH + EACH - 1) / EACH, heads = 2 * kv->kv_heads, dim = kv->head_dim;
    const size_t values = (size_t)(heads * EACH * dim), scales = (size_t)(heads * EACH) * 4;
    float *out = (float *)malloc((size_t)pages * values * sizeof *out);
    uint8_t *page = (uint8_t *)malloc(kv->page_bytes + scales);
    const float *scale = (const float *)(const void *)(page + kv->page_bytes);
    for (int c = 0; c < pages && !device_enter(kv->device); c++) {
        const size_t id = (size_t)tables_row(&g->model->tables, g->s->row)[c];
        const uint8_t *from = (const uint8_t *)kv->pages[layer] + id * kv->page_bytes;
        device_download(kv->device, page, from, kv->page_bytes);
        if (kv->type == CAIRN_E4M3)
            device_download(kv->device, page + kv->page_bytes,
                            (const uint8_t *)pages_scales(kv, layer) + id * scales, scales);
        device_leave(kv->device);
        for (size_t i = 0; i < values; i++) {
            const size_t slot = i / (size_t)dim;
            const bool used = c * EACH + (int)(slot % EACH) < STORED;
            float v = 0;
            ops_read_values(simd_for(0), kv->type, page,
                            (int64_t)i, 1, kv->type == CAIRN_E4M3 ? scale[slot] : 1.0f, &v);
            out[(size_t)c * values + i] = used ? v : 0.0f;
            *largest += used && kv->type == CAIRN_E4M3 && (page[i] & 127) == 126;
        }
    }
    free(page);
    return out;
}

/* Of the first layer, which all but the noise of f16 makes alike. */
static void check_held(const rig *gpu, const rig *cpu) {
    const int dim = cpu->model->kv.head_dim, rows = 2 * cpu->model->kv.kv_heads * STORED;
    const int count = (LENGTH + EACH - 1) / EACH * EACH * 2 * cpu->model->kv.kv_heads * dim;
    int large = 0, large_cpu = 0, same = 0;
    float *a = held_by(gpu, 0, &large), *b = held_by(cpu, 0, &large_cpu);
    double worst = 0;
    for (int first = 0; first < count; first += dim) {
        double top = 1e-4;
        for (int d = first; d < first + dim; d++) top = fmax(top, fabs((double)b[d]));
        for (int d = first; d < first + dim; d++) {
            const double off = fabs((double)a[d] - (double)b[d]) / top;
            worst = off <= worst ? worst : off;
            same += off < 3e-3;
        }
    }
    tap_ok(worst < (kept == CAIRN_KV_E4M3 ? 0.08 : kept == CAIRN_KV_BF16 ? 0.01 : 3e-3) &&
               same > count / 20 * 19,
           "cuda, %s: keys and values within %.1e of the CPU's, %d of %d as near as f16", names[kept],
           worst, same, count);
    if (kept == CAIRN_KV_E4M3)
        tap_ok(large >= rows && large_cpu >= rows,
               "cuda, e4m3: the largest of every head is 448 times its scale");
    free(a), free(b);
}

/* Saved here, loaded and saved there: the same bytes, and the same tokens go on. */
static void check_moved(const rig *from, const rig *to, const char *what) {
    size_t bytes = 0, again = 0;
    bool fine = !cairn_session_save_memory(from->s, NULL, 0, &bytes);
    uint8_t *first = (uint8_t *)malloc(bytes + 1), *second = (uint8_t *)malloc(bytes + 1);
    fine = fine && !cairn_session_save_memory(from->s, first, bytes, &bytes) &&
           !cairn_session_load_memory(to->s, first, bytes) &&
           !cairn_session_save_memory(to->s, NULL, 0, &again) && again == bytes &&
           !cairn_session_save_memory(to->s, second, bytes, &again);
    if (!fine) tap_note("%s, %s", cairn_last_error(from->rt), cairn_last_error(to->rt));
    tap_ok(fine && !memcmp(first, second, bytes), "%s: %s keeps all %d bytes of a session", what,
           names[kept], (int)bytes);
    free(first), free(second);
}

static void test_kept(cairn_kv_dtype type) {
    static const int dims[] = {32, 48, 64, 96, 128};
    family f = {.architecture = "llama", .layers = 2, .hidden = 64, .heads = 4, .kv_heads = 2,
                .dim = dims[below(5)], .ffn = 64, .vocab = 60, .context = 128};
    const int form = below(4);
    rig gpu, cpu;
    kept = type, two_level = form == 1, apart = form == 2;
    zoo_fill(&f, &state);
    for (int i = 0; i < LENGTH; i++) ids[i] = 1 + below(f.vocab - 1);
    tap_ok(family_write(&f, path), "a model is written");
    if (!open_rig(&gpu, CAIRN_BACKEND_CUDA)) {
        tap_ok(!gpu.rt, "%s", gpu.rt ? cairn_last_error(gpu.rt) : "there is no GPU");
        tap_skip("caches on cuda");
    } else if (tap_ok(open_rig(&cpu, CAIRN_BACKEND_CPU), "the CPU's model")) {
        check_held(&gpu, &cpu);
        check_logits(&gpu, &f);
        check_moved(&gpu, &cpu, "cuda to cpu");
        check_moved(&cpu, &gpu, "cuda from cpu");
        cairn_close(cpu.rt);
    }
    cairn_close(gpu.rt);
    family_free(&f);
}

int main(void) {
    const int file = mkstemp(path); /* others may test here at the same time */
    state = random_seed();
    if (file < 0) return 1;
    close(file);
    test_kept(CAIRN_KV_E4M3);
    test_kept(below(2) ? CAIRN_KV_BF16 : CAIRN_KV_F32);
    remove(path);
    return tap_done();
}

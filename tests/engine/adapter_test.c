/* adapter: low-rank additions in every form of file, against tests/ref/llama_ref.h on weights with the
 * additions merged into them: every logit, and greedy text. Rows of different adapters in one forward
 * give the bits that they give alone. Prefix cache, forks and snapshots keep adapters apart. All that
 * is refused, by name.
 * emulated: asan */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "gguf_build.h"
#include "random.h"
#include "ref/block_ref.h"
#include "ref/f16_ref.h"
#include "ref/llama_ref.h"
#include "short_memory.h"
#include "tap.h"
#include "backends.h"
#include "family.h"
#define ZOO_TYPES BLOCK_F16
#include "family_zoo.h"
#include "folder.h"
#include "low.h"

enum { LENGTH = 80, ROOM = 160 }; /* more than a block of a prompt's products has */

static uint64_t state;
static char model_path[] = "/tmp/cairn_adapter_XXXXXX", path[80], other_path[80], folder_path[80];

/* ---- files ----------------------------------------------------------------------------------- */

/* Row `row` of the model's q or k stands at this row of transformers'. */
static int halves_row(const family *f, const low_pair *p, int row) {
    const int d = row % f->dim;
    if (f->halves || (!strstr(p->name, "attn_q") && !strstr(p->name, "attn_k"))) return row;
    return row - d + d % 2 * f->dim / 2 + d / 2;
}

static folder_tensor tensor_of(const char *name, int rows, int columns, const double *values) {
    folder_tensor t = {.dtype = "F32", .shape = {rows, columns}, .ndim = 2};
    gguf_build data = {0};
    snprintf(t.name, sizeof t.name, "%s", name);
    put_values(&data, values, rows * columns, false);
    t.data = data.data, t.bytes = data.size;
    return t;
}

/* Those of a ffn of experts: each by a name of its own. */
static int peft_experts(const low *l, const low_pair *p, folder_tensor *out) {
    const int rows = p->of->rows / p->parts, columns = p->of->columns, rank = l->rank;
    int layer = 0;
    char part[40], name[120];
    sscanf(p->name, "blk.%d.ffn_%39[^_]", &layer, part);
    for (int e = 0; e < p->parts; e++) {
        const int length = snprintf(name, sizeof name, "base_model.model.model.layers.%d.mlp."
                                    "experts.%d.%s_proj.lora_A.weight", layer, e, part);
        *out++ = tensor_of(name, rank, columns, p->a + (int64_t)e * rank * columns);
        name[length - 8] = 'B';
        *out++ = tensor_of(name, rows, rank, p->b + (int64_t)e * rows * rank);
    }
    return 2 * p->parts;
}

static int peft_tensors(const family *f, const low *l, folder_tensor *out) {
    int count = 0;
    for (int i = 0; i < l->count; i++) {
        const low_pair *p = &l->pairs[i];
        const int rows = p->of->rows, rank = l->rank;
        double *b = (double *)malloc((size_t)(rows * rank) * sizeof *b);
        char name[96], part[40];
        int layer = 0;
        if (p->parts > 1) {
            count += peft_experts(l, p, out + count);
            free(b);
            continue;
        }
        sscanf(p->name, "blk.%d.%39s", &layer, part);
        for (int r = 0; r < rows; r++)
            memcpy(b + halves_row(f, p, r) * rank, p->b + r * rank, (size_t)rank * sizeof *b);
        snprintf(name, sizeof name, "base_model.model.model.layers.%d.%.40s.lora_A.weight", layer,
                 folder_name(f, part));
        out[count++] = tensor_of(name, rank, p->of->columns, p->a);
        *strstr(name, "lora_A") = '\0';
        snprintf(name + strlen(name), 32, "lora_B.weight");
        out[count++] = tensor_of(name, rows, rank, b);
        free(b);
    }
    return count;
}

static void save_config(double rank, double alpha, const char *more) {
    char text[256];
    snprintf(text, sizeof text, "{\"peft_type\": \"LORA\", \"r\": %g, \"lora_alpha\": %g, "
             "\"bias\": \"none\", \"rank_pattern\": {}%s}", rank, alpha, more);
    folder_save(folder_path, "adapter_config.json", text, strlen(text));
}

/* As PEFT saves it, to folder_path; torch: as a state dict. Without tensors of the name `peft_without`. */
static const char *peft_without;
static void write_peft(const family *f, const low *l, bool torch) {
    static folder_tensor tensors[8 * PAIRS];
    int count = peft_tensors(f, l, tensors), held = 0;
    for (int i = 0; i < count; i++)
        if (peft_without && strstr(tensors[i].name, peft_without)) free(tensors[i].data);
        else tensors[held++] = tensors[i];
    count = held;
    gguf_build file = torch ? folder_torch(tensors, count) : folder_safetensors(tensors, count, true);
    char old[128];
    snprintf(old, sizeof old, "%s/adapter_model.safetensors", folder_path);
    remove(old);
    save_config(l->rank, l->alpha, "");
    folder_save(folder_path, torch ? "adapter_model.bin" : "adapter_model.safetensors", file.data,
                file.size);
    for (int i = 0; i < count; i++) free(tensors[i].data);
    free(file.data);
}

/* Products side by side as one of `parts` times the rank, whose B is zero off the diagonal. */
static int fuse(const low_pair **p, int parts, int rank, const char *name, folder_tensor *out) {
    int rows = 0, columns = p[0]->of->columns, first = 0;
    char full[96];
    for (int i = 0; i < parts; i++) rows += p[i]->of->rows;
    double *a = (double *)calloc((size_t)(parts * rank * columns), sizeof *a);
    double *b = (double *)calloc((size_t)(rows * parts * rank), sizeof *b);
    for (int i = 0; i < parts; first += p[i++]->of->rows) {
        memcpy(a + i * rank * columns, p[i]->a, (size_t)(rank * columns) * sizeof *a);
        for (int r = 0; r < p[i]->of->rows; r++)
            memcpy(b + (first + r) * parts * rank + i * rank, p[i]->b + r * rank,
                   (size_t)rank * sizeof *b);
    }
    snprintf(full, sizeof full, "%s.lora_A", name);
    out[0] = tensor_of(full, parts * rank, columns, a);
    snprintf(full, sizeof full, "%s.lora_B", name);
    out[1] = tensor_of(full, rows, parts * rank, b);
    free(a), free(b);
    return 2;
}

static const low_pair *pair_of(const low *l, int layer, const char *part) {
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", layer, part);
    for (int i = 0; i < l->count; i++)
        if (!strcmp(l->pairs[i].name, name)) return &l->pairs[i];
    return NULL;
}

/* By the names of batch engines: wqkv, wo, w13 and w2, pairs of q and k side by side. */
static void write_fused(const family *f, const low *l) {
    static const char *const parts[] = {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate",
                                        "ffn_up", "ffn_down"};
    static const struct { const char *name; int first, count; } modules[] = {
        {"attention.wqkv", 0, 3}, {"attention.wo", 3, 1}, {"feed_forward.w13", 4, 2},
        {"feed_forward.w2", 6, 1}};
    static folder_tensor tensors[2 * PAIRS];
    int count = 0;
    for (int layer = 0; layer < f->layers; layer++)
        for (size_t m = 0; m < BASE_COUNT(modules); m++) {
            const low_pair *p[3];
            char name[64];
            for (int i = 0; i < modules[m].count; i++)
                p[i] = pair_of(l, layer, parts[modules[m].first + i]);
            snprintf(name, sizeof name, "layers.%d.%s", layer, modules[m].name);
            count += fuse(p, modules[m].count, l->rank, name, tensors + count);
        }
    gguf_build file = folder_safetensors(tensors, count, true);
    save_config(l->rank, l->alpha, "");
    folder_save(folder_path, "adapter_model.safetensors", file.data, file.size);
    for (int i = 0; i < count; i++) free(tensors[i].data);
    free(file.data);
}

/* ---- values ---------------------------------------------------------------------------------- */

static cairn_config small_config(cairn_backend backend) {
    cairn_config c;
    cairn_config_default(&c);
    c.backend = backend, c.log = CAIRN_LOG_OFF, c.threads = 2, c.page_size = 16, c.max_batch = 4;
    c.max_seq_len = ROOM, c.prefill_chunk = 96;
    return c;
}

static void random_ids(const family *f, int32_t *ids, int count) {
    for (int i = 0; i < count; i++)
        ids[i] = 1 + (int32_t)(random_next(&state) % (uint64_t)(f->vocab - 1));
}

/* All logits of a text by the config's adapter, and how many ids of the reference's greedy text after
 * its first half a session says. */
static void check_values(const family *f, cairn_backend backend, const char *model,
                         const char *adapter, const char *what) {
    cairn_config c = small_config(backend);
    snprintf(c.adapter, sizeof c.adapter, "%s", adapter);
    cairn_runtime *rt = open_runtime_on(&c, what);
    cairn_model *m = NULL;
    if (!rt) return;
    if (cairn_load_model(rt, model, &m)) {
        tap_ok(false, "%s: load: %s", what, cairn_last_error(rt));
        cairn_close(rt);
        return;
    }
    const int length = is_emulated(backend) ? 20 : LENGTH, vocab = f->vocab, given = length / 2;
    int32_t ids[LENGTH], *top = (int32_t *)malloc(sizeof *top * (size_t)(length * vocab));
    float *logits = (float *)malloc(sizeof *logits * (size_t)(length * vocab));
    double *want = (double *)malloc(sizeof *want * (size_t)vocab), worst = 0, nll;
    cairn_eval_args a = {.struct_size = sizeof a, .ids = ids, .count = length, .top = vocab,
                         .top_ids = top, .top_logits = logits};
    cairn_session *s = NULL;
    const double near = backend == CAIRN_BACKEND_CUDA ? 3e-3 : 1e-5;
    int same = given, count = 0, best = 0, checked = 0;
    llama_ref r = zoo_ref(f);
    random_ids(f, ids, length);
    if (cairn_eval(m, &a, &nll)) tap_note("%s", cairn_last_error(rt)), worst = 1;
    r.nearest = INFINITY;
    for (int row = 0; row < length; row++) {
        llama_ref_step(&r, ids[row], row, want);
        if (f->experts && r.nearest < near) break; /* two experts so near that the noise decides */
        checked = row + 1;
        for (int i = 0; i < vocab; i++) {
            double w = want[top[row * vocab + i]];
            double off = fabs((double)logits[row * vocab + i] - w) / (1 + fabs(w));
            if (!(off <= worst)) worst = off;
        }
    }
    tap_ok(worst < (backend == CAIRN_BACKEND_CUDA ? 2e-2 : 5e-3), /* whose inputs are f16 */
           "%s: all logits of %d tokens within %.1e of the merged model", what,
           checked, worst);
    r.nearest = INFINITY;
    if (cairn_session_open(m, &s) || cairn_append_ids(s, ids, given) ||
        cairn_generate(s, "", length - given, NULL, NULL))
        tap_note("%s", cairn_last_error(rt));
    const int32_t *said = s ? cairn_session_ids(s, &count) : ids;
    for (int at = 0; at < count; at++) {
        double second = -INFINITY;
        if (at >= given && said[at] != best) break;
        same = at + 1;
        llama_ref_step(&r, said[at], at, want);
        best = 0;
        for (int i = 1; i < vocab; i++)
            if (want[i] > want[best]) second = want[best], best = i;
            else if (want[i] > second) second = want[i];
        if (at >= given - 1 && want[best] - second < 0.02) { same = count; break; }
        if (f->experts && r.nearest < near) { same = count; break; }
    }
    tap_ok(count > given && same == count, "%s: the text is the merged model's (%d ids)", what,
           count - given);
    zoo_ref_free(&r);
    free(top), free(logits), free(want);
    cairn_close(rt);
}

/* Weights of one format, or of several, for which the GPU has kernels of their own. */
static bool on_mixed, on_experts;
static family a_llama(void) {
    if (on_experts) return zoo_qwen3moe(&state);
    static const int mixed[] = {BLOCK_F16, BLOCK_Q4_0, BLOCK_Q8_0};
    family f = zoo_llama(&state);
    f.own_head = true;
    if (on_mixed) f.layers = 3;
    family_make(&f, mixed, on_mixed ? 3 : 1, &state);
    return f;
}

/* All of an open backend; emulated only a part, of one model's kernels. */
/* The estimate of a config that names the adapter at `path` is what loading takes. */
static void test_estimate(cairn_backend backend, const low *l) {
    cairn_config c = small_config(backend);
    cairn_memory_estimate with, without;
    cairn_runtime_info before, after;
    cairn_runtime *rt;
    cairn_model *m;
    char error[1024] = "";
    uint64_t values = 0;
    bool fine;
    for (int i = 0; i < l->count; i++)
        values += (uint64_t)(l->rank * (l->pairs[i].of->rows +
                                        l->pairs[i].parts * l->pairs[i].of->columns)) * 4;
    memset(&with, 0, sizeof with), memset(&without, 0, sizeof without);
    with.struct_size = without.struct_size = sizeof with;
    before.struct_size = after.struct_size = sizeof before;
    fine = !cairn_estimate(&c, model_path, &without, error, sizeof error);
    snprintf(c.adapter, sizeof c.adapter, "%s", path);
    fine = fine && !cairn_estimate(&c, model_path, &with, error, sizeof error);
    if (!tap_ok(fine && !cairn_open(&c, &rt, error, sizeof error), "estimates with an adapter: %s", error))
        return;
    cairn_info(rt, &before);
    fine = !cairn_load_model(rt, model_path, &m);
    cairn_info(rt, &after);
    cairn_close(rt);
    tap_ok(fine && with.live_bytes == after.live_bytes - before.live_bytes &&
           with.peak_bytes == after.peak_bytes - before.live_bytes && with.live_bytes > without.live_bytes,
           "%s: the estimate counts the adapter: %llu bytes live, %llu without, %llu at most",
           backend == CAIRN_BACKEND_CUDA ? "cuda" : "cpu", (unsigned long long)with.live_bytes,
           (unsigned long long)without.live_bytes,
           (unsigned long long)with.peak_bytes);
    tap_ok(with.host_bytes - without.host_bytes >= values &&
           with.host_bytes - without.host_bytes < values + values / 2 + 4096,
           "and %llu bytes of the host for %llu of values",
           (unsigned long long)(with.host_bytes - without.host_bytes), (unsigned long long)values);
}

static void test_forms(cairn_backend backend) {
    const bool few = is_emulated(backend);
    family f = a_llama();
    family_write(&f, model_path);
    low l = make_low(&f, 19, 6, true, &state);
    gguf_build file = gguf_low(&l, "llama", true);
    save(path, &file);
    free(file.data);
    if (!on_mixed) test_estimate(backend, &l);
    merge(&l, 1);
    check_values(&f, backend, model_path, path, on_mixed ? "GGUF, mixed weights" : "GGUF, f16");
    if (!few) {
        write_fused(&f, &l);
        check_values(&f, backend, model_path, folder_path, "fused names");
        write_peft(&f, &l, false);
        check_values(&f, backend, model_path, folder_path, "PEFT, safetensors");
        write_peft(&f, &l, true);
        check_values(&f, backend, model_path, folder_path, "PEFT, state dict");
    }
    if (!few && !on_mixed) {
        folder_write(&f, other_path, 1);
        check_values(&f, backend, other_path, folder_path, "PEFT on a folder's model");
        check_values(&f, backend, other_path, path, "GGUF on a folder's model");
    }
    free_low(&l), family_free(&f);
}

/* Families whose layers have more: norms behind the products, biases, one tensor for q, k and v. */
static void test_families(cairn_backend backend) {
    const char *names[] = {"gemma3", "qwen2", "phi3", "lfm2", "qwen3moe"};
    for (size_t i = 0; i < BASE_COUNT(zoo); i++) {
        family f = zoo[i].make(&state);
        for (size_t n = 0; n < BASE_COUNT(names); n++) {
            if (strcmp(f.architecture, names[n])) continue;
            names[n] = ""; /* one of each */
            low l = make_low(&f, 3, 0, false, &state);
            gguf_build file = gguf_low(&l, f.architecture, false);
            save(path, &file);
            free(file.data);
            family_write(&f, model_path);
            merge(&l, 1);
            check_values(&f, backend, model_path, path, f.architecture);
            free_low(&l);
        }
        family_free(&f);
    }
}

/* ---- together -------------------------------------------------------------------------------- */

typedef struct rig {
    family f;
    cairn_runtime *rt;
    cairn_model *m;
    cairn_adapter *adapters[3]; /* none, then two */
    int32_t ids[LENGTH];
} rig;

static bool open_rig(rig *g, cairn_backend backend, bool prefixes, int drafts) {
    cairn_config c = small_config(backend);
    c.memory.prefix_cache = prefixes, c.draft_length = drafts;
    memset(g, 0, sizeof *g);
    if (!(g->rt = open_runtime_on(&c, "together"))) return false;
    g->f = a_llama();
    family_write(&g->f, model_path);
    random_ids(&g->f, g->ids, LENGTH);
    bool fine = !cairn_load_model(g->rt, model_path, &g->m);
    for (int i = 1; i < 3 && fine; i++) {
        low l = make_low(&g->f, i == 1 ? 5 : 22, 4, i == 1, &state); /* no multiples of what kernels take at a time */
        gguf_build file = gguf_low(&l, g->f.architecture, true);
        save(path, &file);
        fine = !cairn_adapter_load(g->m, path, &g->adapters[i]);
        free(file.data), free_low(&l);
    }
    return tap_ok(fine, "two adapters of one model: %s", fine ? "" : cairn_last_error(g->rt));
}

static void close_rig(rig *g) {
    family_free(&g->f);
    cairn_close(g->rt);
}

/* One forward of sequences with these adapters: rows [from, from + rows) of the ids, logits of all. */
static bool forward(rig *g, const int *which, int count, int from, int rows, forward_kind kind,
                    float *logits) {
    forward_row r[4 * LENGTH];
    forward_sequence s[4];
    forward_batch b;
    memset(&b, 0, sizeof b), memset(s, 0, sizeof s), memset(r, 0, sizeof r);
    b.tables = &g->m->tables, b.sequences = s, b.rows = r, b.logits = logits;
    b.sequence_count = count, b.row_count = count * rows;
    for (int i = 0; i < count; i++) {
        s[i].table = which[i], s[i].first = i * rows, s[i].rows = rows;
        for (int at = 0; at < rows; at++) {
            forward_row *row = &r[i * rows + at];
            row->token = g->ids[from + at], row->position = row->rope = from + at;
            row->kind = kind, row->logits = true, row->adapter = g->adapters[which[i]];
        }
    }
    if (device_enter(&g->rt->device)) return false;
    cairn_status status = g->m->backend->forward(g->m, &g->m->kv, &b);
    device_leave(&g->rt->device);
    if (status) tap_note("forward: %s", cairn_last_error(g->rt));
    return !status;
}

/* Pages of three rows of the tables, apart from each other. */
static void lay_tables(rig *g) {
    for (int row = 0; row < 3; row++) {
        for (int i = 0; i < 3; i++) tables_row(&g->m->tables, row)[i] = row * 3 + i;
        g->m->tables.pages[row] = 3, g->m->tables.taken[row] = true;
        tables_touch(&g->m->tables, row, 0), tables_touch(&g->m->tables, row, 2);
    }
}

/* Rows of two adapters and of none in two bands, once their kernels are there: the bits of windows of eight. */
static void test_bands(rig *g, int given) {
    enum { MANY = 9 };
    const int all[] = {0, 1, 2};
    forward_cuda_state *s = (forward_cuda_state *)g->m->state;
    const size_t bytes = sizeof(float) * 3 * MANY * (size_t)g->f.vocab;
    float *windows = (float *)malloc(bytes), *bands = (float *)malloc(bytes);
    bool fine = forward(g, all, 3, given, MANY, FORWARD_STEP, windows) && !s->banded;
    s->bands_from = 0;
    for (int i = 0; i < 1200 && !cuda_has_bands(s, true, false) && s->bands_state[1] == STEP_FLOW_WAITS; i++)
        os_sleep_us(100000);
    fine = fine && forward(g, all, 3, given, MANY, FORWARD_STEP, bands) && s->banded;
    tap_ok(fine && !memcmp(windows, bands, bytes), "steps of %d rows in bands, too", 3 * MANY);
    free(windows), free(bands);
}

static void test_rows(cairn_backend backend) {
    enum { GIVEN = 13, STEPS = 3 };
    const int all[] = {0, 1, 2};
    rig g;
    if (!open_rig(&g, backend, false, 0)) return;
    const int vocab = g.f.vocab;
    const size_t prompt = (size_t)(GIVEN * vocab), steps = (size_t)(STEPS * vocab);
    float *alone = (float *)malloc(sizeof *alone * 3 * (prompt + steps));
    float *both = (float *)malloc(sizeof *both * 3 * (prompt + steps));
    bool fine = true, differ = false;
    lay_tables(&g);
    for (int i = 0; i < 3 && fine; i++)
        fine = forward(&g, &all[i], 1, 0, GIVEN, FORWARD_PROMPT, alone + (size_t)i * prompt) &&
               forward(&g, &all[i], 1, GIVEN, STEPS, FORWARD_STEP,
                       alone + 3 * prompt + (size_t)i * steps);
    fine = fine && forward(&g, all, 3, 0, GIVEN, FORWARD_PROMPT, both) &&
           forward(&g, all, 3, GIVEN, STEPS, FORWARD_STEP, both + 3 * prompt);
    tap_ok(fine && !memcmp(alone, both, 3 * prompt * sizeof *alone),
           "prompts of no adapter and of two in one forward: the bits of each alone");
    tap_ok(fine && !memcmp(alone + 3 * prompt, both + 3 * prompt, 3 * steps * sizeof *alone),
           "steps, too");
    for (int i = 1; i < 3; i++)
        differ = memcmp(alone, alone + (size_t)i * prompt, prompt * sizeof *alone) != 0;
    tap_ok(differ, "which are not those of the model without it");
    if (backend == CAIRN_BACKEND_CUDA && cuda_spreads((forward_cuda_state *)g.m->state)) test_bands(&g, GIVEN);
    free(alone), free(both);
    for (int row = 0; row < 3; row++) g.m->tables.pages[row] = 0, g.m->tables.taken[row] = false;
    close_rig(&g);
}

/* A ffn of experts: all of its products, by llama.cpp's tensors of three dimensions and by PEFT's names. */
static void test_experts(cairn_backend backend) {
    family f = zoo_qwen3moe(&state);
    low l = make_low(&f, 5, 7, true, &state);
    gguf_build file = gguf_low(&l, f.architecture, true);
    family_write(&f, model_path);
    save(path, &file);
    free(file.data);
    test_estimate(backend, &l);
    merge(&l, 1);
    check_values(&f, backend, model_path, path, "experts, GGUF");
    if (!is_emulated(backend)) {
        write_peft(&f, &l, false);
        check_values(&f, backend, model_path, folder_path, "experts, PEFT");
    }
    free_low(&l), family_free(&f);
    on_experts = true;
    test_rows(backend);
    on_experts = false;
}

/* ---- sessions -------------------------------------------------------------------------------- */

/* A session by adapter i that has said `count` ids after `given` of the rig's; its ids to out. */
static cairn_session *speaker(rig *g, int i, int given, int count, int32_t *out) {
    cairn_session *s = NULL;
    int held = 0;
    if (cairn_session_open(g->m, &s) || cairn_session_adapt(s, g->adapters[i]) ||
        cairn_append_ids(s, g->ids, given) || cairn_generate(s, "", count, NULL, NULL))
        tap_note("%s", cairn_last_error(g->rt));
    const int32_t *ids = cairn_session_ids(s, &held);
    for (int k = 0; k < given + count; k++) out[k] = k < held ? ids[k] : -1;
    return s;
}

static bool says(cairn_session *s, int count, const int32_t *want) {
    int held = 0;
    if (cairn_generate(s, "", count, NULL, NULL)) tap_note("%s", engine_base(s)->error);
    const int32_t *ids = cairn_session_ids(s, &held);
    for (int i = 0; i < held && want[i] >= 0; i++) /* up to an end token */
        if (ids[i] != want[i]) return false;
    return true;
}

static void test_prefixes(rig *g, int32_t (*want)[ROOM]) {
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 3; i++) {
            int32_t got[ROOM];
            cairn_stats stats = {.struct_size = sizeof stats};
            cairn_session *s = speaker(g, i, LENGTH - 5, 12, got);
            cairn_session_stats(s, &stats);
            tap_ok(!memcmp(got, want[i], (LENGTH + 7) * sizeof *got) &&
                       stats.reused_tokens == (round ? (LENGTH - 5) / 16 * 16 : 0),
                   "adapter %d, round %d: the same text, %d tokens from the prefix cache", i, round,
                   (int)stats.reused_tokens);
            cairn_session_close(s);
        }
}

static void test_sessions(cairn_backend backend) {
    static int32_t want[3][ROOM], more[3][ROOM], got[ROOM];
    cairn_session *s, *fork = NULL, *other = NULL;
    static uint8_t saved[1 << 20];
    size_t bytes = 0;
    rig g;
    if (!open_rig(&g, backend, true, 4)) return;
    for (int i = 0; i < 3; i++) {
        s = speaker(&g, i, LENGTH - 5, 40, more[i]);
        cairn_session_close(s);
        memcpy(want[i], more[i], sizeof want[i]);
    }
    prefix_evict(&g.m->prefixes, 1 << 20);
    tap_ok(memcmp(want[0], want[1], sizeof want[0]) && memcmp(want[1], want[2], sizeof want[1]),
           "three voices");
    test_prefixes(&g, want);
    s = speaker(&g, 1, LENGTH - 5, 12, got);
    tap_ok(!cairn_session_fork(s, &fork) && says(fork, 20, more[1]), "a fork goes on by the adapter");
    tap_ok(cairn_adapter_free(g.adapters[1]) == CAIRN_BUSY, "an adapter in use stays: %s",
           cairn_last_error(g.rt));
    tap_ok(!cairn_session_save_memory(s, saved, sizeof saved, &bytes) &&
               !cairn_session_open(g.m, &other) &&
               cairn_session_load_memory(other, saved, bytes) == CAIRN_UNSUPPORTED &&
               strstr(cairn_last_error(g.rt), "another adapter"),
           "a snapshot is not another adapter's: %s", cairn_last_error(g.rt));
    tap_ok(!cairn_session_adapt(other, g.adapters[1]) &&
               !cairn_session_load_memory(other, saved, bytes) && says(other, 20, more[1]),
           "and goes on by its own");
    tap_ok(!cairn_session_reset(s) && !cairn_append_ids(s, g.ids, LENGTH - 5) &&
               !cairn_session_adapt(s, g.adapters[2]) && says(s, 40, more[2]) &&
               !cairn_session_rewind(s, LENGTH - 5) && !cairn_session_adapt(s, NULL) &&
               says(s, 40, more[0]),
           "what a session holds goes on by another, and by none");
    cairn_session_adapt(fork, NULL), cairn_session_adapt(other, NULL);
    tap_ok(!cairn_adapter_free(g.adapters[1]) && !cairn_adapter_free(NULL) && g.m->adapters &&
               !g.m->adapters->next, "an adapter that none runs by goes");
    s = speaker(&g, 2, LENGTH - 5, 40, got);
    tap_ok(!memcmp(got, more[2], sizeof got), "the other one stays");
    close_rig(&g);
}

/* Three requests at once say what each says alone. */
static void test_requests(cairn_backend backend) {
    static int32_t want[3][ROOM];
    cairn_session *s[3];
    cairn_generate_options o = {.struct_size = sizeof o, .max_tokens = 12};
    int32_t pending = 1;
    bool fine = true;
    rig g;
    if (!open_rig(&g, backend, false, 4)) return;
    for (int i = 0; i < 3; i++) cairn_session_close(speaker(&g, i, 10 + i, 12, want[i]));
    for (int i = 0; i < 3; i++)
        fine = !cairn_session_open(g.m, &s[i]) && !cairn_session_adapt(s[i], g.adapters[i]) &&
               !cairn_append_ids(s[i], g.ids, 10 + i) &&
               !cairn_generate_submit(s[i], NULL, &o) && fine;
    while (fine && pending) fine = !cairn_step(g.m, 100000, &pending);
    for (int i = 0; i < 3; i++) {
        int count = 0;
        const int32_t *ids = cairn_session_ids(s[i], &count);
        fine = fine && !memcmp(ids, want[i], (size_t)count * sizeof *ids);
    }
    tap_ok(fine, "requests of three voices, step by step");
    close_rig(&g);
}

/* ---- bad files ------------------------------------------------------------------------------- */

static void refused(rig *g, const char *file, cairn_status status, const char *part, const char *what) {
    cairn_adapter *a = g->adapters[1];
    const cairn_status got = cairn_adapter_load(g->m, file, &a);
    tap_ok(got == status && !a && strstr(cairn_last_error(g->rt), part), "%s: %s", what,
           cairn_last_error(g->rt));
}

/* The good file with one text in the place of another of its length. */
static void with_text(rig *g, const gguf_build *good, const char *from, const char *to,
                      cairn_status status, const char *part) {
    gguf_build bad = {0};
    build_bytes(&bad, good->data, good->size);
    for (size_t i = 0; i + strlen(from) < bad.size; i++)
        if (!memcmp(bad.data + i, from, strlen(from))) {
            memcpy(bad.data + i, to, strlen(to));
            break;
        }
    save(path, &bad);
    free(bad.data);
    refused(g, path, status, part, to);
}

/* With a key more, of 64 bytes. */
static void test_invocation(rig *g, const gguf_build *good) {
    gguf_build bad = {0};
    build_bytes(&bad, good->data, 24);
    bad.data[16]++;
    build_key_string(&bad, "adapter.alora.invocation_tokens", "of 13 bytes..");
    build_bytes(&bad, good->data + 24, good->size - 24);
    save(path, &bad);
    free(bad.data);
    refused(g, path, CAIRN_UNSUPPORTED, "it begins at a text of its own", "alora");
}

/* A scale or a value that is no finite number: those of 64 bytes at the end are the last tensor's. */
static void test_numbers(rig *g, const gguf_build *good) {
    static const char key[] = "adapter.lora.alpha";
    static const uint8_t no_number[4] = {0, 0, 0xC0, 0x7F}, endless[4] = {0, 0, 0x80, 0xFF};
    for (int i = 0; i < 4; i++) {
        gguf_build bad = {0};
        size_t at = 0;
        build_bytes(&bad, good->data, good->size);
        while (memcmp(bad.data + at, key, sizeof key - 1)) at++;
        if (i < 2) memcpy(bad.data + at + sizeof key - 1 + 4, i ? endless : no_number, 4);
        else for (size_t j = bad.size - 64; j < bad.size; j += 4)
            memcpy(bad.data + j, i == 2 ? endless : no_number, 4);
        save(path, &bad);
        free(bad.data);
        refused(g, path, CAIRN_BAD_FILE, i < 2 ? key : "no finite number", "no number");
    }
}

static void test_shapes(rig *g) {
    const int layers = on_mixed ? 3 : 2; /* of a_llama */
    family wide = zoo_llama(&state);
    wide.hidden = 64;
    zoo_fill(&wide, &state);
    low l = make_low(&wide, 4, 0, true, &state);
    gguf_build file = gguf_low(&l, "llama", true);
    save(path, &file);
    free(file.data), free_low(&l), family_free(&wide);
    refused(g, path, CAIRN_UNSUPPORTED, "[rank, 128]", "another hidden size");
    wide = zoo_llama(&state);
    wide.layers = layers + 1;
    zoo_fill(&wide, &state);
    l = make_low(&wide, 4, 0, true, &state);
    file = gguf_low(&l, "llama", true);
    save(path, &file);
    free(file.data), free_low(&l), family_free(&wide);
    refused(g, path, CAIRN_UNSUPPORTED, on_mixed ? "blk.3." : "blk.2.", "a layer more");
}

/* Cut anywhere, and with bits turned: a status and no more. */
static void test_damage(rig *g, const char *file) {
    base_text text = {NULL, 0, 0};
    char cut[96];
    int wrong = 0;
    snprintf(cut, sizeof cut, "%s", file);
    if (os_read_file(&g->rt->base, file, &text)) return;
    for (int i = 0; i < 60; i++) {
        const bool flip = i >= 40;
        const size_t at = (size_t)(random_next(&state) % (flip && text.size > 1500 ? 1500 : text.size));
        gguf_build bad = {0};
        cairn_adapter *a;
        build_bytes(&bad, text.data, flip ? text.size : at);
        if (flip) bad.data[at] ^= (uint8_t)(1u << random_next(&state) % 8);
        save(cut, &bad);
        free(bad.data);
        if (!cairn_adapter_load(g->m, cut, &a)) wrong += !flip, cairn_adapter_free(a);
    }
    gguf_build good = {(uint8_t *)text.data, text.size, text.size, 0};
    save(cut, &good);
    tap_ok(!wrong, "%s: cut short it is refused", strrchr(file, '/'));
    base_text_free(&g->rt->base, &text);
}

/* Pairs of matrices of zeros by these names, to folder_path. */
typedef struct bad_tensor { const char *name; int rows, columns; } bad_tensor;
static void refused_tensors(rig *g, const bad_tensor *bad, int count, const char *config,
                            cairn_status status, const char *part) {
    static const double zeros[1 << 16] = {0};
    static folder_tensor tensors[32];
    char old[128];
    for (int i = 0; i < count; i++) {
        tensors[i] = tensor_of(bad[i].name, bad[i].rows ? bad[i].rows : 1, bad[i].columns, zeros);
        if (!bad[i].rows) tensors[i].shape[0] = bad[i].columns, tensors[i].ndim = 1;
    }
    gguf_build file = folder_safetensors(tensors, count, true);
    snprintf(old, sizeof old, "%s/adapter_model.bin", folder_path);
    remove(old);
    save_config(4, 8, config);
    folder_save(folder_path, "adapter_model.safetensors", file.data, file.size);
    refused(g, folder_path, status, part, bad[0].name);
    for (int i = 0; i < count; i++) free(tensors[i].data);
    free(file.data);
}

/* One pair, whose A has 4 rows, and two more where they are for the same product. */
static void test_bad_tensors(rig *g) {
    const int hidden = g->f.hidden;
    const bad_tensor flat[] = {{"layers.0.mlp.up_proj.lora_A", 0, hidden}};
    const bad_tensor expert[] = {{"layers.0.mlp.experts.0.up_proj.lora_A", 4, hidden}};
    const bad_tensor tall[] = {{"layers.0.mlp.up_proj.lora_A", 4, hidden},
                               {"layers.0.mlp.up_proj.lora_B", g->f.ffn + 1, 4}};
    const bad_tensor twice[] = {{"layers.0.self_attn.qkv_proj.lora_A", 4, hidden},
                                {"layers.0.self_attn.qkv_proj.lora_B", 8, 4},
                                {"layers.0.self_attn.k_proj.lora_A", 4, hidden},
                                {"layers.0.self_attn.k_proj.lora_B", 8, 4}};
    const bad_tensor gated[] = {{"mask_embedding", 0, hidden}, {"sampler.0.norm", 0, hidden}};
    const bad_tensor all[] = {{"mask_embedding", 0, hidden}, {"sampler.0.weight", hidden, 2 * hidden},
                              {"sampler.0.norm", 0, hidden}, {"sampler.1.weight", hidden, hidden},
                              {"sampler.1.norm", 0, hidden}};
    refused_tensors(g, flat, 1, "", CAIRN_UNSUPPORTED, "a matrix of ");
    refused_tensors(g, expert, 1, "", CAIRN_UNSUPPORTED, "the model's layer has no such product");
    refused_tensors(g, tall, 2, "", CAIRN_UNSUPPORTED, "and [");
    refused_tensors(g, twice, 4, "", CAIRN_BAD_FILE, "another tensor is for the same product");
    refused_tensors(g, gated, 2, "", CAIRN_BAD_FILE, "has mask_embedding and sampler.0.weight, or neither");
    refused_tensors(g, all, 5, ", \"draft_length\": 1.5", CAIRN_BAD_FILE, "draft_length: a count");
    refused_tensors(g, all, 5, ", \"draft_length\": -1", CAIRN_BAD_FILE, "draft_length: a count");
    refused_tensors(g, all, 5, ", \"mask_token_id\": -1", CAIRN_UNSUPPORTED, "mask_token_id = -1;");
}

/* Of experts: ranks that differ within a layer, and a product that its layers have not. */
static void test_bad_ranks(rig *g) {
    const int hidden = g->f.hidden;
    const bad_tensor whole[] = {{"layers.0.mlp.up_proj.lora_A", 4, hidden},
                                {"layers.0.mlp.up_proj.lora_B", g->f.ffn, 4}};
    bad_tensor ranks[32];
    char names[32][64];
    for (int i = 0; i < 2 * g->f.experts; i++) {
        const int rank = i / 2 == 3 ? 8 : 4;
        const bad_tensor t = {names[i], i % 2 ? g->f.ffn : rank, i % 2 ? rank : hidden};
        snprintf(names[i], sizeof names[i], "layers.0.mlp.experts.%d.up_proj.lora_%c", i / 2, i % 2 ? 'B' : 'A');
        ranks[i] = t;
    }
    refused_tensors(g, ranks, 2 * g->f.experts, "", CAIRN_UNSUPPORTED, "not that of the layer's other experts");
    refused_tensors(g, whole, 2, "", CAIRN_UNSUPPORTED, "the model's layer has no such product");
}

static void refused_config(rig *g, const char *text, const char *part) {
    folder_save(folder_path, "adapter_config.json", text, strlen(text));
    refused(g, folder_path, CAIRN_UNSUPPORTED, part, text);
}

/* Each allocation of a load fails once: a status, and nothing is left but what was there. */
static void test_short_memory(const family *f, const low *l) {
    cairn_config c = small_config(CAIRN_BACKEND_CPU);
    cairn_runtime *rt;
    cairn_model *m = NULL;
    cairn_adapter *a = NULL;
    char error[256], longer[80]; /* with a file's name more than a text has room for at first */
    snprintf(longer, sizeof longer, "%s", folder_path);
    while (strlen(longer) < 50) strcat(longer, "/.");
    c.allocator.realloc = test_realloc, c.threads = 1;
    if (cairn_open(&c, &rt, error, sizeof error) || cairn_load_model(rt, model_path, &m)) {
        tap_ok(false, "a model where memory is counted");
        return;
    }
    for (int torch = 1; torch >= 0; torch--) {
        long tries = 0, before;
        bool told = true;
        write_peft(f, l, torch);
        for (cairn_status status = CAIRN_OUT_OF_MEMORY; status && told; tries++) {
            before = live_blocks, allocations_left = tries;
            status = cairn_adapter_load(m, longer, &a);
            allocations_left = -1;
            told = !status || (status == CAIRN_OUT_OF_MEMORY && live_blocks == before && !a);
        }
        tap_ok(told && tries > 9 && a, "memory runs out at each of %ld allocations of an adapter, form %d",
               tries, torch);
    }
    cairn_close(rt);
    tap_ok(live_blocks == 0, "nothing is left allocated");
}

/* Landmarks for a model whose layers of convolutions have no pages. */
static void test_no_pages(void) {
    cairn_config c = small_config(CAIRN_BACKEND_CPU);
    rig g;
    memset(&g, 0, sizeof g);
    if (!(g.rt = open_runtime_on(&c, "convolutions"))) return;
    g.f = zoo_lfm2(&state);
    if (tap_ok(family_write(&g.f, path) && !cairn_load_model(g.rt, path, &g.m), "a model of convolutions")) {
        const bad_tensor landmark[] = {{"landmark_embedding", 0, g.f.hidden}};
        refused_tensors(&g, landmark, 1, "", CAIRN_UNSUPPORTED, "have no keys and values in pages");
    }
    close_rig(&g);
}

static void test_bad(void) {
    rig g;
    char inside[128];
    cairn_adapter *a = NULL;
    cairn_config c = small_config(CAIRN_BACKEND_CPU);
    if (!open_rig(&g, CAIRN_BACKEND_CPU, false, 0)) return;
    low l = make_low(&g.f, 4, 8, true, &state);
    gguf_build good = gguf_low(&l, "llama", false), older = {0};
    with_text(&g, &good, "blk.1.attn_k.weight.lora_b", "blk.1.attn_x.weight.lora_b",
              CAIRN_UNSUPPORTED, "blk.1.attn_x.weight.lora_b");
    with_text(&g, &good, "blk.1.attn_k.weight.lora_b", "blk.1.attn_k.weight.lora_c",
              CAIRN_UNSUPPORTED, "blk.1.attn_k.weight.lora_c");
    with_text(&g, &good, "blk.1.attn_k.weight.lora_b", "blk.7.attn_k.weight.lora_b",
              CAIRN_UNSUPPORTED, "blk.7.attn_k");
    with_text(&g, &good, "blk.1.attn_k.weight.lora_b", "blk.1.attn_v.weight.lora_b",
              CAIRN_BAD_FILE, "blk.1.attn_v");
    with_text(&g, &good, "adapter.type", "adapter.tipe", CAIRN_UNSUPPORTED, "adapter.type");
    with_text(&g, &good, "llama", "qwenx", CAIRN_UNSUPPORTED, "'llama'");
    test_invocation(&g, &good);
    test_numbers(&g, &good);
    test_shapes(&g);
    test_bad_tensors(&g);
    save(path, &good);
    test_damage(&g, path);
    write_peft(&g.f, &l, true);
    snprintf(inside, sizeof inside, "%s/adapter_model.bin", folder_path);
    test_damage(&g, inside);
    write_peft(&g.f, &l, false);
    snprintf(inside, sizeof inside, "%s/adapter_model.safetensors", folder_path);
    test_damage(&g, inside);
    test_short_memory(&g.f, &l);
    refused_config(&g, "{\"peft_type\": \"IA3\", \"r\": 4, \"lora_alpha\": 8}", "peft_type 'LORA'");
    refused_config(&g, "{\"r\": 4, \"lora_alpha\": 8, \"bias\": \"all\"}", "bias 'none'");
    refused_config(&g, "{\"r\": 4, \"lora_alpha\": 8, \"rank_pattern\": {\"x\": 2}}", "'rank_pattern'");
    refused_config(&g, "{\"r\": 4, \"lora_alpha\": 8, \"alora_invocation_tokens\": [5, 6]}", "'alora_inv");
    refused_config(&g, "{\"r\": 4, \"lora_alpha\": 8, \"layer_replication\": [[0, 1]]}", "'layer_repl");
    refused_config(&g, "{\"r\": 4, \"lora_alpha\": 8, \"init_lora_weights\": \"pissa_niter_4\"}", "'init_lora_w");
    save_config(4, 8, ", \"use_dora\": false, \"rank_pattern\": {}, \"layer_replication\": null, "
                "\"init_lora_weights\": \"eva\"");
    tap_ok(!cairn_adapter_load(g.m, folder_path, &a) && !cairn_adapter_free(a), "what changes nothing: %s",
           cairn_last_error(g.rt));
    save_config(4, 8, ", \"use_dora\": true");
    refused(&g, folder_path, CAIRN_UNSUPPORTED, "use_dora", "DoRA");
    save_config(3, 8, "");
    refused(&g, folder_path, CAIRN_UNSUPPORTED, "rank", "another rank");
    save_config(4, -1, "");
    refused(&g, folder_path, CAIRN_BAD_FILE, "lora_alpha", "no alpha");
    snprintf(inside, sizeof inside, "%s/adapter_config.json", folder_path);
    remove(inside);
    refused(&g, folder_path, CAIRN_FILE_NOT_FOUND, "adapter_config.json", "no config");
    snprintf(inside, sizeof inside, "%s/adapter_model.bin", folder_path);
    remove(inside);
    snprintf(inside, sizeof inside, "%s/adapter_model.safetensors", folder_path);
    remove(inside);
    refused(&g, folder_path, CAIRN_FILE_NOT_FOUND, "neither adapter_model.safetensors", "no weights");
    build_bytes(&older, "\200\2\212\n and so on", 14);
    save(path, &older), free(older.data);
    refused(&g, path, CAIRN_BAD_FILE, "PyTorch 1.6", "PyTorch's older form");
    refused(&g, "/nowhere/x.gguf", CAIRN_FILE_NOT_FOUND, "/nowhere/x.gguf", "no file");
    refused(&g, model_path, CAIRN_UNSUPPORTED, "general.type", "a model");
    tap_ok(cairn_adapter_load(g.m, NULL, &a) == CAIRN_INVALID_ARGUMENT &&
               cairn_adapter_load(NULL, path, &a) == CAIRN_INVALID_ARGUMENT &&
               cairn_adapter_load(g.m, path, NULL) == CAIRN_INVALID_ARGUMENT, "NULL");
    snprintf(c.adapter, sizeof c.adapter, "/nowhere/y.gguf");
    cairn_runtime *rt = open_runtime_on(&c, "a missing adapter");
    cairn_model *m = NULL;
    tap_ok(cairn_load_model(rt, model_path, &m) == CAIRN_FILE_NOT_FOUND && !m,
           "the config's is missing: %s", cairn_last_error(rt));
    cairn_close(rt);
    free(good.data), free_low(&l);
    close_rig(&g);
}

/* The shapes and names of a ffn of experts. */
static void test_bad_experts(void) {
    rig g;
    char inside[128];
    on_experts = true;
    const bool fine = open_rig(&g, CAIRN_BACKEND_CPU, false, 0);
    on_experts = false;
    if (!fine) return;
    low l = make_low(&g.f, 4, 8, true, &state);
    gguf_build good = gguf_low(&l, "qwen3moe", false);
    with_text(&g, &good, "blk.1.ffn_up_exps.weight.lora_b", "blk.1.ffn_up_expz.weight.lora_b",
              CAIRN_UNSUPPORTED, "blk.1.ffn_up_expz.weight.lora_b");
    with_text(&g, &good, "blk.1.ffn_up_exps.weight.lora_b", "blk.0.ffn_up_exps.weight.lora_b",
              CAIRN_BAD_FILE, "'blk.0.ffn_up_exps.weight.lora_b': the tensor stands twice");
    with_text(&g, &good, "blk.0.attn_k.weight.lora_a", "blk.0.ffn_up.weight.lora_a", CAIRN_BAD_FILE,
              "blk.0.ffn_up_exps");
    save(path, &good);
    test_damage(&g, path);
    free(good.data);
    peft_without = "1.mlp.experts.8.down_proj";
    write_peft(&g.f, &l, false);
    refused(&g, folder_path, CAIRN_BAD_FILE, "layer 1, 'mlp.experts.*.down_proj': expert 8 is missing",
            "an expert less");
    peft_without = "1.mlp.experts.8.down_proj.lora_B";
    write_peft(&g.f, &l, false);
    refused(&g, folder_path, CAIRN_BAD_FILE, "experts.8.down_proj.lora_A", "half an expert");
    peft_without = NULL;
    write_peft(&g.f, &l, false);
    snprintf(inside, sizeof inside, "%s/adapter_model.safetensors", folder_path);
    test_damage(&g, inside);
    free_low(&l);
    family few = zoo_qwen3moe(&state);
    family_free(&few);
    few.experts = 8, few.count = few.key_count = 0;
    zoo_fill(&few, &state);
    l = make_low(&few, 4, 0, true, &state);
    good = gguf_low(&l, "qwen3moe", true);
    save(path, &good);
    refused(&g, path, CAIRN_UNSUPPORTED, "it is of 8 experts; 9 are expected", "fewer experts");
    test_bad_ranks(&g);
    free(good.data), free_low(&l), family_free(&few);
    close_rig(&g);
}

static void test_backend(cairn_backend backend) {
    cairn_config c = small_config(backend);
    cairn_runtime *rt = open_runtime_on(&c, "adapters");
    if (!rt) return;
    cairn_close(rt);
    on_mixed = false;
    test_forms(backend);
    test_rows(backend);
    test_experts(backend);
    if (is_emulated(backend)) return; /* compiling kernels takes long there */
    test_families(backend);
    test_sessions(backend);
    test_requests(backend);
    on_mixed = true;
    test_rows(backend);
}

int main(void) {
    state = random_seed();
    int file = mkstemp(model_path);
    if (file < 0) return 1;
    close(file);
    snprintf(path, sizeof path, "%s.low", model_path);
    snprintf(other_path, sizeof other_path, "%s.model", model_path);
    snprintf(folder_path, sizeof folder_path, "%s.folder", model_path);
    os_make_path(folder_path);
    test_backend(CAIRN_BACKEND_CPU);
    test_bad();
    test_bad_experts();
    test_no_pages();
    test_backend(CAIRN_BACKEND_CUDA);
    remove(model_path), remove(path);
    return tap_done();
}

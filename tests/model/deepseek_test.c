/* deepseek: models that attend by latents over the tokens an indexer chooses (DSA), in files with
 * llama.cpp's names. Logits and chosen tokens of models that are the same each time against
 * tests/golden/dsa, which transformers said (scripts/golden/dsa.py); the same text whatever way a session
 * comes to it; prompts that need no scores; files with wrong keys and tensors. With a folder as its
 * argument the program writes the models there and ends.
 * emulated: asan */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "gguf_build.h"
#include "json.h"
#include "random.h"
#include "ref/block_ref.h"
#include "ref/f16_ref.h"
#include "tap.h"
#include "backends.h"
#include "texts.h"
#include "family.h"
#include "fake/fake_compiler.h"
#include "fake/fault_walk.h"

enum { COUNT = 90, LAYERS = 2 };

typedef struct animal {
    const char *name, *architecture;
    int heads, still, value, q_rank, index_heads, topk;
    bool yarn;
    uint64_t seed;
    bool plain; /* all weights are F16 */
} animal;

static const animal zoo[] = {
    {"deepseek", "deepseek32", 4, 32, 48, 48, 8, 40, false, 13, false},
    {"deepseek_yarn", "deepseek32", 3, 64, 32, 64, 16, 90, true, 2, false},
    {"glm", "glm-dsa", 8, 32, 64, 64, 24, 64, false, 3, false},
    {"glm_few", "glm-dsa", 4, 32, 32, 32, 8, 3, false, 4, false},
    /* of one shape but for what attention alone knows, so that the emulated GPU has less to compile */
    {"deepseek_plain", "deepseek32", 3, 32, 48, 48, 8, 3, false, 5, true},
    {"glm_plain", "glm-dsa", 4, 64, 32, 32, 16, 3, false, 6, true},
};
enum { FEW = 3 /* with goldens */, PLAIN = 4 };

static void add_layer(family *f, const animal *a, int layer, uint64_t *seed) {
    static const int types[] = {BLOCK_F16, BLOCK_Q8_0, BLOCK_F32, BLOCK_BF16};
    const int h = f->hidden, heads = a->heads;
    const family_entry all[] = {
        {"attn_norm.weight", 0, h}, {"attn_q_a.weight", a->q_rank, h},
        {"attn_q_a_norm.weight", 0, a->q_rank}, {"attn_q_b.weight", heads * (a->still + 64), a->q_rank},
        {"attn_kv_a_mqa.weight", 576, h}, {"attn_kv_a_norm.weight", 0, 512},
        {"attn_k_b.weight", heads * 512, a->still}, {"attn_v_b.weight", heads * a->value, 512},
        {"attn_output.weight", h, heads * a->value},
        {"indexer.attn_q_b.weight", a->index_heads * 128, a->q_rank}, {"indexer.attn_k.weight", 128, h},
        {"indexer.k_norm.weight", 0, 128}, {"indexer.k_norm.bias", 0, 128},
        {"indexer.proj.weight", a->index_heads, h},
        {"ffn_norm.weight", 0, h}, {"ffn_gate.weight", f->ffn, h}, {"ffn_up.weight", f->ffn, h},
        {"ffn_down.weight", h, f->ffn}};
    for (size_t i = 0; i < BASE_COUNT(all); i++) {
        family_entries(f, layer, &all[i], 1, types, a->plain ? 1 : (int)BASE_COUNT(types), seed);
        if (strstr(all[i].name, "_b.weight") && !strstr(all[i].name, "q_b"))
            f->tensors[f->count - 1].parts = heads;
    }
}

/* The animal as it always is. */
static family make(const animal *a) {
    uint64_t seed = a->seed;
    family f = {.architecture = a->architecture, .layers = LAYERS, .hidden = 64, .heads = a->heads,
                .kv_heads = 1, .dim = 576, .ffn = 96, .vocab = 120, .context = 256};
    const struct { const char *name; int value; } numbers[] = {
        {"block_count", f.layers}, {"embedding_length", f.hidden}, {"feed_forward_length", f.ffn},
        {"context_length", f.context}, {"attention.head_count", a->heads},
        {"attention.head_count_kv", 1}, {"attention.key_length", 576}, {"attention.value_length", 512},
        {"attention.key_length_mla", a->still + 64}, {"attention.value_length_mla", a->value},
        {"attention.q_lora_rank", a->q_rank}, {"attention.kv_lora_rank", 512},
        {"rope.dimension_count", 64}, {"attention.indexer.head_count", a->index_heads},
        {"attention.indexer.key_length", 128}, {"attention.indexer.top_k", a->topk}};
    for (size_t i = 0; i < BASE_COUNT(numbers); i++)
        family_put(&f, numbers[i].name, 4, numbers[i].value, NULL);
    family_put(&f, "attention.layer_norm_rms_epsilon", 6, 1e-6, NULL);
    if (a->yarn) {
        family_put(&f, "rope.scaling.type", 8, 0, "yarn");
        family_put(&f, "rope.scaling.factor", 6, 4, NULL);
        family_put(&f, "rope.scaling.original_context_length", 4, 64, NULL);
        family_put(&f, "rope.scaling.yarn_log_multiplier", 6, 0.1, NULL);
    }
    family_add(&f, "token_embd.weight", BLOCK_F16, f.vocab, f.hidden, &seed);
    family_add(&f, "output_norm.weight", BLOCK_F32, 0, f.hidden, &seed);
    if (!a->yarn && !a->plain) family_add(&f, "output.weight", BLOCK_Q8_0, f.vocab, f.hidden, &seed);
    for (int l = 0; l < f.layers; l++) add_layer(&f, a, l, &seed);
    return f;
}

static cairn_backend backend = CAIRN_BACKEND_CPU; /* that configs ask for */
static int given = 70, more = 40, chunk_most = 128;
static size_t live_bytes;
static void *counting_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    (void)user;
    live_bytes += new_bytes - old_bytes;
    if (new_bytes) return realloc(memory, new_bytes);
    free(memory);
    return NULL;
}

static cairn_config small_config(void) {
    cairn_config c;
    cairn_config_default(&c);
    c.backend = backend, c.log = CAIRN_LOG_OFF;
    c.threads = 2, c.page_size = 16, c.max_batch = 2, c.prefill_chunk = chunk_most;
    return c;
}

/* A model in a runtime of its own; NULL: not, which is said. */
static cairn_model *load(const cairn_config *c, const char *path) {
    cairn_runtime *rt;
    cairn_model *m = NULL;
    char error[512];
    if (cairn_open(c, &rt, error, sizeof error)) { tap_ok(false, "%s", error); return NULL; }
    if (!cairn_load_model(rt, path, &m)) return m;
    tap_ok(false, "%s", cairn_last_error(rt));
    cairn_close(rt);
    return NULL;
}

/* ---- one forward by hand --------------------------------------------------------------------- */

typedef struct seen {
    float *logits;                /* [COUNT, vocab] */
    int32_t *chosen[LAYERS];      /* [COUNT, COUNT]: positions of each row, -1 behind the last */
    uint8_t *keys[LAYERS];        /* [pages] of index keys, in the sequence's order */
    float *scores[LAYERS];        /* [COUNT, COUNT], where memory holds those of all rows */
    bool all;                     /* no row was scored */
} seen;

static void seen_free(seen *x) {
    free(x->logits);
    for (int l = 0; l < LAYERS; l++) free(x->chosen[l]), free(x->keys[l]), free(x->scores[l]);
}

/* What a layer chose for the rows, as positions. */
static void note_layer(const cairn_model *m, int row, int layer, int count, seen *x) {
    const forward_latent *l = ((const forward_cpu_state *)m->state)->latent;
    const int32_t *table = tables_row(&m->tables, row);
    const size_t bytes = pages_plane_bytes(&m->kv, LAYERS + layer);
    const int size = m->kv.page_size, pages = model_pages_of(count, size);
    for (int r = 0; r < count; r++)
        for (int i = 0; i < COUNT; i++) {
            const int32_t slot = i < l->most ? l->tokens[r * l->most + i] : -1;
            int page = 0;
            while (slot >= 0 && table[page] != slot / size) page++;
            x->chosen[layer][r * COUNT + i] = slot < 0 ? -1 : page * size + slot % size;
        }
    x->keys[layer] = (uint8_t *)calloc((size_t)pages, bytes);
    for (int i = 0; i < pages; i++)
        memcpy(x->keys[layer] + (size_t)i * bytes,
               (const uint8_t *)m->kv.pages[LAYERS + layer] + (size_t)table[i] * bytes, bytes);
    x->all = l->all;
    x->scores[layer] = (float *)calloc(COUNT * COUNT, sizeof(float));
    for (int r = 0; r < count && l->score_rows >= count; r++)
        memcpy(x->scores[layer] + r * COUNT, l->scores + r * l->stride, sizeof(float) * (size_t)count);
}

/* Tokens [count] from the beginning, in one forward, layer by layer. */
static bool see(cairn_model *m, const int32_t *ids, int count, forward_kind kind, seen *x) {
    cairn_session *s = session_of(m);
    forward_row rows[COUNT];
    forward_sequence sequence;
    forward_batch batch;
    cairn_status status;
    memset(x, 0, sizeof *x);
    x->logits = (float *)malloc(sizeof(float) * (size_t)(COUNT * m->shape.vocab));
    for (int l = 0; l < LAYERS; l++)
        x->chosen[l] = (int32_t *)malloc(sizeof(int32_t) * COUNT * COUNT);
    if (!s || state_reserve(&m->states, s->row, 0, count)) return false;
    memset(&sequence, 0, sizeof sequence);
    memset(&batch, 0, sizeof batch);
    sequence.table = s->row, sequence.rows = count;
    for (int r = 0; r < count; r++) {
        memset(&rows[r], 0, sizeof rows[r]);
        rows[r].token = ids[r], rows[r].position = rows[r].rope = r;
        rows[r].kind = kind, rows[r].logits = true;
    }
    batch.tables = &m->tables, batch.sequence_count = 1, batch.row_count = count;
    batch.sequences = &sequence, batch.rows = rows, batch.logits = x->logits;
    state_extend(&m->states, s->row, 0, count);
    status = m->backend->begin(m, &m->kv, &batch);
    for (int l = 0; l < LAYERS && !status; l++) {
        m->backend->advance(m, 1);
        note_layer(m, s->row, l, count, x);
    }
    if (!status) m->backend->advance(m, INT_MAX);
    else tap_note("%s", cairn_last_error(m->runtime));
    s->cached = 0;
    cairn_session_close(s);
    return !status;
}

/* ---- goldens --------------------------------------------------------------------------------- */

static bool same_choice(const json_value *want, const int32_t *got) {
    int i = 0;
    for (const json_value *w = want->first; w; w = w->next, i++)
        if (i == COUNT || got[i] != (int32_t)w->number) return false;
    return i == COUNT || got[i] == -1;
}

static void check_golden(const char *name, const seen *x, int vocab, const json_value *golden) {
    const json_value *row = json_get(golden, "rows")->first, *want = json_get(golden, "logits")->first;
    const json_value *layer = json_get(golden, "chosen")->first;
    double worst = 0;
    for (int l = 0; l < LAYERS; l++, layer = layer->next) {
        const json_value *choice = layer->first;
        int wrong = 0;
        for (row = json_get(golden, "rows")->first; row; row = row->next, choice = choice->next)
            wrong += !same_choice(choice, x->chosen[l] + (int)row->number * COUNT);
        tap_ok(!wrong, "%s: layer %d chooses the tokens that transformers' does (%d rows differ)", name,
               l, wrong);
    }
    for (row = json_get(golden, "rows")->first; row; row = row->next, want = want->next) {
        const float *got = x->logits + (int)row->number * vocab;
        for (const json_value *w = want->first; w; w = w->next, got++) {
            double off = fabs((double)*got - w->number) / (1 + fabs(w->number));
            if (!(off <= worst)) worst = off;
        }
    }
    tap_ok(worst < 5e-3, "%s: logits within %.1e of transformers'", name, worst);
}

static void test_golden(const animal *a) {
    char path[64], golden_path[96];
    family f = make(a);
    json_value *golden;
    cairn_config c = small_config();
    cairn_model *m = NULL;
    int32_t ids[COUNT];
    double nll = 0;
    seen x;
    snprintf(path, sizeof path, "build/deepseek_%s.gguf", a->name);
    snprintf(golden_path, sizeof golden_path, "tests/golden/dsa/%s.json", a->name);
    golden = json_read(golden_path);
    golden_ids(f.vocab, COUNT, ids);
    if (tap_ok(golden && family_write(&f, path) &&
               crc_of(path) == (uint32_t)json_get(golden, "crc")->number,
               "%s: the model is the one that transformers ran", a->name) &&
        (m = load(&c, path)) && see(m, ids, COUNT, FORWARD_PROMPT, &x)) {
        cairn_eval_args e;
        check_golden(a->name, &x, f.vocab, golden);
        seen_free(&x);
        memset(&e, 0, sizeof e);
        e.struct_size = sizeof e, e.ids = ids, e.count = COUNT;
        if (cairn_eval(m, &e, &nll)) tap_note("%s", cairn_last_error(m->runtime));
        tap_ok(fabs(nll - json_get(golden, "nll")->number) < 2e-3, "%s: nll %.4f is transformers'",
               a->name, nll);
    }
    if (m) cairn_close(m->runtime);
    json_free(golden);
    family_free(&f);
    remove(path);
}

/* ---- prompts without scores ------------------------------------------------------------------ */

/* A prompt of `count` tokens and as many steps: the same choices, keys and logits, bit for bit. */
static void check_all(cairn_model *m, const int32_t *ids, int count, bool all) {
    const int topk = m->shape.latent.topk, vocab = m->shape.vocab;
    seen prompt, steps;
    bool same = see(m, ids, count, FORWARD_PROMPT, &prompt) && see(m, ids, count, FORWARD_STEP, &steps);
    tap_ok(same && prompt.all == all && !steps.all, "a prompt of %d with %d chosen: %s; steps are scored",
           count, topk, all ? "nothing is scored" : "scored");
    for (int l = 0; l < LAYERS && same; l++) {
        const size_t bytes = pages_plane_bytes(&m->kv, LAYERS + l) * (size_t)(count / 16);
        same = !memcmp(prompt.chosen[l], steps.chosen[l], sizeof(int32_t) * (size_t)(count * COUNT)) &&
               !memcmp(prompt.keys[l], steps.keys[l], bytes);
    }
    same = same && !memcmp(prompt.logits, steps.logits, sizeof(float) * (size_t)(count * vocab));
    tap_ok(same, "the same choices, index keys and logits");
    for (int r = 0; r < count && same; r++)
        for (int i = 0; i < COUNT && r < topk; i++)
            same &= prompt.chosen[0][r * COUNT + i] == (i <= r ? i : -1);
    tap_ok(same, "rows of at most %d tokens attend all of them", topk);
    seen_free(&prompt), seen_free(&steps);
}

static void test_all(const char *path) {
    cairn_config c = small_config();
    cairn_model *m = load(&c, path);
    int32_t ids[COUNT];
    if (!m) return;
    golden_ids(m->shape.vocab, COUNT, ids);
    check_all(m, ids, m->shape.latent.topk, true);
    check_all(m, ids, m->shape.latent.topk + 1, false);
    cairn_close(m->runtime);
}

/* ---- text ------------------------------------------------------------------------------------ */


static void check_same(const int32_t *want, int n, const int32_t *got, int m, const char *what) {
    tap_ok(m == n && !memcmp(want, got, sizeof *want * (size_t)n), "%s: the same text", what);
}

/* Forked, rewound, saved and loaded, two at a time. */
static void check_moves(cairn_model *m, cairn_session *s, const int32_t *want, int n) {
    int32_t got[256];
    cairn_session *other = NULL;
    const int early = given + (n - given) / 4, late = given + (n - given) / 2;
    size_t bytes;
    uint8_t *saved;
    cairn_session_fork(s, &other);
    cairn_session_rewind(other, early);
    cairn_session_rewind(s, late);
    check_same(want, n, got, go_on(other, n - early, got), "forked and rewound");
    check_same(want, n, got, go_on(s, n - late, got), "its origin rewound");
    cairn_session_close(other);
    other = session_of(m);
    cairn_session_rewind(s, early);
    cairn_session_save_memory(s, NULL, 0, &bytes);
    saved = (uint8_t *)malloc(bytes);
    tap_ok(!cairn_session_save_memory(s, saved, bytes, &bytes) &&
               !cairn_session_load_memory(other, saved, bytes),
           "saved and loaded");
    check_same(want, n, got, go_on(other, n - early, got), "loaded");
    free(saved);
    cairn_session_rewind(s, given * 3 / 10);
    cairn_append_ids(s, want + given * 3 / 10, given - given * 3 / 10);
    check_same(want, n, got, go_on(s, n - given, got), "rewound into the prompt");
    cairn_session_close(other);
}

/* The same text whatever way a session comes to it. */
static void test_text(const char *path, const char *name) {
    static const struct { int chunk, part, threads; bool drafts, prefixes; } ways[] = {
        {128, INT_MAX, 1, false, false}, {16, INT_MAX, 3, true, false}, {64, 7, 2, true, true}};
    int32_t want[256], got[256];
    int n = 0;
    for (size_t way = 0; way < (is_emulated(backend) ? 2 : BASE_COUNT(ways)); way++) {
        cairn_config c = small_config();
        cairn_model *m;
        cairn_session *s;
        cairn_stats stats;
        c.prefill_chunk = ways[way].chunk < chunk_most ? ways[way].chunk : chunk_most;
        c.threads = ways[way].threads;
        c.drafter = ways[way].drafts ? CAIRN_DRAFTER_NGRAM : CAIRN_DRAFTER_NONE;
        c.memory.prefix_cache = ways[way].prefixes;
        c.topk = 1, c.selection.window = 5; /* of pages: not asked */
        if (!(m = load(&c, path))) return;
        if (!way) golden_ids(m->shape.vocab, COUNT, want);
        for (int i = given > 30 ? 30 : 8; i < given && !way; i++) want[i] = want[i - 8]; /* something to draft */
        for (int turn = 0; turn < (ways[way].prefixes ? 2 : 1); turn++) {
            s = session_of(m);
            for (int i = 0, part = ways[way].part; i < given; i += part) {
                if (part > given - i) part = given - i;
                cairn_append_ids(s, want + i, part);
            }
            if (!way) n = go_on(s, more, want);
            if (!way) tap_ok(n > given + more / 5, "%s: %d tokens", name, n - given);
            else check_same(want, n, got, go_on(s, n - given, got), turn ? "by held pages" : name);
            memset(&stats, 0, sizeof stats);
            stats.struct_size = sizeof stats;
            cairn_session_stats(s, &stats);
            tap_ok(stats.token_space == 1 + CAIRN_SPACE_SLOT && stats.pages_read > 0 && stats.pages_read <= stats.pages_held,
                   "%s: reads %.1f of %.1f pages", name, stats.pages_read, stats.pages_held);
            if (turn || way == 1) check_moves(m, s, want, n);
            if (turn + 1 < (ways[way].prefixes ? 2 : 1)) cairn_session_close(s);
        }
        cairn_close(m->runtime);
    }
}

/* Two sessions in one batch say what each says alone. */
static void test_batch(const char *path) {
    cairn_config c = small_config();
    cairn_model *m = load(&c, path);
    cairn_session *alone, *two[2];
    int32_t ids[COUNT], want[2][256], got[256];
    int n[2];
    if (!m) return;
    golden_ids(m->shape.vocab, COUNT, ids);
    for (int i = 0; i < 2; i++) {
        alone = session_of(m);
        cairn_append_ids(alone, ids + 9 * i, given * (2 + i) / 4);
        n[i] = go_on(alone, more / 2, want[i]);
        cairn_session_close(alone);
    }
    for (int i = 0; i < 2; i++) {
        cairn_generate_options o;
        memset(&o, 0, sizeof o);
        o.struct_size = sizeof o, o.max_tokens = more / 2;
        two[i] = session_of(m);
        cairn_append_ids(two[i], ids + 9 * i, given * (2 + i) / 4);
        if (cairn_generate_submit(two[i], "", &o)) tap_note("%s", cairn_last_error(m->runtime));
    }
    for (int32_t pending = 1; pending;)
        if (cairn_step(m, 0, &pending)) break;
    for (int i = 0; i < 2; i++) {
        int count;
        const int32_t *held = cairn_session_ids(two[i], &count);
        memcpy(got, held, sizeof *got * (size_t)count);
        check_same(want[i], n[i], got, count, "beside another session");
    }
    cairn_close(m->runtime);
}

/* ---- files ----------------------------------------------------------------------------------- */

typedef enum hostile_change { KEY, WITHOUT_KEY, WIDTH, ADD, WITHOUT } hostile_change;

typedef struct hostile {
    hostile_change change;
    const char *name;
    int type;
    double number;
    cairn_status status;
    const char *says;
} hostile;

static const hostile hostiles[] = {
    {ADD, "blk.1.ffn_gate_inp.weight", 64, 0, CAIRN_UNSUPPORTED,
     "'blk.1.ffn_gate_inp.weight': a ffn of experts is not supported"},
    {WITHOUT, "blk.1.indexer.attn_k.weight", 0, 0, CAIRN_UNSUPPORTED,
     "'blk.1.indexer.attn_k.weight' is missing: a layer that shares the choice of another's indexer"},
    {WITHOUT, "blk.0.indexer.k_norm.bias", 0, 0, CAIRN_BAD_FILE, "'blk.0.indexer.k_norm.bias' is missing"},
    {WITHOUT, "blk.0.attn_k_b.weight", 0, 0, CAIRN_BAD_FILE, "'blk.0.attn_k_b.weight' is missing"},
    {WIDTH, "blk.0.attn_kv_a_norm.weight", 0, -1, CAIRN_BAD_FILE,
     "'blk.0.attn_kv_a_norm.weight' is [1, 511]"},
    {ADD, "blk.0.attn_kv_b.weight", 512, 0, CAIRN_UNSUPPORTED, "'blk.0.attn_kv_b.weight'"},
    {KEY, "attention.kv_lora_rank", 4, 256, CAIRN_UNSUPPORTED, "attention.kv_lora_rank' is 256; 512"},
    {KEY, "attention.head_count_kv", 4, 4, CAIRN_UNSUPPORTED, "attention.head_count_kv' is 4; 1 is"},
    {KEY, "rope.dimension_count", 4, 32, CAIRN_UNSUPPORTED, "rope.dimension_count' is 32; 64"},
    {KEY, "attention.indexer.key_length", 4, 64, CAIRN_UNSUPPORTED, "indexer.key_length' is 64; 128"},
    {KEY, "attention.indexer.head_count", 4, 12, CAIRN_UNSUPPORTED, "an indexer of 12"},
    {KEY, "attention.indexer.head_count", 4, 16, CAIRN_BAD_FILE, "indexer.attn_q_b.weight' is [1024"},
    {KEY, "attention.indexer.top_k", 4, 0, CAIRN_BAD_FILE, "attention.indexer.top_k' is 0"},
    {WITHOUT_KEY, "attention.indexer.top_k", 0, 0, CAIRN_BAD_FILE, "attention.indexer.top_k"},
    {KEY, "attention.key_length_mla", 4, 64, CAIRN_UNSUPPORTED, "keys of 64"},
    {KEY, "attention.value_length_mla", 4, 5000, CAIRN_UNSUPPORTED, "values of 5000"},
    {KEY, "attention.q_lora_rank", 4, 1 << 24, CAIRN_BAD_FILE, "attn_q_a.weight' is [48, 64]"},
    {KEY, "rope.scaling.yarn_log_multiplier", 6, -1, CAIRN_BAD_FILE, "yarn_log_multiplier' is -1"},
    {KEY, "rope.scaling.yarn_log_multiplier", 6, NAN, CAIRN_BAD_FILE, "yarn_log_multiplier' is"},
};

static void spoil(family *f, const hostile *h) {
    const double zeros[512] = {0};
    family_tensor *t = f->tensors;
    if (h->change == KEY) family_put(f, h->name, h->type, h->number, NULL);
    if (h->change == ADD) family_vector(f, h->name, zeros, h->type);
    for (int i = 0; i < f->key_count && h->change == WITHOUT_KEY; i++)
        if (!strcmp(f->keys[i].name, h->name)) f->keys[i] = f->keys[--f->key_count];
    if (h->change != WITHOUT && h->change != WIDTH) return;
    while (strcmp(t->name, h->name)) t++;
    if (h->change == WIDTH) {
        t->columns += (int)h->number;
        t->bytes = (size_t)t->columns * 4;
        return;
    }
    free(t->data), free(t->values);
    *t = f->tensors[--f->count];
}

static void test_hostile(const hostile *h) {
    const char *path = "build/deepseek_hostile.gguf";
    family f = make(&zoo[0]);
    cairn_config c = small_config();
    cairn_runtime *rt = NULL;
    cairn_model *m = NULL;
    cairn_status status;
    char error[256];
    bool says;
    c.threads = 1, c.allocator.realloc = counting_realloc;
    spoil(&f, h);
    family_write(&f, path);
    live_bytes = 0;
    if (cairn_open(&c, &rt, error, sizeof error)) { tap_ok(false, "%s", error); return; }
    status = cairn_load_model(rt, path, &m);
    says = strstr(cairn_last_error(rt), h->says) != NULL;
    tap_ok(status == h->status && says && !m, "%s: %s", h->name, h->says);
    if (status != h->status || !says) tap_note("%d: %s", (int)status, cairn_last_error(rt));
    cairn_close(rt);
    tap_ok(live_bytes == 0, "nothing is left allocated");
    family_free(&f);
    remove(path);
}

/* What an estimate says is what loading takes; pages hold 576 f16 and an index key a token. */
static void test_memory(const char *path) {
    cairn_config c = small_config();
    cairn_memory_estimate e;
    cairn_model *m;
    cairn_model_properties p;
    cairn_runtime *rt;
    uint64_t live;
    char error[512] = "";
    memset(&e, 0, sizeof e), memset(&p, 0, sizeof p);
    e.struct_size = sizeof e, p.struct_size = sizeof p;
    tap_ok(!cairn_estimate(&c, path, &e, error, sizeof error), "an estimate%s", error);
    if (!(m = load(&c, path))) return;
    cairn_model_info(m, &p);
    tap_ok(p.pages == e.pages && p.kv_bytes == e.kv_bytes && p.scratch_bytes == e.scratch_bytes &&
               p.kv_bytes == (uint64_t)p.pages * LAYERS * 16 * (576 * 2 + 132),
           "the estimate is what the cache and the scratch take");
    live = m->runtime->device.live_bytes;
    rt = m->runtime;
    cairn_model_free(m);
    live -= rt->device.live_bytes; /* a device has some of its own */
    tap_ok(live == e.live_bytes, "%llu bytes of %llu", (unsigned long long)live,
           (unsigned long long)e.live_bytes);
    cairn_close(rt);
}

/* A latent cache is f16: another type is refused by name, and nothing stays. */
static void test_types(const char *path) {
    static const struct { cairn_kv_dtype type; const char *name; } others[] = {
        {CAIRN_KV_F32, "f32"}, {CAIRN_KV_BF16, "bf16"}, {CAIRN_KV_E4M3, "e4m3"}};
    for (size_t i = 0; i < BASE_COUNT(others); i++) {
        cairn_config c = small_config();
        cairn_runtime *rt = NULL;
        cairn_model *m = NULL;
        char error[512] = "", words[64];
        c.kv_dtype = others[i].type;
        snprintf(words, sizeof words, "kv_dtype = \"%s\": the cache of a model with latent", others[i].name);
        cairn_status status = cairn_open(&c, &rt, error, sizeof error);
        if (!status) status = cairn_load_model(rt, path, &m);
        tap_ok(rt && status == CAIRN_UNSUPPORTED && !m && strstr(cairn_last_error(rt), words), "%s",
               rt ? cairn_last_error(rt) : error);
        cairn_close(rt);
    }
}

static int allocations_left;
static void *failing_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    if (new_bytes && allocations_left-- == 0) return NULL;
    return counting_realloc(user, memory, old_bytes, new_bytes);
}

/* Each allocation of a load and of a session's first words fails once: a status, and nothing stays. */
static void test_no_memory(const char *path) {
    int left = 0, wrong = 0;
    for (bool done = false; !done && left < 2000; left += 1 + left / 16) {
        const int32_t ids[] = {5, 6, 7, 8};
        cairn_config c = small_config();
        cairn_runtime *rt = NULL;
        cairn_model *m = NULL;
        cairn_session *s = NULL;
        cairn_status status;
        char error[512];
        c.threads = 1, c.allocator.realloc = failing_realloc, c.max_seq_len = 64;
        live_bytes = 0, allocations_left = INT_MAX;
        if (cairn_open(&c, &rt, error, sizeof error)) { tap_ok(false, "%s", error); return; }
        allocations_left = left;
        if (!(status = cairn_load_model(rt, path, &m)) && !(status = cairn_session_open(m, &s)))
            status = cairn_append_ids(s, ids, 4);
        done = allocations_left >= 0;
        wrong += done ? status != CAIRN_OK : status && status != CAIRN_OUT_OF_MEMORY;
        cairn_close(rt);
        wrong += live_bytes != 0;
    }
    tap_ok(!wrong && left < 2000, "without memory a status, and nothing left (%d allocations)", left);
}

/* ---- the GPU --------------------------------------------------------------------------------- */

/* What the layers of a model on the GPU choose for the rows of its last prompt, when they run again. */
static cairn_status note_cuda(const cairn_model *m, int row, int count, seen *x) {
    forward_cuda_state *f = (forward_cuda_state *)m->state;
    const int32_t *table = tables_row(&m->tables, row);
    const int most = f->latents.most, size = m->kv.page_size;
    int32_t *slots = (int32_t *)malloc(sizeof(int32_t) * (size_t)(count * most));
    const cuda_form form = {NULL, false, false};
    cairn_status status = cuda_launch(f, &f->prompt, PROMPT_K_EMBED, count, 1, 128, 0, 0, 0);
    for (int l = 0; l < LAYERS && !status; l++) {
        if ((status = cuda_run_prompt_layer(f, &form, count, l)) ||
            (status = device_download(f->dev, slots, f->latents.tokens, sizeof *slots * (size_t)(count * most))))
            break;
        for (int i = 0; i < count * COUNT; i++) {
            const int32_t slot = i % COUNT < most ? slots[i / COUNT * most + i % COUNT] : -1;
            int page = 0;
            while (slot >= 0 && table[page] != slot / size) page++;
            x->chosen[l][i] = slot < 0 ? -1 : page * size + slot % size;
        }
    }
    free(slots);
    return status;
}

/* The index keys of a sequence, as note_layer keeps them. */
static cairn_status note_keys(const cairn_model *m, int row, int count, seen *x) {
    const int pages = model_pages_of(count, m->kv.page_size);
    cairn_status status = CAIRN_OK;
    for (int l = 0; l < LAYERS && !status; l++) {
        const size_t bytes = pages_plane_bytes(&m->kv, LAYERS + l);
        x->keys[l] = (uint8_t *)calloc((size_t)pages, bytes);
        for (int i = 0; i < pages && !status; i++)
            status = device_download(&m->runtime->device, x->keys[l] + (size_t)i * bytes,
                                     (const uint8_t *)m->kv.pages[LAYERS + l] +
                                         (size_t)tables_row(&m->tables, row)[i] * bytes, bytes);
    }
    return status;
}

/* A prompt of count tokens on the GPU, in one forward: the logits of its last 64 rows. */
static bool see_cuda(cairn_model *m, const int32_t *ids, int count, seen *x) {
    cairn_session *s = session_of(m);
    forward_row rows[COUNT];
    forward_sequence sequence;
    forward_batch batch;
    cairn_status status;
    memset(x, 0, sizeof *x), memset(rows, 0, sizeof rows);
    memset(&sequence, 0, sizeof sequence), memset(&batch, 0, sizeof batch);
    x->logits = (float *)calloc((size_t)(COUNT * m->shape.vocab), sizeof(float));
    for (int l = 0; l < LAYERS; l++) x->chosen[l] = (int32_t *)malloc(sizeof(int32_t) * COUNT * COUNT);
    if (!s || state_reserve(&m->states, s->row, 0, count)) return false;
    sequence.table = s->row, sequence.rows = count;
    for (int r = 0; r < count; r++) {
        rows[r].token = ids[r], rows[r].position = rows[r].rope = r;
        rows[r].kind = FORWARD_PROMPT, rows[r].logits = r >= count - 64;
    }
    batch.tables = &m->tables, batch.sequence_count = 1, batch.row_count = count;
    batch.sequences = &sequence, batch.rows = rows;
    batch.logits = x->logits + (count > 64 ? count - 64 : 0) * m->shape.vocab;
    state_extend(&m->states, s->row, 0, count);
    if (!(status = handles_enter(m->runtime))) {
        status = m->backend->forward(m, &m->kv, &batch);
        if (!status) status = note_keys(m, s->row, count, x);
        if (!status) status = note_cuda(m, s->row, count, x);
        status = handles_leave(m->runtime, status);
    }
    if (status) tap_note("%s", cairn_last_error(m->runtime));
    s->cached = 0;
    cairn_session_close(s);
    return !status;
}

/* Of row r's tokens on the GPU those that the CPU did not choose: how far the worst one's score is
 * behind the least chosen one's, of the row's range; 2: they are no choice. */
static double choice_gap(const seen *want, const seen *got, int layer, int r) {
    const float *scores = want->scores[layer] + r * COUNT;
    const int32_t *a = want->chosen[layer] + r * COUNT, *b = got->chosen[layer] + r * COUNT;
    double least = 1e30, low = 1e30, high = -1e30, gap = 0;
    for (int i = 0; i <= r; i++) {
        low = fmin(low, (double)scores[i]);
        high = fmax(high, (double)scores[i]);
    }
    for (int i = 0; i < COUNT && a[i] >= 0; i++) least = fmin(least, (double)scores[a[i]]);
    for (int i = 0; i < COUNT && (a[i] >= 0 || b[i] >= 0); i++) {
        if (a[i] < 0 || b[i] < 0 || b[i] > r || (i && b[i] <= b[i - 1])) return 2;
        gap = fmax(gap, (least - (double)scores[b[i]]) / (high - low));
    }
    return gap;
}

/* A prompt on both: rows choose the same tokens, but for such as are as good as equal; where all do, the
 * logits are the same. A row that chose another in the first layer is another row in the second: where
 * there is one the second's rows are held to choose, and to nothing more. */
static void check_choices(cairn_model *cpu, cairn_model *gpu, const char *name, const int32_t *ids,
                          int count) {
    const int vocab = cpu->shape.vocab, topk = cpu->shape.latent.topk;
    double gap[LAYERS] = {0}, worst = 0;
    int differ = 0;
    seen want, got;
    double apart;
    bool other = false; /* some row of the first layer chose so */
    if (!see(cpu, ids, count, FORWARD_PROMPT, &want) || !see_cuda(gpu, ids, count, &got)) return;
    for (int i = 0; i < LAYERS * count; i++) {
        const int l = i / count, r = i % count;
        if (!memcmp(want.chosen[l] + r * COUNT, got.chosen[l] + r * COUNT, COUNT * sizeof(int32_t))) continue;
        apart = r < topk ? 2 : choice_gap(&want, &got, l, r);
        if (!l || !other || apart > 1) gap[l] = fmax(gap[l], apart);
        other |= !l;
        differ++;
    }
    for (int i = (count > 64 ? count - 64 : 0) * vocab; i < count * vocab; i++) {
        const double off = fabs((double)want.logits[i] - (double)got.logits[i]);
        if (!(off <= worst * (1 + fabs((double)want.logits[i])))) worst = off / (1 + fabs((double)want.logits[i]));
    }
    tap_ok(gap[0] < 0.03 && gap[1] < 0.05, "%s, cuda: %d of %d rows choose others, %.4f and %.4f apart", name,
           differ, LAYERS * count, gap[0], gap[1]);
    tap_ok(differ || worst < 5e-3, "%s, cuda: logits within %.1e", name, worst);
    seen_free(&want), seen_free(&got);
}

/* A prompt of `topk` tokens makes no queries of the indexer, and is the beginning of a longer one that
 * does, bit for bit; so are its index keys. */
static void check_skip(cairn_model *m, const char *name, const int32_t *ids) {
    const forward_cuda_state *f = (const forward_cuda_state *)m->state;
    const int topk = m->shape.latent.topk, vocab = m->shape.vocab, some = topk > 63 ? 63 : topk;
    const float mark = 1234.5f;
    float found[2] = {0, 0};
    bool same = true;
    seen x[2];
    for (int i = 0; i < 2; i++) {
        if (handles_enter(m->runtime)) return;
        same &= !device_upload(f->dev, f->latents.index_q, &mark, sizeof mark);
        same &= !handles_leave(m->runtime, CAIRN_OK) && see_cuda(m, ids, topk + i, &x[i]);
        if (handles_enter(m->runtime)) return;
        same &= !device_download(f->dev, &found[i], f->latents.index_q, sizeof mark);
        handles_leave(m->runtime, CAIRN_OK);
    }
    tap_ok(same && found[0] == mark && found[1] != mark, "%s, cuda: a prompt of %d is not scored, one more is",
           name, topk);
    for (int l = 0; l < LAYERS && same; l++)
        same = !memcmp(x[0].chosen[l], x[1].chosen[l], sizeof(int32_t) * (size_t)(topk * COUNT)) &&
               !memcmp(x[0].keys[l], x[1].keys[l], (size_t)topk / 16 * pages_plane_bytes(&m->kv, LAYERS));
    for (int i = (topk - some) * vocab; i < topk * vocab; i++) same &= x[0].logits[i] == x[1].logits[i];
    tap_ok(same, "%s, cuda: the same choices, keys and logits", name);
    seen_free(&x[0]), seen_free(&x[1]);
}

/* What the GPU says is what the CPU would, or as likely; with few tokens chosen one of them is much. */
static void check_greedy(cairn_model *cpu, const char *name, const int32_t *ids, int n) {
    double worst = 0;
    int equal = 0;
    seen x;
    if (!see(cpu, ids, n, FORWARD_STEP, &x)) return;
    for (int r = given - 1; r < n - 1; r++) {
        const float *logits = x.logits + r * cpu->shape.vocab;
        double best = -1e30;
        for (int i = 0; i < cpu->shape.vocab; i++) best = fmax(best, (double)logits[i]);
        worst = fmax(worst, best - (double)logits[ids[r + 1]]);
        equal += (double)logits[ids[r + 1]] == best;
    }
    tap_ok((worst < 0.3 || cpu->shape.latent.topk < 40) && equal >= (n - given) * 3 / 4, "%s, cuda: %d of %d tokens are the CPU's, %.3f apart",
           name, equal, n - given, worst);
    seen_free(&x);
}

static void test_cuda(const animal *a, int count) {
    const char *path = "build/deepseek_cuda.gguf";
    family f = make(a);
    cairn_config c = small_config();
    cairn_model *m[2] = {NULL, NULL};
    cairn_session *s;
    int32_t ids[256];
    family_write(&f, path);
    golden_ids(f.vocab, COUNT, ids);
    m[0] = load(&c, path);
    c.backend = CAIRN_BACKEND_CUDA;
    m[1] = load(&c, path);
    if (m[0] && m[1]) {
        check_choices(m[0], m[1], a->name, ids, count);
        if (a->topk < count) check_skip(m[1], a->name, ids);
        s = session_of(m[1]);
        cairn_append_ids(s, ids, given);
        check_greedy(m[0], a->name, ids, go_on(s, more, ids));
    }
    for (int i = 0; i < 2; i++)
        if (m[i]) cairn_close(m[i]->runtime);
    family_free(&f);
    remove(path);
}

/* The same tests as on the CPU, fewer where the GPU is emulated. */
static void test_gpu(const char *path) {
    cairn_config c = small_config();
    cairn_runtime *rt;
    bool emulated;
    c.backend = CAIRN_BACKEND_CUDA;
    if (!(rt = open_runtime_on(&c, "attention by latents"))) return;
    cairn_close(rt);
    emulated = is_emulated(CAIRN_BACKEND_CUDA);
    given = emulated ? 14 : 50, more = emulated ? 5 : 30;
    if (emulated) chunk_most = 16;
    forward_scores = 1 << 22;
    for (size_t i = emulated ? PLAIN : 0; i < (emulated ? PLAIN + 1 : BASE_COUNT(zoo)); i++)
        test_cuda(&zoo[i], emulated ? 12 : COUNT);
    backend = CAIRN_BACKEND_CUDA;
    for (size_t i = PLAIN + (emulated ? 1 : 0); i < BASE_COUNT(zoo); i++) {
        family f = make(&zoo[i]);
        char name[64];
        snprintf(name, sizeof name, "%s, cuda", zoo[i].name);
        family_write(&f, path);
        test_text(path, name);
        test_batch(path);
        test_memory(path);
        family_free(&f);
    }
}

static int write_zoo(const char *folder) {
    char path[256];
    bool fine = true;
    os_make_path(folder);
    for (int i = 0; i < FEW; i++) {
        family f = make(&zoo[i]);
        snprintf(path, sizeof path, "%s/%s.gguf", folder, zoo[i].name);
        fine &= family_write(&f, path);
        family_free(&f);
    }
    return !fine;
}

/* Sizes that the GPU's products do not take are told, by an estimate and by loading. */
static void test_odd(const char *path) {
    static const animal odd = {"odd", "deepseek32", 4, 32, 48, 52, 8, 3, false, 7, true};
    cairn_config c = small_config();
    cairn_runtime *rt = NULL;
    cairn_model *m = NULL;
    cairn_memory_estimate e;
    char error[512] = "";
    family f = make(&odd);
    family_write(&f, path);
    c.backend = CAIRN_BACKEND_CUDA;
    memset(&e, 0, sizeof e);
    e.struct_size = sizeof e;
    unsetenv("CAIRN_CUDA_PATH"), unsetenv("CAIRN_NVRTC_PATH");
    fake_install();
    tap_ok(!cairn_open(&c, &rt, error, sizeof error) && cairn_load_model(rt, path, &m) == CAIRN_UNSUPPORTED && !m &&
           strstr(cairn_last_error(rt), "queries of 52 values, of a head 32 that do not turn and 48 that come back; "
                  "multiples of 8"), "a GPU: %s", rt ? cairn_last_error(rt) : error);
    cairn_close(rt);
    tap_ok(cairn_estimate(&c, path, &e, error, sizeof error) == CAIRN_UNSUPPORTED &&
           strstr(error, "queries of 52 values"), "an estimate: %s", error);
    c.backend = CAIRN_BACKEND_CPU;
    tap_ok((m = load(&c, path)) != NULL, "the CPU takes them");
    if (m) cairn_close(m->runtime);
    tap_ok(!fake.live && !fake.opened, "nothing is left");
    family_free(&f);
}

static void test_faults(const char *path) {
    cairn_config c = small_config();
    family f = make(&zoo[PLAIN]);
    f.end = 1; /* zeros say 0 */
    family_write(&f, path);
    c.backend = CAIRN_BACKEND_CUDA, c.jit.cache = CAIRN_CACHE_MEMORY, c.jit.threads = 1;
    c.threads = 1, c.prefill_chunk = 32, c.max_batch = 4;
    walk_faults(&c, path, NULL, "latents", 1);
    family_free(&f);
}

int main(int count, char **words) {
    const char *path = "build/deepseek_text.gguf";
    if (count > 1) return write_zoo(words[1]);
    os_make_path("build");
    if (!is_wanted("CAIRN_TEST_BACKEND", "cpu")) return test_gpu(path), tap_done();
    forward_scores = 4096; /* of 16 rows at a time */
    for (int i = 0; i < FEW; i++) test_golden(&zoo[i]);
    for (size_t i = 0; i < PLAIN; i += 3) { /* of each family */
        family f = make(&zoo[i]);
        family_write(&f, path);
        test_text(path, zoo[i].name);
        test_batch(path);
        if (!i) test_all(path), test_memory(path), test_types(path), test_no_memory(path);
        family_free(&f);
    }
    for (size_t i = 0; i < BASE_COUNT(hostiles); i++) test_hostile(&hostiles[i]);
    test_gpu(path);
    test_odd(path), test_faults(path); /* behind all that is of another GPU */
    remove(path);
    return tap_done();
}

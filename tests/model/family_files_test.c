/* family_files: the families of tests/family_zoo.h in files. Logits of models that are the same each
 * time against tests/golden/families, which transformers said (scripts/golden/families.py); files
 * with wrong keys and tensors: a status that names them, and nothing is left allocated. With a
 * folder as its argument the program writes the models there and ends.
 * emulated: asan */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "gguf_build.h"
#include "json.h"
#include "random.h"
#include "ref/block_ref.h"
#include "ref/f16_ref.h"
#include "ref/llama_ref.h"
#include "tap.h"
#include "backends.h"
#include "texts.h"
#include "family.h"
#include "family_zoo.h"

static size_t live_bytes;
static void *counting_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    (void)user;
    live_bytes += new_bytes - old_bytes;
    if (new_bytes) return realloc(memory, new_bytes);
    free(memory);
    return NULL;
}

static cairn_config small_config(cairn_backend backend) {
    cairn_config c;
    cairn_config_default(&c);
    c.backend = backend, c.log = CAIRN_LOG_OFF, c.allocator.realloc = counting_realloc;
    c.threads = 1, c.page_size = 16, c.max_batch = 1, c.prefill_chunk = 16;
    return c;
}

/* The animal as it always is. */
static family same_animal(size_t i) {
    uint64_t state = 1000 + i;
    return zoo[i].make(&state);
}

static size_t animal(const char *name) {
    size_t i = 0;
    while (i + 1 < BASE_COUNT(zoo) && strcmp(zoo[i].name, name)) i++;
    return i;
}

/* ---- goldens --------------------------------------------------------------------------------- */

enum { COUNT = 90 };

/* The largest distance of the first `count` rows' logits from the golden ones; < 0: no eval. */
static double off_golden(cairn_model *m, const json_value *golden, int count, double *nll) {
    const int vocab = m->shape.vocab;
    int32_t ids[COUNT], *top_ids = (int32_t *)malloc(sizeof *top_ids * COUNT * (size_t)vocab);
    float *logits = (float *)malloc(sizeof *logits * COUNT * (size_t)vocab);
    const json_value *row = json_get(golden, "rows")->first, *want = json_get(golden, "logits")->first;
    double worst = 0;
    cairn_eval_args a;
    golden_ids(vocab, COUNT, ids);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.ids = ids, a.count = count, a.top = vocab;
    a.top_ids = top_ids, a.top_logits = logits;
    if (cairn_eval(m, &a, nll)) {
        tap_note("%s", cairn_last_error(m->runtime));
        worst = -1;
    }
    for (; row && row->number < count && worst >= 0; row = row->next, want = want->next) {
        double by_id[512];
        int id = 0;
        for (int i = 0; i < vocab; i++)
            by_id[top_ids[(int)row->number * vocab + i]] =
                (double)logits[(int)row->number * vocab + i];
        for (const json_value *w = want->first; w; w = w->next, id++) {
            double off = fabs(by_id[id] - w->number) / (1 + fabs(w->number));
            if (!(off <= worst)) worst = off;
        }
    }
    free(top_ids), free(logits);
    return worst;
}

static void test_golden_on(cairn_backend backend, const char *name, const char *path,
                           const json_value *golden) {
    const char *where = backend == CAIRN_BACKEND_CUDA ? "cuda" : "cpu";
    const int count = is_emulated(backend) ? 41 : COUNT; /* beyond windows */
    cairn_config c = small_config(backend);
    cairn_runtime *rt = open_runtime_on(&c, "goldens");
    cairn_model *m = NULL;
    double nll = 0, worst;
    if (!rt) return;
    if (tap_ok(!cairn_load_model(rt, path, &m), "%s: loads on %s", name, where)) {
        worst = off_golden(m, golden, count, &nll);
        tap_ok(worst >= 0 && worst < 5e-3,
               "%s: logits of the first %d tokens within %.1e of transformers' on %s", name, count,
               worst, where);
        if (count == COUNT)
            tap_ok(fabs(nll - json_get(golden, "nll")->number) < 2e-3,
                   "%s: nll %.4f is transformers' on %s", name, nll, where);
    } else {
        tap_note("%s", cairn_last_error(rt));
    }
    cairn_close(rt);
}

/* What cairn_model_check tells of a file. */
static void test_report(const family *f, const char *path) {
    cairn_config c = small_config(CAIRN_BACKEND_CPU);
    cairn_model_report r;
    char why[512];
    memset(&r, 0, sizeof r);
    r.struct_size = sizeof r;
    tap_ok(!cairn_model_check(&c, path, &r, why, sizeof why) && !strcmp(r.architecture, f->architecture) &&
           r.layers == f->layers && r.hidden == f->hidden && r.heads == f->heads &&
           r.kv_heads == f->kv_heads && r.context == f->context && r.vocab == f->vocab &&
           r.tensors == f->count, "%s: what it is (%d heads over %d)%s", path, (int)r.heads, (int)r.kv_heads, why);
}

static void test_golden(size_t i) {
    char path[64], golden_path[96];
    family f = same_animal(i);
    json_value *golden;
    snprintf(path, sizeof path, "build/family_files_%s.gguf", zoo[i].name);
    snprintf(golden_path, sizeof golden_path, "tests/golden/families/%s.json", zoo[i].name);
    golden = json_read(golden_path);
    if (tap_ok(golden && family_write(&f, path) &&
               crc_of(path) == (uint32_t)json_get(golden, "crc")->number,
               "%s: the model is the one that transformers ran", zoo[i].name)) {
        test_report(&f, path);
        test_golden_on(CAIRN_BACKEND_CPU, zoo[i].name, path, golden);
        if (zoo[i].emulated || !is_emulated(CAIRN_BACKEND_CUDA))
            test_golden_on(CAIRN_BACKEND_CUDA, zoo[i].name, path, golden);
    }
    json_free(golden);
    family_free(&f);
    remove(path);
}

/* What the GPU's kernels have no code for is refused there by name. */
static void test_refused(void) {
    const char *path = "build/family_files_refused.gguf";
    cairn_config c = small_config(CAIRN_BACKEND_CUDA);
    cairn_runtime *rt = open_runtime_on(&c, "families that the GPU lacks");
    if (rt) { /* 144 values in all */
        uint64_t state = 7;
        family f = {.architecture = "llama", .layers = 1, .hidden = 64, .heads = 3,
                    .kv_heads = 1, .dim = 48, .ffn = 64, .vocab = 120, .context = 64};
        cairn_model *m = NULL;
        static const int types[] = {BLOCK_F16};
        family_make(&f, types, 1, &state);
        if (family_write(&f, path)) {
            cairn_status status = cairn_load_model(rt, path, &m);
            tap_ok(status == CAIRN_UNSUPPORTED && strstr(cairn_last_error(rt), "on the GPU"),
                   "refused: %s", cairn_last_error(rt));
        }
        family_free(&f);
    }
    if (rt) cairn_close(rt);
    remove(path);
}

/* ---- hostile files --------------------------------------------------------------------------- */

typedef enum hostile_change { KEY, WITHOUT_KEY, VALUE, WIDTH, ADD, WITHOUT } hostile_change;

/* What is changed of an animal, and what the failure must say. */
typedef struct hostile {
    const char *animal;
    hostile_change change;
    const char *name;
    int type;        /* of a key; of a tensor that is added: its columns */
    double number;   /* of a key; the tensor's first value, or by how many columns it is wider */
    const char *text;
    cairn_status status;
    const char *says;
} hostile;

static const hostile hostiles[] = {
    {"lfm2", KEY, "shortconv.l_cache", 4, 9, NULL, CAIRN_UNSUPPORTED, "convolutions of 9 taps"},
    {"lfm2", WITHOUT_KEY, "shortconv.l_cache", 0, 0, NULL, CAIRN_BAD_FILE, "shortconv.l_cache"},
    {"lfm2", KEY, "block_count", 4, 4, NULL, CAIRN_BAD_FILE, "has 3 numbers for 4 layers"},
    {"llama3", KEY, "block_count", 4, 513, NULL, CAIRN_UNSUPPORTED, "513 layers; up to 512"},
    {"llama3", WIDTH, "rope_freqs.weight", 0, -1, NULL, CAIRN_BAD_FILE, "[1, 31]"},
    {"llama3", WIDTH, "rope_freqs.weight", 0, 1, NULL, CAIRN_BAD_FILE, "[1, 33]"},
    {"llama3", VALUE, "rope_freqs.weight", 0, 0, NULL, CAIRN_BAD_FILE, "has 0 at 0"},
    {"llama3", VALUE, "rope_freqs.weight", 0, -2, NULL, CAIRN_BAD_FILE, "has -2 at 0"},
    {"llama3", VALUE, "rope_freqs.weight", 0, NAN, NULL, CAIRN_BAD_FILE, "nan at 0"},
    {"llama3", VALUE, "rope_freqs.weight", 0, INFINITY, NULL, CAIRN_BAD_FILE, "has inf at 0"},
    {"llama3", ADD, "rope_factors_long.weight", 32, 1, NULL, CAIRN_BAD_FILE,
     "'rope_factors_short.weight' is missing"},
    {"llama3", KEY, "rope.scaling.type", 8, 0, "longrope", CAIRN_BAD_FILE,
     "'rope_factors_short.weight' is missing"},
    {"llama3", ADD, "blk.0.ffn_gate_inp.weight", 32, 1, NULL, CAIRN_UNSUPPORTED,
     "'blk.0.ffn_gate_inp.weight' is not supported in the family 'llama'"},
    {"llama3", ADD, "blk.1.attn_output.bias", 128, 1, NULL, CAIRN_UNSUPPORTED,
     "'blk.1.attn_output.bias'"},
    {"llama3", ADD, "blk.1.attn_q.bias", 256, 1, NULL, CAIRN_BAD_FILE, "'blk.1.attn_k.bias'"},
    {"llama3", ADD, "blk.1.attn_q.bias", 255, 1, NULL, CAIRN_BAD_FILE, "'blk.1.attn_q.bias'"},
    {"llama3", ADD, "blk.1.attn_k.bias", 128, 1, NULL, CAIRN_UNSUPPORTED, "'blk.1.attn_k.bias'"},
    {"llama3", ADD, "anything", 5, 1, NULL, CAIRN_UNSUPPORTED, "'anything'"},
    {"llama3", KEY, "rope.freq_base", 6, 1, NULL, CAIRN_BAD_FILE, "powers of 1 "},
    {"llama3", KEY, "rope.freq_base", 6, NAN, NULL, CAIRN_BAD_FILE, "'llama.rope.freq_base' is "},
    {"llama3", KEY, "rope.freq_base", 4, 5, NULL, CAIRN_BAD_FILE, "'llama.rope.freq_base'"},
    {"llama3", KEY, "rope.dimension_count", 4, 66, NULL, CAIRN_BAD_FILE, "66 values of a head"},
    {"llama3", KEY, "rope.dimension_count", 4, 63, NULL, CAIRN_BAD_FILE, "63 values of a head"},
    {"llama3", KEY, "rope.dimension_count", 4, 0, NULL, CAIRN_BAD_FILE, "rope.dimension_count' is 0"},
    {"llama3", KEY, "attention.clamp_kqv", 6, 8, NULL, CAIRN_UNSUPPORTED,
     "the key 'llama.attention.clamp_kqv' is not supported"},
    {"llama3", KEY, "logit_scale", 6, 0.125, NULL, CAIRN_UNSUPPORTED, "'llama.logit_scale'"},
    {"llama3", KEY, "attention.value_length", 4, 32, NULL, CAIRN_UNSUPPORTED,
     "'llama.attention.value_length' is 32; 64 is supported"},
    {"llama3", KEY, "rope.scale_linear", 6, 4, NULL, CAIRN_UNSUPPORTED, "'llama.rope.scale_linear'"},
    {"mistral", KEY, "attention.sliding_window_pattern", 4, 2, NULL, CAIRN_UNSUPPORTED,
     "'llama.attention.sliding_window_pattern'"},
    {"qwen2", KEY, "attention.sliding_window", 4, 32, NULL, CAIRN_UNSUPPORTED,
     "'qwen2.attention.sliding_window'"},
    {"gemma3", KEY, "rope.local.freq_base", 6, 500, NULL, CAIRN_UNSUPPORTED,
     "'gemma3.rope.local.freq_base'"},
    {"qwen3moe", KEY, "expert_gating_func", 4, 2, NULL, CAIRN_UNSUPPORTED,
     "'qwen3moe.expert_gating_func' is 2; 1 is supported"},
    {"qwen3moe", KEY, "expert_weights_scale", 6, 2.5, NULL, CAIRN_UNSUPPORTED,
     "'qwen3moe.expert_weights_scale' is 2.5"},
    {"qwen3moe", KEY, "expert_weights_norm", 7, 0, NULL, CAIRN_UNSUPPORTED,
     "'qwen3moe.expert_weights_norm' is false; true is supported"},
    {"llama3", KEY, "attention.causal", 7, 0, NULL, CAIRN_UNSUPPORTED, "'llama.attention.causal' is false"},
    {"qwen3moe", KEY, "expert_shared_count", 4, 1, NULL, CAIRN_UNSUPPORTED,
     "'qwen3moe.expert_shared_count'"},
    {"linear", KEY, "rope.scaling.factor", 6, 0, NULL, CAIRN_BAD_FILE, "rope.scaling.factor' is 0"},
    {"linear", KEY, "rope.scaling.factor", 6, -4, NULL, CAIRN_BAD_FILE, "scaling.factor' is -4"},
    {"linear", KEY, "rope.scaling.factor", 6, NAN, NULL, CAIRN_BAD_FILE, "rope.scaling.factor' is"},
    {"linear", KEY, "rope.scaling.factor", 6, INFINITY, NULL, CAIRN_BAD_FILE, "factor' is inf"},
    {"linear", KEY, "rope.scaling.factor", 8, 0, "4", CAIRN_BAD_FILE, "'llama.rope.scaling.factor'"},
    {"linear", KEY, "rope.scaling.type", 8, 0, "su", CAIRN_UNSUPPORTED, "rope scaling 'su'"},
    {"linear", KEY, "rope.scaling.type", 8, 0, "", CAIRN_UNSUPPORTED, "rope scaling ''"},
    {"linear", KEY, "rope.scaling.type", 4, 1, NULL, CAIRN_BAD_FILE, "'llama.rope.scaling.type'"},
    {"linear", KEY, "rope.scaling.attn_factor", 6, -1, NULL, CAIRN_BAD_FILE, "attn_factor' is -1"},
    {"yarn", WITHOUT_KEY, "rope.scaling.factor", 0, 0, NULL, CAIRN_BAD_FILE,
     "llama.rope.scaling.factor"},
    {"yarn", KEY, "rope.scaling.original_context_length", 4, 0, NULL, CAIRN_BAD_FILE,
     "original_context_length' is 0"},
    {"yarn", KEY, "rope.scaling.original_context_length", 6, 64, NULL, CAIRN_BAD_FILE,
     "original_context_length'"},
    {"yarn", KEY, "rope.scaling.yarn_beta_fast", 6, NAN, NULL, CAIRN_BAD_FILE, "yarn_beta_fast'"},
    {"yarn", KEY, "rope.scaling.yarn_beta_slow", 6, -1, NULL, CAIRN_BAD_FILE, "yarn_beta_slow' is -1"},
    {"yarn", KEY, "rope.scaling.yarn_log_multiplier", 6, 0.1, NULL, CAIRN_UNSUPPORTED,
     "yarn_log_multiplier' is 0.1"},
    {"yarn", KEY, "rope.scaling.yarn_ext_factor", 6, 0.5, NULL, CAIRN_UNSUPPORTED,
     "yarn_ext_factor' is 0.5"},
    {"mistral", KEY, "attention.sliding_window", 6, 27, NULL, CAIRN_BAD_FILE,
     "'llama.attention.sliding_window'"},
    {"mistral", KEY, "attention.sliding_window", 8, 0, "27", CAIRN_BAD_FILE,
     "'llama.attention.sliding_window'"},
    {"qwen2", WITHOUT, "blk.0.attn_q.bias", 0, 0, NULL, CAIRN_BAD_FILE,
     "'blk.0.attn_q.bias' is missing"},
    {"qwen2", WITHOUT, "blk.1.attn_v.bias", 0, 0, NULL, CAIRN_BAD_FILE,
     "'blk.1.attn_v.bias' is missing"},
    {"qwen2", WIDTH, "blk.1.attn_k.bias", 0, 1, NULL, CAIRN_BAD_FILE, "'blk.1.attn_k.bias' is [1, 65]"},
    {"qwen2", ADD, "blk.1.attn_output.bias", 128, 1, NULL, CAIRN_UNSUPPORTED,
     "'blk.1.attn_output.bias' is not supported in the family 'qwen2'"},
    {"qwen2", KEY, "attention.head_count_kv", 4, 3, NULL, CAIRN_BAD_FILE, "not a multiple of 3"},
    {"qwen3", WITHOUT, "blk.1.attn_k_norm.weight", 0, 0, NULL, CAIRN_BAD_FILE,
     "'blk.1.attn_k_norm.weight' is missing"},
    {"qwen3", WIDTH, "blk.0.attn_q_norm.weight", 0, -1, NULL, CAIRN_BAD_FILE,
     "'blk.0.attn_q_norm.weight' is [1, 63]"},
    {"qwen3", ADD, "blk.0.attn_q.bias", 384, 1, NULL, CAIRN_UNSUPPORTED, "'blk.0.attn_q.bias'"},
    {"qwen3", KEY, "attention.key_length", 4, 65, NULL, CAIRN_UNSUPPORTED, "65 values"},
    {"qwen3", KEY, "attention.key_length", 4, 0, NULL, CAIRN_BAD_FILE, "key_length' is 0"},
    {"qwen3moe", KEY, "expert_used_count", 4, 10, NULL, CAIRN_UNSUPPORTED, "10 of 9 experts"},
    {"qwen3moe", KEY, "expert_used_count", 4, 0, NULL, CAIRN_BAD_FILE, "expert_used_count' is 0"},
    {"qwen3moe", KEY, "expert_count", 4, 5000, NULL, CAIRN_UNSUPPORTED, "of 5000 experts"},
    {"qwen3moe", KEY, "expert_count", 4, 8, NULL, CAIRN_BAD_FILE,
     "'blk.0.ffn_gate_inp.weight' is [9, 64]; [8, 64]"},
    {"qwen3moe", WITHOUT_KEY, "expert_feed_forward_length", 0, 0, NULL, CAIRN_BAD_FILE,
     "qwen3moe.expert_feed_forward_length"},
    {"qwen3moe", KEY, "expert_feed_forward_length", 4, 63, NULL, CAIRN_BAD_FILE,
     "'blk.0.ffn_gate_exps.weight' is [576, 64]; [567, 64]"},
    {"qwen3moe", WITHOUT, "blk.1.ffn_down_exps.weight", 0, 0, NULL, CAIRN_BAD_FILE,
     "'blk.1.ffn_down_exps.weight' is missing"},
    {"qwen3moe", ADD, "blk.0.ffn_gate.weight", 64, 1, NULL, CAIRN_UNSUPPORTED,
     "'blk.0.ffn_gate.weight'"},
    {"gemma3", WITHOUT_KEY, "attention.sliding_window", 0, 0, NULL, CAIRN_BAD_FILE,
     "gemma3.attention.sliding_window"},
    {"gemma3", KEY, "attention.sliding_window", 4, 0, NULL, CAIRN_BAD_FILE, "sliding_window' is 0"},
    {"gemma3", KEY, "attention.sliding_window_pattern", 4, 0, NULL, CAIRN_BAD_FILE,
     "sliding_window_pattern' is 0"},
    {"gemma3", KEY, "rope.freq_base_swa", 6, -1, NULL, CAIRN_BAD_FILE, "freq_base_swa' is -1"},
    {"gemma3", KEY, "rope.freq_base_swa", 6, NAN, NULL, CAIRN_BAD_FILE, "freq_base_swa' is"},
    {"gemma3", KEY, "attention.scale", 6, 0, NULL, CAIRN_BAD_FILE, "attention.scale' is 0"},
    {"gemma3", KEY, "attention.scale", 6, NAN, NULL, CAIRN_BAD_FILE, "attention.scale' is"},
    {"gemma3", KEY, "final_logit_softcapping", 6, 30, NULL, CAIRN_UNSUPPORTED,
     "'gemma3.final_logit_softcapping' is 30"},
    {"gemma3", KEY, "attn_logit_softcapping", 6, 50, NULL, CAIRN_UNSUPPORTED,
     "'gemma3.attn_logit_softcapping' is 50"},
    {"gemma3", WITHOUT, "blk.3.post_ffw_norm.weight", 0, 0, NULL, CAIRN_BAD_FILE,
     "'blk.3.post_ffw_norm.weight' is missing"},
    {"gemma3", WIDTH, "blk.6.post_attention_norm.weight", 0, 1, NULL, CAIRN_BAD_FILE,
     "'blk.6.post_attention_norm.weight' is [1, 65]"},
    {"phi3", WITHOUT, "blk.1.attn_qkv.weight", 0, 0, NULL, CAIRN_BAD_FILE,
     "'blk.1.attn_qkv.weight' is missing"},
    {"phi3", WIDTH, "blk.0.attn_qkv.weight", 0, 1, NULL, CAIRN_BAD_FILE,
     "'blk.0.attn_qkv.weight' is [256, 129]; [256, 128]"},
    {"phi3", WIDTH, "blk.1.ffn_up.weight", 0, -1, NULL, CAIRN_BAD_FILE,
     "'blk.1.ffn_up.weight' is [192, 127]; [192, 128]"},
    {"phi3", KEY, "attention.head_count_kv", 4, 2, NULL, CAIRN_BAD_FILE,
     "'blk.0.attn_qkv.weight' is [256, 128]; [384, 128]"},
    {"phi3", KEY, "feed_forward_length", 4, 95, NULL, CAIRN_BAD_FILE,
     "'blk.0.ffn_up.weight' is [192, 128]; [190, 128]"},
    {"phi3", KEY, "rope.dimension_count", 4, 80, NULL, CAIRN_BAD_FILE, "80 values of a head"},
    {"phi3_long", WITHOUT, "rope_factors_short.weight", 0, 0, NULL, CAIRN_BAD_FILE,
     "'rope_factors_short.weight' is missing"},
    {"phi3_long", WIDTH, "rope_factors_long.weight", 0, 1, NULL, CAIRN_BAD_FILE,
     "'rope_factors_long.weight' is [1, 25]"},
    {"phi3_long", VALUE, "rope_factors_short.weight", 0, -1, NULL, CAIRN_BAD_FILE, "has -1 at 0"},
    {"phi3_short", VALUE, "rope_factors_long.weight", 0, NAN, NULL, CAIRN_BAD_FILE, "nan at 0"},
    {"phi3_long", KEY, "rope.scaling.attn_factor", 6, NAN, NULL, CAIRN_BAD_FILE, "attn_factor' is"},
    {"smollm3", ADD, "blk.3.attn_q_norm.weight", 16, 1, NULL, CAIRN_UNSUPPORTED,
     "'blk.3.attn_q_norm.weight' is not supported in the family 'smollm3'"},
};

/* Phi's factors follow max_seq_len, and a session of the one does not load into the other. */
static void test_long_rope(void) {
    static const int limits[] = {64, 65, 0};
    const char *path = "build/family_files_long.gguf";
    family f = same_animal(animal("phi3_long"));
    const double *factors[2];
    uint8_t *saved = NULL;
    size_t bytes = 0;
    factors[0] = family_find(&f, "rope_factors_short.weight")->values;
    factors[1] = family_find(&f, "rope_factors_long.weight")->values;
    family_write(&f, path);
    for (int i = 0; i < 3; i++) {
        cairn_config c = small_config(CAIRN_BACKEND_CPU);
        cairn_runtime *rt;
        cairn_model *m = NULL;
        cairn_session *s = NULL;
        const int32_t ids[] = {5, 6, 7, 8};
        cairn_status status;
        char error[256];
        double want = pow(10000, -2.0 * 5 / 48) / factors[i > 0][5];
        c.max_seq_len = limits[i];
        if (cairn_open(&c, &rt, error, sizeof error)) { tap_ok(false, "%s", error); return; }
        cairn_load_model(rt, path, &m);
        tap_ok(m && fabs(m->plan.ropes[0].frequency[5] / want - 1) < 1e-6,
               "max_seq_len %d of 64 and 256 takes the %s factors", limits[i], i ? "long" : "short");
        if (!m || cairn_session_open(m, &s)) return;
        if (i) {
            status = cairn_session_load_memory(s, saved, bytes);
            tap_ok(i == 1 ? status != CAIRN_OK : status == CAIRN_OK,
                   i == 1 ? "a session by other factors does not load" : "one by the same does");
        }
        free(saved);
        cairn_append_ids(s, ids, 4);
        cairn_session_save_memory(s, NULL, 0, &bytes);
        saved = (uint8_t *)malloc(bytes);
        tap_ok(!cairn_session_save_memory(s, saved, bytes, &bytes), "a session is saved");
        cairn_close(rt);
    }
    free(saved);
    family_free(&f);
    remove(path);
}

static family_tensor *tensor_of(family *f, const char *name) {
    for (int i = 0; i < f->count; i++)
        if (!strcmp(f->tensors[i].name, name)) return &f->tensors[i];
    return NULL;
}

/* The tensor with its first value changed, or some columns more or less. */
static void change_tensor(family *f, const hostile *h) {
    family_tensor *t = tensor_of(f, h->name), was = *t;
    float value = (float)h->number;
    if (h->change == VALUE) {
        memcpy(t->data, &value, 4);
        return;
    }
    t->columns += (int)h->number;
    t->bytes = (size_t)t->columns * 4 * (size_t)(t->rows ? t->rows : 1);
    t->type = BLOCK_F32;
    t->data = (uint8_t *)calloc(1, t->bytes);
    free(was.data);
}

static void spoil_family(family *f, const hostile *h) {
    const double ones[512] = {0};
    if (h->change == KEY) {
        family_put(f, h->name, h->type, h->number, h->text);
    } else if (h->change == WITHOUT_KEY) {
        for (int i = 0; i < f->key_count; i++)
            if (!strcmp(f->keys[i].name, h->name)) f->keys[i] = f->keys[--f->key_count];
    } else if (h->change == ADD) {
        family_vector(f, h->name, ones, h->type);
    } else if (h->change == WITHOUT) {
        family_tensor *t = tensor_of(f, h->name);
        free(t->data), free(t->values);
        *t = f->tensors[--f->count];
    } else {
        change_tensor(f, h);
    }
}

/* What cairn_model_check says of the file. */
static cairn_model_report report_of(const char *path, char *why, size_t bytes) {
    const cairn_config c = small_config(CAIRN_BACKEND_CPU);
    cairn_model_report r;
    memset(&r, 0, sizeof r);
    r.struct_size = sizeof r;
    cairn_model_check(&c, path, &r, why, bytes);
    return r;
}

static void test_hostile(const hostile *h) {
    const char *path = "build/family_files_hostile.gguf";
    family f = same_animal(animal(h->animal));
    cairn_config c = small_config(CAIRN_BACKEND_CPU);
    cairn_runtime *rt = NULL;
    cairn_model *m = NULL;
    cairn_status status;
    char error[256], why[2048];
    bool says;
    spoil_family(&f, h);
    family_write(&f, path);
    live_bytes = 0;
    tap_ok(report_of(path, why, sizeof why).reasons && strstr(why, h->says) && live_bytes == 0,
           "%s with %s: a check says so", h->animal, h->name);
    if (cairn_open(&c, &rt, error, sizeof error)) { tap_ok(false, "%s", error); return; }
    status = cairn_load_model(rt, path, &m);
    says = strstr(cairn_last_error(rt), h->says) != NULL;
    tap_ok(status == h->status && says && !m, "%s with %s: %s", h->animal, h->name, h->says);
    if (status != h->status || !says) tap_note("%d: %s", (int)status, cairn_last_error(rt));
    cairn_close(rt);
    tap_ok(live_bytes == 0, "nothing is left allocated");
    family_free(&f);
    remove(path);
}

/* A file with much against it: a check tells all of it, a load the first. */
/* KV heads of lfm2's layers: numbers that differ, one that is none, and none at all. */
static void test_kv_heads(void) {
    static const struct { uint32_t first, others; const char *says; } rows[] = {
        {3, 0, "KV heads; one number in all layers with attention"},
        {1 << 20, 0, "layer 0 has 1048576 KV heads"}, {0, 1, "no layer has attention"}};
    const char *path = "build/family_files_kv.gguf", *key = "lfm2.attention.head_count_kv";
    for (size_t i = 0; i < BASE_COUNT(rows); i++) {
        family f = same_animal(animal("lfm2"));
        base b;
        base_text file = {NULL, 0, 0};
        char why[2048] = "";
        family_write(&f, path);
        base_init(&b, NULL, NULL, NULL, CAIRN_LOG_OFF);
        const bool read = !os_read_file(&b, path, &file);
        for (size_t at = 0; read && at + strlen(key) < file.size; at++) {
            if (memcmp(file.data + at, key, strlen(key))) continue;
            uint8_t *numbers = (uint8_t *)file.data + at + strlen(key) + 4 + 4 + 8; /* types, count */
            for (int l = 0; l < f.layers; l++) {
                const uint32_t n = l ? 0 : rows[i].first;
                if (!l || rows[i].others) memcpy(numbers + 4 * l, &n, 4);
            }
            break;
        }
        FILE *out = fopen(path, "wb");
        if (tap_ok(read && out && fwrite(file.data, 1, file.size, out) == file.size && !fclose(out), "written"))
            tap_ok(report_of(path, why, sizeof why).reasons && strstr(why, rows[i].says), "lfm2: %s", why);
        base_text_free(&b, &file);
        family_free(&f);
    }
    remove(path);
}

static void test_all_reasons(void) {
    static const hostile changes[] = {
        {"", KEY, "rope.scaling.type", 8, 0, "su", CAIRN_OK, "rope scaling 'su'"},
        {"", KEY, "attention.clamp_kqv", 6, 8, NULL, CAIRN_OK, "'llama.attention.clamp_kqv'"},
        {"", KEY, "logit_scale", 6, 0.5, NULL, CAIRN_OK, "'llama.logit_scale'"},
        {"", WITHOUT, "blk.1.attn_k.weight", 0, 0, NULL, CAIRN_OK, "'blk.1.attn_k.weight' is missing"},
        {"", WITHOUT, "blk.1.ffn_up.weight", 0, 0, NULL, CAIRN_OK, "'blk.1.ffn_up.weight' is missing"}};
    const char *path = "build/family_files_reasons.gguf", *at;
    family f = same_animal(animal("llama3"));
    cairn_config c = small_config(CAIRN_BACKEND_CPU);
    cairn_runtime *rt = open_runtime_on(&c, "llama3");
    cairn_model *m = NULL;
    cairn_model_report r;
    char why[2048];
    bool told = true;
    for (size_t i = 0; i < BASE_COUNT(changes); i++) spoil_family(&f, &changes[i]);
    tensor_of(&f, "blk.0.attn_q.weight")->type = 22;
    tensor_of(&f, "blk.0.attn_norm.weight")->type = 22;
    family_write(&f, path);
    r = report_of(path, why, sizeof why);
    at = why;
    for (size_t i = 0; i < BASE_COUNT(changes); i++) told = told && at && (at = strstr(at, changes[i].says));
    tap_ok(told && strstr(at, "block type IQ2_S (22) of 2 tensors") && r.reasons == 1 + (int)BASE_COUNT(changes), "%d reasons in order: %s", (int)r.reasons, why);
    tensor_of(&f, "blk.0.attn_q.weight")->type = tensor_of(&f, "blk.0.attn_norm.weight")->type = BLOCK_F32;
    family_write(&f, path);
    if (rt)
        tap_ok(cairn_load_model(rt, path, &m) == CAIRN_UNSUPPORTED && !m &&
               strstr(cairn_last_error(rt), changes[0].says), "a load: %s", cairn_last_error(rt));
    if (rt) cairn_close(rt);
    family_free(&f);
    remove(path);
}

/* Each animal with a block type that is not supported, of all its tensors: one reason, and none besides. */
static void test_types(size_t i) {
    const char *path = "build/family_files_types.gguf";
    family f = same_animal(i);
    cairn_model_report r;
    char why[2048];
    for (int t = 0; t < f.count; t++) f.tensors[t].type = 22;
    family_write(&f, path);
    r = report_of(path, why, sizeof why);
    tap_ok(r.reasons == 1 && strstr(why, "IQ2_S (22)"), "%s of another block type: %s", zoo[i].name, why);
    family_free(&f);
    remove(path);
}

/* Keys that change nothing are no reason. */
static void test_notes(const char *name, const family_key *notes, size_t count) {
    const char *path = "build/family_files_notes.gguf";
    family f = same_animal(animal(name));
    char why[2048];
    for (size_t i = 0; i < count; i++)
        family_put(&f, notes[i].name, notes[i].type, notes[i].number, notes[i].text);
    family_write(&f, path);
    tap_ok(!report_of(path, why, sizeof why).reasons, "%s: notes are no reason%s%s", name, *why ? ": " : "", why);
    family_free(&f);
    remove(path);
}

static void test_all_notes(void) {
    static const family_key plain[] = {
        {"vocab_size", 4, 120, NULL}, {"attention.value_length", 4, 64, NULL}, {"pooling_type", 4, 0, NULL},
        {"attention.causal", 7, 1, NULL}, {"rope.scaling.finetuned", 7, 1, NULL},
        {"tensor_data_layout", 8, 0, "Meta AI original pth"}, {"expert_count", 4, 0, NULL},
        {"expert_used_count", 4, 0, NULL}};
    static const family_key experts[] = {
        {"feed_forward_length", 4, 6144, NULL}, {"expert_gating_func", 4, 1, NULL},
        {"expert_weights_scale", 6, 1, NULL}, {"expert_weights_norm", 7, 1, NULL}};
    test_notes("llama3", plain, BASE_COUNT(plain));
    test_notes("qwen3moe", experts, BASE_COUNT(experts));
}

/* A family's file under another's name: what that one has no code for is told, not what it lacks. */
static void test_other_family(const char *name, const char *as, const char *says) {
    const char *path = "build/family_files_other.gguf";
    family f = same_animal(animal(name));
    cairn_config c = small_config(CAIRN_BACKEND_CPU);
    cairn_runtime *rt = open_runtime_on(&c, name);
    cairn_model *m = NULL;
    f.architecture = as;
    family_write(&f, path);
    if (rt)
        tap_ok(cairn_load_model(rt, path, &m) == CAIRN_UNSUPPORTED && strstr(cairn_last_error(rt), says) && !m,
               "%s as %s: %s", name, as, cairn_last_error(rt));
    if (rt) cairn_close(rt);
    family_free(&f);
    remove(path);
}

static int write_zoo(const char *folder) {
    char path[256];
    bool fine = true;
    os_make_path(folder);
    for (size_t i = 0; i < BASE_COUNT(zoo); i++) {
        family f = same_animal(i);
        snprintf(path, sizeof path, "%s/%s.gguf", folder, zoo[i].name);
        fine &= family_write(&f, path);
        family_free(&f);
    }
    return !fine;
}

int main(int count, char **words) {
    if (count > 1) return write_zoo(words[1]);
    os_make_path("build");
    for (size_t i = 0; i < BASE_COUNT(zoo); i++) test_golden(i);
    test_long_rope();
    test_refused();
    for (size_t i = 0; i < BASE_COUNT(hostiles); i++) test_hostile(&hostiles[i]);
    for (size_t i = 0; i < BASE_COUNT(zoo); i++) test_types(i);
    test_kv_heads();
    test_all_reasons();
    test_all_notes();
    test_other_family("qwen3moe", "qwen3", "'blk.0.ffn_gate_inp.weight': a ffn of experts is not supported");
    test_other_family("qwen3", "llama", "'blk.0.attn_k_norm.weight' is not supported in the family 'llama', "
                                        "nor are 3 more");
    return tap_done();
}

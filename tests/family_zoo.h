/* family_zoo: one small random model of each family and of each form of rope, and what its keys and
 * tensors come to for tests/ref/llama_ref.h.
 *
 *     family f = zoo[i].make(&state);
 *     llama_ref r = zoo_ref(&f);      the reference on its weights; zoo_ref_free(&r), family_free(&f)
 *
 * After family.h and ref/llama_ref.h. */
#ifndef FAMILY_ZOO_H
#define FAMILY_ZOO_H

#define ZOO_PI 3.14159265358979323846

#ifndef ZOO_TYPES /* what weights are drawn from */
#define ZOO_TYPES BLOCK_F32, BLOCK_F16, BLOCK_BF16, BLOCK_Q4_0, BLOCK_Q4_1, BLOCK_Q8_0
#endif
static const int zoo_types[] = {ZOO_TYPES};

static void zoo_fill(family *f, uint64_t *state) {
    family_make(f, zoo_types, (int)BASE_COUNT(zoo_types), state);
}

/* The turns of one rope without scaling. */
static void zoo_turns(family *f, int which, double turns) {
    const int dims = f->rotated ? f->rotated : f->dim;
    f->magnitude = 1;
    for (int j = 0; j < dims / 2; j++) f->frequency[which][j] = pow(turns, -2.0 * j / dims);
}

/* ---- llama ----------------------------------------------------------------------------------- */

static family zoo_llama(uint64_t *state) {
    return (family){.architecture = "llama", .layers = 2, .hidden = 128, .heads = 4, .kv_heads = 2,
                    .dim = 64, .ffn = 96, .vocab = 120, .context = 256,
                    .own_head = random_next(state) % 2};
}

/* Llama 3.x: short waves stay, long ones are stretched 8 times, those between by a mixture. */
static family zoo_llama3(uint64_t *state) {
    family f = zoo_llama(state);
    const double original = 32, least = 1, most = 4, stretch = 8;
    double factors[32];
    zoo_turns(&f, 0, 500000);
    for (int j = 0; j < 32; j++) {
        double turns = original * f.frequency[0][j] / (2 * ZOO_PI), mix;
        mix = turns > most ? 1 : turns < least ? 0 : (turns - least) / (most - least);
        factors[j] = 1 / (mix + (1 - mix) / stretch);
        f.frequency[0][j] /= factors[j];
    }
    zoo_fill(&f, state);
    family_put(&f, "rope.freq_base", 6, 500000, NULL);
    family_vector(&f, "rope_freqs.weight", factors, 32);
    return f;
}

static family zoo_linear(uint64_t *state) {
    family f = zoo_llama(state);
    zoo_turns(&f, 0, 10000);
    for (int j = 0; j < 32; j++) f.frequency[0][j] /= 4;
    zoo_fill(&f, state);
    family_put(&f, "rope.scaling.type", 8, 0, "linear");
    family_put(&f, "rope.scaling.factor", 6, 4, NULL);
    return f;
}

/* YaRN: pairs that turn 32 times in the original context stay, those that turn once are stretched;
 * the ramp between them runs over the pairs. */
static void zoo_yarn_scale(family *f, double turns, double original, double stretch) {
    const int dims = f->rotated ? f->rotated : f->dim;
    int low = (int)floor(dims * log(original / (32 * 2 * ZOO_PI)) / log(turns) / 2);
    int high = (int)ceil(dims * log(original / (2 * ZOO_PI)) / log(turns) / 2);
    if (low < 0) low = 0;
    if (high > dims - 1) high = dims - 1;
    zoo_turns(f, 0, turns);
    for (int j = 0; j < dims / 2; j++) {
        double kept = j <= low ? 1 : j >= high ? 0 : 1 - (double)(j - low) / (high - low);
        f->frequency[0][j] = f->frequency[0][j] * kept + f->frequency[0][j] / stretch * (1 - kept);
    }
    f->magnitude = 0.1 * log(stretch) + 1;
    family_put(f, "rope.scaling.type", 8, 0, "yarn");
    family_put(f, "rope.scaling.factor", 6, stretch, NULL);
    family_put(f, "rope.scaling.original_context_length", 4, original, NULL);
    family_put(f, "rope.freq_base", 6, turns, NULL);
}

static family zoo_yarn(uint64_t *state) {
    family f = zoo_llama(state);
    zoo_yarn_scale(&f, 10000, 64, 4);
    zoo_fill(&f, state);
    return f;
}

/* Mistral: llama's form with a window in every layer, and heads apart from hidden / heads. */
static family zoo_mistral(uint64_t *state) {
    family f = {.architecture = "llama", .layers = 3, .hidden = 96, .heads = 6, .kv_heads = 2,
                .dim = 64, .ffn = 128, .vocab = 120, .context = 256, .window = 27,
                .own_head = true};
    zoo_fill(&f, state);
    return f;
}

/* ---- qwen ------------------------------------------------------------------------------------ */

static family zoo_qwen2(uint64_t *state) {
    family f = {.architecture = "qwen2", .layers = 2, .hidden = 128, .heads = 2, .kv_heads = 1,
                .dim = 64, .ffn = 96, .vocab = 120, .context = 256, .bias = true, .halves = true};
    zoo_turns(&f, 0, 1000000);
    zoo_fill(&f, state);
    family_put(&f, "rope.freq_base", 6, 1000000, NULL);
    return f;
}

static family zoo_qwen3(uint64_t *state) {
    family f = {.architecture = "qwen3", .layers = 2, .hidden = 96, .heads = 6, .kv_heads = 3,
                .dim = 64, .ffn = 128, .vocab = 120, .context = 256, .head_norms = true,
                .halves = true, .own_head = random_next(state) % 2};
    zoo_yarn_scale(&f, 1000000, 64, 4);
    zoo_fill(&f, state);
    return f;
}

/* More experts than rows of a step, and as many as a prompt's rows share. */
static family zoo_qwen3moe(uint64_t *state) {
    family f = {.architecture = "qwen3moe", .layers = 2, .hidden = 64, .heads = 4, .kv_heads = 2,
                .dim = 64, .ffn = 64, .vocab = 120, .context = 256, .head_norms = true,
                .halves = true, .experts = 9, .used = 3};
    zoo_fill(&f, state);
    return f;
}

/* ---- others ---------------------------------------------------------------------------------- */

static family zoo_gemma3(uint64_t *state) {
    family f = {.architecture = "gemma3", .layers = 7, .hidden = 64, .heads = 4, .kv_heads = 1,
                .dim = 256, .ffn = 96, .vocab = 120, .context = 256, .head_norms = true,
                .post_norms = true, .halves = true, .gelu = true, .window = 21, .period = 6};
    f.embed_scale = 8;
    zoo_turns(&f, 0, 1000000), zoo_turns(&f, 1, 10000);
    for (int j = 0; j < 128; j++) f.frequency[0][j] /= 8;
    zoo_fill(&f, state);
    family_put(&f, "rope.freq_base", 6, 1000000, NULL);
    family_put(&f, "rope.scaling.type", 8, 0, "linear");
    family_put(&f, "rope.scaling.factor", 6, 8, NULL);
    return f;
}

/* Other numbers where the file may say so. */
static family zoo_gemma3_own(uint64_t *state) {
    family f = {.architecture = "gemma3", .layers = 4, .hidden = 96, .heads = 4, .kv_heads = 2,
                .dim = 32, .ffn = 128, .vocab = 120, .context = 256, .head_norms = true,
                .post_norms = true, .halves = true, .gelu = true, .window = 40, .period = 3};
    f.embed_scale = sqrt(96), f.scale = 0.25;
    zoo_turns(&f, 0, 50000), zoo_turns(&f, 1, 500);
    zoo_fill(&f, state);
    family_put(&f, "rope.freq_base", 6, 50000, NULL);
    family_put(&f, "rope.freq_base_swa", 6, 500, NULL);
    family_put(&f, "attention.sliding_window_pattern", 4, 3, NULL);
    family_put(&f, "attention.scale", 6, 0.25, NULL);
    return f;
}

/* Part of a head turns; in a context of `original` by other factors than beyond it. */
static family zoo_phi3_of(uint64_t *state, bool stretched, int original) {
    family f = {.architecture = "phi3", .layers = 2, .hidden = 128, .heads = 2, .kv_heads = 1,
                .dim = 64, .ffn = 96, .vocab = 120, .context = 256, .halves = true, .fused = true,
                .rotated = 48, .own_head = true, .window = stretched ? 0 : 31};
    double factors[2][24];
    zoo_turns(&f, 0, 10000);
    if (!stretched) {
        zoo_fill(&f, state);
        return f;
    }
    for (int j = 0; j < 24; j++) {
        factors[0][j] = 1 + 0.05 * j, factors[1][j] = 1.5 + 0.4 * j;
        f.frequency[0][j] /= (double)(float)factors[original < f.context][j];
    }
    f.magnitude = original < 256 ? sqrt(1 + log(256.0 / original) / log(original)) : 1;
    zoo_fill(&f, state);
    family_vector(&f, "rope_factors_short.weight", factors[0], 24);
    family_vector(&f, "rope_factors_long.weight", factors[1], 24);
    family_put(&f, "rope.scaling.original_context_length", 4, original, NULL);
    family_put(&f, "rope.scaling.attn_factor", 6, f.magnitude, NULL);
    return f;
}

static family zoo_phi3(uint64_t *state) { return zoo_phi3_of(state, false, 0); }
static family zoo_phi3_long(uint64_t *state) { return zoo_phi3_of(state, true, 64); }
static family zoo_phi3_short(uint64_t *state) { return zoo_phi3_of(state, true, 256); }

/* As Phi 3 mini: heads of 96 values that turn whole, each with keys of its own. */
static family zoo_phi3_mini(uint64_t *state) {
    family f = {.architecture = "phi3", .layers = 2, .hidden = 192, .heads = 2, .kv_heads = 2,
                .dim = 96, .ffn = 96, .vocab = 120, .context = 256, .halves = true, .fused = true,
                .own_head = true, .window = 31};
    zoo_turns(&f, 0, 10000);
    zoo_fill(&f, state);
    return f;
}

/* Heads of 48 values, of which more share a KV head than attention takes at a time, nor in equal parts. */
static family zoo_groups(uint64_t *state) {
    family f = {.architecture = "llama", .layers = 2, .hidden = 64, .heads = 34, .kv_heads = 2,
                .dim = 48, .ffn = 64, .vocab = 120, .context = 256};
    zoo_turns(&f, 0, 10000);
    zoo_fill(&f, state);
    return f;
}

/* One KV head for all: as granite's and starcoder's 48, and of more than a prompt's tile has rows. */
static family zoo_multi_query(uint64_t *state) {
    family f = {.architecture = "llama", .layers = 2, .hidden = 64, .heads = 48, .kv_heads = 1,
                .dim = 64, .ffn = 64, .vocab = 120, .context = 256};
    zoo_turns(&f, 0, 10000);
    zoo_fill(&f, state);
    return f;
}
static family zoo_multi_query_many(uint64_t *state) {
    family f = {.architecture = "llama", .layers = 1, .hidden = 64, .heads = 131, .kv_heads = 1,
                .dim = 64, .ffn = 64, .vocab = 120, .context = 256};
    zoo_turns(&f, 0, 10000);
    zoo_fill(&f, state);
    return f;
}

static family zoo_smollm3(uint64_t *state) {
    family f = {.architecture = "smollm3", .layers = 5, .hidden = 96, .heads = 6, .kv_heads = 2,
                .dim = 64, .ffn = 96, .vocab = 120, .context = 256, .still = 4};
    zoo_turns(&f, 0, 2000000);
    zoo_fill(&f, state);
    family_put(&f, "rope.freq_base", 6, 2000000, NULL);
    return f;
}

static family zoo_lfm2(uint64_t *state) {
    family f = {.architecture = "lfm2", .layers = 3, .hidden = 128, .heads = 2, .kv_heads = 1,
                .dim = 64, .ffn = 96, .vocab = 120, .context = 256, .taps = 3, .head_norms = true};
    const int skipped = BASE_COUNT(zoo_types) > 1; /* F32 */
    f.conv[0] = f.conv[2] = true; /* weights that f16 holds, small taps: products of three round more */
    *state += 7;
    family_make(&f, zoo_types + skipped, (int)BASE_COUNT(zoo_types) - skipped, state);
    for (int i = 0; i < f.count; i++)
        for (int j = 0; strstr(f.tensors[i].name, "conv.weight") && j < 3 * f.hidden; j++) {
            float tap = (float)(f.tensors[i].values[j] *= 0.25);
            memcpy(f.tensors[i].data + 4 * j, &tap, 4);
        }
    family_put(&f, "rope.freq_base", 6, 1000000, NULL);
    zoo_turns(&f, 0, 1000000);
    return f;
}

static const struct zoo_animal {
    const char *name;
    family (*make)(uint64_t *state);
    bool emulated; /* runs where a GPU is emulated, too: each has kernels of its own to compile */
} zoo[] = {{"llama3", zoo_llama3, true}, {"linear", zoo_linear, true}, {"yarn", zoo_yarn, true},
           {"mistral", zoo_mistral, false}, {"qwen2", zoo_qwen2, true},
           {"qwen3", zoo_qwen3, false}, {"qwen3moe", zoo_qwen3moe, true},
           {"gemma3", zoo_gemma3, false}, {"gemma3_own", zoo_gemma3_own, false},
           {"phi3", zoo_phi3, false}, {"phi3_long", zoo_phi3_long, false},
           {"phi3_short", zoo_phi3_short, false}, {"smollm3", zoo_smollm3, false},
           {"lfm2", zoo_lfm2, true}, {"phi3_mini", zoo_phi3_mini, false},
           {"groups", zoo_groups, false}, {"multi_query", zoo_multi_query, false},
           {"multi_query_many", zoo_multi_query_many, false}};

/* ---- the reference --------------------------------------------------------------------------- */

static llama_ref_matrix zoo_matrix(const family *f, int layer, const char *name) {
    llama_ref_matrix m = {0, 0, NULL};
    const family_tensor *t;
    char full[64];
    if (layer < 0) snprintf(full, sizeof full, "%s", name);
    else snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    if (!(t = family_find(f, full))) return m;
    m.out = t->rows ? t->rows : 1, m.in = t->columns, m.w = t->values;
    return m;
}

/* `rows` rows of a fused tensor. */
static llama_ref_matrix zoo_part(const family *f, int l, const char *name, int from, int rows) {
    llama_ref_matrix m = zoo_matrix(f, l, name);
    m.w += (size_t)from * (size_t)m.in, m.out = rows;
    return m;
}

static void zoo_ref_fused(const family *f, int l, llama_ref *r) {
    const int q = f->heads * f->dim, kv = f->kv_heads * f->dim;
    r->layer[l].q = zoo_part(f, l, "attn_qkv.weight", 0, q);
    r->layer[l].k = zoo_part(f, l, "attn_qkv.weight", q, kv);
    r->layer[l].v = zoo_part(f, l, "attn_qkv.weight", q + kv, kv);
    r->layer[l].gate = zoo_part(f, l, "ffn_up.weight", 0, f->ffn);
    r->layer[l].up = zoo_part(f, l, "ffn_up.weight", f->ffn, f->ffn);
}

static void zoo_ref_layer(const family *f, int l, llama_ref *r) {
    const bool all = f->period && (l + 1) % f->period == 0; /* sees all */
    r->layer[l].attn_norm = zoo_matrix(f, l, "attn_norm.weight").w;
    r->layer[l].ffn_norm = zoo_matrix(f, l, "ffn_norm.weight").w;
    r->layer[l].q = zoo_matrix(f, l, "attn_q.weight");
    r->layer[l].k = zoo_matrix(f, l, "attn_k.weight");
    r->layer[l].v = zoo_matrix(f, l, "attn_v.weight");
    r->layer[l].o = zoo_matrix(f, l, "attn_output.weight");
    r->layer[l].q_norm = zoo_matrix(f, l, "attn_q_norm.weight").w;
    r->layer[l].k_norm = zoo_matrix(f, l, "attn_k_norm.weight").w;
    r->layer[l].q_bias = zoo_matrix(f, l, "attn_q.bias").w;
    r->layer[l].k_bias = zoo_matrix(f, l, "attn_k.bias").w;
    r->layer[l].v_bias = zoo_matrix(f, l, "attn_v.bias").w;
    r->layer[l].gate = zoo_matrix(f, l, "ffn_gate.weight");
    r->layer[l].up = zoo_matrix(f, l, "ffn_up.weight");
    r->layer[l].down = zoo_matrix(f, l, "ffn_down.weight");
    r->layer[l].conv_in = zoo_matrix(f, l, "shortconv.in_proj.weight");
    r->layer[l].conv_out = zoo_matrix(f, l, "shortconv.out_proj.weight");
    r->layer[l].taps = zoo_matrix(f, l, "shortconv.conv.weight").w;
    r->layer[l].attn_post = zoo_matrix(f, l, "post_attention_norm.weight").w;
    r->layer[l].ffn_post = zoo_matrix(f, l, "post_ffw_norm.weight").w;
    r->layer[l].window = all ? 0 : f->window;
    r->layer[l].second = f->period && !all;
    r->layer[l].still = f->still && (l + 1) % f->still == 0;
    if (f->experts) {
        r->layer[l].router = zoo_matrix(f, l, "ffn_gate_inp.weight");
        r->layer[l].gate = zoo_matrix(f, l, "ffn_gate_exps.weight");
        r->layer[l].up = zoo_matrix(f, l, "ffn_up_exps.weight");
        r->layer[l].down = zoo_matrix(f, l, "ffn_down_exps.weight");
    }
    if (f->fused) zoo_ref_fused(f, l, r);
}

static llama_ref zoo_ref(const family *f) {
    llama_ref r;
    size_t kept = (size_t)(f->layers * f->context);
    memset(&r, 0, sizeof r);
    r.layers = f->layers, r.hidden = f->hidden, r.heads = f->heads, r.kv_heads = f->kv_heads;
    r.dim = f->dim, r.ffn = f->ffn, r.vocab = f->vocab, r.capacity = f->context;
    r.eps = (double)1e-5f, r.base = 10000.0, r.dense = 1, r.size = 16;
    r.width = f->taps, r.halves = f->taps > 0 || f->halves;
    r.rotated = f->rotated, r.magnitude = f->magnitude;
    r.experts = f->experts, r.used = f->used;
    r.gelu = f->gelu, r.scale = f->scale, r.embed_scale = f->embed_scale;
    memcpy(r.frequency, f->frequency, sizeof r.frequency);
    r.embed = zoo_matrix(f, -1, "token_embd.weight");
    r.head = f->own_head ? zoo_matrix(f, -1, "output.weight") : r.embed;
    r.output_norm =
        zoo_matrix(f, -1, f->taps ? "token_embd_norm.weight" : "output_norm.weight").w;
    for (int l = 0; l < f->layers; l++) zoo_ref_layer(f, l, &r);
    r.keys = (double *)calloc(kept * (size_t)(f->kv_heads * f->dim), sizeof(double));
    r.values = (double *)calloc(kept * (size_t)(f->kv_heads * f->dim), sizeof(double));
    r.gated = (double *)calloc(kept * (size_t)f->hidden, sizeof(double));
    return r;
}

static void zoo_ref_free(llama_ref *r) { free(r->keys), free(r->values), free(r->gated); }

#endif

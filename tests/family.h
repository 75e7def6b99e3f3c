/* family: small random models that a test writes as GGUF files, and keeps the values of.
 *
 *     family f = {.architecture = "llama", .layers = 2, .hidden = 64, ... };
 *     family_make(&f, types, count, &seed);    random tensors in formats drawn from types
 *     family_write(&f, "build/x.gguf");
 *     family_find(&f, "blk.0.attn_q.weight")->values
 *     family_free(&f);
 *
 * After runtime.c, block_ref.h, f16_ref.h, gguf_build.h and random.h. */
#ifndef FAMILY_H
#define FAMILY_H

enum { FAMILY_TENSORS = 120, FAMILY_LAYERS = 8, FAMILY_KEYS = 32 };

typedef struct family_tensor {
    char name[64];
    int type, rows, columns; /* rows 0: one dimension */
    int parts;               /* more than 1: three dimensions, rows / parts in the middle */
    uint8_t *data;
    size_t bytes;
    double *values;
} family_tensor;

/* A key ARCHITECTURE.name: of GGUF's type u32 (4), f32 (6), bool (7) or string (8). */
typedef struct family_key { const char *name; int type; double number; const char *text; } family_key;

typedef struct family {
    const char *architecture;
    int layers, hidden, heads, kv_heads, dim, ffn, vocab, context, taps;
    bool conv[FAMILY_LAYERS]; /* the layer's mixer is a short convolution */
    bool own_head;            /* not the embedding */
    int end;                  /* the id that ends a text */
    bool bias, head_norms;    /* of q, k and v; of the heads of q and k */
    bool post_norms, gelu;    /* norms behind attention and ffn */
    int experts, used;        /* of each ffn; of a row */
    bool fused;               /* q, k and v in one tensor; gate and up in one */
    bool halves;              /* pairs are half a head apart */
    int window;               /* of every layer, but of the last of each `period` where there is one */
    int period;               /* those with a window turn by frequency[1] */
    int still;                /* the last of each so many layers does not turn */
    double scale, embed_scale; /* of attention and embedding, where they are not llama's */
    /* what the keys and tensors of rope come to: no frequency, 10000^(-2j / dim) */
    double frequency[2][128], magnitude;
    int rotated;
    family_key keys[FAMILY_KEYS];
    int key_count;
    family_tensor tensors[FAMILY_TENSORS];
    int count;
} family;

static float family_uniform(uint64_t *seed) {
    return (float)(random_next(seed) >> 40) / 8388608.0f - 1.0f;
}

static void family_put_half(uint8_t *at, double value) {
    uint16_t half = ref_to_f16(value);
    at[0] = (uint8_t)half, at[1] = (uint8_t)(half >> 8);
}

/* A block of random bits under scales that give values up to about 0.15. */
static void family_block(const block_type *type, uint8_t *at, uint64_t *seed) {
    const double some = 1 + 0.3 * (double)family_uniform(seed);
    float value = 0.15f * family_uniform(seed);
    uint32_t bits;
    for (int i = 0; i < type->bytes; i++) at[i] = (uint8_t)random_next(seed);
    switch (type->type) {
    case BLOCK_F32: memcpy(at, &value, 4); break;
    case BLOCK_F16: family_put_half(at, (double)value); break;
    case BLOCK_BF16:
        memcpy(&bits, &value, 4);
        at[0] = (uint8_t)(bits >> 16), at[1] = (uint8_t)(bits >> 24);
        break;
    case BLOCK_Q4_0: family_put_half(at, 0.018 * some); break;
    case BLOCK_Q4_1: family_put_half(at, 0.018 * some), family_put_half(at + 2, -0.14); break;
    case BLOCK_Q8_0: family_put_half(at, 0.0011 * some); break;
    case BLOCK_Q5_0: family_put_half(at, 0.009 * some); break;
    case BLOCK_Q5_1: family_put_half(at, 0.009 * some), family_put_half(at + 2, -0.14); break;
    case BLOCK_Q4_K: family_put_half(at, 0.0006 * some), family_put_half(at + 2, 0.004); break;
    case BLOCK_Q5_K: family_put_half(at, 0.0003 * some), family_put_half(at + 2, 0.004); break;
    case BLOCK_Q6_K: family_put_half(at + 208, 0.00006 * some); break;
    default: break;
    }
}

static void family_add(family *f, const char *name, int type_number, int rows, int columns,
                       uint64_t *seed) {
    family_tensor *t = &f->tensors[f->count++];
    const block_type *type = block_find(columns % block_find(type_number)->values ? BLOCK_F16
                                                                               : type_number);
    const int64_t values = (int64_t)(rows ? rows : 1) * columns;
    snprintf(t->name, sizeof t->name, "%s", name);
    t->type = rows ? type->type : BLOCK_F32;
    t->rows = rows, t->columns = columns;
    if (!rows) type = block_find(BLOCK_F32);
    t->bytes = (size_t)(values / type->values) * (size_t)type->bytes;
    t->data = (uint8_t *)malloc(t->bytes);
    t->values = (double *)malloc((size_t)values * sizeof *t->values);
    for (size_t at = 0; at < t->bytes; at += (size_t)type->bytes) {
        float norm = (strstr(name, ".bias") ? 0.0f : 1.0f) + 0.3f * family_uniform(seed);
        family_block(type, t->data + at, seed);
        if (!rows) memcpy(t->data + at, &norm, 4);
    }
    for (int64_t i = 0; i < values; i++)
        t->values[i] = block_ref_value(t->type, t->data + (size_t)(i / columns) *
                                       block_row_bytes(type, columns), i % columns);
}

/* A vector of the file that is not random. */
BASE_UNUSED static void family_vector(family *f, const char *name, const double *values, int count) {
    uint64_t none = 0;
    family_tensor *t = &f->tensors[f->count];
    family_add(f, name, BLOCK_F32, 0, count, &none);
    for (int i = 0; i < count; i++) {
        float value = (float)values[i];
        memcpy(t->data + 4 * i, &value, 4);
        t->values[i] = (double)value;
    }
}

/* A key, in place of the one of its name if there is one. */
static void family_put(family *f, const char *name, int type, double number, const char *text) {
    int at = 0;
    while (at < f->key_count && strcmp(f->keys[at].name, name)) at++;
    f->keys[at] = (family_key){name, type, number, text};
    if (at == f->key_count) f->key_count++;
}

typedef struct family_entry { const char *name; int rows, columns; } family_entry;

/* Adds the entries of one layer, by names as blk.LAYER.NAME. */
static void family_entries(family *f, int layer, const family_entry *list, int list_count,
                           const int *types, int count, uint64_t *seed) {
    for (int i = 0; i < list_count; i++) {
        char name[64];
        const bool taps = !strcmp(list[i].name, "shortconv.conv.weight");
        snprintf(name, sizeof name, "blk.%d.%s", layer, list[i].name);
        family_add(f, name, taps ? BLOCK_F32 : types[random_next(seed) % (uint64_t)count],
                   list[i].rows, list[i].columns, seed);
        if (strstr(name, "_exps.")) f->tensors[f->count - 1].parts = f->experts;
    }
}

static void family_layer(family *f, int layer, const int *types, int count, uint64_t *seed) {
    const int h = f->hidden, q = f->heads * f->dim, kv = f->kv_heads * f->dim;
    const family_entry all[] = {{"attn_norm.weight", 0, h}, {"ffn_norm.weight", 0, h},
                                {"ffn_gate.weight", f->ffn, h}, {"ffn_up.weight", f->ffn, h},
                                {"ffn_down.weight", h, f->ffn}};
    const family_entry attention[] = {{"attn_q.weight", q, h}, {"attn_k.weight", kv, h},
                                      {"attn_v.weight", kv, h}, {"attn_output.weight", h, q}};
    const family_entry post[] = {{"post_attention_norm.weight", 0, h},
                                 {"post_ffw_norm.weight", 0, h}};
    const family_entry fused[] = {{"attn_norm.weight", 0, h}, {"ffn_norm.weight", 0, h},
                                  {"ffn_up.weight", 2 * f->ffn, h}, {"ffn_down.weight", h, f->ffn},
                                  {"attn_qkv.weight", q + 2 * kv, h},
                                  {"attn_output.weight", h, q}};
    const int all_ffn = f->experts * f->ffn;
    const family_entry experts[] = {{"attn_norm.weight", 0, h}, {"ffn_norm.weight", 0, h},
                                    {"ffn_gate_inp.weight", f->experts, h},
                                    {"ffn_gate_exps.weight", all_ffn, h},
                                    {"ffn_up_exps.weight", all_ffn, h},
                                    {"ffn_down_exps.weight", f->experts * h, f->ffn}};
    const family_entry norms[] = {{"attn_q_norm.weight", 0, f->dim},
                                  {"attn_k_norm.weight", 0, f->dim}};
    const family_entry biases[] = {{"attn_q.bias", 0, q}, {"attn_k.bias", 0, kv},
                                   {"attn_v.bias", 0, kv}};
    const family_entry conv[] = {{"shortconv.in_proj.weight", 3 * h, h},
                                 {"shortconv.out_proj.weight", h, h},
                                 {"shortconv.conv.weight", h, f->taps}};
    if (f->fused) {
        family_entries(f, layer, fused, 6, types, count, seed);
        return;
    }
    if (f->experts) family_entries(f, layer, experts, 6, types, count, seed);
    else family_entries(f, layer, all, 5, types, count, seed);
    if (f->post_norms) family_entries(f, layer, post, 2, types, count, seed);
    if (f->conv[layer]) {
        family_entries(f, layer, conv, 3, types, count, seed);
        return;
    }
    family_entries(f, layer, attention, 4, types, count, seed);
    if (f->head_norms) family_entries(f, layer, norms, 2, types, count, seed);
    if (f->bias) family_entries(f, layer, biases, 3, types, count, seed);
}

static void family_make_keys(family *f) {
    const struct { const char *name; int value; } numbers[] = {
        {"block_count", f->layers}, {"embedding_length", f->hidden},
        {"feed_forward_length", f->ffn}, {"context_length", f->context},
        {"attention.head_count", f->heads}, {"attention.key_length", f->dim},
        {"rope.dimension_count", f->rotated ? f->rotated : f->dim},
        {"attention.sliding_window", f->window},
        {"expert_count", f->experts}, {"expert_used_count", f->used},
        {"expert_feed_forward_length", f->experts ? f->ffn : 0}, {"shortconv.l_cache", f->taps}};
    for (size_t i = 0; i < BASE_COUNT(numbers); i++)
        if (numbers[i].value) family_put(f, numbers[i].name, 4, numbers[i].value, NULL);
    if (!f->taps) family_put(f, "attention.head_count_kv", 4, f->kv_heads, NULL);
    family_put(f, "attention.layer_norm_rms_epsilon", 6, 1e-5, NULL);
}

static void family_make(family *f, const int *types, int count, uint64_t *seed) {
    f->count = 0;
    family_make_keys(f);
    family_add(f, "token_embd.weight", types[random_next(seed) % (uint64_t)count], f->vocab,
               f->hidden, seed);
    family_add(f, strcmp(f->architecture, "lfm2") ? "output_norm.weight" : "token_embd_norm.weight",
               BLOCK_F32, 0, f->hidden, seed);
    if (f->own_head)
        family_add(f, "output.weight", types[random_next(seed) % (uint64_t)count], f->vocab,
                   f->hidden, seed);
    for (int l = 0; l < f->layers; l++) family_layer(f, l, types, count, seed);
}

static void family_free(family *f) {
    for (int i = 0; i < f->count; i++) free(f->tensors[i].data), free(f->tensors[i].values);
    f->count = 0;
}

/* NULL: the model has none of that name. */
BASE_UNUSED static const family_tensor *family_find(const family *f, const char *name) {
    for (int i = 0; i < f->count; i++)
        if (!strcmp(f->tensors[i].name, name)) return &f->tensors[i];
    return NULL;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Letters, then pairs of letters; id 0 ends a text, or `end`. */
static void family_write_tokens(const family *f, gguf_build *out) {
    build_key_array(out, "tokenizer.ggml.tokens", 8, (uint64_t)f->vocab);
    for (int i = 0; i < f->vocab; i++) {
        char name[3] = {(char)('!' + i), 0, 0};
        if (i >= 94) name[0] = (char)('!' + (i - 94) / 94), name[1] = (char)('!' + (i - 94) % 94);
        build_string(out, name, strlen(name));
    }
    build_key_array(out, "tokenizer.ggml.token_type", 5, (uint64_t)f->vocab);
    for (int i = 0; i < f->vocab; i++) build_number(out, i ? 1 : 3, 4);
    build_key_array(out, "tokenizer.ggml.merges", 8, 0);
}

static void family_write_key(const family *f, const family_key *key, gguf_build *out) {
    char name[96];
    snprintf(name, sizeof name, "%s.%s", f->architecture, key->name);
    if (key->type == 4) build_key_u32(out, name, (uint32_t)key->number);
    else if (key->type == 6) build_key_f32(out, name, (float)key->number);
    else if (key->type == 8) build_key_string(out, name, key->text);
    else build_key(out, name, (uint32_t)key->type, key->number > 0, 1);
}

static int family_write_keys(const family *f, gguf_build *out) {
    char name[96];
    for (int i = 0; i < f->key_count; i++) family_write_key(f, &f->keys[i], out);
    if (f->taps) {
        snprintf(name, sizeof name, "%s.attention.head_count_kv", f->architecture);
        build_key_array(out, name, 5, (uint64_t)f->layers);
        for (int l = 0; l < f->layers; l++)
            build_number(out, f->conv[l] ? 0 : (uint64_t)f->kv_heads, 4);
    }
    build_key_string(out, "general.architecture", f->architecture);
    build_key_string(out, "tokenizer.ggml.model", "gpt2");
    build_key_string(out, "tokenizer.ggml.pre", "gpt-2");
    build_key_u32(out, "tokenizer.ggml.eos_token_id", (uint32_t)f->end);
    family_write_tokens(f, out);
    return f->key_count + (f->taps > 0) + 4 + 3;
}

static bool family_write(const family *f, const char *path) {
    gguf_build keys = {0}, out = {0};
    FILE *file = fopen(path, "wb");
    bool fine;
    build_begin(&out, 3, (uint64_t)f->count, (uint64_t)family_write_keys(f, &keys));
    build_bytes(&out, keys.data, keys.size);
    for (int i = 0; i < f->count; i++) {
        const family_tensor *t = &f->tensors[i];
        uint64_t shape[3] = {(uint64_t)t->columns, (uint64_t)t->rows, (uint64_t)t->parts};
        if (t->parts > 1) shape[1] /= shape[2];
        build_tensor(&out, t->name, (uint32_t)t->type, t->parts > 1 ? 3 : t->rows ? 2 : 1, shape,
                     t->bytes, 32);
    }
    build_align(&out, 32);
    for (int i = 0; i < f->count; i++) {
        build_bytes(&out, f->tensors[i].data, f->tensors[i].bytes);
        build_align(&out, 32);
    }
    fine = file && fwrite(out.data, 1, out.size, file) == out.size;
    if (file) fclose(file);
    free(keys.data), free(out.data);
    return fine;
}

#endif

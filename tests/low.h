/* low: adapters of a family's model (family.h) as tests make them: their values in double, merged into
 * the family's, and as GGUF files. After runtime.c, gguf_build.h, random.h, f16_ref.h and family.h. */
#ifndef LOW_H
#define LOW_H

enum { PAIRS = 40 };

/* Of one tensor of the model, in the order of its GGUF file; values that f16 holds. */
typedef struct low_pair {
    const family_tensor *of;
    char name[64];
    double *a, *b;
    int parts; /* of a ffn of experts: [parts] of both, one behind the other; else 1 */
} low_pair;
typedef struct low {
    low_pair pairs[PAIRS];
    int count, rank;
    double alpha;
    /* Of a gated one: see ADAPTER_MASK and those behind it; NULL: it is none. */
    double *parts[5];
    double *landmark; /* [hidden], or NULL */
    int hidden;
    uint32_t drafts, mask_id; /* in the file, above 0 */
} low;

static double *low_values(int count, uint64_t *seed) {
    double *v = (double *)malloc((size_t)count * sizeof *v);
    for (int i = 0; i < count; i++) v[i] = ref_f16(ref_to_f16(0.25 * (double)family_uniform(seed)));
    return v;
}

/* Makes it a gated one, with a mask and a sampler head of random values. */
static void low_gate(low *l, int hidden, uint64_t *seed) {
    l->hidden = hidden;
    for (int i = 0; i < 5; i++)
        l->parts[i] = low_values((i == 1 ? 2 : 1) * hidden * (i % 2 ? hidden : 1), seed);
}

static bool is_product(const char *name) {
    static const char *const all[] = {"attn_q.", "attn_k.", "attn_v.", "attn_output.", "ffn_gate.",
                                      "ffn_up.", "ffn_down.", "attn_qkv.", "ffn_gate_exps.",
                                      "ffn_up_exps.", "ffn_down_exps."};
    for (size_t i = 0; i < BASE_COUNT(all); i++)
        if (strstr(name, all[i]) && strstr(name, ".weight")) return true;
    return false;
}

/* For all products of a model, or for two of three. */
static low make_low(const family *f, int rank, double alpha, bool all, uint64_t *seed) {
    low l = {.rank = rank, .alpha = alpha};
    for (int i = 0; i < f->count; i++) {
        const family_tensor *t = &f->tensors[i];
        if (!is_product(t->name) || (!all && i % 3 == 1)) continue;
        low_pair *p = &l.pairs[l.count++];
        p->of = t;
        snprintf(p->name, sizeof p->name, "%.*s", (int)(strlen(t->name) - 7), t->name);
        p->parts = t->parts > 1 ? t->parts : 1;
        p->a = low_values(p->parts * rank * t->columns, seed);
        p->b = low_values(t->rows * rank, seed);
    }
    return l;
}

static void free_low(low *l) {
    for (int i = 0; i < l->count; i++) free(l->pairs[i].a), free(l->pairs[i].b);
    for (int i = 0; i < 5; i++) free(l->parts[i]), l->parts[i] = NULL;
    free(l->landmark), l->landmark = NULL;
    l->count = 0;
}

/* The model's values gain the adapter's, or lose them. */
static void merge(const low *l, double sign) {
    for (int i = 0; i < l->count; i++) {
        const low_pair *p = &l->pairs[i];
        const int columns = p->of->columns, rows = p->of->rows / p->parts;
        for (int64_t n = 0; n < (int64_t)p->of->rows * columns; n++) {
            const double *a = p->a + n / columns / rows * l->rank * columns;
            double sum = 0;
            for (int k = 0; k < l->rank; k++)
                sum += p->b[n / columns * l->rank + k] * a[k * columns + n % columns];
            p->of->values[n] += sign * (l->alpha > 0 ? l->alpha / l->rank : 1) * sum;
        }
    }
}

static bool save(const char *to, const gguf_build *f) {
    FILE *file = fopen(to, "wb");
    bool fine = file && fwrite(f->data, 1, f->size, file) == f->size;
    if (file) fclose(file);
    return fine;
}

static void put_values(gguf_build *out, const double *v, int count, bool half) {
    for (int i = 0; i < count; i++) {
        const float value = (float)v[i];
        uint32_t bits;
        memcpy(&bits, &value, 4);
        if (half) build_number(out, ref_to_f16(v[i]), 2);
        else build_number(out, bits, 4);
    }
}

static gguf_build gguf_low(const low *l, const char *architecture, bool half) {
    gguf_build out = {0};
    const uint64_t rank = (uint64_t)l->rank, bytes = half ? 2 : 4;
    static const char *const parts[] = {"mask_embedding", "sampler.0.weight", "sampler.0.norm",
                                        "sampler.1.weight", "sampler.1.norm"};
    const int more = l->parts[0] ? 5 : 0;
    const uint64_t hidden = (uint64_t)l->hidden;
    const int keys = 3 + (l->alpha > 0) + (l->drafts > 0) + (l->mask_id > 0);
    build_begin(&out, 3, (uint64_t)(2 * l->count + more + !!l->landmark), (uint64_t)keys);
    build_key_string(&out, "general.type", "adapter");
    build_key_string(&out, "adapter.type", "lora");
    build_key_string(&out, "general.architecture", architecture);
    if (l->alpha > 0) build_key_f32(&out, "adapter.lora.alpha", (float)l->alpha);
    if (l->drafts) build_key_u32(&out, "adapter.draft_length", l->drafts);
    if (l->mask_id) build_key_u32(&out, "adapter.mask_token_id", l->mask_id);
    for (int i = 0; i < 2 * l->count; i++) {
        const low_pair *p = &l->pairs[i / 2];
        char name[96];
        const uint64_t experts = (uint64_t)p->parts, rows = (uint64_t)p->of->rows / experts;
        uint64_t shape[3] = {i % 2 ? rank : (uint64_t)p->of->columns, i % 2 ? rows : rank, experts};
        snprintf(name, sizeof name, "%s.weight.lora_%c", p->name, i % 2 ? 'b' : 'a');
        build_tensor(&out, name, half ? BLOCK_F16 : BLOCK_F32, experts > 1 ? 3 : 2, shape,
                     shape[0] * shape[1] * experts * bytes, 32);
    }
    for (int i = 0; i < more; i++) {
        const uint64_t n = (uint64_t)l->hidden, shape[2] = {i == 1 ? 2 * n : n, n};
        build_tensor(&out, parts[i], half ? BLOCK_F16 : BLOCK_F32, i % 2 ? 2 : 1, shape,
                     shape[0] * (i % 2 ? n : 1) * bytes, 32);
    }
    if (l->landmark)
        build_tensor(&out, "landmark_embedding", half ? BLOCK_F16 : BLOCK_F32, 1, &hidden,
                     hidden * bytes, 32);
    build_align(&out, 32);
    for (int i = 0; i < l->count; i++) {
        put_values(&out, l->pairs[i].a, l->pairs[i].parts * l->rank * l->pairs[i].of->columns, half);
        build_align(&out, 32);
        put_values(&out, l->pairs[i].b, l->rank * l->pairs[i].of->rows, half);
        build_align(&out, 32);
    }
    for (int i = 0; i < more; i++) {
        const int n = l->hidden;
        put_values(&out, l->parts[i], (i == 1 ? 2 * n : n) * (i % 2 ? n : 1), half);
        build_align(&out, 32);
    }
    if (l->landmark) {
        put_values(&out, l->landmark, l->hidden, half);
        build_align(&out, 32);
    }
    return out;
}

#endif

/* hf: the folder, its config and its tensors (see hf.h); hf_tokenizer.c and hf_pieces.c
 * have the tokenizer. */

enum { HF_MOST_CONFIG = 16 << 20, HF_MOST_TOKENIZER = 512 << 20, HF_ALIGNMENT = 32 };

static const struct hf_family {
    const char *type, *architecture; /* model_type in config.json; what GGUF files call it */
    const char *needs[3];            /* keys for which transformers has a default of its own */
    bool halves, norms_from_one;
    const char *text;                /* where the config of the text's part lies; or NULL */
} hf_families[] = {
    {"llama", "llama", {NULL}, true, false, NULL},
    {"mistral", "llama", {"num_key_value_heads", NULL}, true, false, NULL},
    {"smollm3", "smollm3", {"num_key_value_heads", "rope_theta", NULL}, true, false, NULL},
    {"qwen2", "qwen2", {"num_key_value_heads", NULL}, false, false, NULL},
    {"qwen3", "qwen3", {"num_key_value_heads", "head_dim", NULL}, false, false, NULL},
    {"qwen3_moe", "qwen3moe", {"num_key_value_heads", "head_dim", "norm_topk_prob"}, false, false, NULL},
    {"gemma3_text", "gemma3", {NULL}, false, true, NULL},
    {"gemma3", "gemma3", {NULL}, false, true, "text_config"},
    {"phi3", "phi3", {"num_key_value_heads", NULL}, false, false, NULL},
    {"lfm2", "lfm2", {"num_key_value_heads", NULL}, false, false, NULL}};

/* What published configs leave out, as transformers has it. */
static const struct { const char *architecture, *key; double value; } hf_defaults[] = {
    {"gemma3", "num_attention_heads", 8}, {"gemma3", "num_key_value_heads", 4}, {"gemma3", "head_dim", 256},
    {"gemma3", "max_position_embeddings", 131072}, {"gemma3", "rms_norm_eps", 1e-6},
    {"gemma3", "rope_theta", 1e6}, {"gemma3", "query_pre_attn_scalar", 256},
    {"gemma3", "sliding_window", 4096}, {"lfm2", "rope_theta", 1e6}};

/* ---- files ----------------------------------------------------------------------------------- */

/* Reads a file of the folder, as JSON where its name says so; one that may be missing stays empty. */
static cairn_status hf_read_file(hf_folder *h, const char *name, int64_t most, bool optional,
                                 hf_file *f) {
    const char *dot = strrchr(name, '.');
    os_file_info info;
    cairn_status status;
    if (!base_text_print(h->b, &f->path, "%s/%s", h->path, name))
        return base_no_memory(h->b, name, strlen(h->path));
    if (optional && os_calls.info(f->path.data, &info) == -ENOENT) return CAIRN_OK;
    if (!os_calls.info(f->path.data, &info) && info.size > most)
        return base_fail(h->b, CAIRN_BAD_FILE, "%s: %lld bytes; at most %lld are sensible",
                         f->path.data, (long long)info.size, (long long)most);
    if ((status = os_read_file(h->b, f->path.data, &f->text))) return status;
    f->there = true;
    if (strcmp(dot, ".json")) return CAIRN_OK;
    if ((status = jdoc_parse(h->b, f->path.data, f->text.data ? f->text.data : (char *)"",
                             f->text.size, &f->doc)))
        return status;
    return f->doc.nodes->kind == JDOC_OBJECT
               ? CAIRN_OK : base_fail(h->b, CAIRN_BAD_FILE, "%s: no JSON object", f->path.data);
}

static void hf_close_file(base *b, hf_file *f) {
    jdoc_close(b, &f->doc);
    base_text_free(b, &f->path);
    base_text_free(b, &f->text);
}

static cairn_status hf_wrong(hf_folder *h, const hf_file *f, const char *key, const char *wanted) {
    return base_fail(h->b, CAIRN_BAD_FILE, "%s: '%s': %s is expected", f->path.data, key, wanted);
}

/* Of a part of the config that has no code, or is not certain to mean the same. */
static cairn_status hf_refuse(hf_folder *h, const char *key, const char *supported) {
    return base_fail(h->b, CAIRN_UNSUPPORTED, "%s: '%s' is not supported so; %s is",
                     h->config.path.data, key, supported);
}

/* ---- writing GGUF ---------------------------------------------------------------------------- */

static void hf_put(hf_folder *h, base_text *to, const void *bytes, size_t count) {
    if (!base_text_add(h->b, to, bytes, count)) h->full = true;
}

static void hf_put_number(hf_folder *h, base_text *to, uint64_t value, int bytes) {
    uint8_t each[8];
    for (int i = 0; i < bytes; i++) each[i] = (uint8_t)(value >> 8 * i);
    hf_put(h, to, each, (size_t)bytes);
}

static void hf_put_string(hf_folder *h, base_text *to, const char *text, size_t bytes) {
    hf_put_number(h, to, bytes, 8);
    hf_put(h, to, text, bytes);
}

/* The head of a key; "NAME" or, with a dot in front, "ARCHITECTURE.NAME". */
static void hf_key(hf_folder *h, const char *name, uint32_t type) {
    char whole[96];
    snprintf(whole, sizeof whole, "%s%s", *name == '.' ? h->family->architecture : "", name);
    hf_put_string(h, &h->keys, whole, strlen(whole));
    hf_put_number(h, &h->keys, type, 4);
    h->key_count++;
}

static void hf_key_u32(hf_folder *h, const char *name, uint64_t value) {
    hf_key(h, name, GGUF_U32);
    hf_put_number(h, &h->keys, value, 4);
}

static void hf_key_f32(hf_folder *h, const char *name, double value) {
    float rounded = (float)value;
    uint32_t bits;
    memcpy(&bits, &rounded, 4);
    hf_key(h, name, GGUF_F32);
    hf_put_number(h, &h->keys, bits, 4);
}

static void hf_key_bool(hf_folder *h, const char *name, bool value) {
    hf_key(h, name, GGUF_BOOL);
    hf_put_number(h, &h->keys, value, 1);
}

static void hf_key_text(hf_folder *h, const char *name, const char *text, size_t bytes) {
    hf_key(h, name, GGUF_STRING);
    hf_put_string(h, &h->keys, text, bytes);
}

/* The head of an array, its elements follow. */
static void hf_key_array(hf_folder *h, const char *name, uint32_t element, uint64_t count) {
    hf_key(h, name, GGUF_ARRAY);
    hf_put_number(h, &h->keys, element, 4);
    hf_put_number(h, &h->keys, count, 8);
}

/* A tensor's description; its data lie at the next place, which is returned. */
static uint64_t hf_describe(hf_folder *h, const char *name, int type, int ndim,
                            const int64_t *shape, uint64_t bytes) {
    const uint64_t at = h->next;
    hf_put_string(h, &h->tensors, name, strlen(name));
    hf_put_number(h, &h->tensors, (uint64_t)ndim, 4);
    for (int i = ndim; i-- > 0;) hf_put_number(h, &h->tensors, (uint64_t)shape[i], 8);
    hf_put_number(h, &h->tensors, (uint64_t)type, 4);
    hf_put_number(h, &h->tensors, at, 8);
    h->tensor_count++;
    h->next = (at + bytes + HF_ALIGNMENT - 1) / HF_ALIGNMENT * HF_ALIGNMENT;
    return at;
}

/* A tensor of f32 whose data are made here, before any other. */
static void hf_make_vector(hf_folder *h, const char *name, const double *values, int count) {
    const int64_t shape = count;
    hf_describe(h, name, BLOCK_F32, 1, &shape, 4 * (uint64_t)count);
    for (int i = 0; i < count; i++) {
        float value = (float)values[i];
        hf_put(h, &h->made, &value, 4); /* as the plan reads it: all hosts are little-endian */
    }
    while (h->made.size % HF_ALIGNMENT && !h->full) hf_put(h, &h->made, "", 1);
}

/* ---- config ---------------------------------------------------------------------------------- */

static uint32_t hf_config(const hf_folder *h, const char *key) {
    return jdoc_get(&h->config.doc, h->text, key);
}

static bool hf_is(const hf_folder *h, const char *architecture) {
    return !strcmp(h->family->architecture, architecture);
}

static double hf_default(const hf_folder *h, const char *key, double otherwise) {
    for (size_t i = 0; i < BASE_COUNT(hf_defaults); i++)
        if (hf_is(h, hf_defaults[i].architecture) && !strcmp(hf_defaults[i].key, key))
            return hf_defaults[i].value;
    return otherwise;
}

/* A positive number of an object in the config; `otherwise` where it is absent. */
static cairn_status hf_number(hf_folder *h, uint32_t object, const char *key, double otherwise,
                              double *out) {
    uint32_t at = jdoc_get(&h->config.doc, object, key);
    *out = at ? jdoc_value(&h->config.doc, at) : otherwise;
    return !at || (*out > 0 && *out < 1e12) ? CAIRN_OK
                                            : hf_wrong(h, &h->config, key, "a positive number");
}

static cairn_status hf_read_numbers(hf_folder *h) {
    static const struct { const char *from, *to; bool whole; } numbers[] = {
        {"num_hidden_layers", ".block_count", true}, {"hidden_size", ".embedding_length", true},
        {"moe_intermediate_size", ".expert_feed_forward_length", true},
        {"num_experts", ".expert_count", true},
        {"num_experts_per_tok", ".expert_used_count", true},
        {"max_position_embeddings", ".context_length", true},
        {"num_attention_heads", ".attention.head_count", true},
        {"head_dim", ".attention.key_length", true}, {"conv_L_cache", ".shortconv.l_cache", true},
        {"rms_norm_eps", ".attention.layer_norm_rms_epsilon", false},
        {"norm_eps", ".attention.layer_norm_rms_epsilon", false},
        {"rope_local_base_freq", ".rope.freq_base_swa", false}};
    const jdoc *j = &h->config.doc;
    for (size_t i = 0; i < BASE_COUNT(numbers); i++) {
        const uint32_t at = hf_config(h, numbers[i].from);
        double value;
        uint64_t whole = 0;
        if (hf_number(h, h->text, numbers[i].from, hf_default(h, numbers[i].from, 0), &value))
            return h->b->status;
        if (!(value > 0)) continue;
        whole = (uint64_t)value;
        if (numbers[i].whole && at && !jdoc_whole(j, at, 1 << 24, &whole))
            return hf_wrong(h, &h->config, numbers[i].from, "a whole number up to 16777216");
        if (numbers[i].whole) hf_key_u32(h, numbers[i].to, whole);
        else hf_key_f32(h, numbers[i].to, value);
    }
    return CAIRN_OK;
}

/* What all members of a list of layers are; `is` is asked for each. */
static cairn_status hf_layers(hf_folder *h, const char *key, uint32_t list,
                              bool (*is)(const jdoc *j, uint32_t at, int layer, int period),
                              int period, const char *supported) {
    const jdoc *j = &h->config.doc;
    if (!jdoc_is(j, list, JDOC_ARRAY)) return hf_wrong(h, &h->config, key, "a list");
    for (uint32_t i = 0, at = list + 1; i < j->nodes[list].count; i++, at = j->nodes[at].end)
        if (!is(j, at, (int)i, period)) return hf_refuse(h, key, supported);
    return CAIRN_OK;
}

static bool hf_is_full(const jdoc *j, uint32_t at, int layer, int period) {
    (void)layer, (void)period;
    return jdoc_says(j, at, "full_attention");
}

static bool hf_is_window(const jdoc *j, uint32_t at, int layer, int period) {
    return jdoc_says(j, at, (layer + 1) % period ? "sliding_attention" : "full_attention");
}

static bool hf_is_rope(const jdoc *j, uint32_t at, int layer, int period) {
    return jdoc_says(j, at, (layer + 1) % period ? "1" : "0");
}

/* gemma: layers that see all stand at the end of each period. */
static cairn_status hf_read_windows(hf_folder *h) {
    const uint32_t list = hf_config(h, "layer_types");
    const uint32_t said = hf_config(h, "sliding_window_pattern");
    const jdoc *j = &h->config.doc;
    uint64_t period = 6;
    if (said && (!jdoc_whole(j, said, 1 << 16, &period) || !period))
        return hf_wrong(h, &h->config, "sliding_window_pattern", "a whole number");
    if (list && j->nodes[list].kind == JDOC_ARRAY) {
        uint32_t at = list + 1;
        for (period = 1; at < j->nodes[list].end && !jdoc_says(j, at, "full_attention"); period++)
            at = j->nodes[at].end;
    }
    hf_key_u32(h, ".attention.sliding_window_pattern", period);
    return list ? hf_layers(h, "layer_types", list, hf_is_window, (int)period,
                            "full attention in the last of each so many layers") : CAIRN_OK;
}

/* lfm2: KV heads by layer, none in a convolution; older configs number the layers with attention. */
static cairn_status hf_read_numbered_mixers(hf_folder *h, uint32_t list, uint64_t kv_heads) {
    const jdoc *j = &h->config.doc;
    uint64_t layers = 0, full = 0;
    if (!jdoc_is(j, list, JDOC_ARRAY) ||
        !jdoc_whole(j, hf_config(h, "num_hidden_layers"), 1 << 16, &layers))
        return hf_wrong(h, &h->config, "layer_types", "a list");
    hf_key_array(h, ".attention.head_count_kv", GGUF_I32, layers);
    for (uint64_t i = 0; i < layers; i++) {
        uint32_t at = list + 1;
        while (at < j->nodes[list].end && !(jdoc_whole(j, at, layers, &full) && full == i))
            at = j->nodes[at].end;
        hf_put_number(h, &h->keys, at < j->nodes[list].end ? kv_heads : 0, 4);
    }
    return CAIRN_OK;
}

static cairn_status hf_read_mixers(hf_folder *h, uint64_t kv_heads) {
    const uint32_t list = hf_config(h, "layer_types");
    const jdoc *j = &h->config.doc;
    if (!list) return hf_read_numbered_mixers(h, hf_config(h, "full_attn_idxs"), kv_heads);
    if (!jdoc_is(j, list, JDOC_ARRAY)) return hf_wrong(h, &h->config, "layer_types", "a list");
    hf_key_array(h, ".attention.head_count_kv", GGUF_I32, j->nodes[list].count);
    for (uint32_t i = 0, at = list + 1; i < j->nodes[list].count; i++, at = j->nodes[at].end) {
        bool full = jdoc_says(j, at, "full_attention");
        if (!full && !jdoc_says(j, at, "conv"))
            return hf_refuse(h, "layer_types", "'conv' or 'full_attention'");
        hf_put_number(h, &h->keys, full ? kv_heads : 0, 4);
    }
    return CAIRN_OK;
}

static cairn_status hf_read_layer_kinds(hf_folder *h) {
    const uint32_t list = hf_config(h, "layer_types"), ropes = hf_config(h, "no_rope_layers");
    const uint32_t kv = hf_config(h, "num_key_value_heads");
    uint64_t kv_heads = (uint64_t)hf_default(h, "num_key_value_heads", 0);
    cairn_status status = CAIRN_OK;
    if (kv && !jdoc_whole(&h->config.doc, kv, 1 << 16, &kv_heads))
        return hf_wrong(h, &h->config, "num_key_value_heads", "a whole number");
    if (hf_is(h, "lfm2")) return hf_read_mixers(h, kv_heads);
    if (kv_heads) hf_key_u32(h, ".attention.head_count_kv", kv_heads);
    if (hf_is(h, "gemma3")) return hf_read_windows(h);
    if (hf_is(h, "smollm3") && ropes)
        status = hf_layers(h, "no_rope_layers", ropes, hf_is_rope, 4,
                           "every fourth layer without rope");
    return status || !list ? status
                           : hf_layers(h, "layer_types", list, hf_is_full, 1, "full_attention");
}

/* Settings that must say this where they are there, and what they mean when they are not. */
static cairn_status hf_check_settings(hf_folder *h) {
    static const struct { const char *of, *key, *value; } settings[] = {
        {"", "hidden_act", "silu"}, {"gemma3", "hidden_activation", "gelu_pytorch_tanh"},
        {"", "use_sliding_window", "false"}, {"qwen3moe", "norm_topk_prob", "true"},
        {"qwen3moe", "decoder_sparse_step", "1"}, {"gemma3", "attn_logit_softcapping", "none"},
        {"gemma3", "final_logit_softcapping", "none"}, {"lfm2", "conv_bias", "false"},
        {"gemma3", "use_bidirectional_attention", "false"},
        {"smollm3", "no_rope_layer_interval", "4"},
        {"", "quantization_config", "none: weights in F32, F16 or BF16"}};
    const jdoc *j = &h->config.doc;
    const uint32_t dense = hf_config(h, "mlp_only_layers");
    for (size_t i = 0; i < BASE_COUNT(settings); i++) {
        const uint32_t at = hf_config(h, settings[i].key);
        if (*settings[i].of ? !hf_is(h, settings[i].of) : hf_is(h, "gemma3") && !i) continue;
        if (at && !jdoc_says(j, at, settings[i].value))
            return hf_refuse(h, settings[i].key, settings[i].value);
    }
    if (dense && j->nodes[dense].count) return hf_refuse(h, "mlp_only_layers", "an empty list");
    for (size_t i = 0; i < BASE_COUNT(h->family->needs) && h->family->needs[i]; i++)
        if (!hf_config(h, h->family->needs[i]) &&
            !jdoc_get(j, hf_config(h, "rope_parameters"), h->family->needs[i]))
            return hf_wrong(h, &h->config, h->family->needs[i], "a value");
    return CAIRN_OK;
}

/* ---- rope ------------------------------------------------------------------------------------ */

/* Llama 3: waves longer than the original context over `low` are stretched `factor` times, those
 * shorter than it over `high` stay, those between by a mixture. */
static cairn_status hf_read_llama3(hf_folder *h, uint32_t scaling, double turns, int dim) {
    double factor, low, high, original, factors[128];
    cairn_status status;
    if ((status = hf_number(h, scaling, "factor", 0, &factor)) ||
        (status = hf_number(h, scaling, "low_freq_factor", 0, &low)) ||
        (status = hf_number(h, scaling, "high_freq_factor", 0, &high)) ||
        (status = hf_number(h, scaling, "original_max_position_embeddings", 0, &original)))
        return status;
    if (dim < 2 || dim > 256 || factor < 1 || !(low > 0) || high <= low || !(original > 0))
        return hf_wrong(h, &h->config, "rope_scaling", "factor, low_freq_factor, high_freq_factor "
                        "and original_max_position_embeddings, and heads of up to 256 values,");
    for (int j = 0; j < dim / 2; j++) {
        const double wave = 2 * 3.14159265358979323846 * pow(turns, 2.0 * j / dim);
        const double stays = fmin(fmax((original / wave - low) / (high - low), 0), 1);
        factors[j] = 1 / (stays + (1 - stays) / factor);
    }
    hf_make_vector(h, "rope_freqs.weight", factors, dim / 2);
    return CAIRN_OK;
}

static cairn_status hf_read_factors(hf_folder *h, uint32_t scaling, const char *key,
                                    const char *name) {
    const jdoc *j = &h->config.doc;
    const uint32_t list = jdoc_get(j, scaling, key);
    double factors[128];
    if (!jdoc_is(j, list, JDOC_ARRAY) || j->nodes[list].count > 128)
        return hf_wrong(h, &h->config, key, "a list of up to 128 numbers");
    for (uint32_t i = 0, at = list + 1; i < j->nodes[list].count; i++, at = j->nodes[at].end)
        factors[i] = jdoc_value(j, at);
    hf_make_vector(h, name, factors, (int)j->nodes[list].count);
    return CAIRN_OK;
}

static cairn_status hf_read_longrope(hf_folder *h, uint32_t scaling) {
    double magnitude;
    cairn_status status;
    if ((status = hf_read_factors(h, scaling, "long_factor", "rope_factors_long.weight")) ||
        (status = hf_read_factors(h, scaling, "short_factor", "rope_factors_short.weight")) ||
        (status = hf_number(h, scaling, "attention_factor", 1, &magnitude)))
        return status;
    hf_key_text(h, ".rope.scaling.type", "longrope", 8);
    if (magnitude != 1) hf_key_f32(h, ".rope.scaling.attn_factor", magnitude);
    return CAIRN_OK;
}

static cairn_status hf_read_yarn(hf_folder *h, uint32_t scaling, double factor) {
    static const struct { const char *from, *to; } numbers[] = {
        {"beta_fast", ".rope.scaling.yarn_beta_fast"},
        {"beta_slow", ".rope.scaling.yarn_beta_slow"}};
    const jdoc *j = &h->config.doc;
    double value;
    if (jdoc_get(j, scaling, "mscale") || jdoc_get(j, scaling, "mscale_all_dim") ||
        jdoc_says(j, jdoc_get(j, scaling, "truncate"), "false"))
        return hf_refuse(h, "rope_scaling", "yarn without mscale, mscale_all_dim and truncate");
    for (size_t i = 0; i < BASE_COUNT(numbers); i++) {
        if (hf_number(h, scaling, numbers[i].from, 0, &value)) return h->b->status;
        if (value > 0) hf_key_f32(h, numbers[i].to, value);
    }
    if (hf_number(h, scaling, "attention_factor", 0, &value)) return h->b->status;
    if (value > 0) /* instead of the one that the factor gives */
        hf_key_f32(h, ".rope.scaling.attn_factor", value / (1 + 0.1 * log(factor)));
    return CAIRN_OK;
}

/* The context for which a scaled rope was trained first, where it is said. */
static cairn_status hf_read_original(hf_folder *h, uint32_t scaling) {
    static const char *const key = "original_max_position_embeddings";
    uint32_t at = jdoc_get(&h->config.doc, scaling, key);
    uint64_t value;
    if (!at) at = hf_config(h, key);
    if (!at) return CAIRN_OK;
    if (!jdoc_whole(&h->config.doc, at, 1 << 24, &value))
        return hf_wrong(h, &h->config, key, "a whole number");
    hf_key_u32(h, ".rope.scaling.original_context_length", value);
    return CAIRN_OK;
}

static cairn_status hf_read_scaling(hf_folder *h, uint32_t scaling, double turns, int dim) {
    const jdoc *j = &h->config.doc;
    uint32_t kind = jdoc_get(j, scaling, "rope_type");
    double factor;
    cairn_status status;
    if (!kind) kind = jdoc_get(j, scaling, "type");
    if (!kind || jdoc_says(j, kind, "default")) return CAIRN_OK;
    if (jdoc_says(j, kind, "llama3")) return hf_read_llama3(h, scaling, turns, dim);
    if ((status = hf_read_original(h, scaling))) return status;
    if (jdoc_says(j, kind, "longrope") || jdoc_says(j, kind, "su"))
        return hf_read_longrope(h, scaling);
    if (!jdoc_says(j, kind, "linear") && !jdoc_says(j, kind, "yarn"))
        return hf_refuse(h, "rope_scaling", "default, linear, yarn, llama3 or longrope");
    if ((status = hf_number(h, scaling, "factor", 0, &factor))) return status;
    if (factor < 1) return hf_wrong(h, &h->config, "factor", "a number of 1 or more");
    hf_key_text(h, ".rope.scaling.type", j->text + j->nodes[kind].at, j->nodes[kind].bytes);
    hf_key_f32(h, ".rope.scaling.factor", factor);
    return jdoc_says(j, kind, "yarn") ? hf_read_yarn(h, scaling, factor) : CAIRN_OK;
}

/* gemma: the rope of layers with a window, where both are told apart. */
static cairn_status hf_read_window_rope(hf_folder *h, uint32_t rope) {
    const uint32_t kind = jdoc_get(&h->config.doc, rope, "rope_type");
    double turns;
    if (kind && !jdoc_says(&h->config.doc, kind, "default"))
        return hf_refuse(h, "sliding_attention", "a rope of type default");
    if (hf_number(h, rope, "rope_theta", 10000, &turns)) return h->b->status;
    hf_key_f32(h, ".rope.freq_base_swa", turns);
    return CAIRN_OK;
}

static cairn_status hf_read_rope(hf_folder *h) {
    uint32_t scaling = hf_config(h, "rope_scaling"), holder = h->text, own = h->text;
    const char *theta = hf_is(h, "lfm2") && hf_config(h, "theta") ? "theta" : "rope_theta";
    double turns, share, dim, heads, hidden;
    cairn_status status;
    if (!scaling) scaling = hf_config(h, "rope_parameters");
    if (hf_is(h, "gemma3") && jdoc_get(&h->config.doc, scaling, "full_attention")) {
        if ((status = hf_read_window_rope(h, jdoc_get(&h->config.doc, scaling, "sliding_attention"))))
            return status;
        scaling = jdoc_get(&h->config.doc, scaling, "full_attention");
    }
    if (!hf_config(h, theta)) holder = scaling;
    if ((status = hf_number(h, holder, theta, hf_default(h, theta, 10000), &turns)) ||
        (status = hf_number(h, own, "partial_rotary_factor", 1, &share)) ||
        (status = hf_number(h, own, "hidden_size", 1, &hidden)) ||
        (status = hf_number(h, own, "num_attention_heads", hf_default(h, "num_attention_heads", 1),
                            &heads)) ||
        (status = hf_number(h, own, "head_dim", hf_default(h, "head_dim", floor(hidden / heads)), &dim)))
        return status;
    hf_key_f32(h, ".rope.freq_base", turns);
    if (share < 1) hf_key_u32(h, ".rope.dimension_count", (uint64_t)(dim * share));
    if (hf_is(h, "phi3") && !scaling && (status = hf_read_original(h, 0))) return status;
    return scaling ? hf_read_scaling(h, scaling, turns, (int)fmin(dim, 1e6)) : CAIRN_OK;
}

static cairn_status hf_read_config(hf_folder *h) {
    const uint32_t window = hf_config(h, "sliding_window");
    const char *slash = h->path + strlen(h->path), *end;
    uint64_t tokens;
    double scalar;
    cairn_status status;
    while (slash > h->path && os_is_separator(slash[-1])) slash--;
    for (end = slash; slash > h->path && !os_is_separator(slash[-1]);) slash--;
    hf_key_text(h, "general.architecture", h->family->architecture,
                strlen(h->family->architecture));
    hf_key_text(h, "general.name", slash, (size_t)(end - slash));
    if (h->family->halves) hf_key_bool(h, GGUF_HALVES, true);
    if (h->family->norms_from_one) hf_key_bool(h, GGUF_NORMS_FROM_ONE, true);
    if ((status = hf_check_settings(h)) || (status = hf_read_numbers(h)) ||
        (status = hf_read_layer_kinds(h)) || (status = hf_read_rope(h)) ||
        (status = hf_number(h, h->text, "query_pre_attn_scalar",
                            hf_default(h, "query_pre_attn_scalar", 0), &scalar)))
        return status;
    if (scalar > 0) hf_key_f32(h, ".attention.scale", (double)(1.0f / sqrtf((float)scalar)));
    tokens = (uint64_t)hf_default(h, "sliding_window", 0);
    if ((!window && !tokens) || hf_is(h, "smollm3")) return CAIRN_OK;
    if (window && !jdoc_whole(&h->config.doc, window, INT32_MAX, &tokens))
        return hf_wrong(h, &h->config, "sliding_window", "a whole number");
    hf_key_u32(h, ".attention.sliding_window", tokens);
    return CAIRN_OK;
}

static cairn_status hf_take_family(hf_folder *h, const struct hf_family *family) {
    const jdoc *j = &h->config.doc;
    h->family = family;
    if (!family->text) return CAIRN_OK;
    h->text = jdoc_get(j, 0, family->text);
    if (!jdoc_is(j, h->text, JDOC_OBJECT)) return hf_wrong(h, &h->config, family->text, "an object");
    return CAIRN_OK;
}

static cairn_status hf_find_family(hf_folder *h) {
    const jdoc *j = &h->config.doc;
    const uint32_t type = hf_config(h, "model_type");
    char known[256];
    size_t at = 0;
    for (size_t i = 0; i < BASE_COUNT(hf_families); i++) {
        if (jdoc_is(j, type, JDOC_STRING) && jdoc_says(j, type, hf_families[i].type))
            return hf_take_family(h, &hf_families[i]);
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "",
                               hf_families[i].type);
    }
    if (!jdoc_is(j, type, JDOC_STRING)) return hf_wrong(h, &h->config, "model_type", "a text");
    at = j->nodes[type].bytes < 64 ? j->nodes[type].bytes : 64;
    return base_fail(h->b, CAIRN_UNSUPPORTED, "%s: model_type is '%.*s'; supported: %s",
                     h->config.path.data, (int)at, j->text + j->nodes[type].at, known);
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* The names in GGUF, without what stands before and behind; of a layer the others. */
static const struct { const char *from, *to; } hf_names[] = {
    {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"}, {"lm_head", "output"},
    {"model.embedding_norm", "token_embd_norm"}}, hf_layer_names[] = {
    {"input_layernorm", "attn_norm"}, {"operator_norm", "attn_norm"},
    {"post_attention_layernorm", "ffn_norm"}, {"ffn_norm", "ffn_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"}, {"post_feedforward_layernorm", "post_ffw_norm"},
    {"self_attn.q_proj", "attn_q"}, {"self_attn.k_proj", "attn_k"}, {"self_attn.v_proj", "attn_v"},
    {"self_attn.qkv_proj", "attn_qkv"}, {"self_attn.o_proj", "attn_output"},
    {"self_attn.out_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"}, {"self_attn.q_layernorm", "attn_q_norm"},
    {"self_attn.k_layernorm", "attn_k_norm"}, {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"}, {"mlp.gate_up_proj", "ffn_up"}, {"mlp.down_proj", "ffn_down"},
    {"feed_forward.w1", "ffn_gate"}, {"feed_forward.w3", "ffn_up"}, {"feed_forward.w2", "ffn_down"},
    {"mlp.gate", "ffn_gate_inp"}, {"conv.in_proj", "shortconv.in_proj"},
    {"conv.out_proj", "shortconv.out_proj"}, {"conv.conv", "shortconv.conv"}};

/* A number from the text, without a zero before it; *text goes behind it. -1: there is none. */
static int hf_take_number(const char **text) {
    const char *at = *text;
    int value = 0;
    while (*at >= '0' && *at <= '9' && value < 100000) value = value * 10 + (*at++ - '0');
    if (at == *text || (**text == '0' && at > *text + 1) || value >= 100000) return -1;
    return *text = at, value;
}

/* The name of a layer's tensor, whose own part is `text` up to the last dot. */
static const char *hf_layer_name(const hf_folder *h, const char *text, size_t bytes) {
    if (h->family->norms_from_one && bytes == 24 && !memcmp(text, "post_attention_layernorm", 24))
        return "post_attention_norm";
    for (size_t i = 0; i < BASE_COUNT(hf_layer_names); i++)
        if (strlen(hf_layer_names[i].from) == bytes && !memcmp(hf_layer_names[i].from, text, bytes))
            return hf_layer_names[i].to;
    return NULL;
}

/* An expert's weight: a part of the one tensor that GGUF has for all. */
static bool hf_rename_expert(shards_tensor *t, int layer, const char *rest) {
    static const char *const kinds[] = {"gate", "up", "down"};
    char tail[32];
    int expert;
    if (strncmp(rest, "mlp.experts.", 12)) return false;
    rest += 12;
    expert = hf_take_number(&rest);
    for (int i = 0; i < 3 && expert >= 0; i++) {
        snprintf(tail, sizeof tail, ".%s_proj.weight", kinds[i]);
        if (strcmp(rest, tail)) continue;
        t->part = expert;
        snprintf(t->name, sizeof t->name, "blk.%d.ffn_%s_exps.weight", layer, kinds[i]);
        return true;
    }
    return false;
}

/* Gives the tensor its name in GGUF; one that has none keeps its own, and the family refuses it. */
static void hf_rename(const hf_folder *h, shards_tensor *t) {
    char old[SHARDS_NAME_BYTES];
    const char *rest = old + 13, *dot, *name = NULL;
    int layer = -1;
    memcpy(old, t->name, sizeof old);
    if (!strncmp(old, "model.layers.", 13)) layer = hf_take_number(&rest);
    dot = strrchr(old, '.');
    if (layer >= 0 && *rest == '.' && dot > rest) {
        if (hf_rename_expert(t, layer, ++rest)) return;
        name = hf_layer_name(h, rest, (size_t)(dot - rest));
        if (name) snprintf(t->name, sizeof t->name, "blk.%d.%s%.16s", layer, name, dot);
        return;
    }
    for (size_t i = 0; i < BASE_COUNT(hf_names) && dot; i++)
        if (strlen(hf_names[i].from) == (size_t)(dot - old) &&
            !memcmp(hf_names[i].from, old, (size_t)(dot - old)))
            snprintf(t->name, sizeof t->name, "%s%.16s", hf_names[i].to, dot);
}

/* Whether the tensor says nothing: a head that is the embedding, or what the config tells. */
static bool hf_drops(const hf_folder *h, const shards_tensor *t) {
    const size_t bytes = strlen(t->name);
    const uint32_t tied = hf_config(h, hf_is(h, "lfm2") && hf_config(h, "tie_embedding")
                                           ? "tie_embedding" : "tie_word_embeddings");
    if (bytes > 20 && !strcmp(t->name + bytes - 20, ".rotary_emb.inv_freq")) return true;
    return !strcmp(t->name, "lm_head.weight") && tied && jdoc_says(&h->config.doc, tied, "true");
}

static int hf_tensor_order(const void *left, const void *right) {
    const shards_tensor *a = (const shards_tensor *)left, *c = (const shards_tensor *)right;
    int order = strcmp(a->name, c->name);
    return order ? order : (a->part > c->part) - (a->part < c->part);
}

/* Bytes that a backend may want to find at such an address lie there in the file. */
static bool hf_is_aligned(const shards_tensor *t) { return t->from % 8 == 0; }

/* Places the tensors from `first` on that are parts of one, the first of which is given. Returns
 * where the next begins. */
static cairn_status hf_place(hf_folder *h, size_t first, size_t *end) {
    shards_tensor *t = &h->weights->tensors[first];
    int64_t shape[4] = {1, 1, 1, 1};
    int ndim = t->ndim ? t->ndim : 1;
    uint64_t at = h->next;
    size_t last = first + 1;
    while (last < h->weights->count && t->part >= 0 && !strcmp(t->name, t[last - first].name))
        last++;
    for (size_t i = first; i < last; i++) {
        shards_tensor *each = &h->weights->tensors[i];
        if (t->part >= 0 && (each->part != (int)(i - first) || each->type != t->type ||
                             each->ndim != t->ndim || ndim > 3 ||
                             memcmp(each->shape, t->shape, sizeof t->shape)))
            return base_fail(h->b, CAIRN_BAD_FILE, "%s: the tensor '%s' of expert %d is missing, "
                             "or of another shape or type than that of the first", h->path, t->name,
                             (int)(i - first));
        each->to = at;
        at += each->bytes;
    }
    memcpy(shape + (t->part >= 0), t->shape, sizeof *shape * (size_t)(4 - (t->part >= 0)));
    if (!t->ndim) shape[t->part >= 0] = 1;
    if (t->part >= 0) shape[0] = (int64_t)(last - first), ndim++;
    hf_describe(h, t->name, t->type, ndim, shape, at - t->to);
    return *end = last, CAIRN_OK;
}

/* Names and places: first what has to be put together, so that a map of the rest suffices. Returns
 * in *apart where that ends. */
static cairn_status hf_place_tensors(hf_folder *h, uint64_t *apart) {
    shards *s = h->weights;
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < s->count;)
        if (hf_drops(h, &s->tensors[i])) s->tensors[i] = s->tensors[--s->count];
        else hf_rename(h, &s->tensors[i++]);
    if (s->count) qsort(s->tensors, s->count, sizeof *s->tensors, hf_tensor_order);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0, end; i < s->count && !status; i = end) {
            const shards_tensor *t = &s->tensors[i];
            const bool together = t->part >= 0 || !hf_is_aligned(t);
            end = i + 1;
            while (t->part >= 0 && end < s->count && !strcmp(t->name, s->tensors[end].name)) end++;
            if (together == !pass) status = hf_place(h, i, &end);
        }
        if (!pass) *apart = h->next;
    }
    return status;
}

/* Of a model that sees, too: leaves the tensors of its text, under the names that they have in one that
 * does not. */
static cairn_status hf_keep_text(hf_folder *h) {
    static const char *const seeing[] = {"vision_tower.", "multi_modal_projector."};
    static const char inner[] = "language_model.";
    shards *s = h->weights;
    if (!h->family->text) return CAIRN_OK;
    for (size_t i = 0; i < s->count;) {
        char *name = s->tensors[i].name, *part = name + (strncmp(name, "model.", 6) ? 0 : 6);
        const bool sees = !strncmp(part, seeing[0], strlen(seeing[0])) ||
                          !strncmp(part, seeing[1], strlen(seeing[1]));
        if (sees) s->tensors[i] = s->tensors[--s->count];
        else if (i++, !strncmp(part, inner, sizeof inner - 1))
            memmove(part, part + sizeof inner - 1, strlen(part) + 2 - sizeof inner);
    }
    return shards_sort(h->b, s);
}

/* ---- weights --------------------------------------------------------------------------------- */

static cairn_status hf_open_weights(hf_folder *h, const char *name, bool torch) {
    base_text path = {NULL, 0, 0};
    int file;
    cairn_status status;
    if (!base_text_print(h->b, &path, "%s/%s", h->path, name))
        return base_no_memory(h->b, name, strlen(h->path));
    status = shards_open_file(h->b, h->weights, path.data, h->how == HF_MAP, &file);
    if (!status)
        status = torch ? torch_list(h->b, h->weights) : safetensors_list(h->b, h->weights);
    base_text_free(h->b, &path);
    return status;
}

/* A name in the folder, and nothing that leads out of it. */
static bool hf_is_plain(const jdoc *j, uint32_t at) {
    const jdoc_node *n = &j->nodes[at];
    bool plain = n->kind == JDOC_STRING && n->bytes && n->bytes <= 200 && j->text[n->at] != '.';
    for (uint32_t i = 0; plain && i < n->bytes; i++)
        plain = (unsigned char)j->text[n->at + i] >= ' ' && !strchr("/\\:", j->text[n->at + i]);
    return plain;
}

/* The file of the index that is open already; -1. */
static int hf_shard_of(const hf_folder *h, const char *text, size_t bytes) {
    const size_t folder = strlen(h->path) + 1;
    for (int i = 0; i < h->weights->file_count; i++) {
        const base_text *path = &h->weights->files[i].path;
        if (path->size == folder + bytes && !memcmp(path->data + folder, text, bytes)) return i;
    }
    return -1;
}

/* Opens the files that the index names. */
static cairn_status hf_open_shards(hf_folder *h, const hf_file *index, uint32_t map, bool torch) {
    const jdoc *j = &index->doc;
    char name[256];
    cairn_status status = CAIRN_OK;
    if (!jdoc_is(j, map, JDOC_OBJECT))
        return hf_wrong(h, index, "weight_map", "an object of names of files");
    for (uint32_t at = map + 1; at < j->nodes[map].end && !status; at = j->nodes[at + 1].end) {
        const jdoc_node *file = &j->nodes[at + 1];
        if (!hf_is_plain(j, at + 1))
            return hf_wrong(h, index, "weight_map", "the name of a file in the folder");
        if (hf_shard_of(h, j->text + file->at, file->bytes) >= 0) continue;
        snprintf(name, sizeof name, "%.*s", (int)file->bytes, j->text + file->at);
        status = hf_open_weights(h, name, torch);
    }
    return status;
}

/* Whether each tensor of the index lies in its file. */
static cairn_status hf_check_index(hf_folder *h, const hf_file *index, uint32_t map) {
    const jdoc *j = &index->doc;
    char name[SHARDS_NAME_BYTES];
    for (uint32_t at = map + 1; at < j->nodes[map].end; at = j->nodes[at + 1].end) {
        const jdoc_node *file = &j->nodes[at + 1];
        const shards_tensor *t;
        size_t bytes = j->nodes[at].bytes < sizeof name ? j->nodes[at].bytes : sizeof name - 1;
        snprintf(name, sizeof name, "%.*s", (int)bytes, j->text + j->nodes[at].at);
        t = shards_find(h->weights, name);
        if (!t || t->file != hf_shard_of(h, j->text + file->at, file->bytes))
            return base_fail(h->b, CAIRN_BAD_FILE, "%s: the tensor '%s' is not in the file '%.*s'",
                             index->path.data, name, (int)(file->bytes < 100 ? file->bytes : 100),
                             j->text + file->at);
    }
    return CAIRN_OK;
}

static cairn_status hf_open_index(hf_folder *h, const char *name, bool torch, bool *there) {
    hf_file index;
    uint32_t map;
    cairn_status status;
    memset(&index, 0, sizeof index);
    status = hf_read_file(h, name, HF_MOST_CONFIG, true, &index);
    *there = index.there;
    if (!status && index.there) {
        map = jdoc_get(&index.doc, 0, "weight_map");
        status = hf_open_shards(h, &index, map, torch);
        if (!status) status = shards_sort(h->b, h->weights);
        if (!status) status = hf_check_index(h, &index, map);
    }
    hf_close_file(h->b, &index);
    return status;
}

/* The weights: by an index, or in one file; safetensors first. */
static cairn_status hf_list_weights(hf_folder *h) {
    static const struct { const char *name, *index; bool torch; } forms[] = {
        {"model.safetensors", "model.safetensors.index.json", false},
        {"pytorch_model.bin", "pytorch_model.bin.index.json", true},
        {"model.pt", NULL, true}};
    os_file_info info;
    base_text path = {NULL, 0, 0};
    cairn_status status = CAIRN_OK;
    bool there = false;
    for (size_t i = 0; i < BASE_COUNT(forms) && !there && !status; i++) {
        if (forms[i].index) status = hf_open_index(h, forms[i].index, forms[i].torch, &there);
        if (there || status) break;
        path.size = 0;
        if (!base_text_print(h->b, &path, "%s/%s", h->path, forms[i].name)) {
            status = base_no_memory(h->b, forms[i].name, strlen(h->path));
            break;
        }
        there = !os_calls.info(path.data, &info);
        if (there) status = hf_open_weights(h, forms[i].name, forms[i].torch);
        if (there && !status) status = shards_sort(h->b, h->weights);
    }
    base_text_free(h->b, &path);
    if (status || there) return status;
    return base_fail(h->b, CAIRN_FILE_NOT_FOUND, "%s: the folder has no model.safetensors, "
                     "model.safetensors.index.json, pytorch_model.bin or model.pt", h->path);
}

/* ---- the folder ------------------------------------------------------------------------------ */

/* What lfm2's config says only by way of other numbers. */
static void hf_read_ffn(hf_folder *h) {
    const shards_tensor *gate = shards_find(h->weights, "model.layers.0.feed_forward.w1.weight");
    const uint32_t said = hf_config(h, "intermediate_size");
    uint64_t ffn = 0;
    if (gate) ffn = (uint64_t)gate->shape[0];
    else jdoc_whole(&h->config.doc, said, 1 << 24, &ffn);
    if (ffn && ffn <= 1 << 24) hf_key_u32(h, ".feed_forward_length", ffn);
}

/* tokenizer.json; in its absence tokenizer.model. */
static cairn_status hf_find_tokenizer(hf_folder *h) {
    hf_file *f = &h->tokenizer;
    cairn_status status = hf_read_file(h, "tokenizer.json", HF_MOST_TOKENIZER, true, f);
    if (status || f->there) return status;
    base_text_free(h->b, &f->path);
    if ((status = hf_read_file(h, "tokenizer.model", HF_MOST_TOKENIZER, true, f)) || f->there)
        return status;
    return base_fail(h->b, CAIRN_FILE_NOT_FOUND, "%s: the folder has no tokenizer.json and no "
                     "tokenizer.model", h->path);
}

static cairn_status hf_read_all(hf_folder *h, uint64_t *apart) {
    const shards_tensor *embed;
    cairn_status status;
    if ((status = hf_read_file(h, "config.json", HF_MOST_CONFIG, false, &h->config)) ||
        (status = hf_find_family(h)) ||
        (status = hf_find_tokenizer(h)) ||
        (status = hf_read_file(h, "tokenizer_config.json", HF_MOST_CONFIG, true,
                               &h->tokenizer_config)) ||
        (status = hf_list_weights(h)) || (status = hf_keep_text(h)))
        return status;
    embed = shards_find(h->weights, "model.embed_tokens.weight");
    h->vocab = embed && embed->ndim == 2 ? embed->shape[0] : 0;
    if (h->vocab < 1 || h->vocab > 1 << 24)
        return base_fail(h->b, CAIRN_BAD_FILE, "%s: the tensor 'model.embed_tokens.weight' "
                         "[vocabulary, hidden] is missing", h->path);
    hf_read_ffn(h);
    if ((status = hf_read_config(h)) || (status = hf_read_tokenizer(h)) ||
        (status = hf_place_tensors(h, apart)))
        return status;
    return h->full ? base_no_memory(h->b, h->path, h->keys.size + h->tensors.size) : CAIRN_OK;
}

/* The head of the file, padded as its data begin. */
static bool hf_write_header(hf_folder *h, base_text *head) {
    base_text *to = head;
    hf_put(h, to, "GGUF", 4);
    hf_put_number(h, to, 3, 4);
    hf_put_number(h, to, h->tensor_count, 8);
    hf_put_number(h, to, h->key_count, 8);
    hf_put(h, to, h->keys.data, h->keys.size);
    hf_put(h, to, h->tensors.data, h->tensors.size);
    while (to->size % HF_ALIGNMENT && !h->full) hf_put(h, to, "", 1);
    return !h->full;
}

/* Reads the gguf of `held` of `size` bytes, of which head and made data are written. */
static cairn_status hf_parse(hf_folder *h, void *copy, uint8_t *data, size_t held, size_t size,
                             gguf *out) {
    const size_t ready = held < size ? held : size;
    bool more = false;
    cairn_status status = gguf_parse_part(h->b, h->path, data, ready, size, h->how == HF_SURVEY,
                                          &more, out);
    if (status) return status;
    out->copy = copy, out->held = ready;
    if (ready < size) {
        out->shards = h->weights;
        h->weights = NULL;
    }
    for (size_t i = 0; i < out->tensor_count && out->shards && h->how == HF_MAP; i++) {
        gguf_tensor *t = &out->tensors[i];
        t->data = gguf_fetch(out, t->at, t->bytes, NULL);
    }
    return CAIRN_OK;
}

/* Puts the header, and what of the data is to be held, into memory. */
static cairn_status hf_assemble(hf_folder *h, const base_text *head, uint64_t apart, gguf *out) {
    const size_t start = head->size, made = start + h->made.size;
    const uint64_t size = start + h->next;
    const uint64_t held = h->how == HF_COPY ? size : h->how == HF_MAP ? start + apart : made;
    const size_t bytes = (size_t)held + GGUF_ALIGNMENT;
    void *copy;
    uint8_t *data;
    cairn_status status = CAIRN_OK;
    if (size > SIZE_MAX / 2) return base_no_memory(h->b, h->path, SIZE_MAX);
    copy = base_realloc(h->b, NULL, 0, bytes);
    if (!copy) return base_no_memory(h->b, h->path, bytes);
    data = (uint8_t *)copy + (GGUF_ALIGNMENT - (uintptr_t)copy % GGUF_ALIGNMENT) % GGUF_ALIGNMENT;
    for (size_t i = 0; i < h->weights->count; i++) h->weights->tensors[i].to += start;
    shards_seal(h->weights);
    memcpy(data, head->data, start);
    if (h->made.size) memcpy(data + start, h->made.data, h->made.size);
    if (!shards_gather(h->weights, made, (size_t)held - made, data + made))
        status = base_fail(h->b, CAIRN_FILE_ERROR, "%s: the weights cannot be read", h->path);
    if (!status) status = hf_parse(h, copy, data, (size_t)held, (size_t)size, out);
    if (status) base_delete(h->b, copy, bytes, 1);
    return status;
}

static void hf_close(hf_folder *h) {
    hf_close_file(h->b, &h->config);
    hf_close_file(h->b, &h->tokenizer);
    hf_close_file(h->b, &h->tokenizer_config);
    base_text_free(h->b, &h->keys);
    base_text_free(h->b, &h->tensors);
    base_text_free(h->b, &h->made);
    if (h->weights) shards_close(h->b, h->weights);
    base_delete(h->b, h->weights, 1, sizeof *h->weights);
}

static cairn_status hf_open_folder(base *b, const char *path, hf_how how, gguf *out) {
    hf_folder h;
    base_text head = {NULL, 0, 0};
    uint64_t apart = 0;
    cairn_status status;
    memset(&h, 0, sizeof h);
    memset(out, 0, sizeof *out);
    h.b = b, h.path = path, h.how = how;
    h.weights = (shards *)base_new(b, 1, sizeof *h.weights);
    if (!h.weights) return base_no_memory(b, path, sizeof *h.weights);
    status = hf_read_all(&h, &apart);
    if (!status && !hf_write_header(&h, &head)) status = base_no_memory(b, path, h.keys.size);
    if (!status) status = hf_assemble(&h, &head, apart, out);
    base_text_free(b, &head);
    hf_close(&h);
    return status;
}

static cairn_status hf_open(base *b, const char *path, hf_how how, gguf *out) {
    os_file_info info;
    memset(&info, 0, sizeof info);
    if (!os_calls.info(path, &info) && info.directory) return hf_open_folder(b, path, how, out);
    if (how == HF_MAP) return gguf_open(b, path, out);
    if (how == HF_COPY) return gguf_copy(b, path, out);
    return how == HF_SCAN ? gguf_scan(b, path, out) : gguf_survey(b, path, out);
}

/* hf: which family a folder's config is of, and its keys (see hf.h). */

static const hf_family hf_families[] = {
    {"llama", "llama", {NULL}, true, false, true, NULL},
    {"mistral", "llama", {"num_key_value_heads", NULL}, true, false, true, NULL},
    {"smollm3", "smollm3", {"num_key_value_heads", "rope_theta", NULL}, true, false, false, NULL},
    {"qwen2", "qwen2", {"num_key_value_heads", NULL}, false, false, false, NULL},
    {"qwen3", "qwen3", {"num_key_value_heads", "head_dim", NULL}, false, false, false, NULL},
    {"qwen3_moe", "qwen3moe", {"num_key_value_heads", "head_dim", "norm_topk_prob"}, false, false, false, NULL},
    {"gemma3_text", "gemma3", {NULL}, false, true, true, NULL},
    {"gemma3", "gemma3", {NULL}, false, true, true, "text_config"},
    {"phi3", "phi3", {"num_key_value_heads", NULL}, false, false, true, NULL},
    {"lfm2", "lfm2", {"num_key_value_heads", NULL}, false, false, true, NULL}};

/* What published configs leave out, as transformers has it. */
static const struct { const char *architecture, *key; double value; } hf_defaults[] = {
    {"gemma3", "num_attention_heads", 8}, {"gemma3", "num_key_value_heads", 4}, {"gemma3", "head_dim", 256},
    {"gemma3", "max_position_embeddings", 131072}, {"gemma3", "rms_norm_eps", 1e-6},
    {"gemma3", "rope_theta", 1e6}, {"gemma3", "query_pre_attn_scalar", 256},
    {"gemma3", "sliding_window", 4096}, {"lfm2", "rope_theta", 1e6}};

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
    if ((!window && !tokens) || !h->family->windows) return CAIRN_OK;
    if (window && !jdoc_whole(&h->config.doc, window, INT32_MAX, &tokens))
        return hf_wrong(h, &h->config, "sliding_window", "a whole number");
    hf_key_u32(h, ".attention.sliding_window", tokens);
    return CAIRN_OK;
}

static cairn_status hf_take_family(hf_folder *h, const hf_family *family) {
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

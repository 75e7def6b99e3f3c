/* model: a model file read, its cache sized and opened. See model.h. */

/* The config's own max_batch: with it the cache is what memory holds; a larger one was asked for. */
enum { MODEL_MODEST_BATCH = 8 };

/* ---- families -------------------------------------------------------------------------------- */

static const struct model_family {
    const char *architecture; /* general.architecture of its files */
    cairn_status (*read)(plan_reader *r);
} model_families[] = {{"llama", llama_read}, {"lfm2", lfm2_read}, {"qwen2", qwen_read_biased},
                      {"qwen3", qwen_read_normed}, {"qwen3moe", qwen_read_experts},
                      {"gemma3", gemma_read}, {"phi3", phi_read}, {"smollm3", llama_read_smollm3},
                      {"deepseek32", deepseek_read}, {"glm-dsa", deepseek_read_glm}};

static void model_list_families(char *out, size_t bytes) {
    size_t at = 0;
    for (size_t i = 0; i < BASE_COUNT(model_families) && at < bytes; i++)
        at += (size_t)snprintf(out + at, bytes - at, "%s'%s'", i ? ", " : "",
                               model_families[i].architecture);
}

/* The plan, by one family; nothing in the file may be left over. */
static cairn_status model_read_family(cairn_model *m, base *b, const struct model_family *family,
                                      int max_seq_len, model_survey *survey) {
    const size_t tensors = m->file.tensor_count, keys = m->file.key_count, all = tensors + keys + 1;
    plan_reader r;
    cairn_status status;
    memset(&r, 0, sizeof r);
    r.b = b, r.file = &m->file, r.architecture = m->architecture;
    r.shape = &m->shape, r.plan = &m->plan, r.max_seq_len = max_seq_len;
    r.survey = survey;
    r.used = (bool *)base_new(b, all, sizeof *r.used);
    if (!r.used) return base_no_memory(b, "the names of tensors", all);
    r.read_keys = r.used + tensors;
    status = family->read(&r);
    base_delete(b, r.used, all, sizeof *r.used);
    return status;
}

static cairn_status model_read_plan(cairn_model *m, base *b, int max_seq_len, model_survey *survey) {
    const char *name;
    char known[256];
    size_t bytes;
    cairn_status status = gguf_string(b, &m->file, "general.architecture", NULL, &name, &bytes);
    if (status) return status;
    snprintf(m->architecture, sizeof m->architecture, "%.*s", (int)(bytes < 31 ? bytes : 31), name);
    for (size_t i = 0; i < BASE_COUNT(model_families); i++)
        if (!strcmp(m->architecture, model_families[i].architecture))
            return model_read_family(m, b, &model_families[i], max_seq_len, survey);
    model_list_families(known, sizeof known);
    return base_fail(b, CAIRN_UNSUPPORTED, "%s: the architecture is '%s'; supported: %s",
                     m->file.path, m->architecture, known);
}

static cairn_status model_try_plan(base *b, const gguf *file, int max_seq_len, model_survey *survey) {
    cairn_model *m = (cairn_model *)base_new(b, 1, sizeof *m);
    cairn_status status;
    if (!m) return base_no_memory(b, "a model", sizeof *m);
    m->file = *file;
    status = model_read_plan(m, b, max_seq_len, survey);
    plan_close(b, &m->plan);
    base_delete(b, m, 1, sizeof *m);
    return status;
}

/* ---- KV cache -------------------------------------------------------------------------------- */

static int model_max_seq_len(base *b, const cairn_config *config, const model_shape *s) {
    if (config->max_seq_len > s->context)
        base_log(b, CAIRN_LOG_INFO, "max_seq_len = %d is lowered to the model's %d",
                 (int)config->max_seq_len, s->context);
    return config->max_seq_len > 0 && config->max_seq_len < s->context ? config->max_seq_len
                                                                       : s->context;
}

static int model_pages_of(int tokens, int page_size) {
    return (tokens + page_size - 1) / page_size;
}

static int model_most_rows(const cairn_config *config) {
    return config->prefill_chunk > MODEL_EVAL_ROWS ? config->prefill_chunk : MODEL_EVAL_ROWS;
}

/* ---- groups of layers ---- */

/* The group of a window, with one more layer; KV_WINDOWS of them at most, and the last takes all others. */
static int model_add_window(kv_groups *groups, int window, int most) {
    int g = 0;
    while (g < groups->count && groups->window[g] != window) g++;
    if (g == KV_WINDOWS) g--;
    if (g == groups->count) groups->count++;
    if (groups->window[g] < window) groups->window[g] = window, groups->most[g] = most;
    groups->layers[g]++;
    return 1 + g;
}

/* Layers with a window that is short beside the longest sequence keep its pages alone. */
static void model_group_layers(cairn_model *m) {
    const cairn_config *config = &m->runtime->config;
    const int all = model_pages_of(m->max_seq_len, config->page_size);
    for (int i = 0; i < m->shape.layers; i++) {
        const plan_layer *l = &m->plan.layers[i];
        const int most = pages_window_most(l->window, model_most_rows(config), config->page_size);
        if (l->mixer == PLAN_ATTENTION && l->window && 2 * most < all)
            m->groups.of[l->state] = (uint8_t)model_add_window(&m->groups, l->window, most);
    }
}

/* Of each sequence that the cache has room for: twice what it needs at once, so that forks, sessions
 * that rest and prefixes find room, or an eighth of its pages, which is more where contexts are long. */
static kv_groups model_groups(const cairn_model *m, int pages) {
    const int all = model_pages_of(m->max_seq_len, m->runtime->config.page_size);
    kv_groups groups = m->groups;
    for (int g = 0; g < groups.count; g++) {
        const int most = groups.most[g], each = 2 * most > all / 8 ? 2 * most : all / 8;
        int64_t want = ((int64_t)each * pages + all - 1) / all;
        if (want < most) want = most;
        groups.pages[g] = want < pages ? (int)want : pages;
    }
    return groups;
}

static page_tables *model_tables(cairn_model *m, page_tables *whole, int layer) {
    const plan_layer *l = &m->plan.layers[layer];
    const int group = l->mixer == PLAN_ATTENTION ? m->kv.groups.of[l->state] : 0;
    return group ? &m->windows[group - 1].tables : whole;
}

static cairn_type model_kv_type(const cairn_model *m) {
    static const cairn_type types[CAIRN_KV_COUNT] = {CAIRN_F16, CAIRN_BF16, CAIRN_F32, CAIRN_E4M3};
    return types[m->runtime->config.kv_dtype];
}

static uint64_t model_cache_bytes(const cairn_model *m, int pages) {
    const model_shape *s = &m->shape;
    const int size = m->runtime->config.page_size;
    const kv_groups groups = model_groups(m, pages);
    const cairn_type type = model_kv_type(m);
    uint64_t bytes = 0;
    int whole = s->kv_layers;
    if (s->latent.q_rank) return (uint64_t)pages * pages_latent_bytes(s->kv_layers, size);
    for (int g = 0; g < groups.count; g++) {
        bytes += (uint64_t)groups.pages[g] * pages_window_bytes(groups.layers[g], s->kv_heads,
                                                                s->head_dim, size, type);
        whole -= groups.layers[g];
    }
    return bytes + (uint64_t)pages * pages_kv_bytes(whole, s->kv_heads, s->head_dim, size, type);
}

/* ---- size ---- */

/* What max_batch full sequences need, or as many as `free_bytes` holds; at least one page. */
static int model_pool_pages(const cairn_model *m, uint64_t free_bytes) {
    const cairn_config *config = &m->runtime->config;
    const uint64_t most = m->shape.latent.q_rank
                              ? (uint64_t)(INT_MAX / config->page_size) /* slots are i32 */
                              : INT_MAX / 2;
    uint64_t need = (uint64_t)config->max_batch *
                    (uint64_t)model_pages_of(m->max_seq_len, config->page_size), low = 1;
    if (need > most) need = most;
    if (model_cache_bytes(m, (int)need) <= free_bytes) return (int)need;
    while (need - low > 1) { /* low fits, or is 1; need does not */
        const uint64_t middle = low + (need - low) / 2;
        if (model_cache_bytes(m, (int)middle) <= free_bytes) low = middle;
        else need = middle;
    }
    return (int)low;
}

/* Device bytes that the cache may take: what the budget or the device leaves, less what the backend
 * takes. */
static cairn_status model_free_bytes(const cairn_model *m, const device *dev, uint64_t *bytes) {
    uint64_t wanted = m->memory.weights + m->memory.scratch + m->memory.opening, room;
    cairn_status status;
    if (dev->budget_bytes) {
        room = dev->budget_bytes > dev->live_bytes ? dev->budget_bytes - dev->live_bytes : 0;
    } else {
        if ((status = device_free_bytes(dev, &room))) return status;
        room = room / 10 * 9;
    }
    return *bytes = room > wanted ? room - wanted : 0, CAIRN_OK;
}

/* Refuses a batch whose cache the host's memory cannot hold: it would be reserved, and the system
 * would end the program when it filled. */
static cairn_status model_check_batch(const cairn_model *m, const device *dev, uint64_t room) {
    const cairn_config *config = &m->runtime->config;
    const uint64_t some = model_cache_bytes(m, model_pages_of(m->max_seq_len, config->page_size));
    const uint64_t sequence = some ? some : 1, fits = room / sequence;
    if (device_is_apart(dev) || dev->budget_bytes || config->max_batch <= MODEL_MODEST_BATCH ||
        fits >= (uint64_t)config->max_batch)
        return CAIRN_OK;
    return base_fail(dev->base, CAIRN_OUT_OF_MEMORY,
                     "max_batch = %d sequences of max_seq_len = %d tokens need %d * %.1f MiB = "
                     "%.1f GiB of keys and values; %.1f GiB of memory are there, enough for "
                     "max_batch = %d. memory.budget_mb makes do with fewer pages",
                     (int)config->max_batch, m->max_seq_len, (int)config->max_batch,
                     (double)sequence / 1048576.0,
                     (double)config->max_batch * (double)sequence / 1073741824.0,
                     (double)room / 1073741824.0, (int)fits);
}

static cairn_status model_size_cache(const cairn_model *m, const device *dev, int *pages) {
    uint64_t room;
    cairn_status status = model_free_bytes(m, dev, &room);
    if (status) return status;
    *pages = model_pool_pages(m, room);
    return model_check_batch(m, dev, room);
}

static cairn_status model_open_cache(cairn_model *m, device *dev, int most) {
    const cairn_config *config = &m->runtime->config;
    const model_shape *s = &m->shape;
    int wanted = model_pool_pages(m, UINT64_MAX);
    int pages;
    kv_groups groups;
    cairn_status status;
    if (s->latent.q_rank && config->kv_dtype != CAIRN_KV_F16)
        return base_fail(dev->base, CAIRN_UNSUPPORTED,
                         "kv_dtype = \"%s\": the cache of a model with latent attention is f16",
                         config_kv_dtype_values[config->kv_dtype].text);
    if ((status = model_size_cache(m, dev, &pages))) return status;
    if (pages > most) pages = most;
    for (;;) {
        groups = model_groups(m, pages);
        status = s->latent.q_rank
                     ? pages_latent_open(dev, s->kv_layers, config->page_size, pages, &m->kv)
                     : pages_groups_open(dev, s->kv_layers, s->kv_heads, s->head_dim,
                                         config->page_size, model_kv_type(m), pages, &groups,
                                         &m->kv);
        if ((status != CAIRN_OUT_OF_MEMORY && status != CAIRN_OUT_OF_DEVICE_MEMORY) || pages == 1)
            break;
        pages = pages / 2; /* what the device said to be free was not */
    }
    if (!status && pages < wanted)
        base_log(dev->base, CAIRN_LOG_INFO,
                 "memory holds %d KV pages of %d tokens; max_batch * max_seq_len needs %d", pages,
                 (int)config->page_size, wanted);
    return status;
}

/* ---- load and free --------------------------------------------------------------------------- */

/* Also of a model that is half read. */
static void model_close_file(cairn_model *m, base *b) {
    plan_close(b, &m->plan);
    gguf_close(b, &m->file);
}

/* The file, its shape and plan. model_close_file gives them back, also after a failure. */
static cairn_status model_read(cairn_model *m, base *b, model_place place, bool stays) {
    const char *name;
    size_t bytes;
    bool found;
    cairn_status status = place.source ? gguf_from(b, place.source, stays, &m->file)
                                       : hf_open(b, m->runtime->pool, place.path, place.how, &m->file);
    if (status) return status;
    m->file_bytes = m->file.size;
    if ((status = model_read_plan(m, b, m->runtime->config.max_seq_len, NULL)) ||
        (status = gguf_string(b, &m->file, "general.name", &found, &name, &bytes)))
        return status;
    if (found)
        snprintf(m->name, sizeof m->name, "%.*s", (int)(bytes < 127 ? bytes : 127), name);
    return CAIRN_OK;
}

/* The config's format of conversations, where it gives one. */
static cairn_status model_set_chat(cairn_model *m, base *b) {
    const cairn_chat_texts *c = &m->runtime->config.chat;
    const char *before[CHAT_ROLES] = {c->system_count ? c->system[0] : NULL, c->user[0],
                                      c->assistant[0]};
    const char *after[CHAT_ROLES] = {c->system[1], c->user[1], c->assistant[1]};
    if (!c->system_count && !c->user_count && !c->assistant_count) return CAIRN_OK;
    if (!c->user_count || !c->assistant_count)
        return base_fail(b, CAIRN_INVALID_CONFIG, "chat gives no text around messages of %s; user "
                         "and assistant are needed", c->user_count ? "assistant" : "user");
    return tokenizer_set_format(b, &m->tokenizer, before, after);
}

static cairn_status model_open_tokenizer(cairn_model *m) {
    base *b = &m->runtime->base;
    cairn_status status = tokenizer_open(b, m->runtime->pool, &m->file, &m->tokenizer);
    if (!status) status = model_set_chat(m, b);
    if (!status && m->tokenizer.vocab != m->shape.vocab)
        return base_fail(b, CAIRN_BAD_FILE,
                         "%s: the tokenizer has %d tokens, the embedding %d rows; one row a token "
                         "is expected", m->file.path, (int)m->tokenizer.vocab, m->shape.vocab);
    return status;
}

static void model_drop_file(cairn_model *m) {
    plan_drop_views(&m->plan);
    gguf_close(&m->runtime->base, &m->file);
}

static void model_unload(cairn_model *m) {
    base *b = &m->runtime->base;
    pages_kv_close(&m->kv);
    tokenizer_close(b, &m->tokenizer);
    model_close_file(m, b);
    base_delete(b, m, 1, sizeof *m);
}

static cairn_status model_check_layers(base *b, const cairn_config *config, const model_shape *s) {
    int layer = CAIRN_MAX_LAYERS - 1, rest = 0;
    for (int i = 0; i < CAIRN_MAX_LAYERS; i++) rest += !config_layer_selects(config, i);
    if (rest == 0) return CAIRN_OK;
    while (layer >= s->layers && !config_layer_selects(config, layer)) layer--;
    if (layer < s->layers) return CAIRN_OK;
    return base_fail(b, CAIRN_INVALID_ARGUMENT,
                     "selection.layers names layer %d; the model has %d (0 to %d)", layer,
                     s->layers, s->layers - 1);
}

static hf_how model_how_of(const cairn_runtime *rt) {
    if (rt->device.cuda) return HF_SCAN;
    return rt->config.memory.map == CAIRN_MAP_FILE ? HF_MAP : HF_COPY;
}

static cairn_status model_load(cairn_runtime *rt, model_place place, cairn_model **out) {
    base *b = &rt->base;
    cairn_model *m = (cairn_model *)base_new(b, 1, sizeof *m);
    cairn_status status;
    *out = NULL;
    if (!m) return base_no_memory(b, "a model", sizeof *m);
    m->runtime = rt;
    /* a backend that copies reads the host's bytes where they lie, while it opens */
    if ((status = model_read(m, b, place, rt->device.cuda ||
                                              rt->config.memory.map == CAIRN_MAP_FILE)) ||
        (status = model_check_layers(b, &rt->config, &m->shape))) {
        model_unload(m);
        return status;
    }
    m->max_seq_len = model_max_seq_len(b, &rt->config, &m->shape);
    model_group_layers(m);
    return *out = m, CAIRN_OK;
}

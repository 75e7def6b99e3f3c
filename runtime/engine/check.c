/* engine_check: what a model file is, and everything that keeps it from loading, told at once and
 * before anything is allocated for it.
 *
 * Each part of a load that can refuse a file is asked by itself, the architecture first; only where
 * none refuses it, the estimate goes through all of them together. Nothing is said twice. */

typedef struct engine_check {
    base *b;
    gguf file;
    cairn_model_report report;
    base_text reasons;   /* a line for each */
    cairn_status status; /* of the first */
    bool fits;           /* false: memory ran out */
} engine_check;

static void engine_check_reason(engine_check *c, cairn_status status, const char *why) {
    size_t bytes = strlen(c->file.path);
    const char *hint = strstr(why, " (CAIRN_"); /* of the status, which is given besides */
    if (!c->status) c->status = status;
    if (bytes && !strncmp(why, c->file.path, bytes) && !strncmp(why + bytes, ": ", 2))
        why += bytes + 2; /* the reader knows the file */
    c->report.reasons++;
    c->fits = base_text_print(c->b, &c->reasons, "%s%.*s", c->reasons.size ? "\n" : "",
                              (int)(hint ? (size_t)(hint - why) : strlen(why)), why) && c->fits;
}

/* The file's text of a key, cut to `bytes`; "" without one. */
static void engine_check_text(engine_check *c, const char *key, char *out, size_t bytes) {
    const char *text = "";
    size_t size = 0;
    bool found;
    if (gguf_string(c->b, &c->file, key, &found, &text, &size)) size = 0;
    snprintf(out, bytes, "%.*s", (int)(size < bytes ? size : bytes - 1), text);
    for (; *out; out++)
        if ((unsigned char)*out < ' ') *out = '?';
}

/* A number of the architecture's; 0 without one. */
static int32_t engine_check_number(engine_check *c, const char *key) {
    char name[96];
    uint32_t value = 0;
    bool found;
    snprintf(name, sizeof name, "%s.%s", c->report.architecture, key);
    if (gguf_u32(c->b, &c->file, name, &found, &value) || value > INT32_MAX) return 0;
    return (int32_t)value;
}

/* The most of a list by layers, as short convolutions have none; or the one number. */
static int32_t engine_check_kv_heads(engine_check *c) {
    char name[96];
    gguf_list list = {0, 0, NULL};
    int32_t most = engine_check_number(c, "attention.head_count_kv");
    bool found;
    snprintf(name, sizeof name, "%s.attention.head_count_kv", c->report.architecture);
    if (most || gguf_array(c->b, &c->file, name, &found, GGUF_I32, &list)) return most;
    for (uint64_t i = 0; i < list.count; i++) {
        const uint32_t heads = gguf_next_u32(&list);
        if (heads <= INT32_MAX && (int32_t)heads > most) most = (int32_t)heads;
    }
    return most;
}

static void engine_check_describe(engine_check *c) {
    cairn_model_report *r = &c->report;
    gguf_list tokens = {0, 0, NULL};
    bool found;
    engine_check_text(c, "general.architecture", r->architecture, sizeof r->architecture);
    engine_check_text(c, "general.name", r->name, sizeof r->name);
    engine_check_text(c, "tokenizer.ggml.model", r->tokenizer, sizeof r->tokenizer);
    engine_check_text(c, "tokenizer.ggml.pre", r->pre_tokenizer, sizeof r->pre_tokenizer);
    r->layers = engine_check_number(c, "block_count");
    r->hidden = engine_check_number(c, "embedding_length");
    r->heads = engine_check_number(c, "attention.head_count");
    r->kv_heads = engine_check_kv_heads(c);
    r->context = engine_check_number(c, "context_length");
    if (!gguf_array(c->b, &c->file, "tokenizer.ggml.tokens", &found, GGUF_STRING, &tokens))
        r->vocab = (int32_t)(tokens.count <= INT32_MAX ? tokens.count : 0);
    r->file_bytes = c->file.size;
    r->tensors = (int32_t)c->file.tensor_count;
    r->has_template = gguf_has(&c->file, "tokenizer.chat_template");
    r->has_landmark = gguf_tensor_find(&c->file, plan_landmark) != NULL;
}

enum { CHECK_TYPES = 32 }; /* block types of a file that are told */

typedef struct engine_check_type { int type, count; const char *first; } engine_check_type;

/* Counts the tensors by block type; returns how many types there are. */
static int engine_check_count(engine_check *c, engine_check_type *types) {
    int count = 0;
    for (size_t i = 0; i < c->file.tensor_count; i++) {
        const gguf_tensor *t = &c->file.tensors[i];
        uint64_t values = 1;
        int at = 0;
        for (int d = 0; d < 4; d++) /* nothing bounds the shape where the type is not supported */
            values = (uint64_t)t->shape[d] > UINT64_MAX / 2 / values ? UINT64_MAX / 2
                                                                     : values * (uint64_t)t->shape[d];
        c->report.parameters += c->report.parameters > UINT64_MAX / 2 ? 0 : values;
        while (at < count && types[at].type != t->type) at++;
        if (at == CHECK_TYPES) continue;
        if (at == count) {
            engine_check_type fresh = {t->type, 0, t->name};
            types[count++] = fresh;
        }
        types[at].count++;
    }
    return count;
}

/* Block types: which there are, and a reason for each that is not supported. */
static void engine_check_types(engine_check *c) {
    engine_check_type types[CHECK_TYPES];
    int count = engine_check_count(c, types);
    char why[384];
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        const engine_check_type *t = &types[i];
        if (at < sizeof c->report.types)
            at += (size_t)snprintf(c->report.types + at, sizeof c->report.types - at, "%s%s x %d",
                                   at ? ", " : "", block_name(t->type), t->count);
        if (block_find(t->type)) continue;
        snprintf(why, sizeof why, "block type %s (%d) of %d tensors, the first '%s', is not "
                 "supported; supported: %s", block_name(t->type), t->type, t->count, t->first,
                 BLOCK_SUPPORTED);
        engine_check_reason(c, CAIRN_UNSUPPORTED, why);
    }
}

static void engine_check_tell(void *check, cairn_status status, const char *why) {
    engine_check_reason((engine_check *)check, status, why);
}

/* The family, its keys, the shape and the tensors. */
static void engine_check_plan(engine_check *c, int max_seq_len) {
    model_survey survey = {engine_check_tell, c, 0};
    cairn_status status = model_try_plan(c->b, &c->file, max_seq_len, &survey);
    if (status) engine_check_reason(c, status, c->b->error);
}

static void engine_check_tokenizer(engine_check *c) {
    model_survey survey = {engine_check_tell, c, 0};
    bool chat;
    cairn_status status = tokenizer_survey(c->b, &c->file, &survey, &chat);
    c->report.has_chat = chat;
    if (status) engine_check_reason(c, status, c->b->error);
}

/* What is left: how the parts fit together, the config, the backend, and memory. */
static void engine_check_load(engine_check *c, const cairn_config *config, const char *path) {
    cairn_status status;
    if (c->report.reasons) return;
    status = engine_read_estimate(c->b, config, path, &c->report.estimate);
    c->report.estimate.struct_size = (uint32_t)sizeof c->report.estimate;
    if (status) engine_check_reason(c, status, c->b->error);
}

static void engine_check_file(engine_check *c, const cairn_config *config, const char *path) {
    cairn_status status = hf_open(c->b, NULL, path, HF_SURVEY, &c->file);
    if (status) {
        c->file.path[0] = '\0'; /* whose file it is, nothing else says */
        engine_check_reason(c, status, c->b->error);
        return;
    }
    engine_check_describe(c);
    engine_check_plan(c, config->max_seq_len);
    engine_check_types(c);
    engine_check_tokenizer(c);
    engine_check_load(c, config, path);
    gguf_close(c->b, &c->file);
}

cairn_status cairn_model_check(const cairn_config *config, const char *path,
                               cairn_model_report *report, char *reasons, size_t reasons_bytes) {
    cairn_config checked;
    base b;
    engine_check c;
    cairn_status status;
    if (reasons && reasons_bytes) *reasons = '\0';
    if (!path || !report) return CAIRN_INVALID_ARGUMENT;
    if (report->struct_size != sizeof *report) return CAIRN_VERSION_MISMATCH;
    if ((status = cairn_config_check(config, &checked, reasons, reasons_bytes))) return status;
    base_init(&b, &checked.allocator, checked.log_callback, checked.log_user, CAIRN_LOG_OFF);
    memset(&c, 0, sizeof c);
    c.b = &b;
    c.fits = true;
    c.report.struct_size = report->struct_size;
    engine_check_file(&c, &checked, path);
    if (!c.fits) c.status = CAIRN_OUT_OF_MEMORY;
    if (c.reasons.data && reasons && reasons_bytes)
        snprintf(reasons, reasons_bytes, "%s", c.reasons.data);
    base_text_free(&b, &c.reasons);
    *report = c.report;
    return c.status;
}

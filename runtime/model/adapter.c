/* adapter: files of adapters read and checked. See adapter.h. */

/* ---- files ----------------------------------------------------------------------------------- */

/* In whose layout rows of q and k are: as in the GGUF file of such a model, as transformers has them
 * (halves of a head turn together), or with pairs side by side. */
enum { ADAPTER_GGUF, ADAPTER_HALVES, ADAPTER_BESIDE };

enum { ADAPTER_OF_EXPERTS = 6 };

/* A module of a layer, and its products; more than one: their outputs follow one another. The first ones
 * are of experts: all in a tensor of three dimensions, or, by a name with '*', each in its own. */
static const struct adapter_module {
    const char *name;
    plan_role role;
    int roles, form;
} adapter_modules[] = {
    {"ffn_gate_exps", PLAN_GATE, 1, ADAPTER_GGUF}, {"ffn_up_exps", PLAN_UP, 1, ADAPTER_GGUF},
    {"ffn_down_exps", PLAN_DOWN, 1, ADAPTER_GGUF},
    {"mlp.experts.*.gate_proj", PLAN_GATE, 1, ADAPTER_HALVES},
    {"mlp.experts.*.up_proj", PLAN_UP, 1, ADAPTER_HALVES},
    {"mlp.experts.*.down_proj", PLAN_DOWN, 1, ADAPTER_HALVES},
    {"attn_q", PLAN_Q, 1, ADAPTER_GGUF}, {"attn_k", PLAN_K, 1, ADAPTER_GGUF},
    {"attn_v", PLAN_V, 1, ADAPTER_GGUF}, {"attn_qkv", PLAN_Q, 3, ADAPTER_GGUF},
    {"attn_output", PLAN_O, 1, ADAPTER_GGUF}, {"ffn_gate", PLAN_GATE, 1, ADAPTER_GGUF},
    {"ffn_up", PLAN_UP, 1, ADAPTER_GGUF}, {"ffn_down", PLAN_DOWN, 1, ADAPTER_GGUF},
    {"self_attn.q_proj", PLAN_Q, 1, ADAPTER_HALVES}, {"self_attn.k_proj", PLAN_K, 1, ADAPTER_HALVES},
    {"self_attn.v_proj", PLAN_V, 1, ADAPTER_HALVES},
    {"self_attn.qkv_proj", PLAN_Q, 3, ADAPTER_HALVES},
    {"self_attn.o_proj", PLAN_O, 1, ADAPTER_HALVES},
    {"self_attn.out_proj", PLAN_O, 1, ADAPTER_HALVES},
    {"mlp.gate_proj", PLAN_GATE, 1, ADAPTER_HALVES}, {"mlp.up_proj", PLAN_UP, 1, ADAPTER_HALVES},
    {"mlp.gate_up_proj", PLAN_GATE, 2, ADAPTER_HALVES},
    {"mlp.down_proj", PLAN_DOWN, 1, ADAPTER_HALVES},
    {"attention.wq", PLAN_Q, 1, ADAPTER_BESIDE}, {"attention.wk", PLAN_K, 1, ADAPTER_BESIDE},
    {"attention.wv", PLAN_V, 1, ADAPTER_BESIDE}, {"attention.wqkv", PLAN_Q, 3, ADAPTER_BESIDE},
    {"attention.wo", PLAN_O, 1, ADAPTER_BESIDE}, {"feed_forward.w1", PLAN_GATE, 1, ADAPTER_BESIDE},
    {"feed_forward.w3", PLAN_UP, 1, ADAPTER_BESIDE},
    {"feed_forward.w13", PLAN_GATE, 2, ADAPTER_BESIDE},
    {"feed_forward.w2", PLAN_DOWN, 1, ADAPTER_BESIDE}};

/* The two tensors of a module, 1 beyond their numbers in the file; 0: not found. */
typedef struct adapter_found { int a, b, module; } adapter_found;

typedef struct adapter_tensor {
    const char *name;
    int type, ndim;
    int64_t parts, rows, columns; /* parts: matrices one behind the other */
    size_t bytes;
} adapter_tensor;

typedef struct adapter_reader {
    base *b;
    cairn_model *m;
    const char *path;
    base_text file;  /* the path, of the one in a folder */
    gguf keyed;   /* empty, or */
    shards parts;
    double alpha, rank; /* alpha 0: a scale of 1; rank 0: each pair's own */
    bool rooted;        /* alpha / rank^0.5 */
    double drafts, mask; /* what the file says; -infinity: nothing */
    adapter_found *found; /* [layers, PLAN_ROLES] by the module's first product */
    adapter_found *numbered; /* [layers, 3, experts] of experts by names of their own */
    int parts_found[ADAPTER_PARTS]; /* 1 beyond their numbers in the file */
    cairn_adapter *out;
} adapter_reader;

static cairn_status adapter_fault(adapter_reader *r, cairn_status status, const char *name,
                                  const char *why) {
    return base_fail(r->b, status, "%s: tensor '%.127s': %s", r->path, name, why);
}

static int adapter_tensors(const adapter_reader *r) {
    return (int)(r->keyed.data ? r->keyed.tensor_count : r->parts.count);
}

static adapter_tensor adapter_tensor_at(const adapter_reader *r, int i) {
    const gguf_tensor *g = r->keyed.data ? &r->keyed.tensors[i] : NULL;
    const shards_tensor *s = g ? NULL : &r->parts.tensors[i];
    adapter_tensor t;
    t.name = g ? g->name : s->name;
    t.type = g ? g->type : s->type;
    t.ndim = g ? g->ndim : s->ndim;
    t.parts = t.ndim < 3 ? 1 : g ? g->shape[2] : s->shape[t.ndim - 3];
    t.rows = g ? g->shape[1] : t.ndim > 1 ? s->shape[t.ndim - 2] : 1;
    t.columns = g ? g->shape[0] : t.ndim ? s->shape[t.ndim - 1] : 0;
    if (t.ndim > 3) t.columns = 0;
    t.bytes = g ? g->bytes : (size_t)s->bytes;
    return t;
}

/* The values of a tensor, whose type and shape are checked, to out: one that is no finite number would
 * make all that a session says of it nonsense. */
static cairn_status adapter_fetch(adapter_reader *r, int i, float *out) {
    const adapter_tensor t = adapter_tensor_at(r, i);
    const int64_t count = t.parts * t.rows * t.columns;
    const block_type *type = block_find(t.type);
    const uint8_t *data = r->keyed.data ? (const uint8_t *)r->keyed.tensors[i].data : NULL;
    void *buffer = data ? NULL : base_new(r->b, t.bytes, 1);
    if (!data && !buffer) return base_no_memory(r->b, t.name, t.bytes);
    if (!data)
        data = shards_read(&r->parts, r->parts.tensors[i].file, r->parts.tensors[i].from,
                           t.bytes, buffer);
    if (data) type->dequantize(data, out, count);
    base_delete(r->b, buffer, t.bytes, 1);
    if (!data) return adapter_fault(r, CAIRN_FILE_ERROR, t.name, "it cannot be read");
    for (int64_t v = 0; v < count; v++)
        if (!isfinite(out[v]))
            return adapter_fault(r, CAIRN_BAD_FILE, t.name, "a value of it is no finite number");
    return CAIRN_OK;
}

/* ---- what the file says of itself ------------------------------------------------------------ */

static bool adapter_text_is(adapter_reader *r, const char *key, const char *wanted) {
    const char *text = "";
    size_t bytes = 0;
    bool found;
    if (gguf_string(r->b, &r->keyed, key, &found, &text, &bytes) || !found) return false;
    return bytes == strlen(wanted) && !memcmp(text, wanted, bytes);
}

static cairn_status adapter_read_count(adapter_reader *r, const char *key, double *out) {
    uint32_t value = 0;
    bool found;
    cairn_status status = gguf_u32(r->b, &r->keyed, key, &found, &value);
    if (!status && found) *out = (double)value;
    return status;
}

static cairn_status adapter_read_keys(adapter_reader *r) {
    float alpha = 0.0f;
    bool found;
    cairn_status status;
    if (!adapter_text_is(r, "general.type", "adapter") ||
        !adapter_text_is(r, "adapter.type", "lora"))
        return base_fail(r->b, CAIRN_UNSUPPORTED, "%s: no adapter: general.type 'adapter' and "
                         "adapter.type 'lora' are expected", r->path);
    if (!adapter_text_is(r, "general.architecture", r->m->architecture))
        return base_fail(r->b, CAIRN_UNSUPPORTED, "%s: it is for another architecture than '%s', "
                         "which this model has", r->path, r->m->architecture);
    if (gguf_has(&r->keyed, "adapter.alora.invocation_tokens"))
        return base_fail(r->b, CAIRN_UNSUPPORTED, "%s: it begins at a text of its own "
                         "(adapter.alora), which is not supported", r->path);
    status = gguf_f32(r->b, &r->keyed, "adapter.lora.alpha", &found, &alpha);
    r->alpha = (double)alpha;
    if (!status && !(fabs(r->alpha) <= 1e6))
        return base_fail(r->b, CAIRN_BAD_FILE, "%s: adapter.lora.alpha: a number up to 1e6 is "
                         "expected", r->path);
    if (!status) status = adapter_read_count(r, "adapter.draft_length", &r->drafts);
    return status ? status : adapter_read_count(r, "adapter.mask_token_id", &r->mask);
}

/* Whether the adapter is of the model's own weights: some ways to begin one change those, too. */
static bool adapter_began_plainly(const jdoc *j) {
    static const char *const plain[] = {"gaussian", "eva", "orthogonal", "mica"};
    const uint32_t at = jdoc_get(j, 0, "init_lora_weights");
    size_t i = 0;
    if (!jdoc_is(j, at, JDOC_STRING)) return true;
    while (i < BASE_COUNT(plain) && !jdoc_says(j, at, plain[i])) i++;
    return i < BASE_COUNT(plain);
}

/* Reads what adapter_config.json says; what is not certain to mean the same is refused. */
static cairn_status adapter_read_json(adapter_reader *r, const jdoc *j) {
    static const char *const refused[] = {
        "use_dora", "fan_in_fan_out", "lora_bias", "rank_pattern", "alpha_pattern", "use_qalora", "use_bdlora",
        "alora_invocation_tokens", "layer_replication", "arrow_config", "kasa_config", "monteclora_config"};
    const uint32_t type = jdoc_get(j, 0, "peft_type"), bias = jdoc_get(j, 0, "bias");
    r->rank = jdoc_value(j, jdoc_get(j, 0, "r"));
    r->alpha = jdoc_value(j, jdoc_get(j, 0, "lora_alpha"));
    if (jdoc_get(j, 0, "draft_length")) r->drafts = jdoc_value(j, jdoc_get(j, 0, "draft_length"));
    if (jdoc_get(j, 0, "mask_token_id")) r->mask = jdoc_value(j, jdoc_get(j, 0, "mask_token_id"));
    r->rooted = jdoc_says(j, jdoc_get(j, 0, "use_rslora"), "true");
    if (!(r->rank >= 1 && r->rank <= 1e6 && r->alpha > 0 && r->alpha <= 1e6))
        return base_fail(r->b, CAIRN_BAD_FILE, "%s: 'r' and 'lora_alpha': positive numbers are "
                         "expected", j->name);
    if ((type && !jdoc_says(j, type, "LORA")) || (bias && !jdoc_says(j, bias, "none")))
        return base_fail(r->b, CAIRN_UNSUPPORTED, "%s: peft_type 'LORA' and bias 'none' are "
                         "supported", j->name);
    for (size_t i = 0; i < BASE_COUNT(refused); i++) {
        const uint32_t at = jdoc_get(j, 0, refused[i]);
        const bool list = jdoc_is(j, at, JDOC_OBJECT) || jdoc_is(j, at, JDOC_ARRAY);
        if (at && !jdoc_says(j, at, "false") && !(list && !j->nodes[at].count))
            return base_fail(r->b, CAIRN_UNSUPPORTED, "%s: '%s' is not supported", j->name,
                             refused[i]);
    }
    if (!adapter_began_plainly(j))
        return base_fail(r->b, CAIRN_UNSUPPORTED, "%s: 'init_lora_weights': the adapter is of weights "
                         "that its beginning changed; save it converted to the model's own", j->name);
    return CAIRN_OK;
}

/* adapter_config.json in the folder of the file. */
static cairn_status adapter_read_config(adapter_reader *r) {
    static const char name[] = "adapter_config.json";
    size_t folder = r->file.size;
    base_text path = {NULL, 0, 0}, text = {NULL, 0, 0};
    jdoc doc;
    cairn_status status = CAIRN_OK;
    memset(&doc, 0, sizeof doc);
    while (folder && r->file.data[folder - 1] != '/' && r->file.data[folder - 1] != '\\') folder--;
    if (!base_text_add(r->b, &path, r->file.data, folder) ||
        !base_text_add(r->b, &path, name, sizeof name - 1))
        status = base_no_memory(r->b, name, folder + sizeof name);
    if (!status) status = os_read_file(r->b, path.data, &text);
    if (!status)
        status = jdoc_parse(r->b, path.data, text.data ? text.data : (char *)"", text.size, &doc);
    if (!status) status = adapter_read_json(r, &doc);
    jdoc_close(r->b, &doc);
    base_text_free(r->b, &text);
    base_text_free(r->b, &path);
    return status;
}

/* Opens what the first bytes say that the file is. */
static cairn_status adapter_open_file(adapter_reader *r) {
    uint8_t head[4] = {0, 0, 0, 0};
    int file;
    cairn_status status = shards_open_file(r->b, &r->parts, r->file.data, false, &file);
    if (status) return status;
    if (r->parts.files[file].size >= 4 && !shards_read(&r->parts, file, 0, 4, head))
        return os_fail(r->b, -EIO, "read", r->path);
    if (!memcmp(head, "GGUF", 4)) {
        shards_close(r->b, &r->parts);
        status = gguf_copy(r->b, NULL, r->file.data, &r->keyed);
        return status ? status : adapter_read_keys(r);
    }
    if (memcmp(head, "PK\3\4", 4) && memcmp(head, "\200\2\212\n", 4)) /* before PyTorch 1.6: it says so */
        status = safetensors_list(r->b, &r->parts);
    else status = torch_list(r->b, &r->parts);
    if (!status) status = shards_sort(r->b, &r->parts);
    return status ? status : adapter_read_config(r);
}

/* The file that a folder has of an adapter: safetensors before PyTorch's. */
static cairn_status adapter_open_folder(adapter_reader *r) {
    static const char *const names[] = {"/adapter_model.safetensors", "/adapter_model.bin"};
    const size_t folder = r->file.size;
    os_file_info info;
    memset(&info, 0, sizeof info);
    for (size_t i = 0; i < BASE_COUNT(names); i++) {
        r->file.size = folder;
        if (!base_text_print(r->b, &r->file, "%s", names[i]))
            return base_no_memory(r->b, r->path, folder);
        if (os_calls.info(r->file.data, &info) != -ENOENT) return adapter_open_file(r);
    }
    return base_fail(r->b, CAIRN_FILE_NOT_FOUND, "%s: neither adapter_model.safetensors nor "
                     "adapter_model.bin is in it", r->path);
}

static cairn_status adapter_open(adapter_reader *r) {
    os_file_info info;
    memset(&info, 0, sizeof info);
    if (!base_text_print(r->b, &r->file, "%s", r->path))
        return base_no_memory(r->b, r->path, strlen(r->path));
    if (!os_calls.info(r->path, &info) && info.directory) return adapter_open_folder(r);
    return adapter_open_file(r);
}

static const char adapter_twice[] = "another tensor is for the same product";
static const char adapter_no_product[] = "the model's layer has no such product";

/* ---- names ----------------------------------------------------------------------------------- */

/* What stands behind `text` where it begins a name; else NULL. */
static const char *adapter_behind(const char *name, const char *text) {
    size_t bytes = strlen(text);
    return strncmp(name, text, bytes) ? NULL : name + bytes;
}

/* What stands behind a number of up to six digits and no more zeros than it needs; else NULL. */
static const char *adapter_number(const char *at, int *number) {
    const char *first = at;
    for (*number = 0; *at >= '0' && *at <= '9' && at - first < 6; at++)
        *number = 10 * *number + (*at - '0');
    return at == first || (*first == '0' && at - first > 1) ? NULL : at;
}

/* What stands behind a module's name, which may have the number of an expert; else NULL. */
static const char *adapter_behind_module(const char *name, const char *module, int *expert) {
    const char *star = strchr(module, '*');
    if (!star) return adapter_behind(name, module);
    if (strncmp(name, module, (size_t)(star - module))) return NULL;
    name = adapter_number(name + (star - module), expert);
    return name ? adapter_behind(name, star + 1) : NULL;
}

/* The layer, and what follows its number and a dot; NULL: the name has no layer of the model. */
static const char *adapter_layer(const adapter_reader *r, const char *name, int *layer) {
    static const char *const before[] = {
        "blk.", "base_model.model.model.layers.", "base_model.model.layers.", "model.layers.",
        "layers.", "base_model.model.model.language_model.layers.",
        "base_model.model.language_model.model.layers."};
    const char *at = NULL;
    for (size_t i = 0; i < BASE_COUNT(before) && !at; i++) at = adapter_behind(name, before[i]);
    if (at) at = adapter_number(at, layer);
    return at && *at == '.' && *layer < r->m->shape.layers ? at + 1 : NULL;
}

/* The module that a name's part begins with, its expert, and whether it is its A or B; -1: it is none. */
static int adapter_module_of(const char *at, int *expert, bool *is_b) {
    static const char *const tails[] = {".weight.lora_a", ".weight.lora_b", ".lora_A.weight",
                                        ".lora_B.weight", ".lora_A.default.weight",
                                        ".lora_B.default.weight", ".lora_A", ".lora_B"};
    for (size_t i = 0; i < BASE_COUNT(adapter_modules); i++) {
        const char *tail = adapter_behind_module(at, adapter_modules[i].name, expert);
        for (size_t t = 0; tail && t < BASE_COUNT(tails); t++)
            if (!strcmp(tail, tails[t])) return *is_b = t % 2 != 0, (int)i;
    }
    return -1;
}

/* ---- gated adapters -------------------------------------------------------------------------- */

static const char *const adapter_part_names[ADAPTER_PARTS] = {
    "mask_embedding", "sampler.0.weight", "sampler.0.norm", "sampler.1.weight", "sampler.1.norm",
    plan_landmark};

/* Values of a part, rows times columns. */
static int64_t adapter_part_rows(const adapter_reader *r, int part) {
    return part == ADAPTER_FIRST || part == ADAPTER_SECOND ? r->m->shape.hidden : 1;
}
static int64_t adapter_part_columns(const adapter_reader *r, int part) {
    return (part == ADAPTER_FIRST ? 2 : 1) * (int64_t)r->m->shape.hidden;
}

/* Whether tensor i is a part; then *status says whether it may be. */
static bool adapter_sort_part(adapter_reader *r, int i, cairn_status *status) {
    const adapter_tensor t = adapter_tensor_at(r, i);
    const block_type *type = block_find(t.type);
    int part = 0;
    while (part < ADAPTER_PARTS && strcmp(t.name, adapter_part_names[part])) part++;
    if (part == ADAPTER_PARTS) return false;
    *status = CAIRN_OK;
    if (!type || t.ndim > 2 || t.columns < 1 || t.columns % type->values ||
        t.rows != adapter_part_rows(r, part) || t.columns != adapter_part_columns(r, part))
        *status = adapter_fault(r, CAIRN_UNSUPPORTED, t.name, "it has not the shape that the "
                                "model's hidden size gives, or is none of " BLOCK_SUPPORTED);
    r->parts_found[part] = i + 1;
    return true;
}

/* All parts or none; *values: what they will take. */
static cairn_status adapter_check_parts(adapter_reader *r, size_t *values) {
    const int landmark = r->parts_found[ADAPTER_LANDMARK];
    const bool own = !landmark && r->m->plan.landmark.values;
    if ((landmark || own) && r->parts_found[ADAPTER_MASK])
        return base_fail(r->b, CAIRN_UNSUPPORTED, "%s: mask_embedding and %s; a gated adapter has no "
                         "landmarks", r->path, own ? "a model with landmarks" : plan_landmark);
    if (own) *values += (size_t)r->m->shape.hidden;
    if (landmark && !plan_all_paged(&r->m->plan))
        return adapter_fault(r, CAIRN_UNSUPPORTED, plan_landmark, "some layers of the model have no "
                             "keys and values in pages");
    for (int part = 0; part < ADAPTER_PARTS; part++) {
        if (part != ADAPTER_LANDMARK && !r->parts_found[part] != !r->parts_found[0])
            return base_fail(r->b, CAIRN_BAD_FILE, "%s: a gated adapter has %s and %s, or neither",
                             r->path, adapter_part_names[0], adapter_part_names[part]);
        if (r->parts_found[part])
            *values += (size_t)(adapter_part_rows(r, part) * adapter_part_columns(r, part));
    }
    return CAIRN_OK;
}

/* Whether another adapter of the model has this id. */
static bool adapter_mask_is_taken(const cairn_model *m, int32_t id) {
    for (const cairn_adapter *a = m->adapters; a; a = a->next)
        if (a->mask_id == id) return true;
    return false;
}

/* What a gated adapter's file says of its masks. */
static cairn_status adapter_take_mask(adapter_reader *r) {
    cairn_adapter *a = r->out;
    const int32_t vocab = r->m->shape.vocab;
    const bool own = r->mask > -INFINITY, limited = r->drafts > -INFINITY;
    a->mask_id = -1;
    if (!a->parts[ADAPTER_MASK]) return CAIRN_OK;
    if (limited && !(r->drafts >= 1 && r->drafts <= 1e6 && floor(r->drafts) >= r->drafts))
        return base_fail(r->b, CAIRN_BAD_FILE, "%s: draft_length: a count of tokens is expected",
                         r->path);
    a->drafts = limited ? (int)r->drafts : 0;
    for (a->mask_id = vocab; !own && adapter_mask_is_taken(r->m, a->mask_id);) a->mask_id++;
    if (!own) return CAIRN_OK;
    if (!(r->mask >= vocab && r->mask <= 1e9 && floor(r->mask) >= r->mask) ||
        adapter_mask_is_taken(r->m, (int32_t)r->mask))
        return base_fail(r->b, CAIRN_UNSUPPORTED, "%s: mask_token_id = %.0f; an id from %d on that "
                         "no other adapter has is expected", r->path, r->mask, (int)vocab);
    a->mask_id = (int32_t)r->mask;
    return CAIRN_OK;
}

/* The model's own landmark, where it has one. */
static void adapter_put_own(cairn_adapter *a, size_t *used) {
    const model_vector *own = &a->model->plan.landmark;
    if (!own->values) return;
    a->parts[ADAPTER_LANDMARK] =
        (float *)memcpy(a->values + *used, own->values, (size_t)own->count * sizeof *own->values);
    *used += (size_t)own->count;
}

static cairn_status adapter_fill_parts(adapter_reader *r, size_t *used) {
    cairn_status status = CAIRN_OK;
    for (int part = 0; part < ADAPTER_PARTS && !status; part++) {
        if (!r->parts_found[part]) continue;
        r->out->parts[part] = r->out->values + *used;
        status = adapter_fetch(r, r->parts_found[part] - 1, r->out->values + *used);
        *used += (size_t)(adapter_part_rows(r, part) * adapter_part_columns(r, part));
    }
    if (!r->parts_found[ADAPTER_LANDMARK]) adapter_put_own(r->out, used);
    return status;
}

/* ---- shapes of products ---------------------------------------------------------------------- */

static bool adapter_is_numbered(int module) {
    return strchr(adapter_modules[module].name, '*') != NULL;
}

/* Where the tensors of an expert are found: those of all are one's, or each has its own. */
static adapter_found *adapter_found_at(const adapter_reader *r, int place, int module, int expert) {
    const int role = place % PLAN_ROLES - PLAN_GATE;
    if (!adapter_is_numbered(module)) return &r->found[place];
    return &r->numbered[(place / PLAN_ROLES * 3 + role) * r->m->shape.experts + expert];
}

/* Puts tensor i where its name says. */
static cairn_status adapter_sort_tensor(adapter_reader *r, int i) {
    const adapter_tensor t = adapter_tensor_at(r, i);
    const block_type *type = block_find(t.type);
    int layer, module = -1, expert = 0, place;
    bool is_b = false;
    const char *at = adapter_layer(r, t.name, &layer);
    adapter_found *found, *own;
    cairn_status status;
    if (adapter_sort_part(r, i, &status)) return status;
    if (at) module = adapter_module_of(at, &expert, &is_b);
    if (module < 0 || (expert && expert >= r->m->shape.experts))
        return adapter_fault(r, CAIRN_UNSUPPORTED, t.name, "no product of a layer of this model "
                             "has that name");
    if (t.ndim < 2 || t.ndim > 2 + (module < ADAPTER_OF_EXPERTS) || !type || t.rows < 1 ||
        t.columns < 1 || t.columns % type->values)
        return adapter_fault(r, CAIRN_UNSUPPORTED, t.name, "a matrix of " BLOCK_SUPPORTED
                             " is expected");
    place = layer * PLAN_ROLES + (int)adapter_modules[module].role;
    found = &r->found[place];
    if ((found->a || found->b) && found->module != module)
        return adapter_fault(r, CAIRN_BAD_FILE, t.name, adapter_twice);
    if (module < ADAPTER_OF_EXPERTS && !r->m->shape.experts)
        return adapter_fault(r, CAIRN_UNSUPPORTED, t.name, adapter_no_product);
    own = adapter_found_at(r, place, module, expert);
    if (is_b ? own->b : own->a) return adapter_fault(r, CAIRN_BAD_FILE, t.name, adapter_twice);
    own->module = found->module = module;
    *(is_b ? &own->b : &own->a) = i + 1;
    *(is_b ? &found->b : &found->a) = i + 1;
    return CAIRN_OK;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

/* Products of a found module: in some models the GGUF's ffn_up holds the gates, too. */
static int adapter_roles(const adapter_reader *r, const adapter_found *f, const plan_layer *layer) {
    const struct adapter_module *module = &adapter_modules[f->module];
    if (module->form == ADAPTER_GGUF && module->role == PLAN_UP && f->module >= ADAPTER_OF_EXPERTS &&
        adapter_tensor_at(r, f->b - 1).rows == 2 * layer->weights[PLAN_UP].rows)
        return 2;
    return module->roles;
}

static int adapter_first_role(const adapter_found *f, int roles) {
    return roles == 2 ? PLAN_GATE : (int)adapter_modules[f->module].role;
}

/* Checks a pair of tensors for `parts` products of [rows, columns] each. */
static cairn_status adapter_check_pair(adapter_reader *r, const adapter_found *f, int64_t rows,
                                       int64_t columns, int64_t parts) {
    adapter_tensor a, b;
    char why[160];
    if (!f->a || !f->b)
        return adapter_fault(r, CAIRN_BAD_FILE, adapter_tensor_at(r, f->a + f->b - 1).name,
                             "it lacks the other one of its pair");
    a = adapter_tensor_at(r, f->a - 1), b = adapter_tensor_at(r, f->b - 1);
    if (a.parts != parts || b.parts != parts) {
        snprintf(why, sizeof why, "it is of %lld experts; %lld are expected",
                 (long long)(a.parts != parts ? a : b).parts, (long long)parts);
        return adapter_fault(r, CAIRN_UNSUPPORTED, (a.parts != parts ? a : b).name, why);
    }
    snprintf(why, sizeof why, "it is [%lld, %lld]; [rank, %lld] and [%lld, rank] are expected",
             (long long)b.rows, (long long)b.columns, (long long)columns, (long long)rows);
    if (b.rows != rows || b.columns != a.rows)
        return adapter_fault(r, CAIRN_UNSUPPORTED, b.name, why);
    if (a.columns != columns) {
        snprintf(why, sizeof why, "it is [%lld, %lld]; [rank, %lld] is expected",
                 (long long)a.rows, (long long)a.columns, (long long)columns);
        return adapter_fault(r, CAIRN_UNSUPPORTED, a.name, why);
    }
    if (a.rows > ADAPTER_MOST_RANK || (r->rank > 0 && a.rows % (int64_t)r->rank))
        return adapter_fault(r, CAIRN_UNSUPPORTED, a.name, "its rank is above 256, or not the "
                             "config's");
    return CAIRN_OK;
}

/* Those of all experts, in one pair or in one each, of one rank. */
static cairn_status adapter_check_experts(adapter_reader *r, int place, size_t *values) {
    const int module = r->found[place].module, experts = r->m->shape.experts;
    const model_weight *w = &r->m->plan.layers[place / PLAN_ROLES].weights[place % PLAN_ROLES];
    const bool numbered = adapter_is_numbered(module);
    const int64_t rows = w->rows / experts;
    int64_t rank = 0;
    for (int e = 0; e < (numbered ? experts : 1); e++) {
        const adapter_found *f = adapter_found_at(r, place, module, e);
        cairn_status status;
        if (!f->a && !f->b)
            return base_fail(r->b, CAIRN_BAD_FILE, "%s: layer %d, '%s': expert %d is missing; all "
                             "of them are expected, or none", r->path, place / PLAN_ROLES,
                             adapter_modules[module].name, e);
        status = adapter_check_pair(r, f, rows, w->columns, numbered ? 1 : experts);
        if (status) return status;
        if (e && adapter_tensor_at(r, f->a - 1).rows != rank)
            return adapter_fault(r, CAIRN_UNSUPPORTED, adapter_tensor_at(r, f->a - 1).name,
                                 "its rank is not that of the layer's other experts");
        rank = adapter_tensor_at(r, f->a - 1).rows;
    }
    *values += (size_t)(rank * experts * (rows + w->columns));
    return CAIRN_OK;
}

/* Checks the pair at `place` against its products; *values: what it will take. */
static cairn_status adapter_check(adapter_reader *r, int place, size_t *values) {
    const adapter_found *f = &r->found[place];
    const plan_layer *layer = &r->m->plan.layers[place / PLAN_ROLES];
    const int one = f->a ? f->a : f->b, module = f->module;
    const char *name = adapter_tensor_at(r, one - 1).name;
    int64_t rows = 0, rank;
    int roles, first;
    cairn_status status;
    if (module < ADAPTER_OF_EXPERTS) return adapter_check_experts(r, place, values);
    if (!f->a || !f->b) return adapter_check_pair(r, f, 0, 0, 1);
    roles = adapter_roles(r, f, layer), first = adapter_first_role(f, roles);
    for (int i = 0; i < roles; i++) {
        const adapter_found *other = &r->found[place - place % PLAN_ROLES + first + i];
        rows += layer->weights[first + i].rows;
        if (other != f && (other->a || other->b))
            return adapter_fault(r, CAIRN_BAD_FILE, name, adapter_twice);
    }
    if (!rows || (layer->weights[PLAN_ROUTER].rows && first >= PLAN_GATE))
        return adapter_fault(r, CAIRN_UNSUPPORTED, name, adapter_no_product);
    status = adapter_check_pair(r, f, rows, layer->weights[first].columns, 1);
    if (status) return status;
    rank = adapter_tensor_at(r, f->a - 1).rows;
    *values += (size_t)(rank * (layer->weights[first].columns + rows));
    return CAIRN_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* alpha / rank; of a pair for several products alpha grows as its rank does. */
static float adapter_scale(const adapter_reader *r, int rank) {
    const double alpha = r->rank > 0 ? r->alpha * rank / r->rank : r->alpha;
    if (!(alpha > 0 || alpha < 0)) return 1.0f;
    return (float)(alpha / (r->rooted ? sqrt((double)rank) : (double)rank));
}

/* Whether the pairs that turn together lie side by side in this form, and in the model. */
static bool adapter_is_beside(const cairn_model *m, int form) {
    if (form != ADAPTER_GGUF) return form == ADAPTER_BESIDE;
    return !strcmp(m->architecture, "llama") || !strcmp(m->architecture, "smollm3");
}
static bool adapter_model_is_beside(const cairn_model *m) {
    return m->plan.ropes[0].pairing == PLAN_PAIRS_BESIDE;
}

/* Which row of a file's q or k is row `row` of the model's. */
static int64_t adapter_row(const cairn_model *m, int form, int role, int64_t row) {
    const int64_t dim = m->shape.head_dim, half = dim / 2, d = row % dim;
    const bool beside = adapter_model_is_beside(m);
    if (role > PLAN_K || beside == adapter_is_beside(m, form)) return row;
    return row - d + (beside ? d / 2 + d % 2 * half : d % half * 2 + d / half);
}

/* Puts a checked pair at values [*used, ..). */
static cairn_status adapter_fill(adapter_reader *r, int place, size_t *used) {
    const adapter_found *f = &r->found[place];
    const int layer = place / PLAN_ROLES;
    const model_weight *weights = r->m->plan.layers[layer].weights;
    const int roles = adapter_roles(r, f, &r->m->plan.layers[layer]);
    const int first = adapter_first_role(f, roles), rank = (int)adapter_tensor_at(r, f->a - 1).rows;
    const size_t held = (size_t)(adapter_tensor_at(r, f->b - 1).rows * rank);
    const float scale = adapter_scale(r, rank);
    float *a = r->out->values + *used, *to = a + (int64_t)rank * weights[first].columns;
    float *b = (float *)base_new(r->b, held, sizeof *b), *from = b;
    cairn_status status = b ? adapter_fetch(r, f->a - 1, a)
                            : base_no_memory(r->b, r->path, held * sizeof *b);
    if (!status) status = adapter_fetch(r, f->b - 1, b);
    for (int role = first; role < first + roles && !status; role++) {
        const int64_t rows = weights[role].rows;
        adapter_pair pair = {a, to, rank};
        r->out->pairs[layer * PLAN_ROLES + role] = pair;
        for (int64_t row = 0; row < rows; row++) {
            const float *at = from + rank * adapter_row(r->m, adapter_modules[f->module].form, role,
                                                        row);
            for (int k = 0; k < rank; k++) *to++ = at[k] * scale;
        }
        from += rows * rank;
    }
    base_delete(r->b, b, held, sizeof *b);
    *used = (size_t)(to - r->out->values);
    if (rank > r->out->rank) r->out->rank = rank;
    return status;
}

/* The same of a product of experts: what each gains follows that of the one before. */
static cairn_status adapter_fill_experts(adapter_reader *r, int place, size_t *used) {
    const int module = r->found[place].module, experts = r->m->shape.experts;
    const model_weight *w = &r->m->plan.layers[place / PLAN_ROLES].weights[place % PLAN_ROLES];
    const int first = adapter_found_at(r, place, module, 0)->a - 1;
    const int64_t rank = adapter_tensor_at(r, first).rows;
    const int64_t in = rank * w->columns, out = rank * (w->rows / experts);
    const float scale = adapter_scale(r, (int)rank);
    float *a = r->out->values + *used, *b = a + experts * in;
    const adapter_pair pair = {a, b, (int)rank};
    cairn_status status = CAIRN_OK;
    for (int e = 0; e < (adapter_is_numbered(module) ? experts : 1) && !status; e++) {
        const adapter_found *f = adapter_found_at(r, place, module, e);
        status = adapter_fetch(r, f->a - 1, a + e * in);
        if (!status) status = adapter_fetch(r, f->b - 1, b + e * out);
    }
    for (int64_t i = 0; i < experts * out && !status; i++) b[i] *= scale;
    r->out->pairs[place] = pair;
    *used += (size_t)(experts * (in + out));
    if (pair.rank > r->out->rank) r->out->rank = pair.rank;
    return status;
}

static void adapter_note_fingerprint(cairn_adapter *a) {
    cache_hash h;
    cache_hash_begin(&h, "cairn adapter");
    cache_hash_field(&h, a->values, a->count * sizeof *a->values);
    for (int i = 0; i < a->model->shape.layers * PLAN_ROLES; i++) {
        const int64_t at = a->pairs[i].a ? a->pairs[i].b - a->values : -1;
        cache_hash_field(&h, &at, sizeof at);
    }
    if (a->parts[ADAPTER_LANDMARK]) cache_hash_field(&h, "landmark", 8);
    a->fingerprint = cache_hash_end(&h);
}

/* Room for the pairs and a->count values. */
static cairn_status adapter_room(base *b, cairn_adapter *a, const char *name) {
    a->pairs = (adapter_pair *)base_new(b, (size_t)a->model->shape.layers * PLAN_ROLES, sizeof *a->pairs);
    a->values = (float *)base_new(b, a->count, sizeof *a->values);
    return a->pairs && a->values ? CAIRN_OK : base_no_memory(b, name, a->count * sizeof *a->values);
}

/* The opened file, once its tensors have places. */
static cairn_status adapter_take(adapter_reader *r) {
    const int places = r->m->shape.layers * PLAN_ROLES, tensors = adapter_tensors(r);
    cairn_adapter *a = r->out;
    size_t used = 0;
    cairn_status status = CAIRN_OK;
    if (!tensors) return base_fail(r->b, CAIRN_BAD_FILE, "%s: no tensor is in it", r->path);
    for (int i = 0; i < tensors && !status; i++) status = adapter_sort_tensor(r, i);
    for (int i = 0; i < places && !status; i++)
        if (r->found[i].a || r->found[i].b) status = adapter_check(r, i, &a->count);
    if (!status) status = adapter_check_parts(r, &a->count);
    if (!status) status = adapter_room(r->b, a, r->path);
    for (int i = 0; i < places && !status; i++)
        if (r->found[i].a)
            status = r->found[i].module < ADAPTER_OF_EXPERTS ? adapter_fill_experts(r, i, &used)
                                                             : adapter_fill(r, i, &used);
    if (!status) status = adapter_fill_parts(r, &used);
    if (!status) status = adapter_take_mask(r);
    if (!status) adapter_note_fingerprint(a);
    return status;
}

static cairn_status adapter_own(cairn_model *m, cairn_adapter **out) {
    base *b = &m->runtime->base;
    cairn_adapter *a = (cairn_adapter *)base_new(b, 1, sizeof *a);
    size_t used = 0;
    cairn_status status;
    if (!(*out = a)) return base_no_memory(b, m->name, sizeof *a);
    a->model = m, a->mask_id = -1, a->count = (size_t)m->shape.hidden;
    snprintf(a->name, sizeof a->name, "%s", m->name);
    if ((status = adapter_room(b, a, m->name))) {
        *out = NULL;
        adapter_free(a);
        return status;
    }
    adapter_put_own(a, &used);
    adapter_note_fingerprint(a);
    return CAIRN_OK;
}

static cairn_status adapter_read(cairn_model *m, const char *path, cairn_adapter **out) {
    const size_t bytes = strlen(path), places = (size_t)m->shape.layers * PLAN_ROLES;
    const size_t numbered = (size_t)m->shape.layers * 3 * (size_t)m->shape.experts;
    base *b = &m->runtime->base;
    adapter_reader r;
    cairn_status status;
    memset(&r, 0, sizeof r);
    *out = NULL;
    r.b = b, r.m = m, r.path = path, r.drafts = r.mask = -INFINITY;
    r.out = (cairn_adapter *)base_new(b, 1, sizeof *r.out);
    r.found = (adapter_found *)base_new(b, places, sizeof *r.found);
    if (numbered) r.numbered = (adapter_found *)base_new(b, numbered, sizeof *r.numbered);
    if (!r.out || !r.found || (numbered && !r.numbered)) status = base_no_memory(b, path, sizeof *r.out);
    else status = adapter_open(&r);
    if (r.out) {
        r.out->model = m;
        snprintf(r.out->name, sizeof r.out->name, "%s", path + (bytes > 127 ? bytes - 127 : 0));
    }
    if (!status) status = adapter_take(&r);
    gguf_close(b, &r.keyed);
    shards_close(b, &r.parts);
    base_text_free(b, &r.file);
    base_delete(b, r.found, places, sizeof *r.found);
    base_delete(b, r.numbered, numbered, sizeof *r.numbered);
    if (!status) *out = r.out;
    else if (r.out) adapter_free(r.out);
    return status;
}

static void adapter_free(cairn_adapter *a) {
    base *b = &a->model->runtime->base;
    base_delete(b, a->pairs, (size_t)a->model->shape.layers * PLAN_ROLES, sizeof *a->pairs);
    base_delete(b, a->values, a->count, sizeof *a->values);
    base_delete(b, a, 1, sizeof *a);
}

static const adapter_pair *adapter_of(const cairn_adapter *a, int layer, int role) {
    const adapter_pair *pair = a ? &a->pairs[layer * PLAN_ROLES + role] : NULL;
    return pair && pair->a ? pair : NULL;
}

static uint64_t adapter_space(const cairn_adapter *a) {
    return a && !a->parts[ADAPTER_MASK] ? base_load(a->fingerprint.bytes, 8) | 1 : 0;
}

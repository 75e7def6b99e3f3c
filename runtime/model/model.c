/* model: a GGUF file of the llama family -> cairn_model: shapes checked, weights placed for the
 * backend, the KV cache allocated; and the seam to the forward passes.
 *
 * On the CPU the weights stay in the mapped file, on CUDA they are uploaded once. Owns the file,
 * the tokenizer, the device copies and the cache. Calls base, device, gguf, tokenizer, pages.
 * Invariant: a model that loaded has every weight in the shape that model_shape says. */

typedef struct model_weight {
    int type;        /* a block type of block.c */
    int64_t out, in; /* [out, in], in contiguous */
    void *data;      /* device address; on the CPU inside the mapped file */
} model_weight;

typedef struct model_layer {
    const float *attn_norm, *ffn_norm; /* [hidden], device addresses */
    model_weight q, k, v, o, gate, up, down;
} model_layer;

typedef struct model_shape {
    int layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    int context; /* the longest sequence the model was made for */
    float norm_eps, rope_base;
} model_shape;

/* One forward of R rows: a chunk of a prompt, a decode step, or a step with its drafts. Appends the
 * rows' keys and values, then attends. */
typedef struct forward_args {
    int rows;                 /* R */
    const int32_t *tokens;    /* [R] host */
    const int32_t *positions; /* [R] host: position in the sequence; rows of one sequence are
                                 consecutive and ascending by 1 */
    const int32_t *sequences; /* [R] host: row of page_table */
    const int32_t *page_table; /* [table_rows, table_stride] host: page ids, -1: no page */
    int table_rows, table_stride;
    uint64_t table_version;   /* another number whenever the table's contents differ */
    /* [table_rows] host, bounded <= stored: pages whose bounds are in memory already, and pages
     * that are complete with accepted tokens. The forward stores the bounds of pages [bounded,
     * stored) of each sequence before its rows attend. */
    const int32_t *bounded_pages, *stored_pages;
    bool dense;               /* every earlier token is attended; else what the config selects */
    int logit_first, logit_count; /* the rows whose logits or samples are wanted */
    float *logits;            /* [logit_count, vocab] host, or NULL */
    const sample_params *sample; /* or NULL; without a repetition penalty */
    int32_t *sampled;         /* [logit_count] host: the token at position + 1 of each row; used
                                 only with `sample` and a backend that samples */
    int64_t *pages_read;      /* [table_rows] host, or NULL: adds the distinct pages that the rows
                                 of a sequence attended, summed over layers and KV heads */
} forward_args;

/* What a backend gives to the engine. `open` may prepare scratch and kernels in model->state. */
typedef struct model_backend {
    cairn_status (*open)(cairn_model *model, int max_rows);
    void (*close)(cairn_model *model); /* also after a failed open */
    cairn_status (*forward)(cairn_model *model, kv_cache *kv, const forward_args *args);
    bool samples;   /* honours forward_args.sample */
    float row_cost; /* of one more row in a decode step, in plain steps */
    /* NULL, or: whether the model can run with another config. Begins to compile what is missing
     * and returns CAIRN_BUSY until it is there. */
    cairn_status (*prepare)(cairn_model *model, const cairn_config *config);
    bool copies; /* holds the weights in a form of its own once open; those of the file go */
    /* NULL, or: waits for what open left to be compiled in the background. [blocks] */
    cairn_status (*wait)(cairn_model *model);
} model_backend;

#define MODEL_BUFFER_BYTES ((uint64_t)64 << 20) /* of a backend's own on the device, about */

struct cairn_model {
    cairn_runtime *runtime;
    cairn_model *next; /* of runtime->models */
    gguf file;
    struct tokenizer tokenizer;
    char name[128], architecture[32];
    model_shape shape;
    model_weight embed, head; /* head = embed when tied */
    const float *output_norm; /* [hidden], device address */
    model_layer *layers;      /* [shape.layers] */
    void *weights;            /* device: everything above on CUDA, the norms on the CPU */
    size_t weights_bytes;
    uint64_t parameters;
    int max_seq_len; /* the config's, at most the model's */
    kv_cache kv;
    prefix_cache prefixes;  /* of prompts; not open without memory.prefix_cache */
    uint64_t table_version; /* the last one given to a page table */
    cairn_page_source bounds_source; /* of the last forward */
    int bounds_version;     /* counts its changes */
    cache_key fingerprint;  /* of the file, once has_fingerprint */
    bool has_fingerprint;
    const model_backend *backend;
    void *state; /* the backend's */
    cairn_session *sessions;
    struct engine_scratch *scratch;
};

/* ---- shape ----------------------------------------------------------------------------------- */

static cairn_status model_key(base *b, const gguf *file, const char *arch, const char *key,
                              uint32_t fallback, int *out) {
    char name[96];
    uint32_t value = fallback;
    bool found;
    cairn_status status;
    snprintf(name, sizeof name, "%s.%s", arch, key);
    status = gguf_u32(b, file, name, fallback ? &found : NULL, &value);
    if (status) return status;
    if (value < 1 || value > 1 << 24)
        return base_fail(b, CAIRN_BAD_FILE, "%s: the key '%s' is %u; 1 to 16777216 is expected",
                         file->path, name, value);
    *out = (int)value;
    return CAIRN_OK;
}

static cairn_status model_float(base *b, const gguf *file, const char *arch, const char *key,
                                float fallback, float *out) {
    char name[96];
    bool found;
    cairn_status status;
    *out = fallback;
    snprintf(name, sizeof name, "%s.%s", arch, key);
    status = gguf_f32(b, file, name, fallback > 0 ? &found : NULL, out);
    if (status) return status;
    if (!(*out > 0.0f && *out < 1e12f))
        return base_fail(b, CAIRN_BAD_FILE, "%s: the key '%s' is %g; a positive number is expected",
                         file->path, name, (double)*out);
    return CAIRN_OK;
}

static cairn_status model_architecture(base *b, const gguf *file, char *out, size_t out_bytes) {
    const char *name;
    size_t bytes;
    cairn_status status = gguf_string(b, file, "general.architecture", NULL, &name, &bytes);
    if (status) return status;
    snprintf(out, out_bytes, "%.*s", (int)(bytes < 31 ? bytes : 31), name);
    if (strcmp(out, "llama") != 0)
        return base_fail(b, CAIRN_UNSUPPORTED,
                         "%s: the architecture is '%s'; 'llama' is supported", file->path, out);
    return CAIRN_OK;
}

/* What a llama file may hold that changes its meaning and has no code here. */
static cairn_status model_refuse(base *b, const gguf *file) {
    static const char *const tensors[] = {"rope_freqs.weight", "blk.0.attn_q.bias",
                                          "blk.0.attn_output.bias", "blk.0.ffn_gate_inp.weight"};
    const char *scaling;
    size_t bytes;
    bool found;
    cairn_status status;
    for (size_t i = 0; i < BASE_COUNT(tensors); i++)
        if (gguf_tensor_find(file, tensors[i]))
            return base_fail(b, CAIRN_UNSUPPORTED,
                             "%s: the tensor '%s' is not supported (scaled rope, biases and "
                             "experts)", file->path, tensors[i]);
    status = gguf_string(b, file, "llama.rope.scaling.type", &found, &scaling, &bytes);
    if (status || !found || (bytes == 4 && !memcmp(scaling, "none", 4))) return status;
    return base_fail(b, CAIRN_UNSUPPORTED, "%s: rope scaling '%.*s' is not supported", file->path,
                     bytes < 32 ? (int)bytes : 32, scaling);
}

static cairn_status model_check_heads(base *b, const gguf *file, const model_shape *s, int rope) {
    if (s->heads % s->kv_heads)
        return base_fail(b, CAIRN_BAD_FILE,
                         "%s: %d query heads are not a multiple of %d KV heads", file->path,
                         s->heads, s->kv_heads);
    if (s->head_dim % 16 || s->head_dim > 256)
        return base_fail(b, CAIRN_UNSUPPORTED,
                         "%s: a head has %d values; multiples of 16 up to 256 are supported",
                         file->path, s->head_dim);
    if (rope != s->head_dim)
        return base_fail(b, CAIRN_UNSUPPORTED,
                         "%s: rope turns %d of the %d values of a head; all is supported",
                         file->path, rope, s->head_dim);
    return CAIRN_OK;
}

static cairn_status model_read_shape(base *b, const gguf *file, const char *arch,
                                     model_shape *s) {
    const gguf_tensor *embed = gguf_tensor_find(file, "token_embd.weight");
    int rope;
    cairn_status status;
    if ((status = model_key(b, file, arch, "block_count", 0, &s->layers)) ||
        (status = model_key(b, file, arch, "embedding_length", 0, &s->hidden)) ||
        (status = model_key(b, file, arch, "feed_forward_length", 0, &s->ffn)) ||
        (status = model_key(b, file, arch, "context_length", 0, &s->context)) ||
        (status = model_key(b, file, arch, "attention.head_count", 0, &s->heads)) ||
        (status = model_key(b, file, arch, "attention.head_count_kv", (uint32_t)s->heads,
                            &s->kv_heads)) ||
        (status = model_float(b, file, arch, "attention.layer_norm_rms_epsilon", 0,
                              &s->norm_eps)) ||
        (status = model_float(b, file, arch, "rope.freq_base", 10000.0f, &s->rope_base)))
        return status;
    if (s->hidden % s->heads)
        return base_fail(b, CAIRN_BAD_FILE, "%s: hidden size %d is not a multiple of %d heads",
                         file->path, s->hidden, s->heads);
    if ((status = model_key(b, file, arch, "attention.key_length",
                            (uint32_t)(s->hidden / s->heads), &s->head_dim)) ||
        (status = model_key(b, file, arch, "rope.dimension_count", (uint32_t)s->head_dim, &rope)))
        return status;
    if (!embed || embed->ndim != 2 || embed->shape[1] < 1 || embed->shape[1] > 1 << 24)
        return base_fail(b, CAIRN_BAD_FILE,
                         "%s: the tensor 'token_embd.weight' [vocabulary, hidden] is missing",
                         file->path);
    if (s->layers > CAIRN_MAX_LAYERS)
        return base_fail(b, CAIRN_UNSUPPORTED, "%s: %d layers; up to %d are supported", file->path,
                         s->layers, CAIRN_MAX_LAYERS);
    s->vocab = (int)embed->shape[1];
    return model_check_heads(b, file, s, rope);
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Where the weights go: a first pass over all tensors measures, a second places. */
typedef struct model_loader {
    base *b;
    device *dev;
    const gguf *file;
    uint8_t *to;  /* NULL while measuring */
    size_t bytes; /* so far */
    uint64_t values;
    float *row;   /* [hidden] scratch, for norms */
} model_loader;

static cairn_status model_find(model_loader *l, const char *name, int64_t out, int64_t in,
                               const gguf_tensor **found) {
    const gguf_tensor *t = gguf_tensor_find(l->file, name);
    int64_t rows;
    if (!t)
        return base_fail(l->b, CAIRN_BAD_FILE, "%s: the tensor '%s' is missing", l->file->path,
                         name);
    rows = t->shape[1] * t->shape[2] * t->shape[3];
    if (t->shape[0] != in || rows != out)
        return base_fail(l->b, CAIRN_BAD_FILE,
                         "%s: the tensor '%s' is [%lld, %lld]; [%lld, %lld] is expected",
                         l->file->path, name, (long long)rows, (long long)t->shape[0],
                         (long long)out, (long long)in);
    l->values += (uint64_t)(out * in);
    *found = t;
    return CAIRN_OK;
}

/* Room for `bytes` in the device copy, 256-byte aligned; NULL while measuring. */
static void *model_room(model_loader *l, size_t bytes) {
    void *at = l->to ? l->to + l->bytes : NULL;
    l->bytes += (bytes + 255) / 256 * 256;
    return at;
}

static cairn_status model_place(model_loader *l, const char *name, int64_t out, int64_t in,
                                model_weight *w) {
    const gguf_tensor *t;
    cairn_status status = model_find(l, name, out, in, &t);
    if (status) return status;
    w->type = t->type;
    w->out = out;
    w->in = in;
    memcpy(&w->data, &t->data, sizeof w->data);
    if (!l->dev->cuda) return CAIRN_OK;
    w->data = model_room(l, t->bytes);
    return w->data ? device_upload(l->dev, w->data, t->data, t->bytes) : CAIRN_OK;
}

static cairn_status model_place_norm(model_loader *l, const char *name, int count,
                                     const float **norm) {
    const gguf_tensor *t;
    float *at;
    cairn_status status = model_find(l, name, 1, count, &t);
    if (status) return status;
    *norm = at = (float *)model_room(l, (size_t)count * sizeof *at);
    if (!at) return CAIRN_OK;
    block_find(t->type)->dequantize((const uint8_t *)t->data, l->row, count);
    status = device_upload(l->dev, at, l->row, (size_t)count * sizeof *at);
    return status ? status : device_sync(l->dev); /* the row is written again for the next norm */
}

static cairn_status model_place_layer(model_loader *l, const model_shape *s, int index,
                                      model_layer *layer) {
    int64_t h = s->hidden, q = (int64_t)s->heads * s->head_dim;
    int64_t kv = (int64_t)s->kv_heads * s->head_dim;
    const struct { const char *name; int64_t out, in; model_weight *to; } parts[] = {
        {"attn_q", q, h, &layer->q},       {"attn_k", kv, h, &layer->k},
        {"attn_v", kv, h, &layer->v},      {"attn_output", h, q, &layer->o},
        {"ffn_gate", s->ffn, h, &layer->gate}, {"ffn_up", s->ffn, h, &layer->up},
        {"ffn_down", h, s->ffn, &layer->down}};
    char name[64];
    cairn_status status;
    for (size_t i = 0; i < BASE_COUNT(parts); i++) {
        snprintf(name, sizeof name, "blk.%d.%s.weight", index, parts[i].name);
        if ((status = model_place(l, name, parts[i].out, parts[i].in, parts[i].to))) return status;
    }
    snprintf(name, sizeof name, "blk.%d.attn_norm.weight", index);
    if ((status = model_place_norm(l, name, s->hidden, &layer->attn_norm))) return status;
    snprintf(name, sizeof name, "blk.%d.ffn_norm.weight", index);
    return model_place_norm(l, name, s->hidden, &layer->ffn_norm);
}

/* One pass over all tensors: measures when l->to is NULL, else places. */
static cairn_status model_place_all(model_loader *l, cairn_model *m) {
    const model_shape *s = &m->shape;
    bool tied = !gguf_tensor_find(l->file, "output.weight");
    cairn_status status;
    l->bytes = 0;
    l->values = 0;
    if ((status = model_place(l, "token_embd.weight", s->vocab, s->hidden, &m->embed)) ||
        (status = model_place_norm(l, "output_norm.weight", s->hidden, &m->output_norm)))
        return status;
    m->head = m->embed;
    if (!tied && (status = model_place(l, "output.weight", s->vocab, s->hidden, &m->head)))
        return status;
    for (int i = 0; i < s->layers; i++)
        if ((status = model_place_layer(l, s, i, &m->layers[i]))) return status;
    return CAIRN_OK;
}

static cairn_status model_place_weights(cairn_model *m, base *b, device *dev) {
    model_loader l;
    cairn_status status;
    memset(&l, 0, sizeof l);
    l.b = b;
    l.dev = dev;
    l.file = &m->file;
    if ((status = model_place_all(&l, m))) return status;
    m->parameters = l.values;
    m->weights_bytes = l.bytes;
    if ((status = device_alloc(dev, l.bytes, "the model's weights", &m->weights))) return status;
    l.to = (uint8_t *)m->weights;
    l.row = (float *)base_new(b, (size_t)m->shape.hidden, sizeof *l.row);
    if (!l.row) return base_no_memory(b, "a norm", (size_t)m->shape.hidden * sizeof *l.row);
    status = model_place_all(&l, m);
    base_delete(b, l.row, (size_t)m->shape.hidden, sizeof *l.row);
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

/* What max_batch full sequences need, or as many as `free_bytes` holds; at least one page. */
static int model_pool_pages(const cairn_config *config, const model_shape *s, int max_seq_len,
                            uint64_t free_bytes) {
    uint64_t need = (uint64_t)config->max_batch *
                    (uint64_t)model_pages_of(max_seq_len, config->page_size);
    uint64_t room = free_bytes / kv_bytes_per_page(s->layers, s->kv_heads, s->head_dim,
                                                   config->page_size);
    if (need > INT_MAX / 2) need = INT_MAX / 2;
    if (room < need) need = room ? room : 1;
    return (int)need;
}

/* Device bytes that the cache may take: what the budget or the device leaves, less what the
 * backend will want: weights in its own form, and buffers. */
static uint64_t model_free_bytes(const cairn_model *m, const device *dev) {
    uint64_t wanted = dev->cuda ? m->weights_bytes + MODEL_BUFFER_BYTES : 0, room;
    if (dev->budget_bytes)
        room = dev->budget_bytes > dev->live_bytes ? dev->budget_bytes - dev->live_bytes : 0;
    else
        room = device_free_bytes(dev) / 10 * 9;
    return room > wanted ? room - wanted : 0;
}

/* At most `most` pages. */
static cairn_status model_open_cache(cairn_model *m, device *dev, int most) {
    const cairn_config *config = &m->runtime->config;
    const model_shape *s = &m->shape;
    int wanted = model_pool_pages(config, s, m->max_seq_len, UINT64_MAX);
    int pages = model_pool_pages(config, s, m->max_seq_len, model_free_bytes(m, dev));
    cairn_status status;
    if (pages > most) pages = most;
    for (;;) {
        status = kv_open(dev, s->layers, s->kv_heads, s->head_dim, config->page_size, pages,
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

static cairn_status model_read(cairn_model *m, base *b, const char *path) {
    const char *name;
    size_t bytes;
    bool found;
    cairn_status status;
    if ((status = gguf_open(b, path, &m->file)) ||
        (status = model_architecture(b, &m->file, m->architecture, sizeof m->architecture)) ||
        (status = model_refuse(b, &m->file)) ||
        (status = model_read_shape(b, &m->file, m->architecture, &m->shape)) ||
        (status = gguf_string(b, &m->file, "general.name", &found, &name, &bytes)))
        return status;
    if (found)
        snprintf(m->name, sizeof m->name, "%.*s", (int)(bytes < 127 ? bytes : 127), name);
    m->layers = (model_layer *)base_new(b, (size_t)m->shape.layers, sizeof *m->layers);
    if (!m->layers)
        return base_no_memory(b, "the layers", (size_t)m->shape.layers * sizeof *m->layers);
    return CAIRN_OK;
}

static cairn_status model_open_tokenizer(cairn_model *m, base *b) {
    cairn_status status = tokenizer_open(b, &m->file, &m->tokenizer);
    if (!status && m->tokenizer.vocab != m->shape.vocab)
        return base_fail(b, CAIRN_BAD_FILE,
                         "%s: the tokenizer has %d tokens, the embedding %d rows; one row a token "
                         "is expected", m->file.path, (int)m->tokenizer.vocab, m->shape.vocab);
    return status;
}

/* Undoes model_load, whole or half done. */
static void model_unload(cairn_model *m) {
    device *dev = &m->runtime->device;
    base *b = &m->runtime->base;
    kv_close(&m->kv);
    device_free(dev, m->weights, m->weights_bytes);
    base_delete(b, m->layers, (size_t)m->shape.layers, sizeof *m->layers);
    tokenizer_close(b, &m->tokenizer);
    gguf_close(b, &m->file);
    base_delete(b, m, 1, sizeof *m);
}

/* Gives the device copy of the file's weights back; on the CPU, where it holds the norms, never. */
static cairn_status model_drop_weights(cairn_model *m, device *dev) {
    cairn_status status = device_sync(dev);
    if (status) return status;
    device_free(dev, m->weights, m->weights_bytes);
    m->weights = NULL;
    return CAIRN_OK;
}

/* Whether the layers that the config names are the model's; "all" stands for those there are. */
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

/* The model without its backend. The device's context is current. [blocks] */
static cairn_status model_load(cairn_runtime *rt, const char *path, cairn_model **out) {
    base *b = &rt->base;
    cairn_model *m = (cairn_model *)base_new(b, 1, sizeof *m);
    cairn_status status;
    *out = NULL;
    if (!m) return base_no_memory(b, "a model", sizeof *m);
    m->runtime = rt;
    if (!(status = model_read(m, b, path)) &&
        !(status = model_check_layers(b, &rt->config, &m->shape)) &&
        !(status = model_open_tokenizer(m, b)) &&
        !(status = model_place_weights(m, b, &rt->device))) {
        m->max_seq_len = model_max_seq_len(b, &rt->config, &m->shape);
        status = model_open_cache(m, &rt->device, INT_MAX);
    }
    if (status) model_unload(m);
    else *out = m;
    return status;
}

/* ---- rows of a forward, as every backend checks them ------------------------------------------- */

static cairn_status forward_check_row(base *b, const kv_cache *kv, int vocab, int max_pages,
                                      const forward_args *a, int r) {
    const int32_t *table;
    if (a->tokens[r] < 0 || a->tokens[r] >= vocab)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "row %d: token %d; the vocabulary has %d", r,
                         (int)a->tokens[r], vocab);
    if (a->sequences[r] < 0 || a->sequences[r] >= a->table_rows)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "row %d: sequence %d of %d", r,
                         (int)a->sequences[r], a->table_rows);
    if (a->positions[r] < 0 || a->positions[r] / kv->page_size >= max_pages ||
        a->positions[r] / kv->page_size >= a->table_stride)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "row %d: position %d is past the page table", r,
                         (int)a->positions[r]);
    if (r + 1 < a->rows && a->sequences[r + 1] == a->sequences[r]) return CAIRN_OK;
    table = a->page_table + (int64_t)a->sequences[r] * a->table_stride;
    for (int page = a->positions[r] / kv->page_size; page >= 0; page--)
        if (table[page] < 0 || table[page] >= kv->pool.pages)
            return base_fail(b, CAIRN_INVALID_ARGUMENT, "row %d: logical page %d is page %d of %d",
                             r, page, (int)table[page], kv->pool.pages);
    return CAIRN_OK;
}

/* plan: what families share (see plan.h) to read a file into a plan: keys, weights and vectors by name, each
 * checked, with messages that name what is wrong; shapes; rotations.
 *
 * The file is not trusted: a plan that was read has every weight in the shape that model_shape
 * says. Calls base, block, gguf. */

/* ---- keys ------------------------------------------------------------------------------------ */

static cairn_status plan_key(plan_reader *r, const char *key, int fallback, int *out) {
    char name[96];
    uint32_t value = (uint32_t)fallback;
    bool found;
    cairn_status status;
    snprintf(name, sizeof name, "%s.%s", r->architecture, key);
    status = gguf_u32(r->b, r->file, name, fallback ? &found : NULL, &value);
    if (status) return status;
    if (value < 1 || value > 1 << 24)
        return base_fail(r->b, CAIRN_BAD_FILE,
                         "%s: the key '%s' is %u; 1 to 16777216 is expected", r->file->path, name,
                         value);
    *out = (int)value;
    return CAIRN_OK;
}

static cairn_status plan_number(plan_reader *r, const char *key, float fallback, float *out) {
    char name[96];
    bool found;
    cairn_status status;
    *out = fallback;
    snprintf(name, sizeof name, "%s.%s", r->architecture, key);
    status = gguf_f32(r->b, r->file, name, fallback > 0 ? &found : NULL, out);
    if (status) return status;
    if (!(*out > 0.0f && *out < 1e12f))
        return base_fail(r->b, CAIRN_BAD_FILE,
                         "%s: the key '%s' is %g; a positive number is expected", r->file->path,
                         name, (double)*out);
    return CAIRN_OK;
}

static cairn_status plan_refuse_tensors(plan_reader *r, const char *const *names, size_t count,
                                        const char *what) {
    for (size_t i = 0; i < count; i++)
        if (gguf_tensor_find(r->file, names[i]))
            return base_fail(r->b, CAIRN_UNSUPPORTED, "%s: the tensor '%s' is not supported (%s)",
                             r->file->path, names[i], what);
    return CAIRN_OK;
}

/* ---- shape ----------------------------------------------------------------------------------- */

static cairn_status plan_read_sizes(plan_reader *r) {
    const gguf_tensor *embed = gguf_tensor_find(r->file, "token_embd.weight");
    model_shape *s = r->shape;
    cairn_status status;
    if ((status = plan_key(r, "block_count", 0, &s->layers)) ||
        (status = plan_key(r, "embedding_length", 0, &s->hidden)) ||
        (status = plan_key(r, "feed_forward_length", 0, &s->ffn)) ||
        (status = plan_key(r, "context_length", 0, &s->context)) ||
        (status = plan_key(r, "attention.head_count", 0, &s->heads)) ||
        (status = plan_number(r, "attention.layer_norm_rms_epsilon", 0, &s->norm_eps)))
        return status;
    if (!embed || embed->ndim != 2 || embed->shape[1] < 1 || embed->shape[1] > 1 << 24)
        return base_fail(r->b, CAIRN_BAD_FILE,
                         "%s: the tensor 'token_embd.weight' [vocabulary, hidden] is missing",
                         r->file->path);
    if (s->layers > CAIRN_MAX_LAYERS)
        return base_fail(r->b, CAIRN_UNSUPPORTED, "%s: %d layers; up to %d are supported",
                         r->file->path, s->layers, CAIRN_MAX_LAYERS);
    s->vocab = (int)embed->shape[1];
    return CAIRN_OK;
}

static cairn_status plan_read_heads(plan_reader *r) {
    const char *path = r->file->path;
    model_shape *s = r->shape;
    int even = s->hidden % s->heads == 0 ? s->hidden / s->heads : 0;
    cairn_status status = plan_key(r, "attention.key_length", even, &s->head_dim);
    if (status) return status;
    if (s->heads % s->kv_heads)
        return base_fail(r->b, CAIRN_BAD_FILE,
                         "%s: %d query heads are not a multiple of %d KV heads", path, s->heads,
                         s->kv_heads);
    if (s->head_dim % 16 || s->head_dim > 256)
        return base_fail(r->b, CAIRN_UNSUPPORTED,
                         "%s: a head has %d values; multiples of 16 up to 256 are supported", path,
                         s->head_dim);
    return CAIRN_OK;
}

/* ---- weights --------------------------------------------------------------------------------- */

/* The tensor in the shape [rows, columns]. */
static cairn_status plan_find(plan_reader *r, const char *name, int64_t rows, int64_t columns,
                              const gguf_tensor **found) {
    const gguf_tensor *t = gguf_tensor_find(r->file, name);
    int64_t have;
    if (!t)
        return base_fail(r->b, CAIRN_BAD_FILE, "%s: the tensor '%s' is missing", r->file->path,
                         name);
    have = t->shape[1] * t->shape[2] * t->shape[3];
    if (t->shape[0] != columns || have != rows)
        return base_fail(r->b, CAIRN_BAD_FILE,
                         "%s: the tensor '%s' is [%lld, %lld]; [%lld, %lld] is expected",
                         r->file->path, name, (long long)have, (long long)t->shape[0],
                         (long long)rows, (long long)columns);
    r->plan->parameters += (uint64_t)(rows * columns);
    r->plan->weight_bytes += t->bytes;
    *found = t;
    return CAIRN_OK;
}

static cairn_status plan_weight(plan_reader *r, const char *name, int64_t rows, int64_t columns,
                                model_weight *w) {
    const gguf_tensor *t;
    cairn_status status = plan_find(r, name, rows, columns, &t);
    if (status) return status;
    w->type = t->type;
    w->rows = rows;
    w->columns = columns;
    w->data = (const uint8_t *)t->data;
    w->at = t->at;
    return CAIRN_OK;
}

static cairn_status plan_vector(plan_reader *r, const char *name, int64_t rows, int64_t columns,
                                model_vector *v) {
    const gguf_tensor *t;
    const uint8_t *data;
    float *values;
    void *buffer = NULL;
    cairn_status status = plan_find(r, name, rows, columns, &t);
    if (status) return status;
    values = (float *)base_new(r->b, (size_t)(rows * columns), sizeof *values);
    if (values && !t->data) buffer = base_new(r->b, t->bytes, 1);
    if (!values || (!t->data && !buffer))
        status = base_no_memory(r->b, name, (size_t)(rows * columns) * sizeof *values);
    else if (!(data = gguf_fetch(r->file, t->at, t->bytes, buffer)))
        status = gguf_lost(r->b, r->file);
    else
        block_find(t->type)->dequantize(data, values, rows * columns);
    base_delete(r->b, buffer, t->bytes, 1);
    if (status) return base_delete(r->b, values, (size_t)(rows * columns), sizeof *values), status;
    v->values = values;
    v->count = rows * columns;
    return CAIRN_OK;
}

static cairn_status plan_layer_weights(plan_reader *r, int layer, const plan_layer_weight *list,
                                       size_t count) {
    plan_layer *to = &r->plan->layers[layer];
    char name[GGUF_NAME_BYTES];
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < count && !status; i++) {
        snprintf(name, sizeof name, "blk.%d.%s.weight", layer, list[i].name);
        status = plan_weight(r, name, list[i].rows, list[i].columns, &to->weights[list[i].role]);
    }
    return status;
}

static cairn_status plan_layer_parts(plan_reader *r, int layer, const plan_layer_part *list,
                                     size_t count) {
    plan_layer *to = &r->plan->layers[layer];
    char name[GGUF_NAME_BYTES];
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < count && !status; i++) {
        snprintf(name, sizeof name, "blk.%d.%s.weight", layer, list[i].name);
        status = plan_vector(r, name, list[i].rows, list[i].columns, &to->parts[list[i].part]);
    }
    return status;
}

static cairn_status plan_attention(plan_reader *r, int layer) {
    const model_shape *s = r->shape;
    const int64_t hidden = s->hidden, q = (int64_t)s->heads * s->head_dim;
    const int64_t kv = (int64_t)s->kv_heads * s->head_dim;
    const plan_layer_weight weights[] = {{"attn_q", PLAN_Q, q, hidden},
                                         {"attn_k", PLAN_K, kv, hidden},
                                         {"attn_v", PLAN_V, kv, hidden},
                                         {"attn_output", PLAN_O, hidden, q}};
    const plan_layer_part norm = {"attn_norm", PLAN_MIXER_NORM, 1, hidden};
    cairn_status status = plan_layer_weights(r, layer, weights, BASE_COUNT(weights));
    if (status) return status;
    r->plan->layers[layer].mixer = PLAN_ATTENTION;
    r->plan->layers[layer].state = r->shape->kv_layers++;
    return plan_layer_parts(r, layer, &norm, 1);
}

static cairn_status plan_gated_ffn(plan_reader *r, int layer, plan_ffn kind) {
    const int64_t hidden = r->shape->hidden, ffn = r->shape->ffn;
    const plan_layer_weight weights[] = {{"ffn_gate", PLAN_GATE, ffn, hidden},
                                         {"ffn_up", PLAN_UP, ffn, hidden},
                                         {"ffn_down", PLAN_DOWN, hidden, ffn}};
    const plan_layer_part norm = {"ffn_norm", PLAN_FFN_NORM, 1, hidden};
    cairn_status status = plan_layer_weights(r, layer, weights, BASE_COUNT(weights));
    if (status) return status;
    r->plan->layers[layer].ffn = kind;
    return plan_layer_parts(r, layer, &norm, 1);
}

static cairn_status plan_ends(plan_reader *r, const char *norm) {
    const model_shape *s = r->shape;
    model_plan *p = r->plan;
    cairn_status status;
    if ((status = plan_weight(r, "token_embd.weight", s->vocab, s->hidden, &p->embed)) ||
        (status = plan_vector(r, norm, 1, s->hidden, &p->output_norm)))
        return status;
    p->head = p->embed;
    return gguf_tensor_find(r->file, "output.weight")
               ? plan_weight(r, "output.weight", s->vocab, s->hidden, &p->head) : CAIRN_OK;
}

static cairn_status plan_new_layers(plan_reader *r) {
    size_t count = (size_t)r->shape->layers;
    r->plan->layers = (plan_layer *)base_new(r->b, count, sizeof *r->plan->layers);
    if (!r->plan->layers)
        return base_no_memory(r->b, "the layers", count * sizeof *r->plan->layers);
    r->plan->layer_count = r->shape->layers;
    return CAIRN_OK;
}

static void plan_free_vector(base *b, model_vector *v) {
    float *values;
    memcpy(&values, &v->values, sizeof values); /* const to others alone */
    base_delete(b, values, (size_t)v->count, sizeof *values);
    memset(v, 0, sizeof *v);
}

/* For when the file goes: types and shapes stay. */
static void plan_drop_views(model_plan *p) {
    p->embed.data = p->head.data = NULL;
    for (int i = 0; i < p->layer_count; i++)
        for (int role = 0; role < PLAN_ROLES; role++) p->layers[i].weights[role].data = NULL;
}

/* Also of a plan that is empty or half read. */
static void plan_close(base *b, model_plan *p) {
    for (int i = 0; i < p->layer_count; i++)
        for (int part = 0; part < PLAN_PARTS; part++)
            plan_free_vector(b, &p->layers[i].parts[part]);
    plan_free_vector(b, &p->output_norm);
    base_delete(b, p->layers, (size_t)p->layer_count, sizeof *p->layers);
    memset(p, 0, sizeof *p);
}

/* ---- rotations ------------------------------------------------------------------------------- */

static cairn_status plan_read_rope(plan_reader *r, plan_pairing pairing, plan_rope *rope) {
    const int dim = r->shape->head_dim;
    float base_value;
    int dims;
    cairn_status status;
    if ((status = plan_number(r, "rope.freq_base", 10000.0f, &base_value)) ||
        (status = plan_key(r, "rope.dimension_count", dim, &dims)))
        return status;
    if (dims != dim)
        return base_fail(r->b, CAIRN_UNSUPPORTED,
                         "%s: rope turns %d of the %d values of a head; all is supported",
                         r->file->path, dims, dim);
    rope->pairing = pairing;
    rope->dims = dims;
    rope->magnitude = 1.0f;
    for (int j = 0; j < dims / 2; j++)
        rope->frequency[j] = pow((double)base_value, -2.0 * j / dims);
    return CAIRN_OK;
}

/* plan: what families share (see plan_reader.h) to read a file into a plan: keys, weights and vectors by name, each
 * checked, with messages that name what is wrong; shapes; rotations.
 *
 * The file is not trusted: a plan that was read has every weight in the shape that model_shape
 * says. Calls base, block, gguf. */

/* ---- keys ------------------------------------------------------------------------------------ */

static cairn_status plan_go_on(plan_reader *r, cairn_status failed) {
    return survey_go_on(r->b, r->survey, failed);
}

static int plan_told(const plan_reader *r) { return r->survey ? r->survey->told : 0; }

static const char *plan_name(plan_reader *r, const char *key, plan_key_name *out) {
    const gguf_key *found;
    snprintf(out->text, sizeof out->text, "%s.%s", r->architecture, key);
    if ((found = gguf_key_find(r->file, out->text)) != NULL) r->read_keys[found - r->file->keys] = true;
    return out->text;
}

static cairn_status plan_key(plan_reader *r, const char *key, int fallback, int *out) {
    plan_key_name full;
    const char *name = plan_name(r, key, &full);
    uint32_t value = (uint32_t)fallback;
    bool found;
    cairn_status status;
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
    plan_key_name full;
    const char *name = plan_name(r, key, &full);
    bool found;
    cairn_status status;
    *out = fallback;
    status = gguf_f32(r->b, r->file, name, fallback > 0 ? &found : NULL, out);
    if (status) return status;
    if (!(*out > 0.0f && *out < 1e12f))
        return base_fail(r->b, CAIRN_BAD_FILE,
                         "%s: the key '%s' is %g; a positive number is expected", r->file->path,
                         name, (double)*out);
    return CAIRN_OK;
}

/* Of what the key may say only one thing has code, and it says another. */
static cairn_status plan_refuse(plan_reader *r, const char *key, const char *says, const char *only) {
    plan_key_name full;
    return plan_go_on(r, base_fail(r->b, CAIRN_UNSUPPORTED, "%s: the key '%s' is %s; %s is supported",
                                   r->file->path, plan_name(r, key, &full), says, only));
}

static cairn_status plan_only(plan_reader *r, const char *key, double value, double only) {
    char says[32], wanted[32];
    if (value == only) return CAIRN_OK;
    snprintf(says, sizeof says, "%.8g", value); /* whole numbers whole, and what a float can tell */
    snprintf(wanted, sizeof wanted, "%.8g", only);
    return plan_refuse(r, key, says, wanted);
}

static cairn_status plan_refuse_number(plan_reader *r, const char *key, float neutral) {
    plan_key_name full;
    float value = neutral;
    bool found;
    cairn_status status = gguf_f32(r->b, r->file, plan_name(r, key, &full), &found, &value);
    return status ? status : plan_only(r, key, (double)value, (double)neutral);
}

static cairn_status plan_read_window(plan_reader *r) {
    plan_key_name full;
    uint32_t value = 0;
    bool found;
    cairn_status status = gguf_u32(r->b, r->file, plan_name(r, "attention.sliding_window", &full), &found,
                                   &value);
    r->window = value < (uint32_t)r->shape->context ? (int)value : 0;
    return status;
}

static cairn_status plan_fixed(plan_reader *r, const char *key, int fallback, int only) {
    int value;
    cairn_status status = plan_key(r, key, fallback, &value);
    return status ? status : plan_only(r, key, value, only);
}

static cairn_status plan_true(plan_reader *r, const char *key) {
    plan_key_name full;
    bool found, value = true;
    cairn_status status = gguf_bool(r->b, r->file, plan_name(r, key, &full), &found, &value);
    return status || value ? status : plan_refuse(r, key, "false", "true");
}

/* ---- shape ----------------------------------------------------------------------------------- */

static cairn_status plan_read_sizes(plan_reader *r) {
    const gguf_tensor *embed = gguf_tensor_find(r->file, "token_embd.weight");
    model_shape *s = r->shape;
    cairn_status status;
    if ((status = plan_key(r, "block_count", 0, &s->layers)) ||
        (status = plan_key(r, "embedding_length", 0, &s->hidden)) ||
        (status = plan_key(r, s->experts ? "expert_feed_forward_length" : "feed_forward_length", 0,
                           &s->ffn)) ||
        (status = plan_key(r, "context_length", 0, &s->context)) ||
        (status = plan_key(r, "attention.head_count", 0, &s->heads)) ||
        (status = plan_number(r, "attention.layer_norm_rms_epsilon", 0, &s->norm_eps)) ||
        (status = plan_true(r, "attention.causal")))
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
        status = plan_go_on(r, base_fail(r->b, CAIRN_BAD_FILE, "%s: %d query heads are not a multiple of "
                                         "%d KV heads", path, s->heads, s->kv_heads));
    if (!status && (s->head_dim % 16 || s->head_dim > 256))
        status = plan_go_on(r, base_fail(r->b, CAIRN_UNSUPPORTED, "%s: a head has %d values; multiples of "
                                         "16 up to 256 are supported", path, s->head_dim));
    return status ? status : plan_fixed(r, "attention.value_length", s->head_dim, s->head_dim);
}

static cairn_status plan_read_shape(plan_reader *r) {
    model_shape *s = r->shape;
    cairn_status status;
    if ((status = plan_read_sizes(r)) ||
        (status = plan_key(r, "attention.head_count_kv", s->heads, &s->kv_heads)))
        return status;
    return plan_read_heads(r);
}

/* ---- weights --------------------------------------------------------------------------------- */

/* The tensor in the shape [rows, columns]; NULL where a survey has told what it is instead. */
static cairn_status plan_find(plan_reader *r, const char *name, int64_t rows, int64_t columns,
                              const gguf_tensor **found) {
    const gguf_tensor *t = gguf_tensor_find(r->file, name);
    int64_t have;
    *found = NULL;
    if (!t)
        return plan_go_on(r, base_fail(r->b, CAIRN_BAD_FILE, "%s: the tensor '%s' is missing",
                                       r->file->path, name));
    r->used[t - r->file->tensors] = true;
    have = t->shape[1] * t->shape[2] * t->shape[3];
    if (t->shape[0] != columns || have != rows)
        return plan_go_on(r, base_fail(r->b, CAIRN_BAD_FILE, "%s: the tensor '%s' is [%lld, %lld]; "
                                       "[%lld, %lld] is expected", r->file->path, name, (long long)have,
                                       (long long)t->shape[0], (long long)rows, (long long)columns));
    if (!block_find(t->type)) return CAIRN_OK; /* in a survey, which tells of it for all tensors */
    r->plan->parameters += (uint64_t)(rows * columns);
    r->plan->weight_bytes += t->bytes;
    *found = t;
    return CAIRN_OK;
}

static cairn_status plan_weight(plan_reader *r, const char *name, int64_t rows, int64_t columns,
                                model_weight *w) {
    const gguf_tensor *t;
    cairn_status status = plan_find(r, name, rows, columns, &t);
    if (status || !t) return status;
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
    if (status || !t) return status;
    values = (float *)base_new(r->b, (size_t)(rows * columns), sizeof *values);
    if (values && !t->data) buffer = base_new(r->b, t->bytes, 1);
    if (!values || (!t->data && !buffer))
        status = base_no_memory(r->b, name, (size_t)(rows * columns) * sizeof *values);
    else if (!(data = gguf_fetch(r->file, t->at, t->bytes, buffer)))
        status = gguf_lost(r->b, r->file);
    else
        block_find(t->type)->dequantize(data, values, rows * columns);
    for (int64_t i = 0; !status && r->norm_more != 0 && i < rows * columns; i++)
        values[i] += strstr(name, "norm") ? r->norm_more : 0;
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
        snprintf(name, sizeof name, "blk.%d.%s", layer, list[i].name);
        status = plan_vector(r, name, list[i].rows, list[i].columns, &to->parts[list[i].part]);
    }
    return status;
}

static cairn_status plan_layer_fused(plan_reader *r, int layer, const char *name,
                                     const plan_layer_weight *list, size_t count) {
    plan_layer_weight all = {name, list[0].role, 0, list[0].columns};
    model_weight *to = r->plan->layers[layer].weights, fused;
    cairn_status status;
    size_t skip = 0;
    for (size_t i = 0; i < count; i++) all.rows += list[i].rows;
    if ((status = plan_layer_weights(r, layer, &all, 1))) return status;
    fused = to[all.role];
    if (!fused.rows) return CAIRN_OK; /* in a survey */
    for (size_t i = 0; i < count; i++) {
        model_weight *part = &to[list[i].role];
        *part = fused;
        part->rows = list[i].rows;
        part->at += skip;
        if (part->data) part->data += skip;
        skip += (size_t)part->rows * block_row_bytes(block_find(fused.type), fused.columns);
    }
    return CAIRN_OK;
}

static cairn_status plan_attention_out(plan_reader *r, int layer) {
    const model_shape *s = r->shape;
    const plan_layer_weight out = {"attn_output", PLAN_O, s->hidden,
                                   (int64_t)s->heads * s->head_dim};
    const plan_layer_part norm = {"attn_norm.weight", PLAN_MIXER_NORM, 1, s->hidden};
    cairn_status status = plan_layer_weights(r, layer, &out, 1);
    if (status) return status;
    r->plan->layers[layer].mixer = PLAN_ATTENTION;
    r->plan->layers[layer].state = r->shape->kv_layers++;
    return plan_layer_parts(r, layer, &norm, 1);
}

static cairn_status plan_attention(plan_reader *r, int layer) {
    const model_shape *s = r->shape;
    const int64_t hidden = s->hidden, q = (int64_t)s->heads * s->head_dim;
    const int64_t kv = (int64_t)s->kv_heads * s->head_dim;
    const plan_layer_weight weights[] = {{"attn_q", PLAN_Q, q, hidden},
                                         {"attn_k", PLAN_K, kv, hidden},
                                         {"attn_v", PLAN_V, kv, hidden}};
    cairn_status status = plan_layer_weights(r, layer, weights, BASE_COUNT(weights));
    return status ? status : plan_attention_out(r, layer);
}

static cairn_status plan_biases(plan_reader *r, int layer) {
    const model_shape *s = r->shape;
    const int64_t kv = (int64_t)s->kv_heads * s->head_dim;
    const plan_layer_part biases[] = {
        {"attn_q.bias", PLAN_Q_BIAS, 1, (int64_t)s->heads * s->head_dim},
        {"attn_k.bias", PLAN_K_BIAS, 1, kv}, {"attn_v.bias", PLAN_V_BIAS, 1, kv}};
    return plan_layer_parts(r, layer, biases, BASE_COUNT(biases));
}

static cairn_status plan_head_norms(plan_reader *r, int layer) {
    const int64_t dim = r->shape->head_dim;
    const plan_layer_part norms[] = {{"attn_q_norm.weight", PLAN_Q_NORM, 1, dim},
                                     {"attn_k_norm.weight", PLAN_K_NORM, 1, dim}};
    return plan_layer_parts(r, layer, norms, BASE_COUNT(norms));
}

static cairn_status plan_ffn_out(plan_reader *r, int layer, plan_ffn kind) {
    const int64_t hidden = r->shape->hidden;
    const plan_layer_weight down = {"ffn_down", PLAN_DOWN, hidden, r->shape->ffn};
    const plan_layer_part norm = {"ffn_norm.weight", PLAN_FFN_NORM, 1, hidden};
    cairn_status status = plan_layer_weights(r, layer, &down, 1);
    r->plan->layers[layer].ffn = kind;
    return status ? status : plan_layer_parts(r, layer, &norm, 1);
}

static cairn_status plan_refuse_experts(plan_reader *r, int layer) {
    char name[GGUF_NAME_BYTES];
    snprintf(name, sizeof name, "blk.%d.ffn_gate_inp.weight", layer);
    if (!gguf_tensor_find(r->file, name)) return CAIRN_OK;
    return base_fail(r->b, CAIRN_UNSUPPORTED, "%s: the tensor '%s': a ffn of experts is not supported in "
                     "the family '%s'", r->file->path, name, r->architecture);
}

static cairn_status plan_gated_ffn(plan_reader *r, int layer, plan_ffn kind) {
    const int64_t hidden = r->shape->hidden, ffn = r->shape->ffn;
    const plan_layer_weight weights[] = {{"ffn_gate", PLAN_GATE, ffn, hidden},
                                         {"ffn_up", PLAN_UP, ffn, hidden}};
    char gate[GGUF_NAME_BYTES];
    cairn_status status = CAIRN_OK;
    snprintf(gate, sizeof gate, "blk.%d.ffn_gate.weight", layer);
    if (!gguf_tensor_find(r->file, gate)) status = plan_refuse_experts(r, layer);
    if (!status) status = plan_layer_weights(r, layer, weights, BASE_COUNT(weights));
    return status ? status : plan_ffn_out(r, layer, kind);
}

static cairn_status plan_ends(plan_reader *r, const char *norm) {
    const model_shape *s = r->shape;
    model_plan *p = r->plan;
    cairn_status status;
    if ((status = plan_weight(r, "token_embd.weight", s->vocab, s->hidden, &p->embed)) ||
        (status = plan_vector(r, norm, 1, s->hidden, &p->output_norm)))
        return status;
    p->head = p->embed;
    if (gguf_tensor_find(r->file, "output.weight"))
        status = plan_weight(r, "output.weight", s->vocab, s->hidden, &p->head);
    if (!status && gguf_tensor_find(r->file, plan_landmark))
        status = plan_vector(r, plan_landmark, 1, s->hidden, &p->landmark);
    return status;
}

static bool plan_all_paged(const model_plan *p) {
    int i = 0;
    while (i < p->layer_count && p->layers[i].mixer == PLAN_ATTENTION) i++;
    return i == p->layer_count;
}

static cairn_status plan_check_tensors(plan_reader *r) {
    size_t first = r->file->tensor_count, more = 0;
    char others[48] = "";
    for (size_t i = r->file->tensor_count; i-- > 0;)
        if (!r->used[i]) first = i, more++;
    if (!more) return CAIRN_OK;
    if (more > 1) snprintf(others, sizeof others, ", nor %s %llu more", more > 2 ? "are" : "is",
                           (unsigned long long)(more - 1));
    return base_fail(r->b, CAIRN_UNSUPPORTED, "%s: the tensor '%s' is not supported in the family '%s'%s",
                     r->file->path, r->file->tensors[first].name, r->architecture, others);
}

/* Whether a key that nothing has read leaves what the family computes as it is: notes for other programs;
 * numbers of experts where it has none, of which the tensors tell. */
static bool plan_is_note(const plan_reader *r, const char *name, int bytes) {
    static const char notes[] = " vocab_size tensor_data_layout pooling_type rope.scaling.finetuned "
        "attention.layer_norm_epsilon leading_dense_block_count nextn_predict_layers ";
    char wanted[GGUF_NAME_BYTES];
    snprintf(wanted, sizeof wanted, " %.*s ", bytes, name);
    return strstr(notes, wanted) || !strncmp(wanted, r->shape->experts ? " feed_forward_length " : " expert_",
                                             r->shape->experts ? 21 : 8);
}

static cairn_status plan_check_keys(plan_reader *r) {
    const size_t bytes = strlen(r->architecture) + 1;
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < r->file->key_count && !status; i++) {
        const gguf_key *key = &r->file->keys[i];
        const int shown = key->name_bytes < GGUF_NAME_BYTES - 3 ? (int)key->name_bytes : GGUF_NAME_BYTES - 3;
        if (!r->read_keys[i] && key->name_bytes > bytes && key->name[bytes - 1] == '.' &&
            !memcmp(key->name, r->architecture, bytes - 1) &&
            !plan_is_note(r, key->name + bytes, shown - (int)bytes))
            status = plan_go_on(r, base_fail(r->b, CAIRN_UNSUPPORTED, "%s: the key '%.*s' is not supported",
                                             r->file->path, shown, key->name));
    }
    return status;
}

static cairn_status plan_new_layers(plan_reader *r) {
    size_t count = (size_t)r->shape->layers;
    r->plan->layers = (plan_layer *)base_new(r->b, count, sizeof *r->plan->layers);
    if (!r->plan->layers)
        return base_no_memory(r->b, "the layers", count * sizeof *r->plan->layers);
    r->plan->layer_count = r->shape->layers;
    return CAIRN_OK;
}

static cairn_status plan_read_layers(plan_reader *r, const char *norm,
                                     cairn_status (*read)(plan_reader *r, int layer)) {
    cairn_status status = plan_new_layers(r);
    int told;
    if (!status) status = plan_check_keys(r);
    told = plan_told(r);
    if (!status) status = plan_ends(r, norm);
    /* a survey ends with the first layer that lacks something: others will lack it, too */
    for (int i = 0; i < r->shape->layers && !status && plan_told(r) == told; i++) status = read(r, i);
    if (status || plan_told(r) != told) return status;
    if (r->plan->landmark.values && !plan_all_paged(r->plan))
        status = plan_go_on(r, base_fail(r->b, CAIRN_UNSUPPORTED, "%s: the tensor '%s': some layers of the "
                                         "model have no keys and values in pages", r->file->path,
                                         plan_landmark));
    return status ? status : plan_check_tensors(r);
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
    plan_free_vector(b, &p->landmark);
    base_delete(b, p->layers, (size_t)p->layer_count, sizeof *p->layers);
    memset(p, 0, sizeof *p);
}

/* ---- rotations ------------------------------------------------------------------------------- */

/* What stretches a rope beyond the context that the model was first trained for. */
typedef struct plan_scaling {
    bool yarn;
    float factor, magnitude, fast, slow; /* fast, slow: turns in that context between which yarn
                                            goes over from frequencies as they are to stretched */
    int original;                        /* that context */
} plan_scaling;

static void plan_plain_rope(plan_rope *rope, plan_pairing pairing, int dims, double turns) {
    rope->pairing = pairing;
    rope->dims = dims;
    rope->magnitude = 1.0f;
    for (int j = 0; j < dims / 2; j++) rope->frequency[j] = pow(turns, -2.0 * j / dims);
}

/* Which kinds of scaling there are. *factor: 0 where the kind needs none. */
static cairn_status plan_scaling_kind(plan_reader *r, plan_scaling *s, bool *factors) {
    plan_key_name full;
    const char *kind = "linear"; /* where a factor stands alone */
    size_t bytes = 6;
    bool found;
    cairn_status status = gguf_string(r->b, r->file, plan_name(r, "rope.scaling.type", &full), &found,
                                      &kind, &bytes);
    if (status) return status;
    s->yarn = bytes == 4 && !memcmp(kind, "yarn", 4);
    *factors = bytes == 8 && !memcmp(kind, "longrope", 8);
    if (s->yarn) return plan_number(r, "rope.scaling.factor", 0, &s->factor);
    if (bytes == 6 && !memcmp(kind, "linear", 6))
        return plan_number(r, "rope.scaling.factor", 1.0f, &s->factor);
    s->factor = 1.0f;
    if (*factors || (bytes == 4 && !memcmp(kind, "none", 4))) return CAIRN_OK;
    return plan_go_on(r, base_fail(r->b, CAIRN_UNSUPPORTED, "%s: rope scaling '%.*s' is not supported; "
                                   "none, linear, yarn and longrope are", r->file->path,
                                   bytes < 32 ? (int)bytes : 32, kind));
}

static cairn_status plan_read_scaling(plan_reader *r, plan_scaling *s, bool *factors) {
    float more;
    cairn_status status;
    if ((status = plan_scaling_kind(r, s, factors)) ||
        (status = plan_key(r, "rope.scaling.original_context_length", r->shape->context,
                           &s->original)) ||
        (status = plan_number(r, "rope.scaling.yarn_beta_fast", 32.0f, &s->fast)) ||
        (status = plan_number(r, "rope.scaling.yarn_beta_slow", 1.0f, &s->slow)) ||
        (status = plan_number(r, "rope.scaling.attn_factor", 1.0f, &s->magnitude)) ||
        (status = plan_number(r, "rope.scaling.yarn_attn_factor", 1.0f, &more)) ||
        (status = plan_refuse_number(r, "rope.scaling.yarn_ext_factor", 1.0f)) ||
        (status = plan_refuse_number(r, "rope.scaling.yarn_log_multiplier", r->log_more)))
        return status;
    r->stretch = s->yarn ? s->factor : 1.0f;
    s->magnitude *= more;
    return CAIRN_OK;
}

/* The pair that turns `times` times within the original context. */
static double plan_pair_of(const plan_scaling *s, int dims, double turns, double times) {
    return dims * log(s->original / (times * 2 * 3.14159265358979323846)) / (2 * log(turns));
}

static void plan_scale(const plan_scaling *s, double turns, plan_rope *rope) {
    double low = fmax(floor(plan_pair_of(s, rope->dims, turns, (double)s->fast)), 0);
    double high = fmin(ceil(plan_pair_of(s, rope->dims, turns, (double)s->slow)), rope->dims - 1);
    for (int j = 0; j < rope->dims / 2; j++) {
        double share = s->yarn ? (j - low) / fmax(high - low, 0.001) : 1.0;
        share = fmin(fmax(share, 0), 1);
        rope->frequency[j] *= 1 - share + share / (double)s->factor;
    }
    rope->magnitude = s->magnitude;
    if (s->yarn) rope->magnitude *= 1.0f + 0.1f * logf(s->factor);
}

/* Divides the frequencies by the numbers of a tensor. */
static cairn_status plan_divide(plan_reader *r, const char *name, plan_rope *rope) {
    model_vector by = {NULL, 0};
    cairn_status status = plan_vector(r, name, 1, rope->dims / 2, &by);
    for (int j = 0; j < (int)by.count && !status; j++) {
        if (!(by.values[j] > 0.0f && by.values[j] < 1e12f))
            status = base_fail(r->b, CAIRN_BAD_FILE, "%s: the tensor '%s' has %g at %d; positive "
                               "numbers are expected", r->file->path, name, (double)by.values[j],
                               j);
        else rope->frequency[j] /= (double)by.values[j];
    }
    plan_free_vector(r->b, &by);
    return status;
}

/* Factors for contexts up to the original and for longer ones: max_seq_len says which. */
static cairn_status plan_long_rope(plan_reader *r, const plan_scaling *s, plan_rope *rope) {
    const int context = r->shape->context;
    const double times = (double)context / s->original;
    plan_rope other = *rope;
    cairn_status status;
    r->plan->long_rope =
        (r->max_seq_len > 0 && r->max_seq_len < context ? r->max_seq_len : context) > s->original;
    status = plan_divide(r, "rope_factors_short.weight", r->plan->long_rope ? &other : rope);
    if (!status)
        status = plan_divide(r, "rope_factors_long.weight", r->plan->long_rope ? rope : &other);
    if (s->magnitude == 1.0f && times > 1 && s->original > 1)
        rope->magnitude = (float)sqrt(1 + log(times) / log(s->original));
    return status;
}

static cairn_status plan_read_rope(plan_reader *r, plan_pairing pairing, plan_rope *rope) {
    const int dim = r->shape->head_dim;
    plan_scaling scaling;
    float turns;
    int dims;
    bool factors;
    cairn_status status;
    if ((status = plan_number(r, "rope.freq_base", 10000.0f, &turns)) ||
        (status = plan_key(r, "rope.dimension_count", dim, &dims)) ||
        (status = plan_read_scaling(r, &scaling, &factors)))
        return status;
    if (dims > 2 * PLAN_MAX_PAIRS) return CAIRN_OK; /* in a survey: so long heads are refused before */
    if (dims > dim || dims % 2 || turns <= 1.0f)
        return base_fail(r->b, CAIRN_BAD_FILE,
                         "%s: rope by powers of %g turns %d values of a head of %d; an even number "
                         "of them, and more than 1, are expected", r->file->path, (double)turns,
                         dims, dim);
    plan_plain_rope(rope, pairing, dims, (double)turns);
    plan_scale(&scaling, (double)turns, rope);
    if (factors || gguf_tensor_find(r->file, "rope_factors_long.weight"))
        return plan_long_rope(r, &scaling, rope);
    return gguf_tensor_find(r->file, "rope_freqs.weight")
               ? plan_divide(r, "rope_freqs.weight", rope) : CAIRN_OK;
}

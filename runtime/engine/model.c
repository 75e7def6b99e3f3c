/* engine_model: the calls on models: load, free, describe, tokenize, chat, eval. */

/* ---- load and free --------------------------------------------------------------------------- */

/* Rows that a batch may ask to have sampled. */
static int engine_most_asks(int rows, int sequences) {
    return rows < sequences * ENGINE_ROWS ? rows : sequences * ENGINE_ROWS;
}

static void engine_scratch_free(base *b, cairn_model *m) {
    engine_scratch *x = m->scratch;
    if (!x) return;
    profile_free(m);
    base_delete(b, x->row, (size_t)x->rows, sizeof *x->row);
    base_delete(b, x->sequence, (size_t)x->sequences, sizeof *x->sequence);
    base_delete(b, x->asks, (size_t)x->asks_count, sizeof *x->asks);
    base_delete(b, x->sampled, (size_t)x->asks_count, sizeof *x->sampled);
    base_delete(b, x->page_ids, (size_t)m->tables.max_pages, sizeof *x->page_ids);
    base_delete(b, x->parts, (size_t)x->sequences, sizeof *x->parts);
    base_delete(b, x->filled, (size_t)m->max_seq_len, sizeof *x->filled);
    base_delete(b, x->hidden, (size_t)x->rows * (size_t)m->shape.hidden, sizeof *x->hidden);
    base_delete(b, x->chain.memory, engine_chain_bytes(m->shape.vocab), 1);
    base_delete(b, x, 1, sizeof *x);
    m->scratch = NULL;
}

static cairn_status engine_scratch_new(base *b, cairn_model *m, int rows) {
    int sequences = m->runtime->config.max_batch;
    engine_scratch *x = (engine_scratch *)base_new(b, 1, sizeof *x);
    m->scratch = x;
    if (x) {
        x->rows = rows, x->sequences = sequences;
        x->asks_count = engine_most_asks(rows, sequences);
        x->row = (forward_row *)base_new(b, (size_t)rows, sizeof *x->row);
        x->sequence = (forward_sequence *)base_new(b, (size_t)sequences, sizeof *x->sequence);
        x->asks = (sample_ask *)base_new(b, (size_t)x->asks_count, sizeof *x->asks);
        x->sampled = (int32_t *)base_new(b, (size_t)x->asks_count, sizeof *x->sampled);
        x->page_ids = (int32_t *)base_new(b, (size_t)m->tables.max_pages, sizeof *x->page_ids);
        x->parts = (engine_part *)base_new(b, (size_t)sequences, sizeof *x->parts);
        if (x->row && x->sequence && x->asks && x->sampled && x->page_ids && x->parts)
            return CAIRN_OK;
    }
    engine_scratch_free(b, m);
    return base_no_memory(b, "the engine's scratch", (size_t)rows * sizeof *m->scratch->row);
}

/* The page tables of the sessions to come, and the state that they keep by them. */
static cairn_status engine_open_states(cairn_model *m) {
    base *b = &m->runtime->base;
    int size = m->runtime->config.page_size;
    const int most = model_pages_of(m->max_seq_len, size);
    kv_state kv = {b, &m->kv, &m->tables, &m->prefixes, m->windows};
    cairn_status status;
    ring_states rings = {&m->runtime->device, m->shape.conv_layers, m->shape.hidden,
                         m->shape.conv_taps, &m->tables, NULL, 0};
    m->kv_of_rows = kv;
    m->rings = rings;
    state_add(&m->states, &kv_state_kind, &m->kv_of_rows);
    if (rings.layers) state_add(&m->states, &ring_state_kind, &m->rings);
    status = tables_open(b, &m->kv.pool, ENGINE_FIRST_ROWS, size, most, &m->tables);
    for (int g = 0; g < m->groups.count && !status; g++)
        status = window_open(b, &m->kv, &m->prefixes, g, ENGINE_FIRST_ROWS, size, most,
                             &m->windows[g]);
    return status;
}

static cairn_status engine_open_prefixes(cairn_model *m) {
    cairn_status status;
    if (!m->runtime->config.memory.prefix_cache) return CAIRN_OK;
    status = prefix_open(&m->runtime->base, &m->kv.pool, m->runtime->config.page_size, &m->prefixes);
    if (!status) prefix_keep_windows(&m->prefixes, &m->kv);
    return status;
}

static void engine_close_states(cairn_model *m) {
    if (m->rings.dev) ring_close_all(&m->rings);
    tables_close(&m->runtime->base, &m->tables);
    for (int g = 0; g < m->groups.count; g++) window_close(&m->windows[g]);
    m->states.count = 0;
}

static void engine_unload(cairn_model *m) {
    while (m->sessions) engine_drop(m->sessions);
    if (m->drafts) engine_unload(m->drafts);
    while (m->adapters) engine_drop_adapter(m->adapters);
    if (m->grammars) grammar_clear(&m->runtime->base, m->grammars);
    base_delete(&m->runtime->base, m->grammars, 1, sizeof *m->grammars);
    prefix_close(&m->prefixes);
    engine_scratch_free(&m->runtime->base, m);
    engine_close_states(m);
    if (m->backend) m->backend->close(m);
    model_unload(m);
}

/* What the backend will take, to m->memory. */
static cairn_status engine_measure(cairn_model *m, const model_backend *backend, int rows) {
    memset(&m->memory, 0, sizeof m->memory);
    return backend->estimate ? backend->estimate(m, rows, &m->memory) : CAIRN_OK;
}

/* What the backend can begin as soon as the model's plan is known: while its kernels are compiled, or loaded, the
 * tokenizer is read. */
static cairn_status engine_begin_backend(cairn_model *m, const model_backend *backend, int rows) {
    cairn_status status = engine_measure(m, backend, rows);
    m->backend = backend;
    return status || !backend->begin_open ? status : backend->begin_open(m, rows);
}

/* The cache and the rest of the backend. When the backend finds less device memory than was thought, the cache makes
 * room. */
static cairn_status engine_open_backend(cairn_model *m, int rows) {
    device *dev = &m->runtime->device;
    const model_backend *backend = m->backend;
    cairn_status status = backend->copies ? engine_fingerprint(m) : CAIRN_OK; /* the file is let go below */
    if (status || (status = model_open_cache(m, dev, INT_MAX))) return status;
    while ((status = backend->open(m, rows)) == CAIRN_OUT_OF_DEVICE_MEMORY &&
           m->kv.pool.pages > 1) {
        int pages = m->kv.pool.pages / 2;
        backend->close(m);
        pages_kv_close(&m->kv);
        if ((status = model_open_cache(m, dev, pages))) return status;
    }
    if (!status && backend->copies) model_drop_file(m);
    return status;
}

/* The first id that is not the same token of both models; -1: there is none. */
static int engine_other_id(const cairn_model *m, const cairn_model *other) {
    const int vocab = m->shape.vocab < other->shape.vocab ? m->shape.vocab : other->shape.vocab;
    for (int i = 0; i < vocab; i++) {
        size_t bytes, others;
        const char *a = tokenizer_piece(&m->tokenizer, i, &bytes);
        const char *b = tokenizer_piece(&other->tokenizer, i, &others);
        if (bytes != others || memcmp(a, b, bytes) ||
            tokenizer_is_special(&m->tokenizer, i) != tokenizer_is_special(&other->tokenizer, i))
            return i;
    }
    return m->shape.vocab == other->shape.vocab ? -1 : vocab;
}

/* Whether a model can draft for m. */
static cairn_status engine_check_drafts(const cairn_model *m, const cairn_model *drafts) {
    base *b = &m->runtime->base;
    const char *path = m->runtime->config.drafter_model;
    const int other = engine_other_id(m, drafts);
    if (other >= 0)
        return base_fail(b, CAIRN_UNSUPPORTED, "drafter_model: %s has other tokens than the model it "
                         "is to draft for, the first that differs is id %d", path, other);
    if (drafts->max_seq_len >= m->max_seq_len) return CAIRN_OK;
    return base_fail(b, CAIRN_UNSUPPORTED, "drafter_model: %s has a context of %d tokens, the model "
                     "it is to draft for one of %d; set max_seq_len", path, drafts->max_seq_len,
                     m->max_seq_len);
}

/* A model outside the runtime's list. drafts_for: the one that it is to draft for; NULL: none, and the
 * config's that drafts for it is opened, too. */
static cairn_status engine_load_one(cairn_runtime *rt, model_place place, const model_backend *backend,
                                    const cairn_model *drafts_for, cairn_model **out) {
    cairn_model *m;
    cairn_config *config = &rt->config;
    const model_place drafts = {config->drafter_model, model_how_of(rt), NULL};
    const int32_t most = config->max_seq_len;
    int rows = model_most_rows(config);
    cairn_status status = model_load(rt, place, &m);
    if (status) return status;
    if (!(status = engine_begin_backend(m, backend, rows))) status = model_open_tokenizer(m);
    if (!status && drafts_for) status = engine_check_drafts(drafts_for, m);
    else if (!status && *config->drafter_model) {
        config->max_seq_len = m->max_seq_len;
        status = engine_load_one(rt, drafts, backend, m, &m->drafts);
        config->max_seq_len = most;
    }
    if (!status) status = engine_open_backend(m, rows);
    if (!status) status = engine_open_states(m);
    if (!status) status = engine_scratch_new(&rt->base, m, rows);
    if (!status) status = engine_open_prefixes(m);
    if (!status && m->plan.landmark.values) status = engine_take_adapter(m, NULL, &m->own);
    if (!status && *config->adapter && !drafts_for)
        status = engine_take_adapter(m, config->adapter, &m->adapter);
    if (!status) status = base_progress(&rt->base, "model", 1, 1);
    if (status) engine_unload(m);
    else *out = m;
    return status;
}

/* Inside an entered runtime. */
static cairn_status engine_load(cairn_runtime *rt, model_place place, const model_backend *backend,
                                cairn_model **out) {
    cairn_status status = reload_check_drafter(&rt->base, &rt->config, rt->config.drafter_model);
    if (!status) status = engine_load_one(rt, place, backend, NULL, out);
    if (status) return status;
    (*out)->next = rt->models;
    rt->models = *out;
    return CAIRN_OK;
}

/* The forward pass of the runtime's backend. */
static const model_backend *engine_backend(const cairn_runtime *rt) {
    return rt->device.cuda ? &forward_cuda_backend : &forward_cpu_backend;
}

/* Enters a call that tells how far it is, and leaves it: a runtime that was closed meanwhile goes now. */
static cairn_status engine_enter_long(cairn_runtime *rt) {
    cairn_status status = handles_enter(rt);
    if (!status) os_atomic_add(&rt->loading, 1);
    return status;
}

static cairn_status engine_leave_long(cairn_runtime *rt, cairn_status status) {
    handles_leave(rt, status);
    os_atomic_add(&rt->loading, -1);
    if (!rt->closing || engine_is_any_busy(rt)) return status;
    cairn_close(rt);
    return status ? status : CAIRN_CANCELLED;
}

/* Both calls' way in; rt is one. */
static cairn_status engine_load_place(cairn_runtime *rt, model_place place, cairn_model **model) {
    cairn_status status;
    if ((status = engine_enter_long(rt))) return status;
    status = engine_leave_long(rt, engine_load(rt, place, engine_backend(rt), model));
    if (status) *model = NULL;
    return status;
}

cairn_status cairn_load_model(cairn_runtime *rt, const char *path, cairn_model **model) {
    model_place place = {path, HF_MAP, NULL};
    cairn_status status = handles_need(rt, "load_model", model, "model");
    if (model) *model = NULL;
    if (status || (status = handles_need(rt, "load_model", path, "path"))) return status;
    place.how = model_how_of(rt);
    return engine_load_place(rt, place, model);
}

cairn_status cairn_load_model_from(cairn_runtime *rt, const cairn_model_source *source,
                                   cairn_model **model) {
    model_place place = {NULL, HF_MAP, source};
    cairn_status status = handles_need(rt, "load_model_from", model, "model");
    if (model) *model = NULL;
    if (status || (status = handles_need(rt, "load_model_from", source, "source"))) return status;
    if (source->struct_size != sizeof *source)
        return base_fail(&rt->base, CAIRN_VERSION_MISMATCH,
                         "load_model_from: struct_size is not sizeof the struct");
    if (!source->data == !source->read)
        return base_fail(&rt->base, CAIRN_INVALID_ARGUMENT,
                         "load_model_from: one of data and read is expected");
    return engine_load_place(rt, place, model);
}

cairn_status cairn_model_wait(cairn_model *model) {
    cairn_status status;
    if (!model) return CAIRN_INVALID_ARGUMENT;
    if ((status = handles_enter(model->runtime))) return status;
    if (model->backend->wait) status = model->backend->wait(model);
    return handles_leave(model->runtime, status);
}

void cairn_model_free(cairn_model *model) {
    cairn_runtime *rt;
    bool entered;
    if (!model) return;
    rt = model->runtime;
    if (base_check_callback(&rt->base)) return;
    handles_hold(rt);
    model->closing = engine_is_busy(model);
    for (cairn_model **link = &rt->models; *link && !model->closing; link = &(*link)->next)
        if (*link == model) {
            *link = model->next;
            entered = !device_enter(&rt->device);
            engine_unload(model);
            if (entered) device_leave(&rt->device);
            break;
        }
    handles_drop(rt);
}

/* ---- description ----------------------------------------------------------------------------- */

/* Of the backend's form, or of the file's where it reads that. */
static uint64_t engine_weights_bytes(const cairn_model *m) {
    return m->memory.weights ? m->memory.weights : m->plan.weight_bytes;
}

cairn_status cairn_model_info(cairn_model *model, cairn_model_properties *info) {
    cairn_model_properties p;
    const model_shape *s;
    cairn_status status;
    if (!model) return CAIRN_INVALID_ARGUMENT;
    if ((status = handles_need(model->runtime, "model_info", info, "info"))) return status;
    if (info->struct_size < sizeof info->struct_size || info->struct_size > sizeof p)
        return base_fail(&model->runtime->base, CAIRN_VERSION_MISMATCH,
                         "model_info: struct_size is %u; set it to sizeof the struct",
                         info->struct_size);
    if ((status = base_check_callback(&model->runtime->base))) return status;
    memset(&p, 0, sizeof p);
    handles_hold_beside(model->runtime);
    p.free_pages = model->kv.pool.free_count;
    for (int g = 0; g < model->groups.count; g++) {
        p.window_pages += model->kv.window_pools[g].pages;
        p.free_window_pages += model->kv.window_pools[g].free_count;
    }
    handles_drop(model->runtime);
    s = &model->shape;
    memcpy(p.architecture, model->architecture, sizeof p.architecture);
    memcpy(p.name, model->name, sizeof p.name);
    p.layers = s->layers, p.hidden = s->hidden, p.heads = s->heads, p.kv_heads = s->kv_heads;
    p.head_dim = s->head_dim, p.ffn = s->ffn, p.vocab = s->vocab, p.context = s->context;
    p.max_seq_len = model->max_seq_len;
    p.page_size = model->kv.page_size;
    p.pages = model->kv.pool.pages;
    p.end_id = model->tokenizer.eos;
    p.parameters = model->plan.parameters;
    p.file_bytes = model->file_bytes;
    p.weights_bytes = engine_weights_bytes(model);
    p.kv_bytes = model_cache_bytes(model, model->kv.pool.pages);
    p.scratch_bytes = model->memory.scratch;
    p.struct_size = info->struct_size;
    memcpy(info, &p, info->struct_size);
    return CAIRN_OK;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Copies text [bytes] into a caller's buffer with a NUL; its length always to *out_bytes. */
static cairn_status engine_copy_text(base *b, const char *call, const base_text *text, char *out,
                                     size_t capacity, size_t *out_bytes) {
    if (out_bytes) *out_bytes = text->size;
    if (out && capacity) *out = '\0';
    if (!out && !capacity) return CAIRN_OK;
    if (!out || text->size >= capacity)
        return base_fail(b, CAIRN_INVALID_ARGUMENT,
                         "%s: the text takes %llu bytes and a NUL, the buffer has %llu", call,
                         (unsigned long long)text->size, (unsigned long long)capacity);
    if (text->size) memcpy(out, text->data, text->size);
    out[text->size] = '\0';
    return CAIRN_OK;
}

/* Copies ids into a caller's array; how many there are always to *count. */
static cairn_status engine_copy_ids(base *b, const char *call, const tokenizer_ids *from,
                                    int32_t *ids, int capacity, int *count) {
    *count = (int)from->size;
    if (!ids) return CAIRN_OK;
    if (*count > capacity)
        return base_fail(b, CAIRN_INVALID_ARGUMENT,
                         "%s: the text has %d tokens, the buffer room for %d", call, *count,
                         capacity);
    if (from->size) memcpy(ids, from->data, from->size * sizeof *ids);
    return CAIRN_OK;
}

cairn_status cairn_tokenize_with(cairn_model *model, const char *text, size_t bytes, bool special,
                                 int32_t *ids, int capacity, int *count) {
    base *b;
    tokenizer_ids all;
    cairn_status status;
    if (count) *count = 0;
    if (!model) return CAIRN_INVALID_ARGUMENT;
    b = &model->runtime->base;
    if ((!text && bytes) || capacity < 0 || (capacity && !ids) || !count)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "tokenize: text, ids or count is NULL");
    memset(&all, 0, sizeof all);
    status = tokenizer_encode(b, &model->tokenizer, text, bytes, special, &all);
    if (!status) status = engine_copy_ids(b, "tokenize", &all, ids, capacity, count);
    tokenizer_ids_free(b, &all);
    return status;
}

cairn_status cairn_tokenize(cairn_model *model, const char *text, size_t bytes, int32_t *ids,
                            int capacity, int *count) {
    return cairn_tokenize_with(model, text, bytes, true, ids, capacity, count);
}

cairn_status cairn_detokenize(cairn_model *model, const int32_t *ids, int count, char *text,
                              size_t capacity, size_t *bytes) {
    base *b;
    base_text all;
    cairn_status status;
    if (!model) return CAIRN_INVALID_ARGUMENT;
    b = &model->runtime->base;
    if (count < 0 || (count && !ids))
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "detokenize: count = %d, ids %s", count,
                         ids ? "given" : "NULL");
    memset(&all, 0, sizeof all);
    status = tokenizer_decode(b, &model->tokenizer, ids, (size_t)count, &all);
    if (!status) status = engine_copy_text(b, "detokenize", &all, text, capacity, bytes);
    base_text_free(b, &all);
    return status;
}

/* The messages as the tokenizer takes them, to be freed by engine_messages_free. */
static cairn_status engine_messages(base *b, const char *call, const cairn_message *messages,
                                    int count, tokenizer_message **out) {
    *out = NULL;
    if (count < 0 || (count && !messages))
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "%s: count = %d, messages %s", call, count,
                         messages ? "given" : "NULL");
    for (int i = 0; i < count; i++)
        if (!messages[i].role || !messages[i].content)
            return base_fail(b, CAIRN_INVALID_ARGUMENT,
                             "%s: message %d of %d lacks its role or content", call, i + 1, count);
    *out = (tokenizer_message *)base_new(b, (size_t)count, sizeof **out);
    if (!*out) return base_no_memory(b, call, (size_t)count * sizeof **out);
    for (int i = 0; i < count; i++) {
        (*out)[i].role = messages[i].role;
        (*out)[i].content = messages[i].content;
        (*out)[i].content_bytes = strlen(messages[i].content);
    }
    return CAIRN_OK;
}

static void engine_messages_free(base *b, tokenizer_message *messages, int count) {
    base_delete(b, messages, (size_t)(count > 0 ? count : 0), sizeof *messages);
}

cairn_status cairn_chat_format(cairn_model *model, const cairn_message *messages, int count,
                               bool first, bool answer, char *text, size_t capacity,
                               size_t *bytes) {
    base *b;
    base_text all;
    tokenizer_message *each;
    cairn_status status;
    if (!model) return CAIRN_INVALID_ARGUMENT;
    b = &model->runtime->base;
    memset(&all, 0, sizeof all);
    status = engine_messages(b, "chat_format", messages, count, &each);
    if (!status) status = tokenizer_chat(b, &model->tokenizer, each, count, first, answer, &all);
    if (!status) status = engine_copy_text(b, "chat_format", &all, text, capacity, bytes);
    base_text_free(b, &all);
    engine_messages_free(b, each, count);
    return status;
}

/* Adds the ids of messages put behind ids [held_count]. */
static cairn_status engine_chat_ids(cairn_model *m, const char *call, const int32_t *held,
                                    int held_count, const cairn_message *messages, int count,
                                    bool first, bool answer, os_atomic *cancel,
                                    tokenizer_ids *out) {
    const tokenizer *t = &m->tokenizer;
    base *b = &m->runtime->base;
    tokenizer_message *each;
    cairn_status status = engine_messages(b, call, messages, count, &each);
    if (!status && first && (count || answer) && t->adds_bos && !tokenizer_ids_add(b, out, t->bos))
        status = base_no_memory(b, call, sizeof(int32_t));
    if (!status)
        status = tokenizer_chat_ids(b, t, held, held_count, each, count, first, answer, cancel,
                                    out);
    engine_messages_free(b, each, count);
    return status;
}

cairn_status cairn_chat_ids(cairn_model *model, const cairn_message *messages, int message_count,
                            bool first, bool answer, int32_t *ids, int capacity, int *count) {
    base *b;
    tokenizer_ids all;
    cairn_status status;
    if (count) *count = 0;
    if (!model) return CAIRN_INVALID_ARGUMENT;
    b = &model->runtime->base;
    if (capacity < 0 || (capacity && !ids) || !count)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "chat_ids: ids or count is NULL");
    memset(&all, 0, sizeof all);
    status = engine_chat_ids(model, "chat_ids", NULL, 0, messages, message_count, first, answer,
                             NULL, &all);
    if (!status) status = engine_copy_ids(b, "chat_ids", &all, ids, capacity, count);
    tokenizer_ids_free(b, &all);
    return status;
}

cairn_status cairn_append_chat(cairn_session *session, const cairn_message *messages, int count,
                               bool answer) {
    tokenizer_ids ids;
    cairn_status status = engine_enter(session, "append_chat");
    if (status) return status;
    memset(&ids, 0, sizeof ids);
    os_atomic_store(&session->cancel, 0);
    status = engine_chat_ids(session->model, "append_chat", session->tokens, session->count,
                             messages, count, session->count == 0, answer, &session->cancel, &ids);
    if (!status) status = engine_append(session, &ids);
    tokenizer_ids_free(engine_base(session), &ids);
    return engine_leave(session, status);
}

/* ---- eval ------------------------------------------------------------------------------------ */

/* -log softmax(logits)[id]. The exponentials are in float, 1e-7 apart from the truth; libm's in
 * double took longer than the model's layers. */
static double engine_nll(const float *logits, int vocab, int32_t id) {
    const simd_kernels *simd = simd_for(0);
    double sum = 0.0;
    float top = -HUGE_VALF, part[256];
    for (int i = 0; i < vocab; i++)
        if (logits[i] > top) top = logits[i];
    for (int first = 0; first < vocab; first += 256) {
        int n = vocab - first < 256 ? vocab - first : 256;
        for (int i = 0; i < n; i++) part[i] = logits[first + i] - top;
        simd->exp_row(part, part, n);
        for (int i = 0; i < n; i++) sum += (double)part[i];
    }
    return (double)top + log(sum) - (double)logits[id];
}

/* The n best of logits [vocab] by insertion; rows are few and n is small. */
static void engine_top(const float *logits, int vocab, int n, int32_t *ids, float *values) {
    int held = 0;
    for (int i = 0; i < vocab; i++) {
        int at = held < n ? held++ : n - 1;
        if (at == n - 1 && held == n && i >= n && !(logits[i] > values[at])) continue;
        for (; at > 0 && logits[i] > values[at - 1]; at--) {
            values[at] = values[at - 1];
            ids[at] = ids[at - 1];
        }
        values[at] = logits[i];
        ids[at] = i;
    }
    for (; held < n; held++) ids[held] = -1, values[held] = -INFINITY;
}

/* Logits [rows, vocab] of positions [first, first + rows): the losses of the tokens after them are added to
 * *sum. Behind the last position any token's tells whether there are any. */
static cairn_status engine_score(base *b, const cairn_eval_args *args, const float *logits, int vocab,
                                 int first, int rows, double *sum) {
    for (int i = 0; i < rows; i++, logits += vocab) {
        const int next = first + i + 1;
        const size_t out = (size_t)(first + i) * (size_t)args->top;
        const double nll = engine_nll(logits, vocab, args->ids[next < args->count ? next : 0]);
        if (nll != nll) return engine_no_number(b, "eval", next);
        if (args->top)
            engine_top(logits, vocab, args->top, args->top_ids + out, args->top_logits + out);
        if (next >= args->count) break;
        if (args->nll) args->nll[next] = (float)nll;
        *sum += nll;
    }
    return CAIRN_OK;
}

/* The progress is asked. */
static cairn_status engine_eval_goes_on(const cairn_session *s, const cairn_eval_args *args) {
    return base_progress(engine_base(s), "eval", (uint64_t)s->cached, (uint64_t)args->count);
}

/* As engine_forward; where the layers are computed here the progress is asked after each. */
static cairn_status engine_eval_part(engine_part *part, const cairn_eval_args *args) {
    cairn_model *m = part->s->model;
    engine_scratch *x = m->scratch;
    cairn_status status;
    if (!m->backend->advance) return engine_forward(part);
    x->parts[0] = *part;
    x->part_count = 1;
    engine_take_off(m);
    status = m->backend->begin(m, &m->kv, &x->batch);
    while (!status && m->backend->advance(m, 1)) status = engine_eval_goes_on(part->s, args);
    if (!status) engine_touch_down(m);
    engine_give_up(m);
    return status;
}

/* Rows stay inside one page, so that every page they may select is complete before them. Where one has no
 * loss they run singly, since NaN of a row reaches those before it: so the first of them is named. */
static cairn_status engine_eval_rows(cairn_session *s, const cairn_eval_args *args, float *logits,
                                     double *sum) {
    cairn_status status = engine_check_selection(s);
    bool singly = false;
    double more;
    if (status) return status;
    s->apart = true; /* as from an empty cache */
    loop_clear(s->model);
    status = engine_add(s, args->ids, args->count);
    *sum = 0.0;
    while (!status && !(status = engine_eval_goes_on(s, args)) && s->cached < args->count) {
        int now = engine_tokens_in(s, engine_slots(s, s->cached) + ENGINE_EVAL_ROWS) - s->cached;
        if (now > engine_inside(s)) now = engine_inside(s);
        if (now > args->count - s->cached) now = args->count - s->cached;
        if (singly) now = 1;
        engine_part part = engine_part_of(s, FORWARD_STEP, now);
        part.logits = logits;
        if ((status = engine_eval_part(&part, args))) break;
        more = 0.0;
        status = engine_score(engine_base(s), args, logits, s->model->shape.vocab, s->cached, now, &more);
        if (status && now > 1) status = CAIRN_OK, singly = true, engine_go_back(s, s->cached);
        else *sum += more, s->cached += now;
    }
    return status;
}

static cairn_status engine_check_eval(base *b, const cairn_model *m, const cairn_eval_args *given,
                                      cairn_eval_args *out) {
    cairn_status status = handles_need(m->runtime, "eval", given, "args");
    memset(out, 0, sizeof *out);
    if (status) return status;
    if (given->struct_size < sizeof given->struct_size || given->struct_size > sizeof *out)
        return base_fail(b, CAIRN_VERSION_MISMATCH,
                         "eval: args->struct_size is not sizeof the struct");
    memcpy(out, given, given->struct_size);
    if (out->count < 2 || !out->ids)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "eval: count = %d; at least 2 ids are expected",
                         out->count);
    if (out->top < 0 || out->top > m->shape.vocab || (out->top && (!out->top_ids ||
                                                                   !out->top_logits)))
        return base_fail(b, CAIRN_INVALID_ARGUMENT,
                         "eval: top = %d; 0 to %d with top_ids and top_logits is expected",
                         out->top, m->shape.vocab);
    if (out->nll) out->nll[0] = 0.0f;
    return CAIRN_OK;
}

cairn_status cairn_eval(cairn_model *model, const cairn_eval_args *given, double *mean_nll) {
    cairn_eval_args args;
    cairn_session *s = NULL;
    float *logits = NULL;
    double sum = 0.0;
    size_t vocab;
    base *b;
    cairn_status status;
    if (!model) return CAIRN_INVALID_ARGUMENT;
    b = &model->runtime->base;
    if (!mean_nll) return base_fail(b, CAIRN_INVALID_ARGUMENT, "eval: mean_nll is NULL");
    vocab = (size_t)model->shape.vocab;
    if ((status = engine_check_eval(b, model, given, &args))) return status;
    if ((status = engine_enter_long(model->runtime))) return status;
    if (!(status = engine_open(model, &s))) {
        logits = (float *)base_new(b, ENGINE_EVAL_ROWS * vocab, sizeof *logits);
        if (!logits) status = base_no_memory(b, "eval", ENGINE_EVAL_ROWS * vocab * sizeof *logits);
        else status = engine_eval_rows(s, &args, logits, &sum);
        base_delete(b, logits, ENGINE_EVAL_ROWS * vocab, sizeof *logits);
        engine_close(s);
    }
    if (!status) *mean_nll = sum / (double)(args.count - 1);
    return engine_leave_long(model->runtime, status);
}

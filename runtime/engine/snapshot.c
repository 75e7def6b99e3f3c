/* engine_snapshot: sessions saved and loaded, in files and in memory; the format is snapshot.c's.
 *
 * identity: u32 page size, u32 KV dtype, u32 layers, u32 KV heads, u32 head_dim, u32 vocabulary, 32
 * bytes that tell the model's file and the adapter from others, the model's name; tokens: those that the session
 * holds; state: u32 tokens whose keys are in the pages, then a bit for each token, lowest first, that
 * says whether it came from the caller, zeros up to the byte's end. What a running generation has
 * not handed out is not saved. Bounds of pages are computed anew. */

enum { ENGINE_IDENTITY = 24 + 32 + 128, ENGINE_FINGERPRINT_BYTES = 1 << 30 };

/* ---- identity -------------------------------------------------------------------------------- */

/* Bytes before the first tensor's data: what the file says of the model, and its tokenizer. */
static size_t engine_header_bytes(const gguf *file) {
    size_t header = file->size;
    for (size_t i = 0; i < file->tensor_count; i++) {
        size_t at = (size_t)file->tensors[i].at;
        if (at < header) header = at;
    }
    return header;
}

typedef struct engine_file { const gguf *file; size_t header; } engine_file;

/* A snapshot_reader of what stands behind the header. */
static const uint8_t *engine_fetch(const void *from, uint64_t at, size_t bytes, void *buffer) {
    const engine_file *f = (const engine_file *)from;
    return gguf_fetch(f->file, f->header + at, bytes, buffer);
}

/* Tells the model's file from another: by all its bytes up to 1 GiB of data, by as many chunks of
 * more, spread evenly. Once for a model, by all threads: while the file is there on a backend that
 * lets it go, else at the first save or load. */
static cairn_status engine_fingerprint(cairn_model *m) {
    const gguf *file = &m->file;
    const size_t header = engine_header_bytes(file), rest = file->size - header;
    const engine_file data = {file, header};
    base *b = &m->runtime->base;
    uint64_t sums[2];
    cache_hash h;
    cairn_status status;
    if (m->has_fingerprint) return CAIRN_OK;
    status = snapshot_sum_part(b, m->runtime->pool, file->data, header, &sums[0]);
    if (!status)
        status = snapshot_sum_chunks(b, m->runtime->pool, engine_fetch, &data, rest,
                                     1 + rest / ENGINE_FINGERPRINT_BYTES, &sums[1]);
    if (status == CAIRN_FILE_ERROR) return gguf_lost(b, file);
    if (status) return status;
    cache_hash_begin(&h, "cairn model");
    cache_hash_field(&h, &file->size, sizeof file->size);
    cache_hash_field(&h, sums, sizeof sums);
    if (m->plan.long_rope) cache_hash_field(&h, "long", 4);
    m->fingerprint = cache_hash_end(&h);
    m->has_fingerprint = true;
    return CAIRN_OK;
}

/* Tells the model's file, and an adapter that tokens run by, from others; after engine_fingerprint. */
static cache_key engine_sum(const cairn_model *m, const cairn_adapter *adapter) {
    cache_hash h;
    if (!adapter_space(adapter)) return m->fingerprint;
    cache_hash_begin(&h, "cairn adapted");
    cache_hash_field(&h, &m->fingerprint, sizeof m->fingerprint);
    cache_hash_field(&h, &adapter->fingerprint, sizeof adapter->fingerprint);
    if (landmarks_with(adapter))
        cache_hash_field(&h, &m->runtime->config.landmark_position, sizeof(cairn_landmark_position));
    return cache_hash_end(&h);
}

/* After engine_fingerprint. */
static void engine_put_identity(const cairn_model *m, const cairn_adapter *adapter, uint8_t *at) {
    const cache_key sum = engine_sum(m, adapter);
    const model_shape *s = &m->shape;
    cache_store32(at, (uint32_t)m->kv.page_size);
    cache_store32(at + 4, (uint32_t)m->runtime->config.kv_dtype);
    cache_store32(at + 8, (uint32_t)s->layers);
    cache_store32(at + 12, (uint32_t)s->kv_heads);
    cache_store32(at + 16, (uint32_t)s->head_dim);
    cache_store32(at + 20, (uint32_t)s->vocab);
    memcpy(at + 24, sum.bytes, 32);
    memset(at + 56, 0, 128);
    memcpy(at + 56, m->name, strlen(m->name));
}

/* Whether the snapshot is of this model with or without another of its adapters: then why not. */
static cairn_status engine_check_adapter(const cairn_model *m, const uint8_t *theirs) {
    const cairn_adapter *a = m->adapters;
    cache_key sum = engine_sum(m, NULL);
    while (a && memcmp(theirs + 24, sum.bytes, 32)) sum = engine_sum(m, a), a = a->next;
    if (memcmp(theirs + 24, sum.bytes, 32)) return CAIRN_OK;
    return base_fail(&m->runtime->base, CAIRN_UNSUPPORTED, "session_load: the snapshot ran by "
                     "another adapter of the model, or by none; cairn_session_adapt comes first");
}

/* The first thing in which the snapshot is not of the session's model and adapter, by name. */
static cairn_status engine_check_identity(const cairn_session *s, const snapshot *snap) {
    static const char *const names[] = {"page size", "KV dtype", "layers", "KV heads",
                                        "head size", "vocabulary"};
    const uint8_t *theirs = snap->parts[SNAPSHOT_IDENTITY];
    uint8_t ours[ENGINE_IDENTITY];
    cairn_model *m = s->model;
    base *b = &m->runtime->base;
    cairn_status status;
    if (snap->bytes[SNAPSHOT_IDENTITY] != ENGINE_IDENTITY)
        return snapshot_damaged(b, "session_load", "a part has a wrong size");
    if ((status = engine_fingerprint(m))) return status;
    engine_put_identity(m, s->adapter, ours);
    for (int i = 0; i < 2; i++) /* of the runtime, not of the model */
        if (memcmp(theirs + 4 * i, ours + 4 * i, 4))
            return base_fail(b, CAIRN_UNSUPPORTED,
                             "session_load: the snapshot has %s %u, this runtime has %u", names[i],
                             (unsigned)snapshot_get32(theirs + 4 * i),
                             (unsigned)snapshot_get32(ours + 4 * i));
    for (int i = 2; i < 6; i++)
        if (memcmp(theirs + 4 * i, ours + 4 * i, 4))
            return base_fail(b, CAIRN_UNSUPPORTED,
                             "session_load: the snapshot is of another model, '%.127s': %s %u, not "
                             "%u", (const char *)theirs + 56, names[i],
                             (unsigned)snapshot_get32(theirs + 4 * i),
                             (unsigned)snapshot_get32(ours + 4 * i));
    if (memcmp(theirs, ours, sizeof ours) && (status = engine_check_adapter(m, theirs)))
        return status;
    if (memcmp(theirs, ours, sizeof ours))
        return base_fail(b, CAIRN_UNSUPPORTED,
                         "session_load: the snapshot is of another model, '%.127s', not of '%s': "
                         "the files differ", (const char *)theirs + 56, m->name);
    return CAIRN_OK;
}

/* ---- save ------------------------------------------------------------------------------------ */

static void engine_plan_snapshot(const cairn_session *s, snapshot *snap) {
    memset(snap, 0, sizeof *snap);
    snap->kind = SNAPSHOT_OF_SESSION;
    snap->bytes[SNAPSHOT_IDENTITY] = ENGINE_IDENTITY;
    snap->bytes[SNAPSHOT_TOKENS] = (size_t)s->count * 4;
    snap->bytes[SNAPSHOT_STATE] = 4 + engine_given_bytes(s->count);
    snap->bytes[SNAPSHOT_PAGES] = state_bytes(&s->model->states,
                                              engine_slots(s, engine_kept_tokens(s)));
    snapshot_add_up(snap);
}

/* Into memory [snap->total]. */
static cairn_status engine_fill_snapshot(cairn_session *s, snapshot *snap, uint8_t *memory) {
    cairn_status status = engine_fingerprint(s->model);
    if (status) return status;
    snapshot_place(snap, memory);
    engine_put_identity(s->model, s->adapter, snap->parts[SNAPSHOT_IDENTITY]);
    snapshot_put_ids(snap->parts[SNAPSHOT_TOKENS], s->tokens, s->count);
    cache_store32(snap->parts[SNAPSHOT_STATE], (uint32_t)engine_kept_tokens(s));
    for (int i = 0; i < s->count; i += 8) {
        uint8_t past = (uint8_t)(s->count - i < 8 ? 0xff << (s->count - i) : 0);
        snap->parts[SNAPSHOT_STATE][4 + i / 8] = (uint8_t)(s->given[i / 8] & ~past);
    }
    status = state_save(&s->model->states, s->row, engine_slots(s, engine_kept_tokens(s)),
                        snap->parts[SNAPSHOT_PAGES]);
    if (status) return status;
    return snapshot_seal(engine_base(s), s->model->runtime->pool, snap);
}

cairn_status cairn_session_save_memory(cairn_session *session, void *memory, size_t capacity,
                                       size_t *bytes) {
    snapshot snap;
    cairn_status status = engine_enter(session, "session_save");
    if (status) return status;
    engine_plan_snapshot(session, &snap);
    if (snapshot_wants(engine_base(session), "session_save", &snap, memory, capacity, bytes,
                       &status))
        status = engine_fill_snapshot(session, &snap, (uint8_t *)memory);
    return engine_leave(session, status);
}

cairn_status cairn_session_save(cairn_session *session, const char *path) {
    snapshot snap;
    base *b;
    uint8_t *memory;
    cairn_status status = engine_enter(session, "session_save");
    if (status) return status;
    b = engine_base(session);
    if (!path)
        return engine_leave(session, base_fail(b, CAIRN_INVALID_ARGUMENT,
                                               "session_save: path is NULL"));
    engine_plan_snapshot(session, &snap);
    memory = (uint8_t *)base_realloc(b, NULL, 0, snap.total);
    if (!memory) return engine_leave(session, base_no_memory(b, "a snapshot", snap.total));
    status = engine_fill_snapshot(session, &snap, memory);
    if (!status) status = os_write_private(b, path, memory, snap.total);
    base_realloc(b, memory, snap.total, 0);
    return engine_leave(session, status);
}

/* ---- load ------------------------------------------------------------------------------------ */

typedef struct engine_saved {
    int count, cached;
    const uint8_t *given;
} engine_saved;

/* Whether what layers keep of a sequence depends on how long the config lets it become. */
static bool engine_has_windows(const cairn_model *m) {
    int l = 0;
    while (l < m->shape.layers && !m->plan.layers[l].window) l++;
    return l < m->shape.layers;
}

/* That the tokens are the model's, and that the sizes agree with each other. */
static cairn_status engine_check_saved(cairn_session *s, const snapshot *snap, engine_saved *out) {
    base *b = engine_base(s);
    const uint8_t *tokens = snap->parts[SNAPSHOT_TOKENS], *state = snap->parts[SNAPSHOT_STATE];
    size_t count = snap->bytes[SNAPSHOT_TOKENS] / 4;
    if (snap->bytes[SNAPSHOT_TOKENS] % 4 || snap->bytes[SNAPSHOT_EXTRA] || count > INT32_MAX ||
        snap->bytes[SNAPSHOT_STATE] != 4 + engine_given_bytes((int)count))
        return snapshot_damaged(b, "session_load", "a part has a wrong size");
    if ((int)count > engine_context(s))
        return base_fail(b, CAIRN_CONTEXT_FULL,
                         "session_load: the snapshot has %d tokens, the context is %d", (int)count,
                         engine_context(s));
    out->count = (int)count;
    out->cached = snapshot_get_id(state, 0);
    out->given = state + 4;
    if (out->cached < 0 || out->cached > (out->count ? out->count - 1 : 0) ||
        (out->count % 8 && out->given[out->count / 8] >> out->count % 8))
        return snapshot_damaged(b, "session_load", "its counts contradict each other");
    if (snap->bytes[SNAPSHOT_PAGES] != state_bytes(&s->model->states,
                                                   engine_slots(s, out->cached))) {
        if (!engine_has_windows(s->model))
            return snapshot_damaged(b, "session_load", "its pages are not those of its tokens");
        out->cached = 0; /* saved where layers kept more or less: its tokens run again */
    }
    for (int i = 0; i < out->count; i++)
        if (snapshot_get_id(tokens, i) < 0 || snapshot_get_id(tokens, i) >= s->model->shape.vocab)
            return snapshot_damaged(b, "session_load", "a token is outside the vocabulary");
    return CAIRN_OK;
}

static void engine_clear(cairn_session *s) {
    engine_withdraw(s);
    engine_cut(s, 0);
    s->appended = s->reused = 0;
    s->append_seconds = 0.0;
    if (s->drafter.heads) drafter_clear(&s->drafter);
}

/* Fills `row`, which is empty, while the session keeps its own; where the pool is too short for both
 * its own goes first, and a device that fails then leaves it empty. */
static cairn_status engine_load_row(cairn_session *s, const engine_saved *saved,
                                    const uint8_t *from, int row) {
    cairn_model *m = s->model;
    const int slots = engine_slots(s, saved->cached);
    cairn_status status = state_load(&m->states, row, slots, from);
    if (status != CAIRN_POOL_FULL) return status;
    engine_let_go(s);
    for (int g = 0; g <= m->groups.count; g++) {
        const int pages = g ? window_saved(&m->windows[g - 1], slots)
                            : tables_filled(&m->tables, slots);
        engine_make_room(m, pages, g);
        if (pages > engine_free_pages(m, g) + engine_own_pages(s, g))
            return base_fail(engine_base(s), CAIRN_POOL_FULL,
                             "session_load: the snapshot needs %d pages; %d of %d are free", pages,
                             engine_free_pages(m, g), engine_pool_pages(m, g));
    }
    engine_clear(s);
    return state_load(&m->states, row, slots, from);
}

/* The session's row is empty; it becomes that one, which stands for saved->cached tokens. */
static void engine_become(cairn_session *s, const snapshot *snap, const engine_saved *saved,
                          int row) {
    tables_leave_row(engine_base(s), &s->model->tables, s->row);
    s->row = row;
    for (int i = 0; i < saved->count; i++)
        s->tokens[i] = snapshot_get_id(snap->parts[SNAPSHOT_TOKENS], i);
    memcpy(s->given, saved->given, engine_given_bytes(saved->count));
    s->count = saved->count;
    s->cached = saved->cached;
    s->bounded = 0;
    engine_drop_chosen(s);
    engine_settle(s);
}

/* Inside an entered call. */
static cairn_status engine_load_snapshot(cairn_session *s, const void *memory, size_t bytes) {
    base *b = engine_base(s);
    snapshot snap;
    engine_saved saved = {0}; /* gcc 12 does not see that the check fills it */
    int row;
    cairn_status status = snapshot_read(b, s->model->runtime->pool, "session_load",
                                        SNAPSHOT_OF_SESSION, memory, bytes, &snap);
    if (status || (status = engine_check_identity(s, &snap)) ||
        (status = engine_check_saved(s, &snap, &saved)) ||
        (status = tables_take_row(b, &s->model->tables, &row)))
        return status;
    if ((status = engine_load_row(s, &saved, snap.parts[SNAPSHOT_PAGES], row))) {
        tables_leave_row(b, &s->model->tables, row);
        return status;
    }
    engine_clear(s);
    engine_become(s, &snap, &saved, row);
    return CAIRN_OK;
}

cairn_status cairn_session_load_memory(cairn_session *session, const void *memory, size_t bytes) {
    cairn_status status = engine_enter(session, "session_load");
    if (status) return status;
    if (!memory)
        status = base_fail(engine_base(session), CAIRN_INVALID_ARGUMENT,
                           "session_load: memory is NULL");
    else status = engine_load_snapshot(session, memory, bytes);
    return engine_leave(session, status);
}

cairn_status cairn_session_load(cairn_session *session, const char *path) {
    base_text file;
    base *b;
    cairn_status status = engine_enter(session, "session_load");
    if (status) return status;
    b = engine_base(session);
    memset(&file, 0, sizeof file);
    if (!path) status = base_fail(b, CAIRN_INVALID_ARGUMENT, "session_load: path is NULL");
    if (!status) status = os_read_file(b, path, &file);
    if (!status) status = engine_load_snapshot(session, file.data, file.size);
    base_text_free(b, &file);
    return engine_leave(session, status);
}

/* engine_calls: the calls that generate: those that push (cairn_generate), pull
 * (cairn_generate_begin, cairn_generate_next) or are stepped (cairn_generate_submit,
 * cairn_generate_poll), and those that append. */

/* ---- requests -------------------------------------------------------------------------------- */

/* Asks for a generation behind a prompt: nothing is computed. */
static cairn_status engine_ask_text(cairn_session *s, const char *prompt, size_t bytes,
                                    const cairn_generate_options *given, bool pulled) {
    base *b = engine_base(s);
    tokenizer_ids ids;
    cairn_status status;
    engine_withdraw(s);
    memset(&ids, 0, sizeof ids);
    os_atomic_store(&s->cancel, 0);
    memset(&s->stats, 0, sizeof s->stats);
    s->stats.struct_size = sizeof s->stats;
    s->text.size = s->handed = 0;
    s->dropped = s->point_count = 0;
    s->last_id = -1;
    memset(&s->stream, 0, sizeof s->stream);
    engine_settle(s);
    engine_drop_wishes(s);
    status = engine_read_options(b, given, &s->options);
    if (!status && bytes) status = engine_encode(s, prompt, bytes, s->options.special, &ids);
    if (!status && !s->count && !ids.size)
        status = base_fail(b, CAIRN_EMPTY_PROMPT,
                           "generate: the prompt is empty and so is the session");
    if (!status) status = engine_take_wishes(s, s->count + (int)ids.size);
    if (!status) loop_ask(s, &ids, false, pulled);
    tokenizer_ids_free(b, &ids);
    if (status) engine_reset_stats(s);
    if (status) s->stats.stop = status == CAIRN_CANCELLED ? CAIRN_STOP_CANCEL : CAIRN_STOP_ERROR;
    return status;
}

static cairn_status engine_begin_text(cairn_session *s, const char *prompt, size_t bytes,
                                      const cairn_generate_options *given) {
    cairn_status status = engine_ask_text(s, prompt, bytes, given, true);
    return status ? status : loop_until(s);
}

/* One id, or the end. The text that it made certain stands behind s->handed. */
static cairn_status engine_next(cairn_session *s, int32_t *id) {
    cairn_status status;
    *id = -1;
    if (os_atomic_load(&s->cancel)) s->fresh_at = s->fresh_count;
    else if (engine_room(s) < 1) {
        engine_finish(s, CAIRN_STOP_LENGTH, CAIRN_OK);
        return loop_rest(s), CAIRN_OK;
    }
    if (s->fresh_at == s->fresh_count) {
        s->wants = true;
        if ((status = loop_until(s))) return status;
    }
    *id = s->fresh[s->fresh_at++];
    status = engine_take(s, *id);
    if (status) {
        *id = -1;
        loop_end(s, CAIRN_STOP_ERROR, status);
    }
    if (!s->generating) loop_rest(s);
    return status;
}

static cairn_status engine_next_piece(cairn_session *s, cairn_piece *piece) {
    cairn_status status;
    engine_drop_handed(s);
    s->logprobs.size = 0;
    status = engine_next(s, &piece->id);
    return engine_hand_out(s, piece, status);
}

/* ---- begin and next -------------------------------------------------------------------------- */

/* cairn_generate_begin for a prompt of `bytes` bytes, which may hold NUL. */
static cairn_status engine_generate_begin(cairn_session *session, const char *prompt, size_t bytes,
                                          const cairn_generate_options *options) {
    cairn_status status = engine_enter(session, "generate_begin");
    if (status) return status;
    return engine_leave(session, engine_begin_text(session, prompt, bytes, options));
}

cairn_status cairn_generate_begin(cairn_session *session, const char *prompt,
                                  const cairn_generate_options *options) {
    return engine_generate_begin(session, prompt, prompt ? strlen(prompt) : 0, options);
}

/* An empty piece of the caller's version. */
static cairn_status engine_check_piece(cairn_session *s, const cairn_piece *given,
                                       cairn_piece *piece) {
    const uint32_t first_bytes = offsetof(cairn_piece, first); /* of the first version */
    cairn_status status = handles_need(s->model->runtime, "generate", given, "piece");
    memset(piece, 0, sizeof *piece);
    piece->id = -1;
    piece->text = "";
    if (status) return status;
    piece->struct_size = given->struct_size;
    if (piece->struct_size >= first_bytes && piece->struct_size <= sizeof *piece) return CAIRN_OK;
    return base_fail(engine_base(s), CAIRN_VERSION_MISMATCH,
                     "generate: piece->struct_size is not sizeof the struct");
}

cairn_status cairn_generate_next(cairn_session *session, cairn_piece *given) {
    cairn_piece piece;
    cairn_status status = engine_enter(session, "generate_next");
    if (status) return status;
    if ((status = engine_check_piece(session, given, &piece))) return engine_leave(session, status);
    if (!session->generating || session->submitted)
        status = base_fail(engine_base(session), CAIRN_INVALID_ARGUMENT,
                           "generate_next: no generation is running; call generate_begin");
    else {
        status = engine_next_piece(session, &piece);
        memcpy(given, &piece, piece.struct_size);
    }
    return engine_leave(session, status);
}

/* ---- generate -------------------------------------------------------------------------------- */

/* Others have their turn meanwhile. */
static bool engine_say(cairn_session *s, cairn_piece_callback callback, void *user,
                       const cairn_piece *piece) {
    cairn_runtime *rt = s->model->runtime;
    bool more;
    if (!piece->bytes || !callback) return true;
    handles_release(rt, false);
    more = callback(user, piece->text, piece->bytes);
    handles_retake(rt, false);
    return more;
}

static cairn_status engine_generate(cairn_session *s, cairn_piece_callback callback, void *user) {
    cairn_piece piece;
    cairn_status status;
    do {
        status = engine_next_piece(s, &piece);
        if (engine_say(s, callback, user, &piece)) continue;
        s->handed = s->text.size; /* the caller wants no more */
        engine_finish(s, CAIRN_STOP_CANCEL, CAIRN_OK);
        loop_rest(s);
        s->handed = s->text.size;
        if (status) return status;
        return base_fail(engine_base(s), CAIRN_CANCELLED,
                         "the piece callback returned false at token %d", s->count);
    } while (!status && !piece.stop);
    return status;
}

cairn_status cairn_generate_with(cairn_session *session, const char *prompt,
                                 const cairn_generate_options *options,
                                 cairn_piece_callback piece, void *user) {
    cairn_status status = engine_enter(session, "generate");
    if (status) return status;
    status = engine_begin_text(session, prompt, prompt ? strlen(prompt) : 0, options);
    if (!status) status = engine_generate(session, piece, user);
    return engine_leave(session, status);
}

cairn_status cairn_generate(cairn_session *session, const char *prompt, int max_tokens,
                            cairn_piece_callback piece, void *user) {
    cairn_generate_options options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.max_tokens = max_tokens;
    return cairn_generate_with(session, prompt, &options, piece, user);
}

/* ---- what was selected ----------------------------------------------------------------------- */

static cairn_status engine_selection(cairn_session *s, int layer, int head, int32_t *pages,
                                     int32_t capacity, int32_t *count) {
    const model_shape *shape = &s->model->shape;
    const int32_t *from;
    if (!count || layer < 0 || layer >= shape->layers || head < 0 || head >= shape->kv_heads ||
        capacity < 0 || (capacity && !pages))
        return base_fail(engine_base(s), CAIRN_INVALID_ARGUMENT, "session_selection: layer = %d, kv_head "
                         "= %d, capacity = %d; 0 to %d and 0 to %d, a count, and pages for a capacity "
                         "are expected", layer, head, (int)capacity, shape->layers - 1,
                         shape->kv_heads - 1);
    *count = -1;
    if (!s->watched && s->model->backend->watch) {
        const cairn_status status = s->model->backend->watch(s->model);
        if (status) return status;
    }
    s->watched = true;
    if (!s->chosen_step) return CAIRN_OK;
    from = s->chosen + ((size_t)layer * (size_t)shape->kv_heads + (size_t)head) * (size_t)s->chosen_step;
    *count = *from;
    for (int i = 0; i < *from && i < capacity; i++) pages[i] = from[1 + i];
    return CAIRN_OK;
}

cairn_status cairn_session_selection(cairn_session *session, int32_t layer, int32_t kv_head,
                                     int32_t *pages, int32_t capacity, int32_t *count) {
    cairn_status status = engine_enter(session, "session_selection");
    if (status) return status;
    return engine_leave(session, engine_selection(session, layer, kv_head, pages, capacity, count));
}

/* ---- submit and poll ------------------------------------------------------------------------- */

static cairn_status engine_submit(cairn_session *session, const char *prompt, size_t bytes,
                                  const cairn_generate_options *options) {
    cairn_model *m;
    int pages;
    cairn_status status = engine_enter_beside(session, "generate_submit");
    if (status) return status;
    m = session->model;
    if (session->flying) handles_settle(m->runtime);
    status = engine_ask_text(session, prompt, bytes, options, false);
    if (!status && (int)session->waiting.size > engine_context(session) - session->count)
        status = base_fail(engine_base(session), CAIRN_CONTEXT_FULL,
                           "generate_submit: %d tokens held and %d more, the context is %d",
                           session->count, (int)session->waiting.size, engine_context(session));
    pages = engine_pages_for(session, session->count + (int)session->waiting.size);
    if (!status && pages > m->kv.pool.pages)
        status = base_fail(engine_base(session), CAIRN_POOL_FULL,
                           "generate_submit: %d pages are needed, the pool has %d", pages,
                           m->kv.pool.pages);
    session->submitted = !status;
    if (status) engine_withdraw(session);
    return engine_leave(session, status);
}

cairn_status cairn_generate_submit(cairn_session *session, const char *prompt,
                                   const cairn_generate_options *options) {
    return engine_submit(session, prompt, prompt ? strlen(prompt) : 0, options);
}

/* What the request does. */
static cairn_request engine_request(const cairn_session *s) {
    if (s->phase == ENGINE_IDLE) return CAIRN_REQUEST_NONE;
    if (s->starved) return CAIRN_REQUEST_PAGES;
    if (s->phase == ENGINE_WAITS) return CAIRN_REQUEST_QUEUED;
    return s->phase == ENGINE_PROMPT ? CAIRN_REQUEST_PROMPT : CAIRN_REQUEST_TEXT;
}

/* What is certain, in memory that the loop leaves alone; it may go on while the piece is read. */
static cairn_status engine_poll(cairn_session *s, cairn_piece *piece) {
    if (!s->generating && !s->stats.stop) return CAIRN_OK;
    engine_hand_out(s, piece, CAIRN_OK);
    s->polled.size = s->polled_logprobs.size = 0;
    if (!base_text_add(engine_base(s), &s->polled, piece->text, piece->bytes) ||
        !base_text_add(engine_base(s), &s->polled_logprobs, s->logprobs.data, s->logprobs.size)) {
        s->handed = 0;
        return base_no_memory(engine_base(s), "generate_poll", piece->bytes);
    }
    s->logprobs.size = 0;
    piece->logprobs = (const cairn_logprob *)(const void *)s->polled_logprobs.data;
    if (piece->bytes) piece->text = s->polled.data;
    engine_drop_handed(s);
    return CAIRN_OK;
}

cairn_status cairn_generate_poll(cairn_session *session, cairn_piece *given) {
    cairn_piece piece;
    cairn_status status = engine_enter_beside(session, "generate_poll");
    if (status) return status;
    status = engine_check_piece(session, given, &piece);
    if (!status && !session->submitted)
        status = base_fail(engine_base(session), CAIRN_INVALID_ARGUMENT,
                           "generate_poll: no request is submitted; call generate_submit");
    if (!status) status = engine_poll(session, &piece);
    if (status) return engine_leave(session, status);
    piece.id = session->last_id;
    session->last_id = -1;
    piece.request = engine_request(session);
    session->submitted = !piece.stop;
    memcpy(given, &piece, piece.struct_size);
    if (piece.stop && session->outcome && session->outcome != session->status)
        status = base_fail(engine_base(session), session->outcome, "generate_poll: the request's end");
    else if (piece.stop && session->outcome) status = engine_raise_noted(session);
    return engine_leave(session, status);
}

cairn_status cairn_session_error(cairn_session *session, char *text, size_t bytes) {
    cairn_status status;
    if (text && bytes) *text = '\0';
    if (!session) return CAIRN_INVALID_ARGUMENT;
    engine_guard_status(session);
    status = session->status;
    if (text && bytes) snprintf(text, bytes, "%s", session->error);
    os_atomic_store(&session->status_guard, 0);
    return status;
}

/* ---- append ---------------------------------------------------------------------------------- */

/* Appends inside an entered call, all but the last token processed; empties *ids. The caller has
 * reset `cancel` where the call began: reading a text can be cancelled, too. */
static cairn_status engine_append(cairn_session *s, tokenizer_ids *ids) {
    engine_withdraw(s);
    s->options.priority = 0;
    loop_ask(s, ids, true, true);
    return loop_until(s);
}

cairn_status cairn_append_ids(cairn_session *session, const int32_t *ids, int count) {
    tokenizer_ids own;
    cairn_status status = engine_enter(session, "append_ids");
    if (status) return status;
    memset(&own, 0, sizeof own);
    os_atomic_store(&session->cancel, 0);
    if (count < 0 || (count && !ids))
        status = base_fail(engine_base(session), CAIRN_INVALID_ARGUMENT,
                           "append_ids: count = %d with %s", count, ids ? "ids" : "no ids");
    for (int i = 0; i < count && !status; i++)
        if (!tokenizer_ids_add(engine_base(session), &own, ids[i]))
            status = base_no_memory(engine_base(session), "append_ids", (size_t)count * 4);
    if (!status) status = engine_append(session, &own);
    tokenizer_ids_free(engine_base(session), &own);
    return engine_leave(session, status);
}

cairn_status cairn_append_with(cairn_session *session, const char *text, size_t bytes,
                               bool special) {
    tokenizer_ids ids;
    base *b;
    cairn_status status = engine_enter(session, "append");
    if (status) return status;
    b = engine_base(session);
    memset(&ids, 0, sizeof ids);
    os_atomic_store(&session->cancel, 0);
    if (!text) status = base_fail(b, CAIRN_INVALID_ARGUMENT, "append: text is NULL");
    else status = engine_encode(session, text, bytes, special, &ids);
    if (!status) status = engine_append(session, &ids);
    tokenizer_ids_free(b, &ids);
    return engine_leave(session, status);
}

cairn_status cairn_append(cairn_session *session, const char *text) {
    return cairn_append_with(session, text, text ? strlen(text) : 0, true);
}

/* ---- statistics ------------------------------------------------------------------------------ */

cairn_status cairn_session_stats(cairn_session *session, cairn_stats *stats) {
    cairn_stats now;
    uint32_t bytes;
    cairn_status status;
    if (!session) return CAIRN_INVALID_ARGUMENT;
    if ((status = handles_need(session->model->runtime, "session_stats", stats, "stats")))
        return status;
    bytes = stats->struct_size;
    if (bytes < sizeof bytes || bytes > sizeof now)
        return base_fail(engine_base(session), CAIRN_VERSION_MISMATCH,
                         "session_stats: struct_size is %u; set it to sizeof the struct", bytes);
    if ((status = base_check_callback(engine_base(session)))) return status;
    handles_hold_beside(session->model->runtime);
    now = session->stats;
    now.decoded = now.generated > session->from_prompt ? now.generated - session->from_prompt : 0;
    if (now.forwards) {
        now.pages_read = session->pages_read / now.forwards;
        now.pages_held = session->pages_held / now.forwards;
    }
    now.peak_bytes = session->model->runtime->device.peak_bytes;
    handles_drop(session->model->runtime);
    now.struct_size = bytes;
    memcpy(stats, &now, bytes);
    return CAIRN_OK;
}

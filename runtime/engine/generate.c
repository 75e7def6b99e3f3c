/* engine_generate: tokens into text. Stop strings, whole characters, the end of a generation, what a
 * generation was asked for.
 *
 * Text that may begin a stop string is held back until it is decided; everything else is handed out
 * with the token that completed it. */

const char *cairn_stop_name(cairn_stop stop) {
    static const char *const names[] = {"none", "eos", "length", "string", "cancel", "error",
                                        "grammar"};
    return (size_t)stop < BASE_COUNT(names) ? names[stop] : "unknown";
}

/* ---- stop strings ---------------------------------------------------------------------------- */

static const char *engine_stop_string(const cairn_session *s, int index) {
    return s->options.has_stops ? s->options.stops[index] : engine_config(s)->stop[index];
}

static int engine_stop_count(const cairn_session *s) {
    return s->options.has_stops ? s->options.stop_count : (int)engine_config(s)->stop_count;
}

/* Never inside a character of the text: a stop string of a config may be any bytes. */
static bool engine_is_at(const char *text, size_t bytes, const char *stop, size_t stop_bytes) {
    return stop_bytes <= bytes && ((unsigned char)*stop & 0xC0) != 0x80 &&
           !memcmp(text, stop, stop_bytes);
}

/* Where the first stop string begins in text [bytes], or `bytes`. */
static size_t engine_find_stop(const cairn_session *s, const char *text, size_t bytes) {
    size_t first = bytes;
    for (int i = 0; i < engine_stop_count(s); i++) {
        const char *stop = engine_stop_string(s, i);
        size_t stop_bytes = strlen(stop);
        for (size_t at = 0; stop_bytes && at < first; at++)
            if (engine_is_at(text + at, bytes - at, stop, stop_bytes)) first = at;
    }
    return first;
}

/* How many bytes of text [bytes], which holds no stop string, can begin none either. */
static size_t engine_certain(const cairn_session *s, const char *text, size_t bytes) {
    size_t certain = bytes;
    for (int i = 0; i < engine_stop_count(s); i++) {
        const char *stop = engine_stop_string(s, i);
        size_t stop_bytes = strlen(stop);
        size_t at = bytes >= stop_bytes ? bytes - stop_bytes + 1 : 0;
        for (; at < certain && stop_bytes; at++)
            if (engine_is_at(stop, stop_bytes, text + at, bytes - at)) certain = at;
    }
    return certain;
}

/* ---- which ids the text is of ---------------------------------------------------------------- */

/* Notes that the session's ids so far end where the text does. */
static void engine_note_point(cairn_session *s) {
    int64_t end = s->dropped + (int64_t)s->text.size;
    engine_point *last = s->point_count ? &s->points[s->point_count - 1] : NULL;
    if (last && last->end == end) {
        last->count = s->count;
        return;
    }
    if (s->point_count == ENGINE_POINTS) { /* those before the last one handed out are not needed */
        int drop = s->points[1].end > s->dropped;
        memmove(s->points + drop, s->points + drop + 1,
                (size_t)(--s->point_count - drop) * sizeof *s->points);
    }
    s->points[s->point_count].end = end;
    s->points[s->point_count++].count = s->count;
}

/* The last point at or before `end`; there is one but for a text of characters that never end. */
static engine_point engine_point_before(const cairn_session *s, int64_t end) {
    int i = s->point_count - 1;
    while (i > 0 && s->points[i].end > end) i--;
    return s->points[i];
}

/* The ids, [first, first + count), that the next `bytes` bytes of text are of. */
static void engine_cover(const cairn_session *s, size_t bytes, cairn_piece *piece) {
    int64_t end = s->dropped + (int64_t)bytes;
    int i = 0, past;
    while (i < s->point_count && s->points[i].end < end) i++;
    past = i < s->point_count ? s->points[i].count : s->count;
    piece->first = engine_point_before(s, s->dropped).count;
    if (piece->first > past) piece->first = past;
    piece->count = bytes ? past - piece->first : 0;
}

/* Plain text at the end of the sequence, as the model's own words; what does not fit is left. */
static cairn_status engine_put_text(cairn_session *s, const char *text, size_t bytes) {
    tokenizer_ids ids;
    cairn_status status;
    memset(&ids, 0, sizeof ids);
    status = tokenizer_encode(engine_base(s), &s->model->tokenizer, text, bytes, false, &ids);
    for (size_t i = 0; i < ids.size && s->count < engine_context(s); i++) {
        engine_set_given(s, s->count, false);
        s->tokens[s->count++] = ids.data[i];
    }
    tokenizer_ids_free(engine_base(s), &ids);
    return status;
}

/* Cuts the sequence where the text ends: what is left of a token that says more takes its place. */
static cairn_status engine_cut_to_text(cairn_session *s) {
    base *b = engine_base(s);
    int64_t end = s->dropped + (int64_t)s->text.size;
    engine_point point = engine_point_before(s, end);
    base_text said = {NULL, 0, 0};
    size_t left = end > point.end ? (size_t)(end - point.end) : 0;
    cairn_status status = tokenizer_decode(b, &s->model->tokenizer, s->tokens + point.count,
                                           (size_t)(s->count - point.count), &said);
    if (!status) {
        engine_cut(s, point.count);
        if (left) status = engine_put_text(s, said.data, left);
        while (s->point_count > 1 && s->points[s->point_count - 1].end > point.end)
            s->point_count--;
        engine_note_point(s);
    }
    base_text_free(b, &said);
    return status;
}

/* ---- the end of a generation ----------------------------------------------------------------- */

/* Ends it; what text is held back becomes certain. Returns `status`. */
static cairn_status engine_finish(cairn_session *s, cairn_stop stop, cairn_status status) {
    s->stats.stop = stop;
    s->generating = false;
    engine_settle(s);
    if (stop != CAIRN_STOP_STRING && tokenizer_stream_finish(engine_base(s), &s->stream, &s->text))
        engine_base(s)->error[0] = '\0'; /* no memory for one replacement character */
    return status;
}

static int engine_room(const cairn_session *s) {
    int room = engine_context(s) - s->count;
    int left = s->options.max_tokens - s->stats.generated;
    return s->options.max_tokens && left < room ? left : room;
}

/* Those of the id that is taken, the last one of `fresh` so far. */
static cairn_status engine_keep_logprobs(cairn_session *s) {
    const size_t each = 1 + (size_t)s->row_best, bytes = each * sizeof *s->row_logprobs;
    if (!s->row_logprobs ||
        base_text_add(engine_base(s), &s->logprobs,
                      s->row_logprobs + (size_t)(s->fresh_at - 1) * each, bytes))
        return CAIRN_OK;
    return base_no_memory(engine_base(s), "logprobs", bytes);
}

/* Where logits give nothing that could be drawn or scored. */
static cairn_status engine_no_number(base *b, const char *call, int token) {
    return base_fail(b, CAIRN_BAD_DATA, "%s: the logits for token %d are not numbers: damaged weights, or on "
                     "the GPU values past f16's 65504: try backend = \"cpu\"",
                     call, token);
}

/* The next token cannot be told. What was computed is not trusted, since NaN reaches rows of the same
 * forward: the sequence runs again, and nobody takes pages from before. */
static cairn_status engine_lose(cairn_session *s) {
    s->model->spoilt++;
    engine_go_back(s, 0);
    return engine_no_number(engine_base(s), "generate", s->count);
}

/* The text of one more id, and the end that it brings. */
static cairn_status engine_take(cairn_session *s, int32_t id) {
    base *b = engine_base(s);
    const tokenizer *t = &s->model->tokenizer;
    bool end = tokenizer_is_end(t, id), said;
    size_t stop;
    cairn_status status = CAIRN_OK;
    if (id == CAIRN_SAMPLE_NO_NUMBER) return engine_lose(s);
    if (!end) status = tokenizer_stream_push(b, t, &s->stream, id, &s->text);
    if (!status) status = engine_keep_logprobs(s);
    if (status) return status;
    engine_add_said(s, id);
    s->stats.generated++;
    if (!s->stream.count) engine_note_point(s);
    if (end) return engine_finish(s, CAIRN_STOP_EOS, CAIRN_OK);
    stop = engine_find_stop(s, s->text.data, s->text.size);
    if (stop < s->text.size) {
        s->text.size = stop;
        s->text.data[stop] = '\0';
        engine_finish(s, CAIRN_STOP_STRING, CAIRN_OK);
        return s->options.keep_stop ? CAIRN_OK : engine_cut_to_text(s);
    }
    if ((status = engine_is_said(s, &said))) return status;
    if (said) return engine_finish(s, CAIRN_STOP_GRAMMAR, CAIRN_OK);
    return engine_room(s) < 1 ? engine_finish(s, CAIRN_STOP_LENGTH, CAIRN_OK) : CAIRN_OK;
}

/* ---- options --------------------------------------------------------------------------------- */

static cairn_status engine_copy_stops(base *b, const cairn_generate_options *from,
                                      engine_options *to) {
    to->has_stops = from->stop_count != 0;
    to->stop_count = 0;
    if (from->stop_count < -1 || from->stop_count > ENGINE_STOPS || (from->stop_count > 0 && !from->stop))
        return base_fail(b, CAIRN_INVALID_ARGUMENT,
                         "generate: stop_count = %d, stop %s; up to %d strings are allowed",
                         from->stop_count, from->stop ? "given" : "NULL", ENGINE_STOPS);
    for (int i = 0; i < from->stop_count; i++) {
        size_t bytes = from->stop[i] ? strlen(from->stop[i]) : 0;
        if (!bytes || bytes >= ENGINE_STOP_BYTES)
            return base_fail(b, CAIRN_INVALID_ARGUMENT,
                             "generate: stop[%d] has %llu bytes; 1 to %d are allowed", i,
                             (unsigned long long)bytes, ENGINE_STOP_BYTES - 1);
        if (base_utf8_fault(from->stop[i], bytes) < bytes)
            return base_fail(b, CAIRN_INVALID_UTF8, "generate: stop[%d] is not valid UTF-8", i);
        memcpy(to->stops[i], from->stop[i], bytes + 1);
        to->stop_count++;
    }
    return CAIRN_OK;
}

/* The field that is out of its range, or NULL; 0 where 1 is meant is in it. */
static const char *engine_sampling_fault(const cairn_sampling *s) {
    return !(s->temperature >= 0.0f && s->temperature <= 100.0f) ? "temperature"
           : s->top_k < 0 || s->top_k > 1048576                  ? "top_k"
           : !(s->top_p >= 0.0f && s->top_p <= 1.0f)             ? "top_p"
           : !(s->min_p >= 0.0f && s->min_p <= 1.0f)             ? "min_p"
           : !(s->repetition_penalty >= 0.0f &&
               s->repetition_penalty <= 100.0f)                  ? "repetition_penalty"
           : (unsigned)s->order >= CAIRN_ORDER_COUNT             ? "order"
           : s->seed < 0                                         ? "seed"
                                                                 : NULL;
}

static cairn_status engine_check_sampling(base *b, const cairn_sampling *s) {
    const char *wrong = engine_sampling_fault(s);
    if (!wrong) return CAIRN_OK;
    return base_fail(b, CAIRN_INVALID_ARGUMENT,
                     "generate: sampling.%s is out of the range that its line in runtime.h gives",
                     wrong);
}

static cairn_status engine_read_options(base *b, const cairn_generate_options *given,
                                        engine_options *out) {
    cairn_generate_options from;
    cairn_status status;
    memset(&from, 0, sizeof from);
    memset(out, 0, sizeof *out);
    out->special = true;
    if (!given) return CAIRN_OK;
    if (given->struct_size < sizeof given->struct_size || given->struct_size > sizeof from)
        return base_fail(b, CAIRN_VERSION_MISMATCH,
                         "generate: options.struct_size is %u; set it to sizeof the struct",
                         given->struct_size);
    memcpy(&from, given, given->struct_size);
    if (from.max_tokens < 0)
        return base_fail(b, CAIRN_INVALID_ARGUMENT,
                         "generate: max_tokens = %d; 0 (no bound) or more is expected",
                         from.max_tokens);
    if (from.special < -1 || from.special > 1)
        return base_fail(b, CAIRN_INVALID_ARGUMENT,
                         "generate: special = %d; 0 (tokens) or -1 (plain text) is expected",
                         from.special);
    if (from.priority < -100 || from.priority > 100)
        return base_fail(b, CAIRN_INVALID_ARGUMENT,
                         "generate: priority = %d; -100 to 100 is expected", from.priority);
    if (from.first_token_ms < 0)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "generate: first_token_ms = %d; 0 (when it may be) or "
                         "more is expected", from.first_token_ms);
    out->max_tokens = from.max_tokens;
    out->priority = from.priority;
    out->first_token_ms = from.first_token_ms;
    out->special = from.special >= 0;
    out->keep_stop = from.keep_stop != 0;
    out->grammar = from.grammar;
    out->json_schema = from.json_schema;
    out->bias = from.logit_bias;
    out->bias_count = from.logit_bias_count;
    out->grammar_from = from.grammar_from;
    out->logprobs = from.logprobs;
    out->has_sampling = from.sampling != NULL;
    if (from.sampling) out->sampling = *from.sampling;
    if (out->sampling.top_p == 0.0f) out->sampling.top_p = 1.0f;
    if (out->sampling.repetition_penalty == 0.0f) out->sampling.repetition_penalty = 1.0f;
    if (from.sampling && (status = engine_check_sampling(b, &out->sampling))) return status;
    return engine_copy_stops(b, &from, out);
}

static void engine_reset_stats(cairn_session *s) {
    memset(&s->stats, 0, sizeof s->stats);
    s->stats.struct_size = sizeof s->stats;
    s->stats.prompt_tokens = s->appended;
    s->stats.prompt_seconds = s->append_seconds;
    s->stats.reused_tokens = s->reused;
    if (s->model->shape.latent.q_rank) s->stats.token_space = 1 + CAIRN_SPACE_SLOT;
    s->appended = s->reused = 0;
    s->append_seconds = s->pages_read = s->pages_held = 0.0;
}

/* The ids of text put at the end of the sequence, after bos where the model wants one first. */
static cairn_status engine_encode(cairn_session *s, const char *text, size_t bytes, bool special,
                                  tokenizer_ids *out) {
    const tokenizer *t = &s->model->tokenizer;
    tokenizer_span whole = {bytes, special};
    base *b = engine_base(s);
    if (bytes && s->count == 0 && t->adds_bos && t->bos >= 0 && !tokenizer_ids_add(b, out, t->bos))
        return base_no_memory(b, "a prompt", sizeof(int32_t));
    return tokenizer_encode_spans(b, t, text, &whole, 1, &s->cancel, out);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Moves the text that was handed out away; fills `piece` with what is certain now. */
static cairn_status engine_hand_out(cairn_session *s, cairn_piece *piece, cairn_status status) {
    size_t certain = s->text.size;
    if (!s->stats.stop) certain = engine_certain(s, s->text.data, s->text.size);
    piece->stop = s->stats.stop;
    piece->text = certain ? s->text.data : "";
    piece->bytes = certain;
    engine_cover(s, certain, piece);
    piece->logprobs = (const cairn_logprob *)(const void *)s->logprobs.data;
    if (s->row_logprobs)
        piece->logprob_ids = (int32_t)(s->logprobs.size / sizeof *piece->logprobs /
                                       (1 + (size_t)s->row_best));
    s->handed = certain;
    return status;
}

static void engine_drop_handed(cairn_session *s) {
    if (!s->handed) return;
    memmove(s->text.data, s->text.data + s->handed, s->text.size - s->handed + 1);
    s->text.size -= s->handed;
    s->dropped += (int64_t)s->handed;
    s->handed = 0;
}

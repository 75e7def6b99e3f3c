/* step: what sessions do in one forward. A session's next part is a chunk of its prompt, tokens that
 * run again, or a decode step with its drafts; parts of several sessions make one batch. */

/* What one session does in one forward. */
typedef struct engine_part {
    cairn_session *s;
    forward_kind kind;
    int rows;    /* tokens from s->cached on */
    int sampled; /* of the last rows the tokens after them are drawn */
    int drafts;  /* of the last rows */
    float *logits; /* eval: [rows, vocab] of all rows; of one part in a batch at most */
    const int32_t *tokens; /* out: [sampled] certain up to the first that is not the draft */
    int64_t pages_read;    /* out */
} engine_part;

/* ---- forward --------------------------------------------------------------------------------- */

static void engine_sample_params(const cairn_session *s, sample_params *out) {
    const cairn_sampling *from = s->options.has_sampling ? &s->options.sampling
                                                         : &engine_config(s)->sampling;
    out->temperature = from->temperature;
    out->top_k = from->top_k;
    out->top_p = from->top_p;
    out->min_p = from->min_p;
    out->top_p_first = from->order == CAIRN_ORDER_TOP_P_FIRST;
    out->repetition_penalty = from->repetition_penalty;
    out->seed = (uint64_t)from->seed;
}

/* Another source of page scores was loaded: bounds stored until now, which sessions may share, are
 * of the one before. */
static void engine_check_bounds(cairn_session *s) {
    cairn_model *m = s->model;
    if (m->bounds_source != engine_config(s)->selection.source) {
        m->bounds_source = engine_config(s)->selection.source;
        m->bounds_version++;
    }
    if (s->bounds_version != m->bounds_version) s->bounded = 0;
    s->bounds_version = m->bounds_version;
}

/* How the session's step rows attend now; NULL: all, in every layer. */
static const forward_rule *engine_rule(cairn_session *s) {
    const cairn_config *config = engine_config(s);
    forward_rule *rule = &s->rule;
    rule->select.page_size = s->model->kv.page_size;
    rule->select.topk = config->topk;
    rule->select.window = config->selection.window;
    rule->select.sinks = config->selection.sinks;
    rule->select.mean = config->selection.source == CAIRN_SOURCE_MEAN;
    rule->select.head = config->selection.strategy == CAIRN_STRATEGY_HEAD;
    memcpy(rule->layers, config->selection.layers, sizeof rule->layers);
    for (int l = 0; l < s->model->shape.layers; l++)
        if (forward_rule_selects(rule, l)) return rule;
    return NULL;
}

/* The token after position `at` as it is asked for; drafts follow up to `end`. */
static void engine_ask(const cairn_session *s, int at, int first, int end, sample_ask *ask) {
    engine_sample_params(s, &ask->params);
    ask->position = at + 1;
    ask->history = s->tokens;
    ask->history_count = at + 1;
    ask->expected = at + 1 < end ? s->tokens[at + 1] : -1;
    ask->chained = at > first;
}

/* A part's rows and its sequence at the end of a batch; *asks: how many there are so far. */
static void engine_put_part(engine_part *part, forward_batch *batch, int *asks) {
    cairn_session *s = part->s;
    engine_scratch *scratch = s->model->scratch;
    forward_sequence *sequence = &scratch->sequence[batch->sequence_count++];
    int end = s->cached + part->rows, first = end - part->sampled;
    engine_check_bounds(s);
    memset(sequence, 0, sizeof *sequence);
    sequence->table = s->row;
    sequence->first = batch->row_count;
    sequence->rows = part->rows;
    sequence->rule = engine_rule(s);
    sequence->bounded = s->bounded;
    sequence->stored = s->cached / s->model->kv.page_size;
    part->tokens = scratch->sampled + *asks;
    if (part->logits) batch->logits = part->logits;
    for (int at = s->cached; at < end; at++) {
        forward_row *row = &scratch->row[batch->row_count++];
        row->token = s->tokens[at];
        row->position = row->rope = at;
        row->kind = part->kind;
        row->logits = part->logits != NULL;
        row->sample = NULL;
        if (at < first) continue;
        engine_ask(s, at, first, end, &scratch->asks[*asks]);
        row->sample = &scratch->asks[(*asks)++];
    }
}

/* The parts as one forward. Of the sessions nothing but their pages and `bounded` changes. */
static cairn_status engine_forward(cairn_model *m, engine_part *parts, int count) {
    forward_batch batch;
    int asks = 0;
    cairn_status status;
    memset(&batch, 0, sizeof batch);
    batch.tables = &m->tables;
    batch.rows = m->scratch->row;
    batch.sequences = m->scratch->sequence;
    batch.sampled = m->scratch->sampled;
    for (int i = 0; i < count; i++) {
        const cairn_session *s = parts[i].s;
        state_extend(&m->states, s->row, s->cached, s->cached + parts[i].rows);
        engine_put_part(&parts[i], &batch, &asks);
    }
    if ((status = m->backend->forward(m, &m->kv, &batch))) return status;
    for (int i = 0; i < count; i++) {
        if (batch.sequences[i].rule) parts[i].s->bounded = batch.sequences[i].stored;
        parts[i].pages_read = batch.sequences[i].pages_read;
    }
    return CAIRN_OK;
}

static cairn_status engine_check_cancel(cairn_session *s) {
    if (!os_atomic_load(&s->cancel)) return CAIRN_OK;
    return base_fail(engine_base(s), CAIRN_CANCELLED, "cancelled at token %d", s->count);
}

/* ---- what comes next ------------------------------------------------------------------------- */

/* Tokens from `cached` on, none sampled, that bring it towards `end`: of those that run alike a
 * chunk at most; such as run as step stay inside a page, so that what they may select is complete
 * before them. */
static engine_part engine_plan_chunk(cairn_session *s, int end, int most) {
    int size = s->model->kv.page_size, inside = size - s->cached % size;
    engine_part part = {s, FORWARD_PROMPT, 0, 0, 0, NULL, NULL, 0};
    part.rows = engine_run_length(s, s->cached, end);
    if (!engine_is_prompt(s, s->cached)) {
        part.kind = FORWARD_STEP;
        if (most > inside) most = inside;
        if (most > ENGINE_EVAL_ROWS) most = ENGINE_EVAL_ROWS;
    }
    if (part.rows > most) part.rows = most;
    return part;
}

/* Tokens at the end of the sequence that run as prompt, `most` of them at most. */
static int engine_last_chunk(const cairn_session *s, int most) {
    int rows = 0;
    while (rows < most && rows < s->count && engine_is_prompt(s, s->count - 1 - rows)) rows++;
    return rows;
}

/* Tokens to draft now: no more than the generation can still use and the pages hold. */
static int engine_draft(cairn_session *s, int room) {
    const cairn_config *config = engine_config(s);
    int limit = config->draft_length < room - 1 ? config->draft_length : room - 1, held;
    const page_pool *free_pages = &s->model->kv.pool;
    if (config->drafter != CAIRN_DRAFTER_NGRAM || limit < 1) return 0;
    state_kv_make_room(&s->model->kv_of_rows, tables_need(&s->model->tables, s->row, s->cached,
                                                          s->count + limit));
    held = (engine_pages(s) + free_pages->free_count) * s->model->kv.page_size - s->count;
    if (limit > held) limit = held;
    if (!s->drafter.heads && drafter_open(engine_base(s), s->model->max_seq_len, &s->drafter)) {
        engine_base(s)->error[0] = '\0'; /* short of memory: plain decoding goes on */
        return 0;
    }
    return drafter_propose(&s->drafter, s->tokens, s->count, limit, s->model->backend->row_cost,
                           s->tokens + s->count);
}

/* What a session that wants up to `room` (>= 1) more tokens does next, in `most` rows at most. */
static engine_part engine_plan_step(cairn_session *s, int room, int most) {
    int chunk = engine_config(s)->prefill_chunk, left = s->count - s->cached;
    engine_part part = {s, FORWARD_STEP, 1, 1, 0, NULL, NULL, 0};
    if (most > chunk) most = chunk;
    if (engine_is_prompt(s, s->count - 1)) {
        int last = engine_last_chunk(s, most);
        if (left > last) return engine_plan_chunk(s, s->count - last, most);
        part.kind = FORWARD_PROMPT;
        part.rows = left;
        return part;
    }
    if (left > 1) return engine_plan_chunk(s, s->count - 1, most);
    part.drafts = engine_draft(s, room < most ? room : most);
    part.rows = part.sampled = 1 + part.drafts;
    return part;
}

/* ---- what it made ---------------------------------------------------------------------------- */

/* Keeps what a decode step sampled: drafts while they equal it, then the token after them. */
static void engine_verify(cairn_session *s, const int32_t *sampled, int drafts) {
    int accepted = 0;
    while (accepted < drafts && s->tokens[s->count + accepted] == sampled[accepted]) accepted++;
    if (drafts) drafter_learn(&s->drafter, drafts, accepted);
    memcpy(s->fresh, sampled, (size_t)(accepted + 1) * sizeof *sampled);
    s->fresh_count = accepted + 1;
    s->fresh_at = 0;
    s->cached = s->count + accepted;
    s->stats.proposed += drafts;
    s->stats.accepted += accepted;
}

static void engine_count_step(cairn_session *s, const engine_part *part, double seconds) {
    const model_shape *shape = &s->model->shape;
    s->stats.forwards++;
    s->pages_read += (double)part->pages_read / ((double)shape->kv_layers * (double)shape->kv_heads);
    s->pages_held += (double)model_pages_of(s->count + part->drafts, s->model->kv.page_size);
    s->stats.decode_seconds += seconds;
}

/* Takes over what a forward made of a part, which took so long. */
static void engine_take_part(const engine_part *part, double seconds) {
    cairn_session *s = part->s;
    if (part->kind == FORWARD_STEP && part->sampled) {
        engine_verify(s, part->tokens, part->drafts);
        engine_count_step(s, part, seconds);
        return;
    }
    if (part->kind == FORWARD_PROMPT && s->pure == s->cached) s->pure += part->rows;
    s->cached += part->rows;
    if (!part->sampled) return;
    engine_remember(s);
    s->fresh[0] = part->tokens[0];
    s->fresh_count = 1;
    s->fresh_at = 0;
}

/* Processes tokens from `cached` on, each as it runs, until at most `leave` are left. */
static cairn_status engine_process(cairn_session *s, int leave) {
    cairn_status status = CAIRN_OK;
    while (s->count - s->cached > leave && !(status = engine_check_cancel(s))) {
        engine_part part =
            engine_plan_chunk(s, s->count - leave, engine_config(s)->prefill_chunk);
        if ((status = engine_forward(s->model, &part, 1))) return status;
        engine_take_part(&part, 0.0);
    }
    if (!status) engine_remember(s);
    return status;
}

/* Forwards until there is a fresh token: one, but for a prompt that waits. At most `room` (>= 1). */
static cairn_status engine_step(cairn_session *s, int room) {
    cairn_status status = CAIRN_OK;
    reload_poll(s->model->runtime);
    engine_go_back(s, s->cached);
    s->fresh_count = s->fresh_at = 0;
    while (!s->fresh_count) {
        int64_t start = os_now_us();
        engine_part part;
        if ((status = engine_check_cancel(s)) || (status = engine_reserve(s, s->count)))
            return status;
        part = engine_plan_step(s, room, s->model->scratch->rows);
        if ((status = engine_reserve(s, s->count + part.drafts)) ||
            (status = engine_forward(s->model, &part, 1)))
            return status;
        engine_take_part(&part, engine_seconds_since(start));
        if (part.kind == FORWARD_PROMPT) s->append_seconds += engine_seconds_since(start);
    }
    return CAIRN_OK;
}

/* One forward for sessions of one model that have each something to do and no fresh token left:
 * prompts that wait beside decode steps; room[i] as in engine_step. A session's fresh tokens are
 * those that it would get alone. All or nothing. Its rows: shared out among the sessions in turn.
 * The seam that a scheduler of many sessions stands on. */
BASE_UNUSED static cairn_status engine_step_together(cairn_session *const *sessions,
                                                     const int *room, engine_part *parts, int count) {
    cairn_model *m = sessions[0]->model;
    int rows = m->scratch->rows;
    int64_t start = os_now_us();
    cairn_status status = CAIRN_OK;
    if (count > m->scratch->sequences)
        return base_fail(&m->runtime->base, CAIRN_INVALID_ARGUMENT, "%d sessions; max_batch is %d",
                         count, m->scratch->sequences);
    for (int i = 0; i < count && !status; i++) {
        cairn_session *s = sessions[i];
        engine_go_back(s, s->cached);
        s->fresh_count = s->fresh_at = 0;
        if ((status = engine_reserve(s, s->count))) break;
        parts[i] = engine_plan_step(s, room[i], (rows + count - i - 1) / (count - i));
        rows -= parts[i].rows;
        status = engine_reserve(s, s->count + parts[i].drafts);
    }
    if (status || (status = engine_forward(m, parts, count))) return status;
    for (int i = 0; i < count; i++) engine_take_part(&parts[i], engine_seconds_since(start));
    return CAIRN_OK;
}

/* ---- append ---------------------------------------------------------------------------------- */

/* Appends inside an entered call, all but the last token processed. The caller has reset `cancel`
 * where the call began: reading a text can be cancelled, too. */
static cairn_status engine_append(cairn_session *s, const int32_t *ids, int count) {
    int held, cached;
    int64_t start = os_now_us();
    cairn_status status;
    s->generating = false;
    engine_settle(s);
    held = s->count, cached = s->cached;
    if ((status = engine_add(s, ids, count))) return status;
    if ((status = engine_process(s, 1))) engine_take_back(s, held, cached);
    else s->append_seconds += engine_seconds_since(start);
    return status;
}

cairn_status cairn_append_ids(cairn_session *session, const int32_t *ids, int count) {
    cairn_status status = engine_enter(session, "append_ids");
    if (status) return status;
    os_atomic_store(&session->cancel, 0);
    if (count < 0 || (count && !ids))
        status = base_fail(engine_base(session), CAIRN_INVALID_ARGUMENT,
                           "append_ids: count = %d with %s", count, ids ? "ids" : "no ids");
    else
        status = engine_append(session, ids, count);
    return engine_leave(session, status);
}

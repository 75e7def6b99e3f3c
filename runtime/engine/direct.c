/* direct: cairn_forward, rows of the caller's through the model. What the sessions held at the rows'
 * places is kept aside until the forwards are done: then the rows are theirs, or all is as before.
 * Calls step, loop. */

/* A sequence of the call. */
typedef struct direct_sequence {
    const cairn_forward_sequence *given;
    int first, count, end; /* its first row; ids before the call; ids with its rows */
    int kept;              /* of its rows, by the session */
} direct_sequence;

typedef struct direct_call {
    cairn_model *m;
    cairn_forward_args a;
    direct_sequence *sequences;
    int32_t *tokens; /* [row_count] in place of those that the sessions hold there */
    uint8_t *kinds;  /* [row_count] likewise of `given` */
    int logits, hidden; /* handed out so far */
} direct_call;

/* ---- what is asked --------------------------------------------------------------------------- */

static cairn_status direct_refuse(const direct_call *c, const char *what, int at, const char *why) {
    return base_fail(&c->m->runtime->base, CAIRN_INVALID_ARGUMENT, "forward: %s %d: %s", what, at, why);
}

/* Bit j of row r of the sequence's mask. */
static bool direct_sees(const cairn_forward_sequence *q, int r, int j) {
    return q->mask[(size_t)r * (((size_t)q->rows + 7) / 8) + (size_t)(j / 8)] >> j % 8 & 1;
}

/* Of the sequence's rows up to r those that it sees before the first that it does not. */
static int direct_lead(const cairn_forward_sequence *q, int r) {
    int lead = 0;
    while (lead <= r && (!q->mask || direct_sees(q, r, lead))) lead++;
    return lead;
}

/* Whether the row is what the session would run itself, so that it may keep it. */
static bool direct_is_plain(const direct_call *c, const direct_sequence *d, int r) {
    const cairn_forward_sequence *q = d->given;
    const int row = d->first + r;
    const bool gated = c->a.gate && c->a.gate[row], adapts = engine_adapter(q->session) != NULL;
    return direct_lead(q, r) == r + 1 && (!c->a.rope || c->a.rope[row] == q->position + r) &&
           (c->a.gate ? gated == adapts : true);
}

static cairn_status direct_check_row(const direct_call *c, const direct_sequence *d, int r) {
    const cairn_forward_sequence *q = d->given;
    const cairn_adapter *adapter = q->session->adapter;
    const int row = d->first + r, id = c->a.ids[row];
    const bool gated = c->a.gate && c->a.gate[row];
    const bool masks = gated && adapter && adapter->parts[ADAPTER_MASK];
    if (gated && !adapter)
        return direct_refuse(c, "row", row, "a gate, and the session has no adapter");
    if (id >= c->m->shape.vocab || id < (masks ? -1 : 0))
        return direct_refuse(c, "row", row, "its id is not of the vocabulary");
    if (c->a.rope && (c->a.rope[row] < 0 || c->a.rope[row] >= c->m->max_seq_len))
        return direct_refuse(c, "row", row, "its rope position is outside the context");
    if (q->mask && !direct_sees(q, r, r))
        return direct_refuse(c, "row", row, "by its mask it does not see itself");
    return CAIRN_OK;
}

static cairn_status direct_check_mask(const direct_call *c, const direct_sequence *d, int i) {
    const cairn_forward_sequence *q = d->given;
    if (!q->mask) return CAIRN_OK;
    if (q->mask_bytes < (uint64_t)q->rows * (((uint64_t)q->rows + 7) / 8))
        return direct_refuse(c, "sequence", i, "its mask is shorter than its rows");
    if (q->prompt || q->rows > c->m->scratch->rows)
        return direct_refuse(c, "sequence", i, "rows with a mask run as steps, prefill_chunk at most");
    if (engine_takes_masks(c->m)) return CAIRN_OK;
    return base_fail(&c->m->runtime->base, CAIRN_UNSUPPORTED, "forward: sequence %d: masks want "
                     "a model of which every layer attends all", i);
}

static cairn_status direct_check_sequence(direct_call *c, int i, int first) {
    direct_sequence *d = &c->sequences[i];
    const cairn_forward_sequence *q = d->given = &c->a.sequences[i];
    cairn_session *s = q->session;
    cairn_status status;
    if (!s || s->model != c->m) return direct_refuse(c, "sequence", i, "its session is not this model's");
    for (int j = 0; j < i; j++)
        if (c->a.sequences[j].session == s)
            return direct_refuse(c, "sequence", i, "its session is another sequence's, too");
    if (s->busy)
        return base_fail(&c->m->runtime->base, CAIRN_BUSY,
                         "forward: sequence %d: a call on its session is running", i);
    if (q->position < 0 || q->position > engine_held(s))
        return direct_refuse(c, "sequence", i, "its position is behind what the session holds");
    if (q->rows < 1 || q->rows > c->a.row_count - first)
        return direct_refuse(c, "sequence", i, "its rows are not those of `ids`");
    d->first = first, d->end = q->position + q->rows;
    if (q->rows > engine_context(s) - q->position)
        return base_fail(&c->m->runtime->base, CAIRN_CONTEXT_FULL, "forward: sequence %d: %d rows from "
                         "%d on, the context is %d", i, (int)q->rows, (int)q->position,
                         engine_context(s));
    if (landmarks_with(s->adapter) && (q->mask || c->a.rope || c->a.gate))
        return base_fail(&c->m->runtime->base, CAIRN_UNSUPPORTED, "forward: sequence %d: its adapter has "
                         "landmarks: neither masks nor rope positions nor gates", i);
    if ((status = engine_check_selection(s)) || (status = direct_check_mask(c, d, i))) return status;
    for (int r = 0; r < q->rows && !status; r++) status = direct_check_row(c, d, r);
    return status;
}

/* Rows by number, ascending. */
static cairn_status direct_check_list(const direct_call *c, const char *name, const int32_t *rows,
                                      int count, const void *out) {
    if (count < 0 || (count && (!rows || !out)))
        return base_fail(&c->m->runtime->base, CAIRN_INVALID_ARGUMENT, "forward: %s_count = %d, with "
                         "%s_rows and %s, is expected", name, count, name, name);
    for (int i = 0; i < count; i++)
        if (rows[i] < 0 || rows[i] >= c->a.row_count || (i && rows[i] <= rows[i - 1]))
            return base_fail(&c->m->runtime->base, CAIRN_INVALID_ARGUMENT, "forward: %s_rows[%d] = %d; "
                             "ascending numbers below %d are expected", name, i, (int)rows[i],
                             (int)c->a.row_count);
    return CAIRN_OK;
}

static cairn_status direct_check(direct_call *c) {
    cairn_status status;
    int rows = 0;
    for (int i = 0; i < c->a.sequence_count; i++) {
        if ((status = direct_check_sequence(c, i, rows))) return status;
        rows = c->sequences[i].first + c->sequences[i].given->rows;
    }
    if (rows != c->a.row_count)
        return direct_refuse(c, "row", rows, "it is no sequence's");
    status = direct_check_list(c, "logits", c->a.logits_rows, c->a.logits_count, c->a.logits);
    return status ? status : direct_check_list(c, "hidden", c->a.hidden_rows, c->a.hidden_count,
                                               c->a.hidden);
}

/* ---- the sessions' rows ---------------------------------------------------------------------- */

/* The rows' tokens change places with what the session holds there. */
static void direct_swap(direct_call *c, const direct_sequence *d) {
    cairn_session *s = d->given->session;
    for (int r = 0; r < d->given->rows; r++) {
        const int at = d->given->position + r, row = d->first + r;
        const int32_t token = s->tokens[at];
        const bool given = engine_is_given(s, at);
        s->tokens[at] = c->tokens[row];
        engine_set_given(s, at, c->kinds[row]);
        c->tokens[row] = token;
        c->kinds[row] = given;
    }
}

/* The session holds the rows, none of them processed; or POOL_FULL. */
static cairn_status direct_take(direct_call *c, direct_sequence *d) {
    cairn_session *s = d->given->session;
    int position = d->given->position;
    bool prompt = position && engine_is_prompt(s, position - 1);
    engine_forget(s, position);
    direct_swap(c, d);
    s->count = d->end;
    if (position && engine_is_prompt(s, position - 1) != prompt) position--;
    engine_go_back(s, position);
    return engine_reserve(s, d->end);
}

/* What the call leaves of the session: `count` ids. */
static void direct_leave(cairn_session *s, int count) {
    s->count = count;
    engine_go_back(s, count);
    state_cut(&s->model->states, s->row, engine_slots(s, s->cached));
}

/* ---- forwards -------------------------------------------------------------------------------- */

/* What the sequence does next in `most` rows at most; 0 rows: it does not fit. */
static engine_part direct_plan(const direct_sequence *d, int most) {
    cairn_session *s = d->given->session;
    const int position = d->given->position;
    engine_part part = engine_part_of(s, FORWARD_STEP, d->end - s->cached);
    if (most < 1) part.rows = 0;
    else if (!d->given->mask || s->cached < position)
        return engine_plan_chunk(s, d->given->mask ? position : d->end, most);
    if (part.rows > most) part.rows = 0;
    return part;
}

/* Tokens that so many rows have room for, with their landmarks. */
static int direct_tokens_within(const cairn_session *s, int rows) {
    return engine_tokens_in(s, engine_slots(s, s->cached) + rows) - s->cached;
}

/* The next rows in their order, which outputs follow: of a sequence whose rows are not all in this
 * forward the next one waits. False: all are done. */
static bool direct_plan_parts(direct_call *c, const direct_sequence **of) {
    engine_scratch *x = c->m->scratch;
    int left = x->rows;
    for (int i = 0; i < c->a.sequence_count && x->part_count < x->sequences && left; i++) {
        const direct_sequence *d = &c->sequences[i];
        engine_part part;
        if (d->given->session->cached >= d->end) continue;
        part = direct_plan(d, direct_tokens_within(d->given->session, left));
        if (part.rows < 1) break;
        of[x->part_count] = d;
        x->parts[x->part_count++] = part;
        left -= engine_part_rows(&part);
        if (d->given->session->cached + part.rows < d->end) break;
    }
    return x->part_count > 0;
}

static bool direct_wants(const int32_t *rows, int count, int *done, int row) {
    if (*done == count || rows[*done] != row) return false;
    return ++*done, true;
}

/* What the caller says of the row of token `token`, and wants of it. */
static void direct_dress(direct_call *c, const direct_sequence *d, forward_row *row, int token) {
    const cairn_forward_sequence *q = d->given;
    const cairn_adapter *adapter = q->session->adapter;
    const int r = token - q->position, at = d->first + r;
    if (r < 0) return;
    if (direct_lead(q, r) <= r) {
        row->seen = q->position, row->own = r + 1;
        row->mask = q->mask + (size_t)r * (((size_t)q->rows + 7) / 8);
    }
    if (c->a.rope) row->rope = c->a.rope[at];
    if (c->a.gate) row->adapter = c->a.gate[at] ? adapter : NULL;
    if (c->a.ids[at] < 0) row->embedding = adapter->parts[ADAPTER_MASK];
    row->logits = direct_wants(c->a.logits_rows, c->a.logits_count, &c->logits, at);
    row->hidden = direct_wants(c->a.hidden_rows, c->a.hidden_count, &c->hidden, at);
}

/* The forward of the parts that were planned. */
static cairn_status direct_fly(direct_call *c, const direct_sequence **of) {
    cairn_model *m = c->m;
    engine_scratch *x = m->scratch;
    cairn_status status;
    int range;
    engine_take_off(m);
    x->batch.logits = c->a.logits + (size_t)c->logits * (size_t)m->shape.vocab;
    x->batch.hidden = c->a.hidden + (size_t)c->hidden * (size_t)m->shape.hidden;
    x->batch.drafts = false;
    if (!c->a.hidden_count) x->batch.hidden = NULL;
    for (int i = 0; i < x->part_count; i++) {
        const cairn_session *s = x->parts[i].s;
        for (int r = 0; r < x->parts[i].rows; r++) {
            const int slot = engine_slots(s, s->cached + r) - engine_slots(s, s->cached);
            direct_dress(c, of[i], &x->row[x->sequence[i].first + slot], s->cached + r);
        }
    }
    range = engine_open_range(m);
    status = m->backend->forward(m, &m->kv, &x->batch);
    TRACE_SHUT(&m->runtime->device, range, x->batch.row_count);
    if (!status) engine_touch_down(m);
    for (int i = 0; i < x->part_count && !status; i++) engine_take_part(&x->parts[i], 0.0);
    engine_give_up(m);
    return status;
}

static cairn_status direct_run(direct_call *c) {
    const direct_sequence **of;
    base *b = &c->m->runtime->base;
    const size_t most = (size_t)c->m->scratch->sequences;
    cairn_status status = CAIRN_OK;
    if (!(of = (const direct_sequence **)base_new(b, most, sizeof *of)))
        return base_no_memory(b, "forward", most * sizeof *of);
    while (!status && direct_plan_parts(c, of)) status = direct_fly(c, of);
    base_delete(b, of, most, sizeof *of);
    return status;
}

/* Inside an entered runtime, in memory that is there: all of it, or nothing. */
static cairn_status direct_forward(direct_call *c) {
    const cairn_forward_args *a = &c->a;
    cairn_status status = direct_check(c);
    int taken = 0;
    if (status) return status;
    for (int i = 0; i < a->sequence_count; i++) {
        direct_sequence *d = &c->sequences[i];
        for (int r = 0; r < d->given->rows; r++) {
            c->tokens[d->first + r] = a->ids[d->first + r] < 0 ? 0 : a->ids[d->first + r];
            c->kinds[d->first + r] = d->given->prompt != 0;
        }
        while (d->kept < d->given->rows && direct_is_plain(c, d, d->kept)) d->kept++;
        engine_withdraw(d->given->session);
        d->given->session->fresh_count = d->given->session->fresh_at = 0;
        d->count = d->given->session->count;
    }
    for (; taken < a->sequence_count && !status; taken++)
        status = direct_take(c, &c->sequences[taken]);
    if (!status) status = direct_run(c);
    for (int i = 0; i < taken; i++) {
        const direct_sequence *d = &c->sequences[i];
        if (status) engine_go_back(d->given->session, d->given->position), direct_swap(c, d);
        direct_leave(d->given->session, status ? d->count : d->given->position + d->kept);
        if (status) engine_settle(d->given->session);
    }
    return status;
}

cairn_status cairn_forward(cairn_model *model, const cairn_forward_args *args) {
    direct_call c;
    base *b;
    cairn_status status;
    if (!model) return CAIRN_INVALID_ARGUMENT;
    memset(&c, 0, sizeof c);
    c.m = model, b = &model->runtime->base;
    if ((status = handles_enter(model->runtime))) return status;
    loop_clear(model);
    if (!(status = args_take(b, "forward", &c.a, sizeof c.a, args)) &&
        (c.a.row_count < 0 || c.a.sequence_count < 0 || (c.a.row_count && !c.a.ids) ||
         (c.a.sequence_count && !c.a.sequences)))
        status = base_fail(b, CAIRN_INVALID_ARGUMENT, "forward: sequences [sequence_count = %d] and ids "
                           "[row_count = %d] are expected", (int)c.a.sequence_count,
                           (int)c.a.row_count);
    if (status) return handles_leave(model->runtime, status);
    c.sequences = (direct_sequence *)base_new(b, (size_t)c.a.sequence_count, sizeof *c.sequences);
    c.tokens = (int32_t *)base_new(b, (size_t)c.a.row_count, sizeof *c.tokens);
    c.kinds = (uint8_t *)base_new(b, (size_t)c.a.row_count, sizeof *c.kinds);
    if (c.sequences && c.tokens && c.kinds) status = direct_forward(&c);
    else status = base_no_memory(b, "forward", (size_t)c.a.row_count * 5);
    base_delete(b, c.kinds, (size_t)c.a.row_count, sizeof *c.kinds);
    base_delete(b, c.tokens, (size_t)c.a.row_count, sizeof *c.tokens);
    base_delete(b, c.sequences, (size_t)c.a.sequence_count, sizeof *c.sequences);
    return handles_leave(model->runtime, status);
}

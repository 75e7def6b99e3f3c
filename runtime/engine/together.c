/* together: cairn_generate_batch, a generation of many rows at once: a session a row, which the loop
 * serves like those of others. Calls loop. */

static cairn_status together_refuse(const cairn_model *m, int row, cairn_status status,
                                    const char *what, int value, int most) {
    return base_fail(&m->runtime->base, status, "generate_batch: row %d: %s = %d; up to %d is expected",
                     row, what, value, most);
}

static cairn_status together_check_row(cairn_model *m, const cairn_batch_args *a, int row) {
    base *b = &m->runtime->base;
    const char *wrong;
    int length = a->lengths[row], context = landmarks_context(m, landmarks_first(m));
    int pages = model_pages_of(landmarks_slots(m, landmarks_first(m), length < 1 ? 0 : length),
                               m->kv.page_size);
    if (length < 1)
        return base_fail(b, CAIRN_INVALID_ARGUMENT,
                         "generate_batch: row %d: its length is %d; 1 or more is expected", row,
                         length);
    if (length > a->stride || length > a->capacity)
        return together_refuse(m, row, CAIRN_INVALID_ARGUMENT, "length", length,
                               length > a->stride ? a->stride : a->capacity);
    if (length > context)
        return together_refuse(m, row, CAIRN_CONTEXT_FULL, "length", length, context);
    if (pages > m->kv.pool.pages)
        return together_refuse(m, row, CAIRN_POOL_FULL, "pages", pages, m->kv.pool.pages);
    if (a->limits && a->limits[row] < 0)
        return base_fail(b, CAIRN_INVALID_ARGUMENT,
                         "generate_batch: row %d: its limit is %d; 0 (none) or more is expected", row,
                         (int)a->limits[row]);
    wrong = a->sampling ? engine_sampling_fault(a->sampling + row) : NULL;
    if (wrong)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "generate_batch: row %d: sampling.%s is out of "
                         "range", row, wrong);
    for (int i = 0; i < length; i++) {
        int32_t id = a->ids[(size_t)row * (size_t)a->stride + (size_t)i];
        if (id < 0 || id >= m->shape.vocab)
            return together_refuse(m, row, CAIRN_INVALID_ARGUMENT, "an id", (int)id,
                                   m->shape.vocab - 1);
    }
    return CAIRN_OK;
}

static cairn_status together_check(cairn_model *m, const cairn_batch_args *given,
                                   cairn_batch_args *a) {
    base *b = &m->runtime->base;
    cairn_status status = handles_need(m->runtime, "generate_batch", given, "args");
    if (status) return status;
    if (given->struct_size != sizeof *given)
        return base_fail(b, CAIRN_VERSION_MISMATCH,
                         "generate_batch: args->struct_size is not sizeof the struct");
    *a = *given;
    if (a->rows < 0 || a->stride < 0 || a->capacity < 0 ||
        (a->rows && (!a->ids || !a->lengths || !a->output || !a->generated || !a->total)))
        return base_fail(b, CAIRN_INVALID_ARGUMENT,
                         "generate_batch: rows = %d, stride = %d, capacity = %d, with ids, lengths, "
                         "output, generated and total, are expected", (int)a->rows, (int)a->stride,
                         (int)a->capacity);
    for (int row = 0; row < a->rows && !status; row++) status = together_check_row(m, a, row);
    return status;
}

/* The generation of one row is asked for; none where the output has room for the prompt alone. */
static cairn_status together_ask(cairn_session *s, const cairn_batch_args *a, int row) {
    cairn_generate_options options;
    tokenizer_ids ids;
    int length = a->lengths[row], limit = a->limits ? a->limits[row] : 0;
    cairn_status status;
    memset(&options, 0, sizeof options);
    memset(&ids, 0, sizeof ids);
    options.struct_size = sizeof options;
    options.max_tokens = limit && limit < a->capacity - length ? limit : a->capacity - length;
    options.sampling = a->sampling ? a->sampling + row : NULL;
    options.stop_count = -1;
    status = engine_read_options(engine_base(s), &options, &s->options);
    for (int i = 0; i < length && !status; i++)
        if (!tokenizer_ids_add(engine_base(s), &ids, a->ids[(size_t)row * (size_t)a->stride +
                                                            (size_t)i]))
            status = base_no_memory(engine_base(s), "generate_batch", (size_t)length * 4);
    s->busy = true;
    if (!status && options.max_tokens) loop_ask(s, &ids, false, false);
    tokenizer_ids_free(engine_base(s), &ids);
    return status;
}

/* Until every row has ended. */
static cairn_status together_run(cairn_model *m, cairn_session **rows, int count) {
    cairn_status status = CAIRN_OK;
    for (int row = 0; row < count && !status; row++) {
        cairn_session *s = rows[row];
        loop_wait(s);
        if ((status = s->outcome) && s->status == status) engine_raise_noted(s);
    }
    handles_settle(m->runtime);
    return status;
}

/* What the row said: its session was cut when it ended, its ids stand. */
static void together_put(const cairn_session *s, const cairn_batch_args *a, int row) {
    int32_t *out = a->output + (size_t)row * (size_t)a->capacity;
    int length = a->lengths[row], count = s->stats.generated;
    memset(out, 0, (size_t)a->capacity * sizeof *out);
    memcpy(out, a->ids + (size_t)row * (size_t)a->stride, (size_t)length * sizeof *out);
    if (count) memcpy(out + length, s->tokens + length, (size_t)count * sizeof *out);
    a->generated[row] = count;
    a->total[row] = length + count;
}

/* Inside an entered runtime; rows [a->rows] are NULL before. */
static cairn_status together_generate(cairn_model *m, const cairn_batch_args *a,
                                      cairn_session **rows, engine_tally *tally) {
    cairn_status status = CAIRN_OK;
    for (int row = 0; row < a->rows && !status; row++) {
        if ((status = engine_open(m, &rows[row]))) break;
        engine_enlist(rows[row]);
        rows[row]->tally = tally;
        status = together_ask(rows[row], a, row);
    }
    if (!status) status = together_run(m, rows, a->rows);
    for (int row = 0; row < a->rows && !status; row++) together_put(rows[row], a, row);
    return status;
}

cairn_status cairn_generate_batch(cairn_model *model, cairn_batch_args *given) {
    cairn_batch_args a;
    cairn_session **rows;
    engine_tally tally = {0, -1};
    cairn_status status;
    base *b;
    if (!model) return CAIRN_INVALID_ARGUMENT;
    memset(&a, 0, sizeof a);
    b = &model->runtime->base;
    if ((status = handles_enter(model->runtime))) return status;
    if ((status = together_check(model, given, &a))) return handles_leave(model->runtime, status);
    rows = (cairn_session **)base_new(b, (size_t)a.rows, sizeof *rows);
    if (!rows) status = base_no_memory(b, "generate_batch", (size_t)a.rows * sizeof *rows);
    else status = together_generate(model, &a, rows, &tally);
    if (!status) given->steps = tally.forwards;
    for (int row = a.rows - 1; row > 0 && rows; row--)
        if (rows[row]) engine_drop(rows[row]);
    if (!rows || !a.rows || !rows[0]) {
        base_delete(b, rows, (size_t)a.rows, sizeof *rows);
        return handles_leave(model->runtime, status);
    }
    {
        cairn_session *first = rows[0]; /* what was closed meanwhile goes with it */
        base_delete(b, rows, (size_t)a.rows, sizeof *rows);
        first->closing = true;
        return engine_leave(first, status);
    }
}

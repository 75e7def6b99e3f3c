/* forward_batch: rules compared, batches checked. See forward.h. */

/* Whether step rows choose pages in this layer; no rule: they attend all. */
static bool forward_rule_selects(const forward_rule *rule, int layer) {
    return rule && rule->layers[layer / 64] >> (layer % 64) & 1;
}

static bool forward_rule_of(const cairn_config *config, int page_size, int layers,
                            forward_rule *rule) {
    const cairn_selection *from = &config->selection;
    memset(rule, 0, sizeof *rule);
    rule->select.page_size = page_size;
    rule->select.topk = config->topk;
    rule->select.window = from->window;
    rule->select.sinks = from->sinks;
    rule->select.mean = from->source == CAIRN_SOURCE_MEAN;
    rule->select.landmark = from->source == CAIRN_SOURCE_LANDMARK;
    rule->select.head = from->strategy == CAIRN_STRATEGY_HEAD;
    rule->select.soft = from->strategy == CAIRN_STRATEGY_SOFTMAX_HEAD;
    rule->two_level = from->form == CAIRN_FORM_TWO_LEVEL;
    rule->apart = !from->fused;
    rule->prompts = from->prompts;
    memcpy(rule->layers, from->layers, sizeof rule->layers);
    for (int l = 0; l < layers; l++)
        if (forward_rule_selects(rule, l)) return true;
    return false;
}

/* Either may be NULL. */
static bool forward_rule_same(const forward_rule *a, const forward_rule *b) {
    const select_rule *x, *y;
    if (a == b || !a || !b) return a == b;
    x = &a->select, y = &b->select;
    return x->page_size == y->page_size && x->topk == y->topk && x->window == y->window &&
           x->sinks == y->sinks && x->mean == y->mean && x->head == y->head &&
           x->landmark == y->landmark && x->soft == y->soft && a->two_level == b->two_level &&
           a->apart == b->apart && a->prompts == b->prompts &&
           !memcmp(a->layers, b->layers, sizeof a->layers);
}

static cairn_status forward_check_row(base *b, const cairn_model *m, const forward_row *row,
                                      int r, int position) {
    if (row->own && (row->seen < !row->mask || row->seen + row->own > position + 1))
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "row %d: it drafts after %d tokens, with %d rows",
                         r, row->seen, row->own);
    if (row->token < 0 || row->token >= m->shape.vocab)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "row %d: token %d; the vocabulary has %d", r,
                         (int)row->token, m->shape.vocab);
    if (row->position != position)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "row %d: position %d behind %d", r,
                         (int)row->position, position - 1);
    if (row->rope < 0 || row->rope >= m->max_seq_len)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "row %d: rope position %d of %d", r,
                         (int)row->rope, m->max_seq_len);
    return CAIRN_OK;
}

/* The same of what layers with a window keep. */
static cairn_status forward_check_windows(base *b, const cairn_model *m, int row, int last) {
    cairn_status status = CAIRN_OK;
    for (int g = 0; g < m->kv.groups.count && !status; g++) {
        const page_tables *t = &m->windows[g].tables;
        if (row >= t->requests || last / m->kv.page_size >= t->pages[row])
            return base_fail(b, CAIRN_INVALID_ARGUMENT,
                             "row %d: position %d is past its window's pages", row, last);
        status = tables_check_new(b, t, row);
    }
    return status;
}

/* The table's rows are checked where they are new: their pages never change unseen. */
static cairn_status forward_check_sequence(base *b, const cairn_model *m,
                                           const forward_batch *batch, int i, int *rows) {
    const forward_sequence *s = &batch->sequences[i];
    const page_tables *t = batch->tables;
    int first = s->first, last, size = m->kv.page_size;
    cairn_status status = CAIRN_OK;
    if (first != *rows || s->rows < 1 || s->rows > batch->row_count - first)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "sequence %d: rows %d to %d of %d", i, first,
                         first + s->rows - 1, batch->row_count);
    if (s->table < 0 || s->table >= t->requests)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "sequence %d: row %d of %d page tables", i,
                         s->table, t->requests);
    *rows = first + s->rows;
    last = batch->rows[first].position + s->rows - 1;
    if (batch->rows[first].position < 0 || last >= m->max_seq_len ||
        last / size >= t->pages[s->table])
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "sequence %d: position %d is past its %d pages",
                         i, last, (int)t->pages[s->table]);
    if (s->bounded < 0 || s->bounded > s->stored || s->stored > batch->rows[first].position / size)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "sequence %d: bounds of pages %d to %d", i,
                         s->bounded, s->stored);
    for (int r = 0; r < s->rows && !status; r++)
        status = forward_check_row(b, m, &batch->rows[first + r], first + r,
                                   batch->rows[first].position + r);
    if (!status) status = forward_check_windows(b, m, s->table, last);
    return status ? status : tables_check_new(b, t, s->table);
}

/* That a batch is what forward.h says; every backend asks first. */
static cairn_status forward_check(base *b, const cairn_model *model, int max_rows,
                                  const forward_batch *batch) {
    int rows = 0, most = model->runtime->config.max_batch;
    cairn_status status = CAIRN_OK;
    if (batch->row_count < 0 || batch->row_count > max_rows)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "%d rows; this model was opened for %d",
                         batch->row_count, max_rows);
    if (batch->sequence_count < 0 || batch->sequence_count > most)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "%d sequences; max_batch is %d",
                         batch->sequence_count, most);
    for (int i = 0; i < batch->sequence_count && !status; i++)
        status = forward_check_sequence(b, model, batch, i, &rows);
    if (!status && rows != batch->row_count)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "%d rows, of sequences %d", batch->row_count,
                         rows);
    return status;
}

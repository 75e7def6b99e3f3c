/* forward_cuda_run: one forward on the GPU: its batch in parts, each served by a lane. See cuda.c. */

/* ---- parts of a batch ------------------------------------------------------------------------ */

/* Rows of sequence i that are not served yet and of one kind. */
static int cuda_run_length(const forward_cuda_state *f, const forward_batch *batch, int i) {
    const forward_sequence *s = &batch->sequences[i];
    const forward_row *rows = batch->rows + s->first, *first = &rows[f->done[i]];
    const bool splits = cuda_splits(batch, i);
    int end = f->done[i];
    while (end < s->rows && rows[end].kind == first->kind &&
           (!splits || !rows[end].own == !first->own)) end++;
    return end - f->done[i];
}

/* The rule of its next rows; by latents no pages are chosen. */
static const forward_rule *cuda_next_rule(const forward_cuda_state *f, const forward_batch *batch, int i) {
    const forward_sequence *s = &batch->sequences[i];
    if (f->latents.heads) return NULL;
    return cuda_splits(batch, i) && batch->rows[s->first + f->done[i]].own ? NULL : s->rule;
}

/* Whether the next rows of sequence i are of this kind. */
static bool cuda_waits(const forward_cuda_state *f, const forward_batch *batch, int i,
                       forward_kind kind) {
    const forward_sequence *s = &batch->sequences[i];
    return f->done[i] < s->rows && batch->rows[s->first + f->done[i]].kind == kind;
}

/* The rule by which rows of a prompt attend; NULL: all that is before them. */
static const forward_rule *cuda_prompt_rule(const forward_sequence *s) {
    return s->rule && (s->landmarks || s->rule->prompts) ? s->rule : NULL;
}

/* Whether the next rows of sequence i are of a prompt that may share a part with others': they attend all
 * before them, by the plain kernels. */
static bool cuda_may_join(const forward_cuda_state *f, const forward_batch *batch, int i) {
    const forward_sequence *s = &batch->sequences[i];
    const forward_row *rows = &batch->rows[s->first + f->done[i]];
    int left;
    if (!cuda_waits(f, batch, i, FORWARD_PROMPT) || cuda_prompt_rule(s) || f->latents.heads ||
        f->extras & (STEP_EXTRA_CONV | STEP_EXTRA_EXPERTS))
        return false;
    left = cuda_run_length(f, batch, i);
    while (left && !rows[left - 1].adapter && !rows[left - 1].own) left--;
    return left == 0;
}

/* Whether those of sequence `first` have others to share with, and kernels. */
static bool cuda_joins(forward_cuda_state *f, forward_batch *batch, int first) {
    int i = first + 1;
    if (!cuda_may_join(f, batch, first)) return false;
    while (i < batch->sequence_count && !cuda_may_join(f, batch, i)) i++;
    return i < batch->sequence_count && cuda_has_joined(f, batch);
}

/* Items of attention in one layer of the flow kernel, at most: where rows select pages each is a
 * group of its own, also in layers that attend all. */
static int cuda_flow_items(const forward_cuda_state *f, const step_part *part) {
    int groups = 0, runs = 0;
    for (int r = 0, run; r < part->rows; r += run) {
        int more;
        for (run = 1; r + run < part->rows && part->sequences[r + run] == part->sequences[r];) run++;
        more = cuda_most_runs(f, part->rule, cuda_part_row(part, r + run - 1)->position);
        runs = more > runs ? more : runs;
        groups += part->rule ? run : (run + f->group_rows - 1) / f->group_rows;
    }
    return groups * runs * f->shape->kv_heads;
}

/* Whether some row has an adapter, or drafts. */
static bool cuda_has_others(const step_part *part) {
    int r = 0;
    while (r < part->rows && !cuda_part_row(part, r)->adapter && !cuda_part_row(part, r)->own) r++;
    return r < part->rows;
}

/* The flow serves few plain rows whose logits are all wanted, or such as draft, while its blocks need one
 * round of attention: with more the stage kernels, which have as many blocks as they need, are faster (8
 * rows at 6K tokens: 634 us against 589, at 2K 522 against 534). Both give the same bits. Its
 * runs are single chunks. Which kernel; STEP_KERNELS: none. */
static step_kernel cuda_flow_of(forward_cuda_state *f, const step_part *part) {
    const bool others = cuda_has_others(part);
    const step_kernel kernel = others       ? STEP_K_DRAFT_FLOW
                               : part->rule ? STEP_K_SPARSE_FLOW : STEP_K_FLOW;
    for (int r = 0; r < part->rows && r < STEP_FLOW_ROWS; r++)
        if (cuda_row_run(f, NULL, cuda_part_row(part, r)->position) > 1) return STEP_KERNELS;
    if (part->rows > STEP_FLOW_ROWS || part->form.rule || part->watched || !part->logit_count ||
        cuda_flow_items(f, part) > f->blocks - f->narrow ||
        (others ? part->rule || !cuda_wide_adapter(f, part)
                : part->logit_count < part->rows))
        return STEP_KERNELS;
    return cuda_has_flow(f, (int)kernel) ? kernel : STEP_KERNELS;
}

/* Whether a row of sequence i that waits attends less than everything before it. */
static bool cuda_is_sparse(const forward_cuda_state *f, const forward_batch *batch, int i) {
    const forward_sequence *s = &batch->sequences[i];
    const forward_rule *rule = cuda_next_rule(f, batch, i);
    int last = s->first + f->done[i] + cuda_run_length(f, batch, i) - 1;
    return rule && select_candidates(&rule->select, batch->rows[last].position) > rule->select.topk;
}

/* ---- the forward that was begun -------------------------------------------------------------- */

/* The step rows that wait, of all sequences that share the rule of sequence `first`, in parts that
 * the stage kernels hold. Where none attends less than all, the kernels of whole attention serve
 * them, to the same bits. */
static void cuda_serve_steps(forward_cuda_state *f) {
    cuda_flight *x = &f->flight;
    forward_batch *batch = x->batch;
    const forward_rule *rule = cuda_next_rule(f, batch, x->first);
    const bool landmarks = batch->sequences[x->first].landmarks, formed = cuda_has_forms(rule, landmarks);
    const cuda_form form = {formed ? rule : NULL, landmarks, true};
    x->part.rule = formed ? rule : NULL;
    x->part.form = form;
    x->end = batch->sequence_count;
    memset(f->stepped, 0, (size_t)f->table_rows * sizeof *f->stepped);
    for (int i = x->first; i < x->end; i++)
        if (cuda_waits(f, batch, i, FORWARD_STEP) &&
            batch->sequences[i].landmarks == landmarks &&
            forward_rule_same(cuda_next_rule(f, batch, i), rule)) {
            f->stepped[i] = cuda_run_length(f, batch, i);
            if (cuda_is_sparse(f, batch, i)) x->part.rule = rule;
            x->part.watched |= batch->sequences[i].chosen && !formed && f->forms.watched;
        }
    x->part.watched &= x->part.rule != NULL;
    x->left = f->stepped[x->first];
    cuda_set_selection(f, &f->flow.params, x->part.rule);
    cuda_set_selection(f, &f->stage.params, x->part.rule);
}

/* The next run of the prompt of sequence `first`, and of all that may share with it, in parts of so few
 * wanted rows as there is room for logits. */
static void cuda_serve_prompts(forward_cuda_state *f) {
    cuda_flight *x = &f->flight;
    const forward_sequence *s = &x->batch->sequences[x->first];
    const cuda_form form = {cuda_prompt_rule(s), s->landmarks, false};
    x->part.form = form;
    x->part.joined = cuda_joins(f, x->batch, x->first);
    x->end = x->part.joined ? x->batch->sequence_count : x->first + 1;
    x->left = cuda_run_length(f, x->batch, x->first);
}

/* The rows that come next: those of one kind, sequence by sequence, then those of the other. False:
 * all are served. */
static bool cuda_serve(forward_cuda_state *f) {
    cuda_flight *x = &f->flight;
    for (int round = 0; round < 3 && !x->serves; round++) {
        while (x->first < x->batch->sequence_count && !cuda_waits(f, x->batch, x->first, x->kind)) x->first++;
        x->serves = x->first < x->batch->sequence_count;
        if (x->serves) break;
        x->kind = x->kind == FORWARD_STEP ? FORWARD_PROMPT : FORWARD_STEP;
        x->first = 0;
    }
    if (!x->serves) return false;
    memset(&x->part, 0, sizeof x->part);
    x->part.batch = x->batch;
    x->part.at = f->part_rows, x->part.sequences = f->part_sequences, x->part.slots = f->slots;
    x->at = x->first;
    x->begun = false;
    if (x->kind == FORWARD_STEP) cuda_serve_steps(f);
    else cuda_serve_prompts(f);
    return true;
}

/* Puts the next part together. */
static void cuda_fill_part(forward_cuda_state *f) {
    cuda_flight *x = &f->flight;
    const bool steps = x->kind == FORWARD_STEP;
    cuda_empty_part(&x->part);
    x->layer = 0;
    x->launched = x->marked = false;
    while (x->at < x->end) {
        int at;
        if (!x->left) {
            if (++x->at < x->end)
                x->left = steps ? f->stepped[x->at]
                          : cuda_may_join(f, x->batch, x->at) ? cuda_run_length(f, x->batch, x->at)
                                                              : 0;
            continue;
        }
        at = x->batch->sequences[x->at].first + f->done[x->at];
        if ((steps && !cuda_has_room(f, &x->part, &x->batch->rows[at])) ||
            !cuda_add_row(f, &x->part, at, x->at))
            return;
        f->done[x->at]++;
        x->left--;
    }
}

/* Rows of steps; first, all: of those that the forward has, the first part or the only one. */
static cairn_status cuda_launch_steps(forward_cuda_state *f, const step_part *part, bool first, bool all) {
    const step_kernel flow = all ? cuda_flow_of(f, part) : STEP_KERNELS;
    cairn_status status = CAIRN_OK;
    if (flow < STEP_KERNELS) return cuda_run_flow(f, part, flow);
    if (first && cuda_counts(f, part)) status = cuda_forget_pages(f);
    return status ? status : cuda_run_stages(f, part);
}

/* Launches the part's rows; of a prompt's up to `layers` layers. */
static cairn_status cuda_launch_part(forward_cuda_state *f, int layers) {
    cuda_flight *x = &f->flight;
    const bool steps = x->kind == FORWARD_STEP, all = !x->begun && x->at == x->end;
    cairn_status status;
    x->taken = cuda_take_next(f);
    status = x->taken ? CAIRN_OK
             : steps  ? cuda_launch_steps(f, &x->part, !x->begun, all)
                      : cuda_run_prompt(f, &x->part, layers);
    if (steps) x->launched = true;
    return status || !x->launched ? status : cuda_begin_results(f, &x->part);
}

/* Behind the mark that says that the part has run. */
static void cuda_go_further(forward_cuda_state *f) {
    if (f->flight.launched && f->flight.batch->continues) cuda_launch_next(f);
}

/* What the part left. [blocks] until the device is done with it */
static cairn_status cuda_land_part(forward_cuda_state *f) {
    cuda_flight *x = &f->flight;
    cairn_status status = cuda_download_hidden(f, &x->part);
    if (!status) status = cuda_results(f, &x->part);
    if (!status && x->taken) x->took_us = x->batch->took_us = cuda_took_us(f);
    x->begun = true;
    x->serves = x->at < x->end;
    if (!status && !x->serves && x->kind == FORWARD_STEP) status = cuda_take_pages(f, &x->part);
    if (!x->serves) x->first++;
    x->part.rows = 0;
    return status;
}

/* Where each row's results go. */
static void cuda_index_results(forward_cuda_state *f, const forward_batch *batch) {
    int asks = 0, logits = 0, hidden = 0;
    for (int r = 0; r < batch->row_count; r++) {
        f->ask_index[r] = asks;
        f->logit_index[r] = logits;
        f->hidden_index[r] = hidden;
        hidden += batch->rows[r].hidden;
        asks += batch->rows[r].sample != NULL;
        logits += batch->rows[r].logits;
    }
}

static cairn_status forward_cuda_begin(cairn_model *model, kv_cache *kv, forward_batch *batch) {
    forward_cuda_state *f = (forward_cuda_state *)model->state;
    cairn_status status = forward_check(f->dev->base, model, f->max_rows, batch);
    (void)kv; /* its addresses are in the parameters */
    cuda_clear_flight(f);
    if (status || !batch->row_count) return status;
    if ((status = cuda_place_tables(f, batch, model)) ||
        (status = cuda_store_bounds(f, batch, false)) ||
        (status = cuda_store_bounds(f, batch, true)))
        return status;
    cuda_index_results(f, batch);
    batch->prepared = false;
    batch->took_us = 0;
    f->ahead_count = 0;
    if (batch->drafts) f->drafts_at = batch->hidden;
    memset(f->done, 0, (size_t)f->table_rows * sizeof *f->done);
    f->flight.batch = batch;
    f->flight.stream = f->dev->stream;
    return CAIRN_OK;
}

/* Launches up to `layers` layers of what comes next, all parts of a step. *done: nothing is left. */
static cairn_status cuda_go_on(forward_cuda_state *f, int layers, bool *done) {
    cuda_flight *x = &f->flight;
    *done = false;
    if (!x->part.rows) {
        if (!x->serves && !cuda_serve(f)) {
            *done = true;
            x->batch = NULL;
            return CAIRN_OK;
        }
        cuda_fill_part(f);
    }
    return cuda_launch_part(f, layers);
}

static cairn_status forward_cuda(cairn_model *model, kv_cache *kv, forward_batch *batch) {
    forward_cuda_state *f = (forward_cuda_state *)model->state;
    bool done = batch->row_count == 0;
    cairn_status status = forward_cuda_begin(model, kv, batch);
    while (!status && !done) {
        if ((status = cuda_go_on(f, f->shape->layers, &done)) || done) return status;
        cuda_go_further(f);
        status = cuda_land_part(f);
    }
    return status;
}

/* What the device has come past is taken; false: it has not yet. */
static bool cuda_has_come(forward_cuda_state *f, cairn_status *status) {
    cuda_flight *x = &f->flight;
    if (!x->marked) return true;
    if (!device_has_passed(f->dev, x->mark)) return false;
    if (x->took_us >= 0) x->took_us += device_between(f->dev, x->start, x->mark);
    if (x->launched) *status = cuda_land_part(f);
    x->ahead = 0;
    x->started = x->marked = false;
    return true;
}

/* Between what is launched now and before the device may have had nothing to do. */
static void cuda_note_gap(cuda_flight *x, int64_t now_us) {
    if (x->started && !x->marked && now_us - x->looked_us > STEP_POLL_US) x->took_us = -1;
}

static cairn_status cuda_poll(forward_cuda_state *f, int layers, int64_t until_us, bool *done) {
    cuda_flight *x = &f->flight;
    cairn_status status = CAIRN_OK;
    do {
        if (!cuda_has_come(f, &status)) return CAIRN_OK;
        if (!status && !x->started) status = device_mark(f->dev, &x->start), x->started = true;
        if (!status) status = cuda_go_on(f, STEP_POLL_LAYERS, done);
        if (status || *done) return status;
        x->ahead += STEP_POLL_LAYERS;
        x->marked = x->launched || x->ahead >= layers;
        if (x->marked && !(status = device_mark(f->dev, &x->mark))) cuda_go_further(f);
    } while (!status && os_now_us() < until_us);
    return status;
}

/* On the stream on which it was begun. */
static cairn_status forward_cuda_poll(cairn_model *model, int layers, bool *done, int64_t *took_us) {
    forward_cuda_state *f = (forward_cuda_state *)model->state;
    const CUstream stream = f->dev->stream;
    const int64_t now = os_now_us();
    cairn_status status;
    *done = !f->flight.batch;
    cuda_note_gap(&f->flight, now);
    f->dev->stream = f->flight.stream;
    status = *done ? CAIRN_OK : cuda_poll(f, layers, now + STEP_POLL_US, done);
    f->dev->stream = stream;
    f->flight.looked_us = os_now_us();
    *took_us = !*done && !f->flight.marked ? -1 : f->flight.took_us > 0 ? f->flight.took_us : 0;
    return status;
}

/* Waits for both flow kernels, those of few rows, and for those that come when they are first of use where they
 * were asked for. [blocks] */
static cairn_status forward_cuda_wait(cairn_model *model) {
    forward_cuda_state *f = (forward_cuda_state *)model->state;
    cairn_status status = CAIRN_OK;
    for (int kernel = STEP_K_FLOW; kernel <= STEP_K_SPARSE_FLOW && !status; kernel++) {
        if (kernel == STEP_K_FLOW ? !f->flow_chunks : !f->sparse_flow) break;
        status = cuda_wait_flow(f, kernel);
    }
    if (!status) cuda_has_later(f, true), cuda_has_bands(f, false, true), cuda_has_bands(f, true, true);
    for (int which = 0; which < STEP_SINGLES && !status; which++) cuda_has_single(f, which, true);
    if (!status && f->joined_asked && f->joined_state == STEP_FLOW_WAITS)
        status = cuda_get_joined(f, true);
    return status;
}

static const model_backend forward_cuda_backend = {
    forward_cuda_begin_open, forward_cuda_open, forward_cuda_close, forward_cuda,
    0.05f /* of a row that rides along: the flow hardly depends on it */, STEP_FLOW_ROWS,
    forward_cuda_prepare, true /* packed weights */,
    forward_cuda_wait, forward_cuda_estimate, forward_cuda_begin, NULL, forward_cuda_poll,
    forward_cuda_take_adapter, forward_cuda_leave_adapter, forward_cuda_draft, forward_cuda_watch,
    forward_cuda_adapter_bytes
};

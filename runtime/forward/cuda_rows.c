/* forward_cuda_rows: the rows of a part of a batch, as the kernels of a lane are given them, and the page
 * tables that they need. See cuda.c. */

/* Whether kernels count the pages that a part reads. */
static bool cuda_counts(const forward_cuda_state *f, const step_part *part) {
    return part->rule || (f->latents.heads && part->form.steps);
}

/* The slot of a host row: the one it is in, or the one that was not used for longest. */
static int cuda_find_slot(const forward_cuda_state *f, int row) {
    int oldest = 0;
    for (int i = 0; i < f->table_rows; i++) {
        if (f->slot_rows[i] == row) return i;
        if (f->slot_used[i] < f->slot_used[oldest]) oldest = i;
    }
    return oldest;
}

/* Pages [first, end) of a slot change, of the group that has all or one with a window, whose first pages go
 * when no row sees them any more. */
static void cuda_note_pages(forward_cuda_state *f, int slot, int first, int end, bool all) {
    for (int i = 0; i < f->next.count && f->next.there; i++) {
        const int page = f->next.rows[i].position / f->page_size;
        if (slot == f->next.slots[i] && first <= page && (all || end > page)) cuda_forget_next(f);
    }
}

/* What of a row the device does not have yet, of the group that `to` is the table of. */
static cairn_status cuda_upload_group(forward_cuda_state *f, page_tables *t, int row, int slot,
                                      bool whole, int32_t *to) {
    int first = t->first_changed[row], end = t->last_changed[row] + 1;
    cairn_status status = CAIRN_OK;
    if (whole) first = 0, end = t->pages[row];
    if (end > t->pages[row]) end = t->pages[row];
    if (first < end) cuda_note_pages(f, slot, first, end, to == f->table);
    if (first < end)
        status = device_upload(f->dev, to + (size_t)slot * (size_t)f->max_pages + first,
                               tables_row(t, row) + first, (size_t)(end - first) * 4);
    if (!status) tables_settle_row(t, row);
    return status;
}

static cairn_status cuda_upload_table(forward_cuda_state *f, page_tables *t, window_state *windows,
                                      int row, int slot) {
    const bool whole = f->slot_rows[slot] != row;
    cairn_status status = cuda_upload_group(f, t, row, slot, whole, f->table);
    for (int g = 0; g < f->groups->count && !status; g++)
        status = cuda_upload_group(f, &windows[g].tables, row, slot, whole,
                                   f->table + (size_t)f->table_words * (size_t)(1 + g));
    f->slot_rows[slot] = status ? -1 : row;
    return status;
}

/* Where the convolutions' inputs of a row lie, as far as the device does not have it yet. */
static cairn_status cuda_upload_ring(forward_cuda_state *f, const ring_states *rings, int row,
                                     int slot) {
    float *at = row < rings->count ? rings->rows[row].rows : NULL;
    if (!f->rings || f->slot_rings[slot] == at) return CAIRN_OK;
    f->slot_rings[slot] = at;
    return device_upload(f->dev, f->rings + slot, &f->slot_rings[slot], sizeof at);
}

/* Every sequence's row in a slot of its own, up to date. */
static cairn_status cuda_place_tables(forward_cuda_state *f, const forward_batch *batch,
                                      cairn_model *model) {
    cairn_status status = CAIRN_OK;
    f->forwards++;
    for (int pass = 0; pass < 2; pass++) /* those that have a slot first, so that they keep it */
        for (int i = 0; i < batch->sequence_count && !status; i++) {
            int row = batch->sequences[i].table, slot = cuda_find_slot(f, row);
            if ((f->slot_rows[slot] == row) != (pass == 0)) continue;
            f->slots[i] = slot;
            f->slot_used[slot] = f->forwards;
            status = cuda_upload_table(f, batch->tables, model->windows, row, slot);
            if (!status) status = cuda_upload_ring(f, &model->rings, row, slot);
        }
    return status;
}

/* The chunks that a row's attention is cut into, at most. rule: NULL for whole attention. */
static int cuda_row_chunks(const forward_cuda_state *f, const forward_rule *rule, int position) {
    int candidates = rule ? select_candidates(&rule->select, position) : 0;
    int pages = layout_most_listed(position, candidates, rule ? rule->select.topk : 0,
                                   rule ? rule->select.sinks : 0, f->page_size);
    return layout_chunks(pages, f->page_size, f->shape->head_dim);
}

/* Chunks of a run of these; runs. */
static int cuda_row_run(const forward_cuda_state *f, const forward_rule *rule, int position) {
    return layout_run(cuda_row_chunks(f, rule, position), f->shape->kv_heads);
}
static int cuda_row_runs(const forward_cuda_state *f, const forward_rule *rule, int position) {
    int run = cuda_row_run(f, rule, position);
    int chunks = rule ? cuda_row_chunks(f, rule, position) : position / f->chunk + 1;
    return (chunks + run - 1) / run;
}

/* Whether every layer of the model that attends selects. */
static bool cuda_selects_all(const forward_cuda_state *f, const forward_rule *rule) {
    int l = 0;
    while (l < f->shape->layers &&
           (f->plan->layers[l].mixer != PLAN_ATTENTION || cuda_selects(f, rule, l))) l++;
    return l == f->shape->layers;
}

/* The runs that a row has in any layer, at most. rule: NULL for whole attention. */
static int cuda_most_runs(const forward_cuda_state *f, const forward_rule *rule, int position) {
    int whole = cuda_row_runs(f, NULL, position);
    int listed = rule ? cuda_row_runs(f, rule, position) : 0;
    if (rule && cuda_selects_all(f, rule)) return listed;
    if (whole < f->window_runs && whole < position / f->chunk + 1)
        whole = f->window_runs < position / f->chunk + 1 ? f->window_runs : position / f->chunk + 1;
    return whole > listed ? whole : listed;
}

/* Makes logits of the part's next row; false: there is no room for them. */
static bool cuda_want_row(forward_cuda_state *f, step_part *part) {
    const int first = part->joined        ? part->rows - part->logit_count
                      : part->logit_count ? part->logit_first
                                          : part->rows;
    if (part->rows - first >= STEP_STAGE_ROWS) return false;
    if (part->joined) f->wanted[part->logit_count] = part->rows;
    part->logit_first = first;
    part->logit_count = part->rows - first + 1;
    return true;
}

static void cuda_empty_part(step_part *part) {
    part->rows = part->logit_first = part->logit_count = part->runs = 0;
}

/* The runs that any row of the part has with this one, at most. */
static int cuda_runs_with(const forward_cuda_state *f, const step_part *part, const forward_row *row) {
    const int runs = cuda_most_runs(f, part->rule, row->position);
    return runs > part->runs ? runs : part->runs;
}

/* Whether the stage kernels hold this row, too, and the exchange all its runs. */
static bool cuda_has_room(const forward_cuda_state *f, const step_part *part, const forward_row *row) {
    return !part->rows || (part->rows < STEP_STAGE_ROWS &&
                           (int64_t)cuda_runs_with(f, part, row) * (part->rows + 1) <= f->stage_parts);
}

/* Adds row `at` of the batch, of sequence i, to the part; false: there is no room for its logits. */
static bool cuda_add_row(forward_cuda_state *f, step_part *part, int at, int i) {
    const forward_row *row = &part->batch->rows[at];
    if ((row->logits || row->sample) && !cuda_want_row(f, part)) return false;
    part->runs = cuda_runs_with(f, part, row);
    part->at[part->rows] = at;
    part->sequences[part->rows++] = i;
    return true;
}

/* What a row that drafts sees, and where its embedding and its hidden state are. */
static void cuda_put_draft(forward_cuda_state *f, const forward_batch *batch, int from, int r,
                           int32_t *array, int n) {
    const forward_row *row = &batch->rows[from];
    const cairn_adapter *a = row->adapter;
    const size_t bytes = (size_t)f->tree_words * 4;
    uint64_t embedding = 0;
    if (row->embedding)
        embedding = (uint64_t)device_address((const float *)a->device + (row->embedding - a->values));
    array[STEP_SEEN * n + r] = row->seen;
    array[STEP_OWN * n + r] = row->mask ? -row->own : row->own;
    array[STEP_EMBED_LOW * n + r] = (int32_t)(uint32_t)embedding;
    array[STEP_EMBED_HIGH * n + r] = (int32_t)(uint32_t)(embedding >> 32);
    array[STEP_KEEP * n + r] = batch->drafts && row->hidden ? f->hidden_index[from] : -1;
    if (row->mask && row->kind == FORWARD_STEP)
        memcpy(f->host_trees + (size_t)r * bytes, row->mask, ((size_t)row->own + 7) / 8);
    f->drafts |= row->own || embedding;
    f->trees_put |= row->mask != NULL;
}

/* A lane's words, as many arrays as its kernels read, and the trees of rows. */
static cairn_status cuda_upload_words(forward_cuda_state *f, const step_lane *lane) {
    const int arrays = f->drafts ? STEP_ARRAYS : STEP_PLAIN_ARRAYS;
    cairn_status status = CAIRN_OK;
    if (f->trees_put)
        status = device_upload(f->dev, f->trees, f->host_trees,
                               STEP_STAGE_ROWS * (size_t)f->tree_words * 4);
    return status ? status : device_upload(f->dev, cuda_input_of(lane), lane->words,
                                           (size_t)(STEP_HEAD + arrays * lane->rows) * 4);
}

/* Of the rows whose logits are made, in the batch, the i-th. */
static int cuda_wanted(const forward_cuda_state *f, const step_part *part, int i) {
    return part->at[part->joined ? f->wanted[i] : part->logit_first + i];
}

/* Whether a group of so many rows may have one more. Those of prompts are what a block of attention serves; those of
 * the stages have eight queries until there is a kernel for more, to the same bits. */
static bool cuda_may_group(forward_cuda_state *f, const step_part *part, int rows) {
    if (part->joined) return rows < cuda_attend_rows(f, cuda_attends_many(f));
    if (rows < f->group_rows / 2) return true;
    return rows < f->group_rows && (f->drafts || f->lane != &f->stage || cuda_has_groups(f));
}

/* Row r of the part in the last group, if that may have it, or in one of its own; groups then. */
static int cuda_put_group(forward_cuda_state *f, const step_part *part, int32_t *array, int n, int r, int groups) {
    const int position = cuda_part_row(part, r)->position;
    int32_t *last = &array[STEP_GROUP_ROWS * n + (groups ? groups - 1 : 0)];
    if (r > 0 && part->sequences[r] == part->sequences[r - 1] && cuda_may_group(f, part, *last) &&
        (part->joined || /* and both cut what they attend alike */
         cuda_row_run(f, NULL, position) == cuda_row_run(f, NULL, position - 1))) {
        ++*last;
        return groups;
    }
    array[STEP_GROUP_FIRST * n + groups] = r;
    array[STEP_GROUP_ROWS * n + groups] = 1;
    return groups + 1;
}

/* A part's rows as the input words of a lane. */
static cairn_status cuda_upload_rows(forward_cuda_state *f, step_lane *lane,
                                     const step_part *part) {
    int32_t *head = lane->words, *array = lane->words + STEP_HEAD;
    int n = lane->rows, groups = 0, runs = 0, listed = 0;
    const cairn_adapter *tiles;
    f->adapts = f->drafts = f->trees_put = false;
    f->joined = part->joined, f->lane = lane;
    for (int r = 0; r < part->rows; r++) {
        const forward_row *row = cuda_part_row(part, r);
        const int s = part->sequences[r];
        const bool same = r > 0 && s == part->sequences[r - 1];
        array[STEP_TOKEN * n + r] = row->token;
        array[STEP_POSITION * n + r] = row->position;
        array[STEP_ROPE * n + r] = row->rope;
        array[STEP_ADAPTER * n + r] = row->adapter ? row->adapter->slot : -1;
        f->adapts |= row->adapter != NULL;
        cuda_put_draft(f, part->batch, part->at[r], r, array, n);
        array[STEP_SEQUENCE * n + r] = part->slots[s];
        array[STEP_FIRST * n + r] = same ? array[STEP_FIRST * n + r - 1] : r;
        array[STEP_STORED * n + r] = part->batch->sequences[s].stored;
        groups = cuda_put_group(f, part, array, n, r, groups);
        if (cuda_row_runs(f, NULL, row->position) > runs)
            runs = cuda_row_runs(f, NULL, row->position);
        if (part->rule && cuda_row_runs(f, part->rule, row->position) > listed)
            listed = cuda_row_runs(f, part->rule, row->position);
    }
    head[STEP_ROWS] = part->rows;
    head[STEP_GROUPS] = groups;
    head[STEP_CHUNKS] = runs;
    head[STEP_LIST_CHUNKS] = listed;
    head[STEP_EPOCH] = f->epoch;
    head[STEP_CLEAN_ROWS] = f->clean_rows;
    head[STEP_CLEAN_CHUNKS] = f->clean_chunks;
    if (part->joined)
        memcpy(array + STEP_WANTED * n, f->wanted, (size_t)part->logit_count * sizeof *f->wanted);
    head[STEP_LOGIT_FIRST] = part->joined ? 0 : part->logit_first;
    head[STEP_LOGIT_COUNT] = part->logit_count;
    head[STEP_TELLS] = f->tells = !f->tells;
    tiles = f->drafts && lane != &f->prompt ? cuda_wide_adapter(f, part) : NULL;
    if (tiles) cuda_use_tiles(f, tiles);
    f->wide = tiles && lane == &f->stage;
    return cuda_upload_words(f, lane);
}

/* forward_cuda_next: the step after a step, launched before the host knows the tokens of its rows: each row reads its
 * own where the device drew it (STEP_DRAWN). From the end of a step to the next one's first kernel it is some 25 us by
 * way of the host, 5 % of a step of a 1B at 2K tokens; what the host does with tokens then takes no time of the GPU's.
 *
 * A forward that asks for rows of this very step, their tokens known by now, takes what is there, and leaves the rows
 * of sequences that have ended meanwhile. Any other runs behind it, on the same stream: what was written for nothing
 * lies at the position behind a row, where its sequence has nothing yet. Rings of convolutions and latents have no
 * such place, or memory of the host's that they read: models with them go without.
 *
 * Where a sequence drafts, how far its rows move on is not known either, but to the device: by the tokens that stood.
 * The last kernel of a step of the flow with drafts makes its input words those of the next one (draft_end). */

static cairn_status cuda_launch_steps(forward_cuda_state *f, const step_part *part, bool first, bool all);
static step_kernel cuda_flow_of(forward_cuda_state *f, const step_part *part);

static void cuda_forget_next(forward_cuda_state *f) {
    f->dev->ahead -= f->next.there;
    f->next.there = false;
}

/* ---- who asks for it ------------------------------------------------------------------------- */

/* Which row of the next step row r of the part is; -1: none. */
static int cuda_find_begun(const forward_cuda_state *f, const step_part *part, int r) {
    const cuda_next *n = &f->next;
    const forward_row *row = cuda_part_row(part, r), *own;
    int at = 0;
    while (at < n->count && n->slots[at] != part->slots[part->sequences[r]]) at++;
    if (at == n->count || row->kind != FORWARD_STEP || row->own || row->embedding) return -1;
    own = &n->rows[at];
    if (row->token != f->host_words[STEP_SAMPLED_AT + STEP_DRAWN - own->token] || row->position != own->position ||
        row->rope != own->rope || row->adapter != own->adapter || ((row->logits || row->hidden) && at != r))
        return -1;
    return cuda_part_sequence(part, r)->stored == n->sequences[at].stored ? at : -1;
}

/* Whether row r of the part is that of the step that drafts, which moved on by `back` tokens less than it may. */
static bool cuda_is_begun_draft(const forward_cuda_state *f, const step_part *part, int r, int back) {
    const forward_row *row = cuda_part_row(part, r);
    const int32_t token = f->host_words[cuda_drafted_at(f) - 1 + (size_t)r]; /* what held, then the drafts behind it */
    forward_row begun = f->next.rows[r];
    begun.position -= back, begun.rope -= back;
    if (begun.own) begun.seen -= back;
    else begun.token = token < 0 ? 0 : token, begun.sample = row->sample;
    return !memcmp(row, &begun, sizeof begun) &&
           (begun.own || (row->sample && sample_takes_best(row->sample, f->shape->vocab)));
}

/* Whether the part is the step that drafts: *x then says where its results are. */
static bool cuda_is_next_draft(const forward_cuda_state *f, cuda_flight *x) {
    const cuda_next *n = &f->next;
    const step_part *part = &x->part;
    const int held = f->host_words[cuda_drafted_at(f) - 2] / n->masks;
    if (part->rows != n->count || part->batch->sequence_count != 1 || part->slots[0] != n->slots[0] || part->rule)
        return false;
    for (int r = 0; r < part->rows; r++)
        if (!cuda_is_begun_draft(f, part, r, n->masks - held)) return false;
    x->result_rows = n->masks + 1;
    for (int i = 0; i < x->result_rows; i++) x->askers[i] = i;
    return true;
}

/* Whether all rows of the part are the next step's, each another: *x then says which. */
static bool cuda_is_next(const forward_cuda_state *f, cuda_flight *x) {
    const cuda_next *n = &f->next;
    const step_part *part = &x->part;
    if (!n->there || part->watched || part->form.rule) return false;
    if (n->masks) return cuda_is_next_draft(f, x);
    if (part->rows > n->count || part->logit_count != part->rows || !part->rule != !n->ruled ||
        (n->ruled && !forward_rule_same(part->rule, &n->rule)))
        return false;
    x->result_rows = n->count;
    memset(x->askers, 0xff, sizeof x->askers);
    for (int r = 0; r < part->rows; r++) {
        const int at = cuda_find_begun(f, part, r);
        if (at < 0 || x->askers[at] >= 0) return false;
        x->askers[at] = r;
    }
    return true;
}

/* Whether the part is of the step that was begun: then it is launched. */
static bool cuda_take_next(forward_cuda_state *f) {
    const bool there = cuda_is_next(f, &f->flight);
    cuda_forget_next(f);
    if (there && f->next.masks) f->ahead_count = f->next.masks, f->ahead_by = f->next.rows[f->next.masks + 1].adapter;
    return there;
}

/* What the device took for the step that was taken and has landed: from the end of the one before, which told the
 * other half. */
static int64_t cuda_took_us(const forward_cuda_state *f) {
    return device_between(f->dev, f->come[!f->told], f->next.ends[f->told]);
}

/* ---- what is begun --------------------------------------------------------------------------- */

/* Whether the pages of a sequence, of each group, have a place for the position. */
static bool cuda_has_place(const forward_cuda_state *f, const page_tables *tables, int row, int position) {
    const window_state *windows = f->windows;
    const int page = position / f->page_size;
    int g = 0;
    while (g < f->groups->count && page < windows[g].tables.pages[row]) g++;
    return g == f->groups->count && page < tables->pages[row];
}

/* Whether row r of the part, which was launched, leaves nothing but a token, so that the next step may write over
 * all else before the host has seen it. */
static bool cuda_leaves_token(const forward_cuda_state *f, const step_part *part, int r) {
    const forward_row *row = cuda_part_row(part, r);
    const forward_sequence *s = cuda_part_sequence(part, r);
    return s->rows == 1 && !row->logits && !row->hidden && !row->own && !row->embedding && !s->landmarks &&
           !s->chosen && row->sample && sample_is_drawn(row->sample, f->shape->vocab);
}

/* Whether the one behind it has a place, and, where it selects, the bounds of all pages before its own. */
static bool cuda_can_go_on(const forward_cuda_state *f, const step_part *part, int r) {
    const int position = cuda_part_row(part, r)->position + 1;
    return !(part->rule && position % f->page_size == 0) &&
           cuda_has_place(f, part->batch->tables, cuda_part_sequence(part, r)->table, position);
}

/* The row and the sequence of the step behind row r of the part, whose token is the i-th that was drawn. */
static void cuda_add_next(forward_cuda_state *f, const step_part *part, int r, int i) {
    cuda_next *n = &f->next;
    forward_row *row = &n->rows[n->count];
    forward_sequence *s = &n->sequences[n->count];
    *row = *cuda_part_row(part, r);
    *s = *cuda_part_sequence(part, r);
    row->token = STEP_DRAWN - i;
    row->position++, row->rope++;
    s->first = n->count;
    s->stored = row->position / f->page_size;
    n->slots[n->count++] = part->slots[part->sequences[r]];
}

/* The rows of the step behind the part that was launched; false: there are none, or one that the next forward will
 * ask for cannot be among them. */
static bool cuda_fill_next(forward_cuda_state *f) {
    const cuda_flight *x = &f->flight;
    const step_part *part = &x->part;
    const forward_batch *batch = part->batch;
    cuda_next *n = &f->next;
    n->count = n->masks = 0;
    if (part->rows != batch->row_count || part->rows > STEP_STAGE_ROWS || part->logit_count != part->rows ||
        batch->heat || part->form.rule || f->rings || f->latents.heads)
        return false;
    n->ruled = part->rule != NULL;
    if (n->ruled) n->rule = *part->rule;
    for (int i = 0; i < cuda_told_rows(f, part); i++) {
        const int r = x->taken ? x->askers[i] : i;
        if (r < 0) continue;
        if (!cuda_leaves_token(f, part, r)) return false;
        if (!cuda_part_sequence(part, r)->continues) continue;
        if (!cuda_can_go_on(f, part, r)) return false;
        cuda_add_next(f, part, r, i);
    }
    return n->count > 0;
}

/* The same where the part, a sequence's alone, verifies as many drafts as each of its tokens has masks, by the flow
 * kernel with all that is drafted: the rows as they are once all drafts hold. */
static bool cuda_fill_next_draft(forward_cuda_state *f) {
    const step_part *part = &f->flight.part;
    const forward_batch *batch = part->batch;
    const cuda_ahead ahead = cuda_plan_ahead(part);
    const forward_sequence *s = batch->sequences;
    const int moved = ahead.masks + 1;
    cuda_next *n = &f->next;
    if (!cuda_drafts_within(f, part, &ahead) || f->lane != &f->flow || ahead.drafts != ahead.masks ||
        part->rows != moved * moved || part->rows != batch->row_count || batch->sequence_count != 1 || !s->continues ||
        batch->heat ||
        !cuda_has_place(f, batch->tables, s->table, cuda_part_row(part, part->rows - 1)->position + moved))
        return false;
    n->masks = ahead.masks, n->ruled = false;
    n->sequences[0] = *s;
    for (n->count = 0; n->count < part->rows; n->count++) {
        forward_row *row = &n->rows[n->count];
        *row = *cuda_part_row(part, n->count);
        row->position += moved, row->rope += moved;
        if (row->own) row->seen += moved;
        else if (row->logits || !sample_is_drawn(row->sample, f->shape->vocab)) return false; /* they are still read */
        n->slots[n->count] = part->slots[0];
    }
    return true;
}

/* Launches what the device made of the flow's input words: the kernel is that of the part's. */
static bool cuda_launch_moved(forward_cuda_state *f, const step_part *part) {
    const int last = cuda_part_row(part, part->rows - 1)->position;
    if (cuda_flow_of(f, part) != STEP_K_DRAFT_FLOW ||
        device_graph_launch(f->dev, &f->draft_flow_graphs[f->next.masks]))
        return false;
    f->tells = !f->tells;
    cuda_flow_leaves(f, part->rows, last / f->chunk + 1); /* or one more */
    return true;
}

/* Launches it, the only part of a batch of its own; false: it could not be, or one part does not hold it. */
static bool cuda_launch_filled(forward_cuda_state *f, forward_batch *batch) {
    cuda_next *n = &f->next;
    int32_t at[STEP_STAGE_ROWS], sequences[STEP_STAGE_ROWS];
    step_part part = f->flight.part;
    batch->rows = n->rows, batch->sequences = n->sequences;
    batch->row_count = n->count, batch->sequence_count = n->masks ? 1 : n->count;
    part.batch = batch, part.slots = n->slots;
    part.at = at, part.sequences = sequences;
    cuda_empty_part(&part);
    for (int r = 0; r < n->count; r++)
        if (!cuda_has_room(f, &part, &n->rows[r]) || !cuda_add_row(f, &part, r, n->masks ? 0 : r)) return false;
    return n->masks ? cuda_launch_moved(f, &part) : !cuda_launch_steps(f, &part, true, true);
}

/* Behind the step that was launched, and the mark of what it tells: the next one. Where it cannot be
 * the next forward computes it, and tells why if it cannot either. */
static void cuda_launch_next(forward_cuda_state *f) {
    cuda_next *n = &f->next;
    forward_batch batch = *f->flight.part.batch;
    if (!cuda_fill_next(f) && !cuda_fill_next_draft(f)) return;
    n->there = cuda_launch_filled(f, &batch) && !device_mark(f->dev, &n->ends[f->tells]);
    f->dev->ahead += n->there;
    f->flight.part.batch->prepared |= batch.prepared; /* of the call that it was begun in */
    if (!n->there) f->dev->base->error[0] = '\0';
}

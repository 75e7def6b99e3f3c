/* forward_cuda_next: the step after a step of a row alone, launched before the host knows its token: the row reads it
 * where the device drew it (STEP_DRAWN). From the end of a step to the next one's first kernel it is some 25 us by way
 * of the host, 5 % of a step of a 1B at 2K tokens; what the host does with a token then takes no time of the GPU's.
 *
 * A forward that asks for this very step, its token known by now, takes what is there. Any other runs behind it, on
 * the same stream: what was written for nothing lies at the position behind the row, where its sequence has nothing
 * yet. Rings of convolutions and latents have no such place, or memory of the host's that they read: models with
 * them go without. */

static cairn_status cuda_launch_steps(forward_cuda_state *f, const step_part *part, bool first, bool all);

static void cuda_forget_next(forward_cuda_state *f) {
    f->dev->ahead -= f->next.there;
    f->next.there = false;
}

/* Whether the row that is asked for is the one that runs. */
static bool cuda_is_next(const forward_cuda_state *f) {
    const cuda_next *n = &f->next;
    const step_part *part = &f->flight.part;
    const forward_row *row = part->batch->rows, *own = &n->row;
    if (!n->there || part->batch->row_count != 1 || f->slots[0] != n->slot || part->told ||
        part->form.rule || !part->rule != !n->ruled || (n->ruled && !forward_rule_same(part->rule, &n->rule)))
        return false;
    return row->kind == FORWARD_STEP && row->token == f->host_words[STEP_SAMPLED_AT] && !row->own &&
           !row->embedding && row->position == own->position && row->rope == own->rope &&
           row->adapter == own->adapter && part->batch->sequences->stored == n->sequence.stored;
}

/* Whether the part is the step that was begun: then it is launched. */
static bool cuda_take_next(forward_cuda_state *f) {
    const bool there = cuda_is_next(f);
    cuda_forget_next(f);
    return there;
}

/* What the device took for the step that was taken and has landed: from the end of the one before, which told the
 * other half. */
static int64_t cuda_took_us(const forward_cuda_state *f) {
    return device_between(f->dev, f->come[!f->told], f->next.ends[f->told]);
}

/* Whether the pages of a sequence, of each group, have a place for the position. */
static bool cuda_has_place(const forward_cuda_state *f, const page_tables *tables, int row, int position) {
    const window_state *windows = f->windows;
    const int page = position / f->page_size;
    int g = 0;
    while (g < f->groups->count && page < windows[g].tables.pages[row]) g++;
    return g == f->groups->count && page < tables->pages[row];
}

/* Whether the step behind the one that was launched can be, as far as it alone says. */
static bool cuda_can_go_on(const forward_cuda_state *f) {
    const step_part *part = &f->flight.part;
    const forward_batch *batch = part->batch;
    const forward_row *row = batch->rows;
    const forward_sequence *s = batch->sequences;
    const int position = row->position + 1;
    if (batch->row_count != 1 || !part->logit_count || row->logits || row->hidden || row->own || row->embedding ||
        s->landmarks || s->chosen || batch->heat || part->form.rule || f->rings || f->latents.heads ||
        (part->rule && position % f->page_size == 0)) /* its bounds are not stored yet */
        return false;
    return row->sample && sample_is_drawn(row->sample, f->shape->vocab) &&
           cuda_has_place(f, batch->tables, s->table, position);
}

/* The row and the sequence of the step behind that of the part. */
static void cuda_set_next(forward_cuda_state *f, const step_part *part) {
    cuda_next *n = &f->next;
    n->row = *part->batch->rows;
    n->sequence = *part->batch->sequences;
    n->row.token = STEP_DRAWN;
    n->row.position++, n->row.rope++;
    n->sequence.stored = n->row.position / f->page_size;
    n->ruled = part->rule != NULL;
    if (n->ruled) n->rule = *part->rule;
    n->slot = f->slots[0];
}

/* Behind the step that was launched, and the mark of what it tells: the next one. Where it cannot be
 * the next forward computes it, and tells why if it cannot either. */
static void cuda_launch_next(forward_cuda_state *f) {
    cuda_next *n = &f->next;
    step_part part = f->flight.part;
    forward_batch batch = *part.batch;
    if (!cuda_can_go_on(f)) return;
    cuda_set_next(f, &part);
    batch.rows = &n->row, batch.sequences = &n->sequence;
    part.batch = &batch;
    part.runs = cuda_most_runs(f, part.rule, n->row.position);
    n->there = !cuda_launch_steps(f, &part, true, true) && !device_mark(f->dev, &n->ends[f->tells]);
    f->dev->ahead += n->there;
    f->flight.part.batch->prepared |= batch.prepared; /* of the call that it was begun in */
    if (!n->there) f->dev->base->error[0] = '\0';
}

/* forward_cuda_results: what a part that was launched leaves: logits, tokens, hidden states, and the
 * pages that it read. See cuda.c. */

static cairn_status cuda_fault(const forward_cuda_state *f, int32_t fault) {
    if (!fault) return CAIRN_OK;
    return base_fail(f->dev->base, CAIRN_DEVICE_ERROR,
                     "a step's blocks did not all run at once; is another program using the GPU?");
}

/* The words that every step leaves: faults, sampled tokens and pages read, told or, without logits, in one copy. */
static cairn_status cuda_download_words(forward_cuda_state *f, const step_part *part) {
    const size_t words = cuda_result_words(f);
    cairn_status status;
    if (!part->logit_count) {
        status = device_download(f->dev, f->host_words, f->fault, words * 4);
    } else if (!(status = device_await(f->dev, f->come[f->told]))) {
        memcpy(f->host_words, f->host_told + (size_t)f->told * words, words * 4);
    }
    return status ? status : cuda_fault(f, f->host_words[0]);
}

/* The logits that the caller wants, row by row or, where all rows are wanted, at once. */
static cairn_status cuda_download_logits(const forward_cuda_state *f, const step_part *part) {
    const forward_row *rows = part->batch->rows;
    size_t vocab = (size_t)f->shape->vocab;
    cairn_status status = CAIRN_OK;
    for (int i = 0, run; i < part->logit_count && !status; i += run) {
        const int at = cuda_wanted(f, part, i), to = f->logit_index[at];
        run = 1;
        if (!rows[at].logits) continue;
        for (int next; i + run < part->logit_count; run++)
            if (!rows[next = cuda_wanted(f, part, i + run)].logits || f->logit_index[next] != to + run)
                break;
        status = device_download(f->dev, part->batch->logits + (size_t)to * vocab,
                                 f->logits + (size_t)i * vocab, (size_t)run * vocab * 4);
    }
    return status;
}

/* The hidden states that the caller wants of a part. */
static cairn_status cuda_download_hidden(const forward_cuda_state *f, const step_part *part) {
    const size_t n = (size_t)f->shape->hidden;
    const float *residual;
    cairn_status status = CAIRN_OK;
    memcpy(&residual, &f->lane->params.exchange, sizeof residual);
    for (int r = 0; part->batch->hidden && !part->batch->drafts && r < part->rows && !status; r++) {
        float *out = part->batch->hidden + (size_t)f->hidden_index[part->at[r]] * n;
        if (!cuda_part_row(part, r)->hidden) continue;
        if (!(status = device_download(f->dev, out, residual + (size_t)r * n, n * sizeof *out)))
            simd_for(0)->rmsnorm(out, f->plan->output_norm.values, f->shape->norm_eps, (int)n, out);
    }
    return status;
}

/* What the first rows of sequences chose, of those in the part. */
static cairn_status cuda_tell_chosen(const forward_cuda_state *f, const step_part *part) {
    cairn_status status = CAIRN_OK;
    for (int r = 0; r < part->rows && (part->form.rule || part->watched) && !status; r++) {
        const forward_sequence *s = cuda_part_sequence(part, r);
        if (s->chosen && part->at[r] == s->first && part->form.steps)
            status = cuda_download_chosen(f, part->rule, s, part->slots[part->sequences[r]]);
    }
    return status;
}

/* How many rows of results a part leaves; which row of the batch the i-th is of, -1: nobody asks for it. */
static int cuda_told_rows(const forward_cuda_state *f, const step_part *part) {
    return f->flight.taken ? f->flight.result_rows : part->logit_count;
}
static int cuda_asker(const forward_cuda_state *f, const step_part *part, int i) {
    const int wanted = f->flight.taken ? f->flight.askers[i] : i;
    return wanted < 0 ? -1 : cuda_wanted(f, part, wanted);
}

/* Behind a part: the draws of its wanted rows that the device makes, and drafts. */
static cairn_status cuda_begin_draws(forward_cuda_state *f, const step_part *part) {
    const cuda_ahead ahead = cuda_plan_ahead(part);
    const int rows = cuda_told_rows(f, part);
    bool any = false, draws = false;
    cairn_status status;
    f->told = f->tells;
    for (int i = 0; i < rows; i++) {
        const int at = cuda_asker(f, part, i);
        f->asks[i] = at < 0 ? NULL : part->batch->rows[at].sample;
        any = any || f->asks[i];
        draws = draws || (f->asks[i] && !sample_takes_best(f->asks[i], f->shape->vocab));
    }
    if (!any) return CAIRN_OK;
    status = sample_rows_begin(f->runtime, &f->space, f->logits, f->asks, rows, f->sampled);
    if (status || f->ahead_count) return status;
    if (ahead.masks && (status = cuda_begin_drafts(f, &ahead))) return status;
    return draws || ahead.masks ? cuda_tell(f, f->lane) : CAIRN_OK;
}

static cairn_status cuda_begin_results(forward_cuda_state *f, const step_part *part) {
    const cairn_status status = cuda_begin_draws(f, part);
    return status || !part->logit_count ? status : device_mark(f->dev, &f->come[f->told]);
}

/* Logits, tokens and faults of a part that was launched. [blocks] until the device is done with it */
static cairn_status cuda_results(forward_cuda_state *f, const step_part *part) {
    int32_t *tokens = f->host_words + STEP_SAMPLED_AT;
    const int rows = cuda_told_rows(f, part);
    bool any = false;
    cairn_status status;
    if (!part->logit_count && !cuda_counts(f, part)) return CAIRN_OK;
    for (int i = 0; i < rows; i++) any = any || f->asks[i];
    if ((status = cuda_download_logits(f, part)) || (status = cuda_download_words(f, part)) ||
        (status = cuda_tell_chosen(f, part)) || !any)
        return status;
    status = sample_rows_end(f->runtime, &f->space, f->logits, f->asks, rows, tokens);
    for (int i = 0; i < rows && !status; i++)
        if (f->asks[i]) part->batch->sampled[f->ask_index[cuda_asker(f, part, i)]] = tokens[i];
    return status;
}

/* Distinct pages that steps at positions [first, last] read in the layers that do not select; to heat,
 * too, where there is one. */
static int64_t cuda_whole_pages(const forward_cuda_state *f, const forward_rule *rule, int first,
                                int last, os_atomic *heat) {
    const int heads = f->shape->kv_heads;
    int64_t all = 0;
    for (int l = 0; l < f->shape->layers; l++) {
        const int window = f->plan->layers[l].window;
        const int from = window && first >= window ? first - window + 1 : 0;
        const int pages = last / f->page_size - from / f->page_size + 1;
        if (f->plan->layers[l].mixer != PLAN_ATTENTION || cuda_selects(f, rule, l)) continue;
        for (int h = 0; h < heads && heat; h++) os_atomic_add(&heat[l * heads + h], pages);
        all += pages;
    }
    return all * heads;
}

/* Whether rows of sequence i choose pages: those that draft do not, and are served behind the others. */
static bool cuda_splits(const forward_batch *batch, int i) {
    const forward_sequence *s = &batch->sequences[i];
    const int last = batch->rows[s->first + s->rows - 1].position;
    return s->rule && (cuda_has_forms(s->rule, s->landmarks) ||
                       select_candidates(&s->rule->select, last) > s->rule->select.topk);
}

/* The part is the last of a run of steps, after which others of sequence i follow: these see all that it
 * read, and are counted. */
static bool cuda_is_outseen(const forward_cuda_state *f, const forward_batch *batch, int i) {
    const forward_sequence *s = &batch->sequences[i];
    return f->done[i] < s->rows && batch->rows[s->first + f->done[i]].own && cuda_splits(batch, i);
}

/* To heat the pages that sequence i read in layers that select, from their bits: of its rows in the flow
 * [layers, STEP_FLOW_ROWS, KV heads, words], of the stage kernels [layers, table_rows, KV heads, words]. */
static void cuda_add_heat(const forward_cuda_state *f, const step_part *part, int i, const uint32_t *bits) {
    os_atomic *heat = part->batch->heat;
    const bool flow = f->lane == &f->flow;
    const int heads = f->latents.heads ? 1 : f->shape->kv_heads, words = f->lane->params.seen_words;
    const int step = f->shape->kv_heads * words, each = flow ? STEP_FLOW_ROWS : f->table_rows;
    const int rows = flow ? f->stepped[i] : 1;
    int first = part->slots[i];
    if (flow) for (first = 0; part->sequences[first] != i;) first++;
    for (int l = 0; l < f->shape->layers; l++, bits += each * step)
        for (int at = 0; at < heads * words; at++) {
            uint32_t seen = 0;
            for (int r = first; r < first + rows; r++) seen |= bits[r * step + at];
            for (; seen; seen &= seen - 1) os_atomic_add(&heat[l * heads + at / words], 1);
        }
}

/* Distinct pages of the sequences of a part, the last of its run: counted by the selection, all that
 * its rows see where there was none. bits: of cuda_add_heat, or NULL. */
static void cuda_count_pages(const forward_cuda_state *f, const step_part *part, const uint32_t *bits) {
    const int32_t *counts = f->host_words + STEP_SAMPLED_AT + STEP_STAGE_ROWS;
    const forward_batch *batch = part->batch;
    for (int i = 0; i < batch->sequence_count; i++) {
        forward_sequence *s = &batch->sequences[i];
        const forward_row *end = &batch->rows[s->first + f->done[i]];
        if (!f->stepped[i] || cuda_is_outseen(f, batch, i)) continue;
        const bool all = cuda_splits(batch, i) && end[-1].own;
        if (bits) cuda_add_heat(f, part, i, bits);
        s->pages_read += (cuda_counts(f, part) ? counts[part->slots[i]] : 0) +
                         cuda_whole_pages(f, part->rule, end[-(all ? f->done[i] : f->stepped[i])].position,
                                          end[-1].position, batch->heat);
    }
}

/* The same, for a profile with what the kernels counted by layer and KV head. [blocks] */
static cairn_status cuda_take_pages(const forward_cuda_state *f, const step_part *part) {
    const bool flow = f->lane == &f->flow, fetches = part->batch->heat && cuda_counts(f, part);
    const size_t bytes = flow ? f->seen_bytes / (size_t)f->table_rows * STEP_FLOW_ROWS : f->seen_bytes;
    base *b = f->dev->base;
    uint32_t *bits = fetches ? (uint32_t *)base_new(b, bytes, 1) : NULL;
    cairn_status status = CAIRN_OK;
    if (fetches && !bits) return base_no_memory(b, "the pages read", bytes);
    if (fetches) status = device_download(f->dev, bits, flow ? f->row_pages : f->seen, bytes);
    if (!status) cuda_count_pages(f, part, bits);
    base_delete(b, bits, bytes, 1);
    return status;
}

/* step: what sessions do in one forward. A session's next part is a chunk of its prompt, tokens that
 * run again, or a decode step with its drafts; parts of several sessions make one batch. */

/* ---- forward --------------------------------------------------------------------------------- */

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

/* Another rule of selection was loaded: what prompts computed until now is not what they would. */
static void engine_check_space(cairn_session *s) {
    const uint64_t now = engine_space(s);
    if (s->space == now) return;
    s->space = now;
    s->pure = 0;
    engine_let_go(s);
}

/* How the session's rows attend now; NULL: all, in every layer. */
static const forward_rule *engine_rule(cairn_session *s) {
    const cairn_model *m = s->model;
    const bool some = forward_rule_of(engine_config(s), m->kv.page_size, m->shape.layers, &s->rule);
    return some ? &s->rule : NULL;
}

/* The token after position `at` as it is asked for; drafts follow up to `end`. */
static void engine_ask(const cairn_session *s, int at, int first, int end, sample_ask *ask) {
    engine_sample_params(s, &ask->params);
    ask->position = at + 1;
    ask->history = s->tokens;
    ask->history_count = at + 1;
    ask->expected = at + 1 < end ? s->tokens[at + 1] : -1;
    ask->chained = at > first;
    ask->mask = s->constraint ? s->masks[at - first] : NULL;
    ask->bias = s->bias;
    ask->bias_count = s->bias_count;
    ask->swap = s->model->scratch->swap.to_count ? &s->model->scratch->swap : NULL;
    ask->best = s->row_best;
    ask->logprobs = NULL;
    if (s->row_logprobs) ask->logprobs = s->row_logprobs + (at - first) * (1 + s->row_best);
}

/* A part of so many tokens from `cached` on, nothing else of it said. */
static engine_part engine_part_of(cairn_session *s, forward_kind kind, int rows) {
    engine_part part;
    memset(&part, 0, sizeof part);
    part.s = s, part.kind = kind, part.rows = rows;
    return part;
}

/* Rows of a part in the forward. */
static int engine_part_rows(const engine_part *part) {
    const cairn_session *s = part->s;
    return engine_slots(s, s->cached + part->rows) - engine_slots(s, s->cached) +
           part->sampled * part->masks - part->short_by;
}

/* Behind the part's rows those of its masks, group by group: each sees the tokens up to its group's and
 * the masks before it, and turns as the token does that it is to draft from. They leave no trace: what
 * comes next is written over their keys. */
static void engine_put_masks(engine_part *part, forward_batch *batch) {
    cairn_session *s = part->s;
    engine_scratch *x = s->model->scratch;
    const int end = s->cached + part->rows;
    int slot = end;
    part->hidden = batch->hidden + (size_t)x->hidden_rows * (size_t)s->model->shape.hidden;
    for (int seen = end - part->sampled + 1; seen <= end; seen++)
        for (int own = 1; own <= part->masks - (seen == end ? part->short_by : 0); own++) {
            forward_row *row = &x->row[batch->row_count++];
            memset(row, 0, sizeof *row);
            row->position = slot++;
            row->rope = seen - 1 + own;
            row->kind = FORWARD_STEP;
            row->seen = seen, row->own = own;
            row->hidden = true;
            row->embedding = s->adapter->parts[ADAPTER_MASK];
            row->adapter = s->adapter;
            x->hidden_rows++;
        }
}

static const cairn_adapter *engine_adapter(const cairn_session *s) {
    return s->adapter && !s->adapter->parts[ADAPTER_MASK] ? s->adapter : NULL;
}

/* Room for what a step chooses; without memory nobody is told. */
static void engine_watch(cairn_session *s, forward_sequence *sequence) {
    const int most = s->model->tables.max_pages, topk = sequence->rule->select.topk;
    const int step = 1 + (topk < most ? topk : most);
    if (s->model->backend->watch && !s->watched) return;
    if (s->chosen_step != step) {
        engine_drop_chosen(s);
        s->chosen = (int32_t *)base_new(engine_base(s), engine_chosen_words(s, step), sizeof *s->chosen);
        if (!s->chosen) {
            engine_base(s)->error[0] = '\0';
            return;
        }
        s->chosen_step = step;
    }
    memset(s->chosen, 0xff, engine_chosen_words(s, step) * sizeof *s->chosen);
    sequence->chosen = s->chosen;
    sequence->chosen_step = step;
}

/* Room for the logits that a part's drafts are verified by; where there is none they are taken where they
 * are what is drawn. */
static void engine_put_target(engine_part *part, forward_batch *batch) {
    engine_chain *c = &part->s->model->scratch->chain;
    if (!part->chained || part->sampled > ENGINE_ROWS - c->rows) return;
    part->target = c->logits + (size_t)c->rows * (size_t)part->s->model->shape.vocab;
    c->rows += part->sampled;
    batch->logits = c->logits;
}

/* A part's rows and its sequence at the end of a batch; *asks: how many there are so far. */
static void engine_put_part(engine_part *part, forward_batch *batch, int *asks) {
    cairn_session *s = part->s;
    engine_scratch *scratch = s->model->scratch;
    forward_sequence *sequence = &scratch->sequence[batch->sequence_count++];
    int end = s->cached + part->rows, first = end - part->sampled;
    engine_check_bounds(s);
    engine_check_space(s);
    memset(sequence, 0, sizeof *sequence);
    sequence->table = s->row;
    sequence->first = batch->row_count;
    sequence->rows = engine_part_rows(part);
    sequence->rule = engine_rule(s);
    sequence->bounded = s->bounded;
    sequence->stored = engine_whole_pages(s, s->cached);
    sequence->landmarks = landmarks_with(s->adapter);
    sequence->continues = part->says > 1;
    if (part->sampled && part->kind == FORWARD_STEP && sequence->rule) engine_watch(s, sequence);
    part->tokens = scratch->sampled + *asks;
    if (part->logits) batch->logits = part->logits;
    engine_put_target(part, batch);
    for (int at = s->cached; at < end; at++) {
        forward_row *row = &scratch->row[batch->row_count++];
        memset(row, 0, sizeof *row);
        row->token = s->tokens[at];
        row->position = engine_slots(s, at);
        row->rope = at;
        row->kind = part->kind;
        row->logits = part->logits || (part->target && at >= first);
        row->adapter = engine_adapter(s);
        if (at >= first) {
            engine_ask(s, at, first, end, &scratch->asks[*asks]);
            row->sample = &scratch->asks[(*asks)++];
        }
        if (engine_slots(s, at + 1) > row->position + 1)
            engine_put_landmark(s, row, &scratch->row[batch->row_count++]);
    }
    if (part->masks) engine_put_masks(part, batch);
}

/* The batch of the scratch's parts: nothing of it is computed. */
static void engine_take_off(cairn_model *m) {
    engine_scratch *x = m->scratch;
    int asks = 0;
    memset(&x->batch, 0, sizeof x->batch);
    x->batch.tables = &m->tables;
    x->batch.rows = x->row;
    x->batch.sequences = x->sequence;
    x->batch.sampled = x->sampled;
    x->batch.hidden = x->hidden;
    x->batch.drafts = x->hidden != NULL;
    x->hidden_rows = x->chain.rows = 0;
    for (int i = 0; i < x->part_count; i++) {
        cairn_session *s = x->parts[i].s;
        state_extend(&m->states, s->row, engine_slots(s, s->cached),
                     engine_slots(s, s->cached + x->parts[i].rows));
        engine_put_part(&x->parts[i], &x->batch, &asks);
        s->flying = true;
    }
    x->draws = asks;
    x->begun = false;
    x->flight_us = 0;
}

/* The forward has ended. Of the sessions nothing but their pages and `bounded` has changed. */
static void engine_touch_down(cairn_model *m) {
    engine_scratch *x = m->scratch;
    for (int i = 0; i < x->part_count; i++) {
        if (x->sequence[i].rule) x->parts[i].s->bounded = x->sequence[i].stored;
        x->parts[i].pages_read = x->sequence[i].pages_read;
    }
}

/* What the forward in flight is called in a trace, and its range; -1: there is no trace. */
static int engine_open_range(cairn_model *m) {
    const engine_scratch *x = m->scratch;
    bool prompts = false, decodes = false;
    device *dev = &m->runtime->device;
    for (int i = 0; dev->trace && i < x->part_count; i++)
        if (x->parts[i].kind == FORWARD_STEP && x->parts[i].sampled) decodes = true;
        else prompts = true;
    return TRACE_OPEN(dev, !decodes ? "append" : prompts ? "append and decode" : "decode", true);
}

/* The batch of the scratch, in one go. */
static cairn_status engine_run(cairn_model *m) {
    const int range = engine_open_range(m);
    const cairn_status status = m->backend->forward(m, &m->kv, &m->scratch->batch);
    TRACE_SHUT(&m->runtime->device, range, m->scratch->batch.row_count);
    return status;
}

/* One part as a forward of its own, when none is in flight. */
static cairn_status engine_forward(engine_part *part) {
    cairn_model *m = part->s->model;
    engine_scratch *x = m->scratch;
    cairn_status status;
    x->parts[0] = *part;
    x->part_count = 1;
    engine_take_off(m);
    status = engine_run(m);
    if (!status) engine_touch_down(m);
    engine_give_up(m);
    return status;
}

/* ---- what it costs --------------------------------------------------------------------------- */

static int engine_cost_at(int rows) {
    int i = 0;
    while (i + 1 < ENGINE_COSTS && 2 << i <= rows) i++;
    return i;
}

/* Microseconds that a part of a forward of so many rows takes: a layer, or all where it runs in one
 * go. By the nearest that was measured: twice the rows are thought to cost twice as much, or, where a
 * device of its own computes, half as much again; 0: none was. */
static double engine_cost(const cairn_model *m, int rows) {
    const engine_scratch *x = m->scratch;
    const double growth = m->backend->poll ? 1.5 : 2.0;
    int at = engine_cost_at(rows);
    double known = 0.0, times = 1.0;
    for (int i = 0; i < ENGINE_COSTS && known <= 0.0; i++, times *= growth) {
        if (at >= i && x->cost_us[at - i] > 0.0) known = x->cost_us[at - i] * times;
        else if (at + i < ENGINE_COSTS && x->cost_us[at + i] > 0.0) known = x->cost_us[at + i] / times;
    }
    return known;
}

/* A part took so long. What is slow once, by the machine's doing, counts for less. */
static void engine_learn_cost(double *cost, double us) {
    if (*cost <= 0.0) *cost = us > 0.0 ? us : 1.0;
    else *cost += (us > *cost ? 0.15 : 0.3) * (us - *cost);
}

/* Rows of prompts in a forward, so that none of its parts takes longer than limit_us, ENGINE_NO_LIMIT: however
 * long; as long as nothing was measured, few. */
static int engine_slice(const cairn_model *m, int most, double limit_us) {
    int rows = ENGINE_LEAST_ROWS;
    double known = engine_cost(m, most);
    if (limit_us >= ENGINE_NO_LIMIT || (known > 0.0 && known <= limit_us)) return most;
    while (2 * rows <= most && known > 0.0 && engine_cost(m, 2 * rows) <= limit_us) rows *= 2;
    return rows < most ? rows : most;
}

/* How many parts of the forward in flight fit into the time: those of one kind, layers or pieces of
 * the head or draws, and some of the time is left for what they take longer. */
static int engine_parts_within(const cairn_model *m, double us) {
    const engine_scratch *x = m->scratch;
    int done = x->total - x->left, same = m->shape.layers - done;
    double one = engine_cost(m, x->batch.row_count), fit;
    if (same < 1) same = x->left - x->draws, one = engine_cost(m, x->draws);
    if (same < 1) same = x->left, one = x->draw_us;
    fit = one > 0.0 ? us / one : 1.0;
    if (fit >= 4.0) fit *= 0.75;
    return fit < 1.0 ? 0 : fit < (double)same ? (int)fit : same;
}

/* ---- the forward in flight ------------------------------------------------------------------- */

static bool engine_is_flight_cancelled(cairn_model *m) {
    engine_scratch *x = m->scratch;
    for (int i = 0; i < x->part_count; i++)
        if (os_atomic_load(x->parts[i].s->of ? &x->parts[i].s->of->cancel : &x->parts[i].s->cancel))
            return true;
    return false;
}

/* The next `parts` of the forward, all of one kind, and what they took. */
static void engine_advance(cairn_model *m, int parts) {
    engine_scratch *x = m->scratch;
    int64_t start = os_now_us(), us;
    int left, range = engine_open_range(m);
    handles_release(m->runtime, true);
    left = m->backend->advance(m, parts);
    handles_retake(m->runtime, true);
    TRACE_SHUT(&m->runtime->device, range, x->batch.row_count);
    us = os_now_us() - start;
    if (x->total - x->left < m->shape.layers)
        engine_learn_cost(&x->cost_us[engine_cost_at(x->batch.row_count)], (double)us / parts);
    else if (x->left <= x->draws) engine_learn_cost(&x->draw_us, (double)us / parts);
    x->flight_us += us;
    x->left = left;
}

/* A forward that ran in one go took so long. */
static void engine_learn_flight(engine_scratch *x, int64_t us) {
    if (!x->batch.prepared) engine_learn_cost(&x->cost_us[engine_cost_at(x->batch.row_count)], (double)us);
}

/* All of what took off, in one go. */
static cairn_status engine_fly_through(cairn_model *m) {
    engine_scratch *x = m->scratch;
    const int64_t start = os_now_us();
    cairn_status status;
    status = engine_run(m);
    x->flight_us = os_now_us() - start;
    if (x->flight_us < x->batch.took_us) x->flight_us = x->batch.took_us; /* most of it before the call */
    engine_learn_flight(x, x->flight_us);
    return status;
}

/* Begins what took off. */
static cairn_status engine_begin_flight(cairn_model *m) {
    engine_scratch *x = m->scratch;
    const int64_t start = os_now_us();
    cairn_status status = m->backend->begin(m, &m->kv, &x->batch);
    if (!status) x->total = x->left = m->backend->advance ? m->backend->advance(m, 0) : 1;
    x->flight_us = os_now_us() - start;
    return status;
}

/* Layers that a device may have been told before it came past them, so that it is free for others after
 * slice_us. */
static int engine_layers_ahead(const cairn_model *m) {
    const engine_scratch *x = m->scratch;
    const double slice = (double)m->runtime->config.slice_us, whole = engine_cost(m, x->batch.row_count);
    double layers = slice * (double)m->shape.layers;
    if (slice <= 0.0) return INT_MAX;
    layers /= whole > 0.0 ? whole : 4.0 * slice;
    return layers < 1.0 ? 1 : layers < (double)m->shape.layers ? (int)layers : INT_MAX;
}

/* Sleeps for half of what the device is thought to need, then looks again and again; not while there is more to
 * tell it, for which it would wait. */
static void engine_doze(cairn_model *m, int64_t began_us, int64_t until_us, bool told) {
    const engine_scratch *x = m->scratch;
    const int64_t now = os_now_us(), end = began_us + (int64_t)engine_cost(m, x->batch.row_count);
    int64_t us = ((end < until_us ? end : until_us) - now) / 2 - OS_SLEEP_LATE_US;
    if (us > ENGINE_HEED_US) us = ENGINE_HEED_US;
    handles_release(m->runtime, true);
    if (us > 0 && told) os_sleep_us(us);
    else os_thread_yield();
    handles_retake(m->runtime, true);
}

/* The forward in flight on a device that is asked now and then, until it has landed, its time is over,
 * or one of its sessions is cancelled. */
static cairn_status engine_fly_asking(cairn_model *m, int64_t until_us) {
    engine_scratch *x = m->scratch;
    const int range = engine_open_range(m), layers = engine_layers_ahead(m);
    const int64_t began = os_now_us();
    int64_t took = 0;
    bool done = false, late = false;
    cairn_status status = CAIRN_OK;
    while (!status && !done && !late && !engine_is_flight_cancelled(m)) {
        status = m->backend->poll(m, layers, &done, &took);
        late = os_now_us() >= until_us;
        if (!status && !done && !late) engine_doze(m, began, until_us, took >= 0);
    }
    TRACE_SHUT(&m->runtime->device, range, x->batch.row_count);
    x->flight_us += os_now_us() - began;
    if (done) x->left = 0;
    if (done && took) engine_learn_flight(x, took);
    if (done && x->flight_us < took) x->flight_us = took; /* most of it between calls */
    if (!status && x->left && !late) engine_give_up(m);
    return status;
}

/* Whether a blocking call may run what took off in one go: a cancel would not be heard before. */
static bool engine_is_soon_over(const cairn_model *m) {
    const double us = engine_cost(m, m->scratch->batch.row_count);
    return m->runtime->config.slice_us == 0 && us > 0.0 && us < ENGINE_HEED_US;
}

/* Works on the forward in flight until it has landed (left is 0), its time is over, or one of its
 * sessions is cancelled: then it is given up. first: at least one part, whatever the time. */
static cairn_status engine_fly(cairn_model *m, int64_t until_us, bool first) {
    engine_scratch *x = m->scratch;
    const bool begins = !x->begun;
    cairn_status status;
    if (begins) {
        x->begun = true;
        x->left = 0;
        x->batch.heat = profile_heat(x);
        if (!m->backend->begin || (m->backend->poll && until_us == INT64_MAX && engine_is_soon_over(m)))
            return engine_fly_through(m);
        if ((status = engine_begin_flight(m))) return status;
    }
    if (m->backend->poll) return x->left ? engine_fly_asking(m, until_us) : CAIRN_OK;
    while (x->left && !engine_is_flight_cancelled(m)) {
        int64_t now = os_now_us(), step = now + ENGINE_HEED_US;
        int parts = engine_parts_within(m, (double)((step < until_us ? step : until_us) - now));
        if (!parts && (first || step < until_us)) parts = 1;
        if (!parts) return CAIRN_OK;
        engine_advance(m, parts);
        first = false;
    }
    if (x->left) engine_give_up(m);
    return CAIRN_OK;
}

/* ---- what comes next ------------------------------------------------------------------------- */

/* Tokens from `cached` on that stay inside a page. */
static int engine_inside(const cairn_session *s) {
    const int size = s->model->kv.page_size;
    return engine_tokens_in(s, (engine_whole_pages(s, s->cached) + 1) * size) - s->cached;
}

/* Tokens from `cached` on, none sampled, that bring it towards `end`: of those that run alike a
 * chunk at most; such as run as step stay inside a page, so that what they may select is complete
 * before them. */
static engine_part engine_plan_chunk(cairn_session *s, int end, int most) {
    int inside = engine_inside(s);
    engine_part part = engine_part_of(s, FORWARD_PROMPT, engine_run_length(s, s->cached, end));
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

/* What one more row costs a decode step, in plain steps: as measured here once layers of one row and
 * of 4 to 7 were, or of 2 and 3, before that as the backend says. */
static float engine_row_cost(const cairn_model *m) {
    const double *known = m->scratch->cost_us, some = known[2] > 0.0 ? known[2] : known[1];
    double cost;
    if (!m->backend->advance || known[0] <= 0.0 || some <= 0.0) return m->backend->row_cost;
    cost = (some / known[0] - 1.0) / (known[2] > 0.0 ? 4.5 : 1.5);
    return cost < 0.05 ? 0.05f : cost > 1.0 ? 1.0f : (float)cost;
}

/* ---- drafts from masks ----------------------------------------------------------------------- */

/* Whether rows may see less than all before them: nothing but keys and values is kept of a sequence, and
 * each layer sees all of it. */
static bool engine_takes_masks(const cairn_model *m) {
    if (m->states.count > 1) return false;
    for (int i = 0; i < m->shape.layers; i++)
        if (m->plan.layers[i].window || m->plan.layers[i].mixer != PLAN_ATTENTION) return false;
    return true;
}

/* Whether the session drafts from mask tokens: by a gated adapter, where rows may. */
static bool engine_has_masks(cairn_session *s) {
    cairn_model *m = s->model;
    engine_scratch *x = m->scratch;
    if (engine_config(s)->drafter != CAIRN_DRAFTER_MTP || !s->adapter || engine_adapter(s) ||
        !engine_takes_masks(m))
        return false;
    if (!x->hidden)
        x->hidden = (float *)base_new(engine_base(s), (size_t)x->rows * (size_t)m->shape.hidden,
                                      sizeof *x->hidden);
    return x->hidden != NULL;
}

/* What steps cost that draft from masks; false: a plain one was not measured yet. */
static bool engine_pace_costs(const cairn_model *m, pace_costs *out) {
    const engine_scratch *x = m->scratch;
    double plain = x->cost_us[0];
    if (plain <= 0.0) return false;
    for (int i = 0; i < PACE_BUCKETS; i++) out->rows[i] = x->cost_us[i] / plain;
    out->few = m->backend->few_rows;
    if (m->backend->advance) plain = plain * m->shape.layers + x->head_us;
    out->row = (double)engine_row_cost(m);
    out->head = x->head_us > 0.0 ? x->head_us / plain : out->row;
    out->apart = m->runtime->config.drafter == CAIRN_DRAFTER_MODEL;
    if (out->apart && x->head_us <= 0.0)
        out->head = (double)m->drafts->plan.parameters / (double)m->plan.parameters;
    return true;
}

/* How many masks, how many fewer behind the last, and how many of the drafts, of as many as there is room
 * for. */
static int engine_pace(const cairn_session *s, int most, int *drafts, int *short_by) {
    pace_costs costs;
    int masks;
    if (!engine_config(s)->draft_adaptive) return most;
    if (!engine_pace_costs(s->model, &costs)) return *drafts = 0;
    masks = pace_next(&s->pace, &costs, most, drafts);
    *short_by = pace_short(&costs, *drafts, masks);
    return masks;
}

/* Whether drafts are drawn, and verified by what they were drawn from: tokens come as from the model
 * then, but others than without drafts. */
static bool engine_is_chained(const cairn_session *s) {
    sample_params params;
    engine_sample_params(s, &params);
    return !engine_config(s)->deterministic && params.temperature > 0.0f && !s->constraint &&
           !s->bias && !s->row_logprobs && !s->model->scratch->swap.to_count;
}

/* Of logits and of probabilities, and of the space that makes these. */
static size_t engine_chain_bytes(int vocab) {
    return 2 * ENGINE_ROWS * (size_t)vocab * sizeof(float) + sample_space_bytes(vocab);
}

/* Memory to draw drafts and to verify them; without it they are the likeliest. */
static bool engine_open_chain(cairn_session *s) {
    engine_chain *c = &s->model->scratch->chain;
    base *b = engine_base(s);
    const int vocab = s->model->shape.vocab;
    if (!s->ahead_probs)
        s->ahead_probs = (float *)base_new(b, (size_t)DRAFTER_MOST * (size_t)vocab, sizeof(float));
    if (s->ahead_probs && !c->memory &&
        (c->memory = base_new(b, engine_chain_bytes(vocab), 1))) {
        c->target = (float *)c->memory;
        c->logits = c->target + (size_t)ENGINE_ROWS * (size_t)vocab;
        sample_space_place((char *)(c->logits + (size_t)ENGINE_ROWS * (size_t)vocab), vocab, &c->space);
    }
    if (!s->ahead_probs || !c->memory) b->error[0] = '\0';
    return s->ahead_probs && c->memory;
}

/* Whether the step behind the part has as many drafts and masks, however many of its drafts hold; longest: masks that
 * there is room for. */
static bool engine_repeats(const cairn_session *s, const engine_part *part, int longest) {
    pace_costs costs;
    if (part->drafts != part->masks || part->short_by || part->chained) return false;
    if (!engine_config(s)->draft_adaptive) return true;
    if (!engine_pace_costs(s->model, &costs)) return false;
    for (int accepted = 0; accepted <= part->drafts; accepted++) {
        pace after = s->pace;
        int drafts = part->drafts;
        pace_learn(&after, &costs, part->drafts, accepted, part->masks);
        if (pace_next(&after, &costs, longest, &drafts) != part->masks || drafts != part->drafts) return false;
    }
    return true;
}

/* Drafts that an earlier step made for what follows now, `room` tokens or fewer, and masks behind each
 * for the step to come: as many as rows, context and pages have room for. */
static void engine_draft_masks(cairn_session *s, engine_part *part, int room, int most) {
    cairn_model *m = s->model;
    const int length = engine_config(s)->draft_length, free_pages = m->kv.pool.free_count;
    int left = (engine_pages(s) + free_pages) * m->kv.page_size - s->count, drafts = 0, k, longest;
    if (s->ahead_at == s->count && s->ahead_last == s->tokens[s->count - 1])
        drafts = s->ahead_count < room - 1 ? s->ahead_count : room - 1;
    if (drafts > length) drafts = length;
    if (left > m->max_seq_len - s->count) left = m->max_seq_len - s->count;
    if (left > most - 1) left = most - 1;
    if (drafts > left) drafts = left > 0 ? left : 0;
    for (k = length < DRAFTER_MOST ? length : DRAFTER_MOST; k > 0; k--)
        if (drafts + (drafts + 1) * k <= left) break;
    longest = k;
    k = engine_pace(s, room > 1 ? k : 0, &drafts, &part->short_by);
    memcpy(s->tokens + s->count, s->ahead, (size_t)drafts * sizeof *s->ahead);
    part->drafts = drafts;
    part->masks = k;
    part->chained = drafts && s->ahead_drawn && engine_is_chained(s);
    left -= k + 1;
    if (room > 2 * k + 1 && longest + (longest + 1) * longest <= left && engine_repeats(s, part, longest))
        part->says = room;
}

/* What the masks behind the last token that stands say of those to come. */
static void engine_look_ahead(cairn_session *s, const engine_part *part) {
    const int accepted = s->fresh_count - 1, hidden = s->model->shape.hidden;
    engine_scratch *x = s->model->scratch;
    const int64_t start = os_now_us();
    sample_ask ask;
    memset(&ask, 0, sizeof ask);
    engine_sample_params(s, &ask.params);
    ask.params.repetition_penalty = 1.0f; /* a guess needs none */
    s->ahead_at = s->count + accepted + 1;
    s->ahead_last = s->fresh[accepted];
    s->ahead_count = part->masks - (accepted == part->drafts ? part->short_by : 0);
    ask.position = s->ahead_at;
    s->ahead_drawn = engine_is_chained(s) && engine_open_chain(s);
    if (s->model->backend->draft(s->model, s->adapter,
                                 part->hidden + (size_t)(accepted * part->masks) * (size_t)hidden,
                                 s->ahead_last, s->ahead_count, s->ahead_drawn ? &ask : NULL,
                                 s->ahead_probs, s->ahead))
        s->ahead_count = 0; /* the next forward says what went wrong, if it still does */
    engine_learn_cost(&x->head_us, (double)(os_now_us() - start) / part->masks);
}

/* Verifies drafts by what they were drawn from; returns how many stand, before the last of sampled. */
static int engine_verify_chain(const engine_part *part, int32_t *sampled) {
    cairn_session *s = part->s;
    engine_scratch *x = s->model->scratch;
    const int vocab = s->model->shape.vocab, drafts = part->drafts;
    const int32_t position = s->count;
    int32_t accepted = 0, bonus = 0;
    int rows = 0; /* whose logits are numbers */
    int64_t seed, wrong;
    verify_chain_params p;
    sample_ask ask;
    memset(&p, 0, sizeof p);
    for (int i = 0; i <= drafts && i <= rows; i++) {
        const float *logits = part->target + (size_t)i * (size_t)vocab;
        rows += sample_has_number(logits, NULL, vocab);
        engine_ask(s, s->count - 1 + i, s->count - 1, s->count + drafts, &ask);
        ops_probs_row(&x->chain.space, &ask, logits, x->chain.target + (size_t)i * (size_t)vocab);
    }
    seed = (int64_t)ask.params.seed;
    p.draft_probs = s->ahead_probs, p.target = x->chain.target, p.drafts = s->tokens + s->count;
    p.seeds = &seed, p.positions = &position, p.tokens = sampled;
    p.accepted = &accepted, p.bonus = &bonus;
    p.drafts_count = drafts < rows ? drafts : rows, p.vocab = vocab;
    ops_probs_chain(&p, 0, &wrong);
    if (accepted == rows) sampled[accepted] = CAIRN_SAMPLE_NO_NUMBER;
    return accepted;
}

/* Whether the model that drafts has a part in the session's steps. */
static bool engine_has_shadow(const cairn_session *s) {
    return engine_config(s)->drafter == CAIRN_DRAFTER_MODEL && s->model->drafts && !s->of;
}

/* How many of the first tokens the session and its shadow have in common, run alike. */
static int engine_agree(cairn_session *s) {
    const cairn_session *d = s->shadow;
    while (s->agreed < s->count && s->agreed < d->count &&
           s->tokens[s->agreed] == d->tokens[s->agreed] &&
           engine_is_given(s, s->agreed) == engine_is_given(d, s->agreed))
        s->agreed++;
    return s->agreed;
}

/* How many tokens the shadow has drafted behind the session's last. */
static int engine_drafted(cairn_session *s) {
    return s->shadow && engine_agree(s) == s->count ? s->shadow->count - s->count : 0;
}

static int engine_take_drafts(cairn_session *s, int limit) {
    const int drafted = engine_drafted(s), count = drafted < limit ? drafted : limit;
    if (count) memcpy(s->tokens + s->count, s->shadow->tokens + s->count,
                      (size_t)count * sizeof *s->tokens);
    return count;
}

/* Tokens to draft now: no more than the generation can still use and the pages hold. */
static int engine_draft_tokens(cairn_session *s, int room) {
    const cairn_config *config = engine_config(s);
    int limit = config->draft_length < room - 1 ? config->draft_length : room - 1, held;
    const page_pool *free_pages = &s->model->kv.pool;
    const bool shadow = engine_has_shadow(s) && engine_drafted(s);
    if ((config->drafter != CAIRN_DRAFTER_NGRAM && !shadow) || limit < 1) return 0;
    engine_make_room(s->model, engine_need_pages(s, s->count + limit, 0), 0);
    held = engine_tokens_in(s, (engine_pages(s) + free_pages->free_count) *
                                   s->model->kv.page_size) - s->count;
    if (limit > held) limit = held;
    for (int g = 1; g <= s->model->groups.count; g++) {
        engine_make_room(s->model, engine_need_pages(s, s->count + limit, g), g);
        while (limit > 0 && engine_need_pages(s, s->count + limit, g) >
                                engine_free_pages(s->model, g)) limit--;
    }
    if (shadow) return engine_take_drafts(s, limit);
    if (!s->drafter.heads && drafter_open(engine_base(s), s->model->max_seq_len, &s->drafter)) {
        engine_base(s)->error[0] = '\0'; /* short of memory: plain decoding goes on */
        return 0;
    }
    return drafter_propose(&s->drafter, s->tokens, s->count, limit,
                           config->draft_adaptive ? engine_row_cost(s->model) : 0.0f,
                           s->tokens + s->count);
}

static int engine_draft(cairn_session *s, int room) {
    device *dev = &s->model->runtime->device;
    const int range = TRACE_OPEN(dev, "draft", false), drafts = engine_draft_tokens(s, room);
    TRACE_SHUT(dev, range, drafts);
    return drafts;
}

/* What a session that wants up to `room` (>= 1) more tokens does next, in `most` rows at most. */
static engine_part engine_plan_step(cairn_session *s, int room, int most) {
    int chunk = engine_config(s)->prefill_chunk, left = s->count - s->cached;
    engine_part part = engine_part_of(s, FORWARD_STEP, 1);
    part.sampled = 1;
    if (most > chunk) most = chunk;
    if (engine_is_prompt(s, s->count - 1)) {
        int last = engine_last_chunk(s, most);
        if (left > last) return engine_plan_chunk(s, s->count - last, most);
        part.kind = FORWARD_PROMPT;
        part.rows = left;
        return part;
    }
    if (left > 1) return engine_plan_chunk(s, s->count - 1, most);
    if (s->options.plain || engine_config(s)->drafter == CAIRN_DRAFTER_NONE) part.says = room;
    if (s->options.plain) return part;
    if (engine_has_masks(s)) engine_draft_masks(s, &part, room, most);
    else part.drafts = engine_draft(s, room < most ? room : most);
    part.rows = part.sampled = 1 + part.drafts;
    return part;
}

/* ---- what it made ---------------------------------------------------------------------------- */

/* Keeps what a decode step sampled: drafts while they equal it, then the token after them. */
static void engine_verify(const engine_part *part) {
    cairn_session *s = part->s;
    int32_t *sampled = part->tokens;
    device *dev = &s->model->runtime->device;
    const int drafts = part->drafts, range = TRACE_OPEN(dev, "verify", false);
    int accepted = 0;
    pace_costs costs;
    if (part->target) accepted = engine_verify_chain(part, sampled);
    else while (accepted < drafts && s->tokens[s->count + accepted] == sampled[accepted]) accepted++;
    if (drafts && engine_config(s)->drafter == CAIRN_DRAFTER_NGRAM)
        drafter_learn(&s->drafter, drafts, accepted);
    if ((engine_has_masks(s) || engine_has_shadow(s)) && engine_pace_costs(s->model, &costs)) {
        pace_learn(&s->pace, &costs, drafts, accepted, costs.apart ? drafts : part->masks);
        s->model->scratch->pace = s->pace, s->model->scratch->pace_of = s->adapter;
    }
    memcpy(s->fresh, sampled, (size_t)(accepted + 1) * sizeof *sampled);
    s->fresh_count = accepted + 1;
    s->fresh_at = 0;
    s->cached = s->count + accepted;
    s->stats.proposed += drafts;
    s->stats.accepted += accepted;
    if (s->measured && s->model->scratch->profile)
        profile_accept(s->model->scratch->profile, drafts, accepted);
    TRACE_SHUT(dev, range, 1 + drafts);
}

/* Pages that a layer keeps of the session in a step, in the mean. */
static double engine_pages_held(const cairn_session *s, const engine_part *part) {
    const cairn_model *m = s->model;
    const int pages = engine_pages_for(s, s->count + part->drafts);
    double fewer = 0.0;
    for (int g = 0; g < m->groups.count; g++)
        fewer += (double)m->groups.layers[g] * (double)window_first(&m->windows[g], s->row);
    return (double)pages - (m->groups.count ? fewer / (double)m->shape.kv_layers : 0.0);
}

static void engine_count_step(cairn_session *s, const engine_part *part, double seconds) {
    const model_shape *shape = &s->model->shape;
    s->stats.forwards++;
    s->pages_read += (double)part->pages_read / ((double)shape->kv_layers * (double)shape->kv_heads);
    s->pages_held += engine_pages_held(s, part);
    s->stats.decode_seconds += seconds;
}

/* Takes over what a forward made of a part, which took so long. Where drafts or masks ran beside a row
 * without numbers these may be why (0 times NaN is NaN, on a GPU for keys that a row does not see, too):
 * then nothing, and the next step runs without. */
static void engine_take_part(const engine_part *part, double seconds) {
    cairn_session *s = part->s;
    if (part->kind == FORWARD_STEP && part->sampled) {
        const bool alone = !part->drafts && !part->masks;
        if (alone || part->tokens[0] != CAIRN_SAMPLE_NO_NUMBER) engine_verify(part);
        else s->options.plain = true;
        if (part->masks && s->fresh_count && s->fresh[s->fresh_count - 1] >= 0) engine_look_ahead(s, part);
        engine_count_step(s, part, seconds);
        return;
    }
    if (part->kind == FORWARD_PROMPT && s->pure == s->cached) s->pure += part->rows;
    s->cached += part->rows;
    if (part->sampled || s->model->groups.count) engine_remember(s); /* windows move on */
    if (!part->sampled) return;
    s->fresh[0] = part->tokens[0];
    s->fresh_count = 1;
    s->fresh_at = 0;
}

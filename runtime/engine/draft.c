/* draft: drafts by a smaller model. It is a model of the same tokens beside its own, with pages of its
 * own; a session has a shadow there, whose tokens are the session's and, behind them, what was drafted.
 * Nothing tells a shadow of rewinds, forks and snapshots: before it drafts it is cut back to what both
 * have in common. A token runs there as it does in the session, so that what is drafted behind a text is
 * what the small model alone says.
 *
 * One token a session and forward: those of all sessions that want more run together, until each has as
 * many as its pace says. What a shadow lacks of a prompt it takes in slices, one beside each step of its
 * session, which does without drafts meanwhile. Calls step. */

/* Tokens that its next step is to verify, as long as nothing is known of the rest. */
static int draft_wish(const cairn_session *s) {
    const cairn_config *config = engine_config(s);
    int limit = engine_room(s) - 1, none = 0;
    pace_costs costs;
    if (limit > config->draft_length) limit = config->draft_length;
    if (limit > DRAFTER_MOST) limit = DRAFTER_MOST;
    if (limit < 1 || !config->draft_adaptive) return limit < 1 ? 0 : limit;
    return engine_pace_costs(s->model, &costs) ? pace_next(&s->pace, &costs, limit, &none) : 0;
}

/* Whether the session's next step waits for a draft. */
static bool draft_is_due(cairn_session *s) {
    const bool decodes = s->phase == ENGINE_SAYS && s->wants && s->count - s->cached == 1;
    if (!decodes || s->options.plain || !engine_has_shadow(s) || os_atomic_load(&s->cancel)) return false;
    if (s->wanted_at != s->count) s->wanted_at = s->count, s->wanted = draft_wish(s);
    return engine_drafted(s) < s->wanted;
}

/* Nothing more for this step. */
static void draft_stop(cairn_session *s) { s->wanted = 0; }

static bool draft_open(cairn_session *s) {
    cairn_session *d;
    if (s->shadow) return true;
    if (engine_open(s->model->drafts, &d)) return false;
    memset(&d->options.sampling, 0, sizeof d->options.sampling); /* the likeliest */
    d->options.has_sampling = true;
    d->options.sampling.top_p = d->options.sampling.repetition_penalty = 1.0f;
    d->of = s;
    s->shadow = d;
    s->agreed = 0;
    return true;
}

/* The shadow holds the session's tokens, and what it has drafted behind them. */
static cairn_status draft_follow(cairn_session *s) {
    cairn_session *d = s->shadow;
    const int from = engine_agree(s);
    cairn_status status;
    if (from == s->count) return CAIRN_OK;
    if (from < d->count) engine_cut(d, from);
    if ((status = engine_add(d, s->tokens + from, s->count - from))) return status;
    for (int i = from; i < s->count; i++) engine_set_given(d, i, engine_is_given(s, i));
    return CAIRN_OK;
}

/* Shadows of sessions that say nothing now leave their pages to others. */
static void draft_make_room(cairn_model *m) {
    for (cairn_session *s = m->sessions; s; s = s->next)
        if (s->shadow && s->phase == ENGINE_IDLE) engine_cut(s->shadow, 0), s->agreed = 0;
}

/* The shadow's next part, in `most` rows at most: where none but the last two tokens are left, as after a
 * step whose drafts were all right, they run together. */
static engine_part draft_part(cairn_session *d, int most) {
    engine_part part = engine_plan_step(d, 1, most);
    if (part.sampled || part.kind != FORWARD_STEP || part.rows != d->count - d->cached - 1 ||
        part.rows >= most || part.rows >= engine_inside(d) || engine_is_prompt(d, d->count - 1))
        return part;
    part.rows++;
    part.sampled = 1;
    return part;
}

static bool draft_put(cairn_session *s, int most) {
    cairn_model *m = s->model->drafts;
    engine_scratch *x = m->scratch;
    cairn_status status = draft_open(s) ? draft_follow(s) : CAIRN_OUT_OF_MEMORY;
    if (status == CAIRN_POOL_FULL) draft_make_room(s->model), status = draft_follow(s);
    if (!status) status = engine_reserve(s->shadow, s->shadow->count);
    if (status) {
        engine_base(s)->error[0] = '\0'; /* plain decoding goes on */
        draft_stop(s);
        return false;
    }
    x->parts[x->part_count++] = draft_part(s->shadow, most);
    return true;
}

/* The next forward of the model that drafts; false: nothing is due. */
static bool draft_plan(cairn_model *m, double limit_us) {
    engine_scratch *x = m->drafts->scratch;
    int rows = x->rows, slice = engine_slice(m->drafts, m->runtime->config.prefill_chunk, limit_us);
    for (cairn_session *s = m->sessions; s && rows > 0 && x->part_count < x->sequences; s = s->next)
        if (draft_is_due(s) && draft_put(s, slice < rows ? slice : rows))
            rows -= x->parts[x->part_count - 1].rows;
    if (x->part_count) engine_take_off(m->drafts);
    return x->part_count > 0;
}

/* What the forward made of a part: the next draft, or nothing as long as a prompt is not done. */
static void draft_take(cairn_model *m, const engine_part *part) {
    cairn_session *d = part->s;
    bool says;
    if (part->kind == FORWARD_PROMPT && d->pure == d->cached) d->pure += part->rows;
    d->cached += part->rows;
    if (part->kind == FORWARD_PROMPT && part->sampled) engine_remember(d);
    says = part->sampled && part->tokens[0] >= 0; /* a token */
    if (says) engine_add_said(d, part->tokens[0]);
    if (!says || tokenizer_is_end(&m->tokenizer, part->tokens[0])) draft_stop(d->of);
}

static void draft_land(cairn_model *m) {
    engine_scratch *x = m->drafts->scratch;
    const int count = x->part_count;
    bool drafts = true;
    engine_touch_down(m->drafts);
    engine_give_up(m->drafts);
    for (int i = 0; i < count; i++) {
        drafts &= x->parts[i].sampled && x->parts[i].kind == FORWARD_STEP;
        draft_take(m, &x->parts[i]);
    }
    if (drafts && !x->batch.prepared)
        engine_learn_cost(&m->scratch->head_us, (double)x->flight_us / count);
}

/* Goes on with drafts that the next forward waits for; false: there are none to wait for. */
static bool draft_turn(cairn_model *m, int64_t until_us, double limit_us, bool first) {
    engine_scratch *x = m->drafts ? m->drafts->scratch : NULL;
    device *dev = &m->runtime->device;
    cairn_status status;
    int range;
    if (!x || (!x->part_count && !draft_plan(m, limit_us))) return false;
    range = TRACE_OPEN(dev, "draft", true);
    status = engine_fly(m->drafts, until_us, first);
    TRACE_SHUT(dev, range, x->batch.row_count);
    if (!status) {
        if (x->part_count && x->begun && !x->left) draft_land(m);
        return true;
    }
    for (int i = 0; i < x->part_count; i++) draft_stop(x->parts[i].s->of);
    engine_give_up(m->drafts);
    m->runtime->base.error[0] = '\0'; /* the next forward says what went wrong, if it still does */
    return true;
}

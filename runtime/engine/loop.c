/* loop: what the requests of a model do next. Every call that works on a model turns it: the blocking
 * ones until their request has what they wait for, cairn_step until its time is over.
 *
 * A turn plans a forward, or goes on with the one in flight: decode steps, and prompts in slices that
 * leave room for them. The higher priority comes first, then decode steps, then who wants its first token
 * soonest, then who waited longer.
 * A request that finds no free pages waits, and where it outranks others these give theirs back; so
 * does the last where all wait for each other, and an idle session where all wait for such ones. What
 * gave its pages back computes its state anew once there is room, as every token ran before: to the
 * same bits.
 * Calls draft, generate, step, session, reload. */

/* ---- order and room -------------------------------------------------------------------------- */

static bool loop_has_work(const cairn_session *s) { return s->phase != ENGINE_IDLE && s->wants; }

static bool loop_decodes(const cairn_session *s) {
    return s->phase == ENGINE_SAYS && s->count - s->cached == 1;
}

/* Whether it is at a prompt, and how many rows of that are still to be computed. */
static bool loop_reads(const cairn_session *s) { return s->phase == ENGINE_WAITS || s->phase == ENGINE_PROMPT; }
static int loop_rows_left(const cairn_session *s) { return s->count - s->cached + (int)s->waiting.size; }

/* When its first token is wanted that is still to come. */
static int64_t loop_wanted_us(const cairn_session *s) {
    return s->phase == ENGINE_SAYS ? INT64_MAX : s->wanted_us;
}

static bool loop_is_before(const cairn_session *a, const cairn_session *b) {
    bool decodes = loop_decodes(a);
    if (a->options.priority != b->options.priority)
        return a->options.priority > b->options.priority;
    if (decodes != loop_decodes(b)) return decodes;
    if (decodes && a->served != b->served) return a->served < b->served;
    if (loop_wanted_us(a) != loop_wanted_us(b)) return loop_wanted_us(a) < loop_wanted_us(b);
    return a->ticket < b->ticket;
}

/* The first of those that this turn has not looked at; NULL: there is none. */
static cairn_session *loop_next(cairn_model *m) {
    cairn_session *best = NULL;
    for (cairn_session *s = m->sessions; s; s = s->next)
        if (loop_has_work(s) && s->turn != m->scratch->turn && (!best || loop_is_before(s, best)))
            best = s;
    return best;
}

/* Other requests that hold pages and will need more. */
static int loop_others(const cairn_session *s) {
    int others = 0;
    for (const cairn_session *o = s->model->sessions; o; o = o->next)
        others += o != s && loop_has_work(o) && o->phase != ENGINE_WAITS && !o->aside;
    return others;
}

/* Whether there are pages for so many tokens, and one for each of the others: a request that comes
 * in while others run does not take what they are about to need. */
static bool loop_fits(cairn_session *s, int tokens) {
    cairn_model *m = s->model;
    const int others = loop_others(s);
    for (int g = 0; g <= m->groups.count && others; g++) {
        const int need = others + engine_need_pages(s, tokens, g);
        engine_make_room(m, need, g);
        if (need <= engine_free_pages(m, g)) continue;
        engine_note_error(s, base_fail(engine_base(s), CAIRN_POOL_FULL,
                                       "%d pages are needed, %d of %d are free", need,
                                       engine_free_pages(m, g), engine_pool_pages(m, g)));
        return false;
    }
    return true;
}

/* ---- phases of a request --------------------------------------------------------------------- */

/* The request is over, or its call has what it waited for. */
static void loop_rest(cairn_session *s) {
    s->wants = s->starved = s->aside = false;
    if (s->appending || !s->generating) s->phase = ENGINE_IDLE;
    s->appending = false;
    if (s->tally && s->phase == ENGINE_IDLE) engine_cut(s, 0); /* its pages serve other rows */
}

/* Ends the request before its time; a prompt that was not done leaves the sequence. */
static void loop_end(cairn_session *s, cairn_stop stop, cairn_status status) {
    bool prompt = loop_reads(s), appending = s->appending;
    engine_note_error(s, status);
    s->outcome = status;
    if (s->phase == ENGINE_PROMPT) engine_take_back(s, s->held_before, s->cached_before);
    tokenizer_ids_free(engine_base(s), &s->waiting);
    if (prompt && !appending) {
        engine_reset_stats(s);
        engine_note_point(s);
    }
    if (!appending) engine_finish(s, stop, status);
    loop_rest(s);
}

/* The prompt is done: tokens follow. */
static void loop_begin_saying(cairn_session *s) {
    engine_reset_stats(s);
    engine_note_point(s);
    s->phase = ENGINE_SAYS;
    s->generating = true;
    if (s->pulled) loop_rest(s);
}

/* Whether an append is done: what comes next takes the few tokens along that are left, in one forward. */
static bool loop_has_appended(const cairn_session *s) {
    const int chunk = engine_config(s)->prefill_chunk, few = s->model->backend->poll ? ENGINE_LEFT_ROWS : 1;
    return s->count - s->cached <= (few < chunk ? few : chunk);
}

/* Takes the waiting ids into the sequence; false where they must wait, or the request has ended. */
static bool loop_admit(cairn_session *s) {
    cairn_status status = CAIRN_POOL_FULL;
    s->held_before = s->count, s->cached_before = s->cached;
    if (loop_fits(s, s->count + (int)s->waiting.size)) {
        status = engine_add(s, s->waiting.data, (int)s->waiting.size);
        if (status) engine_note_error(s, status);
    }
    s->starved = status == CAIRN_POOL_FULL;
    if (status && !s->starved) loop_end(s, CAIRN_STOP_ERROR, status);
    if (status) return false;
    engine_note_error(s, CAIRN_OK);
    tokenizer_ids_free(engine_base(s), &s->waiting);
    s->phase = ENGINE_PROMPT;
    if (s->appending) {
        if (s->count - s->cached <= 1) loop_rest(s);
        return s->wants;
    }
    s->from_prompt = engine_room(s) > 0 && engine_is_prompt(s, s->count - 1);
    if (!s->from_prompt) loop_begin_saying(s);
    return s->wants;
}

/* The tokens of a submitted request become text. */
static void loop_take_fresh(cairn_session *s) {
    while (s->generating && s->fresh_at < s->fresh_count) {
        int32_t id = s->fresh[s->fresh_at++];
        cairn_status status = engine_take(s, id);
        if (status) {
            loop_end(s, CAIRN_STOP_ERROR, status);
            return;
        }
        s->last_id = id;
    }
    if (!s->generating) loop_rest(s);
}

/* ---- a turn ---------------------------------------------------------------------------------- */

/* Room for the session's tokens; where nobody misses the page also for the next one, whose step a device may begin
 * before it is asked for. */
static cairn_status loop_reserve(cairn_session *s) {
    const bool goes_on = s->model->backend->poll && loop_decodes(s) && engine_room(s) > 1;
    if (goes_on && engine_need_pages(s, s->count + 1, 0) > engine_need_pages(s, s->count, 0) &&
        loop_fits(s, s->count + 1) && !engine_reserve(s, s->count + 1))
        return CAIRN_OK;
    return engine_reserve(s, s->count);
}

/* The session's part of the next forward, in `most` rows at most; false: it has none. */
static bool loop_put(cairn_session *s, int most) {
    engine_scratch *x = s->model->scratch;
    engine_part *part = &x->parts[x->part_count];
    cairn_status status = CAIRN_POOL_FULL;
    if (s->phase == ENGINE_WAITS && !loop_admit(s)) return false;
    if (s->phase == ENGINE_SAYS && engine_room(s) < 1) {
        engine_finish(s, CAIRN_STOP_LENGTH, CAIRN_OK);
        loop_rest(s);
        return false;
    }
    engine_go_back(s, s->cached);
    s->fresh_count = s->fresh_at = 0;
    most = engine_tokens_in(s, engine_slots(s, s->cached) + most) - s->cached;
    if (most < 1) return false;
    if ((status = engine_check_selection(s))) {
        loop_end(s, CAIRN_STOP_ERROR, status);
        return false;
    }
    status = CAIRN_POOL_FULL;
    if (!s->aside || loop_fits(s, s->count + 1)) {
        if (!(status = loop_reserve(s))) {
            if (s->appending && loop_has_appended(s)) return loop_rest(s), false;
            if (s->appending) *part = engine_plan_chunk(s, s->count - 1, most);
            else *part = engine_plan_step(s, engine_room(s), most);
            if (s->constraint && part->sampled) status = engine_constrain(s, part);
            if (!status)
                status = engine_reserve(s, s->count + part->drafts + part->sampled * part->masks);
        }
        if (status) engine_note_error(s, status);
    }
    s->starved = status == CAIRN_POOL_FULL;
    if (status && !s->starved) loop_end(s, CAIRN_STOP_ERROR, status);
    if (status) return false;
    s->aside = false;
    engine_note_error(s, CAIRN_OK);
    if (part->sampled) s->served = x->turn;
    x->part_count++;
    return true;
}

static void loop_end_cancelled(cairn_model *m) {
    for (cairn_session *s = m->sessions; s; s = s->next)
        if (loop_has_work(s) && os_atomic_load(&s->cancel))
            loop_end(s, CAIRN_STOP_CANCEL, base_fail(engine_base(s), CAIRN_CANCELLED,
                                                     "cancelled at token %d", s->count));
}

/* The session gives its pages back; its tokens run again, as they ran, once there is room: a request
 * waits for that, an idle session asks when it is asked. */
static void loop_give_back(cairn_session *s) {
    engine_go_back(s, 0);
    state_cut(&s->model->states, s->row, 0);
    s->aside = s->phase != ENGINE_IDLE;
}

static bool loop_outranks(const cairn_session *s, const cairn_session *other) {
    return loop_has_work(other) && other->phase != ENGINE_WAITS && !other->aside &&
           other->options.priority < s->options.priority;
}

/* Where the highest of those that wait for pages outranks requests whose pages would let it go on,
 * the last of these gives its own back: one a turn. */
static void loop_make_way(cairn_model *m) {
    cairn_session *first = NULL, *last = NULL;
    int pages[1 + KV_WINDOWS];
    for (int g = 0; g <= m->groups.count; g++) pages[g] = engine_free_pages(m, g);
    for (cairn_session *s = m->sessions; s; s = s->next)
        if (loop_has_work(s) && s->starved &&
            (!first || s->options.priority > first->options.priority))
            first = s;
    for (cairn_session *s = m->sessions; s && first; s = s->next) {
        if (!loop_outranks(first, s)) continue;
        for (int g = 0; g <= m->groups.count; g++) pages[g] += engine_own_pages(s, g);
        if (!last || loop_is_before(last, s)) last = s;
    }
    if (!last) return;
    for (int g = 0; g <= m->groups.count; g++)
        if (pages[g] < loop_others(first) +
                           engine_need_pages(first, first->count + (int)first->waiting.size, g))
            return;
    loop_give_back(last);
}

/* The last of those that wait for pages gives its own back to the first; false: none can. */
static bool loop_put_aside(cairn_model *m) {
    cairn_session *first = NULL, *last = NULL;
    for (cairn_session *s = m->sessions; s; s = s->next) {
        if (!loop_has_work(s) || !s->starved) continue;
        if (!first || loop_is_before(s, first)) first = s;
        if (engine_pages(s) && (!last || loop_is_before(last, s))) last = s;
    }
    if (!last || last == first) return false;
    loop_give_back(last);
    return true;
}

/* Where submitted requests wait for idle sessions, the one of these that asked longest ago gives its
 * pages back; false: none can. */
static bool loop_take_idle(cairn_model *m) {
    cairn_session *idle = NULL;
    bool waits = false;
    for (cairn_session *s = m->sessions; s; s = s->next) {
        waits = waits || (loop_has_work(s) && s->starved && s->submitted);
        if (s->phase == ENGINE_IDLE && !s->busy && engine_pages(s) &&
            (!idle || s->ticket < idle->ticket))
            idle = s;
    }
    if (!waits || !idle) return false;
    loop_give_back(idle);
    return true;
}

/* What two prompts of so many rows in one forward spare those that speak meanwhile, against one after the other: to
 * each of them so many microseconds. */
static double loop_shared_us(const cairn_model *m, int rows, int speakers) {
    const double layers = m->backend->advance ? m->shape.layers : 1;
    return layers * (2.0 * engine_cost(m, speakers + rows) - engine_cost(m, speakers + 2 * rows) -
                     engine_cost(m, speakers));
}

/* A prompt or what is left of one, where there are such, of *rows in all, and nothing but decode steps of *speakers
 * sessions would be done meanwhile; NULL: there is none, or one that is wanted soon or outranks who speaks. */
static const cairn_session *loop_find_prompts(const cairn_model *m, int *rows, int *speakers) {
    const cairn_session *found = NULL;
    int least = INT_MAX, most = INT_MIN; /* priorities of those that speak, and of prompts */
    *rows = *speakers = 0;
    for (const cairn_session *s = m->sessions; s; s = s->next) {
        const int priority = s->options.priority;
        if (!loop_has_work(s) || s->starved) continue;
        if (loop_decodes(s)) {
            ++*speakers;
            least = priority < least ? priority : least;
            continue;
        }
        if (!loop_reads(s) || s->wanted_us != INT64_MAX) return NULL;
        *rows += loop_rows_left(s);
        most = priority > most ? priority : most;
        found = s;
    }
    return *speakers && most <= least ? found : NULL;
}

/* Whether prompts wait for others to share a forward with: while many speak, a forward for one prompt delays them all,
 * and one for some prompts hardly longer. They do as long as pays, from the first one's first turn on, and until they
 * are a forward's rows. */
static bool loop_holds_prompts(cairn_model *m, double limit_us) {
    enum { MOST_US = 10000, WORTH = 4 /* what a prompt waits against what others do */ };
    engine_scratch *x = m->scratch;
    const int64_t now = os_now_us();
    int rows, speakers;
    const cairn_session *s = loop_find_prompts(m, &rows, &speakers);
    const bool more = s && rows < engine_slice(m, m->runtime->config.prefill_chunk, limit_us);
    const double worth = more ? speakers * loop_shared_us(m, loop_rows_left(s), speakers) / WORTH : 0.0;
    if (!x->held_us) x->held_us = now;
    if ((double)(now - x->held_us) >= fmin(worth, MOST_US)) x->held_us = 0;
    return x->held_us != 0;
}

/* The parts of the next forward, whose layers take limit_us at most each; holds: none of prompts. */
static void loop_plan_parts(cairn_model *m, double limit_us, bool holds) {
    engine_scratch *x = m->scratch;
    int rows = x->rows, slice = engine_slice(m, m->runtime->config.prefill_chunk, limit_us);
    cairn_session *s;
    for (s = m->sessions; s; s = s->next)
        if (loop_has_work(s) && loop_decodes(s) && slice > ENGINE_LEAST_ROWS) slice--;
    x->turn++;
    while (x->part_count < x->sequences && rows > 0 && (s = loop_next(m))) {
        int most = loop_decodes(s) || slice > rows ? rows : slice;
        s->turn = x->turn;
        if (most < 1 || (holds && loop_reads(s)) || !loop_put(s, most)) continue;
        most = engine_part_rows(&x->parts[x->part_count - 1]);
        rows -= most;
        if (!loop_decodes(s)) slice -= most;
    }
}

/* The first token of each text, to `out`; how many. A text that has none is told of. */
static int loop_first_tokens(cairn_model *m, const char *texts, int count, int32_t *out) {
    base *b = &m->runtime->base;
    int found = 0;
    for (int i = 0; i < count; i++) {
        const char *text = texts + (size_t)i * sizeof m->scratch->budget.replace[0];
        tokenizer_ids ids;
        memset(&ids, 0, sizeof ids);
        if (!tokenizer_encode(b, &m->tokenizer, text, strlen(text), false, &ids) && ids.size)
            out[found++] = ids.data[0];
        else base_log(b, CAIRN_LOG_WARN, "budget: \"%s\" has no first token", text);
        tokenizer_ids_free(b, &ids);
    }
    return found;
}

/* The tokens that the config's budget swaps; found anew where it has changed. */
static void loop_take_budget(cairn_model *m) {
    const cairn_budget *budget = &m->runtime->config.budget;
    const tokenizer *t = &m->tokenizer;
    engine_scratch *x = m->scratch;
    if (!memcmp(budget, &x->budget, sizeof *budget)) return;
    x->budget = *budget;
    x->swap.from = x->swap_from, x->swap.to = x->swap_to;
    x->swap.to_count = loop_first_tokens(m, budget->replace[0], budget->replace_count, x->swap_to);
    x->swap.from_count = loop_first_tokens(m, budget->suppress[0], budget->suppress_count,
                                           x->swap_from);
    if (!budget->force) return;
    x->swap_from[x->swap.from_count++] = t->eos;
    x->swap_from[x->swap.from_count++] = t->eot;
    x->swap_from[x->swap.from_count++] = t->eom;
    x->swap_from[x->swap.from_count++] = t->turn_end;
}

/* Whether a forward like the planned one follows, but for sessions whose text ends, and may begin before it is asked
 * for: all that have something to do are in it, and say one token after the other. */
static bool loop_continues(const cairn_model *m) {
    const engine_scratch *x = m->scratch;
    int says = 0, at_work = 0;
    for (int i = 0; i < x->part_count; i++) says += x->parts[i].says > 0;
    for (const cairn_session *s = m->sessions; s; s = s->next)
        at_work += loop_has_work(s) && !(x->held_us && loop_reads(s));
    return says == x->part_count && says == at_work && !x->profile && m->runtime->config.slice_us == 0;
}

/* Plans a forward from all requests; false: there is nothing to do, or blocking calls alone wait for
 * pages that idle sessions hold. */
static bool loop_plan(cairn_model *m, double limit_us) {
    device *dev = &m->runtime->device;
    const int64_t start = m->scratch->profile ? os_now_us() : 0;
    int range;
    reload_poll(m->runtime);
    loop_take_budget(m);
    loop_end_cancelled(m);
    loop_make_way(m);
    range = TRACE_OPEN(dev, "plan", false);
    if (loop_holds_prompts(m, limit_us)) loop_plan_parts(m, limit_us, true);
    while (!m->scratch->part_count) {
        loop_plan_parts(m, limit_us, false);
        if (!m->scratch->part_count && !loop_put_aside(m) && !loop_take_idle(m)) break;
    }
    TRACE_SHUT(dev, range, 0);
    if (!m->scratch->part_count) return false;
    engine_take_off(m);
    m->scratch->batch.continues = loop_continues(m);
    if (m->scratch->profile)
        profile_add_phase(m->scratch->profile, PROFILE_PLAN, m->scratch->batch.row_count,
                          os_now_us() - start);
    return true;
}

/* What the forward made of a part, which took so long. */
static void loop_land_part(const engine_part *part, double seconds) {
    cairn_session *s = part->s;
    engine_tally *tally = s->tally;
    if (tally && tally->turn != s->model->scratch->turn) {
        tally->turn = s->model->scratch->turn;
        tally->forwards++;
    }
    engine_take_part(part, seconds);
    if (part->kind == FORWARD_PROMPT) s->append_seconds += seconds;
    if (s->appending && loop_has_appended(s)) {
        engine_remember(s);
        loop_rest(s);
    }
    if (!s->fresh_count) return;
    if (s->phase == ENGINE_PROMPT) loop_begin_saying(s);
    if (s->pulled) loop_rest(s);
    else loop_take_fresh(s);
}

/* The forward in flight has ended, well or not. */
static void loop_land(cairn_model *m, cairn_status status) {
    engine_scratch *x = m->scratch;
    int count = x->part_count;
    if (!status) engine_touch_down(m);
    if (!status && x->profile) profile_take(m);
    engine_give_up(m);
    for (int i = 0; i < count; i++)
        if (status) loop_end(x->parts[i].s, CAIRN_STOP_ERROR, status);
        else loop_land_part(&x->parts[i], (double)x->flight_us * 1e-6);
}

/* Goes on with what is to be done until then; first: by one part at least. False: there is nothing
 * to do now. */
static bool loop_turn(cairn_model *m, int64_t until_us, double limit_us, bool first) {
    engine_scratch *x = m->scratch;
    cairn_status status;
    if (!x->part_count && draft_turn(m, until_us, limit_us, first)) return true;
    if (!x->part_count && !loop_plan(m, limit_us)) return false;
    status = engine_fly(m, until_us, first);
    if (x->part_count && (status || (x->begun && !x->left))) loop_land(m, status);
    return true;
}

/* What rows of prompts in a forward may take: `us` a layer, or what the config says; a forward that is
 * asked for now and then `whole` as a whole, and no more than the config says a layer. */
static double loop_slice(const cairn_model *m, double us, double whole) {
    const double limit = m->backend->poll ? whole : us;
    const double slice = (double)m->runtime->config.slice_us * (m->backend->poll ? m->shape.layers : 1);
    return slice > 0.0 && slice < limit ? slice : limit;
}

/* A blocking call's slices of prompts: such as let a cancel be heard soon. */
static double loop_limit(const cairn_model *m) {
    return loop_slice(m, m->backend->begin ? ENGINE_HEED_US : ENGINE_NO_LIMIT, ENGINE_NO_LIMIT);
}

/* Lands what is in flight: a forward of another kind follows. */
static void loop_clear(cairn_model *m) {
    while (m->scratch->part_count) loop_turn(m, INT64_MAX, loop_limit(m), true);
}

/* Works until the session's request has what its call waits for. */
static void loop_wait(cairn_session *s) {
    cairn_model *m = s->model;
    while (s->wants)
        if (m->runtime->turns.shared) handles_wait(m->runtime, 0); /* for the worker */
        else if (!loop_turn(m, INT64_MAX, loop_limit(m), true) && s->wants)
            loop_end(s, CAIRN_STOP_ERROR, engine_raise_noted(s));
}

/* The same; what the call returns. */
static cairn_status loop_until(cairn_session *s) {
    loop_wait(s);
    return engine_raise_noted(s);
}

/* Begins a request for ids, which are the session's once it is admitted; empties *ids. */
static void loop_ask(cairn_session *s, tokenizer_ids *ids, bool appending, bool pulled) {
    s->waiting = *ids;
    memset(ids, 0, sizeof *ids);
    s->phase = ENGINE_WAITS;
    s->appending = appending;
    s->pulled = pulled;
    s->wants = true;
    s->outcome = CAIRN_OK;
    engine_note_error(s, CAIRN_OK);
    s->ticket = s->model->scratch->tickets++;
    s->wanted_us = appending || !s->options.first_token_ms
                       ? INT64_MAX : os_now_us() + (int64_t)s->options.first_token_ms * 1000;
    s->asked_us = s->model->scratch->profile && !appending ? os_now_us() : 0;
    s->measured = false;
}

/* ---- cairn_step ------------------------------------------------------------------------------ */

static int loop_pending(const cairn_model *m) {
    int pending = 0;
    for (const cairn_session *s = m->sessions; s; s = s->next)
        pending += s->submitted && s->phase != ENGINE_IDLE;
    return pending;
}

/* Whether another turn is worth beginning. */
static bool loop_has_time(const cairn_model *m, int64_t until_us) {
    const int64_t cost = m->backend->begin ? 0 : (int64_t)engine_cost(m, 1);
    return !m->scratch->part_count && !(m->drafts && m->drafts->scratch->part_count) &&
           os_now_us() + cost < until_us;
}

static void loop_step(cairn_model *m, int32_t budget_us) {
    int64_t until = os_now_us() + budget_us;
    const double share = m->backend->begin ? budget_us / 4.0 : budget_us / 2.0;
    const double limit = loop_slice(m, fmin(share, ENGINE_HEED_US), 2.0 * ENGINE_HEED_US);
    bool first = true;
    while (loop_turn(m, until, limit, first) && loop_has_time(m, until)) first = false;
}

cairn_status cairn_step(cairn_model *model, int32_t budget_us, int32_t *pending) {
    cairn_runtime *rt;
    cairn_status status;
    if (!model) return CAIRN_INVALID_ARGUMENT;
    rt = model->runtime;
    if ((status = handles_need(rt, "step", pending, "pending"))) return status;
    if (budget_us < 0)
        return base_fail(&rt->base, CAIRN_INVALID_ARGUMENT,
                         "step: budget_us = %d; 0 or more is expected", (int)budget_us);
    if (rt->turns.shared)
        return base_fail(&rt->base, CAIRN_BUSY, "step: the config's worker steps this model");
    if (!os_atomic_swap_if(&model->scratch->stepping, 0, 1)) return CAIRN_BUSY;
    if (engine_is_any_busy(rt))
        status = base_fail(&rt->base, CAIRN_BUSY, "step: a load or a call on a session is running: "
                                                  "this one comes from its callback or from another "
                                                  "thread");
    else if (!(status = handles_enter(rt))) {
        loop_step(model, budget_us);
        *pending = loop_pending(model);
        handles_leave(rt, CAIRN_OK);
    }
    os_atomic_store(&model->scratch->stepping, 0);
    return status;
}

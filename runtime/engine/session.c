/* session: a sequence on a model: its tokens, how they ran, its state, and what it shares with other
 * sessions. The invariants stand in engine.h. */

static base *engine_base(const cairn_session *s) { return &s->model->runtime->base; }
static const cairn_config *engine_config(const cairn_session *s) {
    return &s->model->runtime->config;
}

/* ---- how tokens run -------------------------------------------------------------------------- */

static size_t engine_given_bytes(int tokens) { return ((size_t)tokens + 7) / 8; }

static bool engine_is_given(const cairn_session *s, int at) {
    return s->given[at / 8] >> at % 8 & 1;
}

static void engine_set_given(cairn_session *s, int at, bool given) {
    uint8_t bit = (uint8_t)(1u << at % 8);
    s->given[at / 8] = (uint8_t)(given ? s->given[at / 8] | bit : s->given[at / 8] & ~bit);
}

/* Whether the token runs as prompt: see the file's head. */
static bool engine_is_prompt(const cairn_session *s, int at) {
    return engine_is_given(s, at) || (at + 1 < s->count && engine_is_given(s, at + 1));
}

/* How many tokens from `from` on, before `end`, run as that one does. */
static int engine_run_length(const cairn_session *s, int from, int end) {
    bool prompt = engine_is_prompt(s, from);
    int at = from + 1;
    while (at < end && engine_is_prompt(s, at) == prompt) at++;
    return at - from;
}

/* ---- state ----------------------------------------------------------------------------------- */

static int engine_pages(const cairn_session *s) { return s->model->tables.pages[s->row]; }

static const int32_t *engine_table(const cairn_session *s) {
    return tables_row(&s->model->tables, s->row);
}

/* Of each group of layers, the first keeps all: free pages; those that a session would give back;
 * those it needs for `tokens` tokens; and `need` of them freed of what no session uses, if it can be. */
static int engine_free_pages(const cairn_model *m, int group) {
    return group ? window_free(&m->windows[group - 1]) : m->kv.pool.free_count;
}

static int engine_own_pages(const cairn_session *s, int group) {
    int own = 0;
    if (group) return window_own(&s->model->windows[group - 1], s->row);
    for (int i = 0; i < engine_pages(s); i++)
        own += !pages_shared(&s->model->kv.pool, engine_table(s)[i]);
    return own;
}

static int engine_need_pages(const cairn_session *s, int tokens, int group) {
    const int from = engine_slots(s, s->cached), to = engine_slots(s, tokens);
    return group ? window_need(&s->model->windows[group - 1], s->row, from, to)
                 : tables_need(&s->model->tables, s->row, from, to);
}

static void engine_make_room(cairn_model *m, int need, int group) {
    if (group) window_make_room(&m->windows[group - 1], need);
    else state_kv_make_room(&m->kv_of_rows, need);
}

static int engine_pool_pages(const cairn_model *m, int group) {
    return group ? m->kv.window_pools[group - 1].pages : m->kv.pool.pages;
}

/* The state has room for `tokens` tokens, those from `cached` on its own; or POOL_FULL and nothing
 * changed. */
static cairn_status engine_reserve(cairn_session *s, int tokens) {
    return state_reserve(&s->model->states, s->row, engine_slots(s, s->cached),
                         engine_slots(s, tokens));
}

/* ---- prefix cache ---------------------------------------------------------------------------- */

static void engine_let_go(cairn_session *s) {
    prefix_unlock(&s->model->prefixes, s->held);
    s->held = NULL;
    s->held_pages = 0;
}

/* The prefix cache holds pages of keys and values and nothing else. */
static bool engine_has_prefixes(const cairn_session *s) {
    return s->model->prefixes.buckets && s->model->states.count == 1 && !s->apart;
}

/* What a prefix of `pages` pages, up to the node's end, has for layers with windows; false: memory is
 * short, and the session's row is empty. */
static bool engine_reuse_windows(cairn_session *s, prefix_node *node, int pages) {
    cairn_model *m = s->model;
    int32_t *ids = m->scratch->page_ids;
    for (int g = 0; g < m->groups.count; g++) {
        prefix_read_window(&m->prefixes, node, pages, g, ids);
        if (!window_hold(&m->windows[g], s->row, ids, pages)) continue;
        engine_base(s)->error[0] = '\0';
        state_cut(&m->states, s->row, 0);
        return false;
    }
    return true;
}

/* Begins the empty session with the pages that are held of ids [count]. At least two tokens are
 * left, so that a forward of a prompt's rows remains. */
static void engine_reuse(cairn_session *s, const int32_t *ids, int count) {
    cairn_model *m = s->model;
    int32_t *pages_held = m->scratch->page_ids;
    prefix_node *node;
    int pages;
    if (!engine_has_prefixes(s) || s->count || count < 2) return;
    s->space = engine_space(s);
    count = engine_slots(s, count - 2);
    ids = engine_fill(s, ids, count);
    count = prefix_offer(&m->prefixes, s->space, ids, count) * m->kv.page_size;
    if (prefix_match(&m->prefixes, s->space, ids, count, pages_held, &pages, &node)) {
        engine_base(s)->error[0] = '\0'; /* short of memory: all is computed */
        return;
    }
    if (!pages || tables_hold(engine_base(s), &m->tables, s->row, 0, pages_held, pages) ||
        !engine_reuse_windows(s, node, pages))
        return;
    prefix_lock(&m->prefixes, node);
    s->held = node;
    s->held_pages = pages;
    s->cached = s->pure = s->reused = engine_tokens_in(s, pages * m->kv.page_size);
}

/* Pages [from, present) that the cache holds too, computed by another session: the same values, so
 * that ours are given back and its taken. Their bounds may not be stored yet. */
static void engine_take_theirs(cairn_session *s, int from, int present, int pages) {
    cairn_model *m = s->model;
    int32_t *ids = m->scratch->page_ids;
    const int slots = pages * m->kv.page_size;
    if (present <= from) return;
    prefix_match(&m->prefixes, s->space, engine_fill(s, s->tokens, slots), slots, ids, &pages, NULL);
    if (tables_hold(engine_base(s), &m->tables, s->row, from, ids + from, present - from)) return;
    if (s->bounded > from) s->bounded = from;
}

/* Puts what a prompt computed, in whole pages, into the prefix cache; without memory it does not. */
static void engine_remember(cairn_session *s) {
    prefix_cache *c = &s->model->prefixes;
    const int pages = engine_whole_pages(s, s->pure), slots = pages * s->model->kv.page_size;
    const int32_t *ids;
    int present, found;
    prefix_node *node;
    if (!engine_has_prefixes(s) || pages <= s->held_pages) return;
    ids = engine_fill(s, s->tokens, slots);
    if (prefix_insert(c, s->space, ids, slots, engine_table(s), &present) ||
        prefix_match(c, s->space, ids, slots, NULL, &found, &node)) {
        engine_base(s)->error[0] = '\0';
        return;
    }
    for (int g = 0; g < s->model->groups.count; g++)
        prefix_lend(c, s->space, ids, pages, g, window_first(&s->model->windows[g], s->row),
                    tables_row(&s->model->windows[g].tables, s->row));
    prefix_lock(c, node);
    prefix_unlock(c, s->held);
    s->held = node;
    engine_take_theirs(s, s->held_pages, present, pages);
    s->held_pages = pages;
}

/* ---- sequence -------------------------------------------------------------------------------- */

/* The state stands for `tokens` tokens, or as many fewer as it can go back to. */
static void engine_go_back(cairn_session *s, int tokens) {
    int full;
    if (s->cached > tokens) s->cached = tokens;
    s->cached = engine_tokens_in(s, state_reach(&s->model->states, s->row,
                                                engine_slots(s, s->cached)));
    full = engine_whole_pages(s, s->cached);
    if (s->bounded > full) s->bounded = full;
    if (s->pure > s->cached) s->pure = s->cached;
    if (s->held_pages > full) engine_let_go(s);
}

/* Forgets drafts and what the state holds beyond the sequence: engine.h's invariants hold. */
static void engine_settle(cairn_session *s) {
    s->fresh_count = s->fresh_at = 0;
    engine_go_back(s, s->count > 0 ? s->count - 1 : 0);
    state_cut(&s->model->states, s->row, engine_slots(s, s->cached));
}

/* Of what drafts know the first `count` tokens stay. */
static void engine_forget(cairn_session *s, int count) {
    if (s->drafter.heads) drafter_truncate(&s->drafter, s->tokens, count);
    if (s->agreed > count) s->agreed = count;
}

/* Cuts the sequence to `count` tokens. */
static void engine_cut(cairn_session *s, int count) {
    engine_forget(s, count);
    s->count = count;
    engine_settle(s);
}

/* An id that is no token. */
static cairn_status engine_refuse_id(cairn_session *s, int32_t id, int at) {
    const cairn_adapter *a = s->model->adapters;
    while (a && a->mask_id != id) a = a->next;
    if (a && id >= 0)
        return base_fail(engine_base(s), CAIRN_INVALID_ARGUMENT, "append: id %d at %d is the mask of "
                         "%s, which no text has", (int)id, at, a->name);
    return base_fail(engine_base(s), CAIRN_INVALID_ARGUMENT, "append: id %d at %d; 0 to %d is expected",
                     (int)id, at, s->model->shape.vocab - 1);
}

/* Puts ids at the end, nothing processed yet; nothing changed on failure. */
static cairn_status engine_add(cairn_session *s, const int32_t *ids, int count) {
    base *b = engine_base(s);
    cairn_status status;
    for (int i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= s->model->shape.vocab) return engine_refuse_id(s, ids[i], i);
    engine_settle(s);
    if (count > engine_context(s) - s->count)
        return base_fail(b, CAIRN_CONTEXT_FULL,
                         "append: %d tokens held and %d more, the context is %d", s->count, count,
                         engine_context(s));
    engine_reuse(s, ids, count);
    if ((status = engine_reserve(s, s->count + count))) {
        if (!s->count) s->reused = 0;
        engine_settle(s);
        return status;
    }
    if (count) memcpy(s->tokens + s->count, ids, (size_t)count * sizeof *ids);
    for (int i = 0; i < count; i++) engine_set_given(s, s->count + i, true);
    s->count += count;
    s->appended += count;
    return CAIRN_OK;
}

/* What engine_add and a failed engine_process changed, undone. */
static void engine_take_back(cairn_session *s, int count, int cached) {
    s->appended -= s->count - count;
    if (!count) s->reused = 0;
    if (s->cached > cached) s->cached = cached;
    engine_cut(s, count);
}

/* Puts a token that the model said at the end. */
static void engine_add_said(cairn_session *s, int32_t id) {
    engine_set_given(s, s->count, false);
    s->tokens[s->count++] = id;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Gives up the forward in flight, if there is one: its sessions are as before it. */
static void engine_give_up(cairn_model *m) {
    engine_scratch *x = m->scratch;
    for (int i = 0; i < x->part_count; i++) x->parts[i].s->flying = false;
    x->part_count = 0;
}

/* Ends the session's request; a prompt that was not done leaves the sequence. */
static void engine_withdraw(cairn_session *s) {
    if (s->flying) engine_give_up(s->model);
    if (s->phase == ENGINE_PROMPT) engine_take_back(s, s->held_before, s->cached_before);
    tokenizer_ids_free(engine_base(s), &s->waiting);
    s->phase = ENGINE_IDLE;
    s->generating = s->wants = s->appending = s->submitted = s->starved = s->aside = false;
}

/* What the last failure was is copied by any thread: for a few instructions others are kept out. */
static void engine_guard_status(cairn_session *s) {
    while (!os_atomic_swap_if(&s->status_guard, 0, 1)) BASE_PAUSE();
}

/* Keeps what the last failure was, for cairn_session_error. */
static void engine_note_error(cairn_session *s, cairn_status status) {
    engine_guard_status(s);
    s->status = status;
    snprintf(s->error, sizeof s->error, "%s", status ? engine_base(s)->error : "");
    os_atomic_store(&s->status_guard, 0);
}

/* The failure that was noted, as the runtime's last one. */
static cairn_status engine_raise_noted(cairn_session *s) {
    if (s->status) snprintf(engine_base(s)->error, BASE_ERROR_BYTES, "%s", s->error);
    return s->status;
}

/* Leaves what a generation keeps of its options besides these. */
static void engine_drop_wishes(cairn_session *s) {
    if (s->constraint) grammar_give(engine_base(s), s->model->grammars, s->constraint);
    s->constraint = NULL;
    base_delete(engine_base(s), s->bias, (size_t)s->bias_count, sizeof *s->bias);
    base_delete(engine_base(s), s->row_logprobs, ENGINE_ROWS * (1 + (size_t)s->row_best),
                sizeof *s->row_logprobs);
    s->row_logprobs = NULL;
    s->bias = NULL;
    s->bias_count = s->row_best = 0;
}

static size_t engine_chosen_words(const cairn_session *s, int step) {
    return (size_t)s->model->shape.layers * (size_t)s->model->shape.kv_heads * (size_t)step;
}

static void engine_drop_chosen(cairn_session *s) {
    base_delete(engine_base(s), s->chosen, engine_chosen_words(s, s->chosen_step), sizeof *s->chosen);
    s->chosen = NULL;
    s->chosen_step = 0;
}

/* ---- open and close -------------------------------------------------------------------------- */

static void engine_close(cairn_session *s) {
    base *b = engine_base(s);
    if (s->shadow) engine_close(s->shadow);
    if (s->row >= 0) engine_withdraw(s);
    if (s->row >= 0) {
        engine_cut(s, 0);
        tables_leave_row(b, &s->model->tables, s->row);
    }
    engine_drop_wishes(s);
    drafter_close(b, &s->drafter);
    engine_drop_chosen(s);
    base_delete(b, s->ahead_probs, (size_t)DRAFTER_MOST * (size_t)s->model->shape.vocab,
                sizeof *s->ahead_probs);
    base_delete(b, s->tokens, (size_t)s->model->max_seq_len, sizeof *s->tokens);
    base_delete(b, s->given, engine_given_bytes(s->model->max_seq_len), 1);
    base_text_free(b, &s->text);
    base_text_free(b, &s->polled);
    base_text_free(b, &s->logprobs);
    base_text_free(b, &s->polled_logprobs);
    base_delete(b, s, 1, sizeof *s);
}

/* A session begins with what others of its adapter learnt, so that short ones lose little to trials. */
static void engine_begin_pace(cairn_session *s) {
    const engine_scratch *x = s->model->scratch;
    pace_clear(&s->pace);
    if (!s->adapter || x->pace_of != s->adapter) return;
    s->pace = x->pace;
    if (s->pace.saved > PACE_FIRST) s->pace.saved = PACE_FIRST;
}

/* A session outside the model's list. */
static cairn_status engine_open(cairn_model *m, cairn_session **out) {
    base *b = &m->runtime->base;
    cairn_session *s = (cairn_session *)base_new(b, 1, sizeof *s);
    cairn_status status;
    *out = NULL;
    if (!s) return base_no_memory(b, "a session", sizeof *s);
    s->model = m;
    s->adapter = landmarks_first(m);
    s->row = -1;
    engine_begin_pace(s);
    s->stats.struct_size = sizeof s->stats;
    s->tokens = (int32_t *)base_new(b, (size_t)m->max_seq_len, sizeof *s->tokens);
    s->given = (uint8_t *)base_new(b, engine_given_bytes(m->max_seq_len), 1);
    if (!s->tokens || !s->given)
        status = base_no_memory(b, "a session", (size_t)m->max_seq_len * sizeof(int32_t));
    else status = tables_take_row(b, &m->tables, &s->row);
    if (status) engine_close(s);
    else *out = s;
    return status;
}

static void engine_enlist(cairn_session *s) {
    s->next = s->model->sessions;
    s->model->sessions = s;
}

/* Closes it and takes it from its model's list, if it is in there. */
static void engine_drop(cairn_session *s) {
    cairn_session **link = &s->model->sessions;
    while (*link && *link != s) link = &(*link)->next;
    if (*link) *link = s->next;
    engine_close(s);
}

cairn_status cairn_session_open(cairn_model *model, cairn_session **session) {
    cairn_status status = handles_need(model ? model->runtime : NULL, "session_open", session, "session");
    if (session) *session = NULL;
    if (status || (status = base_check_callback(&model->runtime->base))) return status;
    handles_hold(model->runtime);
    if (!(status = engine_open(model, session))) engine_enlist(*session);
    handles_drop(model->runtime);
    return status;
}

/* Tokens that a copy of the state, saved or forked, stands for: the last one is always left. */
static int engine_kept_tokens(const cairn_session *s) {
    int most = s->count > 0 ? s->count - 1 : 0;
    if (s->cached < most) most = s->cached;
    return engine_tokens_in(s, state_reach(&s->model->states, s->row, engine_slots(s, most)));
}

/* A session like `s`, outside the model's list, that shares its pages. */
static cairn_status engine_fork(const cairn_session *s, cairn_session **out) {
    int cached = engine_kept_tokens(s);
    cairn_session *fork;
    cairn_status status = engine_open(s->model, &fork);
    if (status) return status;
    if ((status = state_fork(&s->model->states, s->row, fork->row, engine_slots(s, cached)))) {
        engine_close(fork);
        return status;
    }
    memcpy(fork->tokens, s->tokens, (size_t)s->count * sizeof *s->tokens);
    memcpy(fork->given, s->given, engine_given_bytes(s->count));
    fork->count = s->count;
    fork->cached = cached;
    fork->pure = s->pure;
    fork->space = s->space;
    fork->apart = s->apart;
    fork->adapter = s->adapter;
    fork->pace = s->pace;
    fork->bounded = s->bounded;
    fork->bounds_version = s->bounds_version;
    engine_settle(fork);
    if (s->shadow && !engine_fork(s->shadow, &fork->shadow)) {
        fork->shadow->options = s->shadow->options;
        fork->shadow->of = fork;
        fork->agreed = s->agreed;
    } else engine_base(s)->error[0] = '\0'; /* its own is computed when it drafts */
    return *out = fork, CAIRN_OK;
}

cairn_status cairn_session_fork(cairn_session *session, cairn_session **fork) {
    cairn_status status = handles_need(session ? session->model->runtime : NULL, "session_fork", fork, "fork");
    if (fork) *fork = NULL;
    if (status || (status = base_check_callback(engine_base(session)))) return status;
    handles_hold(session->model->runtime);
    if (!(status = engine_fork(session, fork))) engine_enlist(*fork);
    handles_drop(session->model->runtime);
    return status;
}

void cairn_session_close(cairn_session *session) {
    cairn_runtime *rt = session ? session->model->runtime : NULL;
    if (!session || base_check_callback(&rt->base)) return;
    handles_hold(rt);
    session->closing = session->busy;
    if (!session->busy) engine_drop(session);
    handles_drop(rt);
}

/* ---- public calls on the sequence ------------------------------------------------------------ */

/* Enters a public call, maybe beside a forward: the device's context is current until engine_leave. */
static cairn_status engine_enter_beside(cairn_session *s, const char *call) {
    cairn_runtime *rt;
    cairn_status status;
    if (!s) return CAIRN_INVALID_ARGUMENT;
    rt = s->model->runtime;
    if ((status = base_check_callback(&rt->base))) return status;
    handles_hold_beside(rt);
    if (s->busy)
        status = base_fail(engine_base(s), CAIRN_BUSY,
                           "%s: a call on this session is running: this one comes from its callback "
                           "or from another thread",
                           call);
    else status = device_enter(&rt->device);
    if (status) handles_drop(rt);
    else s->busy = true;
    return status;
}

/* The same, beside no forward. */
static cairn_status engine_enter(cairn_session *s, const char *call) {
    cairn_status status = engine_enter_beside(s, call);
    if (!status) handles_settle(s->model->runtime);
    return status;
}

/* Whether a call on one of the model's sessions runs: we are inside its callback. */
static bool engine_is_busy(const cairn_model *m) {
    const cairn_session *s = m->sessions;
    while (s && !s->busy) s = s->next;
    return s != NULL;
}

static bool engine_is_any_busy(cairn_runtime *rt) {
    const cairn_model *m = rt->models;
    while (m && !engine_is_busy(m)) m = m->next;
    return m || os_atomic_load(&rt->loading);
}

/* Leaves a public call. What its callback closed goes now: the session, its model, the runtime. */
static cairn_status engine_leave(cairn_session *s, cairn_status status) {
    cairn_model *m = s->model;
    cairn_runtime *rt = m->runtime;
    bool session = s->closing, model, runtime;
    s->busy = false;
    model = m->closing && !engine_is_busy(m);
    runtime = rt->closing && !engine_is_any_busy(rt);
    if (status) engine_note_error(s, status);
    handles_leave(rt, status);
    if (session) cairn_session_close(s);
    if (model) cairn_model_free(m);
    if (runtime) cairn_close(rt);
    return status;
}

void cairn_cancel(cairn_session *session) {
    if (session) os_atomic_store(&session->cancel, 1);
}

const int32_t *cairn_session_ids(const cairn_session *session, int *count) {
    if (count) *count = 0;
    if (!session || base_check_callback(engine_base(session))) return NULL;
    handles_hold_beside(session->model->runtime);
    if (count) *count = session->count;
    handles_drop(session->model->runtime);
    return session->tokens;
}

/* Ids that stand whatever becomes of its request. */
static int engine_held(const cairn_session *s) {
    return s->phase == ENGINE_PROMPT ? s->held_before : s->count;
}

/* Inside an entered call. */
static cairn_status engine_rewind(cairn_session *s, int count) {
    int held = engine_held(s);
    if (count < 0 || count > held)
        return base_fail(engine_base(s), CAIRN_INVALID_ARGUMENT,
                         "session_rewind: count = %d; 0 to %d is held", count, held);
    engine_withdraw(s);
    engine_cut(s, count);
    return CAIRN_OK;
}

cairn_status cairn_session_rewind(cairn_session *session, int count) {
    cairn_status status = engine_enter(session, "session_rewind");
    return status ? status : engine_leave(session, engine_rewind(session, count));
}

cairn_status cairn_session_reset(cairn_session *session) {
    cairn_status status = engine_enter(session, "session_reset");
    if (status) return status;
    engine_rewind(session, 0);
    session->appended = session->reused = 0;
    session->append_seconds = 0.0;
    if (session->drafter.heads) drafter_clear(&session->drafter);
    engine_begin_pace(session);
    return engine_leave(session, CAIRN_OK);
}

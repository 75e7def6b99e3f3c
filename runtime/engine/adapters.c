/* engine_adapters: the adapters of a model, and which one a session's tokens run by. */

static void engine_drop_adapter(cairn_adapter *a) {
    cairn_model *m = a->model;
    cairn_adapter **link = &m->adapters;
    while (*link != a) link = &(*link)->next;
    *link = a->next;
    if (m->adapter == a) m->adapter = NULL;
    if (m->own == a) m->own = NULL;
    if (m->scratch && m->scratch->pace_of == a) m->scratch->pace_of = NULL;
    if (m->backend->leave_adapter) m->backend->leave_adapter(m, a);
    adapter_free(a);
}

/* The lowest slot that no adapter has; ADAPTER_MOST: all are taken. */
static int engine_free_slot(const cairn_model *m) {
    const cairn_adapter *a = m->adapters;
    int slot = 0;
    while (a)
        if (a->slot == slot) slot++, a = m->adapters;
        else a = a->next;
    return slot;
}

/* Room for the ids of an adapter's landmarks, if it has some. */
static cairn_status engine_ready_landmarks(cairn_model *m, const cairn_adapter *a) {
    base *b = &m->runtime->base;
    engine_scratch *x = m->scratch;
    const size_t most = (size_t)m->max_seq_len;
    if (!landmarks_with(a)) return CAIRN_OK;
    if (!x->filled) x->filled = (int32_t *)base_new(b, most, sizeof *x->filled);
    return x->filled ? CAIRN_OK : base_no_memory(b, a->name, most * sizeof *x->filled);
}

/* Inside an entered runtime, beside no forward. path NULL: the model's own. */
static cairn_status engine_take_adapter(cairn_model *m, const char *path, cairn_adapter **out) {
    base *b = &m->runtime->base;
    cairn_adapter *a;
    cairn_status status;
    *out = NULL;
    if (engine_free_slot(m) >= ADAPTER_MOST)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "adapter_load: %d adapters of this model are "
                         "loaded; free one first", ADAPTER_MOST);
    if ((status = path ? adapter_read(m, path, &a) : adapter_own(m, &a))) return status;
    a->slot = engine_free_slot(m);
    status = engine_ready_landmarks(m, a);
    if (!status) status = reload_check_drafts(b, &m->runtime->config, a);
    if (!status) status = m->backend->take_adapter(m, a);
    if (status) {
        adapter_free(a);
        return status;
    }
    a->next = m->adapters;
    return *out = m->adapters = a, CAIRN_OK;
}

cairn_status cairn_adapter_load(cairn_model *model, const char *path, cairn_adapter **adapter) {
    cairn_runtime *rt = model ? model->runtime : NULL;
    cairn_status status = handles_need(rt, "adapter_load", adapter, "adapter");
    if (adapter) *adapter = NULL;
    if (status || (status = handles_need(rt, "adapter_load", path, "path")) || (status = handles_enter(rt)))
        return status;
    loop_clear(model);
    return handles_leave(model->runtime, engine_take_adapter(model, path, adapter));
}

cairn_status cairn_adapter_free(cairn_adapter *adapter) {
    cairn_runtime *rt;
    cairn_status status;
    if (!adapter) return CAIRN_OK;
    rt = adapter->model->runtime;
    if ((status = handles_enter(rt))) return status;
    for (const cairn_session *s = adapter->model->sessions; s && !status; s = s->next)
        if (s->adapter == adapter)
            status = base_fail(&rt->base, CAIRN_BUSY, "adapter_free: a session runs by %s: "
                               "cairn_session_adapt gives it another", adapter->name);
    if (!status) engine_drop_adapter(adapter);
    return handles_leave(rt, status);
}

/* What the session holds stays; its state is of other values, and is computed anew. */
static void engine_adapt(cairn_session *s, cairn_adapter *adapter) {
    engine_withdraw(s);
    if (adapter_space(s->adapter) != adapter_space(adapter)) {
        engine_go_back(s, 0);
        engine_settle(s);
        engine_let_go(s);
    }
    if (s->adapter != adapter) {
        s->adapter = adapter;
        engine_begin_pace(s);
    }
}

cairn_status cairn_session_adapt(cairn_session *session, cairn_adapter *adapter) {
    cairn_status status = engine_enter(session, "session_adapt");
    if (status) return status;
    if (!adapter) adapter = session->model->own;
    if (adapter && adapter->model != session->model)
        status = base_fail(engine_base(session), CAIRN_INVALID_ARGUMENT,
                           "session_adapt: %s was loaded for another model", adapter->name);
    else if (session->count > landmarks_context(session->model, adapter))
        status = base_fail(engine_base(session), CAIRN_CONTEXT_FULL,
                           "session_adapt: %d tokens held; with %s's landmarks the context is %d",
                           session->count, adapter->name,
                           landmarks_context(session->model, adapter));
    else engine_adapt(session, adapter);
    return engine_leave(session, status);
}

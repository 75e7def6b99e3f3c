/* reload: a new config for a running program. Cold fields refuse it, hot ones change between two
 * steps: at once, or when the kernels they need are compiled. Calls config, model.
 *
 * Invariant: rt->config changes only in cairn_reload and at the start of a step, so that a step
 * sees one config from its first row to its last. */

static void reload_drop(cairn_runtime *rt) {
    base_delete(&rt->base, rt->reload, 1, sizeof *rt->reload);
    rt->reload = NULL;
}

/* Whether an adapter that drafts can draft as many. */
static cairn_status reload_check_drafts(base *b, const cairn_config *config, const cairn_adapter *a) {
    if (config->drafter != CAIRN_DRAFTER_MTP || !a->drafts || config->draft_length <= a->drafts)
        return CAIRN_OK;
    return base_fail(b, CAIRN_UNSUPPORTED, "draft_length = %d: %s drafts up to %d tokens",
                     (int)config->draft_length, a->name, a->drafts);
}

/* Whether the config's drafter has a model to draft with, the file at `path`. */
static cairn_status reload_check_drafter(base *b, const cairn_config *config, const char *path) {
    if (config->drafter != CAIRN_DRAFTER_MODEL || *path) return CAIRN_OK;
    return base_fail(b, CAIRN_INVALID_CONFIG, "drafter = \"model\" needs drafter_model, the file of a "
                     "smaller model, when a model is loaded");
}

/* Whether a forward of the model goes on by kernels that another config would replace. */
static bool reload_disturbs(const cairn_model *m) {
    return m && m->backend->poll && m->scratch->part_count;
}

/* CAIRN_OK when every model can run with `config`, CAIRN_BUSY while something is compiled or in flight. */
static cairn_status reload_prepare(cairn_runtime *rt, const cairn_config *config) {
    cairn_status all = CAIRN_OK;
    for (const cairn_model *m = rt->models; m; m = m->next)
        if (reload_disturbs(m) || reload_disturbs(m->drafts)) return CAIRN_BUSY;
    for (cairn_model *m = rt->models; m; m = m->next) {
        cairn_status one = model_check_layers(&rt->base, config, &m->shape);
        if (!one && !m->drafts) one = reload_check_drafter(&rt->base, config, "");
        if (!one && m->drafts && m->drafts->backend->prepare)
            one = m->drafts->backend->prepare(m->drafts, config);
        for (const cairn_adapter *a = m->adapters; a && !one; a = a->next)
            one = reload_check_drafts(&rt->base, config, a);
        if (!one && m->backend->prepare) one = m->backend->prepare(m, config);
        if (one && one != CAIRN_BUSY) return one;
        if (one) all = one;
    }
    return all;
}

/* Takes a waiting config over once it can be; the device's context is current. A failed compile
 * drops it with one log line: what ran goes on. late: after the call that brought it, so that
 * taking it over is worth a line, too. */
static void reload_take(cairn_runtime *rt, bool late) {
    cairn_status status;
    if (!rt->reload || (status = reload_prepare(rt, rt->reload)) == CAIRN_BUSY) return;
    if (status) {
        base_log(&rt->base, CAIRN_LOG_ERROR, "reload: the old config stays: %s", rt->base.error);
    } else {
        rt->config = *rt->reload;
        rt->base.log_level = rt->config.log;
        device_set_threads(&rt->device, config_threads(&rt->config));
        if (late) base_log(&rt->base, CAIRN_LOG_INFO, "reload: the new config is in force");
    }
    reload_drop(rt);
}

/* Between two steps. */
static void reload_poll(cairn_runtime *rt) { reload_take(rt, true); }

/* Checks the config and completes it with what open was given and resolved. *changes: whether it
 * differs from the one in force, or from the one that waits. */
static cairn_status reload_read(cairn_runtime *rt, const cairn_config *config, cairn_config *out,
                                bool *changes) {
    char error[BASE_ERROR_BYTES / 2];
    config_change change;
    base_callback within; /* the config's log is told of mistakes */
    cairn_status status;
    base_begin_callback(&rt->base, &within);
    status = cairn_config_check(config, out, error, sizeof error);
    base_end_callback(&within);
    if (status)
        return base_fail(&rt->base, status, strchr(error, '\n') ? "reload:\n%s" : "reload: %s", error);
    config_keep_host(out, &rt->config);
    if (out->backend == CAIRN_BACKEND_AUTO) out->backend = rt->config.backend;
    config_diff(&rt->config, out, &change);
    if (change.cold)
        return base_fail(&rt->base, CAIRN_NEEDS_REOPEN, "reload: fixed at open: %s",
                         change.cold_names);
    *changes = change.hot > 0 || rt->reload;
    return CAIRN_OK;
}

cairn_status cairn_reload(cairn_runtime *rt, const cairn_config *config) {
    cairn_config *fresh;
    bool changes = false;
    cairn_status status;
    if (!rt) return CAIRN_INVALID_ARGUMENT;
    if (!config) return base_fail(&rt->base, CAIRN_INVALID_ARGUMENT, "reload: config is NULL");
    if ((status = base_check_callback(&rt->base))) return status;
    fresh = (cairn_config *)base_new(&rt->base, 1, sizeof *fresh);
    if (!fresh) return base_no_memory(&rt->base, "reload", sizeof *fresh);
    status = reload_read(rt, config, fresh, &changes);
    if (!status && changes && !(status = handles_enter(rt))) {
        status = reload_prepare(rt, fresh);
        if (!status || status == CAIRN_BUSY) {
            reload_drop(rt);
            rt->reload = fresh;
            fresh = NULL;
            if (!status) reload_take(rt, false); /* the caller knows: nothing waits */
            status = CAIRN_OK;
        }
        handles_leave(rt, CAIRN_OK);
    }
    base_delete(&rt->base, fresh, 1, sizeof *fresh);
    return status;
}

bool cairn_reload_waits(const cairn_runtime *rt) { return rt && rt->reload; }

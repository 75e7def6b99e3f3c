/* base_callback: see callback.h. */

static _Thread_local const base_callback *base_callbacks; /* the innermost of this thread */

static void base_begin_callback(base *b, base_callback *c) {
    c->of = b;
    c->outer = base_callbacks;
    c->status = b->status;
    memcpy(c->error, b->error, sizeof c->error);
    base_callbacks = c;
}

static void base_end_callback(const base_callback *c) {
    c->of->status = c->status;
    memcpy(c->of->error, c->error, sizeof c->error);
    base_callbacks = c->outer;
}

static cairn_status base_check_callback(base *b) {
    for (const base_callback *c = base_callbacks; c; c = c->outer) {
        if (c->of->root == b) return CAIRN_BUSY; /* b and its message are another thread's */
        if (c->of == b)
            return base_fail(b, CAIRN_BUSY, "called from a callback that the runtime is calling");
    }
    return CAIRN_OK;
}

/* window: the pages of layers that see a window of tokens alone. See window.h. */

static page_pool *window_pool(const window_state *w) { return &w->kv->window_pools[w->g]; }

/* Pages that a sequence of so many tokens needs, from the first on. */
static int window_first_of(const window_state *w, int tokens) {
    return pages_window_first(w->kv->groups.window[w->g], tokens, w->tables.page_size);
}

static bool window_has(const window_state *w, int row) { return row < w->tables.requests; }

static int window_first(const window_state *w, int row) {
    return window_has(w, row) ? w->rows[row].first : 0;
}

static cairn_status window_open(base *b, kv_cache *kv, prefix_cache *prefixes, int g, int requests,
                                int page_size, int max_pages, window_state *w) {
    cairn_status status;
    memset(w, 0, sizeof *w);
    w->base = b, w->kv = kv, w->prefixes = prefixes, w->g = g;
    status = tables_open(b, &kv->window_pools[g], requests, page_size, max_pages, &w->tables);
    if (status) return status;
    w->rows = (window_row *)base_new(b, (size_t)requests, sizeof *w->rows);
    return w->rows ? CAIRN_OK : base_no_memory(b, "page tables", (size_t)requests * sizeof *w->rows);
}

static void window_close(window_state *w) {
    if (!w->base) return;
    base_delete(w->base, w->rows, (size_t)w->tables.requests, sizeof *w->rows);
    tables_close(w->base, &w->tables);
    memset(w, 0, sizeof *w);
}

/* As many rows as the model's tables have come to. */
static cairn_status window_make_row(window_state *w, int row) {
    while (!window_has(w, row)) {
        const size_t had = (size_t)w->tables.requests;
        window_row *more = (window_row *)base_new(w->base, 2 * had, sizeof *more);
        cairn_status status = more ? tables_double(w->base, &w->tables)
                                   : base_no_memory(w->base, "page tables", 2 * had * sizeof *more);
        if (status) {
            base_delete(w->base, more, 2 * had, sizeof *more);
            return status;
        }
        memcpy(more, w->rows, had * sizeof *more);
        base_delete(w->base, w->rows, had, sizeof *more);
        w->rows = more;
    }
    return CAIRN_OK;
}

/* ---- room ------------------------------------------------------------------------------------ */

static int window_free(const window_state *w) { return window_pool(w)->free_count - w->promised; }

/* Pages kept of [from, end) that nobody else holds. */
static int window_sole(const window_state *w, int row, int from, int end) {
    const int32_t *ids = window_has(w, row) ? tables_row(&w->tables, row) : NULL;
    int sole = 0;
    if (from < window_first(w, row)) from = window_first(w, row);
    for (int c = from; ids && c < end && c < w->tables.pages[row]; c++)
        sole += !pages_shared(window_pool(w), ids[c]);
    return sole;
}

static int window_own(const window_state *w, int row) {
    return window_has(w, row) ? window_sole(w, row, 0, INT_MAX) + w->rows[row].promised : 0;
}

/* New pages, of those [pages, ...), that forwards up to `to` need at once, besides `sole` that are kept
 * before them, which come back. */
static int window_more(const window_state *w, int pages, int to, int sole) {
    const int most = w->kv->groups.most[w->g] - sole;
    const int more = tables_filled(&w->tables, to) - pages;
    return more < 0 || most < 0 ? 0 : more < most ? more : most;
}

/* What lies behind `from` is void and comes back; the page that it lies in is copied where another
 * holds it, too. */
static int window_need(const window_state *w, int row, int from, int to) {
    const page_tables *t = &w->tables;
    const int end = tables_filled(t, from), had = window_sole(w, row, 0, end);
    const bool copied = window_has(w, row) && from % t->page_size && end <= t->pages[row] &&
                        pages_shared(window_pool(w), tables_row(t, row)[end - 1]);
    return copied + window_more(w, end, to, had + copied) - (window_own(w, row) - had);
}

static int window_saved(const window_state *w, int tokens) {
    return tables_filled(&w->tables, tokens) - window_first_of(w, tokens);
}

static void window_make_room(window_state *w, int need) {
    if (w->prefixes->buckets && need > window_free(w))
        prefix_strip(w->prefixes, w->g, need + w->promised);
}

static void window_promise(window_state *w, int row, int pages) {
    w->promised += pages - w->rows[row].promised;
    w->rows[row].promised = pages;
}

static cairn_status window_check_room(window_state *w, int need) {
    window_make_room(w, need);
    if (need <= window_free(w)) return CAIRN_OK;
    return base_fail(w->base, CAIRN_POOL_FULL,
                     "a session: %d more pages of %d tokens for layers with a window; %d of %d are "
                     "free", need, w->tables.page_size, window_free(w), window_pool(w)->pages);
}

/* The page that `from` lies in, where it was shared, has become the row's own. */
static cairn_status window_copy(window_state *w, int row) {
    page_tables *t = &w->tables;
    const int32_t *copy = t->copies + 2 * (size_t)row;
    cairn_status status;
    if (copy[0] < 0) return CAIRN_OK;
    status = pages_kv_copy_page(w->kv, t->pool, copy[0], copy[1]);
    if (status) tables_uncopy(w->base, t, row);
    else tables_copied(t, row);
    return status;
}

static cairn_status window_reserve(window_state *w, int row, int from, int to) {
    cairn_status status = window_make_row(w, row);
    if (status) return status;
    window_cut(w, row, from);
    if ((status = window_check_room(w, window_need(w, row, from, to)))) return status;
    tables_mark_shared(&w->tables, row, from);
    tables_replace_marked(&w->tables, row, from);
    if ((status = window_copy(w, row))) return status;
    window_promise(w, row, window_more(w, w->tables.pages[row], to, window_sole(w, row, 0, INT_MAX)));
    w->rows[row].end = to;
    return CAIRN_OK;
}

/* ---- pages come and go ----------------------------------------------------------------------- */

/* What lies before page `first`, which is kept, is gone. */
static void window_forget(window_state *w, int row, int first) {
    page_tables *t = &w->tables;
    int32_t *ids = tables_row(t, row);
    const int before = w->rows[row].first;
    if (first <= before) return;
    pages_give(w->base, t->pool, ids + before, first - before);
    for (int c = 0; c < first; c++) ids[c] = ids[first];
    tables_touch(t, row, 0);
    tables_touch(t, row, first - 1);
    w->rows[row].first = first;
}

static void window_extend(window_state *w, int row, int from, int to) {
    page_tables *t = &w->tables;
    const int had = window_pool(w)->free_count, promised = w->rows[row].promised;
    const int slack = from > WINDOW_SLACK ? from - WINDOW_SLACK : 0;
    int left, more;
    window_promise(w, row, 0);
    window_forget(w, row, window_first_of(w, slack));
    window_make_room(w, tables_filled(t, to) - t->pages[row]); /* what was lent since the promise */
    tables_grow(t, row, tables_filled(t, to));
    t->lengths[row] = to;
    left = promised + window_pool(w)->free_count - had;
    more = window_more(w, t->pages[row], w->rows[row].end, window_sole(w, row, 0, INT_MAX));
    window_promise(w, row, more < left ? more : left > 0 ? left : 0);
}

static int window_reach(const window_state *w, int row, int tokens) {
    if (!window_has(w, row) || tables_filled(&w->tables, tokens) > w->tables.pages[row]) return 0;
    return window_first_of(w, tokens) >= w->rows[row].first ? tokens : 0;
}

static void window_cut(window_state *w, int row, int tokens) {
    page_tables *t = &w->tables;
    const int keep = tables_filled(t, tokens);
    int first;
    if (!window_has(w, row)) return;
    first = tokens ? keep : w->rows[row].first;
    if (t->pages[row] > first)
        pages_give(w->base, t->pool, tables_row(t, row) + first, t->pages[row] - first);
    tables_shorten(t, row, keep);
    if (t->lengths[row] > tokens) t->lengths[row] = tokens;
    window_promise(w, row, 0);
    w->rows[row].end = tokens;
    if (!tokens) w->rows[row].first = 0;
}

/* Row `row`, empty, has pages [first, pages) of ids, with a reference that is its own. */
static void window_take(window_state *w, int row, const int32_t *ids, int first, int pages) {
    page_tables *t = &w->tables;
    int32_t *own = tables_row(t, row);
    if (!pages) return;
    for (int c = 0; c < pages; c++) own[c] = ids[c < first ? first : c];
    t->pages[row] = pages;
    t->lengths[row] = pages * t->page_size;
    w->rows[row].first = first;
    tables_touch(t, row, 0);
    tables_touch(t, row, pages - 1);
}

static cairn_status window_share(window_state *w, int row, const int32_t *ids, int first,
                                 int pages) {
    cairn_status status = pages_retain(w->base, window_pool(w), ids + first, pages - first);
    if (!status) window_take(w, row, ids, first, pages);
    return status;
}

static cairn_status window_fork(window_state *w, int from, int to, int tokens) {
    cairn_status status = window_make_row(w, to);
    if (status || !tokens) return status;
    return window_share(w, to, tables_row(&w->tables, from), w->rows[from].first,
                        tables_filled(&w->tables, tokens));
}

static cairn_status window_hold(window_state *w, int row, const int32_t *ids, int pages) {
    cairn_status status = window_make_row(w, row);
    if (status) return status;
    return window_share(w, row, ids, window_first_of(w, pages * w->tables.page_size), pages);
}

static cairn_status window_fill(window_state *w, int row, int tokens) {
    page_tables *t = &w->tables;
    const int first = window_first_of(w, tokens), pages = tables_filled(t, tokens);
    cairn_status status = window_make_row(w, row);
    if (!status) status = window_check_room(w, pages - first);
    if (status || !pages) return status;
    pages_take(t->pool, pages - first, tables_row(t, row) + first);
    window_take(w, row, tables_row(t, row), first, pages);
    return CAIRN_OK;
}

/* ---- open and close -------------------------------------------------------------------------- */

static void tables_close(base *b, page_tables *t) {
    size_t n = (size_t)t->requests, all = n * (size_t)t->max_pages;
    base_delete(b, t->ids, all, sizeof *t->ids);
    base_delete(b, t->lengths, n, sizeof *t->lengths);
    base_delete(b, t->pages, n, sizeof *t->pages);
    base_delete(b, t->first_changed, n, sizeof *t->first_changed);
    base_delete(b, t->last_changed, n, sizeof *t->last_changed);
    base_delete(b, t->plan, n, sizeof *t->plan);
    base_delete(b, t->surplus, all, sizeof *t->surplus);
    base_delete(b, t->copies, 2 * n, sizeof *t->copies);
    base_delete(b, t->taken, n, sizeof *t->taken);
    memset(t, 0, sizeof *t);
}

static void tables_settle_row(page_tables *t, int r) {
    t->first_changed[r] = INT32_MAX;
    t->last_changed[r] = -1;
}

static void tables_settle(page_tables *t) {
    for (int r = 0; r < t->requests; r++) tables_settle_row(t, r);
}

static cairn_status tables_open(base *b, page_pool *from, int requests, int page_size,
                                int max_pages, page_tables *t) {
    size_t n = (size_t)requests, all = n * (size_t)max_pages;
    memset(t, 0, sizeof *t);
    t->pool = from;
    t->requests = requests, t->page_size = page_size, t->max_pages = max_pages;
    t->ids = (int32_t *)base_new(b, all, sizeof *t->ids);
    t->lengths = (int32_t *)base_new(b, n, sizeof *t->lengths);
    t->pages = (int32_t *)base_new(b, n, sizeof *t->pages);
    t->first_changed = (int32_t *)base_new(b, n, sizeof *t->first_changed);
    t->last_changed = (int32_t *)base_new(b, n, sizeof *t->last_changed);
    t->plan = (int32_t *)base_new(b, n, sizeof *t->plan);
    t->surplus = (int32_t *)base_new(b, all, sizeof *t->surplus);
    t->copies = (int32_t *)base_new(b, 2 * n, sizeof *t->copies);
    t->taken = (bool *)base_new(b, n, sizeof *t->taken);
    if (!t->ids || !t->lengths || !t->pages || !t->first_changed || !t->last_changed ||
        !t->plan || !t->surplus || !t->copies || !t->taken) {
        tables_close(b, t);
        return base_no_memory(b, "page tables", (2 * all + 7 * n) * sizeof(int32_t));
    }
    memset(t->ids, 0xff, all * sizeof *t->ids);
    memset(t->copies, 0xff, 2 * n * sizeof *t->copies);
    tables_settle(t);
    return CAIRN_OK;
}

/* As many rows again, those there are as they were. */
static cairn_status tables_double(base *b, page_tables *t) {
    const size_t n = (size_t)t->requests, bytes = n * sizeof(int32_t);
    page_tables more;
    cairn_status status = tables_open(b, t->pool, 2 * t->requests, t->page_size, t->max_pages,
                                      &more);
    if (status) return status;
    memcpy(more.ids, t->ids, bytes * (size_t)t->max_pages);
    memcpy(more.lengths, t->lengths, bytes);
    memcpy(more.pages, t->pages, bytes);
    memcpy(more.first_changed, t->first_changed, bytes);
    memcpy(more.last_changed, t->last_changed, bytes);
    memcpy(more.copies, t->copies, 2 * bytes);
    memcpy(more.taken, t->taken, n * sizeof *t->taken);
    more.copy_count = t->copy_count;
    tables_close(b, t);
    *t = more;
    return CAIRN_OK;
}

static cairn_status tables_take_row(base *b, page_tables *t, int *row) {
    int r = 0;
    cairn_status status;
    while (r < t->requests && t->taken[r]) r++;
    if (r == t->requests && (status = tables_double(b, t))) return status;
    t->taken[r] = true;
    *row = r;
    return CAIRN_OK;
}

/* ---- small parts ----------------------------------------------------------------------------- */

static int32_t *tables_row(const page_tables *t, int r) {
    return t->ids + (size_t)r * (size_t)t->max_pages;
}

static int tables_filled(const page_tables *t, int64_t tokens) {
    return (int)((tokens + t->page_size - 1) / t->page_size);
}

/* Of a live request: one at least. */
static int tables_pages_of(const page_tables *t, int64_t tokens) {
    return tokens > 0 ? tables_filled(t, tokens) : 1;
}

static void tables_touch(page_tables *t, int r, int column) {
    if (column < t->first_changed[r]) t->first_changed[r] = column;
    if (column > t->last_changed[r]) t->last_changed[r] = column;
}

/* A page for column c of request r; there is one, the caller has looked. */
static int32_t tables_new_page(page_tables *t, int r, int c) {
    int32_t id = r * t->max_pages + c;
    if (t->pool) pages_take(t->pool, 1, &id);
    tables_touch(t, r, c);
    return tables_row(t, r)[c] = id;
}

static void tables_grow(page_tables *t, int r, int pages) {
    for (; t->pages[r] < pages; t->pages[r]++) tables_new_page(t, r, t->pages[r]);
}

/* Only the list: who holds the pages has given them back. */
static void tables_shorten(page_tables *t, int r, int pages) {
    for (; t->pages[r] > pages; t->pages[r]--) {
        tables_row(t, r)[t->pages[r] - 1] = -1;
        tables_touch(t, r, t->pages[r] - 1);
    }
}

static cairn_status tables_check_free(base *b, const page_tables *t, const char *call,
                                      int64_t need) {
    if (!t->pool || need <= t->pool->free_count) return CAIRN_OK;
    return base_fail(b, CAIRN_POOL_FULL, "%s: %lld more pages of %d tokens; %d of %d are free",
                     call, (long long)need, t->page_size, t->pool->free_count, t->pool->pages);
}

/* A change must wait until the copies of the insert before are fetched: it could free or write the
 * pages they read. */
static cairn_status tables_check_copies(base *b, const page_tables *t, const char *call) {
    if (!t->copy_count) return CAIRN_OK;
    return base_fail(b, CAIRN_BUSY, "%s: %d page copies of the insert before were not fetched",
                     call, t->copy_count);
}

/* That request r exists and is live, or is not. */
static cairn_status tables_check_request(base *b, const page_tables *t, const char *call, int r,
                                         bool live) {
    if (r < 0 || r >= t->requests)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "%s: request %d; there are %d", call, r,
                         t->requests);
    if ((t->pages[r] > 0) == live) return CAIRN_OK;
    return base_fail(b, CAIRN_INVALID_ARGUMENT, "%s: request %d is %s", call, r,
                     live ? "not live" : "live already");
}

/* Of a number of tokens or pages given for each request: none negative, none for one not live. */
static cairn_status tables_check_counts(base *b, const page_tables *t, const char *call,
                                        const int32_t *counts) {
    cairn_status status = tables_check_copies(b, t, call);
    for (int r = 0; r < t->requests && !status; r++) {
        if (counts[r] < 0)
            status = base_fail(b, CAIRN_INVALID_ARGUMENT, "%s: request %d: %d is negative", call,
                               r, (int)counts[r]);
        else if (counts[r]) status = tables_check_request(b, t, call, r, true);
    }
    return status;
}

static cairn_status tables_too_long(base *b, const page_tables *t, const char *call, int r,
                                    int64_t pages) {
    return base_fail(b, CAIRN_CONTEXT_FULL,
                     "%s: request %d would need %lld pages of %d tokens; a request has room for %d",
                     call, r, (long long)pages, t->page_size, t->max_pages);
}

/* Gives back what lies behind the first plan[r] pages of each request, then cuts the rows: 0 ends a
 * request. A page that is not ours any more is the caller's mistake: nothing changes. */
static cairn_status tables_cut(base *b, page_tables *t) {
    int count = 0;
    cairn_status status;
    for (int r = 0; r < t->requests && t->pool; r++)
        for (int c = t->plan[r]; c < t->pages[r]; c++) t->surplus[count++] = tables_row(t, r)[c];
    if (t->pool && (status = pages_give(b, t->pool, t->surplus, count))) return status;
    for (int r = 0; r < t->requests; r++) tables_shorten(t, r, t->plan[r]);
    return CAIRN_OK;
}

/* ---- one row --------------------------------------------------------------------------------- */

/* Pages that writing from token `from` on would write and that have another holder are marked in
 * the table by their complement, their reference given up; two rows that share one with nobody else
 * thus leave it to the latter. How many there are. */
static int tables_mark_shared(page_tables *t, int r, int from) {
    int32_t *row = tables_row(t, r);
    int marked = 0;
    for (int c = from / t->page_size; t->pool && c < t->pages[r]; c++)
        if (pages_shared(t->pool, row[c])) {
            t->pool->references[row[c]]--;
            row[c] = ~row[c];
            marked++;
        }
    return marked;
}

static void tables_unmark(page_tables *t, int r, int from) {
    int32_t *row = tables_row(t, r);
    for (int c = from / t->page_size; c < t->pages[r]; c++)
        if (row[c] < 0) {
            row[c] = ~row[c];
            t->pool->references[row[c]]++;
        }
}

/* New pages for those marked; the partly filled one has tokens to be copied. */
static void tables_replace_marked(page_tables *t, int r, int from) {
    int32_t *row = tables_row(t, r);
    for (int c = from / t->page_size; c < t->pages[r]; c++)
        if (row[c] < 0) {
            int32_t old = ~row[c], page = tables_new_page(t, r, c);
            if (from <= c * t->page_size) continue;
            t->copies[2 * r] = old;
            t->copies[2 * r + 1] = page;
            t->copy_count++;
        }
}

static int tables_need(const page_tables *t, int r, int from, int to) {
    int need = tables_filled(t, to) - t->pages[r];
    if (need < 0) need = 0;
    for (int c = from / t->page_size; t->pool && c < t->pages[r]; c++)
        need += pages_shared(t->pool, tables_row(t, r)[c]);
    return need;
}

/* Row r has pages for tokens [0, to), those from `from` on held by nobody else. The page that
 * `from` lies in may then have to be copied: see t->copies, and tables_uncopy where that fails. */
static cairn_status tables_reserve(base *b, page_tables *t, const char *call, int r, int from,
                                   int to) {
    cairn_status status = tables_check_copies(b, t, call);
    if (!status) status = tables_check_free(b, t, call, tables_need(t, r, from, to));
    if (status) return status;
    tables_mark_shared(t, r, from);
    tables_replace_marked(t, r, from);
    tables_grow(t, r, tables_filled(t, to));
    if (t->lengths[r] < to) t->lengths[r] = to;
    return CAIRN_OK;
}

/* The copy that tables_reserve wanted was made; or not, and the row has the page of before again,
 * which has other holders. */
static void tables_copied(page_tables *t, int r) {
    t->copies[2 * r] = t->copies[2 * r + 1] = -1;
    t->copy_count--;
}

static void tables_uncopy(base *b, page_tables *t, int r) {
    int32_t *row = tables_row(t, r), old = t->copies[2 * r], page = t->copies[2 * r + 1];
    int c = 0;
    while (row[c] != page) c++;
    row[c] = old;
    t->pool->references[old]++;
    pages_give(b, t->pool, &page, 1);
    tables_touch(t, r, c);
    tables_copied(t, r);
}

/* Row r keeps tokens [0, tokens) at most; pages behind them go back. */
static void tables_trim(base *b, page_tables *t, int r, int tokens) {
    int keep = tables_filled(t, tokens);
    if (t->pool && t->pages[r] > keep)
        pages_give(b, t->pool, tables_row(t, r) + keep, t->pages[r] - keep);
    tables_shorten(t, r, keep);
    if (t->lengths[r] > tokens) t->lengths[r] = tokens;
}

static cairn_status tables_hold(base *b, page_tables *t, int r, int first, const int32_t *ids,
                                int count) {
    int32_t *row = tables_row(t, r);
    int old = t->pages[r] - first < count ? t->pages[r] - first : count;
    cairn_status status = pages_retain(b, t->pool, ids, count);
    if (status || !count) return status;
    pages_give(b, t->pool, row + first, old);
    memcpy(row + first, ids, (size_t)count * sizeof *ids);
    if (t->pages[r] < first + count) t->pages[r] = first + count;
    tables_touch(t, r, first);
    tables_touch(t, r, first + count - 1);
    return CAIRN_OK;
}

static void tables_leave_row(base *b, page_tables *t, int r) {
    tables_trim(b, t, r, 0);
    t->taken[r] = false;
}

static cairn_status tables_check_new(base *b, const page_tables *t, int r) {
    const int32_t *row = tables_row(t, r);
    for (int c = t->first_changed[r]; c <= t->last_changed[r] && c < t->pages[r]; c++)
        if (row[c] < 0 || row[c] >= t->pool->pages)
            return base_fail(b, CAIRN_INVALID_ARGUMENT, "row %d: logical page %d is page %d of %d",
                             r, c, (int)row[c], t->pool->pages);
    return CAIRN_OK;
}

/* ---- requests come and go -------------------------------------------------------------------- */

/* Makes the listed requests live: one page each, no token. */
static cairn_status tables_add(base *b, page_tables *t, const int32_t *requests, int count) {
    cairn_status status = tables_check_copies(b, t, "add");
    int good = 0;
    if (!status) status = tables_check_free(b, t, "add", count);
    while (!status && good < count) {
        status = tables_check_request(b, t, "add", requests[good], false);
        if (!status) t->pages[requests[good++]] = 1; /* so that one listed twice is seen */
    }
    for (int i = 0; i < good; i++) t->pages[requests[i]] = 0;
    for (int i = 0; i < count && !status; i++) {
        t->lengths[requests[i]] = 0;
        tables_grow(t, requests[i], 1);
    }
    return status;
}

/* Ends the listed requests; their pages go back. */
static cairn_status tables_remove(base *b, page_tables *t, const int32_t *requests, int count) {
    cairn_status status = tables_check_copies(b, t, "remove");
    memcpy(t->plan, t->pages, (size_t)t->requests * sizeof *t->plan);
    for (int i = 0; i < count && !status; i++) {
        status = tables_check_request(b, t, "remove", requests[i], true);
        if (!status && !t->plan[requests[i]])
            status = base_fail(b, CAIRN_INVALID_ARGUMENT, "remove: request %d is listed twice",
                               (int)requests[i]);
        if (!status) t->plan[requests[i]] = 0;
    }
    if (!status) status = tables_cut(b, t);
    for (int i = 0; i < count && !status; i++) t->lengths[requests[i]] = 0;
    return status;
}

static cairn_status tables_check_sharing(base *b, const page_tables *t, const char *call) {
    if (t->pool) return tables_check_copies(b, t, call);
    return base_fail(b, CAIRN_UNSUPPORTED, "%s: tables without a pool share no pages", call);
}

/* Request r, not live, gets pages that the caller holds one reference of, such as a cached prefix:
 * they get one more. tokens fill them: pages are what tables_pages_of says. */
static cairn_status tables_adopt(base *b, page_tables *t, int r, const int32_t *ids, int tokens) {
    int count = tables_pages_of(t, tokens);
    cairn_status status = tables_check_sharing(b, t, "adopt");
    if (!status) status = tables_check_request(b, t, "adopt", r, false);
    if (status) return status;
    if (tokens < 1)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "adopt: %d tokens; 1 is the least", tokens);
    if (count > t->max_pages) return tables_too_long(b, t, "adopt", r, count);
    if ((status = tables_hold(b, t, r, 0, ids, count))) return status;
    t->lengths[r] = tokens;
    return CAIRN_OK;
}

/* Request `to`, not live, becomes a copy of `from`: it shares the pages that hold tokens. */
static cairn_status tables_fork(base *b, page_tables *t, int from, int to) {
    cairn_status status = tables_check_sharing(b, t, "fork");
    if (!status) status = tables_check_request(b, t, "fork", from, true);
    if (!status) status = tables_check_request(b, t, "fork", to, false);
    if (status) return status;
    if (!t->lengths[from]) return tables_add(b, t, (const int32_t[]){to}, 1);
    return tables_adopt(b, t, to, tables_row(t, from), t->lengths[from]);
}

/* ---- tokens come and go ---------------------------------------------------------------------- */

/* Room for tokens[r] more tokens of each request. */
static cairn_status tables_insert(base *b, page_tables *t, const int32_t *tokens) {
    cairn_status status = tables_check_counts(b, t, "insert", tokens);
    int64_t need = 0;
    int planned = 0;
    for (; planned < t->requests && !status; planned++) {
        int64_t length = (int64_t)t->lengths[planned] + tokens[planned];
        int64_t pages = (length + t->page_size - 1) / t->page_size;
        if (!tokens[planned]) continue;
        if (pages > t->max_pages) {
            status = tables_too_long(b, t, "insert", planned, pages);
            break;
        }
        t->plan[planned] = (int32_t)pages;
        if (pages > t->pages[planned]) need += pages - t->pages[planned];
        need += tables_mark_shared(t, planned, t->lengths[planned]);
    }
    if (!status) status = tables_check_free(b, t, "insert", need);
    if (!status) memset(t->copies, 0xff, 2 * (size_t)t->requests * sizeof *t->copies);
    for (int r = 0; r < planned; r++) {
        if (!tokens[r]) continue;
        if (status) {
            tables_unmark(t, r, t->lengths[r]);
            continue;
        }
        tables_replace_marked(t, r, t->lengths[r]);
        tables_grow(t, r, t->plan[r]);
        t->lengths[r] += tokens[r];
    }
    return status;
}

/* Takes tokens[r] tokens from the end of each request, or all it has; surplus pages go back, one
 * always stays. */
static cairn_status tables_delete(base *b, page_tables *t, const int32_t *tokens) {
    cairn_status status = tables_check_counts(b, t, "delete", tokens);
    for (int r = 0; r < t->requests && !status; r++) {
        t->plan[r] = t->pages[r];
        if (tokens[r]) t->plan[r] = tables_pages_of(t, (int64_t)t->lengths[r] - tokens[r]);
    }
    if (!status) status = tables_cut(b, t);
    for (int r = 0; r < t->requests && !status; r++)
        t->lengths[r] = tokens[r] < t->lengths[r] ? t->lengths[r] - tokens[r] : 0;
    return status;
}

/* Every live request holds one page and no token again. */
static cairn_status tables_clear(base *b, page_tables *t) {
    cairn_status status = tables_check_copies(b, t, "clear");
    for (int r = 0; r < t->requests; r++) t->plan[r] = t->pages[r] > 0;
    if (!status) status = tables_cut(b, t);
    if (!status) memset(t->lengths, 0, (size_t)t->requests * sizeof *t->lengths);
    return status;
}

/* ---- pages by count -------------------------------------------------------------------------- */

/* counts[r] more pages at the end of each request, whatever its tokens. */
static cairn_status tables_allocate(base *b, page_tables *t, const int32_t *counts) {
    cairn_status status = tables_check_counts(b, t, "allocate", counts);
    int64_t need = 0;
    for (int r = 0; r < t->requests && !status; r++) {
        if ((int64_t)t->pages[r] + counts[r] > t->max_pages)
            status = tables_too_long(b, t, "allocate", r, (int64_t)t->pages[r] + counts[r]);
        need += counts[r];
    }
    if (!status) status = tables_check_free(b, t, "allocate", need);
    for (int r = 0; r < t->requests && !status; r++) tables_grow(t, r, t->pages[r] + counts[r]);
    return status;
}

/* counts[r] pages fewer at the end of each request; none that holds a token, and one stays. */
static cairn_status tables_release(base *b, page_tables *t, const int32_t *counts) {
    cairn_status status = tables_check_counts(b, t, "release", counts);
    for (int r = 0; r < t->requests && !status; r++) {
        int least = t->pages[r] ? tables_pages_of(t, t->lengths[r]) : 0;
        if (counts[r] > t->pages[r] - least)
            status = base_fail(b, CAIRN_INVALID_ARGUMENT,
                               "release: request %d holds %d pages and needs %d; %d cannot go", r,
                               (int)t->pages[r], least, (int)counts[r]);
        t->plan[r] = t->pages[r] - counts[r];
    }
    return status ? status : tables_cut(b, t);
}

/* ---- forms ----------------------------------------------------------------------------------- */

/* Tokens in the last page: 1 to page_size, 0 for an empty request. */
static int32_t tables_last_page_len(const page_tables *t, int r) {
    return t->lengths[r] > 0 ? (t->lengths[r] - 1) % t->page_size + 1 : 0;
}

/* indptr [requests + 1]: where each request's pages begin in a list of all, in their order. */
static void tables_indptr(const page_tables *t, int32_t *indptr) {
    indptr[0] = 0;
    for (int r = 0; r < t->requests; r++) indptr[r + 1] = indptr[r] + t->pages[r];
}

/* page_tables: host lists against a naive model under random use. The model keeps each request's
 * tokens as a plain list; the cache's pages hold values that are written through the tables, with
 * the copies that insert asks for, so that a page shared, freed or overwritten wrongly is seen as a
 * wrong value. CAIRN_FUZZ_OPERATIONS sets how many operations (1000000). */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "tap.h"

enum { REQUESTS = 6, MOST_PAGES = 9, POOL_MOST = 40, PAGE_MOST = 256 };

static uint64_t random_state;
static uint32_t rnd(uint32_t below) {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(random_state >> 33) % below;
}

/* ---- the naive model ------------------------------------------------------------------------- */

typedef struct naive {
    bool live[REQUESTS];
    int length[REQUESTS], pages[REQUESTS];
    int32_t tokens[REQUESTS][MOST_PAGES * PAGE_MOST];
} naive;

static naive model;
static int32_t slots_of[POOL_MOST > REQUESTS * MOST_PAGES ? POOL_MOST : REQUESTS * MOST_PAGES]
                    [PAGE_MOST];
static int32_t next_token;

static int pages_for(int tokens, int size) {
    int pages = 1;
    while (pages * size < tokens) pages++;
    return pages;
}

static int32_t *slot(const page_tables *t, int r, int position) {
    return &slots_of[t->ids[r * t->max_pages + position / t->page_size]][position % t->page_size];
}

/* The copies that the last insert wants, made; false when one is between pages that are wrong. */
static bool make_copies(page_tables *t) {
    for (int r = 0; r < t->requests; r++) {
        int from = t->copies[2 * r], to = t->copies[2 * r + 1];
        if (t->copy_count == 0 || from < 0) continue;
        if (!t->pool || to < 0 || from == to || t->pool->references[from] < 1) return false;
        memcpy(slots_of[to], slots_of[from], sizeof slots_of[to]);
    }
    t->copy_count = 0;
    return true;
}

/* Lengths, page counts, forms and reference counts; with `deep` every token too. */
static bool agrees(const page_tables *t, bool deep) {
    int references[POOL_MOST] = {0}, total = 0;
    int32_t indptr[REQUESTS + 1];
    tables_indptr(t, indptr);
    for (int r = 0; r < t->requests; r++) {
        const int32_t *row = t->ids + r * t->max_pages;
        int last = model.length[r];
        if (t->pages[r] != model.pages[r] || t->lengths[r] != model.length[r]) return false;
        if (indptr[r] != total) return false;
        total += model.pages[r];
        while (last > t->page_size) last -= t->page_size;
        if (tables_last_page_len(t, r) != last) return false;
        for (int c = 0; c < t->max_pages; c++) {
            if (c >= model.pages[r]) {
                if (row[c] != -1) return false;
            } else if (!t->pool) {
                if (row[c] != r * t->max_pages + c) return false;
            } else {
                if (row[c] < 0 || row[c] >= t->pool->pages) return false;
                references[row[c]]++;
            }
        }
        for (int i = 0; deep && i < model.length[r]; i++)
            if (*slot(t, r, i) != model.tokens[r][i]) return false;
    }
    for (int p = 0, held = 0; t->pool && p < t->pool->pages; p++) {
        held += references[p] > 0;
        if (t->pool->references[p] != references[p]) return false;
        if (p == t->pool->pages - 1 && t->pool->free_count != t->pool->pages - held) return false;
    }
    return indptr[t->requests] == total;
}

/* ---- operations ------------------------------------------------------------------------------ */

/* Pages that the insert takes from the pool, by trying it on counts of its own. */
static int insert_needs(const page_tables *t, const int32_t *tokens) {
    int references[POOL_MOST], need = 0;
    if (t->pool) memcpy(references, t->pool->references, (size_t)t->pool->pages * sizeof(int));
    for (int r = 0; r < t->requests; r++) {
        int pages = pages_for(model.length[r] + tokens[r], t->page_size);
        if (!tokens[r]) continue;
        if (pages > model.pages[r]) need += pages - model.pages[r];
        for (int c = 0; t->pool && c < model.pages[r]; c++) {
            int id = t->ids[r * t->max_pages + c];
            if ((c + 1) * t->page_size <= model.length[r] || references[id] == 1) continue;
            references[id]--, need++;
        }
    }
    return t->pool ? need : 0;
}

static bool step_insert(base *b, page_tables *t) {
    int32_t tokens[REQUESTS] = {0};
    cairn_status want = CAIRN_OK, got;
    for (int r = 0; r < t->requests; r++) {
        if (rnd(3)) tokens[r] = model.live[r] || !rnd(40) ? (int32_t)rnd(2 * (uint32_t)t->page_size + 2) : 0;
        if (!rnd(100)) tokens[r] = rnd(2) ? -1 : INT32_MAX;
    }
    for (int r = 0; r < t->requests; r++)
        if (tokens[r] < 0 || (tokens[r] && !model.live[r])) want = CAIRN_INVALID_ARGUMENT;
    for (int r = 0; r < t->requests && !want; r++)
        if ((int64_t)model.length[r] + tokens[r] > t->max_pages * t->page_size)
            want = CAIRN_CONTEXT_FULL;
    if (!want && t->pool && insert_needs(t, tokens) > t->pool->free_count) want = CAIRN_POOL_FULL;
    got = tables_insert(b, t, tokens);
    if (got || want) return got == want;
    if (t->copy_count && !rnd(8) && tables_delete(b, t, tokens) != CAIRN_BUSY) return false;
    if (!make_copies(t)) return false;
    for (int r = 0; r < t->requests; r++) {
        int pages = pages_for(model.length[r] + tokens[r], t->page_size);
        if (tokens[r] && pages > model.pages[r]) model.pages[r] = pages;
        for (int i = 0; i < tokens[r]; i++) {
            *slot(t, r, model.length[r]) = next_token;
            model.tokens[r][model.length[r]++] = next_token++;
        }
    }
    return true;
}

static bool step_delete(base *b, page_tables *t) {
    int32_t tokens[REQUESTS] = {0};
    bool wrong = false;
    for (int r = 0; r < t->requests; r++) {
        if (model.live[r] || !rnd(40))
            tokens[r] = rnd(20) ? (int32_t)rnd(2 * (uint32_t)t->page_size + 2) : INT32_MAX;
        if (!rnd(100)) tokens[r] = -1;
        wrong = wrong || tokens[r] < 0 || (tokens[r] && !model.live[r]);
    }
    if (wrong) return tables_delete(b, t, tokens) == CAIRN_INVALID_ARGUMENT;
    for (int r = 0; r < t->requests; r++) {
        model.length[r] = tokens[r] < model.length[r] ? model.length[r] - tokens[r] : 0;
        if (tokens[r]) model.pages[r] = pages_for(model.length[r], t->page_size);
    }
    return !tables_delete(b, t, tokens);
}

static bool step_counts(base *b, page_tables *t, bool more) {
    int32_t counts[REQUESTS] = {0};
    int need = 0;
    cairn_status want = CAIRN_OK, got;
    for (int r = 0; r < t->requests; r++) {
        if (model.live[r] || !rnd(40)) counts[r] = (int32_t)rnd(3);
        if (!rnd(100)) counts[r] = -1;
        if (counts[r] < 0 || (counts[r] && !model.live[r])) want = CAIRN_INVALID_ARGUMENT;
        need += counts[r];
    }
    for (int r = 0; r < t->requests && !want; r++)
        if (more && model.pages[r] + counts[r] > t->max_pages) want = CAIRN_CONTEXT_FULL;
        else if (!more && model.live[r] &&
                 model.pages[r] - counts[r] < pages_for(model.length[r], t->page_size))
            want = CAIRN_INVALID_ARGUMENT;
    if (!want && more && t->pool && need > t->pool->free_count) want = CAIRN_POOL_FULL;
    got = more ? tables_allocate(b, t, counts) : tables_release(b, t, counts);
    for (int r = 0; r < t->requests && !got; r++) model.pages[r] += more ? counts[r] : -counts[r];
    return got == want;
}

/* Adds or removes up to three requests; listed twice, out of range or in the wrong state is wrong. */
static bool step_list(base *b, page_tables *t, bool add) {
    int32_t list[3];
    int count = (int)rnd(4);
    bool wrong = false;
    cairn_status want = CAIRN_OK, got;
    for (int i = 0; i < count; i++) {
        list[i] = rnd(20) ? (int32_t)rnd((uint32_t)t->requests) : rnd(2) ? -1 : t->requests;
        if (list[i] < 0 || list[i] >= t->requests || model.live[list[i]] == add) wrong = true;
        for (int j = 0; j < i; j++) wrong = wrong || list[i] == list[j];
    }
    if (wrong) want = CAIRN_INVALID_ARGUMENT;
    if (add && t->pool && count > t->pool->free_count) want = CAIRN_POOL_FULL;
    got = add ? tables_add(b, t, list, count) : tables_remove(b, t, list, count);
    for (int i = 0; i < count && !got; i++) {
        model.live[list[i]] = add;
        model.length[list[i]] = 0;
        model.pages[list[i]] = add;
    }
    return got == want;
}

static bool step_fork(base *b, page_tables *t) {
    int from = (int)rnd((uint32_t)t->requests), to = (int)rnd((uint32_t)t->requests);
    cairn_status want = CAIRN_OK, got;
    if (!model.live[from] || model.live[to]) want = CAIRN_INVALID_ARGUMENT;
    if (!t->pool) want = CAIRN_UNSUPPORTED;
    if (!want && model.length[from] == 0 && !t->pool->free_count) want = CAIRN_POOL_FULL;
    got = tables_fork(b, t, from, to);
    if (got || want) return got == want;
    model.live[to] = true;
    model.length[to] = model.length[from];
    model.pages[to] = pages_for(model.length[from], t->page_size);
    memcpy(model.tokens[to], model.tokens[from], (size_t)model.length[from] * sizeof(int32_t));
    return true;
}

static bool step_clear(base *b, page_tables *t) {
    for (int r = 0; r < t->requests; r++) {
        model.length[r] = 0;
        model.pages[r] = model.live[r];
    }
    return !tables_clear(b, t);
}

static bool step(base *b, page_tables *t) {
    switch (rnd(12)) {
        case 0: return step_list(b, t, true);
        case 1: return step_list(b, t, rnd(2) != 0);
        case 2: case 3: return step_fork(b, t);
        case 4: case 5: return step_delete(b, t);
        case 6: return step_counts(b, t, true);
        case 7: return step_counts(b, t, false);
        case 8: return rnd(30) ? step_insert(b, t) : step_clear(b, t);
        default: return step_insert(b, t);
    }
}

static void fuzz(base *b, int pool_pages, int page_size, int max_pages, int operations) {
    page_pool pages;
    page_tables t;
    int good = 0;
    bool fine = true;
    memset(&model, 0, sizeof model);
    if (pool_pages) pages_open(b, pool_pages, &pages);
    tables_open(b, pool_pages ? &pages : NULL, REQUESTS, page_size, max_pages, &t);
    while (good < operations && fine) {
        fine = step(b, &t) && agrees(&t, good % 64 == 0);
        good += fine;
    }
    fine = fine && agrees(&t, true);
    tap_ok(good == operations && fine, "%s, %d pages, page size %d, %d a request: %d of %d "
           "operations as the naive model", pool_pages ? "pool" : "no pool",
           pool_pages, page_size, max_pages, good, operations);
    tables_close(b, &t);
    if (pool_pages) pages_close(b, &pages);
}

/* ---- known values ---------------------------------------------------------------------------- */

/* The numbers of the page manager as documented: lengths to (pages, last), CSR of two requests. */
static void test_golden(base *b) {
    static const int32_t lengths[][3] = {{0, 1, 0}, {1, 1, 1}, {16, 1, 16}, {17, 2, 1}, {32, 2, 16}};
    static const int32_t two[] = {0, 1}, add[] = {1, 0};
    int32_t indptr[3];
    bool fine = true;
    page_tables t;
    tables_open(b, NULL, 2, 16, 64, &t);
    fine = !tables_add(b, &t, two, 2);
    for (size_t i = 0; i < BASE_COUNT(lengths) && fine; i++) {
        int32_t tokens[2] = {0, 0};
        tokens[0] = lengths[i][0];
        fine = !tables_clear(b, &t) && !tables_insert(b, &t, tokens) &&
               t.pages[0] == lengths[i][1] && tables_last_page_len(&t, 0) == lengths[i][2];
    }
    tap_ok(fine, "page size 16: lengths 0, 1, 16, 17, 32");
    fine = !tables_clear(b, &t) && !tables_allocate(b, &t, add);
    tables_indptr(&t, indptr);
    tap_ok(fine && indptr[1] == 2 && indptr[2] == 3 && t.ids[0] == 0 && t.ids[1] == 1 &&
           t.ids[64] == 64, "deterministic ids: [0 1 64], indptr [0 2 3]");
    tables_close(b, &t);
}

/* What each refusal says. */
static void test_messages(base *b) {
    static const int32_t first[] = {0}, second[] = {1}, far_away[] = {7}, four[] = {4, 0};
    static const int32_t seven[] = {7, 0}, nothing_live[] = {0, 3}, minus[] = {-2, 0}, one[] = {1, 0};
    page_pool pages;
    page_tables t;
    pages_open(b, 3, &pages);
    tables_open(b, &pages, 2, 2, 3, &t);
    tap_ok(tables_add(b, &t, far_away, 1) == CAIRN_INVALID_ARGUMENT &&
           strstr(b->error, "request 7; there are 2"), "%s", b->error);
    tables_add(b, &t, first, 1);
    tap_ok(tables_add(b, &t, first, 1) == CAIRN_INVALID_ARGUMENT &&
           strstr(b->error, "request 0 is live already"), "%s", b->error);
    tap_ok(tables_insert(b, &t, nothing_live) == CAIRN_INVALID_ARGUMENT &&
           strstr(b->error, "request 1 is not live"), "%s", b->error);
    tap_ok(tables_delete(b, &t, minus) == CAIRN_INVALID_ARGUMENT && strstr(b->error, "-2"), "%s",
           b->error);
    tap_ok(tables_insert(b, &t, seven) == CAIRN_CONTEXT_FULL && strstr(b->error, "4 pages of 2"),
           "%s", b->error);
    tables_insert(b, &t, four);
    tables_add(b, &t, second, 1);
    tap_ok(tables_insert(b, &t, one) == CAIRN_POOL_FULL && strstr(b->error, "0 of 3 are free"),
           "%s", b->error);
    tap_ok(tables_release(b, &t, one) == CAIRN_INVALID_ARGUMENT && strstr(b->error, "needs 2"),
           "%s", b->error);
    pages_give(b, &pages, t.ids, 1); /* behind the tables' back */
    tap_ok(tables_remove(b, &t, first, 1) == CAIRN_INVALID_ARGUMENT && t.pages[0] == 2 &&
           strstr(b->error, "is not in use"), "a page that was freed twice: %s", b->error);
    tables_close(b, &t);
    pages_close(b, &pages);
}

/* A batch that forks and writes: the partly filled page is copied for all holders but one. */
static void test_fork(base *b) {
    static const int32_t first[] = {0}, three[] = {3, 0, 0}, all[] = {1, 1, 1};
    page_pool pages;
    page_tables t;
    bool fine;
    pages_open(b, 9, &pages);
    tables_open(b, &pages, 3, 2, 3, &t);
    fine = !tables_add(b, &t, first, 1) && !tables_insert(b, &t, three) &&
           !tables_fork(b, &t, 0, 1) && !tables_fork(b, &t, 1, 2) && pages.free_count == 7;
    tap_ok(fine && pages.references[t.ids[1]] == 3, "two forks take no page");
    fine = !tables_insert(b, &t, all) && t.copy_count == 2 && pages.free_count == 5 &&
           t.copies[4] == -1 && t.copies[0] == t.copies[2] && t.copies[1] != t.copies[3] &&
           t.ids[7] == t.copies[0] && pages.references[t.ids[0]] == 3;
    tap_ok(fine, "written by all three: two copies, the last holder keeps the page");
    tap_ok(tables_insert(b, &t, all) == CAIRN_BUSY && strstr(b->error, "2 page copies"), "%s",
           b->error);
    tables_close(b, &t);
    pages_close(b, &pages);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int allocations_left, live_blocks;
static void *failing_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    (void)user, (void)old_bytes;
    if (new_bytes && allocations_left-- == 0) return NULL;
    live_blocks += (new_bytes != 0) - (memory != NULL);
    if (new_bytes) return realloc(memory, new_bytes);
    free(memory);
    return NULL;
}

static void test_memory(void) {
    cairn_allocator allocator = {NULL, failing_realloc};
    int n = 0, good = 0;
    base b;
    base_init(&b, &allocator, NULL, NULL, CAIRN_LOG_OFF);
    for (bool failed = true; failed; n++) {
        page_pool pages;
        page_tables t;
        cairn_status status;
        allocations_left = n;
        status = pages_open(&b, 3, &pages);
        if (!status && !(status = tables_open(&b, &pages, 4, 16, 5, &t))) tables_close(&b, &t);
        if (pages.pages) pages_close(&b, &pages);
        failed = status != CAIRN_OK;
        good += (!failed || status == CAIRN_OUT_OF_MEMORY) && live_blocks == 0;
    }
    tap_ok(good == n && n > 9, "each of %d allocations failed once: a status, no leak", n - 1);
}

int main(void) {
    static const int sizes[] = {1, 2, 16, 32, 64, 128, 256};
    uint64_t seed = random_seed();
    const char *wanted = getenv("CAIRN_FUZZ_OPERATIONS");
    int operations = (wanted ? atoi(wanted) : 1000000) / 18;
    base b;
    random_state = seed;
    base_init(&b, NULL, NULL, NULL, CAIRN_LOG_OFF);
    test_golden(&b);
    test_messages(&b);
    test_fork(&b);
    test_memory();
    fuzz(&b, 3, 1, 3, 2 * operations);
    fuzz(&b, 3, 2, 5, 3 * operations);
    fuzz(&b, 40, 2, MOST_PAGES, 3 * operations);
    fuzz(&b, 0, 1, 2, operations);
    fuzz(&b, 0, 2, MOST_PAGES, operations);
    for (size_t i = 0; i < BASE_COUNT(sizes); i++)
        fuzz(&b, 8 + (int)rnd(32), sizes[i], MOST_PAGES, sizes[i] > 16 ? operations / 2 : 2 * operations);
    return tap_done();
}

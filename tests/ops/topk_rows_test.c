/* topk_rows against topk and topk_transform of all scores at once, for every way to cut the rows;
 * the free-memory rule by its numbers; producers that fail; memory that is not there. The ops it is
 * compared with have oracles of their own in topk_test.c.
 * emulated: asan */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "tap.h"
#include "backends.h"

static uint64_t state;
static int between(int low, int high) {
    return low + (int)(random_next(&state) % (uint64_t)(high - low + 1));
}

/* ---- the rule, by hand ------------------------------------------------------------------------- */

static void rule(void) {
    uint64_t gib = UINT64_C(1) << 30, all = UINT64_C(1) << 60;
    tap_ok(rows_by_memory(999, 8000, 0, 0) == 999, "below 8,000,000 scores nothing is cut");
    tap_ok(rows_by_memory(1000, 8000, 0, 0) == 1, "no free memory: one row");
    tap_ok(rows_by_memory(1000, 8000, 64000000, all) == 1000, "twice the scores are free: all");
    tap_ok(rows_by_memory(1000, 8000, 63999999, all) == 999, "one byte less: half of what is free");
    tap_ok(rows_by_memory(4096, 131072, 100 * gib, 6 * gib) == 4096,
           "more than 0.3 of all memory, and half of the free memory holds all");
    tap_ok(rows_by_memory(4096, 131072, 3 * gib, 6 * gib) == 3072, "half of 3 GiB: 3072 rows");
    tap_ok(rows_by_memory(INT32_MAX, 1 << 22, gib, gib) == 32, "sizes beyond 32 bits");
    tap_ok(rows_by_memory(0, 131072, 0, 0) == 0 && rows_by_memory(9000000, 0, 0, 0) == 9000000,
           "no rows, no candidates");
    tap_ok(rows_by_bound(100, 1000, 4000 * 7 + 3999) == 7 && rows_by_bound(100, 1000, 1) == 1 &&
           rows_by_bound(100, 1000, 1 << 30) == 100, "a byte bound, with a floor of one row");
}

/* ---- one case and its reference ---------------------------------------------------------------- */

enum { REQUESTS = 3, PAGES = 40, GUARD = 16 };
enum { POS, SLOT, SLOT_REQUESTS, FLAT, FORMS };
static const char *const form_names[] = {"pos", "slot", "slot by requests", "flat"};

typedef struct problem {
    cairn_runtime *rt;
    int rows, n, k, padding;
    bool ranged;
    int form;
    int32_t order;
    cairn_tensor *scores, *lengths, *starts, *table, *offsets, *requests; /* all rows */
    cairn_tensor *want, *want_values;                                     /* [rows, k] */
    /* what the producer is asked */
    int64_t next, calls, most;
    int fail_at;                 /* call that fails, -1: none */
    cairn_status fail_with;
    bool waits, wrong;
} problem;

static cairn_tensor *make(cairn_runtime *rt, cairn_type type, int64_t rows, int64_t columns) {
    int64_t shape[2];
    cairn_tensor *t = NULL;
    shape[0] = rows, shape[1] = columns;
    cairn_tensor_new(rt, type, columns < 0 ? 1 : 2, shape, &t);
    return t;
}

static cairn_tensor *make_ints(cairn_runtime *rt, int rows, int columns, int low, int high) {
    cairn_tensor *t = make(rt, CAIRN_I32, rows, columns);
    size_t count = (size_t)rows * (size_t)(columns < 0 ? 1 : columns), i;
    int32_t *host = (int32_t *)calloc(count + 1, 4);
    for (i = 0; i < count; i++) host[i] = between(low, high);
    cairn_tensor_write(rt, t, host, count * 4);
    free(host);
    return t;
}

static void open_problem(problem *p, cairn_runtime *rt, int form, int order, bool ranged) {
    size_t count, i;
    float *host;
    memset(p, 0, sizeof *p);
    p->rt = rt, p->form = form, p->order = order, p->ranged = ranged;
    p->rows = REQUESTS * between(2, 5), p->n = between(1, 300), p->k = between(1, 70);
    p->padding = between(0, 3), p->fail_at = -1;
    count = (size_t)p->rows * (size_t)p->n;
    host = (float *)calloc(count, 4);
    for (i = 0; i < count; i++) host[i] = (float)between(-9, 9); /* ties everywhere */
    p->scores = make(rt, CAIRN_F32, p->rows, p->n);
    cairn_tensor_write(rt, p->scores, host, count * 4);
    free(host);
    p->lengths = make_ints(rt, p->rows, -1, 0, p->n - p->n / 3);
    p->starts = make_ints(rt, p->rows, -1, 0, p->n / 3);
    p->table = make_ints(rt, REQUESTS, PAGES, 0, 1000);
    p->offsets = make_ints(rt, p->rows, -1, 0, 5000);
    p->requests = make_ints(rt, p->rows, -1, 0, REQUESTS - 1);
    p->want = make(rt, CAIRN_I32, p->rows, p->k);
    p->want_values = make(rt, CAIRN_F32, p->rows, p->k);
}

static void close_problem(problem *p) {
    cairn_tensor_free(p->rt, p->scores), cairn_tensor_free(p->rt, p->lengths);
    cairn_tensor_free(p->rt, p->starts), cairn_tensor_free(p->rt, p->table);
    cairn_tensor_free(p->rt, p->offsets), cairn_tensor_free(p->rt, p->requests);
    cairn_tensor_free(p->rt, p->want), cairn_tensor_free(p->rt, p->want_values);
}

/* All rows in one call of the ops that topk_rows stands for. */
static bool reference(problem *p) {
    cairn_topk_transform_args a;
    cairn_topk_args top;
    memset(&a, 0, sizeof a), memset(&top, 0, sizeof top);
    a.struct_size = sizeof a, top.struct_size = sizeof top;
    a.scores = top.scores = p->scores, a.k = top.k = p->k, a.order = top.order = p->order;
    a.indices = top.indices = p->want, a.values = top.values = p->want_values, a.page_size = 8;
    if (p->ranged)
        a.lengths = top.lengths = p->lengths, a.row_starts = top.row_starts = p->starts;
    if (p->form == FLAT) a.offsets = p->offsets;
    if (p->form == SLOT || p->form == SLOT_REQUESTS) a.page_table = p->table;
    if (p->form == SLOT_REQUESTS) a.requests = p->requests;
    return !(p->form == POS ? cairn_topk(p->rt, &top) : cairn_topk_transform(p->rt, &a));
}

/* Copies the rows' scores, and looks at what it is asked for. */
static cairn_status produce(void *user, int64_t first, int64_t count, cairn_tensor *scores) {
    problem *p = (problem *)user;
    cairn_status status;
    int64_t call = p->calls++;
    if (call == p->fail_at) return p->fail_with;
    if (p->waits && (status = cairn_sync(p->rt))) return status;
    p->wrong = p->wrong || first != p->next || count < 1 || first + count > p->rows ||
               scores->shape[0] != count || scores->shape[1] != p->n;
    p->next = first + count;
    if (count > p->most) p->most = count;
    if ((status = handles_enter(p->rt))) return status;
    status = device_copy(&p->rt->device, tensor_data(scores),
                      (const char *)tensor_data(p->scores) + (size_t)first * (size_t)p->n * 4,
                      (size_t)count * (size_t)p->n * 4);
    return handles_leave(p->rt, status);
}

static void fill_args(problem *p, cairn_topk_rows_args *a) {
    memset(a, 0, sizeof *a);
    a->struct_size = sizeof *a;
    a->rows = p->rows, a->n = p->n, a->k = p->k, a->order = p->order, a->page_size = 8;
    a->produce = produce, a->user = p;
    if (p->ranged) a->lengths = p->lengths, a->row_starts = p->starts;
    if (p->form == FLAT) a->offsets = p->offsets;
    if (p->form == SLOT || p->form == SLOT_REQUESTS) a->page_table = p->table;
    if (p->form == SLOT_REQUESTS) a->requests = p->requests;
}

/* Outputs of rows + padding, guard words around them. */
typedef struct outputs { cairn_tensor *all[2], view[2]; int64_t shape[2]; size_t count; } outputs;

static void open_outputs(problem *p, outputs *o) {
    char *poison;
    int i;
    o->shape[0] = p->rows + p->padding, o->shape[1] = p->k;
    o->count = (size_t)o->shape[0] * (size_t)p->k;
    poison = (char *)malloc((o->count + 2 * GUARD) * 4);
    memset(poison, 0xab, (o->count + 2 * GUARD) * 4);
    for (i = 0; i < 2; i++) {
        o->all[i] = make(p->rt, i ? CAIRN_F32 : CAIRN_I32, (int64_t)(o->count + 2 * GUARD), -1);
        cairn_tensor_write(p->rt, o->all[i], poison, (o->count + 2 * GUARD) * 4);
        o->view[i] = *o->all[i];
        o->view[i].ndim = 2, o->view[i].shape = o->shape, o->view[i].byte_offset = GUARD * 4;
    }
    free(poison);
}

static void close_outputs(problem *p, outputs *o) {
    cairn_tensor_free(p->rt, o->all[0]), cairn_tensor_free(p->rt, o->all[1]);
}

/* Bit for bit the reference, padding behind it, guards whole; `untouched`: not one word written. */
static bool check_outputs(problem *p, outputs *o, bool untouched) {
    size_t words = o->count + 2 * GUARD, used = (size_t)p->rows * (size_t)p->k, i;
    uint32_t *got = (uint32_t *)malloc(words * 4), *want = (uint32_t *)malloc((used + 1) * 4);
    bool fine = true;
    int which;
    for (which = 0; which < 2; which++) {
        cairn_tensor_read(p->rt, o->all[which], got, words * 4);
        if (p->rows) cairn_tensor_read(p->rt, which ? p->want_values : p->want, want, used * 4);
        for (i = 0; i < words && fine; i++) {
            bool inside = i >= GUARD && i < GUARD + o->count && !untouched;
            uint32_t none = which ? 0xff800000u : 0xffffffffu;
            uint32_t expected = !inside ? 0xababababu : i - GUARD < used ? want[i - GUARD] : none;
            fine = got[i] == expected;
            if (!fine) tap_note("word %d: %08x, not %08x", (int)i - GUARD, got[i], expected);
        }
    }
    free(got), free(want);
    return fine;
}

/* Runs it with the given bounds and compares. */
static bool run_cut(problem *p, cairn_topk_rows_args *a, int64_t most) {
    outputs o;
    cairn_status status;
    size_t live = p->rt->device.live_bytes;
    bool fine;
    open_outputs(p, &o);
    a->indices = &o.view[0], a->values = &o.view[1];
    p->next = p->calls = p->most = 0;
    status = cairn_topk_rows(p->rt, a);
    fine = !status && check_outputs(p, &o, false) && !p->wrong && p->next == p->rows &&
           p->most <= most;
    if (status) tap_note("%s", cairn_last_error(p->rt));
    close_outputs(p, &o);
    fine = fine && p->rt->device.live_bytes - p->rt->device.scratch_bytes <= live;
    if (!fine)
        tap_note("rows %d n %d k %d padding %d at most %d: asked for up to %d", p->rows, p->n, p->k,
                 p->padding, (int)most, (int)p->most);
    return fine;
}

static bool cuts(problem *p) {
    cairn_topk_rows_args a;
    int steps[4], i;
    int64_t plan = 0;
    bool fine = reference(p);
    steps[0] = 1, steps[1] = 7, steps[2] = p->rows, steps[3] = between(1, p->rows);
    for (i = 0; i < 4 && fine; i++) {
        int step = steps[i] < p->rows ? steps[i] : p->rows;
        cairn_tensor *memory = make(p->rt, CAIRN_F32, step, p->n);
        fill_args(p, &a);
        a.max_bytes = (uint64_t)step * (uint64_t)p->n * 4;
        fine = !cairn_topk_rows_plan(p->rt, &a, &plan) && plan == step && run_cut(p, &a, step);
        a.scores = memory, a.max_bytes = 0;
        fine = fine && !cairn_topk_rows_plan(p->rt, &a, &plan) && plan == step &&
               run_cut(p, &a, step);
        cairn_tensor_free(p->rt, memory);
    }
    fill_args(p, &a); /* few scores: all at once, whatever is free */
    a.free_bytes = 1, a.total_bytes = 1;
    return fine && run_cut(p, &a, p->rows) && p->calls == (p->rows ? 1 : 0);
}

/* Enough scores for the rule to cut them, by figures of memory that are given. */
static void by_free_memory(cairn_runtime *rt, const char *where) {
    problem p;
    cairn_topk_rows_args a;
    int64_t plan = 0;
    bool fine;
    open_problem(&p, rt, SLOT, CAIRN_ORDER_POSITION, false);
    cairn_tensor_free(rt, p.scores);
    p.rows = 9, p.n = 900001;
    p.k = 5, p.padding = 1;
    p.scores = make(rt, CAIRN_F32, p.rows, p.n);
    p.want = (cairn_tensor_free(rt, p.want), make(rt, CAIRN_I32, p.rows, p.k));
    p.want_values = (cairn_tensor_free(rt, p.want_values), make(rt, CAIRN_F32, p.rows, p.k));
    fill_args(&p, &a);
    a.page_size = 1 << 20;
    a.free_bytes = 900001 * 4 * 8 + 5, a.total_bytes = UINT64_C(1) << 40; /* half holds 4 rows */
    tap_ok(!cairn_topk_rows_plan(rt, &a, &plan) && plan == 4, "%s: a quarter free, 4 rows", where);
    a.free_bytes = 1;
    tap_ok(!cairn_topk_rows_plan(rt, &a, &plan) && plan == 1, "%s: nothing free, one row", where);
    a.free_bytes = 0, a.total_bytes = 0;
    fine = !cairn_topk_rows_plan(rt, &a, &plan) && plan >= 1 && plan <= 9;
    tap_ok(fine, "%s: by what the device says, %d rows", where, (int)plan);
    a.rows = -1;
    fine = cairn_topk_rows_plan(rt, &a, &plan) == CAIRN_INVALID_ARGUMENT && !plan &&
           strstr(cairn_last_error(rt), "rows = -1");
    a.rows = p.rows;
    fine = fine && cairn_topk_rows_plan(rt, &a, NULL) == CAIRN_INVALID_ARGUMENT &&
           strstr(cairn_last_error(rt), "topk_rows_plan: rows_at_once is NULL");
    tap_ok(fine, "%s: a plan for -1 rows, or told to no one, is refused: %s", where, cairn_last_error(rt));
    if (!rt->device.cuda || !getenv("CAIRN_SIMT_KERNELS")) { /* not on emulated blocks */
        cairn_topk_transform_args t;
        memset(&t, 0, sizeof t);
        t.struct_size = sizeof t, t.scores = p.scores, t.k = p.k, t.page_table = p.table;
        t.page_size = 1 << 20, t.indices = p.want, t.values = p.want_values;
        fine = !cairn_topk_transform(rt, &t);
        a.free_bytes = 900001 * 4 * 8 + 5, a.total_bytes = UINT64_C(1) << 40;
        tap_ok(fine && run_cut(&p, &a, 3),
               "%s: a cut by the rule gives the same, whole requests at a time", where);
    }
    close_problem(&p);
}

/* Nothing but padding. */
static void no_rows(cairn_runtime *rt, const char *where) {
    problem p;
    cairn_topk_rows_args a;
    open_problem(&p, rt, POS, CAIRN_ORDER_SCORE, false);
    p.rows = 0, p.padding = between(1, 4);
    fill_args(&p, &a);
    tap_ok(run_cut(&p, &a, 0) && p.calls == 0, "%s: no rows, only padding", where);
    close_problem(&p);
}

/* ---- what goes wrong ---------------------------------------------------------------------------- */

static void failing(cairn_runtime *rt, const char *where) {
    static const cairn_status with[] = {CAIRN_CANCELLED, CAIRN_FILE_ERROR, (cairn_status)77};
    static const char *const words[] = {"produce ended it at rows", "produce ended it at rows",
                                        "no status"};
    int i, at;
    for (i = 0; i < 3; i++) {
        int fine = 1;
        problem p;
        open_problem(&p, rt, POS, CAIRN_ORDER_POSITION, true);
        for (at = 0; at < p.rows; at += 1 + p.rows / 3) {
            cairn_topk_rows_args a;
            outputs o;
            size_t live;
            cairn_status status;
            open_outputs(&p, &o);
            fill_args(&p, &a);
            a.indices = &o.view[0], a.max_bytes = 1;
            p.fail_at = at, p.fail_with = with[i], p.calls = p.next = 0;
            live = rt->device.live_bytes - rt->device.scratch_bytes;
            status = cairn_topk_rows(rt, &a);
            fine &= status == (i == 2 ? CAIRN_INVALID_ARGUMENT : with[i]);
            fine &= strstr(cairn_last_error(rt), words[i]) != NULL && p.calls == at + 1;
            fine &= live == rt->device.live_bytes - rt->device.scratch_bytes;
            if (at == 0) fine &= check_outputs(&p, &o, true);
            close_outputs(&p, &o);
        }
        close_problem(&p);
        tap_ok(fine, "%s: a producer that returns %s ends the call", where,
               cairn_status_name(with[i]));
    }
}

/* Refused, with the argument's name, no output written and no score asked for. */
static bool refused(problem *p, outputs *o, const cairn_topk_rows_args *a, const char *name) {
    cairn_status status;
    bool fine;
    p->calls = 0;
    status = cairn_topk_rows(p->rt, a);
    fine = status == CAIRN_INVALID_ARGUMENT && strstr(cairn_last_error(p->rt), name) &&
           p->calls == 0 && check_outputs(p, o, true);
    if (!fine) tap_note("wanted %s: status %d, %s", name, (int)status, cairn_last_error(p->rt));
    return fine;
}

static void bad_arguments(cairn_runtime *rt, const char *where) {
    problem p;
    outputs o;
    cairn_topk_rows_args good, a;
    cairn_tensor *wrong, shapeless;
    bool fine = true;
    open_problem(&p, rt, SLOT, CAIRN_ORDER_POSITION, true);
    open_outputs(&p, &o);
    wrong = make(rt, CAIRN_F32, p.rows + 1, -1);
    fill_args(&p, &good);
    good.indices = &o.view[0], good.values = &o.view[1];
#define REFUSED(change, name) (a = good, change, refused(&p, &o, &a, name))
    fine &= REFUSED(a.produce = NULL, "produce");
    fine &= REFUSED(a.rows = -1, "rows = -1");
    fine &= REFUSED(a.rows = p.rows + p.padding + 1, "lengths");
    fine &= REFUSED((a.rows = p.rows + 9, a.lengths = a.row_starts = NULL), "indices");
    fine &= REFUSED(a.n = -3, "n = -3");
    fine &= REFUSED(a.n = (1 << 22) + 1, "n = 4194305");
    fine &= REFUSED(a.k = 0, "k = 0");
    fine &= REFUSED(a.k = p.k + 1, "indices");
    fine &= REFUSED(a.order = 9, "order");
    fine &= REFUSED(a.route = "fast", "route");
    fine &= REFUSED(a.indices = NULL, "indices");
    fine &= REFUSED(a.values = a.indices, "values");
    fine &= REFUSED(a.lengths = wrong, "lengths");
    fine &= REFUSED(a.row_starts = p.table, "row_starts");
    fine &= p.k == p.n || REFUSED(a.scores = p.want_values, "scores"); /* else as good as any */
    fine &= REFUSED(a.scores = wrong, "scores");
    fine &= REFUSED(a.offsets = p.offsets, "page_table or offsets");
    fine &= REFUSED((a.page_table = NULL, a.requests = p.requests), "page_table or offsets");
    fine &= REFUSED((a.page_table = NULL, a.offsets = wrong), "offsets");
    fine &= REFUSED(a.requests = wrong, "requests");
    fine &= REFUSED(a.page_size = -2, "page_size");
    fine &= REFUSED(a.page_table = p.lengths, "page_table");
    shapeless = *p.table, shapeless.shape = NULL;
    fine &= REFUSED(a.page_table = &shapeless, "page_table");
    shapeless = *p.scores, shapeless.shape = NULL;
    fine &= REFUSED(a.scores = &shapeless, "scores");
    fine &= REFUSED((a.rows = p.rows - 1, a.lengths = a.row_starts = NULL), "multiple");
    a = good, a.struct_size = 0;
    fine &= cairn_topk_rows(rt, &a) == CAIRN_VERSION_MISMATCH;
    tap_ok(fine, "%s: bad arguments are named, nothing is written and nothing asked", where);
    cairn_tensor_free(rt, wrong);
    close_outputs(&p, &o);
    close_problem(&p);
}

/* A bad length is clamped, its row counted from the first of all, and the rows after it are done. */
static void bad_data(cairn_runtime *rt, const char *where) {
    problem p;
    outputs o;
    cairn_topk_rows_args a;
    int32_t *lengths, last = 0;
    char text[32];
    int bad, step = between(1, 4);
    open_problem(&p, rt, POS, CAIRN_ORDER_POSITION, true);
    bad = between(1, p.rows - 2);
    lengths = (int32_t *)calloc((size_t)p.rows, 4);
    lengths[bad] = p.n + 1, lengths[p.rows - 1] = 1;
    cairn_tensor_write(rt, p.lengths, lengths, (size_t)p.rows * 4);
    open_outputs(&p, &o);
    fill_args(&p, &a);
    a.row_starts = NULL, a.indices = &o.view[0], a.max_bytes = (uint64_t)(4 * p.n * step);
    snprintf(text, sizeof text, "row %d:", bad);
    tap_ok(cairn_topk_rows(rt, &a) == CAIRN_BAD_DATA && strstr(cairn_last_error(rt), text),
           "%s: a bad length is reported with its row, %d, by %d", where, bad, step);
    if (handles_enter(rt)) return;
    device_download(&rt->device, &last, (char *)tensor_data(&o.view[0]) + (p.rows - 1) * p.k * 4,
                    4);
    handles_leave(rt, CAIRN_OK);
    tap_ok(last == 0 && p.next == p.rows, "%s: and the rows after it are done", where);
    close_outputs(&p, &o);
    close_problem(&p);
    free(lengths);
}

/* The same with memory of the caller's and a producer that waits: a fault of the rows before does
 * not end it, and is reported after all are done. */
static void bad_data_and_waits(cairn_runtime *rt, const char *where) {
    problem p;
    outputs o;
    cairn_topk_rows_args a;
    cairn_status status;
    int32_t start = -1;
    open_problem(&p, rt, POS, CAIRN_ORDER_POSITION, true);
    if (handles_enter(rt)) return;
    device_upload(&rt->device, tensor_data(p.starts), &start, 4);
    handles_leave(rt, CAIRN_OK);
    open_outputs(&p, &o);
    fill_args(&p, &a);
    a.indices = &o.view[0], a.scores = make(rt, CAIRN_F32, 1, p.n), p.waits = true;
    status = cairn_topk_rows(rt, &a);
    if (rt->device.cuda && !status) status = cairn_sync(rt);
    tap_ok(status == CAIRN_BAD_DATA && strstr(cairn_last_error(rt), "topk_rows: row 0:") &&
               p.next == p.rows && !p.wrong && !cairn_sync(rt),
           "%s: a bad start does not end a call whose producer waits", where);
    cairn_tensor_free(rt, a.scores);
    close_outputs(&p, &o);
    close_problem(&p);
}

/* With memory of the caller's a call can be captured; it replays on other scores. */
static void captured(cairn_runtime *rt, const char *where) {
    problem p;
    outputs o;
    cairn_topk_rows_args a;
    cairn_graph *graph = NULL;
    int fine, round, i;
    float *host;
    open_problem(&p, rt, SLOT, CAIRN_ORDER_SCORE, true);
    host = (float *)calloc((size_t)(p.rows * p.n), 4);
    open_outputs(&p, &o);
    fill_args(&p, &a);
    a.indices = &o.view[0], a.values = &o.view[1], a.scores = make(rt, CAIRN_F32, 2, p.n);
    fine = !cairn_topk_rows(rt, &a);
    p.next = 0;
    fine = fine && !cairn_graph_begin(rt) && !cairn_topk_rows(rt, &a) && !cairn_graph_end(rt, &graph);
    for (round = 0; round < 5 && fine; round++) {
        for (i = 0; i < p.rows * p.n; i++) host[i] = (float)between(-99, 99);
        cairn_tensor_write(rt, p.scores, host, (size_t)(p.rows * p.n) * 4);
        fine = reference(&p) && !cairn_graph_launch(rt, graph) && !cairn_sync(rt) &&
               check_outputs(&p, &o, false);
    }
    tap_ok(fine, "%s: captured in a graph, replayed on other scores", where);
    cairn_graph_free(rt, graph);
    cairn_tensor_free(rt, a.scores);
    a.scores = NULL;
    fine = !cairn_graph_begin(rt) && cairn_topk_rows(rt, &a) == CAIRN_INVALID_ARGUMENT &&
           strstr(cairn_last_error(rt), "scores") && !cairn_graph_end(rt, &graph);
    tap_ok(fine, "%s: a capture without memory for scores is refused", where);
    cairn_graph_free(rt, graph);
    close_outputs(&p, &o);
    close_problem(&p);
    free(host);
}

/* A heap that refuses blocks above a size. */
typedef struct heap { size_t limit; int64_t live; } heap;
static void *heap_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    heap *h = (heap *)user;
    if (new_bytes > h->limit) return NULL;
    h->live += (int64_t)new_bytes - (int64_t)old_bytes;
    if (new_bytes) return realloc(memory, new_bytes);
    free(memory);
    return NULL;
}

static void short_memory(void) {
    cairn_config config;
    cairn_runtime *rt;
    heap h = {SIZE_MAX, 0};
    problem p;
    cairn_topk_rows_args a;
    outputs o;
    bool fine;
    char error[512];
    cairn_config_default(&config);
    config.backend = CAIRN_BACKEND_CPU;
    config.allocator.user = &h, config.allocator.realloc = heap_realloc;
    if (!tap_ok(!cairn_open(&config, &rt, error, sizeof error), "open with a heap")) return;
    open_problem(&p, rt, FLAT, CAIRN_ORDER_POSITION, true);
    while (p.n * 4 <= 300) {
        close_problem(&p);
        open_problem(&p, rt, FLAT, CAIRN_ORDER_POSITION, true);
    }
    tap_ok(cuts(&p), "a heap of its own");
    fill_args(&p, &a);
    open_outputs(&p, &o);
    h.limit = (size_t)p.n * 4 * 3 + 300; /* 300: for what else there is, less than a row */
    a.indices = &o.view[0], a.values = &o.view[1];
    p.calls = p.next = p.most = 0;
    fine = !cairn_topk_rows(rt, &a);
    h.limit = SIZE_MAX;
    tap_ok(fine && p.most >= 1 && p.most <= 3 && check_outputs(&p, &o, false),
           "less memory than was said: fewer rows at a time (%d)", (int)p.most);
    h.limit = 100;
    p.n = 2000, a.n = 2000, a.lengths = a.row_starts = NULL;
    p.calls = 0;
    tap_ok(cairn_topk_rows(rt, &a) == CAIRN_OUT_OF_MEMORY && p.calls == 0, "not one row fits");
    h.limit = SIZE_MAX;
    cairn_close(rt);
    tap_ok(h.live == 0, "nothing leaks");
}

static void test_backend(cairn_runtime *rt, const char *name) {
    int form, round;
    for (form = 0; form < FORMS; form++) {
        bool fine = true;
        for (round = 0; round < 6 && fine; round++) {
            problem p;
            open_problem(&p, rt, form, round & 1, round >= 2);
            fine = cuts(&p);
            close_problem(&p);
        }
        tap_ok(fine, "%s, %s: the same for every cut", name, form_names[form]);
    }
    no_rows(rt, name);
    by_free_memory(rt, name);
    failing(rt, name);
    bad_arguments(rt, name);
    bad_data(rt, name);
    bad_data_and_waits(rt, name);
    if (rt->device.cuda) captured(rt, name);
}

int main(void) {
    state = random_seed();
    rule();
    run_on_backends(NULL, "topk_rows", test_backend);
    short_memory();
    return tap_done();
}

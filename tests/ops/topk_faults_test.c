/* topk and topk_transform where callers and data are wrong or awkward, by every route: arguments
 * that are refused before a word is written, lengths, starts, pages and requests out of range in
 * device memory, rows at any alignment among poison, the largest sizes, graphs replayed while
 * everything changes. What a row gives is checked by a certificate: the entries are distinct, dense
 * and in order, and no score left out beats the last that was taken.
 * emulated: asan
 * clang: undefined, turn 2 */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "ref/f16_ref.h"
#include "tap.h"
#include "backends.h"

static uint64_t state;
static int between(int low, int high) {
    return low + (int)(random_next(&state) % (uint64_t)((int64_t)high - low + 1));
}

static const char *const routes[] = {"auto", "small", "block", "cluster", "split", "radix"};
static int route_count(const cairn_runtime *rt) {
    return rt->device.cuda ? (int)BASE_COUNT(routes) : 1;
}
/* Or under a tool as slow: smaller and fewer cases. */
static bool emulated(void) { return getenv("CAIRN_SIMT_KERNELS") != NULL; }

/* ---- the certificate --------------------------------------------------------------------------- */

typedef struct scored { double value; bool nan; } scored;

static scored score_of(cairn_type type, const void *data, int64_t i) {
    const uint16_t *half = (const uint16_t *)data + i;
    scored s;
    uint32_t bits;
    float f;
    if (type == CAIRN_F32) memcpy(&f, (const char *)data + 4 * i, 4);
    bits = type == CAIRN_BF16 ? (uint32_t)*half << 16 : 0;
    if (type == CAIRN_BF16) memcpy(&f, &bits, 4);
    s.value = type == CAIRN_F16 ? ref_f16(*half) : (double)f;
    s.nan = isnan(s.value) != 0;
    return s;
}

/* Whether score a at position i comes before score b at j. */
static bool before(scored a, int64_t i, scored b, int64_t j) {
    if (a.nan != b.nan) return b.nan;
    if (!a.nan && a.value != b.value) return a.value > b.value;
    return i < j;
}

/* row: its first candidate. Entries of [k] as topk gives them, by position or by score. */
static bool certify(cairn_type type, const void *row, int64_t length, int32_t k, bool by_score,
                    const int32_t *entries, const float *values) {
    int32_t found = length < k ? (int32_t)length : k, i, last = -1;
    uint8_t *taken = (uint8_t *)calloc((size_t)length + 1, 1);
    bool fine = true;
    int64_t j;
    for (i = 0; i < found && fine; i++) {
        fine = entries[i] >= 0 && entries[i] < length && !taken[entries[i]];
        if (!fine) break;
        taken[entries[i]] = 1;
        if (i > 0 && !by_score) fine = entries[i] > entries[i - 1];
        if (i > 0 && by_score)
            fine = before(score_of(type, row, entries[i - 1]), entries[i - 1],
                          score_of(type, row, entries[i]), entries[i]);
        if (last < 0 || before(score_of(type, row, last), last, score_of(type, row, entries[i]),
                               entries[i]))
            last = entries[i];
    }
    for (j = 0; j < length && fine && found == k; j++)
        fine = taken[j] || before(score_of(type, row, last), last, score_of(type, row, j), j);
    for (i = found; i < k && fine; i++) fine = entries[i] == -1;
    for (i = 0; i < k && fine && values; i++) {
        double want = i < found ? score_of(type, row, entries[i]).value : -(double)INFINITY;
        fine = isnan(want) ? isnan(values[i]) : (double)values[i] == want;
    }
    free(taken);
    return fine;
}

/* ---- tensors among guard words ------------------------------------------------------------------ */

enum { GUARD = 40 };

/* A view at element `offset` behind GUARD bytes and more; `host` is the whole of its memory. */
typedef struct bed {
    cairn_tensor *all, view;
    int64_t shape[2], strides[2];
    size_t bytes, first; /* of the memory; where element 0 lies */
    char *host;
} bed;

static void open_bed(cairn_runtime *rt, bed *b, cairn_type type, int64_t rows, int64_t columns,
                     int64_t stride, int offset) {
    size_t element = cairn_type_bytes(type);
    int64_t whole;
    b->first = GUARD + (size_t)offset * element;
    b->bytes = b->first + (size_t)(rows * stride) * element + GUARD;
    b->host = (char *)malloc(b->bytes);
    memset(b->host, 0xab, b->bytes);
    whole = (int64_t)b->bytes;
    cairn_tensor_new(rt, CAIRN_U8, 1, &whole, &b->all);
    b->shape[0] = rows, b->shape[1] = columns;
    b->strides[0] = stride, b->strides[1] = 1;
    b->view = *b->all;
    b->view.dtype.code = tensor_types[type].code, b->view.dtype.bits = tensor_types[type].bits;
    b->view.ndim = columns < 0 ? 1 : 2;
    b->view.shape = b->shape;
    b->view.strides = columns < 0 ? NULL : b->strides;
    b->view.byte_offset = b->first;
}

static void write_bed(cairn_runtime *rt, bed *b) { cairn_tensor_write(rt, b->all, b->host, b->bytes); }
static void close_bed(cairn_runtime *rt, bed *b) { cairn_tensor_free(rt, b->all), free(b->host); }

/* Whether the device's bytes are the host's, but for `bytes` at the view's start, which are read. */
static bool read_bed(cairn_runtime *rt, bed *b, size_t bytes) {
    char *now = (char *)malloc(b->bytes);
    bool fine;
    cairn_tensor_read(rt, b->all, now, b->bytes);
    fine = !memcmp(now, b->host, b->first) &&
           !memcmp(now + b->first + bytes, b->host + b->first + bytes, b->bytes - b->first - bytes);
    if (bytes) memcpy(b->host + b->first, now + b->first, bytes);
    free(now);
    return fine;
}

/* ---- one problem ------------------------------------------------------------------------------- */

typedef struct problem {
    cairn_runtime *rt;
    cairn_type type;
    int rows, n, k;
    bed scores, lengths, starts, indices, values;
} problem;

static void store_score(problem *p, int64_t i, float f) {
    char *at = p->scores.host + p->scores.first;
    uint32_t bits;
    uint16_t half;
    memcpy(&bits, &f, 4);
    half = p->type == CAIRN_F16 ? ref_to_f16((double)f) : (uint16_t)(bits >> 16);
    if (p->type == CAIRN_F32) memcpy(at + 4 * i, &f, 4);
    else memcpy(at + 2 * i, &half, 2);
}

/* Random scores with ties, a few of them special. */
static void draw_scores(problem *p) {
    static const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-40f};
    int64_t stride = p->scores.strides[0], r, i;
    for (r = 0; r < p->rows; r++)
        for (i = 0; i < stride; i++)
            store_score(p, r * stride + i,
                        i >= p->n ? INFINITY : between(0, 30) == 0 ? special[between(0, 5)]
                                             : (float)between(-400, 400) / 64.0f);
}

static void open_problem(problem *p, cairn_runtime *rt, cairn_type type, int rows, int n, int k) {
    memset(p, 0, sizeof *p);
    p->rt = rt, p->type = type, p->rows = rows, p->n = n, p->k = k;
    open_bed(rt, &p->scores, type, rows, n, n + between(0, 5), between(0, 7));
    open_bed(rt, &p->lengths, CAIRN_I32, rows, -1, 1, between(0, 3));
    open_bed(rt, &p->starts, CAIRN_I32, rows, -1, 1, between(0, 3));
    open_bed(rt, &p->indices, CAIRN_I32, rows, k, k, between(0, 3));
    open_bed(rt, &p->values, CAIRN_F32, rows, k, k, between(0, 3));
    draw_scores(p);
}

static void write_problem(problem *p) {
    write_bed(p->rt, &p->scores), write_bed(p->rt, &p->lengths), write_bed(p->rt, &p->starts);
    write_bed(p->rt, &p->indices), write_bed(p->rt, &p->values);
}

static void close_problem(problem *p) {
    close_bed(p->rt, &p->scores), close_bed(p->rt, &p->lengths), close_bed(p->rt, &p->starts);
    close_bed(p->rt, &p->indices), close_bed(p->rt, &p->values);
}

static int32_t *ints(bed *b) { return (int32_t *)(void *)(b->host + b->first); }

static void draw_ranges(problem *p) {
    int r;
    for (r = 0; r < p->rows; r++) {
        ints(&p->starts)[r] = between(0, 3) ? between(0, p->n) : 0;
        ints(&p->lengths)[r] = between(0, p->n - ints(&p->starts)[r]);
    }
}

static cairn_topk_args args_of(problem *p, bool ranged, bool values) {
    cairn_topk_args a;
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a;
    a.k = p->k, a.scores = &p->scores.view, a.indices = &p->indices.view;
    if (ranged) a.lengths = &p->lengths.view, a.row_starts = &p->starts.view;
    if (values) a.values = &p->values.view;
    return a;
}

/* Reads everything back: outputs right, inputs and guard words as they were. Ranges are clamped as
 * the header says. */
static bool check_problem(problem *p, const cairn_topk_args *a) {
    size_t out = (size_t)p->rows * (size_t)p->k * 4, element = cairn_type_bytes(p->type);
    bool fine = read_bed(p->rt, &p->scores, 0) && read_bed(p->rt, &p->lengths, 0) &&
                read_bed(p->rt, &p->starts, 0) && read_bed(p->rt, &p->indices, out) &&
                read_bed(p->rt, &p->values, a->values ? out : 0);
    int64_t r;
    if (!fine) tap_note("an input or a guard word has changed");
    for (r = 0; r < p->rows && fine; r++) {
        int64_t start = a->row_starts ? ints(&p->starts)[r] : 0, length;
        start = start < 0 ? 0 : start > p->n ? p->n : start;
        length = a->lengths ? ints(&p->lengths)[r] : p->n - start;
        length = length < 0 ? 0 : length > p->n - start ? p->n - start : length;
        fine = certify(p->type,
                       p->scores.host + p->scores.first +
                           (size_t)(r * p->scores.strides[0] + start) * element,
                       length, p->k, a->order == CAIRN_ORDER_SCORE, ints(&p->indices) + r * p->k,
                       a->values ? (float *)(void *)ints(&p->values) + r * p->k : NULL);
        if (!fine) tap_note("row %d: start %d, length %d", (int)r, (int)start, (int)length);
    }
    return fine;
}

/* CAIRN_OK, what the call said, or what a device saw. */
static cairn_status run_topk(problem *p, const cairn_topk_args *a) {
    cairn_status status = cairn_topk(p->rt, a), seen = cairn_sync(p->rt);
    return status ? status : seen;
}

/* ---- refused ------------------------------------------------------------------------------------ */

/* Named, and not a word written; b and c are the transform's. */
static bool refused(problem *p, const cairn_topk_args *a, const char *name) {
    cairn_status status = cairn_topk(p->rt, a);
    bool fine = status == CAIRN_INVALID_ARGUMENT && strstr(cairn_last_error(p->rt), name) &&
                read_bed(p->rt, &p->indices, 0) && read_bed(p->rt, &p->values, 0) &&
                read_bed(p->rt, &p->scores, 0) && read_bed(p->rt, &p->lengths, 0);
    if (!fine) tap_note("wanted %s: %d, %s", name, (int)status, cairn_last_error(p->rt));
    return fine;
}

static void wrong_options(problem *p, const char *where) {
    cairn_topk_args good = args_of(p, true, true), a;
    bool fine = true;
#define REFUSED(change, name) (a = good, change, refused(p, &a, name))
    fine &= REFUSED(a.k = 0, "k = 0");
    fine &= REFUSED(a.k = -5, "k = -5");
    fine &= REFUSED(a.k = p->k + 1, "indices");
    fine &= REFUSED(a.order = 2, "order");
    fine &= REFUSED(a.order = -1, "order");
    fine &= REFUSED(a.route = "quick", "route \"quick\"");
    fine &= REFUSED(a.scores = NULL, "scores");
    fine &= REFUSED(a.indices = NULL, "indices");
    fine &= REFUSED(a.indices = &p->scores.view, "indices");
    fine &= REFUSED(a.values = &p->indices.view, "values");
    fine &= REFUSED(a.lengths = a.scores, "lengths");
    fine &= REFUSED(a.row_starts = &p->indices.view, "row_starts");
    tap_ok(fine, "%s: wrong options are named, nothing is written", where);
    a = good, a.struct_size = 0;
    tap_ok(cairn_topk(p->rt, &a) == CAIRN_VERSION_MISMATCH &&
           cairn_topk(p->rt, NULL) == CAIRN_INVALID_ARGUMENT, "%s: no struct", where);
}

/* A tensor that is wrong in one way after the other. */
static bool each_wrong(problem *p, const cairn_topk_args *good, size_t field, const char *name,
                       const cairn_tensor *right) {
    int64_t shape[3], strides[2];
    bool fine = true;
    int way;
    for (way = 0; way < 13; way++) {
        cairn_topk_args a = *good;
        cairn_tensor t = *right, *at = &t;
        bool matrix = t.ndim == 2, strided = field == offsetof(cairn_topk_args, scores);
        shape[0] = t.shape[0], shape[1] = matrix ? t.shape[1] : 1, shape[2] = 1;
        strides[0] = matrix ? t.shape[1] : 1, strides[1] = 1;
        t.shape = shape;
        t.strides = strides;
        if (strided) strides[0] = right->strides[0];
        switch (way) {
        case 0: t.dtype.code = 0, t.dtype.bits = 64; break;
        case 1: t.dtype.lanes = 2; break;
        case 2: t.dtype.code = 10, t.dtype.bits = 8; break;
        case 3: t.ndim = matrix ? 1 : 2; break;
        case 4: t.ndim = 3, t.strides = NULL; break;
        case 5: shape[0]++, t.strides = NULL; break;
        case 6: shape[0] = -1, t.strides = NULL; break;
        case 7: strides[t.ndim - 1] = 2; break;
        case 8: t.device.type = t.device.type == 1 ? 2 : 1; break;
        case 9: t.data = NULL, t.byte_offset = 0; break;
        case 10: t.shape = NULL; break;
        case 11: if (p->rt->device.cuda) t.device.id++; else t.device.type = 13; break;
        default: t.byte_offset += 1; break;
        }
        /* more rows of scores: then the others have too few */
        if (way == 5 && strided) continue;
        memcpy((char *)&a + field, &at, sizeof at);
        fine &= refused(p, &a, name);
        if (!fine) tap_note("%s, way %d", name, way);
    }
    return fine;
}

static void wrong_tensors(problem *p, const char *where) {
    cairn_topk_args good = args_of(p, true, true), a;
    cairn_tensor t;
    int64_t shape[2], strides[2];
    bool fine = true;
#define EACH(field) each_wrong(p, &good, offsetof(cairn_topk_args, field), #field, good.field)
    fine &= EACH(scores) && EACH(lengths) && EACH(row_starts) && EACH(indices) && EACH(values);
    tap_ok(fine, "%s: wrong dtype, rank, shape, stride, device, address are named", where);
    t = p->scores.view, t.shape = shape, t.strides = strides;
    shape[0] = p->rows, shape[1] = p->n, strides[0] = p->n - 1, strides[1] = 1;
    fine = REFUSED(a.scores = &t, "scores");
    strides[0] = -p->n;
    fine &= REFUSED(a.scores = &t, "scores");
    strides[0] = INT64_MAX / 2;
    fine &= REFUSED(a.scores = &t, "scores");
    strides[0] = (1 << 22) + 1, shape[1] = (1 << 22) + 1;
    fine &= REFUSED(a.scores = &t, "4194305 columns");
    tap_ok(fine, "%s: rows that overlap or are too long", where);
    t = p->indices.view;
    t.data = p->scores.view.data, t.byte_offset = p->scores.first / 4 * 4 + 4;
    fine = p->scores.bytes < p->indices.bytes + 8 || REFUSED(a.indices = &t, "indices overlaps scores");
    t.data = p->lengths.view.data, t.byte_offset = p->lengths.first;
    fine &= REFUSED(a.indices = &t, "indices overlaps lengths");
    t.data = p->starts.view.data, t.byte_offset = p->starts.first;
    fine &= REFUSED(a.indices = &t, "indices overlaps row_starts");
    t = p->values.view, t.data = p->indices.view.data, t.byte_offset = p->indices.first + 4;
    fine &= REFUSED(a.values = &t, "overlaps");
    t.data = p->lengths.view.data, t.byte_offset = p->lengths.first;
    fine &= REFUSED(a.values = &t, "values overlaps lengths");
    tap_ok(fine, "%s: outputs over inputs, or over each other", where);
}

static void wrong_transforms(problem *p, const char *where) {
    cairn_topk_transform_args good, a;
    bed table, requests;
    cairn_tensor shapeless;
    bool fine = true;
    open_bed(p->rt, &table, CAIRN_I32, p->rows / 2, 4, 4, 0);
    open_bed(p->rt, &requests, CAIRN_I32, p->rows, -1, 1, 0);
    write_bed(p->rt, &table), write_bed(p->rt, &requests);
    memset(&good, 0, sizeof good);
    good.struct_size = sizeof good;
    good.k = p->k, good.scores = &p->scores.view, good.indices = &p->indices.view;
    good.page_table = &table.view, good.requests = &requests.view;
#define REFUSED_MAP(change, name)                                                              \
    (a = good, change, cairn_topk_transform(p->rt, &a) == CAIRN_INVALID_ARGUMENT &&            \
                           strstr(cairn_last_error(p->rt), "topk_transform: ") &&              \
                           strstr(cairn_last_error(p->rt), name) && read_bed(p->rt, &p->indices, 0))
    fine &= REFUSED_MAP(a.page_size = -1, "page_size");
    fine &= REFUSED_MAP(a.page_table = NULL, "page_table or offsets");
    fine &= REFUSED_MAP(a.offsets = &requests.view, "page_table or offsets");
    fine &= REFUSED_MAP((a.page_table = NULL, a.offsets = &requests.view), "requests");
    fine &= REFUSED_MAP(a.page_table = &requests.view, "page_table");
    fine &= REFUSED_MAP(a.requests = &table.view, "requests");
    fine &= REFUSED_MAP((a.requests = NULL, table.shape[0] = p->rows - 1), "multiple");
    table.shape[0] = p->rows / 2;
    fine &= REFUSED_MAP(a.k = 0, "k = 0");
    fine &= REFUSED_MAP(a.scores = NULL, "scores");
    shapeless = p->scores.view, shapeless.shape = NULL;
    fine &= REFUSED_MAP(a.scores = &shapeless, "scores");
    shapeless = p->indices.view, shapeless.shape = NULL;
    fine &= REFUSED_MAP(a.indices = &shapeless, "indices");
    shapeless = table.view, shapeless.shape = NULL;
    fine &= REFUSED_MAP(a.page_table = &shapeless, "page_table");
    table.view.data = p->indices.view.data, table.view.byte_offset = p->indices.first;
    fine &= REFUSED_MAP(a.requests = NULL, "indices overlaps page_table");
    table.view.data = table.all->data, table.view.byte_offset = table.first;
    requests.view.data = p->indices.view.data, requests.view.byte_offset = p->indices.first;
    fine &= REFUSED_MAP(a.page_size = 3, "indices overlaps requests");
    fine &= REFUSED_MAP((a.page_table = NULL, a.requests = NULL, a.offsets = &requests.view),
                        "indices overlaps offsets");
    table.view.data = p->values.view.data, table.view.byte_offset = p->values.first;
    fine &= REFUSED_MAP((a.requests = NULL, a.values = &p->values.view), "values overlaps page_table");
    table.view.data = table.all->data, table.view.byte_offset = table.first;
    requests.view.data = p->values.view.data, requests.view.byte_offset = p->values.first;
    fine &= REFUSED_MAP(a.values = &p->values.view, "values overlaps requests");
    fine &= REFUSED_MAP((a.page_table = NULL, a.requests = NULL, a.offsets = &requests.view,
                         a.values = &p->values.view), "values overlaps offsets");
    fine &= REFUSED_MAP(a.lengths = &p->scores.view, "lengths");
    fine &= REFUSED_MAP(a.order = 7, "order = 7");
    fine &= REFUSED_MAP(a.k = p->k + 1, "indices");
    tap_ok(fine, "%s: topk_transform names what is wrong, nothing is written", where);
    close_bed(p->rt, &table), close_bed(p->rt, &requests);
}

static void refusals(cairn_runtime *rt, const char *where) {
    problem p;
    open_problem(&p, rt, CAIRN_F32, 6, between(60, 90), between(9, 17));
    draw_ranges(&p);
    write_problem(&p);
    wrong_options(&p, where);
    wrong_tensors(&p, where);
    wrong_transforms(&p, where);
    close_problem(&p);
}

/* ---- faults in device memory ---------------------------------------------------------------------*/

/* Every route: bad rows clamped, the others as ever, one bad row named, then no fault is left. */
static void faults(cairn_runtime *rt, const char *where) {
    static const cairn_type types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    int route, form;
    for (route = 0; route < route_count(rt); route++) {
        if (!is_wanted("CAIRN_TEST_ROUTE", routes[route])) continue;
        bool fine = true, taken = false;
        for (form = 0; form < 4 && fine; form++) {
            bool small = route == 1;
            problem p;
            cairn_topk_args a;
            cairn_status status;
            int bad, r, row = -1;
            open_problem(&p, rt, types[between(0, 2)], 8, small ? between(40, 1000) : between(50, emulated() ? 2000 : 9000),
                         small ? between(1, 32) : between(1, 700));
            draw_ranges(&p);
            bad = between(0, 6);
            for (r = bad; r < bad + 2; r++) {
                int32_t *length = ints(&p.lengths) + r, *start = ints(&p.starts) + r;
                *length = form == 0 ? INT32_MAX : form == 1 ? -between(1, 9) : p.n / 2;
                *start = form == 2 ? INT32_MIN : form == 3 ? p.n + between(1, 9) : between(0, p.n / 2);
            }
            write_problem(&p);
            a = args_of(&p, true, form & 1);
            a.order = between(0, 1), a.route = routes[route];
            status = run_topk(&p, &a);
            if (status == CAIRN_UNSUPPORTED) {
                close_problem(&p);
                continue;
            }
            taken = true;
            fine = status == CAIRN_BAD_DATA &&
                   sscanf(cairn_last_error(rt), "topk: row %d", &row) == 1 &&
                   strstr(cairn_last_error(rt), form < 2 ? ": length out of range" : ": row start") &&
                   (row == bad || row == bad + 1) && check_problem(&p, &a) && !cairn_sync(rt);
            if (!fine) tap_note("form %d: %d, %s", form, (int)status, cairn_last_error(rt));
            close_problem(&p);
        }
        if (taken || !fine)
            tap_ok(fine, "%s, %s: lengths and starts out of range are clamped and named", where,
                   routes[route]);
    }
}

/* A table of no pages, which may have no address either: every entry is -1. */
static bool no_table(problem *p, const cairn_topk_transform_args *good) {
    int64_t shape[2];
    cairn_tensor empty = *good->page_table;
    cairn_topk_transform_args a = *good;
    bool fine = true;
    int rows, i;
    for (rows = 0; rows < 4; rows += 3) {
        cairn_status status;
        shape[0] = rows, shape[1] = rows ? 0 : 6;
        empty.shape = shape, empty.strides = NULL, empty.data = NULL, empty.byte_offset = 0;
        a.page_table = &empty;
        status = cairn_topk_transform(p->rt, &a);
        if (!status) status = cairn_sync(p->rt);
        fine = fine && status == CAIRN_BAD_DATA &&
               read_bed(p->rt, &p->indices, (size_t)(p->rows * p->k) * 4);
        for (i = 0; i < p->rows * p->k && fine; i++) fine = ints(&p->indices)[i] == -1;
    }
    return fine;
}

/* Pages that are not there, positions past the table, requests that do not exist. */
static void lost_pages(cairn_runtime *rt, const char *where) {
    enum { SIZE = 8, PAGES = 6 };
    int route;
    for (route = 0; route < route_count(rt); route++) {
        if (!is_wanted("CAIRN_TEST_ROUTE", routes[route])) continue;
        problem p;
        bed table, requests;
        cairn_topk_transform_args a;
        cairn_topk_args top;
        int32_t *plain;
        cairn_status status;
        bool fine = true;
        int i;
        open_problem(&p, rt, CAIRN_F32, 5, SIZE * (PAGES + 2), 30);
        open_bed(rt, &table, CAIRN_I32, 3, PAGES, PAGES, 0);
        open_bed(rt, &requests, CAIRN_I32, p.rows, -1, 1, 0);
        for (i = 0; i < 3 * PAGES; i++) ints(&table)[i] = between(-2, 50);
        for (i = 0; i < p.rows; i++) ints(&requests)[i] = between(0, 2);
        ints(&requests)[1] = -1, ints(&requests)[3] = 3;
        write_problem(&p), write_bed(rt, &table), write_bed(rt, &requests);
        top = args_of(&p, false, false);
        status = run_topk(&p, &top);
        fine = !status && check_problem(&p, &top);
        plain = (int32_t *)malloc((size_t)(p.rows * p.k) * 4);
        memcpy(plain, ints(&p.indices), (size_t)(p.rows * p.k) * 4);
        memset(&a, 0, sizeof a);
        a.struct_size = sizeof a, a.k = p.k, a.scores = top.scores, a.indices = top.indices;
        a.page_table = &table.view, a.requests = &requests.view, a.page_size = SIZE;
        a.route = routes[route];
        status = cairn_topk_transform(rt, &a);
        if (status != CAIRN_UNSUPPORTED) {
            if (!status) status = cairn_sync(rt);
            fine = fine && status == CAIRN_BAD_DATA && !cairn_sync(rt) &&
                   read_bed(rt, &p.indices, (size_t)(p.rows * p.k) * 4) && read_bed(rt, &table, 0);
            for (i = 0; i < p.rows * p.k && fine; i++) {
                int request = ints(&requests)[i / p.k], page = plain[i] / SIZE;
                bool there = request >= 0 && request < 3 && page < PAGES;
                int32_t id = there ? ints(&table)[request * PAGES + page] : -1;
                fine = ints(&p.indices)[i] == (id < 0 ? -1 : id * SIZE + plain[i] % SIZE);
            }
            fine = fine && no_table(&p, &a);
            tap_ok(fine, "%s, %s: lost pages and requests give -1 and are reported", where,
                   routes[route]);
        }
        free(plain);
        close_bed(rt, &table), close_bed(rt, &requests), close_problem(&p);
    }
}

/* Slots and offsets whose place no index can hold, and offsets below 0. */
static void far_places(cairn_runtime *rt, const char *where) {
    enum { SIZE = 1 << 20, N = 50, K = 20 };
    static const int32_t offsets[] = {0, INT32_MAX - 25, INT32_MAX, -10, INT32_MIN};
    static const int32_t pages[] = {2047, 2048, INT32_MAX, 7, 0};
    int route, flat;
    for (route = 0; route < route_count(rt); route++) {
        if (!is_wanted("CAIRN_TEST_ROUTE", routes[route])) continue;
        bool fine = true, taken = false;
        for (flat = 0; flat < 2 && fine; flat++) {
            problem p;
            bed map;
            cairn_topk_transform_args a;
            cairn_status status;
            int i;
            open_problem(&p, rt, CAIRN_F32, 5, N, K);
            for (i = 0; i < 5 * N; i++) store_score(&p, i / N * p.scores.strides[0] + i % N, (float)(i % N));
            open_bed(rt, &map, CAIRN_I32, 5, flat ? -1 : 1, 1, 0);
            memcpy(ints(&map), flat ? offsets : pages, sizeof pages);
            write_problem(&p), write_bed(rt, &map);
            memset(&a, 0, sizeof a);
            a.struct_size = sizeof a, a.k = K, a.route = routes[route], a.page_size = SIZE;
            a.scores = &p.scores.view, a.indices = &p.indices.view;
            if (flat) a.offsets = &map.view;
            else a.page_table = &map.view;
            status = cairn_topk_transform(rt, &a);
            if (status != CAIRN_UNSUPPORTED) {
                taken = true;
                if (!status) status = cairn_sync(rt);
                fine = status == CAIRN_BAD_DATA && !cairn_sync(rt) &&
                       read_bed(rt, &p.indices, 5 * K * 4);
                for (i = 0; i < 5 * K && fine; i++) {
                    int64_t position = N - K + i % K, place = position;
                    place += flat ? offsets[i / K] : (int64_t)pages[i / K] * SIZE;
                    fine = ints(&p.indices)[i] == (place < 0 || place > INT32_MAX ? -1 : place);
                }
            }
            close_bed(rt, &map), close_problem(&p);
        }
        if (taken || !fine)
            tap_ok(fine, "%s, %s: places that no index holds give -1 and are reported", where,
                   routes[route]);
    }
}

/* Rows that are whole in the output need no scores, which may then have no address. */
static void no_scores(cairn_runtime *rt, const char *where) {
    int route;
    for (route = 0; route < route_count(rt); route++) {
        if (!is_wanted("CAIRN_TEST_ROUTE", routes[route])) continue;
        problem p;
        cairn_topk_args a;
        cairn_tensor nowhere;
        cairn_status status;
        int n = between(1, 32), i, r;
        bool fine = true;
        open_problem(&p, rt, CAIRN_F16, 4, n, between(n, 32));
        draw_ranges(&p), write_problem(&p);
        a = args_of(&p, true, false);
        nowhere = p.scores.view, nowhere.data = NULL, nowhere.byte_offset = 0;
        a.scores = &nowhere, a.route = routes[route];
        status = run_topk(&p, &a);
        if (status != CAIRN_UNSUPPORTED) {
            fine = !status && read_bed(rt, &p.indices, (size_t)(4 * p.k) * 4);
            for (i = 0; i < 4 * p.k && fine; i++) {
                r = i / p.k;
                fine = ints(&p.indices)[i] == (i % p.k < ints(&p.lengths)[r] ? i % p.k : -1);
            }
            write_bed(rt, &p.indices);
            a.order = CAIRN_ORDER_SCORE;
            fine = fine && refused(&p, &a, "scores");
            a.order = CAIRN_ORDER_POSITION, a.values = &p.values.view;
            fine = fine && refused(&p, &a, "scores");
            tap_ok(fine, "%s, %s: rows of at most k without scores", where, routes[route]);
        }
        close_problem(&p);
    }
}

/* ---- the host's plans ---------------------------------------------------------------------------- */

/* No route asks for more shared memory than a device has, and "auto" takes everything. */
static void plans(void) {
    static const struct { int arch, sms, shared; } chips[] = {
        {80, 108, 166912}, {86, 84, 101376}, {89, 128, 101376}, {90, 132, 232448},
        {100, 148, 232448}, {120, 170, 101376}, {121, 48, 101376}};
    static const int rows[] = {1, 2, 16, 40, 66, 170, 300, 65535, 65536};
    static const int n[] = {1, 512, 1024, 4096, 8192, 8193, 32768, 40000, 131072, 524289, 1 << 22};
    static const int k[] = {1, 32, 33, 65, 2048, 2049, 4096, 4097, 9000};
    int chip, i;
    for (chip = 0; chip < (int)BASE_COUNT(chips); chip++) {
        bool fine = true;
        device dev;
        memset(&dev, 0, sizeof dev);
        dev.cuda = true, dev.arch = chips[chip].arch, dev.sm_count = chips[chip].sms;
        dev.max_shared_bytes = chips[chip].shared;
        for (i = 0; i < 9 * 11 * 9 * 2 * 6 && fine; i++) {
            const char *route = routes[i / 2 / 9 / 11 / 9];
            topk_params p;
            topk_plan plan;
            bool taken;
            memset(&p, 0, sizeof p), memset(&plan, 0, sizeof plan);
            p.rows = rows[i / 2 / 9 / 11 % 9], p.n = n[i / 2 / 9 % 11], p.k = k[i / 2 % 9];
            for (p.sort_size = 2 * (i % 2); p.sort_size && p.sort_size < p.k && p.sort_size < p.n;)
                p.sort_size *= 2;
            taken = topk_find_route(strcmp(route, "auto") ? route : topk_choose(&dev, &p))
                        ->plan(&dev, &p, &plan);
            fine = taken ? (int)plan.shared_bytes <= dev.max_shared_bytes : strcmp(route, "auto");
            if (!fine)
                tap_note("%s: %d x %d, k %d, sorted %d: %u bytes", route, p.rows, p.n, p.k,
                         p.sort_size, plan.shared_bytes);
        }
        tap_ok(fine, "sm_%d: every plan finds its shared memory", chips[chip].arch);
    }
}

/* ---- any alignment, any size -------------------------------------------------------------------- */

static bool once_by(cairn_runtime *rt, cairn_type type, int rows, int n, int k, const char *route,
                    int order, bool *taken) {
    problem p;
    cairn_topk_args a;
    cairn_status status;
    bool fine = true;
    open_problem(&p, rt, type, rows, n, k);
    draw_ranges(&p);
    write_problem(&p);
    a = args_of(&p, between(0, 1), between(0, 1));
    a.order = order, a.route = route;
    status = run_topk(&p, &a);
    if (status != CAIRN_UNSUPPORTED) fine = !status && check_problem(&p, &a), *taken = true;
    if (!fine)
        tap_note("%s %d x %d, k %d, %s: %s", cairn_type_name(type), rows, n, k, route,
                 status ? cairn_last_error(rt) : "wrong");
    close_problem(&p);
    return fine;
}

static bool once(cairn_runtime *rt, cairn_type type, int rows, int n, int k, const char *route,
                 bool *taken) {
    return once_by(rt, type, rows, n, k, route, between(0, 1), taken);
}

/* More shared memory than a device has is refused each time, and the kernel is as good as before. */
static void too_much_shared(cairn_runtime *rt, const char *where) {
    device_dims dims = {{1, 1, 1}, 1024, 0, 1 << 20, false};
    topk_params params;
    ops_kernel want;
    bool taken = false, fine;
    int round;
    memset(&params, 0, sizeof params), memset(&want, 0, sizeof want);
    want.source = "topk/radix.cu", want.entry = "topk_radix";
    topk_add_constant(&want, "SCORE_TYPE", CAIRN_F32);
    fine = once(rt, CAIRN_F32, 3, 50, 7, "radix", &taken) && taken;
    for (round = 0; round < 2 && fine; round++)
        fine = ops_launch_as(rt, &want, &dims, &params) == CAIRN_UNSUPPORTED;
    fine = fine && once(rt, CAIRN_F32, 3, 50, 7, "radix", &taken);
    tap_ok(fine, "%s: shared memory that is not there is refused, again too", where);
}

/* A route that a shape does not suit says so, and nothing is written; on a GPU. */
static void wrong_routes(cairn_runtime *rt, const char *where) {
    static const struct { const char *route; int rows, n, k; } few[] = {
        {"small", 2, 2000, 40}, {"small", 2, 2000, 8}, {"cluster", 1, 9000, TOPK_SET_MAX + 1},
        {"split", TOPK_SPLIT_MAX + 1, 50, 8}};
    bool fine = true;
    for (size_t i = 0; i < BASE_COUNT(few); i++) {
        problem p;
        cairn_topk_args a;
        char says[96];
        open_problem(&p, rt, CAIRN_F32, few[i].rows, few[i].n, few[i].k);
        draw_scores(&p);
        write_problem(&p);
        a = args_of(&p, false, true);
        a.route = few[i].route;
        snprintf(says, sizeof says, "route \"%s\" does not take %d rows of %d with k = %d", few[i].route,
                 few[i].rows, few[i].n, few[i].k);
        fine = fine && cairn_topk(rt, &a) == CAIRN_UNSUPPORTED && strstr(cairn_last_error(rt), says) &&
               read_bed(rt, &p.indices, 0) && read_bed(rt, &p.values, 0);
        if (!fine) tap_note("wanted %s: %s", says, cairn_last_error(rt));
        close_problem(&p);
    }
    tap_ok(fine, "%s: a route that does not suit is refused by name", where);
}

static void alignments(cairn_runtime *rt, const char *where) {
    static const cairn_type types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    int route, round, rounds = emulated() ? 3 : 40;
    for (route = 0; route < route_count(rt); route++) {
        if (!is_wanted("CAIRN_TEST_ROUTE", routes[route])) continue;
        bool fine = true, taken = false;
        for (round = 0; round < rounds && fine; round++) {
            bool small = route == 1 || between(0, 3) == 0;
            int n = small ? between(1, 1024) : between(1, emulated() ? 5000 : 150000);
            fine = once(rt, types[round % 3], between(1, 5), n, small ? between(1, 32) : between(1, 4096),
                        routes[route], &taken);
        }
        if (taken || !fine)
            tap_ok(fine, "%s, %s: any alignment and stride, among infinities", where, routes[route]);
    }
}

static void sizes(cairn_runtime *rt, const char *where) {
    bool taken = false, fine;
    int few = emulated() ? 200 : 65536, long_row = emulated() ? 30000 : 1 << 22;
    fine = once(rt, CAIRN_F32, few, 33, 5, "auto", &taken) &&
           once(rt, CAIRN_BF16, few, 300, 40, "auto", &taken);
    tap_ok(fine && taken, "%s: %d rows", where, few);
    fine = once(rt, CAIRN_F32, 1, long_row, 2048, "auto", &taken) &&
           once(rt, CAIRN_F16, 2, long_row, 4096, "auto", &taken);
    tap_ok(fine, "%s: rows of %d", where, long_row);
    fine = once(rt, CAIRN_F32, 2, 10000, 4097, "auto", &taken) &&
           once(rt, CAIRN_F32, 1, 9000, 9000, "auto", &taken) &&
           once(rt, CAIRN_F32, 2, 9999, 8192, "radix", &taken);
    tap_ok(fine, "%s: k above 4096", where);
    few = rt->device.cuda ? 1 + 9 * rt->device.sm_count / 80 : 1; /* four blocks a cluster */
    fine = once(rt, CAIRN_F32, few, 140000, 3000, "cluster", &taken);
    tap_ok(fine, "%s: %d rows of 140000, k 3000", where, few);
    taken = false;
    fine = once_by(rt, CAIRN_F32, 2, 11000, 8193, "auto", CAIRN_ORDER_SCORE, &taken) && taken;
    taken = false;
    fine = fine && once_by(rt, CAIRN_BF16, 2, 700, 20000, "auto", CAIRN_ORDER_SCORE, &taken) && taken;
    tap_ok(fine, "%s: k above 8192 by score", where);
    fine = once(rt, CAIRN_F32, 3, 0, 7, "auto", &taken) && once(rt, CAIRN_F32, 0, 7, 7, "auto", &taken);
    tap_ok(fine, "%s: no candidates, no rows", where);
}

/* ---- replays ------------------------------------------------------------------------------------ */

/* A graph of one call, replayed while scores, lengths and starts change, bit-equal to eager calls. */
static void replays(cairn_runtime *rt, const char *where) {
    int route, round, rounds = emulated() ? 3 : 100;
    for (route = 0; route < route_count(rt); route++) {
        if (!is_wanted("CAIRN_TEST_ROUTE", routes[route])) continue;
        bool small = route == 1, fine;
        problem p;
        cairn_topk_args a;
        cairn_graph *graph = NULL;
        int32_t *replayed;
        size_t bytes;
        open_problem(&p, rt, CAIRN_F32, 6, small ? 777 : emulated() ? 3000 : 50000, small ? 29 : 701);
        a = args_of(&p, true, true);
        a.route = routes[route], a.order = route & 1;
        draw_ranges(&p), write_problem(&p);
        if (run_topk(&p, &a) == CAIRN_UNSUPPORTED) {
            close_problem(&p);
            continue;
        }
        bytes = (size_t)(p.rows * p.k) * 4;
        replayed = (int32_t *)malloc(bytes);
        fine = !cairn_graph_begin(rt) && !cairn_topk(rt, &a) && !cairn_graph_end(rt, &graph);
        for (round = 0; round < rounds && fine; round++) {
            if (round % 10 == 0) draw_scores(&p);
            draw_ranges(&p), write_problem(&p);
            fine = !cairn_graph_launch(rt, graph) && !cairn_sync(rt) && check_problem(&p, &a);
            memcpy(replayed, ints(&p.indices), bytes);
            fine = fine && !run_topk(&p, &a) && read_bed(rt, &p.indices, bytes) &&
                   !memcmp(replayed, ints(&p.indices), bytes);
        }
        tap_ok(fine, "%s, %s: %d replays while everything changes, as eager", where, routes[route],
               rounds);
        cairn_graph_free(rt, graph);
        close_problem(&p);
        free(replayed);
    }
}

static void test_backend(cairn_runtime *rt, const char *name) {
    refusals(rt, name);
    faults(rt, name);
    lost_pages(rt, name);
    far_places(rt, name);
    no_scores(rt, name);
    alignments(rt, name);
    if (is_wanted("CAIRN_TEST_ROUTE", "auto")) sizes(rt, name);
    if (rt->device.cuda) wrong_routes(rt, name), too_much_shared(rt, name), replays(rt, name);
}

int main(void) {
    state = random_seed();
    plans();
    run_on_backends(NULL, "topk", test_backend);
    return tap_done();
}

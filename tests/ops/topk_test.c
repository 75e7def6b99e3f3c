/* topk against an oracle that sorts every row: (score, position) pairs in double precision, NaN
 * below everything. Adversarial rows, every dtype, lengths and starts, both orders; guard words
 * around the outputs; poison outside each row's candidates. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "tap.h"
#include "backends.h"

static uint64_t seed = 1;

static uint32_t draw(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}

typedef struct pair { double score; int nan; int32_t position; } pair;

static int compare_pairs(const void *left, const void *right) {
    const pair *a = (const pair *)left, *b = (const pair *)right;
    if (a->nan != b->nan) return a->nan - b->nan;
    if (!a->nan && a->score != b->score) return a->score > b->score ? -1 : 1;
    return a->position - b->position;
}

static int compare_positions(const void *left, const void *right) {
    return ((const pair *)left)->position - ((const pair *)right)->position;
}

static double half_value(uint16_t h) {
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double sign = h & 0x8000 ? -1.0 : 1.0;
    if (exponent == 31) return mantissa ? (double)NAN : sign * (double)INFINITY;
    return sign * (exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24));
}

static double value_of(cairn_type type, const void *data, int64_t i) {
    float f;
    uint16_t h;
    uint32_t bits;
    if (type == CAIRN_F32) {
        memcpy(&f, (const char *)data + 4 * i, 4);
        return (double)f;
    }
    memcpy(&h, (const char *)data + 2 * i, 2);
    if (type == CAIRN_F16) return half_value(h);
    bits = (uint32_t)h << 16;
    memcpy(&f, &bits, 4);
    return (double)f;
}

/* The kinds of rows that break top-k kernels. */
enum {
    NORMAL, EQUAL, TWO_VALUES, RAMP_UP, RAMP_DOWN, TIES, SPECIALS, NARROW, DENORMAL, ZEROS, TO_ZERO, WALK, STEPS, KINDS
};

static float score_of(int kind, int64_t i) {
    static const float specials[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1.0f, -1.0f};
    static float at;
    float unit = (float)(draw() & 0xffffff) / 16777216.0f;
    switch (kind) {
    case WALK: return at = i == 0 ? 0.0f : at + 0.1f * (unit - 0.5f);
    case STEPS: return (float)(i / 1000 * 7919 % 101) + unit * 1e-3f;
    case EQUAL: return 0.25f;
    case TWO_VALUES: return draw() % 3 ? -2.0f : 3.5f;
    case RAMP_UP: return (float)i;
    case RAMP_DOWN: return -(float)i;
    case TIES: return (float)(draw() % 50);
    case SPECIALS: return specials[draw() % 7];
    case NARROW: return 1.0f + unit * 1e-5f;
    case DENORMAL: return unit * 1e-39f * (draw() & 1 ? 1.0f : -1.0f);
    case TO_ZERO: return i < 10000 ? (float)i - 10000.0f : i / 64 % 2 ? 0.0f : -0.0f;
    case ZEROS: return i % 82 ? 0.0f : unit + 1.0f;
    default: return (unit - 0.5f) * 8.0f + (float)(draw() & 0xff) / 64.0f;
    }
}

static void store(cairn_type type, void *data, int64_t i, float f) {
    uint32_t bits;
    uint16_t h;
    memcpy(&bits, &f, 4);
    if (type == CAIRN_F32) {
        memcpy((char *)data + 4 * i, &f, 4);
        return;
    }
    /* any bit pattern is a fair score; keep the shape of the row roughly */
    h = (uint16_t)(bits >> 16);
    if (type == CAIRN_F16) h = (uint16_t)((bits >> 16 & 0x8000u) | (bits >> 13 & 0x7fffu));
    memcpy((char *)data + 2 * i, &h, 2);
}

typedef struct shape { int rows, n, k, pad; cairn_type type; int kind, order; bool ranged, values; } shape;

static int check_row(const shape *s, const char *scores, int64_t r, int32_t start, int32_t length,
                     const int32_t *indices, const float *values) {
    int64_t row = r * (s->n + s->pad) + start;
    pair *pairs = (pair *)calloc((size_t)length + 1, sizeof *pairs);
    int32_t i, found = length < s->k ? length : s->k;
    int fine = 1;
    for (i = 0; i < length; i++) {
        pairs[i].score = value_of(s->type, scores, row + i);
        pairs[i].nan = isnan(pairs[i].score) != 0;
        pairs[i].position = i;
    }
    qsort(pairs, (size_t)length, sizeof *pairs, compare_pairs);
    if (s->order == CAIRN_ORDER_POSITION) qsort(pairs, (size_t)found, sizeof *pairs, compare_positions);
    for (i = 0; i < s->k && fine; i++) {
        fine = indices[i] == (i < found ? pairs[i].position : -1);
        if (!fine) printf("# row %d slot %d: got %d want %d\n", (int)r, (int)i, (int)indices[i], i < found ? (int)pairs[i].position : -1);
        if (fine && values) {
            double want = i < found ? pairs[i].score : -(double)INFINITY;
            fine = isnan(want) ? isnan(values[i]) : (double)values[i] == want;
        }
    }
    free(pairs);
    return fine;
}

enum { GUARD = 64 };

/* Runs one case by a route; 2 when the route does not take it. */
static int run_by(cairn_runtime *rt, const shape *s, const char *route) {
    size_t element = cairn_type_bytes(s->type), stride = (size_t)(s->n + s->pad);
    size_t score_bytes = ((size_t)s->rows * stride + 1) * element;
    size_t out_count = (size_t)s->rows * (size_t)s->k;
    char *scores = (char *)malloc(score_bytes);
    int32_t *lengths = (int32_t *)calloc((size_t)s->rows, 4), *starts = (int32_t *)calloc((size_t)s->rows, 4);
    int32_t *indices = (int32_t *)malloc((out_count + 2 * GUARD) * 4);
    float *values = (float *)malloc((out_count + 2 * GUARD) * 4);
    cairn_tensor *t_scores, *t_lengths, *t_starts, *t_indices, *t_values;
    int64_t extents[2], view_shape[2], view_strides[2], out_shape[2];
    cairn_tensor view, out, out_values;
    cairn_topk_args args;
    cairn_status status;
    int fine = 1, r;
    size_t i;
    memset(scores, 0xff, score_bytes); /* NaN wherever a score must not be read */
    for (r = 0; r < s->rows; r++) {
        int32_t j;
        starts[r] = s->ranged ? (int32_t)(draw() % (uint32_t)(s->n / 4 + 1)) : 0;
        lengths[r] = s->ranged ? (int32_t)(draw() % (uint32_t)(s->n - starts[r] + 1)) : s->n;
        for (j = 0; j < lengths[r]; j++)
            store(s->type, scores, (int64_t)r * (int64_t)stride + starts[r] + j, score_of(s->kind, j));
        for (j = starts[r] + lengths[r]; s->ranged && j < s->n; j++) store(s->type, scores, (int64_t)r * (int64_t)stride + j, INFINITY);
    }
    memset(indices, 0xab, (out_count + 2 * GUARD) * 4);
    memset(values, 0xab, (out_count + 2 * GUARD) * 4);
    extents[0] = (int64_t)(score_bytes / element);
    fine &= !cairn_tensor_new(rt, s->type, 1, extents, &t_scores);
    extents[0] = s->rows;
    fine &= !cairn_tensor_new(rt, CAIRN_I32, 1, extents, &t_lengths);
    fine &= !cairn_tensor_new(rt, CAIRN_I32, 1, extents, &t_starts);
    extents[0] = (int64_t)(out_count + 2 * GUARD);
    fine &= !cairn_tensor_new(rt, CAIRN_I32, 1, extents, &t_indices);
    fine &= !cairn_tensor_new(rt, CAIRN_F32, 1, extents, &t_values);
    if (!fine) return 0;
    cairn_tensor_write(rt, t_scores, scores, score_bytes);
    cairn_tensor_write(rt, t_lengths, lengths, (size_t)s->rows * 4);
    cairn_tensor_write(rt, t_starts, starts, (size_t)s->rows * 4);
    cairn_tensor_write(rt, t_indices, indices, (out_count + 2 * GUARD) * 4);
    cairn_tensor_write(rt, t_values, values, (out_count + 2 * GUARD) * 4);
    view = *t_scores;
    view_shape[0] = s->rows, view_shape[1] = s->n;
    view_strides[0] = (int64_t)stride, view_strides[1] = 1;
    view.ndim = 2, view.shape = view_shape, view.strides = view_strides;
    out_shape[0] = s->rows, out_shape[1] = s->k;
    out = *t_indices, out.ndim = 2, out.shape = out_shape, out.byte_offset = GUARD * 4;
    out_values = *t_values, out_values.ndim = 2, out_values.shape = out_shape, out_values.byte_offset = GUARD * 4;
    memset(&args, 0, sizeof args);
    args.struct_size = sizeof args;
    args.k = s->k;
    args.scores = &view;
    args.lengths = s->ranged ? t_lengths : NULL;
    args.row_starts = s->ranged ? t_starts : NULL;
    args.indices = &out;
    args.values = s->values ? &out_values : NULL;
    args.order = s->order;
    args.route = route;
    status = cairn_topk(rt, &args);
    if (status) fine = status == CAIRN_UNSUPPORTED ? 2 : 0;
    if (!fine) printf("# %s\n", cairn_last_error(rt));
    cairn_tensor_read(rt, t_indices, indices, (out_count + 2 * GUARD) * 4);
    cairn_tensor_read(rt, t_values, values, (out_count + 2 * GUARD) * 4);
    for (i = 0; i < GUARD && fine == 1; i++)
        fine = (uint32_t)indices[i] == 0xababababu && (uint32_t)indices[out_count + GUARD + i] == 0xababababu;
    for (r = 0; r < s->rows && fine == 1; r++)
        fine = check_row(s, scores, r, starts[r], lengths[r], indices + GUARD + (size_t)r * (size_t)s->k,
                         s->values ? values + GUARD + (size_t)r * (size_t)s->k : NULL);
    cairn_tensor_free(rt, t_scores);
    cairn_tensor_free(rt, t_lengths);
    cairn_tensor_free(rt, t_starts);
    cairn_tensor_free(rt, t_indices);
    cairn_tensor_free(rt, t_values);
    free(scores), free(lengths), free(starts), free(indices), free(values);
    return fine;
}

/* Every route that takes the case; on the CPU there is one way. */
static int run(cairn_runtime *rt, const shape *s) {
    static const char *const routes[] = {"auto", "small", "block", "cluster", "split", "radix"};
    size_t i;
    for (i = 0; i < (rt->device.cuda ? BASE_COUNT(routes) : 1); i++)
        if (is_wanted("CAIRN_TEST_ROUTE", routes[i]) && !run_by(rt, s, routes[i])) {
            printf("# by route %s\n", routes[i]);
            return 0;
        }
    return 1;
}

/* Rows that rise, so that a bound is guessed, and then hold fewer than k of what the sample may find
 * many of; the CPU's scan must not trust it. */
static void misleading(cairn_runtime *rt, const char *backend) {
    enum { N = 9000, RISE = 2500, K = 9 };
    static const cairn_type types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    static float host[N];
    int64_t x[2] = {1, N}, y[2] = {1, K};
    shape s = {1, N, K, 0, CAIRN_F32, NORMAL, 0, false, false};
    int fine = 1, round, i;
    for (round = 0; round < 300 && fine; round++) {
        cairn_tensor *scores, *indices;
        cairn_topk_args a;
        int32_t got[K];
        int peak = RISE + (int)(draw() % (N - RISE - K));
        s.type = types[round % 3], s.order = round & 1;
        for (i = 0; i < N; i++) {
            float f = i < RISE ? (float)(i / 16) : i >= peak && i < peak + K - 1 ? 500.0f : 1.0f;
            store(s.type, host, i, f);
        }
        fine = !cairn_tensor_new(rt, s.type, 2, x, &scores) &&
               !cairn_tensor_new(rt, CAIRN_I32, 2, y, &indices);
        if (!fine) break;
        cairn_tensor_write(rt, scores, host, N * cairn_type_bytes(s.type));
        memset(&a, 0, sizeof a);
        a.struct_size = sizeof a, a.scores = scores, a.indices = indices, a.k = K, a.order = s.order;
        fine = !cairn_topk(rt, &a) && !cairn_tensor_read(rt, indices, got, sizeof got) &&
               check_row(&s, (const char *)host, 0, 0, N, got, NULL);
        cairn_tensor_free(rt, scores), cairn_tensor_free(rt, indices);
    }
    tap_ok(fine, "topk on %s: rows whose sample misleads", backend);
}

/* A graph of one call, replayed while the lengths change in device memory, against eager calls. */
static void replays(cairn_runtime *rt) {
    enum { ROWS = 6, N = 50000, K = 700 };
    static const char *const routes[] = {"block", "cluster", "split", "radix"};
    static int32_t first[ROWS * K], second[ROWS * K];
    int64_t extents[2] = {ROWS, N}, out_extents[2] = {ROWS, K}, one = ROWS;
    cairn_tensor *scores, *lengths, *indices;
    float *host = (float *)malloc(sizeof(float) * ROWS * N);
    size_t route;
    int i, round, rounds = is_emulated(CAIRN_BACKEND_CUDA) ? 5 : 100;
    for (i = 0; i < ROWS * N; i++) host[i] = score_of(i / N, i % N);
    cairn_tensor_new(rt, CAIRN_F32, 2, extents, &scores);
    cairn_tensor_new(rt, CAIRN_I32, 1, &one, &lengths);
    cairn_tensor_new(rt, CAIRN_I32, 2, out_extents, &indices);
    cairn_tensor_write(rt, scores, host, sizeof(float) * ROWS * N);
    for (route = 0; route < BASE_COUNT(routes); route++) {
        cairn_topk_args args;
        cairn_graph *graph = NULL;
        int32_t now[ROWS] = {N, N, N, N, N, N};
        int fine;
        memset(&args, 0, sizeof args);
        args.struct_size = sizeof args;
        args.scores = scores, args.lengths = lengths, args.indices = indices, args.k = K;
        args.route = routes[route];
        if (!is_wanted("CAIRN_TEST_ROUTE", routes[route])) continue;
        cairn_tensor_write(rt, lengths, now, sizeof now);
        if (cairn_topk(rt, &args) == CAIRN_UNSUPPORTED) continue;
        fine = !cairn_graph_begin(rt) && !cairn_topk(rt, &args) && !cairn_graph_end(rt, &graph);
        for (round = 0; round < rounds && fine; round++) {
            for (i = 0; i < ROWS; i++) now[i] = (int32_t)(draw() % (N + 1));
            cairn_tensor_write(rt, lengths, now, sizeof now);
            fine = !cairn_topk(rt, &args) && !cairn_tensor_read(rt, indices, first, sizeof first) &&
                   !cairn_graph_launch(rt, graph) &&
                   !cairn_tensor_read(rt, indices, second, sizeof second) &&
                   !memcmp(first, second, sizeof first);
        }
        tap_ok(fine, "topk by route %s: %d replays while lengths change, as eager", routes[route],
               rounds);
        cairn_graph_free(rt, graph);
    }
    cairn_tensor_free(rt, scores);
    cairn_tensor_free(rt, lengths);
    cairn_tensor_free(rt, indices);
    free(host);
}

/* Rows by several blocks, which are handed out anew at each replay as lengths and starts change: one
 * long row among short ones, two, none at all, all alike. With equal scores every block's set is full. */
static void uneven(cairn_runtime *rt) {
    enum { ROWS = 9, N = 70000, K = 1500, LAYOUTS = 7 };
    static int32_t got[ROWS * K];
    int64_t extents[2] = {ROWS, N}, out_extents[2] = {ROWS, K}, one = ROWS;
    cairn_tensor *scores, *lengths, *starts, *indices;
    float *host = (float *)malloc(sizeof(float) * ROWS * N);
    int32_t length[ROWS], start[ROWS];
    shape s = {ROWS, N, K, 0, CAIRN_F32, NORMAL, 0, false, false};
    cairn_topk_args args;
    cairn_graph *graph = NULL;
    int i, r, round, fine, rounds = is_emulated(CAIRN_BACKEND_CUDA) ? LAYOUTS : 8 * LAYOUTS;
    if (!is_wanted("CAIRN_TEST_ROUTE", "split")) return;
    for (i = 0; i < ROWS * N; i++) host[i] = score_of(i / N % 3 ? NORMAL : EQUAL, i % N);
    cairn_tensor_new(rt, CAIRN_F32, 2, extents, &scores);
    cairn_tensor_new(rt, CAIRN_I32, 1, &one, &lengths);
    cairn_tensor_new(rt, CAIRN_I32, 1, &one, &starts);
    cairn_tensor_new(rt, CAIRN_I32, 2, out_extents, &indices);
    memset(&args, 0, sizeof args);
    args.struct_size = sizeof args, args.k = K, args.route = "split";
    args.scores = scores, args.lengths = lengths, args.row_starts = starts, args.indices = indices;
    for (r = 0; r < ROWS; r++) length[r] = N, start[r] = 0;
    fine = !cairn_tensor_write(rt, scores, host, sizeof(float) * ROWS * N) &&
           !cairn_tensor_write(rt, lengths, length, sizeof length) &&
           !cairn_tensor_write(rt, starts, start, sizeof start) && !cairn_topk(rt, &args) &&
           !cairn_graph_begin(rt) && !cairn_topk(rt, &args) && !cairn_graph_end(rt, &graph);
    for (round = 0; round < rounds && fine; round++) {
        const int layout = round % LAYOUTS, chosen = (int)(draw() % ROWS);
        for (r = 0; r < ROWS; r++) {
            const int32_t some = (int32_t)(draw() % 3000), any = (int32_t)(draw() % (N + 1));
            const bool is_long = r == chosen || (layout == 1 && r == (chosen + 4) % ROWS);
            length[r] = layout == 2 ? 0 : layout == 3 ? K : layout == 4 ? any : layout == 5 ? N : some;
            if (layout < 2 && is_long) length[r] = N - some;
            start[r] = (int32_t)(draw() % (uint32_t)(N - length[r] + 1));
        }
        memset(got, 0xab, sizeof got);
        fine = !cairn_tensor_write(rt, lengths, length, sizeof length) &&
               !cairn_tensor_write(rt, starts, start, sizeof start) &&
               !cairn_tensor_write(rt, indices, got, sizeof got) &&
               !cairn_graph_launch(rt, graph) && !cairn_tensor_read(rt, indices, got, sizeof got);
        for (r = 0; r < ROWS && fine; r++)
            fine = check_row(&s, (const char *)host, r, start[r], length[r], got + r * K, NULL);
        if (!fine) printf("# layout %d, long row %d\n", layout, chosen);
    }
    tap_ok(fine, "topk by route split: %d replays while lengths grow uneven", rounds);
    cairn_graph_free(rt, graph);
    cairn_tensor_free(rt, scores), cairn_tensor_free(rt, lengths);
    cairn_tensor_free(rt, starts), cairn_tensor_free(rt, indices);
    free(host);
}

static void sweep(cairn_runtime *rt, const char *backend) {
    static const int sizes[][2] = {{1, 1}, {5, 1}, {31, 32}, {64, 64}, {65, 64}, {1000, 17}, {500, 32}, {4096, 32},
                                   {5000, 2048}, {20000, 2048}, {70001, 512}};
    static const cairn_type types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    size_t i;
    int kind;
    bool few = is_emulated(rt->device.cuda ? CAIRN_BACKEND_CUDA : CAIRN_BACKEND_CPU);
    for (kind = 0; kind < KINDS; kind++) {
        int fine = 1;
        for (i = 0; i < BASE_COUNT(sizes) * 3 && fine; i++) {
            shape s;
            if (few && (i % 3 != (i / 3 + (size_t)kind) % 3 || (sizes[i / 3][0] > 9999 && kind % 4)))
                continue;
            s.rows = 1 + (int)(draw() % 5);
            s.n = sizes[i / 3][0], s.k = sizes[i / 3][1], s.pad = (int)(draw() % 4);
            s.type = types[i % 3], s.kind = kind;
            s.order = (int)(draw() & 1), s.ranged = draw() & 1, s.values = draw() & 1;
            fine = run(rt, &s);
            if (!fine) printf("# rows %d n %d k %d pad %d type %s order %d ranged %d values %d\n", s.rows, s.n, s.k,
                       s.pad, cairn_type_name(s.type), s.order, s.ranged, s.values);
        }
        tap_ok(fine, "topk on %s: kind %d at every size and dtype", backend, kind);
    }
    if (!few) {
        shape s = {1, 400000, 2048, 0, CAIRN_F32, NORMAL, 0, false, false};
        tap_ok(run(rt, &s), "topk on %s: one row of 400000, cut in pieces", backend);
        s.kind = EQUAL;
        tap_ok(run(rt, &s), "topk on %s: 400000 equal scores", backend);
        s.kind = RAMP_UP;
        tap_ok(run(rt, &s), "topk on %s: a ramp of 400000", backend);
        s.kind = WALK;
        tap_ok(run(rt, &s), "topk on %s: a walk of 400000", backend);
        s.kind = STEPS;
        tap_ok(run(rt, &s), "topk on %s: 400000 in steps", backend);
    }
}

/* Transformed indices against those of topk, mapped here; by every route. */
static void transforms(cairn_runtime *rt, const char *backend) {
    enum { ROWS = 6, N = 900, K = 30, SIZE = 48, PAGES = 19, REQUESTS = 3 };
    static const char *const routes[] = {"auto", "small", "block", "cluster", "split", "radix"};
    static float host[ROWS * N];
    int32_t plain[ROWS * K], got[ROWS * K], table[REQUESTS * PAGES], offsets[ROWS], ids[ROWS];
    int64_t x[2] = {ROWS, N}, y[2] = {ROWS, K}, t[2] = {REQUESTS, PAGES}, rows = ROWS;
    cairn_tensor *scores, *out, *pages, *flat, *requests;
    size_t route;
    int i, form;
    for (i = 0; i < ROWS * N; i++) host[i] = score_of(i / N, i % N);
    for (i = 0; i < REQUESTS * PAGES; i++) table[i] = (int32_t)(draw() % 1000);
    for (i = 0; i < ROWS; i++) offsets[i] = (int32_t)(draw() % 5000), ids[i] = (int32_t)(draw() % 3);
    cairn_tensor_new(rt, CAIRN_F32, 2, x, &scores);
    cairn_tensor_new(rt, CAIRN_I32, 2, y, &out);
    cairn_tensor_new(rt, CAIRN_I32, 2, t, &pages);
    cairn_tensor_new(rt, CAIRN_I32, 1, &rows, &flat);
    cairn_tensor_new(rt, CAIRN_I32, 1, &rows, &requests);
    cairn_tensor_write(rt, scores, host, sizeof host);
    cairn_tensor_write(rt, pages, table, sizeof table);
    cairn_tensor_write(rt, flat, offsets, sizeof offsets);
    cairn_tensor_write(rt, requests, ids, sizeof ids);
    for (form = 0; form < 3; form++) { /* flat, slot, slot by requests */
        int fine = 1;
        for (route = 0; route < BASE_COUNT(routes) && fine; route++) {
            if (!is_wanted("CAIRN_TEST_ROUTE", routes[route])) continue;
            cairn_topk_args top;
            cairn_topk_transform_args a;
            cairn_status status;
            memset(&top, 0, sizeof top);
            top.struct_size = sizeof top, top.k = K, top.scores = scores, top.indices = out;
            fine = !cairn_topk(rt, &top) && !cairn_tensor_read(rt, out, plain, sizeof plain);
            memset(&a, 0, sizeof a);
            a.struct_size = sizeof a, a.k = K, a.scores = scores, a.indices = out;
            a.route = routes[route], a.page_size = SIZE;
            if (form == 0) a.offsets = flat;
            else a.page_table = pages;
            if (form == 2) a.requests = requests;
            status = cairn_topk_transform(rt, &a);
            if (status == CAIRN_UNSUPPORTED) continue;
            fine = fine && !status && !cairn_tensor_read(rt, out, got, sizeof got);
            for (i = 0; i < ROWS * K && fine; i++) {
                int r = i / K, request = form == 2 ? ids[r] : r / (ROWS / REQUESTS);
                int want = form == 0 ? plain[i] + offsets[r]
                                     : table[request * PAGES + plain[i] / SIZE] * SIZE +
                                           plain[i] % SIZE;
                fine = got[i] == want;
            }
        }
        tap_ok(fine, "topk_transform on %s: form %d", backend, form);
    }
    {
        cairn_topk_transform_args a;
        memset(&a, 0, sizeof a);
        a.struct_size = sizeof a, a.k = K, a.scores = scores, a.indices = out;
        tap_ok(cairn_topk_transform(rt, &a) == CAIRN_INVALID_ARGUMENT, "neither table nor offsets");
        a.page_table = pages, a.page_size = 10; /* 190 of 900 positions have a page */
        {
            cairn_status status = cairn_topk_transform(rt, &a);
            if (!status) status = cairn_sync(rt);
            tap_ok(status == CAIRN_BAD_DATA, "a position past the table is reported");
        }
    }
    cairn_tensor_free(rt, scores), cairn_tensor_free(rt, out), cairn_tensor_free(rt, pages);
    cairn_tensor_free(rt, flat), cairn_tensor_free(rt, requests);
}

static void bad_arguments(cairn_runtime *rt) {
    int64_t extents[2] = {2, 8}, out_extents[2] = {2, 4};
    cairn_tensor *scores, *indices, *lengths, wrong;
    int32_t bad_lengths[2] = {9, -1}, got[8];
    cairn_topk_args args;
    memset(&args, 0, sizeof args);
    cairn_tensor_new(rt, CAIRN_F32, 2, extents, &scores);
    cairn_tensor_new(rt, CAIRN_I32, 2, out_extents, &indices);
    cairn_tensor_new(rt, CAIRN_I32, 1, extents, &lengths);
    tap_ok(cairn_topk(rt, NULL) == CAIRN_INVALID_ARGUMENT, "topk: NULL arguments");
    tap_ok(cairn_topk(rt, &args) == CAIRN_VERSION_MISMATCH, "topk: struct_size 0");
    args.struct_size = sizeof args;
    args.scores = scores, args.indices = indices;
    tap_ok(cairn_topk(rt, &args) == CAIRN_INVALID_ARGUMENT && strstr(cairn_last_error(rt), "k = 0"),
           "topk: k = 0 is named");
    args.k = 3;
    tap_ok(cairn_topk(rt, &args) == CAIRN_INVALID_ARGUMENT && strstr(cairn_last_error(rt), "indices"),
           "topk: a wrong output shape is named");
    args.k = 4;
    wrong = *scores, wrong.dtype.code = 0;
    args.scores = &wrong;
    tap_ok(cairn_topk(rt, &args) == CAIRN_INVALID_ARGUMENT && strstr(cairn_last_error(rt), "f32, f16, bf16"),
           "topk: a wrong dtype is named");
    args.scores = scores, args.route = "no such route";
    tap_ok(cairn_topk(rt, &args) != CAIRN_OK && strstr(cairn_last_error(rt), "route"), "topk: an unknown route");
    args.route = NULL;
    cairn_tensor_write(rt, lengths, bad_lengths, sizeof bad_lengths);
    args.lengths = lengths;
    {
        cairn_status status = cairn_topk(rt, &args);
        if (!status) status = cairn_sync(rt);
        tap_ok(status == CAIRN_BAD_DATA, "topk: lengths out of range are reported");
    }
    cairn_tensor_read(rt, indices, got, sizeof got);
    tap_ok(got[0] == 0 && got[3] == 3 && got[4] == -1 && got[7] == -1, "topk: and clamped");
}

static void test_backend(cairn_runtime *rt, const char *name) {
    sweep(rt, name);
    transforms(rt, name);
    if (rt->device.cuda) replays(rt), uneven(rt);
    else misleading(rt, name);
    bad_arguments(rt);
}

int main(void) {
    cairn_config config;
    cairn_config_default(&config);
    config.threads = 3; /* so that long rows are cut, on any machine */
    seed = random_seed();
    setenv("CAIRN_SIMD", "scalar", 1);
    run_on_backend(&config, CAIRN_BACKEND_CPU, "cpu, scalar", "topk", test_backend);
    setenv("CAIRN_SIMD", "avx2", 1);
    if (pool_simd() == SIMD_AVX2)
        run_on_backend(&config, CAIRN_BACKEND_CPU, "cpu, avx2", "topk", test_backend);
    unsetenv("CAIRN_SIMD");
    run_on_backends(&config, "topk", test_backend);
    return tap_done();
}

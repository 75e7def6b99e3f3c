/* The ops against double-precision loops (tests/ref/ops_ref.h), on the CPU and, where there is one,
 * on the GPU: random shapes, shuffled page tables, poisoned slots, guard words, bad arguments.
 * emulated: asan race */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "ref/block_ref.h"
#include "ref/ops_ref.h"
#include "tap.h"
#include "backends.h"

static uint64_t seed;
static cairn_runtime *rt;
static const char *where;

static uint32_t draw(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}
static int between(int low, int high) { return low + (int)(draw() % (uint32_t)(high - low + 1)); }
static float uniform(void) { return (float)(draw() & 0xffffff) / 8388608.0f - 1.0f; }

/* A tensor on the device with its host copy. */
typedef struct both { cairn_tensor *t; void *host; size_t bytes; } both;

static both make(cairn_type type, int rank, const int64_t *shape) {
    both b;
    size_t i;
    b.bytes = cairn_type_bytes(type);
    for (i = 0; i < (size_t)rank; i++) b.bytes *= (size_t)shape[i];
    b.host = calloc(b.bytes + 1, 1);
    if (cairn_tensor_new(rt, type, rank, shape, &b.t)) printf("# %s\n", cairn_last_error(rt));
    return b;
}
static both make1(cairn_type type, int64_t a) { return make(type, 1, &a); }
static both make2(cairn_type type, int64_t a, int64_t b) { int64_t s[2]; s[0] = a, s[1] = b; return make(type, 2, s); }
static both make3(cairn_type type, int64_t a, int64_t b, int64_t c) { int64_t s[3]; s[0] = a, s[1] = b, s[2] = c; return make(type, 3, s); }
static void upload(both *b) { cairn_tensor_write(rt, b->t, b->host, b->bytes); }
static void download(both *b) { cairn_tensor_read(rt, b->t, b->host, b->bytes); }
static void drop(both *b) { cairn_tensor_free(rt, b->t); free(b->host); }
static void fill(both *b) {
    size_t i;
    for (i = 0; i < b->bytes / 4; i++) ((float *)b->host)[i] = uniform();
    upload(b);
}
static void poison(both *b) { memset(b->host, 0xff, b->bytes); upload(b); }

static bool near(double got, double want, double tolerance) {
    return fabs(got - want) <= tolerance * (1 + fabs(want)); /* false for NaN */
}

static bool done(cairn_status status) {
    if (status) printf("# %s: %s\n", cairn_status_name(status), cairn_last_error(rt));
    return !status;
}

static void test_rmsnorm(void) {
    int rows = between(1, 9), n = between(1, 700), r, i;
    both x = make2(CAIRN_F32, rows, n), w = make1(CAIRN_F32, n), out = make2(CAIRN_F32, rows, n);
    cairn_rmsnorm_args a;
    bool fine;
    fill(&x), fill(&w), poison(&out);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.x = x.t, a.weight = w.t, a.out = out.t;
    fine = done(cairn_rmsnorm(rt, &a));
    download(&out);
    for (r = 0; r < rows && fine; r++) {
        const float *row = (const float *)x.host + r * n;
        double sum = 0;
        for (i = 0; i < n; i++) sum += (double)row[i] * (double)row[i];
        for (i = 0; i < n && fine; i++)
            fine = near((double)((float *)out.host)[r * n + i],
                        (double)row[i] * (double)((float *)w.host)[i] / sqrt(sum / n + 1e-5), 2e-6);
    }
    tap_ok(fine, "rmsnorm on %s: %d x %d", where, rows, n);
    drop(&x), drop(&w), drop(&out);
}

static void test_swiglu(void) {
    int rows = between(1, 5), n = between(1, 900), i;
    both gate = make2(CAIRN_F32, rows, n), up = make2(CAIRN_F32, rows, n);
    cairn_swiglu_args a;
    bool fine;
    float *want = (float *)malloc((size_t)(rows * n) * 4);
    fill(&gate), fill(&up);
    for (i = 0; i < rows * n; i++) {
        double g;
        ((float *)gate.host)[i] *= 9;
        g = (double)((float *)gate.host)[i];
        want[i] = (float)(g / (1 + exp(-g)) * (double)((float *)up.host)[i]);
    }
    upload(&gate);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.gate = gate.t, a.up = up.t, a.out = gate.t; /* in place */
    fine = done(cairn_swiglu(rt, &a));
    download(&gate);
    for (i = 0; i < rows * n && fine; i++) fine = near((double)((float *)gate.host)[i], (double)want[i], 3e-6);
    tap_ok(fine, "swiglu on %s: %d x %d", where, rows, n);
    free(want), drop(&gate), drop(&up);
}

static void test_rope(int half_split) {
    int rows = between(1, 6), heads = between(1, 5), dim = 2 * between(2, 64), rotary = 2 * between(1, dim / 2), r, h, j;
    both x = make3(CAIRN_F32, rows, heads, dim), out = make3(CAIRN_F32, rows, heads, dim), at = make1(CAIRN_I32, rows);
    cairn_rope_args a;
    bool fine;
    fill(&x), poison(&out);
    for (r = 0; r < rows; r++) ((int32_t *)at.host)[r] = (int32_t)(draw() % 130000);
    upload(&at);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.base = 100000.0f, a.rotary_dim = rotary, a.half_split = half_split;
    a.x = x.t, a.positions = at.t, a.out = out.t;
    fine = done(cairn_rope(rt, &a));
    download(&out);
    for (r = 0; r < rows; r++)
        for (h = 0; h < heads && fine; h++) {
            const float *in = (const float *)x.host + (r * heads + h) * dim, *o = (const float *)out.host + (r * heads + h) * dim;
            for (j = 0; j < rotary / 2 && fine; j++) {
                double angle = ((int32_t *)at.host)[r] * pow(100000.0, -2.0 * j / rotary);
                int p = half_split ? j : 2 * j, q = half_split ? j + rotary / 2 : 2 * j + 1;
                fine = near((double)o[p], (double)in[p] * cos(angle) - (double)in[q] * sin(angle), 2e-6) &&
                       near((double)o[q], (double)in[p] * sin(angle) + (double)in[q] * cos(angle), 2e-6);
            }
            for (j = rotary; j < dim && fine; j++) fine = o[j] == in[j];
        }
    tap_ok(fine, "rope on %s: %d of %d dimensions, half_split %d", where, rotary, dim, half_split);
    drop(&x), drop(&out), drop(&at);
}

/* Values and bytes of a block. */
static int block_span(int block) { return block >= CAIRN_BLOCK_Q4_K ? 256 : 32; }
static int block_size(int block) {
    static const int sizes[] = {[2] = 18, [3] = 20, [6] = 22, [7] = 24, [8] = 34, [12] = 144,
                                [13] = 176, [14] = 210};
    return sizes[block];
}

static void random_blocks(int block, uint8_t *row, int values) {
    int bytes = block_size(block), i, b;
    for (b = 0; b < values / block_span(block); b++, row += bytes) {
        uint16_t d = ref_to_f16((double)uniform() * (block >= CAIRN_BLOCK_Q4_K ? 0.001 : 0.1));
        for (i = 0; i < bytes; i++) row[i] = (uint8_t)draw();
        memcpy(row + (block == CAIRN_BLOCK_Q6_K ? 208 : 0), &d, 2);
        d = ref_to_f16((double)uniform() * (block >= CAIRN_BLOCK_Q4_K ? 0.01 : 1.0));
        if (block == CAIRN_BLOCK_Q4_1 || block == CAIRN_BLOCK_Q5_1 ||
            block == CAIRN_BLOCK_Q4_K || block == CAIRN_BLOCK_Q5_K)
            memcpy(row + 2, &d, 2);
    }
}

static void test_embed(int block) {
    int vocab = between(2, 50), rows = between(1, 7), r, i;
    int blocks = between(1, block_span(block) == 32 ? 12 : 2);
    int hidden = block_span(block) * blocks, width = block_size(block) * blocks;
    both table = make2(CAIRN_U8, vocab, width), ids = make1(CAIRN_I32, rows), out = make2(CAIRN_F32, rows, hidden);
    cairn_embed_args a;
    cairn_status status;
    bool fine;
    for (r = 0; r < vocab; r++) random_blocks(block, (uint8_t *)table.host + r * width, hidden);
    for (r = 0; r < rows; r++) ((int32_t *)ids.host)[r] = between(0, vocab - 1);
    upload(&table), upload(&ids), poison(&out);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.block = block, a.ids = ids.t, a.table = table.t, a.out = out.t;
    fine = done(cairn_embed(rt, &a));
    download(&out);
    for (r = 0; r < rows; r++)
        for (i = 0; i < hidden && fine; i++)
            fine = near((double)((float *)out.host)[r * hidden + i],
                        block_ref_value(block, (uint8_t *)table.host + ((int32_t *)ids.host)[r] * width, i), 1e-6);
    tap_ok(fine, "embed on %s: block type %d", where, block);
    ((int32_t *)ids.host)[0] = vocab;
    upload(&ids), poison(&out);
    status = cairn_embed(rt, &a);
    if (!status) status = cairn_sync(rt);
    download(&out);
    tap_ok(status == CAIRN_BAD_DATA && ((float *)out.host)[hidden - 1] == 0.0f, "embed on %s: an id out of range gives zeros and is reported", where);
    drop(&table), drop(&ids), drop(&out);
}

/* Plain weights, or blocks; a second call accumulates; one row alone gives the same bits. */
static void test_linear_of(int block, int outs, int rows, int ins) {
    int r, o, i;
    int width = block == CAIRN_BLOCK_NONE ? ins : ins / block_span(block) * block_size(block);
    both w = make2(block == CAIRN_BLOCK_NONE ? CAIRN_F32 : CAIRN_U8, outs, width);
    both x = make2(CAIRN_F32, rows, ins), out = make2(CAIRN_F32, rows, outs), one = make2(CAIRN_F32, 1, outs);
    int64_t one_shape[2];
    cairn_tensor last;
    cairn_linear_args a;
    bool fine;
    if (block == CAIRN_BLOCK_NONE) fill(&w);
    else for (o = 0; o < outs; o++) random_blocks(block, (uint8_t *)w.host + o * width, ins);
    upload(&w), fill(&x), poison(&out), poison(&one);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.block = block, a.x = x.t, a.weight = w.t, a.out = out.t;
    fine = done(cairn_linear(rt, &a));
    a.accumulate = 1;
    fine = fine && done(cairn_linear(rt, &a));
    download(&out);
    for (r = 0; r < rows; r++)
        for (o = 0; o < outs && fine; o++) {
            double sum = 0, size = 0;
            for (i = 0; i < ins; i++) {
                double v = block == CAIRN_BLOCK_NONE ? (double)((float *)w.host)[o * ins + i] : block_ref_value(block, (uint8_t *)w.host + o * width, i);
                sum += v * (double)((float *)x.host)[r * ins + i];
                size += fabs(v * (double)((float *)x.host)[r * ins + i]);
            }
            fine = fabs((double)((float *)out.host)[r * outs + o] - 2 * sum) <= 2e-3 * size + 1e-4;
        }
    tap_ok(fine, "linear on %s: block type %d, %d rows, %d -> %d", where, block, rows, ins, outs);
    last = *x.t;
    one_shape[0] = 1, one_shape[1] = ins;
    last.shape = one_shape;
    last.byte_offset += (uint64_t)(rows - 1) * (uint64_t)ins * 4;
    a.x = &last, a.out = one.t, a.accumulate = 0;
    fine = done(cairn_linear(rt, &a));
    a.x = x.t, a.out = out.t;
    fine = fine && done(cairn_linear(rt, &a));
    download(&out), download(&one);
    tap_ok(fine && !memcmp((float *)out.host + (rows - 1) * outs, one.host, (size_t)outs * 4),
           "linear on %s: a row alone gives the same bits as among %d", where, rows);
    drop(&w), drop(&x), drop(&out), drop(&one);
}

static void test_linear(int block) {
    const int outs = between(1, 200), rows = draw() & 1 ? between(1, 8) : between(9, 90);
    test_linear_of(block, outs, rows, block_span(block) == 32 ? 32 * between(1, 20) : 256 * between(1, 3));
}

typedef struct paged {
    int rows, sequences, max_pages, pages, kv_heads, group, size, dim;
    both cache, table, of, at;
    cairn_pages args;
} paged;

/* Sequences with shuffled pages and keys up to their rows' positions; NaN everywhere else. */
static paged make_paged(int size, int dim, int kv_heads, int group, int longest) {
    paged p;
    int64_t shape[5];
    int i, r;
    memset(&p, 0, sizeof p);
    p.size = size, p.dim = dim, p.kv_heads = kv_heads, p.group = group;
    p.rows = between(1, 5), p.sequences = between(1, 3), p.max_pages = longest / size + 2;
    p.pages = p.sequences * p.max_pages + 3;
    shape[0] = p.pages, shape[1] = 2, shape[2] = kv_heads, shape[3] = size, shape[4] = dim;
    p.cache = make(CAIRN_F16, 5, shape);
    p.table = make2(CAIRN_I32, p.sequences, p.max_pages), p.of = make1(CAIRN_I32, p.rows), p.at = make1(CAIRN_I32, p.rows);
    {
        int32_t *ids = (int32_t *)p.table.host;
        int count = p.sequences * p.max_pages;
        for (i = 0; i < count; i++) ids[i] = i + 2;
        for (i = count - 1; i > 0; i--) {
            int j = between(0, i);
            int32_t swap = ids[i];
            ids[i] = ids[j], ids[j] = swap;
        }
    }
    for (r = 0; r < p.rows; r++) {
        ((int32_t *)p.of.host)[r] = between(0, p.sequences - 1);
        ((int32_t *)p.at.host)[r] = r == 0 ? longest : between(0, longest);
    }
    poison(&p.cache);
    {
        uint16_t *keys = (uint16_t *)p.cache.host;
        for (r = 0; r < p.rows; r++) {
            int t, h, d, position = ((int32_t *)p.at.host)[r];
            for (t = 0; t <= position; t++)
                for (h = 0; h < 2 * kv_heads; h++)
                    for (d = 0; d < dim; d++) {
                        int64_t page = ((int32_t *)p.table.host)[((int32_t *)p.of.host)[r] * p.max_pages + t / size];
                        uint16_t *at = &keys[((page * 2 * kv_heads + h) * size + t % size) * dim + d];
                        if (*at == 0xffff) { /* a value in +-[1/16, 2) */
                            uint32_t v = draw();
                            *at = (uint16_t)((v & 0x8000u) | (11 + (v >> 16) % 5) << 10 | (v & 0x3ff));
                        }
                    }
        }
    }
    upload(&p.cache), upload(&p.table), upload(&p.of), upload(&p.at);
    p.args.cache = p.cache.t, p.args.page_table = p.table.t, p.args.sequences = p.of.t, p.args.positions = p.at.t;
    return p;
}

static void drop_paged(paged *p) { drop(&p->cache), drop(&p->table), drop(&p->of), drop(&p->at); }

static ref_cache ref_of(const paged *p, int r) {
    ref_cache c;
    c.cache = (const uint16_t *)p->cache.host;
    c.kv_heads = p->kv_heads, c.size = p->size, c.dim = p->dim, c.max_pages = p->max_pages;
    c.table = (const int32_t *)p->table.host + ((int32_t *)p->of.host)[r] * p->max_pages;
    return c;
}

static bool check_attend(const paged *p, const both *q, const both *out, const both *lse, int window, int sinks,
                         const int32_t *selected, int topk, int sparse) {
    int heads = p->kv_heads * p->group, r, h, d;
    double want[256], worst = 0;
    bool fine = true;
    uint8_t *seen = (uint8_t *)calloc((size_t)(p->max_pages * p->size), 1);
    for (r = 0; r < p->rows && fine; r++)
        for (h = 0; h < heads && fine; h++) {
            int position = ((int32_t *)p->at.host)[r], kv = h / p->group;
            ref_cache c = ref_of(p, r);
            double sum;
            ref_seen(position, p->size, window, sinks, selected ? selected + (r * p->kv_heads + kv) * topk : NULL, topk, sparse, seen);
            sum = ref_attend(&c, kv, (const float *)q->host + (r * heads + h) * p->dim, position + 1, seen, 1 / sqrt(p->dim), want);
            for (d = 0; d < p->dim; d++) {
                double got = (double)((float *)out->host)[(r * heads + h) * p->dim + d];
                if (!near(got, want[d], 2e-3)) fine = false;
                if (fabs(got - want[d]) > worst) worst = fabs(got - want[d]);
            }
            if (!near((double)((float *)lse->host)[r * heads + h], sum, 2e-3)) fine = false;
            if (!fine) printf("# row %d head %d position %d: worst %g lse %g want %g\n", r, h, position, worst, (double)((float *)lse->host)[r * heads + h], sum);
        }
    free(seen);
    return fine;
}

static void test_attend(int size, int dim, int kv_heads, int group, int longest) {
    paged p = make_paged(size, dim, kv_heads, group, longest);
    int heads = kv_heads * group, window = draw() & 1 ? 0 : between(1, longest), sinks = between(0, 2 * size);
    both q = make3(CAIRN_F32, p.rows, heads, dim), out = make3(CAIRN_F32, p.rows, heads, dim), lse = make2(CAIRN_F32, p.rows, heads);
    cairn_attend_args a;
    fill(&q), poison(&out), poison(&lse);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.pages = p.args, a.q = q.t, a.out = out.t, a.lse = lse.t;
    tap_ok(done(cairn_attend(rt, &a)) && (download(&out), download(&lse), check_attend(&p, &q, &out, &lse, 0, 0, NULL, 0, 0)),
           "attend on %s: dense, page %d, dim %d, %d x %d heads, %d tokens", where, size, dim, kv_heads, group, longest);
    a.window = window, a.sinks = sinks;
    poison(&out), poison(&lse);
    tap_ok(done(cairn_attend(rt, &a)) && (download(&out), download(&lse), check_attend(&p, &q, &out, &lse, window, sinks, NULL, 0, 0)),
           "attend on %s: window %d, sinks %d, page %d, dim %d", where, window, sinks, size, dim);
    drop(&q), drop(&out), drop(&lse), drop_paged(&p);
}

static void test_sparse(int size, int dim, int kv_heads, int group, int longest, int mean, int by_head, int window) {
    paged p = make_paged(size, dim, kv_heads, group, longest);
    int heads = kv_heads * group, topk = between(1, 6), sinks = between(0, size + 3), r, h, c, i;
    int64_t bounds_shape[4];
    both q = make3(CAIRN_F32, p.rows, heads, dim), out = make3(CAIRN_F32, p.rows, heads, dim), lse = make2(CAIRN_F32, p.rows, heads);
    both scores = make3(CAIRN_F32, p.rows, kv_heads, p.max_pages), selected = make3(CAIRN_I32, p.rows, kv_heads, topk);
    both ids = make1(CAIRN_I32, p.pages), bounds;
    both own = make3(CAIRN_F32, p.rows, heads, p.max_pages), chosen_scores = make3(CAIRN_F32, p.rows, kv_heads, topk);
    const double scaled = draw() & 1 ? 0.25 * sqrt(dim) : 1.0; /* in D^-0.5 */
    cairn_page_bounds_args b;
    cairn_score_pages_args s;
    cairn_select_pages_args k;
    cairn_attend_pages_args a;
    bool fine;
    bounds_shape[0] = p.pages, bounds_shape[1] = kv_heads, bounds_shape[2] = 2, bounds_shape[3] = dim;
    bounds = make(CAIRN_F16, 4, bounds_shape);
    for (i = 0; i < p.pages; i++) ((int32_t *)ids.host)[i] = i;
    upload(&ids), fill(&q), poison(&out), poison(&lse), poison(&scores), poison(&selected), poison(&bounds);
    memset(&b, 0, sizeof b), memset(&s, 0, sizeof s), memset(&k, 0, sizeof k), memset(&a, 0, sizeof a);
    b.struct_size = sizeof b, b.source = mean, b.cache = p.cache.t, b.ids = ids.t, b.bounds = bounds.t;
    s.struct_size = sizeof s, s.source = mean, s.strategy = by_head, s.window = window, s.pages = p.args;
    s.bounds = bounds.t, s.q = q.t, s.scores = scores.t;
    s.head_scores = mean ? own.t : NULL, s.scale = scaled < 1.0 || scaled > 1.0 ? 0.25f : 0.0f;
    k.struct_size = sizeof k, k.topk = topk, k.scores = scores.t, k.selected = selected.t, k.chosen = chosen_scores.t;
    poison(&own), poison(&chosen_scores);
    a.struct_size = sizeof a, a.window = window, a.sinks = sinks, a.pages = p.args, a.selected = selected.t;
    a.q = q.t, a.out = out.t, a.lse = lse.t;
    fine = done(cairn_page_bounds(rt, &b)) && done(cairn_score_pages(rt, &s)) && done(cairn_select_pages(rt, &k)) &&
           done(cairn_attend_pages(rt, &a));
    download(&scores), download(&selected), download(&out), download(&lse), download(&own), download(&chosen_scores);
    for (r = 0; r < p.rows && fine; r++)
        for (h = 0; h < kv_heads && fine; h++) {
            int position = ((int32_t *)p.at.host)[r], reach = position - (window > 0 ? window - 1 : 0), candidates = reach > 0 ? reach / size : 0, taken = 0;
            const float *row = (const float *)scores.host + (r * kv_heads + h) * p.max_pages;
            const int32_t *chosen = (const int32_t *)selected.host + (r * kv_heads + h) * topk;
            ref_cache ref = ref_of(&p, r);
            for (c = 0; c < p.max_pages && fine; c++) {
                double want = c < candidates ? ref_page_score(&ref, h, (const float *)q.host + (r * heads + h * group) * dim, group, c, mean, by_head) * scaled : 0;
                fine = c < candidates ? near((double)row[c], want, 1e-4) : row[c] == -INFINITY;
                if (!fine) printf("# page %d of %d: score %g, want %g\n", c, candidates, (double)row[c], want);
            }
            for (i = 0; mean && i < group * p.max_pages && fine; i++) { /* each query head's own */
                const int g = h * group + i / p.max_pages;
                const double got = (double)((const float *)own.host)[(r * heads + g) * p.max_pages + i % p.max_pages];
                c = i % p.max_pages;
                fine = c < candidates ? near(got, ref_page_score(&ref, h, (const float *)q.host + (r * heads + g) * dim, 1, c, mean, 1) * scaled, 1e-4)
                                      : got == -INFINITY;
                if (!fine) printf("# head %d, page %d of %d: score %g\n", g, c, candidates, got);
            }
            for (i = 0; i < topk && fine; i++) {
                const float got = ((const float *)chosen_scores.host)[(r * kv_heads + h) * topk + i];
                fine = chosen[i] < 0 ? got == -INFINITY : got == row[chosen[i]];
            }
            /* the k best of the scores as they stand, ties to the lowest page */
            for (c = 0; c < candidates && fine; c++) {
                int better = 0, is_in = 0, j;
                for (j = 0; j < candidates; j++) better += row[j] > row[c] || (row[j] == row[c] && j < c);
                for (j = 0; j < topk; j++) is_in += chosen[j] == c;
                fine = is_in == (better < topk);
                if (is_in) fine = fine && chosen[taken++] == c;
            }
            for (c = taken; c < topk && fine; c++) fine = chosen[c] == -1;
        }
    tap_ok(fine, "score_pages, select_pages on %s: page %d, %s, %s, window %d", where, size, mean ? "mean" : "minmax", by_head ? "head" : "group", window);
    tap_ok(fine && check_attend(&p, &q, &out, &lse, window, sinks, (const int32_t *)selected.host, topk, 1),
           "attend_pages on %s: topk %d, sinks %d, dim %d, group %d", where, topk, sinks, dim, group);
    drop(&own), drop(&chosen_scores);
    drop(&q), drop(&out), drop(&lse), drop(&scores), drop(&selected), drop(&ids), drop(&bounds), drop_paged(&p);
}

/* ---- landmarks ---- */

/* q . k of a page's last slot, by one query head. */
static double landmark_score(const ref_cache *c, int head, const float *q, int page) {
    double sum = 0;
    int d;
    for (d = 0; d < c->dim; d++) sum += (double)q[d] * ref_kv(c, 0, head, (page + 1) * c->size - 1, d);
    return sum / sqrt(c->dim);
}

/* Attention over the tokens [from, to) but landmarks; returns lse. */
static double landmark_part(const ref_cache *c, int head, const float *q, int from, int to, double *out) {
    uint8_t *seen = (uint8_t *)calloc((size_t)to + 1, 1);
    double lse;
    int t;
    for (t = from; t < to; t++) seen[t] = (t + 1) % c->size != 0;
    lse = ref_attend(c, head, q, to, seen, 1 / sqrt(c->dim), out);
    free(seen);
    return lse;
}

enum { LANDMARK_HEADS = 6, LANDMARK_PAGES = 64 };

/* Of one row and KV head by the published formulas: the heads' own scores, the selection's, and what is
 * attended by the pages in `chosen`. */
typedef struct landmark_want {
    int candidates, from; /* where the window begins */
    double own[LANDMARK_HEADS][LANDMARK_PAGES], kv[LANDMARK_PAGES];
    double window[LANDMARK_HEADS]; /* lse */
} landmark_want;

static void landmark_scores(const ref_cache *c, int head, const float *q, int group, int position, int window, int strategy, landmark_want *w) {
    double out[256];
    int g, i, reach = position - (window > 0 ? window - 1 : 0);
    w->candidates = reach > 0 ? reach / c->size : 0;
    w->from = w->candidates * c->size;
    for (g = 0; g < group; g++) {
        double sum = 0, top = w->window[g] = landmark_part(c, head, q + g * c->dim, w->from, position + 1, out);
        for (i = 0; i < w->candidates; i++) top = fmax(top, w->own[g][i] = landmark_score(c, head, q + g * c->dim, i));
        sum = exp(w->window[g] - top);
        for (i = 0; i < w->candidates; i++) sum += exp(w->own[g][i] - top);
        for (i = 0; i < w->candidates; i++) {
            double s = w->own[g][i] - (strategy == CAIRN_STRATEGY_SOFTMAX_HEAD ? top + log(sum) : 0);
            w->kv[i] = !g ? s : strategy == CAIRN_STRATEGY_GROUP ? w->kv[i] + s : fmax(w->kv[i], s);
        }
    }
}

/* A head's output: the window's and each chosen page's, weighed by a softmax over lse and weights. */
static void landmark_attend(const ref_cache *c, int head, const float *q, int position, const landmark_want *w, int g, const int32_t *chosen,
                            int topk, bool group_weights, double *out) {
    double part[256], top = w->window[g], total = 0;
    int i, d;
    for (d = 0; d < c->dim; d++) out[d] = 0;
    for (i = 0; i < topk && chosen[i] >= 0; i++) top = fmax(top, group_weights ? w->kv[chosen[i]] : w->own[g][chosen[i]]);
    for (i = -1; i < topk && (i < 0 || chosen[i] >= 0); i++) {
        int from = i < 0 ? w->from : chosen[i] * c->size, to = i < 0 ? position + 1 : from + c->size;
        double weight = exp((i < 0 ? w->window[g] : group_weights ? w->kv[chosen[i]] : w->own[g][chosen[i]]) - top);
        landmark_part(c, head, q, from, to, part);
        total += weight;
        for (d = 0; d < c->dim; d++) out[d] += weight * part[d];
    }
    for (d = 0; d < c->dim; d++) out[d] /= total;
}

/* The steps of document 004: the window's lse, scores by landmarks, pages, and both levels of attention. */
static void test_landmarks(int size, int dim, int group, int longest, int strategy, int window) {
    enum { KVS = 2 };
    paged p = make_paged(size, dim, KVS, group, longest);
    const int heads = KVS * group, topk = between(1, 5);
    both q = make3(CAIRN_F32, p.rows, heads, dim), out = make3(CAIRN_F32, p.rows, heads, dim), lse = make2(CAIRN_F32, p.rows, heads);
    both scores = make3(CAIRN_F32, p.rows, KVS, p.max_pages), own = make3(CAIRN_F32, p.rows, heads, p.max_pages);
    both selected = make3(CAIRN_I32, p.rows, KVS, topk), kv_weights = make3(CAIRN_F32, p.rows, KVS, topk), weights = make3(CAIRN_F32, p.rows, heads, topk);
    both candidates = make3(CAIRN_I32, p.rows, KVS, p.max_pages), counts = make2(CAIRN_I32, p.rows, KVS);
    both *all[] = {&q, &out, &lse, &scores, &own, &selected, &kv_weights, &weights, &candidates, &counts};
    cairn_score_pages_args s;
    cairn_select_pages_args k;
    cairn_attend_pages_args a;
    bool fine;
    int r, h, g, i, d;
    for (i = 1; i < 10; i++) poison(all[i]);
    fill(&q);
    memset(&s, 0, sizeof s), memset(&k, 0, sizeof k), memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.window = window, a.pages = p.args, a.selected = selected.t, a.q = q.t, a.out = out.t, a.lse = lse.t;
    a.landmarks = 1, a.part = CAIRN_PART_WINDOW;
    s.struct_size = sizeof s, s.source = CAIRN_SOURCE_LANDMARK, s.strategy = strategy, s.window = window, s.pages = p.args;
    s.q = q.t, s.scores = scores.t, s.head_scores = own.t, s.lse = strategy == CAIRN_STRATEGY_SOFTMAX_HEAD ? lse.t : NULL;
    k.struct_size = sizeof k, k.topk = topk, k.scores = scores.t, k.selected = selected.t, k.chosen = kv_weights.t;
    k.head_scores = own.t, k.head_chosen = weights.t, k.candidates = candidates.t, k.counts = counts.t;
    fine = done(cairn_attend_pages(rt, &a)) && done(cairn_score_pages(rt, &s)) && done(cairn_select_pages(rt, &k));
    a.part = CAIRN_PART_FUSED, a.form = CAIRN_FORM_TWO_LEVEL;
    a.weights = strategy == CAIRN_STRATEGY_GROUP ? kv_weights.t : weights.t;
    fine = fine && done(cairn_attend_pages(rt, &a));
    for (i = 1; i < 10; i++) download(all[i]);
    for (r = 0; r < p.rows; r++)
        for (h = 0; h < KVS; h++) {
            const int position = ((int32_t *)p.at.host)[r], unit = r * KVS + h;
            const float *row = (const float *)scores.host + unit * p.max_pages;
            const int32_t *chosen = (const int32_t *)selected.host + unit * topk, *listed = (const int32_t *)candidates.host + unit * p.max_pages;
            const ref_cache ref = ref_of(&p, r);
            landmark_want w;
            landmark_scores(&ref, h, (const float *)q.host + unit * group * dim, group, position, window, strategy, &w);
            fine = fine && ((int32_t *)counts.host)[unit] == w.candidates;
            for (i = 0; i < p.max_pages && fine; i++) {
                fine = listed[i] == (i < w.candidates ? i : -1) && (i < w.candidates ? near((double)row[i], w.kv[i], 1e-4) : row[i] == -INFINITY);
                for (g = 0; g < group && fine; g++) {
                    const double got = (double)((float *)own.host)[(unit * group + g) * p.max_pages + i];
                    fine = i < w.candidates ? near(got, w.own[g][i], 1e-4) : got == -INFINITY;
                }
                if (!fine) printf("# row %d page %d of %d: %g, want %g\n", r, i, w.candidates, (double)row[i], w.kv[i]);
            }
            for (i = 0; i < topk && fine; i++) {
                int better = 0, want = w.candidates < topk ? w.candidates : topk;
                for (d = 0; chosen[i] >= 0 && d < w.candidates; d++)
                    better += row[d] > row[chosen[i]] || (row[d] == row[chosen[i]] && d < chosen[i]);
                fine = (chosen[i] >= 0) == (i < want) && better < topk && (i == 0 || chosen[i] < 0 || chosen[i] > chosen[i - 1]);
                for (g = 0; g < group && fine; g++) {
                    const float got = ((float *)weights.host)[(unit * group + g) * topk + i];
                    fine = chosen[i] < 0 ? got == -INFINITY : got == ((float *)own.host)[(unit * group + g) * p.max_pages + chosen[i]];
                }
                if (!fine) printf("# row %d: choice %d is %d\n", r, i, chosen[i]);
            }
            for (g = 0; g < group && fine; g++) {
                double want[256];
                landmark_attend(&ref, h, (const float *)q.host + (unit * group + g) * dim, position, &w, g, chosen, topk, strategy == CAIRN_STRATEGY_GROUP, want);
                for (d = 0; d < dim && fine; d++) {
                    const double got = (double)((float *)out.host)[(unit * group + g) * dim + d];
                    if (!(fine = near(got, want[d], 2e-3))) printf("# row %d head %d: %g, want %g\n", r, g, got, want[d]);
                }
            }
        }
    tap_ok(fine, "landmarks on %s: strategy %d, page %d, dim %d, group %d, window %d, topk %d", where, strategy, size, dim, group, window, topk);
    for (i = 0; i < 10; i++) drop(all[i]);
    drop_paged(&p);
}

/* What score_pages and select_pages refuse of all this. */
static void test_landmark_refusals(void) {
    paged p = make_paged(16, 32, 2, 2, 40);
    both q = make3(CAIRN_F32, p.rows, 4, 32), scores = make3(CAIRN_F32, p.rows, 2, p.max_pages), own = make3(CAIRN_F32, p.rows, 4, p.max_pages);
    both bounds, lse = make2(CAIRN_F32, p.rows, 4), ids = make1(CAIRN_I32, 1), selected = make3(CAIRN_I32, p.rows, 2, 3);
    int64_t shape[4];
    cairn_score_pages_args s;
    cairn_select_pages_args k;
    cairn_page_bounds_args b;
    bool fine;
    shape[0] = p.pages, shape[1] = 2, shape[2] = 2, shape[3] = 32;
    bounds = make(CAIRN_F16, 4, shape);
    memset(&s, 0, sizeof s), memset(&k, 0, sizeof k), memset(&b, 0, sizeof b);
    s.struct_size = sizeof s, s.source = CAIRN_SOURCE_LANDMARK, s.pages = p.args, s.q = q.t, s.scores = scores.t, s.bounds = bounds.t;
#define SAYS(call, text) (cairn_##call == CAIRN_INVALID_ARGUMENT && strstr(cairn_last_error(rt), text))
    fine = SAYS(score_pages(rt, &s), "bounds are given");
    s.bounds = NULL, s.source = CAIRN_SOURCE_MEAN;
    fine = fine && SAYS(score_pages(rt, &s), "bounds is NULL");
    s.bounds = bounds.t, s.strategy = CAIRN_STRATEGY_SOFTMAX_HEAD;
    fine = fine && SAYS(score_pages(rt, &s), "head_scores is NULL");
    s.strategy = CAIRN_STRATEGY_HEAD, s.lse = lse.t;
    fine = fine && SAYS(score_pages(rt, &s), "lse is given");
    k.struct_size = sizeof k, k.topk = 3, k.scores = scores.t, k.selected = selected.t, k.head_scores = own.t;
    fine = fine && SAYS(select_pages(rt, &k), "head_chosen");
    b.struct_size = sizeof b, b.source = CAIRN_SOURCE_LANDMARK, b.cache = p.cache.t, b.ids = ids.t, b.bounds = bounds.t;
    fine = fine && SAYS(page_bounds(rt, &b), "source");
#undef SAYS
    tap_ok(fine, "landmarks on %s: what does not belong together is refused by name", where);
    if (!fine) printf("# %s\n", cairn_last_error(rt));
    drop(&q), drop(&scores), drop(&own), drop(&bounds), drop(&lse), drop(&ids), drop(&selected), drop_paged(&p);
}

/* Heads that KV heads do not share evenly; more rows than a GPU launches blocks for. */
static void test_shapes(void) {
    enum { MANY = 65536, HEADS = 3 };
    paged p = make_paged(16, 32, 2, 2, 40);
    both q = make3(CAIRN_F32, p.rows, HEADS, 32), out = make3(CAIRN_F32, p.rows, HEADS, 32);
    cairn_attend_args a;
    cairn_status status;
    memset(&a, 0, sizeof a);
    poison(&out);
    a.struct_size = sizeof a, a.pages = p.args, a.q = q.t, a.out = out.t;
    status = cairn_attend(rt, &a);
    download(&out);
    tap_ok(status == CAIRN_INVALID_ARGUMENT && ((uint8_t *)out.host)[0] == 0xff &&
           strstr(cairn_last_error(rt), "q has 3 heads, no multiple of the 2 KV heads"), "attend on %s: %s", where,
           cairn_last_error(rt));
    drop(&q), drop(&out), drop_paged(&p);
    {
        int64_t shape[5] = {1, 2, 1, 16, 16}, bounds_shape[4] = {1, 1, 2, 16};
        both pages = make(CAIRN_F16, 5, shape), bounds = make(CAIRN_F16, 4, bounds_shape);
        both table = make2(CAIRN_I32, 1, 1), of = make1(CAIRN_I32, MANY), at = make1(CAIRN_I32, MANY);
        both many = make3(CAIRN_F32, MANY, 1, 16), scores = make3(CAIRN_F32, MANY, 1, 1);
        cairn_score_pages_args s;
        memset(&s, 0, sizeof s);
        s.struct_size = sizeof s, s.pages.cache = pages.t, s.pages.page_table = table.t;
        s.pages.sequences = of.t, s.pages.positions = at.t;
        s.bounds = bounds.t, s.q = many.t, s.scores = scores.t;
        upload(&pages), upload(&bounds), upload(&table), upload(&of), upload(&at), upload(&many);
        status = cairn_score_pages(rt, &s);
        if (rt->device.cuda)
            tap_ok(status == CAIRN_UNSUPPORTED && strstr(cairn_last_error(rt), "score_pages: 1 x 65536 blocks in one "
                   "launch, and 65535 are the most each way; give fewer rows a call"), "%s", cairn_last_error(rt));
        else tap_ok(!status, "score_pages on %s: 65536 rows", where);
        drop(&pages), drop(&bounds), drop(&table), drop(&of), drop(&at), drop(&many), drop(&scores);
    }
}

static void test_append(void) {
    paged p = make_paged(16, 64, 2, 1, 60);
    both k = make3(CAIRN_F32, p.rows, 2, 64), v = make3(CAIRN_F32, p.rows, 2, 64);
    uint16_t *before = (uint16_t *)malloc(p.cache.bytes), *now;
    cairn_kv_append_args a;
    int r, h, d;
    bool fine = true;
    size_t changed = 0, i;
    for (r = 0; r < p.rows; r++) ((int32_t *)p.at.host)[r] = 7 * r + 1, ((int32_t *)p.of.host)[r] = 0;
    upload(&p.at), upload(&p.of), fill(&k), fill(&v);
    memcpy(before, p.cache.host, p.cache.bytes);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.rope_base = 10000, a.pages = p.args, a.k = k.t, a.v = v.t;
    fine = done(cairn_kv_append(rt, &a));
    download(&p.cache);
    now = (uint16_t *)p.cache.host;
    for (r = 0; r < p.rows; r++)
        for (h = 0; h < 2; h++)
            for (d = 0; d < 64 && fine; d++) {
                int t = 7 * r + 1;
                const float *x = (const float *)k.host + (r * 2 + h) * 64;
                double angle = t * pow(10000.0, -(double)(d / 2 * 2) / 64), rotated;
                ref_cache c = ref_of(&p, r);
                rotated = d % 2 ? (double)x[d - 1] * sin(angle) + (double)x[d] * cos(angle) : (double)x[d] * cos(angle) - (double)x[d + 1] * sin(angle);
                fine = near(ref_kv(&c, 0, h, t, d), rotated, 6e-4) && ref_kv(&c, 1, h, t, d) == ref_f16(ref_to_f16((double)((float *)v.host)[(r * 2 + h) * 64 + d]));
            }
    for (i = 0; i < p.cache.bytes / 2; i++) changed += now[i] != before[i];
    tap_ok(fine && changed <= (size_t)p.rows * 2 * 2 * 64, "kv_append on %s writes its slots and nothing else", where);
    ((int32_t *)p.at.host)[0] = 16 * p.max_pages;
    upload(&p.at);
    {
        cairn_status status = cairn_kv_append(rt, &a);
        if (!status) status = cairn_sync(rt);
        tap_ok(status == CAIRN_BAD_DATA, "kv_append on %s: a position out of range is reported", where);
    }
    free(before), drop(&k), drop(&v), drop_paged(&p);
}

/* What a sampler may draw from, in double: probabilities after all cuts. */
static void ref_distribution(const float *logits, int vocab, const cairn_sample_args *a, double *out) {
    double top = -(double)INFINITY, total = 0, cut = 0;
    int i, j, k_first = a->order == 0, pass;
    for (i = 0; i < vocab; i++) top = (double)logits[i] > top ? (double)logits[i] : top;
    for (i = 0; i < vocab; i++) out[i] = exp(((double)logits[i] - top) / (double)a->temperature);
    for (pass = 0; pass < 2; pass++) {
        if ((pass == 0) == k_first) {
            for (i = 0; i < vocab && a->top_k > 0; i++) {
                int better = 0;
                for (j = 0; j < vocab; j++) better += logits[j] > logits[i];
                if (better >= a->top_k) out[i] = pass ? out[i] * -1 : 0;
            }
            for (i = 0; i < vocab; i++) out[i] = out[i] < 0 ? 0 : out[i];
        } else if (a->top_p > 0 && a->top_p < 1) {
            double *keep = (double *)calloc((size_t)vocab, sizeof *keep);
            total = 0;
            for (i = 0; i < vocab; i++) total += out[i];
            for (i = 0; i < vocab; i++) {
                double better = 0;
                for (j = 0; j < vocab; j++) better += out[j] > out[i] ? out[j] : 0;
                keep[i] = better < (double)a->top_p * total ? out[i] : 0;
            }
            memcpy(out, keep, (size_t)vocab * sizeof *out);
            free(keep);
        }
    }
    for (i = 0; i < vocab; i++) if (out[i] < (double)a->min_p) out[i] = 0;
    for (i = 0, cut = 0; i < vocab; i++) cut += out[i];
    for (i = 0; i < vocab; i++) out[i] /= cut;
}

/* Chi-square of `draws` that were `seen` [n] and expected in the shares `want` [n]. What is expected
 * fewer than 5 times, where it would not be distributed like chi-square, counts as the likeliest. */
static double chi_square(const double *seen, const double *want, int n, int draws, int *cells) {
    int likeliest = 0, i;
    double sum = 0, rest = 0, wanted = 0;
    for (i = 1; i < n; i++) if (want[i] > want[likeliest]) likeliest = i;
    for (i = 0, *cells = 1; i < n; i++) {
        double expected = want[i] * draws;
        if (i == likeliest || expected < 5) rest += seen[i], wanted += expected;
        else sum += (seen[i] - expected) * (seen[i] - expected) / expected, ++*cells;
    }
    return sum + (rest - wanted) * (rest - wanted) / wanted;
}

/* Many rows of the same logits at different positions: the frequencies by chi-square. */
static void test_sample(float temperature, int top_k, float top_p, float min_p, int order) {
    int rows = is_emulated(rt->config.backend) ? 60 : 4000, /* fewer where blocks are emulated */
        vocab = between(5, 40), r, i, cells;
    both logits = make2(CAIRN_F32, rows, vocab), at = make1(CAIRN_I32, rows), tokens = make1(CAIRN_I32, rows), seeds = make1(CAIRN_I64, rows);
    double want[64], seen[64] = {0}, chi;
    cairn_sample_args a;
    bool fine;
    for (r = 0; r < rows; r++)
        for (i = 0; i < vocab; i++) ((float *)logits.host)[r * vocab + i] = r ? ((float *)logits.host)[i] : uniform() * 4;
    for (r = 0; r < rows; r++) ((int32_t *)at.host)[r] = r, ((int64_t *)seeds.host)[r] = (int64_t)seed & 0xffffff;
    upload(&logits), upload(&at), upload(&seeds), poison(&tokens);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.temperature = temperature, a.top_k = top_k, a.top_p = top_p, a.min_p = min_p, a.order = order;
    a.logits = logits.t, a.positions = at.t, a.tokens = tokens.t, a.seeds = seeds.t;
    fine = done(cairn_sample(rt, &a));
    download(&tokens);
    ref_distribution((float *)logits.host, vocab, &a, want);
    for (r = 0; r < rows && fine; r++) {
        int32_t t = ((int32_t *)tokens.host)[r];
        fine = t >= 0 && t < vocab && want[t] > 0;
        if (fine) seen[t]++;
    }
    chi = chi_square(seen, want, vocab, rows, &cells);
    tap_ok(fine && chi < cells + 5 * sqrt(2.0 * cells) + 12, "sample on %s: temperature %g, top_k %d, top_p %g, min_p %g, order %d: chi-square %.1f of %d cells",
           where, (double)temperature, top_k, (double)top_p, (double)min_p, order, chi, cells);
    drop(&logits), drop(&at), drop(&tokens), drop(&seeds);
}

/* A large vocabulary, with a history; greedy is exact, and both backends draw what the CPU draws. */
static void test_sample_large(void) {
    int rows = 4, vocab = between(30000, 70000), r, i;
    both logits = make2(CAIRN_F32, rows, vocab), tokens = make1(CAIRN_I32, rows), history = make2(CAIRN_I32, rows, 3);
    cairn_sample_args a;
    bool fine;
    for (i = 0; i < rows * vocab; i++) ((float *)logits.host)[i] = uniform() * 6;
    for (r = 0; r < rows; r++) { /* two equal best ones, and one better that the penalty brings down */
        float *row = (float *)logits.host + r * vocab;
        row[1000 + r] = row[20000 + r] = 7.0f, row[500] = 7.5f;
        ((int32_t *)history.host)[r * 3] = 500, ((int32_t *)history.host)[r * 3 + 1] = ((int32_t *)history.host)[r * 3 + 2] = -1;
    }
    upload(&logits), upload(&history), poison(&tokens);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.logits = logits.t, a.tokens = tokens.t;
    fine = done(cairn_sample(rt, &a));
    download(&tokens);
    for (r = 0; r < rows && fine; r++) fine = ((int32_t *)tokens.host)[r] == 500;
    tap_ok(fine, "sample on %s: greedy takes the best of %d", where, vocab);
    a.history = history.t, a.repetition_penalty = 1.2f;
    poison(&tokens);
    fine = done(cairn_sample(rt, &a));
    download(&tokens);
    for (r = 0; r < rows && fine; r++) fine = ((int32_t *)tokens.host)[r] == 1000 + r;
    tap_ok(fine, "sample on %s: the penalty counts, and the lower of two equal ids wins", where);
    a.temperature = 0.01f, a.top_k = 1, a.top_p = 0.5f;
    poison(&tokens);
    fine = done(cairn_sample(rt, &a));
    download(&tokens);
    for (r = 0; r < rows && fine; r++) fine = ((int32_t *)tokens.host)[r] == 1000 + r || ((int32_t *)tokens.host)[r] == 20000 + r;
    tap_ok(fine, "sample on %s: top_k 1 keeps ties", where);
    a.top_p = 1.5f;
    tap_ok(cairn_sample(rt, &a) == CAIRN_INVALID_ARGUMENT && strstr(cairn_last_error(rt), "top_p"), "sample on %s: top_p = 1.5 is named", where);
    drop(&logits), drop(&tokens), drop(&history);
}

static void test_verify(void) {
    int sequences = 5, drafts = 4, vocab = 777, s, j, i;
    both logits = make3(CAIRN_F32, sequences, drafts + 1, vocab), d = make2(CAIRN_I32, sequences, drafts), accepted = make1(CAIRN_I32, sequences), bonus = make1(CAIRN_I32, sequences);
    cairn_verify_greedy_args a;
    bool fine;
    fill(&logits);
    for (s = 0; s < sequences; s++)
        for (j = 0; j < drafts; j++) { /* sequence s has s right drafts */
            const float *row = (const float *)logits.host + (s * (drafts + 1) + j) * vocab;
            int best = 0;
            for (i = 1; i < vocab; i++) if (row[i] > row[best]) best = i;
            ((int32_t *)d.host)[s * drafts + j] = j == s ? (best + 1) % vocab : best;
        }
    upload(&d), poison(&accepted), poison(&bonus);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.logits = logits.t, a.drafts = d.t, a.accepted = accepted.t, a.bonus = bonus.t;
    fine = done(cairn_verify_greedy(rt, &a));
    download(&accepted), download(&bonus);
    for (s = 0; s < sequences && fine; s++) {
        const float *row = (const float *)logits.host + (s * (drafts + 1) + s) * vocab;
        int best = 0;
        for (i = 1; i < vocab; i++) if (row[i] > row[best]) best = i;
        fine = ((int32_t *)accepted.host)[s] == s && ((int32_t *)bonus.host)[s] == best;
    }
    tap_ok(fine, "verify_greedy on %s: 0 to %d right drafts", where, drafts);
    drop(&logits), drop(&d), drop(&accepted), drop(&bonus);
}

static void test_all(void) {
    static const int blocks[] = {CAIRN_BLOCK_Q4_0, CAIRN_BLOCK_Q4_1, CAIRN_BLOCK_Q8_0,
                                 CAIRN_BLOCK_Q5_0, CAIRN_BLOCK_Q5_1, CAIRN_BLOCK_Q4_K,
                                 CAIRN_BLOCK_Q5_K, CAIRN_BLOCK_Q6_K};
    int i;
    for (i = 0; i < 3; i++) test_rmsnorm(), test_swiglu(), test_rope(i & 1);
    for (i = 0; i < 8; i++) test_embed(blocks[i]);
    for (i = 0; i < 8; i++) test_linear(i & 3 ? blocks[(i & 3) - 1] : CAIRN_BLOCK_NONE);
    for (i = 3; i < 8; i++) test_linear(blocks[i]);
    test_linear_of(CAIRN_BLOCK_Q4_0, 16 * between(1, 6), between(1, 20), 512); /* read in place */
    test_linear_of(CAIRN_BLOCK_Q4_1, 16 * between(1, 6), between(1, 20), 384);
    test_sample(1.0f, 0, 1.0f, 0.0f, 0);
    test_sample(0.7f, 5, 0.8f, 0.0f, 0);
    test_sample(0.7f, 5, 0.8f, 0.0f, 1);
    test_sample(1.5f, 0, 0.9f, 0.1f, 0);
    test_sample_large(), test_verify();
    test_append();
    test_attend(64, 64, 3, 3, 700);
    test_attend(16, 128, 2, 4, 333);
    test_attend(32, 32, 1, 1, 1);
    test_attend(256, 256, 1, 2, 600);
    test_attend(64, 64, 1, 20, 130);
    for (i = 0; i < 6; i++) test_landmarks(i & 1 ? 16 : 32, i & 2 ? 64 : 96, 1 + i % 3, i & 1 ? 300 : 500, i % 3, i & 4 ? 0 : between(1, 150));
    test_landmark_refusals(), test_shapes();
    for (i = 0; i < 8; i++) test_sparse(i & 1 ? 16 : 64, i & 2 ? 128 : 64, 2, i & 4 ? 1 : 3, i & 1 ? 400 : 900, i & 1, i >> 1 & 1, i & 4 ? 0 : between(1, 200));
}

static void test_backend(cairn_runtime *opened, const char *name) {
    rt = opened, where = name;
    test_all();
}

/* A host program whose cairn_open failed goes on with a runtime that is NULL. */
static void test_no_runtime(void) {
#define REFUSED(op) (cairn_##op(NULL, NULL) == CAIRN_INVALID_ARGUMENT)
    tap_ok(REFUSED(topk) && REFUSED(topk_transform) && REFUSED(topk_rows) &&
               REFUSED(prepare_steps) && REFUSED(prefix_chunks) && REFUSED(attend) &&
               REFUSED(attend_pages) && REFUSED(kv_append) && REFUSED(kv_collate) &&
               REFUSED(copy_pages) && REFUSED(page_bounds) && REFUSED(score_pages) &&
               REFUSED(select_pages) && REFUSED(short_conv) && REFUSED(short_conv_update) &&
               REFUSED(short_conv_restore) && REFUSED(short_conv_metadata) && REFUSED(embed) &&
               REFUSED(rmsnorm) && REFUSED(rope) && REFUSED(swiglu) && REFUSED(linear) &&
               REFUSED(sample) && REFUSED(verify_greedy) && REFUSED(quantize_fp8) &&
               REFUSED(index_store) && REFUSED(index_gather) && REFUSED(index_logits) &&
               REFUSED(index_logits_paged) && REFUSED(index_topk) && REFUSED(index_qk) &&
               REFUSED(index_transform) && REFUSED(sample_probs) && REFUSED(verify_chain),
           "every op refuses a NULL runtime");
#undef REFUSED
}

int main(void) {
    seed = random_seed();
    test_no_runtime();
    run_on_backends(NULL, "ops", test_backend);
    return tap_done();
}

/* Attention's ops against loops in double precision, which share nothing with them: caches and queries
 * of every type, page tables of any shape, masks, lists of tokens, pages with weights, states merged.
 * Shuffled tables, NaN in every slot that must not be read, lengths around a page.
 * emulated: asan race */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "ref/f16_ref.h"
#include "tap.h"
#include "backends.h"

enum { MOST_DIM = 576, MOST_TOPK = 16 };

static uint64_t seed;
static cairn_runtime *rt;
static const char *where;
static bool on_gpu;

static uint32_t draw(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}
static int between(int low, int high) { return low + (int)(draw() % (uint32_t)(high - low + 1)); }
static float uniform(void) { return (float)(draw() & 0xffffff) / 8388608.0f - 1.0f; }

/* ---- tensors with their host copies ---- */

typedef struct both { cairn_tensor *t; char *host; size_t bytes; } both;

typedef struct extents { int64_t of[6]; } extents;

static both make(cairn_type type, int rank, extents shape) {
    both b;
    b.bytes = cairn_type_bytes(type);
    for (int i = 0; i < rank; i++) b.bytes *= (size_t)shape.of[i];
    b.host = (char *)calloc(b.bytes + 1, 1);
    if (cairn_tensor_new(rt, type, rank, shape.of, &b.t)) printf("# %s\n", cairn_last_error(rt));
    return b;
}
#define MAKE(type, ...)                                                                           \
    make(type, (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), (extents){{__VA_ARGS__}})
static void upload(const both *b) { cairn_tensor_write(rt, b->t, b->host, b->bytes); }
static void download(const both *b) { cairn_tensor_read(rt, b->t, b->host, b->bytes); }
static void drop(both *b) { if (b->t) cairn_tensor_free(rt, b->t); free(b->host); }
static void poison(const both *b) { memset(b->host, 0xff, b->bytes); upload(b); }
static int32_t *ints(const both *b) { return (int32_t *)(void *)b->host; }
static float *floats(const both *b) { return (float *)(void *)b->host; }

static bool done(cairn_status status) {
    if (status) printf("# %s: %s\n", cairn_status_name(status), cairn_last_error(rt));
    return !status;
}
static bool near(double got, double want, double tolerance) {
    return got == want || fabs(got - want) <= tolerance * (1 + fabs(want)); /* false for NaN */
}

/* ---- values of every type ---- */

QUICK double decode(cairn_type type, const void *from, int64_t i) {
    if (type == CAIRN_F32) return (double)((const float *)from)[i];
    if (type == CAIRN_F16) return ref_f16(((const uint16_t *)from)[i]);
    if (type == CAIRN_BF16) {
        uint32_t bits = (uint32_t)((const uint16_t *)from)[i] << 16;
        float v;
        memcpy(&v, &bits, 4);
        return (double)v;
    } else {
        const int v = ((const uint8_t *)from)[i], e = v >> 3 & 15, m = v & 7;
        const double x = (v & 127) == 127 ? NAN : (e ? (8 + m) * (double)(1 << e) / 2 : m) / 512;
        return v & 128 ? -x : x;
    }
}
/* A value of 1/16 to 2 in magnitude, times 2^shift. */
static void encode(cairn_type type, void *to, int64_t i, int shift) {
    const uint32_t v = draw();
    if (type == CAIRN_F32) ((float *)to)[i] = ldexpf(uniform() * 2, shift);
    else if (type == CAIRN_F16)
        ((uint16_t *)to)[i] = (uint16_t)((v & 0x8000u) | ((uint32_t)(11 + shift) + (v >> 16) % 5) << 10 | (v & 0x3ff));
    else if (type == CAIRN_BF16)
        ((uint16_t *)to)[i] = (uint16_t)((v & 0x8000u) | ((uint32_t)(123 + shift) + (v >> 16) % 5) << 7 | (v & 0x7f));
    else ((uint8_t *)to)[i] = (uint8_t)((v & 0x80u) | (5 + (v >> 16) % 5) << 3 | (v >> 8 & 7));
}

/* ---- a world: sequences in a paged cache ---- */

typedef struct world {
    cairn_type type, query;
    int size, dim, kv_heads, group, heads, rows, sequences, max_pages, pages;
    both cache, scales, table, of, at, q, out, lse, indptr, indices, last;
    int lengths[8]; /* tokens that each sequence holds */
    double scale, cap;
} world;

QUICK double kv(const world *w, int side, int head, int64_t slot_id, int d) {
    const int64_t page = slot_id / w->size, slot = slot_id % w->size;
    const int64_t row = ((page * 2 + side) * w->kv_heads + head) * w->size + slot;
    const double v = decode(w->type, w->cache.host, row * w->dim + d);
    return w->type == CAIRN_E4M3 ? v * (double)floats(&w->scales)[row] : v;
}
QUICK int64_t slot_of(const world *w, int sequence, int t) {
    return (int64_t)ints(&w->table)[sequence * w->max_pages + t / w->size] * w->size + t % w->size;
}
QUICK double query(const world *w, int r, int h, int d) {
    return decode(w->query, w->q.host, ((int64_t)r * w->heads + h) * w->dim + d);
}

/* Fills what the sequences hold; the rest stays NaN. */
static void fill_tokens(world *w) {
    for (int s = 0; s < w->sequences; s++)
        for (int t = 0; t < w->lengths[s]; t++)
            for (int h = 0; h < 2 * w->kv_heads; h++) {
                const int64_t id = slot_of(w, s, t);
                const int64_t row = ((id / w->size) * 2 * w->kv_heads + h) * w->size + id % w->size;
                for (int d = 0; d < w->dim; d++) encode(w->type, w->cache.host, row * w->dim + d, 0);
                if (w->type == CAIRN_E4M3)
                    floats(&w->scales)[row] = ldexpf(1.5f + uniform(), -3 - between(0, 2));
            }
}

/* Row r of sequence r % sequences, the first rows at its end. */
static world make_world(cairn_type type, cairn_type query_type, int size, int dim, int kv_heads,
                        int group, int rows, int sequences, const int *lengths) {
    world w;
    int most = 0, next = 0;
    memset(&w, 0, sizeof w);
    w.type = type, w.query = query_type, w.size = size, w.dim = dim, w.kv_heads = kv_heads;
    w.group = group, w.heads = kv_heads * group, w.rows = rows, w.sequences = sequences;
    w.scale = 1 / sqrt((double)dim);
    for (int s = 0; s < sequences; s++) {
        w.lengths[s] = lengths[s];
        if (lengths[s] > most) most = lengths[s];
    }
    w.max_pages = (most + size - 1) / size + 1;
    w.pages = w.sequences * w.max_pages + 3;
    w.cache = MAKE(type, w.pages, 2, kv_heads, size, dim);
    if (type == CAIRN_E4M3) w.scales = MAKE(CAIRN_F32, w.pages, 2, kv_heads, size);
    w.table = MAKE(CAIRN_I32, sequences, w.max_pages);
    w.of = MAKE(CAIRN_I32, rows), w.at = MAKE(CAIRN_I32, rows);
    w.q = MAKE(query_type, rows, w.heads, dim);
    w.out = MAKE(CAIRN_F32, rows, w.heads, dim), w.lse = MAKE(CAIRN_F32, rows, w.heads);
    for (int i = 0; i < sequences * w.max_pages; i++) {
        const int j = between(0, i);
        ints(&w.table)[i] = ints(&w.table)[j];
        ints(&w.table)[j] = 2 + next++;
    }
    for (int s = 0; s < sequences; s++) /* pages that nobody needs do not exist */
        for (int c = (lengths[s] + size - 1) / size; c < w.max_pages; c++)
            ints(&w.table)[s * w.max_pages + c] = c % 2 ? -1 : w.pages + 7;
    for (int r = 0; r < rows; r++) {
        const int s = r % sequences, last = lengths[s] - 1;
        ints(&w.of)[r] = s;
        ints(&w.at)[r] = r < sequences || last < 1 ? (last < 0 ? 0 : last) : between(0, last);
    }
    memset(w.cache.host, 0xff, w.cache.bytes);
    if (w.scales.t) memset(w.scales.host, 0xff, w.scales.bytes);
    fill_tokens(&w);
    for (size_t i = 0; i < (size_t)rows * (size_t)w.heads * (size_t)dim; i++)
        encode(query_type, w.q.host, (int64_t)i, 0);
    return w;
}
static void send_world(const world *w) {
    upload(&w->cache), upload(&w->table), upload(&w->of), upload(&w->at), upload(&w->q);
    if (w->scales.t) upload(&w->scales);
    if (w->indptr.t) upload(&w->indptr), upload(&w->indices), upload(&w->last);
    poison(&w->out), poison(&w->lse);
}
static void drop_world(world *w) {
    drop(&w->cache), drop(&w->scales), drop(&w->table), drop(&w->of), drop(&w->at), drop(&w->q);
    drop(&w->out), drop(&w->lse), drop(&w->indptr), drop(&w->indices), drop(&w->last);
}
static cairn_pages pages_of(const world *w) {
    cairn_pages p;
    p.cache = w->cache.t, p.page_table = w->table.t, p.sequences = w->of.t, p.positions = w->at.t;
    return p;
}
/* The same table as rows of any length. */
static void make_csr(world *w) {
    int count = 0;
    w->indptr = MAKE(CAIRN_I32, w->sequences + 1), w->last = MAKE(CAIRN_I32, w->sequences);
    w->indices = MAKE(CAIRN_I32, w->sequences * w->max_pages);
    poison(&w->indices);
    for (int s = 0; s < w->sequences; s++) {
        const int n = (w->lengths[s] + w->size - 1) / w->size;
        for (int c = 0; c < n; c++) ints(&w->indices)[count++] = ints(&w->table)[s * w->max_pages + c];
        ints(&w->indptr)[s + 1] = count;
        ints(&w->last)[s] = w->lengths[s] - (n - 1) * w->size;
    }
}

/* ---- the oracle ---- */

typedef struct state { double top, total, out[MOST_DIM]; } state;

static void clear(state *s) { memset(s, 0, sizeof *s), s->top = -(double)INFINITY; }
QUICK void add(state *s, double score, const double *value, int dim) {
    const double top = score > s->top ? score : s->top;
    const double old = s->total > 0 ? exp(s->top - top) : 0, now = exp(score - top);
    if (!(score > -(double)INFINITY)) return;
    for (int d = 0; d < dim; d++) s->out[d] = s->out[d] * old + now * value[d];
    s->total = s->total * old + now, s->top = top;
}
static double lse_of(const state *s) {
    return s->total > 0 ? s->top + log(s->total) : -(double)INFINITY;
}
/* Adds a token of the cache. */
QUICK void add_token(const world *w, state *s, int r, int h, int64_t id) {
    double score = 0, value[MOST_DIM];
    for (int d = 0; d < w->dim; d++) {
        score += query(w, r, h, d) * kv(w, 0, h / w->group, id, d);
        value[d] = kv(w, 1, h / w->group, id, d);
    }
    score *= w->scale;
    if (w->cap > 0) score = w->cap * tanh(score / w->cap);
    add(s, score, value, w->dim);
}
static bool agrees(const world *w, int r, int h, const state *s, double tolerance) {
    const float *out = floats(&w->out) + ((int64_t)r * w->heads + h) * w->dim;
    const double lse = (double)floats(&w->lse)[r * w->heads + h];
    bool fine = near(lse, lse_of(s), tolerance);
    for (int d = 0; d < w->dim && fine; d++)
        fine = near((double)out[d], s->total > 0 ? s->out[d] / s->total : 0, tolerance);
    if (!fine) printf("# row %d head %d: lse %g, want %g; out %g, want %g\n", r, h, lse, lse_of(s),
                      (double)out[0], s->total > 0 ? s->out[0] / s->total : 0);
    return fine;
}
/* On a GPU keys, values, queries and weights are rounded to f16. */
static double tolerance_of(const world *w) { (void)w; return on_gpu ? 3e-3 : 2e-5; }

/* ---- attend: types, caps, tables ---- */

static bool sees(const world *w, int position, int t, int window, int sinks, bool sparse) {
    int from = sparse ? position / w->size * w->size : 0;
    if (window > 0) from = (position - window + 1 > 0 ? position - window + 1 : 0) / w->size * w->size;
    return t <= position && (t < sinks || t >= from);
}
static bool check_dense(const world *w, int window, int sinks) {
    bool fine = true;
    download(&w->out), download(&w->lse);
    for (int r = 0; r < w->rows; r++)
        for (int h = 0; h < w->heads && fine; h++) {
            state s;
            clear(&s);
            for (int t = 0; t <= ints(&w->at)[r]; t++)
                if (sees(w, ints(&w->at)[r], t, window, sinks, false))
                    add_token(w, &s, r, h, slot_of(w, ints(&w->of)[r], t));
            fine = agrees(w, r, h, &s, tolerance_of(w));
        }
    return fine;
}
static cairn_attend_args attend_of(const world *w) {
    cairn_attend_args a;
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.pages = pages_of(w), a.q = w->q.t, a.out = w->out.t;
    a.lse = w->lse.t, a.more.scales = w->scales.t, a.more.softcap = (float)w->cap;
    if (w->indptr.t) {
        a.pages.page_table = NULL;
        a.more.page_indptr = w->indptr.t, a.more.page_indices = w->indices.t;
        a.more.last_page_len = w->last.t;
    }
    return a;
}
static void test_types(cairn_type type, cairn_type query_type, int size, int dim, int kv_heads,
                       int group, double cap, bool csr) {
    const int longest = between(2 * size, 5 * size);
    const int lengths[] = {longest, size, size + 1, size > 1 ? size - 1 : 1, 1};
    world w = make_world(type, query_type, size, dim, kv_heads, group, 7, 5, lengths);
    const int window = between(1, longest), sinks = between(0, 2 * size);
    cairn_attend_args a;
    char *dense = (char *)malloc(w.out.bytes);
    bool fine;
    w.cap = cap;
    send_world(&w);
    a = attend_of(&w);
    fine = done(cairn_attend(rt, &a)) && check_dense(&w, 0, 0);
    memcpy(dense, w.out.host, w.out.bytes);
    tap_ok(fine, "attend on %s: cache %s, q %s, page %d, dim %d, %d x %d heads, softcap %g", where,
           cairn_type_name(type), cairn_type_name(query_type), size, dim, kv_heads, group, cap);
    if (csr) {
        make_csr(&w);
        send_world(&w);
        a = attend_of(&w);
        fine = done(cairn_attend(rt, &a));
        download(&w.out);
        tap_ok(fine && !memcmp(dense, w.out.host, w.out.bytes),
               "attend on %s: page tables as rows of any length give the same bits", where);
    }
    poison(&w.out), poison(&w.lse);
    a.window = window, a.sinks = sinks;
    tap_ok(done(cairn_attend(rt, &a)) && check_dense(&w, window, sinks),
           "attend on %s: %s, window %d, sinks %d", where, cairn_type_name(type), window, sinks);
    poison(&w.out), poison(&w.lse);
    a.prompt = 1;
    tap_ok(done(cairn_attend(rt, &a)) && check_dense(&w, window, sinks),
           "attend on %s: the same as rows of prompts", where);
    free(dense), drop_world(&w);
}

/* Scores that try a softmax: `kind` 0: all alike; 1: one key 80 above all others; 2: keys of which one
 * scores so low below the next that all others count nothing; and a row does not depend on the rows
 * beside it, nor on the run. */
static void test_hard(int kind, int tokens, int size, int dim, bool listed) {
    const int lengths[] = {tokens, tokens / 2 + 1};
    world w = make_world(CAIRN_F16, CAIRN_F32, size, dim, 1, 2, 4, 2, lengths);
    char *all = (char *)malloc(w.out.bytes);
    cairn_attend_args a;
    bool fine;
    for (int r = 0; r < w.rows * w.heads; r++) /* one dimension scores, times 2^3 sqrt(dim) */
        for (int d = 0; d < dim; d++) floats(&w.q)[r * dim + d] = d ? 0.0f : 8.0f * sqrtf((float)dim);
    for (int s = 0; s < 2; s++)
        for (int t = 0; t < lengths[s]; t++) {
            const int64_t id = slot_of(&w, s, t);
            const double score = kind == 0 ? 0 : t == lengths[s] / 3 ? 10 : kind == 1 ? 0 : -t % 7;
            uint16_t *key = (uint16_t *)(void *)w.cache.host + ((id / size) * 2 * size + id % size) * dim;
            key[0] = score == 10 ? 0x4900 : score == 0 ? 0 : /* -1 .. -6 */
                     (uint16_t[]){0, 0xbc00, 0xc000, 0xc200, 0xc400, 0xc500, 0xc600}[-(int)score];
        }
    send_world(&w);
    a = attend_of(&w);
    fine = done(cairn_attend(rt, &a)) && check_dense(&w, 0, 0);
    memcpy(all, w.out.host, w.out.bytes);
    tap_ok(fine, "attend on %s: hard scores %d over %d tokens", where, kind, tokens);
    if (listed) { /* row 2 as the only one */
        both one = MAKE(CAIRN_F32, 1, w.heads, dim), q = MAKE(CAIRN_F32, 1, w.heads, dim);
        both of = MAKE(CAIRN_I32, 1), at = MAKE(CAIRN_I32, 1);
        ints(&of)[0] = ints(&w.of)[2], ints(&at)[0] = ints(&w.at)[2];
        memcpy(q.host, w.q.host + 2 * q.bytes, q.bytes);
        upload(&q), upload(&of), upload(&at), poison(&one), poison(&w.out);
        fine = done(cairn_attend(rt, &a));
        download(&w.out);
        a.pages.sequences = of.t, a.pages.positions = at.t, a.q = q.t, a.out = one.t, a.lse = NULL;
        fine = fine && done(cairn_attend(rt, &a));
        download(&one);
        tap_ok(fine && !memcmp(all, w.out.host, w.out.bytes) &&
                   !memcmp(one.host, all + 2 * one.bytes, one.bytes),
               "attend on %s: the same bits in another run, and of a row alone", where);
        drop(&one), drop(&q), drop(&of), drop(&at);
    }
    free(all), drop_world(&w);
}

/* ---- attend: masks ---- */

/* Rows are whole steps of `entries`, behind lengths[s] tokens; mask bits by row and entry. */
static bool check_masked(const world *w, const int32_t *bases, int entries, const uint8_t *visible) {
    bool fine = true;
    download(&w->out), download(&w->lse);
    for (int r = 0; r < w->rows; r++) {
        const int of = ints(&w->of)[r], row = ints(&w->at)[r] - bases[of];
        for (int h = 0; h < w->heads && fine; h++) {
            state s;
            clear(&s);
            for (int t = 0; t < bases[of]; t++) add_token(w, &s, r, h, slot_of(w, of, t));
            for (int j = 0; j < entries; j++)
                if (visible[(of * entries + row) * entries + j])
                    add_token(w, &s, r, h, slot_of(w, of, bases[of] + j));
            fine = agrees(w, r, h, &s, tolerance_of(w));
        }
    }
    return fine;
}
/* Whether entry i of draft and verify sees entry j, from the tokens that each stands for: it sees one
 * entry at each position up to its own, real tokens before its own token and its token's masks. */
static bool draft_sees(int i, int j, int k) {
    const int gi = i / (k + 1), gj = j / (k + 1), ri = i % (k + 1), rj = j % (k + 1);
    return (rj == 0 && gj <= gi) || (gj == gi && rj > 0 && rj <= ri);
}
static void test_mask(int k, int entries, int before, cairn_type type) {
    const int lengths[] = {37 + before + entries, 16 + entries, entries};
    world w = make_world(type, CAIRN_F32, 16, 64, 1, 2, 2 * entries + 1, 3, lengths);
    const int bytes = (entries * entries + 7) / 8 + 2;
    both bases = MAKE(CAIRN_I32, 3), mask = MAKE(CAIRN_U8, 3, bytes);
    uint8_t *visible = (uint8_t *)calloc((size_t)(3 * entries), (size_t)entries);
    cairn_attend_args a;
    for (int s = 0; s < 3; s++) ints(&bases)[s] = lengths[s] - entries;
    for (int r = 0; r < w.rows; r++)
        ints(&w.at)[r] = ints(&bases)[ints(&w.of)[r]] + between(0, entries - 1);
    for (int i = 0; i < 3 * entries * entries; i++) {
        const int of = i / (entries * entries), bit = i % (entries * entries);
        visible[i] = k >= 0 ? draft_sees(bit / entries, bit % entries, k) : draw() % 3 == 0;
        if (visible[i]) mask.host[of * bytes + bit / 8] = (char)(mask.host[of * bytes + bit / 8] | 1 << bit % 8);
    }
    send_world(&w), upload(&bases), upload(&mask);
    a = attend_of(&w);
    a.bases = bases.t, a.mask = k < 0 ? mask.t : NULL, a.step_rows = entries;
    a.draft_length = k < 0 ? 0 : k;
    tap_ok(done(cairn_attend(rt, &a)) && check_masked(&w, ints(&bases), entries, visible),
           "attend on %s: %s of %d entries behind %d", where, k < 0 ? "a mask" : "draft and verify", entries,
           37 + before);
    if (k < 0) {
        both less = MAKE(CAIRN_U8, 3, bytes - 3);
        a.mask = less.t;
        tap_ok(cairn_attend(rt, &a) == CAIRN_INVALID_ARGUMENT &&
               strstr(cairn_last_error(rt), "mask has"), "attend on %s: a mask too short", where);
        a.mask = mask.t, a.window = 4;
        tap_ok(cairn_attend(rt, &a) == CAIRN_INVALID_ARGUMENT, "attend on %s: and a window", where);
        a.window = 0, ints(&bases)[1] = 1 << 30;
        upload(&bases);
        tap_ok((cairn_attend(rt, &a) == CAIRN_BAD_DATA) == !on_gpu &&
                   (cairn_sync(rt) == CAIRN_BAD_DATA) == on_gpu,
               "attend on %s: rows that are no entry of their step are reported", where);
        drop(&less);
    }
    free(visible), drop(&bases), drop(&mask), drop_world(&w);
}

/* Whether row after row beside rows of one token has the bits that all had together. */
static bool same_alone(const world *w, cairn_attend_args a, const both *all, const both *at) {
    const size_t bytes = all->bytes / (size_t)w->rows;
    bool same = true;
    a.pages.positions = at->t, a.out = all->t, a.lse = NULL;
    for (int r = 0; r < w->rows && same; r++) {
        for (int i = 0; i < w->rows; i++) ints(at)[i] = i == r ? ints(&w->at)[i] : 0;
        upload(at), poison(all);
        same = done(cairn_attend(rt, &a));
        download(all);
        same = same && !memcmp(all->host + (size_t)r * bytes, w->out.host + (size_t)r * bytes, bytes);
    }
    return same;
}

enum { FULL = 1, EMPTY = 1 << 20 }; /* multiprocessors: so few that a block takes several runs; enough for any way */

/* Rows of any length together, of which a block takes several runs; a row alone has the same bits. */
static void test_together(cairn_type type, int size, int dim, int group) {
    const int lengths[] = {1300, 40, 700, 1}, count = rt->device.sm_count;
    world w = make_world(type, CAIRN_F32, size, dim, 2, group, 8, 4, lengths);
    both all = MAKE(CAIRN_F32, w.rows, w.heads, dim), at = MAKE(CAIRN_I32, w.rows);
    cairn_attend_args a = attend_of(&w);
    bool fine;
    send_world(&w);
    rt->device.sm_count = FULL;
    fine = done(cairn_attend(rt, &a)) && check_dense(&w, 0, 0);
    tap_ok(fine, "attend on %s: rows of any length together, cache %s, page %d, dim %d, %d heads each", where,
           cairn_type_name(type), size, dim, group);
    rt->device.sm_count = count;
    tap_ok(fine && same_alone(&w, a, &all, &at), "attend on %s: and beside rows of one token the same bits", where);
    drop(&all), drop(&at), drop_world(&w);
}

/* Few rows, which a cluster merges or relay, to the bit as the last block does, again and again. */
static void test_few(cairn_type type, int size, int dim, int group, int longest) {
    const int lengths[] = {longest, longest / 2 + 3}, count = rt->device.sm_count;
    world w = make_world(type, CAIRN_F32, size, dim, 1, group, 2, 2, lengths);
    both all = MAKE(CAIRN_F32, w.rows, w.heads, dim), sums = MAKE(CAIRN_F32, w.rows, w.heads);
    const int chunks = layout_chunks(w.max_pages, size, dim), runs = layout_runs(chunks, 1);
    cairn_attend_args a = attend_of(&w);
    bool fine;
    send_world(&w);
    rt->device.sm_count = FULL;
    fine = done(cairn_attend(rt, &a)) && check_dense(&w, 0, 0);
    rt->device.sm_count = EMPTY;
    a.out = all.t, a.lse = sums.t;
    for (int i = 0; i < 3; i++) {
        poison(&all), poison(&sums);
        fine = fine && done(cairn_attend(rt, &a));
        download(&all), download(&sums);
        fine = fine && !memcmp(all.host, w.out.host, all.bytes);
        for (int h = 0; h < w.rows * w.heads; h++)
            fine = fine && near((double)floats(&sums)[h], (double)floats(&w.lse)[h], 1e-6);
    }
    tap_ok(fine, "attend on %s: two rows of up to %d runs alone, cache %s, page %d, dim %d, %d heads: the same bits",
           where, runs, cairn_type_name(type), size, dim, group);
    rt->device.sm_count = count;
    drop(&all), drop(&sums), drop_world(&w);
}

/* Captured calls of few rows: before relay's memory is there, and behind it, where positions change. */
static void test_captured(void) {
    const int lengths[] = {1300, 700}, count = rt->device.sm_count;
    const size_t flags = rt->device.flags_bytes;
    world w = make_world(CAIRN_F16, CAIRN_F32, 64, 128, 1, 4, 2, 2, lengths);
    both all = MAKE(CAIRN_F32, w.rows, w.heads, w.dim);
    cairn_graph *graph = NULL;
    cairn_attend_args a = attend_of(&w);
    bool fine;
    send_world(&w);
    rt->device.sm_count = FULL;
    fine = done(cairn_attend(rt, &a)) && check_dense(&w, 0, 0);
    a.out = all.t;
    rt->device.sm_count = EMPTY;
    fine = fine && done(cairn_graph_begin(rt)) && done(cairn_attend(rt, &a)) && done(cairn_graph_end(rt, &graph));
    poison(&all);
    fine = fine && done(cairn_graph_launch(rt, graph));
    download(&all);
    tap_ok(fine && rt->device.flags_bytes == flags && !memcmp(all.host, w.out.host, all.bytes),
           "attend on %s: few rows, captured before any such call", where);
    cairn_graph_free(rt, graph);
    fine = fine && done(cairn_attend(rt, &a)) && rt->device.flags_bytes > flags &&
           done(cairn_graph_begin(rt)) && done(cairn_attend(rt, &a)) && done(cairn_graph_end(rt, &graph));
    for (int i = 0; i < 4 && fine; i++) {
        ints(&w.at)[0] = between(0, 1299), ints(&w.at)[1] = between(0, 699);
        upload(&w.at), poison(&all);
        fine = done(cairn_graph_launch(rt, graph));
        download(&all);
        rt->device.sm_count = FULL, a.out = w.out.t;
        fine = fine && done(cairn_attend(rt, &a)) && check_dense(&w, 0, 0) && !memcmp(all.host, w.out.host, all.bytes);
        rt->device.sm_count = EMPTY, a.out = all.t;
    }
    tap_ok(fine, "attend on %s: captured behind one, launched at other positions", where);
    cairn_graph_free(rt, graph);
    rt->device.sm_count = count;
    drop(&all), drop_world(&w);
}

/* ---- prompts ---- */

/* Two prompts whole, of which one has a part before it; a row alone has the same bits. */
static void test_prompt(cairn_type type, cairn_type query_type, int size, int dim, int group) {
    const int lengths[] = {90, 75}, first[] = {0, 20}, rows = 90 + 55;
    world w = make_world(type, query_type, size, dim, 1, group, rows, 2, lengths);
    both all = MAKE(CAIRN_F32, 1, w.heads, dim);
    cairn_attend_args a;
    bool fine, same = true;
    for (int r = 0; r < rows; r++) {
        ints(&w.of)[r] = r >= 90;
        ints(&w.at)[r] = r >= 90 ? first[1] + r - 90 : r;
    }
    send_world(&w);
    a = attend_of(&w);
    a.prompt = 1;
    fine = done(cairn_attend(rt, &a)) && check_dense(&w, 0, 0);
    tap_ok(fine, "attend on %s: prompts, cache %s, q %s, page %d, dim %d, %d heads each", where,
           cairn_type_name(type), cairn_type_name(query_type), size, dim, group);
    for (int r = 3; r < rows && fine; r += 53) {
        both q = MAKE(query_type, 1, w.heads, dim), of = MAKE(CAIRN_I32, 1), at = MAKE(CAIRN_I32, 1);
        ints(&of)[0] = ints(&w.of)[r], ints(&at)[0] = ints(&w.at)[r];
        memcpy(q.host, w.q.host + (size_t)r * q.bytes, q.bytes);
        upload(&q), upload(&of), upload(&at);
        a.pages.sequences = of.t, a.pages.positions = at.t, a.q = q.t, a.out = all.t, a.lse = NULL;
        fine = done(cairn_attend(rt, &a));
        download(&all);
        same = same && fine && !memcmp(all.host, w.out.host + (size_t)r * all.bytes, all.bytes);
        drop(&q), drop(&of), drop(&at);
    }
    tap_ok(same, "attend on %s: and a row alone has the same bits", where);
    drop(&all), drop_world(&w);
}

/* The last rows of a long prompt, with a window and sinks: their keys come in several tiles. */
static void test_prompt_end(cairn_type type, int size, int dim, int group, int window) {
    const int length = 540, rows = 20, sinks = window ? 5 : 0;
    world w = make_world(type, type, size, dim, 2, group, rows, 1, &length);
    cairn_attend_args a;
    for (int r = 0; r < rows; r++) ints(&w.of)[r] = 0, ints(&w.at)[r] = length - rows + r;
    send_world(&w);
    a = attend_of(&w);
    a.prompt = 1, a.window = window, a.sinks = sinks;
    tap_ok(done(cairn_attend(rt, &a)) && check_dense(&w, window, sinks),
           "attend on %s: the end of a prompt of %d tokens, %s, dim %d, window %d", where, length,
           cairn_type_name(type), dim, window);
    drop_world(&w);
}

/* ---- chunks of a prefix, merged ---- */

static void test_chunks(int capacity, cairn_type type) {
    const int lengths[] = {75, 0, 33, 1}, rows = 6, b = 4;
    world w = make_world(type, CAIRN_F32, 16, 64, 1, 4, rows, b, lengths);
    const int each = capacity / b > 0 ? capacity / b : 1, chunks = (75 + each - 1) / each;
    const int64_t width = (int64_t)each * b;
    both kv_indices = MAKE(CAIRN_I32, width), cu = MAKE(CAIRN_I32, b + 1);
    both parts = MAKE(CAIRN_F32, chunks, rows, w.heads, w.dim), lses = MAKE(CAIRN_F32, chunks, rows, w.heads);
    cairn_merge_states_args m;
    bool fine = true;
    for (int c = 0; c < chunks; c++) {
        cairn_attend_args a;
        int n = 0;
        poison(&kv_indices);
        for (int s = 0; s < b; s++) {
            for (int t = c * each; t < (c + 1) * each && t < lengths[s]; t++)
                ints(&kv_indices)[n++] = (int32_t)slot_of(&w, s, t);
            ints(&cu)[s + 1] = n;
        }
        send_world(&w), upload(&kv_indices), upload(&cu);
        a = attend_of(&w);
        a.pages.page_table = a.pages.positions = NULL;
        a.kv_indices = kv_indices.t, a.cu_lens = cu.t;
        fine = fine && done(cairn_attend(rt, &a));
        download(&w.out), download(&w.lse);
        for (int r = 0; r < rows; r++) /* an empty chunk */
            for (int h = 0; h < w.heads; h++)
                if (ints(&cu)[ints(&w.of)[r]] == ints(&cu)[ints(&w.of)[r] + 1])
                    fine = fine && floats(&w.out)[(r * w.heads + h) * w.dim] == 0.0f &&
                           floats(&w.lse)[r * w.heads + h] == -INFINITY;
        memcpy(parts.host + (size_t)c * w.out.bytes, w.out.host, w.out.bytes);
        memcpy(lses.host + (size_t)c * w.lse.bytes, w.lse.host, w.lse.bytes);
    }
    upload(&parts), upload(&lses), poison(&w.out), poison(&w.lse);
    memset(&m, 0, sizeof m);
    m.struct_size = sizeof m, m.parts = parts.t, m.lses = lses.t, m.out = w.out.t, m.lse = w.lse.t;
    fine = fine && done(cairn_merge_states(rt, &m));
    download(&w.out), download(&w.lse);
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < w.heads && fine; h++) {
            state s;
            clear(&s);
            for (int t = 0; t < lengths[ints(&w.of)[r]]; t++)
                add_token(&w, &s, r, h, slot_of(&w, ints(&w.of)[r], t));
            fine = agrees(&w, r, h, &s, tolerance_of(&w));
        }
    tap_ok(fine, "attend on %s: %d chunks of a prefix, capacity %d, merged", where, chunks, capacity);
    drop(&kv_indices), drop(&cu), drop(&parts), drop(&lses), drop_world(&w);
}

/* A row of a sequence that is not there, or whose sums do not fit its list, is zeros and reported. */
static void test_list_faults(void) {
    const int lengths[] = {20, 9};
    world w = make_world(CAIRN_F16, CAIRN_F32, 16, 64, 1, 4, 2, 2, lengths);
    both kv_indices = MAKE(CAIRN_I32, 8), cu = MAKE(CAIRN_I32, 3);
    cairn_attend_args a;
    bool fine;
    for (int i = 0; i < 8; i++) ints(&kv_indices)[i] = (int32_t)slot_of(&w, 0, i);
    for (int fault = 0; fault < 2; fault++) {
        ints(&w.of)[0] = 0, ints(&w.of)[1] = fault ? 1 : 2;
        ints(&cu)[0] = 0, ints(&cu)[1] = 4, ints(&cu)[2] = fault ? 9 : 8;
        send_world(&w), upload(&kv_indices), upload(&cu);
        a = attend_of(&w);
        a.pages.page_table = a.pages.positions = NULL;
        a.kv_indices = kv_indices.t, a.cu_lens = cu.t;
        fine = cairn_attend(rt, &a) == (on_gpu ? CAIRN_OK : CAIRN_BAD_DATA);
        if (on_gpu) fine = fine && cairn_sync(rt) == CAIRN_BAD_DATA;
        fine = fine && strstr(cairn_last_error(rt), "row 1: ") &&
               strstr(cairn_last_error(rt), fault ? "out of range (9)" : "out of range (2)");
        download(&w.out);
        for (int i = 0; i < w.heads * w.dim && fine; i++)
            fine = floats(&w.out)[w.heads * w.dim + i] == 0.0f && isfinite(floats(&w.out)[i]);
        tap_ok(fine, "attend on %s: a list's %s is reported", where, fault ? "sum" : "sequence");
    }
    drop(&kv_indices), drop(&cu), drop_world(&w);
}

/* merge_states alone: parts of lse -inf hold NaN, lses far apart. */
static void test_merge(int parts, int rows, int heads, int dim) {
    both in = MAKE(CAIRN_F32, parts, rows, heads, dim), lses = MAKE(CAIRN_F32, parts, rows, heads);
    both out = MAKE(CAIRN_F32, rows, heads, dim), lse = MAKE(CAIRN_F32, rows, heads);
    const int states = rows * heads;
    cairn_merge_states_args m;
    bool fine;
    for (int i = 0; i < parts * states; i++) {
        const bool none = i % states == 0 || draw() % 4 == 0;
        floats(&lses)[i] = none ? -INFINITY : uniform() * (float)(draw() % 2 ? 5 : 90);
        for (int d = 0; d < dim; d++) floats(&in)[i * dim + d] = none ? NAN : uniform();
    }
    upload(&in), upload(&lses), poison(&out), poison(&lse);
    memset(&m, 0, sizeof m);
    m.struct_size = sizeof m, m.parts = in.t, m.lses = lses.t, m.out = out.t, m.lse = lse.t;
    fine = done(cairn_merge_states(rt, &m));
    download(&out), download(&lse);
    for (int i = 0; i < states && fine; i++) {
        state s;
        clear(&s);
        for (int c = 0; c < parts; c++) {
            double value[MOST_DIM];
            for (int d = 0; d < dim; d++) value[d] = (double)floats(&in)[(c * states + i) * dim + d];
            add(&s, (double)floats(&lses)[c * states + i], value, dim);
        }
        fine = near((double)floats(&lse)[i], lse_of(&s), 1e-5);
        for (int d = 0; d < dim && fine; d++)
            fine = near((double)floats(&out)[i * dim + d], s.total > 0 ? s.out[d] / s.total : 0, 1e-5);
    }
    tap_ok(fine, "merge_states on %s: %d parts of %d x %d x %d", where, parts, rows, heads, dim);
    drop(&in), drop(&lses), drop(&out), drop(&lse);
}

/* ---- attend_pages ---- */

typedef struct choice {
    int topk, window, sinks, part, landmarks;
    bool two_level, by_head;
    both selected, weights;
} choice;

/* lse of one page for one head. */
static double page_lse(const world *w, int r, int h, int page, int landmarks) {
    state s;
    clear(&s);
    for (int slot = 0; slot < w->size - landmarks; slot++)
        add_token(w, &s, r, h, slot_of(w, ints(&w->of)[r], page * w->size + slot));
    return lse_of(&s);
}
static int candidates_of(const world *w, int r, int window) {
    const int i = ints(&w->at)[r];
    return window > 0 ? (i - window + 1 > 0 ? (i - window + 1) / w->size : 0) : i / w->size;
}
/* What one head of a row attends, written from the header alone. */
static void expect_pages(const world *w, const choice *c, int r, int h, state *s) {
    const int i = ints(&w->at)[r], of = ints(&w->of)[r], head = h / w->group;
    const int candidates = candidates_of(w, r, c->window);
    const int32_t *ids = ints(&c->selected) + (r * w->kv_heads + head) * c->topk;
    const float *weights = c->two_level ? floats(&c->weights) + (c->by_head ? r * w->heads + h
                                              : r * w->kv_heads + head) * c->topk : NULL;
    bool chosen[4096] = {false};
    clear(s);
    for (int j = 0; j < c->topk && c->part != CAIRN_PART_WINDOW; j++) {
        state page;
        if (ids[j] < 0 || ids[j] >= candidates || chosen[ids[j]]) continue;
        chosen[ids[j]] = true;
        clear(&page);
        for (int slot = 0; slot < w->size - c->landmarks; slot++)
            add_token(w, c->two_level ? &page : s, r, h, slot_of(w, of, ids[j] * w->size + slot));
        for (int d = 0; d < w->dim && c->two_level; d++) page.out[d] /= page.total;
        if (c->two_level && !isnan(weights[j])) add(s, (double)weights[j], page.out, w->dim);
    }
    for (int t = 0; t <= i && c->part != CAIRN_PART_PAGES; t++)
        if (!chosen[t / w->size] && sees(w, i, t, c->window, c->sinks, true) &&
            !(c->landmarks && t % w->size == w->size - 1))
            add_token(w, s, r, h, slot_of(w, of, t));
}
static bool run_pages(const world *w, const choice *c) {
    cairn_attend_pages_args a;
    bool fine;
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.pages = pages_of(w), a.q = w->q.t, a.out = w->out.t;
    a.lse = w->lse.t, a.more.scales = w->scales.t, a.more.softcap = (float)w->cap;
    a.window = c->window, a.sinks = c->sinks, a.selected = c->selected.t;
    a.form = c->two_level ? CAIRN_FORM_TWO_LEVEL : CAIRN_FORM_FLAT;
    a.weights = c->two_level ? c->weights.t : NULL, a.part = c->part, a.landmarks = c->landmarks;
    send_world(w), upload(&c->selected), upload(&c->weights);
    fine = done(cairn_attend_pages(rt, &a));
    download(&w->out), download(&w->lse);
    for (int r = 0; r < w->rows; r++)
        for (int h = 0; h < w->heads && fine; h++) {
            state s;
            expect_pages(w, c, r, h, &s);
            fine = agrees(w, r, h, &s, tolerance_of(w));
        }
    return fine;
}
/* Random pages, some none, in any order; weights near the scores, one of them -inf. */
static choice choose(const world *w, int topk, int window, int sinks, bool by_head) {
    choice c;
    memset(&c, 0, sizeof c);
    c.topk = topk, c.window = window, c.sinks = sinks, c.by_head = by_head;
    c.selected = MAKE(CAIRN_I32, w->rows, w->kv_heads, topk);
    c.weights = MAKE(CAIRN_F32, w->rows, by_head ? w->heads : w->kv_heads, topk);
    for (int r = 0; r < w->rows * w->kv_heads; r++)
        for (int j = 0, first = between(0, 3); j < topk; j++)
            ints(&c.selected)[r * topk + j] = draw() % 4 ? (j * 5 + first) % w->max_pages : -1;
    for (size_t i = 0; i < c.weights.bytes / 4; i++)
        floats(&c.weights)[i] = draw() % 8 ? uniform() * 6 : draw() % 2 ? -INFINITY : NAN;
    return c;
}
static void test_pages(cairn_type type, int size, int dim, int kv_heads, int group, bool by_head,
                       int landmarks) {
    const int lengths[] = {7 * size + between(1, size), 3 * size, 3 * size + 1, size - 1, 1};
    world w = make_world(type, CAIRN_F32, size, dim, kv_heads, group, 7, 5, lengths);
    choice c = choose(&w, between(1, 5), between(0, 1) * between(1, 2 * size), between(0, size + 3),
                      by_head);
    bool fine;
    c.landmarks = landmarks, c.two_level = true;
    for (int s = 0; s < w.sequences && landmarks; s++) /* what a landmark holds must not matter */
        for (int t = size - 1; t < lengths[s]; t += size)
            for (int h = 0; h < 2 * kv_heads; h++)
                memset(w.cache.host + (((slot_of(&w, s, t) / size * 2 * kv_heads + h) * size + size - 1) * dim) *
                       (int64_t)cairn_type_bytes(type), 0xff, (size_t)dim * cairn_type_bytes(type));
    tap_ok(run_pages(&w, &c), "attend_pages on %s: two_level, window %d, sinks %d, page %d, dim %d, "
           "%s weights, landmarks %d", where, c.window, c.sinks, size, dim,
           by_head ? "head" : "group", landmarks);
    c.part = CAIRN_PART_PAGES;
    fine = run_pages(&w, &c);
    c.two_level = false;
    fine = fine && run_pages(&w, &c);
    c.part = CAIRN_PART_WINDOW;
    fine = fine && run_pages(&w, &c);
    tap_ok(fine, "attend_pages on %s: pages alone, in both forms, and the window alone", where);
    memset(c.selected.host, 0xff, c.selected.bytes);
    c.part = CAIRN_PART_PAGES, c.two_level = true;
    tap_ok(run_pages(&w, &c), "attend_pages on %s: an empty selection gives zero", where);
    drop(&c.selected), drop(&c.weights), drop_world(&w);
}
/* With a page's own lse as its weight two levels are one: dense attention. */
static void test_own_weights(int size, int dim, int group) {
    const int lengths[] = {6 * size + 3, 2 * size};
    world w = make_world(CAIRN_F16, CAIRN_F32, size, dim, 1, group, 4, 2, lengths);
    choice c = choose(&w, 7, size + 2, 0, true);
    cairn_attend_args a;
    char *dense = (char *)malloc(w.out.bytes);
    bool fine;
    c.two_level = true;
    for (int r = 0; r < w.rows; r++)
        for (int j = 0; j < 7; j++) {
            const int page = 6 - j < candidates_of(&w, r, c.window) ? 6 - j : -1;
            ints(&c.selected)[r * 7 + j] = page;
            for (int h = 0; h < group; h++)
                floats(&c.weights)[(r * group + h) * 7 + j] =
                    page < 0 ? NAN : (float)page_lse(&w, r, h, page, 0);
        }
    send_world(&w);
    a = attend_of(&w);
    fine = done(cairn_attend(rt, &a)) && check_dense(&w, 0, 0);
    memcpy(dense, w.out.host, w.out.bytes);
    fine = fine && run_pages(&w, &c);
    for (size_t i = 0; i < w.out.bytes / 4; i++)
        fine = fine && near((double)floats(&w.out)[i], (double)((float *)(void *)dense)[i],
                            on_gpu ? 2e-3 : 1e-5);
    tap_ok(fine, "attend_pages on %s: true page lse as weights gives dense attention, page %d", where,
           size);
    free(dense), drop(&c.selected), drop(&c.weights), drop_world(&w);
}

/* ---- attend_tokens ---- */

static void test_tokens(cairn_type type, int size, int dim, int kv_heads, int group, int topk) {
    const int lengths[] = {200, 65, 1};
    world w = make_world(type, CAIRN_F32, size, dim, kv_heads, group, 4, 3, lengths);
    both tokens = MAKE(CAIRN_I32, 4, topk);
    cairn_attend_tokens_args a;
    char said[80];
    bool fine;
    for (int i = 0; i < 4 * topk; i++) {
        const int r = i / topk, of = ints(&w.of)[r];
        ints(&tokens)[i] = r == 1 || draw() % 5 == 0
                               ? -1 : (int32_t)slot_of(&w, of, between(0, lengths[of] - 1));
    }
    send_world(&w), upload(&tokens);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.q = w.q.t, a.cache = w.cache.t, a.scales = w.scales.t;
    a.tokens = tokens.t, a.out = w.out.t, a.lse = w.lse.t;
    a.space = size == 1 ? CAIRN_SPACE_FLAT : CAIRN_SPACE_SLOT;
    fine = done(cairn_attend_tokens(rt, &a));
    download(&w.out), download(&w.lse);
    for (int r = 0; r < w.rows; r++)
        for (int h = 0; h < w.heads && fine; h++) {
            state s;
            clear(&s);
            for (int i = 0; i < topk; i++)
                if (ints(&tokens)[r * topk + i] >= 0)
                    add_token(&w, &s, r, h, ints(&tokens)[r * topk + i]);
            fine = agrees(&w, r, h, &s, tolerance_of(&w));
        }
    tap_ok(fine, "attend_tokens on %s: %s, %d of slots of pages of %d, dim %d, %d x %d heads", where,
           cairn_type_name(type), topk, size, dim, kv_heads, group);
    ints(&tokens)[topk + 1] = w.pages * size;
    upload(&tokens), poison(&w.out);
    snprintf(said, sizeof said, "attend_tokens: row %d: id out of range (%d)", (topk + 1) / topk, w.pages * size);
    fine = cairn_attend_tokens(rt, &a) == (on_gpu ? CAIRN_OK : CAIRN_BAD_DATA);
    if (on_gpu) fine = cairn_sync(rt) == CAIRN_BAD_DATA;
    fine = fine && strstr(cairn_last_error(rt), said);
    download(&w.out);
    tap_ok(fine && floats(&w.out)[w.heads * dim] == 0.0f,
           "attend_tokens on %s: an id out of range is skipped and reported by name", where);
    a.space = CAIRN_SPACE_FLAT;
    if (size > 1)
        tap_ok(cairn_attend_tokens(rt, &a) == CAIRN_INVALID_ARGUMENT,
               "attend_tokens on %s: flat ids of a cache with pages", where);
    a.space = CAIRN_SPACE_SLOT, a.scale = INFINITY;
    tap_ok(cairn_attend_tokens(rt, &a) == CAIRN_INVALID_ARGUMENT &&
               strstr(cairn_last_error(rt), "scale = inf; 0 or more, finite, is expected"),
           "attend_tokens on %s: a scale without end", where);
    drop(&tokens), drop_world(&w);
}

/* ---- latent slots ---- */

enum { SLOT = 576, VALUES = 512, SLOT_BYTES = 656 };

/* Value i of a slot. */
static double latent(const both *slots, cairn_type type, int64_t slot, int i) {
    const char *at = slots->host + slot * SLOT_BYTES;
    float scale;
    if (type != CAIRN_U8) return decode(type, slots->host, slot * SLOT + i);
    if (i >= VALUES) return decode(CAIRN_BF16, at + VALUES + 16, i - VALUES);
    memcpy(&scale, at + VALUES + i / 128 * 4, 4);
    return decode(CAIRN_E4M3, at, i) * (double)scale;
}
/* What kv_append wrote against what it was given: within half a step of the type, for e4m3 of the
 * largest of its 128. */
static bool check_latent(const both *slots, cairn_type type, int64_t slot, const float *k,
                         const float *v, int position, bool half) {
    bool fine = true;
    for (int i = 0; i < VALUES; i++) {
        double most = 1e-4, step;
        for (int j = i / 128 * 128; j < i / 128 * 128 + 128; j++)
            if (fabs((double)k[j]) > most) most = fabs((double)k[j]);
        step = type == CAIRN_U8 ? fmax(fabs((double)k[i]) / 16, most / 448 / 512)
                                : fabs((double)k[i]) / (type == CAIRN_F32 ? 1e7 : 250);
        fine = fine && fabs(latent(slots, type, slot, i) - (double)k[i]) <= step * 1.001 + 1e-7;
    }
    for (int i = 0; i < 32; i++) {
        const int a = half ? i : 2 * i, b = half ? i + 32 : a + 1;
        const double angle = position * pow(10000.0, -2.0 * i / 64);
        const double x = (double)v[a], y = (double)v[b];
        fine = fine && near(latent(slots, type, slot, VALUES + a), x * cos(angle) - y * sin(angle), 5e-3) &&
               near(latent(slots, type, slot, VALUES + b), x * sin(angle) + y * cos(angle), 5e-3);
    }
    return fine;
}
static void test_latent(cairn_type type, cairn_type query_type, int heads, int topk, int tokens) {
    enum { PAGES = 12, PAGE_SLOTS = 24, ROWS = 3 };
    const int width = type == CAIRN_U8 ? SLOT_BYTES : SLOT;
    both slots = MAKE(type, PAGES, PAGE_SLOTS, width), k = MAKE(CAIRN_F32, tokens, 1, VALUES);
    both v = MAKE(CAIRN_F32, tokens, 1, 64), table = MAKE(CAIRN_I32, 1, PAGES), at = MAKE(CAIRN_I32, tokens);
    both of = MAKE(CAIRN_I32, tokens), list = MAKE(CAIRN_I32, ROWS, topk), q = MAKE(query_type, ROWS, heads, SLOT);
    both out = MAKE(CAIRN_F32, ROWS, heads, VALUES), lse = MAKE(CAIRN_F32, ROWS, heads);
    const bool half = heads % 2 == 0;
    cairn_kv_append_args w;
    cairn_attend_tokens_args a;
    bool fine, stored = true;
    for (int c = 0; c < PAGES; c++) ints(&table)[c] = (c * 5 + 3) % PAGES;
    for (int t = 0; t < tokens; t++) ints(&at)[t] = t;
    for (int i = 0; i < tokens * VALUES; i++) floats(&k)[i] = uniform() * (i % 128 == 5 ? 3 : 1);
    for (int i = 0; i < tokens * 64; i++) floats(&v)[i] = uniform();
    for (int i = 0; i < ROWS * heads * SLOT; i++) encode(query_type, q.host, i, 0);
    poison(&slots), upload(&k), upload(&v), upload(&table), upload(&at), upload(&of), upload(&q);
    memset(&w, 0, sizeof w);
    w.struct_size = sizeof w, w.k = k.t, w.v = v.t, w.latent = slots.t, w.rope_base = 10000.0f;
    w.half_split = half, w.pages.page_table = table.t, w.pages.positions = at.t, w.pages.sequences = of.t;
    fine = done(cairn_kv_append(rt, &w));
    download(&slots);
    for (int t = 0; t < tokens; t++)
        stored = stored && check_latent(&slots, type, ints(&table)[t / PAGE_SLOTS] * PAGE_SLOTS + t % PAGE_SLOTS,
                                        floats(&k) + t * VALUES, floats(&v) + t * 64, t, half);
    for (int t = tokens; t < PAGES * PAGE_SLOTS; t++) /* other slots stay as they were */
        stored = stored && (uint8_t)slots.host[(size_t)(ints(&table)[t / PAGE_SLOTS] * PAGE_SLOTS + t % PAGE_SLOTS) *
                                               (size_t)width * cairn_type_bytes(type)] == 0xff;
    tap_ok(fine && stored, "kv_append on %s: %d latent slots of %s", where, tokens, cairn_type_name(type));
    for (int i = 0; i < ROWS * topk; i++) {
        const int t = between(0, tokens - 1);
        ints(&list)[i] = i / topk == 1 || draw() % 6 == 0
                             ? -1 : ints(&table)[t / PAGE_SLOTS] * PAGE_SLOTS + t % PAGE_SLOTS;
    }
    upload(&list), poison(&out), poison(&lse);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.q = q.t, a.latent = slots.t, a.tokens = list.t, a.out = out.t, a.lse = lse.t;
    a.scale = 0.03f;
    fine = done(cairn_attend_tokens(rt, &a));
    download(&out), download(&lse);
    for (int r = 0; r < ROWS * heads && fine; r++) {
        state s;
        clear(&s);
        for (int i = 0; i < topk; i++) {
            const int32_t id = ints(&list)[r / heads * topk + i];
            double score = 0, value[SLOT];
            if (id < 0) continue;
            for (int d = 0; d < SLOT; d++) {
                value[d] = latent(&slots, type, id, d);
                score += decode(query_type, q.host, (int64_t)r * SLOT + d) * value[d];
            }
            add(&s, score * (double)a.scale, value, VALUES);
        }
        fine = near((double)floats(&lse)[r], lse_of(&s), on_gpu ? 3e-3 : 2e-5);
        for (int d = 0; d < VALUES && fine; d++)
            fine = near((double)floats(&out)[r * VALUES + d], s.total > 0 ? s.out[d] / s.total : 0,
                        on_gpu ? 3e-3 : 2e-5);
    }
    tap_ok(fine, "attend_tokens on %s: latent slots of %s, q %s, %d heads, %d of %d tokens", where,
           cairn_type_name(type), cairn_type_name(query_type), heads, topk, tokens);
    drop(&slots), drop(&k), drop(&v), drop(&table), drop(&at), drop(&of), drop(&list), drop(&q);
    drop(&out), drop(&lse);
}

static void part(cairn_runtime *opened, const char *name) {
    rt = opened, where = name;
    on_gpu = !strcmp(name, "cuda");
    if (on_gpu) test_captured(); /* first: it looks at memory that any call of few rows makes */
    test_types(CAIRN_BF16, CAIRN_BF16, 16, 64, 2, 2, 0, false);
    test_types(CAIRN_F32, CAIRN_F32, 32, 32, 1, 3, 5, false);
    test_types(CAIRN_E4M3, CAIRN_F16, 64, 128, 1, 20, 0, true);
    if (on_gpu) {
        const int count = rt->device.sm_count;
        rt->device.sm_count = FULL;
        test_pages(CAIRN_E4M3, 16, 128, 1, 3, true, 0);
        test_tokens(CAIRN_E4M3, 16, 64, 1, 4, 700);
        rt->device.sm_count = EMPTY;
        test_pages(CAIRN_F16, 64, 128, 1, 3, true, 1);
        test_tokens(CAIRN_E4M3, 16, 64, 1, 20, 700);
        rt->device.sm_count = 110; /* where one block of a row merges what goes by relay */
        test_types(CAIRN_BF16, CAIRN_F32, 64, 80, 2, 3, 30, true);
        rt->device.sm_count = 30;
        test_tokens(CAIRN_F16, 16, 128, 1, 3, 1400);
        rt->device.sm_count = count;
        test_few(CAIRN_F16, 64, 128, 4, 1000);
        test_few(CAIRN_F16, 64, 128, 4, 1300);
        test_few(CAIRN_E4M3, 16, 80, 17, 900);
        test_few(CAIRN_E4M3, 16, 80, 3, 1500);
        test_few(CAIRN_F16, 16, 64, 1, 2600);
    }
    test_together(CAIRN_F16, 64, 128, 2);
    test_together(CAIRN_E4M3, 16, 64, 4);
    if (!is_emulated(CAIRN_BACKEND_CUDA) || !on_gpu) test_together(CAIRN_F32, 16, 128, 3);
    /* Heads that are no multiple of 32 values. */
    test_types(CAIRN_E4M3, CAIRN_BF16, 16, 48, 2, 17, 0, true);
    test_types(CAIRN_F16, CAIRN_F32, 16, 176, 1, 2, 0, false); /* and lie in no power of two */
    test_prompt(CAIRN_F16, CAIRN_F32, 16, 80, 3);
    test_pages(CAIRN_F16, 32, 112, 1, 2, true, 0);
    test_hard(1, 130, 16, 64, true);
    test_prompt(CAIRN_F16, CAIRN_F32, 16, 64, 3);
    test_prompt_end(CAIRN_BF16, 64, 128, 2, 0);
    test_prompt_end(CAIRN_F16, 16, 64, 3, 150);
    test_mask(-1, 11, 0, CAIRN_F16);
    test_mask(3, 16, 4200, CAIRN_F16);
    test_chunks(70, CAIRN_F16);
    test_list_faults();
    test_merge(5, 3, 4, 80);
    test_pages(CAIRN_F16, 16, 64, 1, 2, true, 1);
    test_own_weights(16, 64, 3);
    test_tokens(CAIRN_F16, 16, 64, 1, 4, 40);
    test_latent(CAIRN_U8, CAIRN_F32, 20, 300, 70);
    test_latent(CAIRN_BF16, CAIRN_F32, 16, 40, 70);
    test_latent(CAIRN_BF16, CAIRN_BF16, 70, 2100, 90); /* several runs */
    if (!is_emulated(CAIRN_BACKEND_CUDA) || !on_gpu) {
        for (int dim = 16; dim <= 240; dim += 32) {
            test_types(CAIRN_F16, CAIRN_F32, 16, dim, 2, 1, 0, true);
            test_types(CAIRN_F32, CAIRN_F16, 64, dim, 1, 128, 0, false);
            test_prompt(CAIRN_E4M3, CAIRN_F32, 32, dim, 2);
            test_tokens(dim % 64 == 16 ? CAIRN_E4M3 : CAIRN_F16, 16, dim, 2, 3, 100);
            test_pages(CAIRN_E4M3, 16, dim, 2, 2, false, 1);
        }
        test_types(CAIRN_E4M3, CAIRN_BF16, 256, 256, 2, 1, 30, true);
        test_types(CAIRN_BF16, CAIRN_F32, 128, 96, 1, 4, 0, true);
        test_types(CAIRN_F16, CAIRN_F16, 16, 64, 3, 1, 50, true);
        test_hard(0, 10001, 64, 32, false);
        test_hard(1, 2000, 16, 128, true);
        test_hard(2, 777, 256, 64, true);
        test_prompt(CAIRN_BF16, CAIRN_BF16, 64, 128, 4);
        test_prompt(CAIRN_E4M3, CAIRN_F16, 32, 256, 1);
        test_mask(0, 1, 0, CAIRN_BF16);
        test_mask(16, 289, 2000, CAIRN_F16);
        test_chunks(4, CAIRN_E4M3);
        test_chunks(1, CAIRN_F16);
        test_chunks(131072, CAIRN_BF16);
        test_pages(CAIRN_BF16, 64, 128, 2, 3, false, 0);
        test_pages(CAIRN_F32, 256, 64, 1, 17, true, 1);
        test_own_weights(64, 128, 4);
        test_tokens(CAIRN_E4M3, 1, 32, 2, 20, 300);
        test_latent(CAIRN_BF16, CAIRN_BF16, 128, 33, 100);
        test_latent(CAIRN_F32, CAIRN_F16, 1, 1, 30);
        test_latent(CAIRN_F16, CAIRN_F16, 70, 600, 90);
        test_latent(CAIRN_U8, CAIRN_BF16, 3, 90, 50);
        test_tokens(CAIRN_BF16, 64, 256, 1, 2, 1);
    }
}

int main(void) {
    seed = random_seed();
    run_on_backends(NULL, "attention", part);
    return tap_done();
}

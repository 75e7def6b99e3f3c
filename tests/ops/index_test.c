/* The token indexer against loops in double (ref/index_ref.h), on the CPU and, where there is one, on
 * the GPU: bytes exact where they are bytes, sets exact, logits by tolerance; the same bits for every
 * way to cut the work; stale memory poisoned; bad data in device memory; calls that are refused.
 * emulated: asan race */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "ref/f16_ref.h"
#include "ref/index_ref.h"
#include "tap.h"
#include "backends.h"

static uint64_t seed;
static cairn_runtime *rt;
static const char *where;
static bool few; /* sizes, where kernels run in the emulation */

static uint32_t draw(void) { return (uint32_t)(random_next(&seed) >> 33); }
static int between(int low, int high) { return low + (int)(draw() % (uint32_t)(high - low + 1)); }
static float uniform(void) { return (float)(draw() & 0xffff) / 32768.0f - 1.0f; }

typedef struct both { cairn_tensor *t; void *host; size_t bytes; } both;

static both make(cairn_type type, int rank, int64_t a, int64_t b_, int64_t c) {
    int64_t shape[3];
    both b;
    shape[0] = a, shape[1] = b_, shape[2] = c;
    b.bytes = cairn_type_bytes(type);
    for (int i = 0; i < rank; i++) b.bytes *= (size_t)shape[i];
    b.host = malloc(b.bytes + 1);
    memset(b.host, 0xff, b.bytes + 1);
    if (cairn_tensor_new(rt, type, rank, shape, &b.t)) tap_note("%s", cairn_last_error(rt));
    cairn_tensor_write(rt, b.t, b.host, b.bytes);
    return b;
}
static void upload(both *b) { cairn_tensor_write(rt, b->t, b->host, b->bytes); }
static void download(both *b) { cairn_tensor_read(rt, b->t, b->host, b->bytes); }
static void drop(both *b) {
    if (b->t) cairn_tensor_free(rt, b->t), free(b->host);
}
static int32_t *ints(const both *b) { return (int32_t *)b->host; }
static float *floats(const both *b) { return (float *)b->host; }
static uint8_t *bytes(const both *b) { return (uint8_t *)b->host; }

static void fill_floats(both *b) {
    for (size_t i = 0; i < b->bytes / 4; i++) floats(b)[i] = uniform();
    upload(b);
}
/* e4m3 of all magnitudes but NaN. */
static void fill_bytes(both *b) {
    for (size_t i = 0; i < b->bytes; i++) bytes(b)[i] = ref_to_e4m3((double)uniform() * (draw() % 8 ? 2 : 448));
    upload(b);
}

/* The op's own status, or what the next wait reports. */
static cairn_status settled(cairn_status status) { return status ? status : cairn_sync(rt); }
static bool went(cairn_status status) {
    if (status) tap_note("%s: %s", cairn_status_name(status), cairn_last_error(rt));
    return !status;
}

/* ---- quantize_fp8 ---- */

static double source_value(cairn_type type, const void *data, int64_t i) {
    uint32_t bits;
    float x;
    if (type == CAIRN_F16) return ref_f16(((const uint16_t *)data)[i]);
    if (type == CAIRN_F32) return (double)((const float *)data)[i];
    bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    memcpy(&x, &bits, 4);
    return (double)x;
}

static void put_source(cairn_type type, void *data, int64_t i, float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (type == CAIRN_F32) ((float *)data)[i] = x;
    else if (type == CAIRN_F16) ((uint16_t *)data)[i] = ref_to_f16((double)x);
    else ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
}

static void test_quantize(cairn_type type, int power_of_two) {
    enum { ROWS = 5, HEADS = 3 };
    static const float most[] = {0.0f, 1.0f, 3.5f, 448.0f, 449.0f, 1e-4f, 7.0f, 1e-6f};
    both x = make(type, 3, ROWS, HEADS, 128), out = make(CAIRN_E4M3, 3, ROWS, HEADS, 128);
    both scales = make(CAIRN_F32, 2, ROWS, HEADS, 0);
    cairn_quantize_fp8_args a = {sizeof a, power_of_two, x.t, out.t, scales.t};
    bool fine;
    for (int b = 0; b < ROWS * HEADS; b++) { /* blocks of given maxima, the others' values on middles */
        float top = b < 8 ? most[b] : ldexpf(1.0f + (float)(draw() & 1023) / 1024.0f, between(-12, 14));
        for (int d = 0; d < 128; d++) {
            int code = between(0, 125);
            double middle = (ref_e4m3((uint8_t)code) + ref_e4m3((uint8_t)(code + 1))) / 896;
            float v = d == b * 7 ? top : (draw() & 1 ? 1.0f : uniform()) * top * (float)middle;
            put_source(type, x.host, b * 128 + d, draw() & 1 ? v : -v);
        }
    }
    upload(&x);
    fine = went(settled(cairn_quantize_fp8(rt, &a)));
    download(&out), download(&scales);
    for (int b = 0; b < ROWS * HEADS && fine; b++) {
        double top = 0;
        float scale;
        for (int d = 0; d < 128; d++) top = fmax(top, fabs(source_value(type, x.host, b * 128 + d)));
        scale = ref_fp8_scale(top, power_of_two);
        fine = floats(&scales)[b] == scale;
        for (int d = 0; d < 128 && fine; d++)
            fine = bytes(&out)[b * 128 + d] ==
                   ref_to_e4m3((double)((float)source_value(type, x.host, b * 128 + d) / scale));
        if (!fine) tap_note("block %d: most %g, scale %g for %g", b, top, (double)floats(&scales)[b], (double)scale);
    }
    tap_ok(fine, "%s: quantize_fp8 of %s, %s scales: bytes and scales exact", where, cairn_type_name(type),
           power_of_two ? "power-of-two" : "f32");
    drop(&x), drop(&out), drop(&scales);
}

static void test_quantize_golden(void) {
    static const float most[] = {0.0f, 1.0f, 3.5f, 448.0f, 449.0f};
    static const int exponents[] = {-22, -8, -7, 0, 1};
    both x = make(CAIRN_F32, 3, 7, 1, 128), out = make(CAIRN_E4M3, 3, 7, 1, 128), scales = make(CAIRN_F32, 2, 7, 1, 0);
    cairn_quantize_fp8_args a = {sizeof a, 1, x.t, out.t, scales.t};
    bool fine;
    memset(x.host, 0, x.bytes);
    for (int b = 0; b < 5; b++) floats(&x)[b * 128 + 17 * b] = -most[b];
    floats(&x)[5 * 128] = INFINITY, floats(&x)[6 * 128] = NAN, floats(&x)[6 * 128 + 1] = 448.0f;
    upload(&x);
    fine = went(settled(cairn_quantize_fp8(rt, &a)));
    download(&out), download(&scales);
    for (int b = 0; b < 5; b++) fine = fine && floats(&scales)[b] == ldexpf(1.0f, exponents[b]);
    tap_ok(fine, "%s: quantize_fp8: an exact power of two is not rounded up", where);
    tap_ok(bytes(&out)[5 * 128] == 0x7e && bytes(&out)[5 * 128 + 1] == 0 && floats(&scales)[6] == 1.0f &&
           (bytes(&out)[6 * 128] & 0x7f) == 0x7f && bytes(&out)[6 * 128 + 1] == 0x7e,
           "%s: quantize_fp8: infinities saturate, NaN stays NaN and sets no scale", where);
    drop(&x), drop(&out), drop(&scales);
}

/* ---- the cache ---- */

static void shuffle(int32_t *ids, int count) {
    for (int i = 0; i < count; i++) ids[i] = i;
    for (int i = count - 1; i > 0; i--) {
        int j = between(0, i);
        int32_t swap = ids[i];
        ids[i] = ids[j], ids[j] = swap;
    }
}

static int64_t key_byte(int slot, int size) { return (int64_t)(slot / size) * size * 132 + slot % size * 128; }
static int64_t scale_byte(int slot, int size) {
    return (int64_t)(slot / size) * size * 132 + size * 128 + slot % size * 4;
}

static void test_cache(int size) {
    enum { PAGES = 5 };
    const int rows = 2 * size + 3;
    both keys = make(CAIRN_E4M3, 2, rows, 128, 0), scales = make(CAIRN_F32, 1, rows, 0, 0);
    both slots = make(CAIRN_I32, 1, PAGES * size, 0, 0), some = make(CAIRN_I32, 1, rows, 0, 0);
    both paged = make(CAIRN_U8, 3, PAGES, size, 132), back = make(CAIRN_E4M3, 2, rows, 128, 0);
    both back_scales = make(CAIRN_F32, 1, rows, 0, 0);
    cairn_index_store_args store = {sizeof store, keys.t, scales.t, some.t, paged.t};
    cairn_index_gather_args gather = {sizeof gather, paged.t, some.t, NULL, NULL, back.t, back_scales.t};
    uint8_t *expected = (uint8_t *)malloc(paged.bytes);
    cairn_status status;
    bool fine;
    fill_bytes(&keys), fill_floats(&scales);
    shuffle(ints(&slots), PAGES * size);
    memcpy(some.host, slots.host, some.bytes);
    ints(&some)[1] = -1;
    upload(&some);
    memcpy(expected, paged.host, paged.bytes);
    for (int r = 0; r < rows; r++) {
        if (r == 1) continue;
        memcpy(expected + key_byte(ints(&some)[r], size), bytes(&keys) + r * 128, 128);
        memcpy(expected + scale_byte(ints(&some)[r], size), floats(&scales) + r, 4);
    }
    fine = went(settled(cairn_index_store(rt, &store)));
    download(&paged);
    tap_ok(fine && !memcmp(paged.host, expected, paged.bytes), "%s: index_store: every byte, pages of %d", where, size);
    fine = went(settled(cairn_index_gather(rt, &gather)));
    download(&back), download(&back_scales);
    memset(bytes(&keys) + 128, 0, 128), floats(&scales)[1] = 0;
    tap_ok(fine && !memcmp(back.host, keys.host, keys.bytes) && !memcmp(back_scales.host, scales.host, scales.bytes),
           "%s: index_gather gives back what index_store wrote; slot -1 zeros", where);
    ints(&some)[0] = PAGES * size, ints(&some)[2] = -7;
    upload(&some);
    status = settled(cairn_index_store(rt, &store));
    download(&paged);
    tap_ok(status == CAIRN_BAD_DATA && !memcmp(paged.host, expected, paged.bytes),
           "%s: index_store skips slots out of range: %s", where, cairn_last_error(rt));
    status = settled(cairn_index_gather(rt, &gather));
    download(&back);
    tap_ok(status == CAIRN_BAD_DATA && bytes(&back)[0] == 0 && !memcmp(bytes(&back) + 384, bytes(&keys) + 384, 128),
           "%s: index_gather gives zeros for them: %s", where, cairn_last_error(rt));
    free(expected);
    drop(&keys), drop(&scales), drop(&slots), drop(&some), drop(&paged), drop(&back), drop(&back_scales);
}

/* Requests of 0, 1, 63, 64 and 65 tokens on shuffled pages; one page missing. */
static void test_gather_table(void) {
    enum { SIZE = 64, R = 5, PAGES = R * 2 };
    static const int lens[R] = {1, 0, 63, 64, 65};
    both paged = make(CAIRN_U8, 3, PAGES, SIZE, 132), table = make(CAIRN_I32, 2, R, 2, 0), cu = make(CAIRN_I32, 1, R + 1, 0, 0);
    both keys = make(CAIRN_E4M3, 2, 200, 128, 0), scales = make(CAIRN_F32, 1, 200, 0, 0);
    cairn_index_gather_args a = {sizeof a, paged.t, NULL, table.t, cu.t, keys.t, scales.t};
    cairn_status status;
    bool fine;
    fill_bytes(&paged);
    shuffle(ints(&table), PAGES), upload(&table);
    ints(&cu)[0] = 3; /* rows before and behind belong to no request */
    for (int b = 0; b < R; b++) ints(&cu)[b + 1] = ints(&cu)[b] + lens[b];
    upload(&cu);
    fine = went(settled(cairn_index_gather(rt, &a)));
    download(&keys), download(&scales);
    for (int b = 0; b < R; b++)
        for (int t = 0; t < lens[b]; t++) {
            int slot = ints(&table)[b * 2 + t / SIZE] * SIZE + t % SIZE, r = ints(&cu)[b] + t;
            fine = fine && !memcmp(bytes(&keys) + r * 128, bytes(&paged) + key_byte(slot, SIZE), 128) &&
                   !memcmp(floats(&scales) + r, bytes(&paged) + scale_byte(slot, SIZE), 4);
        }
    for (int i = 0; i < 3 * 128; i++) fine = fine && bytes(&keys)[i] == 0xff;
    for (int i = ints(&cu)[R] * 128; i < 200 * 128; i++) fine = fine && bytes(&keys)[i] == 0xff;
    tap_ok(fine, "%s: index_gather by page table: 0, 1, 63, 64, 65 tokens, other rows untouched", where);
    ints(&table)[9] = -1, upload(&table);
    status = settled(cairn_index_gather(rt, &a));
    download(&keys);
    tap_ok(status == CAIRN_BAD_DATA && bytes(&keys)[(ints(&cu)[4] + 64) * 128 + 5] == 0,
           "%s: index_gather: a token on no page gives zeros: %s", where, cairn_last_error(rt));
    drop(&paged), drop(&table), drop(&cu), drop(&keys), drop(&scales);
}

/* ---- logits ---- */

/* How far a logit may be off, of the magnitudes of its terms. Tensor cores that multiply e4m3 cut the 32
 * products of a step at 13 bits below the largest: each is off by less than 2^-13 of it, to either side
 * alike, 32 of them by 2^-13 * sqrt(32 / 3) in the mean, which is 2^-10 at two and a half times that.
 * With products of f16, on the CPU and in the emulation sums are of f32. */
static double near_enough(void) {
    const bool cut = rt->device.cuda && !few && CAIRN_INDEX_FP8(rt->device.arch);
    return cut ? 0x1p-10 : 2e-5;
}

/* Of one window: the relative difference of semantics, and no value far off. */
typedef struct nearness { double xy, xx, yy; bool fine; int count; } nearness;
static void note_near(nearness *n, double x, double y, double size) {
    n->xy += x * y, n->xx += x * x, n->yy += y * y, n->count++;
    n->fine = n->fine && fabs(x - y) <= near_enough() * size + 1e-9;
}
/* How alike all are says nothing of a few: terms of both signs may leave next to nothing of one. */
static bool is_near(const nearness *n) {
    return n->fine && (n->count < 8 || n->xx + n->yy == 0 || 1 - 2 * n->xy / (n->xx + n->yy) < 5e-6);
}

/* The sum of what a logit's terms amount to, for its tolerance. */
static double size_of_logit(const uint8_t *q, const float *weights, int heads, const uint8_t *key, double scale) {
    double sum = 0;
    for (int h = 0; h < heads; h++) {
        double dot = 0;
        for (int d = 0; d < 128; d++) dot += fabs(ref_e4m3(q[h * 128 + d]) * ref_e4m3(key[d]));
        sum += fabs((double)weights[h]) * dot;
    }
    return sum * fabs(scale);
}

typedef struct ragged {
    int rows, heads, n;
    both q, weights, keys, scales, starts, lengths, out;
    cairn_index_logits_args args;
} ragged;

static ragged make_ragged(int rows, int heads, int n, int windows) {
    ragged g = {rows, heads, n, make(CAIRN_E4M3, 3, rows, heads, 128), make(CAIRN_F32, 2, rows, heads, 0),
                make(CAIRN_E4M3, 2, n, 128, 0), make(CAIRN_F32, 1, n, 0, 0), make(CAIRN_I32, 1, rows, 0, 0),
                make(CAIRN_I32, 1, rows, 0, 0), make(CAIRN_F32, 2, rows, n, 0), {0}};
    fill_bytes(&g.q), fill_floats(&g.weights), fill_bytes(&g.keys), fill_floats(&g.scales);
    for (int r = 0; r < rows; r++) {
        ints(&g.starts)[r] = windows ? between(0, n) : 0;
        ints(&g.lengths)[r] = windows ? between(0, n - ints(&g.starts)[r]) : n;
    }
    upload(&g.starts), upload(&g.lengths);
    g.args.struct_size = (uint32_t)sizeof g.args;
    g.args.q = g.q.t, g.args.weights = g.weights.t, g.args.keys = g.keys.t, g.args.key_scales = g.scales.t;
    g.args.row_starts = windows ? g.starts.t : NULL, g.args.lengths = windows ? g.lengths.t : NULL;
    g.args.out = g.out.t;
    return g;
}
static void drop_ragged(ragged *g) {
    drop(&g->q), drop(&g->weights), drop(&g->keys), drop(&g->scales), drop(&g->starts), drop(&g->lengths), drop(&g->out);
}

/* Every logit in its window; outside -inf or what was there: bytes of 0xff. */
static bool check_ragged(const ragged *g, int clean) {
    nearness near = {0, 0, 0, true, 0};
    bool fine = true;
    for (int r = 0; r < g->rows; r++)
        for (int j = 0; j < g->n; j++) {
            const float got = floats(&g->out)[r * g->n + j];
            const int from = ints(&g->starts)[r], to = from + ints(&g->lengths)[r];
            const uint8_t *q = bytes(&g->q) + (int64_t)r * g->heads * 128, *key = bytes(&g->keys) + j * 128;
            const float *w = floats(&g->weights) + r * g->heads;
            const double scale = (double)floats(&g->scales)[j];
            if (j >= from && j < to)
                note_near(&near, ref_index_logit(q, w, g->heads, key, scale), (double)got,
                          size_of_logit(q, w, g->heads, key, scale));
            else fine = fine && (clean ? got == -INFINITY : isnan(got));
        }
    if (!is_near(&near)) tap_note("off by %g", 1 - 2 * near.xy / (near.xx + near.yy));
    return fine && is_near(&near);
}

static void test_ragged(int rows, int heads, int n, int windows, int clean) {
    ragged g = make_ragged(rows, heads, n, windows);
    bool fine;
    g.args.clean = clean;
    fine = went(settled(cairn_index_logits(rt, &g.args)));
    download(&g.out);
    tap_ok(fine && check_ragged(&g, clean), "%s: index_logits: %d rows, %d heads, %d keys%s%s", where, rows, heads, n,
           windows ? ", windows" : "", clean ? ", clean" : "");
    drop_ragged(&g);
}

/* A row's bits are the same alone, and at another place of the output. */
static void test_alone(void) {
    ragged g = make_ragged(6, 16, 300, 0);
    float *whole = (float *)malloc(g.out.bytes);
    cairn_tensor q = *g.q.t, weights = *g.weights.t, out = *g.out.t;
    int64_t one[3] = {1, 16, 128}, two[2] = {1, 16}, row[2] = {1, 300};
    bool fine = went(settled(cairn_index_logits(rt, &g.args)));
    download(&g.out);
    memcpy(whole, g.out.host, g.out.bytes);
    memset(g.out.host, 0xff, g.out.bytes), upload(&g.out);
    q.shape = one, weights.shape = two, out.shape = row;
    q.strides = weights.strides = out.strides = NULL;
    q.byte_offset += 3 * 16 * 128, weights.byte_offset += 3 * 16 * 4;
    g.args.q = &q, g.args.weights = &weights, g.args.out = &out;
    fine = fine && went(settled(cairn_index_logits(rt, &g.args)));
    download(&g.out);
    tap_ok(fine && !memcmp(g.out.host, whole + 3 * 300, 300 * 4), "%s: index_logits: a row's bits are its own", where);
    free(whole);
    drop_ragged(&g);
}

static void test_ragged_faults(void) {
    ragged g = make_ragged(4, 8, 40, 1);
    cairn_status status;
    ints(&g.starts)[0] = -3, ints(&g.lengths)[0] = 2, ints(&g.starts)[2] = 30, ints(&g.lengths)[2] = 99;
    upload(&g.starts), upload(&g.lengths);
    bytes(&g.keys)[31 * 128] = 0x7f, floats(&g.scales)[32] = NAN;
    upload(&g.keys), upload(&g.scales);
    status = settled(cairn_index_logits(rt, &g.args));
    download(&g.out);
    tap_ok(status == CAIRN_BAD_DATA && !isnan(floats(&g.out)[1]) && isnan(floats(&g.out)[2]) &&
           floats(&g.out)[2 * 40 + 31] == 0.0f && isnan(floats(&g.out)[2 * 40 + 32]) && !isnan(floats(&g.out)[2 * 40 + 39]),
           "%s: index_logits: windows are cut; a NaN key counts as 0, a NaN scale stays: %s", where, cairn_last_error(rt));
    drop_ragged(&g);
}

/* ---- paged ---- */

typedef struct paged {
    int requests, drafts, heads, size, max_pages, rows, n;
    both q, weights, cache, table, lengths, out;
    cairn_index_logits_paged_args args;
} paged;

static const int lens[] = {257, 0, 1, 63, 64, 65, 255, 256};

/* The rows of a request see one token more each; what no row sees is 0xff. */
static paged make_paged(int requests, int drafts, int heads, int size, int shorter) {
    const int tokens = shorter ? 80 : 272, max_pages = (tokens + size - 1) / size + 1, rows = requests * drafts;
    paged g = {requests, drafts, heads, size, max_pages, rows, tokens, make(CAIRN_E4M3, 3, rows, heads, 128),
               make(CAIRN_F32, 2, rows, heads, 0), make(CAIRN_U8, 3, requests * max_pages, size, 132),
               make(CAIRN_I32, 2, requests, max_pages, 0), make(CAIRN_I32, 1, rows, 0, 0),
               make(CAIRN_F32, 2, rows, tokens, 0), {0}};
    fill_bytes(&g.q), fill_floats(&g.weights);
    shuffle(ints(&g.table), requests * max_pages);
    for (int b = 0; b < requests; b++) {
        int length = lens[(b + (shorter ? 2 : 0)) % 8], last;
        if (shorter && length > 65) length = 17;
        for (int j = 0; j < drafts; j++) ints(&g.lengths)[b * drafts + j] = length + j;
        last = length + drafts - 1;
        for (int t = 0; t < last; t++) {
            int slot = ints(&g.table)[b * max_pages + t / size] * size + t % size;
            float scale = uniform();
            for (int d = 0; d < 128; d++) bytes(&g.cache)[key_byte(slot, size) + d] = ref_to_e4m3((double)uniform() * 4);
            memcpy(bytes(&g.cache) + scale_byte(slot, size), &scale, 4);
        }
        for (int c = (last + size - 1) / size; c < max_pages; c++) ints(&g.table)[b * max_pages + c] = -1;
    }
    upload(&g.cache), upload(&g.table), upload(&g.lengths);
    g.args.struct_size = (uint32_t)sizeof g.args;
    g.args.n = tokens;
    g.args.q = g.q.t, g.args.weights = g.weights.t, g.args.cache = g.cache.t, g.args.page_table = g.table.t;
    g.args.lengths = g.lengths.t, g.args.out = g.out.t;
    return g;
}
static void drop_paged(paged *g) {
    drop(&g->q), drop(&g->weights), drop(&g->cache), drop(&g->table), drop(&g->lengths), drop(&g->out);
}

static bool check_paged(const paged *g, int clean) {
    nearness near = {0, 0, 0, true, 0};
    bool fine = true;
    for (int r = 0; r < g->rows; r++)
        for (int j = 0; j < g->n; j++) {
            const float got = floats(&g->out)[r * g->n + j];
            const uint8_t *q = bytes(&g->q) + (int64_t)r * g->heads * 128;
            const float *w = floats(&g->weights) + r * g->heads;
            float scale;
            int slot;
            if (j >= ints(&g->lengths)[r]) {
                fine = fine && (clean ? got == -INFINITY : isnan(got));
                continue;
            }
            slot = ints(&g->table)[r / g->drafts * g->max_pages + j / g->size] * g->size + j % g->size;
            memcpy(&scale, bytes(&g->cache) + scale_byte(slot, g->size), 4);
            note_near(&near, ref_index_logit(q, w, g->heads, bytes(&g->cache) + key_byte(slot, g->size), (double)scale),
                      (double)got,
                      size_of_logit(q, w, g->heads, bytes(&g->cache) + key_byte(slot, g->size), (double)scale));
        }
    return fine && is_near(&near);
}

/* The same call with the schedule of prepare_steps. */
static cairn_status run_scheduled(paged *g, both *schedule, int split) {
    both seq = make(CAIRN_I32, 1, g->requests, 0, 0);
    cairn_step_metadata step = {0};
    cairn_prepare_steps_args a = {0};
    cairn_status status;
    for (int b = 0; b < g->requests; b++) ints(&seq)[b] = ints(&g->lengths)[b * g->drafts] - 1;
    for (int b = 0; b < g->requests; b++) if (ints(&seq)[b] < 0) ints(&seq)[b] = 0;
    upload(&seq);
    step.struct_size = (uint32_t)sizeof step, step.index_schedule = schedule->t;
    a.struct_size = (uint32_t)sizeof a, a.mode = CAIRN_STEP_TARGET_VERIFY, a.step_count = 1;
    a.draft_tokens = g->drafts, a.index_split = split, a.seq_lens = seq.t, a.steps = &step;
    status = settled(cairn_prepare_steps(rt, &a));
    g->args.schedule = schedule->t, g->args.split = split;
    if (!status) status = settled(cairn_index_logits_paged(rt, &g->args));
    g->args.schedule = NULL, g->args.split = 0;
    drop(&seq);
    return status;
}

static void test_schedule(paged *g, int workers, int split) {
    both schedule = make(CAIRN_I32, 2, workers + 1, 2, 0);
    float *plain = (float *)malloc(g->out.bytes);
    cairn_status status;
    bool fine;
    download(&g->out);
    memcpy(plain, g->out.host, g->out.bytes);
    memset(g->out.host, 0xff, g->out.bytes), upload(&g->out);
    fine = went(run_scheduled(g, &schedule, split));
    download(&g->out);
    tap_ok(fine && !memcmp(plain, g->out.host, g->out.bytes), "%s: index_logits_paged: %d workers by splits of %d, the same bits",
           where, workers, split);
    download(&schedule);
    ints(&schedule)[2 * workers - 1] = 900; /* a split that is not there */
    upload(&schedule);
    g->args.schedule = schedule.t, g->args.split = split;
    status = settled(cairn_index_logits_paged(rt, &g->args));
    tap_ok(status == CAIRN_BAD_DATA, "%s: and a schedule that does not fit: %s", where, cairn_last_error(rt));
    g->args.schedule = NULL, g->args.split = 0;
    free(plain);
    drop(&schedule);
}

static void test_paged(int requests, int drafts, int heads, int size, int clean) {
    paged g = make_paged(requests, drafts, heads, size, few);
    both of = make(CAIRN_I32, 1, g.rows, 0, 0);
    bool fine;
    for (int r = 0; r < g.rows; r++) ints(&of)[r] = r / drafts;
    upload(&of);
    g.args.clean = clean;
    g.args.requests = size == 16 ? of.t : NULL;
    fine = went(settled(cairn_index_logits_paged(rt, &g.args)));
    download(&g.out);
    tap_ok(fine && check_paged(&g, clean), "%s: index_logits_paged: %d requests of %d rows, %d heads, pages of %d%s", where,
           requests, drafts, heads, size, clean ? ", clean" : "");
    g.args.requests = NULL;
    if (requests > 1 && ints(&g.lengths)[0] > 0 && !clean) test_schedule(&g, 5, size == 16 ? 16 : 256);
    drop(&of), drop_paged(&g);
}

/* Requests that have no pages yet, and no place in the table for one. */
static void test_paged_nothing(void) {
    paged g = make_paged(2, 2, 8, 16, 1);
    both none = make(CAIRN_I32, 2, 2, 0, 0);
    bool fine;
    memset(g.lengths.host, 0, g.lengths.bytes);
    upload(&g.lengths);
    g.args.page_table = none.t, g.args.clean = 1;
    fine = went(settled(cairn_index_logits_paged(rt, &g.args)));
    download(&g.out);
    tap_ok(fine && check_paged(&g, 1), "%s: index_logits_paged: a page table without pages", where);
    drop(&none), drop_paged(&g);
}

static void test_paged_faults(void) {
    paged g = make_paged(3, 1, 8, 16, 1);
    both of = make(CAIRN_I32, 1, 3, 0, 0);
    cairn_status status;
    ints(&g.lengths)[0] = ints(&g.lengths)[1] = ints(&g.lengths)[2] = 20;
    ints(&g.table)[0] = 0, ints(&g.table)[1] = 999;
    ints(&g.table)[g.max_pages] = 1, ints(&g.table)[g.max_pages + 1] = 2;
    memset(g.cache.host, 0, g.cache.bytes);
    ints(&of)[0] = 0, ints(&of)[1] = 1, ints(&of)[2] = 3;
    upload(&g.table), upload(&g.lengths), upload(&of), upload(&g.cache);
    g.args.requests = of.t;
    status = settled(cairn_index_logits_paged(rt, &g.args));
    download(&g.out);
    tap_ok(status == CAIRN_BAD_DATA && floats(&g.out)[15] == 0.0f && floats(&g.out)[16] == -INFINITY &&
           floats(&g.out)[g.n + 19] == 0.0f && floats(&g.out)[2 * g.n] == -INFINITY && isnan(floats(&g.out)[20]),
           "%s: index_logits_paged: a page and a request that are not there: %s", where, cairn_last_error(rt));
    ints(&g.lengths)[1] = g.n + 9999, ints(&of)[2] = 1, ints(&g.table)[1] = 3;
    upload(&g.lengths), upload(&of), upload(&g.table);
    tap_ok(settled(cairn_index_logits_paged(rt, &g.args)) == CAIRN_BAD_DATA, "%s: index_logits_paged: a length is cut: %s",
           where, cairn_last_error(rt));
    drop(&of), drop_paged(&g);
}

/* A schedule may begin behind rows without keys, and behind no other. */
static void test_schedule_begins(void) {
    paged g = make_paged(3, 1, 8, 16, 1);
    both schedule = make(CAIRN_I32, 2, 2, 2, 0);
    float *plain = (float *)malloc(g.out.bytes);
    cairn_status status;
    bool fine;
    for (int r = 0; r < 3; r++) ints(&g.lengths)[r] = r ? 17 : 0;
    for (int i = 0; i < 3 * g.max_pages; i++) ints(&g.table)[i] = i;
    memset(g.cache.host, 0, g.cache.bytes);
    ints(&schedule)[0] = 1, ints(&schedule)[1] = 0, ints(&schedule)[2] = 3, ints(&schedule)[3] = 0;
    upload(&g.lengths), upload(&schedule), upload(&g.table), upload(&g.cache);
    fine = went(settled(cairn_index_logits_paged(rt, &g.args)));
    download(&g.out);
    memcpy(plain, g.out.host, g.out.bytes);
    memset(g.out.host, 0xff, g.out.bytes), upload(&g.out);
    g.args.schedule = schedule.t, g.args.split = 16;
    fine = fine && went(settled(cairn_index_logits_paged(rt, &g.args)));
    download(&g.out);
    for (int r = 1; r < 3; r++) fine = fine && !memcmp(floats(&g.out) + r * g.n, plain + r * g.n, 17 * 4);
    tap_ok(fine, "%s: a schedule that begins behind a row without keys, the same bits", where);
    ints(&g.lengths)[0] = 17, upload(&g.lengths);
    status = settled(cairn_index_logits_paged(rt, &g.args));
    tap_ok(status == CAIRN_BAD_DATA, "%s: and behind one with keys: %s", where, cairn_last_error(rt));
    free(plain);
    drop(&schedule), drop_paged(&g);
}

/* ---- index_topk ---- */

typedef struct chosen { both indices, values; cairn_index_topk_args args; } chosen;

static chosen make_chosen(int rows, int k, bool values) {
    chosen c = {make(CAIRN_I32, 2, rows, k, 0), {0}, {0}};
    if (values) c.values = make(CAIRN_F32, 2, rows, k, 0);
    c.args.struct_size = (uint32_t)sizeof c.args;
    c.args.k = k, c.args.indices = c.indices.t, c.args.values = values ? c.values.t : NULL;
    return c;
}

/* The same for one row at a time, three, all, and by bytes. */
static void same_for_all(chosen *c, int n, const int32_t *expected, const char *what) {
    bool fine = true;
    for (int way = 0; way < 4 && fine; way++) {
        both scores = {NULL, NULL, 0};
        if (way < 3) scores = make(CAIRN_F32, 2, way == 0 ? 1 : way == 1 ? 3 : 64, n, 0);
        c->args.scores = scores.t, c->args.max_bytes = way == 3 ? (uint64_t)n * 8 : 0;
        memset(c->indices.host, 0x55, c->indices.bytes), upload(&c->indices);
        fine = went(settled(cairn_index_topk(rt, &c->args)));
        download(&c->indices);
        fine = fine && !memcmp(c->indices.host, expected, c->indices.bytes);
        if (!fine) tap_note("way %d", way);
        drop(&scores);
    }
    tap_ok(fine, "%s: index_topk: %s, the same for 1, 2, 3 and all rows at a time", where, what);
    c->args.scores = NULL, c->args.max_bytes = 0;
}

static void test_topk_ragged(int rows, int n, int k, bool values) {
    ragged g = make_ragged(rows, 8, n, 1);
    chosen c = make_chosen(rows, k, values);
    both offsets = make(CAIRN_I32, 1, rows, 0, 0);
    int32_t *expected = (int32_t *)malloc(c.indices.bytes);
    bool fine = went(settled(cairn_index_logits(rt, &g.args)));
    download(&g.out);
    for (int r = 0; r < rows; r++)
        ref_best(floats(&g.out) + (int64_t)r * n, ints(&g.starts)[r], ints(&g.starts)[r] + ints(&g.lengths)[r], k, expected + r * k);
    c.args.q = g.q.t, c.args.weights = g.weights.t, c.args.keys = g.keys.t, c.args.key_scales = g.scales.t;
    c.args.row_starts = g.starts.t, c.args.lengths = g.lengths.t;
    same_for_all(&c, n, expected, values ? "POS and values" : "POS");
    for (int r = 0; values && r < rows; r++)
        for (int i = 0; i < k; i++) {
            float *got = floats(&c.values) + r * k + i;
            if (!r && !i) download(&c.values);
            fine = fine && (expected[r * k + i] < 0 ? *got == -INFINITY
                                                    : *got == floats(&g.out)[r * n + ints(&g.starts)[r] + expected[r * k + i]]);
        }
    if (values) tap_ok(fine, "%s: index_topk: the values are the logits, bit for bit", where);
    for (int r = 0; r < rows; r++) ints(&offsets)[r] = 1000 * r;
    for (int i = 0; i < rows * k; i++) expected[i] += expected[i] < 0 ? 0 : 1000 * (i / k);
    upload(&offsets);
    c.args.offsets = offsets.t;
    same_for_all(&c, n, expected, "FLAT");
    free(expected);
    drop(&offsets), drop(&c.indices), drop(&c.values), drop_ragged(&g);
}

static void test_topk_paged(int requests, int drafts, int size, int k) {
    paged g = make_paged(requests, drafts, 8, size, few);
    chosen c = make_chosen(g.rows, k, false);
    int32_t *expected = (int32_t *)malloc(c.indices.bytes);
    bool fine = went(settled(cairn_index_logits_paged(rt, &g.args)));
    download(&g.out);
    for (int r = 0; r < g.rows; r++) ref_best(floats(&g.out) + r * g.n, 0, ints(&g.lengths)[r], k, expected + r * k);
    c.args.q = g.q.t, c.args.weights = g.weights.t, c.args.cache = g.cache.t, c.args.page_table = g.table.t;
    c.args.lengths = g.lengths.t, c.args.n = g.n;
    same_for_all(&c, g.n, expected, fine ? "paged, POS" : "?");
    for (int i = 0; i < g.rows * k; i++)
        if (expected[i] >= 0)
            expected[i] = ints(&g.table)[i / k / drafts * g.max_pages + expected[i] / size] * size + expected[i] % size;
    c.args.slots = 1;
    same_for_all(&c, g.n, expected, "paged, SLOT");
    free(expected);
    drop(&c.indices), drop_paged(&g);
}

/* A page of one row is not there: that is said, and the other rows are as they were. */
static void test_topk_faults(void) {
    paged g = make_paged(3, 1, 8, 16, 1);
    chosen c = make_chosen(3, 4, false);
    int32_t before[3 * 4];
    cairn_status status;
    bool fine;
    for (int r = 0; r < 3; r++) ints(&g.lengths)[r] = 30;
    for (int i = 0; i < 3 * g.max_pages; i++) ints(&g.table)[i] = i;
    for (size_t i = 0; i < g.cache.bytes; i++) bytes(&g.cache)[i] = (uint8_t)(draw() & 0x3f);
    upload(&g.lengths), upload(&g.table), upload(&g.cache);
    c.args.q = g.q.t, c.args.weights = g.weights.t, c.args.cache = g.cache.t, c.args.page_table = g.table.t;
    c.args.lengths = g.lengths.t, c.args.n = g.n;
    fine = went(settled(cairn_index_topk(rt, &c.args)));
    download(&c.indices);
    memcpy(before, c.indices.host, sizeof before);
    ints(&g.table)[g.max_pages + 1] = 999, upload(&g.table);
    memset(c.indices.host, 0x55, c.indices.bytes), upload(&c.indices);
    status = settled(cairn_index_topk(rt, &c.args));
    download(&c.indices);
    fine = fine && !memcmp(before, ints(&c.indices), 16) && !memcmp(before + 8, ints(&c.indices) + 8, 16);
    for (int i = 4; i < 8; i++) fine = fine && ints(&c.indices)[i] >= 0 && ints(&c.indices)[i] < 30;
    tap_ok(fine && status == CAIRN_BAD_DATA && strstr(cairn_last_error(rt), "index_topk"),
           "%s: index_topk: a page that is not there: %s", where, cairn_last_error(rt));
    ints(&g.table)[g.max_pages + 1] = g.max_pages + 1, upload(&g.table);
    fine = went(settled(cairn_index_topk(rt, &c.args)));
    download(&c.indices);
    tap_ok(fine && !memcmp(before, c.indices.host, sizeof before), "%s: and with it all is well again", where);
    drop(&c.indices), drop_paged(&g);
}

/* At most k keys: nothing is scored, so q may hold anything; the same sets as the long way at length
 * k, and one key more is scored. */
static void test_topk_short(void) {
    ragged g = make_ragged(3, 8, 20, 0);
    chosen c = make_chosen(3, 20, false), l = make_chosen(3, 20, true);
    bool fine;
    c.args.q = l.args.q = g.q.t, c.args.weights = l.args.weights = g.weights.t;
    c.args.keys = l.args.keys = g.keys.t, c.args.key_scales = l.args.key_scales = g.scales.t;
    fine = went(settled(cairn_index_topk(rt, &c.args))) && went(settled(cairn_index_topk(rt, &l.args)));
    download(&c.indices), download(&l.indices);
    for (int i = 0; i < 60; i++) fine = fine && ints(&c.indices)[i] == i % 20;
    tap_ok(fine && !memcmp(c.indices.host, l.indices.host, c.indices.bytes),
           "%s: index_topk of at most k keys: all of them, with and without scores", where);
    drop(&c.indices), drop(&l.indices), drop(&l.values), drop_ragged(&g);
}

/* ---- index_transform ---- */

static void test_transform(void) {
    enum { ROWS = 6, N = 300, K = 40, SIZE = 48, R = 3, PAGES = 7 };
    both scores = make(CAIRN_F32, 2, ROWS, N, 0), lengths = make(CAIRN_I32, 1, ROWS, 0, 0);
    both table = make(CAIRN_I32, 2, R, PAGES, 0), offsets = make(CAIRN_I32, 1, ROWS, 0, 0), of = make(CAIRN_I32, 1, ROWS, 0, 0);
    both fused = make(CAIRN_I32, 2, ROWS, K, 0), apart = make(CAIRN_I32, 2, ROWS, K, 0);
    cairn_status status;
    fill_floats(&scores);
    shuffle(ints(&table), R * PAGES), upload(&table);
    for (int r = 0; r < ROWS; r++) ints(&lengths)[r] = r == 1 ? 0 : r == 2 ? 17 : N, ints(&offsets)[r] = r * 5000, ints(&of)[r] = r % R;
    upload(&lengths), upload(&offsets), upload(&of);
    for (int form = 0; form < 3; form++) {
        cairn_topk_transform_args f = {0};
        cairn_topk_args p = {0};
        cairn_index_transform_args t = {0};
        bool fine;
        f.struct_size = (uint32_t)sizeof f, p.struct_size = (uint32_t)sizeof p, t.struct_size = (uint32_t)sizeof t;
        f.k = p.k = K, f.scores = p.scores = scores.t, f.lengths = p.lengths = lengths.t;
        f.page_table = t.page_table = form < 2 ? table.t : NULL, f.offsets = t.offsets = form == 2 ? offsets.t : NULL;
        f.requests = t.requests = form == 1 ? of.t : NULL;
        f.page_size = t.page_size = SIZE;
        f.indices = fused.t, p.indices = apart.t;
        t.positions = t.indices = apart.t; /* in place */
        fine = went(settled(cairn_topk_transform(rt, &f))) && went(settled(cairn_topk(rt, &p))) &&
               went(settled(cairn_index_transform(rt, &t)));
        download(&fused), download(&apart);
        tap_ok(fine && !memcmp(fused.host, apart.host, fused.bytes), "%s: index_transform in place is topk_transform, %s", where,
               form == 0 ? "SLOT" : form == 1 ? "SLOT by requests" : "FLAT");
        if (form != 1) continue;
        ints(&apart)[0] = -1, ints(&apart)[1] = 5, ints(&apart)[2] = PAGES * SIZE, ints(&apart)[3] = -9, ints(&apart)[4] = 6;
        upload(&apart);
        status = settled(cairn_index_transform(rt, &t));
        download(&apart);
        tap_ok(status == CAIRN_BAD_DATA && ints(&apart)[0] == -1 && ints(&apart)[1] == ints(&table)[0] * SIZE + 5 &&
               ints(&apart)[2] == -1 && ints(&apart)[3] == -1 && ints(&apart)[4] == ints(&table)[0] * SIZE + 6,
               "%s: index_transform: -1 stays, what has no place is -1: %s", where, cairn_last_error(rt));
        t.offsets = offsets.t;
        tap_ok(cairn_index_transform(rt, &t) == CAIRN_INVALID_ARGUMENT, "%s: both maps are refused: %s", where, cairn_last_error(rt));
        t.offsets = NULL, t.page_table = NULL, t.requests = NULL;
        tap_ok(cairn_index_transform(rt, &t) == CAIRN_INVALID_ARGUMENT, "%s: no map is refused: %s", where, cairn_last_error(rt));
    }
    drop(&scores), drop(&lengths), drop(&table), drop(&offsets), drop(&of), drop(&fused), drop(&apart);
}

/* ---- index_qk ---- */

typedef struct forward {
    int rows, heads, hidden, in;
    both x, latent, wk, wq, gate, norm, bias, positions, q, weights, keys, scales;
    cairn_index_qk_args args;
} forward;

static forward make_forward(int rows, int heads, int hidden, int in) {
    forward f = {rows, heads, hidden, in, make(CAIRN_F32, 2, rows, hidden, 0), make(CAIRN_F32, 2, rows, in, 0),
                 make(CAIRN_F32, 2, 128, hidden, 0), make(CAIRN_F32, 2, heads * 128, in, 0), make(CAIRN_F32, 2, heads, hidden, 0),
                 make(CAIRN_F32, 1, 128, 0, 0), make(CAIRN_F32, 1, 128, 0, 0), make(CAIRN_I32, 1, rows, 0, 0),
                 make(CAIRN_E4M3, 3, rows, heads, 128), make(CAIRN_F32, 2, rows, heads, 0), make(CAIRN_E4M3, 2, rows, 128, 0),
                 make(CAIRN_F32, 1, rows, 0, 0), {0}};
    fill_floats(&f.x), fill_floats(&f.latent), fill_floats(&f.wk), fill_floats(&f.wq), fill_floats(&f.gate);
    fill_floats(&f.norm), fill_floats(&f.bias);
    for (int r = 0; r < rows; r++) ints(&f.positions)[r] = r == 0 ? 0 : between(0, 200000);
    upload(&f.positions);
    f.args.struct_size = (uint32_t)sizeof f.args;
    f.args.x = f.x.t, f.args.wk = f.wk.t, f.args.norm_weight = f.norm.t, f.args.norm_bias = f.bias.t;
    f.args.positions = f.positions.t, f.args.q_latent = f.latent.t, f.args.wq = f.wq.t, f.args.gate = f.gate.t;
    f.args.q = f.q.t, f.args.weights = f.weights.t, f.args.keys = f.keys.t, f.args.key_scales = f.scales.t;
    return f;
}
static void drop_forward(forward *f) {
    drop(&f->x), drop(&f->latent), drop(&f->wk), drop(&f->wq), drop(&f->gate), drop(&f->norm), drop(&f->bias);
    drop(&f->positions), drop(&f->q), drop(&f->weights), drop(&f->keys), drop(&f->scales);
}

static double project(const both *x, int r, const both *w, int o, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)floats(x)[r * n + i] * (double)floats(w)[(int64_t)o * n + i];
    return sum;
}

/* Whether 128 bytes and a scale stand for v: within a step of e4m3 and the f16 of the products. */
static bool stands_for(const uint8_t *got, float scale, const double *v, int power_of_two) {
    double most = 0;
    int exponent;
    for (int d = 0; d < 128; d++) most = fmax(most, fabs(v[d]));
    if (power_of_two ? frexp((double)scale, &exponent) != 0.5 : fabs((double)scale * 448 - most) > 3e-3 * most) return false;
    if (power_of_two && !((double)scale * 448 >= most * 0.997 && (double)scale * 224 <= most * 1.003)) return false;
    for (int d = 0; d < 128; d++)
        if (!(fabs(ref_e4m3(got[d]) * (double)scale - v[d]) <= fabs(v[d]) / 16 + 3e-3 * most)) return false;
    return true;
}

static bool check_forward(const forward *f, bool keys_only) {
    const double theta = f->args.rope_base == 0.0f ? 10000.0 : (double)f->args.rope_base;
    double v[128];
    for (int r = 0; r < f->rows; r++) {
        const int position = ints(&f->positions)[r];
        for (int d = 0; d < 128; d++) v[d] = project(&f->x, r, &f->wk, d, f->hidden);
        ref_layer_norm(v, floats(&f->norm), f->args.norm_bias ? floats(&f->bias) : NULL, 1e-6);
        ref_index_head(v, position, theta, v);
        if (!stands_for(bytes(&f->keys) + r * 128, floats(&f->scales)[r], v, f->args.power_of_two)) return false;
        for (int h = 0; h < f->heads && !keys_only; h++) {
            double want, got = (double)floats(&f->weights)[r * f->heads + h], scale;
            for (int d = 0; d < 128; d++) v[d] = project(&f->latent, r, &f->wq, h * 128 + d, f->in);
            ref_index_head(v, position, theta, v);
            want = project(&f->x, r, &f->gate, h, f->hidden) / sqrt(f->heads * 128.0);
            scale = fabs(want) > 1e-3 ? got / want : -1.0; /* the weight says the scale */
            if (scale < 0) continue;
            if (!f->args.power_of_two) scale = (double)ref_fp8_scale(fabs(scale) * 448, 0);
            else scale = ldexp(1.0, (int)lrint(log2(scale)));
            if (fabs(got - want * scale) > 4e-3 * scale) return false;
            if (f->args.power_of_two && !stands_for(bytes(&f->q) + ((int64_t)r * f->heads + h) * 128, (float)scale, v, 1)) return false;
        }
    }
    return true;
}

static void test_qk(int rows, int heads, int power_of_two, bool bias) {
    forward f = make_forward(rows, heads, 64, 32);
    both keys = make(CAIRN_E4M3, 2, rows, 128, 0);
    bool fine;
    f.args.power_of_two = power_of_two, f.args.rope_base = bias ? 0.0f : 500000.0f;
    if (!bias) f.args.norm_bias = NULL;
    fine = went(settled(cairn_index_qk(rt, &f.args)));
    download(&f.q), download(&f.weights), download(&f.keys), download(&f.scales);
    tap_ok(fine && check_forward(&f, false), "%s: index_qk: %d rows, %d heads, %s scales", where, rows, heads,
           power_of_two ? "power-of-two" : "f32");
    f.args.q_latent = f.args.wq = f.args.gate = NULL, f.args.q = f.args.weights = NULL, f.args.keys = keys.t;
    fine = went(settled(cairn_index_qk(rt, &f.args)));
    download(&keys);
    tap_ok(fine && !memcmp(keys.host, f.keys.host, keys.bytes), "%s: index_qk: the keys alone, the same bytes", where);
    ints(&f.positions)[rows - 1] = -4, upload(&f.positions);
    tap_ok(settled(cairn_index_qk(rt, &f.args)) == CAIRN_BAD_DATA, "%s: index_qk: a position below 0: %s", where, cairn_last_error(rt));
    drop(&keys), drop_forward(&f);
}

/* ---- calls that are refused ---- */

#define REFUSED(call, text) ((call) == CAIRN_INVALID_ARGUMENT && strstr(cairn_last_error(rt), text))

static void test_refused(void) {
    ragged g = make_ragged(4, 8, 40, 0);
    paged p = make_paged(2, 2, 8, 16, 1);
    chosen c = make_chosen(4, 4, false);
    forward f = make_forward(1, 8, 32, 32);
    both odd = make(CAIRN_I32, 2, 3, 4, 0), worker = make(CAIRN_I32, 2, 1, 2, 0), narrow = make(CAIRN_F32, 2, 2, 39, 0);
    bool fine = true;
    c.args.q = g.q.t, c.args.weights = g.weights.t;
    fine = fine && REFUSED(cairn_index_topk(rt, &c.args), "keys or cache");
    c.args.keys = g.keys.t;
    fine = fine && REFUSED(cairn_index_topk(rt, &c.args), "key_scales");
    c.args.key_scales = g.scales.t, c.args.slots = 1;
    fine = fine && REFUSED(cairn_index_topk(rt, &c.args), "slots are wanted");
    c.args.slots = 0, c.args.page_table = odd.t;
    fine = fine && REFUSED(cairn_index_topk(rt, &c.args), "page_table");
    c.args.page_table = NULL, c.args.scores = narrow.t;
    fine = fine && REFUSED(cairn_index_topk(rt, &c.args), "scores has 39 columns");
    c.args.scores = NULL, c.args.n = 41;
    fine = fine && REFUSED(cairn_index_topk(rt, &c.args), "n = 41");
    c.args.n = 0, c.args.route = "fastest";
    fine = fine && REFUSED(cairn_index_topk(rt, &c.args), "route");
    c.args.route = NULL, c.args.keys = NULL, c.args.key_scales = NULL, c.args.cache = p.cache.t;
    fine = fine && REFUSED(cairn_index_topk(rt, &c.args), "with cache");
    c.args.page_table = p.table.t, c.args.lengths = p.lengths.t, c.args.n = p.max_pages * 16 + 1;
    fine = fine && REFUSED(cairn_index_topk(rt, &c.args), "at most");
    p.args.page_table = odd.t;
    fine = fine && REFUSED(cairn_index_logits_paged(rt, &p.args), "page_table");
    p.args.page_table = p.table.t, p.args.split = 24;
    fine = fine && REFUSED(cairn_index_logits_paged(rt, &p.args), "split = 24");
    p.args.split = 0, p.args.schedule = worker.t;
    fine = fine && REFUSED(cairn_index_logits_paged(rt, &p.args), "schedule");
    f.args.gate = NULL;
    fine = fine && REFUSED(cairn_index_qk(rt, &f.args), "together");
    f.args.gate = f.gate.t, f.args.wq = f.wk.t;
    fine = fine && REFUSED(cairn_index_qk(rt, &f.args), "wq has 128 outputs");
    if (!fine) tap_note("%s", cairn_last_error(rt));
    tap_ok(fine, "%s: calls whose arguments do not belong together are refused", where);
    drop(&odd), drop(&worker), drop(&narrow), drop(&c.indices), drop_ragged(&g), drop_paged(&p), drop_forward(&f);
}

static void test_all(cairn_runtime *opened, const char *name) {
    rt = opened, where = name, few = is_emulated(rt->config.backend);
    for (int i = 0; i < (few ? 2 : 6); i++) test_quantize((cairn_type)(CAIRN_F32 + (few ? 2 * i : i % 3)), i & 1);
    test_quantize_golden();
    test_cache(16);
    if (!few) test_cache(64), test_cache(80);
    test_gather_table();
    test_ragged(1, 8, 1, 0, 0);
    test_ragged(5, few ? 8 : 64, few ? 150 : 300, 1, 1);
    test_ragged(7, 16, 129, 1, 0);
    if (!few) test_ragged(9, 32, 2100, 1, 0), test_ragged(1, 256, 40, 0, 1), test_ragged(66, 8, 200, 1, 1);
    test_alone(), test_ragged_faults();
    test_paged(few ? 3 : 8, 2, 16, 64, 0), test_paged(few ? 2 : 8, 1, 8, 16, 0), test_paged(3, 5, 8, 64, 1);
    if (!few) test_paged(2, 4, 64, 64, 0), test_paged(1, 3, 24, 48, 1);
    test_paged(1, 3, 96, 16, 0), test_ragged(3, 128, 70, 1, 0); /* rows in pairs, of more heads than a product has */
    test_paged_nothing(), test_paged_faults(), test_schedule_begins();
    test_topk_ragged(7, few ? 90 : 700, few ? 12 : 100, false), test_topk_ragged(3, 60, 20, true);
    test_topk_ragged(3, 0, 5, true); /* no keys */
    test_topk_paged(few ? 2 : 8, few ? 2 : 3, 16, 24);
    test_topk_short(), test_topk_faults();
    test_transform();
    test_qk(few ? 3 : 20, 8, 1, true);
    test_qk(few ? 2 : 520, 8, 0, false);
    test_refused();
}

int main(void) {
    cairn_config config;
    seed = random_seed();
    cairn_config_default(&config);
    config.log = CAIRN_LOG_OFF;
    run_on_backends(&config, "index", test_all);
    return tap_done();
}

/* kv_append and kv_collate against plain loops, on the CPU and, where there is one, on the GPU: every
 * pair of types, odd shapes, shuffled page tables, every byte of the cache compared, bad data in
 * device memory, graphs replayed over changing lengths, no driver call but the launch.
 * emulated: asan race */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "ref/f16_ref.h"
#include "tap.h"
#include "backends.h"

static uint64_t seed;
static cairn_runtime *rt;
static const char *where;
static int allocations;

static uint32_t draw(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}
static int between(int low, int high) { return low + (int)(draw() % (uint32_t)(high - low + 1)); }

typedef struct both { cairn_tensor *t; void *host; size_t bytes; } both;

static both make(cairn_type type, int rank, int64_t a, int64_t b_, int64_t c, int64_t d, int64_t e) {
    int64_t shape[5];
    both b;
    int i;
    shape[0] = a, shape[1] = b_, shape[2] = c, shape[3] = d, shape[4] = e;
    b.bytes = cairn_type_bytes(type);
    for (i = 0; i < rank; i++) b.bytes *= (size_t)shape[i];
    b.host = calloc(b.bytes + 1, 1);
    if (cairn_tensor_new(rt, type, rank, shape, &b.t)) printf("# %s\n", cairn_last_error(rt));
    return b;
}
static void upload(both *b) { cairn_tensor_write(rt, b->t, b->host, b->bytes); }
static void download(both *b) { cairn_tensor_read(rt, b->t, b->host, b->bytes); }
static void drop(both *b) { cairn_tensor_free(rt, b->t); free(b->host); }
static void randomize(both *b) {
    size_t i;
    for (i = 0; i < b->bytes; i++) ((uint8_t *)b->host)[i] = (uint8_t)draw();
    upload(b);
}
static int32_t *ints(both *b) { return (int32_t *)b->host; }

static void report(cairn_status status) {
    if (status) printf("# %s: %s\n", cairn_status_name(status), cairn_last_error(rt));
}

/* The op's own status, or what the next wait reports. */
static cairn_status settled(cairn_status status) { return status ? status : cairn_sync(rt); }

/* ---- elements in double ---- */

static double ref_e4m3(uint8_t x) {
    int exponent = x >> 3 & 15, mantissa = x & 7;
    double sign = x & 0x80 ? -1.0 : 1.0;
    if (exponent == 15 && mantissa == 7) return (double)NAN;
    return sign * (exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9));
}

static uint8_t ref_to_e4m3(double x) {
    int i, best = 0;
    for (i = 1; i < 127; i++) {
        double gap = fabs(fabs(x) - ref_e4m3((uint8_t)i)), least = fabs(fabs(x) - ref_e4m3((uint8_t)best));
        if (gap < least || (gap == least && !(i & 1))) best = i;
    }
    return (uint8_t)(best | (signbit(x) ? 0x80 : 0));
}

static double element(cairn_type type, const void *data, int64_t at) {
    uint32_t bits;
    float x;
    switch (type) {
    case CAIRN_F16: return ref_f16(((const uint16_t *)data)[at]);
    case CAIRN_E4M3: return ref_e4m3(((const uint8_t *)data)[at]);
    case CAIRN_BF16:
        bits = (uint32_t)((const uint16_t *)data)[at] << 16;
        memcpy(&x, &bits, 4);
        return (double)x;
    default: return (double)((const float *)data)[at];
    }
}

static void put_element(cairn_type type, void *data, size_t at, float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (type == CAIRN_F32) ((float *)data)[at] = x;
    else if (type == CAIRN_F16) ((uint16_t *)data)[at] = ref_to_f16((double)x);
    else ((uint16_t *)data)[at] = (uint16_t)(bits >> 16);
}

/* Values in +-[2^-6, 4) of the type, and zeros of both signs. */
static void fill(both *b, cairn_type type) {
    size_t i;
    for (i = 0; i < b->bytes / cairn_type_bytes(type); i++) {
        float x = ldexpf(1.0f + (float)(draw() & 1023) / 1024.0f, between(-6, 1)) * (draw() & 1 ? 1.0f : -1.0f);
        if (draw() % 32 == 0) x *= 0.0f;
        put_element(type, b->host, i, x);
    }
    upload(b);
}

/* Heads of all magnitudes whose values divided by the scale lie at or beside the middle of two e4m3
 * numbers, where an inexact division shows. */
static void fill_middles(both *b, cairn_type type, int dim) {
    size_t i;
    float most = 0;
    for (i = 0; i < b->bytes / cairn_type_bytes(type); i++) {
        int code = between(0, 125);
        double middle = (ref_e4m3((uint8_t)code) + ref_e4m3((uint8_t)(code + 1))) / 896;
        if (i % (size_t)dim == 0)
            most = ldexpf(1.0f + (float)(draw() & 1023) / 1024.0f, type == CAIRN_F16 ? between(-13, 15) : between(-13, 127));
        put_element(type, b->host, i, i % (size_t)dim ? most * (float)middle * (draw() & 1 ? 1.0f : -1.0f) : most);
    }
    upload(b);
}

/* ---- kv_append ---- */

typedef struct shape {
    int rows, sequences, max_pages, pages, heads, size, dim;
    cairn_type source, stored;
} shape;

typedef struct append {
    shape s;
    both cache, scales, table, of, at, k, v;
    uint8_t *before, *expected; /* the cache's bytes; 1 where a value is expected */
    cairn_kv_append_args args;
} append;

/* Page ids in random order from `first` on. */
static void shuffle_ids(int32_t *ids, int count, int first) {
    int i;
    for (i = 0; i < count; i++) ids[i] = first + i;
    for (i = count - 1; i > 0; i--) {
        int j = between(0, i);
        int32_t swap = ids[i];
        ids[i] = ids[j], ids[j] = swap;
    }
}

static append make_append(const shape *s) {
    append a;
    int r, slots = s->max_pages * s->size;
    memset(&a, 0, sizeof a);
    a.s = *s;
    a.cache = make(s->stored, 5, s->pages, 2, s->heads, s->size, s->dim);
    a.scales = make(CAIRN_F32, 4, s->pages, 2, s->heads, s->size, 0);
    a.table = make(CAIRN_I32, 2, s->sequences, s->max_pages, 0, 0, 0);
    a.of = make(CAIRN_I32, 1, s->rows, 0, 0, 0, 0), a.at = make(CAIRN_I32, 1, s->rows, 0, 0, 0, 0);
    a.k = make(s->source, 3, s->rows, s->heads, s->dim, 0, 0);
    a.v = make(s->source, 3, s->rows, s->heads, s->dim, 0, 0);
    randomize(&a.cache), randomize(&a.scales), fill(&a.k, s->source), fill(&a.v, s->source);
    shuffle_ids(ints(&a.table), s->sequences * s->max_pages, 1);
    {
        int32_t *places = (int32_t *)malloc((size_t)(s->sequences * slots) * 4);
        shuffle_ids(places, s->sequences * slots, 0);
        for (r = 0; r < s->rows; r++) ints(&a.of)[r] = places[r] / slots, ints(&a.at)[r] = places[r] % slots;
        free(places);
    }
    upload(&a.table), upload(&a.of), upload(&a.at);
    a.before = (uint8_t *)malloc(a.cache.bytes);
    memcpy(a.before, a.cache.host, a.cache.bytes);
    a.args.struct_size = sizeof a.args;
    a.args.pages.cache = a.cache.t, a.args.pages.page_table = a.table.t;
    a.args.pages.sequences = a.of.t, a.args.pages.positions = a.at.t;
    a.args.k = a.k.t, a.args.v = a.v.t;
    if (s->stored == CAIRN_E4M3) a.args.scales = a.scales.t;
    return a;
}

static void drop_append(append *a) {
    drop(&a->cache), drop(&a->scales), drop(&a->table), drop(&a->of), drop(&a->at), drop(&a->k), drop(&a->v);
    free(a->before);
}

/* What value d of a row's head must be before it is rounded. */
static double rotated(const append *a, const both *x, int k_or_v, int64_t from, int d, int position) {
    int dim = a->args.rotary_dim ? a->args.rotary_dim : a->s.dim, pair, first, second;
    double u, v, angle;
    if (k_or_v || a->args.rope_base == 0.0f || d >= dim) return element(a->s.source, x->host, from + d);
    pair = a->args.half_split ? d % (dim / 2) : d / 2;
    first = a->args.half_split ? pair : 2 * pair;
    second = a->args.half_split ? pair + dim / 2 : first + 1;
    u = element(a->s.source, x->host, from + first), v = element(a->s.source, x->host, from + second);
    angle = position * pow((double)a->args.rope_base, -2.0 * pair / dim);
    return d == first ? u * cos(angle) - v * sin(angle) : u * sin(angle) + v * cos(angle);
}

static bool close_to(cairn_type type, double got, double want) {
    double relative = type == CAIRN_F32 ? 4e-6 : type == CAIRN_F16 ? 5.1e-4 : 4e-3;
    return fabs(got - want) <= relative * fabs(want) + 4e-6;
}

/* Whether the byte stands for x / scale where x is known to +- slack: it lies between the bytes
 * nearest to both ends. Without slack it is the byte of the quotient in f32. */
static bool is_e4m3_of(uint8_t got, double x, double scale, double slack) {
    if (slack == 0) return got == ref_to_e4m3((double)((float)x / (float)scale));
    return ref_e4m3(got) >= ref_e4m3(ref_to_e4m3((x - slack) / scale)) &&
           ref_e4m3(got) <= ref_e4m3(ref_to_e4m3((x + slack) / scale));
}

/* Rows that are not rotated have but one answer; the others that of some x as near as f32 comes. */
static bool check_e4m3(const append *a, int k_or_v, const double *want, int64_t row) {
    double most = 0, scale = (double)((const float *)a->scales.host)[row], slack;
    bool exact = k_or_v || a->args.rope_base == 0.0f;
    int d;
    for (d = 0; d < a->s.dim; d++) most = fabs(want[d]) > most ? fabs(want[d]) : most;
    most = most > (double)1e-4f ? most : (double)1e-4f;
    if (exact ? (float)scale != (float)most / 448.0f : !close_to(CAIRN_F32, scale * 448, most)) {
        printf("# scale %.9g of %.9g\n", scale, most);
        return false;
    }
    for (d = 0; d < a->s.dim; d++) {
        uint8_t got = ((const uint8_t *)a->cache.host)[row * a->s.dim + d];
        slack = exact ? 0 : 4e-6 * fabs(want[d]) + 4e-6; /* of close_to */
        if (is_e4m3_of(got, want[d], scale, slack)) continue;
        printf("# value %d: %.9g / %.9g is %02x, not %02x\n", d, want[d], scale, got,
               ref_to_e4m3(exact ? (double)((float)want[d] / (float)scale) : want[d] / scale));
        return false;
    }
    return true;
}

/* Every value where it belongs and every other byte as it was; rows whose flag in `skipped` is set
 * must have changed nothing. */
static bool check_append(append *a, const uint8_t *skipped) {
    const shape *s = &a->s;
    int64_t slots = (int64_t)s->pages * 2 * s->heads * s->size, row;
    size_t bytes = (size_t)s->dim * cairn_type_bytes(s->stored);
    uint8_t *written = (uint8_t *)calloc((size_t)slots, 1);
    float *scales = (float *)malloc(a->scales.bytes);
    bool fine = true;
    int r, h, d;
    memcpy(scales, a->scales.host, a->scales.bytes);
    download(&a->cache), download(&a->scales);
    for (r = 0; r < s->rows && fine; r++) {
        int position = ints(&a->at)[r];
        if (skipped && skipped[r]) continue;
        for (h = 0; h < 2 * s->heads && fine; h++) {
            int page = ints(&a->table)[ints(&a->of)[r] * s->max_pages + position / s->size], k_or_v = h / s->heads;
            double want[256];
            row = ((int64_t)page * 2 * s->heads + h) * s->size + position % s->size;
            written[row] = 1;
            for (d = 0; d < s->dim; d++)
                want[d] = rotated(a, k_or_v ? &a->v : &a->k, k_or_v, ((int64_t)r * s->heads + h % s->heads) * s->dim, d, position);
            if (s->stored == CAIRN_E4M3) fine = check_e4m3(a, k_or_v, want, row);
            for (d = 0; d < s->dim && fine && s->stored != CAIRN_E4M3; d++)
                fine = close_to(s->stored, element(s->stored, a->cache.host, row * s->dim + d), want[d]);
            if (!fine) printf("# row %d head %d position %d\n", r, h, position);
        }
    }
    for (row = 0; row < slots && fine; row++) {
        if (written[row]) continue;
        fine = !memcmp((uint8_t *)a->cache.host + (size_t)row * bytes, a->before + (size_t)row * bytes, bytes) &&
               !memcmp(&((float *)a->scales.host)[row], &scales[row], 4);
        if (!fine) printf("# slot %lld changed\n", (long long)row);
    }
    free(written), free(scales);
    return fine;
}

static shape random_shape(void) {
    static const int sizes[] = {1, 2, 16, 32, 64, 128, 256}, dims[] = {16, 48, 64, 80, 96, 128, 256};
    static const cairn_type sources[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    static const cairn_type stored[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16, CAIRN_E4M3};
    shape s;
    s.size = sizes[between(0, 6)], s.dim = dims[between(0, 6)], s.heads = between(1, 9);
    s.sequences = between(1, 4), s.max_pages = between(1, s.size < 16 ? 12 : 3);
    s.pages = s.sequences * s.max_pages + 2;
    s.rows = between(1, s.sequences * s.max_pages * s.size > 40 ? 40 : s.sequences * s.max_pages * s.size);
    s.source = sources[between(0, 2)], s.stored = stored[between(0, 3)];
    return s;
}

static void test_append(int round) {
    shape s = random_shape();
    append a;
    cairn_status status;
    int sm_count = rt->device.sm_count;
    if (round < 12) s.source = (cairn_type)(CAIRN_F32 + round % 3), s.stored = (cairn_type)(CAIRN_F32 + round / 3);
    a = make_append(&s);
    a.args.rope_base = round % 4 ? 10000.0f : 0.0f;
    a.args.half_split = round & 1;
    a.args.rotary_dim = round % 3 ? 0 : 16 * between(1, s.dim / 16);
    if (round & 2) rt->device.sm_count = 0; /* few rows are then taken as many */
    status = settled(cairn_kv_append(rt, &a.args));
    rt->device.sm_count = sm_count;
    report(status);
    tap_ok(!status && check_append(&a, NULL), "kv_append on %s: %s to %s, page %d, dim %d, %d heads, %d rows, rotary %d%s", where,
           cairn_type_name(s.source), cairn_type_name(s.stored), s.size, s.dim, s.heads, s.rows, (int)a.args.rotary_dim,
           a.args.half_split ? " half split" : "");
    drop_append(&a);
}

/* Heads that fill part of a warp's lanes: the lanes past them must not rotate what they shuffle in,
 * or the scale follows a value that no head has. Only the last pair is not 0, and turns by the
 * position in radians: at a few of them each of its values gets less than the turned-in part. */
static void test_append_part(int dim) {
    shape s = random_shape();
    append a;
    cairn_status status;
    int i, pair = dim / 2 - 1;
    s.sequences = 2, s.max_pages = 1, s.size = 16, s.pages = 4, s.rows = 32, s.dim = dim;
    s.source = CAIRN_F32, s.stored = CAIRN_E4M3;
    a = make_append(&s);
    for (i = 0; i < s.rows * s.heads * dim; i++)
        ((float *)a.k.host)[i] = i % dim == pair ? 1.0f : i % dim == pair + dim / 2 ? -0.2f : 0.0f;
    upload(&a.k);
    a.args.rope_base = 1.0f;
    a.args.half_split = true;
    status = settled(cairn_kv_append(rt, &a.args));
    report(status);
    tap_ok(!status && check_append(&a, NULL), "kv_append on %s: dim %d rotates no lane past the head", where, dim);
    drop_append(&a);
}

/* Bytes of values that are not rotated are those of a division, wherever it rounds. */
static void test_append_exact(cairn_type source) {
    shape s = random_shape();
    append a;
    cairn_status status;
    s.sequences = 2, s.max_pages = 2, s.size = 32, s.pages = 6, s.rows = 100;
    s.source = source, s.stored = CAIRN_E4M3;
    a = make_append(&s);
    fill_middles(&a.k, source, s.dim), fill_middles(&a.v, source, s.dim);
    status = settled(cairn_kv_append(rt, &a.args));
    report(status);
    tap_ok(!status && check_append(&a, NULL), "kv_append on %s: %s divided by the scale exactly, dim %d", where,
           cairn_type_name(source), s.dim);
    drop_append(&a);
}

/* Every NaN becomes the one NaN of bf16, never an infinity or a number, whatever its sign and bits;
 * what is next to infinity rounds to it. */
static void test_append_nan(void) {
    static const uint32_t bits[] = {0x7f800001u, 0xff800001u, 0x7fc00000u, 0xffffffffu, 0x7fffffffu,
                                    0x7f80ffffu, 0xff808000u, 0x7f800000u, 0xff800000u, 0x7f7fffffu,
                                    0x7f7f8000u, 0x7f7f7fffu};
    static const uint16_t want[] = {0x7fff, 0x7fff, 0x7fff, 0x7fff, 0x7fff, 0x7fff,
                                    0x7fff, 0x7f80, 0xff80, 0x7f80, 0x7f80, 0x7f7f};
    shape s = {1, 1, 1, 3, 1, 1, 16, CAIRN_F32, CAIRN_BF16};
    append a = make_append(&s);
    const uint16_t *stored = (const uint16_t *)a.cache.host;
    cairn_status status;
    int bad = 0;
    memcpy(a.v.host, bits, sizeof bits), memcpy(a.k.host, bits, sizeof bits);
    upload(&a.k), upload(&a.v);
    status = settled(cairn_kv_append(rt, &a.args));
    download(&a.cache);
    for (size_t i = 0; i < BASE_COUNT(bits); i++)
        for (int half = 0; half < 2; half++) {
            uint16_t got = stored[(ints(&a.table)[0] * 2 + half) * 16 + (int)i];
            if (got != want[i] && !bad++) printf("# %08x becomes %04x\n", bits[i], got);
        }
    report(status);
    tap_ok(!status && !bad, "kv_append on %s: NaN and infinities in bf16", where);
    drop_append(&a);
}

/* A few rows that point nowhere: those are skipped, the others written, and it is reported. */
static void test_append_bad(int kind) {
    shape s = random_shape();
    append a;
    uint8_t skipped[8];
    cairn_status status;
    s.sequences = 2, s.max_pages = 4, s.size = 4, s.pages = 10, s.rows = 8;
    a = make_append(&s);
    memset(skipped, 0, sizeof skipped);
    skipped[5] = 1;
    if (kind == 0) ints(&a.of)[5] = 2;
    else if (kind == 1) ints(&a.of)[5] = -1;
    else if (kind == 2) ints(&a.at)[5] = 16;
    else if (kind == 3) ints(&a.at)[5] = INT32_MIN;
    else {
        int r, page = ints(&a.at)[5] / 4, sequence = ints(&a.of)[5];
        for (r = 0; r < 8; r++) skipped[r] = ints(&a.of)[r] == sequence && ints(&a.at)[r] / 4 == page;
        ints(&a.table)[sequence * 4 + page] = kind == 4 ? -1 : 10;
    }
    upload(&a.of), upload(&a.at), upload(&a.table);
    status = settled(cairn_kv_append(rt, &a.args));
    tap_ok(status == CAIRN_BAD_DATA && check_append(&a, skipped), "kv_append on %s: bad row %d is skipped and reported: %s", where,
           kind, cairn_last_error(rt));
    tap_ok(!cairn_sync(rt), "kv_append on %s: reported once", where);
    drop_append(&a);
}

static void test_append_arguments(void) {
    shape s = random_shape();
    append a;
    cairn_kv_append_args bad;
    cairn_tensor odd;
    uint8_t none[64];
    memset(none, 1, sizeof none);
    s.source = CAIRN_F16, s.stored = CAIRN_E4M3, s.dim = 64;
    a = make_append(&s);
#define REFUSED(change, word) \
    do { \
        cairn_status refused_; \
        bad = a.args; \
        change; \
        refused_ = cairn_kv_append(rt, &bad); \
        tap_ok(refused_ == CAIRN_INVALID_ARGUMENT && strstr(cairn_last_error(rt), word), "kv_append on %s: %s", where, cairn_last_error(rt)); \
    } while (0)
    REFUSED(bad.scales = NULL, "scales");
    REFUSED(bad.v = a.table.t, "v has");
    REFUSED(bad.rope_base = -1, "rope_base");
    REFUSED(bad.rotary_dim = 24, "rotary_dim");
    REFUSED(bad.rotary_dim = 80, "rotary_dim");
    REFUSED((odd = *a.k.t, odd.byte_offset += 2, bad.k = &odd), "aligned");
    REFUSED(bad.pages.cache = a.k.t, "rank");
    tap_ok(check_append(&a, none), "kv_append on %s: nothing was written", where);
    drop_append(&a);
#undef REFUSED
}

/* ---- kv_collate ---- */

enum { LAYERS = 4 };

typedef struct collate {
    int layers, sequences, max_pages, pages, heads, size, dim, most;
    cairn_type stored;
    both cache[LAYERS], scales[LAYERS], table, bases, accepted, sources;
    uint8_t *want[LAYERS];
    float *want_scales[LAYERS];
    cairn_tensor *caches[LAYERS], *scale_list[LAYERS];
    cairn_kv_collate_args args;
} collate;

/* Points into *out, which must stay where it is. */
static void make_collate(collate *out, int size, int most, bool listed, cairn_type stored) {
    collate c;
    int i, s, g, slots, widest;
    memset(&c, 0, sizeof c);
    c.layers = between(1, LAYERS), c.sequences = between(1, 6), c.heads = between(1, 5), c.dim = 16 * between(1, 8);
    c.size = size, c.most = most, c.stored = stored;
    widest = most * (listed ? 3 : most);
    c.max_pages = (widest + between(0, 40)) / size + 2;
    c.pages = c.sequences * c.max_pages + 1;
    slots = c.max_pages * size;
    for (i = 0; i < c.layers; i++) {
        c.cache[i] = make(stored, 5, c.pages, 2, c.heads, size, c.dim);
        c.scales[i] = make(CAIRN_F32, 4, c.pages, 2, c.heads, size, 0);
        randomize(&c.cache[i]), randomize(&c.scales[i]);
        c.want[i] = (uint8_t *)malloc(c.cache[i].bytes), c.want_scales[i] = (float *)malloc(c.scales[i].bytes);
        c.caches[i] = c.cache[i].t, c.scale_list[i] = c.scales[i].t;
    }
    c.table = make(CAIRN_I32, 2, c.sequences, c.max_pages, 0, 0, 0);
    c.bases = make(CAIRN_I32, 1, c.sequences, 0, 0, 0, 0), c.accepted = make(CAIRN_I32, 1, c.sequences, 0, 0, 0, 0);
    c.sources = make(CAIRN_I32, 2, c.sequences, most, 0, 0, 0);
    shuffle_ids(ints(&c.table), c.sequences * c.max_pages, 0);
    for (s = 0; s < c.sequences; s++) {
        int at = between(0, 1);
        ints(&c.accepted)[s] = s == 0 ? most : between(0, most);
        ints(&c.bases)[s] = between(0, slots - widest - 1);
        for (g = 0; g < most; g++, at += between(1, 2)) ints(&c.sources)[s * most + g] = at;
        for (g = ints(&c.accepted)[s]; g < most; g++) ints(&c.sources)[s * most + g] = -7; /* not to be read */
    }
    c.args.struct_size = sizeof c.args;
    c.args.layers = c.layers, c.args.caches = out->caches, c.args.page_table = c.table.t, c.args.bases = c.bases.t;
    c.args.accepted = c.accepted.t;
    if (stored == CAIRN_E4M3) c.args.scales = out->scale_list;
    if (listed) c.args.sources = c.sources.t;
    else c.args.stride = most, c.args.most = most;
    *out = c;
}

static void upload_collate(collate *c) { upload(&c->table), upload(&c->bases), upload(&c->accepted), upload(&c->sources); }

static void drop_collate(collate *c) {
    int i;
    for (i = 0; i < c->layers; i++) drop(&c->cache[i]), drop(&c->scales[i]), free(c->want[i]), free(c->want_scales[i]);
    drop(&c->table), drop(&c->bases), drop(&c->accepted), drop(&c->sources);
}

/* The slot of a position in units of one head's row, or -1. */
static int64_t place(const collate *c, int s, int64_t position) {
    int32_t page;
    if (position < 0 || position >= (int64_t)c->max_pages * c->size) return -1;
    page = ((const int32_t *)c->table.host)[s * c->max_pages + position / c->size];
    return page < 0 || page >= c->pages ? -1 : (int64_t)page * 2 * c->heads * c->size + position % c->size;
}

/* All sources are read from the caches as they were, then written; compares every byte. */
static bool check_collate(collate *c, const int *kept) {
    size_t row = (size_t)c->dim * cairn_type_bytes(c->stored);
    int i, s, g, h;
    bool fine = true;
    for (i = 0; i < c->layers; i++) {
        memcpy(c->want[i], c->cache[i].host, c->cache[i].bytes);
        memcpy(c->want_scales[i], c->scales[i].host, c->scales[i].bytes);
        for (s = 0; s < c->sequences; s++)
            for (g = 0; g < kept[s]; g++) {
                int source = c->args.sources ? ints(&c->sources)[s * c->most + g] : g * c->most;
                int64_t from = place(c, s, (int64_t)ints(&c->bases)[s] + source), to = place(c, s, (int64_t)ints(&c->bases)[s] + g);
                if (ints(&c->bases)[s] < 0 || from < 0 || to < 0) continue;
                for (h = 0; h < 2 * c->heads; h++) {
                    size_t f = (size_t)(from + h * c->size), t = (size_t)(to + h * c->size);
                    memcpy(c->want[i] + t * row, (uint8_t *)c->cache[i].host + f * row, row);
                    if (c->args.scales) c->want_scales[i][t] = ((float *)c->scales[i].host)[f];
                }
            }
        download(&c->cache[i]), download(&c->scales[i]);
        if (memcmp(c->want[i], c->cache[i].host, c->cache[i].bytes)) fine = false;
        if (memcmp(c->want_scales[i], c->scales[i].host, c->scales[i].bytes)) fine = false;
    }
    return fine;
}

static void kept_of(collate *c, int *kept) {
    int s;
    for (s = 0; s < c->sequences; s++) kept[s] = ints(&c->accepted)[s];
}

static void test_collate(int size, int most, bool listed, cairn_type stored) {
    collate c;
    int kept[8];
    cairn_status status;
    make_collate(&c, size, most, listed, stored);
    upload_collate(&c);
    kept_of(&c, kept);
    status = settled(cairn_kv_collate(rt, &c.args));
    report(status);
    tap_ok(!status && check_collate(&c, kept), "kv_collate on %s: %s, page %d, %d entries %s, %d layers, %d sequences", where,
           cairn_type_name(stored), size, most, listed ? "listed" : "by stride", c.layers, c.sequences);
    drop_collate(&c);
}

static void test_collate_bad(int kind) {
    collate c;
    int kept[8], page;
    cairn_status status;
    make_collate(&c, 4, 5, kind == 2 || kind == 3, CAIRN_F16);
    kept_of(&c, kept);
    switch (kind) {
    case 0: ints(&c.accepted)[0] = 6, kept[0] = 5; break;
    case 1: ints(&c.accepted)[0] = -3, kept[0] = 0; break;
    case 2: ints(&c.sources)[3] = ints(&c.sources)[2], kept[0] = 0; break;
    case 3: ints(&c.sources)[0] = -1, kept[0] = 0; break;
    case 4: ints(&c.bases)[0] = -2; break;
    case 5: ints(&c.bases)[0] = INT32_MAX - 3; break;
    default:
        page = (ints(&c.bases)[0] + 5) / 4;
        ints(&c.table)[page] = kind == 6 ? -1 : c.pages;
    }
    upload_collate(&c);
    status = settled(cairn_kv_collate(rt, &c.args));
    tap_ok(status == CAIRN_BAD_DATA && check_collate(&c, kept), "kv_collate on %s: bad data %d is skipped and reported: %s", where, kind,
           cairn_last_error(rt));
    drop_collate(&c);
}

static void test_collate_arguments(void) {
    collate c;
    cairn_kv_collate_args bad;
    cairn_tensor *none = NULL;
    make_collate(&c, 4, 5, true, CAIRN_F16);
#define REFUSED(change, word) \
    do { \
        cairn_status refused_; \
        bad = c.args; \
        change; \
        refused_ = cairn_kv_collate(rt, &bad); \
        tap_ok(refused_ == CAIRN_INVALID_ARGUMENT && strstr(cairn_last_error(rt), word), "kv_collate on %s: %s", where, cairn_last_error(rt)); \
    } while (0)
    REFUSED(bad.layers = 193, "layers");
    REFUSED(bad.layers = -1, "layers");
    REFUSED((bad.layers = 1, bad.caches = &none), "caches[0]");
    REFUSED(bad.sources = NULL, "stride");
    REFUSED((bad.sources = NULL, bad.stride = 2), "most");
    REFUSED((bad.sources = NULL, bad.stride = 1 << 20, bad.most = 1 << 20), "2^31");
    REFUSED(bad.most = 4, "sources");
    REFUSED(bad.bases = c.sources.t, "bases");
#undef REFUSED
    drop_collate(&c);
}

/* ---- the step as it is used: captured once, replayed over changing data, nothing but launches ---- */

static int foreign_calls, launches;
static CUresult (*real_launch)(const CUlaunchConfig *, CUfunction, void **, void **);
static CUresult count_launch(const CUlaunchConfig *c, CUfunction f, void **p, void **e) {
    launches++;
    return real_launch(c, f, p, e);
}
static CUresult refuse_sync(CUstream s) { (void)s; foreign_calls++; return CUDA_ERROR_INVALID_VALUE; }
static CUresult refuse_alloc(CUdeviceptr *p, size_t n) { (void)p, (void)n; foreign_calls++; return CUDA_ERROR_INVALID_VALUE; }
static CUresult refuse_upload(CUdeviceptr t, const void *f, size_t n, CUstream s) { (void)t, (void)f, (void)n, (void)s; foreign_calls++; return CUDA_ERROR_INVALID_VALUE; }
static CUresult refuse_download(void *t, CUdeviceptr f, size_t n, CUstream s) { (void)t, (void)f, (void)n, (void)s; foreign_calls++; return CUDA_ERROR_INVALID_VALUE; }

static void test_calls(void) {
    shape s = random_shape();
    append a = make_append(&s);
    collate c;
    struct driver_calls real = *rt->device.drv;
    cairn_status status;
    int before;
    make_collate(&c, 16, 5, true, CAIRN_F16);
    upload_collate(&c);
    status = settled(cairn_kv_append(rt, &a.args));
    if (!status) status = settled(cairn_kv_collate(rt, &c.args));
    real_launch = real.cuLaunchKernelEx;
    rt->device.drv->cuLaunchKernelEx = count_launch;
    rt->device.drv->cuStreamSynchronize = refuse_sync;
    rt->device.drv->cuMemAlloc = refuse_alloc;
    rt->device.drv->cuMemcpyHtoDAsync = refuse_upload;
    rt->device.drv->cuMemcpyDtoHAsync = refuse_download;
    before = allocations, launches = foreign_calls = 0;
    if (!status) status = cairn_kv_append(rt, &a.args);
    if (!status) status = cairn_kv_collate(rt, &c.args);
    *rt->device.drv = real;
    report(status);
    tap_ok(!status && launches == 2 && !foreign_calls && allocations == before, "kv ops on %s: one launch each, no wait, copy or allocation", where);
    status = settled(CAIRN_OK);
    drop_append(&a), drop_collate(&c);
}

static void test_graph(void) {
    collate c;
    cairn_graph *graph = NULL;
    cairn_status status;
    int kept[8], round, s, i;
    bool fine = true;
    make_collate(&c, 16, 6, true, CAIRN_F16);
    upload_collate(&c);
    status = settled(cairn_kv_collate(rt, &c.args));
    if (!status) status = cairn_graph_begin(rt);
    if (!status) status = cairn_kv_collate(rt, &c.args);
    if (!status) status = cairn_graph_end(rt, &graph);
    for (i = 0; i < c.layers; i++) download(&c.cache[i]);
    for (round = 0; round < 10 && !status && fine; round++) {
        for (s = 0; s < c.sequences; s++) {
            int g, at = between(0, 1);
            ints(&c.accepted)[s] = between(0, 6);
            for (g = 0; g < 6; g++, at += between(1, 2)) ints(&c.sources)[s * 6 + g] = at;
        }
        upload_collate(&c);
        kept_of(&c, kept);
        status = cairn_graph_launch(rt, graph);
        if (!status) status = cairn_sync(rt);
        fine = check_collate(&c, kept);
    }
    report(status);
    tap_ok(!status && fine, "kv_collate on %s: a graph replayed over changing counts and sources", where);
    if (graph) cairn_graph_free(rt, graph);
    drop_collate(&c);
}

/* ---- all ---- */

static void test_all(bool cuda) {
    static const int sizes[] = {1, 2, 16, 32, 64, 128, 256};
    int i;
    for (i = 0; i < (cuda ? 24 : 60); i++) test_append(i);
    test_append_part(48), test_append_part(80);
    test_append_exact(CAIRN_F32), test_append_exact(CAIRN_F16), test_append_exact(CAIRN_BF16);
    test_append_nan();
    for (i = 0; i < 6; i++) test_append_bad(i);
    test_append_arguments();
    for (i = 0; i < 7; i++) {
        test_collate(sizes[i], between(1, 9), true, i & 1 ? CAIRN_E4M3 : CAIRN_F16);
        test_collate(sizes[i], between(1, 6), false, i & 1 ? CAIRN_F32 : CAIRN_BF16);
    }
    test_collate(2, cuda ? 70 : 150, true, CAIRN_F16);
    test_collate(16, 1, false, CAIRN_F16);
    for (i = 0; i < 8; i++) test_collate_bad(i);
    test_collate_arguments();
    if (cuda) test_calls(), test_graph();
}

static void *counting_realloc(void *user, void *memory, size_t old_bytes, size_t bytes) {
    (void)user, (void)old_bytes;
    allocations++;
    if (!bytes) {
        free(memory);
        return NULL;
    }
    return realloc(memory, bytes);
}

static void test_backend(cairn_runtime *opened, const char *name) {
    rt = opened, where = name;
    test_all(rt->device.cuda);
}

int main(void) {
    cairn_config config;
    cairn_config_default(&config);
    config.allocator.realloc = counting_realloc;
    seed = random_seed();
    run_on_backends(&config, "kv", test_backend);
    return tap_done();
}

/* What the warp-wide operations compute, once all lanes are there, and the small number formats.
 * Plain loops over the definitions of the PTX manual. */
#include "simt_core.h"

#include <utility>

namespace simt {

template <class F> static void each_lane(uint32_t mask, F f) {
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) f(i);
}
template <class T> static T in(const Lane &lane, int i = 0) {
    T v;
    memcpy(&v, static_cast<const char *>(lane.in) + (size_t)i * sizeof v, sizeof v);
    return v;
}
template <class T> static void out(const Lane &lane, T v, int i = 0) {
    memcpy(static_cast<char *>(lane.out) + (size_t)i * sizeof v, &v, sizeof v);
}
template <class T> static T in_out(const Lane &lane, int i) { /* what an output held */
    T v;
    memcpy(&v, static_cast<const char *>(lane.out) + (size_t)i * sizeof v, sizeof v);
    return v;
}

/* ---- shuffles: Lane.a is the argument, Lane.b the width ---- */

/* `pick` gives the source lane within the group of `width`, or -1 for the lane itself. */
template <class F> static void shuffle_all(Lane *lanes, uint32_t mask, F pick) {
    each_lane(mask, [&](int i) {
        int width = (int)lanes[i].b, base = i & ~(width - 1);
        int source = pick(i - base, (int)lanes[i].a, width);
        int from = source < 0 ? i : base + source;
        if (width < 1 || width > 32 || (width & (width - 1)))
            fail(Site::here(), "shuffle of width %d", width);
        if (!(mask >> from & 1)) fail(Site::here(), "shuffle from lane %d, not in the mask", from);
        out(lanes[i], in<uint64_t>(lanes[from]));
    });
}
static void finish_shuffle(Lane *lanes, uint32_t mask) {
    shuffle_all(lanes, mask, [](int, int a, int width) { return a & (width - 1); });
}
static void finish_shuffle_xor(Lane *lanes, uint32_t mask) {
    shuffle_all(lanes, mask,
                [](int me, int a, int width) { return (me ^ a) < width ? me ^ a : -1; });
}
static void finish_shuffle_up(Lane *lanes, uint32_t mask) {
    shuffle_all(lanes, mask, [](int me, int a, int) { return me >= a ? me - a : -1; });
}
static void finish_shuffle_down(Lane *lanes, uint32_t mask) {
    shuffle_all(lanes, mask, [](int me, int a, int width) { return me + a < width ? me + a : -1; });
}

/* ---- votes and reductions ---- */

static void finish_ballot(Lane *lanes, uint32_t mask) {
    uint32_t votes = 0;
    each_lane(mask, [&](int i) { votes |= (in<uint32_t>(lanes[i]) ? 1u : 0u) << i; });
    each_lane(mask, [&](int i) { out(lanes[i], votes); });
}
static void finish_match(Lane *lanes, uint32_t mask) {
    each_lane(mask, [&](int i) {
        uint32_t same = 0;
        each_lane(mask, [&](int j) {
            if (in<uint64_t>(lanes[i]) == in<uint64_t>(lanes[j])) same |= 1u << j;
        });
        out(lanes[i], same);
    });
}
template <class T, class F> static void reduce(Lane *lanes, uint32_t mask, F combine) {
    T all = in<T>(lanes[__builtin_ctz(mask)]);
    each_lane(mask & (mask - 1), [&](int i) { all = combine(all, in<T>(lanes[i])); });
    each_lane(mask, [&](int i) { out(lanes[i], all); });
}
#define SIMT_REDUCE(name, T, expression)                                         \
    static void finish_redux_##name(Lane *lanes, uint32_t mask) {                \
        reduce<T>(lanes, mask, [](T x, T y) { return (T)(expression); });        \
    }
SIMT_REDUCE(add, uint32_t, x + y)
SIMT_REDUCE(or, uint32_t, x | y)
SIMT_REDUCE(and, uint32_t, x &y)
SIMT_REDUCE(max_u, uint32_t, x < y ? y : x)
SIMT_REDUCE(min_u, uint32_t, x < y ? x : y)
SIMT_REDUCE(max_s, int32_t, x < y ? y : x)
SIMT_REDUCE(min_s, int32_t, x < y ? x : y)

/* ---- ldmatrix: Lane.in is the row address, Lane.a the number of 8x8 tiles ---- */

static void load_matrix(Lane *lanes, bool transposed) {
    for (int i = 0; i < 32; i++)
        for (int tile = 0; tile < (int)lanes[i].a; tile++) {
            uint32_t pair = 0;
            for (int e = 0; e < 2; e++) {
                int r = i / 4, c = 2 * (i % 4) + e;
                if (transposed) std::swap(r, c);
                pair |= (uint32_t)in<uint16_t>(lanes[8 * tile + r], c) << 16 * e;
            }
            out(lanes[i], pair, tile);
        }
}
static void finish_load_matrix(Lane *lanes, uint32_t) { load_matrix(lanes, false); }
static void finish_load_matrix_transposed(Lane *lanes, uint32_t) { load_matrix(lanes, true); }

static void finish_transpose_matrix(Lane *lanes, uint32_t) {
    for (int i = 0; i < 32; i++)
        for (int e = 0; e < 2; e++) {
            const int r = i / 4, c = 2 * (i % 4) + e;
            out(lanes[i], in<uint16_t>(lanes[4 * c + r / 2], r % 2), e);
        }
}

/* A third of the time of a model's kernels is spent in products: they are compiled for wider vectors, too. No product
 * and sum becomes one operation, so that all give the same. */
#if defined __x86_64__ && defined __gnu_linux__ && !defined __clang__
#define SIMT_WIDE __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define SIMT_WIDE
#endif

/* sums[16, 8] += a[16, k] b[k, 8], k in order; four rows at a time, whose sums do not wait for each other. */
SIMT_WIDE static void add_products(double (*sums)[8], const double *a, const double (*b)[8], int k) {
    for (int row = 0; row < 16; row += 4, a += 4 * k) {
        typedef double columns __attribute__((vector_size(64)));
        columns own[4], of_b;
        memcpy(own, sums[row], sizeof own);
        for (int i = 0; i < k; i++) {
            memcpy(&of_b, b[i], sizeof of_b);
            for (int r = 0; r < 4; r++) own[r] += a[r * k + i] * of_b;
        }
        memcpy(sums[row], own, sizeof own);
    }
}
static void add_products(int64_t (*sums)[8], const int64_t *a, const int64_t (*b)[8], int k) {
    for (int row = 0; row < 16; row++, a += k)
        for (int i = 0; i < k; i++)
            for (int c = 0; c < 8; c++) sums[row][c] += a[i] * b[i][c];
}

static inline float f32_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static const uint32_t NAN_BITS = 0x7fffffff; /* what conversions give */

/* Subnormal ones, which packed weights are, by way of an integer: a product with one takes a processor a hundred
 * cycles. */
static inline float wide_f16(uint16_t half) {
    const uint32_t size = half & 0x7fffu, sign = (half & 0x8000u) << 16;
    const float small = (float)(int32_t)(size & 0x3ffu) * 0x1p-24f;
    uint32_t bits;
    memcpy(&bits, &small, sizeof bits);
    if (size >= 0x400u) bits = (size << 13) + (112u << 23);
    if (size == 0x7c00u) bits = 0x7f800000u;
    return f32_of(size > 0x7c00u ? NAN_BITS : bits | sign);
}
static double wide_bf16(uint16_t v) { return f32_of((uint32_t)v << 16); }
static double wide_tf32(uint32_t v) { return f32_of(v & ~0x1fffu); }
static double wide_e4m3(uint8_t v) { return e4m3_to_f32(v); }
static int64_t wide_s8(int8_t v) { return v; }

template <class T, class W, W value(T)> static void widen(const T *from, W *to, int count) {
    for (int i = 0; i < count; i++) to[i] = value(from[i]);
}
SIMT_WIDE static void widen_f16(const uint16_t *from, double *to, int count) {
    for (int i = 0; i < count; i++) to[i] = wide_f16(from[i]);
}
static const auto widen_bf16 = widen<uint16_t, double, wide_bf16>;
static const auto widen_tf32 = widen<uint32_t, double, wide_tf32>;
static const auto widen_e4m3 = widen<uint8_t, double, wide_e4m3>;
static const auto widen_s8 = widen<int8_t, int64_t, wide_s8>;

/* ---- mma: d[16, 8] += a[16, k] b[k, 8]; `per` elements in a register ---- */

/* What lane i has of d: two columns of row i / 4, and of the row eight further. */
template <class W, class D> static void take_sums(const Lane *lanes, int first, W (*sums)[8]) {
    for (int i = 0; i < 32; i++)
        for (int n = 0; n < 4; n++) sums[i / 4 + n / 2 * 8][i % 4 * 2 + n % 2] = (W)in_out<D>(lanes[i], first + n);
}
template <class W, class D> static void put_sums(const Lane *lanes, int first, const W (*sums)[8]) {
    for (int i = 0; i < 32; i++)
        for (int n = 0; n < 4; n++) out(lanes[i], (D)sums[i / 4 + n / 2 * 8][i % 4 * 2 + n % 2], first + n);
}
/* a[16, k] of the lanes' registers: four of rows i / 4 and eight further, in turns. from(i): lane i's. */
template <class T, class From> static void take_rows(T *a, From from) {
    constexpr int per = 4 / (int)sizeof(T), k = 8 * per;
    for (int i = 0; i < 32; i++)
        for (int r = 0; r < 4; r++)
            memcpy(a + (i / 4 + r % 2 * 8) * k + i % 4 * per + r / 2 * 4 * per, from(i) + r * 4, 4);
}

/* Products and sums in W, then one rounding; hardware truncates a few bits while it adds. */
template <class T, class W, class D> static void multiply(Lane *lanes, void (*widen)(const T *, W *, int)) {
    constexpr int per = 4 / (int)sizeof(T), k = 8 * per;
    T raw_a[16 * k], raw_b[k][8];
    W a[16 * k], b[k][8], sums[16][8];
    take_rows(raw_a, [&](int i) { return static_cast<const char *>(lanes[i].in); });
    for (int i = 0; i < 32; i++)
        for (int e = 0; e < 2 * per; e++)
            raw_b[i % 4 * per + e / per * 4 * per + e % per][i / 4] = in<T>(lanes[i], 4 * per + e);
    widen(raw_a, a, 16 * k);
    widen(raw_b[0], b[0], k * 8);
    take_sums<W, D>(lanes, 0, sums);
    add_products(sums, a, b, k);
    put_sums<W, D>(lanes, 0, sums);
}

static void finish_mma_f16(Lane *lanes, uint32_t) { multiply<uint16_t, double, float>(lanes, widen_f16); }
static void finish_mma_bf16(Lane *lanes, uint32_t) { multiply<uint16_t, double, float>(lanes, widen_bf16); }
static void finish_mma_tf32(Lane *lanes, uint32_t) { multiply<uint32_t, double, float>(lanes, widen_tf32); }
static void finish_mma_e4m3(Lane *lanes, uint32_t) { multiply<uint8_t, double, float>(lanes, widen_e4m3); }
static void finish_mma_s8(Lane *lanes, uint32_t) { multiply<int8_t, int64_t, int32_t>(lanes, widen_s8); }

/* k elements of row or column n of a matrix: to[0], to[step], ... */
template <class T> static void read_matrix(const WarpgroupMatrix &m, int n, int k, T *to, int step) {
    constexpr int per = 16 / (int)sizeof(T);
    const int once = m.turned ? 1 : per; /* that lie together */
    for (int i = 0; i < k; i += once) {
        uint32_t at = m.at;
        if (m.turned) at += n / 64 * m.along + i / 8 * m.across + i % 8 * 128 + n % 64 / per * 16;
        else if (m.swizzled) at += n / 8 * m.across + n % 8 * 128 + i / per * 16;
        else at += n / 8 * m.across + n % 8 * 16 + i / per * m.along;
        if (m.swizzled) at ^= (at >> 7 & 7) << 4;
        const T *from = reinterpret_cast<const T *>(shared_at(at, 16, 16, Site::here())) + (m.turned ? n % per : 0);
        for (int e = 0; e < once; e++) to[(i + e) * step] = from[e];
    }
}

/* A warp's 16 rows of d [64, columns] (+)= a b; both lie as device/mma.cuh says. Eight columns at a time. */
template <class T> static void multiply_group(Lane *lanes, void (*widen)(const T *, double *, int)) {
    constexpr int k = 32 / (int)sizeof(T);
    const auto operands = [&](int i) { return static_cast<const WarpgroupOperands *>(lanes[i].in); };
    const WarpgroupOperands &o = *operands(0);
    T raw_a[16 * k], raw_b[k][8];
    double a[16 * k], b[k][8], sums[16][8];
    for (int i = 0; i < 32; i++)
        if (operands(i)->b.at != o.b.at || operands(i)->shared_a.at != o.shared_a.at ||
            operands(i)->columns != o.columns || operands(i)->adds != o.adds)
            fail(Site::here(), "wgmma: the lanes differ in what lies in shared memory");
    if (o.a) take_rows(raw_a, [&](int i) { return reinterpret_cast<const char *>(operands(i)->a); });
    for (int row = 0; row < 16 && !o.a; row++) read_matrix(o.shared_a, o.row + row, k, raw_a + row * k, 1);
    widen(raw_a, a, 16 * k);
    for (int n = 0; n < o.columns; n += 8) {
        for (int c = 0; c < 8; c++) read_matrix(o.b, n + c, k, &raw_b[0][c], 8);
        widen(raw_b[0], b[0], k * 8);
        if (o.adds) take_sums<double, float>(lanes, n / 2, sums);
        else memset(sums, 0, sizeof sums);
        add_products(sums, a, b, k);
        put_sums<double, float>(lanes, n / 2, sums);
    }
}
static void finish_wgmma_f16(Lane *lanes, uint32_t) { multiply_group<uint16_t>(lanes, widen_f16); }
static void finish_wgmma_bf16(Lane *lanes, uint32_t) { multiply_group<uint16_t>(lanes, widen_bf16); }
static void finish_wgmma_e4m3(Lane *lanes, uint32_t) { multiply_group<uint8_t>(lanes, widen_e4m3); }

#define SIMT_OPERATION(name, aligned) \
    const WarpOperation operation_##name = {#name, finish_##name, aligned};
const WarpOperation operation_sync = {"warp_sync", nullptr, false};
SIMT_OPERATION(shuffle, false)
SIMT_OPERATION(shuffle_xor, false)
SIMT_OPERATION(shuffle_up, false)
SIMT_OPERATION(shuffle_down, false)
SIMT_OPERATION(ballot, false)
SIMT_OPERATION(match, false)
SIMT_OPERATION(redux_add, false)
SIMT_OPERATION(redux_max_u, false)
SIMT_OPERATION(redux_max_s, false)
SIMT_OPERATION(redux_min_u, false)
SIMT_OPERATION(redux_min_s, false)
SIMT_OPERATION(redux_or, false)
SIMT_OPERATION(redux_and, false)
SIMT_OPERATION(load_matrix, true)
SIMT_OPERATION(load_matrix_transposed, true)
SIMT_OPERATION(transpose_matrix, true)
SIMT_OPERATION(mma_f16, true)
SIMT_OPERATION(mma_bf16, true)
SIMT_OPERATION(mma_tf32, true)
SIMT_OPERATION(mma_e4m3, true)
SIMT_OPERATION(mma_s8, true)
SIMT_OPERATION(wgmma_f16, true)
SIMT_OPERATION(wgmma_bf16, true)
SIMT_OPERATION(wgmma_e4m3, true)

/* ---- small floats ---- */

/* 2^n and the n of frexp, for doubles that are normal. */
static double power(int n) {
    const uint64_t bits = (uint64_t)(n + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static int exponent_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (int)(bits >> 52 & 2047) - 1022;
}

/* x rounded to nearest even at the given number of significant bits, not finer than the spacing
 * 2^lowest; the value stays a double. */
static double round_to(double x, int bits, int lowest) {
    if (x == 0 || !isfinite(x)) return x;
    const int exponent = exponent_of(x);
    const int spacing = exponent - bits < lowest ? lowest : exponent - bits;
    const double whole = x * power(-spacing) + 0x1.8p52; /* the addition rounds */
    return copysign((whole - 0x1.8p52) * power(spacing), x);
}

float f16_to_f32(uint16_t half) { return wide_f16(half); }

uint16_t f32_to_f16(double x) {
    if (isnan(x)) return 0x7fff;
    uint32_t sign = signbit(x) ? 0x8000u : 0;
    double r = fabs(round_to(x, 11, -24));
    if (r > 65504) return (uint16_t)(sign | 0x7c00u);
    if (r < 0x1p-14) return (uint16_t)(sign | (uint32_t)(r * 0x1p24));
    const int exponent = exponent_of(r);
    const uint32_t fraction = (uint32_t)(r * power(11 - exponent)) - 1024;
    return (uint16_t)(sign | (uint32_t)(exponent + 14) << 10 | fraction);
}

uint16_t f32_to_bf16(double x) {
    if (isnan(x)) return 0x7fff;
    double r = round_to(x, 8, -133);
    float f = fabs(r) > 0x1.fep127 ? (signbit(x) ? -HUGE_VALF : HUGE_VALF) : (float)r;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)(bits >> 16);
}

float e4m3_to_f32(uint8_t bits) {
    int exponent = bits >> 3 & 15, mantissa = bits & 7;
    double x = exponent == 0 ? mantissa * 0x1p-9 : (8 + mantissa) * power(exponent - 10);
    if ((bits & 0x7f) == 0x7f) return f32_of(NAN_BITS);
    return (float)(bits & 0x80 ? -x : x);
}

uint8_t f32_to_e4m3(double x) {
    if (isnan(x)) return 0x7f;
    uint32_t sign = signbit(x) ? 0x80u : 0;
    double r = fabs(round_to(x, 4, -9));
    if (r > 448) r = 448;
    if (r < 0x1p-6) return (uint8_t)(sign | (uint32_t)(r * 0x1p9));
    const int exponent = exponent_of(r);
    const uint32_t fraction = (uint32_t)(r * power(4 - exponent)) - 8;
    return (uint8_t)(sign | (uint32_t)(exponent + 6) << 3 | fraction);
}

} // namespace simt

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

/* ---- mma: d[16, 8] += a[16, k] b[k, 8]; `per` elements in a register ---- */

template <class T, class W> struct Tile {
    static constexpr int per = 4 / (int)sizeof(T), k = 8 * per;
    W a[16][k], b[k][8];
};

template <class T, class W, class F> static void gather(Lane *lanes, Tile<T, W> &t, F value) {
    constexpr int per = Tile<T, W>::per;
    for (int i = 0; i < 32; i++) {
        int g = i / 4, first = i % 4 * per;
        for (int e = 0; e < per; e++) {
            for (int r = 0; r < 4; r++)
                t.a[g + r % 2 * 8][first + r / 2 * 4 * per + e] =
                    value(in<T>(lanes[i], r * per + e));
            for (int r = 0; r < 2; r++)
                t.b[first + r * 4 * per + e][g] = value(in<T>(lanes[i], (4 + r) * per + e));
        }
    }
}

/* Products and sums in W, then one rounding; hardware truncates a few bits while it adds. */
template <class T, class W, class D, class F> static void multiply(Lane *lanes, F value) {
    static Tile<T, W> t;
    gather(lanes, t, value);
    for (int row = 0; row < 16; row++) {
        const Lane *four = &lanes[row % 8 * 4]; /* two columns each */
        const int r = row / 8 * 2;
        W sums[8];
        for (int c = 0; c < 8; c++) sums[c] = (W)in_out<D>(four[c / 2], r + c % 2);
        for (int k = 0; k < Tile<T, W>::k; k++)
            for (int c = 0; c < 8; c++) sums[c] += t.a[row][k] * t.b[k][c];
        for (int c = 0; c < 8; c++) out(four[c / 2], (D)sums[c], r + c % 2);
    }
}

static double wide_f32(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}
static void finish_mma_f16(Lane *lanes, uint32_t) {
    multiply<uint16_t, double, float>(lanes, [](uint16_t v) { return (double)f16_to_f32(v); });
}
static void finish_mma_bf16(Lane *lanes, uint32_t) {
    multiply<uint16_t, double, float>(lanes,
                                      [](uint16_t v) { return wide_f32((uint32_t)v << 16); });
}
static void finish_mma_tf32(Lane *lanes, uint32_t) {
    multiply<uint32_t, double, float>(lanes, [](uint32_t v) { return wide_f32(v & ~0x1fffu); });
}
static void finish_mma_e4m3(Lane *lanes, uint32_t) {
    multiply<uint8_t, double, float>(lanes, [](uint8_t v) { return (double)e4m3_to_f32(v); });
}
static void finish_mma_s8(Lane *lanes, uint32_t) {
    multiply<int8_t, int64_t, int32_t>(lanes, [](int8_t v) { return (int64_t)v; });
}

/* The 16 bytes with element `k` of a row or column `n` of a matrix, and which of them it is. */
template <class T> static T matrix_element(const WarpgroupMatrix &m, int n, int k) {
    constexpr int per = 16 / (int)sizeof(T);
    uint32_t at = m.at, e = 0;
    if (m.turned) at += n / 64 * m.along + k / 8 * m.across + k % 8 * 128 + n % 64 / per * 16, e = n % per;
    else if (m.swizzled) at += n / 8 * m.across + n % 8 * 128 + k / per * 16, e = k % per;
    else at += n / 8 * m.across + n % 8 * 16 + k / per * m.along, e = k % per;
    if (m.swizzled) at ^= (at >> 7 & 7) << 4;
    T v;
    memcpy(&v, shared_at(at, 16, 16, Site::here()) + e * sizeof v, sizeof v);
    return v;
}

/* A warp's 16 rows of d [64, columns] (+)= a b; both lie as device/mma.cuh says. */
template <class T, class F> static void multiply_group(Lane *lanes, F value) {
    constexpr int per = 4 / (int)sizeof(T), k = 8 * per;
    const WarpgroupOperands &o = *static_cast<const WarpgroupOperands *>(lanes[0].in);
    double a[k][16], b[k];
    for (int i = 0; i < 32; i++) {
        const WarpgroupOperands &own = *static_cast<const WarpgroupOperands *>(lanes[i].in);
        if (own.b.at != o.b.at || own.shared_a.at != o.shared_a.at || own.columns != o.columns ||
            own.adds != o.adds)
            fail(Site::here(), "wgmma: the lanes differ in what lies in shared memory");
        for (int e = 0; e < 4 * per && o.a; e++) {
            T v;
            memcpy(&v, reinterpret_cast<const T *>(own.a) + e, sizeof v);
            a[i % 4 * per + e / per / 2 * 4 * per + e % per][i / 4 + e / per % 2 * 8] = value(v);
        }
    }
    for (int i = 0; i < 16 * k && !o.a; i++)
        a[i % k][i / k] = value(matrix_element<T>(o.shared_a, o.row + i / k, i % k));
    for (int n = 0; n < o.columns; n++) {
        for (int i = 0; i < k; i++) b[i] = value(matrix_element<T>(o.b, n, i));
        const Lane *eight = &lanes[n % 8 / 2]; /* every fourth: two rows each */
        const int r = n / 8 * 4 + n % 2;
        double sums[16];
        for (int row = 0; row < 16; row++)
            sums[row] = o.adds ? (double)in_out<float>(eight[row % 8 * 4], r + row / 8 * 2) : 0;
        for (int i = 0; i < k; i++)
            for (int row = 0; row < 16; row++) sums[row] += a[i][row] * b[i];
        for (int row = 0; row < 16; row++)
            out(eight[row % 8 * 4], (float)sums[row], r + row / 8 * 2);
    }
}
static void finish_wgmma_f16(Lane *lanes, uint32_t) {
    multiply_group<uint16_t>(lanes, [](uint16_t v) { return (double)f16_to_f32(v); });
}
static void finish_wgmma_bf16(Lane *lanes, uint32_t) {
    multiply_group<uint16_t>(lanes, [](uint16_t v) { return wide_f32((uint32_t)v << 16); });
}
static void finish_wgmma_e4m3(Lane *lanes, uint32_t) {
    multiply_group<uint8_t>(lanes, [](uint8_t v) { return (double)e4m3_to_f32(v); });
}

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

/* 2^n and the n of frexp, for doubles that are normal: every element of every mma comes through here. */
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

/* The NaN that conversions give. */
static float nan_f32() {
    const uint32_t bits = 0x7fffffff;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

float f16_to_f32(uint16_t bits) {
    const uint32_t size = (bits & 0x7fffu) << 13, sign = (bits & 0x8000u) << 16;
    float x;
    if (size > 0x7c00u << 13) return nan_f32();
    memcpy(&x, &size, sizeof x);
    x = size == 0x7c00u << 13 ? HUGE_VALF : x * 0x1p112f; /* exact, of subnormal ones, too */
    return sign ? -x : x;
}

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
    if ((bits & 0x7f) == 0x7f) return nan_f32();
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

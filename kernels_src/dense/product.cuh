/* dense/product.cuh: the product of packed weights with a few rows, at the speed of memory.
 *
 *   y[row, out] = sum over k of W[out, k] x[row, k]
 *
 * A block of PRODUCT_WARPS warps takes tiles of 16 outputs in turn. The weight's format and K alone
 * say how K is cut: into parts, a part into slices of at most 16 units of 32 inputs, one
 * for each warp of a team (product_cut). A warp keeps its slice of x in registers while the tiles
 * pass: of a band of up to eight rows or, with CAIRN_BANDS 2, of two, for which weights are read and
 * expanded once; then a block takes the registers of a whole multiprocessor. Each warp's weights come
 * through a ring of its own in shared memory, several groups ahead, so that memory waits neither for
 * arithmetic nor for the kernel before: the rings fill before the input is awaited. The sums of a tile
 * meet in shared memory; some warps add them up and hand the outputs on while the others go on to the
 * next tiles.
 *
 * Numerics: weights enter mma m16n8k16 as exact small integers (f16 subnormals: n stands for
 * n 2^-24, so that two cost one AND), x as f16, sums are f32. A unit's sum is multiplied by its
 * scale and added in ascending order: units, slices, parts. What is constant in a unit (-8 scales
 * for Q4_0, the minimum for Q4_1) multiplies the unit's sum of x, which enters as two f16, 22 bits.
 * Of blocks of 256 the units' scales and minima are integers too: a group's sums (of four or eight
 * units) are multiplied by what the block's d is.
 * So a value depends on its weights, its row, and the weight's format and K: not on the other rows,
 * nor on who computes it. */
#ifndef CAIRN_PRODUCT_CUH
#define CAIRN_PRODUCT_CUH

#include "dense/lines.cuh"
#include "dense/packed.cuh"

constexpr int PRODUCT_WARPS = 8, PRODUCT_THREADS = PRODUCT_WARPS * WARP;
#ifndef CAIRN_BANDS
#define CAIRN_BANDS 1
#endif
constexpr int BANDS = CAIRN_BANDS, PRODUCT_COLUMNS = 8 * BANDS; /* rows at a time, in bands of eight */
/* Of all warps: two blocks share a multiprocessor, of two bands one has it. */
constexpr int RING_BYTES = BANDS == 1 ? PRODUCT_RING : PRODUCT_BANDS_RING;
constexpr int MEETINGS = 4;             /* tiles of a team whose sums may wait at once */
constexpr int MEETING_BARRIERS = 4 * MEETINGS;     /* of all teams of several warps */

/* ---- how K is cut ---- */

template <int FORMAT, int INPUTS> struct product_cut {
    static constexpr int GROUP = packed_group<FORMAT, INPUTS>();
    static constexpr int GROUPS = INPUTS / 32 / GROUP;
    static constexpr int PARTS = pack_parts(FORMAT, INPUTS);
    static constexpr int PART = ceil_div(GROUPS, PARTS); /* groups of a part */
    static constexpr int WARPS = pack_warps(FORMAT, INPUTS);
    static constexpr int SLICE = ceil_div(PART, WARPS);
    static constexpr int TEAMS = PRODUCT_WARPS / WARPS; /* of a block, each with tiles of its own */
    static constexpr bool EVEN = SLICE * WARPS * PARTS == GROUPS;
    static constexpr int BYTES = GROUP * packed<FORMAT>::UNIT_BYTES; /* of a group */
    static constexpr int UNITS = SLICE * GROUP;                      /* of a slice */
    /* Groups that are asked for at once: as many of a slice as half a ring holds. */
    static constexpr int HALF = RING_BYTES / PRODUCT_WARPS / 2 / BYTES;
    static constexpr bool NIBBLES = FORMAT == PACK_Q4_0 || FORMAT == PACK_Q4_1 ||
                                    FORMAT == PACK_Q5_0 || FORMAT == PACK_Q5_1;
    static constexpr int CHUNK =
        NIBBLES && SLICE % 2 == 0 && GROUPS % 2 == 0 && HALF >= 2 ? 2 : 1;
};

/* Whether the parts are spread over the blocks of a cluster, where a kernel allows it. */
template <int FORMAT, int INPUTS> CAIRN_INLINE constexpr bool product_spreads() {
    return CAIRN_ARCH >= 900 && CAIRN_ARCH < 1200 && product_cut<FORMAT, INPUTS>::PARTS > 1 &&
           product_cut<FORMAT, INPUTS>::PARTS <= PRODUCT_CLUSTER;
}

/* ---- where a lane's x lies ---- */

/* Of a band of up to eight rows: row g, unit after unit. */
template <int NUMBER> struct band_place {
    static constexpr int BAND = NUMBER, STEP = 1; /* STEP: units from one to the next */
    static constexpr bool AIMED = false, WHOLE = false;
    CAIRN_METHOD int row() { return BAND * 8 + lane_id() / 4; }
    CAIRN_METHOD int unit() { return 0; }
    CAIRN_METHOD bool mine() { return true; }
    static constexpr int FACTORS = 1;                               /* so many alike the warp leaves, */
    CAIRN_METHOD int factor() { return BAND * 8 + warp_id(); }    /* of this row, */
    CAIRN_METHOD int factor_at() { return BAND * 8 + warp_id(); } /* from here on */
};
typedef band_place<0> rows_place;

/* Of a row alone the eight columns of a product have units of their own, those of a group: column c
 * unit c, of Q6_K the half c % 2 of unit c / 2. So x takes four registers a group, and what a lane
 * gets of unit u counts where u is one of its columns'. */
template <int FORMAT, int INPUTS> struct alone_place {
    typedef product_cut<FORMAT, INPUTS> cut;
    static constexpr int G = cut::GROUP;
    static constexpr bool HALVES = FORMAT == PACK_Q6_K;
    static constexpr bool AIMED = true, WHOLE = cut::EVEN; /* no unit is behind the last */
    static constexpr int BAND = 0, STEP = G;
    CAIRN_METHOD int row() { return 0; }
    CAIRN_METHOD int unit() { return lane_id() / (HALVES ? 8 : 4); }
    CAIRN_METHOD bool mine() {
        return (G == 8 || unit() < G) && (!HALVES || lane_id() / 4 % 2 == lane_id() % 4 / 2);
    }
    /* Each warp has its own, so that none waits for another, and for the column of a pair that is no
     * one's too. */
    static constexpr int FACTORS = 2;
    CAIRN_METHOD int factor() { return 0; }
    CAIRN_METHOD int factor_at() { return 2 * warp_id(); }
};

/* ---- groups as they are multiplied ---- */

CAIRN_INLINE void add_scaled(float *sum, const float *d, float low, float high) {
    sum[0] = fma_f32(d[0], low, sum[0]);
    sum[1] = fma_f32(d[1], low, sum[1]);
    sum[2] = fma_f32(d[2], high, sum[2]);
    sum[3] = fma_f32(d[3], high, sum[3]);
}

/* G f16 of a lane's row, as words of two. */
template <int G> CAIRN_INLINE void load_scales(const unsigned char *at, uint32_t *s) {
    if constexpr (G == 8) {
        u32x4 v = *(const u32x4 *)at;
        s[0] = v.x, s[1] = v.y, s[2] = v.z, s[3] = v.w;
    } else if constexpr (G == 4) {
        u32x2 v = *(const u32x2 *)at;
        s[0] = v.x, s[1] = v.y;
    } else if constexpr (G == 2) {
        s[0] = *(const uint32_t *)at;
    } else {
        s[0] = *(const uint16_t *)at;
    }
}
CAIRN_INLINE float scale_of(const uint32_t *s, int u) {
    f32x2 v = unpack_f16x2(s[u / 2]);
    return u % 2 ? v.y : v.x;
}

/* A lane's sums of x, of each band. */
struct band_sums {
    u32x2 of[BANDS];
};

/* What a lane holds of a group's sums of x as B operand: units 2t, 2t + 1 (or the one) of column g,
 * as f16 and what f16 left of them; lanes behind the units hold nothing. */
template <int G> struct low_part {
    static constexpr int LANES = max_of(G / 2, 1); /* values of t with units */
    static constexpr int COUNT = LANES * 8;        /* of a group, in shared memory */
    CAIRN_METHOD bool mine() { return lane_id() % 4 < LANES; }
    CAIRN_METHOD int at() { return lane_id() % 4 * 8 + lane_id() / 4; }
};

/* Which of a tile's rows a lane adds up where a row of x is alone: g, or g + 8 (1). */
CAIRN_INLINE int own_half() { return lane_id() % 2; }

/* The same as add_scaled of add_low's: of the lane's own row. xs: of the lane's two columns. */
CAIRN_INLINE void add_alone_low(float &sum, float low, float high, const uint32_t *minima, u32x2 xs) {
    const uint32_t a[4] = {minima[0], minima[1], minima[0], minima[1]}, b[2] = {xs.x, xs.y};
    float d[4] = {};
    mma_f16(d, a, b);
    sum = fma_f32(own_half() ? d[2] : d[0], own_half() ? high : low, sum);
}

/* What the lanes of a quad hold of their columns 2t, 2t + 1 (rows g: 0, 1; rows g + 8: 2, 3), as all
 * columns of the lane's own row. meet: [16 rows][8], the warp's */
template <int COLUMNS> CAIRN_INLINE void gather_columns(float *all, const float *v, float *meet) {
    const int g = lane_id() / 4, t = lane_id() % 4;
    float *own = meet + (g + own_half() * 8) * 8;
    warp_sync(); /* all have read what was there */
    *(f32x2 *)(meet + g * 8 + t * 2) = f32x2{v[0], v[1]};
    *(f32x2 *)(meet + (g + 8) * 8 + t * 2) = f32x2{v[2], v[3]};
    warp_sync();
    if constexpr (COLUMNS == 8) {
        const f32x4 x = *(f32x4 *)own, y = *(f32x4 *)(own + 4);
        all[0] = x.x, all[1] = x.y, all[2] = x.z, all[3] = x.w;
        all[4] = y.x, all[5] = y.y, all[6] = y.z, all[7] = y.w;
    } else {
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) all[i] = own[i];
    }
}

/* Keeps of the sums of units 2j (first) and 2j + 1 what is this lane's. */
CAIRN_INLINE void keep_pair(float *v, const float *first, const float *second, int j) {
    const bool mine = lane_id() % 4 == j;
    v[0] = mine ? first[0] : v[0], v[1] = mine ? second[1] : v[1];
    v[2] = mine ? first[2] : v[2], v[3] = mine ? second[3] : v[3];
}

/* sum[band] += s[row, unit] xs[unit, column] over the group, by `low` and `high`; scales: the lane's, two
 * units of rows g and g + 8, zero where it has none. A is the scales twice, once for what f16 left. */
template <int G>
CAIRN_INLINE void add_sums(float (*sum)[4], float low, float high, const uint32_t *scales, const band_sums *xs) {
    const uint32_t a[4] = {scales[0], scales[1], scales[0], scales[1]};
#pragma unroll
    for (int band = 0; band < BANDS; band++) {
        u32x2 sums = {0, 0};
        if (low_part<G>::mine()) sums = xs[low_part<G>::at()].of[band];
        const uint32_t b[2] = {sums.x, sums.y};
        float d[4] = {};
        mma_f16(d, a, b);
        add_scaled(sum[band], d, low, high);
    }
}

/* The same of s: [16 rows: g then g + 8][G]. */
template <int G>
CAIRN_INLINE void add_low(float (*sum)[4], float low, float high, const unsigned char *s, const band_sums *xs) {
    const int g = lane_id() / 4, t = lane_id() % 4;
    uint32_t a[2] = {};
    if (low_part<G>::mine()) {
        if constexpr (G == 1) {
            a[0] = *(const uint16_t *)(s + g * 4);
            a[1] = *(const uint16_t *)(s + g * 4 + 2);
        } else {
            a[0] = *(const uint32_t *)(s + g * (4 * G) + t * 4);
            a[1] = *(const uint32_t *)(s + g * (4 * G) + 2 * G + t * 4);
        }
    }
    add_sums<G>(sum, 32.0f / low, 32.0f / high, a, xs);
}

/* As add_low, for a row alone. */
template <int G>
CAIRN_INLINE void add_low_alone(float &sum, float low, float high, const unsigned char *s, u32x2 xs) {
    const int g = lane_id() / 4, t = lane_id() % 4;
    uint32_t a[2] = {};
    if (low_part<G>::mine()) {
        if constexpr (G == 1) {
            a[0] = *(const uint16_t *)(s + g * 4), a[1] = *(const uint16_t *)(s + g * 4 + 2);
        } else {
            a[0] = *(const uint32_t *)(s + g * (4 * G) + t * 4);
            a[1] = *(const uint32_t *)(s + g * (4 * G) + 2 * G + t * 4);
        }
    }
    add_alone_low(sum, 32.0f / low, 32.0f / high, a, xs);
}

/* Words of nibbles of a pair of units (or one) of a lane. */
template <int G> CAIRN_INLINE void load_words(const unsigned char *group, int pair, uint32_t *w) {
    if constexpr (G >= 2) {
        u32x4 v = *(const u32x4 *)(group + pair * 512 + lane_id() * 16);
        w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
    } else {
        u32x2 v = *(const u32x2 *)(group + lane_id() * 8);
        w[0] = v.x, w[1] = v.y;
    }
}

/* A warp's x, of each band: [unit], four words a lane. */
template <int UNITS> struct band_operands {
    uint32_t of[BANDS][UNITS][4];
};

/* d[band] += a x, of k-step s of unit u. */
template <int UNITS>
CAIRN_INLINE void multiply_bands(float (*d)[4], const uint32_t *a, const band_operands<UNITS> &b, int u, int s) {
#pragma unroll
    for (int band = 0; band < BANDS; band++) mma_f16(d[band], a, b.of[band][u] + 2 * s);
}
CAIRN_INLINE void scale_bands(float (*sum)[4], const float (*d)[4], float low, float high) {
#pragma unroll
    for (int band = 0; band < BANDS; band++) add_scaled(sum[band], d[band], low, high);
}

/* One unit of nibbles as an operand: two words, each [bits 0-3: row g, 4-7: row g + 8] in bytes; the
 * product of row g + 8 comes out 16 times too large. */
CAIRN_INLINE void nibbles_operand(const uint32_t *w, int s, uint32_t *a) {
    const uint32_t next = w[s] >> 8;
    a[0] = w[s] & 0x000f000fu, a[1] = w[s] & 0x00f000f0u;
    a[2] = next & 0x000f000fu, a[3] = next & 0x00f000f0u;
}

/* The same with upper bits, as an operand: of row g bits 4.., of row g + 8 bits 8... MIDDLE is taken
 * off. */
template <int UPPER, int MIDDLE>
CAIRN_INLINE void load_operand(const uint32_t *w, uint32_t plane, int s, uint32_t *a) {
    constexpr uint32_t ABOVE = UPPER == 1 ? 0x00100010u : 0x00300030u;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const uint32_t n = i == 0 ? w[s] : w[s] >> 8;
        const uint32_t upper = move_upper(plane, upper_at<UPPER>(4 * s + i));
        a[i] = (n & 0x000f000fu) | (upper & ABOVE);
        a[i + 1] = (n & 0x00f000f0u) | (upper & ABOVE << 4);
        if (MIDDLE) a[i] = sub_f16x2(a[i], MIDDLE * 0x10001u);
        if (MIDDLE) a[i + 1] = sub_f16x2(a[i + 1], MIDDLE * 0x100010u);
    }
}
/* Fifth bits of a pair of units of a lane. */
template <int G> CAIRN_INLINE uint32_t load_fifth(const unsigned char *plane, int pair) {
    if constexpr (G >= 2) return ((const uint32_t *)(plane + pair * 128))[lane_anew()];
    else return byte_permute(((const uint16_t *)plane)[lane_id()], 0, 0x4140u);
}

/* Unit i of a pair's nibbles, k-step s, with fifth bits where there are any. */
template <int UPPER>
CAIRN_INLINE void unit_operand(const uint32_t *w, uint32_t plane, int i, int s, uint32_t *a) {
    if constexpr (UPPER == 0) nibbles_operand(w + 2 * i, s, a);
    else load_operand<UPPER, 0>(w + 2 * i, i ? plane >> 8 : plane, s, a);
}

template <int UPPER, int UNITS>
CAIRN_INLINE void multiply_unit(float (*d)[4], const uint32_t *w, uint32_t plane, int i,
                                const band_operands<UNITS> &b, int u) {
#pragma unroll
    for (int s = 0; s < 2; s++) {
        uint32_t a[4];
        unit_operand<UPPER>(w, plane, i, s, a);
        multiply_bands(d, a, b, u, s);
    }
}

template <int FORMAT, int G> struct group_of;

/* Units of nibbles for a row alone: the sums of a lane's own columns. */
template <int G, int UPPER>
CAIRN_INLINE void multiply_pairs(float *v, const unsigned char *group, const uint32_t *b) {
#pragma unroll
    for (int first = 0; first < G; first += 2) {
        uint32_t w[4] = {}, plane = 0;
        float d[2][4] = {};
        load_words<G>(group, first / 2, w);
        if (UPPER) plane = load_fifth<G>(group + G * 256, first / 2);
#pragma unroll
        for (int i = 0; i < min_of(G, 2); i++)
#pragma unroll
            for (int s = 0; s < 2; s++) {
                uint32_t a[4];
                unit_operand<UPPER>(w, plane, i, s, a);
                mma_f16(d[i], a, b + 2 * s);
            }
        if (first == 0) v[0] = d[0][0], v[1] = d[1][1], v[2] = d[0][2], v[3] = d[1][3];
        else keep_pair(v, d[0], d[1], first / 2);
    }
}

/* MOST: units whose scales are loaded at once, as many as registers allow. */
template <int G, int UPPER, int MOST> struct nibble_group {
    static constexpr float LOW = 16777216.0f, HIGH = 1048576.0f;
    template <int UNITS>
    CAIRN_METHOD void add(float (*sum)[4], const unsigned char *group, const band_operands<UNITS> &b, int from) {
        constexpr int FEW = min_of(G, 2); /* units at a time: registers are scarce */
        constexpr int MANY = min_of(G, MOST);
        uint32_t lows[4], highs[4];
        const unsigned char *s = group + G * (256 + 64 * UPPER) + lane_id() / 4 * (4 * G);
#pragma unroll
        for (int first = 0; first < G; first += FEW) {
            uint32_t low[2], high[2], w[FEW * 2], plane = 0;
            if (first % MANY == 0) {
                if (first) warp_sync();
                load_scales<MANY>(s + first * 2, lows);
                load_scales<MANY>(s + 2 * G + first * 2, highs);
            }
            low[0] = lows[first % MANY / 2], high[0] = highs[first % MANY / 2];
#pragma unroll
            for (int i = 0; i < FEW; i += 2) load_words<G>(group, (first + i) / 2, w + i * 2);
            if (UPPER) plane = load_fifth<G>(group + G * 256, first / 2);
#pragma unroll
            for (int i = 0; i < FEW; i++) {
                float d[BANDS][4] = {};
                multiply_unit<UPPER>(d, w, plane, i, b, from + first + i);
                scale_bands(sum, d, scale_of(low, i), scale_of(high, i));
            }
        }
    }
    CAIRN_METHOD void add_alone(float &sum, const unsigned char *group, const uint32_t *b,
                                float *meet) {
        const unsigned char *s = group + G * (256 + 64 * UPPER) + lane_id() / 4 * (4 * G);
        float v[4], all[8];
        uint32_t scales[4];
        multiply_pairs<G, UPPER>(v, group, b);
        gather_columns<G>(all, v, meet);
        load_scales<G>(s + own_half() * (2 * G), scales);
#pragma unroll
        for (int u = 0; u < G; u++) sum = fma_f32(all[u], scale_of(scales, u), sum);
    }
};

template <int G> struct group_of<PACK_Q4_0, G> : nibble_group<G, 0, 8> {
    static constexpr float BIAS = -8.0f;
    CAIRN_METHOD const unsigned char *minima(const unsigned char *group) {
        return group + G * 256;
    }
};
template <int G> struct group_of<PACK_Q4_1, G> : nibble_group<G, 0, 2> {
    static constexpr float BIAS = 1.0f;
    CAIRN_METHOD const unsigned char *minima(const unsigned char *group) {
        return group + G * 288;
    }
};
template <int G> struct group_of<PACK_Q5_0, G> : nibble_group<G, 1, 4> {
    static constexpr float BIAS = -16.0f;
    CAIRN_METHOD const unsigned char *minima(const unsigned char *group) {
        return group + G * 320;
    }
};
template <int G> struct group_of<PACK_Q5_1, G> : nibble_group<G, 1, 8> {
    static constexpr float BIAS = 1.0f;
    CAIRN_METHOD const unsigned char *minima(const unsigned char *group) {
        return group + G * 352;
    }
};

/* Eight units of Q4_K and Q5_K. Scales and minima are f16 subnormals, as the weights are. */
template <int UPPER> struct super_group {
    static constexpr float BIAS = -1.0f, LOW = 281474976710656.0f, HIGH = LOW / 16.0f;
    static constexpr int HEADS = 8 * (256 + 64 * UPPER);

    /* {d, dmin} of row g (0) or g + 8. */
    CAIRN_METHOD f32x2 factors(const unsigned char *group, int high) {
        return unpack_f16x2(
            ((const uint32_t *)(group + HEADS + 256))[lane_anew() / 4 * 2 + high]);
    }
    /* sum -= dmin times the units' minima times their sums of x. */
    CAIRN_METHOD void add_minima(float (*sum)[4], const unsigned char *group, const band_sums *xs) {
        const unsigned char *heads = group + HEADS + lane_anew() * 8; /* rows g, units 2t, 2t + 1 */
        const u32x2 two = *(const u32x2 *)heads;
        const uint32_t a[2] = {byte_permute(two.x, two.y, 0x0602u) & 0x00ff00ffu,
                               byte_permute(two.x, two.y, 0x0703u) & 0x00ff00ffu};
        add_sums<8>(sum, factors(group, 0).y * (536870912.0f / LOW),
                    factors(group, 1).y * (536870912.0f / HIGH), a, xs);
    }
    template <int UNITS>
    CAIRN_METHOD void add(float (*sum)[4], const unsigned char *group, const band_operands<UNITS> &b, int from) {
        const unsigned char *heads = group + HEADS + lane_anew() / 4 * 32;
        float part[BANDS][4] = {};
#pragma unroll
        for (int first = 0; first < 8; first += 2) {
            uint32_t w[4], plane = 0;
            if (first) warp_sync(); /* registers are scarce: no loads ahead of their pair */
            const u32x2 two = *(const u32x2 *)(heads + first * 4);
            load_words<8>(group, first / 2, w);
            if (UPPER) plane = load_fifth<8>(group + 8 * 256, first / 2);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const f32x2 s = unpack_f16x2(byte_permute(i ? two.y : two.x, 0, 0x4140u));
                float d[BANDS][4] = {};
                multiply_unit<UPPER>(d, w, plane, i, b, from + first + i);
                scale_bands(part, d, s.x, s.y);
            }
        }
        scale_bands(sum, part, factors(group, 0).x, factors(group, 1).x);
    }
    CAIRN_METHOD void add_minima_alone(float &sum, const unsigned char *group, u32x2 xs) {
        const u32x2 two = *(const u32x2 *)(group + HEADS + lane_id() * 8);
        const uint32_t a[2] = {byte_permute(two.x, two.y, 0x0602u) & 0x00ff00ffu,
                               byte_permute(two.x, two.y, 0x0703u) & 0x00ff00ffu};
        const float low = factors(group, own_half()).y; /* the same for both: one's counts */
        add_alone_low(sum, low * (536870912.0f / LOW), low * (536870912.0f / HIGH), a, xs);
    }
    CAIRN_METHOD void add_alone(float &sum, const unsigned char *group, const uint32_t *b,
                                float *meet) {
        const u32x4 *heads = (const u32x4 *)(group + HEADS + lane_id() / 4 * 32);
        const uint32_t pick = own_half() ? 0x4441u : 0x4440u;
        float v[4], all[8], part = 0.0f;
        multiply_pairs<8, UPPER>(v, group, b);
        gather_columns<8>(all, v, meet);
#pragma unroll
        for (int first = 0; first < 8; first += 4) {
            const u32x4 four = heads[first / 4];
            const uint32_t head[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int u = 0; u < 4; u++)
                part = fma_f32(all[first + u], unpack_f16x2(byte_permute(head[u], 0, pick)).x, part);
        }
        sum = fma_f32(part, factors(group, own_half()).x, sum);
    }
};
template <> struct group_of<PACK_Q4_K, 8> : super_group<0> {};
template <> struct group_of<PACK_Q5_K, 8> : super_group<1> {};

/* Four units of Q6_K: a scale is of 16 inputs, which lanes t = 0, 1 and t = 2, 3 have. */
template <> struct group_of<PACK_Q6_K, 4> {
    static constexpr float BIAS = 0.0f, LOW = 16777216.0f, HIGH = 1048576.0f;
    static constexpr int HEADS = 4 * 384;

    template <int UNITS>
    CAIRN_METHOD void add(float (*sum)[4], const unsigned char *group, const band_operands<UNITS> &b, int from) {
        const u32x4 heads = *(const u32x4 *)(group + HEADS + lane_id() / 4 * 16);
        const uint32_t head[4] = {heads.x, heads.y, heads.z, heads.w};
        const uint32_t second = lane_anew() % 4 / 2 ? ~0u : 0u; /* masked x must not be kept */
        float part[BANDS][4] = {};
#pragma unroll
        for (int u = 0; u < 4; u++) {
            warp_sync(); /* as above */
            const u32x2 two = ((const u32x2 *)(group + 4 * 256 + u / 2 * 256))[lane_id()];
            uint32_t w[4];
            load_words<4>(group, u / 2, w);
            float d[2][BANDS][4] = {};
#pragma unroll
            for (int s = 0; s < 2; s++) {
                uint32_t a[4];
                load_operand<2, 32>(w + u % 2 * 2, u % 2 ? two.y : two.x, s, a);
#pragma unroll
                for (int band = 0; band < BANDS; band++) {
                    const uint32_t *x = b.of[band][from + u] + 2 * s;
                    const uint32_t low[2] = {x[0] & ~second, x[1] & ~second};
                    const uint32_t high[2] = {x[0] & second, x[1] & second};
                    mma_f16(d[0][band], a, low);
                    mma_f16(d[1][band], a, high);
                }
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const f32x2 s = unpack_f16x2(sub_f16x2(
                    byte_permute(head[u], 0x64646464u, h ? 0x4342u : 0x4140u), 0x64806480u));
                scale_bands(part, d[h], s.x, s.y);
            }
        }
        const f32x2 d = unpack_f16x2(
            ((const uint32_t *)(group + HEADS + 128))[lane_id() / 4]);
        scale_bands(sum, part, d.x, d.y);
    }
    CAIRN_METHOD void add_alone(float &sum, const unsigned char *group, const uint32_t *b,
                                float *meet) {
        const u32x4 heads = *(const u32x4 *)(group + HEADS + lane_id() / 4 * 16);
        const uint32_t head[4] = {heads.x, heads.y, heads.z, heads.w};
        const uint32_t pick = own_half() ? 0x4341u : 0x4240u;
        float v[4] = {}, all[8], part = 0.0f;
#pragma unroll
        for (int u = 0; u < 4; u++) {
            const u32x2 two = ((const u32x2 *)(group + 4 * 256 + u / 2 * 256))[lane_id()];
            uint32_t w[4];
            float d[4] = {};
            load_words<4>(group, u / 2, w);
#pragma unroll
            for (int s = 0; s < 2; s++) {
                uint32_t a[4];
                load_operand<2, 32>(w + u % 2 * 2, u % 2 ? two.y : two.x, s, a);
                mma_f16(d, a, b + 2 * s);
            }
            keep_pair(v, d, d, u); /* both halves */
        }
        gather_columns<8>(all, v, meet);
#pragma unroll
        for (int u = 0; u < 4; u++) {
            const f32x2 s = unpack_f16x2(
                sub_f16x2(byte_permute(head[u], 0x64646464u, pick), 0x64806480u));
            part = fma_f32(all[2 * u], s.x, part);
            part = fma_f32(all[2 * u + 1], s.y, part);
        }
        const f32x2 d = unpack_f16x2(((const uint32_t *)(group + HEADS + 128))[lane_id() / 4]);
        sum = fma_f32(part, own_half() ? d.y : d.x, sum);
    }
};
template <int G> struct group_of<PACK_Q8_0, G> {
    static constexpr float BIAS = -128.0f, LOW = 16777216.0f, HIGH = LOW;
    CAIRN_METHOD const unsigned char *minima(const unsigned char *group) {
        return group + G * 512;
    }
    template <int UNITS>
    CAIRN_METHOD void add(float (*sum)[4], const unsigned char *group, const band_operands<UNITS> &b, int from) {
        const unsigned char *s = group + G * 512 + lane_id() / 4 * (4 * G);
        uint32_t low[4], high[4];
        load_scales<G>(s, low);
        load_scales<G>(s + 2 * G, high);
#pragma unroll
        for (int u = 0; u < G; u++) {
            if (u == 2) warp_sync(); /* registers are scarce: no loads far ahead */
            uint32_t a[8];
            float d[BANDS][4] = {};
            operand(group, u, a);
            multiply_bands(d, a, b, from + u, 0);
            multiply_bands(d, a + 4, b, from + u, 1);
            scale_bands(sum, d, scale_of(low, u), scale_of(high, u));
        }
    }
    /* Of both k-steps of a unit. */
    CAIRN_METHOD void operand(const unsigned char *group, int u, uint32_t *a) {
        const u32x4 n = *(const u32x4 *)(group + u * 512 + lane_id() * 16);
        a[0] = byte_permute(n.x, 0, 0x4140u), a[1] = byte_permute(n.z, 0, 0x4140u);
        a[2] = byte_permute(n.x, 0, 0x4342u), a[3] = byte_permute(n.z, 0, 0x4342u);
        a[4] = byte_permute(n.y, 0, 0x4140u), a[5] = byte_permute(n.w, 0, 0x4140u);
        a[6] = byte_permute(n.y, 0, 0x4342u), a[7] = byte_permute(n.w, 0, 0x4342u);
    }
    CAIRN_METHOD void add_alone(float &sum, const unsigned char *group, const uint32_t *b,
                                float *meet) {
        const unsigned char *s = group + G * 512 + lane_id() / 4 * (4 * G);
        float v[4] = {}, all[8];
        uint32_t scales[4];
#pragma unroll
        for (int first = 0; first < G; first += 2) {
            float d[2][4] = {};
#pragma unroll
            for (int i = 0; i < min_of(G, 2); i++) {
                uint32_t a[8];
                operand(group, first + i, a);
                mma_f16(d[i], a, b);
                mma_f16(d[i], a + 4, b + 2);
            }
            keep_pair(v, d[0], d[1], first / 2);
        }
        gather_columns<G>(all, v, meet);
        load_scales<G>(s + own_half() * (2 * G), scales);
#pragma unroll
        for (int u = 0; u < G; u++) sum = fma_f32(all[u], scale_of(scales, u), sum);
    }
};
template <int G> struct group_of<PACK_F16, G> {
    static constexpr float BIAS = 0.0f, LOW = 1.0f, HIGH = 1.0f;
    CAIRN_METHOD const unsigned char *minima(const unsigned char *group) { return group; }
    template <int UNITS>
    CAIRN_METHOD void add(float (*sum)[4], const unsigned char *group, const band_operands<UNITS> &b, int from) {
#pragma unroll
        for (int u = 0; u < G; u++) {
            u32x4 x = *(const u32x4 *)(group + u * 1024 + lane_id() * 16);
            u32x4 y = *(const u32x4 *)(group + u * 1024 + 512 + lane_id() * 16);
            uint32_t a[8] = {x.x, y.x, x.y, y.y, x.z, y.z, x.w, y.w};
            multiply_bands(sum, a, b, from + u, 0);
            multiply_bands(sum, a + 4, b, from + u, 1);
        }
    }
};

/* bias times the sum of x of each unit, for add_low; divided by 32, so that 32 of the largest f16
 * fit. Two units are the rows of A, and B has ones in the column that is the pair's lanes' first. */
template <int G> CAIRN_INLINE void sum_units(const uint32_t (*b)[4], float bias, int band, band_sums *xs) {
    float d[4] = {};
#pragma unroll
    for (int u = 0; u < G; u += 2) {
        const uint32_t ones = lane_anew() / 4 == u ? 0x3c003c00u : 0, column[2] = {ones, ones};
#pragma unroll
        for (int s = 0; s < 4; s += 2) {
            const uint32_t a[4] = {b[u][s], G > 1 ? b[u + 1][s] : 0, b[u][s + 1], G > 1 ? b[u + 1][s + 1] : 0};
            mma_f16(d, a, column);
        }
    }
    const float low = d[0] * (bias / 32.0f), high = d[2] * (bias / 32.0f); /* of one unit the second is zero */
    const uint32_t held = pack_f16x2(low, high);
    const f32x2 kept = unpack_f16x2(held);
    if (low_part<G>::mine()) xs[low_part<G>::at()].of[band] = u32x2{held, pack_f16x2(low - kept.x, high - kept.y)};
}

/* The same of a row alone: of the lane's two columns. */
CAIRN_INLINE u32x2 sum_alone(const uint32_t *b, float bias) {
    const uint32_t ones[4] = {0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u};
    float d[4] = {};
    mma_f16(d, ones, b);
    mma_f16(d, ones, b + 2);
    const float low = d[0] * (bias / 32.0f), high = d[1] * (bias / 32.0f);
    const uint32_t held = pack_f16x2(low, high);
    const f32x2 kept = unpack_f16x2(held);
    return u32x2{held, pack_f16x2(low - kept.x, high - kept.y)};
}

/* ---- the ring of a warp ---- */

/* Tiles of a team: first, first + step, ... below `end`. */
struct tile_range {
    const uint8_t *weights;
    int first, step, end;
};

/* Where a lane finds a group, STEP bytes before the next, and its part of a warp's copy of it to
 * shared memory. Packed groups lie behind each other; dense/raw.cuh has others. */
template <int FORMAT, int INPUTS> struct group_source {
    typedef product_cut<FORMAT, INPUTS> cut;
    static constexpr int STEP = cut::BYTES;

    CAIRN_METHOD const uint8_t *at(const uint8_t *weights, int tile, int group) {
        return weights + ((int64_t)tile * cut::GROUPS + group) * STEP + lane_anew() * 16;
    }
    CAIRN_METHOD void copy(shared_addr to, const uint8_t *from) {
        constexpr int ALL = cut::CHUNK * STEP;
#pragma unroll
        for (int i = 0; i < ALL / 512; i++) copy_async16_once(to + i * 512, from + i * 512);
        if (ALL % 512 != 0 && lane_anew() < ALL % 512 / 16)
            copy_async16_once(to + ALL / 512 * 512, from + ALL / 512 * 512);
    }
};

/* The groups of a warp's slices: tile after tile, part after part, or of one part alone (SPREAD). The
 * lanes keep addresses of their own. EAGER: a chunk is asked for as soon as its place is free, not when the
 * next is wanted (of many rows registers are too scarce for that). */
template <int FORMAT, int INPUTS, bool SPREAD, bool EAGER> struct weight_ring {
    typedef product_cut<FORMAT, INPUTS> cut;
    typedef group_source<FORMAT, INPUTS> source;
    static constexpr int CHUNK = cut::CHUNK, BYTES = CHUNK * cut::BYTES;
    static constexpr int DEPTH = RING_BYTES / PRODUCT_WARPS / BYTES;
    static_assert(DEPTH >= 2, "weight_ring: too small");

    unsigned char *memory; /* of this warp */
    const uint8_t *from;   /* the next group to ask for, this lane's */
    int left, part, tiles; /* to ask for: groups of the slice; its part; tiles, this one included */
    shared_addr to;        /* the place to which it goes, this lane's; what is used next lies behind it */

    CAIRN_MEMBER weight_ring(const tile_range &range, unsigned char *rings, int first_part)
        : memory(rings + warp_id() * (DEPTH * BYTES)), part(first_part), to(memory + lane_id() * 16) {
        tiles = ceil_div(range.end - range.first, range.step);
        left = tiles > 0 ? max_of(groups_from(first_group()), 0) : 0;
        from = source::at(range.weights, range.first, first_group());
        /* The counter begins at 0, but is no uniform register's: where an address of copies that have a cache policy
         * has a part in one, ptxas (13.0) may put it over half of the policy, an illegal instruction. */
#pragma unroll 1
        for (int i = thread_id() >= block_threads(); i < DEPTH - 1; i++) {
            ask(range);
            to = to + BYTES;
        }
        if (EAGER) ask(range);
    }
    CAIRN_MEMBER int first_group() const {
        return ((cut::PARTS > 1 ? part : 0) * cut::WARPS + warp_id() % cut::WARPS) * cut::SLICE;
    }
    CAIRN_MEMBER int groups_from(int first) const {
        return cut::EVEN ? cut::SLICE : min_of(cut::SLICE, cut::GROUPS - first);
    }
    /* To the next slice that is not behind the end of K; the first part's are full where there are
     * several. */
    CAIRN_MEMBER void advance(const tile_range &range) {
        const int past = first_group() + groups_from(first_group());
        int further = 0; /* tiles */
        do {
            if (cut::PARTS == 1 || SPREAD) tiles--, further += range.step;
            else if (++part == cut::PARTS) part = 0, tiles--, further += range.step;
            left = tiles > 0 ? groups_from(first_group()) : 0;
        } while (cut::PARTS > 1 && !SPREAD && !cut::EVEN && left <= 0 && tiles > 0);
        from += (int64_t)(first_group() - past) * source::STEP +
                (int64_t)further * (cut::GROUPS * cut::BYTES);
    }
    /* Starts the copy of the next group, as far as there is one. */
    CAIRN_MEMBER void ask(const tile_range &range) {
        if (left > 0) {
            source::copy(to, from);
            from += CHUNK * source::STEP;
            if ((left -= CHUNK) == 0) advance(range);
        }
        copy_async_commit();
    }
    /* Waits for the next chunk. */
    CAIRN_MEMBER const unsigned char *next(const tile_range &range) {
        copy_async_wait<DEPTH - (EAGER ? 1 : 2)>();
        warp_sync();
        if (!EAGER) ask(range); /* in place of the chunk before */
        const shared_addr first(memory + lane_anew() * 16);
        to = to.at == (first + (DEPTH - 1) * BYTES).at ? first : to + BYTES;
        return memory + (to.at - first.at);
    }
    /* The chunk at hand is read: one more is asked for in its place. */
    CAIRN_MEMBER void release(const tile_range &range) {
        if (!EAGER) return;
        warp_sync();
        ask(range);
    }
};

/* ---- outputs ---- */

/* What a lane of an epilogue holds: one output row of a tile, one token. */
struct output {
    int tile, row, column; /* row: in the tile */
    float value;
};

/* Output e of a tile (0 to 127): a warp has all 16 rows of two columns, so that what it hands on
 * are whole sectors of memory; the next row is in lane ^ 4, the row eight further in lane ^ 2. */
CAIRN_INLINE int output_row(unsigned e) { return e % 32 / 4 + e / 2 % 2 * 8; }
CAIRN_INLINE int output_column(unsigned e) { return e / 32 % 4 * 2 + e % 2; }
/* The column that a lane has of a pair of a tile's columns. */
CAIRN_INLINE int column_of(int pair) { return pair * 2 + lane_anew() % 2; }
CAIRN_INLINE int output_at(unsigned e) { return e % 32 / 4 * 16 + e / 32 % 4 * 4 + e % 4; }

/* What an epilogue may ask for ahead, of a row alone: its outputs of a tile are multiplied only now.
 * Overloaded for those that read anything (step/stages.cuh). */
template <class Epilogue> CAIRN_INLINE void prepare_outputs(Epilogue &, int, int) {}

/* ---- the product ---- */

struct product_memory {
    float meeting[MEETINGS * PRODUCT_WARPS][128 * BANDS];
    band_sums xs[PRODUCT_WARPS][64]; /* see sum_units */
    float totals[128 * BANDS]; /* of a tile, up to the part that comes: used by the one team */
    float factors[2 * PRODUCT_COLUMNS]; /* of a row alone two of each warp */
    u32x4 notes[PRODUCT_COLUMNS]; /* the epilogue's own, from before the product on */
    uint64_t full[MEETING_BARRIERS]; /* mbarriers, of each team's meetings */
    u32x4 rest[BANDS == 1 ? 4 : 16]; /* up to a line */
    unsigned char rings[RING_BYTES]; /* at a line of 128 bytes: 64 off it cost a tenth of the speed */
};
static_assert((sizeof(product_memory) - RING_BYTES) % 128 == 0, "product_memory: where the rings begin");
static_assert(sizeof(product_memory) == PRODUCT_FIXED * BANDS + RING_BYTES, "pack.h: PRODUCT_FIXED");

/* Behind it, where parts are spread: of tiles that this block ends, the sums of each part. */
struct spread_memory {
    float sums[PRODUCT_SPREAD][128 * BANDS];
};
static_assert(sizeof(spread_memory) == PRODUCT_SPREAD_SHARED * BANDS, "pack.h: PRODUCT_SPREAD_SHARED");
CAIRN_INLINE spread_memory &spread_base() {
    return *(spread_memory *)(shared_base() + sizeof(product_memory));
}

/* The place in a cluster that has a block for each part of K: tiles are ended in turn by all blocks, as
 * many in a round as there is memory for. */
template <int PARTS> struct spread_round {
    static constexpr int EACH = PRODUCT_SPREAD / PARTS; /* tiles that a block ends in a round */
    int own, first, count; /* this block's part; of the round the first tile, and how many so far */

#if CAIRN_ARCH >= 900
    CAIRN_MEMBER void begin() {
        own = cluster_rank();
        cluster_arrive_relaxed(); /* its memory may be written from now on */
    }
    /* Before the first push. */
    CAIRN_MEMBER void await() const { cluster_wait(); }
    /* Hands a part's sum of the round's tile `turn` to the block that ends it. */
    CAIRN_MEMBER void push(int turn, int e, float value) const {
        float *to = &spread_base().sums[turn / PARTS * PARTS + own][e];
        remote_store(remote(shared_addr(to), turn % PARTS), value);
    }
    /* Ends what is this block's, when all have pushed. All warps. */
    template <class Epilogue>
    CAIRN_MEMBER void end(int step, int columns, const float *factors, Epilogue &epilogue) const {
        const int pairs = ceil_div(columns, 2), mine = ceil_div(count - own, PARTS);
        cluster_sync();
#pragma unroll 1
        for (int i = warp_id(); i < mine * pairs; i += PRODUCT_WARPS) {
            const int pair = i % pairs, slot = i / pairs, e = pair * WARP + lane_anew();
            const float(*sums)[128 * BANDS] = spread_base().sums + slot * PARTS;
            output out = {first + (slot * PARTS + own) * step, output_row(e), column_of(pair),
                          sums[0][e]};
#pragma unroll
            for (int part = 1; part < PARTS; part++) out.value = add_f32(out.value, sums[part][e]);
            epilogue(out, factors);
        }
    }
    /* To the round that begins with this tile, when all have read what was pushed. */
    CAIRN_MEMBER void next(int tile) {
        cluster_sync();
        first = tile, count = 0;
    }
#endif
};

/* Adds up a tile's sums and hands the outputs of every STEPth pair of `columns` columns on, from pair
 * `first` on: one warp. */
template <int FORMAT, int INPUTS, bool SPREAD, bool ALONE, int STEP, class Round, class Epilogue>
CAIRN_INLINE void end_tile(product_memory &memory, const float (*sums)[128 * BANDS], int tile, int part, int first,
                           int columns, const Round &round, int turn, Epilogue &epilogue) {
    typedef product_cut<FORMAT, INPUTS> cut;
#pragma unroll 1
    for (int i = 0; i < ceil_div(PRODUCT_COLUMNS / 2, STEP); i++) {
        const int pair = first + i * STEP;
        if (pair * 2 >= columns) break;
        const int e = pair * WARP + lane_anew(), at = pair / 4 * 128 + output_at(e);
        output out = {tile, output_row(e), column_of(pair), sums[0][at]};
#pragma unroll
        for (int w = 1; w < cut::WARPS; w++) out.value = add_f32(out.value, sums[w][at]);
        if constexpr (SPREAD) {
            round.push(turn, e, out.value);
            continue;
        } else if (cut::PARTS > 1) {
            float *total = &memory.totals[e];
            if (part > 0) out.value = add_f32(*total, out.value);
            if (part + 1 < cut::PARTS) {
                *total = out.value;
                continue;
            }
        }
        epilogue(out, memory.factors + (ALONE ? 2 * warp_id() : 0));
    }
}

/* A warp's slice of x and its product with a slice of weights, left in the meeting place: of up to
 * eight rows, or of one ALONE. */
template <int FORMAT, int INPUTS, bool ALONE> struct slice_product {
    typedef product_cut<FORMAT, INPUTS> cut;
    typedef group_of<FORMAT, cut::GROUP> group;
    static constexpr int G = cut::GROUP;
    typedef rows_place place;
    band_operands<cut::UNITS> b;
    band_sums *xs; /* of this warp */
    float sum[BANDS][4];

    CAIRN_MEMBER void begin(band_sums *memory) { xs = memory; }
    template <bool AGAIN, class Input> CAIRN_MEMBER void fetch(Input &input, int unit) {
        if constexpr (AGAIN) input.fetch_again(unit, b.of[0]);
        else input.fetch(unit, b.of[0]);
        if constexpr (BANDS > 1) input.template fetch<cut::UNITS, band_place<BANDS - 1>>(unit, b.of[BANDS - 1]);
    }
    CAIRN_MEMBER void sum_inputs() {
#pragma unroll
        for (int i = 0; i < cut::SLICE && group::BIAS != 0.0f; i++)
#pragma unroll
            for (int band = 0; band < BANDS; band++)
                sum_units<G>(b.of[band] + i * G, group::BIAS, band, xs + i * low_part<G>::COUNT);
    }
    CAIRN_MEMBER void clear() {
#pragma unroll
        for (int i = 0; i < BANDS * 4; i++) sum[i / 4][i % 4] = 0.0f;
    }
    CAIRN_MEMBER void add(const unsigned char *here, int i) {
        if constexpr (FORMAT == PACK_Q4_K || FORMAT == PACK_Q5_K || FORMAT > RAW)
            group::add_minima(sum, here, xs + i * low_part<G>::COUNT);
        else if constexpr (group::BIAS != 0.0f)
            add_low<G>(sum, group::LOW, group::HIGH, group::minima(here),
                       xs + i * low_part<G>::COUNT);
        group::add(sum, here, b, i * G);
    }
    CAIRN_MEMBER void meet(float *met) const {
#pragma unroll
        for (int band = 0; band < BANDS; band++)
            *(f32x4 *)&met[band * 128 + lane_id() * 4] =
                f32x4{sum[band][0] * group::LOW, sum[band][1] * group::LOW, sum[band][2] * group::HIGH,
                      sum[band][3] * group::HIGH};
    }
};
template <int FORMAT, int INPUTS> struct slice_product<FORMAT, INPUTS, true> {
    typedef product_cut<FORMAT, INPUTS> cut;
    typedef group_of<FORMAT, cut::GROUP> group;
    typedef alone_place<FORMAT, INPUTS> place;
    static constexpr int G = cut::GROUP;
    uint32_t b[cut::SLICE][4];
    u32x2 sums[cut::SLICE]; /* of x */
    float *columns;         /* of this warp */
    float sum;

    CAIRN_MEMBER void begin(band_sums *memory) { columns = (float *)memory; }
    template <bool AGAIN, class Input> CAIRN_MEMBER void fetch(Input &input, int unit) {
        if constexpr (AGAIN) input.template fetch_again<cut::SLICE, place>(unit, b);
        else input.template fetch<cut::SLICE, place>(unit, b);
    }
    CAIRN_MEMBER void sum_inputs() {
#pragma unroll
        for (int i = 0; i < cut::SLICE && group::BIAS != 0.0f; i++)
            sums[i] = sum_alone(b[i], group::BIAS);
    }
    CAIRN_MEMBER void clear() { sum = 0.0f; }
    CAIRN_MEMBER void add(const unsigned char *here, int i) {
        if constexpr (FORMAT == PACK_Q4_K || FORMAT == PACK_Q5_K)
            group::add_minima_alone(sum, here, sums[i]);
        else if constexpr (group::BIAS != 0.0f)
            add_low_alone<G>(sum, group::LOW, group::HIGH, group::minima(here), sums[i]);
        group::add_alone(sum, here, b[i], columns);
    }
    CAIRN_MEMBER void meet(float *met) const { /* the second column is no one's */
        const float own = sum * (own_half() ? group::HIGH : group::LOW);
        if (lane_id() % 4 < 2)
            *(f32x2 *)&met[lane_id() / 4 * 16 + own_half() * 2] = f32x2{own, own};
    }
};

/* Input: aim(first unit), of a row alone, so that addresses are there in time; await();
 * fetch<N>(first unit, b[N][4]) gives zeros for columns beyond the rows and units
 * beyond the last, first of all, then fetch_again; before_meeting(float[]) may leave a factor per
 * column, after the first fetch, as its place says.
 * Epilogue: called by whole warps with each output, columns beyond the rows included up to an even
 * number (for shuffles), and those factors. `columns`: 1 to PRODUCT_COLUMNS. All warps of the block come here; it
 * is block `block` of `blocks` that share the tiles, whose outputs are those of tiles `number` on.
 * SPREAD: the blocks are clusters of one for each part, with PRODUCT_SPREAD_SHARED bytes more. ALONE:
 * there is one row (pack_alone). */
template <int FORMAT, int INPUTS, bool SPREAD = false, bool ALONE = false, class Input, class Epilogue>
CAIRN_INLINE void stream_product(const uint8_t *weights, int tiles, int columns, Input &input,
                                 Epilogue &epilogue, int block = block_id(),
                                 int blocks = grid_blocks(), int number = 0) {
    typedef product_cut<FORMAT, INPUTS> cut;
    static_assert(!SPREAD || product_spreads<FORMAT, INPUTS>(), "stream_product: no clusters");
    /* x is taken in anew for each part; or all of it is kept, as of a row alone. */
    constexpr bool PARTED = cut::PARTS > 1 && !SPREAD && !ALONE;
    constexpr int KEPT = ALONE && !SPREAD ? cut::PARTS : 1;
    /* Who ends a tile comes late to the next. Of many rows half of the warps end one, the other half the next;
     * where all are needed they do when they have met for the next (LATER), so that no one waits for them. */
    constexpr int PAIRS = PRODUCT_COLUMNS / 2, ENDERS = ALONE ? PAIRS : min_of(cut::WARPS, PAIRS);
    constexpr bool LATER = !ALONE && cut::WARPS > 1 && ENDERS == cut::WARPS;
    constexpr int SLOTS = LATER ? MEETINGS : min_of(cut::WARPS, MEETINGS);
    static_assert(!LATER || cut::TEAMS * SLOTS <= MEETING_BARRIERS, "stream_product: a barrier for each meeting");
    product_memory &memory = *(product_memory *)shared_base();
    const int rank = warp_id() % cut::WARPS, team = warp_id() / cut::WARPS;
    constexpr int SHARE = SPREAD ? cut::PARTS : 1; /* blocks that share a tile */
    const tile_range range = {weights, block / SHARE + team * blocks, blocks / SHARE * cut::TEAMS, tiles};
    spread_round<cut::PARTS> round = {0, range.first, 0};
    if constexpr (SPREAD) round.begin();
    weight_ring<FORMAT, INPUTS, SPREAD, ALONE> ring(range, memory.rings, round.own);
    typedef typename slice_product<FORMAT, INPUTS, ALONE>::place place;
    slice_product<FORMAT, INPUTS, ALONE> slices[KEPT];
    int slot = 0;
    if (LATER && thread_id() < MEETING_BARRIERS) mbarrier_init(&memory.full[thread_id()], cut::WARPS);
    if (LATER) fence_mbarrier_init();
    auto take_input = [&](int part, bool again) {
        warp_sync(); /* all are done with the sums before */
        const int unit = (part * cut::WARPS + rank) * (cut::SLICE * cut::GROUP);
        if (PARTED && again) slices[0].template fetch<true>(input, unit);
        else slices[0].template fetch<false>(input, unit);
#pragma unroll
        for (int i = 1; i < KEPT; i++)
            slices[i].template fetch<true>(input, unit + i * (cut::WARPS * cut::SLICE * cut::GROUP));
#pragma unroll
        for (int i = 0; i < KEPT; i++) slices[i].begin(memory.xs[warp_id()]);
        if (KEPT == 1) slices[0].sum_inputs();
        warp_sync();
    };
    auto ready_factors = [&]() {
        input.template before_meeting<place>(memory.factors);
        if constexpr (BANDS > 1) input.template before_meeting<band_place<BANDS - 1>>(memory.factors);
    };
    if constexpr (ALONE)
        input.template aim<place>((round.own * cut::WARPS + rank) * (cut::SLICE * cut::GROUP));
    input.await();
    if (!PARTED) {
        take_input(round.own, false);
        ready_factors();
    }
    if (LATER || (cut::TEAMS > 1 && !ALONE)) block_sync(); /* the barriers; factors that other teams left */
    if constexpr (SPREAD) round.await();
    auto end = [&](const float(*met)[128 * BANDS], int tile, int part, int turn) {
        end_tile<FORMAT, INPUTS, SPREAD, ALONE, ENDERS>(memory, met, number + tile, part, ALONE ? 0 : rank % ENDERS,
                                                        ALONE ? 1 : columns, round, turn, epilogue);
    };
    /* The tile that was met last, but for one at `slot`; all end their pairs of it. */
    int waiting = -1, waiting_part = 0, waiting_turn = 0;
    uint32_t phase = 0;
    auto end_met = [&]() {
        const int before = (slot + SLOTS - 1) % SLOTS;
        if (waiting < 0) return;
        mbarrier_wait(&memory.full[team * SLOTS + before], slot == 0 ? phase ^ 1 : phase);
        end(memory.meeting + (team * SLOTS + before) * cut::WARPS, waiting, waiting_part, waiting_turn);
        waiting = -1;
    };
    auto multiply = [&](slice_product<FORMAT, INPUTS, ALONE> &slice, int tile, int part) {
        const int first = (part * cut::WARPS + rank) * cut::SLICE;
        slice.clear();
        const unsigned char *here = nullptr;
        if (ALONE && rank == slot && (SPREAD || part == cut::PARTS - 1))
            prepare_outputs(epilogue, number + tile, lane_id());
#pragma unroll
        for (int i = 0; i < cut::SLICE; i++) {
            if (!cut::EVEN && i % cut::CHUNK == 0 && first + i >= cut::GROUPS) break;
            if (i % cut::CHUNK == 0) here = ring.next(range);
            else here += cut::BYTES;
            slice.add(here, i);
            if ((i + 1) % cut::CHUNK == 0) ring.release(range);
        }
        float(*met)[128 * BANDS] = memory.meeting + (team * SLOTS + slot) * cut::WARPS;
        slice.meet(met[rank]);
        if constexpr (LATER) {
            warp_sync();
            if (lane_id() == 0) mbarrier_arrive(&memory.full[team * SLOTS + slot]);
            end_met();
            waiting = tile, waiting_part = part, waiting_turn = round.count;
        } else {
            /* Of a row alone one warp ends a tile, and every warp waits at one of SLOTS, so that no one gets
             * further ahead; one that ends no tile itself waits at the next too: only who ended a tile arrives
             * there. */
            const bool ends = ALONE ? rank == slot : rank / ENDERS == slot % max_of(cut::WARPS / ENDERS, 1);
            const bool waits = ALONE ? rank % SLOTS == slot || (rank >= SLOTS && (rank + 1) % SLOTS == slot)
                                     : ends;
            if (cut::WARPS == 1) warp_sync();
            else if (waits) named_sync(1 + team * SLOTS + slot, cut::WARPS * WARP);
            else named_arrive(1 + team * SLOTS + slot, cut::WARPS * WARP);
            if (ends) end(met, tile, part, round.count);
            if (cut::WARPS == 1) warp_sync();
        }
        if (++slot == SLOTS) slot = 0, phase ^= 1;
    };
#pragma unroll 1
    for (int tile = range.first; tile < tiles; tile += range.step) {
        if constexpr (KEPT > 1) {
#pragma unroll
            for (int part = 0; part < KEPT; part++) {
                slices[part].sum_inputs(); /* anew for each tile: registers are scarce */
                multiply(slices[part], tile, part);
            }
        } else {
#pragma unroll 1
            for (int part = round.own; part < (SPREAD ? round.own + 1 : cut::PARTS); part++) {
                if (PARTED) {
                    const bool again = part > 0 || tile != range.first;
                    take_input(part, again);
                    if (!again) ready_factors();
                }
                multiply(slices[0], tile, part);
            }
        }
        if constexpr (SPREAD) {
            const int next = tile + range.step;
            if (++round.count < round.EACH * cut::PARTS && next < tiles) continue;
            if (LATER) end_met();
            round.end(range.step, ALONE ? 1 : columns, memory.factors, epilogue);
            if (next < tiles) round.next(next);
        }
    }
    if (LATER) end_met();
}

#endif

/* dense/product.cuh: the product of packed weights with up to eight rows, at the speed of memory. */
#ifndef CAIRN_PRODUCT_CUH
#define CAIRN_PRODUCT_CUH

#include "device/common.cuh"

#ifndef RING_BYTES
#define RING_BYTES (72 * 1024)
#endif
#ifndef PSLICE
#define PSLICE 16
#endif

constexpr int PRODUCT_WARPS = 8, PRODUCT_COLUMNS = 8;
constexpr int TOTALS = 8; /* tiles of a team whose sums wait for the next part */

/* ---- how K is cut ---- */

CAIRN_INLINE constexpr int common_power(int n, int most) {
    while (n % most) most /= 2;
    return most;
}

template <int FORMAT, int INPUTS> struct product_cut {
    static constexpr int UNITS = INPUTS / 32;
    /* units packed together */
    static constexpr int GROUP =
        common_power(UNITS, FORMAT == PACK_F16 ? 2 : FORMAT == PACK_Q8_0 ? 4 : 8);
    static constexpr int GROUPS = UNITS / GROUP;
    static constexpr int MOST = PSLICE / GROUP; /* groups of a slice */
    static constexpr int PARTS = ceil_div(GROUPS, PRODUCT_WARPS * MOST);
    static constexpr int PART = ceil_div(GROUPS, PARTS); /* groups of a part */
    static constexpr int WARPS = PART > 4 * MOST ? 8 : PART > 2 * MOST ? 4 : PART > MOST ? 2 : 1;
    static constexpr int SLICE = ceil_div(PART, WARPS); /* groups of a slice */
    static constexpr int TEAMS = PRODUCT_WARPS / WARPS;
    static constexpr bool EVEN = SLICE * WARPS * PARTS == GROUPS;
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

/* low += s[row, unit] xs[unit, column] over the group: A is the scales twice, B what xs is and what
 * f16 left of it. s: [16 rows: g then g + 8][G] */
template <int G> CAIRN_INLINE void add_low(float *low, const unsigned char *s, const uint32_t *xs) {
    const int g = lane_id() / 4, t = lane_id() % 4;
    uint32_t a[4] = {};
    if constexpr (G == 1) {
        if (t == 0) {
            a[0] = *(const uint16_t *)(s + g * 4);
            a[1] = *(const uint16_t *)(s + g * 4 + 2);
        }
    } else if (G == 8 || t < G / 2) {
        a[0] = *(const uint32_t *)(s + g * (4 * G) + t * 4);
        a[1] = *(const uint32_t *)(s + g * (4 * G) + 2 * G + t * 4);
    }
    a[2] = a[0], a[3] = a[1];
    mma_f16(low, a, xs);
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

/* One unit of nibbles: two words, each [bits 0-3: row g, 4-7: row g + 8] in bytes; the product of row
 * g + 8 comes out 16 times too large. */
CAIRN_INLINE void multiply_nibbles(float *d, const uint32_t *w, const uint32_t *b) {
#pragma unroll
    for (int s = 0; s < 2; s++) {
        uint32_t next = w[s] >> 8;
        uint32_t a[4] = {w[s] & 0x000f000fu, w[s] & 0x00f000f0u, next & 0x000f000fu,
                         next & 0x00f000f0u};
        mma_f16(d, a, b + 2 * s);
    }
}

template <int FORMAT, int G> struct group_of;

template <int G> struct nibble_group {
    static constexpr float LOW = 16777216.0f, HIGH = 1048576.0f;
    static CAIRN_MEMBER void add(float *sum, const unsigned char *group, const uint32_t (*b)[4]) {
        const unsigned char *s = group + G * 256 + lane_id() / 4 * (4 * G);
        uint32_t low[4], high[4];
        load_scales<G>(s, low);
        load_scales<G>(s + 2 * G, high);
#pragma unroll
        for (int pair = 0; pair < ceil_div(G, 2); pair++) {
            uint32_t w[4];
            load_words<G>(group, pair, w);
#pragma unroll
            for (int i = 0; i < min_of(G, 2); i++) {
                float d[4] = {};
                multiply_nibbles(d, w + 2 * i, b[pair * 2 + i]);
                add_scaled(sum, d, scale_of(low, pair * 2 + i), scale_of(high, pair * 2 + i));
            }
        }
    }
};

template <int G> struct group_of<PACK_Q4_0, G> : nibble_group<G> {
    static constexpr int BYTES = G * 288;
    static constexpr float BIAS = -8.0f;
    static CAIRN_MEMBER const unsigned char *bias_at(const unsigned char *group) {
        return group + G * 256;
    }
};
template <int G> struct group_of<PACK_Q4_1, G> : nibble_group<G> {
    static constexpr int BYTES = G * 320;
    static constexpr float BIAS = 1.0f;
    static CAIRN_MEMBER const unsigned char *bias_at(const unsigned char *group) {
        return group + G * 288;
    }
};
template <int G> struct group_of<PACK_Q8_0, G> {
    static constexpr int BYTES = G * 544;
    static constexpr float BIAS = -128.0f, LOW = 16777216.0f, HIGH = LOW;
    static CAIRN_MEMBER const unsigned char *bias_at(const unsigned char *group) {
        return group + G * 512;
    }
    static CAIRN_MEMBER void add(float *sum, const unsigned char *group, const uint32_t (*b)[4]) {
        const unsigned char *s = group + G * 512 + lane_id() / 4 * (4 * G);
        uint32_t low[4], high[4];
        load_scales<G>(s, low);
        load_scales<G>(s + 2 * G, high);
#pragma unroll
        for (int u = 0; u < G; u++) {
            u32x4 n = *(const u32x4 *)(group + u * 512 + lane_id() * 16);
            uint32_t a[8] = {byte_permute(n.x, 0, 0x4140u), byte_permute(n.z, 0, 0x4140u),
                             byte_permute(n.x, 0, 0x4342u), byte_permute(n.z, 0, 0x4342u),
                             byte_permute(n.y, 0, 0x4140u), byte_permute(n.w, 0, 0x4140u),
                             byte_permute(n.y, 0, 0x4342u), byte_permute(n.w, 0, 0x4342u)};
            float d[4] = {};
            mma_f16(d, a, b[u]);
            mma_f16(d, a + 4, b[u] + 2);
            add_scaled(sum, d, scale_of(low, u), scale_of(high, u));
        }
    }
};
template <int G> struct group_of<PACK_F16, G> {
    static constexpr int BYTES = G * 1024;
    static constexpr float BIAS = 0.0f, LOW = 1.0f, HIGH = 1.0f;
    static CAIRN_MEMBER const unsigned char *bias_at(const unsigned char *group) { return group; }
    static CAIRN_MEMBER void add(float *sum, const unsigned char *group, const uint32_t (*b)[4]) {
#pragma unroll
        for (int u = 0; u < G; u++) {
            u32x4 x = *(const u32x4 *)(group + u * 1024 + lane_id() * 16);
            u32x4 y = *(const u32x4 *)(group + u * 1024 + 512 + lane_id() * 16);
            uint32_t a[8] = {x.x, y.x, x.y, y.y, x.z, y.z, x.w, y.w};
            mma_f16(sum, a, b[u]);
            mma_f16(sum, a + 4, b[u] + 2);
        }
    }
};

/* BIAS sum of x of each unit, as the B operand of add_low. */
template <int G> CAIRN_INLINE void sum_units(const uint32_t (*b)[4], float bias, uint32_t *xs) {
    const int t = lane_id() % 4;
    float mine[2] = {};
#pragma unroll
    for (int u = 0; u < G; u++) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            f32x2 v = unpack_f16x2(b[u][i]);
            sum = add_f32(sum, add_f32(v.x, v.y));
        }
        sum = add_f32(sum, shuffle_xor(sum, 1));
        sum = add_f32(sum, shuffle_xor(sum, 2));
        if (u / 2 == t) mine[u % 2] = sum;
    }
    mine[0] *= bias / 32.0f, mine[1] *= bias / 32.0f; /* 32 rows of the largest f16 fit */
    xs[0] = pack_f16x2(mine[0], mine[1]);
    f32x2 held = unpack_f16x2(xs[0]);
    xs[1] = pack_f16x2(mine[0] - held.x, mine[1] - held.y);
}

/* ---- the ring of a warp ---- */

struct tile_range {
    const uint8_t *weights;
    int first, step, tiles; /* of this team */
};

template <int FORMAT, int INPUTS> struct weight_ring {
    typedef product_cut<FORMAT, INPUTS> cut;
    typedef group_of<FORMAT, cut::GROUP> group;
    static constexpr int BYTES = group::BYTES;
    static constexpr int DEPTH = RING_BYTES / PRODUCT_WARPS / BYTES;
    static_assert(DEPTH >= 2, "weight_ring: too small");

    shared_addr memory;    /* of this lane */
    shared_addr to;        /* where the next piece of this lane goes */
    const uint8_t *at;     /* what is asked for next, of this lane */
    int left;              /* groups left of this slice */
    int tile, part, batch, rank;
    uint32_t take;

    CAIRN_MEMBER weight_ring(const tile_range &range, unsigned char *rings)
        : memory(rings + warp_id() * (DEPTH * BYTES) + lane_id() * 16), to(memory),
          tile(range.first), part(0), batch(range.first), rank(warp_id() % cut::WARPS), take(0) {
        aim(range);
#pragma unroll 1
        for (int i = 0; i < DEPTH - 1; i++) ask(range);
#if L2PF
        for (int i = 0, t = tile; i < L2PF && t < range.tiles; i++, t += range.step)
            if (lane_id() == 0 && left > 0) prefetch_l2_bulk(at + (int64_t)(t - tile) * cut::GROUPS * BYTES, left * BYTES);
#endif
    }
    CAIRN_MEMBER void aim(const tile_range &range) {
        int first = (part * cut::WARPS + rank) * cut::SLICE;
        at = range.weights + ((int64_t)tile * cut::GROUPS + first) * BYTES + lane_id() * 16;
        left = cut::EVEN ? cut::SLICE : min_of(cut::SLICE, cut::GROUPS - first);
        left = tile < range.tiles ? left : 0;
    }
    CAIRN_MEMBER void advance(const tile_range &range) {
        do {
            tile += range.step;
            if (cut::PARTS > 1 && (tile >= range.tiles || tile == batch + TOTALS * range.step)) {
                if (++part == cut::PARTS) part = 0, batch += TOTALS * range.step;
                tile = batch;
            }
            aim(range);
        } while (!cut::EVEN && left <= 0 && tile < range.tiles);
    }
    CAIRN_MEMBER void ask(const tile_range &range) {
        if (left > 0) {
#pragma unroll
            for (int i = 0; i < BYTES / 512; i++) copy_async16_once(to + i * 512, at + i * 512);
            if (BYTES % 512 && lane_id() < BYTES % 512 / 16)
                copy_async16_once(to + BYTES / 512 * 512, at + BYTES / 512 * 512);
            at += BYTES;
            if (--left == 0) advance(range);
        }
        copy_async_commit();
        to = to.at == memory.at + (DEPTH - 1) * BYTES ? memory : to + BYTES;
    }
    /* Where the next group lies, from the warp's memory on. */
    CAIRN_MEMBER uint32_t next(const tile_range &range) {
        copy_async_wait<DEPTH - 2>();
        warp_sync();
        ask(range);
        uint32_t here = take;
        take = take == (DEPTH - 1) * BYTES ? 0 : take + BYTES;
        return here;
    }
};

/* ---- the product ---- */

constexpr int MEETINGS = 4; /* tiles whose sums wait at once */

struct product_memory {
    float meeting[MEETINGS * PRODUCT_WARPS][128];
    float factors[PRODUCT_COLUMNS];
    float pad[24];
};
CAIRN_INLINE constexpr int product_bytes() {
    return (int)sizeof(product_memory) + TOTALS * 512 + RING_BYTES;
}

struct tile_output {
    int tile, row, column;
    float value;
};

template <int FORMAT, int INPUTS, class Input, class Epilogue>
CAIRN_INLINE void stream_product(const uint8_t *weights, int tiles, int columns, Input &input,
                                 Epilogue &epilogue) {
    typedef product_cut<FORMAT, INPUTS> cut;
    typedef group_of<FORMAT, cut::GROUP> group;
    typedef weight_ring<FORMAT, INPUTS> ring_type;
    constexpr int SLOTS = min_of(cut::WARPS, MEETINGS);
    product_memory &memory = *(product_memory *)shared_base();
    float *totals = (float *)(shared_base() + sizeof(product_memory));
    unsigned char *rings = shared_base() + sizeof(product_memory) + TOTALS * 512;
    const int warp = warp_id(), lane = lane_id(), team = warp / cut::WARPS, rank = warp % cut::WARPS;
    const tile_range range = {weights, block_id() * cut::TEAMS + team, grid_blocks() * cut::TEAMS,
                              tiles};
    ring_type ring(range, rings);
    const unsigned char *mine = rings + warp * (ring_type::DEPTH * ring_type::BYTES);
    float(*meeting)[128] = memory.meeting + team * (cut::WARPS * SLOTS);
    int slot = 0;
    totals += team * TOTALS * 128;
    input.await();
    input.factors(memory.factors);
    if (cut::TEAMS > 1) block_sync(); /* else the teams' own meetings */
#pragma unroll 1
    for (int batch = range.first; batch < tiles; batch += TOTALS * range.step) {
        const int end = cut::PARTS > 1 ? min_of(tiles, batch + TOTALS * range.step) : tiles;
#pragma unroll 1
        for (int part = 0; part < cut::PARTS; part++) {
            const int first = (part * cut::WARPS + rank) * cut::SLICE;
            uint32_t b[cut::SLICE * cut::GROUP][4], xs[cut::SLICE][2];
            input.fetch(first * cut::GROUP, b);
            if (group::BIAS != 0.0f)
#pragma unroll
                for (int i = 0; i < cut::SLICE; i++)
                    sum_units<cut::GROUP>(b + i * cut::GROUP, group::BIAS, xs[i]);
            int local = 0;
#pragma unroll 1
            for (int tile = batch; tile < end; tile += range.step, local++) {
                float sum[4] = {}, low[4] = {};
#pragma unroll
                for (int i = 0; i < cut::SLICE; i++) {
                    if (!cut::EVEN && first + i >= cut::GROUPS) break;
                    const unsigned char *here = mine + ring.next(range);
                    group::add(sum, here, b + i * cut::GROUP);
                    if (group::BIAS != 0.0f) add_low<cut::GROUP>(low, group::bias_at(here), xs[i]);
                }
                if (group::BIAS != 0.0f) {
                    sum[0] = fma_f32(sum[0], group::LOW, low[0] * 32.0f);
                    sum[1] = fma_f32(sum[1], group::LOW, low[1] * 32.0f);
                    sum[2] = fma_f32(sum[2], group::HIGH, low[2] * 32.0f);
                    sum[3] = fma_f32(sum[3], group::HIGH, low[3] * 32.0f);
                }
                float(*here)[128] = meeting + slot * cut::WARPS;
                *(f32x4 *)&here[rank][lane * 4] = f32x4{sum[0], sum[1], sum[2], sum[3]};
                const int barrier = 1 + team * SLOTS + slot;
                if (cut::WARPS == 1) warp_sync();
                else if (rank % SLOTS == slot) named_sync(barrier, cut::WARPS * WARP);
                else named_arrive(barrier, cut::WARPS * WARP);
                if (rank == slot) {
#pragma unroll 1
                    for (int e = lane; e / 32 * 2 < columns; e += WARP) {
                        int at = e % 32 / 4 * 16 + e / 32 % 4 * 4 + e % 4;
                        tile_output out = {tile, e % 32 / 4 + e / 2 % 2 * 8,
                                           e / 32 % 4 * 2 + e % 2, 0.0f};
                        float value = here[0][at];
#pragma unroll
                        for (int w = 1; w < cut::WARPS; w++) value = add_f32(value, here[w][at]);
                        if (cut::PARTS > 1) {
                            float *total = &totals[local * 128 + e];
                            if (part > 0) value = add_f32(*total, value);
                            if (part + 1 < cut::PARTS) {
                                *total = value;
                                continue;
                            }
                        }
                        out.value = value;
                        epilogue(out, memory.factors);
                    }
                }
                if (cut::WARPS == 1) warp_sync();
                slot = slot + 1 == SLOTS ? 0 : slot + 1;
            }
        }
        if (cut::PARTS == 1) break;
    }
}

#endif

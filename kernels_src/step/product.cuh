/* The product of the stages of a decoder step: packed weights as mma operands, and 16 output rows with up to eight
 * tokens. Constants as step/step.cuh. */
#ifndef CAIRN_STEP_PRODUCT_CUH
#define CAIRN_STEP_PRODUCT_CUH

#include "step/step.cuh"
#include "dense/product.cuh"

constexpr int COLUMNS = PRODUCT_COLUMNS; /* tokens of one product */

/* ---- the product ----
 * A block computes TILES neighbouring tiles [16 rows of W] x [8 tokens] at a time. A warp takes
 * consecutive units; the partial sums meet in shared memory and are added as a fixed tree, so a
 * value depends on nothing but its weights and its token. The first units are loaded and expanded
 * before the input is awaited, those of the next tiles before the sums meet. Rounds pass one
 * block_sync each and use the two halves of the meeting place in turn, so that one is enough. */

constexpr int MEETING_TILES = CAIRN_MEETING_TILES; /* the most tiles at a time */
constexpr int MEETING_FLOATS = WARPS * MEETING_TILES * 128 + COLUMNS;
constexpr int MEETING_BYTES = 2 * MEETING_FLOATS * 4;

/* The shared memory, which half of the meeting place is next, and whether this thread's outputs gain what
 * an adapter adds (step/adapter.cuh). */
struct workspace {
    unsigned char *keys;
    float *meeting;
    int half;
    bool gains;
};

/* Threads of an epilogue: each keeps to one column. */
constexpr int ENDERS = WARPS / 4 * 128;

template <int N> CAIRN_INLINE float tree_sum(const float *at, int stride) {
    float v[N];
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = at[i * stride];
#pragma unroll
    for (int step = 1; step < N; step *= 2)
#pragma unroll
        for (int i = 0; i + step < N; i += 2 * step) v[i] = add_f32(v[i], v[i + step]);
    return v[0];
}

/* Units of one warp held at once, so that registers suffice: a divisor of all it has. */
CAIRN_INLINE constexpr int BATCH(int mine, int tiles, int format) {
    int wide = !FLOW && format == PACK_16 ? 2 : 4;
    int most = tiles >= 4 ? 8 / tiles : (mine <= 6 ? wide + wide / 2 : wide) / tiles;
    most = most ? most : 1;
    if (most > mine) most = mine;
    while (mine % most) most--;
    return most;
}

template <int FORMAT, int INPUTS, int TILES, int HELD>
CAIRN_INLINE void load_batch(packed<FORMAT> (&raw)[TILES][HELD], const uint8_t *weights, int base,
                             int tiles, int unit) {
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        int tile = min_of(base * TILES + i, tiles - 1);
        const uint8_t *from = weights + tile * tile_bytes<FORMAT, INPUTS>();
#pragma unroll
        for (int u = 0; u < HELD; u++)
            raw[i][u].template load<1>(from, min_of(unit + u, INPUTS / 32 - 1));
    }
}

/* Nothing is added to a product. */
struct no_low {
    static constexpr bool ADDS = false;
    typedef int unit;
};

/* Input: fetch<N>(first unit, b[N][4]) waits for N units (those beyond the last are not used);
 * before_meeting(float[COLUMNS]) may leave a factor per column in shared memory. Epilogue: called
 * by whole warps with each output whose tile exists, columns beyond the rows included (for
 * shuffles), and that memory. ONCE: there is one round at most. Low: what is added (flow_low). */
template <int FORMAT, int INPUTS, int TILES, bool ONCE, class Input, class Epilogue, class Low>
CAIRN_INLINE void multiply(const uint8_t *weights, int first, int step, int tiles, workspace &work,
                           Input &input, Epilogue &epilogue, const Low &add) {
    constexpr int UNITS = INPUTS / 32, MINE = ceil_div(UNITS, WARPS);
    constexpr int HELD = BATCH(MINE, TILES, FORMAT);
    static_assert(TILES <= MEETING_TILES, "multiply: too many tiles at a time");
    constexpr bool LATE = TILES >= 4; /* expand when needed: not enough registers */
    const int mine = warp_id() * MINE;
    packed<FORMAT> raw[TILES][HELD];
    typename Low::unit low[Low::ADDS ? HELD : 1];
    const auto load_low = [&](const uint8_t *tile, int unit) {
        if constexpr (Low::ADDS)
#pragma unroll
            for (int u = 0; u < HELD; u++) low[u].template load<1>(tile, min_of(unit + u, UNITS - 1));
    };
    uint32_t b[HELD][4];
    load_batch<FORMAT, INPUTS>(raw, weights, first, tiles, mine);
#pragma unroll 1
    for (int base = first; base * TILES < tiles; base += step) {
        float sum[TILES][2][4] = {}, more[2][4] = {}, gain[8];
        if constexpr (Low::ADDS) {
            load_low(add.tile(base * TILES), mine);
            add.fetch(base * TILES, gain);
        }
#pragma unroll 1
        for (int batch = 0; batch < MINE; batch += HELD) {
            uint32_t a[LATE ? 1 : TILES][HELD][8];
#pragma unroll
            for (int i = 0; i < TILES && !LATE; i++)
#pragma unroll
                for (int u = 0; u < HELD; u++) raw[i][u].expand(a[i][u]);
            if (batch == 0 && (ONCE || base == first)) input.await();
            if (ONCE || MINE > HELD || base == first) input.fetch(mine + batch, b);
            if (batch + HELD < MINE && !LATE)
                load_batch<FORMAT, INPUTS>(raw, weights, base, tiles, mine + batch + HELD);
            else if (!ONCE && !LATE && (base + step) * TILES < tiles)
                load_batch<FORMAT, INPUTS>(raw, weights, base + step, tiles, mine);
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                uint32_t(&here)[HELD][8] = a[LATE ? 0 : i];
#pragma unroll
                for (int u = 0; u < HELD; u++) {
                    if (LATE) raw[i][u].expand(here[u]);
                    if (MINE * WARPS != UNITS && mine + batch + u >= UNITS) continue;
                    mma_f16(sum[i][0], here[u], b[u]);
                    mma_f16(sum[i][1], here[u] + 4, b[u] + 2);
                }
            }
            if constexpr (Low::ADDS) {
#pragma unroll
                for (int u = 0; u < HELD; u++) {
                    uint32_t c[8];
                    low[u].expand(c);
                    if (MINE * WARPS != UNITS && mine + batch + u >= UNITS) continue;
                    mma_f16(more[0], c, b[u]);
                    mma_f16(more[1], c + 4, b[u] + 2);
                }
                if (batch + HELD < MINE) load_low(add.tile(base * TILES), mine + batch + HELD);
            }
            if (batch + HELD < MINE && LATE)
                load_batch<FORMAT, INPUTS>(raw, weights, base, tiles, mine + batch + HELD);
            else if (!ONCE && LATE && (base + step) * TILES < tiles)
                load_batch<FORMAT, INPUTS>(raw, weights, base + step, tiles, mine);
        }
        float *here = work.meeting + work.half * MEETING_FLOATS;
        work.half ^= 1;
#pragma unroll
        for (int i = 0; i < TILES; i++)
            *(f32x4 *)(here + (i * WARPS + warp_id()) * 128 + lane_id() * 4) =
                f32x4{sum[i][0][0] + sum[i][1][0], sum[i][0][1] + sum[i][1][1],
                      sum[i][0][2] + sum[i][1][2], sum[i][0][3] + sum[i][1][3]};
        if constexpr (Low::ADDS) {
            static_assert(TILES < MEETING_TILES, "multiply: where A x meets");
            *(f32x4 *)(here + (TILES * WARPS + warp_id()) * 128 + lane_id() * 4) =
                f32x4{more[0][0] + more[1][0], more[0][1] + more[1][1], more[0][2] + more[1][2],
                      more[0][3] + more[1][3]};
        }
        float *factors = here + WARPS * MEETING_TILES * 128;
        input.before_meeting(factors);
        block_sync();
#pragma unroll 1
        for (int e = thread_id(); e < TILES * 128 && thread_id() < ENDERS; e += ENDERS) {
            int i = e / 128;
            output out = {base * TILES + i, output_row(e), output_column(e), 0.0f};
            if (out.tile >= tiles) break;
            out.value = tree_sum<WARPS>(here + i * WARPS * 128 + output_at(e), 128);
            if constexpr (Low::ADDS)
                out.value = add.added(out, gain, work.gains,
                                      tree_sum<WARPS>(here + TILES * WARPS * 128 + output_at(e), 128));
            epilogue(out, factors);
        }
        if (ONCE) break;
    }
}

#endif

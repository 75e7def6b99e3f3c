/* index/by_wgmma.cuh: keys and queries meet by wgmma: both lie in shared memory as it reads them, and no thread touches
 * them on their way there. Products are of 64 keys, 16 of each warp's 32. */
#ifndef CAIRN_INDEX_BY_WGMMA_CUH
#define CAIRN_INDEX_BY_WGMMA_CUH

#include "device/wgmma.cuh"

/* Tiles on their way while one is used: the other place is free once all warps are through. */
constexpr int AHEAD = STAGES - 1;
constexpr int ROWS_AT_ONCE = 2, COLUMNS = CAIRN_COLUMNS;
static_assert(FP8 && DIM == 128, "wgmma of e4m3, a key or query a swizzled row");

/* The place of a head's weight among those of its line: a lane's four of 16 heads lie side by side. */
CAIRN_INLINE int weight_at(int line) {
    return line / 16 * 16 + line % 8 / 2 * 4 + line % 16 / 8 * 2 + line % 2;
}

/* The line of a head among those of `count` rows: COLUMNS of a row and as many of the next lie together, where there
 * is one. */
CAIRN_INLINE int line_of(const staged &s, int count, int row, int head) {
    if ((row | 1) >= count) return row * s.heads + head;
    return row / 2 * 2 * s.heads + head / COLUMNS * 2 * COLUMNS + row % 2 * COLUMNS + head % COLUMNS;
}

/* Begins to bring queries and weights of rows [first, first + count) into shared memory, behind a barrier. */
CAIRN_INLINE void ask_rows(const index_logits_params &p, const staged &s, int first, int count) {
    block_sync();
#pragma unroll 1
    for (int row = 0; row < count; row++) {
        const unsigned char *q = (const unsigned char *)p.q + (int64_t)(first + row) * p.heads * DIM;
#pragma unroll 4
        for (int i = thread_id(); i < s.heads * 8; i += block_threads())
            copy_async16(shared_addr(s.q + swizzled_at(line_of(s, count, row, i / 8), i % 8)), q + i * 16,
                         i / 8 < p.heads);
        for (int i = thread_id(); i < s.heads; i += block_threads())
            copy_async4(shared_addr(s.weights + weight_at(line_of(s, count, row, i))),
                        p.weights + (int64_t)(first + row) * p.heads + i, i < p.heads);
    }
}

/* What rows see of `keys`; held_keys::take's barrier is behind it, and behind what is on its way. */
CAIRN_INLINE void take_rows(const index_logits_params &p, const staged &s, int first, int count, range keys) {
    take_windows(p, s, first, count, keys);
}

/* A lane's copies of a warp's keys: of keys lane / 8 + 4 i the bytes 16 (lane % 8) on. Products of 64 keys take 16 of
 * each warp. */
struct key_copies {
    CAIRN_METHOD int key(int i) { return lane_id() / 8 + 4 * i; }
    CAIRN_METHOD int from() { return key(0) * DIM + lane_id() % 8 * 16; }
    CAIRN_METHOD int from_next(int i) { return 4 * i * DIM; }
    CAIRN_METHOD shared_addr to(const staged &s, int stage, int i) {
        const uint32_t first = swizzled_at(warp_id() * 16 + key(0), lane_id() % 8) ^ (uint32_t)(i % 2 * 64);
        return shared_addr(s.tiles) + (uint32_t)(stage * TILE * DIM) + first +
               (uint32_t)((i / 4 * 64 + i % 4 * 4) * DIM);
    }
};

/* A tile, once the copies of all threads are there. */
struct held_keys {
    uint64_t matrix;
    CAIRN_MEMBER void take(const staged &s, int stage) {
        fence_async();
        block_sync();
        matrix = wgmma_swizzled(shared_addr(s.tiles + stage * (TILE * DIM)), 16);
    }
};

template <int WIDE> CAIRN_INLINE void multiply(float *d, uint64_t keys, uint64_t q, bool adds) {
    if constexpr (WIDE == 128) wgmma_e4m3_128_shared(d, keys, q, adds);
    else if constexpr (WIDE == 64) wgmma_e4m3_64_shared(d, keys, q, adds);
    else wgmma_e4m3_32_shared(d, keys, q, adds);
}

/* Begins the products of 64 keys with WIDE heads. */
template <int WIDE> CAIRN_INLINE void begin_products(uint64_t keys, uint64_t q, float *d) {
    wgmma_fence();
#pragma unroll
    for (int from = 0; from < DIM; from += 32)
        multiply<WIDE>(d, wgmma_further(keys, from), wgmma_further(q, from), from > 0);
    wgmma_commit();
}

/* Waits for the products, and adds up what they give the lane's two keys m of ROWS rows. */
template <int ROWS> CAIRN_INLINE void end_products(float *d, const float *weights, float (*sums)[4], int m) {
    wgmma_wait<0>();
    wgmma_hold<ROWS * COLUMNS / 2>(d);
#pragma unroll
    for (int i = 0; i < ROWS * COLUMNS / 16; i++) {
        const f32x4 four = *(const f32x4 *)(weights + 16 * i);
        float *to = sums[i / (COLUMNS / 16)] + 2 * m;
        add_two(d + 8 * i, {four.x, four.y}, to);
        add_two(d + 8 * i + 4, {four.z, four.w}, to);
    }
}

/* What all heads of ROWS staged rows from i on add for the keys of a tile. One product at a time: others of the
 * multiprocessor are under way while this is added up, and fewer registers are more of them. */
template <int ROWS> CAIRN_INLINE void add_rows(const staged &s, const held_keys &k, int i, float (*sums)[4]) {
    constexpr int WIDE = ROWS * COLUMNS;
    const float *weights = s.weights + i * s.heads + lane_id() % 4 * 4;
    uint64_t q = wgmma_swizzled(shared_addr(s.q + i * s.heads * DIM), 16);
#pragma unroll 1
    for (int h = 0; h < s.heads; h += COLUMNS, weights += WIDE, q = wgmma_further(q, WIDE * DIM)) {
#pragma unroll
        for (int m = 0; m < 2; m++) {
            float d[WIDE / 2];
            begin_products<WIDE>(wgmma_further(k.matrix, m * 64 * DIM), q, d);
            end_products<ROWS>(d, weights, sums, m);
        }
    }
}

#endif

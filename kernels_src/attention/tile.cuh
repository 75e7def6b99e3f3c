/* attention/tile.cuh: up to 16 query heads of one row and KV head, and what they end with. */
#ifndef CAIRN_TILE_CUH
#define CAIRN_TILE_CUH

#include "attention/runs.cuh"

constexpr int THREADS = CORE_WARPS * WARP;

CAIRN_INLINE void write_nothing(const attend_params &p, int64_t head, int count,
                                int threads = THREADS) {
    for (int i = thread_id(); i < count * HEAD_DIM; i += threads) {
        p.out[head * HEAD_DIM + i] = 0.0f;
        if (p.lse && i < count) p.lse[head + i] = minus_infinity();
    }
}

/* The block's place: tiles of queries, of which this block has `count` from row `head` on. */
struct tile {
    int block, unit, r, kv_head, count, most;
    int64_t head;

    template <int QUERIES = 16> CAIRN_MEMBER void find(const attend_params &p) {
        const int group = p.heads / p.at.kv_heads, tiles = ceil_div(group, QUERIES);
        block = RELAYED ? block_id_z() : block_id();
        unit = RELAYED ? block_id() : block_id_y(), r = row_of_block();
        most = min_of(group, QUERIES); /* rows of a tile */
        kv_head = unit;
        if (tiles > 1) kv_head = unit / tiles; /* a division, before anything is asked for */
        const int query = (unit - kv_head * tiles) * QUERIES;
        count = min_of(group - query, QUERIES);
        head = (int64_t)r * p.heads + kv_head * group + query;
    }
    /* Its number among all tiles of all rows. */
    CAIRN_MEMBER int64_t slot() const { return (int64_t)r * tiles_of_grid() + unit; }
    /* The most runs that a row may have. */
    CAIRN_MEMBER int runs(const attend_params &p) const { return CHAINED || RELAYED ? p.runs : grid_blocks(); }
};

/* What a block folds of the row's list: tiles [begin, end) of KEYS tokens each, RUN at most, of so many
 * runs. False: nothing; of an empty list the first block has written that. */
template <int HEADS, int KEYS, int RUN, int THREADS>
CAIRN_INLINE bool find_run(const attend_params &p, tile &at, token_list &list, int &runs, int &begin,
                           int &end) {
    at.find<HEADS>(p);
    list.find(p, at.r);
    const int tiles = ceil_div(list.length, KEYS);
    runs = ceil_div(tiles, RUN), begin = at.block * RUN, end = min_of(begin + RUN, tiles);
    if (tiles == 0 && at.block == 0) write_nothing(p, at.head, at.count, THREADS);
    return begin < end;
}

/* From the largest score, in powers of 2, and the denominator. */
CAIRN_INLINE float lse_of(float top, float total) {
    return total > 0.0f ? (top + log2_fast(total)) * 0.6931471805599453f : minus_infinity();
}

/* By the last block: the row from its runs' values [runs, most, HEAD_DIM] and (m, l) [runs, most]. A warp
 * has UNITS units of 32 values at a time, and asks for all runs of a usual list at once. */
template <int WARPS = CORE_WARPS, int EIGHTS = ((BYTES && CHAINED) || WARPS > CORE_WARPS ? 2 : 4),
          int UNITS = EIGHTS == 2 || BYTES || CHAINED ? 1 : 2>
CAIRN_INLINE void merge_parts(const attend_params &p, const tile &at, const float *parts,
                              const f32x2 *sums, int runs) {
    const int t = lane_id() % 4, number = t * 8 + scattered(lane_id() / 4), units = at.count * (DIM / 32);
#pragma unroll 1
    for (int i = warp_id(); i < units; i += UNITS * WARPS) {
        merged out[UNITS];
#pragma unroll
        for (int u = 0; u < UNITS; u++) out[u] = {0.0f, NOTHING, 0.0f};
#pragma unroll 1
        for (int first = 0; first < runs; first += 8 * EIGHTS) {
            run_eights<EIGHTS> eights[UNITS];
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                const int unit = i + u * WARPS, m = unit / (DIM / 32), d = unit % (DIM / 32) * 32 + t * 8;
                const bool there = (u == 0 || unit < units) && has_piece(d / 8);
                eights[u].ask(first, there ? runs : 0, [&](int from, run_part &part) {
                    const int64_t row = (int64_t)from * at.most + m;
                    part.load(parts + row * HEAD_DIM + d, sums + row);
                });
            }
            warp_sync();
#pragma unroll
            for (int u = 0; u < UNITS; u++) eights[u].fold(first, runs, out[u]);
        }
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const int unit = i + u * WARPS, m = unit / (DIM / 32), d = unit % (DIM / 32) * 32;
            const merged done = out[u].share();
            if (u > 0 && unit >= units) break;
            if (has_piece(d / 8 + t)) p.out[(at.head + m) * HEAD_DIM + d + number] = done.value;
            if (p.lse && d == 0 && lane_id() == 0) p.lse[at.head + m] = lse_of(done.top, done.total);
        }
    }
}

#endif

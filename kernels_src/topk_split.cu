/* topk with several blocks a row, on every chip: each leaves its slice's best k in memory, the last
 * to finish merges them (the contract is in runtime.h).
 *
 * Route      "split". A slice is read as the block route reads a row (topk_stream.cuh); the sets of
 *            all, by ascending position as they are, then go through one set in turn.
 * Constants  CAIRN_SCORE_TYPE  1 f32, 2 f16, 3 bf16 (cairn_type)
 *            CAIRN_THREADS, CAIRN_ITEMS  a tile is their product; k + tile <= 10240
 * Launch     grid (blocks a row, rows), block THREADS, shared memory STREAM_BYTES. p.scratch: [rows]
 *            counters, zero; then from the next multiple of 32 words [rows, blocks] counts and
 *            [rows, blocks, k] entries: key, counted from 1, and position
 * matrix: CAIRN_SCORE_TYPE=1 CAIRN_THREADS=512 CAIRN_ITEMS=16
 * matrix: CAIRN_SCORE_TYPE=2 CAIRN_THREADS=512 CAIRN_ITEMS=16
 * matrix: CAIRN_SCORE_TYPE=3 CAIRN_THREADS=512 CAIRN_ITEMS=8 */
#include "common.cuh"
#include "topk.cuh"
#include "topk_stream.cuh"

struct split_store { uint32_t *arrived, *counts; u32x2 *entries; }; /* of one row */

CAIRN_INLINE split_store store_of(const topk_params &p, int r, int blocks) {
    uint32_t *counts = p.scratch + round_up(p.rows, 32);
    u32x2 *entries = (u32x2 *)(counts + round_up(p.rows * blocks, 32));
    return {p.scratch + r, counts + (int64_t)r * blocks, entries + (int64_t)r * blocks * p.k};
}

#define MERGED 4 /* entries that a thread looks at between barriers */

struct split_merge {
    split_store store;
    int origin;      /* position where this block's slice begins */
    int list, first; /* the next entry to add: `first` of block `list` */

    /* Leaves this block's set in memory; true in the block that comes last. */
    CAIRN_MEMBER bool begin(stream_shared &s, int k, int held) {
        u32x2 *entries = store.entries + (int64_t)block_id() * k;
#pragma unroll 1
        for (int i = thread_id(); i < held; i += STREAM_THREADS)
            entries[i] = {s.keys[i], (uint32_t)(s.positions[i] + origin)};
        if (thread_id() == 0) store.counts[block_id()] = (uint32_t)held;
        block_sync();
        if (thread_id() == 0) s.arrived = atomic_add_acq_rel(store.arrived, 1u);
        block_sync();
        return s.arrived == (uint32_t)grid_blocks() - 1;
    }

    /* Adds entries above the floor, by ascending position; false when there are no more, true when
     * the set has no room: it then holds k and more. */
    CAIRN_MEMBER bool add(stream_shared &s, int k, stream_state &state) {
        const uint32_t below_me = (1u << lane_id()) - 1;
#pragma unroll 1
        for (; list < grid_blocks(); list++, first = 0) {
            const u32x2 *entries = store.entries + (int64_t)list * k;
            const int count = (int)load_relaxed(&store.counts[list]);
#pragma unroll 1
            for (; first < count; first += STREAM_THREADS * MERGED) {
                if (state.held + STREAM_THREADS * MERGED > STREAM_SET) return true;
                u32x2 mine[MERGED];
                uint32_t votes[MERGED], votes_all = 0;
#pragma unroll
                for (int u = 0; u < MERGED; u++) {
                    const int i = first + (warp_id() * MERGED + u) * WARP + lane_id();
                    mine[u] = i < count ? entries[i] : u32x2{0, 0};
                }
#pragma unroll
                for (int u = 0; u < MERGED; u++) {
                    votes[u] = warp_ballot(mine[u].x > state.floor);
                    votes_all += (uint32_t)popcount(votes[u]);
                }
                if (lane_id() == 0) s.counts[state.turn][warp_id()] = votes_all;
                block_sync();
                const uint32_t of = lane_id() < CUT_WARPS ? s.counts[state.turn][lane_id()] : 0;
                uint32_t at = (uint32_t)state.held + warp_sum(lane_id() < warp_id() ? of : 0u);
#pragma unroll
                for (int u = 0; u < MERGED; u++) {
                    const uint32_t slot = at + (uint32_t)popcount(votes[u] & below_me);
                    if (mine[u].x > state.floor) {
                        s.keys[slot] = mine[u].x;
                        s.positions[slot] = (int32_t)mine[u].y;
                    }
                    at += (uint32_t)popcount(votes[u]);
                }
                state.held += (int)warp_sum(of);
                state.turn ^= 1;
            }
        }
        return false;
    }
};

CAIRN_KERNEL(topk_split, STREAM_THREADS, 1, topk_params) {
    stream_shared &s = shared_as<stream_shared>();
    static_assert(sizeof(stream_shared) <= STREAM_BYTES, "what the host launches with");
    const int r = block_id_y(), part = block_id();
    topk_range range = topk_row_range(p, r, part == 0 && thread_id() == 0);
    const score_t *row = (const score_t *)p.scores + (int64_t)r * p.stride + range.start;
    const bool whole = range.length <= p.k && !p.finite_only && !p.sort_size;
    int found = range.length;
    if (whole) {
        if (part != 0) return;
    } else {
        const int size = round_up(ceil_div(range.length, grid_blocks()), 32);
        const int begin = min_of(part * size, range.length);
        const int end = min_of(begin + size, range.length);
        found = stream_row(s, p, row + begin, end - begin,
                           split_merge{store_of(p, r, grid_blocks()), begin, 0, 0});
        if (s.arrived != (uint32_t)grid_blocks() - 1) return;
    }
    write_set(s, p, topk_row_out(p, r, row), whole, found);
}

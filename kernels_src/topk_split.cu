/* topk with several blocks a row, on every chip: each leaves its slice's best k in memory, the last
 * to finish merges them (the contract is in runtime.h).
 *
 * Route      "split". A slice is read as the block route reads a row (topk_stream.cuh), with a floor
 *            guessed from the whole row, so that all blocks together keep little more than k. Their
 *            sets, by ascending position as they are, then go through one set, at once if they fit.
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

struct split_store { uint32_t *arrived, *counts; u32x2 *entries; }; /* of this block's row */

CAIRN_INLINE split_store store_here(const topk_params &p) {
    const int r = block_id_y(), blocks = grid_blocks();
    uint32_t *counts = p.scratch + round_up(p.rows, 32);
    u32x2 *entries = (u32x2 *)(counts + round_up(p.rows * blocks, 32));
    return {p.scratch + r, counts + (int64_t)r * blocks, entries + (int64_t)r * blocks * p.k};
}

/* Puts all entries of all blocks into the set, if they fit; how many there are. Where each block's
 * begin lies in the bins: a row has no more blocks than a block has threads. */
CAIRN_INLINE int add_all(stream_shared &s, const topk_params &p) {
    const int blocks = grid_blocks();
    const split_store store = store_here(p);
    const uint32_t mine = thread_id() < blocks ? load_relaxed(&store.counts[thread_id()]) : 0u;
    const uint32_t end = warp_scan(mine);
    if (lane_id() == WARP - 1) s.counts[0][warp_id()] = end;
    block_sync();
    const uint32_t of = lane_id() < CUT_WARPS ? s.counts[0][lane_id()] : 0u;
    const int total = (int)warp_sum(of);
    s.cut.bins[thread_id()] = warp_sum(lane_id() < warp_id() ? of : 0u) + end - mine;
    block_sync();
    if (total > STREAM_SET) return total;
    const int shift = leading_zeros((uint32_t)max_of(blocks - 1, 1)) -
                      leading_zeros((uint32_t)STREAM_THREADS - 1u);
    const int list = thread_id() >> shift; /* so many threads copy one */
    const int at = list < blocks ? (int)s.cut.bins[list] : total;
    const int next = list + 1 < blocks ? (int)s.cut.bins[list + 1] : total;
    const u32x2 *entries = store.entries + (int64_t)list * p.k - at;
#pragma unroll 4
    for (int i = at + (thread_id() & ((1 << shift) - 1)); i < next; i += 1 << shift) {
        const u32x2 entry = entries[i];
        s.keys[i] = entry.x;
        s.positions[i] = (int32_t)entry.y;
    }
    return total;
}

#define MERGED 4 /* entries that a thread looks at between barriers */

/* Adds entries above the floor, by ascending position, from where it stopped; false when there are
 * no more, true when the set has no room: it then holds k and more. */
CAIRN_INLINE bool add_in_turn(stream_shared &s, const topk_params &p, stream_state &state) {
    const uint32_t below_me = (1u << lane_id()) - 1;
    const split_store store = store_here(p);
    int list = s.list, first = s.first;
    block_sync();
#pragma unroll 1
    for (; list < grid_blocks(); list++, first = 0) {
        const u32x2 *entries = store.entries + (int64_t)list * p.k;
        const int count = (int)load_relaxed(&store.counts[list]);
#pragma unroll 1
        for (; first < count; first += STREAM_THREADS * MERGED) {
            if (state.held + STREAM_THREADS * MERGED > STREAM_SET) {
                if (thread_id() == 0) s.list = list, s.first = first;
                return true;
            }
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

/* This block's row. Worked out anew where it is needed, which is seldom, since the loop that reads has
 * no registers to spare. */
struct split_part { const score_t *row; int length, begin, end; };

CAIRN_INLINE split_part part_here(const topk_params &p, bool reports) {
    const int r = block_id_y();
    const topk_range range = topk_row_range(p, r, reports);
    const int size = round_up(ceil_div(range.length, grid_blocks()), 32);
    const int begin = min_of(block_id() * size, range.length);
    return {(const score_t *)p.scores + (int64_t)r * p.stride + range.start, range.length, begin,
            min_of(begin + size, range.length)};
}

struct split_merge {
    CAIRN_MEMBER bool sliced(const stream_shared &s) { return !s.alone; }

    /* Leaves this block's set in memory; true in the block that comes last. */
    CAIRN_MEMBER bool begin(stream_shared &s, const topk_params &p, int held) {
        if (s.alone) return false;
        const split_store store = store_here(p);
        const int origin = part_here(p, false).begin;
        u32x2 *entries = store.entries + (int64_t)block_id() * p.k;
#pragma unroll 2
        for (int i = thread_id(); i < held; i += STREAM_THREADS)
            entries[i] = {s.keys[i], (uint32_t)(s.positions[i] + origin)};
        if (thread_id() == 0) store.counts[block_id()] = (uint32_t)held;
        block_sync();
        if (thread_id() == 0) {
            s.arrived = atomic_add_acq_rel(store.arrived, 1u);
            s.list = s.first = 0;
        }
        block_sync();
        return s.arrived == (uint32_t)grid_blocks() - 1;
    }

    CAIRN_MEMBER bool add(stream_shared &s, const topk_params &p, stream_state &state) {
        if (s.list == 0 && s.first == 0) {
            state.held = add_all(s, p);
            if (state.held <= STREAM_SET) return false;
            state.held = 0;
        }
        return add_in_turn(s, p, state);
    }

    /* What was guessed was too high, or there are no more: this block reads all of the row. */
    CAIRN_MEMBER void whole(stream_shared &s, const topk_params &p, const score_t *&row,
                            int &length) {
        const split_part part = part_here(p, false);
        if (thread_id() == 0) s.alone = true;
        row = part.row;
        length = part.length;
    }
};

/* The best k of this block's row or, of a block that is not the last to finish, -1. */
CAIRN_INLINE int split_row(stream_shared &s, const topk_params &p, split_part part) {
    if (thread_id() == 0) s.alone = false;
    const int found = stream_row(s, p, part.row + part.begin, part.end - part.begin,
                                 {part.row, part.length}, split_merge());
    return s.arrived == (uint32_t)grid_blocks() - 1 ? found : -1;
}

CAIRN_KERNEL(topk_split, STREAM_THREADS, STREAM_RESIDENT, topk_params) {
    stream_shared &s = shared_as<stream_shared>();
    static_assert(sizeof(stream_shared) <= STREAM_BYTES, "what the host launches with");
    const split_part part = part_here(p, block_id() == 0 && thread_id() == 0);
    const bool whole = part.length <= p.k && !p.finite_only && !p.sort_size;
    int found = part.length;
    if (whole && block_id() != 0) return;
    if (!whole) found = split_row(s, p, part);
    if (found < 0) return;
    write_set(s, p, topk_row_out(p, block_id_y(), part_here(p, false).row), whole, found);
}

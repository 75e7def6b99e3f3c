/* topk with several blocks a row, on every chip: each leaves its slice's best k in memory, the last
 * to finish merges them (the contract is in runtime_ops.h).
 *
 * Route      "split". A slice is read as the block route reads a row (topk/stream.cuh), with a
 *            floor guessed from the whole row, so that all blocks together keep little more than k.
 *            Their sets, in the order of positions, then go through one set, at once if they fit.
 * Constants  CAIRN_SCORE_TYPE  1 f32, 2 f16, 3 bf16 (cairn_type)
 *            CAIRN_THREADS, CAIRN_ITEMS  a tile is their product; k + tile <= 10240
 * Launch     grid (blocks a row, rows), block THREADS, shared memory STREAM_BYTES; at most THREADS
 *            rows, and blocks a row. Rows of unequal lengths have more of the blocks, or fewer.
 *            p.arrived: [rows] counters, zero before and after. p.scratch: [rows * blocks] pairs,
 *            number of entries and their highest key; [rows * blocks, k] entries, key, counted from
 *            1, and position
 * matrix: CAIRN_SCORE_TYPE=1 CAIRN_THREADS=512 CAIRN_ITEMS=16
 * matrix: CAIRN_SCORE_TYPE=2 CAIRN_THREADS=512 CAIRN_ITEMS=16
 * matrix: CAIRN_SCORE_TYPE=3 CAIRN_THREADS=512 CAIRN_ITEMS=8 */
#include "device/common.cuh"
#include "abi/topk.h"
#include "topk/topk.cuh"
#include "topk/stream.cuh"

struct split_shared : stream_shared {
    int r, first, blocks; /* this block's row, the first of the row's blocks, how many it has */
    uint32_t best;        /* the highest key of this block's set */
    uint32_t arrived;     /* of the row's blocks, before this one */
    int list, from;       /* merging goes on there */
};

/* This block among all, and what a block leaves in memory. */
CAIRN_INLINE int block_here() { return block_id_y() * grid_blocks() + block_id(); }
CAIRN_INLINE u32x2 *count_of(const topk_params &p, int block) {
    return (u32x2 *)p.scratch + block;
}
CAIRN_INLINE u32x2 *entries_of(const topk_params &p, int block) {
    return count_of(p, grid_blocks() * p.rows) + (int64_t)block * p.k;
}

/* The sum of what the threads before this one have, and of all. */
struct block_sums { uint32_t before, all; };
CAIRN_INLINE block_sums sum_before(stream_shared &s, uint32_t mine) {
    const uint32_t end = warp_scan(mine);
    if (lane_id() == WARP - 1) s.counts[0][warp_id()] = end;
    block_sync();
    const uint32_t of = lane_id() < CUT_WARPS ? s.counts[0][lane_id()] : 0u;
    return {warp_sum(lane_id() < warp_id() ? of : 0u) + end - mine, warp_sum(of)};
}

/* Says which part of which row is this block's; s.blocks is 0 if none. Where lengths may differ,
 * thread r speaks for row r, which has one block and of the others as its tiles are of all. */
CAIRN_INLINE void choose_part(split_shared &s, const topk_params &p) {
    const int t = thread_id();
    const bool equal = !p.lengths && !p.row_starts;
    const int r = equal ? block_id_y() : min_of(t, p.rows - 1);
    const bool speaks = equal ? t == 0 : t < p.rows;
    const topk_range range =
        topk_row_range(p, r, speaks && (equal ? block_id() : block_here()) == 0);
    int blocks = range.length > STREAM_TILE ? grid_blocks() : 1, first = r * grid_blocks();
    if (t == 0) s.blocks = 0;
    if (!equal) {
        const uint32_t tiles = speaks ? (uint32_t)max_of(range.length - 1, 0) / STREAM_TILE : 0u;
        const block_sums sums = sum_before(s, tiles);
        const uint32_t all = max_of(sums.all, 1u);
        const uint32_t share = min_of((uint32_t)((grid_blocks() - 1) * p.rows), all);
        const uint32_t begin = sums.before * share / all;
        first = r + (int)begin;
        blocks = 1 + (int)((sums.before + tiles) * share / all - begin);
    }
    const int number = block_here() - first;
    if (speaks && number >= 0 && number < blocks) {
        const int size = round_up(ceil_div(range.length, blocks), 32);
        const int begin = min_of(number * size, range.length);
        const score_t *row = (const score_t *)p.scores + (int64_t)r * p.stride + range.start;
        s.part = {row, range.length, begin, min_of(begin + size, range.length)};
        s.r = r, s.first = first, s.blocks = blocks;
        s.best = 0;
    }
    block_sync();
}

struct split_merge {
    split_shared &s;

    /* Leaves this block's set in memory; true in the block that comes last. */
    CAIRN_MEMBER bool begin(const topk_params &p, int held) {
        u32x2 *entries = entries_of(p, block_here());
        uint32_t best = 0;
#pragma unroll 2
        for (int i = thread_id(); i < held; i += STREAM_THREADS) {
            best = max_of(best, s.keys[i]);
            entries[i] = {s.keys[i], (uint32_t)s.positions[i]};
        }
        best = warp_max(best);
        if (lane_id() == 0) atomic_max(&s.best, best);
        block_sync();
        if (thread_id() == 0) {
            *count_of(p, block_here()) = {(uint32_t)held, s.best};
            s.arrived = atomic_add_acq_rel(&p.arrived[s.r], 1u);
            if (s.arrived == (uint32_t)s.blocks - 1) p.arrived[s.r] = 0;
            s.list = s.from = 0;
        }
        block_sync();
        return s.arrived == (uint32_t)s.blocks - 1;
    }

    /* Adds to the set, in order, as many of all blocks' entries as it has room for, without those
     * of a block whose best is not above the floor any more; whether there are others. Thread i
     * speaks for the row's i-th block. */
    CAIRN_MEMBER bool add(const topk_params &p, stream_state &state) {
        const int t = thread_id(), room = STREAM_SET - state.held, from = s.from, list = s.list;
        u32x2 left = {0, 0};
        if (t >= list && t < s.blocks) left = load_relaxed8(count_of(p, s.first + t));
        const int skipped = t == list ? from : 0;
        const int mine = left.y > state.floor ? (int)left.x - skipped : 0;
        const block_sums sums = sum_before(s, (uint32_t)mine);
        const int before = (int)sums.before;
        s.cut.bins[t] = sums.before;
        block_sync();
        if (before < room && before + mine >= room) s.list = t, s.from = skipped + room - before;
        const int shift = leading_zeros((uint32_t)max_of(s.blocks - 1, 1)) -
                          leading_zeros((uint32_t)STREAM_THREADS - 1u);
        const int copied = t >> shift, at = (int)s.cut.bins[copied]; /* so many threads copy one */
        const int end = copied + 1 < STREAM_THREADS ? (int)s.cut.bins[copied + 1] : (int)sums.all;
        const u32x2 *entries = entries_of(p, s.first + copied) + (copied == list ? from : 0) - at;
#pragma unroll 4
        for (int i = at + (t & ((1 << shift) - 1)); i < min_of(end, room); i += 1 << shift) {
            const u32x2 entry = entries[i];
            s.keys[state.held + i] = entry.x;
            s.positions[state.held + i] = (int32_t)entry.y;
        }
        state.held += min_of((int)sums.all, room);
        return (int)sums.all > room;
    }
};

CAIRN_KERNEL(topk_split, STREAM_THREADS, STREAM_RESIDENT, topk_params) {
    split_shared &s = shared_as<split_shared>();
    static_assert(sizeof(split_shared) <= STREAM_BYTES, "what the host launches with");
    grid_follow();
    choose_part(s, p);
    if (s.blocks == 0) return;
    const stream_part part = s.part;
    const bool whole = part.length <= p.k && !p.finite_only && !p.sort_size;
    if (whole && block_here() != s.first) return;
    const int found = whole ? part.length : stream_row(s, p, part, split_merge{s});
    if (found >= 0) write_set(s, p, topk_row_out(p, s.r, s.part.row), whole, found);
}

/* topk with several blocks a row, on every chip: each leaves its slice's best k in memory, the last
 * to finish merges them (the contract is in runtime.h).
 *
 * Route      "split"
 * Constants  CAIRN_SCORE_TYPE  1 f32, 2 f16, 3 bf16 (cairn_type)
 *            CAIRN_THREADS, CAIRN_ITEMS  a tile is their product; k + tile <= 10240
 * Launch     grid (blocks a row, rows), block THREADS. p.scratch: [rows] counters, zero; then from
 *            the next multiple of 32 words [rows, blocks] counts and [rows, blocks, k] entries
 * matrix: CAIRN_SCORE_TYPE=1 CAIRN_THREADS=512 CAIRN_ITEMS=16
 * matrix: CAIRN_SCORE_TYPE=2 CAIRN_THREADS=512 CAIRN_ITEMS=16
 * matrix: CAIRN_SCORE_TYPE=3 CAIRN_THREADS=512 CAIRN_ITEMS=8 */
#include "common.cuh"
#include "topk.cuh"
#include "topk_select.cuh"
#include "topk_emit.cuh"

struct split_store { uint32_t *arrived, *counts; topk_entry *entries; };

CAIRN_INLINE split_store store_of(const topk_params &p, int r, int blocks) {
    uint32_t *counts = p.scratch + round_up(p.rows, 32);
    topk_entry *entries = (topk_entry *)(counts + round_up(p.rows * blocks, 32));
    return {p.scratch + r, counts + (int64_t)r * blocks, entries + (int64_t)r * blocks * p.k};
}

/* Leaves this block's set, cut to k, in memory; true in the block that comes last. */
CAIRN_INLINE bool leave_set(topk_shared &s, const topk_params &p, const split_store &store,
                            int length) {
    const int part = block_id(), blocks = grid_blocks();
    if (s.count > (uint32_t)p.k) {
        const int held = (int)s.count;
        keep_chosen(s, held, find_last(s, held, (uint32_t)p.k, length));
    }
    topk_entry *out = store.entries + (int64_t)part * p.k;
    for (int i = thread_id(); i < (int)s.count; i += THREADS) out[i] = {s.keys[i], s.positions[i]};
    if (thread_id() == 0) store.counts[part] = s.count;
    block_sync();
    if (thread_id() == 0) s.listed = atomic_add_acq_rel(store.arrived, 1u);
    block_sync();
    return s.listed == (uint32_t)blocks - 1;
}

CAIRN_KERNEL(topk_split, THREADS, 1, topk_params) {
    topk_shared &s = shared_as<topk_shared>();
    const int r = block_id_y(), part = block_id(), blocks = grid_blocks();
    topk_range range = topk_row_range(p, r, part == 0 && thread_id() == 0);
    const score_t *row = (const score_t *)p.scores + (int64_t)r * p.stride + range.start;
    if (range.length <= p.k && !p.finite_only && !p.sort_size) {
        if (part == 0) emit_all(p, topk_row_out(p, r, row), range.length);
        return;
    }
    const int size = round_up(ceil_div(range.length, blocks), 16);
    topk_slice slice = {min_of(part * size, range.length), min_of((part + 1) * size, range.length)};
    split_store store = store_of(p, r, blocks);
    take_slice(s, p, row, slice, p.k, [](uint32_t bound) { return bound; });
    if (!leave_set(s, p, store, range.length)) return;
    topk_entry last = {0, NO_POSITION};
    if (thread_id() == 0) s.count = 0;
    block_sync();
    for (int from = 0; from < blocks; from++)
        last = merge_entries(s, (int)load_relaxed(&store.counts[from]), p.k, range.length, last,
                             [&](int i) { return store.entries[(int64_t)from * p.k + i]; });
    emit(s, p, topk_row_out(p, r, row), range.length);
}

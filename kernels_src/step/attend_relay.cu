/* Attention of few rows, each a group of its own, to all earlier tokens, or to their window: as step_attend
 * (step/attend.cu), but what a block leaves of its run goes word by word, as in the flow's exchange, to the blocks of
 * the row's last runs, which merge some of the values each. No block counts the others, and none waits for a fence.
 *
 * step_attend_relay
 *             to the bit as step_attend. Grid (kv_heads, rows, runs at least); CAIRN_WARPS warps; shared memory
 *             ATTEND_BYTES. Rows times runs: layout_most_runs + 1 at most. Blocks that merge wait for others: for those
 *             of runs before, which began before them, and for the p.mergers - 1 of the runs behind, which must find
 *             room beside them.
 *
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0. Up to 16 query heads of a KV head. Sync: three block_syncs.
 * Reference: tests/ref/decoder_step.h.
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=4096 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=14336 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=33 CAIRN_PACK_GATE_UP=32 CAIRN_PACK_DOWN=35
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=32 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0
 * matrix: CAIRN_LAYERS=18 CAIRN_HIDDEN=640 CAIRN_HEADS=4 CAIRN_KV_HEADS=1 CAIRN_HEAD_DIM=256
 * matrix: + CAIRN_FFN=2048 CAIRN_VOCAB=262144 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=8 CAIRN_PACK_O=8 CAIRN_PACK_GATE_UP=8 CAIRN_PACK_DOWN=8
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=8192 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=93
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=1
 * matrix: + CAIRN_ABILITIES=3 */
#include "step/merge.cuh"
#include "attention/relay.cuh"

static_assert(SHARES == 1, "attend_relay: heads of a KV head");

/* Of row `row`; the grid has the rows. */
CAIRN_INLINE relay_row relay_of(const step_params &p, int row, int kv_head, int mergers) {
    constexpr int64_t VALUES = (int64_t)(layout_most_runs(KV_HEADS) + 1) * ATTENDED;
    const int64_t head = row * HEADS + kv_head * GROUP, step = (int64_t)grid_blocks_y() * HEADS;
    const int most = p.mergers;
    return {p.relay + head * HEAD_DIM, p.relay + VALUES + head * most * 2, step * HEAD_DIM, step * most * 2,
            GROUP, most, mergers};
}

CAIRN_KERNEL(step_attend_relay, THREADS, ATTEND_BLOCKS, step_params) {
    attend_item item;
    unsigned char *memory = shared_base();
    uint8_t *layer = region(p, 0, 0);
    const bool live = find_row(p, block_id_y(), block_id(), block_id_z(), item);
    const step_cache cache = cache_of(p, p.layer);
    if (live) fetch_first(p, item, cache, memory, false);
    start_input(true);
    if (!live) return;
    const int mergers = min_of(p.mergers, item.runs(p));
    const attend_place at = attend_item_run<query_tiles(SHARE)>(
        p, item, cache, layer, memory,
        [&](const attend_place &place, int run, const f32x2 *totals, const unsigned char *parts, int step) {
            relay_of(p, place.first, place.share, mergers).send(run, totals, parts, step);
        });
    const int runs = at.runs(p), merger = at.run + mergers - runs;
    if (merger < 0) return;
    merge_relayed(relay_of(p, at.first, at.share, mergers), runs, merger, patience(p),
                  [&](int m, int d, const merged_pair &pair) {
                      const f32x2 o = pair.share();
                      send_attended(layer, at.first, at.share * GROUP + m, d, o.x, o.y);
                  });
}

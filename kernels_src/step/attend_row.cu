/* Attention of a row, or of few that are each a group, to all earlier tokens or to their windows, in few runs: as
 * step_attend (step/attend.cu), but a cluster of blocks has all runs of a row and KV head, a block each, and each
 * merges some of the values.
 *
 * step_attend_row
 *             to the bit as step_attend. Grid (blocks of a cluster, one for each run of any row at least; kv_heads;
 *             rows); CAIRN_WARPS warps; shared memory CHAIN_AT + layout_inbox_bytes of as many runs as blocks, of
 *             LAYOUT_SELECT_CLUSTER at least.
 *
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0. Up to 16 query heads of a KV head. Sync: one cluster barrier, and
 * one for what the blocks send each other. sm_90 and up.
 * Reference: tests/ref/decoder_step.h.
 * matrix: arch>=90 CAIRN_LAYERS=32 CAIRN_HIDDEN=4096 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=14336 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=33 CAIRN_PACK_GATE_UP=32 CAIRN_PACK_DOWN=35
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=32 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0
 * matrix: arch>=90 CAIRN_LAYERS=18 CAIRN_HIDDEN=640 CAIRN_HEADS=4 CAIRN_KV_HEADS=1 CAIRN_HEAD_DIM=256
 * matrix: + CAIRN_FFN=2048 CAIRN_VOCAB=262144 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=8 CAIRN_PACK_O=8 CAIRN_PACK_GATE_UP=8 CAIRN_PACK_DOWN=8
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=8192 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=93
 * matrix: arch>=90 CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=1
 * matrix: + CAIRN_ABILITIES=3 */
#include "step/cluster.cuh"

static_assert(SHARES == 1, "attend_row: heads of a KV head");

CAIRN_KERNEL(step_attend_row, THREADS, ATTEND_BLOCKS, step_params) {
    attend_item item;
    unsigned char *memory = shared_base();
    uint8_t *layer = region(p, 0, 0);
    const int kv_head = block_id_y();
    const bool live = find_row(p, block_id_z(), kv_head, cluster_rank(), item);
    const step_cache cache = cache_of(p, p.layer);
    const cluster_inbox inbox(memory + CHAIN_AT, GROUP);
    inbox.open();
    if (live) fetch_first(p, item, cache, memory, false);
    start_input(true);
    const int row = item.first, runs = runs_of(p, item.position);
    if (thread_id() == 0) inbox.expect(runs);
    cluster_wait(); /* all inboxes are open */
    if (live)
        attend_item_run<query_tiles(SHARE)>(
            p, item, cache, layer, memory,
            [&](const attend_place &, int run, const f32x2 *totals, const unsigned char *parts, int step) {
                inbox.send(run, totals, parts, step);
            });
    merge_cluster(inbox, runs, row, kv_head, layer);
}

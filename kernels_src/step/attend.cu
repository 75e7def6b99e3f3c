/* Attention to all earlier tokens: of a decoder step as a kernel a stage (step/attend.cuh).
 *
 * step_attend grid (shares of KV heads, groups of rows, runs or chains of them, CAIRN_CHAINED); the last block of a
 *             group and share merges its runs, where there are several
 *             With STEP_EXTRA_DRAFTS rows may draft: they see what STEP_SEEN and STEP_OWN say
 *
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0; CAIRN_WARPS warps, up to CAIRN_ROWS rows. With
 * CAIRN_LARGE_GROUPS the queries of a group, its rows times the heads of a share, are up to 16; without it up to 8, or
 * those of one row: all that steps cannot do without, compiled in three quarters of the time.
 * Shared memory ATTEND_BYTES, with chains layout_step_chain_bytes more. Sync: four block_syncs a run.
 * A row's results are the bits of step_flow, whatever other rows there are.
 * Reference: tests/ref/decoder_step.h.
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0 CAIRN_LARGE_GROUPS=1
 * matrix: CAIRN_LAYERS=16 CAIRN_HIDDEN=2048 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=8192 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=16
 * matrix: + CAIRN_PACK_QKV=16 CAIRN_PACK_O=16 CAIRN_PACK_GATE_UP=16 CAIRN_PACK_DOWN=16
 * matrix: + CAIRN_PACK_HEAD=16 CAIRN_PACK_EMBED=16 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0
 * matrix: CAIRN_LAYERS=16 CAIRN_HIDDEN=2048 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=8192 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=16
 * matrix: + CAIRN_PACK_QKV=16 CAIRN_PACK_O=16 CAIRN_PACK_GATE_UP=16 CAIRN_PACK_DOWN=16
 * matrix: + CAIRN_PACK_HEAD=16 CAIRN_PACK_EMBED=16 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0 CAIRN_LARGE_GROUPS=1
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=4096 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=14336 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=33 CAIRN_PACK_GATE_UP=32 CAIRN_PACK_DOWN=35
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=32 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=4096 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=14336 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=33 CAIRN_PACK_GATE_UP=32 CAIRN_PACK_DOWN=35
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=32 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0 CAIRN_LARGE_GROUPS=1
 * matrix: CAIRN_LAYERS=18 CAIRN_HIDDEN=640 CAIRN_HEADS=4 CAIRN_KV_HEADS=1 CAIRN_HEAD_DIM=256
 * matrix: + CAIRN_FFN=2048 CAIRN_VOCAB=262144 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=8 CAIRN_PACK_O=8 CAIRN_PACK_GATE_UP=8 CAIRN_PACK_DOWN=8
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=8192 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=93
 * matrix: CAIRN_LAYERS=18 CAIRN_HIDDEN=640 CAIRN_HEADS=4 CAIRN_KV_HEADS=1 CAIRN_HEAD_DIM=256
 * matrix: + CAIRN_FFN=2048 CAIRN_VOCAB=262144 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=8 CAIRN_PACK_O=8 CAIRN_PACK_GATE_UP=8 CAIRN_PACK_DOWN=8
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=8192 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=93 CAIRN_LARGE_GROUPS=1
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=1024 CAIRN_LARGE_GROUPS=1
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=1
 * matrix: + CAIRN_ABILITIES=3
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=1
 * matrix: + CAIRN_ABILITIES=3 CAIRN_LARGE_GROUPS=1
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=4096 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=14336 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=33 CAIRN_PACK_GATE_UP=32 CAIRN_PACK_DOWN=35
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=32 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_CHAINED=1
 * matrix: CAIRN_LAYERS=18 CAIRN_HIDDEN=640 CAIRN_HEADS=4 CAIRN_KV_HEADS=1 CAIRN_HEAD_DIM=256
 * matrix: + CAIRN_FFN=2048 CAIRN_VOCAB=262144 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=8 CAIRN_PACK_O=8 CAIRN_PACK_GATE_UP=8 CAIRN_PACK_DOWN=8
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=8192 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=93 CAIRN_CHAINED=1
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=1
 * matrix: + CAIRN_ABILITIES=3 CAIRN_CHAINED=1 */
#include "step/merge.cuh"

#ifndef CAIRN_LARGE_GROUPS
#define CAIRN_LARGE_GROUPS 0
#endif
/* Tiles of eight queries of a group. */
constexpr int GROUP_TILES = CAIRN_LARGE_GROUPS ? 2 : query_tiles(SHARE);

/* A value that a row attends by one run, to the bit as merge_block. */
CAIRN_INLINE float share_of(float v, float total) { return total != 0.0f ? add_f32(v, 0.0f) * (1.0f / total) : 0.0f; }

/* What the warps left of a run of a place (merge_warps): to where the place's runs are merged or, of the only one, as
 * what its rows attend. */
CAIRN_INLINE void send_run(const step_params &p, const attend_place &at, int run, uint8_t *layer, const f32x2 *totals,
                           const unsigned char *parts, int step) {
    const int heads = share_heads(at.share);
    const bool single = at.runs(p) == 1;
    merge_warps(totals, parts, step, at.rows * heads, [&](int m, int d, f32x4 v, f32x2 sums) {
        const int row = at.first + m / heads, head = first_head(at.share) + m % heads;
        if (single) {
            send_attended(layer, row, head, d, share_of(v.x, sums.y), share_of(v.y, sums.y));
            send_attended(layer, row, head, d + 2, share_of(v.z, sums.y), share_of(v.w, sums.y));
        } else send_part(p, run, row, head, layer, d, v, sums);
    });
}

CAIRN_KERNEL(step_attend, THREADS, ATTEND_BLOCKS, step_params) {
    attend_item item;
    uint8_t *layer = region(p, 0, 0);
    const int group = block_id_y();
    const bool live = group < p.input[STEP_GROUPS] && find_item(p, group, block_id(), block_id_z(), item);
    const step_cache cache = cache_of(p, p.layer);
    if (live) fetch_first(p, item, cache, shared_base(), false);
    start_input(p.input[STEP_ROWS] == 1);
    if (!live) return;
    const attend_place at = attend_item_run<GROUP_TILES>(
        p, item, cache, layer, shared_base(),
        [&](const attend_place &place, int run, const f32x2 *totals, const unsigned char *parts, int step) {
            send_run(p, place, run, layer, totals, parts, step);
        });
    if (at.runs(p) > 1 &&
        last_to_arrive(p.arrived + at.first * ALL_SHARES + at.share, at.blocks(p),
                       (uint32_t *)(shared_base() + TOTALS_AT)))
        merge_group(
            p, layer, at.first, at.rows, at.share,
            [&](int row) { return runs_of(p, input_array(p, STEP_POSITION)[row]); },
            [&](int row) {
                if (!WINDOWS) return 0;
                return first_run(p, input_array(p, STEP_POSITION)[row]) - first_run(p, at.position);
            },
            shared_base());
}

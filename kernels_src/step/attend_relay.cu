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
#include "step/stages.cuh"
#include "step/merge.cuh"

static_assert(SHARES == 1, "attend_relay: heads of a KV head");

/* A row's run as a part; the grid has the rows. */
CAIRN_INLINE int part_at_run(int run, int row) { return run * grid_blocks_y() + row; }

/* Where a part leaves what it gives for a head. */
CAIRN_INLINE float *relayed_values(const step_params &p, int part, int head) {
    return p.relay + ((int64_t)part * HEADS + head) * HEAD_DIM;
}
CAIRN_INLINE float *relayed_sums(const step_params &p, int merger, int part, int head) {
    constexpr int64_t VALUES = (int64_t)(layout_most_runs(KV_HEADS) + 1) * ATTENDED;
    return p.relay + VALUES + (((int64_t)part * HEADS + head) * p.mergers + merger) * 2;
}

/* Of up to eight runs from `first` on four values each and their (m, l), once they are there. */
struct relayed_eight {
    u32x4 v[8];
    u32x2 sums[8];

    CAIRN_MEMBER void receive(const step_params &p, int merger, int row, int first, int runs, int head, int d) {
        patience wait(p);
        bool complete;
        do {
            complete = true;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                v[i] = u32x4{0, 0, 0, 0}, sums[i] = u32x2{as_u32(NOTHING), 0};
                if (first + i >= runs) continue;
                v[i] = load_relaxed16(relayed_values(p, part_at_run(first + i, row), head) + d);
                sums[i] = load_relaxed8(relayed_sums(p, merger, part_at_run(first + i, row), head));
            }
#pragma unroll
            for (int i = 0; i < 8; i++)
                complete = complete && full(v[i]) && sums[i].x != EMPTY && sums[i].y != EMPTY;
        } while (!complete && wait.more());
    }
    /* And so that the next kernel finds nothing there. */
    CAIRN_MEMBER void forget(const step_params &p, int row, int first, int runs, int head, int d) const {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (first + i < runs)
                store_relaxed16(relayed_values(p, part_at_run(first + i, row), head) + d,
                                u32x4{EMPTY, EMPTY, EMPTY, EMPTY});
    }
    /* Their largest m, the denominator and the values, to the bit as merge_block. */
    CAIRN_MEMBER f32x2 weigh(f32x4 &values) const {
        float top = NOTHING, l[8], weights[8], one[8], out[4];
#pragma unroll
        for (int i = 0; i < 8; i++) top = fmaxf(top, as_f32(sums[i].x)), l[i] = as_f32(sums[i].y);
#pragma unroll
        for (int i = 0; i < 8; i++) weights[i] = exp2_fast(as_f32(sums[i].x) - top);
#pragma unroll
        for (int k = 0; k < 4; k++) {
#pragma unroll
            for (int i = 0; i < 8; i++) one[i] = as_f32(k == 0 ? v[i].x : k == 1 ? v[i].y : k == 2 ? v[i].z : v[i].w);
            out[k] = weigh_eight(one, weights);
        }
        values = f32x4{out[0], out[1], out[2], out[3]};
        return f32x2{top, weigh_eight(l, weights)};
    }
};

/* Part `merger` of `mergers` of a KV head's values over all runs: four lanes have four values, of eight runs each at a
 * time. All threads. */
CAIRN_INLINE void merge_relayed(const step_params &p, uint8_t *layer, int row, int kv_head, int runs, int merger,
                                int mergers) {
    constexpr int ALL = GROUP * HEAD_DIM; /* a multiple of 16 */
    const int each = round_up(ceil_div(ALL, mergers), 4), begin = merger * each, end = min_of(begin + each, ALL);
#pragma unroll 1
    for (int at = begin + thread_id(); at - lane_id() < end; at += THREADS) {
        const int i = min_of(at / 4 * 4, end - 4), head = kv_head * GROUP + i / HEAD_DIM, d = i % HEAD_DIM;
        const int own = at < end ? at % 4 * 8 : runs;
        merged_pair low, high;
#pragma unroll 1
        for (int first = 0; first < runs; first += 32) {
            f32x2 sums = {NOTHING, 0.0f};
            f32x4 v = {0.0f, 0.0f, 0.0f, 0.0f};
            if (first + own < runs) {
                relayed_eight eight;
                eight.receive(p, merger, row, first + own, runs, head, d);
                eight.forget(p, row, first + own, runs, head, d);
                sums = eight.weigh(v);
            }
            warp_sync();
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int from = (lane_id() & ~3) + e;
                const f32x2 that = {shuffle(sums.x, from), shuffle(sums.y, from)};
                const f32x2 one = {shuffle(v.x, from), shuffle(v.y, from)};
                const f32x2 two = {shuffle(v.z, from), shuffle(v.w, from)};
                if (first + e * 8 >= runs) continue;
                low.add(that, one.x, one.y);
                high.add(that, two.x, two.y);
            }
        }
        if (at % 4 || at >= end) continue;
        const f32x2 a = low.share(), b = high.share();
        send_attended(layer, row, head, d, a.x, a.y);
        send_attended(layer, row, head, d + 2, b.x, b.y);
    }
    block_sync();
#pragma unroll 1
    for (int i = thread_id(); i < runs * GROUP * 2; i += THREADS) {
        const int part = part_at_run(i / 2 / GROUP, row);
        store_relaxed((uint32_t *)relayed_sums(p, merger, part, kv_head * GROUP + i / 2 % GROUP) + i % 2, EMPTY);
    }
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
            const int head = place.share * GROUP;
            const int part = part_at_run(run, place.first);
            merge_warps(totals, parts, step, GROUP, [&](int m, int d, f32x4 v, f32x2 sums) {
                send(relayed_values(p, part, head + m) + d, v);
                if (d > 0) return;
#pragma unroll 1
                for (int merger = 0; merger < mergers; merger++) {
                    send(relayed_sums(p, merger, part, head + m), sums.x);
                    send(relayed_sums(p, merger, part, head + m) + 1, sums.y);
                }
            });
        });
    const int merger = at.run + mergers - at.runs(p);
    if (merger >= 0) merge_relayed(p, layer, at.first, at.share, at.runs(p), merger, mergers);
}

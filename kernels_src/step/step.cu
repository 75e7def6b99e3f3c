/* One decoder forward of up to eight rows as one kernel. See step/stages.cuh for the stages,
 * step/attend.cuh for attention, step/product.cuh for packed weights, step/step.cuh for constants.
 *
 *   y = W x by mma m16n8k16, f16 x f16 -> f32; residual stream, norms, softmax and sums f32.
 *
 * step_flow   CAIRN_BLOCKS blocks of CAIRN_WARPS warps, all resident (at most one a
 *             multiprocessor). Blocks below CAIRN_NARROW compute the residual stream (project and
 *             down), the others qkv, attention and gate_up, and all together the head; with
 *             CAIRN_NARROW 0 every block does everything. Blocks meet through the exchange only.
 *             With CAIRN_SPARSE attention is that of step/sparse.cuh. With STEP_EXTRA_ADAPTERS and
 *             STEP_EXTRA_DRAFTS rows may draft by p.low_tiles (step/adapter.cuh): they have embeddings of
 *             their own, and see what STEP_SEEN and STEP_OWN say; the head serves the rows that want logits.
 * Shared memory: ATTEND_BYTES + MEETING_BYTES.
 * Sync: one block_sync a round of a product, three a chunk of attention.
 * A row's results are the bits of the stage kernels (step/layer.cu, step/attend.cu,
 * step/select.cu, step/attend_pages.cu, step/head.cu), whatever other rows there are.
 * Reference: tests/ref/decoder_step.h.
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=8 CAIRN_PARTS=256 CAIRN_BLOCKS=132 CAIRN_NARROW=36 CAIRN_SPARSE=0
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=8 CAIRN_PARTS=256 CAIRN_BLOCKS=132 CAIRN_NARROW=36 CAIRN_SPARSE=1
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=8 CAIRN_PARTS=256 CAIRN_BLOCKS=132 CAIRN_NARROW=36 CAIRN_EXTRAS=1536
 * matrix: CAIRN_LAYERS=16 CAIRN_HIDDEN=2048 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=8192 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=16
 * matrix: + CAIRN_PACK_QKV=8 CAIRN_PACK_O=8 CAIRN_PACK_GATE_UP=8 CAIRN_PACK_DOWN=8
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=8 CAIRN_PARTS=1024 CAIRN_BLOCKS=108 CAIRN_NARROW=0 CAIRN_SPARSE=0
 * matrix: CAIRN_LAYERS=16 CAIRN_HIDDEN=2048 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=8192 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=16
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=8 CAIRN_PARTS=2048 CAIRN_BLOCKS=48 CAIRN_NARROW=0 CAIRN_SPARSE=0 */
#include "step/stages.cuh"
#include "step/merge.cuh"
#if CAIRN_SPARSE
#include "step/sparse.cuh"
#endif

constexpr int BLOCKS = CAIRN_BLOCKS, NARROW = CAIRN_NARROW;
constexpr int RESIDUAL_BLOCKS = NARROW ? NARROW : BLOCKS, WIDE_BLOCKS = BLOCKS - NARROW;
CAIRN_INLINE constexpr int TILES_OF(int tiles, int blocks) {
    return min_of(2, ceil_div(tiles, blocks));
}
/* Whether one round of the blocks computes all tiles. */
CAIRN_INLINE constexpr bool ONCE(int tiles, int blocks) {
    return TILES_OF(tiles, blocks) * blocks >= tiles;
}

/* Where vector i (of 16 bytes) lies of what the forward before left in a region: its parts one
 * behind the other; `rows` and chunks were that forward's. */
CAIRN_INLINE int64_t dirty_at(int i, int rows) {
    const int hidden = rows * copies_of(rows) * (HIDDEN / 8);
    const int squares = ceil_div(rows * copies_of(rows) * SQUARES, 4);
    const int sums = ceil_div(rows * HEADS, 2), parts = rows * (ATTENDED / 4);
    int64_t at = HIDDEN_AT;
    auto skip = [&](int count, int64_t next) {
        if (i < count) return false;
        i -= count, at = next;
        return true;
    };
    if (skip(hidden, SQUARES_AT) && skip(squares, MIDDLE_AT) && skip(hidden, MIDDLE_SQUARES_AT) &&
        skip(squares, QKV_AT) && skip(rows * (QKV / 8), FFN_AT) &&
        skip(rows * (FFN / 8), ATTENDED_AT) && skip(rows * (ATTENDED / 8), 0)) {
        const int chunk = i / (sums + parts);
        i -= chunk * (sums + parts);
        at = SUMS_AT + (int64_t)chunk * (ROWS * HEADS * 8);
        skip(sums, PARTS_AT + (int64_t)chunk * (ROWS * ATTENDED * 4));
    }
    return at + (int64_t)i * 16;
}
CAIRN_INLINE int dirty_vectors(int rows, int chunks) {
    const int slots = rows * copies_of(rows);
    return 2 * (slots * (HIDDEN / 8) + ceil_div(slots * SQUARES, 4)) +
           rows * ((QKV + FFN + ATTENDED) / 8) +
           chunks * (ceil_div(rows * HEADS, 2) + rows * (ATTENDED / 4));
}

/* Empties that in the other half, a layer at a time; with the last one also the region behind. */
CAIRN_INLINE void clean_layers(const step_params &p, uint32_t epoch, int layer, int block) {
    const int rows = p.input[STEP_CLEAN_ROWS];
    const int count = dirty_vectors(rows, p.input[STEP_CLEAN_CHUNKS]);
    const int all = layer + 1 < LAYERS ? count : 2 * count;
    uint8_t *to = region(p, epoch, layer);
#pragma unroll 1
    for (int i = block * THREADS + thread_id(); i < all; i += WIDE_BLOCKS * THREADS) {
        bool behind = i >= count;
        int64_t at = dirty_at(behind ? i - count : i, rows) + (behind ? REGION_BYTES : 0);
        *(u32x4 *)(to + at) = u32x4{EMPTY, EMPTY, EMPTY, EMPTY};
    }
}

/* Asks for the weights of a layer that this block will need. */
template <int FORMAT, int INPUTS>
CAIRN_INLINE void prefetch_tiles(const uint8_t *weights, int first, int step, int tiles) {
    constexpr int64_t BYTES = tile_bytes<FORMAT, INPUTS>();
#pragma unroll 1
    for (int tile = first; tile < tiles; tile += step)
#pragma unroll 1
        for (int at = thread_id() * 128; at < BYTES; at += THREADS * 128)
            prefetch_l2(weights + tile * BYTES + at);
}
template <bool RESIDUAL, bool BROAD>
CAIRN_INLINE void prefetch_layer(const step_params &p, int layer) {
    constexpr int64_t GATE_BYTES = FFN / 8 * tile_bytes<CAIRN_PACK_GATE_UP, HIDDEN>();
    constexpr int64_t O_BYTES = HIDDEN / 16 * tile_bytes<CAIRN_PACK_O, ATTENDED>();
    constexpr int64_t DOWN_BYTES = HIDDEN / 16 * tile_bytes<CAIRN_PACK_DOWN, FFN>();
    const int narrow = block_id(), wide = block_id() - NARROW;
    if (OWN_ROWS) { /* what an adapter adds: a share of it all */
        const int64_t at = ((int64_t)thread_id() * BLOCKS + block_id()) * 128;
        if (at < LOW_BYTES) prefetch_l2(low_layer(p, layer) + at);
    }
    if (BROAD) {
        prefetch_tiles<CAIRN_PACK_QKV, HIDDEN>(p.qkv + layer * QKV_BYTES, wide, WIDE_BLOCKS,
                                               QKV / 16);
        prefetch_tiles<CAIRN_PACK_GATE_UP, HIDDEN>(p.gate_up + layer * GATE_BYTES, wide,
                                                   WIDE_BLOCKS, FFN / 8);
    }
    if (RESIDUAL) {
        prefetch_tiles<CAIRN_PACK_O, ATTENDED>(p.o + layer * O_BYTES, narrow, RESIDUAL_BLOCKS,
                                               HIDDEN / 16);
        prefetch_tiles<CAIRN_PACK_DOWN, FFN>(p.down + layer * DOWN_BYTES, narrow, RESIDUAL_BLOCKS,
                                             HIDDEN / 16);
    }
}

/* Before layer `layer`: what comes two layers later, at first the layer after too, and over the
 * last four layers this block's tiles of the head. */
template <bool RESIDUAL, bool BROAD>
CAIRN_INLINE void prefetch_layers(const step_params &p, int layer) {
#pragma unroll 1
    for (int next = layer ? layer + 2 : 0; next <= layer + 2 && next < LAYERS; next++)
        prefetch_layer<RESIDUAL, BROAD>(p, next);
    const int part = layer - (LAYERS - 4);
    if (part >= 0)
        prefetch_tiles<CAIRN_PACK_HEAD, HIDDEN>(p.head, block_id() + part * BLOCKS, 4 * BLOCKS,
                                                (VOCAB + 15) / 16);
}

/* The attention items of a block: index, index + WIDE_BLOCKS, ... of a layer's. */
#if CAIRN_SPARSE
struct attend_queue : list_queue {
    CAIRN_MEMBER void start(const step_params &, int first_item, workspace &) {
        first = first_item, blocks = WIDE_BLOCKS;
    }
    static CAIRN_MEMBER int chunks(const step_params &p, int layer, int row) {
        return list_chunks(p, row, layer_selects(p, layer));
    }
};
#else
/* Item `index` of shares, groups and runs, the first the innermost. */
CAIRN_INLINE bool find_item(const step_params &p, int index, attend_item &item) {
    const int groups = p.input[STEP_GROUPS], outer = index / ALL_SHARES;
    return find_item(p, outer % groups, index % ALL_SHARES, outer / groups, item);
}

/* The keys of the next one are always under way: while others compute, and from layer to layer. */
struct attend_queue {
    int first, count, index;
    bool live;
    attend_item item;

    CAIRN_MEMBER void start(const step_params &p, int first_item, workspace &work) {
        first = index = first_item;
        count = p.input[STEP_GROUPS] * p.input[STEP_CHUNKS] * KV_HEADS;
        live = index < count && find_item(p, index, item);
        if (live) fetch_first(p, item, p.kv[0], work.keys, false);
    }
    CAIRN_MEMBER void run(const step_params &p, int layer, uint8_t *at, workspace &work) {
        if (first >= count) return;
        bool last;
#pragma unroll 1
        do {
            if (live)
                attend_item_run<2>(
                    p, item, p.kv[layer], at, work.keys,
                    [&](const attend_place &place, int run, const f32x2 *totals, const unsigned char *parts, int step) {
                        send_parts(p, place.first, place.share, run, at, totals, parts, step,
                                   place.rows * share_heads(place.share));
                    });
            block_sync();
            index += WIDE_BLOCKS;
            last = index >= count;
            if (last) index = first;
            if (count > WIDE_BLOCKS) live = find_item(p, index, item);
            if (live && layer + last < LAYERS)
                fetch_first(p, item, p.kv[layer + last], work.keys, false);
        } while (!last);
    }
    CAIRN_MEMBER void ask(const step_params &, int, workspace &) {} /* done by start and run */
    static CAIRN_MEMBER int chunks(const step_params &p, int, int row) {
        return runs_of(p, input_array(p, STEP_POSITION)[row]);
    }
};
#endif

/* All layers, for a block that computes the residual stream, the rest, or both. */
template <bool RESIDUAL, bool BROAD>
CAIRN_INLINE void run_layers(const step_params &p, uint32_t epoch, row_window rows,
                             workspace &work) {
    const int narrow = block_id(), wide = block_id() - NARROW;
    constexpr bool PAIRS = !OWN_ROWS || (K_TILE % 2 == 0 && KV_TILES % 2 == 0); /* of one A */
    constexpr int QKV_TILES = PAIRS ? TILES_OF(QKV / 16, WIDE_BLOCKS) : 1;
    constexpr int HIDDEN_TILES = TILES_OF(HIDDEN / 16, RESIDUAL_BLOCKS);
    constexpr bool HIDDEN_ONCE = ONCE(HIDDEN / 16, RESIDUAL_BLOCKS);
    attend_queue queue;
    qkv_place place;
    if (BROAD) {
        /* Items start behind the blocks that have a tile of qkv, as far as there are others. */
        queue.start(p, (wide + WIDE_BLOCKS - QKV / 16 % WIDE_BLOCKS) % WIDE_BLOCKS, work);
        place.find(p, rows, min_of(wide * QKV_TILES, QKV / 16 - 1), output_row(thread_id()),
                   output_column(thread_id()));
    }
    if (RESIDUAL)
        stage_embed<HIDDEN_TILES>(p, rows, region(p, epoch, 0), narrow, RESIDUAL_BLOCKS);
#pragma unroll 1
    for (int layer = 0; layer < LAYERS; layer++) {
        uint8_t *at = region(p, epoch, layer);
        if (BROAD) queue.ask(p, layer, work);
        prefetch_layers<RESIDUAL, BROAD>(p, layer);
        if (BROAD) {
            stage_qkv<QKV_TILES, QKV_TILES * WIDE_BLOCKS >= QKV / 16>(p, rows, layer, at, place, work, wide,
                                                                      WIDE_BLOCKS);
            queue.run(p, layer, at, work);
            stage_merge(p, rows.count, at, warp_id() * WIDE_BLOCKS + wide, WIDE_BLOCKS * WARPS,
                        [&](int row, int) { return attend_queue::chunks(p, layer, row); });
        }
        if (RESIDUAL)
            stage_project<HIDDEN_TILES, HIDDEN_ONCE>(p, rows, layer, at, work, narrow,
                                                     RESIDUAL_BLOCKS);
        if (BROAD) {
            stage_gate_up<TILES_OF(FFN / 8, WIDE_BLOCKS), ONCE(FFN / 8, WIDE_BLOCKS)>(
                p, rows, layer, at, work, wide, WIDE_BLOCKS);
            clean_layers(p, epoch + 1, layer, wide);
        }
        if (RESIDUAL)
            stage_down<HIDDEN_TILES, HIDDEN_ONCE>(p, rows, layer, at, region(p, epoch, layer + 1),
                                                  work, narrow, RESIDUAL_BLOCKS);
    }
}

CAIRN_KERNEL(step_flow, THREADS, 1, step_params) {
    workspace work{shared_base(), (float *)(shared_base() + ATTEND_BYTES), 0, false};
    const uint32_t epoch = (uint32_t)p.input[STEP_EPOCH];
    const row_window rows = window_of(p, 0);
    if constexpr (OWN_ROWS) work.gains = input_array(p, STEP_ADAPTER)[output_column(thread_id())] >= 0;
    if constexpr (NARROW == 0) run_layers<true, true>(p, epoch, rows, work);
    else if (block_id() < NARROW) run_layers<true, false>(p, epoch, rows, work);
    else run_layers<false, true>(p, epoch, rows, work);
    const uint8_t *last = region(p, epoch, LAYERS);
    stage_head<HEAD_TILES>(p, OWN_ROWS ? logits_of(p, 0) : rows, last + HIDDEN_AT, last + SQUARES_AT, work, block_id(),
                           BLOCKS);
}

/* A prompt's chunk through the decoder: the products that follow a norm, on tensor cores straight
 * from packed weights. The rows are one sequence's, consecutive. The rest is in step/prompt_residual.cu
 * and step/prompt_attend.cu: three programs, compiled side by side.
 *
 *   prompt_qkv       q k v = normed Wqkv, rotated; k and v to the cache
 *   prompt_gate_up   ffn = silu(normed Wgate) * normed Wup
 *
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0. Buffers: step/prompt.cuh.
 * Grids, 128 threads: (ceil(16-row tiles of W / 4), ceil(rows / 64)).
 * Shared memory: 2 x 64 x 320 bytes. Sync: one block_sync a tile of 128 inputs.
 * A row's results do not depend on the other rows of the chunk, nor on where the chunk begins.
 * Reference: tests/ref/decoder_step.h.
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0
 * matrix: CAIRN_LAYERS=16 CAIRN_HIDDEN=2048 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=8192 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=16
 * matrix: + CAIRN_PACK_QKV=8 CAIRN_PACK_O=8 CAIRN_PACK_GATE_UP=8 CAIRN_PACK_DOWN=8
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=256 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0
 * matrix: CAIRN_LAYERS=16 CAIRN_HIDDEN=2048 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=8192 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=16
 * matrix: + CAIRN_PACK_QKV=16 CAIRN_PACK_O=16 CAIRN_PACK_GATE_UP=16 CAIRN_PACK_DOWN=16
 * matrix: + CAIRN_PACK_HEAD=16 CAIRN_PACK_EMBED=16 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=4096 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=14336 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=33 CAIRN_PACK_GATE_UP=32 CAIRN_PACK_DOWN=35
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=32 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=4096 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=14336 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=2631206 CAIRN_PACK_O=37 CAIRN_PACK_GATE_UP=38 CAIRN_PACK_DOWN=39
 * matrix: + CAIRN_PACK_HEAD=40 CAIRN_PACK_EMBED=40 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0
 * matrix: CAIRN_LAYERS=16 CAIRN_HIDDEN=1024 CAIRN_HEADS=16 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1792 CAIRN_VOCAB=65536 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=32 CAIRN_PACK_GATE_UP=32 CAIRN_PACK_DOWN=32
 * matrix: + CAIRN_PACK_HEAD=40 CAIRN_PACK_EMBED=40 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=385
 * matrix: + CAIRN_PRODUCTS=480 CAIRN_PACK_CONV_IN=38 CAIRN_PACK_CONV_OUT=40 CAIRN_TAPS=3 CAIRN_RING=32
 * matrix: + CAIRN_PACK_EXPERT_UP=38 CAIRN_PACK_EXPERT_DOWN=40 CAIRN_EXPERTS=128 CAIRN_USED=8
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_PRODUCTS=15
 * matrix: + CAIRN_EXTRAS=512 */
#include "step/prompt.cuh"
#include "step/families.cuh"

constexpr int OUT_STRIDE = 18; /* floats, of a row's 16 outputs in shared memory */

/* Dimensions d, d + 1 of a head of q, k or v: rotated, to the exchange or to the cache. */
CAIRN_INLINE void place_pair(const step_params &p, int row, int head, int d, f32x2 y) {
    if constexpr (BY_HEAD) {
        *(f32x2 *)((float *)buffer(p, SUMMED_AT) + (int64_t)row * QKV + head * HEAD_DIM + d) = y;
        return;
    }
    const int position = input_array(p, STEP_POSITION)[0] + row;
    f32x2 turn = {1.0f, 0.0f};
    if (head < HEADS + KV_HEADS && !(STILL && p.still))
        turn = ((const f32x2 *)p.rope)[(int64_t)input_array(p, STEP_ROPE)[row] * (HEAD_DIM / 2) +
                                       d / 2];
    uint32_t two = pack_f16x2(fma_f32(y.x, turn.x, -(y.y * turn.y)),
                              fma_f32(y.x, turn.y, y.y * turn.x));
    if (head < HEADS) {
        int64_t at = (int64_t)row * QKV + head * HEAD_DIM + d;
        *(uint32_t *)(buffer(p, QKV_AT) + at * 2) = two;
    } else {
        const int32_t *table =
            p.page_table + (int64_t)input_array(p, STEP_SEQUENCE)[0] * p.table_stride;
        int64_t page = table[position / PAGE];
        int64_t plane = page * 2 * KV_HEADS + head - HEADS; /* K heads, then V heads */
        *(uint32_t *)(p.kv[p.layer] + (plane * PAGE + position % PAGE) * HEAD_DIM + d) = two;
    }
}

/* Tile `tile` of the part of q, k and v that begins with `from`, whose format is FORMAT. */
template <int FORMAT>
CAIRN_INLINE void product_qkv(const step_params &p, int tile, int from, int64_t at, int first,
                              int rows, tile_sums &sum) {
    product<FORMAT, HIDDEN>(
        p.qkv + at + (int64_t)(min_of(tile, QKV / 16 - 1) - from) * tile_bytes<FORMAT, HIDDEN>(),
        buffer(p, NORMED_AT), first, rows, shared_base(), sum);
}

#if CAIRN_PRODUCTS & 1
CAIRN_KERNEL(prompt_qkv, 128, 1, step_params) {
    constexpr int TILES = QKV / 16;
    int tile = block_id() * 4 + warp_id(), first = block_id_y() * TILE_ROWS;
    int rows = p.input[STEP_ROWS];
    tile_sums sum = {};
    /* A head is at least four tiles: a block's are of one part. */
    if (!QKV_MIXED || tile < K_TILE) product_qkv<PACK_Q>(p, tile, 0, 0, first, rows, sum);
    else if (tile < V_TILE) product_qkv<PACK_K>(p, tile, K_TILE, K_AT, first, rows, sum);
    else product_qkv<PACK_V>(p, tile, V_TILE, V_AT, first, rows, sum);
    block_sync(); /* of the inputs in shared memory no one needs any more */
    if (tile >= TILES) return;
    float *mine = (float *)shared_base() + warp_id() * TILE_ROWS * OUT_STRIDE;
    each_output(sum, 0, [&](int row, int g, float low, float high) {
        mine[row * OUT_STRIDE + g] = low, mine[row * OUT_STRIDE + 8 + g] = high;
    });
    warp_sync();
    const int head = tile * 16 / HEAD_DIM, row = lane_id() / 8, pair = lane_id() % 8 * 2;
    const int d = tile * 16 % HEAD_DIM + pair;
#pragma unroll 2
    for (int r = row; r < min_of(TILE_ROWS, rows - first); r += WARP / 8) {
        f32x2 y = *(const f32x2 *)(mine + r * OUT_STRIDE + pair);
        if constexpr (ADAPTERS) {
            y.x = adapted_qkv(p, y.x, first + r, tile * 16 + pair);
            y.y = adapted_qkv(p, y.y, first + r, tile * 16 + pair + 1);
        }
        place_pair(p, first + r, head, d, y);
    }
}
#endif

#if CAIRN_PRODUCTS & 32
CAIRN_KERNEL(prompt_conv_in, 128, 1, step_params) {
    constexpr int TILES = 3 * HIDDEN / 16;
    int tile = block_id() * 4 + warp_id(), first = block_id_y() * TILE_ROWS;
    int rows = p.input[STEP_ROWS];
    tile_sums sum = {};
    product<CAIRN_PACK_CONV_IN, HIDDEN>(
        p.qkv + (int64_t)min_of(tile, TILES - 1) * tile_bytes<CAIRN_PACK_CONV_IN, HIDDEN>(),
        buffer(p, NORMED_AT), first, rows, shared_base(), sum);
    if (tile >= TILES) return;
    each_output(sum, first, [&](int row, int g, float low, float high) {
        if (row >= rows) return;
        float *to = (float *)buffer(p, SUMMED_AT) + (int64_t)row * (3 * HIDDEN) + tile * 16 + g;
        to[0] = low, to[8] = high;
    });
}
#endif

/* The tile of gates and ups, of the inputs at `from`: gated, to `to`. */
template <int FORMAT>
CAIRN_INLINE void product_gated(const step_params &p, int64_t before, const uint8_t *from,
                                uint8_t *to, int first, int rows) {
    constexpr int TILES = FFN / 8;
    int tile = block_id() * 4 + warp_id();
    tile_sums sum = {};
    product<FORMAT, HIDDEN>(
        p.gate_up + (before + min_of(tile, TILES - 1)) * tile_bytes<FORMAT, HIDDEN>(), from, first,
        rows, shared_base(), sum);
    if (tile >= TILES) return;
    each_output(sum, first, [&](int row, int g, float gate, float up) {
        if constexpr (ADAPTERS)
            if (row < rows) {
                gate = adapted(p, gate, row, STEP_LOW_GATE, 0, tile * 8 + g);
                up = adapted(p, up, row, STEP_LOW_UP, 1, tile * 8 + g);
            }
        float v = gated(gate, up), next = shuffle_xor(v, 4);
        if (row >= rows || g % 2 != 0) return;
        int64_t at = (int64_t)row * FFN + tile * 8 + g;
        *(uint32_t *)(to + at * 2) = pack_f16x2(v, next);
    });
}

#if CAIRN_PRODUCTS & 4
CAIRN_KERNEL(prompt_gate_up, 128, 1, step_params) {
    product_gated<CAIRN_PACK_GATE_UP>(p, 0, buffer(p, NORMED_AT), buffer(p, FFN_AT),
                                      block_id_y() * TILE_ROWS, p.input[STEP_ROWS]);
}
#endif

#if CAIRN_PRODUCTS & 128
CAIRN_KERNEL(prompt_expert_up, 128, 1, step_params) {
    expert_window window;
    start_input();
    if (!find_window(p, block_id_y(), window)) return;
    product_gated<CAIRN_PACK_EXPERT_UP>(p, (int64_t)window.expert * (FFN / 8), buffer(p, ROUTED_AT),
                                        buffer(p, EXPERT_FFN_AT), window.first,
                                        window.first + window.count);
}
#endif

/* A prompt's chunk through the decoder: the products that follow a norm, on tensor cores straight
 * from packed weights. The rows are those of one sequence or of several, one behind the other. The
 * rest is in step/prompt_residual.cu and step/prompt_attend.cu: programs, compiled side by side.
 *
 *   prompt_qkv       q k v = normed Wqkv, rotated; k and v to the cache
 *   prompt_gate_up   ffn = silu(normed Wgate) * normed Wup
 *
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0. Buffers: step/prompt_buffers.cuh.
 * Grids, CAIRN_PROMPT_WARPS warps: (ceil(rows / tokens of a block), ceil(16-row tiles of W / those
 * of a block)), step/prompt.cuh. Shared memory: PROMPT_BYTES.
 * Sync: one block_sync a step of 128 inputs; with carriers, barriers.
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
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_PROMPT_WARPS=8
 * matrix: + CAIRN_PROMPT_EACH=1 CAIRN_PROMPT_TOKENS=32 CAIRN_PROMPT_CARRIERS=2
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=4096 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=14336 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=33 CAIRN_PACK_GATE_UP=32 CAIRN_PACK_DOWN=35
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=32 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=4096 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=14336 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=2631206 CAIRN_PACK_O=37 CAIRN_PACK_GATE_UP=38 CAIRN_PACK_DOWN=39
 * matrix: + CAIRN_PACK_HEAD=40 CAIRN_PACK_EMBED=40 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_PROMPT_WARPS=8
 * matrix: + CAIRN_PROMPT_EACH=1 CAIRN_PROMPT_TOKENS=32 CAIRN_PROMPT_CARRIERS=2
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=4096 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=14336 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=38 CAIRN_PACK_O=38 CAIRN_PACK_GATE_UP=32 CAIRN_PACK_DOWN=40
 * matrix: + CAIRN_PACK_HEAD=40 CAIRN_PACK_EMBED=40 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=2048 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_PROMPT_WARPS=8
 * matrix: + CAIRN_PROMPT_EACH=1 CAIRN_PROMPT_TOKENS=256 CAIRN_PROMPT_CARRIERS=4
 * matrix: CAIRN_LAYERS=16 CAIRN_HIDDEN=1024 CAIRN_HEADS=16 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1792 CAIRN_VOCAB=65536 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=32 CAIRN_PACK_GATE_UP=32 CAIRN_PACK_DOWN=32
 * matrix: + CAIRN_PACK_HEAD=40 CAIRN_PACK_EMBED=40 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=385
 * matrix: + CAIRN_PROMPT_WARPS=8 CAIRN_PROMPT_EACH=1 CAIRN_PROMPT_TOKENS=128 CAIRN_PROMPT_CARRIERS=4
 * matrix: + CAIRN_PRODUCTS=480 CAIRN_PACK_CONV_IN=38 CAIRN_PACK_CONV_OUT=40 CAIRN_TAPS=3 CAIRN_RING=32
 * matrix: + CAIRN_PACK_EXPERT_UP=38 CAIRN_PACK_EXPERT_DOWN=40 CAIRN_EXPERTS=128 CAIRN_USED=8
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_PRODUCTS=399
 * matrix: + CAIRN_EXTRAS=768 CAIRN_PACK_EXPERT_UP=4 CAIRN_PACK_EXPERT_DOWN=4 CAIRN_EXPERTS=16
 * matrix: + CAIRN_USED=4 */
#include "step/prompt.cuh"
#include "step/families.cuh"

constexpr int OUT_STRIDE = 20; /* floats, of a row's 16 outputs in shared memory and, behind them, its notes */
constexpr int SLOT_NOTE = 16, ROPE_NOTE = 17;

#if CAIRN_PRODUCTS & 1
/* What outputs of rows lane_id() + 32 i of the block need to know: the slots of the cache that are the rows', and which
 * rotation is. */
struct row_notes {
    static constexpr int COUNT = ceil_div(TOKENS, WARP);
    static constexpr bool EARLY = COUNT <= 2; /* else registers are scarce while products are under way */
    int slot[COUNT], rope[COUNT];
    uint16_t *kv; /* of the layer */

    CAIRN_MEMBER void find(const step_params &p, int first, int rows) {
        const int32_t *position = input_array(p, STEP_POSITION), *sequence = input_array(p, STEP_SEQUENCE);
        kv = p.kv[p.layer];
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int row = min_of(first + i * WARP + lane_id(), rows - 1), at = position[row];
            const int32_t *table = p.page_table + (int64_t)sequence[row] * p.table_stride;
            slot[i] = table[at / PAGE] * PAGE + at % PAGE;
            rope[i] = input_array(p, STEP_ROPE)[row];
        }
    }
};

/* The rotation of dimensions d, d + 1 of a head of q, k or v. */
CAIRN_INLINE f32x2 turn_of(const step_params &p, int rope, int head, int d) {
    if (head >= HEADS + KV_HEADS || (STILL && p.still)) return {1.0f, 0.0f};
    return ((const f32x2 *)p.rope)[(int64_t)rope * (HEAD_DIM / 2) + d / 2];
}

/* Where they go: the exchange or the cache. */
CAIRN_INLINE uint32_t *place_of(const step_params &p, uint16_t *kv, int row, int slot, int head, int d) {
    if (head < HEADS)
        return (uint32_t *)(buffer(p, QKV_AT) + ((int64_t)row * QKV + head * HEAD_DIM + d) * 2);
    const int64_t plane = (int64_t)(slot / PAGE) * 2 * KV_HEADS + head - HEADS; /* K heads, then V heads */
    return (uint32_t *)(kv + (plane * PAGE + slot % PAGE) * HEAD_DIM + d);
}

/* Two outputs of every fourth of 16 tokens, from their row of shared memory, where its notes are, too. */
CAIRN_INLINE void place_rows(const step_params &p, uint16_t *kv, int tile, const float *mine, int first, int rows) {
    constexpr int COUNT = 4, BETWEEN = WARP / 8;
    const int pair = lane_id() % 8 * 2, n = tile * 16 + pair, head = n / HEAD_DIM, d = n % HEAD_DIM;
    f32x2 turn[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT && !BY_HEAD; i++)
        turn[i] = turn_of(p, ((const int32_t *)mine)[i * BETWEEN * OUT_STRIDE + ROPE_NOTE], head, d);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const int row = first + i * BETWEEN;
        const float *from = mine + i * BETWEEN * OUT_STRIDE;
        if (row >= rows) break;
        const f32x2 y = *(const f32x2 *)(from + pair);
        if constexpr (BY_HEAD) *(f32x2 *)((float *)buffer(p, SUMMED_AT) + (int64_t)row * QKV + n) = y;
        else *place_of(p, kv, row, ((const int32_t *)from)[SLOT_NOTE], head, d) =
            pack_f16x2(fma_f32(y.x, turn[i].x, -(y.y * turn[i].y)), fma_f32(y.x, turn[i].y, y.y * turn[i].x));
    }
}

/* A tile's outputs by the block's tokens, through the warp's part of shared memory. */
CAIRN_INLINE void place_tile(const step_params &p, const row_notes &notes, int tile, const float (*sum)[4], int first,
                             int rows) {
    float *mine = (float *)outputs_memory() + warp_id() * TOKENS * OUT_STRIDE;
    const int row = lane_id() / 8;
    each_output(sum, 0, [&](int row, int g, float low, float high) {
        mine[row * OUT_STRIDE + g] = low, mine[row * OUT_STRIDE + 8 + g] = high;
    });
#pragma unroll
    for (int i = 0; i < row_notes::COUNT && !BY_HEAD; i++) {
        int32_t *to = (int32_t *)mine + (i * WARP + lane_id()) * OUT_STRIDE;
        to[SLOT_NOTE] = notes.slot[i], to[ROPE_NOTE] = notes.rope[i];
    }
    warp_sync();
#pragma unroll 1
    for (int r = row; r < min_of(TOKENS, rows - first); r += WARP / 2)
        place_rows(p, notes.kv, tile, mine + r * OUT_STRIDE, first + r, rows);
    warp_sync();
}

/* Of the part of q, k and v that tiles [from, end) are, whose format is FORMAT. */
template <int FORMAT>
CAIRN_INLINE void product_qkv(const step_params &p, int from, int end, int64_t at) {
    const int first = block_id() * TOKENS, rows = p.input[STEP_ROWS];
    row_notes notes;
    if (row_notes::EARLY && !BY_HEAD) notes.find(p, first, rows);
    product<FORMAT, HIDDEN>(p.qkv + at - from * tile_bytes<FORMAT, HIDDEN>(), end,
                            buffer(p, NORMED_AT), first, rows, [&](tile_sums &sum) {
        if (!row_notes::EARLY && !BY_HEAD) notes.find(p, first, rows);
        if constexpr (ADAPTERS)
            add_adapters<3>(p, sum, first, rows, STEP_LOW_Q, [](int e, low_outputs &low, low_outputs &high) {
                const int tile = tile_of(e), part = qkv_part(tile);
                low = {part, (tile - (part == 0 ? 0 : part == 1 ? K_TILE : V_TILE)) * 16};
                high = {part, low.first + 8};
                return tile < QKV / 16;
            });
        users_sync(); /* of the inputs in shared memory no one needs any more */
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (tile_of(e) < QKV / 16) place_tile(p, notes, tile_of(e), sum.at[e], first, rows);
    });
}

CAIRN_KERNEL(prompt_qkv, PROMPT_THREADS, PROMPT_BLOCKS, step_params) {
    const int tile = block_id_y() * BLOCK_TILES;
    static_assert(!QKV_MIXED || (K_TILE % BLOCK_TILES == 0 && V_TILE % BLOCK_TILES == 0),
                  "prompt_qkv: a block's tiles are of one part");
    if (!QKV_MIXED) product_qkv<PACK_Q>(p, 0, QKV / 16, 0);
    else if (tile < K_TILE) product_qkv<PACK_Q>(p, 0, K_TILE, 0);
    else if (tile < V_TILE) product_qkv<PACK_K>(p, K_TILE, V_TILE, K_AT);
    else product_qkv<PACK_V>(p, V_TILE, QKV / 16, V_AT);
}
#endif

#if CAIRN_PRODUCTS & 32
CAIRN_KERNEL(prompt_conv_in, PROMPT_THREADS, PROMPT_BLOCKS, step_params) {
    constexpr int TILES = 3 * HIDDEN / 16;
    const int first = block_id() * TOKENS, rows = p.input[STEP_ROWS];
    product<CAIRN_PACK_CONV_IN, HIDDEN>(
        p.qkv, TILES, buffer(p, NORMED_AT), first, rows, [&](const tile_sums &sum) {
            store_outputs<TILES>(sum, first, rows, (float *)buffer(p, SUMMED_AT),
                                 [](float value, int, int) { return value; });
        });
}
#endif

constexpr int FFN_PITCH = PROMPT_WARPS * 16 + 16; /* bytes from a token's outputs to the next's */

/* The block's sums of gates and ups, gated, to `to`. SLOTS: the rows are experts' slots. */
template <bool SLOTS>
CAIRN_INLINE void place_gated(const step_params &p, tile_sums &sum, uint8_t *to, int first, int rows) {
    if constexpr (ADAPTERS && !SLOTS)
        add_adapters<2>(p, sum, first, rows, STEP_LOW_GATE, [](int e, low_outputs &low, low_outputs &high) {
            low = {0, tile_of(e) * 8}, high = {1, tile_of(e) * 8};
            return low.first < FFN;
        });
    users_sync(); /* of the inputs in shared memory no one needs any more */
#pragma unroll
    for (int e = 0; e < EACH; e++)
        each_output(sum.at[e], 0, [&](int row, int g, float gate, float up) {
            const int n = tile_of(e) * 8 + g;
            if constexpr (ADAPTERS && SLOTS)
                if (first + row < rows && n < FFN) {
                    gate = adapted_slot(p, gate, first + row, 0, n);
                    up = adapted_slot(p, up, first + row, 1, n);
                }
            float v = gated(gate, up), next = shuffle_xor(v, 4);
            if (g % 2 == 0)
                *(uint32_t *)(outputs_memory() + (e * TOKENS + row) * FFN_PITCH +
                              operand_at(warp_id() * 8 + g) * 2) = pack_f16x2(v, next);
        });
    users_sync();
    for (int i = thread_id(); i < EACH * TOKENS * PROMPT_WARPS; i += USERS) {
        const int place = i / PROMPT_WARPS, piece = i % PROMPT_WARPS, row = first + place % TOKENS;
        const int k = ((block_id_y() * EACH + place / TOKENS) * PROMPT_WARPS + piece) * 8;
        if (row < rows && k < FFN)
            *(u32x4 *)(to + ((int64_t)row * FFN + k) * 2) =
                *(const u32x4 *)(outputs_memory() + place * FFN_PITCH + piece * 16);
    }
}

/* The block's tiles of gates and ups at `weights`, of the inputs at `from`. */
template <int FORMAT, bool SLOTS = false>
CAIRN_INLINE void product_gated(const step_params &p, const uint8_t *weights, const uint8_t *from,
                                uint8_t *to, int first, int rows) {
    product<FORMAT, HIDDEN>(weights, FFN / 8, from, first, rows, [&](tile_sums &sum) {
        place_gated<SLOTS>(p, sum, to, first, rows);
    });
}

#if CAIRN_PRODUCTS & 4
CAIRN_KERNEL(prompt_gate_up, PROMPT_THREADS, PROMPT_BLOCKS, step_params) {
    product_gated<CAIRN_PACK_GATE_UP>(p, p.gate_up, buffer(p, NORMED_AT), buffer(p, FFN_AT),
                                      block_id() * TOKENS, p.input[STEP_ROWS]);
}
#endif

#if CAIRN_PRODUCTS & 128
CAIRN_KERNEL(prompt_expert_up, PROMPT_THREADS, PROMPT_BLOCKS, step_params) {
    constexpr int FORMAT = CAIRN_PACK_EXPERT_UP;
    expert_window window;
    start_input();
    if (!find_window(p, block_id(), window)) return;
    product_gated<FORMAT, true>(
        p, p.gate_up + (int64_t)window.expert * (FFN / 8) * tile_bytes<FORMAT, HIDDEN>(),
        buffer(p, ROUTED_AT), buffer(p, EXPERT_FFN_AT), window.first, window.first + window.count);
}
#endif

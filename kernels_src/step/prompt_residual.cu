/* A prompt's residual stream: where it begins, what products add to it, and what is made of it. See
 * step/prompt.cu.
 *
 *   prompt_embed     residual = embeddings of the tokens
 *   prompt_norm      normed = residual / rms * weight, f16; which = 0 before attention, 1 before
 *                    ffn
 *   prompt_project   residual += attended Wo
 *   prompt_down      residual += ffn Wdown
 *   prompt_last      the rows whose logits are wanted, as the head of step/stages.cuh reads them: at their
 *                    places, or, of joined prompts, one behind the other
 *
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0. Buffers: step/prompt_buffers.cuh.
 * Grids, 128 threads: embed rows; norm ceil(rows / 4); last wanted rows. Products as in
 * step/prompt.cu.
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
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_PROMPT_WARPS=4
 * matrix: + CAIRN_PROMPT_EACH=1 CAIRN_PROMPT_TOKENS=32 CAIRN_PROMPT_CARRIERS=2
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=4096 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=14336 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=33 CAIRN_PACK_GATE_UP=32 CAIRN_PACK_DOWN=35
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=32 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=4096 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=14336 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=2631206 CAIRN_PACK_O=38 CAIRN_PACK_GATE_UP=38 CAIRN_PACK_DOWN=40
 * matrix: + CAIRN_PACK_HEAD=40 CAIRN_PACK_EMBED=40 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_PROMPT_WARPS=4
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

#if CAIRN_PRODUCTS & 16
constexpr int AT_ONCE = 8; /* loads of a lane before what it makes of them is stored: each waits for memory */

CAIRN_KERNEL(prompt_embed, 128, 1, step_params) {
    typedef packed<CAIRN_PACK_EMBED> pack;
    int row = block_id();
    start_input();
    int token = input_array(p, STEP_TOKEN)[row];
    token = token < 0 || token >= VOCAB ? 0 : token;
    const uint8_t *tile = p.embed + token / 16 * tile_bytes<CAIRN_PACK_EMBED, HIDDEN>();
    for (int from = thread_id(); from < HIDDEN; from += 128 * AT_ONCE) {
        float x[AT_ONCE];
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            const int k = min_of(from + n * 128, HIDDEN - 1);
            x[n] = pack::template value<packed_group<CAIRN_PACK_EMBED, HIDDEN>()>(
                tile, k / 32, token % 16, k % 32);
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++)
            if (from + n * 128 < HIDDEN)
                residual_of(p)[(int64_t)row * HIDDEN + from + n * 128] = EMBED_SCALED ? x[n] * p.embed_scale : x[n];
    }
}

CAIRN_KERNEL(prompt_norm, 128, 1, step_params) {
    int row = block_id() * 4 + warp_id(), rows = p.input[STEP_ROWS];
    const float *weight = p.norms + (int64_t)(2 * p.layer + p.which) * HIDDEN;
    for (int i = thread_id() * 32; i < HIDDEN; i += 128 * 32) prefetch_l2(weight + i);
    start_input();
    if (row >= rows) return;
    const float *x = residual_of(p) + (int64_t)row * HIDDEN;
    float squares = 0.0f;
    for (int i = lane_id() * 4; i < HIDDEN; i += WARP * 4) {
        f32x4 v = *(const f32x4 *)(x + i);
        squares += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
    }
    float factor = rsqrt_fast(warp_sum(squares) * (1.0f / HIDDEN) + p.norm_eps);
    uint8_t *to = buffer(p, NORMED_AT) + (int64_t)row * HIDDEN * 2;
    for (int from = lane_id() * 4; from < HIDDEN; from += WARP * 4 * AT_ONCE) {
        f32x4 v[AT_ONCE], w[AT_ONCE];
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            const int i = min_of(from + n * WARP * 4, HIDDEN - 4);
            v[n] = *(const f32x4 *)(x + i), w[n] = *(const f32x4 *)(weight + i);
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            const int i = from + n * WARP * 4;
            if (i >= HIDDEN) break;
            *(uint32_t *)(to + operand_at(i) * 2) = pack_f16x2(v[n].x * factor * w[n].x, v[n].y * factor * w[n].y);
            *(uint32_t *)(to + operand_at(i + 2) * 2) =
                pack_f16x2(v[n].z * factor * w[n].z, v[n].w * factor * w[n].w);
        }
    }
}

CAIRN_KERNEL(prompt_last, 128, 1, step_params) {
    const int row = JOINED ? input_array(p, STEP_WANTED)[block_id()]
                           : p.input[STEP_LOGIT_FIRST] + block_id();
    const int place = JOINED ? block_id() : row;
    start_input();
    const float *x = residual_of(p) + (int64_t)row * HIDDEN;
    const float *weight = p.norms + (int64_t)2 * LAYERS * HIDDEN;
    uint8_t *to = buffer(p, HIDDEN_AT) + (int64_t)place * HIDDEN * 2;
    float *sums = (float *)buffer(p, SQUARES_AT) + (int64_t)place * SQUARES;
    for (int i = thread_id(); i < SQUARES; i += 128) {
        float sum = 0.0f;
        for (int k = i * 16; k < i * 16 + 16; k += 2) {
            f32x2 v = *(const f32x2 *)(x + k), w = *(const f32x2 *)(weight + k);
            *(uint32_t *)(to + k * 2) =
                pack_f16x2(v.x * (w.x * p.input_scale), v.y * (w.y * p.input_scale));
            sum += v.x * v.x + v.y * v.y;
        }
        sums[i] = sum;
    }
}
#endif

constexpr int ADDED = min_of(TOKENS, 64); /* tokens whose outputs are added together */

/* ADDED tokens' outputs: what is added to is asked for of all before any is stored. */
CAIRN_INLINE void add_tokens(const step_params &p, const float (*sum)[4], int tile, int from, int rows) {
    constexpr int COUNT = ADDED / 8;
    const int row = from + lane_id() % 4 * 2, n = tile * 16 + lane_id() / 4;
    float *to = POST_NORMS ? (float *)buffer(p, SUMMED_AT) : residual_of(p); /* summands are normed first */
    float was[COUNT][4];
    to += (int64_t)row * HIDDEN + n;
#pragma unroll
    for (int i = 0; i < COUNT * 4 && !POST_NORMS; i++) {
        const int token = i / 4 * 8 + i % 2, out = i % 4 / 2 * 8;
        was[i / 4][i % 4] = row + token < rows ? to[token * HIDDEN + out] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < COUNT * 4; i++) {
        const int token = i / 4 * 8 + i % 2, out = i % 4 / 2 * 8;
        if (row + token >= rows) continue;
        const float value = sum[i / 4][i % 4];
        to[token * HIDDEN + out] = POST_NORMS ? value : was[i / 4][i % 4] + value;
    }
}

/* residual += the block's sums, of a product (STEP_LOW_) */
template <int PRODUCT>
CAIRN_INLINE void add_outputs(const step_params &p, tile_sums &sum, int first, int rows) {
    if constexpr (ADAPTERS)
        add_adapters<1>(p, sum, first, rows, PRODUCT, [](int e, low_outputs &low, low_outputs &high) {
            low = {0, tile_of(e) * 16}, high = {0, tile_of(e) * 16 + 8};
            return tile_of(e) < HIDDEN / 16;
        });
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int tile = tile_of(e);
        if (tile >= HIDDEN / 16) return;
#pragma unroll
        for (int i = 0; i < TOKENS / 8; i += ADDED / 8)
            add_tokens(p, sum.at[e] + i, tile, first + i * 8, rows);
    }
}

template <int FORMAT, int INPUTS, int PRODUCT>
CAIRN_INLINE void product_residual(const step_params &p, const uint8_t *weights,
                                   const uint8_t *inputs) {
    const int first = block_id() * TOKENS, rows = p.input[STEP_ROWS];
    product<FORMAT, INPUTS>(weights, HIDDEN / 16, inputs, first, rows, [&](tile_sums &sum) {
        add_outputs<PRODUCT>(p, sum, first, rows);
    });
}

#if CAIRN_PRODUCTS & 2
CAIRN_KERNEL(prompt_project, PROMPT_THREADS, PROMPT_BLOCKS, step_params) {
    product_residual<CAIRN_PACK_O, ATTENDED, STEP_LOW_O>(p, p.o, buffer(p, ATTENDED_AT));
}
#endif

#if CAIRN_PRODUCTS & 8
CAIRN_KERNEL(prompt_down, PROMPT_THREADS, PROMPT_BLOCKS, step_params) {
    product_residual<CAIRN_PACK_DOWN, FFN, STEP_LOW_DOWN>(p, p.down, buffer(p, FFN_AT));
}
#endif

#if CAIRN_PRODUCTS & 64
CAIRN_KERNEL(prompt_conv_out, PROMPT_THREADS, PROMPT_BLOCKS, step_params) {
    product_residual<CAIRN_PACK_CONV_OUT, HIDDEN, STEP_LOW_O>(p, p.o, buffer(p, ATTENDED_AT));
}
#endif

#if CAIRN_PRODUCTS & 256
CAIRN_KERNEL(prompt_expert_down, PROMPT_THREADS, PROMPT_BLOCKS, step_params) {
    constexpr int FORMAT = CAIRN_PACK_EXPERT_DOWN, TILES = HIDDEN / 16;
    expert_window window;
    start_input();
    if (!find_window(p, block_id(), window)) return;
    const int end = window.first + window.count;
    product<FORMAT, FFN>(
        p.down + (int64_t)window.expert * TILES * tile_bytes<FORMAT, FFN>(), TILES,
        buffer(p, EXPERT_FFN_AT), window.first, end, [&](const tile_sums &sum) {
            store_outputs<TILES>(
                sum, window.first, end, (float *)buffer(p, EXPERT_OUT_AT),
                [&](float value, int slot, int n) { return adapted_slot(p, value, slot, 0, n); });
        });
}
#endif

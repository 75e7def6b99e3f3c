/* A layer's weights as the products of steps and of prompts find them: how they are packed, which tiles are those of q,
 * k and v, and what becomes of gates and ups. Constants as step/step.cuh. */
#ifndef CAIRN_STEP_WEIGHTS_CUH
#define CAIRN_STEP_WEIGHTS_CUH

#include "step/step.cuh"
#include "dense/packed.cuh"

/* Whether they are packed for dense/product.cuh. */
constexpr bool STREAMED = CAIRN_PACK_HEAD >= PACK_Q4_0;
static_assert(STREAMED == (CAIRN_PACK_O >= PACK_Q4_0) &&
              STREAMED == (CAIRN_PACK_GATE_UP >= PACK_Q4_0) &&
              STREAMED == (CAIRN_PACK_DOWN >= PACK_Q4_0) &&
              STREAMED == (CAIRN_PACK_QKV >= PACK_Q4_0), "weights: two kinds of products");

constexpr int K_TILE = HEADS * HEAD_DIM / 16, KV_TILES = KV_HEADS * HEAD_DIM / 16;
constexpr int V_TILE = K_TILE + KV_TILES;
/* Which of q, k and v a tile of these is of. */
CAIRN_INLINE int qkv_part(int tile) { return tile < K_TILE ? 0 : tile < V_TILE ? 1 : 2; }

/* q, k and v lie behind each other, each in a format of its own: PACK_QKV is one for all, or
 * q + 256 k + 65536 v. */
constexpr bool QKV_MIXED = CAIRN_PACK_QKV >= 256;
constexpr int PACK_Q = CAIRN_PACK_QKV % 256;
constexpr int PACK_K = QKV_MIXED ? CAIRN_PACK_QKV / 256 % 256 : PACK_Q;
constexpr int PACK_V = QKV_MIXED ? CAIRN_PACK_QKV / 65536 : PACK_Q;
static_assert(STREAMED || !QKV_MIXED, "weights: formats of q, k and v");
constexpr int64_t K_AT = K_TILE * tile_bytes<PACK_Q, HIDDEN>();
constexpr int64_t V_AT = K_AT + KV_TILES * tile_bytes<PACK_K, HIDDEN>();
constexpr int64_t QKV_BYTES = V_AT + KV_TILES * tile_bytes<PACK_V, HIDDEN>();

/* silu(gate) up; or gelu by tanh, which is gate sigmoid(gate slope) with the slope of below. */
CAIRN_INLINE float gated(float gate, float up) {
    const float slope = GEGLU ? fma_f32(gate * gate, 0.0713548163f, 1.59576912f) : 1.0f;
    if (GEGLU) return gate * up * rcp_fast(1.0f + exp_fast(-gate * slope));
    return gate * up * rcp_fast(1.0f + exp_fast(-gate));
}

#endif

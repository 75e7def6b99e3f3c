/* What stands between the products of families beyond plain llama, for steps and prompts alike:
 *
 *   step_heads  heads of q, k and v, biased, normed and turned; queries to the exchange, keys and
 *               values to the cache. Grid (ceil(heads of q, k and v / 4), rows): a warp a head.
 *   step_add    residual += normed summand, handed on for the next norm; which = 0 after
 *               attention, 1 after the ffn. Grid rows.
 *
 * 128 threads. In: the products' f32 sums (SUMMED_AT). Norms and turns in f32, rounded once.
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0. A row's results depend on that row alone.
 * Shared memory: 16 x head_dim bytes, or 16. Sync: one block_sync in step_add.
 * Reference: tests/ref/llama_ref.h.
 * matrix: CAIRN_LAYERS=18 CAIRN_HIDDEN=640 CAIRN_HEADS=4 CAIRN_KV_HEADS=1 CAIRN_HEAD_DIM=256
 * matrix: + CAIRN_FFN=2048 CAIRN_VOCAB=262144 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=8 CAIRN_PACK_O=8 CAIRN_PACK_GATE_UP=8 CAIRN_PACK_DOWN=8
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=93
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=1
 * matrix: + CAIRN_ABILITIES=3 */
#include "step/attend.cuh"
#include "step/families.cuh"

/* Value d of a head, turned by the row's table of (cos, sin). */
CAIRN_INLINE float turned(const step_params &p, const float *x, const f32x2 *table, int d) {
    const int half = p.rope_half;
    if (d >= p.rope_dims) return x[d];
    const bool second = half ? d >= half : d % 2 != 0;
    const f32x2 turn = table[half ? d % half : d / 2];
    const float other = x[half ? (second ? d - half : d + half) : d ^ 1];
    return fma_f32(x[d], turn.x, second ? other * turn.y : -(other * turn.y));
}

/* Values d, d + 1 of it, which may turn. */
CAIRN_INLINE f32x2 pair_of(const step_params &p, const float *x, const f32x2 *table, bool turns, int d) {
    const float low = turns ? turned(p, x, table, d) : x[d];
    const float high = turns ? turned(p, x, table, d + 1) : x[d + 1];
    return f32x2{low, high};
}

/* A head of keys or values to value number `at` of the layer's cache, where that is not f16; e4m3 as
 * kv/append.cu has it. By one warp. */
CAIRN_INLINE void keep_head(const step_params &p, const float *x, const f32x2 *table, bool turns,
                            int64_t at) {
    float scale = 1e-4f;
    if constexpr (BYTES) {
        for (int d = 2 * lane_id(); d < HEAD_DIM; d += 2 * WARP) {
            const f32x2 v = pair_of(p, x, table, turns, d);
            scale = fmaxf(scale, fmaxf(fabsf(v.x), fabsf(v.y)));
        }
        scale = div_f32(warp_max(scale), 448.0f);
        if (lane_id() == 0) scales_of(p, p.layer)[at / HEAD_DIM] = scale;
    }
    for (int d = 2 * lane_id(); d < HEAD_DIM; d += 2 * WARP) {
        const f32x2 v = pair_of(p, x, table, turns, d);
        void *cache = p.kv[p.layer];
        if (BYTES)
            ((uint16_t *)cache)[(at + d) / 2] = pack_e4m3x2(div_f32(v.x, scale), div_f32(v.y, scale));
        else if (CACHE_KIND == ATTEND_CACHE_F32) ((f32x2 *)cache)[(at + d) / 2] = v;
        else ((uint32_t *)cache)[(at + d) / 2] = pack_bf16x2(v.x, v.y);
    }
}

CAIRN_KERNEL(step_heads, 128, 1, step_params) {
    const int head = block_id() * 4 + warp_id(), r = block_id_y();
    start_input();
    if (r >= p.input[STEP_ROWS] || head >= HEADS + 2 * KV_HEADS) return;
    const bool key = head >= HEADS, value = head >= HEADS + KV_HEADS;
    const float *from = (const float *)(region(p, 0, 0) + SUMMED_AT) + (int64_t)r * QKV +
                        head * HEAD_DIM;
    const float *norm = p.head_norms && !value ? p.head_norms + (key ? HEAD_DIM : 0) : nullptr;
    float *x = (float *)shared_base() + warp_id() * HEAD_DIM, squares = 0.0f;
    for (int d = lane_id(); d < HEAD_DIM; d += WARP) {
        x[d] = from[d] + (p.bias ? p.bias[head * HEAD_DIM + d] : 0.0f);
        squares = fma_f32(x[d], x[d], squares);
    }
    const float factor = norm ? norm_factor(p, warp_sum(squares), HEAD_DIM) : 1.0f;
    for (int d = lane_id(); norm && d < HEAD_DIM; d += WARP) x[d] = x[d] * factor * norm[d];
    warp_sync();
    const int position = input_array(p, STEP_POSITION)[r];
    const int sequence = input_array(p, STEP_SEQUENCE)[r];
    const f32x2 *table = (const f32x2 *)p.rope +
                         (int64_t)input_array(p, STEP_ROPE)[r] * (HEAD_DIM / 2);
    uint16_t *to = (uint16_t *)(region(p, 0, 0) + QKV_AT) + (int64_t)r * QKV + head * HEAD_DIM;
    if (key) {
        const int64_t page = p.page_table[(int64_t)sequence * p.table_stride + position / PAGE];
        const int64_t at = layout_slot(page, value, (head - HEADS) % KV_HEADS, position % PAGE,
                                       KV_HEADS, PAGE, HEAD_DIM);
        if constexpr (CACHE_KIND != ATTEND_CACHE_F16) return keep_head(p, x, table, !value && !p.still, at);
        to = p.kv[p.layer] + at;
    }
    for (int d = 2 * lane_id(); d < HEAD_DIM; d += 2 * WARP) {
        const f32x2 v = pair_of(p, x, table, !value && !p.still, d);
        *(uint32_t *)(to + d) = pack_f16x2(v.x, v.y);
    }
}

CAIRN_KERNEL(step_add, 128, 1, step_params) {
    const int r = block_id(), ffn = p.which;
    float *sums = (float *)shared_base(), squares = 0.0f;
    start_input();
    if (r >= p.input[STEP_ROWS]) return;
    const float *added = (const float *)(region(p, 0, 0) + SUMMED_AT) + (int64_t)r * HIDDEN;
    const float *post = p.post_norms + (ffn ? HIDDEN : 0);
    for (int i = thread_id(); i < HIDDEN; i += 128) squares = fma_f32(added[i], added[i], squares);
    squares = warp_sum(squares);
    if (lane_id() == 0) sums[warp_id()] = squares;
    block_sync();
    const float factor = norm_factor(p, (sums[0] + sums[1]) + (sums[2] + sums[3]), HIDDEN);
    add_to_row(p, r, ffn, [&](int k) { return added[k] * factor * post[k]; });
}

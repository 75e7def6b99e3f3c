/* step_low: before a product to which rows' adapters add, their inner values low = A x.
 * step_low_slots: the same before a product of experts, of their slots; and where each slot's B is.
 *
 * In: what the product reads, p.which its first product (STEP_LOW_). Of steps, which hand on a
 *     hidden state with its sums of squares, or of prompts (CAIRN_PARTS 0), which norm it first.
 * Out: p.low [row, product of the kernel], zeros up to a multiple of four. f32 sums in an order that depends on
 *      nothing.
 * Grid (products of the kernel, groups of STEP_LOW_ROWS or PROMPT_LOW_ROWS rows, blocks that share the inner
 *     values), of experts (experts of a row, rows, such blocks); STEP_LOW_THREADS, STEP_LOW_BYTES of shared memory. A
 *     block has some inner values at a time of the rows of one adapter after the other's, a thread some inputs of all.
 * step_own: rows with an embedding of their own (STEP_EMBED_LOW) begin with that. Of prompts behind the
 *     kernel that embeds tokens, grid rows, 128 threads; of steps in place of it, grid and threads its.
 * step_keep: hidden states behind the output norm, of rows with STEP_KEEP. Grid rows, 256 threads, 64
 *     bytes of shared memory, one block_sync.
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0. No other shared memory or barrier.
 * Reference: tests/ref/llama_ref.h on merged weights (tests/engine/adapter_test.c).
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=768
 * matrix: + CAIRN_PRODUCTS=432 CAIRN_PACK_EXPERT_UP=4 CAIRN_PACK_EXPERT_DOWN=4 CAIRN_EXPERTS=16
 * matrix: + CAIRN_USED=4 */
#include "step/stages.cuh"
#include "step/families.cuh"

/* 1 / (rms scale) of a row of the residual stream, from its sums of squares; every lane has it. */
CAIRN_INLINE float row_factor(const step_params &p, const float *squares) {
    float sum = 0.0f;
    for (int i = lane_id(); i < SQUARES; i += WARP) sum += squares[i];
    return rsqrt_fast(warp_sum(sum) * (1.0f / HIDDEN) + p.norm_eps) * (1.0f / p.input_scale);
}

constexpr bool PROMPT = CAIRN_PARTS == 0;
constexpr int LOW_ROWS = PROMPT ? PROMPT_LOW_ROWS : STEP_LOW_ROWS, LOW_EACH = PROMPT ? 4 : 2;
constexpr int LOW_WARPS = STEP_LOW_THREADS / WARP, LOW_SUMS = LOW_ROWS * LOW_EACH;
static_assert((LOW_WARPS * LOW_SUMS + LOW_ROWS) * 4 <= STEP_LOW_BYTES && LOW_SUMS <= STEP_LOW_THREADS, "low: memory");

/* Which rows from `first` on are of one adapter, and what it has for a product of theirs. */
struct low_rows {
    int first;
    uint32_t mask;
    step_pair pair;

    CAIRN_MEMBER bool has(int r) const { return mask >> r & 1; }
};

/* Eight inputs of a row as they lie there, number c, and of A what they meet. */
CAIRN_INLINE void low_inputs(const uint16_t *x, int c, float (&v)[8]) {
    const u32x4 raw = *(const u32x4 *)(x + 8 * c);
    const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = f16_to_f32(f16{(uint16_t)(word[i / 2] >> i % 2 * 16)});
}
CAIRN_INLINE void low_weights(const float *a, int c, float (&v)[8]) {
    if constexpr (PROMPT) { /* see operand_at */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const f32x2 two = load_constant((const f32x2 *)(a + c / 4 * 32 + i * 8 + c % 4 * 2));
            v[2 * i] = two.x, v[2 * i + 1] = two.y;
        }
    } else {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const f32x4 four = load_constant((const f32x4 *)(a + c * 8 + i * 4));
            v[4 * i] = four.x, v[4 * i + 1] = four.y, v[4 * i + 2] = four.z, v[4 * i + 3] = four.w;
        }
    }
}

/* Inner values [k, k + LOW_EACH) of the rows' A x, times a factor of each row, to p.low of product `which`. All
 * threads. */
CAIRN_INLINE void low_values(const step_params &p, const low_rows &rows, int which, int k, const uint16_t *x,
                             int inputs, const float *factors) {
    constexpr int ONCE = PROMPT ? 1 : 2; /* what a step waits for is how far A is */
    float *sums = (float *)shared_base(), sum[LOW_SUMS] = {};
#pragma unroll 1
    for (int c = thread_id(); c < inputs / 8; c += ONCE * STEP_LOW_THREADS) {
        float a[ONCE][LOW_EACH][8], in[8];
#pragma unroll
        for (int o = 0; o < ONCE; o++)
#pragma unroll
            for (int j = 0; j < LOW_EACH; j++)
                low_weights(rows.pair.a + (int64_t)min_of(k + j, rows.pair.rank - 1) * inputs,
                            min_of(c + o * STEP_LOW_THREADS, inputs / 8 - 1), a[o][j]);
#pragma unroll
        for (int o = 0; o < ONCE; o++)
#pragma unroll
            for (int n = 0; n < LOW_SUMS; n++) {
                const int at = c + o * STEP_LOW_THREADS, r = n / LOW_EACH;
                if (!rows.has(r) || at >= inputs / 8) continue;
                if (n % LOW_EACH == 0) low_inputs(x + (int64_t)(rows.first + r) * inputs, at, in);
#pragma unroll
                for (int i = 0; i < 8; i++) sum[n] = fma_f32(a[o][n % LOW_EACH][i], in[i], sum[n]);
            }
    }
#pragma unroll
    for (int n = 0; n < LOW_SUMS; n++) {
        if (!rows.has(n / LOW_EACH)) continue;
        const float all = warp_sum(sum[n]);
        if (lane_id() == 0) sums[n * LOW_WARPS + warp_id()] = all;
    }
    block_sync();
    const int n = thread_id(), r = n / LOW_EACH;
    if (n < LOW_SUMS && rows.has(r)) {
        const float all = tree_sum<LOW_WARPS>(sums + n * LOW_WARPS, 1) * (factors ? factors[r] : 1.0f);
        p.low[((int64_t)(rows.first + r) * 3 + which) * STEP_LOW_MOST + k + n % LOW_EACH] =
            k + n % LOW_EACH < rows.pair.rank ? all : 0.0f;
    }
    block_sync();
}

/* All inner values that are the block's. */
CAIRN_INLINE void low_rank(const step_params &p, const low_rows &rows, int which, const uint8_t *input, int inputs,
                           const float *factors) {
#pragma unroll 1
    for (int k = block_id_z() * LOW_EACH; k < round_up(rows.pair.rank, 4); k += grid_blocks_z() * LOW_EACH)
        low_values(p, rows, which, k, (const uint16_t *)input, inputs, factors);
}

/* The next of the block's rows, from `lead` on, that is the first of its adapter and has something for the product, and
 * the rows that have this adapter, too; LOW_ROWS: there is none. */
CAIRN_INLINE int next_low(const step_params &p, int first, int lead, int product, low_rows &rows) {
    const int32_t *slot = input_array(p, STEP_ADAPTER) + first;
    const int count = min_of(LOW_ROWS, p.input[STEP_ROWS] - first);
#pragma unroll 1
    for (; lead < count; lead++) {
        rows.first = first, rows.mask = 0;
        for (int r = 0; r < count; r++)
            if (slot[r] == slot[lead]) rows.mask |= 1u << r;
        if (slot[lead] < 0 || rows.mask & ((1u << lead) - 1)) continue;
        rows.pair = pair_of(p, first + lead, product);
        if (rows.pair.a) return lead;
    }
    return LOW_ROWS;
}

/* What the next kernel like this one reads of a row's adapter, to L2: a block's share of A of its products. Else it
 * would wait for it, with all that is behind. */
CAIRN_INLINE void prefetch_low(const step_params &p, int row) {
    const int layer = p.layer + (p.which == STEP_LOW_DOWN);
    const int first = p.which == STEP_LOW_DOWN   ? STEP_LOW_Q
                      : p.which == STEP_LOW_Q    ? STEP_LOW_O
                      : p.which == STEP_LOW_O    ? STEP_LOW_GATE
                                                 : STEP_LOW_DOWN;
    const int count = first == STEP_LOW_Q ? 3 : first == STEP_LOW_GATE ? 2 : 1;
    const int inputs = first == STEP_LOW_O ? ATTENDED : first == STEP_LOW_DOWN ? FFN : HIDDEN;
    for (int i = 0; i < count && layer < LAYERS; i++) {
        const step_pair pair = pair_of(p, row, first + i, layer);
        if (!pair.a) continue;
        for (int k = block_id_z(); k < pair.rank; k += grid_blocks_z())
            for (int c = thread_id() * 32; c < inputs; c += STEP_LOW_THREADS * 32)
                prefetch_l2(pair.a + (int64_t)k * inputs + c);
    }
}

CAIRN_KERNEL(step_low, STEP_LOW_THREADS, 1, step_params) {
    const int first = block_id_y() * LOW_ROWS, product = p.which + block_id();
    const bool o = p.which == STEP_LOW_O, down = p.which == STEP_LOW_DOWN;
    const bool normed = !PROMPT && !o && !down, middle = !PROMPT && p.which == STEP_LOW_GATE;
    const uint8_t *at = region(p, 0, 0);
    const uint8_t *input = at + (o ? ATTENDED_AT : down ? FFN_AT : middle ? MIDDLE_AT : HIDDEN_AT);
    float *factors = (float *)shared_base() + LOW_WARPS * LOW_SUMS;
    low_rows rows;
    int lead = next_low(p, first, 0, product, rows);
    start_input(true);
    if (lead == LOW_ROWS) return;
    if (normed && warp_id() < min_of(LOW_ROWS, p.input[STEP_ROWS] - first)) {
        const float *squares = (const float *)(at + (middle ? MIDDLE_SQUARES_AT : SQUARES_AT));
        const float factor = row_factor(p, squares + (int64_t)(first + warp_id()) * SQUARES);
        if (lane_id() == 0) factors[warp_id()] = factor;
    }
#pragma unroll 1
    for (; lead < LOW_ROWS; lead = next_low(p, first, lead + 1, product, rows)) {
        low_rank(p, rows, block_id(), input, o ? ATTENDED : down ? FFN : HIDDEN, normed ? factors : nullptr);
        if (!PROMPT && block_id() == 0 && block_id_y() == 0) prefetch_low(p, first + lead);
    }
}

#if CAIRN_PRODUCTS & 128
CAIRN_KERNEL(step_low_slots, STEP_LOW_THREADS, 1, step_params) {
    const int row = block_id_y(), choice = row * USED + block_id(), first = p.which;
    const bool down = first == STEP_LOW_DOWN;
    const int inputs = down ? FFN : HIDDEN, outputs = down ? HIDDEN : FFN;
    const uint8_t *at = region(p, 0, 0);
    start_input(true);
    if (row >= p.input[STEP_ROWS]) return;
    const int slot = ((const int32_t *)(at + PLACES_AT))[choice];
    const int64_t expert = ((const int32_t *)(at + CHOSEN_AT))[choice];
    for (int which = 0; which < (down ? 1 : 2); which++) {
        low_rows rows = {slot, 1, pair_of(p, row, first + which)};
        if (rows.pair.a) {
            rows.pair.a += expert * rows.pair.rank * inputs, rows.pair.b += expert * rows.pair.rank * outputs;
            low_rank(p, rows, which, at + (down ? EXPERT_FFN_AT : ROUTED_AT), inputs, nullptr);
        }
        if (thread_id() == 0 && block_id_z() == 0) slot_pairs(p, slot)[which] = rows.pair;
    }
}
#endif

#if CAIRN_PARTS > 0
CAIRN_KERNEL(step_own, THREADS, 1, step_params) {
    start_input();
    const row_window rows = window_of(p, block_id_y());
    if (rows.count > 0) stage_embed<1>(p, rows, region(p, 0, 0), block_id(), grid_blocks());
}
#else
CAIRN_KERNEL(step_own, 128, 1, step_params) {
    const int row = block_id();
    start_input();
    const float *own = own_embedding(p, row);
    float *to = residual_of(p) + (int64_t)row * HIDDEN;
    const float scale = EMBED_SCALED ? p.embed_scale : 1.0f;
    for (int i = thread_id(); i < HIDDEN && own; i += 128) to[i] = own[i] * scale;
}
#endif

CAIRN_KERNEL(step_keep, 256, 1, step_params) {
    start_input();
    keep_row<8>(p, block_id(), (float *)shared_base());
}

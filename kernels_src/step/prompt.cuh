/* What the products of a prompt share: that of a block's output rows with its tokens, straight from packed weights.
 *
 * Buffers: step/prompt_buffers.cuh.
 * Constants: CAIRN_PROMPT_WARPS, CAIRN_PROMPT_EACH, CAIRN_PROMPT_TOKENS: of a block of a product
 * its warps (4 or 8), the tiles of 16 outputs that each has, its tokens (64, with wgmma 128 or 256, too).
 * CAIRN_PROMPT_CARRIERS: further warps (sm_90a alone) that bring the tokens to shared memory: 4, to 8
 * that have a tile each (step/prompt_apart.cuh), or 2, of 32 tokens, that bring the weights, too
 * (step/prompt_few.cuh); 0: the warps that use them do. */
#ifndef CAIRN_PROMPT_CUH
#define CAIRN_PROMPT_CUH

#include "step/prompt_buffers.cuh"
#include "step/weights.cuh"
#include "step/adapter.cuh"
#if CAIRN_WGMMA
#include "device/wgmma.cuh"
#endif

#ifndef CAIRN_PROMPT_WARPS
#define CAIRN_PROMPT_WARPS 4
#define CAIRN_PROMPT_EACH 1
#define CAIRN_PROMPT_TOKENS 64
#endif
#ifndef CAIRN_PROMPT_CARRIERS
#define CAIRN_PROMPT_CARRIERS 0
#endif

constexpr int PROMPT_WARPS = CAIRN_PROMPT_WARPS, USERS = PROMPT_WARPS * WARP;
constexpr int CARRIERS = CAIRN_WGMMA ? CAIRN_PROMPT_CARRIERS : 0;
constexpr int PROMPT_THREADS = USERS + CARRIERS * WARP;
constexpr int EACH = CAIRN_PROMPT_EACH;
constexpr int TOKENS = CAIRN_WGMMA ? CAIRN_PROMPT_TOKENS : min_of(CAIRN_PROMPT_TOKENS, 64);
constexpr int BLOCK_TILES = PROMPT_WARPS * EACH;
constexpr int STEP_UNITS = 4, STEP_INPUTS = 128;  /* inputs of one step of a product */
constexpr int STEP_BYTES = TOKENS * STEP_INPUTS * 2;
constexpr int PIECES_BYTES = STEP_INPUTS / 8 * 128; /* of eight tokens */
constexpr int STEP_BUFFERS = CAIRN_WGMMA ? 4 : 2, STEPS_AHEAD = STEP_BUFFERS / 2;
constexpr bool FEW = CARRIERS > 0 && TOKENS == STEP_FEW_TOKENS;
constexpr int PROMPT_BLOCKS = FEW ? 2 : 1; /* that share a multiprocessor */
constexpr int PROMPT_BYTES = CARRIERS > 0 ? step_apart_bytes(TOKENS) : STEP_BUFFERS * STEP_BYTES;

/* Shared memory for outputs once no one needs the inputs there: behind the barriers. */
CAIRN_INLINE unsigned char *outputs_memory() {
    return shared_base() + (CARRIERS == 0 ? 0 : FEW ? STEP_FEW_HEADER : STEP_APART_HEADER);
}

/* The block's tiles: the warps' first ones, then their second ones. */
CAIRN_INLINE int tile_of(int each) {
    return (block_id_y() * EACH + each) * PROMPT_WARPS + warp_id();
}

/* at[e][n] = 16 outputs of tile_of(e) x tokens 8n.. of the block's. */
struct tile_sums {
    float at[EACH][TOKENS / 8][4];
};

/* Starts the copy of inputs [step STEP_INPUTS, ...) of the block's rows; zeros beyond the ends. In
 * shared memory they lie in pieces of eight tokens by eight inputs, a token's 16 bytes behind the
 * other's, those of the same tokens together: as wgmma reads them, and ldmatrix without conflicts. */
template <int INPUTS>
CAIRN_INLINE void fetch_inputs(const uint8_t *from, int first, int rows, int step,
                               unsigned char *memory) {
    constexpr int AT_ONCE = PROMPT_THREADS / 128 * 8; /* tokens */
    const int i = thread_id(), row = first + i / 128 * 8 + i % 8;
    const int k = step * STEP_INPUTS + i % 128 / 8 * 8;
    const uint8_t *source = from + ((int64_t)row * INPUTS + k) * 2;
    shared_addr to = shared_addr(memory + step % STEP_BUFFERS * STEP_BYTES) + (uint32_t)(i * 16);
#pragma unroll
    for (int n = 0; n < TOKENS; n += AT_ONCE) {
        bool valid = row + n < rows && k < INPUTS;
        copy_async16(to + (uint32_t)(n / 8 * PIECES_BYTES),
                     valid ? source + (int64_t)n * INPUTS * 2 : from, valid);
    }
}

/* sum += COUNT units of the step: raw[e][u] times the tokens at `from`; then calls next(e, u), which
 * may load that unit of another step. */
#if CAIRN_WGMMA
CAIRN_INLINE void multiply_tokens(float (*sum)[4], const uint32_t *a, uint64_t b) {
    if constexpr (TOKENS == 256) wgmma_f16_256(sum[0], a, b, true);
    else if constexpr (TOKENS == 128) wgmma_f16_128(sum[0], a, b, true);
    else if constexpr (TOKENS == 64) wgmma_f16_64(sum[0], a, b, true);
    else wgmma_f16_32(sum[0], a, b, true);
}

/* Ends a group of products with operands of FORMAT. Products read their operands' registers until they are waited
 * for; ptxas keeps those free that are computed, but not, beyond a loop's turn, those that were loaded as they are. */
template <int FORMAT> CAIRN_INLINE void end_group() {
    wgmma_commit();
    if (FORMAT == PACK_16 || FORMAT == PACK_F16) wgmma_wait<0>();
}

template <int COUNT, int FORMAT, class Next>
CAIRN_INLINE void multiply_step(packed<FORMAT> (*raw)[STEP_UNITS], shared_addr from, tile_sums &sum,
                                Next next) {
    uint32_t a[2][8];
    const uint64_t b = wgmma_matrix(from, 128, PIECES_BYTES);
#pragma unroll
    for (int i = 0; i < COUNT * EACH; i++) {
        const int u = i / EACH, e = i % EACH;
        wgmma_wait<1>(); /* the products of the operands before the last */
        raw[e][u].expand(a[i % 2]);
        next(e, u);
        wgmma_fence();
        multiply_tokens(sum.at[e], a[i % 2], b + (uint64_t)(u * 4 * 128 / 16));
        multiply_tokens(sum.at[e], a[i % 2] + 4, b + (uint64_t)((u * 4 + 2) * 128 / 16));
        end_group<FORMAT>();
    }
}

CAIRN_INLINE void end_sums(tile_sums &sum) {
    wgmma_wait<0>();
#pragma unroll
    for (int e = 0; e < EACH; e++) wgmma_hold<TOKENS / 2>(sum.at[e][0]);
}
#else
template <int COUNT, int FORMAT, class Next>
CAIRN_INLINE void multiply_step(packed<FORMAT> (*raw)[STEP_UNITS], shared_addr from, tile_sums &sum,
                                Next next) {
    const shared_addr mine = from + (uint32_t)(lane_id() * 16);
#pragma unroll
    for (int u = 0; u < COUNT; u++) {
        uint32_t a[EACH][8];
#pragma unroll
        for (int e = 0; e < EACH; e++) raw[e][u].expand(a[e]), next(e, u);
#pragma unroll
        for (int n = 0; n < TOKENS / 8; n++) {
            uint32_t b[4];
            load_matrix_x4(b, mine + (uint32_t)(n * PIECES_BYTES + u * 512));
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                mma_f16(sum.at[e][n], a[e], b);
                mma_f16(sum.at[e][n], a[e] + 4, b + 2);
            }
        }
    }
}

CAIRN_INLINE void end_sums(tile_sums &) {}
#endif

/* Of the warps that have sums. */
CAIRN_INLINE void users_sync() {
    if constexpr (CARRIERS > 0) named_sync(1, USERS);
    else block_sync();
}

#include "step/prompt_apart.cuh"
#include "step/prompt_few.cuh"

/* The warps' tiles of 16 outputs, of `tiles` at `weights` (further ones repeat the last), by the
 * block's tokens, added up in the inputs' order. All warps; sum is zero before. */
template <int FORMAT, int INPUTS>
CAIRN_INLINE void product_together(const uint8_t *weights, int tiles, const uint8_t *inputs, int first,
                                   int rows, unsigned char *memory, tile_sums &sum) {
    constexpr int UNITS = INPUTS / 32, WHOLE = UNITS / STEP_UNITS, REST = UNITS % STEP_UNITS;
    packed<FORMAT> raw[EACH][STEP_UNITS];
    const uint8_t *tile[EACH] = {};
    int step = 0;
    const auto load = [&](int e, int unit) {
        raw[e][unit % STEP_UNITS].template load<packed_group<FORMAT, INPUTS>()>(
            tile[e], min_of(unit, UNITS - 1));
    };
    const auto next = [&](int e, int u) { load(e, (step + 1) * STEP_UNITS + u); };
    const auto fetch = [&](int ahead) {
        if (step + ahead < WHOLE + (REST > 0))
            fetch_inputs<INPUTS>(inputs, first, rows, step + ahead, memory);
        copy_async_commit();
    };
    const auto arrive = [&]() {
        copy_async_wait<STEPS_AHEAD - 1>();
#if CAIRN_WGMMA
        fence_async();
#endif
        block_sync();
        fetch(STEPS_AHEAD);
        return shared_addr(memory + step % STEP_BUFFERS * STEP_BYTES);
    };
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        tile[e] = weights + (int64_t)min_of(tile_of(e), tiles - 1) * tile_bytes<FORMAT, INPUTS>();
#pragma unroll
        for (int u = 0; u < STEP_UNITS; u++) load(e, u);
    }
    start_input();
#pragma unroll
    for (int ahead = 0; ahead < STEPS_AHEAD; ahead++) fetch(ahead);
#pragma unroll 1
    for (; step < WHOLE; step++) multiply_step<STEP_UNITS>(raw, arrive(), sum, next);
    if constexpr (REST > 0) multiply_step<REST>(raw, arrive(), sum, [](int, int) {});
    end_sums(sum);
}

/* The same, given to use(sum) by those warps that have sums. */
template <int FORMAT, int INPUTS, class Use>
CAIRN_INLINE void product(const uint8_t *weights, int tiles, const uint8_t *inputs, int first,
                          int rows, Use use) {
#if CAIRN_WGMMA && CAIRN_PROMPT_CARRIERS
    product_apart<FORMAT, INPUTS>(weights, tiles, inputs, first, rows, use);
#else
    tile_sums sum = {};
    product_together<FORMAT, INPUTS>(weights, tiles, inputs, first, rows, shared_base(), sum);
    use(sum);
#endif
}

/* Calls out(row, row of the tile, column: 0 or 1 of value pairs) for the lane's values, whole
 * warps. */
template <class Out>
CAIRN_INLINE void each_output(const float (*sum)[4], int first, Out out) {
    int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int n = 0; n < TOKENS / 8; n++)
#pragma unroll
        for (int c = 0; c < 2; c++)
            out(first + n * 8 + 2 * t + c, g, sum[n][c], sum[n][2 + c]);
}

/* ---- what rows' adapters add: y += B low, in f32, low as step_low left it ---- */

constexpr int LOW_HELD = 16, LOW_PITCH = LOW_HELD + 4; /* inner values of a token in shared memory; floats between */
constexpr int NO_ADAPTER = 0x7fffffff;

/* Eight outputs of a tile: which product of the kernel they are of, and the first of them. */
struct low_outputs {
    int which, first;
};

/* Of so many tokens' adapters the least behind `slot`. */
CAIRN_INLINE int next_adapter(const int32_t *slots, int tokens, int slot) {
    int next = NO_ADAPTER;
    for (int i = lane_id(); i < tokens; i += WARP)
        if (slots[i] > slot) next = min_of(next, slots[i]);
#pragma unroll
    for (int m = 1; m < WARP; m *= 2) next = min_of(next, shuffle_xor(next, m));
    return next;
}

/* Four values of an output's row of B, from k on; zeros behind its end. */
CAIRN_INLINE f32x4 four_gains(const step_pair &pair, int output, int k) {
    const float *row = pair.b + (int64_t)output * pair.rank;
    f32x4 v = {};
    if (!pair.a || k >= pair.rank) return v;
    if (pair.rank % 4 == 0) return load_constant((const f32x4 *)(row + k)); /* then all rows begin at 16 bytes */
    v.x = row[k];
    if (k + 1 < pair.rank) v.y = row[k + 1];
    if (k + 2 < pair.rank) v.z = row[k + 2];
    if (k + 3 < pair.rank) v.w = row[k + 3];
    return v;
}

/* Inner values [k, k + LOW_HELD) of the block's tokens that have the adapter in `slot`, of PRODUCTS products, to shared
 * memory; zeros where there are none. */
template <int PRODUCTS>
CAIRN_INLINE void hold_low(const step_params &p, const step_pair *pairs, const int32_t *slots, int slot, int from,
                           int tokens, int k, float *memory) {
    users_sync(); /* no one needs any more what is there */
    for (int i = thread_id(); i < PRODUCTS * TOKENS * 4; i += USERS) {
        const int which = i / (TOKENS * 4), token = i / 4 % TOKENS, at = k + i % 4 * 4;
        f32x4 v = {};
        if (token < tokens && slots[token] == slot && pairs[which].a && at < pairs[which].rank)
            v = *(const f32x4 *)(inner_values(p, from + token, which) + at);
        *(f32x4 *)(memory + (which * TOKENS + token) * LOW_PITCH + i % 4 * 4) = v;
    }
    users_sync();
}

/* By these to a tile's sums; bit i of `here`: the lane's i-th token has the adapter. */
CAIRN_INLINE void add_held(float (*sum)[4], const float *memory, uint64_t here, const step_pair *pairs,
                           low_outputs low, low_outputs high, bool same, int k) {
    const int g = lane_id() / 4, end = min_of(LOW_HELD, max_of(pairs[low.which].rank, pairs[high.which].rank) - k);
    const float *mine = memory + (low.which * TOKENS + lane_id() % 4 * 2) * LOW_PITCH;
    const int other = (high.which - low.which) * TOKENS * LOW_PITCH;
    const step_pair first = pairs[low.which], second = pairs[high.which];
    f32x4 b = four_gains(first, low.first + g, k), c = four_gains(second, high.first + g, k);
#pragma unroll 1
    for (int j = 0; j < end; j += 4) {
        const f32x4 next = four_gains(first, low.first + g, k + j + 4);
        const f32x4 beside = four_gains(second, high.first + g, k + j + 4);
#pragma unroll
        for (int i = 0; i < TOKENS / 4; i++) {
            const float *at = mine + (i / 2 * 8 + i % 2) * LOW_PITCH + j;
            const f32x4 v = *(const f32x4 *)at, w = same ? v : *(const f32x4 *)(at + other);
            if (!(here >> i & 1)) continue;
            sum[i / 2][i % 2] = add_four(sum[i / 2][i % 2], b, v);
            sum[i / 2][2 + i % 2] = add_four(sum[i / 2][2 + i % 2], c, w);
        }
        b = next, c = beside;
    }
}

/* To the block's sums of the tokens from `from` on, of `rows` in all, in the kernel of PRODUCTS products from `product`
 * (STEP_LOW_) on; find(e, low, high): whether there is a tile_of(e), and its outputs from 0 and from 8 on. All users;
 * writes outputs_memory. */
template <int PRODUCTS, class Find>
CAIRN_INLINE void add_adapters(const step_params &p, tile_sums &sum, int from, int rows, int product, Find find) {
    const int32_t *slots = input_array(p, STEP_ADAPTER) + from;
    const int tokens = min_of(TOKENS, rows - from);
    float *memory = (float *)outputs_memory();
    static_assert(TOKENS <= 256, "add_adapters: bits of a lane's tokens");
    static_assert(PRODUCTS * TOKENS * LOW_PITCH * 4 + STEP_APART_HEADER <= PROMPT_BYTES, "add_adapters: memory");
    for (int slot = next_adapter(slots, tokens, -1); slot != NO_ADAPTER; slot = next_adapter(slots, tokens, slot)) {
        const step_pair *pairs = pairs_of(p, slot, p.layer) + product;
        uint64_t here = 0;
        int rank = 0;
        for (int i = 0; i < TOKENS / 4; i++) {
            const int token = i / 2 * 8 + lane_id() % 4 * 2 + i % 2;
            if (token < tokens && slots[token] == slot) here |= (uint64_t)1 << i;
        }
        for (int which = 0; which < PRODUCTS; which++)
            if (pairs[which].a) rank = max_of(rank, pairs[which].rank);
        for (int k = 0; k < rank; k += LOW_HELD) {
            hold_low<PRODUCTS>(p, pairs, slots, slot, from, tokens, k, memory);
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                low_outputs low, high;
                if (find(e, low, high)) add_held(sum.at[e], memory, here, pairs, low, high, PRODUCTS != 2, k);
            }
        }
    }
}

/* The outputs as `gained` makes them, f32 [row, 16 TILES], of the rows before `end`. */
template <int TILES, class Gained>
CAIRN_INLINE void store_outputs(const tile_sums &sum, int first, int end, float *out, Gained gained) {
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int tile = tile_of(e);
        if (tile >= TILES) return;
        each_output(sum.at[e], first, [&](int row, int g, float low, float high) {
            if (row >= end) return;
            const int n = tile * 16 + g;
            float *to = out + (int64_t)row * (16 * TILES) + n;
            to[0] = gained(low, row, n), to[8] = gained(high, row, n + 8);
        });
    }
}

#endif

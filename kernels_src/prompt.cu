/* A prompt's chunk through the decoder: matrix products on tensor cores straight from packed
 * weights, and causal attention over the paged cache. The rows are one sequence's, consecutive.
 *
 *   prompt_embed     residual = embeddings of the tokens
 *   prompt_norm      normed = residual / rms * weight, f16; reserved = 0 before attention, 1 before
 *   ffn
 *   prompt_qkv       q k v = normed Wqkv, rotated; k and v to the cache
 *   prompt_attend    causal attention of 64 rows of a head, all earlier tokens
 *   prompt_project   residual += attended Wo
 *   prompt_gate_up   ffn = silu(normed Wgate) * normed Wup
 *   prompt_down      residual += ffn Wdown
 *   prompt_last      the rows whose logits are wanted, as the head of step_stages.cuh reads them
 *   prompt_head      that head; CAIRN_WARPS warps, any number of blocks x windows of eight such
 *   rows
 *
 * Constants: those of step.cuh, CAIRN_BLOCKS 0. Buffers: one region of the exchange (step.cuh) up
 * to the chunks' sums.
 * Grids, 128 threads: embed rows; norm ceil(rows / 4); products (ceil(16-row tiles of W / 4),
 * ceil(rows / 64)); attend (ceil(rows / 64), heads); last wanted rows.
 * Shared memory: products 2 x 64 x 320 bytes, attend 512 x head_dim, head as step_head.
 * Sync: one block_sync a tile of 128 inputs or of 64 keys.
 * A row's results do not depend on the other rows of the chunk, nor on where the chunk begins.
 * Reference: tests/ref/decoder_step.h.
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=512 CAIRN_BLOCKS=0 CAIRN_NARROW=0
 * matrix: CAIRN_LAYERS=16 CAIRN_HIDDEN=2048 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=8192 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=16
 * matrix: + CAIRN_PACK_QKV=8 CAIRN_PACK_O=8 CAIRN_PACK_GATE_UP=8 CAIRN_PACK_DOWN=8
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=256 CAIRN_BLOCKS=0 CAIRN_NARROW=0
 * matrix: CAIRN_LAYERS=16 CAIRN_HIDDEN=2048 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=8192 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=16
 * matrix: + CAIRN_PACK_QKV=16 CAIRN_PACK_O=16 CAIRN_PACK_GATE_UP=16 CAIRN_PACK_DOWN=16
 * matrix: + CAIRN_PACK_HEAD=16 CAIRN_PACK_EMBED=16 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=512 CAIRN_BLOCKS=0 CAIRN_NARROW=0 */
#include "step_stages.cuh"

constexpr int64_t NORMED_AT = HIDDEN_AT;

constexpr int TILE_ROWS = 64;                       /* tokens of a block */
constexpr int STEP_UNITS = 4, STEP_INPUTS = 128;    /* inputs of one step of a product */
constexpr int ROW_BYTES = STEP_INPUTS * 2 + 64;     /* two rows end up 64 bytes apart in banks */

CAIRN_INLINE uint8_t *buffer(const step_params &p, int64_t at) { return region(p, 0, 0) + at; }

CAIRN_KERNEL(prompt_embed, 128, 1, step_params) {
    typedef packed<CAIRN_PACK_EMBED> pack;
    int row = block_id();
    start_input();
    int token = input_array(p, STEP_TOKEN)[row];
    token = token < 0 || token >= VOCAB ? 0 : token;
    const uint8_t *tile = p.embed + token / 16 * tile_bytes<CAIRN_PACK_EMBED, HIDDEN>();
    for (int k = thread_id(); k < HIDDEN; k += 128)
        residual_of(p)[(int64_t)row * HIDDEN + k] =
            pack::value(tile + k / 32 * pack::UNIT_BYTES, token % 16, k % 32);
}

CAIRN_KERNEL(prompt_norm, 128, 1, step_params) {
    int row = block_id() * 4 + warp_id(), rows = p.input[STEP_ROWS];
    start_input();
    if (row >= rows) return;
    const float *x = residual_of(p) + (int64_t)row * HIDDEN;
    const float *weight = p.norms + (int64_t)(2 * p.layer + p.reserved) * HIDDEN;
    float squares = 0.0f;
    for (int i = lane_id() * 4; i < HIDDEN; i += WARP * 4) {
        f32x4 v = *(const f32x4 *)(x + i);
        squares += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
    }
    float factor = rsqrt_fast(warp_sum(squares) * (1.0f / HIDDEN) + p.norm_eps);
    uint8_t *to = buffer(p, NORMED_AT) + (int64_t)row * HIDDEN * 2;
    for (int i = lane_id() * 4; i < HIDDEN; i += WARP * 4) {
        f32x4 v = *(const f32x4 *)(x + i), w = *(const f32x4 *)(weight + i);
        *(u32x2 *)(to + i * 2) = u32x2{pack_f16x2(v.x * factor * w.x, v.y * factor * w.y),
                                       pack_f16x2(v.z * factor * w.z, v.w * factor * w.w)};
    }
}

CAIRN_KERNEL(prompt_last, 128, 1, step_params) {
    int row = p.input[STEP_LOGIT_FIRST] + block_id();
    start_input();
    const float *x = residual_of(p) + (int64_t)row * HIDDEN;
    const float *weight = p.norms + (int64_t)2 * LAYERS * HIDDEN;
    uint8_t *to = buffer(p, HIDDEN_AT) + (int64_t)row * HIDDEN * 2;
    float *sums = (float *)buffer(p, SQUARES_AT) + (int64_t)row * SQUARES;
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

CAIRN_KERNEL(prompt_head, THREADS, 1, step_params) {
    workspace work{nullptr, (float *)shared_base(), 0};
    row_window rows = logits_of(p, block_id_y());
    if (rows.count > 0) stage_head(p, rows, region(p, 0, 0), work, block_id(), grid_blocks());
    else start_input();
}

/* sum[n] = 16 outputs of tile x tokens 8n.. of the block's 64. */
struct tile_sums {
    float at[TILE_ROWS / 8][4];
};

/* Starts the copy of inputs [step STEP_INPUTS, ...) of the block's rows; zeros beyond the ends. */
template <int INPUTS>
CAIRN_INLINE void fetch_inputs(const uint8_t *from, int first, int rows, int step,
                               unsigned char *memory) {
    constexpr int PER_ROW = STEP_INPUTS / 8;
    shared_addr to(memory + step % 2 * TILE_ROWS * ROW_BYTES);
    for (int i = thread_id(); i < TILE_ROWS * PER_ROW; i += 128) {
        int row = i / PER_ROW, k = step * STEP_INPUTS + i % PER_ROW * 8;
        bool valid = first + row < rows && k < INPUTS;
        int64_t at = valid ? (int64_t)(first + row) * INPUTS + k : 0;
        copy_async16(to + (uint32_t)(row * ROW_BYTES + i % PER_ROW * 16), from + at * 2, valid);
    }
    copy_async_commit();
}

template <int FORMAT, int INPUTS>
CAIRN_INLINE void load_units(packed<FORMAT> *raw, const uint8_t *tile, int step) {
#pragma unroll
    for (int u = 0; u < STEP_UNITS; u++) {
        int unit = min_of(step * STEP_UNITS + u, INPUTS / 32 - 1);
        raw[u].load(tile + unit * packed<FORMAT>::UNIT_BYTES);
    }
}

/* One warp's tile of 16 outputs by the block's 64 tokens. */
template <int FORMAT, int INPUTS>
CAIRN_INLINE void product(const uint8_t *tile, const uint8_t *inputs, int first, int rows,
                          unsigned char *memory, tile_sums &sum) {
    constexpr int STEPS = ceil_div(INPUTS, STEP_INPUTS);
    const int g = lane_id() / 4, t = lane_id() % 4;
    packed<FORMAT> raw[STEP_UNITS];
    load_units<FORMAT, INPUTS>(raw, tile, 0);
    start_input();
    fetch_inputs<INPUTS>(inputs, first, rows, 0, memory);
    for (int step = 0; step < STEPS; step++) {
        packed<FORMAT> now[STEP_UNITS];
#pragma unroll
        for (int u = 0; u < STEP_UNITS; u++) now[u] = raw[u];
        copy_async_wait<0>();
        block_sync();
        if (step + 1 < STEPS) {
            fetch_inputs<INPUTS>(inputs, first, rows, step + 1, memory);
            load_units<FORMAT, INPUTS>(raw, tile, step + 1);
        }
        const unsigned char *from = memory + step % 2 * TILE_ROWS * ROW_BYTES;
#pragma unroll
        for (int u = 0; u < STEP_UNITS; u++) {
            if (INPUTS % STEP_INPUTS != 0 && step * STEP_UNITS + u >= INPUTS / 32) break;
            uint32_t a[8];
            now[u].expand(a);
#pragma unroll
            for (int n = 0; n < TILE_ROWS / 8; n++) {
                u32x4 b = *(const u32x4 *)(from + (n * 8 + g) * ROW_BYTES + u * 64 + t * 16);
                uint32_t low[2] = {b.x, b.y}, high[2] = {b.z, b.w};
                mma_f16(sum.at[n], a, low);
                mma_f16(sum.at[n], a + 4, high);
            }
        }
    }
}

/* Calls out(row, row of the tile, column: 0 or 1 of value pairs) for the lane's values, whole
 * warps. */
template <class Out>
CAIRN_INLINE void each_output(const tile_sums &sum, int first, Out out) {
    int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int n = 0; n < TILE_ROWS / 8; n++)
#pragma unroll
        for (int c = 0; c < 2; c++)
            out(first + n * 8 + 2 * t + c, g, sum.at[n][c], sum.at[n][2 + c]);
}

constexpr int OUT_STRIDE = 18; /* floats, of a row's 16 outputs in shared memory */

/* Dimensions d, d + 1 of a head of q, k or v: rotated, to the exchange or to the cache. */
CAIRN_INLINE void place_pair(const step_params &p, int row, int head, int d, f32x2 y) {
    const int position = input_array(p, STEP_POSITION)[0] + row;
    f32x2 turn = {1.0f, 0.0f};
    if (head < HEADS + KV_HEADS)
        turn = ((const f32x2 *)p.rope)[(int64_t)position * (HEAD_DIM / 2) + d / 2];
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

CAIRN_KERNEL(prompt_qkv, 128, 1, step_params) {
    constexpr int TILES = QKV / 16;
    int tile = block_id() * 4 + warp_id(), first = block_id_y() * TILE_ROWS;
    int rows = p.input[STEP_ROWS];
    tile_sums sum = {};
    product<CAIRN_PACK_QKV, HIDDEN>(
        p.qkv + ((int64_t)p.layer * TILES + min_of(tile, TILES - 1)) *
                    tile_bytes<CAIRN_PACK_QKV, HIDDEN>(),
        buffer(p, NORMED_AT), first, rows, shared_base(), sum);
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
    for (int r = row; r < min_of(TILE_ROWS, rows - first); r += WARP / 8)
        place_pair(p, first + r, head, d, *(const f32x2 *)(mine + r * OUT_STRIDE + pair));
}

/* residual += W inputs */
template <int FORMAT, int INPUTS>
CAIRN_INLINE void product_residual(const step_params &p, const uint8_t *weights,
                                   const uint8_t *inputs) {
    constexpr int TILES = HIDDEN / 16;
    int tile = block_id() * 4 + warp_id(), first = block_id_y() * TILE_ROWS;
    int rows = p.input[STEP_ROWS];
    tile_sums sum = {};
    product<FORMAT, INPUTS>(weights + ((int64_t)p.layer * TILES + min_of(tile, TILES - 1)) *
                                          tile_bytes<FORMAT, INPUTS>(),
                            inputs, first, rows, shared_base(), sum);
    if (tile >= TILES) return;
    each_output(sum, first, [&](int row, int g, float low, float high) {
        if (row >= rows) return;
        float *at = residual_of(p) + (int64_t)row * HIDDEN + tile * 16 + g;
        at[0] += low;
        at[8] += high;
    });
}

CAIRN_KERNEL(prompt_project, 128, 1, step_params) {
    product_residual<CAIRN_PACK_O, ATTENDED>(p, p.o, buffer(p, ATTENDED_AT));
}

CAIRN_KERNEL(prompt_down, 128, 1, step_params) {
    product_residual<CAIRN_PACK_DOWN, FFN>(p, p.down, buffer(p, FFN_AT));
}

CAIRN_KERNEL(prompt_gate_up, 128, 1, step_params) {
    constexpr int TILES = FFN / 8;
    int tile = block_id() * 4 + warp_id(), first = block_id_y() * TILE_ROWS;
    int rows = p.input[STEP_ROWS];
    tile_sums sum = {};
    product<CAIRN_PACK_GATE_UP, HIDDEN>(
        p.gate_up + ((int64_t)p.layer * TILES + min_of(tile, TILES - 1)) *
                        tile_bytes<CAIRN_PACK_GATE_UP, HIDDEN>(),
        buffer(p, NORMED_AT), first, rows, shared_base(), sum);
    if (tile >= TILES) return;
    each_output(sum, first, [&](int row, int g, float gate, float up) {
        float v = gate * up * rcp_fast(1.0f + exp_fast(-gate)), next = shuffle_xor(v, 4);
        if (row >= rows || g % 2 != 0) return;
        int64_t at = (int64_t)row * FFN + tile * 8 + g;
        *(uint32_t *)(buffer(p, FFN_AT) + at * 2) = pack_f16x2(v, next);
    });
}

/* ---- attention ---- */

constexpr int TILE_KEYS = 64;
constexpr int TILE_BYTES = TILE_KEYS * HEAD_DIM * 2;          /* of keys; as many of values */

CAIRN_INLINE uint32_t tile_key_at(int key, int piece) {
    return (uint32_t)(key * PIECES + (piece ^ (key & 1) * 4)) * 16;
}
CAIRN_INLINE uint32_t tile_value_at(int key, int piece) {
    return (uint32_t)(TILE_BYTES + (key * PIECES + (piece ^ (key & 7))) * 16);
}

/* Starts the copy of keys and values [tile TILE_KEYS, ...) before `end`; zeros from there on. */
CAIRN_INLINE void fetch_tile(const step_params &p, const int32_t *table, int kv_head, int tile,
                             int end, unsigned char *memory) {
    shared_addr to(memory + tile % 2 * 2 * TILE_BYTES);
    const uint16_t *cache = p.kv[p.layer];
    for (int i = thread_id(); i < TILE_KEYS * PIECES; i += 128) {
        int key = i / PIECES, piece = i % PIECES, position = tile * TILE_KEYS + key;
        bool valid = position < end;
        const uint16_t *from = cache;
        if (valid) {
            int64_t plane = (int64_t)table[position / PAGE] * 2 * KV_HEADS + kv_head;
            from += (plane * PAGE + position % PAGE) * HEAD_DIM + piece * 8;
        }
        copy_async16(to + tile_key_at(key, piece), from, valid);
        copy_async16(to + tile_value_at(key, piece),
                     valid ? from + (int64_t)KV_HEADS * PAGE * HEAD_DIM : from, valid);
    }
    copy_async_commit();
}

/* The running softmax of a warp's 16 rows: row g and row g + 8 of each lane. */
struct running {
    float top[2], total[2];
    float o[HEAD_DIM / 8][4];
};

CAIRN_INLINE void attend_tile(const unsigned char *memory, const uint32_t *query, int tile,
                              int position, running &r) {
    int lane = lane_id(), g = lane / 4, t = lane % 4;
    float s[TILE_KEYS / 8][4] = {};
#pragma unroll
    for (int n = 0; n < TILE_KEYS / 8; n++) {
#pragma unroll
        for (int u = 0; u < HEAD_DIM / 32; u++) {
            u32x4 b = *(const u32x4 *)(memory + tile_key_at(n * 8 + g, u * 4 + t));
            uint32_t low[2] = {b.x, b.y}, high[2] = {b.z, b.w};
            mma_f16(s[n], query + u * 8, low);
            mma_f16(s[n], query + u * 8 + 4, high);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int key = tile * TILE_KEYS + n * 8 + 2 * t + i % 2;
            s[n][i] = key <= position + i / 2 * 8 ? s[n][i] * SCORE_SCALE : NOTHING;
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = r.top[half];
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; n++)
            top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        top = quad_max(top);
        float old = exp2_fast(r.top[half] - top), total = 0.0f;
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; n++)
#pragma unroll
            for (int c = 2 * half; c < 2 * half + 2; c++) {
                s[n][c] = s[n][c] == NOTHING ? 0.0f : exp2_fast(s[n][c] - top);
                total += s[n][c];
            }
        r.total[half] = fma_f32(r.total[half], old, quad_sum(total));
        r.top[half] = top;
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++) r.o[n][2 * half] *= old, r.o[n][2 * half + 1] *= old;
    }
#pragma unroll
    for (int k = 0; k < TILE_KEYS / 16; k++) {
        uint32_t weights[4] = {
            pack_f16x2(s[2 * k][0], s[2 * k][1]), pack_f16x2(s[2 * k][2], s[2 * k][3]),
            pack_f16x2(s[2 * k + 1][0], s[2 * k + 1][1]),
            pack_f16x2(s[2 * k + 1][2], s[2 * k + 1][3])};
        int key = k * 16 + (lane / 8 & 1) * 8 + lane % 8;
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 16; n++) {
            uint32_t b[4];
            load_matrix_transposed_x4(
                b, shared_addr(memory + tile_value_at(key, 2 * n + lane / 16)));
            mma_f16(r.o[2 * n], weights, b);
            mma_f16(r.o[2 * n + 1], weights, b + 2);
        }
    }
}

CAIRN_KERNEL(prompt_attend, 128, 1, step_params) {
    const int head = block_id_y(), g = lane_id() / 4, t = lane_id() % 4;
    const int rows = p.input[STEP_ROWS], first = block_id() * TILE_ROWS;
    const int start = input_array(p, STEP_POSITION)[0];
    const int32_t *table =
        p.page_table + (int64_t)input_array(p, STEP_SEQUENCE)[0] * p.table_stride;
    const int end = start + min_of(first + TILE_ROWS, rows);
    const int row = first + warp_id() * 16 + g;
    start_input();
    uint32_t query[HEAD_DIM / 4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int at = min_of(row + half * 8, rows - 1);
        const uint8_t *q = buffer(p, QKV_AT) + ((int64_t)at * QKV + head * HEAD_DIM) * 2 + t * 16;
#pragma unroll
        for (int u = 0; u < HEAD_DIM / 32; u++) {
            u32x4 v = *(const u32x4 *)(q + u * 64);
            query[u * 8 + half] = v.x, query[u * 8 + 2 + half] = v.y;
            query[u * 8 + 4 + half] = v.z, query[u * 8 + 6 + half] = v.w;
        }
    }
    running r = {{NOTHING, NOTHING}, {0.0f, 0.0f}, {}};
    const int tiles = ceil_div(end, TILE_KEYS);
    fetch_tile(p, table, head / GROUP, 0, end, shared_base());
    for (int tile = 0; tile < tiles; tile++) {
        copy_async_wait<0>();
        block_sync();
        if (tile + 1 < tiles) fetch_tile(p, table, head / GROUP, tile + 1, end, shared_base());
        attend_tile(shared_base() + tile % 2 * 2 * TILE_BYTES, query, tile, start + row, r);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (row + half * 8 >= rows) continue;
        float factor = 1.0f / r.total[half];
        uint8_t *to = buffer(p, ATTENDED_AT) +
                      ((int64_t)(row + half * 8) * ATTENDED + head * HEAD_DIM + 2 * t) * 2;
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++)
            *(uint32_t *)(to + n * 16) =
                pack_f16x2(r.o[n][2 * half] * factor, r.o[n][2 * half + 1] * factor);
    }
}

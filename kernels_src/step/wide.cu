/* wide: the products of a step whose rows draft, for small models: up to 32 rows of it a block, so that
 * weights are read and expanded once, and what a gated adapter of rank 8 at most adds to its rows by the
 * same kernel: A x is a tile of the product more, f16, and the epilogue adds B (A x) in f32.
 *
 * wide_qkv, wide_project, wide_gate_up, wide_down: grid (tiles of the product, windows of 32 rows).
 * Rows without an adapter have the bits of step/layer.cu: the same sums in the same order.
 *
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0, CAIRN_EXTRAS 0, packs of the flow kernel.
 * Shared memory: WIDE_BYTES. Sync: two block_syncs.
 * Reference: tests/engine/mtp_test.c.
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 */
#include "step/stages.cuh"

constexpr int MOST = STEP_WIDE_ROWS, GROUPS = MOST / COLUMNS, LOW = STEP_WIDE_RANK;
constexpr int SUMS = GROUPS * WARPS * 128; /* floats: of a product, then of its A x */
constexpr int FACTORS = 2 * SUMS, LOWS = FACTORS + MOST; /* [2 LOW, row] */
static_assert((LOWS + 2 * LOW * MOST) * 4 == STEP_WIDE_BYTES(WARPS), "wide: shared memory");
constexpr int ENDS = ceil_div(GROUPS * 128, ENDERS); /* outputs of a thread */

/* An adapter's tiles of A: a layer's products behind each other (runtime/forward/cuda_draft.c). */
constexpr int64_t A_HIDDEN = HIDDEN * 32, A_O = 3 * A_HIDDEN, A_GATE = A_O + ATTENDED * 32;
constexpr int64_t A_DOWN = A_GATE + A_HIDDEN, A_LAYER = A_DOWN + FFN * 32;

/* The rows of a block, the adapter of those that have one, and what this thread's outputs gain. */
struct wide_rows : row_window {
    int slot;
    const uint8_t *tiles; /* of A, of the layer */
    float b[LOW];
    int rank, low; /* the first of its rows of A x */
    bool gains[ENDS];

    CAIRN_MEMBER explicit wide_rows(const step_params &p) {
        total = p.input[STEP_ROWS], first = block_id_y() * MOST;
        count = min_of(MOST, total - first);
        slot = input_array(p, STEP_ADAPTER)[total - 1]; /* the last drafts */
        tiles = p.low_tiles[slot] + p.layer * A_LAYER;
    }
    CAIRN_MEMBER row_window group(int i) const {
        return row_window{first + i * COLUMNS, min_of(COLUMNS, count - i * COLUMNS), total};
    }
    /* This thread's outputs are n of a product, STEP_LOW_. */
    CAIRN_MEMBER void find(const step_params &p, int product, int n, int first_low) {
        const step_pair pair =
            p.adapters[((int64_t)slot * LAYERS + p.layer) * STEP_LOW_PRODUCTS + product];
        rank = pair.a ? pair.rank : 0, low = first_low;
#pragma unroll
        for (int k = 0; k < LOW; k++) b[k] = k < rank ? pair.b[(int64_t)n * rank + k] : 0.0f;
#pragma unroll
        for (int i = 0; i < ENDS; i++) {
            const int e = thread_id() + i * ENDERS, row = e / 128 * COLUMNS + output_column(e);
            gains[i] = rank > 0 && row < count && input_array(p, STEP_ADAPTER)[first + row] >= 0;
        }
    }
    CAIRN_MEMBER float gain(const float *lows, int row) const {
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < LOW; k++) sum = fma_f32(b[k], lows[(low + k) * MOST + row], sum);
        return sum;
    }
};

/* Units [unit, unit + N) of the inputs of group i. */
template <int INPUTS, int N>
CAIRN_INLINE void wide_fetch(const wide_rows &rows, const uint8_t *input, int i, int unit,
                             u32x4 (&v)[N]) {
    const int row = i * COLUMNS + lane_id() / 4;
    const uint8_t *from = input + ((int64_t)row * INPUTS + unit * 32 + lane_id() % 4 * 8) * 2;
#pragma unroll
    for (int u = 0; u < N; u++) {
        v[u] = u32x4{};
        if (row < rows.count && unit + u < INPUTS / 32) v[u] = *(const u32x4 *)(from + u * 64);
    }
    warp_sync();
}

/* 1 / (rms scale) of the rows, as norm_input has it. */
CAIRN_INLINE void wide_factors(const step_params &p, const wide_rows &rows, const float *squares,
                               float *factors) {
#pragma unroll
    for (int i = 0; i < ceil_div(MOST, WARPS); i++) {
        const int row = warp_id() + i * WARPS;
        float sum = 0.0f;
        if (row >= rows.count) break;
#pragma unroll
        for (int j = 0; j < norm_input::EACH; j++)
            if (j * WARP + lane_id() < SQUARES)
                sum += squares[(int64_t)row * SQUARES + j * WARP + lane_id()];
        sum = warp_sum(sum);
        if (lane_id() == 0)
            factors[row] = rsqrt_fast(sum * (1.0f / HIDDEN) + p.norm_eps) * (1.0f / p.input_scale);
    }
}

/* One tile of a product with the rows' f16 inputs, from the first row's on. squares: of a norm, or NULL.
 * end(i, group, output, factors): this thread's output i. */
template <int FORMAT, int INPUTS, class End>
CAIRN_INLINE void wide_product(const step_params &p, const wide_rows &rows, const uint8_t *tile,
                               const uint8_t *low_tile, const uint8_t *input, const float *squares,
                               int number, End end) {
    constexpr int UNITS = INPUTS / 32, MINE = ceil_div(UNITS, WARPS), HELD = min_of(MINE, 2);
    constexpr int BATCHES = ceil_div(MINE, HELD);
    float *memory = (float *)shared_base(), *lows = memory + LOWS;
    const int mine = warp_id() * MINE;
    packed<FORMAT> raw[HELD];
    packed<PACK_16> low[HELD];
    const auto load = [&](int batch) {
#pragma unroll
        for (int u = 0; u < HELD; u++) {
            const int unit = min_of(mine + batch * HELD + u, UNITS - 1);
            raw[u].template load<1>(tile, unit);
            low[u].template load<1>(low_tile, unit);
        }
    };
    load(0);
    start_input();
    u32x4 v[GROUPS][HELD];
#pragma unroll
    for (int i = 0; i < GROUPS; i++) wide_fetch<INPUTS>(rows, input, i, mine, v[i]);
    if (squares) wide_factors(p, rows, squares, memory + FACTORS);
    float sum[GROUPS][2][4] = {}, more[GROUPS][4] = {};
#pragma unroll
    for (int batch = 0; batch < BATCHES; batch++) {
        uint32_t a[HELD][8], c[HELD][8];
#pragma unroll
        for (int u = 0; u < HELD; u++) raw[u].expand(a[u]), low[u].expand(c[u]);
        if (batch + 1 < BATCHES) load(batch + 1);
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            if (i * COLUMNS >= rows.count) break;
#pragma unroll
            for (int u = 0; u < HELD; u++) {
                if (batch * HELD + u >= MINE || mine + batch * HELD + u >= UNITS) continue;
                uint32_t b[4] = {v[i][u].x, v[i][u].y, v[i][u].z, v[i][u].w};
                mma_f16(sum[i][0], a[u], b);
                mma_f16(sum[i][1], a[u] + 4, b + 2);
                mma_f16(more[i], c[u], b);
                mma_f16(more[i], c[u] + 4, b + 2);
            }
            if (batch + 1 < BATCHES)
                wide_fetch<INPUTS>(rows, input, i, mine + (batch + 1) * HELD, v[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        float *at = memory + (i * WARPS + warp_id()) * 128 + lane_id() * 4;
        const float(&s)[2][4] = sum[i], (&m)[4] = more[i];
        *(f32x4 *)at = f32x4{s[0][0] + s[1][0], s[0][1] + s[1][1], s[0][2] + s[1][2], s[0][3] + s[1][3]};
        *(f32x4 *)(at + SUMS) = f32x4{m[0], m[1], m[2], m[3]};
    }
    block_sync();
    for (int e = thread_id(); e < GROUPS * 128; e += THREADS)
        lows[output_row(e) * MOST + e / 128 * COLUMNS + output_column(e)] =
            tree_sum<WARPS>(memory + SUMS + e / 128 * WARPS * 128 + output_at(e), 128);
    block_sync();
#pragma unroll
    for (int i = 0; i < ENDS; i++) {
        const int e = thread_id() + i * ENDERS, group = e / 128;
        if (thread_id() >= ENDERS || group * COLUMNS >= rows.count) break;
        output out = {number, output_row(e), output_column(e), 0.0f};
        out.value = tree_sum<WARPS>(memory + group * WARPS * 128 + output_at(e), 128);
        if (rows.gains[i]) out.value += rows.gain(lows, group * COLUMNS + out.column);
        end(i, group, out, memory + FACTORS + group * COLUMNS);
    }
}

#define WIDE(name, ...)                                                        \
    CAIRN_KERNEL(name, THREADS, 1, step_params) {                              \
        wide_rows rows(p);                                                     \
        uint8_t *at = region(p, 0, 0);                                         \
        const int tile = block_id(), row = output_row(thread_id());            \
        if (rows.count <= 0) start_input();                                    \
        else __VA_ARGS__;                                                      \
    }

WIDE(wide_qkv, {
    const int product = tile < K_TILE ? STEP_LOW_Q : tile < V_TILE ? STEP_LOW_K : STEP_LOW_V;
    const int before = tile < K_TILE ? 0 : tile < V_TILE ? K_TILE : V_TILE;
    qkv_place places[ENDS];
    uint16_t *cache = load_constant_early(p.kv + p.layer);
    rows.find(p, product, (tile - before) * 16 + row, 0);
#pragma unroll
    for (int i = 0; i < ENDS; i++) {
        const int e = thread_id() + i * ENDERS;
        if (e < GROUPS * 128) places[i].find(p, rows.group(e / 128), tile, row, output_column(e));
    }
    wide_product<PACK_Q, HIDDEN>(
        p, rows, p.qkv + tile * tile_bytes<PACK_Q, HIDDEN>(), rows.tiles + product * A_HIDDEN,
        at + HIDDEN_AT + (int64_t)rows.first * HIDDEN * 2,
        (const float *)(at + SQUARES_AT) + (int64_t)rows.first * SQUARES, tile,
        [&](int i, int group, const output &o, const float *factors) {
            qkv_output<true> out{p, rows.group(group), places[i], at, p.layer, cache};
            out(o, factors);
        });
})

/* residual += W input + what is gained. */
template <int FORMAT, int INPUTS, int PRODUCT>
CAIRN_INLINE void wide_residual(const step_params &p, wide_rows &rows, const uint8_t *weights,
                                int64_t low_at, const uint8_t *input, const float *weight,
                                uint8_t *hidden, uint8_t *squares) {
    const int tile = block_id(), n = tile * 16 + output_row(thread_id());
    const float held = load_constant_early(weight + n);
    rows.find(p, PRODUCT, n, 0);
    wide_product<FORMAT, INPUTS>(
        p, rows, weights + tile * tile_bytes<FORMAT, INPUTS>(), rows.tiles + low_at,
        input + (int64_t)rows.first * INPUTS * 2, nullptr, tile,
        [&](int, int group, const output &o, const float *factors) {
            residual_output<false, PRODUCT> out{
                {p, rows.group(group), weight, hidden, squares}, tile, 0.0f, held};
            out(o, factors);
        });
}

WIDE(wide_project, {
    (void)row, (void)tile;
    wide_residual<CAIRN_PACK_O, ATTENDED, STEP_LOW_O>(
        p, rows, p.o, A_O, at + ATTENDED_AT, p.norms + (int64_t)(2 * p.layer + 1) * HIDDEN,
        at + MIDDLE_AT, at + MIDDLE_SQUARES_AT);
})

WIDE(wide_gate_up, {
    rows.find(p, STEP_LOW_GATE + row / 8, tile * 8 + row % 8, row / 8 * LOW);
    wide_product<CAIRN_PACK_GATE_UP, HIDDEN>(
        p, rows, p.gate_up + tile * tile_bytes<CAIRN_PACK_GATE_UP, HIDDEN>(), rows.tiles + A_GATE,
        at + MIDDLE_AT + (int64_t)rows.first * HIDDEN * 2,
        (const float *)(at + MIDDLE_SQUARES_AT) + (int64_t)rows.first * SQUARES, tile,
        [&](int, int group, const output &o, const float *factors) {
            const row_window window = rows.group(group);
            swiglu_output out{window.count, at + FFN_AT + (int64_t)window.first * FFN * 2, p,
                              window.first};
            out(o, factors);
        });
})

WIDE(wide_down, {
    (void)row, (void)tile;
    wide_residual<CAIRN_PACK_DOWN, FFN, STEP_LOW_DOWN>(
        p, rows, p.down, A_DOWN, at + FFN_AT, p.norms + (int64_t)(2 * p.layer + 2) * HIDDEN,
        at + HIDDEN_AT, at + SQUARES_AT);
})

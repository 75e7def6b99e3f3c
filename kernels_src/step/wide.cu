/* wide: the products of a step whose rows draft, for small models: up to 32 rows of it a block, so that
 * weights are read and expanded once, and what a gated adapter of rank 8 at most adds to its rows by the
 * same kernel: A x is a tile of the product more, f16, and the epilogue adds B (A x) in f32.
 *
 * wide_qkv, wide_project, wide_gate_up, wide_down: grid (tiles of the product, of gate_up STEP_WIDE_TILES
 *     a block; windows of 32 rows).
 * Rows without an adapter have the bits of step/layer.cu: the same sums in the same order.
 *
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0, CAIRN_EXTRAS 0, packs of the flow kernel.
 * Shared memory: WIDE_BYTES. Sync: two block_syncs, of two tiles three.
 * Reference: tests/engine/mtp_test.c.
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 */
#include "step/stages.cuh"

constexpr int MOST = STEP_WIDE_ROWS, GROUPS = MOST / COLUMNS;
constexpr int SUMS = GROUPS * WARPS * 128; /* floats: of a product, then of its A x */
constexpr int FACTORS = 2 * SUMS, LOWS = FACTORS + MOST; /* [2 LOW, row] */
constexpr int GAINS = LOWS + 2 * LOW * MOST;             /* of B: [tile, output, LOW] */
static_assert((GAINS + 2 * 16 * LOW) * 4 == STEP_WIDE_BYTES(WARPS), "wide: shared memory");
constexpr int ENDS = ceil_div(GROUPS * 128, ENDERS); /* outputs of a thread */

/* Tiles of gate_up that a block has, so that all blocks run at once. */
constexpr int GATE_TILES = STEP_WIDE_TILES(HIDDEN, WARPS);

/* The rows of a block, and which of this thread's outputs gain. */
struct wide_rows : row_window {
    bool gains[ENDS];

    CAIRN_MEMBER explicit wide_rows(const step_params &p) {
        first = block_id_y() * MOST, total = p.input[STEP_ROWS];
        count = min_of(MOST, total - first);
#pragma unroll
        for (int i = 0; i < ENDS; i++) {
            const int e = thread_id() + i * ENDERS, row = e / 128 * COLUMNS + output_column(e);
            gains[i] = input_array(p, STEP_ADAPTER)[min_of(first + row, p.capacity - 1)] >= 0;
        }
    }
    CAIRN_MEMBER row_window group(int i) const {
        return row_window{first + i * COLUMNS, min_of(COLUMNS, count - i * COLUMNS), total};
    }
};

/* What output `row` of a tile gains: b of LOW values, lows of them for each of MOST columns. */
CAIRN_INLINE float wide_gain(const float *b, const float *lows) {
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < LOW; k++) sum = fma_f32(b[k], lows[k * MOST], sum);
    return sum;
}

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

/* A tile's weights, of which HELD units are at hand. */
template <class Unit, int INPUTS, int HELD> struct wide_weights {
    Unit raw[HELD];

    CAIRN_MEMBER void load(const uint8_t *tile, int unit) {
#pragma unroll
        for (int u = 0; u < HELD; u++)
            raw[u].template load<1>(tile, min_of(unit + u, INPUTS / 32 - 1));
    }
};

/* What the warps have of a tile's products, or of A x, to where they meet. */
CAIRN_INLINE float *wide_place(float *memory, int group) {
    return memory + (group * WARPS + warp_id()) * 128 + lane_id() * 4;
}
CAIRN_INLINE void wide_put(float *memory, const float (&sum)[GROUPS][2][4]) {
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        const float(&s)[2][4] = sum[i];
        *(f32x4 *)wide_place(memory, i) = f32x4{s[0][0] + s[1][0], s[0][1] + s[1][1],
                                                s[0][2] + s[1][2], s[0][3] + s[1][3]};
    }
}
CAIRN_INLINE float wide_sum(const float *memory, int e) {
    return tree_sum<WARPS>(memory + e / 128 * WARPS * 128 + output_at(e), 128);
}

/* This thread's outputs of tile number `number`, the block's `turn`th, to end(window, i, output, factors);
 * halves: outputs from 8 on have inner values of their own. */
template <class End>
CAIRN_INLINE void wide_end(const wide_rows &rows, const float *sums, const float *memory, int number,
                           int turn, bool halves, End end) {
#pragma unroll
    for (int i = 0; i < ENDS; i++) {
        const int e = thread_id() + i * ENDERS, group = e / 128;
        if (thread_id() >= ENDERS || group * COLUMNS >= rows.count) break;
        output out = {number, output_row(e), output_column(e), wide_sum(sums, e)};
        if (rows.gains[i])
            out.value += wide_gain(memory + GAINS + (turn * 16 + out.row) * LOW,
                                   memory + LOWS + (halves ? out.row / 8 * LOW * MOST : 0) +
                                       group * COLUMNS + out.column);
        end(rows.group(group), i, out, memory + FACTORS + group * COLUMNS);
    }
}

/* Tile `number` of a product with the rows' f16 inputs, and where TILES is 2 the one behind it. What
 * comes from far is asked for before anything is waited for. a, b: where in a layer's adapter A and B of
 * the product are. input(rows): of the first row. squares(rows): of a norm, or NULL. find(rows): looks
 * up what end needs. begin(rows): the kernel before has ended. */
template <int FORMAT, int INPUTS, int TILES, bool HALVES, class Input, class Squares, class Find,
          class Begin, class End>
CAIRN_INLINE void wide_product(const step_params &p, const uint8_t *weights, int64_t a_at, int b_at,
                               int number, Input input_of, Squares squares_of, Find find, Begin begin,
                               End end) {
    constexpr int UNITS = INPUTS / 32, MINE = ceil_div(UNITS, WARPS), HELD = min_of(MINE, 2);
    constexpr int BATCHES = ceil_div(MINE, HELD), GAINED = TILES * 16 * LOW;
    static_assert(TILES == 1 || BATCHES == 1, "wide: inputs of the second tile are at hand");
    static_assert(GAINED <= THREADS, "wide: B of a block's tiles");
    float *memory = (float *)shared_base();
    const int mine = warp_id() * MINE;
    const uint8_t *tile = weights + number * tile_bytes<FORMAT, INPUTS>();
    const uint8_t *layer = low_layer(p, p.layer), *low_tile = layer + a_at;
    const float *gains = (const float *)(layer + A_LAYER) + (int64_t)(b_at + number * 16) * LOW;
    wide_weights<packed<FORMAT>, INPUTS, HELD> own, other;
    wide_weights<low_unit<HALVES>, INPUTS, HELD> low;
    own.load(tile, mine), low.load(low_tile, mine);
    if (TILES > 1) other.load(tile + tile_bytes<FORMAT, INPUTS>(), mine);
    const float gain = thread_id() < GAINED ? load_constant_early(gains + thread_id()) : 0.0f;
    const wide_rows rows(p);
    find(rows);
    if (thread_id() < GAINED) memory[GAINS + thread_id()] = gain;
    const uint8_t *input = input_of(rows);
    const float *squares = squares_of(rows);
    start_input();
    u32x4 v[GROUPS][HELD];
#pragma unroll
    for (int i = 0; i < GROUPS; i++) wide_fetch<INPUTS>(rows, input, i, mine, v[i]);
    if (BATCHES == 1) begin(rows);
    if (squares) wide_factors(p, rows, squares, memory + FACTORS);
    float sum[GROUPS][2][4] = {}, more[GROUPS][2][4] = {};
#pragma unroll
    for (int batch = 0; batch < BATCHES; batch++) {
        const int next = mine + (batch + 1) * HELD;
        uint32_t a[HELD][8], c[HELD][8];
#pragma unroll
        for (int u = 0; u < HELD; u++) own.raw[u].expand(a[u]), low.raw[u].expand(c[u]);
        if (batch + 1 < BATCHES) own.load(tile, next), low.load(low_tile, next);
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            if (i * COLUMNS >= rows.count) break;
#pragma unroll
            for (int u = 0; u < HELD; u++) {
                if (batch * HELD + u >= MINE || mine + batch * HELD + u >= UNITS) continue;
                uint32_t b[4] = {v[i][u].x, v[i][u].y, v[i][u].z, v[i][u].w};
                mma_f16(sum[i][0], a[u], b);
                mma_f16(sum[i][1], a[u] + 4, b + 2);
                mma_f16(more[i][0], c[u], b);
                mma_f16(more[i][1], c[u] + 4, b + 2);
            }
            if (batch + 1 < BATCHES) wide_fetch<INPUTS>(rows, input, i, next, v[i]);
        }
    }
    wide_put(memory, sum), wide_put(memory + SUMS, more);
    block_sync();
    if (BATCHES > 1) begin(rows); /* registers are free now */
    for (int e = thread_id(); e < GROUPS * 128; e += THREADS)
        memory[LOWS + output_row(e) * MOST + e / 128 * COLUMNS + output_column(e)] =
            wide_sum(memory + SUMS, e);
    block_sync();
    if constexpr (TILES > 1) { /* its sums come where those of A x were */
        float again[GROUPS][2][4] = {};
        uint32_t a[HELD][8];
#pragma unroll
        for (int u = 0; u < HELD; u++) other.raw[u].expand(a[u]);
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            if (i * COLUMNS >= rows.count) break;
#pragma unroll
            for (int u = 0; u < HELD; u++) {
                if (u >= MINE || mine + u >= UNITS) continue;
                uint32_t b[4] = {v[i][u].x, v[i][u].y, v[i][u].z, v[i][u].w};
                mma_f16(again[i][0], a[u], b);
                mma_f16(again[i][1], a[u] + 4, b + 2);
            }
        }
        wide_put(memory + SUMS, again);
    }
    wide_end(rows, memory, memory, number, 0, HALVES, end);
    if constexpr (TILES > 1) {
        block_sync();
        wide_end(rows, memory + SUMS, memory, number + 1, 1, HALVES, end);
    }
}

#define WIDE(name) CAIRN_KERNEL(name, THREADS, 1, step_params)

/* Of a norm's product: its inputs, and their sums of squares. */
#define NORMED(hidden, sums)                                                                        \
    [&](const wide_rows &rows) {                                                                    \
        return (const uint8_t *)region(p, 0, 0) + hidden + (int64_t)rows.first * HIDDEN * 2;        \
    },                                                                                              \
    [&](const wide_rows &rows) {                                                                    \
        return (const float *)(region(p, 0, 0) + sums) + (int64_t)rows.first * SQUARES;             \
    }

WIDE(wide_qkv) {
    const int tile = block_id(), part = qkv_part(tile);
    qkv_place places[ENDS];
    uint16_t *cache = load_constant_early(p.kv + p.layer);
    wide_product<PACK_Q, HIDDEN, 1, false>(
        p, p.qkv, part * A_HIDDEN, 0, tile, NORMED(HIDDEN_AT, SQUARES_AT),
        [&](const wide_rows &rows) {
#pragma unroll
            for (int i = 0; i < ENDS; i++) {
                const int e = thread_id() + i * ENDERS;
                if (e < GROUPS * 128)
                    places[i].find(p, rows.group(e / 128), tile, output_row(e), output_column(e));
            }
        },
        [](const wide_rows &) {},
        [&](row_window window, int i, const output &o, const float *factors) {
            qkv_output<true> out{p, window, places[i], region(p, 0, 0), p.layer, cache};
            out(o, factors);
        });
}

/* residual += W input + what is gained. */
template <int FORMAT, int INPUTS>
CAIRN_INLINE void wide_residual(const step_params &p, const uint8_t *weights, int64_t a_at, int b_at,
                                int64_t input_at, const float *weight, int64_t hidden_at,
                                int64_t squares_at) {
    const int tile = block_id(), n = tile * 16 + output_row(thread_id());
    uint8_t *at = region(p, 0, 0);
    float held = 0.0f, before[ENDS] = {}; /* the residual stream: asked for with the inputs */
    wide_product<FORMAT, INPUTS, 1, false>(
        p, weights, a_at, b_at, tile,
        [&](const wide_rows &rows) { return at + input_at + (int64_t)rows.first * INPUTS * 2; },
        [](const wide_rows &) { return (const float *)nullptr; },
        [&](const wide_rows &) { held = load_constant_early(weight + n); },
        [&](const wide_rows &rows) {
#pragma unroll
            for (int i = 0; i < ENDS; i++) {
                const int e = thread_id() + i * ENDERS, row = e / 128 * COLUMNS + output_column(e);
                if (thread_id() < ENDERS && row < rows.count)
                    before[i] = load_volatile(residual_of(p) + (int64_t)(rows.first + row) * HIDDEN + n);
            }
        },
        [&](row_window window, int i, const output &o, const float *) {
            const hidden_output out{p, window, weight, at + hidden_at, at + squares_at};
            const float x = before[i] + o.value;
            out.hand_on(o.tile, o.row, o.column, x, held);
            if (o.column < window.count)
                residual_of(p)[(int64_t)(window.first + o.column) * HIDDEN + n] = x;
        });
}

WIDE(wide_project) {
    wide_residual<CAIRN_PACK_O, ATTENDED>(p, p.o, A_O, B_O, ATTENDED_AT,
                                          p.norms + (int64_t)(2 * p.layer + 1) * HIDDEN, MIDDLE_AT,
                                          MIDDLE_SQUARES_AT);
}

static_assert(FFN % (8 * GATE_TILES) == 0, "wide: tiles of gate_up");
WIDE(wide_gate_up) {
    wide_product<CAIRN_PACK_GATE_UP, HIDDEN, GATE_TILES, true>(
        p, p.gate_up, A_GATE, B_GATE, block_id() * GATE_TILES, NORMED(MIDDLE_AT, MIDDLE_SQUARES_AT),
        [](const wide_rows &) {}, [](const wide_rows &) {},
        [&](row_window window, int, const output &o, const float *factors) {
            swiglu_output<> out{window.count,
                              region(p, 0, 0) + FFN_AT + (int64_t)window.first * FFN * 2, p,
                              window.first};
            out(o, factors);
        });
}

WIDE(wide_down) {
    wide_residual<CAIRN_PACK_DOWN, FFN>(p, p.down, A_DOWN, B_DOWN, FFN_AT,
                                        p.norms + (int64_t)(2 * p.layer + 2) * HIDDEN, HIDDEN_AT,
                                        SQUARES_AT);
}

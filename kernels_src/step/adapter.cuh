/* What rows' adapters add to a product: y += B (A x). Of any adapter step/adapter.cu leaves A x in p.low
 * before the product's kernel, whose epilogue adds the rest in f32, term by term; of one that drafts, with
 * few inner values, step/wide.cu and the flow kernel make it with the product. Without the constant
 * STEP_EXTRA_ADAPTERS nothing of it is there. A row's results depend on that row alone. */
#ifndef CAIRN_ADAPTER_CUH
#define CAIRN_ADAPTER_CUH

#include "step/product.cuh"

constexpr bool ADAPTERS = (CAIRN_EXTRAS & STEP_EXTRA_ADAPTERS) != 0 && !FLOW;

/* ---- by a tile of the product more ---- */

/* What a gated adapter of rank LOW at most adds to a layer (runtime/forward/cuda_draft.c): A as tiles of
 * the products, of gate and up in one, in bytes; then B, LOW values for each output in the order of the
 * products' tiles. */
constexpr int LOW = STEP_WIDE_RANK;
constexpr int64_t A_HIDDEN = HIDDEN * 32, A_O = 3 * A_HIDDEN, A_GATE = A_O + ATTENDED * 32;
constexpr int64_t A_DOWN = A_GATE + A_HIDDEN, A_LAYER = A_DOWN + FFN * 32;
constexpr int B_O = QKV, B_GATE = B_O + HIDDEN, B_DOWN = B_GATE + 2 * FFN, B_LAYER = B_DOWN + HIDDEN;
constexpr int K_TILE = HEADS * HEAD_DIM / 16, KV_TILES = KV_HEADS * HEAD_DIM / 16;
constexpr int V_TILE = K_TILE + KV_TILES;
/* Which of q, k and v a tile of these is of. */
CAIRN_INLINE int qkv_part(int tile) { return tile < K_TILE ? 0 : tile < V_TILE ? 1 : 2; }
constexpr int64_t LOW_BYTES = A_LAYER + B_LAYER * LOW * 4;
CAIRN_INLINE const uint8_t *low_layer(const step_params &p, int layer) {
    return p.low_tiles + layer * LOW_BYTES;
}

/* A unit of such a tile; where rows 8 to 15 are another product's they count too, else they are zero. */
template <bool HALVES> struct low_unit {
    u32x4 row[HALVES ? 2 : 1];

    template <int> CAIRN_MEMBER void load(const uint8_t *tile, int number) {
        const uint8_t *unit = tile + number * packed<PACK_16>::UNIT_BYTES;
        row[0] = load_constant_early((const u32x4 *)unit + lane_id());
        if (HALVES) row[HALVES ? 1 : 0] = load_constant_early((const u32x4 *)(unit + 512) + lane_id());
    }
    CAIRN_MEMBER void expand(uint32_t *a) const {
        const u32x4 more = HALVES ? row[HALVES ? 1 : 0] : u32x4{};
        a[0] = row[0].x, a[2] = row[0].y, a[4] = row[0].z, a[6] = row[0].w;
        a[1] = more.x, a[3] = more.y, a[5] = more.z, a[7] = more.w;
    }
};

/* In the flow kernel: each block makes A x anew, a tile beside its own, and adds B (A x) to what its rows
 * with an adapter sum up to, to the bits of step/wide.cu. PRODUCT: STEP_LOW_, the first of a kernel. */
template <int PRODUCT> struct flow_low {
    static constexpr bool ADDS = true, HALVES = PRODUCT == STEP_LOW_GATE;
    typedef low_unit<HALVES> unit;
    const uint8_t *at; /* of the layer */

    CAIRN_MEMBER const uint8_t *tile(int number) const {
        const int part = qkv_part(number);
        return at + (PRODUCT == STEP_LOW_Q      ? part * A_HIDDEN
                     : PRODUCT == STEP_LOW_O    ? A_O
                     : PRODUCT == STEP_LOW_GATE ? A_GATE
                                                : A_DOWN);
    }
    /* B of this thread's output of the tiles from `number` on. */
    CAIRN_MEMBER void fetch(int number, float *gain) const {
        constexpr int FIRST = PRODUCT == STEP_LOW_Q      ? 0
                              : PRODUCT == STEP_LOW_O    ? B_O
                              : PRODUCT == STEP_LOW_GATE ? B_GATE
                                                         : B_DOWN;
        const int n = (number + thread_id() / 128) * 16 + output_row(thread_id());
        const f32x4 *from = (const f32x4 *)(at + A_LAYER) + (int64_t)min_of(FIRST + n, B_LAYER - 1) * 2;
        const f32x4 low = load_constant_early(from), high = load_constant_early(from + 1);
        gain[0] = low.x, gain[1] = low.y, gain[2] = low.z, gain[3] = low.w;
        gain[4] = high.x, gain[5] = high.y, gain[6] = high.z, gain[7] = high.w;
    }
    /* own: this lane's value of A x, of all inner values and both columns one in the warp's lanes. */
    CAIRN_MEMBER float added(const output &o, const float (&gain)[LOW], bool gains, float own) const {
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < LOW; k++)
            sum = fma_f32(gain[k], shuffle(own, k * 4 + (HALVES ? o.row / 8 * 2 : 0) + o.column % 2), sum);
        return gains ? o.value + sum : o.value;
    }
};
template <int PRODUCT> using stage_low =
    pick<FLOW && (CAIRN_EXTRAS & STEP_EXTRA_ADAPTERS) != 0, flow_low<PRODUCT>, no_low>;

/* ---- before the product ---- */

/* What the adapter in a slot has for the products of a layer. */
CAIRN_INLINE const step_pair *pairs_of(const step_params &p, int slot, int layer) {
    return p.adapters + ((int64_t)slot * LAYERS + layer) * STEP_LOW_PRODUCTS;
}

/* What a row's adapter has for a product of a layer, of the kernel's; a is NULL: nothing. */
CAIRN_INLINE step_pair pair_of(const step_params &p, int row, int product, int layer) {
    const int slot = p.input[STEP_HEAD + STEP_ADAPTER * p.capacity + row];
    if (slot < 0) return step_pair{nullptr, nullptr, 0, 0};
    return pairs_of(p, slot, layer)[product];
}
CAIRN_INLINE step_pair pair_of(const step_params &p, int row, int product) { return pair_of(p, row, product, p.layer); }

/* A row's inner values of the product that is `which` of its kernel. */
CAIRN_INLINE float *inner_values(const step_params &p, int64_t row, int which) {
    return p.low + (row * 3 + which) * STEP_LOW_MOST;
}

CAIRN_INLINE float add_four(float sum, f32x4 a, f32x4 b) {
    return fma_f32(a.w, b.w, fma_f32(a.z, b.z, fma_f32(a.y, b.y, fma_f32(a.x, b.x, sum))));
}

/* value, and what a pair adds to output n of the product that is `which` of its kernel. */
CAIRN_INLINE float added_low(const step_params &p, float value, const step_pair &pair, int row,
                             int which, int n) {
    if (!pair.a) return value;
    const float *low = inner_values(p, row, which);
    const float *b = pair.b + (int64_t)n * pair.rank;
    const int fours = pair.rank % 4 == 0 ? pair.rank : 0; /* then rows of B begin at 16 bytes */
    float sum = 0.0f;
    for (int k = 0; k < fours; k += 4)
        sum = add_four(sum, load_constant((const f32x4 *)(b + k)), *(const f32x4 *)(low + k));
    for (int k = fours; k < pair.rank; k++) sum = fma_f32(b[k], low[k], sum);
    return value + sum;
}

/* The same by the row's adapter. */
CAIRN_INLINE float adapted(const step_params &p, float value, int row, int product, int which,
                           int n) {
    if constexpr (!ADAPTERS) return value;
    return added_low(p, value, pair_of(p, row, product), row, which, n);
}

/* Of a slot of experts (step/families.cuh): step_low_slots leaves in the last third of its inner values
 * what its row's adapter has for its expert, of gate and up, or of down. */
CAIRN_INLINE step_pair *slot_pairs(const step_params &p, int64_t slot) {
    return (step_pair *)inner_values(p, slot, 2);
}

/* value, and what is added to output n of a slot's product `which`. */
CAIRN_INLINE float adapted_slot(const step_params &p, float value, int slot, int which, int n) {
    if constexpr (!ADAPTERS) return value;
    return added_low(p, value, slot_pairs(p, slot)[which], slot, which, n);
}

/* The same of output n of q, k and v, one behind the other. */
CAIRN_INLINE float adapted_qkv(const step_params &p, float value, int row, int n) {
    constexpr int K = HEADS * HEAD_DIM, V = K + KV_HEADS * HEAD_DIM;
    const int part = n < K ? STEP_LOW_Q : n < V ? STEP_LOW_K : STEP_LOW_V;
    return adapted(p, value, row, part, part, n - (n < K ? 0 : n < V ? K : V));
}

#endif

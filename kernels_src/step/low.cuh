/* What an adapter that drafts adds to a product, made with it by a tile more: y += B (A x) of few inner values. Of any
 * other adapter see step/adapter.cuh. */
#ifndef CAIRN_STEP_LOW_CUH
#define CAIRN_STEP_LOW_CUH

#include "step/product.cuh"
#include "step/weights.cuh"

/* What a gated adapter of rank LOW at most adds to a layer (runtime/forward/cuda_draft.c): A as tiles of
 * the products, of gate and up in one, in bytes; then B, LOW values for each output in the order of the
 * products' tiles. */
constexpr int LOW = STEP_WIDE_RANK;
constexpr int64_t A_HIDDEN = HIDDEN * 32, A_O = 3 * A_HIDDEN, A_GATE = A_O + ATTENDED * 32;
constexpr int64_t A_DOWN = A_GATE + A_HIDDEN, A_LAYER = A_DOWN + FFN * 32;
constexpr int B_O = QKV, B_GATE = B_O + HIDDEN, B_DOWN = B_GATE + 2 * FFN, B_LAYER = B_DOWN + HIDDEN;
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

#endif

/* What rows' adapters add to a product: y += B (A x). Of any adapter step/adapter.cu leaves A x in p.low
 * before the product's kernel, whose epilogue adds the rest in f32, term by term; of one that drafts, with
 * few inner values, step/wide.cu and the flow kernel make it with the product (step/low.cuh). Without the
 * constant STEP_EXTRA_ADAPTERS nothing of it is there. A row's results depend on that row alone. */
#ifndef CAIRN_ADAPTER_CUH
#define CAIRN_ADAPTER_CUH

#include "step/step.cuh"

constexpr bool ADAPTERS = (CAIRN_EXTRAS & STEP_EXTRA_ADAPTERS) != 0 && !FLOW;

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

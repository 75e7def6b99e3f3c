/* What rows' adapters add to a product: y += B (A x). step/adapter.cu leaves A x in p.low before the
 * product's kernel, whose epilogue adds the rest in f32, term by term; without the constant
 * STEP_EXTRA_ADAPTERS nothing of it is there. A row's results depend on that row alone. */
#ifndef CAIRN_ADAPTER_CUH
#define CAIRN_ADAPTER_CUH

#include "step/step.cuh"

constexpr bool ADAPTERS = (CAIRN_EXTRAS & STEP_EXTRA_ADAPTERS) != 0;

/* What a row's adapter has for a product of the kernel's layer; a is NULL: nothing. */
CAIRN_INLINE step_pair pair_of(const step_params &p, int row, int product) {
    const int slot = p.input[STEP_HEAD + STEP_ADAPTER * p.capacity + row];
    if (slot < 0) return step_pair{nullptr, nullptr, 0, 0};
    return p.adapters[((int64_t)slot * LAYERS + p.layer) * STEP_LOW_PRODUCTS + product];
}

/* value, and what a pair adds to output n of the product that is `which` of its kernel. */
CAIRN_INLINE float added_low(const step_params &p, float value, const step_pair &pair, int row,
                             int which, int n) {
    if (!pair.a) return value;
    const float *low = p.low + ((int64_t)row * 3 + which) * STEP_LOW_MOST;
    const float *b = pair.b + (int64_t)n * pair.rank;
    float sum = 0.0f;
    for (int k = 0; k < pair.rank; k++) sum = fma_f32(b[k], low[k], sum);
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
    return (step_pair *)(p.low + (slot * 3 + 2) * STEP_LOW_MOST);
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

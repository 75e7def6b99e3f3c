/* What the stages of a decoder step share: the model's shape, the hand-over between blocks, and where a kernel's inputs
 * are.
 *
 * Constants (the JIT's): CAIRN_LAYERS, CAIRN_HIDDEN, CAIRN_HEADS, CAIRN_KV_HEADS, CAIRN_HEAD_DIM
 * (a multiple of 16 up to 256), CAIRN_FFN, CAIRN_VOCAB, CAIRN_CONTEXT, CAIRN_PAGE_SIZE,
 * CAIRN_PACK_{QKV,O,GATE_UP,DOWN, HEAD,EMBED} (a PACK_ each), CAIRN_ROWS and CAIRN_PARTS
 * (capacity of the exchange: rows, and parts of attention, a row's run each), CAIRN_WARPS (8 to
 * 32, of a block), CAIRN_MEETING_TILES (2 or 4: tiles of a product at a time at most), CAIRN_BLOCKS
 * (of the flow kernel; 0 for the stage kernels) and CAIRN_NARROW (see step/step.cu).
 * CAIRN_EXTRAS: STEP_EXTRA_ bits, of what layers have beyond plain llama's (the stages alone).
 * CAIRN_ABILITIES: an ATTEND_CACHE_, f16 where it is not given; of others STEP_EXTRA_HEADS writes the cache.
 * CAIRN_PRODUCTS: which kernels of a program are built, of qkv (bit 0), o, gate_up, down, all
 * others (bit 4), in and out of a convolution, up and down of experts; the last four have packs
 * CAIRN_PACK_{CONV_IN,CONV_OUT,EXPERT_UP,EXPERT_DOWN}, CAIRN_TAPS and CAIRN_RING (inputs that a
 * sequence keeps), CAIRN_EXPERTS and CAIRN_USED (of a row). CAIRN_BANDS: of dense/product.cuh. hidden and ffn
 * are multiples of 32, so is heads * head_dim. */
#ifndef CAIRN_STEP_CUH
#define CAIRN_STEP_CUH

#ifndef CAIRN_ABILITIES
#define CAIRN_ABILITIES 0
#endif
#ifndef CAIRN_SPARSE
#define CAIRN_SPARSE 0
#endif
#include "attention/shape.cuh"
#include "attention/elements.cuh"
#include "abi/step.h"

#ifndef CAIRN_PRODUCTS
#define CAIRN_PRODUCTS 31 /* all kernels of a program */
#endif

constexpr int LAYERS = CAIRN_LAYERS, HIDDEN = CAIRN_HIDDEN, HEADS = CAIRN_HEADS;
constexpr int KV_HEADS = CAIRN_KV_HEADS, FFN = CAIRN_FFN;
constexpr int VOCAB = CAIRN_VOCAB, ROWS = CAIRN_ROWS;
constexpr int WARPS = CAIRN_WARPS, THREADS = WARPS * WARP;
constexpr bool FLOW = CAIRN_BLOCKS > 0;

#ifndef CAIRN_EXTRAS
#define CAIRN_EXTRAS 0
#endif
constexpr bool BY_HEAD = (CAIRN_EXTRAS & STEP_EXTRA_HEADS) != 0;
constexpr bool STILL = (CAIRN_EXTRAS & STEP_EXTRA_STILL) != 0;
constexpr bool POST_NORMS = (CAIRN_EXTRAS & STEP_EXTRA_POST) != 0;
constexpr bool GEGLU = (CAIRN_EXTRAS & STEP_EXTRA_GEGLU) != 0;
constexpr bool EMBED_SCALED = (CAIRN_EXTRAS & STEP_EXTRA_EMBED) != 0;
constexpr bool OWN_SCALE = (CAIRN_EXTRAS & STEP_EXTRA_SCALE) != 0;
constexpr bool WINDOWS = (CAIRN_EXTRAS & STEP_EXTRA_WINDOW) != 0;
constexpr bool CONVOLVES = (CAIRN_EXTRAS & STEP_EXTRA_CONV) != 0;
constexpr bool CHOOSES = (CAIRN_EXTRAS & STEP_EXTRA_EXPERTS) != 0;
constexpr bool DRAFTS = (CAIRN_EXTRAS & STEP_EXTRA_DRAFTS) != 0;
static_assert(!FLOW || (CAIRN_EXTRAS & ~(STEP_EXTRA_ADAPTERS | STEP_EXTRA_DRAFTS)) == 0,
              "step: the flow kernel is plain");
static_assert(CACHE_KIND == ATTEND_CACHE_F16 || BY_HEAD, "step: who writes the cache");

constexpr int GROUP = HEADS / KV_HEADS;               /* query heads of one KV head */
/* Shares of a group that attention takes at a time, of up to SHARE heads: share s of KV head k is
 * number k SHARES + s. */
constexpr int SHARES = (GROUP + 15) / 16, SHARE = (GROUP + SHARES - 1) / SHARES;
constexpr int ALL_SHARES = KV_HEADS * SHARES;
static_assert(!FLOW || (SHARES == 1 && HEAD_DIM % 64 == 0), "step: the flow kernel's heads");
CAIRN_INLINE int share_kv_head(int share) { return KV_HEADS > 1 || SHARES == 1 ? share / SHARES : 0; }
CAIRN_INLINE int share_first(int share) { return (share - share_kv_head(share) * SHARES) * SHARE; }
CAIRN_INLINE int first_head(int share) { return share_kv_head(share) * GROUP + share_first(share); }
CAIRN_INLINE int share_heads(int share) {
    return GROUP % SHARES ? min_of(SHARE, GROUP - share_first(share)) : SHARE;
}
constexpr int ATTENDED = HEADS * HEAD_DIM;            /* values that attention hands on */
constexpr int QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM;

/* ---- the exchange: what a stage hands to the next, and how a block waits for it ----
 * One region a layer in each half; the flow kernel alternates between halves from step to step, and
 * finds every word of its half EMPTY. A word is its own flag: whoever needs it reads it until it is
 * not EMPTY, so a hand-over costs one store and one load, and orders nothing else. No value equals
 * EMPTY: it is a NaN that arithmetic does not produce (float), or two of them (f16).
 * The stage kernels use one region for all layers; there the kernel boundary orders everything.
 *
 * A hidden state is handed on as f16(x weight scale), the operand of the next product, and as sums
 * of x^2 over 16 outputs, from which the reader takes the norm. Many blocks wait for the same few
 * lines, so that a step of few rows writes several copies: slot = copy * rows + row. */
constexpr uint32_t EMPTY = 0xffffffffu;

constexpr int SLOTS = FLOW ? STEP_FLOW_SLOTS : ROWS, SQUARES = HIDDEN / 16;
CAIRN_INLINE constexpr int64_t residual_bytes(int64_t rows) { return rows * HIDDEN * 4; }
constexpr int64_t RESIDUAL_BYTES = residual_bytes(ROWS);       /* [row, hidden] f32, before all */

constexpr int64_t HIDDEN_AT = 0;                                        /* [slot, hidden] f16 */
CAIRN_INLINE constexpr int64_t squares_at(int64_t slots) { return HIDDEN_AT + slots * HIDDEN * 2; }
constexpr int64_t SQUARES_AT = squares_at(SLOTS);                       /* [slot, SQUARES] f32 */
constexpr int64_t MIDDLE_AT = SQUARES_AT + round_up(SLOTS * SQUARES * 4, 128);
                                                                /* the same, after attention */
constexpr int64_t MIDDLE_SQUARES_AT = MIDDLE_AT + SLOTS * HIDDEN * 2;
constexpr int64_t QKV_AT = MIDDLE_SQUARES_AT + round_up(SLOTS * SQUARES * 4, 128);
                                                                /* [row, q k v] f16 */
constexpr int64_t FFN_AT = QKV_AT + (int64_t)ROWS * QKV * 2;            /* [row, ffn] f16 */
constexpr int64_t ATTENDED_AT = FFN_AT + (int64_t)ROWS * FFN * 2;       /* [row, heads dim] f16 */
constexpr int64_t SUMS_AT =  /* or of a convolution [row, hidden] f16 */
    ATTENDED_AT + (int64_t)ROWS * (CONVOLVES ? max_of(ATTENDED, HIDDEN) : ATTENDED) * 2;
                                                                /* [part, head] (m, l) */
constexpr int64_t PARTS_AT = SUMS_AT + (int64_t)CAIRN_PARTS * HEADS * 8;
                                                                /* [part, head, dim] f32 */
constexpr int64_t SUMMED_AT = PARTS_AT + (int64_t)CAIRN_PARTS * ATTENDED * 4;
                           /* [row, q k v or hidden] f32: products that step/extras.cu goes on with;
                              or [row, 3 hidden], step/conv.cu */
constexpr int SUMMED = max_of(BY_HEAD || POST_NORMS ? max_of(QKV, HIDDEN) : 0,
                              CONVOLVES ? 3 * HIDDEN : 0);
constexpr int64_t EXPERTS_AT = (SUMMED_AT + (int64_t)ROWS * SUMMED * 4 + 127) / 128 * 128;
                                                                /* see step/families.cuh */
#ifdef CAIRN_EXPERTS
constexpr int EXPERTS = CAIRN_EXPERTS, USED = CAIRN_USED;
#else
constexpr int EXPERTS = 1, USED = 1;
#endif
constexpr int64_t EXPERT_SLOTS = (int64_t)ROWS * USED; /* a row with one of its experts each */
constexpr int EXPERT_WINDOWS = (int)min_of((int64_t)EXPERTS, EXPERT_SLOTS) + (int)EXPERT_SLOTS / 8;
constexpr int64_t EXPERTS_BYTES =
    CHOOSES ? EXPERT_SLOTS * (HIDDEN * 6 + FFN * 2 + 12) + (EXPERT_WINDOWS * 4 + 4) * 4 : 0;
constexpr int64_t REGION_BYTES = (EXPERTS_AT + EXPERTS_BYTES + 127) / 128 * 128;
constexpr int64_t HALF_BYTES = REGION_BYTES * (LAYERS + 1);

CAIRN_INLINE float *residual_of(const step_params &p) { return (float *)p.exchange; }
CAIRN_INLINE uint8_t *region(const step_params &p, uint32_t epoch, int layer) {
    uint8_t *first = p.exchange + RESIDUAL_BYTES;
    return FLOW ? first + (epoch & 1) * HALF_BYTES + layer * REGION_BYTES : first;
}
/* Which part a row's run of chunks is. The stages, whose rows are many, leave no room for absent
 * ones: few rows may have many runs, many rows few. */
CAIRN_INLINE int64_t part_of(const step_params &p, int run, int row) {
    return (int64_t)run * (FLOW ? ROWS : p.input[STEP_ROWS]) + row;
}
CAIRN_INLINE int copies_of(int rows) {
    return !FLOW || rows > SLOTS / 2 ? 1 : rows > SLOTS / 4 ? 2 : rows > SLOTS / 8 ? 4 : 8;
}

CAIRN_INLINE bool full(u32x4 v) {
    return v.x != EMPTY && v.y != EMPTY && v.z != EMPTY && v.w != EMPTY;
}

constexpr bool RESTS = FLOW && STEP_FLOW_REST_NS > 0 && !CAIRN_SPARSE; /* there registers are scarce */

/* A wait that cannot end (it never happens unless blocks are missing) is given up after about a
 * second, and the fault word makes all other waits give up. */
struct patience {
    uint32_t polls;
    int32_t *fault;
    const int32_t *input;

    CAIRN_MEMBER explicit patience(const step_params &p) : polls(0), fault(p.fault), input(p.input) {}
    CAIRN_MEMBER bool more() {
        if (RESTS && input[STEP_ROWS] > 1) rest_ns(STEP_FLOW_REST_NS);
        if ((++polls & 0xffff) != 0) return true;
        if (polls >= 0x200000u) store_relaxed((uint32_t *)fault, 1u);
        return load_relaxed((const uint32_t *)fault) == 0;
    }
};

/* The first `wanted` of N vectors of 16 bytes, `stride` bytes apart, once they are full. */
template <int N>
CAIRN_INLINE void receive(const step_params &p, u32x4 *v, const void *from, int stride = 16,
                          int wanted = N) {
    patience wait(p);
    bool complete;
    do {
        complete = true;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (i < wanted) v[i] = load_relaxed16((const uint8_t *)from + i * stride);
#pragma unroll
        for (int i = 0; i < N; i++) complete = complete && full(v[i]);
    } while (FLOW && !complete && wait.more());
}

CAIRN_INLINE void send(float *to, float v) {
    uint32_t bits = as_u32(v);
    store_relaxed((uint32_t *)to, bits == EMPTY ? 0x7fffffffu : bits);
}
CAIRN_INLINE void send(uint32_t *to, uint32_t two_f16) {
    store_relaxed(to, two_f16 == EMPTY ? 0x7fff7fffu : two_f16);
}

CAIRN_INLINE void send(float *to, f32x4 v) {
    u32x4 bits = {as_u32(v.x), as_u32(v.y), as_u32(v.z), as_u32(v.w)};
    bits.x = bits.x == EMPTY ? 0x7fffffffu : bits.x, bits.y = bits.y == EMPTY ? 0x7fffffffu : bits.y;
    bits.z = bits.z == EMPTY ? 0x7fffffffu : bits.z, bits.w = bits.w == EMPTY ? 0x7fffffffu : bits.w;
    store_relaxed16(to, bits);
}

CAIRN_INLINE void send(void *to, u32x4 eight_f16) {
    u32x4 v = eight_f16;
    v.x = v.x == EMPTY ? 0x7fff7fffu : v.x, v.y = v.y == EMPTY ? 0x7fff7fffu : v.y;
    v.z = v.z == EMPTY ? 0x7fff7fffu : v.z, v.w = v.w == EMPTY ? 0x7fff7fffu : v.w;
    store_relaxed16(to, v);
}

/* ---- a kernel's inputs ---- */

/* Forms of a streamed product that a program has: for many rows, and for a row alone, whose blocks take
 * all parts of K, though they be spread of many rows. CAIRN_ALONE: 0 the first, 1 the second; without
 * it both. */
#ifdef CAIRN_ALONE
constexpr bool HAS_ALONE = CAIRN_ALONE, HAS_MANY = !HAS_ALONE;
#else
constexpr bool HAS_ALONE = true, HAS_MANY = true;
#endif

CAIRN_INLINE const int32_t *input_array(const step_params &p, int which) {
    return p.input + STEP_HEAD + which * p.capacity;
}

/* In the stage kernels: the kernel before has ended, the next may start. EARLY: that may already while
 * this one waits, so that of a row alone its weights are under way; before it waits itself it may then
 * read nothing that kernels of this step write, however far back. */
CAIRN_INLINE void start_input(bool early = HAS_ALONE && !HAS_MANY) {
    if (FLOW) return;
    if (early) grid_launch_dependents();
    grid_dependency_wait();
    if (!early) grid_launch_dependents();
}

/* Where input k lies: within each 32 the eight that a lane has of packed weights are spread as the
 * operands of two k-steps have them. An even k and the next lie together. */
CAIRN_INLINE int operand_at(int k) {
    return k / 32 * 32 + k % 8 / 4 * 16 + k % 4 / 2 * 8 + k / 8 % 4 * 2 + k % 2;
}

/* The same in kernels that serve steps, whose products take inputs as they come, and prompts. */
CAIRN_INLINE int input_at(int k) { return CAIRN_PARTS == 0 ? operand_at(k) : k; }

#endif

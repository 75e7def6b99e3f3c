/* What the stages of a decoder step share: the model's shape, the hand-over between blocks, packed
 * weights as mma operands, and the product of 16 output rows with up to eight tokens.
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
#include "attention/kept.cuh"
#include "abi/step.h"
#include "dense/product.cuh"

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

constexpr int COLUMNS = PRODUCT_COLUMNS; /* tokens of one product */

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
constexpr int64_t RESIDUAL_BYTES = (int64_t)ROWS * HIDDEN * 4; /* [row, hidden] f32, before all */

constexpr int64_t HIDDEN_AT = 0;                                        /* [slot, hidden] f16 */
constexpr int64_t SQUARES_AT = HIDDEN_AT + SLOTS * HIDDEN * 2;          /* [slot, SQUARES] f32 */
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

/* ---- the product ----
 * A block computes TILES neighbouring tiles [16 rows of W] x [8 tokens] at a time. A warp takes
 * consecutive units; the partial sums meet in shared memory and are added as a fixed tree, so a
 * value depends on nothing but its weights and its token. The first units are loaded and expanded
 * before the input is awaited, those of the next tiles before the sums meet. Rounds pass one
 * block_sync each and use the two halves of the meeting place in turn, so that one is enough. */

constexpr int MEETING_TILES = CAIRN_MEETING_TILES; /* the most tiles at a time */
constexpr int MEETING_FLOATS = WARPS * MEETING_TILES * 128 + COLUMNS;
constexpr int MEETING_BYTES = 2 * MEETING_FLOATS * 4;

/* The shared memory, which half of the meeting place is next, and whether this thread's outputs gain what
 * an adapter adds (step/adapter.cuh). */
struct workspace {
    unsigned char *keys;
    float *meeting;
    int half;
    bool gains;
};

/* Threads of an epilogue: each keeps to one column. */
constexpr int ENDERS = WARPS / 4 * 128;

template <int N> CAIRN_INLINE float tree_sum(const float *at, int stride) {
    float v[N];
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = at[i * stride];
#pragma unroll
    for (int step = 1; step < N; step *= 2)
#pragma unroll
        for (int i = 0; i + step < N; i += 2 * step) v[i] = add_f32(v[i], v[i + step]);
    return v[0];
}

/* Units of one warp held at once, so that registers suffice: a divisor of all it has. */
CAIRN_INLINE constexpr int BATCH(int mine, int tiles, int format) {
    int wide = !FLOW && format == PACK_16 ? 2 : 4;
    int most = tiles >= 4 ? 8 / tiles : (mine <= 6 ? wide + wide / 2 : wide) / tiles;
    most = most ? most : 1;
    if (most > mine) most = mine;
    while (mine % most) most--;
    return most;
}

template <int FORMAT, int INPUTS, int TILES, int HELD>
CAIRN_INLINE void load_batch(packed<FORMAT> (&raw)[TILES][HELD], const uint8_t *weights, int base,
                             int tiles, int unit) {
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        int tile = min_of(base * TILES + i, tiles - 1);
        const uint8_t *from = weights + tile * tile_bytes<FORMAT, INPUTS>();
#pragma unroll
        for (int u = 0; u < HELD; u++)
            raw[i][u].template load<1>(from, min_of(unit + u, INPUTS / 32 - 1));
    }
}

/* Nothing is added to a product. */
struct no_low {
    static constexpr bool ADDS = false;
    typedef int unit;
};

/* Input: fetch<N>(first unit, b[N][4]) waits for N units (those beyond the last are not used);
 * before_meeting(float[COLUMNS]) may leave a factor per column in shared memory. Epilogue: called
 * by whole warps with each output whose tile exists, columns beyond the rows included (for
 * shuffles), and that memory. ONCE: there is one round at most. Low: what is added (flow_low). */
template <int FORMAT, int INPUTS, int TILES, bool ONCE, class Input, class Epilogue, class Low>
CAIRN_INLINE void multiply(const uint8_t *weights, int first, int step, int tiles, workspace &work,
                           Input &input, Epilogue &epilogue, const Low &add) {
    constexpr int UNITS = INPUTS / 32, MINE = ceil_div(UNITS, WARPS);
    constexpr int HELD = BATCH(MINE, TILES, FORMAT);
    static_assert(TILES <= MEETING_TILES, "multiply: too many tiles at a time");
    constexpr bool LATE = TILES >= 4; /* expand when needed: not enough registers */
    const int mine = warp_id() * MINE;
    packed<FORMAT> raw[TILES][HELD];
    typename Low::unit low[Low::ADDS ? HELD : 1];
    const auto load_low = [&](const uint8_t *tile, int unit) {
        if constexpr (Low::ADDS)
#pragma unroll
            for (int u = 0; u < HELD; u++) low[u].template load<1>(tile, min_of(unit + u, UNITS - 1));
    };
    uint32_t b[HELD][4];
    load_batch<FORMAT, INPUTS>(raw, weights, first, tiles, mine);
#pragma unroll 1
    for (int base = first; base * TILES < tiles; base += step) {
        float sum[TILES][2][4] = {}, more[2][4] = {}, gain[8];
        if constexpr (Low::ADDS) {
            load_low(add.tile(base * TILES), mine);
            add.fetch(base * TILES, gain);
        }
#pragma unroll 1
        for (int batch = 0; batch < MINE; batch += HELD) {
            uint32_t a[LATE ? 1 : TILES][HELD][8];
#pragma unroll
            for (int i = 0; i < TILES && !LATE; i++)
#pragma unroll
                for (int u = 0; u < HELD; u++) raw[i][u].expand(a[i][u]);
            if (batch == 0 && (ONCE || base == first)) input.await();
            if (ONCE || MINE > HELD || base == first) input.fetch(mine + batch, b);
            if (batch + HELD < MINE && !LATE)
                load_batch<FORMAT, INPUTS>(raw, weights, base, tiles, mine + batch + HELD);
            else if (!ONCE && !LATE && (base + step) * TILES < tiles)
                load_batch<FORMAT, INPUTS>(raw, weights, base + step, tiles, mine);
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                uint32_t(&here)[HELD][8] = a[LATE ? 0 : i];
#pragma unroll
                for (int u = 0; u < HELD; u++) {
                    if (LATE) raw[i][u].expand(here[u]);
                    if (MINE * WARPS != UNITS && mine + batch + u >= UNITS) continue;
                    mma_f16(sum[i][0], here[u], b[u]);
                    mma_f16(sum[i][1], here[u] + 4, b[u] + 2);
                }
            }
            if constexpr (Low::ADDS) {
#pragma unroll
                for (int u = 0; u < HELD; u++) {
                    uint32_t c[8];
                    low[u].expand(c);
                    if (MINE * WARPS != UNITS && mine + batch + u >= UNITS) continue;
                    mma_f16(more[0], c, b[u]);
                    mma_f16(more[1], c + 4, b[u] + 2);
                }
                if (batch + HELD < MINE) load_low(add.tile(base * TILES), mine + batch + HELD);
            }
            if (batch + HELD < MINE && LATE)
                load_batch<FORMAT, INPUTS>(raw, weights, base, tiles, mine + batch + HELD);
            else if (!ONCE && LATE && (base + step) * TILES < tiles)
                load_batch<FORMAT, INPUTS>(raw, weights, base + step, tiles, mine);
        }
        float *here = work.meeting + work.half * MEETING_FLOATS;
        work.half ^= 1;
#pragma unroll
        for (int i = 0; i < TILES; i++)
            *(f32x4 *)(here + (i * WARPS + warp_id()) * 128 + lane_id() * 4) =
                f32x4{sum[i][0][0] + sum[i][1][0], sum[i][0][1] + sum[i][1][1],
                      sum[i][0][2] + sum[i][1][2], sum[i][0][3] + sum[i][1][3]};
        if constexpr (Low::ADDS) {
            static_assert(TILES < MEETING_TILES, "multiply: where A x meets");
            *(f32x4 *)(here + (TILES * WARPS + warp_id()) * 128 + lane_id() * 4) =
                f32x4{more[0][0] + more[1][0], more[0][1] + more[1][1], more[0][2] + more[1][2],
                      more[0][3] + more[1][3]};
        }
        float *factors = here + WARPS * MEETING_TILES * 128;
        input.before_meeting(factors);
        block_sync();
#pragma unroll 1
        for (int e = thread_id(); e < TILES * 128 && thread_id() < ENDERS; e += ENDERS) {
            int i = e / 128;
            output out = {base * TILES + i, output_row(e), output_column(e), 0.0f};
            if (out.tile >= tiles) break;
            out.value = tree_sum<WARPS>(here + i * WARPS * 128 + output_at(e), 128);
            if constexpr (Low::ADDS)
                out.value = add.added(out, gain, work.gains,
                                      tree_sum<WARPS>(here + TILES * WARPS * 128 + output_at(e), 128));
            epilogue(out, factors);
        }
        if (ONCE) break;
    }
}

#endif

/* index/by_mma.cuh: keys and queries meet by mma: a warp keeps 32 keys in registers while the heads of rows pass by in
 * shared memory. A thread alone writes and reads its part of a tile, so that no barrier is among the tiles. The order
 * of d in the products is one in which a lane's bytes of a key are 16 in a row. */
#ifndef CAIRN_INDEX_BY_MMA_CUH
#define CAIRN_INDEX_BY_MMA_CUH

constexpr int AHEAD = STAGES; /* tiles on their way while one is used */
constexpr int ROWS_AT_ONCE = 1;
constexpr int STEPS = FP8 ? 4 : 8; /* of the sum over d in products */
constexpr int CHUNKS = 2 * STEPS;  /* of 16 bytes: a head of a query */
static_assert(PITCH == CHUNKS * 16 + 16, "a head's room in shared memory");

/* Where a chunk of a head lies among the staged queries; heads are counted through the rows. */
CAIRN_INLINE int chunk_at(int head, int chunk) { return head * PITCH + chunk * 16; }

CAIRN_INLINE uint32_t word_of(u32x4 v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Puts values 4 word .. + 3 of a head where the lanes that have these of a key want them. */
CAIRN_INLINE void stage_word(const staged &s, int head, int word, uint32_t four) {
    const int unit = word / 16 * 4 + word % 4, lane = word / 4 % 4;
    if constexpr (FP8) {
        *(uint32_t *)(s.q + chunk_at(head, unit) + 4 * lane) = four;
    } else {
        uint32_t *low = (uint32_t *)(s.q + chunk_at(head, 2 * unit) + 4 * lane);
        uint32_t *high = (uint32_t *)(s.q + chunk_at(head, 2 * unit + 1) + 4 * lane);
        *low = e4m3x2_to_f16x2((uint16_t)four);
        *high = e4m3x2_to_f16x2((uint16_t)(four >> 16));
    }
}

/* Nothing goes before the keys. */
CAIRN_INLINE void ask_rows(const index_logits_params &, const staged &, int, int) {}

/* Brings rows [first, first + count) and what they see of `keys` into shared memory; begins and ends with a barrier. */
CAIRN_INLINE void take_rows(const index_logits_params &p, const staged &s, int first, int count, range keys) {
    const int chunks = count * p.heads * (DIM / 16);
    block_sync();
#pragma unroll 4
    for (int i = thread_id(); i < chunks; i += block_threads()) {
        const u32x4 v = load_constant((const u32x4 *)p.q + (int64_t)first * p.heads * (DIM / 16) + i);
#pragma unroll
        for (int k = 0; k < 4; k++) stage_word(s, i / (DIM / 16), i % (DIM / 16) * 4 + k, word_of(v, k));
    }
    for (int i = thread_id(); i < count * p.heads; i += block_threads())
        s.weights[i] = p.weights[(int64_t)first * p.heads + i];
    take_windows(p, s, first, count, keys);
    block_sync();
}

/* A lane's copies of a warp's keys: of keys lane / 4 + 8 (i / 2) the bytes 16 (lane % 4) + 64 (i % 2) on, to where this
 * thread alone reads them. */
struct key_copies {
    CAIRN_METHOD int key(int i) { return lane_id() / 4 + i / 2 * 8; }
    CAIRN_METHOD int from() { return key(0) * DIM + lane_id() % 4 * 16; }
    CAIRN_METHOD int from_next(int i) { return i / 2 * 8 * DIM + i % 2 * 64; }
    CAIRN_METHOD shared_addr to(const staged &s, int stage, int i) {
        return shared_addr(s.tiles) + (uint32_t)(stage * TILE * DIM + thread_id() * 16) +
               (uint32_t)(i * TILE * 16);
    }
};

/* A lane's part of two matrices of 16 keys. */
struct held_keys {
    uint32_t a[2][STEPS][4];

    CAIRN_MEMBER void take(const staged &s, int stage) {
#pragma unroll
        for (int chunk = 0; chunk < 8; chunk++) { /* of keys lane / 4, and 8 further: a half of each */
            const u32x4 v = *(const u32x4 *)(s.tiles + stage * (TILE * DIM) + (chunk * TILE + thread_id()) * 16);
            const int m = chunk / 4, half = chunk / 2 % 2;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int unit = chunk % 2 * 4 + i;
                if constexpr (FP8) {
                    a[m][unit / 2][half + unit % 2 * 2] = word_of(v, i);
                } else {
                    a[m][unit][half] = e4m3x2_to_f16x2((uint16_t)word_of(v, i));
                    a[m][unit][half + 2] = e4m3x2_to_f16x2((uint16_t)(word_of(v, i) >> 16));
                }
            }
        }
    }
};

CAIRN_INLINE void multiply(float *d, const uint32_t *a, const uint32_t *b) {
#if CAIRN_ARCH >= 890
    if constexpr (FP8) {
        mma_e4m3(d, a, b);
        return;
    }
#endif
    mma_f16(d, a, b);
}

/* What 8 heads add to a lane's sums: of keys lane / 4 + 8 i, for two of the heads. */
CAIRN_INLINE void add_heads(const held_keys &k, shared_addr q, f32x2 weights, float *sums) {
    float d[2][4] = {};
#pragma unroll
    for (int i = 0; i < STEPS / 2; i++) {
        uint32_t b[4];
        load_matrix_x4(b, q + (uint32_t)(64 * i));
#pragma unroll
        for (int m = 0; m < 2; m++) {
            multiply(d[m], k.a[m][2 * i], b);
            multiply(d[m], k.a[m][2 * i + 1], b + 2);
        }
    }
#pragma unroll
    for (int m = 0; m < 2; m++) add_two(d[m], weights, sums + 2 * m);
}

/* What all heads of staged row i add for the keys of a tile. */
template <int ROWS> CAIRN_INLINE void add_rows(const staged &s, const held_keys &k, int i, float (*all)[4]) {
    static_assert(ROWS == ROWS_AT_ONCE, "registers");
    float *sums = all[0];
    const int lane = lane_id();
    shared_addr q = shared_addr(s.q + chunk_at(i * s.heads + lane % 8, lane / 8));
    const float *weights = s.weights + i * s.heads + lane % 4 * 2;
#pragma unroll 1 /* or the next heads' queries take registers that keys are in */
    for (int h = 0; h < s.heads; h += 8, q = q + (uint32_t)(8 * PITCH), weights += 8)
        add_heads(k, q, *(const f32x2 *)weights, sums);
}

#endif

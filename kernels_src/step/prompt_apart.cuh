/* The product of a prompt's block (step/prompt.cuh) with warps of their own for its operands, sm_90a alone:
 * CARRIERS warps bring 64 inputs of the block's tokens and expand 64 inputs of its 128 outputs' weights
 * into one of PLACES places in shared memory, both swizzled as wgmma reads them (device/mma.cuh), and tell
 * by barriers what is there; two groups of four warps have 64 outputs each and tell what is free. So
 * weights are expanded once for all tokens of the block, and nobody waits for all. Inputs are added up in the
 * order and by sixteens as by the warps that do both: a row's bits are the same. */
#ifndef CAIRN_PROMPT_APART_CUH
#define CAIRN_PROMPT_APART_CUH

#if CAIRN_WGMMA && CAIRN_PROMPT_CARRIERS
constexpr int APART_INPUTS = 64, APART_ROW = APART_INPUTS * 2;
#ifndef CAIRN_PROMPT_USERS_EXPAND
#define CAIRN_PROMPT_USERS_EXPAND 0
#endif
constexpr bool USERS_EXPAND = CAIRN_PROMPT_USERS_EXPAND != 0;
constexpr int APART_WEIGHTS = USERS_EXPAND ? 0 : 128 * APART_ROW, APART_TOKENS = TOKENS * APART_ROW;
constexpr int APART_STAGE = APART_WEIGHTS + APART_TOKENS, PLACES = step_apart_places(TOKENS) + (USERS_EXPAND && TOKENS == 256 ? 2 : 0);
constexpr int APART_HEADER = 128;
#ifndef CAIRN_PROMPT_CREW
#define CAIRN_PROMPT_CREW 2
#endif
constexpr int CREW = CAIRN_PROMPT_CREW; /* carriers that have a step together; groups take turns */
static_assert(PROMPT_WARPS == 8 && EACH == 1, "apart: two groups of four warps");
static_assert(step_apart_bytes(TOKENS) >= 1024 + APART_HEADER + PLACES * APART_STAGE, "apart: its shared memory");

/* A place and how often it came round; its barriers: ended when it is there, when it is free. */
struct apart_turn {
    int place;
    uint32_t round;

    CAIRN_MEMBER void next(int further = 1) {
        place += further;
        if (place >= PLACES) place -= PLACES, round ^= 1;
    }
    CAIRN_MEMBER shared_addr full() const { return shared_addr(shared_base()) + (uint32_t)(place * 8); }
    CAIRN_MEMBER shared_addr free() const { return full() + (uint32_t)(PLACES * 8); }
    CAIRN_MEMBER unsigned char *memory() const {
        const uint32_t at = shared_addr(shared_base()).at;
        return shared_base() + ((at + APART_HEADER + 1023) / 1024 * 1024 - at) + place * APART_STAGE;
    }
};

CAIRN_INLINE void apart_barriers() {
    if (thread_id() == 0) {
        for (int i = 0; i < PLACES; i++) {
            mbarrier_init(shared_addr(shared_base()) + (uint32_t)(i * 8), CREW);
            mbarrier_init(shared_addr(shared_base()) + (uint32_t)((PLACES + i) * 8), PROMPT_WARPS);
        }
        fence_mbarrier_init();
    }
    block_sync();
}

/* ---- the warps that bring operands ---- */

template <int FORMAT, int INPUTS> struct apart_carrier {
    static constexpr int STEPS = ceil_div(INPUTS, APART_INPUTS), UNITS = INPUTS / 32;
    static constexpr int TILES = PROMPT_WARPS / CREW, AT_ONCE = CREW * WARP / 8; /* tokens */
    packed<FORMAT> raw[TILES][2];
    const uint8_t *tile[TILES], *source;
    int tokens;               /* from the lane's first on */
    uint32_t expands, brings; /* places in a stage */

    CAIRN_METHOD int warp() { return warp_id() % CREW; }
    CAIRN_METHOD int group() { return (warp_id() - PROMPT_WARPS) / CREW; }

    CAIRN_MEMBER void begin(const uint8_t *weights, int tiles, const uint8_t *inputs, int first,
                            int rows) {
        const int lane = lane_id(), g = lane / 4, row = warp() * 4 + lane / 8, piece = lane % 8;
        source = inputs + ((int64_t)(first + row) * INPUTS + piece * 8) * 2;
        tokens = rows - first - row;
        brings = (uint32_t)(APART_WEIGHTS + row * APART_ROW + (piece ^ row % 8) * 16);
        expands = (uint32_t)((warp() * 16 + g) * APART_ROW + g * 16 + lane % 4 * 4);
#pragma unroll
        for (int e = 0; e < TILES && !USERS_EXPAND; e++) {
            const int n = block_id_y() * BLOCK_TILES + warp() + e * CREW;
            tile[e] = weights + (int64_t)min_of(n, tiles - 1) * tile_bytes<FORMAT, INPUTS>();
#pragma unroll
            for (int u = 0; u < 2; u++) load(e, u, group());
        }
    }
    CAIRN_MEMBER void load(int e, int u, int step) {
        raw[e][u].template load<packed_group<FORMAT, INPUTS>()>(tile[e], min_of(step * 2 + u, UNITS - 1));
    }
    CAIRN_MEMBER void bring(const apart_turn &turn, int step) {
        const shared_addr to = shared_addr(turn.memory()) + brings;
        const bool there = INPUTS % APART_INPUTS == 0 || step * APART_INPUTS + lane_id() % 8 * 8 < INPUTS;
        const uint8_t *from = source + step * APART_ROW;
#pragma unroll
        for (int n = 0; n < TOKENS; n += AT_ONCE)
            copy_async16((to ^ (uint32_t)(n % 8 * 16)) + (uint32_t)(n * APART_ROW),
                         from + n * INPUTS * 2, there && n < tokens);
        copy_async_commit();
    }
    /* A step's units, in whose places those of the group's next are asked for. */
    CAIRN_MEMBER void expand(const apart_turn &turn, int step) {
        unsigned char *memory = turn.memory();
#pragma unroll
        for (int u = 0; u < 2; u++)
#pragma unroll
            for (int e = 0; e < TILES; e++) {
                uint32_t a[8];
                raw[e][u].expand(a);
                load(e, u, step + CARRIERS / CREW);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    *(uint32_t *)(memory + (expands ^ (uint32_t)((u * 4 + i / 2) * 16)) +
                                  (e * CREW * 16 + i % 2 * 8) * APART_ROW) = a[i];
            }
    }
    CAIRN_MEMBER void run() {
        apart_turn turn = {group(), 0};
#pragma unroll 1
        for (int step = group(); step < STEPS; step += CARRIERS / CREW) {
            mbarrier_wait(turn.free(), turn.round ^ 1);
            bring(turn, step);
            if (!USERS_EXPAND) expand(turn, step);
            copy_async_wait<0>();
            fence_async();
            warp_sync();
            if (lane_id() == 0) mbarrier_arrive(turn.full());
            turn.next(CARRIERS / CREW);
        }
    }
};

/* ---- the warps that use them ---- */

CAIRN_INLINE void apart_multiply(float (*sum)[4], uint64_t a, uint64_t b) {
    if constexpr (TOKENS == 256) wgmma_f16_256_shared(sum[0], a, b, true);
    else wgmma_f16_128_shared(sum[0], a, b, true);
}

template <int COUNT> CAIRN_INLINE void apart_step(const apart_turn &turn, tile_sums &sum) {
    const shared_addr memory = shared_addr(turn.memory());
    const uint64_t a = wgmma_swizzled(memory + (uint32_t)(warp_id() / 4 * 64 * APART_ROW), 16);
    const uint64_t b = wgmma_swizzled(memory + APART_WEIGHTS, 16);
    mbarrier_wait(turn.full(), turn.round);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        apart_multiply(sum.at[0], a + (uint64_t)(i * 2), b + (uint64_t)(i * 2));
    wgmma_commit();
}

/* That the products of a place are made, whole warps. */
CAIRN_INLINE void apart_free(const apart_turn &turn) {
    warp_sync();
    if (lane_id() == 0) mbarrier_arrive(turn.free());
}

template <int INPUTS> CAIRN_INLINE void apart_use(tile_sums &sum) {
    constexpr int WHOLE = INPUTS / APART_INPUTS, REST = INPUTS % APART_INPUTS / 16;
    apart_turn turn = {0, 0}, last = {0, 0};
#pragma unroll 1
    for (int step = 0; step < WHOLE; step++) {
        apart_step<APART_INPUTS / 16>(turn, sum);
        if (step > 0) {
            wgmma_wait<1>();
            apart_free(last);
            last.next();
        }
        turn.next();
    }
    if constexpr (REST > 0) apart_step<REST>(turn, sum);
    wgmma_wait<0>();
    wgmma_hold<TOKENS / 2>(sum.at[0][0]);
}

/* The same by users that expand their tile's weights in registers. */
template <int FORMAT, int INPUTS> struct apart_expander {
    static constexpr int UNITS = INPUTS / 32, STEPS = ceil_div(UNITS, 2);
    packed<FORMAT> raw[4];
    const uint8_t *tile;

    CAIRN_MEMBER void load(int u, int unit) {
        raw[u].template load<packed_group<FORMAT, INPUTS>()>(tile, min_of(unit, UNITS - 1));
    }
    CAIRN_MEMBER void begin(const uint8_t *weights, int tiles) {
        tile = weights + (int64_t)min_of(tile_of(0), tiles - 1) * tile_bytes<FORMAT, INPUTS>();
#pragma unroll
        for (int u = 0; u < 4; u++) load(u, u);
    }
    template <int half, int COUNT> CAIRN_MEMBER void step(apart_turn &turn, apart_turn &last, int n, tile_sums &sum) {
        uint32_t a[2][8];
        const uint64_t b = wgmma_swizzled(shared_addr(turn.memory()), 16);
        mbarrier_wait(turn.full(), turn.round);
#pragma unroll
        for (int u = 0; u < COUNT; u++) {
            wgmma_wait<1>();
            if (u == COUNT - 1 && n > 0) {
                if (COUNT == 1) wgmma_wait<0>();
                apart_free(last);
                last.next();
            }
            raw[half * 2 + u].expand(a[u]);
            load(half * 2 + u, n * 2 + u + 4);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if constexpr (TOKENS == 256) wgmma_f16_256(sum.at[0][0], a[u] + 4 * i, b + (uint64_t)(u * 4 + i * 2), true);
                else wgmma_f16_128(sum.at[0][0], a[u] + 4 * i, b + (uint64_t)(u * 4 + i * 2), true);
            }
            wgmma_commit();
        }
        turn.next();
    }
    CAIRN_MEMBER void run(tile_sums &sum) {
        apart_turn turn = {0, 0}, last = {0, 0};
#pragma unroll 1
        for (int n = 0; n < UNITS / 2 / 2 * 2; n += 2) step<0, 2>(turn, last, n, sum), step<1, 2>(turn, last, n + 1, sum);
        if constexpr (UNITS / 2 % 2) step<0, 2>(turn, last, UNITS / 2 - 1, sum);
        if constexpr (UNITS % 2) step<UNITS / 2 % 2, 1>(turn, last, UNITS / 2, sum);
        wgmma_wait<0>();
        wgmma_hold<TOKENS / 2>(sum.at[0][0]);
    }
};

template <int FORMAT, int INPUTS, class Use>
CAIRN_INLINE void product_apart(const uint8_t *weights, int tiles, const uint8_t *inputs, int first,
                                int rows, Use use) {
    apart_barriers();
    if (warp_id() >= PROMPT_WARPS) {
        if constexpr (CARRIERS == 4) registers_give<USERS_EXPAND ? 56 : 120>();
        apart_carrier<FORMAT, INPUTS> carrier;
        carrier.begin(weights, tiles, inputs, first, rows);
        start_input();
        carrier.run();
    } else {
        if constexpr (CARRIERS == 4) registers_take<USERS_EXPAND ? 224 : 192>();
        tile_sums sum = {};
        if constexpr (USERS_EXPAND) {
            apart_expander<FORMAT, INPUTS> expander;
            expander.begin(weights, tiles);
            start_input();
            expander.run(sum);
        } else {
            start_input();
            apart_use<INPUTS>(sum);
        }
        use(sum);
    }
}
#endif

#endif

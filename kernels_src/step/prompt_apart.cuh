/* The product of a prompt's block (step/prompt.cuh) with warps of their own for its tokens, sm_90a alone: pairs
 * of carriers take turns to bring 64 inputs of the block's tokens into one of PLACES places in shared
 * memory, swizzled as wgmma reads them (device/wgmma.cuh), and tell by barriers what is there; eight users have a
 * tile of 16 outputs each, expand its weights in registers, and tell what is free. So weights are expanded
 * once for all tokens of the block, and nobody waits for all. Inputs are added up in the order and by
 * sixteens as by warps that do both: a row's bits are the same. */
#ifndef CAIRN_PROMPT_APART_CUH
#define CAIRN_PROMPT_APART_CUH

#if CAIRN_WGMMA && CAIRN_PROMPT_CARRIERS
/* A place of PLACES and how often it came round; its barriers, 8 bytes each from AT on: ended when it is
 * there, when it is free. */
template <int PLACES, int AT> struct place_turn {
    int place;
    uint32_t round;

    CAIRN_MEMBER void next(int further = 1) {
        place += further;
        if (place >= PLACES) place -= PLACES, round ^= 1;
    }
    CAIRN_MEMBER shared_addr full() const {
        return shared_addr(shared_base()) + (uint32_t)(AT + place * 8);
    }
    CAIRN_MEMBER shared_addr free() const { return full() + (uint32_t)(PLACES * 8); }
    /* By one thread. */
    static CAIRN_MEMBER void make(int arrivals_full, int arrivals_free) {
        for (int i = 0; i < PLACES; i++) {
            const place_turn turn = {i, 0};
            mbarrier_init(turn.full(), arrivals_full);
            mbarrier_init(turn.free(), arrivals_free);
        }
    }
};

/* From shared_base() to the first multiple of 1024 bytes behind `header`. */
CAIRN_INLINE uint32_t places_at(int header) {
    const uint32_t base = shared_addr(shared_base()).at;
    return (base + (uint32_t)header + 1023) / 1024 * 1024 - base;
}
#endif

#if CAIRN_WGMMA && CAIRN_PROMPT_CARRIERS && CAIRN_PROMPT_TOKENS > 32
constexpr int APART_INPUTS = 64, APART_ROW = APART_INPUTS * 2; /* bytes of a token */
constexpr int PLACE_BYTES = TOKENS * APART_ROW, PLACES = STEP_APART_PLACES;
constexpr int CREW = 2, CREWS = CARRIERS / CREW; /* carriers that have a step together, and their turns */
/* Copies of many tokens arrive by themselves, all places at a time; each user then orders them before its products,
 * which of fewer tokens costs more than that the carriers wait for each and do so once. */
constexpr bool ARRIVE_ALONE = TOKENS == 256;
static_assert(PROMPT_WARPS == 8 && EACH == 1, "apart: two groups of four warps");

struct apart_turn : place_turn<PLACES, 0> {
    CAIRN_MEMBER shared_addr memory() const {
        return shared_addr(shared_base()) + (places_at(STEP_APART_HEADER) + (uint32_t)(place * PLACE_BYTES));
    }
};

CAIRN_INLINE void apart_barriers() {
    if (thread_id() == 0) {
        apart_turn::make(ARRIVE_ALONE ? CREW * WARP : CREW, PROMPT_WARPS);
        fence_mbarrier_init();
    }
    block_sync();
}

/* What a lane of a carrier brings: 16 bytes of every AT_ONCE-th token. */
template <int INPUTS> struct apart_carrier {
    static constexpr int STEPS = ceil_div(INPUTS, APART_INPUTS), AT_ONCE = CREW * WARP / 8;
    const uint8_t *source;
    int tokens;      /* from the lane's first on */
    uint32_t brings; /* place of its first in a step's */

    CAIRN_MEMBER void begin(const uint8_t *inputs, int first, int rows) {
        const int lane = lane_id(), row = warp_id() % CREW * 4 + lane / 8, piece = lane % 8;
        source = inputs + ((int64_t)(first + row) * INPUTS + piece * 8) * 2;
        tokens = rows - first - row;
        brings = swizzled_at(row, piece);
    }
    CAIRN_MEMBER void bring(const apart_turn &turn, int step) {
        const shared_addr to = turn.memory() + brings;
        const bool there = INPUTS % APART_INPUTS == 0 || step * APART_INPUTS + lane_id() % 8 * 8 < INPUTS;
        const uint8_t *from = source + step * APART_ROW;
#pragma unroll
        for (int n = 0; n < TOKENS; n += AT_ONCE)
            copy_async16(to + (uint32_t)(n * APART_ROW), from + n * INPUTS * 2, there && n < tokens);
        tell(turn.full());
    }
    CAIRN_METHOD void tell(shared_addr full) {
        if (ARRIVE_ALONE) return copy_async_arrive(full);
        copy_async_commit();
        copy_async_wait<0>();
        fence_async();
        warp_sync();
        if (lane_id() == 0) mbarrier_arrive(full);
    }
    CAIRN_MEMBER void run() {
        const int crew = (warp_id() - PROMPT_WARPS) / CREW;
        apart_turn turn = {{crew, 0}};
#pragma unroll 1
        for (int step = crew; step < STEPS; step += CREWS) {
            mbarrier_wait(turn.free(), turn.round ^ 1);
            bring(turn, step);
            turn.next(CREWS);
        }
    }
};
static_assert(apart_carrier<64>::AT_ONCE % 8 == 0, "apart: a lane's tokens are swizzled alike");

/* A user: two steps' weights of its tile as they lie in memory, asked for two steps ahead. */
template <int FORMAT, int INPUTS> struct apart_user {
    static constexpr int UNITS = INPUTS / 32;
    packed<FORMAT> raw[4];
    const uint8_t *tile;
    apart_turn turn, last;

    CAIRN_MEMBER void load(int u, int unit) {
        raw[u].template load<packed_group<FORMAT, INPUTS>()>(tile, min_of(unit, UNITS - 1));
    }
    CAIRN_MEMBER void begin(const uint8_t *weights, int tiles) {
        tile = weights + (int64_t)min_of(tile_of(0), tiles - 1) * tile_bytes<FORMAT, INPUTS>();
        turn = last = {{0, 0}};
#pragma unroll
        for (int u = 0; u < 4; u++) load(u, u);
    }
    /* The place before this one is no longer read, by this warp. */
    CAIRN_MEMBER void give_back() {
        warp_sync();
        if (lane_id() == 0) mbarrier_arrive(last.free());
        last.next();
    }
    /* sum += COUNT units of step n, whose weights are raw[half * 2 ...]. */
    template <int half, int COUNT> CAIRN_MEMBER void step(int n, tile_sums &sum) {
        uint32_t a[2][8];
        const uint64_t b = wgmma_swizzled(turn.memory(), 16);
        mbarrier_wait(turn.full(), turn.round);
        if (ARRIVE_ALONE) fence_async();
#pragma unroll
        for (int u = 0; u < COUNT; u++) {
            wgmma_wait<1>(); /* the products of the operands before the last */
            if (u == COUNT - 1 && n > 0) {
                if (COUNT == 1) wgmma_wait<0>();
                give_back();
            }
            raw[half * 2 + u].expand(a[u]);
            load(half * 2 + u, n * 2 + u + 4);
            wgmma_fence();
            multiply_tokens(sum.at[0], a[u], b + (uint64_t)(u * 4));
            multiply_tokens(sum.at[0], a[u] + 4, b + (uint64_t)(u * 4 + 2));
            end_group<FORMAT>();
        }
        turn.next();
    }
    /* Two steps a turn of the loop, which ends behind the first of them where they are odd: of one alone ptxas would
     * not overlap the products with the next one's. */
    CAIRN_MEMBER void run(tile_sums &sum) {
        constexpr int STEPS = UNITS / 2;
#pragma unroll 1
        for (int n = 0; STEPS > 0; n += 2) {
            step<0, 2>(n, sum);
            if (STEPS % 2 && n + 1 == STEPS) break;
            step<1, 2>(n + 1, sum);
            if (STEPS % 2 == 0 && n + 2 == STEPS) break;
        }
        if constexpr (UNITS % 2) step<STEPS % 2, 1>(STEPS, sum);
        end_sums(sum);
    }
};

template <int FORMAT, int INPUTS, class Use>
CAIRN_INLINE void product_apart(const uint8_t *weights, int tiles, const uint8_t *inputs, int first,
                                int rows, Use use) {
    apart_barriers();
    if (warp_id() >= PROMPT_WARPS) {
        registers_give<56>();
        apart_carrier<INPUTS> carrier;
        carrier.begin(inputs, first, rows);
        start_input();
        carrier.run();
    } else {
        registers_take<224>();
        tile_sums sum = {};
        apart_user<FORMAT, INPUTS> user;
        user.begin(weights, tiles);
        start_input();
        user.run(sum);
        use(sum);
    }
}
#endif

#endif

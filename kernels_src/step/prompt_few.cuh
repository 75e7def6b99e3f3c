/* The product of a prompt's block (step/prompt.cuh) for few tokens, sm_90a alone: what limits it is how fast
 * packed weights come, so two warps bring everything to shared memory, far ahead. One lane asks for the weights
 * of all tiles by bulk copies, several groups of units into each place of a ring; the other warp brings the
 * tokens, swizzled as wgmma reads them (device/wgmma.cuh). The users have a tile of 16 outputs each and expand
 * its weights in registers, some units of inputs at a time while the products of those before are under way. Inputs
 * are added up in the order and by sixteens as in all other blocks: a row's bits are the same. */
#ifndef CAIRN_PROMPT_FEW_CUH
#define CAIRN_PROMPT_FEW_CUH

#if CAIRN_WGMMA && CAIRN_PROMPT_CARRIERS && CAIRN_PROMPT_TOKENS == 32
static_assert(EACH == 1 && CARRIERS == 2, "few: a tile a user; who brings weights, who brings tokens");

constexpr int FEW_UNITS = PROMPT_WARPS == 4 ? 4 : 2; /* units multiplied at a time: the more users, the fewer */
constexpr int SLAB_BYTES = TOKENS * 128;         /* 64 inputs of all tokens */
constexpr int FEW_PLACE_BYTES = FEW_UNITS / 2 * SLAB_BYTES, FEW_PLACES = STEP_FEW_PLACES / FEW_PLACE_BYTES;
constexpr int RING_PLACES_AT = FEW_PLACES * 16; /* of the ring's barriers */

struct few_turn : place_turn<FEW_PLACES, 0> {
    CAIRN_MEMBER shared_addr memory() const {
        return shared_addr(shared_base()) + (places_at(STEP_FEW_HEADER) + (uint32_t)(place * FEW_PLACE_BYTES));
    }
};

/* The ring of a product's weights: whole groups, and whole chunks, of every tile in a place. */
template <int FORMAT, int INPUTS> struct few_ring {
    static constexpr int GROUP = packed_group<FORMAT, INPUTS>(), UNITS = INPUTS / 32;
    static constexpr int HELD = max_of(GROUP, FEW_UNITS); /* units of a tile in a place */
    static constexpr int TILE = HELD * packed<FORMAT>::UNIT_BYTES, PLACE = PROMPT_WARPS * TILE;
    static constexpr int PLACES = min_of(STEP_FEW_RING / PLACE, (STEP_FEW_HEADER - RING_PLACES_AT) / 16);
    typedef place_turn<PLACES, RING_PLACES_AT> turn;
    static_assert(PLACES >= 2, "few: a ring of two places at least");

    CAIRN_METHOD unsigned char *memory(const turn &t, int tile) {
        return shared_base() + (places_at(STEP_FEW_HEADER) + (uint32_t)STEP_FEW_PLACES) +
               (uint32_t)(t.place * PLACE + tile * TILE);
    }
    /* By one lane. */
    CAIRN_METHOD void bring(const uint8_t *weights, int tiles) {
        const int first = block_id_y() * BLOCK_TILES;
        turn at = {0, 0};
#pragma unroll 1
        for (int unit = 0; unit < UNITS; unit += HELD) {
            const int bytes = min_of(HELD, UNITS - unit) * packed<FORMAT>::UNIT_BYTES;
            mbarrier_wait(at.free(), at.round ^ 1);
            mbarrier_arrive_expect(at.full(), (uint32_t)(bytes * PROMPT_WARPS));
            for (int tile = 0; tile < PROMPT_WARPS; tile++)
                copy_bulk_once(shared_addr(memory(at, tile)),
                               weights + min_of(first + tile, tiles - 1) * tile_bytes<FORMAT, INPUTS>() +
                                   unit * packed<FORMAT>::UNIT_BYTES,
                               (uint32_t)bytes, at.full());
            at.next();
        }
    }
};

/* What a lane brings of tokens: 16 bytes of every fourth. */
template <int INPUTS> struct few_tokens {
    static constexpr int STEPS = ceil_div(INPUTS, FEW_UNITS * 32);
    static constexpr int LAG = FEW_PLACES - 3; /* steps under way while the one before is told of */
    const uint8_t *source;
    int tokens; /* from the lane's first on */
    uint32_t brings;

    CAIRN_MEMBER void begin(const uint8_t *inputs, int first, int rows) {
        const int row = lane_id() / 8, piece = lane_id() % 8;
        source = inputs + ((int64_t)(first + row) * INPUTS + piece * 8) * 2;
        tokens = rows - first - row;
        brings = swizzled_at(row, piece);
    }
    CAIRN_MEMBER void bring(const few_turn &turn, int step) {
#pragma unroll
        for (int slab = 0; slab < FEW_UNITS / 2; slab++) {
            const int k = step * FEW_UNITS * 32 + slab * 64;
            const bool there = INPUTS % (FEW_UNITS * 32) == 0 || k + lane_id() % 8 * 8 < INPUTS;
            const uint8_t *from = source + k * 2;
#pragma unroll
            for (int n = 0; n < TOKENS; n += 4) {
                const uint32_t at = brings ^ (uint32_t)(n % 8 * 16); /* the swizzle of tokens 4 further */
                copy_async16(turn.memory() + (at + (uint32_t)(slab * SLAB_BYTES + n * 128)),
                             from + n * INPUTS * 2, there && n < tokens);
            }
        }
        copy_async_commit();
    }
    template <int PENDING> CAIRN_MEMBER void tell(few_turn &told) {
        copy_async_wait<PENDING>();
        fence_async();
        warp_sync();
        if (lane_id() == 0) mbarrier_arrive(told.full());
        told.next();
    }
    CAIRN_MEMBER void run() {
        few_turn turn = {{0, 0}}, told = turn;
#pragma unroll 1
        for (int step = 0; step < STEPS; step++) {
            mbarrier_wait(turn.free(), turn.round ^ 1);
            bring(turn, step);
            turn.next();
            if (step >= LAG) tell<LAG>(told);
        }
#pragma unroll 1
        for (int step = 0; step < min_of(LAG, STEPS); step++) tell<0>(told);
    }
};

/* A user; raw: the weights of one chunk as they lie in memory, each asked for anew once it is expanded. */
template <int FORMAT, int INPUTS> struct few_user {
    typedef few_ring<FORMAT, INPUTS> ring;
    static constexpr int UNITS = ring::UNITS, WHOLE = UNITS / FEW_UNITS, REST = UNITS % FEW_UNITS;
    static constexpr int EVERY = ring::HELD / FEW_UNITS; /* chunks of a place */
    static constexpr int ROUND = max_of(EVERY, 2);       /* in a loop: alone ptxas would not overlap them */
    packed<FORMAT> raw[FEW_UNITS];
    typename ring::turn weights;
    few_turn tokens, last;

    /* Unit u of chunk n + c, of one behind the last what was there, which is no one's. n: a multiple of ROUND. */
    CAIRN_MEMBER void load(int n, int c, int u) {
        const int unit = c % EVERY * FEW_UNITS + (REST ? min_of(u, UNITS - (n + c) * FEW_UNITS - 1) : u);
        const void *tile = __builtin_assume_aligned(ring::memory(weights, warp_id()), 16);
        raw[u].template load<ring::GROUP, packed_near>((const uint8_t *)tile, unit);
    }
    /* One arrival of this warp, whose lanes have read what was there. */
    CAIRN_MEMBER void give_back(shared_addr free) {
        warp_sync();
        if (lane_id() == 0) mbarrier_arrive(free);
    }
    /* sum += COUNT units of chunk n + c, which is loaded; loads the next. */
    template <int COUNT> CAIRN_MEMBER void step(int n, int c, tile_sums &sum) {
        uint32_t a[2][8];
        const uint64_t b = wgmma_swizzled(tokens.memory(), 16);
        if ((c + 1) % EVERY == 0 && (n + c + 1) * FEW_UNITS < UNITS) {
            give_back(weights.free());
            weights.next();
            mbarrier_wait(weights.full(), weights.round);
        }
        mbarrier_wait(tokens.full(), tokens.round);
#pragma unroll
        for (int u = 0; u < COUNT; u++) {
            const uint64_t at = wgmma_further(b, u / 2 * SLAB_BYTES + u % 2 * 64);
            wgmma_wait<1>(); /* the products of the operands before the last */
            if (u == min_of(COUNT, 2) - 1 && n + c > 0) {
                if (COUNT == 1) wgmma_wait<0>();
                give_back(last.free());
                last.next();
            }
            raw[u].expand(a[u % 2]);
            if (COUNT == FEW_UNITS) load(n, c + 1, u);
            wgmma_fence();
            multiply_tokens(sum.at[0], a[u % 2], at);
            multiply_tokens(sum.at[0], a[u % 2] + 4, wgmma_further(at, 32));
            end_group<FORMAT>();
        }
        tokens.next();
    }
    CAIRN_MEMBER void run(tile_sums &sum) {
        weights = {0, 0};
        tokens = last = {{0, 0}};
        mbarrier_wait(weights.full(), 0);
#pragma unroll
        for (int u = 0; u < FEW_UNITS; u++) load(0, 0, u);
#pragma unroll 1
        for (int n = 0; n < WHOLE / ROUND * ROUND; n += ROUND)
#pragma unroll
            for (int c = 0; c < ROUND; c++) step<FEW_UNITS>(n, c, sum);
        constexpr int LAST = WHOLE / ROUND * ROUND;
#pragma unroll
        for (int c = 0; c < WHOLE % ROUND; c++) step<FEW_UNITS>(LAST, c, sum);
        if constexpr (REST > 0) step<REST>(LAST, WHOLE % ROUND, sum);
        end_sums(sum);
    }
};

template <int FORMAT, int INPUTS, class Use>
CAIRN_INLINE void product_apart(const uint8_t *weights, int tiles, const uint8_t *inputs, int first,
                              int rows, Use use) {
    typedef few_ring<FORMAT, INPUTS> ring;
    if (thread_id() == 0) {
        few_turn::make(1, PROMPT_WARPS);
        ring::turn::make(1, PROMPT_WARPS);
        fence_mbarrier_init();
    }
    block_sync();
    if (warp_id() == PROMPT_WARPS) {
        if (lane_id() == 0) ring::bring(weights, tiles);
    } else if (warp_id() > PROMPT_WARPS) {
        few_tokens<INPUTS> carrier;
        carrier.begin(inputs, first, rows);
        start_input();
        carrier.run();
    } else {
        tile_sums sum = {};
        few_user<FORMAT, INPUTS> user;
        start_input();
        user.run(sum);
        use(sum);
    }
}
#endif

#endif

/* attend_latent_many: attention/latent.cu for many heads, by wgmma: 64 heads read each key once.
 *
 * Two groups of four warps have the same 64 heads and half of the 512 values each; both make the same
 * scores, so that neither waits for what the other knows. A third brings tiles of 64 keys into two
 * places and tells by barriers what is there, as they tell what is free. Slots that are not of the
 * operands' type become f16 where they lie. Runs of LATENT_MANY_RUN tiles, cut by the list alone, are
 * merged in ascending order by the block that ends last: its own sums stay in registers, the others' lie
 * as the threads hold them.
 *
 * Constants  CAIRN_ABILITIES  of ATTEND_CACHE (not F32; E4M3: slots of LATENT_BYTES), _QUERY_, _SOFTCAP
 * Launch     grid (runs at most, ceil(heads / 64), rows), block 384, shared layout_latent_many_bytes;
 *            partial and sums are of 64 heads a run
 * Numerics   as attention.cu; of bf16 queries and slots the products are of bf16, as are the weights
 * matrix: CAIRN_ABILITIES=0 | CAIRN_ABILITIES=9 | CAIRN_ABILITIES=41 | CAIRN_ABILITIES=3 */
#define CAIRN_HEAD_DIM 512
#define CAIRN_PAGE_SIZE 16
#define CAIRN_PAGES_CSR 0
#ifndef CAIRN_ABILITIES
#define CAIRN_ABILITIES 0
#endif
#include "attention/core.cuh"
#include "abi/attention.h"
#include "attention/paged.cuh"
#include "attention/abilities.cuh"
#include "attention/tile.cuh"
#include "attention/parts.cuh"

#if CAIRN_WGMMA
#include "device/wgmma.cuh"

constexpr int HEADS = LATENT_WIDE_HEADS, KEYS = LATENT_WIDE_KEYS, MANY_THREADS = 384, USERS = 256;
constexpr int SLABS = LATENT_KEYS / 64, SLAB = KEYS * 128; /* of 64 values, as wgmma reads them */
constexpr int TILE_BYTES = SLABS * SLAB, HEADER = 4096;
constexpr int SCALES_AT_TILE = 2048;   /* of two tiles, of slots of bytes */
constexpr bool BF16 = CACHE_KIND == ATTEND_CACHE_BF16, DIRECT = BF16 && (CAIRN_ABILITIES & ATTEND_QUERY_BF16);
enum { TURNS = 1 /* and 2: named barriers */, USERS_MEET = 3 };
static_assert(HEADS == KEYS && layout_latent_many_bytes() == HEADER + 1024 + 3 * TILE_BYTES, "latent: sizes");

/* In shared memory before the matrices: of each place barriers that end when its tile is there, when it
 * is free; a bit of each of its keys that is there. */
struct many_words {
    uint64_t full[2], free[2];
    uint16_t there[2][4];
    uint32_t flag;
};
CAIRN_INLINE many_words &words() { return *(many_words *)shared_base(); }
CAIRN_INLINE shared_addr full(int n) { return shared_addr(&words().full[n % 2]); }
CAIRN_INLINE shared_addr free_of(int n) { return shared_addr(&words().free[n % 2]); }

/* The queries; behind them two tiles of keys. */
CAIRN_INLINE unsigned char *queries() {
    const uint32_t at = shared_addr(shared_base()).at;
    return shared_base() + ((at + HEADER + 1023) / 1024 * 1024 - at);
}
CAIRN_INLINE unsigned char *tile_of(int n) { return queries() + (1 + n % 2) * TILE_BYTES; }
/* Piece `piece` of 16 bytes of a row's. */
CAIRN_INLINE uint32_t tile_at(int row, int piece) {
    return (uint32_t)(piece / 8 * SLAB + row * 128 + (piece % 8 ^ row % 8) * 16);
}

/* ---- the warps that bring keys: of each tile 16, four at a time, eight lanes a key ---- */

struct many_carrier {
    const attend_params &p;
    const token_list &list;
    int r;

    /* Of the first 16 lanes: the slot of the warp's key of a tile, -1 for none. */
    CAIRN_MEMBER int look(int tile) const {
        const int at = tile * KEYS + warp_id() % 4 * 16 + lane_id();
        if (lane_id() >= 16 || at >= list.length) return -1;
        const int id = list.ids[at];
        if (id >= 0 && id / p.at.page_size < p.at.pages) return id;
        if (id != -1) report_error(p.at.error, CAIRN_FAULT_ID, r, id);
        return -1;
    }
    /* Where the lane's piece of slab 0 of key 4 j + lane / 8 goes; pieces are 8 lanes apart by xor. */
    CAIRN_METHOD uint32_t place(int j) {
        return tile_at(warp_id() % 4 * 16 + j * 4 + lane_id() / 8, lane_id() % 8);
    }
    /* Sixteen values of bytes lie where the first eight of them will. */
    CAIRN_METHOD uint32_t place_bytes(int j, int i) {
        return tile_at(warp_id() % 4 * 16 + j * 4 + lane_id() / 8, i * 16 + lane_id() % 8 * 2);
    }
    CAIRN_METHOD float *scales(int n, int j) {
        return (float *)(shared_base() + SCALES_AT_TILE + n % 2 * (KEYS * 16)) +
               (warp_id() % 4 * 16 + j * 4 + lane_id() / 8) * 4;
    }
    CAIRN_MEMBER void fetch(int n, int held) const {
        const shared_addr to(tile_of(n));
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int id = shuffle(held, j * 4 + lane_id() / 8);
            const bool there = id >= 0;
            const int64_t slot = (int64_t)max_of(id, 0) * (BYTES ? LATENT_BYTES : LATENT_KEYS * 2);
            const unsigned char *from = (const unsigned char *)p.at.cache + slot + lane_id() % 8 * 16;
            if constexpr (BYTES) {
#pragma unroll
                for (int i = 0; i < LATENT_SCALES; i++)
                    copy_async16(to + place_bytes(j, i), from + i * 128, there);
                copy_async16(to + place(j) + (SLABS - 1) * SLAB, from + LATENT_VALUES + LATENT_SCALES * 4,
                             there);
                if (lane_id() % 8 == 0)
                    copy_async16(shared_addr(scales(n, j)), from + LATENT_VALUES, there);
            } else {
#pragma unroll
                for (int s = 0; s < SLABS; s++)
                    copy_async16(to + place(j) + s * SLAB, from + s * 128, there);
            }
        }
        copy_async_commit();
    }
    /* What this thread fetched becomes f16. */
    CAIRN_METHOD void convert(int n) {
        unsigned char *tile = tile_of(n);
        if constexpr (BYTES) warp_sync(); /* scales came to the first of eight lanes */
#pragma unroll 1
        for (int j = 0; j < 4; j++) {
            if constexpr (BYTES) {
                const float *scale = scales(n, j);
                u32x4 *rest = (u32x4 *)(tile + place(j) + (SLABS - 1) * SLAB);
#pragma unroll
                for (int i = 0; i < LATENT_SCALES; i++) {
                    unsigned char *at = tile + place_bytes(j, i);
                    unsigned char *next = tile + (place_bytes(j, i) ^ 16);
                    const u32x4 low = half_of_e4m3(at, scale[i]), high = half_of_e4m3(at + 8, scale[i]);
                    *(u32x4 *)at = low, *(u32x4 *)next = high;
                }
                *rest = half_of_bf16(rest);
            } else {
#pragma unroll
                for (int s = 0; s < SLABS; s++) {
                    u32x4 *at = (u32x4 *)(tile + place(j) + s * SLAB);
                    *at = half_of_bf16(at);
                }
            }
        }
    }
    CAIRN_MEMBER void bring(int begin, int end) const {
        int held = look(begin);
#pragma unroll 1
        for (int n = 0; n < end - begin; n++) {
            mbarrier_wait(free_of(n), (uint32_t)(n / 2 & 1) ^ 1);
            fetch(n, held);
            const uint32_t there = warp_ballot(held >= 0);
            if (lane_id() == 0) words().there[n % 2][warp_id() % 4] = (uint16_t)there;
            held = n + 1 < end - begin ? look(begin + n + 1) : -1;
            copy_async_wait<0>();
            if constexpr (BYTES || (BF16 && !DIRECT)) convert(n);
            fence_async();
            warp_sync();
            if (lane_id() == 0) mbarrier_arrive(full(n));
        }
    }
};

/* ---- the warps that use them ---- */

/* Of rows g and g + 8 of the warp's 16 heads. */
struct many_user {
    float top[2], total[2]; /* total: of the lane's keys alone */
    float o[HEADS * 2];     /* of the group's 256 values */
    float factor;

    CAIRN_METHOD int half() { return warp_id() / 4; }
    CAIRN_METHOD int row(int i) { return warp_id() % 4 * 16 + i * 8 + lane_id() / 4; }
    CAIRN_METHOD uint64_t along(int i) { return (uint64_t)((i / 4 * SLAB + i % 4 * 32) / 16); }

    CAIRN_MEMBER void clear(const attend_params &p) {
        factor = SOFTCAP ? 1.0f : p.scale * LOG2_E;
        top[0] = top[1] = minus_infinity();
        total[0] = total[1] = 0.0f;
#pragma unroll
        for (int i = 0; i < HEADS * 2; i++) o[i] = 0.0f;
    }
    CAIRN_METHOD void scores(int n, float *s) {
        const uint64_t q = wgmma_swizzled(shared_addr(queries()), SLAB);
        const uint64_t k = wgmma_swizzled(shared_addr(tile_of(n)), SLAB);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < LATENT_KEYS / 16; i++) {
            if constexpr (DIRECT) wgmma_bf16_64_shared(s, q + along(i), k + along(i), i > 0);
            else wgmma_f16_64_shared(s, q + along(i), k + along(i), i > 0);
        }
        wgmma_commit();
    }
    /* Hides the keys that are not there. */
    CAIRN_METHOD void hide(int n, float *s) {
        const uint32_t *there = (const uint32_t *)words().there[n % 2];
        const uint32_t bits[2] = {there[0], there[1]};
        if ((bits[0] & bits[1]) == ~0u) return;
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) {
            const int key = i / 4 * 8 + lane_id() % 4 * 2 + i % 2;
            s[i] = bits[i / 16] >> key % 32 & 1 ? s[i] : minus_infinity();
        }
    }
    /* Scores become weights; the sums so far are taken times what is left of them. */
    CAIRN_MEMBER void fold(float *s, uint32_t *weights) {
        float old[2];
        weigh_scores<KEYS>(s, factor, top, total, old);
#pragma unroll
        for (int i = 0; i < KEYS / 4; i++)
            weights[i] = DIRECT ? pack_bf16x2(s[2 * i], s[2 * i + 1]) : pack_f16x2(s[2 * i], s[2 * i + 1]);
        if (!warp_ballot(old[0] != 1.0f || old[1] != 1.0f)) return;
#pragma unroll
        for (int i = 0; i < HEADS * 2; i++) o[i] *= old[i / 2 % 2];
    }
    CAIRN_MEMBER void values(int n, const uint32_t *weights) {
        const uint64_t v = wgmma_swizzled(shared_addr(tile_of(n) + half() * 4 * SLAB), SLAB);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const uint64_t b = v + (uint64_t)((c * 2 * SLAB + k * 2048) / 16);
                if constexpr (DIRECT) wgmma_bf16_128_turned(o + c * 64, weights + 4 * k, b, true);
                else wgmma_f16_128_turned(o + c * 64, weights + 4 * k, b, true);
            }
        wgmma_commit();
    }
    /* The groups make their scores in turn, so that one's meet the other's softmax. */
    CAIRN_MEMBER void use(const attend_params &p, int n) {
        float s[KEYS / 2];
        uint32_t weights[KEYS / 4];
        mbarrier_wait(full(n), (uint32_t)(n / 2 & 1));
        named_sync(TURNS + half(), USERS);
        scores(n, s);
        named_arrive(TURNS + 1 - half(), USERS);
        wgmma_wait<0>();
        wgmma_hold<KEYS / 2>(s);
        if constexpr (SOFTCAP) {
#pragma unroll
            for (int i = 0; i < KEYS / 2; i++) s[i] = score_of(p, s[i]);
        }
        hide(n, s);
        fold(s, weights);
        values(n, weights);
        wgmma_wait<0>();
        wgmma_hold<HEADS * 2>(o);
        warp_sync();
        if (lane_id() == 0) mbarrier_arrive(free_of(n));
    }

    /* ---- what becomes of the sums ---- */

    /* Values i..i + count of the rows, times their shares. */
    template <int count>
    CAIRN_METHOD void write(const attend_params &p, const tile &at, int i, const float *v, const float *share) {
#pragma unroll
        for (int k = 0; k < count; k += 2) {
            const int h = k / 2 % 2, m = row(h), d = half() * 256 + (i + k) / 4 * 8 + lane_id() % 4 * 2;
            if (m < at.count)
                *(f32x2 *)(p.out + (at.head + m) * DIM + d) = f32x2{v[k] * share[h], v[k + 1] * share[h]};
        }
    }
    CAIRN_METHOD void finish(const attend_params &p, const tile &at, const float *top, const float *total,
                             float *share) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            share[h] = total[h] > 0.0f ? 1.0f / total[h] : 0.0f;
            if (p.lse && half() == 0 && lane_id() % 4 == 0 && row(h) < at.count)
                p.lse[at.head + row(h)] = total[h] > 0.0f
                                              ? (top[h] + log2_fast(total[h])) * 0.6931471805599453f
                                              : minus_infinity();
        }
    }
};

/* Eight values of the queries, as the keys' type. */
CAIRN_INLINE u32x4 many_query(const attend_params &p, int64_t from) {
    if constexpr ((CAIRN_ABILITIES & ATTEND_QUERY_F16) || DIRECT)
        return *(const u32x4 *)((const uint16_t *)p.q + from);
    else if constexpr (CAIRN_ABILITIES & ATTEND_QUERY_BF16) return half_of_bf16((const uint16_t *)p.q + from);
    else if ((uint64_t)p.q % 16 == 0) return half_of_f32((const float *)p.q + from);
    else return half_of_query(p.q, from);
}
CAIRN_INLINE void load_queries(const attend_params &p, const tile &at) {
#pragma unroll 6
    for (int i = thread_id(); i < HEADS * (LATENT_KEYS / 8); i += USERS) {
        const int m = i / (LATENT_KEYS / 8), piece = i % (LATENT_KEYS / 8);
        u32x4 v = {};
        if (m < at.count) v = many_query(p, (at.head + m) * LATENT_KEYS + piece * 8);
        *(u32x4 *)(queries() + tile_at(m, piece)) = v;
    }
    fence_async();
    named_sync(USERS_MEET, USERS);
}

CAIRN_KERNEL(attend_latent_many, MANY_THREADS, 1, attend_params) {
    tile at;
    token_list list;
    int runs, begin, end;
    if (!find_run<HEADS, KEYS, LATENT_MANY_RUN, MANY_THREADS>(p, at, list, runs, begin, end)) return;
    if (thread_id() == 0) {
        for (int i = 0; i < 2; i++) mbarrier_init(full(i), 4), mbarrier_init(free_of(i), 8);
        fence_mbarrier_init();
    }
    block_sync();
    if (warp_id() >= 8) {
        registers_give<72>();
        const many_carrier carrier = {p, list, at.r};
        carrier.bring(begin, end);
    } else {
        registers_take<216>();
        many_user user;
        load_queries(p, at);
        user.clear(p);
        if (user.half() == 1) named_arrive(TURNS, USERS); /* the other begins */
#pragma unroll 1
        for (int n = 0; n < end - begin; n++) user.use(p, n);
        if (user.half() == 0) named_sync(TURNS, USERS); /* as often as the other arrives */
#pragma unroll
        for (int h = 0; h < 2; h++) user.total[h] = quad_sum(user.total[h]);
        float share[2];
        if (runs == 1) {
            user.finish(p, at, user.top, user.total, share);
            user.write<HEADS * 2>(p, at, 0, user.o, share);
            return;
        }
        const int64_t unit = (int64_t)at.r * grid_blocks_y() + at.unit, first = unit * grid_blocks() * HEADS;
        const held_parts<HEADS * 2, USERS> parts = {p.partial + first * DIM, (f32x2 *)p.sums + first, HEADS,
                                                    {user.row(0), user.row(1)}};
        parts.put(at.block, user.o, user.top, user.total, user.half() == 0 && lane_id() % 4 == 0);
        if (!last_of_users(p.arrived + unit, runs, &words().flag, USERS_MEET, USERS)) return;
        parts.gather(runs, user.top, user.total);
        user.finish(p, at, user.top, user.total, share);
        parts.merge<16, 1>(runs, at.block, user.o, user.top,
                           [&](int i, const float *v) { user.write<16>(p, at, i, v, share); });
    }
}
#else
CAIRN_KERNEL(attend_latent_many, 128, 1, attend_params) { (void)p; } /* latent_wide.cu is launched */
#endif

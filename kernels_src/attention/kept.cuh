/* attention/kept.cuh: caches of other kinds than f16 for attention/core.cuh (CAIRN_ABILITIES & ATTEND_CACHE):
 * how their keys come, lie in shared memory and become operands. */
#ifndef CAIRN_KEPT_CUH
#define CAIRN_KEPT_CUH

#include "attention/core.cuh"
#include "attention/elements.cuh"

constexpr bool TOKEN_LISTS = (CAIRN_ABILITIES & ATTEND_TOKENS) != 0;

/* A cache of any kind, for fetch_pieces; keys holds where the tokens of a list lie. */
template <class Keys> struct kept_cache {
    const void *values;
    const float *scales;
    const Keys &keys;
    int64_t step;

    CAIRN_MEMBER kept_cache operator+(int64_t more) const {
        return kept_cache{values, scales, keys, step + more};
    }
};
/* Values 2 word.. of the key or value `slot` slots on, as f16. */
CAIRN_INLINE uint32_t pair_at(const uint16_t *cache, int slot, int word) {
    return ((const uint32_t *)(cache + slot * HEAD_DIM))[word];
}
template <class Keys> CAIRN_INLINE uint32_t pair_at(const kept_cache<Keys> &cache, int slot, int word) {
    const int64_t from = cache.step + slot * HEAD_DIM + 2 * word;
    return half_pair_of_cache(cache.values, from, cache.scales + from / HEAD_DIM);
}

template <class Other> CAIRN_INLINE int64_t token_at(const Other &, int) { return 0; }

/* bf16 lies as it is and becomes f16 on its way to the tensor cores. */
struct bf16_store : half_store {
    CAIRN_METHOD void keys(const unsigned char *keys, int i, int u, uint32_t *a) {
        half_store::keys(keys, i, u, a);
#pragma unroll
        for (int r = 0; r < 8; r++) a[r] = half_of_pair(a[r]);
    }
    CAIRN_METHOD void values(const unsigned char *values, int i, int n, uint32_t *a) {
        half_store::values(values, i, n, a);
#pragma unroll
        for (int r = 0; r < 8; r++) a[r] = half_of_pair(a[r]);
    }
};

/* Scales of e4m3, of this warp's keys and values: those of keys go into the scores, those of values
 * into the weights, as shares of the largest so far, in which the sums are counted. */
constexpr int SCALES_AT = ATTEND_BYTES, SCALES_STAGE = 2 * WARP_KEYS * 4;

struct byte_scales {
    const unsigned char *mine;
    float unit, faded, shares[WARP_PIECES * 2];

    CAIRN_MEMBER explicit byte_scales(unsigned char *memory)
        : mine(memory + SCALES_AT + warp_id() * 2 * SCALES_STAGE), unit(1e-35f), faded(1.0f) {}
    template <int TILES> CAIRN_MEMBER void of_keys(int stage, scores<TILES> &s, int count) const {
        const float *at = (const float *)(mine + stage * SCALES_STAGE);
        s.each(count, [&](int, int i, int key, float &v) { v *= at[i * 16 + key]; });
    }
    CAIRN_MEMBER void of_values(int stage) {
        const float *at = (const float *)(mine + stage * SCALES_STAGE) + WARP_KEYS + lane_id() / 4;
        float most = unit;
#pragma unroll
        for (int i = 0; i < WARP_PIECES * 2; i++) {
            shares[i] = at[i * 8];
            most = fmaxf(most, fabsf(shares[i]));
        }
        /* The power of two above, so that nothing is lost. */
        const uint32_t above = (as_u32(column_max(most)) + 0x7fffffu) & 0x7f800000u;
        const float share = as_f32(0x7f000000u - min_of(above, 0x7e800000u));
        faded = unit * share, unit = as_f32(min_of(above, 0x7e800000u));
#pragma unroll
        for (int i = 0; i < WARP_PIECES * 2; i++) shares[i] *= share;
    }
    CAIRN_MEMBER float weight(int i, float e) const { return e * shares[i]; }
    CAIRN_MEMBER float fade(float old) const { return old * faded; }
    CAIRN_MEMBER float whole(float v) const { return v * unit; }
};

/* Bytes lie as they are, two chunks at a time: the eight rows of a tile of bytes, of which an element is two
 * dimensions of a key, touch all banks. Keys bring these as they lie, four dimensions to a lane; of values they
 * are put apart. */
struct byte_store {
    static constexpr int STAGES = 2, PARTS = DIM / 16;
    static constexpr bool TURNED = true;
    typedef byte_scales Scales;

    CAIRN_METHOD uint32_t place(int key, int part) {
        const int turn = PARTS % 8 == 0   ? key & 7
                         : PARTS % 4 == 0 ? key >> 1 & 3
                         : PARTS % 2 == 0 ? key >> 2 & 1
                                          : 0;
        return (uint32_t)(key * PARTS + (part ^ turn)) * 16;
    }
    CAIRN_METHOD void keys(const unsigned char *keys, int i, int u, uint32_t *a) {
        const int lane = lane_id();
        uint32_t v[4];
        load_matrix_x4(v, shared_addr(keys + place(i * 16 + lane % 16, 2 * u + lane / 16)));
#pragma unroll
        for (int r = 0; r < 4; r++) /* part r / 2 of key g + r % 2 * 8 */
            e4m3x4_to_f16x4(v[r], a + r / 2 * 4 + r % 2, a + r / 2 * 4 + r % 2 + 2);
    }
    CAIRN_METHOD void queries(const unsigned char *queries, int q, int u, uint32_t *b) {
        const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t at = piece_at(q * 8 + g, 4 * u + 2 * h + t / 2) + t % 2 * 8;
            const u32x2 v = *(const u32x2 *)(queries + at);
            b[2 * h] = v.x, b[2 * h + 1] = v.y;
        }
    }
    CAIRN_METHOD void values(const unsigned char *values, int i, int n, uint32_t *a) {
        const int lane = lane_id();
        uint32_t v[4];
        load_matrix_transposed_x4(
            v, shared_addr(values + place(i * 16 + lane % 16, 2 * n + lane / 16)));
#pragma unroll
        for (int r = 0; r < 4; r++) { /* part r / 2 of keys 2t and 2t + 1, or 8 more */
            const uint32_t apart = byte_permute(v[r], 0, 0x3120);
            e4m3x4_to_f16x4(apart, a + r / 2 * 4 + r % 2 * 2, a + r / 2 * 4 + r % 2 * 2 + 1);
        }
    }
};
template <class Keys> struct store_of<kept_cache<Keys>> {
    typedef pick<BYTES, byte_store, pick<CACHE_KIND == ATTEND_CACHE_BF16, bf16_store, half_store>> type;
};

/* The scale of a key whose first bytes go to `to`. */
CAIRN_INLINE void fetch_scale(const float *scale, bool seen, int key, shared_addr to) {
    const int warp_bytes = 2 * KEYS_BYTES;
    const int at = (int)(to.at - shared_addr(shared_base()).at) % warp_bytes;
    const int stage = at % KEYS_BYTES / (KEYS_BYTES / 2), values = at / KEYS_BYTES;
    shared_addr place(shared_base() + SCALES_AT + (warp_id() * 2 + stage) * SCALES_STAGE);
    copy_async4(place + (uint32_t)(values * WARP_KEYS + key) * 4, scale, seen);
}

/* Pages of bytes: sixteen keys lie one after the other, as do their scales. */
template <class Source, class Place>
CAIRN_INLINE void fetch_bytes(const kept_cache<Source> &cache, const key_piece *piece, int values,
                              unsigned char *to, Place place) {
    const int lane = lane_id();
    const int stage = (int)(to - shared_base()) % KEYS_BYTES / (KEYS_BYTES / 2);
    unsigned char *scales = shared_base() + SCALES_AT + (warp_id() * 2 + stage) * SCALES_STAGE +
                            values * WARP_KEYS * 4;
#pragma unroll
    for (int i = 0; i < WARP_PIECES; i++) {
        const int64_t at = max_of(piece[i].at, (int64_t)0) + cache.step;
        const uint8_t *from = (const uint8_t *)cache.values + at + lane * 16;
#pragma unroll
        for (int j = 0; j < DIM / 32; j++) {
            const int n = lane + j * WARP, key = n / byte_store::PARTS, part = n % byte_store::PARTS;
            const bool held = DIM == HEAD_DIM || part < HEAD_DIM / 16;
            const int skipped = DIM == HEAD_DIM || !held ? 0 : key * (DIM - HEAD_DIM);
            copy_async16(shared_addr(to + place(i * 16 + key, part)), from + j * 512 - skipped,
                         held && key <= piece[i].last);
        }
        if (lane < 16)
            copy_async4(shared_addr(scales + (i * 16 + lane) * 4),
                        cache.scales + (uint64_t)at / HEAD_DIM + lane, lane <= piece[i].last);
    }
}
template <class Keys>
CAIRN_INLINE void fetch_part(const kept_cache<Keys> &cache, const key_piece &piece, int i, int slot,
                             int part, bool seen, shared_addr to) {
    const int64_t at = TOKEN_LISTS ? token_at(cache.keys, i * 16 + slot) : piece.at + slot * HEAD_DIM;
    const int64_t from = at + cache.step;
    seen = seen && at >= 0;
    if constexpr (BYTES) {
        const bool held = seen && (DIM == HEAD_DIM || part < HEAD_DIM / 16);
        copy_async16(to, (const uint8_t *)cache.values + (held ? from + part * 16 : 0), held);
        if (part == 0)
            fetch_scale(cache.scales + (seen ? from / HEAD_DIM : 0), seen, i * 16 + slot, to);
    } else if constexpr (CACHE_KIND == ATTEND_CACHE_F32) {
        u32x4 v = {};
        if (seen && has_piece(part)) v = half_of_f32((const float *)cache.values + from + part * 8);
        *(u32x4 *)(shared_base() + (to.at - shared_addr(shared_base()).at)) = v;
    } else {
        seen = seen && has_piece(part);
        copy_async16(to, (const uint16_t *)cache.values + (seen ? from + part * 8 : 0), seen);
    }
}

template <class Keys, class Skip>
CAIRN_INLINE void fetch_keys(const kept_cache<Keys> &cache, const key_piece *piece,
                             unsigned char *mine, Skip skip) {
    typedef typename store_of<kept_cache<Keys>>::type Store;
    const auto place = [](int key, int part) { return Store::place(key, part); };
    if constexpr (BYTES && !TOKEN_LISTS) fetch_bytes(cache, piece, 0, mine, place);
    else fetch_pieces(cache, piece, shared_addr(mine), place, skip);
}
template <class Keys, class Skip>
CAIRN_INLINE void fetch_values(const kept_cache<Keys> &cache, int value_step, const key_piece *piece,
                               unsigned char *mine, Skip skip) {
    typedef typename store_of<kept_cache<Keys>>::type Store;
    const auto place = [](int key, int part) { return Store::place(key, part); };
    const kept_cache<Keys> values = cache + value_step;
    if constexpr (BYTES && !TOKEN_LISTS) fetch_bytes(values, piece, 1, mine + KEYS_BYTES, place);
    else fetch_pieces(values, piece, shared_addr(mine + KEYS_BYTES), place, skip);
}

/* Eight values, which lie as f16 or bf16. */
template <class Keys>
CAIRN_INLINE void fetch_whole(const kept_cache<Keys> &cache, const key_piece &piece, int slot, int part,
                              bool seen, shared_addr to) {
    const int64_t from = piece.at + slot * HEAD_DIM + cache.step;
    seen = seen && has_piece(part);
    if constexpr (CACHE_KIND == ATTEND_CACHE_F16 || CACHE_KIND == ATTEND_CACHE_BF16) {
        copy_async16(to, (const uint16_t *)cache.values + (seen ? from + part * 8 : 0), seen);
    } else {
        u32x4 v = {};
        if (seen) v = half_of_cache(cache.values, from + part * 8, cache.scales + from / HEAD_DIM);
        *(u32x4 *)(shared_base() + (to.at - shared_addr(shared_base()).at)) = v;
    }
}

#endif

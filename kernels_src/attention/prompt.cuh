/* attention/prompt.cuh: a tile of 128 queries against all keys of a sequence in order, by wgmma.
 *
 * Two groups of four warps have 64 queries each; a third brings the keys and the values, MANY_KEYS at a
 * time, into two places each, and tells by barriers what is there as they tell what is free. While a
 * tile's weights are made, the products of the tile before with its values are under way. Tiles begin
 * at multiples of MANY_KEYS, and a tile of keys that a query does not see changes nothing of its sums: so
 * a query's bits depend on nothing but the query.
 *
 * A source says where keys lie and what is seen:
 *   part(from)   the part of the tile that begins with token `from`: .to, .last (the last position that
 *                any of its tokens sees, -1: nothing), .begin and .sinks as in attention/packed.cuh
 *   page(c)      the physical page of logical page c of that part, or -1
 *   keys(page, slot, head of keys or values)
 *   last(t), first(t), exists(m)  of token t, of query m
 *   MASKED       whether tokens see by a mask, too: seen(t, position) then has a bit for each of 32
 *                positions (t -1: whatever), and all see those before base()
 *   SPANS        whether the sums begin anew every LAYOUT_SPAN keys, as in a model's prompts
 *   alone()      the queries are those of the first group: the second is not there */
#ifndef CAIRN_ATTENTION_PROMPT_CUH
#define CAIRN_ATTENTION_PROMPT_CUH

#include "device/wgmma.cuh"

constexpr int MANY_ROWS = LAYOUT_MANY_ROWS, MANY_KEYS = LAYOUT_MANY_KEYS;
constexpr int MANY_THREADS = LAYOUT_MANY_THREADS, MANY_PIECES = HEAD_DIM / 8;
constexpr int MANY_QUERIES = MANY_ROWS * HEAD_DIM * 2, MANY_TILE = MANY_KEYS * HEAD_DIM * 2;
enum { MANY_KEYS_SIDE = 0, MANY_VALUES_SIDE = 1, MANY_TURNS = 1 /* and 2: named barriers */ };

/* Whether the first tile of keys, and a block's first span, have texts of their own: one for all takes a fifth less to
 * compile, but a prompt's attention 3 to 5 % longer. The bits are the same. */
#ifdef CAIRN_FIRST_APART
constexpr bool MANY_APART = CAIRN_FIRST_APART;
#else
constexpr bool MANY_APART = true;
#endif

constexpr int MANY_BARRIERS_AT = 1600, MANY_HEADER = 2048;
static_assert(layout_many_bytes(HEAD_DIM) == MANY_HEADER + 1024 + MANY_QUERIES + 4 * MANY_TILE,
              "prompt: its shared memory");

/* Where the queries begin; behind them two tiles of keys, two of values. */
CAIRN_INLINE unsigned char *many_memory() {
    const uint32_t at = shared_addr(shared_base()).at;
    return shared_base() + ((at + MANY_HEADER + 1023) / 1024 * 1024 - at);
}
CAIRN_INLINE unsigned char *many_tile(int side, int n) {
    return many_memory() + MANY_QUERIES + (side * 2 + n % 2) * MANY_TILE;
}

/* Of tile n of a side: ended when it is there, when it is free. */
CAIRN_INLINE shared_addr many_full(int side, int n) {
    return shared_addr(shared_base() + MANY_BARRIERS_AT + (side * 2 + n % 2) * 8);
}
CAIRN_INLINE shared_addr many_free(int side, int n) { return many_full(side, n) + 32; }
/* A byte of each warp that brings keys: its two pieces of 16, whether they are anywhere. */
CAIRN_INLINE unsigned char *many_there(int n) {
    return shared_base() + MANY_BARRIERS_AT + 64 + n % 2 * 4;
}
constexpr uint32_t MANY_ALL = 0x03030303u;

/* One thread; before a block_sync. users: warps. */
CAIRN_INLINE void many_barriers(uint32_t users) {
    for (int i = 0; i < 4; i++) {
        mbarrier_init(many_full(0, 0) + (uint32_t)(i * 8), 4);
        mbarrier_init(many_free(0, 0) + (uint32_t)(i * 8), users);
    }
    fence_mbarrier_init();
}

CAIRN_INLINE int many_next(int tile, int begin, int sinks) {
    return tile * MANY_KEYS >= sinks ? max_of(tile, begin / MANY_KEYS) : tile;
}

/* ---- the warps that bring keys ---- */

/* Copies of a warp's keys at a time: so many of them whole. */
constexpr int MANY_AT_ONCE = WARP / MANY_PIECES;

struct many_carrier {
    uint32_t due; /* the barrier of the copies before the newest; 0: none */

    /* That the copies before the newest, or these too, are there. */
    template <int newest> CAIRN_MEMBER void tell() {
        if (!due) return;
        copy_async_wait<newest>();
        fence_async();
        warp_sync();
        if (lane_id() == 0) mbarrier_arrive(shared_addr(due));
    }
    /* Tile `tile`, the side's number `n`. held: of lane i % 2 the page of the warp's keys 16 i... */
    template <class Source>
    CAIRN_MEMBER void bring(const Source &source, int side, int n, int tile, int last, int held) {
        const int lane = lane_id(), warp = warp_id() % 4, key = lane / MANY_PIECES;
        const shared_addr to =
            shared_addr(many_tile(side, n)) + swizzled_at(warp * 32 + key, lane % MANY_PIECES, MANY_KEYS);
        uint32_t there = 0;
        mbarrier_wait(many_free(side, n), (uint32_t)(n / 2 & 1) ^ 1);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int physical = shuffle(held, i), first = tile * MANY_KEYS + warp * 32 + i * 16;
            const int seen = (physical < 0 ? 0 : last - first + 1) - key;
            const uint16_t *from = source.keys(max_of(physical, 0), first % PAGE, side) + lane * 8;
            there |= (uint32_t)(physical >= 0 || first > last) << i;
#pragma unroll
            for (int j = 0; j < 16; j += MANY_AT_ONCE)
                copy_async16((to ^ (uint32_t)(j % 8 * 16)) + (uint32_t)((i * 16 + j) * 128),
                             from + j * HEAD_DIM, j < seen);
        }
        copy_async_commit();
        if (side == MANY_KEYS_SIDE && lane == 0) many_there(n)[warp] = (unsigned char)there;
        tell<1>();
        due = many_full(side, n).at;
    }
    template <class Source> CAIRN_MEMBER int look(const Source &source, int tile, int last) const {
        const int position = tile * MANY_KEYS + (warp_id() % 4 * 2 + lane_id() % 2) * 16;
        return position > last ? -1 : source.page(position / PAGE);
    }
};

/* Of each part keys before the values of the tile before; pages are asked for a tile ahead. */
template <class Source> CAIRN_INLINE void many_bring(Source &source) {
    many_carrier to = {0};
    int n = 0;
    for (int from = 0; from < source.tokens;) {
        const auto part = source.part(from);
        const int end = part.last / MANY_KEYS + 1;
        int tile = end, next = many_next(0, part.begin, part.sinks), held = -1;
        int ahead = to.look(source, next, part.last);
        from = part.to;
        if (part.last < 0) continue;
#pragma unroll 1
        while (next < end || tile < end) {
            const int after = many_next(next + 1, part.begin, part.sinks);
            const int later = to.look(source, after, part.last);
            const bool first = tile >= end;
#pragma unroll 1
            for (int side = next < end ? 0 : 1; side < (first ? 1 : 2); side++)
                to.bring(source, side, side ? n : n + !first, side ? tile : next, part.last,
                         side ? held : ahead);
            n += !first;
            tile = next, next = after, held = ahead, ahead = later;
        }
    }
    to.tell<0>();
}

/* ---- the warps that use them ---- */

struct many_sums {
    float top[2], total[2]; /* of the lane's values alone, but top */
    float o[HEAD_DIM / 2];
};

/* What sums over keys, and those over later ones, are taken times to be those over both, (top, total) of
 * which are left in place of the first. Whoever merges does it by these two. */
struct many_share { float before, behind; };
CAIRN_INLINE many_share many_merge(float &top, float &total, float later_top, float later_total) {
    const float most = fmaxf(top, later_top), base = most == minus_infinity() ? 0.0f : most;
    const many_share by = {exp2_fast(top - base), exp2_fast(later_top - base)};
    top = most, total = fma_f32(later_total, by.behind, total * by.before);
    return by;
}
CAIRN_INLINE float many_both(float o, float later, many_share by) {
    return fma_f32(later, by.behind, o * by.before);
}
/* Two values as they are handed on. A span of which a query sees nothing may have turned -0 to 0: here both
 * become 0. */
CAIRN_INLINE uint32_t many_divided(float a, float b, float share) {
    return pack_f16x2(fma_f32(a, share, 0.0f), fma_f32(b, share, 0.0f));
}

/* The sums of the spans that a block is through with, of all its users, where these have put them. */
struct many_spans {
    float top[2], total[2];
    bool any;

    CAIRN_METHOD f32x4 &at(int i) {
        return *(f32x4 *)(many_memory() + MANY_QUERIES + 4 * MANY_TILE + (i / 4 * 256 + thread_id()) * 16);
    }
    /* Those of one more: r.o, which becomes zeros, and these, of the lane's values alone. */
    CAIRN_MEMBER void put(many_sums &r, const float *more_top, const float *more_total) {
        many_share by[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float sum = quad_sum(more_total[h]);
            if (any) by[h] = many_merge(top[h], total[h], more_top[h], sum);
            else top[h] = more_top[h], total[h] = sum;
        }
        if (!any) by[0] = by[1] = {0.0f, 1.0f};
        if (MANY_APART && !any) {
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 2; i += 4) at(i) = f32x4{r.o[i], r.o[i + 1], r.o[i + 2], r.o[i + 3]};
        } else {
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 2; i += 4) at(i) = both(any ? at(i) : f32x4{}, r.o + i, by);
        }
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) r.o[i] = 0.0f;
        any = true;
    }
    /* r, whose totals are whole, becomes the sums of all with it. */
    CAIRN_MEMBER void take(many_sums &r) {
        many_share by[2];
        if (!any) return;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            by[h] = many_merge(top[h], total[h], r.top[h], r.total[h]);
            r.top[h] = top[h], r.total[h] = total[h];
        }
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i += 4) {
            const f32x4 v = both(at(i), r.o + i, by);
            r.o[i] = v.x, r.o[i + 1] = v.y, r.o[i + 2] = v.z, r.o[i + 3] = v.w;
        }
    }
    CAIRN_METHOD f32x4 both(f32x4 v, const float *later, const many_share *by) {
        return f32x4{many_both(v.x, later[0], by[0]), many_both(v.y, later[1], by[0]),
                     many_both(v.z, later[2], by[1]), many_both(v.w, later[3], by[1])};
    }
};

template <bool BF16> struct many_products {
    /* Steps of 16 along slabs of so many rows. */
    CAIRN_METHOD uint64_t along(int i, int rows) { return (uint64_t)((i / 4 * rows * 128 + i % 4 * 32) / 16); }
    CAIRN_METHOD void scores(float *s, uint64_t q, uint64_t k) {
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; i++) {
            const uint64_t a = q + along(i, MANY_ROWS), b = k + along(i, MANY_KEYS);
            if constexpr (BF16) wgmma_bf16_128_shared(s, a, b, i > 0);
            else wgmma_f16_128_shared(s, a, b, i > 0);
        }
        wgmma_commit();
    }
    CAIRN_METHOD void values(float *o, const uint32_t *weights, uint64_t v) {
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < MANY_KEYS / 16; k++) {
            const uint64_t b = v + (uint64_t)(k * 2048 / 16);
            const uint32_t *a = weights + 4 * k;
            if constexpr (HEAD_DIM == 128 && BF16) wgmma_bf16_128_turned(o, a, b, true);
            else if constexpr (HEAD_DIM == 128) wgmma_f16_128_turned(o, a, b, true);
            else if constexpr (BF16) wgmma_bf16_64_turned(o, a, b, true);
            else wgmma_f16_64_turned(o, a, b, true);
        }
        wgmma_commit();
    }
    CAIRN_METHOD void pack(const float *s, uint32_t *weights) {
#pragma unroll
        for (int i = 0; i < MANY_KEYS / 4; i++)
            weights[i] = BF16 ? pack_bf16x2(s[2 * i], s[2 * i + 1]) : pack_f16x2(s[2 * i], s[2 * i + 1]);
    }
};

/* What the lane's two rows see. */
struct many_view {
    int last[2], begin[2], token[2], sinks;
    int lowest, highest; /* of the warp: last, begin */

    CAIRN_MEMBER bool whole(int first, uint32_t there) const {
        return there == MANY_ALL && first + MANY_KEYS - 1 <= lowest &&
               (first >= highest || first + MANY_KEYS <= sinks);
    }
    template <class Source>
    CAIRN_MEMBER void hide(const Source &source, int first, uint32_t there, float *s) const {
        uint32_t masks[2][MANY_KEYS / 32];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if constexpr (Source::MASKED) {
                const uint32_t own = source.seen(token[half], first + lane_id() % 4 * 32);
#pragma unroll
                for (int w = 0; w < MANY_KEYS / 32; w++) masks[half][w] = shuffle(own, lane_id() / 4 * 4 + w);
            }
        }
#pragma unroll
        for (int i = 0; i < MANY_KEYS / 2; i++) {
            const int half = i / 2 % 2, key = i / 4 * 8 + lane_id() % 4 * 2 + i % 2, n = i / 8;
            const int position = first + key;
            bool sees = (position <= last[half]) & ((position >= begin[half]) | (position < sinks)) &
                        (there >> (n / 2 * 8 + n % 2) & 1) != 0;
            if constexpr (Source::MASKED) sees &= (masks[half][i / 16] >> key % 32 & 1) != 0;
            s[i] = sees ? s[i] : minus_infinity();
        }
    }
};

CAIRN_INLINE void many_fade(many_sums &r, const float *old) {
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; i++) r.o[i] *= old[i / 2 % 2];
}

/* Frees tile n of a side, whole warps. */
CAIRN_INLINE void many_release(int side, int n) {
    warp_sync();
    if (lane_id() == 0) mbarrier_arrive(many_free(side, n));
}

/* A warp's part in the products of its group of four. */
template <bool BF16> struct many_user {
    typedef many_products<BF16> products;
    many_sums r;
    many_spans spans;
    float s[MANY_KEYS / 2], old[2];
    uint32_t weights[MANY_KEYS / 4];
    float factor;
    int n; /* tiles so far */
    uint64_t q;

    CAIRN_METHOD int mine() { return warp_id() / 4; }
    CAIRN_METHOD uint64_t matrix(int side, int n) {
        return wgmma_swizzled(shared_addr(many_tile(side, n)), MANY_KEYS * 128);
    }
    CAIRN_MEMBER void clear(float scale) {
        n = 0, factor = scale, spans.any = false;
        q = wgmma_swizzled(shared_addr(many_memory() + mine() * 64 * 128), MANY_KEYS * 128);
        begin_sums();
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) r.o[i] = 0.0f;
    }
    CAIRN_MEMBER void begin_sums() {
        r.top[0] = r.top[1] = minus_infinity();
        r.total[0] = r.total[1] = 0.0f;
    }
    CAIRN_METHOD uint32_t await(int side, int n) {
        mbarrier_wait(many_full(side, n), (uint32_t)(n / 2 & 1));
        return side == MANY_KEYS_SIDE ? *(const uint32_t *)many_there(n) : 0;
    }
    /* Scores of tile `tile`, number `at`, once made, to weights. */
    template <class Source>
    CAIRN_MEMBER void fold(const Source &source, const many_view &view, int tile, int at, uint32_t there) {
        wgmma_hold<MANY_KEYS / 2>(s);
        many_release(MANY_KEYS_SIDE, at);
        if (!view.whole(tile * MANY_KEYS, there)) view.hide(source, tile * MANY_KEYS, there, s);
        weigh_scores<MANY_KEYS>(s, factor, r.top, r.total, old);
    }
    CAIRN_MEMBER void pack() {
        many_fade(r, old);
        products::pack(s, weights);
    }
    /* Once the products with the values of tile n, if any, are made. */
    CAIRN_MEMBER void end_values(bool any) {
        wgmma_wait<0>();
        wgmma_hold<HEAD_DIM / 2>(r.o);
        if (any) many_release(MANY_VALUES_SIDE, n);
    }
    /* Scores of tile `tile`, and where there is one `behind` it, number n, then the values of that; the groups issue
     * theirs in turn. Where that one ends a span its sums are put by. */
    template <class Source>
    CAIRN_MEMBER void next(const Source &source, const many_view &view, int tile, bool behind) {
        const bool ends = Source::SPANS && behind && tile % (LAYOUT_SPAN / MANY_KEYS) == 0;
        const bool turns = behind && !source.alone();
        const int number = n + behind;
        const uint32_t there = await(MANY_KEYS_SIDE, number);
        if (turns) named_sync(MANY_TURNS + mine(), 256);
        products::scores(s, q, matrix(MANY_KEYS_SIDE, number));
        if (behind) {
            await(MANY_VALUES_SIDE, n);
            products::values(r.o, weights, matrix(MANY_VALUES_SIDE, n));
        } else if (!MANY_APART) wgmma_commit(); /* of nothing */
        if (turns) named_arrive(MANY_TURNS + 1 - mine(), 256);
        if (MANY_APART && !behind) wgmma_wait<0>();
        else wgmma_wait<1>();
        const float top[2] = {r.top[0], r.top[1]}, total[2] = {r.total[0], r.total[1]};
        if (ends) begin_sums();
        fold(source, view, tile, number, there);
        if (behind || !MANY_APART) end_values(behind);
        if (ends) spans.put(r, top, total);
        pack();
        n += behind;
    }
    CAIRN_MEMBER void last() {
        await(MANY_VALUES_SIDE, n);
        products::values(r.o, weights, matrix(MANY_VALUES_SIDE, n));
        end_values(true);
        n++;
    }
};

/* What the lane's rows see of a part. */
template <class Source, class Part>
CAIRN_INLINE many_view many_look(const Source &source, const Part &part, int from, int group) {
    many_view view;
    view.sinks = part.sinks, view.lowest = 0x7fffffff, view.highest = 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int m = warp_id() * 16 + lane_id() / 4 + half * 8, token = m / group;
        const bool own = token >= from && token < part.to;
        view.token[half] = own ? token : -1;
        view.last[half] = own ? source.last(token) : source.exists(m) ? -1 : 0x7fffffff;
        view.begin[half] = own ? source.first(token) : 0;
        view.lowest = min_of(view.lowest, view.last[half]);
        view.highest = max_of(view.highest, view.begin[half]);
    }
    if constexpr (Source::MASKED) view.lowest = min_of(view.lowest, source.base() - 1);
    view.lowest = warp_min(view.lowest), view.highest = warp_max(view.highest);
    return view;
}

/* The sums of queries 16 warp_id() + lane_id() / 4 and of those 8 on. */
template <bool BF16, class Source>
CAIRN_INLINE many_sums many_use(Source &source, int group, float factor) {
    many_user<BF16> user;
    user.clear(factor);
    if (user.mine() == 1 && !source.alone()) named_arrive(MANY_TURNS, 256); /* the other begins */
    for (int from = 0; from < source.tokens;) {
        const auto part = source.part(from);
        const many_view view = many_look(source, part, from, group);
        const int end = part.last / MANY_KEYS + 1;
        int tile = many_next(0, part.begin, part.sinks);
        from = part.to;
        if (part.last < 0 || tile >= end) continue;
        if constexpr (MANY_APART) {
            user.next(source, view, tile, false);
#pragma unroll 1
            while ((tile = many_next(tile + 1, part.begin, part.sinks)) < end) user.next(source, view, tile, true);
        } else {
            bool behind = false;
#pragma unroll 1
            for (; tile < end; tile = many_next(tile + 1, part.begin, part.sinks), behind = true)
                user.next(source, view, tile, behind);
        }
        user.last();
    }
    if (user.mine() == 0 && !source.alone()) named_sync(MANY_TURNS, 256); /* as often as the other arrives */
#pragma unroll
    for (int half = 0; half < 2; half++) user.r.total[half] = quad_sum(user.r.total[half]);
    if constexpr (Source::SPANS) user.spans.take(user.r);
    return user.r;
}

#endif

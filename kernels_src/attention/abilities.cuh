/* attention/abilities.cuh: what attention over an op's tensors can do besides the engine's form, each
 * behind its bits of CAIRN_ABILITIES (abi/attention.h), so that what is not asked for costs nothing:
 * caches and queries of other types, page tables in rows of any length, a cap on scores, masks over
 * the rows of a step, pages with weights of their own, landmarks, lists of tokens. */
#ifndef CAIRN_ABILITIES_CUH
#define CAIRN_ABILITIES_CUH

constexpr int CACHE_KIND = CAIRN_ABILITIES & ATTEND_CACHE;
constexpr bool SOFTCAP = (CAIRN_ABILITIES & ATTEND_SOFTCAP) != 0;
constexpr bool MASKED = (CAIRN_ABILITIES & ATTEND_MASK) != 0;
constexpr bool TWO_LEVEL = (CAIRN_ABILITIES & ATTEND_TWO_LEVEL) != 0;
constexpr bool LANDMARKS = (CAIRN_ABILITIES & ATTEND_LANDMARKS) != 0;
constexpr bool PARTED = (CAIRN_ABILITIES & ATTEND_PARTS) != 0;
constexpr bool TOKENS = (CAIRN_ABILITIES & ATTEND_TOKENS) != 0;
constexpr bool CHAINED = (CAIRN_ABILITIES & ATTEND_CHAINED) != 0;
constexpr bool BYTES = CACHE_KIND == ATTEND_CACHE_E4M3;
/* Scores become what they are by `scores` below, else by a factor alone. */
constexpr bool ADJUSTED = SOFTCAP || MASKED || TWO_LEVEL || TOKENS;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float NO_SCORE = -3e38f; /* below NOTHING */

/* ---- elements ---- */

CAIRN_INLINE u32x4 pack_floats(const float *x) {
    return u32x4{pack_f16x2_within(x[0], x[1]), pack_f16x2_within(x[2], x[3]),
                 pack_f16x2_within(x[4], x[5]), pack_f16x2_within(x[6], x[7])};
}
/* Two values of bf16. */
CAIRN_INLINE uint32_t half_of_pair(uint32_t pair) {
    const f32x2 v = unpack_bf16x2(pair);
    return pack_f16x2_within(v.x, v.y);
}
CAIRN_INLINE u32x4 half_of_bf16(const void *from) {
    const u32x4 w = *(const u32x4 *)from;
    return u32x4{half_of_pair(w.x), half_of_pair(w.y), half_of_pair(w.z), half_of_pair(w.w)};
}
CAIRN_INLINE u32x4 half_of_f32(const void *from) {
    const f32x4 a = *(const f32x4 *)from, b = ((const f32x4 *)from)[1];
    const float x[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    return pack_floats(x);
}
CAIRN_INLINE u32x4 half_of_e4m3(const void *from, float scale) {
    const u32x2 w = *(const u32x2 *)from;
    const uint32_t two[4] = {w.x & 0xffff, w.x >> 16, w.y & 0xffff, w.y >> 16};
    float x[8];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const f32x2 v = unpack_f16x2(e4m3x2_to_f16x2((uint16_t)two[i]));
        x[2 * i] = v.x * scale, x[2 * i + 1] = v.y * scale;
    }
    return pack_floats(x);
}
/* Eight values of the cache, from value number `from` on, whose slot has `scale`. */
CAIRN_INLINE u32x4 half_of_cache(const void *cache, int64_t from, const float *scale) {
    if constexpr (CACHE_KIND == ATTEND_CACHE_BF16)
        return half_of_bf16((const uint16_t *)cache + from);
    if constexpr (CACHE_KIND == ATTEND_CACHE_F32) return half_of_f32((const float *)cache + from);
    if constexpr (CACHE_KIND == ATTEND_CACHE_E4M3)
        return half_of_e4m3((const uint8_t *)cache + from, *scale);
    return *(const u32x4 *)((const uint16_t *)cache + from);
}
/* Eight values of the queries from number `from` on; f32 may lie at any multiple of 4 bytes. */
CAIRN_INLINE u32x4 half_of_query(const void *q, int64_t from) {
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] = CAIRN_ABILITIES & ATTEND_QUERY_F16 ? f16_to_f32(((const f16 *)q)[from + i])
               : CAIRN_ABILITIES & ATTEND_QUERY_BF16
                   ? bf16_to_f32(((const bf16 *)q)[from + i])
                   : ((const float *)q)[from + i];
    return pack_floats(x);
}

/* ---- lists of tokens ---- */

/* What a row attends: `length` ids of slots. */
struct token_list {
    const int32_t *ids;
    int length;

    /* False for a row that does not exist. All threads. */
    CAIRN_MEMBER bool find(const attend_params &p, int r) {
        ids = p.tokens + (p.cu_lens ? 0 : (int64_t)r * p.token_width), length = p.token_width;
        if (!p.cu_lens) return true;
        const int b = p.at.sequences ? p.at.sequences[r] : r;
        if (b < 0 || b >= p.at.sequence_count) {
            if (thread_id() == 0) report_error(p.at.error, CAIRN_FAULT_ID, r, b);
            return false;
        }
        const int from = p.cu_lens[b], to = p.cu_lens[b + 1];
        const bool fits = from >= 0 && from <= to && to <= p.token_width;
        if (!fits && thread_id() == 0) report_error(p.at.error, CAIRN_FAULT_LENGTH, r, to);
        ids += from, length = to - from;
        return fits;
    }
};

/* The pieces of this warp: a lane knows where the values of one key of the chunk begin. */
struct token_pieces {
    const attend_params &p;
    token_list of;
    int kv_head;
    int64_t held;         /* of this lane's key; -1: none */
    uint32_t seen[2]; /* a bit for each key of the warp, of the last even and the last odd chunk */

    CAIRN_MEMBER void look_up(int chunk) {
        const int at = chunk * CHUNK + warp_id() * WARP_KEYS + lane_id(), size = p.at.page_size;
        held = -1;
        if (lane_id() < WARP_KEYS && at < of.length) {
            const int id = of.ids[at];
            if (id >= 0 && id / size < p.at.pages)
                held = (((int64_t)(id / size) * 2 * p.at.kv_heads + kv_head) * size + id % size) *
                       HEAD_DIM;
            else if (id != -1)
                report_error(p.at.error, CAIRN_FAULT_ID, block_id_z(), id);
        }
        const uint32_t there = warp_ballot(held >= 0);
        seen[0] = chunk % 2 ? seen[0] : there;
        seen[1] = chunk % 2 ? there : seen[1];
    }
    CAIRN_MEMBER uint32_t seen_of(int chunk) const { return chunk % 2 ? seen[1] : seen[0]; }
    CAIRN_MEMBER void reach(int chunk) { look_up(chunk); }
    CAIRN_MEMBER void find(int chunk, key_piece *piece) const {
#pragma unroll
        for (int i = 0; i < WARP_PIECES; i++)
            piece[i] = key_piece{0, chunk * CHUNK + warp_id() * WARP_KEYS + i * 16, 15};
    }
};

/* ---- lists of pages, without landmarks ---- */

template <class Source> struct real_pieces {
    listed_pieces<Source> all;

    CAIRN_MEMBER void look_up(int chunk) { all.look_up(chunk); }
    CAIRN_MEMBER void reach(int chunk) { all.reach(chunk); }
    CAIRN_MEMBER void find(int chunk, key_piece *piece) const {
        all.find(chunk, piece);
#pragma unroll
        for (int i = 0; LANDMARKS && i < WARP_PIECES; i++)
            piece[i].last = min_of(piece[i].last, PAGE - 2 - piece[i].position % PAGE);
    }
};

/* ---- caches ---- */

/* A cache of any kind, for fetch_pieces; keys holds where the tokens of a list lie. */
template <class Keys> struct kept_cache {
    const void *values;
    const float *scales;
    const Keys &keys;
    int64_t step;

    CAIRN_MEMBER kept_cache operator+(int more) const {
        return kept_cache{values, scales, keys, step + more};
    }
};
CAIRN_INLINE int64_t token_at(const token_pieces &keys, int key) { return shuffle(keys.held, key); }
template <class Other> CAIRN_INLINE int64_t token_at(const Other &, int) { return 0; }

/* bf16 lies as it is and becomes f16 on its way to the tensor cores. */
struct bf16_store : half_store {
    CAIRN_METHOD u32x4 key(const unsigned char *keys, int key, int piece) {
        return half_of_bf16(keys + key_at(key, piece));
    }
    CAIRN_METHOD void values(const unsigned char *values, int k, int n, uint32_t *b) {
        half_store::values(values, k, n, b);
#pragma unroll
        for (int i = 0; i < 4; i++) b[i] = half_of_pair(b[i]);
    }
};

/* Scales of e4m3, of this warp's keys and values: those of keys go into the scores, those of values
 * into the weights, as shares of the largest so far, in which the sums are counted. */
constexpr int SCALES_AT = ATTEND_BYTES, SCALES_STAGE = 2 * WARP_KEYS * 4;
constexpr int CHAIN_AT = SCALES_AT + (BYTES ? layout_scale_bytes(DIM) : 0);
constexpr int LISTS_AT = CHAIN_AT + (CHAINED ? layout_chain_bytes(DIM) : 0);

struct byte_scales {
    static constexpr bool LAZY = true;
    const unsigned char *mine;
    float unit, faded, shares[WARP_KEYS / 4];

    CAIRN_MEMBER explicit byte_scales(unsigned char *memory)
        : mine(memory + SCALES_AT + warp_id() * 2 * SCALES_STAGE), unit(1e-35f), faded(1.0f) {}
    CAIRN_MEMBER void of_keys(int stage, float (*s)[4]) const {
        const float *at = (const float *)(mine + stage * SCALES_STAGE) + lane_id() % 4 * 2;
#pragma unroll
        for (int n = 0; n < WARP_KEYS / 8; n++) {
            const f32x2 scale = *(const f32x2 *)(at + n * 8);
            s[n][0] *= scale.x, s[n][1] *= scale.y, s[n][2] *= scale.x, s[n][3] *= scale.y;
        }
    }
    CAIRN_MEMBER void of_values(int stage) {
        const float *at = (const float *)(mine + stage * SCALES_STAGE) + WARP_KEYS +
                          lane_id() % 4 * 2;
        float most = unit;
#pragma unroll
        for (int n = 0; n < WARP_KEYS / 8; n++) {
            const f32x2 scale = *(const f32x2 *)(at + n * 8);
            shares[2 * n] = scale.x, shares[2 * n + 1] = scale.y;
            most = fmaxf(most, fmaxf(fabsf(scale.x), fabsf(scale.y)));
        }
        /* The power of two above, so that nothing is lost. */
        const uint32_t above = (as_u32(quad_max(most)) + 0x7fffffu) & 0x7f800000u;
        const float share = as_f32(0x7f000000u - min_of(above, 0x7e800000u));
        faded = unit * share, unit = as_f32(min_of(above, 0x7e800000u));
#pragma unroll
        for (int i = 0; i < WARP_KEYS / 4; i++) shares[i] *= share;
    }
    CAIRN_MEMBER float weight(int i, float e) const { return e * shares[i]; }
    CAIRN_MEMBER float fade(float old) const { return old * faded; }
    CAIRN_MEMBER float whole(float v) const { return v * unit; }
};

/* Bytes lie as they are, two chunks at a time. Four lanes that read eight bytes each of four
 * neighbours touch all banks, and so do eight rows of a transposed tile, of which an element is two
 * dimensions of a key: these are put apart. */
struct byte_store {
    static constexpr int STAGES = 2, PARTS = DIM / 16;
    static constexpr bool TURNED = true;
    typedef byte_scales Scales;

    CAIRN_METHOD uint32_t place_key(int key, int part) {
        const int turn = PARTS % 8 == 0 ? (key & 3) * 2 : PARTS % 4 == 0 ? (key & 2) : 0;
        return (uint32_t)(key * PARTS + (part ^ turn)) * 16;
    }
    CAIRN_METHOD uint32_t place_value(int key, int part) {
        const int turn = PARTS % 8 == 0   ? key & 7
                         : PARTS % 4 == 0 ? key >> 1 & 3
                         : PARTS % 2 == 0 ? key >> 2 & 1
                                          : 0;
        return (uint32_t)(key * PARTS + (part ^ turn)) * 16;
    }
    CAIRN_METHOD uint32_t low(uint32_t v) { return e4m3x2_to_f16x2((uint16_t)v); }
    CAIRN_METHOD uint32_t high(uint32_t v) { return e4m3x2_to_f16x2((uint16_t)(v >> 16)); }
    CAIRN_METHOD u32x4 key(const unsigned char *keys, int key, int piece) {
        const u32x2 v = *(const u32x2 *)(keys + place_key(key, piece / 2) + piece % 2 * 8);
        return u32x4{low(v.x), high(v.x), low(v.y), high(v.y)};
    }
    CAIRN_METHOD void values(const unsigned char *values, int k, int n, uint32_t *b) {
        uint32_t v[2];
        load_matrix_transposed_x2(
            v, shared_addr(values + place_value(k * 16 + lane_id() % 16, n)));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t apart = byte_permute(v[i], 0, 0x3120);
            b[i] = low(apart), b[2 + i] = high(apart);
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
    const int64_t at = TOKENS ? token_at(cache.keys, i * 16 + slot) : piece.at + slot * HEAD_DIM;
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
    const auto place = [](int key, int part) { return Store::place_key(key, part); };
    if constexpr (BYTES && !TOKENS) fetch_bytes(cache, piece, 0, mine, place);
    else fetch_pieces(cache, piece, shared_addr(mine), place, skip);
}
template <class Keys, class Skip>
CAIRN_INLINE void fetch_values(const kept_cache<Keys> &cache, int value_step, const key_piece *piece,
                               unsigned char *mine, Skip skip) {
    typedef typename store_of<kept_cache<Keys>>::type Store;
    const auto place = [](int key, int part) { return Store::place_value(key, part); };
    const kept_cache<Keys> values = cache + value_step;
    if constexpr (BYTES && !TOKENS) fetch_bytes(values, piece, 1, mine + KEYS_BYTES, place);
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

/* ---- masks ---- */

/* Of a row of a step: it is entry `row` of mask_rows, and sees all before `base`. */
struct mask_row {
    int base, row;

    /* False where the row is none of its step's; else the list ends with the step's last entry. */
    CAIRN_MEMBER bool look(const attend_params &p, paged_row &at) {
        base = p.bases[at.sequence], row = at.position - base;
        const int64_t last = (int64_t)base + p.mask_rows - 1;
        const bool fits = base >= 0 && row >= 0 && row < p.mask_rows &&
                          paged_holds(p.at, at, last);
        at.position = (int)last;
        return fits;
    }
    /* The same, reported. All threads. */
    CAIRN_MEMBER bool find(const attend_params &p, paged_row &at, int r) {
        const bool fits = look(p, at);
        if (!fits && thread_id() == 0) report_error(p.at.error, CAIRN_FAULT_POSITION, r, base);
        return fits;
    }
    CAIRN_MEMBER bool sees(const attend_params &p, int sequence, int position) const {
        const int j = position - base;
        if (j < 0) return true;
        if (p.mask) {
            const int bit = row * p.mask_rows + j;
            return p.mask[(int64_t)sequence * p.mask_bytes + bit / 8] >> bit % 8 & 1;
        }
        return layout_draft_sees(row, j, p.mask_side);
    }
};

/* ---- scores ---- */

CAIRN_INLINE float capped(float s, float cap) {
    const float e = exp2_fast(2.0f * LOG2_E / cap * s);
    return cap - 2.0f * cap / (e + 1.0f);
}

/* q.k scaled, capped, in powers of 2. */
CAIRN_INLINE float score_of(const attend_params &p, float s) {
    s *= p.scale;
    return (SOFTCAP ? capped(s, p.softcap) : s) * LOG2_E;
}

/* What becomes of scores: f(row g or g + 8, piece, key of it, score). */
template <class Change> CAIRN_INLINE void change_scores(float (*s)[4], Change change) {
    const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int n = 0; n < WARP_KEYS / 8; n++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            s[n][c] = change(g + c / 2 * 8, n / 2, n % 2 * 8 + 2 * t + c % 2, s[n][c]);
}

/* ---- pages with weights ----
 * Each selected page has a softmax of its own, and the pages, with the window's softmax if it is
 * there, another over their weights: so a token counts e^(s - lse of its page + weight). */

/* Where a chunk holds whole pages its warps tell each other of their keys as the scores come (meet_pages);
 * else the lse of every page of a run is found beforehand (weigh_pages). */
constexpr bool MEETING = TWO_LEVEL && CHUNK % PAGE == 0;
constexpr float ALONE = 3e38f; /* in place of a weight: of a page only the sinks are attended, as they are */

/* The place in a selection of the first entry that is that page, -1 for none. */
CAIRN_INLINE int place_of_page(const int32_t *selected, int topk, int page) {
    for (int i = 0; i < topk; i += WARP) {
        const uint32_t same = warp_ballot(i + lane_id() < topk && selected[i + lane_id()] == page);
        if (same) return i + find_first_set(same) - 1;
    }
    return -1;
}

/* For each of `count` entries of a list and each row: the page's weight. By all threads. */
CAIRN_INLINE void place_weights(const attend_params &p, int count, const int32_t *list,
                                const int32_t *selected, const float *weights, int weight_step,
                                int rows, float *bias) {
    for (int e = warp_id(); e < count; e += CORE_WARPS) {
        const bool alone = (list[e] & SINKS_ALONE) != 0;
        const int place = alone ? -1 : place_of_page(selected, p.topk, list[e]), m = lane_id();
        if (m >= rows) continue;
        const float weight = alone ? 0.0f : weights[m * weight_step + place] * LOG2_E;
        bias[e * 16 + m] = alone ? ALONE : weight > NO_SCORE ? fminf(weight, 1e38f) : NO_SCORE;
    }
}

/* What is added to the scores of a warp's keys: the weight of their page less its lse, of which every
 * warp leaves its part in `meet` [pieces of a chunk, 16] (m, l), twice, by turns. entry: that of the
 * chunk's first key; those from `weighed` on have no weights. All threads. */
CAIRN_INLINE void meet_pages(const key_piece *piece, int chunk, int entry, int weighed, int rows,
                             const float *bias, float *meet, float (*s)[4]) {
    const int g = lane_id() / 4, t = lane_id() % 4, first = warp_id() * WARP_PIECES;
    float *here = meet + chunk % 2 * (CHUNK / 16) * 32;
#pragma unroll
    for (int i = 0; i < WARP_PIECES; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = NOTHING, total = 0.0f, v[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const bool seen = k / 2 * 8 + 2 * t + k % 2 <= piece[i].last;
                v[k] = seen ? s[2 * i + k / 2][2 * half + k % 2] : NO_SCORE;
                top = fmaxf(top, v[k]);
            }
            top = quad_max(top);
            const float base = fmaxf(top, 0.5f * NOTHING);
#pragma unroll
            for (int k = 0; k < 4; k++) total += exp2_fast(v[k] - base);
            total = quad_sum(total);
            float *mine = here + ((first + i) * 16 + g + half * 8) * 2;
            if (t == 0) mine[0] = top, mine[1] = total;
        }
    block_sync();
#pragma unroll
    for (int i = 0; i < WARP_PIECES; i++) {
        const int page = (first + i) / (PAGE / 16);
        if (entry + page >= weighed) continue;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int m = g + half * 8;
            float top = NOTHING, total = 0.0f;
            const float *part = here + (page * (PAGE / 16) * 16 + m) * 2;
            for (int k = 0; k < PAGE / 16; k++) top = fmaxf(top, part[k * 32]);
            for (int k = 0; k < PAGE / 16; k++)
                total = fma_f32(part[k * 32 + 1], exp2_fast(part[k * 32] - top), total);
            const float weight = m < rows ? bias[(entry + page) * 16 + m] : NO_SCORE;
            const bool counts = total > 0.0f && top > 0.5f * NOTHING && weight > NO_SCORE;
            const float more = weight == ALONE ? 0.0f : weight - (top + log2_fast(total));
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float &v = s[2 * i + k / 2][2 * half + k % 2];
                v = counts ? v + more : NO_SCORE;
            }
        }
    }
}

/* For each row and each of `count` entries of a list, which stand in `list`: what is added to its
 * scores. By all threads; the queries are in shared memory. */
template <class Source>
CAIRN_INLINE void weigh_pages(const attend_params &p, const Source &source, int from, int count,
                              const int32_t *list, const int32_t *selected, const float *weights,
                              int weight_step, int rows, int kv_head, unsigned char *memory,
                              float *bias) {
    const int g = lane_id() / 4, t = lane_id() % 4;
    const auto none = [](int, int, bool) { return false; };
    unsigned char *mine = memory + warp_id() * 2 * KEYS_BYTES;
    typedef typename store_of<kept_cache<Source>>::type Store;
    const typename Store::Scales scales(memory);
    for (int e = warp_id(); e < count; e += CORE_WARPS) {
        const page_entry entry = source.entry(from + e);
        const bool alone = (list[e] & SINKS_ALONE) != 0;
        running r;
        r.clear();
        for (int slot = 0; slot < PAGE && !alone; slot += WARP_KEYS) {
            key_piece piece[WARP_PIECES];
            float s[WARP_KEYS / 8][4];
            uint32_t unused[WARP_KEYS / 4] = {};
            int seen[WARP_PIECES];
#pragma unroll
            for (int i = 0; i < WARP_PIECES; i++) {
                const int at = slot + i * 16, last = min_of(PAGE - 1 - LANDMARKS - at, 15);
                seen[i] = entry.physical < 0 || at >= PAGE ? -1 : last;
                piece[i].at = layout_slot(entry.physical, 0, kv_head, at, p.at.kv_heads, PAGE, HEAD_DIM);
                piece[i].position = 0, piece[i].last = seen[i];
            }
            const kept_cache<Source> cache = {p.at.cache, p.scales, source, 0};
            fetch_keys(cache, piece, mine, none);
            copy_async_commit();
            copy_async_wait<0>();
            warp_sync();
            score_keys<WARP_KEYS, Store>(
                [&](int u, uint32_t *a) {
                    const unsigned char *q = memory + QUERIES_AT;
                    u32x4 low = *(const u32x4 *)(q + key_at(g, u * 4 + t)), high = {};
                    if (rows > 8) high = *(const u32x4 *)(q + key_at(g + 8, u * 4 + t));
                    query_operands(low, high, a);
                },
                mine, s);
            scales.of_keys(0, s);
            change_scores(s, [&](int, int, int, float v) { return score_of(p, v); });
            fold_scores<WARP_KEYS>(r, s, 0, seen, 1.0f, unused);
            fold_scores<WARP_KEYS>(r, s, 1, seen, 1.0f, unused);
            warp_sync();
        }
        const int place = alone ? -1 : place_of_page(selected, p.topk, list[e]);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int m = g + half * 8;
            if (t != 0 || m >= rows) continue;
            float weight = alone ? 0.0f : weights[m * weight_step + place];
            if (!alone) {
                const float lse = r.top[half] + log2_fast(r.total[half]);
                weight = r.total[half] > 0.0f && weight > NO_SCORE ? weight * LOG2_E - lse : NO_SCORE;
            }
            bias[e * 16 + m] = weight;
        }
    }
}

#endif

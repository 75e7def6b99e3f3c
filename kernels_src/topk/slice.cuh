/* topk/slice.cuh: a cluster block's slice of a row, kept on the chip: a tile in registers, a second
 * in shared memory, where each thread reads only what it copied there itself; what is longer is
 * read again. Constants as in topk/cluster.cu. Without an include guard. */

#define THREADS CAIRN_THREADS
#define ITEMS CAIRN_ITEMS
#define CLUSTER CAIRN_CLUSTER
#define STAGES CAIRN_STAGES
#define WARPS (THREADS / WARP)
#define VECTOR (16 / (int)sizeof(score_t))
#define VECTORS (ITEMS / VECTOR)
#define TILE (THREADS * ITEMS)
#define TILES (1 + STAGES) /* on the chip: a span */
#define SPAN (TILES * TILE)
#define EVERY 0xffffffffu
static_assert(ITEMS <= 32, "a tile's items are the bits of one word");
static_assert(VECTORS % 2 == 0, "vectors are read again two at a time");

/* Elements [first, end) of `base`, which is 16-byte aligned, are the slice; element e is the row's
 * position origin + e. `size`: what a slice has but for the row's ends. The slice goes in spans, of
 * which each warp has a run: its vectors of one tile, then of the other. `tiles` make whole spans. */
struct row_slice {
    const score_t *base;
    int first, end, origin, size, tiles;
};
struct tile_data { u32x4 raw[VECTORS]; };
struct score_vector { score_t score[VECTOR]; };

/* Where the block's shared memory begins: the second tile, and the slice for who has no registers
 * to spare. */
struct slice_stage {
    alignas(16) u32x4 raw[STAGES ? VECTORS * THREADS : 1];
    row_slice slice;
};
CAIRN_INLINE slice_stage &stage_here() { return *(slice_stage *)shared_base(); }
CAIRN_INLINE u32x4 *staged_vector(int j) {
    return &stage_here().raw[j * THREADS + thread_id()];
}
CAIRN_INLINE row_slice &kept_slice() { return stage_here().slice; }

/* Block `rank`'s part. Parts begin at multiples of 32 of the row's aligned elements. */
CAIRN_INLINE row_slice slice_of(const score_t *row, int length, int rank) {
    const int head = (int)((uint64_t)row % 16 / sizeof(score_t)), all = length + head;
    const int size = round_up(ceil_div(all, CLUSTER), 32);
    const int begin = min_of(rank * size, all), end = min_of(begin + size, all);
    return {row - head + begin, rank == 0 ? head : 0, end - begin, begin - head, size,
            max_of(ceil_div(end - begin, SPAN), 1) * TILES};
}

CAIRN_INLINE score_t score_nan() {
    if constexpr (sizeof(score_t) == 4) return bit_cast<score_t>(0x7fffffffu);
    else return bit_cast<score_t>((uint16_t)0x7fff);
}

/* Element of the slice where vector j of this thread begins, in tile `t`. */
CAIRN_INLINE int vector_element(int t, int j) {
    const int run = warp_id() * TILES + t % TILES;
    return t / TILES * SPAN + ((run * VECTORS + j) * WARP + lane_id()) * VECTOR;
}
CAIRN_INLINE int item_element(int t, int i) { return vector_element(t, i / VECTOR) + i % VECTOR; }
CAIRN_INLINE bool in_slice(const row_slice &w, int e) { return e >= w.first && e < w.end; }
/* Whether tile t's span is full. */
CAIRN_INLINE bool whole_span(const row_slice &w, int t) {
    return t / TILES * SPAN >= w.first && (t / TILES + 1) * SPAN <= w.end;
}

CAIRN_INLINE u32x4 nan_vector() {
    score_vector none;
#pragma unroll
    for (int c = 0; c < VECTOR; c++) none.score[c] = score_nan();
    return bit_cast<u32x4>(none);
}

/* A vector's scores moved down by one, with another behind them. */
CAIRN_INLINE u32x4 shift_in(u32x4 v, score_t score) {
    if constexpr (sizeof(score_t) == 4) return {v.y, v.z, v.w, bit_cast<uint32_t>(score)};
    else
        return {v.x >> 16 | v.y << 16, v.y >> 16 | v.z << 16, v.z >> 16 | v.w << 16,
                v.w >> 16 | (uint32_t)bit_cast<uint16_t>(score) << 16};
}

/* Scores outside the slice are NaN. One after another: less code where a vector is loaded again. */
CAIRN_INLINE u32x4 load_slowly(const row_slice &w, int e) {
    u32x4 v = {0, 0, 0, 0};
    if (e >= w.first && e + VECTOR <= w.end) return load_constant((const u32x4 *)(w.base + e));
#pragma unroll 1
    for (int c = 0; c < VECTOR; c++)
        v = shift_in(v, in_slice(w, e + c) ? w.base[e + c] : score_nan());
    return v;
}

/* The same at once. */
CAIRN_INLINE u32x4 load_edge(const row_slice &w, int e) {
    score_vector v;
    if (e >= w.first && e + VECTOR <= w.end) return load_constant((const u32x4 *)(w.base + e));
#pragma unroll
    for (int c = 0; c < VECTOR; c++) v.score[c] = in_slice(w, e + c) ? w.base[e + c] : score_nan();
    return bit_cast<u32x4>(v);
}

/* Begins to copy a vector from this thread's stretch of the slice into sample[thread], at places that
 * do not repeat, since rows have periods, and none beside another, since neighbours are alike: what
 * others load behind it, once all have come here, does not hold it up. NaN where there is none. */
CAIRN_INLINE void load_sample(const row_slice &w, u32x4 *sample) {
    const int vectors = ceil_div(w.size, VECTOR), each = vectors / THREADS, t = thread_id();
    const int more = vectors % THREADS, begin = t * each + t * more / THREADS;
    const int stretch = each + ((t + 1) * more / THREADS - t * more / THREADS);
    const int place = (int)multiply_high((uint32_t)t * 0x9e3779b9u, (uint32_t)stretch);
    const int e = stretch ? (begin + place) * VECTOR : w.end;
    if (e >= w.first && e + VECTOR <= w.end)
        copy_async16(shared_addr(&sample[t]), w.base + e);
    else sample[t] = load_slowly(w, e);
    copy_async_commit();
    block_sync();
}

/* Begins to load `count` vectors of tile t, from number `from` on; nothing waits for them here. One
 * branch for all of them, for a branch a vector would wait for each load in turn. Only the slice's
 * first and last vector can be partial. */
template <int count>
CAIRN_INLINE void load_vectors(const row_slice &w, int t, int from, u32x4 *raw) {
    if (whole_span(w, t)) {
        const score_t *base = w.base + vector_element(t, from);
#pragma unroll
        for (int j = 0; j < count; j++)
            raw[j] = load_constant_early((const u32x4 *)(base + j * WARP * VECTOR));
        return;
    }
    const int last = w.end / VECTOR * VECTOR;
    u32x4 begin = nan_vector(), end = begin;
#pragma unroll 1
    for (int j = 0; j < count; j++) {
        const int e = vector_element(t, from + j);
        if (e != last && e >= w.first) continue;
        end = load_edge(w, e);
        if (e < w.first) begin = end;
    }
#pragma unroll
    for (int j = 0; j < count; j++) {
        const int e = vector_element(t, from + j);
        raw[j] = e < w.first ? begin : e == last ? end : nan_vector();
        if (e >= w.first && e < last) raw[j] = load_constant_early((const u32x4 *)(w.base + e));
    }
}

/* Begins to copy the second tile, if there is one. */
CAIRN_INLINE void stage_second(const row_slice &w) {
    if (!STAGES) return;
    if (whole_span(w, 1)) {
#pragma unroll
        for (int j = 0; j < VECTORS; j++)
            copy_async16(shared_addr(staged_vector(j)), w.base + vector_element(1, j));
    } else {
#pragma unroll 1
        for (int j = 0; j < VECTORS; j++) {
            const int e = vector_element(1, j);
            if (e + VECTOR <= w.end) copy_async16(shared_addr(staged_vector(j)), w.base + e);
            else *staged_vector(j) = load_slowly(w, e);
        }
    }
    copy_async_commit();
}

/* Half of tile t into registers: from shared memory if it is the second, else from its origin. */
#define HALF (VECTORS / 2)
CAIRN_INLINE void hold_half(const row_slice &w, int t, int half, u32x4 *raw) {
    if (STAGES && t == 1) {
#pragma unroll
        for (int j = 0; j < HALF; j++) raw[j] = *staged_vector(half * HALF + j);
    } else load_vectors<HALF>(w, t, half * HALF, raw);
}

/* The items of `count` vectors that reach a score, one bit each. */
template <int count> CAIRN_INLINE uint32_t reaching_bits(const u32x4 *raw, float floor) {
    uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < count; j++) {
        score_vector v = bit_cast<score_vector>(raw[j]);
#pragma unroll
        for (int c = 0; c < VECTOR; c++)
            bits |= to_f32(v.score[c]) >= floor ? 1u << (j * VECTOR + c) : 0u;
    }
    return bits;
}

/* Of tile t, one bit each: the items of the slice, all. */
CAIRN_INLINE uint32_t slice_bits(const row_slice &w, int t) {
    const int e = vector_element(t, 0), left = max_of(w.end - e, 0);
    const int items = left / (WARP * VECTOR) * VECTOR + min_of(left % (WARP * VECTOR), VECTOR);
    const uint32_t before = e == 0 ? (1u << w.first) - 1 : 0u; /* first < VECTOR */
    return (items >= ITEMS ? EVERY >> (32 - ITEMS) : (1u << items) - 1) & ~before;
}

/* The items of the held tile, which is tile t, with a key of at least `key`, one bit each. */
CAIRN_INLINE uint32_t held_bits(const tile_data &held, int t, uint32_t key) {
    return key == 0 ? slice_bits(kept_slice(), t) : reaching_bits<VECTORS>(held.raw, key_score(key));
}

/* The items of tile t with a key of at least `low`, of at least `high`, one bit each. */
struct reach_bits { uint32_t low, high; };

/* The same, where the tile has to be read again. */
CAIRN_INLINE reach_bits reach_again(int t, uint32_t low, uint32_t high) {
    const row_slice &w = kept_slice();
    const float floor = key_score(low), ceiling = key_score(high);
    reach_bits bits = {0, 0};
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        u32x4 raw[HALF];
        hold_half(w, t, half, raw);
        bits.low |= reaching_bits<HALF>(raw, floor) << (half * HALF * VECTOR);
        bits.high |= reaching_bits<HALF>(raw, ceiling) << (half * HALF * VECTOR);
    }
    if (low == 0) bits.low = slice_bits(w, t);
    return bits;
}

/* topk_slice.cuh: a cluster block's slice of a row, kept on the chip: the first tile in registers,
 * the second in shared memory, where each thread reads only what it copied there itself; what is
 * longer is read again. Constants as in topk_cluster.cu. Without an include guard. */

#define THREADS CAIRN_THREADS
#define ITEMS CAIRN_ITEMS
#define CLUSTER CAIRN_CLUSTER
#define STAGES CAIRN_STAGES
#define WARPS (THREADS / WARP)
#define VECTOR (16 / (int)sizeof(score_t))
#define VECTORS (ITEMS / VECTOR)
#define TILE (THREADS * ITEMS)
static_assert(ITEMS <= 32, "a tile's items are the bits of one word");
static_assert(VECTORS % 2 == 0, "vectors are read again two at a time");

/* Elements [first, end) of `base`, which is 16-byte aligned, are the slice; element e is the row's
 * position origin + e. Item i of thread t of a tile is its element (i / VECTOR * THREADS + t) *
 * VECTOR + i % VECTOR. */
struct row_slice {
    const score_t *base;
    int first, end, origin, tiles;
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
    return {row - head + begin, rank == 0 ? head : 0, end - begin, begin - head,
            max_of(ceil_div(end - begin, TILE), 1)};
}

CAIRN_INLINE score_t score_nan() {
    if constexpr (sizeof(score_t) == 4) return bit_cast<score_t>(0x7fffffffu);
    else return bit_cast<score_t>((uint16_t)0x7fff);
}

/* Element of the slice where vector j of this thread begins, in tile `t`. */
CAIRN_INLINE int vector_element(int t, int j) {
    return t * TILE + (j * THREADS + thread_id()) * VECTOR;
}
CAIRN_INLINE int item_element(int t, int i) { return vector_element(t, i / VECTOR) + i % VECTOR; }
CAIRN_INLINE bool in_slice(const row_slice &w, int e) { return e >= w.first && e < w.end; }
CAIRN_INLINE bool whole_tile(const row_slice &w, int t) {
    return t * TILE >= w.first && (t + 1) * TILE <= w.end;
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

/* The first tile. One branch for all of it, for a branch a vector would wait for each load in turn.
 * Only the slice's first and last vector can be partial. */
CAIRN_INLINE void load_first(const row_slice &w, tile_data &held) {
    if (whole_tile(w, 0)) {
#pragma unroll
        for (int j = 0; j < VECTORS; j++)
            held.raw[j] = load_constant((const u32x4 *)(w.base + vector_element(0, j)));
        return;
    }
    const int last = w.end / VECTOR * VECTOR;
    u32x4 begin = load_edge(w, vector_element(0, 0)), end = begin;
    if (last / VECTOR % THREADS == thread_id()) end = load_edge(w, last);
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        int e = vector_element(0, j);
        held.raw[j] = j == 0 ? begin : end;
        if (j > 0 && e != last) {
            score_vector none;
#pragma unroll
            for (int c = 0; c < VECTOR; c++) none.score[c] = score_nan();
            held.raw[j] = bit_cast<u32x4>(none);
            if (e < last) held.raw[j] = load_constant((const u32x4 *)(w.base + e));
        }
    }
}

/* Begins to copy the second tile, if there is one. */
CAIRN_INLINE void stage_second(const row_slice &w) {
    if (!STAGES || w.tiles < 2) return;
    if (whole_tile(w, 1)) {
#pragma unroll
        for (int j = 0; j < VECTORS; j++)
            copy_async16(shared_addr(staged_vector(j)), w.base + vector_element(1, j));
        copy_async_commit();
    } else {
#pragma unroll 1
        for (int j = 0; j < VECTORS; j++) *staged_vector(j) = load_slowly(w, vector_element(1, j));
    }
}

/* A vector of tile t again: from shared memory if it is the second, else from where it came. */
CAIRN_INLINE u32x4 load_again(const row_slice &w, int t, int j) {
    if (STAGES && t == 1) return *staged_vector(j);
    return load_slowly(w, vector_element(t, j));
}

/* This thread's item i of tile t again; it is in the slice. */
CAIRN_INLINE score_t score_again(const row_slice &w, int t, int i) {
    if (STAGES && t == 1) return ((const score_t *)staged_vector(i / VECTOR))[i % VECTOR];
    return w.base[item_element(t, i)];
}

/* Tile t, the first or the one in shared memory, into registers. */
CAIRN_INLINE void hold_again(const row_slice &w, int t, tile_data &held) {
#pragma unroll
    for (int j = 0; j < VECTORS; j++) held.raw[j] = load_again(w, t, j);
}

/* Of tile t, one bit each: the items of the slice, all. */
CAIRN_INLINE uint32_t slice_bits(int t) {
    uint32_t bits = 0;
#pragma unroll 1
    for (int i = 0; i < ITEMS; i++) {
        bits |= (uint32_t)in_slice(kept_slice(), item_element(t, i)) << i;
    }
    return bits;
}

/* The items of the held tile, which is tile t, with a key of at least `key`, one bit each. */
CAIRN_INLINE uint32_t held_bits(const tile_data &held, int t, uint32_t key) {
    const float floor = key_score(key);
    uint32_t bits = 0;
    if (key == 0) return slice_bits(t);
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        score_vector v = bit_cast<score_vector>(held.raw[j]);
#pragma unroll
        for (int c = 0; c < VECTOR; c++)
            bits |= to_f32(v.score[c]) >= floor ? 1u << (j * VECTOR + c) : 0u;
    }
    return bits;
}

/* The items of tile t with a key of at least `low`, of at least `high`; reads the tile again. */
struct reach_bits { uint32_t low, high; };
CAIRN_INLINE reach_bits tile_bits(const row_slice &w, int t, uint32_t low, uint32_t high) {
    const float floor = key_score(low), ceiling = key_score(high);
    reach_bits bits = {0, 0};
#pragma unroll 2
    for (int j = 0; j < VECTORS; j++) {
        score_vector v = bit_cast<score_vector>(load_again(w, t, j));
#pragma unroll
        for (int c = 0; c < VECTOR; c++) {
            const uint32_t bit = 1u << (j * VECTOR + c);
            bits.low |= to_f32(v.score[c]) >= floor ? bit : 0u;
            bits.high |= to_f32(v.score[c]) >= ceiling ? bit : 0u;
        }
    }
    if (low == 0) bits.low = slice_bits(t);
    return bits;
}

/* One chunk of attention: up to 16 query rows (tokens of one sequence x the query heads of one KV
 * head) against CHUNK keys of fixed logical position; S = Q K^T and O = P V by mma m16n8k16.
 *
 * Each of ATTEND_WARPS warps has WARP_KEYS keys and fetches them itself, long before the queries
 * come. Keys of this forward's own tokens come from the exchange, all others from the cache. A
 * row's result depends on its query and the keys up to its position alone: keys beyond are masked,
 * and rows of a group never mix.
 *
 * Out: parts[chunk, row, head] = sum of 2^(s - m) v, sums[chunk, row, head] = (m, sum of 2^(s -
 * m)), with s = q.k D^-0.5 log2(e) and m = the largest s of the chunk (NOTHING if there is none).
 * */
#ifndef CAIRN_STEP_ATTEND_CUH
#define CAIRN_STEP_ATTEND_CUH

#include "step/step.cuh"

constexpr int PIECES = HEAD_DIM / 8;                   /* of 16 bytes, of a key */
constexpr int KEYS_BYTES = WARP_KEYS * HEAD_DIM * 2;   /* of a warp; as many for values */
constexpr int QUERIES_AT = ATTEND_WARPS * 2 * KEYS_BYTES;
constexpr int TOTALS_AT = QUERIES_AT + 16 * HEAD_DIM * 2; /* [row, warp] (m, l) */
constexpr int ATTEND_BYTES = TOTALS_AT + 16 * ATTEND_WARPS * 8;
constexpr float NOTHING = -1e30f;                      /* below every score */
constexpr float SCORE_SCALE =
    1.4426950408889634f * (HEAD_DIM == 64 ? 0.125f : 0.08838834764831845f);

/* Which rows, KV head and chunk a block works on, and where the keys of its warp lie. */
struct attend_item {
    int first, rows;       /* rows of the group */
    int kv_head, chunk;
    int position;          /* of the first row */
    int fresh_row, fresh;  /* first row of the sequence in this forward, and its position */
    int64_t page_at[WARP_KEYS / 16]; /* values from a layer's KV to 16 keys of this warp */
};

/* Item `index` of groups x chunks x KV heads, the KV heads next to each other. */
CAIRN_INLINE bool find_item(const step_params &p, int index, attend_item &item) {
    const int32_t *array = p.input + STEP_HEAD;
    int groups = p.input[STEP_GROUPS];
    item.kv_head = index % KV_HEADS;
    int group = index / KV_HEADS % groups;
    item.chunk = index / KV_HEADS / groups;
    item.first = array[STEP_GROUP_FIRST * p.capacity + group];
    item.rows = array[STEP_GROUP_ROWS * p.capacity + group];
    item.position = array[STEP_POSITION * p.capacity + item.first];
    item.fresh_row = array[STEP_FIRST * p.capacity + item.first];
    item.fresh = array[STEP_POSITION * p.capacity + item.fresh_row];
    int sequence = array[STEP_SEQUENCE * p.capacity + item.first];
    const int32_t *table = p.page_table + (int64_t)sequence * p.table_stride;
#pragma unroll
    for (int i = 0; i < WARP_KEYS / 16; i++) {
        int key = item.chunk * CHUNK + warp_id() * WARP_KEYS + i * 16;
        item.page_at[i] = 0;
        if (warp_id() < ATTEND_WARPS && key < item.fresh)
            item.page_at[i] = (((int64_t)table[key / PAGE] * 2 * KV_HEADS + item.kv_head) * PAGE +
                               key % PAGE) * HEAD_DIM;
    }
    return item.chunk * CHUNK < item.position + item.rows;
}

/* Keys: even and odd ones lie in different banks for reads of four pieces. Values: the eight rows
 * of a transposed 8x8 tile lie in different banks. From the start of the warp's memory. */
CAIRN_INLINE uint32_t key_at(int key, int piece) {
    return (uint32_t)(key * PIECES + (piece ^ (key & 1) * 4)) * 16;
}
CAIRN_INLINE uint32_t value_at(int key, int piece) {
    return (uint32_t)(KEYS_BYTES + (key * PIECES + (piece ^ (key & 7))) * 16);
}

/* Starts the copies of the cached keys and values of this warp; those behind the group's last row
 * become zero, those of this forward's tokens are left to gather_fresh. */
CAIRN_INLINE void fetch_keys(const attend_item &item, const uint16_t *cache,
                             unsigned char *memory) {
    if (warp_id() < ATTEND_WARPS) {
        shared_addr mine(memory + warp_id() * 2 * KEYS_BYTES);
        int start = item.chunk * CHUNK + warp_id() * WARP_KEYS, piece = lane_id() % PIECES;
        int end = item.position + item.rows;
#pragma unroll
        for (int i = 0; i < WARP_KEYS * PIECES / WARP; i++) {
            int key = i * (WARP / PIECES) + lane_id() / PIECES, position = start + key;
            bool cached = position < item.fresh;
            const uint16_t *from = cache;
            if (cached)
                from += item.page_at[i * (WARP / PIECES) / 16] + key % 16 * HEAD_DIM + piece * 8;
            if (!cached && position < end) continue;
            copy_async16(mine + key_at(key, piece), from, cached);
            copy_async16(mine + value_at(key, piece),
                         cached ? from + KV_HEADS * PAGE * HEAD_DIM : from, cached);
        }
    }
    copy_async_commit();
}

/* Waits for the group's queries and for the chunk's keys and values of this forward, all at once,
 * and puts them into shared memory: row m at key_at(m, ...) of the queries. */
CAIRN_INLINE void gather_fresh(const step_params &p, const attend_item &item, const uint8_t *layer,
                               unsigned char *memory) {
    int queries = item.rows * GROUP * PIECES, start = item.chunk * CHUNK;
    int from = max_of(item.fresh, start);
    int keys = max_of(0, min_of(item.position + item.rows, start + CHUNK) - from);
#pragma unroll 1
    for (int i = thread_id(); i < queries + keys * 2 * PIECES; i += THREADS) {
        int row, head, piece = i % PIECES;
        uint32_t to;
        if (i < queries) {
            int m = i / PIECES;
            row = item.first + m / GROUP;
            head = item.kv_head * GROUP + m % GROUP;
            to = QUERIES_AT + key_at(m, piece);
        } else {
            int j = (i - queries) / PIECES, key = from + j / 2 - start;
            row = item.fresh_row + from + j / 2 - item.fresh;
            head = HEADS + j % 2 * KV_HEADS + item.kv_head;
            to = key / WARP_KEYS * 2 * KEYS_BYTES + (j % 2 ? value_at(key % WARP_KEYS, piece)
                                                           : key_at(key % WARP_KEYS, piece));
        }
        u32x4 v;
        receive<1>(p, &v,
                   layer + QKV_AT + ((int64_t)row * QKV + head * HEAD_DIM) * 2 + piece * 16);
        *(u32x4 *)(memory + to) = v;
    }
}

/* The largest, the sum of the four lanes that share a row. */
CAIRN_INLINE float quad_max(float v) {
    v = fmaxf(v, shuffle_xor(v, 1));
    return fmaxf(v, shuffle_xor(v, 2));
}
CAIRN_INLINE float quad_sum(float v) {
    v += shuffle_xor(v, 1);
    return v + shuffle_xor(v, 2);
}

/* s[n]: products of queries g, g + 8 with the warp's keys 8n..; the second only with `both`. */
CAIRN_INLINE void score_keys(const unsigned char *queries, const unsigned char *mine, bool both,
                             float (*s)[4]) {
    int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int n = 0; n < WARP_KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[n][i] = 0.0f;
#pragma unroll
    for (int u = 0; u < HEAD_DIM / 32; u++) {
        u32x4 low = *(const u32x4 *)(queries + key_at(g, u * 4 + t)), high = {};
        if (both) high = *(const u32x4 *)(queries + key_at(g + 8, u * 4 + t));
        uint32_t a[8] = {low.x, high.x, low.y, high.y, low.z, high.z, low.w, high.w};
#pragma unroll
        for (int n = 0; n < WARP_KEYS / 8; n++) {
            u32x4 b = *(const u32x4 *)(mine + key_at(n * 8 + g, u * 4 + t));
            uint32_t first[2] = {b.x, b.y}, second[2] = {b.z, b.w};
            mma_f16(s[n], a, first);
            mma_f16(s[n], a + 4, second);
        }
    }
}

/* Scores of rows g (half 0) or g + 8 (half 1) to weights 2^(s - m); (m, sum) for the row. last[i]
 * is the last key that the row sees of the warp's keys 16i.., counted from there. */
CAIRN_INLINE f32x2 weigh_keys(float (*s)[4], int half, const int *last, uint32_t *weights) {
    int t = lane_id() % 4;
    float top = NOTHING, total = 0.0f;
#pragma unroll
    for (int n = 0; n < WARP_KEYS / 8; n++)
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; c++) {
            s[n][c] = n % 2 * 8 + 2 * t + c % 2 <= last[n / 2] ? s[n][c] * SCORE_SCALE : NOTHING;
            top = fmaxf(top, s[n][c]);
        }
    top = quad_max(top);
    float base = fmaxf(top, 0.5f * NOTHING); /* so that an unseen key weighs nothing */
#pragma unroll
    for (int n = 0; n < WARP_KEYS / 8; n++) {
        float e0 = exp2_fast(s[n][2 * half] - base), e1 = exp2_fast(s[n][2 * half + 1] - base);
        total += e0 + e1;
        weights[n / 2 * 4 + n % 2 * 2 + half] = pack_f16x2(e0, e1);
    }
    return f32x2{top, quad_sum(total)};
}

/* Where the partial output of a warp lies, over its own keys and values: row m, dimension d. */
CAIRN_INLINE int part_at(int m, int d) { return m * HEAD_DIM + (d ^ (m & 3) << 3); }

/* P V of the warp's keys into its own shared memory. */
CAIRN_INLINE void weigh_values(const uint32_t *weights, unsigned char *mine, int count) {
    int lane = lane_id(), g = lane / 4, t = lane % 4;
    float o[HEAD_DIM / 8][4] = {};
#pragma unroll
    for (int k = 0; k < WARP_KEYS / 16; k++) {
        int key = k * 16 + (lane / 8 & 1) * 8 + lane % 8;
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 16; n++) {
            uint32_t b[4];
            load_matrix_transposed_x4(b, shared_addr(mine + value_at(key, 2 * n + lane / 16)));
            mma_f16(o[2 * n], weights + 4 * k, b);
            mma_f16(o[2 * n + 1], weights + 4 * k, b + 2);
        }
    }
    warp_sync();
    float *part = (float *)mine;
    if (g < count) {
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++)
            *(f32x2 *)(part + part_at(g, n * 8 + 2 * t)) = f32x2{o[n][0], o[n][1]};
    }
    if (g + 8 < count) {
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++)
            *(f32x2 *)(part + part_at(g + 8, n * 8 + 2 * t)) = f32x2{o[n][2], o[n][3]};
    }
}

/* Merges what the warps left, and hands it on. */
CAIRN_INLINE void send_parts(const step_params &p, const attend_item &item, uint8_t *layer,
                             const unsigned char *memory, int count) {
#pragma unroll 1
    for (int i = thread_id(); i < count * HEAD_DIM; i += THREADS) {
        int m = i / HEAD_DIM, d = i % HEAD_DIM;
        const f32x2 *sums = (const f32x2 *)(memory + TOTALS_AT) + m * ATTEND_WARPS;
        float top = NOTHING, total = 0.0f, v = 0.0f;
#pragma unroll
        for (int w = 0; w < ATTEND_WARPS; w++) top = fmaxf(top, sums[w].x);
#pragma unroll
        for (int w = 0; w < ATTEND_WARPS; w++) {
            float weight = exp2_fast(sums[w].x - top);
            const float *part = (const float *)(memory + w * 2 * KEYS_BYTES);
            total = fma_f32(weight, sums[w].y, total);
            v = fma_f32(weight, part[part_at(m, d)], v);
        }
        int row = item.first + m / GROUP, head = item.kv_head * GROUP + m % GROUP;
        int64_t at = part_of(p, item.chunk, row) * HEADS + head;
        send((float *)(layer + PARTS_AT) + at * HEAD_DIM + d, v);
        if (d < 2) send((float *)(layer + SUMS_AT) + at * 2 + d, d == 0 ? top : total);
    }
}

/* One warp's part of a chunk whose keys, values and queries are in shared memory: row m = g or g +
 * 8 sees keys up to last(i, m) of keys 16i... */
template <class Last>
CAIRN_INLINE void attend_warp(unsigned char *memory, int count, Last last) {
    const int warp = warp_id(), g = lane_id() / 4;
    unsigned char *mine = memory + warp * 2 * KEYS_BYTES;
    f32x2 *sums = (f32x2 *)(memory + TOTALS_AT) + warp;
    float s[WARP_KEYS / 8][4];
    uint32_t weights[WARP_KEYS / 4] = {};
    score_keys(memory + QUERIES_AT, mine, count > 8, s);
    for (int half = 0; half < 2 && half * 8 < count; half++) {
        int seen[WARP_KEYS / 16], m = g + half * 8;
#pragma unroll
        for (int i = 0; i < WARP_KEYS / 16; i++) seen[i] = last(i, m);
        f32x2 sum = half ? weigh_keys(s, 1, seen, weights) : weigh_keys(s, 0, seen, weights);
        if (lane_id() % 4 == 0) sums[m * ATTEND_WARPS] = sum;
    }
    weigh_values(weights, mine, count);
}

/* The whole chunk, with fetch_keys under way or done. All threads of the block; the memory may be
 * written again after the next block_sync. */
CAIRN_INLINE void attend_chunk(const step_params &p, const attend_item &item, uint8_t *layer,
                               unsigned char *memory) {
    const int count = item.rows * GROUP;
    const int first = item.position - item.chunk * CHUNK - warp_id() * WARP_KEYS;
    gather_fresh(p, item, layer, memory);
    copy_async_wait<0>();
    block_sync();
    if (warp_id() < ATTEND_WARPS)
        attend_warp(memory, count, [&](int i, int m) { return first + m / GROUP - 16 * i; });
    block_sync();
    send_parts(p, item, layer, memory, count);
}

#endif

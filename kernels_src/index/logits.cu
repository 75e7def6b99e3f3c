/* index_logits: how well index keys match the queries of the rows.
 *
 * Formula    out[i, j] = scale[j] * sum over h of weights[i, h] * max(0, q[i, h] . k[j])
 * How        a warp keeps 32 keys in registers while the heads of a few rows pass by in shared
 *            memory: keys are the rows of the products, heads their columns, so the sum over heads
 *            stays in four registers. The next tiles are on their way meanwhile, to places of shared
 *            memory that each thread alone writes and reads. The order of d in
 *            the products is one in which a lane's bytes of a key are 16 in a row.
 *            The products are of e4m3 where the chip has them (sm_90: wgmma; sm_89 and sm_120:
 *            mma), else of f16, exact in f32 then. A logit depends on its row and key alone: not on
 *            what shares the block, nor on where a schedule cuts
 * Constants  CAIRN_PAGED    1: keys lie in the paged cache, 0: one behind the other
 *            CAIRN_COLUMNS  heads of a wgmma: 64 or 32; rows have heads up to a multiple of it,
 *                           those that are not there of zeros
 *            CAIRN_STAGES   tiles on their way
 * Launch     grid (groups of rows, ceil(tiles / p.tiles)), or (workers) with a schedule; block 128;
 *            shared memory STAGES * CAIRN_INDEX_STAGE + p.group * (heads up to a multiple of 32 *
 *            (CAIRN_INDEX_PITCH + 4) + 8) bytes
 * Oracle     tests/ref/index_ref.h
 * matrix: CAIRN_PAGED=0 CAIRN_COLUMNS=64 CAIRN_STAGES=2
 * matrix: CAIRN_PAGED=1 CAIRN_COLUMNS=32 CAIRN_STAGES=3 */
#include "device/common.cuh"
#include "abi/index.h"

#define DIM CAIRN_INDEX_DIM
#define TILE CAIRN_INDEX_TILE

#define STAGES CAIRN_STAGES

constexpr bool FP8 = CAIRN_INDEX_FP8(CAIRN_ARCH / 10);
constexpr int STEPS = FP8 ? 4 : 8; /* of the sum over d in products */
constexpr int CHUNKS = 2 * STEPS;  /* of 16 bytes: a head of a query */
constexpr int PITCH = CAIRN_INDEX_PITCH(CAIRN_ARCH / 10);
static_assert(PITCH == CHUNKS * 16 + 16, "a head's room in shared memory");

struct range { int from, to; };

/* The block's shared memory: tiles on their way, chunk by chunk and thread by thread, and their
 * scales; queries, weights, windows of p.group rows of `heads` heads each, those behind p.heads zeros. */
struct staged {
    unsigned char *tiles, *q;
    float *weights;
    range *windows;
    int heads;
};

CAIRN_INLINE staged staged_at(const index_logits_params &p) {
    unsigned char *base = shared_base() + STAGES * CAIRN_INDEX_STAGE;
    const int heads = CAIRN_WGMMA ? round_up(p.heads, CAIRN_COLUMNS) : p.heads;
    const int all = p.group * heads;
    return {shared_base(), base, (float *)(base + all * PITCH), (range *)(base + all * (PITCH + 4)),
            heads};
}

/* The keys of row r: its window, cut to what there is. */
CAIRN_INLINE range window_of(const index_logits_params &p, int r, bool reports) {
    const int64_t room = CAIRN_PAGED ? (int64_t)p.max_pages * p.page_size : p.n;
    const int most = room < p.n ? (int)room : p.n;
    const int start = p.row_starts ? p.row_starts[r] : 0, from = min_of(max_of(start, 0), most);
    const int length = p.lengths ? p.lengths[r] : most - from;
    const int some = min_of(max_of(length, 0), most - from);
    if (reports && start != from)
        report_error(p.error, CAIRN_FAULT_ROW_START, p.first_row + r, start);
    else if (reports && length != some)
        report_error(p.error, CAIRN_FAULT_LENGTH, p.first_row + r, length);
    return {from, from + some};
}

/* The same, empty for a row that is left out. */
CAIRN_INLINE range scored(const index_logits_params &p, int r) {
    const range window = window_of(p, r, false);
    return window.to - window.from > p.least ? window : range{0, 0};
}

/* ---- queries ---- */

/* Where a chunk of a head lies among the staged queries; heads are counted through the rows. */
CAIRN_INLINE int chunk_at(int head, int chunk) {
    if constexpr (CAIRN_WGMMA) return head / 8 * (CHUNKS * 128) + chunk * 128 + head % 8 * 16;
    else return head * PITCH + chunk * 16;
}

CAIRN_INLINE uint32_t word_of(u32x4 v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Puts values 4 word .. + 3 of a head where the lanes that have these of a key want them. */
CAIRN_INLINE void stage_word(const staged &s, int head, int word, uint32_t four) {
    const int unit = word / 16 * 4 + word % 4, lane = word / 4 % 4;
    if constexpr (FP8) {
        *(uint32_t *)(s.q + chunk_at(head, unit) + 4 * lane) = four;
    } else {
        uint32_t *low = (uint32_t *)(s.q + chunk_at(head, 2 * unit) + 4 * lane);
        uint32_t *high = (uint32_t *)(s.q + chunk_at(head, 2 * unit + 1) + 4 * lane);
        *low = e4m3x2_to_f16x2((uint16_t)four);
        *high = e4m3x2_to_f16x2((uint16_t)(four >> 16));
    }
}

/* Brings rows [first, first + count) into shared memory; begins and ends with a barrier. */
CAIRN_INLINE void stage_rows(const index_logits_params &p, const staged &s, int first, int count) {
    const int chunks = count * s.heads * (DIM / 16);
    block_sync();
#pragma unroll 4
    for (int i = thread_id(); i < chunks; i += block_threads()) {
        const int head = i / (DIM / 16), row = head / s.heads, own = head - row * s.heads;
        const int64_t at = ((int64_t)(first + row) * p.heads + own) * (DIM / 16) + i % (DIM / 16);
        u32x4 v = {};
        if (own < p.heads) v = load_constant((const u32x4 *)p.q + at);
#pragma unroll
        for (int k = 0; k < 4; k++) stage_word(s, head, i % (DIM / 16) * 4 + k, word_of(v, k));
    }
    for (int i = thread_id(); i < count * s.heads; i += block_threads()) {
        const int row = i / s.heads, own = i - row * s.heads;
        s.weights[i] = own < p.heads ? p.weights[(int64_t)(first + row) * p.heads + own] : 0.0f;
    }
    for (int i = thread_id(); i < count; i += block_threads()) s.windows[i] = scored(p, first + i);
#if CAIRN_WGMMA
    fence_async();
#endif
    block_sync();
}

/* ---- keys ---- */

/* The key of a lane's logit among 32. */
CAIRN_INLINE int key_of_lane(int lane) {
    return lane / 4 + 8 * (lane % 4);
}

/* The keys [from, to) of request b, tile by tile. Where those of this warp's next tile lie, 16 and 16:
 * 16 from a multiple of 16 on share a page; ids are asked for a tile before the keys are. Bit 2 i + m
 * of `missing`: keys 16 m on of the tile in stage i are nowhere. */
struct key_walk {
    int b, next, to, stage;
    uint32_t missing;
    int column[2], offset[2], page[2];
};

/* Asks for the pages of the next tile's keys. */
CAIRN_INLINE void find_pages(const index_logits_params &p, key_walk &w) {
    if constexpr (CAIRN_PAGED) {
#pragma unroll
        for (int m = 0; m < 2; m++)
            if (w.next + warp_id() * 32 + 16 * m < w.to)
                w.page[m] = p.page_table[(int64_t)w.b * p.max_pages + w.column[m]];
    }
}

/* Goes on to the next tile: `columns` pages and `slots` slots. */
CAIRN_INLINE void next_tile(const index_logits_params &p, key_walk &w) {
    w.next += TILE;
    w.stage = w.stage + 1 == STAGES ? 0 : w.stage + 1;
    if constexpr (CAIRN_PAGED) {
#pragma unroll
        for (int m = 0; m < 2; m++)
            for (w.offset[m] += TILE; w.offset[m] >= p.page_size; w.column[m]++)
                w.offset[m] -= p.page_size;
    }
    find_pages(p, w);
}

/* Where chunk i of this thread's keys in a stage goes, and the scale of the key whose logit it writes. */
CAIRN_INLINE u32x4 *chunk_here(const staged &s, int stage, int i) {
    return (u32x4 *)(s.tiles + stage * CAIRN_INDEX_STAGE) + i * TILE + thread_id();
}
CAIRN_INLINE float *scale_here(const staged &s, int stage) {
    return (float *)(s.tiles + stage * CAIRN_INDEX_STAGE + TILE * DIM) + thread_id();
}

/* Begins to copy the next tile of this warp, as far as there are keys, zeros elsewhere: of keys
 * lane / 4 + 8 i the bytes 16 (lane % 4) + 64 j on. That a page is not there, which row r needs, is
 * said. */
CAIRN_INLINE void fetch_tile(const index_logits_params &p, const staged &s, key_walk &w, int r) {
    const int lane = lane_id(), first = w.next + warp_id() * 32;
    w.missing &= ~(3u << 2 * w.stage);
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const uint8_t *key = p.keys + (int64_t)(first + 16 * m) * DIM;
        const float *scales = p.key_scales + first + 16 * m;
        bool there = first + 16 * m < w.to;
        if constexpr (CAIRN_PAGED) {
            if (there && (w.page[m] < 0 || w.page[m] >= p.pages)) {
                there = false, w.missing |= 1u << (2 * w.stage + m);
                if (lane == 0) report_error(p.error, CAIRN_FAULT_ID, p.first_row + r, w.page[m]);
            }
            const uint8_t *page = p.keys + (int64_t)w.page[m] * p.page_size * CAIRN_INDEX_BYTES;
            key = page + w.offset[m] * DIM;
            scales = (const float *)(page + p.page_size * DIM) + w.offset[m];
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int j = lane / 4 + i / 2 * 8;
            copy_async16(shared_addr(chunk_here(s, w.stage, 4 * m + i)),
                         key + j * DIM + i % 2 * 64 + lane % 4 * 16, there && first + 16 * m + j < w.to);
        }
        const int mine = key_of_lane(lane) - 16 * m;
        if (mine >= 0 && mine < 16)
            copy_async4(shared_addr(scale_here(s, w.stage)), scales + mine,
                        there && first + 16 * m + mine < w.to);
    }
}

/* Begins to walk through keys of request b: the first tiles are on their way. */
CAIRN_INLINE key_walk walk_keys(const index_logits_params &p, const staged &s, int b, range keys,
                                int r) {
    key_walk w = {b, keys.from, keys.to, 0, 0, {}, {}, {}};
    if constexpr (CAIRN_PAGED) {
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const int first = keys.from + warp_id() * 32 + 16 * m;
            w.column[m] = first / p.page_size;
            w.offset[m] = first - w.column[m] * p.page_size;
        }
    }
    find_pages(p, w);
#pragma unroll 1
    for (int i = 0; i < STAGES; i++) {
        if (w.next < w.to) fetch_tile(p, s, w, r);
        copy_async_commit();
        next_tile(p, w);
    }
    return w;
}

/* A lane's part of two matrices of 16 keys. */
struct key_matrix { uint32_t a[2][STEPS][4]; };

CAIRN_INLINE void take_keys(const staged &s, int stage, key_matrix &k) {
#pragma unroll
    for (int chunk = 0; chunk < 8; chunk++) { /* of keys lane / 4, and 8 further: a half of each */
        const u32x4 v = *chunk_here(s, stage, chunk);
        const int m = chunk / 4, half = chunk / 2 % 2;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int unit = chunk % 2 * 4 + i;
            if constexpr (FP8) {
                k.a[m][unit / 2][half + unit % 2 * 2] = word_of(v, i);
            } else {
                k.a[m][unit][half] = e4m3x2_to_f16x2((uint16_t)word_of(v, i));
                k.a[m][unit][half + 2] = e4m3x2_to_f16x2((uint16_t)(word_of(v, i) >> 16));
            }
        }
    }
}

/* ---- scores ---- */

/* Adds what two heads add to a lane's sums of two keys, 8 apart. */
CAIRN_INLINE void add_two(const float *d, f32x2 weights, float *sums) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        sums[i] = fma_f32(weights.x, fmaxf(d[2 * i], 0.0f), sums[i]);
        sums[i] = fma_f32(weights.y, fmaxf(d[2 * i + 1], 0.0f), sums[i]);
    }
}

#if CAIRN_WGMMA
constexpr int COLUMNS = CAIRN_COLUMNS;

CAIRN_INLINE void multiply(float *d, const uint32_t *a, uint64_t q, bool adds) {
    if constexpr (FP8 && COLUMNS == 64) wgmma_e4m3_64(d, a, q, adds);
    else if constexpr (FP8) wgmma_e4m3_32(d, a, q, adds);
    else if constexpr (COLUMNS == 64) wgmma_f16_64(d, a, q, adds);
    else wgmma_f16_32(d, a, q, adds);
}

/* Begins the products of keys m with COLUMNS heads from q on. */
CAIRN_INLINE void begin_products(const key_matrix &k, int m, uint64_t q, float *d) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < STEPS; step++)
        multiply(d, k.a[m][step], q + (uint64_t)(step * 2 * 128 / 16), step > 0);
    wgmma_commit();
}

/* Waits until LEFT of the products begun are under way, and adds up what those before give two keys. */
template <int LEFT> CAIRN_INLINE void end_products(float *d, const float *weights, float *sums) {
    wgmma_wait<LEFT>();
    wgmma_hold<COLUMNS / 2>(d);
#pragma unroll
    for (int i = 0; i < COLUMNS / 8; i++)
        add_two(d + 4 * i, *(const f32x2 *)(weights + 8 * i), sums);
}

/* What all heads of ROWS staged rows from i on add: products of 64 keys are made while those before are added up. */
template <int ROWS> CAIRN_INLINE void add_rows(const staged &s, const key_matrix &k, int i, float (*sums)[4]) {
    const float *weights = s.weights + i * s.heads + lane_id() % 4 * 2;
    uint64_t q = wgmma_matrix(shared_addr(s.q + chunk_at(i * s.heads, 0)), 128, CHUNKS * 128);
#pragma unroll 1
    for (int h = 0; h < s.heads; h += COLUMNS, weights += COLUMNS, q += (uint64_t)(COLUMNS * CHUNKS)) {
        float d[2][COLUMNS / 2];
        begin_products(k, 0, q, d[0]);
        begin_products(k, 1, q, d[1]);
#pragma unroll
        for (int n = 0; n < 2 * ROWS; n++) {
            const float *own = weights + n / 2 * s.heads;
            float *to = sums[n / 2] + n % 2 * 2;
            if (n == 2 * ROWS - 1) end_products<0>(d[n % 2], own, to);
            else end_products<1>(d[n % 2], own, to);
            if (n + 2 < 2 * ROWS)
                begin_products(k, n % 2, q + (uint64_t)((n / 2 + 1) * s.heads * CHUNKS), d[n % 2]);
        }
    }
}
#else
CAIRN_INLINE void multiply(float *d, const uint32_t *a, const uint32_t *b) {
#if CAIRN_ARCH >= 890
    if constexpr (FP8) {
        mma_e4m3(d, a, b);
        return;
    }
#endif
    mma_f16(d, a, b);
}

/* What 8 heads add to a lane's sums: of keys lane / 4 + 8 i, for two of the heads. */
CAIRN_INLINE void add_heads(const key_matrix &k, shared_addr q, f32x2 weights, float *sums) {
    float d[2][4] = {};
#pragma unroll
    for (int i = 0; i < STEPS / 2; i++) {
        uint32_t b[4];
        load_matrix_x4(b, q + (uint32_t)(64 * i));
#pragma unroll
        for (int m = 0; m < 2; m++) {
            multiply(d[m], k.a[m][2 * i], b);
            multiply(d[m], k.a[m][2 * i + 1], b + 2);
        }
    }
#pragma unroll
    for (int m = 0; m < 2; m++) add_two(d[m], weights, sums + 2 * m);
}

template <int ROWS> CAIRN_INLINE void add_rows(const staged &s, const key_matrix &k, int i, float (*all)[4]) {
    static_assert(ROWS == 1, "registers");
    float *sums = all[0];
    const int lane = lane_id();
    shared_addr q = shared_addr(s.q + chunk_at(i * s.heads + lane % 8, lane / 8));
    const float *weights = s.weights + i * s.heads + lane % 4 * 2;
#pragma unroll 1 /* or the next heads' queries take registers that keys are in */
    for (int h = 0; h < s.heads; h += 8, q = q + (uint32_t)(8 * PITCH), weights += 8)
        add_heads(k, q, *(const f32x2 *)weights, sums);
}
#endif

/* The logit of key key_of_lane, but for the key's scale, of a lane's sums: four lanes have parts of four keys, and each
 * ends with one. */
CAIRN_INLINE float meet_sums(const float *sums) {
    const int lane = lane_anew();
    const bool odd = (lane & 1) != 0, high = (lane & 2) != 0;
    const float even = (odd ? sums[1] : sums[0]) + shuffle_xor(odd ? sums[0] : sums[1], 1);
    const float more = (odd ? sums[3] : sums[2]) + shuffle_xor(odd ? sums[2] : sums[3], 1);
    return (high ? more : even) + shuffle_xor(high ? even : more, 2);
}

/* -inf for the keys of rows that belong to no request. */
CAIRN_INLINE void score_nothing(const index_logits_params &p, int first, int count, range keys) {
    for (int i = 0; i < count; i++) {
        const range window = scored(p, first + i);
        for (int j = keys.from + thread_id(); j < keys.to; j += block_threads())
            if (j >= window.from && j < window.to)
                p.out[(first + i) * p.stride + j] = minus_infinity();
    }
}

/* What is known of a tile once its place is another's. */
struct tile_keys {
    int base; /* its first key */
    float scale;
    uint32_t missing;
};

/* Writes the logit of this lane's key of a tile for staged row i. */
CAIRN_INLINE void put_logit(const index_logits_params &p, const staged &s, int first, int i, int end,
                            const tile_keys &t, const float *sums) {
    const range window = s.windows[i];
    const float value = mul_f32(t.scale, meet_sums(sums));
    const int key = key_of_lane(lane_anew()), j = t.base + warp_id() * 32 + key;
    if (j >= window.from && j < min_of(window.to, end))
        p.out[(first + i) * p.stride + j] = t.missing >> key / 16 & 1u ? minus_infinity() : value;
}

/* Goes on to the next tile, whose copies begin where this one lay. */
CAIRN_INLINE void fetch_next(const index_logits_params &p, const staged &s, key_walk &w, int r) {
    if (w.next < w.to) fetch_tile(p, s, w, r);
    copy_async_commit();
    next_tile(p, w);
}

/* Logits of the staged rows [first, first + count) with the walk's keys, as far as they are in the
 * rows' windows. */
CAIRN_INLINE void score_tiles(const index_logits_params &p, const staged &s, int first, int count,
                              key_walk &w) {
    constexpr int ROWS = CAIRN_WGMMA ? 2 : 1; /* at a time, where there are */
#pragma unroll 1
    for (int base = w.next - STAGES * TILE; base < w.to; base += TILE) {
        key_matrix k;
        copy_async_wait<STAGES - 1>();
        take_keys(s, w.stage, k);
        const tile_keys now = {base, *scale_here(s, w.stage), w.missing >> 2 * w.stage};
        fetch_next(p, s, w, first);
#pragma unroll 1
        for (int i = 0; i < count;) {
            float sums[ROWS][4] = {};
            if (ROWS > 1 && i + ROWS <= count) {
                add_rows<ROWS>(s, k, i, sums);
                for (int n = 0; n < ROWS; n++) put_logit(p, s, first, i + n, w.to, now, sums[n]);
                i += ROWS;
            } else {
                add_rows<1>(s, k, i, sums);
                put_logit(p, s, first, i, w.to, now, sums[0]);
                i++;
            }
        }
    }
}

/* ---- who does what ---- */

/* -inf in the columns [from, to) of rows where their windows are not. */
CAIRN_INLINE void clean_rows(const index_logits_params &p, int first, int count, range columns) {
    for (int i = 0; i < count; i++) {
        const range window = window_of(p, first + i, false);
        for (int j = columns.from + thread_id(); j < columns.to; j += block_threads())
            if (j < window.from || j >= window.to)
                p.out[(first + i) * p.stride + j] = minus_infinity();
    }
}

/* The keys that any of some rows sees. */
CAIRN_INLINE range all_windows(const index_logits_params &p, int first, int count) {
    range all = {0x7fffffff, 0};
    for (int i = 0; i < count; i++) {
        const range window = scored(p, first + i);
        if (window.from >= window.to) continue;
        all = {min_of(all.from, window.from), max_of(all.to, window.to)};
    }
    return all;
}

/* Rows that share their keys, and the keys that a block scores for them at a time. */
struct piece {
    int first, count;
    range keys;
};

/* The one of a block without a schedule. */
CAIRN_INLINE piece group_piece(const index_logits_params &p) {
    const int groups = ceil_div(p.rows_each, p.group); /* of the rows that share keys */
    const int within = block_id() % groups * p.group;
    const int first = block_id() / groups * p.rows_each + within;
    const int count = min_of(min_of(p.group, p.rows_each - within), p.rows - first);
    const int width = p.tiles * TILE, from = block_id_y() * width;
    const range columns = {from, min_of(from + width, p.n)};
    if (CAIRN_PAGED && !p.row_requests && p.max_pages > 0) /* beside the lengths; the next tiles' are near it */
        load_early((const uint32_t *)p.page_table + (int64_t)(first / p.rows_each) * p.max_pages +
                   min_of((from + warp_id() * 32) / p.page_size, p.max_pages - 1));
    if (block_id_y() == 0 && thread_id() < count) window_of(p, first + thread_id(), true);
    if (p.clean) clean_rows(p, first, count, columns);
    const range all = all_windows(p, first, count);
    return {first, count, {max_of(columns.from, all.from / TILE * TILE), min_of(columns.to, all.to)}};
}

struct work { int row, split; };
CAIRN_INLINE work work_at(const index_logits_params &p, int worker) {
    return {p.schedule[2 * worker], p.schedule[2 * worker + 1]};
}

/* Whether a boundary of the schedule is one: in a row, at one of its splits or behind the last. */
CAIRN_INLINE bool is_work(const index_logits_params &p, work at) {
    if (at.row < 0 || at.row > p.rows || at.split < 0) return false;
    return at.split == 0 ||
           (at.row < p.rows && at.split <= ceil_div(window_of(p, at.row, false).to, p.split));
}

/* Whether worker w's part is one. Together the parts leave nothing out: each begins where the one
 * before ends, the first at the first row that has keys, and the last ends behind a row. What a
 * schedule for other lengths names is not there: that is said, and the worker does nothing. */
CAIRN_INLINE bool check_work(const index_logits_params &p, int w, work from, work to) {
    bool fine = is_work(p, from) && is_work(p, to);
    fine = fine && (from.row < to.row || (from.row == to.row && from.split <= to.split));
    if (w == p.workers - 1) fine = fine && to.split == 0;
    if (w == 0) fine = fine && from.split == 0;
    for (int r = 0; w == 0 && fine && r < from.row; r++) fine = window_of(p, r, false).to == 0;
    if (!fine && thread_id() == 0)
        report_error(p.error, CAIRN_FAULT_POSITION, p.first_row + from.row, from.split);
    return fine;
}

/* Of row r, what is between two boundaries. */
CAIRN_INLINE piece row_piece(const index_logits_params &p, work from, work to, int r) {
    const int end = scored(p, r).to;
    const int64_t begin = r == from.row ? (int64_t)from.split * p.split : 0;
    const int64_t stop = r == to.row ? (int64_t)to.split * p.split : end;
    return {r, 1, {(int)min_of(begin, (int64_t)end), (int)min_of(stop, (int64_t)end)}};
}

/* The rows of a worker by the schedule; none where it is wrong. */
CAIRN_INLINE range scheduled_rows(const index_logits_params &p, work from, work to) {
    const int w = block_id();
    if (w == 0)
        for (int r = thread_id(); r < p.rows; r += block_threads()) window_of(p, r, true);
    for (int r = w; p.clean && r < p.rows; r += p.workers) clean_rows(p, r, 1, {0, p.n});
    if (!check_work(p, w, from, to)) return {0, 0};
    return {from.row, min_of(to.split > 0 ? to.row + 1 : to.row, p.rows)};
}

/* Scores a piece: brings its rows and keys in. */
CAIRN_INLINE void score_piece(const index_logits_params &p, const staged &s, const piece &x) {
    const int b = !CAIRN_PAGED ? 0 : p.row_requests ? p.row_requests[x.first] : x.first / p.rows_each;
    if (x.keys.from >= x.keys.to) return;
    if (CAIRN_PAGED && (b < 0 || b >= p.requests)) {
        if (thread_id() == 0) report_error(p.error, CAIRN_FAULT_ID, p.first_row + x.first, b);
        score_nothing(p, x.first, x.count, x.keys);
        return;
    }
    key_walk w = walk_keys(p, s, b, x.keys, x.first);
    stage_rows(p, s, x.first, x.count);
    score_tiles(p, s, x.first, x.count, w);
}

CAIRN_KERNEL(index_logits, 128, CAIRN_INDEX_BLOCKS, index_logits_params) {
    const staged s = staged_at(p);
    work from = {}, to = {};
    range rows = {0, 1};
    if (p.schedule) {
        from = work_at(p, block_id()), to = work_at(p, block_id() + 1);
        rows = scheduled_rows(p, from, to);
    }
#pragma unroll 1
    for (int r = rows.from; r < rows.to; r++)
        score_piece(p, s, p.schedule ? row_piece(p, from, to, r) : group_piece(p));
}

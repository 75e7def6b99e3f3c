/* index_logits: how well index keys match the queries of the rows.
 *
 * Formula    out[i, j] = scale[j] * sum over h of weights[i, h] * max(0, q[i, h] . k[j])
 * How        a warp turns 32 keys into f16 (exact: so are the products in f32) and keeps them in
 *            registers while the heads of a few rows pass by in shared memory: keys are the rows of
 *            the products, heads their columns, so the sum over heads stays in four registers. The
 *            order of d in the products is one in which a lane's bytes of a key are 16 in a row.
 *            A logit depends on its row and key alone: not on what shares the block, nor on where a
 *            schedule cuts
 * Constants  CAIRN_PAGED  1: keys lie in the paged cache, 0: one behind the other
 * Launch     grid (groups of rows, ceil(tiles / p.tiles)), or (workers) with a schedule; block 128;
 *            shared memory p.group * (heads * (CAIRN_INDEX_PITCH + 4) + 8) bytes
 * Oracle     tests/ref/index_ref.h
 * matrix: CAIRN_PAGED=0 | CAIRN_PAGED=1 */
#include "device/common.cuh"
#include "abi/index.h"

#define DIM CAIRN_INDEX_DIM
#define PITCH CAIRN_INDEX_PITCH
#define TILE CAIRN_INDEX_TILE

struct range { int from, to; };

/* The block's shared memory: queries, weights, windows of p.group rows. */
struct staged {
    unsigned char *q;
    float *weights;
    range *windows;
};

CAIRN_INLINE staged staged_at(const index_logits_params &p) {
    unsigned char *base = shared_base();
    const int heads = p.group * p.heads;
    return {base, (float *)(base + heads * PITCH), (range *)(base + heads * (PITCH + 4))};
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

/* ---- queries ---- */

/* Where the 4 bytes d .. d + 3 of a head go: two values to a column, two to one 8 further. */
CAIRN_INLINE int column_of(int word) {
    const int step = word / 16 * 4 + word % 4, lane = word / 4 % 4;
    return 16 * step + 2 * lane;
}

/* Brings rows [first, first + count) into shared memory; begins and ends with a barrier. */
CAIRN_INLINE void stage_rows(const index_logits_params &p, const staged &s, int first, int count) {
    const int words = count * p.heads * (DIM / 4);
    const uint32_t *q = (const uint32_t *)p.q + (int64_t)first * p.heads * (DIM / 4);
    block_sync();
    for (int i = thread_id(); i < words; i += block_threads()) {
        const uint32_t four = load_constant(q + i);
        uint32_t *to = (uint32_t *)(s.q + i / (DIM / 4) * PITCH + column_of(i % (DIM / 4)) * 2);
        to[0] = e4m3x2_to_f16x2((uint16_t)four);
        to[4] = e4m3x2_to_f16x2((uint16_t)(four >> 16));
    }
    for (int i = thread_id(); i < count * p.heads; i += block_threads())
        s.weights[i] = p.weights[(int64_t)first * p.heads + i];
    for (int i = thread_id(); i < count; i += block_threads()) {
        const range window = window_of(p, first + i, false);
        s.windows[i] = window.to - window.from > p.least ? window : range{0, 0};
    }
    block_sync();
}

/* ---- keys ---- */

/* A lane's bytes of a warp's 32 keys: of keys lane / 4 + 8 i the bytes 16 (lane % 4) + 64 j on, and
 * the scale of the key whose logit it writes. `missing`: bit m says that keys 16 m on are nowhere. */
struct lane_keys {
    u32x4 bytes[4][2];
    float scale;
    uint32_t missing;
};

/* The key of a lane's logit among 32. */
CAIRN_INLINE int key_of_lane(int lane) {
    return lane / 4 + 8 * (lane % 4);
}

struct key_place { const uint8_t *key; const float *scale; };

/* Key j of request b; none on a page that is not there, which row r needs: it is said if `reports`.
 * 16 keys from a multiple of 16 on lie in one page. */
CAIRN_INLINE key_place place_of(const index_logits_params &p, int b, int j, int r, bool reports) {
    if constexpr (CAIRN_PAGED) {
        const int column = j / p.page_size, offset = j - column * p.page_size;
        const int page = p.page_table[(int64_t)b * p.max_pages + column];
        if (page < 0 || page >= p.pages) {
            if (reports) report_error(p.error, CAIRN_FAULT_ID, p.first_row + r, page);
            return {nullptr, nullptr};
        }
        const uint8_t *at = p.keys + (int64_t)page * p.page_size * CAIRN_INDEX_BYTES;
        return {at + offset * DIM, (const float *)(at + p.page_size * DIM) + offset};
    } else {
        return {p.keys + (int64_t)j * DIM, p.key_scales + j};
    }
}

/* The keys of this warp among `base` on, those below `end` that there are; zeros elsewhere. */
CAIRN_INLINE lane_keys load_keys(const index_logits_params &p, int b, int base, int end, int r) {
    lane_keys keys;
    const int lane = lane_id(), first = base + warp_id() * 32, mine = first + key_of_lane(lane);
    keys.missing = 0;
    keys.scale = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int j = first + 8 * i + lane / 4;
        key_place at = {nullptr, nullptr};
        if (j < end) at = place_of(p, b, j, r, lane == 0);
        if (j < end && !at.key) keys.missing |= 1u << (i / 2);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            keys.bytes[i][half] = {0, 0, 0, 0};
            if (at.key)
                keys.bytes[i][half] = load_constant((const u32x4 *)(at.key + 64 * half) + lane % 4);
        }
    }
    if (mine < end) {
        const key_place at = place_of(p, b, mine, r, false);
        if (at.key) keys.scale = load_constant(at.scale);
    }
    return keys;
}

/* A lane's part of two matrices of 16 keys, in f16. */
struct key_matrix { uint32_t a[2][8][4]; };

CAIRN_INLINE uint32_t word_of(u32x4 v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

CAIRN_INLINE void widen_keys(const lane_keys &keys, key_matrix &k) {
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int step = 0; step < 8; step++)
#pragma unroll
            for (int half = 0; half < 2; half++) { /* keys lane / 4, and 8 further */
                const uint32_t four = word_of(keys.bytes[2 * m + half][step / 4], step % 4);
                k.a[m][step][half] = e4m3x2_to_f16x2((uint16_t)four);
                k.a[m][step][half + 2] = e4m3x2_to_f16x2((uint16_t)(four >> 16));
            }
}

/* ---- scores ---- */

/* What 8 heads add to a lane's sums: of keys lane / 4 + 8 i, for two of the heads. */
CAIRN_INLINE void add_heads(const key_matrix &k, shared_addr q, f32x2 weights, float *sums) {
    float d[2][4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t b[4];
        load_matrix_x4(b, q + (uint32_t)(64 * i));
#pragma unroll
        for (int m = 0; m < 2; m++) {
            mma_f16(d[m], k.a[m][2 * i], b);
            mma_f16(d[m], k.a[m][2 * i + 1], b + 2);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float *two = d[i / 2] + i % 2 * 2;
        sums[i] = fma_f32(weights.x, fmaxf(two[0], 0.0f), sums[i]);
        sums[i] = fma_f32(weights.y, fmaxf(two[1], 0.0f), sums[i]);
    }
}

/* The logit of key key_of_lane for row i of those staged, but for the key's scale. */
CAIRN_INLINE float score_row(const index_logits_params &p, const staged &s, const key_matrix &k,
                             int i) {
    const int lane = lane_id();
    shared_addr q = shared_addr(s.q + (i * p.heads + lane % 8) * PITCH + lane / 8 * 16);
    const float *weights = s.weights + i * p.heads + lane % 4 * 2;
    float sums[4] = {};
#pragma unroll 1 /* or the next heads' queries take registers that keys are in */
    for (int h = 0; h < p.heads; h += 8, q = q + (uint32_t)(8 * PITCH), weights += 8)
        add_heads(k, q, *(const f32x2 *)weights, sums);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        sums[j] += shuffle_xor(sums[j], 1);
        sums[j] += shuffle_xor(sums[j], 2);
    }
    return lane % 4 == 0 ? sums[0] : lane % 4 == 1 ? sums[1] : lane % 4 == 2 ? sums[2] : sums[3];
}

/* -inf for the keys of rows that belong to no request. */
CAIRN_INLINE void score_nothing(const index_logits_params &p, const staged &s, int first, int count,
                                range keys) {
    for (int i = 0; i < count; i++)
        for (int j = keys.from + thread_id(); j < keys.to; j += block_threads())
            if (j >= s.windows[i].from && j < s.windows[i].to)
                p.out[(first + i) * p.stride + j] = as_f32(0xff800000u);
}

/* Logits of the staged rows [first, first + count) with the keys [from, to), as far as they are in
 * the rows' windows. */
CAIRN_INLINE void score_keys(const index_logits_params &p, const staged &s, int first, int count,
                             range keys) {
    const int lane = lane_id();
    const int b = !CAIRN_PAGED ? 0 : p.row_requests ? p.row_requests[first] : first / p.rows_each;
    if (CAIRN_PAGED && (b < 0 || b >= p.requests)) {
        if (thread_id() == 0) report_error(p.error, CAIRN_FAULT_ID, p.first_row + first, b);
        score_nothing(p, s, first, count, keys);
        return;
    }
    if (keys.from >= keys.to) return;
    lane_keys next = load_keys(p, b, keys.from, keys.to, first);
    for (int base = keys.from; base < keys.to; base += TILE) {
        key_matrix k;
        const int j = base + warp_id() * 32 + key_of_lane(lane);
        const float scale = next.scale;
        const bool missing = (next.missing >> (key_of_lane(lane) / 16) & 1u) != 0;
        widen_keys(next, k);
        if (base + TILE < keys.to) next = load_keys(p, b, base + TILE, keys.to, first);
        for (int i = 0; i < count; i++) {
            const range window = s.windows[i];
            if (window.to <= base || window.from >= base + TILE) continue;
            const float value = mul_f32(scale, score_row(p, s, k, i));
            if (j >= window.from && j < min_of(window.to, keys.to))
                p.out[(first + i) * p.stride + j] = missing ? as_f32(0xff800000u) : value;
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
                p.out[(first + i) * p.stride + j] = as_f32(0xff800000u);
    }
}

/* The keys that any staged row sees. */
CAIRN_INLINE range all_windows(const staged &s, int count) {
    range all = {0x7fffffff, 0};
    for (int i = 0; i < count; i++) {
        const range window = s.windows[i];
        if (window.from >= window.to) continue;
        all = {min_of(all.from, window.from), max_of(all.to, window.to)};
    }
    return all;
}

CAIRN_INLINE void score_group(const index_logits_params &p, const staged &s) {
    const int groups = ceil_div(p.rows_each, p.group); /* of the rows that share keys */
    const int within = block_id() % groups * p.group;
    const int first = block_id() / groups * p.rows_each + within;
    const int count = min_of(min_of(p.group, p.rows_each - within), p.rows - first);
    const int width = p.tiles * TILE, from = block_id_y() * width;
    const range columns = {from, min_of(from + width, p.n)};
    if (block_id_y() == 0 && thread_id() < count) window_of(p, first + thread_id(), true);
    if (p.clean) clean_rows(p, first, count, columns);
    stage_rows(p, s, first, count);
    const range all = all_windows(s, count);
    score_keys(p, s, first, count, {max_of(columns.from, all.from / TILE * TILE),
                                    min_of(columns.to, all.to)});
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

CAIRN_INLINE void score_scheduled(const index_logits_params &p, const staged &s) {
    const int w = block_id();
    const work from = work_at(p, w), to = work_at(p, w + 1);
    if (w == 0)
        for (int r = thread_id(); r < p.rows; r += block_threads()) window_of(p, r, true);
    for (int r = w; p.clean && r < p.rows; r += p.workers) clean_rows(p, r, 1, {0, p.n});
    if (!check_work(p, w, from, to)) return;
    for (int r = from.row; r < p.rows && (r < to.row || (r == to.row && to.split > 0)); r++) {
        const int64_t begin = r == from.row ? (int64_t)from.split * p.split : 0;
        stage_rows(p, s, r, 1);
        const int end = s.windows[0].to;
        const int64_t stop = r == to.row ? (int64_t)to.split * p.split : end;
        score_keys(p, s, r, 1, {(int)min_of(begin, (int64_t)end), (int)min_of(stop, (int64_t)end)});
    }
}

CAIRN_KERNEL(index_logits, 128, 3, index_logits_params) {
    const staged s = staged_at(p);
    if (p.schedule) score_scheduled(p, s);
    else score_group(p, s);
}

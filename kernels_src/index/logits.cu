/* index_logits: how well index keys match the queries of the rows.
 *
 * Formula    out[i, j] = scale[j] * sum over h of weights[i, h] * max(0, q[i, h] . k[j])
 * How        a block walks through tiles of keys, which the heads of a few rows meet in shared memory: keys are the
 *            rows of the products, heads their columns, so the sum over heads stays in four registers of a lane. The
 *            next tile is on its way meanwhile. How keys and queries lie and meet is index/by_wgmma.cuh's, or
 *            index/by_mma.cuh's where there is no wgmma. The products are of e4m3 where the chip has them (sm_90:
 *            wgmma; sm_89 and sm_120: mma), else of f16, exact in f32 then. A logit depends on its row and key alone:
 *            not on what shares the block, nor on where a schedule cuts
 * Constants  CAIRN_PAGE_SIZE  keys of a page of the paged cache; 0: keys lie one behind the other
 *            CAIRN_COLUMNS    heads of a product: 64 or 32; rows have heads up to a multiple of it by wgmma,
 *                             those that are not there of zeros
 * Launch     grid (groups of rows, ceil(tiles / p.tiles)), or (workers) with a schedule; block 128;
 *            shared memory 1024 + CAIRN_INDEX_STAGES * CAIRN_INDEX_STAGE + p.group * (heads up to a multiple of 32 *
 *            (CAIRN_INDEX_PITCH + 4) + 8) bytes
 * Oracle     tests/ref/index_ref.h
 * matrix: CAIRN_PAGE_SIZE=0 CAIRN_COLUMNS=64 | CAIRN_PAGE_SIZE=64 CAIRN_COLUMNS=64
 * matrix: CAIRN_PAGE_SIZE=16 CAIRN_COLUMNS=32 */
#include "device/common.cuh"
#include "abi/index.h"

#define DIM CAIRN_INDEX_DIM
#define TILE CAIRN_INDEX_TILE
#define STAGES CAIRN_INDEX_STAGES

constexpr bool PAGED = CAIRN_PAGE_SIZE > 0;
constexpr int PAGE = PAGED ? CAIRN_PAGE_SIZE : TILE;
constexpr int TOGETHER = PAGE % 32 ? 16 : 32; /* keys of a warp's 32 that share a page */
constexpr int PAGES = 32 / TOGETHER;
constexpr bool FP8 = CAIRN_INDEX_FP8(CAIRN_ARCH / 10);
constexpr int PITCH = CAIRN_INDEX_PITCH(CAIRN_ARCH / 10);

struct alignas(8) range { int from, to; };

/* The block's shared memory: tiles on their way, queries, the scales of the tiles' keys, weights and windows of p.group
 * rows of `heads` heads each, those behind p.heads zeros. Tiles and queries begin at multiples of 1024 bytes. */
struct staged {
    unsigned char *tiles, *q;
    float *scales, *weights;
    range *windows;
    int heads;
};

CAIRN_INLINE staged staged_at(const index_logits_params &p) {
    const uint32_t begin = shared_addr(shared_base()).at;
    const int heads = CAIRN_WGMMA ? round_up(p.heads, CAIRN_COLUMNS) : p.heads, all = p.group * heads;
    unsigned char *tiles = shared_base() + ((begin + 1023) / 1024 * 1024 - begin), *q = tiles + STAGES * TILE * DIM;
    float *scales = (float *)(q + all * PITCH), *weights = scales + STAGES * TILE;
    return {tiles, q, scales, weights, (range *)(weights + all), heads};
}

/* The keys of row r: its window, cut to what there is. */
CAIRN_INLINE range window_of(const index_logits_params &p, int r, bool reports) {
    const int64_t room = PAGED ? (int64_t)p.max_pages * PAGE : p.n;
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

/* Stages what rows [first, first + count) see of `keys`. */
CAIRN_INLINE void take_windows(const index_logits_params &p, const staged &s, int first, int count, range keys) {
    for (int i = thread_id(); i < count; i += block_threads()) {
        const range window = scored(p, first + i);
        s.windows[i] = {max_of(window.from, keys.from), min_of(window.to, keys.to)};
    }
}

/* ---- what keys and queries meet by: see the two files ---- */

/* The key of a lane's logit among 32. */
CAIRN_INLINE int key_of_lane(int lane) {
    return lane / 4 + 8 * (lane % 4);
}

/* Where the scale of the key lies whose logit this thread writes. */
CAIRN_INLINE float *scale_here(const staged &s, int stage) { return s.scales + stage * TILE + thread_id(); }

/* Adds what two heads add to a lane's sums of two keys, 8 apart. */
CAIRN_INLINE void add_two(const float *d, f32x2 weights, float *sums) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        sums[i] = fma_f32(weights.x, fmaxf(d[2 * i], 0.0f), sums[i]);
        sums[i] = fma_f32(weights.y, fmaxf(d[2 * i + 1], 0.0f), sums[i]);
    }
}

#if CAIRN_WGMMA
#include "index/by_wgmma.cuh"
#else
#include "index/by_mma.cuh"
#endif

/* ---- keys ---- */

/* Keys of a request up to `to`, tile by tile from a multiple of 32 on. `keys`, `scales`: where a lane's first copies
 * would begin of the cache's first page, or of key 0; `pages`: the request's row of the page table. A page's id is
 * asked for a tile before its keys are. Bit PAGES i + m of `missing`: page m of this warp's part of the tile in place i
 * is none. */
struct key_walk {
    const uint8_t *keys;
    const float *scales;
    const int32_t *pages;
    int next, to, stage;
    uint32_t missing;
    int page[PAGES];
};

CAIRN_INLINE int next_stage(int stage) { return stage + 1 == STAGES ? 0 : stage + 1; }

/* Asks for the pages of the next tile's keys. */
CAIRN_INLINE void find_pages(key_walk &w) {
    if constexpr (PAGED) {
#pragma unroll
        for (int m = 0; m < PAGES; m++) {
            const int first = w.next + warp_id() * 32 + TOGETHER * m;
            if (first < w.to) w.page[m] = w.pages[(uint32_t)first / PAGE];
        }
    }
}

/* Begins to copy `count` of the keys [TOGETHER m, ..) of a warp, zeros behind them. */
CAIRN_INLINE void copy_keys(const staged &s, int stage, int m, const uint8_t *keys, int count) {
    const uint8_t *from = pointer_anew(keys);
#pragma unroll
    for (int i = 0; i < TOGETHER / 4; i++)
        copy_async16(key_copies::to(s, stage, TOGETHER / 4 * m + i), from + key_copies::from_next(i),
                     key_copies::key(i) < count);
}

/* Begins to copy the next tile of this warp, as far as there are keys, zeros elsewhere. That a page is not
 * there, which row r needs, is said. */
CAIRN_INLINE void fetch_tile(const index_logits_params &p, const staged &s, key_walk &w, int r) {
    const int mine = key_of_lane(lane_id());
    const float *scale = w.scales + (w.next + warp_id() * 32);
    bool there = w.next + warp_id() * 32 + mine < w.to;
    w.missing &= ~((1u << PAGES) - 1 << PAGES * w.stage);
#pragma unroll
    for (int m = 0; m < PAGES; m++) {
        const int first = w.next + warp_id() * 32 + TOGETHER * m;
        const uint8_t *keys = w.keys + (int64_t)first * DIM;
        int count = w.to - first;
        if constexpr (PAGED) {
            const bool own = PAGES == 1 || mine / 16 == m;
            if (count > 0 && (uint32_t)w.page[m] >= (uint32_t)p.pages) {
                w.missing |= 1u << (PAGES * w.stage + m), count = 0;
                if (own) there = false;
                if (lane_id() == 0) report_error(p.error, CAIRN_FAULT_ID, p.first_row + r, w.page[m]);
            }
            const uint64_t page = (uint64_t)(uint32_t)w.page[m] * (uint32_t)(PAGE * CAIRN_INDEX_BYTES);
            const uint32_t offset = (uint32_t)first % PAGE;
            keys = w.keys + page + offset * DIM;
            if (own) scale = (const float *)((const uint8_t *)w.scales + page + offset * 4);
        }
        copy_keys(s, w.stage, m, keys, count);
    }
    copy_async4(shared_addr(scale_here(s, w.stage)), scale, there);
}

/* Goes on to the next tile, whose copies begin where one before it lay. */
CAIRN_INLINE void fetch_next(const index_logits_params &p, const staged &s, key_walk &w, int r) {
    if (w.next < w.to) fetch_tile(p, s, w, r);
    copy_async_commit();
    w.next += TILE;
    w.stage = next_stage(w.stage);
    find_pages(w);
}

/* Begins to walk through keys of request b: the first tiles are on their way. */
CAIRN_INLINE key_walk walk_keys(const index_logits_params &p, const staged &s, int b, range keys,
                                int r) {
    const int mine = key_of_lane(lane_id());
    const float *scales = PAGED ? (const float *)(p.keys + PAGE * DIM) + mine % TOGETHER : p.key_scales + mine;
    key_walk w = {p.keys + key_copies::from(), scales, p.page_table, keys.from / 32 * 32, keys.to, 0, 0, {}};
    if constexpr (PAGED) w.pages += (int64_t)b * p.max_pages;
    find_pages(w);
#pragma unroll 1
    for (int i = 0; i < AHEAD; i++) fetch_next(p, s, w, r);
    return w;
}

/* ---- scores ---- */

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

/* This lane's key of a tile: where its logit of the first row goes, and what is known of it once its place is
 * another's. */
struct tile_key {
    float *out;
    int position;
    float scale;
    bool missing; /* nowhere: -inf */
};
CAIRN_INLINE tile_key key_here(const index_logits_params &p, const staged &s, const key_walk &w, int base, int stage,
                               int first) {
    const int mine = key_of_lane(lane_id()), position = base + warp_id() * 32 + mine;
    return {p.out + first * p.stride + position, position, *scale_here(s, stage),
            (w.missing >> (PAGES * stage + mine / TOGETHER) & 1u) != 0};
}

/* Writes the logits of this lane's key for ROWS staged rows from i on, as far as it is in their windows. */
template <int ROWS>
CAIRN_INLINE void score_rows(const index_logits_params &p, const staged &s, const held_keys &k, const tile_key &key,
                             int i) {
    float sums[ROWS][4] = {};
    add_rows<ROWS>(s, k, i, sums);
#pragma unroll
    for (int n = 0; n < ROWS; n++) {
        const range window = s.windows[i + n];
        const float value = mul_f32(key.scale, meet_sums(sums[n]));
        if (key.position >= window.from && key.position < window.to)
            key.out[(i + n) * p.stride] = key.missing ? minus_infinity() : value;
    }
}

/* Logits of the staged rows [first, first + count) with the walk's keys, as far as they are in the
 * rows' windows. */
CAIRN_INLINE void score_tiles(const index_logits_params &p, const staged &s, int first, int count,
                              key_walk &w) {
#pragma unroll 1
    for (int base = w.next - AHEAD * TILE, stage = 0; base < w.to; base += TILE, stage = next_stage(stage)) {
        held_keys k;
        copy_async_wait<AHEAD - 1>();
        k.take(s, stage);
        const tile_key key = key_here(p, s, w, base, stage, first);
        fetch_next(p, s, w, first);
#pragma unroll 1
        for (int i = 0; i < count;) {
            if (ROWS_AT_ONCE > 1 && i + ROWS_AT_ONCE <= count) score_rows<ROWS_AT_ONCE>(p, s, k, key, i);
            else score_rows<1>(p, s, k, key, i);
            i += ROWS_AT_ONCE;
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
    if (PAGED && !p.row_requests && p.max_pages > 0) /* beside the lengths; the next tiles' are near it */
        load_early((const uint32_t *)p.page_table + (int64_t)(first / p.rows_each) * p.max_pages +
                   min_of((from + warp_id() * 32) / PAGE, p.max_pages - 1));
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
CAIRN_INLINE void score_piece(const index_logits_params &p, const staged &s, piece x) {
    const int b = !PAGED ? 0 : p.row_requests ? p.row_requests[x.first] : x.first / p.rows_each;
    if (x.keys.from >= x.keys.to) return;
    if (PAGED && (b < 0 || b >= p.requests)) {
        if (thread_id() == 0) report_error(p.error, CAIRN_FAULT_ID, p.first_row + x.first, b);
        score_nothing(p, x.first, x.count, x.keys);
        return;
    }
    ask_rows(p, s, x.first, x.count);
    x = {warp_same(x.first), warp_same(x.count), {warp_same(x.keys.from), warp_same(x.keys.to)}};
    key_walk w = walk_keys(p, s, b, x.keys, x.first);
    take_rows(p, s, x.first, x.count, x.keys);
    score_tiles(p, s, x.first, x.count, w);
}

CAIRN_KERNEL(index_logits, 128, CAIRN_INDEX_BLOCKS(CAIRN_ARCH / 10, PAGED), index_logits_params) {
    const staged s = staged_at(p);
    work from = {}, to = {};
    range rows = {0, 1};
    grid_follow();
    if (p.schedule) {
        from = work_at(p, block_id()), to = work_at(p, block_id() + 1);
        rows = scheduled_rows(p, from, to);
    }
#pragma unroll 1
    for (int r = rows.from; r < rows.to; r++)
        score_piece(p, s, p.schedule ? row_piece(p, from, to, r) : group_piece(p));
}

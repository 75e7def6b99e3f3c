/* Page-sparse attention of few rows: which pages a row attends, and the attention over them.
 *
 * step_bounds   lowest and highest key of a page per dimension, or its mean (sum over ascending
 *               slots in f32); f16. Grid (new pages, kv_heads, layers), 128 threads.
 * step_select   the pages of each row and KV head, ascending. The row at position i has the whole
 *               pages before its window as candidates; scores sum_d max(q_d lo_d, q_d hi_d) (or
 *               q . mean), summed over the KV head's query heads or the best of them; the topk
 *               highest are kept, the lowest page among equals, NaN last. All pages from the window
 *               on are attended, and of a page with sinks that is not kept the sinks alone. Bounds
 *               of candidates not stored yet are taken from the cache. Grid (rows, kv_heads),
 *               CAIRN_WARPS warps, shared memory 8 bytes a page of the context.
 * step_attend_pages, step_merge_pages
 *               as step_attend and step_merge, chunk c being the pages [c, c + 1) CHUNK / PAGE of a
 *               row's list. Grids (chunks at most, rows, kv_heads) and any; CAIRN_WARPS warps;
 *               shared memory ATTEND_BYTES and none.
 *
 * Constants: those of step.cuh, CAIRN_BLOCKS 0. A list of all pages gives the bits of step_attend.
 * Sync: three block_syncs in select, two in attend. Integers exact.
 * Reference: tests/ref/decoder_step.h.
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_BLOCKS=0 CAIRN_NARROW=0 */
#include "step_stages.cuh"

constexpr int32_t SINKS_ALONE = 1 << 30; /* in a list: only the sinks of this page */
constexpr int LANE_DIMS = HEAD_DIM / WARP;

/* lo, hi: bounds of dimensions lane LANE_DIMS.. of a page, from its keys [PAGE, HEAD_DIM]. */
CAIRN_INLINE void key_bounds(const uint16_t *keys, bool mean, float *lo, float *hi) {
    float sum[LANE_DIMS] = {};
    for (int slot = 0; slot < PAGE; slot++)
#pragma unroll
        for (int i = 0; i < LANE_DIMS; i++) {
            float k = f16_to_f32(f16{keys[slot * HEAD_DIM + lane_id() * LANE_DIMS + i]});
            lo[i] = slot ? min_of(lo[i], k) : k;
            hi[i] = slot ? max_of(hi[i], k) : k;
            sum[i] += k;
        }
    if (!mean) return;
#pragma unroll
    for (int i = 0; i < LANE_DIMS; i++) {
        lo[i] = f16_to_f32(f32_to_f16(sum[i] / (float)PAGE));
        hi[i] = 0.0f;
    }
}

CAIRN_KERNEL(step_bounds, 128, 1, step_params) {
    const int page = p.new_pages[block_id()], head = block_id_y(), layer = block_id_z();
    grid_dependency_wait();
    if (warp_id() > 0) return;
    const uint16_t *keys = p.kv[layer] + ((int64_t)page * 2 * KV_HEADS + head) * PAGE * HEAD_DIM;
    uint16_t *to = p.bounds[layer] + ((int64_t)page * KV_HEADS + head) * 2 * HEAD_DIM;
    float lo[LANE_DIMS], hi[LANE_DIMS];
    key_bounds(keys, p.mean != 0, lo, hi);
#pragma unroll
    for (int i = 0; i < LANE_DIMS; i++) {
        int d = lane_id() * LANE_DIMS + i;
        to[d] = f32_to_f16(lo[i]).bits;
        to[HEAD_DIM + d] = p.mean ? (uint16_t)0 : f32_to_f16(hi[i]).bits;
    }
}

/* The score of a page, in every lane; q: this lane's dimensions of the KV head's query heads. */
CAIRN_INLINE float score_page(const float (*q)[LANE_DIMS], const float *lo, const float *hi,
                              bool mean, bool by_head) {
    float sum = 0.0f, best = -3.4e38f;
#pragma unroll
    for (int h = 0; h < GROUP; h++) {
        float s = 0.0f;
#pragma unroll
        for (int i = 0; i < LANE_DIMS; i++)
            s += mean ? q[h][i] * lo[i] : fmaxf(q[h][i] * lo[i], q[h][i] * hi[i]);
        if (by_head) best = fmaxf(best, warp_sum(s));
        else sum += s;
    }
    return by_head ? best : warp_sum(sum);
}

/* Orders as the score does: NaN lowest, -0 as +0. */
CAIRN_INLINE uint32_t score_key(float score) {
    if (score != score) return 0;
    uint32_t bits = as_u32(score + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct select_row {
    int row, kv_head, position, sequence, stored;
    const int32_t *table;
};

CAIRN_INLINE void score_candidates(const step_params &p, const select_row &r, int candidates,
                                   uint32_t *keys) {
    const uint8_t *qkv = region(p, 0, 0) + QKV_AT;
    const uint16_t *cache = p.kv[p.layer], *bounds = p.bounds[p.layer];
    float q[GROUP][LANE_DIMS];
#pragma unroll
    for (int h = 0; h < GROUP; h++)
#pragma unroll
        for (int i = 0; i < LANE_DIMS; i++)
            q[h][i] = f16_to_f32(((const f16 *)qkv)[(int64_t)r.row * QKV +
                                                    (r.kv_head * GROUP + h) * HEAD_DIM +
                                                    lane_id() * LANE_DIMS + i]);
    for (int c = warp_id(); c < candidates; c += WARPS) {
        int64_t page = r.table[c];
        float lo[LANE_DIMS], hi[LANE_DIMS];
        if (c < r.stored) {
            const uint16_t *at = bounds + (page * KV_HEADS + r.kv_head) * 2 * HEAD_DIM;
#pragma unroll
            for (int i = 0; i < LANE_DIMS; i++) {
                lo[i] = f16_to_f32(f16{at[lane_id() * LANE_DIMS + i]});
                hi[i] = f16_to_f32(f16{at[HEAD_DIM + lane_id() * LANE_DIMS + i]});
            }
        } else {
            key_bounds(cache + (page * 2 * KV_HEADS + r.kv_head) * PAGE * HEAD_DIM, p.mean != 0, lo,
                       hi);
        }
        float score = score_page(q, lo, hi, p.mean != 0, p.by_head != 0);
        if (lane_id() == 0) keys[c] = score_key(score);
    }
}

/* kept[c] = whether page c is among the topk of `candidates`. */
CAIRN_INLINE void rank_candidates(int candidates, int topk, const uint32_t *keys, uint32_t *kept) {
    for (int c = thread_id(); c < candidates; c += THREADS) {
        uint32_t key = keys[c];
        int above = 0;
        for (int j = 0; j < candidates && above < topk; j++)
            above += keys[j] > key || (keys[j] == key && j < c);
        kept[c] = above < topk;
    }
}

/* Bits of pages that a row of this sequence is the first to read add to pages_read. */
CAIRN_INLINE void count_pages(const step_params &p, const select_row &r, int word, uint32_t bits) {
    int64_t head = ((int64_t)p.layer * p.sequences + r.sequence) * KV_HEADS + r.kv_head;
    uint32_t *seen = p.seen + head * p.seen_words;
    uint32_t before = atomic_or(seen + word, bits);
    int fresh = popcount(bits & ~before);
    if (fresh) atomic_add(p.pages_read + r.sequence, fresh);
}

/* One warp: the list of pages, ascending. */
CAIRN_INLINE void write_list(const step_params &p, const select_row &r, int candidates,
                             const uint32_t *kept) {
    int own = r.position / PAGE, sink_pages = ceil_div(p.sinks, PAGE), count = 0;
    int at = r.row * KV_HEADS + r.kv_head;
    int32_t *list = p.lists + (int64_t)at * p.list_stride;
    for (int first = 0; first <= own; first += WARP) {
        int c = first + lane_id();
        bool whole = c <= own && (c >= candidates || kept[c]);
        bool listed = whole || (c < candidates && c < sink_pages);
        uint32_t bits = warp_ballot(listed);
        int at_list = count + popcount(bits & ((1u << lane_id()) - 1));
        if (listed) list[at_list] = whole ? c : c | SINKS_ALONE;
        if (lane_id() == 0 && bits) count_pages(p, r, first / WARP, bits);
        count += popcount(bits);
    }
    if (lane_id() == 0) p.list_counts[at] = count;
}

CAIRN_KERNEL(step_select, THREADS, 1, step_params) {
    uint32_t *keys = (uint32_t *)shared_base(), *kept = keys + p.list_stride;
    select_row r;
    r.row = block_id(), r.kv_head = block_id_y();
    r.position = input_array(p, STEP_POSITION)[r.row];
    r.sequence = input_array(p, STEP_SEQUENCE)[r.row];
    r.stored = input_array(p, STEP_STORED)[r.row];
    r.table = p.page_table + (int64_t)r.sequence * p.table_stride;
    int before = p.window > 0 ? r.position - p.window + 1 : r.position;
    int candidates = max_of(before, 0) / PAGE;
    start_input();
    if (candidates > p.topk) {
        score_candidates(p, r, candidates, keys);
        block_sync();
        rank_candidates(candidates, p.topk, keys, kept);
    } else {
        for (int c = thread_id(); c < candidates; c += THREADS) kept[c] = 1;
    }
    block_sync();
    if (warp_id() == 0) write_list(p, r, candidates, kept);
}

/* Sixteen keys of this warp: where they lie, and the last one that the row sees (-1: none). */
struct key_piece {
    int64_t at;
    int last;
};

CAIRN_INLINE key_piece find_piece(const step_params &p, const select_row &r, int from) {
    int at = r.row * KV_HEADS + r.kv_head, index = from / PAGE;
    key_piece piece = {0, -1};
    if (index >= p.list_counts[at]) return piece;
    int entry = p.lists[(int64_t)at * p.list_stride + index], page = entry & ~SINKS_ALONE;
    int position = page * PAGE + from % PAGE;
    int last = entry & SINKS_ALONE ? p.sinks - 1 : r.position;
    piece.last = min_of(last - position, 15);
    piece.at = (((int64_t)r.table[page] * 2 * KV_HEADS + r.kv_head) * PAGE + from % PAGE) *
               HEAD_DIM;
    return piece;
}

CAIRN_INLINE void fetch_pieces(const step_params &p, const key_piece *piece, unsigned char *mine) {
    shared_addr to(mine);
    const uint16_t *cache = p.kv[p.layer];
#pragma unroll
    for (int i = 0; i < WARP_KEYS * PIECES / WARP; i++) {
        int key = i * (WARP / PIECES) + lane_id() / PIECES, part = lane_id() % PIECES;
        const key_piece &from = piece[i * (WARP / PIECES) / 16];
        bool valid = key % 16 <= from.last;
        const uint16_t *keys = cache + (valid ? from.at + key % 16 * HEAD_DIM + part * 8 : 0);
        copy_async16(to + key_at(key, part), keys, valid);
        copy_async16(to + value_at(key, part), valid ? keys + KV_HEADS * PAGE * HEAD_DIM : keys,
                     valid);
    }
    copy_async_commit();
}

CAIRN_KERNEL(step_attend_pages, THREADS, 1, step_params) {
    unsigned char *memory = shared_base();
    uint8_t *layer = region(p, 0, 0);
    select_row r;
    r.row = block_id_y(), r.kv_head = block_id_z();
    r.position = input_array(p, STEP_POSITION)[r.row];
    r.sequence = input_array(p, STEP_SEQUENCE)[r.row];
    r.table = p.page_table + (int64_t)r.sequence * p.table_stride;
    attend_item item = {};
    item.first = r.row, item.rows = 1, item.kv_head = r.kv_head, item.chunk = block_id();
    item.position = r.position, item.fresh = r.position + 1; /* all keys are in the cache */
    start_input();
    if (item.chunk * CHUNK >= p.list_counts[r.row * KV_HEADS + r.kv_head] * PAGE) return;
    key_piece piece[WARP_KEYS / 16] = {};
    if (warp_id() < ATTEND_WARPS) {
#pragma unroll
        for (int i = 0; i < WARP_KEYS / 16; i++)
            piece[i] = find_piece(p, r, item.chunk * CHUNK + warp_id() * WARP_KEYS + i * 16);
        fetch_pieces(p, piece, memory + warp_id() * 2 * KEYS_BYTES);
    }
    gather_fresh(p, item, layer, memory);
    copy_async_wait<0>();
    block_sync();
    if (warp_id() < ATTEND_WARPS)
        attend_warp(memory, GROUP, [&](int i, int) { return piece[i].last; });
    block_sync();
    send_parts(item, layer, memory, GROUP);
}

CAIRN_KERNEL(step_merge_pages, THREADS, 1, step_params) {
    start_input();
    int rows = p.input[STEP_ROWS];
    stage_merge(p, rows, region(p, 0, 0), block_id() * WARPS + warp_id(), grid_blocks() * WARPS,
                [&](int row, int head) {
                    return ceil_div(p.list_counts[row * KV_HEADS + head / GROUP] * PAGE, CHUNK);
                });
}

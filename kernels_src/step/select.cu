/* Page-sparse attention of few rows: which pages a row attends, and the attention over them.
 *
 * step_bounds   lowest and highest key of a page per dimension, or its mean (sum over ascending
 *               slots in f32) and what f16 leaves of it; f16. Grid (new pages, kv_heads,
 *               layers), 128 threads.
 * step_select   the pages of each row and KV head, ascending (step/pages.cuh). Bounds of candidates
 *               not stored yet are taken from the cache. Grid (rows, kv_heads), CAIRN_WARPS warps,
 *               shared memory as `selection` of step/pages.cuh.
 * step_attend_pages, step_merge_pages
 *               as step_attend and step_merge, chunk c being the pages [c, c + 1) CHUNK / PAGE of a
 *               row's list. Grids (chunks at most, rows, kv_heads) and any; CAIRN_WARPS warps;
 *               shared memory ATTEND_BYTES and none.
 *
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0. A list of all pages gives the bits of step_attend.
 * Sync: three block_syncs in select, two in attend. Integers exact.
 * Reference: tests/ref/decoder_step.h.
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 */
#include "step/pages.cuh"
#include "step/stages.cuh"

constexpr int32_t SINKS_ALONE = 1 << 30; /* in a list: only the sinks of this page */

/* Bounds of a page from its keys [PAGE, HEAD_DIM] in the cache. */
CAIRN_INLINE page_bounds cached_bounds(const uint16_t *keys, bool mean) {
    return bounds_of(mean, [&](int slot, int i) {
        return ((const uint32_t *)(keys + slot * HEAD_DIM))[lane_id() * LANE_WORDS + i];
    });
}

CAIRN_KERNEL(step_bounds, 128, 1, step_params) {
    const int page = p.new_pages[block_id()], head = block_id_y(), layer = block_id_z();
    grid_dependency_wait();
    if (warp_id() > 0) return;
    const uint16_t *keys = p.kv[layer] + ((int64_t)page * 2 * KV_HEADS + head) * PAGE * HEAD_DIM;
    uint16_t *to = p.bounds[layer] + ((int64_t)page * KV_HEADS + head) * 2 * HEAD_DIM;
    page_bounds b = cached_bounds(keys, p.mean != 0);
#pragma unroll
    for (int i = 0; i < LANE_WORDS; i++) {
        ((uint32_t *)to)[lane_id() * LANE_WORDS + i] = b.lo[i];
        ((uint32_t *)(to + HEAD_DIM))[lane_id() * LANE_WORDS + i] = b.hi[i];
    }
}

/* Bits of pages that a row of this sequence is the first to read add to pages_read. */
CAIRN_INLINE void count_pages(const step_params &p, const page_row &r, int word, uint32_t bits) {
    int64_t head = ((int64_t)p.layer * p.sequences + r.sequence) * KV_HEADS + r.kv_head;
    uint32_t *seen = p.seen + head * p.seen_words;
    uint32_t before = atomic_or(seen + word, bits);
    int fresh = popcount(bits & ~before);
    if (fresh) atomic_add(p.pages_read + r.sequence, fresh);
}

/* One warp: the list of pages, ascending. */
CAIRN_INLINE void write_list(const step_params &p, const page_row &r, const page_bits *chosen) {
    const int own = r.position / PAGE, at = r.row * KV_HEADS + r.kv_head;
    int32_t *list = p.lists + (int64_t)at * p.list_stride;
    int count = 0;
#pragma unroll 1
    for (int word = 0; word <= own / WARP; word++) {
        const page_bits bits = chosen[word];
        const uint32_t mine = 1u << lane_id();
        int c = word * WARP + lane_id(), before = popcount(bits.listed & (mine - 1));
        if (bits.listed & mine) list[count + before] = bits.whole & mine ? c : c | SINKS_ALONE;
        if (lane_id() == 0 && bits.listed) count_pages(p, r, word, bits.listed);
        count += popcount(bits.listed);
    }
    if (lane_id() == 0) p.list_counts[at] = count;
}

CAIRN_KERNEL(step_select, THREADS, 1, step_params) {
    selection &chosen = shared_as<selection>();
    const uint16_t *cache = p.kv[p.layer];
    page_row r;
    r.find(p, block_id(), block_id_y(), true);
    const uint32_t *queries = (const uint32_t *)(region(p, 0, 0) + QKV_AT) +
                              ((int64_t)r.row * QKV + r.kv_head * GROUP * HEAD_DIM) / 2;
    start_pages(p, r, chosen.bits);
    if (r.candidates > p.topk)
        score_candidates(
            p, r, p.layer, chosen, [&] { start_input(); },
            [&](int h, int word) { return queries[h * (HEAD_DIM / 2) + word]; },
            [&](int page) { return cached_bounds(cache + r.page_at(page), p.mean != 0); });
    else start_input();
    block_sync();
    if (r.candidates > p.topk) choose_pages(p, r, chosen.keys, chosen.bits);
    block_sync();
    if (warp_id() == 0) write_list(p, r, chosen.bits);
}

CAIRN_INLINE key_piece find_piece(const step_params &p, const page_row &r, int from) {
    int at = r.row * KV_HEADS + r.kv_head, index = from / PAGE;
    if (index >= p.list_counts[at]) return key_piece{0, 0, -1};
    int entry = p.lists[(int64_t)at * p.list_stride + index];
    return piece_of(p, r, entry & ~SINKS_ALONE, !(entry & SINKS_ALONE), from);
}

CAIRN_KERNEL(step_attend_pages, THREADS, 1, step_params) {
    unsigned char *memory = shared_base();
    uint8_t *layer = region(p, 0, 0);
    page_row r;
    r.find(p, block_id_y(), block_id_z(), true);
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
        fetch_pieces(p.kv[p.layer], piece, memory + warp_id() * 2 * KEYS_BYTES,
                     [](int) { return false; }, [](int, int, bool) { return false; });
    }
    gather_fresh(p, item, layer, memory);
    copy_async_wait<0>();
    block_sync();
    if (warp_id() < ATTEND_WARPS)
        attend_warp(memory, GROUP, [&](int i, int) { return piece[i].last; });
    block_sync();
    send_parts(p, item, layer, memory, GROUP);
}

CAIRN_KERNEL(step_merge_pages, THREADS, 1, step_params) {
    start_input();
    int rows = p.input[STEP_ROWS];
    stage_merge(p, rows, region(p, 0, 0), block_id() * WARPS + warp_id(), grid_blocks() * WARPS,
                [&](int row, int head) {
                    return ceil_div(p.list_counts[row * KV_HEADS + head / GROUP] * PAGE, CHUNK);
                });
}

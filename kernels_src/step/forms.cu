/* Attention in another form than one softmax over chosen pages: between the products of a step or a prompt
 * the kernels of select/ and attention/ do it for f32 rows; these hand over to them and back.
 *
 *   form_begin  queries of rows to where the ops read them; bounds of the pages that the rows complete,
 *               to their place: they are written again once the pages' tokens are accepted
 *   form_end    what was attended, as the next product reads it; the pages that were read; what the
 *               first row of each sequence chose
 *
 *   form_chosen behind step_attend_pages (step/attend_pages.cu): what the first row of each sequence chose
 *
 * Grid (rows of the slice, kv_heads), 128 threads. A row's results depend on that row alone.
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0; of a prompt CAIRN_PARTS 0. No shared memory.
 * Reference: tests/ref/llama_ref.h.
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 */
#include "step/pages.cuh"
#include "step/stages.cuh"

constexpr int SLICE = GROUP * HEAD_DIM; /* values of a row's heads of one KV head */

CAIRN_KERNEL(form_begin, 128, 1, form_params) {
    const step_params &s = p.step;
    page_row r;
    start_input();
    r.find(s, p.first + block_id(), block_id_y(), true);
    const uint32_t *from = (const uint32_t *)(region(s, 0, 0) + QKV_AT) +
                           ((int64_t)r.row * QKV + r.kv_head * SLICE) / 2;
    f32x2 *to = (f32x2 *)(p.q + (int64_t)block_id() * ATTENDED + r.kv_head * SLICE);
    for (int i = thread_id(); i < SLICE / 2; i += 128) to[i] = unpack_f16x2(from[i]);
    if (!p.bounds) return;
    /* The first row sees to what earlier rows of this forward completed, too. */
    const int own = r.position / PAGE, end = (r.position + 1) / PAGE;
    const int first = r.row == r.fresh_row ? min_of(r.stored, own) : own;
    for (int page = first + warp_id(); page < end; page += 4)
        store_bounds(cached_bounds(cache_of(s, s.layer) + r.page_at(page), s.mean != 0),
                     s.bounds[s.layer] + layout_bounds(r.table[page], r.kv_head, KV_HEADS, HEAD_DIM));
}

/* Where it stands what a sequence's first row chose. */
CAIRN_INLINE int32_t *chosen_of(const form_params &p, const page_row &r) {
    return p.chosen + (((int64_t)r.sequence * LAYERS + p.step.layer) * KV_HEADS + r.kv_head) *
                          (1 + p.topk);
}

/* Pages [from, end), of which no row of the sequence may have read some before. */
CAIRN_INLINE void count_range(const step_params &p, const page_row &r, int from, int end) {
    for (int word = from / WARP + thread_id(); word * WARP < end; word += 128) {
        const uint32_t bits = bits_below(end, word) & ~bits_below(from, word);
        if (bits) count_pages(p, r, word, bits);
    }
}

CAIRN_KERNEL(form_end, 128, 1, form_params) {
    const step_params &s = p.step;
    page_row r;
    start_input();
    r.find(s, p.first + block_id(), block_id_y(), true);
    const int64_t from = (int64_t)block_id() * ATTENDED;
    uint8_t *to = region(s, 0, 0) + ATTENDED_AT + (int64_t)r.row * ATTENDED * 2;
    for (int i = thread_id() * 2; i < SLICE; i += 256) {
        const int k = r.kv_head * SLICE + i;
        f32x2 v = *(const f32x2 *)(p.whole + from + k);
        if (p.pages) {
            const f32x2 more = *(const f32x2 *)(p.pages + from + k);
            v.x += more.x, v.y += more.y;
        }
        *(uint32_t *)(to + input_at(k) * 2) = pack_f16x2(v.x, v.y);
    }
    const int32_t *selected = p.selected + ((int64_t)block_id() * KV_HEADS + r.kv_head) * p.topk;
    if (p.counts) {
        count_range(s, r, r.candidates, r.position / PAGE + 1);
        count_range(s, r, 0, min_of(r.candidates, layout_sink_pages(s.sinks, PAGE)));
        for (int i = thread_id(); i < p.topk; i += 128)
            if (selected[i] >= 0) count_pages(s, r, selected[i] / WARP, 1u << selected[i] % WARP);
    }
    if (!p.chosen || r.row != r.fresh_row) return;
    int32_t *chosen = chosen_of(p, r);
    for (int i = thread_id(); i < p.topk; i += 128) chosen[1 + i] = selected[i];
    if (thread_id() == 0)
        chosen[0] = r.candidates > p.least ? min_of(r.candidates, p.topk) : -1;
}

CAIRN_KERNEL(form_chosen, 128, 1, form_params) {
    const step_params &s = p.step;
    page_row r;
    start_input();
    r.find(s, block_id(), block_id_y(), true);
    if (r.row != r.fresh_row || thread_id() > 0) return;
    const int at = r.row * KV_HEADS + r.kv_head;
    const int32_t *list = s.lists + (int64_t)at * s.list_stride;
    int32_t *chosen = chosen_of(p, r);
    int count = 0;
    for (int i = 0; i < s.list_counts[at] && count < p.topk; i++)
        if (!(list[i] & SINKS_ALONE) && list[i] < r.candidates) chosen[1 + count++] = list[i];
    chosen[0] = r.candidates > p.topk ? count : -1;
}

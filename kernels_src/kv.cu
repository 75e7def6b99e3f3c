/* kv: writing the paged cache and what is kept of its pages.
 *
 * kv_append    each row's K, rotated, and V into its slot as f16; grid rows, block 128
 * page_bounds  lowest and highest key of a page per dimension, or the mean (sum over ascending
 *              slots in f32, rounded to f16); grid (pages listed, kv_heads), block 128 */
#include "common.cuh"
#include "paged.cuh"
#include "rope.cuh"

CAIRN_KERNEL(kv_append, 128, 1, kv_append_params) {
    const paged_rows &at = p.at;
    const int r = block_id(), pairs = at.head_dim / 2;
    paged_row row = paged_find(at, r);
    int page = row.valid ? paged_physical(at, row, row.position / at.page_size) : -1;
    if (row.valid && page < 0 && thread_id() == 0)
        report_error(at.error, CAIRN_FAULT_ID, r, row.position / at.page_size);
    if (page < 0) return;
    const int slot = row.position % at.page_size;
    for (int pair = thread_id(); pair < pairs; pair += 128) {
        rotation turn = {1.0f, 0.0f};
        if (p.rope_base != 0.0f)
            turn = rope_rotation(row.position, pair, at.head_dim, p.rope_base);
        for (int head = 0; head < at.kv_heads; head++) {
            int64_t from = ((int64_t)r * at.kv_heads + head) * at.head_dim + 2 * pair;
            float a = p.k[from], b = p.k[from + 1];
            int64_t inside = (int64_t)slot * at.head_dim + 2 * pair;
            uint32_t *k = (uint32_t *)(at.cache + paged_offset(at, page, 0, head) + inside);
            uint32_t *v = (uint32_t *)(at.cache + paged_offset(at, page, 1, head) + inside);
            *k = pack_f16x2(a * turn.cosine - b * turn.sine, a * turn.sine + b * turn.cosine);
            *v = pack_f16x2(p.v[from], p.v[from + 1]);
        }
    }
}

CAIRN_KERNEL(page_bounds, 128, 1, page_bounds_params) {
    const int page = p.ids[block_id()], head = block_id_y();
    if (page < 0 || page >= p.pages) {
        if (thread_id() == 0) report_error(p.error, CAIRN_FAULT_ID, block_id(), page);
        return;
    }
    const int64_t keys = ((int64_t)page * 2 * p.kv_heads + head) * p.page_size * p.head_dim;
    const int64_t out = ((int64_t)page * p.kv_heads + head) * 2 * p.head_dim;
    for (int d = thread_id(); d < p.head_dim; d += 128) {
        float first = f16_to_f32(f16{p.cache[keys + d]}), lo = first, hi = first, sum = first;
        for (int slot = 1; slot < p.page_size; slot++) {
            float key = f16_to_f32(f16{p.cache[keys + (int64_t)slot * p.head_dim + d]});
            lo = min_of(lo, key);
            hi = max_of(hi, key);
            sum += key;
        }
        if (p.mean) lo = sum / (float)p.page_size;
        p.bounds[out + d] = f32_to_f16(lo).bits;
        p.bounds[out + p.head_dim + d] = p.mean ? (uint16_t)0 : f32_to_f16(hi).bits;
    }
}

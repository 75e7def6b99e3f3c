/* kv: what is kept of the pages of the paged cache.
 *
 * page_bounds  lowest and highest key of a page per dimension, or the mean (sum over ascending
 *              slots in f32) as f16 and what f16 left of it; grid (pages listed, kv_heads),
 *              block 128 */
#include "device/common.cuh"
#include "abi/select.h"
#include "attention/layout.h"

CAIRN_KERNEL(page_bounds, 128, 1, page_bounds_params) {
    const int page = p.ids[block_id()], head = block_id_y();
    if (page < 0 || page >= p.pages) {
        if (thread_id() == 0) report_error(p.error, CAIRN_FAULT_ID, block_id(), page);
        return;
    }
    const int64_t keys = layout_slot(page, 0, head, 0, p.kv_heads, p.page_size, p.head_dim);
    const int64_t out = layout_bounds(page, head, p.kv_heads, p.head_dim);
    for (int d = thread_id(); d < p.head_dim; d += 128) {
        float first = f16_to_f32(f16{p.cache[keys + d]}), lo = first, hi = first, sum = first;
        for (int slot = 1; slot < p.page_size; slot++) {
            float key = f16_to_f32(f16{p.cache[keys + (int64_t)slot * p.head_dim + d]});
            lo = min_of(lo, key);
            hi = max_of(hi, key);
            sum += key;
        }
        if (p.mean) lo = sum / (float)p.page_size;
        if (p.mean) hi = lo - f16_to_f32(f32_to_f16(lo));
        p.bounds[out + d] = f32_to_f16(lo).bits;
        p.bounds[out + p.head_dim + d] = f32_to_f16(hi).bits;
    }
}

/* page_tables: keeping the device's page tables like the host's, and copying pages.
 *
 * update_page_tables  one row of the tables a block: the columns that changed from the staged ids,
 *                     the request's part of the CSR list and its other figures; grid requests,
 *                     block 128
 * copy_pages          cache[to] = cache[from] for each pair; grid (parts of a page, pairs, layers),
 *                     block 256
 * matrix: */
#include "device/common.cuh"
#include "abi/pages.h"

CAIRN_KERNEL(update_page_tables, 128, 1, page_tables_params) {
    const int r = block_id();
    const page_tables_row row = p.rows[r];
    int32_t *table = p.page_table + (int64_t)r * p.max_pages;
    if (thread_id() == 0) {
        p.lengths[r] = row.length;
        p.last_page_len[r] = row.last_page_len;
        p.indptr[r] = row.begin;
        p.copies[2 * r] = row.copy_from;
        p.copies[2 * r + 1] = row.copy_to;
        if (r == p.requests - 1) p.indptr[r + 1] = row.begin + row.pages;
    }
    for (int c = thread_id(); c < row.count; c += 128)
        table[row.first + c] = p.ids[row.change + c];
    for (int c = thread_id(); c < row.pages; c += 128) {
        const unsigned changed = (unsigned)(c - row.first);
        p.indices[row.begin + c] =
            changed < (unsigned)row.count ? p.ids[row.change + changed] : table[c];
    }
}

CAIRN_KERNEL(copy_pages, 256, 1, copy_pages_params) {
    const int from = p.copies[2 * block_id_y()], to = p.copies[2 * block_id_y() + 1];
    const int64_t step = (int64_t)grid_blocks() * 256;
    int64_t i = (int64_t)block_id() * 256 + thread_id();
    if (from == -1 || to == -1) return;
    if (from < 0 || from >= p.pages || to < 0 || to >= p.pages) {
        if (thread_id() == 0)
            report_error(p.error, CAIRN_FAULT_ID, block_id_y(),
                         from < 0 || from >= p.pages ? from : to);
        return;
    }
    uint32_t *cache = p.cache + block_id_z() * p.layer_words;
    const uint32_t *source = cache + from * p.page_words;
    uint32_t *target = cache + to * p.page_words;
    if (p.wide) {
        for (; i < p.page_words / 4; i += step) ((u32x4 *)target)[i] = ((const u32x4 *)source)[i];
    } else {
        for (; i < p.page_words; i += step) target[i] = source[i];
    }
}

/* index_store and index_gather: index keys and their scales into the paged cache and out of it, a
 * warp a row. A page holds all its keys, then all its scales.
 *
 * Launch     grid ceil(rows / 8), block 256
 * Oracle     tests/ops/index_test.c copies byte by byte
 * matrix: */
#include "device/common.cuh"
#include "abi/index.h"

/* Where a slot's key and scale stand. */
struct index_slot { uint32_t *key; float *scale; };

CAIRN_INLINE index_slot slot_at(const index_cache_params &p, int page, int offset) {
    uint8_t *first = p.cache + (int64_t)page * p.page_size * CAIRN_INDEX_BYTES;
    return {(uint32_t *)(first + offset * CAIRN_INDEX_DIM),
            (float *)(first + p.page_size * CAIRN_INDEX_DIM) + offset};
}

/* A slot by its number; false where there is none, which is said unless it is -1. */
CAIRN_INLINE bool find_slot(const index_cache_params &p, int r, index_slot *at) {
    const int slot = p.slots[r], page = slot / p.page_size;
    const bool fine = slot >= 0 && page < p.pages;
    if (fine) *at = slot_at(p, page, slot % p.page_size);
    else if (slot != -1 && lane_id() == 0) report_error(p.error, CAIRN_FAULT_ID, r, slot);
    return fine;
}

CAIRN_KERNEL(index_store, 256, 4, index_cache_params) {
    const int r = block_id() * warp_count() + warp_id(), lane = lane_id();
    index_slot to;
    if (r >= p.rows || !find_slot(p, r, &to)) return;
    to.key[lane] = ((const uint32_t *)p.keys)[(int64_t)r * WARP + lane];
    if (lane == 0) *to.scale = p.scales[r];
}

/* The request whose tokens row r is among, the last that begins at or before it. */
CAIRN_INLINE int find_request(const index_cache_params &p, int r) {
    int low = 0, high = p.requests;
    while (low + 1 < high) {
        const int middle = (low + high) / 2;
        if (p.cu_seqlens[middle] <= r) low = middle;
        else high = middle;
    }
    return low;
}

/* Rows before the first request's and behind the last's are none: -1. What has no page is said. */
CAIRN_INLINE int find_token(const index_cache_params &p, int r, index_slot *at) {
    if (p.requests < 1 || r < p.cu_seqlens[0] || r >= p.cu_seqlens[p.requests]) return -1;
    const int b = find_request(p, r), token = r - p.cu_seqlens[b], column = token / p.page_size;
    const int64_t entry = (int64_t)b * p.max_pages + column;
    const int page = token >= 0 && column < p.max_pages ? p.page_table[entry] : -1;
    if (page < 0 || page >= p.pages) {
        if (lane_id() == 0) report_error(p.error, CAIRN_FAULT_ID, r, page);
        return 0;
    }
    *at = slot_at(p, page, token % p.page_size);
    return 1;
}

CAIRN_KERNEL(index_gather, 256, 4, index_cache_params) {
    const int r = block_id() * warp_count() + warp_id(), lane = lane_id();
    index_slot from;
    if (r >= p.rows) return;
    const int found = p.slots ? (int)find_slot(p, r, &from) : find_token(p, r, &from);
    if (found < 0) return;
    ((uint32_t *)p.keys)[(int64_t)r * WARP + lane] = found ? from.key[lane] : 0u;
    if (lane == 0) p.scales[r] = found ? *from.scale : 0.0f;
}

/* kv_collate: the accepted entries of each sequence move into place, in every layer.
 *
 * Entry g of a sequence goes from position base + source_g to base + g, where source_g is
 * g * stride or stands in a list that ascends strictly: so source_g >= g, and moving in ascending
 * order, every batch read before it is written, overwrites nothing that is still to be read. A
 * thread moves the same 16 bytes of every entry's slot; the cache's type does not matter.
 *
 * Launch  grid (sequences, layers, parts of a slot's columns), block 256
 * matrix: */
#include "device/common.cuh"
#include "abi/kv.h"

#define LIST 64  /* entries looked up at a time */
#define BATCH 8  /* entries in flight */

/* Of each listed entry the row that head 0 of K has there, counted from the cache's start; -1: it
 * does not move. */
struct collate_shared { int64_t from[LIST], to[LIST]; };

CAIRN_INLINE int collate_source(const kv_collate_params &p, int sequence, int g) {
    return p.sources ? p.sources[(int64_t)sequence * p.most + g] : g * p.stride;
}

/* The row of a position, or -1, reported, when the table holds no page for it. */
CAIRN_INLINE int64_t collate_row(const kv_collate_params &p, int sequence, int64_t position,
                              bool reports) {
    if (position < 0 || position / p.page_size >= p.max_pages) {
        if (reports) report_error(p.error, CAIRN_FAULT_POSITION, sequence, position);
        return -1;
    }
    int page = p.page_table[(int64_t)sequence * p.max_pages + position / p.page_size];
    if (page < 0 || page >= p.pages) {
        if (reports) report_error(p.error, CAIRN_FAULT_ID, sequence, page);
        return -1;
    }
    return (int64_t)page * 2 * p.kv_heads * p.page_size + position % p.page_size;
}

/* Entries of the sequence that are to be kept; 0 when its list of sources is not in order. */
CAIRN_INLINE int collate_count(const kv_collate_params &p, int sequence, bool reports) {
    int count = p.accepted[sequence], kept = min_of(max_of(count, 0), p.most);
    bool wrong = false;
    if (kept != count && reports && thread_id() == 0)
        report_error(p.error, CAIRN_FAULT_LENGTH, sequence, count);
    if (!p.sources) return kept;
    for (int g = thread_id(); g < kept; g += block_threads()) {
        int before = g ? collate_source(p, sequence, g - 1) : -1;
        int here = collate_source(p, sequence, g);
        if (here > before) continue;
        wrong = true;
        if (reports) report_error(p.error, CAIRN_FAULT_POSITION, sequence, here);
    }
    return block_sync_or(wrong) ? 0 : kept;
}

/* One column of the listed rows: `column` is its place in row 0, `stride` a row's length. */
template <class T>
CAIRN_INLINE void collate_column(const collate_shared &list, int count, T *column, int stride) {
    for (int start = 0; start < count; start += BATCH) {
        T held[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (start + i < count && list.from[start + i] >= 0)
                held[i] = column[list.from[start + i] * stride];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (start + i < count && list.from[start + i] >= 0)
                column[list.to[start + i] * stride] = held[i];
    }
}

/* Looks up entries start .. start + count - 1, a thread each. */
CAIRN_INLINE void collate_look_up(const kv_collate_params &p, collate_shared &list, int sequence,
                                  int start, int count, bool reports) {
    if (thread_id() >= count) return;
    int g = start + thread_id(), source = collate_source(p, sequence, g);
    int64_t base = p.bases[sequence], from = -1, to = -1;
    if (source != g) {
        to = collate_row(p, sequence, base < 0 ? base : base + g, reports);
        if (to >= 0) from = collate_row(p, sequence, base + source, reports);
    }
    list.from[thread_id()] = from;
    list.to[thread_id()] = to;
}

CAIRN_KERNEL(kv_collate, 256, 1, kv_collate_params) {
    collate_shared &list = shared_as<collate_shared>();
    const int sequence = block_id(), layer = block_id_y();
    const bool reports = layer == 0 && block_id_z() == 0;
    const int kept = collate_count(p, sequence, reports);
    const int heads = 2 * p.kv_heads, words = p.row_bytes / 16, step = grid_blocks_z() * 256;
    for (int start = 0; start < kept; start += LIST) {
        const int count = min_of(kept - start, LIST);
        block_sync();
        collate_look_up(p, list, sequence, start, count, reports);
        block_sync();
        for (int i = block_id_z() * 256 + thread_id(); i < heads * words; i += step)
            collate_column(list, count, (u32x4 *)p.caches[layer] +
                           (int64_t)(i / words) * p.page_size * words + i % words, words);
        for (int i = block_id_z() * 256 + thread_id(); p.has_scales && i < heads; i += step)
            collate_column(list, count, p.scales[layer] + (int64_t)i * p.page_size, 1);
    }
}

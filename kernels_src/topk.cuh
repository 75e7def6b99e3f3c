/* topk.cuh: what every top-k route shares: the order-preserving key, a row's range, how an entry is
 * written. Without an include guard: each set of constants includes it anew. */

#if CAIRN_SCORE_TYPE == 1
typedef float score_t;
#elif CAIRN_SCORE_TYPE == 2
typedef f16 score_t;
#else
typedef bf16 score_t;
#endif

/* Unsigned order of keys = order of scores; -0 equals +0; NaN (0) ranks below -inf. */
CAIRN_INLINE uint32_t topk_key(float score) {
    uint32_t bits = as_u32(add_f32(score, 0.0f)); /* -0 + 0 = +0 */
    uint32_t key = bits ^ ((uint32_t)((int32_t)bits >> 31) | 0x80000000u);
    return score == score ? key : 0;
}
CAIRN_INLINE uint32_t topk_key(f16 score) { return topk_key(f16_to_f32(score)); }
CAIRN_INLINE uint32_t topk_key(bf16 score) { return topk_key(bf16_to_f32(score)); }

#define KEY_MINUS_INFINITY 0x007fffffu

/* The score of a key above 0: x >= it tells whether x's key reaches the key. */
CAIRN_INLINE float key_score(uint32_t key) {
    if (key < KEY_MINUS_INFINITY) key = KEY_MINUS_INFINITY;
    return as_f32(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

#define NO_POSITION 0x7fffffff

struct topk_range { int start, length; };

/* The candidates of row r, clamped into [0, n); a range that had to be clamped is reported. */
CAIRN_INLINE topk_range topk_row_range(const topk_params &p, int r, bool reports) {
    int start = p.row_starts ? p.row_starts[r] : 0;
    int start_in = min_of(max_of(start, 0), p.n);
    int length = p.lengths ? p.lengths[r] : p.n - start_in;
    int length_in = min_of(max_of(length, 0), p.n - start_in);
    if (reports) {
        if (start != start_in) report_error(p.error, CAIRN_FAULT_ROW_START, r, start);
        else if (length != length_in) report_error(p.error, CAIRN_FAULT_LENGTH, r, length);
    }
    return {start_in, length_in};
}

/* Where row r's entries go, and what becomes of a position there. */
struct topk_out {
    int32_t *indices;
    float *values;        /* or NULL */
    const score_t *row;   /* its first candidate */
    const int32_t *pages; /* this row's page table, or NULL */
    cairn_error_word *error;
    int32_t page_size, page_count, offset, r;
};

CAIRN_INLINE topk_out topk_row_out(const topk_params &p, int r, const score_t *row) {
    topk_out out = {p.indices + (int64_t)r * p.k, p.values ? p.values + (int64_t)r * p.k : nullptr,
                    row, nullptr, p.error, p.page_size, p.table_stride, 0, r};
    if (p.form == CAIRN_INDEX_SLOT) {
        int request = p.requests ? p.requests[r] : r / p.rows_each;
        if (request >= 0 && request < p.table_rows)
            out.pages = p.page_table + (int64_t)request * p.table_stride;
        else {
            out.page_count = 0;
            out.pages = p.page_table;
            if (lane_id() == 0) report_error(p.error, CAIRN_FAULT_ID, r, request);
        }
    }
    if (p.form == CAIRN_INDEX_FLAT) out.offset = p.offsets[r];
    return out;
}

/* POS, FLAT or SLOT of a position; -1 where the table has no page, or past the largest index. */
CAIRN_INLINE int32_t topk_place(const topk_out &out, int32_t position) {
    int64_t place = (int64_t)position + out.offset;
    if (out.pages) {
        int32_t page = position / out.page_size;
        int32_t id = page < out.page_count ? out.pages[page] : -1;
        place = id < 0 ? -1 : (int64_t)id * out.page_size + position % out.page_size;
    }
    if ((uint64_t)place <= 0x7fffffffu) return (int32_t)place;
    report_error(out.error, CAIRN_FAULT_ID, out.r, (int32_t)place);
    return -1;
}

CAIRN_INLINE void topk_write(const topk_out &out, int slot, int32_t position) {
    out.indices[slot] = topk_place(out, position);
    if (out.values) out.values[slot] = to_f32(out.row[position]);
}
CAIRN_INLINE void topk_write_none(const topk_out &out, int slot) {
    out.indices[slot] = -1;
    if (out.values) out.values[slot] = as_f32(0xff800000u);
}

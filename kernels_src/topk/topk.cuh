/* topk/topk.cuh: what every top-k route shares: the order-preserving key, a row's range, how an entry is
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
    if (out.values) out.values[slot] = minus_infinity();
}

/* Row r's output: the first `found` of `positions` if listed, else the row's first `found`; then
 * none. A loop like the second is not unrolled: it is long, and compiled for every route. */
CAIRN_INLINE void topk_write_row(const topk_out &out, bool listed, const int32_t *positions,
                                 int found, int k) {
    if (!out.pages && !out.values && out.offset == 0) {
#pragma unroll 4
        for (int i = thread_id(); i < k; i += block_threads())
            out.indices[i] = i >= found ? -1 : listed ? positions[i] : i;
        return;
    }
#pragma unroll 1
    for (int i = thread_id(); i < k; i += block_threads())
        if (i < found) topk_write(out, i, listed ? positions[i] : i);
        else topk_write_none(out, i);
}

/* ---- what the routes with a block a row share -------------------------------------------------- */

struct key_range { uint32_t low, high; };
struct bin_found { uint32_t bin, above, inside; }; /* scores in greater bins, in the bin */

/* Bits to leave out so that a range falls into 1 << bits bins. */
CAIRN_INLINE int range_shift(key_range range, int bits = 11) {
    return max_of(0, 32 - bits - leading_zeros(range.high - range.low));
}

/* Spreads scores from `low` on over bins as numbers: ordinary rows then leave few in each. Scores
 * below it give less than the first bin, and NaN none. */
#define BIN_ZERO 8388608.0f /* 2^23: the nearest bin is in the low bits of the sum */
struct value_bins { float low, scale; };
CAIRN_INLINE float value_bin(value_bins bins, float x, float first = BIN_ZERO) {
    return fma_f32(add_f32(x, -bins.low), bins.scale, first);
}

/* The sum of bins top - each + 1 to top; by four where there are so many. */
template <int each> CAIRN_INLINE uint32_t sum_bins(const uint32_t *bins, int top) {
    uint32_t sum = 0;
    if constexpr (each % 4 == 0) {
#pragma unroll
        for (int i = 0; i < each; i += 4) {
            const u32x4 v = *(const u32x4 *)&bins[top - i - 3];
            sum += v.x + v.y + v.z + v.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < each; i++) sum += bins[top - i];
    }
    return sum;
}

/* Finds the bin that holds the need-th greatest of `count` bins, for a block of `threads`; what
 * found held stays when there are fewer. sums: one a warp. After a barrier, and ends with one. */
template <int count, int threads>
CAIRN_INLINE void find_bin(const uint32_t *bins, uint32_t *sums, bin_found &found, uint32_t need) {
    constexpr int each = count / threads;
    const int top = count - 1 - thread_id() * each;
    const uint32_t mine = sum_bins<each>(bins, top), total = warp_sum(mine);
    if (lane_id() == 0) sums[warp_id()] = total;
    block_sync();
    uint32_t above = warp_sum(lane_id() < warp_id() ? sums[lane_id()] : 0u);
    if (above < need && above + total >= need) {
        above += warp_scan(mine) - mine;
        if (above < need && above + mine >= need) {
            int bin = top;
#pragma unroll 1
            while (above + bins[bin] < need) above += bins[bin--];
            found = {(uint32_t)bin, above, bins[bin]};
        }
    }
    block_sync();
}

/* Sorts entries by descending key, lowest position first, by a bitonic network; `size` is a power
 * of two. Begins and ends with a barrier. */
CAIRN_INLINE void sort_entries(uint32_t *keys, int32_t *positions, int size) {
    block_sync();
#pragma unroll 1
    for (int length = 2; length <= size; length *= 2)
#pragma unroll 1
        for (int step = length / 2; step > 0; step /= 2) {
#pragma unroll 1
            for (int i = thread_id(); i < size / 2; i += block_threads()) {
                const int low = 2 * i - (i & (step - 1)), high = low + step;
                const uint32_t a = keys[low], b = keys[high];
                const int32_t at = positions[low], bt = positions[high];
                if ((a < b || (a == b && at > bt)) == ((low & length) == 0)) {
                    keys[low] = b, keys[high] = a;
                    positions[low] = bt, positions[high] = at;
                }
            }
            block_sync();
        }
}

/* What lies behind the `found` entries to be sorted. */
CAIRN_INLINE void pad_entries(uint32_t *keys, int32_t *positions, int found, int size) {
#pragma unroll 1
    for (int i = found + thread_id(); i < size; i += block_threads())
        keys[i] = 0, positions[i] = NO_POSITION;
}

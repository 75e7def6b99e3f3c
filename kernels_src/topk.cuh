/* topk.cuh: what every top-k route shares: the order-preserving key, a row's range, the error word.
 * Without an include guard: each set of constants includes it anew. */

#if CAIRN_SCORE_TYPE == 1
typedef float score_t;
#elif CAIRN_SCORE_TYPE == 2
typedef f16 score_t;
#else
typedef bf16 score_t;
#endif

/* Unsigned order of keys = order of scores; -0 equals +0; NaN (0) ranks below -inf. */
CAIRN_INLINE uint32_t topk_key(float score) {
    uint32_t bits = as_u32(score), magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0;
    if (magnitude == 0) return 0x80000000u;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
CAIRN_INLINE uint32_t topk_key(f16 score) { return topk_key(f16_to_f32(score)); }
CAIRN_INLINE uint32_t topk_key(bf16 score) { return topk_key(bf16_to_f32(score)); }

struct topk_range { int start, length; };

/* The candidates of row r, clamped into [0, n); a range that had to be clamped is reported. */
CAIRN_INLINE topk_range topk_row_range(const topk_params &p, int r) {
    int start = p.row_starts ? p.row_starts[r] : 0;
    int start_in = min_of(max_of(start, 0), p.n);
    int length = p.lengths ? p.lengths[r] : p.n - start_in;
    int length_in = min_of(max_of(length, 0), p.n - start_in);
    if (thread_id() == 0) {
        if (start != start_in) report_error(p.error, CAIRN_FAULT_ROW_START, r, start);
        else if (length != length_in) report_error(p.error, CAIRN_FAULT_LENGTH, r, length);
    }
    return {start_in, length_in};
}

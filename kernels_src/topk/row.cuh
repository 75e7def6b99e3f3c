/* topk/row.cuh: a row that lies in the registers of a warp or a block, for the routes "small" and
 * "short". Without an include guard: each set of constants includes it anew. */

#define VECTOR (16 / (int)sizeof(score_t))
#define ROW_VECTORS (CAIRN_ITEMS / VECTOR)

struct topk_vector { score_t score[VECTOR]; };

CAIRN_INLINE score_t score_nan() {
    if constexpr (sizeof(score_t) == 4) return bit_cast<score_t>(0x7fffffffu);
    else return bit_cast<score_t>((uint16_t)0x7fff);
}

/* Item i of thread `own` of `threads` that share a row; positions ascend with i / VECTOR, then with
 * the thread, then with i % VECTOR. */
CAIRN_INLINE int row_position(int i, int own, int threads) {
    return (i / VECTOR * threads + own) * VECTOR + i % VECTOR;
}

/* This thread's share of a row, NaN past its end. Loads do not wait for each other. */
CAIRN_INLINE void load_row(const score_t *row, int length, int own, int threads,
                           topk_vector *share) {
    const int whole = (uint64_t)row % 16 == 0 ? length / VECTOR : 0; /* vectors within the row */
    if (whole > 0) {
#pragma unroll
        for (int j = 0; j < ROW_VECTORS; j++) {
            int at = min_of(j * threads + own, whole - 1) * VECTOR;
            share[j] = bit_cast<topk_vector>(load_constant((const u32x4 *)(row + at)));
        }
    }
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        if (j * threads + own < whole) continue;
#pragma unroll
        for (int c = 0; c < VECTOR; c++) {
            int at = row_position(j * VECTOR + c, own, threads);
            share[j].score[c] = at < length ? row[at] : score_nan();
        }
    }
}

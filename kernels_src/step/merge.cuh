/* The merge of attention's runs in a step: as f16, a unit of 32 values of one head of a row for a warp;
 * the last of a head may be half a one. */
#ifndef CAIRN_STEP_MERGE_CUH
#define CAIRN_STEP_MERGE_CUH

#include "step/attend.cuh"

constexpr int HEAD_UNITS = DIM / 32;
/* Where a unit begins among the values of all heads. */
CAIRN_INLINE int unit_value(int unit) {
    return DIM == HEAD_DIM ? unit * 32 : unit / HEAD_UNITS * HEAD_DIM + unit % HEAD_UNITS * 32;
}

/* Unit `unit` of one row with `runs` runs, which begin with the group's run `from`: values 8t.. as
 * four words in the lanes of g = 0. */
CAIRN_INLINE void merge_unit(const step_params &p, const uint8_t *layer, int row, int from, int runs,
                             int unit, uint32_t *b) {
    const int head = unit_value(unit) / HEAD_DIM;
    const int dim = unit_value(unit) % HEAD_DIM + lane_id() % 4 * 8;
    patience wait(p);
    const merged out = merge_runs(
        runs,
        [&](int run, run_part &part) {
            const int64_t at = part_of(p, from + run, row) * HEADS + head;
            if (has_piece(dim / 8))
                part.load((const float *)(layer + PARTS_AT) + at * HEAD_DIM + dim,
                          (const f32x2 *)(layer + SUMS_AT) + at);
        },
        [&](const run_part *part, int count) {
            bool complete = true;
            for (int i = 0; i < count; i++)
                complete = complete && full(part[i].v[0]) && full(part[i].v[1]) &&
                           part[i].sum.x != EMPTY && part[i].sum.y != EMPTY;
            return FLOW && !complete && wait.more();
        });
    /* Number n lies in the lanes of g = scattered(n). */
    const uint32_t pair = pack_f16x2(out.value, shuffle_xor(out.value, 16));
#pragma unroll
    for (int i = 0; i < 4; i++) b[i] = shuffle(pair, scattered(2 * i) * 4 + lane_id() % 4);
}

/* In the stage kernels, by the block that comes last of a group's: the heads of one share of the
 * rows [first, first + rows). runs(row) runs, from the group's run from(row) on. All threads. */
template <class Runs, class From>
CAIRN_INLINE void merge_group(const step_params &p, uint8_t *layer, int first, int rows, int share,
                              Runs runs, From from, unsigned char *memory) {
    constexpr int MOST = (layout_most_runs(KV_HEADS) + 15) / 8 * 8; /* a window's begin anywhere */
    const int heads = share_heads(share), all = p.input[STEP_ROWS] * HEADS;
    static_assert(merge_bytes(MOST) <= TOTALS_AT, "merge_group: its table");
    merge_block<THREADS>(
        memory, rows * heads, MOST, all, [&](int m) { return runs(first + m / heads); },
        [&](int m) {
            const int row = first + m / heads;
            return part_of(p, from(row), row) * HEADS + first_head(share) + m % heads;
        },
        (const float *)(layer + PARTS_AT), (const f32x2 *)(layer + SUMS_AT),
        [&](int m, int d, float x, float y) {
            const int64_t at = (int64_t)(first + m / heads) * ATTENDED +
                               (first_head(share) + m % heads) * HEAD_DIM + d;
            send((uint32_t *)(layer + ATTENDED_AT + at * 2), pack_f16x2(x, y));
        },
        [](int, float, float) {});
}

#endif

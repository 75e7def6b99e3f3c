/* The merge of attention's runs in a step: as f16, a unit of 32 values of one head of a row for a warp;
 * the last of a head may be half a one. */
#ifndef CAIRN_STEP_MERGE_CUH
#define CAIRN_STEP_MERGE_CUH

#include "attention/runs.cuh"
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

/* Merges the chunks(row, head) chunks, unit by unit, for all blocks that project; warps take units
 * in turn. */
template <class Chunks>
CAIRN_INLINE void stage_merge(const step_params &p, int rows, uint8_t *at, int worker, int workers,
                              Chunks chunks) {
#pragma unroll 1
    for (int i = worker; i < rows * (ATTENDED / 32); i += workers) {
        int row = i / (ATTENDED / 32), unit = i % (ATTENDED / 32);
        uint32_t b[4];
        merge_unit(p, at, row, 0, chunks(row, unit * 32 / HEAD_DIM), unit, b);
        u32x4 v = {b[0], b[1], b[2], b[3]};
        int64_t to = (int64_t)row * ATTENDED + unit * 32 + lane_id() % 4 * 8;
        if (lane_id() < 4) send(at + ATTENDED_AT + to * 2, v);
    }
}

/* ---- by a block ----
 * To the bit what merge_runs gives, but all that is read is asked for at once: a thread has two values
 * of a row, of up to sixteen runs at a time. In shared memory of each run its weight against the largest m
 * of the eight around it, and of these eight that m and the denominator. */

/* For 16 rows of up to `most` runs, a multiple of eight. */
CAIRN_INLINE constexpr int merge_bytes(int most) { return 16 * (most + most / 4) * 4; }

struct merge_table {
    float *weights;
    f32x2 *eights;
    int most;

    CAIRN_MEMBER merge_table(unsigned char *memory, int most_runs)
        : weights((float *)memory), eights((f32x2 *)(weights + 16 * most_runs)), most(most_runs) {}
    /* Run `run` of row m, whose (m, l) these are: all lanes, eight runs side by side. */
    CAIRN_MEMBER void note(int m, int run, f32x2 sums) const {
        const float top = max_eight(sums.x), weight = exp2_fast(sums.x - top);
        const float total = sum_eight(mul_f32(sums.y, weight));
        if (m >= 16) return;
        weights[m * most + run] = weight;
        if (run % 8 == 0) eights[(m * most + run) / 8] = f32x2{top, total};
    }
};

/* count <= 16 rows, of which row m has runs(m) <= most: run r's values lie at values[(first(m) + r
 * step) HEAD_DIM], its (m, l) at sums[the same]. out(m, d, x, y): two values of a row. All threads,
 * after a block_sync; the memory holds merge_bytes. */
template <class Runs, class First, class Out>
CAIRN_INLINE void merge_block(unsigned char *memory, int count, int most, int step, Runs runs,
                              First first, const float *values, const f32x2 *sums, Out out) {
    constexpr int PAIRS = HEAD_DIM / 2, ASKED = DIM > 128 ? 8 : 16;
    const merge_table table(memory, most);
    float v[2][ASKED];
    const auto ask = [&](int i, int run) {
        const int m = i / PAIRS, left = runs(m) - run;
        const float *from = values + (first(m) + (int64_t)run * step) * HEAD_DIM + i % PAIRS * 2;
#pragma unroll
        for (int r = 0; r < ASKED; r++) {
            u32x2 two = {};
            if (r < left) two = load_relaxed8(from + (int64_t)r * step * HEAD_DIM);
            v[0][r] = as_f32(two.x), v[1][r] = as_f32(two.y);
        }
    };
    int i = thread_id(), run = 0;
    bool noted = false;
    merged_pair pair;
#pragma unroll 1
    do {
        const bool mine = i < count * PAIRS;
        if (mine) ask(i, run);
        if (!noted) { /* while the first values are under way */
#pragma unroll 1
            for (int n = thread_id(); n / WARP * WARP < count * most; n += THREADS) {
                const int m = n / most, at = n % most;
                u32x2 two = {as_u32(NOTHING), 0};
                if (m < count && at < runs(m)) two = load_relaxed8(sums + first(m) + (int64_t)at * step);
                table.note(m, at, f32x2{as_f32(two.x), as_f32(two.y)});
            }
            block_sync();
            noted = true;
        }
        if (!mine) break;
        const int m = i / PAIRS, all = runs(m);
#pragma unroll
        for (int e = 0; e < ASKED; e += 8) {
            if (run + e >= all) break;
            const int at = m * most + run + e;
            pair.add(table.eights[at / 8], weigh_eight(v[0] + e, table.weights + at),
                     weigh_eight(v[1] + e, table.weights + at));
        }
        run += ASKED;
        if (run < all) continue;
        const f32x2 o = pair.share();
        out(m, i % PAIRS * 2, o.x, o.y);
        pair = merged_pair(), i += THREADS, run = 0;
    } while (i < count * PAIRS);
}

/* Values d, d + 1 of what a row's head attends. */
CAIRN_INLINE void send_attended(uint8_t *layer, int row, int head, int d, float x, float y) {
    const int64_t at = (int64_t)row * ATTENDED + head * HEAD_DIM + d;
    send((uint32_t *)(layer + ATTENDED_AT + at * 2), pack_f16x2(x, y));
}

/* In the stage kernels, by the block that comes last of a group's: the heads of one share of the
 * rows [first, first + rows). runs(row) runs, from the group's run from(row) on. All threads. */
template <class Runs, class From>
CAIRN_INLINE void merge_group(const step_params &p, uint8_t *layer, int first, int rows, int share,
                              Runs runs, From from, unsigned char *memory) {
    constexpr int MOST = (layout_most_runs(KV_HEADS) + 15) / 8 * 8; /* a window's begin anywhere */
    const int heads = share_heads(share), all = p.input[STEP_ROWS] * HEADS;
    static_assert(merge_bytes(MOST) <= TOTALS_AT, "merge_group: its table");
    merge_block(
        memory, rows * heads, MOST, all, [&](int m) { return runs(first + m / heads); },
        [&](int m) {
            const int row = first + m / heads;
            return part_of(p, from(row), row) * HEADS + first_head(share) + m % heads;
        },
        (const float *)(layer + PARTS_AT), (const f32x2 *)(layer + SUMS_AT),
        [&](int m, int d, float x, float y) {
            send_attended(layer, first + m / heads, first_head(share) + m % heads, d, x, y);
        });
}

#endif

/* Runs of one row and KV head on their way through memory, word by word: what a block leaves of its run goes to the
 * blocks of the row's last runs, which merge some of the values each and leave the places empty. A word is its own
 * flag, so that no block counts the others, and none waits for a fence. */
#ifndef CAIRN_ATTENTION_RELAY_CUH
#define CAIRN_ATTENTION_RELAY_CUH

#include "attention/runs.cuh"

/* Nothing is there. What is there is a value's complement: of the NaN that would be empty so, another NaN's. */
constexpr uint32_t RELAY_EMPTY = 0;
CAIRN_INLINE uint32_t relayed_word(float v) {
    const uint32_t word = ~as_u32(v);
    return word == RELAY_EMPTY ? 0x80000000u : word;
}
CAIRN_INLINE float relayed_value(uint32_t word) { return as_f32(~word); }

/* Where the runs of a row and KV head lie. All is empty before and after. */
struct relay_row {
    uint32_t *values; /* [queries, HEAD_DIM] of a run */
    uint32_t *sums;   /* [queries, most, (m, l)] of a run */
    int64_t value_step, sum_step; /* from one run to the next */
    int queries, most, mergers;   /* blocks that merge, of any row and of this: those of the last runs */

    CAIRN_MEMBER uint32_t *values_of(int run, int m) const { return values + run * value_step + m * HEAD_DIM; }
    CAIRN_MEMBER uint32_t *sums_of(int run, int m, int merger) const {
        return sums + run * sum_step + (m * most + merger) * 2;
    }
    /* Of a run, what this block's warps left (merge_warps). All threads. */
    CAIRN_MEMBER void send(int run, const f32x2 *totals, const unsigned char *parts, int step) const {
        merge_warps(totals, parts, step, queries, [&](int m, int d, f32x4 v, f32x2 both) {
            store_relaxed16(values_of(run, m) + d,
                            u32x4{relayed_word(v.x), relayed_word(v.y), relayed_word(v.z), relayed_word(v.w)});
            if (d > 0) return;
#pragma unroll 1
            for (int merger = 0; merger < mergers; merger++) {
                store_relaxed(sums_of(run, m, merger), relayed_word(both.x));
                store_relaxed(sums_of(run, m, merger) + 1, relayed_word(both.y));
            }
        });
    }
};

/* Of up to eight runs from `first` on four values each and their (m, l), once they are there. */
struct relayed_eight {
    u32x4 v[8];
    u32x2 sums[8];

    template <class Wait>
    CAIRN_MEMBER void receive(const relay_row &from, int merger, int first, int runs, int m, int d, Wait wait) {
        bool complete;
        do {
            complete = true;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                v[i] = u32x4{~0u, ~0u, ~0u, ~0u}, sums[i] = u32x2{relayed_word(NOTHING), ~0u};
                if (first + i >= runs) continue;
                v[i] = load_relaxed16(from.values_of(first + i, m) + d);
                sums[i] = load_relaxed8(from.sums_of(first + i, m, merger));
            }
#pragma unroll
            for (int i = 0; i < 8; i++)
                complete = complete && v[i].x != RELAY_EMPTY && v[i].y != RELAY_EMPTY && v[i].z != RELAY_EMPTY &&
                           v[i].w != RELAY_EMPTY && sums[i].x != RELAY_EMPTY && sums[i].y != RELAY_EMPTY;
        } while (!complete && wait.more());
    }
    CAIRN_MEMBER void forget(const relay_row &from, int first, int runs, int m, int d) const {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (first + i < runs)
                store_relaxed16(from.values_of(first + i, m) + d,
                                u32x4{RELAY_EMPTY, RELAY_EMPTY, RELAY_EMPTY, RELAY_EMPTY});
    }
    /* Their largest m, the denominator and the values. */
    CAIRN_MEMBER f32x2 weigh(f32x4 &values) const {
        float top = NOTHING, l[8], weights[8], one[8], out[4];
#pragma unroll
        for (int i = 0; i < 8; i++) top = fmaxf(top, relayed_value(sums[i].x)), l[i] = relayed_value(sums[i].y);
#pragma unroll
        for (int i = 0; i < 8; i++) weights[i] = exp2_fast(relayed_value(sums[i].x) - top);
#pragma unroll
        for (int k = 0; k < 4; k++) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                one[i] = relayed_value(k == 0 ? v[i].x : k == 1 ? v[i].y : k == 2 ? v[i].z : v[i].w);
            out[k] = weigh_eight(one, weights);
        }
        values = f32x4{out[0], out[1], out[2], out[3]};
        return f32x2{top, weigh_eight(l, weights)};
    }
};

/* By the block that is `merger`, its part of the values over all runs: out(m, d, pair) of values d, d + 1 of query m,
 * by one thread each. Four lanes have four values, of eight runs each at a time. wait.more(): whether to look again
 * for what is not there yet. All threads. */
template <class Wait, class Out>
CAIRN_INLINE void merge_relayed(const relay_row &from, int runs, int merger, Wait wait, Out out) {
    const int all = from.queries * HEAD_DIM; /* a multiple of 16 */
    const int each = round_up(ceil_div(all, from.mergers), 4), begin = merger * each, end = min_of(begin + each, all);
#pragma unroll 1
    for (int at = begin + thread_id(); at - lane_id() < end; at += block_threads()) {
        const int i = min_of(at / 4 * 4, end - 4), m = i / HEAD_DIM, d = i % HEAD_DIM;
        const int own = at < end ? at % 4 * 8 : runs;
        merged_pair low, high;
#pragma unroll 1
        for (int first = 0; first < runs; first += 32) {
            f32x2 sums = {NOTHING, 0.0f};
            f32x4 v = {0.0f, 0.0f, 0.0f, 0.0f};
            if (first + own < runs) {
                relayed_eight eight;
                eight.receive(from, merger, first + own, runs, m, d, wait);
                eight.forget(from, first + own, runs, m, d);
                sums = eight.weigh(v);
            }
            warp_sync();
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int lane = (lane_id() & ~3) + e;
                const f32x2 that = {shuffle(sums.x, lane), shuffle(sums.y, lane)};
                const f32x2 one = {shuffle(v.x, lane), shuffle(v.y, lane)};
                const f32x2 two = {shuffle(v.z, lane), shuffle(v.w, lane)};
                if (first + e * 8 >= runs) continue;
                low.add(that, one.x, one.y);
                high.add(that, two.x, two.y);
            }
        }
        if (at % 4 || at >= end) continue;
        out(m, d, low);
        out(m, d + 2, high);
    }
    block_sync();
#pragma unroll 1
    for (int i = thread_id(); i < runs * from.queries * 2; i += block_threads())
        store_relaxed(from.sums_of(i / 2 / from.queries, i / 2 % from.queries, merger) + i % 2, RELAY_EMPTY);
}

#endif

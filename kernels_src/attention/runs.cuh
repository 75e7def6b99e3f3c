/* Runs of one row that several blocks have: their merge, and which block comes last. */
#ifndef CAIRN_ATTENTION_RUNS_CUH
#define CAIRN_ATTENTION_RUNS_CUH

#include "attention/core.cuh"

/* ---- the merge: o = sum_c 2^(m_c - m) o_c / l ----
 * 32 values of one row for a warp. Eight runs at a time, a run for each g: weights against the largest m of the eight,
 * products, and their sum as the tree ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)); eights follow each other by
 * rescaling. */

/* One run's (m, l) and eight values; NOTHING and zeros where there is no run. */
struct run_part {
    u32x4 v[2];
    u32x2 sum;

    CAIRN_MEMBER void clear() {
        v[0] = v[1] = u32x4{};
        sum = u32x2{as_u32(NOTHING), 0};
    }
    CAIRN_MEMBER void load(const float *values, const f32x2 *sums) {
        sum = load_relaxed8(sums);
        v[0] = load_relaxed16(values);
        v[1] = load_relaxed16(values + 4);
    }
    /* The values and the denominator times weight. */
    CAIRN_MEMBER void scale(float weight, float *o, float &total) const {
        o[0] = mul_f32(as_f32(v[0].x), weight), o[1] = mul_f32(as_f32(v[0].y), weight);
        o[2] = mul_f32(as_f32(v[0].z), weight), o[3] = mul_f32(as_f32(v[0].w), weight);
        o[4] = mul_f32(as_f32(v[1].x), weight), o[5] = mul_f32(as_f32(v[1].y), weight);
        o[6] = mul_f32(as_f32(v[1].z), weight), o[7] = mul_f32(as_f32(v[1].w), weight);
        total = mul_f32(as_f32(sum.y), weight);
    }
};

/* Sums of o[8] over the eight g, each lane keeping the one value whose number it returns: half of
 * what is left goes to the neighbour at every level. */
CAIRN_INLINE float scatter_sum(const float *o, int g) {
    float four[4], two[2];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float away = g & 1 ? o[i] : o[4 + i], kept = g & 1 ? o[4 + i] : o[i];
        four[i] = add_f32(kept, shuffle_xor(away, 4));
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float away = g & 2 ? four[i] : four[2 + i], kept = g & 2 ? four[2 + i] : four[i];
        two[i] = add_f32(kept, shuffle_xor(away, 8));
    }
    float away = g & 4 ? two[0] : two[1], kept = g & 4 ? two[1] : two[0];
    return add_f32(kept, shuffle_xor(away, 16));
}
/* Which of the eight that is; the map is its own inverse. */
CAIRN_INLINE int scattered(int g) { return (g & 1) * 4 + (g & 2) + (g >> 2); }

/* What is merged: value number 8 t + scattered(g) of the 32, divided by the denominator (0 where
 * nothing was attended); the largest score and the denominator. */
struct merged {
    float value, top, total;

    CAIRN_MEMBER merged share() const {
        return {total != 0.0f ? value * (1.0f / total) : 0.0f, top, total};
    }
};

/* Up to 8 EIGHTS runs of one unit, from `first` on: asked for all at once, then folded. */
template <int EIGHTS> struct run_eights {
    run_part part[EIGHTS];

    /* load(run, part): the part of this lane, eight values from 8 t on. */
    template <class Load> CAIRN_MEMBER void ask(int first, int runs, Load load) {
#pragma unroll
        for (int i = 0; i < EIGHTS; i++) {
            const int run = first + 8 * i + lane_id() / 4;
            part[i].clear();
            if (run < runs) load(run, part[i]);
        }
    }
    CAIRN_MEMBER void fold(int first, int runs, merged &out) const {
#pragma unroll
        for (int i = 0; i < EIGHTS; i++) {
            if (i > 0 && first + 8 * i >= runs) break;
            float top = as_f32(part[i].sum.x), sum, o[8];
#pragma unroll
            for (int m = 4; m < WARP; m *= 2) top = fmaxf(top, shuffle_xor(top, m));
            part[i].scale(exp2_fast(as_f32(part[i].sum.x) - top), o, sum);
#pragma unroll
            for (int m = 4; m < WARP; m *= 2) sum = add_f32(sum, shuffle_xor(sum, m));
            const float next = fmaxf(out.top, top);
            const float old = exp2_fast(out.top - next), now = exp2_fast(top - next);
            out.total = fma_f32(out.total, old, mul_f32(sum, now));
            out.value = fma_f32(out.value, old, mul_f32(scatter_sum(o, lane_id() / 4), now));
            out.top = next;
        }
    }
};

/* load: as above; again(parts, count): whether they are to be loaded once more. By a whole warp. */
template <class Load, class Again>
CAIRN_INLINE merged merge_runs(int runs, Load load, Again again) {
    constexpr int EIGHTS = 2;
    merged out = {0.0f, NOTHING, 0.0f};
#pragma unroll 1
    for (int first = 0; first < runs; first += 8 * EIGHTS) {
        run_eights<EIGHTS> eights;
        do eights.ask(first, runs, load);
        while (again(eights.part, EIGHTS));
        warp_sync();
        eights.fold(first, runs, out);
    }
    return out.share();
}

/* ---- the merge of two values by a thread: to the bit the same ---- */

/* The largest, and the sum, of the values of eight lanes next to each other, added as weigh_eight does. */
CAIRN_INLINE float max_eight(float v) {
#pragma unroll
    for (int i = 1; i < 8; i *= 2) v = fmaxf(v, shuffle_xor(v, i));
    return v;
}
CAIRN_INLINE float sum_eight(float v) {
#pragma unroll
    for (int i = 1; i < 8; i *= 2) v = add_f32(v, shuffle_xor(v, i));
    return v;
}

/* The sum of one value of eight runs, as scatter_sum adds them. */
CAIRN_INLINE float weigh_eight(const float *v, const float *weight) {
    float o[8];
#pragma unroll
    for (int i = 0; i < 8; i++) o[i] = mul_f32(v[i], weight[i]);
    return add_f32(add_f32(add_f32(o[0], o[1]), add_f32(o[2], o[3])),
                   add_f32(add_f32(o[4], o[5]), add_f32(o[6], o[7])));
}

/* Two values of a row over its runs so far, their largest m and denominator; add: those of eight runs more. */
struct merged_pair {
    float top = NOTHING, sum = 0.0f, o[2] = {0.0f, 0.0f};

    CAIRN_MEMBER void add(f32x2 eight, float x, float y) {
        const float next = fmaxf(top, eight.x);
        const float old = exp2_fast(top - next), now = exp2_fast(eight.x - next);
        sum = fma_f32(sum, old, mul_f32(eight.y, now));
        o[0] = fma_f32(o[0], old, mul_f32(x, now));
        o[1] = fma_f32(o[1], old, mul_f32(y, now));
        top = next;
    }
    CAIRN_MEMBER f32x2 share() const {
        const float all = 1.0f / sum;
        return sum != 0.0f ? f32x2{o[0] * all, o[1] * all} : f32x2{0.0f, 0.0f};
    }
};

/* ---- the last block ---- */

/* Whether this block is the last of `blocks` to come here; all threads, after what they wrote. The
 * counter is zero before and after. `flag`: a word of shared memory. */
CAIRN_INLINE bool last_to_arrive(uint32_t *counter, int blocks, uint32_t *flag) {
    block_sync();
    if (thread_id() == 0) {
        const bool last = atomic_add_acq_rel(counter, 1u) + 1 == (uint32_t)blocks;
        if (last) *counter = 0;
        *flag = last;
    }
    block_sync();
    return *flag != 0;
}

#endif

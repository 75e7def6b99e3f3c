/* The merge of attention's chunks: o = sum_c 2^(m_c - m) o_c / l, as f16, a unit of 32 values of
 * one row for a warp.
 *
 * Eight chunks at a time, a chunk for each g: weights against the largest m of the eight, products,
 * and their sum as the tree ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)); eights follow each other by
 * rescaling. */
#ifndef CAIRN_STEP_MERGE_CUH
#define CAIRN_STEP_MERGE_CUH

#include "step/attend.cuh"

/* One chunk's (m, l) and eight values; NOTHING and zeros where there is no chunk. */
struct chunk_part {
    u32x4 v[2];
    u32x2 sum;

    CAIRN_MEMBER void clear() {
        v[0] = v[1] = u32x4{};
        sum = u32x2{as_u32(NOTHING), 0};
    }
    CAIRN_MEMBER void load(const uint8_t *layer, int64_t head, int dim) {
        const float *from = (const float *)(layer + PARTS_AT) + head * HEAD_DIM + dim;
        sum = load_relaxed8(layer + SUMS_AT + head * 8);
        v[0] = load_relaxed16(from);
        v[1] = load_relaxed16(from + 4);
    }
    CAIRN_MEMBER bool complete() const {
        return full(v[0]) && full(v[1]) && sum.x != EMPTY && sum.y != EMPTY;
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
/* Which of the eight that is. */
CAIRN_INLINE int scattered(int g) { return (g & 1) * 4 + (g & 2) + (g >> 2); }

/* Unit `unit` of one row with `chunks` chunks: values 8t.. as four words in the lanes of g = 0. */
CAIRN_INLINE void merge_unit(const step_params &p, const uint8_t *layer, int row, int chunks,
                             int unit, uint32_t *b) {
    constexpr int EIGHTS = 2; /* fetched together */
    const int g = lane_id() / 4, at = unit * 32;
    float highest = NOTHING, total = 0.0f, value = 0.0f;
#pragma unroll 1
    for (int first = 0; first < chunks; first += 8 * EIGHTS) {
        chunk_part part[EIGHTS];
        patience wait(p);
        bool complete;
        do {
            complete = true;
#pragma unroll
            for (int i = 0; i < EIGHTS; i++) {
                int chunk = first + 8 * i + g;
                part[i].clear();
                if (chunk < chunks)
                    part[i].load(layer, part_of(p, chunk, row) * HEADS + at / HEAD_DIM,
                                 at % HEAD_DIM + lane_id() % 4 * 8);
            }
#pragma unroll
            for (int i = 0; i < EIGHTS; i++) complete = complete && part[i].complete();
        } while (FLOW && !complete && wait.more());
        warp_sync();
#pragma unroll
        for (int i = 0; i < EIGHTS; i++) {
            if (i > 0 && first + 8 * i >= chunks) break;
            float top = as_f32(part[i].sum.x), sum, o[8];
#pragma unroll
            for (int m = 4; m < WARP; m *= 2) top = fmaxf(top, shuffle_xor(top, m));
            part[i].scale(exp2_fast(as_f32(part[i].sum.x) - top), o, sum);
#pragma unroll
            for (int m = 4; m < WARP; m *= 2) sum = add_f32(sum, shuffle_xor(sum, m));
            float next = fmaxf(highest, top);
            float old = exp2_fast(highest - next), now = exp2_fast(top - next);
            total = fma_f32(total, old, mul_f32(sum, now));
            value = fma_f32(value, old, mul_f32(scatter_sum(o, g), now));
            highest = next;
        }
    }
    value *= 1.0f / total;
    /* Number n lies in the lanes of g = scattered^-1(n); that map is its own inverse. */
    uint32_t pair = pack_f16x2(value, shuffle_xor(value, 16));
#pragma unroll
    for (int i = 0; i < 4; i++) b[i] = shuffle(pair, scattered(2 * i) * 4 + lane_id() % 4);
}

#endif

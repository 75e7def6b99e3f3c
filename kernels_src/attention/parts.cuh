/* attention/parts.cuh: softmax sums over parts of the keys, put together by the block of a tile that ends
 * last. A thread holds VALUES of its two rows, in the order of mma's sums (four registers: two of each
 * row); parts lie in memory as the threads hold them. The last block's own stay in registers, and the
 * parts are added in ascending order: so the bits are the same whichever ends last. */
#ifndef CAIRN_ATTENTION_PARTS_CUH
#define CAIRN_ATTENTION_PARTS_CUH

template <int VALUES, int THREADS> struct held_parts {
    float *values; /* [parts, VALUES / 4, THREADS, 4] */
    f32x2 *sums;   /* [parts, rows] (m, l) */
    int rows, row[2];

    CAIRN_MEMBER float *at(int part, int i) const {
        return values + (((int64_t)part * (VALUES / 4) + i / 4) * THREADS + thread_id()) * 4;
    }
    CAIRN_MEMBER f32x2 sum(int part, int h) const {
        const u32x2 v = load_relaxed8(&sums[(int64_t)part * rows + row[h]]);
        return f32x2{as_f32(v.x), as_f32(v.y)};
    }
    /* tells: of each row one thread. */
    CAIRN_MEMBER void put(int part, const float *o, const float *top, const float *total, bool tells) const {
#pragma unroll
        for (int i = 0; i < VALUES; i += 4)
            *(f32x4 *)at(part, i) = f32x4{o[i], o[i + 1], o[i + 2], o[i + 3]};
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (tells) sums[(int64_t)part * rows + row[h]] = f32x2{top[h], total[h]};
    }
    /* (m, l) of all parts, by the four lanes that share the rows. */
    CAIRN_MEMBER void gather(int parts, float *top, float *total) const {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            top[h] = minus_infinity(), total[h] = 0.0f;
#pragma unroll 4
            for (int c = lane_id() % 4; c < parts; c += 4) top[h] = fmaxf(top[h], sum(c, h).x);
            top[h] = quad_max(top[h]);
            const float base = fmaxf(top[h], NOTHING);
#pragma unroll 4
            for (int c = lane_id() % 4; c < parts; c += 4) {
                const f32x2 v = sum(c, h);
                total[h] = fma_f32(exp2_fast(v.x - base), v.y, total[h]);
            }
            total[h] = quad_sum(total[h]);
        }
    }
    /* Of `parts` parts, of which `mine` is o: write(i, v): values i.. i + COUNT of the rows, not divided. */
    template <int COUNT, int AHEAD, class Write>
    CAIRN_MEMBER void merge(int parts, int mine, const float *o, const float *top, Write write) const {
        const float base[2] = {fmaxf(top[0], NOTHING), fmaxf(top[1], NOTHING)};
#pragma unroll
        for (int i = 0; i < VALUES; i += COUNT) {
            float v[COUNT] = {};
#pragma unroll AHEAD
            for (int c = 0; c < parts; c++) {
                const float weight[2] = {exp2_fast(sum(c, 0).x - base[0]), exp2_fast(sum(c, 1).x - base[1])};
                u32x4 w[COUNT / 4];
#pragma unroll
                for (int k = 0; k < COUNT; k += 4) {
                    const float *own = o + i + k;
                    w[k / 4] = u32x4{as_u32(own[0]), as_u32(own[1]), as_u32(own[2]), as_u32(own[3])};
                    if (c != mine) w[k / 4] = load_relaxed16(at(c, i + k));
                }
#pragma unroll
                for (int k = 0; k < COUNT; k++) {
                    const u32x4 &four = w[k / 4];
                    const uint32_t x = k % 4 == 0 ? four.x : k % 4 == 1 ? four.y : k % 4 == 2 ? four.z : four.w;
                    v[k] = fma_f32(as_f32(x), weight[k / 2 % 2], v[k]);
                }
            }
            write(i, v);
        }
    }
};

/* last_to_arrive by the first `threads` threads, which meet at a named barrier. */
CAIRN_INLINE bool last_of_users(uint32_t *counter, int blocks, uint32_t *flag, int barrier, int threads) {
    named_sync(barrier, threads);
    if (thread_id() == 0) {
        const bool last = atomic_add_acq_rel(counter, 1u) + 1 == (uint32_t)blocks;
        if (last) *counter = 0;
        *flag = last;
    }
    named_sync(barrier, threads);
    return *flag != 0;
}

#endif

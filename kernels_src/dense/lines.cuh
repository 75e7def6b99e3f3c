/* dense/lines.cuh: x of a band of eight rows from memory, by whole lines.
 *
 * An operand of a product wants 64 bytes of each of eight rows. Asked for so, every request is half a line, and
 * requests are what a multiprocessor can make only so many of: of eight rows x came as late as twice its bytes would
 * (H200: 8B and 1B by steps of eight rows 6 and 10 % slower). So eight lanes load 128 bytes of one row of a pair, two
 * units, then of the other, and lanes of both rows exchange what the others want. */
#ifndef CAIRN_LINES_CUH
#define CAIRN_LINES_CUH

#include "device/common.cuh"

/* Units [unit, unit + N) of rows [row, row + 8) of f16 [row, INPUTS], as operands of lanes: lane l has row l / 4.
 * Those behind K's end and rows from `rows` on stay as they are. */
template <int N, int INPUTS> struct row_lines {
    const uint8_t *from; /* this lane's, of the first row of its pair */
    int first, second;   /* units from this lane's on that there are, of each row of the pair */

    CAIRN_MEMBER row_lines(const uint8_t *at, int row, int rows, int unit) {
        const int even = row + lane_id() / 8 * 2, lane = lane_id() % 8;
        const int units = INPUTS / 32 % N == 0 ? (unit < INPUTS / 32 ? N : 0) : INPUTS / 32 - unit - lane / 4;
        from = at + ((int64_t)even * INPUTS + unit * 32 + lane * 8) * 2;
        first = even < rows ? units : 0, second = even + 1 < rows ? units : 0;
    }
    CAIRN_MEMBER void load(u32x4 *v) const {
        static_assert(N % 2 == 0, "row_lines: pairs of units");
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            if (i < first) v[i] = load_relaxed16(from + i * 64);
            if (i < second) v[i + 1] = load_relaxed16(from + i * 64 + INPUTS * 2);
        }
    }
    /* What was loaded becomes units i and i + 1 of the lane's own row. All lanes. */
    CAIRN_METHOD void exchange(u32x4 *v) {
        const bool odd = lane_anew() / 4 % 2;
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            swap(odd, v[i].x, v[i + 1].x), swap(odd, v[i].y, v[i + 1].y);
            swap(odd, v[i].z, v[i + 1].z), swap(odd, v[i].w, v[i + 1].w);
        }
    }
    CAIRN_METHOD void swap(bool odd, uint32_t &a, uint32_t &b) {
        const uint32_t got = shuffle_xor(odd ? a : b, 4);
        a = odd ? got : a, b = odd ? b : got;
    }
};

#endif

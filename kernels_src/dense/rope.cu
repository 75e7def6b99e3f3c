/* rope: rotates pairs of each head by their row's position (see cairn_rope).
 *
 * Launch grid rows, block 128. A negative position leaves the row as it is and is reported. */
#include "device/common.cuh"
#include "abi/dense.h"
#include "dense/rope.cuh"

CAIRN_KERNEL(rope, 128, 1, rope_params) {
    const int position = p.positions[block_id()], pairs = p.rotary_dim / 2;
    const int64_t row = (int64_t)block_id() * p.heads * p.head_dim;
    if (position < 0 && thread_id() == 0)
        report_error(p.error, CAIRN_FAULT_POSITION, block_id(), position);
    for (int pair = thread_id(); pair < pairs; pair += 128) {
        rotation r = rope_rotation(max_of(position, 0), pair, p.rotary_dim, p.base);
        int a = p.half_split ? pair : 2 * pair, b = p.half_split ? pair + pairs : a + 1;
        for (int head = 0; head < p.heads; head++) {
            const float *x = p.x + row + head * p.head_dim;
            float *out = p.out + row + head * p.head_dim;
            float xa = x[a], xb = x[b];
            out[a] = xa * r.cosine - xb * r.sine;
            out[b] = xa * r.sine + xb * r.cosine;
        }
    }
    const int rest = p.head_dim - p.rotary_dim;
    for (int i = thread_id(); i < rest * p.heads; i += 128) {
        int64_t at = row + i / max_of(rest, 1) * p.head_dim + p.rotary_dim + i % max_of(rest, 1);
        p.out[at] = p.x[at];
    }
}

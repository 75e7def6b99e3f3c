/* measure: the floors that every bench line is a ratio to.
 *
 * measure_read   reads p.count 16-byte words once with plain loads; the sum is stored only if it
 *                equals a value it will not have, so that no load can be dropped
 * measure_copy   copies the first half of them to the second
 * measure_empty  does nothing: the cost of one stage in a graph
 * Launch         read: grid as wide as the chip, block 512; copy: grid ceil(count / 512), block
 *                256; empty: any
 * matrix: */
#include "device/common.cuh"
#include "abi/device.h"

CAIRN_KERNEL(measure_read, 512, 1, measure_params) {
    const u32x4 *words = (const u32x4 *)p.words;
    const int64_t stride = (int64_t)grid_blocks() * 512;
    uint32_t sum = 0;
    int64_t i = (int64_t)block_id() * 512 + thread_id();
    for (; i + 7 * stride < p.count; i += 8 * stride) {
        u32x4 w[8];
#pragma unroll
        for (int j = 0; j < 8; j++) w[j] = words[i + j * stride];
#pragma unroll
        for (int j = 0; j < 8; j++) sum += w[j].x ^ w[j].y ^ w[j].z ^ w[j].w;
    }
    for (; i < p.count; i += stride) sum += words[i].x ^ words[i].y ^ words[i].z ^ words[i].w;
    if (sum == p.never) *p.sink = sum;
}

CAIRN_KERNEL(measure_copy, 256, 1, measure_params) {
    const u32x4 *from = (const u32x4 *)p.words;
    const int64_t count = p.count / 2, i = (int64_t)block_id() * 256 + thread_id();
    u32x4 *to = (u32x4 *)p.words + count;
    if (i < count) to[i] = from[i]; /* a word a thread: of many forms the fastest */
}

CAIRN_KERNEL(measure_empty, 256, 1, measure_params) {
    grid_launch_dependents();
    grid_dependency_wait();
    if (p.count < 0) *p.sink = 1;
}

/* topk of long rows: one block a row, one read (the contract is in runtime_ops.h).
 *
 * Route      "block", for rows that registers do not hold (topk/stream.cuh)
 * Constants  CAIRN_SCORE_TYPE  1 f32, 2 f16, 3 bf16 (cairn_type)
 *            CAIRN_THREADS, CAIRN_ITEMS  a tile is their product; k + tile <= 10240
 * Launch     grid rows, block THREADS, shared memory STREAM_BYTES
 * Oracle     tests/ops/topk_test.c sorts
 * matrix: CAIRN_SCORE_TYPE=1 CAIRN_THREADS=512 CAIRN_ITEMS=16
 * matrix: CAIRN_SCORE_TYPE=2 CAIRN_THREADS=512 CAIRN_ITEMS=16
 * matrix: CAIRN_SCORE_TYPE=3 CAIRN_THREADS=512 CAIRN_ITEMS=8 */
#include "device/common.cuh"
#include "abi/topk.h"
#include "topk/topk.cuh"
#include "topk/stream.cuh"

struct no_merge { /* the row is one slice */
    CAIRN_MEMBER bool begin(const topk_params &, int) { return false; }
    CAIRN_MEMBER bool add(const topk_params &, stream_state &) { return false; }
};

CAIRN_KERNEL(topk_stream, STREAM_THREADS, STREAM_RESIDENT, topk_params) {
    stream_shared &s = shared_as<stream_shared>();
    static_assert(sizeof(stream_shared) <= STREAM_BYTES, "what the host launches with");
    const int r = block_id();
    grid_follow();
    const topk_range range = topk_row_range(p, r, thread_id() == 0);
    const score_t *row = (const score_t *)p.scores + (int64_t)r * p.stride + range.start;
    const stream_part part = {row, range.length, 0, range.length};
    if (thread_id() == 0) s.part = part;
    const bool whole = range.length <= p.k && !p.finite_only && !p.sort_size;
    const int found = whole ? range.length : stream_row(s, p, part, no_merge());
    write_set(s, p, topk_row_out(p, r, row), whole, found);
}

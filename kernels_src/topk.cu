/* topk: the k highest scores of each row, exactly (see cairn_topk in runtime.h for the contract).
 *
 * Route      "block": one block a row, tile by tile: one read, with a running bound. Rows whose
 *            candidates outgrow the set cut it and go on (topk_select.cuh).
 * Constants  CAIRN_SCORE_TYPE  1 f32, 2 f16, 3 bf16 (cairn_type)
 *            CAIRN_THREADS, CAIRN_ITEMS  a tile is their product; k + tile <= 10240
 * Launch     grid rows, block THREADS, shared memory as topk_cuda.c computes it
 * Oracle     tests/topk_test.c sorts
 * matrix: CAIRN_SCORE_TYPE=1 CAIRN_THREADS=512 CAIRN_ITEMS=16
 * matrix: CAIRN_SCORE_TYPE=2 CAIRN_THREADS=512 CAIRN_ITEMS=16
 * matrix: CAIRN_SCORE_TYPE=3 CAIRN_THREADS=512 CAIRN_ITEMS=8 */
#include "common.cuh"
#include "topk.cuh"
#include "topk_select.cuh"
#include "topk_emit.cuh"

/* Blocks that fit one SM, by registers; later chips' compilers need a few more of those. */
#define RESIDENT (CAIRN_ARCH >= 1000 ? 1 : 1024 / THREADS)

CAIRN_KERNEL(topk_row, THREADS, RESIDENT, topk_params) {
    topk_shared &s = shared_as<topk_shared>();
    const int r = block_id();
    topk_range range = topk_row_range(p, r, thread_id() == 0);
    const score_t *row = (const score_t *)p.scores + (int64_t)r * p.stride + range.start;
    if (range.length <= p.k && !p.finite_only && !p.sort_size) {
        emit_all(p, topk_row_out(p, r, row), range.length);
        return;
    }
    take_slice(s, p, row, {0, range.length}, p.k, [](uint32_t bound) { return bound; });
    emit(s, p, topk_row_out(p, r, row), range.length);
}

/* A prompt's attention where its rows are few and what stands before them is long: what step/prompt_attend.cu
 * does by wgmma, to the bit, by more blocks.
 *
 *   prompt_span      a tile of queries over one span of keys: their sums to records
 *   prompt_merge     the spans of a head of a row, in order
 *
 * Tiles [p.span_tile, + grid) and their rows, p.span_rows of them. Records [row, head, span] of
 * layout_span_record, span 0 to p.spans, where the ffn's values are later.
 * Constants, buffers: as prompt_attend; but for the form with wgmma there is none.
 * Grid, threads: prompt_span (tiles, kv_heads, spans), 384, shared memory layout_many_bytes;
 * prompt_merge (ceil(rows heads / 4)), 128.
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=4096 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=14336 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=33 CAIRN_PACK_GATE_UP=32 CAIRN_PACK_DOWN=35
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=32 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=4160 */
#define CAIRN_SPAN_ALONE
#include "step/prompt_buffers.cuh"
#include "step/attend.cuh"
#include "step/prompt_many.cuh"

#if PROMPT_MANY
/* HEAD_DIM values, not divided, then (m, l). row: from the first of all tiles on */
CAIRN_INLINE float *span_record(const step_params &p, int row, int head, int span) {
    return (float *)(buffer(p, FFN_AT) + (((int64_t)row * HEADS + head) * p.spans + span) *
                                             layout_span_record(HEAD_DIM));
}

CAIRN_KERNEL(prompt_span, MANY_THREADS, 1, step_params) {
    step_source source = many_source(p, p.span_tile + block_id());
    const auto seen = source.part(0);
    if (seen.last < seen.begin) {
        start_input();
        return;
    }
    const int row = source.row - tile_first(p, p.span_tile, MANY_TOKENS), span = block_id_z();
    many_begin(source);
    if (warp_id() >= 8) {
        registers_give<72>();
        many_bring(source);
        return;
    }
    if (warp_id() >= 4 && source.alone()) return;
    registers_take<216>();
    const many_sums r = many_use<false>(source, GROUP, score_scale(p));
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int m = warp_id() * 16 + half * 8 + lane_id() / 4, c = lane_id() % 4 * 2;
        if (!source.exists(m)) continue;
        float *to = span_record(p, row + m / GROUP, block_id_y() * GROUP + m % GROUP, span);
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++)
            *(f32x2 *)(to + n * 8 + c) = f32x2{r.o[4 * n + 2 * half], r.o[4 * n + 2 * half + 1]};
        if (c == 0) *(f32x2 *)(to + HEAD_DIM) = f32x2{r.top[half], r.total[half]};
    }
}

CAIRN_KERNEL(prompt_merge, 128, 4, step_params) {
    constexpr int PAIRS = HEAD_DIM / 64; /* of a lane: values 64 i + 2 lane.. */
    const int unit = block_id() * 4 + warp_id(), row = unit / HEADS, head = unit % HEADS, lane = lane_id() * 2;
    const int from = tile_first(p, p.span_tile, MANY_TOKENS) + row;
    float top = minus_infinity(), total = 0.0f;
    f32x2 sum[PAIRS] = {};
    start_input();
    if (row >= p.span_rows) return;
    const int position = row_position(p, from), begin = row_begin(p, position) / LAYOUT_SPAN;
#pragma unroll 8
    for (int span = begin; span <= position / LAYOUT_SPAN; span++) {
        const float *record = span_record(p, row, head, span);
        const f32x2 more = *(const f32x2 *)(record + HEAD_DIM);
        f32x2 v[PAIRS];
#pragma unroll
        for (int i = 0; i < PAIRS; i++) v[i] = *(const f32x2 *)(record + i * 64 + lane);
        const many_share by = many_merge(top, total, more.x, more.y);
#pragma unroll
        for (int i = 0; i < PAIRS; i++)
            sum[i] = f32x2{many_both(sum[i].x, v[i].x, by), many_both(sum[i].y, v[i].y, by)};
    }
    const float share = 1.0f / total;
    uint8_t *to = many_output(p, from, head);
#pragma unroll
    for (int i = 0; i < PAIRS; i++)
        *(uint32_t *)(to + operand_at(i * 64 + lane) * 2) = many_divided(sum[i].x, sum[i].y, share);
}
#else
CAIRN_KERNEL(prompt_span, 128, 1, step_params) { (void)p; }
CAIRN_KERNEL(prompt_merge, 128, 1, step_params) { (void)p; }
#endif

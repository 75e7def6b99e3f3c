/* The products of a decoder layer, a kernel a stage (step/stages.cuh).
 *
 * step_embed, step_qkv, step_project, step_gate_up, step_down
 *             grid.x tiles, grid.y windows of eight rows, up to CAIRN_ROWS rows; CAIRN_WARPS warps.
 *             With CAIRN_BANDS 2 the products of attention, convolutions and ffns take windows of 16
 *             rows, with PRODUCT_BANDS_SHARED bytes.
 *
 * With formats from PACK_Q4_0 on the products are those of dense/product.cuh: any grid.x, 8 warps,
 * PRODUCT_SHARED bytes; a second block on a multiprocessor asks for its weights before its turn.
 *
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0.
 * Shared memory: MEETING_BYTES. Sync: one block_sync a round of a product.
 * A row's results are the bits of step_flow, whatever other rows there are.
 * Reference: tests/ref/decoder_step.h.
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0
 * matrix: CAIRN_LAYERS=16 CAIRN_HIDDEN=2048 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=8192 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=16
 * matrix: + CAIRN_PACK_QKV=16 CAIRN_PACK_O=16 CAIRN_PACK_GATE_UP=16 CAIRN_PACK_DOWN=16
 * matrix: + CAIRN_PACK_HEAD=16 CAIRN_PACK_EMBED=16 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=4096 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=14336 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=33 CAIRN_PACK_GATE_UP=32 CAIRN_PACK_DOWN=32
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=32 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0 CAIRN_ALONE=0
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=4096 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=14336 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=33 CAIRN_PACK_GATE_UP=32 CAIRN_PACK_DOWN=32
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=32 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0 CAIRN_ALONE=1
 * matrix: CAIRN_LAYERS=16 CAIRN_HIDDEN=2048 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=8192 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=34 CAIRN_PACK_GATE_UP=35 CAIRN_PACK_DOWN=32
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=34 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0 CAIRN_ALONE=0
 * matrix: CAIRN_LAYERS=16 CAIRN_HIDDEN=2048 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=8192 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=34 CAIRN_PACK_GATE_UP=35 CAIRN_PACK_DOWN=32
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=34 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0 CAIRN_ALONE=1
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=5120 CAIRN_HEADS=40 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=17408 CAIRN_VOCAB=151936 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=34 CAIRN_PACK_O=32 CAIRN_PACK_GATE_UP=33 CAIRN_PACK_DOWN=35
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=34 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0 CAIRN_ALONE=0
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=5120 CAIRN_HEADS=40 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=17408 CAIRN_VOCAB=151936 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=34 CAIRN_PACK_O=32 CAIRN_PACK_GATE_UP=33 CAIRN_PACK_DOWN=35
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=34 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0 CAIRN_ALONE=1
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=4096 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=14336 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=2631206 CAIRN_PACK_O=37 CAIRN_PACK_GATE_UP=38 CAIRN_PACK_DOWN=39
 * matrix: + CAIRN_PACK_HEAD=40 CAIRN_PACK_EMBED=40 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0 CAIRN_ALONE=0
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=4096 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=14336 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=2631206 CAIRN_PACK_O=37 CAIRN_PACK_GATE_UP=38 CAIRN_PACK_DOWN=39
 * matrix: + CAIRN_PACK_HEAD=40 CAIRN_PACK_EMBED=40 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0 CAIRN_ALONE=1
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=4096 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=14336 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=33 CAIRN_PACK_GATE_UP=32 CAIRN_PACK_DOWN=32
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=32 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2 CAIRN_PRODUCTS=15
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0 CAIRN_ALONE=0 CAIRN_BANDS=2
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=4096 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=14336 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=33 CAIRN_PACK_GATE_UP=32 CAIRN_PACK_DOWN=32
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=32 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2 CAIRN_PRODUCTS=15
 * matrix: + CAIRN_EXTRAS=512
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0 CAIRN_ALONE=0 CAIRN_BANDS=2
 * matrix: CAIRN_LAYERS=16 CAIRN_HIDDEN=2048 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=8192 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=34 CAIRN_PACK_GATE_UP=35 CAIRN_PACK_DOWN=32
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=34 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2 CAIRN_PRODUCTS=15
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0 CAIRN_ALONE=0 CAIRN_BANDS=2
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=5120 CAIRN_HEADS=40 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=17408 CAIRN_VOCAB=151936 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=34 CAIRN_PACK_O=32 CAIRN_PACK_GATE_UP=33 CAIRN_PACK_DOWN=35
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=34 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2 CAIRN_PRODUCTS=15
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0 CAIRN_ALONE=0 CAIRN_BANDS=2
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=4096 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=14336 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=2631206 CAIRN_PACK_O=37 CAIRN_PACK_GATE_UP=38 CAIRN_PACK_DOWN=39
 * matrix: + CAIRN_PACK_HEAD=40 CAIRN_PACK_EMBED=40 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2 CAIRN_PRODUCTS=15
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0 CAIRN_ALONE=0 CAIRN_BANDS=2
 * matrix: CAIRN_LAYERS=16 CAIRN_HIDDEN=1024 CAIRN_HEADS=16 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1792 CAIRN_VOCAB=65536 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=32 CAIRN_PACK_GATE_UP=32 CAIRN_PACK_DOWN=32
 * matrix: + CAIRN_PACK_HEAD=40 CAIRN_PACK_EMBED=40 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=385
 * matrix: + CAIRN_PRODUCTS=480 CAIRN_PACK_CONV_IN=38 CAIRN_PACK_CONV_OUT=40 CAIRN_TAPS=3 CAIRN_RING=32
 * matrix: + CAIRN_PACK_EXPERT_UP=38 CAIRN_PACK_EXPERT_DOWN=40 CAIRN_EXPERTS=128 CAIRN_USED=8
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_PRODUCTS=399
 * matrix: + CAIRN_EXTRAS=768 CAIRN_PACK_EXPERT_UP=4 CAIRN_PACK_EXPERT_DOWN=4 CAIRN_EXPERTS=16
 * matrix: + CAIRN_USED=4 */
#include "step/stages.cuh"
#include "step/families.cuh"

/* Rows of f16 that are there already, with no factor. */
template <int INPUTS> struct ready_input : rows_input<INPUTS> {
    CAIRN_MEMBER void await() const {}
    template <class Place = rows_place> CAIRN_MEMBER void before_meeting(float *factors) const {
        if (Place::factor() < COLUMNS && lane_id() < Place::FACTORS)
            factors[Place::factor_at() + lane_id()] = 1.0f;
    }
};

/* f32 [row, WIDTH], times the row's factor. */
template <int WIDTH> struct summed_output {
    int count; /* of the window's rows */
    float *to; /* of its first row */

    CAIRN_MEMBER void operator()(const output &o, const float *factors) const {
        if (o.column >= count) return;
        send(to + (int64_t)o.column * WIDTH + o.tile * 16 + o.row, o.value * factors[o.column]);
    }
};

/* f32 [slot, WIDTH] of slots of experts from `first` on, with what their rows' adapters add. */
template <int WIDTH> struct slots_output {
    const step_params &p;
    int first, count;
    float *to;

    CAIRN_MEMBER void operator()(const output &o, const float *) const {
        if (o.column >= count) return;
        send(to + (int64_t)o.column * WIDTH + o.tile * 16 + o.row,
             adapted_slot(p, o.value, first + o.column, 0, o.tile * 16 + o.row));
    }
};

/* Windows beyond the rows only wait, so that the order of the kernels holds. */
#define STAGE(name, ...)                                     \
    CAIRN_KERNEL(name, THREADS, STAGE_BLOCKS, step_params) { \
        workspace work{nullptr, (float *)shared_base(), 0};  \
        row_window rows = window_of(p, block_id_y());        \
        uint8_t *at = region(p, 0, 0);                       \
        int first = block_id(), step = grid_blocks();        \
        if (rows.count <= 0) start_input();                  \
        else __VA_ARGS__;                                    \
    }

#if CAIRN_PRODUCTS & 16
CAIRN_KERNEL(step_embed, THREADS, 1, step_params) {
    start_input();
    row_window rows = window_of(p, block_id_y());
    if (rows.count > 0) stage_embed<1>(p, rows, region(p, 0, 0), block_id(), grid_blocks());
}
#endif
#if CAIRN_PRODUCTS & 1
STAGE(step_qkv, {
    qkv_place place;
    if (!STREAMED)
        place.find(p, rows, first, output_row(thread_id()), output_column(thread_id()));
    stage_qkv<1, true>(p, rows, p.layer, at, place, work, first, step);
})
#endif
#if CAIRN_PRODUCTS & 2
STAGE(step_project, stage_project<1, true>(p, rows, p.layer, at, work, first, step))
#endif
#if CAIRN_PRODUCTS & 4
STAGE(step_gate_up, stage_gate_up<1, true>(p, rows, p.layer, at, work, first, step))
#endif
#if CAIRN_PRODUCTS & 8
STAGE(step_down, stage_down<1, true>(p, rows, p.layer, at, at, work, first, step))
#endif
#if CAIRN_PRODUCTS & 32
STAGE(step_conv_in, {
    norm_input input(p, at + HIDDEN_AT, at + SQUARES_AT, rows);
    summed_output<3 * HIDDEN> out{
        rows.count, (float *)(at + SUMMED_AT) + (int64_t)rows.first * (3 * HIDDEN)};
    stage_product<CAIRN_PACK_CONV_IN, HIDDEN, 1, true>(p.qkv, first, step, 3 * HIDDEN / 16, work,
                                                       input, out);
})
#endif
#if CAIRN_PRODUCTS & 64
STAGE(step_conv_out, {
    rows_input<HIDDEN> input{p, at + ATTENDED_AT + (int64_t)rows.first * HIDDEN * 2, rows.count};
    stage_residual<CAIRN_PACK_CONV_OUT, HIDDEN, 1, true, STEP_LOW_O>(
        p, rows, p.layer, p.o, p.norms + (int64_t)(2 * p.layer + 1) * HIDDEN, at + MIDDLE_AT,
        at + MIDDLE_SQUARES_AT, input, work, first, step);
})
#endif

/* The product of one window of an expert's slots; which it is is known once they are placed. */
#define EXPERT_STAGE(name, FORMAT, INPUTS, TILES, from, ...)                                  \
    CAIRN_KERNEL(name, THREADS, STAGE_BLOCKS, step_params) {                                  \
        workspace work{nullptr, (float *)shared_base(), 0};                                   \
        expert_window window;                                                                 \
        uint8_t *at = region(p, 0, 0);                                                        \
        start_input();                                                                        \
        if (!find_window(p, block_id_y(), window)) return;                                    \
        ready_input<INPUTS> input{{p, at + from + (int64_t)window.first * INPUTS * 2,         \
                                   window.count}};                                            \
        __VA_ARGS__;                                                                          \
        const int64_t before = (int64_t)window.expert * (TILES);                              \
        stage_product<FORMAT, INPUTS, 1, true, false>(                                        \
            weights + before * tile_bytes<FORMAT, INPUTS>(), block_id(), grid_blocks(), TILES, \
            work, input, out);                                                                \
    }

#if CAIRN_PRODUCTS & 128
EXPERT_STAGE(step_expert_up, CAIRN_PACK_EXPERT_UP, HIDDEN, FFN / 8, ROUTED_AT,
             const uint8_t *weights = p.gate_up;
             swiglu_output<true> out{window.count, at + EXPERT_FFN_AT + (int64_t)window.first * FFN * 2, p,
                           window.first})
#endif
#if CAIRN_PRODUCTS & 256
EXPERT_STAGE(step_expert_down, CAIRN_PACK_EXPERT_DOWN, FFN, HIDDEN / 16, EXPERT_FFN_AT,
             const uint8_t *weights = p.down;
             slots_output<HIDDEN> out{
                 p, window.first, window.count,
                 (float *)(at + EXPERT_OUT_AT) + (int64_t)window.first * HIDDEN})
#endif

/* linear: y [rows, out] = x [rows, in] . W [out, in]^T, W in GGUF blocks, on the CPU.
 *
 * Activations and sums are f32, weights are dequantised on the fly: for a few rows inside the
 * product, for more through a panel of f32 weights that stays in the cache while all rows use it. A row's
 * result depends neither on the other rows nor on how outputs are divided among threads.
 * Calls simd, pool and block. */

enum {
    LINEAR_STEP = 8,              /* outputs are divided in multiples of this */
    LINEAR_PANEL_FLOATS = 1 << 16 /* of a panel: 256 KiB of second-level cache */
};

/* A product as one worker sees it; y_stride and x_stride in floats. */
typedef struct linear_job {
    int type;          /* BLOCK_ */
    const void *w;     /* [out, in] in blocks */
    int out, in;
    const float *x;    /* [rows, in] */
    int64_t x_stride;
    int rows;
    float *y;          /* [rows, out] */
    int64_t y_stride;
    bool add;          /* y += instead of y = */
} linear_job;

/* Outputs first .. last - 1. panel: linear_panel_floats(in) of the worker's own. */
BASE_UNUSED static void linear_range(const simd_kernels *simd, const linear_job *job, int first,
                                     int last, float *panel) {
    const size_t row_bytes = block_row_bytes(block_find(job->type), job->in);
    const uint8_t *w = (const uint8_t *)job->w + (size_t)first * row_bytes;
    const int fit = LINEAR_PANEL_FLOATS / job->in / LINEAR_STEP * LINEAR_STEP;
    const int most = job->rows <= SIMD_FEW || fit < LINEAR_STEP ? LINEAR_STEP : fit;
    const int done = simd->few(job->type, w, last - first, job->x, job->x_stride, job->rows,
                               job->in, job->y + first, job->y_stride, job->add, panel);
    first += done;
    w += (size_t)done * row_bytes;
    while (first < last) {
        int outs = last - first < most ? last - first : most;
        simd->dequantize(job->type, w, panel, (int64_t)outs * job->in);
        simd->panel(panel, outs, job->x, job->x_stride, job->rows, job->in, job->y + first,
                    job->y_stride, job->add);
        first += outs;
        w += (size_t)outs * row_bytes;
    }
}

/* Floats of a worker's panel for weights of this width. */
BASE_UNUSED static size_t linear_panel_floats(int in) {
    size_t least = (size_t)LINEAR_STEP * (size_t)in;
    return least > LINEAR_PANEL_FLOATS ? least : LINEAR_PANEL_FLOATS;
}

/* linear: a worker's part of a product. See dense.h. */

static void linear_range(const simd_kernels *simd, const linear_job *job, int first, int last,
                         float *panel) {
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

static size_t linear_panel_floats(int in) {
    size_t least = (size_t)LINEAR_STEP * (size_t)in;
    return least > LINEAR_PANEL_FLOATS ? least : LINEAR_PANEL_FLOATS;
}

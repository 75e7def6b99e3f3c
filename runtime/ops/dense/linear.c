/* linear: a worker's part of a product. See dense.h. */

/* Rounds rows of x into the panel; returns what lies behind, or NULL, and nothing done, where the
 * weights are no whole numbers. */
static float *linear_round(const simd_kernels *simd, const linear_job *job, const float *x,
                           float *panel, simd_eight *out) {
    const int64_t n = out->n, rows = out->rows;
    float *scale = panel + rows * n / 4, *lies = scale + rows * n / 32;
    int32_t *start = (int32_t *)(void *)(lies + rows * n / 32);
    int8_t *q = (int8_t *)(void *)panel;
    for (int64_t r = 0; r < rows; r++)
        if (!simd->round_eight(job->type, x + r * job->x_stride, (int)n, q + r * n,
                               scale + r * n / 32, lies + r * n / 32, start + r * n / 16))
            return NULL;
    out->q = q, out->scale = scale, out->lies = lies, out->start = start;
    return (float *)(void *)(start + rows * n / 16);
}

/* The same with x rounded to 8 bits, as many rows at a time as the panel holds; false, and nothing
 * done, where the weights are no whole numbers. */
static bool linear_range_eight(const simd_kernels *simd, const linear_job *job, int first, int last,
                               float *panel) {
    const size_t row_bytes = block_row_bytes(block_find(job->type), job->in);
    const uint8_t *w = (const uint8_t *)job->w + (size_t)first * row_bytes;
    const int64_t room = (int64_t)linear_panel_floats(job->in);
    const int fit = (int)(room / (job->in / 4 + job->in / 8 + SIMD_MAX_LANES));
    for (int r = 0; r < job->rows; r += fit) {
        simd_eight x = {job->rows - r < fit ? job->rows - r : fit, job->in, NULL, NULL, NULL, NULL};
        float *sums = linear_round(simd, job, job->x + r * job->x_stride, panel, &x);
        if (!sums) return false;
        simd->product_eight(job->type, w, last - first, &x, job->y + r * job->y_stride + first,
                            job->y_stride, job->add, sums);
    }
    return true;
}

static void linear_range(const simd_kernels *simd, const linear_job *job, int first, int last,
                         float *panel) {
    const size_t row_bytes = block_row_bytes(block_find(job->type), job->in);
    const uint8_t *w = (const uint8_t *)job->w + (size_t)first * row_bytes;
    const int fit = LINEAR_PANEL_FLOATS / job->in / LINEAR_STEP * LINEAR_STEP;
    const int most = job->rows <= SIMD_FEW || fit < LINEAR_STEP ? LINEAR_STEP : fit;
    int done;
    if (job->eight && linear_range_eight(simd_eight_of(simd), job, first, last, panel)) return;
    done = simd->few(job->type, w, last - first, job->x, job->x_stride, job->rows,
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

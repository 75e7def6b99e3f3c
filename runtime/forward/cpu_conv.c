/* forward_cpu_conv: a layer whose mixer is a short convolution, on the CPU. The projection gives
 * each row three parts: a gate for what goes in, one for what comes out, and x; the convolution
 * runs over gate * x of the row and those before it, and the ring keeps them (pages/ring.c).
 *
 * Each item is a range of channels and goes through all rows, so that a ring is read and written
 * by one worker only. The sums are the op's (simd conv). */

enum { FORWARD_CHANNELS = 32, FORWARD_MAX_TAPS = 8 };

/* The inputs of the convolution, [rows, 3 * hidden]: the last third of a row, once gated. */
static float *forward_mixed(const forward_cpu_state *f, int row, int part) {
    const int hidden = f->model->shape.hidden;
    return f->mixed + (int64_t)row * 3 * hidden + part * hidden;
}

/* A layer's ring of a sequence. */
static float *forward_ring(const forward_walk *walk, const forward_sequence *s) {
    const forward_cpu_state *f = walk->f;
    const ring *of = &f->model->rings.rows[s->table];
    const size_t layer = (size_t)f->model->plan.layers[walk->layer].state;
    return of->rows + layer * RING_ROWS * (size_t)of->channels;
}

/* Where the input at `position` lies, seen from `row` of a sequence. */
static const float *forward_conv_input(const forward_walk *walk, const forward_sequence *s, int row,
                                       int position) {
    const forward_cpu_state *f = walk->f;
    const int back = f->positions[row] - position;
    if (position < 0) return f->zeros;
    if (row - back >= s->first) return forward_mixed(f, row - back, 2);
    return forward_ring(walk, s) +
           (int64_t)(position % RING_ROWS) * f->model->shape.hidden;
}

/* Channels [at, at + n) of the rows of one sequence. */
static void forward_conv_run(const forward_walk *walk, const forward_sequence *s, int at, int n) {
    forward_cpu_state *f = walk->f;
    const int first = s->first, last = s->first + s->rows;
    const int hidden = f->model->shape.hidden, taps = f->model->shape.conv_taps;
    const float *weights =
        f->taps + (int64_t)f->model->plan.layers[walk->layer].state * (taps + 1) * hidden;
    for (int r = first; r < last; r++) {
        const float *inputs[FORWARD_MAX_TAPS], *out_gate = forward_mixed(f, r, 1) + at;
        float *x = forward_mixed(f, r, 2) + at, *y = f->normed + (int64_t)r * hidden + at;
        const float *in_gate = forward_mixed(f, r, 0) + at;
        for (int i = 0; i < n; i++) x[i] *= in_gate[i];
        for (int j = 0; j < taps; j++)
            inputs[j] =
                forward_conv_input(walk, s, r, f->positions[r] - (taps - 1) + j) + at;
        f->simd->conv(inputs, weights + at, hidden, taps, n, y);
        for (int i = 0; i < n; i++) y[i] *= out_gate[i];
    }
    for (int r = last - first > RING_ROWS ? last - RING_ROWS : first; r < last; r++)
        memcpy(forward_ring(walk, s) + (int64_t)(f->positions[r] % RING_ROWS) * hidden + at,
               forward_mixed(f, r, 2) + at, (size_t)n * sizeof(float));
}

static void forward_conv_channels(const forward_walk *walk, int at, int n) {
    const forward_batch *batch = walk->f->batch;
    for (int i = 0; i < batch->sequence_count; i++)
        forward_conv_run(walk, &batch->sequences[i], at, n);
}

static void forward_short_conv(forward_walk *walk) {
    forward_cpu_state *f = walk->f;
    const plan_layer *layer = &f->model->plan.layers[walk->layer];
    const int hidden = f->model->shape.hidden;
    const float *x = forward_norm(walk, layer->parts[PLAN_MIXER_NORM].values, NULL,
                                  f->batch->row_count);
    linear_job in = forward_job(f, &layer->weights[PLAN_CONV_IN], x, f->mixed, false);
    linear_job out = forward_job(f, &layer->weights[PLAN_CONV_OUT], f->normed, f->h, true);
    forward_product(walk, &in, 5);
    for (int i = forward_take(walk); i < (hidden + FORWARD_CHANNELS - 1) / FORWARD_CHANNELS;
         i = forward_take(walk)) {
        int at = i * FORWARD_CHANNELS;
        forward_conv_channels(walk, at, hidden - at < FORWARD_CHANNELS ? hidden - at
                                                                       : FORWARD_CHANNELS);
    }
    forward_meet(walk);
    forward_product(walk, &out, 4);
}

/* The taps of all layers as simd conv reads them: [layer][tap, and a bias of zeros][channel]. */
static void forward_fill_taps(forward_cpu_state *f) {
    const int hidden = f->model->shape.hidden, taps = f->model->shape.conv_taps;
    for (int i = 0; i < f->model->shape.layers; i++) {
        const plan_layer *layer = &f->model->plan.layers[i];
        float *to = f->taps + (int64_t)layer->state * (taps + 1) * hidden;
        for (int c = 0; layer->mixer == PLAN_SHORT_CONV && c < hidden; c++)
            for (int j = 0; j < taps; j++)
                to[j * hidden + c] = layer->parts[PLAN_CONV_TAPS].values[c * taps + j];
    }
}

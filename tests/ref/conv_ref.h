/* conv_ref: the short convolution and its metadata as double-precision plain loops, written from
 * runtime_ops.h alone. Types: 1 f32, 2 f16, 3 bf16. */
#ifndef CONV_REF_H
#define CONV_REF_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "f16_ref.h"
#include "quick.h"

QUICK int ref_conv_bytes(int type) { return type == 1 ? 4 : 2; }

QUICK double ref_conv_get(const void *data, int type, int64_t i) {
    uint32_t bits;
    float x;
    if (type == 1) return (double)((const float *)data)[i];
    if (type == 2) return ref_f16(((const uint16_t *)data)[i]);
    bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}

/* Rounded to nearest even; x is no NaN. */
QUICK void ref_conv_put(void *data, int type, int64_t i, double x) {
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (type == 1) ((float *)data)[i] = f;
    else if (type == 2) /* the sign apart, for -0 */
        ((uint16_t *)data)[i] = (uint16_t)(ref_to_f16(fabs((double)f)) | (bits >> 16 & 0x8000u));
    else {
        uint32_t low = bits & 0xffffu, up = low > 0x8000u || (low == 0x8000u && (bits >> 16 & 1));
        ((uint16_t *)data)[i] = (uint16_t)((bits >> 16) + up);
    }
}

QUICK double ref_conv_round(int type, double x) {
    float room;
    ref_conv_put(&room, type, 0, x);
    return ref_conv_get(&room, type, 0);
}

typedef struct ref_conv {
    int type, weight_type, width, channels, silu;
    const void *x, *gate_in, *gate_out; /* rows of `stride` elements; gates may be NULL */
    int64_t stride;
    const void *weight, *bias; /* [channels, width], [channels] or NULL */
} ref_conv;

/* u of token t of a sequence that begins at row `first`; state [width - 1, channels] or NULL: zeros. */
QUICK double ref_conv_u(const ref_conv *r, const void *state, int first, int t, int c) {
    double x;
    if (t < 0) {
        if (!state) return 0;
        return ref_conv_get(state, r->type, (int64_t)(r->width - 1 + t) * r->channels + c);
    }
    x = ref_conv_get(r->x, r->type, (first + t) * r->stride + c);
    if (!r->gate_in) return x;
    x *= ref_conv_get(r->gate_in, r->type, (first + t) * r->stride + c);
    return ref_conv_round(r->type, x);
}

QUICK double ref_conv_out(const ref_conv *r, const void *state, int first, int t, int c) {
    double y = r->bias ? ref_conv_get(r->bias, r->weight_type, c) : 0;
    for (int j = 0; j < r->width; j++)
        y += ref_conv_get(r->weight, r->weight_type, (int64_t)c * r->width + j) *
             ref_conv_u(r, state, first, t - (r->width - 1) + j, c);
    if (r->silu) y = y / (1 + exp(-y));
    if (r->gate_out) y *= ref_conv_get(r->gate_out, r->type, (first + t) * r->stride + c);
    return y;
}

/* The state after `count` tokens into out [width - 1, channels], which may not be `state`. */
QUICK void ref_conv_state(const ref_conv *r, const void *state, int first, int count, void *out) {
    for (int j = 0; j < r->width - 1; j++)
        for (int c = 0; c < r->channels; c++)
            ref_conv_put(out, r->type, (int64_t)j * r->channels + c,
                         ref_conv_u(r, state, first, count - (r->width - 1) + j, c));
}

/* ---- metadata: lists that grow, one request after the other ---- */

typedef struct ref_metadata {
    int counts[8], chunk_count;
    int *sequence, *offset, *initial, *decode, *prompt, *order;
} ref_metadata;

/* Arrays of `room` ints each for the chunks, of `live` for the rest; nothing padded. */
QUICK void ref_conv_metadata(const int32_t *cu, const int32_t *lens, const int32_t *slots, int live,
                              int block, int few, ref_metadata *m) {
    int at = 0, behind = 0, split = 0;
    m->chunk_count = 0;
    for (int r = 0; r < live; r++) {
        int tokens = cu[r + 1] - cu[r];
        if (!behind && tokens > few) behind = 1, split = r;
        m->initial[r] = lens ? lens[r] - tokens > 0 : 0;
        m->decode[r] = behind || tokens == 0 ? -1 : slots ? slots[r] : r;
        m->prompt[r] = !behind ? -1 : slots ? slots[r] : r;
        for (int part = 0; behind && part * block < tokens; part++) {
            m->sequence[m->chunk_count] = r;
            m->offset[m->chunk_count++] = part;
        }
    }
    if (!behind) split = live;
    for (int r = 0; r < live; r++) if (cu[r + 1] - cu[r] <= few) m->order[at++] = r;
    m->counts[7] = at == split;
    for (int r = 0; r < live; r++) if (cu[r + 1] - cu[r] > few) m->order[at++] = r;
    m->counts[0] = split, m->counts[1] = live - split;
    m->counts[2] = cu[split] - cu[0], m->counts[3] = cu[live] - cu[split];
    m->counts[4] = m->chunk_count, m->counts[5] = block, m->counts[6] = live;
}

#endif

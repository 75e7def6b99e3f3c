/* abi: the parameters of kernels in conv/ (see abi.h). */
#ifndef CAIRN_ABI_CONV_H
#define CAIRN_ABI_CONV_H
#ifndef CAIRN_ABI_H /* which includes all in order */
#include "abi/base.h"
#endif

/* conv/short_conv.cu; K is the width, T a cairn_type of x, the gates, out, state and snapshots */
typedef struct short_conv_params {
    const void *x, *gate_in, *gate_out; /* [tokens, channels], gates may be NULL */
    const void *weight, *bias;          /* [channels, K], [channels] or NULL */
    void *out;                          /* [tokens, channels] */
    void *state;                        /* [slots, K - 1, channels], oldest first */
    void *snapshots;                    /* [sequences, K - 1 + snapshot_tokens, channels] or NULL */
    const int32_t *cu_seqlens;          /* [sequences + 1], or NULL: sequence s is token s */
    const int32_t *state_indices;       /* [sequences] or NULL: s */
    const int32_t *has_initial;         /* [sequences] or NULL: reads_state for all */
    const int32_t *chunk_sequences;     /* [chunks], a dense prefix, then -1 */
    const int32_t *chunk_offsets;       /* [chunks] chunk of its sequence */
    cairn_error_word *error;
    int64_t x_stride, gate_in_stride, gate_out_stride, out_stride; /* elements a row */
    int32_t tokens, channels, sequences, slots;
    int32_t chunks, block_tokens, snapshot_tokens, reserved_slots;
    int32_t weight_is_f32, silu, reads_state, pad;
} short_conv_params;

typedef struct short_conv_restore_params {
    const void *snapshots;        /* [sequences, rows + snapshot_tokens, row_bytes] */
    const int32_t *accepted;      /* [sequences] tokens */
    const int32_t *state_indices; /* [sequences] or NULL: s */
    void *state;                  /* [slots, rows, row_bytes] */
    cairn_error_word *error;
    int64_t row_bytes;
    int32_t rows, snapshot_tokens, slots, reserved_slots;
} short_conv_restore_params;

/* conv/metadata.cu */
typedef struct short_conv_metadata_params {
    const int32_t *cu_seqlens;  /* [requests + 1] */
    const int32_t *seq_lens;    /* [requests], or NULL: no request has a context */
    const int32_t *slots;       /* [requests] at slots_stride, or NULL: r */
    const int32_t *live;        /* [1] or NULL: requests */
    int32_t *counts;            /* [8], a CAIRN_CONV_ each, or NULL */
    int32_t *has_initial;       /* [capacity] or NULL */
    int32_t *decode_indices;    /* [capacity] or NULL */
    int32_t *prompt_indices;    /* [capacity] or NULL */
    int32_t *order;             /* [capacity] or NULL */
    int32_t *chunk_sequences;   /* [chunk_capacity] */
    int32_t *chunk_offsets;     /* [chunk_capacity] */
    cairn_error_word *error;
    int64_t slots_stride;
    int32_t requests, capacity, chunk_capacity;
    int32_t block_tokens, decode_tokens, pad;
} short_conv_metadata_params;

#endif

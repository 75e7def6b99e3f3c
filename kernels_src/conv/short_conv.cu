/* short_conv: causal depthwise convolution over K = WIDTH inputs, with state (the contract is in
 * runtime_ops.h).
 *
 *   u = gate_in * x, rounded to the element type;  y = bias[c] + sum over j of w[c, j] * u[t-K+1+j]
 *   in ascending j, each product and sum rounded, so that all backends agree;  out = gate_out * y
 *
 * short_conv          prompts, in chunks of block_tokens of one sequence. The window before a chunk
 *                     comes from x, for chunk 0 from the state; chunk 0 also writes the new state,
 *                     so that no other block reads what is written. block_tokens >= K - 1.
 *                     grid (any, slabs of channels): a block takes every grid-th chunk of the list
 * short_conv_update   short sequences, a block each; grid (sequences, slabs)
 *
 * A thread owns VALUES neighbouring channels and streams over the tokens, its window in registers.
 * Measured: half as many channels a thread and twice the threads beat 16-byte loads, two batches of
 * loads in turn, and rings in shared memory; nothing in the sums may branch.
 * Constants  CAIRN_TYPE 1 f32, 2 f16, 3 bf16; CAIRN_WIDTH 2 to 8; CAIRN_VALUES 1, or 4 where all
 *            rows are aligned to 16 bytes; CAIRN_GATES 1: gate_in, 2: gate_out, 3: both;
 *            CAIRN_SILU 1: of y
 * Launch     block up to 256, a multiple of 32
 * Oracle     tests/ref/conv_ref.h
 * matrix: CAIRN_TYPE=3 CAIRN_WIDTH=3 CAIRN_VALUES=4 CAIRN_GATES=0 CAIRN_SILU=0
 * matrix: CAIRN_TYPE=3 CAIRN_WIDTH=4 CAIRN_VALUES=4 CAIRN_GATES=0 CAIRN_SILU=1
 * matrix: CAIRN_TYPE=2 CAIRN_WIDTH=4 CAIRN_VALUES=4 CAIRN_GATES=3 CAIRN_SILU=0
 * matrix: CAIRN_TYPE=1 CAIRN_WIDTH=4 CAIRN_VALUES=4 CAIRN_GATES=3 CAIRN_SILU=1
 * matrix: CAIRN_TYPE=1 CAIRN_WIDTH=8 CAIRN_VALUES=4 CAIRN_GATES=3 CAIRN_SILU=1
 * matrix: CAIRN_TYPE=3 CAIRN_WIDTH=8 CAIRN_VALUES=4 CAIRN_GATES=3 CAIRN_SILU=0
 * matrix: CAIRN_TYPE=1 CAIRN_WIDTH=8 CAIRN_VALUES=1 CAIRN_GATES=1 CAIRN_SILU=1
 * matrix: CAIRN_TYPE=2 CAIRN_WIDTH=2 CAIRN_VALUES=1 CAIRN_GATES=2 CAIRN_SILU=0 */
#include "device/common.cuh"
#include "abi/conv.h"

#define WIDTH CAIRN_WIDTH
#define KEPT (CAIRN_WIDTH - 1)
#define VALUES CAIRN_VALUES
/* Tokens whose loads are in flight together; the rest of the registers holds weights and window. */
#define AHEAD ((CAIRN_GATES ? 4 : 8) / (CAIRN_TYPE == 1 || WIDTH > 4 ? 2 : 1))
/* Blocks in an SM. The few tokens of an update want all blocks at once, and less ahead. */
#define MIN_BLOCKS (CAIRN_TYPE == 1 || WIDTH > 4 || CAIRN_GATES == 3 ? 2 : 3)
#define UPDATE_AHEAD (AHEAD / 2)
#define UPDATE_BLOCKS (CAIRN_TYPE == 1 || WIDTH > 4 ? 2 : 4)

#if CAIRN_TYPE == 1
typedef float element;
#elif CAIRN_TYPE == 2
typedef f16 element;
#else
typedef bf16 element;
#endif

struct alignas(VALUES * sizeof(element)) pack { element v[VALUES]; };
struct lanes { float v[VALUES]; };
struct taps { float w[WIDTH][VALUES], bias[VALUES]; };
struct window { lanes u[KEPT]; }; /* the inputs before the next token, oldest first */
struct token_in { pack x, gate_in, gate_out; };

/* ---- memory ---- */

/* Halves are converted two at a time. */
#define PAIRS (CAIRN_TYPE != 1 && VALUES % 2 == 0)
struct pairs { uint32_t v[(VALUES + 1) / 2]; };

CAIRN_INLINE pack pack_lanes(const lanes &values) {
#if PAIRS
    pairs to;
#pragma unroll
    for (int c = 0; c < VALUES; c += 2)
        to.v[c / 2] = CAIRN_TYPE == 2 ? pack_f16x2(values.v[c], values.v[c + 1])
                                      : pack_bf16x2(values.v[c], values.v[c + 1]);
    return bit_cast<pack>(to);
#else
    pack to;
#pragma unroll
    for (int c = 0; c < VALUES; c++) to.v[c] = from_f32<element>(values.v[c]);
    return to;
#endif
}

CAIRN_INLINE lanes unpack(const pack &v) {
    lanes out;
#if PAIRS
    const pairs from = bit_cast<pairs>(v);
#pragma unroll
    for (int c = 0; c < VALUES; c += 2) {
        f32x2 two = CAIRN_TYPE == 2 ? unpack_f16x2(from.v[c / 2]) : unpack_bf16x2(from.v[c / 2]);
        out.v[c] = two.x, out.v[c + 1] = two.y;
    }
#else
#pragma unroll
    for (int c = 0; c < VALUES; c++) out.v[c] = to_f32(v.v[c]);
#endif
    return out;
}

CAIRN_INLINE void store_pack(void *row, int64_t at, const lanes &values) {
    const pack v = pack_lanes(values);
    element *to = (element *)row + at;
    if constexpr (sizeof(pack) == 16) *(u32x4 *)to = bit_cast<u32x4>(v);
    else if constexpr (sizeof(pack) == 8) *(u32x2 *)to = bit_cast<u32x2>(v);
    else *(pack *)to = v;
}

CAIRN_INLINE pack load_row(const void *rows, int64_t at) {
    return load_constant((const pack *)((const element *)rows + at));
}

/* The state is written by this kernel too, after it was read. */
CAIRN_INLINE lanes load_state(const short_conv_params &p, int slot, int row, int channel) {
    int64_t at = ((int64_t)slot * KEPT + row) * p.channels + channel;
    return unpack(load_early((const pack *)((const element *)p.state + at)));
}

CAIRN_INLINE void store_state(const short_conv_params &p, int slot, int row, int channel,
                              const lanes &u) {
    store_pack(p.state, ((int64_t)slot * KEPT + row) * p.channels + channel, u);
}

/* `count` neighbouring values; all but single ones are aligned to 8 bytes. */
template <class T, int count>
CAIRN_INLINE void load_many(const void *from, int64_t at, float *out) {
    constexpr int bytes = count * (int)sizeof(T);
    constexpr int each = VALUES == 1 ? (int)sizeof(T) : bytes % 16 == 0 ? 16 : 8;
    constexpr int n = each / (int)sizeof(T);
    struct alignas(each) part { T v[n]; };
#pragma unroll
    for (int i = 0; i < count / n; i++) {
        part w = load_constant((const part *)((const T *)from + at) + i);
#pragma unroll
        for (int j = 0; j < n; j++) out[i * n + j] = to_f32(w.v[j]);
    }
}

CAIRN_INLINE taps load_taps(const short_conv_params &p, int channel) {
    taps t;
    float w[VALUES * WIDTH];
    const int64_t at = (int64_t)channel * WIDTH;
    if (p.weight_is_f32) load_many<float, VALUES * WIDTH>(p.weight, at, w);
    else load_many<element, VALUES * WIDTH>(p.weight, at, w);
#pragma unroll
    for (int c = 0; c < VALUES; c++) t.bias[c] = 0.0f;
    if (p.bias && p.weight_is_f32) load_many<float, VALUES>(p.bias, channel, t.bias);
    else if (p.bias) load_many<element, VALUES>(p.bias, channel, t.bias);
#pragma unroll
    for (int j = 0; j < WIDTH; j++)
#pragma unroll
        for (int c = 0; c < VALUES; c++) t.w[j][c] = w[c * WIDTH + j];
    return t;
}

/* ---- one token ---- */

CAIRN_INLINE token_in load_token(const short_conv_params &p, int64_t token, int channel) {
    token_in in;
    in.x = load_row(p.x, token * p.x_stride + channel);
    if (CAIRN_GATES & 1) in.gate_in = load_row(p.gate_in, token * p.gate_in_stride + channel);
    if (CAIRN_GATES & 2) in.gate_out = load_row(p.gate_out, token * p.gate_out_stride + channel);
    return in;
}

/* What enters the sums: rounded, so that it is the same when it comes back out of the state. */
CAIRN_INLINE lanes gated(const pack &x, const pack &gate) {
    lanes u = unpack(x);
    if (CAIRN_GATES & 1) {
        lanes g = unpack(gate);
#pragma unroll
        for (int c = 0; c < VALUES; c++) u.v[c] = mul_f32(g.v[c], u.v[c]);
        u = unpack(pack_lanes(u));
    }
    return u;
}

CAIRN_INLINE lanes load_input(const short_conv_params &p, int64_t token, int channel) {
    pack x = load_row(p.x, token * p.x_stride + channel), gate = x;
    if (CAIRN_GATES & 1) gate = load_row(p.gate_in, token * p.gate_in_stride + channel);
    return gated(x, gate);
}

CAIRN_INLINE void finish_token(const short_conv_params &p, const taps &t, window &w, const lanes &u,
                               const token_in &in, int64_t token, int channel) {
    lanes y;
#pragma unroll
    for (int c = 0; c < VALUES; c++) {
        float sum = t.bias[c];
#pragma unroll
        for (int j = 0; j < KEPT; j++) sum = add_f32(sum, mul_f32(t.w[j][c], w.u[j].v[c]));
        sum = add_f32(sum, mul_f32(t.w[KEPT][c], u.v[c]));
        y.v[c] = CAIRN_SILU ? mul_f32(sum, rcp_fast(1.0f + exp_fast(-sum))) : sum;
    }
    if (CAIRN_GATES & 2) {
        lanes g = unpack(in.gate_out);
#pragma unroll
        for (int c = 0; c < VALUES; c++) y.v[c] = mul_f32(y.v[c], g.v[c]);
    }
    store_pack(p.out, token * p.out_stride + channel, y);
#pragma unroll
    for (int j = 0; j + 1 < KEPT; j++) w.u[j] = w.u[j + 1];
    w.u[KEPT - 1] = u;
}

/* `count` tokens from `token` on; their inputs also go to snapshots[at_snapshot...] if >= 0. */
template <int count>
CAIRN_INLINE void run_tokens(const short_conv_params &p, const taps &t, window &w, int64_t token,
                             int channel, int64_t at_snapshot) {
    token_in in[count];
#pragma unroll
    for (int i = 0; i < count; i++) in[i] = load_token(p, token + i, channel);
#pragma unroll
    for (int i = 0; i < count; i++) {
        lanes u = gated(in[i].x, in[i].gate_in);
        if (at_snapshot >= 0)
            store_pack(p.snapshots, at_snapshot + (int64_t)i * p.channels, u);
        finish_token(p, t, w, u, in[i], token + i, channel);
    }
}

/* ---- sequences ---- */

struct sequence { int first, count, slot; bool valid, initial; };

/* Invalid: PAD, or out of range, which is reported. */
CAIRN_INLINE sequence find_sequence(const short_conv_params &p, int s, bool reports) {
    sequence q = {s, 1, s, false, false};
    if (p.state_indices) q.slot = p.state_indices[s];
    if (p.cu_seqlens) {
        q.first = p.cu_seqlens[s];
        q.count = (int)((uint32_t)p.cu_seqlens[s + 1] - (uint32_t)q.first);
    }
    q.initial = p.has_initial ? p.has_initial[s] != 0 : p.reads_state != 0;
    if (q.slot == -1 || (q.slot >= 0 && q.slot < p.reserved_slots)) return q;
    bool slot_fits = q.slot >= 0 && q.slot < p.slots;
    bool fits = q.count >= 0 && q.first >= 0 && q.first <= p.tokens - q.count;
    if (reports && !slot_fits) report_error(p.error, CAIRN_FAULT_ID, s, q.slot);
    else if (reports && !fits) report_error(p.error, CAIRN_FAULT_LENGTH, s, q.count);
    q.valid = slot_fits && fits;
    return q;
}

CAIRN_INLINE lanes prior_row(const short_conv_params &p, const sequence &q, int row, int channel) {
    if (q.initial) return load_state(p, q.slot, row, channel);
    lanes zero;
#pragma unroll
    for (int c = 0; c < VALUES; c++) zero.v[c] = 0.0f;
    return zero;
}

/* The window before the token `first` of a sequence, which is 0 or at least KEPT. */
CAIRN_INLINE window load_window(const short_conv_params &p, const sequence &q, int first,
                                int channel) {
    window w;
    if (first == 0) {
#pragma unroll
        for (int j = 0; j < KEPT; j++) w.u[j] = prior_row(p, q, j, channel);
    } else {
#pragma unroll
        for (int j = 0; j < KEPT; j++)
            w.u[j] = load_input(p, q.first + first - KEPT + j, channel);
    }
    return w;
}

/* The last KEPT of (prior ++ the sequence's inputs). Row j takes a row above it, so that ascending
 * rows read none that is overwritten. */
CAIRN_INLINE void write_new_state(const short_conv_params &p, const sequence &q, int channel) {
#pragma unroll
    for (int j = 0; j < KEPT; j++) {
        int t = q.count - KEPT + j;
        if (t >= 0) store_state(p, q.slot, j, channel, load_input(p, q.first + t, channel));
        else store_state(p, q.slot, j, channel, prior_row(p, q, KEPT + t, channel));
    }
}

CAIRN_INLINE void run_chunk(const short_conv_params &p, const taps &taps_, const sequence &q,
                            int first, int channel) {
    const int last = min_of(first + p.block_tokens, q.count);
    window w = load_window(p, q, first, channel);
    if (first == 0) write_new_state(p, q, channel);
    int t = first;
#pragma unroll 1
    for (; t + AHEAD <= last; t += AHEAD)
        run_tokens<AHEAD>(p, taps_, w, q.first + t, channel, -1);
#pragma unroll 1
    for (; t < last; t++) run_tokens<1>(p, taps_, w, q.first + t, channel, -1);
}

CAIRN_KERNEL(short_conv, 256, MIN_BLOCKS, short_conv_params) {
    const int channel = (block_id_y() * block_threads() + thread_id()) * VALUES;
    const bool reports = block_id_y() == 0 && thread_id() == 0;
    if (channel >= p.channels) return;
    const taps weights = load_taps(p, channel);
    for (int c = block_id(); c < p.chunks; c += grid_blocks()) {
        const int s = p.chunk_sequences[c], offset = p.chunk_offsets[c];
        if (s < 0) return; /* the list's end */
        if (s >= p.sequences || offset < 0) {
            if (reports) report_error(p.error, CAIRN_FAULT_ID, c, s >= p.sequences ? s : offset);
            continue;
        }
        const sequence q = find_sequence(p, s, reports);
        if (!q.valid || q.count == 0) continue;
        if (offset <= (q.count - 1) / p.block_tokens)
            run_chunk(p, weights, q, offset * p.block_tokens, channel);
        else if (reports) report_error(p.error, CAIRN_FAULT_LENGTH, c, offset);
    }
}

CAIRN_KERNEL(short_conv_update, 256, UPDATE_BLOCKS, short_conv_params) {
    const int channel = (block_id_y() * block_threads() + thread_id()) * VALUES, s = block_id();
    if (channel >= p.channels) return;
    const taps weights = load_taps(p, channel);
    sequence q = find_sequence(p, s, block_id_y() == 0 && thread_id() == 0);
    if (!q.valid || (q.count == 0 && !p.snapshots)) return;
    int64_t at = -1;
    window w = load_window(p, q, 0, channel);
    if (p.snapshots) {
        if (q.count > p.snapshot_tokens) {
            if (block_id_y() == 0 && thread_id() == 0)
                report_error(p.error, CAIRN_FAULT_LENGTH, s, q.count);
            return;
        }
        at = (int64_t)s * (KEPT + p.snapshot_tokens) * p.channels + channel;
#pragma unroll
        for (int j = 0; j < KEPT; j++, at += p.channels) store_pack(p.snapshots, at, w.u[j]);
    }
    int t = 0;
#pragma unroll 1
    for (; t + UPDATE_AHEAD <= q.count; t += UPDATE_AHEAD) {
        run_tokens<UPDATE_AHEAD>(p, weights, w, q.first + t, channel, at);
        if (at >= 0) at += UPDATE_AHEAD * (int64_t)p.channels;
    }
#pragma unroll 1
    for (; t < q.count; t++) {
        run_tokens<1>(p, weights, w, q.first + t, channel, at);
        if (at >= 0) at += p.channels;
    }
    if (q.count == 0) return; /* a state that is not read may not be written either */
#pragma unroll
    for (int j = 0; j < KEPT; j++) store_state(p, q.slot, j, channel, w.u[j]);
}

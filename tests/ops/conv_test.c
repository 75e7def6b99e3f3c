/* The short convolution and its metadata against plain double loops (tests/ref/conv_ref.h), on the
 * CPU and, where there is one, on the GPU: random batches of awkward lengths, states that must not
 * be read and rows that must not be written poisoned, faults, staging, and no call that waits.
 * emulated: asan race */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "ref/conv_ref.h"
#include "tap.h"
#include "backends.h"

enum { MOST_SEQUENCES = 24, POISON = 0xff };

static uint64_t seed;
static cairn_runtime *rt;
static const char *where;
static bool small; /* kernels are emulated: fewer and smaller cases */

static int between(int low, int high) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return low + (int)((seed >> 33) % (uint64_t)(high - low + 1));
}

/* ---- tensors with a host copy -----------------------------------------------------------------*/

typedef struct both { cairn_tensor *t; void *host; size_t bytes; } both;

static both make(cairn_type type, int rank, int64_t a, int64_t b, int64_t c) {
    both m;
    int64_t shape[3];
    shape[0] = a, shape[1] = b, shape[2] = c;
    m.bytes = cairn_type_bytes(type);
    for (int i = 0; i < rank; i++) m.bytes *= (size_t)shape[i];
    m.host = malloc(m.bytes + 1);
    memset(m.host, POISON, m.bytes + 1);
    if (cairn_tensor_new(rt, type, rank, shape, &m.t)) printf("# %s\n", cairn_last_error(rt));
    return m;
}
static void upload(both *m) { cairn_tensor_write(rt, m->t, m->host, m->bytes); }
static void download(both *m) { cairn_tensor_read(rt, m->t, m->host, m->bytes); }
static void drop(both *m) { cairn_tensor_free(rt, m->t); free(m->host); }
static int32_t *ints(both *m) { return (int32_t *)m->host; }
static void fill(both *m, int type) {
    for (int64_t i = 0; i < (int64_t)m->bytes / ref_conv_bytes(type); i++)
        ref_conv_put(m->host, type, i, between(-4000, 4000) / 2048.0);
}
static bool all_poison(const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (((const uint8_t *)data)[i] != POISON) return false;
    return true;
}
static bool done(cairn_status status) {
    if (!status) status = cairn_sync(rt);
    if (status) printf("# %s: %s\n", cairn_status_name(status), cairn_last_error(rt));
    return !status;
}

/* ---- a random batch ---------------------------------------------------------------------------*/

typedef struct batch {
    int type, width, channels, sequences, slots, tokens, block, stride;
    both x, weight, bias, cu, at, initial, state, before, out;
    int64_t shape[2], strides[2];
    cairn_tensor parts[3]; /* gate_in, gate_out, x in one projection, as the layer has them */
    cairn_conv conv;
    ref_conv ref;
} batch;

static void make_parts(batch *b, bool gates) {
    b->shape[0] = b->tokens, b->shape[1] = b->channels;
    b->strides[0] = b->stride, b->strides[1] = 1;
    for (int i = 0; i < 3; i++) {
        b->parts[i] = *b->x.t;
        b->parts[i].shape = b->shape, b->parts[i].strides = b->strides;
        b->parts[i].byte_offset = gates ? (uint64_t)(i * b->channels * ref_conv_bytes(b->type)) : 0;
    }
    b->conv.x = &b->parts[2];
    b->ref.x = (char *)b->x.host + b->parts[2].byte_offset;
    if (!gates) return;
    b->conv.gate_in = &b->parts[0], b->conv.gate_out = &b->parts[1];
    b->ref.gate_in = b->x.host, b->ref.gate_out = (char *)b->x.host + b->parts[1].byte_offset;
}

/* Slots in random order; about one sequence in six is PAD. A state that is not read is poison. */
static void make_states(batch *b) {
    const size_t bytes = (size_t)((b->width - 1) * b->channels * ref_conv_bytes(b->type));
    int taken[MOST_SEQUENCES * 2] = {0};
    b->slots = b->sequences + 3;
    b->at = make(CAIRN_I32, 1, b->sequences + 2, 0, 0);
    b->initial = make(CAIRN_I32, 1, b->sequences, 0, 0);
    b->state = make((cairn_type)b->type, 3, b->slots, b->width - 1, b->channels);
    b->before = make((cairn_type)b->type, 3, b->slots, b->width - 1, b->channels);
    fill(&b->state, b->type);
    for (int s = 0; s < b->sequences; s++) {
        int slot = between(0, b->slots - 1);
        while (taken[slot]) slot = (slot + 1) % b->slots;
        taken[slot] = 1;
        ints(&b->at)[s] = between(0, 5) ? slot : -1;
        ints(&b->initial)[s] = between(0, 1);
        if (!ints(&b->initial)[s])
            memset((char *)b->state.host + (size_t)slot * bytes, POISON, bytes);
    }
    memcpy(b->before.host, b->state.host, b->state.bytes);
    upload(&b->at), upload(&b->initial), upload(&b->state);
}

static void make_batch(batch *b, int type, int width, int channels, int most, bool gates,
                       bool wide) {
    int lengths[9];
    memset(b, 0, sizeof *b);
    b->type = type, b->width = width, b->channels = channels, b->block = between(width - 1, 24);
    b->sequences = between(1, small ? 9 : MOST_SEQUENCES);
    b->cu = make(CAIRN_I32, 1, b->sequences + 1, 0, 0);
    lengths[0] = 0, lengths[1] = 1, lengths[2] = width - 1, lengths[3] = width;
    lengths[4] = b->block - 1, lengths[5] = b->block, lengths[6] = b->block + 1;
    lengths[7] = 3 * b->block, lengths[8] = 5 * b->block + 2;
    ints(&b->cu)[0] = b->tokens = between(0, 2);
    for (int s = 0; s < b->sequences; s++) {
        int n = lengths[between(0, 8)];
        ints(&b->cu)[s + 1] = b->tokens += n < most ? n : most;
    }
    b->tokens += between(1, 2); /* rows of no sequence */
    b->stride = channels * (gates ? 3 : 1);
    b->x = make((cairn_type)type, 2, b->tokens, b->stride, 0);
    b->ref.weight_type = wide ? 1 : type;
    b->weight = make((cairn_type)b->ref.weight_type, 2, channels, width, 0);
    b->bias = make((cairn_type)b->ref.weight_type, 1, channels, 0, 0);
    b->out = make((cairn_type)type, 2, b->tokens, channels, 0);
    fill(&b->x, type), fill(&b->weight, b->ref.weight_type), fill(&b->bias, b->ref.weight_type);
    upload(&b->x), upload(&b->weight), upload(&b->bias), upload(&b->out), upload(&b->cu);
    make_states(b);
    make_parts(b, gates);
    b->conv.weight = b->weight.t, b->conv.state = b->state.t, b->conv.cu_seqlens = b->cu.t;
    b->conv.state_indices = b->at.t, b->conv.has_initial = b->initial.t, b->conv.out = b->out.t;
    b->ref.type = type, b->ref.width = width, b->ref.channels = channels, b->ref.stride = b->stride;
    b->ref.weight = b->weight.host;
}

static void with_bias(batch *b) { b->conv.bias = b->bias.t, b->ref.bias = b->bias.host; }
static void with_silu(batch *b) { b->conv.activation = CAIRN_ACTIVATION_SILU, b->ref.silu = 1; }

static void drop_batch(batch *b) {
    drop(&b->x), drop(&b->weight), drop(&b->bias), drop(&b->cu), drop(&b->at), drop(&b->initial);
    drop(&b->state), drop(&b->before), drop(&b->out);
}

/* ---- checks -----------------------------------------------------------------------------------*/

static const void *state_before(const batch *b, int slot) {
    return (char *)b->before.host + b->before.bytes / (size_t)b->slots * (size_t)slot;
}

static bool check_rows(const batch *b, int s) {
    const int first = ints((both *)&b->cu)[s], last = ints((both *)&b->cu)[s + 1];
    const int slot = ints((both *)&b->at)[s];
    const void *prior = ints((both *)&b->initial)[s] && slot >= 0 ? state_before(b, slot) : NULL;
    const double tolerance = b->type == 1 ? 3e-6 : b->type == 2 ? 1e-3 : 8e-3;
    for (int t = 0; t < last - first; t++)
        for (int c = 0; c < b->channels; c++) {
            int64_t at = (int64_t)(first + t) * b->channels + c;
            double want, got = ref_conv_get(b->out.host, b->type, at);
            if (slot < 0) {
                if (!all_poison((char *)b->out.host + at * ref_conv_bytes(b->type),
                                (size_t)ref_conv_bytes(b->type)))
                    return false;
                continue;
            }
            want = ref_conv_out(&b->ref, prior, first, t, c);
            if (fabs(got - want) <= tolerance * (1 + fabs(want))) continue;
            printf("# sequence %d token %d channel %d: %g, not %g\n", s, t, c, got, want);
            return false;
        }
    return true;
}

/* All of out and state: what was to be written, and nothing else. */
static bool check_batch(batch *b) {
    const size_t row = (size_t)(b->channels * ref_conv_bytes(b->type));
    const size_t bytes = b->state.bytes / (size_t)b->slots;
    char *want = (char *)malloc(b->state.bytes + 1);
    bool fine = true;
    download(&b->out), download(&b->state);
    memcpy(want, b->before.host, b->state.bytes);
    for (int s = 0; s < b->sequences && fine; s++) {
        int first = ints(&b->cu)[s], count = ints(&b->cu)[s + 1] - first, slot = ints(&b->at)[s];
        fine = check_rows(b, s);
        if (slot >= 0 && count > 0)
            ref_conv_state(&b->ref, ints(&b->initial)[s] ? state_before(b, slot) : NULL, first,
                           count, want + (size_t)slot * bytes);
    }
    if (memcmp(want, b->state.host, b->state.bytes)) fine = false, puts("# a state differs");
    if (!all_poison(b->out.host, row * (size_t)ints(&b->cu)[0]) ||
        !all_poison((char *)b->out.host + row * (size_t)ints(&b->cu)[b->sequences],
                    row * (size_t)(b->tokens - ints(&b->cu)[b->sequences])))
        fine = false, puts("# a row of no sequence was written");
    free(want);
    return fine;
}

/* ---- prompts ----------------------------------------------------------------------------------*/

static cairn_status run_prompts(batch *b, bool listed) {
    int room = b->tokens / b->block + b->sequences + between(0, 5);
    both chunks = make(CAIRN_I32, 1, room, 0, 0), offsets = make(CAIRN_I32, 1, room, 0, 0);
    cairn_short_conv_args a;
    cairn_status status = CAIRN_OK;
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.block_tokens = b->block, a.conv = b->conv;
    if (listed) {
        cairn_short_conv_metadata_args m;
        memset(&m, 0, sizeof m);
        m.struct_size = sizeof m, m.block_tokens = b->block, m.decode_tokens = -1;
        m.cu_seqlens = b->cu.t, m.chunk_sequences = chunks.t, m.chunk_offsets = offsets.t;
        status = cairn_short_conv_metadata(rt, &m);
        a.chunk_sequences = chunks.t, a.chunk_offsets = offsets.t;
    }
    if (!status) status = cairn_short_conv(rt, &a);
    if (!status) status = cairn_sync(rt);
    drop(&chunks), drop(&offsets);
    return status;
}

static void test_prompts(int type, int width, int channels, bool gates, bool wide, int extras) {
    batch b;
    bool fine;
    make_batch(&b, type, width, channels, 1000, gates, wide);
    if (extras & 1) with_bias(&b);
    if (extras & 2) with_silu(&b);
    fine = done(run_prompts(&b, extras & 4));
    tap_ok(fine && check_batch(&b),
           "short_conv on %s: %s, width %d, %d channels, %d sequences of %d tokens, blocks of %d%s%s%s%s%s",
           where, cairn_type_name((cairn_type)type), width, channels, b.sequences, b.tokens, b.block,
           gates ? ", gates" : "", wide ? ", f32 weights" : "", extras & 1 ? ", bias" : "",
           extras & 2 ? ", silu" : "", extras & 4 ? ", listed" : "");
    drop_batch(&b);
}

/* One sequence in random pieces, prompts and decode steps mixed, gives the same bits as at once. */
static void test_pieces(int type, int width) {
    batch b;
    int tokens, at = 0, pieces = 0;
    void *whole;
    bool fine;
    make_batch(&b, type, width, 40, 30, true, true);
    tokens = b.tokens;
    b.sequences = 1;
    ints(&b.cu)[0] = 0, ints(&b.cu)[1] = tokens, ints(&b.at)[0] = 1, ints(&b.initial)[0] = 0;
    b.cu.t->shape[0] = 2;
    b.cu.bytes = 8;
    upload(&b.cu), upload(&b.at), upload(&b.initial);
    fine = done(run_prompts(&b, true));
    download(&b.out), download(&b.state);
    whole = malloc(b.out.bytes + b.state.bytes);
    memcpy(whole, b.out.host, b.out.bytes);
    memcpy((char *)whole + b.out.bytes, b.state.host, b.state.bytes);
    memset(b.out.host, POISON, b.out.bytes);
    upload(&b.out), upload(&b.before);
    memcpy(b.state.host, b.before.host, b.state.bytes), upload(&b.state);
    while (at < tokens && fine) {
        int n = between(0, 3) ? between(0, 3) : between(4, 40);
        if (n > tokens - at) n = tokens - at;
        ints(&b.cu)[0] = at, ints(&b.cu)[1] = at + n, ints(&b.initial)[0] = at > 0;
        upload(&b.cu), upload(&b.initial);
        if (n < 4 && between(0, 1)) {
            cairn_short_conv_update_args a;
            memset(&a, 0, sizeof a);
            a.struct_size = sizeof a, a.conv = b.conv;
            fine = done(cairn_short_conv_update(rt, &a));
        } else {
            fine = done(run_prompts(&b, false));
        }
        at += n, pieces++;
    }
    download(&b.out), download(&b.state);
    tap_ok(fine && !memcmp(whole, b.out.host, b.out.bytes) &&
               !memcmp((char *)whole + b.out.bytes, b.state.host, b.state.bytes),
           "short_conv on %s: %s, width %d: %d tokens in %d pieces, the same bits as at once", where,
           cairn_type_name((cairn_type)type), width, tokens, pieces);
    b.cu.t->shape[0] = 1; /* as it is freed it does not matter */
    free(whole), drop_batch(&b);
}

/* ---- decode steps -----------------------------------------------------------------------------*/

static bool check_snapshots(batch *b, both *snapshots, int most) {
    const int rows = b->width - 1 + most, kept = b->width - 1;
    const size_t row = (size_t)(b->channels * ref_conv_bytes(b->type));
    bool fine = true;
    download(snapshots);
    for (int s = 0; s < b->sequences && fine; s++) {
        int first = ints(&b->cu)[s], count = ints(&b->cu)[s + 1] - first, slot = ints(&b->at)[s];
        char *at = (char *)snapshots->host + row * (size_t)(s * rows);
        int used = slot < 0 ? 0 : kept + count;
        const void *prior = slot >= 0 && ints(&b->initial)[s] ? state_before(b, slot) : NULL;
        char *want = (char *)malloc(row * (size_t)kept);
        for (int t = 0; used && t <= count && fine; t++) {
            ref_conv_state(&b->ref, prior, first, t, want);
            fine = !memcmp(at + row * (size_t)t, want, row * (size_t)kept);
        }
        fine = fine && all_poison(at + row * (size_t)used, row * (size_t)(rows - used));
        free(want);
    }
    return fine;
}

/* Back to the state after a random number of accepted tokens; skipped sequences stay. */
static bool check_restore(batch *b, both *snapshots, int most) {
    const size_t bytes = b->state.bytes / (size_t)b->slots;
    both accepted = make(CAIRN_I32, 1, b->sequences, 0, 0);
    char *want = (char *)malloc(b->state.bytes);
    cairn_short_conv_restore_args a;
    bool fine;
    download(&b->state);
    memcpy(want, b->state.host, b->state.bytes);
    for (int s = 0; s < b->sequences; s++) {
        int first = ints(&b->cu)[s], count = ints(&b->cu)[s + 1] - first, slot = ints(&b->at)[s];
        ints(&accepted)[s] = between(0, count < most ? count : most);
        if (slot >= 0)
            ref_conv_state(&b->ref, ints(&b->initial)[s] ? state_before(b, slot) : NULL, first,
                           ints(&accepted)[s], want + (size_t)slot * bytes);
    }
    upload(&accepted), upload(&b->at);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.snapshots = snapshots->t, a.accepted = accepted.t;
    a.state_indices = b->at.t, a.state = b->state.t;
    fine = done(cairn_short_conv_restore(rt, &a));
    download(&b->state);
    fine = fine && !memcmp(want, b->state.host, b->state.bytes);
    free(want), drop(&accepted);
    return fine;
}

/* A step in which no sequence has a token: x has no row, and what was to be restored is what was. */
static void without_rows(batch *b) {
    memset(b->cu.host, 0, b->cu.bytes);
    upload(&b->cu);
    drop(&b->out);
    b->out = make((cairn_type)b->type, 2, 0, b->channels, 0);
    b->conv.out = b->out.t;
    b->shape[0] = b->tokens = 0;
}

/* most 0: without rows. */
static void test_update(int type, int width, int channels, bool gates, int most) {
    batch b;
    both snapshots;
    cairn_short_conv_update_args a;
    bool fine;
    make_batch(&b, type, width, channels, most, gates, false);
    if (!most) without_rows(&b), most = 1;
    snapshots = make((cairn_type)type, 3, b.sequences, width - 1 + most, channels);
    upload(&snapshots);
    with_bias(&b);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.conv = b.conv, a.snapshots = snapshots.t;
    fine = done(cairn_short_conv_update(rt, &a)) && check_batch(&b);
    tap_ok(fine && check_snapshots(&b, &snapshots, most),
           "short_conv_update on %s: %s, width %d, %d channels, up to %d tokens, snapshots", where,
           cairn_type_name((cairn_type)type), width, channels, b.tokens ? most : 0);
    tap_ok(fine && check_restore(&b, &snapshots, most),
           "short_conv_restore on %s: %s, any number of tokens accepted", where,
           cairn_type_name((cairn_type)type));
    drop(&snapshots), drop_batch(&b);
}

/* A row a sequence: no lengths, every state read, slot 0 reserved. */
static void test_rows(int type, int channels) {
    batch b;
    cairn_short_conv_update_args a;
    bool fine;
    int rows;
    make_batch(&b, type, 3, channels, 1, false, true);
    rows = b.sequences = b.tokens, b.slots = rows + 1;
    drop(&b.cu), drop(&b.at), drop(&b.initial), drop(&b.state), drop(&b.before);
    b.cu = make(CAIRN_I32, 1, rows + 1, 0, 0), b.at = make(CAIRN_I32, 1, rows, 0, 0);
    b.initial = make(CAIRN_I32, 1, rows, 0, 0);
    b.state = make((cairn_type)type, 3, rows + 1, 2, channels);
    b.before = make((cairn_type)type, 3, rows + 1, 2, channels);
    for (int s = 0; s <= rows; s++) ints(&b.cu)[s] = s;
    for (int s = 0; s < rows; s++) ints(&b.at)[s] = rows - s - 1, ints(&b.initial)[s] = 1;
    fill(&b.state, type);
    memcpy(b.before.host, b.state.host, b.state.bytes);
    upload(&b.state), upload(&b.at);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.conv = b.conv;
    a.conv.cu_seqlens = a.conv.has_initial = NULL;
    a.conv.state = b.state.t, a.conv.state_indices = b.at.t, a.conv.reserved_slots = 1;
    fine = done(cairn_short_conv_update(rt, &a));
    ints(&b.at)[rows - 1] = -1; /* what slot 0 is to be taken for */
    tap_ok(fine && check_batch(&b), "short_conv_update on %s: %s, %d rows, slot 0 reserved", where,
           cairn_type_name((cairn_type)type), rows);
    drop_batch(&b);
}

/* ---- metadata ---------------------------------------------------------------------------------*/

enum { TABLES = 7 };
static const char *const table_names[TABLES] = {"chunk_sequences", "chunk_offsets", "has_initial",
                                                "decode_indices", "prompt_indices", "order", "counts"};

typedef struct meta {
    int requests, live, capacity, room, block, few, columns;
    both cu, lens, slots, count, out[TABLES];
    cairn_short_conv_metadata_args args;
} meta;

static void draw_lengths(meta *m, bool ordered) {
    int behind = 0;
    ints(&m->count)[0] = m->live;
    ints(&m->cu)[0] = between(0, 9);
    for (int r = 0; r < m->requests; r++) {
        int few = m->few < 0 ? 0 : m->few;
        int tokens = between(0, 2) ? between(0, few) : between(0, 5 * m->block + 3);
        if (between(0, m->requests) == 0) behind = 1;
        if (ordered) tokens = behind ? few + 1 + tokens : between(0, few);
        ints(&m->cu)[r + 1] = ints(&m->cu)[r] + tokens;
        ints(&m->lens)[r] = tokens + (between(0, 1) ? between(1, 50) : 0);
        for (int i = 0; i < m->columns; i++)
            ints(&m->slots)[r * m->columns + i] = i ? -77 : between(0, 9) ? between(0, 999) : -1;
    }
}

/* The documents' golden batch when requests is 0. */
static meta make_meta(int requests, int extra, bool ordered) {
    static const int golden[] = {5, 8, 9, 0, 1};
    meta m;
    memset(&m, 0, sizeof m);
    m.requests = requests ? requests : 5;
    m.block = requests ? between(1, 20) : 8;
    m.few = requests ? between(0, 3) ? 1 : between(2, 6) : -1;
    m.live = requests && between(0, 1) ? between(0, requests) : m.requests;
    m.columns = between(1, 3), m.capacity = m.requests + extra;
    m.cu = make(CAIRN_I32, 1, m.requests + 1, 0, 0), m.lens = make(CAIRN_I32, 1, m.requests, 0, 0);
    m.slots = make(CAIRN_I32, 2, m.requests, m.columns, 0), m.count = make(CAIRN_I32, 1, 1, 0, 0);
    draw_lengths(&m, ordered);
    for (int r = 0; r < 5 && !requests; r++)
        ints(&m.cu)[r] = r ? ints(&m.cu)[r - 1] + golden[r - 1] : 0, ints(&m.cu)[5] = 23;
    for (int r = 0; r < 5 && !requests; r++) ints(&m.lens)[r] = golden[r] + (r == 2);
    m.room = (ints(&m.cu)[m.requests] - ints(&m.cu)[0]) / m.block + m.requests + extra;
    for (int i = 0; i < TABLES; i++) {
        m.out[i] = make(CAIRN_I32, 1, i < 2 ? m.room : i < 6 ? m.capacity : 8, 0, 0);
        upload(&m.out[i]);
    }
    upload(&m.cu), upload(&m.lens), upload(&m.slots), upload(&m.count);
    m.args.struct_size = sizeof m.args, m.args.block_tokens = m.block, m.args.decode_tokens = m.few;
    m.args.cu_seqlens = m.cu.t, m.args.seq_lens = m.lens.t, m.args.slots = m.slots.t;
    m.args.live = m.count.t;
    m.args.chunk_sequences = m.out[0].t, m.args.chunk_offsets = m.out[1].t;
    m.args.has_initial = m.out[2].t, m.args.decode_indices = m.out[3].t;
    m.args.prompt_indices = m.out[4].t, m.args.order = m.out[5].t, m.args.counts = m.out[6].t;
    return m;
}

static void drop_meta(meta *m) {
    drop(&m->cu), drop(&m->lens), drop(&m->slots), drop(&m->count);
    for (int i = 0; i < TABLES; i++) drop(&m->out[i]);
}

static bool same_table(const meta *m, int table, const int *want, int count, int pad) {
    const int32_t *got = (const int32_t *)m->out[table].host;
    for (int i = 0; i < (int)(m->out[table].bytes / 4); i++) {
        if (got[i] == (i < count ? want[i] : pad)) continue;
        printf("# %s[%d] = %d, not %d\n", table_names[table], i, (int)got[i],
               i < count ? want[i] : pad);
        return false;
    }
    return true;
}

static bool check_meta(meta *m) {
    ref_metadata want;
    int *memory = (int *)calloc((size_t)(2 * m->room + 4 * m->requests + 1), sizeof *memory);
    int32_t *first = (int32_t *)calloc((size_t)m->requests + 1, sizeof *first);
    bool fine;
    want.sequence = memory, want.offset = memory + m->room, want.initial = memory + 2 * m->room;
    want.decode = want.initial + m->requests, want.prompt = want.decode + m->requests;
    want.order = want.prompt + m->requests;
    for (int r = 0; r < m->requests; r++) first[r] = ints(&m->slots)[r * m->columns];
    ref_conv_metadata(ints(&m->cu), ints(&m->lens), first, m->live, m->block, m->few, &want);
    for (int i = 0; i < TABLES; i++) download(&m->out[i]);
    fine = same_table(m, 0, want.sequence, want.chunk_count, -1) &&
           same_table(m, 1, want.offset, want.chunk_count, -1) &&
           same_table(m, 2, want.initial, m->live, 0) && same_table(m, 3, want.decode, m->live, -1) &&
           same_table(m, 4, want.prompt, m->live, -1) && same_table(m, 5, want.order, m->live, -1) &&
           same_table(m, 6, want.counts, 8, 0);
    free(memory), free(first);
    return fine;
}

static void test_metadata(int requests, bool ordered) {
    meta m = make_meta(requests, between(0, 40), ordered);
    bool fine = done(cairn_short_conv_metadata(rt, &m.args));
    tap_ok(fine && check_meta(&m),
           "short_conv_metadata on %s: %d of %d requests, blocks of %d, decodes up to %d%s", where,
           m.live, m.requests, m.block, m.few, ordered ? ", in order" : "");
    drop_meta(&m);
}

/* Lengths out of range on the device: clamped, reported, nothing written past the list. */
static void test_metadata_faults(void) {
    meta m = make_meta(12, 0, false);
    cairn_status status[3];
    m.live = 12, ints(&m.count)[0] = 40;
    upload(&m.count);
    status[0] = cairn_short_conv_metadata(rt, &m.args);
    if (!status[0]) status[0] = cairn_sync(rt);
    tap_ok(status[0] == CAIRN_BAD_DATA && check_meta(&m),
           "short_conv_metadata on %s: more live requests than there are: reported, all taken", where);
    ints(&m.count)[0] = 12, ints(&m.lens)[3] = ints(&m.cu)[4] - ints(&m.cu)[3] - 1;
    upload(&m.count), upload(&m.lens);
    status[1] = cairn_short_conv_metadata(rt, &m.args);
    if (!status[1]) status[1] = cairn_sync(rt);
    tap_ok(status[1] == CAIRN_BAD_DATA && check_meta(&m),
           "short_conv_metadata on %s: a sequence shorter than its new tokens is reported", where);
    ints(&m.lens)[3]++, upload(&m.lens);
    m.out[0].t->shape[0] = m.out[1].t->shape[0] = 2; /* of a longer list */
    m.args.decode_tokens = -1;
    for (int i = 0; i < 2; i++) {
        m.out[i].t->shape[0] = m.room;
        memset(m.out[i].host, POISON, m.out[i].bytes), upload(&m.out[i]);
        m.out[i].t->shape[0] = 2;
    }
    ints(&m.cu)[12] = ints(&m.cu)[11] + 9 * m.block, ints(&m.lens)[11] = 10 * m.block;
    upload(&m.cu), upload(&m.lens);
    status[2] = cairn_short_conv_metadata(rt, &m.args);
    if (!status[2]) status[2] = cairn_sync(rt);
    for (int i = 0; i < 2; i++) m.out[i].t->shape[0] = m.room, download(&m.out[i]);
    tap_ok(status[2] == CAIRN_BAD_DATA && all_poison(ints(&m.out[0]) + 2, m.out[0].bytes - 8) &&
               all_poison(ints(&m.out[1]) + 2, m.out[1].bytes - 8),
           "short_conv_metadata on %s: chunks beyond the list are reported and not written", where);
    drop_meta(&m);
    m = make_meta(12, 0, false); /* the length of request 0 is below -2^31 */
    m.live = 12, ints(&m.count)[0] = 12, ints(&m.cu)[0] = INT32_MAX, ints(&m.cu)[1] = -100;
    for (int r = 1; r <= 12; r++) ints(&m.cu)[r] = r - 100, ints(&m.lens)[r - 1] = r;
    upload(&m.count), upload(&m.cu), upload(&m.lens);
    status[0] = cairn_short_conv_metadata(rt, &m.args);
    if (!status[0]) status[0] = cairn_sync(rt);
    for (int i = 0; i < 4; i++) download(&m.out[i]);
    tap_ok(status[0] == CAIRN_BAD_DATA && ints(&m.out[0])[0] == -1 && ints(&m.out[3])[0] == -1 &&
               ints(&m.out[2])[0] == 1,
           "short_conv_metadata on %s: a length that overflows is reported, and is 0", where);
    drop_meta(&m);
}

/* ---- staging ----------------------------------------------------------------------------------*/

static cairn_tensor on_host(const both *m) {
    cairn_tensor t = *m->t;
    t.data = m->host, t.device.type = 1, t.device.id = 0;
    return t;
}

/* As the host has them: p becomes args of the staged form. */
static void stage(meta *m, cairn_staging *staging, cairn_tensor *views) {
    views[0] = on_host(&m->cu), views[1] = on_host(&m->lens);
    views[2] = on_host(&m->slots), views[3] = on_host(&m->count);
    m->args.staging = staging;
    m->args.cu_seqlens = &views[0], m->args.seq_lens = &views[1];
    m->args.slots = &views[2], m->args.live = &views[3];
}

static CUresult (*real_query)(CUevent);
static CUresult never_ready(CUevent event) { (void)event; return CUDA_ERROR_NOT_READY; }

static void test_staging(void) {
    cairn_staging *staging = NULL;
    cairn_tensor views[4][4];
    meta m[4];
    bool fine = true, busy;
    for (int i = 0; i < 4; i++) m[i] = make_meta(i == 3 ? 30 : between(1, 30), i, false);
    fine = done(cairn_staging_new(rt, 4 * (3 * 30 + 2), &staging));
    for (int i = 0; i < 4; i++) stage(&m[i], staging, views[i]);
    real_query = rt->drv.cuEventQuery;
    if (rt->device.cuda) rt->drv.cuEventQuery = never_ready; /* the device reads and reads */
    for (int i = 0; i < 2; i++) {
        fine = fine && !cairn_short_conv_metadata(rt, &m[i].args);
        if (rt->device.cuda) memset(m[i].lens.host, 0x55, 4); /* it was taken over */
        ints(&m[i].lens)[0] = ints(&m[i].lens)[0];
    }
    busy = rt->device.cuda ? cairn_short_conv_metadata(rt, &m[2].args) == CAIRN_BUSY : true;
    if (rt->device.cuda) {
        fine = fine && !cairn_sync(rt);
        for (int i = 0; i < TABLES; i++)
            download(&m[2].out[i]), busy = busy && all_poison(m[2].out[i].host, m[2].out[i].bytes);
        tap_ok(busy, "short_conv_metadata on %s: both buffers in flight: BUSY, nothing written",
               where);
        tap_ok(done(cairn_short_conv_metadata(rt, &m[2].args)),
               "short_conv_metadata on %s: after a sync no buffer is asked for", where);
        fine = fine && !cairn_sync(rt);
        rt->drv.cuEventQuery = real_query;
    }
    for (int i = 2; i < 4; i++) fine = done(cairn_short_conv_metadata(rt, &m[i].args)) && fine;
    for (int i = 0; i < 2 && rt->device.cuda; i++) { /* as they were when they were taken */
        int tokens = ints(&m[i].cu)[1] - ints(&m[i].cu)[0];
        download(&m[i].out[2]);
        ints(&m[i].lens)[0] = tokens + (m[i].live ? ints(&m[i].out[2])[0] : 0);
    }
    for (int i = 0; i < 4; i++) fine = check_meta(&m[i]) && fine;
    tap_ok(fine, "short_conv_metadata on %s: from the host through two buffers", where);
    ints(&m[3].cu)[5] = ints(&m[3].cu)[4] - 1;
    ints(&m[3].count)[0] = 30;
    for (int i = 0; i < TABLES; i++)
        memset(m[3].out[i].host, POISON, m[3].out[i].bytes), upload(&m[3].out[i]);
    fine = cairn_short_conv_metadata(rt, &m[3].args) == CAIRN_INVALID_ARGUMENT &&
           strstr(cairn_last_error(rt), "request 4") != NULL;
    for (int i = 0; i < TABLES; i++)
        download(&m[3].out[i]), fine = fine && all_poison(m[3].out[i].host, m[3].out[i].bytes);
    tap_ok(fine, "short_conv_metadata on %s: a bad length of the host names the request", where);
    for (int i = 0; i < 4; i++) drop_meta(&m[i]);
    cairn_staging_free(rt, staging);
}

/* A real stream, blocked by a host function until the builds have returned. */
static os_atomic gate;
static void hold(void *user) {
    int64_t end = os_now_us() + 5000000;
    (void)user;
    while (!os_atomic_load(&gate) && os_now_us() < end) {}
}

static void test_blocked_stream(void) {
    cairn_staging *staging = NULL;
    cairn_tensor views[3][4];
    meta m[4];
    int64_t began;
    cairn_status status[4];
    if (small || !rt->device.cuda) return;
    for (int i = 0; i < 4; i++) m[i] = make_meta(256, 8, false);
    cairn_staging_new(rt, 4 * (3 * 256 + 2), &staging);
    for (int i = 0; i < 3; i++) stage(&m[i], staging, views[i]);
    cairn_sync(rt);
    os_atomic_store(&gate, 0);
    handles_enter(rt);
    rt->drv.cuLaunchHostFunc(rt->device.stream, hold, NULL);
    handles_leave(rt, CAIRN_OK);
    began = os_now_us();
    status[3] = cairn_short_conv_metadata(rt, &m[3].args); /* from device memory */
    for (int i = 0; i < 3; i++) status[i] = cairn_short_conv_metadata(rt, &m[i].args);
    began = os_now_us() - began;
    os_atomic_store(&gate, 1);
    tap_ok(!status[3] && !status[0] && !status[1] && status[2] == CAIRN_BUSY && began < 1000000,
           "short_conv_metadata on %s: three builds return and a fourth is BUSY while the stream is "
           "blocked (%lld us)", where, (long long)began);
    tap_ok(done(cairn_sync(rt)) && check_meta(&m[0]) && check_meta(&m[1]) && check_meta(&m[3]),
           "short_conv_metadata on %s: and are right once it goes on", where);
    for (int i = 0; i < 4; i++) drop_meta(&m[i]);
    cairn_staging_free(rt, staging);
}

/* ---- no waiting, no allocation, graphs --------------------------------------------------------*/

static int forbidden;
static CUresult (*real_sync)(CUstream), (*real_alloc)(CUdeviceptr *, size_t);
static CUresult (*real_pinned)(void **, size_t, unsigned int);
static CUresult count_sync(CUstream s) { forbidden++; return real_sync(s); }
static CUresult count_alloc(CUdeviceptr *p, size_t n) { forbidden++; return real_alloc(p, n); }
static CUresult count_pinned(void **p, size_t n, unsigned int f) {
    forbidden++;
    return real_pinned(p, n, f);
}

static void watch(bool on) {
    if (on) {
        real_sync = rt->drv.cuStreamSynchronize, rt->drv.cuStreamSynchronize = count_sync;
        real_alloc = rt->drv.cuMemAlloc, rt->drv.cuMemAlloc = count_alloc;
        real_pinned = rt->drv.cuMemHostAlloc, rt->drv.cuMemHostAlloc = count_pinned;
        forbidden = 0;
    } else {
        rt->drv.cuStreamSynchronize = real_sync, rt->drv.cuMemAlloc = real_alloc;
        rt->drv.cuMemHostAlloc = real_pinned;
    }
}

static void test_quiet(void) {
    meta m = make_meta(20, 3, false), staged = make_meta(20, 3, false);
    batch b;
    cairn_staging *staging = NULL;
    cairn_tensor views[4];
    cairn_short_conv_args a;
    cairn_short_conv_update_args u;
    bool fine = true;
    make_batch(&b, 3, 3, 64, 20, true, false);
    if (!rt->device.cuda) {
        drop_meta(&m), drop_meta(&staged), drop_batch(&b);
        return;
    }
    cairn_staging_new(rt, 4 * (3 * 20 + 2), &staging);
    stage(&staged, staging, views);
    memset(&a, 0, sizeof a);
    memset(&u, 0, sizeof u);
    a.struct_size = sizeof a, a.conv = b.conv, u.struct_size = sizeof u, u.conv = b.conv;
    for (int i = 0; i < 4 && fine; i++) {
        if (i == 1) watch(true);
        fine = !cairn_short_conv_metadata(rt, &m.args) && !cairn_short_conv(rt, &a) &&
               !cairn_short_conv_update(rt, &u) && !cairn_short_conv_metadata(rt, &staged.args);
        if (i == 0) fine = fine && done(CAIRN_OK);
        fine = fine && !handles_enter(rt);
        while (fine && staging->buffers.in_flight[0] && staging->buffers.in_flight[1] &&
               rt->drv.cuEventQuery(staging->buffers.done[0]) == CUDA_ERROR_NOT_READY) {}
        if (fine) handles_leave(rt, CAIRN_OK);
    }
    watch(false);
    tap_ok(fine && forbidden == 0, "short_conv and its metadata on %s: no wait and no allocation",
           where);
    cairn_sync(rt);
    drop_meta(&m), drop_meta(&staged), drop_batch(&b), cairn_staging_free(rt, staging);
}

/* One captured step (metadata, then the prompts of the list, then the decodes) for any batch. */
static void test_graph(void) {
    enum { REQUESTS = 10, CHANNELS = 64 };
    const int replays = small ? 4 : 100;
    cairn_short_conv_args a;
    cairn_short_conv_update_args u;
    cairn_graph *graph = NULL;
    batch b;
    meta m;
    int right = 0;
    if (!rt->device.cuda) return;
    m = make_meta(REQUESTS, 0, true);
    m.few = m.args.decode_tokens = 1;
    for (int i = 0; i < 2; i++) drop(&m.out[i]), m.out[i] = make(CAIRN_I32, 1, 9 * REQUESTS, 0, 0);
    m.room = 9 * REQUESTS; /* for the longest batch there can be */
    m.args.chunk_sequences = m.out[0].t, m.args.chunk_offsets = m.out[1].t;
    make_batch(&b, 3, 4, CHANNELS, 0, true, true);
    drop(&b.x), drop(&b.out), drop(&b.cu), drop(&b.at), drop(&b.initial);
    drop(&b.state), drop(&b.before);
    b.tokens = REQUESTS * (5 * m.block + 5) + 9, b.sequences = REQUESTS;
    b.slots = 1000;
    b.x = make(CAIRN_BF16, 2, b.tokens, b.stride, 0), b.out = make(CAIRN_BF16, 2, b.tokens, CHANNELS, 0);
    b.state = make(CAIRN_BF16, 3, b.slots, 3, CHANNELS);
    b.before = make(CAIRN_BF16, 3, b.slots, 3, CHANNELS);
    b.cu = make(CAIRN_I32, 1, REQUESTS + 1, 0, 0), b.at = make(CAIRN_I32, 1, REQUESTS, 0, 0);
    b.initial = make(CAIRN_I32, 1, REQUESTS, 0, 0);
    fill(&b.x, 3), upload(&b.x), make_parts(&b, true);
    b.conv.cu_seqlens = m.cu.t, b.conv.has_initial = m.out[2].t, b.conv.out = b.out.t;
    b.conv.state = b.state.t;
    memset(&a, 0, sizeof a);
    memset(&u, 0, sizeof u);
    a.struct_size = sizeof a, a.block_tokens = m.block < 3 ? 3 : m.block, a.conv = b.conv;
    a.chunk_sequences = m.out[0].t, a.chunk_offsets = m.out[1].t;
    m.block = m.args.block_tokens = a.block_tokens;
    a.conv.state_indices = m.out[4].t;
    u.struct_size = sizeof u, u.conv = b.conv, u.conv.state_indices = m.out[3].t;
    for (int i = -1; i < replays; i++) {
        int used[1000] = {0};
        m.live = between(0, REQUESTS);
        draw_lengths(&m, true);
        for (int r = 0; r < REQUESTS; r++) { /* slots of a batch differ */
            int32_t *slot = &ints(&m.slots)[r * m.columns];
            while (*slot >= 0 && used[*slot]++) *slot = between(0, 999);
        }
        upload(&m.cu), upload(&m.lens), upload(&m.slots), upload(&m.count);
        fill(&b.state, 3), memcpy(b.before.host, b.state.host, b.state.bytes), upload(&b.state);
        memset(b.out.host, POISON, b.out.bytes), upload(&b.out);
        if (i == 0) {
            cairn_graph_begin(rt);
            cairn_short_conv_metadata(rt, &m.args), cairn_short_conv(rt, &a);
            cairn_short_conv_update(rt, &u);
            cairn_graph_end(rt, &graph);
        }
        if (i < 0) {
            cairn_short_conv_metadata(rt, &m.args), cairn_short_conv(rt, &a);
            cairn_short_conv_update(rt, &u);
            done(CAIRN_OK);
            continue;
        }
        if (!graph || !done(cairn_graph_launch(rt, graph)) || !check_meta(&m)) break;
        memcpy(b.cu.host, m.cu.host, m.cu.bytes), memcpy(b.initial.host, m.out[2].host, b.initial.bytes);
        for (int r = 0; r < REQUESTS; r++)
            ints(&b.at)[r] = r < m.live ? ints(&m.slots)[r * m.columns] : -1;
        right += check_batch(&b);
    }
    tap_ok(right == replays, "short_conv on %s: %d of %d replays of one graph right, every batch another",
           where, right, replays);
    cairn_graph_free(rt, graph), drop_meta(&m), drop_batch(&b);
}

/* More chunks than a small GPU runs blocks at once: a block takes several. */
static void test_crowd(void) {
    const int count = rt->device.sm_count;
    batch b;
    bool fine;
    if (!rt->device.cuda) return;
    make_batch(&b, 2, 4, 40, 1000, true, false);
    while (b.tokens / b.block + b.sequences <= 16) drop_batch(&b), make_batch(&b, 2, 4, 40, 1000, true, false);
    rt->device.sm_count = 1;
    fine = done(run_prompts(&b, false));
    rt->device.sm_count = count;
    tap_ok(fine && check_batch(&b), "short_conv on %s: more chunks than blocks", where);
    drop_batch(&b);
}

/* ---- faults -----------------------------------------------------------------------------------*/

/* What a list says that names one chunk. */
static cairn_status run_chunk(batch *b, int sequence, int offset) {
    both list[2];
    cairn_short_conv_args a;
    cairn_status status;
    for (int i = 0; i < 2; i++) list[i] = make(CAIRN_I32, 1, 2, 0, 0);
    ints(&list[0])[0] = sequence, ints(&list[1])[0] = offset;
    ints(&list[0])[1] = ints(&list[1])[1] = -1;
    upload(&list[0]), upload(&list[1]);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.conv = b->conv, a.block_tokens = 2;
    a.chunk_sequences = list[0].t, a.chunk_offsets = list[1].t;
    status = cairn_short_conv(rt, &a);
    if (!status) status = cairn_sync(rt);
    drop(&list[0]), drop(&list[1]);
    return status;
}

/* A list that names only a later chunk of a sequence whose slot does not exist, or a chunk behind a sequence's end. */
static void test_list_faults(batch *b, int victim) {
    const int tokens = ints(&b->cu)[victim + 1] - ints(&b->cu)[victim];
    ints(&b->at)[victim] = b->slots;
    upload(&b->at);
    tap_ok(run_chunk(b, victim, 1) == CAIRN_BAD_DATA,
           "short_conv on %s: a fault that only a later chunk sees is reported", where);
    ints(&b->at)[victim] = 0;
    upload(&b->at);
    tap_ok(run_chunk(b, victim, (tokens + 1) / 2) == (tokens ? CAIRN_BAD_DATA : CAIRN_OK) &&
               (!tokens || strstr(cairn_last_error(rt), "length out of range")),
           "short_conv on %s: a chunk behind the end of its sequence is reported", where);
}

static void test_faults(void) {
    batch b;
    cairn_short_conv_args a;
    cairn_status status;
    int victim;
    make_batch(&b, 1, 3, 16, 20, false, false);
    victim = between(0, b.sequences - 1);
    ints(&b.at)[victim] = b.slots;
    upload(&b.at);
    status = run_prompts(&b, true);
    ints(&b.at)[victim] = -1;
    tap_ok((status == CAIRN_BAD_DATA || ints(&b.cu)[victim] == ints(&b.cu)[victim + 1]) &&
               check_batch(&b),
           "short_conv on %s: a slot out of range is reported, its sequence skipped", where);
    test_list_faults(&b, victim);
    drop_batch(&b);
    make_batch(&b, 1, 3, 16, 20, false, false);
    without_rows(&b);
    for (int s = 0; s < b.sequences; s++) ints(&b.at)[s] = s;
    ints(&b.cu)[b.sequences] = 2;
    upload(&b.cu), upload(&b.at);
    tap_ok(run_prompts(&b, false) == CAIRN_BAD_DATA && run_prompts(&b, true) == CAIRN_BAD_DATA,
           "short_conv on %s: tokens of an x that has none are reported", where);
    drop_batch(&b);
    make_batch(&b, 1, 3, 16, 20, false, false);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.conv = b.conv, a.block_tokens = 1;
    tap_ok(cairn_short_conv(rt, &a) == CAIRN_INVALID_ARGUMENT &&
               strstr(cairn_last_error(rt), "block_tokens"), "short_conv on %s: a block of one", where);
    a.block_tokens = 0, a.conv.weight = b.bias.t;
    tap_ok(cairn_short_conv(rt, &a) == CAIRN_INVALID_ARGUMENT &&
               strstr(cairn_last_error(rt), "weight"), "short_conv on %s: weights of rank 1", where);
    a.conv.weight = b.weight.t, a.conv.out = b.x.t;
    tap_ok(cairn_short_conv(rt, &a) == CAIRN_INVALID_ARGUMENT &&
               strstr(cairn_last_error(rt), "out overlaps x"), "short_conv on %s: out is x", where);
    a.conv.out = b.out.t, a.conv.cu_seqlens = NULL;
    tap_ok(cairn_short_conv(rt, &a) == CAIRN_INVALID_ARGUMENT &&
               strstr(cairn_last_error(rt), "cu_seqlens"), "short_conv on %s: no cu_seqlens", where);
    download(&b.out);
    tap_ok(all_poison(b.out.host, b.out.bytes), "short_conv on %s: and nothing was written", where);
    drop_batch(&b);
}

/* ---- all --------------------------------------------------------------------------------------*/

static void test_all(void) {
    const int most = small ? 60 : 300;
    for (int type = 1; type <= 3; type++) {
        test_prompts(type, 3, 8 * between(1, small ? 10 : 40), true, type == 3, 4);
        test_prompts(type, between(2, 4), between(1, most), false, true, between(0, 7));
        test_update(type, 4, 8 * between(1, 30), type != 2, 5);
        test_update(type, between(2, 8), between(1, most), type == 2, 3);
        test_update(type, between(2, 8), between(1, most), type == 2, 0);
        test_pieces(type, between(2, 5));
        test_rows(type, 4 * between(1, 40));
    }
    test_prompts(between(1, 3), 8, 4 * between(1, 50), true, true, 3);
    if (!small) test_prompts(3, 3, 2048, true, true, 4), test_prompts(2, 4, 2056, false, false, 7);
    for (int i = 0; i < 4; i++) test_metadata(i ? between(1, small ? 60 : 600) : 0, i & 1);
    test_metadata(small ? 600 : 3000, true);
    test_metadata_faults(), test_crowd();
    test_staging(), test_blocked_stream(), test_quiet(), test_graph(), test_faults();
}

static void test_backend(cairn_runtime *opened, const char *name) {
    rt = opened, where = name;
    small = is_emulated(rt->config.backend);
    test_all();
}

int main(void) {
    seed = random_seed();
    run_on_backends(NULL, "conv", test_backend);
    return tap_done();
}

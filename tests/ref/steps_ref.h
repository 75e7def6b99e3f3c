/* steps_ref: the per-step path of the metadata, as the document on multi-step precomputation writes
 * it: each step computes all of its own with whole-array operations, over the formulas that name
 * them, on the host. Shares no code with the runtime.
 *
 * ref_step_inputs are what is left after padding and cuts: seq and req of every request, accept. */
#ifndef STEPS_REF_H
#define STEPS_REF_H

#include <stdint.h>
#include <stdlib.h>

typedef struct ref_array { int32_t *v; int n; } ref_array;

typedef struct ref_step_inputs {
    int mode;    /* 0 decode, 1 target verify, 2 draft extend */
    int bs, num_draft_tokens, index_topk, page_size, max_ctx;
    int capacity; /* a length ends here */
    int rows_room; /* rows end here */
    const int32_t *seq_lens, *req, *accept; /* [bs]; req -1: unknown */
    const int32_t *req_to_token;            /* [pool, stride] */
    int64_t stride;
} ref_step_inputs;

typedef struct ref_step {
    ref_array cache_seqlens, cu_seqlens_k, extend, cu_rows, seqlens_expanded, row_requests,
        nsa_cache_seqlens, nsa_cu_seqlens_k;
    int max_len;
    int32_t *page_indices; /* [rows of the table, max_len], rows as the caller asks */
    int32_t *real_page_table; /* [rows, real_cols] */
    int table_rows, real_cols;
} ref_step;

static ref_array ref_new(int n) {
    ref_array a;
    a.n = n;
    a.v = (int32_t *)calloc((size_t)n + 1, sizeof *a.v);
    return a;
}

/* pad(cumsum(x), (1, 0)) */
static ref_array ref_cu(ref_array x) {
    ref_array cu = ref_new(x.n + 1);
    for (int i = 0; i < x.n; i++) cu.v[i + 1] = cu.v[i] + x.v[i];
    return cu;
}

/* minimum(x, most) */
static ref_array ref_min(ref_array x, int most) {
    ref_array y = ref_new(x.n);
    for (int i = 0; i < x.n; i++) y.v[i] = x.v[i] < most ? x.v[i] : most;
    return y;
}

static int ref_max(ref_array x) {
    int best = 0;
    for (int i = 0; i < x.n; i++) best = x.v[i] > best ? x.v[i] : best;
    return best;
}

/* cat(arange(kv - qo + 1, kv + 1)); below 0 there is no length. */
static ref_array ref_expand(ref_array qo, ref_array kv) {
    ref_array all;
    int n = 0, at = 0;
    for (int b = 0; b < qo.n; b++) n += qo.v[b];
    all = ref_new(n);
    for (int b = 0; b < qo.n; b++)
        for (int value = kv.v[b] - qo.v[b] + 1; value < kv.v[b] + 1; value++)
            all.v[at++] = value > 0 ? value : 0;
    return all;
}

/* repeat_interleave(arange(bs), repeats) */
static ref_array ref_repeat(ref_array repeats) {
    ref_array all;
    int n = 0, at = 0;
    for (int b = 0; b < repeats.n; b++) n += repeats.v[b];
    all = ref_new(n);
    for (int b = 0; b < repeats.n; b++)
        for (int i = 0; i < repeats.v[b]; i++) all.v[at++] = b;
    return all;
}

/* req_to_token[req[of[row]], :max_len]; a request that is unknown has no slots. */
static int32_t *ref_page_indices(const ref_step_inputs *in, ref_array of, int max_len) {
    int32_t *table = (int32_t *)calloc((size_t)of.n * (size_t)max_len + 1, sizeof *table);
    for (int row = 0; row < of.n; row++)
        for (int t = 0; t < max_len && in->req[of.v[row]] >= 0; t++)
            table[(size_t)row * (size_t)max_len + (size_t)t] =
                in->req_to_token[in->req[of.v[row]] * in->stride + t];
    return table;
}

/* page_indices[:, arange(0, max_len, page_size)] // page_size, what is negative -1 */
static int32_t *ref_transform(const int32_t *table, int rows, int max_len, int page_size, int *cols) {
    int32_t *real;
    *cols = (max_len + page_size - 1) / page_size;
    real = (int32_t *)calloc((size_t)rows * (size_t)*cols + 1, sizeof *real);
    for (int row = 0; row < rows; row++)
        for (int c = 0; c < *cols; c++) {
            int32_t slot = table[(size_t)row * (size_t)max_len + (size_t)(c * page_size)];
            real[(size_t)row * (size_t)*cols + (size_t)c] = slot < 0 ? -1 : slot / page_size;
        }
    return real;
}

/* One step's metadata with `offset` tokens added; expand: a table row for each row. */
static ref_step ref_prepare(const ref_step_inputs *in, int offset, int expand) {
    ref_step m;
    ref_array identity = ref_new(in->bs);
    int rows = 0;
    m.cache_seqlens = ref_new(in->bs);
    m.extend = ref_new(in->bs);
    for (int b = 0; b < in->bs; b++) {
        int64_t kv = (int64_t)in->seq_lens[b] + offset + (in->mode == 1 ? in->num_draft_tokens : 0);
        if (kv > in->capacity) kv = in->capacity;
        m.cache_seqlens.v[b] = in->req[b] < 0 ? 0 : (int32_t)kv;
        m.extend.v[b] = in->mode == 0 ? 1 : in->mode == 1 ? in->num_draft_tokens : in->accept[b];
        identity.v[b] = b;
    }
    m.cu_seqlens_k = ref_cu(m.cache_seqlens);
    m.max_len = ref_max(m.cache_seqlens);
    m.seqlens_expanded = in->mode == 0 ? ref_min(m.cache_seqlens, INT32_MAX)
                                       : ref_expand(m.extend, m.cache_seqlens);
    m.row_requests = ref_repeat(m.extend);
    if (m.seqlens_expanded.n > in->rows_room)
        m.seqlens_expanded.n = m.row_requests.n = in->rows_room;
    m.cu_rows = ref_cu(m.extend);
    for (int b = 0; b <= in->bs; b++)
        if (m.cu_rows.v[b] > in->rows_room) m.cu_rows.v[b] = in->rows_room;
    m.nsa_cache_seqlens = ref_min(m.seqlens_expanded, in->index_topk);
    m.nsa_cu_seqlens_k = ref_cu(m.nsa_cache_seqlens);
    rows = expand ? m.row_requests.n : in->bs;
    m.page_indices = in->req_to_token
                         ? ref_page_indices(in, expand ? m.row_requests : identity, m.max_len)
                         : NULL;
    m.real_page_table = m.page_indices ? ref_transform(m.page_indices, rows, m.max_len,
                                                       in->page_size, &m.real_cols)
                                       : NULL;
    m.table_rows = rows;
    free(identity.v);
    return m;
}

static void ref_free_step(ref_step *m) {
    free(m->cache_seqlens.v), free(m->cu_seqlens_k.v), free(m->extend.v), free(m->cu_rows.v);
    free(m->seqlens_expanded.v), free(m->row_requests.v), free(m->nsa_cache_seqlens.v);
    free(m->nsa_cu_seqlens_k.v), free(m->page_indices), free(m->real_page_table);
}

/* ceil(lengths / split), as prefix sums */
static ref_array ref_splits(ref_array lengths, int split) {
    ref_array n = ref_new(lengths.n), cu;
    for (int i = 0; i < lengths.n; i++) n.v[i] = (lengths.v[i] + split - 1) / split;
    cu = ref_cu(n);
    free(n.v);
    return cu;
}

/* [workers + 1, 2]: worker w's first (row, split): linear search of the prefix sums. */
static ref_array ref_schedule(ref_array cu, int workers) {
    ref_array s = ref_new(2 * (workers + 1));
    int all = cu.v[cu.n - 1];
    for (int w = 0; w <= workers; w++) {
        int start = w * (all / workers) + (w < all % workers ? w : all % workers), row = 0;
        while (row < cu.n - 1 && cu.v[row + 1] <= start) row++;
        s.v[2 * w] = row;
        s.v[2 * w + 1] = start - cu.v[row];
    }
    return s;
}

#endif

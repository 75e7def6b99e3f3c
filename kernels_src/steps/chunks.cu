/* prefix_chunks: the slots and lengths of each chunk of a cached prefix (cairn_prefix_chunks in
 * runtime_ops.h has the contract).
 *
 * Block 0 counts the chunks and reports what is out of range, the next `length_blocks` write the
 * lengths of chunk after chunk, the rest copy: a chunk's slots are cut into tiles of TILE. Each
 * block scans its chunk's lengths by itself, THREADS requests at a time.
 * Constants  CAIRN_PAGE_SIZE  of page ids; 0: slots themselves
 * Launch     grid 1 + length_blocks + any number, block THREADS, shared memory chunks_shared
 * Oracle     tests/ops/prefix_chunks_test.c
 * matrix: CAIRN_PAGE_SIZE=0
 * matrix: CAIRN_PAGE_SIZE=48
 * matrix: CAIRN_PAGE_SIZE=64 */
#include "device/common.cuh"
#include "abi/steps.h"
#include "steps/prepare.cuh"

#define TILE 2048
#define RUN (TILE / WARPS) /* slots that a warp copies: mostly of one request */
#define EACH (RUN / WARP)

struct chunks_shared {
    prepare_shared scan;
    int32_t ends[THREADS]; /* of the requests in the chunk's slots */
    int32_t ids[THREADS];
};

/* The slot of position `at` in a row of slots or of page ids. */
CAIRN_INLINE int32_t slot_at(const int32_t *row, int at) {
#if CAIRN_PAGE_SIZE
    const int32_t id = row[at / CAIRN_PAGE_SIZE];
    return id < 0 ? -1 : (int32_t)((uint32_t)id * CAIRN_PAGE_SIZE) + at % CAIRN_PAGE_SIZE;
#else
    return row[at];
#endif
}

struct prefix { int32_t id, length; };

CAIRN_INLINE prefix take_prefix(const prefix_chunks_params &p, int b, bool report) {
    const int32_t given = p.prefix_lens[b];
    prefix r = {p.requests ? p.requests[b] : b, min_of(max_of(given, 0), p.max_len)};
    const bool known = r.id >= 0 && r.id < p.pool;
    if (report && !known) report_error(p.error, CAIRN_FAULT_ID, b, r.id);
    else if (report && given != r.length) report_error(p.error, CAIRN_FAULT_LENGTH, b, given);
    if (!known) r.length = 0;
    return r;
}

/* Request base + thread, none of chunk c behind the batch or its prefix. */
CAIRN_INLINE prefix take_part(const prefix_chunks_params &p, int base, int c) {
    prefix r = {0, 0};
    if (base + thread_id() < p.batch) r = take_prefix(p, base + thread_id(), false);
    r.length = min_of(max_of(r.length - c * p.chunk_len, 0), p.chunk_len);
    return r;
}

/* How many chunks hold something; what is out of range. */
CAIRN_INLINE void count_chunks(prepare_shared &s, const prefix_chunks_params &p) {
    int32_t longest = 0;
    for (int b = thread_id(); b < p.batch; b += THREADS)
        longest = max_of(longest, take_prefix(p, b, true).length);
    longest = block_max(s, longest);
    if (p.chunk_count && thread_id() == 0)
        *p.chunk_count = longest / p.chunk_len + (longest % p.chunk_len != 0);
}

CAIRN_INLINE void write_lengths(prepare_shared &s, const prefix_chunks_params &p, int c) {
    uint32_t before = 0;
    for (int base = 0; base < p.batch; base += THREADS) {
        const int b = base + thread_id();
        const prefix r = take_part(p, base, c);
        const scanned sums = block_scan(s, {(uint32_t)r.length, 0});
        const int64_t at = (int64_t)c * p.batch + b;
        if (b < p.batch) {
            const uint32_t end = add_sums(add_sums(before, sums.below.x), (uint32_t)r.length);
            if (p.starts) p.starts[at] = c * p.chunk_len;
            if (p.lens) p.lens[at] = r.length;
            if (p.cu_lens) p.cu_lens[at + c + 1] = (int32_t)end;
        }
        before = add_sums(before, sums.total.x);
    }
    if (p.cu_lens && thread_id() == 0) p.cu_lens[(int64_t)c * (p.batch + 1)] = 0;
}

/* Which of the requests in s holds slot `at` of the chunk: so many end before. By a warp. */
CAIRN_INLINE int find_request(const chunks_shared &s, int at) {
    int before = 0;
#pragma unroll
    for (int i = 0; i < THREADS / WARP; i++) before += s.ends[i * WARP + lane_id()] <= at;
    return warp_sum(before);
}

/* Slots [from, to) of chunk c, at most RUN, which are of the requests in s; the first of those
 * begins at `begin`. By a warp. */
CAIRN_INLINE void copy_run(const chunks_shared &s, const prefix_chunks_params &p, int c, int begin,
                           int from, int to) {
    int32_t *out = p.kv_indices + c * p.kv_stride;
    int b = find_request(s, from), at = from + lane_id();
    int32_t v[EACH];
    if (s.ends[b] >= to) {
        if (b > 0) begin = s.ends[b - 1];
        const int32_t *row = p.slots + s.ids[b] * p.slots_stride;
        const int back = c * p.chunk_len - begin;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            v[i] = at + i * WARP < to ? slot_at(row, back + at + i * WARP) : 0;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (at + i * WARP < to) out[at + i * WARP] = v[i];
        return;
    }
    for (; at < to; at += WARP) {
        while (s.ends[b] <= at) b++;
        const int inside = at - (b > 0 ? s.ends[b - 1] : begin);
        out[at] = slot_at(p.slots + s.ids[b] * p.slots_stride, c * p.chunk_len + inside);
    }
}

/* False when the chunk is empty, and with it all that follow. */
CAIRN_INLINE bool copy_tile(chunks_shared &s, const prefix_chunks_params &p, int c, int tile) {
    const int first = tile * TILE + warp_id() * RUN, last = first + RUN;
    int before = 0;
    for (int base = 0; base < p.batch && before < (tile + 1) * TILE; base += THREADS) {
        const prefix r = take_part(p, base, c);
        const scanned sums = block_scan(s.scan, {(uint32_t)r.length, 0});
        const int end = before + (int)sums.total.x;
        s.ends[thread_id()] = before + (int)sums.below.x + r.length;
        s.ids[thread_id()] = r.id;
        block_sync();
        const int from = max_of(first, before), to = min_of(last, end);
        if (from < to) copy_run(s, p, c, before, from, to);
        before = end;
    }
    return before > 0;
}

CAIRN_KERNEL(prefix_chunks, THREADS, 2, prefix_chunks_params) {
    chunks_shared &s = shared_as<chunks_shared>();
    const int writer = block_id() - 1, copier = writer - p.length_blocks;
    grid_follow();
    if (writer < 0) {
        count_chunks(s.scan, p);
    } else if (copier < 0) {
        for (int c = writer; c < p.chunks; c += p.length_blocks) write_lengths(s.scan, p, c);
    } else {
        const int copiers = grid_blocks() - 1 - p.length_blocks;
        int c = copier / p.tiles, tile = copier % p.tiles;
        while (c < p.chunks && copy_tile(s, p, c, tile)) {
            c += copiers / p.tiles;
            tile += copiers % p.tiles;
            if (tile >= p.tiles) c++, tile -= p.tiles;
        }
    }
}

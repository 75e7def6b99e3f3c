/* prefix_chunks: the slots and lengths of each chunk of a cached prefix (cairn_prefix_chunks in
 * runtime.h has the contract).
 *
 * A chunk's slots are cut into tiles of TILE; the blocks take tile after tile. For each a block
 * scans the chunk's lengths, THREADS requests at a time, so that it needs no other block's result.
 * Launch     any grid, block THREADS, shared memory chunks_shared
 * Oracle     tests/prefix_chunks_test.c
 * matrix: */
#include "common.cuh"
#include "prepare.cuh"

#define TILE 2048
#define EACH (TILE / THREADS)

struct chunks_shared {
    prepare_shared scan;
    int32_t ends[THREADS]; /* of the requests in the chunk's slots */
    int32_t ids[THREADS];
};

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

/* Chunks that hold something. */
CAIRN_INLINE int count_chunks(prepare_shared &s, const prefix_chunks_params &p) {
    int32_t longest = 0;
    for (int b = thread_id(); b < p.batch; b += THREADS)
        longest = max_of(longest, take_prefix(p, b, block_id() == 0).length);
    longest = block_max(s, longest);
    return longest / p.chunk_len + (longest % p.chunk_len != 0);
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

/* Slots [from, to) of chunk c, which are of the requests in s. The first of those begins at
 * `before`. */
CAIRN_INLINE void copy_slots(const chunks_shared &s, const prefix_chunks_params &p, int c,
                             int before, int from, int to) {
    int32_t *out = p.kv_indices + c * p.kv_stride;
    int low = 0, high = THREADS - 1; /* the first request that ends behind from + thread */
    while (low < high) {
        const int middle = (low + high) / 2;
        if (s.ends[middle] > from + thread_id()) high = middle;
        else low = middle + 1;
    }
    int32_t v[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int at = from + i * THREADS + thread_id();
        if (at >= to) continue;
        while (s.ends[low] <= at) low++;
        const int begin = low ? s.ends[low - 1] : before;
        v[i] = p.slots[s.ids[low] * p.slots_stride + (int64_t)c * p.chunk_len + at - begin];
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int at = from + i * THREADS + thread_id();
        if (at < to) out[at] = v[i];
    }
}

CAIRN_INLINE void copy_tile(chunks_shared &s, const prefix_chunks_params &p, int c, int tile) {
    const int first = tile * TILE, last = first + TILE;
    int before = 0;
    for (int base = 0; base < p.batch && before < last; base += THREADS) {
        const prefix r = take_part(p, base, c);
        const scanned sums = block_scan(s.scan, {(uint32_t)r.length, 0});
        const int end = before + (int)sums.total.x;
        s.ends[thread_id()] = before + (int)sums.below.x + r.length;
        s.ids[thread_id()] = r.id;
        block_sync();
        if (end > first)
            copy_slots(s, p, c, before, max_of(first, before), min_of(last, end));
        before = end;
    }
}

CAIRN_KERNEL(prefix_chunks, THREADS, 2, prefix_chunks_params) {
    chunks_shared &s = shared_as<chunks_shared>();
    grid_dependency_wait();
    grid_launch_dependents();
    const int held = count_chunks(s.scan, p);
    if (p.chunk_count && block_id() == 0 && thread_id() == 0) *p.chunk_count = held;
    if (p.kv_indices)
        for (int64_t t = block_id(); t < (int64_t)held * p.tiles; t += grid_blocks())
            copy_tile(s, p, (int)(t / p.tiles), (int)(t % p.tiles));
    if (p.starts || p.lens || p.cu_lens) /* from the other end: blocks that had a tile less */
        for (int c = grid_blocks() - 1 - block_id(); c < p.chunks; c += grid_blocks())
            write_lengths(s.scan, p, c);
}

/* short_conv_metadata: what short_conv needs to know of a batch, from lengths that only the device
 * has (the contract is in runtime.h). Requests [0, split) are decodes, the rest prompts; a prompt
 * of n tokens gives ceil(n / block_tokens) chunks (request, 0), (request, 1), ...; the list's tail
 * is -1. The inputs may lie in pinned host memory.
 *
 * Every block scans all requests, a run of neighbours a thread; block 0 writes what each request
 * has, and each block its part of the list, whose entries find their request by binary search.
 * Launch     grid any, block 512, shared memory METADATA_HEAD + 4 * (requests + 1) bytes
 * Oracle     tests/ref/conv_ref.h
 * matrix: */
#include "common.cuh"

#define THREADS 512

struct metadata_head {
    uint64_t sums[THREADS / WARP];
    int32_t firsts[THREADS / WARP];
}; /* then prefix[requests + 1]: chunks before each request */

/* The new tokens of requests [from, to); a length below 0 counts as 0. */
CAIRN_INLINE int tokens_between(const short_conv_metadata_params &p, int from, int to) {
    const int64_t count = (int64_t)p.cu_seqlens[to] - p.cu_seqlens[from];
    return (int)min_of(max_of(count, (int64_t)0), (int64_t)0x7fffffff);
}

CAIRN_INLINE int new_tokens(const short_conv_metadata_params &p, int r, bool reports) {
    const int64_t count = (int64_t)p.cu_seqlens[r + 1] - p.cu_seqlens[r];
    if (count < 0 && reports) report_error(p.error, CAIRN_FAULT_LENGTH, r, count);
    return tokens_between(p, r, r + 1);
}

CAIRN_INLINE int live_requests(const short_conv_metadata_params &p, bool reports) {
    int live = p.live ? *p.live : p.requests, in = min_of(max_of(live, 0), p.requests);
    if (live != in && reports) report_error(p.error, CAIRN_FAULT_LENGTH, 0, live);
    return in;
}

/* The lowest `first` of any thread. */
CAIRN_INLINE int block_min(metadata_head &head, int first) {
    first = warp_min(first);
    if (lane_id() == 0) head.firsts[warp_id()] = first;
    block_sync();
    return warp_min(head.firsts[lane_id() % (THREADS / WARP)]);
}

/* The sum of all threads before this one; *total of all. */
CAIRN_INLINE uint64_t block_scan(metadata_head &head, uint64_t mine, uint64_t *total) {
    uint64_t upto = warp_scan(mine);
    if (lane_id() == WARP - 1) head.sums[warp_id()] = upto;
    block_sync();
    uint64_t before = 0, all = 0;
#pragma unroll
    for (int w = 0; w < THREADS / WARP; w++) {
        if (w < warp_id()) before += head.sums[w];
        all += head.sums[w];
    }
    *total = all;
    return before + upto - mine;
}

CAIRN_INLINE void write_request(const short_conv_metadata_params &p, int r, int count,
                                bool decodes) {
    int slot = p.slots ? p.slots[r * p.slots_stride] : r;
    int length = p.seq_lens ? p.seq_lens[r] : count;
    if (length < count) report_error(p.error, CAIRN_FAULT_LENGTH, r, length);
    if (p.has_initial) p.has_initial[r] = length > count;
    if (p.decode_indices) p.decode_indices[r] = decodes && count > 0 ? slot : -1;
    if (p.prompt_indices) p.prompt_indices[r] = decodes ? -1 : slot;
}

CAIRN_INLINE void write_tail(const short_conv_metadata_params &p, int live) {
    for (int r = live + thread_id(); r < p.capacity; r += THREADS) {
        if (p.has_initial) p.has_initial[r] = 0;
        if (p.decode_indices) p.decode_indices[r] = -1;
        if (p.prompt_indices) p.prompt_indices[r] = -1;
        if (p.order) p.order[r] = -1;
    }
}

/* In the order of cairn_conv_count. */
CAIRN_INLINE void write_counts(const short_conv_metadata_params &p, int live, int split, int chunks,
                               int short_ones) {
    p.counts[0] = split;
    p.counts[1] = live - split;
    p.counts[2] = tokens_between(p, 0, split);
    p.counts[3] = tokens_between(p, split, live);
    p.counts[4] = min_of(chunks, p.chunk_capacity);
    p.counts[5] = p.block_tokens;
    p.counts[6] = live;
    p.counts[7] = short_ones == split;
}

/* Entries [from, to) of the list. */
CAIRN_INLINE void write_chunks(const short_conv_metadata_params &p, const int32_t *prefix, int live,
                               int chunks, int from, int to) {
    for (int c = from + thread_id(); c < to; c += THREADS) {
        int low = 0, high = live; /* prefix[low] <= c < prefix[high] */
        while (c < chunks && high - low > 1) {
            int middle = (low + high) / 2;
            if (prefix[middle] <= c) low = middle;
            else high = middle;
        }
        p.chunk_sequences[c] = c < chunks ? low : -1;
        p.chunk_offsets[c] = c < chunks ? c - prefix[low] : -1;
    }
}

CAIRN_KERNEL(short_conv_metadata, THREADS, 1, short_conv_metadata_params) {
    metadata_head &head = *(metadata_head *)shared_base();
    int32_t *prefix = (int32_t *)(shared_base() + sizeof(metadata_head));
    const bool writes = block_id() == 0;
    const int live = live_requests(p, writes && thread_id() == 0), each = ceil_div(live, THREADS);
    const int begin = min_of(thread_id() * each, live), end = min_of(begin + each, live);
    int first = live;
    for (int r = begin; r < end; r++)
        if (new_tokens(p, r, writes) > p.decode_tokens) first = min_of(first, r);
    const int split = block_min(head, first);

    uint64_t mine = 0, total; /* chunks in the upper half, requests of few tokens in the lower */
    for (int r = begin; r < end; r++) {
        int count = new_tokens(p, r, false);
        uint64_t chunks = r < split ? 0 : (uint64_t)ceil_div(count, p.block_tokens);
        mine += chunks << 32 | (uint64_t)(count <= p.decode_tokens);
    }
    uint64_t before = block_scan(head, mine, &total);
    const int chunks = (int)(total >> 32), short_ones = (int)(uint32_t)total;
    for (int r = begin; r < end; r++) {
        int count = new_tokens(p, r, false), decode = count <= p.decode_tokens;
        prefix[r] = (int)(before >> 32);
        if (writes) write_request(p, r, count, r < split);
        if (writes && p.order)
            p.order[decode ? (int)(uint32_t)before : short_ones + r - (int)(uint32_t)before] = r;
        before += (uint64_t)decode;
        if (r >= split) before += (uint64_t)ceil_div(count, p.block_tokens) << 32;
        if (writes && (int)(before >> 32) > p.chunk_capacity && prefix[r] <= p.chunk_capacity)
            report_error(p.error, CAIRN_FAULT_LENGTH, r, count);
    }
    if (writes) write_tail(p, live);
    if (writes && thread_id() == 0 && p.counts) write_counts(p, live, split, chunks, short_ones);
    block_sync();
    const int part = ceil_div(p.chunk_capacity, grid_blocks()), from = block_id() * part;
    write_chunks(p, prefix, live, chunks, from, min_of(from + part, p.chunk_capacity));
}

/* short_conv_metadata: what short_conv needs to know of a batch, from lengths that only the device
 * has (the contract is in runtime_ops.h). Requests [0, split) are decodes, the rest prompts; a prompt
 * of n tokens gives ceil(n / block_tokens) chunks (request, 0), (request, 1), ...; the list's tail
 * is -1. The inputs may lie in pinned host memory.
 *
 * Every block reads all requests, a run of neighbours a thread, all at once and before anything
 * else: latency is what this costs. The prefix of chunks counts decodes too; the list begins where
 * it stands at the split. Block 0 writes what each request has, and each block its part of the
 * list, whose entries find their request by binary search.
 *
 * short_conv_metadata       up to 512 requests
 * short_conv_metadata_many  up to 8192
 * Launch     grid any, block 512, shared memory METADATA_HEAD + 4 * (most requests + 1) bytes
 * Oracle     tests/ref/conv_ref.h
 * matrix: */
#include "device/common.cuh"
#include "abi/conv.h"

#define THREADS 512

struct metadata_head {
    uint64_t sums[THREADS / WARP];
    int32_t firsts[THREADS / WARP];
}; /* then prefix[requests + 1]: chunks before each request */

/* `count` requests of a thread, from `first` on; those not live have no tokens and no chunks. */
template <int count> struct run {
    int first, tokens[count]; /* new ones, at least 0 */
    uint32_t chunks[count];
    int slot, length; /* of the only one */
};

CAIRN_INLINE int tokens_between(int from, int to) {
    const int64_t count = (int64_t)to - from;
    return (int)min_of(max_of(count, (int64_t)0), (int64_t)0x7fffffff);
}

CAIRN_INLINE int load_slot(const short_conv_metadata_params &p, int r) {
    return p.slots && r < p.requests ? load_early(p.slots + r * p.slots_stride) : r;
}

CAIRN_INLINE int load_length(const short_conv_metadata_params &p, int r, int tokens) {
    return p.seq_lens && r < p.requests ? load_early(p.seq_lens + r) : tokens;
}

/* Reads what is not live too, so that nothing waits for the number of live requests. */
template <int count>
CAIRN_INLINE run<count> load_run(const short_conv_metadata_params &p, int live, bool writes) {
    int starts[count + 1];
    run<count> mine;
    mine.first = thread_id() * count;
#pragma unroll
    for (int i = 0; i <= count; i++)
        starts[i] = load_early(p.cu_seqlens + min_of(mine.first + i, p.requests));
    if (count == 1 && writes) {
        mine.slot = load_slot(p, mine.first);
        mine.length = load_length(p, mine.first, 0);
    }
#pragma unroll
    for (int i = 0; i < count; i++) {
        const int r = mine.first + i;
        if (writes && r < live && starts[i + 1] < starts[i])
            report_error(p.error, CAIRN_FAULT_LENGTH, r, (int64_t)starts[i + 1] - starts[i]);
        mine.tokens[i] = r < live ? tokens_between(starts[i], starts[i + 1]) : 0;
        mine.chunks[i] = ceil_div((uint32_t)mine.tokens[i], (uint32_t)p.block_tokens);
    }
    return mine;
}

/* Of all live requests: the first that is a prompt, their chunks, those of few tokens. */
struct totals { int split; uint32_t chunks, short_ones; };

/* The sum of all threads before this one: chunks in the upper half, requests of few tokens in the
 * lower; *all of everything. `first` is the first prompt of this thread. */
CAIRN_INLINE uint64_t block_scan(metadata_head &head, uint64_t mine, int first, totals *all) {
    const uint64_t upto = warp_scan(mine);
    first = warp_min(first);
    if (lane_id() == WARP - 1) {
        head.sums[warp_id()] = upto;
        head.firsts[warp_id()] = first;
    }
    block_sync();
    uint64_t before = 0, sum = 0;
#pragma unroll
    for (int w = 0; w < THREADS / WARP; w++) {
        if (w < warp_id()) before += head.sums[w];
        sum += head.sums[w];
    }
    all->split = warp_min(head.firsts[lane_id() % (THREADS / WARP)]);
    all->chunks = (uint32_t)(sum >> 32);
    all->short_ones = (uint32_t)sum;
    return before + upto - mine;
}

/* What request i of a run has, and its place in the order of decodes before prompts. */
template <int count>
CAIRN_INLINE void write_request(const short_conv_metadata_params &p, const run<count> &mine, int i,
                                bool decodes, int place) {
    const int r = mine.first + i, tokens = mine.tokens[i];
    const int slot = count == 1 ? mine.slot : load_slot(p, r);
    const int length = count > 1 ? load_length(p, r, tokens) : p.seq_lens ? mine.length : tokens;
    if (length < tokens) report_error(p.error, CAIRN_FAULT_LENGTH, r, length);
    if (p.has_initial) p.has_initial[r] = length > tokens;
    if (p.decode_indices) p.decode_indices[r] = decodes && tokens > 0 ? slot : -1;
    if (p.prompt_indices) p.prompt_indices[r] = decodes ? -1 : slot;
    if (p.order) p.order[place] = r;
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
CAIRN_INLINE void write_counts(const short_conv_metadata_params &p, int live, const totals &all,
                               uint32_t chunks) {
    const int start = p.cu_seqlens[0], middle = p.cu_seqlens[all.split], end = p.cu_seqlens[live];
    p.counts[0] = all.split;
    p.counts[1] = live - all.split;
    p.counts[2] = tokens_between(start, middle);
    p.counts[3] = tokens_between(middle, end);
    p.counts[4] = (int)min_of(chunks, (uint32_t)p.chunk_capacity);
    p.counts[5] = p.block_tokens;
    p.counts[6] = live;
    p.counts[7] = (int)all.short_ones == all.split;
}

/* This block's part of the list: the chunks of requests [split, live), then -1. */
CAIRN_INLINE void write_chunks(const short_conv_metadata_params &p, const uint32_t *prefix,
                               int live, int split, uint32_t chunks) {
    const int part = ceil_div(p.chunk_capacity, grid_blocks()), from = block_id() * part;
    const int to = min_of(from + part, p.chunk_capacity);
    for (int c = from + thread_id(); c < to; c += THREADS) {
        const bool is_chunk = (uint32_t)c < chunks;
        const uint32_t entry = prefix[split] + (uint32_t)c;
        int low = split, high = is_chunk ? live : split; /* prefix[low] <= entry < prefix[high] */
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            if (prefix[middle] <= entry) low = middle;
            else high = middle;
        }
        p.chunk_sequences[c] = is_chunk ? low : -1;
        p.chunk_offsets[c] = is_chunk ? (int)(entry - prefix[low]) : -1;
    }
}

/* What block 0 writes of a thread's requests. `before` as block_scan gives it, `decodes` the chunks
 * before the split. */
template <int count>
CAIRN_INLINE void write_run(const short_conv_metadata_params &p, const run<count> &mine, int live,
                            uint64_t before, const totals &all, uint32_t decodes) {
    uint32_t chunks = (uint32_t)(before >> 32), short_ones = (uint32_t)before;
#pragma unroll
    for (int i = 0; i < count; i++) {
        const int r = mine.first + i;
        const bool is_short = mine.tokens[i] <= p.decode_tokens;
        if (r >= live) return;
        write_request(p, mine, i, r < all.split,
                      (int)(is_short ? short_ones : all.short_ones + (uint32_t)r - short_ones));
        const uint32_t capacity = (uint32_t)p.chunk_capacity, start = chunks - decodes;
        if (r >= all.split && start <= capacity && start + mine.chunks[i] > capacity)
            report_error(p.error, CAIRN_FAULT_LENGTH, r, mine.tokens[i]);
        chunks += mine.chunks[i];
        short_ones += is_short;
    }
}

template <int count> CAIRN_INLINE void run_block(const short_conv_metadata_params &p) {
    metadata_head &head = *(metadata_head *)shared_base();
    uint32_t *prefix = (uint32_t *)(shared_base() + sizeof(metadata_head));
    const bool writes = block_id() == 0;
    const int given = p.live ? *p.live : p.requests, live = min_of(max_of(given, 0), p.requests);
    const run<count> mine = load_run<count>(p, live, writes);
    int first = live;
    uint64_t sum = 0;
#pragma unroll
    for (int i = count - 1; i >= 0; i--) {
        if (mine.first + i >= live) continue;
        const bool is_short = mine.tokens[i] <= p.decode_tokens;
        if (!is_short) first = mine.first + i;
        sum += (uint64_t)mine.chunks[i] << 32 | (uint64_t)is_short;
    }
    totals all;
    const uint64_t before = block_scan(head, sum, first, &all);
    uint32_t chunks = (uint32_t)(before >> 32);
#pragma unroll
    for (int i = 0; i < count; i++) {
        if (mine.first + i < live) prefix[mine.first + i] = chunks;
        chunks += mine.chunks[i];
    }
    if (thread_id() == 0) prefix[live] = all.chunks;
    block_sync();
    const uint32_t decodes = prefix[all.split];
    write_chunks(p, prefix, live, all.split, all.chunks - decodes);
    if (!writes) return;
    write_run(p, mine, live, before, all, decodes);
    write_tail(p, live);
    if (thread_id() != THREADS - 1) return;
    if (live != given) report_error(p.error, CAIRN_FAULT_LENGTH, 0, given);
    if (p.counts) write_counts(p, live, all, all.chunks - decodes);
}

CAIRN_KERNEL(short_conv_metadata, THREADS, 1, short_conv_metadata_params) { run_block<1>(p); }
CAIRN_KERNEL(short_conv_metadata_many, THREADS, 1, short_conv_metadata_params) { run_block<16>(p); }

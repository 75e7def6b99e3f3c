/* topk of long rows by clusters (the contract is in runtime_ops.h): CLUSTER blocks a row, each with a
 * slice of it on the chip.
 *
 * Route      "cluster", sm_90 and up
 *            1. While its scores come, every block guesses from some of them a key that its
 *               part of k scores reach; the blocks agree on one. Where they differ, as in rows that
 *               change slowly, each counts of its sample how many reach what the others named; where
 *               most see the same key many times, that is tried first, and step 2 left out if it is.
 *            2. Every block sends the keys that reach it to the first, which selects the k-th.
 *               When there are too many or too few, all blocks count theirs in bins over what range
 *               is left, until few enough lie in the bin of the k-th; but if most of too many are
 *               equal, they first see whether that key is the k-th.
 *            3. Knowing the k-th key and how many of those equal to it are taken, each block marks
 *               its own chosen scores in a bit map and writes them where the blocks before it end.
 * Constants  CAIRN_SCORE_TYPE  1 f32, 2 f16, 3 bf16 (cairn_type)
 *            CAIRN_THREADS, CAIRN_ITEMS  a tile is their product; at most 32 items
 *            CAIRN_CLUSTER  blocks a row, a power of two up to 16
 *            CAIRN_STAGES  tiles kept in shared memory: 0 or, with a capacity of 5120, 1, which
 *                          takes up to 227 KiB
 *            CAIRN_CAPACITY  keys the first block can select from
 *            CAIRN_LISTED    of which one block may have so many: its part of them at least, all at most
 *            CAIRN_ROOM      places for them at the first block, of which some stay empty
 * Launch     grid rows x CLUSTER, block THREADS, shared memory as ops/topk/topk_cuda.c computes it
 * Oracle     tests/ops/topk_test.c sorts
 * matrix: arch>=90 CAIRN_SCORE_TYPE=1 CAIRN_THREADS=512 CAIRN_ITEMS=16 CAIRN_CLUSTER=16
 * matrix: + CAIRN_STAGES=0 CAIRN_CAPACITY=8192 CAIRN_LISTED=6656 CAIRN_ROOM=9472
 * matrix: arch>=90 CAIRN_SCORE_TYPE=1 CAIRN_THREADS=512 CAIRN_ITEMS=32 CAIRN_CLUSTER=2
 * matrix: + CAIRN_STAGES=0 CAIRN_CAPACITY=2048 CAIRN_LISTED=1024 CAIRN_ROOM=2048
 * matrix: arch>=90 CAIRN_SCORE_TYPE=2 CAIRN_THREADS=1024 CAIRN_ITEMS=32 CAIRN_CLUSTER=2
 * matrix: + CAIRN_STAGES=1 CAIRN_CAPACITY=5120 CAIRN_LISTED=3072 CAIRN_ROOM=5216
 * matrix: arch>=90 CAIRN_SCORE_TYPE=1 CAIRN_THREADS=1024 CAIRN_ITEMS=32 CAIRN_CLUSTER=8
 * matrix: + CAIRN_STAGES=0 CAIRN_CAPACITY=8192 CAIRN_LISTED=6656 CAIRN_ROOM=8832
 * matrix: arch>=90 CAIRN_SCORE_TYPE=1 CAIRN_THREADS=1024 CAIRN_ITEMS=32 CAIRN_CLUSTER=16
 * matrix: + CAIRN_STAGES=1 CAIRN_CAPACITY=5120 CAIRN_LISTED=3072 CAIRN_ROOM=5888 */
#include "device/common.cuh"
#include "abi/topk.h"
#include "topk/topk.cuh"
#include "topk/slice.cuh"

#if CAIRN_ARCH >= 900
#include "topk/cluster.cuh"
#include "topk/kth.cuh"

/* What this block has to write: elements in a list, from an output slot on. */
struct written_part { const int32_t *list; int origin; uint32_t offset, count; };

/* Has the first block sort what all are to write. */
CAIRN_INLINE void sort_part(const topk_params &p, const row_slice &w, written_part &part,
                            uint32_t found) {
    staged_shared &all = *(staged_shared *)shared_base();
#pragma unroll 1
    for (uint32_t i = (uint32_t)thread_id(); i < part.count; i += THREADS) {
        const uint32_t slot = part.offset + i;
        remote_store(remote(shared_addr(&all.sort_keys[slot]), 0), topk_key(w.base[part.list[i]]));
        remote_store(remote(shared_addr(&all.sort_positions[slot]), 0), part.origin + part.list[i]);
    }
    cluster_sync();
    part = {all.sort_positions, 0, 0, cluster_rank() == 0 ? found : 0};
    if (cluster_rank() != 0) return;
    pad_entries(all.sort_keys, all.sort_positions, (int)found, p.sort_size);
    sort_entries(all.sort_keys, all.sort_positions, p.sort_size);
}

/* Lists this block's share of what the verdict says; how many the row has in all. When some of its
 * ties are taken and some not, a first visit finds the last that is. */
CAIRN_INLINE uint32_t list_chosen(cluster_shared &s, const row_slice &w, const thread_bits &bits,
                                  chosen_items chosen, verdict v, written_part &part) {
    uint32_t ties = v.ties ? v.ties : EVERY;
    chosen.key = v.key;
    chosen.cut = v.ties ? NO_POSITION : -1;
    part = {(const int32_t *)s.keys, w.origin, v.offset, 0};
#pragma unroll 1
    for (;;) {
        part.count = visit_items(s, w, bits, chosen, ties, (int32_t *)s.keys);
        if (ties == EVERY) return v.found;
        chosen.cut = s.cut;
        ties = EVERY;
    }
}

/* Finds the row's best k: `part` gets this block's share; how many the row has in all. */
CAIRN_INLINE uint32_t choose(cluster_shared &s, const topk_params &p, const row_slice &slice,
                             written_part &part) {
    tile_data held;
    const uint32_t floor = p.finite_only ? KEY_MINUS_INFINITY + 1 : 0;
    clear_words(s.bins);
    clear_words(s.map);
    if (thread_id() == 0) s.count[0] = s.count[1] = s.shared_out = 0;
    load_sample(slice, (u32x4 *)s.keys);
    load_vectors<VECTORS>(slice, 0, 0, held.raw);
    stage_second(slice);
    const float wanted = sample_wanted(slice, p.k);
    if (!STAGES) cluster_wait(); /* every block has begun and set up its barriers: while the first scores come, */
    copy_async_wait<STAGES>();
    const u32x4 guess = slice_guess(s, kept_slice(), wanted);
    const row_slice &w = kept_slice();
    if (STAGES) cluster_wait(); /* or, where more are on their way, behind the guess */
    const agreed_guess agreed = agree(s, w, guess, wanted, floor);
    key_range keys = agreed.keys;
    key_region regions = agreed.region;
    const uint32_t tied = agreed.tied;
    thread_bits bits = find_candidates(held, tied ? tied : keys.low, tied ? tied + 1 : 0);
    const uint32_t k = (uint32_t)p.k;
    uint32_t need = k, phase = 0;
    if (thread_id() == 0) s.guessed = keys;
    keys.high = KEY_INFINITY;
    verdict v = {MANY_EQUAL, 0, tied, EVERY};
    bool places = !tied, listed = false, again = false;
#pragma unroll 1
    for (;;) {
        if (places) {
            begin_selecting(s, keys.low, need);
            place(s, w, bits, keys.low, keys.high + 1, regions, s.count[phase]);
            if (thread_id() == 0) send_count(s, s.count[phase]);
            if (cluster_rank() == 0)
                decide(s, keys, again ? keys.high : s.guessed.high, need, regions, keys.low == floor || again, again,
                       phase);
            mbarrier_wait_cluster(shared_addr(&s.verdict_in), phase);
            v = bit_cast<verdict>(s.told);
            listed = v.found != EVERY && !again;
            if (listed) break;
            if (v.found == EVERY && thread_id() == 0) begin_again(s);
            phase = 1;
        }
        const int on_chip = places || again ? 0 : 1 + STAGES;
        again = true;
        regions = key_region::even(REGION);
        const bool sure = v.found != EVERY || v.key != MANY_EQUAL;
        if (v.found == EVERY && sure) {
            uint32_t top = s.guessed.high;
            keys = {v.key == TOO_FEW ? floor : s.guessed.low, KEY_INFINITY};
            need = k;
#pragma unroll 1
            for (uint32_t inside = EVERY; inside > min_of(REGION, LISTED) && keys.low < keys.high;) {
                const bin_search at = narrow_cluster(keys, top, need);
                keys = at.range;
                top = keys.high;
                need = at.need;
                inside = at.inside;
            }
        } else keys.low = keys.high = v.found == EVERY ? v.ties : v.key;
        cluster_arrive_relaxed(); /* what was read of other blocks has been, before they end */
        const slice_scan scan = scan_slice(bits, on_chip, keys.low, keys.high + 1);
        cluster_wait();
        bits = scan.bits;
        places = keys.low < keys.high;
        if (!places) {
            v = share_alone(s, keys.low, k, scan, sure);
            if (v.found != EVERY) break;
            block_sync(); /* all have seen how often */
            if (thread_id() == 0) share_again(s);
            v.key = tied ? TOO_FEW : TOO_MANY;
        }
    }
    return list_chosen(s, w, bits, {listed, 0, 0}, v, part);
}

/* The largest regions take more registers than two blocks leave each other. */
CAIRN_KERNEL(topk_cluster, THREADS, CAPACITY > 4096 ? 1 : 1024 / THREADS, topk_params) {
    cluster_shared &s = shared_as<staged_shared, 227 * 1024>().s;
    const int r = block_id() / CLUSTER, rank = cluster_rank();
    if (thread_id() == 0) begin_barriers(s);
    cluster_arrive_relaxed();
    grid_follow();
    topk_range range = topk_row_range(p, r, rank == 0 && thread_id() == 0);
    /* All of them, without reading a score, by the first block; nobody waits for the others. */
    const bool all = range.length <= p.k && !p.finite_only && !p.sort_size;
    if (all && rank != 0) {
        cluster_wait();
        return;
    }
    const score_t *row = (const score_t *)p.scores + (int64_t)r * p.stride + range.start;
    const row_slice slice = slice_of(row, range.length, rank);
    if (thread_id() == 0) kept_slice() = slice, s.out = topk_row_out(p, r, row);
    uint32_t found = (uint32_t)range.length;
    written_part part = {nullptr, 0, 0, found};
    if (all) block_sync();
    else {
        found = choose(s, p, slice, part);
        if (p.sort_size) sort_part(p, kept_slice(), part, found);
    }
#pragma unroll 1
    for (uint32_t i = (uint32_t)thread_id(); i < part.count; i += THREADS)
        topk_write(s.out, (int)(part.offset + i), part.list ? part.origin + part.list[i] : (int)i);
    if (all) cluster_wait();
    if (rank != 0) return;
#pragma unroll 1
    for (int i = (int)found + thread_id(); i < p.k; i += THREADS) topk_write_none(s.out, i);
}

#endif

/* Page-sparse attention of a step in one launch: a cluster of blocks for each row and KV head scores the candidates
 * together, each of its blocks chooses from all their keys, and together they attend what was chosen. Nothing
 * goes through memory in between.
 *
 * step_select_attend
 *               as step_select and step_attend_pages one after the other, to the bit. Grid (blocks of a cluster,
 *               LAYOUT_SELECT_CLUSTER or more, rows, kv_heads); CAIRN_WARPS warps; shared memory CHAIN_AT +
 *               layout_select_attend_bytes. Query heads of a KV head LAYOUT_STEP_CHAIN_HEADS at most.
 *
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0. Sync: one cluster barrier, and three for what the
 * blocks send each other. sm_90 and up.
 * Reference: tests/ref/decoder_step.h.
 * matrix: arch>=90 CAIRN_LAYERS=32 CAIRN_HIDDEN=4096 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=14336 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=33 CAIRN_PACK_GATE_UP=32 CAIRN_PACK_DOWN=35
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=32 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0
 * matrix: arch>=90 CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=1
 * matrix: + CAIRN_ABILITIES=3 */
#include "step/pages.cuh"
#include "step/cluster.cuh"

constexpr int INBOX_AT = CHAIN_AT + layout_step_chain_bytes(SHARE, HEAD_DIM);
constexpr int EIGHTS_AT = INBOX_AT + layout_inbox_bytes(layout_most_runs(KV_HEADS), GROUP, HEAD_DIM);
constexpr int SELECTION_AT = EIGHTS_AT + LAYOUT_SELECT_COUNTED / 2;
static_assert(SHARES == 1 && GROUP <= LAYOUT_STEP_CHAIN_HEADS, "select_attend: heads of a KV head");
static_assert(CHAIN_AT % 16 == 0 && SELECTION_AT % 16 == 0, "select_attend: alignment");

/* ---- what the blocks of a cluster tell each other ---- */

/* The keys of all candidates, and which of them are kept: to every block the other ones' parts. Part i of `parts` is a
 * block's own where i is its rank modulo the blocks. */
CAIRN_INLINE int own_parts(int parts) {
    const int rank = cluster_rank(), blocks = cluster_size();
    return parts > rank ? (parts - rank - 1) / blocks + 1 : 0;
}

CAIRN_INLINE exchange exchange_of(unsigned char *memory, int which) {
    return {shared_addr(memory + WORDS_AT + which * 8)};
}
/* Before the others send anything. */
CAIRN_INLINE void begin_exchanges(unsigned char *memory) {
    if (thread_id() == 0) {
        for (int i = 0; i < 2; i++) exchange_of(memory, i).open();
        cluster_inbox(memory + INBOX_AT, GROUP).mail.open();
        fence_mbarrier_init();
    }
    block_sync();
    cluster_arrive_relaxed();
}

/* ---- the choice ---- */

/* Keys that this block's warps made, each its own, to the other blocks. */
CAIRN_INLINE void share_keys(const selection &s, int n, const exchange &keys) {
    constexpr int VECTORS = SCORED / 4;
    const int rank = cluster_rank(), blocks = cluster_size(), tiles = ceil_div(n, SCORED);
    const int missing = (tiles - 1) % blocks == rank ? tiles * VECTORS - ceil_div(n, 4) : 0; /* of the last tile */
    if (thread_id() == 0) keys.expect((ceil_div(n, 4) - own_parts(tiles) * VECTORS + missing) * 16);
    warp_sync();
#pragma unroll 1
    for (int first = (warp_id() * blocks + rank) * SCORED; first < n; first += blocks * WARPS * SCORED)
        for (int i = lane_id(); i < blocks * VECTORS; i += WARP) {
            const int to = i / VECTORS, at = first + i % VECTORS * 4;
            if (to != rank && at < n) keys.send((u32x4 *)(s.keys + at), *(const u32x4 *)(s.keys + at), to);
        }
}

/* Up to so many candidates each block counts for an eighth of them how many come before: fewer steps than a
 * search for the last that is kept. */
#ifndef CAIRN_COUNTED
#define CAIRN_COUNTED LAYOUT_SELECT_COUNTED
#endif
constexpr int COUNTED = CAIRN_COUNTED;

/* How many of keys [n], with zeros up to a multiple of four, come before candidate c, whose key is `key`: those
 * that are higher, of equal ones the earlier. By the four lanes of a quad. */
CAIRN_INLINE int count_ahead(const uint32_t *keys, int n, int c, uint32_t key) {
    const int own = c & ~3, t = lane_id() % 4;
    int count = 0;
#pragma unroll 4
    for (int j = 4 * t; j < n; j += 16) {
        const u32x4 v = *(const u32x4 *)(keys + j);
        const uint32_t below = j < own ? key - 1 : key; /* never 0 */
        count += (v.x > below) + (v.y > below) + (v.z > below) + (v.w > below);
    }
    if (t < c - own) count += keys[own + t] == key;
    count += shuffle_xor(count, 1);
    return count + shuffle_xor(count, 2);
}

/* Of the eight candidates of quads 0 to 7, a bit each. */
CAIRN_INLINE uint32_t bits_of_quads(bool kept) {
    uint32_t bits = warp_ballot(kept) & 0x11111111u;
    bits = (bits | bits >> 3) & 0x03030303u;
    bits = (bits | bits >> 6) & 0x000f000fu;
    return (bits | bits >> 12) & 0xffu;
}

/* eights[i]: which of candidates 8i to 8i + 7 are among the k highest; in all blocks, after all.await(). */
CAIRN_INLINE void choose_counted(const selection &s, int n, int k, uint32_t *eights, const exchange &all) {
    const int rank = cluster_rank(), blocks = cluster_size(), parts = ceil_div(n, 8);
    if (thread_id() == 0) all.expect((parts - own_parts(parts)) * 4);
#pragma unroll 1
    for (int i = warp_id() * blocks + rank; i < parts; i += WARPS * blocks) {
        const int c = i * 8 + lane_id() / 4;
        const bool real = c < n;
        const int ahead = count_ahead(s.keys, n, real ? c : 0, real ? s.keys[c] : 1u);
        const uint32_t bits = bits_of_quads(real && ahead < k);
        if (lane_id() == rank) eights[i] = bits;
        else if (lane_id() < blocks) all.send(eights + i, bits, lane_id());
    }
}

/* The bits of pages 32 word to 32 word + 31 (select/core.cuh: choose_pages), where `kept` of the n candidates are. */
CAIRN_INLINE page_bits bits_of_word(int word, uint32_t kept, int n, int own, int sinks) {
    page_bits b = {kept & bits_below(n, word), 0};
    b.whole |= bits_below(own + 1, word) & ~bits_below(n, word);
    b.listed = b.whole | (bits_below(n, word) & bits_below(sinks, word));
    return b;
}

/* The list of pages, ascending; returns how many. bits(word). All threads, and then a block_sync. */
template <class Bits>
CAIRN_INLINE int list_pages(int words, int32_t *list, Bits bits) {
    int before = 0;
#pragma unroll 1
    for (int first = 0; first < words; first += WARP) { /* each warp goes through all, and writes its own */
        const int own = first + lane_id();
        const page_bits b = own < words ? bits(own) : page_bits{0, 0};
        const int count = popcount(b.listed), end = before + warp_scan(count);
#pragma unroll 1
        for (int i = warp_id(); i < min_of(WARP, words - first); i += WARPS) {
            const uint32_t listed = shuffle(b.listed, i), whole = shuffle(b.whole, i);
            const int to = shuffle(end - count, i) + popcount(listed & ((1u << lane_id()) - 1));
            const int page = (first + i) * WARP + lane_id();
            if (listed >> lane_id() & 1) list[to] = whole >> lane_id() & 1 ? page : page | SINKS_ALONE;
        }
        before = shuffle(end, WARP - 1);
    }
    return before;
}

/* The pages of the row, of whose n candidates all keys are known to all blocks: the list in place of the keys.
 * Leaves their bits, too; returns their number. All threads, and then a block_sync. */
CAIRN_INLINE int choose_list(const step_params &p, const page_row &r, const selection &s, int n, int32_t *list,
                             unsigned char *memory) {
    const int own = r.position / PAGE, words = own / WARP + 1, sinks = layout_sink_pages(p.sinks, PAGE);
    uint32_t *eights = (uint32_t *)(memory + EIGHTS_AT); /* a block without candidates may still split the queries */
    if (n > COUNTED) {
        choose_pages(s, n, p.topk, own, sinks);
        block_sync();
        return list_pages(words, list, [&](int word) { return s.bits[word]; });
    }
    if (n) {
        const exchange all = exchange_of(memory, 1);
        choose_counted(s, n, p.topk, eights, all);
        all.await();
    }
    return list_pages(words, list, [&](int word) {
        uint32_t kept = 0;
        for (int i = 0; i < 4 && word * 4 + i < ceil_div(n, 8); i++) kept |= eights[word * 4 + i] << i * 8;
        const page_bits b = bits_of_word(word, kept, n, own, sinks);
        if (warp_id() == 0) s.bits[word] = b; /* alike in all warps */
        return b;
    });
}

/* The keys of all candidates in all blocks, and the row's queries in shared memory. */
CAIRN_INLINE void score_all(const step_params &p, const page_row &r, step_cache cache, uint8_t *layer,
                            unsigned char *memory, const selection &s, int n) {
    const int own = r.position / PAGE, last = (ceil_div(n, SCORED) - 1) % cluster_size(); /* whose the last tile is */
    begin_exchanges(memory);
    for (int i = thread_id() * WARP; i <= own; i += THREADS * WARP) load_early((const uint32_t *)r.table + i);
    if (cluster_rank() == last && thread_id() < round_up(n, 4) - n) s.keys[n + thread_id()] = 0;
    const auto queries = [&] {
        start_input();
        gather_queries(p, r.row, 1, r.kv_head, layer, memory);
        block_sync();
    };
    if (n)
        score_candidates(
            p, r, p.layer, s, cluster_rank(), cluster_size(), queries,
            [&](int h, int word) {
                return *(const uint32_t *)(memory + QUERIES_AT + piece_at(h, word / 4) + word % 4 * 4);
            },
            [&](int page) { return cached_bounds(cache + r.page_at(page), p.mean != 0); }, s.keys);
    else queries();
    cluster_wait();
    if (!n) return;
    const exchange keys = exchange_of(memory, 0);
    share_keys(s, n, keys);
    keys.await();
}

/* ---- attention ---- */

/* Asks for the keys and values of chunks [first, end) of a warp, AHEAD at most, so that they are near when their
 * turn comes. */
template <class Cache, class Keys>
CAIRN_INLINE void prefetch_chunks(Cache cache, int first, int end, const Keys &keys) {
    if constexpr (CACHE_KIND == ATTEND_CACHE_F16) {
        constexpr int LINES = ceil_div(HEAD_DIM, 64); /* of 128 bytes, of a key */
#pragma unroll 1
        for (int chunk = first; chunk < end && chunk % Keys::AHEAD; chunk++) {
            key_piece piece[WARP_PIECES];
            keys.find(chunk, piece);
#pragma unroll
            for (int i = 0; i < WARP_PIECES; i++)
                for (int n = lane_id(); n < 16 * LINES; n += WARP) {
                    const uint16_t *at = cache + piece[i].at + n / LINES * HEAD_DIM + n % LINES * 64;
                    if (n / LINES > piece[i].last) continue;
                    prefetch_l2(at);
                    prefetch_l2(at + VALUE_STEP);
                }
        }
    }
}

/* How the row's list is cut into runs, and these are dealt out to the blocks: `each` a block, in order. */
struct list_runs {
    int chunks, run, count, each; /* run: chunks of a run; count: runs */

    CAIRN_MEMBER list_runs(const step_params &p, const page_row &r, int pages)
        : chunks(layout_chunks(pages, PAGE, HEAD_DIM)),
          run(layout_run(layout_chunks(r.most_listed(p), PAGE, HEAD_DIM), KV_HEADS)),
          count(ceil_div(chunks, run)), each(ceil_div(count, cluster_size())) {}
};

/* This block's runs of the list, to who merges them. All threads, behind a block_sync. */
CAIRN_INLINE void attend_own(const step_params &p, const page_row &r, step_cache cache, unsigned char *memory,
                             chosen_pages pages, const list_runs &runs, const cluster_inbox &inbox) {
    const int first = cluster_rank() * runs.each, run = runs.run;
    const int stop = min_of((first + runs.each) * run, runs.chunks);
    listed_pieces<chosen_pages> pieces = {pages, KV_HEADS, r.kv_head, r.position + 1, p.sinks, stop, {}};
    key_piece piece[STAGES * WARP_PIECES];
    if (first * run >= stop) return;
    if (warp_id() < CORE_WARPS) {
        begin_chunks(cache, VALUE_STEP, memory, first * run, stop, piece, pieces);
        prefetch_chunks(cache, first * run + 1, stop, pieces);
    }
    copy_async_wait<2 * STAGES - 2>();
    warp_sync();
    attend_chain<layout_step_chain_places(SHARE)>(
        p, cache, memory, first, run, stop, GROUP, piece, pieces,
        [](const key_piece &from, int) { return from.last; }, [](int, const key_piece *, auto &) {},
        [&](int number, const f32x2 *totals, const unsigned char *parts, int step) {
            inbox.send(number, totals, parts, step);
        });
}

/* What a row chose, for the count of pages read and for who asks. */
CAIRN_INLINE void tell_pages(const step_params &p, const page_row &r, const page_bits *bits, const int32_t *list,
                             int count) {
    const int at = r.row * KV_HEADS + r.kv_head;
    for (int word = thread_id(); word <= r.position / PAGE / WARP; word += THREADS)
        if (bits[word].listed) count_pages(p, r, word, bits[word].listed);
    for (int i = thread_id(); i < count; i += THREADS) p.lists[(int64_t)at * p.list_stride + i] = list[i];
    if (thread_id() == 0) p.list_counts[at] = count;
}

CAIRN_KERNEL(step_select_attend, THREADS, 1, step_params) {
    unsigned char *memory = shared_base();
    uint8_t *layer = region(p, 0, 0);
    const step_cache cache = cache_of(p, p.layer);
    const selection s(memory + SELECTION_AT, MOST_PAGES);
    int32_t *const list = (int32_t *)s.keys;
    page_row r;
    r.find(p, block_id_y(), block_id_z(), true);
    const int n = r.choices(p);
    score_all(p, r, cache, layer, memory, s, n);
    const int count = choose_list(p, r, s, n, list, memory);
    block_sync();
    if (cluster_rank() == cluster_size() - 1) tell_pages(p, r, s.bits, list, count); /* which has the fewest runs */
    const list_runs runs(p, r, count);
    const cluster_inbox inbox(memory + INBOX_AT, GROUP);
    if (thread_id() == 0) inbox.expect(runs.count);
    attend_own(p, r, cache, memory, {list, r.table, count}, runs, inbox);
    merge_cluster(inbox, runs.count, r.row, r.kv_head, layer);
}

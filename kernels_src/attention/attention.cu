/* attention: softmax over the paged cache, dense, windowed or over selected pages: the core of
 * attention/core.cuh for the op's tensors. What a row attends: attention/layout.h.
 *   out = sum_t e^(s_t) v_t / sum_t e^(s_t),  s_t = scale * q.k_t,  lse = ln sum_t e^(s_t)
 *
 * Constants  CAIRN_HEAD_DIM   multiple of 16 up to 256;  CAIRN_PAGE_SIZE  multiple of 16 up to 256
 * Launch     grid (runs at most, kv_heads x ceil(group / 16), rows), block CORE_WARPS x 32, shared
 *            layout_attend_bytes + layout_list_bytes. The last block of a row and tile of heads to
 *            finish merges its runs, so a row's result depends on nothing but the row. To the bit the same:
 *            with CHAINED a block takes several runs, for fewer starts; with CLUSTER (sm_90 and up) the
 *            blocks of a row and tile, as many as its runs or more, are a cluster, and each is sent what all
 *            runs give for some of the values and merges these; with RELAY (grid (tiles, rows, runs at most))
 *            the blocks of a row's last runs wait for what the others leave in memory, and merge it.
 * Numerics   q, k, v and the weights e^(s - m) enter mma m16n8k16 as f16; all sums f32. The bits of
 *            step_attend and step_attend_pages where q is of f16.
 * A page that the table does not hold contributes nothing and is reported. Other caches, queries and
 * rules: attention/abilities.cuh, by CAIRN_ABILITIES (0 if it is not defined).
 * matrix: CAIRN_HEAD_DIM=128 CAIRN_PAGE_SIZE=64 | CAIRN_HEAD_DIM=64 CAIRN_PAGE_SIZE=16
 * matrix: CAIRN_HEAD_DIM=256 CAIRN_PAGE_SIZE=128 | CAIRN_HEAD_DIM=80 CAIRN_PAGE_SIZE=32
 * matrix: CAIRN_HEAD_DIM=128 CAIRN_PAGE_SIZE=64 CAIRN_ABILITIES=227
 * matrix: CAIRN_HEAD_DIM=128 CAIRN_PAGE_SIZE=64 CAIRN_ABILITIES=2051
 * matrix: CAIRN_HEAD_DIM=64 CAIRN_PAGE_SIZE=64 CAIRN_ABILITIES=896
 * matrix: CAIRN_HEAD_DIM=256 CAIRN_PAGE_SIZE=16 CAIRN_ABILITIES=1027
 * matrix: arch>=90 CAIRN_HEAD_DIM=128 CAIRN_PAGE_SIZE=64 CAIRN_ABILITIES=4096
 * matrix: arch>=90 CAIRN_HEAD_DIM=80 CAIRN_PAGE_SIZE=32 CAIRN_ABILITIES=4323
 * matrix: CAIRN_HEAD_DIM=128 CAIRN_PAGE_SIZE=64 CAIRN_ABILITIES=8192
 * matrix: CAIRN_HEAD_DIM=256 CAIRN_PAGE_SIZE=16 CAIRN_ABILITIES=9219 */
#ifndef CAIRN_ABILITIES
#define CAIRN_ABILITIES 0
#endif
#define CAIRN_PAGES_CSR (CAIRN_ABILITIES >> 4 & 1)
#include "attention/core.cuh"
#include "abi/attention.h"
#include "attention/paged.cuh"
#include "attention/abilities.cuh"
#include "attention/tile.cuh"
#include "attention/cluster.cuh"
#include "attention/relay.cuh"

/* In shared memory: a bit for each selected page; the low entries of the block's run. */
CAIRN_INLINE uint32_t *selected_bits() { return (uint32_t *)(shared_base() + LISTS_AT); }
CAIRN_INLINE int32_t *low_entries(int max_pages) {
    return (int32_t *)selected_bits() + ceil_div(max_pages, WARP);
}

/* The pages that are chosen for this block's row. */
CAIRN_INLINE const int32_t *choice_of(const attend_params &p, int kv_head) {
    return p.selected + ((int64_t)row_of_block() * p.at.kv_heads + kv_head) * p.topk;
}

/* What a row attends, and the part of its list that this block works on. */
struct row_list {
    paged_row row;
    int first;       /* page from which on all are attended */
    int low;         /* entries of pages below that one; without a selection those with sinks */
    int length;      /* entries in all */
    int run;         /* chunks of a run */
    int span;        /* of the block's runs */
    int from;        /* the first entry of these */

    /* asked: of this thread, its page of the selection (choice_of). */
    CAIRN_MEMBER void find(const attend_params &p, int kv_head, int block, int asked) {
        const int own = row.position / PAGE, topk = p.selected ? p.topk : 0;
        const int sinks = PARTED && p.part == ATTEND_PART_PAGES ? 0 : p.sinks;
        first = p.window > 0 || p.sparse ? layout_candidates(row.position, p.window, PAGE) : 0;
        run = layout_run(layout_chunks(layout_most_listed(row.position, first, topk, sinks, PAGE),
                                       PAGE, DIM), p.at.kv_heads);
        span = CHAINED ? run * layout_chained(p.chain, run) : run;
        from = block * span * CHUNK / PAGE;
        low = min_of(first, layout_sink_pages(sinks, PAGE));
        if (topk && topk <= WARP && low == 0) select_few(p, topk, asked, low_entries(p.at.max_pages));
        else if (topk) select(p, choice_of(p, kv_head), topk, asked, low_entries(p.at.max_pages));
        length = PARTED && p.part == ATTEND_PART_PAGES ? low : low + own - first + 1;
    }
    /* Where what is added to the scores of their pages stands. */
    CAIRN_MEMBER float *bias(const attend_params &p) const {
        return (float *)(low_entries(p.at.max_pages) + span * CHUNK / PAGE + 2 + CORE_WARPS);
    }
    /* Up to 32 selected pages, ascending, where there are no sinks: a page's place is the number of those
     * below it. All threads; those of the first warp do it. */
    CAIRN_MEMBER void select_few(const attend_params &p, int topk, int asked, int32_t *list) {
        const int room = span * CHUNK / PAGE + 2;
        if (warp_id() == 0) {
            const bool counts = lane_id() < topk && asked >= 0 && asked < first;
            if (counts) paged_physical_soon(p.at, row, asked);
            const uint32_t same = match_any((uint32_t)(counts ? asked : -1));
            const bool once = counts && (int)find_first_set(same) == lane_id() + 1;
            const int page = once ? asked : 0x7fffffff;
            int at = -from;
#pragma unroll
            for (int i = 0; i < WARP; i++) at += shuffle(page, i) < page;
            if (once && at >= 0 && at < room) list[at] = page;
            const uint32_t kept = warp_ballot(once);
            if (lane_id() == 0) list[room] = popcount(kept);
        }
        block_sync();
        low = list[room];
    }
    /* The selected pages and those with sinks, ascending. All threads. */
    CAIRN_MEMBER void select(const attend_params &p, const int32_t *selected, int topk, int asked,
                             int32_t *list) {
        uint32_t *words = selected_bits();
        const int count = ceil_div(first, WARP), each = ceil_div(count, THREADS);
        const int sinks = low, begin = thread_id() * each, end = min_of(begin + each, count);
        const int to = from + span * CHUNK / PAGE + 2;
        int *totals = (int *)list + (to - from);
        for (int i = thread_id(); i < count; i += THREADS) words[i] = 0;
        block_sync();
        for (int i = thread_id(); i < topk; i += THREADS) {
            const int page = i < THREADS ? asked : selected[i];
            if (page < 0 || page >= first) continue;
            atomic_or(words + page / WARP, 1u << page % WARP);
            paged_physical_soon(p.at, row, page);
        }
        block_sync();
        int mine = 0;
        for (int i = begin; i < end; i++)
            mine += popcount(words[i] | (bits_below(first, i) & bits_below(sinks, i)));
        int at = sum_before(mine, totals);
        low = 0;
        for (int w = 0; w < CORE_WARPS; w++) low += totals[w];
        for (int i = begin; i < end; i++) {
            uint32_t left = words[i] | (bits_below(first, i) & bits_below(sinks, i));
            for (; left; left &= left - 1, at++) {
                const int bit = find_first_set(left) - 1, page = i * WARP + bit;
                if (at >= from && at < to)
                    list[at - from] = words[i] >> bit & 1 ? page : page | SINKS_ALONE;
            }
        }
        block_sync();
    }
};

/* Its entries, for listed_pieces. */
struct row_pages {
    const attend_params &p;
    const row_list &of;

    CAIRN_MEMBER page_entry entry(int i) const {
        int page = i - of.low + of.first;
        if (page > of.row.position / PAGE || (PARTED && i >= of.length)) return page_entry{0, -1};
        if (i < of.low) {
            const bool chosen = p.selected && p.topk;
            page = chosen ? low_entries(p.at.max_pages)[i - of.from] : i | SINKS_ALONE;
        }
        const int physical = paged_physical(p.at, of.row, page & ~SINKS_ALONE);
        if (physical < 0)
            report_error(p.at.error, CAIRN_FAULT_ID, row_of_block(), page & ~SINKS_ALONE);
        return page_entry{page, physical};
    }
};

/* Where piece i of consecutive heads, PIECES each, begins among their values. */
CAIRN_INLINE int piece_value(int i) {
    return DIM == HEAD_DIM ? i * 8 : i / PIECES * HEAD_DIM + i % PIECES * 8;
}

/* Queries [count, HEAD_DIM] from row `head` on, as f16, into shared memory; those missing of the 16 are
 * not used. */
CAIRN_INLINE void load_queries(const attend_params &p, int64_t head, int count,
                               unsigned char *memory) {
    const float *from = (const float *)p.q + head * HEAD_DIM;
    const bool aligned = (uint64_t)from % 16 == 0;
    for (int i = thread_id(); i < count * PIECES; i += THREADS) {
        u32x4 *to = (u32x4 *)(memory + QUERIES_AT + piece_at(i / PIECES, i % PIECES));
        if (!has_piece(i % PIECES)) {
            *to = u32x4{};
            continue;
        }
        if constexpr (CAIRN_ABILITIES & (ATTEND_QUERY_F16 | ATTEND_QUERY_BF16)) {
            *to = half_of_query(p.q, head * HEAD_DIM + piece_value(i));
            continue;
        }
        const float *x = from + piece_value(i);
        f32x4 v[2];
        if (aligned) {
            v[0] = load_constant((const f32x4 *)x), v[1] = load_constant((const f32x4 *)x + 1);
        } else {
            v[0] = f32x4{x[0], x[1], x[2], x[3]}, v[1] = f32x4{x[4], x[5], x[6], x[7]};
        }
        *to = u32x4{pack_f16x2(v[0].x, v[0].y), pack_f16x2(v[0].z, v[0].w),
                    pack_f16x2(v[1].x, v[1].y), pack_f16x2(v[1].z, v[1].w)};
    }
}

/* What the block is sent, where its row is a cluster's. */
CAIRN_INLINE cluster_inbox inbox_of(const tile &at) { return {shared_base() + CHAIN_AT, at.count}; }

/* Where its row's runs, so many, go by relay: the sums lie behind all values. */
CAIRN_INLINE relay_row relay_of(const attend_params &p, const tile &at, int runs) {
    const int64_t slots = (int64_t)grid_blocks_y() * tiles_of_grid(), states = (int64_t)p.runs * at.most;
    const int64_t first = at.slot() * states;
    return {p.arrived + first * HEAD_DIM, p.arrived + slots * states * HEAD_DIM + first * p.mergers * 2,
            at.most * HEAD_DIM, at.most * p.mergers * 2, at.count, p.mergers, min_of(p.mergers, runs)};
}
/* The blocks that are waited for began before, or find room beside (runtime/ops/attention/attend.c). */
struct any_time {
    CAIRN_MEMBER bool more() const { return true; }
};

/* Hands on the sums of run number `run`, which the warps left, step after step from `parts`. */
CAIRN_INLINE void put_run(const attend_params &p, const tile &at, int run, int runs,
                          const unsigned char *parts, int step, unsigned char *memory) {
    const f32x2 *const totals = (const f32x2 *)(memory + TOTALS_AT);
    if constexpr (CLUSTERED) return inbox_of(at).send(run, totals, parts, step);
    if constexpr (RELAYED) return relay_of(p, at, runs).send(run, totals, parts, step);
    const int64_t first = (at.slot() * at.runs(p) + run) * at.most;
    merge_warps(totals, parts, step, at.count, [&](int m, int d, f32x4 v, f32x2 sums) {
        *(f32x4 *)(p.partial + (first + m) * HEAD_DIM + d) = v;
        if (d == 0) ((f32x2 *)p.sums)[first + m] = sums;
    });
}

/* What a block needs to know again once its runs are folded: it waits in shared memory so that the
 * registers are the keys' own. */
struct chain_place {
    int32_t blocks, runs, run; /* of the row; chunks of a run */
};
CAIRN_INLINE chain_place *place_of(unsigned char *memory) {
    return (chain_place *)(memory + WORDS_AT);
}

/* Chunks [begin, end), in runs of `run` chunks, from one on. */
template <class Cache, class Keys, class Adjust>
CAIRN_INLINE void fold_runs(const attend_params &p, const tile &at, Cache cache, Keys &keys, int begin,
                            int end, int runs, unsigned char *memory, Adjust adjust) {
    typedef typename store_of<Cache>::type Store;
    constexpr int STAGES = Store::STAGES, ROWS = LAYOUT_CHAIN_ROWS;
    const int value_step = p.at.kv_heads * (TOKEN_LISTS ? p.at.page_size : PAGE) * HEAD_DIM;
    key_piece piece[STAGES * WARP_PIECES];
    const auto last = [](const key_piece &from, int) { return from.last; };
    begin_chunks(cache, value_step, memory, begin, end, piece, keys);
    load_queries(p, at.head, at.count, memory);
    if (CLUSTERED) cluster_wait(); /* all inboxes are open */
    copy_async_wait<2 * STAGES - 2>();
    block_sync();
    const float factor = ADJUSTED ? 1.0f : p.scale * LOG2_E;
    if constexpr (CHAINED) {
#pragma unroll 1
        while (begin < end) {
            const int stop = min_of(begin + place_of(memory)->run, end);
            attend_chunks<true, query_tiles(ROWS)>(
                cache, value_step, memory, begin, stop, end, at.count, factor, piece, keys, last, adjust,
                [&] { return (float *)(memory + CHAIN_AT) + warp_id() * ROWS * DIM; },
                [&] { return (f32x2 *)(memory + TOTALS_AT); });
            block_sync();
            put_run(p, at, begin / place_of(memory)->run, runs, memory + CHAIN_AT, ROWS * DIM * 4, memory);
            begin = stop;
            block_sync();
        }
    } else {
        attend_run(cache, value_step, memory, begin, end, at.count, factor, piece, keys, last, adjust);
        block_sync();
        put_run(p, at, at.block, runs, memory, 2 * KEYS_BYTES, memory);
    }
}

/* The row by its runs: by the last of its blocks to end, by those of its last runs, or by all of them. */
CAIRN_INLINE void merge_tile(const attend_params &p, const tile &at, int runs, unsigned char *memory) {
    int blocks = runs;
    const auto write = [&](int m, int d, const merged_pair &pair) {
        const f32x2 o = pair.share();
        float *to = p.out + (at.head + m) * HEAD_DIM + d;
        to[0] = o.x, to[1] = o.y;
        if (p.lse && d == 0) p.lse[at.head + m] = lse_of(pair.top, pair.sum);
    };
    if constexpr (CLUSTERED) return merge_sent(inbox_of(at), runs, write);
    if constexpr (RELAYED) {
        const relay_row from = relay_of(p, at, runs);
        const int merger = at.block + from.mergers - runs;
        if (merger >= 0) merge_relayed(from, runs, merger, any_time(), write);
        return;
    }
    if constexpr (CHAINED) blocks = place_of(memory)->blocks, runs = place_of(memory)->runs;
    const int64_t first = at.slot() * at.runs(p) * at.most;
    if (!last_to_arrive(p.arrived + at.slot(), blocks, (uint32_t *)(memory + TOTALS_AT))) return;
    merge_parts(p, at, p.partial + first * HEAD_DIM, (const f32x2 *)p.sums + first, runs);
}

/* By a block that has no run of its own: a cluster's merges its values nevertheless. */
CAIRN_INLINE void end_without(const attend_params &p, const tile &at, int runs, unsigned char *memory) {
    if constexpr (CLUSTERED) {
        cluster_wait();
        if (runs) merge_tile(p, at, runs, memory);
    }
}

/* Pages, by what the abilities say. */
CAIRN_INLINE void attend_listed(const attend_params &p, const tile &at, unsigned char *memory) {
    row_list list;
    mask_row masked;
    uint32_t asked = 0; /* with the row's position, not after it */
    if (p.selected && thread_id() < p.topk)
        asked = load_early((const uint32_t *)choice_of(p, at.kv_head) + thread_id());
    if (CLUSTERED) inbox_of(at).open();
    list.row = paged_find(p.at, at.r);
    if (MASKED && list.row.valid) list.row.valid = masked.find(p, list.row, at.r);
    if (!list.row.valid) {
        if (at.block == 0) write_nothing(p, at.head, at.count);
        return end_without(p, at, 0, memory);
    }
    list.find(p, at.kv_head, at.block, (int)asked);

    const int chunks = layout_chunks(list.length, PAGE, DIM);
    const int begin = at.block * list.span, end = min_of(begin + list.span, chunks);
    const int runs = ceil_div(chunks, list.run);
    if (PARTED && chunks == 0 && at.block == 0) write_nothing(p, at.head, at.count);
    if (CLUSTERED && thread_id() == 0) inbox_of(at).expect(runs);
    if (begin >= end) return end_without(p, at, runs, memory);
    if (CHAINED && thread_id() == 0)
        *place_of(memory) = chain_place{ceil_div(chunks, list.span), runs, list.run};
    const int sees = list.row.position + 1;
    const listed_pieces<row_pages> pieces = {
        {p, list}, p.at.kv_heads, at.kv_head, sees, p.sinks, end, {}};
    if constexpr ((CAIRN_ABILITIES & ~ATTEND_CHAINED) == 0) {
        listed_pieces<row_pages> plain = pieces;
        const uint16_t *cache = p.at.cache;
        fold_runs(p, at, cache, plain, begin, end, runs, memory,
                  [](int, const key_piece *, auto &) {});
    } else {
        real_pieces<row_pages> keys = {pieces};
        const kept_cache<row_pages> cache = {p.at.cache, p.scales, pieces.source, 0};
        const int from = list.from;
        const float *bias = list.bias(p);
        int weighed = 0; /* entries of the run whose pages have weights */
        if constexpr (TWO_LEVEL) {
            const int64_t chosen = (int64_t)at.r * p.at.kv_heads + at.kv_head;
            const bool shared = p.weight_heads == p.at.kv_heads;
            weighed = min_of(list.low, ceil_div(end * CHUNK, PAGE)) - from;
            const int32_t *pages = low_entries(p.at.max_pages), *selected = p.selected + chosen * p.topk;
            const float *weights = p.weights + (shared ? chosen : at.head) * p.topk;
            const int step = shared ? 0 : p.topk;
            if constexpr (MEETING) {
                place_weights(p, weighed, pages, selected, weights, step, at.count, list.bias(p));
            } else {
                load_queries(p, at.head, at.count, memory);
                block_sync();
                weigh_pages(p, pieces.source, from, weighed, pages, selected, weights, step, at.count,
                            at.kv_head, memory, list.bias(p));
                block_sync();
            }
        }
        fold_runs(p, at, cache, keys, begin, end, runs, memory,
                 [&](int chunk, const key_piece *piece, auto &s) {
                     const int first = chunk * CHUNK + warp_id() * WARP_KEYS;
                     if constexpr (ADJUSTED)
                         s.each(at.count, [&](int m, int i, int key, float &v) {
                             v = score_of(p, v);
                             const int entry = (first + i * 16) / PAGE - from;
                             if (TWO_LEVEL && !MEETING && entry < weighed && m < at.count)
                                 v += bias[entry * 16 + m];
                             const int position = piece[i].position + key;
                             if (MASKED && position < sees &&
                                 !masked.sees(p, list.row.sequence, position))
                                 v = NO_SCORE;
                         });
                     if constexpr (MEETING)
                         meet_pages(piece, chunk, chunk * CHUNK / PAGE - from, weighed, at.count, bias,
                                    list.bias(p) + (list.span * CHUNK / PAGE + 2) * 16, s);
                 });
    }
    merge_tile(p, at, runs, memory);
}

/* Tokens: the ids of a row, or of its request. */
CAIRN_INLINE void attend_tokens(const attend_params &p, const tile &at, unsigned char *memory) {
    token_pieces keys = {p, {}, at.kv_head, -1, {}};
    if (CLUSTERED) inbox_of(at).open();
    const bool valid = keys.of.find(p, at.r);
    const int chunks = valid ? ceil_div(keys.of.length, CHUNK) : 0;
    const int run = layout_run(chunks, p.at.kv_heads);
    const int span = CHAINED ? run * layout_chained(p.chain, run) : run, runs = ceil_div(chunks, run);
    const int begin = at.block * span, end = min_of(begin + span, chunks);
    if (chunks == 0 && at.block == 0) write_nothing(p, at.head, at.count);
    if (CLUSTERED && thread_id() == 0) inbox_of(at).expect(runs);
    if (begin >= end) return end_without(p, at, runs, memory);
    if (CHAINED && thread_id() == 0) *place_of(memory) = chain_place{ceil_div(chunks, span), runs, run};
    const kept_cache<token_pieces> cache = {p.at.cache, p.scales, keys, 0};
    fold_runs(p, at, cache, keys, begin, end, runs, memory,
              [&](int chunk, const key_piece *, auto &s) {
                  const uint32_t seen = keys.seen_of(chunk);
                  s.each(at.count, [&](int, int i, int key, float &v) {
                      v = seen >> (i * 16 + key) & 1 ? score_of(p, v) : NO_SCORE;
                  });
              });
    merge_tile(p, at, runs, memory);
}

/* What these do with scores takes the registers of a second block. */
constexpr int BLOCKS = DIM > 64 && (SOFTCAP || MASKED) ? 1 : BLOCKS_EACH;

CAIRN_KERNEL(attend, THREADS, BLOCKS, attend_params) {
    tile at;
    if constexpr (!TOKEN_LISTS) load_early((const uint32_t *)p.at.positions + row_of_block());
    at.find(p);
    if constexpr (TOKEN_LISTS) attend_tokens(p, at, shared_base());
    else attend_listed(p, at, shared_base());
}

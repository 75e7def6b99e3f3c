/* Attention of a decoder step: the core of attention/core.cuh with rows, pages and hand-overs of the
 * step. A block takes a group of rows (tokens of one sequence x the query heads of one KV head, or of
 * one token 16 of these at most, a share) and one run of chunks, and asks for keys long before the
 * queries come.
 *
 * Keys of this forward's own tokens: the flow kernel takes them from the exchange, where every list
 * is so short that a run is one chunk; the stage kernels from the cache, once the kernel before has
 * ended. All other keys come from the cache.
 *
 * In a layer with a window rows see that alone: runs begin with the one of the first key that the
 * group sees, at multiples of a length that follows from the window, so that a row's keys are cut at
 * the same places whatever rows are beside it.
 *
 * Out: parts[run, row, head] and sums[run, row, head] = (m, l). */
#ifndef CAIRN_STEP_ATTEND_CUH
#define CAIRN_STEP_ATTEND_CUH

#include "step/step.cuh"
#include "attention/kept.cuh"

/* By Newton's steps from `near`. */
CAIRN_INLINE constexpr double square_root(double x, double near, int steps) {
    return steps ? square_root(x, (near + x / near) / 2, steps - 1) : near;
}
constexpr float SCORE_SCALE =
    1.4426950408889634f * (float)(1.0 / square_root(HEAD_DIM, HEAD_DIM, 16));
CAIRN_INLINE float score_scale(const step_params &p) {
    return OWN_SCALE ? p.score_scale : SCORE_SCALE;
}
constexpr int ATTEND_BLOCKS = WARPS > 8 ? 1 : BLOCKS_EACH; /* of a multiprocessor */
constexpr int VALUE_STEP = KV_HEADS * PAGE * HEAD_DIM; /* values from a key to its value */

/* A layer's cache, which core.cuh fetches as it lies there, and the scales of its slots and heads. */
typedef pick<CACHE_KIND == ATTEND_CACHE_F16, const uint16_t *, kept_cache<step_params>> step_cache;
typedef store_of<step_cache>::type step_store;
constexpr int STAGES = step_store::STAGES; /* chunks under way */
CAIRN_INLINE float *scales_of(const step_params &p, int layer) {
    return BYTES ? (float *)p.kv[LAYERS + layer] : nullptr;
}
CAIRN_INLINE step_cache cache_of(const step_params &p, int layer) {
#if CAIRN_ABILITIES & 3
    return {p.kv[layer], scales_of(p, layer), p, 0};
#else
    return p.kv[layer];
#endif
}

/* Every page of a sequence in order, up to the last one attended. */
struct table_pages {
    const int32_t *table;
    int end; /* the position behind the last */

    CAIRN_MEMBER page_entry entry(int i) const {
        return page_entry{i, i * PAGE < end ? (int)table[i] : -1};
    }
};

/* CAIRN_CHAINED: of many rows, each a group of its own, a block takes several runs one after the other (the
 * parameter chain says up to how many chunks), and asks for the next one's keys while it merges one: fewer
 * blocks that each begin and meet, for the same bits. */
#ifndef CAIRN_CHAINED
#define CAIRN_CHAINED 0
#endif
constexpr bool CHAINED = CAIRN_CHAINED != 0;
constexpr int CHAIN_AT = ATTEND_BYTES + (BYTES ? layout_scale_bytes(HEAD_DIM) : 0); /* the warps' sums */

/* Whether the layer's rows see a window alone. */
CAIRN_INLINE bool has_window(const step_params &p) { return WINDOWS && p.own_window > 0; }

/* Chunks of a run of the row at this position, where it attends all or its window; the first of the
 * runs with what it sees; how many there are. Runs of windows begin at multiples of their length. */
CAIRN_INLINE int run_of(const step_params &p, int position) {
    if (has_window(p)) return p.own_run;
    return FLOW ? 1 : layout_run(layout_chunks(position / PAGE + 1, PAGE, HEAD_DIM), KV_HEADS);
}
CAIRN_INLINE int first_run(const step_params &p, int position) {
    if (!has_window(p)) return 0;
    return max_of(position - p.own_window + 1, 0) / (CHUNK * p.own_run);
}
CAIRN_INLINE int runs_of(const step_params &p, int position) {
    return ceil_div(position / CHUNK + 1, run_of(p, position)) - first_run(p, position);
}
/* Runs that a block takes. */
CAIRN_INLINE int runs_each(const step_params &p, int position) {
    return CHAINED ? layout_chained(p.chain, run_of(p, position)) : 1;
}

/* Scores of what rows that draft do not see: keys from the tokens that they see to their own rows, and
 * of these those whose bit is not set. `first` is the group's first row of `rows`, at: the chunk's pieces. */
template <int TILES>
CAIRN_INLINE void hide_drafts(const step_params &p, int first, int rows, const key_piece *at, scores<TILES> &s) {
    const int32_t *array = p.input + STEP_HEAD;
    const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int k = 0; k < TILES * 2; k++) {
        const int q = k / 2, c = k % 2, row = first + min_of((q * 8 + 2 * t + c) / SHARE, rows - 1);
        const int own = array[STEP_OWN * p.capacity + row], last = array[STEP_POSITION * p.capacity + row];
        const int seen = array[STEP_SEEN * p.capacity + row], from = last + 1 - max_of(own, -own);
        const uint32_t *bits = p.trees + (int64_t)row * p.tree_words;
        if (own == 0) continue;
#pragma unroll
        for (int i = 0; i < WARP_PIECES * 2; i++) {
            const int key = at[i / 2].position + i % 2 * 8 + g;
            if (key < seen || key > last) continue;
            if (key < from || (own < 0 && !(bits[(key - from) / 32] >> (key - from) % 32 & 1)))
                s.v[q][i / 2][i % 2 * 2 + c] = minus_infinity();
        }
    }
}

/* Which rows, heads and run a block works on. */
struct attend_place {
    int first, rows; /* rows of the group */
    int share, run;  /* run: its first of the block */
    int position;    /* of the first row */

    CAIRN_MEMBER int runs(const step_params &p) const {
        return runs_of(p, position + rows - 1) +
               (WINDOWS ? first_run(p, position + rows - 1) - first_run(p, position) : 0);
    }
    CAIRN_MEMBER int blocks(const step_params &p) const {
        return CHAINED ? ceil_div(runs(p), runs_each(p, position)) : runs(p);
    }
};

/* And what its warp knows of the pages. */
struct attend_item : attend_place {
    int fresh_row, fresh;  /* first row of the sequence in this forward, and its position */
    page_entry held;
    const int32_t *table;

    CAIRN_MEMBER int begin(const step_params &p) const { /* chunks */
        return (first_run(p, position) + run) * run_of(p, position);
    }
    CAIRN_MEMBER int end(const step_params &p) const {
        return min_of((first_run(p, position) + run + runs_each(p, position)) * run_of(p, position),
                      (position + rows - 1) / CHUNK + 1);
    }
    CAIRN_MEMBER listed_pieces<table_pages> keys(const step_params &p) const {
        const int last = position + rows;
        return {{table, last}, KV_HEADS, share_kv_head(share), last, 0, end(p), held};
    }
};

/* The rest of what an item is, of the rows it has, and what its warp knows of the pages; whether it has chunks. The way
 * from one of the words that tell it to the next is what a block that begins late waits for. */
CAIRN_INLINE bool find_run(const step_params &p, int share, int block, int fresh, attend_item &item) {
    const int32_t *array = p.input + STEP_HEAD;
    const int sequence = array[STEP_SEQUENCE * p.capacity + item.first];
    item.share = share, item.fresh = fresh;
    item.position = array[STEP_POSITION * p.capacity + item.first];
    item.run = block * runs_each(p, item.position);
    item.table = p.page_table + (int64_t)sequence * p.table_stride;
    if (warp_id() < CORE_WARPS) {
        listed_pieces<table_pages> keys = item.keys(p);
        keys.look_up(item.begin(p));
        item.held = keys.held;
    }
    return item.begin(p) < item.end(p);
}

/* Block number `block` of a share of a row that is a group of its own. */
CAIRN_INLINE bool find_row(const step_params &p, int row, int share, int block, attend_item &item) {
    const int32_t *array = p.input + STEP_HEAD;
    item.first = row, item.rows = 1;
    item.fresh_row = row ? array[STEP_FIRST * p.capacity + row] : 0;
    return find_run(p, share, block, array[STEP_POSITION * p.capacity + item.fresh_row], item);
}
/* The same of any group. */
CAIRN_INLINE bool find_item(const step_params &p, int group, int share, int block, attend_item &item) {
    const int32_t *array = p.input + STEP_HEAD;
    if (CHAINED) return find_row(p, group, share, block, item);
    item.first = array[STEP_GROUP_FIRST * p.capacity + group];
    item.rows = array[STEP_GROUP_ROWS * p.capacity + group];
    item.fresh_row = array[STEP_FIRST * p.capacity + item.first];
    return find_run(p, share, block, array[STEP_POSITION * p.capacity + item.fresh_row], item);
}

/* Starts the copies of the first chunk's keys and values: before the queries are there of those that
 * the forwards before left (`late` false), in the stage kernels afterwards of the others. Keys
 * behind the group's last row become zero. Of a store with stages all their chunks, as a whole. */
CAIRN_INLINE void fetch_first(const step_params &p, const attend_item &item, step_cache cache,
                              unsigned char *memory, bool late) {
    if constexpr (STAGES > 1) {
        const bool fresh = min_of(item.begin(p) + STAGES, item.end(p)) * CHUNK > item.fresh;
        listed_pieces<table_pages> keys = item.keys(p);
        key_piece piece[STAGES * WARP_PIECES];
        if (fresh == late && warp_id() < CORE_WARPS)
            begin_chunks(cache, VALUE_STEP, memory, item.begin(p), item.end(p), piece, keys);
        return;
    }
    if (warp_id() < CORE_WARPS) {
        unsigned char *mine = memory + warp_id() * 2 * KEYS_BYTES;
        key_piece piece[WARP_PIECES];
        item.keys(p).find(item.begin(p), piece);
        auto skip = [&](int, int position, bool seen) {
            return (seen && position >= item.fresh) != late;
        };
        bool any = !late; /* most warps have no key of this forward */
#pragma unroll
        for (int i = 0; i < WARP_PIECES; i++)
            any = any || (piece[i].last >= 0 && piece[i].position + piece[i].last >= item.fresh);
        if (any) {
            fetch_both(cache, VALUE_STEP, piece, mine, skip);
        }
    }
    copy_async_commit();
}

/* The pieces of the queries of rows [first, first + rows), of several only where there is one share: piece(where row
 * m has it in shared memory, piece_at(m, ...), where it comes from, whether there is one). */
template <class Piece>
CAIRN_INLINE void each_query_piece(int first, int rows, int share, const uint8_t *layer, unsigned char *memory,
                                   Piece piece) {
#pragma unroll 1
    for (int i = thread_id(); i < rows * share_heads(share) * PIECES; i += THREADS) {
        const int m = i / PIECES, row = first + m / SHARE, head = first_head(share) + m % SHARE;
        piece(memory + QUERIES_AT + piece_at(m, i % PIECES),
              layer + QKV_AT + ((int64_t)row * QKV + head * HEAD_DIM) * 2 + i % PIECES * 16, has_piece(i % PIECES));
    }
}

/* Waits for them. */
CAIRN_INLINE void gather_queries(const step_params &p, int first, int rows, int share,
                                 const uint8_t *layer, unsigned char *memory) {
    each_query_piece(first, rows, share, layer, memory, [&](unsigned char *to, const uint8_t *from, bool there) {
        u32x4 v = {};
        if (there) receive<1>(p, &v, from);
        *(u32x4 *)to = v;
    });
}

/* In the flow: the group's queries and the chunk's keys and values of this forward, all at once. */
CAIRN_INLINE void gather_fresh(const step_params &p, const attend_item &item, const uint8_t *layer,
                               unsigned char *memory) {
    int queries = item.rows * GROUP * PIECES, start = item.begin(p) * CHUNK;
    int from = max_of(item.fresh, start);
    int keys = max_of(0, min_of(item.position + item.rows, start + CHUNK) - from);
#pragma unroll 1
    for (int i = thread_id(); i < queries + keys * 2 * PIECES; i += THREADS) {
        int row, head, piece = i % PIECES;
        uint32_t to;
        if (i < queries) {
            int m = i / PIECES;
            row = item.first + m / GROUP;
            head = item.share * GROUP + m % GROUP;
            to = QUERIES_AT + piece_at(m, piece);
        } else {
            int j = (i - queries) / PIECES, key = from + j / 2 - start, at = key % WARP_KEYS;
            row = item.fresh_row + from + j / 2 - item.fresh;
            head = HEADS + j % 2 * KV_HEADS + item.share;
            to = key / WARP_KEYS * 2 * KEYS_BYTES +
                 (j % 2 ? KEYS_BYTES : 0) + piece_at(at, piece);
        }
        u32x4 v;
        receive<1>(p, &v,
                   layer + QKV_AT + ((int64_t)row * QKV + head * HEAD_DIM) * 2 + piece * 16);
        *(u32x4 *)(memory + to) = v;
    }
}

/* Four values of a row's head by one run, from value d on, and with its first the run's (m, l): to where runs are
 * merged. */
CAIRN_INLINE void send_part(const step_params &p, int run, int row, int head, uint8_t *layer, int d, f32x4 v,
                            f32x2 sums) {
    const int64_t at = part_of(p, run, row) * HEADS + head;
    send((float *)(layer + PARTS_AT) + at * HEAD_DIM + d, v);
    if (d > 0) return;
    send((float *)(layer + SUMS_AT) + at * 2, sums.x);
    send((float *)(layer + SUMS_AT) + at * 2 + 1, sums.y);
}

/* Merges what the warps left, a warp's sums `step` bytes from the next one's, and hands it on. */
CAIRN_INLINE void send_parts(const step_params &p, int first, int share, int run, uint8_t *layer,
                             const f32x2 *totals, const unsigned char *parts, int step, int count) {
    merge_warps(totals, parts, step, count, [&](int m, int d, f32x4 v, f32x2 sums) {
        send_part(p, run, first + m / SHARE, first_head(share) + m % SHARE, layer, d, v, sums);
    });
}

CAIRN_INLINE void send_parts(const step_params &p, int first, int share, int run, uint8_t *layer,
                             const unsigned char *memory, int count) {
    send_parts(p, first, share, run, layer, (const f32x2 *)(memory + TOTALS_AT), memory, 2 * KEYS_BYTES, count);
}

/* The runs of a block that takes several, from number `first` on, of `run` chunks each up to chunk `stop`, the
 * first one's keys there or under way (begin_chunks). The warps' sums of one are merged while the next one's come
 * to another place, where there are two PLACES. send(number, totals, parts, step): as merge_warps takes them. All
 * threads, behind a block_sync. */
template <int PLACES, class Keys, class Last, class Hide, class Send>
CAIRN_INLINE void attend_chain(const step_params &p, step_cache cache, unsigned char *memory, int first, int run,
                               int stop, int count, key_piece *piece, Keys &keys, Last last, Hide hide,
                               Send send) {
    constexpr int STEP = SHARE * DIM, PLACE = layout_step_sums_bytes(SHARE, HEAD_DIM); /* STEP: floats */
#pragma unroll 1
    for (int number = first; number * run < stop; number++) {
        const auto parts = [&] { return (float *)(memory + CHAIN_AT + (number - first) % PLACES * PLACE); };
        const auto totals = [&] { return (f32x2 *)(parts() + CORE_WARPS * STEP); };
        if (warp_id() < CORE_WARPS)
            attend_chunks<true, query_tiles(SHARE)>(
                cache, VALUE_STEP, memory, number * run, min_of((number + 1) * run, stop), stop, count,
                score_scale(p), piece, keys, last, hide, [&] { return parts() + warp_id() * STEP; }, totals);
        block_sync();
        send(number, totals(), (const unsigned char *)parts(), STEP * 4);
        if (PLACES == 1) block_sync();
    }
}

/* All that the block folds, with fetch_first under way or done, of up to 8 TILES queries. All threads of the block; the
 * memory may be written again after the next block_sync. Returns the item's place, which waits in shared memory so
 * that the registers are the keys' own. send(place, run, totals, parts, step): what the warps left of a run, as
 * merge_warps takes it. */
template <int TILES, class Send>
CAIRN_INLINE attend_place attend_item_run(const step_params &p, const attend_item &item, step_cache cache,
                                          uint8_t *layer, unsigned char *memory, Send send) {
    static_assert(sizeof(attend_place) <= ATTEND_BYTES - WORDS_AT, "attend: its place");
    if (FLOW) {
        gather_fresh(p, item, layer, memory);
    } else if (STAGES > 1) {
        fetch_first(p, item, cache, memory, true);
        gather_queries(p, item.first, item.rows, item.share, layer, memory);
    } else { /* the queries come with what keys are new */
        each_query_piece(item.first, item.rows, item.share, layer, memory,
                         [&](unsigned char *to, const uint8_t *from, bool there) {
                             copy_async16(shared_addr(to), from, there);
                         });
        fetch_first(p, item, cache, memory, true);
    }
    if (thread_id() == 0) *(attend_place *)(memory + WORDS_AT) = item;
    copy_async_wait<2 * STAGES - 2>();
    block_sync();
    key_piece piece[STAGES * WARP_PIECES];
    listed_pieces<table_pages> keys = item.keys(p);
    if (warp_id() < CORE_WARPS) {
        keys.find(item.begin(p), piece);
        static_assert(STAGES <= 2, "attend: chunks under way");
        if constexpr (STAGES > 1) { /* no loop, or the pieces lie in local memory */
            keys.look_up(item.begin(p) + 1);
            keys.find(item.begin(p) + 1, piece + WARP_PIECES);
        }
    }
    const auto last = [&](const key_piece &at, int m) {
        const int from = CACHE_KIND == ATTEND_CACHE_F16 /* else registers are scarce */
                             ? item.position
                             : ((const attend_place *)(memory + WORDS_AT))->position;
        return min_of(at.last, from + m / SHARE - at.position);
    };
    const auto hide = [&](int, const key_piece *at, auto &s) {
        if (has_window(p)) /* keys before a row's window are none of its */
            s.each(item.rows * share_heads(item.share), [&](int m, int i, int key, float &v) {
                if (at[i].position + key <= item.position + m / SHARE - p.own_window) v = minus_infinity();
            });
        if constexpr (DRAFTS) hide_drafts(p, item.first, item.rows, at, s);
    };
    if constexpr (CHAINED) {
        const attend_place &place = *(const attend_place *)(memory + WORDS_AT);
        const int run = run_of(p, item.position), first = item.begin(p) / run;
        attend_chain<layout_step_chain_places(SHARE)>(
            p, cache, memory, first, run, item.end(p), share_heads(item.share), piece, keys, last, hide,
            [&](int number, const f32x2 *totals, const unsigned char *parts, int step) {
                send(place, place.run + number - first, totals, parts, step);
            });
        return place;
    }
    if (warp_id() < CORE_WARPS)
        attend_run<TILES>(cache, VALUE_STEP, memory, item.begin(p), FLOW ? item.begin(p) + 1 : item.end(p),
                          item.rows * share_heads(item.share), score_scale(p), piece, keys, last, hide);
    block_sync();
    const attend_place place = *(const attend_place *)(memory + WORDS_AT);
    send(place, place.run, (const f32x2 *)(memory + TOTALS_AT), memory, 2 * KEYS_BYTES);
    return place;
}

#endif

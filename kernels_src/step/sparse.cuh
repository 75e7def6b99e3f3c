/* Page-sparse attention in the flow kernel. A block takes items of a row, a KV head and a run of its
 * list of pages, which is one chunk here; each selects for itself, so that nothing has to be handed
 * on between selection and attention: the chunks of a row compute the same list. Where a layer does
 * not select, the list is all pages.
 *
 * The number of a row's chunks follows from its position (most_listed): those that turn out to be
 * empty are handed on as such. Bits of step_select and step_attend_pages. */
#ifndef CAIRN_STEP_SPARSE_CUH
#define CAIRN_STEP_SPARSE_CUH

#include "step/pages.cuh"
#include "step/stages.cuh"

CAIRN_INLINE bool layer_selects(const step_params &p, int layer) {
    return p.select_layers[layer / 32] >> layer % 32 & 1;
}

/* Chunks of a row in this layer. */
CAIRN_INLINE int list_chunks(const step_params &p, int row, bool selects) {
    page_row r;
    r.find(p, row, 0, selects);
    return layout_chunks(r.most_listed(p), PAGE, HEAD_DIM);
}

/* One word (two f16) of this forward's keys or queries: of a head, from dimension 2 word. */
CAIRN_INLINE uint32_t receive_word(const step_params &p, const uint8_t *layer, int row, int head,
                                   int word) {
    const uint32_t *from = (const uint32_t *)(layer + QKV_AT) +
                           ((int64_t)row * QKV + head * HEAD_DIM) / 2 + word;
    patience wait(p);
    uint32_t v;
    do v = load_relaxed(from);
    while (v == EMPTY && wait.more());
    return v;
}

/* Bounds of a page that this forward's rows complete: older keys are in the cache. */
CAIRN_INLINE page_bounds fresh_bounds(const step_params &p, const page_row &r, const uint8_t *layer,
                                      const uint16_t *cache, int page) {
    const uint32_t *keys = (const uint32_t *)(cache + r.page_at(page));
    page_bounds b = bounds_of(p.mean != 0, [&](int slot, int i) {
        const int fresh = page * PAGE + slot - r.fresh, word = lane_id() * LANE_WORDS + i;
        if (fresh < 0) return keys[slot * (HEAD_DIM / 2) + word];
        return receive_word(p, layer, r.fresh_row + fresh, HEADS + r.kv_head, word);
    });
    warp_sync();
    return b;
}

/* 16 bytes of a head of this forward, from the exchange. */
CAIRN_INLINE u32x4 receive_piece(const step_params &p, const uint8_t *layer, int row, int head,
                                 int piece) {
    u32x4 v;
    receive<1>(p, &v, layer + QKV_AT + ((int64_t)row * QKV + head * HEAD_DIM) * 2 + piece * 16);
    return v;
}

/* A piece of the keys or values of this forward's tokens up to the row, one a thread: asked for
 * with the queries (by the threads that have none of these), in its place once pages are chosen. */
struct fresh_piece {
    u32x4 v;

    /* From r.fresh on; which piece; 1 for values. */
    static CAIRN_MEMBER int token() { return (THREADS - 1 - thread_id()) / PIECES / 2; }
    static CAIRN_MEMBER int value() { return (THREADS - 1 - thread_id()) / PIECES % 2; }
    static CAIRN_MEMBER int piece() { return (THREADS - 1 - thread_id()) % PIECES; }

    CAIRN_MEMBER void receive_own(const step_params &p, const page_row &r, const uint8_t *layer) {
        static_assert(COLUMNS * 2 * PIECES <= THREADS, "fresh_piece: one a thread");
        v = u32x4{};
        if (r.fresh + token() <= r.position)
            v = receive_piece(p, layer, r.fresh_row + token(),
                              HEADS + value() * KV_HEADS + r.kv_head, piece());
    }
};

/* Chooses the pages; the queries are in shared memory afterwards. */
CAIRN_INLINE void select_pages(const step_params &p, const page_row &r, int layer,
                               const uint8_t *at, unsigned char *memory, const selection &chosen,
                               fresh_piece &own) {
    const uint16_t *cache = p.kv[layer];
    const int n = r.choices(p);
    auto queries = [&] {
        gather_queries(p, r.row, 1, r.kv_head, at, memory);
        own.receive_own(p, r, at);
        copy_async_wait<0>(); /* keys asked for early may give way to others from here on */
        block_sync(); /* nobody reads any more what lay where `chosen` does */
        if (thread_id() < round_up(n, 4) - n) chosen.keys[n + thread_id()] = 0;
    };
    if (n)
        score_candidates(
            p, r, layer, chosen, 0, 1, queries,
            [&](int h, int word) {
                return *(const uint32_t *)(memory + QUERIES_AT + piece_at(h, word / 4) +
                                           word % 4 * 4);
            },
            [&](int page) { return fresh_bounds(p, r, at, cache, page); },
            chosen.keys);
    else queries();
    block_sync();
    choose_pages(chosen, n, p.topk, r.position / PAGE, layout_sink_pages(p.sinks, PAGE));
    block_sync();
}

/* Listed pages below `page`. */
CAIRN_INLINE int listed_before(const selection &chosen, int page) {
    int count = popcount(chosen.bits[page / WARP].listed & ((1u << page % WARP) - 1));
#pragma unroll 1
    for (int word = 0; word < page / WARP; word++) count += popcount(chosen.bits[word].listed);
    return count;
}

/* The listed page after `left` others, or -1; by a whole warp. listed(word): bits of 32 pages. */
template <class Listed>
CAIRN_INLINE int nth_listed(const page_row &r, int left, Listed listed) {
#pragma unroll 1
    for (int word = 0; word <= r.position / PAGE / WARP; word++) {
        const uint32_t bits = listed(word), mine = 1u << lane_id();
        const int count = popcount(bits);
        if (left < count) {
            bool here = (bits & mine) && popcount(bits & (mine - 1)) == left;
            return word * WARP + find_first_set(warp_ballot(here)) - 1;
        }
        left -= count;
    }
    return -1;
}

/* pages[i]: that of piece i of a warp whose keys are those of the list from `from` on. */
template <class Listed>
CAIRN_INLINE void find_pages(const page_row &r, int from, int *pages, Listed listed) {
#pragma unroll
    for (int i = 0; i < WARP_PIECES; i++)
        pages[i] = i > 0 && PAGE % WARP_KEYS == 0 ? pages[0]
                                                  : nth_listed(r, (from + i * 16) / PAGE, listed);
}

/* The piece `from % PAGE` keys into a listed page. */
CAIRN_INLINE key_piece piece_of(const step_params &p, const page_row &r, int page, bool whole,
                                int from) {
    key_piece piece;
    piece.position = page * PAGE + from % PAGE;
    piece.last = min_of((whole ? r.position : min_of(p.sinks - 1, r.position)) - piece.position,
                        15);
    piece.at = r.page_at(page) + from % PAGE * HEAD_DIM;
    return piece;
}

/* First positions of the pieces whose keys this warp has asked for already; -2: none. */
struct early_pieces {
    int position[WARP_PIECES];

    CAIRN_MEMBER void clear() {
#pragma unroll
        for (int i = 0; i < WARP_PIECES; i++) position[i] = -2;
    }
};

/* Asks for the keys that the row attended in this layer in the forward before: mostly it will keep
 * the same pages. row_pages may be of another sequence; then they are fetched in vain. */
CAIRN_INLINE void fetch_early(const step_params &p, const page_row &r, int chunk, int layer,
                              unsigned char *memory, early_pieces &early) {
    const bool all = r.candidates <= p.topk;
    const int own = r.position / PAGE;
    const uint32_t *kept = p.row_pages + (((int64_t)layer * COLUMNS + r.row) * KV_HEADS +
                                          r.kv_head) * p.seen_words;
    const uint16_t *bounds = p.bounds[layer] + (int64_t)r.kv_head * 2 * HEAD_DIM;
    constexpr int LINES = HEAD_DIM / 32; /* of 128 bytes, of a page's bounds */
#pragma unroll 1
    for (int i = thread_id(); !all && i < min_of(r.candidates, r.stored) * LINES; i += THREADS)
        prefetch_l2(bounds + (int64_t)r.table[i / LINES] * KV_HEADS * 2 * HEAD_DIM +
                    i % LINES * 64);
    if (warp_id() >= CORE_WARPS) return;
    const int from = chunk * CHUNK + warp_id() * WARP_KEYS;
    key_piece piece[WARP_PIECES];
    int pages[WARP_PIECES];
    find_pages(r, from, pages, [&](int word) {
        uint32_t bits = all ? ~0u : load_volatile(kept + word);
        return word == own / WARP ? bits & ((2u << own % WARP) - 1) : bits;
    });
#pragma unroll
    for (int i = 0; i < WARP_PIECES; i++) {
        piece[i] = key_piece{0, -2, 15};
        if (pages[i] >= 0) piece[i] = piece_of(p, r, pages[i], true, from + i * 16);
        early.position[i] = piece[i].position;
    }
    unsigned char *mine = memory + warp_id() * 2 * KEYS_BYTES;
    auto skip = [&](int i, int position, bool) {
        return early.position[i] < 0 || position >= r.fresh;
    };
    fetch_both(p.kv[layer], VALUE_STEP, piece, mine, skip);
    copy_async_commit();
}

/* Puts it where it belongs, if its token is listed and in this chunk of the list. */
CAIRN_INLINE void place_fresh(const page_row &r, const selection &chosen, int chunk,
                              const fresh_piece &own, unsigned char *memory) {
    const int position = r.fresh + own.token(), page = position / PAGE;
    if (position > r.position) return;
    const int key = listed_before(chosen, page) * PAGE + position % PAGE - chunk * CHUNK;
    if (!(chosen.bits[page / WARP].listed >> page % WARP & 1) || key < 0 || key >= CHUNK) return;
    const uint32_t to = (own.value() ? KEYS_BYTES : 0) + piece_at(key % WARP_KEYS, own.piece());
    *(u32x4 *)(memory + key / WARP_KEYS * 2 * KEYS_BYTES + to) = own.v;
}

/* For the count of pages read: what the row attends where it selects. */
CAIRN_INLINE void record_pages(const step_params &p, const page_row &r, int layer, bool selects,
                               const selection &chosen) {
    uint32_t *to = p.row_pages + (((int64_t)layer * COLUMNS + r.row) * KV_HEADS + r.kv_head) *
                                     p.seen_words;
#pragma unroll 1
    for (int word = thread_id(); word < p.seen_words; word += THREADS)
        to[word] = selects && word <= r.position / PAGE / WARP ? chosen.bits[word].listed : 0;
}

/* One chunk of one row and KV head. */
CAIRN_INLINE void attend_listed(const step_params &p, const page_row &r, int chunk, int layer,
                                bool selects, uint8_t *at, workspace &work,
                                const early_pieces &early) {
    static_assert(SELECT_BYTES <= MEETING_BYTES, "sparse flow: too many pages");
    const selection chosen((unsigned char *)work.meeting, MOST_PAGES);
    fresh_piece own;
    select_pages(p, r, layer, at, work.keys, chosen, own);
    key_piece piece[WARP_PIECES] = {};
    if (warp_id() < CORE_WARPS) {
        const int from = chunk * CHUNK + warp_id() * WARP_KEYS;
        unsigned char *mine = work.keys + warp_id() * 2 * KEYS_BYTES;
        int pages[WARP_PIECES];
        find_pages(r, from, pages, [&](int word) { return chosen.bits[word].listed; });
#pragma unroll
        for (int i = 0; i < WARP_PIECES; i++) {
            const int page = pages[i];
            piece[i] = key_piece{0, -1, -1};
            if (page >= 0)
                piece[i] = piece_of(p, r, page, chosen.bits[page / WARP].whole >> page % WARP & 1,
                                    from + i * 16);
        }
        auto skip = [&](int i, int position, bool seen) { /* there already, or placed below */
            const bool asked = early.position[i] == piece[i].position;
            return position >= r.fresh ? seen : asked;
        };
        fetch_both(p.kv[layer], VALUE_STEP, piece, mine, skip);
    }
    copy_async_commit();
    place_fresh(r, chosen, chunk, own, work.keys);
    if (chunk == 0) record_pages(p, r, layer, selects, chosen);
    copy_async_wait<0>();
    block_sync();
    if (warp_id() < CORE_WARPS) {
        struct {
            CAIRN_MEMBER void reach(int) const {}
            CAIRN_MEMBER void find(int, key_piece *) const {}
        } no_more;
        attend_run<query_tiles(GROUP)>(p.kv[layer], VALUE_STEP, work.keys, chunk, chunk + 1, GROUP, SCORE_SCALE,
                                       piece, no_more, [](const key_piece &at, int) { return at.last; });
    }
    block_sync();
    send_parts(p, r.row, r.kv_head, chunk, at, work.keys, GROUP);
    block_sync();
}

/* The items of a block: rows x chunks x KV heads, from `first` on. The keys of the first are asked
 * for early, before the layer's queries are there. */
struct list_queue {
    int first, blocks;
    early_pieces early;

    /* Item `index` of a layer, if it has a chunk. */
    static CAIRN_MEMBER bool find(const step_params &p, int layer, int index, page_row &r,
                                  int &chunk) {
        const bool selects = layer_selects(p, layer);
        const int chunks = p.input[selects ? STEP_LIST_CHUNKS : STEP_CHUNKS];
        const int row = index / KV_HEADS / chunks;
        chunk = index / KV_HEADS % chunks;
        if (row >= p.input[STEP_ROWS] || chunk >= list_chunks(p, row, selects)) return false;
        r.find(p, row, index % KV_HEADS, selects);
        return true;
    }
    CAIRN_MEMBER void ask(const step_params &p, int layer, workspace &work) {
        page_row r;
        int chunk;
        early.clear();
        if (find(p, layer, first, r, chunk))
            fetch_early(p, r, chunk, layer, work.keys, early);
    }
    CAIRN_MEMBER void run(const step_params &p, int layer, uint8_t *at, workspace &work) {
        const bool selects = layer_selects(p, layer);
        const int items = p.input[STEP_ROWS] * KV_HEADS *
                          p.input[selects ? STEP_LIST_CHUNKS : STEP_CHUNKS];
#pragma unroll 1
        for (int index = first; index < items; index += blocks) {
            page_row r;
            int chunk;
            if (find(p, layer, index, r, chunk))
                attend_listed(p, r, chunk, layer, selects, at, work, early);
            early.clear();
        }
    }
};

#endif

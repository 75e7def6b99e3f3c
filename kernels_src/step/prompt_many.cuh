/* What a prompt's attention by wgmma is made of, where there is that (PROMPT_MANY): a tile of up to 128 queries of
 * the heads that share keys, as attention/prompt.cuh attends them, by all spans of keys or by one. */
#ifndef CAIRN_PROMPT_MANY_CUH
#define CAIRN_PROMPT_MANY_CUH

/* The first row of a tile of up to `most`. Joined, tiles are the groups of the input; else what is known
 * of all rows is the position and the sequence of the first. */
CAIRN_INLINE int tile_first(const step_params &p, int tile, int most) {
    return JOINED ? input_array(p, STEP_GROUP_FIRST)[tile] : tile * most;
}
CAIRN_INLINE const int32_t *tile_table(const step_params &p, int first) {
    return p.page_table +
           (int64_t)input_array(p, STEP_SEQUENCE)[JOINED ? first : 0] * p.table_stride;
}
CAIRN_INLINE int row_position(const step_params &p, int row) {
    return JOINED ? input_array(p, STEP_POSITION)[row] : input_array(p, STEP_POSITION)[0] + row;
}

static_assert(STEP_EXTRA_LANDMARKS == 2048, "prompt_attend: the form below");
#if CAIRN_WGMMA && (CAIRN_HEAD_DIM == 64 || CAIRN_HEAD_DIM == 128) && !(CAIRN_EXTRAS & 2048) && \
    !(CAIRN_ABILITIES & 3) && CAIRN_HEADS <= 128 * CAIRN_KV_HEADS
#define PROMPT_MANY 1
#include "attention/prompt.cuh"

constexpr int MANY_TOKENS = MANY_ROWS / GROUP;
#ifdef CAIRN_SPAN_ALONE
constexpr bool ONE_SPAN = true; /* that of block_id_z() */
#else
constexpr bool ONE_SPAN = false;
#endif

CAIRN_INLINE int row_begin(const step_params &p, int position) {
    return has_window(p) ? max_of(position - p.own_window + 1, 0) : 0;
}

/* A tile of tokens of the chunk. */
struct step_source {
    const step_params &p;
    const int32_t *table;
    int row, start, tokens; /* the first, and its position */

    static constexpr bool MASKED = false, SPANS = !ONE_SPAN;
    struct shape { int to, last, begin, sinks; };
    CAIRN_MEMBER shape part(int) const {
        const int last = start + tokens - 1, from = ONE_SPAN ? (int)block_id_z() * LAYOUT_SPAN : 0;
        return {tokens, ONE_SPAN ? min_of(last, from + LAYOUT_SPAN - 1) : last, max_of(first(0), from), 0};
    }
    CAIRN_MEMBER bool alone() const { return tokens * GROUP <= MANY_ROWS / 2; }
    CAIRN_MEMBER int page(int c) const { return table[c]; }
    CAIRN_MEMBER const uint16_t *keys(int page, int slot, int side) const {
        return p.kv[p.layer] +
               layout_slot(page, side, block_id_y(), slot, KV_HEADS, PAGE, HEAD_DIM);
    }
    CAIRN_MEMBER int last(int token) const { return start + token; }
    CAIRN_MEMBER int first(int token) const { return row_begin(p, start + token); }
    CAIRN_MEMBER bool exists(int m) const { return m < tokens * GROUP; }
};

CAIRN_INLINE step_source many_source(const step_params &p, int tile) {
    const int first = tile_first(p, tile, MANY_TOKENS);
    return {p, tile_table(p, first), first, row_position(p, first),
            JOINED ? input_array(p, STEP_GROUP_ROWS)[tile] : min_of(MANY_TOKENS, p.input[STEP_ROWS] - first)};
}

/* The queries, to shared memory; all threads. */
CAIRN_INLINE void many_begin(const step_source &source) {
    const int head = block_id_y() * GROUP;
    if (thread_id() == 0) many_barriers(source.alone() ? 4 : 8);
    start_input();
    for (int i = thread_id(); i < MANY_ROWS * MANY_PIECES; i += MANY_THREADS) {
        const int m = i / MANY_PIECES, piece = i % MANY_PIECES;
        u32x4 v = {};
        if (source.exists(m))
            v = *(const u32x4 *)(buffer(source.p, QKV_AT) + ((int64_t)(source.row + m / GROUP) * QKV +
                                                             (head + m % GROUP) * HEAD_DIM + piece * 8) * 2);
        *(u32x4 *)(many_memory() + swizzled_at(m, piece, MANY_ROWS)) = v;
    }
    fence_async();
    block_sync();
}

/* Where a head of a row goes. */
CAIRN_INLINE uint8_t *many_output(const step_params &p, int row, int head) {
    return buffer(p, ATTENDED_AT) + ((int64_t)row * ATTENDED + head * HEAD_DIM) * 2;
}
#else
#define PROMPT_MANY 0
#endif

#endif

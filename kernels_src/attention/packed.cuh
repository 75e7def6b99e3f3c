/* attention/packed.cuh: a tile of queries: up to `tokens` consecutive rows, each with all heads of one KV
 * head. What attention/packed.cu and attention/prompt.cu share; they say ROWS, TILE_KEYS, TOKENS_AT. */
#ifndef CAIRN_PACKED_ATTENTION_CUH
#define CAIRN_PACKED_ATTENTION_CUH

/* In shared memory: of each token of the tile its sequence (-1: the row is none), the last position that
 * it sees, and its place in its step. */
struct packed_tokens {
    int32_t sequence[ROWS], last[ROWS], entry[ROWS];
    uint32_t first[PACKED_WARPS], flag; /* bits of tokens that begin another sequence */
};
CAIRN_INLINE packed_tokens &packed_rows() {
    return *(packed_tokens *)(shared_base() + TOKENS_AT);
}

/* Token `t` of the tile is row `r`, if there is one. */
CAIRN_INLINE void find_token(const attend_params &p, int t, int r, bool there) {
    packed_tokens &rows = packed_rows();
    paged_row row = {false, -1, -1};
    int entry = 0;
    if (there) row = paged_look(p.at, r);
    if (there && MASKED && row.valid) {
        mask_row masked;
        row.valid = masked.look(p, row);
        entry = masked.row;
        if (!row.valid) report_error(p.at.error, CAIRN_FAULT_POSITION, r, masked.base);
    }
    rows.sequence[t] = row.valid ? row.sequence : -1;
    rows.last[t] = row.valid ? row.position : -1;
    rows.entry[t] = entry;
}

/* Tokens [from, to) of one sequence, and the positions that any of them sees. */
struct packed_part {
    int from, to, base;
    paged_row row; /* with the last position */
    int begin, sinks; /* the first of the window; tokens that are seen before it */
};

/* The part that begins with token `from`. */
CAIRN_INLINE packed_part find_part(const attend_params &p, int from, int tokens) {
    const packed_tokens &rows = packed_rows();
    packed_part part = {from, tokens, 0, {}, 0, 0};
    int last = -1, first = 0x7fffffff;
    for (int w = (from + 1) / WARP; w < ceil_div(tokens, WARP); w++) {
        const uint32_t left = rows.first[w] & ~bits_below(from + 1, w);
        if (!left) continue;
        part.to = min_of(w * WARP + find_first_set(left) - 1, tokens);
        break;
    }
    for (int t = from + lane_id(); t < part.to; t += WARP)
        last = max_of(last, rows.last[t]), first = min_of(first, rows.last[t]);
    last = warp_max(last), first = warp_min(first);
    part.row = paged_row{rows.sequence[from] >= 0, last, rows.sequence[from]};
    if (MASKED && part.row.valid) part.base = p.bases[part.row.sequence];
    if (p.window > 0) part.begin = layout_candidates(first, p.window, PAGE) * PAGE;
    part.sinks = min_of(p.sinks, part.begin);
    return part;
}

/* The tile after this one that any row of the part sees, from `tile` on. */
CAIRN_INLINE int tile_from(const packed_part &part, int tile) {
    return tile * TILE_KEYS >= part.sinks ? max_of(tile, part.begin / TILE_KEYS) : tile;
}

/* Where a tile's results go. */
struct packed_out {
    const attend_params &p;
    int first, tokens, group; /* rows, heads of a token */

    CAIRN_MEMBER int64_t row(int m) const {
        return (int64_t)(first + m / group) * p.heads + block_id_y() * group + m % group;
    }
    CAIRN_MEMBER void finish(int64_t row, float top, float total) const {
        if (p.lse)
            p.lse[row] = total > 0.0f ? (top + log2_fast(total)) * 0.6931471805599453f
                                      : minus_infinity();
    }
};

#endif

/* attend_prompt: what attention/packed.cu does for prompts, by wgmma (attention/prompt.cuh).
 *
 * Constants  CAIRN_HEAD_DIM 64 or 128, CAIRN_PAGE_SIZE, CAIRN_ABILITIES as in attention/packed.cu: caches of
 *            f16, or of bf16 where the queries are that, too; CSR
 * Launch     grid (1, kv_heads, ceil(rows / p.tokens_each)), block 384, shared layout_many_bytes
 * Numerics   as attention.cu; weights are rounded to the cache's type
 * matrix: CAIRN_HEAD_DIM=128 CAIRN_PAGE_SIZE=64 CAIRN_ABILITIES=9 */
#ifndef CAIRN_ABILITIES
#define CAIRN_ABILITIES 0
#endif
#define CAIRN_PAGES_CSR (CAIRN_ABILITIES >> 4 & 1)
#include "attention/core.cuh"
#include "abi/attention.h"
#include "attention/paged.cuh"
#include "attention/abilities.cuh"

#if CAIRN_WGMMA
constexpr int ROWS = 128, PACKED_WARPS = 4, TILE_KEYS = 128, TOKENS_AT = 0;
#include "attention/packed.cuh"
#include "attention/prompt.cuh"

constexpr bool BF16 = CACHE_KIND == ATTEND_CACHE_BF16;

struct prompt_source {
    const attend_params &p;
    const packed_out &to;
    int tokens;
    paged_row row;

    struct shape { int to, last, begin, sinks; };
    CAIRN_MEMBER shape part(int from) {
        const packed_part found = find_part(p, from, tokens);
        row = found.row;
        return {found.to, row.valid ? row.position : -1, found.begin, found.sinks};
    }
    CAIRN_MEMBER int page(int c) const {
        const int physical = paged_physical(p.at, row, c);
        if (physical < 0) report_error(p.at.error, CAIRN_FAULT_ID, row.sequence, c);
        return physical;
    }
    CAIRN_MEMBER const uint16_t *keys(int page, int slot, int side) const {
        return (const uint16_t *)p.at.cache +
               layout_slot(page, side, block_id_y(), slot, p.at.kv_heads, PAGE, HEAD_DIM);
    }
    CAIRN_MEMBER int last(int token) const { return packed_rows().last[token]; }
    CAIRN_MEMBER int first(int token) const {
        return p.window > 0 ? layout_candidates(max_of(last(token), 0), p.window, PAGE) * PAGE : 0;
    }
    CAIRN_MEMBER bool exists(int m) const { return m < tokens * to.group; }
};

/* Eight values of a query, as the cache's type. */
CAIRN_INLINE u32x4 query_piece(const attend_params &p, int64_t from) {
    if constexpr (BF16) return *(const u32x4 *)((const uint16_t *)p.q + from);
    else return half_of_query(p.q, from);
}

CAIRN_KERNEL(attend_prompt, MANY_THREADS, 1, attend_params) {
    const int group = p.heads / p.at.kv_heads, unit = grid_blocks_z() - 1 - block_id_z();
    const int first = unit * p.tokens_each, t = thread_id();
    const packed_out to = {p, first, min_of(p.tokens_each, p.rows - first), group};
    packed_tokens &rows = packed_rows();
    if (t < ROWS) find_token(p, t, to.first + t, t < to.tokens);
    if (t == ROWS) many_barriers();
    for (int i = t; i < ROWS * MANY_PIECES; i += MANY_THREADS) {
        const int m = i / MANY_PIECES, piece = i % MANY_PIECES;
        u32x4 v = {};
        if (m < to.tokens * group) v = query_piece(p, to.row(m) * HEAD_DIM + piece * 8);
        *(u32x4 *)(many_memory() + many_at(ROWS, m, piece)) = v;
    }
    fence_async();
    block_sync();
    const uint32_t begins =
        warp_ballot(t > 0 && t < ROWS && rows.sequence[t] != rows.sequence[t - 1]);
    if (lane_id() == 0 && t < ROWS) rows.first[warp_id()] = begins;
    block_sync();
    prompt_source source = {p, to, to.tokens, {}};
    if (warp_id() >= 8) {
        registers_give<72>();
        many_bring(source);
    } else {
        registers_take<216>();
        const many_sums r = many_use<BF16>(source, group, p.scale * LOG2_E);
        const int g = lane_id() / 4, c = lane_id() % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int m = warp_id() * 16 + half * 8 + g;
            if (!source.exists(m)) continue;
            const float share = r.total[half] > 0.0f ? 1.0f / r.total[half] : 0.0f;
            float *at = p.out + to.row(m) * HEAD_DIM + c;
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 8; n++)
                *(f32x2 *)(at + n * 8) =
                    f32x2{r.o[4 * n + 2 * half] * share, r.o[4 * n + 2 * half + 1] * share};
            if (c == 0) to.finish(to.row(m), r.top[half], r.total[half]);
        }
    }
}
#endif

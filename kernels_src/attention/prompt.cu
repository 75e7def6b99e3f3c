/* attend_prompt: what attention/packed.cu does for prompts, by wgmma (attention/prompt.cuh).
 *
 * Constants  CAIRN_HEAD_DIM 64 or 128, CAIRN_PAGE_SIZE, CAIRN_ABILITIES as in attention/packed.cu: caches of
 *            f16, or of bf16 where the queries are that, too; CSR
 * Launch     grid (1, kv_heads, ceil(rows / p.tokens_each)), block 384, shared layout_many_bytes. With MASK,
 *            whose rows are few, grid (parts at most, ...): each has p.chain tiles of keys, cut by
 *            positions alone
 * Numerics   as attention.cu; weights are rounded to the cache's type
 * matrix: CAIRN_HEAD_DIM=128 CAIRN_PAGE_SIZE=64 CAIRN_ABILITIES=9
 * matrix: CAIRN_HEAD_DIM=128 CAIRN_PAGE_SIZE=64 CAIRN_ABILITIES=64 */
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
#include "attention/parts.cuh"

constexpr bool BF16 = CACHE_KIND == ATTEND_CACHE_BF16;

struct prompt_source {
    const attend_params &p;
    const packed_out &to;
    int tokens;
    paged_row row;
    int before; /* the positions before the step */

    static constexpr bool MASKED = (CAIRN_ABILITIES & ATTEND_MASK) != 0, SPANS = false;
    struct shape { int to, last, begin, sinks; };
    CAIRN_MEMBER shape part(int from) {
        const packed_part found = find_part(p, from, tokens);
        const int begin = block_id() * p.chain * MANY_KEYS, last = found.row.valid ? found.row.position : -1;
        row = found.row, before = found.base;
        if constexpr (!MASKED) return {found.to, last, found.begin, found.sinks};
        return {found.to, min_of(last, begin + p.chain * MANY_KEYS - 1), begin, 0};
    }
    CAIRN_METHOD bool alone() { return false; }
    CAIRN_MEMBER int base() const { return before; }
    CAIRN_MEMBER uint32_t seen(int token, int position) const {
        uint32_t bits = 0;
        if (token < 0 || position + 31 < before) return ~0u;
        const mask_row masked = {before, packed_rows().entry[token]};
        const int last = packed_rows().last[token];
#pragma unroll 1
        for (int i = 0; i < 32 && position + i <= last; i++)
            bits |= (uint32_t)masked.sees(p, row.sequence, position + i) << i;
        return bits;
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

/* Parts of the tile's keys. */
CAIRN_INLINE int prompt_parts(const attend_params &p, int tokens) {
    if constexpr (!prompt_source::MASKED) return 1;
    int last = 0;
    for (int t = lane_id(); t < tokens; t += WARP) last = max_of(last, packed_rows().last[t]);
    return warp_max(last) / (p.chain * MANY_KEYS) + 1;
}

/* Whether this block ends last: then r are the sums of all parts. */
CAIRN_INLINE bool prompt_merge(const attend_params &p, int parts, int unit, many_sums &r) {
    constexpr int USERS = 256, COUNT = 16;
    const int m = warp_id() * 16 + lane_id() / 4;
    const int64_t tile = (int64_t)unit * grid_blocks_y() + block_id_y(), first = tile * grid_blocks() * MANY_ROWS;
    const held_parts<HEAD_DIM / 2, USERS> held = {p.partial + first * HEAD_DIM, (f32x2 *)p.sums + first,
                                                  MANY_ROWS, {m, m + 8}};
    held.put(block_id(), r.o, r.top, r.total, lane_id() % 4 == 0);
    if (!last_of_users(p.arrived + tile, parts, &packed_rows().flag, MANY_TURNS + 2, USERS)) return false;
    held.gather(parts, r.top, r.total);
    held.template merge<COUNT, 2>(parts, block_id(), r.o, r.top, [&](int i, const float *v) {
#pragma unroll
        for (int k = 0; k < COUNT; k++) r.o[i + k] = v[k];
    });
    return true;
}

CAIRN_INLINE void prompt_write(const packed_out &to, const prompt_source &source, const many_sums &r) {
    const int g = lane_id() / 4, c = lane_id() % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int m = warp_id() * 16 + half * 8 + g;
        if (!source.exists(m)) continue;
        const float share = r.total[half] > 0.0f ? 1.0f / r.total[half] : 0.0f;
        float *at = to.p.out + to.row(m) * HEAD_DIM + c;
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++)
            *(f32x2 *)(at + n * 8) = f32x2{r.o[4 * n + 2 * half] * share, r.o[4 * n + 2 * half + 1] * share};
        if (c == 0) to.finish(to.row(m), r.top[half], r.total[half]);
    }
}

CAIRN_KERNEL(attend_prompt, MANY_THREADS, 1, attend_params) {
    const int group = p.heads / p.at.kv_heads, unit = grid_blocks_z() - 1 - block_id_z();
    const int first = unit * p.tokens_each, t = thread_id();
    const packed_out to = {p, first, min_of(p.tokens_each, p.rows - first), group};
    packed_tokens &rows = packed_rows();
    if (t < ROWS) find_token(p, t, to.first + t, t < to.tokens);
    if (t == ROWS) many_barriers(8);
    for (int i = t; i < ROWS * MANY_PIECES; i += MANY_THREADS) {
        const int m = i / MANY_PIECES, piece = i % MANY_PIECES;
        u32x4 v = {};
        if (m < to.tokens * group) v = query_piece(p, to.row(m) * HEAD_DIM + piece * 8);
        *(u32x4 *)(many_memory() + swizzled_at(m, piece, ROWS)) = v;
    }
    fence_async();
    block_sync();
    const uint32_t begins =
        warp_ballot(t > 0 && t < ROWS && rows.sequence[t] != rows.sequence[t - 1]);
    if (lane_id() == 0 && t < ROWS) rows.first[warp_id()] = begins;
    block_sync();
    prompt_source source = {p, to, to.tokens, {}, 0};
    const int parts = prompt_parts(p, to.tokens);
    if (block_id() >= parts) return;
    if (warp_id() >= 8) {
        registers_give<72>();
        many_bring(source);
    } else {
        registers_take<216>();
        many_sums r = many_use<BF16>(source, group, p.scale * LOG2_E);
        if (parts > 1 && !prompt_merge(p, parts, unit, r)) return;
        prompt_write(to, source, r);
    }
}
#else
CAIRN_KERNEL(attend_prompt, 128, 1, attend_params) { (void)p; } /* attention/packed.cu is launched */
#endif

/* attend_packed: attention of many rows that share the keys of their sequence: the entries of a step that
 * drafts and verifies, and prompts. The queries of up to `tokens` consecutive rows and of all heads of
 * one KV head stand together as the rows of a tile, so that a key is read once for all of them.
 *
 * Four warps have ROWS / 4 rows each and share tiles of keys and values, of which the next arrives
 * while one is used. Rows of several sequences in one tile are taken
 * sequence by sequence. Where a row's keys are cut into parts (p.chain tiles of keys each) follows from
 * their positions alone, and a tile of keys that a row does not see changes nothing of the row: so a
 * row's bits depend on nothing but the row.
 *
 * Constants  CAIRN_HEAD_DIM, CAIRN_PAGE_SIZE, CAIRN_ABILITIES as in attention.cu, without TOKENS, TWO_LEVEL
 *            and CHAINED
 * Launch     grid (parts at most, kv_heads, ceil(rows / p.tokens_each)), block 128, shared
 *            layout_packed_bytes. The last part of a tile to finish merges them.
 * Numerics   as attention.cu, with other orders of sums
 * matrix: CAIRN_HEAD_DIM=128 CAIRN_PAGE_SIZE=64 CAIRN_ABILITIES=64
 * matrix: CAIRN_HEAD_DIM=256 CAIRN_PAGE_SIZE=16 CAIRN_ABILITIES=5 */
#ifndef CAIRN_ABILITIES
#define CAIRN_ABILITIES 0
#endif
#define CAIRN_PAGES_CSR (CAIRN_ABILITIES >> 4 & 1)
#include "attention/core.cuh"
#include "abi/attention.h"
#include "attention/paged.cuh"
#include "attention/abilities.cuh"
#include "attention/rows.cuh"
#include "attention/runs.cuh"

constexpr int TILES = DIM > 128 ? 1 : 2; /* of 16 rows, of a warp */
constexpr int PACKED_WARPS = 4, PACKED_THREADS = PACKED_WARPS * WARP;
constexpr int ROWS = PACKED_WARPS * TILES * 16, WARP_ROWS = TILES * 16;
constexpr int TILE_KEYS = DIM > 128 ? 16 : 32, TILE_PIECES = TILE_KEYS / 16;
constexpr int TILE_BYTES = TILE_KEYS * DIM * 2; /* of keys; as many of values, and both twice */
constexpr int PACKED_QUERIES = 4 * TILE_BYTES, TOKENS_AT = PACKED_QUERIES + ROWS * DIM * 2;
static_assert(ROWS == layout_packed_rows(DIM) && TILE_KEYS == layout_packed_keys(DIM) &&
                  TOKENS_AT + ROWS * 12 + 32 == layout_packed_bytes(DIM),
              "packed: its shared memory");
/* bf16 lies as it is and becomes f16 on its way to the tensor cores. */
struct bf16_rows {
    CAIRN_METHOD u32x4 key(const unsigned char *keys, int key, int piece) {
        return half_of_bf16(keys + key_at(key, piece));
    }
    CAIRN_METHOD void values(const unsigned char *values, int k, int n, uint32_t *b) {
        half_rows::values(values, k, n, b);
#pragma unroll
        for (int i = 0; i < 4; i++) b[i] = half_of_pair(b[i]);
    }
};
typedef pick<CACHE_KIND == ATTEND_CACHE_BF16, bf16_rows, half_rows> Store;

#include "attention/packed.cuh"

/* Starts the copies of a tile's keys and values; zeros where there is no page. held: of lane i the
 * physical page of keys 16i... */
CAIRN_INLINE void fetch_tile(const attend_params &p, const packed_part &part, int tile, int held,
                             unsigned char *memory) {
    const int value_step = p.at.kv_heads * PAGE * HEAD_DIM;
    const kept_cache<int> keys = {p.at.cache, p.scales, held, 0}, values = keys + value_step;
    shared_addr to(memory);
#pragma unroll
    for (int i = 0; i < TILE_PIECES; i++) {
        const int physical = shuffle(held, i), slot = (tile * TILE_KEYS + i * 16) % PAGE;
        const int last = part.row.position - tile * TILE_KEYS - i * 16;
        const key_piece piece = {layout_slot(max_of(physical, 0), 0, block_id_y(), slot, p.at.kv_heads,
                                             PAGE, HEAD_DIM), 0, physical < 0 ? -1 : last};
#pragma unroll 2
        for (int n = thread_id(); n < 16 * PIECES; n += PACKED_THREADS) {
            const int key = n / PIECES, at = n % PIECES;
            const bool seen = key <= piece.last;
            fetch_whole(keys, piece, key, at, seen, to + key_at(i * 16 + key, at));
            fetch_whole(values, piece, key, at, seen, to + TILE_BYTES + piece_at(i * 16 + key, at));
        }
    }
    copy_async_commit();
}

/* Looks up the pages of a tile; -1 where there is none. */
CAIRN_INLINE int find_pages(const attend_params &p, const packed_part &part, int tile) {
    const int position = tile * TILE_KEYS + lane_id() * 16;
    if (lane_id() >= TILE_PIECES || position > part.row.position) return -1;
    const int page = paged_physical(p.at, part.row, position / PAGE);
    if (page < 0 && warp_id() == 0)
        report_error(p.at.error, CAIRN_FAULT_ID, part.row.sequence, position / PAGE);
    return page;
}

/* Steps at a time: of large heads fewer, for their sums take the registers. */
constexpr int SCORE_STEPS = DIM > 128 ? 2 : DIM / 32;

/* Scores of a warp's rows: each B operand serves all of them. */
CAIRN_INLINE void packed_scores(const unsigned char *memory, const unsigned char *keys,
                                float (*s)[TILE_KEYS / 8][4]) {
    const int g = lane_id() / 4, t = lane_id() % 4;
    const unsigned char *queries = memory + PACKED_QUERIES;
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[m][n][i] = 0.0f;
#pragma unroll SCORE_STEPS
    for (int u = 0; u < DIM / 32; u++) {
        uint32_t a[TILES][8];
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            const int row = warp_id() * WARP_ROWS + m * 16 + g;
            query_operands(*(const u32x4 *)(queries + key_at(row, u * 4 + t)),
                           *(const u32x4 *)(queries + key_at(row + 8, u * 4 + t)), a[m]);
        }
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; n++) {
            const u32x4 b = Store::key(keys, n * 8 + g, u * 4 + t);
            const uint32_t low[2] = {b.x, b.y}, high[2] = {b.z, b.w};
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                mma_f16(s[m][n], a[m], low);
                mma_f16(s[m][n], a[m] + 4, high);
            }
        }
    }
}

/* Hides from row half h of a 16-row tile what it does not see besides what comes behind its last. */
CAIRN_INLINE void hide_unseen(const attend_params &p, const packed_part &part, int token, int first,
                              uint32_t there, int half, float (*s)[4]) {
    const packed_tokens &rows = packed_rows();
    const int t = lane_id() % 4, last = rows.last[token];
    const int begin = p.window > 0 ? layout_candidates(max_of(last, 0), p.window, PAGE) * PAGE : 0;
    const mask_row masked = {part.base, rows.entry[token]};
#pragma unroll
    for (int n = 0; n < TILE_KEYS / 8; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const int position = first + n * 8 + 2 * t + c;
            bool sees = (there >> (n / 2) & 1) && (position < p.sinks || position >= begin);
            if (MASKED && sees && position <= last)
                sees = masked.sees(p, part.row.sequence, position);
            if (!sees) s[n][2 * half + c] = NO_SCORE;
        }
}

/* Folds the scores of a tile of keys; weights become operands. */
CAIRN_INLINE void packed_fold(const attend_params &p, const packed_part &part, int group, int tile,
                              uint32_t there, float (*s)[TILE_KEYS / 8][4], running_rows *r,
                              uint32_t (*weights)[TILE_KEYS / 4]) {
    constexpr uint32_t ALL = (1u << TILE_PIECES) - 1;
    const int first = tile * TILE_KEYS, g = lane_id() / 4;
    const bool plain = there == ALL && (first >= part.begin || first + TILE_KEYS <= part.sinks) &&
                       p.window <= 0 && (!MASKED || first + TILE_KEYS <= part.base);
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int token = (warp_id() * WARP_ROWS + m * 16 + half * 8 + g) / group;
            const bool mine = token >= part.from && token < part.to;
            const int last = mine ? packed_rows().last[min_of(token, ROWS - 1)] - first : -1;
            int seen[TILE_PIECES];
#pragma unroll
            for (int i = 0; i < TILE_PIECES; i++) seen[i] = last - i * 16;
            if constexpr (SOFTCAP) {
#pragma unroll
                for (int n = 0; n < TILE_KEYS / 8; n++)
#pragma unroll
                    for (int c = 2 * half; c < 2 * half + 2; c++) s[m][n][c] = score_of(p, s[m][n][c]);
            }
            if (!plain && mine) hide_unseen(p, part, token, first, there, half, s[m]);
            fold_rows<TILE_KEYS>(r[m], s[m], half, seen, SOFTCAP ? 1.0f : p.scale * LOG2_E,
                                 weights[m]);
        }
}

CAIRN_INLINE void packed_values(const unsigned char *keys, running_rows *r,
                                uint32_t (*weights)[TILE_KEYS / 4]) {
#pragma unroll
    for (int k = 0; k < TILE_KEYS / 16; k++)
#pragma unroll
        for (int n = 0; n < DIM / 16; n++) {
            uint32_t b[4];
            Store::values(keys + TILE_BYTES, k, n, b);
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                mma_f16(r[m].o[2 * n], weights[m] + 4 * k, b);
                mma_f16(r[m].o[2 * n + 1], weights[m] + 4 * k, b + 2);
            }
        }
}

/* The pieces of a tile that are there, as bits. */
CAIRN_INLINE uint32_t pieces_there(int held) {
    return warp_ballot(held >= 0) & ((1u << TILE_PIECES) - 1);
}

/* Tiles [tile, end) of keys of one part. All threads. */
CAIRN_INLINE void packed_run(const attend_params &p, const packed_part &part, int group, int tile,
                             int end, unsigned char *memory, running_rows *r) {
    const int first = warp_id() * WARP_ROWS;
    const bool busy = part.from * group < first + WARP_ROWS && part.to * group > first;
    int held = find_pages(p, part, tile), stage = 0;
    uint32_t there = pieces_there(held);
    block_sync();
    fetch_tile(p, part, tile, held, memory);
#pragma unroll 1
    while (tile < end) {
        float s[TILES][TILE_KEYS / 8][4];
        uint32_t weights[TILES][TILE_KEYS / 4];
        const int next = tile_from(part, tile + 1);
        if (next < end) held = find_pages(p, part, next);
        copy_async_wait<0>();
        block_sync();
        if (next < end)
            fetch_tile(p, part, next, held, memory + (stage ^ 1) * 2 * TILE_BYTES);
        if (busy) {
            packed_scores(memory, memory + stage * 2 * TILE_BYTES, s);
            packed_fold(p, part, group, tile, there, s, r, weights);
            packed_values(memory + stage * 2 * TILE_BYTES, r, weights);
        }
        there = pieces_there(held), tile = next, stage ^= 1;
    }
}

/* Writes the rows, or this part's sums of them. */
CAIRN_INLINE void packed_put(const packed_out &to, const running_rows *r, bool whole, float *parts,
                             f32x2 *sums) {
    const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int m = warp_id() * WARP_ROWS + i * 16 + half * 8 + g;
            if (m >= to.tokens * to.group) continue;
            const float total = r[i].total[half], share = total > 0.0f ? 1.0f / total : 0.0f;
            const int64_t row = to.row(m);
            float *at = whole ? to.p.out + row * HEAD_DIM : parts + (int64_t)m * HEAD_DIM;
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 8; n++) {
                const float x = r[i].o[n][2 * half], y = r[i].o[n][2 * half + 1];
                at[n * 8 + 2 * t] = whole ? x * share : x;
                at[n * 8 + 2 * t + 1] = whole ? y * share : y;
            }
            if (t == 0 && !whole) sums[m] = f32x2{r[i].top[half], total};
            if (t == 0 && whole) to.finish(row, r[i].top[half], total);
        }
}

/* By the last block of a tile: the sums of `count` parts. */
CAIRN_INLINE void packed_merge(const packed_out &to, const float *parts, const f32x2 *sums, int count) {
    const int t = lane_id() % 4, number = t * 8 + scattered(lane_id() / 4);
    for (int i = warp_id(); i < to.tokens * to.group * (DIM / 32); i += PACKED_WARPS) {
        const int m = i / (DIM / 32), d = i % (DIM / 32) * 32;
        const merged out = merge_runs(
            count,
            [&](int from, run_part &part) {
                const int64_t row = (int64_t)from * ROWS + m;
                if (has_piece(d / 8 + t)) part.load(parts + row * HEAD_DIM + d + t * 8, sums + row);
            },
            [](const run_part *, int) { return false; });
        if (has_piece(d / 8 + t)) to.p.out[to.row(m) * HEAD_DIM + d + number] = out.value;
        if (d == 0 && lane_id() == 0) to.finish(to.row(m), out.top, out.total);
    }
}

/* The tile's tokens and queries into shared memory. All threads. */
CAIRN_INLINE void packed_start(const attend_params &p, const packed_out &to, unsigned char *memory) {
    packed_tokens &rows = packed_rows();
    const int t = thread_id();
    if (t < ROWS) find_token(p, t, to.first + t, t < to.tokens);
    block_sync();
    const uint32_t first = warp_ballot(t > 0 && t < ROWS && rows.sequence[t] != rows.sequence[t - 1]);
    if (lane_id() == 0 && t < ROWS) rows.first[warp_id()] = first;
    for (int i = t; i < ROWS * PIECES; i += PACKED_THREADS) {
        const int m = i / PIECES;
        u32x4 v = {};
        if (m < to.tokens * to.group && has_piece(i % PIECES))
            v = half_of_query(p.q, to.row(m) * HEAD_DIM + i % PIECES * 8);
        *(u32x4 *)(memory + PACKED_QUERIES + key_at(m, i % PIECES)) = v;
    }
    block_sync();
}

CAIRN_KERNEL(attend_packed, PACKED_THREADS, 1, attend_params) {
    unsigned char *memory = shared_base();
    const int group = p.heads / p.at.kv_heads, unit = grid_blocks_z() - 1 - block_id_z();
    const int first = unit * p.tokens_each;
    const packed_out to = {p, first, min_of(p.tokens_each, p.rows - first), group};
    packed_start(p, to, memory);
    const int each = p.chain, begin = each ? block_id() * each : 0;
    running_rows r[TILES];
    int most = 0; /* tiles of keys of any row */
#pragma unroll
    for (int m = 0; m < TILES; m++) r[m].clear();
    for (int from = 0; from < to.tokens;) {
        const packed_part part = find_part(p, from, to.tokens);
        const int tiles = part.row.valid ? part.row.position / TILE_KEYS + 1 : 0;
        const int end = each ? min_of(tiles, begin + each) : tiles, tile = tile_from(part, begin);
        most = max_of(most, tiles);
        from = part.to;
        if (tile < end) packed_run(p, part, group, tile, end, memory, r);
    }
    const int parts = each ? max_of(ceil_div(most, each), 1) : 1;
    const int64_t slot = (int64_t)unit * grid_blocks_y() + block_id_y();
    const int64_t at = (slot * grid_blocks() + block_id()) * ROWS;
    if (block_id() >= parts) return;
    packed_put(to, r, parts == 1, p.partial + at * HEAD_DIM, (f32x2 *)p.sums + at);
    if (parts == 1) return;
    if (!last_to_arrive(p.arrived + slot, parts, &packed_rows().flag)) return;
    const int64_t base = slot * grid_blocks() * ROWS;
    packed_merge(to, p.partial + base * HEAD_DIM, (const f32x2 *)p.sums + base, parts);
}

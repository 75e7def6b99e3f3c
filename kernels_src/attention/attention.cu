/* attention: softmax over the paged cache, dense, windowed or over selected pages.
 *
 * Row r at position i with C = the pages that may be left out (see attend_list) attends, each once:
 * tokens below `sinks`, the selected pages below C, and every token from page C up to i.
 *   out = sum_t e^(s_t) v_t / sum_t e^(s_t),  s_t = scale * q.k_t,  lse = ln sum_t e^(s_t)
 *
 * Constants  CAIRN_HEAD_DIM   multiple of 32 up to 256;  CAIRN_PAGE_SIZE  multiple of 16 up to 256
 * Launch     grid (splits, kv_heads x ceil(group / 16), rows), block 128, shared ATTEND_SHARED.
 *            A split is 256 tokens' worth of the row's list of pages; the last split of a row to
 *            finish merges all in ascending order, so a row's result depends on nothing but the row.
 * Numerics   q, k, v and the weights e^(s - m) enter mma m16n8k16 as f16; all sums f32.
 * A page that the table does not hold contributes nothing and is reported.
 * matrix: CAIRN_HEAD_DIM=128 CAIRN_PAGE_SIZE=64 | CAIRN_HEAD_DIM=64 CAIRN_PAGE_SIZE=16
 * matrix: CAIRN_HEAD_DIM=256 CAIRN_PAGE_SIZE=128 */
#include "device/common.cuh"
#include "abi/attention.h"
#include "attention/paged.cuh"

#define DIM CAIRN_HEAD_DIM
#define SLOTS CAIRN_PAGE_SIZE
#define WARPS 4
#define LIST (SLOTS >= 256 ? 1 : 256 / SLOTS)  /* pages of a split */
#define V_STRIDE (DIM * 2 + 16)                /* bytes of a staged row, off the bank pattern */
#define PART (DIM + 2)                         /* m, l, sum [DIM] of one query */

/* Shared memory: the split's pages, the queries where they are staged, then V of each warp, which
 * the warps' sums replace. */
#define LIST_BYTES ((2 * LIST * 4 + 64 + 127) / 128 * 128)
#define QUERY_BYTES (DIM > 128 ? DIM * 32 : 0)
#define MERGE_BYTES (WARPS * 16 * PART * 4)
#define STAGE_BYTES (WARPS * 16 * V_STRIDE)

struct attend_list { int sinks, selected, first, length; };

/* The row's pages in order: those with sinks, the selected, then `first` to its own. */
CAIRN_INLINE attend_list attend_list_of(const attend_params &p, int position) {
    const int own = position / SLOTS;
    int first = 0;
    if (p.window > 0) first = max_of(position - p.window + 1, 0) / SLOTS;
    else if (p.sparse) first = own;
    int sinks = min_of(first, ceil_div(p.sinks, SLOTS));
    int selected = p.selected ? p.topk : 0;
    return {sinks, selected, first, sinks + selected + own - first + 1};
}

CAIRN_INLINE bool attend_is_selected(const int32_t *selected, int count, int page) {
    bool found = false;
    for (int i = 0; i < count; i++) found |= selected[i] == page;
    return found;
}

/* Entry e of the list: its logical page and how many of its tokens are attended. */
CAIRN_INLINE int attend_entry(const attend_params &p, const attend_list &list,
                              const int32_t *selected, int position, int e, int *count) {
    *count = 0;
    if (e >= list.length) return 0;
    if (e < list.sinks) {
        bool twice = attend_is_selected(selected, list.selected, e);
        *count = twice ? 0 : min_of(p.sinks - e * SLOTS, SLOTS);
        return e;
    }
    e -= list.sinks;
    if (e < list.selected) {
        int page = selected[e];
        *count = page >= 0 && page < list.first ? SLOTS : 0;
        return page;
    }
    e += list.first - list.selected;
    *count = min_of(position - e * SLOTS + 1, SLOTS);
    return e;
}

/* 16 queries of one KV head as A operands: step j of lane (g, c) holds dimensions 32 (j / 2) + 8 c +
 * 4 (j % 2) and the three that follow, which a lane has of a key after one 16-byte load. Where
 * registers are short they stay in shared memory, once for all warps. */
#define STEPS (DIM / 16)
constexpr bool STAGED = DIM > 128;
struct queries {
    u32x4 held[STAGED ? 1 : STEPS];
    const u32x4 *staged; /* [STEPS, 32 lanes] */
};

CAIRN_INLINE u32x4 query_step(const float *from, int count, int step) {
    const int g = lane_id() / 4, c = lane_id() % 4;
    uint32_t a[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = g + i % 2 * 8, at = step / 2 * 32 + c * 8 + step % 2 * 4 + i / 2 * 2;
        const float *x = from + (int64_t)row * DIM + at;
        a[i] = row < count ? pack_f16x2(x[0], x[1]) : 0u;
    }
    return {a[0], a[1], a[2], a[3]};
}

/* Staged queries are complete after the next block_sync. */
CAIRN_INLINE void load_queries(queries &q, const float *from, int count, u32x4 *stage) {
    q.staged = stage;
    if constexpr (STAGED) {
        for (int step = warp_id(); step < STEPS; step += WARPS)
            stage[step * WARP + lane_id()] = query_step(from, count, step);
    } else {
#pragma unroll
        for (int step = 0; step < STEPS; step++) q.held[step] = query_step(from, count, step);
    }
}

CAIRN_INLINE void multiply_step(const queries &q, int step, float *s, const uint32_t *key) {
    u32x4 v = STAGED ? q.staged[step * WARP + lane_id()] : q.held[STAGED ? 0 : step];
    uint32_t a[4] = {v.x, v.y, v.z, v.w};
    mma_f16(s, a, key);
}

struct running { float m[2], l[2], sum[DIM / 8][4]; }; /* of rows g and g + 8 */

/* Scores of 16 queries and 16 keys, in units of log2; masked beyond `valid`. */
CAIRN_INLINE void score_keys(const queries &q, const f16 *keys, float factor, int valid,
                             float (*s)[4]) {
    const int g = lane_id() / 4, c = lane_id() % 4;
    constexpr int AHEAD = DIM > 128 ? 4 : DIM / 32; /* loads in flight; registers are short */
#pragma unroll
    for (int tile = 0; tile < 2; tile++) {
        u32x4 k[AHEAD];
#pragma unroll
        for (int i = 0; i < 4; i++) s[tile][i] = 0.0f;
#pragma unroll
        for (int j = 0; j < DIM / 32; j++) {
            const f16 *key = keys + (tile * 8 + g) * DIM + c * 8;
            if (j % AHEAD == 0)
#pragma unroll
                for (int i = 0; i < AHEAD; i++)
                    k[i] = load_constant_early((const u32x4 *)(key + (j + i) * 32));
            uint32_t low[2] = {k[j % AHEAD].x, k[j % AHEAD].y};
            uint32_t high[2] = {k[j % AHEAD].z, k[j % AHEAD].w};
            multiply_step(q, 2 * j, s[tile], low);
            multiply_step(q, 2 * j + 1, s[tile], high);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int token = tile * 8 + c * 2 + i % 2;
            s[tile][i] = token < valid ? s[tile][i] * factor : -1e30f;
        }
    }
}

/* Folds the scores into the running maximum and sum; leaves the weights as an A operand. */
CAIRN_INLINE void fold_scores(running &r, float (*s)[4], uint32_t *weights) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = max_of(max_of(s[0][2 * half], s[0][2 * half + 1]),
                           max_of(s[1][2 * half], s[1][2 * half + 1]));
        top = max_of(top, shuffle_xor(top, 1));
        top = max_of(r.m[half], max_of(top, shuffle_xor(top, 2)));
        float scale = exp2_fast(r.m[half] - top), total = 0.0f;
#pragma unroll
        for (int tile = 0; tile < 2; tile++) {
            float a = exp2_fast(s[tile][2 * half] - top), b = exp2_fast(s[tile][2 * half + 1] - top);
            weights[2 * tile + half] = pack_f16x2(a, b);
            total += a + b;
        }
        r.m[half] = top;
        r.l[half] = r.l[half] * scale + total; /* of this lane's tokens; lanes are added at the end */
#pragma unroll
        for (int d = 0; d < DIM / 8; d++) {
            r.sum[d][2 * half] *= scale;
            r.sum[d][2 * half + 1] *= scale;
        }
    }
}

/* V of 16 tokens, coalesced: piece i of this lane. Tokens that do not count are zero, whatever lies
 * there. */
CAIRN_INLINE u32x4 load_value(const f16 *values, int valid, int i) {
    int piece = i * WARP + lane_id(), token = piece / (DIM / 8), at = piece % (DIM / 8) * 8;
    return token < valid ? load_constant((const u32x4 *)(values + token * DIM + at))
                         : u32x4{0, 0, 0, 0};
}

CAIRN_INLINE void stage_value(unsigned char *stage, u32x4 v, int i) {
    int piece = i * WARP + lane_id(), token = piece / (DIM / 8), at = piece % (DIM / 8) * 8;
    *(u32x4 *)(stage + token * V_STRIDE + at * 2) = v;
}

/* 16 tokens of one page: `valid` of them count. */
CAIRN_INLINE void attend_tile(const queries &q, running &r, const f16 *keys, const f16 *values,
                              int valid, float factor, unsigned char *stage) {
    constexpr int EARLY = DIM <= 128 ? DIM / 16 : 0; /* pieces of V asked for before K is used */
    u32x4 v[EARLY + 1];
    float s[2][4];
    uint32_t weights[4];
#pragma unroll
    for (int i = 0; i < EARLY; i++) v[i] = load_value(values, valid, i);
    score_keys(q, keys, factor, valid, s);
    fold_scores(r, s, weights);
    warp_sync();
#pragma unroll
    for (int i = 0; i < EARLY; i++) stage_value(stage, v[i], i);
#pragma unroll 4
    for (int i = EARLY; i < DIM / 16; i++) stage_value(stage, load_value(values, valid, i), i);
    warp_sync();
    shared_addr row = shared_addr(stage) + (uint32_t)(lane_id() % 16 * V_STRIDE + lane_id() / 16 * 16);
#pragma unroll
    for (int d = 0; d < DIM / 16; d++) {
        uint32_t b[4];
        load_matrix_transposed_x4(b, row + (uint32_t)(d * 32));
        mma_f16(r.sum[2 * d], weights, b);
        mma_f16(r.sum[2 * d + 1], weights, b + 2);
    }
}

/* A warp's sums into its part of shared memory: [16][PART]. */
CAIRN_INLINE void store_running(running &r, float *part) {
    const int g = lane_id() / 4, c = lane_id() % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float *to = part + (g + 8 * half) * PART, total = r.l[half];
        total += shuffle_xor(total, 1);
        total += shuffle_xor(total, 2);
        if (c == 0) {
            to[0] = r.m[half];
            to[1] = total;
        }
#pragma unroll
        for (int d = 0; d < DIM / 8; d++) {
            to[2 + d * 8 + c * 2] = r.sum[d][2 * half];
            to[2 + d * 8 + c * 2 + 1] = r.sum[d][2 * half + 1];
        }
    }
}

/* Value d of query `query`: `count` parts, `stride` floats apart, folded in ascending order. */
struct folded { float m, l, sum; };
CAIRN_INLINE folded fold_parts(const float *parts, int count, int64_t stride, int query, int d) {
    folded f = {-1e30f, 0.0f, 0.0f};
    for (int i = 0; i < count; i++) {
        const float *part = parts + i * stride + query * PART;
        float m = load_volatile(part), top = max_of(f.m, m);
        float old = exp2_fast(f.m - top), now = exp2_fast(m - top);
        f.l = f.l * old + load_volatile(part + 1) * now;
        f.sum = f.sum * old + load_volatile(part + 2 + d) * now;
        f.m = top;
    }
    return f;
}

CAIRN_INLINE void write_result(const attend_params &p, int64_t head, int d, const folded &f) {
    p.out[head * DIM + d] = f.l > 0.0f ? f.sum / f.l : 0.0f;
    if (p.lse && d == 0)
        p.lse[head] = f.l > 0.0f ? (f.m + log2_fast(f.l)) * 0.6931471805599453f : as_f32(0xff800000u);
}

/* All tokens of this split that the warp works on. */
CAIRN_INLINE void attend_split(const attend_params &p, const queries &q, running &r, int kv_head,
                               const int32_t *pages, const int32_t *counts, unsigned char *stage) {
    const float factor = p.scale * 1.4426950408889634f;
    for (int tile = warp_id(); tile < LIST * (SLOTS / 16); tile += WARPS) {
        int entry = tile / (SLOTS / 16), token = tile % (SLOTS / 16) * 16;
        int valid = min_of(counts[entry] - token, 16);
        if (valid <= 0) continue;
        const f16 *keys = (const f16 *)p.at.cache + paged_offset(p.at, pages[entry], 0, kv_head);
        const f16 *values = (const f16 *)p.at.cache + paged_offset(p.at, pages[entry], 1, kv_head);
        attend_tile(q, r, keys + token * DIM, values + token * DIM, valid, factor, stage);
    }
}

CAIRN_KERNEL(attend, WARPS * 32, 1, attend_params) {
    int32_t *pages = (int32_t *)shared_base(), *counts = pages + LIST, *last = counts + LIST;
    u32x4 *stage = (u32x4 *)(shared_base() + LIST_BYTES);
    unsigned char *rest = shared_base() + LIST_BYTES + QUERY_BYTES;
    const int split = block_id(), unit = block_id_y(), r = block_id_z();
    const int group = p.heads / p.at.kv_heads, tiles = ceil_div(group, 16);
    const int kv_head = unit / tiles, query = unit % tiles * 16, count = min_of(group - query, 16);
    const int64_t head = (int64_t)r * p.heads + kv_head * group + query;
    paged_row row = paged_find(p.at, r);
    attend_list list = attend_list_of(p, row.valid ? row.position : 0);
    const int active = row.valid ? ceil_div(list.length, LIST) : 1;
    if (split >= active) return;

    const int32_t *selected = p.selected + ((int64_t)r * p.at.kv_heads + kv_head) * p.topk;
    for (int i = thread_id(); i < LIST; i += WARPS * WARP) {
        int tokens = 0, c = 0;
        if (row.valid) c = attend_entry(p, list, selected, row.position, split * LIST + i, &tokens);
        pages[i] = tokens ? paged_physical(p.at, row, c) : -1;
        if (tokens && pages[i] < 0) report_error(p.at.error, CAIRN_FAULT_ID, r, c);
        counts[i] = pages[i] >= 0 ? tokens : 0;
    }
    queries q;
    running sums = {};
    sums.m[0] = sums.m[1] = -1e30f;
    load_queries(q, p.q + head * DIM, count, stage);
    block_sync();
    attend_split(p, q, sums, kv_head, pages, counts, rest + warp_id() * 16 * V_STRIDE);
    block_sync();
    store_running(sums, (float *)rest + warp_id() * 16 * PART);
    block_sync();

    const int64_t slot = (int64_t)r * grid_blocks_y() + unit;
    float *partial = p.partial + (slot * grid_blocks() + split) * 16 * PART;
    for (int i = thread_id(); i < count * DIM; i += WARPS * WARP) {
        folded f = fold_parts((const float *)rest, WARPS, 16 * PART, i / DIM, i % DIM);
        if (active == 1) {
            write_result(p, head + i / DIM, i % DIM, f);
        } else {
            float *part = partial + i / DIM * PART;
            part[2 + i % DIM] = f.sum;
            if (i % DIM == 0) {
                part[0] = f.m;
                part[1] = f.l;
            }
        }
    }
    if (active == 1) return;
    block_sync();
    if (thread_id() == 0) {
        uint32_t before = atomic_add_acq_rel(&p.arrived[slot], 1u);
        *last = before + 1 == (uint32_t)active;
        if (*last) p.arrived[slot] = 0;
    }
    block_sync();
    if (!*last) return;
    partial = p.partial + slot * grid_blocks() * 16 * PART;
    for (int i = thread_id(); i < count * DIM; i += WARPS * WARP)
        write_result(p, head + i / DIM, i % DIM,
                     fold_parts(partial, active, 16 * PART, i / DIM, i % DIM));
}

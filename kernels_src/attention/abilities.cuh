/* attention/abilities.cuh: what attention over an op's tensors can do besides the engine's form, each
 * behind its bits of CAIRN_ABILITIES (abi/attention.h), so that what is not asked for costs nothing:
 * caches and queries of other types, page tables in rows of any length, a cap on scores, masks over
 * the rows of a step, pages with weights of their own, landmarks, lists of tokens. */
#ifndef CAIRN_ABILITIES_CUH
#define CAIRN_ABILITIES_CUH

#include "attention/kept.cuh"

constexpr bool SOFTCAP = (CAIRN_ABILITIES & ATTEND_SOFTCAP) != 0;
constexpr bool MASKED = (CAIRN_ABILITIES & ATTEND_MASK) != 0;
constexpr bool TWO_LEVEL = (CAIRN_ABILITIES & ATTEND_TWO_LEVEL) != 0;
constexpr bool LANDMARKS = (CAIRN_ABILITIES & ATTEND_LANDMARKS) != 0;
constexpr bool PARTED = (CAIRN_ABILITIES & ATTEND_PARTS) != 0;
constexpr bool CHAINED = (CAIRN_ABILITIES & ATTEND_CHAINED) != 0;
constexpr bool CLUSTERED = (CAIRN_ABILITIES & ATTEND_CLUSTER) != 0;
constexpr bool RELAYED = (CAIRN_ABILITIES & ATTEND_RELAY) != 0;
/* Scores become what they are by `scores` below, else by a factor alone. */
constexpr bool ADJUSTED = SOFTCAP || MASKED || TWO_LEVEL || TOKEN_LISTS;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float NO_SCORE = -3e38f; /* below NOTHING */

/* Shared memory behind that of the core. */
constexpr int CHAIN_AT = SCALES_AT + (BYTES ? layout_scale_bytes(DIM) : 0);
constexpr int LISTS_AT =
    CHAIN_AT + (CHAINED ? layout_chain_bytes(DIM) : CLUSTERED ? layout_cluster_bytes(HEAD_DIM) : 0);

/* Of a grid (runs, tiles, rows); where runs go by relay (tiles, rows, runs): blocks of a smaller z begin first. */
CAIRN_INLINE int row_of_block() { return RELAYED ? block_id_y() : block_id_z(); }
CAIRN_INLINE int tiles_of_grid() { return RELAYED ? grid_blocks() : grid_blocks_y(); }

/* Eight values of the queries from number `from` on; f32 may lie at any multiple of 4 bytes. */
CAIRN_INLINE u32x4 half_of_query(const void *q, int64_t from) {
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] = CAIRN_ABILITIES & ATTEND_QUERY_F16 ? f16_to_f32(((const f16 *)q)[from + i])
               : CAIRN_ABILITIES & ATTEND_QUERY_BF16
                   ? bf16_to_f32(((const bf16 *)q)[from + i])
                   : ((const float *)q)[from + i];
    return pack_floats(x);
}

/* ---- lists of tokens ---- */

/* What a row attends: `length` ids of slots. */
struct token_list {
    const int32_t *ids;
    int length;

    /* False for a row that does not exist. All threads. */
    CAIRN_MEMBER bool find(const attend_params &p, int r) {
        ids = p.tokens + (p.cu_lens ? 0 : (int64_t)r * p.token_width), length = p.token_width;
        if (!p.cu_lens) return true;
        const int b = p.at.sequences ? p.at.sequences[r] : r;
        if (b < 0 || b >= p.at.sequence_count) {
            if (thread_id() == 0) report_error(p.at.error, CAIRN_FAULT_ID, r, b);
            return false;
        }
        const int from = p.cu_lens[b], to = p.cu_lens[b + 1];
        const bool fits = from >= 0 && from <= to && to <= p.token_width;
        if (!fits && thread_id() == 0) report_error(p.at.error, CAIRN_FAULT_LENGTH, r, to);
        ids += from, length = to - from;
        return fits;
    }
};

/* The pieces of this warp: a lane knows where the values of one key of the chunk begin. */
struct token_pieces {
    const attend_params &p;
    token_list of;
    int kv_head;
    int64_t held;         /* of this lane's key; -1: none */
    uint32_t seen[2]; /* a bit for each key of the warp, of the last even and the last odd chunk */

    CAIRN_MEMBER void look_up(int chunk) {
        const int at = chunk * CHUNK + warp_id() * WARP_KEYS + lane_id(), size = p.at.page_size;
        held = -1;
        if (lane_id() < WARP_KEYS && at < of.length) {
            const int id = of.ids[at];
            if (id >= 0 && id / size < p.at.pages)
                held = (((int64_t)(id / size) * 2 * p.at.kv_heads + kv_head) * size + id % size) *
                       HEAD_DIM;
            else if (id != -1)
                report_error(p.at.error, CAIRN_FAULT_ID, row_of_block(), id);
        }
        const uint32_t there = warp_ballot(held >= 0);
        seen[0] = chunk % 2 ? seen[0] : there;
        seen[1] = chunk % 2 ? there : seen[1];
    }
    CAIRN_MEMBER uint32_t seen_of(int chunk) const { return chunk % 2 ? seen[1] : seen[0]; }
    CAIRN_MEMBER void reach(int chunk) { look_up(chunk); }
    CAIRN_MEMBER void find(int chunk, key_piece *piece) const {
#pragma unroll
        for (int i = 0; i < WARP_PIECES; i++)
            piece[i] = key_piece{0, chunk * CHUNK + warp_id() * WARP_KEYS + i * 16, 15};
    }
};

/* Where the values of a key of the chunk begin. */
CAIRN_INLINE int64_t token_at(const token_pieces &keys, int key) { return shuffle(keys.held, key); }

/* ---- lists of pages, without landmarks ---- */

template <class Source> struct real_pieces {
    listed_pieces<Source> all;

    CAIRN_MEMBER void look_up(int chunk) { all.look_up(chunk); }
    CAIRN_MEMBER void reach(int chunk) { all.reach(chunk); }
    CAIRN_MEMBER void find(int chunk, key_piece *piece) const {
        all.find(chunk, piece);
#pragma unroll
        for (int i = 0; LANDMARKS && i < WARP_PIECES; i++)
            piece[i].last = min_of(piece[i].last, PAGE - 2 - piece[i].position % PAGE);
    }
};

/* ---- masks ---- */

/* Of a row of a step: it is entry `row` of mask_rows, and sees all before `base`. */
struct mask_row {
    int base, row;

    /* False where the row is none of its step's; else the list ends with the step's last entry. */
    CAIRN_MEMBER bool look(const attend_params &p, paged_row &at) {
        base = p.bases[at.sequence], row = at.position - base;
        const int64_t last = (int64_t)base + p.mask_rows - 1;
        const bool fits = base >= 0 && row >= 0 && row < p.mask_rows &&
                          paged_holds(p.at, at, last);
        at.position = (int)last;
        return fits;
    }
    /* The same, reported. All threads. */
    CAIRN_MEMBER bool find(const attend_params &p, paged_row &at, int r) {
        const bool fits = look(p, at);
        if (!fits && thread_id() == 0) report_error(p.at.error, CAIRN_FAULT_POSITION, r, base);
        return fits;
    }
    CAIRN_MEMBER bool sees(const attend_params &p, int sequence, int position) const {
        const int j = position - base;
        if (j < 0) return true;
        if (p.mask) {
            const int bit = row * p.mask_rows + j;
            return p.mask[(int64_t)sequence * p.mask_bytes + bit / 8] >> bit % 8 & 1;
        }
        return layout_draft_sees(row, j, p.mask_side);
    }
};

/* ---- scores ---- */

CAIRN_INLINE float capped(float s, float cap) {
    const float e = exp2_fast(2.0f * LOG2_E / cap * s);
    return cap - 2.0f * cap / (e + 1.0f);
}

/* q.k scaled, capped, in powers of 2. */
CAIRN_INLINE float score_of(const attend_params &p, float s) {
    s *= p.scale;
    return (SOFTCAP ? capped(s, p.softcap) : s) * LOG2_E;
}

/* ---- pages with weights ----
 * Each selected page has a softmax of its own, and the pages, with the window's softmax if it is
 * there, another over their weights: so a token counts e^(s - lse of its page + weight). */

/* Where a chunk holds whole pages its warps tell each other of their keys as the scores come (meet_pages);
 * else the lse of every page of a run is found beforehand (weigh_pages). */
constexpr bool MEETING = TWO_LEVEL && CHUNK % PAGE == 0;
constexpr int MEETINGS = CAIRN_ARCH < 900 ? 1 : PAGE / 16; /* of a page, at a time: as registers allow */
constexpr float ALONE = 3e38f; /* in place of a weight: of a page only the sinks are attended, as they are */

/* The place in a selection of the first entry that is that page, -1 for none. */
CAIRN_INLINE int place_of_page(const int32_t *selected, int topk, int page) {
    for (int i = 0; i < topk; i += WARP) {
        const uint32_t same = warp_ballot(i + lane_id() < topk && selected[i + lane_id()] == page);
        if (same) return i + find_first_set(same) - 1;
    }
    return -1;
}

/* For each of `count` entries of a list and each row: the page's weight. By all threads. */
CAIRN_INLINE void place_weights(const attend_params &p, int count, const int32_t *list,
                                const int32_t *selected, const float *weights, int weight_step,
                                int rows, float *bias) {
    for (int e = warp_id(); e < count; e += CORE_WARPS) {
        const bool alone = (list[e] & SINKS_ALONE) != 0;
        const int place = alone ? -1 : place_of_page(selected, p.topk, list[e]), m = lane_id();
        if (m >= rows) continue;
        const float weight = alone ? 0.0f : weights[m * weight_step + place] * LOG2_E;
        bias[e * 16 + m] = alone ? ALONE : weight > NO_SCORE ? fminf(weight, 1e38f) : NO_SCORE;
    }
}

/* What is added to the scores of a warp's keys: the weight of their page less its lse, of which every
 * warp leaves its part in `meet` [pieces of a chunk, 16] (m, l), twice, by turns. entry: that of the
 * chunk's first key; those from `weighed` on have no weights. All threads. */
template <int TILES>
CAIRN_INLINE void meet_pages(const key_piece *piece, int chunk, int entry, int weighed, int rows,
                             const float *bias, float *meet, scores<TILES> &s) {
    const int g = lane_id() / 4, t = lane_id() % 4, first = warp_id() * WARP_PIECES;
    float *here = meet + chunk % 2 * (CHUNK / 16) * 32;
#pragma unroll
    for (int i = 0; i < WARP_PIECES; i++)
#pragma unroll
        for (int k = 0; k < TILES * 2; k++) {
            const int q = k / 2, c = k % 2;
            if (q > 0 && rows <= q * 8) break;
            float v[2];
#pragma unroll
            for (int h = 0; h < 2; h++) v[h] = h * 8 + g <= piece[i].last ? s.v[q][i][2 * h + c] : NO_SCORE;
            const float top = column_max(fmaxf(v[0], v[1])), base = fmaxf(top, 0.5f * NOTHING);
            const float total = column_sum(exp2_fast(v[0] - base) + exp2_fast(v[1] - base));
            float *mine = here + ((first + i) * 16 + q * 8 + 2 * t + c) * 2;
            if (g == 0) mine[0] = fmaxf(top, NOTHING), mine[1] = total;
        }
    block_sync();
#pragma unroll
    for (int i = 0; i < WARP_PIECES; i++) {
        const int page = (first + i) / (PAGE / 16);
        if (entry + page >= weighed) continue;
#pragma unroll
        for (int k = 0; k < TILES * 2; k++) {
            const int q = k / 2, c = k % 2, m = q * 8 + 2 * t + c;
            if (q > 0 && rows <= q * 8) break;
            float top = NOTHING, total = 0.0f;
            const float *part = here + (page * (PAGE / 16) * 16 + m) * 2;
#pragma unroll MEETINGS
            for (int n = 0; n < PAGE / 16; n++) top = fmaxf(top, part[n * 32]);
#pragma unroll MEETINGS
            for (int n = 0; n < PAGE / 16; n++)
                total = fma_f32(part[n * 32 + 1], exp2_fast(part[n * 32] - top), total);
            const float weight = m < rows ? bias[(entry + page) * 16 + m] : NO_SCORE;
            const bool counts = total > 0.0f && top > 0.5f * NOTHING && weight > NO_SCORE;
            const float more = weight == ALONE ? 0.0f : weight - (top + log2_fast(total));
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float &v = s.v[q][i][2 * h + c];
                v = counts ? v + more : NO_SCORE;
            }
        }
    }
}

/* For each row and each of `count` entries of a list, which stand in `list`: what is added to its
 * scores. By all threads; the queries are in shared memory. */
template <class Source>
CAIRN_INLINE void weigh_pages(const attend_params &p, const Source &source, int from, int count,
                              const int32_t *list, const int32_t *selected, const float *weights,
                              int weight_step, int rows, int kv_head, unsigned char *memory,
                              float *bias) {
    constexpr int TILES = 2;
    const auto none = [](int, int, bool) { return false; };
    unsigned char *mine = memory + warp_id() * 2 * KEYS_BYTES;
    typedef typename store_of<kept_cache<Source>>::type Store;
    const typename Store::Scales scales(memory);
    for (int e = warp_id(); e < count; e += CORE_WARPS) {
        const page_entry entry = source.entry(from + e);
        const bool alone = (list[e] & SINKS_ALONE) != 0;
        running<TILES> r;
        r.clear();
        for (int slot = 0; slot < PAGE && !alone; slot += WARP_KEYS) {
            key_piece piece[WARP_PIECES];
            scores<TILES> s;
            uint32_t unused[WARP_PIECES * 2];
            int seen[WARP_PIECES];
#pragma unroll
            for (int i = 0; i < WARP_PIECES; i++) {
                const int at = slot + i * 16, last = min_of(PAGE - 1 - LANDMARKS - at, 15);
                seen[i] = entry.physical < 0 || at >= PAGE ? -1 : last;
                piece[i].at = layout_slot(entry.physical, 0, kv_head, at, p.at.kv_heads, PAGE, HEAD_DIM);
                piece[i].position = 0, piece[i].last = seen[i];
            }
            const kept_cache<Source> cache = {p.at.cache, p.scales, source, 0};
            fetch_keys(cache, piece, mine, none);
            copy_async_commit();
            copy_async_wait<0>();
            warp_sync();
            score_keys<Store>(memory + QUERIES_AT, mine, rows, s);
            scales.of_keys(0, s, rows);
            s.each(rows, [&](int, int, int, float &v) { v = score_of(p, v); });
#pragma unroll
            for (int q = 0; q < TILES; q++)
                if (q == 0 || rows > q * 8)
                    fold_scores(r, s, q, [&](int i, int) { return seen[i]; }, 1.0f, unused, no_scales(nullptr));
            warp_sync();
        }
        const int place = alone ? -1 : place_of_page(selected, p.topk, list[e]);
#pragma unroll
        for (int k = 0; k < TILES * 2; k++) {
            const int q = k / 2, c = k % 2, m = q * 8 + lane_id() % 4 * 2 + c;
            const float total = column_sum(r.total[q][c]);
            if (lane_id() / 4 != 0 || m >= rows) continue;
            float weight = alone ? 0.0f : weights[m * weight_step + place];
            if (!alone) {
                const float lse = r.top[q][c] + log2_fast(total);
                weight = total > 0.0f && weight > NO_SCORE ? weight * LOG2_E - lse : NO_SCORE;
            }
            bias[e * 16 + m] = weight;
        }
    }
}

#endif

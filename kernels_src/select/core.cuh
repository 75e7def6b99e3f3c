/* Page selection of one query row and KV head: bounds of pages, their scores, and which are kept.
 *
 * Scores are sum_d max(q_d lo_d, q_d hi_d) (or q . mean), summed over the KV head's query heads or
 * the best of them; the topk highest are kept, the lowest page among equals, NaN last: exact for any
 * scores, the same on every run. Blocks of at least eight warps.
 *
 * Constants: CAIRN_HEAD_DIM, a multiple of 16; CAIRN_PAGE_SIZE; the including file's GROUP, the
 * query heads of a KV head. */
#ifndef CAIRN_SELECT_CORE_CUH
#define CAIRN_SELECT_CORE_CUH

#include "attention/core.cuh"

/* Dimensions of a lane, pairs of them; where these are more than a head has, the last lanes have none. */
constexpr int LANE_WORDS = HEAD_DIM <= 64 ? 1 : HEAD_DIM <= 128 ? 2 : 4, LANE_DIMS = 2 * LANE_WORDS;
CAIRN_INLINE bool lane_has_words() {
    return HEAD_DIM == LANE_DIMS * WARP || lane_id() < HEAD_DIM / LANE_DIMS;
}

/* ---- bounds: of dimensions lane LANE_DIMS.. of a page ---- */

struct page_bounds {
    uint32_t lo[LANE_WORDS], hi[LANE_WORDS]; /* pairs of f16 */
};

/* Words of the mean, from sums over a page, and of what f16 left of it. */
CAIRN_INLINE void mean_words(const float *sum, uint32_t *mean, uint32_t *rest) {
    const float x = sum[0] / (float)PAGE, y = sum[1] / (float)PAGE;
    *mean = pack_f16x2(x, y);
    const f32x2 two = unpack_f16x2(*mean);
    *rest = pack_f16x2(add_f32(x, -two.x), add_f32(y, -two.y));
}

/* Lowest and highest of the keys of a page; or, as lo and hi, their mean (sum over ascending slots
 * in f32) and what f16 left of it, for a mean rounded once too often picks other pages.
 * word(slot, i): a pair of a key's dimensions. */
template <class Word> CAIRN_INLINE page_bounds bounds_of(bool mean, Word word) {
    page_bounds out;
    float lo[LANE_DIMS], hi[LANE_DIMS], sum[LANE_DIMS] = {};
#pragma unroll 1
    for (int slot = 0; slot < PAGE; slot++)
#pragma unroll
        for (int i = 0; i < LANE_DIMS; i++) {
            f32x2 two = unpack_f16x2(lane_has_words() ? word(slot, i / 2) : 0u);
            float k = i % 2 ? two.y : two.x;
            lo[i] = slot ? min_of(lo[i], k) : k;
            hi[i] = slot ? max_of(hi[i], k) : k;
            sum[i] = add_f32(sum[i], k);
        }
#pragma unroll
    for (int i = 0; i < LANE_WORDS; i++) {
        out.lo[i] = pack_f16x2(lo[2 * i], lo[2 * i + 1]);
        out.hi[i] = pack_f16x2(hi[2 * i], hi[2 * i + 1]);
        if (mean) mean_words(sum + 2 * i, &out.lo[i], &out.hi[i]);
    }
    return out;
}

/* ---- scores ---- */

/* The largest product that bounds allow, max(q lo, q hi), is max(q, 0) hi + min(q, 0) lo, so that a
 * sum over heads is one product of a page's bounds, [lo | hi] as they lie, with the heads' sums of
 * these parts; of a mean, whose bounds are its two halves, both parts are q. A vector of parts is
 * two columns of an mma: f16, and what f16 left. Sixteen pages at a time for a warp. */
constexpr int SCORED = 16;
constexpr int BOUND_PIECES = HEAD_DIM / 16; /* of 16 bytes, of a page's bounds that a lane holds */
constexpr int PART_WORDS = HEAD_DIM;   /* of a column */

/* Heads whose queries are held at a time; of more of them each has a turn. */
constexpr int TURN = min_of(GROUP, (int)LAYOUT_SELECT_HEADS), TURNS = ceil_div(GROUP, TURN);
CAIRN_INLINE int turn_heads(int turn) { return GROUP % TURN ? min_of(TURN, GROUP - turn * TURN) : TURN; }

/* parts [vectors, 2, PART_WORDS]: the sums over all heads, or with by_head a vector for each of the
 * turn's. query(head, i): a head's dimensions 2i, 2i + 1. All threads; then a block_sync. */
template <class Query>
CAIRN_INLINE void split_queries(uint32_t *parts, bool mean, bool by_head, int turn, Query query) {
#pragma unroll 1
    for (int i = thread_id(); i < (by_head ? turn_heads(turn) : 1) * (HEAD_DIM / 2); i += block_threads()) {
        const int vector = i / (HEAD_DIM / 2), word = i % (HEAD_DIM / 2);
        float part[2][2] = {}; /* below and above zero */
        auto add = [&](uint32_t pair) {
            const f32x2 two = unpack_f16x2(pair);
            const float q[2] = {two.x, two.y};
#pragma unroll
            for (int k = 0; k < 2; k++) {
                part[0][k] = add_f32(part[0][k], mean || !(q[k] > 0.0f) ? q[k] : 0.0f);
                part[1][k] = add_f32(part[1][k], mean || q[k] > 0.0f ? q[k] : 0.0f);
            }
        };
        if (by_head) {
            add(query(turn * TURN + vector, word));
        } else {
#pragma unroll 1
            for (int first = 0; first < GROUP; first += TURN) {
                uint32_t pairs[TURN]; /* asked for together */
#pragma unroll
                for (int h = 0; h < TURN; h++)
                    pairs[h] = first + h < GROUP ? query(first + h, word) : 0u;
#pragma unroll
                for (int h = 0; h < TURN; h++)
                    if (first + h < GROUP) add(pairs[h]);
            }
        }
#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint32_t *to = parts + vector * 2 * PART_WORDS + k * (HEAD_DIM / 2) + word;
            const uint32_t rounded = pack_f16x2(part[k][0], part[k][1]);
            const f32x2 two = unpack_f16x2(rounded);
            to[0] = rounded;
            to[PART_WORDS] = pack_f16x2(add_f32(part[k][0], -two.x), add_f32(part[k][1], -two.y));
        }
    }
}

/* Bounds of SCORED pages as the mma's A: piece u of a lane is piece u * 4 + t of pages g, g + 8. */
struct page_tile {
    u32x4 row[2][BOUND_PIECES];

    /* Pages [first, count), those behind the last as the last; stored: where page 0 has its bounds
     * of this head, `step` values from page to page. */
    CAIRN_MEMBER void load(const int32_t *table, const uint16_t *stored, int step, int first,
                           int count) {
        if (first >= count) return;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int page = min_of(first + half * 8 + lane_id() / 4, count - 1);
            const uint16_t *from = stored + (int64_t)table[page] * step + lane_id() % 4 * 8;
#pragma unroll
            for (int u = 0; u < BOUND_PIECES; u++)
                row[half][u] = load_early((const u32x4 *)(from + u * 32));
        }
    }
    /* Page `at` of the tile, from all lanes' dimensions. */
    CAIRN_MEMBER void put(int at, const page_bounds &b) {
#pragma unroll
        for (int u = 0; u < BOUND_PIECES; u++) {
            uint32_t v[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t low = b.lo[k % LANE_WORDS], high = b.hi[k % LANE_WORDS];
                if constexpr (BOUND_PIECES % 2 == 0) {
                    const int word = (u % (BOUND_PIECES / 2) * 4 + lane_id() % 4) * 4 + k;
                    v[k] = shuffle(u < BOUND_PIECES / 2 ? low : high, word / LANE_WORDS);
                } else { /* a piece may be of both */
                    const int word = (u * 4 + lane_id() % 4) * 4 + k, from = word % (HEAD_DIM / 2);
                    const uint32_t of_low = shuffle(low, from / LANE_WORDS);
                    const uint32_t of_high = shuffle(high, from / LANE_WORDS);
                    v[k] = word < HEAD_DIM / 2 ? of_low : of_high;
                }
            }
#pragma unroll
            for (int half = 0; half < 2; half++)
                if (at == half * 8 + lane_id() / 4) row[half][u] = u32x4{v[0], v[1], v[2], v[3]};
        }
    }
    /* s[half]: the score of page g + 8 half by vector first + t. */
    CAIRN_MEMBER void multiply(const uint32_t *parts, int first, int vectors, float *s) const {
        const int g = lane_id() / 4, t = lane_id() % 4;
        float c[2][4] = {};
#pragma unroll
        for (int u = 0; u < BOUND_PIECES; u++) {
            u32x4 v = {};
            if (first + g / 2 < vectors)
                v = *(const u32x4 *)(parts + (first * 2 + g) * PART_WORDS + (u * 4 + t) * 4);
            const u32x4 low = row[0][u], high = row[1][u];
            const uint32_t a[8] = {low.x, high.x, low.y, high.y, low.z, high.z, low.w, high.w};
            const uint32_t b[4] = {v.x, v.y, v.z, v.w};
            mma_f16(c[0], a, b);
            mma_f16(c[1], a + 4, b + 2);
        }
#pragma unroll
        for (int half = 0; half < 2; half++)
            s[half] = (c[0][2 * half] + c[1][2 * half]) + (c[0][2 * half + 1] + c[1][2 * half + 1]);
    }
    /* The scores of pages g, g + 8, by the turn's heads, in the lanes of t = 0. */
    CAIRN_MEMBER void score(const uint32_t *parts, bool by_head, int turn, float *best) const {
        const int vectors = by_head ? turn_heads(turn) : 1;
        best[0] = best[1] = -3.4e38f;
#pragma unroll 1
        for (int first = 0; first < vectors; first += 4) {
            float s[2];
            multiply(parts, first, vectors, s);
#pragma unroll
            for (int half = 0; half < 2; half++)
                if (first + lane_id() % 4 < vectors)
                    best[half] = by_head ? fmaxf(best[half], s[half]) : s[half];
            warp_sync();
        }
#pragma unroll
        for (int half = 0; half < 2 && by_head; half++) best[half] = quad_max(best[half]);
    }
};

/* Orders as the score does: NaN lowest, -0 as +0; never 0. */
CAIRN_INLINE uint32_t score_key(float score) {
    if (score != score) return 1;
    uint32_t bits = as_u32(score + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* ---- the choice ---- */

/* Of 32 pages, a bit each: attended whole; attended at all, if only for its sinks. */
struct page_bits {
    uint32_t whole, listed;
};

/* What all threads of a block meet in: at most 32 warps' totals, and a few words. */
struct choice_meeting {
    int totals[WARP];
    uint32_t key; /* of the k-th highest, as far as it is known */
    int left;     /* how many of those that begin so are kept */
    int alike;    /* of how many */
    uint32_t flag;
    int pad[LAYOUT_SELECT_MEETING - WARP - 4];
};

/* The shared memory of a selection among `pages` pages, by pointers: the layout of
 * layout_select_bytes. */
struct selection {
    uint32_t *keys;  /* [pages, rounded up to 8] of the candidates */
    uint32_t *parts; /* [TURN, 2, PART_WORDS] of the queries */
    int *counts;     /* [LAYOUT_SELECT_BINS], in place of the parts */
    page_bits *bits;
    choice_meeting *meeting;

    CAIRN_MEMBER selection(unsigned char *memory, int pages) {
        const int most = max_of(TURN * 2 * PART_WORDS, (int)LAYOUT_SELECT_BINS);
        keys = (uint32_t *)memory;
        parts = keys + round_up(pages, 8);
        counts = (int *)parts;
        bits = (page_bits *)(parts + most);
        meeting = (choice_meeting *)(bits + ceil_div(pages, WARP));
    }
};

/* How many of keys [from, to), taken four at a time, come before a candidate whose key is `key`;
 * with TIES equal keys do, too. */
template <bool TIES>
CAIRN_INLINE int count_before(const uint32_t *keys, int from, int to, uint32_t key) {
    int count[4] = {};
#pragma unroll 2
    for (int j = from; j < to; j += 4) {
        const u32x4 v = *(const u32x4 *)(keys + j);
        const uint32_t other[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) count[i] += TIES ? other[i] >= key : other[i] > key;
    }
    return (count[0] + count[1]) + (count[2] + count[3]);
}

/* Of few keys [n]: bits of the k highest, by counting for each how many come before it. A lane has
 * a candidate; of the 32 of its own warp those that are equal and earlier come before it, too. */
CAIRN_INLINE void choose_few(const selection &s, int n, int k) {
#pragma unroll 1
    for (int first = warp_id() * WARP; first < n; first += block_threads()) {
        const int c = first + lane_id();
        const uint32_t key = c < n ? s.keys[c] : 0;
        const uint32_t same = match_any(key) & ((1u << lane_id()) - 1);
        int before = count_before<true>(s.keys, 0, first, key) + popcount(same);
        before += count_before<false>(s.keys, first, n, key);
        const uint32_t kept = warp_ballot(c < n && before < k);
        if (lane_id() == 0) s.bits[first / WARP] = page_bits{kept, 0};
        warp_sync();
    }
}

/* The key of the k-th highest of keys [n], digit by digit from the top: meeting.key, and in
 * meeting.left how many of those that share it are kept. A digit in which all that share it are kept
 * ends the search; the key's lower digits are zero then and every key at or above it is kept. */
CAIRN_INLINE void find_cut(const selection &s, int n, int k) {
    constexpr int BINS = LAYOUT_SELECT_BINS, EACH = BINS / 256;
    choice_meeting &m = *s.meeting;
    uint32_t mask = 0;
    if (thread_id() == 0) m.key = 0, m.left = k, m.alike = n;
#pragma unroll 1
    for (int shift = 22; mask != ~0u; shift = max_of(shift - 10, 0)) {
        for (int i = thread_id(); i < BINS; i += block_threads()) s.counts[i] = 0;
        block_sync();
        const uint32_t prefix = m.key;
        const int left = m.left;
        if (m.alike == left) break; /* the same for all threads */
#pragma unroll 4
        for (int i = thread_id(); i < n; i += block_threads())
            if ((s.keys[i] & mask) == prefix)
                atomic_add(s.counts + (s.keys[i] >> shift & (BINS - 1)), 1);
        block_sync();
        int own[EACH] = {}, sum = 0; /* the highest digits first */
        const int top = BINS - 1 - thread_id() * EACH;
        if (thread_id() < 256) {
#pragma unroll
            for (int i = 0; i < EACH; i++) sum += own[i] = s.counts[top - i];
        }
        int before = sum_before(sum, m.totals);
        if (before < left && left <= before + sum) {
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                if (before < left && left <= before + own[i]) {
                    m.key = prefix | (uint32_t)(top - i) << shift;
                    m.left = left - before;
                    m.alike = own[i];
                }
                before += own[i];
            }
        }
        mask |= (uint32_t)(BINS - 1) << shift;
    }
    block_sync();
}

/* Of many keys [n]: bits of those above the cut in `whole`, of those that share its key in `listed`;
 * the first meeting.left of these are kept, too. */
CAIRN_INLINE void compare_keys(const selection &s, int n) {
    const uint32_t cut = s.meeting->key;
    const bool all = s.meeting->left == s.meeting->alike;
#pragma unroll 1
    for (int first = warp_id() * WARP; first < n; first += block_threads()) {
        const int c = first + lane_id();
        const uint32_t key = c < n ? s.keys[c] : 0;
        const uint32_t above = warp_ballot(c < n && (all ? key >= cut : key > cut));
        const uint32_t same = warp_ballot(c < n && !all && key == cut);
        if (lane_id() == 0) s.bits[first / WARP] = page_bits{above, same};
        warp_sync();
    }
}

/* The bits of all pages up to a row's own: kept are the k candidates with the highest of keys [n]
 * (none of them 0; with zeros up to a multiple of four), and every page from `candidates` on; besides
 * the sinks of the first `sinks` pages. n 0: all pages are kept. All threads, after a block_sync;
 * there is one behind. Returns the number of listed pages before those of this thread's words. */
CAIRN_INLINE int choose_pages(const selection &s, int n, int k, int own, int sinks) {
    constexpr int FEW = 256;
    const int words = own / WARP + 1, each = ceil_div(words, block_threads());
    if (n > 0 && n <= FEW) {
        choose_few(s, n, k);
    } else if (n > 0) {
        find_cut(s, n, k);
        compare_keys(s, n);
    }
    block_sync();
    const int first = thread_id() * each, end = min_of(first + each, words);
    int same = 0, listed = 0;
    if (n > FEW) {
        for (int word = first; word < end && word * WARP < n; word++)
            same += popcount(s.bits[word].listed);
        same = sum_before(same, s.meeting->totals);
    }
    for (int word = first; word < end; word++) {
        page_bits b = word * WARP < n ? s.bits[word] : page_bits{0, 0};
        uint32_t taken = 0;
        for (; b.listed && same < s.meeting->left; same++) {
            const uint32_t lowest = b.listed & (0u - b.listed);
            taken |= lowest, b.listed ^= lowest;
        }
        same += popcount(b.listed);
        b.whole |= taken | (bits_below(own + 1, word) & ~bits_below(n, word));
        b.listed = b.whole | (bits_below(n, word) & bits_below(sinks, word));
        s.bits[word] = b;
        listed += popcount(b.listed);
    }
    block_sync(); /* the totals are free */
    return sum_before(listed, s.meeting->totals);
}

#endif

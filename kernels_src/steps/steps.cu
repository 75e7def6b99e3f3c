/* prepare_steps: the metadata of N steps in one launch (cairn_prepare_steps in runtime_ops.h says what
 * each output holds).
 *
 * The first steps * 3 blocks write lengths, the index plan and the attention plan of a step; they
 * scan the requests THREADS at a time. Then `table_parts` blocks for each request copy its slots:
 * every slot is read once and stored to all tables. No block waits for another.
 * Constants  CAIRN_PAGE_SIZE
 *            CAIRN_BY_PAGE  1: the source holds page ids, 0: slots
 * Launch     grid steps * 3 + batch * table_parts, block THREADS, shared memory prepare_shared
 * Oracle     tests/ref/steps_ref.h, the per-step path
 * matrix: CAIRN_PAGE_SIZE=1 CAIRN_BY_PAGE=0
 * matrix: CAIRN_PAGE_SIZE=48 CAIRN_BY_PAGE=0
 * matrix: CAIRN_PAGE_SIZE=64 CAIRN_BY_PAGE=0
 * matrix: CAIRN_PAGE_SIZE=64 CAIRN_BY_PAGE=1
 * matrix: CAIRN_PAGE_SIZE=3 CAIRN_BY_PAGE=1 */
#include "device/common.cuh"
#include "abi/steps.h"
#include "steps/prepare.cuh"

#define TILE 2048 /* slots that a block copies at a time */
#define PAGE_SIZE CAIRN_PAGE_SIZE

/* ---- requests ---- */

struct prepared {
    int32_t id;     /* row of slots */
    int32_t length; /* of the request's own tokens, before what a step adds; -1: unknown request */
    int32_t rows;
};

CAIRN_INLINE int32_t step_length(const prepare_steps_params &p, const prepared &r, int step) {
    int64_t added = (int64_t)step * p.step_offset;
    if (p.mode == PREPARE_TARGET_VERIFY) added += p.draft_tokens;
    return r.length < 0 ? 0 : (int32_t)min_of(r.length + added, (int64_t)p.max_len);
}

CAIRN_INLINE void report_request(const prepare_steps_params &p, int b, const prepared &r,
                                 int32_t seq_len, int32_t rows, int32_t live) {
    int64_t longest = (int64_t)seq_len + (int64_t)(p.steps - 1) * p.step_offset;
    if (p.mode == PREPARE_TARGET_VERIFY) longest += p.draft_tokens;
    if (live < 0 || live > p.batch) report_error(p.error, CAIRN_FAULT_LENGTH, -1, live);
    if (r.length < 0) report_error(p.error, CAIRN_FAULT_ID, b, r.id);
    else if (seq_len < 0) report_error(p.error, CAIRN_FAULT_LENGTH, b, seq_len);
    else if (longest > p.max_len) report_error(p.error, CAIRN_FAULT_LENGTH, b, longest);
    else if (rows != r.rows) report_error(p.error, CAIRN_FAULT_LENGTH, b, rows);
}

/* Request b; all loads are under way before the first is needed. */
CAIRN_INLINE prepared take_request(const prepare_steps_params &p, int b, bool report) {
    int32_t live = p.count ? *p.count : p.batch, seq_len = p.seq_lens[b];
    int32_t id = p.requests ? p.requests[b] : b;
    int32_t rows = p.mode == PREPARE_DRAFT_EXTEND ? p.accept[b] : 1;
    if (b >= live) {
        seq_len = 1;
        id = 0;
        rows = 0;
    }
    prepared r = {id, min_of(max_of(seq_len, 0), p.max_len), rows};
    if (id < 0 || id >= p.pool) r.length = -1;
    if (p.mode == PREPARE_DRAFT_EXTEND) r.rows = min_of(max_of(rows, 0), max_of(r.length, 0));
    else rows = r.rows = p.mode == PREPARE_DECODE ? 1 : p.draft_tokens;
    if (report) report_request(p, b, r, seq_len, rows, live);
    return r;
}

/* ---- lengths ---- */

/* A thread's request of the chunk of THREADS that starts at `base`, and its rows that have room. */
struct chunk {
    int b;
    int32_t length, all_rows; /* in this step; all of its rows */
    int32_t first, rows;
};

/* By the whole block. rows_before: rows of the chunks before, moved on. */
CAIRN_INLINE chunk take_chunk(prepare_shared &s, const prepare_steps_params &p, int base, int step,
                              bool report, uint32_t &rows_before) {
    const bool inside = base + thread_id() < p.batch;
    prepared r = {0, -1, 0};
    if (inside) r = take_request(p, base + thread_id(), report);
    scanned rows;
    if (p.mode == PREPARE_DRAFT_EXTEND) {
        rows = block_scan(s, {(uint32_t)r.rows, 0});
    } else {
        const uint32_t each = p.mode == PREPARE_DECODE ? 1u : (uint32_t)p.draft_tokens;
        rows = {{(uint32_t)thread_id() * each, 0}, {THREADS * each, 0}};
    }
    const uint32_t room = (uint32_t)p.row_capacity;
    const uint32_t first = add_sums(rows_before, rows.below.x);
    rows_before = add_sums(rows_before, rows.total.x);
    chunk c = {inside ? base + thread_id() : -1, step_length(p, r, step), r.rows, 0, 0};
    c.first = (int32_t)min_of(first, room);
    c.rows = min_of(c.all_rows, (int32_t)room - c.first);
    if (report && c.rows < c.all_rows)
        report_error(p.error, CAIRN_FAULT_LENGTH, c.b, (int64_t)first + c.all_rows);
    return c;
}

/* Tokens that row j of the request sees. */
CAIRN_INLINE int32_t row_length(const chunk &c, int j) {
    return max_of(c.length - c.all_rows + 1 + j, 0);
}

CAIRN_INLINE void put(int32_t *out, int at, uint32_t value) {
    if (out) out[at] = (int32_t)value;
}

CAIRN_INLINE void write_rows(const prepare_steps_params &p, const chunk &c, int32_t *const *out,
                             uint32_t clipped_before) {
    for (int j = 0; j < c.rows; j++) {
        const int r = c.first + j, length = row_length(c, j);
        const int clipped = min_of(length, p.index_topk);
        clipped_before = add_sums(clipped_before, (uint32_t)clipped);
        put(out[PREPARE_CU_SEQLENS_Q], r + 1, (uint32_t)r + 1);
        put(out[PREPARE_ROW_REQUESTS], r, (uint32_t)c.b);
        put(out[PREPARE_POSITIONS], r, (uint32_t)(length - 1));
        put(out[PREPARE_EXPANDED], r, (uint32_t)length);
        put(out[PREPARE_CLIPPED], r, (uint32_t)clipped);
        put(out[PREPARE_CU_CLIPPED], r + 1, clipped_before);
    }
}

CAIRN_INLINE void write_lengths(prepare_shared &s, const prepare_steps_params &p, int step) {
    int32_t *const *out = p.out[step];
    uint32_t rows_before = 0;
    u32x2 before = {0, 0}; /* lengths and clipped lengths of the chunks before */
    int32_t longest = 0;
    for (int base = 0; base < p.batch; base += THREADS) {
        const chunk c = take_chunk(s, p, base, step, step == p.steps - 1, rows_before);
        uint32_t clipped = 0;
        for (int j = 0; j < c.rows; j++)
            clipped = add_sums(clipped, (uint32_t)min_of(row_length(c, j), p.index_topk));
        const scanned sums = block_scan(s, {(uint32_t)c.length, clipped});
        const u32x2 below = add_sums(before, sums.below);
        if (c.b >= 0) {
            put(out[PREPARE_CACHE_SEQLENS], c.b, (uint32_t)c.length);
            put(out[PREPARE_CU_SEQLENS_K], c.b + 1, add_sums(below.x, (uint32_t)c.length));
            put(out[PREPARE_CU_ROWS], c.b + 1, (uint32_t)(c.first + c.rows));
            write_rows(p, c, out, below.y);
        }
        before = add_sums(before, sums.total);
        longest = max_of(longest, c.length);
    }
    if (thread_id() == 0) {
        put(out[PREPARE_CU_SEQLENS_K], 0, 0);
        put(out[PREPARE_CU_ROWS], 0, 0);
        put(out[PREPARE_CU_SEQLENS_Q], 0, 0);
        put(out[PREPARE_CU_CLIPPED], 0, 0);
    }
    if (!out[PREPARE_MAX_SEQLEN_K]) return;
    longest = block_max(s, longest);
    if (thread_id() == 0) *out[PREPARE_MAX_SEQLEN_K] = longest;
}

/* ---- plans ---- */

struct plan {
    int32_t *splits;   /* [rows + 1] or NULL */
    int32_t *schedule; /* [workers + 1, 2] or NULL */
    int32_t limit;     /* tokens of a row that count */
    uint32_t split, workers;
    uint32_t all, each, more; /* splits in all; of each worker; the first `more` take one more */
};

CAIRN_INLINE uint32_t row_splits(const plan &l, const chunk &c, int j) {
    return ceil_div((uint32_t)min_of(row_length(c, j), l.limit), l.split);
}
CAIRN_INLINE uint32_t worker_start(const plan &l, uint32_t w) {
    return w * l.each + min_of(w, l.more);
}
/* The first worker that starts at split `at` or behind; at < all. */
CAIRN_INLINE uint32_t worker_from(const plan &l, uint32_t at) {
    const uint32_t longer = l.more * (l.each + 1);
    if (at <= longer) return ceil_div(at, l.each + 1);
    return l.more + ceil_div(at - longer, l.each);
}

CAIRN_INLINE uint32_t request_splits(const plan &l, const chunk &c) {
    uint32_t sum = 0;
    for (int j = 0; j < c.rows; j++) sum = add_sums(sum, row_splits(l, c, j));
    return sum;
}

CAIRN_INLINE void set_all(plan &l, uint32_t all) {
    l.all = all;
    l.each = all / l.workers;
    l.more = all % l.workers;
}

/* A request's splits, and where the workers start that begin in one of its rows. */
CAIRN_INLINE void write_splits(const plan &l, const chunk &c, uint32_t below) {
    for (int j = 0; j < c.rows; j++) {
        const int r = c.first + j;
        const uint32_t end = add_sums(below, row_splits(l, c, j));
        put(l.splits, r + 1, end);
        if (l.schedule && below < end)
            for (uint32_t w = worker_from(l, below); worker_start(l, w) < end; w++) {
                l.schedule[2 * w] = r;
                l.schedule[2 * w + 1] = (int32_t)(worker_start(l, w) - below);
            }
        below = end;
    }
}

CAIRN_INLINE void write_plan(prepare_shared &s, const prepare_steps_params &p, int step, plan l) {
    uint32_t rows_before = 0, before = 0;
    for (int base = 0; p.batch > THREADS && base < p.batch; base += THREADS) {
        const chunk c = take_chunk(s, p, base, step, false, rows_before);
        before = add_sums(before, block_scan(s, {request_splits(l, c), 0}).total.x);
    }
    set_all(l, before);
    rows_before = before = 0;
    for (int base = 0; base < p.batch; base += THREADS) {
        const chunk c = take_chunk(s, p, base, step, false, rows_before);
        const scanned sums = block_scan(s, {request_splits(l, c), 0});
        if (p.batch <= THREADS) set_all(l, sums.total.x);
        if (c.b >= 0) write_splits(l, c, add_sums(before, sums.below.x));
        before = add_sums(before, sums.total.x);
    }
    if (thread_id() == 0) put(l.splits, 0, 0);
    if (p.mode == PREPARE_DECODE) rows_before = (uint32_t)p.batch; /* not to the chunk's end */
    if (p.mode == PREPARE_TARGET_VERIFY) rows_before = (uint32_t)(p.batch * p.draft_tokens);
    if (!l.schedule) return;
    for (uint32_t w = (uint32_t)thread_id(); w <= l.workers; w += THREADS)
        if (worker_start(l, w) >= l.all) {
            l.schedule[2 * w] = (int32_t)min_of(rows_before, (uint32_t)p.row_capacity);
            l.schedule[2 * w + 1] = 0;
        }
}

CAIRN_INLINE void write_plan_of(prepare_shared &s, const prepare_steps_params &p, int step,
                                int kind) {
    int32_t *const *out = p.out[step] + (kind == PREPARE_INDEX ? PREPARE_INDEX_SPLITS
                                                               : PREPARE_ATTEND_SPLITS);
    plan l = {out[0], out[1], 0x7fffffff, (uint32_t)p.split[kind], 1, 0, 0, 0};
    if (kind == PREPARE_ATTEND) l.limit = p.index_topk;
    if (l.schedule) l.workers = (uint32_t)p.workers[step][kind];
    if (l.splits || l.schedule) write_plan(s, p, step, l);
}

/* ---- tables ---- */

struct table_rows { int64_t first; int count; };

/* The rows of request b in a table. */
CAIRN_INLINE table_rows rows_of(prepare_shared &s, const prepare_steps_params &p, int b,
                                const prepared &r) {
    if (!p.expand) return {b, 1};
    if (p.mode != PREPARE_DRAFT_EXTEND) return {(int64_t)b * r.rows, r.rows};
    uint32_t before = 0;
    for (int i = thread_id(); i < b; i += THREADS)
        before = add_sums(before, (uint32_t)take_request(p, i, false).rows);
    before = min_of(block_scan(s, {before, 0}).total.x, (uint32_t)p.row_capacity);
    return {(int64_t)before, min_of(r.rows, p.row_capacity - (int32_t)before)};
}

CAIRN_INLINE int32_t page_of(int32_t slot) { return slot < 0 ? -1 : slot / PAGE_SIZE; }

template <int WIDTH> struct slots_of;
template <> struct slots_of<1> { typedef uint32_t type; };
template <> struct slots_of<4> { typedef u32x4 type; };

/* The slot of a token on page `id`. */
CAIRN_INLINE int32_t slot_on(int32_t id, int inside) {
    return id < 0 ? -1 : (int32_t)((uint32_t)id * PAGE_SIZE + (uint32_t)inside);
}

/* WIDTH slots from position `at` on, a multiple of WIDTH, of which those below `length` exist. */
template <int WIDTH> CAIRN_INLINE void load_slots(const int32_t *from, int at, int length,
                                                  int32_t (&v)[WIDTH]) {
    typedef typename slots_of<WIDTH>::type word;
    if (CAIRN_BY_PAGE) {
        int32_t id = -1;
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            if (k == 0 || PAGE_SIZE % WIDTH) id = at + k < length ? from[(at + k) / PAGE_SIZE] : -1;
            v[k] = slot_on(id, (at + k) % PAGE_SIZE);
        }
    } else if (at + WIDTH <= length) {
        word w = *(const word *)(from + at);
        memcpy(v, &w, sizeof w);
    } else {
#pragma unroll
        for (int k = 0; k < WIDTH; k++) v[k] = at + k < length ? from[at + k] : -1;
    }
}

template <int WIDTH> CAIRN_INLINE void store_slots(int32_t *to, int at, int length,
                                                   const int32_t (&v)[WIDTH]) {
    typedef typename slots_of<WIDTH>::type word;
    if (at + WIDTH <= length) {
        word w;
        memcpy(&w, v, sizeof w);
        *(word *)(to + at) = w;
    } else {
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            if (at + k < length) to[at + k] = v[k];
    }
}

template <int WIDTH> CAIRN_INLINE void store_pages(int32_t *to, int at, int length,
                                                   const int32_t (&v)[WIDTH]) {
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
        if ((at + k) % PAGE_SIZE == 0 && at + k < length) to[(at + k) / PAGE_SIZE] = page_of(v[k]);
}

/* Slots [start, start + TILE) of a request into every table. */
template <int WIDTH> CAIRN_INLINE void copy_tile(const prepare_steps_params &p, const prepared &r,
                                                 const table_rows &rows, int start, int longest) {
    constexpr int LOADS = TILE / THREADS / WIDTH;
    const int32_t *from = p.slots + r.id * p.slots_stride;
    const int at = start + thread_id() * WIDTH;
    int32_t v[LOADS][WIDTH];
#pragma unroll
    for (int i = 0; i < LOADS; i++) load_slots(from, at + i * THREADS * WIDTH, longest, v[i]);
    for (int t = 0; t < p.table_count; t++) {
        const prepare_table &table = p.tables[t];
        const int length = step_length(p, r, table.step);
        for (int64_t row = rows.first; row < rows.first + rows.count; row++) {
#pragma unroll
            for (int i = 0; i < LOADS; i++) {
                const int here = at + i * THREADS * WIDTH;
                if (table.tokens)
                    store_slots(table.tokens + row * table.token_stride, here, length, v[i]);
                if (table.pages)
                    store_pages(table.pages + row * table.page_stride, here, length, v[i]);
            }
        }
    }
}

/* Without a token table only the first slot of each page is read. */
CAIRN_INLINE void copy_pages(const prepare_steps_params &p, const prepared &r,
                             const table_rows &rows, int part, int longest) {
    const int32_t *from = p.slots + r.id * p.slots_stride;
    for (int64_t page = part * THREADS + thread_id(); page * PAGE_SIZE < longest;
         page += p.table_parts * THREADS) {
        const int32_t id = CAIRN_BY_PAGE ? max_of(from[page], -1) : page_of(from[page * PAGE_SIZE]);
        for (int t = 0; t < p.table_count; t++) {
            const prepare_table &table = p.tables[t];
            if (page * PAGE_SIZE >= step_length(p, r, table.step)) continue;
            for (int64_t row = rows.first; row < rows.first + rows.count; row++)
                table.pages[row * table.page_stride + page] = id;
        }
    }
}

CAIRN_INLINE void copy_tables(prepare_shared &s, const prepare_steps_params &p, int b, int part) {
    const prepared r = take_request(p, b, false);
    const table_rows rows = rows_of(s, p, b, r);
    const int longest = step_length(p, r, p.tables[p.table_count - 1].step);
    if (p.pages_only) {
        copy_pages(p, r, rows, part, longest);
        return;
    }
    for (int64_t start = (int64_t)part * TILE; start < longest;
         start += (int64_t)p.table_parts * TILE) {
        if (p.vector) copy_tile<4>(p, r, rows, (int)start, longest);
        else copy_tile<1>(p, r, rows, (int)start, longest);
    }
}

CAIRN_KERNEL(prepare_steps, THREADS, 2, prepare_steps_params) {
    prepare_shared &s = shared_as<prepare_shared>();
    const int kind = block_id() % 3, step = block_id() / 3, copier = block_id() - 3 * p.steps;
    grid_follow();
    if (copier >= 0) copy_tables(s, p, copier / p.table_parts, copier % p.table_parts);
    else if (kind == 0) write_lengths(s, p, step);
    else write_plan_of(s, p, step, kind - 1);
}

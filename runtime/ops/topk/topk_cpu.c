/* topk on the CPU: exact, one read of a row.
 *
 * A scan by SIMD keeps (key, position) of every score that may still be among the k best. When the
 * list is full it is cut to the k best, and the least key that can join them is known: nearly all
 * that follows is passed over at the rate of memory. In the worst order, an ascending ramp, cutting
 * does not help; then a sample tells about what to pass over, and the row is scanned again should
 * that have been too much. Entries stay in the order of positions and the first of equal keys
 * stay, so that ties and the order of the output need no further work. Rows are spread over the
 * pool; a long row is scanned in pieces, whose lists are joined. Nothing depends on how. */

enum {
    TOPK_BINS = 2048,
    TOPK_LEAST_LIST = 16384, /* entries: cutting a list should pay */
    TOPK_FIRST_LIST = 512,   /* entries of the first cut, at least; doubled with each */
    TOPK_RUNS = 256,         /* of a sample, at most */
    TOPK_RUN = 16,           /* scores of a run: a line of the cache */
    TOPK_LONG = 65536        /* a piece of a row has this many scores at least */
};

typedef struct topk_row {
    const void *scores; /* the row's first candidate */
    cairn_type type;
    int64_t length;
    const simd_kernels *simd;
} topk_row;

/* The f32 bits of score i. */
static uint32_t topk_bits(const topk_row *row, int64_t i) {
    const uint16_t *half = (const uint16_t *)row->scores + i;
    if (row->type == CAIRN_F32) return simd_bits_of_f32((const float *)row->scores + i);
    return row->type == CAIRN_F16 ? simd_bits_of_f16(half) : simd_bits_of_bf16(half);
}

/* Appends the entries of at least `least` among scores [first, first + count); returns how many. */
static int32_t topk_filter(const topk_row *row, int32_t first, int32_t count, uint32_t least,
                           uint32_t *keys, int32_t *positions) {
    const uint16_t *half = (const uint16_t *)row->scores + first;
    switch (row->type) {
    case CAIRN_F32:
        return row->simd->filter_f32((const float *)row->scores + first, count, least, first,
                                     keys, positions);
    case CAIRN_F16: return row->simd->filter_f16(half, count, least, first, keys, positions);
    default: return row->simd->filter_bf16(half, count, least, first, keys, positions);
    }
}

/* ---- the list of a scan --------------------------------------------------------------------- */

typedef struct topk_list {
    uint32_t *keys;     /* [capacity + SIMD_SLACK], by ascending position */
    int32_t *positions; /* the same */
    uint32_t *spare;    /* the same: keys while a threshold is sought */
    uint32_t *bins;     /* [2, TOPK_BINS] */
    uint64_t *sorted;   /* [2, min(k, n)], or NULL: not by score */
    int32_t count, capacity;
    uint32_t least;     /* the least key that may still join */
    const simd_kernels *simd;
} topk_list;

/* Bins for n keys, a power of two: few keys are not worth many. */
static uint32_t topk_bins_for(int32_t n) {
    uint32_t bins = TOPK_BINS;
    while (bins > 64 && (int32_t)bins * 2 > n) bins /= 2;
    return bins;
}

/* Counts keys [n] >= lowest in bins of 2^shift; two histograms, for equal keys in a row. */
static void topk_count(const uint32_t *keys, int32_t n, uint32_t lowest, uint32_t shift,
                       uint32_t *bins, uint32_t bin_count) {
    uint32_t *odd = bins + bin_count, bin;
    int32_t i;
    memset(bins, 0, 2 * bin_count * sizeof *bins);
    for (i = 0; i + 2 <= n; i += 2) {
        bins[(keys[i] - lowest) >> shift]++;
        odd[(keys[i + 1] - lowest) >> shift]++;
    }
    if (i < n) bins[(keys[i] - lowest) >> shift]++;
    for (bin = 0; bin < bin_count; bin++) bins[bin] += odd[bin];
}

/* The keys in [lowest, lowest + 2^shift), to `out`, which may be `keys`. */
static int32_t topk_gather(const uint32_t *keys, int32_t n, uint32_t lowest, uint32_t shift,
                           uint32_t *out) {
    int32_t i, count = 0;
    for (i = 0; i < n; i++) {
        uint32_t key = keys[i];
        out[count] = key;
        count += (key - lowest) >> shift == 0;
    }
    return count;
}

/* A bound that k to `most` keys of the list reach, or else the k-th largest, which more equal than
 * `most` allows; 1 <= k <= count. *exact tells which. Each round counts the keys that are left in
 * bins over their range, and goes on with those of the bin where the k-th lies: four at most. */
static uint32_t topk_bound(const topk_list *list, int32_t k, int32_t most, bool *exact) {
    const uint32_t *keys = list->keys;
    int32_t n = list->count, left = k;
    for (;;) {
        uint32_t lowest, highest, shift = 0, count = topk_bins_for(n), bin = count - 1;
        list->simd->span(keys, n, &lowest, &highest);
        while ((highest - lowest) >> shift >= count) shift++;
        topk_count(keys, n, lowest, shift, list->bins, count);
        while ((int32_t)list->bins[bin] < left) left -= (int32_t)list->bins[bin--];
        lowest += bin << shift;
        *exact = shift == 0;
        if (shift == 0 || k - left + (int32_t)list->bins[bin] <= most) return lowest;
        n = topk_gather(keys, n, lowest, shift, list->spare);
        keys = list->spare;
    }
}

/* Takes the last entries of key `equal` away until k are left. */
static void topk_drop(topk_list *list, int32_t k, uint32_t equal) {
    int32_t i, kept = 0, spare = list->count - k, ties = 0;
    for (i = 0; i < list->count; i++) ties += list->keys[i] == equal;
    for (i = 0; i < list->count; i++) {
        uint32_t key = list->keys[i];
        int32_t same = key == equal, drop = same & (ties <= spare);
        list->keys[kept] = key;
        list->positions[kept] = list->positions[i];
        kept += !drop;
        ties -= same;
    }
    list->count = k;
}

/* Cuts the list to `most` or less, its k best among them; k: to those. The first of equal keys
 * stay. */
static void topk_cut(topk_list *list, int32_t k, int32_t most) {
    bool exact;
    uint32_t bound;
    if (list->count <= most) return;
    bound = topk_bound(list, k, most, &exact);
    list->count = list->simd->retain(list->keys, list->positions, list->count, bound);
    list->least = bound;
    if (!exact && list->count <= most) return;
    if (list->count > k) topk_drop(list, k, bound);
    list->least = bound + 1; /* what comes later and equals it has lost */
}

/* A key that k scores of [first, last) and some more may reach, by a sample of short runs all over
 * them; 0: none. The sample lies behind the list's entries for a moment. */
static uint32_t topk_guess(const topk_list *list, const topk_row *row, int64_t first, int64_t last,
                           int32_t k) {
    int64_t length = last - first, runs = length / (16 * TOPK_RUN), run, rank;
    int32_t root = 0;
    topk_list sample = *list;
    uint32_t guess;
    bool exact;
    if (runs > TOPK_RUNS) runs = TOPK_RUNS;
    if (runs < 16 || runs * TOPK_RUN > list->capacity - list->count) return 0;
    rank = runs * TOPK_RUN * k / length;
    while (root * root < rank) root++;
    rank += 4 * root + 4; /* four standard deviations, were the order random */
    if (rank * 4 > runs * TOPK_RUN) return 0;
    sample.keys += list->count, sample.positions += list->count;
    sample.count = 0;
    for (run = 0; run < runs; run++) {
        int64_t within = (run * 40503 & 0xffff) * (length / runs - TOPK_RUN) >> 16;
        sample.count += topk_filter(row, (int32_t)(first + length * run / runs + within), TOPK_RUN,
                                    0, sample.keys + sample.count, sample.positions + sample.count);
    }
    guess = topk_bound(&sample, (int32_t)rank, (int32_t)rank * 9 / 8, &exact);
    return guess == SIMD_KEY_ZERO ? guess - 1 : guess; /* the filter may take -0 for less than +0 */
}

static int32_t topk_reaching(const topk_list *list, uint32_t least) {
    int32_t i, count = 0;
    for (i = 0; i < list->count; i++) count += list->keys[i] >= least;
    return count;
}

/* Scans [first, last) of a row into an empty list: all that may be among its k best. Where cuts
 * help little, in a ramp, a guess of the bound takes their place; false when it proved too high. */
static bool topk_try_scan(topk_list *list, const topk_row *row, int64_t first, int64_t last,
                          int32_t k, bool guesses) {
    int32_t at = (int32_t)first, end = (int32_t)last, kept = 0, since = at;
    int32_t limit = k > list->capacity / 2 ? list->capacity : 2 * k;
    uint32_t guess = 0;
    if (limit < TOPK_FIRST_LIST) limit = TOPK_FIRST_LIST;
    list->count = 0;
    list->least = 0;
    while (at < end) {
        int32_t room, take;
        if (limit > list->capacity) limit = list->capacity;
        room = limit - list->count;
        if (room < limit / 8 && room < end - at) {
            bool futile = kept && at - since < 2 * (list->count - kept);
            topk_cut(list, k, limit / 2);
            if (list->least < guess) return false;
            if (futile && guesses) {
                guess = topk_guess(list, row, at, last, k);
                if (list->least < guess) list->least = guess;
                else guess = 0;
                guesses = false;
            }
            kept = list->count, since = at;
            limit = limit > list->capacity / 2 ? list->capacity : 2 * limit;
            continue;
        }
        take = end - at < room ? end - at : room;
        list->count += topk_filter(row, at, take, list->least, list->keys + list->count,
                                   list->positions + list->count);
        at += take;
    }
    return !guess || topk_reaching(list, guess) >= k;
}

static void topk_scan(topk_list *list, const topk_row *row, int64_t first, int64_t last,
                      int32_t k) {
    if (!topk_try_scan(list, row, first, last, k, true))
        topk_try_scan(list, row, first, last, k, false);
}

/* ---- the op on a batch of rows -------------------------------------------------------------- */

typedef struct topk_cpu_call {
    const char *scores;
    cairn_type type;
    int64_t n, stride;                  /* stride in elements */
    const int32_t *lengths, *starts;    /* [rows] or NULL */
    int64_t rows;
    int32_t k;
    bool by_score;
    int32_t *indices;                   /* [rows, k] */
    float *values;                      /* [rows, k] or NULL */
    struct pool *pool;
    const simd_kernels *simd;
    char *workspace;                    /* workspace_bytes for each thread */
    size_t workspace_bytes;
    int32_t capacity;                   /* of a list */
    os_atomic next;                     /* row to take */
    bool long_apart;                    /* long rows are done by all threads together */
} topk_cpu_call;

/* The candidates of row r, clamped into the row; false when they had to be. */
static bool topk_bounds(const topk_cpu_call *call, int64_t r, int64_t *start, int64_t *length) {
    int64_t s = call->starts ? call->starts[r] : 0, l;
    bool fine = s >= 0 && s <= call->n;
    s = s < 0 ? 0 : s > call->n ? call->n : s;
    l = call->lengths ? call->lengths[r] : call->n - s;
    if (l < 0 || l > call->n - s) fine = false;
    *start = s;
    *length = l < 0 ? 0 : l > call->n - s ? call->n - s : l;
    return fine;
}

static topk_row topk_row_at(const topk_cpu_call *call, int64_t r) {
    topk_row row;
    int64_t start;
    topk_bounds(call, r, &start, &row.length);
    row.scores = call->scores + (r * call->stride + start) * (call->type == CAIRN_F32 ? 4 : 2);
    row.type = call->type;
    row.simd = call->simd;
    return row;
}

/* The most that a row gives. */
static size_t topk_most(const topk_cpu_call *call) {
    return (size_t)(call->k < call->n ? call->k : call->n);
}

/* Twice the k best, so that a cut leaves as much room; k of each piece of a row. */
static int32_t topk_capacity(int64_t n, int64_t k, int pieces) {
    int64_t capacity = 4 * k > TOPK_LEAST_LIST ? 4 * k : TOPK_LEAST_LIST;
    if (capacity > n) capacity = n;
    if (pieces > 1 && capacity < k * pieces) capacity = k * pieces;
    return (int32_t)capacity;
}

static size_t topk_workspace_bytes(const topk_cpu_call *call) {
    size_t list = 3 * 4 * ((size_t)call->capacity + SIMD_SLACK);
    size_t sorted = call->by_score ? 2 * 8 * topk_most(call) : 0;
    return (list + 2 * TOPK_BINS * 4 + sorted + 127) & ~(size_t)63;
}

static topk_list topk_list_of(const topk_cpu_call *call, int worker) {
    char *at = call->workspace + (size_t)worker * call->workspace_bytes;
    size_t entries = (size_t)call->capacity + SIMD_SLACK;
    topk_list list;
    list.sorted = call->by_score ? (uint64_t *)(void *)at : NULL;
    if (call->by_score) at += 2 * 8 * topk_most(call);
    list.bins = (uint32_t *)(void *)at;
    list.keys = list.bins + 2 * TOPK_BINS;
    list.positions = (int32_t *)(void *)(list.keys + entries);
    list.spare = (uint32_t *)(void *)list.positions + entries;
    list.count = 0;
    list.capacity = call->capacity;
    list.least = 0;
    list.simd = call->simd;
    return list;
}

/* Sorts entries [n] by `bits` of them from `shift` on, equal ones in their order; false when all are
 * equal, and `to` not written. */
static bool topk_sort_digit(const uint64_t *from, uint64_t *to, int32_t n, int shift, int bits,
                            uint32_t *bins) {
    const uint32_t digits = 1u << bits, mask = digits - 1;
    uint32_t digit, before = 0;
    int32_t i;
    memset(bins, 0, digits * sizeof *bins);
    for (i = 0; i < n; i++) bins[(uint32_t)(from[i] >> shift) & mask]++;
    if (n == 0 || bins[(uint32_t)(from[0] >> shift) & mask] == (uint32_t)n) return false;
    for (digit = 0; digit < digits; digit++) {
        uint32_t count = bins[digit];
        bins[digit] = before;
        before += count;
    }
    for (i = 0; i < n; i++) to[bins[(uint32_t)(from[i] >> shift) & mask]++] = from[i];
    return true;
}

/* The list's positions by descending key, lowest position first. */
static void topk_sort(topk_list *list, int32_t *out) {
    const int bits = list->count < 128 ? 4 : 8;
    int32_t i, n = list->count;
    uint64_t *from = list->sorted, *to = from + n;
    int shift;
    for (i = 0; i < n; i++) from[i] = (uint64_t)~list->keys[i] << 32 | (uint32_t)list->positions[i];
    for (shift = 32; shift < 64; shift += bits) {
        uint64_t *swap = from;
        if (!topk_sort_digit(from, to, n, shift, bits, list->bins)) continue;
        from = to;
        to = swap;
    }
    for (i = 0; i < n; i++) out[i] = (int32_t)(uint32_t)from[i];
}

/* What a row gives, from the list of its k best. */
static void topk_emit(const topk_cpu_call *call, int64_t r, const topk_row *row, topk_list *list) {
    int32_t *indices = call->indices + r * call->k, i;
    if (call->by_score) topk_sort(list, indices);
    else memcpy(indices, list->positions, (size_t)list->count * sizeof *indices);
    for (i = list->count; i < call->k; i++) indices[i] = -1;
    for (i = 0; call->values && i < call->k; i++) {
        uint32_t bits = i < list->count ? topk_bits(row, indices[i]) : 0xff800000u;
        memcpy(call->values + r * call->k + i, &bits, 4);
    }
}

/* All of a row that is not longer than k, in position order: its scores are not read for it. */
static void topk_whole_row(topk_list *list, int32_t length) {
    int32_t i;
    for (i = 0; i < length; i++) list->positions[i] = i;
    list->count = length;
}

static void topk_row_alone(const topk_cpu_call *call, int64_t r, topk_list *list) {
    topk_row row = topk_row_at(call, r);
    if (row.length <= call->k && !call->by_score) {
        topk_whole_row(list, (int32_t)row.length);
    } else {
        topk_scan(list, &row, 0, row.length, call->k);
        topk_cut(list, call->k, call->k);
    }
    topk_emit(call, r, &row, list);
}

/* ---- one row by all threads ----------------------------------------------------------------- */

/* Pieces of a row: joining takes about ten times as long an entry as scanning takes a score. */
static int topk_pieces(const topk_cpu_call *call, int64_t length) {
    int most = pool_threads(call->pool), pieces = 1;
    while (pieces < most && length >= (int64_t)(pieces + 1) * TOPK_LONG &&
           (int64_t)(pieces + 1) * (pieces + 1) * call->k * 10 <= length)
        pieces++;
    return pieces;
}

typedef struct topk_cut_row {
    const topk_cpu_call *call;
    topk_row row;
    topk_list *lists; /* [pieces] */
    int pieces;
} topk_cut_row;

static void topk_piece_task(void *context, int piece) {
    topk_cut_row *cut = (topk_cut_row *)context;
    topk_list *list = &cut->lists[piece];
    *list = topk_list_of(cut->call, piece);
    topk_scan(list, &cut->row, cut->row.length * piece / cut->pieces,
              cut->row.length * (piece + 1) / cut->pieces, cut->call->k);
    topk_cut(list, cut->call->k, cut->call->k);
}

/* Entries of later pieces lie at later positions, so that lists follow each other as they are. */
static void topk_row_by_all(const topk_cpu_call *call, int64_t r) {
    topk_list lists[POOL_MAX_THREADS];
    topk_cut_row cut;
    int p;
    cut.call = call;
    cut.row = topk_row_at(call, r);
    cut.lists = lists;
    cut.pieces = topk_pieces(call, cut.row.length);
    pool_run(call->pool, cut.pieces, topk_piece_task, &cut);
    for (p = 1; p < cut.pieces; p++) {
        size_t bytes = (size_t)lists[p].count * 4;
        memcpy(lists[0].keys + lists[0].count, lists[p].keys, bytes);
        memcpy(lists[0].positions + lists[0].count, lists[p].positions, bytes);
        lists[0].count += lists[p].count;
    }
    topk_cut(&lists[0], call->k, call->k);
    topk_emit(call, r, &cut.row, &lists[0]);
}

/* ---- the batch ------------------------------------------------------------------------------ */

static bool topk_is_long(const topk_cpu_call *call, int64_t r) {
    int64_t start, length;
    topk_bounds(call, r, &start, &length);
    return length > call->k && topk_pieces(call, length) > 1;
}

static void topk_worker(void *context, int worker) {
    topk_cpu_call *call = (topk_cpu_call *)context;
    topk_list list = topk_list_of(call, worker);
    int64_t r;
    while ((r = os_atomic_add(&call->next, 1)) < call->rows)
        if (!call->long_apart || !topk_is_long(call, r)) topk_row_alone(call, r, &list);
}

/* Long rows that are fewer than the threads are done first, one after another by all; the others
 * one to a thread. */
static cairn_status topk_cpu(device *dev, topk_cpu_call *call) {
    int threads = pool_threads(dev->pool);
    int64_t r, longs = 0;
    void *workspace;
    cairn_status status;
    call->pool = dev->pool;
    call->simd = simd_of_level(pool_simd());
    call->capacity = topk_capacity(call->n, call->k, topk_pieces(call, call->n));
    call->workspace_bytes = topk_workspace_bytes(call);
    status = device_scratch(dev, call->workspace_bytes * (size_t)threads, "topk", &workspace);
    if (status) return status;
    call->workspace = (char *)workspace;
    for (r = 0; threads > 1 && r < call->rows && longs < threads; r++)
        longs += topk_is_long(call, r);
    call->long_apart = longs < threads;
    for (r = 0; longs > 0 && call->long_apart && r < call->rows; r++)
        if (topk_is_long(call, r)) topk_row_by_all(call, r);
    os_atomic_store(&call->next, 0);
    if (call->rows > 1) pool_each(dev->pool, threads, topk_worker, call);
    else topk_worker(call, 0);
    return CAIRN_OK;
}

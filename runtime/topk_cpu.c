/* topk on the CPU: exact selection by radix over order-preserving keys.
 *
 * A row is read three times at most: a histogram of the keys' top 11 bits finds the bin that holds
 * the k-th largest; that bin's keys are gathered and refined; then one ascending pass emits every
 * key above the threshold, and the first of those equal to it. So ties keep the lowest position
 * and the output is in position order by construction. Rows, or the pieces of one long row, are
 * spread over the pool; every result is independent of how. */

enum { TOPK_BINS = 2048, TOPK_PIECE = 65536 };

typedef struct topk_row {
    const void *scores; /* the row's first candidate */
    cairn_type type;
    int64_t length;     /* > k unless order or values ask for a read */
} topk_row;

/* f32 bits -> a key whose unsigned order is the scores' order; -0 = +0, NaN lowest. */
BASE_INLINE uint32_t topk_key(uint32_t bits) {
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0;
    if (magnitude == 0) return 0x80000000u;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

BASE_INLINE uint32_t topk_f16_bits(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31u, mantissa = h & 1023u;
    if (exponent == 31) return sign | 0x7f800000u | mantissa << 13;
    if (exponent) return sign | (exponent + 112) << 23 | mantissa << 13;
    if (!mantissa) return sign;
    for (exponent = 113; !(mantissa & 1024u); exponent--) mantissa <<= 1;
    return sign | exponent << 23 | (mantissa & 1023u) << 13;
}

/* The f32 bits of score i. */
BASE_INLINE uint32_t topk_bits(const topk_row *row, int64_t i) {
    uint32_t bits;
    if (row->type == CAIRN_F32) {
        memcpy(&bits, (const char *)row->scores + i * 4, 4);
        return bits;
    } else {
        uint16_t half;
        memcpy(&half, (const char *)row->scores + i * 2, 2);
        return row->type == CAIRN_F16 ? topk_f16_bits(half) : (uint32_t)half << 16;
    }
}

/* Keys [first, first + count) of a row, count <= TOPK_CHUNK: the only place that decodes scores. */
enum { TOPK_CHUNK = 1024 };
static void topk_keys(const topk_row *row, int64_t first, int count, uint32_t *keys) {
    int i;
    for (i = 0; i < count; i++) keys[i] = topk_key(topk_bits(row, first + i));
}

/* What one piece of a row contributes, and where its share of the output starts. */
typedef struct topk_piece {
    int64_t first, count;
    int32_t above, equal; /* keys above and equal to the threshold */
    int32_t out, take;    /* its first output slot; how many equal ones it may emit */
} topk_piece;

typedef struct topk_job {
    topk_row row;
    int32_t k;
    topk_piece *pieces;
    int piece_count;
    uint32_t *histograms; /* [piece_count, TOPK_BINS] */
    uint32_t *gathered;   /* [length]: keys of the crossing bin, piece by piece */
    uint32_t bin, threshold;
    int32_t *indices;     /* [k] */
} topk_job;

static void topk_histogram_task(void *context, int index) {
    topk_job *job = (topk_job *)context;
    topk_piece *piece = &job->pieces[index];
    uint32_t *histogram = job->histograms + (size_t)index * TOPK_BINS;
    uint32_t keys[TOPK_CHUNK];
    int64_t at;
    memset(histogram, 0, TOPK_BINS * sizeof *histogram);
    for (at = 0; at < piece->count; at += TOPK_CHUNK) {
        int i, n = piece->count - at < TOPK_CHUNK ? (int)(piece->count - at) : TOPK_CHUNK;
        topk_keys(&job->row, piece->first + at, n, keys);
        for (i = 0; i < n; i++) histogram[keys[i] >> 21]++;
    }
}

/* The keys of the crossing bin, to the front of the piece's own part of `gathered`. */
static void topk_gather_task(void *context, int index) {
    topk_job *job = (topk_job *)context;
    topk_piece *piece = &job->pieces[index];
    uint32_t *out = job->gathered + piece->first;
    uint32_t keys[TOPK_CHUNK];
    int64_t at;
    int32_t n_out = 0;
    for (at = 0; at < piece->count; at += TOPK_CHUNK) {
        int i, n = piece->count - at < TOPK_CHUNK ? (int)(piece->count - at) : TOPK_CHUNK;
        topk_keys(&job->row, piece->first + at, n, keys);
        for (i = 0; i < n; i++) {
            out[n_out] = keys[i];
            n_out += keys[i] >> 21 == job->bin;
        }
    }
    piece->equal = n_out;
}

static void topk_count_task(void *context, int index) {
    topk_job *job = (topk_job *)context;
    topk_piece *piece = &job->pieces[index];
    uint32_t keys[TOPK_CHUNK], threshold = job->threshold;
    int64_t at;
    piece->above = piece->equal = 0;
    for (at = 0; at < piece->count; at += TOPK_CHUNK) {
        int i, n = piece->count - at < TOPK_CHUNK ? (int)(piece->count - at) : TOPK_CHUNK;
        topk_keys(&job->row, piece->first + at, n, keys);
        for (i = 0; i < n; i++) {
            piece->above += keys[i] > threshold;
            piece->equal += keys[i] == threshold;
        }
    }
}

static void topk_emit_task(void *context, int index) {
    topk_job *job = (topk_job *)context;
    topk_piece *piece = &job->pieces[index];
    uint32_t keys[TOPK_CHUNK], threshold = job->threshold;
    int32_t *out = job->indices + piece->out, *end = out + piece->above + piece->take;
    int32_t take = piece->take;
    int64_t at;
    for (at = 0; at < piece->count && out < end; at += TOPK_CHUNK) {
        int i, n = piece->count - at < TOPK_CHUNK ? (int)(piece->count - at) : TOPK_CHUNK;
        topk_keys(&job->row, piece->first + at, n, keys);
        for (i = 0; i < n; i++) {
            if (keys[i] < threshold) continue;
            if (keys[i] == threshold && take-- <= 0) continue;
            *out++ = (int32_t)(piece->first + at + i);
        }
    }
}

/* The bin that holds the k-th largest key of a histogram; *above gets the keys in bins over it. */
static uint32_t topk_crossing(const uint32_t *histogram, uint32_t bins, int64_t k, int64_t *above) {
    uint32_t bin = bins;
    *above = 0;
    while (bin-- > 1) {
        if (*above + histogram[bin] >= k) return bin;
        *above += histogram[bin];
    }
    return 0;
}

/* One radix step over the gathered keys: those whose bits over `shift + width` equal `prefix`. */
static void topk_refine(topk_job *job, uint32_t shift, uint32_t width, uint32_t prefix,
                        uint32_t *histogram) {
    uint32_t mask = (1u << width) - 1;
    int p;
    memset(histogram, 0, sizeof *histogram << width);
    for (p = 0; p < job->piece_count; p++) {
        const uint32_t *keys = job->gathered + job->pieces[p].first;
        int32_t i;
        for (i = 0; i < job->pieces[p].equal; i++)
            if (keys[i] >> (shift + width) == prefix) histogram[keys[i] >> shift & mask]++;
    }
}

/* Sets job->threshold, the k-th largest key; returns how many keys lie above it. */
static int64_t topk_threshold(topk_job *job, pool *threads) {
    uint32_t *sum = job->histograms, bin, prefix;
    int64_t above, more;
    int p, i;
    pool_run(threads, job->piece_count, topk_histogram_task, job);
    for (p = 1; p < job->piece_count; p++)
        for (i = 0; i < TOPK_BINS; i++) sum[i] += job->histograms[(size_t)p * TOPK_BINS + (size_t)i];
    job->bin = topk_crossing(sum, TOPK_BINS, job->k, &above);
    pool_run(threads, job->piece_count, topk_gather_task, job);
    topk_refine(job, 10, 11, job->bin, sum);
    bin = topk_crossing(sum, 2048, job->k - above, &more);
    above += more;
    prefix = job->bin << 11 | bin;
    topk_refine(job, 0, 10, prefix, sum);
    bin = topk_crossing(sum, 1024, job->k - above, &more);
    job->threshold = prefix << 10 | bin;
    return above + more;
}

/* Where each piece writes: everything above the threshold, the equal ones from the left. */
static void topk_place(topk_job *job, pool *threads, int64_t above) {
    int32_t left = (int32_t)(job->k - above), out = 0;
    int p;
    if (job->piece_count > 1) {
        pool_run(threads, job->piece_count, topk_count_task, job);
    } else {
        job->pieces[0].above = (int32_t)above;
        job->pieces[0].equal = left;
    }
    for (p = 0; p < job->piece_count; p++) {
        topk_piece *piece = &job->pieces[p];
        piece->out = out;
        piece->take = piece->equal < left ? piece->equal : left;
        left -= piece->take;
        out += piece->above + piece->take;
    }
}

static void topk_select(topk_job *job, pool *threads) {
    int64_t first = 0, length = job->row.length;
    int p;
    for (p = 0; p < job->piece_count; p++) {
        job->pieces[p].first = first;
        job->pieces[p].count = length * (p + 1) / job->piece_count - first;
        first += job->pieces[p].count;
    }
    topk_place(job, threads, topk_threshold(job, threads));
    pool_run(threads, job->piece_count, topk_emit_task, job);
}

/* Selected positions by descending score, lowest position first: a bottom-up merge sort, stable,
 * so that the ascending input settles ties. `spare` is [count]. */
static void topk_sort(const topk_row *row, int32_t *indices, int32_t count, int32_t *spare) {
    int32_t width, *from = indices, *to = spare;
    for (width = 1; width < count; width *= 2) {
        int32_t start, *swap = from;
        for (start = 0; start < count; start += 2 * width) {
            int32_t a = start, mid = start + width < count ? start + width : count, b = mid, o;
            int32_t end = mid + width < count ? mid + width : count;
            for (o = start; o < end; o++) {
                bool second = a == mid || (b < end && topk_key(topk_bits(row, from[b])) >
                                                          topk_key(topk_bits(row, from[a])));
                to[o] = second ? from[b++] : from[a++];
            }
        }
        from = to;
        to = swap;
    }
    if (from != indices) memcpy(indices, from, (size_t)count * sizeof *indices);
}

typedef struct topk_shape { int64_t rows, n, stride, first_row; } topk_shape;

/* ---- the op on a batch of rows -------------------------------------------------------------------*/

typedef struct topk_cpu_call {
    const char *scores;
    cairn_type type;
    int64_t n, stride;                  /* stride in elements */
    const int32_t *lengths, *starts;    /* [rows] or NULL */
    int64_t rows, first_row;            /* first_row: added in messages */
    int32_t k;
    bool by_score;
    int32_t *indices;                   /* [rows, k] */
    float *values;                      /* [rows, k] or NULL */
    struct pool *pool;
    char *workspace;                    /* topk_workspace_bytes for each row in flight */
    size_t workspace_bytes;
    int pieces;                         /* of one row */
} topk_cpu_call;

static size_t topk_workspace_bytes(int64_t n, int32_t k, int pieces) {
    return (size_t)pieces * (sizeof(topk_piece) + TOPK_BINS * 4) + (size_t)n * 4 + (size_t)k * 4;
}

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

static void topk_values(const topk_cpu_call *call, const topk_row *row, const int32_t *indices,
                        float *values) {
    int32_t i;
    for (i = 0; i < call->k; i++) {
        uint32_t bits = indices[i] < 0 ? 0xff800000u : topk_bits(row, indices[i]);
        memcpy(&values[i], &bits, 4);
    }
}

static void topk_row_cpu(const topk_cpu_call *call, int64_t r, char *workspace) {
    int32_t *indices = call->indices + r * call->k, i, found;
    int64_t start;
    topk_job job;
    topk_bounds(call, r, &start, &job.row.length);
    job.row.scores = call->scores + (r * call->stride + start) * (call->type == CAIRN_F32 ? 4 : 2);
    job.row.type = call->type;
    job.k = call->k;
    job.indices = indices;
    job.piece_count = call->pieces;
    job.pieces = (topk_piece *)(void *)workspace;
    job.histograms = (uint32_t *)(void *)(job.pieces + call->pieces);
    job.gathered = job.histograms + (size_t)call->pieces * TOPK_BINS;
    if (job.row.length > call->k) {
        topk_select(&job, call->pool);
        found = call->k;
    } else {
        found = (int32_t)job.row.length;
        for (i = 0; i < call->k; i++) indices[i] = i < found ? i : -1;
    }
    if (call->by_score) topk_sort(&job.row, indices, found, (int32_t *)job.gathered);
    if (call->values) topk_values(call, &job.row, indices, call->values + r * call->k);
}

static void topk_rows_task(void *context, int index) {
    const topk_cpu_call *call = (const topk_cpu_call *)context;
    int64_t threads = pool_threads(call->pool), r;
    for (r = index; r < call->rows; r += threads)
        topk_row_cpu(call, r, call->workspace + (size_t)index * call->workspace_bytes);
}

/* The first row whose start or length is out of range, or -1. */
static int64_t topk_first_bad_row(const topk_cpu_call *call) {
    int64_t r, start, length;
    for (r = 0; r < call->rows; r++)
        if (!topk_bounds(call, r, &start, &length)) return r;
    return -1;
}

/* Few long rows are cut in pieces, many rows go one to a thread. */
static cairn_status topk_cpu(device *dev, topk_cpu_call *call) {
    int threads = pool_threads(dev->pool);
    bool cut = call->rows < threads && call->n >= 2 * TOPK_PIECE;
    int64_t bad, r;
    void *workspace;
    cairn_status status;
    call->pool = dev->pool;
    call->pieces = cut ? threads : 1;
    call->workspace_bytes = (topk_workspace_bytes(call->n, call->k, call->pieces) + 63) & ~(size_t)63;
    status = dev_scratch(dev, call->workspace_bytes * (size_t)(cut ? 1 : threads), "topk",
                         &workspace);
    if (status) return status;
    call->workspace = (char *)workspace;
    if (cut)
        for (r = 0; r < call->rows; r++) topk_row_cpu(call, r, call->workspace);
    else
        pool_run(dev->pool, threads, topk_rows_task, call);
    bad = topk_first_bad_row(call);
    if (bad < 0) return CAIRN_OK;
    return base_fail(dev->base, CAIRN_BAD_DATA,
                     "topk: row %lld: start or length outside the row's %lld scores; it was clamped",
                     (long long)(call->first_row + bad), (long long)call->n);
}

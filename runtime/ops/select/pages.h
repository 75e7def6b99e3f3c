/* ops_pages: what the entries that read the paged cache share, of this room and of attention's: a job
 * whose CPU half spreads rows x KV heads over the pool, with scratch for each worker, and the first
 * row that could not be served. */

typedef struct ops_pages_job {
    device *dev;
    const simd_kernels *simd;
    const paged_rows *at;
    int64_t rows;
    int heads;            /* query heads */
    const float *q;       /* [rows, heads, head_dim] */
    /* attend */
    float scale, *out, *lse;
    const int32_t *selected; /* [rows, kv_heads, topk] or NULL */
    int topk, window, sinks;
    bool sparse;
    /* score */
    const uint16_t *bounds;
    float *scores, *head_scores; /* the latter or NULL */
    const float *window_lse; /* [rows, heads] or NULL */
    bool mean, landmark, by_head, soft;
    char *scratch;        /* a part for each worker */
    size_t scratch_bytes; /* of one part */
    os_atomic bad_row;    /* the least row + 1 with a page that is missing; 0: none */
} ops_pages_job;

/* Scores of pages on the GPU, as score_pages launches it; p is complete but for the scale 0. The cache,
 * whose landmarks are read, is of a kind (ATTEND_CACHE_). */
static cairn_status ops_pages_score_cuda(cairn_runtime *rt, score_pages_params *p,
                                         const ops_paged *paged, bool landmark, bool soft,
                                         int kind);
/* A job over the rows of a checked call; what an entry needs besides is its own to fill in. */
static void ops_pages_job_open(ops_pages_job *job, device *dev, const ops_paged *paged);
/* Room of so many bytes for each worker. */
static cairn_status ops_pages_scratch(ops_pages_job *job, size_t bytes);
/* The first row whose sequence or position is out of range: found before the work, on one thread. */
static cairn_status ops_pages_bad_rows(device *dev, const char *op, const paged_rows *at,
                                       int64_t rows);
/* Where row r stands; false for one that ops_pages_bad_rows has reported. */
static bool ops_pages_row(const ops_pages_job *job, int64_t r, const int32_t **table,
                          int32_t *position);
/* Whether the cache has such a page. */
static bool ops_pages_exists(const paged_rows *at, int32_t page);
/* Remembers that row r's table lacks a page it needs. [any thread] */
static void ops_pages_missing(ops_pages_job *job, int64_t r);
/* The status of the whole job: `status`, or a row with a missing page. */
static cairn_status ops_pages_finish(ops_pages_job *job, const char *op, cairn_status status);

/* select: which pages a query attends: the choice on the CPU (select.c), which the model and the ops
 * share, and the entries page_bounds, score_pages and select_pages (pages.c, see pages.h).
 *
 * For a query at position i and pages of S tokens the candidates are the whole pages before its
 * window (before its own page without one); topk of them are kept, those with the highest scores,
 * the lowest page among equals. All pages are logical ids. Owns nothing. Calls simd. */

typedef struct select_rule {
    int page_size, topk;
    int window, sinks; /* in tokens */
    bool mean;         /* a page is scored by its mean key, else by its bounds */
    bool landmark;     /* or by its last key, in place of either: no bounds are read */
    bool head;         /* the best query head of a KV head counts, else their sum */
    bool soft;         /* softmax_head; the caller asks select_soften */
} select_rule;

/* What select_score reads: one KV head of one sequence in one layer. */
typedef struct select_pages {
    const int32_t *table;   /* logical -> physical */
    const void *cache;      /* [page][K or V][kv_head][slot][dim] of `type` */
    cairn_type type;        /* f16, bf16, f32 or e4m3 */
    const float *scales;    /* [page][K or V][kv_head][slot], of e4m3 */
    uint16_t *half;         /* [page_size, dim], where type is not f16: keys are looked at in f16 */
    const uint16_t *bounds; /* [page][kv_head][lo or hi][dim] f16; or mean, and what f16 left */
    int kv_heads, head, dim;
    int stored;             /* logical pages below have their bounds in `bounds` */
} select_pages;

/* Pages 0 .. result - 1 may be chosen from; from there to the query's own page all are attended. */
static int select_candidates(const select_rule *rule, int position);
/* ids [k], ascending: the k highest of scores [count], the lowest index among equals; all of them
 * when k >= count. keys [count] is scratch. Returns how many there are. */
static int select_top(const float *scores, int count, int k, uint32_t *keys, int32_t *ids);
/* Computes the bounds of a whole page into low, high [dim]. */
static void select_bounds(const simd_kernels *simd, const select_pages *p, const select_rule *rule,
                          int page, uint16_t *low, uint16_t *high);
/* Where a page's bounds stand in `bounds`. */
static size_t select_bounds_at(const select_pages *p, int page);
/* scores [candidates] of a KV head's pages for q [group, dim], already scaled.
 * scratch: 2 * group * dim floats. */
static void select_score(const simd_kernels *simd, const select_pages *p, const select_rule *rule,
                         const float *q, int group, int candidates, float *scratch, float *scores);
/* The strategy softmax_head: scores [candidates] from the heads' own [group, stride], the best of
 * s_g - ln(e^lse_g + sum over the candidates of e^s_g). lse [group], or NULL: -inf. */
static void select_soften(const float *own, int group, int64_t stride, int candidates,
                          const float *lse, float *scores);

/* attention: softmax over paged keys and values: the core on the CPU (attention.c), which the model
 * and the ops share,, the entries
 * attend, attend_pages and attend_tokens (attend.c, their CPU half attend_cpu.c), and merge_states
 * (merge.c).
 *
 * Work is cut by position: a piece is PIECE tokens of a sequence, whole pages. Each piece is summed
 * by itself, page after page, and pieces are folded in ascending order, whoever computed them: so
 * a row's result depends neither on the threads, nor on the rows beside it, nor on whether its
 * pages were all attended or all selected. Owns nothing: all memory is the caller's. Calls simd;
 * the entries call select/pages.h too. */

enum { ATTENTION_PIECE = 256 /* tokens; the largest page */, ATTENTION_ROWS = 8 /* of a block */ };

/* The queries of one KV head: `rows` consecutive rows of one sequence. */
struct attention_sum;
typedef struct attention_block {
    const simd_kernels *simd;
    const void *cache;        /* [page][K or V][kv_head][slot][dim] of `type` */
    cairn_type type;          /* f16, bf16, f32 or e4m3 */
    const float *scales;      /* [page][K or V][kv_head][slot], of e4m3 */
    const int32_t *table;     /* logical page -> physical */
    const int32_t *positions; /* [rows], ascending by 1 */
    int rows, kv_heads, head, group, dim, page_size;
    const float *q;           /* [rows * group, dim], scaled */
    /* One row may leave pages out: of the pages below `candidates` it attends the `chosen`
     * (ascending) and the tokens below `sinks`. candidates 0: it attends all. */
    int candidates, sinks, chosen_count;
    const int32_t *chosen;
    int window;               /* tokens that a row sees back, itself included; 0: all. Not with
                               * candidates */
    float *staged;            /* [2, page_size, dim]: a page in f32, where several rows share it, or
                               * where it is bf16 or e4m3 */
    int pages;                /* of the cache: looked at where `missing` is there */
    bool only_chosen;         /* what is no candidate is left out, too */
    bool landmarks;           /* the last slot of no page is attended */
    /* NULL, or: chosen page i counts by a softmax of its own and the weight [g * weight_step + i] of
     * query g; of one row. `page` is scratch of a group's queries. */
    const float *weights;
    int64_t weight_step;
    const struct attention_sum *page;
    /* Folds slots 0 .. last - 1 of a page that is there in place of the plain way, of one row; NULL:
     * the plain way. */
    void (*fold)(const struct attention_block *a, int page, int last, bool chosen,
                 const struct attention_sum *sum);
    const void *context;      /* of fold */
    bool *missing;            /* set where the table holds no page of these, which is left out;
                               * NULL: every page that is attended is known to be there */
} attention_block;

/* A running softmax of n queries: out is not yet divided by l. */
typedef struct attention_sum { float *m, *l, *out; /* [n], [n], [n, dim] */ } attention_sum;

/* Floats that the sums of so many queries take. */
static size_t attention_sum_floats(int queries, int dim);
/* Sums that lie in `memory`, which is attention_sum_floats long, or NULL while sizes are counted. */
static attention_sum attention_sum_at(float *memory, int queries);
/* The sums of nothing. */
static void attention_sum_clear(const attention_sum *sum, int queries, int dim);
/* The logical page of the block's last row. */
static int attention_last_page(const attention_block *a);
/* The first token that a row sees. */
static int attention_from(const attention_block *a, int row);
/* The piece with the first row's first token: none before it counts. */
static int attention_first_piece(const attention_block *a);
/* Pieces up to the last row's own page. */
static int attention_pieces(const attention_block *a);
/* The sum over one piece of the sequence, which may be empty (m -inf). */
static void attention_piece(const attention_block *a, int piece, const attention_sum *sum);
/* total += piece, the later one in the sequence. */
static void attention_fold(const simd_kernels *simd, const attention_sum *total,
                           const attention_sum *piece, int queries, int dim);
/* total += all pieces of the block, of which one at a time is in `piece`. */
static void attention_gather(const attention_block *a, const attention_sum *total,
                             const attention_sum *piece);
/* out [rows, out_stride]: this head's queries stand side by side in a row. */
static void attention_put(const attention_block *a, const attention_sum *total, float *out,
                          int64_t out_stride);
/* All pieces of a block; total and piece are scratch of rows * group queries. */
static void attention_all(const attention_block *a, const attention_sum *total,
                          const attention_sum *piece, float *out, int64_t out_stride);
/* Attention of so many rows on the GPU, as the entries launch it: p says all but workspace and grid. */
static cairn_status ops_attend_cuda(cairn_runtime *rt, attend_params *p, int64_t rows, int abilities);
/* attend_tokens over latents in f16, of f32 queries: unit r * kv_heads + i is slice i of the heads of row
 * r, which all see the row's tokens; scratch: attention_alone_floats of a slice's heads. */
static size_t attention_alone_floats(int heads);
static void attention_alone(const attend_params *p, int64_t unit, float *scratch);
/* The same of rows on the GPU, in p's workspace: of partial and sums, one behind the other, and of
 * arrived, which is zero before and after, what a row of p takes. */
static void attention_latent_room(const device *dev, const attend_params *p, size_t *bytes,
                                  size_t *flags);
static cairn_status attention_latent_rows(cairn_runtime *rt, attend_params *p, int64_t rows);

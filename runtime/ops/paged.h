/* paged: what ops make of checked arguments that several of them take: a matrix, plain or in
 * blocks, and rows of a paged cache. */

typedef struct ops_weight { int type; int64_t outs, ins, row_bytes; const void *data; } ops_weight;

typedef struct ops_paged {
    int64_t rows;
    paged_rows at; /* also what the kernels get */
} ops_paged;

/* The matrix [outs, ins] of a checked call, plain or in blocks. */
static ops_weight ops_weight_of(const spec_call *s, const cairn_tensor *t, int32_t block,
                                spec_symbol outs, spec_symbol ins);
/* The cache and the rows of a checked call, as kernels get them. */
static void ops_want_paged(spec_call *s, const cairn_pages *pages, ops_paged *out);
/* The page table of a checked call as rows of any length, where it comes so, or not at all. */
static void ops_want_table(spec_call *s, const cairn_pages *pages, const cairn_pages_more *more,
                           ops_paged *out);
/* Refuses what is neither a cache nor a latent one, with so many values in k and v of a head. */
static void ops_want_latent(spec_call *s, const cairn_tensor *kept, const cairn_tensor *latent,
                            int keys, int values);
/* The block type of f32, f16 or bf16 values. */
static int ops_block_of(cairn_type type);
/* n values of a tensor from value `at` on, as f32; e4m3 times scale. */
static void ops_read_values(const simd_kernels *simd, cairn_type type, const void *from, int64_t at,
                            int n, float scale, float *out);
/* A window or sinks behind the last token that the table has room for are as good as that: so no
 * sum with them overflows, and no workspace is made for pages that cannot be. */
static int32_t ops_clamp_tokens(int32_t tokens, const paged_rows *at);
/* Whether the table's row of a sequence, which begins at *table, has room for a position. */
static bool ops_row_holds(const paged_rows *at, int32_t sequence, int64_t position,
                          const int32_t **table);
/* Where row r stands, on the CPU; false when an id or position is out of range. */
static bool ops_find_row(device *dev, const char *op, const paged_rows *at, int64_t r,
                         const int32_t **table, int32_t *position, cairn_status *status);

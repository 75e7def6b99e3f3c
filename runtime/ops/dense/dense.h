/* dense: what works row by row on plain matrices: the entries embed, rmsnorm, rope, swiglu and linear
 * (dense.c), and the product of a worker (linear.c), which the model and the op share:
 * y [rows, out] = x [rows, in] . W [out, in]^T, W in GGUF blocks, on the CPU.
 *
 * Activations and sums are f32, weights are dequantised on the fly: for one row inside the product,
 * for more through a panel of f32 weights that stays in the cache while all rows use it. A row's
 * result depends neither on the other rows nor on how outputs are divided among threads.
 * Owns nothing. Calls simd, pool and block. */

enum {
    LINEAR_STEP = 8,              /* outputs are divided in multiples of this */
    LINEAR_PANEL_FLOATS = 1 << 16 /* of a panel: 256 KiB of second-level cache */
};

/* A product as one worker sees it; y_stride and x_stride in floats. */
typedef struct linear_job {
    int type;          /* BLOCK_ */
    const void *w;     /* [out, in] in blocks */
    int out, in;
    const float *x;    /* [rows, in] */
    int64_t x_stride;
    int rows;
    float *y;          /* [rows, out] */
    int64_t y_stride;
    bool add;          /* y += instead of y = */
    bool eight;        /* x rounded to 8 bits where the weights are blocks of whole numbers */
} linear_job;

/* Outputs first .. last - 1. panel: linear_panel_floats(in) of the worker's own. */
static void linear_range(const simd_kernels *simd, const linear_job *job, int first, int last,
                         float *panel);
/* Floats of a worker's panel for weights of this width. */
static size_t linear_panel_floats(int in);

/* A layer of a model on the GPU: `parts` products, their weights of a block type that the kernels read
 * behind each other; rows and parts of x and out lie by p's strides, its `in` is a multiple of 8. */
static cairn_status dense_linear_parts(cairn_runtime *rt, const linear_params *p, int type, int parts);
/* The same of rmsnorm, of rows one behind the other. */
static cairn_status dense_rmsnorm_rows(cairn_runtime *rt, const rmsnorm_params *p, int64_t rows);

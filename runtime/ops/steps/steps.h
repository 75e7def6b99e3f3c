/* steps: the ops that make a step's metadata: prepare_steps (steps.c), which writes the lengths,
 * rows and schedules of N steps in one launch, and prefix_chunks (chunks.c), which cuts a cached
 * prefix into chunks. runtime_ops.h has the contract of both; the kernel and the CPU work from
 * the same parameters. */

/* ---- what prepare_steps puts out, for the checks, the sizes and the binding to Lua ---- */

/* How large an output is. */
typedef enum steps_extent {
    STEPS_ONE, STEPS_REQUESTS, STEPS_REQUESTS_1, STEPS_ROWS, STEPS_ROWS_1, STEPS_SCHEDULE
} steps_extent;

typedef struct steps_output { const char *name; size_t offset; steps_extent extent; } steps_output;

#define STEPS_OUTPUT(name, extent) {#name, offsetof(cairn_step_metadata, name), extent}
/* Indexed by PREPARE_CACHE_SEQLENS .. of abi.h. */
static const steps_output steps_outputs[PREPARE_OUTPUTS] = {
    STEPS_OUTPUT(cache_seqlens, STEPS_REQUESTS),    STEPS_OUTPUT(cu_seqlens_k, STEPS_REQUESTS_1),
    STEPS_OUTPUT(cu_rows, STEPS_REQUESTS_1),        STEPS_OUTPUT(max_seqlen_k, STEPS_ONE),
    STEPS_OUTPUT(cu_seqlens_q, STEPS_ROWS_1),       STEPS_OUTPUT(row_requests, STEPS_ROWS),
    STEPS_OUTPUT(positions, STEPS_ROWS),            STEPS_OUTPUT(seqlens_expanded, STEPS_ROWS),
    STEPS_OUTPUT(seqlens_clipped, STEPS_ROWS),      STEPS_OUTPUT(cu_seqlens_clipped, STEPS_ROWS_1),
    STEPS_OUTPUT(index_splits, STEPS_ROWS_1),       STEPS_OUTPUT(index_schedule, STEPS_SCHEDULE),
    STEPS_OUTPUT(attend_splits, STEPS_ROWS_1),      STEPS_OUTPUT(attend_schedule, STEPS_SCHEDULE)};

/* Tokens of each request in a chunk. */
static int64_t chunks_length(int32_t capacity, int64_t batch);

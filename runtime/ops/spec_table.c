/* spec_table: the arguments of all ops (spec.h). */

enum {
    SPEC_F32 = TENSOR_BIT(CAIRN_F32), SPEC_F16 = TENSOR_BIT(CAIRN_F16),
    SPEC_I64 = TENSOR_BIT(CAIRN_I64), SPEC_E4M3 = TENSOR_BIT(CAIRN_E4M3),
    SPEC_U8 = TENSOR_BIT(CAIRN_U8),
    SPEC_FLOATS = TENSOR_BIT(CAIRN_F32) | TENSOR_BIT(CAIRN_F16) | TENSOR_BIT(CAIRN_BF16),
    SPEC_CACHES = SPEC_FLOATS | TENSOR_BIT(CAIRN_E4M3),
    SPEC_LATENT = SPEC_FLOATS | TENSOR_BIT(CAIRN_U8),
    SPEC_ALL = SPEC_CACHES | SPEC_I32 | SPEC_I64 | TENSOR_BIT(CAIRN_U8)
};

/* Rows. ARGS is the op's argument struct; `field` stands in it; then dtypes and extents. */
#define ROW(kind, flags, align, lua, name, field, types, ...)                                   \
    {name, lua, kind, flags, offsetof(ARGS, field), types, {__VA_ARGS__}, align, 0, 0, NULL}
#define READ(field, types, ...) ROW(SPEC_IN, 0, 0, NULL, #field, field, types, __VA_ARGS__)
#define READ_IF(field, types, ...) \
    ROW(SPEC_IN, SPEC_OPTIONAL, 0, NULL, #field, field, types, __VA_ARGS__)
#define READ_AS(flags, align, field, types, ...) \
    ROW(SPEC_IN, flags, align, NULL, #field, field, types, __VA_ARGS__)
#define WRITE(field, types, ...) ROW(SPEC_OUT, 0, 0, NULL, #field, field, types, __VA_ARGS__)
#define WRITE_AS(flags, align, field, types, ...) \
    ROW(SPEC_OUT, flags, align, NULL, #field, field, types, __VA_ARGS__)
#define WRITE_OUT(field, types, ...) ROW(SPEC_OUT, 0, 0, "out", #field, field, types, __VA_ARGS__)
#define WRITE_IF(field, types, ...) \
    ROW(SPEC_OUT, SPEC_OPTIONAL, 0, NULL, #field, field, types, __VA_ARGS__)
#define WRITE_MADE(field, types, ...) \
    ROW(SPEC_OUT, SPEC_OPTIONAL | SPEC_MADE, 0, NULL, #field, field, types, __VA_ARGS__)
#define CHANGE_AS(flags, align, field, types, ...) \
    ROW(SPEC_INOUT, flags, align, NULL, #field, field, types, __VA_ARGS__)
#define LIST_AS(flags, align, field, types, ...) \
    ROW(SPEC_LIST, flags, align, NULL, #field, field, types, __VA_ARGS__)
#define NUMBER_AS(kind, flags, lua, field, extent, least, most) \
    {#field, lua, kind, flags, offsetof(ARGS, field), 0, {extent}, 0, least, most, NULL}
#define INT(field, least, most) NUMBER_AS(SPEC_INT, 0, NULL, field, 0, least, most)
#define INT_IS(symbol, field, least, most) \
    NUMBER_AS(SPEC_INT, 0, NULL, field, SPEC_##symbol, least, most)
#define FLAG(field) NUMBER_AS(SPEC_FLAG, 0, NULL, field, 0, INT32_MIN, INT32_MAX)
#define FINITE 3.4028234663852886e38 /* the largest f32 */
#define REAL(field, least, most) NUMBER_AS(SPEC_FLOAT, 0, NULL, field, 0, least, most)
#define SIZE(field) NUMBER_AS(SPEC_BYTES, 0, NULL, field, 0, 0, 0)
#define NAMED(field) NUMBER_AS(SPEC_TEXT, SPEC_OPTIONAL, NULL, field, 0, 0, 0)
#define CHOOSE(name, field, choices) \
    {name, NULL, SPEC_CHOICE, 0, offsetof(ARGS, field), 0, {0}, 0, 0, 0, choices}
#define OWN(name) {name, NULL, SPEC_OWN, 0, 0, 0, {0}, 0, 0, 0, NULL}
#define ARGS_END {NULL, NULL, SPEC_OWN, 0, 0, 0, {0}, 0, 0, 0, NULL}

/* A symbol's range; what it is a multiple of; its value where nothing says it. */
#define WITHIN(symbol, least, most) {SPEC_##symbol, least, most, 0, SPEC_NONE, SPEC_NONE, 0}
#define WITHIN_BY(symbol, least, most, multiple) \
    {SPEC_##symbol, least, most, multiple, SPEC_NONE, SPEC_NONE, 0}
#define MULTIPLE_OF(symbol, of) {SPEC_##symbol, 1, INT32_MAX, 0, SPEC_##of, SPEC_NONE, 0}
#define AT_LEAST(symbol, of, most, otherwise) \
    {SPEC_##symbol, 0, most, 0, SPEC_NONE, SPEC_##of, otherwise}
#define OTHERWISE(symbol, most, otherwise) \
    {SPEC_##symbol, 0, most, 0, SPEC_NONE, SPEC_NONE, otherwise}
#define LIMITS_END {SPEC_NONE, 0, 0, 0, SPEC_NONE, SPEC_NONE, 0}

/* ---- names of values ------------------------------------------------------------------------- */

static const spec_choice spec_orders[] = {
    {"position", CAIRN_ORDER_POSITION}, {"score", CAIRN_ORDER_SCORE}, {NULL, 0}};
static const spec_choice spec_blocks[] = {
    {"none", CAIRN_BLOCK_NONE}, {"q4_0", CAIRN_BLOCK_Q4_0}, {"q4_1", CAIRN_BLOCK_Q4_1},
    {"q5_0", CAIRN_BLOCK_Q5_0}, {"q5_1", CAIRN_BLOCK_Q5_1}, {"q8_0", CAIRN_BLOCK_Q8_0},
    {"q4_k", CAIRN_BLOCK_Q4_K}, {"q5_k", CAIRN_BLOCK_Q5_K}, {"q6_k", CAIRN_BLOCK_Q6_K}, {NULL, 0}};
static const spec_choice spec_sources[] = {
    {"minmax", CAIRN_SOURCE_MINMAX}, {"mean", CAIRN_SOURCE_MEAN},
    {"landmark", CAIRN_SOURCE_LANDMARK}, {NULL, 0}};
static const spec_choice spec_bounds_sources[] = {
    {"minmax", CAIRN_SOURCE_MINMAX}, {"mean", CAIRN_SOURCE_MEAN}, {NULL, 0}};
static const spec_choice spec_strategies[] = {
    {"group", CAIRN_STRATEGY_GROUP}, {"head", CAIRN_STRATEGY_HEAD},
    {"softmax_head", CAIRN_STRATEGY_SOFTMAX_HEAD}, {NULL, 0}};
static const spec_choice spec_forms[] = {
    {"flat", CAIRN_FORM_FLAT}, {"two_level", CAIRN_FORM_TWO_LEVEL}, {NULL, 0}};
static const spec_choice spec_parts[] = {{"fused", CAIRN_PART_FUSED}, {"pages", CAIRN_PART_PAGES},
                                         {"window", CAIRN_PART_WINDOW}, {NULL, 0}};
static const spec_choice spec_spaces[] = {
    {"slot", CAIRN_SPACE_SLOT}, {"flat", CAIRN_SPACE_FLAT}, {NULL, 0}};
static const spec_choice spec_activations[] = {
    {"none", CAIRN_ACTIVATION_NONE}, {"silu", CAIRN_ACTIVATION_SILU}, {NULL, 0}};
static const spec_choice spec_sampling_orders[] = {
    {"top_k_first", CAIRN_ORDER_TOP_K_FIRST}, {"top_p_first", CAIRN_ORDER_TOP_P_FIRST}, {NULL, 0}};
static const spec_choice spec_step_modes[] = {{"decode", CAIRN_STEP_DECODE},
                                              {"target_verify", CAIRN_STEP_TARGET_VERIFY},
                                              {"draft_extend", CAIRN_STEP_DRAFT_EXTEND},
                                              {NULL, 0}};

static const spec_limit spec_no_limits[] = {LIMITS_END};

/* ---- topk ------------------------------------------------------------------------------------ */

static const spec_limit spec_topk_limits[] = {WITHIN(N, 0, 1 << 22), LIMITS_END};
static const spec_limit spec_topk_rows_limits[] = {
    WITHIN(N, 0, 1 << 22), AT_LEAST(OUT_ROWS, ROWS, INT32_MAX, SPEC_ROWS), LIMITS_END};

#define ARGS cairn_topk_args
static const spec_arg spec_topk_args[] = {
    INT_IS(K, k, 1, INT32_MAX),
    READ_AS(SPEC_STRIDED | SPEC_UNREAD, 0, scores, SPEC_FLOATS, SPEC_ROWS, SPEC_N),
    READ_IF(lengths, SPEC_I32, SPEC_ROWS),
    READ_IF(row_starts, SPEC_I32, SPEC_ROWS),
    WRITE_OUT(indices, SPEC_I32, SPEC_ROWS, SPEC_K),
    WRITE_IF(values, SPEC_F32, SPEC_ROWS, SPEC_K),
    CHOOSE("order", order, spec_orders),
    NAMED(route),
    ARGS_END};
#undef ARGS

#define ARGS cairn_topk_transform_args
static const spec_arg spec_topk_transform_args[] = {
    INT_IS(K, k, 1, INT32_MAX),
    READ_AS(SPEC_STRIDED | SPEC_UNREAD, 0, scores, SPEC_FLOATS, SPEC_ROWS, SPEC_N),
    READ_IF(page_table, SPEC_I32, SPEC_REQUESTS, SPEC_MAX_PAGES),
    READ_IF(offsets, SPEC_I32, SPEC_ROWS),
    READ_IF(requests, SPEC_I32, SPEC_ROWS),
    READ_IF(lengths, SPEC_I32, SPEC_ROWS),
    READ_IF(row_starts, SPEC_I32, SPEC_ROWS),
    INT(page_size, 0, INT32_MAX),
    WRITE_OUT(indices, SPEC_I32, SPEC_ROWS, SPEC_K),
    WRITE_IF(values, SPEC_F32, SPEC_ROWS, SPEC_K),
    CHOOSE("order", order, spec_orders),
    NAMED(route),
    ARGS_END};
#undef ARGS

#define ARGS cairn_topk_rows_args
static const spec_arg spec_topk_rows_args[] = {
    NUMBER_AS(SPEC_FUNCTION, 0, NULL, produce, 0, 0, 0),
    INT_IS(ROWS, rows, 0, INT32_MAX),
    INT_IS(N, n, 0, 1 << 22),
    INT_IS(K, k, 1, INT32_MAX),
    CHANGE_AS(SPEC_OPTIONAL | SPEC_STRIDED, 0, scores, SPEC_FLOATS, SPEC_ANY, SPEC_N),
    READ_IF(page_table, SPEC_I32, SPEC_REQUESTS, SPEC_MAX_PAGES),
    READ_IF(offsets, SPEC_I32, SPEC_ROWS),
    READ_IF(requests, SPEC_I32, SPEC_ROWS),
    READ_IF(lengths, SPEC_I32, SPEC_ROWS),
    READ_IF(row_starts, SPEC_I32, SPEC_ROWS),
    SIZE(max_bytes), SIZE(free_bytes), SIZE(total_bytes),
    INT(page_size, 0, INT32_MAX),
    WRITE_OUT(indices, SPEC_I32, SPEC_OUT_ROWS, SPEC_K),
    WRITE_IF(values, SPEC_F32, SPEC_OUT_ROWS, SPEC_K),
    CHOOSE("order", order, spec_orders),
    NAMED(route),
    ARGS_END};

/* The rows at a time depend on these alone. */
static const spec_arg spec_topk_rows_plan_args[] = {
    INT_IS(ROWS, rows, 0, INT32_MAX),
    INT_IS(N, n, 0, 1 << 22),
    CHANGE_AS(SPEC_OPTIONAL | SPEC_STRIDED, 0, scores, SPEC_FLOATS, SPEC_ANY, SPEC_N),
    ARGS_END};
#undef ARGS

/* ---- dense ----------------------------------------------------------------------------------- */

static const spec_limit spec_embed_limits[] = {WITHIN_BY(HIDDEN, 0, INT32_MAX, 8), LIMITS_END};
static const spec_limit spec_linear_limits[] = {
    WITHIN(ROWS, 0, INT32_MAX / 64), WITHIN(OUTS, 0, INT32_MAX / 64),
    WITHIN_BY(INS, 32, INT32_MAX / 64, 32), LIMITS_END};

#define ARGS cairn_embed_args
static const spec_arg spec_embed_args[] = {
    CHOOSE("block", block, spec_blocks),
    READ(ids, SPEC_I32, SPEC_ROWS),
    READ_AS(SPEC_BLOCKS, 0, table, SPEC_FLOATS, SPEC_VOCAB, SPEC_HIDDEN),
    WRITE(out, SPEC_F32, SPEC_ROWS, SPEC_HIDDEN),
    ARGS_END};
#undef ARGS

#define ARGS cairn_rmsnorm_args
static const spec_arg spec_rmsnorm_args[] = {
    READ_AS(SPEC_IN_PLACE, 0, x, SPEC_F32, SPEC_ROWS, SPEC_N),
    READ(weight, SPEC_F32, SPEC_N),
    WRITE(out, SPEC_F32, SPEC_ROWS, SPEC_N),
    REAL(epsilon, 0, FINITE),
    ARGS_END};
#undef ARGS

#define ARGS cairn_rope_args
static const spec_arg spec_rope_args[] = {
    READ_AS(SPEC_IN_PLACE, 0, x, SPEC_F32, SPEC_ROWS, SPEC_HEADS, SPEC_HEAD_DIM),
    READ(positions, SPEC_I32, SPEC_ROWS),
    WRITE(out, SPEC_F32, SPEC_ROWS, SPEC_HEADS, SPEC_HEAD_DIM),
    REAL(base, 0, FINITE),
    INT(rotary_dim, 0, INT32_MAX),
    FLAG(half_split),
    ARGS_END};
#undef ARGS

#define ARGS cairn_linear_args
static const spec_arg spec_linear_args[] = {
    CHOOSE("block", block, spec_blocks),
    READ_AS(0, 16, x, SPEC_F32, SPEC_ROWS, SPEC_INS),
    READ_AS(SPEC_BLOCKS, 0, weight, SPEC_FLOATS, SPEC_OUTS, SPEC_INS),
    WRITE(out, SPEC_F32, SPEC_ROWS, SPEC_OUTS),
    FLAG(accumulate),
    ARGS_END};
#undef ARGS

#define ARGS cairn_swiglu_args
static const spec_arg spec_swiglu_args[] = {
    READ_AS(SPEC_IN_PLACE, 0, gate, SPEC_F32, SPEC_ROWS, SPEC_N),
    READ_AS(SPEC_IN_PLACE, 0, up, SPEC_F32, SPEC_ROWS, SPEC_N),
    WRITE(out, SPEC_F32, SPEC_ROWS, SPEC_N),
    ARGS_END};
#undef ARGS

/* ---- the paged cache ------------------------------------------------------------------------- */

/* Rows of the embedded cairn_pages; kernels read a cache 16 bytes at a time. */
#define PAGES_OF(kind, types)                                                                     \
    ROW(kind, 0, 16, NULL, "pages.cache", pages.cache, types, SPEC_PAGES, SPEC_NUMBER(2),         \
        SPEC_KV_HEADS, SPEC_PAGE_SIZE, SPEC_HEAD_DIM),                                            \
    READ(pages.page_table, SPEC_I32, SPEC_SEQUENCES, SPEC_MAX_PAGES),                             \
    READ_IF(pages.sequences, SPEC_I32, SPEC_ROWS), READ(pages.positions, SPEC_I32, SPEC_ROWS)
/* The same where the table may come as rows of any length, or not at all. */
#define PAGES_OR_ROWS()                                                                           \
    ROW(SPEC_IN, 0, 16, NULL, "pages.cache", pages.cache, SPEC_CACHES, SPEC_PAGES,                \
        SPEC_NUMBER(2), SPEC_KV_HEADS, SPEC_PAGE_SIZE, SPEC_HEAD_DIM),                            \
    READ_IF(pages.page_table, SPEC_I32, SPEC_SEQUENCES, SPEC_MAX_PAGES),                          \
    READ_IF(pages.sequences, SPEC_I32, SPEC_ROWS),                                                \
    READ_IF(pages.positions, SPEC_I32, SPEC_ROWS),                                                \
    READ_IF(more.scales, SPEC_F32, SPEC_PAGES, SPEC_NUMBER(2), SPEC_KV_HEADS, SPEC_PAGE_SIZE),    \
    READ_IF(more.page_indptr, SPEC_I32, SPEC_ONE_MORE(SEQUENCES)),                                \
    READ_IF(more.page_indices, SPEC_I32, SPEC_ENTRIES),                                           \
    READ_IF(more.last_page_len, SPEC_I32, SPEC_SEQUENCES),                                        \
    REAL(more.softcap, 0, FINITE)
#define PAGED_LIMITS(slots, most_slots, values)                                                   \
    WITHIN(KV_HEADS, 1, INT32_MAX), WITHIN_BY(PAGE_SIZE, slots, most_slots, slots),               \
    WITHIN_BY(HEAD_DIM, values, 256, values)

/* Of a latent cache head_dim is 512 or 576, which the entries see to. */
#define LATENT_LIMITS(values)                                                                     \
    WITHIN(KV_HEADS, 1, INT32_MAX), WITHIN(PAGE_SIZE, 1, INT32_MAX),                              \
    WITHIN_BY(HEAD_DIM, values, LATENT_KEYS, values), OTHERWISE(VALUES, LATENT_KEYS, SPEC_HEAD_DIM)
static const spec_limit spec_append_limits[] = {LATENT_LIMITS(16), LIMITS_END};
static const spec_limit spec_collate_limits[] = {
    WITHIN(KV_HEADS, 1, INT32_MAX), WITHIN(PAGE_SIZE, 1, INT32_MAX),
    WITHIN(HEAD_DIM, 1, INT32_MAX / 4), LIMITS_END};
static const spec_limit spec_copies_limits[] = {WITHIN(COPIES, 0, 65535), LIMITS_END};
static const spec_limit spec_attend_limits[] = {
    PAGED_LIMITS(16, 256, 16), MULTIPLE_OF(HEADS, KV_HEADS), LIMITS_END};
static const spec_limit spec_tokens_limits[] = {
    LATENT_LIMITS(16), MULTIPLE_OF(HEADS, KV_HEADS), LIMITS_END};
static const spec_limit spec_merge_limits[] = {
    WITHIN(ROWS, 0, INT32_MAX / 64), WITHIN(HEADS, 1, INT32_MAX / 64), WITHIN(HEAD_DIM, 1, 4096),
    LIMITS_END};
static const spec_limit spec_score_limits[] = {
    PAGED_LIMITS(1, INT32_MAX, 16), MULTIPLE_OF(HEADS, KV_HEADS), LIMITS_END};
static const spec_limit spec_bounds_limits[] = {
    WITHIN(KV_HEADS, 1, INT32_MAX), WITHIN(PAGE_SIZE, 1, 256),
    WITHIN(HEAD_DIM, 1, INT32_MAX / 4), LIMITS_END};
static const spec_limit spec_select_limits[] = {WITHIN(MAX_PAGES, 0, 1 << 22), LIMITS_END};

#define ARGS cairn_kv_append_args
static const spec_arg spec_kv_append_args[] = {
    READ_AS(SPEC_SAME_TYPE, 16, k, SPEC_FLOATS, SPEC_ROWS, SPEC_KV_HEADS, SPEC_HEAD_DIM),
    READ_AS(SPEC_SAME_TYPE, 16, v, SPEC_FLOATS, SPEC_ROWS, SPEC_KV_HEADS, SPEC_VALUES),
    CHANGE_AS(SPEC_OPTIONAL, 16, pages.cache, SPEC_CACHES, SPEC_PAGES, SPEC_NUMBER(2), SPEC_KV_HEADS,
              SPEC_PAGE_SIZE, SPEC_HEAD_DIM),
    READ(pages.page_table, SPEC_I32, SPEC_SEQUENCES, SPEC_MAX_PAGES),
    READ_IF(pages.sequences, SPEC_I32, SPEC_ROWS), READ(pages.positions, SPEC_I32, SPEC_ROWS),
    REAL(rope_base, 0, FINITE),
    INT(rotary_dim, 0, INT32_MAX),
    FLAG(half_split),
    CHANGE_AS(SPEC_OPTIONAL, 0, scales, SPEC_F32, SPEC_PAGES, SPEC_NUMBER(2), SPEC_KV_HEADS,
              SPEC_PAGE_SIZE),
    CHANGE_AS(SPEC_OPTIONAL, 16, latent, SPEC_LATENT, SPEC_PAGES, SPEC_PAGE_SIZE, SPEC_ANY),
    ARGS_END};
#undef ARGS

#define ARGS cairn_kv_collate_args
static const spec_arg spec_kv_collate_args[] = {
    NUMBER_AS(SPEC_INT, SPEC_C_ONLY, NULL, layers, SPEC_LAYERS, 0, CAIRN_COLLATE_LAYERS),
    LIST_AS(SPEC_SAME_TYPE, 16, caches, SPEC_CACHES, SPEC_PAGES, SPEC_NUMBER(2), SPEC_KV_HEADS,
            SPEC_PAGE_SIZE, SPEC_HEAD_DIM),
    LIST_AS(SPEC_OPTIONAL, 0, scales, SPEC_F32, SPEC_PAGES, SPEC_NUMBER(2), SPEC_KV_HEADS,
            SPEC_PAGE_SIZE),
    READ(page_table, SPEC_I32, SPEC_SEQUENCES, SPEC_MAX_PAGES),
    READ(bases, SPEC_I32, SPEC_SEQUENCES),
    READ(accepted, SPEC_I32, SPEC_SEQUENCES),
    READ_IF(sources, SPEC_I32, SPEC_SEQUENCES, SPEC_ANY),
    INT(stride, INT32_MIN, INT32_MAX),
    INT(most, 0, INT32_MAX),
    ARGS_END};
#undef ARGS

#define ARGS cairn_copy_pages_args
static const spec_arg spec_copy_pages_args[] = {
    CHANGE_AS(SPEC_ANY_SHAPE, 4, cache, SPEC_ALL, 0),
    READ(copies, SPEC_I32, SPEC_COPIES, SPEC_NUMBER(2)),
    FLAG(layers),
    ARGS_END};
#undef ARGS

#define ARGS cairn_attend_args
static const spec_arg spec_attend_args[] = {
    READ(q, SPEC_FLOATS, SPEC_ROWS, SPEC_HEADS, SPEC_HEAD_DIM),
    PAGES_OR_ROWS(),
    READ_IF(bases, SPEC_I32, SPEC_SEQUENCES),
    READ_IF(mask, TENSOR_BIT(CAIRN_U8), SPEC_SEQUENCES, SPEC_ANY),
    READ_IF(kv_indices, SPEC_I32, SPEC_TOKENS),
    READ_IF(cu_lens, SPEC_I32, SPEC_ONE_MORE(SEQUENCES)),
    WRITE(out, SPEC_F32, SPEC_ROWS, SPEC_HEADS, SPEC_HEAD_DIM),
    WRITE_IF(lse, SPEC_F32, SPEC_ROWS, SPEC_HEADS),
    REAL(scale, 0, FINITE),
    INT(window, 0, INT32_MAX),
    INT(sinks, 0, INT32_MAX),
    INT(step_rows, 0, 4096),
    INT(draft_length, 0, 16),
    FLAG(prompt),
    ARGS_END};
#undef ARGS

#define ARGS cairn_attend_tokens_args
static const spec_arg spec_attend_tokens_args[] = {
    READ(q, SPEC_FLOATS, SPEC_ROWS, SPEC_HEADS, SPEC_HEAD_DIM),
    READ_AS(SPEC_OPTIONAL, 16, cache, SPEC_CACHES, SPEC_PAGES, SPEC_NUMBER(2), SPEC_KV_HEADS,
            SPEC_PAGE_SIZE, SPEC_HEAD_DIM),
    READ(tokens, SPEC_I32, SPEC_ROWS, SPEC_TOKENS),
    READ_IF(scales, SPEC_F32, SPEC_PAGES, SPEC_NUMBER(2), SPEC_KV_HEADS, SPEC_PAGE_SIZE),
    READ_AS(SPEC_OPTIONAL, 16, latent, SPEC_LATENT, SPEC_PAGES, SPEC_PAGE_SIZE, SPEC_ANY),
    WRITE(out, SPEC_F32, SPEC_ROWS, SPEC_HEADS, SPEC_VALUES),
    WRITE_IF(lse, SPEC_F32, SPEC_ROWS, SPEC_HEADS),
    REAL(scale, 0, FINITE),
    REAL(softcap, 0, FINITE),
    CHOOSE("space", space, spec_spaces),
    ARGS_END};
#undef ARGS

#define ARGS cairn_merge_states_args
static const spec_arg spec_merge_states_args[] = {
    READ(parts, SPEC_F32, SPEC_PARTS, SPEC_ROWS, SPEC_HEADS, SPEC_HEAD_DIM),
    READ(lses, SPEC_F32, SPEC_PARTS, SPEC_ROWS, SPEC_HEADS),
    WRITE(out, SPEC_F32, SPEC_ROWS, SPEC_HEADS, SPEC_HEAD_DIM),
    WRITE_IF(lse, SPEC_F32, SPEC_ROWS, SPEC_HEADS),
    ARGS_END};
#undef ARGS

#define ARGS cairn_score_pages_args
static const spec_arg spec_score_pages_args[] = {
    READ(q, SPEC_F32, SPEC_ROWS, SPEC_HEADS, SPEC_HEAD_DIM),
    READ_IF(bounds, SPEC_F16, SPEC_PAGES, SPEC_KV_HEADS, SPEC_NUMBER(2), SPEC_HEAD_DIM),
    PAGES_OF(SPEC_IN, SPEC_F16),
    READ_IF(lse, SPEC_F32, SPEC_ROWS, SPEC_HEADS),
    WRITE_OUT(scores, SPEC_F32, SPEC_ROWS, SPEC_KV_HEADS, SPEC_MAX_PAGES),
    WRITE_IF(head_scores, SPEC_F32, SPEC_ROWS, SPEC_HEADS, SPEC_MAX_PAGES),
    INT(window, 0, INT32_MAX),
    REAL(scale, 0, FINITE),
    CHOOSE("source", source, spec_sources),
    CHOOSE("strategy", strategy, spec_strategies),
    ARGS_END};
#undef ARGS

#define ARGS cairn_page_bounds_args
static const spec_arg spec_page_bounds_args[] = {
    READ_AS(0, 16, cache, SPEC_F16, SPEC_PAGES, SPEC_NUMBER(2), SPEC_KV_HEADS, SPEC_PAGE_SIZE,
            SPEC_HEAD_DIM),
    READ(ids, SPEC_I32, SPEC_N),
    WRITE(bounds, SPEC_F16, SPEC_PAGES, SPEC_KV_HEADS, SPEC_NUMBER(2), SPEC_HEAD_DIM),
    CHOOSE("source", source, spec_bounds_sources),
    ARGS_END};
#undef ARGS

#define ARGS cairn_select_pages_args
static const spec_arg spec_select_pages_args[] = {
    INT_IS(TOPK, topk, 1, 4096),
    READ(scores, SPEC_F32, SPEC_ROWS, SPEC_KV_HEADS, SPEC_MAX_PAGES),
    READ_IF(head_scores, SPEC_F32, SPEC_ROWS, SPEC_HEADS, SPEC_MAX_PAGES),
    WRITE_OUT(selected, SPEC_I32, SPEC_ROWS, SPEC_KV_HEADS, SPEC_TOPK),
    WRITE_IF(chosen, SPEC_F32, SPEC_ROWS, SPEC_KV_HEADS, SPEC_TOPK),
    WRITE_IF(head_chosen, SPEC_F32, SPEC_ROWS, SPEC_HEADS, SPEC_TOPK),
    WRITE_IF(candidates, SPEC_I32, SPEC_ROWS, SPEC_KV_HEADS, SPEC_MAX_PAGES),
    WRITE_IF(counts, SPEC_I32, SPEC_ROWS, SPEC_KV_HEADS),
    ARGS_END};
#undef ARGS

#define ARGS cairn_attend_pages_args
static const spec_arg spec_attend_pages_args[] = {
    READ(q, SPEC_FLOATS, SPEC_ROWS, SPEC_HEADS, SPEC_HEAD_DIM),
    READ(selected, SPEC_I32, SPEC_ROWS, SPEC_KV_HEADS, SPEC_TOPK),
    PAGES_OR_ROWS(),
    READ_IF(weights, SPEC_F32, SPEC_ROWS, SPEC_ANY, SPEC_TOPK),
    WRITE(out, SPEC_F32, SPEC_ROWS, SPEC_HEADS, SPEC_HEAD_DIM),
    WRITE_IF(lse, SPEC_F32, SPEC_ROWS, SPEC_HEADS),
    REAL(scale, 0, FINITE),
    INT(window, 0, INT32_MAX),
    INT(sinks, 0, INT32_MAX),
    CHOOSE("form", form, spec_forms),
    CHOOSE("part", part, spec_parts),
    FLAG(landmarks),
    ARGS_END};
#undef ARGS

/* ---- the token indexer ----------------------------------------------------------------------- */

static const spec_limit spec_index_limits[] = {
    WITHIN(N, 0, 1 << 22), WITHIN_BY(HEADS, 8, 256, 8), WITHIN_BY(PAGE_SIZE, 16, 1 << 16, 16),
    WITHIN(PARTS, 1, INT32_MAX / 4), LIMITS_END};
static const spec_limit spec_index_qk_limits[] = {
    WITHIN(ROWS, 0, INT32_MAX / 64), WITHIN_BY(HEADS, 8, 256, 8),
    WITHIN_BY(HIDDEN, 32, INT32_MAX / 64, 32), WITHIN_BY(INS, 32, INT32_MAX / 64, 32), LIMITS_END};
static const spec_limit spec_index_cache_limits[] = {
    WITHIN_BY(PAGE_SIZE, 16, 1 << 16, 16), LIMITS_END};

#define INDEX_CACHE SPEC_PAGES, SPEC_PAGE_SIZE, SPEC_NUMBER(CAIRN_INDEX_BYTES)
#define INDEX_DIM SPEC_NUMBER(CAIRN_INDEX_DIM)

#define ARGS cairn_quantize_fp8_args
static const spec_arg spec_quantize_fp8_args[] = {
    READ_AS(0, 16, x, SPEC_FLOATS, SPEC_ROWS, SPEC_HEADS, INDEX_DIM),
    WRITE_AS(0, 16, out, SPEC_E4M3, SPEC_ROWS, SPEC_HEADS, INDEX_DIM),
    WRITE(scales, SPEC_F32, SPEC_ROWS, SPEC_HEADS),
    FLAG(power_of_two),
    ARGS_END};
#undef ARGS

#define ARGS cairn_index_store_args
static const spec_arg spec_index_store_args[] = {
    READ_AS(0, 16, keys, SPEC_E4M3, SPEC_ROWS, INDEX_DIM),
    READ(key_scales, SPEC_F32, SPEC_ROWS),
    READ(slots, SPEC_I32, SPEC_ROWS),
    CHANGE_AS(0, 16, cache, SPEC_U8, INDEX_CACHE),
    ARGS_END};
#undef ARGS

#define ARGS cairn_index_gather_args
static const spec_arg spec_index_gather_args[] = {
    READ_AS(0, 16, cache, SPEC_U8, INDEX_CACHE),
    READ_IF(slots, SPEC_I32, SPEC_ROWS),
    READ_IF(page_table, SPEC_I32, SPEC_REQUESTS, SPEC_MAX_PAGES),
    READ_IF(cu_seqlens, SPEC_I32, SPEC_ONE_MORE(REQUESTS)),
    WRITE_AS(0, 16, keys, SPEC_E4M3, SPEC_ROWS, INDEX_DIM),
    WRITE(key_scales, SPEC_F32, SPEC_ROWS),
    ARGS_END};
#undef ARGS

#define ARGS cairn_index_logits_args
static const spec_arg spec_index_logits_args[] = {
    READ_AS(0, 16, q, SPEC_E4M3, SPEC_ROWS, SPEC_HEADS, INDEX_DIM),
    READ(weights, SPEC_F32, SPEC_ROWS, SPEC_HEADS),
    READ_AS(0, 16, keys, SPEC_E4M3, SPEC_N, INDEX_DIM),
    READ(key_scales, SPEC_F32, SPEC_N),
    READ_IF(row_starts, SPEC_I32, SPEC_ROWS),
    READ_IF(lengths, SPEC_I32, SPEC_ROWS),
    WRITE_AS(SPEC_STRIDED, 0, out, SPEC_F32, SPEC_ROWS, SPEC_N),
    FLAG(clean),
    ARGS_END};
#undef ARGS

#define ARGS cairn_index_logits_paged_args
static const spec_arg spec_index_logits_paged_args[] = {
    READ_AS(0, 16, q, SPEC_E4M3, SPEC_ROWS, SPEC_HEADS, INDEX_DIM),
    READ(weights, SPEC_F32, SPEC_ROWS, SPEC_HEADS),
    READ_AS(0, 16, cache, SPEC_U8, INDEX_CACHE),
    READ(page_table, SPEC_I32, SPEC_REQUESTS, SPEC_MAX_PAGES),
    READ(lengths, SPEC_I32, SPEC_ROWS),
    READ_IF(requests, SPEC_I32, SPEC_ROWS),
    READ_IF(schedule, SPEC_I32, SPEC_ONE_MORE(PARTS), SPEC_NUMBER(2)),
    INT_IS(N, n, 0, 1 << 22),
    INT(split, 0, 1 << 22),
    WRITE_AS(SPEC_STRIDED, 0, out, SPEC_F32, SPEC_ROWS, SPEC_N),
    FLAG(clean),
    ARGS_END};
#undef ARGS

#define ARGS cairn_index_topk_args
static const spec_arg spec_index_topk_args[] = {
    INT_IS(K, k, 1, INT32_MAX),
    READ_AS(0, 16, q, SPEC_E4M3, SPEC_ROWS, SPEC_HEADS, INDEX_DIM),
    READ(weights, SPEC_F32, SPEC_ROWS, SPEC_HEADS),
    READ_AS(SPEC_OPTIONAL, 16, keys, SPEC_E4M3, SPEC_N, INDEX_DIM),
    READ_IF(key_scales, SPEC_F32, SPEC_N),
    READ_AS(SPEC_OPTIONAL, 16, cache, SPEC_U8, INDEX_CACHE),
    READ_IF(page_table, SPEC_I32, SPEC_REQUESTS, SPEC_MAX_PAGES),
    READ_IF(lengths, SPEC_I32, SPEC_ROWS),
    READ_IF(requests, SPEC_I32, SPEC_ROWS),
    READ_IF(row_starts, SPEC_I32, SPEC_ROWS),
    READ_IF(offsets, SPEC_I32, SPEC_ROWS),
    CHANGE_AS(SPEC_OPTIONAL | SPEC_STRIDED, 0, scores, SPEC_F32, SPEC_ANY, SPEC_ANY),
    INT(n, 0, 1 << 22),
    FLAG(slots),
    INT(page_size, 0, INT32_MAX),
    SIZE(max_bytes), SIZE(free_bytes), SIZE(total_bytes),
    WRITE_OUT(indices, SPEC_I32, SPEC_ROWS, SPEC_K),
    WRITE_IF(values, SPEC_F32, SPEC_ROWS, SPEC_K),
    CHOOSE("order", order, spec_orders),
    NAMED(route),
    ARGS_END};
#undef ARGS

#define ARGS cairn_index_qk_args
static const spec_arg spec_index_qk_args[] = {
    READ_AS(0, 16, x, SPEC_F32, SPEC_ROWS, SPEC_HIDDEN),
    READ_AS(SPEC_BLOCKS, 0, wk, SPEC_FLOATS, INDEX_DIM, SPEC_HIDDEN),
    READ(norm_weight, SPEC_F32, INDEX_DIM),
    READ_IF(norm_bias, SPEC_F32, INDEX_DIM),
    READ(positions, SPEC_I32, SPEC_ROWS),
    READ_AS(SPEC_OPTIONAL, 16, q_latent, SPEC_F32, SPEC_ROWS, SPEC_INS),
    READ_AS(SPEC_OPTIONAL | SPEC_BLOCKS, 0, wq, SPEC_FLOATS, SPEC_OUTS, SPEC_INS),
    READ_IF(gate, SPEC_FLOATS, SPEC_HEADS, SPEC_HIDDEN),
    CHOOSE("block", block, spec_blocks),
    WRITE_AS(SPEC_OPTIONAL, 16, q, SPEC_E4M3, SPEC_ROWS, SPEC_HEADS, INDEX_DIM),
    WRITE_IF(weights, SPEC_F32, SPEC_ROWS, SPEC_HEADS),
    WRITE_AS(0, 16, keys, SPEC_E4M3, SPEC_ROWS, INDEX_DIM),
    WRITE(key_scales, SPEC_F32, SPEC_ROWS),
    REAL(rope_base, 0, FINITE),
    REAL(epsilon, 0, FINITE),
    FLAG(power_of_two),
    ARGS_END};
#undef ARGS

#define ARGS cairn_index_transform_args
static const spec_arg spec_index_transform_args[] = {
    READ_AS(SPEC_IN_PLACE, 0, positions, SPEC_I32, SPEC_ROWS, SPEC_K),
    READ_IF(page_table, SPEC_I32, SPEC_REQUESTS, SPEC_MAX_PAGES),
    READ_IF(offsets, SPEC_I32, SPEC_ROWS),
    READ_IF(requests, SPEC_I32, SPEC_ROWS),
    INT(page_size, 0, INT32_MAX),
    WRITE_OUT(indices, SPEC_I32, SPEC_ROWS, SPEC_K),
    ARGS_END};
#undef ARGS

/* ---- short convolution ----------------------------------------------------------------------- */

/* Rows of the embedded cairn_conv. */
#define CONV(kind, flags, field, types, ...) \
    ROW(kind, flags, 0, NULL, #field, conv.field, types, __VA_ARGS__)
#define CONV_OF(lens)                                                                              \
    CONV(SPEC_IN, SPEC_STRIDED | SPEC_SAME_TYPE, x, SPEC_FLOATS, SPEC_TOKENS, SPEC_CHANNELS),      \
    CONV(SPEC_IN, SPEC_SAME_TYPE | SPEC_OR_F32, weight, SPEC_FLOATS, SPEC_CHANNELS,                \
         SPEC_ONE_MORE(TAPS)),                                                                     \
    CONV(SPEC_INOUT, SPEC_SAME_TYPE, state, SPEC_FLOATS, SPEC_SLOTS, SPEC_TAPS, SPEC_CHANNELS),    \
    CONV(SPEC_IN, lens, cu_seqlens, SPEC_I32, SPEC_ONE_MORE(SEQUENCES)),                           \
    CONV(SPEC_IN, SPEC_OPTIONAL | SPEC_SAME_TYPE | SPEC_OR_F32, bias, SPEC_FLOATS, SPEC_CHANNELS), \
    CONV(SPEC_IN, SPEC_OPTIONAL | SPEC_STRIDED | SPEC_SAME_TYPE, gate_in, SPEC_FLOATS,             \
         SPEC_TOKENS, SPEC_CHANNELS),                                                              \
    CONV(SPEC_IN, SPEC_OPTIONAL | SPEC_STRIDED | SPEC_SAME_TYPE, gate_out, SPEC_FLOATS,            \
         SPEC_TOKENS, SPEC_CHANNELS),                                                              \
    CONV(SPEC_IN, SPEC_OPTIONAL, state_indices, SPEC_I32, SPEC_LEAST(SEQUENCES)),                  \
    CONV(SPEC_IN, SPEC_OPTIONAL, has_initial, SPEC_I32, SPEC_LEAST(SEQUENCES)),                    \
    CONV(SPEC_OUT, SPEC_STRIDED | SPEC_SAME_TYPE, out, SPEC_FLOATS, SPEC_TOKENS, SPEC_CHANNELS),   \
    CHOOSE("activation", conv.activation, spec_activations),                                       \
    {"reserved_slots", NULL, SPEC_INT, 0, offsetof(ARGS, conv.reserved_slots), 0, {0}, 0, 0,       \
     INT32_MAX, NULL}

static const spec_limit spec_conv_limits[] = {
    WITHIN(TAPS, 1, 7), WITHIN(TOKENS, 0, INT32_MAX / 2), WITHIN(CHANNELS, 0, INT32_MAX / 64),
    OTHERWISE(SEQUENCES, INT32_MAX / 2, SPEC_TOKENS), LIMITS_END};
static const spec_limit spec_restore_limits[] = {
    AT_LEAST(KEPT, TAPS, INT32_MAX, 0), WITHIN(CHANNELS, 0, INT32_MAX / 64), LIMITS_END};
static const spec_limit spec_metadata_limits[] = {
    WITHIN(REQUESTS, 0, 8192), OTHERWISE(CHUNKS, INT32_MAX / 2, SPEC_NUMBER(2048)),
    AT_LEAST(CAPACITY, REQUESTS, INT32_MAX / 2, SPEC_REQUESTS), LIMITS_END};

#define ARGS cairn_short_conv_args
static const spec_arg spec_short_conv_args[] = {
    CONV_OF(0),
    READ_IF(chunk_sequences, SPEC_I32, SPEC_CHUNKS),
    READ_IF(chunk_offsets, SPEC_I32, SPEC_CHUNKS),
    INT(block_tokens, INT32_MIN, INT32_MAX),
    ARGS_END};
#undef ARGS

#define ARGS cairn_short_conv_update_args
static const spec_arg spec_short_conv_update_args[] = {
    CONV_OF(SPEC_OPTIONAL),
    CHANGE_AS(SPEC_OPTIONAL | SPEC_SAME_TYPE, 0, snapshots, SPEC_FLOATS, SPEC_SEQUENCES, SPEC_KEPT,
              SPEC_CHANNELS),
    ARGS_END};
#undef ARGS

#define ARGS cairn_short_conv_restore_args
static const spec_arg spec_short_conv_restore_args[] = {
    READ_AS(SPEC_SAME_TYPE, 0, snapshots, SPEC_FLOATS, SPEC_SEQUENCES, SPEC_KEPT, SPEC_CHANNELS),
    READ(accepted, SPEC_I32, SPEC_SEQUENCES),
    CHANGE_AS(SPEC_SAME_TYPE, 0, state, SPEC_FLOATS, SPEC_SLOTS, SPEC_TAPS, SPEC_CHANNELS),
    READ_IF(state_indices, SPEC_I32, SPEC_LEAST(SEQUENCES)),
    INT(reserved_slots, 0, INT32_MAX),
    ARGS_END};
#undef ARGS

#define ARGS cairn_short_conv_metadata_args
static const spec_arg spec_short_conv_metadata_args[] = {
    READ_AS(SPEC_STAGED, 0, cu_seqlens, SPEC_I32, SPEC_ONE_MORE(REQUESTS)),
    READ_AS(SPEC_STAGED | SPEC_OPTIONAL, 0, seq_lens, SPEC_I32, SPEC_REQUESTS),
    READ_AS(SPEC_STAGED | SPEC_OPTIONAL | SPEC_STRIDED | SPEC_COLUMN, 0, slots, SPEC_I32,
            SPEC_REQUESTS, SPEC_ANY),
    READ_AS(SPEC_STAGED | SPEC_OPTIONAL, 0, live, SPEC_I32, SPEC_NUMBER(1)),
    WRITE(chunk_sequences, SPEC_I32, SPEC_CHUNKS),
    WRITE(chunk_offsets, SPEC_I32, SPEC_CHUNKS),
    WRITE_MADE(has_initial, SPEC_I32, SPEC_CAPACITY),
    WRITE_MADE(decode_indices, SPEC_I32, SPEC_CAPACITY),
    WRITE_MADE(prompt_indices, SPEC_I32, SPEC_CAPACITY),
    WRITE_MADE(counts, SPEC_I32, SPEC_NUMBER(8)),
    WRITE_IF(order, SPEC_I32, SPEC_CAPACITY),
    INT(block_tokens, 0, INT32_MAX),
    INT(decode_tokens, -1, INT32_MAX),
    NUMBER_AS(SPEC_STAGING, SPEC_OPTIONAL, NULL, staging, 0, 0, 0),
    ARGS_END};
#undef ARGS

/* ---- sampling -------------------------------------------------------------------------------- */

static const spec_limit spec_sample_limits[] = {WITHIN(VOCAB, 1, 1 << 20), LIMITS_END};

/* How rows are sampled: for all of them, and for each. */
#define SAMPLED \
    REAL(temperature, 0, FINITE), \
    INT(top_k, 0, INT32_MAX), \
    REAL(top_p, 0, 1), \
    REAL(min_p, 0, 1), \
    REAL(repetition_penalty, 0, FINITE), \
    CHOOSE("order", order, spec_sampling_orders), \
    READ_IF(mask, SPEC_I32, SPEC_ROWS, SPEC_ANY), \
    READ_IF(temperatures, SPEC_F32, SPEC_ROWS), \
    READ_IF(top_ps, SPEC_F32, SPEC_ROWS), \
    READ_IF(min_ps, SPEC_F32, SPEC_ROWS), \
    READ_IF(penalties, SPEC_F32, SPEC_ROWS), \
    READ_IF(top_ks, SPEC_I32, SPEC_ROWS)

#define ARGS cairn_sample_args
static const spec_arg spec_sample_args[] = {
    READ(logits, SPEC_F32, SPEC_ROWS, SPEC_VOCAB),
    READ_IF(seeds, SPEC_I64, SPEC_ROWS),
    READ_IF(positions, SPEC_I32, SPEC_ROWS),
    READ_IF(history, SPEC_I32, SPEC_ROWS, SPEC_ANY),
    WRITE_OUT(tokens, SPEC_I32, SPEC_ROWS),
    SAMPLED,
    WRITE_IF(logprobs, SPEC_F32, SPEC_ROWS, SPEC_ANY),
    WRITE_IF(best, SPEC_I32, SPEC_ROWS, SPEC_ANY),
    ARGS_END};
#undef ARGS

#define ARGS cairn_verify_greedy_args
static const spec_arg spec_verify_greedy_args[] = {
    READ(logits, SPEC_F32, SPEC_SEQUENCES, SPEC_ONE_MORE(DRAFTS), SPEC_VOCAB),
    READ(drafts, SPEC_I32, SPEC_SEQUENCES, SPEC_DRAFTS),
    WRITE(accepted, SPEC_I32, SPEC_SEQUENCES),
    WRITE(bonus, SPEC_I32, SPEC_SEQUENCES),
    ARGS_END};
#undef ARGS

#define ARGS cairn_sample_probs_args
static const spec_arg spec_sample_probs_args[] = {
    READ(logits, SPEC_F32, SPEC_ROWS, SPEC_VOCAB),
    READ_IF(history, SPEC_I32, SPEC_ROWS, SPEC_ANY),
    WRITE_OUT(probs, SPEC_F32, SPEC_ROWS, SPEC_VOCAB),
    SAMPLED,
    ARGS_END};
#undef ARGS
#undef SAMPLED

#define ARGS cairn_verify_chain_args
static const spec_arg spec_verify_chain_args[] = {
    READ(target, SPEC_F32, SPEC_SEQUENCES, SPEC_ONE_MORE(DRAFTS), SPEC_VOCAB),
    READ(drafts, SPEC_I32, SPEC_SEQUENCES, SPEC_DRAFTS),
    READ_IF(draft_probs, SPEC_F32, SPEC_SEQUENCES, SPEC_DRAFTS, SPEC_VOCAB),
    READ_IF(seeds, SPEC_I64, SPEC_SEQUENCES),
    READ_IF(positions, SPEC_I32, SPEC_SEQUENCES),
    WRITE(tokens, SPEC_I32, SPEC_SEQUENCES, SPEC_ONE_MORE(DRAFTS)),
    WRITE(accepted, SPEC_I32, SPEC_SEQUENCES),
    WRITE(bonus, SPEC_I32, SPEC_SEQUENCES),
    ARGS_END};
#undef ARGS

/* ---- metadata -------------------------------------------------------------------------------- */

static const spec_limit spec_batch_limits[] = {WITHIN(BATCH, 0, INT32_MAX / 4), LIMITS_END};

#define ARGS cairn_prepare_steps_args
static const spec_arg spec_prepare_steps_args[] = {
    READ(seq_lens, SPEC_I32, SPEC_BATCH),
    READ_AS(SPEC_OPTIONAL | SPEC_STRIDED, 0, slots, SPEC_I32, SPEC_ANY, SPEC_ANY),
    READ_AS(SPEC_OPTIONAL | SPEC_STRIDED, 0, pages, SPEC_I32, SPEC_ANY, SPEC_ANY),
    READ_IF(requests, SPEC_I32, SPEC_BATCH),
    READ_IF(accept, SPEC_I32, SPEC_BATCH),
    READ_IF(count, SPEC_I32, SPEC_NUMBER(1)),
    CHOOSE("mode", mode, spec_step_modes),
    NUMBER_AS(SPEC_INT, 0, "steps", step_count, 0, 1, PREPARE_MAX_STEPS),
    INT(step_offset, 0, 1 << 20),
    INT(draft_tokens, INT32_MIN, INT32_MAX),
    INT(index_topk, 0, INT32_MAX),
    INT(page_size, 0, INT32_MAX),
    INT(index_split, 0, INT32_MAX),
    INT(attend_split, 0, INT32_MAX),
    FLAG(expand_tables),
    OWN("into"), OWN("outputs"), OWN("columns"), OWN("rows"), OWN("workers"), OWN("own_tables"),
    ARGS_END};
#undef ARGS

#define ARGS cairn_prefix_chunks_args
static const spec_arg spec_prefix_chunks_args[] = {
    READ(prefix_lens, SPEC_I32, SPEC_BATCH),
    READ_AS(SPEC_OPTIONAL | SPEC_STRIDED, 0, slots, SPEC_I32, SPEC_ANY, SPEC_ANY),
    READ_AS(SPEC_OPTIONAL | SPEC_STRIDED, 0, pages, SPEC_I32, SPEC_ANY, SPEC_ANY),
    READ_IF(requests, SPEC_I32, SPEC_BATCH),
    INT(capacity, 0, INT32_MAX),
    INT(page_size, 0, INT32_MAX),
    WRITE_MADE(kv_indices, SPEC_I32, SPEC_ANY, SPEC_ANY),
    WRITE_MADE(cu_lens, SPEC_I32, SPEC_ANY, SPEC_ONE_MORE(BATCH)),
    WRITE_MADE(lens, SPEC_I32, SPEC_PARTS, SPEC_BATCH),
    WRITE_MADE(starts, SPEC_I32, SPEC_PARTS, SPEC_BATCH),
    WRITE_MADE(chunk_count, SPEC_I32, SPEC_NUMBER(1)),
    ARGS_END};
#undef ARGS

/* ---- all of them ----------------------------------------------------------------------------- */

#define SPEC_OPS(X)                                                                                \
    X(topk, spec_topk_limits) X(topk_transform, spec_topk_limits)                                  \
    X(topk_rows, spec_topk_rows_limits) X(embed, spec_embed_limits) X(rmsnorm, spec_no_limits)     \
    X(rope, spec_no_limits) X(swiglu, spec_no_limits) X(linear, spec_linear_limits)                \
    X(kv_append, spec_append_limits) X(kv_collate, spec_collate_limits)                            \
    X(copy_pages, spec_copies_limits) X(attend, spec_attend_limits)                                \
    X(attend_tokens, spec_tokens_limits) X(merge_states, spec_merge_limits)                        \
    X(page_bounds, spec_bounds_limits) X(score_pages, spec_score_limits)                           \
    X(select_pages, spec_select_limits) X(attend_pages, spec_attend_limits)                        \
    X(quantize_fp8, spec_no_limits) X(index_store, spec_index_cache_limits)                        \
    X(index_gather, spec_index_cache_limits) X(index_logits, spec_index_limits)                    \
    X(index_logits_paged, spec_index_limits) X(index_topk, spec_index_limits)                      \
    X(index_qk, spec_index_qk_limits) X(index_transform, spec_no_limits)                           \
    X(short_conv, spec_conv_limits) X(short_conv_update, spec_conv_limits)                         \
    X(short_conv_restore, spec_restore_limits) X(short_conv_metadata, spec_metadata_limits)        \
    X(sample, spec_sample_limits) X(verify_greedy, spec_sample_limits)                             \
    X(sample_probs, spec_sample_limits) X(verify_chain, spec_sample_limits)                        \
    X(prepare_steps, spec_batch_limits) X(prefix_chunks, spec_batch_limits)

/* Each op's entry, with the struct's type left out. */
#define SPEC_RUN(name, limits)                                                      \
    static cairn_status spec_run_##name(cairn_runtime *rt, const void *args) {      \
        return cairn_##name(rt, (const cairn_##name##_args *)args);                 \
    }
SPEC_OPS(SPEC_RUN)
#undef SPEC_RUN

enum spec_op_number {
#define SPEC_NUMBERED(name, limits) SPEC_OP_##name,
    SPEC_OPS(SPEC_NUMBERED) SPEC_OP_COUNT
#undef SPEC_NUMBERED
};

static const spec_op spec_ops[SPEC_OP_COUNT] = {
#define SPEC_OP(name, limits) \
    {#name, sizeof(cairn_##name##_args), spec_##name##_args, limits, spec_run_##name},
    SPEC_OPS(SPEC_OP)
#undef SPEC_OP
};

static const spec_op spec_topk_rows_plan = {"topk_rows_plan", sizeof(cairn_topk_rows_args),
                                            spec_topk_rows_plan_args, spec_topk_limits, NULL};

static const char *const spec_symbol_names[] = {
#define SPEC_NAME(symbol, name, words) name,
    SPEC_SYMBOL_TABLE(SPEC_NAME)
#undef SPEC_NAME
};

static const char *const spec_symbol_words[] = {
#define SPEC_WORDS(symbol, name, words) words,
    SPEC_SYMBOL_TABLE(SPEC_WORDS)
#undef SPEC_WORDS
};

#undef ROW
#undef READ
#undef READ_IF
#undef READ_AS
#undef WRITE
#undef WRITE_AS
#undef WRITE_OUT
#undef WRITE_IF
#undef WRITE_MADE
#undef CHANGE_AS
#undef LIST_AS
#undef NUMBER_AS
#undef INT
#undef INT_IS
#undef FLAG
#undef REAL
#undef SIZE
#undef NAMED
#undef CHOOSE
#undef OWN
#undef ARGS_END
#undef WITHIN
#undef WITHIN_BY
#undef MULTIPLE_OF
#undef AT_LEAST
#undef OTHERWISE
#undef LIMITS_END
#undef PAGES_OF
#undef PAGED_LIMITS
#undef CONV
#undef CONV_OF
#undef INDEX_CACHE
#undef INDEX_DIM

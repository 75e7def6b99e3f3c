/* index: the token indexer of sparse attention: quantize_fp8 (quantize.c), the paged cache of index
 * keys (cache.c), index_logits and index_logits_paged (logits.c), index_topk (topk.c), index_transform
 * (transform.c) and index_qk (qk.c), each its entry, the CPU's half and the launch. A logit depends
 * on its row and its key alone, so that every way to cut the work gives the same bits. Calls topk,
 * and dense's public entry; other rooms call the public entries, and a worker of the CPU's
 * forward what follows. */

enum { INDEX_RUN = 1024 /* columns of one piece of the CPU's work */ };

/* A projected index key becomes LayerNorm of it. */
static void index_alone_norm(const float *weight, const float *bias, float *v);
/* A query or key that has turned, H of it as e4m3 with a scale; v is spoiled. */
static void index_alone_finish(float *v, bool power_of_two, uint8_t *out, float *scale);
/* What a layer of a model on the GPU does of index_qk (a magnitude above 0: as its plan turns),
 * index_store (its entry), index_transform and index_logits_paged, whose p->error they set. */
static cairn_status index_qk_cuda(cairn_runtime *rt, const index_qk_params *p);
static cairn_status index_cache_cuda(cairn_runtime *rt, const char *entry, const index_cache_params *p);
static cairn_status index_transform_cuda(cairn_runtime *rt, const topk_params *p);
static cairn_status index_score(cairn_runtime *rt, const char *op, bool paged, index_logits_params *p);
/* Columns [from, to) of the logits of rows [first, first + count), which are of one request:
 * row_requests is there. values: fp8_values'; scratch: index_alone_floats of so many rows. */
static size_t index_alone_floats(int rows, int heads);
static void index_alone_score(const float *values, const index_logits_params *p, int first,
                              int count, int64_t from, int64_t to, float *scratch);

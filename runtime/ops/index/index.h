/* index: the token indexer of sparse attention: quantize_fp8 (quantize.c), the paged cache of index
 * keys (cache.c), index_logits and index_logits_paged (logits.c), index_topk (topk.c), index_transform
 * (transform.c) and index_qk (qk.c), each its entry, the CPU's half and the launch. A logit depends
 * on its row and its key alone, so that every way to cut the work gives the same bits. Calls topk,
 * and dense's public entry; other rooms call the public entries alone. */

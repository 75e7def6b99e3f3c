/* api: the life of a runtime. cairn_open builds it room by room, cairn_close takes it down in the
 * reverse order, also after a failed open. */

/* The store of compiled kernels that a config names. Never fails: see cache_open. */
static void open_cache(base *b, const cairn_config *config, cache *kernels);

/* attention/layout.h: where keys, values and bounds lie in the paged cache, what a query attends,
 * and how attention cuts it. Plain C, for the host and for the kernels alike.
 *
 * Cache [page][K or V][kv_head][slot][dim], bounds [page][kv_head][lo or hi][dim], both f16.
 *
 * A query at position i attends, each token once: the tokens below `sinks`, the chosen pages among
 * its candidates, and every token from the page behind the candidates up to i. Whole attention has
 * no candidates. These pages, ascending, are its list.
 *
 * The list is cut into chunks of LAYOUT_CHUNK tokens, and consecutive chunks into runs: a block
 * folds the chunks of one run in order, and the runs are merged in order. How many chunks a run has
 * follows from the query's own position and rule alone, so that a query's bits do not depend on
 * the queries beside it. */
#ifndef CAIRN_ATTENTION_LAYOUT_H
#define CAIRN_ATTENTION_LAYOUT_H

#ifdef CAIRN_COMMON_CUH
#define CAIRN_LAYOUT CAIRN_INLINE constexpr
#else
#define CAIRN_LAYOUT static inline
#endif

/* ---- the paged cache ---- */

/* Values from a layer's cache to a slot of K (0) or V (1) of one head of a page. */
CAIRN_LAYOUT int64_t layout_slot(int64_t page, int k_or_v, int head, int slot, int kv_heads,
                                 int page_size, int dim) {
    return (((page * 2 + k_or_v) * kv_heads + head) * page_size + slot) * dim;
}

/* Values from a layer's bounds to those of one head of a page. */
CAIRN_LAYOUT int64_t layout_bounds(int64_t page, int head, int kv_heads, int dim) {
    return (page * kv_heads + head) * 2 * dim;
}

/* ---- the rule ---- */

/* Pages 0 .. result - 1 may be left out by a query that chooses: the whole pages before its window,
 * or before its own page where it has no window. */
CAIRN_LAYOUT int layout_candidates(int position, int window, int page_size) {
    return window > 0 ? (position >= window ? (position - window + 1) / page_size : 0)
                      : position / page_size;
}

/* Pages that hold sinks. */
CAIRN_LAYOUT int layout_sink_pages(int sinks, int page_size) {
    return sinks / page_size + (sinks % page_size > 0);
}

/* The longest that a query's list can be, in pages, of which `candidates` may be left out and
 * `topk` of these are kept: all that follows from its position. */
CAIRN_LAYOUT int layout_most_listed(int position, int candidates, int topk, int sinks,
                                    int page_size) {
    const int own = position / page_size;
    const int64_t pages = (int64_t)topk + own - candidates + 1 +
                          layout_sink_pages(sinks, page_size);
    return candidates <= topk || pages > own + 1 ? own + 1 : (int)pages;
}

/* Draft and verify: of side * side rows, row i is token i / side followed by its side - 1 masks,
 * and sees the tokens up to its own and the masks of its token up to itself. Whether it sees j. */
CAIRN_LAYOUT bool layout_draft_sees(int i, int j, int side) {
    const int token = i / side, other = j / side, mask = j % side;
    return mask == 0 ? other <= token : other == token && mask <= i % side;
}

/* ---- chunks and runs ---- */

/* Values of a head where it is computed with: those behind its own are zeros. */
CAIRN_LAYOUT int layout_width(int dim) { return (dim + 31) / 32 * 32; }

/* A block's warps have so many keys of a chunk each. */
CAIRN_LAYOUT int layout_warps(int dim) { return dim > 128 ? 4 : 8; }
CAIRN_LAYOUT int layout_warp_keys(int dim) { return dim > 64 ? 16 : 32; }
CAIRN_LAYOUT int layout_chunk(int dim) { return layout_warps(dim) * layout_warp_keys(dim); }

/* Chunks of a list of so many pages. */
CAIRN_LAYOUT int layout_chunks(int pages, int page_size, int dim) {
    return (int)(((int64_t)pages * page_size + layout_chunk(dim) - 1) / layout_chunk(dim));
}

/* The most runs of a list: enough for one query to employ a large GPU. */
CAIRN_LAYOUT int layout_most_runs(int kv_heads) {
    return kv_heads <= 2 ? 128 : kv_heads >= 16 ? 16 : 256 / kv_heads;
}

/* Chunks of a run, of a list whose longest has `chunks`: one while the most runs are enough, so that one
 * query asks for all it can at once; else up to four as long as half the most runs are enough, for few
 * long runs cost many queries together less than many short ones. */
CAIRN_LAYOUT int layout_run(int chunks, int kv_heads) {
    const int most = layout_most_runs(kv_heads), needed = (chunks + most - 1) / most;
    const int wished = (2 * chunks + most - 1) / most;
    return needed <= 1 ? 1 : needed >= 4 ? needed : wished < 4 ? wished : 4;
}

/* Runs of that list. */
CAIRN_LAYOUT int layout_runs(int chunks, int kv_heads) {
    const int run = layout_run(chunks, kv_heads);
    return (chunks + run - 1) / run;
}

/* The most runs of any list in a context of so many tokens. */
CAIRN_LAYOUT int layout_context_runs(int context, int page_size, int dim, int kv_heads) {
    const int chunks = layout_chunks((context + page_size - 1) / page_size, page_size, dim);
    return chunks < layout_most_runs(kv_heads) ? chunks : layout_most_runs(kv_heads);
}

/* ---- sizes ---- */

/* Shared memory of attention/core.cuh: keys and values of each warp, 16 queries, the warps' (m, l) of
 * these, and a few words. */
CAIRN_LAYOUT int layout_attend_bytes(int dim) {
    return layout_warps(dim) * 2 * layout_warp_keys(dim) * layout_width(dim) * 2 +
           16 * layout_width(dim) * 2 + 16 * layout_warps(dim) * 8 + 32;
}

/* Besides: the scales of two chunks of bytes; the sums of the warps, where a block takes several runs
 * and fetches the next while it merges one: of tiles of up to LAYOUT_CHAIN_ROWS queries. */
enum { LAYOUT_CHAIN_ROWS = 4 };
CAIRN_LAYOUT int layout_scale_bytes(int dim) { return layout_chunk(dim) * 16; }
CAIRN_LAYOUT int layout_chain_bytes(int dim) {
    return layout_warps(dim) * LAYOUT_CHAIN_ROWS * layout_width(dim) * 4;
}

/* The same of the chains of a step, whose tiles are of `heads` queries; up to so many: with the warps' (m, l),
 * twice where two blocks share a multiprocessor nevertheless. */
enum { LAYOUT_STEP_CHAIN_HEADS = 8 };
CAIRN_LAYOUT int layout_step_chain_places(int heads) { return heads <= 4 ? 2 : 1; }
CAIRN_LAYOUT int layout_step_sums_bytes(int heads, int dim) {
    return layout_warps(dim) * heads * (layout_width(dim) * 4 + 8);
}
CAIRN_LAYOUT int layout_step_chain_bytes(int heads, int dim) {
    return layout_step_chain_places(heads) * layout_step_sums_bytes(heads, dim);
}

/* Runs of so many chunks that one block takes. */
CAIRN_LAYOUT int layout_chained(int chain, int run) { return chain > run ? chain / run : 1; }

/* Of attention/packed.cu: queries and keys of a tile; memory for one of queries, two of keys and values. */
CAIRN_LAYOUT int layout_packed_rows(int dim) { return dim > 128 ? 64 : 128; }
CAIRN_LAYOUT int layout_packed_keys(int dim) { return dim > 128 ? 16 : 32; }
CAIRN_LAYOUT int layout_packed_bytes(int dim) {
    return (4 * layout_packed_keys(dim) + layout_packed_rows(dim)) * layout_width(dim) * 2 +
           layout_packed_rows(dim) * 12 + 32;
}

/* Of attention/prompt.cuh, where there is wgmma: 128 queries, two tiles of 128 keys and values. */
enum { LAYOUT_MANY_ROWS = 128, LAYOUT_MANY_KEYS = 128, LAYOUT_MANY_THREADS = 384 };
CAIRN_LAYOUT bool layout_has_many(int dim) { return dim == 64 || dim == 128; }
CAIRN_LAYOUT int layout_many_bytes(int dim) {
    return 3072 + (LAYOUT_MANY_ROWS + 4 * LAYOUT_MANY_KEYS) * dim * 2;
}

/* A model's prompts attend by spans of so many keys, cut at multiples: in each the sums begin anew, and the
 * spans' sums are merged in order (many_merge), so that blocks may walk one each. Besides, of a block that
 * walks all: the sums of the spans behind it. In memory the sums of a query over a span are a record. */
#ifndef CAIRN_SPAN
#define CAIRN_SPAN 2048
#endif
enum { LAYOUT_SPAN = CAIRN_SPAN };
CAIRN_LAYOUT int layout_spans_bytes(int dim) { return layout_many_bytes(dim) + LAYOUT_MANY_ROWS * dim * 4; }
CAIRN_LAYOUT int layout_span_record(int dim) { return (dim + 4) * 4; }

/* Of step/prompt_attend.cu: two tiles of keys and values, of large heads 64 queries too. */
CAIRN_LAYOUT int layout_prompt_bytes(int dim) { return (dim > 128 ? 384 : 512) * layout_width(dim); }

/* Besides, of attention/attention.cu, for the pages of a table and of one run. */
CAIRN_LAYOUT int layout_list_bytes(int max_pages, int run_pages) {
    return ((max_pages + 31) / 32 + run_pages + 40) * 4;
}

/* Of attention/latent.cu: 32 keys and 16 queries of 576 values, weights, the warps' sums, ids. */
CAIRN_LAYOUT int layout_latent_bytes(void) {
    return (32 + 16) * 576 * 2 + 16 * 40 * 2 + 2 * 4 * 16 * 4 + 32 * 8;
}

/* Of attention/latent_wide.cu: 64 queries and two tiles of 64 keys of 576 values, weights, the warps'
 * sums, shares, ids. */
CAIRN_LAYOUT int layout_latent_wide_bytes(void) {
    return (64 + 2 * 64) * 576 * 2 + 64 * 64 * 2 + 2 * 4 * 64 * 4 + 64 * 4 + 3 * 64 * 4;
}

/* Of attention/latent_many.cu: barriers and scales, 64 queries, two tiles of 64 keys of 576 values. */
CAIRN_LAYOUT int layout_latent_many_bytes(void) { return 4096 + 1024 + 3 * 64 * 576 * 2; }

/* Besides, where pages have weights: one for each page of a run and row of a tile, and what the warps
 * tell each other of two chunks. */
CAIRN_LAYOUT int layout_bias_bytes(int run_pages, int dim) {
    return (run_pages + 2) * 16 * 4 + layout_chunk(dim) * 16;
}

/* Shared memory of select/core.cuh with so many pages: keys; the parts of the queries (of so many heads
 * at a time), then counts; bits; and a little for all threads to meet in. */
enum { LAYOUT_SELECT_BINS = 1024, LAYOUT_SELECT_MEETING = 48, LAYOUT_SELECT_HEADS = 32 };
CAIRN_LAYOUT int layout_select_bytes(int pages, int group, int dim) {
    const int most = group < LAYOUT_SELECT_HEADS ? group : LAYOUT_SELECT_HEADS;
    const int parts = most * dim * 8, bins = LAYOUT_SELECT_BINS * 4;
    return (pages + 7) / 8 * 32 + (parts > bins ? parts : bins) + (pages + 31) / 32 * 8 +
           LAYOUT_SELECT_MEETING * 4;
}

/* Of step/select_attend.cu, behind what a step's attention takes: the sums of the warps, as in a chain; what the block
 * is sent of so many runs (step/cluster.cuh), in a cluster of LAYOUT_SELECT_CLUSTER or more; which of up to
 * LAYOUT_SELECT_COUNTED candidates are kept, a word for eight; the selection. */
enum { LAYOUT_SELECT_CLUSTER = 8, LAYOUT_SELECT_COUNTED = 1024 };
CAIRN_LAYOUT int layout_inbox_bytes(int runs, int group, int dim) {
    const int each = (group * dim + LAYOUT_SELECT_CLUSTER - 1) / LAYOUT_SELECT_CLUSTER;
    return 16 + runs * ((each + 3) / 4 * 16 + (group + 1) / 2 * 16);
}
CAIRN_LAYOUT int layout_select_attend_bytes(int pages, int kv_heads, int group, int dim) {
    return layout_step_chain_bytes(group, dim) +
           layout_inbox_bytes(layout_most_runs(kv_heads), group, dim) + LAYOUT_SELECT_COUNTED / 2 +
           layout_select_bytes(pages, group, dim);
}

/* Of attention/attention.cu, where a cluster of so many blocks has a row's runs. */
enum { LAYOUT_ATTEND_CLUSTER = 8 };
CAIRN_LAYOUT int layout_cluster_bytes(int dim) { return layout_inbox_bytes(LAYOUT_ATTEND_CLUSTER, 16, dim); }

#endif

/* forward_cuda_chain: whole attention of steps of many rows, and of few. Usually a block has a run of a row, and
 * the last block of a row merges what all left in memory. Of both kinds below the runs, and so the bits, stay what
 * they are; each is compiled in the background from the first such step on.
 *
 * Many rows (CAIRN_CHAINED in kernels_src/step/attend.cuh): of 32 rows there would be thousands of blocks that begin,
 * meet and end for a few keys each. Then a block takes several runs of a row one after the other, as many as leave a
 * block for each place on the GPU.
 * A row alone: of up to 8 or 16 runs a cluster has them, and merges them without going through memory
 * (kernels_src/step/attend_row.cu); of more, words on their way through memory say themselves that they are there
 * (kernels_src/step/attend_relay.cu). Each is 2 us less a layer or more. The same in the layers of a sparse step that
 * do not select. Few rows of few runs: clusters where each block has a multiprocessor to itself (H200: 2 to 4 rows of a
 * 1B and an 8B 1 to 4 % of a step less than by relay; two blocks on each 5 % more), else relay. */

/* ---- many rows ---- */

/* Blocks that a row at this position takes. */
static int cuda_chained_blocks(const forward_cuda_state *f, int chunks, int position) {
    const int each = layout_chained(chunks, cuda_row_run(f, NULL, position));
    return (cuda_row_runs(f, NULL, position) + each - 1) / each;
}

/* Of the rows in f->stage.words, which see all. A graph holds what is chosen: so few different numbers. */
static step_chain cuda_choose_chain(forward_cuda_state *f, const forward_rule *rule) {
    enum { MOST = 32 }; /* the longest block is to end with the others */
    const int32_t *head = f->stage.words, *positions = head + STEP_HEAD + STEP_POSITION * f->stage.rows;
    const int64_t places = 2 * (int64_t)f->blocks, heads = f->shape->kv_heads * cuda_shares(f->shape);
    const int rows = head[STEP_ROWS];
    step_chain chain = {0, 0};
    int64_t chunks = 0;
    int most = 0;
    if (rows == 1 || rule || f->drafts || head[STEP_GROUPS] != rows || !cuda_may_chain(f)) return chain;
    for (int r = 0; r < rows; r++) chunks += positions[r] / f->chunk + 1;
    chunks = (chunks * heads + places - 1) / places;
    if (chunks > 8) chunks = (chunks + 3) / 4 * 4;
    if (chunks < 2 || !cuda_has_single(f, STEP_SINGLE_CHAIN, false)) return chain;
    chain.chunks = chunks < MOST ? (int)chunks : MOST;
    for (int r = 0; r < rows; r++) {
        const int blocks = cuda_chained_blocks(f, chain.chunks, positions[r]);
        if (blocks > most) most = blocks;
    }
    for (chain.blocks = 1; chain.blocks < most;) chain.blocks *= 2;
    return chain;
}

/* Blocks of each row in this layer at most. */
static int cuda_chain_blocks(const forward_cuda_state *f, int layer) {
    const int window = f->plan->layers[layer].window;
    const int each = window ? layout_chained(f->chain.chunks, cuda_window_run(f, window)) : 1;
    return window ? (cuda_window_runs(f, window) + each - 1) / each : f->chain.blocks;
}

/* ---- few rows ---- */

/* Of one of so many runs: which of the two can be launched by now. */
static step_row_ways cuda_get_row_ways(forward_cuda_state *f, int runs) {
    step_row_ways ways = {false, false};
    if (f->row_most) ways.clusters = cuda_has_single(f, STEP_SINGLE_ROW, false);
    if (f->may_relay && runs > f->row_most) ways.relays = cuda_has_single(f, STEP_SINGLE_RELAY, false);
    return ways;
}

/* Which of a way's graphs the rows in f->stage.words take. One alone: 0 where a cluster of STEP_ROW_CLUSTER has its
 * runs, 1 where one of twice as many has, else 2; several: 0. */
static int cuda_row_length(const forward_cuda_state *f) {
    const int32_t *head = f->stage.words;
    if (head[STEP_ROWS] > 1 || head[STEP_CHUNKS] <= STEP_ROW_CLUSTER) return 0;
    return head[STEP_CHUNKS] <= f->row_most ? 1 : 2;
}

/* Blocks of a cluster that has a row of up to so many runs: one alone is merged the faster the more they are. */
static int cuda_row_cluster(int rows, int runs) {
    int blocks = rows == 1 ? STEP_ROW_CLUSTER : 2;
    while (blocks < runs) blocks *= 2;
    return blocks;
}

/* Whether the runs of so many rows find place in what relay has, those of windows too. */
static bool cuda_fits_relay(const forward_cuda_state *f, int rows, int runs) {
    const int most = runs > f->window_runs ? runs : f->window_runs;
    return rows * most <= layout_most_runs(f->shape->kv_heads) + 1;
}

/* For the rows in f->stage.words, once f->chain is chosen for them; for the layers that do not select where there is a
 * rule, then of a row alone. */
static step_row_ways cuda_choose_row_ways(forward_cuda_state *f, const forward_rule *rule) {
    const int rows = f->stage.words[STEP_ROWS], runs = f->stage.words[STEP_CHUNKS];
    step_row_ways ways = {false, false};
    if (f->adapts || f->drafts || f->wide || f->stage.words[STEP_GROUPS] != rows) return ways;
    if (rule && cuda_selects_all(f, rule)) return ways;
    if (rows == 1) return cuda_get_row_ways(f, runs);
    if (rule || f->chain.chunks || runs == 1) return ways;
    ways.clusters = runs <= f->row_most &&
                    rows * f->shape->kv_heads * cuda_row_cluster(rows, runs) <= f->row_places &&
                    cuda_has_single(f, STEP_SINGLE_ROW, false);
    ways.relays = !ways.clusters && f->may_relay && cuda_fits_relay(f, rows, runs) &&
                  cuda_has_single(f, STEP_SINGLE_RELAY, false);
    return ways;
}

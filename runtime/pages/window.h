/* window: the pages of layers that see a window of tokens alone: a group of kv_groups. Each row of a
 * model's page tables has one in the tables of each group.
 *
 * A row keeps the pages that its next token sees, the one before them (so that the first page kept
 * is full) and WINDOW_SLACK tokens more, and those written since; the rest goes back to the group's
 * pool with each forward. In the table the ids of what is gone are that of the first page kept:
 * kernels read whole tiles and runs, whose keys before the window count for nothing but must be
 * numbers. Room for tokens to come is promised, not taken: as many pages as forwards need at once
 * while those behind the window come back. No more is promised than is free. Calls pages, tables
 * and prefix. */

typedef struct window_row {
    int first;    /* page kept; 0 .. first - 1 are gone */
    int promised; /* pages */
    int end;      /* tokens for which there is room */
} window_row;

typedef struct window_state {
    struct base *base;
    struct kv_cache *kv;
    struct prefix_cache *prefixes; /* may be closed */
    int g;                         /* its group of kv->groups is 1 + g */
    page_tables tables;
    window_row *rows;              /* [tables.requests] */
    int promised;                  /* of all rows */
} window_state;

/* For rows of up to max_pages pages. window_close undoes it, whole or half done. */
static cairn_status window_open(base *b, kv_cache *kv, prefix_cache *prefixes, int g, int requests,
                                int page_size, int max_pages, window_state *w);
static void window_close(window_state *w);
/* The first page of a row that is kept. */
static int window_first(const window_state *w, int row);
/* Pages of the pool that nobody has and that nobody was promised; those that a row would give back. */
static int window_free(const window_state *w);
static int window_own(const window_state *w, int row);
/* Free pages that window_reserve would take, or promise: below 0 where it has more than it needs. */
static int window_need(const window_state *w, int row, int from, int to);
/* The same of window_load. */
static int window_saved(const window_state *w, int tokens);
/* What the prefix cache was lent makes room, until `need` pages are free. */
static void window_make_room(window_state *w, int need);

/* The contract of state.h. */
static int window_reach(const window_state *w, int row, int tokens);
static cairn_status window_reserve(window_state *w, int row, int from, int to);
static void window_extend(window_state *w, int row, int from, int to);
static void window_cut(window_state *w, int row, int tokens);
static cairn_status window_fork(window_state *w, int from, int to, int tokens);
/* An empty row, once it has window_saved pages of its own for so many tokens. */
static cairn_status window_fill(window_state *w, int row, int tokens);
/* An empty row gets pages [what `pages` pages need, pages) of ids, which somebody holds. */
static cairn_status window_hold(window_state *w, int row, const int32_t *ids, int pages);

/* state: what a model remembers of a sequence, besides its ids, so that the next token needs no
 * forward of all before it. Keys and values in pages are one kind, the taps of short convolutions
 * another: an engine drives all kinds of a model as one, by this contract, and knows none of them.
 *
 * A sequence is a row: the number of its row in the model's page tables, which every kind uses. The
 * state of a row stands for its tokens [0, n); a forward moves n on, by the rows it is given.
 *
 * A kind need not be able to go back everywhere: `reach` says how far it can. One that keeps what it
 * was at each page's end, say, answers tokens / page_size * page_size, or `tokens` itself where it
 * still stands there or kept what it was after each row of the last forward (so that rejected
 * drafts cost nothing). The engine asks all kinds before each step (state_reach), goes back to
 * what all can do, and computes the tokens between anew, each as it ran before, as prompt or as
 * step: that gives the very bits of before. So a kind that reaches less is slower, never wrong.
 *
 * Every call does all it is asked or nothing. */

typedef struct state_kind {
    const char *name;
    /* The most tokens, up to `tokens`, that the row's state can be cut to, forked at or saved at. */
    int (*reach)(const void *self, int row, int tokens);
    /* There is room for tokens [from, to), which forwards will compute in order, cut as they like;
     * what stands for [0, from), in its reach, stays. Errors: POOL_FULL and others. */
    cairn_status (*reserve)(void *self, int row, int from, int to);
    /* The next forward computes [from, to), for which there is room: what was behind `from` is
     * void. Cannot fail, allocates nothing. */
    void (*extend)(void *self, int row, int from, int to);
    /* Forgets all but the first `tokens`, which are in its reach; gives back what only others
     * needed. Cannot fail. tokens = 0: the row is empty, as a new one. */
    void (*cut)(void *self, int row, int tokens);
    /* Row `to`, empty, stands for the first `tokens` of row `from`, in its reach. */
    cairn_status (*fork)(void *self, int from, int to, int tokens);
    /* What save writes for so many tokens. */
    size_t (*bytes)(const void *self, int tokens);
    cairn_status (*save)(void *self, int row, int tokens, uint8_t *to);
    /* Row `row`, empty, from what save wrote of `tokens` tokens. Errors: POOL_FULL and others. */
    cairn_status (*load)(void *self, int row, int tokens, const uint8_t *from);
} state_kind;

enum { STATE_KINDS = 4 };

/* All kinds of a model. What `self` points to is their owner's. */
typedef struct sequence_states {
    int count;
    struct { const state_kind *kind; void *self; } parts[STATE_KINDS];
} sequence_states;

/* Of all kinds of a model, before any row has state. */
static void state_add(sequence_states *s, const state_kind *kind, void *self);
/* The contract for all kinds at once, as above. What is in the reach of all: asked again until
 * all agree. */
static int state_reach(const sequence_states *s, int row, int tokens);
static cairn_status state_reserve(sequence_states *s, int row, int from, int to);
static void state_extend(sequence_states *s, int row, int from, int to);
static void state_cut(sequence_states *s, int row, int tokens);
static cairn_status state_fork(sequence_states *s, int from, int to, int tokens);
static size_t state_bytes(const sequence_states *s, int tokens);
static cairn_status state_save(sequence_states *s, int row, int tokens, uint8_t *to);
static cairn_status state_load(sequence_states *s, int row, int tokens, const uint8_t *from);

/* static state_kind kv_state_kind: the first kind: keys and values in the pages of a cache. It
 * reaches every token whose windows' pages are kept. Where a pool is short, prefixes that no session
 * uses make room. */
typedef struct kv_state {
    struct base *base;
    struct kv_cache *kv;
    struct page_tables *tables;
    struct prefix_cache *prefixes; /* may be closed */
    struct window_state *windows;  /* [kv->groups.count] */
} kv_state;

/* What the prefix cache holds and no session uses makes room, until `need` pages are free. */
static void state_kv_make_room(kv_state *s, int need);

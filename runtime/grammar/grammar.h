/* grammar: what a text may say, and so which tokens may come next.
 *
 * gbnf.c compiles a grammar's text to a program over bytes, schema.c a JSON Schema to such a text.
 * grammar.c runs the program: a state is the set of all stacks by which the text so far can be read,
 * and states, once found, are found again by value, with the bytes that lead from one to the next.
 * mask.c asks a state about a whole vocabulary, in the order of the tokens' bytes, so that what tokens
 * begin with alike is read once, and keeps what was compiled, for the sessions of a model that give
 * the same text.
 *
 * Characters are bytes here, so a token may end inside one. Nothing recurses: stacks are nodes that
 * share what lies below them, a rule's last call leaves none. All is bounded; what exceeds a bound is
 * a status. Calls base and tokenizer. [owner thread] */

enum { GRAMMAR_BYTE, GRAMMAR_SPLIT, GRAMMAR_JUMP, GRAMMAR_CALL, GRAMMAR_RETURN };

/* BYTE: one of low to high, then the next op. SPLIT: the next op, and the one `to` further on. JUMP:
 * that one. CALL: rule `to`, then the next op. */
typedef struct grammar_op { uint8_t kind, low, high; int32_t to; } grammar_op;

typedef struct grammar_program {
    grammar_op *ops;
    int32_t *starts; /* of the rules, in ops */
    int op_count, op_room, rule_count, rule_room, root;
} grammar_program;

/* Tokens in the order of their bytes; those that stand for no text are none. */
typedef struct grammar_words {
    const struct tokenizer *t;
    int32_t *ids;     /* [count] */
    uint16_t *shared; /* [count] bytes that the word begins with as the one before does */
    int32_t *path;    /* [longest + 1] states of the word being read */
    int count, longest;
    int32_t vocab;
} grammar_words;

/* A stack: the op that is next, and the stack below. */
typedef struct grammar_node { int32_t at, below, chain; uint32_t seen; } grammar_node;
/* stacks[first, first + count) of the pool, whether the text may end here, and how to find it. */
typedef struct grammar_state { int32_t first, count, chain; bool ends; } grammar_state;
/* A bit for each token, of `state`; last asked for in forward `turn`. */
typedef struct grammar_mask { uint32_t *bits; int32_t state; int64_t turn; bool any; } grammar_mask;

enum { GRAMMAR_BUCKETS = 4096 };

typedef struct grammar {
    struct grammar *next; /* of the shelf */
    int users;
    char *text;
    size_t bytes;
    /* private below */
    grammar_program program;
    uint8_t classes[256]; /* bytes that no op tells apart are of one class */
    int class_count;
    int64_t epoch;        /* counts how often all states were forgotten */
    grammar_node *nodes;
    grammar_state *states; /* the first allows nothing */
    int32_t *pool, *moves; /* stacks of the states; [states, classes] where they lead + 1, or 0 */
    int32_t *work, *found;
    grammar_mask *masks;
    int node_count, node_room, state_count, state_room, pool_count, pool_room, move_room, work_room,
        found_room, mask_count, mask_room;
    uint32_t stamp;
    int32_t node_of[GRAMMAR_BUCKETS], state_of[GRAMMAR_BUCKETS]; /* + 1; 0: none */
} grammar;

/* The grammars of a model. */
typedef struct grammar_shelf { grammar_words words; grammar *first; } grammar_shelf;

/* Where a text is, after `count` of its ids. Starts as all zero. */
typedef struct grammar_place { int64_t epoch; int32_t state; int count; } grammar_place;

/* Takes the grammar of a text, compiled where it is new, off the shelf. */
static cairn_status grammar_take(base *b, grammar_shelf *shelf, const struct tokenizer *t,
                                 const char *text, size_t bytes, grammar **out);
/* The same of the texts that fit a JSON Schema. */
static cairn_status grammar_take_schema(base *b, grammar_shelf *shelf, const struct tokenizer *t,
                                        const char *text, size_t bytes, grammar **out);
/* Puts it back: it stands there until others have taken its place. NULL is ignored. */
static void grammar_give(base *b, grammar_shelf *shelf, grammar *g);
/* Frees all that is on the shelf. */
static void grammar_clear(base *b, grammar_shelf *shelf);

/* Moves *place on to where the text of ids [count] is, from wherever it was in a text that begins so
 * or goes on from it. */
static cairn_status grammar_go(base *b, grammar *g, const grammar_words *w, const int32_t *ids,
                               int count, grammar_place *place);
/* Whether the grammar does not allow the text of a place. */
static bool grammar_is_lost(const grammar_place *place);
/* Whether it is a whole text that nothing can follow. */
static bool grammar_is_done(const grammar *g, const grammar_place *place);
/* The bits [vocab] of the tokens that may come next, end tokens where the text may end; *any: there
 * are some. They stand while forwards are of this turn. place: as the last grammar_go left it. */
static cairn_status grammar_allow(base *b, grammar *g, grammar_words *w,
                                  const grammar_place *place, int64_t turn, const uint32_t **bits,
                                  bool *any);

/* spans: stretches of memory that a call's arguments take, of which no output may share a byte with
 * another. Addresses are numbers here: two blocks of memory have no order in C. */

enum { SPANS = 2 * CAIRN_COLLATE_LAYERS + 24 /* of a call at most */ };

typedef struct spans_item {
    const char *name; /* of the argument */
    uintptr_t begin, end;
    bool out;
    bool in_place; /* an output may begin where this begins: it is the same tensor */
} spans_item;

/* Appends what a checked tensor takes to spans [SPANS]; nothing for one that is NULL or empty. */
static void spans_add(spans_item *spans, int *count, const cairn_tensor *t, const char *name,
                      bool out);
/* Refuses a call two of whose spans overlap, one of them an output. */
static void spans_want_apart(ops_check *c, const spans_item *spans, int count);

/* jdoc: texts of JSON, read in place into one table of nodes: the files beside the weights of a
 * model. The text is not trusted: UTF-8, nesting and every byte are checked, and a fault names the
 * byte. Calls base. */

typedef enum jdoc_kind {
    JDOC_LITERAL, JDOC_NUMBER, JDOC_STRING, JDOC_ARRAY, JDOC_OBJECT
} jdoc_kind;

/* A member of an object is two nodes, its name and its value. */
typedef struct jdoc_node {
    uint32_t kind;
    uint32_t at, bytes; /* of a string without escapes, of a literal or number as it is written */
    uint32_t count;     /* members, elements */
    uint32_t end;       /* the first node behind it and all in it */
} jdoc_node;

typedef struct jdoc {
    const char *name;       /* the caller's, for messages */
    char *text;             /* the caller's, strings unescaped */
    const jdoc_node *nodes; /* the whole is the first */
    base_text held;         /* where they lie */
} jdoc;

/* Reads text [size], which must outlive *out and is changed; nodes are freed by jdoc_close, also
 * after a failure. */
static cairn_status jdoc_parse(base *b, const char *name, char *text, size_t size, jdoc *out);
static void jdoc_close(base *b, jdoc *j);
/* The value of a member, the last of its name; 0: there is none, it is null, or what was asked is no
 * object. Object 0 is the whole. */
static uint32_t jdoc_get(const jdoc *j, uint32_t object, const char *name);
/* Whether a node that jdoc_get found is of the kind; and whether it is a string or a literal of
 * this text. */
static bool jdoc_is(const jdoc *j, uint32_t node, jdoc_kind kind);
static bool jdoc_says(const jdoc *j, uint32_t node, const char *text);
/* The value of a number as JSON writes it, up to 18 of its digits; a locale's decimal point has no say. */
static double jdoc_decimal(const char *at, const char *end);
/* The value of a number; 0 of anything else. */
static double jdoc_value(const jdoc *j, uint32_t node);
/* Whether the node is a whole number from 0 to `most`. */
static bool jdoc_whole(const jdoc *j, uint32_t node, uint64_t most, uint64_t *out);

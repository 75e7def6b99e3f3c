/* ring: what short convolutions keep of a sequence: the inputs of its last tokens in every such
 * layer, each at its position modulo RING_ROWS. The kind of sequence state beside the KV pages.
 *
 * A convolution of W taps reads the W - 1 inputs before a row. The ring holds more than a step
 * writes and those, so that drafts which were not accepted, and short rewinds, cost nothing: what
 * is in the ring at positions [from, end) stands, and what a forward writes at and behind its own
 * first position replaces what was there. A cut to where the ring does not reach back far enough
 * goes to 0, from where the sequence is computed anew. Owns its memory on the device, which a row
 * has while it has tokens. Calls base, device, tables and state. */

enum { RING_ROWS = 32 }; /* at least a step's rows with their drafts, and 7 */

typedef struct ring {
    device *dev;
    int layers, channels, before; /* inputs that a row reads before its own */
    int from;    /* the first position whose input is in the ring; what lies before is not needed
                    at the sequence's start */
    float *rows; /* [layers, RING_ROWS, channels] on the device */
} ring;

/* The rings of all rows of a model's page tables. */
typedef struct ring_states {
    device *dev;
    int layers, channels, taps; /* no layers: no ring has memory */
    const page_tables *tables;  /* whose rows they are beside */
    ring *rows;                 /* [count] */
    int count;
} ring_states;

/* static state_kind ring_state_kind: the kind of sequence state, of ring_states. */

/* Gives back what all rows have. */
static void ring_close_all(ring_states *s);

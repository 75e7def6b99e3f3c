/* ring: what short convolutions keep of a sequence: the inputs of its last tokens in every such
 * layer, each at its position modulo RING_ROWS. The kind of sequence state beside the KV pages.
 *
 * A convolution of W taps reads the W - 1 inputs before a row. The ring holds more than a step
 * writes and those, so that drafts which were not accepted, and short rewinds, cost nothing: what
 * is in the ring at positions [from, end) stands, and what a forward writes at and behind its own
 * first position replaces what was there. A cut to where the ring does not reach back far enough
 * goes to 0, from where the sequence is computed anew. Owns its memory on the device.
 * Calls base and device. */

enum { RING_ROWS = 32 }; /* at least a step's rows with their drafts, and 7 */

typedef struct ring {
    device *dev;
    int layers, channels, before; /* inputs that a row reads before its own */
    int from;    /* the first position whose input is in the ring; what lies before is not needed
                    at the sequence's start */
    float *rows; /* [layers, RING_ROWS, channels] on the device */
} ring;

static size_t ring_bytes(int layers, int channels) {
    return (size_t)layers * RING_ROWS * (size_t)channels * sizeof(float);
}

static void ring_close(ring *r) {
    if (r->rows) device_free(r->dev, r->rows, ring_bytes(r->layers, r->channels));
    memset(r, 0, sizeof *r);
}

/* For convolutions of `taps` taps, at most 8. No layers: nothing is held, and cuts are free. */
static cairn_status ring_open(device *dev, int layers, int channels, int taps, ring *r) {
    void *rows = NULL;
    cairn_status status = CAIRN_OK;
    memset(r, 0, sizeof *r);
    r->dev = dev;
    r->layers = layers;
    r->channels = channels;
    r->before = taps - 1;
    if (layers)
        status = device_alloc(dev, ring_bytes(layers, channels), "the state of convolutions", &rows);
    r->rows = (float *)rows;
    return status;
}

/* How far a cut to `count` tokens goes: `count`, or 0. */
static int ring_cut(const ring *r, int count) {
    return !r->layers || r->from == 0 || count - r->before >= r->from ? count : 0;
}

/* `rows` inputs from position `first` on are about to be written; the sequence ends behind them. */
static void ring_extend(ring *r, int first, int rows) {
    int end = first + rows;
    if (first == 0) r->from = 0;
    if (end - RING_ROWS > r->from) r->from = end - RING_ROWS;
}

/* `to`, of the same shape, becomes like `r`. */
static cairn_status ring_copy(const ring *r, ring *to) {
    to->from = r->from;
    return r->layers ? device_copy(r->dev, to->rows, r->rows, ring_bytes(r->layers, r->channels))
                     : CAIRN_OK;
}

/* Nothing of what the ring holds stands. */
static void ring_forget(ring *r) { r->from = INT_MAX; }

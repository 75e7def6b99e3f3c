/* ring: what short convolutions keep of a sequence. See ring.h. */

static size_t ring_bytes(int layers, int channels) {
    return (size_t)layers * RING_ROWS * (size_t)channels * sizeof(float);
}

/* Also outside the calls that have entered the device, as ring_fork. */
static void ring_close(ring *r) {
    if (r->rows && !device_enter(r->dev)) {
        device_free(r->dev, r->rows, ring_bytes(r->layers, r->channels));
        device_leave(r->dev);
    }
    memset(r, 0, sizeof *r);
}

static ring *ring_of(ring_states *s, int row) { return row < s->count ? &s->rows[row] : NULL; }

static void ring_close_all(ring_states *s) {
    for (int i = 0; i < s->count; i++) ring_close(&s->rows[i]);
    base_delete(s->dev->base, s->rows, (size_t)s->count, sizeof *s->rows);
    s->rows = NULL;
    s->count = 0;
}

/* The row's ring, with memory; as many rings as there are rows. */
static cairn_status ring_make(ring_states *s, int row) {
    size_t bytes = ring_bytes(s->layers, s->channels);
    void *memory = NULL;
    cairn_status status;
    if (row >= s->count) {
        base *b = s->dev->base;
        int count = s->tables->requests;
        ring *more = (ring *)base_realloc(b, s->rows, (size_t)s->count * sizeof *more,
                                          (size_t)count * sizeof *more);
        if (!more) return base_no_memory(b, "the state of convolutions", bytes);
        memset(more + s->count, 0, (size_t)(count - s->count) * sizeof *more);
        s->rows = more;
        s->count = count;
    }
    if (s->rows[row].rows) return CAIRN_OK;
    if ((status = device_alloc(s->dev, bytes, "the state of convolutions", &memory))) return status;
    s->rows[row].dev = s->dev;
    s->rows[row].layers = s->layers;
    s->rows[row].channels = s->channels;
    s->rows[row].before = s->taps - 1;
    s->rows[row].from = 0;
    s->rows[row].rows = (float *)memory;
    return CAIRN_OK;
}

/* ---- a kind of state (state.h) --------------------------------------------------------------- */

/* `tokens`, or where the ring does not reach back so far 0. */
static int ring_reach(const void *self, int row, int tokens) {
    const ring_states *s = (const ring_states *)self;
    const ring *r = row < s->count ? &s->rows[row] : NULL;
    if (!r || !r->rows) return 0;
    return r->from == 0 || tokens - r->before >= r->from ? tokens : 0;
}

static cairn_status ring_reserve(void *self, int row, int from, int to) {
    (void)from, (void)to;
    return ring_make((ring_states *)self, row);
}

/* What is written up to `to` pushes out what is RING_ROWS before it. */
static void ring_extend(void *self, int row, int from, int to) {
    ring *r = &((ring_states *)self)->rows[row];
    if (from == 0) r->from = 0;
    if (to - RING_ROWS > r->from) r->from = to - RING_ROWS;
}

static void ring_cut(void *self, int row, int tokens) {
    ring *r = ring_of((ring_states *)self, row);
    if (r && tokens == 0) ring_close(r);
}

static cairn_status ring_fork(void *self, int from, int to, int tokens) {
    ring_states *s = (ring_states *)self;
    cairn_status status = tokens ? device_enter(s->dev) : CAIRN_OK;
    if (status || !tokens) return status;
    if (!(status = ring_make(s, to))) {
        s->rows[to].from = s->rows[from].from;
        status = device_copy(s->dev, s->rows[to].rows, s->rows[from].rows,
                             ring_bytes(s->layers, s->channels));
    }
    device_leave(s->dev);
    return status;
}

/* A ring is not saved: a sequence that was loaded is computed anew. */
static size_t ring_saved(const void *self, int tokens) {
    (void)self, (void)tokens;
    return 0;
}
static cairn_status ring_save(void *self, int row, int tokens, uint8_t *to) {
    (void)self, (void)row, (void)tokens, (void)to;
    return CAIRN_OK;
}
static cairn_status ring_load(void *self, int row, int tokens, const uint8_t *from) {
    (void)self, (void)row, (void)tokens, (void)from;
    return CAIRN_OK;
}

static const state_kind ring_state_kind = {
    "short convolutions", ring_reach, ring_reserve, ring_extend, ring_cut,
    ring_fork, ring_saved, ring_save, ring_load
};

/* profile: what steps take and give, while it is asked for: scratch->profile is NULL otherwise, and
 * nothing here is called. A forward is looked at when it has ended, before its sessions take it over.
 * Calls base, os. */

enum { PROFILE_LENGTHS = 7 /* bins of a step's length */, PROFILE_PHASES = 4 };

typedef enum profile_phase { PROFILE_PLAN, PROFILE_PROMPT, PROFILE_DECODE, PROFILE_MIXED } profile_phase;

/* A step of rows that decode: how long it took, its length (the rows' lengths before it, reduced), the
 * tokens that came, the rows. */
typedef struct profile_step { int32_t us, length, tokens, rows; } profile_step;

typedef struct profile_sum { int64_t count, rows, us; } profile_sum;

typedef struct engine_profile {
    cairn_profile_options options;
    int requests;      /* that have said a token: of these the first are left out */
    base_text steps;   /* of profile_step */
    base_text firsts;  /* of int32_t: microseconds from a request to its first token */
    int64_t missed;    /* that memory was short for */
    bool keeps_last;   /* the step before was kept */
    int64_t proposed[DRAFTER_MOST], accepted[DRAFTER_MOST];
    profile_sum phases[PROFILE_PHASES];
    int32_t *lengths;  /* [sequences] */
    int places;        /* layers x KV heads */
    os_atomic *heat;   /* [places] pages read by the forward in flight */
    int64_t *pages;    /* [places] by those that were counted */
} engine_profile;

/* ---- figures --------------------------------------------------------------------------------- */

static int profile_compare(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* The nearest rank: sorted[ceil(percent n / 100) - 1], n >= 1. */
static int32_t profile_percentile(const int32_t *sorted, int64_t n, int percent) {
    int64_t rank = (percent * n + 99) / 100;
    return sorted[rank > 0 ? rank - 1 : 0];
}

/* Between two ranks, n >= 1. */
static double profile_quantile(const int32_t *sorted, int n, double q) {
    const double at = q * (n - 1);
    const int low = (int)at;
    const double more = low + 1 < n ? (double)sorted[low + 1] - (double)sorted[low] : 0.0;
    return (double)sorted[low] + (at - low) * more;
}

/* One length for those of all rows, n >= 1, which are sorted; a fraction is left out. */
static int32_t profile_reduce(int32_t *lengths, int n, int32_t how) {
    double sum = 0.0;
    qsort(lengths, (size_t)n, sizeof *lengths, profile_compare);
    for (int i = 0; i < n; i++) sum += (double)lengths[i];
    switch (how) {
    case CAIRN_REDUCE_MAX: return lengths[n - 1];
    case CAIRN_REDUCE_P50: return (int32_t)profile_quantile(lengths, n, 0.5);
    case CAIRN_REDUCE_P90: return (int32_t)profile_quantile(lengths, n, 0.9);
    case CAIRN_REDUCE_SUM: return sum < INT32_MAX ? (int32_t)sum : INT32_MAX;
    default: return (int32_t)(sum / n);
    }
}

/* Bins end below 512, 1024, .. 16384; the last has no end. */
static int profile_bin(int32_t length) {
    int bin = 0;
    while (bin + 1 < PROFILE_LENGTHS && length >= 512 << bin) bin++;
    return bin;
}

/* ---- forwards -------------------------------------------------------------------------------- */

static bool profile_add(cairn_model *m, base_text *list, const void *value, size_t bytes) {
    const bool fits = base_text_add(&m->runtime->base, list, value, bytes);
    m->scratch->profile->missed += !fits;
    return fits;
}

static void profile_add_phase(engine_profile *p, profile_phase phase, int rows, int64_t us) {
    p->phases[phase].count++;
    p->phases[phase].rows += rows;
    p->phases[phase].us += us;
}

/* Whether the part's session is measured; its first token is. */
static bool profile_takes(cairn_model *m, const engine_part *part, int64_t now) {
    engine_profile *p = m->scratch->profile;
    cairn_session *s = part->s;
    if (part->sampled && s->asked_us) {
        const int64_t us = now - s->asked_us;
        const int32_t first = us < INT32_MAX ? (int32_t)us : INT32_MAX;
        s->measured = ++p->requests > p->options.warmup;
        s->asked_us = 0;
        if (s->measured) profile_add(m, &p->firsts, &first, sizeof first);
    }
    return s->measured;
}

/* A row of the step that was taken last is verified: tokens are the drafts that stand, and one more. */
static void profile_accept(engine_profile *p, int drafts, int accepted) {
    profile_step *last = (profile_step *)(void *)(p->steps.data + p->steps.size) - 1;
    for (int i = 0; i < drafts; i++) p->proposed[i]++, p->accepted[i] += i < accepted;
    if (p->keeps_last) last->tokens += accepted + 1;
}

/* The forward in flight has ended, and its sessions are as before it. */
static void profile_take(cairn_model *m) {
    engine_scratch *x = m->scratch;
    engine_profile *p = x->profile;
    const int64_t now = os_now_us();
    profile_step step = {x->flight_us < INT32_MAX ? (int32_t)x->flight_us : INT32_MAX, 0, 0, 0};
    bool prompts = false, decodes = false;
    for (int i = 0; i < x->part_count; i++) {
        const engine_part *part = &x->parts[i];
        const bool decoding = part->kind == FORWARD_STEP && part->sampled;
        decodes |= decoding;
        prompts |= !decoding;
        if (!profile_takes(m, part, now) || !decoding) continue;
        p->lengths[step.rows++] = part->s->count;
    }
    profile_add_phase(p, !decodes ? PROFILE_PROMPT : prompts ? PROFILE_MIXED : PROFILE_DECODE,
                      x->batch.row_count, x->flight_us);
    for (int i = 0; i < p->places; i++) p->pages[i] += step.rows ? os_atomic_load(&p->heat[i]) : 0;
    if (!step.rows) return;
    step.length = profile_reduce(p->lengths, step.rows, p->options.kv_len_reduce);
    p->keeps_last = profile_add(m, &p->steps, &step, sizeof step);
}

/* The counts of pages of the forward that begins. */
static os_atomic *profile_heat(const engine_scratch *x) {
    for (int i = 0; x->profile && i < x->profile->places; i++) os_atomic_store(&x->profile->heat[i], 0);
    return x->profile ? x->profile->heat : NULL;
}

static void profile_free(cairn_model *m) {
    engine_profile *p = m->scratch ? m->scratch->profile : NULL;
    base *b = &m->runtime->base;
    if (!p) return;
    base_text_free(b, &p->steps);
    base_text_free(b, &p->firsts);
    base_delete(b, p->lengths, (size_t)m->scratch->sequences, sizeof *p->lengths);
    base_delete(b, p->heat, (size_t)p->places, sizeof *p->heat);
    base_delete(b, p->pages, (size_t)p->places, sizeof *p->pages);
    base_delete(b, p, 1, sizeof *p);
    m->scratch->profile = NULL;
}

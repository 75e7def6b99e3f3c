/* spans: that no output overlaps another argument. */

static void spans_add(spans_item *spans, int *count, const cairn_tensor *t, const char *name,
                      bool out) {
    const size_t bytes = t && t->data ? tensor_span(t) : 0;
    spans_item *span = &spans[*count];
    if (!bytes) return;
    span->name = name;
    span->begin = (uintptr_t)tensor_data(t);
    span->end = span->begin + bytes;
    span->out = out;
    span->in_place = false;
    ++*count;
}

/* Pointers to the spans by where they begin. Shell's sort: qsort takes longer than all checks. */
static void spans_sort(const spans_item *spans, int count, const spans_item **sorted) {
    static const int gaps[] = {132, 57, 23, 10, 4, 1};
    for (int i = 0; i < count; i++) sorted[i] = &spans[i];
    for (size_t g = 0; g < BASE_COUNT(gaps); g++)
        for (int i = gaps[g], j; i < count; i++) {
            const spans_item *span = sorted[i];
            for (j = i; j >= gaps[g] && sorted[j - gaps[g]]->begin > span->begin; j -= gaps[g])
                sorted[j] = sorted[j - gaps[g]];
            sorted[j] = span;
        }
}

static void spans_refuse(ops_check *c, const spans_item *one, const spans_item *other) {
    const bool first = one->out; /* what is written is named first */
    ops_refuse(c, true, "%s overlaps %s", first ? one->name : other->name,
               first ? other->name : one->name);
}

/* Sorted, each is compared with what reaches furthest among those before it: among all of them and
 * among the outputs. */
static void spans_want_apart(ops_check *c, const spans_item *spans, int count) {
    const spans_item *sorted[SPANS], *furthest = NULL, *furthest_out = NULL;
    spans_sort(spans, count, sorted);
    for (int i = 0; i < count && !c->status; i++) {
        const spans_item *span = sorted[i], *before = span->out ? furthest : furthest_out;
        if (before && span->begin < before->end) spans_refuse(c, span, before);
        if (!furthest || span->end > furthest->end) furthest = span;
        if (span->out && (!furthest_out || span->end > furthest_out->end)) furthest_out = span;
    }
}

/* The few of most ops: each output against all; one in place is its input, from the first byte. */
static void spans_want_few_apart(ops_check *c, const spans_item *spans, int count) {
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count && spans[i].out && !c->status; j++) {
            const spans_item *out = &spans[i], *other = &spans[j];
            if (i == j || out->end <= other->begin || other->end <= out->begin) continue;
            if (other->in_place && out->begin == other->begin) continue;
            ops_refuse(c, true, "%s overlaps %s", out->name, other->name);
        }
}

/* profile_calls: the public calls on profiles and traces, and their texts. See profile.c, device/trace.h. */

static const char *const profile_reduces[] = {"mean", "max", "p50", "p90", "sum"};
static const char *const profile_phases[PROFILE_PHASES] = {"plan", "prompt", "decode", "mixed"};

/* ---- begin and end --------------------------------------------------------------------------- */

static cairn_status profile_new(cairn_model *m, const cairn_profile_options *options) {
    base *b = &m->runtime->base;
    const size_t sequences = (size_t)m->scratch->sequences;
    engine_profile *p = (engine_profile *)base_new(b, 1, sizeof *p);
    if (!p) return base_no_memory(b, "a profile", sizeof *p);
    m->scratch->profile = p;
    p->options = *options;
    p->places = m->shape.layers * m->shape.kv_heads;
    p->lengths = (int32_t *)base_new(b, sequences, sizeof *p->lengths);
    p->heat = (os_atomic *)base_new(b, (size_t)p->places, sizeof *p->heat);
    p->pages = (int64_t *)base_new(b, (size_t)p->places, sizeof *p->pages);
    if (p->lengths && p->heat && p->pages) return CAIRN_OK;
    profile_free(m);
    return base_no_memory(b, "a profile", (size_t)m->shape.layers * sizeof *p->pages);
}

cairn_status cairn_profile_start(cairn_model *model, const cairn_profile_options *options) {
    cairn_profile_options o;
    base *b;
    cairn_status status;
    if (!model) return CAIRN_INVALID_ARGUMENT;
    memset(&o, 0, sizeof o);
    o.warmup = 1;
    b = &model->runtime->base;
    if (options && (status = args_take(b, "profile_start", &o, sizeof o, options))) return status;
    if (o.warmup < 0 || o.kv_len_reduce < 0 || o.kv_len_reduce > CAIRN_REDUCE_SUM)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "profile_start: warmup = %d, kv_len_reduce = %d; 0 or "
                         "more, and 0 to %d are expected", (int)o.warmup, (int)o.kv_len_reduce,
                         CAIRN_REDUCE_SUM);
    if ((status = handles_enter(model->runtime))) return status;
    loop_clear(model);
    profile_free(model);
    for (cairn_session *s = model->sessions; s; s = s->next) s->measured = false, s->asked_us = 0;
    return handles_leave(model->runtime, profile_new(model, &o));
}

cairn_status cairn_profile_stop(cairn_model *model) {
    cairn_status status;
    if (!model) return CAIRN_INVALID_ARGUMENT;
    if ((status = handles_enter(model->runtime))) return status;
    loop_clear(model);
    profile_free(model);
    return handles_leave(model->runtime, CAIRN_OK);
}

/* ---- text ------------------------------------------------------------------------------------ */

typedef struct profile_text {
    base *b;
    base_text out;
    int32_t *sorted; /* of the figures in hand */
    bool fine, markdown;
} profile_text;

/* One of two texts, with the next of `values` in place of each @; null where it is NaN. The decimal point is
 * one in every locale. */
static void profile_put(profile_text *t, const char *json, const char *markdown, const double *values) {
    const char *text = t->markdown ? markdown : json;
    for (size_t n; t->fine; text += n + 1, values++) {
        char number[64];
        n = strcspn(text, "@");
        t->fine = base_text_add(t->b, &t->out, text, n);
        if (!text[n]) return;
        snprintf(number, sizeof number, *values == *values ? "%.3f" : "null", *values);
        base_decimal_point(number);
        if (!strcmp(number + strlen(number) - 4, ".000")) number[strlen(number) - 4] = '\0';
        t->fine = t->fine && base_text_add(t->b, &t->out, number, strlen(number));
    }
}

static void profile_say(profile_text *t, const char *json, const char *markdown) {
    profile_put(t, json, markdown, NULL);
}

/* Mean and percentiles of t->sorted [n]. */
static void profile_put_times(profile_text *t, int64_t n) {
    static const int percents[] = {50, 90, 99};
    double values[] = {NAN, NAN, NAN, NAN}, sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += (double)t->sorted[i];
    if (n) {
        qsort(t->sorted, (size_t)n, sizeof *t->sorted, profile_compare);
        values[0] = sum / (double)n;
        for (int i = 0; i < 3; i++) values[1 + i] = (double)profile_percentile(t->sorted, n, percents[i]);
    }
    profile_put(t, "{\"mean\":@,\"p50\":@,\"p90\":@,\"p99\":@}", " @ | @ | @ | @ |\n", values);
}

/* A line or object of the steps in one bin, or of all (-1). */
static void profile_put_steps(profile_text *t, const engine_profile *p, int bin) {
    const profile_step *steps = (const profile_step *)(const void *)p->steps.data;
    const int64_t count = (int64_t)(p->steps.size / sizeof *steps);
    double tokens = 0.0, rows = 0.0, us = 0.0, values[4];
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++) {
        if (bin >= 0 && profile_bin(steps[i].length) != bin) continue;
        t->sorted[n++] = steps[i].us;
        tokens += steps[i].tokens, rows += steps[i].rows, us += steps[i].us;
    }
    values[0] = (double)n, values[1] = tokens;
    values[2] = n ? tokens / rows : NAN, values[3] = us > 0.0 ? tokens / us * 1e6 : NAN;
    profile_put(t, "\"steps\":@,\"tokens\":@,\"mean_accept\":@,\"tokens_per_second\":@,\"latency_us\":",
                " @ | @ | @ | @ |", values);
    profile_put_times(t, n);
}

static void profile_put_bins(profile_text *t, const engine_profile *p) {
    for (int bin = 0; bin < PROFILE_LENGTHS; bin++) {
        const double values[] = {bin ? 256 << bin : 0, bin + 1 < PROFILE_LENGTHS ? 512 << bin : NAN};
        profile_put(t, bin ? "},\n{\"from\":@,\"to\":@," : "\n{\"from\":@,\"to\":@,", "| @ to @ |", values);
        profile_put_steps(t, p, bin);
    }
    profile_say(t, "}", "");
}

static void profile_put_drafts(profile_text *t, const engine_profile *p) {
    for (int i = 0; i < DRAFTER_MOST && p->proposed[i]; i++) {
        const double proposed = (double)p->proposed[i], accepted = (double)p->accepted[i];
        const double values[] = {i + 1, proposed, accepted, accepted / proposed};
        profile_put(t, &",\n{\"position\":@,\"proposed\":@,\"accepted\":@,\"rate\":@}"[!i],
                    "| @ | @ | @ | @ |\n", values);
    }
}

static void profile_put_phases(profile_text *t, const engine_profile *p) {
    for (int i = 0; i < PROFILE_PHASES; i++) {
        const double values[] = {(double)p->phases[i].count, (double)p->phases[i].rows,
                                 (double)p->phases[i].us};
        profile_say(t, &",\""[!i], "| ");
        profile_say(t, profile_phases[i], profile_phases[i]);
        profile_put(t, "\":{\"count\":@,\"rows\":@,\"us\":@}", " | @ | @ | @ |\n", values);
    }
}

/* Pages read by layer and KV head, a step in the mean; none while there are none. */
static void profile_put_pages(profile_text *t, const engine_profile *p, int heads) {
    const double steps = (double)(p->steps.size / sizeof(profile_step));
    bool any = false;
    for (int i = 0; i < p->places; i++) any |= p->pages[i] > 0;
    if (!any) {
        profile_say(t, "null", "not counted\n");
        return;
    }
    for (int i = 0; i < p->places; i++) {
        const double values[] = {(double)p->pages[i] / steps, i / heads};
        if (i % heads == 0) profile_put(t, i ? "],\n[" : "[\n[", i ? "\n| @ |" : "| @ |", &values[1]);
        profile_put(t, &",@"[i % heads == 0], " @ |", values);
    }
    profile_say(t, "]]", "\n");
}

static void profile_put_firsts(profile_text *t, const engine_profile *p) {
    const size_t bytes = p->firsts.size;
    const double count = (double)(bytes / sizeof *t->sorted);
    if (bytes) memcpy(t->sorted, p->firsts.data, bytes);
    profile_put(t, "{\"count\":@,\"us\":", "| @ |", &count);
    profile_put_times(t, (int64_t)count);
    profile_say(t, "}", "");
}

/* What stands before a part; in Markdown a heading, and that of a table of `columns`. */
static void profile_head(profile_text *t, const char *json, const char *heading, const char *columns) {
    profile_say(t, json, heading);
    profile_say(t, "", columns);
    profile_say(t, "", "\n|");
    for (const char *c = columns + 1; *c; c++)
        if (*c == '|') profile_say(t, "", "---|");
    profile_say(t, "", "\n");
}

#define PROFILE_TIMES " mean us | p50 | p90 | p99 |"

static void profile_print(profile_text *t, const engine_profile *p, int heads) {
    const double first[] = {p->options.warmup, p->requests, (double)p->missed}, *swapped;
    char columns[1024] = "| layer |";
    const double other[] = {p->requests, p->options.warmup};
    const char *reduce = profile_reduces[p->options.kv_len_reduce];
    swapped = t->markdown ? other : first;
    profile_put(t, "{\"warmup\":@,\"requests\":@,\"missed\":@,\"kv_len_reduce\":\"",
                "# Profile\n\n@ requests, the first @ left out; lengths of a step by ", swapped);
    profile_say(t, reduce, reduce);
    profile_head(t, "\",\n", "\n\n## Steps\n\n", "| length | steps | tokens | tokens a row | tokens/s |"
                                                 PROFILE_TIMES);
    profile_say(t, "", "| all |");
    profile_put_steps(t, p, -1);
    if (t->markdown) profile_put_bins(t, p);
    profile_head(t, ",\n\"first_token\":", "\n## First tokens\n\n", "| requests |" PROFILE_TIMES);
    profile_put_firsts(t, p);
    profile_say(t, ",\n\"bins\":[", "");
    if (!t->markdown) profile_put_bins(t, p);
    profile_head(t, "],\n\"acceptance\":[", "\n## Drafts\n\n", "| position | proposed | accepted | rate |");
    profile_put_drafts(t, p);
    profile_head(t, "],\n\"phases\":{", "\n## Phases\n\n", "| phase | count | rows | us |");
    profile_put_phases(t, p);
    for (int i = 0; i < heads && strlen(columns) < sizeof columns - 32; i++)
        snprintf(columns + strlen(columns), 32, " head %d |", i);
    profile_head(t, "},\n\"pages\":", "\n## Pages read\n\n", columns);
    profile_put_pages(t, p, heads);
    profile_say(t, "}\n", "");
}

cairn_status cairn_profile_text(cairn_model *model, cairn_profile_form form, char *text,
                                size_t capacity, size_t *bytes) {
    const engine_profile *p;
    profile_text t;
    size_t most;
    cairn_status status;
    if (!model) return CAIRN_INVALID_ARGUMENT;
    if ((status = handles_enter(model->runtime))) return status;
    memset(&t, 0, sizeof t);
    t.b = &model->runtime->base, t.fine = true, t.markdown = form == CAIRN_PROFILE_MARKDOWN;
    if (!(p = model->scratch->profile) || (unsigned)form > CAIRN_PROFILE_MARKDOWN)
        return handles_leave(model->runtime,
                             base_fail(t.b, CAIRN_INVALID_ARGUMENT, p ? "profile_text: form = %d"
                                       : "profile_text: no profile is taken (form = %d); call "
                                         "profile_start", (int)form));
    most = p->steps.size + p->firsts.size + 1;
    if (!(t.sorted = (int32_t *)base_new(t.b, most, 1))) status = base_no_memory(t.b, "a profile", most);
    else profile_print(&t, p, model->shape.kv_heads);
    if (!status && !t.fine) status = base_no_memory(t.b, "a profile's text", t.out.size);
    if (!status) status = engine_copy_text(t.b, "profile_text", &t.out, text, capacity, bytes);
    base_delete(t.b, t.sorted, most, 1);
    base_text_free(t.b, &t.out);
    return handles_leave(model->runtime, status);
}

/* ---- traces ---------------------------------------------------------------------------------- */

cairn_status cairn_trace_start(cairn_runtime *rt, int32_t events) {
    cairn_status status;
    if (!rt) return CAIRN_INVALID_ARGUMENT;
    if (events < 0 || events > 1 << 24)
        return base_fail(&rt->base, CAIRN_INVALID_ARGUMENT, "trace_start: events = %d; 0 to %d is expected",
                         (int)events, 1 << 24);
    if ((status = handles_enter(rt))) return status;
    return handles_leave(rt, trace_start(&rt->device, events ? events : 65536));
}

cairn_status cairn_trace_stop(cairn_runtime *rt) {
    cairn_status status;
    if (!rt) return CAIRN_INVALID_ARGUMENT;
    if ((status = handles_enter(rt))) return status;
    trace_stop(&rt->device);
    return handles_leave(rt, CAIRN_OK);
}

cairn_status cairn_trace_text(cairn_runtime *rt, char *text, size_t capacity, size_t *bytes) {
    base_text out;
    cairn_status status;
    if (!rt) return CAIRN_INVALID_ARGUMENT;
    if ((status = handles_enter(rt))) return status;
    memset(&out, 0, sizeof out);
    if (!rt->device.trace || (!text && !bytes))
        status = base_fail(&rt->base, CAIRN_INVALID_ARGUMENT,
                           "trace_text: no trace is taken (call trace_start), or text and bytes are NULL");
    else status = trace_print(&rt->device, &out);
    if (!status) status = engine_copy_text(&rt->base, "trace_text", &out, text, capacity, bytes);
    base_text_free(&rt->base, &out);
    return handles_leave(rt, status);
}

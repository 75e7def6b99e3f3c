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
    bool fine;
} profile_text;

/* `text` with a number in place of its @; null where there is none. The decimal point is one in every
 * locale. */
static void profile_put(profile_text *t, const char *text, bool is_there, double value) {
    char number[64];
    snprintf(number, sizeof number, is_there ? "%.3f" : "null", value);
    for (char *c = number; *c; c++)
        if (*c == ',') *c = '.';
    if (!strcmp(number + strlen(number) - 4, ".000")) number[strlen(number) - 4] = '\0';
    t->fine = t->fine && base_text_add(t->b, &t->out, text, strcspn(text, "@")) &&
              base_text_add(t->b, &t->out, number, strlen(number));
    text += strcspn(text, "@");
    if (*text) t->fine = t->fine && base_text_add(t->b, &t->out, text + 1, strlen(text + 1));
}

static void profile_say(profile_text *t, const char *text) {
    t->fine = t->fine && base_text_add(t->b, &t->out, text, strlen(text));
}

/* Mean and percentiles of t->sorted [n]. */
static void profile_put_times(profile_text *t, int64_t n, bool markdown) {
    static const int percents[] = {50, 90, 99};
    double sum = 0.0;
    char name[32];
    for (int64_t i = 0; i < n; i++) sum += (double)t->sorted[i];
    if (n) qsort(t->sorted, (size_t)n, sizeof *t->sorted, profile_compare);
    profile_put(t, markdown ? " @ |" : "{\"mean\":@", n > 0, n ? sum / (double)n : 0.0);
    for (size_t i = 0; i < BASE_COUNT(percents); i++) {
        snprintf(name, sizeof name, markdown ? " @ |" : ",\"p%d\":@", percents[i]);
        profile_put(t, name, n > 0, n ? (double)profile_percentile(t->sorted, n, percents[i]) : 0.0);
    }
    profile_say(t, markdown ? "\n" : "}");
}

/* A line or object of the steps in one bin, or of all (-1). */
static void profile_put_steps(profile_text *t, const engine_profile *p, int bin, bool markdown) {
    const profile_step *steps = (const profile_step *)(const void *)p->steps.data;
    const int64_t count = (int64_t)(p->steps.size / sizeof *steps);
    double tokens = 0.0, rows = 0.0, us = 0.0;
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++) {
        if (bin >= 0 && profile_bin(steps[i].length) != bin) continue;
        t->sorted[n++] = steps[i].us;
        tokens += steps[i].tokens, rows += steps[i].rows, us += steps[i].us;
    }
    profile_put(t, markdown ? " @ |" : "\"steps\":@", true, (double)n);
    profile_put(t, markdown ? " @ |" : ",\"tokens\":@", true, tokens);
    profile_put(t, markdown ? " @ |" : ",\"mean_accept\":@", n > 0, n ? tokens / rows : 0.0);
    profile_put(t, markdown ? " @ |" : ",\"tokens_per_second\":@", us > 0.0, us > 0.0 ? tokens / us * 1e6
                                                                                      : 0.0);
    if (!markdown) profile_say(t, ",\"latency_us\":");
    profile_put_times(t, n, markdown);
}

static void profile_put_bins(profile_text *t, const engine_profile *p, bool markdown) {
    for (int bin = 0; bin < PROFILE_LENGTHS; bin++) {
        const double from = bin ? 256 << bin : 0, to = 512 << bin;
        profile_put(t, markdown ? "| @ to" : bin ? ",\n{\"from\":@" : "\n{\"from\":@", true, from);
        profile_put(t, markdown ? " @ |" : ",\"to\":@,", bin + 1 < PROFILE_LENGTHS, to);
        profile_put_steps(t, p, bin, markdown);
        if (!markdown) profile_say(t, "}");
    }
}

static void profile_put_drafts(profile_text *t, const engine_profile *p, bool markdown) {
    for (int i = 0; i < DRAFTER_MOST && p->proposed[i]; i++) {
        const double proposed = (double)p->proposed[i], accepted = (double)p->accepted[i];
        profile_put(t, markdown ? "| @ |" : i ? ",\n{\"position\":@" : "\n{\"position\":@", true, i + 1);
        profile_put(t, markdown ? " @ |" : ",\"proposed\":@", true, proposed);
        profile_put(t, markdown ? " @ |" : ",\"accepted\":@", true, accepted);
        profile_put(t, markdown ? " @ |\n" : ",\"rate\":@}", true, accepted / proposed);
    }
}

static void profile_put_phases(profile_text *t, const engine_profile *p, bool markdown) {
    for (int i = 0; i < PROFILE_PHASES; i++) {
        profile_say(t, markdown ? "| " : i ? ",\"" : "\"");
        profile_say(t, profile_phases[i]);
        profile_put(t, markdown ? " | @ |" : "\":{\"count\":@", true, (double)p->phases[i].count);
        profile_put(t, markdown ? " @ |" : ",\"rows\":@", true, (double)p->phases[i].rows);
        profile_put(t, markdown ? " @ |\n" : ",\"us\":@}", true, (double)p->phases[i].us);
    }
}

/* Pages read by layer and KV head, a step in the mean; none where the backend does not count them. */
static void profile_put_pages(profile_text *t, const engine_profile *p, int heads, bool markdown) {
    const double steps = (double)(p->steps.size / sizeof(profile_step));
    bool any = false;
    for (int i = 0; i < p->places; i++) any |= p->pages[i] > 0;
    if (!any) {
        profile_say(t, markdown ? "not counted\n" : "null");
        return;
    }
    if (!markdown) profile_say(t, "[");
    for (int i = 0; i < p->places; i++) {
        if (i % heads == 0 && markdown) profile_put(t, "| @ |", true, i / heads);
        else if (i % heads == 0) profile_say(t, i ? ",\n[" : "\n[");
        profile_put(t, markdown ? " @ |" : i % heads ? ",@" : "@", true, (double)p->pages[i] / steps);
        if (i % heads == heads - 1) profile_say(t, markdown ? "\n" : "]");
    }
    if (!markdown) profile_say(t, "]");
}

static void profile_put_firsts(profile_text *t, const engine_profile *p, bool markdown) {
    const size_t bytes = p->firsts.size;
    if (bytes) memcpy(t->sorted, p->firsts.data, bytes);
    profile_put(t, markdown ? "| @ |" : "{\"count\":@,\"us\":", true, (double)(bytes / sizeof *t->sorted));
    profile_put_times(t, (int64_t)(bytes / sizeof *t->sorted), markdown);
    if (!markdown) profile_say(t, "}");
}

static void profile_put_json(profile_text *t, const engine_profile *p, int heads) {
    profile_put(t, "{\"warmup\":@", true, p->options.warmup);
    profile_put(t, ",\"requests\":@", true, p->requests);
    profile_put(t, ",\"missed\":@,\"kv_len_reduce\":\"", true, (double)p->missed);
    profile_say(t, profile_reduces[p->options.kv_len_reduce]);
    profile_say(t, "\",\n");
    profile_put_steps(t, p, -1, false);
    profile_say(t, ",\n\"first_token\":");
    profile_put_firsts(t, p, false);
    profile_say(t, ",\n\"bins\":[");
    profile_put_bins(t, p, false);
    profile_say(t, "],\n\"acceptance\":[");
    profile_put_drafts(t, p, false);
    profile_say(t, "],\n\"phases\":{");
    profile_put_phases(t, p, false);
    profile_say(t, "},\n\"pages\":");
    profile_put_pages(t, p, heads, false);
    profile_say(t, "}\n");
}

/* A heading, and that of a table of `columns`. */
static void profile_head(profile_text *t, const char *heading, const char *columns) {
    profile_say(t, heading);
    profile_say(t, columns);
    profile_say(t, "\n|");
    for (const char *c = columns + 1; *c; c++)
        if (*c == '|') profile_say(t, "---|");
    profile_say(t, "\n");
}

#define PROFILE_TIMES " mean us | p50 | p90 | p99 |"

static void profile_put_markdown(profile_text *t, const engine_profile *p, int heads) {
    char columns[1024] = "| layer |";
    profile_put(t, "# Profile\n\n@ requests", true, p->requests);
    profile_put(t, ", the first @ left out; lengths of a step by ", true, p->options.warmup);
    profile_say(t, profile_reduces[p->options.kv_len_reduce]);
    profile_head(t, "\n\n## Steps\n\n", "| length | steps | tokens | tokens a row | tokens/s |"
                                        PROFILE_TIMES);
    profile_say(t, "| all |");
    profile_put_steps(t, p, -1, true);
    profile_put_bins(t, p, true);
    profile_head(t, "\n## First tokens\n\n", "| requests |" PROFILE_TIMES);
    profile_put_firsts(t, p, true);
    profile_head(t, "\n## Drafts\n\n", "| position | proposed | accepted | rate |");
    profile_put_drafts(t, p, true);
    profile_head(t, "\n## Phases\n\n", "| phase | count | rows | us |");
    profile_put_phases(t, p, true);
    for (int i = 0; i < heads && strlen(columns) < sizeof columns - 32; i++)
        snprintf(columns + strlen(columns), 32, " head %d |", i);
    profile_head(t, "\n## Pages read\n\n", columns);
    profile_put_pages(t, p, heads, true);
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
    t.b = &model->runtime->base, t.fine = true;
    if (!(p = model->scratch->profile) || (unsigned)form > CAIRN_PROFILE_MARKDOWN)
        return handles_leave(model->runtime,
                             base_fail(t.b, CAIRN_INVALID_ARGUMENT, p ? "profile_text: form = %d"
                                       : "profile_text: no profile is taken (form = %d); call "
                                         "profile_start", (int)form));
    most = p->steps.size + p->firsts.size + 1;
    if (!(t.sorted = (int32_t *)base_new(t.b, most, 1))) status = base_no_memory(t.b, "a profile", most);
    else if (form == CAIRN_PROFILE_JSON) profile_put_json(&t, p, model->shape.kv_heads);
    else profile_put_markdown(&t, p, model->shape.kv_heads);
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

/* sample_rows: the next tokens of rows of logits, each by parameters, a seed and a position of its
 * own. The op, the engine and verification draw here, and nowhere else is it decided who draws: on
 * the GPU any row by a kernel, but one with biases or a penalty and everything on the CPU by
 * sample_token. What decides is the row's own parameters, never who
 * shares the call. Logits are only read. Calls sample, device and ops. */

enum { OPS_SAMPLE_BINS = 2048, OPS_SAMPLE_BLOCK = 1024 };
/* sample_few: greedy, or top_k first and at most so many. */
enum { OPS_FEW_TOP_K = 128, OPS_FEW_BLOCK = 512, OPS_FEW_TILE = 8192, OPS_FEW_PARTS = 32,
       OPS_FEW_SHARED = 41616, OPS_FEW_LIST = 4096 };
/* sample_wide: the rest. */
enum { OPS_WIDE_BLOCK = 512, OPS_WIDE_SHARED = 25264, OPS_WIDE_HELD = 16384, OPS_WIDE_STEP = 128 };

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t sample_seen_bytes(int vocab) { return ((size_t)vocab + 63) / 8; }

static size_t sample_space_bytes(int vocab) {
    return (size_t)vocab * sizeof(float) + sample_scratch_bytes(vocab) + sample_seen_bytes(vocab);
}

static void sample_space_place(void *memory, int vocab, sample_space *x) {
    memset(x, 0, sizeof *x);
    x->vocab = vocab;
    x->row = (float *)memory;
    x->scratch = x->row + vocab;
    x->seen = (uint8_t *)x->scratch + sample_scratch_bytes(vocab);
}

static size_t sample_mask_words(int vocab) { return ((size_t)vocab + 31) / 32; }

static void sample_space_add_rules(sample_space *x, int rows, sample_rule *host, void *on_device,
                                   uint32_t *masks) {
    x->rows = rows;
    x->rules = host;
    x->device_rules = on_device;
    x->device_masks = masks;
}

/* ---- who draws ------------------------------------------------------------------------------- */

/* Whether sample/few.cu is for these: the rest takes several passes over a row. */
static bool sample_is_few(const sample_params *p, int64_t vocab) {
    if (p->temperature <= 0.0f) return true;
    return p->top_k > 0 && p->top_k <= OPS_FEW_TOP_K && p->top_k < vocab && !p->top_p_first;
}

typedef enum sample_place { SAMPLE_BEST, SAMPLE_FEW, SAMPLE_WIDE, SAMPLE_HOST } sample_place;

/* Where a row whose logits are on the GPU is drawn; SAMPLE_BEST: whoever made the logits knows the
 * best of them already. */
static sample_place sample_place_of(const sample_ask *ask, int vocab) {
    if (ask->params.repetition_penalty != 1.0f && ask->history_count) return SAMPLE_HOST;
    if (ask->bias_count) return SAMPLE_HOST;
    if (ask->params.temperature <= 0.0f) return ask->mask ? SAMPLE_FEW : SAMPLE_BEST;
    return sample_is_few(&ask->params, vocab) ? SAMPLE_FEW : SAMPLE_WIDE;
}

/* Whether a row's mask, if it has one, lets a token be drawn. */
static bool sample_may(const uint32_t *mask, int32_t id) {
    return !mask || mask[id / 32] >> id % 32 & 1;
}

/* The lowest token that may be drawn: what a row gives of which no logit is above -inf. */
static int32_t sample_first(const uint32_t *mask, int vocab) {
    int32_t id = 0;
    while (id < vocab && !sample_may(mask, id)) id++;
    return id < vocab ? id : 0;
}

/* Whether a logit of those that may be drawn is a number: the first is, as a rule. */
static bool sample_has_number(const float *logits, const uint32_t *mask, int vocab) {
    int32_t id = 0;
    while (id < vocab && !(sample_may(mask, id) && logits[id] == logits[id])) id++;
    return id < vocab;
}

/* ---- on the host ----------------------------------------------------------------------------- */

static bool sample_has_penalty(const sample_ask *ask) {
    return ask->params.repetition_penalty != 1.0f && ask->history_count;
}

/* The row by the ask's biases, penalty and mask: `logits` itself where there are none. */
static const float *sample_adjust(sample_space *x, const sample_ask *ask, const float *logits) {
    if (logits != x->row && (ask->mask || ask->bias_count || sample_has_penalty(ask))) {
        memcpy(x->row, logits, (size_t)x->vocab * sizeof *logits);
        logits = x->row;
    }
    for (int i = 0; i < ask->bias_count; i++) x->row[ask->bias[i].id] += ask->bias[i].bias;
    if (sample_has_penalty(ask))
        sample_penalize(x->row, x->vocab, ask->history, ask->history_count,
                        ask->params.repetition_penalty, x->seen);
    for (int32_t id = 0; id < x->vocab && ask->mask; id++)
        if (!sample_may(ask->mask, id)) x->row[id] = -INFINITY;
    return logits;
}

static int32_t sample_ask_host(sample_space *x, const sample_ask *ask, const float *logits) {
    int32_t token;
    logits = sample_adjust(x, ask, logits);
    token = sample_token(&ask->params, logits, x->vocab, ask->position, x->scratch);
    if (!(logits[token] > -INFINITY) && !sample_has_number(logits, ask->mask, x->vocab))
        return CAIRN_SAMPLE_NO_NUMBER;
    return sample_may(ask->mask, token) ? token : sample_first(ask->mask, x->vocab);
}

/* What is said in place of a token that the ask swaps: one that its mask allows, or the token. */
static int32_t sample_swapped(const sample_ask *ask, int32_t token) {
    const sample_swap *swap = ask->swap;
    float draw, keep;
    int at = 0;
    int32_t to;
    while (swap && at < swap->from_count && swap->from[at] != token) at++;
    if (!swap || at == swap->from_count || !swap->to_count) return token;
    sample_uniforms(ask->params.seed, ask->position, &draw, &keep);
    to = swap->to[(int)(keep * (float)swap->to_count)];
    return sample_may(ask->mask, to) ? to : token;
}

/* Whether row i is not wanted: see sample_ask. Rows that nothing is drawn from may lie before it: a
 * landmark's. */
static bool sample_is_moot(const sample_ask *const *asks, const int32_t *out, int i) {
    int before = i - 1;
    while (before >= 0 && !asks[before]) before--;
    return asks[i]->chained && before >= 0 && out[before] != asks[before]->expected;
}

static void sample_row_host(sample_space *x, const float *logits, const sample_ask *const *asks,
                            int i, int32_t *out) {
    out[i] = -1;
    if (sample_is_moot(asks, out, i)) return;
    out[i] = sample_swapped(asks[i], sample_ask_host(x, asks[i], logits));
    if (asks[i]->logprobs && out[i] >= 0)
        sample_logprobs_row(logits, x->vocab, out[i], asks[i]->best, asks[i]->logprobs);
}

/* ---- on the GPU ------------------------------------------------------------------------------ */

/* A kernel of the sampler; by_row: in the form that reads masks and parameters of rows. */
static ops_kernel sample_kernel(const char *source, const char *entry, bool by_row) {
    ops_kernel want;
    memset(&want, 0, sizeof want);
    want.source = source;
    want.entry = entry;
    want.constants[0].name = "MASKS";
    want.constants[0].value = 1;
    want.constant_count = by_row;
    return want;
}

static cairn_status sample_prepare(cairn_runtime *rt, const sample_params *params, int vocab,
                                   bool masks) {
    ops_kernel few = sample_kernel("sample/few.cu", "sample_few", true);
    ops_kernel wide = sample_kernel("sample/wide.cu", "sample_wide", masks);
    const bool is_few = sample_is_few(params, vocab);
    jit_request request;
    jit_program *program;
    cairn_status status = CAIRN_OK;
    if (!rt->device.cuda) return CAIRN_OK;
    if (masks && is_few) return ops_prepare(rt, &few, OPS_FEW_SHARED);
    if (masks) return ops_prepare(rt, &wide, OPS_WIDE_SHARED);
    memset(&request, 0, sizeof request);
    request.source = wide.source;
    if (!is_few) status = ops_ask_program(rt, &request, &program);
    return status == CAIRN_BUSY ? CAIRN_OK : status;
}

/* A row's blocks meet in a flag; what they hand on lies in the workspace. p->top_k: the largest of
 * all rows'; drawn: whether any row draws. */
static cairn_status sample_launch_few(cairn_runtime *rt, sample_kernel_params *p, bool drawn,
                                      unsigned seen_bytes, int64_t rows) {
    device_dims dims = {{0, 0, 1}, OPS_FEW_BLOCK, 0, 0, false};
    unsigned parts = ((unsigned)p->vocab + OPS_FEW_TILE - 1) / OPS_FEW_TILE;
    unsigned most = (unsigned)p->top_k * 3 / 2 + 16; /* of a part's candidates, as a rule */
    void *flags = NULL, *memory = NULL;
    ops_kernel want;
    cairn_status status = handles_enter(rt);
    if (status) return status;
    if ((int64_t)parts * rows > 2 * rt->device.sm_count) /* as many blocks as run at once */
        parts = (unsigned)(2 * rt->device.sm_count / rows);
    if (parts > OPS_FEW_PARTS) parts = OPS_FEW_PARTS;
    if (drawn && parts * most > OPS_FEW_LIST) parts = OPS_FEW_LIST / most;
    if (parts < 1) parts = 1;
    status = device_flags(&rt->device, (size_t)rows * 4, "sample", &flags);
    if (!status)
        status = device_scratch(&rt->device, (size_t)rows * parts * sizeof(sample_part), "sample",
                             &memory);
    if ((status = handles_leave(rt, status))) return status;
    p->arrived = (uint32_t *)flags;
    p->parts = (sample_part *)memory;
    dims.grid[0] = parts;
    dims.grid[1] = (unsigned)rows;
    dims.shared_bytes = OPS_FEW_SHARED + seen_bytes;
    want = sample_kernel("sample/few.cu", "sample_few", p->masks != NULL);
    return ops_launch_as(rt, &want, &dims, p);
}

/* Blocks of a row, which are a cluster: as many as run at once, and so many that a slice's scores are
 * held, where clusters of any size may be. */
static unsigned sample_wide_parts(const device *dev, int64_t vocab, int64_t rows) {
    const unsigned most = dev->arch / 10 != 12 && rows <= 4 ? 16 : 8; /* more than 8: not everywhere */
    unsigned parts = 1;
    if (dev->arch < 90) return 1;
    while (parts < most && (vocab > (int64_t)parts * OPS_WIDE_HELD ||
                            (vocab > (int64_t)parts * 4096 && rows * parts <= dev->sm_count)))
        parts *= 2;
    return parts;
}

static unsigned sample_wide_shared(unsigned vocab, unsigned parts, bool history) {
    unsigned slice = (vocab + parts - 1) / parts;
    slice = (slice + OPS_WIDE_STEP - 1) / OPS_WIDE_STEP * OPS_WIDE_STEP;
    return OPS_WIDE_SHARED + (slice < OPS_WIDE_HELD ? slice : OPS_WIDE_HELD) * 4 +
           (history ? slice / 8 : 0);
}

static cairn_status sample_launch_wide(cairn_runtime *rt, sample_kernel_params *p, bool by_row,
                                       int64_t rows) {
    device_dims dims = {{0, 1, 1}, OPS_WIDE_BLOCK, 0, 0, false};
    ops_kernel want = sample_kernel("sample/wide.cu", "sample_wide", by_row);
    dims.cluster = sample_wide_parts(&rt->device, p->vocab, rows);
    dims.grid[0] = (unsigned)rows * dims.cluster;
    dims.shared_bytes = sample_wide_shared((unsigned)p->vocab, dims.cluster, p->history != NULL);
    return ops_launch_as(rt, &want, &dims, p);
}

/* The kernels of one call: of rows that few tokens can be next of, and of the rest. */
typedef struct sample_calls { sample_kernel_params few, wide; int few_rows, wide_rows; } sample_calls;

static bool sample_is_drawn(const sample_ask *ask, int vocab) {
    return sample_place_of(ask, vocab) != SAMPLE_HOST && !ask->swap && !ask->logprobs;
}

static bool sample_takes_best(const sample_ask *ask, int vocab) {
    return sample_place_of(ask, vocab) == SAMPLE_BEST;
}

/* The rule of every row, and what the launches need of them all. */
static void sample_fill_rules(const sample_space *x, const sample_ask *const *asks, int rows,
                              sample_calls *calls) {
    for (int i = 0; i < rows; i++) {
        const sample_params *from = asks[i] ? &asks[i]->params : NULL;
        const sample_place place = from ? sample_place_of(asks[i], x->vocab) : SAMPLE_HOST;
        sample_rule *to = &x->rules[i];
        memset(to, 0, sizeof *to);
        to->skip = CAIRN_SAMPLE_SKIP;
        if (place != SAMPLE_FEW && place != SAMPLE_WIDE) continue;
        if (asks[i]->mask) (place == SAMPLE_FEW ? &calls->few : &calls->wide)->masks = x->device_masks;
        to->seed = (int64_t)from->seed;
        to->position = (int32_t)asks[i]->position;
        to->top_k = from->top_k, to->temperature = from->temperature;
        to->top_p = from->top_p, to->min_p = from->min_p;
        calls->few_rows += place == SAMPLE_FEW, calls->wide_rows += place == SAMPLE_WIDE;
        if (place == SAMPLE_WIDE)
            to->skip |= CAIRN_SAMPLE_WIDE | (asks[i]->mask ? 0 : CAIRN_SAMPLE_UNMASKED) |
                        (from->top_p_first ? CAIRN_SAMPLE_TOP_P_FIRST : 0);
        else if (to->skip = 0, to->top_k > calls->few.top_k)
            calls->few.top_k = to->top_k;
    }
    for (int i = 0; i < rows && calls->few.masks; i++)
        if (!x->rules[i].skip && !asks[i]->mask) x->rules[i].skip = CAIRN_SAMPLE_UNMASKED;
}

/* The masks of the rows that a kernel draws. */
static cairn_status sample_upload_masks(device *dev, const sample_space *x,
                                        const sample_ask *const *asks, int rows) {
    const size_t words = sample_mask_words(x->vocab);
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < rows && !status; i++)
        if (asks[i] && asks[i]->mask && x->rules[i].skip != CAIRN_SAMPLE_SKIP)
            status = device_upload(dev, x->device_masks + (size_t)i * words, asks[i]->mask,
                                   words * sizeof *x->device_masks);
    return status;
}

static void sample_begin_params(sample_kernel_params *p, const sample_space *x, const float *logits,
                                int32_t *tokens) {
    p->logits = logits;
    p->tokens = tokens;
    p->vocab = x->vocab;
    p->temperature = p->top_p = p->repetition_penalty = 1.0f;
    p->rules = (const sample_rule *)x->device_rules;
}

static cairn_status sample_rows_begin(cairn_runtime *rt, sample_space *x, const float *logits,
                                      const sample_ask *const *asks, int rows, int32_t *tokens) {
    sample_calls calls;
    cairn_status status;
    memset(&calls, 0, sizeof calls);
    sample_fill_rules(x, asks, rows, &calls);
    if (!calls.few_rows && !calls.wide_rows) return CAIRN_OK;
    sample_begin_params(&calls.few, x, logits, tokens);
    sample_begin_params(&calls.wide, x, logits, tokens);
    status = device_upload(&rt->device, x->device_rules, x->rules, (size_t)rows * sizeof *x->rules);
    if (!status) status = sample_upload_masks(&rt->device, x, asks, rows);
    if (!status && calls.few_rows) status = sample_launch_few(rt, &calls.few, true, 0, rows);
    if (!status && calls.wide_rows)
        status = sample_launch_wide(rt, &calls.wide, calls.wide.masks != NULL, rows);
    return status;
}

/* Row i's logits to x->row. */
static cairn_status sample_fetch(cairn_runtime *rt, const sample_space *x, const float *logits, int i) {
    return device_download(&rt->device, x->row, logits + (size_t)i * (size_t)x->vocab,
                           (size_t)x->vocab * sizeof *logits);
}

static cairn_status sample_rows_end(cairn_runtime *rt, sample_space *x, const float *logits,
                                    const sample_ask *const *asks, int rows, int32_t *out) {
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < rows && !status; i++) {
        const sample_ask *ask = asks[i];
        bool host = ask && sample_place_of(ask, x->vocab) == SAMPLE_HOST;
        if (!ask || (!host && !ask->swap && !ask->logprobs)) continue;
        if (sample_is_moot(asks, out, i)) {
            out[i] = -1;
            continue;
        }
        if (host && (status = sample_fetch(rt, x, logits, i))) break;
        out[i] = sample_swapped(ask, host ? sample_ask_host(x, ask, x->row) : out[i]);
        if (!ask->logprobs || out[i] < 0 || (status = sample_fetch(rt, x, logits, i))) continue;
        sample_logprobs_row(x->row, x->vocab, out[i], ask->best, ask->logprobs);
    }
    return status;
}

/* pace: how many tokens to draft from masks or by a model, by what is accepted and what rows cost.
 *
 * A step that verifies d drafts and has k masks behind each of its tokens runs (d + 1) (k + 1) rows, and
 * the sampler head k times; where a backend has a number of rows from which on they cost more, the last
 * token has so many masks fewer, if one is left. What pays best in the long run is d = k; where nothing
 * does, the next steps are plain ones. The pace keeps an account in plain steps of what drafting saved and
 * lost: once more is lost than it may be, it rests, and what plain steps add to the account lets it try
 * again now and then. So generation never takes noticeably longer than without drafts, whatever is drafted.
 * Calls nothing. */

enum { PACE_BUCKETS = 16 /* powers of two of rows, as the engine measures them */ };

/* In plain steps. */
typedef struct pace_costs {
    double rows[PACE_BUCKETS]; /* a forward of 2^i rows and more; 0: unknown */
    double row;                /* one more row, where that is unknown */
    double head;               /* one token of the sampler head, or of a model that drafts */
    int few;                   /* rows from which on more cost more; 0: there is no such number */
    bool apart;                /* by such a model: there are no rows of masks */
} pace_costs;

typedef struct pace {
    float rates[DRAFTER_MOST]; /* how likely the draft at a place is right, given those before it */
    double saved;              /* plain steps; below 0: it rests */
} pace;

#define PACE_PRIOR 0.8f  /* before anything was learnt */
#define PACE_LEARN 0.1f  /* of a rate, by each draft that was tried */
#define PACE_FIRST 1.5   /* of a new session's account */
#define PACE_MOST 6.0    /* that may be lost again */
#define PACE_TRIAL 0.5   /* with it a trial is made */
#define PACE_GRANT 0.009 /* to the account by each token, up to a trial */

static void pace_clear(pace *p) {
    for (int i = 0; i < DRAFTER_MOST; i++) p->rates[i] = PACE_PRIOR;
    p->saved = PACE_FIRST;
}

/* What a forward of so many rows costs. */
static double pace_rows(const pace_costs *c, int rows) {
    int at = 0;
    while (at + 1 < PACE_BUCKETS && 2 << at <= rows) at++;
    return c->rows[at] > 0.0 ? c->rows[at] : 1.0 + c->row * (rows - 1);
}

/* Masks that the last token has fewer, so that the rows are few. */
static int pace_short(const pace_costs *c, int drafts, int masks) {
    const int over = (drafts + 1) * (masks + 1) - c->few;
    return c->few && !c->apart && over > 0 && over < masks ? over : 0;
}

static double pace_step(const pace_costs *c, int drafts, int masks) {
    const int rows = (drafts + 1) * (c->apart ? 1 : masks + 1) - pace_short(c, drafts, masks);
    return pace_rows(c, rows) + c->head * masks;
}

/* Tokens of a step with so many drafts, where so many fewer follow one whose drafts all hold; no place is
 * likelier than those before it. */
static double pace_tokens(const pace *p, int drafts, int short_by) {
    double tokens = 1.0, power = 1.0, last = 0.0;
    float rate = 1.0f;
    for (int i = 0; i < drafts; i++) {
        rate = p->rates[i] < rate ? p->rates[i] : rate;
        power *= (double)rate;
        tokens += power;
        if (i >= drafts - short_by) last += power;
    }
    return tokens - power * last;
}

/* The count up to `most` with most tokens for what the step costs; ahead: with as many masks. */
static int pace_best(const pace *p, const pace_costs *c, int most, bool ahead) {
    double best = 1.0;
    int count = 0;
    for (int i = 1; i <= most; i++) {
        const double cost = pace_step(c, i, ahead ? i : 0);
        const double value = pace_tokens(p, i, ahead ? pace_short(c, i, i) : 0) / cost;
        if (value > best) best = value, count = i;
    }
    return count;
}

/* Masks behind each token of the next step, up to `most`, and how many of *drafts to verify. */
static int pace_next(const pace *p, const pace_costs *c, int most, int *drafts) {
    int masks = p->saved >= 0.0 ? pace_best(p, c, most, true) : 0;
    if (!masks && p->saved >= PACE_TRIAL && most > 0) masks = 1;
    if (*drafts > masks) {
        const int alone = masks ? masks : pace_best(p, c, *drafts, false);
        *drafts = alone > 1 ? alone : 1; /* of what a trial drafted one is verified: it teaches */
    }
    return masks;
}

/* A step verified `drafts`, of which the first `accepted` were right, and had so many masks. */
static void pace_learn(pace *p, const pace_costs *c, int drafts, int accepted, int masks) {
    for (int i = 0; i < drafts && i <= accepted; i++)
        p->rates[i] += PACE_LEARN * ((i < accepted ? 1.0f : 0.0f) - p->rates[i]);
    if (p->saved < PACE_TRIAL) p->saved += PACE_GRANT * (accepted + 1);
    p->saved += accepted + 1 - pace_step(c, drafts, masks);
    if (p->saved > PACE_MOST) p->saved = PACE_MOST;
}

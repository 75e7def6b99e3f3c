/* drafter: guesses the next tokens from the sequence itself (prompt lookup).
 *
 * The longest suffix of the sequence that occurred before is looked up, and what followed it then
 * is proposed now; past the end the proposal copies itself, so that a loop is followed at once. An
 * index over all 1-, 2- and 3-token groups, kept up to date token by token, makes a proposal cost
 * the same at any length. A proposal never changes what is generated, only how fast. Calls base.
 *
 * It proposes as many as make most tokens per time, by what rows cost here and by the acceptance
 * learnt for matches of that length. So a text that copies is drafted to the full, and one that does
 * not is left alone after a few tries, but for one now and then.
 *
 * Invariant: groups that end at positions [0, indexed) are in the chains, in ascending order, so
 * that taking the last ones out again is exact. */

enum {
    DRAFTER_GROUPS = 3,  /* tokens in the longest indexed group */
    DRAFTER_LOOKS = 48,  /* earlier places compared per proposal */
    DRAFTER_REACH = 32,  /* tokens compared backward at most */
    DRAFTER_CLASSES = 4, /* of match lengths, each with an acceptance of its own */
    DRAFTER_MOST = 16    /* tokens in a proposal */
};

typedef struct drafter {
    int capacity, bits, indexed;
    int32_t *heads;    /* [GROUPS][1 << bits]: latest end of a group with this hash, -1 none */
    int32_t *previous; /* [GROUPS][capacity]: the end before this one in the same chain */
    float rates[DRAFTER_CLASSES]; /* how likely a proposed token is right, given those before it */
    int shift;         /* tokens between the last proposal's place and what it copied; 0: none */
    int match_class;   /* of the last proposal, for drafter_learn */
} drafter;

/* Before anything was learnt. */
static const float drafter_prior[DRAFTER_CLASSES] = {0.35f, 0.55f, 0.75f, 0.9f};
#define DRAFTER_LEARN 0.12f /* of a rate, by each token that was tried */
#define DRAFTER_FORGET 0.02f /* back to the first, by each proposal not worth its while: ask again */
#define DRAFTER_SURE 0.8f /* rate of a copy that goes on behind a token of its own */

static int drafter_class(int match) { return match < 2 ? 0 : match < 3 ? 1 : match < 8 ? 2 : 3; }

static void drafter_close(base *b, drafter *d) {
    base_delete(b, d->heads, (size_t)DRAFTER_GROUPS << d->bits, sizeof *d->heads);
    base_delete(b, d->previous, (size_t)DRAFTER_GROUPS * (size_t)d->capacity,
                sizeof *d->previous);
    memset(d, 0, sizeof *d);
}

static void drafter_clear(drafter *d) {
    d->indexed = d->shift = 0;
    memcpy(d->rates, drafter_prior, sizeof d->rates);
    if (d->heads) memset(d->heads, 0xff, ((size_t)DRAFTER_GROUPS << d->bits) * sizeof *d->heads);
}

/* For sequences of up to `capacity` tokens. */
static cairn_status drafter_open(base *b, int capacity, drafter *d) {
    memset(d, 0, sizeof *d);
    d->capacity = capacity;
    d->bits = 8;
    while (d->bits < 20 && 1 << d->bits < capacity) d->bits++;
    d->heads = (int32_t *)base_new(b, (size_t)DRAFTER_GROUPS << d->bits, sizeof *d->heads);
    d->previous = (int32_t *)base_new(b, (size_t)DRAFTER_GROUPS * (size_t)capacity,
                                      sizeof *d->previous);
    if (!d->heads || !d->previous) {
        drafter_close(b, d);
        return base_no_memory(b, "the drafter", (size_t)capacity * DRAFTER_GROUPS * 4);
    }
    drafter_clear(d);
    return CAIRN_OK;
}

/* The chain of the group of n tokens that ends at `end`. */
static int32_t *drafter_head(const drafter *d, const int32_t *tokens, int end, int n) {
    uint64_t hash = 0;
    for (int i = 0; i < n; i++)
        hash = (hash + (uint32_t)tokens[end - i] + 1) * 0x9E3779B97F4A7C15ull;
    return d->heads + ((size_t)(n - 1) << d->bits) + (size_t)(hash >> (64 - d->bits));
}

static int32_t *drafter_link(const drafter *d, int end, int n) {
    return d->previous + (size_t)(n - 1) * (size_t)d->capacity + (size_t)end;
}

static void drafter_index(drafter *d, const int32_t *tokens, int count) {
    for (; d->indexed < count; d->indexed++)
        for (int n = 1; n <= DRAFTER_GROUPS && n <= d->indexed + 1; n++) {
            int32_t *head = drafter_head(d, tokens, d->indexed, n);
            *drafter_link(d, d->indexed, n) = *head;
            *head = d->indexed;
        }
}

/* Forgets all but the first `count` tokens; `tokens` still holds those that were indexed. */
static void drafter_truncate(drafter *d, const int32_t *tokens, int count) {
    while (d->indexed > count) {
        d->indexed--;
        for (int n = 1; n <= DRAFTER_GROUPS && n <= d->indexed + 1; n++)
            *drafter_head(d, tokens, d->indexed, n) = *drafter_link(d, d->indexed, n);
    }
}

/* Equal tokens before and at a and c, a < c. */
static int drafter_match(const int32_t *tokens, int a, int c) {
    int length = 0;
    while (length < DRAFTER_REACH && length <= a && tokens[a - length] == tokens[c - length])
        length++;
    return length;
}

/* The best earlier occurrence of the sequence's suffix so far. */
typedef struct drafter_found { int at, match, distance; } drafter_found;

/* Longer is better; among equals what is nearest to `expected`, where the copy would go on. */
static void drafter_consider(const int32_t *tokens, int last, int at, int expected,
                             drafter_found *best) {
    int match = drafter_match(tokens, at, last);
    int distance = at < expected ? expected - at : at - expected;
    if (match < best->match || (match == best->match && distance >= best->distance)) return;
    best->at = at;
    best->match = match;
    best->distance = distance;
}

/* The end of the longest earlier occurrence of the sequence's suffix, or -1; *match is its length.
 * After an edit the copy is expected to go on where it was. */
static int drafter_find(const drafter *d, const int32_t *tokens, int count, int *match) {
    int last = count - 1, expected = d->shift ? last - d->shift : 0;
    drafter_found best = {-1, 0, INT_MAX};
    if (expected >= 0 && d->shift) drafter_consider(tokens, last, expected, expected, &best);
    for (int n = DRAFTER_GROUPS; n >= 1 && best.match < n; n--) {
        int32_t at = n <= count ? *drafter_head(d, tokens, last, n) : -1;
        for (int looks = 0; at >= 0 && looks < DRAFTER_LOOKS; looks++) {
            drafter_consider(tokens, last, at, expected, &best);
            at = *drafter_link(d, at, n);
        }
    }
    *match = best.match;
    return best.match ? best.at : -1;
}

/* The count, up to `limit`, that makes most tokens per time when each extra row of a forward costs
 * `row_cost` of a plain step. */
static int drafter_worth(float rate, float row_cost, int limit) {
    float tokens = 1.0f, power = 1.0f, best = 1.0f;
    int worth = 0;
    for (int i = 1; i <= limit; i++) {
        power *= rate;
        tokens += power;
        if (tokens / (1.0f + row_cost * (float)i) > best) {
            best = tokens / (1.0f + row_cost * (float)i);
            worth = i;
        }
    }
    return worth;
}

/* How many tokens to propose after a match of class d->match_class. */
static int drafter_length(drafter *d, int limit, float row_cost) {
    float *rate = &d->rates[d->match_class];
    int worth = drafter_worth(*rate, row_cost, limit < DRAFTER_MOST ? limit : DRAFTER_MOST);
    if (!worth) *rate += DRAFTER_FORGET * (drafter_prior[d->match_class] - *rate);
    return worth;
}

/* Up to `limit` (at most DRAFTER_MOST) tokens that may follow tokens[0, count), when each extra row
 * of a forward costs `row_cost` of a plain step. */
static int drafter_propose(drafter *d, const int32_t *tokens, int count, int limit,
                           float row_cost, int32_t *out) {
    int match, from, length;
    if (count < 2 || limit < 1) return 0;
    drafter_index(d, tokens, count - 1);
    from = drafter_find(d, tokens, count, &match);
    if (from < 0 && d->shift && d->rates[DRAFTER_CLASSES - 1] > DRAFTER_SURE && d->shift < count)
        from = count - 1 - d->shift; /* a word was replaced: behind it the copy goes on */
    if (from < 0) return 0;
    d->match_class = drafter_class(match);
    d->shift = count - 1 - from;
    length = drafter_length(d, limit, row_cost);
    for (int i = 0; i < length; i++) {
        int at = from + 1 + i;
        out[i] = at < count ? tokens[at] : out[at - count];
    }
    return length;
}

/* Of the last proposal's `proposed` tokens the first `accepted` were right. */
static void drafter_learn(drafter *d, int proposed, int accepted) {
    float *rate = &d->rates[d->match_class];
    int tried = accepted < proposed ? accepted + 1 : proposed;
    for (int i = 0; i < tried; i++)
        *rate += DRAFTER_LEARN * ((i < accepted ? 0.98f : 0.0f) - *rate);
}

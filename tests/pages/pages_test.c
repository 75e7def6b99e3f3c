/* pages, drafter: the pool against a naive one under random use; the index of the drafter against
 * a search of the whole sequence, also after cuts. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "tap.h"

static uint64_t random_state;
static uint32_t rnd(uint32_t below) {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(random_state >> 33) % below;
}

/* ---- pool ------------------------------------------------------------------------------------ */

/* One random operation on the pool and on plain counts; whether they agree. A mistake (a page that
 * is free, out of range, or given back too often) must change nothing. */
static bool pool_step(base *b, page_pool *p, int *held, int pages) {
    int32_t ids[64];
    int count = (int)rnd(12), kind = (int)rnd(3), free_pages = 0, have = 0, before[64];
    bool wrong = false;
    cairn_status status;
    for (int i = 0; i < pages; i++) free_pages += !held[i];
    if (free_pages != p->free_count) return false;
    if (kind == 0) {
        bool taken = pages_take(p, count, ids);
        if (taken != (count <= free_pages)) return false;
        for (int i = 0; taken && i < count; i++) {
            if (ids[i] < 0 || ids[i] >= pages || held[ids[i]]) return false;
            held[ids[i]] = 1;
        }
        return true;
    }
    memcpy(before, held, sizeof before);
    for (int i = 0; i < count; i++) {
        int32_t id = (int32_t)rnd((uint32_t)pages + 2) - 1;
        bool bad = id < 0 || id >= pages || !held[id];
        if (bad && rnd(6)) continue; /* mostly ids in use, often twice */
        ids[have++] = id;
        wrong = wrong || bad;
        if (!bad) held[id] += kind == 1 ? 1 : -1;
    }
    status = kind == 1 ? pages_retain(b, p, ids, have) : pages_give(b, p, ids, have);
    if (wrong) memcpy(held, before, sizeof before);
    return status == (wrong ? CAIRN_INVALID_ARGUMENT : CAIRN_OK);
}

static void test_pool(base *b) {
    static const int sizes[] = {1, 3, 17, 50};
    for (size_t k = 0; k < BASE_COUNT(sizes); k++) {
        int held[64] = {0};
        page_pool p;
        int good = 0;
        pages_open(b, sizes[k], &p);
        for (int i = 0; i < 20000; i++) {
            bool same = pool_step(b, &p, held, sizes[k]);
            for (int j = 0; j < sizes[k]; j++) same = same && p.references[j] == held[j];
            good += same;
        }
        tap_ok(good == 20000, "%d pages: %d of 20000 random operations as the naive pool", sizes[k],
               good);
        pages_close(b, &p);
    }
}

static void test_pool_names(base *b) {
    int32_t ids[3], out_of_range = 3;
    page_pool p;
    pages_open(b, 3, &p);
    tap_ok(pages_take(&p, 2, ids) && !pages_take(&p, 2, ids), "a pool of 3: 2 taken, 2 more not");
    tap_ok(!pages_retain(b, &p, ids, 1) && pages_shared(&p, ids[0]) && !pages_shared(&p, ids[1]),
           "a retained page is shared");
    ids[2] = ids[1];
    tap_ok(pages_give(b, &p, ids, 3) == CAIRN_INVALID_ARGUMENT && p.free_count == 1 &&
           strstr(b->error, "page 1 is not in use"), "freed twice: %s", b->error);
    tap_ok(pages_retain(b, &p, &out_of_range, 1) == CAIRN_INVALID_ARGUMENT &&
           strstr(b->error, "page 3 is outside"), "%s", b->error);
    ids[2] = ids[0];
    tap_ok(!pages_give(b, &p, ids, 3) && p.free_count == 3, "all references given, all free");
    pages_close(b, &p);
}

/* ---- drafter --------------------------------------------------------------------------------- */

/* The longest earlier occurrence of the suffix, up to DRAFTER_REACH, by looking everywhere. */
static int naive_longest(const int32_t *tokens, int count) {
    int best = 0;
    for (int end = 0; end < count - 1; end++) {
        int n = 0;
        while (n < DRAFTER_REACH && n <= end && tokens[end - n] == tokens[count - 1 - n]) n++;
        if (n > best) best = n;
    }
    return best;
}

static bool check_find(const drafter *d, const int32_t *tokens, int count, int alphabet) {
    int longest = naive_longest(tokens, count), match;
    int from = drafter_find(d, tokens, count, &match);
    if (from < 0) return longest == 0;
    for (int i = 0; i < match; i++)
        if (tokens[from - i] != tokens[count - 1 - i]) return false;
    /* with few repeats the longest is found; three tokens where a copy goes on are enough */
    return from < count - 1 && match >= 1 && (alphabet < 50 || match >= 3 || match == longest);
}

static void test_drafter(base *b) {
    enum { CAPACITY = 600 };
    int good = 0, runs = 300;
    for (int run = 0; run < runs; run++) {
        int32_t tokens[CAPACITY + DRAFTER_MOST], out[DRAFTER_MOST];
        int alphabet = run % 2 ? 60 : 4, count = 0;
        bool fine = true;
        drafter d;
        drafter_open(b, CAPACITY, &d);
        while (count < CAPACITY && fine) {
            int from = count > 20 ? (int)rnd((uint32_t)count - 10) : 0;
            if (rnd(8) == 0 && count > 30) {
                count -= (int)rnd(20);
                drafter_truncate(&d, tokens, count);
            }
            for (int i = (int)rnd(12); i >= 0 && count < CAPACITY; i--, count++)
                tokens[count] = rnd(3) && count > 20 ? tokens[from++]
                                                     : (int32_t)rnd((uint32_t)alphabet);
            drafter_index(&d, tokens, count - 1);
            fine = count < 2 || check_find(&d, tokens, count, alphabet);
            drafter_propose(&d, tokens, count, 4, 0.1f, out);
        }
        good += fine;
        drafter_close(b, &d);
    }
    tap_ok(good == runs, "%d of %d sequences, grown and cut: matches as by full search", good, runs);
}

/* A text that the model copies exactly: tokens per step with d drafts. */
static double copied(base *b, int source, int d_length, float row_cost) {
    enum { MOST = 2000 };
    int32_t tokens[MOST + DRAFTER_MOST];
    int count = source, end = 2 * source, forwards = 0;
    drafter d;
    drafter_open(b, MOST, &d);
    for (int i = 0; i < source; i++) tokens[i] = tokens[source + i] = (int32_t)rnd(5000);
    count = source + 1;
    while (count < end) {
        int32_t out[DRAFTER_MOST];
        int n = drafter_propose(&d, tokens, count, d_length, row_cost, out), good = 0;
        while (good < n && count + good < end && out[good] == tokens[count + good]) good++;
        if (n) drafter_learn(&d, n, good);
        count += good + 1;
        forwards++;
    }
    drafter_close(b, &d);
    return (double)(source - 1) / forwards;
}

static void test_copying(base *b) {
    int32_t loop[40], out[DRAFTER_MOST];
    drafter d;
    double four = copied(b, 500, 4, 0.1f), ten = copied(b, 500, 10, 0.1f);
    tap_ok(four > 4.7 && ten > 9.0, "a copied text: %.2f tokens a step with 4 drafts, %.2f with 10",
           four, ten);
    drafter_open(b, 64, &d);
    for (int i = 0; i < 40; i++) loop[i] = i % 3;
    tap_ok(drafter_propose(&d, loop, 40, 10, 0.05f, out) == 10 && out[0] == 1 && out[9] == 1 &&
           out[4] == 2, "a loop is followed past the end of the sequence");
    for (int i = 0; i < 400; i++) drafter_learn(&d, 4, 0);
    tap_ok(drafter_propose(&d, loop, 40, 10, 0.3f, out) == 0, "refused often: nothing");
    for (int i = 0; i < 2000 && !drafter_propose(&d, loop, 40, 10, 0.3f, out); i++) {}
    tap_ok(drafter_propose(&d, loop, 40, 10, 0.3f, out) > 0, "but some day again");
    drafter_close(b, &d);
}

/* Prompt lookup as transformers does it: the earliest earlier place of the last 2 tokens, else of
 * the last one; up to `limit` tokens that follow it. */
static int naive_lookup(const int32_t *tokens, int count, int limit, int32_t *out) {
    for (int n = 2; n >= 1; n--)
        for (int at = 0; at + n < count; at++) {
            int have = 0;
            if (memcmp(tokens + at, tokens + count - n, (size_t)n * sizeof *tokens) != 0) continue;
            for (int i = at + n; i < count && have < limit; i++) out[have++] = tokens[i];
            return have;
        }
    return 0;
}

/* Forwards to say tokens[prompt, end) with drafts of the drafter, or of prompt lookup (NULL); *price
 * grows by what they cost in plain steps, a draft 0.05. */
static int steps_for(drafter *d, const int32_t *tokens, int prompt, int end, int limit,
                     double *price) {
    int steps = 0;
    for (int count = prompt; count < end; steps++) {
        int32_t out[DRAFTER_MOST];
        int most = limit < end - count ? limit : end - count, good = 0, n;
        n = d ? drafter_propose(d, tokens, count, most, 0.05f, out)
              : naive_lookup(tokens, count, most, out);
        while (good < n && count + good < end && out[good] == tokens[count + good]) good++;
        if (d && n) drafter_learn(d, n, good);
        *price += 1 + 0.05 * n;
        count += good + 1;
    }
    return steps;
}

/* Texts that copy a source with edits: words replaced, dropped and put in. The drafter drafts no further
 * than pays, so that it may take a few more steps, and costs less. */
static void test_against_lookup(base *b) {
    enum { SOURCE = 300, MOST = 2 * SOURCE + 100 };
    for (int limit = 4; limit <= 10; limit += 6) {
        int ours = 0, theirs = 0, said = 0;
        double price = 0, looked = 0;
        for (int run = 0; run < 60; run++) {
            int32_t tokens[MOST + DRAFTER_MOST];
            int count = SOURCE, edit = (int)rnd(40) + 8, words = run % 2 ? 60 : 800;
            drafter d;
            for (int i = 0; i < SOURCE; i++) tokens[i] = (int32_t)rnd((uint32_t)words);
            for (int from = 0; from < SOURCE && count < MOST; from++) {
                uint32_t kind = rnd((uint32_t)edit);
                if (kind == 0) tokens[count++] = (int32_t)rnd((uint32_t)words);
                else if (kind > 1) tokens[count++] = tokens[from];
            }
            drafter_open(b, MOST, &d);
            ours += steps_for(&d, tokens, SOURCE, count, limit, &price);
            theirs += steps_for(NULL, tokens, SOURCE, count, limit, &looked);
            said += count - SOURCE;
            drafter_close(b, &d);
        }
        tap_ok(price <= looked && ours <= 1.05 * theirs,
               "edited copies, %d drafts: %.2f tokens a step for %.3f, prompt lookup %.2f for %.3f",
               limit, (double)said / ours, price / said, (double)said / theirs, looked / said);
    }
}

int main(void) {
    uint64_t seed = random_seed();
    base b;
    random_state = seed;
    base_init(&b, NULL, NULL, NULL, CAIRN_LOG_OFF);
    test_pool(&b);
    test_pool_names(&b);
    test_drafter(&b);
    test_copying(&b);
    test_against_lookup(&b);
    return tap_done();
}

/* drafter: what it costs and saves, counted in plain steps on made-up texts, for rows of several costs:
 * never more than plain decoding by much, and hardly more than prompt lookup (the latest place where the
 * last three, two or one tokens stood before) on texts that copy, edit, or fill in records. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "tap.h"

enum { REACH = 1600 };
static uint64_t seed;
static int below(int n) { return (int)(random_next(&seed) % (uint64_t)n); }

typedef struct text { const char *name; int prompt, count; int32_t ids[REACH]; } text;

static void add(text *t, int32_t id) { if (t->count < REACH) t->ids[t->count++] = id; }

/* Words by a law like that of words: few are frequent. */
static int32_t word(void) { int a = 1 + below(40), b = 1 + below(40); return a * b % 997; }

/* each: of how many tokens one is another one than in the prompt; 0: none. */
static void make_copy(text *t, int each) {
    t->name = each ? "edit" : "copy", t->count = 0;
    for (int i = 0; i < 300; i++) add(t, word());
    t->prompt = t->count;
    for (int i = 0; i < 300; i++) add(t, each && below(each) == 0 ? 2000 + below(500) : t->ids[i]);
}

static void make_records(text *t) {
    t->name = "records", t->count = 0;
    for (int i = 0; i < 40; i++) {
        if (i == 3) t->prompt = t->count;
        for (int j = 0; j < 16; j++) add(t, j % 5 == 2 ? 3000 + below(300) : 1000 + j);
    }
}

/* Every so often some words of before come again: what is copied is mostly wrong. */
static void make_chat(text *t) {
    t->name = "chat", t->count = 0;
    while (t->count < 900) {
        int from = t->count > 60 ? below(t->count - 30) : 0, copied = t->count > 60 ? 1 + below(3) : 0;
        for (int i = 0; i < copied; i++) add(t, t->ids[from + i]);
        for (int i = 3 + below(9); i > 0; i--) add(t, word());
    }
    t->prompt = 100;
}

static int lookup(const int32_t *ids, int count, int limit, int32_t *out) {
    int found = 0;
    for (int n = 3; n >= 1 && !found; n--)
        for (int at = count - 2; at >= n - 1 && !found; at--) {
            bool same = true;
            for (int j = 0; j < n; j++) same = same && ids[at - j] == ids[count - 1 - j];
            for (int i = at + 1; same && found < limit && i < count; i++) out[found++] = ids[i];
        }
    return found;
}

typedef struct score { double steps; int forwards, proposed, accepted; } score;

/* The text decoded by forwards of 1 + k rows. */
static score decode(const text *t, double cost, int limit, bool plain_lookup) {
    base b;
    drafter d;
    score s = {0, 0, 0, 0};
    cairn_allocator none;
    memset(&none, 0, sizeof none);
    base_init(&b, &none, NULL, NULL, CAIRN_LOG_OFF);
    if (drafter_open(&b, REACH, &d)) return s;
    for (int at = t->prompt + 1; at < t->count; s.forwards++) {
        int32_t out[DRAFTER_MOST];
        int room = t->count - at - 1, most = limit < room ? limit : room, k, a = 0;
        k = plain_lookup ? lookup(t->ids, at, most, out)
                         : drafter_propose(&d, t->ids, at, most, (float)cost, out);
        if (k > most) tap_note("%d are proposed, %d are allowed", k, most), s.steps += 1e9;
        while (a < k && t->ids[at + a] == out[a]) a++;
        if (k && !plain_lookup) drafter_learn(&d, k, a);
        s.steps += 1 + cost * k, s.proposed += k, s.accepted += a, at += a + 1;
    }
    drafter_close(&b, &d);
    return s;
}

static void make(text *t, int which) {
    if (which < 2) make_copy(t, which * 12);
    else if (which == 2) make_records(t);
    else make_chat(t);
}

/* Of several texts of each kind, for the luck of one says little. */
static void test_texts(double cost, int limit) {
    enum { TEXTS = 6 };
    static text t;
    for (int i = 0; i < 4; i++) {
        score own = {0, 0, 0, 0};
        double lookup_steps = 0, plain = 0;
        for (int j = 0; j < TEXTS; j++) {
            score s;
            make(&t, i);
            s = decode(&t, cost, limit, false);
            own.steps += s.steps, own.accepted += s.accepted, own.proposed += s.proposed;
            lookup_steps += decode(&t, cost, limit, true).steps, plain += t.count - t.prompt - 1;
        }
        tap_note("%s, row cost %.2f, %d at most: %.3f of plain steps (%d of %d accepted), lookup %.3f", t.name, cost,
                 limit, own.steps / plain, own.accepted, own.proposed, lookup_steps / plain);
        tap_ok(own.steps <= plain * 1.02 + 4, "%s at row cost %.2f, %d at most, is no slower than without",
               t.name, cost, limit);
        tap_ok(i == 3 || own.steps <= lookup_steps * (cost < 0.3 ? 1.09 : 1.12) + 3,
               "and no slower than prompt lookup");
    }
}

int main(void) {
    static const double costs[] = {0.02, 0.1, 0.26, 0.5, 1.0};
    seed = random_seed();
    for (size_t i = 0; i < BASE_COUNT(costs); i++)
        for (int limit = 1; limit <= 16; limit *= 4) test_texts(costs[i], limit);
    return tap_done();
}

/* pace: how many tokens are drafted from masks, in simulated generations: drafts hold with given chances,
 * rows cost what a table says. Never below 0.98 of plain decoding, and where drafts pay nearly as fast as
 * the best length would be, which a plain sum finds; then after a change of mind. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "tap.h"

enum { LIMIT = 8 };

static uint64_t state;

static double chance(void) { return (double)(random_next(&state) >> 11) * 0x1p-53; }

/* What is true, and the engine measures; from `few` rows on a step costs half as much again. */
typedef struct world { double rate, fall, row, head; int few; } world;

static double rows_cost(const world *w, int rows) {
    return 1.0 + w->row * (rows - 1) + (w->few && rows > w->few ? 0.5 : 0.0);
}

/* The rate of plain decoding times this is what always drafting k gives. */
static double of_length(const world *w, int k) {
    double tokens = 1.0, power = 1.0, rate = w->rate;
    for (int i = 0; i < k; i++, rate *= w->fall) power *= rate, tokens += power;
    return tokens / (rows_cost(w, (k + 1) * (k + 1)) + w->head * k);
}

/* Goes on for so many tokens; returns what they cost in plain steps. */
static double generate(const world *w, pace *p, pace_costs *c, int tokens) {
    double cost = 0.0;
    int ahead = 0;
    c->head = w->head, c->row = w->row, c->few = w->few;
    for (int made = 0; made < tokens;) {
        double rate = w->rate;
        int drafts = ahead, accepted = 0, bucket = 0, masks = pace_next(p, c, LIMIT, &drafts), rows, fewer;
        if (drafts > ahead || masks > LIMIT) return 1e9;
        for (; accepted < drafts && chance() < rate; rate *= w->fall) accepted++;
        fewer = pace_short(c, drafts, masks);
        if (fewer && (fewer >= masks || !c->few)) return 1e9;
        rows = (drafts + 1) * (masks + 1) - fewer;
        cost += rows_cost(w, rows) + masks * w->head;
        while (2 << bucket <= rows) bucket++;
        c->rows[bucket] = rows_cost(w, rows);
        pace_learn(p, c, drafts, accepted, masks);
        made += accepted + 1;
        ahead = masks - (accepted == drafts ? fewer : 0);
    }
    return cost;
}

int main(void) {
    static const double rates[] = {0, 0.3, 0.6, 0.8, 0.95}, rows[] = {0.005, 0.02, 0.06, 0.3, 1.0};
    enum { SAID = 400 };
    pace p;
    pace_costs c;
    state = random_seed();
    for (size_t i = 0; i < BASE_COUNT(rates); i++)
        for (size_t j = 0; j < BASE_COUNT(rows); j++) {
            const world w = {rates[i], 0.95, rows[j], 0.05, j % 2 ? 8 : 0};
            double worst = 1e9, mean = 0.0, best = 1.0;
            for (int k = 1; k <= LIMIT; k++) best = of_length(&w, k) > best ? of_length(&w, k) : best;
            for (int run = 0; run < 40; run++) {
                memset(&c, 0, sizeof c);
                pace_clear(&p);
                const double speed = SAID / generate(&w, &p, &c, SAID);
                worst = speed < worst ? speed : worst, mean += speed / 40;
            }
            tap_ok(worst >= 0.98 && mean >= 0.88 * best, "rate %.2f, a row %.3f: %.3f of plain at "
                   "least, %.2f in the mean; the best length %.2f", rates[i], rows[j], worst, mean,
                   best);
        }
    const world good = {0.9, 1.0, 0.02, 0.05, 0}, bad = {0.1, 1.0, 0.1, 0.05, 0};
    memset(&c, 0, sizeof c);
    pace_clear(&p);
    const double spent = generate(&good, &p, &c, 300);
    memset(&c, 0, sizeof c);
    const double lost = generate(&bad, &p, &c, 300);
    memset(&c, 0, sizeof c);
    generate(&good, &p, &c, 1500);
    const double again = generate(&good, &p, &c, 300);
    tap_ok(spent < 200 && lost < 300 / 0.97 && again < 200, "300 tokens that draft well take %.0f "
           "plain steps, then such that do not %.0f, then well again %.0f", spent, lost, again);
    return tap_done();
}

/* A sweep of one top-k kernel over adversarial rows, lengths and starts, in both orders, against a
 * sort; for the tests of topk*.cu. */
#include "simt.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

enum { GUARD = 8, KINDS = 14 };

static float score(int kind, int i, int n) {
    static float equal, walk;
    if (i == 0) equal = simt::random_u32() % 2 ? 1.0f : simt::random_u32() % 2 ? INFINITY : -INFINITY;
    switch (kind) {
    case 0: return simt::random_normal();
    case 1: return equal;
    case 2: return (float)-i;
    case 3: return (float)(simt::random_u32() % 5);
    case 4: {
        static const float specials[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-40f, -1e-40f};
        return specials[simt::random_u32() % 7];
    }
    case 5: return (float)i;
    case 6: return (i & 127) < 32 ? 9.0f + (float)(i & 31) : simt::random_normal();
    case 7: return simt::random_u32() % 10 ? -INFINITY : simt::random_normal();
    case 8: return std::ldexp(simt::random_normal(), (int)(simt::random_u32() % 250) - 125);
    case 9: return walk = i == 0 ? 0.0f : walk + 0.05f * simt::random_normal();
    case 10: return std::exp(3.0f * simt::random_normal());
    case 11: return (i / 64 % 7 == 3 ? 5.0f : 0.0f) + simt::random_normal(); /* hot pages */
    case 12: return i * 20 < n * 17 ? 1.0f : 5.0f + simt::random_normal(); /* of 14000 more than 2048, in one block */
    default: return 1.0f + 1e-6f * (float)(simt::random_u32() % 100);
    }
}

static float truncate_bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if (x != x) return x;
    bits &= 0xffff0000u;
    std::memcpy(&x, &bits, 4);
    return x;
}

static std::vector<int32_t> oracle(const float *row, int length, int k, bool by_score,
                                   bool finite_only) {
    std::vector<int32_t> order;
    for (int i = 0; i < length; i++)
        if (!finite_only || row[i] > -INFINITY) order.push_back(i);
    auto value = [&](int i) { return row[i]; };
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        float x = value(a), y = value(b);
        if (x != x || y != y) return x == x && y != y;
        return x > y;
    });
    order.resize(std::min((int)order.size(), k));
    if (!by_score) std::sort(order.begin(), order.end());
    order.resize(k, -1);
    return order;
}

/* Most of the time goes to the longest rows: under the race detector they have one order of their
 * results, under the sanitizers the other; CAIRN_TEST_LONG=1: both in both. */
#ifdef SIMT_RACE
enum { RACE = 1 };
#else
enum { RACE = 0 };
#endif
static bool all_orders() {
    const char *text = std::getenv("CAIRN_TEST_LONG");
    return text && std::atoi(text);
}

enum { ALL, SMALL, SPLIT, SHORT };
struct shape { unsigned cluster, threads, shared_bytes; int which; };

template <class Store, class Kernel>
static void sweep(const char *name, Kernel kernel, shape at, float (*round)(float),
                  Store (*store)(float)) {
    const int rows = 3, sizes[][2] = {{1, 1},      {40, 64},     {65, 64},    {1500, 7},
                                      {3000, 1025}, {9000, 300}, {14000, 2048}};
    for (int kind = 0; kind < KINDS; kind++) {
        bool fine = true;
        for (auto &size : sizes)
            for (int by_score = 0; by_score < 2; by_score++) {
                int n = size[0], k = size[1], stride = n + 3;
                if (n > 2000 && (kind + n / 1000 + by_score) % 2 != RACE && !all_orders()) continue;
                if (at.which == SMALL) n = std::min(n, 250), k = std::min(k, 32);
                if (at.which == SHORT) n = std::min(n, 1000);
                std::vector<float> x(rows * stride, NAN);
                std::vector<Store> scores(rows * stride);
                std::vector<int32_t> lengths(rows), starts(rows), out(rows * k + 2 * GUARD, 12345);
                std::vector<float> values(rows * k + 2 * GUARD, 54321.0f);
                const bool ranged = kind % 2 == by_score; /* else all rows are whole */
                for (int r = 0; r < rows; r++) {
                    starts[r] = ranged ? (int32_t)(simt::random_u32() % (uint32_t)(n / 3 + 1)) : 0;
                    lengths[r] = r == 0 || !ranged ? n - starts[r] : (int32_t)(simt::random_u32() % (uint32_t)(n - starts[r] + 1));
                    for (int i = 0; i < lengths[r]; i++)
                        x[r * stride + starts[r] + i] = round(score(kind, i, n));
                }
                for (size_t i = 0; i < x.size(); i++) scores[i] = store(x[i]);
                topk_params p = {};
                p.scores = scores.data();
                if (ranged) p.lengths = lengths.data(), p.row_starts = starts.data();
                p.finite_only = simt::random_u32() % 2;
                const bool valued = simt::random_u32() % 2;
                p.indices = out.data() + GUARD, p.values = valued ? values.data() + GUARD : nullptr;
                p.stride = stride, p.n = n, p.k = k, p.rows = rows;
                const int parts = n > 5000 ? 12 : 3; /* of split; 12 hold more than its set does */
                std::vector<uint32_t> scratch(rows * parts * (2 + k * 2), 0);
                std::vector<uint32_t> arrived(rows, 0);
                p.scratch = scratch.data(), p.arrived = arrived.data();
                simt::Shape launched = {rows * at.cluster, at.cluster, at.threads, at.shared_bytes};
                if (at.which == SMALL) launched.grid = 1;
                if (at.which == SPLIT) launched.grid = {(unsigned)parts, (unsigned)rows};
                if (by_score) for (p.sort_size = 2; p.sort_size < k;) p.sort_size *= 2;
                simt::launch(launched, kernel, p);
                for (int r = 0; r < rows; r++) {
                    const float *row = &x[r * stride + starts[r]];
                    auto want = oracle(row, lengths[r], k, by_score, p.finite_only);
                    for (int i = 0; i < k; i++) {
                        float v = want[i] < 0 ? -INFINITY : row[want[i]], got = values[GUARD + r * k + i];
                        if (out[GUARD + r * k + i] != want[i] && fine)
                            std::printf("# n %d k %d by_score %d finite_only %d row %d length %d slot %d: "
                                        "%d, not %d\n", n, k, by_score, p.finite_only, r, lengths[r], i, out[GUARD + r * k + i],
                                        want[i]);
                        fine &= out[GUARD + r * k + i] == want[i];
                        if (valued) fine &= v != v ? got != got : got == v;
                    }
                }
                fine &= arrived == std::vector<uint32_t>(rows, 0);
                for (int i = 0; i < GUARD; i++)
                    fine &= out[i] == 12345 && out[out.size() - 1 - i] == 12345;
            }
        tap_ok(fine, "%s, kind %d", name, kind);
    }
}

static float same(float x) { return x; }
static bf16 to_bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bf16{(uint16_t)(x != x ? 0x7fc0 : bits >> 16)};
}

/* Attention's kernels on the emulation, by themselves: the op's kernel gives the bits of a step's,
 * over everything and over selected pages, whatever rows share a block and however long a run is;
 * both agree with loops in double precision. The choice of pages against a sort. */
#include "simt.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "abi.h"
#include "attention/layout.h"

#define CAIRN_LAYERS 1
#define CAIRN_HIDDEN 64
#define CAIRN_HEADS 32
#define CAIRN_KV_HEADS 16
#define CAIRN_HEAD_DIM 128
#define CAIRN_FFN 64
#define CAIRN_VOCAB 32
#define CAIRN_CONTEXT 4096
#define CAIRN_PAGE_SIZE 32
#define CAIRN_PACK_QKV 16
#define CAIRN_PACK_O 16
#define CAIRN_PACK_GATE_UP 16
#define CAIRN_PACK_DOWN 16
#define CAIRN_PACK_HEAD 16
#define CAIRN_PACK_EMBED 16
#define CAIRN_WARPS 8
#define CAIRN_MEETING_TILES 2
#define CAIRN_NARROW 0
#define CAIRN_LARGE_GROUPS 1
#define CAIRN_SPARSE 0
#define CAIRN_ROWS 8
#define CAIRN_PARTS 512
#define CAIRN_BLOCKS 0

namespace step {
#include "step/attend.cu"
#include "step/attend_pages.cu"
#include "step/bounds.cu"
#include "step/select.cu"
#include "step/attend_row.cu"
#include "step/attend_relay.cu"
namespace counted {
#include "step/select_attend.cu"
} // namespace counted

namespace searched { /* where candidates are too many to count them */
#undef CAIRN_COUNTED
#define CAIRN_COUNTED 20
#include "step/select_attend.cu"
} // namespace searched

struct choice_params {
    const float *scores;
    page_bits *bits;
    int32_t *before; /* [threads] */
    int32_t n, k, own, sinks;
};
CAIRN_KERNEL(choose, 256, 1, choice_params) {
    const selection s(shared_base(), p.own + 1);
    for (int i = thread_id(); i < round_up(p.n, 4); i += 256)
        s.keys[i] = i < p.n ? score_key(p.scores[i]) : 0;
    block_sync();
    p.before[thread_id()] = choose_pages(s, p.n, p.k, p.own, p.sinks);
    block_sync();
    for (int i = thread_id(); i < p.own / 32 + 1; i += 256) p.bits[i] = s.bits[i];
}
} // namespace step
#undef CAIRN_ATTENTION_SHAPE_CUH
#undef CAIRN_ATTENTION_CORE_CUH
#undef CAIRN_ATTENTION_RUNS_CUH
#undef CAIRN_ATTENTION_CLUSTER_CUH
#undef CAIRN_ATTENTION_RELAY_CUH
#undef CAIRN_KEPT_CUH
#undef CAIRN_ELEMENTS_CUH
namespace op {
#include "attention/attention.cu"
} // namespace op
#undef CAIRN_ATTENTION_SHAPE_CUH
#undef CAIRN_ATTENTION_CORE_CUH
#undef CAIRN_ATTENTION_RUNS_CUH
#undef CAIRN_ATTENTION_CLUSTER_CUH
#undef CAIRN_ATTENTION_RELAY_CUH
#undef CAIRN_KEPT_CUH
#undef CAIRN_ELEMENTS_CUH
#undef CAIRN_PAGED_CUH
#undef CAIRN_ABILITIES_CUH
#undef CAIRN_TILE_CUH
#undef CAIRN_ABILITIES
#undef CAIRN_PAGES_CSR
#define CAIRN_ABILITIES 2048
namespace chained {
#include "attention/attention.cu"
} // namespace chained

enum {
    HEADS = 32, KV_HEADS = 16, GROUP = 2, DIM = 128, PAGE = 32, CONTEXT = 4096, PAGES = CONTEXT / PAGE,
    CAPACITY = 8, THREADS = 256, RUNS = 16, SLOT = 2 * KV_HEADS * PAGE * DIM /* values of a page */
};

static float f16_value(uint16_t bits) { return simt::f16_to_f32(bits); }

struct world {
    std::vector<uint16_t> cache, bounds;
    std::vector<int32_t> table, input, lists, counts, pages_read;
    std::vector<uint32_t> arrived, seen;
    std::vector<uint8_t> exchange;
    uint16_t *caches[1], *bound_at[1];
    step_params p;
    int rows, position;

    world() {
        cache.resize((size_t)PAGES * SLOT), bounds.assign((size_t)PAGES * KV_HEADS * 2 * DIM, 0);
        for (auto &v : cache) v = simt::f32_to_f16(simt::random_normal());
        for (int i = 0; i < PAGES; i++) table.push_back((i * 37 + 11) % PAGES);
        input.resize(STEP_HEAD + STEP_ARRAYS * CAPACITY);
        lists.resize(CAPACITY * KV_HEADS * PAGES), counts.resize(CAPACITY * KV_HEADS);
        arrived.resize(CAPACITY * KV_HEADS), seen.resize(KV_HEADS * PAGES / 32);
        pages_read.resize(1);
        exchange.resize(step::RESIDUAL_BYTES + step::REGION_BYTES);
        std::memset(&p, 0, sizeof p);
        caches[0] = cache.data(), bound_at[0] = bounds.data();
        p.kv = caches, p.bounds = bound_at, p.input = input.data(), p.page_table = table.data();
        p.exchange = exchange.data(), p.table_stride = PAGES, p.capacity = CAPACITY;
        p.lists = lists.data(), p.list_counts = counts.data(), p.arrived = arrived.data();
        p.seen = seen.data(), p.pages_read = pages_read.data();
        p.list_stride = PAGES, p.seen_words = PAGES / 32, p.sequences = 1;
    }
    uint8_t *region() { return exchange.data() + step::RESIDUAL_BYTES; }
    uint16_t *query(int row) {
        return (uint16_t *)(region() + step::QKV_AT) + (size_t)row * step::QKV;
    }
    /* Rows at `at`, ..., each group up to `together` of them. */
    void begin(int at, int n, int together, int stored) {
        int32_t *array = input.data() + STEP_HEAD;
        int groups = 0, runs = 0;
        rows = n, position = at;
        for (int r = 0; r < n; r++) {
            array[STEP_POSITION * CAPACITY + r] = at + r;
            array[STEP_STORED * CAPACITY + r] = stored;
            array[STEP_FIRST * CAPACITY + r] = 0;
            int chunks = layout_chunks((at + r) / PAGE + 1, PAGE, DIM);
            int before = layout_chunks((at + std::max(r - 1, 0)) / PAGE + 1, PAGE, DIM);
            bool alike = layout_run(chunks, KV_HEADS) == layout_run(before, KV_HEADS);
            if (r % together && alike) {
                array[STEP_GROUP_ROWS * CAPACITY + groups - 1]++;
            } else {
                array[STEP_GROUP_FIRST * CAPACITY + groups] = r;
                array[STEP_GROUP_ROWS * CAPACITY + groups++] = 1;
            }
            runs = std::max(runs, layout_runs(chunks, KV_HEADS));
        }
        input[STEP_ROWS] = n, input[STEP_GROUPS] = groups, input[STEP_CHUNKS] = runs;
    }
    void draw_queries(float scale) {
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < HEADS * DIM; i++)
                query(r)[i] = simt::f32_to_f16(scale * simt::random_normal());
    }
    std::vector<uint16_t> attended() {
        const uint16_t *from = (const uint16_t *)(region() + step::ATTENDED_AT);
        return std::vector<uint16_t>(from, from + (size_t)rows * HEADS * DIM);
    }
    void spoil() {
        std::memset(region() + step::ATTENDED_AT, 0xff, (size_t)rows * HEADS * DIM * 2);
    }
    std::vector<uint16_t> dense() {
        spoil();
        const uint32_t groups = (uint32_t)input[STEP_GROUPS] + 1, runs = (uint32_t)input[STEP_CHUNKS] + 1;
        simt::launch({{KV_HEADS, groups, runs}, 1, THREADS, step::ATTEND_BYTES, true}, step::step_attend, p);
        return attended();
    }
    /* The first row, by clusters of so many blocks. */
    std::vector<uint16_t> clustered(uint32_t blocks) {
        const int bytes = step::CHAIN_AT + layout_inbox_bytes(RUNS, GROUP, DIM);
        spoil();
        simt::launch({{blocks, KV_HEADS}, blocks, THREADS, (uint32_t)bytes, true}, step::step_attend_row, p);
        return attended();
    }
    /* All rows, each run's block handing on to the last ones', which leave nothing. Where one of them merges it waits
     * for blocks that began before it alone. */
    std::vector<uint16_t> relayed(int mergers) {
        std::vector<uint32_t> relay((size_t)((RUNS + 1) * HEADS * (DIM + 2 * mergers)), step::RELAY_EMPTY);
        p.relay = relay.data(), p.mergers = mergers;
        spoil();
        const uint32_t runs = (uint32_t)input[STEP_CHUNKS] + 1;
        const uint32_t resident = mergers > 1 ? ~0u : 0;
        simt::launch({{KV_HEADS, (uint32_t)rows, runs}, 1, THREADS, step::ATTEND_BYTES, true, resident, true},
                     step::step_attend_relay, p);
        if (std::count(relay.begin(), relay.end(), step::RELAY_EMPTY) != (std::ptrdiff_t)relay.size()) spoil();
        return attended();
    }
    std::vector<uint16_t> sparse(uint32_t parts) {
        spoil();
        std::fill(lists.begin(), lists.end(), -7);
        simt::launch({{parts, (uint32_t)rows, KV_HEADS}, 1, THREADS, step::SELECT_BYTES, true},
                     step::step_select, p);
        simt::launch({{RUNS, (uint32_t)rows, KV_HEADS}, 1, THREADS, step::ATTEND_BYTES, true},
                     step::step_attend_pages, p);
        return attended();
    }
    /* The same by clusters of so many blocks. */
    std::vector<uint16_t> joined(uint32_t blocks, bool counted) {
        const int bytes = step::CHAIN_AT + layout_select_attend_bytes(step::MOST_PAGES, KV_HEADS, GROUP, DIM);
        spoil();
        std::fill(lists.begin(), lists.end(), -7);
        simt::launch({{blocks, (uint32_t)rows, KV_HEADS}, blocks, THREADS, (uint32_t)bytes, true},
                     counted ? step::counted::step_select_attend : step::searched::step_select_attend, p);
        return attended();
    }
    /* The op over the same rows; selected [rows, KV_HEADS, topk] or none. */
    std::vector<float> run_op(const std::vector<int32_t> *selected, int topk, int chain = 0) {
        std::vector<float> q((size_t)rows * HEADS * DIM), out(q.size(), NAN), lse((size_t)rows * HEADS);
        std::vector<int32_t> sequences((size_t)rows, 0), at;
        std::vector<float> partial((size_t)rows * KV_HEADS * RUNS * GROUP * DIM);
        std::vector<float> sums((size_t)rows * KV_HEADS * RUNS * GROUP * 2);
        std::vector<uint32_t> flags((size_t)rows * KV_HEADS, 0);
        cairn_error_word error = {};
        for (int r = 0; r < rows; r++) {
            at.push_back(position + r);
            for (int i = 0; i < HEADS * DIM; i++) q[(size_t)(r * HEADS * DIM + i)] = f16_value(query(r)[i]);
        }
        attend_params a;
        std::memset(&a, 0, sizeof a);
        a.at.cache = cache.data(), a.at.page_table = table.data(), a.at.sequences = sequences.data();
        a.at.positions = at.data(), a.at.error = &error, a.at.pages = PAGES, a.at.kv_heads = KV_HEADS;
        a.at.page_size = PAGE, a.at.head_dim = DIM, a.at.sequence_count = 1, a.at.max_pages = PAGES;
        a.q = q.data(), a.out = out.data(), a.lse = lse.data();
        a.partial = partial.data(), a.sums = sums.data(), a.arrived = flags.data();
        a.scale = (float)(1.0 / std::sqrt((double)DIM)), a.heads = HEADS;
        if (selected) {
            a.selected = selected->data(), a.topk = topk, a.sparse = 1;
            a.window = p.window, a.sinks = p.sinks;
        }
        uint32_t bytes = (uint32_t)(layout_attend_bytes(DIM) + layout_list_bytes(PAGES, PAGES + 2));
        a.chain = chain, a.runs = RUNS;
        if (chain)
            simt::launch({{RUNS, KV_HEADS, (uint32_t)rows}, 1, THREADS,
                          bytes + (uint32_t)layout_chain_bytes(DIM), false}, chained::attend, a);
        else
            simt::launch({{RUNS, KV_HEADS, (uint32_t)rows}, 1, THREADS, bytes, false}, op::attend, a);
        if (error.code) std::fill(out.begin(), out.end(), NAN);
        return out;
    }
};

static bool same_bits(const std::vector<uint16_t> &step_bits, const std::vector<float> &out) {
    for (size_t i = 0; i < out.size(); i++)
        if (simt::f32_to_f16(out[i]) != step_bits[i]) return false;
    return true;
}

/* The largest error of some heads of a row against doubles; sees(t): whether token t is attended. */
template <class Sees>
static double error_of(world &w, const std::vector<float> &out, int row, int head, Sees sees) {
    std::vector<double> want(DIM, 0.0), s;
    double top = -1e300, total = 0.0, worst = 0.0;
    const int kv = head / GROUP, last = w.position + row;
    auto key = [&](int t, int part) {
        return &w.cache[(((size_t)w.table[(size_t)(t / PAGE)] * 2 + (size_t)part) * KV_HEADS +
                         (size_t)kv) * PAGE * DIM + (size_t)(t % PAGE) * DIM];
    };
    for (int t = 0; t <= last; t++) {
        double sum = 0.0;
        for (int d = 0; d < DIM; d++)
            sum += (double)f16_value(w.query(row)[head * DIM + d]) * (double)f16_value(key(t, 0)[d]);
        s.push_back(sees(t) ? sum / std::sqrt((double)DIM) : -INFINITY);
        top = std::max(top, s.back());
    }
    for (int t = 0; t <= last; t++) {
        double e = std::exp(s[(size_t)t] - top);
        total += e;
        for (int d = 0; d < DIM; d++) want[(size_t)d] += e * (double)f16_value(key(t, 1)[d]);
    }
    for (int d = 0; d < DIM; d++)
        worst = std::max(worst, std::fabs((double)out[(size_t)((row * HEADS + head) * DIM + d)] -
                                          want[(size_t)d] / total));
    return worst == worst ? worst : 1e9;
}

static void check_dense(world &w) {
    struct { int position, rows, together; float scale; } const cases[] = {
        {0, 1, 1, 1.0f}, {127, 3, 3, 1.0f}, {254, 8, 8, 1.0f}, {1500, 1, 1, 2.0f}, {2060, 2, 1, 6.0f}};
    for (auto &c : cases) {
        w.begin(c.position, c.rows, c.together, 0);
        w.draw_queries(c.scale);
        std::vector<uint16_t> got = w.dense();
        std::vector<float> out = w.run_op(nullptr, 0);
        double worst = 0.0;
        for (int head : {0, 17, 31})
            worst = std::max(worst, error_of(w, out, c.rows - 1, head, [](int) { return true; }));
        int run = layout_run(layout_chunks(c.position / PAGE + 1, PAGE, DIM), KV_HEADS);
        tap_ok(same_bits(got, out), "the op's bits are the step's: %d rows at %d, runs of %d chunks",
               c.rows, c.position, run);
        const int chain = 2 * run + c.rows % 2;
        tap_ok(w.run_op(nullptr, 0, chain) == out, "and with runs chained up to %d chunks", chain);
        tap_ok(worst < 2e-3, "and off by %.1e from doubles", worst);
        if (w.input[STEP_GROUPS] == c.rows)
            tap_ok(w.relayed(1) == got, "and by words that the last run's block awaits");
        bool alone = true;
        std::vector<uint16_t> first(got.begin(), got.begin() + HEADS * DIM);
        w.begin(c.position, 1, 1, 0);
        std::vector<uint16_t> single = w.dense();
        alone = single == first;
        tap_ok(alone && !std::count_if(w.arrived.begin(), w.arrived.end(), [](uint32_t v) { return v; }),
               "and a row alone has them, too");
        const uint32_t runs = (uint32_t)w.input[STEP_CHUNKS];
        const uint32_t blocks = std::max(runs, (uint32_t)LAYOUT_SELECT_CLUSTER);
        tap_ok(w.clustered(blocks) == first && w.clustered(RUNS) == first,
               "and its %u runs by clusters of %u and of %d", runs, blocks, (int)RUNS);
        const bool together = runs <= 8; /* blocks that await each other run at once: thousands of stacks */
        tap_ok(w.relayed(1) == first && (!together || w.relayed(3) == first),
               "and by words that blocks of the last runs await%s", together ? "" : ", one run's");
    }
}

static void check_sparse(world &w) {
    struct { int position, rows, topk, window, sinks; uint32_t parts; } const cases[] = {
        {1500, 2, 5, 100, 40, 1}, {4000, 1, 9, 33, 3, 4}, {3000, 1, 60, 0, 0, 2}, {900, 1, 40, 64, 4, 2}};
    std::vector<int32_t> pages(PAGES);
    for (int i = 0; i < PAGES; i++) pages[(size_t)i] = i;
    w.p.new_pages = pages.data();
    simt::launch({{PAGES, KV_HEADS, 1}, 1, 128, 0, true}, step::step_bounds, w.p);
    for (auto &c : cases) {
        w.p.topk = c.topk, w.p.window = c.window, w.p.sinks = c.sinks;
        w.begin(c.position, c.rows, 1, c.position / PAGE - 1);
        w.draw_queries(1.0f);
        std::vector<uint16_t> got = w.sparse(c.parts);
        std::vector<int32_t> selected((size_t)(c.rows * KV_HEADS * c.topk), -1);
        for (int i = 0; i < c.rows * KV_HEADS; i++) { /* in disorder, one of them twice */
            int n = 0, candidates = layout_candidates(c.position + i / KV_HEADS, c.window, PAGE);
            int32_t *to = &selected[(size_t)(i * c.topk)];
            for (int e = w.counts[(size_t)i]; e-- > 0;) {
                int32_t page = w.lists[(size_t)(i * PAGES + e)];
                if (page < candidates && n < c.topk) to[n++] = page;
            }
            if (n > 1 && n < c.topk) to[n] = to[0];
        }
        std::vector<float> out = w.run_op(&selected, c.topk);
        tap_ok(same_bits(got, out), "selected pages: the op's bits are the step's: %d rows at %d, topk %d, "
               "window %d, sinks %d, %u parts", c.rows, c.position, c.topk, c.window, c.sinks, c.parts);
        const int candidates = layout_candidates(c.position, c.window, PAGE);
        tap_ok(w.run_op(&selected, c.topk, 24) == out, "and with runs chained up to 24 chunks");
        double worst = error_of(w, out, 0, 5, [&](int t) {
            const int32_t *chosen = &selected[(size_t)(5 / GROUP * c.topk)];
            return t < c.sinks || t / PAGE >= candidates ||
                   std::find(chosen, chosen + c.topk, t / PAGE) != chosen + c.topk;
        });
        tap_ok(worst < 2e-3, "and off by %.1e from doubles", worst);
        std::fill(w.counts.begin(), w.counts.end(), 0);
        std::vector<uint16_t> again = w.sparse(c.parts == 1 ? 3 : 1);
        tap_ok(again == got, "however many blocks score the pages");
        const std::vector<int32_t> lists = w.lists, counts = w.counts;
        for (uint32_t blocks : {8u, 16u}) {
            const int read = w.pages_read[0];
            std::fill(w.seen.begin(), w.seen.end(), 0), std::fill(w.counts.begin(), w.counts.end(), 0);
            again = w.joined(blocks, blocks == 8);
            tap_ok(again == got && w.lists == lists && w.counts == counts,
                   "in one launch, by clusters of %u blocks: the same bits, the same lists", blocks);
            std::fill(w.seen.begin(), w.seen.end(), 0);
            const int all = w.pages_read[0] - read;
            w.sparse(1);
            tap_ok(all > 0 && w.pages_read[0] - read == 2 * all, "and as many pages read");
        }
        if (candidates <= c.topk) tap_ok(w.dense() == got, "all pages give the bits of whole attention");
    }
}

/* Scores that hurt. */
static std::vector<float> hard_scores(int n, int kind) {
    std::vector<float> s;
    for (int i = 0; i < n; i++) {
        float v = simt::random_normal();
        if (kind == 1) v = 3.5f;
        if (kind == 2) v = i % 7 ? -1.0f : 1.0f;
        if (kind == 3) v = (float)(int)(v * 3.0f);
        if (kind == 4) v = i % 3 ? NAN : i % 2 ? -INFINITY : v;
        if (kind == 5) v = i % 5 ? (i % 2 ? 0.0f : -0.0f) : INFINITY;
        if (kind == 6) v = (float)i * 1e-42f;
        if (kind == 7) v = 1.0f + (float)(simt::random_u32() % 64) * 1.1920929e-7f;
        s.push_back(v);
    }
    return s;
}

static bool choice_is_right(const std::vector<float> &scores, int k, int more, int sinks) {
    const int n = (int)scores.size(), own = n + more;
    std::vector<step::page_bits> bits((size_t)(own / 32 + 1));
    std::vector<int32_t> before(256), order;
    std::vector<bool> whole((size_t)own + 1, false);
    step::choice_params p = {scores.data(), bits.data(), before.data(), n, k, own, sinks};
    simt::launch({1, 1, 256, (uint32_t)layout_select_bytes(own + 1, GROUP, DIM), false}, step::choose, p);
    for (int i = 0; i < n; i++) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        float x = scores[(size_t)a], y = scores[(size_t)b];
        return x > y || (x == x && y != y);
    });
    for (int i = 0; i < std::min(k, n); i++) whole[(size_t)order[(size_t)i]] = true;
    for (int i = n; i <= own; i++) whole[(size_t)i] = true;
    for (int i = 0, listed = 0; i <= own; i++) {
        const step::page_bits b = bits[(size_t)(i / 32)];
        const int each = (own / 32 + 1 + 255) / 256;
        if (i % (32 * each) == 0 && before[(size_t)(i / 32 / each)] != listed) return false;
        const bool lists = whole[(size_t)i] || i < sinks;
        if ((b.whole >> i % 32 & 1) != whole[(size_t)i] || (b.listed >> i % 32 & 1) != lists) return false;
        listed += lists;
    }
    return true;
}

static void check_choice() {
    for (int kind = 0; kind < 8; kind++) {
        bool fine = true;
        int tried = 0;
        for (int n : {2, 31, 33, 256, 257, 1000, 1563, 8192})
            for (int k : {1, 32, n / 2, n - 1}) {
                if (k < 1 || k >= n) continue;
                fine = fine && choice_is_right(hard_scores(n, kind), k, kind * 5, kind % 3);
                tried++;
            }
        tap_ok(fine, "the choice of pages, scores of kind %d: %d cases", kind, tried);
    }
}

int main() {
    world w;
    check_dense(w);
    check_sparse(w);
    check_choice();
    return tap_done();
}

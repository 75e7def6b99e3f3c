/* The decoder step's kernels on the emulation: a small model in GGUF blocks, packed by dense/pack.cu,
 * then the flow kernel, the stage kernels, the prompt's kernels and page selection, against loops
 * in double precision (tests/ref/decoder_step.h), and against each other bit for bit. */
#include "simt.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#define CAIRN_SPAN 128 /* a prompt's keys are several */
#include "../ref/decoder_step.h"
#include "attention/layout.h"
#include "dense/product.cuh"

#define CAIRN_LAYERS 2
#define CAIRN_HIDDEN 64
#define CAIRN_HEADS 4
#define CAIRN_KV_HEADS 2
#define CAIRN_HEAD_DIM 64
#define CAIRN_FFN 96
#define CAIRN_VOCAB 100
#define CAIRN_CONTEXT 512
#define CAIRN_PAGE_SIZE 16
#define CAIRN_PACK_QKV 4
#define CAIRN_PACK_O 4
#define CAIRN_PACK_GATE_UP 8
#define CAIRN_PACK_DOWN 16
#define CAIRN_PACK_HEAD 8
#define CAIRN_PACK_EMBED 8
#define CAIRN_WARPS 8
#define CAIRN_MEETING_TILES 2
#define CAIRN_NARROW 2
#define CAIRN_LARGE_GROUPS 1

namespace flow {
#define CAIRN_ROWS 8
#define CAIRN_PARTS 16
#define CAIRN_BLOCKS 6
#define CAIRN_SPARSE 0
#include "step/step.cu"
} // namespace flow
#include "again.h"
#undef CAIRN_SPARSE
namespace sparse_flow {
#define CAIRN_SPARSE 1
#include "step/step.cu"
} // namespace sparse_flow
#include "again.h"
#undef CAIRN_SPARSE
#undef CAIRN_ROWS
#undef CAIRN_PARTS
#undef CAIRN_BLOCKS
namespace stage {
#define CAIRN_SPARSE 0
#define CAIRN_ROWS 64
#define CAIRN_PARTS 64 /* of 64 rows x 2 chunks: few rows have two, many have one */
#define CAIRN_BLOCKS 0
#include "step/layer.cu"
#include "step/attend.cu"
#include "step/attend_pages.cu"
#include "step/head.cu"
#include "step/bounds.cu"
#include "step/select.cu"
#include "step/prompt.cu"
#include "step/prompt_residual.cu"
#include "step/prompt_attend.cu"
#include "step/finish.cu"
#include "dense/pack.cu"
} // namespace stage
#include "again.h"
namespace brief { /* a prompt's attention that a start waits for */
#define CAIRN_FIRST_APART 0
#include "step/prompt_attend.cu"
#undef CAIRN_FIRST_APART
} // namespace brief
#include "again.h"
#undef CAIRN_PROMPT_WARPS
#undef CAIRN_PROMPT_EACH
#undef CAIRN_PROMPT_TOKENS
#undef CAIRN_PROMPT_CARRIERS
#undef CAIRN_PACK_QKV
#undef CAIRN_PACK_O
#undef CAIRN_PACK_GATE_UP
#undef CAIRN_PACK_DOWN
#undef CAIRN_PACK_HEAD
#undef CAIRN_PACK_EMBED
namespace stream { /* the same model, its products those of dense/product.cuh */
#define CAIRN_PACK_QKV 33
#define CAIRN_PACK_O 32
#define CAIRN_PACK_GATE_UP 34
#define CAIRN_PACK_DOWN 35
#define CAIRN_PACK_HEAD 34
#define CAIRN_PACK_EMBED 34
#define CAIRN_PROMPT_WARPS 8
#define CAIRN_PROMPT_EACH 1
#define CAIRN_PROMPT_TOKENS 256
#define CAIRN_PROMPT_CARRIERS 4
#include "step/layer.cu"
#include "step/attend.cu"
#include "step/attend_pages.cu"
#include "step/head.cu"
#include "step/bounds.cu"
#include "step/select.cu"
#include "step/prompt.cu"
#include "step/prompt_residual.cu"
#include "step/prompt_attend.cu"
} // namespace stream

/* The kernels of a forward, and the shared memory of its products. */
struct kernel_set {
    typedef void (*kernel)(step_params);
    kernel embed, qkv, select, attend_pages, attend, project, gate_up, down;
    kernel head, prompt_embed, prompt_norm, prompt_qkv, prompt_attend, prompt_project;
    kernel prompt_gate_up, prompt_down, prompt_last;
    int product_bytes;
    uint32_t blocks; /* of a product, 0: one a tile */
    uint32_t threads, tiles, tokens; /* of a block of a prompt's product */
    int tokens_bytes;
};
#define KERNEL_SET(ns, bytes, blocks)                                                             \
    {ns::step_embed, ns::step_qkv, ns::step_select, ns::step_attend_pages,                        \
     ns::step_attend, ns::step_project, ns::step_gate_up, ns::step_down,                          \
     ns::step_head, ns::prompt_embed, ns::prompt_norm, ns::prompt_qkv, ns::prompt_attend,         \
     ns::prompt_project, ns::prompt_gate_up, ns::prompt_down, ns::prompt_last, bytes, blocks,     \
     ns::PROMPT_THREADS, ns::BLOCK_TILES, ns::TOKENS, ns::PROMPT_BYTES}
static const kernel_set stage_set = KERNEL_SET(stage, stage::MEETING_BYTES, 0);
static const kernel_set stream_set = KERNEL_SET(stream, PRODUCT_SHARED, 3);

enum {
    LAYERS = 2, HIDDEN = 64, HEADS = 4, KV_HEADS = 2, DIM = 64, FFN = 96, VOCAB = 100,
    CONTEXT = 512, PAGE = 16, PAGES = CONTEXT / PAGE, THREADS = 256, BLOCKS = 6, CAPACITY = 64
};

/* ---- the model ---- */

struct matrix {
    int type, rows, inputs;
    std::vector<uint8_t> blocks;
    ref::vec values;
};

static void put16(uint8_t *to, uint16_t v) { std::memcpy(to, &v, 2); }

/* Random blocks of a GGUF type, and the values they stand for. */
static matrix random_matrix(int type, int rows, int inputs, float scale) {
    static const int bytes_of[] = {128, 64, 18, 20, 0, 0, 0, 0, 34};
    int bytes = bytes_of[type], count = rows * inputs / 32;
    matrix m = {type, rows, inputs, std::vector<uint8_t>((size_t)(bytes * count)), {}};
    for (int b = 0; b < count; b++) {
        uint8_t *block = &m.blocks[(size_t)(b * bytes)];
        double value[32];
        uint16_t d = simt::f32_to_f16(scale * (0.05 + 0.1 * simt::random_uniform()));
        uint16_t low = simt::f32_to_f16(-7.0 * simt::f16_to_f32(d));
        for (int i = 0; i < bytes; i++) block[i] = (uint8_t)simt::random_u32();
        for (int i = 0; i < 32; i++) {
            if (type == 0) {
                float v = scale * simt::random_normal();
                std::memcpy(block + 4 * i, &v, 4);
                value[i] = simt::f16_to_f32(simt::f32_to_f16(v));
            } else if (type == 8) {
                put16(block, (uint16_t)(simt::f32_to_f16(scale / 60.0)));
                value[i] = simt::f16_to_f32(simt::f32_to_f16(scale / 60.0)) *
                           (double)(int8_t)block[2 + i];
            } else {
                int at = type == 3 ? 4 : 2, n = block[at + i % 16] >> (i / 16 * 4) & 15;
                value[i] = type == 3 ? n * (double)simt::f16_to_f32(d) + simt::f16_to_f32(low)
                                     : (n - 8) * (double)simt::f16_to_f32(d);
            }
        }
        if (type == 2 || type == 3) put16(block, d);
        if (type == 3) put16(block + 2, low);
        m.values.insert(m.values.end(), value, value + 32);
    }
    return m;
}

struct model {
    ref::decoder decoder;
    bool streamed;
    std::vector<uint8_t> qkv, o, gate_up, down, head;
    std::vector<float> norms, rope;
    std::vector<uint16_t> cache[LAYERS], bounds[LAYERS];
    uint16_t *caches[LAYERS], *bound_at[LAYERS];
    std::vector<int32_t> table;
};

static void pack_into(const matrix &m, std::vector<uint8_t> &to, size_t at, int format, int first,
                      int half) {
    pack_params p = {m.blocks.data(), to.data() + at, m.type, format,
                     m.rows,          m.inputs,       first,  half};
    simt::launch({(uint32_t)(m.rows * m.inputs / 32 + 255) / 256, 1, 256, 0, true}, stage::pack, p);
}

static void make_layer(model &m, int l) {
    ref::layer_weights w;
    const int kv = KV_HEADS * DIM, q = HEADS * DIM;
    matrix parts[] = {random_matrix(3, q, HIDDEN, 0.4f),  random_matrix(3, kv, HIDDEN, 0.4f),
                      random_matrix(2, kv, HIDDEN, 1.0f), random_matrix(2, HIDDEN, q, 0.5f),
                      random_matrix(8, FFN, HIDDEN, 0.2f), random_matrix(8, FFN, HIDDEN, 0.2f),
                      random_matrix(0, HIDDEN, FFN, 0.2f)};
    ref::vec *values[] = {&w.q, &w.k, &w.v, &w.o, &w.gate, &w.up, &w.down};
    for (int i = 0; i < 7; i++) *values[i] = parts[i].values;
    size_t qkv = (size_t)(q + 2 * kv) / 16 * 2 * 320, both = FFN / 8 * 2 * 544;
    size_t o = HIDDEN / 16 * (q / 32) * (m.streamed ? 288 : 320);
    const int four = m.streamed ? PACK_Q4_1 : PACK_4, eight = m.streamed ? PACK_Q8_0 : PACK_8;
    pack_into(parts[0], m.qkv, qkv * l, four, 0, 0);
    pack_into(parts[1], m.qkv, qkv * l, four, q, 0);
    pack_into(parts[2], m.qkv, qkv * l, four, q + kv, 0);
    pack_into(parts[3], m.o, o * l, m.streamed ? PACK_Q4_0 : PACK_4, 0, 0);
    pack_into(parts[4], m.gate_up, both * l, eight, 0, 1);
    pack_into(parts[5], m.gate_up, both * l, eight, 0, 2);
    pack_into(parts[6], m.down, (size_t)(HIDDEN / 16 * (FFN / 32) * 1024) * l,
              m.streamed ? PACK_F16 : PACK_16, 0, 0);
    for (int i = 0; i < HIDDEN; i++) w.attn_norm.push_back((float)(0.5 + simt::random_uniform()));
    for (int i = 0; i < HIDDEN; i++) w.ffn_norm.push_back((float)(0.5 + simt::random_uniform()));
    m.norms.insert(m.norms.end(), w.attn_norm.begin(), w.attn_norm.end());
    m.norms.insert(m.norms.end(), w.ffn_norm.begin(), w.ffn_norm.end());
    m.decoder.layers.push_back(w);
}

/* A cache with random keys and values for every position, behind a shuffled page table. */
static void make_cache(model &m) {
    for (int i = 0; i < PAGES; i++) m.table.push_back((i * 7 + 3) % PAGES);
    m.decoder.keys.resize(LAYERS), m.decoder.values.resize(LAYERS);
    for (int l = 0; l < LAYERS; l++) {
        m.cache[l].resize(PAGES * 2 * KV_HEADS * PAGE * DIM);
        m.bounds[l].assign(PAGES * KV_HEADS * 2 * DIM, 0x7e00);
        m.caches[l] = m.cache[l].data(), m.bound_at[l] = m.bounds[l].data();
        for (int t = 0; t < CONTEXT; t++) {
            ref::vec k, v;
            for (int i = 0; i < KV_HEADS * DIM; i++) {
                size_t plane = (size_t)m.table[t / PAGE] * 2 * KV_HEADS + i / DIM;
                size_t at = (plane * PAGE + t % PAGE) * DIM + i % DIM;
                m.cache[l][at] = simt::f32_to_f16(simt::random_normal());
                m.cache[l][at + KV_HEADS * PAGE * DIM] = simt::f32_to_f16(simt::random_normal());
                k.push_back(simt::f16_to_f32(m.cache[l][at]));
                v.push_back(simt::f16_to_f32(m.cache[l][at + KV_HEADS * PAGE * DIM]));
            }
            m.decoder.append(l, t, k, v);
        }
    }
}

static void make_model(model &m) {
    m.decoder = {HIDDEN, HEADS, KV_HEADS, DIM, FFN, VOCAB, 1e-5, 10000.0, {}, {}, {}, {}, {}, {},
                 nullptr, nullptr};
    m.decoder.round_f16 = [](double x) { return (double)simt::f16_to_f32(simt::f32_to_f16(x)); };
    m.qkv.resize(LAYERS * (HEADS + 2 * KV_HEADS) * DIM / 16 * 2 * 320);
    m.o.resize(LAYERS * HIDDEN / 16 * (HEADS * DIM / 32) * (m.streamed ? 288 : 320));
    m.gate_up.resize(LAYERS * FFN / 8 * 2 * 544);
    m.down.resize(LAYERS * HIDDEN / 16 * (FFN / 32) * 1024);
    m.head.resize((VOCAB + 15) / 16 * 2 * 544);
    for (int l = 0; l < LAYERS; l++) make_layer(m, l);
    matrix head = random_matrix(8, VOCAB, HIDDEN, 0.5f);
    pack_into(head, m.head, 0, m.streamed ? PACK_Q8_0 : PACK_8, 0, 0);
    m.decoder.embed = m.decoder.head = head.values;
    for (int i = 0; i < HIDDEN; i++)
        m.decoder.norm.push_back((float)(0.5 + simt::random_uniform()));
    m.norms.insert(m.norms.end(), m.decoder.norm.begin(), m.decoder.norm.end());
    for (int t = 0; t < CONTEXT; t++)
        for (int i = 0; i < DIM / 2; i++) {
            double angle = t * pow(10000.0, -2.0 * i / DIM);
            m.rope.push_back((float)cos(angle)), m.rope.push_back((float)sin(angle));
        }
    make_cache(m);
}

/* ---- one forward ---- */

struct run {
    model &m;
    kernel_set set;
    std::vector<int32_t> input, lists, counts, read;
    std::vector<uint32_t> seen, row_pages, arrived;
    std::vector<uint8_t> exchange, flow_exchange;
    std::vector<float> logits;
    std::vector<uint64_t> winners;
    int32_t fault = 0;
    int epoch = 0, clean_rows = 0, clean_chunks = 0;
    step_params p;

    explicit run(model &with) : m(with), set(with.streamed ? stream_set : stage_set) {
        input.resize(STEP_HEAD + STEP_ARRAYS * CAPACITY);
        lists.resize(CAPACITY * KV_HEADS * PAGES), counts.resize(CAPACITY * KV_HEADS);
        read.resize(1), seen.resize(LAYERS * KV_HEADS);
        row_pages.assign(LAYERS * 8 * KV_HEADS, ~0u);
        exchange.resize(stage::RESIDUAL_BYTES + stage::REGION_BYTES);
        flow_exchange.assign(flow::RESIDUAL_BYTES + 2 * flow::HALF_BYTES, 0xff);
        logits.resize(CAPACITY * VOCAB), winners.resize(CAPACITY * BLOCKS);
        std::memset(&p, 0, sizeof p);
        p.qkv = m.qkv.data(), p.o = m.o.data(), p.gate_up = m.gate_up.data();
        p.down = m.down.data(), p.head = p.embed = m.head.data();
        p.norms = m.norms.data(), p.rope = m.rope.data(), p.kv = m.caches;
        p.input = input.data(), p.page_table = m.table.data(), p.logits = logits.data();
        p.winners = winners.data(), p.fault = &fault, p.table_stride = PAGES;
        p.capacity = CAPACITY, p.norm_eps = 1e-5f, p.input_scale = 0.25f;
        p.bounds = m.bound_at, p.lists = lists.data(), p.list_counts = counts.data();
        p.seen = seen.data(), p.pages_read = read.data();
        arrived.resize(CAPACITY * KV_HEADS);
        p.row_pages = row_pages.data(), p.arrived = arrived.data();
        for (int l = 0; l < LAYERS; l++) p.select_layers[0] |= 1u << l;
        p.list_stride = PAGES, p.seen_words = 1, p.sequences = 1;
    }
    void rows(const std::vector<int> &tokens, int position, int stored) {
        int32_t *array = input.data() + STEP_HEAD;
        int n = (int)tokens.size(), groups = (n + 7) / 8;
        for (int r = 0; r < n; r++) {
            array[STEP_TOKEN * CAPACITY + r] = tokens[(size_t)r];
            array[STEP_POSITION * CAPACITY + r] = position + r;
            array[STEP_ROPE * CAPACITY + r] = position + r;
            array[STEP_SEQUENCE * CAPACITY + r] = array[STEP_FIRST * CAPACITY + r] = 0;
            array[STEP_STORED * CAPACITY + r] = stored;
        }
        for (int g = 0; g < groups; g++) {
            array[STEP_GROUP_FIRST * CAPACITY + g] = g * 8;
            array[STEP_GROUP_ROWS * CAPACITY + g] = std::min(8, n - g * 8);
        }
        int chunks = (position + n - 1) / stage::CHUNK + 1, listed = 0;
        for (int r = 0; r < n; r++)
            listed = std::max(
                listed, layout_chunks(layout_most_listed(
                                          position + r,
                                          layout_candidates(position + r, p.window, PAGE),
                                          p.topk, p.sinks, PAGE), PAGE, DIM));
        int32_t head[] = {n, groups, chunks, listed, epoch, clean_rows, clean_chunks, 0, n};
        std::copy(std::begin(head), std::end(head), input.begin());
        std::fill(logits.begin(), logits.end(), NAN);
    }
    std::vector<float> result(int n) const {
        return std::vector<float>(logits.begin(), logits.begin() + n * VOCAB);
    }
    std::vector<float> flow_forward(const std::vector<int> &tokens, int position,
                                    bool sparse = false, int stored = 0) {
        rows(tokens, position, stored);
        weights_of(0);
        p.exchange = flow_exchange.data();
        const uint32_t shared = flow::ATTEND_BYTES + flow::MEETING_BYTES;
        simt::launch({BLOCKS, 1, THREADS, shared, false, ~0u},
                     sparse ? sparse_flow::step_flow : flow::step_flow, p);
        epoch++, clean_rows = (int)tokens.size(), clean_chunks = input[STEP_CHUNKS];
        return result((int)tokens.size());
    }
    /* The stage kernels are given a layer's own weights, the flow kernel the first's. */
    void weights_of(int layer) {
        size_t l = (size_t)layer;
        p.qkv = m.qkv.data() + l * m.qkv.size() / LAYERS, p.o = m.o.data() + l * m.o.size() / LAYERS;
        p.gate_up = m.gate_up.data() + l * m.gate_up.size() / LAYERS;
        p.down = m.down.data() + l * m.down.size() / LAYERS;
    }
    void one(void (*kernel)(step_params), simt::Grid grid, uint32_t threads, int shared, int layer,
             int which = 0) {
        p.layer = layer, p.which = which;
        weights_of(layer);
        simt::launch({grid, 1, threads, (uint32_t)shared, true}, kernel, p);
    }
    std::vector<float> stage_forward(const std::vector<int> &tokens, int position, bool sparse,
                                     int stored, uint32_t layers = ~0u) {
        rows(tokens, position, stored);
        std::fill(seen.begin(), seen.end(), 0), read[0] = 0;
        p.exchange = exchange.data();
        uint32_t n = (uint32_t)tokens.size(), y = (n + 7) / 8;
        const uint32_t groups = (uint32_t)input[STEP_GROUPS], runs = (uint32_t)input[STEP_CHUNKS];
        const int meet = set.product_bytes, keys = stage::ATTEND_BYTES;
        auto blocks = [&](uint32_t tiles) { return set.blocks ? set.blocks : tiles; };
        one(set.embed, {HIDDEN / 16, y}, THREADS, 0, 0);
        for (int l = 0; l < LAYERS; l++) {
            one(set.qkv, {blocks(stage::QKV / 16), y}, THREADS, meet, l);
            if (sparse && layers >> l & 1) {
                one(set.select, {2, n, KV_HEADS}, THREADS, stage::SELECT_BYTES, l);
                one(set.attend_pages, {2, n, KV_HEADS}, THREADS, keys, l);
            } else {
                one(set.attend, {KV_HEADS, groups, runs}, THREADS, keys, l);
            }
            one(set.project, {blocks(HIDDEN / 16), y}, THREADS, meet, l);
            one(set.gate_up, {blocks(FFN / 8), y}, THREADS, meet, l);
            one(set.down, {blocks(HIDDEN / 16), y}, THREADS, meet, l);
        }
        one(set.head, {BLOCKS, y}, THREADS, meet, 0);
        return result((int)n);
    }
    std::vector<float> prompt_forward(const std::vector<int> &tokens, int position) {
        rows(tokens, position, 0);
        p.exchange = exchange.data();
        uint32_t n = (uint32_t)tokens.size(), y = (n + 63) / 64;
        auto product = [&](kernel_set::kernel k, uint32_t tiles, int l) {
            one(k, {(n + set.tokens - 1) / set.tokens, (tiles + set.tiles - 1) / set.tiles},
                set.threads, set.tokens_bytes, l);
        };
        one(set.prompt_embed, {n}, 128, 0, 0);
        for (int l = 0; l < LAYERS; l++) {
            one(set.prompt_norm, {(n + 3) / 4}, 128, 0, l, 0);
            product(set.prompt_qkv, stage::QKV / 16, l);
            const uint32_t each = LAYOUT_MANY_ROWS / (HEADS / KV_HEADS);
            if (CAIRN_ARCH == 900)
                one(set.prompt_attend, {(n + each - 1) / each, KV_HEADS}, LAYOUT_MANY_THREADS,
                    layout_spans_bytes(DIM), l);
            else one(set.prompt_attend, {y, HEADS}, 128, 512 * DIM, l);
            product(set.prompt_project, HIDDEN / 16, l);
            one(set.prompt_norm, {(n + 3) / 4}, 128, 0, l, 1);
            product(set.prompt_gate_up, FFN / 8, l);
            product(set.prompt_down, HIDDEN / 16, l);
        }
        one(set.prompt_last, {n}, 128, 0, 0);
        one(set.head, {BLOCKS, (n + 7) / 8}, THREADS, set.product_bytes, 0);
        return result((int)n);
    }
};

/* ---- checks ---- */

static std::vector<int> random_tokens(int n) {
    std::vector<int> tokens;
    for (int i = 0; i < n; i++) tokens.push_back((int)(simt::random_u32() % VOCAB));
    return tokens;
}

/* The largest error relative to the row's largest logit. */
static double error_of(const std::vector<float> &got, const ref::vec &want, int row) {
    double worst = 0.0, top = 0.0;
    for (int i = 0; i < VOCAB; i++) {
        double g = got[(size_t)(row * VOCAB + i)];
        top = std::fmax(top, std::fabs(want[(size_t)i]));
        worst = g == g ? std::fmax(worst, std::fabs(g - want[(size_t)i])) : 1e9;
    }
    return worst / top;
}

/* How far the reference's own logits move, of their largest, when its input moves by one part in a
 * thousand, the size of what f16 rounds on the way. One random row in some ten thousand lies where
 * a small change grows: an attention that is nearly a tie, a hidden state that nearly cancels. */
static double shaken(model &m, int token, int position) {
    const ref::vec want = m.decoder.forward(token, position), embed = m.decoder.embed;
    double worst = 0.0;
    for (int draw = 0; draw < 4; draw++) {
        for (int i = 0; i < HIDDEN; i++)
            m.decoder.embed[(size_t)(token * HIDDEN + i)] *= 1.0 + 1e-3 * simt::random_normal();
        const ref::vec moved = m.decoder.forward(token, position);
        std::vector<float> got(moved.begin(), moved.end());
        worst = std::fmax(worst, error_of(got, want, 0));
        m.decoder.embed = embed;
    }
    m.decoder.forward(token, position); /* its key and value as they were */
    return worst;
}

static void check_rows(model &m, const std::vector<float> &got, const std::vector<int> &tokens,
                       int position, const char *name) {
    double worst = 0.0;
    bool good = true;
    for (size_t r = 0; r < tokens.size(); r++) {
        const int token = tokens[r], at = position + (int)r;
        const double error = error_of(got, m.decoder.forward(token, at), (int)r);
        worst = std::fmax(worst, error);
        good = good && (error < 2e-2 || error < 3.0 * shaken(m, token, at));
    }
    tap_ok(good, "%s: %d rows at %d, relative error %.1e", name, (int)tokens.size(), position,
           worst);
}

static void check_flow(model &m) {
    run r(m);
    const int position = 253; /* the rows lie on both sides of a chunk's end */
    std::vector<int> five = random_tokens(5);
    std::vector<float> want = r.stage_forward(five, position, false, 0);
    check_rows(m, want, five, position, "stages");
    tap_ok(r.flow_forward(five, position) == want, "flow: the bits of the stages");
    for (int rows : {1, 8, 2, 4}) {
        std::vector<int> tokens(five.begin(), five.begin() + std::min(rows, 5));
        while ((int)tokens.size() < rows) tokens.push_back(0);
        std::vector<float> got = r.flow_forward(tokens, position);
        size_t same = (size_t)std::min(rows, 5) * VOCAB;
        tap_ok(std::equal(got.begin(), got.begin() + (long)same, want.begin()) && !r.fault,
                 "flow: %d rows give the bits of five", rows);
    }
    enum { PAGES_AT = STEP_SAMPLED_AT + 8, WORDS = PAGES_AT + 40, POISON = -77 };
    std::vector<int32_t> results(WORDS, POISON), told(2 * WORDS, POISON);
    int32_t *best = results.data() + STEP_SAMPLED_AT;
    finish_params finish = {};
    finish.winners = r.winners.data(), finish.tokens = best, finish.blocks = BLOCKS;
    finish.rows = 4;
    finish.results = results.data(), finish.told = told.data(), finish.told_words = WORDS;
    finish.pages_read = results.data() + PAGES_AT, finish.input = r.input.data();
    r.input[STEP_TELLS] = 1, results[0] = 9;
    for (int i = PAGES_AT; i < WORDS; i++) results[i] = i;
    simt::launch({4, 1, 32, 0, true}, stage::step_finish, finish);
    bool good = true;
    for (int i = 0; i < WORDS; i++) {
        const bool tells = i == 0 || (i >= STEP_SAMPLED_AT && i < STEP_SAMPLED_AT + 4) || i >= PAGES_AT;
        good = good && told[i] == POISON && told[WORDS + i] == (tells ? results[i] : POISON);
    }
    tap_ok(good, "finish: fault, tokens and pages are told to the host, in their half");
    r.input[STEP_TELLS] = 0, finish.rows = 0, best[1] = 5, results[WORDS - 1] = 6;
    simt::launch({1, 1, 32, 0, true}, stage::step_finish, finish);
    tap_ok(std::equal(results.begin(), results.end(), told.begin()), "finish: all that is there is told");
    r.input[STEP_TELLS] = 0, best[1] = told[WORDS + STEP_SAMPLED_AT + 1];
    good = true;
    for (int i = 0; i < 4; i++)
        good = good && best[i] == std::max_element(want.begin() + i * VOCAB,
                                                   want.begin() + (i + 1) * VOCAB) -
                                      (want.begin() + i * VOCAB);
    tap_ok(good, "finish: the most likely tokens");
}

static void check_prompt(model &m) {
    run r(m);
    std::vector<int> tokens = random_tokens(21);
    std::vector<float> whole = r.prompt_forward(tokens, 250);
    check_rows(m, whole, tokens, 250, "prompt");
    std::vector<int> first(tokens.begin(), tokens.begin() + 9);
    std::vector<int> rest(tokens.begin() + 9, tokens.end());
    r.prompt_forward(first, 250);
    std::vector<float> got = r.prompt_forward(rest, 259);
    tap_ok(std::equal(got.begin(), got.end(), whole.begin() + 9 * VOCAB),
             "prompt: the same bits in two chunks");
    if (m.streamed) return;
    r.set.prompt_attend = brief::prompt_attend;
    tap_ok(r.prompt_forward(tokens, 250) == whole, "prompt: the same bits by attention's shorter text");
}

/* The least distance between the last page chosen and the first left out, of its score, since it was
 * set. Nearer than f16 rounds, the kernels may choose otherwise than the reference, rightly. */
static double nearest_choice;

/* The pages that a row attends by the rule, from keys in double precision. */
static std::vector<bool> pages_of(const model &m, int layer, int kv, int position,
                                  const ref::vec &q, int topk, int window) {
    int own = position / PAGE, candidates = std::max(0, position - window + 1) / PAGE;
    std::vector<std::pair<double, int>> scores;
    for (int c = 0; c < candidates; c++) {
        double score = 0.0;
        for (int h = 0; h < HEADS / KV_HEADS; h++)
            for (int d = 0; d < DIM; d++) {
                double x = q[(size_t)((kv * (HEADS / KV_HEADS) + h) * DIM + d)];
                double lo = 1e9, hi = -1e9;
                for (int t = c * PAGE; t < (c + 1) * PAGE; t++) {
                    double k = m.decoder.keys[layer][t][kv * DIM + d];
                    lo = std::min(lo, k), hi = std::max(hi, k);
                }
                score += std::max(x * lo, x * hi);
            }
        scores.push_back({-score, c});
    }
    std::sort(scores.begin(), scores.end());
    if (topk < candidates) {
        double last = scores[(size_t)topk - 1].first, next = scores[(size_t)topk].first;
        nearest_choice = std::fmin(nearest_choice, (next - last) / std::fabs(last));
    }
    std::vector<bool> whole((size_t)own + 1, false);
    for (int c = candidates; c <= own; c++) whole[(size_t)c] = true;
    for (int i = 0; i < std::min(topk, candidates); i++)
        whole[(size_t)scores[(size_t)i].second] = true;
    return whole;
}

/* Of some draws the two tokens whose choices of pages are the clearest. */
static std::vector<int> clear_tokens(model &m, int position) {
    std::vector<int> best;
    double clearest = -1.0;
    for (int draw = 0; draw < 12; draw++) {
        std::vector<int> tokens = random_tokens(2);
        nearest_choice = 1.0;
        for (int r = 0; r < 2; r++) m.decoder.forward(tokens[(size_t)r], position + r);
        if (nearest_choice > clearest) clearest = nearest_choice, best = tokens;
    }
    return best;
}

static void check_selection(model &m) {
    run r(m);
    const int position = 333, topk = 4, window = 40, sinks = 3;
    int32_t pages[PAGES];
    for (int i = 0; i < 12; i++) pages[i] = m.table[(size_t)i];
    r.p.new_pages = pages, r.p.topk = topk, r.p.window = window, r.p.sinks = sinks;
    simt::launch({{12, KV_HEADS, LAYERS}, 1, 128, 0, true}, stage::step_bounds, r.p);
    m.decoder.sees = [&](int layer, int kv, int at, int t, const ref::vec &q) {
        static std::vector<bool> whole;
        if (t == 0) whole = pages_of(m, layer, kv, at, q, topk, window);
        return whole[(size_t)(t / PAGE)] || t < sinks;
    };
    std::vector<int> tokens = clear_tokens(m, position);
    std::vector<float> got = r.stage_forward(tokens, position, true, 12);
    check_rows(m, got, tokens, position, "selection");
    m.decoder.sees = nullptr;
    r.p.topk = PAGES;
    got = r.stage_forward(tokens, position, true, 12);
    tap_ok(got == r.stage_forward(tokens, position, false, 0),
             "selection: all pages give the bits of whole attention");
}

/* What a selection is made of. */
struct choice {
    int topk, window, sinks, rows, position;
    bool mean, by_head;
    uint32_t layers;
};

/* The pages read, counted by step_finish after the flow. */
static int count_pages(run &r) {
    int32_t read = -1;
    finish_params finish = {};
    finish.input = r.input.data(), finish.capacity = CAPACITY;
    finish.row_pages = r.row_pages.data(), finish.pages_read = &read;
    finish.layers = LAYERS, finish.count_rows = 8, finish.kv_heads = KV_HEADS;
    finish.seen_words = 1;
    int32_t told[2] = {-1, -1};
    finish.results = &read, finish.told = told, finish.told_words = 0; /* nothing but what it counts */
    simt::launch({8, 1, 32, 0, true}, stage::step_finish, finish);
    return told[0] == read ? read : -1;
}

/* The sparse flow against the stage kernels: rows that complete pages on the way, pages without
 * stored bounds, every source and strategy. */
static void check_sparse_flow(model &m) {
    static const choice choices[] = {
        {4, 40, 3, 5, 333, false, false, 3}, {3, 0, 0, 8, 300, false, true, 3},
        {2, 0, 20, 8, 330, true, false, 3},  {5, 17, 1, 1, 479, true, true, 3},
        {1, 0, 5, 8, 477, false, false, 2},  {40, 0, 4, 3, 400, false, false, 3}};
    for (const choice &c : choices) {
        run r(m), plain(m);
        std::vector<int> tokens = random_tokens(c.rows);
        std::vector<int32_t> pages(m.table.begin(), m.table.begin() + c.position / PAGE);
        for (run *one : {&r, &plain}) {
            one->p.new_pages = pages.data(), one->p.topk = c.topk, one->p.window = c.window;
            one->p.sinks = c.sinks, one->p.mean = c.mean, one->p.by_head = c.by_head;
            one->p.select_layers[0] = c.layers;
        }
        const int stored = c.position / PAGE;
        simt::launch({{(uint32_t)stored, KV_HEADS, LAYERS}, 1, 128, 0, true}, stage::step_bounds,
                     r.p);
        std::vector<float> want = plain.stage_forward(tokens, c.position, true, stored, c.layers);
        std::vector<float> got = r.flow_forward(tokens, c.position, true, stored);
        tap_ok(got == want && !r.fault, "sparse flow: %d rows, topk %d, window %d, sinks %d%s%s",
               c.rows, c.topk, c.window, c.sinks, c.mean ? ", mean" : "",
               c.by_head ? ", by head" : "");
        int read = count_pages(r);
        tap_ok(read == plain.read[0] && read > 0, "and reads %d pages after %d", read,
               plain.read[0]);
        tap_ok(r.flow_forward(tokens, c.position, true, stored) == want, "and again");
        std::vector<int> one(tokens.begin(), tokens.begin() + 1);
        got = r.flow_forward(one, c.position, true, stored);
        tap_ok(std::equal(got.begin(), got.end(), want.begin()), "and its first row alone");
        got = r.flow_forward(one, c.position, false);
        tap_ok(got == plain.stage_forward(one, c.position, false, 0) && !r.fault,
               "and whole attention after it");
    }
}

/* Rows together and one by one, over a window of eight. */
static void check_streamed(model &m) {
    run r(m);
    const int position = 250;
    std::vector<int> tokens = random_tokens(11);
    std::vector<float> all = r.stage_forward(tokens, position, false, 0);
    std::vector<uint64_t> winners = r.winners;
    check_rows(m, all, tokens, position, "streamed");
    bool same = true, best = true;
    for (int i = 0; i < 11; i++) {
        std::vector<int> one(tokens.begin() + i, tokens.begin() + i + 1);
        std::vector<float> got = r.stage_forward(one, position + i, false, 0);
        same = same && std::equal(got.begin(), got.end(), all.begin() + i * VOCAB);
        uint64_t top = *std::max_element(winners.begin() + i * BLOCKS,
                                         winners.begin() + (i + 1) * BLOCKS);
        best = best && (long)(0xffffffffu - (uint32_t)top) ==
                           std::max_element(got.begin(), got.end()) - got.begin();
    }
    tap_ok(same, "streamed: rows one by one give the same bits");
    tap_ok(best, "streamed: the head's blocks find the most likely tokens");
}

int main() {
    model m;
    m.streamed = false;
    make_model(m);
    check_flow(m);
    check_prompt(m);
    check_selection(m);
    check_sparse_flow(m);
    model s;
    s.streamed = true;
    make_model(s);
    check_streamed(s);
    check_prompt(s);
    check_selection(s);
    return tap_done();
}

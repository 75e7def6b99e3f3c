/* A step's product whose block is one team, as with inputs of 4096: eight warps share each tile, and none
 * of them waits for another before the first tile's sums meet. So what the outputs look up ahead
 * (qkv's notes of a row's page and turn, its norm's factor) has to be the warp's own. The stage's own
 * kernel (step/layer.cu), of a row alone against the same row among five, to the bit, and these
 * against sums in double precision; the race detector sees a note of another warp's. */
#include "simt.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "dense/product.cuh"

#include "../ref/block_ref.h"

#define CAIRN_LAYERS 1
#define CAIRN_HIDDEN 4096
#define CAIRN_HEADS 2
#define CAIRN_KV_HEADS 1
#define CAIRN_HEAD_DIM 64
#define CAIRN_FFN 64
#define CAIRN_VOCAB 32
#define CAIRN_CONTEXT 512
#define CAIRN_PAGE_SIZE 16
#define CAIRN_PACK_QKV 32
#define CAIRN_PACK_O 32
#define CAIRN_PACK_GATE_UP 32
#define CAIRN_PACK_DOWN 32
#define CAIRN_PACK_HEAD 32
#define CAIRN_PACK_EMBED 32
#define CAIRN_WARPS 8
#define CAIRN_MEETING_TILES 2
#define CAIRN_NARROW 0
#define CAIRN_SPARSE 0
#define CAIRN_ROWS 8
#define CAIRN_PARTS 64
#define CAIRN_BLOCKS 0
#define CAIRN_PRODUCTS 1
#include "step/layer.cu"
#include "dense/pack.cu"

static_assert(product_cut<PACK_Q4_0, HIDDEN>::TEAMS == 1, "one team");

enum { FIVE = 5, THIRD = 3, PAGES = 8, FIRST = 30 /* of the rows' positions: they cross a page */ };

struct layer {
    std::vector<uint8_t> blocks, tiles, exchange;
    std::vector<uint16_t> x, cache;
    std::vector<float> turns;
    std::vector<int32_t> table, input;
    uint16_t *cache_at;
    int32_t fault = 0;
    step_params p;

    layer() : blocks((size_t)QKV * HIDDEN / 32 * 18), tiles((size_t)(QKV / 16 * tile_bytes<PACK_Q4_0, HIDDEN>())),
              exchange((size_t)(RESIDUAL_BYTES + REGION_BYTES)), x((size_t)FIVE * HIDDEN),
              cache((size_t)PAGES * 2 * KV_HEADS * PAGE * HEAD_DIM), table{5, 2, 7, 1},
              input((size_t)(STEP_HEAD + STEP_ARRAYS * ROWS)), cache_at(cache.data()) {
        for (auto &b : blocks) b = (uint8_t)simt::random_u32();
        for (size_t at = 0; at < blocks.size(); at += 18) {
            const uint16_t d = simt::f32_to_f16(0.01 + 0.01 * simt::random_uniform());
            std::memcpy(&blocks[at], &d, 2);
        }
        for (auto &v : x) v = simt::f32_to_f16(simt::random_normal());
        for (int i = 0; i < CAIRN_CONTEXT * HEAD_DIM / 2; i++) {
            const double angle = 6.28 * simt::random_uniform();
            turns.push_back((float)cos(angle)), turns.push_back((float)sin(angle));
        }
        pack_params q = {blocks.data(), tiles.data(), TYPE_Q4_0, PACK_Q4_0, QKV, HIDDEN, 0, 0};
        simt::launch({QKV * HIDDEN / 32 / 256, 1, 256, 0, true}, pack, q);
        std::memset(&p, 0, sizeof p);
        p.qkv = tiles.data(), p.rope = turns.data(), p.kv = &cache_at, p.input = input.data();
        p.page_table = table.data(), p.exchange = exchange.data(), p.fault = &fault;
        p.table_stride = 4, p.capacity = ROWS, p.norm_eps = 1e-5f, p.input_scale = 0.25f;
    }

    /* q, k and v of rows `first` on; keys and values as the cache has them. */
    std::vector<uint16_t> run(int first, int rows) {
        int32_t *array = input.data() + STEP_HEAD;
        uint8_t *at = region(p, 0, 0);
        std::vector<uint16_t> out;
        std::memset(exchange.data(), 0, exchange.size());
        std::fill(cache.begin(), cache.end(), 0x7e00);
        input[STEP_ROWS] = input[STEP_LOGIT_COUNT] = rows, input[STEP_GROUPS] = 1;
        for (int r = 0; r < rows; r++) {
            array[STEP_POSITION * ROWS + r] = FIRST + first + r;
            array[STEP_ROPE * ROWS + r] = 2 * (FIRST + first + r);
            std::memcpy(at + HIDDEN_AT + r * HIDDEN * 2, &x[(size_t)((first + r) * HIDDEN)], HIDDEN * 2);
            for (int i = 0; i < SQUARES; i++)
                ((float *)(at + SQUARES_AT))[r * SQUARES + i] = (float)(first + r + 1 + i % 3);
        }
        simt::launch({3, 1, 256, (uint32_t)PRODUCT_SHARED, true}, step_qkv, p);
        for (int r = 0; r < rows; r++) {
            const int position = FIRST + first + r;
            const uint16_t *row = (const uint16_t *)(at + QKV_AT) + r * QKV;
            out.insert(out.end(), row, row + QKV);
            for (int kind = 0; kind < 2; kind++) {
                const int64_t plane = (int64_t)table[(size_t)(position / PAGE)] * 2 + kind;
                const uint16_t *kept = &cache[(size_t)((plane * PAGE + position % PAGE) * HEAD_DIM)];
                out.insert(out.end(), kept, kept + HEAD_DIM);
            }
        }
        return out;
    }

    double product(int row, int output) const {
        double sum = 0.0, squares = 0.0;
        for (int k = 0; k < HIDDEN; k++)
            sum += block_ref_value(TYPE_Q4_0, &blocks[(size_t)(output * HIDDEN / 32) * 18], k) *
                   simt::f16_to_f32(x[(size_t)(row * HIDDEN + k)]);
        for (int i = 0; i < SQUARES; i++) squares += row + 1 + i % 3;
        return sum / sqrt(squares / HIDDEN + 1e-5) / 0.25;
    }
    /* Turned, but for values. */
    double wanted(int row, int output) const {
        const int d = output % HEAD_DIM, even = output - d % 2;
        const float *turn = &turns[(size_t)(2 * (FIRST + row) * HEAD_DIM + d / 2 * 2)];
        if (output >= (HEADS + KV_HEADS) * HEAD_DIM) return product(row, output);
        return d % 2 ? product(row, even) * turn[1] + product(row, even + 1) * turn[0]
                     : product(row, even) * turn[0] - product(row, even + 1) * turn[1];
    }
};

int main() {
    static layer l;
    const int each = QKV + 2 * HEAD_DIM;
    const std::vector<uint16_t> five = l.run(0, FIVE);
    double worst = 0.0;
    for (int r = 0; r < FIVE; r += FIVE - 1)
        for (int i = 0; i < each; i++) {
            const int output = i < QKV ? i : HEADS * HEAD_DIM + i - QKV;
            const double want = l.wanted(r, output);
            const double e = std::fabs(simt::f16_to_f32(five[(size_t)(r * each + i)]) - want) / (1.0 + std::fabs(want));
            worst = e <= worst ? worst : e == e ? e : 1e9;
        }
    tap_ok(worst < 1e-3, "q, k and v of five rows by one team: off by %.1e at most", worst);
    const std::vector<uint16_t> alone = l.run(THIRD, 1);
    tap_ok(std::equal(alone.begin(), alone.end(), five.begin() + THIRD * each),
           "a row alone has the same bits, in the exchange and in its page");
    return tap_done();
}

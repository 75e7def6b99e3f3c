/* dense/raw.cuh: blocks of GGUF as dense/product.cuh multiplies them, straight from their rows: the
 * same cut of K, operands, order and bits as of the packed formats of the same name. A group is what
 * G units of 16 rows have, row by row; a lane finds the eight inputs of its operand in one half of
 * the nibbles of eight bytes.
 *
 * Rows of the weights begin at multiples of 16 bytes, G blocks are a multiple of 16 bytes
 * (raw_fits), and there are whole tiles of 16 rows. */
#ifndef CAIRN_RAW_CUH
#define CAIRN_RAW_CUH

#include "dense/product.cuh"

/* Numbers of the formats: RAW and the number of GGUF's block type. */
constexpr int RAW_Q4_0 = RAW + 2, RAW_Q4_1 = RAW + 3;

template <> struct packed<RAW_Q4_0> { static constexpr int UNIT_BYTES = 16 * 18; };
template <> struct packed<RAW_Q4_1> { static constexpr int UNIT_BYTES = 16 * 20; };

template <int FORMAT, int INPUTS> CAIRN_INLINE constexpr bool raw_fits() {
    return packed_group<FORMAT, INPUTS>() * packed<FORMAT>::UNIT_BYTES % 256 == 0;
}

/* Bytes of BLOCK, nibbles behind HEAD. */
template <int G, int BLOCK, int HEAD> struct raw_nibbles {
    static constexpr float LOW = 16777216.0f, HIGH = LOW;
    static constexpr int ROW = G * BLOCK;

    /* The lane's eight integers of unit u of a row, as bytes. */
    CAIRN_METHOD void load(const unsigned char *row, int u, uint32_t *n) {
        const unsigned char *at = row + u * BLOCK + HEAD + lane_anew() % 2 * 8;
        if ((u * BLOCK + HEAD) % 4 == 0) {
            n[0] = ((const uint32_t *)at)[0], n[1] = ((const uint32_t *)at)[1];
        } else {
            const uint32_t *w = (const uint32_t *)(at - 2);
            const uint32_t middle = w[1];
            n[0] = byte_permute(w[0], middle, 0x5432u), n[1] = byte_permute(middle, w[2], 0x5432u);
        }
        const int half = lane_anew() % 4 / 2 * 4;
        n[0] = n[0] >> half & 0x0f0f0f0fu, n[1] = n[1] >> half & 0x0f0f0f0fu;
    }
    CAIRN_METHOD float scale(const unsigned char *row, int u) {
        return f16_to_f32(f16{*(const uint16_t *)(row + u * BLOCK)});
    }
    /* What is constant in units 2t and 2t + 1 (or the one) of a row, f16 at `from` of the blocks. */
    CAIRN_METHOD uint32_t two(const unsigned char *row, int from) {
        const unsigned char *at = row + lane_anew() % 4 * (2 * BLOCK) + from;
        const uint32_t first = *(const uint16_t *)at;
        return G == 1 ? first : first | (uint32_t)*(const uint16_t *)(at + BLOCK) << 16;
    }
    CAIRN_METHOD void add_minima(float (*sum)[4], const unsigned char *group, const band_sums *xs) {
        const unsigned char *row = group + lane_anew() / 4 * ROW;
        uint32_t a[2] = {};
        if (low_part<G>::mine()) a[0] = two(row, HEAD - 2), a[1] = two(row + 8 * ROW, HEAD - 2);
        add_sums<G>(sum, 32.0f / LOW, 32.0f / HIGH, a, xs);
    }
    template <int UNITS>
    CAIRN_METHOD void add(float (*sum)[4], const unsigned char *group, const band_operands<UNITS> &b, int from) {
        const unsigned char *row = group + lane_anew() / 4 * ROW, *high = row + 8 * ROW;
#pragma unroll
        for (int u = 0; u < G; u++) {
            warp_sync(); /* registers are scarce: no loads ahead */
            uint32_t n[2], m[2];
            float d[BANDS][4] = {};
            load(row, u, n), load(high, u, m);
#pragma unroll
            for (int s = 0; s < 2; s++) {
                const uint32_t a[4] = {byte_permute(n[s], 0, 0x4140u), byte_permute(m[s], 0, 0x4140u),
                                       byte_permute(n[s], 0, 0x4342u), byte_permute(m[s], 0, 0x4342u)};
                multiply_bands(d, a, b, from + u, s);
            }
            scale_bands(sum, d, scale(row, u), scale(high, u));
        }
    }
};
template <int G> struct group_of<RAW_Q4_0, G> : raw_nibbles<G, 18, 2> {
    static constexpr float BIAS = -8.0f;
};
template <int G> struct group_of<RAW_Q4_1, G> : raw_nibbles<G, 20, 4> {
    static constexpr float BIAS = 1.0f;
};

template <int FORMAT, int INPUTS> struct raw_source {
    typedef product_cut<FORMAT, INPUTS> cut;
    static_assert(raw_fits<FORMAT, INPUTS>(), "raw: G blocks are a multiple of 16 bytes");
    static constexpr int STEP = cut::BYTES / 16, PIECES = STEP / 16; /* of a row, of 16 bytes */
    static constexpr int ROW_BYTES = cut::GROUPS * STEP;

    CAIRN_METHOD const uint8_t *at(const uint8_t *weights, int tile, int group) {
        return weights + (int64_t)tile * 16 * ROW_BYTES + group * STEP;
    }
    CAIRN_METHOD void copy(shared_addr to, const uint8_t *from) {
#pragma unroll
        for (int first = 0; first < 16 * PIECES; first += WARP) {
            const int piece = first + lane_anew();
            if (piece < 16 * PIECES)
                copy_async16_once(to + first * 16,
                                  from + piece / PIECES * ROW_BYTES + piece % PIECES * 16);
        }
    }
};
template <int INPUTS> struct group_source<RAW_Q4_0, INPUTS> : raw_source<RAW_Q4_0, INPUTS> {};
template <int INPUTS> struct group_source<RAW_Q4_1, INPUTS> : raw_source<RAW_Q4_1, INPUTS> {};

#endif

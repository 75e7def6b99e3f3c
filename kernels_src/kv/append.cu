/* kv_append: each row's K, rotated, and V into its slot of the paged cache, in the cache's type.
 *
 * A lane holds 16 values of a head, chosen so that it has both values of a rotary pair. It works on
 * one head of its row after another and loads the next meanwhile. A row's angles are computed once,
 * into shared memory.
 *
 * Constants  CAIRN_HEAD_DIM     multiple of 16 up to 256
 *            CAIRN_SOURCE_TYPE  of k and v: 1 f32, 2 f16, 3 bf16 (cairn_type)
 *            CAIRN_CACHE_TYPE   the same, or 4 e4m3: x / s, s = max(|x| of the head, 1e-4) / 448
 *            CAIRN_ROPE         0 none, 1 interleaved pairs, 2 half split
 * Launch     grid ceil(rows / rows_each), block up to 256: a row has heads_each x LANES threads;
 *            with rope 64 * LANES bytes of shared memory for each of its rows
 * matrix: CAIRN_HEAD_DIM=128 CAIRN_SOURCE_TYPE=2 CAIRN_CACHE_TYPE=2 CAIRN_ROPE=1
 * matrix: CAIRN_HEAD_DIM=128 CAIRN_SOURCE_TYPE=2 CAIRN_CACHE_TYPE=4 CAIRN_ROPE=1
 * matrix: CAIRN_HEAD_DIM=80 CAIRN_SOURCE_TYPE=3 CAIRN_CACHE_TYPE=4 CAIRN_ROPE=2
 * matrix: CAIRN_HEAD_DIM=256 CAIRN_SOURCE_TYPE=1 CAIRN_CACHE_TYPE=4 CAIRN_ROPE=2
 * matrix: CAIRN_HEAD_DIM=48 CAIRN_SOURCE_TYPE=3 CAIRN_CACHE_TYPE=1 CAIRN_ROPE=0 */
#include "device/common.cuh"
#include "abi/kv.h"
#include "dense/rope.cuh"

#define DIM CAIRN_HEAD_DIM
#define PIECES (DIM / 8)
#define LANES (DIM > 128 ? 16 : DIM > 64 ? 8 : DIM > 32 ? 4 : DIM > 16 ? 2 : 1)
#define SOURCE_BYTES (CAIRN_SOURCE_TYPE == 1 ? 4 : 2)
#define CACHE_BYTES (CAIRN_CACHE_TYPE == 1 ? 4 : CAIRN_CACHE_TYPE == 4 ? 1 : 2)
#define WORDS (SOURCE_BYTES / 2) /* 16-byte words of a piece */
/* Blocks of a multiprocessor: as many as the registers allow. */
#define BLOCKS (CAIRN_SOURCE_TYPE != 1 ? 4 : CAIRN_CACHE_TYPE == 4 ? 2 : 3)

/* A lane's first piece of every head, and how many pieces further its second is: in what rotates
 * half of that, so that both halves of a pair are here. Lanes past the head have no part. */
struct part { int piece, apart; bool rotates; };

CAIRN_INLINE part part_of(const kv_append_params &p, int lane) {
    const int half = p.rotary_pairs / 8; /* pieces of half of what rotates */
    if (lane < half) return {lane, half, true};
    return {min_of(lane, PIECES / 2 - 1) + half, PIECES / 2 - half, false};
}

/* ---- two pieces ---- */

struct two_of { u32x4 word[2 * WORDS]; };

CAIRN_INLINE two_of load_two(const unsigned char *from, int apart, bool valid) {
    two_of x;
#pragma unroll
    for (int i = 0; i < 2 * WORDS; i++) {
        const u32x4 *word = (const u32x4 *)(i < WORDS ? from : from + apart * (8 * SOURCE_BYTES));
        x.word[i] = valid ? load_once_early(word + i % WORDS) : u32x4{0, 0, 0, 0};
    }
    return x;
}

CAIRN_INLINE void widen_two(const two_of &x, float *v) {
#pragma unroll
    for (int i = 0; i < 2 * WORDS; i++) {
        const uint32_t w[4] = {x.word[i].x, x.word[i].y, x.word[i].z, x.word[i].w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if constexpr (CAIRN_SOURCE_TYPE == 1) {
                v[4 * i + j] = as_f32(w[j]);
            } else {
                f32x2 two = CAIRN_SOURCE_TYPE == 2 ? unpack_f16x2(w[j]) : unpack_bf16x2(w[j]);
                v[8 * i + 2 * j] = two.x;
                v[8 * i + 2 * j + 1] = two.y;
            }
        }
    }
}

/* Eight values of the cache's type at a multiple of 8 of them. */
CAIRN_INLINE void store_piece(unsigned char *to, const float *v) {
    if constexpr (CAIRN_CACHE_TYPE == 1) {
        *(f32x4 *)to = {v[0], v[1], v[2], v[3]};
        *(f32x4 *)(to + 16) = {v[4], v[5], v[6], v[7]};
    } else if constexpr (CAIRN_CACHE_TYPE == 2) {
        *(u32x4 *)to = {pack_f16x2(v[0], v[1]), pack_f16x2(v[2], v[3]), pack_f16x2(v[4], v[5]),
                        pack_f16x2(v[6], v[7])};
    } else if constexpr (CAIRN_CACHE_TYPE == 3) {
        *(u32x4 *)to = {pack_bf16x2(v[0], v[1]), pack_bf16x2(v[2], v[3]), pack_bf16x2(v[4], v[5]),
                        pack_bf16x2(v[6], v[7])};
    } else {
        *(u32x2 *)to = {pack_e4m3x2(v[0], v[1]) | (uint32_t)pack_e4m3x2(v[2], v[3]) << 16,
                        pack_e4m3x2(v[4], v[5]) | (uint32_t)pack_e4m3x2(v[6], v[7]) << 16};
    }
}

/* ---- rotation ---- */

/* A row's angles in shared memory: each lane's 8 pairs, two of them side by side. */
CAIRN_INLINE int angle_at(int lane, int i) { return (i / 2 * LANES + lane) * 2 + i % 2; }

/* Each angle is computed by one of the row's threads, of which this is number `rank`. */
CAIRN_INLINE void write_angles(const kv_append_params &p, rotation *row, int position, int rank) {
    const int half = p.rotary_pairs / 8, lane = rank % LANES;
    if (lane >= half) return;
    for (int i = rank / LANES; i < 8; i += p.heads_each) {
        int pair = CAIRN_ROPE == 2 ? 8 * lane + i : 4 * (i < 4 ? lane : lane + half) + i % 4;
        row[angle_at(lane, i)] = rotation_of(position, p.turns[pair]);
    }
}

CAIRN_INLINE void rotate_two(const rotation *row, int lane, float *v) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float *first = v + (CAIRN_ROPE == 2 ? i : 2 * i), x = *first;
        float *second = first + (CAIRN_ROPE == 2 ? 8 : 1), y = *second;
        const f32x4 two = *(const f32x4 *)(row + angle_at(lane, i & ~1));
        const float cosine = i % 2 ? two.z : two.x, sine = i % 2 ? two.w : two.y;
        *first = x * cosine - y * sine;
        *second = x * sine + y * cosine;
    }
}

/* ---- scales ---- */

/* m / 448, rounded to nearest (Markstein, "Computation of elementary functions on the IBM RISC
 * System/6000", 1990), for m >= 1e-4; infinite for an infinite m. */
CAIRN_INLINE float scale_of(float most) {
    const float inverse = 1.0f / 448.0f, quotient = mul_f32(most, inverse);
    const float rest = fminf(fma_f32(-quotient, 448.0f, most), most); /* which is never NaN */
    return fma_f32(rest, inverse, quotient);
}

/* x / scale as e4m3 has it, a division being several times as long. 1 / scale is `inverse` + `rest`
 * to 2^-40 of it, neither below 0, so that -0 keeps its sign; their product with x is rounded once.
 *
 * That gives the same e4m3 as the f32 nearest to x / scale. Else x / scale would be within 2^-40 of
 * the middle between an f32 that is itself the middle of two e4m3, and the f32 beside it. In whole
 * numbers, with x ~ X < 2^11 (f16, bf16), scale ~ S < 2^24, that middle ~ M = m 2^20 +- 1 where
 * 16 <= m <= 32: |X 2^k - M S| < 2^9, k >= 37. So S = u 2^20 + w with |w| < 2^9, u <= 16, and 2^17
 * divides m w +- u, which is smaller: it is 0, so S = 2^24 - 1, and no f16 or bf16 / 448 is. */
CAIRN_INLINE void divide_narrow(float scale, float *v) {
    if (CAIRN_SOURCE_TYPE == 3 && scale > 1e30f) { /* or `rest` would be a denormal */
        scale *= 5.421010862427522e-20f;           /* 2^-64 */
#pragma unroll
        for (int i = 0; i < 16; i++) v[i] *= 5.421010862427522e-20f;
    }
    scale = fminf(scale, 3.4028235e38f); /* an infinite one gives inverse and rest 0 */
    const float inverse = mul_f32(rcp_fast(scale), 0.99999976f);
    const float rest = mul_f32(fma_f32(-scale, inverse, 1.0f), inverse);
#pragma unroll
    for (int i = 0; i < 16; i++) v[i] = fma_f32(v[i], inverse, mul_f32(v[i], rest));
}

/* x / scale, rounded to nearest (Markstein), for an f32 x; -0 keeps its sign. */
CAIRN_INLINE void divide_f32(float scale, float *v) {
    const float inverse = div_f32(1.0f, scale);
    scale = fminf(scale, 3.4028235e38f);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float quotient = mul_f32(v[i], inverse);
        v[i] = fma_f32(fma_f32(quotient, scale, -v[i]), -inverse, quotient);
    }
}

/* ---- rows ---- */

/* Where a row goes: `page` is -1 when it goes nowhere, which its first lane has reported. */
struct append_slot { int page, position; };

CAIRN_INLINE append_slot find_slot(const paged_rows &at, int r, bool reports) {
    int sequence = at.sequences ? at.sequences[r] : r, position = at.positions[r], page = -1;
    if (sequence < 0 || sequence >= at.sequence_count) {
        if (reports) report_error(at.error, CAIRN_FAULT_ID, r, sequence);
    } else if (position < 0 || position / at.page_size >= at.max_pages) {
        if (reports) report_error(at.error, CAIRN_FAULT_POSITION, r, position);
    } else {
        page = at.page_table[(int64_t)sequence * at.max_pages + position / at.page_size];
        if (page < 0 || page >= at.pages) {
            if (reports) report_error(at.error, CAIRN_FAULT_ID, r, page);
            page = -1;
        }
    }
    return {page, position};
}

/* Where a lane's part of a page begins. */
struct page_part { unsigned char *cache; float *scales; };

CAIRN_INLINE page_part page_part_of(const kv_append_params &p, int page, int piece) {
    const int64_t row = (int64_t)page * 2 * p.at.kv_heads * p.at.page_size;
    return {(unsigned char *)p.at.cache + (row * DIM + piece * 8) * CACHE_BYTES, p.scales + row};
}

/* A head of K or V into a row of the page: scaled where the cache is e4m3. All lanes come here. */
CAIRN_INLINE void put_two(const page_part &to, uint32_t row, int apart, bool valid, bool first,
                          float *v) {
    if constexpr (CAIRN_CACHE_TYPE == 4) {
        float most = 1e-4f;
#pragma unroll
        for (int i = 0; i < 16; i++) most = fmaxf(most, fabsf(v[i]));
        const float scale = scale_of(warp_max(most, LANES));
        if (valid && first) to.scales[row] = scale;
        if constexpr (CAIRN_SOURCE_TYPE == 1) divide_f32(scale, v);
        else divide_narrow(scale, v);
    }
    if (!valid) return;
    unsigned char *at = to.cache + (uint64_t)row * (DIM * CACHE_BYTES);
    store_piece(at, v);
    store_piece(at + apart * (8 * CACHE_BYTES), v + 8);
}

CAIRN_KERNEL(kv_append, 256, BLOCKS, kv_append_params) {
    const int lane = thread_id() % LANES, group = thread_id() / LANES;
    const int within = group / p.heads_each, first = group % p.heads_each;
    const int r = block_id() * p.rows_each + within, heads = p.at.kv_heads;
    const bool mine = within < p.rows_each && r < p.rows, whole = mine && lane < PIECES / 2;
    const part at = part_of(p, lane);
    const int64_t from = ((int64_t)r * heads * DIM + at.piece * 8) * SOURCE_BYTES;
    const unsigned char *from_k = (const unsigned char *)p.k + from;
    const unsigned char *from_v = (const unsigned char *)p.v + from;
    two_of k = load_two(from_k + first * (DIM * SOURCE_BYTES), at.apart, whole && first < heads);
    two_of v = load_two(from_v + first * (DIM * SOURCE_BYTES), at.apart, whole && first < heads);
    append_slot slot = {-1, 0};
    if (mine) slot = find_slot(p.at, r, lane == 0 && first == 0);
    rotation *angles = (rotation *)shared_base() + within * (LANES * 8);
    if (CAIRN_ROPE) {
        if (slot.page >= 0) write_angles(p, angles, slot.position, first * LANES + lane);
        block_sync();
    }
    const page_part to = page_part_of(p, slot.page, at.piece);
    const uint32_t offset = (uint32_t)slot.position % (uint32_t)p.at.page_size;
    for (int start = 0; start < heads; start += p.heads_each) {
        const int head = start + first, next = head + p.heads_each;
        const bool valid = whole && slot.page >= 0 && head < heads, more = whole && next < heads;
        const uint32_t row = (uint32_t)(head * p.at.page_size) + offset;
        float x[16];
        widen_two(k, x);
        k = load_two(from_k + next * (DIM * SOURCE_BYTES), at.apart, more);
        if (CAIRN_ROPE && valid && at.rotates) rotate_two(angles, lane, x);
        put_two(to, row, at.apart, valid, lane == 0, x);
        widen_two(v, x);
        v = load_two(from_v + next * (DIM * SOURCE_BYTES), at.apart, more);
        put_two(to, row + (uint32_t)(heads * p.at.page_size), at.apart, valid, lane == 0, x);
    }
}

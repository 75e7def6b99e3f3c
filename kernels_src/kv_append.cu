/* kv_append: each row's K, rotated, and V into its slot of the paged cache, in the cache's type.
 *
 * A lane holds 8 values of a head and works on several heads of one row, so that the row is looked
 * up, and its angles computed, once. Loads and stores of a warp cover whole heads.
 *
 * Constants  CAIRN_HEAD_DIM     multiple of 16 up to 256
 *            CAIRN_SOURCE_TYPE  of k and v: 1 f32, 2 f16, 3 bf16 (cairn_type)
 *            CAIRN_CACHE_TYPE   the same, or 4 e4m3: x / s, s = max(|x| of the head, 1e-4) / 448
 *            CAIRN_ROPE         0 none, 1 interleaved pairs, 2 half split
 *            CAIRN_HEADS        of a lane at a time, loaded together; 1: the smallest code
 * Launch     grid ceil(rows / rows_each), block up to 256: a row has heads_each x LANES threads
 * matrix: CAIRN_HEAD_DIM=128 CAIRN_SOURCE_TYPE=2 CAIRN_CACHE_TYPE=2 CAIRN_HEADS=4 CAIRN_ROPE=1
 * matrix: CAIRN_HEAD_DIM=128 CAIRN_SOURCE_TYPE=1 CAIRN_CACHE_TYPE=4 CAIRN_HEADS=2 CAIRN_ROPE=2
 * matrix: CAIRN_HEAD_DIM=48 CAIRN_SOURCE_TYPE=3 CAIRN_CACHE_TYPE=1 CAIRN_HEADS=1 CAIRN_ROPE=0 */
#include "common.cuh"
#include "rope.cuh"

#define DIM CAIRN_HEAD_DIM
#define PIECES (DIM / 8)
#define LANES (PIECES > 16 ? 32 : PIECES > 8 ? 16 : PIECES > 4 ? 8 : PIECES > 2 ? 4 : 2)
#define SOURCE_BYTES (CAIRN_SOURCE_TYPE == 1 ? 4 : 2)
#define CACHE_BYTES (CAIRN_CACHE_TYPE == 1 ? 4 : CAIRN_CACHE_TYPE == 4 ? 1 : 2)
#define WORDS (SOURCE_BYTES / 2) /* 16-byte words of a piece */
#define HEADS CAIRN_HEADS
/* Blocks of a multiprocessor: as many as the registers allow. */
#define BLOCKS (HEADS == 1 ? 4 : CAIRN_ROPE == 2 ? 2 : HEADS == 4 || CAIRN_SOURCE_TYPE == 1 ? 3 : 4)

struct piece_of { u32x4 word[WORDS]; };

CAIRN_INLINE piece_of load_piece(const void *from, int64_t piece, bool valid) {
    const u32x4 *words = (const u32x4 *)from + piece * WORDS;
    piece_of x;
#pragma unroll
    for (int i = 0; i < WORDS; i++)
        x.word[i] = valid ? load_once_early(words + i) : u32x4{0, 0, 0, 0};
    return x;
}

CAIRN_INLINE void widen_piece(const piece_of &x, float *v) {
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        uint32_t w[4] = {x.word[i].x, x.word[i].y, x.word[i].z, x.word[i].w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if constexpr (CAIRN_SOURCE_TYPE == 1) {
                v[4 * i + j] = as_f32(w[j]);
            } else {
                f32x2 two = CAIRN_SOURCE_TYPE == 2 ? unpack_f16x2(w[j]) : unpack_bf16x2(w[j]);
                v[2 * j] = two.x;
                v[2 * j + 1] = two.y;
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

/* The angles of a lane's values: with interleaved pairs four, with halves one for each value. */
#define ANGLES (CAIRN_ROPE == 2 ? 8 : CAIRN_ROPE == 1 ? 4 : 1)
struct angles { rotation of[ANGLES]; int partner; float sign; };

CAIRN_INLINE angles find_angles(const kv_append_params &p, int position, int piece) {
    const int pairs = p.rotary_pairs, half = pairs / 8; /* pieces of a half */
    const bool second = piece >= half;
    angles a;
    a.partner = second ? piece - half : piece + half;
    a.sign = second ? 1.0f : -1.0f;
    const int first = CAIRN_ROPE == 2 ? 8 * (second ? piece - half : piece) : 4 * piece;
#pragma unroll
    for (int i = 0; i < ANGLES; i++) a.of[i] = rotation_of(position, p.turns[first + i]);
    return a;
}

/* All lanes of a head come here; only those whose values rotate change them. */
CAIRN_INLINE void rotate_piece(const angles &a, bool rotates, float *v) {
    if constexpr (CAIRN_ROPE == 2) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float other = shuffle(v[i], a.partner & (LANES - 1), LANES);
            if (rotates) v[i] = v[i] * a.of[i].cosine + a.sign * other * a.of[i].sine;
        }
    } else if (CAIRN_ROPE == 1 && rotates) {
#pragma unroll
        for (int i = 0; i < ANGLES; i++) {
            float x = v[2 * i], y = v[2 * i + 1];
            v[2 * i] = x * a.of[i].cosine - y * a.of[i].sine;
            v[2 * i + 1] = x * a.of[i].sine + y * a.of[i].cosine;
        }
    }
}

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

/* x / y, rounded to nearest, by 1 / y rounded to nearest (Markstein, "Computation of elementary
 * functions on the IBM RISC System/6000", 1990): a division for each value would take three times
 * as long as the copy. The largest float stands for an infinite y, of which 1 / y is 0. */
CAIRN_INLINE float divided(float x, float y, float inverse) {
    const float quotient = mul_f32(x, inverse);
    return fma_f32(fma_f32(-quotient, y, x), inverse, quotient);
}

/* One head's piece of K or V: scaled where the cache is e4m3, and stored. All lanes come here. */
CAIRN_INLINE void put_piece(const kv_append_params &p, const append_slot &slot, int k_or_v,
                            int head, int piece, bool valid, float *v) {
    const int64_t row = (((int64_t)slot.page * 2 + k_or_v) * p.at.kv_heads + head) *
                        p.at.page_size + slot.position % p.at.page_size;
    if constexpr (CAIRN_CACHE_TYPE == 4) {
        float most = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) most = max_of(most, as_f32(as_u32(v[i]) & 0x7fffffffu));
        most = max_of(warp_max(most, LANES), 1e-4f);
        const float scale = div_f32(most, 448.0f), inverse = div_f32(1.0f, scale);
        if (valid && piece == 0) p.scales[row] = scale;
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = divided(v[i], min_of(scale, 3.4028235e38f), inverse);
    }
    if (valid) store_piece((unsigned char *)p.at.cache + (row * DIM + piece * 8) * CACHE_BYTES, v);
}

CAIRN_KERNEL(kv_append, 256, BLOCKS, kv_append_params) {
    const int lane = thread_id() % LANES, group = thread_id() / LANES;
    const int within = group / p.heads_each, first = group % p.heads_each;
    const int r = block_id() * p.rows_each + within;
    const int piece = min_of(lane, PIECES - 1);
    const bool mine = within < p.rows_each && r < p.rows, whole = mine && lane < PIECES;
    const bool rotates = lane < p.rotary_pairs / 4; /* a lane past the head stays at 0 */
    append_slot slot = {-1, 0};
    angles turn;
    for (int start = 0; start < p.at.kv_heads; start += HEADS * p.heads_each) {
        piece_of k[HEADS], v[HEADS];
#pragma unroll
        for (int j = 0; j < HEADS; j++) {
            int head = start + j * p.heads_each + first;
            int64_t from = ((int64_t)r * p.at.kv_heads + head) * PIECES + piece;
            k[j] = load_piece(p.k, from, whole && head < p.at.kv_heads);
            v[j] = load_piece(p.v, from, whole && head < p.at.kv_heads);
        }
        if (start == 0 && mine) slot = find_slot(p.at, r, lane == 0 && first == 0);
        if (start == 0 && CAIRN_ROPE)
            turn = find_angles(p, slot.page < 0 ? 0 : slot.position, rotates ? piece : 0);
#pragma unroll
        for (int j = 0; j < HEADS; j++) {
            int head = start + j * p.heads_each + first;
            bool valid = whole && slot.page >= 0 && head < p.at.kv_heads;
            float x[8];
            widen_piece(k[j], x);
            rotate_piece(turn, rotates, x);
            put_piece(p, slot, 0, head, piece, valid, x);
            widen_piece(v[j], x);
            put_piece(p, slot, 1, head, piece, valid, x);
        }
    }
}

/* A prompt's attention, and its head. See step/prompt.cu.
 *
 *   prompt_attend    causal attention of 64 rows of a head to all earlier tokens
 *   prompt_head      the head of step/stages.cuh, of the rows that prompt_last left
 *
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0. Buffers: step/prompt.cuh.
 * Grids: attend (ceil(rows / 64), heads), 128 threads; head any number of blocks x windows of eight
 * rows, CAIRN_WARPS warps.
 * Shared memory: attend 512 x head_dim, head as step_head. Sync: one block_sync a tile of 64 keys.
 * A row's results do not depend on the other rows of the chunk, nor on where the chunk begins.
 * Reference: tests/ref/decoder_step.h.
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0
 * matrix: CAIRN_LAYERS=16 CAIRN_HIDDEN=2048 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=8192 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=16
 * matrix: + CAIRN_PACK_QKV=8 CAIRN_PACK_O=8 CAIRN_PACK_GATE_UP=8 CAIRN_PACK_DOWN=8
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=256 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0
 * matrix: CAIRN_LAYERS=16 CAIRN_HIDDEN=2048 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=8192 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=16
 * matrix: + CAIRN_PACK_QKV=16 CAIRN_PACK_O=16 CAIRN_PACK_GATE_UP=16 CAIRN_PACK_DOWN=16
 * matrix: + CAIRN_PACK_HEAD=16 CAIRN_PACK_EMBED=16 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=4096 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=14336 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=33 CAIRN_PACK_GATE_UP=32 CAIRN_PACK_DOWN=35
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=32 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0 */
#include "step/prompt.cuh"

CAIRN_KERNEL(prompt_head, THREADS, STAGE_BLOCKS, step_params) {
    workspace work{nullptr, (float *)shared_base(), 0};
    row_window rows = logits_of(p, block_id_y());
    if (rows.count > 0) stage_head(p, rows, region(p, 0, 0), work, block_id(), grid_blocks());
    else start_input();
}

constexpr int TILE_KEYS = 64;
constexpr int TILE_BYTES = TILE_KEYS * HEAD_DIM * 2;          /* of keys; as many of values */

CAIRN_INLINE uint32_t tile_key_at(int key, int piece) {
    return (uint32_t)(key * PIECES + (piece ^ (key & 1) * 4)) * 16;
}
CAIRN_INLINE uint32_t tile_value_at(int key, int piece) {
    return (uint32_t)(TILE_BYTES + (key * PIECES + (piece ^ (key & 7))) * 16);
}

/* Starts the copy of keys and values [tile TILE_KEYS, ...) before `end`; zeros from there on. */
CAIRN_INLINE void fetch_tile(const step_params &p, const int32_t *table, int kv_head, int tile,
                             int end, unsigned char *memory) {
    shared_addr to(memory + tile % 2 * 2 * TILE_BYTES);
    const uint16_t *cache = p.kv[p.layer];
    for (int i = thread_id(); i < TILE_KEYS * PIECES; i += 128) {
        int key = i / PIECES, piece = i % PIECES, position = tile * TILE_KEYS + key;
        bool valid = position < end;
        const uint16_t *from = cache;
        if (valid) {
            int64_t plane = (int64_t)table[position / PAGE] * 2 * KV_HEADS + kv_head;
            from += (plane * PAGE + position % PAGE) * HEAD_DIM + piece * 8;
        }
        copy_async16(to + tile_key_at(key, piece), from, valid);
        copy_async16(to + tile_value_at(key, piece),
                     valid ? from + (int64_t)KV_HEADS * PAGE * HEAD_DIM : from, valid);
    }
    copy_async_commit();
}

/* The running softmax of a warp's 16 rows: row g and row g + 8 of each lane. */
struct running {
    float top[2], total[2];
    float o[HEAD_DIM / 8][4];
};

CAIRN_INLINE void attend_tile(const unsigned char *memory, const uint32_t *query, int tile,
                              int position, running &r) {
    int lane = lane_id(), g = lane / 4, t = lane % 4;
    float s[TILE_KEYS / 8][4] = {};
#pragma unroll
    for (int n = 0; n < TILE_KEYS / 8; n++) {
#pragma unroll
        for (int u = 0; u < HEAD_DIM / 32; u++) {
            u32x4 b = *(const u32x4 *)(memory + tile_key_at(n * 8 + g, u * 4 + t));
            uint32_t low[2] = {b.x, b.y}, high[2] = {b.z, b.w};
            mma_f16(s[n], query + u * 8, low);
            mma_f16(s[n], query + u * 8 + 4, high);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int key = tile * TILE_KEYS + n * 8 + 2 * t + i % 2;
            s[n][i] = key <= position + i / 2 * 8 ? s[n][i] * SCORE_SCALE : NOTHING;
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = r.top[half];
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; n++)
            top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        top = quad_max(top);
        float old = exp2_fast(r.top[half] - top), total = 0.0f;
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; n++)
#pragma unroll
            for (int c = 2 * half; c < 2 * half + 2; c++) {
                s[n][c] = s[n][c] == NOTHING ? 0.0f : exp2_fast(s[n][c] - top);
                total += s[n][c];
            }
        r.total[half] = fma_f32(r.total[half], old, quad_sum(total));
        r.top[half] = top;
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++) r.o[n][2 * half] *= old, r.o[n][2 * half + 1] *= old;
    }
#pragma unroll
    for (int k = 0; k < TILE_KEYS / 16; k++) {
        uint32_t weights[4] = {
            pack_f16x2(s[2 * k][0], s[2 * k][1]), pack_f16x2(s[2 * k][2], s[2 * k][3]),
            pack_f16x2(s[2 * k + 1][0], s[2 * k + 1][1]),
            pack_f16x2(s[2 * k + 1][2], s[2 * k + 1][3])};
        int key = k * 16 + (lane / 8 & 1) * 8 + lane % 8;
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 16; n++) {
            uint32_t b[4];
            load_matrix_transposed_x4(
                b, shared_addr(memory + tile_value_at(key, 2 * n + lane / 16)));
            mma_f16(r.o[2 * n], weights, b);
            mma_f16(r.o[2 * n + 1], weights, b + 2);
        }
    }
}

CAIRN_KERNEL(prompt_attend, 128, 1, step_params) {
    const int head = block_id_y(), g = lane_id() / 4, t = lane_id() % 4;
    const int rows = p.input[STEP_ROWS], first = block_id() * TILE_ROWS;
    const int start = input_array(p, STEP_POSITION)[0];
    const int32_t *table =
        p.page_table + (int64_t)input_array(p, STEP_SEQUENCE)[0] * p.table_stride;
    const int end = start + min_of(first + TILE_ROWS, rows);
    const int row = first + warp_id() * 16 + g;
    start_input();
    uint32_t query[HEAD_DIM / 4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int at = min_of(row + half * 8, rows - 1);
        const uint8_t *q = buffer(p, QKV_AT) + ((int64_t)at * QKV + head * HEAD_DIM) * 2 + t * 16;
#pragma unroll
        for (int u = 0; u < HEAD_DIM / 32; u++) {
            u32x4 v = *(const u32x4 *)(q + u * 64);
            query[u * 8 + half] = v.x, query[u * 8 + 2 + half] = v.y;
            query[u * 8 + 4 + half] = v.z, query[u * 8 + 6 + half] = v.w;
        }
    }
    running r = {{NOTHING, NOTHING}, {0.0f, 0.0f}, {}};
    const int tiles = ceil_div(end, TILE_KEYS);
    fetch_tile(p, table, head / GROUP, 0, end, shared_base());
    for (int tile = 0; tile < tiles; tile++) {
        copy_async_wait<0>();
        block_sync();
        if (tile + 1 < tiles) fetch_tile(p, table, head / GROUP, tile + 1, end, shared_base());
        attend_tile(shared_base() + tile % 2 * 2 * TILE_BYTES, query, tile, start + row, r);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (row + half * 8 >= rows) continue;
        float factor = 1.0f / r.total[half];
        uint8_t *to = buffer(p, ATTENDED_AT) +
                      ((int64_t)(row + half * 8) * ATTENDED + head * HEAD_DIM + 2 * t) * 2;
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++)
            *(uint32_t *)(to + n * 16) =
                pack_f16x2(r.o[n][2 * half] * factor, r.o[n][2 * half + 1] * factor);
    }
}

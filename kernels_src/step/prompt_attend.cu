/* A prompt's attention. See step/prompt.cu.
 *
 *   prompt_attend    causal attention to all earlier tokens: of 64 rows of a head, or by wgmma of 128
 *                    queries of the heads that share keys, as attention/prompt.cu
 *
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0; CAIRN_FIRST_APART (attention/prompt.cuh). Buffers:
 * step/prompt_buffers.cuh.
 * Grid (ceil(rows / 64), heads), 128 threads, by wgmma (ceil(rows / MANY_TOKENS), kv_heads), 384
 * threads, but for the form without landmarks; of joined prompts the input's groups in place of the
 * tiles, each of up to as many rows of one sequence.
 * Shared memory layout_prompt_bytes, by wgmma layout_spans_bytes. A cache of another kind
 * than f16 becomes f16 on its way there, and goes without wgmma. Sync: one block_sync a tile of keys,
 * by wgmma barriers.
 * A row's results do not depend on the other rows of the chunk, nor on where the chunk begins.
 * Reference: tests/ref/decoder_step.h.
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=2048
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=4096
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
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0
 * matrix: CAIRN_LAYERS=18 CAIRN_HIDDEN=640 CAIRN_HEADS=4 CAIRN_KV_HEADS=1 CAIRN_HEAD_DIM=256
 * matrix: + CAIRN_FFN=2048 CAIRN_VOCAB=262144 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=8 CAIRN_PACK_O=8 CAIRN_PACK_GATE_UP=8 CAIRN_PACK_DOWN=8
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=93
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=1
 * matrix: + CAIRN_ABILITIES=3
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=512 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_FIRST_APART=0
 * matrix: CAIRN_LAYERS=16 CAIRN_HIDDEN=2048 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=8192 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=16
 * matrix: + CAIRN_PACK_QKV=8 CAIRN_PACK_O=8 CAIRN_PACK_GATE_UP=8 CAIRN_PACK_DOWN=8
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=256 CAIRN_PARTS=0 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_FIRST_APART=0 */
#include "step/prompt_buffers.cuh"
#include "step/attend.cuh"
#include "attention/rows.cuh"
#include "step/prompt_many.cuh"

#if PROMPT_MANY
CAIRN_KERNEL(prompt_attend, MANY_THREADS, 1, step_params) {
    const int tile = grid_blocks() - 1 - block_id();
    step_source source = many_source(p, tile);
    many_begin(source);
    if (warp_id() >= 8) {
        registers_give<72>();
        many_bring(source);
        return;
    }
    if (warp_id() >= 4 && source.alone()) return;
    registers_take<216>();
    const many_sums r = many_use<false>(source, GROUP, score_scale(p));
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int m = warp_id() * 16 + half * 8 + lane_id() / 4;
        if (!source.exists(m)) continue;
        const float share = 1.0f / r.total[half];
        uint8_t *to = many_output(p, source.row + m / GROUP, block_id_y() * GROUP + m % GROUP);
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++)
            *(uint32_t *)(to + operand_at(n * 8 + lane_id() % 4 * 2) * 2) =
                many_divided(r.o[4 * n + 2 * half], r.o[4 * n + 2 * half + 1], share);
    }
}
#else
constexpr bool LANDMARKS = (CAIRN_EXTRAS & STEP_EXTRA_LANDMARKS) != 0;

/* Of large heads fewer keys at a time, and the queries wait in shared memory: registers are scarce. */
constexpr bool WIDE = HEAD_DIM > 128;
constexpr int TILE_KEYS = WIDE ? 32 : 64;
constexpr int TILE_BYTES = TILE_KEYS * DIM * 2;               /* of keys; as many of values */
constexpr int WAITING_AT = 4 * TILE_BYTES;                    /* 64 queries at key_at */
static_assert(layout_prompt_bytes(HEAD_DIM) == WAITING_AT + (WIDE ? 128 * DIM : 0),
              "prompt_attend: its shared memory");

/* Eight values of a key and of its value, which is VALUE_STEP on, as f16. */
CAIRN_INLINE void half_of_slot(const step_params &p, int64_t at, u32x4 *v) {
    const float *scale = scales_of(p, p.layer) + at / HEAD_DIM;
    v[0] = half_of_cache(p.kv[p.layer], at, scale);
    v[1] = half_of_cache(p.kv[p.layer], at + VALUE_STEP, scale + VALUE_STEP / HEAD_DIM);
}

/* Starts the copy of keys and values [tile TILE_KEYS, ...) before `end`; zeros from there on. */
CAIRN_INLINE void fetch_tile(const step_params &p, const int32_t *table, int kv_head, int tile,
                             int end, unsigned char *memory) {
    shared_addr to(memory + tile % 2 * 2 * TILE_BYTES);
    const uint16_t *cache = p.kv[p.layer];
    for (int i = thread_id(); i < TILE_KEYS * PIECES; i += 128) {
        int key = i / PIECES, piece = i % PIECES, position = tile * TILE_KEYS + key;
        bool valid = position < end && has_piece(piece);
        if constexpr (CACHE_KIND != ATTEND_CACHE_F16) {
            unsigned char *here = memory + tile % 2 * 2 * TILE_BYTES;
            u32x4 v[2] = {};
            if (valid)
                half_of_slot(p, layout_slot(table[position / PAGE], 0, kv_head, position % PAGE, KV_HEADS,
                                            PAGE, HEAD_DIM) + piece * 8, v);
            *(u32x4 *)(here + key_at(key, piece)) = v[0];
            *(u32x4 *)(here + TILE_BYTES + piece_at(key, piece)) = v[1];
            continue;
        }
        const uint16_t *from = cache;
        if (valid)
            from += layout_slot(table[position / PAGE], 0, kv_head, position % PAGE, KV_HEADS, PAGE,
                                HEAD_DIM) + piece * 8;
        copy_async16(to + key_at(key, piece), from, valid);
        copy_async16(to + TILE_BYTES + piece_at(key, piece), valid ? from + VALUE_STEP : from,
                     valid);
    }
    copy_async_commit();
}

/* Folds a tile into the running softmax of a warp's 16 rows, of which lane's first is at
 * `position`. query: of small heads. */
CAIRN_INLINE void attend_tile(const step_params &p, const unsigned char *memory,
                              const uint32_t *query, int tile, int position, running_rows &r) {
    float s[TILE_KEYS / 8][4];
    uint32_t weights[TILE_KEYS / 4];
    score_rows<TILE_KEYS>(
        [&](int u, uint32_t *a) {
            if constexpr (WIDE) {
                const int m = warp_id() * 16 + lane_id() / 4, piece = u * 4 + lane_id() % 4;
                const unsigned char *from = shared_base() + WAITING_AT;
                query_operands(*(const u32x4 *)(from + key_at(m, piece)),
                               *(const u32x4 *)(from + key_at(m + 8, piece)), a);
                return;
            }
#pragma unroll
            for (int i = 0; i < 8; i++) a[i] = query[u * 8 + i];
        },
        memory, s);
    if constexpr (LANDMARKS) {
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; n++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                if ((tile * TILE_KEYS + n * 8 + lane_id() % 4 * 2 + c % 2) % PAGE == PAGE - 1)
                    s[n][c] = minus_infinity();
    }
    if (has_window(p)) { /* keys before a row's window are none of its */
#pragma unroll
        for (int i = 0; i < TILE_KEYS / 2; i++) {
            const int n = i / 4, c = i % 4, key = tile * TILE_KEYS + n * 8 + lane_id() % 4 * 2 + c % 2;
            if (key <= position + c / 2 * 8 - p.own_window) s[n][c] = minus_infinity();
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int last[TILE_KEYS / 16];
#pragma unroll
        for (int i = 0; i < TILE_KEYS / 16; i++)
            last[i] = position + half * 8 - tile * TILE_KEYS - i * 16;
        fold_rows<TILE_KEYS>(r, s, half, last, score_scale(p), weights);
    }
    add_rows<TILE_KEYS>(r, weights, memory + TILE_BYTES);
}

CAIRN_KERNEL(prompt_attend, 128, 1, step_params) {
    const int head = block_id_y(), g = lane_id() / 4, t = lane_id() % 4;
    const int first = tile_first(p, block_id(), TILE_ROWS); /* rows: where they end */
    const int rows = JOINED ? first + input_array(p, STEP_GROUP_ROWS)[block_id()]
                            : p.input[STEP_ROWS];
    const int start = JOINED ? input_array(p, STEP_POSITION)[first] - first
                             : input_array(p, STEP_POSITION)[0]; /* of row 0 */
    const int32_t *table = tile_table(p, first);
    const int end = start + min_of(first + TILE_ROWS, rows);
    const int row = first + warp_id() * 16 + g;
    start_input();
    uint32_t query[WIDE ? 1 : DIM / 4];
    for (int i = thread_id(); WIDE && i < TILE_ROWS * PIECES; i += 128) {
        const int m = i / PIECES, at = min_of(first + m, rows - 1);
        u32x4 v = {};
        if (has_piece(i % PIECES))
            v = *(const u32x4 *)(buffer(p, QKV_AT) +
                                 ((int64_t)at * QKV + head * HEAD_DIM) * 2 + i % PIECES * 16);
        *(u32x4 *)(shared_base() + WAITING_AT + key_at(m, i % PIECES)) = v;
    }
#pragma unroll
    for (int half = 0; half < 2 && !WIDE; half++) {
        int at = min_of(row + half * 8, rows - 1);
        const uint8_t *q = buffer(p, QKV_AT) + ((int64_t)at * QKV + head * HEAD_DIM) * 2 + t * 16;
#pragma unroll
        for (int u = 0; u < DIM / 32; u++) {
            u32x4 v = {};
            if (has_piece(u * 4 + t)) v = *(const u32x4 *)(q + u * 64);
            query[u * 8 + half] = v.x, query[u * 8 + 2 + half] = v.y;
            query[u * 8 + 4 + half] = v.z, query[u * 8 + 6 + half] = v.w;
        }
    }
    running_rows r;
    r.clear();
    const int tiles = ceil_div(end, TILE_KEYS);
    const int begin = has_window(p) ? max_of(start + first - p.own_window + 1, 0) / TILE_KEYS : 0;
    fetch_tile(p, table, head / GROUP, begin, end, shared_base());
    for (int tile = begin; tile < tiles; tile++) {
        copy_async_wait<0>();
        block_sync();
        if (tile + 1 < tiles) fetch_tile(p, table, head / GROUP, tile + 1, end, shared_base());
        attend_tile(p, shared_base() + tile % 2 * 2 * TILE_BYTES, query, tile, start + row, r);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (row + half * 8 >= rows) continue;
        float factor = 1.0f / r.total[half];
        /* Operands are spread within 32 values: a head may begin amid them. */
        const int before = DIM == HEAD_DIM ? 0 : head * HEAD_DIM;
        uint8_t *to = buffer(p, ATTENDED_AT) +
                      ((int64_t)(row + half * 8) * ATTENDED + head * HEAD_DIM - before) * 2;
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++)
            *(uint32_t *)(to + operand_at(before + n * 8 + 2 * t) * 2) =
                pack_f16x2(r.o[n][2 * half] * factor, r.o[n][2 * half + 1] * factor);
    }
}
#endif

/* The sampler head of a gated adapter (runtime/model/adapter.h): a draft from a kept hidden state and the
 * token before it, of which the model's head makes logits (step_head) and step_finish the token.
 *
 * draft_pick   the token behind the drafts that hold and the masks' first row: grid 1, 32 threads
 * draft_take   behind the flow kernel of rows that draft: block 0 finds the rows' best tokens, as
 *              step_finish does, and picks; block 1 + r keeps row r, as step_keep does: 256 threads, 64
 *              bytes of shared memory
 * draft_first  silu(W0 [embedding, hidden]): grid HIDDEN / 8 blocks, 256 threads; the input lies in
 *              shared memory, 8 HIDDEN bytes
 * draft_second y = norm(that), y + norm(silu(W1 y)) by the last block, to where the head's input is:
 *              grid and threads alike, 4 HIDDEN + 64 bytes of shared memory
 * draft_end    behind the last draft of a step by the flow kernel: finds its token, tells the host all results
 *              (finish_params), and makes the step's input words those of the step behind it, where that verifies
 *              as many drafts as tokens had masks: grid 1, 256 threads
 *
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0. f32 sums in an order that depends on nothing.
 * Reference: the walk of tests/engine/mtp_test.c.
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 */
#include "attention/runs.cuh"
#include "step/stages.cuh"
#include "step/best.cuh"

constexpr int DRAFT_WARPS = 8, DRAFT_THREADS = DRAFT_WARPS * WARP;

CAIRN_INLINE float silu(float v) { return v * rcp_fast(1.0f + exp_fast(-v)); }

/* A row of COUNT weights for a warp, whose first are asked for before the kernel before has ended. */
template <int COUNT> struct draft_row {
    static constexpr int ALL = ceil_div(COUNT, WARP * 4), HELD = min_of(ALL, 12);
    const float *from;
    f32x4 held[HELD];

    CAIRN_MEMBER explicit draft_row(const float *w) : from(w) {
#pragma unroll
        for (int i = 0; i < HELD; i++) held[i] = load_constant_early((const f32x4 *)(w + place(i)));
    }
    static CAIRN_MEMBER int place(int i) { return min_of((i * WARP + lane_id()) * 4, COUNT - 4); }
    CAIRN_MEMBER float dot(const float *x) const {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < ALL; i++) {
            if ((i * WARP + lane_id()) * 4 >= COUNT) break;
            const f32x4 a = i < HELD ? held[i < HELD ? i : 0] : *(const f32x4 *)(from + place(i));
            const f32x4 b = *(const f32x4 *)(x + place(i));
            sum = fma_f32(a.x, b.x, fma_f32(a.y, b.y, fma_f32(a.z, b.z, fma_f32(a.w, b.w, sum))));
        }
        return warp_sum(sum);
    }
};

/* 1 / root mean square of HIDDEN values, by all threads; totals: a word for each warp. */
template <class Value> CAIRN_INLINE float norm_factor(float eps, float *totals, Value value) {
    float sum = 0.0f, all = 0.0f;
    for (int i = thread_id(); i < HIDDEN; i += DRAFT_THREADS) sum = fma_f32(value(i), value(i), sum);
    sum = warp_sum(sum);
    block_sync();
    if (lane_id() == 0) totals[warp_id()] = sum;
    block_sync();
    for (int w = 0; w < DRAFT_WARPS; w++) all += totals[w];
    return rsqrt_fast(all * (1.0f / HIDDEN) + eps);
}

CAIRN_INLINE void choose(const draft_params &p, int real, int drafts, const int32_t *drawn) {
    const int32_t *token = p.input + STEP_HEAD + STEP_TOKEN * p.capacity + real + 1;
    int held = 0;
    while (held < drafts && token[held] == drawn[held]) held++;
    const int row = p.input[STEP_HEAD + STEP_KEEP * p.capacity + real + drafts + 1] + held * p.masks;
    p.words->row = p.tokens[-2] = row;
    p.words->token = p.tokens[-1] = drawn[held];
}

CAIRN_KERNEL(draft_pick, 32, 1, draft_params) {
    start_input();
    if (thread_id() == 0)
        choose(p, p.real, p.drafts, p.sampled + p.real - p.input[STEP_LOGIT_FIRST]);
}

CAIRN_KERNEL(draft_take, DRAFT_THREADS, 1, draft_params) {
    int32_t *drawn = (int32_t *)shared_base();
    static_assert(DRAFT_WARPS >= COLUMNS, "draft_take: a warp for each row");
    start_input();
    if (block_id() > 0) return keep_row<DRAFT_WARPS>(p.step, block_id() - 1, (float *)shared_base());
    const int first = p.input[STEP_LOGIT_FIRST], count = p.input[STEP_LOGIT_COUNT], row = warp_id();
    if (row < count) {
        const int32_t token = best_token(p.step.winners + (int64_t)row * p.blocks, p.blocks);
        if (lane_id() == 0) drawn[row] = token;
    }
    block_sync();
    if (thread_id() < count) p.sampled[thread_id()] = drawn[thread_id()];
    if (thread_id() == 0 && p.masks) choose(p, first, count - 1, drawn);
}

CAIRN_KERNEL(draft_first, DRAFT_THREADS, 1, draft_params) {
    typedef packed<CAIRN_PACK_EMBED> pack;
    float *x = (float *)shared_base();
    const int out = block_id() * DRAFT_WARPS + warp_id();
    const draft_row<2 * HIDDEN> row(p.words->first + (int64_t)min_of(out, HIDDEN - 1) * 2 * HIDDEN);
    start_input();
    int token = p.number ? p.tokens[p.number - 1] : p.words->token;
    token = token < 0 || token >= VOCAB ? 0 : token;
    const uint8_t *tile = p.embed + token / 16 * tile_bytes<CAIRN_PACK_EMBED, HIDDEN>();
    const float *hidden = p.kept + (int64_t)(p.words->row + p.number) * HIDDEN;
    for (int k = thread_id(); k < HIDDEN; k += DRAFT_THREADS) {
        const float v = pack::template value<packed_group<CAIRN_PACK_EMBED, HIDDEN>()>(
            tile, k / 32, token % 16, k % 32);
        x[k] = EMBED_SCALED ? v * p.embed_scale : v;
        x[HIDDEN + k] = hidden[k];
    }
    block_sync();
    if (out >= HIDDEN) return;
    const float v = row.dot(x);
    if (lane_id() == 0) p.gated[out] = silu(v);
}

/* A value that other blocks of the kernel wrote. */
CAIRN_INLINE float of_others(const float *at) { return as_f32(load_relaxed((const uint32_t *)at)); }

/* y to the head, whose norm gives it back as it is: its sums of squares are such. */
CAIRN_INLINE void send_drafted(const draft_params &p, const float *y, const float *more, float factor) {
    uint8_t *at = p.exchange + RESIDUAL_BYTES;
    uint32_t *to = (uint32_t *)(at + HIDDEN_AT);
    float *squares = (float *)(at + SQUARES_AT);
    const float scale = min_of(p.input_scale, 64.0f), times = p.input_scale / scale;
    const float *weight = p.words->second_norm;
    const auto value = [&](int i) { return (y[i] + of_others(more + i) * factor * weight[i]) * times; };
    for (int i = thread_id(); i < HIDDEN / 2; i += DRAFT_THREADS)
        to[i] = pack_f16x2(value(2 * i), value(2 * i + 1));
    for (int i = thread_id(); i < SQUARES; i += DRAFT_THREADS)
        squares[i] = i ? 0.0f : (1.0f / (scale * scale) - p.norm_eps) * HIDDEN;
}

CAIRN_KERNEL(draft_second, DRAFT_THREADS, 1, draft_params) {
    float *y = (float *)shared_base(), *totals = y + HIDDEN;
    const int out = block_id() * DRAFT_WARPS + warp_id();
    const draft_row<HIDDEN> row(p.words->second + (int64_t)min_of(out, HIDDEN - 1) * HIDDEN);
    start_input();
    float factor = norm_factor(p.norm_eps, totals, [&](int i) { return p.gated[i]; });
    for (int i = thread_id(); i < HIDDEN; i += DRAFT_THREADS)
        y[i] = p.gated[i] * factor * p.words->first_norm[i];
    block_sync();
    float *more = p.gated + HIDDEN;
    if (out < HIDDEN) {
        const float v = row.dot(y);
        if (lane_id() == 0) store_relaxed((uint32_t *)more + out, as_u32(silu(v)));
    }
    if (!last_to_arrive(p.arrived, grid_blocks(), (uint32_t *)totals + DRAFT_WARPS)) return;
    factor = norm_factor(p.norm_eps, totals, [&](int i) { return of_others(more + i); });
    send_drafted(p, y, more, factor);
}

/* The input words of the step behind this one: its rows move on by the tokens that stand, the first reads the
 * token behind these, then come the drafts. No number is no token: what it says is never asked for. */
CAIRN_INLINE void move_on(const draft_params &p) {
    const int rows = p.input[STEP_ROWS], count = p.input[STEP_LOGIT_COUNT], r = thread_id();
    const auto array = [&](int which) { return p.input + STEP_HEAD + which * p.capacity; };
    const int moved = 1 + (p.words->row - array(STEP_KEEP)[count]) / p.masks;
    if (r < rows) {
        array(STEP_POSITION)[r] += moved;
        array(STEP_ROPE)[r] += moved;
        if (r < count) array(STEP_TOKEN)[r] = max_of(p.tokens[r - 1], 0);
        else array(STEP_SEEN)[r] += moved;
    }
    block_sync();
    if (thread_id() != 0) return;
    p.input[STEP_EPOCH]++;
    p.input[STEP_CLEAN_ROWS] = rows;
    p.input[STEP_CLEAN_CHUNKS] = p.input[STEP_CHUNKS];
    p.input[STEP_CHUNKS] = array(STEP_POSITION)[rows - 1] / p.chunk + 1;
    p.input[STEP_TELLS] = !p.input[STEP_TELLS];
}

CAIRN_KERNEL(draft_end, DRAFT_THREADS, 1, draft_params) {
    start_input();
    if (warp_id() == 0) {
        const int32_t token = best_token(p.step.winners, p.blocks);
        if (lane_id() == 0) p.tokens[p.number] = token;
    }
    block_sync();
    for (int i = thread_id(); i < p.told_words; i += DRAFT_THREADS)
        p.told[p.input[STEP_TELLS] * p.told_words + i] = p.step.fault[i];
    block_sync();
    move_on(p);
}

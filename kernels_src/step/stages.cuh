/* The stages of a decoder layer for one block: what is computed where. Each is written once and
 * runs in the flow kernel and in the stage kernels alike, with the same instructions in the same
 * order.
 *
 *   embed    residual = embedding of the token
 *   qkv      norm(residual) Wqkv, rotated; keys and values also go to the cache
 *   attend   step/attend.cuh
 *   merge    step/merge.cuh
 *   project  residual += merged attention Wo
 *   gate_up  silu(norm(residual) Wgate) * norm(residual) Wup
 *   down     residual += that Wdown
 *   head     logits = norm(residual) Whead, and the best of the block's part
 *
 * A norm's product takes f16(x weight scale), scale a power of two; the division by the root mean
 * square, known last, is applied to the f32 sums. */
#ifndef CAIRN_STEP_STAGES_CUH
#define CAIRN_STEP_STAGES_CUH

#include "step/adapter.cuh"
#include "step/low.cuh"

/* The tokens of this block: a window of up to COLUMNS rows. `total`: of the forward. */
struct row_window {
    int first, count, total;
};

CAIRN_INLINE row_window window_of(const step_params &p, int index) {
    int rows = p.input[STEP_ROWS], first = index * COLUMNS;
    return row_window{first, min_of(COLUMNS, rows - first), rows};
}

/* The same of the rows whose logits are wanted. */
CAIRN_INLINE row_window logits_of(const step_params &p, int index) {
    int first = p.input[STEP_LOGIT_FIRST] + index * COLUMNS;
    int end = p.input[STEP_LOGIT_FIRST] + p.input[STEP_LOGIT_COUNT];
    return row_window{first, min_of(COLUMNS, end - first), p.input[STEP_ROWS]};
}

/* ---- inputs of products ---- */

/* Up to COLUMNS rows of f16 [slot, INPUTS]. */
template <int INPUTS> struct rows_input {
    const step_params &p;
    const uint8_t *at; /* of the window's first row; once aimed the lane's, of unit `aimed` */
    int rows;
    int aimed = 0;

    CAIRN_MEMBER void await() const { start_input(); }
    template <class Place> CAIRN_MEMBER const uint8_t *lane_at(int unit) const {
        if constexpr (Place::AIMED) return at + (unit - aimed) * 64;
        return at + ((int64_t)Place::row() * INPUTS + unit * 32 + lane_id() % 4 * 8) * 2;
    }
    /* How many of N vectors of a lane there are, from this unit on. */
    template <int N, class Place> CAIRN_MEMBER int wanted(int unit) const {
        if (!Place::mine() || (!Place::AIMED && Place::row() >= rows)) return 0;
        return Place::WHOLE ? N : ceil_div(INPUTS / 32 - Place::unit() - unit, Place::STEP);
    }
    /* Whether x comes by whole lines (dense/lines.cuh): not in the flow, which reads until all is there. */
    template <int N, class Place> CAIRN_METHOD constexpr bool by_lines() {
        return !FLOW && !Place::AIMED && N % 2 == 0;
    }
    template <class Place> CAIRN_MEMBER void aim(int unit) {
        aimed = unit;
        at += ((unit + Place::unit()) * 32 + lane_id() % 4 * 8) * 2;
    }
    template <int N, class Place = rows_place>
    CAIRN_MEMBER void fetch(int unit, uint32_t (&b)[N][4]) const {
        u32x4 v[N] = {};
        if constexpr (by_lines<N, Place>()) {
            const row_lines<N, INPUTS> lines(at, Place::BAND * 8, rows, unit);
            lines.load(v);
            warp_sync();
            lines.exchange(v);
        } else {
            const int there = wanted<N, Place>(unit);
            if (there > 0) receive<N>(p, v, lane_at<Place>(unit), 64 * Place::STEP, there);
        }
#pragma unroll
        for (int u = 0; u < N; u++)
            b[u][0] = v[u].x, b[u][1] = v[u].y, b[u][2] = v[u].z, b[u][3] = v[u].w;
        warp_sync();
    }
    template <int N, class Place = rows_place>
    CAIRN_MEMBER void fetch_again(int unit, uint32_t (&b)[N][4]) const {
        rows_input::template fetch<N, Place>(unit, b);
    }
    template <class Place = rows_place> CAIRN_MEMBER void before_meeting(float *) const {}
};

/* A hidden state with its sums of squares: factors[column] = 1 / (rms scale). Warp w < rows takes
 * the squares of row w (and w + WARPS), awaited together with its operands. */
struct norm_input : rows_input<HIDDEN> {
    static constexpr int EACH = ceil_div(SQUARES, WARP);
    const float *squares; /* of the window's first row */
    float sum[BANDS];     /* of this warp's row of each band, this lane's part */

    CAIRN_MEMBER norm_input(const step_params &params, const uint8_t *hidden,
                                          const uint8_t *sums, row_window window)
        : rows_input<HIDDEN>{params, nullptr, window.count}, sum{} {
        int copy = FLOW ? block_id() % copies_of(window.total) * window.total : 0;
        at = hidden + (int64_t)(copy + window.first) * HIDDEN * 2;
        squares = (const float *)sums + (int64_t)(copy + window.first) * SQUARES;
    }
    template <class Place> CAIRN_MEMBER void aim(int unit) {
        rows_input<HIDDEN>::template aim<Place>(unit);
        squares += lane_id(); /* of the one row */
    }
    template <int N, class Place = rows_place>
    CAIRN_MEMBER void fetch(int unit, uint32_t (&b)[N][4]) {
        const int g = Place::row(), row = Place::BAND * 8 + warp_id();
        const uint8_t *from = at + ((int64_t)g * HIDDEN + unit * 32 + lane_id() % 4 * 8) * 2;
        const uint32_t *other = (const uint32_t *)squares + (int64_t)row * SQUARES + lane_id();
        int there = g < rows ? HIDDEN / 32 - unit : 0; /* spelt out: else the flow spills on sm_120 */
        int sums = row < rows ? ceil_div(SQUARES - lane_id(), WARP) : 0;
        if constexpr (Place::AIMED) {
            there = wanted<N, Place>(unit), sums = ceil_div(SQUARES - lane_id(), WARP);
            from = lane_at<Place>(unit), other = (const uint32_t *)squares;
        }
        constexpr bool LINES = rows_input<HIDDEN>::template by_lines<N, Place>();
        const row_lines<N, HIDDEN> lines(at, Place::BAND * 8, rows, unit);
        u32x4 v[N] = {};
        uint32_t square[EACH] = {};
        patience wait(p);
        bool complete;
        do {
            complete = true;
            if constexpr (LINES) lines.load(v);
#pragma unroll
            for (int i = 0; i < N && !LINES; i++)
                if (i < there) v[i] = load_relaxed16(from + i * (64 * Place::STEP));
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (i < sums) square[i] = load_relaxed(other + i * WARP);
#pragma unroll
            for (int i = 0; i < N; i++) complete = complete && full(v[i]);
#pragma unroll
            for (int i = 0; i < EACH; i++) complete = complete && square[i] != EMPTY;
        } while (FLOW && !complete && wait.more());
        warp_sync();
        if constexpr (LINES) lines.exchange(v);
#pragma unroll
        for (int u = 0; u < N; u++)
            b[u][0] = v[u].x, b[u][1] = v[u].y, b[u][2] = v[u].z, b[u][3] = v[u].w;
        sum[Place::BAND] = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++) sum[Place::BAND] += as_f32(square[i]);
    }
    template <class Place = rows_place> CAIRN_MEMBER void before_meeting(float *factors) const {
        static_assert(WARPS * BANDS >= COLUMNS, "norm_input: a warp for each column of a band");
        if (!Place::AIMED && Place::factor() >= rows) return;
        float all = warp_sum(sum[Place::BAND]);
        if (lane_id() < Place::FACTORS)
            factors[Place::factor_at() + lane_id()] =
                rsqrt_fast(all * (1.0f / HIDDEN) + p.norm_eps) *
                as_f32(0x7f000000u - as_u32(p.input_scale)); /* 1 over a power of two */
    }
};

/* Where products are streamed, there is dependent launch and room, two blocks on a multiprocessor: the next stage's
 * wait beside those that compute. */
constexpr int STAGE_BLOCKS = STREAMED && BANDS == 1 && CAIRN_ARCH >= 900 && CAIRN_ARCH < 1200 ? 2 : 1;
static_assert(!STREAMED || (!FLOW && THREADS == PRODUCT_THREADS), "stages: warps of a product");

/* ---- where outputs go ---- */

/* Rotation and cache slot of one output of qkv; the same in every layer. */
struct qkv_place {
    int tile;
    float cosine, sine; /* 1, 0 for values */
    int64_t cache_at;   /* from a layer's KV; -1 for queries */

    CAIRN_MEMBER void find(const step_params &p, row_window rows, int at_tile, int row, int column,
                           int note = 0) {
        int n = at_tile * 16 + row, head = n / HEAD_DIM, d = n % HEAD_DIM;
        tile = at_tile, cosine = 1.0f, sine = 0.0f, cache_at = -1;
        if (column >= rows.count) return;
        if (STREAMED) {
            recall(p, head, d, ((const product_memory *)shared_base())->notes[note]);
            return;
        }
        int r = rows.first + column;
        int position = input_array(p, STEP_POSITION)[r];
        if (head < HEADS + KV_HEADS && !(STILL && p.still)) {
            int64_t rope = input_array(p, STEP_ROPE)[r];
            f32x2 turn = ((const f32x2 *)p.rope)[rope * (HEAD_DIM / 2) + d / 2];
            cosine = turn.x, sine = turn.y;
        }
        if (head >= HEADS) {
            int kind = (head - HEADS) / KV_HEADS, kv_head = (head - HEADS) % KV_HEADS;
            int sequence = input_array(p, STEP_SEQUENCE)[r];
            int64_t page = p.page_table[(int64_t)sequence * p.table_stride + position / PAGE];
            cache_at = (((page * 2 + kind) * KV_HEADS + kv_head) * PAGE + position % PAGE) *
                           HEAD_DIM + d;
        }
    }

    /* Of streamed products all that find looks up is noted for each column before the input is
     * awaited, but for the rotation, which is asked for then; for a row alone by each warp. */
    static CAIRN_MEMBER void take_note(const step_params &p, row_window rows, int column, u32x4 *to) {
        if (column >= rows.count) return;
        const int r = rows.first + column, position = input_array(p, STEP_POSITION)[r];
        const int rope = input_array(p, STEP_ROPE)[r], sequence = input_array(p, STEP_SEQUENCE)[r];
        const int page = p.page_table[(int64_t)sequence * p.table_stride + position / PAGE];
        const f32x2 *turns = (const f32x2 *)p.rope + (int64_t)rope * (HEAD_DIM / 2);
        for (int i = 0; i < HEAD_DIM / 2; i += 16) prefetch_l2(turns + i);
        *to = u32x4{(uint32_t)page, (uint32_t)(position % PAGE), (uint32_t)rope, 0};
    }
    CAIRN_MEMBER void recall(const step_params &p, int head, int d, u32x4 note) {
        if (head < HEADS + KV_HEADS && !(STILL && p.still)) {
            f32x2 turn = ((const f32x2 *)p.rope)[(int64_t)note.z * (HEAD_DIM / 2) + d / 2];
            cosine = turn.x, sine = turn.y;
        }
        if (head >= HEADS) { /* k heads, then v heads, of a page */
            const int64_t plane = (int64_t)note.x * (2 * KV_HEADS) + head - HEADS;
            cache_at = (plane * PAGE + note.y) * HEAD_DIM + d;
        }
    }
};

/* The input of qkv: what its outputs need to know is looked up while the first weights come. */
struct qkv_input : norm_input {
    row_window window;
    bool noted;

    CAIRN_MEMBER qkv_input(const step_params &params, const uint8_t *hidden, const uint8_t *sums,
                           row_window rows_)
        : norm_input(params, hidden, sums, rows_), window(rows_), noted(false) {}
    CAIRN_MEMBER void note(int column, int slot) const {
        u32x4 *notes = ((product_memory *)shared_base())->notes;
        if (STREAMED && !BY_HEAD) qkv_place::take_note(p, window, column, notes + slot);
    }
    template <class Place> CAIRN_MEMBER void aim(int unit) {
        norm_input::template aim<Place>(unit);
        note(lane_id(), warp_id());
        noted = true;
    }
    CAIRN_MEMBER void await() const {
        if (!noted) note(thread_id(), thread_id());
        start_input();
    }
};

template <bool PLACED> struct qkv_output {
    const step_params &p;
    row_window rows;
    qkv_place &place;
    uint8_t *layer;
    int number;      /* of the layer */
    uint16_t *cache; /* its KV; where products are streamed of a row alone, or registers are scarce */
    bool ready;      /* so are place and cache: see prepare_outputs */

    CAIRN_MEMBER void operator()(const output &o, const float *factors) const {
        if (!BY_HEAD && !PLACED && !ready && (!FLOW || o.tile != place.tile))
            place.find(p, rows, o.tile, o.row, o.column, o.column);
        float y = o.value * factors[o.column];
        if constexpr (ADAPTERS)
            if (o.column < rows.count)
                y = adapted_qkv(p, y, rows.first + o.column, o.tile * 16 + o.row);
        if constexpr (BY_HEAD) {
            if (o.column < rows.count)
                send((float *)(layer + SUMMED_AT) + (int64_t)(rows.first + o.column) * QKV +
                         o.tile * 16 + o.row, y);
            return;
        }
        float other = shuffle_xor(y, 4); /* the next output row of the same token */
        if (o.row % 2 != 0 || o.column >= rows.count) return;
        float even = fma_f32(y, place.cosine, -(other * place.sine));
        float odd = fma_f32(y, place.sine, other * place.cosine);
        uint32_t two = pack_f16x2(even, odd);
        int64_t at = (int64_t)(rows.first + o.column) * QKV + o.tile * 16 + o.row;
        send((uint32_t *)(layer + QKV_AT + at * 2), two);
        uint16_t *to = PLACED || FLOW || ready ? cache : load_constant(p.kv + number);
        if (place.cache_at >= 0) *(uint32_t *)(to + place.cache_at) = two;
    }
};

template <bool PLACED>
CAIRN_INLINE void prepare_outputs(qkv_output<PLACED> &out, int tile, int e) {
    if constexpr (STREAMED && !BY_HEAD) {
        out.place.find(out.p, out.rows, tile, output_row(e), output_column(e), warp_id());
        out.cache = load_constant(out.p.kv + out.number), out.ready = true;
    }
}

/* A new value of the residual stream: kept as it is, and handed on for the next norm. */
struct hidden_output {
    const step_params &p;
    row_window rows;
    const float *weight; /* of the next norm */
    uint8_t *hidden, *squares;

    CAIRN_MEMBER void hand_on(int tile, int row, int column, float x,
                                            float norm_weight) const {
        const int columns = min_of(2, rows.count - column / 2 * 2); /* of this warp that live */
        if (columns <= 0) return;
        float y = x * (norm_weight * p.input_scale);
        uint32_t two = pack_f16x2(y, shuffle_xor(y, 4)); /* with the next output row */
        float sum = x * x;
#pragma unroll
        for (int m = 2; m < WARP; m *= 2) sum += shuffle_xor(sum, m);
        /* Eight lanes hold the words of 16 outputs; copies and columns go over lanes' quarters. */
        const int word = lane_id() % 8, copies = copies_of(rows.total);
#pragma unroll 1
        for (int first = 0; first < columns * copies; first += 4) {
            int item = first + lane_id() / 8, odd = columns == 2 ? item % 2 : 0;
            uint32_t value = shuffle(two, word % 4 * 8 + word / 4 * 2 + odd);
            float squared = shuffle(sum, odd);
            if (item >= columns * copies) continue;
            int64_t slot = item / columns * rows.total + rows.first + column / 2 * 2 + odd;
            send((uint32_t *)(hidden + (slot * HIDDEN + tile * 16) * 2) + word, value);
            if (word == 0) send((float *)squares + slot * SQUARES + tile, squared);
        }
    }
};

/* residual += value of a product (STEP_LOW_); HELD: every output is the one at hand */
template <bool HELD, int PRODUCT> struct residual_output : hidden_output {
    int held_tile;
    float held, held_weight; /* the residual and weight of this thread's output of that tile */

    CAIRN_MEMBER void operator()(const output &o, const float *) const {
        bool live = o.column < rows.count, at_hand = HELD || o.tile == held_tile;
        int n = o.tile * 16 + o.row;
        float value = o.value;
        if constexpr (ADAPTERS)
            if (live) value = adapted(p, value, rows.first + o.column, PRODUCT, 0, n);
        if constexpr (POST_NORMS) { /* its summand is normed first */
            float *to = (float *)(region(p, 0, 0) + SUMMED_AT);
            if (live) send(to + (int64_t)(rows.first + o.column) * HIDDEN + n, value);
            return;
        }
        float *at = residual_of(p) + (int64_t)(rows.first + (live ? o.column : 0)) * HIDDEN + n;
        float before = (FLOW || (STREAMED && HAS_ALONE)) && at_hand ? held : live ? load_volatile(at) : 0.0f;
        float x = before + value;
        hand_on(o.tile, o.row, o.column, x, at_hand ? held_weight : weight[n]);
        if (live) *at = x;
    }
};

template <bool HELD, int PRODUCT>
CAIRN_INLINE void prepare_outputs(residual_output<HELD, PRODUCT> &out, int tile, int e) {
    if constexpr (STREAMED && !POST_NORMS) {
        const int n = tile * 16 + output_row(e), column = output_column(e);
        const bool live = column < out.rows.count;
        const float *at = residual_of(out.p) + (int64_t)(out.rows.first + (live ? column : 0)) * HIDDEN;
        out.held_tile = tile, out.held_weight = out.weight[n];
        out.held = live ? load_volatile(at + n) : 0.0f;
    }
}

/* Rows 0-7 of a tile are the gates, rows 8-15 the ups of eight FFN values. SLOTS: of experts' slots. */
template <bool SLOTS = false> struct swiglu_output {
    int count;  /* of the window's rows */
    uint8_t *h; /* of its first row */
    const step_params &p;
    int first;  /* the window's first row */

    CAIRN_MEMBER void operator()(const output &o, const float *factors) const {
        float y = o.value * factors[o.column];
        if constexpr (ADAPTERS)
            if (o.column < count)
                y = SLOTS ? adapted_slot(p, y, first + o.column, o.row / 8, o.tile * 8 + o.row % 8)
                          : adapted(p, y, first + o.column, STEP_LOW_GATE + o.row / 8, o.row / 8,
                                    o.tile * 8 + o.row % 8);
        float up = shuffle_xor(y, 2);
        float v = gated(y, up);
        float next = shuffle_xor(v, 4);
        if (o.row >= 8 || o.row % 2 != 0 || o.column >= count) return;
        send((uint32_t *)(h + (o.column * FFN + o.tile * 8 + o.row) * 2), pack_f16x2(v, next));
    }
};

/* A layer's weights: the flow kernel has the first layer's, the others have their own. */
CAIRN_INLINE const uint8_t *layer_weights(const uint8_t *weights, int layer, int64_t bytes) {
    return FLOW ? weights + layer * bytes : weights;
}

template <int FORMAT, int INPUTS, bool SPREAD, class Input, class Epilogue>
CAIRN_INLINE void stream_rows(const uint8_t *weights, int tiles, Input &input, Epilogue &epilogue,
                              int block, int blocks, int number) {
    constexpr bool FITS = HAS_ALONE && pack_alone(FORMAT);
    if (FITS && (!HAS_MANY || input.rows == 1))
        stream_product<FORMAT, INPUTS, SPREAD && !FITS, FITS>(weights, tiles, 1, input, epilogue, block, blocks,
                                                     number);
    else
        stream_product<FORMAT, INPUTS, SPREAD>(weights, tiles, input.rows, input, epilogue, block,
                                               blocks, number);
}

/* The product of a stage: by dense/product.cuh where the weights are packed for it, in clusters if
 * they may be spread, else by `multiply`, tiles first, first + step, ... of this block. */
template <int FORMAT, int INPUTS, int TILES, bool ONCE, bool SPREAD = true, class Input, class Epilogue,
          class Low = no_low>
CAIRN_INLINE void stage_product(const uint8_t *weights, int first, int step, int tiles, workspace &work,
                                Input &input, Epilogue &epilogue, const Low &add = Low{}) {
    if constexpr (STREAMED)
        stream_rows<FORMAT, INPUTS, SPREAD && product_spreads<FORMAT, INPUTS>()>(
            weights, tiles, input, epilogue, block_id(), grid_blocks(), 0);
    else multiply<FORMAT, INPUTS, TILES, ONCE>(weights, first, step, tiles, work, input, epilogue, add);
}

/* What rows gain of the layer's product. */
template <int PRODUCT> CAIRN_INLINE stage_low<PRODUCT> low_of(const step_params &p, int layer) {
    if constexpr (stage_low<PRODUCT>::ADDS) return {low_layer(p, layer)};
    else return {};
}

/* ---- the stages ---- */

/* The embedding that a row has of its own, or NULL. */
constexpr bool OWN_ROWS = (CAIRN_EXTRAS & STEP_EXTRA_ADAPTERS) != 0;
CAIRN_INLINE const float *own_embedding(const step_params &p, int row) {
    const uint64_t low = (uint32_t)input_array(p, STEP_EMBED_LOW)[row];
    const uint64_t high = (uint32_t)input_array(p, STEP_EMBED_HIGH)[row];
    return (const float *)(low | high << 32);
}

/* Tiles as stage_residual has them: the flow kernel's blocks read only residuals of their own. */
template <int TILES>
CAIRN_INLINE void stage_embed(const step_params &p, row_window rows, uint8_t *next, int first,
                              int step) {
    typedef packed<CAIRN_PACK_EMBED> pack;
    hidden_output out{p, rows, p.norms, next + HIDDEN_AT, next + SQUARES_AT};
    int e = thread_id(), row = output_row(e), column = output_column(e);
    if (e >= 128) return;
    bool live = column < rows.count;
    int r = rows.first + (live ? column : 0), token = input_array(p, STEP_TOKEN)[r];
    if (token <= STEP_DRAWN) token = p.fault[STEP_SAMPLED_AT + STEP_DRAWN - token];
    token = token < 0 || token >= VOCAB ? 0 : token;
    const float *own = OWN_ROWS ? own_embedding(p, r) : nullptr;
    const uint8_t *tile = p.embed + token / 16 * tile_bytes<CAIRN_PACK_EMBED, HIDDEN>();
#pragma unroll 1
    for (int i = 0;; i++) {
        int n = (first + i / TILES * step) * TILES + i % TILES;
        if (n >= HIDDEN / 16) break;
        int k = n * 16 + row;
        float x = pack::template value<packed_group<CAIRN_PACK_EMBED, HIDDEN>()>(
            tile, k / 32, token % 16, k % 32);
        if (OWN_ROWS && own) x = own[k];
        if (EMBED_SCALED) x *= p.embed_scale;
        out.hand_on(n, row, column, x, p.norms[k]);
        if (live) residual_of(p)[(int64_t)r * HIDDEN + k] = x;
    }
}

/* The tiles of q, k or v whose format is not that of all: `blocks` blocks from the first on, as many
 * as have a share of the bytes like theirs. */
template <int FORMAT, class Input, class Epilogue>
CAIRN_INLINE void stage_part(const uint8_t *weights, int tile, int tiles, int first, int blocks,
                             Input &input, Epilogue &epilogue) {
    if (block_id() >= first && block_id() < first + blocks)
        stream_rows<FORMAT, HIDDEN, false>(weights, tiles, input, epilogue, block_id() - first, blocks,
                                           tile);
}
template <class Input, class Epilogue>
CAIRN_INLINE void stage_mixed(const uint8_t *weights, Input &input, Epilogue &epilogue) {
    const int blocks = grid_blocks(); /* at least three */
    const int k = min_of(max_of((int)(blocks * K_AT / QKV_BYTES), 1), blocks - 2);
    const int v = min_of(max_of((int)(blocks * V_AT / QKV_BYTES), k + 1), blocks - 1);
    if constexpr (PACK_Q == PACK_K) {
        stage_part<PACK_Q>(weights, 0, V_TILE, 0, v, input, epilogue);
    } else {
        stage_part<PACK_Q>(weights, 0, K_TILE, 0, k, input, epilogue);
        stage_part<PACK_K>(weights + K_AT, K_TILE, KV_TILES, k, v - k, input, epilogue);
    }
    stage_part<PACK_V>(weights + V_AT, V_TILE, KV_TILES, v, blocks - v, input, epilogue);
}

template <int TILES, bool ONCE>
CAIRN_INLINE void stage_qkv(const step_params &p, row_window rows, int layer, uint8_t *at,
                            qkv_place &place, workspace &work, int first, int step) {
    if (FLOW && first * TILES >= QKV / 16) return;
    qkv_input input(p, at + HIDDEN_AT, at + SQUARES_AT, rows);
    uint16_t *cache = STREAMED ? nullptr : load_constant_early(p.kv + layer);
    qkv_output<ONCE && TILES == 1 && !STREAMED> out{p, rows, place, at, layer, cache, false};
    if constexpr (QKV_MIXED) stage_mixed(p.qkv, input, out);
    else stage_product<PACK_Q, HIDDEN, TILES, ONCE>(layer_weights(p.qkv, layer, QKV_BYTES), first,
                                                    step, QKV / 16, work, input, out,
                                                    low_of<STEP_LOW_Q>(p, layer));
}

/* residual += W input, handed on for the norm with `weight`. The flow kernel's blocks keep their
 * tiles, so that the residual they need is one they wrote themselves. */
template <int FORMAT, int INPUTS, int TILES, bool ONCE, int PRODUCT, class Input>
CAIRN_INLINE void stage_residual(const step_params &p, row_window rows, int layer,
                                 const uint8_t *weights, const float *weight, uint8_t *hidden,
                                 uint8_t *squares, Input &input, workspace &work, int first, int step) {
    residual_output<ONCE && TILES == 1 && !STREAMED, PRODUCT> out{
        {p, rows, weight, hidden, squares}, -1, 0.0f, 0.0f};
    int e = thread_id(), n = first * TILES * 16 + output_row(e), column = output_column(e);
    if (!STREAMED && e < 128 && first * TILES < HIDDEN / 16) {
        out.held_tile = first * TILES;
        out.held_weight = load_constant_early(weight + n);
        if (FLOW && column < rows.count)
            out.held = load_volatile(residual_of(p) + (int64_t)(rows.first + column) * HIDDEN + n);
    }
    /* The norm's weights come from far. */
    if (STREAMED && first + e * step < HIDDEN / 16) prefetch_l2(weight + (first + e * step) * 16);
    stage_product<FORMAT, INPUTS, TILES, ONCE>(weights, first, step, HIDDEN / 16, work, input, out,
                                               low_of<PRODUCT>(p, layer));
}

template <int TILES, bool ONCE>
CAIRN_INLINE void stage_project(const step_params &p, row_window rows, int layer, uint8_t *at,
                                workspace &work, int first, int step) {
    rows_input<ATTENDED> input{p, at + ATTENDED_AT + (int64_t)rows.first * ATTENDED * 2,
                               rows.count};
    stage_residual<CAIRN_PACK_O, ATTENDED, TILES, ONCE, STEP_LOW_O>(
        p, rows, layer, layer_weights(p.o, layer, HIDDEN / 16 * tile_bytes<CAIRN_PACK_O, ATTENDED>()),
        p.norms + (int64_t)(2 * layer + 1) * HIDDEN, at + MIDDLE_AT, at + MIDDLE_SQUARES_AT, input,
        work, first, step);
}

template <int TILES, bool ONCE>
CAIRN_INLINE void stage_gate_up(const step_params &p, row_window rows, int layer, uint8_t *at,
                                workspace &work, int first, int step) {
    if (FLOW && first * TILES >= FFN / 8) return;
    norm_input input(p, at + MIDDLE_AT, at + MIDDLE_SQUARES_AT, rows);
    swiglu_output<> out{rows.count, at + FFN_AT + (int64_t)rows.first * FFN * 2, p, rows.first};
    stage_product<CAIRN_PACK_GATE_UP, HIDDEN, TILES, ONCE>(
        layer_weights(p.gate_up, layer, FFN / 8 * tile_bytes<CAIRN_PACK_GATE_UP, HIDDEN>()), first,
        step, FFN / 8, work, input, out, low_of<STEP_LOW_GATE>(p, layer));
}

template <int TILES, bool ONCE>
CAIRN_INLINE void stage_down(const step_params &p, row_window rows, int layer, uint8_t *at,
                             uint8_t *next, workspace &work, int first, int step) {
    rows_input<FFN> input{p, at + FFN_AT + (int64_t)rows.first * FFN * 2, rows.count};
    stage_residual<CAIRN_PACK_DOWN, FFN, TILES, ONCE, STEP_LOW_DOWN>(
        p, rows, layer, layer_weights(p.down, layer, HIDDEN / 16 * tile_bytes<CAIRN_PACK_DOWN, FFN>()),
        p.norms + (int64_t)(2 * layer + 2) * HIDDEN, next + HIDDEN_AT, next + SQUARES_AT, input,
        work, first, step);
}

/* Row's hidden state behind the output norm to its place among those that are kept, if it has one: a block
 * of so many warps, a word of shared memory for each. */
template <int COUNT> CAIRN_INLINE void keep_row(const step_params &p, int row, float *totals) {
    const int place = row < p.input[STEP_ROWS] ? input_array(p, STEP_KEEP)[row] : -1;
    if (place < 0) return;
    const float *x = residual_of(p) + (int64_t)row * HIDDEN;
    const float *weight = p.norms + (int64_t)2 * LAYERS * HIDDEN;
    float sum = 0.0f;
    for (int i = thread_id(); i < HIDDEN; i += COUNT * WARP) sum = fma_f32(x[i], x[i], sum);
    sum = warp_sum(sum);
    if (lane_id() == 0) totals[warp_id()] = sum;
    block_sync();
    const float factor = rsqrt_fast(tree_sum<COUNT>(totals, 1) * (1.0f / HIDDEN) + p.norm_eps);
    for (int i = thread_id(); i < HIDDEN; i += COUNT * WARP)
        p.kept[(int64_t)place * HIDDEN + i] = x[i] * factor * weight[i];
}

/* ---- the head ---- */

/* Larger logit first, then the lower index; never 0. NaN ranks lowest. */
CAIRN_INLINE uint64_t rank_logit(float v, int index) {
    uint32_t bits = as_u32(v);
    bits = v != v ? 0 : (int32_t)bits < 0 ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (0xffffffffu - (uint32_t)index);
}

/* `multiply` keeps a thread to one column, whose best is best0; in the stream a lane has one column of
 * each pair. */
struct head_output {
    const step_params &p;
    int row, count;                      /* of the window: its first among those wanted; rows */
    uint64_t best0, best1, best2, best3; /* of this thread's columns */

    CAIRN_MEMBER void operator()(const output &o, const float *factors) {
        int n = o.tile * 16 + o.row, pair = STREAMED ? o.column / 2 : 0;
        int at = row + o.column; /* negative: no one wants its logits */
        if (o.column >= count || at < 0 || n >= VOCAB) return;
        float y = o.value * factors[o.column];
        store_once(p.logits + (int64_t)at * VOCAB + n, y);
        const uint64_t rank = rank_logit(y, n);
        if (pair == 0) best0 = max_of(best0, rank);
        if (pair == 1) best1 = max_of(best1, rank);
        if (pair == 2) best2 = max_of(best2, rank);
        if (pair == 3) best3 = max_of(best3, rank);
    }
};

/* The best of a warp's lanes of the same parity, in every lane. */
CAIRN_INLINE uint64_t best_of_pair(uint64_t best) {
#pragma unroll
    for (int m = 2; m < WARP; m *= 2) best = max_of(best, shuffle_xor(best, m));
    return best;
}

/* Tiles at a time, so that their weights and operands fit the registers. */
constexpr int HEAD_TILES = min_of(CAIRN_ARCH >= 1000 ? 2 : MEETING_TILES,
                                  max_of(1, 8 / ceil_div(HIDDEN / 32, WARPS)));

/* logits of the rows; winners[row, block] = the best of the block's tiles. */
template <int TILES>
CAIRN_INLINE void stage_head(const step_params &p, row_window rows, const uint8_t *hidden,
                             const uint8_t *squares, workspace &work, int first, int step) {
    constexpr int PARTS = STREAMED ? WARPS : WARPS / 4; /* warps with a column's outputs */
    norm_input input(p, hidden, squares, rows);
    head_output out{p, rows.first - p.input[STEP_LOGIT_FIRST], rows.count, 0, 0, 0, 0};
    if (!STREAMED && first * TILES >= (VOCAB + 15) / 16) start_input();
    stage_product<CAIRN_PACK_HEAD, HIDDEN, TILES, false, false>(
        p.head, first, step, (VOCAB + 15) / 16, work, input, out);
    uint64_t *table = (uint64_t *)(work.meeting + work.half * MEETING_FLOATS);
    work.half ^= 1;
    if (STREAMED) {
        block_sync(); /* others may still add up sums there */
        uint64_t *mine = table + lane_id() * PARTS + warp_id();
        uint64_t bests[4] = {best_of_pair(out.best0), best_of_pair(out.best1),
                             best_of_pair(out.best2), best_of_pair(out.best3)};
#pragma unroll
        for (int pair = 0; pair < 4; pair++)
            if (lane_id() < 2) mine[pair * 2 * PARTS] = bests[pair];
    } else {
        uint64_t best = best_of_pair(out.best0);
        if (lane_id() < 2 && thread_id() < ENDERS)
            table[output_column(thread_id()) * PARTS + warp_id() / 4] = best;
    }
    block_sync();
    int row = out.row + thread_id();
    if (thread_id() < out.count && row >= 0) {
        uint64_t top = 0;
        for (int w = 0; w < PARTS; w++) top = max_of(top, table[thread_id() * PARTS + w]);
        p.winners[(int64_t)row * step + first] = top;
    }
}

#endif

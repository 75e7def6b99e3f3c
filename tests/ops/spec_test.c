/* Every op from its table of arguments (runtime/ops/spec_table.c), on each backend: random calls that are
 * right give the same on the GPU as on the CPU and touch nothing but their outputs; the same calls
 * with one argument changed (rank, extents up to 2^62, dtype, strides, NULL, address, device, memory
 * of another argument, numbers) are refused with an argument named and not a byte written, or are
 * right still. And what once went wrong, by name.
 * CAIRN_FUZZ_SECONDS: how long on each backend (10).
 * emulated: asan */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "ref/f16_ref.h"
#include "tap.h"
#include "backends.h"

static uint64_t state;
static int64_t between(int64_t low, int64_t high) {
    return low + (int64_t)(random_next(&state) % ((uint64_t)(high - low) + 1));
}
static bool chance(int percent) { return between(0, 99) < percent; }

/* ---- a call ------------------------------------------------------------------------------------ */

enum { GUARD = 64, PARTS = 64, LISTED = 3 };

/* A tensor of the call, in memory of its own between guard bytes; `host` is what lies in all of it. */
typedef struct part {
    const spec_arg *arg; /* NULL: an output of a step */
    const char *name;
    cairn_tensor *all, view;
    int64_t shape[CAIRN_MAX_RANK + 2], strides[CAIRN_MAX_RANK + 2];
    size_t bytes, first, span;
    unsigned char *host, *now;
    bool out;
} part;

typedef struct call {
    cairn_runtime *rt;
    const spec_op *op;
    union { unsigned char bytes[512]; void *align; } args;
    int64_t n[SPEC_SYMBOLS];
    bool present[SPEC_ARGS];
    part parts[PARTS];
    int count;
    cairn_tensor *lists[2][LISTED];
    cairn_step_metadata steps[2];
    bool f32_weights;     /* of a convolution */
    bool few;             /* sizes, where each takes a compiler */
} call;

static const spec_arg *arg_of(const call *c, const char *name) {
    for (const spec_arg *a = c->op->args; a->name; a++)
        if (!strcmp(spec_lua_name(a), name)) return a;
    return NULL;
}
static bool is_op(const call *c, const char *name) { return !strcmp(c->op->name, name); }
static bool has(const call *c, const char *name) {
    const spec_arg *a = arg_of(c, name);
    return a && c->present[a - c->op->args];
}
static void set_present(call *c, const char *name, bool present) {
    const spec_arg *a = arg_of(c, name);
    if (a) c->present[a - c->op->args] = present;
}
static void put(call *c, const spec_arg *a, const void *value, size_t bytes) {
    memcpy(c->args.bytes + a->offset, value, bytes);
}
static void put_int(call *c, const char *name, int64_t value) {
    int32_t v = (int32_t)value;
    put(c, arg_of(c, name), &v, sizeof v);
}
static int32_t get_int(const call *c, const char *name) {
    int32_t v;
    memcpy(&v, c->args.bytes + arg_of(c, name)->offset, sizeof v);
    return v;
}

/* ---- sizes and numbers ------------------------------------------------------------------------- */

static const spec_limit *limit_of(const call *c, int symbol) {
    const spec_limit *l = c->op->limits;
    while (l->symbol && (int)l->symbol != symbol) l++;
    return l->symbol ? l : NULL;
}

static void choose_sizes(call *c) {
    for (int i = 1; i < SPEC_SYMBOLS; i++) {
        const spec_limit *l = limit_of(c, i);
        int64_t by = l && l->multiple > 1 ? l->multiple : 1, least = l ? l->least : 0;
        least = (least + by - 1) / by * by;
        c->n[i] = least + by * between(by > 1 || least ? 0 : chance(90), by > 1 ? 1 : 4);
        if (c->few && (i == SPEC_HEAD_DIM || i == SPEC_PAGE_SIZE || i == SPEC_TAPS) && least)
            c->n[i] = i == SPEC_TAPS ? 2 : least; /* what kernels are compiled for */
        if (l && c->n[i] > l->most) c->n[i] = least;
    }
    if (c->n[SPEC_KV_HEADS] > 2) c->n[SPEC_KV_HEADS] = 2; /* caches are filled value by value */
    for (const spec_limit *l = c->op->limits; l->symbol; l++) {
        if (l->multiple_of) c->n[l->symbol] = c->n[l->multiple_of] * between(1, 3);
        if (l->at_least) c->n[l->symbol] = c->n[l->at_least] + between(0, 2);
    }
    c->n[SPEC_K] = between(1, 6), c->n[SPEC_TOPK] = between(1, 4);
    c->n[SPEC_LAYERS] = between(0, LISTED);
}

/* What belongs together in the indexer's calls. */
static void choose_present_index(call *c) {
    static const char *const forward[] = {"q_latent", "wq", "gate", "q", "weights"};
    const bool first = chance(50);
    if (is_op(c, "index_gather"))
        set_present(c, "slots", first), set_present(c, "page_table", !first), set_present(c, "cu_seqlens", !first);
    if (is_op(c, "index_transform")) {
        set_present(c, "page_table", first), set_present(c, "offsets", !first);
        if (!first) set_present(c, "requests", false);
    }
    for (size_t i = 0; is_op(c, "index_qk") && i < BASE_COUNT(forward); i++) set_present(c, forward[i], first);
    if (!is_op(c, "index_topk")) return;
    set_present(c, "keys", first), set_present(c, "key_scales", first), set_present(c, "cache", !first);
    set_present(c, "scores", false);
    if (!first) set_present(c, "page_table", true), set_present(c, "lengths", true);
    if (first && has(c, "offsets")) set_present(c, "page_table", false);
    if (!has(c, "page_table")) set_present(c, "requests", false);
}

/* Attention with abilities: which is compiled for each set of them, on the emulation few. */
static bool is_attention(const call *c) {
    return is_op(c, "attend") || is_op(c, "attend_pages") || is_op(c, "attend_tokens");
}

static void choose_attention(call *c) {
    const bool listed = is_op(c, "attend") && chance(20), rows = !listed && !c->few && chance(30);
    const bool bases = is_op(c, "attend") && !listed && !c->few && chance(30);
    if (is_op(c, "attend_tokens")) return;
    set_present(c, "page_table", !listed && !rows);
    set_present(c, "page_indptr", rows), set_present(c, "page_indices", rows);
    if (!rows) set_present(c, "last_page_len", false);
    set_present(c, "positions", !listed);
    if (!is_op(c, "attend")) return;
    set_present(c, "kv_indices", listed), set_present(c, "cu_lens", listed);
    set_present(c, "bases", bases);
    if (!bases) set_present(c, "mask", false);
}

static void choose_present(call *c) {
    for (const spec_arg *a = c->op->args; a->name; a++)
        c->present[a - c->op->args] = !(a->flags & SPEC_OPTIONAL) || chance(50);
    set_present(c, "staging", false);
    c->f32_weights = chance(30);
    if (is_op(c, "topk_transform") || is_op(c, "topk_rows")) {
        bool table = chance(50);
        set_present(c, "page_table", table), set_present(c, "offsets", !table);
        if (!table) set_present(c, "requests", false);
    }
    if (is_op(c, "prepare_steps") || is_op(c, "prefix_chunks"))
        set_present(c, "slots", !has(c, "pages"));
    if (is_op(c, "short_conv")) set_present(c, "chunk_offsets", has(c, "chunk_sequences"));
    choose_present_index(c);
    if (is_attention(c)) choose_attention(c);
    if (is_op(c, "kv_append") || is_op(c, "attend_tokens"))
        set_present(c, "latent", false), set_present(c, "cache", true);
}

static void choose_number(call *c, const spec_arg *a) {
    int choices = 0;
    float real;
    if (a->kind == SPEC_INT && a->extents[0]) put_int(c, spec_lua_name(a), c->n[a->extents[0]]);
    else if (a->kind == SPEC_INT) {
        int64_t low = a->least > -1e6 ? (int64_t)a->least : 0, high = a->most < 40 ? (int64_t)a->most : 40;
        put_int(c, spec_lua_name(a), a->most >= INT32_MAX && chance(5) ? INT32_MAX : between(low, high));
    } else if (a->kind == SPEC_FLAG) put_int(c, spec_lua_name(a), between(0, 1));
    else if (a->kind == SPEC_CHOICE) {
        while (a->choices[choices].name) choices++;
        put_int(c, spec_lua_name(a), a->choices[between(0, choices - 1)].value);
    } else if (a->kind == SPEC_FLOAT) {
        real = (float)(a->least + (double)between(0, 8) / 8.0 * (a->most < 4 ? a->most - a->least : 4));
        put(c, a, &real, sizeof real);
    }
}

/* The callback of topk_rows: scores that follow from row and column. */
static cairn_status produce(void *user, int64_t first, int64_t count, cairn_tensor *scores) {
    call *c = (call *)user;
    int64_t n = scores->shape[1], whole = count;
    float *values = (float *)malloc((size_t)(count * n + 1) * 4);
    cairn_tensor t = *scores;
    cairn_status status = CAIRN_OK;
    int64_t shape[2];
    shape[0] = 1, shape[1] = n, t.shape = shape, t.strides = NULL;
    for (int64_t r = 0; r < whole && !status; r++) {
        for (int64_t j = 0; j < n; j++) values[j] = (float)((first + r + 1) * (j * 7 % 5 + 1) % 11);
        if (cairn_tensor_type(scores) == CAIRN_F32)
            status = cairn_tensor_write(c->rt, &t, values, (size_t)n * 4);
        t.byte_offset += (uint64_t)tensor_stride(scores, 0) * cairn_type_bytes(cairn_tensor_type(scores));
    }
    free(values);
    return status;
}

static void mend_attention(call *c) {
    const float none = 0.0f;
    for (const spec_arg *a = c->op->args; a->name; a++)
        if (c->few && !strcmp(spec_lua_name(a), "softcap")) put(c, a, &none, sizeof none);
    if (is_op(c, "attend")) {
        if (has(c, "kv_indices") || has(c, "bases")) put_int(c, "window", 0);
        if (has(c, "kv_indices")) put_int(c, "prompt", 0);
        put_int(c, "step_rows", has(c, "mask") ? between(1, 2) : 0);
        if (has(c, "mask")) put_int(c, "draft_length", 0);
    } else if (is_op(c, "attend_tokens")) {
        if (c->n[SPEC_PAGE_SIZE] != 1) put_int(c, "space", CAIRN_SPACE_SLOT);
    } else {
        if (c->few)
            put_int(c, "form", CAIRN_FORM_FLAT), put_int(c, "part", 0), put_int(c, "landmarks", 0);
        set_present(c, "weights", get_int(c, "form") == CAIRN_FORM_TWO_LEVEL);
    }
}

/* What the table does not say of numbers. */
static void mend_numbers(call *c) {
    if (is_op(c, "index_logits_paged")) put_int(c, "split", 16 * between(0, 2));
    if (is_op(c, "index_topk")) {
        put_int(c, "n", 0);
        put_int(c, "slots", has(c, "page_table") && (has(c, "keys") || (!has(c, "offsets") && chance(50))));
    }
    if (is_attention(c)) mend_attention(c);
    if (is_op(c, "topk_rows")) {
        cairn_topk_rows_args *a = (cairn_topk_rows_args *)(void *)c->args.bytes;
        a->produce = produce, a->user = c;
        a->max_bytes = (uint64_t)between(0, 100);
    }
    if (is_op(c, "score_pages")) {
        const bool soft = get_int(c, "strategy") == CAIRN_STRATEGY_SOFTMAX_HEAD;
        set_present(c, "bounds", get_int(c, "source") != CAIRN_SOURCE_LANDMARK);
        if (soft) set_present(c, "head_scores", true);
        else set_present(c, "lse", false);
    }
    if (is_op(c, "select_pages")) set_present(c, "head_chosen", has(c, "head_scores"));
    if (is_op(c, "sample_probs")) set_present(c, "mask", false);
    if (is_op(c, "sample")) { /* of widths that the table does not know: sample_rows has them */
        set_present(c, "mask", false);
        set_present(c, "logprobs", false);
        set_present(c, "best", false);
    }
    if (is_op(c, "rope")) put_int(c, "rotary_dim", between(0, c->n[SPEC_HEAD_DIM] / 2) * 2);
    if (is_op(c, "kv_append"))
        put_int(c, "rotary_dim", between(0, c->n[SPEC_HEAD_DIM] / 16) * 16);
    if (is_op(c, "kv_collate")) {
        put_int(c, "stride", between(1, 3));
        put_int(c, "most", has(c, "sources") ? 0 : between(1, 3));
        if (!c->n[SPEC_LAYERS]) c->n[SPEC_LAYERS] = 1, put_int(c, "layers", 1);
    }
    if (is_op(c, "prepare_steps")) {
        put_int(c, "steps", between(1, 2));
        put_int(c, "draft_tokens", between(1, 3));
        put_int(c, "page_size", between(1, 3));
        set_present(c, "accept", get_int(c, "mode") == CAIRN_STEP_DRAFT_EXTEND);
    }
    if (is_op(c, "prefix_chunks"))
        put_int(c, "page_size", between(1, 3)), put_int(c, "capacity", between(0, 40));
    if (is_op(c, "short_conv"))
        put_int(c, "block_tokens", chance(30) ? 0 : between(c->n[SPEC_TAPS], 40));
}

/* ---- tensors ----------------------------------------------------------------------------------- */

static bool is_text(const char *a, const char *b) { return !strcmp(a, b); }

static bool is_float(cairn_type type) { return type >= CAIRN_F32 && type <= CAIRN_E4M3; }

static void store_float(cairn_type type, unsigned char *to, float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (type == CAIRN_F32) memcpy(to, &x, 4);
    else if (type == CAIRN_BF16) to[0] = (unsigned char)(bits >> 16), to[1] = (unsigned char)(bits >> 24);
    else if (type == CAIRN_E4M3) to[0] = (unsigned char)(bits >> 7 & 0xb7);
    else { /* f16 of a multiple of 1/8 below 2 */
        int eighths = (int)(x * 8.0f), e = 0, m = eighths < 0 ? -eighths : eighths;
        uint32_t half = x < 0 ? 0x8000u : 0;
        if (m) {
            while (m >> (e + 1)) e++;
            half |= (uint32_t)(e - 3 + 15) << 10 | ((uint32_t)m << (10 - e) & 0x3ffu);
        }
        to[0] = (unsigned char)half, to[1] = (unsigned char)(half >> 8);
    }
}

static double load_float(cairn_type type, const unsigned char *from) {
    uint32_t bits = 0;
    float f;
    if (type == CAIRN_F16) return ref_f16((uint16_t)(from[0] | from[1] << 8));
    if (type == CAIRN_E4M3) {
        int e = from[0] >> 3 & 15, m = from[0] & 7;
        double v = e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
        return from[0] & 128 ? -v : v;
    }
    memcpy(type == CAIRN_F32 ? (void *)&bits : (void *)((char *)&bits + 2), from,
           type == CAIRN_F32 ? 4 : 2);
    memcpy(&f, &bits, 4);
    return (double)f;
}

/* Random data of the part's type; lists of lengths ascend. */
static void fill(call *c, part *p, cairn_type type) {
    const size_t element = cairn_type_bytes(type);
    const bool ascends = is_text(p->name, "cu_seqlens");
    const uint64_t seed = random_next(&state);
    int64_t at = 0;
    for (size_t i = 0; i < p->bytes; i++) p->host[i] = (unsigned char)(seed >> (i % 57));
    for (size_t i = 0; i * element < p->span; i++) {
        unsigned char *to = p->host + p->first + i * element;
        int64_t whole = between(-1, 4);
        if (ascends) {
            const int64_t most = is_op(c, "short_conv_metadata") ? 12 : c->n[SPEC_TOKENS];
            whole = at, at += between(0, most - at < 3 ? most - at : 3);
        }
        if (is_text(p->name, "copies")) whole = -1; /* a page stands in no other pair */
        if (is_text(p->name, "state_indices") && whole >= 0) whole = (int64_t)(i + seed % 3); /* no two share one */
        if (is_op(c, "index_store") && i && is_text(p->name, "slots"))
            whole = whole < 0 ? -1 : 4 + (int64_t)i; /* no two rows of one slot */
        if (is_float(type)) store_float(type, to, (float)between(-8, 8) / 8.0f);
        else if (type == CAIRN_U8) *to = (unsigned char)between(0, 0x2f);
        else if (type == CAIRN_I32) { int32_t v = (int32_t)whole; memcpy(to, &v, 4); }
        else memcpy(to, &whole, 8);
    }
}

static void set_type(cairn_tensor *t, cairn_type type) {
    t->dtype.code = tensor_types[type].code;
    t->dtype.bits = tensor_types[type].bits;
    t->dtype.lanes = 1;
}

/* Adds a tensor of p->shape [rank]. */
static part *add_part(call *c, const spec_arg *arg, const char *name, cairn_type type, int rank,
                      const int64_t *shape, int align, bool strided, bool out) {
    part *p = &c->parts[c->count++];
    const size_t element = cairn_type_bytes(type), step = (size_t)align > element ? (size_t)align : element;
    int64_t whole, stride = 1;
    memset(p, 0, sizeof *p);
    p->arg = arg, p->name = name, p->out = out;
    memcpy(p->shape, shape, (size_t)rank * sizeof *shape);
    for (int d = rank - 1; d >= 0; d--) {
        p->strides[d] = stride;
        stride *= shape[d] ? shape[d] : 1;
        if (d == rank - 1 && strided) stride += between(0, 3);
    }
    p->span = element;
    for (int d = 0; d < rank; d++) {
        if (!shape[d]) p->span = 0;
        if (p->span) p->span += (size_t)((shape[d] - 1) * p->strides[d]) * element;
    }
    p->first = GUARD + step * (size_t)between(0, 2);
    p->bytes = p->first + p->span + GUARD;
    p->host = (unsigned char *)malloc(p->bytes);
    p->now = (unsigned char *)malloc(p->bytes);
    whole = (int64_t)p->bytes;
    if (cairn_tensor_new(c->rt, CAIRN_U8, 1, &whole, &p->all)) tap_note("%s", cairn_last_error(c->rt));
    p->view = *p->all;
    set_type(&p->view, type);
    p->view.ndim = rank;
    p->view.shape = p->shape;
    p->view.strides = strided ? p->strides : NULL;
    p->view.byte_offset = p->first;
    fill(c, p, type);
    return p;
}

static int64_t extent(call *c, spec_extent e) {
    if (e & SPEC_EXTENT_NUMBER) return e >> 12;
    if (e & SPEC_EXTENT_ANY) return between(1, 4);
    return c->n[e & 255] + ((e & SPEC_EXTENT_ONE_MORE) != 0) +
           (e & SPEC_EXTENT_LEAST ? between(0, 2) : 0);
}

static cairn_type choose_type(const call *c, const spec_arg *a, cairn_type same) {
    int type;
    if ((a->flags & SPEC_OR_F32) && c->f32_weights) return CAIRN_F32;
    if ((a->flags & SPEC_SAME_TYPE) && same) return same;
    do type = (int)between(1, CAIRN_U8);
    while (!(a->types & TENSOR_BIT(type)));
    return (cairn_type)type;
}

static part *add_tensor(call *c, const spec_arg *a, cairn_type type) {
    int64_t shape[CAIRN_MAX_RANK];
    int rank = 0;
    const block_type *block = NULL;
    for (; a->extents[rank]; rank++) shape[rank] = extent(c, a->extents[rank]);
    if (a->flags & SPEC_BLOCKS) {
        block = get_int(c, "block") ? block_find(get_int(c, "block")) : NULL;
        if (block) shape[1] = shape[1] / block->values * block->bytes, type = CAIRN_U8;
    }
    if (is_op(c, "attend_pages") && is_text(a->name, "weights")) shape[1] = c->n[SPEC_KV_HEADS];
    if (a->flags & SPEC_ANY_SHAPE) shape[0] = 3, shape[1] = 2, shape[2] = 8, rank = 3;
    return add_part(c, a, spec_lua_name(a), type, rank, shape, block ? 2 : a->align,
                    (a->flags & SPEC_STRIDED) && chance(60), a->kind != SPEC_IN);
}

/* What the table does not say of shapes. */
static void mend_sizes(call *c) {
    if (((has(c, "page_table") && has(c, "positions")) || is_op(c, "attend") ||
         is_op(c, "attend_pages")) && !has(c, "sequences"))
        c->n[SPEC_SEQUENCES] = c->n[SPEC_ROWS] + between(0, 2);
    if ((is_op(c, "topk_transform") || is_op(c, "topk_rows")) && !has(c, "requests"))
        c->n[SPEC_REQUESTS] = c->n[SPEC_ROWS] ? c->n[SPEC_ROWS] : 1;
    if ((is_op(c, "index_logits_paged") || is_op(c, "index_topk") || is_op(c, "index_transform")) && !has(c, "requests"))
        c->n[SPEC_REQUESTS] = c->n[SPEC_ROWS] ? c->n[SPEC_ROWS] : 1;
    if (is_op(c, "select_pages")) c->n[SPEC_HEADS] = c->n[SPEC_KV_HEADS] * between(1, 2);
    if (is_op(c, "index_qk")) c->n[SPEC_OUTS] = c->n[SPEC_HEADS] * 128;
    if (is_op(c, "short_conv_update")) {
        if (!has(c, "cu_seqlens")) c->n[SPEC_SEQUENCES] = c->n[SPEC_TOKENS];
        c->n[SPEC_KEPT] = c->n[SPEC_TAPS] + between(1, 3);
    }
    c->n[SPEC_VALUES] = c->n[SPEC_HEAD_DIM];
    if (is_op(c, "rope")) c->n[SPEC_HEAD_DIM] = 2 * between(0, 2);
    if (is_op(c, "embed")) c->n[SPEC_HIDDEN] = 32 * between(1, 2);
    if ((is_op(c, "embed") || is_op(c, "linear") || is_op(c, "index_qk")) &&
        block_find(get_int(c, "block"))->values == 256)
        c->n[SPEC_HIDDEN] = c->n[SPEC_INS] = 256;
    if (is_op(c, "kv_collate")) c->n[SPEC_HEAD_DIM] = 16 * between(1, 2);
    if (is_op(c, "prepare_steps")) c->n[SPEC_BATCH] = between(1, 4);
    if (is_op(c, "prefix_chunks")) c->n[SPEC_BATCH] = between(1, 4), c->n[SPEC_PARTS] = between(1, 3);
}

static void link_part(call *c, part *p) {
    cairn_tensor *t = &p->view;
    if (p->arg && p->arg->kind != SPEC_LIST) put(c, p->arg, &t, sizeof t);
}

static void add_list(call *c, const spec_arg *a, int which, cairn_type type) {
    cairn_tensor **list = c->lists[which];
    for (int64_t i = 0; i < c->n[SPEC_LAYERS]; i++) list[i] = &add_tensor(c, a, type)->view;
    put(c, a, &list, sizeof list);
}

/* Outputs of the steps: large enough for any. */
static void add_steps(call *c) {
    const cairn_prepare_steps_args *a = (const cairn_prepare_steps_args *)(void *)c->args.bytes;
    cairn_step_metadata *steps = c->steps;
    const int64_t rows = c->n[SPEC_BATCH] * 4 + 1;
    for (int i = 0; i < a->step_count; i++) {
        memset(&c->steps[i], 0, sizeof c->steps[i]);
        c->steps[i].struct_size = (uint32_t)sizeof c->steps[i];
        for (int which = 0; which < PREPARE_OUTPUTS; which++) {
            const bool plan = steps_outputs[which].extent == STEPS_SCHEDULE;
            int64_t shape[2];
            cairn_tensor *t;
            if (chance(60)) continue;
            shape[0] = plan ? 3 : rows, shape[1] = 2;
            t = &add_part(c, NULL, steps_outputs[which].name, CAIRN_I32, plan ? 2 : 1, shape, 0, false,
                          true)->view;
            memcpy((char *)&c->steps[i] + steps_outputs[which].offset, &t, sizeof t);
        }
    }
    memcpy(c->args.bytes + offsetof(cairn_prepare_steps_args, steps), &steps, sizeof steps);
}

/* Wide and long enough for what prefix_chunks and prepare_steps are asked. */
static int64_t widened(call *c, const spec_arg *a, int d, int64_t extent_there) {
    if (a->kind == SPEC_OUT && d == 0) return c->n[SPEC_PARTS];
    if (is_text(a->name, "kv_indices")) return 64;
    if (is_text(a->name, "slots") || is_text(a->name, "pages"))
        return d == 0 ? 5 : 4;
    return extent_there;
}

static void add_wide(call *c, const spec_arg *a) {
    int64_t shape[2];
    for (int d = 0; d < 2; d++) shape[d] = widened(c, a, d, extent(c, a->extents[d]));
    add_part(c, a, spec_lua_name(a), CAIRN_I32, 2, shape, 0, (a->flags & SPEC_STRIDED) && chance(60),
             a->kind != SPEC_IN);
}

static void add_tensors(call *c) {
    cairn_type same = CAIRN_TYPE_NONE;
    bool scaled = false;
    for (const spec_arg *a = c->op->args; a->name; a++) {
        cairn_type type;
        const int before = c->count;
        if ((is_op(c, "kv_append") || is_attention(c)) && is_text(spec_lua_name(a), "scales"))
            c->present[a - c->op->args] = scaled;
        if (a->kind > SPEC_LIST || !c->present[a - c->op->args]) continue;
        type = choose_type(c, a, same);
        if (is_op(c, "topk_rows") && is_text(a->name, "scores")) type = CAIRN_F32;
        if ((a->flags & SPEC_SAME_TYPE) && !same) same = type;
        if (c->few && is_attention(c) && (a->types & TENSOR_BIT(CAIRN_F32)))
            type = is_text(spec_lua_name(a), "cache") ? CAIRN_F16 : CAIRN_F32;
        if (is_text(spec_lua_name(a), "cache")) scaled = type == CAIRN_E4M3;
        if (a->kind == SPEC_LIST) add_list(c, a, is_text(a->name, "scales"), type);
        else if ((is_op(c, "prepare_steps") || is_op(c, "prefix_chunks")) &&
                 (is_text(a->name, "slots") || is_text(a->name, "pages") ||
                  is_text(a->name, "kv_indices") || is_text(a->name, "cu_lens")))
            add_wide(c, a);
        else add_tensor(c, a, type);
        if (a->kind != SPEC_LIST) link_part(c, &c->parts[before]);
    }
    if (is_op(c, "prepare_steps")) add_steps(c);
}

static void write_parts(call *c) {
    for (int i = 0; i < c->count; i++)
        cairn_tensor_write(c->rt, c->parts[i].all, c->parts[i].host, c->parts[i].bytes);
}

static void read_parts(call *c) {
    for (int i = 0; i < c->count; i++)
        cairn_tensor_read(c->rt, c->parts[i].all, c->parts[i].now, c->parts[i].bytes);
}

/* A call that is right: the same for every runtime from the same seed. */
static void make_call(call *c, cairn_runtime *rt, const spec_op *op, uint64_t seed) {
    uint32_t size = (uint32_t)op->bytes;
    state = seed;
    memset(c, 0, sizeof *c);
    c->rt = rt;
    c->op = op;
    c->few = getenv("CAIRN_SIMT_KERNELS") != NULL;
    memcpy(c->args.bytes, &size, sizeof size);
    choose_sizes(c);
    choose_present(c);
    for (const spec_arg *a = op->args; a->name; a++) choose_number(c, a);
    mend_sizes(c);
    mend_numbers(c);
    for (const spec_arg *a = op->args; a->name; a++)
        if (a->kind == SPEC_INT && a->extents[0] && !is_op(c, "kv_collate"))
            put_int(c, spec_lua_name(a), c->n[a->extents[0]]);
    add_tensors(c);
    write_parts(c);
}

static void close_call(call *c) {
    for (int i = 0; i < c->count; i++) {
        cairn_tensor_free(c->rt, c->parts[i].all);
        free(c->parts[i].host), free(c->parts[i].now);
    }
}

/* ---- what a call did --------------------------------------------------------------------------- */

/* Bytes that a call may not write are as they were: of inputs all, of outputs what lies around. */
static const char *touched(call *c, bool refused) {
    for (int i = 0; i < c->count; i++) {
        const part *p = &c->parts[i];
        if (refused || !p->out) {
            if (memcmp(p->host, p->now, p->bytes)) return p->name;
        } else if (memcmp(p->host, p->now, p->first) ||
                   memcmp(p->host + p->first + p->span, p->now + p->first + p->span,
                          p->bytes - p->first - p->span))
            return p->name;
    }
    return NULL;
}

static bool alike(const part *a, const part *b) {
    const cairn_type type = cairn_tensor_type(&a->view);
    const size_t element = cairn_type_bytes(type);
    if (a->span != b->span || !is_float(type)) return !memcmp(a->now + a->first, b->now + b->first, a->span);
    for (size_t at = a->first; at < a->first + a->span; at += element) {
        double x = load_float(type, a->now + at), y = load_float(type, b->now + at);
        double room = type == CAIRN_E4M3 ? 0.13 : 0.02;
        if (x == y || (isnan(x) && isnan(y))) continue;
        if (!(fabs(x - y) <= 0.1 + room * fabs(y))) return false;
    }
    return true;
}

/* The two backends gave the same, as far as their arithmetic is the same. */
static const char *differs(const call *a, const call *b) {
    float temperature = 0.0f, scale = 0.0f;
    if (is_op(a, "sample") || is_op(a, "sample_probs")) /* their fields are alike */
        memcpy(&temperature, a->args.bytes + offsetof(cairn_sample_args, temperature), 4);
    if (!strncmp(a->op->name, "sample", 6) && has(a, "temperatures")) temperature = 1.0f;
    if (temperature > 0.0f || is_op(a, "index_qk")) return NULL; /* products of f16 in 8 bits */
    if (is_op(a, "attend")) memcpy(&scale, a->args.bytes + offsetof(cairn_attend_args, scale), 4);
    if (is_op(a, "attend_pages"))
        memcpy(&scale, a->args.bytes + offsetof(cairn_attend_pages_args, scale), 4);
    if (is_op(a, "attend_tokens"))
        memcpy(&scale, a->args.bytes + offsetof(cairn_attend_tokens_args, scale), 4);
    if (scale > 1e6f) return NULL; /* one key has all the weight: which, its last bit decides */
    for (int i = 0; i < a->count; i++)
        if (a->parts[i].out && !alike(&a->parts[i], &b->parts[i])) return a->parts[i].name;
    return NULL;
}

/* The message begins with the op and holds an argument's name. */
static bool names_one(const call *c, const char *text, const char *wanted) {
    const size_t bytes = strlen(c->op->name);
    if (strncmp(text, c->op->name, bytes) || text[bytes] != ':') return false;
    for (const spec_arg *a = c->op->args; a->name; a++)
        if ((!wanted || is_text(wanted, spec_lua_name(a))) &&
            (strstr(text + bytes, spec_lua_name(a)) || strstr(text + bytes, a->name)))
            return true;
    for (int i = 0; i < c->count; i++)
        if ((!wanted || is_text(wanted, c->parts[i].name)) && strstr(text + bytes, c->parts[i].name))
            return true;
    return false;
}

/* ---- one argument changed ---------------------------------------------------------------------- */

static int64_t hostile_extent(void) {
    static const int64_t extents[] = {0, 1, -1, INT64_C(1) << 31, INT64_C(1) << 62, INT64_MAX, INT64_MIN};
    return extents[between(0, (int64_t)BASE_COUNT(extents) - 1)];
}

/* Returns what a refusal must name, "" for any argument; what: for messages. */
static const char *change_tensor(call *c, part *p, char *what, size_t bytes) {
    cairn_tensor *t = &p->view;
    const int way = (int)between(0, 11), d = t->ndim ? (int)between(0, t->ndim - 1) : 0;
    const int64_t to = hostile_extent(), to_type = between(0, CAIRN_U8 - 1);
    cairn_tensor *none = NULL;
    snprintf(what, bytes, "%s: way %d, dimension %d, %lld", p->name, way, d, (long long)to);
    switch (way) {
        case 0: case 1: case 2:
            p->shape[d] = to == 1 && !p->shape[d] ? -1 : to; /* what is not there is not claimed */
            return "";
        case 3:
            if (p->arg && p->arg->kind != SPEC_LIST) put(c, p->arg, &none, sizeof none);
            return "";
        case 4: t->ndim = chance(50) ? t->ndim + 1 : t->ndim - 1; p->shape[t->ndim > 0 ? t->ndim - 1 : 0] = 1;
            return p->arg && (p->arg->flags & (SPEC_ANY_SHAPE | SPEC_COLUMN)) ? "" : p->name;
        case 5: t->ndim = chance(50) ? 9 : -1; return p->name;
        case 6: t->dtype.lanes = chance(50) ? 2 : 1, t->dtype.bits = 64, t->dtype.code = 2; return p->name;
        case 7: /* no larger, so that it does not claim what is not there */
            if (cairn_type_bytes((cairn_type)(1 + to_type)) <= cairn_type_bytes(cairn_tensor_type(t)))
                set_type(t, (cairn_type)(1 + to_type));
            return "";
        case 8: /* all ways that strides can be wrong; a single row's says nothing */
            t->strides = p->strides;
            p->strides[d] = to == INT64_C(1) << 31 || to == 1 ? -1 : to;
            return "";
        case 9: t->byte_offset = chance(50) ? t->byte_offset + 1 : UINT64_MAX - 7; return "";
        case 10:
            if (chance(50)) t->data = NULL, t->byte_offset = 0;
            else t->shape = NULL;
            return "";
        default:
            t->device.type = chance(50) ? 13 : 3 - t->device.type;
            return p->name;
    }
}

static const char *change_number(call *c, const spec_arg *a, char *what, size_t bytes) {
    static const int32_t ints[] = {0, 1, -1, INT32_MAX, INT32_MIN, 99};
    static const float reals[] = {-1.0f, 0.0f, 1e30f, INFINITY, -INFINITY, NAN};
    const int i = (int)between(0, a->flags & SPEC_C_ONLY ? 4 : 5); /* 99 layers are not there */
    snprintf(what, bytes, "%s: number %d", a->name, i);
    if (a->kind == SPEC_FLOAT) put(c, a, &reals[i], sizeof reals[i]);
    else put(c, a, &ints[i], sizeof ints[i]);
    return "";
}

/* An output in another argument's memory. */
static const char *change_place(call *c, char *what, size_t bytes) {
    part *out = &c->parts[between(0, c->count - 1)], *other = &c->parts[between(0, c->count - 1)];
    const size_t element = cairn_type_bytes(cairn_tensor_type(&out->view));
    if (!out->out || out == other || other->span < out->span || !out->span) return NULL;
    snprintf(what, bytes, "%s in the place of %s", out->name, other->name);
    out->view.data = other->view.data;
    out->view.byte_offset = (other->first + element - 1) / element * element;
    if (out->arg && out->arg->align)
        out->view.byte_offset = (other->first + 15) / 16 * 16;
    if (out->view.byte_offset + out->span > other->first + other->span) return NULL;
    return "";
}

static bool is_number(const spec_arg *a) {
    return a->kind == SPEC_INT || a->kind == SPEC_FLAG || a->kind == SPEC_CHOICE || a->kind == SPEC_FLOAT;
}

/* NULL: nothing was changed. */
static const char *change(call *c, char *what, size_t bytes) {
    const spec_arg *a;
    int numbers = 0, at;
    if (!c->count) return NULL;
    for (a = c->op->args; a->name; a++) numbers += is_number(a);
    if (chance(10)) return change_place(c, what, bytes);
    if (!numbers || chance(70)) return change_tensor(c, &c->parts[between(0, c->count - 1)], what, bytes);
    for (a = c->op->args, at = (int)between(1, numbers); at -= is_number(a); a++) {}
    return change_number(c, a, what, bytes);
}

/* ---- the runs ---------------------------------------------------------------------------------- */

typedef struct tally { int right, refused, still; bool failed; } tally;

static bool went_well(cairn_status status) { return status == CAIRN_OK || status == CAIRN_BAD_DATA; }

/* An argument of it is empty, or has no sequence: cu_seqlens of one value. */
static bool has_nothing(const call *c) {
    for (const spec_arg *a = c->op->args; a->name; a++)
        for (int d = 0; spec_is_tensor(a) && c->present[a - c->op->args] && a->extents[d]; d++)
            if (a->extents[d] == SPEC_ONE_MORE(SEQUENCES) && !c->n[SPEC_SEQUENCES]) return true;
    for (int i = 0; i < c->count; i++)
        if (!c->parts[i].span) return true;
    return false;
}

/* Whether the trace that was begun before the call has one range of its, where there was something to do; refused
 * calls have none. */
static bool has_range(const call *c, cairn_status status) {
    const trace *t = c->rt->device.trace;
    int ranges = 0;
    for (int i = 0; t && i < t->count; i++)
        ranges += !strcmp(t->events[i].name, c->op->name) && t->events[i].until;
    return ranges == 1 || (!ranges && (has_nothing(c) || !went_well(status)));
}

/* On the GPU, faults that only the device saw. */
static bool ranged;
static cairn_status run_call(call *c) {
    cairn_status status = cairn_trace_start(c->rt, 32), later;
    char kept[BASE_ERROR_BYTES];
    if (!status) status = c->op->run(c->rt, c->args.bytes);
    ranged = has_range(c, status) && !cairn_trace_stop(c->rt);
    memcpy(kept, c->rt->base.error, sizeof kept);
    later = cairn_sync(c->rt);
    if (status || !later) memcpy(c->rt->base.error, kept, sizeof kept);
    if (!status) status = later;
    read_parts(c);
    return status;
}

static void failed(tally *t, const call *c, uint64_t seed, const char *what, const char *how) {
    t->failed = true;
    tap_note("%s, call %llu, %s: %s: %s", c->op->name, (unsigned long long)seed, what, how,
             cairn_last_error(c->rt));
}

/* The same call on the CPU where this one was on the GPU. */
static void compare(tally *t, call *a, cairn_status status, call *b, uint64_t seed, const char *what) {
    const char *name;
    cairn_status there = run_call(b);
    if (went_well(there) != went_well(status)) failed(t, b, seed, what, "the CPU says otherwise");
    else if (!there && !status && (name = differs(a, b)) != NULL)
        failed(t, a, seed, what, name);
}

static void try_right(tally *t, const spec_op *op, cairn_runtime *rt, cairn_runtime *cpu,
                      uint64_t seed) {
    static call a, b;
    cairn_status status;
    make_call(&a, rt, op, seed);
    status = run_call(&a);
    if (!went_well(status)) failed(t, &a, seed, "a right call", "was refused");
    else if (!ranged) failed(t, &a, seed, "a right call", "has no range in a trace");
    else if (touched(&a, false)) failed(t, &a, seed, "a right call", touched(&a, false));
    if (cpu && !t->failed) {
        make_call(&b, cpu, op, seed);
        compare(t, &a, status, &b, seed, "a right call");
        close_call(&b);
    }
    close_call(&a);
    t->right++;
}

static void try_wrong(tally *t, const spec_op *op, cairn_runtime *rt, cairn_runtime *cpu,
                      uint64_t seed, uint64_t how) {
    static call a, b;
    char what[160] = "", again[160];
    const char *wanted;
    cairn_status status;
    make_call(&a, rt, op, seed);
    state = how;
    if ((wanted = change(&a, what, sizeof what)) != NULL) {
        status = run_call(&a);
        if (went_well(status)) {
            t->still++;
            if (touched(&a, false) && !strstr(what, "in the place of")) failed(t, &a, seed, what, touched(&a, false));
            if (cpu && !t->failed) {
                make_call(&b, cpu, op, seed);
                state = how;
                change(&b, again, sizeof again);
                compare(t, &a, status, &b, seed, what);
                close_call(&b);
            }
        } else {
            t->refused++;
            if (touched(&a, true)) failed(t, &a, seed, what, touched(&a, true));
            else if (!names_one(&a, cairn_last_error(rt), *wanted ? wanted : NULL))
                failed(t, &a, seed, what, "no argument is named");
        }
    }
    close_call(&a);
}

static int64_t now_us(void) { return os_now_us(); }

/* Few right calls where kernels are compiled for each anew, and many changes of each. */
static void fuzz(cairn_runtime *rt, cairn_runtime *cpu, uint64_t seed, const char *where) {
    const char *seconds = getenv("CAIRN_FUZZ_SECONDS");
    const int64_t all = (seconds ? atoll(seconds) : 10) * 1000000, each = all / SPEC_OP_COUNT;
    const int bases = cpu ? 3 : 40, ways = cpu ? 60 : 100;
    for (int i = 0; i < SPEC_OP_COUNT; i++) {
        const int64_t began = now_us();
        tally t = {0, 0, 0, false};
        uint64_t next = seed + (uint64_t)i * 1000003;
        for (int round = 0; round < bases && !t.failed && (round == 0 || now_us() - began < each); round++) {
            const uint64_t of = random_next(&next);
            try_right(&t, &spec_ops[i], rt, cpu, of);
            for (int way = 0; way < ways && !t.failed && (way < 20 || now_us() - began < each); way++)
                try_wrong(&t, &spec_ops[i], rt, cpu, of, random_next(&next));
        }
        tap_ok(!t.failed && t.right > 0 && t.refused > 0,
               "%s on %s: %d right calls, %d changed ones refused, %d right still", spec_ops[i].name,
               where, t.right, t.refused, t.still);
    }
}

/* ---- what once went wrong ---------------------------------------------------------------------- */

/* A dense view of memory. */
static cairn_tensor view_of(cairn_runtime *rt, void *data, cairn_type type, int rank, int64_t *shape) {
    cairn_tensor t;
    memset(&t, 0, sizeof t);
    t.data = data;
    t.device.type = rt->device.cuda ? 2 : 1;
    t.device.id = rt->device.cuda ? rt->device.ordinal : 0;
    set_type(&t, type);
    t.ndim = rank;
    t.shape = shape;
    return t;
}

/* attend, attend_pages and score_pages on two rows of one page table. */
typedef struct paged {
    cairn_runtime *rt;
    cairn_tensor *cache, *table, *positions, *q, *out, *lse, *bounds, *scores, *selected;
    cairn_attend_args attend;
    cairn_attend_pages_args sparse;
    cairn_score_pages_args score;
} paged;

enum { HEADS = 4, KV = 2, DIM = 32, SLOTS = 16, PAGES = 4, SEQUENCES = 2 };

static cairn_tensor *made(cairn_runtime *rt, cairn_type type, int rank, int64_t a, int64_t b, int64_t d,
                          int64_t e, int64_t f) {
    int64_t shape[5];
    cairn_tensor *t = NULL;
    shape[0] = a, shape[1] = b, shape[2] = d, shape[3] = e, shape[4] = f;
    if (cairn_tensor_new(rt, type, rank, shape, &t)) tap_note("%s", cairn_last_error(rt));
    return t;
}

static void fill_made(cairn_runtime *rt, cairn_tensor *t, bool ids) {
    const cairn_type type = cairn_tensor_type(t);
    const size_t element = cairn_type_bytes(type), count = (size_t)tensor_elements(t);
    unsigned char *host = (unsigned char *)malloc(count * element + 1);
    for (size_t i = 0; i < count; i++) {
        int32_t id = ids ? (int32_t)i % PAGES : 40 + (int32_t)i;
        if (type == CAIRN_I32) memcpy(host + i * 4, &id, 4);
        else store_float(type, host + i * element, (float)between(-8, 8) / 8.0f);
    }
    cairn_tensor_write(rt, t, host, count * element);
    free(host);
}

static void open_paged(paged *p, cairn_runtime *rt) {
    memset(p, 0, sizeof *p);
    p->rt = rt;
    p->cache = made(rt, CAIRN_F16, 5, PAGES, 2, KV, SLOTS, DIM);
    p->table = made(rt, CAIRN_I32, 2, SEQUENCES, PAGES, 0, 0, 0);
    p->positions = made(rt, CAIRN_I32, 1, SEQUENCES, 0, 0, 0, 0);
    p->q = made(rt, CAIRN_F32, 3, SEQUENCES, HEADS, DIM, 0, 0);
    p->out = made(rt, CAIRN_F32, 3, SEQUENCES, HEADS, DIM, 0, 0);
    p->lse = made(rt, CAIRN_F32, 2, SEQUENCES, HEADS, 0, 0, 0);
    p->bounds = made(rt, CAIRN_F16, 4, PAGES, KV, 2, DIM, 0);
    p->scores = made(rt, CAIRN_F32, 3, SEQUENCES, KV, PAGES, 0, 0);
    p->selected = made(rt, CAIRN_I32, 3, SEQUENCES, KV, 2, 0, 0);
    fill_made(rt, p->cache, false), fill_made(rt, p->q, false), fill_made(rt, p->bounds, false);
    fill_made(rt, p->table, true), fill_made(rt, p->selected, true);
    fill_made(rt, p->positions, false); /* 40, 41 */
    p->attend.struct_size = (uint32_t)sizeof p->attend;
    p->attend.pages.cache = p->cache, p->attend.pages.page_table = p->table;
    p->attend.pages.positions = p->positions;
    p->attend.q = p->q, p->attend.out = p->out, p->attend.lse = p->lse;
    p->sparse.struct_size = (uint32_t)sizeof p->sparse;
    p->sparse.pages = p->score.pages = p->attend.pages;
    p->sparse.q = p->q, p->sparse.out = p->out, p->sparse.lse = p->lse;
    p->sparse.selected = p->selected;
    p->score.struct_size = (uint32_t)sizeof p->score;
    p->score.q = p->q, p->score.bounds = p->bounds, p->score.scores = p->scores;
}

/* Each op on the paged cache refuses it by this name. */
static bool all_refuse(paged *p, cairn_tensor *of, cairn_tensor *bounds, const char *name) {
    cairn_attend_args attend = p->attend;
    cairn_attend_pages_args sparse = p->sparse;
    cairn_score_pages_args score = p->score;
    bool fine = true;
    attend.pages.cache = sparse.pages.cache = score.pages.cache = of;
    if (bounds) score.bounds = bounds;
#define REFUSES(call) (fine &= (call) == CAIRN_INVALID_ARGUMENT && strstr(cairn_last_error(p->rt), name))
    REFUSES(cairn_attend(p->rt, &attend));
    REFUSES(cairn_attend_pages(p->rt, &sparse));
    REFUSES(cairn_score_pages(p->rt, &score));
    if (!fine) tap_note("%s", cairn_last_error(p->rt));
    return fine;
}

static void hostile_caches(paged *p, const char *where) {
    int64_t shape[5] = {PAGES, 2, 0, SLOTS, DIM}, bounds[4] = {PAGES, 0, 2, DIM};
    cairn_tensor hostile = view_of(p->rt, NULL, CAIRN_F16, 5, shape);
    cairn_tensor made_bounds = view_of(p->rt, NULL, CAIRN_F16, 4, bounds);
    tap_ok(all_refuse(p, &hostile, &made_bounds, "expected"), "%s: a cache of no KV heads", where);
    shape[0] = 0, shape[2] = KV, shape[3] = INT64_C(1) << 32, bounds[0] = 0, bounds[1] = KV;
    tap_ok(all_refuse(p, &hostile, &made_bounds, "4294967296"), "%s: no pages of 2^32 slots", where);
    shape[0] = PAGES, shape[3] = SLOTS;
    hostile = *p->cache;
    hostile.byte_offset = 2;
    shape[0] = PAGES - 1;
    hostile.shape = shape;
    bounds[0] = PAGES - 1;
    made_bounds = *p->bounds;
    made_bounds.shape = bounds;
    tap_ok(all_refuse(p, &hostile, &made_bounds, "aligned to 16"),
           "%s: a cache that is not aligned to 16 bytes", where);
}

/* A table's pages are none of a cache that has none: the rows are refused, nothing is read. */
static void empty_cache(paged *p, const char *where) {
    int64_t shape[5] = {0, 2, KV, SLOTS, DIM};
    cairn_tensor none = *p->cache;
    cairn_attend_args attend = p->attend;
    cairn_attend_pages_args sparse = p->sparse;
    cairn_status status;
    none.shape = shape;
    attend.pages.cache = sparse.pages.cache = &none;
    status = cairn_attend(p->rt, &attend);
    if (!status) status = cairn_sync(p->rt);
    tap_ok(status == CAIRN_BAD_DATA, "%s: attend on a cache of no pages: %s", where,
           cairn_last_error(p->rt));
    status = cairn_attend_pages(p->rt, &sparse);
    if (!status) status = cairn_sync(p->rt);
    tap_ok(status == CAIRN_BAD_DATA, "%s: attend_pages on a cache of no pages: %s", where,
           cairn_last_error(p->rt));
}

/* Windows and sinks up to the largest number attend all that there is, in no more memory. */
static void hostile_windows(paged *p, const char *where) {
    static const int32_t reaches[] = {4194304, INT32_MAX};
    const size_t bytes = SEQUENCES * HEADS * DIM * 4;
    float *all = (float *)malloc(bytes), *got = (float *)malloc(bytes);
    size_t scratch;
    bool fine = !cairn_attend(p->rt, &p->attend) && !cairn_tensor_read(p->rt, p->out, all, bytes);
    scratch = p->rt->device.scratch_bytes;
    for (int i = 0; i < 2; i++) {
        cairn_attend_args attend = p->attend;
        cairn_attend_pages_args sparse = p->sparse;
        attend.window = attend.sinks = sparse.window = sparse.sinks = reaches[i];
        memset(got, 0, bytes), cairn_tensor_write(p->rt, p->out, got, bytes);
        fine &= !cairn_attend(p->rt, &attend) && !cairn_tensor_read(p->rt, p->out, got, bytes) &&
                !memcmp(all, got, bytes);
        memset(got, 0, bytes), cairn_tensor_write(p->rt, p->out, got, bytes);
        fine &= !cairn_attend_pages(p->rt, &sparse) &&
                !cairn_tensor_read(p->rt, p->out, got, bytes);
        for (size_t j = 0; j < bytes / 4; j++) fine &= fabsf(got[j] - all[j]) < 1e-3f;
    }
    tap_ok(fine, "%s: windows and sinks of 4194304 and 2^31 - 1 tokens attend all", where);
    tap_ok(p->rt->device.scratch_bytes <= scratch + (1 << 20),
           "%s: they take no more than 1 MiB of workspace beside %llu bytes", where,
           (unsigned long long)scratch);
    free(all), free(got);
}

/* Nothing of huge extents: no product may overflow, whatever stands beside the zero. */
static void hostile_nothing(cairn_runtime *rt, const char *where) {
    int64_t shape[5] = {0, INT64_C(1) << 62, INT64_C(1) << 62, 4, 4}, copies[2] = {0, 2};
    int64_t wide[2] = {0, INT64_C(1) << 62}, one[1] = {0};
    cairn_tensor hostile = view_of(rt, NULL, CAIRN_F32, 5, shape);
    cairn_tensor list = view_of(rt, NULL, CAIRN_I32, 2, copies), x = view_of(rt, NULL, CAIRN_F32, 2, wide);
    cairn_tensor lens = view_of(rt, NULL, CAIRN_I32, 1, one);
    cairn_tensor slots = view_of(rt, NULL, CAIRN_I32, 2, wide), *none = NULL;
    cairn_copy_pages_args copy = {sizeof copy, 0, &hostile, &list};
    cairn_swiglu_args swiglu = {sizeof swiglu, &x, &x, &x};
    cairn_prepare_steps_args steps;
    cairn_step_metadata step;
    cairn_short_conv_update_args conv;
    memset(&steps, 0, sizeof steps), memset(&step, 0, sizeof step), memset(&conv, 0, sizeof conv);
    steps.struct_size = sizeof steps, step.struct_size = sizeof step, steps.step_count = 1;
    steps.seq_lens = &lens, steps.slots = &slots, steps.steps = &step, step.token_table = &slots;
    conv.struct_size = sizeof conv, conv.conv.x = conv.conv.out = &x;
    conv.conv.weight = &x, conv.conv.state = &hostile;
#define NOTHING(call, name) ((call) == CAIRN_INVALID_ARGUMENT && strstr(cairn_last_error(rt), name))
    tap_ok(NOTHING(cairn_copy_pages(rt, &copy), "cache") && NOTHING(cairn_swiglu(rt, &swiglu), "gate") &&
           NOTHING(cairn_prepare_steps(rt, &steps), "slots") &&
           NOTHING(cairn_short_conv_update(rt, &conv), "x") &&
           NOTHING(cairn_tensor_new(rt, CAIRN_F32, 5, shape, &none), "too large"),
           "%s: tensors of nothing and huge extents: %s", where, cairn_last_error(rt));
}

/* Weights in blocks begin with an f16. */
static void odd_weights(cairn_runtime *rt, const char *where) {
    int64_t shape[2] = {4, 34};
    cairn_tensor *memory = made(rt, CAIRN_U8, 1, 4 * 34 + 16, 0, 0, 0, 0), *in = made(rt, CAIRN_F32, 2, 1, 32, 0, 0, 0);
    cairn_tensor *to = made(rt, CAIRN_F32, 2, 1, 4, 0, 0, 0), *wide = made(rt, CAIRN_F32, 2, 1, 32, 0, 0, 0);
    cairn_tensor *id = made(rt, CAIRN_I32, 1, 1, 0, 0, 0, 0);
    cairn_tensor weight = view_of(rt, memory->data, CAIRN_U8, 2, shape);
    cairn_linear_args linear = {sizeof linear, CAIRN_BLOCK_Q8_0, 0, in, &weight, to};
    cairn_embed_args embed = {sizeof embed, CAIRN_BLOCK_Q8_0, id, &weight, wide};
    weight.byte_offset = 1;
    tap_ok(NOTHING(cairn_linear(rt, &linear), "weight is not aligned to 2") &&
           NOTHING(cairn_embed(rt, &embed), "table is not aligned to 2"),
           "%s: weights in blocks at an odd address", where);
    weight.byte_offset = 2;
    tap_ok(!cairn_linear(rt, &linear) && !cairn_embed(rt, &embed) && !cairn_sync(rt),
           "%s: weights in blocks at an even address", where);
    cairn_tensor_free(rt, memory), cairn_tensor_free(rt, in), cairn_tensor_free(rt, to);
    cairn_tensor_free(rt, wide), cairn_tensor_free(rt, id);
}

/* Logits that lie at any multiple of 4 bytes: a token is what it is at another address. */
static void odd_logits(cairn_runtime *rt, const char *where) {
    enum { VOCAB = 9000 };
    int64_t shape[2] = {1, VOCAB};
    cairn_tensor *memory = made(rt, CAIRN_F32, 1, VOCAB + 4, 0, 0, 0, 0);
    cairn_tensor *token = made(rt, CAIRN_I32, 1, 1, 0, 0, 0, 0);
    cairn_tensor logits = view_of(rt, memory->data, CAIRN_F32, 2, shape);
    cairn_sample_args a;
    float *host = (float *)calloc(VOCAB + 4, 4);
    bool fine = true;
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.logits = &logits, a.tokens = token;
    for (int offset = 0; offset < 4; offset++) {
        int32_t got = -1;
        memset(host, 0, (VOCAB + 4) * 4);
        host[offset + 8190] = 1.0f;
        cairn_tensor_write(rt, memory, host, (VOCAB + 4) * 4);
        logits.byte_offset = (uint64_t)offset * 4;
        fine &= !cairn_sample(rt, &a) && !cairn_tensor_read(rt, token, &got, 4) && got == 8190;
    }
    tap_ok(fine, "%s: sample of logits at any address", where);
    cairn_tensor_free(rt, memory), cairn_tensor_free(rt, token);
    free(host);
}

/* Handles of another runtime. */
static void other_owners(cairn_runtime *rt, cairn_runtime *other, const char *where) {
    cairn_stream *stream = NULL;
    cairn_event *event = NULL, *own = NULL;
    cairn_staging *staging = NULL;
    cairn_short_conv_metadata_args a;
    double us;
    int32_t lens[2] = {0, 1};
    int64_t two = 2;
    cairn_tensor cu = view_of(rt, lens, CAIRN_I32, 1, &two);
    cairn_tensor *chunks = made(rt, CAIRN_I32, 1, 4, 0, 0, 0, 0), *offsets = made(rt, CAIRN_I32, 1, 4, 0, 0, 0, 0);
    cu.device.type = 1;
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.cu_seqlens = &cu, a.chunk_sequences = chunks, a.chunk_offsets = offsets;
    tap_ok(!cairn_stream_new(other, &stream) && !cairn_event_new(other, &event) &&
           !cairn_staging_new(other, 256, &staging) && !cairn_event_new(rt, &own) &&
           !cairn_event_record(other, event) && !cairn_event_record(rt, own), "%s: handles", where);
    a.staging = staging;
    tap_ok(NOTHING(cairn_stream_set(rt, stream), "another runtime") &&
           NOTHING(cairn_stream_sync(rt, stream), "another runtime") &&
           NOTHING(cairn_stream_free(rt, stream), "this runtime") &&
           NOTHING(cairn_event_record(rt, event), "another runtime") &&
           NOTHING(cairn_event_wait(rt, event), "another runtime") &&
           NOTHING(cairn_event_elapsed(rt, own, event, &us), "another runtime") &&
           NOTHING(cairn_event_elapsed(rt, event, own, &us), "another runtime") &&
           NOTHING(cairn_event_free(rt, event), "this runtime") &&
           NOTHING(cairn_staging_free(rt, staging), "this runtime") &&
           NOTHING(cairn_short_conv_metadata(rt, &a), "staging is of another runtime"),
           "%s: handles of another runtime are refused", where);
    tap_ok(!cairn_stream_set(other, stream) && !cairn_stream_set(other, NULL), "%s: their own takes them", where);
    cairn_stream_free(other, stream), cairn_event_free(other, event), cairn_event_free(rt, own);
    cairn_staging_free(other, staging);
    cairn_tensor_free(rt, chunks), cairn_tensor_free(rt, offsets);
}

/* Copies look at addresses and devices too. */
static void hostile_copies(cairn_runtime *rt, const char *where) {
    int64_t shape[1] = {4};
    float host[4] = {0};
    cairn_tensor t = view_of(rt, NULL, CAIRN_F32, 1, shape);
    bool fine = NOTHING(cairn_tensor_write(rt, &t, host, sizeof host), "NULL") &&
                NOTHING(cairn_tensor_read(rt, &t, host, sizeof host), "NULL");
    t.data = host, t.device.type = 13;
    fine &= NOTHING(cairn_tensor_read(rt, &t, host, sizeof host), "device 13");
    t.device.type = 1, t.byte_offset = UINT64_MAX - 3;
    fine &= NOTHING(cairn_tensor_write(rt, &t, host, sizeof host), "last address");
    tap_ok(fine, "%s: copies of tensors that lie nowhere: %s", where, cairn_last_error(rt));
}

/* Locks are numbers: any may come. */
static void hostile_locks(cairn_runtime *rt, const char *where) {
    static const int64_t locks[] = {INT64_MIN, INT64_MAX, -1, 1};
    cairn_page_pool *pool_made = NULL;
    cairn_prefix_cache *prefixes = NULL;
    cairn_prefix_options o = {sizeof o, 4, NULL};
    bool fine = !cairn_page_pool_new(rt, 4, &pool_made);
    o.pool = pool_made;
    fine = fine && !cairn_prefix_new(rt, &o, &prefixes);
    for (int i = 0; i < 4 && fine; i++) fine = NOTHING(cairn_prefix_unlock(prefixes, locks[i]), "not held");
    tap_ok(fine, "%s: locks that are not held", where);
    cairn_prefix_free(prefixes), cairn_page_pool_free(pool_made);
}

/* Two kernels of score_pages that differ in the name of their one constant alone: pages by their
 * landmarks, then by bounds with each head's own scores, whose maximum is the KV head's. */
static void named_constants(paged *p, const char *where) {
    float each[SEQUENCES * HEADS * PAGES], best[SEQUENCES * KV * PAGES];
    cairn_tensor *heads = made(p->rt, CAIRN_F32, 3, SEQUENCES, HEADS, PAGES, 0, 0);
    cairn_score_pages_args score = p->score;
    bool fine;
    for (size_t i = 0; i < sizeof each / 4; i++) each[i] = 1e30f;
    score.source = CAIRN_SOURCE_LANDMARK, score.bounds = NULL;
    fine = !cairn_tensor_write(p->rt, heads, each, sizeof each) && !cairn_score_pages(p->rt, &score);
    score.source = p->score.source, score.bounds = p->bounds;
    score.head_scores = heads, score.strategy = CAIRN_STRATEGY_HEAD;
    fine = fine && !cairn_score_pages(p->rt, &score) &&
           !cairn_tensor_read(p->rt, heads, each, sizeof each) &&
           !cairn_tensor_read(p->rt, p->scores, best, sizeof best);
    for (int i = 0; i < SEQUENCES * KV * PAGES && fine; i++) {
        const int unit = i / PAGES, group = HEADS / KV;
        float most = -INFINITY;
        for (int g = 0; g < group; g++) {
            const float one = each[(unit * group + g) * PAGES + i % PAGES];
            if (one > most) most = one;
        }
        fine = most == best[i];
    }
    tap_ok(fine, "%s: a kernel is not taken for one whose constants have other names", where);
    cairn_tensor_free(p->rt, heads);
}

static void named_cases(cairn_runtime *rt, cairn_runtime *other, const char *where) {
    paged p;
    open_paged(&p, rt);
    hostile_caches(&p, where);
    empty_cache(&p, where);
    hostile_windows(&p, where);
    named_constants(&p, where);
    hostile_nothing(rt, where);
    odd_weights(rt, where);
    odd_logits(rt, where);
    other_owners(rt, other, where);
    hostile_copies(rt, where);
    hostile_locks(rt, where);
    tap_ok(!strcmp(cairn_topk_route(rt, 4, 1000, 8), "cpu") == !rt->device.cuda, "%s: top-k's route: %s", where,
           cairn_topk_route(rt, 4, 1000, 8));
}

int main(void) {
    const uint64_t seed = random_seed();
    cairn_config config;
    cairn_runtime *cpu, *cuda, *other;
    cairn_config_default(&config);
    config.log = CAIRN_LOG_OFF;
    config.backend = CAIRN_BACKEND_CPU;
    config.threads = 2;
    cpu = open_runtime_on(&config, "spec");
    other = open_runtime_on(&config, "spec");
    if (cpu) named_cases(cpu, other, "cpu"), fuzz(cpu, NULL, seed, "cpu");
    config.backend = CAIRN_BACKEND_CUDA;
    cuda = open_runtime_on(&config, "spec");
    cairn_close(other);
    other = cuda ? open_runtime_on(&config, "spec") : NULL;
    if (cuda) named_cases(cuda, other, "cuda"), fuzz(cuda, cpu, seed, "cuda");
    cairn_close(other);
    cairn_close(cuda);
    cairn_close(cpu);
    return tap_done();
}

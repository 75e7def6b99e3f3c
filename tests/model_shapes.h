/* model_shapes: files of well-known llama shapes whose weights are a hole, so that models of any
 * size can be estimated and loaded. Weights of one shape lie on top of each other: the file is as
 * long as its largest tensor and the head. Built on gguf_build, without the runtime's code. */
#ifndef MODEL_SHAPES_H
#define MODEL_SHAPES_H

#include <unistd.h>

typedef struct shape_file {
    const char *name;
    int layers, hidden, heads, kv_heads, head_dim, ffn, vocab, context;
    bool tied;
    int type, embed_type; /* of GGUF: 2 is Q4_0, 8 is Q8_0, 12 is Q4_K, 14 is Q6_K */
    int more_type;        /* of values and of what leads down in the first half of the layers, or 0 */
} shape_file;

static const shape_file shape_files[] = {
    {"135M", 30, 576, 9, 3, 64, 1536, 49152, 131072, true, 2, 8, 0},
    {"1B", 16, 2048, 32, 8, 64, 8192, 128256, 131072, true, 2, 8, 0},
    {"8B", 32, 4096, 32, 8, 128, 14336, 128256, 131072, false, 2, 8, 0}};

/* Formats mixed by layer, as in files named Q4_K_M. */
static const shape_file shape_mixed = {"1B mixed", 16,     2048,   32,   8,  64, 8192,
                                       128256,     131072, true, 12, 14, 14};

/* Two layers of nearly nothing, for what is run many times over. */
static const shape_file shape_small = {"small", 2,  64,    2, 1, 64, 64,
                                       96,      96 * 16, true, 2, 8, 0};

static uint64_t shape_bytes(int type, uint64_t rows, uint64_t columns) {
    if (type >= 12) return rows * (columns / 256) * (type == 12 ? 144 : 210);
    return rows * (type == 0 ? columns * 4 : columns / 32 * (type == 2 ? 18 : 34));
}

/* The tensor at `offset` of the data. */
static void shape_tensor(gguf_build *f, const char *name, int type, int rows, int columns,
                         uint64_t offset) {
    uint64_t shape[2];
    shape[0] = (uint64_t)columns, shape[1] = (uint64_t)rows;
    f->next_offset = offset;
    build_tensor(f, name, (uint32_t)type, rows ? 2 : 1, shape,
                 shape_bytes(type, (uint64_t)(rows ? rows : 1), shape[0]), 32);
}

static void shape_layer(gguf_build *f, const shape_file *s, int layer) {
    const struct { const char *name; int rows, columns; } parts[] = {
        {"attn_norm", 0, s->hidden}, {"ffn_norm", 0, s->hidden},
        {"attn_q", s->heads * s->head_dim, s->hidden},
        {"attn_k", s->kv_heads * s->head_dim, s->hidden},
        {"attn_v", s->kv_heads * s->head_dim, s->hidden},
        {"attn_output", s->hidden, s->heads * s->head_dim}, {"ffn_gate", s->ffn, s->hidden},
        {"ffn_up", s->ffn, s->hidden}, {"ffn_down", s->hidden, s->ffn}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char name[64];
        const bool more = s->more_type && layer < s->layers / 2 &&
                          (!strcmp(parts[i].name, "attn_v") || !strcmp(parts[i].name, "ffn_down"));
        snprintf(name, sizeof name, "blk.%d.%s.weight", layer, parts[i].name);
        shape_tensor(f, name, !parts[i].rows ? 0 : more ? s->more_type : s->type, parts[i].rows, parts[i].columns, 0);
    }
}

static void shape_keys(gguf_build *f, const shape_file *s) {
    build_key_string(f, "general.architecture", "llama");
    build_key_u32(f, "llama.block_count", (uint32_t)s->layers);
    build_key_u32(f, "llama.embedding_length", (uint32_t)s->hidden);
    build_key_u32(f, "llama.feed_forward_length", (uint32_t)s->ffn);
    build_key_u32(f, "llama.context_length", (uint32_t)s->context);
    build_key_u32(f, "llama.attention.head_count", (uint32_t)s->heads);
    build_key_u32(f, "llama.attention.head_count_kv", (uint32_t)s->kv_heads);
    build_key_u32(f, "llama.attention.key_length", (uint32_t)s->head_dim);
    build_key_u32(f, "llama.rope.dimension_count", (uint32_t)s->head_dim);
    build_key_f32(f, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    build_key_string(f, "tokenizer.ggml.model", "gpt2");
    build_key_string(f, "tokenizer.ggml.pre", "gpt-2");
    build_key_u32(f, "tokenizer.ggml.eos_token_id", 1); /* weights of zeros say 0 */
    build_key_array(f, "tokenizer.ggml.tokens", 8, (uint64_t)s->vocab);
    for (int i = 0; i < s->vocab; i++) {
        char token[16];
        build_string(f, token, (size_t)snprintf(token, sizeof token, i < 94 ? "%c" : "t%d",
                                                i < 94 ? '!' + i : i));
    }
    build_key_array(f, "tokenizer.ggml.token_type", 5, (uint64_t)s->vocab);
    for (int i = 0; i < s->vocab; i++) build_number(f, i ? 1 : 3, 4);
    build_key_array(f, "tokenizer.ggml.merges", 8, 0);
}

static bool shape_write(const char *path, const shape_file *s) {
    gguf_build f = {0};
    uint64_t embed = shape_bytes(s->embed_type, (uint64_t)s->vocab, (uint64_t)s->hidden);
    uint64_t layer = shape_bytes(s->more_type ? s->more_type : s->type, (uint64_t)s->ffn,
                                 (uint64_t)s->hidden);
    uint64_t first = (embed > layer ? embed : layer) / 32 * 32 + 32;
    FILE *file = fopen(path, "wb");
    bool fine;
    build_begin(&f, 3, (uint64_t)(2 + !s->tied + 9 * s->layers), 16);
    shape_keys(&f, s);
    shape_tensor(&f, "token_embd.weight", s->embed_type, s->vocab, s->hidden, 0);
    shape_tensor(&f, "output_norm.weight", 0, 0, s->hidden, 0);
    if (!s->tied)
        shape_tensor(&f, "output.weight", s->embed_type, s->vocab, s->hidden, first);
    for (int i = 0; i < s->layers; i++) shape_layer(&f, s, i);
    build_align(&f, 32);
    fine = file && fwrite(f.data, 1, f.size, file) == f.size && !fflush(file) &&
           !ftruncate(fileno(file), (off_t)(f.size + (s->tied ? first : first + embed)));
    free(f.data);
    return (!file || !fclose(file)) && fine;
}

#endif

/* small_model: a decoder of two layers with random weights, as a GGUF file that both backends run. */
#ifndef SMALL_MODEL_H
#define SMALL_MODEL_H

#include "gguf_build.h"
#include "random.h"
#include "ref/f16_ref.h"

enum {
    VOCAB = 96, LAYERS = 2, HIDDEN = 128, HEADS = 4, KV_HEADS = 2, DIM = 64, FFN = 96, PAGE = 16,
    SMALL_CONTEXT = 512, END = 0
};

#ifndef GATED_H /* which has it, too */
static uint64_t state;
#endif
static bool small_own_head;    /* files to come have one; else it is the embedding */
static int small_broken = -1; /* the token whose embedding is NaN in files to come; -1: none */
static float uniform(void) { return (float)(random_next(&state) >> 40) / 8388608.0f - 1.0f; }

/* ---- the model ------------------------------------------------------------------------------- */

typedef struct part { char name[64]; int rows, columns; } part;

static int list_parts(part *parts) {
    static const part each[] = {
        {"attn_norm", 0, HIDDEN}, {"ffn_norm", 0, HIDDEN}, {"attn_q", HEADS * DIM, HIDDEN},
        {"attn_k", KV_HEADS * DIM, HIDDEN}, {"attn_v", KV_HEADS * DIM, HIDDEN},
        {"attn_output", HIDDEN, HEADS * DIM}, {"ffn_gate", FFN, HIDDEN}, {"ffn_up", FFN, HIDDEN},
        {"ffn_down", HIDDEN, FFN}};
    int count = 2;
    parts[0] = (part){"token_embd.weight", VOCAB, HIDDEN};
    parts[1] = (part){"output_norm.weight", 0, HIDDEN};
    for (int l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < BASE_COUNT(each); i++, count++) {
            parts[count] = each[i];
            snprintf(parts[count].name, sizeof parts->name, "blk.%d.%.40s.weight", l, each[i].name);
        }
    if (small_own_head) parts[count++] = (part){"output.weight", VOCAB, HIDDEN};
    return count;
}

static void build_keys(gguf_build *f) {
    static const struct { const char *name; uint32_t value; } numbers[] = {
        {"llama.block_count", LAYERS}, {"llama.embedding_length", HIDDEN},
        {"llama.feed_forward_length", FFN}, {"llama.context_length", SMALL_CONTEXT},
        {"llama.attention.head_count", HEADS}, {"llama.attention.head_count_kv", KV_HEADS},
        {"llama.attention.key_length", DIM}, {"llama.rope.dimension_count", DIM},
        {"tokenizer.ggml.eos_token_id", END}};
    for (size_t i = 0; i < BASE_COUNT(numbers); i++)
        build_key_u32(f, numbers[i].name, numbers[i].value);
    build_key_string(f, "general.architecture", "llama");
    build_key_string(f, "tokenizer.ggml.model", "gpt2");
    build_key_string(f, "tokenizer.ggml.pre", "gpt-2");
    build_key_f32(f, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    build_key_array(f, "tokenizer.ggml.tokens", 8, VOCAB);
    for (int i = 0; i < VOCAB; i++) {
        char name = (char)(i < 94 ? '!' + i : 0);
        if (name) build_string(f, &name, 1);
        else build_string(f, i == 94 ? "aa" : "ab", 2);
    }
    build_key_array(f, "tokenizer.ggml.token_type", 5, VOCAB);
    for (int i = 0; i < VOCAB; i++) build_number(f, i ? 1 : 3, 4);
    build_key_array(f, "tokenizer.ggml.merges", 8, 1);
    build_string(f, "a a", 3);
}

static bool write_model(const char *to) {
    part parts[3 + 9 * LAYERS];
    gguf_build f = {0};
    int count = list_parts(parts);
    FILE *file = fopen(to, "wb");
    bool fine;
    build_begin(&f, 3, (uint64_t)count, 16);
    build_keys(&f);
    for (int i = 0; i < count; i++) {
        uint64_t shape[2] = {(uint64_t)parts[i].columns, (uint64_t)parts[i].rows};
        int rows = parts[i].rows;
        build_tensor(&f, parts[i].name, rows ? BLOCK_F16 : BLOCK_F32, rows ? 2 : 1, shape,
                     (uint64_t)(rows ? rows * 2 : 4) * shape[0], 32);
    }
    build_align(&f, 32);
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < (parts[i].rows ? parts[i].rows : 1) * parts[i].columns; j++) {
            float v = parts[i].rows ? 0.15f * uniform() : 1.0f + 0.3f * uniform();
            uint32_t bits;
            memcpy(&bits, &v, 4);
            if (i == 0 && j / HIDDEN == small_broken) build_number(&f, 0x7e00, 2);
            else if (parts[i].rows) build_number(&f, (uint64_t)ref_to_f16((double)v), 2);
            else build_number(&f, bits, 4);
        }
        build_align(&f, 32);
    }
    fine = file && fwrite(f.data, 1, f.size, file) == f.size;
    if (file) fclose(file);
    free(f.data);
    return fine;
}

#endif

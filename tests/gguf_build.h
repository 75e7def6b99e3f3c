/* gguf_build: writes GGUF files into memory, byte by byte and without the runtime's reader, so that
 * tests can make small good files and bad ones.
 *
 *     gguf_build f = {0};
 *     build_begin(&f, 3, tensors, keys);
 *     build_key_u32(&f, "llama.block_count", 2);      ... `keys` of them
 *     build_tensor(&f, "x", BLOCK_F32, 2, shape, bytes, 32);    ... `tensors` of them
 *     build_align(&f, 32);                             now the data section begins
 *     build_bytes(&f, values, bytes);                  ... the tensors' data in order, and after
 *     build_align(&f, 32);                             each its padding
 *     free(f.data);
 */
#ifndef GGUF_BUILD_H
#define GGUF_BUILD_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct gguf_build {
    uint8_t *data;
    size_t size, capacity;
    uint64_t next_offset; /* of the next tensor in the data section */
} gguf_build;

#if defined(__GNUC__) || defined(__clang__)
#define BUILD_CALL static __attribute__((unused)) void
#else
#define BUILD_CALL static void
#endif

BUILD_CALL build_bytes(gguf_build *f, const void *bytes, size_t count) {
    while (f->size + count > f->capacity) {
        f->capacity = f->capacity ? 2 * f->capacity : 4096;
        f->data = (uint8_t *)realloc(f->data, f->capacity);
        if (!f->data) abort();
    }
    if (count) memcpy(f->data + f->size, bytes, count);
    f->size += count;
}

BUILD_CALL build_number(gguf_build *f, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) {
        uint8_t byte = (uint8_t)(value >> 8 * i);
        build_bytes(f, &byte, 1);
    }
}

BUILD_CALL build_string(gguf_build *f, const char *text, size_t bytes) {
    build_number(f, bytes, 8);
    build_bytes(f, text, bytes);
}

BUILD_CALL build_begin(gguf_build *f, uint32_t version, uint64_t tensors, uint64_t keys) {
    build_bytes(f, "GGUF", 4);
    build_number(f, version, 4);
    build_number(f, tensors, 8);
    build_number(f, keys, 8);
}

/* A key whose value of a fixed size is given as bits. */
BUILD_CALL build_key(gguf_build *f, const char *name, uint32_t type, uint64_t bits, int bytes) {
    build_string(f, name, strlen(name));
    build_number(f, type, 4);
    build_number(f, bits, bytes);
}

BUILD_CALL build_key_u32(gguf_build *f, const char *name, uint32_t value) {
    build_key(f, name, 4, value, 4);
}

BUILD_CALL build_key_f32(gguf_build *f, const char *name, float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    build_key(f, name, 6, bits, 4);
}

BUILD_CALL build_key_string(gguf_build *f, const char *name, const char *text) {
    build_string(f, name, strlen(name));
    build_number(f, 8, 4);
    build_string(f, text, strlen(text));
}

/* The head of an array; its elements follow by build_number or build_string. */
BUILD_CALL build_key_array(gguf_build *f, const char *name, uint32_t element, uint64_t count) {
    build_string(f, name, strlen(name));
    build_number(f, 9, 4);
    build_number(f, element, 4);
    build_number(f, count, 8);
}

BUILD_CALL build_align(gguf_build *f, size_t alignment) {
    while (f->size % alignment) build_number(f, 0, 1);
}

/* A tensor's description; `bytes` is what its data will take before padding. */
BUILD_CALL build_tensor(gguf_build *f, const char *name, uint32_t type, int ndim,
                        const uint64_t *shape, uint64_t bytes, uint64_t alignment) {
    build_string(f, name, strlen(name));
    build_number(f, (uint64_t)ndim, 4);
    for (int i = 0; i < ndim; i++) build_number(f, shape[i], 8);
    build_number(f, type, 4);
    build_number(f, f->next_offset, 8);
    f->next_offset = (f->next_offset + bytes + alignment - 1) / alignment * alignment;
}

#endif

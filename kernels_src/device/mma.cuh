/* The primitives of the tensor cores. Each is a warp-wide operation on fragments in registers.
 *
 * With g = lane / 4 and t = lane % 4, 16-bit elements (two in a register, low one first):
 *   A [16, 16]  a[0] = (g, 2t..)  a[1] = (g+8, 2t..)  a[2] = (g, 2t+8..)  a[3] = (g+8, 2t+8..)
 *   B [16, 8]   b[0] = (2t.., g)  b[1] = (2t+8.., g)          rows are k, columns n
 *   D [16, 8]   d[0], d[1] = (g, 2t..)   d[2], d[3] = (g+8, 2t..)
 * 8-bit elements: the same with four in a register, k doubled: 4t.. and 4t+16... */
#ifndef CAIRN_DEVICE_MMA_CUH
#define CAIRN_DEVICE_MMA_CUH

/* ---- ldmatrix: 8x8 tiles of 16-bit elements out of shared memory ----
 * Lane i gives the address of row i % 8 (16 bytes, aligned) of tile i / 8; lane 4r + c gets
 * elements 2c and 2c+1 of row r of each tile, one tile a register. The transposed form gives
 * columns. */

CAIRN_INLINE void load_matrix_x1(uint32_t *r, shared_addr row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(row.at));
}
CAIRN_INLINE void load_matrix_x2(uint32_t *r, shared_addr row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(row.at));
}
CAIRN_INLINE void load_matrix_x4(uint32_t *r, shared_addr row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row.at));
}
CAIRN_INLINE void load_matrix_transposed_x1(uint32_t *r, shared_addr row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(r[0]) : "r"(row.at));
}
CAIRN_INLINE void load_matrix_transposed_x2(uint32_t *r, shared_addr row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(row.at));
}
CAIRN_INLINE void load_matrix_transposed_x4(uint32_t *r, shared_addr row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row.at));
}

/* The 8x8 tile whose row r has elements 2c and 2c + 1 in lane 4r + c, transposed. */
CAIRN_INLINE uint32_t transpose_matrix(uint32_t v) {
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(v));
    return v;
}

/* ---- d += a b ---- */

#define CAIRN_MMA_F32(name, types)                                                          \
    CAIRN_INLINE void name(float *d, const uint32_t *a, const uint32_t *b) {                \
        asm("mma.sync.aligned." types " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));            \
    }
CAIRN_MMA_F32(mma_f16, "m16n8k16.row.col.f32.f16.f16.f32")
CAIRN_MMA_F32(mma_bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
/* A [16, 8]: a[0] = (g, t), a[1] = (g+8, t), a[2] = (g, t+4), a[3] = (g+8, t+4);
 * B [8, 8]: b[0] = (t, g), b[1] = (t+4, g); f32 bits, of which the low 13 are ignored. */
CAIRN_MMA_F32(mma_tf32, "m16n8k8.row.col.f32.tf32.tf32.f32")
#if CAIRN_ARCH >= 890
CAIRN_MMA_F32(mma_e4m3, "m16n8k32.row.col.f32.e4m3.e4m3.f32")
#endif
#undef CAIRN_MMA_F32

CAIRN_INLINE void mma_s8(int32_t *d, const uint32_t *a, const uint32_t *b) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"
        " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Whether four warps multiply together (device/wgmma.cuh): sm_90a alone. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define CAIRN_WGMMA 1
#else
#define CAIRN_WGMMA 0
#endif

#endif

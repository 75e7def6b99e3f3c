/* kv: the ops on a paged KV cache that write it: kv_append (append.c) and kv_collate
 * (collate.c), each its entry, the CPU's half and the launch. Other rooms call the public
 * entries, and a layer of a model on the GPU what follows. */

/* Values x [n] to those from `at` on of a cache of f32, f16, bf16 or e4m3 without a scale. */
static void ops_kv_write(const simd_kernels *simd, cairn_type type, const float *x, void *to,
                         int64_t at, int n);
/* kv_append of p's rows, f32, to a latent cache of f16. */
static cairn_status kv_append_latents(cairn_runtime *rt, kv_append_params *p);

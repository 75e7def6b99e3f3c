/* index: quantize_fp8. Blocks of 128 values are spread over the pool's threads. */

typedef struct index_quantize_job {
    device *dev;
    const simd_kernels *simd;
    const quantize_fp8_params *p;
    cairn_type source;
} index_quantize_job;

static void index_quantize_task(void *context, int index) {
    const index_quantize_job *job = (const index_quantize_job *)context;
    const quantize_fp8_params *p = job->p;
    const int workers = pool_threads(job->dev->pool);
    const int64_t last = ops_share(p->blocks, index + 1, workers);
    for (int64_t b = ops_share(p->blocks, index, workers); b < last; b++) {
        const int64_t at = b * CAIRN_INDEX_DIM;
        float wide[CAIRN_INDEX_DIM];
        const float *x = wide;
        if (job->source == CAIRN_F32) x = (const float *)p->x + at;
        else if (job->source == CAIRN_F16)
            job->simd->of_half((const uint16_t *)p->x + at, wide, CAIRN_INDEX_DIM);
        else
            for (int i = 0; i < CAIRN_INDEX_DIM; i++)
                wide[i] = block_f32_of_bits((uint32_t)((const uint16_t *)p->x)[at + i] << 16);
        p->scales[b] = fp8_of_block(x, CAIRN_INDEX_DIM, p->power_of_two != 0, p->out + at);
    }
}

static cairn_status index_quantize_cuda(cairn_runtime *rt, const quantize_fp8_params *p,
                                        cairn_type source) {
    const int64_t blocks = (p->blocks + 7) / 8, most = (int64_t)rt->device.sm_count * 32;
    device_dims dims = {{0, 1, 1}, 256, 0, 0, false};
    ops_kernel want;
    memset(&want, 0, sizeof want);
    want.source = "index/quantize.cu";
    want.entry = "quantize_fp8";
    want.constants[0].name = "SOURCE_TYPE", want.constants[0].value = source;
    want.constant_count = 1;
    dims.grid[0] = (unsigned)(blocks < most ? blocks : most);
    return ops_launch_as(rt, &want, &dims, p);
}

cairn_status cairn_quantize_fp8(cairn_runtime *rt, const cairn_quantize_fp8_args *args) {
    cairn_quantize_fp8_args a;
    quantize_fp8_params p;
    index_quantize_job job;
    spec_call s;
    if (spec_take(rt, SPEC_OF(quantize_fp8), &a, args, &s)) return s.c.status;
    memset(&p, 0, sizeof p);
    p.x = tensor_data(a.x);
    p.out = (uint8_t *)tensor_data(a.out);
    p.scales = (float *)tensor_data(a.scales);
    p.blocks = s.n[SPEC_ROWS] * s.n[SPEC_HEADS];
    p.power_of_two = a.power_of_two != 0;
    if (!p.blocks) return CAIRN_OK;
    job.source = cairn_tensor_type(a.x);
    if (rt->device.cuda) return spec_end(rt, index_quantize_cuda(rt, &p, job.source));
    job.dev = &rt->device;
    job.simd = simd_for(0);
    job.p = &p;
    pool_run(rt->pool, pool_threads(rt->pool), index_quantize_task, &job);
    return spec_end(rt, CAIRN_OK);
}

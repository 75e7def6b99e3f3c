/* attention: what one worker of a forward does of attend_tokens over latents. See attention.h. */

static size_t attention_alone_floats(int heads) {
    return (size_t)heads * LATENT_KEYS + 2 * attention_sum_floats(heads, LATENT_KEYS) +
           ATTENTION_PIECE * LATENT_KEYS;
}

static void attention_alone(const attend_params *p, int64_t unit, float *scratch) {
    ops_attend_job job;
    memset(&job, 0, sizeof job);
    job.pages.simd = simd_for(LATENT_KEYS);
    job.pages.at = &p->at;
    job.p = p;
    job.query = CAIRN_F32;
    job.stored = CAIRN_F16;
    job.width = LATENT_VALUES;
    job.latent = true;
    ops_attend_listed(&job, unit, scratch);
}

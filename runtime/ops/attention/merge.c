/* merge: the entry merge_states. See attention.h. */

/* One row and head. */
static void ops_merge_row(const merge_states_params *p, int64_t i) {
    float top = -INFINITY, total = 0.0f, *out = p->out + i * p->head_dim;
    memset(out, 0, (size_t)p->head_dim * sizeof *out);
    for (int c = 0; c < p->parts; c++) top = fmaxf(top, p->lses[c * p->states + i]);
    for (int c = 0; c < p->parts; c++) {
        const float lse = p->lses[c * p->states + i];
        const float weight = lse > -INFINITY ? expf(lse - top) : 0.0f;
        const float *part = p->values + (c * p->states + i) * p->head_dim;
        total += weight;
        for (int d = 0; weight > 0.0f && d < p->head_dim; d++) out[d] += weight * part[d];
    }
    for (int d = 0; total > 0.0f && d < p->head_dim; d++) out[d] /= total;
    if (p->lse) p->lse[i] = total > 0.0f ? top + logf(total) : -INFINITY;
}

typedef struct ops_merge_job { const merge_states_params *p; int workers; } ops_merge_job;

static void ops_merge_task(void *context, int worker) {
    const ops_merge_job *job = (const ops_merge_job *)context;
    const int64_t end = ops_share(job->p->states, worker + 1, job->workers);
    for (int64_t i = ops_share(job->p->states, worker, job->workers); i < end; i++)
        ops_merge_row(job->p, i);
}

cairn_status cairn_merge_states(cairn_runtime *rt, const cairn_merge_states_args *args) {
    cairn_merge_states_args a;
    merge_states_params p;
    device_dims dims = {{1, 1, 1}, 128, 0, 0, false};
    spec_call s;
    if (spec_take(rt, SPEC_OF(merge_states), &a, args, &s)) return s.c.status;
    memset(&p, 0, sizeof p);
    p.values = (const float *)tensor_data(a.parts);
    p.lses = (const float *)tensor_data(a.lses);
    p.out = (float *)tensor_data(a.out);
    p.lse = a.lse ? (float *)tensor_data(a.lse) : NULL;
    p.states = s.n[SPEC_ROWS] * s.n[SPEC_HEADS];
    p.parts = (int32_t)s.n[SPEC_PARTS];
    p.head_dim = (int32_t)s.n[SPEC_HEAD_DIM];
    if (!p.states) return CAIRN_OK;
    if (!rt->device.cuda) {
        ops_merge_job job = {&p, pool_threads(rt->pool)};
        pool_run(rt->pool, job.workers, ops_merge_task, &job);
        return spec_end(rt, CAIRN_OK);
    }
    dims.grid[0] = (unsigned)((p.states + 3) / 4);
    return spec_end(rt, ops_launch(rt, "attention/merge.cu", "merge_states", &dims, &p));
}

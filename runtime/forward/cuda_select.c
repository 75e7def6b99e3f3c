/* forward_cuda_select: rows of a step that select pages by the step's own kernels (kernels_src/step/select.cu,
 * attend_pages.cu); a row alone by one launch of clusters of blocks, which saves the ways through memory between the
 * two: step/select_attend.cu, compiled in the background from the first such step on. Of several rows clusters are
 * more blocks than the GPU holds at once. */

/* Bounds of the pages listed in f->host_pages. */
static cairn_status cuda_store_listed(forward_cuda_state *f, int count, bool mean) {
    device_dims dims = {{0, 0, 0}, 128, 0, 0, false};
    step_params p = f->stage.params;
    cairn_status status = device_upload(f->dev, f->new_pages, f->host_pages, (size_t)count * 4);
    dims.grid[0] = (unsigned)count;
    dims.grid[1] = (unsigned)f->shape->kv_heads;
    p.mean = mean;
    for (int l = 0, end; l < f->shape->layers && !status; l = end) {
        const bool windowed = cuda_group(f, l) > 0; /* such layers have pages of other ids, no bounds */
        for (end = l + 1; end < f->shape->layers && (cuda_group(f, end) > 0) == windowed;) end++;
        p.kv = f->stage.params.kv + l, p.bounds = f->stage.params.bounds + l;
        dims.grid[2] = (unsigned)(end - l);
        if (!windowed) status = device_launch(f->dev, &f->kernels[STEP_K_BOUNDS], &dims, &p);
    }
    return status;
}

/* Bounds of the pages that were completed since the last forward, of one source. */
static cairn_status cuda_store_bounds(forward_cuda_state *f, const forward_batch *batch,
                                      bool mean) {
    int count = 0;
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < batch->sequence_count; i++) {
        const forward_sequence *s = &batch->sequences[i];
        if (!s->rule || s->rule->select.landmark || s->rule->select.mean != mean || f->latents.heads)
            continue;
        for (int page = s->bounded; page < s->stored && !status; page++) {
            f->host_pages[count++] = tables_row(batch->tables, s->table)[page];
            if (count < f->max_pages) continue;
            status = cuda_store_listed(f, count, mean);
            count = 0;
        }
    }
    return status || !count ? status : cuda_store_listed(f, count, mean);
}

/* ---- the two in one launch ------------------------------------------------------------------- */

/* Whether it can be launched by now. */
static bool cuda_has_joint(forward_cuda_state *f) {
    if (!device_has_clusters(f->dev) || f->latents.heads ||
        f->shape->heads / f->shape->kv_heads > LAYOUT_STEP_CHAIN_HEADS ||
        cuda_joint_bytes(f) > (size_t)f->dev->max_shared_bytes)
        return false;
    return cuda_has_single(f, STEP_SINGLE_JOINT, false);
}

/* ---- launches -------------------------------------------------------------------------------- */

/* Blocks that score the pages of one row and KV head. */
static int cuda_select_parts(const forward_cuda_state *f) {
    int each = f->warps * 16, parts = (f->max_pages + each - 1) / each;
    return parts < STEP_SELECT_PARTS ? parts : STEP_SELECT_PARTS;
}

static cairn_status cuda_launch_selected(forward_cuda_state *f, int listed, int rows, int l) {
    device_dims dims = {{0, (unsigned)rows, (unsigned)f->shape->kv_heads}, (unsigned)f->warps * 32, 0, 0, true};
    step_params p = f->stage.params;
    cairn_status status;
    p.layer = l;
    if (f->joint) {
        dims.grid[0] = dims.cluster = LAYOUT_SELECT_CLUSTER;
        dims.shared_bytes = (unsigned)cuda_joint_bytes(f);
        return device_launch(f->dev, &f->singles[STEP_SINGLE_JOINT].kernel, &dims, &p);
    }
    dims.grid[0] = (unsigned)cuda_select_parts(f);
    dims.shared_bytes = (unsigned)cuda_selection_bytes(f);
    status = device_launch(f->dev, &f->kernels[STEP_K_SELECT], &dims, &p);
    dims.grid[0] = (unsigned)listed;
    dims.grid[2] *= (unsigned)cuda_shares(f->shape);
    dims.shared_bytes = f->attend_bytes;
    return status ? status : device_launch(f->dev, &f->kernels[STEP_K_ATTEND_PAGES], &dims, &p);
}

/* listed: runs of a list of pages, at most; watched: what the rows choose is kept. */
static cairn_status cuda_attend_selected(forward_cuda_state *f, const forward_rule *rule, int listed, bool watched,
                                         int rows, int l) {
    const cuda_form form = {rule, false, true};
    const cairn_status status = cuda_launch_selected(f, listed, rows, l);
    return status || !watched ? status : cuda_form_launch(f, &form, &f->stage, 0, rows, l, &f->forms.tell);
}

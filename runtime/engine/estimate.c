/* engine_estimate: what loading a model would take, told before there is a runtime.
 *
 * It is no arithmetic of its own: the file is read, and what lies in host memory is opened, as
 * loading does it, with every byte counted; the backend measures by the steps of its open; the
 * cache is sized by the function that sizes it. Nothing is allocated on a device. */

/* Counts what goes through an allocator. */
typedef struct engine_counter { cairn_allocator under; uint64_t live; } engine_counter;

static void *engine_count_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    engine_counter *c = (engine_counter *)user;
    void *result = c->under.realloc(c->under.user, memory, old_bytes, new_bytes);
    if (result || !new_bytes) c->live += (uint64_t)new_bytes - (memory ? old_bytes : 0);
    return result;
}

/* The runtime that a config would open, as far as it can be measured for. */
static void engine_fake_runtime(cairn_runtime *rt, const cairn_config *config) {
    rt->config = *config;
    rt->device.base = &rt->base;
    rt->config.backend = device_measure(&rt->device, config->backend, config->driver_path,
                                        config->device, &rt->drv);
    rt->device.budget_bytes = (size_t)config->memory.budget_mb << 20;
}

/* map: the config's. */
static void engine_fill_estimate(const cairn_model *m, cairn_memory_map map, int pages,
                                 uint64_t host, cairn_memory_estimate *out) {
    const model_memory *own = &m->memory;
    const bool cuda = m->runtime->config.backend == CAIRN_BACKEND_CUDA;
    const bool copied = !cuda && map == CAIRN_MAP_COPY;
    out->max_seq_len = m->max_seq_len;
    out->pages = pages;
    out->backend = (int32_t)m->runtime->config.backend;
    out->weights_bytes = engine_weights_bytes(m);
    out->kv_bytes = model_cache_bytes(m, pages);
    out->scratch_bytes = own->scratch;
    out->total_bytes = out->weights_bytes + out->kv_bytes + out->scratch_bytes;
    out->live_bytes = own->weights + out->kv_bytes + own->scratch;
    out->peak_bytes = out->live_bytes + own->opening;
    out->host_bytes = host + own->host + (copied ? m->file_bytes + GGUF_ALIGNMENT : 0);
    out->mapped_bytes = cuda || copied ? 0 : m->file_bytes;
    out->resident_bytes = out->host_bytes + out->mapped_bytes + (cuda ? 0 : own->scratch);
}

/* The host's side of a loaded model without its device: opened, counted, closed. */
static cairn_status engine_count_host(cairn_model *m, const engine_counter *counter, int rows,
                                      int pages, uint64_t *host) {
    const kv_groups groups = model_groups(m, pages);
    base *b = &m->runtime->base;
    cairn_status status = engine_open_states(m);
    if (!status) status = engine_scratch_new(b, m, rows);
    if (engine_backend(m->runtime)->copies) model_drop_file(m);
    if (!status) status = pages_pools_open(b, pages, &groups, &m->kv);
    if (!status) status = engine_open_prefixes(m);
    *host = counter->live - m->file.copied +
            (uint64_t)m->shape.kv_layers * 2 * sizeof(void *);
    prefix_close(&m->prefixes);
    pages_pools_close(b, &m->kv);
    engine_scratch_free(b, m);
    engine_close_states(m);
    return status;
}

/* Its values are on the host already. */
static void engine_add_adapter(const cairn_model *m, const cairn_adapter *adapter, bool first, int rows,
                               cairn_memory_estimate *out) {
    const uint64_t bytes = engine_backend(m->runtime)->adapter_bytes(m, adapter, first, rows);
    out->live_bytes += bytes;
    if (out->peak_bytes < out->live_bytes) out->peak_bytes = out->live_bytes;
    if (out->backend == (int32_t)CAIRN_BACKEND_CPU) out->resident_bytes += bytes;
}

static cairn_status engine_measure_file(cairn_runtime *rt, const engine_counter *counter,
                                        const char *path, cairn_memory_map map,
                                        cairn_memory_estimate *out) {
    int rows = model_most_rows(&rt->config), pages;
    uint64_t host;
    cairn_model *m;
    cairn_adapter *adapter = NULL, *own = NULL;
    model_place place = {path, HF_SCAN, NULL};
    cairn_status status = model_load(rt, place, &m);
    if (status) return status;
    if (!(status = model_open_tokenizer(m)) && !(status = engine_measure(m, engine_backend(rt), rows)) &&
        !(status = model_size_cache(m, &rt->device, &pages)) &&
        (!m->plan.landmark.values || !(status = adapter_own(m, &own))) &&
        (!*rt->config.adapter || !(status = adapter_read(m, rt->config.adapter, &adapter))) &&
        !(status = engine_count_host(m, counter, rows, pages, &host)))
        engine_fill_estimate(m, map, pages, host, out);
    if (own && !status) engine_add_adapter(m, own, true, rows, out);
    if (adapter && !status) engine_add_adapter(m, adapter, !own, rows, out);
    if (adapter) adapter_free(adapter);
    if (own) adapter_free(own);
    model_unload(m);
    return status;
}

static cairn_status engine_read_estimate(base *b, const cairn_config *config, const char *path,
                                         cairn_memory_estimate *out) {
    cairn_runtime *rt = (cairn_runtime *)base_new(b, 1, sizeof *rt);
    engine_counter counter;
    cairn_allocator counting;
    cairn_status status;
    if (!rt) return base_no_memory(b, "an estimate", sizeof *rt);
    counter.under = b->allocator;
    counter.live = 0;
    counting.realloc = engine_count_realloc;
    counting.user = &counter;
    base_init(&rt->base, &counting, NULL, NULL, CAIRN_LOG_OFF);
    engine_fake_runtime(rt, config);
    status = engine_measure_file(rt, &counter, path, config->memory.map, out);
    if (status) snprintf(b->error, sizeof b->error, "%s", rt->base.error);
    base_delete(b, rt, 1, sizeof *rt);
    return status;
}

/* Adds the model that drafts, which is there first. */
static cairn_status engine_estimate_drafts(base *b, cairn_config *config, cairn_memory_estimate *e) {
    cairn_memory_estimate own;
    cairn_status status;
    memset(&own, 0, sizeof own);
    config->max_seq_len = e->max_seq_len;
    config->adapter[0] = '\0';
    if ((status = engine_read_estimate(b, config, config->drafter_model, &own))) return status;
    e->weights_bytes += own.weights_bytes, e->kv_bytes += own.kv_bytes;
    e->scratch_bytes += own.scratch_bytes, e->total_bytes += own.total_bytes;
    e->live_bytes += own.live_bytes, e->peak_bytes += own.live_bytes;
    if (e->peak_bytes < own.peak_bytes) e->peak_bytes = own.peak_bytes;
    e->host_bytes += own.host_bytes, e->mapped_bytes += own.mapped_bytes;
    e->resident_bytes += own.resident_bytes;
    return CAIRN_OK;
}

cairn_status cairn_estimate(const cairn_config *config, const char *path,
                            cairn_memory_estimate *estimate, char *error, size_t error_bytes) {
    cairn_config checked;
    cairn_memory_estimate e;
    base b;
    cairn_status status;
    if (!estimate || estimate->struct_size < sizeof estimate->struct_size ||
        estimate->struct_size > sizeof e || !path) {
        if (error && error_bytes)
            snprintf(error, error_bytes, "estimate: %s",
                     !path       ? "path is NULL"
                     : !estimate ? "estimate is NULL"
                                 : "struct_size is not sizeof the struct");
        return path && estimate ? CAIRN_VERSION_MISMATCH : CAIRN_INVALID_ARGUMENT;
    }
    if ((status = cairn_config_check(config, &checked, error, error_bytes))) return status;
    base_init(&b, &checked.allocator, checked.log_callback, checked.log_user, checked.log);
    memset(&e, 0, sizeof e);
    status = engine_read_estimate(&b, &checked, path, &e);
    if (!status && *checked.drafter_model) status = engine_estimate_drafts(&b, &checked, &e);
    if (status && error && error_bytes) snprintf(error, error_bytes, "%s", b.error);
    e.struct_size = estimate->struct_size;
    if (!status) memcpy(estimate, &e, e.struct_size);
    return status;
}

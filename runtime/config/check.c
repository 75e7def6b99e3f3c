/* config: checks, dump and the diff of a reload, all driven by the table of fields, and the public
 * calls that need no Lua. */

/* ---- checks of one value ------------------------------------------------------------------- */

/* `shown` is the value as text. */
static void config_not_allowed(config_report *report, const config_field *field, const char *shown,
                            const char *hint) {
    char range[CFG_TEXT_BYTES];
    config_range(field, range, sizeof range);
    config_bad(report, field, "", " = %s is not allowed%s%s%s%s", shown, range,
            hint ? "; did you mean " : "", hint ? hint : "", hint ? "?" : "");
}

static bool config_check_int(config_report *report, const config_field *field, int64_t value) {
    int64_t nearest = config_nearest_int(field, value);
    char shown[32], hint[32];
    if (value >= field->low && value <= field->high && nearest == value) return true;
    snprintf(shown, sizeof shown, "%lld", (long long)value);
    snprintf(hint, sizeof hint, "%lld", (long long)nearest);
    config_not_allowed(report, field, shown, nearest != value ? hint : NULL);
    return false;
}

static bool config_check_float(config_report *report, const config_field *field, double value) {
    char shown[48];
    config_text text;
    if (value >= field->float_low && value <= field->float_high &&
        (!field->float_open || (float)value > (float)field->float_low)) return true;
    config_text_init(&text, shown, sizeof shown);
    config_print_number(&text, value, fabs(value) < 1e30 && (double)(float)value == value);
    config_not_allowed(report, field, shown, NULL);
    return false;
}

/* `code` names a value of the field's table. */
static bool config_check_code(config_report *report, const config_field *field, int64_t code) {
    char shown[32];
    if (code >= 0 && code < field->value_count) return true;
    snprintf(shown, sizeof shown, "%lld", (long long)code);
    config_not_allowed(report, field, shown, NULL);
    return false;
}

/* The code of a named value, -1 after the mistake was kept. */
static int config_check_name(config_report *report, const config_field *field, const char *name,
                          size_t bytes) {
    char shown[CFG_TEXT_BYTES], hint[CFG_NAME_BYTES];
    const char *nearest;
    config_text text;
    int i;
    for (i = 0; i < field->value_count; i++)
        if (strlen(field->values[i].text) == bytes && !memcmp(field->values[i].text, name, bytes))
            return i;
    config_text_init(&text, shown, sizeof shown);
    config_print_short(&text, name, bytes);
    nearest = config_has_room(report) ? config_nearest_value(field, name) : NULL;
    snprintf(hint, sizeof hint, "\"%s\"", nearest ? nearest : "");
    config_not_allowed(report, field, shown, nearest ? hint : NULL);
    return -1;
}

/* `bytes` of text that shall lie in field->bytes with its NUL; `item` is "[2]" in a list, or "". */
static bool config_check_text(config_report *report, const config_field *field, const char *item,
                           const char *text, size_t bytes) {
    const char *why = bytes == 0 && !field->empty ? "is empty" : bytes >= field->bytes ? "is too long"
                    : memchr(text, 0, bytes) ? "holds a NUL byte" : NULL;
    if (!why) return true;
    config_bad(report, field, item, " %s (%d to %d bytes)", why, !field->empty,
               (int)field->bytes - 1);
    return false;
}

/* ---- checks of a whole struct -------------------------------------------------------------- */

/* Bytes before the NUL, at most `room`. */
static size_t config_length(const char *text, size_t room) {
    const char *end = (const char *)memchr(text, 0, room);
    return end ? (size_t)(end - text) : room;
}

static void config_check_strings(config_report *report, const config_field *field,
                              const cairn_config *config) {
    const char *first = (const char *)config_at_const(config, field);
    int32_t i, count;
    memcpy(&count, (const char *)config + field->count_offset, sizeof count);
    if (count < 0 || count > field->count) {
        config_bad(report, field, "_count", " = %d is not allowed (0 to %d)", (int)count,
                field->count);
        return;
    }
    for (i = 0; i < count; i++) {
        const char *text = first + (size_t)i * field->bytes;
        char item[16];
        snprintf(item, sizeof item, "[%d]", (int)i);
        config_check_text(report, field, item, text, config_length(text, field->bytes));
    }
}

/* Reads through bytes, since a struct filled by hand may hold what its types do not allow. */
static void config_check_field(config_report *report, const config_field *field,
                            const cairn_config *config) {
    const void *at = config_at_const(config, field);
    const char *text = (const char *)at;
    int32_t int32 = 0;
    int64_t int64 = 0;
    float number = 0;
    switch (field->kind) {
    case CFG_INT:
    case CFG_ENUM:
        memcpy(&int32, at, sizeof int32);
        if (field->kind == CFG_INT) config_check_int(report, field, int32);
        else config_check_code(report, field, int32);
        break;
    case CFG_INT64:
        memcpy(&int64, at, sizeof int64);
        config_check_int(report, field, int64);
        break;
    case CFG_FLOAT:
        memcpy(&number, at, sizeof number);
        config_check_float(report, field, number);
        break;
    case CFG_BOOL:
        if (text[0] != 0 && text[0] != 1)
            config_bad(report, field, "", " = %d is not allowed (true, false)", text[0]);
        break;
    case CFG_STRING:
        config_check_text(report, field, "", text, config_length(text, field->bytes));
        break;
    case CFG_CHOICE: config_check_name(report, field, text, config_length(text,
                                                                          field->bytes)); break;
    case CFG_STRINGS: config_check_strings(report, field, config); break;
    case CFG_LAYERS:
    case CFG_GROUP: break;
    }
}

static int config_row(const char *path) {
    int row = CFG_ROWS - 1;
    while (row >= 0 && strcmp(config_fields[row].path, path)) row--;
    return row;
}

static void config_check_budget(config_report *report, const cairn_config *config) {
    const cairn_budget *budget = &config->budget;
    const char *path = budget->force ? "budget.force" : "budget.suppress";
    if (report->bad[config_row(path)] || report->bad[config_row("budget.replace")] ||
        budget->replace_count || (!budget->force && !budget->suppress_count))
        return;
    config_add(report, report->lines ? report->lines[config_row(path)] : 0,
               "%s needs a text in budget.replace", path);
}

/* What no field shows alone; fields that are wrong by themselves are left out. */
static void config_check_together(config_report *report, const cairn_config *config) {
    const cairn_shape *shape = &config->shape;
    int heads = config_row("shape.heads"), kv_heads = config_row("shape.kv_heads");
    int line = report->lines ? report->lines[heads] : 0;
    config_check_budget(report, config);
    if (report->bad[heads] || report->bad[kv_heads] || shape->heads % shape->kv_heads == 0) return;
    if (report->lines && !line) line = report->lines[kv_heads];
    config_add(report, line, "shape.heads = %d is not a multiple of shape.kv_heads = %d",
            (int)shape->heads, (int)shape->kv_heads);
}

static void config_check_host(config_report *report, const cairn_config *config) {
    const cairn_device_allocator *device = &config->device_allocator;
    if (!device->alloc != !device->free)
        config_add(report, 0, "device_allocator has %s but not %s; give both or neither",
                device->alloc ? "alloc" : "free", device->alloc ? "free" : "alloc");
    if (!memchr(config->driver_path, 0, sizeof config->driver_path))
        config_add(report, 0, "driver_path has no NUL in %d bytes",
                   (int)sizeof config->driver_path);
    if (!memchr(config->nvrtc_path, 0, sizeof config->nvrtc_path))
        config_add(report, 0, "nvrtc_path has no NUL in %d bytes", (int)sizeof config->nvrtc_path);
}

static bool config_is_zero(const char *bytes, size_t count) {
    while (count > 0 && bytes[count - 1] == 0) count--;
    return count == 0;
}

/* Larger than any version will be: what an uninitialised struct may say. */
enum { CFG_MOST_BYTES = 65536 };

/* Copies the fields that both versions know; the rest of *out keeps its defaults. */
static void config_import(config_report *report, const cairn_config *config, cairn_config *out) {
    uint32_t bytes = config->struct_size;
    size_t i;
    if (bytes < CFG_FIRST_BYTES || bytes > CFG_MOST_BYTES) {
        report->version = true;
        config_add(report, 0, "struct_size is %u, but no version's; call cairn_config_default or "
                "cairn_config_load first", (unsigned)bytes);
        return;
    }
    memcpy(out, config, bytes < sizeof *out ? bytes : sizeof *out);
    out->struct_size = (uint32_t)sizeof *out;
    if (bytes > sizeof *out &&
        !config_is_zero((const char *)config + sizeof *out, bytes - sizeof *out)) {
        report->version = true;
        config_add(report, 0,
                   "fields are set that this runtime does not know (struct_size %u, ours "
                "%u); compile against its header", (unsigned)bytes, (unsigned)sizeof *out);
    }
    for (i = 0; i < BASE_COUNT(config_reserved); i++)
        if (!config_is_zero((const char *)out + config_reserved[i].offset,
                            config_reserved[i].bytes)) {
            report->version = true;
            config_add(report, 0, "reserved bytes at offset %u are not zero; compile against this "
                    "runtime's header", (unsigned)config_reserved[i].offset);
        }
}

/* As cairn_config_check, with the runtime's own log. *out is written only on success. */
static cairn_status config_check(base *b, const cairn_config *config, cairn_config *out,
                                 char *error,
                              size_t error_bytes) {
    cairn_config checked;
    config_report report;
    cairn_status status;
    int row;
    config_report_init(&report, "config");
    config_set_defaults(&checked);
    config_import(&report, config, &checked);
    if (!report.count) {
        for (row = 0; row < CFG_ROWS; row++) config_check_field(&report, &config_fields[row],
                                                                &checked);
        config_check_together(&report, &checked);
        config_check_host(&report, &checked);
    }
    status = config_finish(b, &report, error, error_bytes);
    if (!status) *out = checked;
    return status;
}

/* ---- dump ---------------------------------------------------------------------------------- */

/* All words `bits`. */
static bool config_layers_are(const uint64_t *layers, uint64_t bits) {
    int i;
    for (i = 0; i < CAIRN_MAX_LAYERS / 64; i++)
        if (layers[i] != bits) return false;
    return true;
}

static void config_dump_layers(config_text *text, const uint64_t *layers) {
    int layer;
    if (config_layers_are(layers, UINT64_MAX)) { config_print(text, "\"all\""); return; }
    if (config_layers_are(layers, 0)) { config_print(text, "\"none\""); return; }
    config_print(text, "{ ");
    for (layer = 0; layer < CAIRN_MAX_LAYERS; layer++)
        if (layers[layer / 64] >> (layer % 64) & 1) config_print(text, "%d, ", layer);
    config_print(text, "}");
}

static void config_dump_strings(config_text *text, const config_field *field,
                                const cairn_config *config) {
    const char *first = (const char *)config_at_const(config, field);
    int32_t i, count;
    memcpy(&count, (const char *)config + field->count_offset, sizeof count);
    config_print(text, "{ ");
    for (i = 0; i < count; i++) {
        const char *string = first + (size_t)i * field->bytes;
        config_print_quoted(text, string, strlen(string));
        config_print(text, ", ");
    }
    config_print(text, "}");
}

static void config_dump_value(config_text *text, const config_field *field,
                              const cairn_config *config) {
    const void *at = config_at_const(config, field);
    int64_t int64;
    int32_t int32;
    float number;
    switch (field->kind) {
    case CFG_INT: memcpy(&int32, at, sizeof int32); config_print(text, "%d", (int)int32); break;
    case CFG_ENUM:
        memcpy(&int32, at, sizeof int32);
        config_print(text, "\"%s\"", field->values[int32].text);
        break;
    case CFG_INT64:
        memcpy(&int64, at, sizeof int64);
        config_print(text, "%lld", (long long)int64);
        break;
    case CFG_FLOAT:
        memcpy(&number, at, sizeof number);
        config_print_number(text, number, true);
        break;
    case CFG_BOOL: config_print(text, *(const bool *)at ? "true" : "false"); break;
    case CFG_STRING:
    case CFG_CHOICE:
        config_print_quoted(text, (const char *)at, strlen((const char *)at));
        break;
    case CFG_STRINGS: config_dump_strings(text, field, config); break;
    case CFG_LAYERS: config_dump_layers(text, (const uint64_t *)at); break;
    case CFG_GROUP: config_print(text, "{"); break;
    }
}

static void config_dump(config_text *text, const cairn_config *config) {
    int row, inside = -1;
    config_print(text, "return {\n");
    for (row = 0; row < CFG_ROWS; row++) {
        const config_field *field = &config_fields[row];
        if (inside >= 0 && field->parent < 0) config_print(text, "  },\n");
        inside = field->kind == CFG_GROUP ? row : field->parent;
        config_print(text, "%s%s = ", field->parent < 0 ? "  " : "    ", config_key(field));
        config_dump_value(text, field, config);
        config_print(text, field->kind == CFG_GROUP ? "\n" : ",\n");
    }
    config_print(text, inside >= 0 ? "  },\n}\n" : "}\n");
}

/* ---- reload -------------------------------------------------------------------------------- */

static bool config_strings_equal(const config_field *field, const cairn_config *a,
                              const cairn_config *b) {
    const char *text_a = (const char *)config_at_const(a, field);
    const char *text_b = (const char *)config_at_const(b, field);
    int32_t i, count_a, count_b;
    memcpy(&count_a, (const char *)a + field->count_offset, sizeof count_a);
    memcpy(&count_b, (const char *)b + field->count_offset, sizeof count_b);
    if (count_a != count_b) return false;
    for (i = 0; i < count_a; i++, text_a += field->bytes, text_b += field->bytes)
        if (strcmp(text_a, text_b)) return false;
    return true;
}

static bool config_equal(const config_field *field, const cairn_config *a, const cairn_config *b) {
    const void *at_a = config_at_const(a, field), *at_b = config_at_const(b, field);
    switch (field->kind) {
    case CFG_GROUP: return true;
    case CFG_FLOAT: return !(*(const float *)at_a < *(const float *)at_b) &&
                           !(*(const float *)at_a > *(const float *)at_b);
    case CFG_STRING:
    case CFG_CHOICE: return !strcmp((const char *)at_a, (const char *)at_b);
    case CFG_STRINGS: return config_strings_equal(field, a, b);
    case CFG_INT: case CFG_INT64: case CFG_BOOL: case CFG_ENUM: case CFG_LAYERS: break;
    }
    return !memcmp(at_a, at_b, field->bytes);
}

static void config_name_change(char *names, size_t bytes, const char *path) {
    size_t used = strlen(names), more = strlen(path) + 2;
    if (used + more + 5 < bytes)
        snprintf(names + used, bytes - used, "%s%s", used ? ", " : "", path);
    else if (used < 3 || strcmp(names + used - 3, "..."))
        snprintf(names + used, bytes - used, ", ...");
}

static void config_diff(const cairn_config *old, const cairn_config *fresh, config_change *change) {
    int row;
    memset(change, 0, sizeof *change);
    for (row = 0; row < CFG_ROWS; row++) {
        const config_field *field = &config_fields[row];
        if (config_equal(field, old, fresh)) continue;
        if (field->hot) {
            change->hot++;
            config_name_change(change->hot_names, sizeof change->hot_names, field->path);
        } else {
            change->cold++;
            config_name_change(change->cold_names, sizeof change->cold_names, field->path);
        }
    }
}

static int config_threads(const cairn_config *config) {
    const cairn_worker *w = &config->worker;
    return w->enabled && w->threads ? w->threads : config->threads;
}

static bool config_is_low(const cairn_config *config) {
    return config->worker.enabled && config->worker.priority == CAIRN_PRIORITY_LOW;
}

static bool config_layer_selects(const cairn_config *config, int layer) {
    return layer >= 0 && layer < CAIRN_MAX_LAYERS &&
           (config->selection.layers[layer / 64] >> (layer % 64) & 1);
}

/* ---- calls --------------------------------------------------------------------------------- */

static cairn_status config_refuse_null(const char *what, char *error, size_t error_bytes) {
    base b;
    base_init(&b, NULL, NULL, NULL, CAIRN_LOG_OFF);
    base_fail(&b, CAIRN_INVALID_ARGUMENT, "%s is NULL", what);
    if (error && error_bytes) snprintf(error, error_bytes, "%s", b.error);
    return CAIRN_INVALID_ARGUMENT;
}

void cairn_config_default(cairn_config *config) {
    if (config) config_set_defaults(config);
}

cairn_status cairn_config_check(const cairn_config *config, cairn_config *checked, char *error,
                                size_t error_bytes) {
    base b;
    if (!config || !checked)
        return config_refuse_null(config ? "config_check: checked" : "config_check: config", error,
                               error_bytes);
    base_init(&b, NULL, NULL, NULL, CAIRN_LOG_ERROR);
    if (config->struct_size >= sizeof *config && config->struct_size <= CFG_MOST_BYTES &&
        config->log != CAIRN_LOG_OFF) {
        b.log = config->log_callback;
        b.log_user = config->log_user;
    }
    return config_check(&b, config, checked, error, error_bytes);
}

cairn_status cairn_config_dump(const cairn_config *config, char *data, size_t bytes) {
    cairn_config checked;
    cairn_status status;
    config_text text;
    base b;
    if (!data) bytes = 0;
    if (bytes) data[0] = '\0';
    if (!config || !data) return CAIRN_INVALID_ARGUMENT;
    base_init(&b, NULL, NULL, NULL, CAIRN_LOG_OFF);
    if ((status = config_check(&b, config, &checked, NULL, 0))) return status;
    config_text_init(&text, data, bytes);
    config_dump(&text, &checked);
    if (text.full && bytes) data[0] = '\0';
    return text.full ? CAIRN_INVALID_ARGUMENT : CAIRN_OK;
}

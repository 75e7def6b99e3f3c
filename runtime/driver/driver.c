/* driver: libcuda and the table of its functions. */
#define DRV_OLDEST_CUDA 12000 /* driver 525 */
#define DRV_OLDEST_NVRTC 12000
#define DRV_NEWEST_NVRTC_MAJOR 16 /* names are generated down from here */

/* ---- the record of places -------------------------------------------------------------------- */

BASE_PRINTF(2, 3)
static void driver_note(driver_calls *d, const char *format, ...) {
    size_t room = sizeof d->tried - d->tried_bytes;
    va_list args;
    int size;
    va_start(args, format);
    size = vsnprintf(d->tried + d->tried_bytes, room, format, args);
    va_end(args);
    if (size < 0 || (size_t)size >= room) d->tried[d->tried_bytes] = '\0'; /* full: leave it out */
    else d->tried_bytes += (size_t)size;
}

/* The system's reason without the path, which it may begin with. */
static const char *driver_reason(const char *why, const char *path) {
    size_t size = strlen(path);
    return !strncmp(why, path, size) && !strncmp(why + size, ": ", 2) ? why + size + 2 : why;
}

/* What was tried since `from`, as much as fits an error message. */
static const char *driver_tried(const driver_calls *d, size_t from, char *text, size_t text_bytes) {
    const char *line = d->tried + from;
    size_t used = 0;
    for (text[0] = '\0'; *line && used < text_bytes; line += strcspn(line, "\n") + 1)
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%.*s", used ? "; " : "",
                                 (int)strcspn(line, "\n"), line);
    if (used >= text_bytes) memcpy(text + text_bytes - 4, "...", 4);
    return text;
}

/* ---- filling the table ----------------------------------------------------------------------- */

/* Returns the first required symbol that is missing, or NULL. */
static const char *driver_fill(driver_calls *d, void *library, const driver_row *rows, size_t count) {
    size_t i;
    for (i = 0; i < count; i++) {
        os_function function = os_library_symbol(library, rows[i].symbol);
        if (!function) function = rows[i].absent;
        if (!function) return rows[i].symbol;
        memcpy((char *)d + rows[i].offset, &function, sizeof function);
    }
    return NULL;
}

/* ---- results --------------------------------------------------------------------------------- */

static cairn_status driver_status(CUresult result) {
    switch (result) {
    case CUDA_SUCCESS: return CAIRN_OK;
    case CUDA_ERROR_OUT_OF_MEMORY: return CAIRN_OUT_OF_DEVICE_MEMORY;
    case CUDA_ERROR_NO_DEVICE: case CUDA_ERROR_INVALID_DEVICE: return CAIRN_NO_DEVICE;
    case CUDA_ERROR_NOT_READY: return CAIRN_BUSY;
    case CUDA_ERROR_NOT_FOUND: return CAIRN_NOT_FOUND;
    case CUDA_ERROR_NOT_SUPPORTED: return CAIRN_UNSUPPORTED;
    default: return CAIRN_DEVICE_ERROR;
    }
}

static cairn_status driver_fail(base *b, const driver_calls *d, CUresult result, const char *call) {
    const char *name = NULL, *text = NULL;
    if (result == CUDA_SUCCESS) return CAIRN_OK;
    if (d->cuGetErrorName && d->cuGetErrorName(result, &name)) name = NULL;
    if (d->cuGetErrorString && d->cuGetErrorString(result, &text)) text = NULL;
    return base_fail(b, driver_status(result), "%s: %s (%d): %s", call, name ? name
                     : "driver error",
                     result, text ? text : "no description");
}

/* ---- libcuda --------------------------------------------------------------------------------- */

static void driver_close_nvrtc(driver_calls *d) {
    os_library_close(d->builtins);
    os_library_close(d->nvrtc);
    d->builtins = d->nvrtc = NULL;
    d->nvrtc_version = 0;
}

static void driver_close(driver_calls *d) {
    driver_close_nvrtc(d);
    os_library_close(d->cuda);
    d->cuda = NULL;
    d->cuda_version = d->device_count = 0;
}

static cairn_status driver_init_failed(base *b, const driver_calls *d, CUresult result) {
    switch (result) {
    case CUDA_ERROR_STUB_LIBRARY:
        return base_fail(b, CAIRN_NO_DRIVER, "%s is the toolkit's stub for linking, not a driver",
                         d->cuda_path);
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
        return base_fail(b, CAIRN_NO_DRIVER, "%s does not match the kernel's driver module; reboot",
                         d->cuda_path);
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
        return base_fail(b, CAIRN_DRIVER_TOO_OLD, "%s: this GPU takes no forward-compatible driver",
                         d->cuda_path);
    case CUDA_ERROR_OUT_OF_MEMORY:
        return base_fail(b, CAIRN_OUT_OF_DEVICE_MEMORY, "cuInit: out of memory");
    case CUDA_ERROR_NO_DEVICE:
        return base_fail(b, CAIRN_NO_DEVICE, "cuInit: no CUDA-capable device");
    default:
        return base_fail(b, CAIRN_NO_DEVICE, "cuInit failed with error %d", result);
    }
}

/* The version is looked at before all else, so that an old driver is called old. */
static cairn_status driver_start(base *b, driver_calls *d) {
    const driver_row version_row = {"cuDriverGetVersion", offsetof(driver_calls, cuDriverGetVersion), NULL};
    const char *missing = driver_fill(d, d->cuda, &version_row, 1);
    CUresult result;
    if (!missing && d->cuDriverGetVersion(&d->cuda_version)) d->cuda_version = 0;
    if (missing || d->cuda_version < DRV_OLDEST_CUDA)
        return base_fail(b, CAIRN_DRIVER_TOO_OLD, "%s supports CUDA %d.%d; 12.0 is needed",
                         d->cuda_path, d->cuda_version / 1000, d->cuda_version % 1000 / 10);
    missing = driver_fill(d, d->cuda, driver_cuda_rows, BASE_COUNT(driver_cuda_rows));
    if (missing)
        return base_fail(b, CAIRN_DRIVER_TOO_OLD, "%s lacks the function %s", d->cuda_path,
                         missing);
    result = d->cuInit(0);
    if (result) return driver_init_failed(b, d, result);
    result = d->cuDeviceGetCount(&d->device_count);
    if (result) return driver_fail(b, d, result, "cuDeviceGetCount");
    if (d->device_count < 1) return base_fail(b, CAIRN_NO_DEVICE, "the driver lists no device");
    return CAIRN_OK;
}

static bool driver_open_cuda_at(driver_calls *d, const char *path) {
    char why[512];
    d->cuda = os_library_open(path, why, sizeof why);
    driver_note(d, "%s: %s\n", path, d->cuda ? "opened" : driver_reason(why, path));
    snprintf(d->cuda_path, sizeof d->cuda_path, "%s", path);
    return d->cuda != NULL;
}

static cairn_status driver_open(base *b, const char *path, driver_calls *out) {
#ifdef _WIN32
    static const char *const places[] = {"nvcuda.dll"};
#else
    static const char *const places[] = {"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"};
#endif
    char tried[700];
    cairn_status status;
    size_t i;
    memset(out, 0, sizeof *out);
    if (!path || !*path) path = os_env("CAIRN_CUDA_PATH");
    if (path) driver_open_cuda_at(out, path);
    else for (i = 0; i < BASE_COUNT(places) && !driver_open_cuda_at(out, places[i]); i++) {}
    if (!out->cuda)
        return base_fail(b, CAIRN_NO_DRIVER, "%s", driver_tried(out, 0, tried, sizeof tried));
    status = driver_start(b, out);
    if (status) {
        driver_note(out, "%s: %s\n", out->cuda_path, cairn_status_meaning(status));
        driver_close(out);
    }
    return status;
}

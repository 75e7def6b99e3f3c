/* driver_nvrtc: the search for NVRTC. In order: the given path, CAIRN_NVRTC_PATH, beside the
 * program and in its nvrtc/ folder, what the process has loaded, the system's search, toolkits, and
 * Python packages (nvidia-cuda-nvrtc). A given path is the only place looked at.
 *
 * A copy whose libnvrtc-builtins of the very same version is missing cannot compile anything, and
 * may pair with a foreign one found elsewhere: it is passed over, unless it is the only one. */

#ifdef _WIN32
#define DRV_NVRTC_NAME "nvrtc64_%d0_0.dll"
#define DRV_TWIN_NAME "nvrtc64_%d0_0.alt.dll"
#define DRV_TWIN_BUILTINS_NAME "nvrtc-builtins64_%d%d.alt.dll"
#define DRV_BUILTINS_NAME "nvrtc-builtins64_%d%d.dll"
#define DRV_WHEEL_13 "nvidia/cu13/bin/x86_64"
#define DRV_WHEEL_12 "nvidia/cuda_nvrtc/bin"
#else
#define DRV_NVRTC_NAME "libnvrtc.so.%d"
#define DRV_TWIN_NAME "libnvrtc.alt.so.%d"
#define DRV_TWIN_BUILTINS_NAME "libnvrtc-builtins.alt.so.%d.%d"
#define DRV_BUILTINS_NAME "libnvrtc-builtins.so.%d.%d"
#define DRV_WHEEL_13 "nvidia/cu13/lib"
#define DRV_WHEEL_12 "nvidia/cuda_nvrtc/lib"
#endif

typedef struct driver_search {
    driver_calls *d;
    cairn_status status; /* the most telling failure so far */
    int majors[DRV_NEWEST_NVRTC_MAJOR];
    int major_count;
    const char *directory; /* while its entries are listed */
} driver_search;

/* Best first: cubins load on a driver of the same or a newer major version, so the driver's own,
 * then older ones, then newer ones. Without a driver the newest first. */
static void driver_search_majors(driver_search *s) {
    int driver = s->d->cuda_version / 1000, oldest = DRV_OLDEST_NVRTC / 1000, major;
    if (driver <= 0 || driver > DRV_NEWEST_NVRTC_MAJOR) driver = DRV_NEWEST_NVRTC_MAJOR;
    for (major = driver; major >= oldest; major--) s->majors[s->major_count++] = major;
    for (major = driver + 1; major <= DRV_NEWEST_NVRTC_MAJOR; major++)
        s->majors[s->major_count++] = major;
}

/* root/part into `out` [OS_PATH_BYTES]; part may be empty. False when it does not fit. */
static bool driver_join(char *out, const char *root, const char *part) {
    int size = snprintf(out, OS_PATH_BYTES, "%s%s%s", root, *part ? "/" : "", part);
    return size > 0 && size < OS_PATH_BYTES;
}

/* ---- one library ----------------------------------------------------------------------------- */

/* Opens the builtins beside libnvrtc by their full path, so that the later search by name, which
 * NVRTC does itself, finds these; else lets the system search. */
static bool driver_open_builtins(driver_calls *d) {
    char name[64], directory[OS_PATH_BYTES], path[OS_PATH_BYTES], why[512] = "";
    snprintf(name, sizeof name, DRV_BUILTINS_NAME, d->nvrtc_version / 1000,
             d->nvrtc_version % 1000 / 10);
    if (os_directory_of(d->nvrtc_path, directory, sizeof directory) &&
        driver_join(path, directory, name)) d->builtins = os_library_open(path, why, sizeof why);
    if (!d->builtins) d->builtins = os_library_open(name, why, sizeof why);
    if (!d->builtins) driver_note(d, "%s: %s is missing: %s\n", d->nvrtc_path, name,
                               driver_reason(why, name));
    return d->builtins != NULL;
}

static void driver_set_nvrtc_path(driver_calls *d, const char *asked) {
    os_function function;
    memcpy(&function, &d->nvrtcVersion, sizeof function);
    if (!os_library_path(function, d->nvrtc_path, sizeof d->nvrtc_path))
        snprintf(d->nvrtc_path, sizeof d->nvrtc_path, "%s", asked);
}

/* Checks the library just opened; what is wrong goes into the record and the status. */
static bool driver_accept_nvrtc(driver_search *s, const char *asked) {
    driver_calls *d = s->d;
    int major = 0, minor = 0;
    const char *missing = driver_fill(d, d->nvrtc, driver_nvrtc_rows,
                                      BASE_COUNT(driver_nvrtc_rows));
    if (missing) {
        driver_note(d, "%s: lacks the function %s\n", asked, missing);
        s->status = CAIRN_NVRTC_TOO_OLD;
        return false;
    }
    driver_set_nvrtc_path(d, asked);
    if (d->nvrtcVersion(&major, &minor)) major = 0;
    d->nvrtc_version = major * 1000 + minor * 10;
    if (d->nvrtc_version < DRV_OLDEST_NVRTC) {
        driver_note(d, "%s: is version %d.%d; 12.0 is needed\n", d->nvrtc_path, major, minor);
        s->status = CAIRN_NVRTC_TOO_OLD;
        return false;
    }
    if (!driver_open_builtins(d)) {
        s->status = CAIRN_NO_NVRTC_BUILTINS;
        return false;
    }
    driver_note(d, "%s: opened, version %d.%d\n", d->nvrtc_path, major, minor);
    return true;
}

static bool driver_try_nvrtc(driver_search *s, const char *path, bool loaded_only) {
    char why[512] = "";
    driver_calls *d = s->d;
    d->nvrtc = os_calls.library_open(path, loaded_only, why, sizeof why);
    if (!d->nvrtc) {
        if (!loaded_only) driver_note(d, "%s: %s\n", path, driver_reason(why, path));
        return false;
    }
    if (driver_accept_nvrtc(s, path)) return true;
    driver_close_nvrtc(d);
    return false;
}

/* ---- places ---------------------------------------------------------------------------------- */

/* By name alone, where the system looks, or among what the process has loaded. */
static bool driver_try_names(driver_search *s, bool loaded_only) {
    char name[64];
    int i;
    for (i = 0; i < s->major_count; i++) {
        snprintf(name, sizeof name, DRV_NVRTC_NAME, s->majors[i]);
        if (driver_try_nvrtc(s, name, loaded_only)) return true;
    }
    return false;
}

static bool driver_try_directory(driver_search *s, const char *directory) {
    char path[OS_PATH_BYTES], name[64];
    bool found = false;
    int i;
    for (i = 0; i < s->major_count; i++) {
        snprintf(name, sizeof name, DRV_NVRTC_NAME, s->majors[i]);
        if (!driver_join(path, directory, name) || os_mtime(path) < 0) continue;
        found = true;
        if (driver_try_nvrtc(s, path, false)) return true;
    }
    if (!found) driver_note(s->d, "%s: no NVRTC there\n", directory);
    return false;
}

/* A root that is NULL is passed over. */
static bool driver_try_under(driver_search *s, const char *root, const char *part) {
    char path[OS_PATH_BYTES];
    return root && driver_join(path, root, part) && driver_try_directory(s, path);
}

static bool driver_try_beside_program(driver_search *s) {
    static const char *const parts[] = {
        "", "nvrtc", "nvrtc/" DRV_WHEEL_13, "nvrtc/" DRV_WHEEL_12, "../nvrtc",
        "../nvrtc/" DRV_WHEEL_13, "../nvrtc/" DRV_WHEEL_12,
    };
    char program[OS_PATH_BYTES], directory[OS_PATH_BYTES];
    size_t i;
    if (!os_executable_path(program, sizeof program) ||
        !os_directory_of(program, directory, sizeof directory)) return false;
    for (i = 0; i < BASE_COUNT(parts); i++)
        if (driver_try_under(s, directory, parts[i])) return true;
    return false;
}

static bool driver_try_toolkits(driver_search *s) {
#ifdef _WIN32
    return driver_try_under(s, os_env("CUDA_PATH"), "bin/x64") ||
           driver_try_under(s, os_env("CUDA_PATH"), "bin");
#else
    return driver_try_under(s, os_env("CUDA_PATH"), "lib64") ||
           driver_try_under(s, os_env("CUDA_HOME"), "lib64") ||
           driver_try_under(s, os_env("CONDA_PREFIX"), "lib") ||
           driver_try_directory(s, "/usr/local/cuda/lib64") ||
           driver_try_directory(s, "/usr/lib/cuda/lib64") ||
           driver_try_directory(s, "/usr/lib/wsl/lib");
#endif
}

/* A folder that holds Python packages. */
static bool driver_try_packages(driver_search *s, const char *folder) {
    os_file_info info;
    char path[OS_PATH_BYTES];
    if (!driver_join(path, folder, "nvidia") || os_calls.info(path, &info)) return false;
    return driver_try_under(s, folder, DRV_WHEEL_13) || driver_try_under(s, folder, DRV_WHEEL_12);
}

#ifndef _WIN32
/* An entry of LIB: LIB/python3.11 holds site-packages or dist-packages. */
static bool driver_python_entry(void *user, const char *name) {
    driver_search *s = (driver_search *)user;
    static const char *const kinds[] = {"site-packages", "dist-packages"};
    char python[OS_PATH_BYTES], path[OS_PATH_BYTES];
    size_t i;
    if (strncmp(name, "python3", 7) || !driver_join(python, s->directory, name)) return true;
    for (i = 0; i < BASE_COUNT(kinds); i++)
        if (driver_join(path, python, kinds[i]) && driver_try_packages(s, path)) return false;
    return true;
}
#endif

static bool driver_try_python_under(driver_search *s, const char *root, const char *part) {
    char path[OS_PATH_BYTES];
    if (!root || !driver_join(path, root, part)) return false;
#ifdef _WIN32
    if (driver_try_packages(s, path)) return true;
#else
    s->directory = path;
    os_calls.list(path, driver_python_entry, s);
    s->directory = NULL;
    if (s->d->nvrtc) return true;
#endif
    driver_note(s->d, "%s: no package nvidia-cuda-nvrtc\n", path);
    return false;
}

static bool driver_try_python(driver_search *s) {
#ifdef _WIN32
    return driver_try_python_under(s, os_env("VIRTUAL_ENV"), "Lib/site-packages") ||
           driver_try_python_under(s, os_env("CONDA_PREFIX"), "Lib/site-packages");
#else
    return driver_try_python_under(s, os_env("VIRTUAL_ENV"), "lib") ||
           driver_try_python_under(s, os_env("CONDA_PREFIX"), "lib") ||
           driver_try_python_under(s, os_env("HOME"), ".local/lib") ||
           driver_try_python_under(s, "/usr", "local/lib") || driver_try_python_under(s, "/usr",
                                                                                      "lib");
#endif
}

static bool driver_try_given(driver_search *s, const char *path) {
    os_file_info info;
    if (os_calls.info(path, &info) == 0 && info.directory) return driver_try_directory(s, path);
    return driver_try_nvrtc(s, path, false);
}

static cairn_status driver_open_nvrtc(base *b, const char *path, driver_calls *d) {
    driver_search s;
    size_t from = d->tried_bytes;
    char tried[700];
    bool found;
    if (d->nvrtc) return CAIRN_OK;
    memset(&s, 0, sizeof s);
    s.d = d;
    s.status = CAIRN_NO_NVRTC;
    driver_search_majors(&s);
    if (!path || !*path) path = os_env("CAIRN_NVRTC_PATH");
    if (path) found = driver_try_given(&s, path);
    else found = driver_try_beside_program(&s) || driver_try_names(&s, true) ||
                 driver_try_names(&s, false) || driver_try_toolkits(&s) || driver_try_python(&s);
    if (!found) return base_fail(b, s.status, "%s", driver_tried(d, from, tried, sizeof tried));
    d->nvrtc_opened++;
    return CAIRN_OK;
}

/* One of its two files, beside the NVRTC that is open. */
static void *driver_open_beside(const driver_calls *d, const char *name) {
    char directory[OS_PATH_BYTES], path[OS_PATH_BYTES], why[512];
    if (!os_directory_of(d->nvrtc_path, directory, sizeof directory) ||
        !driver_join(path, directory, name)) return NULL;
    return os_library_open(path, why, sizeof why);
}

static bool driver_open_twin(const driver_calls *d, driver_calls *out) {
    char name[64], builtins[64];
    int major = 0, minor = 0;
    *out = *d;
    snprintf(name, sizeof name, DRV_TWIN_NAME, d->nvrtc_version / 1000);
    snprintf(builtins, sizeof builtins, DRV_TWIN_BUILTINS_NAME, d->nvrtc_version / 1000,
             d->nvrtc_version % 1000 / 10);
    out->nvrtc = driver_open_beside(d, name);
    out->builtins = out->nvrtc ? driver_open_beside(d, builtins) : NULL;
    if (out->builtins && out->nvrtc != d->nvrtc &&
        !driver_fill(out, out->nvrtc, driver_nvrtc_rows, BASE_COUNT(driver_nvrtc_rows)) &&
        !out->nvrtcVersion(&major, &minor) && major * 1000 + minor * 10 == d->nvrtc_version)
        return true;
    driver_close_nvrtc(out);
    return false;
}

static cairn_status driver_nvrtc_fail(base *b, const driver_calls *d, nvrtcResult result,
                                      const char *call) {
    cairn_status status = result == NVRTC_ERROR_OUT_OF_MEMORY ? CAIRN_OUT_OF_MEMORY
                          : result == NVRTC_ERROR_CANCELLED ? CAIRN_CANCELLED
                          : result == NVRTC_ERROR_BUILTIN_OPERATION_FAILURE
                              ? CAIRN_NO_NVRTC_BUILTINS : CAIRN_COMPILE_FAILED;
    const char *text = d->nvrtcGetErrorString(result);
    if (result == NVRTC_SUCCESS) return CAIRN_OK;
    return base_fail(b, status, "%s: %s (%d)", call, text ? text : "NVRTC error", result);
}

/* The NVRTC half of the emulated driver: compiles a kernel with the host's C++ compiler into a
 * shared library against this one, and gives its bytes as the cubin. */
#include "simt_core.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>

struct _nvrtcProgram {
    std::string source, name, log, image;
    std::map<std::string, std::string> headers;
    int (*flow)(void *, void *);
    void *payload;
};

typedef _nvrtcProgram *Program;
#define API extern "C" __attribute__((visibility("default"))) int
int emulated_fault(); /* emulated_cuda.cpp */
#define FAULT() if (int fault_ = emulated_fault()) return fault_
enum { ok = 0, compilation = 6, internal = 11, cancelled = 16 };

API nvrtcVersion(int *major, int *minor) {
    FAULT();
    return *major = 13, *minor = 0, ok;
}
extern "C" __attribute__((visibility("default"))) const char *nvrtcGetErrorString(int result) {
    if (result == compilation) return "NVRTC_ERROR_COMPILATION";
    return result ? "NVRTC error" : "NVRTC_SUCCESS";
}
API nvrtcGetNumSupportedArchs(int *count) {
    FAULT();
    return *count = 6, ok;
}
API nvrtcGetSupportedArchs(int *archs) {
    FAULT();
    static const int all[] = {80, 86, 89, 90, 100, 120};
    return memcpy(archs, all, sizeof all), ok;
}
API nvrtcCreateProgram(Program *program, const char *source, const char *name, int count,
                       const char *const *texts, const char *const *names) {
    FAULT();
    *program = new _nvrtcProgram{source, name ? name : "default", "", "", {}, nullptr, nullptr};
    for (int i = 0; i < count; i++) (*program)->headers[names[i]] = texts[i];
    return ok;
}
API nvrtcDestroyProgram(Program *program) { return delete *program, *program = nullptr, ok; }
API nvrtcSetFlowCallback(Program p, int (*flow)(void *, void *), void *payload) {
    FAULT();
    return p->flow = flow, p->payload = payload, ok;
}

static bool write_file(const std::string &path, const std::string &text) {
    FILE *file = fopen(path.c_str(), "wb");
    bool good = file && fwrite(text.data(), 1, text.size(), file) == text.size();
    if (file) fclose(file);
    return good;
}

static std::string read_file(const std::string &path) {
    std::string text;
    char bytes[65536];
    FILE *file = fopen(path.c_str(), "rb");
    while (file) {
        size_t n = fread(bytes, 1, sizeof bytes, file);
        if (!n) break;
        text.append(bytes, n);
    }
    if (file) fclose(file);
    return text;
}

/* "FILE:LINE:COLUMN: error: " as NVRTC has it, "FILE(LINE): error: ". */
static std::string nvrtc_style(const std::string &log) {
    std::string out;
    for (size_t at = 0; at < log.size();) {
        size_t end = log.find('\n', at);
        std::string line = log.substr(at, end == std::string::npos ? end : end - at);
        char file[256];
        int number, column, used = 0;
        if (sscanf(line.c_str(), "%255[^:]:%d:%d: %n", file, &number, &column, &used) == 3 && used)
            line = file + ("(" + std::to_string(number)) + "): " + line.substr((size_t)used);
        out += line + "\n";
        at = end == std::string::npos ? log.size() : end + 1;
    }
    return out;
}

/* The architecture of --gpu-architecture=sm_90a as CAIRN_ARCH has it, 900. */
static std::string arch_of(int count, const char *const *options) {
    int number = 90;
    for (int i = 0; i < count; i++) sscanf(options[i], "--gpu-architecture=sm_%d", &number);
    return std::to_string(number * 10);
}

static std::string own_path() {
    Dl_info info;
    return dladdr(reinterpret_cast<const void *>(&nvrtcVersion), &info) ? info.dli_fname : "";
}

static std::string command(const std::string &folder, const std::string &arch) {
    std::string flags = SIMT_CXX " -std=c++17 -Og -g1 -w -shared -fPIC -fno-strict-aliasing"
                        " -ffp-contract=off -fno-tree-sra" /* gcc 12 */
                        " -DCAIRN_SIMT=1 -DSIMT_KERNEL";
#ifdef SIMT_RACE
    flags += " -fsanitize=thread --param=tsan-instrument-func-entry-exit=0";
    const char *sanitizer = "-fno-sanitize=all";
#else
    const char *sanitizer = "";
    flags += " -ftrivial-auto-var-init=pattern";
    if (dlsym(RTLD_DEFAULT, "__asan_init")) flags += " -fsanitize=address";
#endif
    std::string object = folder + "/kernel.o";
    flags += " -DCAIRN_ARCH=" + arch + " -I" + folder + " -I" SIMT_FOLDER " -include simt_core.h";
    return flags + " -c -x c++ " + folder + "/kernel.cpp -o " + object + " 2>" + folder +
           "/log && " + SIMT_CXX " -shared " + sanitizer + " " + object + " " + own_path() + " -o " + folder +
           "/kernel.so 2>>" + folder + "/log";
}

/* The emulation's half of what a kernel is made of. */
static std::string emulation() {
    return read_file(SIMT_FOLDER "/simt_core.h") + read_file(SIMT_FOLDER "/simt_device.h") +
           read_file(SIMT_FOLDER "/simt_race.h");
}

/* FNV-1a, of all that the library depends on. */
static std::string digest(const Program p, const std::string &command_line) {
    uint64_t h = 14695981039346656037u;
    std::string all = command_line + emulation() + p->source;
    for (const auto &header : p->headers) all += header.first + header.second;
    for (unsigned char c : all) h = (h ^ c) * 1099511628211u;
    char text[32];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)h);
    return text;
}

static int build(Program p, const std::string &folder, const std::string &arch) {
    bool written = write_file(folder + "/kernel.cpp", p->source);
    for (const auto &header : p->headers) {
        size_t room = header.first.find('/');
        if (room != std::string::npos) mkdir((folder + "/" + header.first.substr(0, room)).c_str(), 0755);
        written = write_file(folder + "/" + header.first, header.second) && written;
    }
    if (!written) return p->log = "cannot write to " + folder, internal;
    int status = system(command(folder, arch).c_str());
    p->log = nvrtc_style(read_file(folder + "/log"));
    p->image = status ? "" : read_file(folder + "/kernel.so");
    return status ? compilation : ok;
}

/* What was compiled before is kept in CAIRN_SIMT_KERNELS, if that names a folder. */
API nvrtcCompileProgram(Program p, int count, const char *const *options) {
    FAULT();
    if (p->flow && p->flow(p->payload, nullptr)) return cancelled;
    const char *store = getenv("CAIRN_SIMT_KERNELS");
    std::string arch = arch_of(count, options);
    std::string kept = store ? std::string(store) + "/" + digest(p, command("", arch)) + ".so" : "";
    if (store && !(p->image = read_file(kept)).empty()) return ok;
    char folder[] = "/tmp/cairn_kernel_XXXXXX";
    if (!mkdtemp(folder)) return p->log = "no temporary folder", internal;
    int result = build(p, folder, arch);
    if (!result && store) {
        std::string part = kept + "." + std::to_string(getpid());
        if (!write_file(part, p->image) || rename(part.c_str(), kept.c_str())) unlink(part.c_str());
    }
    if (system((std::string("rm -rf ") + folder).c_str())) return internal;
    return result;
}

API nvrtcGetProgramLogSize(Program p, size_t *bytes) { return *bytes = p->log.size() + 1, ok; }
API nvrtcGetProgramLog(Program p, char *log) {
    return memcpy(log, p->log.c_str(), p->log.size() + 1), ok;
}
API nvrtcGetCUBINSize(Program p, size_t *bytes) {
    FAULT();
    return *bytes = p->image.size(), ok;
}
API nvrtcGetCUBIN(Program p, char *cubin) {
    FAULT();
    return memcpy(cubin, p->image.data(), p->image.size()), ok;
}
API nvrtcGetPTXSize(Program, size_t *bytes) {
    FAULT();
    return *bytes = 0, ok;
}
API nvrtcGetPTX(Program, char *) {
    FAULT();
    return internal;
}
API nvrtcAddNameExpression(Program, const char *) {
    FAULT();
    return internal;
}
API nvrtcGetLoweredName(Program, const char *, const char **) {
    FAULT();
    return internal;
}

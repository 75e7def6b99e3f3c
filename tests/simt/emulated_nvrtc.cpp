/* The NVRTC half of the emulated driver. A program's cubin is its text: of a model's programs a test launches few, and
 * these are compiled when they first are (emulated_library), by the host's C++ compiler into a shared library against
 * this one. */
#include "emulated.h"
#include "simt_core.h"

#include <dlfcn.h>
#include <elf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>

struct Text { /* what a kernel is made of */
    std::string arch, source;
    std::map<std::string, std::string> headers;
};

struct _nvrtcProgram {
    Text text;
    std::string image;
    int (*flow)(void *, void *);
    void *payload;
};

typedef _nvrtcProgram *Program;
#define API extern "C" __attribute__((visibility("default"))) int
#define FAULT() if (int fault_ = emulated_fault()) return fault_
enum { ok = 0, internal = 11, cancelled = 16 };

API nvrtcVersion(int *major, int *minor) {
    FAULT();
    return *major = 13, *minor = 0, ok;
}
extern "C" __attribute__((visibility("default"))) const char *nvrtcGetErrorString(int result) {
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
API nvrtcCreateProgram(Program *program, const char *source, const char *, int count,
                       const char *const *texts, const char *const *names) {
    FAULT();
    *program = new _nvrtcProgram{{"", source, {}}, "", nullptr, nullptr};
    for (int i = 0; i < count; i++) (*program)->text.headers[names[i]] = texts[i];
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

/* ---- the cubin: a head of ELF that says where it ends, and strings, each behind its length ---- */

static void append(std::string &to, const std::string &text) {
    const uint64_t bytes = text.size();
    to.append(reinterpret_cast<const char *>(&bytes), sizeof bytes) += text;
}

static std::string image_of(const Text &t) {
    std::string image(sizeof(Elf64_Ehdr), '\0');
    Elf64_Ehdr head = {};
    append(image, t.arch);
    append(image, t.source);
    for (const auto &header : t.headers) append(image, header.first), append(image, header.second);
    memcpy(head.e_ident, ELFMAG, SELFMAG);
    head.e_shoff = image.size();
    return image.replace(0, sizeof head, reinterpret_cast<const char *>(&head), sizeof head);
}

size_t emulated_image_bytes(const void *image) {
    Elf64_Ehdr head;
    memcpy(&head, image, sizeof head);
    return memcmp(head.e_ident, ELFMAG, SELFMAG) ? 0 : head.e_shoff;
}

static Text text_of(const std::string &image) {
    size_t at = sizeof(Elf64_Ehdr);
    auto next = [&] {
        uint64_t bytes;
        memcpy(&bytes, image.data() + at, sizeof bytes);
        at += sizeof bytes + bytes;
        return image.substr(at - bytes, bytes);
    };
    Text t;
    t.arch = next(), t.source = next();
    while (at < image.size()) {
        const std::string name = next();
        t.headers[name] = next();
    }
    return t;
}

/* ---- the compiler ---- */

/* The emulation's half of what a kernel is made of. */
static std::string emulation() {
    return read_file(SIMT_FOLDER "/simt_core.h") + read_file(SIMT_FOLDER "/simt_device.h") +
           read_file(SIMT_FOLDER "/simt_race.h");
}

/* FNV-1a, of all that the library depends on. */
static std::string digest(const std::string &image, const std::string &command_line) {
    uint64_t h = 14695981039346656037u;
    for (unsigned char c : command_line + emulation() + image) h = (h ^ c) * 1099511628211u;
    char text[32];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)h);
    return text;
}

/* The library, or "" behind a message. */
static std::string build(const Text &t, const std::string &folder) {
    bool written = write_file(folder + "/kernel.cpp", t.source);
    for (const auto &header : t.headers) {
        size_t room = header.first.find('/');
        if (room != std::string::npos) mkdir((folder + "/" + header.first.substr(0, room)).c_str(), 0755);
        written = write_file(folder + "/" + header.first, header.second) && written;
    }
    if (!written) return fprintf(stderr, "emulated NVRTC: cannot write to %s\n", folder.c_str()), "";
    if (!system(command(folder, t.arch).c_str())) return read_file(folder + "/kernel.so");
    return fprintf(stderr, "emulated NVRTC: %s\n", read_file(folder + "/log").c_str()), "";
}

/* What was compiled before is kept in CAIRN_SIMT_KERNELS, if that names a folder. */
std::string emulated_library(const std::string &image) {
    const Text text = text_of(image);
    const char *store = getenv("CAIRN_SIMT_KERNELS");
    const std::string kept = store ? std::string(store) + "/" + digest(image, command("", text.arch)) + ".so" : "";
    std::string library = store ? read_file(kept) : "";
    char folder[] = "/tmp/cairn_kernel_XXXXXX";
    if (!library.empty()) return library;
    if (!mkdtemp(folder)) return fprintf(stderr, "emulated NVRTC: no temporary folder\n"), "";
    library = build(text, folder);
    if (!library.empty() && store) {
        const std::string part = kept + "." + std::to_string(getpid());
        if (!write_file(part, library) || rename(part.c_str(), kept.c_str())) unlink(part.c_str());
    }
    if (system((std::string("rm -rf ") + folder).c_str()))
        fprintf(stderr, "emulated NVRTC: %s is left\n", folder);
    return library;
}

API nvrtcCompileProgram(Program p, int count, const char *const *options) {
    FAULT();
    if (p->flow && p->flow(p->payload, nullptr)) return cancelled;
    p->text.arch = arch_of(count, options);
    p->image = image_of(p->text);
    return ok;
}

API nvrtcGetProgramLogSize(Program, size_t *bytes) { return *bytes = 1, ok; }
API nvrtcGetProgramLog(Program, char *log) { return *log = '\0', ok; }
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

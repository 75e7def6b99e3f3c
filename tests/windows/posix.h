/* posix: what tests ask of POSIX, on Windows. tap.h brings it there. */
#ifndef POSIX_H
#define POSIX_H

#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>
#undef near
#undef far
#undef FAR

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The C library's own headers for these take the names of tests' functions. */
#define mkdir(path, mode) (CreateDirectoryA(path, NULL) ? 0 : -1)
#define rmdir(path) (RemoveDirectoryA(path) ? 0 : -1)
#define aligned_alloc(alignment, bytes) malloc(bytes) /* aligned to 16 */
#define posix_memalign(out, alignment, bytes) (!(*(out) = malloc(bytes)))

__attribute__((unused)) static int setenv(const char *name, const char *value, int replace) {
    return !replace && getenv(name) ? 0 : _putenv_s(name, value);
}
__attribute__((unused)) static int unsetenv(const char *name) { return _putenv_s(name, ""); }

/* Of this process, in CLOCKS_PER_SEC: the C library's is the time that passes, with whatever else runs. */
__attribute__((unused)) static clock_t posix_clock(void) {
    FILETIME made, ended;
    ULARGE_INTEGER kernel, user; /* as two halves they are what a FILETIME is */
    if (!GetProcessTimes(GetCurrentProcess(), &made, &ended, (FILETIME *)&kernel, (FILETIME *)&user)) return -1;
    return (clock_t)((kernel.QuadPart + user.QuadPart) / (10000000 / CLOCKS_PER_SEC));
}
#define clock() posix_clock()

/* Of names in folders that others write to as well: wine numbers the processes of each of its prefixes alike,
 * so that two runs at once would take each other's files. */
__attribute__((unused)) static int posix_process_id(void) {
    const char *run = getenv("CAIRN_TEST_PROCESS");
    return run ? atoi(run) : (int)GetCurrentProcessId();
}
#define os_process_id() posix_process_id()

/* Ends in XXXXXX, as the function of that name wants it. */
__attribute__((unused)) static char *mkdtemp(char *path) {
    size_t end = strlen(path) - 6;
    for (unsigned i = (unsigned)posix_process_id(); i < UINT32_MAX; i++) {
        snprintf(path + end, 7, "%06u", i % 1000000);
        if (!mkdir(path, 0700)) return path;
        if (GetLastError() != ERROR_ALREADY_EXISTS) break;
    }
    return NULL;
}

/* The name alone: an open file could be neither written anew nor replaced. */
#define mkstemp(path) tap_mkstemp(path)
__attribute__((unused)) static int tap_mkstemp(char *path) {
    return mkdtemp(path) && !rmdir(path) ? 0 : -1;
}

/* The emulated GPU is a library of Linux. */
#define RTLD_NOW 0
#define dlopen(path, mode) ((void)(path), (void *)NULL)
#define dlsym(handle, name) ((void)(handle), (void *)NULL)

/* Memory that is address space alone until it is written. */
enum { PROT_READ = 1, PROT_WRITE = 2, MAP_PRIVATE = 4, MAP_ANONYMOUS = 8, MAP_NORESERVE = 16 };
#define MAP_FAILED NULL
__attribute__((unused)) static void *mmap(void *at, size_t bytes, int access, int flags, int file,
                                          int from) {
    (void)access, (void)flags, (void)file, (void)from;
    return VirtualAlloc(at, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
}
__attribute__((unused)) static int munmap(void *memory, size_t bytes) {
    (void)bytes;
    return !VirtualFree(memory, 0, MEM_RELEASE);
}

#endif

/* posix: what tests ask of POSIX, on Windows. tap.h brings it there. */
#ifndef POSIX_H
#define POSIX_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The C library's own headers for these take the names of tests' functions. */
#define mkdir(path, mode) (CreateDirectoryA(path, NULL) ? 0 : -1)
#define rmdir(path) (RemoveDirectoryA(path) ? 0 : -1)
#define aligned_alloc(alignment, bytes) malloc(bytes) /* aligned to 16 */
#define posix_memalign(out, alignment, bytes) (!(*(out) = malloc(bytes)))

__attribute__((unused)) static int setenv(const char *name, const char *value, int replace) {
    return !replace && getenv(name) ? 0 : _putenv_s(name, value);
}
__attribute__((unused)) static int unsetenv(const char *name) { return _putenv_s(name, ""); }

/* Ends in XXXXXX, as the function of that name wants it. */
__attribute__((unused)) static char *mkdtemp(char *path) {
    size_t end = strlen(path) - 6;
    for (unsigned i = GetCurrentProcessId(); i < UINT32_MAX; i++) {
        snprintf(path + end, 7, "%06u", i % 1000000);
        if (!mkdir(path, 0700)) return path;
        if (GetLastError() != ERROR_ALREADY_EXISTS) break;
    }
    return NULL;
}

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

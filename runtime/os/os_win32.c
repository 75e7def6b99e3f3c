/* os_win32: the raw calls of `os` on Windows. Paths are UTF-8 outside, UTF-16 at the system. */

static int os_win32_error(void) {
    switch (GetLastError()) {
    case ERROR_FILE_NOT_FOUND: case ERROR_PATH_NOT_FOUND: case ERROR_INVALID_NAME: return -ENOENT;
    case ERROR_ACCESS_DENIED: return -EACCES;
    case ERROR_SHARING_VIOLATION: case ERROR_LOCK_VIOLATION: return -EBUSY;
    case ERROR_FILE_EXISTS: case ERROR_ALREADY_EXISTS: return -EEXIST;
    case ERROR_DISK_FULL: case ERROR_HANDLE_DISK_FULL: return -ENOSPC;
    case ERROR_WRITE_PROTECT: return -EROFS;
    case ERROR_TOO_MANY_OPEN_FILES: return -EMFILE;
    case ERROR_NOT_ENOUGH_MEMORY: case ERROR_OUTOFMEMORY: return -ENOMEM;
    case ERROR_DIRECTORY: return -ENOTDIR;
    default: return -EIO;
    }
}

static bool os_win32_wide(const char *path, wchar_t *out /* [OS_PATH_BYTES] */) {
    return MultiByteToWideChar(CP_UTF8, 0, path, -1, out, OS_PATH_BYTES) > 0;
}

static bool os_win32_narrow(const wchar_t *path, char *out, size_t bytes) {
    int limit = bytes > INT_MAX ? INT_MAX : (int)bytes;
    return WideCharToMultiByte(CP_UTF8, 0, path, -1, out, limit, NULL, NULL) > 0;
}

/* ---- files ----------------------------------------------------------------------------------- */

static int64_t os_win32_open(const char *path, int mode) {
    wchar_t wide[OS_PATH_BYTES];
    bool create = mode != OS_OPEN_READ;
    HANDLE file;
    if (!os_win32_wide(path, wide)) return -ENAMETOOLONG;
    file = CreateFileW(wide, create ? GENERIC_WRITE : GENERIC_READ,
                       create ? FILE_SHARE_READ
                              : FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL,
                       create ? CREATE_NEW : OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, NULL);
    return file == INVALID_HANDLE_VALUE ? os_win32_error() : (int64_t)(intptr_t)file;
}

static HANDLE os_win32_handle(int64_t file) { return (HANDLE)(intptr_t)file; }
static DWORD os_win32_chunk(size_t bytes) { return bytes > 0x40000000 ? 0x40000000 : (DWORD)bytes; }

static int64_t os_win32_read(int64_t file, void *data, size_t bytes) {
    DWORD got = 0;
    if (ReadFile(os_win32_handle(file), data, os_win32_chunk(bytes), &got, NULL)) return got;
    return GetLastError() == ERROR_BROKEN_PIPE ? 0 : os_win32_error();
}

static int64_t os_win32_read_at(int64_t file, void *data, size_t bytes, uint64_t at) {
    DWORD got = 0;
    OVERLAPPED place;
    memset(&place, 0, sizeof place);
    place.Offset = (DWORD)at;
    place.OffsetHigh = (DWORD)(at >> 32);
    if (ReadFile(os_win32_handle(file), data, os_win32_chunk(bytes), &got, &place)) return got;
    return GetLastError() == ERROR_HANDLE_EOF ? 0 : os_win32_error();
}

static int64_t os_win32_write(int64_t file, const void *data, size_t bytes) {
    DWORD put = 0;
    if (WriteFile(os_win32_handle(file), data, os_win32_chunk(bytes), &put, NULL)) return put;
    return os_win32_error();
}

static int os_win32_sync(int64_t file) {
    return FlushFileBuffers(os_win32_handle(file)) ? 0 : os_win32_error();
}

static int os_win32_close(int64_t file) {
    return CloseHandle(os_win32_handle(file)) ? 0 : os_win32_error();
}

/* A FILETIME counts 100 ns steps since 1601. */
static int64_t os_win32_time_us(FILETIME t) {
    int64_t ticks = (int64_t)((uint64_t)t.dwHighDateTime << 32 | t.dwLowDateTime);
    return ticks / 10 - INT64_C(11644473600000000);
}

static int os_win32_file_info(int64_t file, os_file_info *out) {
    BY_HANDLE_FILE_INFORMATION info;
    if (!GetFileInformationByHandle(os_win32_handle(file), &info)) return os_win32_error();
    out->size = (int64_t)((uint64_t)info.nFileSizeHigh << 32 | info.nFileSizeLow);
    out->mtime_us = os_win32_time_us(info.ftLastWriteTime);
    out->identity = (uint64_t)info.nFileIndexHigh << 32 | info.nFileIndexLow;
    out->directory = (info.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY) != 0;
    out->regular = !out->directory && GetFileType(os_win32_handle(file)) == FILE_TYPE_DISK;
    return 0;
}

static int os_win32_info(const char *path, os_file_info *out) {
    wchar_t wide[OS_PATH_BYTES];
    HANDLE file;
    int error;
    if (!os_win32_wide(path, wide)) return -ENAMETOOLONG;
    file = CreateFileW(wide, 0, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL,
                       OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS, NULL);
    if (file == INVALID_HANDLE_VALUE) return os_win32_error();
    error = os_win32_file_info((int64_t)(intptr_t)file, out);
    CloseHandle(file);
    return error;
}

/* Virus scanners and indexers hold a fresh file for a moment: try again for some 200 ms. */
static int os_win32_rename(const char *from, const char *to) {
    static const DWORD wait_ms[] = {0, 5, 10, 20, 50, 100};
    wchar_t wide_from[OS_PATH_BYTES], wide_to[OS_PATH_BYTES];
    int error = -ENAMETOOLONG;
    size_t i;
    if (!os_win32_wide(from, wide_from) || !os_win32_wide(to, wide_to)) return error;
    for (i = 0; i < BASE_COUNT(wait_ms); i++) {
        Sleep(wait_ms[i]);
        if (MoveFileExW(wide_from, wide_to, MOVEFILE_REPLACE_EXISTING)) return 0;
        error = os_win32_error();
        if (error != -EACCES && error != -EBUSY) break;
    }
    return error;
}

static int os_win32_remove(const char *path) {
    wchar_t wide[OS_PATH_BYTES];
    if (!os_win32_wide(path, wide)) return -ENAMETOOLONG;
    return DeleteFileW(wide) ? 0 : os_win32_error();
}

/* What a process has open for writing, shared for reading only, cannot be deleted. */
static int os_win32_remove_unused(const char *path) { return os_win32_remove(path); }
static int os_win32_sync_directory(const char *path) { (void)path; return 0; }

static int os_win32_make_directory(const char *path) {
    wchar_t wide[OS_PATH_BYTES];
    if (!os_win32_wide(path, wide)) return -ENAMETOOLONG;
    return CreateDirectoryW(wide, NULL) ? 0 : os_win32_error();
}

static int os_win32_touch(const char *path) {
    wchar_t wide[OS_PATH_BYTES];
    FILETIME now;
    HANDLE file;
    int error = 0;
    if (!os_win32_wide(path, wide)) return -ENAMETOOLONG;
    file = CreateFileW(wide, FILE_WRITE_ATTRIBUTES,
                       FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL,
                       OPEN_EXISTING, 0, NULL);
    if (file == INVALID_HANDLE_VALUE) return os_win32_error();
    GetSystemTimeAsFileTime(&now);
    if (!SetFileTime(file, NULL, NULL, &now)) error = os_win32_error();
    CloseHandle(file);
    return error;
}

static int os_win32_list(const char *directory, os_list_entry entry, void *user) {
    char pattern[OS_PATH_BYTES], name[OS_PATH_BYTES];
    wchar_t wide[OS_PATH_BYTES];
    WIN32_FIND_DATAW found;
    HANDLE search;
    bool more = true;
    if ((size_t)snprintf(pattern, sizeof pattern, "%s\\*", directory) >= sizeof pattern ||
        !os_win32_wide(pattern, wide)) return -ENAMETOOLONG;
    search = FindFirstFileW(wide, &found);
    if (search == INVALID_HANDLE_VALUE) return os_win32_error();
    do {
        if (!os_win32_narrow(found.cFileName, name, sizeof name)) continue;
        if (strcmp(name, ".") && strcmp(name, "..")) more = entry(user, name);
    } while (more && FindNextFileW(search, &found));
    FindClose(search);
    return 0;
}

static void *os_win32_map(int64_t file, size_t bytes) {
    HANDLE mapping = CreateFileMappingW(os_win32_handle(file), NULL, PAGE_READONLY, 0, 0, NULL);
    void *address;
    if (!mapping) return NULL;
    address = MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, bytes);
    CloseHandle(mapping); /* the view keeps it */
    return address;
}

static void os_win32_unmap(void *address, size_t bytes) {
    (void)bytes;
    UnmapViewOfFile(address);
}

/* ---- dynamic libraries ----------------------------------------------------------------------- */

/* Without the error mode a missing dependency would put a dialog before the user. */
static void *os_win32_library_open(const char *path, bool loaded_only, char *why,
                                   size_t why_bytes) {
    wchar_t wide[OS_PATH_BYTES];
    DWORD mode = 0;
    HMODULE library = NULL;
    if (os_win32_wide(path, wide)) {
        bool placed = strchr(path, '\\') || strchr(path, '/'); /* the flag wants a full path */
        SetThreadErrorMode(SEM_FAILCRITICALERRORS | SEM_NOOPENFILEERRORBOX, &mode);
        if (loaded_only) GetModuleHandleExW(0, wide, &library);
        else library = LoadLibraryExW(wide, NULL, placed ? LOAD_WITH_ALTERED_SEARCH_PATH : 0);
        if (why_bytes) snprintf(why, why_bytes, library ? "" : "error %lu", GetLastError());
        SetThreadErrorMode(mode, NULL);
    }
    return (void *)library;
}

static os_function os_win32_library_symbol(void *library, const char *name) {
    return (os_function)GetProcAddress((HMODULE)library, name);
}

static void os_win32_library_close(void *library) { FreeLibrary((HMODULE)library); }

static bool os_library_path(os_function function, char *path, size_t path_bytes) {
    wchar_t wide[OS_PATH_BYTES];
    HMODULE library;
    LPCWSTR address;
    DWORD size;
    memcpy(&address, &function, sizeof address);
    if (!GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS |
                            GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT, address, &library))
        return false;
    size = GetModuleFileNameW(library, wide, OS_PATH_BYTES);
    return size > 0 && size < OS_PATH_BYTES && os_win32_narrow(wide, path, path_bytes);
}

/* ---- threads --------------------------------------------------------------------------------- */

static DWORD WINAPI os_win32_thread_main(LPVOID context) {
    os_thread *thread = (os_thread *)context;
    thread->run(thread->context);
    return 0;
}

static int os_win32_thread_start(void *memory, size_t stack_bytes, void (*run)(void *),
                                 void *context) {
    os_thread *thread = (os_thread *)memory;
    thread->run = run;
    thread->context = context;
    thread->handle = CreateThread(NULL, stack_bytes, os_win32_thread_main, thread,
                                  STACK_SIZE_PARAM_IS_A_RESERVATION, NULL);
    return thread->handle ? 0 : os_win32_error();
}

static void os_thread_join(os_thread *thread) {
    WaitForSingleObject(thread->handle, INFINITE);
    CloseHandle(thread->handle);
}

static bool os_thread_is_self(const os_thread *thread) {
    return GetThreadId(thread->handle) == GetCurrentThreadId();
}

static void os_thread_yield(void) { SwitchToThread(); }
static void os_thread_lower(void) {
    SetThreadPriority(GetCurrentThread(), THREAD_PRIORITY_BELOW_NORMAL);
}

static void os_mutex_init(os_mutex *m) { InitializeSRWLock(m); }
static void os_mutex_lock(os_mutex *m) { AcquireSRWLockExclusive(m); }
static void os_mutex_unlock(os_mutex *m) { ReleaseSRWLockExclusive(m); }
static void os_mutex_destroy(os_mutex *m) { (void)m; }

static void os_cond_init(os_cond *c) { InitializeConditionVariable(c); }
static void os_cond_wait(os_cond *c, os_mutex *m) {
    SleepConditionVariableSRW(c, m, INFINITE, 0);
}
static void os_cond_wait_us(os_cond *c, os_mutex *m, int64_t us) {
    SleepConditionVariableSRW(c, m, (DWORD)((us + 999) / 1000), 0);
}
static void os_cond_broadcast(os_cond *c) { WakeAllConditionVariable(c); }
static void os_cond_destroy(os_cond *c) { (void)c; }

/* ---- clocks, processors, process ------------------------------------------------------------- */

static int64_t os_now_us(void) {
    LARGE_INTEGER now, rate;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&rate);
    return now.QuadPart / rate.QuadPart * 1000000 +
           now.QuadPart % rate.QuadPart * 1000000 / rate.QuadPart;
}

static int64_t os_wall_us(void) {
    FILETIME now;
    GetSystemTimeAsFileTime(&now);
    return os_win32_time_us(now);
}

BASE_UNUSED static int64_t os_thread_us(void) {
    FILETIME made, ended;
    ULARGE_INTEGER kernel, user; /* as two halves they are what a FILETIME is */
    if (!GetThreadTimes(GetCurrentThread(), &made, &ended, (FILETIME *)&kernel, (FILETIME *)&user))
        return os_now_us();
    return (int64_t)((kernel.QuadPart + user.QuadPart) / 10);
}

static void os_sleep_us(int64_t us) { Sleep((DWORD)((us + 999) / 1000)); }

static int os_cpu_count(void) {
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return info.dwNumberOfProcessors < 1 ? 1 : (int)info.dwNumberOfProcessors;
}

static int64_t os_memory_bytes(void) {
    MEMORYSTATUSEX status;
    status.dwLength = sizeof status;
    return GlobalMemoryStatusEx(&status) ? (int64_t)status.ullAvailPageFile : INT64_MAX;
}

BASE_UNUSED static int os_process_id(void) { return (int)GetCurrentProcessId(); }

/* getenv would answer in the system's code page. Each name, a literal, has its place for the value,
 * which stands until the variable changes, as getenv's does. */
static const char *os_env(const char *name) {
    static os_mutex lock = OS_MUTEX_INITIAL;
    static struct { const char *name; char value[OS_PATH_BYTES]; } known[32];
    wchar_t key[OS_PATH_BYTES], wide[OS_PATH_BYTES];
    char value[OS_PATH_BYTES];
    size_t i = 0;
    DWORD size = os_win32_wide(name, key) ? GetEnvironmentVariableW(key, wide, OS_PATH_BYTES) : 0;
    if (!size || size >= OS_PATH_BYTES || !os_win32_narrow(wide, value, sizeof value)) return NULL;
    os_mutex_lock(&lock);
    while (i + 1 < BASE_COUNT(known) && known[i].name && strcmp(known[i].name, name)) i++;
    known[i].name = name;
    if (strcmp(known[i].value, value)) snprintf(known[i].value, sizeof value, "%s", value);
    os_mutex_unlock(&lock);
    return known[i].value;
}

static bool os_executable_path(char *path, size_t path_bytes) {
    wchar_t wide[OS_PATH_BYTES];
    DWORD size = GetModuleFileNameW(NULL, wide, OS_PATH_BYTES);
    return size > 0 && size < OS_PATH_BYTES && os_win32_narrow(wide, path, path_bytes);
}

static bool os_before_exit(void (*run)(void)) { (void)run; return false; }

static os_call_table os_calls = {
    os_win32_open, os_win32_read, os_win32_read_at, os_win32_write, os_win32_sync,
    os_win32_close, os_win32_info,
    os_win32_file_info, os_win32_rename, os_win32_remove, os_win32_remove_unused,
    os_win32_sync_directory, os_win32_make_directory, os_win32_touch,
    os_win32_list, os_win32_map, os_win32_unmap, os_win32_library_open, os_win32_library_symbol,
    os_win32_library_close, os_win32_thread_start,
};

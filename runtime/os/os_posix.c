/* os_posix: the raw calls of `os` on Linux and other POSIX systems. */

/* ---- files ----------------------------------------------------------------------------------- */

/* Whether the file, created or found, is ours: nobody else has it so, and its name still stands. A
 * file system without locks lets everyone have it. */
static bool os_posix_lock(int file) {
    struct stat s;
    if (flock(file, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) return false;
    return !fstat(file, &s) && s.st_nlink > 0;
}

/* To read never waits: for the other end of a pipe, or for a device. */
static int64_t os_posix_open(const char *path, int mode) {
    bool create = mode != OS_OPEN_READ;
    int flags = create ? O_WRONLY | O_CREAT | O_EXCL : O_RDONLY | O_NONBLOCK | O_NOCTTY;
    int file = open(path, flags | O_CLOEXEC, mode == OS_OPEN_PRIVATE ? 0600 : 0666);
    if (file < 0) return -errno;
    if (!create || os_posix_lock(file)) return file;
    close(file); /* remove_unused came between, and takes it */
    return -EEXIST;
}

static int64_t os_posix_read(int64_t file, void *data, size_t bytes) {
    ssize_t got = read((int)file, data, bytes);
    return got < 0 ? -errno : (int64_t)got;
}

static int64_t os_posix_read_at(int64_t file, void *data, size_t bytes, uint64_t at) {
    ssize_t got = pread((int)file, data, bytes, (off_t)at);
    return got < 0 ? -errno : (int64_t)got;
}

static int64_t os_posix_write(int64_t file, const void *data, size_t bytes) {
    ssize_t put = write((int)file, data, bytes);
    return put < 0 ? -errno : (int64_t)put;
}

static int os_posix_sync(int64_t file) { return fsync((int)file) ? -errno : 0; }
static int os_posix_close(int64_t file) { return close((int)file) ? -errno : 0; }
static int os_posix_rename(const char *from, const char *to) {
    return rename(from, to) ? -errno : 0;
}
static int os_posix_remove(const char *path) { return unlink(path) ? -errno : 0; }
static int os_posix_remove_unused(const char *path) {
    int file = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC), error = 0;
    if (file < 0) return -errno;
    if (flock(file, LOCK_EX | LOCK_NB)) error = -EBUSY;
    else if (unlink(path)) error = -errno;
    close(file);
    return error;
}

static int os_posix_sync_directory(const char *path) {
    int file = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), error = 0;
    if (file < 0) return 0;
    if (fsync(file) && errno == EIO) error = -EIO;
    close(file);
    return error;
}

static int os_posix_make_directory(const char *path) { return mkdir(path, 0777) ? -errno : 0; }
static int os_posix_touch(const char *path) {
    return utimensat(AT_FDCWD, path, NULL, 0) ? -errno : 0;
}

static void os_posix_fill(const struct stat *s, os_file_info *out) {
    out->size = (int64_t)s->st_size;
    out->mtime_us = (int64_t)s->st_mtim.tv_sec * 1000000 + s->st_mtim.tv_nsec / 1000;
    out->identity = (uint64_t)s->st_ino;
    out->regular = S_ISREG(s->st_mode);
    out->directory = S_ISDIR(s->st_mode);
}

static int os_posix_info(const char *path, os_file_info *out) {
    struct stat s;
    if (stat(path, &s)) return -errno;
    os_posix_fill(&s, out);
    return 0;
}

static int os_posix_file_info(int64_t file, os_file_info *out) {
    struct stat s;
    if (fstat((int)file, &s)) return -errno;
    os_posix_fill(&s, out);
    return 0;
}

static int os_posix_list(const char *directory, os_list_entry entry, void *user) {
    DIR *stream = opendir(directory);
    const struct dirent *e;
    bool more = true;
    if (!stream) return -errno;
    while (more && (e = readdir(stream)) != NULL)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) more = entry(user, e->d_name);
    closedir(stream);
    return 0;
}

static void *os_posix_map(int64_t file, size_t bytes) {
    void *address = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, (int)file, 0);
    return address == MAP_FAILED ? NULL : address;
}

static void os_posix_unmap(void *address, size_t bytes) { munmap(address, bytes); }

/* ---- dynamic libraries ----------------------------------------------------------------------- */

static void *os_posix_library_open(const char *path, bool loaded_only, char *why,
                                   size_t why_bytes) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | (loaded_only ? RTLD_NOLOAD : 0));
    const char *text = library ? "" : dlerror();
    if (why_bytes) snprintf(why, why_bytes, "%s", text ? text : "not loaded");
    return library;
}

/* ISO C has no cast from void * to a function; POSIX promises that the bits are the same. */
static os_function os_posix_library_symbol(void *library, const char *name) {
    void *address = dlsym(library, name);
    os_function function;
    memcpy(&function, &address, sizeof function);
    return function;
}

static void os_posix_library_close(void *library) { dlclose(library); }

static bool os_library_path(os_function function, char *path, size_t path_bytes) {
    void *address;
    Dl_info info;
    memcpy(&address, &function, sizeof address);
    if (!dladdr(address, &info) || !info.dli_fname) return false;
    return (size_t)snprintf(path, path_bytes, "%s", info.dli_fname) < path_bytes;
}

/* ---- threads --------------------------------------------------------------------------------- */

static void *os_posix_thread_main(void *context) {
    os_thread *thread = (os_thread *)context;
    thread->run(thread->context);
    return NULL;
}

static int os_posix_thread_start(void *memory, size_t stack_bytes, void (*run)(void *),
                                 void *context) {
    os_thread *thread = (os_thread *)memory;
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error) return -error;
    if (stack_bytes) pthread_attr_setstacksize(&attributes, stack_bytes);
    thread->run = run;
    thread->context = context;
    error = pthread_create(&thread->id, &attributes, os_posix_thread_main, thread);
    pthread_attr_destroy(&attributes);
    return -error;
}

static void os_thread_join(os_thread *thread) { pthread_join(thread->id, NULL); }
static bool os_thread_is_self(const os_thread *thread) {
    return pthread_equal(thread->id, pthread_self()) != 0;
}
static void os_thread_yield(void) { sched_yield(); }
#ifdef __linux__
enum { OS_FUTEX_WAIT = 128, OS_FUTEX_WAKE = 129 }; /* of this process */
/* `most`: how long to wait, NULL for ever. */
static void os_futex(os_atomic *at, int what, int32_t value, const struct timespec *most) {
    syscall(SYS_futex, at, what, value, most, NULL, 0);
}
#endif
static void os_thread_lower(void) {
#ifdef __linux__
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 10);
#endif
}

static void os_mutex_init(os_mutex *m) { pthread_mutex_init(m, NULL); }
static void os_mutex_lock(os_mutex *m) { pthread_mutex_lock(m); }
static void os_mutex_unlock(os_mutex *m) { pthread_mutex_unlock(m); }
static void os_mutex_destroy(os_mutex *m) { pthread_mutex_destroy(m); }

#ifdef __linux__
/* The C library's condition may lose a wake-up (glibc 2.25 to 2.40, bug 25847). A number that each broadcast changes
 * loses none: who waits has read it under the mutex. */
static void os_cond_init(os_cond *c) { os_atomic_store(&c->changes, 0), os_atomic_store(&c->waiters, 0); }

static void os_cond_rest(os_cond *c, os_mutex *m, const struct timespec *most) {
    const int32_t seen = os_atomic_load(&c->changes);
    os_atomic_add(&c->waiters, 1);
    os_mutex_unlock(m);
    os_futex(&c->changes, OS_FUTEX_WAIT, seen, most);
    os_atomic_add(&c->waiters, -1);
    os_mutex_lock(m);
}

static void os_cond_wait(os_cond *c, os_mutex *m) { os_cond_rest(c, m, NULL); }

static void os_cond_wait_us(os_cond *c, os_mutex *m, int64_t us) {
    const struct timespec most = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    os_cond_rest(c, m, &most);
}

static void os_cond_broadcast(os_cond *c) {
    os_atomic_add(&c->changes, 1);
    if (os_atomic_load(&c->waiters)) os_futex(&c->changes, OS_FUTEX_WAKE, INT_MAX, NULL);
}

static void os_cond_destroy(os_cond *c) { (void)c; }
#else
static void os_cond_init(os_cond *c) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attributes);
    pthread_condattr_destroy(&attributes);
}

static void os_cond_wait(os_cond *c, os_mutex *m) { pthread_cond_wait(c, m); }

static void os_cond_wait_us(os_cond *c, os_mutex *m, int64_t us) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(us / 1000000);
    until.tv_nsec += (long)(us % 1000000) * 1000;
    if (until.tv_nsec >= 1000000000) { until.tv_sec++; until.tv_nsec -= 1000000000; }
    pthread_cond_timedwait(c, m, &until);
}

static void os_cond_broadcast(os_cond *c) { pthread_cond_broadcast(c); }
static void os_cond_destroy(os_cond *c) { pthread_cond_destroy(c); }
#endif

/* ---- clocks, processors, process ------------------------------------------------------------- */

static int64_t os_posix_clock_us(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static int64_t os_now_us(void) { return os_posix_clock_us(CLOCK_MONOTONIC); }
static int64_t os_wall_us(void) { return os_posix_clock_us(CLOCK_REALTIME); }
BASE_UNUSED static int64_t os_thread_us(void) { return os_posix_clock_us(CLOCK_THREAD_CPUTIME_ID); }

static void os_sleep_us(int64_t us) {
    struct timespec t;
    t.tv_sec = (time_t)(us / 1000000);
    t.tv_nsec = (long)(us % 1000000) * 1000;
    nanosleep(&t, NULL);
}

static int os_cpu_count(void) {
    long count = -1;
#ifdef __linux__
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set)) count = CPU_COUNT(&set);
#endif
    if (count < 1) count = sysconf(_SC_NPROCESSORS_ONLN);
    return count < 1 ? 1 : (int)count;
}

/* The number behind `after` in a small file of the system's; -1 when there is none. */
static int64_t os_posix_number_in(const char *path, const char *after) {
    char text[4096];
    const char *at;
    int64_t got, file = os_posix_open(path, OS_OPEN_READ);
    if (file < 0) return -1;
    got = os_posix_read(file, text, sizeof text - 1);
    os_posix_close(file);
    text[got > 0 ? got : 0] = '\0';
    at = strstr(text, after);
    if (at) at += strlen(after) + strspn(at + strlen(after), " \t");
    return at && *at >= '0' && *at <= '9' ? strtoll(at, NULL, 10) : -1;
}

/* What a control group's folder leaves: its limit less what is used and cannot be taken back. */
static int64_t os_posix_group_bytes(const char *folder, bool second) {
    char path[OS_PATH_BYTES + 32];
    int64_t limit, used, files;
    snprintf(path, sizeof path, "%s/%s", folder,
             second ? "memory.max" : "memory.limit_in_bytes");
    if ((limit = os_posix_number_in(path, "")) < 0) return INT64_MAX;
    snprintf(path, sizeof path, "%s/%s", folder,
             second ? "memory.current" : "memory.usage_in_bytes");
    if ((used = os_posix_number_in(path, "")) < 0) used = 0;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    files = os_posix_number_in(path, second ? "\ninactive_file" : "\ntotal_inactive_file");
    if (files > 0) used = used > files ? used - files : 0;
    return limit > used ? limit - used : 0;
}

/* The least of what the process's control groups leave, those above them counted. `groups` is the
 * text of /proc/self/cgroup, `mount` where the groups are; a container sees its own at the top. */
static int64_t os_posix_groups_bytes(const char *groups, const char *mount) {
    int64_t least = INT64_MAX;
    for (; *groups; groups += strcspn(groups, "\n"), groups += *groups == '\n') {
        char folder[OS_PATH_BYTES];
        const char *names = strchr(groups, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        size_t end = strcspn(groups, "\n"), top;
        bool second;
        if (!path || path > groups + end) continue;
        second = path == names + 1; /* of all controllers: the second kind */
        if (!second && !memmem(names, (size_t)(path - names), "memory", 6)) continue;
        top = (size_t)snprintf(folder, sizeof folder, "%s%s", mount, second ? "" : "/memory");
        end -= (size_t)(path + 1 - groups);
        if (top + end >= sizeof folder) continue;
        memcpy(folder + top, path + 1, end);
        folder[top + end] = '\0';
        for (end += top;; end--) {
            int64_t left;
            if (end > top && folder[end] != '/' && folder[end] != '\0') continue;
            folder[end] = '\0';
            if ((left = os_posix_group_bytes(folder, second)) < least) least = left;
            if (end == top) break;
        }
    }
    return least;
}

static int64_t os_memory_bytes(void) {
    int64_t kib = os_posix_number_in("/proc/meminfo", "MemAvailable:");
    int64_t pages = os_posix_number_in("/proc/self/statm", "");
    int64_t free_bytes = kib < 0 ? INT64_MAX : kib * 1024, left;
    int64_t got, file = os_posix_open("/proc/self/cgroup", OS_OPEN_READ);
    char groups[4096];
    struct rlimit limit;
    if (!getrlimit(RLIMIT_AS, &limit) && limit.rlim_cur != RLIM_INFINITY && pages >= 0) {
        left = (int64_t)limit.rlim_cur - pages * (int64_t)sysconf(_SC_PAGESIZE);
        if (left < free_bytes) free_bytes = left;
    }
    if (file < 0) return free_bytes;
    got = os_posix_read(file, groups, sizeof groups - 1);
    os_posix_close(file);
    groups[got > 0 ? got : 0] = '\0';
    left = os_posix_groups_bytes(groups, "/sys/fs/cgroup");
    return left < free_bytes ? left : free_bytes;
}

BASE_UNUSED static int os_process_id(void) { return (int)getpid(); }

static const char *os_env(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static bool os_executable_path(char *path, size_t path_bytes) {
    ssize_t size = readlink("/proc/self/exe", path, path_bytes - 1);
    if (size <= 0 || (size_t)size >= path_bytes - 1) return false;
    path[size] = '\0';
    return true;
}

static void os_posix_before_exit(void *context) {
    void (*run)(void);
    memcpy(&run, context, sizeof run);
    run();
}

static bool os_before_exit(void (*run)(void)) {
#ifdef __linux__
    static void (*kept)(void);
    int (*add)(void (*)(void *), void *, void *);
    void *address = dlsym(RTLD_DEFAULT, "__cxa_thread_atexit_impl");
    if (!address || syscall(SYS_gettid) != getpid()) return false;
    kept = run;
    memcpy(&add, &address, sizeof add);
    return add(os_posix_before_exit, (void *)&kept, (void *)&kept) == 0;
#else
    (void)run;
    (void)os_posix_before_exit;
    return false;
#endif
}

static os_call_table os_calls = {
    os_posix_open, os_posix_read, os_posix_read_at, os_posix_write, os_posix_sync,
    os_posix_close, os_posix_info, os_posix_file_info, os_posix_rename, os_posix_remove, os_posix_remove_unused,
    os_posix_sync_directory, os_posix_make_directory, os_posix_touch,
    os_posix_list, os_posix_map, os_posix_unmap, os_posix_library_open, os_posix_library_symbol,
    os_posix_library_close, os_posix_thread_start,
};

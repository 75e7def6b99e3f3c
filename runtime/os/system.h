/* os_system: what the operating system's own headers call a thread, a lock and a condition. */
#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>
#undef near /* words of 16-bit days that windows.h takes from every later line */
#undef far

#define OS_SEPARATOR '\\'
#define OS_SLEEP_LATE_US 16000

typedef struct os_thread { HANDLE handle; void (*run)(void *); void *context; } os_thread;
typedef SRWLOCK os_mutex;
typedef CONDITION_VARIABLE os_cond;
#define OS_MUTEX_INITIAL SRWLOCK_INIT
#else
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#define OS_SEPARATOR '/'
#define OS_SLEEP_LATE_US 150

typedef struct os_thread { pthread_t id; void (*run)(void *); void *context; } os_thread;
typedef pthread_mutex_t os_mutex;
#ifdef __linux__
typedef struct os_cond { os_atomic changes, waiters; } os_cond;
#else
typedef pthread_cond_t os_cond;
#endif
#define OS_MUTEX_INITIAL PTHREAD_MUTEX_INITIALIZER
#endif

/* program: build/cairn. Opens a Lua state with the module `cairn` in it, hands the command line to
 * scripts/cli/main.lua, which the program carries with the rest of scripts/cli and scripts/bench,
 * and exits with the status that it returns. A unit of its own: it knows runtime.h only. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "../../runtime.h"

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#include <shellapi.h>
#include <fcntl.h>
#include <io.h>
#define program_is_terminal(file) _isatty(_fileno(file))
#else
#include <poll.h>
#include <unistd.h>
#define program_is_terminal(file) isatty(fileno(file))
#endif

#include "../generated/scripts.h"

/* ---- carried scripts ------------------------------------------------------------------------- */

/* A lua_Reader over the lines of a script. */
static const char *program_next_line(lua_State *L, void *state, size_t *bytes) {
    const char *const **line = (const char *const **)state;
    const char *text = **line;
    (void)L;
    *bytes = text ? strlen(text) : 0;
    if (text) ++*line;
    return text;
}

/* package.preload's loader of script `upvalue 1`. */
static int program_load_script(lua_State *L) {
    const script *s = &scripts[lua_tointeger(L, lua_upvalueindex(1))];
    const char *const *line = s->lines;
    char chunk[128];
    snprintf(chunk, sizeof chunk, "=%s", s->name);
    if (lua_load(L, program_next_line, (void *)&line, chunk, "t")) return lua_error(L);
    lua_pushvalue(L, 1);
    lua_call(L, 1, 1);
    return 1;
}

/* ---- what the scripts need of the system: require "host" ------------------------------------- */

/* host.list(folder) -> names, or nil when it is no folder */
static int program_list(lua_State *L) {
    DIR *folder = opendir(luaL_checkstring(L, 1));
    struct dirent *entry;
    lua_Integer count = 0;
    if (!folder) return 0;
    lua_newtable(L);
    while ((entry = readdir(folder)) != NULL) {
        if (entry->d_name[0] == '.') continue;
        lua_pushstring(L, entry->d_name);
        lua_rawseti(L, -2, ++count);
    }
    closedir(folder);
    return 1;
}

/* host.real(path) -> the one path of the folder or file, links followed, or nil when it is not there */
static int program_real(lua_State *L) {
#ifdef _WIN32
    char *path = _fullpath(NULL, luaL_checkstring(L, 1), 0);
#else
    char *path = realpath(luaL_checkstring(L, 1), NULL);
#endif
    if (!path) return 0;
    lua_pushstring(L, path);
    free(path);
    return 1;
}

/* host.stamp(path) -> a text that changes when the file does, or nil when there is none */
static int program_stamp(lua_State *L) {
    const char *path = luaL_checkstring(L, 1);
    char text[96];
#ifdef _WIN32
    WIN32_FILE_ATTRIBUTE_DATA s;
    if (!GetFileAttributesExA(path, GetFileExInfoStandard, &s)) return 0;
    snprintf(text, sizeof text, "%lu.%lu %lu.%lu", s.ftLastWriteTime.dwHighDateTime,
             s.ftLastWriteTime.dwLowDateTime, s.nFileSizeHigh, s.nFileSizeLow);
#else
    struct stat s;
    long nanoseconds = 0;
    if (stat(path, &s)) return 0;
#ifdef __linux__
    nanoseconds = (long)s.st_mtim.tv_nsec;
#endif
    snprintf(text, sizeof text, "%lld.%09ld %lld", (long long)s.st_mtime, nanoseconds,
             (long long)s.st_size);
#endif
    lua_pushstring(L, text);
    return 1;
}

/* host.is_terminal("stdin", "stdout" or "stderr") */
static int program_terminal(lua_State *L) {
    static const char *const names[] = {"stdin", "stdout", "stderr", NULL};
    FILE *const files[] = {stdin, stdout, stderr};
    lua_pushboolean(L, program_is_terminal(files[luaL_checkoption(L, 1, NULL, names)]));
    return 1;
}

static volatile sig_atomic_t program_catches, program_caught;
static cairn_session *volatile program_session; /* is cancelled by Ctrl-C */

static void program_interrupt(int number); /* below, as the state that it stops */

static void program_listen(void) {
#ifdef _WIN32
    signal(SIGINT, program_interrupt);
#else
    struct sigaction how;
    memset(&how, 0, sizeof how);
    how.sa_handler = program_interrupt;
    how.sa_flags = SA_RESTART;
    sigaction(SIGINT, &how, NULL);
#endif
}

/* host.catch_interrupts(on) -> whether Ctrl-C came that nobody asked about. On, Ctrl-C is told by
 * host.interrupted() instead of ending the script, and ends host.read_line(); given a session's pointer,
 * it also cancels what that session does, and must be called again before the session is closed. A call
 * while it is on forgets none, and the one that turns it off tells of it. */
static int program_catch(lua_State *L) {
    program_session = (cairn_session *)lua_touserdata(L, 1);
    program_catches = lua_toboolean(L, 1); /* before it is looked at: what comes now is told or raised */
    lua_pushboolean(L, program_caught);
    if (!program_catches) program_caught = 0;
    program_listen();
    return 1;
}

/* host.interrupted() -> whether Ctrl-C came since it was asked last */
static int program_was_interrupted(lua_State *L) {
    lua_pushboolean(L, program_caught);
    program_caught = 0;
    return 1;
}

#ifndef _WIN32
static int program_wakes[2]; /* a pipe: a byte is in it once Ctrl-C was caught; 0, 0: there is none */

/* Whether standard input has something to read; false: Ctrl-C was caught, before or meanwhile. Whichever
 * thread the system chose for it, the byte in the pipe ends the wait. */
static bool program_await_input(void) {
    struct pollfd from[2];
    if (!program_wakes[1] && pipe(program_wakes)) program_wakes[0] = program_wakes[1] = 0;
    from[0].fd = STDIN_FILENO, from[1].fd = program_wakes[1] ? program_wakes[0] : -1;
    from[0].events = from[1].events = POLLIN;
    while (!program_caught) {
        from[0].revents = from[1].revents = 0;
        if (poll(from, 2, -1) < 0 && errno != EINTR) return true; /* the read says why */
        if (from[0].revents && !program_caught) return true;
    }
    return false;
}

/* Takes out what a Ctrl-C that was told left in the pipe. */
static void program_calm(void) {
    struct pollfd from;
    char byte;
    from.fd = program_wakes[0], from.events = POLLIN, from.revents = 0;
    while (program_wakes[1] && poll(&from, 1, 0) > 0 && read(program_wakes[0], &byte, 1) == 1) {}
}

static void program_wake(void) {
    const int before = errno;
    if (program_wakes[1] && write(program_wakes[1], "", 1) < 0) {} /* it is caught all the same */
    errno = before;
}

/* host.read_line() -> the next line of standard input, or nil: at its end, and at a Ctrl-C that is caught.
 * Nothing else may read from it by a buffer. */
static int program_read_line(lua_State *L) {
    luaL_Buffer line;
    char byte = '\0';
    ssize_t got;
    program_calm();
    luaL_buffinit(L, &line);
    for (;;) {
        if (!program_await_input()) return 0;
        got = read(STDIN_FILENO, &byte, 1); /* what is behind the line is left */
        if (got < 1 || byte == '\n') break;
        luaL_addchar(&line, byte);
    }
    luaL_pushresult(&line);
    return got == 1 || lua_rawlen(L, -1) ? 1 : 0;
}
#else
static void program_wake(void) {}

/* The system ends the wait itself, at Ctrl-C. */
static int program_read_line(lua_State *L) {
    lua_getglobal(L, "io");
    lua_getfield(L, -1, "read");
    lua_pushliteral(L, "l");
    lua_call(L, 1, 1);
    return 1;
}
#endif

static int program_open_host(lua_State *L) {
    static const luaL_Reg calls[] = {{"list", program_list},
                                     {"real", program_real},
                                     {"stamp", program_stamp},
                                     {"is_terminal", program_terminal},
                                     {"catch_interrupts", program_catch},
                                     {"interrupted", program_was_interrupted},
                                     {"read_line", program_read_line},
                                     {NULL, NULL}};
    lua_newtable(L);
    luaL_setfuncs(L, calls, 0);
    return 1;
}

/* ---- Windows --------------------------------------------------------------------------------- */

#ifdef _WIN32
/* Text is written as it is, UTF-8 with plain newlines, and to a console by the call, not by the byte, for
 * a console makes no character of two writes. It shows UTF-8 while the program runs; the window may
 * be another program's afterwards. */
static UINT program_code_page;
static void program_console_leave(void) { SetConsoleOutputCP(program_code_page); }
static void program_console_enter(void) {
    _setmode(_fileno(stdout), _O_BINARY);
    _setmode(_fileno(stderr), _O_BINARY);
    setvbuf(stderr, NULL, _IONBF, 0);
    if (program_is_terminal(stdout)) setvbuf(stdout, NULL, _IONBF, 0);
    program_code_page = GetConsoleOutputCP();
    if (program_code_page && SetConsoleOutputCP(CP_UTF8)) atexit(program_console_leave);
}

/* The arguments from UTF-16 to UTF-8, for the system gives `argv` in its own code page; they last
 * as long as the program. NULL when memory is short. */
static char **program_arguments(int *count) {
    LPWSTR *wide = CommandLineToArgvW(GetCommandLineW(), count);
    char **argv = wide ? (char **)calloc((size_t)*count + 1, sizeof *argv) : NULL;
    for (int i = 0; argv && i < *count; i++) {
        int bytes = WideCharToMultiByte(CP_UTF8, 0, wide[i], -1, NULL, 0, NULL, NULL);
        argv[i] = (char *)malloc((size_t)bytes + 1);
        if (!argv[i]) return NULL;
        WideCharToMultiByte(CP_UTF8, 0, wide[i], -1, argv[i], bytes, NULL, NULL);
    }
    LocalFree(wide);
    return argv;
}
#endif

/* ---- main ------------------------------------------------------------------------------------ */

static lua_State *program_state; /* for the signal handler alone */

static void program_stop(lua_State *L, lua_Debug *where) {
    (void)where;
    lua_sethook(L, NULL, 0, 0);
    luaL_error(L, "interrupted");
}

/* Ctrl-C ends the script at its next Lua instruction, so that everything is closed, unless the script
 * catches it; a second one that nothing has looked at ends the process. */
static void program_interrupt(int number) {
    if (program_catches && !program_caught) {
        program_caught = 1;
        cairn_cancel(program_session); /* stores a word */
        program_wake();
        program_listen();
        return;
    }
    signal(number, SIG_DFL);
    lua_sethook(program_state, program_stop, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
}

static int program_traceback(lua_State *L) {
    const char *message = lua_tostring(L, 1);
    if (!message) return 1; /* an error object: cli.main gives it meaning */
    luaL_traceback(L, L, message, 1);
    return 1;
}

static void program_preload(lua_State *L) {
    int i;
    luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
    lua_pushcfunction(L, luaopen_cairn);
    lua_setfield(L, -2, "cairn");
    lua_pushcfunction(L, program_open_host);
    lua_setfield(L, -2, "host");
    for (i = 0; scripts[i].name; i++) {
        lua_pushinteger(L, i);
        lua_pushcclosure(L, program_load_script, 1);
        lua_setfield(L, -2, scripts[i].name);
    }
    lua_pop(L, 1);
}

/* Arguments: argc, argv. Returns the exit status that cli.main(argument table) gives. */
static int program_run(lua_State *L) {
    int i, count = (int)lua_tointeger(L, 1);
    char **argv = (char **)lua_touserdata(L, 2);
    luaL_openlibs(L);
    program_preload(L);
    lua_getglobal(L, "require");
    lua_pushliteral(L, "cli.main");
    lua_call(L, 1, 1);
    lua_createtable(L, count, 0);
    for (i = 0; i < count; i++) {
        lua_pushstring(L, argv[i]);
        lua_rawseti(L, -2, i);
    }
    lua_call(L, 1, 1);
    return 1;
}

int main(int argc, char **argv) {
    lua_State *L = luaL_newstate();
    int status = EXIT_FAILURE;
#ifdef _WIN32
    program_console_enter();
    argv = program_arguments(&argc);
    if (!argv) return fputs("cairn: cannot read the arguments: out of memory\n", stderr), status;
#endif
    if (!L) return fputs("cairn: cannot open a Lua state: out of memory\n", stderr), status;
    program_state = L;
    program_listen();
    lua_pushcfunction(L, program_traceback);
    lua_pushcfunction(L, program_run);
    lua_pushinteger(L, argc);
    lua_pushlightuserdata(L, argv);
    if (lua_pcall(L, 2, 1, 1)) cairn_log_stderr(NULL, CAIRN_LOG_ERROR, luaL_tolstring(L, -1, NULL));
    else status = (int)lua_tointeger(L, -1);
    lua_close(L);
    if (fflush(stdout) || ferror(stdout)) status = EXIT_FAILURE;
    return status;
}

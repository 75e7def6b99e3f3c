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
static volatile sig_atomic_t program_ends_waits;

static void program_interrupt(int number); /* below, as the state that it stops */

static void program_listen(void) {
#ifdef _WIN32
    signal(SIGINT, program_interrupt);
#else
    struct sigaction how;
    memset(&how, 0, sizeof how);
    how.sa_handler = program_interrupt;
    how.sa_flags = program_ends_waits ? 0 : SA_RESTART;
    sigaction(SIGINT, &how, NULL);
#endif
}

/* host.catch_interrupts(on, waits): Ctrl-C is told by host.interrupted() instead of ending the script;
 * given a session's pointer, it also cancels what that session does, and must be called again before
 * the session is closed. waits: it ends the wait for a line, too, which is then nil. A call while it is
 * on forgets no Ctrl-C that nobody asked about. */
static int program_catch(lua_State *L) {
    program_session = (cairn_session *)lua_touserdata(L, 1);
    if (!program_catches || !lua_toboolean(L, 1)) program_caught = 0;
    program_catches = lua_toboolean(L, 1);
    program_ends_waits = lua_toboolean(L, 2);
    program_listen();
    return 0;
}

/* host.interrupted() -> whether Ctrl-C came since it was asked last */
static int program_was_interrupted(lua_State *L) {
    lua_pushboolean(L, program_caught);
    program_caught = 0;
    return 1;
}

static int program_open_host(lua_State *L) {
    static const luaL_Reg calls[] = {{"list", program_list},
                                     {"real", program_real},
                                     {"stamp", program_stamp},
                                     {"is_terminal", program_terminal},
                                     {"catch_interrupts", program_catch},
                                     {"interrupted", program_was_interrupted},
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

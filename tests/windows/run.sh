# The CPU tests and the program for Windows: cross-compiled by mingw-w64's gcc, run by wine.
#
#   sh tests/windows/run.sh           a few of them, as the suite does
#   sh tests/windows/run.sh all       every C test that needs no GPU, and the Lua tests
#   sh tests/windows/run.sh NAME...   these C tests
#
# Needs wine and gcc-mingw-w64-x86-64, and that ./build.sh ran once. Lua for Windows is built once, in
# build/windows/lua, from Debian's source package; CAIRN_WINDOWS_LUA=FOLDER names the sources of another
# Lua 5.4 (lua.h, lapi.c, ...).
. tests/tap.sh
. tests/apart.sh
. tests/turns.sh

folder=$PWD/build/windows
cross=x86_64-w64-mingw32
mkdir -p "$folder"
export WINEPREFIX="$folder/prefix" WINEDEBUG=-all LC_ALL=C.UTF-8
export CAIRN_TEST_PROCESS=$$ # a process has one and the same number in every prefix: see posix.h
case ${CAIRN_MODEL:-/} in /*) ;; *) export CAIRN_MODEL="$PWD/$CAIRN_MODEL" ;; esac # tests run elsewhere
unset DISPLAY

# Windows has no such drivers, compilers or calls, or the test is of Linux alone.
left_out="jit_nvrtc forward_cuda"
few="os simd config_nolua"

common="-std=c11 -ffp-contract=off -DCAIRN_API=static -w -I. -Itests"

# ---- Lua -----------------------------------------------------------------------------------------

# Lists of source packages beside the system's own, which stay as they are.
lua_fetch() {
    command -v apt-get > /dev/null || return 1
    rm -rf "$folder/apt"
    mkdir -p "$folder/apt/parts" "$folder/apt/lists/partial" "$folder/apt/cache/archives/partial"
    for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ ! -f "$list" ] || sed -n 's/^deb /deb-src /p' "$list"
    done > "$folder/apt/parts/all.list"
    for list in /etc/apt/sources.list.d/*.sources; do
        [ ! -f "$list" ] || sed 's/^Types:.*/Types: deb-src/' "$list" > "$folder/apt/parts/${list##*/}"
    done
    (
        cd "$folder/apt" || exit 1
        set -- -q -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$folder/apt/parts" \
            -o "Dir::State::Lists=$folder/apt/lists" -o "Dir::Cache=$folder/apt/cache"
        apt-get "$@" update && apt-get "$@" source --download-only lua5.4
    ) > "$folder/lua.log" 2>&1 &&
        tar -C "$folder/apt" -xf "$folder"/apt/lua5.4_*.orig.tar.gz
}

# Sets LUA, the folder of lua.h and liblua.a; fails where they are not to be had.
find_windows_lua() {
    LUA=$folder/lua
    [ ! -f "$LUA/liblua.a" ] || return 0
    [ -n "${CAIRN_WINDOWS_LUA:-}" ] || lua_fetch || return 1
    rm -rf "$LUA"
    mkdir -p "$LUA"
    cp "${CAIRN_WINDOWS_LUA:-$(echo "$folder"/apt/lua-5.4*/src)}"/*.[ch] "$LUA"
    rm -rf "$folder/apt"
    (
        cd "$LUA" && rm -f lua.c luac.c onelua.c ltests.c &&
            $cross-gcc -O1 -w -c ./*.c && $cross-ar rcs liblua.a ./*.o
    ) > "$folder/lua.log" 2>&1
}

# ---- vector code ---------------------------------------------------------------------------------

# Debian's gcc for Windows is patched to move vectors on the stack as unaligned ones. Here its output
# is made what other gccs write; the runtime's own remedy has to hold.
as_unpatched() {
    awk -v moves_file="$folder/moves" '
        /[(]%rsp/ && /%[yz]mm/ && !/[{]/ {
            moves += sub(/vmovups/, "vmovaps") || sub(/vmovupd/, "vmovapd") ||
                     sub(/vmovdqu[ \t]/, "vmovdqa ") || sub(/vmovdqu32/, "vmovdqa32") ||
                     sub(/vmovdqu64/, "vmovdqa64")
        }
        { print }
        END { print moves + 0 > moves_file }' "$1" > "$2"
}

aligned_moves() {
    $cross-objdump -d "$1" |
        grep -cE 'vmov(aps|apd|dqa|dqa32|dqa64) .*(%[yz]mm.*\(|\(.*%[yz]mm)'
}

build_vectors() {
    echo '#include "runtime.c"' > "$folder/kernels.c"
    check "the vector kernels compile for Windows" $cross-gcc $common -O2 -DCAIRN_NO_LUA \
        -DCAIRN_ROOMS_ONLY -DCAIRN_SIMD_UNIT -S "$folder/kernels.c" -o "$folder/kernels.s"
    as_unpatched "$folder/kernels.s" "$folder/unpatched.s"
    sed '/\.macro vmov/,/\.endm/d' "$folder/unpatched.s" > "$folder/bare.s"
    check "an unpatched gcc's output assembles" $cross-gcc -c "$folder/unpatched.s" -o "$folder/kernels.o"
    $cross-gcc -c "$folder/bare.s" -o "$folder/bare.o"
    moves=$(cat "$folder/moves")
    check "it has $moves aligned moves on the stack" [ "$moves" -gt 0 ]
    check_text "which would all be left" "$(aligned_moves "$folder/bare.o")" "$moves"
    check_text "and of which none is" "$(aligned_moves "$folder/kernels.o")" 0
}

# The rooms, which the tests share (tests/apart.sh).
build_rooms() {
    mkdir -p build/apart/windows
    cp "$folder/kernels.o" build/apart/windows/kernels.o
    [ -n "$LUA" ] || return 0
    lua_cflags=-I$LUA CFLAGS=''
    export lua_cflags CFLAGS
    check "the rooms compile for Windows" apart_build windows
}

# ---- C tests -------------------------------------------------------------------------------------

# run_c NAME: compiled and run, or skipped where Lua is missing.
run_c() {
    source=$(ls tests/*/"$1_test.c" 2> /dev/null) || { tap_fail "$1: no such test"; return 0; }
    flags=$(head_field build "$source")
    case $flags in
        *CAIRN_NO_LUA*) own=whole linked=-O0 ;;
        *)
            [ -n "$LUA" ] || { tap_skip "$1: no Lua for Windows"; return 0; }
            own='' linked="-I$LUA $LUA/liblua.a" ;;
    esac
    link=$(apart_link windows $own)
    check "$1 compiles for Windows" $cross-gcc ${link%% *} $common -O1 $flags "$source" ${link#* } \
        $linked -static -o "$folder/$1.exe"
    [ -f "$folder/$1.exe" ] || return 0
    check "$1 under wine" run_exe "$1"
    rm -f "$folder/$1.exe"
}

# The repository as tests see it, with a build folder of its own: what they write there is not what the same
# tests write that the suite runs meanwhile.
make_tree() {
    rm -rf "$folder/tree"
    mkdir -p "$folder/tree/build"
    for path in "$PWD"/*; do [ "${path##*/}" = build ] || ln -s "$path" "$folder/tree/"; done
    [ ! -d build/model ] || ln -s "$PWD/build/model" "$folder/tree/build/"
}

# What failed comes first in the log of a check.
run_exe() {
    status=0
    (cd "$folder/tree" && timeout 600 wine "$folder/$1.exe") > "$folder/$1.log" 2>&1 < /dev/null || status=$?
    grep '^not ok' "$folder/$1.log"
    tail -n 3 "$folder/$1.log"
    echo "status $status"
    return $status
}

all_names() {
    for path in tests/*/*_test.c; do
        name=$(basename "$path" _test.c)
        case " $left_out " in *" $name "*) ;; *) echo "$name" ;; esac
    done
}

# ---- the program ---------------------------------------------------------------------------------

# build_line OUTPUT: the README's line that makes it, in build/windows; within the suite it is not optimised, which
# takes most of a minute: the C tests are.
build_line() {
    line=$(grep "^$cross.* build/$1\$" README.md | sed "s|build/|build/windows/|g; $optimise")
    rm -f "$folder/$1"
    check "the README's line makes $1" sh -c "LUA=$LUA; $line"
    [ -f "$folder/$1" ]
}

program() { wine "$folder/cairn.exe" "$@" 2> "$folder/program.log" < /dev/null; }

# on_console COMMAND: what a console of Windows shows of it, the terminal's commands taken out.
on_console() {
    TERM=xterm timeout 60 script -qec "$1" /dev/null < /dev/null |
        sed "s/$(printf '\033')[[]1C/ /g; s/$(printf '\033')[[][?]*[0-9;]*[A-Za-z]//g" | tr -d '\r\n'
}

test_text() {
    cat > "$folder/añ日.lua" <<'LUA'
local file <close> = assert(io.open(arg[3], "rb"))
io.write(arg[1], "|", arg[2], "|", os.getenv "CAIRN_TEST", "|", file:read "a", "|",
         require "host".stamp(arg[3]) and "stamp" or "none")
LUA
    printf 'ö' > "$folder/ü日.txt"
    text=$(CAIRN_TEST=é program run "$folder/añ日.lua" 'grüße 日本' 'a "b" *' "$folder/ü日.txt")
    check_text "arguments, variables, names of scripts and files are UTF-8" "$text" \
        'grüße 日本|a "b" *|é|ö|stamp'
}

test_console() {
    command -v script > /dev/null || { tap_skip "script is not installed: no console"; return 0; }
    printf 'io.write("zwölf 日本\\n"); io.stderr:write("größer\\n"); error "Köln"' > "$folder/console.lua"
    shown=$(on_console "wine '$folder/cairn.exe' run '$folder/console.lua'")
    for word in 'zwölf 日本' größer Köln; do
        case $shown in
            *"$word"*) tap_pass "a console shows $word" ;;
            *) check_text "a console shows $word" "$shown" "$word" ;;
        esac
    done
    shown=$(on_console "wine '$folder/cairn.exe' check '$folder/ñandú.lua'")
    case $shown in
        *ñandú.lua*) tap_pass "and a file's name in a message" ;;
        *) check_text "and a file's name in a message" "$shown" ñandú.lua ;;
    esac
}

# The same ids as the program of this system, by greedy choice.
test_generate() {
    [ -n "${CAIRN_MODEL:-}" ] && [ -x build/cairn ] || { tap_skip "no model"; return 0; }
    cp "$CAIRN_MODEL" "$folder/möbius.gguf"
    set -- generate --backend cpu --max-tokens 12 --temperature 0 --json --prompt 'Die Straße führt'
    here=$(build/cairn "$@" --model "$CAIRN_MODEL" 2> /dev/null | grep -o '"ids":[^]]*')
    there=$(program "$@" --model "$folder/möbius.gguf" | grep -o '"ids":[^]]*')
    check_text "it generates what it does here" "$there" "$here"
    rm -f "$folder/möbius.gguf"
}

test_program() {
    [ -n "$LUA" ] || { tap_skip "the program: no Lua for Windows"; return 0; }
    build_line cairn-rc.o && build_line cairn.exe || return 0
    test_text
    test_console
    test_generate
    program info > "$folder/info.log"
    case $(grep -o 'avx2' /proc/cpuinfo | head -n 1) in
        avx2) check "the CPU's kernels are vectors'" grep -q 'CPU, AVX' "$folder/info.log" ;;
    esac
}

# Another unit takes the DLL as Microsoft's compiler would; a game has the runtime in its unit.
test_embedding() {
    [ -n "$LUA" ] && build_line cairn.dll || return 0
    printf '%s\n' '#define CAIRN_API __declspec(dllimport)' '#include "runtime_ops.h"' \
        'int main(void) { return cairn_version() != CAIRN_VERSION || !cairn_type_bytes(CAIRN_F32); }' \
        > "$folder/user.c"
    check "a program with the DLL compiles" \
        $cross-gcc -I. "$folder/user.c" "$folder/cairn.dll" -o "$folder/user.exe"
    check "and runs" wine "$folder/user.exe"
    awk '$0 == "```c" { on = 1; next } /^```/ { on = 0 } on' README.md |
        sed 's/cairn\.h/runtime.h/' > "$work/game.c"
    line=$(grep "^$cross.* build/game.exe\$" README.md | sed "s|build/|build/windows/|; s|game.c|-I. $work/game.c|")
    check "the README's line makes game.exe" sh -c "LUA=$LUA; $line"
    wine "$folder/game.exe" > "$folder/game.log" 2>&1 < /dev/null
    check "which asks for its config" grep -q 'config.lua' "$folder/game.log"
}

test_lua() {
    [ -f "$folder/cairn.exe" ] || return 0
    check "the Lua tests under wine" sh -c \
        "wine '$folder/cairn.exe' test tests > '$folder/lua_tests.log' 2>&1; status=\$?
        grep '^not ok' '$folder/lua_tests.log'; tail -n 1 '$folder/lua_tests.log'; exit \$status"
}

# ---- main ----------------------------------------------------------------------------------------

main() {
    case $(turn_of 6) in -1 | 4) ;; *) tap_skip "for Windows: $another_turn"; return 0 ;; esac
    command -v $cross-gcc > /dev/null || { tap_skip "gcc-mingw-w64-x86-64 is not installed"; return 0; }
    command -v wine > /dev/null || { tap_skip "wine is not installed"; return 0; }
    [ -f runtime/generated/kernels.h ] || { tap_fail "no runtime/generated/kernels.h: run ./build.sh first"; return 0; }
    check "wine starts" wine wineboot -i
    LUA=''
    find_windows_lua || LUA=''
    build_vectors
    build_rooms
    optimise=''
    case ${1:-} in
        '') names=$few optimise='s/ -O2 / -O0 /' ;;
        all) names=$(all_names) ;;
        *) names=$* ;;
    esac
    make_tree
    for name in $names; do run_c "$name"; done
    case ${1:-all} in all) test_program ;; esac
    [ "${1:-}" != all ] || { test_embedding; test_lua; }
    wineserver -k 2> /dev/null || true
}

main "$@"
tap_done

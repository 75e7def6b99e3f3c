#!/bin/sh
# The whole test suite; `./build.sh test [NAME...]` builds the program and has it run (suite.sh run). The jobs:
#
#   tests/ROOM/NAME_test.c   compiled with warnings as errors under ASan and UBSan, linked with the
#                            rooms (tests/apart.sh), and run
#   tests/NAME_test.sh       run by sh: what concerns the whole tree
#   tests/NAME/run.sh        run by sh: a test with a folder of its own (simt, nvrtc)
#   lua                      build/cairn test tests, which runs tests/**/*_test.lua; of the GPU's on the
#                            emulated one
#
# A test's folder is the room that it tests; its NAME alone names it here.
# Each prints TAP into build/test/NAME.log; one job per core at a time. Here one line a job, what
# failed and why, the reasons of what was skipped, and the sums. Random inputs are of one seed for one tree:
# choose_seed.
set -u
logs=build/test
: "${CC:=cc}" "${lua_cflags:=}" "${lua_libs:=-llua5.4}" "${libraries:=-lm -ldl -lpthread}"
: "${warnings:=-Wall -Wextra}" "${CFLAGS:=}"

# A test is one unit with the runtime: public calls that it does not use need not be compiled. What
# gcc then warns of while it inlines across the whole is looked at by tests/warnings_test.sh.
unit="-DCAIRN_API=static -Wno-unused-function -Wno-format-truncation -Wno-array-bounds
 -Wno-unknown-warning-option"
sanitizers="-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
. tests/apart.sh
. tests/turns.sh

# The slowest first, so that no core waits for one at the end; the others as they stand.
job_names() {
    {
        printf '%s\n' emulated simt_race nvrtc simt families readme emulated_prompts forward_cuda landmark \
            portable windows next prompts exact model_golden estimate forward_families sliding family_files \
            not_a_number dist sweep attention loop forward_cpu lua worker resume speak topk_faults draft deepseek \
            warnings adapter kept batch ops sample_few mtp spec direct kv config_nolua program size
        for path in tests/*/run.sh; do [ ! -f "$path" ] || basename "$(dirname "$path")"; done
        echo lua
        for path in tests/*_test.c tests/*/*_test.c tests/*_test.sh tests/*/*_test.sh; do
            [ ! -f "$path" ] || basename "${path%_test.*}"
        done
    } | awk '!seen[$0]++'
}

is_wanted() {
    [ -n "$2" ] || return 0
    for name in $2; do [ "$name" != "$1" ] || return 0; done
    return 1
}

# test_of NAME EXTENSION: the path of that test, if there is one.
test_of() {
    for path in "tests/$1_test.$2" tests/*/"$1_test.$2"; do
        [ ! -f "$path" ] || { echo "$path"; return 0; }
    done
}

has_gpu() { [ -e /dev/nvidiactl ] || [ -e /dev/dxg ]; }

# kind_of FLAGS: which runtime of tests/apart.sh a test with these flags of its own is linked with.
kind_of() {
    case $1 in
        *-fno-sanitize*) echo plain ;;
        *) echo asan ;;
    esac
}

# kinds_of NAME: what the job needs.
kinds_of() {
    case $1 in emulated*) echo plain ;; esac
    c_test=$(test_of "$1" c)
    [ -n "$c_test" ] || return 0
    kind_of "$(head_field build "$c_test")"
    ! has_clang_turn "$c_test" || ! command -v clang > /dev/null || echo clang
}

# A test that says "emulated: asan" runs its CUDA half too, on the emulated GPU where there is none; one that says
# "alone" has no other.
run_c() {
    case $(head_field emulated "$1") in
        *alone*) has_gpu || has_turn "$2" asan || { no_turn "$2" "what needs a GPU, on the emulated one"; return 0; } ;;
    esac
    flags=$(head_field build "$1")
    own=$(own_flags "$flags")
    if [ -n "$own" ]; then link=$(apart_own "$(kind_of "$flags")" "$2" $own) || return 1
    else link=$(apart_link "$(kind_of "$flags")"); fi
    flags=$(without_include "$flags")
    $CC -std=c11 -g1 -O1 $CFLAGS $lua_cflags $warnings -Werror $unit $sanitizers $flags \
        ${link%% *} -I. -Itests -ffp-contract=off "$1" ${link#* } -o "$logs/$2.bin" \
        $lua_libs $libraries || return 1
    case $(head_field emulated "$1") in
        *asan*) has_gpu || if has_turn "$2" asan; then set -- "$1" "$2" tests/simt/emulate.sh
            else no_turn "$2"; fi ;;
    esac
    ${3-} "$logs/$2.bin"
}

# A test that says "clang: undefined" also runs as clang's UBSan builds it, which sees more than
# gcc's: what is added to a null pointer, even nothing; "clang: undefined, turn 0" with one tree of four.
has_clang_turn() {
    case $(head_field clang "$1") in
        *undefined*turn\ [0-3]*)
            case $(turn_of 4) in
                -1 | $(head_field clang "$1" | sed 's/.*turn //')) return 0 ;;
                *) return 1 ;;
            esac ;;
        *undefined*) return 0 ;;
        *) return 1 ;;
    esac
}

run_clang() {
    [ -n "$(head_field clang "$1")" ] || return 0
    has_clang_turn "$1" || { no_turn "$2" "as clang builds it"; return 0; }
    command -v clang >/dev/null || { echo "ok - $2 # SKIP clang is not installed"; return 0; }
    link=$(apart_link clang)
    clang -std=c11 -g1 -O1 $lua_cflags $unit -w -fsanitize=undefined -fno-sanitize-recover=all \
        ${link%% *} -I. -Itests -ffp-contract=off "$1" ${link#* } -o "$logs/$2.clang" $lua_libs \
        $libraries && "$logs/$2.clang"
}

run_job() {
    case $1 in
        lua)
            status=0
            build/cairn test tests || status=1
            has_gpu || ! command -v "${CXX:-g++}" > /dev/null ||
                sh tests/simt/emulate.sh build/cairn test tests/lua/gpu_test.lua || status=1
            return $status ;;
        *)
            status=0
            [ ! -f "tests/$1/run.sh" ] || sh "tests/$1/run.sh" || status=1
            c_test=$(test_of "$1" c) sh_test=$(test_of "$1" sh)
            [ -z "$c_test" ] || run_c "$c_test" "$1" || status=1
            [ -z "$c_test" ] || run_clang "$c_test" "$1" || status=1
            [ -z "$sh_test" ] || sh "$sh_test" || status=1
            return $status ;;
    esac
}

# Sums of the TAP lines on standard input: "passed failed skipped".
count_lines() {
    awk '/^ok .*# SKIP/ { s++; next } /^ok / { p++ } /^not ok / { f++ } END { print p+0, f+0, s+0 }'
}

# The processor seconds in what `times` prints, which say more than the clock where others work.
cpu_seconds() { awk 'NR == 2 { gsub("s", ""); split($1, u, "m"); split($2, s, "m")
    printf "%.0f", u[1] * 60 + u[2] + s[1] * 60 + s[2] }'; }

# Within the whole suite what hangs is ended after twenty minutes, many times what any test takes: the test's own
# process by SIGABRT, of which AddressSanitizer says where it was, then whatever is left of the job.
limit=
[ "${CAIRN_TEST_TURNS:-0}" = 0 ] || ! command -v timeout > /dev/null || limit='timeout -s ABRT -k 30 1200'

# `suite.sh job NAME`: one job, its log, its line; `suite.sh within NAME` is what it runs.
job() {
    began=$(date +%s) status=0
    $limit sh tests/suite.sh within "$1" > "$logs/$1.log" 2>&1 < /dev/null || status=$?
    set -- "$1" $(count_lines < "$logs/$1.log")
    if [ "$status" != 0 ] && [ "$3" = 0 ]; then
        echo "not ok - $1: ended with status $status" >> "$logs/$1.log"
    elif [ "$2$3$4" = 000 ]; then
        echo "not ok - $1: printed no TAP line" >> "$logs/$1.log"
    fi
    set -- "$1" $(count_lines < "$logs/$1.log")
    [ "$3" = 0 ] && verdict=ok || verdict='not ok'
    times > "$logs/$1.times"
    cpu=$(cpu_seconds < "$logs/$1.times")
    echo "$verdict - $1 ($2 passed, $3 failed, $4 skipped; $(($(date +%s) - began)) s, $cpu s of CPU)"
    [ "$3" = 0 ] || show_failure "$logs/$1.log"
}

# The failed lines with what follows them, or the end of a log that is not TAP.
show_failure() {
    if grep -q '^not ok [0-9]' "$1"; then grep -A 12 '^not ok ' "$1" | grep -v -e '^ok ' -e '^--' | head -80
    else tail -40 "$1"; fi | sed 's/^/# /'
}

# One seed for random inputs, of what the tree holds: each change of it is tested with others, the same
# tree with the same. CAIRN_SEED=N is another, CAIRN_SEED=any one of each test's own.
choose_seed() {
    [ -n "${CAIRN_SEED-}" ] || CAIRN_SEED=$(find runtime kernels_src tests -type f ! -path '*/generated/*' |
        LC_ALL=C sort | xargs cat | cksum | cut -d ' ' -f 1)
    export CAIRN_SEED
    [ "$CAIRN_SEED" != any ] || unset CAIRN_SEED
}

# Named tests run whole, all of them in turns (tests/turns.sh, tests/nvrtc/run.sh).
choose_turns() {
    [ $# -gt 0 ] || : "${CAIRN_TEST_TURNS:=1}"
    export CAIRN_TEST_TURNS="${CAIRN_TEST_TURNS:-0}"
}

# jobs_of NAME...: those jobs; none: all.
jobs_of() { for name in $(job_names); do ! is_wanted "$name" "$*" || echo "$name"; done; }

# `suite.sh rooms NAME...`: what these tests are linked with, or all.
build_rooms() {
    mkdir -p "$logs"
    for kind in $(for name in $(jobs_of "$@"); do kinds_of "$name"; done | sed 's/ .*//' | sort -u); do
        apart_build "$kind" || return 1
    done
}

main() {
    mkdir -p "$logs"
    rm -f "$logs"/*.log
    choose_seed
    choose_turns "$@"
    [ -n "${CAIRN_APART_BUILT-}" ] || build_rooms "$@" || return 1
    export CAIRN_APART_BUILT=1 # tests/emulated/run.sh
    cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
    jobs_of "$@" | xargs -P "$cores" -n 1 sh tests/suite.sh job
    grep -h '# SKIP' "$logs"/*.log | sed 's/.*# SKIP */# skipped: /' | sort | uniq -c |
        sed 's/^ *1 //; s/^ *\([0-9]*\) \(.*\)/\2 (\1 times)/'
    set -- $(cat "$logs"/*.log | count_lines)
    echo "$1 passed, $2 failed, $3 skipped"
    [ "$2" = 0 ] && [ "$1" != 0 ]
}

command=$1
shift
case $command in
    job) job "$1" ;;
    within) run_job "$1" ;;
    rooms) choose_seed; choose_turns "$@"; build_rooms "$@" ;;
    run) main "$@" ;;
esac

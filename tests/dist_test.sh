# The single header as a user takes it: the header's own example program, word for word, as C11 with
# a second unit in C++17 that includes the declarations, linked, and run on the real model.
. tests/tap.sh
. tests/turns.sh
. tests/apart.sh

lua=$(command -v lua5.4 || echo "build/cairn run")
$lua gen/dist.lua > "$work/cairn.h"

# The program stands in runtime.h's comment under A COMPLETE PROGRAM.
sed -n '/^ \* A COMPLETE PROGRAM/,/^ \* CONTENTS/p' runtime.h | sed -n 's/^ \*     //p' > "$work/game.c"
cat > "$work/other.cpp" <<'CPP'
#include "cairn.h"
extern "C" int other_version(void);
int other_version(void) { return cairn_version() == CAIRN_VERSION ? 0 : 1; }
CPP

# Its implementation is the runtime's own text to the letter, of which build/runtime.o was made: optimising it once more,
# for most of a minute, says nothing new. So with seven trees of eight (tests/turns.sh) the example is compiled without,
# and linked with the vector kernels of the tests.
text_of() { $CC -std=c11 -DCAIRN_IMPLEMENTATION $lua_cflags -I. -E -P -x c "$1" | tr -d ' \n\t' | cksum; }
check_text "the implementation is the runtime's text" "$(text_of "$work/cairn.h")" "$(text_of runtime.h)"
kernels=${CAIRN_BUILD:-build}/apart/plain/kernels.o
case $(turn_of 8) in -1 | 5) ;; *) [ ! -f "$kernels" ] || small=yes ;; esac
level=-O2
if [ -n "${small-}" ]; then level="-O0 -DCAIRN_SIMD_APART $(apart_levels) -Wno-unused-function"; else kernels=; fi

# Where an indentation misleads gcc asks of each line, which takes it ten seconds in a file of this size and none in
# the runtime's own (tests/warnings_test.sh).
warnings="$warnings -Wno-misleading-indentation"
check "the example has main, and at most 25 lines" \
    sh -c "grep -q 'int main' $work/game.c && [ \$(grep -c . $work/game.c) -le 25 ]"
check "it compiles as C11 with every warning an error: $level" \
    $CC -std=c11 $level $warnings -Werror $lua_cflags -c "$work/game.c" -o "$work/game.o"
check "the declarations compile as C++17 in a second unit" \
    $CXX -std=c++17 -Wall -Wextra -pedantic -Werror -c "$work/other.cpp" -o "$work/other.o"
check "both link" $CXX "$work/game.o" "$work/other.o" $kernels $lua_libs $libraries -o "$work/game"

printf 'return { backend = "cpu", max_batch = 1, max_seq_len = 1024 }\n' > "$work/config.lua"
check_fails "without a model it says which file is missing" "model.gguf" \
    sh -c "cd $work && ./game 2>&1 | tee /dev/stderr | grep -q CAIRN_FILE_NOT_FOUND && exit 1"
if [ -n "${CAIRN_MODEL:-}" ]; then
    case $CAIRN_MODEL in /*) model=$CAIRN_MODEL ;; *) model=$PWD/$CAIRN_MODEL ;; esac
    ln -sf "$model" "$work/model.gguf"
    text=$(cd "$work" && ./game 2>"check.log")
    check "with the model it answers in $(printf %s "$text" | wc -w) words" \
        [ "$(printf %s "$text" | wc -w)" -ge 20 ]
    program=$(build/cairn generate --config "$work/config.lua" --model "$model" --max-tokens 64 \
        --prompt "The history of computing began" 2>/dev/null)
    check_text "the same text as the program's" "$text" "$program"
else
    tap_skip "no model: the example did not run"
fi
tap_done

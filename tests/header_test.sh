# runtime.h and runtime_ops.h as their users meet them: every promised language, twice in a unit, in
# two units, and what a build exports.
. tests/tap.sh

strict="-Wall -Wextra -Wshadow -Wundef -pedantic -Werror"

cat > "$work/declare.c" <<'C'
#include "runtime.h"
#include "runtime_ops.h"
#include "runtime.h"
#include "runtime_ops.h"
int main(void) { return cairn_version() < 0; }
C
cp "$work/declare.c" "$work/declare.cpp"
for compiler in gcc clang; do
    command -v $compiler >/dev/null || { tap_skip "$compiler is not installed"; continue; }
    for std in c99 c11; do
        check "the header is $std for $compiler" \
            $compiler -std=$std $strict -Wstrict-prototypes -Wc++-compat -I. -fsyntax-only \
            "$work/declare.c"
    done
done
for compiler in g++ clang++; do
    command -v $compiler >/dev/null || { tap_skip "$compiler is not installed"; continue; }
    for std in c++11 c++20; do
        check "the header is $std for $compiler" \
            $compiler -std=$std $strict -I. -fsyntax-only "$work/declare.cpp"
    done
done

printf '#define CAIRN_IMPLEMENTATION\n#include "runtime.h"\n' > "$work/implement.c"
check "two units, one of them the implementation, make a program" sh -c "
    $CC -std=c11 -O1 -DCAIRN_NO_LUA -I. -c '$work/implement.c' -o '$work/implement.o' &&
    $CC -std=c11 -I. '$work/declare.c' '$work/implement.o' -o '$work/two' $libraries"
check "that program runs" "$work/two"

# The manual for embedding stands alone; the ops' header brings it, also with the implementation.
lines=$(wc -l < runtime.h | tr -d ' ')
check "runtime.h has $lines lines, at most 900" [ "$lines" -le 900 ]
printf '#include "runtime_ops.h"\nint main(void) { return !cairn_type_bytes(CAIRN_F32); }\n' > "$work/ops.c"
check "runtime_ops.h alone declares both" $CC -std=c99 $strict -I. -fsyntax-only "$work/ops.c"
sed 's/^#include/#define CAIRN_IMPLEMENTATION\n#include/' "$work/ops.c" > "$work/ops_all.c"
check "and brings the implementation" \
    $CC -std=c11 -DCAIRN_NO_LUA -Wall -Wextra -Werror -I. -fsyntax-only "$work/ops_all.c"
printf '#include "runtime.h"\nint main(void) { cairn_tensor *t = 0; return !t; }\n' > "$work/small.c"
check_fails "runtime.h alone knows no tensors" "cairn_tensor" \
    $CC -std=c11 -I. -fsyntax-only "$work/small.c"

build/cairn run tests/null_calls.lua > "$work/null.c"
check "every call is written out with NULL for its pointers" \
    $CC -std=c11 -I. "$work/null.c" "$work/implement.o" -o "$work/null" $libraries
check "none of them crashes, and each says what is wrong" "$work/null"

printf '#include <stdio.h>\n#define CAIRN_IMPLEMENTATION\n#include "runtime.h"\n' > "$work/late.c"
check_fails "an implementation after another header is refused" "before every other include" \
    $CC -std=c11 -DCAIRN_NO_LUA -I. -fsyntax-only "$work/late.c"

cp "$work/implement.c" "$work/implement.cpp"
check_fails "an implementation as C++ is refused" "implementation is C11" \
    g++ -DCAIRN_NO_LUA -I. -fsyntax-only "$work/implement.cpp"
check_fails "one without atomics, too" "needs C11 with <stdatomic.h>" \
    $CC -std=c11 -D__STDC_NO_ATOMICS__ -DCAIRN_NO_LUA -I. -fsyntax-only "$work/implement.c"

exported() { nm -g --defined-only "$1" | awk 'NF == 3 { print $3 }'; }
others=$(exported build/cairn.so | grep -v -e '^cairn_' -e '^luaopen_cairn$' || true)
check_text "build/cairn.so exports cairn_* and luaopen_cairn alone" "$others" ""
check "build/cairn.so exports luaopen_cairn" sh -c 'nm -g build/cairn.so | grep -q luaopen_cairn'

declared=$(grep -oh '\bcairn_[a-z0-9_]*(' runtime.h runtime_ops.h | tr -d '(' | sort -u)
exported build/cairn.so | sort -u > "$work/exported"
missing=''
for name in $declared; do
    grep -qx "$name" "$work/exported" || ! cat runtime.h runtime_ops.h | grep -q "CAIRN_API.*\b$name(" ||
        missing="$missing $name"
done
check_text "every call that the header declares is there" "$missing" ""

linked=$(readelf -d build/cairn.so | sed -n 's/.*NEEDED.*\[\(.*\)\].*/\1/p' |
    grep -v -e '^libc\.' -e '^libm\.' -e '^libdl\.' -e '^libpthread\.' || true)
check_text "build/cairn.so needs libc, libm, libdl and libpthread alone" "$linked" ""
tap_done

# runtime.h as its users meet it: every promised language, twice in a unit, in two units, and what
# a build exports.
. tests/tap.sh

strict="-Wall -Wextra -Wshadow -Wundef -pedantic -Werror"

cat > "$work/declare.c" <<'C'
#include "runtime.h"
#include "runtime.h"
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

build/cairn run tests/null_calls.lua > "$work/null.c"
check "every call is written out with NULL for its pointers" \
    $CC -std=c11 -I. "$work/null.c" "$work/implement.o" -o "$work/null" $libraries
check "none of them crashes, and each says what is wrong" "$work/null"

printf '#include <stdio.h>\n#define CAIRN_IMPLEMENTATION\n#include "runtime.h"\n' > "$work/late.c"
check_fails "an implementation after another header is refused" "before every other include" \
    $CC -std=c11 -DCAIRN_NO_LUA -I. -fsyntax-only "$work/late.c"

exported() { nm -g --defined-only "$1" | awk 'NF == 3 { print $3 }'; }
others=$(exported build/cairn.so | grep -v -e '^cairn_' -e '^luaopen_cairn$' || true)
check_text "build/cairn.so exports cairn_* and luaopen_cairn alone" "$others" ""
check "build/cairn.so exports luaopen_cairn" sh -c 'nm -g build/cairn.so | grep -q luaopen_cairn'

declared=$(grep -o '\bcairn_[a-z0-9_]*(' runtime.h | tr -d '(' | sort -u)
exported build/cairn.so | sort -u > "$work/exported"
missing=''
for name in $declared; do
    grep -qx "$name" "$work/exported" || ! grep -q "CAIRN_API.*\b$name(" runtime.h ||
        missing="$missing $name"
done
check_text "every call that the header declares is there" "$missing" ""

linked=$(readelf -d build/cairn.so | sed -n 's/.*NEEDED.*\[\(.*\)\].*/\1/p' |
    grep -v -e '^libc\.' -e '^libm\.' -e '^libdl\.' -e '^libpthread\.' || true)
check_text "build/cairn.so needs libc, libm, libdl and libpthread alone" "$linked" ""
tap_done

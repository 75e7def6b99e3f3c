# A trace's ranges as ranges of NVTX: a library of this test's counts what is pushed and popped.
. tests/tap.sh

cat > "$work/nvtx.c" <<'C'
#include <stdio.h>
#include <stdlib.h>
static int depth;
static int note(const char *what, const char *name) {
    FILE *to = fopen(getenv("NVTX_LOG"), "a");
    fprintf(to, "%s %s\n", what, name);
    fclose(to);
    return depth;
}
int nvtxRangePushA(const char *name) { depth++; return note("push", name); }
#ifndef NO_POP
int nvtxRangePop(void) { return depth ? note("pop", "") : note("bare", ""), depth ? --depth : -2; }
#endif
C
check "a library" $CC -shared -fPIC "$work/nvtx.c" -o "$work/libnvtx3interop.so.1"
check "one that cannot pop" $CC -shared -fPIC -DNO_POP "$work/nvtx.c" -o "$work/half.so"
cat > "$work/ops.lua" <<'LUA'
local cairn = require "cairn"
local rt = cairn.open { backend = "cpu" }
local x = rt:random({ 2, 64 }, "f32", { seed = 1 })
local function ops(n) for _ = 1, n do rt:topk(x, { k = 3 }) end end
ops(2)
rt:trace(1) -- room for one
ops(3)
pcall(rt.topk, rt, x, { k = -1 })
rt:trace(5) -- in place of it
ops(2)
rt:trace_stop()
ops(2)
LUA

# traced FILE LIBRARY_PATH NVTX_PATH COMMAND...: what was pushed and popped, into FILE.
traced() {
    rm -f "$1"
    : > "$1"
    NVTX_LOG=$1 LD_LIBRARY_PATH=$2 CAIRN_NVTX_PATH=$3 sh -c 'shift 3; exec "$@"' traced "$@" > "$work/said" 2>&1
}
count() { grep -c "^$1" "$2"; }

traced "$work/env.log" "" "$PWD/$work/libnvtx3interop.so.1" build/cairn run "$work/ops.lua"
check_text "by CAIRN_NVTX_PATH each op while a trace is taken, those without room too" \
    "$? $(count 'push topk$' "$work/env.log") $(count pop "$work/env.log") $(wc -l < "$work/env.log")" "0 5 5 10"
traced "$work/name.log" "$PWD/$work" "" build/cairn run "$work/ops.lua"
check_text "by its name, where libraries are looked for" "$? $(count 'push topk$' "$work/name.log")" "0 5"
traced "$work/half.log" "" "$PWD/$work/half.so" build/cairn run "$work/ops.lua"
check_text "a library without a pop gets no push" "$? $(wc -l < "$work/half.log")" "0 0"
traced "$work/none.log" "" "$PWD/$work/none.so" build/cairn run "$work/ops.lua"
check_text "without one the trace is taken all the same" "$? $(wc -l < "$work/none.log")" "0 0"

# phases FILE: how many ranges of the host the trace has of each.
phases() {
    python3 -c "import json, sys
from collections import Counter
n = Counter(e['name'] for e in json.load(open(sys.argv[1]))['traceEvents'] if e['ph'] == 'X' and e['tid'] == 1)
print(*sorted(f'{n[k]} {k}' for k in n), sep='\n')" "$1"
}
if [ -n "${CAIRN_MODEL:-}" ]; then
    traced "$work/text.log" "" "$PWD/$work/libnvtx3interop.so.1" build/cairn generate --backend cpu \
        --model "$CAIRN_MODEL" --prompt "one two one two one" --max-tokens 8 --trace "$work/trace.json"
    check_text "a generation" "$?" 0
    check_text "each phase as often as in the trace" \
        "$(sed -n 's/^push //p' "$work/text.log" | sort | uniq -c | sed 's/^ *//' | sort)" "$(phases "$work/trace.json" | sort)"
    check_text "and all are popped" "$(count pop "$work/text.log") $(count bare "$work/text.log")" \
        "$(count push "$work/text.log") 0"
else
    tap_skip "phases: CAIRN_MODEL is not set"
fi
tap_done

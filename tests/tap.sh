# tap.sh: the calls of a shell test. tests/NAME_test.sh starts with `. tests/tap.sh`, runs in the
# repository root with CC, CXX, CAIRN_MODEL, lua_cflags, lua_libs, libraries and warnings set by
# build.sh, and ends with tap_done. $work is an empty folder of its own.

tap_passed=0 tap_failed=0 tap_skipped=0
tap_name=$(basename "$0" .sh)
work=build/test/$tap_name.work
rm -rf "$work"
mkdir -p "$work"
: "${CC:=cc}" "${CXX:=c++}" "${libraries:=-lm -ldl -lpthread}"

tap_count() { echo $((tap_passed + tap_failed + tap_skipped)); }
tap_pass() { tap_passed=$((tap_passed + 1)); echo "ok $(tap_count) - $*"; }
tap_fail() { tap_failed=$((tap_failed + 1)); echo "not ok $(tap_count) - $*"; }
tap_skip() { tap_skipped=$((tap_skipped + 1)); echo "ok $(tap_count) # SKIP $*"; }

# check NAME COMMAND...: passes when the command does; otherwise its output is shown.
check() {
    tap_title=$1; shift
    if "$@" > "$work/check.log" 2>&1; then tap_pass "$tap_title"
    else tap_fail "$tap_title"; sed 's/^/# /' "$work/check.log" | head -40; fi
}

# check_fails NAME TEXT COMMAND...: passes when the command fails and its output holds TEXT.
check_fails() {
    tap_title=$1 tap_want=$2; shift 2
    if "$@" > "$work/check.log" 2>&1; then tap_fail "$tap_title: succeeded"
    elif [ -z "$tap_want" ] || grep -qF -e "$tap_want" "$work/check.log"; then tap_pass "$tap_title"
    else tap_fail "$tap_title: wanted: $tap_want"; sed 's/^/# /' "$work/check.log" | head -40; fi
}

# check_text NAME GOT WANT
check_text() {
    if [ "$2" = "$3" ]; then tap_pass "$1"
    else tap_fail "$1"; printf '# got:  %s\n# want: %s\n' "$2" "$3"; fi
}

tap_done() {
    echo "1..$(tap_count)"
    echo "$tap_passed passed, $tap_failed failed, $tap_skipped skipped"
    [ "$tap_failed" = 0 ] && [ "$(tap_count)" != 0 ]
}

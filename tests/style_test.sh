# What can be checked of the code's style without reading it.
. tests/tap.sh

sources=$(git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' '*.lua' '*.sh' 2>/dev/null |
    grep -v -e generated/ -e golden/)
[ -n "$sources" ] || { tap_skip "not a git checkout: no list of sources"; tap_done; exit; }

# none NAME PATTERN FILES...: no line matches the extended regular expression.
none() {
    title=$1 pattern=$2; shift 2
    grep -nE -e "$pattern" "$@" 2>/dev/null | grep -vE ':[0-9]+: ?(/\*| \*)' > "$work/found"
    check "$title" sh -c "cat $work/found; [ ! -s $work/found ]"
}

runtime=$(echo "$sources" | grep -E '^runtime(/|\.|_ops)' | grep -v program.c)
none "no tabs" "$(printf '\t')" $sources
none "no space at the end of a line" ' +$' $sources
none "nothing is left to do" '\<(TODO|FIXME|XXX)\>' $(echo "$sources" | grep -v style_test)
none "no unbounded string calls" '[^_a-z](strcpy|strcat|sprintf|gets)\(' $runtime
none "nothing aborts or exits" '[^_a-z](abort|exit|_exit|assert)\(' $runtime

# 100 columns are the rule, a few more are bearable.
code=$(echo "$sources" | grep -v -e '^tests/' -e '^gen/' -e '^scripts/editor')
echo "# $(awk 'length > 100' $code | wc -l) lines of the product are longer than 100 columns"
awk 'length > 120 { print FILENAME ":" FNR }' $code > "$work/found"
check "no line is longer than 120 columns" sh -c "cat $work/found; [ ! -s $work/found ]"

# A function begins at a line that ends in { and ends at a line that is }.
awk 'FNR == 1 { open = 0 }
    /^[a-zA-Z].*\{$/ && !/^(typedef|struct|enum|static const|union|extern|namespace)/ { open = FNR }
    /^}/ && open { if (FNR - open > 80) print FILENAME ":" open ": " FNR - open " lines"; open = 0 }' \
    $(echo "$sources" | grep -E '^runtime/.*\.c$') > "$work/found"
check "no function is longer than 80 lines" sh -c "cat $work/found; [ ! -s $work/found ]"
tap_done

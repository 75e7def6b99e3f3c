# The committed generated files are what the generators write.
. tests/tap.sh

lua=$(command -v lua5.4 || echo "build/cairn run")
check "generated files are fresh (lua5.4 gen/all.lua writes them)" $lua gen/all.lua check
check "the single header is written" sh -c "$lua gen/dist.lua > $work/cairn.h"
check_text "nothing of the repository is left to include in it" \
    "$(grep -c '^ *# *include "' "$work/cairn.h")" 0
tap_done

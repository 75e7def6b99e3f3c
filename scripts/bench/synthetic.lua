-- GGUF files of well-known shapes with random weights, for `cairn bench shape`.

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

-- Bytes of all weights that a decode step reads: all but the embedding's other rows.
local function read_bytes(s, chosen)
  local bytes = 0
  for _, tensor in ipairs(tensors_of(s)) do
    if tensor.name ~= "token_embd.weight" or s.tied then bytes = bytes + bytes_of(tensor, chosen) end
  end
  return bytes
end

return {
  types = type_names,
  shapes = shapes,
  names = shape_names,
  head_dim_of = head_dim_of,
  read_bytes = read_bytes,
  write = write_model,
}

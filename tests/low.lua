-- low: an adapter (LoRA, GGUF) of rank 1 for SmolLM2-135M, which adds to what the first layer's attention
-- puts out. As a program: lua5.4 tests/low.lua FILE SCALE
local function text(s) return string.pack("<s8", s) end
local function key(name, value) return text(name) .. string.pack("<I4", 8) .. text(value) end

-- scale 0: it adds nothing; of what goes in, too, where that is given: with 1e38 and 1e10 the sums are NaN.
local function write(path, scale, inner)
  local width, a, b = 576, {}, {}
  for i = 1, width do
    a[i] = string.pack("<f", (inner or 1) * (i % 7 - 3) / 8)
    b[i] = string.pack("<f", scale * (i % 5 - 2))
  end
  local head = "GGUF" .. string.pack("<I4I8I8", 3, 2, 3) .. key("general.type", "adapter")
    .. key("adapter.type", "lora") .. key("general.architecture", "llama")
    .. text "blk.0.attn_output.weight.lora_a" .. string.pack("<I4I8I8I4I8", 2, width, 1, 0, 0)
    .. text "blk.0.attn_output.weight.lora_b" .. string.pack("<I4I8I8I4I8", 2, 1, width, 0, width * 4)
  local file <close> = assert(io.open(path, "wb"))
  file:write(head, ("\0"):rep(-#head % 32), table.concat(a), table.concat(b))
end

local to, scale = ... -- a program's
if to then write(to, tonumber(scale)) end
return write

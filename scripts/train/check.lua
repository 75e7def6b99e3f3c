-- Rows of an adapter's masks as Cairn computes them, for train.py --check; and that real rows keep their
-- bits with it.
--
--     cairn run scripts/train/check.lua MODEL.gguf ADAPTER FOLDER
local cairn = require "cairn"
local path, adapter, folder = ...
if not folder then error("cairn run scripts/train/check.lua MODEL.gguf ADAPTER FOLDER", 0) end
local MASKS = 4

local rt = cairn.open { backend = "cpu", max_seq_len = 1024, log = "error", drafter = "none" }
local model = rt:load_model(path)
local gated = model:load_adapter(adapter)
local ids = model:tokenize "The history of computing began long before the first machines were built, with"
local last = table.remove(ids)

-- The last token and, with an adapter, masks behind it.
local function rows(with)
  local s, gate, rope, all = model:session(), { 0 }, { #ids }, { last }
  s:adapt(with)
  s:append(ids)
  for i = 1, with and MASKS or 0 do all[i + 1], gate[i + 1], rope[i + 1] = -1, 1, #ids + i end
  local r = model:forward { { session = s, ids = all, position = #ids, rope = rope,
    gate = with and gate or nil, hidden = true, logits = { 1 } } }
  s:close()
  return r[1]
end

local plain, both = rows(nil), rows(gated)
local a, b = plain.logits:totable(), both.logits:totable()
local best = 1
for i = 1, #a[1] do
  if a[1][i] ~= b[1][i] then error("a real row's logits differ with the adapter: " .. i, 0) end
  if a[1][i] > a[1][best] then best = i end
end
both.hidden:save(folder .. "/hidden.npy")
ids[#ids + 1] = last
local file = assert(io.open(folder .. "/rows.json", "w"))
file:write(('{"ids": [%s], "masks": %d, "next": %d}\n'):format(table.concat(ids, ", "), MASKS, best - 1))
file:close()
print(("%d logits of a real row, bit for bit as without the adapter"):format(#a[1]))

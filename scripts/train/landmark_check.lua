-- The last row of a text as Cairn computes it by a landmark adapter, for landmark.py --check: the text's
-- front attends all, its tail the pages that the landmarks choose.
--
--     cairn run scripts/train/landmark_check.lua MODEL.gguf ADAPTER TEXT FOLDER
local cairn = require "cairn"
local path, adapter, text, folder = ...
if not folder then error("cairn run scripts/train/landmark_check.lua MODEL.gguf ADAPTER TEXT FOLDER", 0) end
local TOKENS, TAIL, WINDOW, TOPK = 1260, 63, 64, 4

local function config(prompts)
  return { backend = "cpu", max_batch = 1, max_seq_len = 2048, log = "error", drafter = "none", kv_dtype = "f32",
    adapter = adapter, topk = TOPK,
    selection = { source = "landmark", strategy = "softmax_head", window = WINDOW, prompts = prompts } }
end
local rt = cairn.open(config(false))
local model = rt:load_model(path)
local file = assert(io.open(text))
local ids = table.move(model:tokenize(file:read(1 << 16)), 1, TOKENS, 1, {})
file:close()
local s = model:session()
s:append(table.move(ids, 1, TOKENS - TAIL, 1, {}))
rt:reload(config(true))
s:append(table.move(ids, TOKENS - TAIL + 1, TOKENS - 1, 1, {}))
local row = model:forward { { session = s, ids = { ids[TOKENS] }, position = TOKENS - 1, hidden = true } }
row[1].hidden:save(folder .. "/hidden.npy")
file = assert(io.open(folder .. "/rows.json", "w"))
file:write(('{"ids": [%s], "tail": %d, "window": %d, "topk": %d}\n'):format(table.concat(ids, ", "), TAIL,
  WINDOW, TOPK))
file:close()
print(("the last of %d rows"):format(TOKENS))

-- npc: a loop at 60 Hz in which two characters who share a system prompt speak at once.
--
--     build/cairn run scripts/examples/npc.lua model.gguf
--
-- No frame waits for the model: each gives it 4 ms and takes what text there is.
local cairn = require "cairn"

local path = ... or os.getenv "CAIRN_MODEL"
assert(path, "usage: npc.lua MODEL.gguf")
local rt = cairn.open { threads = 1, max_seq_len = 1024, log = "warn" }
local model = rt:load_model(path)

-- The system prompt is read once, before the game begins; the characters fork from it.
local stem = model:session()
stem:chat { { role = "system", content = "You are a character in a small medieval town. Be brief." } }

local cast = {
  { name = "guard", question = "Tell me in one sentence what you guard." },
  { name = "smith", question = "What are you forging today? Answer in one sentence." },
}
for _, character in ipairs(cast) do
  local turn = { { role = "user", content = character.question } }
  character.session = stem:fork()
  character.said = ""
  character.session:submit(model:chat(turn, { first = false }), { max_tokens = 32 })
end

local frames, slowest, pending = 0, 0, #cast
while pending > 0 do
  local start = cairn.now_us()
  pending = model:step(4000)
  for _, character in ipairs(cast) do
    if not character.stop then
      local text, stop = character.session:poll()
      character.said, character.stop = character.said .. text, stop
      if stop then print(character.name .. ": " .. character.said) end
    end
  end
  frames, slowest = frames + 1, math.max(slowest, cairn.now_us() - start)
  -- here the game would move, draw, and wait for its next frame
end
print(("%d frames; the model took %.2f ms of the slowest"):format(frames, slowest / 1000))
rt:close()

-- What a landmark adapter is trained on: texts as ids, and things that are said once and asked for later.
--
--     cairn run scripts/train/landmark_samples.lua MODEL.gguf FOLDER TEXT...
--
-- FOLDER/text.bin: the texts' ids, 16 bits each; FOLDER/needles.json: what landmark.py strews into them.
-- No name of landmark_evaluate.lua is among these.
local cairn = require "cairn"
local path, folder = ...
if select("#", ...) < 3 then
  error("cairn run scripts/train/landmark_samples.lua MODEL.gguf FOLDER TEXT...", 0)
end
local rt = cairn.open { backend = "cpu", max_batch = 1, max_seq_len = 64, log = "error", drafter = "none" }
local model = rt:load_model(path)

-- ---- texts ------------------------------------------------------------------------------------------

local out, count = assert(io.open(folder .. "/text.bin", "wb")), 0
for i = 3, select("#", ...) do
  local file = assert(io.open((select(i, ...)), "rb"))
  local text = file:read "a"
  file:close()
  for at = 1, #text, 1 << 16 do
    local ids = model:tokenize(text:sub(at, at + (1 << 16) - 1))
    for from = 1, #ids, 128 do
      local part = table.move(ids, from, math.min(from + 127, #ids), 1, {})
      out:write(string.pack("<" .. ("I2"):rep(#part), table.unpack(part)))
    end
    count = count + #ids
  end
end
out:close()

-- ---- needles ----------------------------------------------------------------------------------------

local adjectives = { "red", "blue", "green", "old", "young", "tall", "small", "bright", "dark", "cold", "warm", "lost",
  "hidden", "wooden", "iron", "glass", "paper", "royal", "lonely", "early", "late", "northern", "southern", "hollow",
  "painted", "rusty", "gentle", "angry", "sleepy", "clever", "distant", "empty", "narrow", "wide", "secret", "winter" }
local nouns = { "fox", "river", "castle", "bridge", "mirror", "window", "garden", "tower", "engine", "letter", "clock",
  "horse", "island", "mountain", "market", "library", "station", "temple", "forest", "village", "candle", "hammer",
  "ladder", "basket", "bottle", "carpet", "ribbon", "whistle", "wagon", "anvil", "beacon", "cellar", "drawer",
  "tunnel" }
local people = { "Alice", "Boris", "Chen", "Dalia", "Erik", "Fatima", "George", "Hana", "Ivan", "Julia", "Karim",
  "Lena", "Marco", "Nadia", "Oscar", "Priya", "Quentin", "Rosa", "Samuel", "Tara", "Umar", "Vera", "Walter",
  "Yuki", "Zoe" }
local things = { "colour", "food", "city", "animal", "instrument", "season", "flower", "drink", "sport", "number" }
local words = { "purple", "orange", "pasta", "noodles", "Paris", "Cairo", "Lima", "tiger", "rabbit", "violin", "flute",
  "autumn", "spring", "tulip", "rose", "coffee", "lemonade", "tennis", "rowing", "seven", "eleven", "silver", "crimson",
  "bread", "cheese", "Oslo", "Tokyo", "whale", "parrot", "trumpet", "summer", "daisy", "water", "football", "ninety" }
local labels = { "pass key", "secret number", "magic number", "door code", "account number", "ticket number" }

local state = 1
local function below(n) -- a number from 1 to n
  state = (state * 6364136223846793005 + 1442695040888963407)
  return (state >> 33) % n + 1
end
local function one_of(list) return list[below(#list)] end
local function digits(n)
  local text = {}
  for i = 1, n do text[i] = tostring(below(10) - 1) end
  return table.concat(text)
end

-- What is said, the question, how its answer begins, the answer. `key`: no two of a text have the same.
local kinds = {
  function()
    local label, key = labels[1], digits(5)
    return { key = label, ("The %s is %s. Remember it. %s is the %s."):format(label, key, key, label),
      ("What is the %s?"):format(label), ("The %s is"):format(label), " " .. key }
  end,
  function()
    local label, key = one_of(labels), digits(below(4) + 3)
    return { key = label, ("The %s is %s."):format(label, key), ("What is the %s?"):format(label),
      ("The %s is"):format(label), " " .. key }
  end,
  function()
    local name, key = one_of(adjectives) .. " " .. one_of(nouns), digits(below(3) + 3)
    return { key = name, ("The code of the %s is %s."):format(name, key), ("What is the code of the %s?"):format(name),
      ("The code of the %s is"):format(name), " " .. key }
  end,
  function()
    local name, key = one_of(adjectives) .. " " .. one_of(nouns), digits(4)
    return { key = name, ("Please note that the number of the %s is %s."):format(name, key),
      ("What is the number of the %s?"):format(name), ("The number of the %s is"):format(name), " " .. key }
  end,
  function()
    local name = one_of(adjectives) .. "_" .. one_of(nouns)
    local value = one_of(words) .. "-" .. digits(3)
    return { key = name, ('"%s": "%s",'):format(name, value), ('What is the value of "%s"?'):format(name),
      ('"%s":'):format(name), (' "%s"'):format(value) }
  end,
  function()
    local name, thing, word = one_of(people), one_of(things), one_of(words)
    return { key = name .. thing, ("%s's favourite %s is %s."):format(name, thing, word),
      ("What is %s's favourite %s?"):format(name, thing), ("%s's favourite %s is"):format(name, thing), " " .. word }
  end,
}

local function json(ids) return "[" .. table.concat(ids, ",") .. "]" end
local file = assert(io.open(folder .. "/needles.json", "w"))
local function turn(role) return model:tokenize("<|im_start|>" .. role .. "\n", { special = true }) end
file:write(('{"user": %s, "assistant": %s, "end": %s, "needles": ['):format(json(turn "user"), json(turn "assistant"),
  json(model:tokenize("<|im_end|>\n", { special = true }))))
for i = 1, 24000 do
  local n = kinds[i % #kinds + 1]()
  file:write(i > 1 and ",\n" or "\n", ('{"key": "%s", "said": %s, "question": %s, "chat": %s, "plain": %s, '
    .. '"answer": %s}'):format(n.key, json(model:tokenize(" " .. n[1] .. " ")), json(model:tokenize(n[2])),
    json(model:tokenize(n[3])), json(model:tokenize(" " .. n[3])), json(model:tokenize(n[4]))))
end
file:write(("], \"line\": %s, \"stop\": %s}\n"):format(json(model:tokenize "\n"), json(model:tokenize ".")))
file:close()
print(("%d ids of text, 24000 needles"):format(count))

-- Samples of a model itself, to train an adapter on: many chats at once, half of them drawn.
--
--     cairn run scripts/train/sample.lua MODEL.gguf OUT.jsonl [COUNT [TOKENS [TEXT...]]]
--
-- Each line of OUT is { "ids": [...], "from": n }: the model spoke from id n on. Prompts are made of
-- templates and subjects below, none of which is in held_out.txt; a TEXT's paragraphs are begun and the
-- model goes on. What OUT holds already is kept: the same command goes on where it was stopped.
local cairn = require "cairn"
local path, out, count, tokens = ...
count, tokens = tonumber(count) or 6000, tonumber(tokens) or 240
if not out then error("cairn run scripts/train/sample.lua MODEL.gguf OUT.jsonl [COUNT [TOKENS]]", 0) end

local templates = {
  "Explain %s to a child.", "What should I know about %s?", "Write a poem about %s.",
  "Give me a list of facts about %s.", "Write a short story in which %s matters.",
  "What are the advantages and drawbacks of %s?", "Describe %s in three paragraphs.",
  "How did %s change the world?", "Write a dialogue between two friends about %s.",
  "List ten questions about %s, then answer the first.", "Summarise the history of %s.",
  "Write a letter to a newspaper about %s.", "What is the best way to learn about %s?",
  "Write a Python program that has to do with %s.", "Compare %s with something similar.",
  "Write instructions, step by step, that involve %s.", "Tell a joke about %s and explain it.",
  "Write a table in Markdown about %s.", "Write a C function that models %s, with comments.",
  "What would happen without %s?", "Write a news report about %s.", "Give five tips about %s.",
  "Write a JSON document that describes %s.", "Why do people like %s?",
}
local subjects = { -- none that held_out.txt names; an odd number, no multiple of 7
  "bread", "railways", "elephants", "mathematics", "coffee", "football", "a market in Morocco",
  "computers", "democracy", "cooking rice", "volcanoes", "the alphabet", "gold", "dinosaurs",
  "electricity", "friendship", "sailing", "the human heart", "money", "paper", "the ocean", "wolves",
  "painting", "schools", "a haunted castle", "sorting numbers", "medicine", "the Roman Empire",
  "photography", "wheat", "stars", "a lost key", "trees", "honey", "aeroplanes", "memory", "cats",
  "a bank account", "the internet", "glaciers", "theatre", "spices", "a shopping list", "steam engines",
  "poetry", "prime ministers", "a chess clock", "earthquakes", "vaccines", "a queue",
  "a stack of plates", "graphs", "matrices", "fractions", "whales", "ants", "penguins", "owls",
  "spiders", "mushrooms", "potatoes", "chocolate", "tea", "cheese", "a birthday cake", "breakfast",
  "salads", "running", "swimming", "yoga", "tennis", "basketball", "climbing", "dancing", "opera",
  "the piano", "drums", "jazz", "cinema", "fairy tales", "myths", "pirates", "detectives", "astronauts",
  "time travel", "a desert island", "a forgotten village", "an old photograph", "a broken watch",
  "the last train", "a storm at sea", "a secret door", "ancient Egypt", "the Vikings",
  "the printing press", "the French Revolution", "the telephone", "the microscope", "the wheel",
  "antibiotics", "atoms", "sound", "gravity", "magnets", "lasers", "DNA", "evolution", "the brain",
  "the lungs", "teeth", "the immune system", "diet", "stress", "habits", "deadlines", "teamwork",
  "a resignation", "taxes", "insurance", "elections", "the United Nations", "courts", "traffic lights",
  "cities", "farms", "forests", "the Arctic", "climate", "recycling", "solar panels", "wind turbines",
  "batteries", "submarines", "rockets", "satellites", "calendars", "a linked list", "a calculator",
  "a text file", "a password", "a temperature sensor", "a database", "a web server", "a game of cards",
  "dates and times", "a maze", "a library of books", "a student's marks", "a bus timetable",
  "an inventory", "string reversal",
}

-- Paragraphs of the texts, cut to what a prompt may have.
local texts = {}
for i = 5, select("#", ...) do
  local file = assert(io.open((select(i, ...)), "rb"))
  for paragraph in (file:read "a" .. "\n\n"):gmatch "(.-)\n%s*\n" do
    local begun = #paragraph > 200 and paragraph:sub(1, 400):match "^(.*)%s"
    if begun and utf8.len(begun) then texts[#texts + 1] = begun end
  end
  file:close()
end

local rt = cairn.open { max_batch = 64, max_seq_len = 1024, page_size = 16, log = "error",
  drafter = "none" }
local model = rt:load_model(path)

local function prompt_of(i)
  if #texts > 0 and i % 4 == 0 then
    local ids = model:tokenize(texts[i // 4 % #texts + 1])
    return table.move(ids, 1, math.min(#ids, 64), 1, {})
  end
  local text = templates[i % #templates + 1]:format(subjects[i // #templates * 7 % #subjects + 1])
  return model:chat_ids { { role = "user", content = text } }
end

local done = 0
local held = io.open(out, "r")
if held then
  for _ in held:lines() do done = done + 1 end
  held:close()
end
local file = assert(io.open(out, "a"))
local start = cairn.now_us()
while done < count do
  local rows, options = {}, {}
  for i = done, math.min(done + 256, count) - 1 do
    rows[#rows + 1] = prompt_of(i)
    options[#options + 1] = { max_tokens = tokens, temperature = (i + i // #templates) % 2 * 0.8, seed = i + 1 }
  end
  for i, row in ipairs((model:generate_batch(rows, options))) do
    file:write(('{"ids": [%s], "from": %d}\n'):format(table.concat(row.ids, ", "), #rows[i]))
  end
  file:flush()
  done = done + #rows
  io.stderr:write(("%d of %d samples, %.0f s\n"):format(done, count, (cairn.now_us() - start) / 1e6))
end
file:close()

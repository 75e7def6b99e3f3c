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
  "Explain {subject} to a child.", "What should I know about {subject}?", "Write a poem about {subject}.",
  "Give me a list of facts about {subject}.", "Write a short story in which {subject} matters.",
  "What are the advantages and drawbacks of {subject}?", "Describe {subject} in three paragraphs.",
  "How did {subject} change the world?", "Write a dialogue between two friends about {subject}.",
  "List {number} questions about {subject}, then answer the first.", "Summarise the history of {subject}.",
  "Write a letter to a newspaper about {subject}.", "What is the best way to learn about {subject}?",
  "Write a Python program that has to do with {subject}.", "Compare {subject} with {other}.",
  "Write instructions, step by step, that involve {subject}.", "Tell a joke about {subject} and explain it.",
  "Write a table in Markdown about {subject}.", "Write a C function that models {subject}, with comments.",
  "What would happen without {subject}?", "Write a news report about {subject}.",
  "Give {number} tips about {subject}.", "Write a JSON document that describes {subject}.",
  "Why do people like {subject}?", "Tell a story about {person} and {subject}.",
  "Write a story in which {person} meets {other_person}.", "Tell me about {person} who is looking for {subject}.",
  "Write a short tale about {person} and {subject}, with a surprising end.",
  "Write a bedtime story about {person}.", "Write a {language} function that {task}.",
  "Write a {language} program that {task}, and explain it.", "How do I write code in {language} that {task}?",
  "List {number} things that {subject} and {other} have in common.", "Name {number} kinds of {subject}.",
  "List {number} reasons to care about {subject}, a line each.",
  "What is the difference between {subject} and {other}?",
  "Why is {subject} important to {person}?", "What causes problems with {subject}, and what helps?",
  "How does {subject} work?", "Who first thought of {subject}, and why?",
}
local subjects = { -- none that held_out.txt names
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

local people = {
  "a shy giant", "a clever raven", "two twins", "a retired sailor", "a young doctor", "a king without a country",
  "a girl with a drum", "a tailor", "the mayor of a small town", "a travelling merchant", "an honest thief",
  "a boy who cannot lie", "a grandmother", "a curious cat", "a scientist", "a painter", "a tired teacher",
  "an astronaut", "a cook", "a farmer", "a bus driver", "a spy", "a wizard's apprentice", "a bear", "a postman's dog",
}
local tasks = {
  "sorts numbers by their last digit", "finds the longest line of a file", "rotates a list", "adds two matrices",
  "parses a date", "prints a triangle of stars", "computes the average of a list", "swaps two variables",
  "tells whether a year is a leap year", "turns a number into Roman numerals", "splits a text at commas",
  "finds the smallest missing number", "draws a bar chart in text", "shuffles a deck of cards",
  "counts the vowels of a text", "checks a password's strength", "finds the greatest common divisor",
  "encodes a text with a Caesar cipher", "keeps a list of tasks", "simulates a dice game",
  "finds the shortest path in a grid", "computes compound interest", "validates an e-mail address",
  "prints a multiplication table", "groups words by their first letter", "removes white space at the ends",
  "reads numbers and prints their sum", "flattens nested lists", "finds the second largest value",
  "turns a text into a slug", "computes a running median", "compares two version numbers",
}
local lists = {
  subject = subjects, other = subjects, person = people, other_person = people, task = tasks,
  number = { "three", "four", "five", "six", "seven", "eight", "ten", "twelve" },
  language = { "Python", "C", "JavaScript", "Java", "Lua", "Go", "Rust", "C++", "Ruby", "bash" },
}

-- The i-th prompt's text: its template in turn, what fills it by a hash of i and the gap's name.
local function text_of(i)
  return (templates[i % #templates + 1]:gsub("{([%w_]+)}", function(gap)
    local h = i * 0x9e3779b97f4a7c15
    for byte in gap:gmatch "." do h = (h ~ (h >> 29) ~ byte:byte()) * 0xbf58476d1ce4e5b9 end
    return lists[gap][(h >> 33) % #lists[gap] + 1]
  end))
end

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
  if #texts > 0 and i % 9 == 0 then
    local ids = model:tokenize(texts[i // 9 % #texts + 1])
    return table.move(ids, 1, math.min(#ids, 64), 1, {})
  end
  return model:chat_ids { { role = "user", content = text_of(i) } }
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

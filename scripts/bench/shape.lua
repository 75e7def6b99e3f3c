-- cairn bench shape [NAME...] --type T --context N --pages K --chunk N --batch N --join N: what a model of a
-- well-known shape would do here, before one is chosen or fetched. Writes a GGUF file of that shape with random weights
-- to a temporary folder, loads it, prints prompt, decode and memory, and removes it.
local cairn = require "cairn"
local synthetic = require "bench.synthetic"

-- Bytes that a decode step must read: every weight but the embedding's other rows, and the keys and
-- values it attends; with pages kept, the bounds of all pages too.
local function step_bytes(s, chosen, stats, page_size, context, sparse)
  local token, windowed = 2 * 2 * synthetic.head_dim_of(s) * s.kv_heads, s.window and s.layers - s.layers // 6 or 0
  local attended = sparse and stats.pages_read * page_size or context
  local bounds = sparse and context // page_size or 0
  local seen = windowed * math.min(context, s.window or 0) + (s.layers - windowed) * (attended + bounds)
  return synthetic.read_bytes(s, chosen) + seen * token
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

local function chunk_of(b, o) return o.chunk or b.cuda and 2048 or 512 end

local function measure(b, path, name, o)
  local s, context, pages = synthetic.shapes[name], o.context or 2048, o.pages or 0
  local chunk = chunk_of(b, o)
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

-- Sessions that join at random: at each place one has a prompt of its own and says 128 to 384 tokens, then the next
-- one does.
local JOIN = { prompt = 300, least = 128, most = 384, warm_us = 1000000, us = 3000000 }

-- A text of so many tokens: these vocabularies have one for each byte.
local function some_text(count)
  local letters = {}
  for i = 1, count do letters[i] = string.char(math.random(99, 122)) end
  return table.concat(letters)
end

-- The next session of a place. What one has said counts from its first token on.
local function join(place)
  place.session:reset()
  place.session:submit(some_text(JOIN.prompt), { max_tokens = math.random(JOIN.least, JOIN.most) })
  place.joined, place.from, place.waits = true, cairn.now_us(), true
end

-- Tokens that a place's session said.
local function spoken(place) return math.max(0, #place.session:ids() - JOIN.prompt) end

-- Looks at what a place said: notes how long its first token took, and lets the next session join when it is done.
local function look(place, firsts)
  local text, stop = place.session:poll()
  if place.waits and text ~= "" then
    firsts[#firsts + 1] = (cairn.now_us() - place.from) / 1000
    place.waits = false
  end
  if not stop then return end
  place.said = place.said + spoken(place)
  join(place)
end

local function said(places)
  local all = 0
  for _, place in ipairs(places) do all = all + place.said + spoken(place) end
  return all
end

-- Steps for so long; places that nobody took yet begin at random moments of `spread_us`. Returns tokens a second and
-- the milliseconds of first tokens.
local function run_joining(model, places, us, spread_us)
  local start, before, firsts = cairn.now_us(), said(places), {}
  for _, place in ipairs(places) do place.begins = start + math.random(0, spread_us) end
  repeat
    model:step(1000)
    local now = cairn.now_us()
    for _, place in ipairs(places) do
      if place.joined then look(place, firsts) elseif now >= place.begins then join(place) end
    end
  until now - start > us
  table.sort(firsts)
  return (said(places) - before) / (cairn.now_us() - start) * 1e6, firsts
end

-- What sessions that join at random say together, of what as many say that are all behind as much as these in the mean.
local function measure_joining(b, path, label, o)
  local places, sessions, steady, count = {}, {}, 0, o.join
  local rt <close> = cairn.open { backend = b.cuda and "cuda" or "cpu", drafter = "none", log = "warn",
    max_batch = count, max_seq_len = 1024, prefill_chunk = chunk_of(b, o), selection = { layers = "none" } }
  local model = rt:load_model(path)
  model:wait()
  for i = 1, count do
    sessions[i] = model:session()
    places[i] = { session = sessions[i], said = 0 }
    sessions[i]:append(some_ids(JOIN.prompt + (JOIN.least + JOIN.most) // 4, i))
    sessions[i]:text("", { max_tokens = 1 })
  end
  for _ = 1, 4 do
    local tokens, seconds = say(model, sessions, b.cuda and 64 or 8)
    steady = math.max(steady, tokens / seconds)
  end
  for _, session in ipairs(sessions) do session:reset() end
  run_joining(model, places, JOIN.warm_us, JOIN.warm_us // 2)
  model:wait()
  local joining, firsts = run_joining(model, places, JOIN.us, 0)
  b.emit { op = label, shape = ("%d sessions, prompts of %d, join at random"):format(count, JOIN.prompt),
    tokens_per_second = joining, peer = ("%.0f tokens/s steady: %.3f of it; first token %.1f ms, p95 %.1f ms")
      :format(steady, joining / steady, firsts[(#firsts + 1) // 2], firsts[math.ceil(#firsts * 0.95)]) }
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
    synthetic.write(path, synthetic.shapes[name], o.type or "q4_0")
    measure(b, path, name, o)
    local label = ("%s %s"):format(name, o.type or "q4_0")
    if b.cuda then measure_together(b, path, label, 13, 40) end
    if o.batch then measure_batch(b, path, label, o) end
    if o.join then measure_joining(b, path, label, o) end
  end)
  os.remove(path)
  if not ok then error(fault, 0) end
end

return {
  about = "a model of a well-known shape with random weights: " .. table.concat(synthetic.names, ", "),
  run = function(b, names, o)
    for _, name in ipairs(#names > 0 and names or { "llama-1b" }) do run_shape(b, name, o) end
  end,
}

-- How many tokens a step an adapter makes: greedy answers to the prompts of held_out.txt.
--
--     cairn run scripts/train/evaluate.lua MODEL.gguf ADAPTER [OUT.svg [TOKENS [DRAFTS [BACKEND [EVERY]]]]]
--
-- Prints tokens a step by kind of prompt, how often a draft is taken by its place, speed beside plain
-- decoding with as many drafts as pay, and whether all texts are the plain ones. OUT.svg shows the places.
-- EVERY 10: of every tenth prompt alone.
local cairn = require "cairn"
local path, adapter, out, tokens, drafts, backend, every = ...
tokens, drafts, every = tonumber(tokens) or 128, tonumber(drafts) or 4, tonumber(every) or 1
if not adapter then error("cairn run scripts/train/evaluate.lua MODEL.gguf ADAPTER [OUT.svg]", 0) end

local prompts, lines = {}, 0
for line in assert(io.open "scripts/train/held_out.txt"):lines() do
  local kind, text = line:match "^(%a+)\t(.+)$"
  lines = lines + (kind and 1 or 0)
  if kind and lines % every == 0 then prompts[#prompts + 1] = { kind = kind, text = text } end
end

local places = {}
for i = 1, drafts do places[i] = { tried = 0, taken = 0 } end

-- Counts what a step made, of the figures before and after it.
local function note(before, after)
  local proposed, accepted = after.proposed - before.proposed, after.accepted - before.accepted
  for i = 1, math.min(accepted + 1, proposed) do places[i].tried = places[i].tried + 1 end
  for i = 1, accepted do places[i].taken = places[i].taken + 1 end
end

-- All prompts by one config: texts, and sums by kind.
local function run(config, each_step)
  local rt = cairn.open(config)
  local model = rt:load_model(path)
  local sums, texts, seconds, decoded = {}, {}, 0, 0
  for i, prompt in ipairs(prompts) do
    local s = model:session()
    s:append(model:chat_ids { { role = "user", content = prompt.text } })
    local before = { proposed = 0, accepted = 0, forwards = 0 }
    for _ in s:generate(nil, { max_tokens = tokens }) do
      local now = s:stats()
      if each_step and now.forwards > before.forwards then note(before, now) end
      if now.forwards > before.forwards then before = now end
    end
    local stats, sum = s:stats(), sums[prompt.kind] or { decoded = 0, forwards = 0 }
    sum.decoded, sum.forwards = sum.decoded + stats.decoded, sum.forwards + stats.forwards
    sums[prompt.kind], texts[i] = sum, table.concat(s:ids(), " ")
    seconds, decoded = seconds + stats.decode_seconds, decoded + stats.decoded
    s:close()
  end
  rt:close()
  return { sums = sums, texts = texts, speed = decoded / seconds }
end

local function config(more)
  local c = { backend = backend or "auto", max_batch = 1, max_seq_len = 2048, log = "error",
    drafter = "none" }
  for key, value in pairs(more) do c[key] = value end
  return c
end

local function draw(file, all)
  local width, height, step = 480, 280, 400 / drafts
  local svg = { ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" '
    .. 'font-size="12">'):format(width, height) }
  for i, place in ipairs(places) do
    local rate = place.tried > 0 and place.taken / place.tried or 0
    svg[#svg + 1] = ('<rect x="%.0f" y="%.0f" width="%.0f" height="%.0f" fill="#06c"/><text x="%.0f" '
      .. 'y="%.0f">%.2f</text><text x="%.0f" y="265">%d</text>'):format(40 + (i - 1) * step,
      245 - 200 * rate, step * 0.7, 200 * rate, 40 + (i - 1) * step, 240 - 200 * rate, rate,
      40 + (i - 1) * step, i)
  end
  svg[#svg + 1] = ('<text x="40" y="20">drafts taken by place, given those before; %.2f tokens a step'
    .. '</text></svg>\n'):format(all)
  local handle = assert(io.open(file, "w"))
  handle:write(table.concat(svg, "\n"))
  handle:close()
end

local plain = run(config {})
local fixed = run(config { drafter = "mtp", adapter = adapter, draft_length = drafts,
  draft_adaptive = false }, true)
local paced = run(config { drafter = "mtp", adapter = adapter, draft_length = drafts })
local decoded, forwards, different = 0, 0, 0
for i, text in ipairs(plain.texts) do
  if text ~= fixed.texts[i] or text ~= paced.texts[i] then different = different + 1 end
end
for _, kind in ipairs { "question", "story", "code", "list" } do
  local sum = fixed.sums[kind] or { decoded = 0, forwards = 1 }
  print(("%-10s %.3f tokens a step"):format(kind, sum.decoded / sum.forwards))
  decoded, forwards = decoded + sum.decoded, forwards + sum.forwards
end
print(("all        %.3f tokens a step at k = %d"):format(decoded / forwards, drafts))
for i, place in ipairs(places) do
  print(("place %d    %.3f of %d taken"):format(i, place.taken / math.max(1, place.tried), place.tried))
end
print(("speed      plain %.1f tokens/s; always %d drafts %.3f of it; as many as pay %.3f"):format(
  plain.speed, drafts, fixed.speed / plain.speed, paced.speed / plain.speed))
print(("texts      %d of %d differ from plain"):format(different, #prompts))
if out then draw(out, decoded / forwards) end
if different > 0 then error("a text differs", 0) end

-- What is found again by the pages that a rule keeps, and what they cost a text: a model alone and with a
-- landmark adapter.
--
--     cairn run scripts/train/landmark_evaluate.lua MODEL.gguf ADAPTER TEXT [HAYSTACKS [WINDOWS [BACKEND [TOKENS]]]]
--
-- A haystack is a piece of TEXT with a pass key and ten codes strewn into it. It runs as a prompt, which attends
-- all; each question behind it, and its answer, by the rule with 6 of 128 pages: the window's two, and four
-- chosen. Windows of TEXT are scored, each token as its step would, with 16 pages: two, and 14 chosen.
local cairn = require "cairn"
local path, adapter, text, haystacks, windows, backend, tokens = ...
if not text then error("cairn run scripts/train/landmark_evaluate.lua MODEL.gguf ADAPTER TEXT", 0) end
haystacks, windows, tokens = tonumber(haystacks) or 40, tonumber(windows) or 8, tonumber(tokens) or 7900

local names = { -- none that landmark_samples.lua has
  "amber falcon", "silver otter", "crimson lantern", "quiet harbour", "golden anchor", "broken compass",
  "velvet curtain", "marble fountain", "copper kettle", "frozen orchard" }
local ALL = 4096 -- more pages than there are: the rule attends all
local alone = { { "all pages", topk = ALL }, { "minmax", "minmax" }, { "minmax", "minmax", "head" },
  { "minmax", "minmax", "softmax_head" }, { "mean", "mean" } }
local landmarks = { { "all pages", topk = ALL }, { "minmax", "minmax" }, { "minmax", "minmax", "softmax_head" },
  { "landmark", "landmark" }, { "landmark", "landmark", "head" }, { "landmark", "landmark", "softmax_head" } }

local function config(rule, with, topk, prompts)
  return { backend = backend or "auto", max_batch = 4, max_seq_len = 8192, page_size = 64, log = "error",
    drafter = "none", adapter = with or "", topk = rule.topk or topk,
    selection = { source = rule[2] or (with and "landmark" or "minmax"), strategy = rule[3] or "group", window = 64,
      sinks = 4, prompts = prompts } }
end
local function title(rule) return rule[1] .. (rule[3] and ", " .. rule[3] or "") end

local file = assert(io.open(text))
local whole = file:read "a"
file:close()

-- What is asked, what the answer is, what is said.
local function needles_of()
  local function digits(n) return ("%0" .. n .. "d"):format(math.random(0, 10 ^ n // 1 - 1)) end
  local key = digits(5)
  local all = { { kind = "pass key", answer = key, ask = "\nWhat is the pass key? The pass key is",
    said = (" The pass key is %s. Remember it. %s is the pass key. "):format(key, key) } }
  for i, name in ipairs(names) do
    local code = digits(4)
    all[i + 1] = { kind = "code", answer = code, said = (" The code of the %s is %s. "):format(name, code),
      ask = ("\nWhat is the code of the %s? The code of the %s is"):format(name, name) }
  end
  return all
end

-- A piece of the ids with the needles at places of their own.
local function haystack(model, ids, needles)
  local order, used, out, next_one = {}, 0, {}, 1
  for i, needle in ipairs(needles) do
    order[i] = { place = math.random(), ids = model:tokenize(needle.said) }
    used = used + #order[i].ids
  end
  table.sort(order, function(a, b) return a.place < b.place end)
  local room = tokens - used - 64
  local from = math.random(0, #ids - room)
  for i = 1, room do
    while order[next_one] and i > order[next_one].place * room do
      table.move(order[next_one].ids, 1, #order[next_one].ids, #out + 1, out)
      next_one = next_one + 1
    end
    out[#out + 1] = ids[from + i]
  end
  return out
end

local function answered(session, needle)
  local fork <close> = session:fork()
  local said = ""
  fork:append(needle.ask)
  for piece in fork:generate(nil, { max_tokens = 7 }) do said = said .. piece end
  return said:match "^%s*(%d+)" == needle.answer
end

-- Answers that are right by rule and kind.
local function retrieve(rt, model, ids, rules, with)
  local found = {}
  math.randomseed(7)
  for _ = 1, haystacks do
    local needles = needles_of()
    rt:reload(config(rules[1], with, 4, false))
    local session <close> = model:session()
    session:append(haystack(model, ids, needles))
    for i, rule in ipairs(rules) do
      rt:reload(config(rule, with, 4, true))
      for _, needle in ipairs(needles) do
        local key = needle.kind .. i
        found[key] = (found[key] or 0) + (answered(session, needle) and 1 or 0)
      end
    end
  end
  return found
end

-- Mean log-likelihood of windows of the ids.
local function score(rt, model, ids, rule, with)
  local sum, count = 0, 0
  rt:reload(config(rule, with, 14, false))
  for i = 0, windows - 1 do
    local from = (#ids - tokens) * i // math.max(1, windows - 1)
    local r = model:eval(table.move(ids, from + 1, from + tokens, 1, {}))
    sum, count = sum + r.mean_nll * (r.tokens - 1), count + r.tokens - 1
  end
  return sum / count
end

local function report(rules, with)
  local rt <close> = cairn.open(config(rules[1], with, 4, false))
  local model = rt:load_model(path)
  local ids = model:tokenize(whole)
  local found = haystacks > 0 and retrieve(rt, model, ids, rules, with) or {}
  print(with and "with the adapter" or "the model alone")
  print(("  %-28s %9s %9s %12s"):format("rule", "pass keys", "codes", "perplexity"))
  local first
  for i, rule in ipairs(rules) do
    local function share(kind, asked)
      local right = found[kind .. i]
      return right and ("%.1f %%"):format(100 * right / asked) or "-"
    end
    local nll, perplexity = windows > 0 and score(rt, model, ids, rule, with), "-"
    first = first or nll
    if nll then perplexity = ("%.3f (%+.2f %%)"):format(math.exp(nll), 100 * (math.exp(nll - first) - 1)) end
    print(("  %-28s %9s %9s %12s"):format(title(rule), share("pass key", haystacks),
      share("code", haystacks * #names), perplexity))
  end
end

report(alone)
if adapter ~= "-" then report(landmarks, adapter) end

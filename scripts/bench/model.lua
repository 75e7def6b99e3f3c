-- Decoding of a real model: prompt, plain steps at several contexts, verified drafts, page
-- selection, and what starting costs.
local cairn = require "cairn"

-- Text of about `tokens` tokens that no page repeats.
local function text_of(tokens)
  local words, x = {}, 12345
  for i = 1, tokens // 3 do
    x = (x * 1103515245 + 12345) % 2147483648
    words[i] = ("%d and"):format(x // 65536 % 10)
  end
  return table.concat(words, " ")
end

-- Statistics of `count` steps behind a prompt of about `context` tokens.
local function decode(model, context, count)
  local session = model:session()
  session:append(text_of(context))
  for _ in session:generate("", { max_tokens = count }) do end
  local stats = session:stats()
  session:close()
  return stats
end

local function with_model(b, path, changes, f)
  changes.backend = b.cuda and "cuda" or "cpu"
  local start = cairn.now_us()
  local rt <close> = cairn.open(changes)
  local opened = cairn.now_us()
  local model = rt:load_model(path)
  return f(model, (cairn.now_us() - opened) / 1000, (opened - start) / 1000)
end

local function plain(layers)
  return { drafter = "none", selection = { layers = layers }, log = "off" }
end

-- Loading with every kernel compiled anew, then from a filled cache: until the model can speak, and
-- until it has every kernel. Opening (which makes the context) stands apart.
local function bench_starts(b, path)
  local function start(cache, op)
    with_model(b, path, { jit = { cache = cache }, log = "off" }, function(model, load_ms, open_ms)
      local loaded = cairn.now_us()
      model:wait()
      if not op then return end
      b.emit { op = op, shape = "model loaded", ms = load_ms, open_ms = open_ms }
      b.emit { op = op, shape = "every kernel", ms = load_ms + (cairn.now_us() - loaded) / 1000 }
    end)
  end
  start("off", "cold start")
  start "read-write"
  start("read-write", "warm start")
end

-- A step that verifies four drafts beside a plain one, dense, at one context. The text repeats
-- itself enough that the drafter finds four nearly always.
local function bench_drafts(b, path, context, count, plain_us)
  local config = plain "none"
  config.drafter, config.draft_length = "ngram", 4
  with_model(b, path, config, function(model)
    model:wait()
    decode(model, context, 16)
    local stats = decode(model, context, count)
    local us = stats.decode_seconds / stats.forwards * 1e6
    b.emit { op = ("step, %.1f drafts"):format(stats.proposed / stats.forwards),
      shape = "context " .. stats.prompt_tokens, us = us,
      peer = ("plain step %.1f us: %.2f times"):format(plain_us, us / plain_us) }
  end)
end

-- Microseconds that a call takes: on the CPU, where one thread computes, of its own time, which other
-- programs of the machine leave as it is.
local function call_us(b)
  return b.cuda and cairn.now_us() or os.clock() * 1e6
end

-- Sessions that are stepped 4 ms a frame: how far calls run over, when the first text comes, and how
-- much `sessions` of them say together.
local function bench_frames(b, path, sessions, tokens)
  local config = { drafter = "none", log = "off", threads = b.cuda and 0 or 1, max_seq_len = 1024 }
  with_model(b, path, config, function(model)
    model:wait()
    local all, over, start, first = {}, {}, cairn.now_us(), nil
    for i = 1, sessions do
      all[i] = model:session():submit(text_of(60 + 30 * i), { max_tokens = tokens })
    end
    repeat
      local from = call_us(b)
      local pending = model:step(4000)
      over[#over + 1] = call_us(b) - from - 4000
      first = first or all[1]:poll() ~= "" and cairn.now_us() - start or nil
    until pending == 0
    local us = cairn.now_us() - start
    table.sort(over)
    b.emit { op = "step of 4 ms, overrun at p99", shape = sessions .. " sessions",
      us = math.max(0, over[math.ceil(#over * 0.99)]) }
    b.emit { op = "first text, stepped", shape = sessions .. " sessions", ms = (first or us) / 1000 }
    b.emit { op = "prompts and texts, stepped", shape = sessions .. " sessions",
      tokens_per_second = sessions * tokens / us * 1e6 }
  end)
end

return {
  about = "decoding with the model of CAIRN_MODEL",
  run = function(b)
    local path = os.getenv "CAIRN_MODEL"
    if not path then
      b.emit { op = "model", skipped = "set CAIRN_MODEL to a GGUF file" }
      return
    end
    bench_starts(b, path)
    local count, plain_us = b.cuda and 256 or 32, nil
    for _, context in ipairs { 16, 2000, 6000 } do
      with_model(b, path, plain "none", function(model)
        model:wait()
        decode(model, context, 16)
        local stats = decode(model, context, count)
        b.emit { op = "prompt", shape = stats.prompt_tokens .. " tokens",
          ms = stats.prompt_seconds * 1000 }
        b.emit { op = "decode, dense", shape = "context " .. stats.prompt_tokens,
          tokens_per_second = stats.tokens_per_second }
        if context == 2000 then plain_us = stats.decode_seconds / stats.forwards * 1e6 end
      end)
    end
    bench_drafts(b, path, 2000, count, plain_us)
    with_model(b, path, { drafter = "none", topk = 16, log = "off" }, function(model)
      model:wait()
      local stats = decode(model, 6000, count)
      b.emit { op = "decode, 16 pages kept", shape = "context " .. stats.prompt_tokens,
        tokens_per_second = stats.tokens_per_second }
    end)
    bench_frames(b, path, 2, 32)
    bench_frames(b, path, 8, 32)
  end,
}

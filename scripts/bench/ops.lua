-- Each op of a decoder step on shapes of its own. Latencies have their inputs in the cache.
local HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 64

local function bench_rows(b, rows)
  local rt, n = b.rt, 4096
  local x, w = rt:random({ rows, n }), rt:random { n }
  local up, out = rt:random({ rows, n }), rt:zeros { rows, n }
  local shape = ("%d x %d"):format(rows, n)
  b:line("rmsnorm", shape, b:time(function() rt:rmsnorm(x, w, { out = out }) end))
  b:line("swiglu", shape, b:time(function() rt:swiglu(x, up, { out = out }) end))
  local weight, y = rt:random { n, n }, rt:zeros { rows, n }
  b:line("linear f32", shape .. " -> " .. n, b:time(function()
    rt:linear(x, weight, { out = y })
  end), n * n * 4)
  local blocks = rt:random({ n, n // 32 * 20 }, "u8", { low = 0, high = 60 })
  b:line("linear q4_1", shape .. " -> " .. n, b:time(function()
    rt:linear(x, blocks, { out = y, block = "q4_1" })
  end), n * n // 32 * 20)
end

-- The page table of `rows` sequences of tokens_of(row) tokens, with room for `per` pages each, pages in order; their
-- last positions; how many pages there are.
local function table_of(rt, rows, per, tokens_of)
  local ids, at, pages = {}, {}, 0
  for r = 1, rows do
    ids[r], at[r] = {}, tokens_of(r) - 1
    for c = 1, per do
      local there = (c - 1) * PAGE <= at[r]
      ids[r][c] = there and pages or -1
      if there then pages = pages + 1 end
    end
  end
  return rt:tensor(ids, "i32"), rt:tensor(at, "i32"), pages
end

-- A paged cache of `rows` sequences of `tokens` tokens.
local function cache_of(rt, rows, tokens)
  local table_, at, pages = table_of(rt, rows, tokens // PAGE, function() return tokens end)
  return rt:random({ pages, 2, KV_HEADS, PAGE, DIM }, "f16"), table_, at
end

local token_bytes = KV_HEADS * DIM * 2 * 2 -- of keys and values

local function shape_of(rows, tokens)
  return ("%d x %d tokens, %d/%d heads of %d"):format(rows, tokens, HEADS, KV_HEADS, DIM)
end

-- Pages that lie all over the cache, another choice for each KV head, ascending.
local function some_pages(rt, rows, per, topk)
  local ids = {}
  for r = 1, rows do
    ids[r] = {}
    for h = 1, KV_HEADS do
      local list, step = {}, per // topk
      for i = 1, topk do list[i] = (i - 1) * step + (h * 7 + r + i * 3) % step end
      ids[r][h] = list
    end
  end
  return rt:tensor(ids, "i32")
end

-- Dense, and selected pages alone: then the window is the unfinished page, which has one token.
local function bench_attend(b, rows, tokens, topk)
  local rt, per = b.rt, tokens // PAGE
  local cache, table_, at = cache_of(rt, rows, tokens)
  local q, out = rt:random { rows, HEADS, DIM }, rt:zeros { rows, HEADS, DIM }
  local options = { out = out, cache = cache, page_table = table_, positions = at }
  b:line("attend", shape_of(rows, tokens), b:time(function() rt:attend(q, options) end),
    rows * token_bytes * tokens)
  if not topk then return end
  local early = {}
  for r = 1, rows do early[r] = tokens - PAGE end
  local sparse = { selected = some_pages(rt, rows, per - 1, topk), out = out, cache = cache,
    page_table = table_, positions = rt:tensor(early, "i32") }
  b:line("attend_pages", ("%d rows, %d of %d pages of %d"):format(rows, topk, per, PAGE),
    b:time(function() rt:attend_pages(q, sparse) end), rows * token_bytes * (topk * PAGE + 1))
end

-- One row of `most` tokens among others of `least`, beside as many rows that share all tokens evenly.
local function bench_uneven(b, rows, most, least)
  local rt, even = b.rt, (most + (rows - 1) * least) // rows // PAGE * PAGE
  local q, out = rt:random { rows, HEADS, DIM }, rt:zeros { rows, HEADS, DIM }
  local function line(what, first, others)
    local table_, at, pages = table_of(rt, rows, most // PAGE, function(r) return r == 1 and first or others end)
    local options = { out = out, cache = rt:zeros({ pages, 2, KV_HEADS, PAGE, DIM }, "f16"), page_table = table_,
      positions = at }
    b:line("attend", what, b:time(function() rt:attend(q, options) end), token_bytes * (first + (rows - 1) * others))
  end
  line(("%d rows, one of %d, others of %d tokens"):format(rows, most, least), most, least)
  line(("%d rows of %d, room for %d tokens"):format(rows, even, most), even, even)
end

-- What a cache of another type, a cap, a mask, weights of pages and lists of tokens cost: bytes as
-- above, so that a share of the read rate compares with attend's and attend_pages'.
local function bench_abilities(b, rows, tokens, topk)
  local rt, per, options = b.rt, tokens // PAGE, {}
  local _, table_, at = cache_of(rt, rows, tokens)
  local shape, bytes = shape_of(rows, tokens), rows * token_bytes * tokens
  local q, out = rt:random { rows, HEADS, DIM }, rt:zeros { rows, HEADS, DIM }
  local function given(type, more)
    options = { out = out, cache = rt:zeros({ rows * per, 2, KV_HEADS, PAGE, DIM }, type),
      page_table = table_, positions = at }
    for key, value in pairs(more or {}) do options[key] = value end
    return options
  end
  local function attend(name, type, moved, more)
    local o = given(type, more)
    b:line("attend " .. name, shape, b:time(function() rt:attend(q, o) end), moved)
  end
  local scales = rt:random({ rows * per, 2, KV_HEADS, PAGE }, "f32", { low = 0.1, high = 1 })
  attend("bf16", "bf16", bytes)
  attend("f32", "f32", bytes * 2)
  attend("e4m3", "e4m3", bytes // 2 + bytes // (DIM * 2) * 4, { scales = scales })
  attend("softcap", "f16", bytes, { softcap = 30 })
  local early, w = {}, 512
  for r = 1, rows do early[r] = tokens - PAGE end
  early = rt:tensor(early, "i32")
  for _, form in ipairs { "flat", "two_level" } do
    local o = given("f16", { selected = some_pages(rt, rows, per - w // PAGE - 1, topk), form = form,
      window = w, positions = early,
      weights = form == "two_level" and rt:random { rows, HEADS, topk } or nil })
    b:line("attend_pages " .. form, ("%d rows, %d of %d pages, window %d"):format(rows, topk, per, w),
      b:time(function() rt:attend_pages(q, o) end), rows * token_bytes * (topk * PAGE + w + 1))
  end
  local list = {}
  for r = 1, rows do
    list[r] = {}
    for i = 1, topk * PAGE do list[r][i] = (r - 1) * tokens + (i * 37) % tokens end
  end
  list = rt:tensor(list, "i32")
  local cache = rt:zeros({ rows * per, 2, KV_HEADS, PAGE, DIM }, "f16")
  b:line("attend_tokens", ("%d rows, %d of %d tokens"):format(rows, topk * PAGE, tokens),
    b:time(function() rt:attend_tokens(q, cache, list, { out = out }) end),
    rows * token_bytes * topk * PAGE)
  local parts, lses = rt:random { 8, rows, HEADS, DIM }, rt:random { 8, rows, HEADS }
  b:line("merge_states", ("8 parts of %d x %d x %d"):format(rows, HEADS, DIM),
    b:time(function() rt:merge_states(parts, lses, { out = out }) end),
    9 * rows * HEADS * DIM * 4)
end

-- Latent slots (MLA), with the products' rate in TFLOP/s beside: 2 x (576 + 512) a head and token.
local function bench_latent(b, rows, heads, topk, pages)
  local rt, list = b.rt, {}
  for r = 1, rows do
    list[r] = {}
    for i = 1, topk do list[r][i] = (r * 131 + i * 37) % (pages * PAGE) end
  end
  local tokens = rt:tensor(list, "i32")
  local out = rt:zeros { rows, heads, 512 }
  for _, kind in ipairs { { "u8", 656, "e4m3", "f32" }, { "bf16", 576, "bf16", "f32" },
    { "bf16", 576, "bf16, q too", "bf16" } } do
    local latent = rt:zeros({ pages, PAGE, kind[2] }, kind[1])
    local q = rt:random({ rows, heads, 576 }, kind[4])
    local us = b:time(function()
      rt:attend_tokens(q, nil, tokens, { latent = latent, out = out })
    end)
    b:line("attend_tokens latent " .. kind[3], ("%d rows, %d heads, topk %d: %.1f TFLOP/s"):format(rows,
      heads, topk, rows * heads * topk * 2 * (576 + 512) / us / 1e6), us)
  end
end

-- The rows of a step that drafts and verifies k tokens, (k + 1)^2 a sequence.
local function bench_verify(b, requests, tokens, k)
  local rt, n, at, of, bases = b.rt, (k + 1) * (k + 1), {}, {}, {}
  local cache, table_ = cache_of(rt, requests, tokens)
  for s = 1, requests do
    bases[s] = tokens - n
    for i = 1, n do at[#at + 1], of[#of + 1] = tokens - n + i - 1, s - 1 end
  end
  local q, out = rt:random { #at, HEADS, DIM }, rt:zeros { #at, HEADS, DIM }
  local options = { out = out, cache = cache, page_table = table_, positions = rt:tensor(at, "i32"),
    sequences = rt:tensor(of, "i32"), bases = rt:tensor(bases, "i32"), draft_length = k }
  b:line("attend verify", ("%d x %d rows, %d tokens"):format(requests, n, tokens),
    b:time(function() rt:attend(q, options) end), requests * token_bytes * tokens)
end

-- A prompt whole, with the products' rate beside: 4 for each query head, value and pair that is seen.
local function bench_prompt(b, tokens, type)
  local rt, at, of = b.rt, {}, {}
  local _, table_ = cache_of(rt, 1, tokens)
  for i = 1, tokens do at[i], of[i] = i - 1, 0 end
  local q, out = rt:random({ tokens, HEADS, DIM }, type), rt:zeros { tokens, HEADS, DIM }
  local options = { out = out, page_table = table_, positions = rt:tensor(at, "i32"),
    sequences = rt:tensor(of, "i32"), prompt = true,
    cache = rt:random({ tokens // PAGE, 2, KV_HEADS, PAGE, DIM }, type) }
  local us = b:time(function() rt:attend(q, options) end)
  b:line("attend prompt " .. type, ("%d tokens: %.1f TFLOP/s"):format(tokens,
    2 * tokens * tokens * HEADS * DIM / us / 1e6), us)
end

local function bench_choice(b, rows, per, topk)
  local rt = b.rt
  local table_, at, pages = table_of(rt, rows, per, function() return per * PAGE end)
  local q, scores = rt:random { rows, HEADS, DIM }, rt:zeros { rows, KV_HEADS, per }
  local bounds = rt:random({ pages, KV_HEADS, 2, DIM }, "f16")
  local scoring = { bounds = bounds, out = scores, page_table = table_, positions = at,
    cache = rt:zeros({ pages, 2, KV_HEADS, PAGE, DIM }, "f16") }
  local shape = ("%d rows, %d pages"):format(rows, per)
  b:line("score_pages", shape, b:time(function() rt:score_pages(q, scoring) end),
    rows * per * KV_HEADS * 2 * DIM * 2)
  local selected = rt:zeros({ rows, KV_HEADS, topk }, "i32")
  b:line("select_pages", ("%s, topk %d"):format(shape, topk), b:time(function()
    rt:select_pages(scores, { topk = topk, out = selected })
  end))
end

local function bench_attention(b)
  bench_attend(b, 1, 2048)
  bench_attend(b, 1, b.cuda and 8192 or 4096, 32)
  if b.cuda then
    bench_attend(b, 1, 32768)
    bench_attend(b, 32, 8192, 32)
  end
  bench_abilities(b, b.cuda and 32 or 1, b.cuda and 8192 or 2048, b.cuda and 32 or 8)
  bench_uneven(b, b.cuda and 32 or 4, b.cuda and 131072 or 2048, b.cuda and 1024 or 256)
  for _, rows in ipairs(b.cuda and { 64, 1024 } or { 1 }) do
    bench_latent(b, rows, b.cuda and 128 or 16, b.cuda and 2048 or 256, b.cuda and 512 or 16)
  end
  for _, type in ipairs { "f16", "bf16" } do bench_prompt(b, b.cuda and 8192 or 256, type) end
  bench_verify(b, b.cuda and 8 or 1, b.cuda and 32768 or 1024, 4)
  for _, pages in ipairs(b.cuda and { 1024, 2048, 8192 } or { 64 }) do bench_choice(b, 1, pages, 32) end
end

local function bench_sample(b, rows, vocab)
  local rt = b.rt
  local logits, tokens = rt:random({ rows, vocab }, "f32", { low = -8, high = 8 }),
    rt:zeros({ rows }, "i32")
  local shape = ("%d x %d"):format(rows, vocab)
  b:line("sample greedy", shape, b:time(function() rt:sample(logits, { out = tokens }) end))
  b:line("sample top-k 50, top-p 0.9", shape, b:time(function()
    rt:sample(logits, { out = tokens, temperature = 1, top_k = 50, top_p = 0.9 })
  end))
end

return {
  about = "every op of a decoder step",
  run = function(b)
    bench_rows(b, 1)
    bench_rows(b, 32)
    bench_attention(b)
    bench_sample(b, 1, 131072)
    if b.cuda then bench_sample(b, 128, 131072) end
  end,
}

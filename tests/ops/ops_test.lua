-- Every op from Lua on small inputs, against plain Lua.
local cairn = require "cairn"

local function open() return cairn.open({ backend = "cpu", threads = 2 }, { log = false }) end

local function map(list, f)
  local out = {}
  for i, v in ipairs(list) do out[i] = type(v) == "table" and map(v, f) or f(v, i) end
  return out
end

test("embed takes rows of a table, plain or in blocks", function()
  local rt <close> = open()
  local ids = rt:tensor({ 2, 0 }, "i32")
  local values = rt:random({ 3, 32 }, "f32", { seed = 1 })
  local rows = values:totable()
  check.equal(rt:embed(ids, values):totable(), { rows[3], rows[1] })
  -- one q8_0 block a row: an f16 scale of 0.5, then 32 signed bytes
  local bytes = { 0x00, 0x38 }
  for i = 1, 32 do bytes[i + 2] = (i - 17) & 255 end
  local want = {}
  for i = 1, 32 do want[i] = (i - 17) * 0.5 end
  local blocks = rt:tensor({ bytes }, "u8")
  check.equal(rt:embed(rt:tensor({ 0 }, "i32"), blocks, { block = "q8_0" }):totable(), { want })
end)

test("rmsnorm and swiglu", function()
  local rt <close> = open()
  local x = rt:random({ 2, 64 }, "f32", { seed = 2 })
  local weight = rt:random({ 64 }, "f32", { seed = 3 })
  local w = weight:totable()
  local want = {}
  for r, row in ipairs(x:totable()) do
    local sum = 0
    for _, v in ipairs(row) do sum = sum + v * v end
    want[r] = map(row, function(v, i) return v * w[i] / math.sqrt(sum / 64 + 0.01) end)
  end
  check.near(rt:rmsnorm(x, weight, { epsilon = 0.01 }):totable(), want, 1e-5)
  local up = rt:random({ 2, 64 }, "f32", { seed = 4 })
  local u = up:totable()
  for r, row in ipairs(x:totable()) do
    want[r] = map(row, function(v, i) return v / (1 + math.exp(-v)) * u[r][i] end)
  end
  check.near(rt:swiglu(x, up):totable(), want, 1e-5)
end)

test("linear multiplies by the transposed weight, and adds", function()
  local rt <close> = open()
  local x, w = rt:random({ 2, 64 }, "f32", { seed = 9 }), rt:random({ 3, 64 }, "f32", { seed = 10 })
  local want = {}
  for r, row in ipairs(x:totable()) do
    want[r] = {}
    for o, weights in ipairs(w:totable()) do
      local sum = 0
      for i, v in ipairs(row) do sum = sum + v * weights[i] end
      want[r][o] = sum
    end
  end
  local out = rt:linear(x, w)
  check.near(out:totable(), want, 1e-4)
  rt:linear(x, w, { out = out, accumulate = true })
  check.near(out:totable(), map(want, function(v) return 2 * v end), 1e-4)
end)

test("sample is greedy, or draws what its seed says", function()
  local rt <close> = open()
  local logits = rt:tensor { { 1, 5, 5, 2 }, { -1, -2, -3, -9 } }
  check.equal(rt:sample(logits):totable(), { 1, 0 })
  check.equal(rt:sample(logits, { temperature = 1, top_k = 1 }):totable(), { 1, 0 })
  local seeds, positions = rt:tensor({ 3, 4 }, "i64"), rt:tensor({ 7, 8 }, "i32")
  local a = rt:sample(logits, seeds, positions, { temperature = 2 }):totable()
  check.equal(rt:sample(logits, { temperature = 2, seeds = seeds, positions = positions }):totable(), a)
  local history = rt:tensor({ { 1, 2 }, { -1, -1 } }, "i32")
  check.equal(rt:sample(logits, { history = history, repetition_penalty = 10 }):totable(), { 3, 0 })
end)

test("verify_greedy accepts the drafts that greedy decoding gives", function()
  local rt <close> = open()
  local logits = rt:tensor { { { 0, 9, 0 }, { 9, 0, 0 }, { 0, 0, 9 } },
    { { 0, 9, 0 }, { 9, 0, 0 }, { 0, 0, 9 } } }
  local drafts = rt:tensor({ { 1, 2 }, { 1, 0 } }, "i32")
  local accepted, bonus = rt:verify_greedy(logits, drafts)
  check.equal(accepted:totable(), { 1, 2 })
  check.equal(bonus:totable(), { 0, 2 })
end)

test("sample_probs are what sample draws from, verify_chain keeps drafts by them", function()
  local rt <close> = open()
  local logits = rt:tensor { { math.log(4), math.log(3), math.log(2), math.log(1) } }
  local probs = rt:sample_probs(logits, { temperature = 1, top_k = 3, top_p = 0.75 })
  check.near(probs:totable(), { { 4 / 7, 3 / 7, 0, 0 } }, 1e-6)
  local target = rt:tensor { { { 1, 0, 0 }, { 0, 1, 0 }, { 0, 0, 1 } } }
  local tokens, accepted, bonus = rt:verify_chain(target, rt:tensor({ { 0, 2 } }, "i32"))
  check.equal(tokens:totable(), { { 0, 1, -1 } })
  check.equal(accepted:totable(), { 1 })
  check.equal(bonus:totable(), { 1 })
end)

test("rope rotates interleaved pairs, or halves", function()
  local rt <close> = open()
  local x = rt:tensor { { { 1, 0, 0, 1 } } }
  local at = rt:tensor({ 3 }, "i32")
  local a, b = 3, 3 * 100 ^ -0.5
  check.near(rt:rope(x, at, { base = 100 }):totable(),
    { { { math.cos(a), math.sin(a), -math.sin(b), math.cos(b) } } }, 1e-5)
  check.near(rt:rope(x, at, { base = 100, half_split = true }):totable(),
    { { { math.cos(a), -math.sin(b), math.sin(a), math.cos(b) } } }, 1e-5)
end)

-- A cache of 4 pages of 16 slots, 2 KV heads of 32, holding `count` random tokens of one sequence
-- on pages 2, 0, 3; K and V as Lua lists beside it.
local function cached(rt, count)
  local cache = rt:zeros({ 4, 2, 2, 16, 32 }, "f16")
  local page_table = rt:tensor({ { 2, 0, 3 } }, "i32")
  local k = rt:random({ count, 2, 32 }, "f16", { seed = 5 }):totable()
  local v = rt:random({ count, 2, 32 }, "f16", { seed = 6 }):totable()
  local positions, sequences = {}, {}
  for i = 1, count do positions[i], sequences[i] = i - 1, 0 end
  rt:kv_append(rt:tensor(k), rt:tensor(v), { cache = cache, page_table = page_table,
    sequences = rt:tensor(sequences, "i32"), positions = rt:tensor(positions, "i32") })
  return cache, page_table, k, v
end

-- Attention of one head in doubles over the tokens (from 0) that `seen` admits; out and lse.
local function attention(q, k, v, head, count, seen)
  local weights, most, sum, out = {}, -math.huge, 0, {}
  for t = 1, count do
    if seen(t - 1) then
      local dot = 0
      for d = 1, 32 do dot = dot + q[d] * k[t][head][d] end
      weights[t] = dot / math.sqrt(32)
      most = math.max(most, weights[t])
    end
  end
  for d = 1, 32 do out[d] = 0 end
  for t, s in pairs(weights) do
    local e = math.exp(s - most)
    sum = sum + e
    for d = 1, 32 do out[d] = out[d] + e * v[t][head][d] end
  end
  return map(out, function(x) return x / sum end), most + math.log(sum)
end

local function check_attention(rt, op, inputs, extra, seen)
  local cache, page_table, k, v = cached(rt, 40)
  local q = rt:random({ 1, 4, 32 }, "f32", { seed = 7 })
  extra.cache, extra.page_table, extra.lse = cache, page_table, true
  extra.positions = rt:tensor({ 39 }, "i32")
  local out, lse = rt[op](rt, q, table.unpack(inputs), extra)
  for h = 1, 4 do
    local kv_head = (h + 1) // 2
    local want, want_lse = attention(q:totable()[1][h], k, v, kv_head, 40,
      function(t) return seen(t, kv_head) end)
    check.near(out:totable()[1][h], want, 1e-3)
    check.near(lse:totable()[1][h], want_lse, 1e-3)
  end
end

test("attend sees everything before, or sinks and a window", function()
  local rt <close> = open()
  check_attention(rt, "attend", {}, {}, function() return true end)
  check_attention(rt, "attend", {}, { window = 10, sinks = 2 },
    function(t) return t < 2 or t >= 16 end)
end)

test("attend_pages sees the selected pages besides", function()
  local rt <close> = open()
  local selected = rt:tensor({ { { 0 }, { 1 } } }, "i32")
  check_attention(rt, "attend_pages", { selected }, { window = 4, sinks = 1 },
    function(t, kv_head) return t < 1 or t >= 32 or t // 16 == kv_head - 1 end)
end)

test("attend_tokens sees the listed slots, merge_states puts parts together", function()
  local rt <close> = open()
  local cache, _, k, v = cached(rt, 40)
  local q = rt:random({ 1, 4, 32 }, "f32", { seed = 7 })
  local pages, lists = { 2, 0, 3 }, { { 3, -1, 20 }, { 38, 17, -1 } }
  local parts, lses = {}, {}
  for i, list in ipairs(lists) do
    local slots = map(list, function(t) return t < 0 and -1 or pages[t // 16 + 1] * 16 + t % 16 end)
    local out, lse = rt:attend_tokens(q, cache, rt:tensor({ slots }, "i32"), { lse = true })
    parts[i], lses[i] = out:totable(), lse:totable()
  end
  local out, lse = rt:merge_states(rt:tensor(parts), rt:tensor(lses), { lse = true })
  for h = 1, 4 do
    local want, want_lse = attention(q:totable()[1][h], k, v, (h + 1) // 2, 40,
      function(t) return t == 3 or t == 20 or t == 38 or t == 17 end)
    check.near(out:totable()[1][h], want, 1e-3)
    check.near(lse:totable()[1][h], want_lse, 1e-3)
  end
  check.error(function()
    rt:attend_tokens(q, cache, rt:tensor({ { 1 } }, "i32"), { space = "flat" })
  end, "space is flat")
end)

test("attend over the chunks of prefix_chunks", function()
  local rt <close> = open()
  local cache, page_table, k, v = cached(rt, 40)
  local q = rt:random({ 1, 4, 32 }, "f32", { seed = 7 })
  local kv_indices, cu_lens = rt:zeros({ 1, 48 }, "i32"), rt:zeros({ 1, 2 }, "i32")
  rt:prefix_chunks(rt:tensor({ 40 }, "i32"), { pages = page_table, page_size = 16, capacity = 48,
    kv_indices = kv_indices, cu_lens = cu_lens, lens = false, starts = false, chunk_count = false })
  local out = rt:attend(q, { cache = cache, sequences = rt:tensor({ 0 }, "i32"),
    kv_indices = rt:tensor(kv_indices:totable()[1], "i32"),
    cu_lens = rt:tensor(cu_lens:totable()[1], "i32") })
  local want = attention(q:totable()[1][1], k, v, 1, 40, function() return true end)
  check.near(out:totable()[1][1], want, 1e-3)
end)

test("attend_pages in two levels, and apart from its window", function()
  local rt <close> = open()
  local cache, page_table, k, v = cached(rt, 40)
  local q = rt:random({ 1, 4, 32 }, "f32", { seed = 7 })
  local out = rt:attend_pages(q, rt:tensor({ { { 0 }, { 1 } } }, "i32"), { cache = cache,
    page_table = page_table, positions = rt:tensor({ 39 }, "i32"), form = "two_level",
    part = "pages", weights = rt:tensor({ { { 7 }, { -3 } } }), landmarks = true })
  for h = 1, 4 do
    local kv_head = (h + 1) // 2
    check.near(out:totable()[1][h], attention(q:totable()[1][h], k, v, kv_head, 40, function(t)
      return t // 16 == kv_head - 1 and t % 16 < 15
    end), 1e-3)
  end
end)

test("pages are bounded, scored and selected", function()
  local rt <close> = open()
  local cache, page_table, k = cached(rt, 40)
  local bounds = rt:page_bounds(cache, rt:tensor({ 2, 0 }, "i32"))
  check.equal(bounds.shape, { 4, 2, 2, 32 })
  local low, high = math.huge, -math.huge
  for t = 1, 16 do
    low, high = math.min(low, k[t][2][5]), math.max(high, k[t][2][5])
  end
  local b = bounds:totable()
  check.equal({ b[3][2][1][5], b[3][2][2][5] }, { low, high })
  local q = rt:random({ 1, 4, 32 }, "f32", { seed = 8 })
  local scores = rt:score_pages(q, bounds, { cache = cache, page_table = page_table,
    positions = rt:tensor({ 39 }, "i32"), strategy = "group" })
  local list = scores:totable()[1]
  for head = 1, 2 do
    for page, physical in ipairs { 3, 1 } do
      local sum = 0
      for h = 2 * head - 1, 2 * head do
        for d = 1, 32 do
          local x = q:totable()[1][h][d]
          sum = sum + math.max(x * b[physical][head][1][d], x * b[physical][head][2][d])
        end
      end
      check.near(list[head][page], sum / math.sqrt(32), 1e-3)
    end
    check.equal(list[head][3], -math.huge)
  end
  local best = rt:select_pages(scores, { topk = 1 }):totable()[1]
  for head = 1, 2 do
    check.equal(best[head], { list[head][1] >= list[head][2] and 0 or 1 })
  end
  check.equal(rt:select_pages(scores, { topk = 3 }):totable()[1][1], { 0, 1, -1 })
end)

test("pages are scored by their landmarks, and all candidates handed out", function()
  local rt <close> = open()
  local cache, page_table, k = cached(rt, 40)
  local q = rt:random({ 1, 4, 32 }, "f32", { seed = 9 })
  local scores, own = rt:score_pages(q, nil, { cache = cache, page_table = page_table,
    positions = rt:tensor({ 39 }, "i32"), source = "landmark", strategy = "head",
    head_scores = true })
  for head = 1, 2 do
    for page = 1, 2 do
      local best = -math.huge
      for h = 2 * head - 1, 2 * head do
        local sum = 0
        for d = 1, 32 do sum = sum + q:totable()[1][h][d] * k[16 * page][head][d] end
        check.near(own:totable()[1][h][page], sum / math.sqrt(32), 1e-3)
        best = math.max(best, sum / math.sqrt(32))
      end
      check.near(scores:totable()[1][head][page], best, 1e-3)
    end
  end
  local selected, weights, candidates, counts = rt:select_pages(scores, own, { topk = 3,
    head_chosen = true, candidates = true, counts = true })
  check.equal(selected:totable()[1][2], { 0, 1, -1 })
  check.equal(weights:totable()[1][4][3], -math.huge)
  check.equal(candidates:totable()[1][1], { 0, 1, -1 })
  check.equal(counts:totable()[1], { 2, 2 })
  check.error(function()
    rt:page_bounds(cache, rt:tensor({ 0 }, "i32"), { source = "landmark" })
  end, "landmark")
end)

test("kv_collate moves the accepted entries of every layer", function()
  local rt <close> = open()
  local first, page_table, k = cached(rt, 40)
  local second = rt:zeros({ 4, 2, 2, 16, 32 }, "f16")
  local before = first:totable()
  rt:kv_collate { caches = { first, second }, page_table = page_table, stride = 4, most = 4,
    bases = rt:tensor({ 14 }, "i32"), accepted = rt:tensor({ 3 }, "i32") }
  local after = first:totable()
  check.equal(after[3][1][1][15], before[3][1][1][15]) -- entry 0 stays at 14, on page 2
  check.equal(after[3][1][1][16], k[19][1]) -- 18, on page 0, comes to 15
  check.equal(after[1][1][2][1], k[23][2]) -- 22 comes to 16
  after[3][1][1][16], after[3][1][2][16] = before[3][1][1][16], before[3][1][2][16]
  after[3][2][1][16], after[3][2][2][16] = before[3][2][1][16], before[3][2][2][16]
  for kv = 1, 2 do
    for head = 1, 2 do after[1][kv][head][1] = before[1][kv][head][1] end
  end
  check.equal(after, before) -- and nothing else moved
  check.error(function()
    rt:kv_collate { caches = { first }, scales = {}, page_table = page_table, stride = 4, most = 4,
      bases = rt:tensor({ 14 }, "i32"), accepted = rt:tensor({ 3 }, "i32") }
  end, "1 caches and 0 scales")
end)

test("the README's table of ops says what cairn.ops() says", function()
  local readme = io.open("README.md"):read "a"
  local ops, options = cairn.ops(), { out = "output" }
  for _, kind in ipairs { "in", "inout", "list", "function" } do options[kind] = "input" end
  check.equal(#ops > 20, true)
  for _, op in ipairs(ops) do
    local found = { input = {}, output = {}, option = {} }
    for _, a in ipairs(op.arguments) do
      local to = found[options[a.kind] or "option"]
      local brackets = a.optional and options[a.kind] and not a.made
      to[#to + 1] = brackets and "[" .. a.name .. "]" or a.name
    end
    local line = table.concat(found.input, ", ")
    if #found.output > 0 then line = line .. " -> " .. table.concat(found.output, ", ") end
    if #found.option > 0 then line = line .. "; " .. table.concat(found.option, ", ") end
    line = ("| `%s` | `%s` |"):format(op.name, line)
    check.equal(readme:find(line, 1, true) and line, line)
  end
end)

test("arguments that belong together, and such that do not, are told by name", function()
  local rt <close> = open()
  local cache, page_table = cached(rt, 40)
  local q, i32 = rt:random({ 1, 4, 32 }, "f32", { seed = 7 }), function(list) return rt:tensor(list, "i32") end
  local function fails(name, text, options, ...)
    local given = { ... }
    for _, f in ipairs { "cache", "page_table", "positions" } do
      local all = { cache = cache, page_table = page_table, positions = i32 { 39 } }
      if options[f] == nil then options[f] = all[f] elseif not options[f] then options[f] = nil end
    end
    given[#given + 1] = options
    check.error(function() rt[name](rt, table.unpack(given)) end, text)
  end
  local mask = rt:zeros({ 1, 1 }, "u8")
  fails("attend", "mask is given without bases", { mask = mask, step_rows = 1 }, q)
  fails("attend", "mask is given, but step_rows is 0", { mask = mask, bases = i32 { 0 } }, q)
  fails("attend", "kv_indices and cu_lens are to be given together", { kv_indices = i32 { 0 } }, q)
  fails("attend", "page_indptr and page_indices are to be given together",
    { page_indptr = i32 { 0, 3 } }, q)
  fails("attend", "page_table and page_indptr are given", { page_indptr = i32 { 0, 3 }, page_indices = i32 { 2, 0, 1 } }, q)
  fails("attend", "page_table is NULL, and so are page_indptr and pages.sequences", { page_table = false }, q)
  fails("attend", "page_table is NULL, and so is page_indptr", { page_table = false, sequences = i32 { 0 } }, q)
  fails("attend", "last_page_len is given without page_indptr", { last_page_len = i32 { 8 } }, q)
  fails("attend", "positions is NULL", { positions = false }, q)
  fails("attend_pages", "form is two_level, but weights is NULL", { form = "two_level" }, q, i32 { { { 0 }, { 1 } } })
  fails("score_pages", "lse is given, but strategy is not softmax_head",
    { lse = rt:zeros { 1, 4 }, strategy = "group" }, q, rt:zeros({ 4, 2, 2, 32 }, "f16"))
  check.error(function() rt:select_pages(rt:zeros { 1, 2, 3 }, rt:zeros { 1, 4, 3 }, { topk = 1 }) end,
    "head_scores and head_chosen are to be given together")
  check.error(function()
    rt:kv_collate { caches = { rt:zeros({ 4, 2, 2, 16, 32 }, "f16") }, page_table = page_table, stride = 1 << 20,
                    most = 1 << 20, bases = i32 { 0 }, accepted = i32 { 1 } }
  end, "most * stride is above 2^31 - 1")
  check.error(function() rt:sample(rt:zeros { 1, 8 }, { best = rt:zeros({ 1, 3 }, "i32") }) end, "beside logprobs")
  check.error(function() rt:topk_rows(function() end, { rows = 1, n = 4, k = 1, produce = 3 }) end, "give it first")
  check.error(function() rt:zeros({ 4, 4 }):view({ 2, 2 }, { strides = { 4, 1 } }):view { 4 } end, "of a view with strides")
end)

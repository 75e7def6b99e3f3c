-- prepare_steps from Lua: the worked examples, what is made and what is given.
local cairn = require "cairn"

local function open() return cairn.open({ backend = "cpu", threads = 2 }, { log = false }) end

test("prepare_steps: decode, verify and draft extend", function()
  local rt <close> = open()
  local seq = rt:tensor({ 3, 5 }, "i32")
  local m = rt:prepare_steps(seq, { mode = "decode", index_topk = 4 })[1]
  check.equal(m.cu_seqlens_k:totable(), { 0, 3, 8 })
  check.equal(m.seqlens_clipped:totable(), { 3, 4 })
  check.equal(m.cu_seqlens_clipped:totable(), { 0, 3, 7 })
  check.equal(m.token_table, nil)
  m = rt:prepare_steps(seq, { mode = "target_verify", draft_tokens = 2, index_topk = 4 })[1]
  check.equal(m.cache_seqlens:totable(), { 5, 7 })
  check.equal(m.seqlens_expanded:totable(), { 4, 5, 6, 7 })
  check.equal(m.row_requests:totable(), { 0, 0, 1, 1 })
  m = rt:prepare_steps(rt:tensor({ 6, 5, 9 }, "i32"),
    { mode = "draft_extend", accept = rt:tensor({ 2, 0, 3 }, "i32"), rows = 6 })[1]
  check.equal(m.seqlens_expanded:totable(), { 5, 6, 7, 8, 9, 0 })
  check.equal(m.cu_rows:totable(), { 0, 2, 2, 5 })
end)

test("prepare_steps: tables, shared by the steps or not, and offsets", function()
  local rt <close> = open()
  local seq = rt:tensor({ 6, 2 }, "i32")
  local slots = rt:tensor({ { 8, 9, 4, 5, 12, 13, 6, 7 }, { 20, 21, -1, -1, 0, 0, 0, 0 } }, "i32")
  local options = { steps = 2, page_size = 2, step_offset = 1, workers = 3 }
  local list = rt:prepare_steps(seq, slots, options)
  check.equal(#list, 2)
  check.equal(list[1].page_table:totable(), { { 4, 2, 6, 3 }, { 10, -1, 0, 0 } })
  check.equal(list[1].token_table:totable()[1], { 8, 9, 4, 5, 12, 13, 6, 0 })
  check.equal(list[2].cache_seqlens:totable(), { 7, 3 })
  check.equal(list[1].index_schedule:totable(), { { 0, 0 }, { 1, 0 }, { 2, 0 }, { 2, 0 } })
  options.own_tables, options.outputs = true, { "page_table" }
  list = rt:prepare_steps(seq, slots, options)
  check.equal(list[1].page_table:totable(), { { 4, 2, 6, 0 }, { 10, 0, 0, 0 } })
  check.equal(list[1].cache_seqlens, nil)
  seq:write { 1, 8 }
  rt:prepare_steps(seq, slots, { into = list, page_size = 2 }) -- what is not live stays
  check.equal(list[1].page_table:totable(), { { 4, 2, 6, 0 }, { 10, -1, 0, 0 } })
end)

test("prepare_steps: mistakes", function()
  local rt <close> = open()
  local seq = rt:tensor({ 3 }, "i32")
  check.error(function() rt:prepare_steps(seq, { mode = "prefill" }) end, "decode, target_verify")
  check.error(function() rt:prepare_steps(seq, { steps = 17 }) end, "17 steps")
  check.error(function() rt:prepare_steps(seq, { into = { { cache_seqlens = 3 } } }) end,
    "cache_seqlens: a tensor is expected")
  check.error(function() rt:prepare_steps(seq, { mode = "draft_extend", accept = seq }) end, "rows")
  check.error(function() rt:prepare_steps(rt:tensor({ -2 }, "i32")) end, "length out of range")
end)

test("prefix_chunks: the worked example, made and given outputs", function()
  local rt <close> = open()
  local slots = {}
  for b = 1, 3 do
    slots[b] = {}
    for t = 1, 12 do slots[b][t] = 100 * b + t - 1 end
  end
  slots = rt:tensor(slots, "i32")
  local lens = rt:tensor({ 0, 5, 12 }, "i32")
  local kv, cu, by, starts, count = rt:prefix_chunks(lens, slots, { capacity = 12 })
  check.equal(count:totable(), { 3 })
  check.equal(by:totable(), { { 0, 4, 4 }, { 0, 1, 4 }, { 0, 0, 4 } })
  check.equal(cu:totable(), { { 0, 0, 4, 8 }, { 0, 0, 1, 5 }, { 0, 0, 0, 4 } })
  check.equal(starts:totable()[3], { 8, 8, 8 })
  check.equal({ table.unpack(kv:totable()[2], 1, 5) }, { 204, 304, 305, 306, 307 })
  lens:write { 1, 0, 0 }
  rt:prefix_chunks(lens, slots, { capacity = 12, kv_indices = kv, chunk_count = count })
  check.equal(count:totable(), { 1 })
  check.equal({ table.unpack(kv:totable()[1], 1, 2) }, { 100, 201 }) -- 201 stays
  check.error(function() rt:prefix_chunks(lens, slots, { capacity = -5 }) end, "capacity")
end)

test("prepare_steps: attend takes its rows, positions and pages as they are", function()
  local rt <close> = open()
  local page, slots, shuffled = 16, {}, { { 5, 0, 3 }, { 2, 4, 1 } }
  for b, pages in ipairs(shuffled) do
    slots[b] = {}
    for t = 0, 47 do slots[b][t + 1] = pages[t // page + 1] * page + t % page end
  end
  local cache = rt:random({ 6, 2, 1, page, 32 }, "f16", { seed = 5 })
  local q = rt:random({ 6, 2, 32 }, "f32", { seed = 6 })
  local m = rt:prepare_steps(rt:tensor({ 30, 15 }, "i32"), rt:tensor(slots, "i32"),
    { mode = "target_verify", draft_tokens = 3, page_size = page })[1]
  local got = rt:attend(q, { cache = cache, page_table = m.page_table, sequences = m.row_requests,
    positions = m.positions })
  local want = rt:attend(q, { cache = cache, page_table = rt:tensor(shuffled, "i32"),
    sequences = rt:tensor({ 0, 0, 0, 1, 1, 1 }, "i32"),
    positions = rt:tensor({ 30, 31, 32, 15, 16, 17 }, "i32") })
  check.equal(got:totable(), want:totable())
end)

test("prepare_steps and prefix_chunks read page tables where they lie", function()
  local rt <close> = open()
  local pool = rt:page_pool(8)
  local tables = rt:page_tables { requests = 3, max_tokens = 8, page_size = 2, pool = pool }
  tables:add { 0, 2 }
  tables:insert { 3, 0, 6 }
  tables:update()
  local on, first, last = tables:tensors(), tables:pages(0), tables:pages(2)
  local m = rt:prepare_steps(on.lengths, { pages = on.page_table, page_size = 2 })[1]
  check.equal(m.cache_seqlens:totable(), { 3, 0, 6 })
  check.equal({ table.unpack(m.page_table:totable()[1], 1, 2) }, first)
  check.equal({ table.unpack(m.page_table:totable()[3], 1, 3) }, last)
  check.equal({ table.unpack(m.token_table:totable()[1], 1, 3) },
    { first[1] * 2, first[1] * 2 + 1, first[2] * 2 })
  local kv, cu = rt:prefix_chunks(on.lengths, { pages = on.page_table, page_size = 2, capacity = 9 })
  check.equal(cu:totable(), { { 0, 3, 3, 6 }, { 0, 0, 0, 3 }, { 0, 0, 0, 0 } })
  check.equal({ table.unpack(kv:totable()[2], 1, 3) },
    { last[2] * 2 + 1, last[3] * 2, last[3] * 2 + 1 })
end)

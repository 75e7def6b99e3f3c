-- Page pools and page tables from Lua, on the CPU and wherever the default backend runs.
local cairn = require "cairn"

local function open() return cairn.open({ backend = "cpu", threads = 2, page_size = 16 }, { log = false }) end

test("a pool counts references", function()
  local rt <close> = open()
  local pool = rt:page_pool(3)
  local ids = pool:take(2)
  check.equal(#ids, 2)
  pool:retain { ids[1] }
  check.equal({ pool:references(ids[1]), pool:free_pages() }, { 2, 1 })
  check.error(function() pool:take(2) end, "are free")
  check.error(function() pool:give { 7 } end, "outside the pool")
  pool:give { ids[1], ids[2], ids[1] }
  check.equal(pool:free_pages(), 3)
  check.error(function() pool:give { ids[1] } end, "is not in use")
end)

test("tables without a pool are deterministic", function()
  local rt <close> = open()
  local t = rt:page_tables { requests = 2, max_tokens = 64 * 16 }
  t:allocate { 1, 0 }:update()
  local on = t:tensors()
  check.equal(on.indptr:totable(), { 0, 2, 3 })
  check.equal(t:pages(0), { 0, 1 })
  check.equal(t:pages(1), { 64 })
  check.equal(on.page_table.shape, { 2, 64 })
  t:insert { 17, 32 }:update()
  check.equal(on.lengths:totable(), { 17, 32 })
  check.equal(on.last_page_len:totable(), { 1, 16 })
  check.equal(t:delete({ 1, 40 }):lengths(), { 16, 0 })
  t:allocate_for { 1, 1 }
  check.equal(t:pages(1), { 64, 65, 66 })
  check.error(function() t:release_for { 1, 1, 1 } end, "cannot go")
  check.equal(t:release_for({ 1, 1 }):pages(1), { 64 })
  check.error(function() t:fork(0, 1) end, "share no pages")
  check.error(function() t:insert { 1 } end, "2 requests")
end)

test("forks share pages until they are written", function()
  local rt <close> = open()
  local pool = rt:page_pool(3)
  local t = rt:page_tables { requests = 3, max_tokens = 8, page_size = 2, pool = pool }
  check.equal(t:add({ 1 }):lengths(), { -1, 0, -1 })
  t:insert { 0, 3, 0 }:fork(1, 2)
  check.equal({ pool:free_pages(), pool:references(t:pages(2)[1]) }, { 1, 2 })
  local before = t:pages(1)
  t:insert { 0, 1, 1 }
  check.error(function() t:clear() end, "were not fetched")
  local copies = t:copies()
  check.equal(#copies, 1)
  check.equal(copies[1][1], before[2])
  check.equal(t:pages(1)[2], copies[1][2])
  check.equal(t:pages(2), before)
  check.error(function() t:insert { 0, 1, 0 } end, "are free") -- the pool is short
  check.equal(t:lengths(), { -1, 4, 4 })
  check.error(function() pool:close() end, "use it")
  t:remove { 1, 2 }
  check.equal(pool:free_pages(), 3)
  local ids = pool:take(1)
  t:adopt(0, ids, 2)
  check.equal(pool:references(ids[1]), 2)
  t:close()
  check.equal(pool:references(ids[1]), 1)
  pool:close()
end)

-- 20 tokens, a fork, one more token for both, one more for the first; what attend says of each.
local function talk(rt, t, fork)
  local kept = rt:zeros({ 8, 2, 1, 16, 32 }, "f16")
  local on, said = t:tensors(), {}
  local function say(counts, rows, position, seed)
    t:insert(counts):update()
    rt:copy_pages(kept, on.copies)
    local k = rt:random({ #rows, 1, 32 }, "f32", { seed = seed })
    local where = { cache = kept, page_table = on.page_table, sequences = rt:tensor(rows, "i32"),
                    positions = rt:tensor({ position, position }, "i32"):view({ #rows }) }
    rt:kv_append(k, k, where)
    said[#said + 1] = rt:attend(k, where):totable()
  end
  local both = fork and { 0 } or { 0, 1 }
  for i = 0, 19 do say({ 1, fork and 0 or 1 }, both, i, i + 1) end
  if fork then t:fork(0, 1) end
  say({ 1, 1 }, { 0, 1 }, 20, 50)
  say({ 1, 0 }, { 0 }, 21, 60)
  return said
end

test("the tables' tensors go to the ops; a fork says what an unshared request says", function()
  local rt <close> = open()
  local pool = rt:page_pool(8)
  local t = rt:page_tables { requests = 2, max_tokens = 64, pool = pool }
  local shared = talk(rt, t:add { 0 }, true)
  check.equal(pool:free_pages(), 5)
  local plain = talk(rt, rt:page_tables { requests = 2, max_tokens = 64 }, false)
  check.equal(shared[20][1], plain[20][1])
  check.equal(shared[21][1], plain[21][1])
  check.equal(shared[22], plain[22])
end)

test("a request is saved and loaded, with what is kept beside its pages", function()
  local rt <close> = open()
  local t = rt:page_tables { requests = 2, max_tokens = 8, page_size = 4, pool = rt:page_pool(4) }
  local caches = { rt:random({ 4, 4, 2 }, "f16"), rt:random({ 4, 16 }, "u8", { low = 0, high = 255 }) }
  t:add({ 0 }):insert { 6, 0 }
  local with = { caches = caches, name = "m", tokens = { 5, 6, 7, 8, 9, 10 }, state = "conv\0state" }
  local saved = t:save(0, with)
  local tokens, state = t:load(1, saved, { caches = caches, name = "m" })
  check.equal(tokens, with.tokens)
  check.equal(state, with.state)
  check.equal(t:lengths(), { 6, 6 })
  local bytes = caches[2]:totable()
  for c = 1, 2 do check.equal(bytes[t:pages(0)[c] + 1], bytes[t:pages(1)[c] + 1]) end
  t:remove { 1 }
  local memory = rt:host(#saved + 3)
  with.out = memory
  check.equal(t:save_bytes(0, with), #saved)
  check.equal(t:save(0, with), #saved)
  check.equal(string.char(table.unpack(memory:totable())), saved .. "\0\0\0")
  check.error(function() t:load(1, memory, { caches = caches, name = "m" }) end, "too long")
  check.equal(t:load(1, memory:view { #saved }, { caches = caches, name = "m" }), with.tokens)
  t:remove { 1 }
  with.out = memory:view { #saved - 1 }
  check.error(function() t:save(0, with) end, "the memory has")
  with.out = memory:view({ 9 }, { strides = { 2 } })
  check.error(function() t:save(0, with) end, "dense")
  check.error(function() t:load(1, rt:host { 1 }, { caches = caches, name = "m" }) end, "u8")
  check.error(function() rt:host(-1) end, "out of range")
  check.error(function() t:load(1, saved, { caches = caches }) end, "not of ''")
  local other <close> = open()
  check.error(function() t:save(0, { caches = { other:random({ 4, 8 }, "f16") } }) end, "another runtime")
  check.error(function() t:load(1, "x" .. saved:sub(2), { caches = caches, name = "m" }) end, "no snapshot")
  check.equal(t:lengths(), { 6, -1 })
end)

test("closed tables and their tensors are refused", function()
  local rt <close> = open()
  local t = rt:page_tables { requests = 1, max_tokens = 16 }
  local on = t:tensors()
  t:close()
  check.error(function() on.lengths:totable() end, "views is freed")
  check.error(function() t:update() end, "closed")
end)

test("pools, tables and snapshots refuse by name what does not fit", function()
  local rt <close> = open()
  check.error(function() rt:page_pool(0) end, "page_pool: 0 pages; 1 to")
  local pool = rt:page_pool(8)
  local t = rt:page_tables { requests = 2, max_tokens = 64, page_size = 16, pool = pool }
  check.error(function() pool:close() end, "page_pool_free: 1 tables or caches use it")
  check.error(function() pool:take(9) end, "page_pool_take: 9 pages; 8 of 8 are free")
  t:add { 0 }
  check.error(function() t:add { 0 } end, "request 0 is live already")
  check.error(function() t:remove { 1 } end, "request 1 is not live")
  local prefixes = rt:prefix_cache { pool = pool, page_size = 16 }
  check.error(function() prefixes:evict(-1) end, "prefix_evict: tokens = -1")
  local half = rt:zeros({ 8, 2, 1, 16, 32 }, "f16")
  local saved = t:insert({ 3, 0 }):save(0, { caches = { half }, tokens = { 1, 2, 3 }, state = "abc" })
  check.error(function() t:load(1, saved, { caches = { rt:zeros({ 8, 2, 1, 16, 32 }, "bf16") } }) end,
    "caches[0] has dtype bf16, the snapshot's had f16")
end)

-- Page tables of a batch on the host and their way to the device, copies of pages, snapshots. What
-- the host does is timed by the host's clock, calls from Lua included.
local cairn = require "cairn"

local REQUESTS, TOKENS, PAGE = 256, 8192, 64

local function all(value)
  local list = {}
  for r = 1, REQUESTS do list[r] = value end
  return list
end

local function numbers(first, last)
  local list = {}
  for r = first, last do list[#list + 1] = r end
  return list
end

-- Microseconds of call(), with what undoes it in between not counted.
local function host_time(call, undo)
  local samples, start = {}, cairn.now_us()
  repeat
    local before = cairn.now_us()
    for _ = 1, 8 do call() end
    samples[#samples + 1] = (cairn.now_us() - before) / 8
    for _ = 1, 8 do undo() end
  until #samples >= 9 and cairn.now_us() - start > 200000
  table.sort(samples)
  return samples[(#samples + 1) // 2]
end

local function bench_tables(b, with_pool)
  local rt = b.rt
  local pages = REQUESTS * TOKENS // PAGE
  local t = rt:page_tables { requests = REQUESTS + 8, max_tokens = TOKENS + 1024, page_size = PAGE,
                             pool = with_pool and rt:page_pool(pages + 8 * REQUESTS) or nil }
  local live, lists = numbers(0, REQUESTS - 1), {}
  for _, n in ipairs { 1, PAGE, TOKENS - 1024 } do
    lists[n] = all(n)
    for r = 1, 8 do lists[n][REQUESTS + r] = 0 end
  end
  if with_pool then t:add(live) else t:remove(numbers(REQUESTS, REQUESTS + 7)) end
  t:insert(lists[TOKENS - 1024]):update()
  local mode = with_pool and "pool" or "deterministic"
  local shape = ("%d requests of %d tokens, page %d, %s"):format(REQUESTS, TOKENS, PAGE, mode)
  for _, n in ipairs { 1, PAGE } do
    b:line(("insert %d"):format(n), shape, host_time(function() t:insert(lists[n]) end,
      function() t:delete(lists[n]) end))
    b:line(("delete %d"):format(n), shape, host_time(function() t:delete(lists[n]) end,
      function() t:insert(lists[n]) end))
  end
  local function send()
    t:insert(lists[1]):update()
    rt:sync()
  end
  b:line("insert 1, update, sync", shape, host_time(send, function() t:delete(lists[1]) end))
  if with_pool then
    local next_fork = REQUESTS
    b:line("fork", shape, host_time(function()
      t:fork(0, next_fork)
      next_fork = next_fork + 1
    end, function()
      next_fork = next_fork - 1
      t:remove { next_fork }
    end))
  end
  t:close()
end

local function bench_copies(b, layers, pairs_of)
  local rt, pages = b.rt, 2 * pairs_of
  local kept = rt:zeros({ layers, pages, 2, 8, PAGE, 128 }, "f16")
  local list = {}
  for i = 1, pairs_of do list[i] = { 2 * i - 2, 2 * i - 1 } end
  local copies = rt:tensor(list, "i32")
  b:line("copy_pages", ("%d pages of 256 KiB, %d layers"):format(pairs_of, layers), b:time(function()
    rt:copy_pages(kept, copies, { layers = true })
  end), layers * pairs_of * 2 * 2 * 8 * PAGE * 128 * 2, "copy")
end

local function bench_snapshots(b, tokens, layers)
  local rt, caches = b.rt, {}
  local t = rt:page_tables { requests = 2, max_tokens = tokens, page_size = PAGE,
                             pool = rt:page_pool(2 * tokens // PAGE) }
  for i = 1, layers do caches[i] = rt:zeros({ 2 * tokens // PAGE, 2, 8, PAGE, 128 }, "f16") end
  t:add({ 0 }):insert { tokens, 0 }
  local with = { caches = caches }
  local saved = t:save(0, with)
  local bytes = #saved
  local function timed(call, undo)
    local best = math.huge
    for _ = 1, 5 do
      local before = cairn.now_us()
      call()
      best = math.min(best, cairn.now_us() - before)
      undo()
    end
    return best
  end
  local function line(name, what, us)
    b:line(name, ("%.0f MB, %d layers, %s: %.0f MB/s"):format(bytes / 1e6, layers, what,
      bytes / us), us)
  end
  local function load() t:load(1, saved, with) end
  line("snapshot save", "a Lua string", timed(function() t:save(0, with) end, function() end))
  line("snapshot load", "a Lua string", timed(load, function() t:remove { 1 } end))
  saved, with.out = nil, rt:host(bytes)
  collectgarbage()
  line("snapshot save", "memory of the host", timed(function() t:save(0, with) end, function() end))
  saved = with.out
  line("snapshot load", "memory of the host", timed(load, function() t:remove { 1 } end))
end

-- A cache in use: prompts of 32K tokens come, each beginning as others do, and what was used least
-- recently goes, so that a million tokens stay held. Best of 40 each, ids and pages in host memory.
local function bench_prefix(b)
  local PROMPT, HELD, PROMPTS = 32768, 1 << 20, 40
  local rt, lists, prompts, best = b.rt, {}, {}, {}
  local pool = rt:page_pool(2 * HELD // PAGE)
  local c = rt:prefix_cache { pool = pool, page_size = PAGE }
  local function timed(name, method, ...)
    local before = cairn.now_us()
    local _, tokens = c[method](c, ...)
    best[name] = math.min(best[name] or math.huge, cairn.now_us() - before)
    return tokens
  end
  for i = 1, PROMPTS do
    local ids = table.move(lists[i - 1] or {}, 1, math.random(0, 2048), 1, {})
    for t = #ids + 1, PROMPT do ids[t] = math.random(0, 49151) end
    lists[i], prompts[i] = ids, rt:host(ids)
  end
  for run = 1, 2 * PROMPTS do
    local ids, pages = prompts[(run - 1) % PROMPTS + 1], pool:take(PROMPT // PAGE)
    if run == PROMPTS + 1 then best = {} end
    timed("insert", "insert", ids, rt:host(pages))
    assert(timed("match", "match", ids) == PROMPT)
    pool:give(pages)
    c:evict(math.max(0, c:info().tokens - HELD + PROMPT))
  end
  local shape = ("32768 tokens, %d held, page %d"):format(c:info().tokens, PAGE)
  for name, bar in pairs { match = 100, insert = 300 } do
    b.emit { op = "prefix " .. name, shape = shape, us = best[name], bar_us = bar }
  end
  c:close()
end

return {
  about = "page tables of a batch, copies of pages, the prefix cache, snapshots",
  run = function(b)
    bench_tables(b, true)
    bench_tables(b, false)
    bench_prefix(b)
    bench_copies(b, b.cuda and 32 or 2, 8)
    bench_snapshots(b, b.cuda and 8192 or 1024, 16)
  end,
}

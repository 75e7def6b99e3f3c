-- Prefix caches from Lua: what C's public calls do, and what they refuse.
local cairn = require "cairn"

local function open() return cairn.open({ backend = "cpu", threads = 1 }, { log = false }) end

local function numbers(from, to)
  local list = {}
  for i = from, to do list[#list + 1] = i end
  return list
end

test("a prefix cache keeps whole pages by their tokens", function()
  local rt <close> = open()
  local pool = rt:page_pool(20)
  local cache = rt:prefix_cache { pool = pool, page_size = 4 }
  local ids = pool:take(5)
  check.equal(cache:insert(numbers(1, 18), ids), 0)
  pool:give(ids)
  check.equal(pool:free_pages(), 16) -- the fifth page was not whole
  check.equal({ cache:match(numbers(1, 18)) }, { { table.unpack(ids, 1, 4) }, 16 })
  check.equal({ cache:match(numbers(1, 15)) }, { { table.unpack(ids, 1, 3) }, 12 })
  check.equal({ cache:match(numbers(2, 15)) }, { {}, 0 })
  check.equal({ cache:match({}) }, { {}, 0 })
  check.equal({ cache:match(numbers(1, 18), { space = 7 }) }, { {}, 0 })
  local more = pool:take(4)
  local other = numbers(1, 10)
  for i = 11, 16 do other[i] = 100 + i end
  check.equal(cache:insert(other, more), 8) -- the third page differs: two are shared
  check.equal({ cache:match(other) }, { { ids[1], ids[2], more[3], more[4] }, 16 })
  check.equal(pool:references(more[1]), 1)
  check.equal(pool:references(more[3]), 2)
  pool:give(more)
  check.equal(cache:info(), { page_size = 4, nodes = 3, locks = 0, tokens = 24, locked_tokens = 0 })
end)

test("locks keep a prefix from eviction, in any order", function()
  local rt <close> = open()
  local pool = rt:page_pool(64)
  local cache = rt:prefix_cache { pool = pool, page_size = 2 }
  for space = 0, 3 do
    local ids = pool:take(4)
    cache:insert(numbers(1, 8), ids, { space = space })
    pool:give(ids)
  end
  local _, held, lock = cache:match(numbers(1, 4), { space = 1, lock = true })
  check.equal(held, 4)
  check.equal(cache:info().locked_tokens, 4)
  check.equal(cache:evict(1), 8) -- whole nodes, the least recently used first: space 0
  check.equal(select(2, cache:match(numbers(1, 8), { space = 0 })), 0)
  check.equal(select(2, cache:match(numbers(1, 8), { space = 2 })), 8)
  check.equal(cache:evict(1000), 20)
  check.equal(cache:evict(1), 0)
  check.equal({ cache:match(numbers(1, 8), { space = 1 })[1] ~= nil, cache:info().tokens }, { true, 4 })
  cache:unlock(lock)
  check.error(function() cache:unlock(lock) end, "is not held")
  check.error(function() cache:unlock(12345) end, "is not held")
  check.equal(cache:evict(1), 4)
  check.equal(pool:free_pages(), 64)
end)

test("what a prefix cache refuses changes nothing", function()
  local rt <close> = open()
  local pool = rt:page_pool(8)
  local cache = rt:prefix_cache { pool = pool, page_size = 2 }
  check.error(function() cache:insert({ 1, 2 }, { 9 }) end, "page 9 is outside the pool")
  check.error(function() cache:insert({ 1, 2 }, { 3 }) end, "page 3 is not in use")
  check.error(function() cache:insert({ 1, 2, 3, 4 }, { 3 }) end, "1 page ids are given")
  check.error(function() cache:evict(-1) end, "tokens = -1")
  check.error(function() rt:prefix_cache { pool = pool, page_size = 257 } end, "page_size = 257")
  check.error(function() rt:prefix_cache { page_size = 2 } end, "pool is NULL")
  check.error(function() pool:close() end, "use it")
  check.equal(cache:info().tokens, 0)
  local second <close> = open()
  check.error(function() second:prefix_cache { pool = pool } end, "of another runtime")
  cache:close()
  check.equal(pool:free_pages(), 8)
  pool:close()
end)

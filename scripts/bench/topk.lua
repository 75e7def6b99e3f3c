-- topk: the shapes of the numbers to reach, then a sweep over rows x n x k. Each line: inputs in the
-- cache, then inputs rotated through more memory than any cache holds, the share of the read rate
-- (each score read once), the route, for the first shapes the kinds of rows that break top-k kernels as
-- ratios to random rows, the slowest and all over 1.2, and torch.topk beside it where python3 with torch
-- is there. Then one long row among short ones.
local cairn = require "cairn"

local SHAPES = {
  { 1, 131072, 2048 }, { 1, 1048576, 2048 }, { 32, 131072, 2048 }, { 64, 131072, 2048 },
  { 256, 131072, 2048 }, { 32, 4096, 32 }, { 256, 8192, 64 }, { 4096, 1024, 16 },
  { 32, 32768, 512 },
}
local CPU_SHAPES = {
  { 1, 131072, 2048 }, { 1, 1048576, 2048 }, { 64, 131072, 2048 }, { 32, 4096, 32 },
}
local SWEEP = {
  rows = { 1, 8, 64, 512, 4096 }, n = { 1024, 8192, 65536, 524288 }, k = { 16, 256, 2048 },
  scores = 64 << 20, -- of a shape, at most
}
local CPU_SWEEP = {
  rows = { 1, 64, 4096 }, n = { 1024, 16384, 262144 }, k = { 16, 256, 2048 }, scores = 8 << 20,
}
local ROTATED = 50 << 20 -- scores that pass between two uses: 200 MB

local M = { about = "exact top-k: rows x n, k" }

local function named(s) return ("%d x %d, k %d"):format(s[1], s[2], s[3]) end

local function random(n)
  local x = n * 0x9e3779b97f4a7c15
  x = (x ~ (x >> 30)) * 0xbf58476d1ce4e5b9
  x = (x ~ (x >> 27)) * 0x94d049bb133111eb
  return ((x ~ (x >> 31)) >> 11) * 0x1p-53
end

-- The shapes of a sweep.
local function swept(sweep)
  local shapes = {}
  for _, rows in ipairs(sweep.rows) do
    for _, n in ipairs(sweep.n) do
      for _, k in ipairs(sweep.k) do
        if k < n and rows * n <= sweep.scores then shapes[#shapes + 1] = { rows, n, k } end
      end
    end
  end
  return shapes
end

local function normal(i)
  return math.sqrt(-2 * math.log(random(2 * i + 1) + 1e-12)) * math.cos(2 * math.pi * random(2 * i))
end

-- x with so many bits: of thousands many are equal.
local function rounded(x, bits)
  if x == 0 then return x end
  local unit = 2.0 ^ (math.floor(math.log(math.abs(x), 2)) + 1 - bits)
  return math.floor(x / unit + 0.5) * unit
end

-- Scores as they change slowly along a row.
local function walk()
  local at = 0.0
  return function(i)
    at = i == 0 and 0.0 or at + 0.05 * normal(i)
    return at
  end
end

-- Score i of n; each is asked for in turn.
local KINDS = {
  { "all equal", function() return 0.25 end },
  { "two values", function(i) return random(i) < 0.5 and -2 or 3.5 end },
  { "ramp up", function(i, n) return i / n end },
  { "ramp down", function(i, n) return -i / n end },
  { "narrow", function(i) return 1 + random(i) * 1e-5 end },
  { "quantised", function(i) return random(i) * 16 // 1 end },
  { "walk", walk() },
  { "steps", function(i) return random(i // 1000) * 8 + random(i) * 1e-3 end },
  { "log-normal", function(i) return math.exp(3 * normal(i)) end },
  { "cauchy", function(i) return math.tan(math.pi * (random(i) - 0.5)) end },
  { "sawtooth", function(i) return i % 777 / 777 end },
  { "sorted blocks", function(i) return random(i // 256) + i % 256 / 64 end },
  { "hot page", function(i, n) return i // 64 == n // 200 and 5 + random(i) or random(i) end },
  { "f16", function(i) return rounded(normal(i), 11) end },
  { "bf16", function(i) return rounded(normal(i), 8) end },
}

-- rows of the same n scores, copied by the device.
local function rows_of(b, rows, n, kind)
  local list = {}
  for i = 1, n do list[i] = kind(i - 1, n) end
  local row = b.rt:tensor(list, "f32", { 1, n })
  local ids = b.rt:zeros({ rows }, "i32")
  local out = b.rt:embed(ids, row)
  row:free()
  ids:free()
  return out
end

local function time_kinds(b, s, random_us, out)
  local ratios, texts = {}, {}
  for i, kind in ipairs(KINDS) do
    local scores = rows_of(b, s[1], s[2], kind[2])
    local us = b:time(function() b.rt:topk(scores, { k = s[3], out = out }) end)
    scores:free()
    ratios[i] = { us / random_us, kind[1] }
  end
  table.sort(ratios, function(x, y) return x[1] > y[1] end)
  for i, ratio in ipairs(ratios) do
    if i == 1 or ratio[1] > 1.2 then texts[#texts + 1] = ("%.2f (%s)"):format(ratio[1], ratio[2]) end
  end
  return table.concat(texts, ", ")
end

-- Calls on one piece of `all` after the other.
local function rotated_calls(b, all, s, out)
  local calls, size = {}, s[1] * s[2]
  for i = 1, math.max(1, math.min(400, ROTATED // size + 2)) do
    local at = (i - 1) * size
    if at + size <= all.shape[1] then
      local scores = all:view({ s[1], s[2] }, { offset = at })
      calls[i] = function() b.rt:topk(scores, { k = s[3], out = out }) end
    end
  end
  return calls
end

-- `all`: at least rows * n random scores. slowest: whether to try the kinds.
local function measure(b, all, s, peers, slowest)
  local rows, n, k = s[1], s[2], s[3]
  local out = b.rt:zeros({ rows, k }, "i32")
  local calls = rotated_calls(b, all, s, out)
  local us = b:time(calls[1])
  local rotated = #calls > 1 and b:time(calls) or nil
  b.emit {
    op = "topk", shape = named(s), us = us, rotated_us = rotated,
    percent = rows * n * 4 / ((rotated or us) * 1e-6) / b.floor.read_bytes_per_second * 100,
    route = b.rt:topk_route(rows, n, k), peer = peers[named(s)],
    slowest = slowest and time_kinds(b, s, us, out) or nil,
  }
  out:free()
end

local function random_scores(b, shapes)
  local count = b.cuda and 3 * ROTATED or 0
  for _, s in ipairs(shapes) do count = math.max(count, s[1] * s[2]) end
  return b.rt:random { count }
end

local TORCH = [[
import sys
try:
    import torch
except Exception:
    sys.exit()
cuda = sys.argv[1] == "cuda"
if cuda and not torch.cuda.is_available(): sys.exit()
if not cuda: torch.set_num_threads(int(sys.argv[2]))
import time
for text in sys.argv[3:]:
    rows, n, k = map(int, text.split(","))
    x = torch.rand(rows, n, device="cuda" if cuda else "cpu")
    for _ in range(3): torch.topk(x, k)
    samples = []
    for _ in range(11 if cuda else 3):
        if cuda:
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            for _ in range(10): torch.topk(x, k)
            b.record(); b.synchronize()
            samples.append(a.elapsed_time(b) * 100)
        else:
            t = time.perf_counter(); torch.topk(x, k)
            samples.append((time.perf_counter() - t) * 1e6)
    print(f"{rows} x {n}, k {k}={sorted(samples)[len(samples) // 2]:.1f}", flush=True)
]]

-- { [shape] = "torch.topk 61.0 us" }, empty without python3 or torch.
local function torch(b, shapes)
  local peers, path = {}, os.tmpname()
  local file = io.open(path, "w")
  if not file then return peers end
  file:write(TORCH)
  file:close()
  local words = { "python3", path, b.cuda and "cuda" or "cpu", b.rt:info().multiprocessors }
  for _, s in ipairs(shapes) do words[#words + 1] = table.concat(s, ",") end
  local pipe = io.popen(table.concat(words, " ") .. " 2>&1")
  for line in pipe and pipe:lines() or function() end do
    local shape, us = line:match "^(%d+ x %d+, k %d+)=([%d.]+)$"
    if shape then peers[shape] = ("torch.topk %s us"):format(us) end
  end
  if pipe then pipe:close() end
  os.remove(path)
  return peers
end

-- One row of n among `rows` - 1 of `short`, known to the device alone, against a call on that row.
local function measure_unequal(b, rows, n, short, k)
  local rt, lengths = b.rt, { n }
  for r = 2, rows do lengths[r] = short end
  local scores, on_device = rt:random { rows, n }, rt:tensor(lengths, "i32")
  local out, one = rt:zeros({ rows, k }, "i32"), rt:zeros({ 1, k }, "i32")
  local row = scores:view { 1, n }
  local us = b:time(function() rt:topk(scores, { k = k, lengths = on_device, out = out }) end)
  local alone = b:time(function() rt:topk(row, { k = k, out = one }) end)
  b.emit {
    op = "topk of unequal rows", shape = ("1 x %d among %d x %d, k %d"):format(n, rows - 1, short, k),
    us = us, route = rt:topk_route(rows, n, k),
    peer = ("that row alone %.2f us: %.2f times"):format(alone, us / alone),
  }
  scores:free()
end

-- Scores made some rows at a time by a copy of one row, waited for, against all at once.
local function measure_rows(b, rows, n, k, at_once)
  local rt, ids = b.rt, b.rt:zeros({ rows }, "i32")
  local table_, out = rt:random { 1, n }, rt:zeros({ rows, k }, "i32")
  local function time(bytes)
    local samples = {}
    for i = 0, 5 do
      local before = cairn.now_us()
      rt:topk_rows(function(first, count, scores)
        rt:embed(ids:view({ count }, { offset = first }), table_, { out = scores })
      end, { rows = rows, n = n, k = k, max_bytes = bytes, out = out })
      samples[i] = cairn.now_us() - before
    end
    table.sort(samples)
    return samples[3]
  end
  local us, whole = time(at_once * n * 4), time(rows * n * 4)
  b.emit {
    op = "topk_rows", shape = ("%d x %d, k %d, %d rows at a time"):format(rows, n, k, at_once),
    us = us, peer = ("all at once %.1f us: %.2f times"):format(whole, us / whole),
  }
end

function M.run(b)
  local first = b.cuda and SHAPES or CPU_SHAPES
  local sweep = swept(b.cuda and SWEEP or CPU_SWEEP)
  local shapes = table.move(sweep, 1, #sweep, #first + 1, { table.unpack(first) })
  local peers, all = torch(b, shapes), random_scores(b, shapes)
  for i, s in ipairs(shapes) do measure(b, all, s, peers, i <= #first) end
  all:free()
  measure_unequal(b, b.cuda and 64 or 16, 1 << 20, 1024, 2048)
  measure_rows(b, b.cuda and 1024 or 32, 131072, 2048, b.cuda and 256 or 8)
end

return M

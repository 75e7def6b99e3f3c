-- How every bench measures and prints: medians of graph replays on the GPU (ten calls a graph), of
-- single calls on the CPU, each line a ratio to the read rate measured first in the same run.
local cairn = require "cairn"

local M = {}
M.__index = M

local CALLS, RUNS = 10, 21

local function median(samples)
  table.sort(samples)
  return samples[(#samples + 1) // 2]
end

-- A bench on an open runtime; `emit` receives each result as a table.
function M.new(rt, emit)
  local floor = rt:measure()
  return setmetatable({ rt = rt, floor = floor, cuda = rt:info().backend == "cuda", emit = emit }, M)
end

-- Microseconds of one call of the next function in turn, medians over graphs that cycle through
-- `calls` (a function, or several that touch different buffers).
function M:time(calls)
  if type(calls) == "function" then calls = { calls } end
  for _, call in ipairs(calls) do call() end
  if not self.cuda then return self:time_on_cpu(calls) end
  local rt, samples = self.rt, {}
  local from, to = rt:event(), rt:event()
  local count = math.max(CALLS, #calls) -- so that each comes to its turn
  local graph = rt:capture(function()
    for i = 1, count do calls[(i - 1) % #calls + 1]() end
  end)
  for run = -2, RUNS do
    from:record()
    graph:launch()
    to:record()
    local us = from:elapsed(to)
    if run > 0 then samples[run] = us / count end
  end
  graph:free()
  return median(samples)
end

function M:time_on_cpu(calls)
  local samples, start = {}, cairn.now_us()
  repeat
    local before = cairn.now_us()
    calls[#samples % #calls + 1]()
    samples[#samples + 1] = cairn.now_us() - before
  until #samples >= 5 and cairn.now_us() - start > 300000
  return median(samples)
end

-- One result: op, shape, us, and bytes that must move (nil: a latency), a share of the read rate;
-- or with rate = "copy", for bytes half of which are written, of the copy rate.
function M:line(op, shape, us, bytes, rate)
  local result = { op = op, shape = shape, us = us }
  if bytes then
    local ceiling = self.floor[(rate or "read") .. "_bytes_per_second"]
    result[rate and rate .. "_percent" or "percent"] = bytes / (us * 1e-6) / ceiling * 100
  end
  self.emit(result)
end

return M

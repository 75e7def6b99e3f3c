-- cairn bench: runs scripts/bench/NAME.lua, all of them in order when none is named; `shape`, which
-- writes gigabytes, only when it is.
local common = require "cli.common"
local options = require "cli.options"

local names = { "floor", "topk", "index", "ops", "kv", "steps", "conv", "pages", "model" }

local function show(result)
  if result.skipped then
    print(("%-28s skipped: %s"):format(result.op, result.skipped))
    return
  end
  local values = {}
  local function add(key, format)
    if result[key] then values[#values + 1] = format:format(result[key]) end
  end
  add("us", "%9.2f us")
  add("bar_us", "bar %d us")
  add("rotated_us", "rotated %9.2f us")
  add("ms", "%9.2f ms")
  add("percent", "%5.1f %% of the read rate")
  add("copy_percent", "%5.1f %% of the copy rate")
  add("gb_per_second", "%9.1f GB/s")
  add("tflops", "%9.1f TFLOP/s")
  add("tokens_per_second", "%9.1f tokens/s")
  add("tokens_per_step", "%5.2f tokens/step")
  add("limit_percent", "%5.1f %% of the read limit")
  add("gib", "%.2f GiB")
  add("open_ms", "and %.1f ms to open")
  add("route", "route %s")
  add("slowest", "slowest order %s")
  add("peer", "peer %s")
  print(("%-28s %-44s %s"):format(result.op, result.shape or "", table.concat(values, "  ")))
end

local function load_bench(name)
  local found, bench = pcall(require, "bench." .. name)
  if found then return bench end
  options.fail("no bench %s; there are: %s", name, table.concat(names, ", "))
end

-- `shape` takes the names behind it as models, and the options of the command.
local function run_shapes(b, o)
  local synthetic, models = require "bench.synthetic", table.move(o, 2, #o, 1, {})
  for _, name in ipairs(models) do
    if not synthetic.shapes[name] then
      options.fail("no shape %s; there are: %s", name, table.concat(synthetic.names, ", "))
    end
  end
  if (o.context or 1) < 1 or (o.pages or 0) < 0 or (o.chunk or 16) < 16
    or (o.batch or 1) < 1 or (o.join or 1) < 1 then
    options.fail("--context, --batch and --join are at least 1, --pages at least 0, --chunk at least 16")
  end
  require("bench.shape").run(b, models, o)
end

return {
  usage = "[NAME...] | shape [MODEL...]",
  about = "time the runtime on this machine, as ratios to what the machine can do",
  options = options.with_common {
    { "--type T", "shape: type of the weights", require "bench.synthetic".types },
    { "--context N", "shape: tokens before decoding", "integer" },
    { "--batch N", "shape: sessions that decode together, too", "integer" },
    { "--join N", "shape: sessions that join at random, too", "integer" },
    { "--chunk N", "shape: prefill_chunk, 2048 on a GPU and 512 elsewhere", "integer" },
    { "--pages K", "shape: pages kept; 0, the default: all", "integer" },
  },
  positional = math.huge,
  run = function(o)
    local chosen = #o > 0 and table.move(o, 1, #o, 1, {}) or names
    local rt <close> = common.open(o, { log = "warn" })
    local results = common.json.array {}
    local b = require("bench.lib").new(rt, function(result)
      results[#results + 1] = result
      if not o.json then show(result) end
    end)
    if o[1] == "shape" then
      run_shapes(b, o)
      chosen = {}
    end
    for _, name in ipairs(chosen) do
      local ok = pcall(require, "bench." .. name)
      if ok or #o > 0 then load_bench(name).run(b) end
    end
    if o.json then
      common.json.print { device = rt:info().device_name, floor = b.floor, results = results }
    end
    return 0
  end,
}

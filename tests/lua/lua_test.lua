-- The Lua module: tensors, views, files, ops' arguments, configs, and closing in any order.
local cairn = require "cairn"

local function open() return cairn.open({ backend = "cpu", threads = 2 }, { log = false }) end

local function temporary(name) return (os.getenv "TMPDIR" or "/tmp") .. "/cairn_" .. name end

test("tensors hold what they were given, in every dtype", function()
  local rt <close> = open()
  for _, dtype in ipairs { "f32", "f16", "bf16", "e4m3", "i32", "i64", "u8" } do
    local t = rt:tensor({ { 1, 2, 3 }, { 4, 5, 64 } }, dtype)
    check.equal(t.dtype, dtype)
    check.equal(t.shape, { 2, 3 })
    check.equal(t:totable(), { { 1, 2, 3 }, { 4, 5, 64 } })
  end
  check.equal(rt:tensor({ 1, 2, 3, 4 }, "i32", { 2, 2 }):totable(), { { 1, 2 }, { 3, 4 } })
  check.equal(rt:zeros({ 2, 0, 3 }, "u8").bytes, 0)
  check.equal(rt:tensor({ -1, math.maxinteger }, "i64"):totable(), { -1, math.maxinteger })
end)

test("small floats round to nearest even, as IEEE says", function()
  local rt <close> = open()
  local function rounded(dtype, list) return rt:tensor(list, dtype):totable() end
  check.equal(rounded("f16", { 2049, 2051, 65519, 65520, -1 / 0, 2 ^ -24, 2 ^ -25, 3 * 2 ^ -25 }),
    { 2048, 2052, 65504, 1 / 0, -1 / 0, 2 ^ -24, 0, 2 ^ -23 })
  check.equal(rounded("bf16", { 257, 259, 1e39, 2 ^ -133 }), { 256, 260, 1 / 0, 2 ^ -133 })
  check.equal(rounded("e4m3", { 17, 19, 1000, 2 ^ -9, 2 ^ -10, 448 }), { 16, 20, 448, 2 ^ -9, 0, 448 })
  check.equal(rounded("f16", { 0 / 0 }), { 0 / 0 })
end)

test("bad elements and shapes are named", function()
  local rt <close> = open()
  check.error(function() rt:tensor({ 1, 2.5 }, "i32") end, "element 2 is 2.5, which is no i32")
  check.error(function() rt:tensor({ 1, "x" }) end, "element 2 is x, which is no f32")
  check.error(function() rt:tensor({ 300 }, "u8") end, "element 1 is 300")
  check.error(function() rt:tensor { { 1, 2 }, { 3 } } end, "ragged")
  check.error(function() rt:tensor({ 1 }, "f99") end, "no dtype f99")
  check.error(function() rt:zeros { -1 } end, "CAIRN_INVALID_ARGUMENT")
  check.error(function() rt:zeros { 1.5 } end, "shape[1] is no whole number")
end)

test("views share memory and stay inside it", function()
  local rt <close> = open()
  local t = rt:tensor { { 1, 2, 3 }, { 4, 5, 6 } }
  check.equal(t:view({ 3, 2 }):totable(), { { 1, 2 }, { 3, 4 }, { 5, 6 } })
  local tail = t:view({ 2 }, { offset = 4 })
  tail:write { 50, 60 }
  check.equal(t:totable(), { { 1, 2, 3 }, { 4, 50, 60 } })
  check.error(function() t:view { 7 } end, "ends at element 7 of 6")
  check.error(function() t:view({ 2, 2 }, { strides = { 4, 1 }, offset = 1 }) end, "element 7 of 6")
  check.error(function() t:view({ 2 }, { offset = -1 }) end, "negative offset")
  check.error(function() t:view({ 2 }, { strides = { -1 } }) end, "negative")
  check.error(function() t:view({ 2 ^ 62, 2 ^ 62 }) end, "view")
  local inner = tail:view { 1 }
  t:free()
  check.error(function() inner:totable() end, "freed")
  check.error(function() tail:totable() end, "freed")
end)

test("npy files come back as they went, and are checked", function()
  local rt <close> = open()
  local path = temporary "lua_test.npy"
  for _, dtype in ipairs { "f32", "f16", "bf16", "i32", "i64", "u8" } do
    local t = rt:random({ 3, 5, 2 }, dtype, { seed = 7, low = 0, high = 100 })
    t:save(path)
    local back = rt:load(path)
    check.equal(back.dtype, dtype)
    check.equal(back:totable(), t:totable())
  end
  local t = rt:random({ 4 }, "bf16", { seed = 3 })
  t:save(path)
  local file = io.open(path, "rb")
  local bytes = file:read "a":gsub("<V2", "|V2") -- as NumPy writes two opaque bytes
  file:close()
  io.open(path, "wb"):write(bytes):close()
  check.equal(rt:load(path):totable(), t:totable())
  os.remove(path)
  check.error(function() rt:load(path) end, "CAIRN_FILE_NOT_FOUND")
  check.error(function() rt:load "README.md" end, "CAIRN_BAD_FILE")
end)

test("an op takes tensors first and named options last", function()
  local rt <close> = open()
  local x = rt:tensor { { 1, 5, 3, 2 }, { 9, 8, 7, 9 } }
  check.equal(rt:topk(x, { k = 2 }):totable(), { { 1, 2 }, { 0, 3 } })
  local index, values = rt:topk(x, { k = 3, order = "score", values = true })
  check.equal(index:totable(), { { 1, 2, 3 }, { 0, 3, 1 } })
  check.equal(values:totable(), { { 5, 3, 2 }, { 9, 9, 8 } })
  local lengths = rt:tensor({ 1, 0 }, "i32")
  check.equal(rt:topk(x, { k = 2, lengths = lengths }):totable(), { { 0, -1 }, { -1, -1 } })
  local out = rt:zeros({ 2, 1 }, "i32")
  check.equal(rt:topk(x, { k = 1, out = out }) == out, true)
  local pages = rt:tensor({ { 7, 3 }, { 0, 5 } }, "i32")
  check.equal(rt:topk_transform(x, { k = 2, page_table = pages, page_size = 2 }):totable(),
              { { 15, 6 }, { 0, 11 } })
  local offsets = rt:tensor({ 100, 200 }, "i32")
  check.equal(rt:topk_transform(x, { k = 2, offsets = offsets }):totable(),
              { { 101, 102 }, { 200, 203 } })
  check.equal(out:totable(), { { 1 }, { 0 } })
end)

test("topk_rows takes scores that a function makes, some rows at a time", function()
  local rt <close> = open()
  local x = rt:tensor { { 1, 5, 3 }, { 9, 8, 9 }, { 0, 2, 2 }, { 4, 4, 4 }, { 7, 6, 5 } }
  local asked, kept = {}, nil
  local function produce(first, count, scores)
    asked[#asked + 1], kept = { first, count }, scores
    local slice = x:view({ count, 3 }, { offset = first * 3 })
    scores:write(slice:totable())
  end
  local options = { rows = 5, n = 3, k = 2, max_bytes = 24 }
  local want = rt:topk(x, { k = 2 }):totable()
  check.equal(rt:topk_rows_plan(options), 2)
  check.equal(rt:topk_rows(produce, options):totable(), want)
  check.equal(asked, { { 0, 2 }, { 2, 2 }, { 4, 1 } })
  check.error(function() kept:totable() end, "closed")
  local out = rt:zeros({ 7, 2 }, "i32")
  local index, values = rt:topk_rows(produce, { rows = 5, n = 3, k = 2, out = out, values = true })
  check.equal(index == out, true)
  want[6], want[7] = { -1, -1 }, { -1, -1 }
  check.equal(out:totable(), want)
  check.equal(values:totable()[7], { -math.huge, -math.huge })

  local live = rt:info().live_bytes
  local function fails(f, text) check.error(function() rt:topk_rows(f, options) end, text) end
  fails(function() error { "a table" } end, "table")
  fails(function() error("my own words", 0) end, "my own words")
  fails(function() return false end, "CAIRN_CANCELLED")
  fails(function(_, _, s) rt:topk(s, { k = 0 }) end, "k = 0")
  fails(function() rt:close() end, "close: an op")
  fails(function() coroutine.yield() end, "yield")
  options.out = rt:zeros({ 5, 2 }, "i32")
  fails(function() options.out:free() end, "closed")
  options.out = nil
  check.equal(rt:topk_rows(function(...) produce(...) rt:topk_rows(produce, options) end,
                           options):totable()[5], { 0, 1 })
  check.equal(rt:info().live_bytes - live <= 4096, true)
  check.error(function() rt:topk_rows(options) end, "function expected")
  check.error(function() rt:topk_rows(produce, { rows = 1, n = 3, k = 1, max_bytes = -1 }) end,
              "max_bytes: a whole number")
  check.error(function() rt:topk_rows(produce, { rows = 1, n = -3, k = 1 }) end, "n = -3")
end)

test("an op names what is wrong with its arguments", function()
  local rt <close> = open()
  local other <close> = open()
  local x = rt:tensor { { 1, 2 } }
  check.error(function() rt:topk(x, { kk = 1 }) end, "topk: no option kk; did you mean k?")
  local _, said = pcall(rt.topk, rt, x, { sampling = 1 })
  check.equal(tostring(said):match "topk: no option.*", "topk: no option sampling") -- none is near
  check.error(function() rt:topk(x, { k = 1.5 }) end, "topk: k: a whole number is expected, not 1.5")
  check.error(function() rt:topk(x, { k = 2 ^ 40 | 0 }) end, "out of range")
  check.error(function() rt:topk(x, { k = 1, order = "up" }) end, "(position, score)")
  check.error(function() rt:topk(x, { k = 1, lengths = 3 }) end, "lengths: a tensor is expected")
  check.error(function() rt:topk { k = 1 } end, "topk: scores is NULL")
  check.error(function() rt:topk(x, x, x, x, { k = 1 }) end, "too many arguments")
  check.error(function() other:topk(x, { k = 1 }) end, "another runtime")
  check.error(function() rt:topk(x, { k = -1 }) end, "CAIRN_INVALID_ARGUMENT")
  local seen = x:view { 2, 1 }
  x:free()
  check.error(function() rt:topk(x, { k = 1 }) end, "topk: scores: the tensor")
  check.error(function() rt:topk(seen, { k = 1 }) end, "topk: scores: the tensor")
end)

test("a config is a table or a file, and all its mistakes come at once", function()
  local text = check.error(function()
    cairn.check { page_size = 48, topkk = 3, selection = { window = "x" }, stop = print }
  end, "page_size = 48 is not allowed (16, 32, 64, 128, 256); did you mean 64?")
  for _, part in ipairs { "topkk", "selection.window", "stop" } do
    check.ok(text:find(part, 1, true), part)
  end
  check.equal(text:find("config:1", 1, true), nil)
  local full = cairn.check { selection = { layers = { 1, 3 } }, stop = { "\n\"end\1\200" },
    sampling = { temperature = 0.5 } }
  check.equal(full.page_size, 64)
  check.equal(full.selection.layers, { 1, 3 })
  check.near(full.sampling.temperature, 0.5, 0)
  check.equal(cairn.check(full), full)
  check.error(function() cairn.check "no_such_file.lua" end, "no_such_file.lua")
end)

test("what is closed says so, in any order", function()
  local rt = open()
  local t, view = rt:zeros { 4 }, nil
  view = t:view { 2, 2 }
  local event = rt:event():record()
  rt:close()
  rt:close()
  for _, use in ipairs { function() t:totable() end, function() view:totable() end,
    function() event:record() end, function() rt:zeros { 1 } end, function() rt:info() end } do
    check.error(use, "closed")
  end
  t:free()
  check.equal(tostring(t), "tensor (closed)")
end)

test("the collector closes whatever is left, and memory comes back", function()
  local rt <close> = open()
  local before = rt:info().live_bytes
  for i = 1, 50 do
    local t = rt:zeros { 1000, i }
    local _ = t:view { i }
    pcall(rt.topk, rt, t, { k = -1 })
  end
  collectgarbage()
  collectgarbage()
  check.equal(rt:info().live_bytes, before)
  for _ = 1, 5 do
    local lost = open()
    local _ = lost:zeros { 10 }:view { 5 }
  end
  collectgarbage()
  check.ok(rt:info().peak_bytes >= 4 * 1000 * 50)
end)

test("events measure", function()
  local rt <close> = open()
  local from = rt:event():record()
  rt:topk(rt:random { 100, 1000 }, { k = 10 })
  local to = rt:event():record()
  check.ok(from:elapsed(to) >= 0)
  check.error(function() from:elapsed(rt:event()) end, "CAIRN_")
end)

test("a graph replays what was captured, or the CPU says that it has none", function()
  local rt <close> = cairn.open({}, { log = false })
  local x, out = rt:tensor { { 1, 2, 3 } }, rt:zeros({ 1, 1 }, "i32")
  rt:topk(x, { k = 1, out = out })
  local function capture() return rt:capture(function() rt:topk(x, { k = 1, out = out }) end) end
  if rt:info().backend == "cpu" then
    check.error(capture, "CAIRN_UNSUPPORTED")
  else
    local graph = capture()
    x:write { { 9, 2, 3 } }
    graph:launch()
    check.equal(out:totable(), { { 0 } })
    check.error(function() rt:capture(function() error "mine" end) end, "mine")
  end
end)

test("kernel templates are at hand, and a program has so many constants", function()
  local templates = cairn.templates()
  check.ok(templates["dense/norm.cu"]:find "CAIRN_KERNEL" and templates["device/common.cuh"])
  local many = {}
  for i = 1, 129 do many["CAIRN_" .. i] = i end
  check.error(function() cairn.compile({}, 90, { source = "dense/norm.cu", constants = many }) end,
    "at most 128 constants")
end)

test("a compiled program is found again where the config keeps programs", function()
  if cairn.libraries().nvrtc_error then skip "no NVRTC" end
  local folder = os.tmpname()
  os.remove(folder)
  local function compile(mode)
    return cairn.compile({ jit = { cache_dir = folder, cache = mode } }, 90,
      { source = "device/measure.cu", constants = {} })
  end
  local ptx = cairn.compile({ jit = { cache = "off" } }, 90,
    { source = "dense/norm.cu", constants = {}, kind = "ptx" })
  check.equal(ptx.kind, "ptx")
  check.ok(ptx.image:find("%.target sm_90"))
  local first, again = compile "read-write", compile "read-only"
  check.equal({ first.cached, again.cached, compile("off").cached }, { false, true, false })
  check.equal(first.image, again.image)
  local host = require "host"
  for _, name in ipairs(host.list(folder)) do os.remove(folder .. "/" .. name) end
  os.remove(folder)
end)

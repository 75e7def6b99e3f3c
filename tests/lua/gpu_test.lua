-- What Lua does with a GPU: streams, events, graphs, devices. `sh tests/simt/emulate.sh build/cairn test
-- tests/lua/gpu_test.lua` runs it on the emulated one, as the suite does where there is none.
local cairn = require "cairn"

local function open()
  local done, rt = pcall(cairn.open, { backend = "cuda", log = "info" }, { log = "apart", progress = true })
  if not done then skip(rt) end
  return rt
end

test("events tell time on a stream of one's own, and a graph repeats what it holds", function()
  local rt <close> = open()
  local gate, up, out = rt:tensor { { 1, -2 } }, rt:tensor { { 4, 5 } }, rt:zeros { 1, 2 }
  local function wanted(a, b) return a / (1 + math.exp(-a)) * b end
  local function holds(a, b)
    local got = out:totable()[1]
    check.ok(math.abs(got[1] - wanted(a, 4)) < 1e-5 and math.abs(got[2] - wanted(b, 5)) < 1e-5)
  end
  local stream, from, to = rt:stream(), rt:event(), rt:event()
  rt:use(stream)
  from:record()
  rt:swiglu(gate, up, { out = out })
  to:record()
  to:wait()
  stream:sync()
  check.ok(from:elapsed(to) >= 0)
  holds(1, -2)
  local graph = rt:capture(function() rt:swiglu(gate, up, { out = out }) end)
  gate:write { { 3, 0.5 } }
  holds(1, -2)
  graph:launch()
  stream:sync()
  holds(3, 0.5)
  check.error(function() rt:capture(function() error "mine" end) end, "mine")
  check.error(function() rt:capture(function() rt:capture(print) end) end, "captured already")
  check.error(function() rt:capture(function() rt:use(stream) end) end, "is being captured")
  rt:use(rt:stream()) -- which Lua may collect
  rt:event():record()
  collectgarbage()
  collectgarbage()
  rt:swiglu(gate, up, { out = out })
  rt:sync()
  holds(3, 0.5)
  rt:use(nil)
  graph:free()
  check.error(function() graph:launch() end, "closed")
end)

test("the devices that there are have names", function()
  open():close()
  local found = cairn.libraries()
  check.equal(found.driver_error, nil)
  check.ok(#found.devices[1].name > 0 and found.devices[1].arch >= 80 and found.devices[1].total_bytes > 0)
end)

-- On sm_90a the products of a prompt of many rows run by blocks of 256 tokens where that pays, by blocks of
-- 128 elsewhere: with the emulated 4 multiprocessors qkv, gate and up of 300 rows do, and of few rows none. Those
-- of 32 rows run by blocks of 32 once these are compiled.
test("a prompt's logits are the same bits, whatever blocks its products run by", function()
  open():close()
  local synthetic, path = require "bench.synthetic", os.tmpname()
  synthetic.write(path, { layers = 1, hidden = 128, ffn = 2048, heads = 2, kv_heads = 1, vocab = 512,
    context = 1024, rope_base = 10000.0, tied = true }, "q4_0")
  local ids = {}
  for i = 1, 300 do ids[i] = i * i * 7 % 500 + 3 end
  local function logits_of(chunk, waits)
    local rt <close> = cairn.open { backend = "cuda", drafter = "none", max_batch = 1, max_seq_len = 1024,
      prefill_chunk = chunk }
    local model = rt:load_model(path)
    if waits then model:wait() end
    local row = { session = model:session(), ids = ids, prompt = true, logits = { #ids } }
    return model:forward { row }[1].logits:totable()[1]
  end
  local large, small, few = logits_of(2048), logits_of(128), logits_of(32, true)
  os.remove(path)
  check.equal(#large, 512)
  check.equal(table.concat(large, " "), table.concat(small, " "))
  check.equal(table.concat(large, " "), table.concat(few, " "))
  check.ok(math.max(table.unpack(large)) > math.min(table.unpack(large)))
end)

test("where memory is short what Lua no longer needs goes first", function()
  local rt <close> = open()
  rt:zeros { 1 << 20 }
  local before, all = rt:info().live_bytes, rt:info().total_bytes
  check.error(function() rt:zeros { all // 4 } end, "CAIRN_OUT_OF_DEVICE_MEMORY")
  check.ok(rt:info().live_bytes <= before - (4 << 20))
end)

-- What a script gets wrong is told by name; methods that nothing else in the tests calls.
local cairn = require "cairn"

local function open() return cairn.open({ backend = "cpu", threads = 2, max_batch = 1 }, { log = false }) end

local function model_path()
  local path = os.getenv "CAIRN_MODEL"
  if not path or path == "" then skip "CAIRN_MODEL names no model" end
  return path
end

test("what the CPU has instead of streams, clocks that go on, speeds that are measured", function()
  local rt <close> = open()
  local before = cairn.now_us()
  local stream, event = rt:stream(), rt:event()
  rt:use(stream)
  event:record()
  stream:sync()
  event:wait()
  rt:use(nil)
  rt:sync()
  check.ok(cairn.now_us() >= before)
  check.ok(rt:measure().read_bytes_per_second > 0)
  check.ok(#rt:topk_route(1, 4096, 32) > 0)
  local other <close> = open()
  check.error(function() other:use(stream) end, "another runtime")
end)

test("a tensor says what it is, a view what it cannot be", function()
  local rt <close> = open()
  local t = rt:zeros({ 2, 3 }, "f16")
  check.equal(tostring(t), "tensor f16 [2, 3]")
  check.error(function() t:view({ 6 }, { strides = { 1, 1 } }) end, "strides and shape differ in rank")
  check.error(function() t:view({ 6 }, { ofset = 1 }) end, "did you mean offset?")
  check.error(function() t:view({ 6 }, 3) end, "table expected")
  check.error(function() rt:random({ 3 }, "f32", { sede = 1 }) end, "did you mean seed?")
  check.error(function() rt:zeros { 1, 1, 1, 1, 1, 1, 1, 1, 1 } end, "entries")
  check.error(function() rt:topk(rt:zeros { 4 }, { k = 2, zzz = 1 }) end, "no option zzz")
end)

-- A file of numpy's with this header.
local function npy(name, header)
  local file <close> = assert(io.open(name, "wb"))
  file:write("\147NUMPY\1\0", string.pack("<s2", header .. "\n"), ("\0"):rep(64))
end

test("arrays of numpy's that are no tensors are refused with what is read", function()
  local rt <close> = open()
  local name <close> = setmetatable({ path = os.tmpname() }, { __close = function(f) os.remove(f.path) end })
  local function fails(header, text)
    npy(name.path, header)
    check.error(function() rt:load(name.path) end, text)
  end
  fails("{'descr': '<c8', 'fortran_order': False, 'shape': (2, 2), }", "element type '<c8'")
  fails("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2), }", "Fortran order; save it in C order")
  fails("{'descr': '<f4', 'fortran_order': False, }", "is not understood")
  fails("{'descr': '<f4', 'fortran_order': False, 'shape': (200, 2), }", "")
  npy(name.path, "{'descr': '<f4', 'fortran_order': True, 'shape': (16,), }")
  check.equal(rt:load(name.path).shape, { 16 })
end)

test("options of ops of a kind that does not fit", function()
  local rt <close> = open()
  local other <close> = open()
  local x, lists = rt:tensor { { 3, 1, 2 } }, {}
  check.equal(rt:topk(x, { k = 2, route = "auto" }):totable(), { { 0, 2 } })
  check.error(function() rt:topk(x, { k = 2, route = 3 }) end, "topk: route: a string is expected, not a number")
  check.error(function() rt:rmsnorm(x, x, { epsilon = "small" }) end, "rmsnorm: epsilon: a number is expected, not a string")
  check.error(function() rt:topk(x, { k = 2, route = "fast" }) end, 'route "fast" is unknown')
  for i = 1, 400 do lists[i] = x end
  check.error(function() rt:kv_collate { caches = lists } end, "caches has 400 tensors; 192 are allowed")
  local seq = rt:tensor({ 3 }, "i32")
  check.error(function() rt:prepare_steps(seq, { into = { { cache_seqlens = other:tensor({ 3 }, "i32") } } }) end,
    "into: cache_seqlens: the tensor is of another runtime")
  local one = rt:prepare_steps(seq)
  check.error(function() rt:prepare_steps(seq, { steps = 2, into = one }) end, "into has 1 tables; 2 are expected")
end)

test("without a config it is the defaults", function()
  check.equal(cairn.check(), cairn.check {})
  check.equal(cairn.check().page_size, 64)
end)

test("what Lua collects is given back while the runtime is open, and not from under what uses it", function()
  local rt <close> = open()
  local tables = rt:page_tables { requests = 1, max_tokens = 64, page_size = 16, pool = rt:page_pool(4) }
  rt:use(rt:stream())
  rt:event():record()
  rt:page_pool(4)
  collectgarbage()
  collectgarbage()
  tables:add { 0 }
  tables:insert { 40 }
  check.equal(#tables:pages(0), 3)
  check.equal(rt:topk(rt:tensor { { 3, 1, 2 } }, { k = 1 }):totable(), { { 0 } })
  rt:use(nil)
end)

test("lists of pages that do not fit", function()
  local rt <close> = open()
  local pool = rt:page_pool(8)
  local t = rt:page_tables { requests = 2, max_tokens = 64, page_size = 16, pool = pool }
  check.error(function() t:pages(7) end, "request 7")
  check.error(function() t:adopt(0, { 1, 2, 3 }, 17) end, "do not fill")
  local prefixes = rt:prefix_cache { pool = pool, page_size = 16 }
  check.error(function() prefixes:match({ 1, 2 }, { spase = 1 }) end, "did you mean space?")
end)

test("a model from memory, checked and waited for; its sessions' odd ends", function()
  local path = model_path()
  local rt <close> = open()
  local report = cairn.model_check({ backend = "cpu" }, path)
  check.equal(report.status, "CAIRN_OK")
  check.ok(report.layers > 0 and report.estimate.total_bytes > 0)
  report = cairn.model_check({ backend = "cpu" }, "README.md")
  check.ok(report.status ~= "CAIRN_OK" and #report.reasons > 0)
  local file <close> = assert(io.open(path, "rb"))
  local m = rt:load_model_from(file:read "a", "pack")
  m:wait()
  local s = m:session()
  check.equal(type(s:pointer()), "userdata")
  s:append { 1, 2, 3 }
  check.error(function() s:selection(999, 0) end, "selection")
  local id = m:tokenize " Paris"[1]
  check.equal(s:text("Say:", { max_tokens = 1, logit_bias = { [id] = 1000 } }), " Paris")
  check.error(function() s:text("x", { logit_bias = 3 }) end, "logit_bias")
  check.error(function() s:text("x", { grammar = 3 }) end, "a string is expected")
  check.error(function() s:text("x", { grammar = "a\0b" }) end, "holds a NUL byte")
  check.error(function() s:text("x", { maxtokens = 1 }) end, "did you mean max_tokens?")
  check.error(function() m:detokenize(rt:zeros { 3 }) end, "ids: a list")
  local ids = m:tokenize "Is water wet?"
  check.equal(m:detokenize(rt:host(ids)), "Is water wet?")
  check.equal(m:eval(rt:host(ids)), m:eval(ids))
  check.equal(s:text("Say:", { max_tokens = 1, repetition_penalty = 1.1, grammar_from = 0 }) ~= nil, true)
end)

test("rows of a forward that do not fit", function()
  local path = model_path()
  local rt <close> = open()
  local m = rt:load_model(path)
  local s = m:session():append { 1, 2, 3 }
  check.error(function() m:forward { { session = s, id = { 1 } } } end, "a list of ids is expected")
  check.error(function() m:forward { { session = s, ids = { 1 }, logit = true } } end, "did you mean logits?")
  check.error(function() m:forward { { session = s, ids = { 1 }, rope = { 1, 2 } } } end, "one entry a row")
  check.error(function() m:forward { { session = s, ids = { 1, 2 }, mask = { { 1 }, {} } } } end, "row 2")
  check.error(function() m:forward { { session = s, ids = { 1 }, logits = { 5 } } } end, "row 5 of 1")
  check.error(function() m:forward { { session = s, ids = { 1 }, hidden = { 1, 1 } } } end, "hidden: 2 rows of 1")
  local long = {}
  for i = 1, m:info().max_seq_len + 1 do long[i] = 1 end
  check.error(function() m:generate_batch { { 1 }, long } end, "generate_batch: row 2 has")
  check.error(function() m:generate_batch { {} } end, "generate_batch: row 0")
  check.error(function() m:chat_ids { 3 } end, "message 1 is no table")
end)

-- What a table computes would be held by nothing once it is read, and the code could close what the call is about.
test("no code of the script's runs while a call reads its tables; what tables inherit counts", function()
  local path = model_path()
  local rt <close> = open()
  local m = rt:load_model(path)
  local s = m:session()
  local ran = 0
  local function computed(field)
    return setmetatable(field, { __index = function() ran = ran + 1; rt:close() end })
  end
  local function inherited(field) return setmetatable({}, { __index = setmetatable({}, { __index = field }) }) end
  check.equal(s:text("Say:", computed { max_tokens = 1 }), s:reset():text("Say:", inherited { max_tokens = 1 }))
  check.error(function() m:chat_ids { computed {} } end, "needs the strings role and content")
  check.equal(#m:chat_ids { inherited { role = "user", content = "a" } }, #m:chat_ids { { role = "user", content = "a" } })
  check.error(function() m:forward { computed {} } end, "a list of ids is expected")
  check.equal(#m:eval({ 1, 2, 3 }, inherited { top = 1 }).top, 3)
  check.equal(ran, 0)
  local circle = setmetatable({}, {})
  getmetatable(circle).__index = circle
  check.error(function() m:chat_ids { circle } end, "needs the strings role and content")
  check.error(function() m:chat_ids { { role = "user\0x", content = "a" } } end, "holds a NUL byte")
end)

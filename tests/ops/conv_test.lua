-- The short convolution and its metadata from Lua on small inputs, against plain Lua.
local cairn = require "cairn"

local function open() return cairn.open({ backend = "cpu", threads = 2 }, { log = false }) end

-- Sequences of x (lists of rows) one after the other, each from zeros: rows out and last inputs.
local function plain(x, weight, starts)
  local out, states, width = {}, {}, #weight[1]
  for s = 1, #starts - 1 do
    local first, last = starts[s] + 1, starts[s + 1]
    states[s] = {}
    for t = first, last do
      out[t] = {}
      for c = 1, #weight do
        local sum = 0
        for j = 1, width do
          local from = t - width + j
          if from >= first then sum = sum + weight[c][j] * x[from][c] end
        end
        out[t][c] = sum
      end
    end
    for j = 1, width - 1 do
      local from = last - width + 1 + j
      states[s][j] = {}
      for c = 1, #weight do states[s][j][c] = from >= first and x[from][c] or 0 end
    end
  end
  return out, states
end

test("short_conv of two prompts, then a decode step, drafts and their rejection", function()
  local rt <close> = open()
  local x = rt:random({ 7, 5 }, "f32", { seed = 1 })
  local weight = rt:random({ 5, 3 }, "f32", { seed = 2 })
  local state = rt:random({ 2, 2, 5 }, "f32", { seed = 3 }) -- must not be read
  local starts = { 0, 1, 7 }
  local out = rt:short_conv(x, weight, state, { cu_seqlens = rt:tensor(starts, "i32") })
  local want, states = plain(x:totable(), weight:totable(), starts)
  check.near(out:totable(), want, 1e-5)
  check.equal(state:totable(), states)
  -- a token each, then three drafts of which one stays
  local step = rt:random({ 2, 5 }, "f32", { seed = 4 })
  local all = { x:totable()[1], step:totable()[1] }
  for t = 2, 7 do all[#all + 1] = x:totable()[t] end
  all[#all + 1] = step:totable()[2]
  local after = rt:short_conv_update(step, weight, state)
  want, states = plain(all, weight:totable(), { 0, 2, 9 })
  check.near(after:totable(), { want[2], want[9] }, 1e-5)
  check.equal(state:totable(), states)
  local before = state:totable()
  local drafts = rt:random({ 6, 5 }, "f32", { seed = 5 })
  local snapshots = rt:zeros { 2, 5, 5 }
  rt:short_conv_update(drafts, weight, state,
    { cu_seqlens = rt:tensor({ 0, 3, 6 }, "i32"), snapshots = snapshots })
  rt:short_conv_restore(snapshots, rt:tensor({ 0, 1 }, "i32"), state)
  check.equal(state:totable(), { before[1], { before[2][2], drafts:totable()[4] } })
end)

test("short_conv takes gates, a bias, an activation and strided parts of a projection", function()
  local rt <close> = open()
  local all = rt:random({ 4, 6 }, "f32", { seed = 6 })
  local function part(i) return all:view({ 4, 2 }, { strides = { 6, 1 }, offset = 2 * i }) end
  local weight, bias = rt:random({ 2, 2 }, "f32", { seed = 7 }), rt:tensor { 0.5, -0.25 }
  local state = rt:zeros { 1, 1, 2 }
  local out = rt:short_conv(part(2), weight, state, { cu_seqlens = rt:tensor({ 0, 4 }, "i32"),
    gate_in = part(0), gate_out = part(1), bias = bias, activation = "silu" })
  local rows, w, want = all:totable(), weight:totable(), {}
  for t = 1, 4 do
    want[t] = {}
    for c = 1, 2 do
      local function u(at) return at > 0 and rows[at][c] * rows[at][4 + c] or 0 end
      local y = bias:totable()[c] + w[c][1] * u(t - 1) + w[c][2] * u(t)
      want[t][c] = y / (1 + math.exp(-y)) * rows[t][2 + c]
    end
  end
  check.near(out:totable(), want, 1e-5)
end)

test("short_conv_metadata: decodes, prompts, chunks, from the device and from the host", function()
  local rt <close> = open()
  local cu, lens, slots = { 0, 1, 2, 7, 15, 24, 24, 25 }, { 9, 1, 5, 8, 12, 3, 1 },
    { { 3, 0 }, { 5, 0 }, { 4, 0 }, { 1, 0 }, { 0, 0 }, { 2, 0 }, { 7, 0 } }
  local function verify(chunks, offsets, initial, decodes, prompts, counts, order)
    check.equal({ table.unpack(chunks:totable(), 1, 6) }, { 2, 3, 4, 4, 6, -1 })
    check.equal({ table.unpack(offsets:totable(), 1, 6) }, { 0, 0, 0, 1, 0, -1 })
    check.equal(initial:totable(), { 1, 0, 0, 0, 1, 1, 0 })
    check.equal(decodes:totable(), { 3, 5, -1, -1, -1, -1, -1 })
    check.equal(prompts:totable(), { -1, -1, 4, 1, 0, 2, 7 })
    check.equal(counts:totable(), { 2, 5, 2, 23, 5, 8, 7, 0 })
    check.equal(order:totable(), { 0, 1, 5, 6, 2, 3, 4 })
  end
  verify(rt:short_conv_metadata(rt:tensor(cu, "i32"), rt:tensor(lens, "i32"),
    rt:tensor(slots, "i32"), { block_tokens = 8, order = true }))
  local staging <close> = rt:staging(256)
  verify(rt:short_conv_metadata(rt:host(cu), rt:host(lens), rt:host(slots),
    { block_tokens = 8, order = true, staging = staging }))
  check.error(function()
    rt:short_conv_metadata(rt:host { 0, 2, 1 }, { staging = staging })
  end, "request 1: cu_seqlens decreases")
  check.equal(rt:host({ { 1, 2 }, { 3, 4 } }):totable(), { { 1, 2 }, { 3, 4 } })
end)

test("a chunk list is whole, and what the table lists", function()
  local rt <close> = open()
  local x, weight, state = rt:zeros { 3, 5 }, rt:zeros { 5, 3 }, rt:zeros { 1, 2, 5 }
  check.error(function()
    rt:short_conv(x, weight, state, { cu_seqlens = rt:tensor({ 0, 3 }, "i32"), chunk_offsets = rt:zeros({ 1 }, "i32") })
  end, "chunk_sequences and chunk_offsets go together")
end)

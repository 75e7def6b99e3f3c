-- The token indexer from Lua: a prompt, its keys kept in pages, a step that finds them.
local cairn = require "cairn"

local HEADS, TOKENS, K = 8, 70, 12

local function open() return cairn.open({ backend = "cpu", threads = 2 }, { log = false }) end

-- What a prompt of TOKENS tokens gives: q, weights, keys, key_scales, and where its rows stand.
local function prompt(rt, power_of_two)
  local at, seen = {}, {}
  for i = 1, TOKENS do at[i], seen[i] = i - 1, i end
  local positions, lengths = rt:tensor(at, "i32"), rt:tensor(seen, "i32")
  local q, weights, keys, scales = rt:index_qk(rt:random({ TOKENS, 64 }, "f32", { seed = 2 }),
    rt:random({ 128, 64 }, "f32", { seed = 3 }), rt:random({ 128 }, "f32", { seed = 4 }), {
      positions = positions, q_latent = rt:random({ TOKENS, 32 }, "f32", { seed = 5 }),
      wq = rt:random({ HEADS * 128, 32 }, "f32", { seed = 6 }), q = true, weights = true,
      gate = rt:random({ HEADS, 64 }, "f32", { seed = 7 }), power_of_two = power_of_two,
    })
  return q, weights, keys, scales, positions, lengths
end

test("the choice of a prompt is topk of its logits, however many rows at a time", function()
  local rt <close> = open()
  local q, weights, keys, scales, _, lengths = prompt(rt)
  local logits = rt:index_logits(q, weights, keys, scales, { lengths = lengths, clean = true })
  check.equal(logits.shape, { TOKENS, TOKENS })
  check.equal(logits:totable()[3][4], -math.huge)
  local want = rt:topk(logits, { k = K, lengths = lengths }):totable()
  for _, bytes in ipairs { 0, 4 * TOKENS, 5000 } do
    check.equal(rt:index_topk(q, weights, { keys = keys, key_scales = scales, lengths = lengths,
      k = K, max_bytes = bytes }):totable(), want)
  end
end)

test("a later step finds the prompt's keys in their pages", function()
  local rt <close> = open()
  local q, weights, keys, scales, positions, lengths = prompt(rt, true)
  local last = rt:index_topk(q, weights, { keys = keys, key_scales = scales, lengths = lengths,
    k = K }):totable()[TOKENS]
  local cache, slots, pages = rt:zeros({ 9, 16, 132 }, "u8"), {}, { 4, 0, 7, 2, 5 }
  for i = 0, TOKENS - 1 do slots[i + 1] = pages[i // 16 + 1] * 16 + i % 16 end
  rt:index_store(keys, scales, rt:tensor(slots, "i32"), cache)
  local step = { cache = cache, page_table = rt:tensor({ pages }, "i32"), k = K,
    lengths = rt:tensor({ TOKENS }, "i32") }
  local one = q:view({ 1, HEADS, 128 }, { offset = (TOKENS - 1) * HEADS * 128 })
  local weight = weights:view({ 1, HEADS }, { offset = (TOKENS - 1) * HEADS })
  local chosen = rt:index_topk(one, weight, step)
  check.equal(chosen:totable(), { last })
  local want = {}
  for i, position in ipairs(last) do want[i] = slots[position + 1] end
  check.equal(rt:index_transform(chosen, { page_table = step.page_table, page_size = 16 }):totable(), { want })
  step.slots = true
  check.equal(rt:index_topk(one, weight, step):totable(), { want })
  local back, back_scales = rt:index_gather(cache, { slots = rt:tensor(slots, "i32") })
  check.equal(back:totable(), keys:totable())
  check.equal(back_scales:totable(), scales:totable())
  check.equal(rt:index_logits_paged(one, weight, { cache = cache, page_table = step.page_table, n = 80,
    lengths = step.lengths }).shape, { 1, 80 })
  check.equal(positions.shape, { TOKENS })
end)

test("keys alone, for a prompt that chooses every token", function()
  local rt <close> = open()
  local _, _, keys = prompt(rt)
  local alone, scales, none = rt:index_qk(rt:random({ TOKENS, 64 }, "f32", { seed = 2 }),
    rt:random({ 128, 64 }, "f32", { seed = 3 }), rt:random({ 128 }, "f32", { seed = 4 }),
    { positions = select(5, prompt(rt)) })
  check.equal(alone:totable(), keys:totable())
  check.equal(scales.shape, { TOKENS })
  check.equal(none, nil)
end)

test("quantize_fp8 gives bytes and a scale for each 128 values", function()
  local rt <close> = open()
  local list = {}
  for i = 1, 256 do list[i] = i <= 128 and 3.5 or 449 end
  local out, scales = rt:quantize_fp8(rt:tensor(list, "f32"):view { 1, 2, 128 }, { power_of_two = true })
  check.equal(scales:totable(), { { 2 ^ -7, 2 } })
  check.equal(out:totable()[1][1][1], 448)
  check.equal(out:totable()[1][2][1], 224)
end)

test("what does not belong together is an error that says so", function()
  local rt <close> = open()
  local q, weights, keys, scales = prompt(rt)
  local function fails(options, text)
    options.k = options.k or 4
    check.error(function() rt:index_topk(q, weights, options) end, text)
  end
  fails({}, "keys or cache")
  fails({ keys = keys }, "key_scales")
  fails({ keys = keys, key_scales = scales, slots = true }, "page_table")
  fails({ keys = keys, key_scales = scales, k = 0 }, "k = 0")
  check.error(function() rt:index_transform(rt:zeros({ 1, 4 }, "i32")) end, "page_table or offsets")
end)

test("shapes that do not fit are told by both numbers", function()
  local rt <close> = open()
  local q, weights, keys, scales = prompt(rt)
  check.error(function() rt:index_topk(q, weights, { keys = keys, key_scales = scales, k = 4, n = 3 }) end, "n = 3 for")
end)

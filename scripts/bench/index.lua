-- The token indexer: logits of decode steps (of the keys and the logits, as a share of the read rate),
-- of prompts (in TFLOP/s: two for each value of a head and a key), and with the choice in one call.
local HEADS, PAGE = 64, 64

-- The same keys for each of `requests`, in pages of its own.
local function filled_cache(rt, requests, tokens)
  local cache = rt:zeros({ requests * (tokens // PAGE), PAGE, 132 }, "u8")
  local keys, scales, slots = rt:random({ tokens, 128 }, "e4m3"), rt:random { tokens }, {}
  for b = 0, requests - 1 do
    for i = 1, tokens do slots[i] = b * tokens + i - 1 end
    local to = rt:tensor(slots, "i32")
    rt:index_store(keys, scales, to, cache)
    to:free()
  end
  keys:free()
  scales:free()
  return cache
end

-- `requests` of `tokens` tokens, pages in an order of their own; `drafts` rows each.
local function decode_of(rt, requests, tokens, drafts)
  local per, ids, lengths = tokens // PAGE, {}, {}
  for b = 1, requests do
    ids[b] = {}
    for c = 1, per do ids[b][c] = ((c - 1) * requests + b * 7) % (requests * per) end
    for _ = 1, drafts do lengths[#lengths + 1] = tokens end
  end
  local rows = requests * drafts
  return rt:random({ rows, HEADS, 128 }, "e4m3"), rt:random { rows, HEADS }, {
    cache = filled_cache(rt, requests, tokens),
    page_table = rt:tensor(ids, "i32"), lengths = rt:tensor(lengths, "i32"), n = tokens,
  }
end

local function bench_decode(b, requests, tokens, drafts, k)
  local rt, rows = b.rt, requests * drafts
  local q, weights, options = decode_of(rt, requests, tokens, drafts)
  local shape = ("%d x %d tokens, %d heads%s"):format(requests, tokens, HEADS,
    drafts > 1 and (", %d rows each"):format(drafts) or "")
  local bytes = (requests * 132 + rows * 4) * tokens
  local scores = rt:zeros { rows, tokens }
  options.out = scores
  b:line("index_logits_paged", shape, b:time(function()
    rt:index_logits_paged(q, weights, options)
  end), bytes)
  options.out, options.scores, options.k = rt:zeros({ rows, k }, "i32"), scores, k
  b:line("index_topk", ("%s, k %d"):format(shape, k), b:time(function()
    rt:index_topk(q, weights, options)
  end), bytes)
end

-- A prompt's rows against all keys: logits alone, top-k of them, both in one call in 64 MiB.
local function bench_prompt(b, rows, n, k)
  local rt = b.rt
  local q, weights = rt:random({ rows, HEADS, 128 }, "e4m3"), rt:random { rows, HEADS }
  local keys, scales = rt:random({ n, 128 }, "e4m3"), rt:random { n }
  local shape = ("%d x %d, %d heads"):format(rows, n, HEADS)
  local function line(op, what, us)
    b.emit { op = op, shape = what, us = us, tflops = 2 * rows * n * HEADS * 128 / us * 1e-6 }
  end
  local out, chosen = rt:zeros { rows, n }, rt:zeros({ rows, k }, "i32")
  line("index_logits", shape, b:time(function()
    rt:index_logits(q, weights, keys, scales, { out = out })
  end))
  b:line("topk of them", ("%d x %d, k %d"):format(rows, n, k), b:time(function()
    rt:topk(out, { k = k, out = chosen })
  end), rows * n * 4)
  out:free()
  local options = { keys = keys, key_scales = scales, k = k, out = chosen,
    scores = rt:zeros { math.max(1, (64 << 20) // (4 * n)), n } }
  line("index_topk", ("%s, k %d, 64 MiB"):format(shape, k), b:time(function()
    rt:index_topk(q, weights, options)
  end))
end

return {
  about = "the token indexer: logits and the choice among them",
  run = function(b)
    if b.cuda then
      bench_decode(b, 64, 65536, 1, 2048)
      bench_decode(b, 64, 65536, 2, 2048)
      bench_decode(b, 1, 131072, 1, 2048)
      bench_prompt(b, 4096, 131072, 2048)
    else
      bench_decode(b, 1, 8192, 1, 2048)
      bench_decode(b, 1, 8192, 2, 2048)
      bench_prompt(b, 16, 4096, 512)
    end
    local x = b.rt:random({ b.cuda and 8192 or 256, HEADS, 128 }, "f32")
    local rows = x.shape[1]
    local out, scales = b.rt:zeros({ rows, HEADS, 128 }, "e4m3"), b.rt:zeros { rows, HEADS }
    b:line("quantize_fp8", ("%d x %d f32"):format(rows, HEADS * 128), b:time(function()
      b.rt:quantize_fp8(x, { out = out, scales = scales, power_of_two = true })
    end), rows * HEADS * 128 * 5, "copy")
  end,
}

-- Each op of a decoder step on shapes of its own. Latencies have their inputs in the cache.
local HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 64

local function bench_rows(b, rows)
  local rt, n = b.rt, 4096
  local x, w = rt:random({ rows, n }), rt:random { n }
  local up, out = rt:random({ rows, n }), rt:zeros { rows, n }
  local shape = ("%d x %d"):format(rows, n)
  b:line("rmsnorm", shape, b:time(function() rt:rmsnorm(x, w, { out = out }) end))
  b:line("swiglu", shape, b:time(function() rt:swiglu(x, up, { out = out }) end))
  local weight, y = rt:random { n, n }, rt:zeros { rows, n }
  b:line("linear f32", shape .. " -> " .. n, b:time(function()
    rt:linear(x, weight, { out = y })
  end), n * n * 4)
  local blocks = rt:random({ n, n // 32 * 20 }, "u8", { low = 0, high = 60 })
  b:line("linear q4_1", shape .. " -> " .. n, b:time(function()
    rt:linear(x, blocks, { out = y, block = "q4_1" })
  end), n * n // 32 * 20)
end

-- A paged cache of `rows` sequences of `tokens` tokens, pages in order.
local function cache_of(rt, rows, tokens)
  local per, ids, at = tokens // PAGE, {}, {}
  for r = 1, rows do
    ids[r], at[r] = {}, tokens - 1
    for c = 1, per do ids[r][c] = (r - 1) * per + c - 1 end
  end
  return rt:random({ rows * per, 2, KV_HEADS, PAGE, DIM }, "f16"), rt:tensor(ids, "i32"),
    rt:tensor(at, "i32"), per
end

local function bench_attention(b, rows, tokens, topk)
  local rt = b.rt
  local cache, table_, at, per = cache_of(rt, rows, tokens)
  local q, out = rt:random { rows, HEADS, DIM }, rt:zeros { rows, HEADS, DIM }
  local token_bytes = rows * KV_HEADS * DIM * 2 * 2
  local shape = ("%d x %d tokens, %d/%d heads of %d"):format(rows, tokens, HEADS, KV_HEADS, DIM)
  local function with(options)
    options.cache, options.page_table, options.positions = cache, table_, at
    return options
  end
  local dense = with { out = out }
  b:line("attend", shape, b:time(function() rt:attend(q, dense) end), token_bytes * tokens)
  local bounds = rt:zeros({ rows * per, KV_HEADS, 2, DIM }, "f16")
  local scores, selected = rt:zeros { rows, KV_HEADS, per }, rt:zeros({ rows, KV_HEADS, topk }, "i32")
  local scoring = with { bounds = bounds, out = scores }
  b:line("score_pages", shape, b:time(function() rt:score_pages(q, scoring) end),
    rows * per * KV_HEADS * 2 * DIM * 2)
  b:line("select_pages", shape .. ", topk " .. topk, b:time(function()
    rt:select_pages(scores, { topk = topk, out = selected })
  end))
  local sparse = with { selected = selected, out = out }
  b:line("attend_pages", shape .. ", topk " .. topk, b:time(function()
    rt:attend_pages(q, sparse)
  end), token_bytes * (topk + 1) * PAGE)
end

local function bench_sample(b, rows, vocab)
  local rt = b.rt
  local logits, tokens = rt:random({ rows, vocab }, "f32", { low = -8, high = 8 }),
    rt:zeros({ rows }, "i32")
  local shape = ("%d x %d"):format(rows, vocab)
  b:line("sample greedy", shape, b:time(function() rt:sample(logits, { out = tokens }) end))
  b:line("sample top-k 50, top-p 0.9", shape, b:time(function()
    rt:sample(logits, { out = tokens, temperature = 1, top_k = 50, top_p = 0.9 })
  end))
end

return {
  about = "every op of a decoder step",
  run = function(b)
    bench_rows(b, 1)
    bench_rows(b, 32)
    bench_attention(b, 1, b.cuda and 32768 or 4096, 32)
    if b.cuda then bench_attention(b, 32, 8192, 32) end
    bench_sample(b, 1, 131072)
    if b.cuda then bench_sample(b, 128, 131072) end
  end,
}

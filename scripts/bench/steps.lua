-- prepare_steps: the metadata of N draft steps. First the shapes of the issue, in one launch; then
-- what each part costs as a launch of its own for each step ("before") and within one ("after").
local PAGE, TOPK = 64, 2048

-- A call's inputs: `batch` requests of `tokens` tokens, and their slots, or else their pages.
local function inputs(rt, batch, tokens, drafts, by_page)
  local lens = {}
  for b = 1, batch do lens[b] = tokens - (drafts or 0) end
  return rt:tensor(lens, "i32"), rt:zeros({ batch, by_page and tokens // PAGE or tokens }, "i32")
end

local function calls(b, s)
  local rt = b.rt
  local seq, slots = inputs(rt, s.batch, s.tokens, s.drafts, s.by_page)
  local options = { mode = s.drafts and "target_verify" or "decode", draft_tokens = s.drafts,
    steps = s.steps, page_size = PAGE, index_topk = TOPK, own_tables = s.own_tables,
    outputs = s.outputs, [s.by_page and "pages" or "slots"] = slots }
  options.into = rt:prepare_steps(seq, options)
  options.steps, options.own_tables, options.outputs = nil, nil, nil
  return function() rt:prepare_steps(seq, options) end
end

-- The rows of the document's table: what one of its tensor operations makes is one output here.
local PARTS = {
  { "lengths", { "cache_seqlens" } },
  { "prefix sums of lengths", { "cu_seqlens_k" } },
  { "token table", { "token_table" } },
  { "clipped lengths", { "seqlens_expanded", "seqlens_clipped" } },
  { "prefix sums of clipped", { "cu_seqlens_clipped" } },
  { "page table", { "page_table" } },
  { "rows of requests", { "cu_seqlens_q", "row_requests", "cu_rows" } },
  { "work plans", { "index_splits", "index_schedule", "attend_splits", "attend_schedule" } },
}

local function bench_parts(b, steps, batch, tokens)
  local shape = ("%d steps, %d x %d"):format(steps, batch, tokens)
  local sum, all = 0, {}
  for _, part in ipairs(PARTS) do
    local own = part[2][1]:find "table" ~= nil
    local one = b:time(calls(b, { steps = 1, batch = batch, tokens = tokens, outputs = part[2] }))
    local within = b:time(calls(b, { steps = steps, batch = batch, tokens = tokens,
      outputs = part[2], own_tables = own }))
    b:line("before: " .. part[1], shape .. (", %.2f us each"):format(one), one * steps)
    b:line("after: " .. part[1], shape, within)
    sum = sum + one * steps
    table.move(part[2], 1, #part[2], #all + 1, all)
  end
  b:line("before: sum", shape, sum)
  b:line("after: all in one launch", shape, b:time(calls(b, { steps = steps, batch = batch,
    tokens = tokens, outputs = all, own_tables = true })))
end

-- Bytes: each slot is read and written once.
local function bench_chunks(b, batch, tokens)
  local lens, slots = inputs(b.rt, batch, tokens)
  local kv, cu, by, starts, count = b.rt:prefix_chunks(lens, slots)
  b:line("prefix_chunks", ("%d x %d, %d chunks"):format(batch, tokens, kv.shape[1]),
    b:time(function()
      b.rt:prefix_chunks(lens, slots, { kv_indices = kv, cu_lens = cu, lens = by,
        starts = starts, chunk_count = count })
    end), batch * tokens * 8)
end

return {
  about = "metadata: N draft or verify steps, by part, before and after; prefix chunks",
  run = function(b)
    local long, short = b.cuda and 32768 or 2048, b.cuda and 8192 or 1024
    local function one(name, s)
      b:line("prepare_steps", ("%s, %d x %d"):format(name, s.batch, s.tokens), b:time(calls(b, s)))
    end
    one("8 steps, one table", { steps = 8, batch = 32, tokens = long })
    one("8 steps, 8 tables", { steps = 8, batch = 32, tokens = long, own_tables = true })
    one("8 steps of 4 drafts, one table", { steps = 8, batch = 128, tokens = short, drafts = 4 })
    one("8 steps from pages, one table", { steps = 8, batch = 32, tokens = long, by_page = true })
    one("8 steps, lengths and plans", { steps = 8, batch = 128, tokens = short, drafts = 4,
      outputs = { "cache_seqlens", "cu_seqlens_k", "seqlens_expanded", "seqlens_clipped",
        "cu_seqlens_clipped", "index_schedule", "attend_schedule" } })
    bench_chunks(b, 32, long)
    bench_chunks(b, 128, short)
    bench_parts(b, 8, 32, long)
  end,
}

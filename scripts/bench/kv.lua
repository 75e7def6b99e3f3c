-- Writing the paged cache: bytes read plus written over time, as a share of the copy rate.
local HEADS, DIM, PAGE = 8, 128, 64
local bytes_of = { f32 = 4, f16 = 2, bf16 = 2, e4m3 = 1 }

-- `sequences` of `tokens` tokens: page table, and the sequence and position of each row.
local function rows_of(rt, sequences, tokens, from)
  local per, ids, of, at = (tokens + from + PAGE - 1) // PAGE, {}, {}, {}
  for s = 1, sequences do
    ids[s] = {}
    for c = 1, per do ids[s][c] = ((c - 1) * sequences + s * 7) % (sequences * per) end
    for t = 1, tokens do
      of[#of + 1] = s - 1
      at[#at + 1] = from + t - 1
    end
  end
  return { page_table = rt:tensor(ids, "i32"), sequences = rt:tensor(of, "i32"),
           positions = rt:tensor(at, "i32") }, sequences * per
end

-- `rope`: nil for none, "rope" of interleaved pairs or "rope half split".
local function bench_append(b, sequences, tokens, from, source, stored, rope)
  local rt, rows = b.rt, sequences * tokens
  local options, pages = rows_of(rt, sequences, tokens, from)
  local k, v = rt:zeros({ rows, HEADS, DIM }, source), rt:zeros({ rows, HEADS, DIM }, source)
  options.cache = rt:zeros({ pages, 2, HEADS, PAGE, DIM }, stored)
  options.scales = stored == "e4m3" and rt:zeros { pages, 2, HEADS, PAGE } or nil
  options.rope_base = rope and 500000 or 0
  options.half_split = rope == "rope half split"
  local bytes = rows * HEADS * DIM * 2 * (bytes_of[source] + bytes_of[stored])
  b:line("kv_append", ("%d x %d tokens, %s to %s%s"):format(sequences, tokens, source, stored,
    rope and ", " .. rope or ""), b:time(function() rt:kv_append(k, v, options) end),
    tokens > 1 and bytes or nil, "copy")
end

local function bench_collate(b, sequences, layers, kept)
  local rt, caches, counts, bases = b.rt, {}, {}, {}
  local options, pages = rows_of(rt, sequences, kept * kept + PAGE, 0)
  for s = 1, sequences do counts[s], bases[s] = kept, s % PAGE end
  for l = 1, layers do caches[l] = rt:zeros({ pages, 2, HEADS, PAGE, DIM }, "f16") end
  options.sequences, options.positions = nil, nil
  options.caches, options.stride, options.most = caches, kept, kept
  options.bases, options.accepted = rt:tensor(bases, "i32"), rt:tensor(counts, "i32")
  local bytes = sequences * layers * (kept - 1) * HEADS * DIM * 2 * 2 * 2
  b:line("kv_collate", ("%d requests, %d layers, %d entries moved"):format(sequences, layers,
    kept - 1), b:time(function() rt:kv_collate(options) end), layers > 1 and bytes or nil, "copy")
end

return {
  about = "kv_append and kv_collate, heads 8 x 128, pages of 64",
  run = function(b)
    local tokens = b.cuda and 8192 or 512
    for source, stored in ("f16 f16, bf16 bf16, f32 f16, f16 e4m3"):gmatch "(%w+) (%w+)" do
      bench_append(b, 8, tokens, 0, source, stored, nil)
      bench_append(b, 8, tokens, 0, source, stored, "rope")
      bench_append(b, 8, tokens, 0, source, stored, "rope half split")
    end
    bench_append(b, 32, 1, 2000, "f16", "f16", "rope")
    bench_append(b, 32, 1, 2000, "f16", "e4m3", "rope")
    bench_collate(b, b.cuda and 256 or 8, b.cuda and 32 or 4, 9)
    bench_collate(b, 32, 1, 5)
  end,
}

-- topk_sweep: rows x n x k in a table, random rows; not among the benches that run by default.
local topk = require "bench.topk"

local ROWS, NS, KS = { 1, 8, 64, 512, 4096 }, { 1024, 8192, 65536, 524288 }, { 16, 256, 2048 }
local MOST = 64 << 20 -- scores of one shape

return {
  about = "exact top-k over rows, n and k",
  run = function(b)
    local shapes = {}
    for _, rows in ipairs(ROWS) do
      for _, n in ipairs(NS) do
        for _, k in ipairs(KS) do
          if k < n and rows * n <= (b.cuda and MOST or MOST // 8) then
            shapes[#shapes + 1] = { rows, n, k }
          end
        end
      end
    end
    local all = topk.random_scores(b, shapes)
    for _, s in ipairs(shapes) do topk.measure(b, all, s, {}, false) end
    all:free()
  end,
}

-- topk over rows x n x k: random rows, inputs in the cache. `percent` counts each score read once.
local SHAPES = {
  { 1, 131072, 2048 }, { 1, 1048576, 2048 }, { 32, 131072, 2048 }, { 64, 131072, 2048 },
  { 256, 131072, 2048 }, { 32, 4096, 32 }, { 256, 8192, 64 }, { 4096, 1024, 16 },
  { 32, 32768, 512 },
}
local CPU_SHAPES = { { 1, 131072, 2048 }, { 8, 131072, 2048 }, { 32, 4096, 32 } }

return {
  about = "exact top-k: rows x n, k",
  run = function(b)
    for _, s in ipairs(b.cuda and SHAPES or CPU_SHAPES) do
      local rows, n, k = s[1], s[2], s[3]
      local scores, out = b.rt:random { rows, n }, b.rt:zeros({ rows, k }, "i32")
      b:line("topk", ("%d x %d, k %d"):format(rows, n, k), b:time(function()
        b.rt:topk(scores, { k = k, out = out })
      end), rows * n * 4)
      scores:free()
      out:free()
    end
  end,
}

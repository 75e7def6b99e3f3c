-- The config of `./build.sh demo`, and a place to start from. Every field is optional; `cairn check
-- scripts/config.lua` prints all of them with the values in force. While `cairn generate --watch`
-- runs with this file, a saved change takes effect at once.
return {
  page_size = 16,       -- tokens per page of the KV cache: 16, 32, 64, 128 or 256
  topk = 24,            -- pages that each KV head reads, besides sinks and window
  draft_length = 4,     -- tokens drafted and verified per step; 0: plain decoding
  drafter = "ngram",    -- continues what followed the same words before

  selection = {
    source = "minmax",  -- score a page by an upper bound of its keys; or "mean"
    window = 128,       -- the latest tokens are always read
    sinks = 4,          -- and so are the first ones
    layers = "all",     -- "none" reads everything everywhere
  },

  sampling = { temperature = 0.3, top_p = 0.9, seed = 3, -- temperature 0: greedy
    repetition_penalty = 1.15 }, -- the demo's small model turns in circles without
  max_seq_len = 4096,   -- tokens a conversation may hold
  backend = "auto",     -- the GPU where there is one, else the CPU
}

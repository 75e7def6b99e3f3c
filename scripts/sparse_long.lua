-- Long texts on a small budget: of 32K tokens each KV head reads 1.5K. Smaller pages pick more
-- precisely and cost more to score.
return {
  page_size = 32,
  topk = 16,
  selection = { source = "minmax", strategy = "group", window = 1024, sinks = 4 },
  drafter = "ngram",
  draft_length = 8,     -- long copies are common in long texts
  prefill_chunk = 1024,
  max_batch = 1,
}

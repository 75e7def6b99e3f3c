-- A small model on two cores: short context, few threads, no GPU looked for.
return {
  backend = "cpu",
  threads = 2,
  max_batch = 1,
  max_seq_len = 2048,
  page_size = 32,
  topk = 16,
  selection = { window = 256 },
}

-- The config of the second half of `./build.sh demo`: the model drafts its own text, by an adapter that was trained on
-- what it says (models/smollm2-135m-mtp, scripts/train). The text is the one without drafts.
return {
  drafter = "mtp",
  adapter = "models/smollm2-135m-mtp/adapter.gguf",
  draft_length = 2,                -- at most; as many are drafted as pay
  sampling = { temperature = 0 },  -- the likeliest token each time
  selection = { layers = "none" }, -- all pages are read
  max_seq_len = 2048,
}

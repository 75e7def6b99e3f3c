-- The config, once: every field with its type, default, range, unit and meaning. From here come the
-- C struct and its defaults, the parser's and validator's tables, the README's table, the editor
-- annotations and the fuzz dictionary (gen/config.lua).
--
-- From the first release on, append fields at the end of their struct only: older callers' structs
-- stay a prefix.
--
-- field:  name, type, default, doc, and as they apply
--   unit      what the number counts
--   min, max  bounds, both allowed; `above` instead of min: the bound itself is not allowed
--   multiple  of which an int must be one
--   allowed   the only ints there are
--   enum      name of the value table, for type "enum"
--   bytes     room for a string, its NUL included; count: how many strings; empty: they may be
--   values    the only strings there are, for type "choice"
--   hot       true: changes between steps of a running program; else it is fixed at open

local max_int = 2147483647

-- Value tables: C enum cairn_<name>, constants <prefix>_<VALUE>; { text, doc } from code 0.
local enums = {
  { name = "drafter", prefix = "CAIRN_DRAFTER", values = {
    { "ngram", "prompt lookup: what followed the same tokens before" },
    { "mtp", "mask tokens, gated LoRA and a sampler head of the session's adapter" },
    { "model", "drafter_model, a smaller model, says what comes next" },
    { "none", "plain decoding" } } },
  { name = "page_source", prefix = "CAIRN_SOURCE", values = {
    { "minmax", "sum over d of max(q_d lo_d, q_d hi_d): no key of the page scores higher" },
    { "mean", "q . mean(k)" },
    { "landmark", "q . k of the page's landmark token, with an adapter that has one" } } },
  { name = "page_strategy", prefix = "CAIRN_STRATEGY", values = {
    { "group", "sum over the query heads of a KV head" },
    { "head", "maximum over the query heads of a KV head" },
    { "softmax_head", "maximum of the heads' log softmax over pages and window" } } },
  { name = "attention_form", prefix = "CAIRN_FORM", values = {
    { "flat", "one softmax over all selected tokens" },
    { "two_level", "softmax inside each page, then page weights" } } },
  { name = "landmark_position", prefix = "CAIRN_LANDMARK", values = {
    { "previous", "a landmark takes the position of the token before it" },
    { "next", "a landmark takes the position of the token after it" } } },
  { name = "kv_dtype", prefix = "CAIRN_KV", values = {
    { "f16", "2 bytes a value" }, { "bf16", "2 bytes a value" },
    { "f32", "4 bytes a value" }, { "e4m3", "1 byte a value, scales beside it" } } },
  { name = "sampling_order", prefix = "CAIRN_ORDER", values = {
    { "top_k_first", "top_k, then top_p over what is left" },
    { "top_p_first", "top_p over the whole vocabulary, then top_k" } } },
  { name = "cache_mode", prefix = "CAIRN_CACHE", values = {
    { "read-write", "kernels are stored and found again" },
    { "read-only", "nothing is written: a filled cache that ships with the app" },
    { "memory", "kept while the runtime lives" },
    { "off", "every kernel is compiled anew" } } },
  { name = "memory_map", prefix = "CAIRN_MAP", values = {
    { "copy", "read into memory of the runtime's" },
    { "file", "mapped: several processes share it; it must not change meanwhile" } } },
  { name = "activations", prefix = "CAIRN_ACTIVATIONS", values = {
    { "f32", "as they are" },
    { "q8", "rounded to 8 bits, 32 at a time, before they meet weights in blocks; CPU only" } } },
  { name = "backend", prefix = "CAIRN_BACKEND", values = {
    { "auto", "cuda where there is a usable GPU, else cpu" },
    { "cuda", "an NVIDIA GPU" }, { "cpu", "threads and SIMD" } } },
  { name = "worker_priority", prefix = "CAIRN_PRIORITY", values = {
    { "low", "after the host program's threads, where the system knows such" },
    { "normal", "like the host program's threads" } } },
  -- Declared in runtime.h section 4, which the callbacks need.
  { name = "log_level", prefix = "CAIRN_LOG", declared = true, values = {
    { "off" }, { "error" }, { "warn" }, { "info" }, { "debug" } } },
}

local function route(op, values)
  return { name = op, type = "choice", bytes = 16, default = "auto", values = values, hot = true,
           doc = "route of " .. op }
end

local function chat_role(name, doc)
  return { name = name, type = "strings", default = {}, bytes = 256, count = 2, empty = true,
           doc = doc }
end

-- Groups are structs of a fixed size, the rest of it reserved for fields to come.
local fields = {
  { name = "page_size", type = "int", default = 64, allowed = { 16, 32, 64, 128, 256 },
    unit = "tokens", doc = "tokens per KV page, landmark slot included" },
  { name = "topk", type = "int", default = 32, min = 1, max = 4096, unit = "pages", hot = true,
    doc = "pages kept per KV head, besides sinks, window and the unfinished page" },
  { name = "draft_length", type = "int", default = 4, min = 0, max = 16, unit = "tokens",
    hot = true, doc = "tokens drafted per step" },
  { name = "draft_adaptive", type = "bool", default = true, hot = true,
    doc = "as many as pay; else all" },
  { name = "drafter", type = "enum", enum = "drafter", default = "ngram", hot = true,
    doc = "what drafts the tokens that a step verifies" },
  { name = "drafter_model", type = "string", default = "", bytes = 512, empty = true,
    doc = "model file that drafter = \"model\" asks; \"\": none" },
  { name = "adapter", type = "string", default = "", bytes = 512, empty = true,
    doc = "a file of low-rank additions (LoRA) that sessions begin with, see cairn_adapter_load; " ..
      "\"\": none" },
  { name = "selection", type = "group", struct = "cairn_selection", bytes = 256, hot = true,
    doc = "which pages a query attends", fields = {
      { name = "source", type = "enum", enum = "page_source", default = "minmax",
        doc = "how a page is scored against a query" },
      { name = "strategy", type = "enum", enum = "page_strategy", default = "group",
        doc = "how the scores of the query heads of one KV head become one" },
      { name = "form", type = "enum", enum = "attention_form", default = "flat",
        doc = "how the selected pages are attended" },
      { name = "window", type = "int", default = 512, min = 0, max = 4194304, unit = "tokens",
        doc = "latest tokens always attended, grown to a page's start; 0: none but the own page" },
      { name = "sinks", type = "int", default = 4, min = 0, max = 65536, unit = "tokens",
        doc = "first tokens always attended" },
      { name = "layers", type = "layers", default = "all",
        doc = "layers that select: \"all\", \"none\" (dense) or a list of numbers from 0" },
      { name = "fused", type = "bool", default = true,
        doc = "false: window and pages are two attentions, which are added" },
      { name = "prompts", type = "bool", default = false,
        doc = "true: prompts select like steps, for models trained so" } } },
  { name = "landmark_position", type = "enum", enum = "landmark_position", default = "previous",
    doc = "position that a landmark token takes, for models trained with landmarks" },
  { name = "kv_dtype", type = "enum", enum = "kv_dtype", default = "f16",
    doc = "element type of the KV cache" },
  { name = "max_batch", type = "int", default = 8, min = 1, max = 1024, unit = "sequences",
    doc = "sequences decoded together" },
  { name = "max_seq_len", type = "int", default = 0, min = 0, max = 4194304, unit = "tokens",
    doc = "longest sequence; 0: the model's" },
  { name = "prefill_chunk", type = "int", default = 512, min = 16, max = 16384, unit = "tokens",
    doc = "prompt tokens per forward" },
  { name = "slice_us", type = "int", default = 0, min = 0, max = 1000000, unit = "us", hot = true,
    doc = "at most what a prompt holds the device for; 0: a whole prefill_chunk" },
  { name = "sampling", type = "group", struct = "cairn_sampling", bytes = 128, hot = true,
    doc = "how the next token is drawn", fields = {
      { name = "temperature", type = "float", default = 0.0, min = 0.0, max = 100.0,
        doc = "0: greedy" },
      { name = "top_k", type = "int", default = 0, min = 0, max = 1048576, unit = "tokens",
        doc = "most likely tokens kept; 0: all" },
      { name = "top_p", type = "float", default = 1.0, above = 0.0, max = 1.0,
        doc = "smallest set of tokens reaching this probability; 1: all" },
      { name = "min_p", type = "float", default = 0.0, min = 0.0, max = 1.0,
        doc = "tokens at least this likely relative to the best; 0: all" },
      { name = "order", type = "enum", enum = "sampling_order", default = "top_k_first",
        doc = "which of top_k and top_p comes first" },
      { name = "repetition_penalty", type = "float", default = 1.0, above = 0.0, max = 100.0,
        doc = "divides positive, multiplies negative logits of tokens already in the sequence" },
      { name = "seed", type = "int64", default = 1, min = 0, max = math.maxinteger,
        doc = "Philox key; same seed, same text" } } },
  { name = "stop", type = "strings", default = {}, bytes = 128, count = 16, hot = true,
    doc = "strings that end a generation" },
  { name = "chat", type = "group", struct = "cairn_chat_texts", bytes = 2048,
    doc = "texts before and after messages, in place of the model's template", fields = {
      chat_role("system", "around a system message; none: there are no such messages"),
      chat_role("user", "around a user's message; none: the model's template holds"),
      chat_role("assistant", "around an answer: the first opens it, the second ends it") } },
  { name = "shape", type = "group", struct = "cairn_shape", bytes = 64,
    doc = "head shapes for kernels and ops used without a model", fields = {
      { name = "heads", type = "int", default = 32, min = 1, max = 1024,
        doc = "query heads, a multiple of kv_heads" },
      { name = "kv_heads", type = "int", default = 8, min = 1, max = 1024, doc = "KV heads" },
      { name = "head_dim", type = "int", default = 128, min = 16, max = 256, multiple = 16,
        doc = "values per head" } } },
  { name = "routes", type = "group", struct = "cairn_routes", bytes = 1024, hot = true,
    doc = "force one route of an op, for tests and tuning", fields = {
      route("topk", { "auto", "small", "block", "cluster", "split", "radix" }),
    } },
  { name = "memory", type = "group", struct = "cairn_memory", bytes = 64,
    doc = "memory of models", fields = {
      { name = "budget_mb", type = "int", default = 0, min = 0, max = 16777216, unit = "MiB",
        doc = "device memory for model and KV pages; 0: what is free" },
      { name = "prefix_cache", type = "bool", default = false,
        doc = "keep the pages of prompts for sessions that begin alike, as long as no other " ..
          "session needs them" },
      { name = "map", type = "enum", enum = "memory_map", default = "copy",
        doc = "where the CPU reads weights: a copy in memory, or the mapped file itself" } } },
  { name = "jit", type = "group", struct = "cairn_jit", bytes = 1024,
    doc = "kernel compilation", fields = {
      { name = "cache_dir", type = "string", default = "auto", bytes = 512,
        doc = "folder of compiled kernels; \"auto\": the user's cache folder" },
      { name = "cache", type = "enum", enum = "cache_mode", default = "read-write",
        doc = "what the cache may do" },
      { name = "quick", type = "bool", default = false,
        doc = "compile fast rather than for speed, while editing kernels" },
      { name = "threads", type = "int", default = 0, min = 0, max = 256,
        doc = "compile threads; 0: chosen from the cores" } } },
  { name = "backend", type = "enum", enum = "backend", default = "auto",
    doc = "where ops run" },
  { name = "device", type = "int", default = 0, min = 0, max = 255,
    doc = "GPU ordinal as the driver counts" },
  { name = "threads", type = "int", default = 0, min = 0, max = 1024, hot = true,
    doc = "CPU threads; 0: one per core" },
  { name = "activations", type = "enum", enum = "activations", default = "f32",
    doc = "of a model on the CPU; see scripts/bench/RESULTS.md" },
  { name = "graphs", type = "bool", default = true,
    doc = "run a decode step as one CUDA graph" },
  { name = "deterministic", type = "bool", default = true,
    doc = "results do not depend on batch, drafts and run; false: drafts from masks are drawn, too" },
  { name = "log", type = "enum", enum = "log_level", default = "info", hot = true,
    doc = "what reaches the log callback" },
  { name = "worker", type = "group", struct = "cairn_worker", bytes = 64,
    doc = "a thread of the runtime that works on what is submitted", fields = {
      { name = "enabled", type = "bool", default = false,
        doc = "it runs, in place of cairn_step" },
      { name = "priority", type = "enum", enum = "worker_priority", default = "low",
        doc = "of it and of the CPU threads" },
      { name = "threads", type = "int", default = 1, min = 0, max = 1024,
        doc = "CPU threads it computes with; 0: as `threads` says" } } },
  { name = "budget", type = "group", struct = "cairn_budget", bytes = 1024, hot = true,
    doc = "tokens that are replaced when they are drawn, so that thinking goes on", fields = {
      { name = "force", type = "bool", default = false,
        doc = "end tokens are replaced, too: a generation runs to max_tokens" },
      { name = "suppress", type = "strings", default = {}, bytes = 48, count = 8,
        doc = "texts whose first tokens are replaced" },
      { name = "replace", type = "strings", default = {}, bytes = 48, count = 8,
        doc = "texts of whose first tokens one takes the place, by the seed and the position" } } },
}

-- In the C struct only: what a host program hands over. A reload keeps what open was given.
local host = {
  { "cairn_allocator", "allocator", "host memory; realloc NULL: the C library's" },
  { "cairn_device_allocator", "device_allocator", "device memory; alloc NULL: the driver's" },
  { "cairn_log_callback", "log_callback", "NULL: silent" },
  { "void *", "log_user", "" },
  { "cairn_progress_callback", "progress_callback", "of compiles and loads; NULL: none" },
  { "void *", "progress_user", "" },
  { "void *", "context", "CUcontext to run in; NULL: the device's primary context" },
  { "void *", "stream", "CUstream to enqueue on; NULL: one of our own" },
  { "char [512]", "driver_path", "libcuda to load; \"\": searched, see `cairn info`" },
  { "char [512]", "nvrtc_path", "libnvrtc to load; \"\": searched" },
}

return { enums = enums, fields = fields, host = host, max_layers = 512, max_int = max_int }

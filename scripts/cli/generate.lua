-- cairn generate
local cairn = require "cairn"
local common = require "cli.common"
local host = require "host"
local options = require "cli.options"

-- ---- one run: a runtime, its model, a session, and what was generated over its reopenings --------

local Run = {}
Run.__index = Run

-- The config file with what the command line changes.
local function config_of(o)
  return common.config(o, { max_batch = 1, stop = o.stop, threads = o.threads,
    sampling = { temperature = o.temperature, seed = o.seed, top_k = o.top_k, top_p = o.top_p,
      min_p = o.min_p } })
end

local function start(o)
  local run = setmetatable({ o = o, parts = {}, left = o.max_tokens, sums = nil,
    grammar = o.grammar and common.read_file(o.grammar),
    schema = o.json_schema and common.read_file(o.json_schema) }, Run)
  run:open(config_of(o))
  return run
end

function Run:open(config)
  self.model, self.session = nil, nil
  self.rt = common.open_config(config, self.o.watch and "apart" or nil)
  self.model = common.load_model(self.rt, self.o)
  self.session = self.model:session()
  host.catch_interrupts(self.session:pointer())
  if self.o.profile then self.model:profile { warmup = 0 } end
  if self.o.trace then self.rt:trace() end
end

-- Adds the figures of the last generation to those before it.
function Run:add_stats()
  local s, sums = self.session:stats(), self.sums
  if sums then
    local forwards = math.max(1, sums.forwards + s.forwards)
    for _, key in ipairs { "pages_read", "pages_held" } do
      s[key] = (sums[key] * sums.forwards + s[key] * s.forwards) / forwards
    end
    for _, key in ipairs { "generated", "decoded", "forwards", "proposed", "accepted",
      "decode_seconds", "prompt_seconds" } do
      s[key] = s[key] + sums[key]
    end
    s.prompt_tokens, s.peak_bytes = sums.prompt_tokens, math.max(sums.peak_bytes, s.peak_bytes)
    s.acceptance = s.proposed > 0 and s.accepted / s.proposed or 0
    s.tokens_per_step = s.forwards > 0 and s.generated / s.forwards or 0
    s.tokens_per_second = s.decode_seconds > 0 and s.decoded / s.decode_seconds or 0
  end
  self.sums = s
end

-- The ids that another session goes on from: all but those whose text is held back, since it may be
-- the beginning of a stop string, or is one of a character. nil when that begins inside a token.
function Run:settled()
  local ids, text = self.session:ids(), table.concat(self.parts)
  for last = #ids, self.prompt_tokens, -1 do
    local said = self.model:detokenize(table.move(ids, self.prompt_tokens + 1, last, 1, {}))
    if said == text then return table.move(ids, 1, last, 1, {}) end
    if #said < #text then return nil end
  end
end

-- The prompt's ids: a message's, or the text's, behind what the model wants first.
function Run:ids_of(prompt)
  local messages = { self.o.system and { role = "system", content = self.o.system } }
  if self.o.chat or self.o.system then
    messages[#messages + 1] = { role = "user", content = prompt }
    return self.model:chat_ids(messages)
  end
  local ids, before = self.model:tokenize(prompt), self.session:append("a"):ids()
  self.session:reset()
  if #ids > 0 and #before > #self.model:tokenize "a" then table.insert(ids, 1, before[1]) end
  return ids
end

-- Ctrl-C that came while no session could be cancelled, or just before a call that then ran.
local function heed_interrupt()
  if host.interrupted() then error("cancelled (CAIRN_CANCELLED)", 0) end
end

-- Processes a prompt, so many tokens at a time that Ctrl-C is heeded soon; on a terminal a long one shows how far
-- it is.
function Run:append(prompt)
  local ids, size = self:ids_of(prompt), self.rt:config().prefill_chunk
  local shows = host.is_terminal "stderr" and #ids > 2 * size
  for at = 1, #ids, size do
    if shows then io.stderr:write(("\rprompt: %d of %d tokens"):format(at - 1, #ids)) end
    heed_interrupt()
    self.session:append(table.move(ids, at, math.min(at + size - 1, #ids), 1, {}))
  end
  if shows then io.stderr:write "\r\27[K" end
  self.prompt_tokens = #ids
end

-- Generates until the end or until between() asks to stop; true at the end.
function Run:generate(piece, between)
  local before = self.sums and #self.session:ids() - self.prompt_tokens or 0
  local pieces = self.session:generate(nil, { max_tokens = self.o.max_tokens - before,
    grammar = self.grammar, json_schema = self.schema,
    grammar_from = (self.grammar or self.schema) and self.prompt_tokens })
  for text in pieces do
    self.parts[#self.parts + 1] = text
    piece(text)
    heed_interrupt()
    if between and between() then break end
  end
  self:add_stats()
  return self.sums.stop ~= "none"
end

-- Ctrl-C ends what the session does, a prompt too. Calls f(); true if that came.
function Run:until_interrupted(f)
  local done, err = xpcall(f, function(e)
    return common.was_cancelled(e) and { cancelled = true } or e
  end)
  if not done and not (type(err) == "table" and err.cancelled) then error(err, 0) end
  if not done then
    if self.session then self:add_stats() end -- none: it came while the runtime reopened
    self.sums.stop = "cancel"
  end
  return not done or host.interrupted()
end

-- ---- --watch ------------------------------------------------------------------------------------

-- Takes the changed file over. Gives the new config when the runtime must be reopened for it.
local function take_over(run)
  local good, config = pcall(config_of, run.o)
  if not good then
    common.say("\n[the old config stays]\n%s", type(config) == "table" and config.text or config)
    return nil
  end
  local done, result = pcall(run.rt.reload, run.rt, config)
  if done then
    common.say(result and "\n[new config: compiling its kernels]" or "\n[new config in force]")
  elseif tostring(result):find("CAIRN_NEEDS_REOPEN", 1, true) then
    return config
  else
    common.say("\n[the old config stays]\n%s", result)
  end
end

-- A function that tells between two pieces whether to reopen; looks at the file ten times a second.
local function watcher(run)
  local stamp, looked = host.stamp(run.o.config), cairn.now_us()
  local function look()
    looked = cairn.now_us()
    local now = host.stamp(run.o.config)
    if not now or now == stamp then return end
    stamp = now
    run.reopen_with = take_over(run)
  end
  return function()
    if cairn.now_us() - looked >= 100000 then look() end
    run.settled_ids = run.reopen_with and run:settled()
    return run.settled_ids ~= nil
  end
end

-- A new runtime with the same tokens in it; one that cannot be had, or does not hold them, leaves the
-- old config. Ctrl-C meanwhile is no fault of the config's: it ends the run.
local function reopen(run)
  local ids, old = run.settled_ids, run.rt:config()
  common.say "\n[reopening for the new config]"
  host.catch_interrupts(true)
  run.rt:close()
  local function replay(config)
    run:open(config)
    heed_interrupt()
    run.session:append(ids)
    run.reopen_with, run.ids = nil, nil
  end
  run.ids = ids
  local done, err = pcall(replay, run.reopen_with)
  if not done and common.was_cancelled(err) then
    error(err, 0)
  elseif not done then
    common.say("[the old config stays]\n%s", err)
    run.rt:close()
    replay(old)
  end
end

-- ---- --compare ----------------------------------------------------------------------------------

-- The text's beginning again, in three ways: with every page read and nothing drafted, with the pages
-- that the config chooses, and with its drafts, too. Gives tokens a second of each; the second is nil
-- where that is no way of its own.
local function compare(run)
  local whole, ways = run.rt:config(), {}
  local sparse, drafts = whole.selection.layers ~= "none", whole.drafter ~= "none" and whole.draft_length > 0
  local function rate(name, layers, length)
    local config = run.rt:config()
    config.draft_length, config.selection.layers = length, layers
    run.rt:reload(config)
    run.model:wait()
    run.session:rewind(run.prompt_tokens)
    for _ in run.session:generate(nil, { max_tokens = math.min(run.sums.generated, 128) }) do end
    ways[name] = run.session:stats().tokens_per_second
  end
  rate("plain", "none", 0)
  if sparse and drafts then rate("pages", whole.selection.layers, 0) end
  if sparse or drafts then rate("whole", whole.selection.layers, whole.draft_length) end
  ways.what = sparse and (drafts and "drafts, too" or "the chosen pages") or "drafts"
  return ways
end

-- ---- results ------------------------------------------------------------------------------------

local function report(run)
  local s = run.sums
  common.say("\n%d tokens of prompt in %.2f s; %d tokens, %.1f tokens/s, %.2f tokens a step, "
    .. "drafts accepted %.0f %%", s.prompt_tokens, s.prompt_seconds, s.generated,
    s.tokens_per_second, s.tokens_per_step, 100 * s.acceptance)
  common.say("pages read %.1f of %.1f held a step; peak %s; stopped by %s", s.pages_read,
    s.pages_held, common.size(s.peak_bytes), s.stop)
  local ways = run.ways
  if ways then
    local function times(x) return ("%.1f (%.2f times)"):format(x, x / ways.plain) end
    common.say("its beginning again: %.1f tokens/s reading all pages and drafting nothing%s%s", ways.plain,
      ways.pages and (", %s with the chosen pages"):format(times(ways.pages)) or "",
      ways.whole and (", %s with %s"):format(times(ways.whole), ways.what) or "")
  end
end

local function write(path, text)
  local file, why = io.open(path, "wb")
  if not file or not file:write(text) or not file:close() then
    error((why or path .. ": is the disk full?") .. " (CAIRN_FILE_ERROR)", 0)
  end
end

-- So that no answer is lost to a path that cannot be written.
local function check_writable(path)
  local file, why = io.open(path, "ab")
  if not file then error(why .. " (CAIRN_FILE_ERROR)", 0) end
  file:close()
end

-- What --profile and --trace ask for: the profile as Markdown by the name's end, else as JSON.
local function write_findings(run)
  local o = run.o
  run.found = true
  if o.profile then
    write(o.profile, run.model:profile_text(o.profile:find "%.md$" and "markdown" or "json"))
  end
  if o.trace then write(o.trace, run.rt:trace_text()) end
end

local function print_json(run)
  local s, ids, before = run.sums, run.ids, run.prompt_tokens
  common.put(common.json.encode {
    prompt_ids = common.json.array(table.move(ids, 1, before, 1, {})),
    ids = common.json.array(table.move(ids, before + 1, #ids, 1, {})),
    text = table.concat(run.parts), stop = s.stop,
    tokens_per_second = s.tokens_per_second, tokens_per_step = s.tokens_per_step,
    acceptance = s.acceptance, pages_read = s.pages_read, pages_held = s.pages_held,
    peak_bytes = s.peak_bytes, plain_tokens_per_second = run.ways and run.ways.plain,
    pages_tokens_per_second = run.ways and run.ways.pages,
    again_tokens_per_second = run.ways and run.ways.whole } .. "\n")
end

local function run_command(o)
  if o[1] == "-" and not o.prompt and not o.prompt_file then o.prompt_file = "-"
  elseif o[1] then
    options.fail("unexpected argument %s; - reads the prompt from standard input", o[1])
  end
  local prompt = common.text(o, "prompt", "prompt_file")
  common.model_path(o) -- said before anything is opened
  if o.profile then check_writable(o.profile) end
  if o.trace then check_writable(o.trace) end
  if o.watch and not o.config then options.fail "--watch needs --config FILE" end
  local run = start(o)
  local closing <close> = setmetatable({}, { __close = function()
    host.catch_interrupts(false)
    run.rt:close()
  end })
  local function piece(text)
    if not o.json then common.put(text) end
  end
  local interrupted = run:until_interrupted(function()
    run:append(prompt)
    local between = o.watch and watcher(run)
    while not run:generate(piece, between) do reopen(run) end
    run.ids = run.session:ids()
    write_findings(run)
    if o.compare and run.sums.stop ~= "cancel" then run.ways = compare(run) end
  end)
  run.ids = run.ids or run.session:ids()
  run.prompt_tokens = run.prompt_tokens or #run.ids
  if not run.found and run.session then write_findings(run) end
  if o.json then print_json(run) else report(run) end
  if interrupted then return 130 end
  pcall(run.model.wait, run.model) -- so that the next run finds every kernel in the cache
  return 0
end

return {
  usage = "--model M.gguf (--prompt T | --prompt-file F | -) [--chat] [--max-tokens N] [...]",
  positional = 1,
  about = "answer a prompt, streaming the text",
  options = options.with_common {
    { "--model FILE", "the GGUF file (or CAIRN_MODEL)" },
    { "--adapter FILE", "a LoRA adapter of the model: GGUF, safetensors, .pt or a folder" },
    { "--prompt TEXT", "the prompt, special-token text included; - reads standard input" },
    { "--prompt-file FILE", "a file with the prompt; - is standard input" },
    { "--chat", "a message in the model's chat template; its text opens no turn" },
    { "--system TEXT", "what the model is told before the message; --chat with it" },
    { "--max-tokens N", "tokens to generate at most (256)", "integer" },
    { "--temperature X", "0 is greedy", "number" },
    { "--seed S", "same seed, same text", "integer" },
    { "--top-k N", "most likely tokens kept; 0: all", "integer" },
    { "--top-p P", "smallest set of tokens that reaches this probability", "number" },
    { "--min-p P", "tokens at least this likely beside the best", "number" },
    { "--stop TEXT ...", "ends the text; may be given again, in place of the config's" },
    { "--threads N", "CPU threads; 0: one per core", "integer" },
    { "--grammar FILE", "the text keeps to this grammar (GBNF)" },
    { "--json-schema FILE", "the text is JSON that fits this schema" },
    { "--profile FILE", "what steps took and gave: Markdown for NAME.md, else JSON" },
    { "--trace FILE", "when what ran, for chrome://tracing or Perfetto" },
    { "--compare", "then its beginning again: all pages, the chosen ones, drafts" },
    { "--watch", "take over changes of the config file while generating" },
  },
  run = function(o)
    o.max_tokens = o.max_tokens or 256
    if o.max_tokens < 1 or o.max_tokens > 0x7fffffff then
      options.fail("--max-tokens %d: 1 to %d is expected", o.max_tokens, 0x7fffffff)
    end
    return run_command(o)
  end,
}

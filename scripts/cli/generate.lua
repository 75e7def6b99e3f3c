-- cairn generate
local cairn = require "cairn"
local common = require "cli.common"
local host = require "host"
local options = require "cli.options"

-- The changes to the config that the command line asks for.
local function changes_of(o)
  local sampling = { temperature = o.temperature, seed = o.seed }
  return { max_batch = 1, sampling = sampling }
end

-- One generation on an open session; calls piece(text). Gives the ids and the stats.
local function generate(session, prompt, o, piece)
  local parts = {}
  local before
  for text in session:generate(prompt, { max_tokens = o.max_tokens }) do
    parts[#parts + 1] = text
    if piece(text) == false then break end
  end
  local stats = session:stats()
  local ids = session:ids()
  before = #ids - stats.generated
  return { ids = common.json.array(table.move(ids, before + 1, #ids, 1, {})),
    prompt_ids = common.json.array(table.move(ids, 1, before, 1, {})),
    text = table.concat(parts), stats = stats }
end

local function report(r)
  local s = r.stats
  common.say("\n%d tokens of prompt in %.2f s; %d tokens, %.1f tokens/s, %.2f tokens a step, "
    .. "drafts accepted %.0f %%", s.prompt_tokens, s.prompt_seconds, s.generated,
    s.tokens_per_second, s.tokens_per_step, 100 * s.acceptance)
  common.say("pages read %.1f of %.1f held a step; peak %s; stopped by %s", s.pages_read,
    s.pages_held, common.size(s.peak_bytes), s.stop)
end

local function print_json(r)
  local s = r.stats
  common.json.print { prompt_ids = r.prompt_ids, ids = r.ids, text = r.text, stop = s.stop,
    tokens_per_second = s.tokens_per_second, tokens_per_step = s.tokens_per_step,
    acceptance = s.acceptance, pages_read = s.pages_read, pages_held = s.pages_held,
    peak_bytes = s.peak_bytes }
end

local function start(o)
  local rt = common.open(o, changes_of(o))
  local model = common.load_model(rt, o)
  return rt, model, model:session()
end

local function run_once(o)
  local prompt = common.text(o, "prompt", "prompt_file")
  local rt, model, session = start(o)
  local closing <close> = rt
  if o.chat then prompt = model:chat { { role = "user", content = prompt } } end
  local result = generate(session, prompt, o, function(text)
    if not o.json then
      io.stdout:write(text)
      io.stdout:flush()
    end
  end)
  if o.json then print_json(result) else report(result) end
  return 0
end

return {
  usage = "--model M.gguf (--prompt T | --prompt-file F) [--chat] [--max-tokens N] [...]",
  about = "answer a prompt, streaming the text",
  options = options.with_common {
    { "--model FILE", "the GGUF file (or CAIRN_MODEL)" },
    { "--prompt TEXT", "the prompt, special-token text included" },
    { "--prompt-file FILE", "a file with the prompt" },
    { "--chat", "wrap the prompt in the model's chat template" },
    { "--max-tokens N", "tokens to generate at most (256)", "integer" },
    { "--temperature X", "0 is greedy", "number" },
    { "--seed S", "same seed, same text", "integer" },
    { "--watch", "take over changes of the config file while generating" },
  },
  run = function(o)
    o.max_tokens = o.max_tokens or 256
    if o.max_tokens < 1 then options.fail "--max-tokens: 1 or more" end
    return run_once(o)
  end,
}

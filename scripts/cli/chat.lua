-- cairn chat: turns with a model in one session. Lines that begin with / are commands.
local common = require "cli.common"
local host = require "host"
local options = require "cli.options"

local Chat = {}
Chat.__index = Chat

local commands = {
  { "/save FILE", "keep the conversation in a file" },
  { "/load FILE", "go on with one, under the same model" },
  { "/reset", "begin anew" },
  { "/config FILE", "take another config over; the conversation stays" },
  { "/help", "this list" },
  { "/quit", "end" },
}

-- ---- the terminal ---------------------------------------------------------------------------------

local colours = { user = "\27[1;32m", note = "\27[2m", off = "\27[0m" }

-- What is no answer goes to standard error, so that a pipe holds answers only.
function Chat:note(format, ...)
  local text = format:format(...)
  if host.is_terminal "stderr" then text = colours.note .. text .. colours.off end
  io.stderr:write(text, "\n")
end

-- The next line, or nil at the end. At the prompt Ctrl-C ends the conversation.
function Chat:read()
  if not self.asks then return io.read "l" end
  host.catch_interrupts(true)
  io.stderr:write(host.is_terminal "stderr" and colours.user .. "> " .. colours.off or "> ")
  local line = host.read_line()
  self.left = host.catch_interrupts(false)
  if line and not self.left then return line end
  io.stderr:write "\n" -- behind the prompt
end

-- ---- the model ------------------------------------------------------------------------------------

local function config_of(o, path)
  return common.config({ config = path, backend = o.backend }, { max_batch = 1, log = "warn",
    sampling = { temperature = o.temperature, seed = o.seed } })
end

function Chat:open(config)
  self.rt = common.open_config(config)
  self.model = common.load_model(self.rt, self.o)
  self.session = self.model:session()
end

-- Another runtime with the same tokens; one that cannot be had leaves the old config.
function Chat:reopen(config)
  local ids, old = self.session:ids(), self.rt:config()
  local function take(c)
    self.rt:close()
    self:open(c)
    if #ids > 0 then self.session:append(ids) end
  end
  local done, err = pcall(take, config)
  if done then return end
  if not common.was_interrupted(err) then take(old) end
  error(err, 0)
end

-- ---- commands -------------------------------------------------------------------------------------

local run = {}

function run.help(chat)
  for _, c in ipairs(commands) do chat:note("  %-14s %s", c[1], c[2]) end
end

function run.save(chat, path)
  chat.session:save(path)
  chat:note("saved %d tokens to %s", #chat.session:ids(), path)
end

function run.load(chat, path)
  chat.session:load(path)
  chat:note("%d tokens from %s", #chat.session:ids(), path)
end

function run.reset(chat)
  chat.session:reset()
  chat:note "a new conversation"
end

function run.config(chat, path)
  local config = config_of(chat.o, path)
  local done, err = pcall(chat.rt.reload, chat.rt, config)
  if not done and not tostring(err):find("CAIRN_NEEDS_REOPEN", 1, true) then error(err, 0) end
  if not done then chat:reopen(config) end
  chat:note("%s is in force", path)
end

local needs_file = { save = true, load = true, config = true }

-- A command's line; false: the conversation ends.
function Chat:command(line)
  local name, rest = line:match "^/(%S*)%s*(.-)%s*$"
  if name == "quit" or name == "exit" then return false end
  if not run[name] then
    self:note("no command /%s; /help names them", name)
  elseif needs_file[name] and rest == "" then
    self:note("/%s needs a file: /%s FILE", name, name)
  else
    run[name](self, rest)
  end
  return true
end

-- ---- turns ----------------------------------------------------------------------------------------

-- The messages of a turn: the system's come with the first question.
function Chat:messages(text)
  local list = { { role = "user", content = text } }
  if self.o.system and #self.session:ids() == 0 then
    table.insert(list, 1, { role = "system", content = self.o.system })
  end
  return list
end

-- Streams the answer. Ctrl-C ends it; what was said stays in the session, and so does the turn.
function Chat:turn(text)
  host.catch_interrupts(self.session:pointer())
  if host.interrupted() then -- before there was something to cancel
    self.stopped = true
    return
  end
  self.session:chat(self:messages(text))
  for piece in self.session:generate(nil, { max_tokens = self.o.max_tokens }) do
    io.stdout:write(piece)
    io.stdout:flush()
    if host.interrupted() then
      self.stopped = true
      break
    end
  end
  io.stdout:write "\n"
  io.stdout:flush()
end

-- An error of the runtime's or of a file's leaves the conversation as it is.
function Chat:try(f, ...)
  self.stopped = false
  host.catch_interrupts(true)
  local done, result = pcall(f, self, ...)
  local late = host.catch_interrupts(false)
  if self.stopped or late then self:note "[stopped]" end
  if done then return result end
  if common.was_cancelled(result) then return true end
  self:note("%s", type(result) == "table" and (result.text or result.usage) or result)
  return true
end

function Chat:loop()
  while true do
    local line = self:read()
    if not line then break end
    if line:sub(1, 1) == "/" then
      if self:try(self.command, line) == false then break end
    elseif line:find "%S" then
      self:try(self.turn, line)
    end
  end
end

return {
  usage = "--model M.gguf [--system T | --system-file F] [--max-tokens N] [...]",
  about = "talk with a model, turn after turn",
  options = {
    options.common[1], options.common[2],
    { "--model FILE", "the GGUF file (or CAIRN_MODEL)" },
    { "--adapter FILE", "a LoRA adapter of the model: GGUF, safetensors, .pt or a folder" },
    { "--system TEXT", "what the model is told first" },
    { "--system-file FILE", "a file with that" },
    { "--max-tokens N", "tokens of an answer at most (512)", "integer" },
    { "--temperature X", "0 is greedy", "number" },
    { "--seed S", "same seed, same text", "integer" },
  },
  run = function(o)
    o.max_tokens = o.max_tokens or 512
    if o.max_tokens < 1 or o.max_tokens > 0x7fffffff then
      options.fail("--max-tokens %d: 1 to %d is expected", o.max_tokens, 0x7fffffff)
    end
    if o.system or o.system_file then o.system = common.text(o, "system", "system_file") end
    common.model_path(o) -- said before anything is opened
    local chat = setmetatable({ o = o, asks = host.is_terminal "stdin" }, Chat)
    chat:open(config_of(o, o.config))
    local closing <close> = setmetatable({}, { __close = function() chat.rt:close() end })
    if chat.asks then chat:note "/help names the commands; Ctrl-C ends an answer" end
    chat:loop()
    return chat.left and 130 or 0
  end,
}

-- What several commands share: opening a runtime as --config and --backend say, reading files, and
-- the two ways of giving results.
local cairn = require "cairn"
local host = require "host"
local json = require "cli.json"
local options = require "cli.options"

local M = {}

local most_text = 1 << 30 -- bytes that are tokenized at once

-- All of a file, which may be a pipe or a device that does not end.
local function read_all(file, path)
  local parts, bytes = {}, 0
  repeat
    local part, problem = file:read(1 << 20)
    if problem then error({ text = ("%s: %s"):format(path, problem) }, 0) end -- a folder opens, and is not read
    parts[#parts + 1], bytes = part, bytes + #(part or "")
    if bytes > most_text then error({ text = path .. ": over 1 GiB of text" }, 0) end
  until not part
  return table.concat(parts)
end

-- "-" is standard input.
function M.read_file(path)
  if path == "-" then return read_all(io.stdin, "standard input") end
  local file <close>, err = io.open(path, "rb")
  if not file then error({ text = err }, 0) end
  return read_all(file, path)
end

-- Text for a terminal: bytes that command one are shown, but tabs and new lines.
function M.shown(text)
  return (text:gsub("[\0-\8\11-\31\127]", function(c) return ("\\x%02x"):format(c:byte()) end))
end

-- Writes to standard output, at once; why it failed is an error.
function M.put(text)
  local good, err = io.stdout:write(text)
  if good then good, err = io.stdout:flush() end
  if not good then error({ text = "standard output: " .. err }, 0) end
end

function M.say(format, ...) io.stderr:write(format:format(...), "\n") end

-- The config that --config and --backend give, every field filled in; `changes` win.
function M.config(o, changes)
  local config = cairn.check(o.config or {})
  config.backend, config.adapter = o.backend or config.backend, o.adapter or config.adapter
  for key, value in pairs(changes or {}) do
    if type(value) == "table" and type(config[key]) == "table" then
      for inner, v in pairs(value) do config[key][inner] = v end
    else
      config[key] = value
    end
  end
  return config
end

-- Ctrl-C ends a load, too: where nothing catches it, it raises in here.
local function goes_on() return not host.interrupted() end

function M.open_config(config, log)
  return cairn.open(config, { progress = host.is_terminal "stderr", log = log, loading = goes_on })
end

function M.open(o, changes) return M.open_config(M.config(o, changes)) end

function M.model_path(o)
  return o.model or os.getenv "CAIRN_MODEL"
    or options.fail "which model? --model FILE.gguf, or set CAIRN_MODEL"
end

function M.load_model(rt, o) return rt:load_model(M.model_path(o)) end

-- --NAME T or --NAME-file F of a command.
function M.text(o, name, file_name)
  local path = o[file_name]
  if o[name] and path then
    options.fail("--%s and --%s are given both", name, file_name:gsub("_", "-"))
  end
  if path or (o[name] == "-" and name == "prompt") then return M.read_file(path or "-") end
  return o[name] or options.fail("--%s TEXT or --%s FILE is needed", name,
    (file_name:gsub("_", "-")))
end

-- Bytes for a reader.
function M.size(bytes)
  if bytes >= 1 << 30 then return ("%.2f GiB"):format(bytes / (1 << 30)) end
  if bytes >= 1 << 20 then return ("%.1f MiB"):format(bytes / (1 << 20)) end
  return ("%.1f KiB"):format(bytes / 1024)
end

M.json = json

-- Whether an error is Ctrl-C's, that nothing caught.
function M.was_interrupted(err)
  return err == "interrupted" or tostring(err):find ": interrupted$" ~= nil
end

-- Whether an error is that of a call that was cancelled.
function M.was_cancelled(err)
  return tostring(type(err) == "table" and err.text or err):find("CAIRN_CANCELLED", 1, true) ~= nil
end

return M

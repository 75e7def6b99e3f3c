-- The command line: finds the command, reads its options, runs it, and gives the exit status.
-- A command is a module cli.NAME returning { usage, about, options, run = function(o) }.
local common = require "cli.common"
local json = require "cli.json"
local options = require "cli.options"

local names = {
  "generate", "chat", "eval", "tokenize", "info", "check", "kernels", "run", "test", "bench",
}

local also = { estimate = "info" } -- other names

local function command(name)
  name = also[name] or name
  for _, known in ipairs(names) do
    if known == name then return require("cli." .. name) end
  end
  local near = options.nearest(name, names)
  error({ usage = ("no command %s%s `cairn help` names them")
    :format(name, near and "; did you mean " .. near .. "?" or ";") }, 0)
end

local function help_all()
  print "Cairn: long-context language models in your app.\n"
  for _, name in ipairs(names) do
    print(("  cairn %-9s %s"):format(name, require("cli." .. name).about))
  end
  print "\n`cairn help COMMAND` tells more. Everywhere they make sense:"
  print(options.describe(options.common))
end

local function help(name)
  if not name then return help_all() end
  local c = command(name)
  print("cairn " .. name .. " " .. c.usage .. "\n\n" .. c.about .. "\n")
  print(options.describe(c.options))
end

local function run(name, args)
  local c = command(name)
  local o = options.read(name, c, args)
  if o.help then return help(name) end
  return c.run(o)
end

local function text_of(err)
  return type(err) == "table" and (err.usage or err.text) or tostring(err)
end

local function is_json(args)
  for _, text in ipairs(args) do
    if text == "--json" then return true elseif text == "--" then return false end
  end
end

-- What --json gives of a command that failed.
local function print_failure(err)
  local text = text_of(err)
  pcall(json.print, { error = text, status = text:match "%((CAIRN_[A-Z_]+)"
    or type(err) == "table" and err.usage and "usage" or nil })
end

-- An error made to be read as it is ({usage =} or a Cairn message) or a script's, with its stack.
local function report(err)
  io.stderr:write("cairn: ", common.shown(text_of(err)), "\n")
  return type(err) == "table" and (err.usage and 2 or err.text == "interrupted" and 130) or 1
end

-- Cairn's own errors (with a status name, or a config's mistakes with its lines) need no stack; those
-- of a script that `run` runs and those of the commands themselves do.
local function with_stack(name)
  return function(err)
    if type(err) ~= "string" then return err end
    if common.was_interrupted(err) then return { text = "interrupted" } end
    local own = name ~= "run" and not err:find "^cli%."
    if own or err:find "%(CAIRN_[A-Z_]+" then return { text = err } end
    return { text = debug.traceback(err, 2) }
  end
end

-- args[0] is the program. Returns the exit status.
return function(args)
  local name = table.remove(args, 1)
  if not name then help_all() return 0 end
  if name == "help" or name == "--help" or name == "-h" then
    name = "help"
  elseif name == "--version" then
    print(require("cairn").version)
    return 0
  end
  local done, result = xpcall(name == "help" and function() help(args[1]) end or run,
    with_stack(name), name, args)
  if not done then
    if name ~= "run" and is_json(args) then print_failure(result) end
    return report(result)
  end
  return result or 0
end

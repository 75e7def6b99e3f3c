-- cairn run: a script with the module `cairn` at hand and its own `arg`.
local options = require "cli.options"

return {
  usage = "SCRIPT.lua [ARG...]",
  about = "run a Lua script with the module cairn at hand",
  options = {},
  positional = math.huge,
  rest = true,
  run = function(o)
    local path = o[1] or options.fail "which script? usage: cairn run SCRIPT.lua [ARG...]"
    arg = { [0] = path, table.unpack(o, 2) }
    local chunk, err = loadfile(path)
    if not chunk then error({ text = err }, 0) end
    chunk(table.unpack(arg))
    return 0
  end,
}

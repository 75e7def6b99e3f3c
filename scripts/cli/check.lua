-- cairn check
local cairn = require "cairn"
local common = require "cli.common"
local options = require "cli.options"

-- Lua text of a value: keys sorted, nested tables on one line.
local function show(value)
  if type(value) == "string" then return ("%q"):format(value) end
  if type(value) ~= "table" then return tostring(value) end
  local parts = {}
  for _, v in ipairs(value) do parts[#parts + 1] = show(v) end
  local keys = {}
  for k in pairs(value) do if type(k) == "string" then keys[#keys + 1] = k end end
  table.sort(keys)
  for _, k in ipairs(keys) do parts[#parts + 1] = k .. " = " .. show(value[k]) end
  return "{ " .. table.concat(parts, ", ") .. " }"
end

return {
  usage = "CONFIG.lua",
  about = "all mistakes of a config, or the config with every default filled in",
  options = { options.common[3] },
  positional = 1,
  run = function(o)
    if not o[1] then options.fail "which config? usage: cairn check CONFIG.lua" end
    local config = cairn.check(o[1])
    common.json.array(config.stop)
    for _, texts in pairs(config.chat) do common.json.array(texts) end
    if o.json then
      common.json.print(config)
      return 0
    end
    local keys = {}
    for k in pairs(config) do keys[#keys + 1] = k end
    table.sort(keys)
    print "return {"
    for _, k in ipairs(keys) do print(("  %s = %s,"):format(k, show(config[k]))) end
    print "}"
    return 0
  end,
}

-- JSON for --json output and --ids files.
local M = {}

local escapes = { ['"'] = '\\"', ["\\"] = "\\\\", ["\b"] = "\\b", ["\f"] = "\\f", ["\n"] = "\\n",
  ["\r"] = "\\r", ["\t"] = "\\t" }

local function string_of(text)
  return '"' .. text:gsub('[%c"\\\127]', function(c)
    return escapes[c] or ("\\u%04x"):format(c:byte())
  end) .. '"'
end

local function number_of(value)
  if value ~= value or value == math.huge or value == -math.huge then return "null" end
  return math.type(value) == "integer" and ("%d"):format(value) or ("%.9g"):format(value)
end

-- Tables with a first element, and M.array(t), are arrays; of others the keys are sorted.
local array = {}
function M.array(list) return setmetatable(list, array) end

function M.encode(value)
  local kind = type(value)
  if kind == "string" then return string_of(value) end
  if kind == "number" then return number_of(value) end
  if kind ~= "table" then return kind == "nil" and "null" or tostring(value) end
  local parts = {}
  if value[1] ~= nil or getmetatable(value) == array then
    for i, v in ipairs(value) do parts[i] = M.encode(v) end
    return "[" .. table.concat(parts, ",") .. "]"
  end
  for k, v in pairs(value) do parts[#parts + 1] = string_of(k) .. ":" .. M.encode(v) end
  table.sort(parts)
  return "{" .. table.concat(parts, ",") .. "}"
end

function M.print(value) print(M.encode(value)) end

-- A JSON array of whole numbers, which is all that the commands read.
function M.decode_integers(text, what)
  local inside = text:match "^%s*%[(.*)%]%s*$"
  if not inside then error({ usage = what .. ": a JSON array of token ids is expected" }, 0) end
  local list = {}
  if inside:find "%S" then
    for item in (inside .. ","):gmatch "([^,]*)," do
      local value = math.tointeger(tonumber(item:match "^%s*(%-?%d+)%s*$"))
      if not value then
        error({ usage = ("%s: entry %d is not a whole number"):format(what, #list + 1) }, 0)
      end
      list[#list + 1] = value
    end
  end
  return list
end

return M

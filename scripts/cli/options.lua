-- Command-line options. A command lists them as { "--name VALUE", "what it does", kind }: without
-- VALUE it is a switch; kind "number", "integer" or a list of the values there are. A name that
-- ends in "..." may be given again. What is left over are the positional arguments.
local M = {}

M.common = {
  { "--config FILE", "Lua file with the config" },
  { "--backend NAME", "auto, cuda or cpu", { "auto", "cuda", "cpu" } },
  { "--json", "one JSON object on standard output, nothing else there" },
}

function M.with_common(list)
  for _, option in ipairs(M.common) do list[#list + 1] = option end
  return list
end

local function distance(a, b)
  local row = {}
  for j = 0, #b do row[j] = j end
  for i = 1, #a do
    local diagonal = row[0]
    row[0] = i
    for j = 1, #b do
      local cost = a:byte(i) == b:byte(j) and 0 or 1
      diagonal, row[j] = row[j], math.min(row[j] + 1, row[j - 1] + 1, diagonal + cost)
    end
  end
  return row[#b]
end

-- What other programs call an option, and what is meant here.
local meanings = {
  ["--top-k"] = "it stands in the config: sampling = { top_k = ... }",
  ["--top-p"] = "it stands in the config: sampling = { top_p = ... }",
  ["--ctx-size"] = "it stands in the config: max_seq_len = ...",
  ["--threads"] = "it stands in the config: threads = ...",
  ["--gpu"] = "did you mean --backend cuda?", ["--cpu"] = "did you mean --backend cpu?",
  ["--temp"] = "did you mean --temperature?", ["--n-predict"] = "did you mean --max-tokens?",
  ["--max-new-tokens"] = "did you mean --max-tokens?",
}

local values = { gpu = "cuda", nvidia = "cuda", host = "cpu" }

-- The name that was meant: one of the same meaning, or near enough to be a slip of the finger.
function M.nearest(name, names)
  for _, candidate in ipairs(names) do if candidate == values[name] then return candidate end end
  local letters = #name:gsub("^%-+", "")
  local best, best_distance = nil, 2 + letters // 4
  for _, candidate in ipairs(names) do
    local d = distance(name, candidate)
    if d < best_distance then best, best_distance = candidate, d end
  end
  return best
end

function M.fail(format, ...)
  error({ usage = format:format(...) }, 0)
end

function M.describe(list)
  local lines = {}
  for _, option in ipairs(list) do
    lines[#lines + 1] = ("  %-22s %s"):format(option[1], option[2])
  end
  return table.concat(lines, "\n")
end

local function index_of(list)
  local by_name, names = {}, {}
  for _, option in ipairs(list) do
    local flag = option[1]:match "^%S+"
    by_name[flag], names[#names + 1] = option, flag
  end
  by_name["--help"] = { "--help", "" }
  return by_name, names
end

local function convert(flag, option, text)
  local kind = option[3]
  if kind == "number" or kind == "integer" then
    local value = kind == "number" and tonumber(text) or math.tointeger(tonumber(text))
    return value or M.fail("%s %s: %s is expected", flag, text,
      kind == "number" and "a number" or "a whole number")
  elseif type(kind) == "table" then
    for _, value in ipairs(kind) do if value == text then return text end end
    local near = M.nearest(text, kind)
    M.fail("%s %s: it is one of %s%s", flag, text, table.concat(kind, ", "),
      near and "; did you mean " .. near .. "?" or "")
  end
  return text
end

local function unknown(flag, names)
  local near = M.nearest(flag, names)
  if meanings[flag] and not near then M.fail("no option %s; %s", flag, meanings[flag]) end
  M.fail("no option %s%s", flag, near and "; did you mean " .. near .. "?"
    or "; there are " .. table.concat(names, ", "))
end

-- o.name for every option given ("-" becomes "_"), o[1], o[2], ... for the rest. A command that
-- passes its arguments on (`rest`) reads options up to the first positional one only.
function M.read(name, command, args)
  local by_name, names = index_of(command.options)
  local o, i = {}, 1
  while i <= #args do
    local text = args[i]
    if text:sub(1, 2) ~= "--" or (command.rest and #o > 0) then
      o[#o + 1] = text
    elseif text == "--" then
      table.move(args, i + 1, #args, #o + 1, o)
      break
    else
      local flag, value = text:match "^(%-%-[^=]+)=(.*)$"
      flag = flag or text
      local option = by_name[flag] or unknown(flag, names)
      local key = flag:sub(3):gsub("-", "_")
      local many = option[1]:find "%.%.%.$"
      if not option[1]:find " " then
        if value then M.fail("%s takes no value", flag) end
        o[key] = true
      else
        if not value then
          i = i + 1
          value = args[i] or M.fail("%s: its value is missing", option[1])
        end
        value = convert(flag, option, value)
        if many and o[key] then table.insert(o[key], value)
        else o[key] = many and { value } or value end
      end
    end
    i = i + 1
  end
  local most = command.positional or 0
  if not o.help and #o > most then
    M.fail("unexpected argument %s; usage: cairn %s %s", o[most + 1], name, command.usage)
  end
  return o
end

return M

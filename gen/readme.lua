-- README.md: the troubleshooting table, from the status table of runtime.h, and the table of ops,
-- of runtime_ops.h, from the comments above their argument structs.

-- The C strings of one X(...) row, adjacent pieces joined.
local function strings_of(row)
  local found = {}
  row = row:gsub('\\"', "\1"):gsub('"[%s\\]*"', "")
  for text in row:gmatch '"(.-)"' do
    found[#found + 1] = text:gsub("\1", '"')
  end
  return found
end

-- The first sentence of the comment "/* NAME: ..." in front of each cairn_NAME_args.
local function ops_of(header)
  local lines = { "| op | what it does |", "|---|---|" }
  for name in header:gmatch "typedef struct cairn_([%w_]+)_args {" do
    local comment = header:match("\n/%* " .. name .. ": (.-)%*/")
    if comment then
      local text = comment:gsub("%s*\n %*%s*", " ")
      text = (text:match "^(.-[%.])%s" or text):gsub("%s+$", ""):gsub("|", "\\|")
      lines[#lines + 1] = ("| `%s` | %s |"):format(name, text)
    end
  end
  assert(#lines > 10, "runtime_ops.h: the ops were not understood")
  return table.concat(lines, "\n")
end

return function(out)
  local header = out.read "runtime.h"
  out.region("README.md", "ops", ops_of(out.read "runtime_ops.h"))
  local lines = { "| status | what happened | what to do |", "|---|---|---|" }
  local statuses = header:match "#define CAIRN_STATUS_TABLE.-\n\n"
  for name, row in (statuses .. "\n"):gmatch "    X%(([A-Z0-9_]+), %d+,(.-)%)%s*\\?\n" do
    local text = strings_of(row)
    if name ~= "OK" then
      lines[#lines + 1] = ("| `CAIRN_%s` | %s | %s |"):format(name, text[1], text[2])
    end
  end
  assert(#lines > 28, "runtime.h: the status table was not understood")
  out.region("README.md", "troubleshooting", table.concat(lines, "\n"))
end

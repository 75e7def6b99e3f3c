-- README.md: the troubleshooting table, from the status table of runtime.h, and the table of ops,
-- of runtime_ops.h, from the comments above their argument structs and from the table of arguments,
-- runtime/ops/spec_table.c.

-- The C strings of one X(...) row, adjacent pieces joined.
local function strings_of(row)
  local found = {}
  row = row:gsub('\\"', "\1"):gsub('"[%s\\]*"', "")
  for text in row:gmatch '"(.-)"' do
    found[#found + 1] = text:gsub("\1", '"')
  end
  return found
end

-- Which of a row macro's arguments names the field, and what the row is.
local rows = {
  READ = { 1, "input" }, READ_IF = { 1, "input", true }, READ_AS = { 3, "input" },
  CHANGE_AS = { 3, "input" }, LIST_AS = { 3, "input" }, WRITE = { 1, "output" }, WRITE_AS = { 3, "output" },
  WRITE_OUT = { 1, "output", name = "out" }, WRITE_IF = { 1, "output", true },
  WRITE_MADE = { 1, "output" }, INT = { 1, "option" }, INT_IS = { 2, "option" },
  FLAG = { 1, "option" }, REAL = { 1, "option" }, SIZE = { 1, "option" }, NAMED = { 1, "option" },
  CHOOSE = { 1, "option" }, OWN = { 1, "option" }, NUMBER_AS = { 4, "option" },
}

-- Rows that stand in the argument structs of several ops, as macros of the table.
local function shared_rows(spec, name)
  return assert(spec:match("#define " .. name .. "%f[^%w_](.-[^\\])\n"), name)
end

local function split(list)
  local found, depth, piece = {}, 0, ""
  for c in (list .. ","):gmatch "." do
    depth = depth + (c == "(" and 1 or c == ")" and -1 or 0)
    if c == "," and depth == 0 then found[#found + 1], piece = piece:match "^%s*(.-)%s*$", ""
    else piece = piece .. c end
  end
  return found
end

-- "inputs -> outputs; options" of one op, optional ones in brackets.
local function arguments_of(spec, op)
  local text = assert(spec:match("spec_arg spec_" .. op .. "_args%[%] = (%b{})"), op)
  local found = { input = {}, output = {}, option = {} }
  text = text:gsub("(PAGES_O[FR_ROWS]+)%b()", function(name) return shared_rows(spec, name) end)
  text = text:gsub("%f[%w_](SAMPLED)%f[^%w_]", function(name) return shared_rows(spec, name) end)
  text = text:gsub("CONV_OF(%b())", function(lens)
    return (shared_rows(spec, "CONV_OF"):gsub("%f[%w]lens%f[%W]", lens))
  end)
  text = text:gsub("{(\"reserved_slots\")[^}]*{0}[^}]*}", "OWN(%1)")
  for macro, list in text:gmatch "%f[%w_]([A-Z][A-Z_]*)(%b())" do
    local given, row = split(list:sub(2, -2)), rows[macro]
    local name, optional = row and given[row[1]], row and row[3]
    local lua = macro == "NUMBER_AS" and given[3]:match '"(.-)"'
    if macro == "ROW" then row, name, optional = rows.READ, given[5], given[2]:find "OPTIONAL" end
    if macro == "CONV" then
      row, name = given[1] == "SPEC_OUT" and rows.WRITE or rows.READ, given[3]
      optional = given[2]:find "OPTIONAL"
    end
    if macro:find "_AS$" then optional = list:find "OPTIONAL" and row[2] ~= "option" end
    if row and not list:find "C_ONLY" then
      name = lua or row.name or name:gsub('"', ""):match "[%w_]+$"
      local to = found[list:find "SPEC_FUNCTION" and "input" or row[2]]
      to[#to + 1] = optional and "[" .. name .. "]" or name
    end
  end
  local line = table.concat(found.input, ", ")
  if #found.output > 0 then line = line .. " -> " .. table.concat(found.output, ", ") end
  if #found.option > 0 then line = line .. "; " .. table.concat(found.option, ", ") end
  return line
end

-- The first sentence of the comment "/* NAME: ..." in front of each cairn_NAME_args.
local function ops_of(header, spec)
  local lines = { "| op | arguments in Lua | what it does |", "|---|---|---|" }
  for name in header:gmatch "typedef struct cairn_([%w_]+)_args {" do
    local comment = header:match("\n/%* " .. name .. ": (.-)%*/")
    if comment then
      local text = comment:gsub("%s*\n %*%s*", " ")
      text = (text:match "^(.-[%.])%s" or text):gsub("%s+$", ""):gsub("|", "\\|")
      lines[#lines + 1] = ("| `%s` | `%s` | %s |"):format(name, arguments_of(spec, name), text)
    end
  end
  assert(#lines > 10, "runtime_ops.h: the ops were not understood")
  return table.concat(lines, "\n")
end

return function(out)
  local header = out.read "runtime.h"
  local ops = ops_of(out.read "runtime_ops.h", out.read "runtime/ops/spec_table.c")
  out.region("README.md", "ops", ops)
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

-- Everything that follows from gen/schema.lua: the config's part of runtime.h, the tables of
-- runtime/config/config.c, the README's table, the editor annotations and the fuzz dictionary.

local schema = dofile "gen/schema.lua"

local enums = {} -- by name
for _, enum in ipairs(schema.enums) do enums[enum.name] = enum end

local function constant(enum, text)
  return enum.prefix .. "_" .. text:upper():gsub("%W", "_")
end

-- Calls f(field, group or nil) for every field, a group before its fields.
local function each_field(f)
  for _, field in ipairs(schema.fields) do
    f(field)
    for _, inner in ipairs(field.fields or {}) do f(inner, field) end
  end
end

local function path_of(field, group)
  return group and group.name .. "." .. field.name or field.name
end

local function is_hot(field, group) return field.hot or group and group.hot or false end

local function number(value)
  return math.type(value) == "integer" and tostring(value) or ("%.15g"):format(value)
end

-- `separator`-joined values that the field may take, quoted when they are strings.
local function value_names(field, quote, separator)
  local names = {}
  if field.type == "enum" then
    for i, value in ipairs(enums[field.enum].values) do names[i] = quote .. value[1] .. quote end
  else
    for i, value in ipairs(field.values or field.allowed) do
      names[i] = field.values and quote .. value .. quote or tostring(value)
    end
  end
  return table.concat(names, separator)
end

-- "1 to 4096", "16, 32, 64", "up to 511 bytes": what the field may be, for people.
local function range(field)
  if field.type == "enum" or field.values or field.allowed then
    return value_names(field, "", ", ")
  end
  if field.type == "bool" then return "true, false" end
  if field.type == "string" then return ("up to %d bytes"):format(field.bytes - 1) end
  if field.type == "strings" then
    return ("up to %d strings of %d bytes"):format(field.count, field.bytes - 1)
  end
  if field.type == "layers" then return ("0 to %d"):format(schema.max_layers - 1) end
  if field.type == "group" then return "" end
  local high = field.max == math.maxinteger and "2^63-1" or number(field.max)
  local text = field.above and ("above %s, up to %s"):format(number(field.above), high)
            or ("%s to %s"):format(number(field.min), high)
  return field.multiple and text .. ", a multiple of " .. field.multiple or text
end

local function lua_default(field)
  local value = field.default
  if type(value) == "table" then return "{}" end
  if type(value) == "string" then return ('"%s"'):format(value) end
  if field.type == "float" then return ("%.1f"):format(value) end
  return tostring(value)
end

-- ---- runtime.h ---------------------------------------------------------------------------------

-- `left`, then a comment of `words` that starts at `column`, or behind it, and stays within 120.
local function commented(left, words, column)
  local lines, line = {}, left .. (" "):rep(math.max(column - #left, 1)) .. "/*"
  for word in words:gmatch "%S+" do
    if #line + 1 + #word > 116 then
      lines[#lines + 1] = line
      line = (" "):rep(column) .. " *"
    end
    line = line .. " " .. word
  end
  lines[#lines + 1] = line .. " */"
  return table.concat(lines, "\n") .. "\n"
end

local function padded_rows(rows)
  local width = 0
  for _, row in ipairs(rows) do width = math.max(width, #row) end
  for i, row in ipairs(rows) do
    if i < #rows then rows[i] = row .. (" "):rep(width - #row) .. " \\" end
  end
  return table.concat(rows, "\n") .. "\n"
end

local function c_enum(enum)
  local upper = enum.name:upper()
  local rows = { ("#define CAIRN_%s_TABLE(X)"):format(upper) }
  for code, value in ipairs(enum.values) do
    local row = ('    X(%s, %d, "%s", "%s")'):format(constant(enum, value[1]), code - 1,
                                                        value[1], value[2])
    assert(#row <= 118 or value[2], row)
    if #row > 118 then
      rows[#rows + 1] = row:match '^(.-, ")' and row:sub(1, #row - #value[2] - 4)
      row = ('      "%s")'):format(value[2])
    end
    rows[#rows + 1] = row
  end
  return padded_rows(rows) ..
    ("typedef enum cairn_%s {\n    CAIRN_%s_TABLE(CAIRN_VALUE) %s_COUNT\n} cairn_%s;\n\n")
      :format(enum.name, upper, enum.prefix, enum.name)
end

local c_types = { int = "int32_t", int64 = "int64_t", float = "float", bool = "bool" }
local c_bytes = { int = 4, int64 = 8, float = 4, bool = 1, enum = 4 }

local function c_declaration(field)
  if field.type == "enum" then return ("cairn_%s %s;"):format(field.enum, field.name) end
  if field.type == "group" then return ("%s %s;"):format(field.struct, field.name) end
  if field.type == "layers" then
    return ("uint64_t %s[CAIRN_MAX_LAYERS / 64];"):format(field.name)
  end
  if field.type == "strings" then
    return ("char %s[%d][%d];"):format(field.name, field.count, field.bytes)
  end
  if field.bytes then return ("char %s[%d];"):format(field.name, field.bytes) end
  return ("%s %s;"):format(c_types[field.type], field.name)
end

local function c_comment(field, group)
  local text = field.doc
  if field.type == "layers" then
    text = "bit l % 64 of word l / 64: layer l selects; all by default"
  else -- what its type says is not said again
    local said = field.type:find "^enum" or field.type:find "^bool" or field.type:find "^string"
    local values = said and "" or range(field) .. "; "
    text = ("%s; %sdefault %s"):format(text, values, lua_default(field))
  end
  return is_hot(field, group) and not group and text .. "; hot" or text
end

local function c_field(field, group)
  if field.type == "group" then return ("    %s\n"):format(c_declaration(field)) end -- said above
  local text = commented("    " .. c_declaration(field), c_comment(field, group), 32)
  if field.type ~= "strings" then return text end
  return commented(("    int32_t %s_count;"):format(field.name), "strings in use", 32) .. text
end

local function field_bytes(field)
  if field.type == "strings" then return 4 + field.count * field.bytes, 4 end
  if field.type == "layers" then return schema.max_layers // 8, 8 end
  if field.bytes then return field.bytes, 1 end
  return c_bytes[field.type], c_bytes[field.type]
end

local function c_group(group)
  local lines, used = {}, 0
  for _, field in ipairs(group.fields) do
    local bytes, align = field_bytes(field)
    used = (used + align - 1) // align * align + bytes
    lines[#lines + 1] = c_field(field, group)
  end
  assert(used < group.bytes, group.name .. ": no room left in its fixed size")
  lines[#lines + 1] = commented(("    uint8_t reserved[%d];"):format(group.bytes - used),
                                "zero: room for fields to come", 32)
  return ("/* %s%s */\ntypedef struct %s {\n%s} %s;\n\n")
    :format(group.doc:sub(1, 1):upper() .. group.doc:sub(2),
            group.hot and "; all hot." or ".", group.struct, table.concat(lines), group.struct)
end

local function c_host_field(row)
  local type, name, doc = row[1], row[2], row[3]
  local size = type:match "%[(%d+)%]"
  local left = size and ("    char %s[%s];"):format(name, size)
            or ("    %s%s%s;"):format(type, type:find "%*$" and "" or " ", name)
  return doc == "" and left .. "\n" or commented(left, doc, 48)
end

local function header()
  local out = {}
  local function add(text) out[#out + 1] = text end
  add(([[
/* The values that a name may have: X(constant, code, "name in Lua", meaning). */
#define CAIRN_VALUE(constant, code, text, meaning) constant = code,

#define CAIRN_MAX_LAYERS %d

]]):format(schema.max_layers))
  for _, enum in ipairs(schema.enums) do
    if not enum.declared then add(c_enum(enum)) end
  end
  for _, field in ipairs(schema.fields) do
    if field.fields then add(c_group(field)) end
  end
  add [[
/* The whole config. Hot fields change between steps (cairn_reload); the others are fixed at open. */
typedef struct cairn_config {
    uint32_t struct_size;       /* sizeof(cairn_config) as the caller compiled it */
]]
  for _, field in ipairs(schema.fields) do add(c_field(field)) end
  add "\n    /* From the host program, not from Lua; a reload keeps what open was given. */\n"
  for _, row in ipairs(schema.host) do add(c_host_field(row)) end
  add "} cairn_config;\n"
  return table.concat(out)
end

-- ---- runtime/generated/config.h ----------------------------------------------------------------

local function symbol(field, group) return (path_of(field, group):gsub("%.", "_")) end

local function c_rows_of_values(add)
  for _, enum in ipairs(schema.enums) do
    add(("static const config_value config_%s_values[] = {\n"):format(enum.name))
    if enum.declared then
      for _, value in ipairs(enum.values) do
        add(('    {"%s", %s},\n'):format(value[1], constant(enum, value[1])))
      end
    else
      add(("    CAIRN_%s_TABLE(CFG_VALUE)\n"):format(enum.name:upper()))
    end
    add "};\n"
  end
  each_field(function(field, group)
    if field.values then
      add(("static const config_value config_%s_values[] = {\n"):format(symbol(field, group)))
      for i, value in ipairs(field.values) do
        add(('    {"%s", %d},\n'):format(value, i - 1))
      end
      add "};\n"
    elseif field.allowed then
      add(("static const int32_t config_%s_allowed[] = {%s};\n")
        :format(symbol(field, group), table.concat(field.allowed, ", ")))
    end
  end)
end

local function c_int(value)
  return value > schema.max_int and "INT64_MAX" or tostring(value)
end

local function c_limits(field, group, add)
  local name = symbol(field, group)
  if field.type == "int" or field.type == "int64" then
    add((",\n     .low = %s, .high = %s"):format(c_int(field.min or field.allowed[1]),
                                           c_int(field.max or field.allowed[#field.allowed])))
    if field.multiple then add((", .multiple = %d"):format(field.multiple)) end
    if field.allowed then
      add((",\n     .allowed = config_%s_allowed, .allowed_count = %d"):format(name, #field.allowed))
    end
  elseif field.type == "float" then
    add((",\n     .float_low = %s, .float_high = %s"):format(
        number((field.min or field.above) + 0.0), number(field.max + 0.0)))
    if field.above then add ", .float_open = true" end
  elseif field.type == "enum" or field.type == "choice" then
    name = field.type == "enum" and field.enum or name
    add((",\n     .values = config_%s_values, .value_count = %d"):format(
        name, #(field.type == "enum" and enums[field.enum].values or field.values)))
  elseif field.type == "strings" then
    add((",\n     .count = %d, .count_offset = offsetof(cairn_config, %s_count)")
        :format(field.count, path_of(field, group)))
  end
  if field.empty then add ", .empty = true" end
end

local function c_row(field, group, parent, add)
  local path = path_of(field, group)
  add(('    {.path = "%s", .kind = CFG_%s, .parent = %d, .hot = %s,\n'):format(
      path, field.type:upper(), parent, is_hot(field, group)))
  add(("     .offset = offsetof(cairn_config, %s), .bytes = %s"):format(path,
      field.type == "layers" and "CAIRN_MAX_LAYERS / 8"
      or field.type == "group" and ("sizeof(%s)"):format(field.struct)
      or field.type == "strings" and tostring(field.bytes)
      or tostring(field_bytes(field))))
  c_limits(field, group, add)
  if field.unit then add((',\n     .unit = "%s"'):format(field.unit)) end
  add "},\n"
end

local function c_default(field, group)
  local path, value = "c->" .. path_of(field, group), field.default
  if field.type == "enum" then
    return ("    %s = %s;\n"):format(path, constant(enums[field.enum], value))
  elseif field.type == "float" then
    return ("    %s = %.9gf;\n"):format(path, value):gsub("= (%-?%d+)f", "= %1.0f")
  elseif field.type == "layers" then
    return ("    memset(%s, 0xff, sizeof %s);\n"):format(path, path)
  elseif field.type == "string" or field.type == "choice" then
    return value ~= "" and ('    memcpy(%s, "%s", sizeof "%s");\n'):format(path, value, value) or ""
  elseif field.type == "group" or field.type == "strings" then
    return ""
  end
  return ("    %s = %s;\n"):format(path, tostring(value))
end

local function tables()
  local out = {}
  local function add(text) out[#out + 1] = text end
  add "/* generated by gen/config.lua from gen/schema.lua; do not edit */\n\n"
  c_rows_of_values(add)
  add "\n/* A group stands before its fields, whose `parent` is its row. */\n"
  add "static const config_field config_fields[] = {\n"
  local row, parent = 0, -1
  each_field(function(field, group)
    c_row(field, group, group and parent or -1, add)
    if field.type == "group" then parent = row end
    row = row + 1
  end)
  add "};\n\n/* Bytes that must be zero. */\nstatic const config_span config_reserved[] = {\n"
  for _, field in ipairs(schema.fields) do
    if field.fields then
      add(("    {offsetof(cairn_config, %s.reserved), sizeof(((cairn_config *)0)->%s.reserved)},\n")
        :format(field.name, field.name))
    end
  end
  add "};\n\n"
  for _, field in ipairs(schema.fields) do
    if field.fields then
      add(("typedef char config_%s_has_its_size[sizeof(%s) == %d ? 1 : -1];\n")
        :format(field.name, field.struct, field.bytes))
    end
  end
  add "\nstatic void config_set_defaults(cairn_config *c) {\n    memset(c, 0, sizeof *c);\n"
  add "    c->struct_size = (uint32_t)sizeof *c;\n"
  each_field(function(field, group) add((c_default(field, group))) end)
  add "}\n\n/* What the host program handed over stays as it was at open. */\n"
  add "BASE_UNUSED static void config_keep_host(cairn_config *c, const cairn_config *opened) {\n"
  for _, host in ipairs(schema.host) do
    add(host[1]:find "%["
        and ("    memcpy(c->%s, opened->%s, sizeof c->%s);\n"):format(host[2], host[2], host[2])
        or ("    c->%s = opened->%s;\n"):format(host[2], host[2]))
  end
  add "}\n"
  return table.concat(out)
end

-- ---- README.md ---------------------------------------------------------------------------------

local function readme()
  local lines = { "| key | default | values | unit | changes | meaning |",
                  "|---|---|---|---|---|---|" }
  each_field(function(field, group)
    local values = range(field):gsub("|", "\\|")
    lines[#lines + 1] = ("| `%s` | %s | %s | %s | %s | %s |"):format(
        path_of(field, group), field.type == "group" and "" or "`" .. lua_default(field) .. "`",
        values, field.unit or "", is_hot(field, group) and "between steps" or "at open", field.doc)
  end)
  lines[#lines + 1] = [[

A field that changes `between steps` takes effect in a running program by `cairn_reload` (or
`rt:reload`, or saving the file under `cairn generate --watch`); the others need a new runtime. A
config is a Lua program that returns a table: it may compute, but it sees only the functions of
`math`, most of `string`, and `assert error ipairs next pairs print select tonumber tostring type`,
and runs with limits on instructions and memory. `cairn check CONFIG.lua` shows every mistake, or the
config as it is understood. For completion in an editor with the Lua language server, copy
`scripts/editor/` beside your configs and put `---@type cairn.Config` above `return {`.]]
  return table.concat(lines, "\n") .. "\n"
end

-- ---- scripts/editor ----------------------------------------------------------------------------

local lua_types = { int = "integer", int64 = "integer", float = "number", bool = "boolean",
                    string = "string", strings = "string[]", layers = '"all"|"none"|integer[]' }

local function lua_type(field)
  if field.type == "group" then return field.struct:gsub("^cairn_", "cairn.") end
  if field.type == "enum" or field.values or field.allowed then
    return value_names(field, '"', "|")
  end
  return lua_types[field.type]
end

local function annotations()
  local out = { [[
---@meta cairn.config
-- generated by gen/config.lua from gen/schema.lua; do not edit
-- For the Lua language server: put `---@type cairn.Config` above a config's `return {`, and keys
-- and values complete and mistakes show while you type. `.luarc.json` beside this file says where
-- it lies.
error "annotations for the editor, not a module"
]] }
  local function class(name, list, doc)
    out[#out + 1] = ("\n---%s\n---@class %s\n"):format(doc, name)
    for _, field in ipairs(list) do
      local note = field.type == "group" and "" or ("; %s; default %s"):format(range(field),
                                                                             lua_default(field))
      out[#out + 1] = ("---@field %s? %s %s%s\n")
        :format(field.name, lua_type(field), field.doc, note)
    end
  end
  for _, field in ipairs(schema.fields) do
    if field.fields then class(lua_type(field), field.fields, field.doc) end
  end
  class("cairn.Config", schema.fields,
        "A config file returns one of these; every field is optional.")
  return table.concat(out)
end

local luarc = [[
{
  "runtime.version": "Lua 5.4",
  "runtime.builtin": {
    "io": "disable", "os": "disable", "package": "disable", "debug": "disable",
    "coroutine": "disable", "table": "disable", "utf8": "disable"
  },
  "workspace.library": ["."]
}
]]

-- ---- tests/config/config.dict ------------------------------------------------------------------

-- libFuzzer's format, one token a line.
local function dictionary()
  local out, seen = { "# generated by gen/config.lua from gen/schema.lua; do not edit\n" }, {}
  local function add(token)
    if seen[token] then return end
    seen[token] = true
    out[#out + 1] = '"' .. token:gsub('[\\"]', "\\%0") .. '"\n'
  end
  each_field(function(field)
    add(field.name)
    for _, value in ipairs(field.enum and enums[field.enum].values or {}) do
      add('"' .. value[1] .. '"')
    end
    for _, value in ipairs(field.allowed or {}) do add(tostring(value)) end
    for _, bound in ipairs { "min", "max", "above" } do
      if field[bound] then add(number(field[bound])) end
    end
  end)
  for token in ([==[return { } = , ; [ ] [[ ]] [=[ ]=] --[[ -- " ' -1 0x10 1e999 0/0 nil true false
                    .. # ( ) function end local do if then else for in while repeat until goto ::
                    string table math utf8 print select next pairs load]==]):gmatch "%S+" do
    add(token)
  end
  return table.concat(out)
end

-- ---- tests/config/config_cases.h ---------------------------------------------------------------

-- Calls case(value as Lua, true or false: whether it is allowed) at, below and above every bound.
local cases_of = {}

function cases_of.int(field, case)
  local low, high = field.min or field.allowed[1], field.max or field.allowed[#field.allowed]
  for _, value in ipairs(field.allowed or { low, high }) do case(tostring(value), true) end
  case(("%d.0"):format(low), true)
  case(("%d"):format(low - 1), false)
  case(high == math.maxinteger and "2^63" or ("%d"):format(high + 1), false)
  if field.allowed or field.multiple then case(("%d"):format(low + 1), false) end
  for _, wrong in ipairs { low .. ".5", "0/0", "1/0", "-1e300", "true", "{}", '"' .. low .. '"' } do
    case(wrong, false)
  end
end
cases_of.int64 = cases_of.int

function cases_of.float(field, case)
  case(field.above and "1e-6" or number(field.min), true)
  case(number(field.max), true)
  case(number(field.max // 1), true)
  if field.above then case(number(field.above), false) end
  for _, wrong in ipairs { "-1e-6", number(field.max + 0.001), "0/0", "1/0", "-1/0", "false",
                           '"1"' } do
    case(wrong, false)
  end
end

function cases_of.bool(_, case)
  case("true", true)
  case("false", true)
  for _, wrong in ipairs { "0", "1", '"true"', "{}" } do case(wrong, false) end
end

function cases_of.enum(field, case)
  for _, value in ipairs(enums[field.enum].values) do case('"' .. value[1] .. '"', true) end
  for _, wrong in ipairs { '""', '"nothing"', '"x\\0"', "1", "true", "{}" } do
    case(wrong, false)
  end
end

function cases_of.choice(field, case)
  for _, value in ipairs(field.values) do case('"' .. value .. '"', true) end
  for _, wrong in ipairs { '""', '"nothing"', '"x\\0"', "1", "true", "{}" } do
    case(wrong, false)
  end
end

function cases_of.string(field, case)
  case('"x"', true)
  case('"' .. ("x"):rep(field.bytes - 1) .. '"', true)
  case('"' .. ("x"):rep(field.bytes) .. '"', false)
  case('""', field.empty == true)
  for _, wrong in ipairs { '"a\\0b"', "1", "true", "{}" } do case(wrong, false) end
end

function cases_of.strings(field, case)
  local full = '"' .. ("x"):rep(field.bytes - 1) .. '",'
  for _, right in ipairs { "{}", '{ "a" }', '{ "a", [2] = "b" }',
                           "{" .. full:rep(field.count) .. "}" } do
    case(right, true)
  end
  case('{ "" }', field.empty == true)
  for _, wrong in ipairs { "{" .. full:rep(field.count + 1) .. "}", '"a"', "{ 1 }",
                           '{ x = "a" }', '{ [0] = "a" }', '{ "a", nil, "b" }', "{ {} }",
                           '{ "' .. ("x"):rep(field.bytes) .. '" }' } do
    case(wrong, false)
  end
end

function cases_of.layers(_, case)
  local last = schema.max_layers - 1
  for _, right in ipairs { '"all"', '"none"', "{}", "{ 0, 0, 1.0 }", "{ " .. last .. " }" } do
    case(right, true)
  end
  for _, wrong in ipairs { '"some"', '""', "3", "{ -1 }", "{ " .. last + 1 .. " }", "{ 1.5 }",
                           '{ "1" }', "{ x = 1 }", "{ 0/0 }" } do
    case(wrong, false)
  end
end

function cases_of.group(_, case)
  case("{}", true)
  for _, wrong in ipairs { "1", '"x"', "true" } do case(wrong, false) end
end

-- What must stand beside a field for its bounds to be right.
local beside = { ["shape.heads"] = ", kv_heads = 1", ["shape.kv_heads"] = ", heads = 1024",
                 ["budget.force"] = ', replace = { "x" }', ["budget.suppress"] = ', replace = { "x" }' }

local function cases()
  local out = { [[
/* generated by gen/config.lua from gen/schema.lua; do not edit */

/* Every field at, below and above its bounds, on line 3 of a file. */
static const struct { const char *path, *text; bool allowed; } config_cases[] = {
]] }
  each_field(function(field, group)
    local path = path_of(field, group)
    cases_of[field.type](field, function(value, allowed)
      local text = group and ("%s = {\n\n%s = %s%s }"):format(group.name, field.name, value,
                                                              beside[path] or "")
                   or ("\n\n%s = %s"):format(field.name, value)
      text = ("return { %s }"):format(text):gsub('[\\"]', "\\%0"):gsub("\n", "\\n")
      out[#out + 1] = ('    {"%s", "%s", %s},\n'):format(path, text, allowed)
    end)
  end)
  out[#out + 1] = "};\n"
  return table.concat(out)
end

return function(out)
  out.region("runtime.h", "config", header())
  out.file("runtime/generated/config.h", tables())
  out.region("README.md", "config", readme())
  out.file("scripts/editor/cairn_config.lua", annotations())
  out.file("scripts/editor/.luarc.json", luarc)
  out.file("tests/config/config.dict", dictionary())
  out.file("tests/config/config_cases.h", cases())
end

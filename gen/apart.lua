-- The runtime in parts that are compiled once for many tests, which are written as one unit with it:
--
--   cc FLAGS -E -dD runtime.c | lua5.4 gen/apart.lua FOLDER
--
-- writes FOLDER/runtime.c, which declares all that the unit declares and defines nothing, and for
-- each room FOLDER/ROOM.c with its functions and variables, no longer static. A test that includes
-- "runtime.c" with -IFOLDER before -I. is linked with the rooms' objects. Files whose text stays
-- are not written, so that their time says what is stale. It prints the rooms.
--
-- With the folder BASE of another cut, made without a test's own -D flags, behind FOLDER it prints only the
-- rooms that are others with these: whose text is another, or that name what is declared otherwise.

local folder = assert(arg[1], "usage: apart.lua FOLDER < PREPROCESSED")
local base = arg[2]
local declared = {}             -- text of FOLDER/runtime.c
local names = {}                -- its index -> the one name that it declares
local parts, order = {}, {}     -- room -> its text; rooms
local known = {}                -- names that were declared
local file, line_number = "runtime.c", 1

local function fail(format, ...)
  io.stderr:write("apart.lua: ", file, ":", line_number, ": ", format:format(...), "\n")
  os.exit(1)
end

-- ---- writing ------------------------------------------------------------------------------------

local function room_of(path)
  return ((path:match "^runtime/(.+)/[^/]+$" or "first"):gsub("^.*%.%./", ""):gsub("/", "_"))
end

local function define(text, from)
  local room = room_of(from.file)
  if not parts[room] then
    parts[room] = { '#include "runtime.c"\n' }
    order[#order + 1] = room
  end
  table.insert(parts[room], ('#line %d "%s"\n%s\n'):format(from.line, from.file, text))
end

local function declare(text, name)
  declared[#declared + 1] = text:gsub("#line [^\n]*\n", "") .. "\n"
  names[#declared] = name
end

local read = dofile "gen/read.lua"

local function write(path, text)
  local old = io.open(path, "rb")
  local same = old and old:read "a" == text
  if old then old:close() end
  if same then return end
  local out = assert(io.open(path, "wb"))
  out:write(text)
  out:close()
end

-- ---- one declaration ----------------------------------------------------------------------------

local keywords = { void = true, int = true, float = true, double = true, char = true }

-- The text without storage and attributes' arguments, to find names in.
local function plain(text) return (text:gsub("__attribute__%s*%b()", " "):gsub("#line [^\n]*", " ")) end

local function without_storage(text)
  return (text:gsub("^%s*", ""):gsub("%f[%w_]static%f[^%w_]%s*", "", 1)
    :gsub("^(.-)%f[%w_]inline%f[^%w_]%s*", "%1", 1))
end

local function function_name(head)
  local name = head:match "([%a_][%w_]*)%s*%("
  if keywords[name] or not name then name = head:match "%(%s*%*%s*([%a_][%w_]*)%s*%(" end
  return name
end

local function declare_once(name, text)
  if known[name] then return end
  known[name] = true
  declare(text, name)
end

local function put_function(head, body, from)
  if plain(head) ~= head and head:find "always_inline" then return declare(head .. body) end
  local name = function_name(plain(head))
  if not name then fail("no name in %q", head) end
  head = without_storage(head)
  -- An attribute behind the parameters may stand at a declaration only.
  declare_once(name, head .. ";")
  define(head .. body, from)
end

-- Where the text has a character of the set outside all brackets and strings.
local function outside(text, wanted)
  local depth, at = 0, 1
  while true do
    local i, _, c = text:find("([%(%){}%[%]\"'" .. wanted .. "])", at)
    if not i then return nil end
    if c == '"' or c == "'" then
      local j = i + 1
      while text:sub(j, j) ~= c do j = text:sub(j, j) == "\\" and j + 2 or j + 1 end
      i = j
    elseif depth == 0 and wanted:find(c, 1, true) then return i
    elseif c:find "[%({%[]" then depth = depth + 1
    elseif c:find "[%)}%]]" then depth = depth - 1 end
    at = i + 1
  end
end

-- A type of its own before the variables gets a name, known as the first one's.
local function name_type(text)
  local before, fields, after = text:match "^([^{=]-)(%b{})(.*)$"
  if not fields then return text end
  local name = plain(after):match "([%a_][%w_]*)"
  declare("typedef " .. before .. fields .. " apart_" .. name .. ";")
  return "apart_" .. name .. " " .. after
end

local function variable_name(head)
  head = plain(head)
  return head:match "([%a_][%w_]*)%s*$" or head:match "([%a_][%w_]*)%s*%["
    or head:match "%(%s*%*%s*const%s+([%a_][%w_]*)" or head:match "%(%s*%*%s*([%a_][%w_]*)"
    or fail("no name in %q", head)
end

local function put_one(text, from)
  local equal = outside(text, "=")
  local head, init = text:sub(1, (equal or #text + 1) - 1), equal and text:sub(equal + 1)
  local name, shown = variable_name(head), head
  local type, rest = head:match "^(.-)[%a_][%w_]*%s*%[%s*%](.*)$"
  if type and not from.file:find "generated/kernels" then -- the size of what it is set to
    if not init:find "^%s*{" then init = "{" .. init .. "}" end
    shown = ("%s %s[sizeof((%s[]%s)%s) / sizeof(%s%s)]%s"):format(type, name, type, rest, init, type,
      rest, rest)
  end
  declare_once(name, "extern " .. shown .. ";")
  define(text .. ";", from)
end

local function put_variable(text, from)
  text = name_type(without_storage(text:sub(1, -2)))
  local comma = outside(text, ",")
  if not comma then return put_one(text, from) end
  local first = text:sub(1, comma - 1)
  local type = first:sub(1, (outside(first, "=") or #first + 1) - 1)
  type = type:gsub("%b[]", ""):match "^(.-)[%*%s]*[%a_][%w_]*%s*$"
  while comma do
    put_one(text:sub(1, comma - 1), from)
    text = type .. " " .. text:sub(comma + 1)
    comma = outside(text, ",")
  end
  put_one(text, from)
end

local function put(text, is_function_body, from)
  local bare = plain(text)
  if is_function_body then
    return put_function(text:sub(1, is_function_body - 1), text:sub(is_function_body), from)
  end
  local static = bare:find "^%s*static%f[^%w_]" or bare:find "^[^%({=]*%f[%w_]static%f[^%w_]"
  if not static then return declare(text) end
  local bracket, equal = bare:find "%(", outside(bare, "=")
  local prototype = bracket and not equal and not bare:find "^[^%(]*%(%s*%*%s*[%w_ ]+%)%s*%("
  if prototype and text:find "always_inline" then return declare(text) end
  if not prototype then return put_variable(text, from) end
  declare_once(function_name(bare), without_storage(text))
end

-- ---- the text, declaration by declaration -------------------------------------------------------

local system = false            -- within a header of the system's: it is included instead
local chunk, depth, body, from = {}, 0, nil, nil
local length, last = 0, nil     -- of the chunk so far; its last sign that is no space
local assigned = false

local function finish()
  local text = table.concat(chunk)
  if text:find "%S" then put(text, body, from) end
  chunk, body, from, length, last, assigned = {}, nil, nil, 0, nil, false
end

local function add(text)
  if not from then
    if not text:find "%S" then return end
    from = { file = file, line = line_number }
  end
  chunk[#chunk + 1] = text
  length = length + #text
  if not text:find "^#line" then last = text:match "(%S)%s*$" or last end
end

local function scan(line)
  local start, at = 1, 1
  while true do
    local i, _, c = line:find("([%(%){}%[%]\"';=])", at)
    if not i then break end
    if c == '"' or c == "'" then
      local j = i + 1
      while true do
        j = line:find("[\\" .. c .. "]", j)
        if not j then fail("a string without end") end
        if line:sub(j, j) == c then break end
        j = j + 2
      end
      i = j
    elseif c == "{" then
      if depth == 0 and not assigned then
        local before = line:sub(start, i - 1):match "(%S)%s*$" or last
        if before == ")" then body = length + i - start + 1 end
      end
      depth = depth + 1
    elseif c == "(" or c == "[" then depth = depth + 1
    elseif c == ")" or c == "]" or c == "}" then depth = depth - 1
    elseif c == "=" and depth == 0 then assigned = true end
    if depth == 0 and (c == ";" or c == "}" and body) then
      add(line:sub(start, i))
      finish()
      start = i + 1
    end
    at = i + 1
  end
  add(line:sub(start) .. "\n")
end

local function include(path)
  local name = path:match "^.*/include/(.+)$" or path:match "^.*/include%-fixed/(.+)$" or path
  name = name:gsub("^[%w_]+%-linux%-[%w]+/", "")
  declare(("#include <%s>"):format(name))
end

for line in io.lines() do
  local number, path = line:match '^# (%d+) "([^"]*)"'
  if number then
    local outer = system
    system = path:sub(1, 1) == "/" or path:sub(1, 1) == "<"
    if system and not outer and path:find "%.h$" then include(path) end
    file, line_number = path, tonumber(number)
    if not system and from then add(('#line %d "%s"\n'):format(number, path)) end
  else
    if not system then
      if line:find "^#%s*define" or line:find "^#%s*undef" then
        declare(line)
        if from then add "\n" end -- what follows stays on its line
      elseif not line:find "^#" then scan(line) end
    end
    line_number = line_number + 1
  end
end
if from then fail("a declaration without end") end

-- ---- what another cut shares --------------------------------------------------------------------

local common = {}               -- words that say nothing of what is declared
for word in ([[void int float double char unsigned signed short long const volatile static extern inline
  struct union enum typedef sizeof return if else for while do switch case default break continue
  __attribute__ always_inline unused format printf _Bool bool]]):gmatch "%S+" do common[word] = true end

-- Adds what a declaration declares, or may.
local function add_names(changed, i)
  local before = false
  local function put_word(word)
    if not common[word] and not changed[word] then changed[word], before = true, true end
  end
  if names[i] then put_word(names[i])
  else for word in declared[i]:gmatch "[%a_][%w_]*" do put_word(word) end end
  return before
end

local function mentions(text, changed)
  for word in text:gmatch "[%a_][%w_]*" do
    if changed[word] then return true end
  end
end

-- The names that are declared otherwise than in the base, and those that are declared by means of them.
local function changed_names()
  local changed, more, there = {}, false, assert(read(base .. "/runtime.c"))
  for i, text in ipairs(declared) do
    if not text:find "^%s*#" and not there:find(text, 1, true) then add_names(changed, i) end
  end
  repeat
    more = false
    for i, text in ipairs(declared) do
      if not text:find "^%s*#" and mentions(text, changed) and add_names(changed, i) then more = true end
    end
  until not more
  return changed
end

local function own_rooms()
  local own, changed = {}, changed_names()
  for _, room in ipairs(order) do
    local text = table.concat(parts[room])
    if text ~= assert(read(base .. "/" .. room .. ".c")) or mentions(text, changed) then own[#own + 1] = room end
  end
  return own
end

write(folder .. "/runtime.c", table.concat(declared))
for room, text in pairs(parts) do write(folder .. "/" .. room .. ".c", table.concat(text)) end
io.write(table.concat(base and own_rooms() or order, "\n"), "\n")

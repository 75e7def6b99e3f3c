-- Keeps the contracts of rooms honest: `lua5.4 gen/rooms.lua` names what breaks them and exits 1.
--
-- A room is a folder below runtime/ that holds C files; its contract is the header that bears the
-- folder's name, with a header beside a file (device/tensor.h) where one page does not hold it all.
-- Everything else in the folder belongs to the room alone. So:
--   * functions carry the room's or the file's name as prefix (lua's: bind_, as lua_ is Lua's own;
--     a room within ops may put ops_ in front; a file NAME_part.c goes on where NAME.c ends, and
--     may have its prefix);
--   * a function, type, macro or variable that another room uses stands in a header, a function
--     as a prototype below a comment that says what is promised;
--   * no prototype stands elsewhere, but a file's own at its top where functions call each other;
--   * the header declares nothing that no other room uses;
--   * the backend is asked about in device/ and by the launcher of ops/ alone.

local asks_backend = { device = true, ops = true, driver = true --[[ its library ]] }
local longest = 150 -- lines of a header; 80 read well
local prefixes = { lua = "bind" }

local read = dofile "gen/read.lua"

local function room_of(path) return path:match "^runtime/(.+)/[^/]+$" end
local function name_of(room) return room:match "[^/]+$" end
local function header_of(room) return ("runtime/%s/%s.h"):format(room, name_of(room)) end

-- The text without comments, strings and preprocessor lines' continuations; lines stay lines.
local function bare(text)
  local function lines_of(part) return (part:gsub("[^\n]", "")) end
  text = text:gsub("/%*.-%*/", lines_of):gsub('"[^"\n]*"', '""'):gsub("//[^\n]*", "")
  return (text:gsub("\\\n", " \n"))
end

-- calls f(name, "body" or "prototype", line) for each function at the left margin.
local function each_function(text, f)
  local line, at = 1, 1
  for start, head, stop in ("\n" .. text):gmatch "\n()([%a][%w_ %*%(%),\n]-%b()[^;{=]*)()[;{]" do
    local name = head:match "([%a_][%w_]*)%s*%b()%s*$"
    line = line + select(2, text:sub(at, start - 1):gsub("\n", ""))
    at = start
    local static = head:find "%f[%w]static%f[%W]" or head:find "^BASE_INLINE"
    if name and static and not head:find "^typedef" then
      f(name, text:sub(stop - 1, stop - 1) == "{" and "body" or "prototype", line)
    end
  end
end

local found = 0
local function complain(path, line, format, ...)
  found = found + 1
  print(("%s:%d: "):format(path, line) .. format:format(...))
end

-- ---- what there is ------------------------------------------------------------------------------

local files, rooms = {}, {}   -- paths in order of inclusion; room -> true
local words = {}              -- path -> set of its identifiers
local source, code = {}, {}   -- path -> text, and without comments

local function add(path)
  files[#files + 1] = path
  source[path] = assert(read(path))
  code[path] = bare(source[path])
  rooms[room_of(path)] = true
  words[path] = {}
  for word in code[path]:gmatch "[%a_][%w_]*" do words[path][word] = true end
  for inner in source[path]:gmatch '\n#include "(simd/[^"]+)"' do
    if not source["runtime/numbers/" .. inner] then add("runtime/numbers/" .. inner) end
  end
end

for path in assert(read "runtime.c"):gmatch '\n#include "(runtime/[^"]+)"' do
  if not path:find "generated/" then add(path) end
end
add "runtime/program/program.c"

local function is_header(path) return path:find "%.h$" and not path:find "/simd/" end
local function same_room(a, b) return a == b or a:gsub("/simd$", "") == b:gsub("/simd$", "") end

-- A room, other than `room`, whose files hold the word.
local function user_of(word, room)
  for _, path in ipairs(files) do
    local other = room_of(path)
    if words[path][word] and not same_room(other, room) then return other end
  end
end

-- Whether anyone needs the word of this header: another room, or, of a file's own, another file.
local function is_needed(word, header)
  local stem = header:gsub("%.h$", "")
  if user_of(word, room_of(header)) then return true end
  if stem:match "[^/]+$" == name_of(room_of(header)) then return false end
  for _, path in ipairs(files) do
    if words[path][word] and path:gsub("%.%w+$", "") ~= stem then return true end
  end
end

-- ---- the rules ----------------------------------------------------------------------------------

local function has_prefix(name, prefix) return name:sub(1, #prefix + 1) == prefix .. "_" end

-- Those of simd/ are named by their level instead.
local function check_prefix(path, name, line)
  if path:find "/simd/" then return end
  local room = name_of(room_of(path))
  local file = path:match "([^/]+)%.%w+$"
  local mine = prefixes[room] or room
  if room_of(path):find "^ops/" then name = name:gsub("^ops_", "") end
  local whole = file:match "^(.-)_"
  if whole and not source[path:gsub("[^/]+$", whole .. ".c")] then whole = nil end
  if not (has_prefix(name, mine) or has_prefix(name, file) or whole and has_prefix(name, whole)) then
    complain(path, line, "%s: functions of this file begin with %s_ or %s_", name, mine, file)
  end
end

-- Whether a comment stands above the prototype's paragraph, or beside it.
local function is_explained(text, line)
  local lines, n = {}, 0
  for each in (text .. "\n"):gmatch "([^\n]*)\n" do n = n + 1; lines[n] = each end
  for at = line, 1, -1 do
    if lines[at]:find "%*/" then return true end
    if lines[at] == "" then return false end
  end
end

-- Names at the left margin that are not functions: types, macros, variables.
local function each_name(text, f)
  for name in text:gmatch "\n#define ([%a_][%w_]*)" do f(name) end
  for name in text:gmatch "\n} ([%a_][%w_]*);" do f(name) end
  for line in text:gmatch "\ntypedef ([^\n]*);" do
    f(line:match "%(%*([%a_][%w_]*)%)%(" or line:match "([%a_][%w_]*)[%[%]%w_]*$")
  end
  for line in text:gmatch "\nstatic ([^\n=(]-) =" do f(line:match "([%a_][%w_]*)[%[%]%w_]*$") end
end

local function check_header(path, room)
  local text = source[path]
  if select(2, text:gsub("\n", "")) > longest then
    complain(path, 1, "longer than %d lines: give a file its own header", longest)
  end
  each_function(code[path], function(name, kind, line)
    if not is_needed(name, path) then complain(path, line, "%s: no other room uses it", name) end
    if kind == "prototype" and not is_explained(text, line) then
      complain(path, line, "%s: a comment says what is promised", name)
    end
  end)
end

-- What `path` defines and another room uses stands in a header of the room.
local function check_file(path, room, declared)
  local seen = {}
  local function check(name, line)
    local user = not declared[name] and not seen[name] and user_of(name, room)
    seen[name] = true
    if user then complain(path, line, "%s: %s uses it, no header declares it", name, user) end
  end
  each_function(code[path], function(name, kind, line)
    check_prefix(path, name, line)
    if kind == "prototype" and declared[name] then
      complain(path, line, "%s: declared twice", name)
    end
    check(name, line)
  end)
  each_name("\n" .. code[path], function(name) check(name, 1) end)
end

local function check_room(room)
  local declared, mine = {}, {}
  for _, path in ipairs(files) do
    if same_room(room_of(path), room) then mine[#mine + 1] = path end
  end
  if not source[header_of(room)] then complain(header_of(room), 1, "the room has no contract") end
  for _, path in ipairs(mine) do
    if is_header(path) then
      check_header(path, room)
      each_function(code[path], function(name) declared[name] = true end)
      for name in source[path]:gmatch "\n/%* static [%w_]+ ([%w_]+):" do declared[name] = true end
    end
  end
  for _, path in ipairs(mine) do
    if not is_header(path) then check_file(path, room, declared) end
  end
end

local in_order = {}
for room in pairs(rooms) do in_order[#in_order + 1] = room end
table.sort(in_order)
for _, room in ipairs(in_order) do
  if room ~= "program" and not room:find "/simd$" then check_room(room) end
end
for _, path in ipairs(files) do
  local room = room_of(path)
  local _, count = code[path]:gsub("%->cuda%f[%W]", "") -- an op's entry asks rt->device.cuda, once
  if count > 0 and not asks_backend[room] then
    complain(path, 1, "asks %d times which backend runs, which device/ knows", count)
  end
end
if found > 0 then print(("%d breaches of contract"):format(found)) end
os.exit(found == 0)

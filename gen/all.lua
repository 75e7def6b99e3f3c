-- Runs the generators: `lua5.4 gen/all.lua [check] [NAME...]` from the repository root.
-- Without `check` it writes what changed; with it, it names what is stale and exits 1.
--
-- A generator is gen/NAME.lua returning function(out); it calls
--   out.file(path, text)          a whole file
--   out.built(path, text)         the same, of a build output: not committed, so never stale
--   out.region(path, name, text)  the lines of a file between its marker lines
--                                 "generated from gen/NAME.lua: begin name", "generated: end name"
-- and may read with out.read(path) and out.list(folder, lua_pattern), or with out.tree,
-- which goes into folders.

local generators = {
  "driver",  -- the driver's and NVRTC's functions -> runtime/generated/driver.h
  "embed",   -- kernels_src -> runtime/generated/kernels.h
  "config",  -- gen/schema.lua -> runtime.h, runtime/generated, README.md, scripts/editor, tests
  "scripts", -- scripts/cli and scripts/bench -> runtime/generated/scripts.h
  "readme",  -- README.md: troubleshooting by status name
  "unicode", -- gen/unicode/classes.txt -> runtime/generated/unicode.h: character classes
}

local read = dofile "gen/read.lua"

local function write(path, text)
  local file = assert(io.open(path, "wb"))
  assert(file:write(text))
  assert(file:close())
end

-- Sorted names in a folder that match.
local function list(folder, pattern)
  local names = {}
  local pipe = assert(io.popen("ls '" .. folder .. "' 2>/dev/null"))
  for name in pipe:lines() do
    if name:find(pattern) then names[#names + 1] = name end
  end
  pipe:close()
  table.sort(names)
  return names
end

-- Sorted paths below a folder that match, without the folder's name.
local function tree(folder, pattern)
  local paths = {}
  local pipe = assert(io.popen("cd '" .. folder .. "' && find . -type f"))
  for path in pipe:lines() do
    path = path:sub(3)
    if path:find(pattern) then paths[#paths + 1] = path end
  end
  pipe:close()
  table.sort(paths)
  return paths
end

-- The text of `path` with the lines between the markers of `name` replaced.
local function with_region(path, whole, name, text)
  local first = whole:match("[^\n]*generated from [^\n]*: begin " .. name .. "[^\n%w_][^\n]*\n")
  local last = whole:match("[^\n]*generated: end " .. name .. "[^\n%w_][^\n]*\n")
  assert(first and last, path .. ": the marker lines of region " .. name .. " are missing")
  local a = select(2, whole:find(first, 1, true))
  local b = whole:find(last, a, true)
  return whole:sub(1, a) .. text .. (text:sub(-1) == "\n" and "" or "\n") .. whole:sub(b)
end

local function is_wanted(name, wanted)
  return #wanted == 0 or table.concat(wanted, " "):find(name, 1, true) ~= nil
end

local files, order = {}, {} -- path -> new text, paths in order
local outputs = {}          -- paths of build outputs

local function put(path, text)
  if not files[path] then order[#order + 1] = path end
  files[path] = text
end

local out = {
  list = list,
  tree = tree,
  read = function(path) return files[path] or read(path) end,
  file = put,
  built = function(path, text)
    outputs[path] = true
    put(path, text)
  end,
  region = function(path, name, text)
    put(path, with_region(path, files[path] or assert(read(path), path), name, text))
  end,
}

local wanted = { table.unpack(arg) }
local check = wanted[1] == "check" or wanted[1] == "--check"
if check then table.remove(wanted, 1) end

for _, name in ipairs(generators) do
  if is_wanted(name, wanted) then dofile("gen/" .. name .. ".lua")(out) end
end

local stale = 0
for _, path in ipairs(order) do
  if read(path) ~= files[path] and not (check and outputs[path]) then
    stale = stale + 1
    print((check and "stale: " or "wrote: ") .. path)
    if not check then write(path, files[path]) end
  end
end
os.exit(not check or stale == 0)

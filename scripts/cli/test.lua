-- cairn test: runs *_test.lua files and prints TAP. A file calls test(name, function) with the
-- globals check and skip at hand; a test that makes no check has failed.
local common = require "cli.common"
local host = require "host"

-- ---- check --------------------------------------------------------------------------------------

local checks = 0 -- made by the running test

local function show(value, depth)
  if type(value) == "string" then return ("%q"):format(value) end
  if type(value) ~= "table" or (depth or 0) > 3 then return tostring(value) end
  local parts = {}
  for i, v in ipairs(value) do
    if i > 32 then parts[#parts + 1] = "..." break end
    parts[i] = show(v, (depth or 0) + 1)
  end
  for k, v in pairs(value) do
    if math.type(k) ~= "integer" then
      parts[#parts + 1] = tostring(k) .. " = " .. show(v, (depth or 0) + 1)
    end
  end
  return "{" .. table.concat(parts, ", ") .. "}"
end

-- nil when equal, else the path to the first difference.
local function difference(a, b, same, path)
  if type(a) ~= "table" or type(b) ~= "table" then
    return not same(a, b) and { path = path, got = a, want = b } or nil
  end
  for k, v in pairs(b) do
    local d = difference(a[k], v, same, path .. "[" .. tostring(k) .. "]")
    if d then return d end
  end
  for k, v in pairs(a) do
    if b[k] == nil then return { path = path .. "[" .. tostring(k) .. "]", got = v } end
  end
end

local function fail(fields) error(fields, 0) end

local function where()
  for level = 3, 20 do
    local info = debug.getinfo(level, "Sl")
    if not info then return nil end
    if info.short_src:find "_test%.lua" then
      return info.short_src .. ":" .. info.currentline
    end
  end
end

local function compare(got, want, same, extra)
  checks = checks + 1
  local d = difference(got, want, same, "")
  if d then
    fail { message = "values differ" .. (d.path ~= "" and " at " .. d.path or ""), at = where(),
      got = show(d.got), want = show(d.want), tolerance = extra }
  end
end

local function equal(a, b) return a == b or (a ~= a and b ~= b) end

check = {}

-- Deep equality; NaN equals NaN.
function check.equal(got, want) compare(got, want, equal) end

-- Numbers, or tables of them, at most `tolerance` apart.
function check.near(got, want, tolerance)
  compare(got, want, function(a, b)
    if type(a) ~= "number" or type(b) ~= "number" then return equal(a, b) end
    return equal(a, b) or math.abs(a - b) <= tolerance
  end, tolerance)
end

function check.ok(value, message)
  checks = checks + 1
  if not value then fail { message = message or "the condition is false", at = where() } end
end

-- f fails, and its message holds `text`. Gives the message.
function check.error(f, text)
  checks = checks + 1
  local done, err = pcall(f)
  if done then fail { message = "no error; wanted one with " .. show(text), at = where() } end
  if not tostring(err):find(text, 1, true) then
    fail { message = "another error", at = where(), got = show(tostring(err)), want = show(text) }
  end
  return err
end

function skip(reason) error({ skip = reason or "" }, 0) end

-- ---- files and results --------------------------------------------------------------------------

-- Appends the *_test.lua files under `path`, sorted, to `found`. What `seen` names by its real path is
-- passed over: links may lead in circles.
local function find_tests(path, found, seen)
  local real, names = host.real(path) or path, host.list(path)
  if seen[real] then return end
  seen[real] = true
  if not names then
    if path:find "_test%.lua$" then found[#found + 1] = path end
    return
  end
  table.sort(names)
  for _, name in ipairs(names) do find_tests(path .. "/" .. name, found, seen) end
end

local passed, failed, skipped = 0, 0, 0

local function print_details(err)
  print "  ---"
  for _, key in ipairs { "message", "at", "got", "want", "tolerance" } do
    if err[key] then
      print(("  %s: %s"):format(key, (tostring(err[key]):gsub("\n", "\n    "))))
    end
  end
  print "  ..."
end

local function report(name, done, err)
  local number = passed + failed + skipped + 1
  name = common.shown(name)
  if done then
    passed = passed + 1
    print(("ok %d - %s"):format(number, name))
  elseif type(err) == "table" and err.skip then
    skipped = skipped + 1
    print(("ok %d - %s # SKIP %s"):format(number, name, err.skip))
  else
    failed = failed + 1
    print(("not ok %d - %s"):format(number, name))
    print_details(type(err) == "table" and err or { message = tostring(err) })
  end
  io.stdout:flush()
end

local function keep_stack(err)
  return type(err) == "table" and err or debug.traceback(tostring(err), 2)
end

local function run_test(name, body)
  checks = 0
  local done, err = xpcall(body, keep_stack)
  if done and checks == 0 then done, err = false, { message = "the test makes no check" } end
  report(name, done, err)
end

-- A script that ends the process would end the run without a word of what failed.
local function forbid_exit(title)
  local exits = 0
  function os.exit()
    exits = exits + 1
    error({ message = "os.exit was called: a test script must return", at = where() }, 0)
  end
  return function()
    if exits > 0 then
      report(title .. ": does not call os.exit", false, { message = exits .. " calls" })
    end
  end
end

local function run_file(path, filter)
  local title = path:match "([^/]+)_test%.lua$"
  local check_exits = forbid_exit(title)
  function test(name, body)
    name = title .. ": " .. name
    if not filter or name:find(filter, 1, true) then run_test(name, body) end
  end
  local chunk, err = loadfile(path)
  if not chunk then return report(title .. ": loads", false, err) end
  local done, problem = xpcall(chunk, keep_stack)
  if not done then report(title .. ": runs", false, problem) end
  check_exits()
  collectgarbage()
end

return {
  usage = "[PATH...] [--filter TEXT]",
  about = "run every *_test.lua under a path (tests) and print TAP",
  options = { { "--filter TEXT", "only tests whose \"file: name\" holds the text" } },
  positional = math.huge,
  run = function(o)
    local found = {}
    if #o == 0 then o[1] = "tests" end
    print "TAP version 13"
    local exit <close> = setmetatable({ call = os.exit }, { __close = function(self)
      os.exit = self.call
    end })
    for _, path in ipairs(o) do
      local before = #found
      find_tests(path, found, {})
      if #found == before then report(path .. " holds tests", false, "no *_test.lua there") end
    end
    for _, path in ipairs(found) do run_file(path, o.filter) end
    print(("1..%d"):format(passed + failed + skipped))
    print(("%d passed, %d failed, %d skipped"):format(passed, failed, skipped))
    return failed == 0 and passed + skipped > 0 and 0 or 1
  end,
}

-- Reports of gcov (`gcov -t -b -c`), one a test, put together: a line is reached if any test reaches
-- it. A table by room on standard output; what is open goes to build/cov/open.
--
--   lua gen/cov.lua REPORT...
--
-- tests/coverage.txt answers for what cannot be reached, `FILE: TEXT: why`: TEXT is a part of one line of
-- the file alone, or `BEFORE >> PART`, a part of the line before it and one of itself, or * for all of the
-- file; FILE a file or FOLDER/*. An answer that answers for nothing, or that could be another line's too, is
-- an error, so that the list stays true; but one "by chance", for lines that some runs reach, may be idle.
local lines, branches = {}, {} -- [file][number] = count; [file][number][index] = count

local function of(t, key)
  t[key] = t[key] or {}
  return t[key]
end

local function read_report(path)
  local file, number
  for line in io.lines(path) do
    local source = line:match "^ *%-: +0:Source:(.*)$"
    if source then file = source:gsub("^%./", "") end
    local count, at = line:match "^ *([^:]+): *(%d+):"
    if count and tonumber(at) > 0 then
      number = tonumber(at)
      if count ~= "-" then
        local n = tonumber((count:gsub("%*", ""))) or 0
        of(lines, file)[number] = (of(lines, file)[number] or 0) + n
      end
    end
    local index, taken = line:match "^branch +(%d+) (.*)$"
    if index then
      local b = of(of(branches, file), number)
      b[index] = (b[index] or 0) + (tonumber(taken:match "^taken (%d+)") or 0)
    end
  end
end

local function read_answers(path)
  local answers = {}
  for line in io.lines(path) do
    local file, text, why = line:match "^([^:#]+): (.-): (.+)$"
    if file then answers[#answers + 1] = { file = file, text = text, why = why, used = false } end
  end
  return answers
end

local function is_at(a, text, n)
  local before, part = a.text:match "^(.-) >> (.+)$"
  return a.text == "*" or text[n]:find(part or a.text, 1, true) and
    (not before or (text[n - 1] or ""):find(before, 1, true))
end

local function answered(answers, file, text, n)
  local folder = file:gsub("[^/]*$", "*")
  for _, a in ipairs(answers) do
    if (a.file == file or a.file == folder) and text[n] and is_at(a, text, n) then
      a.used = true
      return true
    end
  end
  return false
end

local function source_lines(file)
  local text, n = {}, 0
  for line in io.lines(file) do n = n + 1; text[n] = line end
  return text
end

-- How many lines an answer could be for.
local function places(a)
  local text, count = source_lines(a.file), 0
  for n in ipairs(text) do count = count + (is_at(a, text, n) and 1 or 0) end
  return count
end

-- The lines of what is always inlined, of which gcov counts nothing, wherever it is called.
local function inlined_lines(text)
  local lines, inside = {}, false
  for n, line in ipairs(text) do
    inside = inside or line:find "^BASE_INLINE" ~= nil and not line:find ";$"
    lines[n] = inside
    if line == "}" or inside and line:find "^BASE_INLINE.*}$" then inside = false end
  end
  return lines
end

-- A statement of several lines that calls with a choice among its arguments has counts of its later
-- lines alone. The end of a function that never returns is as good as the line before it.
local function reached(counts, text, n)
  if text[n] == "}" and (counts[n] or 0) == 0 then n = n - 1 end
  while (counts[n] or 0) == 0 do
    if not text[n] or text[n]:gsub("/%*.-%*/", ""):find "[;{}:]%s*$" then return false end
    n = n + 1
  end
  return true
end

for _, path in ipairs(arg) do read_report(path) end
local answers, rooms, names, open = read_answers "tests/coverage.txt", {}, {}, {}
for file, counts in pairs(lines) do
  local room = file:match "^runtime/(%w+)/"
  if room and room ~= "generated" then
    if not rooms[room] then names[#names + 1] = room end
    local r, text = of(rooms, room), source_lines(file)
    local inlined = inlined_lines(text)
    for n in pairs(counts) do
      local hit = reached(counts, text, n) or inlined[n]
      r.lines, r.hit = (r.lines or 0) + 1, (r.hit or 0) + (hit and 1 or 0)
      if not hit and answered(answers, file, text, n) then
        r.answered = (r.answered or 0) + 1
      elseif not hit then
        open[#open + 1] = { file = file, n = n, text = text[n] or "" }
      end
      for _, taken in pairs(branches[file] and branches[file][n] or {}) do
        r.ways, r.taken = (r.ways or 0) + 1, (r.taken or 0) + (taken > 0 and 1 or 0)
      end
    end
  end
end

table.sort(names)
table.sort(open, function(a, b) return a.file < b.file or a.file == b.file and a.n < b.n end)
local sum = { lines = 0, hit = 0, answered = 0, ways = 0, taken = 0 }
local function row(name, r)
  local n, ways = r.lines or 0, r.ways or 0
  print(("%-10s %7d %7.1f %% %9d %6d %9d %7.1f %%"):format(name, n, 100 * (r.hit or 0) / n,
    r.answered or 0, n - (r.hit or 0) - (r.answered or 0), ways, 100 * (r.taken or 0) / math.max(ways, 1)))
end
print "room         lines   reached  answered   open  branches    taken"
for _, name in ipairs(names) do
  row(name, rooms[name])
  for key in pairs(sum) do sum[key] = sum[key] + (rooms[name][key] or 0) end
end
row("all", sum)
local file = assert(io.open("build/cov/open", "w"))
for _, at in ipairs(open) do file:write(("%s:%d: %s\n"):format(at.file, at.n, at.text)) end
file:close()
local stale = 0
for _, a in ipairs(answers) do
  if a.text ~= "*" and places(a) > 1 then
    stale = stale + 1
    print(("tests/coverage.txt answers for several lines: %s: %s"):format(a.file, a.text))
  end
  if not a.used and lines[a.file] and not a.why:find "^by chance" then
    stale = stale + 1
    print(("tests/coverage.txt answers for nothing: %s: %s"):format(a.file, a.text))
  end
end
print(("%d lines are open: build/cov/open"):format(#open))
os.exit(stale == 0)

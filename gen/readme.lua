-- README.md: the troubleshooting table, from the status table of runtime.h.

-- The C strings of one X(...) row, adjacent pieces joined.
local function strings_of(row)
  local found = {}
  row = row:gsub('\\"', "\1"):gsub('"[%s\\]*"', "")
  for text in row:gmatch '"(.-)"' do
    found[#found + 1] = text:gsub("\1", '"')
  end
  return found
end

return function(out)
  local header = out.read "runtime.h"
  local lines = { "| status | what happened | what to do |", "|---|---|---|" }
  for name, row in header:gmatch "    X%(([A-Z0-9_]+), %d+,(.-)%)%s*\\?\n" do
    local text = strings_of(row)
    if name ~= "OK" then
      lines[#lines + 1] = ("| `CAIRN_%s` | %s | %s |"):format(name, text[1], text[2])
    end
  end
  assert(#lines > 28, "runtime.h: the status table was not understood")
  out.region("README.md", "troubleshooting", table.concat(lines, "\n"))
end

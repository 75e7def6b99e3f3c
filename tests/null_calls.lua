-- Writes a C program that makes every call of runtime.h and runtime_ops.h with NULL for each pointer and 0 for each
-- number, without a runtime and with one: each must give a status, none may crash, and a call with one says what
-- is wrong: cairn_last_error is no earlier call's.
local fine = { cairn_trace_start = true, cairn_trace_stop = true, cairn_sync = true, cairn_stream_set = true, cairn_stream_sync = true }

local function argument(text, runtime)
  if runtime and text:match "^cairn_runtime %*rt$" then return "rt" end
  if text:find "%*" or text:find "_callback " then return "NULL" end
  local enum = text:match "^(cairn_%w+) %w+$"
  return enum and ("(%s)0"):format(enum) or "0"
end

local function arguments(list, runtime)
  local given = {}
  if list == "void" then return "" end
  for text in (list .. ","):gmatch "%s*(.-)%s*," do given[#given + 1] = argument(text, runtime) end
  return table.concat(given, ", ")
end

local function calls(header, runtime)
  for kind, name, list in header:gmatch "CAIRN_API%s+([%w_%s%*]-)(cairn_[%w_]+)(%b())%s*;" do
    list = list:sub(2, -2):gsub("%s+", " ")
    local call = ("%s(%s)"):format(name, arguments(list, runtime))
    if name == "cairn_close" then
      -- at the end
    elseif kind:find "cairn_status%s*$" then
      local ok = name:find "_free$" or runtime and fine[name]
      local says = runtime and call:find "[(]rt[,)]" and not ok
      if says then print "    cairn_info(rt, NULL);" end
      print(('    told("%s", %s, %s, %s);'):format(name, call, ok and "true" or "false", says and "rt" or "NULL"))
    else
      print(("    (void)%s;"):format(call))
    end
  end
end

print [[
#include "runtime_ops.h"
#include <stdio.h>
#include <string.h>
static int wrong;
static void told(const char *name, cairn_status status, bool may_pass, const cairn_runtime *says) {
    if (status == CAIRN_OK && !may_pass) wrong++, printf("%s: OK\n", name);
    if (says && strcmp(name, "cairn_info") && strstr(cairn_last_error(says), "info: info is NULL"))
        wrong++, printf("%s: no message\n", name);
}
int main(void) {
    cairn_config config;
    cairn_runtime *rt;
    cairn_config_default(&config);
    config.backend = CAIRN_BACKEND_CPU;
    if (cairn_open(&config, &rt, NULL, 0)) return 2;]]
local header = io.open("runtime.h"):read "a" .. io.open("runtime_ops.h"):read "a"
header = header:gsub("/%*.-%*/", "")
calls(header, false)
calls(header, true)
print [[
    cairn_close(rt);
    cairn_close(NULL);
    return wrong != 0;
}]]

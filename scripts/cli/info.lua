-- cairn info
local cairn = require "cairn"
local common = require "cli.common"
local options = require "cli.options"

local function print_libraries(found)
  print "libraries, in the order they were tried:"
  for line in found.tried:gmatch "[^\n]+" do print("  " .. line) end
  print("driver: " .. (found.driver_error or "found"))
  print("NVRTC:  " .. (found.nvrtc_error or "found"))
  print(#found.devices == 0 and "no GPU" or "GPUs:")
  for i, d in ipairs(found.devices) do
    print(("  %d: %s, sm_%d, %s"):format(i - 1, d.name, d.arch, common.size(d.total_bytes)))
  end
end

local function print_runtime(info)
  print(("backend: %s on %s"):format(info.backend, info.device_name))
  if info.backend == "cuda" then
    print(("  sm_%d, %d multiprocessors, %s, L2 %s, %s shared memory a block"):format(info.arch,
      info.multiprocessors, common.size(info.total_bytes), common.size(info.l2_bytes),
      common.size(info.max_shared_bytes)))
  end
end

return {
  usage = "",
  about = "devices, libraries found, every path tried",
  options = options.with_common {},
  run = function(o)
    local found = cairn.libraries()
    local rt <close> = common.open(o, { log = "warn" })
    local info = rt:info()
    if o.json then
      local tried = common.json.array {}
      for line in found.tried:gmatch "[^\n]+" do tried[#tried + 1] = line end
      common.json.print { version = cairn.version, runtime = info, tried = tried,
        devices = common.json.array(found.devices),
        driver_error = found.driver_error or "", nvrtc_error = found.nvrtc_error or "" }
    else
      print("cairn " .. cairn.version)
      print_libraries(found)
      print_runtime(info)
    end
    return 0
  end,
}

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

-- ---- a model file --------------------------------------------------------------------------------

local backends = { "cpu", "cuda" }

local function print_model(path, report, checks)
  local function line(name, format, ...)
    print(("%-14s "):format(name) .. format:format(...))
  end
  line("file", "%s, %s", common.shown(path), common.size(report.file_bytes))
  line("model", "%s%s", report.architecture ~= "" and report.architecture or "unknown",
    report.name ~= "" and ", " .. report.name or "")
  line("shape", "%d layers of %d, %d heads over %d, context %d", report.layers, report.hidden,
    report.heads, report.kv_heads, report.context)
  line("weights", "%.1f million in %d tensors: %s", report.parameters / 1e6, report.tensors,
    report.types)
  line("tokenizer", "%s %s, %d tokens", report.tokenizer, report.pre_tokenizer, report.vocab)
  line("chat", report.has_chat and "its template is known" or "%s: the config's chat = { .. } gives the texts",
    report.has_template and "its template is of no known family" or "it has no template")
  if report.has_landmark then line("landmark", "a token of its own ends each page") end
  for _, backend in ipairs(backends) do
    local check = checks[backend]
    if check.estimate then
      local e = check.estimate
      line(backend, "runs: %s of weights, %s for %d pages of keys and values (%d tokens a sequence)",
        common.size(e.weights_bytes), common.size(e.kv_bytes), e.pages, e.max_seq_len)
    else
      for i, reason in ipairs(check.reasons) do
        line(i == 1 and backend or "", "%s%s", i == 1 and "does not run: " or "              ", reason)
      end
    end
  end
end

-- What the file is and what it needs on each backend; success where one runs it.
local function show_model(o, path)
  local checks, report = {}, nil
  for _, backend in ipairs(backends) do
    local config = common.config(o, { backend = backend, log = "off" })
    checks[backend] = cairn.model_check(config, path)
    report = report or checks[backend]
  end
  local runs = checks.cpu.estimate or checks.cuda.estimate
  if o.json then
    for _, check in pairs(checks) do check.reasons = common.json.array(check.reasons) end
    common.json.print { path = path, cpu = checks.cpu, cuda = checks.cuda }
  elseif report.file_bytes == 0 then
    error({ text = checks.cpu.reasons[1] or checks.cpu.status }, 0)
  else
    print_model(path, report, checks)
  end
  return runs and 0 or 1
end

return {
  usage = "[MODEL.gguf | FOLDER]",
  about = "devices, libraries, every path tried; or what a model file is and needs",
  options = options.with_common {},
  positional = 1,
  run = function(o)
    if o[1] then return show_model(o, o[1]) end
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

-- cairn kernels: every template, with the config's constants, compiled for one architecture.
local cairn = require "cairn"
local common = require "cli.common"
local cubin = require "cli.cubin"
local options = require "cli.options"

-- Constants that follow from the config; others stand in the templates' `matrix:` lines.
local function config_constants(config)
  return { PAGE_SIZE = config.page_size, HEAD_DIM = config.shape.head_dim }
end

-- The instances of a template: the sets of constants of its head's `matrix:` lines that fit `arch`.
-- A line `matrix: +` goes on with the one before.
local function instances(text, arch, fixed)
  local list, seen = {}, {}
  text = text:gsub("\n[^\n]*matrix: *%+", " ")
  for line in text:gmatch "matrix:([^\n]*)" do
    for part in (line:gsub("%*/", "") .. "|"):gmatch "([^|]*)|" do
      local least = tonumber(part:match "arch>=(%d+)") or 0
      local constants, key, of_model = {}, {}, nil
      for name, value in part:gmatch "([%w_]+)=(%-?%d+)" do
        name = name:gsub("^CAIRN_", "")
        constants[name] = fixed[name] or math.tointeger(tonumber(value))
        if name == "HEAD_DIM" then of_model = math.tointeger(tonumber(value)) end
      end
      constants.arch = nil
      if constants.LAYERS then constants.HEAD_DIM = of_model end
      for name, value in pairs(constants) do key[#key + 1] = name .. "=" .. value end
      table.sort(key)
      local id = table.concat(key, " ")
      if least <= arch and not seen[id] then
        seen[id] = true
        list[#list + 1] = { constants = constants, id = id }
      end
    end
  end
  return list
end

-- "sm_90", "sm_90a" or "90" -> 90
local function arch_number(text)
  local number = text:match "^sm_(%d+)a?$" or text:match "^(%d+)a?$"
  return math.tointeger(tonumber(number))
    or options.fail("--arch %s: such as sm_90 is expected", text)
end

-- The first GPU's, else the middle of the range.
local function default_arch()
  local device = cairn.libraries().devices[1]
  return device and device.arch or 90
end

local function write(path, data)
  local file, problem = io.open(path, "wb")
  local written = file and file:write(data) and file:close()
  if not written then error({ text = problem or path .. ": cannot write" }, 0) end
end

local function dump(o, arch, source, index, program)
  if not o.dump then return end
  local name = ("%s/%s.%d.sm_%d"):format(o[#o], source:gsub("%.cu$", ""), index, arch)
  write(name .. ".cu", program.text)
  write(name .. "." .. program.kind, program.image)
end

-- Compiles one program into its row; what fails stands there as `error`.
local function compile(o, config, arch, index, want, row)
  local done, program = pcall(cairn.compile, config, arch,
    { source = row.source, constants = want.constants, kind = o.dump or "cubin" })
  if not done then
    row.error = program
    return
  end
  row.compile_ms, row.cached, row.kind = program.compile_ms, program.cached, program.kind
  row.kernels = common.json.array(program.kind == "cubin" and cubin(program.image) or {})
  dump(o, arch, row.source, index, program)
end

local function print_row(row)
  if row.error then
    print(("%-14s %-44s FAILED\n%s"):format(row.source, row.constants, row.error))
    return
  end
  print(("%-14s %-44s %5.0f ms%s"):format(row.source, row.constants, row.compile_ms,
    row.cached and " (cache)" or ""))
  for _, k in ipairs(row.kernels) do
    print(("    %-40s %3d registers, %5d static shared, %d local, %d code bytes"):format(k.name,
      k.registers, k.shared_bytes, k.local_bytes, k.code_bytes))
  end
end

return {
  usage = "[CONFIG.lua] [--arch sm_90] [--dump cubin|ptx DIR]",
  about = "the kernels of a config: registers, shared memory, spills, compile time, cache hits",
  options = {
    { "--arch SM", "architecture to compile for (the GPU's, else sm_90); no GPU is needed" },
    { "--dump KIND", "cubin or ptx: write each program and its source into DIR, the last argument",
      { "cubin", "ptx" } },
    options.common[3],
  },
  positional = 2,
  run = function(o)
    if o.dump and not o[1] then options.fail("--dump %s DIR: the folder is missing", o.dump) end
    local path = o[(o.dump and 2 or 1)] and o[1] or nil
    local config = cairn.check(path or {})
    local arch = o.arch and arch_number(o.arch) or default_arch()
    local rows, names, templates = common.json.array {}, {}, cairn.templates()
    local failed = false
    for name in pairs(templates) do
      if name:find "%.cu$" then names[#names + 1] = name end
    end
    table.sort(names)
    for _, source in ipairs(names) do
      for i, want in ipairs(instances(templates[source], arch, config_constants(config))) do
        local row = { source = source, constants = want.id }
        rows[#rows + 1] = row
        compile(o, config, arch, i, want, row)
        failed = failed or row.error ~= nil
        if not o.json then print_row(row) end
      end
    end
    if o.json then common.json.print { arch = arch, programs = rows } end
    return failed and 1 or 0
  end,
}

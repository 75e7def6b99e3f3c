-- What a cubin says about its kernels: an ELF file whose .nv.info sections hold attributes.
local REGCOUNT, FRAME_SIZE, MAX_THREADS = 0x2f, 0x11, 0x05
local WITH_DATA = 4 -- the attribute's 16-bit value is the size of the data behind it

-- Sections by number (from 0): name, data.
local function sections_of(image)
  assert(image:sub(1, 4) == "\127ELF", "this is no cubin")
  local offset = string.unpack("<I8", image, 0x28 + 1)
  local size, count, names = string.unpack("<I2I2I2", image, 0x3a + 1)
  local list = {}
  for i = 0, count - 1 do
    local name, kind, _, _, at, bytes = string.unpack("<I4I4I8I8I8I8", image, offset + i * size + 1)
    list[i] = { name = name, at = at, bytes = bytes, has_data = kind ~= 8 }
  end
  local table_at = list[names].at
  for i = 0, count - 1 do
    local s = list[i]
    s.name = string.unpack("z", image, table_at + s.name + 1)
    s.data = s.has_data and image:sub(s.at + 1, s.at + s.bytes) or ""
  end
  return list, count
end

local function find(list, count, name)
  for i = 0, count - 1 do if list[i].name == name then return list[i] end end
end

-- Calls f(attribute, data) for each attribute of an .nv.info section.
local function each_attribute(data, f)
  local at = 1
  while at + 3 <= #data do
    local format, attribute, value = string.unpack("<BBI2", data, at)
    at = at + 4
    if format == WITH_DATA then
      f(attribute, data:sub(at, at + value - 1))
      at = at + value
    else
      f(attribute, nil)
    end
  end
end

-- { { name =, registers =, local_bytes =, shared_bytes = (static), code_bytes = }, ... } by name
return function(image)
  local list, count = sections_of(image)
  local kernels, by_name = {}, {}
  for i = 0, count - 1 do
    local name = list[i].name:match "^%.text%.(.+)$"
    if name then
      local shared = find(list, count, ".nv.shared." .. name)
      by_name[name] = { name = name, registers = 0, local_bytes = 0,
        shared_bytes = shared and shared.bytes or 0, code_bytes = list[i].bytes }
      kernels[#kernels + 1] = by_name[name]
    end
  end
  local symbols, strings = find(list, count, ".symtab"), find(list, count, ".strtab")
  local info = find(list, count, ".nv.info")
  each_attribute(info and info.data or "", function(attribute, data)
    if attribute ~= REGCOUNT and attribute ~= FRAME_SIZE then return end
    local symbol, value = string.unpack("<I4I4", data)
    local name = string.unpack("z", strings.data,
      string.unpack("<I4", symbols.data, symbol * 24 + 1) + 1)
    local kernel = by_name[name]
    if kernel and attribute == REGCOUNT then kernel.registers = value end
    if kernel and attribute == FRAME_SIZE then kernel.local_bytes = value end
  end)
  for _, kernel in ipairs(kernels) do
    local own = find(list, count, ".nv.info." .. kernel.name)
    each_attribute(own and own.data or "", function(attribute, data)
      if attribute == MAX_THREADS and data then
        kernel.max_threads = string.unpack("<I4", data)
      end
    end)
  end
  table.sort(kernels, function(a, b) return a.name < b.name end)
  return kernels
end

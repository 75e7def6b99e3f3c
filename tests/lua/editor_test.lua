-- scripts/editor/cairn.lua names every call of the module and of its objects, and no other.
local cairn = require "cairn"

local function annotated()
  local classes, class = {}, nil
  for line in io.lines "scripts/editor/cairn.lua" do
    local name = line:match "^%-%-%-@class ([%w.]+)$"
    if name then class = {} classes[name] = class end
    local field = line:match "^%-%-%-@field ([%w_]+)%?? " or line:match "^function cairn%.([%w_]+)"
    if line:find "^function cairn%." then classes.cairn[field] = true
    elseif field then class[field] = true end
  end
  return classes
end

local function differ(methods, class)
  local wrong = {}
  for name in pairs(methods) do if not class[name] then wrong[#wrong + 1] = "lacks " .. name end end
  for name in pairs(class) do if not methods[name] then wrong[#wrong + 1] = "has " .. name end end
  table.sort(wrong)
  return wrong
end

test("the editor's annotations cover the module and its objects", function()
  local classes = annotated()
  local rt <close> = cairn.open({ backend = "cpu" }, { log = false })
  local pool = rt:page_pool(4)
  local objects = { ["cairn.Runtime"] = rt, ["cairn.PagePool"] = pool,
    ["cairn.PageTables"] = rt:page_tables { requests = 1, max_tokens = 16, page_size = 16, pool = pool },
    ["cairn.PrefixCache"] = rt:prefix_cache { pool = pool, page_size = 16 },
    ["cairn.Stream"] = rt:stream(), ["cairn.Event"] = rt:event() }
  local path = os.getenv "CAIRN_MODEL"
  if path and path ~= "" then
    local model = cairn.open({ backend = "cpu", max_batch = 1, max_seq_len = 64, page_size = 16 },
      { log = false }):load_model(path)
    objects["cairn.Model"], objects["cairn.Session"] = model, model:session()
  end
  check.equal(differ(cairn, classes.cairn), {})
  for name, object in pairs(objects) do
    check.equal({ name, differ(getmetatable(object).__index, classes[name]) }, { name, {} })
  end
  local x = rt:zeros({ 2 }, "f32")
  for name in pairs(classes["cairn.Tensor"]) do check.ok(x[name] ~= nil, name) end
end)

-- cairn tokenize
local common = require "cli.common"
local options = require "cli.options"

return {
  usage = "--model M.gguf (--text T | --file F)",
  about = "text to token ids",
  options = options.with_common {
    { "--model FILE", "the GGUF file (or CAIRN_MODEL)" },
    { "--text TEXT", "the text, special-token text included" },
    { "--file FILE", "a file with the text" },
  },
  run = function(o)
    common.model_path(o) -- said before anything is opened
    local text = common.text(o, "text", "file")
    local rt <close> = common.open(o, { backend = o.backend or "cpu", max_batch = 1,
      max_seq_len = 256, log = "warn" })
    local model = common.load_model(rt, o)
    local ids = model:tokenize(text)
    if o.json then
      common.json.print { ids = common.json.array(ids) }
    else
      for _, id in ipairs(ids) do print(id, ("%q"):format(model:detokenize { id })) end
    end
    return 0
  end,
}

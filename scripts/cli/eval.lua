-- cairn eval
local common = require "cli.common"
local options = require "cli.options"

return {
  usage = "--model M.gguf (--file F | --ids F.json) [--top N]",
  about = "mean negative log-likelihood of a text, each token scored as its decode step sees it",
  options = options.with_common {
    { "--model FILE", "the GGUF file (or CAIRN_MODEL)" },
    { "--adapter FILE", "a LoRA adapter of the model: GGUF, safetensors, .pt or a folder" },
    { "--file FILE", "a file with the text" },
    { "--ids FILE", "a JSON array of token ids instead of text" },
    { "--top N", "the N best next tokens of every position", "integer" },
  },
  run = function(o)
    if (o.file == nil) == (o.ids == nil) then
      options.fail "one of --file FILE and --ids FILE is needed"
    end
    if o.top and (o.top < 0 or o.top > 4096) then
      options.fail("--top %d: 0 to 4096 is expected", o.top)
    end
    common.model_path(o) -- said before anything is opened
    local text = common.read_file(o.file or o.ids)
    local ids = o.ids and common.json.decode_integers(text, o.ids)
    local rt <close> = common.open(o, { max_batch = 1 })
    local model = common.load_model(rt, o)
    local result = model:eval(ids or model:tokenize(text), { top = o.top })
    if o.json then
      common.json.print { tokens = result.tokens, mean_nll = result.mean_nll, top = result.top }
    else
      print(("%d tokens, mean nll %.6f, perplexity %.4f"):format(result.tokens, result.mean_nll,
        math.exp(result.mean_nll)))
      for i, best in ipairs(result.top or {}) do
        local parts = {}
        for j, id in ipairs(best.ids) do
          parts[j] = ("%d %q %.4f"):format(id, model:detokenize { id }, best.logits[j])
        end
        print(i, table.concat(parts, "   "))
      end
    end
    return 0
  end,
}

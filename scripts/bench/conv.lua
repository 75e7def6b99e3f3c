-- The short convolution of prompts and decode steps, and its metadata.
local function tensors(rt, tokens, channels, width, slots)
  return rt:random({ tokens, channels }, "bf16", { seed = tokens }),
    rt:random({ channels, width }, "bf16"), rt:random({ slots, width - 1, channels }, "bf16"),
    rt:zeros({ tokens, channels }, "bf16")
end

local function starts(rt, sequences, each)
  local list = {}
  for s = 0, sequences do list[s + 1] = s * each end
  return rt:tensor(list, "i32")
end

local function bench_prompts(b, sequences, each, channels, width)
  local rt, tokens = b.rt, sequences * each
  local calls = {}
  local cu = starts(rt, sequences, each)
  local room = rt:zeros({ tokens // 32 + sequences }, "i32")
  local chunks, offsets = rt:short_conv_metadata(cu, { decode_tokens = -1, chunk_sequences = room,
    chunk_offsets = rt:zeros({ tokens // 32 + sequences }, "i32") })
  local x, weight, state, out = tensors(rt, tokens, channels, width, sequences)
  local function call(options)
    options.cu_seqlens, options.out = cu, out
    return function() rt:short_conv(x, weight, state, options) end
  end
  calls[1] = call { chunk_sequences = chunks, chunk_offsets = offsets }
  local shape = ("%d x %d tokens, %d channels, width %d, bf16")
    :format(sequences, each, channels, width)
  b:line("short_conv", shape, b:time(calls), tokens * channels * 2 * 2, "copy")
  local parts = rt:random({ tokens, 3 * channels }, "bf16")
  local function part(i)
    return parts:view({ tokens, channels },
      { strides = { 3 * channels, 1 }, offset = i * channels })
  end
  local gated = { chunk_sequences = chunks, chunk_offsets = offsets, cu_seqlens = cu, out = out,
    gate_in = part(0), gate_out = part(1) }
  local inner = part(2)
  b:line("short_conv, gates", shape, b:time(function()
    rt:short_conv(inner, weight, state, gated)
  end), tokens * channels * 2 * 4, "copy")
end

local function bench_steps(b, requests, channels, width)
  local rt = b.rt
  local x, weight, state, out = tensors(rt, requests, channels, width, requests)
  local options = { out = out }
  local shape = ("%d requests, %d channels, width %d, bf16"):format(requests, channels, width)
  b:line("short_conv_update", shape, b:time(function()
    rt:short_conv_update(x, weight, state, options)
  end))
  local drafts, _, _, wide = tensors(rt, requests * 5, channels, width, 1)
  local snapshots = rt:zeros({ requests, width - 1 + 5, channels }, "bf16")
  local with = { cu_seqlens = starts(rt, requests, 5), out = wide, snapshots = snapshots }
  b:line("short_conv_update, 5 tokens", shape, b:time(function()
    rt:short_conv_update(drafts, weight, state, with)
  end))
  local accepted = rt:random({ requests }, "i32", { low = 0, high = 6 })
  b:line("short_conv_restore", shape, b:time(function()
    rt:short_conv_restore(snapshots, accepted, state)
  end))
end

local function bench_metadata(b, requests)
  local rt, cu, lens = b.rt, { 0 }, {}
  for r = 1, requests do
    local new = r <= requests // 2 and 1 or 1 + r * 37 % 60
    cu[r + 1], lens[r] = cu[r] + new, new + r % 3 * 100
  end
  local slots = rt:random({ requests, 8 }, "i32", { low = 0, high = 4096 })
  local options = { block_tokens = 8 }
  local device_cu, device_lens = rt:tensor(cu, "i32"), rt:tensor(lens, "i32")
  options.chunk_sequences, options.chunk_offsets, options.has_initial, options.decode_indices,
    options.prompt_indices, options.counts =
    rt:short_conv_metadata(device_cu, device_lens, slots, options)
  local shape = ("%d requests, half of them prompts"):format(requests)
  b:line("short_conv_metadata", shape, b:time(function()
    rt:short_conv_metadata(device_cu, device_lens, slots, options)
  end))
  local staging <close> = rt:staging(4 * (3 * requests + 2))
  local host_cu, host_lens, host_slots = rt:host(cu), rt:host(lens), rt:host(slots:totable())
  options.staging = staging
  local cairn, samples = require "cairn", {}
  for i = 1, 21 do
    rt:sync()
    local before = cairn.now_us()
    rt:short_conv_metadata(host_cu, host_lens, host_slots, options)
    samples[i] = cairn.now_us() - before
  end
  table.sort(samples)
  b:line("short_conv_metadata, staged", shape .. ", host time of the call", samples[11])
end

return {
  about = "the short convolution of hybrid models and its metadata",
  run = function(b)
    if b.cuda then
      bench_prompts(b, 1, 65536, 2048, 3)
      bench_prompts(b, 64, 1024, 2048, 4)
    else
      bench_prompts(b, 4, 512, 1024, 3)
    end
    bench_steps(b, 256, 2048, 3)
    bench_metadata(b, 8)
    bench_metadata(b, 256)
  end,
}

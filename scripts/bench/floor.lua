-- What the device can do at best: the ceilings of all other lines.
return {
  about = "read and copy rate, launch and stage cost",
  run = function(b)
    local f = b.floor
    b.emit { op = "read", shape = "1 GiB", gb_per_second = f.read_bytes_per_second / 1e9 }
    b.emit { op = "copy", shape = "512 MiB", gb_per_second = f.copy_bytes_per_second / 1e9 }
    if not b.cuda then return end
    b.emit { op = "launch and wait", shape = "1 block", us = f.launch_us }
    b.emit { op = "stage in a graph", shape = "a block a multiprocessor", us = f.stage_us }
    b.emit { op = "dependent stage", shape = "a block a multiprocessor", us = f.dependent_stage_us }
  end,
}

"""The peer of scripts/bench/steps.lua: multi-step metadata as the document writes it, with torch.

Prints one line an operation of the document's table and the totals for N steps: before (each step
computes all) and after (computed once, copied N times), wall time of a call, as the host pays it,
then of the same work in a CUDA graph where its lengths are fixed.
    python3 scripts/bench/steps_peer.py
"""
import time
import torch

N, B, L, PAGE, TOPK = 8, 32, 32768, 64, 2048
dev = "cuda"
seq = torch.full((B,), L, dtype=torch.int64, device=dev)
seq_cpu = seq.cpu()
pool = torch.zeros((B, L), dtype=torch.int32, device=dev)
req = torch.arange(B, device=dev)


def wall(f, runs=50):
    for _ in range(5):
        f()
    torch.cuda.synchronize()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        f()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times)[runs // 2] * 1e6


def graphed(f, calls=10, runs=21):
    f()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            f()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(runs):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / calls)
    return sorted(times)[runs // 2]


def cu(x):
    return torch.nn.functional.pad(torch.cumsum(x, 0, dtype=torch.int32), (1, 0))


def table(longest):
    return pool[req, :longest]


def real(pages):
    return pages[:, ::PAGE] // PAGE


def expand(qo, kv):
    return torch.cat([torch.arange(k - q + 1, k + 1, dtype=torch.int32, device=dev)
                      for q, k in zip(qo, kv)])


def precompute():
    longest = int(seq_cpu.max())
    cache = seq.to(torch.int32)
    pages = table(longest)
    clipped = torch.clamp(cache, max=TOPK)
    return cache, cu(cache), pages, clipped, cu(clipped), real(pages)


into = [[torch.empty_like(t) for t in precompute()] for _ in range(N)]


def copy(made, i):
    for to, made_one in zip(into[i], made):
        to.copy_(made_one)


def before():
    for i in range(N):
        copy(precompute(), i)


def after():
    made = precompute()
    for i in range(N):
        copy(made, i)


cache, pages = seq.to(torch.int32), table(L)
rows = [
    ("seq_lens.to(int32)", lambda: seq.to(torch.int32)),
    ("cumsum of lengths", lambda: cu(cache)),
    ("token table", lambda: table(L)),
    ("clipped lengths", lambda: torch.clamp(cache, max=TOPK)),
    ("cumsum of clipped", lambda: cu(cache)),
    ("page table", lambda: real(pages)),
]
print("%d steps, %d x %d: wall us a call, us in a graph" % (N, B, L))
for name, f in rows:
    print("%-24s %9.1f %9.1f   x %d" % (name, wall(f), graphed(f), N))
qo, kv = [4] * B, (seq_cpu + 4).tolist()
print("%-24s %9.1f" % ("arange and cat (verify)", wall(lambda: expand(qo, kv))))
print("%-24s %9.1f %9.1f" % ("before", wall(before), graphed(before)))
print("%-24s %9.1f %9.1f" % ("after", wall(after), graphed(after)))

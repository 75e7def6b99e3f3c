#!/usr/bin/env python3
"""Trains a gated adapter that drafts by mask tokens, from samples of the model itself.

    python3 scripts/train/train.py MODEL.gguf SAMPLES.jsonl OUT [--minutes 13] [--device cuda]
    python3 scripts/train/train.py MODEL.gguf --check CHECK OUT

Real rows run once, without gradients; behind each of some tokens stand k masks, which see the tokens up
to theirs and the masks before. Three losses, each against what the model says at the same place: the
cross-entropy of the masks' own logits, that of the sampler head, which reads the token before, too, and
the distance of the masks' latents from those of the real rows. OUT holds checkpoint.pt, from which the
same command goes on, log.csv, loss.svg, and the adapter, adapter.gguf.
"""
import argparse
import json
import math
import os
import time

import numpy as np
import torch
import torch.nn.functional as F

import gguf

MODULES = [("attn_q", "q"), ("attn_k", "k"), ("attn_v", "v"), ("attn_output", "o"),
           ("ffn_gate", "gate"), ("ffn_up", "up"), ("ffn_down", "down")]


class Model:
    """A llama as its GGUF has it: rows of q and k so that pairs lie side by side."""

    def __init__(self, path, device, dtype):
        file = gguf.File(path)
        if file.keys["general.architecture"] != "llama":
            raise SystemExit(f"{path}: the architecture is {file.keys['general.architecture']}; llama is read")
        key = lambda name: file.keys["llama." + name]
        self.layers, self.hidden = key("block_count"), key("embedding_length")
        self.heads, self.kv_heads = key("attention.head_count"), key("attention.head_count_kv")
        self.dim, self.eps = self.hidden // self.heads, key("attention.layer_norm_rms_epsilon")
        self.base, self.context = key("rope.freq_base"), key("context_length")
        self.weights = {n: torch.tensor(t, device=device, dtype=dtype) for n, t in file.tensors.items()}
        self.embed = self.weights["token_embd.weight"]
        self.head = self.weights.get("output.weight", self.embed)
        self.output_norm = self.weights["output_norm.weight"]
        self.device, self.dtype = device, dtype

    def norm(self, x, w):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * w

    def angles(self, positions):
        rates = self.base ** (-torch.arange(0, self.dim, 2, device=self.device).float() / self.dim)
        a = positions.float()[..., None] * rates
        return a.cos()[:, None], a.sin()[:, None]

    def turn(self, x, angles):
        cos, sin = angles
        a, b = x.float()[..., 0::2], x.float()[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)

    def product(self, layer, name, y, lora=None):
        out = F.linear(y, self.weights[f"blk.{layer}.{name}.weight"])
        if lora is None:
            return out
        down, up = lora[layer][name]
        return out + lora.scale * F.linear(F.linear(y, down.to(y.dtype)), up.to(y.dtype))

    def heads_of(self, layer, x, angles, lora=None):
        """What attention asks for: q [B, heads, R, dim], k and v [B, kv_heads, R, dim]."""
        y = self.norm(x, self.weights[f"blk.{layer}.attn_norm.weight"])
        q, k, v = (self.product(layer, name, y, lora).view(*y.shape[:2], -1, self.dim).transpose(1, 2)
                   for name in ("attn_q", "attn_k", "attn_v"))
        return self.turn(q, angles), self.turn(k, angles), v

    def behind(self, layer, x, attended, lora=None):
        """The layer's rows, of what they attended [B, heads, R, dim]."""
        x = x + self.product(layer, "attn_output", attended.transpose(1, 2).flatten(2), lora)
        y = self.norm(x, self.weights[f"blk.{layer}.ffn_norm.weight"])
        gate, up = self.product(layer, "ffn_gate", y, lora), self.product(layer, "ffn_up", y, lora)
        return x + self.product(layer, "ffn_down", F.silu(gate) * up, lora)

    def spread(self, k):
        """A KV head for each query head."""
        return k.repeat_interleave(self.heads // self.kv_heads, 1)

    def rows(self, x, positions, sees, cache=None, lora=None):
        """x [B, R, hidden] to what the head reads; sees [B, 1, R, keys]: behind the cache's keys the
        rows' own; None: each row those before it. Returns the keys and values of each layer, too."""
        angles, kept = self.angles(positions), []
        for layer in range(self.layers):
            q, k, v = self.heads_of(layer, x, angles, lora)
            kept.append((k, v))
            if cache is not None:
                k, v = torch.cat((cache[layer][0], k), 2), torch.cat((cache[layer][1], v), 2)
            y = F.scaled_dot_product_attention(q, self.spread(k), self.spread(v), attn_mask=sees,
                                               is_causal=sees is None)
            x = self.behind(layer, x, y, lora)
        return self.norm(x, self.output_norm), kept


class Low(torch.nn.Module):
    """Low-rank additions to all products of a model, and its file."""

    def __init__(self, model, rank, scale, g):
        super().__init__()
        self.scale, self.rank = scale, rank
        self.low = torch.nn.ParameterDict()
        for layer in range(model.layers):
            for name, _ in MODULES:
                rows, columns = model.weights[f"blk.{layer}.{name}.weight"].shape
                down = torch.randn(rank, columns, generator=g) / math.sqrt(columns)
                self.low[f"{layer}-{name}-a"] = torch.nn.Parameter(down)
                self.low[f"{layer}-{name}-b"] = torch.nn.Parameter(torch.zeros(rows, rank))

    def __getitem__(self, layer):
        return {name: (self.low[f"{layer}-{name}-a"], self.low[f"{layer}-{name}-b"])
                for name, _ in MODULES}

    def tensors(self):
        out = {}
        for name, p in self.low.items():
            layer, module, side = name.split("-")
            out[f"blk.{layer}.{module}.weight.lora_{side}"] = p
        return out

    def save(self, folder, more):
        """Writes the adapter; `more`: keys of its file besides. Returns the bytes of its values. Q8_0 where rows are
        whole blocks, so that an adapter of twice the rank has the bytes of one in f16."""
        kind = lambda p: "F32" if p.ndim == 1 else "F16" if p.shape[1] % 32 else "Q8_0"
        tensors = {name: (kind(p), p.detach().float().cpu().numpy()) for name, p in sorted(self.tensors().items())}
        keys = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora",
                "adapter.lora.alpha": float(self.scale * self.rank), **more}
        return gguf.write(os.path.join(folder, "adapter.gguf"), keys, tensors)

    def load(self, path):
        """Values of a file that `save` wrote. Of one of lower rank: inner values more begin as those of a new one."""
        tensors = gguf.File(path).tensors
        with torch.no_grad():
            for name, p in self.tensors().items():
                value = torch.tensor(tensors[name]).view(tensors[name].shape).to(p.device)
                p[tuple(slice(n) for n in value.shape)] = value


class Adapter(Low):
    """One that drafts: the mask's embedding and the sampler head besides."""

    def __init__(self, model, rank, scale, seed):
        g = torch.Generator().manual_seed(seed)
        super().__init__(model, rank, scale, g)
        h = model.hidden
        norm = model.output_norm.float().cpu().clone()
        self.mask = torch.nn.Parameter(model.embed.float().mean(0).cpu())
        self.first = torch.nn.Parameter(torch.randn(h, 2 * h, generator=g) / math.sqrt(2 * h))
        self.second = torch.nn.Parameter(torch.randn(h, h, generator=g) / math.sqrt(h))
        # small at first: logits begin near those of no knowledge
        self.first_norm, self.second_norm = torch.nn.Parameter(0.2 * norm), torch.nn.Parameter(0.02 * norm)
        self.eps = model.eps

    def block(self, x, w, norm):
        y = F.silu(F.linear(x, w.to(x.dtype))).float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps) * norm).to(x.dtype)

    def sampler(self, embedding, hidden):
        y = self.block(torch.cat((embedding, hidden), -1), self.first, self.first_norm)
        return y + self.block(y, self.second, self.second_norm)

    def tensors(self):
        return {"mask_embedding": self.mask, "sampler.0.weight": self.first,
                "sampler.0.norm": self.first_norm, "sampler.1.weight": self.second,
                "sampler.1.norm": self.second_norm, **super().tensors()}


def causal(count, device):
    return torch.ones(count, count, dtype=torch.bool, device=device).tril()[None, None]


def mask_rows(model, adapter, cache, anchors, k):
    """Latents [B, anchors, k, hidden] of k masks behind each anchor [B, anchors]."""
    b, a = anchors.shape
    tokens, device = cache[0][0].shape[2], model.device
    own = torch.arange(a * k, device=device)
    group = own // k
    before = (group[:, None] == group[None]) & (own[None] <= own[:, None])
    seen = torch.arange(tokens, device=device)[None, None] <= anchors.repeat_interleave(k, 1)[..., None]
    sees = torch.cat((seen, before[None].expand(b, -1, -1)), -1)[:, None]
    positions = anchors.repeat_interleave(k, 1) + 1 + (own % k)[None]
    x = adapter.mask.to(model.dtype).expand(b, a * k, -1)
    return model.rows(x, positions, sees, cache, adapter)[0].view(b, a, k, -1)


class Samples:
    """Windows of samples; each tells from where on the model spoke."""

    def __init__(self, path, window, k):
        self.window, self.k, self.rows = window, k, []
        with open(path) as f:
            for line in f:
                row = json.loads(line)
                for at in range(0, len(row["ids"]), window - 2 * k):
                    ids = row["ids"][at:at + window]
                    first = max(row["from"] - 1 - at, 0)
                    if len(ids) - k - 1 > first:
                        self.rows.append((ids, first))
        if len(self.rows) < 8:
            raise SystemExit(f"{path}: {len(self.rows)} windows; more samples are needed")
        self.held = max(1, len(self.rows) // 100)

    def batch(self, rng, count, anchors, held):
        low, high = (0, self.held) if held else (self.held, len(self.rows))
        ids, places = np.zeros((count, self.window), np.int64), np.zeros((count, anchors), np.int64)
        for i, n in enumerate(rng.integers(low, high, count)):
            row, first = self.rows[n]
            ids[i, :len(row)] = row
            places[i] = rng.integers(first, len(row) - self.k - 1, anchors)
        return torch.from_numpy(ids), torch.from_numpy(places)


WEIGHTS = (4.0, 2.0, 1.0, 1.0) # of places behind an anchor: the first draft is tried at every step, others more rarely


def losses(model, adapter, ids, anchors, k):
    """Of the masks' logits, of the sampler's, of latents; and where the sampler says what the model says,
    [k], given that it did before."""
    weights = (WEIGHTS + WEIGHTS[-1:] * k)[:k]
    weigh = lambda each: sum(w * x for w, x in zip(weights, each.mean((0, 1)).unbind())) / sum(weights)
    with torch.no_grad():
        real, cache = model.rows(F.embedding(ids, model.embed), torch.arange(
            ids.shape[1], device=ids.device)[None].expand(ids.shape), causal(ids.shape[1], ids.device))
        places = anchors[..., None] + 1 + torch.arange(k, device=ids.device)
        flat = places.flatten(1)
        there = torch.gather(real, 1, flat[..., None].expand(-1, -1, real.shape[-1])).view(
            *places.shape, -1)
        said = F.linear(there, model.head).float()
        target, best = said.softmax(-1), said.argmax(-1)
        token = F.embedding(torch.gather(ids, 1, flat).view(places.shape), model.embed)
    latents = mask_rows(model, adapter, cache, anchors, k)
    own = F.linear(latents, model.head).float().log_softmax(-1)
    sampled = F.linear(adapter.sampler(token, latents), model.head).float()
    entropy = lambda logs: weigh(-(target * logs).sum(-1))
    distance = weigh((latents.float() - there.float()).pow(2).mean(-1)) / there.float().pow(2).mean()
    right = (sampled.argmax(-1) == best).float().cumprod(-1).mean((0, 1))
    return entropy(own), entropy(sampled.log_softmax(-1)), distance, right.detach()


class Step:
    """Gradients of a batch; on a GPU as one graph, for launching its thousands of small kernels takes longer
    than running them."""

    def __init__(self, model, adapter, ids, anchors, k):
        self.model, self.adapter, self.k, self.graph = model, adapter, k, None
        self.ids, self.anchors = ids.to(model.device), anchors.to(model.device)
        if model.device != "cuda":
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.run()
        torch.cuda.current_stream().wait_stream(side)
        adapter.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.out = self.run()
        self.graph = graph

    def run(self):
        self.adapter.zero_grad(set_to_none=True)
        masks, sampler, latents, right = losses(self.model, self.adapter, self.ids, self.anchors, self.k)
        (0.5 * masks + sampler + latents).backward()
        return masks.detach(), sampler.detach(), latents.detach(), right

    def __call__(self, ids, anchors):
        self.ids.copy_(ids)
        self.anchors.copy_(anchors)
        if self.graph is None:
            return self.run()
        self.graph.replay()
        return self.out


def draw(path, log, colours):
    """log: rows of step and values by name; a curve for each loss that has a colour."""
    width, height = 640, 320
    top = max(row[name] for row in log for name in colours)
    last = max(row["step"] for row in log) or 1
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
             'font-family="sans-serif" font-size="12">']
    for i, (name, colour) in enumerate(colours.items()):
        points = " ".join(f'{40 + (width - 60) * r["step"] / last:.1f},'
                          f'{height - 30 - (height - 60) * r[name] / top:.1f}' for r in log)
        parts.append(f'<polyline fill="none" stroke="{colour}" points="{points}"/>'
                     f'<text x="{width - 120}" y="{20 + 16 * i}" fill="{colour}">{name}</text>')
    parts.append(f'<text x="40" y="{height - 8}">{last} steps; the highest is {top:.2f}</text></svg>')
    with open(path, "w") as f:
        f.write("\n".join(parts) + "\n")


class Run:
    """A training that goes on where it was stopped: how fast it learns at a step, its log, what it keeps."""

    def __init__(self, o, adapter, opt, colours):
        self.o, self.adapter, self.opt, self.colours = o, adapter, opt, colours
        self.log, self.step, self.begun, spent = [], 0, 0.0, 0.0
        os.makedirs(o.out, exist_ok=True)
        self.kept = os.path.join(o.out, "checkpoint.pt")
        if os.path.exists(self.kept):
            state = torch.load(self.kept, map_location=o.device, weights_only=False)
            adapter.load_state_dict(state["adapter"])
            opt.load_state_dict(state["opt"])
            self.step, self.log, o.steps, spent = state["step"], state["log"], state["steps"], state["spent"]
            print(f"goes on at step {self.step} of {o.steps}", flush=True)
        self.start = time.time() - spent

    def spent(self):
        """Seconds, those before it was stopped among them."""
        return time.time() - self.start

    def learn(self):
        """Takes the step that the gradients say, at the step's rate."""
        o, step = self.o, self.step
        warm = min(1.0, (step + 1) / min(100, o.steps / 10 + 1))
        for group in self.opt.param_groups:
            group["lr"] = o.rate * warm * (
                0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / o.steps)))
        torch.nn.utils.clip_grad_norm_(self.adapter.parameters(), 1.0)
        self.opt.step()
        self.step += 1

    def note(self, figures):
        """Logs what `figures` returns now and then, keeps the state, and sees how many steps fit."""
        o, step = self.o, self.step
        if step % o.every == 0 or step == o.steps or step == 1:
            row = {"step": step, **figures()}
            self.log.append(row)
            said = ", ".join(f"{name} {value:.3f}" for name, value in row.items() if name != "step")
            print(f"step {step} of {o.steps}, {self.spent():.0f} s: {said}", flush=True)
        if step == 10:
            self.begun = self.spent() # what comes before is slower: graphs are made, clocks rise
        if step == 60 and o.minutes:
            fits = 60 + 50 * (o.minutes * 60 - self.spent()) / max(self.spent() - self.begun, 1e-3)
            o.steps = min(o.steps, max(60, int(fits)))
            print(f"{o.steps} steps fit into {o.minutes} minutes", flush=True)
        if step % 500 == 0 or step == o.steps:
            torch.save({"adapter": self.adapter.state_dict(), "opt": self.opt.state_dict(), "step": step,
                        "log": self.log, "steps": o.steps, "spent": self.spent()}, self.kept)

    def finish(self, more):
        """Writes the log, its curves and the adapter; returns the adapter's bytes."""
        names = list(self.log[0])
        with open(os.path.join(self.o.out, "log.csv"), "w") as f:
            f.write(",".join(names) + "\n")
            f.writelines(",".join(f"{row[name]:.5f}".rstrip("0").rstrip(".") for name in names) + "\n"
                         for row in self.log)
        draw(os.path.join(self.o.out, "loss.svg"), self.log, self.colours)
        size = self.adapter.save(self.o.out, more)
        if size > 5e6:
            raise SystemExit(f"the adapter is larger than 5 MB: {size / 1e6:.2f}")
        return size


def train(o):
    dtype = torch.bfloat16 if o.device == "cuda" else torch.float32
    model = Model(o.model, o.device, dtype)
    adapter = Adapter(model, o.rank, 2.0, o.seed).to(o.device)
    if o.begin:
        adapter.load(o.begin)
    samples = Samples(o.samples, o.window, o.k)
    opt = torch.optim.AdamW(adapter.parameters(), lr=o.rate, betas=(0.9, 0.98), weight_decay=0.0,
                            fused=o.device == "cuda")
    run = Run(o, adapter, opt, {"masks": "#888", "sampler": "#06c", "latents": "#c60"})
    batch_of = lambda step: samples.batch(np.random.default_rng([o.seed, step]), o.batch, o.anchors, False)
    gradients = Step(model, adapter, *batch_of(run.step), o.k)
    while run.step < o.steps:
        masks, sampler, latents, right = gradients(*batch_of(run.step))
        run.learn()
        run.note(lambda: {"masks": masks.item(), "sampler": sampler.item(), "latents": latents.item(),
                          "tokens": 1 + right.sum().item()})
    with torch.no_grad():
        ids, anchors = samples.batch(np.random.default_rng([o.seed, 1 << 40]), o.batch, o.anchors, True)
        right = losses(model, adapter, ids.to(o.device), anchors.to(o.device), o.k)[3]
    size = run.finish({"adapter.draft_length": o.k})
    print(f"held-out windows: {1 + right.sum().item():.3f} tokens a step, by place "
          f"{[round(x, 3) for x in right.tolist()]}; the adapter has {size / 1e6:.2f} MB, seed {o.seed}")


def checked(o, kind):
    """The model, the adapter of that class, and what Cairn says of rows: which they are, and their hidden values."""
    model = Model(o.model, "cpu", torch.float32)
    adapter = kind(model, o.rank, 2.0, 0)
    adapter.load(os.path.join(o.out, "adapter.gguf"))
    with open(os.path.join(o.check, "rows.json")) as f:
        rows = json.load(f)
    return model, adapter, rows, torch.tensor(np.load(os.path.join(o.check, "hidden.npy")))


def check(o):
    """What Cairn says of rows (check.lua) against the same rows here."""
    model, adapter, rows, theirs = checked(o, Adapter)
    with torch.no_grad():
        ids = torch.tensor([rows["ids"]])
        real, cache = model.rows(F.embedding(ids, model.embed), torch.arange(ids.shape[1])[None],
                                 causal(ids.shape[1], "cpu"))
        ours = torch.cat((real[:, -1], mask_rows(model, adapter, cache, torch.tensor(
            [[ids.shape[1] - 1]]), rows["masks"])[0, 0]))
        said, wanted = F.linear(theirs, model.head), F.linear(ours, model.head)
        apart = (said - wanted).abs().max() / wanted.std()
        token, drafts = rows["next"], []
        for j in range(rows["masks"]):
            y = adapter.sampler(model.embed[token][None], ours[1 + j][None])
            token = int(F.linear(y, model.head).argmax())
            drafts.append(token)
    print(f"logits of {len(ours)} rows: {apart:.4f} of their deviation apart at most; "
          f"drafts {drafts}")
    if not apart < 0.05:
        raise SystemExit("that is too far apart")


def parser(doc, rate, **sizes):
    """What every training is told; sizes: its whole numbers by name, and what they are unless told."""
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("samples", nargs="?")
    p.add_argument("out")
    p.add_argument("--check", help="the folder with what Cairn computed of the adapter")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--begin", help="the file of an adapter that this one begins as")
    p.add_argument("--minutes", type=float, default=13, help="0: all steps, however long")
    p.add_argument("--rate", type=float, default=rate)
    for name, value in {"steps": 9000, **sizes}.items():
        p.add_argument("--" + name, type=int, default=value)
    return p


def main():
    o = parser(__doc__, 2e-3, batch=32, window=256, anchors=48, k=4, rank=8, every=50).parse_args()
    torch.manual_seed(o.seed)
    check(o) if o.check else train(o)


if __name__ == "__main__":
    main()

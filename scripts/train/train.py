#!/usr/bin/env python3
"""Trains a gated adapter that drafts by mask tokens, from samples of the model itself.

    python3 scripts/train/train.py MODEL.gguf SAMPLES.jsonl OUT [--minutes 13] [--device cuda]
    python3 scripts/train/train.py MODEL.gguf --check CHECK OUT

Real rows run once, without gradients; behind each of some tokens stand k masks, which see the tokens up
to theirs and the masks before. Three losses, each against what the model says at the same place: the
cross-entropy of the masks' own logits, that of the sampler head, which reads the token before, too, and
the distance of the masks' latents from those of the real rows. OUT holds checkpoint.pt, from which the
same command goes on, log.csv, loss.svg, and the adapter: adapter_model.safetensors, adapter_config.json.
"""
import argparse
import json
import math
import os
import struct
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

    def rows(self, x, positions, sees, cache=None, lora=None):
        """x [B, R, hidden] to what the head reads; sees [B, 1, R, keys]: behind the cache's keys the
        rows' own. Returns the keys and values of each layer, too."""
        angles, kept = self.angles(positions), []
        b, r = x.shape[:2]
        for layer in range(self.layers):
            def product(name, y):
                out = F.linear(y, self.weights[f"blk.{layer}.{name}.weight"])
                if lora is None:
                    return out
                down, up = lora[layer][name]
                return out + lora.scale * F.linear(F.linear(y, down.to(y.dtype)), up.to(y.dtype))
            y = self.norm(x, self.weights[f"blk.{layer}.attn_norm.weight"])
            split = lambda t, n: t.view(b, r, n, self.dim).transpose(1, 2)
            q = self.turn(split(product("attn_q", y), self.heads), angles)
            k = self.turn(split(product("attn_k", y), self.kv_heads), angles)
            v = split(product("attn_v", y), self.kv_heads)
            kept.append((k, v))
            if cache is not None:
                k, v = torch.cat((cache[layer][0], k), 2), torch.cat((cache[layer][1], v), 2)
            group = self.heads // self.kv_heads
            y = F.scaled_dot_product_attention(q, k.repeat_interleave(group, 1),
                                               v.repeat_interleave(group, 1), attn_mask=sees)
            x = x + product("attn_output", y.transpose(1, 2).reshape(b, r, -1))
            y = self.norm(x, self.weights[f"blk.{layer}.ffn_norm.weight"])
            x = x + product("ffn_down", F.silu(product("ffn_gate", y)) * product("ffn_up", y))
        return self.norm(x, self.output_norm), kept


class Adapter(torch.nn.Module):
    def __init__(self, model, rank, scale, seed):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.scale, self.rank = scale, rank
        self.low = torch.nn.ParameterDict()
        for layer in range(model.layers):
            for name, _ in MODULES:
                rows, columns = model.weights[f"blk.{layer}.{name}.weight"].shape
                down = torch.randn(rank, columns, generator=g) / math.sqrt(columns)
                self.low[f"{layer}-{name}-a"] = torch.nn.Parameter(down)
                self.low[f"{layer}-{name}-b"] = torch.nn.Parameter(torch.zeros(rows, rank))
        h = model.hidden
        norm = model.output_norm.float().cpu().clone()
        self.mask = torch.nn.Parameter(model.embed.float().mean(0).cpu())
        self.first = torch.nn.Parameter(torch.randn(h, 2 * h, generator=g) / math.sqrt(2 * h))
        self.second = torch.nn.Parameter(torch.randn(h, h, generator=g) / math.sqrt(h))
        # small at first: logits begin near those of no knowledge
        self.first_norm, self.second_norm = torch.nn.Parameter(0.2 * norm), torch.nn.Parameter(0.02 * norm)
        self.eps = model.eps

    def __getitem__(self, layer):
        return {name: (self.low[f"{layer}-{name}-a"], self.low[f"{layer}-{name}-b"])
                for name, _ in MODULES}

    def block(self, x, w, norm):
        y = F.silu(F.linear(x, w.to(x.dtype))).float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps) * norm).to(x.dtype)

    def sampler(self, embedding, hidden):
        y = self.block(torch.cat((embedding, hidden), -1), self.first, self.first_norm)
        return y + self.block(y, self.second, self.second_norm)

    def tensors(self):
        out = {"mask_embedding": self.mask, "sampler.0.weight": self.first,
               "sampler.0.norm": self.first_norm, "sampler.1.weight": self.second,
               "sampler.1.norm": self.second_norm}
        for name, p in self.low.items():
            layer, module, side = name.split("-")
            out[f"blk.{layer}.{module}.weight.lora_{side}"] = p
        return out

    def save(self, folder, drafts):
        data, header, at = [], {}, 0
        for name, p in sorted(self.tensors().items()):
            bytes_ = p.detach().float().cpu().numpy().astype(np.float16).tobytes()
            header[name] = {"dtype": "F16", "shape": list(p.shape), "data_offsets": [at, at + len(bytes_)]}
            at += len(bytes_)
            data.append(bytes_)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(folder, "adapter_model.safetensors"), "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + b"".join(data))
        with open(os.path.join(folder, "adapter_config.json"), "w") as f:
            json.dump({"peft_type": "LORA", "bias": "none", "r": self.rank,
                       "lora_alpha": self.scale * self.rank, "draft_length": drafts}, f, indent=1)
        return at

    def load(self, folder):
        with open(os.path.join(folder, "adapter_model.safetensors"), "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            data = f.read()
        for name, p in self.tensors().items():
            from_, to = header[name]["data_offsets"]
            p.data = torch.tensor(np.frombuffer(data[from_:to], np.float16).astype(np.float32)).view(
                p.shape).to(p.device)


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


def losses(model, adapter, ids, anchors, k):
    """Of the masks' logits, of the sampler's, of latents; and where the sampler says what the model says,
    [k], given that it did before."""
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
    entropy = lambda logs: -(target * logs).sum(-1).mean()
    distance = (latents.float() - there.float()).pow(2).mean() / there.float().pow(2).mean()
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


def draw(path, log):
    """log: rows of step and values by name; a curve for each loss."""
    width, height, colours = 640, 320, {"masks": "#888", "sampler": "#06c", "latents": "#c60"}
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


def train(o):
    dtype = torch.bfloat16 if o.device == "cuda" else torch.float32
    model = Model(o.model, o.device, dtype)
    adapter = Adapter(model, o.rank, 2.0, o.seed).to(o.device)
    samples = Samples(o.samples, o.window, o.k)
    groups = [{"params": [p for n, p in adapter.named_parameters() if "norm" not in n], "weight_decay": 0.0},
              {"params": [p for n, p in adapter.named_parameters() if "norm" in n], "weight_decay": 0.0}]
    opt = torch.optim.AdamW(groups, lr=o.rate, betas=(0.9, 0.98), fused=o.device == "cuda")
    os.makedirs(o.out, exist_ok=True)
    kept, log, step, spent = os.path.join(o.out, "checkpoint.pt"), [], 0, 0.0
    if os.path.exists(kept):
        state = torch.load(kept, map_location=o.device, weights_only=False)
        adapter.load_state_dict(state["adapter"])
        opt.load_state_dict(state["opt"])
        step, log, o.steps, spent = state["step"], state["log"], state["steps"], state["spent"]
        print(f"goes on at step {step} of {o.steps}", flush=True)
    batch_of = lambda step: samples.batch(np.random.default_rng([o.seed, step]), o.batch, o.anchors, False)
    gradients = Step(model, adapter, *batch_of(step), o.k)
    start = time.time() - spent
    while step < o.steps:
        for group in opt.param_groups:
            warm = min(1.0, (step + 1) / min(100, o.steps / 10 + 1))
            group["lr"] = o.rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / o.steps)))
        masks, sampler, latents, right = gradients(*batch_of(step))
        torch.nn.utils.clip_grad_norm_(adapter.parameters(), 1.0)
        opt.step()
        step += 1
        if step % o.every == 0 or step == o.steps or step == 1:
            row = {"step": step, "masks": masks.item(), "sampler": sampler.item(),
                   "latents": latents.item(), "tokens": 1 + right.sum().item()}
            log.append(row)
            print(f"step {step} of {o.steps}, {time.time() - start:.0f} s: masks {row['masks']:.3f}, sampler "
                  f"{row['sampler']:.3f}, latents {row['latents']:.3f}, {row['tokens']:.2f} tokens a step",
                  flush=True)
        if step == 60 and o.minutes and len(log):
            fits = int(60 * (o.minutes * 60) / max(time.time() - start, 1e-3))
            if fits < o.steps:
                o.steps = fits
                print(f"{fits} steps fit into {o.minutes} minutes", flush=True)
        if step % 500 == 0 or step == o.steps:
            torch.save({"adapter": adapter.state_dict(), "opt": opt.state_dict(), "step": step, "log": log,
                        "steps": o.steps, "spent": time.time() - start}, kept)
    with torch.no_grad():
        ids, anchors = samples.batch(np.random.default_rng([o.seed, 1 << 40]), o.batch, o.anchors, True)
        right = losses(model, adapter, ids.to(o.device), anchors.to(o.device), o.k)[3]
    with open(os.path.join(o.out, "log.csv"), "w") as f:
        f.write("step,masks,sampler,latents,tokens\n")
        f.writelines(f"{r['step']},{r['masks']:.5f},{r['sampler']:.5f},{r['latents']:.5f},{r['tokens']:.4f}\n"
                     for r in log)
    draw(os.path.join(o.out, "loss.svg"), log)
    size = adapter.save(o.out, o.k)
    print(f"held-out windows: {1 + right.sum().item():.3f} tokens a step, by place "
          f"{[round(x, 3) for x in right.tolist()]}; the adapter has {size / 1e6:.2f} MB, seed {o.seed}")
    if size > 5e6:
        raise SystemExit("the adapter is larger than 5 MB")


def check(o):
    """What Cairn says of rows (check.lua) against the same rows here."""
    model = Model(o.model, "cpu", torch.float32)
    adapter = Adapter(model, o.rank, 2.0, 0)
    adapter.load(o.out)
    with open(os.path.join(o.check, "rows.json")) as f:
        rows = json.load(f)
    theirs = torch.tensor(np.load(os.path.join(o.check, "hidden.npy")))
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


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("samples", nargs="?")
    p.add_argument("out")
    p.add_argument("--check", help="the folder that check.lua wrote")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--minutes", type=float, default=13, help="0: all steps, however long")
    for name, value in (("steps", 9000), ("batch", 16), ("window", 256), ("anchors", 48), ("k", 4),
                        ("rank", 4), ("every", 50)):
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--rate", type=float, default=2e-3)
    o = p.parse_args()
    torch.manual_seed(o.seed)
    check(o) if o.check else train(o)


if __name__ == "__main__":
    main()

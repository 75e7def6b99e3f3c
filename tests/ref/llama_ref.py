#!/usr/bin/env python3
"""A plain implementation of the llama decoder over a GGUF file, the oracle for Cairn's models. numpy
only, float32 products and float64 softmax and scores; shares nothing with the runtime.

    llama_ref.py MODEL.gguf --ids '[504,2123]' [--top 2] [--generate 64] [sparse settings]
    llama_ref.py MODEL.gguf --text TEXT | --file FILE ...        (needs `pip install tokenizers`)

Without sparse settings attention is dense. With --page-size, every token (with --generate: every
token after the prompt) attends what DESIGN.md's table "what a query attends" says:
    --topk K --window W --sinks N --source minmax|mean --strategy group|head
Prints one JSON object with the members of `cairn eval` or `cairn generate --json`, and "nll" per
token or "margins" per step besides."""
import argparse
import json

import numpy as np

from gguf_reader import Gguf


class Sparse:
    """One selection rule: which tokens a query sees."""

    def __init__(self, page_size, topk, window=0, sinks=0, source="minmax", strategy="group"):
        assert source in ("minmax", "mean") and strategy in ("group", "head")
        self.page_size, self.topk, self.window, self.sinks = page_size, topk, window, sinks
        self.source, self.strategy = source, strategy

    def page_scores(self, q, k):
        """q [heads, rows, D] of one KV head, k [tokens, D] -> [rows, complete pages]."""
        size, scale = self.page_size, q.shape[-1] ** -0.5
        pages = k[:len(k) // size * size].reshape(-1, size, k.shape[1]).astype(np.float64)
        q = q.astype(np.float64)
        if self.source == "mean":
            scores = q @ pages.mean(1).T
        else:
            scores = np.maximum(q, 0) @ pages.max(1).T + np.minimum(q, 0) @ pages.min(1).T
        scores = scores * scale
        return scores.sum(0) if self.strategy == "group" else scores.max(0)

    def allowed(self, q, k, first):
        """Rows at positions first, first + 1, ...: bool [rows, tokens]."""
        size, rows, tokens = self.page_size, q.shape[1], len(k)
        scores = self.page_scores(q, k)
        seen = np.zeros((rows, tokens), bool)
        for row in range(rows):
            i = first + row
            edge = (i - self.window + 1) // size if self.window > 0 else i // size
            seen[row, :min(self.sinks, i + 1)] = True
            seen[row, i // size * size:i + 1] = True
            if self.window > 0:
                seen[row, max(0, edge) * size:i + 1] = True
            order = np.argsort(-scores[row, :max(0, edge)], kind="stable")
            for page in order[:self.topk]:
                seen[row, page * size:(page + 1) * size] = True
        return seen


class Llama:
    def __init__(self, gguf):
        meta = gguf.meta
        assert meta["general.architecture"] == b"llama"
        self.layers = meta["llama.block_count"]
        self.heads = meta["llama.attention.head_count"]
        self.kv_heads = meta["llama.attention.head_count_kv"]
        self.epsilon = meta["llama.attention.layer_norm_rms_epsilon"]
        self.base = meta.get("llama.rope.freq_base", 10000.0)
        names = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate",
                 "ffn_up", "ffn_down"]
        self.blocks = [{n: gguf.tensor(f"blk.{i}.{n}.weight") for n in names}
                       for i in range(self.layers)]
        self.embedding = gguf.tensor("token_embd.weight")
        self.norm_weight = gguf.tensor("output_norm.weight")
        self.head = gguf.tensor("output.weight") if "output.weight" in gguf.tensors else self.embedding
        self.dim = self.blocks[0]["attn_q"].shape[0] // self.heads
        self.clear()

    def clear(self):
        self.keys = [np.zeros((self.kv_heads, 0, self.dim), np.float32) for _ in range(self.layers)]
        self.values = [k.copy() for k in self.keys]

    def norm(self, x, weight):
        mean = (x.astype(np.float64) ** 2).mean(-1, keepdims=True)
        return (x / np.sqrt(mean + self.epsilon)).astype(np.float32) * weight

    def rotate(self, x, first):
        """x [heads, rows, D]: pairs (2j, 2j + 1) turned by position * base^(-2j / D)."""
        angle = np.arange(first, first + x.shape[1])[:, None] * \
            self.base ** (-np.arange(0, self.dim, 2) / self.dim)
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)

    def attend(self, q, k, v, first, sparse):
        """q [heads, rows, D] of one KV head; k, v [tokens, D] -> [heads, rows, D]."""
        tokens = len(k)
        if sparse:
            seen = sparse.allowed(q, k, first)
        else:
            seen = np.arange(tokens) <= first + np.arange(q.shape[1])[:, None]
        scores = (q @ k.T).astype(np.float64) * self.dim ** -0.5
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return (weights / weights.sum(-1, keepdims=True)).astype(np.float32) @ v

    def split(self, x, heads):
        return x.reshape(len(x), heads, self.dim).transpose(1, 0, 2)

    def attention(self, x, layer, first, sparse):
        w = self.blocks[layer]
        q = self.rotate(self.split(x @ w["attn_q"].T, self.heads), first)
        k = self.rotate(self.split(x @ w["attn_k"].T, self.kv_heads), first)
        v = self.split(x @ w["attn_v"].T, self.kv_heads)
        self.keys[layer] = np.concatenate([self.keys[layer], k], 1)
        self.values[layer] = np.concatenate([self.values[layer], v], 1)
        group = self.heads // self.kv_heads
        out = [self.attend(q[h * group:(h + 1) * group], self.keys[layer][h], self.values[layer][h],
                           first, sparse) for h in range(self.kv_heads)]
        return np.concatenate(out).transpose(1, 0, 2).reshape(len(x), -1) @ w["attn_output"].T

    def feed_forward(self, x, layer):
        w = self.blocks[layer]
        gate = x @ w["ffn_gate"].T
        return (gate / (1 + np.exp(-gate)) * (x @ w["ffn_up"].T)) @ w["ffn_down"].T

    def forward(self, tokens, sparse=None):
        """Appends tokens; logits [tokens, vocab]."""
        first = self.keys[0].shape[1]
        x = self.embedding[np.asarray(tokens)]
        for layer, w in enumerate(self.blocks):
            x = x + self.attention(self.norm(x, w["attn_norm"]), layer, first, sparse)
            x = x + self.feed_forward(self.norm(x, w["ffn_norm"]), layer)
        return self.norm(x, self.norm_weight) @ self.head.T


def token_nll(logits, tokens):
    """-log p of tokens 2..n, each from the row before it."""
    rows = logits[:-1].astype(np.float64)
    top = rows.max(-1)
    total = top + np.log(np.exp(rows - top[:, None]).sum(-1))
    return total - rows[np.arange(len(rows)), tokens[1:]]


def best(logits, count):
    """The `count` best ids of each row, lowest id first among equals, and their logits."""
    ids = np.argsort(-logits, axis=-1, kind="stable")[:, :count]
    return ids, np.take_along_axis(logits, ids, -1)


def evaluate(model, tokens, top=0, sparse=None):
    model.clear()
    logits = model.forward(tokens, sparse)
    nll = token_nll(logits, tokens)
    out = {"tokens": len(tokens), "mean_nll": float(nll.mean()), "nll": [float(x) for x in nll]}
    if top:
        out["top"] = [{"ids": [int(i) for i in ids], "logits": [float(x) for x in values]}
                      for ids, values in zip(*best(logits, top))]
    return out


def generate(model, tokens, count, ends=(), sparse=None):
    """Greedy. The prompt is dense; margins[n] is the lead of ids[n] over the second best."""
    model.clear()
    logits, ids, margins = model.forward(tokens)[-1:], [], []
    while True:
        (pair,), (values,) = best(logits, 2)
        ids.append(int(pair[0]))
        margins.append(float(values[0] - values[1]))
        if len(ids) == count or ids[-1] in ends:
            return {"ids": ids, "margins": margins, "stop": "eos" if ids[-1] in ends else "length"}
        logits = model.forward(ids[-1:], sparse)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--ids", type=json.loads)
    parser.add_argument("--text")
    parser.add_argument("--file")
    parser.add_argument("--top", type=int, default=0)
    parser.add_argument("--generate", type=int, default=0)
    parser.add_argument("--page-size", type=int)
    parser.add_argument("--topk", type=int, default=32)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--sinks", type=int, default=4)
    parser.add_argument("--source", default="minmax")
    parser.add_argument("--strategy", default="group")
    args = parser.parse_args()
    gguf = Gguf(args.model)
    if args.ids is None:
        import hf_tokenizer
        text = args.text if args.file is None else open(args.file, encoding="utf-8", newline="").read()
        args.ids = hf_tokenizer.from_gguf(gguf).encode(text, add_special_tokens=False).ids
    sparse = args.page_size and Sparse(args.page_size, args.topk, args.window, args.sinks,
                                       args.source, args.strategy)
    model = Llama(gguf)
    if args.generate:
        ends = {gguf.meta["tokenizer.ggml.eos_token_id"]}
        print(json.dumps({"prompt_ids": args.ids, **generate(model, args.ids, args.generate, ends, sparse)}))
    else:
        print(json.dumps(evaluate(model, args.ids, args.top, sparse)))


if __name__ == "__main__":
    main()

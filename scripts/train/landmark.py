#!/usr/bin/env python3
"""Trains a landmark adapter: pages that end in a token whose key tells what the page holds.

    python3 scripts/train/landmark.py MODEL.gguf SAMPLES OUT [--minutes 13] [--device cuda]
    python3 scripts/train/landmark.py MODEL.gguf --check CHECK OUT

SAMPLES is the folder that landmark_samples.lua wrote. A sequence is a text of a whole context with things said
once, and a tail in which they are asked for. Its rows run as Cairn runs them: behind every S - 1 tokens a
landmark, which nobody attends; the text attends all tokens before, each row of the tail the first tokens, its
window, and the pages that its landmarks score highest. Three losses: the cross-entropy of the answers; the
distance of all other rows from what the model says without adapter and with all pages; and in each layer the
distance of the landmarks' scores from what the pages weigh in the row's whole attention. Labels of landmarks
there are none. OUT holds checkpoint.pt, from which the same command goes on, log.csv, loss.svg, and the
adapter, adapter.gguf.
"""
import json
import os

import numpy as np
import torch
import torch.nn.functional as F

from train import Low, Model, Run, checked, parser


class Adapter(Low):
    """The landmark's embedding besides."""

    def __init__(self, model, rank, scale, seed):
        super().__init__(model, rank, scale, torch.Generator().manual_seed(seed))
        self.landmark = torch.nn.Parameter(model.embed.float().mean(0).cpu())

    def tensors(self):
        return {"landmark_embedding": self.landmark, **super().tensors()}


class Samples:
    """Sequences of `tokens` ids, the last `tail` of them with questions, and the labels of these: -1 of a row
    that learns from the model."""

    def __init__(self, folder, tokens, tail):
        self.text = np.fromfile(os.path.join(folder, "text.bin"), np.uint16)
        with open(os.path.join(folder, "needles.json")) as f:
            parts = json.load(f)
        self.needles = parts.pop("needles")
        self.parts, self.tokens, self.tail = parts, tokens, tail

    def chosen(self, rng):
        """Needles of different keys, as many as a sequence has."""
        found = {}
        for n in rng.integers(0, len(self.needles), int(rng.integers(1, 25))):
            found.setdefault(self.needles[n]["key"], self.needles[n])
        return list(found.values())

    def asked(self, rng, needles):
        """Questions with their answers that fit into the tail; ids and labels."""
        p, ids, labels = self.parts, [], []
        chat = rng.random() < 0.5
        for i in rng.permutation(len(needles)):
            n = needles[i]
            before = (p["user"] if ids else []) + n["question"] + p["end"] + p["assistant"] + n["chat"] if chat else (
                p["line"] + n["question"] + n["plain"])
            after = n["answer"] + p["stop"]
            if len(ids) + len(before) + len(after) + 8 > self.tail:
                break
            labels += [-1] * (len(before) - 1) + after + [-1]
            ids += before + after
            if chat:
                ids, labels = ids + p["end"], labels + [-1] * len(p["end"])
        return ids, labels, chat

    def sequence(self, rng):
        needles = self.chosen(rng) if rng.random() < 0.7 else []
        ids, labels, chat = self.asked(rng, needles)
        first = self.parts["user"] if chat and ids else []
        said = sum(len(n["said"]) for n in needles)
        count = self.tokens - len(ids) - len(first) - said
        at = int(rng.integers(0, len(self.text) - count))
        text, places = self.text[at:at + count].astype(np.int64), np.sort(rng.integers(0, count, len(needles)))
        pieces, from_ = [np.array(first, np.int64)], 0
        for place, n in zip(places, needles):
            pieces += [text[from_:place], np.array(n["said"], np.int64)]
            from_ = place
        whole = np.concatenate(pieces + [text[from_:], np.array(ids, np.int64)])
        return whole, np.array(([-1] * self.tail + labels)[-self.tail:], np.int64)

    def batch(self, rng, count):
        """Ids, labels, rows of the tail whose pages are looked at, answers among them; rows of the text that are
        held to what the model says, too."""
        ids, labels = zip(*(self.sequence(rng) for _ in range(count)))
        probes = []
        for row in labels:
            answers = rng.permutation(np.flatnonzero(row >= 0))[:PROBES // 2]
            probes.append(np.append(answers, rng.integers(0, self.tail, PROBES - len(answers))))
        others = rng.integers(0, self.tokens - self.tail, 128)
        return [torch.from_numpy(np.stack(part)) for part in (ids, labels, probes, others)]


class Places:
    """Where a sequence's rows stand: text and tail, each with its landmarks, pages of S slots."""

    def __init__(self, tokens, tail, size, device):
        real = size - 1
        if tokens % real or tail % real:
            raise SystemExit(f"{tokens} tokens with a tail of {tail}: multiples of {real} are expected")
        self.tokens, self.tail, self.size, self.text = tokens, tail, size, tokens - tail
        at = torch.arange(tokens, device=device)
        ends = torch.arange(real - 1, tokens, real, device=device)
        self.split = self.text // real # landmarks of the text
        # rows: tokens, then landmarks; a landmark turns by the place of the token before it
        self.turns = torch.cat((at, ends))
        self.key = at
        self.page_of = at // real
        # rows of the tail: tokens, then its landmarks
        self.row_turns = torch.cat((at[self.text:], ends[self.split:]))
        slots = self.row_turns + self.row_turns // real
        slots[tail:] += 1
        self.slots = slots
        self.sees_text = self.key[None, :self.text] <= ends[:self.split, None]

    def rule(self, window, sinks):
        """Pages that a row of the tail may choose [rows, pages], and tokens that it sees besides
        [rows, tokens]."""
        pages = torch.arange(self.tokens // (self.size - 1), device=self.slots.device)
        may = pages[None] < torch.div(self.slots - window + 1, self.size, rounding_mode="floor")[:, None]
        past = self.key[None] <= self.row_turns[:, None]
        return may, past & (~may[:, self.page_of] | (self.key[None] < sinks)), past


class Rule:
    """What the tail's rows of one step attend."""

    def __init__(self, places, window, topk, sinks):
        self.topk = topk
        self.may, self.besides, self.past = places.rule(window, sinks)
        self.near = self.besides.any(0).nonzero()[:, 0] # tokens that some row sees besides chosen pages


def lse(scores, sees):
    return scores.masked_fill(~sees, -torch.inf).logsumexp(-1, keepdim=True)


def choose(model, rule, scores_of, q, k, keys):
    """Pages of each row and KV head [B, kv_heads, rows, pages], as softmax_head chooses."""
    group, pages = model.heads // model.kv_heads, keys.shape[2]
    other = lse(scores_of(q, k[:, :, rule.near]), rule.besides[:, rule.near])
    said = scores_of(q, keys).masked_fill(~rule.may, -torch.inf)
    best = torch.cat((said, other), -1).log_softmax(-1)[..., :-1].unflatten(1, (-1, group)).amax(2)
    least = best.topk(min(rule.topk, pages), -1).values[..., -1:]
    return (best >= least) & rule.may


def distances(rule, size, scores_of, q, k, keys, probes, chosen):
    """Of the rows `probes` [B, rows] of the tail: how far the landmarks' scores are from what the pages weigh,
    among all that is attended and among the candidates; the share of the best pages' weight that the chosen
    have. A page weighs by its tokens but for the sinks, which are attended anyway."""
    take = lambda t: torch.gather(t, 2, probes[:, None, :, None].expand(-1, t.shape[1], -1, t.shape[3]))
    may, besides, past = (t[probes][:, None] for t in (rule.may, rule.besides, rule.past))
    q = take(q.detach())
    with torch.no_grad():
        scores = scores_of(q, k)
        other = lse(scores, besides)
        weighs = lse(scores.unflatten(-1, (-1, size - 1)), (past & ~besides).unflatten(-1, (-1, size - 1)))[..., 0]
        weighs = weighs.masked_fill(~may, -torch.inf)
        target = torch.cat((weighs, other), -1).softmax(-1)
        shares = target[..., :-1]
        mass = shares.sum(-1, keepdim=True)
        kept = (shares * take(chosen).repeat_interleave(q.shape[1] // k.shape[1], 1)).sum()
        most = shares.topk(min(rule.topk, shares.shape[-1]), -1).values.sum()
    said = scores_of(q, keys).masked_fill(~may, -1e4)
    away = lambda target, logs: (target * (target.clamp_min(1e-20).log() - logs)).sum(-1)
    among = away(shares / mass.clamp_min(1e-20), said.log_softmax(-1)) * (mass[..., 0] + 0.05)
    whole = away(target, torch.cat((said, other), -1).log_softmax(-1))
    return (whole + among).mean(), kept / most.clamp_min(1e-9)


def attend_tail(model, places, rule, q, k, v, keys, probes):
    """Rows q [B, heads, rows, dim] of the tail over the tokens' k and v, by the landmarks' keys."""
    scores_of = lambda q, k: torch.matmul(q.float(), model.spread(k).float().transpose(-1, -2)) * model.dim ** -0.5
    with torch.no_grad():
        chosen = choose(model, rule, scores_of, q, k, keys)
        sees = model.spread(chosen[..., places.page_of] & rule.past | rule.besides)
    attended = F.scaled_dot_product_attention(q, model.spread(k), model.spread(v), attn_mask=sees)
    return attended, *distances(rule, places.size, scores_of, q, k, keys, probes, chosen)


def stream(model, adapter, ids, places, rule, probes):
    """What the head reads of all tokens [B, tokens, hidden], and the means of the layers' distances and
    shares."""
    b, n, text = len(ids), places.tokens, places.text
    ends = n + places.split # rows: tokens of the text, of the tail, landmarks of the text, of the tail
    x = torch.cat((F.embedding(ids, model.embed), adapter.landmark.to(model.dtype).expand(
        b, n // (places.size - 1), -1)), 1)
    angles = model.angles(places.turns[None].expand(b, -1))
    apart, share = 0.0, 0.0
    for layer in range(model.layers):
        q, k, v = model.heads_of(layer, x, angles, adapter)
        keys, k, v = k[:, :, n:], k[:, :, :n], v[:, :, :n]
        of_text = model.spread(k[:, :, :text]), model.spread(v[:, :, :text])
        before = F.scaled_dot_product_attention(q[:, :, :text], *of_text, is_causal=True)
        marks = F.scaled_dot_product_attention(q[:, :, n:ends], *of_text, attn_mask=places.sees_text)
        tail = torch.cat((q[:, :, text:n], q[:, :, ends:]), 2)
        behind, distance, kept = attend_tail(model, places, rule, tail, k, v, keys, probes)
        x = model.behind(layer, x, torch.cat((before, behind[:, :, :n - text], marks, behind[:, :, n - text:]), 2),
                         adapter)
        apart, share = apart + distance, share + kept
    return model.norm(x[:, :n], model.output_norm), apart / model.layers, share / model.layers


def plain(model, ids):
    """What the head reads without adapter and landmarks, all tokens attended."""
    positions = torch.arange(ids.shape[1], device=ids.device)[None].expand(ids.shape)
    return model.rows(F.embedding(ids, model.embed), positions, None)[0]


def losses(model, adapter, batch, places, rule):
    """Of the answers, of all other rows, of the pages; and the share."""
    ids, labels, probes, others = batch
    with torch.no_grad():
        there = plain(model, ids)
    here, pages, share = stream(model, adapter, ids, places, rule, probes)
    head = lambda x: F.linear(x, model.head).float().log_softmax(-1)
    ours, answers = head(here[:, places.text:]), labels >= 0
    said = -torch.gather(ours, 2, labels.clamp_min(0)[..., None])[..., 0]
    apart = lambda theirs, ours: F.kl_div(ours, theirs, log_target=True, reduction="none").sum(-1)
    tail = apart(head(there[:, places.text:]), ours)
    text = apart(head(there[:, others]), head(here[:, others]))
    mean = lambda x, where: (x * where).sum() / where.sum().clamp_min(1)
    return mean(said, answers), mean(tail, ~answers) + text.mean(), pages, share


RULES = [(64, 4), (64, 8), (64, 14), (256, 11)] # windows and pages chosen, by turns
PROBES = 320 # rows of a tail


def train(o):
    dtype = torch.bfloat16 if o.device == "cuda" else torch.float32
    model = Model(o.model, o.device, dtype)
    adapter = Adapter(model, o.rank, 2.0, o.seed).to(o.device)
    if o.begin:
        adapter.load(o.begin)
    places = Places(o.tokens, o.tail, o.page, o.device)
    rules = [Rule(places, window, topk, 4) for window, topk in RULES]
    samples = Samples(o.samples, o.tokens, o.tail)
    opt = torch.optim.AdamW(adapter.parameters(), lr=o.rate, betas=(0.9, 0.98), weight_decay=0.0,
                            fused=o.device == "cuda")
    run = Run(o, adapter, opt, {"answers": "#06c", "model": "#c60", "pages": "#888"})
    while run.step < o.steps:
        batch = [t.to(o.device) for t in samples.batch(np.random.default_rng([o.seed, run.step]), o.batch)]
        adapter.zero_grad(set_to_none=True)
        said, rest, pages, share = losses(model, adapter, batch, places, rules[run.step % len(rules)])
        (said + rest + 3 * pages).backward()
        run.learn()
        run.note(lambda: {"answers": said.item(), "model": rest.item(), "pages": pages.item(), "share": share.item()})
    size = run.finish({})
    print(f"the adapter has {size / 1e6:.2f} MB, seed {o.seed}, {o.steps} steps of {o.batch * o.tokens} tokens")


def check(o):
    """What Cairn says of a row (landmark_check.lua) against the same row here."""
    model, adapter, rows, theirs = checked(o, Adapter)
    places = Places(len(rows["ids"]), rows["tail"], o.page, "cpu")
    with torch.no_grad():
        ids = torch.tensor([rows["ids"]])
        some, all_ = (stream(model, adapter, ids, places, Rule(places, rows["window"], topk, 4),
                             torch.zeros(1, 1, dtype=torch.int64))[0][:, -1] for topk in (rows["topk"], 1 << 20))
        said, wanted, whole = (F.linear(t, model.head) for t in (theirs, some, all_))
    apart = ((said - wanted).abs().max() / wanted.std()).item()
    print(f"logits of the last row: {apart:.4f} of their deviation apart at most; "
          f"{((whole - wanted).abs().max() / wanted.std()).item():.4f} from those of all pages")
    if not apart < 0.05:
        raise SystemExit("that is too far apart")


def main():
    o = parser(__doc__, 1e-3, batch=2, tokens=8064, tail=1008, page=64, rank=8, every=20).parse_args()
    torch.manual_seed(o.seed)
    check(o) if o.check else train(o)


if __name__ == "__main__":
    main()

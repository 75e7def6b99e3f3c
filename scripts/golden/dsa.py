"""Logits and chosen tokens of small random models with DSA attention (DeepSeek V3.2, GLM 5) by Hugging
Face transformers, for tests/model/deepseek_test.c. The test writes the models, each time the same; this
reads them, gives their weights to transformers under its own names, and keeps some rows of what it says.

transformers' indexer scores in full precision; models are served with queries and keys that Hadamard's
matrix has turned, in e4m3 with scales that are powers of two. That is a choice of bits that changes
which tokens are best, so the indexer here does as served ones do, by the published formulas.

    pip install numpy gguf==0.19.0 torch==2.6.0 transformers==5.23.0
    build/test/deepseek_test build/dsa          writes build/dsa/*.gguf
    python3 scripts/golden/dsa.py build/dsa tests/golden/dsa"""
import json
import pathlib
import sys
import zlib

import torch
import transformers
from families import COUNT, File, text

ROWS = [0, 1, 17, 40, 63, 89]

NAMES = {
    "attn_norm.weight": "input_layernorm.weight", "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn_q_a.weight": "self_attn.q_a_proj.weight", "attn_q_a_norm.weight": "self_attn.q_a_layernorm.weight",
    "attn_q_b.weight": "self_attn.q_b_proj.weight",
    "attn_kv_a_mqa.weight": "self_attn.kv_a_proj_with_mqa.weight",
    "attn_kv_a_norm.weight": "self_attn.kv_a_layernorm.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "indexer.attn_q_b.weight": "self_attn.indexer.wq_b.weight",
    "indexer.attn_k.weight": "self_attn.indexer.wk.weight",
    "indexer.k_norm.weight": "self_attn.indexer.k_norm.weight",
    "indexer.k_norm.bias": "self_attn.indexer.k_norm.bias",
    "indexer.proj.weight": "self_attn.indexer.weights_proj.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight", "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight"}


def hadamard(x):
    n = 1
    while n < x.shape[-1]:
        pairs = x.reshape(*x.shape[:-1], -1, 2, n)
        x = torch.cat([pairs[..., :1, :] + pairs[..., 1:, :], pairs[..., :1, :] - pairs[..., 1:, :]], -2)
        x = x.reshape(*x.shape[:-3], -1)
        n *= 2
    return x * x.shape[-1] ** -0.5


def rounded(x):
    """x as e4m3 times a power of two for each 128 values."""
    most = x.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    scale = 2.0 ** torch.ceil(torch.log2(most.double() / 448)).to(x.dtype)
    return (x / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale


def turn(x, cos, sin, interleaved):
    """The first 64 values of x [tokens, heads, 128]; cos and sin [tokens, 64], halves alike."""
    cos, sin = cos[:, None, :32], sin[:, None, :32]
    a, b = (x[..., 0:64:2], x[..., 1:64:2]) if interleaved else (x[..., :32], x[..., 32:64])
    turned = a * cos - b * sin, a * sin + b * cos
    turned = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return torch.cat([turned, x[..., 64:]], -1)


def scores(indexer, hidden, q_latent, rotation, interleaved, served):
    cos, sin = rotation[0][0], rotation[1][0]
    q = turn(indexer.wq_b(q_latent[0]).view(-1, indexer.n_heads, 128), cos, sin, interleaved)
    k = turn(indexer.k_norm(indexer.wk(hidden[0]))[:, None], cos, sin, interleaved)[:, 0]
    if served:
        q, k = rounded(hadamard(q)), rounded(hadamard(k))
    weights = indexer.weights_proj(hidden[0]) * (indexer.n_heads * 128) ** -0.5
    out = torch.einsum("th,ths->ts", weights, torch.relu(torch.einsum("thd,sd->ths", q, k)))
    return out.masked_fill(torch.ones_like(out, dtype=torch.bool).triu(1), -torch.inf)


def as_served(model, interleaved, chosen):
    """Puts the served form of the indexer into each layer; what it chooses goes to `chosen`."""
    for layer in model.model.layers:
        indexer = layer.self_attn.indexer

        def forward(hidden, q_latent, rotation, *_, indexer=indexer, plain=indexer.forward, **more):
            own = scores(indexer, hidden, q_latent, rotation, interleaved, False)
            k = min(indexer.index_topk, own.shape[-1])
            theirs = plain(hidden, q_latent, rotation, *_, **more)[0]
            for row in range(k, own.shape[0]):  # the same formula, but for what serving adds
                assert set(own[row].topk(k).indices.tolist()) == set(theirs[row].tolist()), row
            served = scores(indexer, hidden, q_latent, rotation, interleaved, True)
            order = served.sort(dim=-1, descending=True, stable=True)
            margin = [((order.values[r, k - 1] - order.values[r, k]) / served[r, :r + 1].abs().max()).item()
                      for r in range(k, own.shape[0])]
            print("  closest choice", min(margin, default=None))
            chosen.append([sorted(order.indices[r, :min(k, r + 1)].tolist()) for r in range(own.shape[0])])
            return order.indices[None, :, :k].to(torch.int32)

        indexer.forward = forward


def rope(f):
    settings = dict(rope_type="default", rope_theta=f.key("rope.freq_base", 10000.0))
    if f.key("rope.scaling.type") == "yarn":
        more = round(f.key("rope.scaling.yarn_log_multiplier", 0) * 10, 4)
        settings.update(
            rope_type="yarn", factor=f.key("rope.scaling.factor"), mscale=more, mscale_all_dim=more,
            beta_fast=32, beta_slow=1,
            original_max_position_embeddings=f.key("rope.scaling.original_context_length"))
    return settings


def model_of(f):
    deepseek = f.architecture == "deepseek32"
    layers, heads = f.key("block_count"), f.key("attention.head_count")
    settings = dict(
        vocab_size=f.tensors["token_embd.weight"].shape[0], hidden_size=f.key("embedding_length"),
        intermediate_size=f.key("feed_forward_length"), num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads, q_lora_rank=f.key("attention.q_lora_rank"),
        kv_lora_rank=f.key("attention.kv_lora_rank"), qk_rope_head_dim=64,
        qk_nope_head_dim=f.key("attention.key_length_mla") - 64,
        v_head_dim=f.key("attention.value_length_mla"), index_topk=f.key("attention.indexer.top_k"),
        index_n_heads=f.key("attention.indexer.head_count"), first_k_dense_replace=layers,
        max_position_embeddings=f.key("context_length"), rope_parameters=rope(f),
        rms_norm_eps=f.key("attention.layer_norm_rms_epsilon"), attn_implementation="eager",
        tie_word_embeddings="output.weight" not in f.tensors)
    config, model = (("DeepseekV32Config", "DeepseekV32ForCausalLM") if deepseek else
                     ("GlmMoeDsaConfig", "GlmMoeDsaForCausalLM"))
    model = getattr(transformers, model)(getattr(transformers, config)(**settings))
    state = {"model.embed_tokens.weight": f.tensors["token_embd.weight"],
             "model.norm.weight": f.tensors["output_norm.weight"]}
    state["lm_head.weight"] = f.tensors.get("output.weight", f.tensors["token_embd.weight"])
    for name, tensor in f.tensors.items():
        _, layer, rest = name.split(".", 2) if name.startswith("blk.") else ("", "", "")
        if rest in NAMES:
            state[f"model.layers.{layer}.{NAMES[rest]}"] = tensor
        elif rest == "attn_k_b.weight":
            values = f.tensors[f"blk.{layer}.attn_v_b.weight"]
            state[f"model.layers.{layer}.self_attn.kv_b_proj.weight"] = torch.cat(
                [tensor.transpose(1, 2), values], 1).flatten(0, 1)
    missing, unknown = model.load_state_dict(state, strict=False)
    assert not missing and not unknown, (missing, unknown)
    return model.float().eval(), not deepseek


def say(path):
    f = File(path)
    chosen, ids = [], text(f.tensors["token_embd.weight"].shape[0])
    model, interleaved = model_of(f)
    as_served(model, interleaved, chosen)
    with torch.no_grad():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0].double()
    nll = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])).item()
    return dict(crc=zlib.crc32(pathlib.Path(path).read_bytes()), nll=round(nll, 6), rows=ROWS,
                chosen=[[layer[r] for r in range(COUNT) if r in ROWS] for layer in chosen],
                logits=[[float(f"{x:.4g}") for x in logits[r].tolist()] for r in ROWS])


def main():
    source, to = map(pathlib.Path, sys.argv[1:3])
    to.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("*.gguf")):
        print(path.stem)
        (to / (path.stem + ".json")).write_text(json.dumps(say(path), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

"""Logits of small random models of each family by Hugging Face transformers, for
tests/model/family_files_test.c. The test writes the models, each time the same; this reads them, gives
their weights to transformers under its own names, and keeps some rows of what it says.

    pip install numpy gguf==0.19.0 torch==2.5.1 transformers==4.56.2
    build/test/family_files_test build/families     writes build/families/*.gguf
    python3 scripts/golden/families.py build/families tests/golden/families"""
import json
import pathlib
import sys
import zlib

import numpy
import torch
import transformers
from gguf import GGUFReader, dequantize

COUNT = 90                     # tokens of a text
ROWS = [0, 1, 17, 40, 63, 89]  # whose logits are kept


class File:
    def __init__(self, path):
        reader = GGUFReader(path)
        self.keys = {k: v.contents() for k, v in reader.fields.items()}
        self.architecture = self.keys["general.architecture"]
        self.tensors = {t.name: torch.tensor(numpy.array(dequantize(t.data, t.tensor_type)))
                        for t in reader.tensors}

    def key(self, name, otherwise=None):
        return self.keys.get(f"{self.architecture}.{name}", otherwise)


def halves(weight, heads):
    """Files of the llama form keep rotated pairs side by side; transformers keeps halves apart."""
    rows = weight.shape[0] // heads // 2
    return weight.reshape(heads, rows, 2, -1).transpose(1, 2).reshape(weight.shape)


def common(f):
    """What all configurations of transformers have."""
    heads = f.key("attention.head_count")
    return dict(
        vocab_size=f.tensors["token_embd.weight"].shape[0], hidden_size=f.key("embedding_length"),
        intermediate_size=f.key("feed_forward_length"), num_hidden_layers=f.key("block_count"),
        num_attention_heads=heads, num_key_value_heads=f.key("attention.head_count_kv"),
        head_dim=f.key("attention.key_length"), max_position_embeddings=f.key("context_length"),
        rms_norm_eps=f.key("attention.layer_norm_rms_epsilon"),
        rope_theta=f.key("rope.freq_base", 10000.0),
        tie_word_embeddings="output.weight" not in f.tensors, attn_implementation="eager")


def scaling(f):
    """rope_scaling, as config.json would have it, and the context that goes with it."""
    kind, factor = f.key("rope.scaling.type"), f.key("rope.scaling.factor")
    original = f.key("rope.scaling.original_context_length")
    if "rope_freqs.weight" in f.tensors:  # the file holds what these four numbers come to
        return dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                    original_max_position_embeddings=32)
    if "rope_factors_long.weight" in f.tensors:
        return dict(type="longrope", long_factor=f.tensors["rope_factors_long.weight"].tolist(),
                    short_factor=f.tensors["rope_factors_short.weight"].tolist())
    if kind == "linear":
        return dict(rope_type="linear", factor=factor)
    if kind == "yarn":
        return dict(rope_type="yarn", factor=factor, original_max_position_embeddings=original)
    return None


NAMES = {
    "attn_norm.weight": "input_layernorm.weight", "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight", "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight", "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q.bias": "self_attn.q_proj.bias", "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.bias": "self_attn.v_proj.bias",
    "attn_q_norm.weight": "self_attn.q_norm.weight", "attn_k_norm.weight": "self_attn.k_norm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight", "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight"}


def weights(f, names, permuted=False):
    """The state of a model of transformers."""
    state = {"model.embed_tokens.weight": f.tensors["token_embd.weight"],
             "model.norm.weight": f.tensors["output_norm.weight"]}
    state["lm_head.weight"] = f.tensors.get("output.weight", f.tensors["token_embd.weight"])
    for name, tensor in f.tensors.items():
        if not name.startswith("blk."):
            continue
        _, layer, rest = name.split(".", 2)
        if permuted and rest == "attn_q.weight":
            tensor = halves(tensor, f.key("attention.head_count"))
        if permuted and rest == "attn_k.weight":
            tensor = halves(tensor, f.key("attention.head_count_kv"))
        state[f"model.layers.{layer}.{names[rest]}"] = tensor
    return state


def llama(f):
    settings = common(f)
    window = f.key("attention.sliding_window")
    if window:
        config = transformers.MistralConfig(sliding_window=window, **settings)
        return transformers.MistralForCausalLM(config), weights(f, NAMES, True)
    config = transformers.LlamaConfig(rope_scaling=scaling(f), **settings)
    return transformers.LlamaForCausalLM(config), weights(f, NAMES, True)


def qwen2(f):
    settings = common(f)
    del settings["head_dim"]  # hidden / heads
    config = transformers.Qwen2Config(rope_scaling=scaling(f), **settings)
    return transformers.Qwen2ForCausalLM(config), weights(f, NAMES)


def qwen3(f):
    config = transformers.Qwen3Config(rope_scaling=scaling(f), **common(f))
    return transformers.Qwen3ForCausalLM(config), weights(f, NAMES)


def qwen3moe(f):
    settings = common(f)
    experts = f.key("expert_count")
    settings.update(
        num_experts=experts, num_experts_per_tok=f.key("expert_used_count"), norm_topk_prob=True,
        moe_intermediate_size=f.key("expert_feed_forward_length"), rope_scaling=scaling(f))
    names = {"ffn_gate_inp.weight": "mlp.gate.weight"} | NAMES
    whole = {}
    for name, tensor in list(f.tensors.items()):  # one tensor an expert
        if "_exps." in name:
            _, layer, rest = name.split(".", 2)
            kind = rest.split("_")[1]
            for i in range(experts):
                whole[f"model.layers.{layer}.mlp.experts.{i}.{kind}_proj.weight"] = tensor[i]
            del f.tensors[name]
    config = transformers.Qwen3MoeConfig(**settings)
    return transformers.Qwen3MoeForCausalLM(config), weights(f, names) | whole


def gemma3(f):
    settings = common(f)
    period = f.key("attention.sliding_window_pattern", 6)
    layers = range(f.key("block_count"))
    settings.update(
        tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh",
        query_pre_attn_scalar=f.key("attention.scale", f.key("attention.key_length") ** -0.5) ** -2,
        sliding_window=f.key("attention.sliding_window"), rope_scaling=scaling(f),
        rope_local_base_freq=f.key("rope.freq_base_swa", 10000.0),
        layer_types=["full_attention" if (i + 1) % period == 0 else "sliding_attention" for i in layers])
    names = dict(NAMES)
    names["post_attention_norm.weight"] = "post_attention_layernorm.weight"
    names["ffn_norm.weight"] = "pre_feedforward_layernorm.weight"
    names["post_ffw_norm.weight"] = "post_feedforward_layernorm.weight"
    state = weights(f, names)
    for name in state:  # transformers adds 1 to them
        if name.endswith("norm.weight"):
            state[name] = state[name] - 1
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**settings)), state


def phi3(f):
    settings = common(f)
    dim = settings.pop("head_dim")  # hidden / heads in transformers' Phi 3
    settings.update(
        partial_rotary_factor=f.key("rope.dimension_count") / dim, rope_scaling=scaling(f),
        sliding_window=f.key("attention.sliding_window"), pad_token_id=0,
        original_max_position_embeddings=f.key("rope.scaling.original_context_length",
                                               f.key("context_length")))
    names = dict(NAMES)
    names["attn_qkv.weight"] = "self_attn.qkv_proj.weight"
    names["ffn_up.weight"] = "mlp.gate_up_proj.weight"
    return transformers.Phi3ForCausalLM(transformers.Phi3Config(**settings)), weights(f, names)


def smollm3(f):
    settings = common(f)
    config = transformers.SmolLM3Config(pad_token_id=0, **settings)
    return transformers.SmolLM3ForCausalLM(config), weights(f, NAMES, True)


def lfm2(f):
    settings = common(f)
    kv = settings.pop("num_key_value_heads")
    del settings["head_dim"], settings["rms_norm_eps"]  # hidden / heads
    settings.update(num_key_value_heads=max(kv), norm_eps=f.key("attention.layer_norm_rms_epsilon"),
                    conv_L_cache=f.key("shortconv.l_cache"), block_auto_adjust_ff_dim=False,
                    layer_types=["full_attention" if n else "conv" for n in kv], pad_token_id=0)
    names = {"attn_norm.weight": "operator_norm.weight", "ffn_norm.weight": "ffn_norm.weight",
             "attn_output.weight": "self_attn.out_proj.weight",
             "attn_q_norm.weight": "self_attn.q_layernorm.weight",
             "attn_k_norm.weight": "self_attn.k_layernorm.weight",
             "ffn_gate.weight": "feed_forward.w1.weight", "ffn_up.weight": "feed_forward.w3.weight",
             "ffn_down.weight": "feed_forward.w2.weight",
             "shortconv.in_proj.weight": "conv.in_proj.weight",
             "shortconv.out_proj.weight": "conv.out_proj.weight",
             "shortconv.conv.weight": "conv.conv.weight"}
    f.tensors["output_norm.weight"] = f.tensors["token_embd_norm.weight"]
    state = weights(f, NAMES | names)
    state["model.embedding_norm.weight"] = state.pop("model.norm.weight")
    for name in state:
        if name.endswith("conv.conv.weight"):
            state[name] = state[name].unsqueeze(1)
    return transformers.Lfm2ForCausalLM(transformers.Lfm2Config(**settings)), state


FAMILIES = {"llama": llama, "qwen2": qwen2, "qwen3": qwen3, "qwen3moe": qwen3moe, "gemma3": gemma3, "phi3": phi3,
            "smollm3": smollm3, "lfm2": lfm2}


def text(vocab):
    """Ids that the test makes in the same way."""
    ids, state = [], 7
    for _ in range(COUNT):
        state = (state * 1103515245 + 12345) % 2**31
        ids.append(1 + (state >> 8) % (vocab - 1))
    return ids


def say(path):
    f = File(path)
    model, state = FAMILIES[f.architecture](f)
    missing, unknown = model.load_state_dict(state, strict=False)
    assert not missing and not unknown, (missing, unknown)
    ids = text(model.config.vocab_size)
    with torch.no_grad():
        logits = model.float().eval()(torch.tensor([ids]), use_cache=False).logits[0].double()
    nll = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])).item()
    return dict(crc=zlib.crc32(pathlib.Path(path).read_bytes()), nll=round(nll, 6), rows=ROWS,
                logits=[[float(f"{x:.4g}") for x in logits[r].tolist()] for r in ROWS])


def main():
    source, to = map(pathlib.Path, sys.argv[1:3])
    to.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("*.gguf")):
        out = say(path)
        (to / (path.stem + ".json")).write_text(json.dumps(out, separators=(",", ":")) + "\n")
        print(path.stem, out["nll"])


if __name__ == "__main__":
    main()

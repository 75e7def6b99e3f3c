"""Holds tests/golden/model.json against Hugging Face transformers on the same weights, dequantised to
float32: the reference of the reference.

    pip install numpy torch transformers
    python3 tests/ref/check_transformers.py SmolLM2-135M-Instruct.Q4_1.gguf tests/golden/model.json"""
import json
import sys

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from gguf_reader import Gguf

NAMES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj"}


def halves(weight, heads):
    """GGUF keeps rotated pairs side by side; transformers keeps their halves apart."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def build(gguf):
    meta = {k.removeprefix("llama."): v for k, v in gguf.meta.items()}
    config = LlamaConfig(
        vocab_size=meta["vocab_size"], hidden_size=meta["embedding_length"],
        intermediate_size=meta["feed_forward_length"], num_hidden_layers=meta["block_count"],
        num_attention_heads=meta["attention.head_count"], num_key_value_heads=meta["attention.head_count_kv"],
        rms_norm_eps=meta["attention.layer_norm_rms_epsilon"], max_position_embeddings=meta["context_length"],
        rope_theta=meta["rope.freq_base"], tie_word_embeddings=True, attn_implementation="eager")
    if hasattr(config, "rope_parameters"):
        config.rope_parameters = {"rope_type": "default", "rope_theta": meta["rope.freq_base"]}
    model = LlamaForCausalLM(config).float().eval()
    state = {"model.embed_tokens.weight": gguf.tensor("token_embd.weight"),
             "model.norm.weight": gguf.tensor("output_norm.weight")}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    for i in range(config.num_hidden_layers):
        for ours, theirs in NAMES.items():
            weight = gguf.tensor(f"blk.{i}.{ours}.weight")
            if ours in ("attn_q", "attn_k"):
                heads = config.num_attention_heads if ours == "attn_q" else config.num_key_value_heads
                weight = halves(weight, heads)
            state[f"model.layers.{i}.{theirs}.weight"] = weight
    missing, unexpected = model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in state.items()}, strict=False)
    assert not unexpected and not missing, (missing, unexpected)
    return model


def check(model, device, prompt):
    ids = torch.tensor([prompt["ids"]], device=device)
    with torch.no_grad():
        logits = model(ids).logits[0].float().cpu()
    want_ids, want = torch.tensor(prompt["top_ids"]), torch.tensor(prompt["top_logits"])
    clear = (want[:, 0] - want[:, 1]) >= 0.1
    other = logits.argmax(-1) != want_ids[:, 0]
    nll = torch.nn.functional.cross_entropy(logits[:-1].double(), ids[0, 1:].cpu()).item()
    error = (logits.gather(1, want_ids) - want).abs().max().item()
    greedy = model.generate(ids, max_new_tokens=len(prompt["greedy"]["ids"]), do_sample=False,
                            attention_mask=torch.ones_like(ids), pad_token_id=2, eos_token_id=2,
                            repetition_penalty=1.0)[0, ids.shape[1]:].tolist()
    same = next((i for i, (a, b) in enumerate(zip(greedy, prompt["greedy"]["ids"])) if a != b), len(greedy))
    margin = prompt["greedy"]["margins"][same] if same < len(greedy) else None
    print(f"{prompt['name']}: {len(prompt['ids'])} tokens, largest logit error {error:.5f}, other best token "
          f"{int(other.sum())} ({int((other & clear).sum())} of them with margin >= 0.1), mean nll {nll:.6f} against "
          f"{prompt['mean_nll']:.6f}, greedy same for {same} of {len(greedy)} tokens (margin there {margin})")
    return not (other & clear).any() and abs(nll - prompt["mean_nll"]) < 1e-4 and (margin is None or margin < 0.01)


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = build(Gguf(sys.argv[1])).to(device)
    with open(sys.argv[2]) as file:
        results = [check(model, device, p) for p in json.load(file)["prompts"]]
    print("agrees" if all(results) else "DIFFERS")
    return not all(results)


if __name__ == "__main__":
    np.seterr(all="raise")
    sys.exit(main())

"""Writes tests/golden/model.json with llama_ref.py, float32 weights.

    pip install numpy tokenizers
    OPENBLAS_NUM_THREADS=1 python3 tests/ref/make_model_goldens.py SmolLM2-135M-Instruct.Q4_1.gguf

A few minutes; one BLAS thread is the fastest here."""
import hashlib
import json
import sys

import hf_tokenizer
import llama_ref
from gguf_reader import Gguf
from prompts import PROMPTS

SETTINGS = [  # page_size, topk, window, sinks, source, strategy
    (16, 4, 64, 4, "minmax", "group"), (16, 8, 0, 4, "minmax", "group"), (16, 2, 33, 1, "minmax", "head"),
    (16, 4, 64, 4, "mean", "head"), (32, 2, 48, 20, "mean", "group"), (64, 2, 128, 4, "minmax", "group")]
COVERS_ALL = (16, 4096, 32, 4, "minmax", "group")
GREEDY = {"prose": 80, "code": 80, "copy": 96, "chat": 96, "scripts": 64, "long": 96}


def named(setting):
    return dict(zip(("page_size", "topk", "window", "sinks", "source", "strategy"), setting))


def rounded(values, digits):
    return [round(v, digits) for v in values]


def golden(model, ids, count, end, name):
    dense = llama_ref.evaluate(model, ids, 2)
    everything = llama_ref.evaluate(model, ids, 0, llama_ref.Sparse(*COVERS_ALL))
    assert abs(everything["mean_nll"] - dense["mean_nll"]) < 1e-6
    out = {"mean_nll": round(dense["mean_nll"], 6), "nll": rounded(dense["nll"], 4),
           "top_ids": [t["ids"] for t in dense["top"]],
           "top_logits": [rounded(t["logits"], 4) for t in dense["top"]],
           "greedy": llama_ref.generate(model, ids, count, {end}), "sparse": []}
    for setting in SETTINGS if len(ids) > 90 else SETTINGS[:3]:
        rule = llama_ref.Sparse(*setting)
        result = llama_ref.evaluate(model, ids, 0, rule)
        row = {**named(setting), "mean_nll": round(result["mean_nll"], 6), "nll": rounded(result["nll"], 4)}
        if name in ("copy", "long") and setting in (SETTINGS[0], SETTINGS[3]):
            row["greedy"] = llama_ref.generate(model, ids, count, {end}, rule)
            row["greedy"]["margins"] = rounded(row["greedy"]["margins"], 4)
        out["sparse"].append(row)
        print(name, len(ids), setting, out["mean_nll"], row["mean_nll"], flush=True)
    out["greedy"]["margins"] = rounded(out["greedy"]["margins"], 4)
    return out


def main():
    gguf = Gguf(sys.argv[1])
    tokenizer = hf_tokenizer.from_gguf(gguf)
    model = llama_ref.Llama(gguf)
    prompts = []
    for name, text in PROMPTS.items():
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        result = golden(model, ids, GREEDY[name], gguf.meta["tokenizer.ggml.eos_token_id"], name)
        result["greedy"]["text"] = tokenizer.decode(result["greedy"]["ids"], skip_special_tokens=False)
        prompts.append({"name": name, "text": text, "ids": ids, **result})
    sha = hashlib.sha256(gguf.bytes).hexdigest()
    with open("tests/golden/model.json", "w") as file:
        text = json.dumps({"model": "SmolLM2-135M-Instruct.Q4_1.gguf", "sha256": sha, "prompts": prompts},
                          separators=(",", ":"))
        file.write(text.replace('},{"', '},\n{"').replace(',"top_ids"', ',\n"top_ids"')
                   .replace(',"top_logits"', ',\n"top_logits"').replace(',"greedy"', ',\n"greedy"')
                   .replace(',"sparse"', ',\n"sparse"').replace(',"nll"', ',\n"nll"') + "\n")


main()

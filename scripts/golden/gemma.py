"""tests/golden/gemma3_270m.json: what SentencePiece and transformers say of Gemma 3 270M.

    ./build.sh model gemma3
    pip install torch transformers==4.56.2 gguf sentencepiece protobuf
    python3 scripts/golden/gemma.py build/model/gemma-3-270m-q4_k_m.gguf > tests/golden/gemma3_270m.json

Ids are those of SentencePiece itself, on a model file made from the vocabulary, the scores and the
types that the GGUF file holds. The mean NLL and the greedy ids are transformers', in float32 on the
dequantised weights; `sure` of the greedy ids come before the first whose best two logits are closer
than 0.1.
"""
import json
import sys

import gguf
import sentencepiece
import torch
from sentencepiece import sentencepiece_model_pb2 as pb

import families

TEXT = """The history of computing began long before the modern computer. In 1837 Charles Babbage
described a machine that could follow a program, and Ada Lovelace wrote notes on how it might be used
to compute numbers and even to compose music.

  Indented  text,\ttabs; émigré, naïve, 東京は大きい, Привет!, 🙂🙂, 3.14159 & 1,000,000 <b>x</b>
"""
PROMPT = "The history of computing began long before the modern computer."


def tokenizer_of(path):
    fields = gguf.GGUFReader(path).fields

    def values(key):
        return fields["tokenizer.ggml." + key].contents()

    model = pb.ModelProto()
    model.trainer_spec.model_type = pb.TrainerSpec.BPE
    model.trainer_spec.byte_fallback = True
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = False
    model.normalizer_spec.remove_extra_whitespaces = False
    names = [("pad_id", "padding"), ("eos_id", "eos"), ("bos_id", "bos"), ("unk_id", "unknown")]
    for field, key in names:
        setattr(model.trainer_spec, field, int(values(key + "_token_id")))
    for text, score, kind in zip(values("tokens"), values("scores"), values("token_type")):
        if kind == pb.ModelProto.SentencePiece.USER_DEFINED:
            text = text.replace(" ", "\u2581")  # GGUF has runs of spaces as they are
        model.pieces.add(piece=text, score=float(score), type=int(kind))
    for field, key in names:
        piece = model.pieces[getattr(model.trainer_spec, field)]
        setattr(model.trainer_spec, key.replace("padding", "pad").replace("unknown", "unk") + "_piece", piece.piece)
    return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString()), int(values("bos_token_id"))


def model_of(path):
    file = families.File(path)
    model, state = families.FAMILIES[file.architecture](file)
    missing, unknown = model.load_state_dict(state, strict=False)
    assert not missing and not unknown, (missing, unknown)
    return model.float().eval()


def main(path):
    tokenizer, bos = tokenizer_of(path)
    ids = [bos] + tokenizer.encode(TEXT)
    prompt = [bos] + tokenizer.encode(PROMPT)
    model = model_of(path)
    with torch.no_grad():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0]
        nll = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])).item()
        said = model.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False, pad_token_id=0)[0]
        best = model(said[None], use_cache=False).logits[0].topk(2).values
    close = (best[len(prompt) - 1:-1, 0] - best[len(prompt) - 1:-1, 1] < 0.1).tolist()
    json.dump({"text": TEXT, "ids": ids, "nll": nll, "prompt": PROMPT, "prompt_ids": prompt,
               "greedy": said[len(prompt):].tolist(), "sure": close.index(True) if True in close else 40},
              sys.stdout, ensure_ascii=True)
    print()


main(sys.argv[1])

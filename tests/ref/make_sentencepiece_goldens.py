"""Writes tests/golden/sentencepiece.json: small vocabularies trained by the Python package
`sentencepiece`, and what it makes of texts with them; and their files, tests/golden/folders/pieces-NAME.

    pip install sentencepiece tokenizers jinja2 numpy
    python3 tests/ref/make_sentencepiece_goldens.py"""
import io
import json
import pathlib
import random

import sentencepiece

from make_tokenizer_goldens import PROSE, texts

SPACES = ["▁" * n for n in (2, 3, 4, 8)]
KINDS = [  # name, options of the trainer, added space
    ("llama", {"byte_fallback": True, "add_dummy_prefix": True, "vocab_size": 700}),
    ("gemma", {"byte_fallback": True, "add_dummy_prefix": False, "vocab_size": 720,
               "user_defined_symbols": SPACES + ["\n", "\n\n", "<tool>", "<tool>>"]}),
    ("phrases", {"add_dummy_prefix": True, "vocab_size": 420, "split_by_whitespace": False,
                 "character_coverage": 0.98}),
    ("unigram", {"model_type": "unigram", "byte_fallback": True, "vocab_size": 500}),
    ("unigram-phrases", {"model_type": "unigram", "vocab_size": 300, "split_by_whitespace": False,
                         "character_coverage": 0.98}),
    ("unigram-trims", {"model_type": "unigram", "vocab_size": 200, "remove_extra_whitespaces": True}),
]


def cases_of(name):
    rng = random.Random(name)
    parts = ["the", "The", " ", " ", "  ", "     ", "\n", "\n\n\n", "\t", "▁", "▁▁", "machine", "com", "put",
             "é", "你好", "👍🏽", "42", "'s", "<tool>", "<tool>>", "<s>", "</s>", "<0x41>", "<unk>", "x\u0301"]
    cases = [t for t in texts() if len(t) <= 30 and "\0" not in t]
    cases += ["".join(rng.choice(parts) for _ in range(rng.choice((2, 4, 12, 60)))) for _ in range(160)]
    cases += [PROSE, "a" * 500, "the" * 200, " " * 300, "▁" * 100]
    # user-defined spaces are found in the text as it is, as llama.cpp does: not beside U+2581
    return list(dict.fromkeys(t for t in cases if name != "gemma" or "▁" not in t))


def vocabulary(name, options):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter((PROSE + " the then them there these of the the of in the\n").split("\n") * 20),
        model_writer=out, normalization_rule_name="identity", hard_vocab_limit=False, minloglevel=2,
        **{"model_type": "bpe", "remove_extra_whitespaces": False, **options})
    path = pathlib.Path("tests/golden/folders/pieces-" + name)
    path.mkdir(exist_ok=True)
    (path / "tokenizer.model").write_bytes(out.getvalue())
    p = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    ids = range(p.get_piece_size())
    kind = lambda i: (2 if p.is_unknown(i) else 3 if p.is_control(i) else 6 if p.is_byte(i) else
                      4 if p.id_to_piece(i) in options.get("user_defined_symbols", []) else 1)
    return {"name": name, "space_prefix": options.get("add_dummy_prefix", True),
            "unigram": options.get("model_type") == "unigram",
            "remove_extra_whitespaces": options.get("remove_extra_whitespaces", False),
            "tokens": [p.id_to_piece(i) for i in ids], "scores": [p.get_score(i) for i in ids],
            "types": [kind(i) for i in ids],
            "cases": [{"text": t, "ids": p.encode(t)} for t in cases_of(name)]}


def main():
    value = {"vocabularies": [vocabulary(*kind) for kind in KINDS]}
    with open("tests/golden/sentencepiece.json", "w") as file:
        file.write(json.dumps(value, separators=(",", ":")).replace('},{"text"', '},\n{"text"') + "\n")


main()

"""What Hugging Face's libraries say of folders of models, for tests/model/folders_test.c.

Logits: the test writes small random models of each family, each time the same; transformers reads
them as they lie there, and some rows of what it says are kept. Tokenizers: the library tokenizers
trains one of each form on the texts below; its tokenizer.json is kept beside the ids of other texts.

    pip install numpy torch safetensors transformers==4.56.2
    build/test/folders_test build/models            writes build/models/NAME/
    python3 scripts/golden/folders.py build/models tests/golden/folders"""
import json
import pathlib
import sys
import zlib

import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, \
    processors, trainers

COUNT = 70             # tokens of a text
ROWS = [0, 1, 40, 69]  # whose logits are kept
MARK = "\u2581"

CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|")
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LINES = SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SLASHES = TAIL.replace(r"\r\n]*", r"\r\n/]*")
PATTERNS = {"llama-bpe": LINES + r"\p{N}{1,3}" + TAIL, "qwen2": LINES + r"\p{N}" + TAIL,
            "gpt-4o": CASED % (SHORT + "?", SHORT + "?") + r"\p{N}{1,3}" + SLASHES,
            "tekken": CASED % ("", "") + r"\p{N}" + SLASHES}

LEARNT = ["The fog lay over the harbour, and the ships waited for the tide.",
          "He wouldn't say what he'd seen; they've asked him THREE times, haven't they?",
          "for (int i = 0; i < 1024; i++) { sum += values[i] * 0.5; }\n    return sum;\n",
          "In 1969, 12345 people and 678 horses crossed the river.  Two  spaces   three.",
          "Die Straße führt über den Hügel. L'été est arrivé, déjà! Привет, мир. 你好，世界。"]
ASKED = LEARNT + [
    "", " ", "  ", "a", " a", "a ", "\n", "\n\n x", "\t\ttabs", "the the  the   the",
    "It's John's, isn't it? I'LL SAY.", "camelCase HTTPServer mixedUP", "path/to/file//name\n",
    "1 22 333 4444 55555", "日本語テキスト 😀👍🏽 naïve", "x\u0301y \u00a0nbsp\u3000wide",
    "before<|end|>after <|end|> <tool>x</tool> <unk> <0x41>", "ﬁ ½ ①", "tail  \n  \n"]


def text(vocab):
    """Ids that the test makes in the same way."""
    ids, state = [], 7
    for _ in range(COUNT):
        state = (state * 1103515245 + 12345) % 2**31
        ids.append(1 + (state >> 8) % (vocab - 1))
    return ids


def say(folder):
    model, seen = transformers.AutoModelForCausalLM.from_pretrained(
        folder, torch_dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not any(seen.values()), seen
    ids = text(model.config.vocab_size)
    with torch.no_grad():
        logits = model.eval()(torch.tensor([ids]), use_cache=False).logits[0].double()
    return dict(crc=zlib.crc32((folder / "model.safetensors").read_bytes()), rows=ROWS,
                logits=[[float(f"{x:.4g}") for x in logits[r].tolist()] for r in ROWS])


def byte_level(name):
    """Byte-level BPE, its words cut as the name says."""
    t = Tokenizer(models.BPE(ignore_merges=name == "llama-bpe"))
    if name in PATTERNS:
        steps = [pre_tokenizers.Split(Regex(PATTERNS[name]), "isolated"),
                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    elif name == "smollm":
        steps = [pre_tokenizers.Digits(individual_digits=True),
                 pre_tokenizers.ByteLevel(add_prefix_space=False)]
    else:
        steps = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    t.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(LEARNT, trainers.BpeTrainer(
        vocab_size=340, show_progress=False, special_tokens=["<|begin|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("</tool>", normalized=False)])
    if name == "llama-bpe":
        t.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
                single="<|begin|> $A", pair="<|begin|> $A $B",
                special_tokens=[("<|begin|>", t.token_to_id("<|begin|>"))])])
    return t


def characters(name):
    """BPE over characters as SentencePiece's vocabularies are converted."""
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    named = ["<unk>", "<s>", "<|end|>"] + [f"<0x{i:02X}>" for i in range(256)]
    if name != "phrases":
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    else:  # tokens reach over words
        t.normalizer = normalizers.Replace(" ", MARK)
    t.train_from_iterator([s.translate({ord(c): "" for c in "你好，世界。"}) for s in LEARNT],
                          trainers.BpeTrainer(vocab_size=400, show_progress=False, special_tokens=named))
    state = json.loads(t.to_str())
    state["added_tokens"] = [a for a in state["added_tokens"] if a["id"] < 3]
    t = Tokenizer.from_str(json.dumps(state))
    if name == "llama":
        t.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
        t.pre_tokenizer = None
    elif name == "gemma":
        t.normalizer = normalizers.Replace(" ", MARK)
        t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    elif name in ("always", "first"):
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=name, split=False)
    t.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return t


def scored(name):
    """A unigram model as SentencePiece's are converted."""
    t = Tokenizer(models.Unigram())
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    named = ["<unk>", "<s>", "<|end|>"] + [f"<0x{i:02X}>" for i in range(256)] * (name != "unigram-split")
    t.train_from_iterator([s.translate({ord(c): "" for c in "你好，世界。"}) for s in LEARNT * 8],
                          trainers.UnigramTrainer(vocab_size=140 + len(named), show_progress=False,
                                                  special_tokens=named, unk_token="<unk>"))
    state = json.loads(t.to_str())
    state["added_tokens"] = [a for a in state["added_tokens"] if a["id"] < 3]
    state["model"]["byte_fallback"] = name != "unigram-split"
    t = Tokenizer.from_str(json.dumps(state))
    if name == "unigram":
        t.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
        t.pre_tokenizer = None
    elif name == "unigram-first":
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    t.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return t


def tokenizers(to):
    forms = {n: byte_level(n) for n in ["gpt-2", "smollm"] + list(PATTERNS)}
    forms |= {n: characters(n) for n in ["llama", "gemma", "always", "first", "phrases"]}
    forms |= {n: scored(n) for n in ["unigram", "unigram-first", "unigram-split"]}
    for name, t in forms.items():
        (to / name).mkdir(parents=True, exist_ok=True)
        t.save(str(to / name / "tokenizer.json"), pretty=False)
        asked = [s for s in ASKED if "<unk>" not in s or name in PATTERNS]
        cases = [dict(text=s, ids=t.encode(s, add_special_tokens=False).ids) for s in asked]
        out = dict(vocab=t.get_vocab_size(), adds=t.encode("a").ids[:-1], cases=cases)
        (to / name / "cases.json").write_text(json.dumps(out, separators=(",", ":")) + "\n")


def saved(path):
    """A state dict with a view, a parameter, two tensors of one storage, and a module's metadata."""
    model = torch.nn.Module()
    model.model = torch.nn.Module()
    whole = ((torch.arange(2 * 400 * 4) % 13) * 0.25).reshape(800, 4).to(torch.bfloat16)
    model.model.embed_tokens = torch.nn.Embedding(400, 4, dtype=torch.bfloat16)
    state = model.state_dict()
    state["model.embed_tokens.weight"] = whole[100:500]
    state["model.layers.0.self_attn.q_proj.weight"] = whole[110:113]
    state["model.norm.weight"] = torch.nn.Parameter(torch.arange(6) * 0.25)
    torch.save(state, path)


def main():
    source, to = map(pathlib.Path, sys.argv[1:3])
    transformers.logging.set_verbosity_error()
    to.mkdir(parents=True, exist_ok=True)
    for folder in sorted(p for p in source.iterdir() if p.is_dir()):
        (to / (folder.name + ".json")).write_text(json.dumps(say(folder), separators=(",", ":")) + "\n")
        print(folder.name)
    tokenizers(to)
    saved(to / "state.pt")


if __name__ == "__main__":
    main()

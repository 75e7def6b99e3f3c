"""The Hugging Face tokenizer that a GGUF file's metadata describes. Needs `pip install tokenizers`."""
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers


def build(tokens, types, merges, pre):
    """tokens, merges: lists of str as they stand in the file; pre: "smollm" or "gpt-2"."""
    model = models.BPE({text: i for i, text in enumerate(tokens)},
                       [tuple(m.split(" ")) for m in merges])
    tokenizer = Tokenizer(model)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre_tokenizers.Digits(individual_digits=True)
    steps = {"smollm": [digits, byte_level], "gpt-2": [byte_level]}[pre]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False)
                                  for text, kind in zip(tokens, types) if kind == 3])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False)
                          for text, kind in zip(tokens, types) if kind == 4])
    return tokenizer


def from_gguf(gguf):
    meta = gguf.meta
    return build([t.decode() for t in meta["tokenizer.ggml.tokens"]],
                 meta["tokenizer.ggml.token_type"],
                 [m.decode() for m in meta["tokenizer.ggml.merges"]],
                 meta["tokenizer.ggml.pre"].decode())

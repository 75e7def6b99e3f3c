"""Writes tests/golden/words.json: the words that the published regular expressions of pre-tokenizers
cut texts into, by Hugging Face `tokenizers`.

    pip install tokenizers jinja2 numpy
    python3 tests/ref/make_words_goldens.py"""
import json
import random

from tokenizers import Regex, pre_tokenizers

from make_tokenizer_goldens import texts

CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|")
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LINES = r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
RULES = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-bpe": SHORT + LINES + r"\p{N}{1,3}|" + TAIL,
    "qwen2": SHORT + LINES + r"\p{N}|" + TAIL,
    "gpt-4o": CASED % (SHORT + "?", SHORT + "?") + r"\p{N}{1,3}|" + TAIL.replace(r"\r\n]*", r"\r\n/]*"),
    "tekken": CASED % ("", "") + r"\p{N}|" + TAIL.replace(r"\r\n]*", r"\r\n/]*"),
}


def hostile():
    """Neighbours that the rules tell apart, in every order."""
    rng = random.Random(17)
    parts = ["a", "B", "Dz", "ǅ", "ʰ", "你", "\u0301", "\u0903", "'s", "'S", "'LL", "'Re", "'ſ", "'", "''",
             " ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "/", "//", "!", "…", "1", "42", "٣", "½", "_",
             "Ω", "ß", "İ", "ſ", "K", "the", "The", "HTTP", "camelCase", "Ᏸ", "ꭰ", "ა", "Ა", "𝔘", "👍🏽", "\u200d"]
    cases = []
    for most in (3, 5, 8, 40):
        cases += ["".join(rng.choice(parts) for _ in range(most)) for _ in range(100)]
    return cases


def main():
    cases = [t for t in texts() if 0 < len(t) <= 400] + hostile()
    rules = {}
    for name, pattern in RULES.items():
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        rules[name] = [[len(piece.encode()) for piece, _ in split.pre_tokenize_str(t)] for t in cases]
    with open("tests/golden/words.json", "w") as file:
        json.dump({"texts": cases, "rules": [{"pre": k, "words": v} for k, v in rules.items()]}, file,
                  separators=(",", ":"))
        file.write("\n")


main()

"""Writes gen/unicode/classes.txt: what the regular expressions of Hugging Face `tokenizers` say of
every code point.

    pip install tokenizers
    python3 tests/ref/make_unicode_classes.py"""
from tokenizers import Regex, pre_tokenizers

HEAD = """# Classes of code points that pre-tokenizers tell apart, from Unicode 16.0: letters as
# U (general categories Lu, Lt), W (Ll) and C (Lm, Lo), M mark (M*), N number (N*), S white space
# (property White_Space). All others are O. These are the classes that the regular expressions of
# Hugging Face tokenizers 0.23 use; tests/ref/make_unicode_classes.py wrote this file.
"""
CLASSES = {"U": r"[\p{Lu}\p{Lt}]", "W": r"\p{Ll}", "C": r"[\p{Lm}\p{Lo}]", "M": r"\p{M}",
           "N": r"\p{N}", "S": r"\s"}


def main():
    points = [c for c in range(0x110000) if not 0xd800 <= c < 0xe000]
    text = "".join(map(chr, points))
    class_of = {}
    for name, pattern in CLASSES.items():
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        for piece, (first, last) in split.pre_tokenize_str(text):
            if last - first == 1:
                class_of.setdefault(first, set()).add(name)
    # a code point between two others of the class stands alone too: each is asked by itself
    for name, pattern in CLASSES.items():
        split = pre_tokenizers.Split(Regex(pattern), "removed")
        for at in [a for a, names in class_of.items() if name in names]:
            if split.pre_tokenize_str(text[at]):
                class_of[at].discard(name)
    runs = []
    for at, point in enumerate(points):
        names = class_of.get(at, set())
        assert len(names) <= 1, (hex(point), names)
        name = "".join(names)
        if runs and runs[-1][2] == name and runs[-1][1] == point - 1:
            runs[-1][1] = point
        else:
            runs.append([point, point, name])
    with open("gen/unicode/classes.txt", "w") as file:
        file.write(HEAD)
        file.writelines("%04X..%04X %s\n" % tuple(run) for run in runs if run[2])


main()

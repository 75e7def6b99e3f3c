"""The weights of a GGUF file of the llama family as float32 arrays, for train.py; files with adapters; and
a copy of a file with a trained landmark's row:

    python3 scripts/train/gguf.py MODEL.gguf ROW.npy OUT.gguf"""
import struct
import sys

import numpy as np

PLAIN = {0: ("B", 1), 1: ("b", 1), 2: ("H", 2), 3: ("h", 2), 4: ("I", 4), 5: ("i", 4), 6: ("f", 4),
         7: ("?", 1), 10: ("Q", 8), 11: ("q", 8), 12: ("d", 8)}


def put_text(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def put_tensor(name, shape, kind, at):
    """What a file says of a tensor of that type; shape: rows first."""
    return put_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, at)


def padded(data, align):
    return data + bytes(-len(data) % align)


def halves(rows, at):
    return rows[:, at:at + 2].copy().view(np.float16).astype(np.float32)


def nibbles(bytes_):
    return np.concatenate([bytes_ & 15, bytes_ >> 4], axis=1).astype(np.float32)


def q4_0(data):
    rows = data.reshape(-1, 18)
    return halves(rows, 0) * (nibbles(rows[:, 2:]) - 8)


def q4_1(data):
    rows = data.reshape(-1, 20)
    return halves(rows, 0) * nibbles(rows[:, 4:]) + halves(rows, 2)


def q8_0(data):
    rows = data.reshape(-1, 34)
    return halves(rows, 0) * rows[:, 2:].copy().view(np.int8).astype(np.float32)


# type: values of a block, its bytes, how it is read
TYPES = {0: (1, 4, lambda d: d.view(np.float32).astype(np.float32)),
         1: (1, 2, lambda d: d.view(np.float16).astype(np.float32)),
         2: (32, 18, q4_0), 3: (32, 20, q4_1), 8: (32, 34, q8_0)}


class File:
    """keys: what the file says; tensors: name to float32 array, its rows first."""

    def __init__(self, path):
        self.data = np.fromfile(path, dtype=np.uint8)
        self.at = 0
        if self.data[:4].tobytes() != b"GGUF":
            raise SystemExit(f"{path}: no GGUF file")
        self.at = 8
        tensors, keys = self.take("Q", 8), self.take("Q", 8)
        self.keys = {}
        for _ in range(keys):
            name = self.text()
            self.keys[name] = self.value(self.take("I", 4))
        infos = []
        for _ in range(tensors):
            name = self.text()
            shape = [self.take("Q", 8) for _ in range(self.take("I", 4))]
            infos.append((name, shape, self.take("I", 4), self.take("Q", 8)))
        self.listed, self.infos = self.at, infos
        align = self.keys.get("general.alignment", 32)
        self.start = start = -(-self.at // align) * align
        self.tensors = {name: self.tensor(path, name, shape, kind, start + offset)
                        for name, shape, kind, offset in infos}

    def take(self, form, size):
        self.at += size
        return struct.unpack_from("<" + form, self.data, self.at - size)[0]

    def text(self):
        size = self.take("Q", 8)
        self.at += size
        return self.data[self.at - size:self.at].tobytes().decode("utf-8", "replace")

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, count = self.take("I", 4), self.take("Q", 8)
            return [self.value(inner) for _ in range(count)]
        return self.take(*PLAIN[kind])

    def tensor(self, path, name, shape, kind, at):
        if kind not in TYPES:
            raise SystemExit(f"{path}: {name} has type {kind}; F32, F16, Q4_0, Q4_1 and Q8_0 are read")
        values, size, read = TYPES[kind]
        count = int(np.prod(shape))
        bytes_ = self.data[at:at + count // values * size]
        return read(np.ascontiguousarray(bytes_)).reshape(shape[::-1])

    def with_row(self, name, row, out):
        """Writes the file with one tensor more, a row of f32 behind all others."""
        if name in self.tensors:
            raise SystemExit(f"{name}: the file has that already")
        align = self.keys.get("general.alignment", 32)
        values = padded(self.data[self.start:].tobytes(), align)
        row = np.ascontiguousarray(row, dtype=np.float32)
        head = bytearray(self.data[:self.listed].tobytes())
        struct.pack_into("<Q", head, 8, len(self.infos) + 1)
        head += put_tensor(name, row.shape, 0, len(values))
        with open(out, "wb") as file:
            file.write(padded(bytes(head), align) + values + row.tobytes())


def to_q8_0(array):
    """As ggml's Q8_0: blocks of 32 with the scale that brings the largest to 127."""
    rows = array.reshape(-1, 32)
    scale = np.abs(rows).max(1, keepdims=True) / 127
    steps = np.where(scale > 0, rows / np.where(scale > 0, scale, 1), 0)
    return np.concatenate([scale.astype(np.float16).view(np.uint8), np.rint(steps).astype(np.int8).view(np.uint8)],
                          axis=1).tobytes()


WRITTEN = {"F32": (0, lambda a: a.tobytes()), "F16": (1, lambda a: a.astype(np.float16).tobytes()),
           "Q8_0": (8, to_q8_0)}


def write(path, keys, tensors):
    """A file of keys (text, float or count) and tensors, name to (type, float32 array). Returns the values' bytes."""
    head, values, at = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)), [], 0
    for name, value in keys.items():
        kind = 8 if isinstance(value, str) else 6 if isinstance(value, float) else 4
        head += put_text(name) + struct.pack("<I", kind)
        head += put_text(value) if kind == 8 else struct.pack("<f" if kind == 6 else "<I", value)
    for name, (kind, array) in tensors.items():
        number, bytes_of = WRITTEN[kind]
        head += put_tensor(name, array.shape, number, at)
        values.append(padded(bytes_of(np.ascontiguousarray(array, dtype=np.float32)), 32))
        at += len(values[-1])
    with open(path, "wb") as file:
        file.write(padded(head, 32) + b"".join(values))
    return at


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    model, row = File(sys.argv[1]), np.load(sys.argv[2])
    hidden = model.tensors["token_embd.weight"].shape[1]
    if row.shape != (hidden,):
        raise SystemExit(f"{sys.argv[2]}: {list(row.shape)}; [{hidden}] is expected")
    model.with_row("landmark_embedding", row, sys.argv[3])

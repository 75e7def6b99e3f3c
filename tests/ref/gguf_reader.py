"""Reads a GGUF file: metadata as Python values, tensors as float32 arrays. Written from the format's
description; shares nothing with the runtime."""
import mmap
import struct

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class Gguf:
    def __init__(self, path):
        with open(path, "rb") as file:
            self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.at = 4
        assert self.bytes[:4] == b"GGUF"
        version, tensors, keys = self.take("IQQ")
        assert version in (2, 3)
        self.meta = dict(self.pair() for _ in range(keys))
        self.tensors = {}
        for _ in range(tensors):
            name = self.string().decode()
            (dims,) = self.take("I")
            shape = self.take(f"{dims}Q")
            self.tensors[name] = (shape, *self.take("IQ"))
        alignment = self.meta.get("general.alignment", 32)
        self.data = -(-self.at // alignment) * alignment

    def take(self, kinds):
        values = struct.unpack_from("<" + kinds, self.bytes, self.at)
        self.at += struct.calcsize("<" + kinds)
        return values

    def string(self):
        (size,) = self.take("Q")
        self.at += size
        return self.bytes[self.at - size:self.at]

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            element, count = self.take("IQ")
            return [self.value(element) for _ in range(count)]
        return self.take(SCALARS[kind])[0]

    def pair(self):
        name = self.string().decode()
        (kind,) = self.take("I")
        return name, self.value(kind)

    def tensor(self, name):
        """float32, row-major: shape (out, in) for a matrix."""
        import numpy as np
        shape, kind, offset = self.tensors[name]
        count = int(np.prod(shape))

        def raw(dtype, size):
            return np.frombuffer(self.bytes, dtype, size, self.data + offset)

        if kind == 0:
            x = raw("<f4", count)
        elif kind == 1:
            x = raw("<f2", count).astype("f4")
        elif kind == 30:
            x = (raw("<u2", count).astype("u4") << 16).view("f4")
        else:
            head, size = {2: (2, 18), 3: (4, 20), 8: (2, 34)}[kind]
            blocks = raw("u1", count // 32 * size).reshape(-1, size)
            scale = blocks[:, :2].copy().view("<f2").astype("f4")
            quants = blocks[:, head:]
            if kind == 8:
                x = quants.view("i1").astype("f4") * scale
            else:
                nibbles = np.concatenate([quants & 15, quants >> 4], 1).astype("f4")
                low = blocks[:, 2:4].copy().view("<f2").astype("f4") if kind == 3 else -8 * scale
                x = nibbles * scale + low
        return np.ascontiguousarray(x.reshape(shape[::-1]), "f4")

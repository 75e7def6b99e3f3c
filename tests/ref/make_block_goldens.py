"""Writes tests/golden/blocks.bin: random blocks of each format and their values as the Python
package `gguf` has them (pip install gguf). For each format: u32 type, u32 bytes, u32 values, the
blocks, the values as f32; little-endian.

    python3 tests/ref/make_block_goldens.py
"""
import struct

import numpy
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize
from gguf.constants import GGML_QUANT_SIZES

# Where the f16 factors of a block stand; they are kept finite.
FACTORS = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
           T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.F16: [0], T.BF16: [0], T.F32: []}
VALUES = 768

random = numpy.random.default_rng(20261122)
with open("tests/golden/blocks.bin", "wb") as out:
    for kind, factors in FACTORS.items():
        per_block, size = GGML_QUANT_SIZES[kind]
        blocks = random.integers(0, 256, (VALUES // per_block, size), dtype=numpy.uint8)
        for at in factors:  # no infinity, no NaN; denormals and negative ones stay
            high = blocks[:, at + 1]
            high[(high & 0x7C) == 0x7C] ^= 0x40
        if kind == T.F32:
            blocks = random.standard_normal((VALUES, 1), dtype=numpy.float32).view(numpy.uint8)
        values = dequantize(blocks.reshape(1, -1), kind).astype("<f4").reshape(-1)
        assert len(values) == VALUES and numpy.isfinite(values).all(), kind
        out.write(struct.pack("<III", int(kind), blocks.size, VALUES))
        out.write(blocks.tobytes())
        out.write(values.tobytes())

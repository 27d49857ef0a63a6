"""Writes objects as R's `save` does, for tests."""

import struct

import numpy as np

NIL = struct.pack(">i", 254)
HEAD = {2: b"X\n" + struct.pack(">iii", 2, 0x40000, 0x20300)}
HEAD[3] = b"X\n" + struct.pack(">iiii", 3, 0x40000, 0x30500, 5) + b"UTF-8"


class Writer:
    """Writes objects in R's format; a symbol that was written before is a reference."""

    def __init__(self):
        self.symbols = []

    def chars(self, value):
        if value is None:
            return struct.pack(">ii", 9, -1)
        content = value.encode()
        return struct.pack(">ii", 0x8009, len(content)) + content

    def symbol(self, name):
        if name in self.symbols:
            return struct.pack(">i", (self.symbols.index(name) + 1) << 8 | 255)
        self.symbols.append(name)
        return struct.pack(">i", 1) + self.chars(name)

    def pairs(self, values):
        out = b""
        for name, value in values.items():
            out += struct.pack(">i", 0x402) + self.symbol(name) + value
        return out + NIL

    def vector(self, kind, values, **attributes):
        out = struct.pack(">ii", kind | (0x200 if attributes else 0), len(values))
        if kind in (16, 19):
            out += b"".join(self.chars(v) if kind == 16 else v for v in values)
        else:
            out += np.array(values).astype(">f8" if kind == 14 else ">i4").tobytes()
        return out + (self.pairs(attributes) if attributes else b"")

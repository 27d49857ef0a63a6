"""Read data frames that R has saved: `.RData` files and the databases of installed packages.

Only what plain data frames consist of is read: lists, texts, factors, numbers, logical values and
their attributes, in R's binary format (XDR, versions 2 and 3: "R Internals", section 1.8). A text
that is missing is None. Code in a file is never executed; anything else in it raises ValueError.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_MAGIC = (b"RDX2\n", b"RDX3\n")
_NIL, _ATTRIBUTES, _TAG = 254, 1 << 9, 1 << 10
_SYMBOL, _PAIRS, _CHARS, _LOGICAL, _INTEGER, _REAL, _TEXTS, _LIST = 1, 2, 9, 10, 13, 14, 16, 19
_REFERENCE = 255


class Vector(NamedTuple):
    """A vector of R: its values, and its attributes such as `names` and `levels`."""

    values: Any
    attributes: Mapping[str, Any]

    def named(self) -> dict[str, Any]:
        """The elements of a list or data frame by name; factors as lists of texts."""
        names = self.attributes["names"].values
        return {name: _column(each) for name, each in zip(names, self.values, strict=True)}


def _column(value: Any) -> Any:
    if not isinstance(value, Vector) or "levels" not in value.attributes:
        return value
    levels = value.attributes["levels"].values
    return Vector([levels[code - 1] if code > 0 else None for code in value.values.tolist()], {})


def read_saved(path: Path) -> dict[str, Any]:
    """Return the objects of a file that R's `save` wrote, by name."""
    content = _unpacked(path.read_bytes())
    if content[:5] not in _MAGIC:
        raise ValueError("not a file that R saved in its binary format")
    found = _Reader(content, 5).read()
    return dict(found) if isinstance(found, dict) else {}


def read_database(index: Path, database: Path, name: str) -> Any:
    """Return one object of an installed package's data: `Rdata.rdx` and `Rdata.rdb`."""
    content = _Reader(_unpacked(index.read_bytes()), 0).read()
    places = content.named()["variables"].named()
    if name not in places:
        raise ValueError(f"it has no object {name}")
    start, length = places[name].values.tolist()
    packed = database.read_bytes()[start : start + length]
    return _Reader(_record(packed), 0).read()


def _unpacked(content: bytes) -> bytes:
    if content.startswith(b"BZh"):
        return bz2.decompress(content)
    if content.startswith(b"\xfd7zXZ"):
        return lzma.decompress(content)
    return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content


def _record(packed: bytes) -> bytes:
    """Unpack a record of a database: its length, perhaps the kind of compression, its content."""
    kind = packed[4:5]
    if kind == b"2":
        return bz2.decompress(packed[5:])
    if kind == b"Z":
        raw = {"id": lzma.FILTER_LZMA2, "preset": 6}
        return lzma.decompress(packed[5:], lzma.FORMAT_RAW, filters=[raw])
    return packed[5:] if kind == b"0" else zlib.decompress(packed[4:])


class _Reader:
    """Reads one object from a position on."""

    def __init__(self, content: bytes, at: int) -> None:
        self.content, self.at = content, at
        self.references: list[str] = []
        if self._take(2) != b"X\n":
            raise ValueError("not in R's binary format")
        version = self._integer()
        self._take(8)  # the versions of R that wrote it and that can read it
        if version == 3:
            self._take(self._integer())  # the name of its encoding
        elif version != 2:
            raise ValueError(f"version {version} of R's format")

    def _take(self, count: int) -> bytes:
        taken = self.content[self.at : self.at + count]
        if count < 0 or len(taken) < count:
            raise ValueError("it ends too early")
        self.at += count
        return taken

    def _integer(self) -> int:
        return int(struct.unpack(">i", self._take(4))[0])

    def read(self) -> Any:
        """Read the next object."""
        flags = self._integer()
        kind = flags & 0xFF
        if kind == _NIL:
            return None
        if kind == _REFERENCE:
            number = flags >> 8 or self._integer()
            if not 0 < number <= len(self.references):
                raise ValueError("a reference to nothing")
            return self.references[number - 1]
        if kind == _SYMBOL:
            self.references.append(self.read())
            return self.references[-1]
        if kind == _PAIRS:
            return self._pairs(flags)
        if kind == _CHARS:
            length = self._integer()
            return None if length == -1 else self._take(length).decode("utf-8")
        values = self._values(kind, self._integer())
        attributes = self.read() if flags & _ATTRIBUTES else None
        return Vector(values, attributes or {})

    def _values(self, kind: int, length: int) -> Any:
        if kind in (_TEXTS, _LIST):
            return [self.read() for _ in range(length)]
        if kind in (_INTEGER, _LOGICAL):
            return np.frombuffer(self._take(4 * length), ">i4")
        if kind == _REAL:
            return np.frombuffer(self._take(8 * length), ">f8")
        raise ValueError(f"an object of R's type {kind}")

    def _pairs(self, flags: int) -> dict[str, Any]:
        """Read a pairlist, whose links follow each other, as a dict."""
        out: dict[str, Any] = {}
        while flags & 0xFF == _PAIRS:
            if flags & _ATTRIBUTES:
                self.read()
            tag = self.read() if flags & _TAG else ""
            out[tag] = self.read()
            flags = self._integer()
        if flags & 0xFF != _NIL:
            raise ValueError("a pairlist that does not end")
        return out

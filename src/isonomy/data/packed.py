"""Packed data: a federation in files that are mapped into memory and not loaded.

    x.safetensors       the features of all examples, ordered by client and split
    y.safetensors       labels or targets
    groups.safetensors  one column per protected attribute
    ranges.safetensors  the rows of each client's splits
    names.bin           the names of the clients, if they have names
    federation.json     everything else, with a digest; written last, so packed data are complete

A process uses the memory of the rows that it reads, and the operating system takes it back when it
is needed elsewhere. So a federation may be larger than the memory, and several processes that map
the same files share them. Values are checked when they are packed, and not again.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from isonomy.core.examples import Attribute
from isonomy.data.federation import Federation
from isonomy.errors import DataError

ABOUT, NAMES = "federation.json", "names.bin"
TENSORS = ("x", "y", "groups", "ranges")
HEADER = 256  # bytes before the values of a file: 8 for the length of its header, and the header
_KINDS = {torch.float32: "F32", torch.int64: "I64"}
_SAME = ("classes", "attributes", "labels", "features", "source", "preprocessing")


def pack(parts: Federation | Iterable[Federation], folder: Path | str) -> Federation:
    """Write a federation, or one whose clients arrive in parts, and return it mapped.

    Parts are written one after the other, so that memory for one of them is enough. Their clients
    are different ones, and everything else (classes, attributes, features, ...) is the same.
    """
    place = Path(folder)
    if (place / ABOUT).exists() or (place.is_dir() and any(place.iterdir())):
        raise DataError(f"'{place}' is not empty; choose a new folder for the packed data.")
    place.mkdir(parents=True, exist_ok=True)
    writer = _Writer(place)
    try:
        for part in [parts] if isinstance(parts, Federation) else parts:
            writer.add(part)
        writer.finish()
    except BaseException:
        writer.remove()
        raise
    return open_packed(place)


def open_packed(folder: Path | str) -> Federation:
    """Map packed data; raises a DataError if the folder holds none, or they are incomplete."""
    place = Path(folder).expanduser()
    try:
        about = json.loads((place / ABOUT).read_text(encoding="utf-8"))
        found = {name: _mapped(place / f"{name}.safetensors", name) for name in TENSORS}
        names = _Names(place / NAMES) if about.pop("named") else ()
        attributes = tuple(Attribute(k, tuple(v)) for k, v in about.pop("attributes"))
        listed: dict[str, Any] = {
            key: tuple(about.pop(key)) for key in ("labels", "features", "notes")
        }
        tensors: dict[str, Any] = {name: values for name, (values, _) in found.items()}
        clusters = about.pop("clusters")
        return Federation(
            **tensors,
            **listed,
            **about,
            names=names,
            attributes=attributes,
            clusters=None if clusters is None else tuple(clusters),
            pages=_Pages(found),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DataError(
            f"'{place}' holds no complete packed data ({why}); pack them again with `isonomy data "
            "pack`."
        ) from None


class _Writer:
    """The files of packed data while they are written."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.files: dict[str, _TensorFile] = {}
        self.first: Federation | None = None
        self.names: _NamesFile | None = None
        self.notes: dict[str, None] = {}
        self.clusters: list[int] | None = []
        self.rows = 0

    def add(self, part: Federation) -> None:
        """Append the clients of a part, in their order."""
        if self.first is None:
            self.first = part
            self.files = {name: _TensorFile(self._partial(f"{name}.safetensors"), name)
                          for name in TENSORS}  # fmt: skip
            if len(part.names):
                self.names = _NamesFile(self._partial(NAMES))
        self._check(self.first, part)
        rows, ranges = _in_order(part)
        for name, values in (("x", part.x), ("y", part.y), ("groups", part.groups)):
            self.files[name].add(values if rows is None else values[rows])
        self.files["ranges"].add(ranges + self.rows)
        self.rows += int(ranges[-1, -1, 1])
        if self.names is not None:
            self.names.add(part.name(k) for k in range(len(part)))
        self.notes |= dict.fromkeys(part.notes)
        self.clusters = (
            None
            if part.clusters is None or self.clusters is None
            else [*self.clusters, *part.clusters]
        )

    def _check(self, first: Federation, part: Federation) -> None:
        for name in _SAME:
            if getattr(part, name) != getattr(first, name):
                raise DataError(
                    f"the parts of packed data have different {name}; prepare all clients in the "
                    "same way, and then pack them."
                )
        if part.x.shape[1:] != first.x.shape[1:] or bool(len(part.names)) != bool(len(first.names)):
            raise DataError(
                "the parts of packed data have examples of different shapes, or only some have "
                "names of clients; make them the same."
            )

    def finish(self) -> None:
        """Complete the files; the description comes last."""
        if self.first is None:
            raise DataError("there are no clients to pack; give at least one.")
        digest = hashlib.blake2b(digest_size=16)
        for name in TENSORS:
            digest.update(self.files[name].finish())
            os.replace(self._partial(f"{name}.safetensors"), self.place / f"{name}.safetensors")
        if self.names is not None:
            self.names.finish()
            self.names = None
            digest.update(self._partial(NAMES).read_bytes())
            os.replace(self._partial(NAMES), self.place / NAMES)
        found = self.first
        about = {
            "classes": found.classes,
            "attributes": [[a.name, list(a.levels)] for a in found.attributes],
            "labels": list(found.labels),
            "features": list(found.features),
            "source": found.source,
            "notes": list(self.notes),
            "preprocessing": found.preprocessing,
            "clusters": self.clusters,
            "named": (self.place / NAMES).exists(),
        }
        digest.update(json.dumps(about, sort_keys=True).encode())
        text = json.dumps({**about, "digest": digest.hexdigest()}, indent=1)
        partial = self._partial(ABOUT)
        with open(partial, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, self.place / ABOUT)

    def remove(self) -> None:
        """Delete what was written."""
        for file in self.files.values():
            file.close()
        if self.names is not None:
            self.names.close()
        for name in (ABOUT, NAMES, *(f"{name}.safetensors" for name in TENSORS)):
            self._partial(name).unlink(missing_ok=True)
            (self.place / name).unlink(missing_ok=True)

    def _partial(self, name: str) -> Path:
        return self.place / f".{name}.partial"


def _in_order(part: Federation) -> tuple[Tensor | None, Tensor]:
    """The rows of a part by client and split (None: as they are), and their ranges then."""
    flat = part.ranges.reshape(-1, 2)
    ends = (flat[:, 1] - flat[:, 0]).cumsum(0)
    ranges = torch.stack([torch.cat([ends.new_zeros(1), ends[:-1]]), ends], 1)
    if torch.equal(ranges, flat) and int(ends[-1]) == part.x.shape[0]:
        return None, part.ranges
    sizes = flat[:, 1] - flat[:, 0]
    rows = (flat[:, 0] - ranges[:, 0]).repeat_interleave(sizes) + torch.arange(int(ends[-1]))
    return rows, ranges.reshape(part.ranges.shape)


class _TensorFile:
    """A safetensors file of one tensor, whose first axis grows while it is written."""

    def __init__(self, path: Path, name: str) -> None:
        self.name, self.rows = name, 0
        self.shape: tuple[int, ...] = ()
        self.kind = ""
        self.hash = hashlib.blake2b(digest_size=16)
        self.file = open(path, "wb")  # noqa: SIM115
        self.file.write(b" " * HEADER)

    def add(self, values: Tensor) -> None:
        """Append rows."""
        kind = _KINDS.get(values.dtype)
        shape = tuple(values.shape[1:])
        if kind is None or (self.kind and (self.kind, self.shape) != (kind, shape)):
            raise DataError(
                f"'{self.name}' of packed data is {values.dtype} of shape {shape}; use the same "
                "shape in all parts, and float32 or int64."
            )
        self.kind, self.shape = kind, shape
        self.rows += values.shape[0]
        content = values.contiguous().numpy().data
        if content.nbytes:
            flat = content.cast("B")
            self.file.write(flat)
            self.hash.update(flat)

    def finish(self) -> bytes:
        """Write the header and flush everything to the disk; returns the hash of the content."""
        nbytes = self.file.tell() - HEADER
        about = {"dtype": self.kind, "shape": [self.rows, *self.shape], "data_offsets": [0, nbytes]}
        text = json.dumps({self.name: about}, separators=(",", ":")).encode()
        self.file.seek(0)
        self.file.write((HEADER - 8).to_bytes(8, "little") + text.ljust(HEADER - 8))
        self.file.flush()
        os.fsync(self.file.fileno())
        self.close()
        return self.hash.digest() + text

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def _mapped(path: Path, name: str) -> tuple[Tensor, mmap.mmap | None]:
    """The tensor of a safetensors file, mapped, and the mapping."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        about = json.loads(file.read(min(length, HEADER)))[name]
        start, shape = 8 + length, about["shape"]
        dtype = next(kind for kind, text in _KINDS.items() if text == about["dtype"])
        nbytes = about["data_offsets"][1]
        if os.fstat(file.fileno()).st_size != start + nbytes:
            raise ValueError(f"{path.name} has another size than its header says")
        if not nbytes:
            return torch.empty(shape, dtype=dtype), None
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the values cannot be written
        flat = torch.frombuffer(pages, dtype=dtype, offset=start)
    return flat.reshape(shape), pages


class _Pages:
    """The mapped pages of x, y and groups; see `isonomy.data.federation.Pages`."""

    def __init__(self, maps: Mapping[str, tuple[Tensor, mmap.mmap | None]]) -> None:
        self.maps = [pages for _, pages in maps.values() if pages is not None]
        self.rows = [
            (pages, values[:1].numel() * values.element_size())
            for name, (values, pages) in maps.items()
            if pages is not None and name != "ranges"
        ]

    def fetch(self, ranges: Tensor) -> None:
        """Start to read the rows of some clients, all at once, so that the disk is used well."""
        advice = getattr(mmap, "MADV_WILLNEED", None)
        if advice is None:
            return
        first, last = ranges[:, 0, 0].numpy(), ranges[:, -1, 1].numpy()
        for pages, width in self.rows:
            begin = (HEADER + first * width) // mmap.PAGESIZE * mmap.PAGESIZE
            lengths = HEADER + last * width - begin
            for start, length in zip(begin.tolist(), lengths.tolist(), strict=True):
                pages.madvise(advice, start, length)

    def release(self) -> None:
        """Remove the pages from this process's memory."""
        advice = getattr(mmap, "MADV_DONTNEED", None)
        if advice is not None:
            for pages in self.maps:
                pages.madvise(advice)


class _NamesFile:
    """A file of names: all of them in UTF-8, the byte at which each one ends, and their number."""

    def __init__(self, path: Path) -> None:
        self.file = open(path, "wb")  # noqa: SIM115
        self.ends: list[int] = []

    def add(self, names: Iterable[str]) -> None:
        """Append names."""
        for name in names:
            self.file.write(name.encode())
            self.ends.append(self.file.tell())

    def finish(self) -> None:
        """Write the ends and flush everything to the disk."""
        self.file.write(np.array([*self.ends, len(self.ends)], dtype="<i8").tobytes())
        self.file.flush()
        os.fsync(self.file.fileno())
        self.close()

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class _Names(Sequence[str]):
    """The names of clients in a file that is mapped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open(path, "rb") as file:
            self.pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        count = int.from_bytes(self.pages[-8:], "little")
        start = len(self.pages) - 8 * (count + 1)
        if start < 0:
            raise ValueError(f"{path.name} is cut off")
        ends = np.frombuffer(self.pages, "<i8", count, start)
        self.ends = np.concatenate([[0], ends])
        if (np.diff(self.ends) < 0).any() or self.ends[-1] != start:
            raise ValueError(f"{path.name} is damaged")

    def __len__(self) -> int:
        return len(self.ends) - 1

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return tuple(self[k] for k in range(*at.indices(len(self))))
        k = range(len(self))[at]
        return self.pages[self.ends[k] : self.ends[k + 1]].decode()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Names, (self.path,)

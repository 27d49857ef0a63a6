"""Read members of archives as streams in one pass: wheels (zip), tar archives, Debian packages."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import importlib
import io
import lzma
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO, Any, cast

DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
)
"""The errors that reading a damaged archive raises."""

_HEADER = 60  # of a member of an ar archive


def members(archive: Path, wanted: Collection[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the wanted members that exist; a stream is valid until the next member is requested.

    Nothing is written to disk, so names of members cannot overwrite files. Raises one of DAMAGE,
    here or from a stream, if the archive is damaged.
    """
    if zipfile.is_zipfile(archive):
        yield from _zip(archive, wanted)
    else:
        with archive.open("rb") as stream, contextlib.ExitStack() as stack:
            packed: IO[bytes] = stream
            if stream.read(8) == b"!<arch>\n":
                packed = _deb(stream, stack)
            else:
                stream.seek(0)
            with tarfile.open(fileobj=packed, mode="r|*") as tar:
                yield from _tar(tar, wanted)


def _zip(archive: Path, wanted: Collection[str]) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as opened:
        there = set(opened.namelist())
        for name in wanted:
            if name in there:
                with opened.open(name) as stream:
                    yield name, stream


def _tar(tar: tarfile.TarFile, wanted: Collection[str]) -> Iterator[tuple[str, IO[bytes]]]:
    left = set(wanted)
    for info in tar:
        name = info.name.removeprefix("./")
        if name in left and info.isfile():
            taken = tar.extractfile(info)
            assert taken is not None
            yield name, taken
            left.remove(name)
        if not left:
            return


def _deb(stream: IO[bytes], stack: contextlib.ExitStack) -> IO[bytes]:
    """Return the files of a Debian package as a tar stream: the member `data.tar.*`, unpacked."""
    while header := stream.read(_HEADER):
        if len(header) < _HEADER or header[58:] != b"`\n":
            raise EOFError("not the header of a member")
        name = header[:16].decode("ascii", "replace").rstrip().rstrip("/")
        size = int(header[48:58])
        if name.startswith("data.tar"):
            window = stack.enter_context(io.BufferedReader(_Window(stream, size)))
            kind = name.removeprefix("data.tar")
            if kind not in _KINDS:
                raise ValueError(f"{name} cannot be unpacked")
            return cast("IO[bytes]", stack.enter_context(_KINDS[kind](window)))
        stream.seek(size + size % 2, io.SEEK_CUR)
    raise EOFError("no data.tar")


def _gzip(stream: Any) -> Any:
    return gzip.GzipFile(fileobj=stream)


class _Zstd(io.RawIOBase):
    """Decompresses a stream; the standard library can do this only since Python 3.14."""

    def __init__(self, stream: Any) -> None:
        name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
        self.zstd: Any = importlib.import_module(name)
        self.file = self.zstd.ZstdFile(stream)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self.file.read(len(buffer))
        except self.zstd.ZstdError as error:
            raise OSError(str(error)) from None
        buffer[: len(data)] = data
        return len(data)


_KINDS: dict[str, Callable[[Any], Any]] = {
    ".xz": lzma.LZMAFile,
    ".zst": _Zstd,
    ".gz": _gzip,
    ".bz2": bz2.BZ2File,
    "": lambda stream: stream,
}
"""The compressions that Debian packages use."""


class _Window(io.RawIOBase):
    """A view of the next `size` bytes of a stream."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self.stream, self.left = stream, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.stream.read(min(len(buffer), self.left))
        if not data and self.left:
            raise EOFError("cut off")
        self.left -= len(data)
        buffer[: len(data)] = data
        return len(data)

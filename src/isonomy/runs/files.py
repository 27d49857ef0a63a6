"""Files of a run: written atomically, and trees of tensors with a checksum."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from isonomy.core import tree
from isonomy.core.tree import Tree

Description = dict[str, Any]
"""What `decode` needs beside the bytes, as JSON values: the trees' `shapes` and the `sha256`."""


def write_atomically(target: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a file that is complete or absent, also after a power failure."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        with opened(partial, os.O_EXCL, mode) as file:
            file.write(content)
            flush_to_disk(file)
        os.replace(partial, target)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def opened(path: Path, flags: int, mode: int = 0o666) -> BinaryIO:
    """A file to write, created if it does not exist; a link is refused, not followed."""
    follow = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | follow | flags, mode), "wb")


@contextlib.contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[bool]:
    """Lock a folder; yields whether no other process has locked it. The lock ends with the process.

    With `wait`, a lock of another process is waited for. A system without such locks, or a file
    system that does not support them, always yields True.
    """
    try:
        import fcntl
    except ImportError:
        yield True
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            free = True
        except OSError as error:
            free = error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
        yield free
    finally:
        os.close(number)


def flush_to_disk(file: BinaryIO) -> None:
    """Make the operating system write the file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def encode(trees: dict[str, Tree]) -> tuple[bytes, Description]:
    """Named trees as the bytes of a safetensors file, and their description."""
    arrays, shapes = tree.pack(trees)
    # clones: safetensors refuses tensors that share memory, as trees may
    content = save_tensors({k: v.contiguous().clone() for k, v in arrays.items()})
    return content, {"shapes": shapes, "sha256": hashlib.sha256(content).hexdigest()}


def decode(content: bytes, description: Description) -> dict[str, Tree]:
    """The inverse of `encode`; raises a ValueError if the content does not fit its description."""
    if hashlib.sha256(content).hexdigest() != description["sha256"]:
        raise ValueError("its checksum does not match")
    try:
        return dict(tree.unpack(load_tensors(content), description["shapes"]))
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError(str(error)) from None

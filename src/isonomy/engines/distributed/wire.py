"""Values of Python with tensors in them, as one tensor of bytes."""

from __future__ import annotations

import io
import pickle
from typing import Any, NamedTuple

import torch
from torch import Tensor

_ALIGN = 16  # bytes: every tensor begins at a multiple, so that it can be read in place


class _Slot(NamedTuple):
    """The place of a tensor among the bytes."""

    at: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    device: str


class _Packer(pickle.Pickler):
    """Pickles a value, with a slot in the place of each tensor."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[Tensor] = []
        self._at = 0

    def persistent_id(self, obj: Any) -> tuple[Any, ...] | None:
        """The slot of a tensor."""
        if not isinstance(obj, Tensor):
            return None
        slot = (self._at, obj.dtype, tuple(obj.shape), obj.device.type)
        flat = obj.detach().contiguous().reshape(-1).view(torch.uint8)
        self.tensors.append(flat)
        gap = -len(flat) % _ALIGN
        if gap:
            self.tensors.append(flat.new_zeros(gap))
        self._at += len(flat) + gap
        return slot


class _Unpacker(pickle.Unpickler):
    """The inverse of `_Packer`."""

    def __init__(self, file: io.BytesIO, content: Tensor) -> None:
        super().__init__(file)
        self._content = content

    def persistent_load(self, pid: Any) -> Tensor:
        """The tensor of a slot."""
        slot = _Slot(*pid)
        size = slot.dtype.itemsize
        for n in slot.shape:
            size *= n
        found = self._content[slot.at : slot.at + size].view(slot.dtype).reshape(slot.shape)
        return found if found.device.type == slot.device else found.to(slot.device)


def packed(value: Any) -> tuple[bytes, list[Tensor]]:
    """A value as a description and the bytes of its tensors, in order."""
    file = io.BytesIO()
    packer = _Packer(file)
    packer.dump(value)
    return file.getvalue(), packer.tensors


def unpacked(description: bytes, content: Tensor) -> Any:
    """The inverse of `packed`, from the joined bytes of the tensors."""
    return _Unpacker(io.BytesIO(description), content).load()  # from another process of the run

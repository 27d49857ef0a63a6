"""Values of Python with tensors in them, as one tensor of bytes."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

_ALIGN = 16  # bytes: every tensor begins at a multiple, so that it can be read in place


class _Slot(NamedTuple):
    """The place of a tensor among the bytes."""

    at: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    device: str


class _Leaf:
    """Stands for a tensor in the description of a value."""

    def __init__(self, number: int) -> None:
        self.number = number


def packed(value: Any) -> tuple[bytes, list[Tensor]]:
    """A value as a description and the bytes of its tensors, in order.

    The containers are dicts, lists, tuples and NamedTuples; other values are pickled.
    """
    tensors: list[Tensor] = []
    slots: list[_Slot] = []
    at = 0

    def leaf(t: Any) -> Any:
        nonlocal at
        if not isinstance(t, Tensor):
            return t
        flat = t.detach().contiguous().reshape(-1).view(torch.uint8)
        slots.append(_Slot(at, t.dtype, tuple(t.shape), t.device.type))
        at += len(flat)
        tensors.append(flat)
        gap = -at % _ALIGN
        if gap:
            tensors.append(flat.new_zeros(gap))
            at += gap
        return _Leaf(len(slots) - 1)

    described = pytree.tree_map(leaf, value)
    return pickle.dumps((described, slots)), tensors


def unpacked(description: bytes, content: Tensor) -> Any:
    """The inverse of `packed`, from the joined bytes of the tensors."""
    described, slots = pickle.loads(description)  # from another process of the run

    def leaf(part: Any) -> Any:
        if not isinstance(part, _Leaf):
            return part
        at, dtype, shape, device = slots[part.number]
        size = dtype.itemsize
        for n in shape:
            size *= n
        found = content[at : at + size].view(dtype).reshape(shape)
        return found if found.device.type == device else found.to(device)

    return pytree.tree_map(leaf, described)

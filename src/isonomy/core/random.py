"""Randomness as data: every draw is a pure function of a key.

A key is a 64-bit integer tensor, a hash of (seed, round, client); a stream of numbers is the hash
of (key, name, position). So a client draws the same numbers alone on its machine or among ten
thousand clients, the draws of a whole cohort are one batched expression, and a run can be resumed
without saved generators. The hash is SplitMix64's finaliser (Steele, Lea and Flood, 2014).

>>> uniform(key(0, 1), "coin", (2,)).tolist() == uniform(key(0, 1), "coin", (2,)).tolist()
True
"""

from __future__ import annotations

import math
import zlib

import numpy as np
import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed integer
_MIX1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX2 = -7723592293110705685  # 0x94D049BB133111EB
_ALL = (1 << 64) - 1


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's operator keeps the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def mix64(z: Tensor) -> Tensor:
    """SplitMix64's output function on int64 tensors (arithmetic modulo 2^64)."""
    z = z + _GOLDEN
    z = (z ^ _shift(z, 30)) * _MIX1
    z = (z ^ _shift(z, 27)) * _MIX2
    return z ^ _shift(z, 31)


def _mix_int(z: int) -> int:
    """`mix64` of one integer of Python, much faster than operations on a tensor."""
    z = (z + _GOLDEN) & _ALL
    z = ((z ^ (z >> 30)) * _MIX1) & _ALL
    z = ((z ^ (z >> 27)) * _MIX2) & _ALL
    z ^= z >> 31
    return z - (1 << 64) if z >> 63 else z


def key(*parts: int | Tensor) -> Tensor:
    """A key from integers; if one of them is a tensor, a tensor of keys."""
    out: int | Tensor = 0
    for part in parts:
        if isinstance(part, Tensor):
            out = mix64(out ^ mix64(part.to(torch.int64)))
        elif isinstance(out, Tensor):
            out = mix64(out ^ _mix_int(int(part)))
        else:
            out = _mix_int(out ^ _mix_int(int(part)))
    return torch.as_tensor(out)


def tag(name: str) -> int:
    """A stable integer for the name of a stream."""
    return zlib.crc32(name.encode())


def bits(keys: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    """Random 64-bit integers of shape keys.shape + shape."""
    count = math.prod(shape)
    stream = mix64(keys ^ _mix_int(tag(name)))
    out = mix64(stream.unsqueeze(-1) + torch.arange(count) * _GOLDEN)
    return out.reshape((*keys.shape, *shape))


def uniform(keys: Tensor, name: str, shape: tuple[int, ...] = ()) -> Tensor:
    """Uniform numbers strictly inside (0, 1), float32."""
    return (_shift(bits(keys, name, shape), 41).to(torch.float32) + 0.5) * 2.0**-23


def normal(keys: Tensor, name: str, shape: tuple[int, ...] = ()) -> Tensor:
    """Standard normal numbers, float32, by inversion."""
    u = (_shift(bits(keys, name, shape), 12).to(torch.float64) + 0.5) * 2.0**-52
    return (math.sqrt(2) * torch.erfinv(2 * u - 1)).to(torch.float32)


def permutation(
    keys: Tensor, name: str, size: Tensor, width: int, count: int, *, plain: bool = False
) -> Tensor:
    """`count` permutations of range(size), padded at the end to `width` with the other positions.

    `size` may be smaller than `width` and may differ between keys; real positions come first.

    Positions are sorted by 42 random bits, with the position itself below them, so that only
    numbers are sorted. `plain` says that the tensors are on the CPU and under no transform, where
    NumPy does that much faster.
    """
    numbers = _mix_int(0) if count == 1 else mix64(torch.arange(count))
    each = mix64(keys.unsqueeze(-1) ^ numbers)  # independent of padding
    noise, positions = bits(each, name, (width,)), torch.arange(width)
    padding = positions >= size.unsqueeze(-1).unsqueeze(-1)
    if width > _POSITIONS:
        return torch.where(padding, 1 << 62, _shift(noise, 2)).argsort(dim=-1, stable=True)
    mixed = torch.where(padding, 1 << 62, _shift(noise, 22) * _POSITIONS) | positions
    ordered = torch.from_numpy(np.sort(mixed.numpy())) if plain else mixed.sort(dim=-1).values
    return ordered & (_POSITIONS - 1)


_POSITIONS = 1 << 20

"""Discrete Gaussian noise: integers, drawn exactly, from a secret key.

The integer x has the probability exp(-x^2 / (2 s^2)), up to a constant, with s = 2^16. The sampler
is that of Canonne, Kairouz and Steinke (The Discrete Gaussian for Differential Privacy, NeurIPS
2020, algorithms 1 to 3) for many numbers at once. It uses integers only, and s is a power of two,
so that no probability is rounded and nothing about floating-point numbers can be attacked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.privacy.noise import Key
from isonomy.privacy.stream import key_stream

BITS = 16
DEVIATION = 2**BITS  # s
_TWICE = 2 * BITS + 1  # 2 s^2 is a power of two, too
_MORE = 2.2  # candidates for each number that is needed; about half of them are rejected

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


def discrete_gaussian(key: Key, count: int, *name: Any) -> Tensor:
    """Independent discrete Gaussian integers, determined by the key and the name.

    >>> discrete_gaussian(Key.of_seed(0), 3, "example").dtype
    torch.int64
    """
    bits = _Bits(key.derived("discrete", *name))
    out = np.empty(0, dtype=np.int64)
    while len(out) < count:
        out = np.concatenate([out, _candidates(bits, int(_MORE * (count - len(out))) + 16)])
    return torch.from_numpy(out[:count].copy())


def _candidates(bits: _Bits, count: int) -> Integers:
    """Discrete Laplace numbers, accepted so that they are discrete Gaussian ones."""
    first = bits.below(BITS, count)
    first = first[_bernoulli_exp(bits, first, BITS)]
    size = first + (_failures(bits, len(first)) << BITS)
    negative = bits.below(1, len(size)) == 1
    size, negative = (part[(size != 0) | ~negative] for part in (size, negative))
    off = size - DEVIATION
    kept = _bernoulli_exp(bits, off * off, _TWICE)
    out: Integers = np.where(negative, -size, size)[kept]
    return out


def _failures(bits: _Bits, count: int) -> Integers:
    """How often an event of probability 1/e happens in a row."""
    out = np.zeros(count, dtype=np.int64)
    at = np.arange(count)
    while len(at):
        at = at[_bernoulli_exp(bits, np.ones(len(at), dtype=np.int64), 0)]
        out[at] += 1
    return out


def _bernoulli_exp(bits: _Bits, above: Integers, below: int) -> Flags:
    """True with the probability exp(-above / 2^below), for each of many numbers."""
    whole, rest = above >> below, above & ((1 << below) - 1)
    out = np.zeros(len(above), dtype=np.bool_)
    at = np.arange(len(above))
    while len(at):  # exp(-1) for each whole unit, before the rest
        one = whole[at] > 0
        share = np.where(one, np.int64(1) << below, rest[at])
        good = _bernoulli_exp_unit(bits, share, below)
        out[at[good & ~one]] = True
        at = at[good & one]
        whole[at] -= 1
    return out


def _bernoulli_exp_unit(bits: _Bits, above: Integers, below: int) -> Flags:
    """The same for above <= 2^below: whether the first k is odd at which an event fails.

    The event has the probability (above / 2^below) / k.
    """
    out = np.zeros(len(above), dtype=np.bool_)
    at, k = np.arange(len(above)), 1
    while len(at):
        happens = bits.below(below, len(at)) < above[at]
        if k > 1:
            happens &= bits.one_in(k, len(at))
        if k % 2:
            out[at[~happens]] = True
        at, k = at[happens], k + 1
    return out


class _Bits:
    """Random bits of a key, each used once."""

    def __init__(self, key: bytes) -> None:
        self._key, self._place = key, 0

    def below(self, width: int, count: int) -> Integers:
        """Uniform integers of so many bits."""
        mask = np.int64((1 << width) - 1)
        if width > 31:
            return self._words(2 * count).view(np.int64) & mask
        return self._words(count).astype(np.int64) & mask

    def one_in(self, k: int, count: int) -> Flags:
        """True with the probability 1 / k."""
        out = np.zeros(count, dtype=np.bool_)
        at, width = np.arange(count), (k - 1).bit_length()
        while len(at):
            drawn = self.below(width, len(at))
            out[at[drawn == 0]] = True
            at = at[drawn >= k]
        return out

    def _words(self, count: int) -> NDArray[np.int32]:
        places = np.array([self._place], dtype=np.uint64)
        self._place += 1
        positions = np.arange(-(-count // 4), dtype=np.uint64)
        return key_stream(self._key, places, positions)[:count]

"""Gaussian noise at the server, from a secret key.

Other draws of a run follow from the config's seed, which is part of its results. Noise that
anybody can compute again protects nobody, so it comes from a key of its own: 32 random bytes that
are stored beside the run and are as confidential as the clients' data (or, for experiments that
must be repeatable, from `privacy.seed`). A stream of numbers is the key stream of AES-256 under a
key that is the hash of this key and a name that is used once, so that no draw is used twice and a
resumed run continues with the same noise.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.privacy.stream import key_stream


class Key:
    """A secret key; all draws are functions of it and of a name."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    @classmethod
    def fresh(cls) -> Key:
        """A new key from the operating system's randomness."""
        return cls(secrets.token_bytes(32))

    @classmethod
    def of_seed(cls, seed: int) -> Key:
        """The key of `privacy.seed`, for experiments: anybody who knows the seed knows the key."""
        return cls(hashlib.sha256(f"privacy.seed {seed}".encode()).digest())

    @classmethod
    def read(cls, text: str) -> Key:
        """The key that `text` returned."""
        return cls(bytes.fromhex(text))

    @property
    def text(self) -> str:
        """The key for a file."""
        return self._content.hex()

    def integer(self, *name: Any) -> int:
        """An integer from 0 to 2^62 - 1."""
        return int(self._stream(8, name).view("<u8")[0] >> np.uint64(2))

    def uniform(self, shape: tuple[int, ...], *name: Any) -> Tensor:
        """Uniform numbers strictly inside (0, 1), in double precision."""
        count = int(np.prod(shape, dtype=np.int64))
        bits = self._stream(8 * count, name).view("<u8") >> np.uint64(12)
        return torch.from_numpy((bits.astype(np.float64) + 0.5) * 2.0**-52).reshape(shape)

    def normal(self, shape: tuple[int, ...], *name: Any) -> Tensor:
        """Standard normal numbers in double precision, by inversion."""
        out: Tensor = torch.special.ndtri(self.uniform(shape, *name))
        return out

    def derived(self, *name: Any) -> bytes:
        """A key of 32 bytes for the use that the name says."""
        label = "\x1f".join(str(part) for part in name).encode()
        return hashlib.sha256(self._content + label).digest()

    def _stream(self, size: int, name: tuple[Any, ...]) -> NDArray[np.uint8]:
        positions = np.arange(-(-size // 16), dtype=np.uint64)
        found = key_stream(self.derived(*name), np.zeros(1, dtype=np.uint64), positions)
        return found.view(np.uint8)[:size]

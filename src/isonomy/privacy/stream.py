"""Random numbers of many clients at once, from one secret key: AES-256 in counter mode.

A draw is the encryption of a counter that no other draw uses: the upper half is its `place` (which
client, step and gradient), the lower half the position. So a client draws the same numbers alone
or among thousands, no place has the numbers of another, and nobody without the key can tell them
from random bits. The cipher is that of the library `cryptography`. The draws are operations of
torch that work under `vmap` and in traced programs: a whole cohort is one call of the cipher.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isonomy.errors import ConfigError, missing_extra

_WORDS = 4  # of 32 bits in a block of the cipher
_TOGETHER = 2**16  # pairs of normal numbers that are computed at a time
_SECOND = 2**63  # added to the position of a draw's second half, so that both halves differ


def key_stream(key: bytes, places: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Random 32-bit integers, four for each position at each place: a flat array."""
    counters = np.empty((len(places), len(positions), 2), dtype="<u8")
    counters[..., 0] = places[:, None]
    counters[..., 1] = positions
    size = counters.nbytes
    out = np.empty(size // 4 + _WORDS, dtype="<i4")  # the cipher asks for one block more
    _cipher(key).update_into(counters.reshape(-1).view(np.uint8), out.view(np.uint8))
    return out[: size // 4].astype(np.int32, copy=False)


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    except ImportError:
        text = missing_extra("differential privacy", "cryptography", "privacy")
        raise ConfigError(text) from None
    # the blocks that are encrypted are counters, which makes this the counter mode
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor()


def key_tensor(key: bytes) -> Tensor:
    """A key of 32 bytes as a tensor, so that a traced program has it as an input."""
    return torch.from_numpy(np.frombuffer(key, dtype="<i8").copy())


def _bits(key: Tensor, place: Tensor, count: int, first: int = 0) -> Tensor:
    """At least `count` random 32-bit integers at every place, [places, numbers]."""
    at = place.numpy().reshape(-1).view(np.uint64)
    positions = first + np.arange(-(-count // _WORDS), dtype=np.uint64)
    found = key_stream(key.numpy().astype("<i8", copy=False).tobytes(), at, positions)
    return torch.from_numpy(found).view(len(at), -1)


# --- the operations ------------------------------------------------------------------------------


def _uniform(key: Tensor, place: Tensor, count: int) -> Tensor:
    bits = _bits(key, place, count)
    u = bits.bitwise_and_(0x7FFFFF).to(torch.float32).add_(0.5).mul_(2.0**-23)
    return u[:, :count].reshape(*place.shape, count)


def _normal(key: Tensor, place: Tensor, scale: Tensor, count: int) -> Tensor:
    """Box and Muller's method, for a part of the places at a time, which stays in the cache.

    By NumPy, whose sine, cosine and logarithm are about twice as fast as torch's.
    """
    half = (count + 1) // 2
    blocks = -(-half // _WORDS)  # of the cipher, for the radii of a place; as many for its angles
    at = place.numpy().reshape(-1).view(np.uint64)
    by = (-2 * math.log(2) * scale.to(torch.float32).square()).reshape(-1, 1).numpy()
    by = np.broadcast_to(by, (len(at), 1))
    lanes = max(1, min(len(at), _TOGETHER // max(half, 1)))
    counters = np.empty((lanes, 2, blocks, 2), dtype="<u8")
    counters[:, 0, :, 1] = np.arange(blocks, dtype=np.uint64)
    counters[:, 1, :, 1] = np.arange(blocks, dtype=np.uint64) + np.uint64(_SECOND)
    words = np.empty(counters.nbytes // 4 + _WORDS, dtype="<i4")
    cipher = _cipher(key.numpy().astype("<i8", copy=False).tobytes())
    out = np.empty((len(at), 2, half), dtype=np.float32)
    radii, angles = np.empty((2, lanes, half), dtype=np.float32)
    for first in range(0, len(at), lanes):
        n = min(lanes, len(at) - first)
        counters[:n, :, :, 0] = at[first : first + n, None, None]
        cipher.update_into(counters[:n].reshape(-1).view(np.uint8), words.view(np.uint8))
        drawn = words[: 2 * n * blocks * _WORDS].reshape(n, 2, -1)[..., :half]
        radius, angle, into = radii[:n], angles[:n], out[first : first + n]
        radius[:], angle[:] = drawn[:, 0], drawn[:, 1]
        # from 2^-32 to 1; small numbers, which become large radii, have all of their bits
        np.abs(radius, out=radius)
        radius += np.float32(0.5)
        radius *= np.float32(2.0**-31)
        np.log2(radius, out=radius)
        radius *= by[first : first + n]
        np.sqrt(radius, out=radius)
        angle *= np.float32(math.pi * 2.0**-31)
        for function, numbers in ((np.cos, into[:, 0]), (np.sin, into[:, 1])):
            function(angle, out=numbers)
            numbers *= radius
    whole = torch.from_numpy(out).view(len(at), 2 * half)
    return whole[:, :count].reshape(*place.shape, count)


_LIBRARY: Any = torch.library.Library("isonomy", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("secret_uniform(Tensor key, Tensor place, int count) -> Tensor")
_LIBRARY.define("secret_normal(Tensor key, Tensor place, Tensor scale, int count) -> Tensor")
_LIBRARY.impl("secret_uniform", _uniform, "CPU")
_LIBRARY.impl("secret_normal", _normal, "CPU")


def secret_uniform(key: Tensor, place: Tensor, count: int) -> Tensor:
    """Uniform numbers strictly inside (0, 1), single precision, [*place.shape, count]."""
    out: Tensor = torch.ops.isonomy.secret_uniform(key, place, count)
    return out


def secret_normal(key: Tensor, place: Tensor, scale: Tensor, count: int) -> Tensor:
    """Normal numbers of standard deviation `scale`, single precision, [*place.shape, count].

    By Box and Muller's method, with 32 bits for a radius and 32 for an angle. None is beyond 6.7
    standard deviations.
    """
    out: Tensor = torch.ops.isonomy.secret_normal(key, place, scale, count)
    return out


def _shaped(*given: Any) -> Tensor:
    """The shape of a draw, for torch's compiler."""
    place, count = given[1], given[-1]
    return torch.empty(*place.shape, count, device=place.device)


torch.library.register_fake("isonomy::secret_uniform", _shaped)
torch.library.register_fake("isonomy::secret_normal", _shaped)


@torch.library.register_vmap("isonomy::secret_uniform")  # type: ignore[untyped-decorator]
def _(info: Any, dims: Any, key: Tensor, place: Tensor, count: int) -> tuple[Tensor, int]:
    return secret_uniform(key, _lanes(info, place, dims[1]), count), 0


@torch.library.register_vmap("isonomy::secret_normal")  # type: ignore[untyped-decorator]
def _(
    info: Any, dims: Any, key: Tensor, place: Tensor, scale: Tensor, count: int
) -> tuple[Tensor, int]:
    own = _lanes(info, place, dims[1])
    return secret_normal(key, own, _lanes(info, scale, dims[2]), count), 0


def _lanes(info: Any, t: Tensor, at: int | None) -> Tensor:
    """The tensor with its lanes first, also if all lanes share it."""
    if at is None:
        return t.unsqueeze(0).expand(info.batch_size, *t.shape).contiguous()
    return t.movedim(at, 0).contiguous()

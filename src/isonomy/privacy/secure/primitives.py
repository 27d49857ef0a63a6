"""Keys, masks and shares. All cryptography is that of `cryptography` and `pycryptodome`.

Key agreement is X25519, keys are derived by HKDF with SHA-256, masks are the key stream of AES-256
in counter mode, shares travel encrypted and authenticated by ChaCha20-Poly1305, and secrets are
split by Shamir's scheme over GF(2^128). Every derived key has its own `info`, which names its use
and everything that two clients must agree on.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor

SECRET = 16  # bytes that Shamir's scheme splits at a time
KEY = 32  # bytes of a public key, and of a symmetric one
NONCE = 12
TAG = 16


class ProtocolError(ValueError):
    """A message that breaks the protocol, or that was forged; the text says why."""


def digest(*parts: Any) -> bytes:
    """A hash of JSON values and bytes, each with its own length, so that none runs into another."""
    out = hashlib.sha256()
    for part in parts:
        raw = part if isinstance(part, bytes) else json.dumps(part, sort_keys=True).encode()
        out.update(len(raw).to_bytes(8, "little") + raw)
    return out.digest()


def new_secret() -> bytes:
    """A secret that can be split."""
    return secrets.token_bytes(SECRET)


def derived(secret: bytes, *info: Any) -> bytes:
    """A key from a secret, for the use that `info` names."""
    return HKDF(hashes.SHA256(), KEY, salt=None, info=digest(*info)).derive(secret)


def private_key(secret: bytes) -> X25519PrivateKey:
    """The private key that a secret stands for."""
    return X25519PrivateKey.from_private_bytes(derived(secret, "private key"))


def public_key(private: X25519PrivateKey) -> bytes:
    """The public half of a key."""
    return private.public_key().public_bytes_raw()


def agreed(private: X25519PrivateKey, public: bytes, *info: Any) -> bytes:
    """The key that both owners of two keys can compute; raises ProtocolError for a false key."""
    try:
        shared = private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise ProtocolError("a public key is not one") from None
    return derived(shared, *info)


def mask(key: bytes, length: int, dtype: torch.dtype) -> Tensor:
    """So many integers, uniformly distributed, that follow from a key which is used once."""
    count = length * dtype.itemsize
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(count))
    kind = np.dtype("<i4" if dtype == torch.int32 else "<i8")
    return torch.from_numpy(np.frombuffer(stream, dtype=kind).astype(kind.newbyteorder("=")))


def seal(key: bytes, content: bytes, about: bytes) -> bytes:
    """Content encrypted, and authenticated together with what it is about."""
    nonce = secrets.token_bytes(NONCE)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, content, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """Undo `seal`; raises ProtocolError if it was made with another key or changed."""
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:NONCE], sealed[NONCE:], about)
    except (InvalidTag, ValueError):
        raise ProtocolError("a share was forged, or is meant for somebody else") from None


def split(secret: bytes, threshold: int, holders: int) -> list[bytes]:
    """The shares of a secret, the first for holder 1; `threshold` of them give the secret."""
    return [share for _, share in Shamir.split(threshold, holders, secret, ssss=False)]


def combined(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret, from the shares of holders (numbered from 1); raises ProtocolError if too few."""
    chosen: Iterable[tuple[int, bytes]] = sorted(shares.items())[:threshold]
    if len(shares) < threshold:
        raise ProtocolError(f"{len(shares)} shares, but {threshold} are needed")
    return bytes(Shamir.combine(list(chosen), ssss=False))

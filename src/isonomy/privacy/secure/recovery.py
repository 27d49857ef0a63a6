"""How the server gets the sum of masked vectors, from the shares that clients tell it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from isonomy.privacy.secure import primitives as crypto
from isonomy.privacy.secure.member import Advert, own_key, pair_key, sign
from isonomy.privacy.secure.primitives import SECRET, ProtocolError

Shares = Mapping[int, Mapping[int, bytes]]
"""What each client told: a share of every client of the exchange."""


def unmasked(
    masked: Mapping[int, Tensor],
    shares: Shares,
    adverts: Mapping[int, Advert],
    slot: int,
    asked: list[int],
    threshold: int,
    about: bytes,
) -> Tensor:
    """The sum of the vectors that were masked; the clients of `asked` without one dropped out.

    `adverts` are the epoch's keys, and `about` the exchange's context. Raises ProtocolError if
    there are too few vectors or shares, or if shares are false.
    """
    if len(masked) < threshold:
        raise ProtocolError(f"{len(masked)} masked replies, but {threshold} are needed")
    place = {k: i + 1 for i, k in enumerate(sorted(adverts))}  # the holders of shares
    if any(set(told) != set(asked) for told in shares.values()):
        raise ProtocolError("a client told shares of other clients")
    if any(len(piece) != SECRET for told in shares.values() for piece in told.values()):
        raise ProtocolError("a client told shares of another length")

    def secret(k: int) -> bytes:
        return crypto.combined({place[j]: told[k] for j, told in shares.items()}, threshold)

    vectors = list(masked.values())
    total = vectors[0].clone()
    for vector in vectors[1:]:
        total += vector
    for k in masked:
        total -= crypto.mask(own_key(secret(k), about), len(total), total.dtype)
    for k in asked:
        if k in masked:
            continue
        private = crypto.private_key(secret(k))
        if crypto.public_key(private) != adverts[k].slots[slot]:
            raise ProtocolError("the shares of a client that dropped out do not give its key")
        for j in masked:  # what j added for k
            key = pair_key(private, adverts[j].slots[slot], about)
            total -= sign(j, k) * crypto.mask(key, len(total), total.dtype)
    return total

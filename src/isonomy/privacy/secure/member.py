"""What a client does in secure aggregation (Bonawitz et al. 2017), as a machine without a network.

Keys are made for one *epoch* at a time: some clients and a number of exchanges (*slots*). In it a
client

1. `advertise`s public keys: one to receive shares, and one for each slot;
2. `share`s the secrets of every slot with the others: the slot's private key and the seed of its
   own mask, both split by Shamir's scheme and encrypted for each holder;
3. `mask`s its vector in an exchange, with its own mask and one mask for each other client, which
   both compute and which cancel in the sum;
4. `unmask`s: tells, for each client, one of its two shares: that of the mask's seed if the client's
   vector is in the sum, that of the private key if it is not.

Slots have independent keys and seeds, so each exchange is one run of the published protocol, whose
first two steps were done in advance. Nothing of a slot is used twice.

Masks depend on the `context`: a digest of everything that all clients of an exchange must have been
told alike, such as the question, the message, the keys and the list of clients. If the server tells
them different things, masks do not cancel, and the sum is random.

A sum has at least `threshold` clients, more than half of the epoch's. As each client tells one kind
of share only, a server that claims different things to different clients cannot collect enough
shares of both kinds, whatever it claims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Tensor

from isonomy.privacy.secure import primitives as crypto
from isonomy.privacy.secure.primitives import KEY, NONCE, SECRET, TAG, ProtocolError
from isonomy.privacy.secure.threshold import least

MOST_SLOTS = 64
MOST_MEMBERS = 1000


class Advert(NamedTuple):
    """A client's public keys in an epoch."""

    box: bytes  # to receive shares
    slots: tuple[bytes, ...]

    def checked(self, slots: int) -> Advert:
        """Itself; raises ProtocolError for other numbers of keys or bytes."""
        if len(self.slots) != slots or any(len(key) != KEY for key in (self.box, *self.slots)):
            raise ProtocolError("a client has other keys than an epoch needs")
        return self


def roster(epoch: str, adverts: Mapping[int, Advert]) -> bytes:
    """A digest of an epoch's clients and keys."""
    lines = [[k, one.box.hex(), [key.hex() for key in one.slots]] for k, one in adverts.items()]
    return crypto.digest("roster", epoch, sorted(lines))


def context(epoch: bytes, slot: int, asked: Sequence[int], *about: object) -> bytes:
    """A digest of an exchange: the epoch's roster, slot and clients, and what they are asked."""
    return crypto.digest("exchange", epoch, slot, sorted(asked), *about)


def pair_key(private: X25519PrivateKey, public: bytes, about: bytes) -> bytes:
    """The key of the mask that two clients have in common."""
    return crypto.agreed(private, public, "pair", about)


def own_key(seed: bytes, about: bytes) -> bytes:
    """The key of a client's own mask."""
    return crypto.derived(seed, "own", about)


def sign(one: int, other: int) -> int:
    """Which of two clients adds their common mask, and which subtracts it."""
    return 1 if one < other else -1


def sealed_size(slots: int) -> int:
    """Bytes of the encrypted shares that one client has for another."""
    return NONCE + 2 * SECRET * slots + TAG


@dataclass
class _Slot:
    key: bytes  # the secret that the private key is derived from
    seed: bytes
    asked: tuple[int, ...] = ()


@dataclass
class _Epoch:
    name: str
    members: tuple[int, ...]
    threshold: int
    box: X25519PrivateKey
    slots: dict[int, _Slot]
    advert: Advert
    adverts: dict[int, Advert] = field(default_factory=dict)
    roster: bytes = b""
    shares: dict[int, bytes] = field(default_factory=dict)  # by owner: of each slot, key and seed
    next: int = 0  # the first slot that was not used


class Member:
    """A client and its secrets, which are in memory only; a new epoch forgets the one before."""

    def __init__(self, number: int, threshold: int) -> None:
        self.number, self.threshold = number, threshold
        self._epoch: _Epoch | None = None

    def advertise(self, epoch: str, members: Sequence[int], slots: int) -> Advert:
        """Begin an epoch: new keys; raises ProtocolError for one that is not to be joined."""
        chosen = tuple(sorted(set(members)))
        if list(chosen) != list(members) or self.number not in chosen or chosen[0] < 0:
            raise ProtocolError("the clients of an epoch are not in order, or lack this one")
        if len(chosen) < self.threshold:
            raise ProtocolError(
                f"an epoch of {len(chosen)} clients, but the charter says that a sum has "
                f"{self.threshold} at least"
            )
        if not 1 <= slots <= MOST_SLOTS or len(chosen) > MOST_MEMBERS:
            raise ProtocolError("an epoch of too many exchanges or clients")
        made = {i: _Slot(crypto.new_secret(), crypto.new_secret()) for i in range(slots)}
        box = X25519PrivateKey.generate()
        advert = Advert(
            crypto.public_key(box),
            tuple(crypto.public_key(crypto.private_key(slot.key)) for slot in made.values()),
        )
        threshold = least(self.threshold, len(chosen))
        self._epoch = _Epoch(epoch, chosen, threshold, box, made, advert)
        return advert

    def share(self, epoch: str, adverts: Mapping[int, Advert]) -> dict[int, bytes]:
        """Encrypted shares of every slot's secrets, for each other client that has keys."""
        now = self._of(epoch)
        if now.adverts:
            raise ProtocolError("the shares of an epoch are made once")
        if not set(adverts) <= set(now.members) or adverts.get(self.number) != now.advert:
            raise ProtocolError("the keys of an epoch are of other clients, or not this one's own")
        if len(adverts) < now.threshold:
            raise ProtocolError(f"an epoch needs {now.threshold} clients with keys")
        for one in adverts.values():
            one.checked(len(now.slots))
        every = [key for one in adverts.values() for key in (one.box, *one.slots)]
        if len(set(every)) < len(every):
            raise ProtocolError("two keys of an epoch are the same")
        now.adverts = dict(sorted(adverts.items()))
        now.roster = roster(epoch, now.adverts)
        holders = list(now.adverts)
        parts: dict[int, list[bytes]] = {k: [] for k in holders}
        for slot in now.slots.values():
            for secret in (slot.key, slot.seed):
                for k, piece in zip(
                    holders, crypto.split(secret, now.threshold, len(holders)), strict=True
                ):
                    parts[k].append(piece)
        now.shares[self.number] = b"".join(parts.pop(self.number))
        return {k: self._sealed(now, k, b"".join(pieces)) for k, pieces in parts.items()}

    def receive(self, epoch: str, sealed: Mapping[int, bytes]) -> None:
        """Keep the shares of others."""
        now = self._of(epoch)
        for k, content in sealed.items():
            if k not in now.adverts or k == self.number:
                raise ProtocolError("shares of a client that has no keys, or of this one")
            key, about = self._lock(now, k, self.number)
            opened = crypto.unseal(key, content, about)
            if len(opened) != 2 * SECRET * len(now.slots):
                raise ProtocolError("shares of another number of exchanges")
            if now.shares.setdefault(k, opened) != opened:
                raise ProtocolError("other shares than those that a client has sent before")

    def roster(self, epoch: str) -> bytes:
        """The digest of the epoch's keys, as this client knows them."""
        return self._of(epoch).roster

    def check(self, epoch: str, slot: int, asked: Sequence[int]) -> None:
        """Raise ProtocolError unless a vector may be masked in this slot, with these clients."""
        now = self._of(epoch)
        if not now.next <= slot < len(now.slots):
            raise ProtocolError("the masks of this exchange were used, or do not exist")
        if list(asked) != sorted(set(asked)) or self.number not in asked:
            raise ProtocolError("the clients of an exchange are not in order, or lack this one")
        if len(asked) < now.threshold or not set(asked) <= set(now.shares):
            raise ProtocolError(
                f"an exchange needs {now.threshold} clients that have shared their secrets"
            )

    def mask(
        self, epoch: str, slot: int, asked: Sequence[int], about: bytes, vector: Tensor
    ) -> Tensor:
        """The masked vector of an exchange; a slot is used once."""
        self.check(epoch, slot, asked)
        now = self._of(epoch)
        now.next = slot + 1
        secret = now.slots[slot]
        secret.asked = tuple(asked)
        private = crypto.private_key(secret.key)
        out = vector + crypto.mask(own_key(secret.seed, about), len(vector), vector.dtype)
        for k in asked:
            if k != self.number:
                key = pair_key(private, now.adverts[k].slots[slot], about)
                both = crypto.mask(key, len(vector), vector.dtype)
                out += sign(self.number, k) * both
        return out

    def unmask(self, epoch: str, slot: int, answered: Sequence[int]) -> dict[int, bytes]:
        """One share of each client of an exchange, given whose vectors are in the sum; once."""
        now = self._of(epoch)
        secret = now.slots.get(slot)
        if secret is None or not secret.asked:
            raise ProtocolError("no vector was masked in this exchange, or it was unmasked already")
        here = set(answered)
        if not here <= set(secret.asked) or self.number not in here or len(here) != len(answered):
            raise ProtocolError("the sum has other clients than those asked, or lacks this one")
        if len(here) < now.threshold:
            raise ProtocolError(
                f"a sum of {len(here)} clients, but {now.threshold} are needed at least"
            )
        asked, secret.asked = secret.asked, ()  # before anything is sent
        secret.key = secret.seed = b""
        return {k: _piece(now.shares[k], slot, seed=k in here) for k in asked}

    def _of(self, epoch: str) -> _Epoch:
        if self._epoch is None or self._epoch.name != epoch:
            raise ProtocolError("it has no keys of this epoch")
        return self._epoch

    def _lock(self, now: _Epoch, sender: int, receiver: int) -> tuple[bytes, bytes]:
        """The key for shares from one client to another, and what they are about."""
        other = receiver if sender == self.number else sender
        about = crypto.digest("shares", now.roster, sender, receiver)
        return crypto.agreed(now.box, now.adverts[other].box, about), about

    def _sealed(self, now: _Epoch, receiver: int, content: bytes) -> bytes:
        key, about = self._lock(now, self.number, receiver)
        return crypto.seal(key, content, about)


def _piece(shares: bytes, slot: int, *, seed: bool) -> bytes:
    at = SECRET * (2 * slot + seed)
    return shares[at : at + SECRET]

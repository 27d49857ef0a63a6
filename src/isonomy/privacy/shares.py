"""Client-level noise in shares: every client adds a part of the noise before its reply is masked.

Under secure aggregation the server sees only sums, so it can neither clip replies nor be trusted
with the noise. Each client clips every part of its reply to its clip C (a model as the difference
to what was sent), writes it as integers, and adds discrete Gaussian noise (Kairouz, Liu and
Steinke, The Distributed Discrete Gaussian Mechanism, ICML 2021).

A sum has the replies of at least `threshold` clients. Of these, `colluding` may have told the
server their noise, or added none. The noise of the other h = threshold - colluding has to be
enough: each adds z C / sqrt(s h), so that h of them have the standard deviation z C / sqrt(s)
together, as in `isonomy.privacy.release` (z: the noise multiplier, s: the part's share).

One client's noise has the standard deviation of 2^16 steps: this defines the steps. Numbers are
rounded towards zero, which makes no vector longer, so rounding adds nothing to the sensitivity.
Sums wrap around modulo 2^32 or 2^64, which is a function of the sum and so needs no noise.

The sum of h discrete Gaussians is not one. It has concentrated differential privacy with
rho = (1 / z + tau sqrt(d))^2 / 2 for d numbers (their theorem 1), where tau is at most
10 h exp(-pi^2 2^32): zero for every purpose. So it counts as zCDP with rho = 1 / (2 z^2), whose
Rényi divergences are those of the Gaussian mechanism; the accountant must be that of RDP.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isonomy.config.schema import Config
from isonomy.core import tree
from isonomy.core.cohort import Ask, Exchange, Replies, Summed
from isonomy.core.phase import Declaration
from isonomy.core.tree import Tree
from isonomy.errors import ConfigError
from isonomy.privacy.clipping import SLACK, clip_rows, part_of
from isonomy.privacy.discrete import DEVIATION, discrete_gaussian
from isonomy.privacy.ledger import Ledger
from isonomy.privacy.noise import Key
from isonomy.privacy.release import missing_bound
from isonomy.privacy.secure.quantise import Encoding, Leaf
from isonomy.privacy.secure.threshold import threshold_of

FAR = 16  # deviations that the noise of a client never exceeds in practice


@dataclass(frozen=True)
class Shares:
    """How clients clip, write and noise their replies."""

    multiplier: float  # of the noise of `honest` clients
    honest: int
    clip: float
    bounds: Mapping[str, float]

    def clip_of(self, declared: Declaration, name: str) -> float:
        """The largest norm of a part; raises ConfigError for a statistic without a bound."""
        if name in declared.trained:
            return self.clip
        if name not in self.bounds:
            raise ConfigError(missing_bound(declared.name, name))
        return self.bounds[name]

    def noise(self, declared: Declaration, name: str) -> float:
        """The standard deviation of the noise that one client adds to each number of a part."""
        share = 1 / len(declared.parts)
        return self.multiplier * self.clip_of(declared, name) / math.sqrt(share * self.honest)

    def encoding(self, declared: Declaration, like: Tree, room: int) -> Encoding:
        """How sums are written; raises ConfigError if 64 bits are too few."""
        leaves, largest = [], 0
        for part in sorted(declared.parts):
            scale = DEVIATION / self.noise(declared, part)
            most = math.ceil(self.clip_of(declared, part) * scale) + FAR * DEVIATION
            largest = max(largest, most)
            for path, t in sorted(tree.pack(like[part])[0].items()):
                leaves.append(Leaf(part, path, tuple(t.shape), scale, most))
        bits = largest.bit_length() + 1 + room
        if bits > 64:
            raise ConfigError(
                f"privacy.noise = {self.multiplier:g}: a sum of replies to '{declared.name}' would "
                "not fit into 64 bits, because the clip is so much larger than the noise; raise "
                "the noise."
            )
        return Encoding(like, tuple(leaves), 32 if bits <= 32 else 64, room)

    def vector(
        self, encoding: Encoding, declared: Declaration, message: Any, reply: Tree, draw: Draw
    ) -> Tensor:
        """One client's reply as integers with noise; numbers that are not finite count as none."""
        out = [
            self.integers(encoding, declared, name, message, reply)
            + discrete_gaussian(draw.key, encoding.count(name), *draw.name, name)
            for name in sorted(declared.parts)
        ]
        return torch.cat([*out, torch.tensor([1, 0])]).to(encoding.dtype)  # weight, and none cut

    def integers(
        self, encoding: Encoding, declared: Declaration, name: str, message: Any, reply: Tree
    ) -> Tensor:
        """One part without its noise: its norm is at most that of the clip, in steps."""
        part, clip = declared.parts[name], self.clip_of(declared, name)
        sent = message.get(part.of or "") if part.kind == "model" else None
        origin = None if sent is None else tree.pack(sent)[0]
        given, flat, scale = tree.pack(reply[name])[0], [], 0.0
        for leaf in encoding.leaves:
            if leaf.part == name:
                t = given[leaf.path].cpu().double()
                flat.append((t if origin is None else t - origin[leaf.path].double()).reshape(-1))
                scale = leaf.scale
        row = torch.cat(flat).unsqueeze(0)
        return (clip_rows(row, clip * (1 - SLACK)).rows[0] * scale).trunc().to(torch.int64)


@dataclass(frozen=True)
class Draw:
    """The key of a client's noise, and a name that is used once with it."""

    key: Key
    name: tuple[Any, ...]


def shares_of(config: Config, clients: int, multiplier: float) -> Shares | None:
    """What the clients of a config add; None unless they add the noise of level 'client'."""
    given = config.privacy
    if given.level != "client" or not config.secure.enabled:
        return None
    assert given.clip != "adaptive"  # refused before
    honest = threshold_of(config, clients) - given.colluding
    return Shares(multiplier, honest, given.clip, given.bounds)


def check_shares(config: Config, clients: int | None) -> None:
    """Raise ConfigError for what noise in shares cannot have; `clients` is None if not known."""
    given, secure = config.privacy, config.secure
    if given.level != "client" or not secure.enabled:
        return
    about = "privacy.level = 'client' with secure = true"
    if given.clip == "adaptive":
        raise ConfigError(
            f"{about} needs a fixed clip, because clients clip their replies themselves; give a "
            "number, e.g. privacy.clip = 0.3."
        )
    if given.weights == "size":
        raise ConfigError(
            f"{about} weights all clients equally; remove privacy.weights and privacy.largest."
        )
    if config.cohort.sampling == "poisson":
        raise ConfigError(
            f"{about} is counted without sampling, and the sums tell how many took part; set "
            "cohort.sampling = 'uniform'."
        )
    for name in ("clip", "bits", "range"):
        if getattr(secure, name) != type(secure).model_fields[name].default:
            raise ConfigError(
                f"secure.{name} has no effect together with privacy.level = 'client', whose clip "
                "and noise decide how numbers are written; remove it."
            )
    if clients is not None and threshold_of(config, clients) <= given.colluding:
        raise ConfigError(
            f"privacy.colluding = {given.colluding}: a sum may be of only "
            f"{threshold_of(config, clients)} clients, so no noise is left to count on; lower it, "
            "or raise secure.threshold."
        )


class ShareRelease:
    """Charges what the clients of a round release together, and turns sums into means.

    Server-side middleware, and the cohort's `Release`. Nothing is clipped or noised here.
    """

    adaptive = False

    def __init__(self, ledger: Ledger, key: Key, shares: Shares) -> None:
        self.ledger, self.shares = ledger, shares
        self._key = key  # of a simulation's clients; those of a real federation have their own
        self._used: set[tuple[Any, ...]] = set()

    def __call__(self, exchange: Exchange) -> Exchange:
        """Wrap an exchange: it is in the ledger before anybody is asked."""

        def wrapped(ask: Ask) -> Iterator[Replies | Summed]:
            if not ask.declared.parts:
                yield from exchange(ask)
                return
            z = self.shares.multiplier
            self.ledger.charge(ask.ids, z, self._entry(ask), final=ask.final)
            equal = ask.weighting if ask.weighting == "given" else "equal"
            yield from exchange(replace(ask, weighting=equal))

        return wrapped

    def draw(self, ask: Ask, k: int) -> Draw:
        """The noise of a simulated client, which is drawn once."""
        name = ("share", *(ask.final, ask.round, ask.exchange, ask.declared.name, k))
        if name in self._used:
            raise RuntimeError(f"the noise of {name} was drawn twice")
        self._used.add(name)
        return Draw(self._key, name)

    def _entry(self, ask: Ask) -> dict[str, Any]:
        """The line of an exchange in the ledger."""
        given, declared = self.shares, ask.declared
        return {
            "round": "after the last" if ask.final else ask.round + 1,
            "phase": declared.name,
            "verb": ask.verb,
            "clients": float(len(ask.ids)),
            "multiplier": given.multiplier,
            "added": f"in shares by the clients; that of {given.honest} is counted",
            "parts": {
                name: {
                    "kind": part.kind,
                    "sensitivity": given.clip_of(declared, name),
                    "noise": given.noise(declared, name) * math.sqrt(given.honest),
                    "of": "the sum",
                }
                for name, part in declared.parts.items()
            },
        }

    # --- what the cohort returns to the algorithm -------------------------------------------------

    def size_weights(self, ids: Tensor) -> Tensor:
        """Equal weights."""
        return torch.ones(len(ids), dtype=torch.float64)

    def mean(self, ask: Ask, folded: Tree, weights: Tensor, *, by_size: bool) -> Tree:
        """The mean over the clients that were asked; models are added to what was sent."""
        del by_size
        total = float(weights.sum())
        return {name: _moved(ask, name, folded[name], total, 1.0) for name in folded}

    def sum(self, ask: Ask, folded: Tree) -> Tree:
        """The sum; clients that did not answer count as no change."""
        count = float(len(ask.ids))
        return {name: _moved(ask, name, folded[name], 1.0, count) for name in folded}

    def weighed(self, ask: Ask, name: str, folded: Tree, total: float, largest: float) -> Tree:
        """Refused before: secure aggregation shows no part of single replies."""
        raise RuntimeError(f"'{name}' of phase '{ask.declared.name}' cannot be weighed in shares")


def _moved(ask: Ask, name: str, folded: Tree, total: float, count: float) -> Tree:
    """A sum divided by a total, and added to what was sent, `count` times."""
    origin = part_of(ask, name, {name: folded}).origin
    kind = torch.float64 if ask.verb == "sum" else torch.get_default_dtype()
    if origin is None:
        return tree.tmap(lambda t: (t / total).to(kind), folded)
    return tree.tmap(lambda t, o: (count * o.double() + t / total).to(kind), folded, origin)

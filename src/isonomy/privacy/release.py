"""Client-level differential privacy: replies are clipped, and what the server gets is noised.

`ClientRelease` is server-side middleware (it clips replies as they arrive, and noises those that
the server sees one by one) and the cohort's `Release` (it noises sums and means). So an algorithm
is given nothing of the clients that is not noised, whatever it does with it.

One exchange is one Gaussian mechanism with the run's noise multiplier z. Its vector has all parts
of the reply, each divided by its clip C and multiplied by the square root of its share s (the
shares add up to 1), so one client changes it by at most 1. The noise of a part in a sum therefore
has the standard deviation z C / sqrt(s), times the largest weight of a client.

With an adaptive clip (Andrew, Thakkar, McMahan and Ramaswamy, NeurIPS 2021), clients also tell
whether their update is at most as long as the clip. This count is one more part, of clip 1/2, with
noise. The clip moves towards the median length: C <- C exp(-0.2 (b - 0.5)), with b the noisy share.

In secret cohorts (see `ledger`), means divide by the expected number of clients, which is public.
With weights by size, weights are min(size / largest, 1), and their noisy sum is one more part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isonomy.core import tree
from isonomy.core.cohort import Ask, Exchange, Replies
from isonomy.core.tree import Tree
from isonomy.errors import ConfigError
from isonomy.privacy.clipping import SLACK, clip_rows, part_of, rows_of, with_rows
from isonomy.privacy.ledger import Ledger
from isonomy.privacy.noise import Key
from isonomy.robust.parts import replied

START = 0.1  # of adaptive clips
PACE = 0.2  # of adaptive clips
QUANTILE = 0.5  # of norms, that adaptive clips follow
COUNT = "norms within the clip"
WEIGHT = "total weight"
_MINOR = 0.1  # the largest share of a count or of the total weight


class Scale(NamedTuple):
    """How one part is noised: its clip, and the standard deviation of its noise in a sum."""

    kind: str
    clip: float
    noise: float


class ClientRelease:
    """Clips and noises what the clients of one round reply, and charges it to the ledger."""

    def __init__(
        self,
        ledger: Ledger,
        key: Key,
        *,
        clip: float | None,
        bounds: dict[str, float],
        sizes: Tensor,
        largest: int | None = None,
        empty: bool = False,
    ) -> None:
        self.ledger, self.terms, self._key = ledger, ledger.terms, key
        self._clip = clip  # None: adaptive
        self._bounds = bounds
        self._sizes, self._largest = sizes, largest
        self._empty = empty  # nobody was drawn: one client is asked, only for the reply's shape
        self._at: dict[tuple[bool, int], dict[str, Scale]] = {}  # the scales of each exchange
        self._used: set[tuple[Any, ...]] = set()

    @property
    def adaptive(self) -> bool:
        """Whether the clip follows the norms of updates, which takes a count over all clients."""
        return self._clip is None

    # --- what the parts of an exchange are scaled by ----------------------------------------------

    def scales(self, ask: Ask) -> dict[str, Scale]:
        """Every part of an exchange, also those that are added to it."""
        z, asked = self.terms.multiplier, self._asked(ask)
        parts, minor = ask.declared.parts, {}
        count = min(_MINOR, (10 * z / asked) ** 2)  # noise of asked / 20 in the count, or more
        for name in parts:
            if name in ask.declared.trained and self._clip is None:
                minor[f"{COUNT}: {name}"] = Scale("statistic", 0.5, z * 0.5 / math.sqrt(count))
        shares = count * len(minor)
        if self._largest is not None and ask.verb == "mean":
            minor[WEIGHT] = Scale("statistic", 1.0, z / math.sqrt(_MINOR))
            shares += _MINOR
        share = (1 - shares) / len(parts)
        major = {}
        for name, part in parts.items():
            clip = self._clip_of(ask, name)
            major[name] = Scale(part.kind, clip, z * clip / math.sqrt(share))
        return major | minor

    def _clip_of(self, ask: Ask, name: str) -> float:
        if name in ask.declared.trained:
            if self._clip is not None:
                return self._clip
            return self.ledger.clips.setdefault(f"{ask.declared.name}.{name}", START)
        if name not in self._bounds:
            raise ConfigError(missing_bound(ask.declared.name, name))
        return self._bounds[name]

    def _asked(self, ask: Ask) -> float:
        """The number of clients that a mean is about: expected, or known."""
        secret = self.terms.secret and not ask.final
        return self.terms.rate * self.terms.clients if secret else float(len(ask.ids))

    # --- server-side middleware -------------------------------------------------------------------

    def __call__(self, exchange: Exchange) -> Exchange:
        """Wrap an exchange: its replies are clipped, and noised where the server sees each."""

        def wrapped(ask: Ask) -> Iterator[Replies]:
            if not ask.declared.parts:
                yield from exchange(ask)
                return
            self._check(ask)
            scales = self._at[ask.final, ask.exchange] = self.scales(ask)
            self.ledger.charge(
                ask.ids, self.terms.multiplier, self._entry(ask, scales), final=ask.final
            )
            within: dict[str, float] = {}
            place = {int(k): i for i, k in enumerate(ask.ids)}
            for chunk in exchange(ask):
                yield self._clipped(ask, chunk, scales, within, place)
            self._adapt(ask, scales, within)

        return wrapped

    def _check(self, ask: Ask) -> None:
        """Raise an error if an exchange tells who took part, although cohorts are secret."""
        if not self.terms.secret or ask.final:
            return
        if ask.verb in ("gather", "weigh") or ask.each is not None or len(ask.ids) < ask.cohort:
            raise ConfigError(
                f"phase '{ask.declared.name}' depends on who takes part in the round, but "
                "cohort.sampling = 'poisson' is counted as if nobody knew; set cohort.sampling = "
                "'uniform'."
            )

    def _entry(self, ask: Ask, scales: dict[str, Scale]) -> dict[str, Any]:
        """The line of an exchange in the ledger."""
        each = self._each(ask)
        return {
            "round": "after the last" if ask.final else ask.round + 1,
            "phase": ask.declared.name,
            "verb": ask.verb,
            "clients": self._asked(ask),
            "multiplier": self.terms.multiplier,
            "parts": {
                name: {
                    "kind": scale.kind,
                    "sensitivity": scale.clip,
                    "noise": scale.noise,
                    "of": "each client" if name in each else "the sum",
                }
                for name, scale in scales.items()
            },
        }

    def _each(self, ask: Ask) -> tuple[str, ...]:
        """The parts that the server sees of every client."""
        if ask.verb == "gather":
            return tuple(ask.declared.parts)
        return ask.declared.seen if ask.verb == "weigh" else ()

    def _clipped(
        self,
        ask: Ask,
        chunk: Replies,
        scales: dict[str, Scale],
        within: dict[str, float],
        place: dict[int, int],
    ) -> Replies:
        at = torch.tensor([place[int(k)] for k in chunk.ids], dtype=torch.int64)
        each, value = self._each(ask), {}
        for name in chunk.value:
            part, scale = part_of(ask, name, chunk.value), scales[name]
            found = clip_rows(rows_of(chunk.value, part, at), scale.clip * (1 - SLACK))
            rows = torch.zeros_like(found.rows) if self._empty else found.rows
            inside = (found.norms <= scale.clip).double() - 0.5
            within[name] = within.get(name, 0.0) + (0.0 if self._empty else float(inside.sum()))
            if name in each:
                rows = rows + self._noise_each(ask, name, chunk.ids, rows.shape[1]) * scale.noise
            shared = part.origin is not None and not part.own and name not in each
            value[name] = with_rows(chunk.value, part, at, rows, origin=not shared)
        return chunk._replace(value=value)

    def _adapt(self, ask: Ask, scales: dict[str, Scale], within: dict[str, float]) -> None:
        """Move the adaptive clips of an exchange by its noisy counts."""
        for name, total in within.items():
            extra = f"{COUNT}: {name}"
            if extra not in scales:
                continue
            noisy = total + scales[extra].noise * float(self._noise(ask, extra, ()))
            share = min(max(0.5 + noisy / self._asked(ask), 0.0), 1.0)
            clip = scales[name].clip * math.exp(-PACE * (share - QUANTILE))
            self.ledger.clips[f"{ask.declared.name}.{name}"] = clip

    # --- noise ------------------------------------------------------------------------------------

    def _noise(self, ask: Ask, name: str, shape: tuple[int, ...], who: int = -1) -> Tensor:
        """Standard normal numbers that are drawn once."""
        drawn = (ask.final, ask.round, ask.exchange, ask.declared.name, name, who)
        if drawn in self._used:
            raise RuntimeError(f"the noise of {drawn} was drawn twice")
        self._used.add(drawn)
        return self._key.normal(shape, "release", *drawn)

    def _noise_each(self, ask: Ask, name: str, ids: Tensor, width: int) -> Tensor:
        return torch.stack([self._noise(ask, name, (width,), int(k)) for k in ids])

    def _noised(self, ask: Ask, name: str, folded: Tree, weight: float) -> Tree:
        """A sum of a part, whose clients have at most this weight, with its noise."""
        noise = self._at[ask.final, ask.exchange][name].noise * weight
        leaves = tree.leaves(folded)
        drawn = self._noise(ask, name, (sum(t.numel() for t in leaves),))
        parts = iter(torch.split(drawn, [t.numel() for t in leaves]))
        return tree.tmap(lambda t: t.double() + noise * next(parts).reshape(t.shape), folded)

    # --- what the cohort returns to the algorithm -------------------------------------------------

    def size_weights(self, ids: Tensor) -> Tensor:
        """Equal weights, or with `largest` in proportion to the size, up to 1."""
        if self._largest is None:
            return torch.ones(len(ids), dtype=torch.float64)
        return (self._sizes[ids].double() / self._largest).clamp(max=1.0)

    def mean(self, ask: Ask, folded: Tree, weights: Tensor, *, by_size: bool) -> Tree:
        """The noisy mean of every part, for models added to what was sent."""
        largest, total = float(weights.max()), float(weights.sum())
        if by_size and self._largest is not None:
            sent = 0.0 if self._empty else total
            noise = self._at[ask.final, ask.exchange][WEIGHT].noise
            noisy = sent + noise * float(self._noise(ask, WEIGHT, ()))
            largest, total = 1.0, max(noisy, 1.0)
        elif self.terms.secret and not ask.final:
            if largest != float(weights.min()):
                raise ConfigError(
                    f"phase '{ask.declared.name}' gives clients different weights, but "
                    "cohort.sampling = 'poisson' is counted as if nobody knew who takes part; set "
                    "cohort.sampling = 'uniform'."
                )
            total = largest * self._asked(ask)
        if total <= 0:
            total, largest = 1.0, 0.0
        return {name: self._moved(ask, name, folded[name], total, largest) for name in folded}

    def sum(self, ask: Ask, folded: Tree) -> Tree:
        """The noisy sum of every part."""
        return {
            name: self._moved(ask, name, folded[name], 1.0, 1.0, count=self._asked(ask))
            for name in folded
        }

    def weighed(self, ask: Ask, name: str, folded: Tree, total: float, largest: float) -> Tree:
        """The noisy mean of a part whose weights follow from what was released before."""
        return self._moved(ask, name, folded, total or 1.0, largest)

    def _moved(
        self, ask: Ask, name: str, folded: Tree, total: float, largest: float, count: float = 1.0
    ) -> Tree:
        """A noisy sum, divided by a total; parts counted from what was sent are added to it."""
        noisy = self._noised(ask, name, folded, largest)
        origin = part_of(ask, name, {name: folded}).origin
        own = ask.each is not None and (ask.declared.parts[name].of or "") in ask.each
        kind = torch.float64 if ask.verb == "sum" else torch.get_default_dtype()
        if origin is None or own:
            return tree.tmap(lambda t: (t / total).to(kind), noisy)
        return tree.tmap(lambda t, o: (count * o.double() + t / total).to(kind), noisy, origin)


def finite_only(exchange: Exchange) -> Exchange:
    """Server-side middleware: a part with a number that is not finite contributes nothing.

    Otherwise screening would leave its client out, and whether it does would tell of its data.
    """

    def wrapped(ask: Ask) -> Iterator[Replies]:
        place = {int(k): i for i, k in enumerate(ask.ids)}
        for chunk in exchange(ask):
            if _sums_finite(chunk.value):
                yield chunk
                continue
            at = torch.tensor([place[int(k)] for k in chunk.ids], dtype=torch.int64)
            value = {name: _finite_part(ask, name, chunk.value, at) for name in chunk.value}
            yield chunk._replace(value=value)

    return wrapped


def _sums_finite(value: Tree) -> bool:
    """Whether all sums are finite, which implies that all numbers are; cheap to check."""
    return all(math.isfinite(float(t.sum())) for t in tree.leaves(value) if t.is_floating_point())


def _finite_part(ask: Ask, name: str, value: Any, at: Tensor) -> Tree:
    part = part_of(ask, name, value)
    try:
        rows = rows_of(value, part, at)
    except RuntimeError:  # other shapes than what was sent; screening rejects them
        return value[name]
    good = torch.isfinite(rows).all(1, keepdim=True)
    return replied(value, [part], at, torch.where(good, rows, 0.0))[name]


def missing_bound(phase: str, part: str) -> str:
    """The message for a statistic whose size is not bounded."""
    return (
        f"privacy.bounds has no entry for '{part}', a statistic that phase '{phase}' collects; "
        f"give its largest norm, e.g. privacy.bounds = {{{part} = 1.0}}: larger ones are shortened "
        "to it, and the noise is in proportion to it."
    )

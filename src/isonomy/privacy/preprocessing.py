"""Noise for what a preprocessing is fitted from, and the record of it.

Clients reply with vectors that one client (or one example) changes by at most 1
(`isonomy.data.tables.private_phases`). At level `client` the server adds Gaussian noise to their
sum; at level `example` every client adds it to its own vector, so that nobody else sees it without.

Values whose domain is not known are selected by a threshold: only values that somebody has are
noised, and only those above the threshold are shown. A value that one client (or example) alone has
is shown with a small probability, which is taken from delta. With V the largest number of such
values and b the part of the vector that each has, it is V Phi(-(threshold - b) / noise).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isonomy.config.privacy import PrivacyConfig
from isonomy.privacy.accounting import Event, multiplier_for
from isonomy.privacy.clipping import SLACK
from isonomy.privacy.noise import Key

SHARES = {"preprocessing": 0.1, "evaluation": 0.1, "validation": 0.1, "test": 0.1}
RESERVED = 0.1  # part of delta that the selection of values may use
MOST_VALUES = 100  # of one column that one client reports, at level `client`

Values = dict[tuple[str, str], float]


def share_of(options: PrivacyConfig, name: str) -> float:
    """The part of the budget, as a share of 1 / noise^2."""
    return options.shares.get(name, SHARES[name])


def whole_multiplier(options: PrivacyConfig) -> float:
    """The noise multiplier of a single Gaussian release that uses the whole budget.

    Without a budget, it is the noise of training.
    """
    if options.epsilon is None:
        return options.noise or 1.0
    delta = options.delta * (1 - RESERVED)
    return multiplier_for(lambda z: {Event(z): 1}, options.epsilon, delta, options.accountant)


def threshold(
    level: Literal["client", "example"], columns: int, noise: float, probability: float
) -> float:
    """The least threshold with which one client or example alone is shown with this probability.

    >>> round(threshold("example", 4, 2.0, 1e-6), 2)  # 0.5 + 2 x the quantile at 1 - 1e-6 / 4
    10.55
    """
    p = probability / (1 + probability)  # so that p / (1 - p) is at most the probability
    most = MOST_VALUES if level == "client" else 1
    return max(
        1 / math.sqrt(columns * m) + noise * -NormalDist().inv_cdf(p / (columns * m))
        for m in range(1, most + 1)
    )


def bounded_values(held: Values, columns: int) -> Values:
    """A client's values with the parts of the vector that it may have, whatever it replied.

    >>> bounded_values({("a", "x"): 9.0, ("a", "y"): 1.0, ("b", "z"): 1.0}, 2)[("a", "x")]
    0.5
    """
    by_column: dict[str, list[tuple[str, str]]] = {}
    for at in held:
        some = by_column.setdefault(at[0], [])
        if len(some) < MOST_VALUES:
            some.append(at)
    kept = list(by_column.values())[:columns]
    return {at: 1 / math.sqrt(columns * len(some)) for some in kept for at in some}


@dataclass
class NoisyPreparation:
    """The mechanism: noise multiplier of all its releases together, and what was released."""

    level: Literal["client", "example"]
    multiplier: float
    delta: float  # of the run; a part of it is for the selection of values
    key: Key
    entries: list[dict[str, Any]] = field(default_factory=list)
    reserved: float = 0.0  # the part of delta that was used
    _each: float = 0.0

    def plan(self, releases: int, *, selects: bool) -> None:
        """Divide the noise between so many releases."""
        self._each = self.multiplier * math.sqrt(max(releases, 1))
        self.reserved = RESERVED * self.delta if selects else 0.0

    def total(self, name: str, vectors: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        """The noisy sum over clients, and the standard deviation of its noise."""
        clients, n = vectors.shape
        held = self._bounded(vectors)
        if self.level == "client":
            made = held.sum(0) + self._each * self._normal(n, name, -1)
            self._record(name, "the sum", n)
            return made, self._each
        noisy = np.stack([held[k] + self._each * self._normal(n, name, k) for k in range(clients)])
        self._record(name, "each client", n)
        return noisy.sum(0), self._each * math.sqrt(clients)

    def _bounded(self, vectors: NDArray[np.float64]) -> NDArray[np.float64]:
        """At level `client`, vectors of norm 1 at most, whatever a client replied."""
        vectors = np.where(np.isfinite(vectors).all(1, keepdims=True), vectors, 0.0)
        if self.level == "example":
            return vectors
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors * np.minimum(1.0, (1 - SLACK) / np.maximum(norms, 1e-300)))

    def selected(self, name: str, held: Sequence[Values], columns: int) -> Values:
        """The noisy sums of the values above the threshold."""
        limit = threshold(self.level, columns, self._each, self.reserved)
        out: Values = {}
        if self.level == "client":
            bounded = [bounded_values(one, columns) for one in held]
            keys = sorted({at for one in bounded for at in one})
            place = {at: i for i, at in enumerate(keys)}
            sums = self._each * self._normal(len(keys), name, -1)
            for one in bounded:
                sums[[place[at] for at in one]] += list(one.values())
            out = {at: float(v) for at, v in zip(keys, sums, strict=True) if v > limit}
        else:
            for k, one in enumerate(held):
                keys = sorted(one)
                drawn = self._each * self._normal(len(keys), name, k)
                for at, noise in zip(keys, drawn, strict=True):
                    if one[at] + noise > limit:
                        out[at] = out.get(at, 0.0) + one[at] + float(noise)
        self._record(name, "the sum" if self.level == "client" else "each client", columns, limit)
        return {at: out[at] for at in sorted(out)}

    def _normal(self, n: int, name: str, client: int) -> NDArray[np.float64]:
        drawn: NDArray[np.float64] = self.key.normal((n,), "preprocessing", name, client).numpy()
        return drawn

    def _record(self, name: str, of: str, numbers: int, limit: float | None = None) -> None:
        part: dict[str, Any] = {"kind": "statistic", "sensitivity": 1.0, "noise": self._each}
        part |= {"of": of} if limit is None else {"of": of, "threshold": limit}
        self.entries.append(
            {
                "round": "before training",
                "phase": f"preprocessing:{name}",
                "verb": "sum",
                "multiplier": self._each,
                "parts": {f"{numbers} columns" if limit is not None else f"{numbers} sums": part},
            }
        )

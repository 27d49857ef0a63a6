"""Combiners: rules that combine clients' updates so that a few malicious ones have little effect.

A combiner replaces the weighted mean in `cohort.mean`. It sees every client's update of the whole
model as one row, so with a defence the server sees each client's update even if the algorithm alone
would show it only their mean. `expected` is the expected number of attackers among n updates,
written f below: a share of them (below 1, f = floor(share n)), a number, or "attack": the number of
malicious clients among those n, which only a simulation knows (see `told`).

A new defence is a class in this module and an entry in `COMBINERS`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from isonomy.core.options import build, option
from isonomy.errors import ConfigError, unknown

Expected = int | float | str

COLUMNS = 1 << 16  # coordinates at a time where all updates are sorted or multiplied


class Combiner(ABC):
    """Abstract. A final subclass is a frozen dataclass whose fields are the rule's options."""

    name: ClassVar[str]
    paper: ClassVar[str]
    weights: ClassVar[str]  # how the clients' weights (sizes) are used, in plain words
    needs: ClassVar[str] = ""  # how many updates the rule's guarantee needs
    losses: ClassVar[bool] = False  # whether it needs each client's loss at the sent model

    @abstractmethod
    def combine(self, rows: Tensor, weight: Tensor, losses: Tensor | None = None) -> Tensor:
        """One update [numbers] from rows [clients, numbers] with weights [clients], not all 0."""

    def enough(self, clients: int) -> bool:
        """Whether so many updates are enough for the rule's guarantee."""
        return True


def attackers(expected: Expected, clients: int) -> int:
    """How many of so many updates are expected to be malicious.

    >>> attackers(0.29, 100), attackers(2, 5)
    (29, 2)
    """
    assert not isinstance(expected, str), "'attack' is replaced in every exchange, by `told`"
    return math.floor(round(expected * clients, 9)) if expected < 1 else int(expected)


def _check(expected: Expected) -> None:
    if expected == "attack":
        return
    number = isinstance(expected, int | float) and not isinstance(expected, bool)
    if not number or not 0 <= float(expected) < math.inf:
        raise ValueError(
            f"expected = {expected!r}: give a share below 1, a whole number, or 'attack'."
        )
    if float(expected) >= 1 and float(expected) != int(expected):
        raise ValueError(f"expected = {expected}: give a share below 1 or a whole number.")


@dataclass(frozen=True)
class Median(Combiner):
    """Coordinate-wise median."""

    name: ClassVar[str] = "median"
    paper: ClassVar[str] = "Yin, Chen, Kannan and Bartlett, ICML 2018"
    weights: ClassVar[str] = "not used"
    needs: ClassVar[str] = "fewer attackers than half of the updates"

    def combine(self, rows: Tensor, weight: Tensor, losses: Tensor | None = None) -> Tensor:
        """The middle value of each coordinate; of an even number, the mean of the two middle."""
        n = len(rows)
        return _sorted_mean(rows, (n - 1) // 2, n // 2 + 1)


@dataclass(frozen=True)
class TrimmedMean(Combiner):
    """Coordinate-wise mean without the f largest and the f smallest values."""

    name: ClassVar[str] = "trimmed_mean"
    paper: ClassVar[str] = "Yin, Chen, Kannan and Bartlett, ICML 2018"
    weights: ClassVar[str] = "not used"
    needs: ClassVar[str] = "more than 2 f updates; with fewer, the median"

    expected: int | float | str = option(
        0.2, 'attackers f: a share of the updates, a number, or "attack"'
    )

    def __post_init__(self) -> None:
        _check(self.expected)

    def combine(self, rows: Tensor, weight: Tensor, losses: Tensor | None = None) -> Tensor:
        """The mean of the remaining values of each coordinate."""
        n = len(rows)
        cut = min(attackers(self.expected, n), (n - 1) // 2)
        return _sorted_mean(rows, cut, n - cut)

    def enough(self, clients: int) -> bool:
        """More than 2 f."""
        return clients > 2 * attackers(self.expected, clients)


@dataclass(frozen=True)
class Krum(Combiner):
    """The one update with the least sum of squared distances to its n - f - 2 nearest others."""

    name: ClassVar[str] = "krum"
    paper: ClassVar[str] = "Blanchard, El Mhamdi, Guerraoui and Stainer, NeurIPS 2017"
    weights: ClassVar[str] = "not used"
    needs: ClassVar[str] = "more than 2 f + 2 updates; with fewer, at least one neighbour counts"

    expected: int | float | str = option(
        0.2, 'attackers f: a share of the updates, a number, or "attack"'
    )

    def __post_init__(self) -> None:
        _check(self.expected)

    def combine(self, rows: Tensor, weight: Tensor, losses: Tensor | None = None) -> Tensor:
        """The update with the smallest score; of equal scores, the first."""
        scores = krum_scores(distances(rows), attackers(self.expected, len(rows)))
        return rows[int(scores.argmin())]

    def enough(self, clients: int) -> bool:
        """More than 2 f + 2."""
        return clients > 2 * attackers(self.expected, clients) + 2


@dataclass(frozen=True)
class MultiKrum(Combiner):
    """The mean of the updates with the best Krum scores."""

    name: ClassVar[str] = "multi_krum"
    paper: ClassVar[str] = "Blanchard, El Mhamdi, Guerraoui and Stainer, NeurIPS 2017"
    weights: ClassVar[str] = "the mean of those kept is weighted"
    needs: ClassVar[str] = "more than 2 f + 2 updates; with fewer, at least one neighbour counts"

    expected: int | float | str = option(
        0.2, 'attackers f: a share of the updates, a number, or "attack"'
    )
    keep: int | None = option(None, "how many updates to keep; n - f if unset")

    def __post_init__(self) -> None:
        _check(self.expected)
        if self.keep is not None and self.keep < 1:
            raise ValueError(f"keep = {self.keep}: give at least 1.")

    def combine(self, rows: Tensor, weight: Tensor, losses: Tensor | None = None) -> Tensor:
        """The weighted mean of the best."""
        n, f = len(rows), attackers(self.expected, len(rows))
        keep = min(max(n - f, 1) if self.keep is None else self.keep, n)
        best = krum_scores(distances(rows), f).argsort(dim=0, stable=True)[:keep]
        return _mean(rows[best], weight[best])

    def enough(self, clients: int) -> bool:
        """More than 2 f + 2."""
        return clients > 2 * attackers(self.expected, clients) + 2


@dataclass(frozen=True)
class Bulyan(Combiner):
    """Krum again and again to pick n - 2 f updates, then the n - 4 f nearest to their median."""

    name: ClassVar[str] = "bulyan"
    paper: ClassVar[str] = "El Mhamdi, Guerraoui and Rouault, ICML 2018"
    weights: ClassVar[str] = "not used"
    needs: ClassVar[str] = "at least 4 f + 3 updates; with fewer, f is lowered until it fits"

    expected: int | float | str = option(
        0.2, 'attackers f: a share of the updates, a number, or "attack"'
    )

    def __post_init__(self) -> None:
        _check(self.expected)

    def combine(self, rows: Tensor, weight: Tensor, losses: Tensor | None = None) -> Tensor:
        """In each coordinate, the mean of the values nearest to the median of those picked."""
        n = len(rows)
        f = min(attackers(self.expected, n), max((n - 3) // 4, 0))
        apart = distances(rows)
        left, picked = list(range(n)), []
        for _ in range(n - 2 * f):
            scores = krum_scores(apart[left][:, left], f)
            picked.append(left.pop(int(scores.argmin())))
        chosen = rows[picked]
        out = []
        for some in _columns(chosen):
            middle = _sorted_mean(some, (len(some) - 1) // 2, len(some) // 2 + 1)
            near = (some - middle).abs().argsort(dim=0, stable=True)[: n - 4 * f]
            out.append(some.gather(0, near).mean(0))
        return torch.cat(out)

    def enough(self, clients: int) -> bool:
        """At least 4 f + 3."""
        return clients >= 4 * attackers(self.expected, clients) + 3


@dataclass(frozen=True)
class Clip(Combiner):
    """Norm clipping: longer updates are scaled down to a length, then averaged."""

    name: ClassVar[str] = "clip"
    paper: ClassVar[str] = "Sun, Kairouz, Suresh and McMahan, 2019; median norm as in FMTL (Ditto)"
    weights: ClassVar[str] = "the mean is weighted; the median norm is not"

    norm: float | None = option(None, "the largest length; the median length of the round if unset")

    def __post_init__(self) -> None:
        if self.norm is not None and not 0 < self.norm < math.inf:
            raise ValueError(f"norm = {self.norm}: give a number above 0.")

    def combine(self, rows: Tensor, weight: Tensor, losses: Tensor | None = None) -> Tensor:
        """The weighted mean of the clipped updates."""
        norms = _norms(rows)
        most = norms.quantile(0.5) if self.norm is None else torch.tensor(self.norm).double()
        factor = torch.where(norms > most, most / norms.clamp(min=1e-300), 1.0)
        return _mean(rows * factor.to(rows.dtype).unsqueeze(1), weight)


@dataclass(frozen=True)
class KNorm(Combiner):
    """The mean without the f updates of the largest norm."""

    name: ClassVar[str] = "k_norm"
    paper: ClassVar[str] = "FMTL (Ditto)"
    weights: ClassVar[str] = "the mean of those kept is weighted"
    needs: ClassVar[str] = "more than f updates; with fewer, the shortest alone"

    expected: int | float | str = option(
        0.2, 'attackers f: a share of the updates, a number, or "attack"'
    )

    def __post_init__(self) -> None:
        _check(self.expected)

    def combine(self, rows: Tensor, weight: Tensor, losses: Tensor | None = None) -> Tensor:
        """The weighted mean of the updates that are kept."""
        keep = max(len(rows) - attackers(self.expected, len(rows)), 1)
        short = _norms(rows).argsort(dim=0, stable=True)[:keep]
        return _mean(rows[short], weight[short])

    def enough(self, clients: int) -> bool:
        """More than f."""
        return clients > attackers(self.expected, clients)


@dataclass(frozen=True)
class KLoss(Combiner):
    """The one update whose client has the k-th largest loss at the sent model, k = f."""

    name: ClassVar[str] = "k_loss"
    paper: ClassVar[str] = "FMTL (Ditto)"
    weights: ClassVar[str] = "not used"
    needs: ClassVar[str] = "at least f updates; with f = 0 the largest loss"
    losses: ClassVar[bool] = True

    expected: int | float | str = option(
        0.2, 'attackers f: a share of the updates, a number, or "attack"'
    )
    rank: Literal["paper", "code"] = option(
        "paper", "f-th largest, or f + 1-th as the authors' code"
    )

    def __post_init__(self) -> None:
        _check(self.expected)

    def combine(self, rows: Tensor, weight: Tensor, losses: Tensor | None = None) -> Tensor:
        """The update at that rank of the losses."""
        assert losses is not None
        f = attackers(self.expected, len(rows))
        k = f + 1 if self.rank == "code" else max(f, 1)
        order = losses.argsort(dim=0, descending=True, stable=True)
        return rows[int(order[min(k, len(rows)) - 1])]

    def enough(self, clients: int) -> bool:
        """At least f, or one more for the code's rank."""
        return clients >= attackers(self.expected, clients) + (self.rank == "code")


@dataclass(frozen=True)
class GeometricMedian(Combiner):
    """RFA: the point with the least weighted sum of distances to the updates."""

    name: ClassVar[str] = "geometric_median"
    paper: ClassVar[str] = "Pillutla, Kakade and Harchaoui, IEEE TSP 2022"
    weights: ClassVar[str] = "each distance is weighted"
    needs: ClassVar[str] = "attackers of less than half of the weight"

    steps: int = option(100, "the largest number of steps of the smoothed Weiszfeld algorithm")
    smooth: float = option(1e-6, "distances below this count as this")
    stop: float = option(1e-8, "relative gain of the objective at which it stops")

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps = {self.steps}: give at least 1.")
        if not 0 < self.smooth < math.inf:
            raise ValueError(f"smooth = {self.smooth}: give a number above 0.")
        if not 0 <= self.stop < math.inf:
            raise ValueError(f"stop = {self.stop}: give a number of at least 0.")

    def combine(self, rows: Tensor, weight: Tensor, losses: Tensor | None = None) -> Tensor:
        """Means with weights w_k / max(smooth, distance), from the weighted mean on."""
        share, points = weight.double() / weight.sum(), rows.double()
        at = _mean(points, share)
        before = math.inf
        for _ in range(self.steps):
            apart = (points - at).norm(dim=1).clamp(min=self.smooth)
            value = float((share * apart).sum())
            if before - value <= self.stop * value:
                break
            before = value
            at = _mean(points, share / apart)
        return at.to(rows.dtype)


COMBINERS: dict[str, type[Combiner]] = {
    kind.name: kind
    for kind in (
        Median,
        TrimmedMean,
        Krum,
        MultiKrum,
        Bulyan,
        Clip,
        KNorm,
        KLoss,
        GeometricMedian,
    )
}


def find(name: str) -> type[Combiner]:
    """The class of a combiner by name."""
    if name not in COMBINERS:
        raise ConfigError(unknown("defence", name, COMBINERS))
    return COMBINERS[name]


def make(name: str, options: dict[str, Any] | None = None, *, attacked: bool = False) -> Combiner:
    """A combiner by name, options checked; `attacked` is whether the config has an attack."""
    rule = build("defence", name, find(name), options)
    if getattr(rule, "expected", None) == "attack" and not attacked:
        raise ConfigError(
            "defence.expected = 'attack', but the config has no attack; give a share or a "
            "number of expected attackers."
        )
    return rule


def told(rule: Combiner, malicious: int) -> Combiner:
    """The rule, with `expected = "attack"` replaced by the true number of malicious updates.

    >>> told(Krum(expected="attack"), 3).expected, told(Krum(expected=0.2), 3).expected
    (3, 0.2)
    """
    if getattr(rule, "expected", None) != "attack":
        return rule
    return replace(rule, expected=malicious)  # type: ignore[type-var]


def outnumbered(rule: Combiner, updates: int, malicious: int) -> bool:
    """Whether more of so many updates are malicious than the rule expects."""
    expected = getattr(rule, "expected", "attack")
    return expected != "attack" and malicious > attackers(expected, updates)


# --- the parts ------------------------------------------------------------------------------------


def distances(rows: Tensor) -> Tensor:
    """Squared Euclidean distances between all rows, in double precision."""
    centred = rows - rows.mean(0)  # smaller numbers lose less precision
    gram = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for some in _columns(centred):
        gram += some.double() @ some.double().T
    gram = (gram + gram.T) / 2  # so that mutual nearest neighbours tie exactly
    norms = gram.diagonal()
    return (norms.unsqueeze(0) + norms.unsqueeze(1) - 2 * gram).clamp(min=0).fill_diagonal_(0)


def krum_scores(apart: Tensor, f: int) -> Tensor:
    """Each row's sum of squared distances to its n - f - 2 nearest others, at least one."""
    n = len(apart)
    near = min(max(n - f - 2, 1), max(n - 1, 0))
    others = apart.clone().fill_diagonal_(math.inf)
    return others.sort(1).values[:, :near].sum(1)


def _columns(rows: Tensor) -> list[Tensor]:
    """The rows in slices of some coordinates, so that no copy of all updates is made."""
    return [rows[:, i : i + COLUMNS] for i in range(0, rows.shape[1], COLUMNS)]


def _sorted_mean(rows: Tensor, first: int, last: int) -> Tensor:
    """In each coordinate, the mean of the values of rank `first` to `last` - 1."""
    some = [part.sort(0).values[first:last].mean(0) for part in _columns(rows)]
    return torch.cat(some)


def _norms(rows: Tensor) -> Tensor:
    """Each row's length, in double precision."""
    return torch.stack([row.double().norm() for row in rows])


def _mean(rows: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean; the plain mean if all weights are 0."""
    share = weight.double() if float(weight.sum()) > 0 else torch.ones(len(rows)).double()
    return (share / share.sum()).to(rows.dtype) @ rows
